//! S16, the second half of S14, quiet hours: when acting again would not help.

use super::*;
use crate::model::action::Look;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::checkpoint::{Checkpoint, CheckpointSurvey};
use crate::model::command::{Command, CommandKind};
use crate::model::quiet::QuietHours;
use crate::model::settings::CheckpointSettings;
use crate::resource::spec::SUPERVISOR_MARK;

pub const LOCATION: &str = "gs://b/c";

/// A slot with a supervised job and checkpoints.
pub fn with_checkpoints() -> World {
    // In a fleet of one or two a second judged recreate would wait for an hour (S8).
    let mut settings = settings(&["a", "idle-1", "idle-2"]);
    let slot = settings.slots.get_mut("a").unwrap();
    let (uri, orbax_mode) = (LOCATION.into(), Default::default());
    slot.job = Some(JobSettings {
        command: Some("train".to_owned()),
        checkpoint: Some(CheckpointSettings { uri, format: None, orbax_mode }),
        no_progress: 3,
        restarts_per_run: 5,
        transient_exit_codes: vec![6, 11, 134, 139],
        ..JobSettings::default()
    });
    slot.supervisor = Some(format!("#! /bin/bash\n{SUPERVISOR_MARK}"));
    slot.policy.attempts.max = 100;
    let mut world = World::new(settings);
    world.fleet.ledger.beacons_seen = true;
    world
}

pub fn survey(steps: &[u64]) -> CheckpointSurvey {
    let newest = steps
        .iter()
        .max()
        .map(|step| Checkpoint { step: *step, uri: format!("{LOCATION}/{step}") });
    CheckpointSurvey { newest, ..CheckpointSurvey::default() }
}

impl World {
    pub fn surveyed(&mut self, steps: &[u64]) {
        let (began, result) = (self.now, Ok(survey(steps)));
        self.input(Input::Surveyed { slot: "a".into(), began, location: LOCATION.into(), result });
    }

    /// The replacement that was ordered, with our supervisor in it.
    pub fn supervised(&self, id: &str, created: Timestamp) -> Value {
        let mut raw = self.replacement("a", json!({"id": id, "createTime": created.to_string()}));
        raw["metadata"]["startup-script"] = json!(SUPERVISOR_MARK);
        raw
    }

    pub fn reports(&mut self, beat: i64, step: Option<i64>) {
        let record = &self.fleet.slots["a"];
        let (of, generation) = (record.incarnation.clone().unwrap(), record.job.generation);
        let beacon = |value: i64| {
            Some(Beacon { boot_id: "b".into(), generation, attempt: 0, value, text: String::new() })
        };
        let report = WorkerReport {
            boot: beacon(1),
            heartbeat: beacon(beat),
            step: step.and_then(beacon),
            ..WorkerReport::default()
        };
        self.input(Input::Attributes {
            slot: "a".into(),
            of,
            began: self.now,
            result: Ok(vec![report]),
        });
    }

    /// From an accepted create to a run whose heartbeat stands still until it is judged. `step`
    /// is what it reports before. Returns whether it was condemned, by a delete that is then
    /// carried out up to the next owed create.
    fn run_that_falls_silent(&mut self, id: &str, step: Option<i64>, steps: &[u64]) -> bool {
        self.called("a", CallOutcome::Accepted(OPERATION.into()));
        let node = self.supervised(id, self.now);
        self.wait(5);
        self.get("a", Some(node.clone()));
        assert_eq!(self.phase("a"), Some(Phase::Ready));
        for _ in 0..40 {
            self.wait(30);
            self.poll(std::slice::from_ref(&node));
            self.reports(7, step);
            if self.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
                self.get("a", Some(node.clone()));
                if is_delete(&self.actions) {
                    self.called(
                        "a",
                        CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")),
                    );
                    self.wait(1);
                    self.surveyed(steps);
                    assert!(
                        matches!(self.actions[..], [Action::Create { .. }]),
                        "{:?}",
                        self.hold("a")
                    );
                    return true;
                }
            }
        }
        false
    }

    /// The first create of the slot's job, from these checkpoints.
    pub fn begin(&mut self, steps: &[u64]) {
        self.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
        self.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
        self.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        self.wait(1);
        self.surveyed(steps);
        assert!(matches!(self.actions[..], [Action::Create { .. }]), "{:?}", self.hold("a"));
    }

    pub fn from(&self) -> Option<u64> {
        self.fleet.slots["a"].recovery.as_ref().and_then(|r| r.order.as_ref()).and_then(|o| o.step)
    }
}

