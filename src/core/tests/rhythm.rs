//! Signs of life that outrank a bad health value, silence that counts, and graces that depend on the size of a slice.

use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::checkpoint::{Checkpoint, CheckpointSurvey};
use crate::model::command::CommandKind;
use crate::model::job::WorkerState;
use crate::model::settings::{Grace, Size};

#[test]
fn s10_a_node_that_another_hand_creates_is_never_judged() {
    let mut world = World::new(settings(&["a"]));
    let creating = json!({"state": "CREATING"});
    for _ in 0..400 {
        world.wait(30);
        world.poll(&[node("a", creating.clone())]);
        assert!(world.actions.is_empty() && world.looks.is_empty());
    }
    // Nor are many of them a storm (S8).
    let names = ["a", "b", "c", "d"];
    let mut world = World::new(settings(&names));
    let nodes = names.map(|name| node(name, creating.clone()));
    for _ in 0..400 {
        world.wait(30);
        world.poll(&nodes);
    }
    assert!(world.fleet.ledger.breaker.is_none() && world.fleet.ledger.storm.is_empty());
    // One of ours is stuck after its grace.
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let stuck = world.replacement("a", creating);
    for _ in 0..100 {
        world.wait(30);
        world.poll(std::slice::from_ref(&stuck));
        if !world.looks.is_empty() {
            world.get("a", Some(stuck.clone()));
        }
        if is_delete(&world.actions) {
            return;
        }
    }
    panic!("{:?}", world.fleet.slots["a"].decision);
}

#[test]
fn s3_fresh_heartbeats_give_an_unresponsive_tpu_an_hour() {
    let condemned_after = |beats: bool| {
        let mut world = with_checkpoints();
        let ready = world.supervised_run();
        let mut sick = ready.clone();
        sick["health"] = json!("TIMEOUT");
        for round in 0..200 {
            world.surveyed(&[100]);
            world.reports(if beats { 10 + round } else { 10 }, None);
            world.wait(30);
            world.poll(std::slice::from_ref(&sick));
            world.get("a", Some(sick.clone()));
            if is_delete(&world.actions) {
                return round * 30 / 60;
            }
        }
        panic!("{:?}", world.fleet.slots["a"].decision);
    };
    assert!((10..=12).contains(&condemned_after(false)));
    assert!((59..=62).contains(&condemned_after(true)), "{}", condemned_after(true));
}

/// A job whose marks came at these intervals, in minutes; the last one now.
fn with_marks(minutes: &[u64]) -> World {
    let mut world = World::new(settings(&["a", "b", "c"]));
    world.poll(&[node("a", json!({}))]);
    let job = &mut world.fleet.slots.get_mut("a").unwrap().job;
    job.intervals = minutes.iter().map(|minutes| minutes * 60).collect();
    job.progress_at = Some(world.now);
    world
}

/// After how many minutes of TIMEOUT it is deleted.
fn deleted_after(world: &mut World, sick: &Value, mut before: impl FnMut(&mut World, u64)) -> u64 {
    for round in 1..2000 {
        world.wait(30);
        before(world, round);
        world.poll(std::slice::from_ref(sick));
        if world.asks("a") {
            world.get("a", Some(sick.clone()));
        }
        if is_delete(&world.actions) {
            return round / 2;
        }
    }
    panic!("{:?}", world.fleet.slots["a"].decision);
}

#[test]
fn s3_the_rhythm_is_the_90th_percentile_twice_and_six_hours_at_most() {
    let sick = node("a", timeout());
    let after = |minutes: &[u64]| deleted_after(&mut with_marks(minutes), &sick, |_, _| ());
    assert_eq!(after(&[20]), 40);
    // One long interval of ten is no rhythm; two are.
    let mut ten = [20; 10];
    ten[3] = 200;
    assert_eq!(after(&ten), 40);
    ten[7] = 200;
    assert_eq!(after(&ten), 360, "6 h, not 6 h 40 min");
    // A reported exit, or silence, ends the excuse.
    let mut world = with_marks(&[200]);
    let exits = &mut world.fleet.slots.get_mut("a").unwrap().job.exits;
    exits.insert(0, "b 1 1".into());
    assert!(deleted_after(&mut world, &sick, |_, _| ()) <= 11);
    let mut world = with_marks(&[200]);
    let silent = |world: &mut World, _| {
        let worker = world.fleet.slots.get_mut("a").unwrap().job.workers.entry(0).or_default();
        worker.quiet_for = Duration::from_secs(900);
    };
    assert!(deleted_after(&mut world, &sick, silent) <= 11);
}

