//! Startup scripts: the user's own, and what fails before a job can start.

use super::super::ending;
use super::endings::CommandKind;
use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::exit::Stuck;

#[test]
fn a_failing_startup_script_is_told_once() {
    let mut world = with_checkpoints();
    world.supervised_run();
    let record = &world.fleet.slots["a"];
    let (of, generation) = (record.incarnation.clone().unwrap(), record.heard_from());
    let text =
        "setup_failed code=100 tries=1: the startup script is tried again in 10 s".to_owned();
    let beat = |value| {
        Some(Beacon { boot_id: "b".into(), generation, attempt: 0, value, text: text.clone() })
    };
    for count in 1..4 {
        let result = Ok(vec![WorkerReport {
            boot: beat(1),
            heartbeat: beat(count),
            ..WorkerReport::default()
        }]);
        world.input(Input::Attributes {
            slot: "a".into(),
            of: of.clone(),
            began: world.now,
            result,
        });
        let told = world
            .events
            .iter()
            .filter(|what| matches!(what, What::SetupFailed { worker: 0 }))
            .count();
        assert_eq!(told, usize::from(count == 1));
    }
}

#[test]
fn a_startup_script_from_a_url_is_left_to_the_supervisor_and_a_file_takes_its_place() {
    let url = json!({"metadata": {"startup-script-url": "gs://b/setup.sh"}});
    let created = |script: Option<&str>| {
        let mut world = with_checkpoints();
        let mut settings = world.fleet.settings.clone();
        let slot = settings.slots.get_mut("a").unwrap();
        slot.supervisor = Some("#! /bin/bash\n# tpu-watchdog-supervisor 2\n".into());
        slot.create.startup_script = script.map(str::to_owned);
        world.input(Input::Configured(Box::new(settings)));
        world.poll(&[node("a", url.clone())]);
        assert_eq!(view::document(&world.fleet, world.now).tpus[0].warnings, Vec::<String>::new());
        let mut preempted = node("a", url.clone());
        preempted["state"] = json!("PREEMPTED");
        world.next_poll(&preempted);
        world.get("a", Some(preempted));
        assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
        world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        world.wait(1);
        world.surveyed(&[100]);
        let Some(Action::Create { body, .. }) = world.actions.first() else {
            panic!("{:?}", world.hold("a"))
        };
        let metadata = &body["metadata"];
        assert_eq!(metadata.get("startup-script-url"), None, "no agent may run it next to the job");
        let text = |key: &str| metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        (text("tpu-watchdog-user-script-url"), text("tpu-watchdog-user-script"))
    };
    assert_eq!(created(None), (Some("gs://b/setup.sh".into()), None));
    assert_eq!(created(Some("#! /bin/sh\n")), (None, Some("#! /bin/sh\n".into())));
}

#[test]
fn a_host_that_cannot_be_set_up_is_told_after_half_an_hour_and_is_no_launch() {
    for text in [
        "setup_failed code=1 tries=3: the startup script is tried again in 40 s",
        "setup_failed: this host has no agent-worker-number yet",
    ] {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        let (of, generation) = (
            world.fleet.slots["a"].incarnation.clone().unwrap(),
            world.fleet.slots["a"].heard_from(),
        );
        let beat = |value, text: &str| {
            Some(Beacon { boot_id: "b".into(), generation, attempt: 0, value, text: text.into() })
        };
        let report = |world: &mut World, count: i64, text: &str| {
            let result = Ok(vec![WorkerReport {
                boot: beat(1, ""),
                heartbeat: beat(count, text),
                ..WorkerReport::default()
            }]);
            world.input(Input::Attributes {
                slot: "a".into(),
                of: of.clone(),
                began: world.now,
                result,
            });
        };
        for count in 1..=60 {
            report(&mut world, count, text);
            world.next_poll(&node);
            assert_eq!((world.phase("a"), world.hold("a")), (Some(Phase::Booted), None), "{count}");
        }
        report(&mut world, 61, text);
        world.next_poll(&node);
        assert_eq!(world.hold("a"), Some(HoldReason::SetupFailed));
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::SetupFailed);
        report(&mut world, 62, "running");
        world.next_poll(&node);
        assert_eq!((world.phase("a"), world.hold("a")), (Some(Phase::Launched), None));
    }
}

