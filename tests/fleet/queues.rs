//! Places in a queue that are given up: for the queue of another zone (`grace.queue`), and because the
//! config names another queued resource.

use serde_json::json;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::hold::HoldReason;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::world::{World, minutes};

const ZONES: [&str; 2] = ["us-central2-b", "us-east5-a"];

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "60s"
[[tpu]]
name = "a"
zones = ["us-central2-b", "us-east5-a"]
queued_resource = "qr"
[tpu.create]
accelerator_type = "v4-8"
runtime_version = "tpu-ubuntu2204-base"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
[tpu.policy]
grace = { queue = "2h" }
"#;

const TIMES: &str = "times = { create = \"4m\", delete = \"30s\", boot = \"40s\", beat = \"60s\", refusal = \"1m\" }";

/// There is no capacity in the first zone for so long.
fn short_for(ms: i64) -> World {
    let mut world = World::training(CONFIG, TIMES);
    world.trouble(ZONES[0], "", Trouble::StockOut, Some(ms));
    world.start("one");
    world
}

impl World {
    fn in_state(&self, zone: &str, id: &str) -> Option<&'static str> {
        self.cloud.queued.get(&(zone.to_owned(), id.to_owned())).map(|queued| queued.state)
    }

    /// Time goes on; never are there two requests of the slot.
    fn goes_on(&mut self, ms: i64) {
        for _ in 0..ms / 1_000 {
            self.run_for(1_000);
            assert!(self.cloud.queued.len() < 2, "{}", self.log.join("\n"));
        }
    }

    /// The config has the slot filled by this.
    fn filled_by(&mut self, filling: Filling) {
        self.settings.slots.get_mut("a").unwrap().filling = filling;
        self.reload();
    }

    fn hold(&self) -> Option<HoldReason> {
        self.fleet().slots["a"].decision.as_ref()?.hold
    }
}

#[test]
fn a_place_in_the_queue_is_given_up_for_the_next_zone_after_grace_queue() {
    let mut world = short_for(minutes(600));
    world.goes_on(minutes(115));
    assert_eq!(world.in_state(ZONES[0], "qr"), Some("WAITING_FOR_RESOURCES"));
    let told = world.fleet().slots["a"].decision.clone().unwrap();
    assert!(told.reason.ends_with("then the next zone is asked (grace.queue)"), "{told:?}");
    assert!(told.until.is_some(), "{told:?}");
    world.goes_on(minutes(45));
    assert!(world.is_ready(ZONES[1], "a"), "{}\n{}", world.state("a"), world.log.join("\n"));
    assert!(world.fleet().ledger.strays.is_empty() && world.cloud.queued.len() == 1);
    let methods: Vec<_> = world.sent.iter().map(|sent| sent.method.as_str()).collect();
    assert_eq!(methods, ["POST", "DELETE", "POST"], "{}", world.log.join("\n"));
    assert!(world.sent[1].query["force"] == "false");
}

#[test]
fn a_request_that_was_taken_up_while_it_waits_is_given_up_for_the_next_zone_as_well() {
    for command in ["retry", "the config"] {
        let mut world = short_for(minutes(600));
        world.goes_on(minutes(10));
        match command {
            "retry" => {
                world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
                world.goes_on(minutes(2));
                world.command(CommandKind::Forget { slot: "a".into(), purge: false });
                world.goes_on(minutes(2));
                world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
                world.command(CommandKind::Retry { slot: "a".into(), from: None });
            }
            _ => {
                let slot = world.settings.slots.remove("a").unwrap();
                world.command(CommandKind::Pause { slot: None, until: None });
                world.goes_on(minutes(2));
                world.reload();
                world.goes_on(minutes(2));
                world.settings.slots.insert("a".into(), slot);
                world.reload();
                world.command(CommandKind::Resume { slot: None, adopt: false });
            }
        }
        world.goes_on(minutes(20));
        let why =
            |world: &World| format!("{command}: {}\n{}", world.state("a"), world.log.join("\n"));
        assert_eq!(
            world.in_state(ZONES[0], "qr"),
            Some("WAITING_FOR_RESOURCES"),
            "{}",
            why(&world)
        );
        assert!(world.fleet().slots["a"].recovery.is_none(), "{}", why(&world));
        world.goes_on(minutes(130));
        assert!(world.is_ready(ZONES[1], "a"), "{}", why(&world));
        assert!(world.fleet().ledger.strays.is_empty(), "{}", why(&world));
        assert!(world.recovered.contains("a"), "{}", why(&world));
    }
}