#[test]
fn s3_an_interval_that_holds_a_pause_is_none_of_the_rhythm() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let intervals = |world: &World| world.fleet.slots["a"].job.intervals.len();
    for step in 200..210 {
        world.surveyed(&[step]);
        world.reports(i64::try_from(step).unwrap(), Some(i64::try_from(step).unwrap()));
        world.next_poll(&node);
    }
    let before = intervals(&world);
    assert!(before > 0);
    world.order(CommandKind::Pause { slot: Some("a".into()), until: None });
    world.next_poll(&node);
    world.order(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    world.wait(7200);
    world.surveyed(&[300]);
    world.next_poll(&node);
    assert_eq!(intervals(&world), before, "two hours of it were not the job's");
    world.wait(60);
    world.surveyed(&[301]);
    assert_eq!(intervals(&world), before + 1);
}

#[test]
fn s3_a_heartbeat_is_fresh_only_when_two_close_reads_show_it_to_change() {
    use super::super::life;
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let fresh =
        |world: &World| life::beats(&world.fleet.slots["a"], &world.fleet.settings.poll, world.now);
    world.reports(1, None);
    assert!(!fresh(&world), "a first read is never fresh");
    world.next_poll(&node);
    world.reports(2, None);
    assert!(fresh(&world));
    world.wait(121);
    assert!(!fresh(&world), "two beats ago");
    world.reports(3, None);
    assert!(!fresh(&world), "the two reads were too far apart");
    world.next_poll(&node);
    world.reports(3, None);
    assert!(!fresh(&world), "it did not change");
    // Of four workers all have to beat.
    let record = world.fleet.slots.get_mut("a").unwrap();
    record.seen.as_mut().unwrap().workers = 4;
    let beating = WorkerState { beat_at: Some(world.now), ..WorkerState::default() };
    (0..4).for_each(|worker| drop(record.job.workers.insert(worker, beating.clone())));
    assert!(fresh(&world));
    world.fleet.slots.get_mut("a").unwrap().job.workers.get_mut(&2).unwrap().beat_at = None;
    assert!(!fresh(&world), "one is stale");
}

#[test]
fn s3_fresh_heartbeats_give_a_sick_runtime_an_hour_and_a_maintenance_none() {
    let after = |health: &str, beats: bool| {
        let mut world = World::new(settings(&["a", "b", "c"]));
        world.poll(&[node("a", json!({}))]);
        let beat = |world: &mut World, _| {
            let worker = WorkerState { beat_at: Some(world.now), ..WorkerState::default() };
            let workers = &mut world.fleet.slots.get_mut("a").unwrap().job.workers;
            workers.extend(beats.then_some((0, worker)));
        };
        deleted_after(&mut world, &node("a", json!({ "health": health })), beat)
    };
    assert_eq!(
        (after("UNHEALTHY_TENSORFLOW", false), after("UNHEALTHY_TENSORFLOW", true)),
        (15, 60)
    );
    assert_eq!(
        (after("UNHEALTHY_MAINTENANCE", false), after("UNHEALTHY_MAINTENANCE", true)),
        (60, 60)
    );
}

