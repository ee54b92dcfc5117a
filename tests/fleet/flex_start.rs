//! Flex-start capacity ends by itself, and its end is known: the job is asked for a checkpoint before it, and
//! goes on from there on the next grant.

use std::collections::BTreeMap;

use serde_json::json;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::phase::Phase;
use tpu_watchdog::model::queued::RequestState;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::world::{World, minutes};

pub const ZONE: &str = "us-central2-b";

pub const CONFIG: &str = r#"
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

pub const TIMES: &str = "times = { create = \"4m\", delete = \"30s\", boot = \"40s\", beat = \"60s\", refusal = \"1m\" }";

/// At work; it saves seldom by itself.
pub fn at_work() -> World {
    let mut world = World::new(CONFIG, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
    world.trains("a", 3_000);
    world.start("one");
    world.run_for(minutes(20));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy);
    world
}

impl World {
    /// Time goes on; never are two requests of the slot granted.
    pub fn with_one_grant(&mut self, ms: i64) {
        for _ in 0..ms / 1_000 {
            self.run_for(1_000);
            let granted = |state: &str| ["PROVISIONING", "ACTIVE"].contains(&state);
            let granted = self.cloud.queued.values().filter(|of| granted(of.state)).count();
            assert!(granted < 2, "{}", self.log.join("\n"));
        }
        // The plan itself knows what the checker would refuse.
        let refused = |line: &&String| line.contains("safety check") || line.contains("ahead: S");
        assert_eq!(self.log.iter().find(refused), None, "{}", self.log.join("\n"));
    }

    /// The run on the slot's node of this name.
    pub fn run_on(&self, node: &str) -> Option<&tpu_watchdog::simulator::things::Run> {
        self.cloud.nodes.get(&(ZONE.to_owned(), node.to_owned())).map(|node| &node.run)
    }

    fn methods(&self) -> Vec<&str> {
        self.sent.iter().map(|sent| sent.method.as_str()).collect()
    }

    pub fn request_ids(&self) -> Vec<&str> {
        self.cloud.queued.keys().map(|(_, id)| id.as_str()).collect()
    }
}

#[test]
fn the_next_request_waits_before_the_end_and_the_job_goes_on_from_its_last_checkpoint() {
    let mut world = at_work();
    let ends_at = world.request(ZONE, "qr").unwrap().times.ends_at.expect("it is told");
    assert!(ends_at > crate::world::at(minutes(180)) && ends_at < crate::world::at(minutes(200)));
    world.with_one_grant(minutes(100));
    assert_eq!(world.request_ids(), ["qr"], "more than an hour before the end");
    world.with_one_grant(minutes(50));
    let (before, step) = (world.newest_checkpoint(), world.run_on("a").unwrap().step);
    assert!(!world.run_on("a").unwrap().order.notice);
    assert_eq!(world.request(ZONE, "qr-next").unwrap().state, RequestState::Waiting);
    // No capacity for an hour afterwards: it waits in its place.
    world.trouble(ZONE, "", Trouble::StockOut, Some(minutes(75)));
    world.with_one_grant(minutes(30));
    let saved = world.newest_checkpoint();
    assert!(saved > before && saved >= Some(step), "asked for a checkpoint: {before:?} {saved:?}");
    let why = |world: &World| format!("{}\n{}", world.state("a"), world.log.join("\n"));
    assert_eq!(world.request_ids(), ["qr-next"], "{}", why(&world));
    world.with_one_grant(minutes(75));
    let run = world.run_on("a-next").unwrap_or_else(|| panic!("{}", why(&world))).clone();
    assert_eq!((run.order.wait, run.order.step), (false, saved), "{}", why(&world));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why(&world));
    let sent = ["POST", "POST", "PATCH", "DELETE", "PATCH"];
    assert_eq!(world.methods(), sent, "ahead, the notice, the end, the order: {}", why(&world));
    assert!(world.fleet().ledger.strays.is_empty());
    // Not from the time at which it was asked for.
    let waited = world.log.iter().rfind(|line| line.contains(" for capacity")).unwrap();
    assert!(waited.contains("a: waited 1h 1m"), "{waited}");
    let next = world.request(ZONE, "qr-next").unwrap().times.ends_at;
    assert!(next > Some(ends_at), "a time of its own");

    // The ids take turns.
    world.with_one_grant(minutes(200));
    assert_eq!((world.request_ids(), world.run_on("a").is_some()), (vec!["qr"], true));
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why(&world));
    assert_eq!(world.cloud.harmed, 0);
}