#[test]
fn s16_runs_without_a_new_step_stop_and_retry_lets_them_go_on() {
    let mut world = with_checkpoints();
    world.begin(&[100]);
    // It gets to the same step each time: that is no new one.
    assert!(world.run_that_falls_silent("10", Some(150), &[100]), "the first made a new step");
    assert!(world.run_that_falls_silent("11", Some(150), &[100]));
    assert!(world.run_that_falls_silent("12", Some(140), &[100]));
    assert!(!world.run_that_falls_silent("13", Some(150), &[100]), "three runs made no new step");
    assert_eq!(world.hold("a"), Some(HoldReason::NoProgress));
    assert!(HoldReason::NoProgress.needs_a_person());
    let kind = CommandKind::Retry { slot: "a".into(), from: None };
    world.input(Input::Commands(vec![Command {
        id: "1".into(),
        at: world.now,
        who: "me".into(),
        reason: None,
        kind,
    }]));
    assert_ne!(world.hold("a"), Some(HoldReason::NoProgress));
}

#[test]
fn s16_a_checkpoint_that_no_run_gets_away_from_is_passed_over_once() {
    let mut world = with_checkpoints();
    world.begin(&[100, 90]);
    assert!(world.run_that_falls_silent("10", None, &[100, 90]));
    assert!(world.run_that_falls_silent("11", None, &[100, 90]));
    assert_eq!(world.from(), Some(100));
    // The lister is told to pass over 100, so that it finds 90.
    assert!(world.run_that_falls_silent("12", None, &[90]));
    assert_eq!(world.from(), Some(90), "older than what was recorded, because it was set aside");
    assert_eq!(world.fleet.slots["a"].job.runs.set_aside.map(|(step, _)| step), Some(100));
    assert!(world.run_that_falls_silent("13", None, &[90]));
    assert!(world.run_that_falls_silent("14", None, &[90]));
    assert!(!world.run_that_falls_silent("15", None, &[90]), "nothing is set aside twice");
    assert_eq!(world.hold("a"), Some(HoldReason::NoProgress));
}

#[test]
fn s16_a_node_that_breaks_says_nothing_about_the_job() {
    let mut world = with_checkpoints();
    world.begin(&[100]);
    for id in 10..20 {
        world.called("a", CallOutcome::Accepted(OPERATION.into()));
        let ready = world.supervised(&id.to_string(), world.now);
        world.wait(5);
        world.get("a", Some(ready.clone()));
        world.reports(1, None);
        let mut dead = ready;
        dead["state"] = json!("UNKNOWN");
        for _ in 0..8 {
            world.wait(30);
            world.poll(std::slice::from_ref(&dead));
            if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
                world.get("a", Some(dead.clone()));
                break;
            }
        }
        assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
        world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        world.wait(1);
        world.surveyed(&[100]);
    }
}

/// Two slots whose replacements are stuck in CREATING.
fn two_unfit() -> World {
    let mut settings = settings(&["a", "b", "c"]);
    settings.max_unavailable = Share::Count(3);
    let mut world = World::new(settings);
    world.sick(&["a", "b"], timeout(), 600);
    for name in ["a", "b"] {
        world.get(name, Some(node(name, timeout())));
        assert!(is_delete(&world.actions), "{:?}", world.hold(name));
        world.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        world.called(name, CallOutcome::Accepted(OPERATION.into()));
    }
    world
}

#[test]
fn s14_replacements_of_two_slots_that_fail_to_boot_suspend_judged_deletes_but_for_a_trial() {
    let mut world = two_unfit();
    let stuck = ["a", "b"].map(|name| world.replacement(name, json!({"state": "CREATING"})));
    for _ in 0..92 {
        world.wait(30);
        world.poll(&[stuck[0].clone(), stuck[1].clone(), node("c", json!({}))]);
        if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
            // The first one is confirmed only after the second one has failed, too.
            world.get("a", Some(stuck[0].clone()));
            assert!(world.actions.is_empty());
        }
    }
    for _ in 0..22 {
        world.wait(30);
        world.poll(&[stuck[0].clone(), stuck[1].clone(), node("c", timeout())]);
    }
    assert_eq!(
        (world.hold("a"), world.hold("b")),
        (Some(HoldReason::ReplacementsFail), Some(HoldReason::ReplacementsFail))
    );
    assert_eq!(
        world.hold("c"),
        Some(HoldReason::ReplacementsFail),
        "a third slot of that zone and type is kept, too"
    );
    for _ in 0..240 {
        world.wait(30);
        world.poll(&[stuck[0].clone(), stuck[1].clone(), node("c", timeout())]);
        if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
            break;
        }
    }
    let trial = world
        .looks
        .iter()
        .find(|l| matches!(l, Look::Node { .. }))
        .expect("2 h later one is tried")
        .slot()
        .to_owned();
    let shown =
        if trial == "c" { node("c", timeout()) } else { stuck[usize::from(trial == "b")].clone() };
    world.get(&trial, Some(shown));
    assert!(is_delete(&world.actions), "{trial}: {:?}", world.hold(&trial));
    world.input(Input::Tick);
    for other in ["a", "b", "c"].into_iter().filter(|name| *name != trial) {
        assert_eq!(world.hold(other), Some(HoldReason::ReplacementsFail), "one alone");
    }
}