#[test]
fn s3_a_job_that_keeps_its_rhythm_outranks_health() {
    let mut world = with_checkpoints();
    world.poll(&[node("a", json!({}))]);
    // Checkpoints come every 40 min.
    for step in 1..6 {
        let newest = Some(Checkpoint { step, uri: format!("gs://b/c/{step}") });
        let survey = CheckpointSurvey { newest, ..CheckpointSurvey::default() };
        let result = Ok(survey);
        let (began, location) = (world.now, "gs://b/c".to_owned());
        world.input(Input::Surveyed { slot: "a".into(), began, location, result });
        for _ in 0..80 {
            world.wait(30);
            world.poll(&[node("a", json!({}))]);
        }
    }
    let last = world.fleet.slots["a"].job.progress_at.unwrap();
    let mut deleted = None;
    for _ in 0..200 {
        world.wait(30);
        world.poll(&[node("a", timeout())]);
        world.get("a", Some(node("a", timeout())));
        if is_delete(&world.actions) {
            deleted = Some(crate::model::time::elapsed(last, world.now).as_secs() / 60);
            break;
        }
        world.surveyed(&[5]);
    }
    assert!((80..=82).contains(&deleted.unwrap()), "twice the usual interval: {deleted:?}");
}

#[test]
fn auto_graces_follow_the_size_of_the_slice() {
    let graces = Grace::default();
    let minutes = |time: Duration| time.as_secs() / 60;
    let size = |hosts, reserved| Size { hosts, reserved, ..Size::default() };
    let startup = |hosts| minutes(graces.startup(size(hosts, false)));
    assert_eq!([1, 15, 16, 64].map(startup), [45, 45, 120, 120]);
    let maintenance = |hosts, reserved| minutes(graces.maintenance(size(hosts, reserved)));
    assert_eq!(
        [maintenance(1, false), maintenance(1, true), maintenance(16, false)],
        [60, 180, 180]
    );
    let boot = |hosts| minutes(graces.boot(size(hosts, false)));
    assert_eq!([1, 8, 9, 64, 65].map(boot), [10, 10, 20, 20, 40]);
    let slice = |spot| minutes(graces.slice(Size { spot, ..Size::default() }));
    assert_eq!([slice(false), slice(true)], [30, 10]);
    let provision = |of: &str, slices| minutes(graces.provision(of, slices));
    assert_eq!(
        [provision("v6e-8", 1), provision("v6e-16", 1), provision("v6e-8", 2)],
        [45, 120, 120]
    );
    let given = Grace { maintenance: Some(Duration::from_secs(60)), ..graces };
    assert_eq!(minutes(given.maintenance(size(64, true))), 1, "what is written counts");
}

#[test]
fn a_failed_repair_is_waited_for_and_a_pool_without_capacity_keeps_it() {
    assert_eq!(Grace::default().failed_repair, Duration::from_secs(900));
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "UNKNOWN"}), 90);
    world.is_short();
    world.wait(30);
    world.poll(&[node("a", json!({"state": "UNKNOWN"}))]);
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::ZoneShort), 0));
}

#[test]
fn an_exit_of_a_generation_that_was_never_ordered_is_nothing() {
    for (ahead, fails) in [(0, true), (1, false)] {
        let mut world = with_checkpoints();
        world.supervised_run();
        let record = &world.fleet.slots["a"];
        let (of, generation) = (record.incarnation.clone().unwrap(), record.job.generation + ahead);
        let text = "final after 5 restarts".to_owned();
        let exit = Some(Beacon { boot_id: "b".into(), generation, attempt: 0, value: 1, text });
        let result = Ok(vec![WorkerReport { exit, ..WorkerReport::default() }]);
        world.input(Input::Attributes { slot: "a".into(), of, began: world.now, result });
        assert_eq!(world.fleet.slots["a"].job.failed.is_some(), fails);
    }
}

#[test]
fn a_node_without_identity_is_unclear_whatever_its_state() {
    for state in ["PREEMPTED", "STOPPED", "DELETING", "READY"] {
        let mut world = World::new(settings(&["a"]));
        world.poll(&[node("a", json!({"state": state, "createTime": "yesterday"}))]);
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Unclear, "{state}");
    }
}

