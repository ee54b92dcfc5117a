//! A Spot multislice that is preempted again and again: one request after the other, the job from its
//! newest complete checkpoint each time.

use std::collections::BTreeMap;

use serde_json::Value;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::hold::HoldReason;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::world::{Sent, World, minutes};

const ZONE: &str = "us-central2-b";

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "30s"
[[tpu]]
name = "a"
zone = "us-central2-b"
queued_resource = "qr"
[tpu.create]
accelerator_type = "v4-16"
runtime_version = "tpu-ubuntu2204-base"
spot = true
nodes = 2
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
"#;

const TIMES: &str = "times = { create = \"3m\", delete = \"30s\", boot = \"40s\", beat = \"60s\", refusal = \"1m\" }";

fn world() -> World {
    let mut world = World::new(CONFIG, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
    ["a-0", "a-1"].into_iter().for_each(|node| world.trains(node, 300));
    world.start("one");
    world
}

impl World {
    /// Time goes on until both slices run this generation, at most so long. Returns how long that took.
    fn until_whole(&mut self, generation: u64, most: i64) -> i64 {
        let began = self.now;
        while self.now - began < most {
            self.run_for(1_000);
            let runs = |node: &&str| {
                let node = self.cloud.nodes.get(&(ZONE.to_owned(), (*node).to_owned()));
                node.is_some_and(|node| {
                    node.state == "READY"
                        && node.run.order.generation == generation
                        && node.run.step > node.run.order.step.unwrap_or_default()
                })
            };
            // The next process waits for the lock of the one before.
            let ends = self.fleet().slots.get("a").is_some_and(|slot| slot.recovery.is_none());
            if ends && ["a-0", "a-1"].iter().all(runs) {
                return self.now - began;
            }
        }
        panic!("{}\n{}", self.state("a"), self.log.join("\n"))
    }

    fn orders(&self) -> Vec<Option<u64>> {
        let nodes = ["a-0", "a-1"].map(|node| (ZONE.to_owned(), node.to_owned()));
        nodes.iter().map(|key| self.cloud.nodes[key].run.order.step).collect()
    }
}

#[test]
fn a_spot_multislice_outlives_three_preemptions_a_stock_out_of_two_hours_and_a_late_grant() {
    let mut world = world();
    world.until_whole(1, minutes(30));
    // The service takes one slice back, and its request with it.
    for generation in 2..=3 {
        world.run_for(minutes(20));
        let saved = world.newest_checkpoint();
        assert!(saved.is_some(), "the job has saved");
        world.preempt(ZONE, "a-1");
        world.until_whole(generation, minutes(30));
        assert!(world.orders().iter().all(|step| *step >= saved), "{:?}", world.orders());
    }
    // A third time, with no capacity for two hours: the request waits in its place all that time.
    world.run_for(minutes(20));
    let (saved, sent) = (world.newest_checkpoint(), world.sent.len());
    world.trouble(ZONE, "", Trouble::StockOut, Some(minutes(120)));
    world.preempt(ZONE, "a-0");
    world.run_for(minutes(110));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Waiting);
    let asked = world.request(ZONE, "qr").unwrap();
    let calls: Vec<_> = world.sent[sent..].iter().map(|sent| sent.method.as_str()).collect();
    assert_eq!(calls, ["DELETE", "POST"], "{}", world.log.join("\n"));
    // The grant comes late, to a process that did not ask for it.
    world.restart();
    let took = world.until_whole(4, minutes(60));
    assert_eq!(world.request(ZONE, "qr").unwrap().created, asked.created, "the same request");
    assert!(took < minutes(25), "{took} ms");
    assert_eq!(world.orders(), [saved, saved]);
    // Preempted three times, condemned three times; each request was for both slices.
    let deletes = world.sent.iter().filter(|sent| sent.method == "DELETE").count();
    let creates = world.sent.iter().filter(|sent| sent.method == "POST").count();
    assert_eq!((deletes, creates), (3, 4), "{}", world.log.join("\n"));
    assert_eq!(world.cloud.harmed, 0);
    assert!(world.fleet().ledger.strays.is_empty());
}