#[test]
fn s7_quiet_hours_hold_judged_slots_and_let_lost_ones_be() {
    let mut settings = settings(&["a", "b"]);
    for slot in settings.slots.values_mut() {
        // The test's world begins at noon.
        slot.policy.quiet_hours =
            vec![QuietHours::new("0 0 11 * * *", Duration::from_secs(2 * 3600)).unwrap()];
    }
    settings.max_unavailable = Share::Count(2);
    let mut world = World::new(settings);
    world.sick(&["a"], timeout(), 1200);
    assert_eq!(world.hold("a"), Some(HoldReason::QuietHours));
    let preempted = node("b", json!({"state": "PREEMPTED"}));
    world.poll(&[node("a", timeout()), preempted.clone()]);
    world.get("b", Some(preempted));
    assert!(is_delete(&world.actions), "a lost one is not held");
    world.wait(3600);
    world.poll(&[node("a", timeout())]);
    assert_ne!(world.hold("a"), Some(HoldReason::QuietHours), "they are over");
}

#[test]
fn l1_a_delete_that_did_not_come_about_is_withdrawn_when_its_job_makes_progress() {
    let mut world = with_checkpoints();
    let mut node = world.delete_that_is_lost();
    // Sick as it is by now, its job is at work: the slot must not keep its place under
    // max_unavailable.
    node["health"] = json!("UNHEALTHY_TENSORFLOW");
    world.wait(1);
    world.poll(&[node]);
    assert_eq!(world.phase("a"), Some(Phase::Condemned));
    world.reports(8, Some(140));
    assert_eq!((world.phase("a"), world.actions.len()), (None, 0));
    assert!(world.events.iter().any(|e| matches!(e, What::Withdrawn { .. })), "{:?}", world.events);
}

#[test]
fn l1_a_recovery_ends_when_its_node_is_there_and_its_job_is_finished() {
    let mut world = with_checkpoints();
    world.begin(&[100]);
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let key = world.fleet.settings.slots["a"].job.as_ref().unwrap().key();
    world.fleet.slots.get_mut("a").unwrap().job.finished = Some(key);
    let node = world.supervised("10", world.now);
    world.wait(5);
    world.get("a", Some(node));
    assert_eq!(
        (world.phase("a"), world.fleet.slots["a"].verdict.condition),
        (None, Condition::Finished)
    );
}

#[test]
fn l3_a_create_that_was_accepted_and_came_to_nothing_is_another_request_the_next_time() {
    let mut settings = settings(&["a"]);
    settings.alpha = true;
    let mut world = World::new(settings);
    let request = |world: &World| match &world.actions[..] {
        [Action::Create { request_id, .. }] => request_id.clone().unwrap(),
        other => panic!("{other:?}"),
    };
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    let first = request(&world);
    // The answer is lost, and the node is not there: the same request, so that one that comes late
    // does nothing.
    world.called("a", CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer")));
    world.wait(6);
    world.get("a", None);
    world.wait(3_600);
    world.input(Input::Tick);
    assert_eq!(request(&world), first);
    // Carried out, and gone before it was seen: the API would answer the same request with the
    // operation that it had.
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.done("a", OperationState::Succeeded);
    world.wait(6);
    world.get("a", None);
    world.wait(3_600);
    world.input(Input::Tick);
    assert_ne!(request(&world), first);
}

#[test]
fn l8_a_checkpoint_that_is_taken_back_is_no_progress_of_a_node_that_never_booted() {
    let mut world = with_checkpoints();
    world.begin(&[90, 100]);
    for id in ["10", "11"] {
        assert!(world.run_that_falls_silent(id, None, &[90, 100]));
    }
    assert!(
        world.run_that_falls_silent("12", None, &[90]),
        "the checkpoint of step 100 is passed over"
    );
    assert_eq!(world.from(), Some(90));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let node = world.supervised("13", world.now);
    world.wait(5);
    world.get("a", Some(node));
    let kind = CommandKind::Retry { slot: "a".into(), from: None };
    world.input(Input::Commands(vec![Command {
        id: "l".into(),
        at: world.now,
        who: "me".into(),
        reason: None,
        kind,
    }]));
    world.wait(1_200);
    world.surveyed(&[90, 100]);
    assert_eq!(
        (world.phase("a"), world.fleet.slots["a"].job.progress_at),
        (Some(Phase::Ready), None)
    );
    world.surveyed(&[90, 100, 110]);
    assert_eq!(world.phase("a"), None, "a new one is");
}

#[test]
fn a_slot_that_has_healed_says_so() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 30);
    for _ in 0..60 {
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
    }
    assert_eq!(world.fleet.slots["a"].decision.as_ref().unwrap().reason, "healthy");
}