#[test]
fn without_grace_queue_and_while_paused_the_place_is_kept() {
    for paused in [false, true] {
        let mut world = short_for(minutes(600));
        if paused {
            world.command(CommandKind::Pause { slot: None, until: None });
        } else {
            world.settings.slots.get_mut("a").unwrap().policy.grace.queue = None;
            world.start("two");
        }
        world.goes_on(minutes(10));
        if paused {
            // A request that was sent before the pause waits on, too.
            world.command(CommandKind::Resume { slot: None, adopt: false });
            world.goes_on(minutes(10));
            world.command(CommandKind::Pause { slot: None, until: None });
        }
        world.goes_on(minutes(300));
        let state = world.in_state(ZONES[0], "qr");
        assert_eq!((state, world.sent.len()), (Some("WAITING_FOR_RESOURCES"), 1), "{paused}");
    }
}

#[test]
fn a_queue_that_is_closed_to_the_project_is_left_for_the_next_zone_and_asked_again_where_there_is_none()
 {
    let mut world = World::training(CONFIG, TIMES);
    world.trouble(ZONES[0], "", Trouble::ClosedQueue, None);
    world.start("one");
    world.goes_on(minutes(30));
    assert!(world.is_ready(ZONES[1], "a"), "{}\n{}", world.state("a"), world.log.join("\n"));
    // In its only zone the create stays owed, and its reason is told.
    let config =
        CONFIG.replace("zones = [\"us-central2-b\", \"us-east5-a\"]", "zone = \"us-central2-b\"");
    let mut world = World::training(&config, TIMES);
    world.trouble(ZONES[0], "", Trouble::ClosedQueue, Some(minutes(60)));
    world.start("one");
    world.goes_on(minutes(50));
    let told = world.fleet().slots["a"].decision.clone().unwrap();
    assert!(
        told.hold.is_some() && told.reason.contains("permission to submit requests"),
        "{told:?}"
    );
    world.goes_on(minutes(90));
    assert!(world.is_ready(ZONES[0], "a"), "{}\n{}", world.state("a"), world.log.join("\n"));
}

#[test]
fn s21_a_request_that_is_granted_while_its_queue_is_left_is_taken_up() {
    let mut taken_back = 0;
    for seconds in (-60..=180).step_by(10) {
        let mut world = short_for(minutes(121) + seconds * 1_000);
        world.goes_on(minutes(200));
        let zone = ZONES.into_iter().find(|zone| world.in_state(zone, "qr") == Some("ACTIVE"));
        let why = || format!("{seconds} s: {}\n{}", world.state("a"), world.log.join("\n"));
        assert!(zone.is_some_and(|zone| world.is_ready(zone, "a")), "{}", why());
        assert!(world.fleet().ledger.strays.is_empty() && world.cloud.harmed == 0, "{}", why());
        assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", why());
        taken_back += usize::from(world.log.iter().any(|line| line.contains("is taken up")));
    }
    assert!(taken_back > 0, "none was granted in between");
}

#[test]
fn s21_another_request_is_asked_for_once_the_former_one_is_withdrawn() {
    for filling in [Filling::QueuedResource("other".into()), Filling::Node] {
        let mut world = short_for(minutes(60));
        world.goes_on(minutes(10));
        world.filled_by(filling.clone());
        world.goes_on(minutes(2));
        assert_eq!(world.in_state(ZONES[0], "qr"), None, "{}", world.log.join("\n"));
        world.goes_on(minutes(90));
        assert!(ZONES.iter().any(|zone| world.is_ready(zone, "a")), "{}", world.log.join("\n"));
        let other = ZONES.iter().any(|zone| world.in_state(zone, "other") == Some("ACTIVE"));
        assert_eq!(other, filling != Filling::Node);
        assert!(world.fleet().ledger.strays.is_empty());
    }
}

