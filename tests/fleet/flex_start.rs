//! Flex-start capacity ends by itself, and its end is known: the job is asked for a checkpoint before it, and
//! goes on from there on the next grant.

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
every = "60s"
[[tpu]]
name = "a"
zone = "us-central2-b"
queued_resource = "qr"
[tpu.create]
accelerator_type = "v4-8"
runtime_version = "tpu-ubuntu2204-base"
provisioning_model = "flex-start"
max_run = "3h"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
on_notice = "SIGUSR1"
"#;

const TIMES: &str = "times = { create = \"4m\", delete = \"30s\", boot = \"40s\", beat = \"60s\", refusal = \"1m\" }";

/// At work; it saves seldom by itself.
fn world() -> World {
    let mut world = World::new(CONFIG, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
    world.trains("a", 3_000);
    world.start("one");
    world.run_for(minutes(20));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy);
    world
}

impl World {
    /// Time goes on; never are there two requests of the slot.
    fn with_one_request(&mut self, ms: i64) {
        for _ in 0..ms / 1_000 {
            self.run_for(1_000);
            assert!(self.cloud.queued.len() < 2, "{}", self.log.join("\n"));
        }
    }

    fn run_of_a(&self) -> Option<&tpu_watchdog::simulator::things::Run> {
        self.cloud.nodes.get(&(ZONE.to_owned(), "a".to_owned())).map(|node| &node.run)
    }
}

#[test]
fn the_job_saves_before_the_end_and_goes_on_from_there_on_the_next_grant() {
    let mut world = world();
    let ends_at = world.request(ZONE, "qr").unwrap().times.ends_at.expect("it is told");
    assert!(ends_at > crate::world::at(minutes(180)) && ends_at < crate::world::at(minutes(200)));
    world.with_one_request(minutes(150));
    let (before, step) = (world.newest_checkpoint(), world.run_of_a().unwrap().step);
    assert!(!world.run_of_a().unwrap().order.notice);
    // No capacity for an hour afterwards: it waits in its place.
    world.trouble(ZONE, "", Trouble::StockOut, Some(minutes(75)));
    world.with_one_request(minutes(30));
    let saved = world.newest_checkpoint();
    assert!(saved > before && saved >= Some(step), "asked for a checkpoint: {before:?} {saved:?}");
    world.with_one_request(minutes(75));
    let run = world.run_of_a().expect("it was granted").clone();
    let why = || format!("{}\n{}", world.state("a"), world.log.join("\n"));
    assert_eq!((run.order.generation, run.order.step), (2, saved), "{}", why());
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
    let methods: Vec<_> = world.sent.iter().map(|sent| sent.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "DELETE", "POST"], "{}", why());
    assert!(world.fleet().ledger.strays.is_empty());
    assert!(world.request(ZONE, "qr").unwrap().times.ends_at > Some(ends_at), "a time of its own");
}

#[test]
fn a_watchdog_that_dies_around_the_end_loses_none_of_it() {
    for (call, arrives) in (0..3).flat_map(|call| [(call, false), (call, true)]) {
        let mut world = world();
        world.dies_at = Some((call, arrives));
        world.with_one_request(minutes(210));
        let why = || format!("{call} {arrives}: {}\n{}", world.state("a"), world.log.join("\n"));
        assert!(world.dies_at.is_none(), "it died: {}", why());
        assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
        assert_eq!(world.run_of_a().unwrap().order.generation, 2, "{}", why());
        assert!(world.fleet().ledger.strays.is_empty() && world.cloud.harmed == 0, "{}", why());
    }
}
