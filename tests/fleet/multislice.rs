//! A Spot multislice that is preempted again and again: one request after the other, the job from its
//! newest complete checkpoint each time.

use std::time::Duration;

use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::simulator::things::Workload;
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
    for node in ["a-0", "a-1"] {
        let job = Workload {
            checkpoint: "gs://bucket/a".into(),
            step: Duration::from_secs(1),
            every: 300,
            at_step: 0,
        };
        world.cloud.workloads.insert(node.into(), job);
    }
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
            let ends = self.fleet.slots["a"].recovery.is_none();
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

    fn newest_checkpoint(&self) -> Option<u64> {
        let step = |name: &String| {
            name.strip_prefix("bucket/a/")?.strip_suffix("/commit_success.txt")?.parse().ok()
        };
        self.cloud.objects.keys().filter_map(step).max()
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
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Waiting);
    let asked = world.request(ZONE, "qr").unwrap();
    let calls: Vec<_> = world.sent[sent..].iter().map(|sent| sent.method.as_str()).collect();
    assert_eq!(calls, ["DELETE", "POST"], "{}", world.log.join("\n"));
    // The grant comes when nobody counts on it any more: the process has been replaced meanwhile.
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
    assert!(world.fleet.ledger.strays.is_empty());
}
