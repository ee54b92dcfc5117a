//! One slot's state as the version before the driver stored it, once in each phase and call of a
//! judged recovery: the present version takes each over and finishes the recovery.
//!
//! `phases/recorded.json` was written once by that version, over this config and scenario: the
//! mutations that arrived, the specification, and the slot and the ledger at each moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path;
use serde::Deserialize;
use serde_json::{Value, json};
use tpu_watchdog::model::action::Record;
use tpu_watchdog::model::fleet::Ledger;
use tpu_watchdog::model::slot::SlotRecord;
use tpu_watchdog::store::object::ObjectState;
use tpu_watchdog::store::sqlite::SqliteStore;
use tpu_watchdog::store::{Batch, Store};

use crate::world::{Ms, Sent, World, minutes, wait};

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "30s"
[[tpu]]
name = "a"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
"#;

/// Preempted first, so that it runs under the supervisor when it is judged.
const SCENARIO: &str = r#"
times = { create = "60s", delete = "30s", boot = "20s", beat = "60s", refusal = "3s" }
[[nodes]]
names = ["a"]
zone = "us-central2-b"
job = { checkpoint = "gs://bucket/{node}", step = "1s", every = 300, at_step = 900 }
[[event]]
at = "1m"
node = "a"
what = "preempt"
[[event]]
at = "20m"
node = "a"
what = "unresponsive"
"#;

#[derive(Deserialize)]
struct Recorded {
    spec: Value,
    sent: Vec<Sent>,
    moments: BTreeMap<String, Moment>,
}

#[derive(Clone, Deserialize)]
struct Moment {
    at: Ms,
    /// How many of the mutations had arrived.
    sent: usize,
    slot: Value,
    ledger: Value,
}

/// Writes the state that a version before has left.
async fn keep(store: &mut dyn Store, batch: &Batch) {
    assert!(store.take(None, "before", Duration::from_secs(30)).await.unwrap());
    store.release(batch).await.unwrap();
}

/// The same as a bucket gives it back. It is played in memory: a bucket is written once a second at most,
/// by the real clock.
fn through_a_bucket(batch: Batch) -> Batch {
    wait(async {
        let client = Arc::new(InMemory::new());
        let open = || ObjectState::open(client.clone(), Path::from("state"), "gs://bucket/state");
        keep(&mut open().await.unwrap(), &batch).await;
        open().await.unwrap().load().await.unwrap().into_batch(Vec::new())
    })
}

#[test]
fn state_stored_in_any_phase_by_the_version_before_is_taken_up_and_finished() {
    are_taken_up(false);
}

#[test]
fn state_stored_in_any_phase_in_a_bucket_is_taken_up_and_finished() {
    are_taken_up(true);
}

/// Moments that the run did not come by, each next to one that it did: of a recovery with this phase, and this call.
const NEXT_TO: [(&str, &str, Option<&str>); 8] = [
    ("deleting intended", "condemned", None),
    ("deleting intended", "deleting", Some("unknown")),
    ("deleting accepted", "deleting", Some("unknown")),
    ("deleting accepted", "deleting", Some("observed")),
    ("creating intended", "creating", Some("unknown")),
    ("creating accepted", "creating", Some("unknown")),
    ("creating accepted", "creating", Some("observed")),
    ("booted none", "launched", None),
];

fn are_taken_up(in_a_bucket: bool) {
    let recorded: Recorded = serde_json::from_str(include_str!("phases/recorded.json")).unwrap();
    assert_eq!(recorded.moments.len(), 8);
    let others = NEXT_TO.map(|(of, phase, call)| {
        let mut moment = recorded.moments[of].clone();
        let recovery = &mut moment.slot["recovery"];
        (recovery["phase"], recovery["call"]) = (json!(phase), json!(call));
        (format!("{of}, as {phase} {call:?}"), moment)
    });
    for (name, moment) in recorded.moments.clone().into_iter().chain(others) {
        let sent = &recorded.sent[..moment.sent];
        let until = moment.at + 100;
        // Its cloud numbered nodes otherwise.
        let numbered = {
            let store = Box::new(SqliteStore::in_memory().unwrap());
            let mut cloud = World::new(CONFIG, SCENARIO, store);
            cloud.replay(sent, until);
            let node = cloud.cloud.nodes.get(&("us-central2-b".to_owned(), "a".to_owned()));
            node.map(|node| node.uid.to_string())
        };
        let text = moment.slot.to_string();
        let then = if moment.sent < 4 { "1000000079190" } else { "1000000269246" };
        let text = numbered.map_or(text.clone(), |now| text.replace(then, &now));
        let slot: SlotRecord = serde_json::from_str(&text).unwrap();
        let ledger: Ledger = serde_json::from_value(moment.ledger).unwrap();
        let before = slot.recovery.clone().expect("it is recorded within a recovery");
        let records = vec![
            Record::Slot(Box::new(slot)),
            Record::Spec("a".to_owned(), recorded.spec.clone()),
            Record::Ledger(Box::new(ledger)),
        ];
        let kept = Batch { records, ..Batch::default() };
        let kept = if in_a_bucket { through_a_bucket(kept) } else { kept };
        let mut store = SqliteStore::in_memory().unwrap();
        wait(keep(&mut store, &kept));
        let mut world = World::new(CONFIG, SCENARIO, Box::new(store));
        world.replay(sent, until);
        world.start("after");
        world.run_for(minutes(20));
        assert!(
            world.recovered.contains("a"),
            "{name}: {}\n{}",
            world.state("a"),
            world.log.join("\n")
        );
        // Nothing is done twice: the first two mutations are an earlier recovery's.
        let left: Vec<&str> = world.sent.iter().map(|sent| sent.method.as_str()).collect();
        let wanted: &[&str] = match moment.sent {
            2 => &["DELETE", "POST"],
            3 => &["POST"],
            _ => &[],
        };
        assert_eq!(left, wanted, "{name}\n{}", world.log.join("\n"));
        assert_eq!(world.cloud.harmed, 0, "{name}");
        assert!(before.condemned.is_some() || moment.sent == 4, "{name}");
    }
}
