//! What becomes of a TPU whose job has finished.

use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::world::{World, minutes};

const ZONE: &str = "us-central2-b";

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "30s"
[policy]
on_success = "stop"
[[tpu]]
name = "a"
zone = "us-central2-b"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
"#;

const SCENARIO: &str = r#"
times = { create = "60s", delete = "30s", boot = "20s", beat = "60s", refusal = "3s" }
[[nodes]]
names = ["a"]
zone = "us-central2-b"
job = { checkpoint = "gs://bucket/{node}", step = "1s", every = 60, at_step = 120 }
"#;

#[test]
fn a_finished_tpu_is_stopped_once_and_left_running_where_a_person_starts_it_again() {
    let mut world = World::new(CONFIG, SCENARIO, Box::new(SqliteStore::in_memory().unwrap()));
    world.start("one");
    // The watchdog's own from now on: an adopted one is never stopped.
    world.run_for(minutes(2));
    world.preempt(ZONE, "a");
    world.run_for(minutes(20));
    let (sent, old) = (world.sent.len(), world.fleet().slots["a"].incarnation.clone());
    world.trouble(ZONE, "a", Trouble::JobEnds, None);
    world.run_for(minutes(9));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Finished);
    assert!(world.is_ready(ZONE, "a"), "ten minutes are a person's: {}", world.log.join("\n"));
    world.run_for(minutes(5));
    let calls = |world: &World| -> Vec<String> {
        world.sent[sent..].iter().map(|sent| format!("{} {}", sent.method, sent.path)).collect()
    };
    let stop = format!("POST v2/projects/p/locations/{ZONE}/nodes/a:stop");
    assert_eq!(calls(&world), [stop.as_str()], "{}", world.log.join("\n"));
    let node = |world: &World| world.cloud.nodes[&(ZONE.to_owned(), "a".to_owned())].state;
    assert_eq!(node(&world), "STOPPED");
    world.run_for(minutes(60));
    let path = format!("v2/projects/p/locations/{ZONE}/nodes/a:start");
    let body = Some(serde_json::json!({}));
    assert_eq!(world.call("POST", &path, &Default::default(), body).0, 200);
    world.run_for(minutes(120));
    assert_eq!((node(&world), calls(&world).len()), ("READY", 1), "{}", world.log.join("\n"));
    assert_eq!(world.fleet().slots["a"].incarnation, old);
}
