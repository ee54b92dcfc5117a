//! Whatever comes from outside is read without a panic: seeds of each kind, and many changed copies of them. The copies follow from
//! a fixed seed, so that a failure is the same on every machine.

use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use futures::FutureExt as _;
use object_store::ObjectStoreExt as _;
use serde_json::Value;
use tpu_watchdog::checkpoint::lister::survey_in;
use tpu_watchdog::config;
use tpu_watchdog::decide::step;
use tpu_watchdog::google::classify::{http_failure, operation_failure};
use tpu_watchdog::model::action::{Input, Listing, Poll, Reading};
use tpu_watchdog::model::beacon::parse_guest_attributes;
use tpu_watchdog::model::fleet::{Fleet, Ledger};
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::settings::CheckpointSettings;
use tpu_watchdog::store::Store as _;
use tpu_watchdog::store::sqlite::SqliteStore;

/// Changed copies of each seed.
const COPIES: usize = 3_000;

const CONFIG: &str = include_str!("../config/full.toml");
const NODE: &str = r#"{"name": "projects/p/locations/us-central2-b/nodes/a", "id": "1", "createTime": "2026-01-01T00:00:00Z", "state": "READY",
    "health": "UNHEALTHY_MAINTENANCE", "healthDescription": "The TPU had a maintenance event at 2026-01-02T03:04:05.678901234Z",
    "acceleratorType": "v4-8", "runtimeVersion": "r", "networkEndpoints": [{"ipAddress": "10.0.0.2"}], "labels": {"tpu-watchdog": "off"},
    "metadata": {"tpu-watchdog-run": "{\"generation\": 3}", "tpu-watchdog-owner": "me"}, "symptoms": [{"createTime": "2026-01-01T00:00:00Z",
    "symptomType": "MESH_BUILD_FAIL"}], "upcomingMaintenance": {"maintenanceStatus": "ONGOING", "windowEndTime": "2026-01-01T00:00:00Z"}}"#;
const ERROR: &str = r#"{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota limit 'TPUS' has been exceeded.",
    "details": [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []}]}}"#;
const OPERATION: &str = r#"{"code": 8, "message": "There is no more capacity in the zone \"us-central1-c\"", "details": []}"#;
const ATTRIBUTES: &str = r#"{"guestAttributes": [{"queryPath": "tpu-watchdog/", "queryValue": {"items": [
    {"namespace": "tpu-watchdog", "key": "boot", "value": "boot-1 3 1 "}, {"namespace": "tpu-watchdog", "key": "step", "value": "boot-1 3 1200"},
    {"namespace": "tpu-watchdog", "key": "exit", "value": "boot-1 3 -9 final after 5 restarts"}]}}]}"#;
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

/// Reads the seed, which must be understood, and its changed copies, which must only be survived.
fn survive(name: &str, seed: &[u8], read: impl Fn(&[u8]) -> bool) {
    assert!(read(seed), "the seed itself is understood");
    let mut rng = Rng::with_seed(name.len() as u64 * 7_919);
    let understood = (0..COPIES).filter(|_| read(&changed(&mut rng, seed))).count();
    println!("{name}: {understood} of {COPIES} copies were understood");
    assert!(understood < COPIES, "changed copies were told apart from nothing");
}

fn json(read: impl Fn(&Value) -> bool) -> impl Fn(&[u8]) -> bool {
    move |bytes| serde_json::from_slice(bytes).is_ok_and(|value| read(&value))
}

fn settings() -> tpu_watchdog::model::settings::Settings {
    let text = "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n";
    config::parse(Path::new("w.toml"), text, &|_| None).unwrap().settings
}

#[test]
fn configs() {
    survive("config", CONFIG.as_bytes(), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match config::parse(Path::new("/nowhere/w.toml"), &text, &|_| None) {
            Ok(_) => true,
            // Each mistake has a place and a remedy.
            Err(error) => !error.mistakes.iter().all(|m| m.line > 0 && !m.message.is_empty()),
        }
    });
}

