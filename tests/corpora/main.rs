//! Whatever comes from outside is read without a panic: the fuzzer's seeds, and many changed copies
//! of them. The copies follow from a fixed seed, so that a failure is the same on every machine.

mod reading;

use std::path::PathBuf;

use fastrand::Rng;

/// Pieces that are put in where they hurt.
const PIECES: [&str; 14] = [
    "\"",
    "{",
    "]",
    "\\u0000",
    "\u{202e}",
    "-1",
    "1e999",
    "18446744073709551616",
    "null",
    "true",
    "T24:61:61Z",
    "/../",
    "${HOME}",
    "\n\r\t",
];

/// Takes bytes away, doubles them, flips them, and puts pieces in.
fn changed(rng: &mut Rng, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(0..=bytes.len());
        let end = (at + rng.usize(0..24)).min(bytes.len());
        match rng.u32(0..4) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.u32(0..8),
            _ => {
                let piece = PIECES[rng.usize(0..PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
        }
    }
    bytes
}

/// Reads the seeds of a kind, which must be understood, and their changed copies, which must only
/// be survived.
fn survive(kind: &str, copies: usize) {
    let read = reading::KINDS.iter().find(|(name, _)| *name == kind).unwrap().1;
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(kind);
    let mut seeds: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(!seeds.is_empty());
    let mut rng = Rng::with_seed(kind.len() as u64 * 7_919);
    let mut understood = 0;
    for path in &seeds {
        let seed = std::fs::read(path).unwrap();
        assert!(read(&seed), "{} is understood", path.display());
        understood += (0..copies / seeds.len()).filter(|_| read(&changed(&mut rng, &seed))).count();
    }
    println!(
        "{kind}: {understood} of {copies} changed copies of {} seeds were understood",
        seeds.len()
    );
    assert!(
        understood < copies / seeds.len() * seeds.len(),
        "something was damaged, and told apart"
    );
}

#[test]
fn configs() {
    survive("config", 3_000);
}

#[test]
fn nodes() {
    survive("node", 3_000);
}

#[test]
fn listings() {
    survive("list", 3_000);
}

#[test]
fn queued_resources() {
    survive("request", 3_000);
}

#[test]
fn training_jobs() {
    survive("job", 3_000);
}

#[test]
fn operations() {
    survive("operation", 3_000);
}

#[test]
fn errors() {
    survive("error", 3_000);
}

#[test]
fn health_descriptions() {
    survive("health_description", 3_000);
}

#[test]
fn guest_attributes() {
    survive("guest_attributes", 3_000);
}

#[test]
fn checkpoint_listings() {
    survive("checkpoints", 3_000);
}

#[test]
fn state_files() {
    survive("state_sqlite", 300);
}

#[test]
fn state_objects() {
    survive("state_object", 3_000);
}

#[test]
fn commands() {
    survive("command", 3_000);
}

/// What was written by this version is what the seed holds: a format that changes shows here.
#[tokio::test]
async fn the_seed_of_the_state_object_is_what_is_written() {
    use std::sync::Arc;

    use object_store::ObjectStoreExt as _;
    use object_store::memory::InMemory;
    use tpu_watchdog::store::Store as _;
    use tpu_watchdog::store::object::ObjectState;

    let client = Arc::new(InMemory::new());
    let prefix = object_store::path::Path::from("watchdog");
    let mut state =
        ObjectState::open(client.clone(), prefix.clone(), "gs://bucket/watchdog").await.unwrap();
    assert!(state.take(None, "somebody", std::time::Duration::from_secs(30)).await.unwrap());
    state.commit(&reading::a_batch()).await.unwrap();
    let written = client.get(&prefix.join("state.json")).await.unwrap().bytes().await.unwrap();
    let keys = |bytes: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        (keys(&value), keys(&value["slots"]["a"]), keys(&value["ledger"]))
    };
    let seed = std::fs::read(
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/state_object/whole.json"),
    )
    .unwrap();
    assert_eq!(
        keys(&seed),
        keys(&written),
        "fuzz/seeds/state_object/whole.json should be {}",
        String::from_utf8_lossy(&written)
    );
}