#[test]
fn s21_a_granted_request_that_the_config_leaves_is_told_and_no_other_one_sent() {
    let mut world = short_for(1_000);
    world.goes_on(minutes(30));
    assert!(world.is_ready(ZONES[0], "a"), "{}", world.state("a"));
    let sent = world.sent.len();
    world.filled_by(Filling::QueuedResource("other".into()));
    world.goes_on(minutes(60));
    assert_eq!(world.in_state(ZONES[0], "qr"), Some("ACTIVE"), "{}", world.log.join("\n"));
    assert_eq!(world.hold(), Some(HoldReason::CreateUnresolved), "{}", world.state("a"));
    let told = "Have a in the config with queued_resource = \"qr\" to take it up";
    assert!(world.log.iter().any(|line| line.contains(told)), "{}", world.log.join("\n"));
    // Its job goes on, and does not start a second time there.
    let methods: Vec<_> = world.sent[sent..].iter().map(|sent| sent.method.as_str()).collect();
    assert_eq!(methods, ["PATCH"], "{}", world.log.join("\n"));
    let node = (ZONES[0].to_owned(), "a".to_owned());
    assert!(world.cloud.nodes[&node].run.order.wait);
    // It is taken up again.
    world.filled_by(Filling::QueuedResource("qr".into()));
    world.goes_on(minutes(10));
    assert_eq!(
        world.fleet().slots["a"].verdict.condition,
        Condition::Healthy,
        "{}",
        world.state("a")
    );
    assert!(world.fleet().ledger.strays.is_empty());
    assert!(!world.cloud.nodes[&node].run.order.wait, "{}", world.log.join("\n"));
}

#[test]
fn l9_what_is_dead_holds_quota_until_it_is_removed_and_another_hands_is_told() {
    let limits = format!("limits = {{ \"{}\" = 1 }}\n{TIMES}", ZONES[0]);
    let config =
        CONFIG.replace("zones = [\"us-central2-b\", \"us-east5-a\"]", "zone = \"us-central2-b\"");
    let config = config.replace("[tpu.create]", "[tpu.create]\nspot = true");
    let mut world = World::new(&config, &limits, Box::new(SqliteStore::in_memory().unwrap()));
    world.start("one");
    world.goes_on(minutes(20));
    assert!(world.is_ready(ZONES[0], "a"), "{}", world.state("a"));
    world.preempt(ZONES[0], "a");
    world.goes_on(minutes(30));
    assert!(world.is_ready(ZONES[0], "a"), "{}\n{}", world.state("a"), world.log.join("\n"));
    assert!(!world.log.iter().any(|line| line.contains("Quota limit")), "{}", world.log.join("\n"));
    // Another client's request has failed, and holds what there is.
    let key = (ZONES[0].to_owned(), "theirs".to_owned());
    let limits = std::mem::take(&mut world.cloud.limits);
    let path = format!("v2/projects/p/locations/{}/queuedResources", ZONES[0]);
    let query = [("queuedResourceId".to_owned(), "theirs".to_owned())].into();
    let node = json!({"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"});
    let body = json!({"tpu": {"nodeSpec": [{"nodeId": "theirs", "node": node}]}});
    assert_eq!(world.call("POST", &path, &query, Some(body)).0, 200);
    world.cloud.queued.get_mut(&key).unwrap().state = "FAILED";
    world.cloud.limits = limits;
    world.preempt(ZONES[0], "a");
    world.run_for(minutes(60));
    let told = world.fleet().slots["a"].decision.clone().unwrap();
    assert_eq!(told.hold, Some(HoldReason::Backoff), "{told:?}");
    assert!(told.reason.contains("Quota limit"), "{told:?}");
    assert!(world.cloud.queued.contains_key(&key), "it is not ours");
    world.cloud.queued.remove(&key);
    world.goes_on(minutes(60));
    assert!(world.is_ready(ZONES[0], "a"), "{}\n{}", world.state("a"), world.log.join("\n"));
}

/// An operator calls a request off and wants it after all, while the watchdog dies at the withdrawal.
#[test]
fn a_request_that_was_called_off_is_asked_for_again_whenever_it_is_wanted() {
    let mut wrong = Vec::new();
    for (dies, back) in [(None, 0), (Some((0, true)), 0), (Some((0, false)), 0), (None, 20)] {
        for seconds in (1..=150).step_by(7) {
            let mut world = short_for(minutes(40));
            world.goes_on(minutes(10) + back * 1000);
            world.dies_at = dies;
            world.command(CommandKind::Forget { slot: "a".into(), purge: false });
            world.goes_on(seconds * 1000);
            world.command(CommandKind::Retry { slot: "a".into(), from: None });
            world.goes_on(minutes(90));
            if !ZONES.iter().any(|zone| world.is_ready(zone, "a")) {
                wrong.push(format!("{dies:?} {back} {seconds}: {}", world.state("a")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases\n{}", wrong.len(), wrong.join("\n"));
}