#[test]
fn nodes_and_lists_of_them_go_on_through_the_core() {
    survive(
        "node",
        NODE.as_bytes(),
        json(|raw| {
            let Ok(view) = NodeView::parse(raw.clone()).map(Arc::new) else { return false };
            let now: jiff::Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
            let mut fleet = Fleet::new(settings(), Default::default(), Ledger::default());
            let _ = step(&mut fleet, Input::Configured(Box::new(settings())), now);
            let listing =
                Listing { zone: "us-central2-b".into(), result: Ok((vec![view.clone(), view.clone()], vec!["z".into()])) };
            let effects = step(&mut fleet, Input::Polled(Box::new(Poll { began: now, listings: vec![listing] })), now);
            let reading = Reading::Node(view);
            let more = step(&mut fleet, Input::Got { slot: "a".into(), began: now, reading }, now);
            // One read is never enough for anything.
            let acts = effects
                .iter()
                .chain(&more)
                .any(|effect| matches!(effect, tpu_watchdog::model::action::Effect::Commit { then, .. } if !then.is_empty()));
            assert!(!acts, "{raw}");
            true
        }),
    );
}

#[test]
fn errors_of_calls_and_operations_stay_on_one_line() {
    let plain = |message: &str| assert!(!message.chars().any(char::is_control) && message.len() < 4_000, "{message:?}");
    let mut rng = Rng::with_seed(1);
    for _ in 0..COPIES {
        let status = rng.u16(100..600);
        plain(&http_failure(status, &changed(&mut rng, ERROR.as_bytes())).message);
        if let Ok(error) = serde_json::from_slice(&changed(&mut rng, OPERATION.as_bytes())) {
            plain(&operation_failure(&error).message);
        }
    }
}

#[test]
fn guest_attributes() {
    survive("guest attributes", ATTRIBUTES.as_bytes(), json(|answer| parse_guest_attributes(answer).is_ok()));
}

#[test]
fn checkpoint_listings() {
    let names = "run/10/commit_success.txt\nrun/11/default/d/0\nrun/11.orbax-checkpoint-tmp-3/a\nrun/a b%2F/ü";
    survive("checkpoints", names.as_bytes(), |bytes| {
        let store = object_store::memory::InMemory::new();
        let mut put = 0;
        for name in String::from_utf8_lossy(bytes).lines() {
            let Ok(path) = object_store::path::Path::parse(name) else { continue };
            store.put(&path, "x".into()).now_or_never().expect("memory never waits").unwrap();
            put += 1;
        }
        let settings = CheckpointSettings { uri: "gs://bucket/run".into(), format: None };
        let base = object_store::path::Path::from("run");
        let survey = survey_in(&store, &base, &settings, Some(10)).now_or_never().expect("memory never waits").unwrap();
        put > 0 && survey.newest.is_some()
    });
}

#[test]
fn state_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    drop(SqliteStore::open(&path).unwrap());
    let seed = std::fs::read(&path).unwrap();
    let mut rng = Rng::with_seed(3);
    let mut refused = 0;
    for _ in 0..150 {
        let copy = folder.path().join("copy.db");
        let mut bytes = seed.clone();
        // A torn file, or single bytes of its pages.
        if rng.bool() {
            bytes.truncate(rng.usize(0..bytes.len()));
        }
        for _ in 0..rng.usize(0..40) {
            if !bytes.is_empty() {
                let at = rng.usize(0..bytes.len());
                bytes[at] = rng.u8(..);
            }
        }
        std::fs::write(&copy, &bytes).unwrap();
        match SqliteStore::open(&copy) {
            Ok(mut store) => drop(store.load().now_or_never().expect("SQLite never waits")),
            Err(error) => {
                refused += 1;
                assert!(!error.message.is_empty());
            }
        }
        for ending in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{ending}", copy.display()));
        }
    }
    assert!(refused > 0, "damage is told");
}