#[test]
fn s3_silence_of_a_tpu_that_the_user_stopped_or_hid_counts_only_from_when_it_is_back() {
    let states = ["STOPPED", "HIDDEN", "UNHIDING", "STATE_OF_THE_FUTURE"].map(|s| ("state", s));
    for (key, state) in states.into_iter().chain([("health", "HEALTH_OF_THE_FUTURE")]) {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        world.reports(7, None);
        let mut away = node.clone();
        away[key] = json!(state);
        for _ in 0..120 {
            world.wait(30);
            world.poll(std::slice::from_ref(&away));
            world.reports(7, None);
        }
        for _ in 0..4 {
            world.wait(30);
            world.poll(std::slice::from_ref(&node));
            world.reports(7, None);
            assert_ne!(
                world.fleet.slots["a"].verdict.condition,
                Condition::Silent,
                "{state}: it is booting"
            );
            assert!(
                world.actions.is_empty()
                    && world.looks.iter().all(|look| !matches!(look, Look::Node { .. }))
            );
        }
    }
}

#[test]
fn s3_silence_counts_only_while_the_node_itself_can_be_read() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.reports(7, None);
    // Its workers still answer; whether it is stopped or in maintenance meanwhile is not known.
    for _ in 0..60 {
        world.wait(30);
        world.poll_result(Err(Failure::new(FailureClass::Transient, "zone unreachable")));
        world.reports(7, None);
    }
    world.wait(30);
    world.poll(std::slice::from_ref(&node));
    world.reports(7, None);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    assert!(world.actions.is_empty(), "{:?}", world.actions);
}

/// A stray of a former create may write into the location of a slot whose own hosts never booted.
#[test]
fn l8_one_mark_of_progress_does_not_excuse_a_host_without_a_beacon_for_ever() {
    let mut world = with_checkpoints();
    world.begin(&[100]);
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let node = world.supervised("10", world.now);
    world.wait(5);
    world.get("a", Some(node.clone()));
    let round = |world: &mut World, steps: &[u64]| {
        world.wait(30);
        world.surveyed(steps);
        world.poll(std::slice::from_ref(&node));
        let of = world.fleet.slots["a"].incarnation.clone().unwrap();
        let result = Ok(vec![WorkerReport::default()]);
        world.input(Input::Attributes { slot: "a".into(), of, began: world.now, result });
        if world.looks.iter().any(|look| matches!(look, Look::Node { .. })) {
            world.get("a", Some(node.clone()));
        }
        is_delete(&world.actions)
    };
    assert!((0..19).all(|_| !round(&mut world, &[100])));
    // The first after the time to boot: another node writes.
    assert!((0..2).all(|_| !round(&mut world, &[100, 110])));
    let rounds = (0..900).find(|_| round(&mut world, &[100, 110]));
    let six_hours = 6 * 120;
    assert!(
        rounds.is_some_and(|rounds: i32| (six_hours - 5..six_hours + 5).contains(&rounds)),
        "{rounds:?}"
    );
}

#[test]
fn l5_reports_from_before_the_newest_mark_of_progress_are_outdated() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let none_booted = |world: &mut World| {
        let of = world.fleet.slots["a"].incarnation.clone().unwrap();
        let result = Ok(vec![WorkerReport::default()]);
        world.input(Input::Attributes { slot: "a".into(), of, began: world.now, result });
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
    };
    (0..30).for_each(|_| none_booted(&mut world));
    assert_eq!(world.condition("a"), Condition::NeverBooted);
    // From now on they can't be read, and the job writes; its rhythm of a minute ends soon.
    world.wait(30);
    world.surveyed(&[100, 110]);
    world.wait(60);
    world.surveyed(&[100, 110, 120]);
    for _ in 0..900 {
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
        assert_eq!(world.condition("a"), Condition::Healthy, "at {}", world.now);
    }
    assert!(world.fleet.slots["a"].suspicion.is_none());
    // Read once more, what they lack counts again.
    none_booted(&mut world);
    assert_eq!(world.condition("a"), Condition::NeverBooted);
}
