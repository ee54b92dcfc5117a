//! An upgrade in place: the state and the nodes that version 0.1.0 left behind, taken over by the
//! present version in the middle of recoveries. `tests/fleet/0.1.0` was recorded once with that
//! version; see `recording.md` there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use serde::{Deserialize, Serialize};
use tpu_watchdog::store::object::ObjectState;
use tpu_watchdog::store::sqlite::SqliteStore;
use tpu_watchdog::store::{Batch, Store};

use crate::world::{Ms, Sent, World, minutes, wait};

/// When the new version takes over: between two polls.
const TAKEN_OVER: Ms = minutes(100) + 10_000;

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "30s"
[policy]
max_unavailable = "50%"
[[tpu]]
name = "adopted"
zone = "us-central2-b"
[[tpu]]
name = "crashes"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/crashes"
[[tpu]]
name = "creating"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/creating"
[[tpu]]
name = "deleting"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/deleting"
[[tpu]]
name = "finishes"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/finishes"
[[tpu]]
name = "maintenance"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/maintenance"
[[tpu]]
name = "silent"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/silent"
[[tpu]]
name = "waits"
zone = "us-east5-a"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/waits"
[[tpu]]
name = "well"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/well"
"#;

/// Everything but `adopted` is preempted at the start, so that it runs under the supervisor from
/// then on.
const SCENARIO: &str = r#"
times = { create = "60s", delete = "30s", boot = "20s", beat = "60s", refusal = "3s" }
[[nodes]]
names = ["adopted", "crashes", "creating", "deleting", "finishes", "maintenance", "silent", "well"]
zone = "us-central2-b"
job = { checkpoint = "gs://bucket/{node}", step = "1s", every = 300, at_step = 900 }
[[nodes]]
names = ["waits"]
zone = "us-east5-a"
job = { checkpoint = "gs://bucket/{node}", step = "1s", every = 300, at_step = 900 }
[[event]]
at = "1m"
node = "crashes"
what = "preempt"
[[event]]
at = "1m"
node = "creating"
what = "preempt"
[[event]]
at = "1m"
node = "deleting"
what = "preempt"
[[event]]
at = "1m"
node = "finishes"
what = "preempt"
[[event]]
at = "1m"
node = "maintenance"
what = "preempt"
[[event]]
at = "1m"
node = "silent"
what = "preempt"
[[event]]
at = "1m"
node = "waits"
zone = "us-east5-a"
what = "preempt"
[[event]]
at = "1m"
node = "well"
what = "preempt"
[[event]]
at = "45m"
node = "maintenance"
what = "maintenance"
[[event]]
at = "90m"
node = "silent"
what = "silence"
[[event]]
at = "94m"
zone = "us-east5-a"
what = "stock_out"
lasts = "26m"
[[event]]
at = "95m"
node = "waits"
zone = "us-east5-a"
what = "preempt"
[[event]]
at = "98m 35s"
node = "creating"
what = "preempt"
[[event]]
at = "99m 35s"
node = "deleting"
what = "preempt"
[[event]]
at = "110m"
node = "finishes"
what = "job_ends"
"#;

/// Exits that the supervisor of `crashes` reports: when, and what it says.
const CRASHES: [(Ms, &str); 6] = [
    (minutes(92), "restarting 1 of 5"),
    (minutes(97), "restarting 2 of 5"),
    (minutes(104), "restarting 3 of 5"),
    (minutes(108), "restarting 4 of 5"),
    (minutes(112), "restarting 5 of 5"),
    (minutes(116), "final after 5 restarts"),
];

/// What version 0.1.0 did: until it was replaced, and in the hour after that if it had gone on.
#[derive(Serialize, Deserialize)]
struct Story {
    before: Vec<Sent>,
    after: Vec<Sent>,
    recovered: Vec<String>,
}

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/fleet/0.1.0", name].iter().collect()
}

fn story() -> Story {
    serde_json::from_str(&std::fs::read_to_string(fixture("story.json")).unwrap()).unwrap()
}

fn world(store: Box<dyn Store>) -> World {
    let mut world = World::new(CONFIG, SCENARIO, store);
    for (at, text) in CRASHES {
        world.exit_at(at, "crashes", "us-central2-b", text);
    }
    world
}