#[test]
fn a_watchdog_that_dies_around_the_end_loses_none_of_it() {
    for (call, arrives) in (0..5).flat_map(|call| [(call, false), (call, true)]) {
        let mut world = at_work();
        world.dies_at = Some((call, arrives));
        world.with_one_grant(minutes(215));
        let why = || format!("{call} {arrives}: {}\n{}", world.state("a"), world.log.join("\n"));
        assert!(world.dies_at.is_none() || call > 3, "it died: {}", why());
        assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
        assert_eq!(world.cloud.queued.len(), 1, "{}", why());
        assert!(world.fleet().ledger.strays.is_empty() && world.cloud.harmed == 0, "{}", why());
        let node = if world.run_on("a").is_some() { "a" } else { "a-next" };
        let run = world.run_on(node).unwrap_or_else(|| panic!("{}", why()));
        assert!(!run.order.wait && run.order.generation > 1, "{}", why());
    }
}

/// At work, with its next request in the queue since half an hour.
pub fn asked() -> World {
    let mut world = at_work();
    world.with_one_grant(minutes(135));
    assert_eq!(world.request_ids(), ["qr", "qr-next"], "{}", world.log.join("\n"));
    world
}

#[test]
fn s21_a_request_ahead_that_is_not_wanted_any_longer_is_withdrawn() {
    for what in ["forget", "finished", "left"] {
        let mut world = asked();
        match what {
            "forget" => world.command(CommandKind::Forget { slot: "a".into(), purge: false }),
            "finished" => world.trouble(ZONE, "a", Trouble::JobEnds, None),
            _ => {
                world.settings.slots.remove("a");
                world.reload();
            }
        }
        world.with_one_grant(minutes(10));
        let why = || format!("{what}: {}", world.log.join("\n"));
        assert_eq!(world.request_ids(), ["qr"], "{}", why());
        assert!(world.fleet().ledger.strays.is_empty() && world.cloud.harmed == 0, "{}", why());
        assert!(world.is_ready(ZONE, "a"), "{}", why());
    }
}

#[test]
fn l3_without_its_request_ahead_the_create_goes_on_as_after_any_other_end() {
    for what in ["a person deletes it", "its id is taken", "the TPU is lost before", "it fails"] {
        let taken = what == "its id is taken";
        let mut world = if taken { at_work() } else { asked() };
        let path = format!("v2/projects/p/locations/{ZONE}/queuedResources");
        match what {
            "a person deletes it" => {
                let path = format!("{path}/qr-next");
                assert_eq!(world.call("DELETE", &path, &BTreeMap::new(), None).0, 200);
            }
            "its id is taken" => {
                let node =
                    json!({"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"});
                let later = json!({"validAfterDuration": "86400s"});
                let spec = json!({"parent": format!("projects/p/locations/{ZONE}"), "nodeId": "theirs", "node": node});
                let body = json!({"tpu": {"nodeSpec": [spec]}, "queueingPolicy": later});
                let id = [("queuedResourceId".to_owned(), "qr-next".to_owned())].into();
                assert_eq!(world.call("POST", &path, &id, Some(body)).0, 200);
                world.with_one_grant(minutes(135));
            }
            "the TPU is lost before" => world.preempt(ZONE, "a"),
            _ => {
                let queued = world.cloud.queued.get_mut(&(ZONE.into(), "qr-next".into())).unwrap();
                queued.state = "FAILED";
                queued.error = Some(json!({"code": 4, "message": "not filled in its time"}));
            }
        }
        world.with_one_grant(minutes(15));
        let why = |world: &World| format!("{what}: {}\n{}", world.state("a"), world.log.join("\n"));
        let there: &[&str] = if taken { &["qr", "qr-next"] } else { &["qr"] };
        assert_eq!(world.request_ids(), there, "{}", why(&world));
        let early = what == "the TPU is lost before";
        assert!(world.is_ready(ZONE, "a"), "{}", why(&world));
        world.with_one_grant(minutes(if early { 100 } else { 60 }));
        assert_eq!(
            world.fleet().slots["a"].verdict.condition,
            Condition::Healthy,
            "{}",
            why(&world)
        );
        assert!(world.is_ready(ZONE, "a") && world.cloud.harmed == 0, "{}", why(&world));
        assert!(world.fleet().ledger.strays.is_empty(), "{}", why(&world));
        if taken {
            assert!(
                world.cloud.queued.contains_key(&(ZONE.into(), "qr-next".into())),
                "a person's"
            );
        }
    }
}