#[test]
fn l1_a_host_that_cannot_be_set_up_after_a_run_is_told_too() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let of = world.fleet.slots["a"].incarnation.clone().unwrap();
    let generation = world.fleet.slots["a"].heard_from();
    let beacon = |value: i64, text: &str| {
        let text = text.to_owned();
        Some(Beacon { boot_id: "b".into(), generation, attempt: 1, value, text })
    };
    for count in 1..=80 {
        // The last run's end stands there still, and a newer order waits for this host.
        let report = WorkerReport {
            boot: beacon(1, "v4 i0"),
            heartbeat: beacon(count, "setup_failed: this host has no agent-worker-number yet"),
            exit: beacon(139, "stale_order ran=734"),
            ..WorkerReport::default()
        };
        let (slot, began) = ("a".into(), world.now);
        let result = Ok(vec![report]);
        world.input(Input::Attributes { slot, of: of.clone(), began, result });
        world.next_poll(&node);
        let told = world.hold("a") == Some(HoldReason::SetupFailed);
        assert_eq!(told, count > 60, "{count}");
    }
}

#[test]
fn s23_an_end_with_0_that_is_too_early_is_started_once_more_and_a_second_one_is_held() {
    let early = |generation| [(generation, "v2", Some((0, "done ran=4 step=none")))];
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    // Ten reads in which nothing is ordered, then the order from the newest checkpoint.
    let mut ordered = None;
    for count in 1..=14 {
        world.workers_say(&early(1));
        world.surveyed(&[100]);
        ordered = world.run_order().map(|order| (count, order));
        if ordered.is_some() {
            break;
        }
        world.next_poll(&node);
        ordered = world.run_order().map(|order| (count, order));
        if ordered.is_some() {
            break;
        }
        assert_eq!(world.hold("a"), Some(HoldReason::Backoff), "{count}");
    }
    let (count, order) = ordered.expect("it is started once more");
    assert!((10..=12).contains(&count), "{count}");
    assert_eq!((order.generation, order.step), (2, Some(100)));
    world.ordered(accepted());
    let node = patched(&node, &order);
    world.next_poll(&node);
    world.workers_say(&[(2, "v2", None)]);
    for _ in 0..30 {
        world.next_poll(&node);
        world.workers_say(&early(2));
        world.surveyed(&[100]);
        assert_eq!(world.run_order(), None);
    }
    assert_eq!(world.hold("a"), Some(HoldReason::EndedEarly));
    // An operator may want it again, and it has its one more start again.
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    assert_eq!(world.fleet.slots["a"].job.runs.once_more, None);
}

#[test]
fn s23_neither_a_set_up_that_fails_nor_a_job_that_saves_undoes_an_end_that_may_be_one() {
    let early = |generation| [(generation, "v2", Some((0, "done ran=4 step=none")))];
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.workers_say(&early(1));
    world.next_poll(&node);
    // Its command has handed the training over: it saves, and a second run would meet it.
    for step in 2..=30 {
        world.surveyed(&[100, step * 100]);
        world.workers_say(&early(1));
        world.next_poll(&node);
        assert_eq!(world.run_order(), None, "{step}");
    }
    let stuck = Some(Stuck::EndedEarly);
    let set_up = Some((Stuck::Setup, ()));
    assert_eq!(ending::or_set_up(Some((Stuck::EndedEarly, ())), set_up).map(|(s, ())| s), stuck);
    let waits = ending::or_set_up(Some((Stuck::Waits, ())), set_up);
    assert_eq!(waits.map(|(stuck, ())| stuck), Some(Stuck::Setup));
}

#[test]
fn an_old_supervisor_is_named_and_condemns_nothing() {
    for (version, named) in [("", Some("version 1")), ("v2", Some("version 2")), ("v3", None)] {
        let mut world = with_checkpoints();
        world.at_work(version);
        let warnings = view::document(&world.fleet, world.now).tpus[0].warnings.join("; ");
        assert_eq!(named.is_some(), warnings.contains("old supervisor"), "{warnings}");
        assert!(named.is_none_or(|named| warnings.contains(named)), "{warnings}");
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    }
}