/// The present version takes over at the recorded moment, and goes on for an hour.
fn take_over(store: Box<dyn Store>) {
    let story = story();
    let mut world = world(store);
    world.replay(&story.before, TAKEN_OVER);
    world.start("new");
    world.run(TAKEN_OVER + minutes(60));
    // Each as often as it did, at the most.
    let mut known: Vec<String> = story.after.iter().map(Sent::brief).collect();
    let allowed = known.clone();
    // 0.1.0 wrote the label as the owner; now it is the store's own id.
    let id = format!("\"{}\"", world.owner());
    for sent in &world.sent {
        let brief = sent.brief().replace(&id, "\"team\"");
        let at = known.iter().position(|known| *known == brief);
        // A pool without capacity is probed every 2 to 3 min; 0.1.0 waited up to half an hour.
        if at.is_none() && brief.contains("\"waits\"") && allowed.contains(&brief) {
            continue;
        }
        let at =
            at.unwrap_or_else(|| panic!("0.1.0 would not have sent {brief}\nbut still {known:#?}"));
        known.swap_remove(at);
    }
    for slot in &story.recovered {
        assert!(
            world.recovered.contains(slot),
            "{slot} was not recovered: {:?}\n{}",
            world.recovered,
            world.log.join("\n")
        );
    }
    assert_eq!(world.cloud.harmed_unseen, 0);
    assert!(!world.log.iter().any(|line| line.contains("safety check refused")), "{:?}", world.log);
}

#[test]
fn a_state_file_of_0_1_0_is_taken_over_in_the_middle_of_recoveries() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.db");
    let dump = std::fs::read_to_string(fixture("state.sql")).unwrap();
    rusqlite::Connection::open(&file).unwrap().execute_batch(&dump).unwrap();
    take_over(Box::new(SqliteStore::open(&file).unwrap()));
    assert!(folder.path().join("state.db.v3").exists(), "as 0.1.0 left it");
}

#[test]
fn state_in_a_bucket_of_0_1_0_is_taken_over_in_the_middle_of_recoveries() {
    let objects: BTreeMap<String, String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("bucket.json")).unwrap()).unwrap();
    let client = Arc::new(InMemory::new());
    let left = objects["state/state.json"].clone();
    let mut store = wait(async {
        for (name, content) in objects {
            client.put(&Path::from(name), content.into()).await.unwrap();
        }
        ObjectState::open(client.clone(), Path::from("state"), "gs://bucket/state").await.unwrap()
    });
    // The hour itself is played in memory: a bucket is written once a second at most, by the real
    // clock.
    let mut copy = SqliteStore::in_memory().unwrap();
    wait(async {
        let stored = store.load().await.unwrap();
        assert!(store.take(stored.lease.as_ref(), "new", Duration::from_secs(30)).await.unwrap());
        let batch = stored.into_batch(Vec::new());
        store.commit(&batch).await.unwrap();
        let kept = client.get(&Path::from("state/state.v1")).await.unwrap().bytes().await.unwrap();
        assert_eq!(kept, left, "as 0.1.0 left it");
        assert!(copy.take(None, "copy", Duration::from_secs(30)).await.unwrap());
        copy.release(&batch).await.unwrap();
    });
    take_over(Box::new(copy));
}

/// Writes the fixture again. Only for the version that it is about: see `recording.md`.
#[test]
#[ignore = "records the fixture with the version that it is about"]
fn record() {
    let folder = PathBuf::from(std::env::var("RECORD_INTO").unwrap());
    let mut world = world(Box::new(SqliteStore::open(&folder.join("state.db")).unwrap()));
    world.start("0.1.0");
    world.run(TAKEN_OVER);
    let before = std::mem::take(&mut world.sent);
    world.recovered.clear();
    for ending in ["", "-wal"] {
        let _ = std::fs::copy(
            folder.join(format!("state.db{ending}")),
            folder.join(format!("then.db{ending}")),
        );
    }
    // As `state migrate` moves it.
    let client = Arc::new(InMemory::new());
    let objects: BTreeMap<String, String> = wait(async {
        let mut file = SqliteStore::open(&folder.join("then.db")).unwrap();
        let mut bucket =
            ObjectState::open(client.clone(), Path::from("state"), "gs://bucket/state")
                .await
                .unwrap();
        assert!(bucket.take(None, "migrate", Duration::from_secs(30)).await.unwrap());
        let batch = file.load().await.unwrap().into_batch(Vec::new());
        bucket.adopt(file.owner(), &batch).await.unwrap();
        bucket.release(&Batch::default()).await.unwrap();
        let mut objects = BTreeMap::new();
        let all: Vec<_> = client.list(None).collect().await;
        for object in all {
            let name = object.unwrap().location;
            let content = client.get(&name).await.unwrap().bytes().await.unwrap();
            objects.insert(name.to_string(), String::from_utf8(content.to_vec()).unwrap());
        }
        objects
    });
    std::fs::write(folder.join("bucket.json"), serde_json::to_string_pretty(&objects).unwrap())
        .unwrap();
    world.run(TAKEN_OVER + minutes(60));
    println!("{}", world.log.join("\n"));
    let story =
        Story { before, after: world.sent, recovered: world.recovered.into_iter().collect() };
    std::fs::write(folder.join("story.json"), serde_json::to_string(&story).unwrap()).unwrap();
}