#[test]
fn a_crash_between_the_patches_of_an_order_leaves_no_slice_behind() {
    for (patch, arrives) in (0..2).flat_map(|patch| [(patch, false), (patch, true)]) {
        let mut world = world();
        world.until_whole(1, minutes(30));
        world.run_for(minutes(20));
        let sent = world.sent.len();
        world.dies_at = Some((patch, arrives));
        world.command(CommandKind::Relaunch { slot: "a".into() });
        // An order that both have is read back; else both get the next one, whichever of them had this.
        let generation = if (patch, arrives) == (1, true) { 2 } else { 3 };
        world.until_whole(generation, minutes(20));
        world.run_for(minutes(10));
        let why = || format!("{patch} {arrives}: {}\n{}", world.state("a"), world.log.join("\n"));
        assert!(world.dies_at.is_none(), "it died: {}", why());
        assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
        let orders: Vec<_> = world.sent[sent..].iter().map(Sent::brief).collect();
        let order = format!("\\\"generation\\\":{generation}");
        let last = |node: &str| {
            orders.iter().filter(|brief| brief.contains(node) && brief.contains(&order)).count()
        };
        assert_eq!((last("nodes/a-0"), last("nodes/a-1")), (1, 1), "{}", why());
    }
}

/// The third preemption's request waits: there is no capacity for two hours.
fn waiting() -> World {
    let mut world = world();
    world.until_whole(1, minutes(30));
    world.run_for(minutes(20));
    world.trouble(ZONE, "", Trouble::StockOut, Some(minutes(120)));
    world.preempt(ZONE, "a-0");
    world.run_for(minutes(10));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Waiting);
    world
}

/// Another client's call about the request; its answer must be one of success.
fn call(world: &mut World, method: &str, query: (&str, &str), body: Option<Value>) {
    let place = format!("v2/projects/p/locations/{ZONE}/queuedResources");
    let path = if method == "POST" { place } else { format!("{place}/qr") };
    let query = [(query.0.to_owned(), query.1.to_owned())].into();
    let (status, answer) = world.call(method, &path, &query, body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_waiting_request_that_a_person_deletes_is_asked_for_again_because_its_slot_is_owed_one() {
    let mut world = waiting();
    call(&mut world, "DELETE", ("force", "false"), None);
    world.run_for(minutes(10));
    // To end that there is `forget`: a create that is owed is never given up for what another hand does.
    assert!(world.request(ZONE, "qr").is_some(), "{}", world.log.join("\n"));
    world.until_whole(3, minutes(150));
    assert_eq!(world.cloud.harmed, 0);
    let mut world = waiting();
    world.command(CommandKind::Forget { slot: "a".into(), purge: false });
    world.run_for(minutes(180));
    assert!(world.request(ZONE, "qr").is_none() && world.fleet().ledger.strays.is_empty());
}

#[test]
fn a_request_at_work_that_a_person_deletes_stays_deleted_until_recreate() {
    let mut world = world();
    world.until_whole(1, minutes(30));
    world.run_for(minutes(20));
    call(&mut world, "DELETE", ("force", "true"), None);
    world.run_for(minutes(60));
    let hold = world.fleet().slots["a"].decision.as_ref().and_then(|decision| decision.hold);
    assert_eq!(hold, Some(HoldReason::Deleted), "{}", world.log.join("\n"));
    assert_eq!(world.sent.len(), 1, "{}", world.log.join("\n"));
    world.command(CommandKind::Recreate { slot: "a".into(), incarnation: None });
    world.until_whole(2, minutes(30));
}

#[test]
fn a_request_that_a_person_makes_under_the_same_id_is_taken_up_and_not_harmed() {
    let mut world = waiting();
    let place = (ZONE.to_owned(), "qr".to_owned());
    let mut body = Value::Object(world.cloud.queued[&place].body.clone());
    let node = &mut body["tpu"]["nodeSpec"][0]["node"];
    node["metadata"] = serde_json::json!({"startup-script": "#! /bin/bash\necho by hand"});
    call(&mut world, "DELETE", ("force", "false"), None);
    world.run_for(31_000);
    let sent = world.sent.len();
    call(&mut world, "POST", ("queuedResourceId", "qr"), Some(body));
    world.run_for(minutes(180));
    let calls: Vec<_> = world.sent[sent..].iter().map(|sent| &sent.method).collect();
    assert!(!calls.iter().any(|method| *method == "DELETE"), "{}", world.log.join("\n"));
    assert_eq!(world.cloud.queued[&place].state, "ACTIVE", "{}", world.log.join("\n"));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn a_reset_by_a_person_is_waited_out() {
    let mut world = world();
    world.until_whole(1, minutes(30));
    world.run_for(minutes(20));
    let path = format!("v2/projects/p/locations/{ZONE}/queuedResources/qr:reset");
    assert_eq!(world.call("POST", &path, &BTreeMap::new(), None).0, 200);
    world.run_for(minutes(1));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Starting);
    world.run_for(minutes(60));
    assert_eq!(world.sent.len(), 1, "{}", world.log.join("\n"));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy);
}