#[test]
fn a_finished_job_that_a_person_wants_again_stays_wanted() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let (of, generation) = (
        world.fleet.slots["a"].incarnation.clone().unwrap(),
        world.fleet.slots["a"].job.generation,
    );
    let beacon = |value: i64| {
        Some(Beacon { boot_id: "b".into(), generation, attempt: 0, value, text: String::new() })
    };
    let exit = Some(Beacon {
        boot_id: "b".into(),
        generation,
        attempt: 0,
        value: 0,
        text: "done ran=700 step=none".into(),
    });
    let boot = beacon(1);
    let report = WorkerReport { boot, heartbeat: beacon(7), exit, ..Default::default() };
    let ended = |world: &mut World| {
        world.wait(30);
        let result = Ok(vec![report.clone()]);
        world.input(Input::Attributes {
            slot: "a".into(),
            of: of.clone(),
            began: world.now,
            result,
        });
        world.poll(std::slice::from_ref(&node));
        world.fleet.slots["a"].verdict.condition
    };
    assert_eq!(ended(&mut world), Condition::Finished);
    let kind = CommandKind::Retry { slot: "a".into(), from: None };
    world.input(Input::Commands(vec![Command {
        id: "1".into(),
        at: world.now,
        who: "ada".into(),
        reason: None,
        kind,
    }]));
    // Its report of the end is still there.
    assert_eq!(ended(&mut world), Condition::Healthy);
    let mut preempted = node.clone();
    preempted["state"] = json!("PREEMPTED");
    world.poll(&[preempted.clone()]);
    world.get("a", Some(preempted));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
}

#[test]
fn checkpoints_that_lie_in_another_place_already_end_no_recovery() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.reports(1, None);
    let mut settings = world.fleet.settings.clone();
    let job = settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.checkpoint = Some(CheckpointSettings {
        uri: "gs://b/other".into(),
        format: None,
        orbax_mode: Default::default(),
    });
    world.input(Input::Configured(Box::new(settings)));
    world.wait(60);
    world.poll(std::slice::from_ref(&node));
    let newest = Some(Checkpoint { step: 9000, uri: "gs://b/other/9000".into() });
    let result = Ok(CheckpointSurvey { newest, ..CheckpointSurvey::default() });
    world.input(Input::Surveyed {
        slot: "a".into(),
        began: world.now,
        location: "gs://b/other".into(),
        result,
    });
    assert!(world.phase("a").is_some(), "its job has done nothing yet");
}

#[test]
fn a_success_whose_order_is_not_known_counts_for_the_job_that_the_nodes_script_runs() {
    for (command, finishes) in [("the same", true), ("another", false)] {
        let mut world = with_checkpoints();
        let script = world.fleet.settings.slots["a"].supervisor.clone().unwrap();
        let metadata =
            json!({"tpu-watchdog-owner": "me", "tpu-watchdog-slot": "a", "startup-script": script});
        let node = node("a", json!({"metadata": metadata}));
        if command == "another" {
            let slot = world.fleet.settings.slots.get_mut("a").unwrap();
            slot.supervisor = Some(format!("{script}\n# {command}"));
        }
        world.poll(std::slice::from_ref(&node));
        let of = world.fleet.slots["a"].incarnation.clone().unwrap();
        let generation = world.fleet.slots["a"].heard_from();
        let exit = Beacon {
            boot_id: "b".into(),
            generation,
            attempt: 0,
            value: 0,
            text: "done ran=700".into(),
        };
        let report = WorkerReport { exit: Some(exit), ..WorkerReport::default() };
        world.input(Input::Attributes {
            slot: "a".into(),
            of,
            began: world.now,
            result: Ok(vec![report]),
        });
        assert_eq!(world.fleet.slots["a"].job.finished.is_some(), finishes, "{command}");
    }
}