#[test]
fn l2_a_slot_that_is_filled_by_its_next_request_is_left_in_peace_by_a_reload_and_a_restart() {
    let mut world = asked();
    world.with_one_grant(minutes(60));
    let sent = world.sent.len();
    assert!(world.is_ready(ZONE, "a-next"), "{}\n{}", world.state("a"), world.log.join("\n"));
    world.reload();
    world.with_one_grant(minutes(10));
    world.restart();
    world.with_one_grant(minutes(10));
    let why = || format!("{}\n{}", world.state("a"), world.log.join("\n"));
    assert_eq!(world.sent.len(), sent, "{}", why());
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
    assert!(world.fleet().ledger.strays.is_empty());
}

#[test]
fn a_job_that_has_made_no_progress_yet_keeps_no_next_request_away() {
    let config = CONFIG.replace("3h", "40m");
    let mut world = World::new(&config, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
    world.start("one");
    world.with_one_grant(minutes(20));
    let phase = world.fleet().slots["a"].recovery.as_ref().map(|recovery| recovery.phase());
    assert_eq!(phase, Some(Phase::Launched), "{}", world.log.join("\n"));
    assert_eq!(world.request_ids(), ["qr", "qr-next"], "{}", world.log.join("\n"));
    world.with_one_grant(minutes(40));
    assert!(world.is_ready(ZONE, "a-next"), "{}", world.log.join("\n"));
    assert_eq!(world.request_ids(), ["qr", "qr-next"], "and the one after it");
}

/// Requests that wait, or are granted.
fn live(world: &World) -> usize {
    let over = ["FAILED", "SUSPENDED", "SUSPENDING", "DELETING"];
    world.cloud.queued.values().filter(|of| !over.contains(&of.state)).count()
}

#[test]
fn s21_a_tpu_that_is_lost_while_capacity_is_short_never_has_two_requests() {
    // Without a location of checkpoints nothing has to be listed before a create.
    for location in ["checkpoint = \"gs://bucket/a\"\n", ""] {
        let config = CONFIG.replace("checkpoint = \"gs://bucket/a\"\n", location);
        let mut world = World::new(&config, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
        world.trains("a", 3_000);
        world.start("one");
        world.with_one_grant(minutes(155));
        assert_eq!(world.request_ids(), ["qr", "qr-next"], "{}", world.log.join("\n"));
        world.trouble(ZONE, "", Trouble::StockOut, Some(minutes(120)));
        world.preempt(ZONE, "a");
        world.with_one_grant(minutes(5));
        let why = |world: &World| format!("{}\n{}", world.state("a"), world.log.join("\n"));
        for _ in 0..150 {
            world.with_one_grant(minutes(1));
            assert!(live(&world) < 2, "{}", why(&world));
        }
        assert!(world.is_ready(ZONE, "a"), "{}", why(&world));
        assert!(world.fleet().ledger.strays.is_empty());
    }
}

#[test]
fn s21_a_request_ahead_is_withdrawn_in_its_own_zone_when_the_slot_goes_on_in_another() {
    let mut world = asked();
    world.settings.slots.get_mut("a").unwrap().zones = vec!["us-east5-a".into()];
    world.reload();
    world.with_one_grant(minutes(2));
    world.preempt(ZONE, "a");
    world.with_one_grant(minutes(20));
    let why = || format!("{}\n{}", world.state("a"), world.log.join("\n"));
    let zones: Vec<_> = world.cloud.queued.keys().map(|(zone, _)| zone.as_str()).collect();
    assert_eq!((zones, world.is_ready("us-east5-a", "a")), (vec!["us-east5-a"], true), "{}", why());
    assert!(world.fleet().ledger.strays.is_empty(), "{}", why());
}

#[test]
fn s21_a_slot_that_is_renamed_goes_on_with_the_request_that_fills_it() {
    let mut world = asked();
    world.with_one_grant(minutes(60));
    assert!(world.is_ready(ZONE, "a-next"), "{}", world.log.join("\n"));
    let sent = world.sent.len();
    let mut slot = world.settings.slots.remove("a").unwrap();
    slot.name = "c".into();
    world.settings.slots.insert("c".into(), slot);
    world.reload();
    world.with_one_grant(minutes(30));
    let why = || format!("{}\n{}", world.state("c"), world.log.join("\n"));
    assert_eq!(world.request_ids(), ["qr-next"], "{}", why());
    assert_eq!(world.sent.len(), sent, "{}", why());
    assert_eq!(world.fleet().slots["c"].verdict.condition, Condition::Healthy, "{}", why());
}

#[test]
fn s21_one_that_was_granted_before_it_could_be_withdrawn_is_taken_up() {
    let mut world = asked();
    let key = (ZONE.to_owned(), "qr-next".to_owned());
    world.cloud.queued.get_mut(&key).unwrap().valid_after = None;
    world.preempt(ZONE, "a");
    world.run_for(minutes(30));
    let why = || format!("{}\n{}", world.state("a"), world.log.join("\n"));
    assert_eq!((live(&world), world.request_ids().len()), (1, 1), "{}", why());
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
    assert!(world.fleet().ledger.strays.is_empty() && world.cloud.harmed == 0, "{}", why());
}

#[test]
fn s21_what_was_just_handed_over_is_withdrawn_with_its_slot() {
    for leaves in [false, true] {
        let mut world = asked();
        world.trouble(ZONE, "", Trouble::StockOut, Some(minutes(300)));
        let handed = |world: &World| world.log.iter().any(|line| line.contains("takes the place"));
        while !handed(&world) {
            world.run_for(1);
        }
        if leaves {
            world.settings.slots.remove("a");
            world.reload();
        } else {
            world.command(CommandKind::Forget { slot: "a".into(), purge: false });
        }
        world.with_one_grant(minutes(10));
        let why = || format!("leaves {leaves}: {}", world.log.join("\n"));
        assert!(world.request_ids().is_empty(), "{}", why());
        assert!(world.fleet().ledger.strays.is_empty(), "{}", why());
    }
}

#[test]
fn s15_machines_that_were_asked_for_ahead_start_nothing_by_their_old_order() {
    let mut world = at_work();
    // Hosts here have followed a newer order before: it is relied on.
    world.command(CommandKind::Relaunch { slot: "a".into() });
    world.with_one_grant(minutes(135));
    assert!(world.fleet().ledger.orders_followed, "{}", world.log.join("\n"));
    // The bucket can't be read when they come up.
    world.unreadable = true;
    world.with_one_grant(minutes(90));
    let why = |world: &World| format!("{}\n{}", world.state("a"), world.log.join("\n"));
    let run = world.run_on("a-next").unwrap_or_else(|| panic!("{}", why(&world))).clone();
    let saved = world.newest_checkpoint();
    assert!(run.order.wait && run.order.step < saved, "{saved:?} {run:?} {}", why(&world));
    world.unreadable = false;
    world.with_one_grant(minutes(20));
    let run = world.run_on("a-next").unwrap_or_else(|| panic!("{}", why(&world))).clone();
    assert_eq!((run.order.wait, run.order.step), (false, saved), "{}", why(&world));
}

#[test]
fn a_command_that_was_changed_since_runs_on_the_next_capacity() {
    let mut world = at_work();
    let job = world.settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.command = Some("python3 other.py".into());
    world.reload();
    world.with_one_grant(minutes(200));
    let why = || format!("{}\n{}", world.state("a"), world.log.join("\n"));
    let run = world.run_on("a-next").unwrap_or_else(|| panic!("{}", why()));
    assert!(!run.order.wait && run.order.generation > 2, "{run:?} {}", why());
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
}

#[test]
fn a_grant_that_a_pause_keeps_from_its_slot_is_told_once() {
    let mut world = asked();
    world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    world.with_one_grant(minutes(120));
    let told = |line: &&String| line.contains("it is billed meanwhile");
    assert_eq!(world.log.iter().filter(told).count(), 1, "{}", world.log.join("\n"));
    world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    world.with_one_grant(minutes(10));
    assert_eq!(world.request_ids(), ["qr-next"], "{}", world.log.join("\n"));
}

#[test]
fn l8_a_job_starts_on_the_next_capacity_also_where_no_newer_order_was_ever_followed() {
    // It finds its own checkpoints: it starts by the order of the create.
    let mut world = asked();
    assert!(!world.fleet().ledger.orders_followed);
    let asked = world.request(ZONE, "qr-next").unwrap().raw;
    let order = &asked["tpu"]["nodeSpec"][0]["node"]["metadata"]["tpu-watchdog-run"];
    let order = order.as_str().unwrap();
    assert!(order.contains("\"generation\":2") && !order.contains("\"wait\":true"), "{order}");
    // One that is told its checkpoint would start from an old one.
    let config = CONFIG.replace("python3 train.py", "python3 train.py --from $CHECKPOINT_PATH");
    let mut world = World::new(&config, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
    world.trains("a", 3_000);
    world.start("one");
    world.with_one_grant(minutes(155));
    assert_eq!(world.request_ids(), ["qr"], "{}", world.log.join("\n"));
    let told = world.log.iter().filter(|line| line.contains("qr-next is not asked for ahead"));
    assert_eq!(told.count(), 1, "{}", world.log.join("\n"));
    world.with_one_grant(minutes(60));
    assert!(world.is_ready(ZONE, "a"), "{}\n{}", world.state("a"), world.log.join("\n"));
}
