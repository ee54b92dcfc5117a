//! Defects that were found, each by the sequence that shows it.

use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::fleet::Pending;
use crate::model::ids::Incarnation;
use crate::model::time::elapsed;

/// A fleet whose slot `a` has a job and a supervisor, with beacons known to work.
pub fn with_job() -> World {
    let mut settings = settings(&["a"]);
    let slot = settings.slots.get_mut("a").unwrap();
    slot.job = Some(JobSettings {
        command: Some("train".into()),
        no_progress: 3,
        ..JobSettings::default()
    });
    slot.supervisor = Some(format!("#! /bin/bash\n{}", crate::resource::spec::SUPERVISOR_MARK));
    let mut world = World::new(settings);
    world.fleet.ledger.beacons_seen = true;
    world
}

/// A node of ours; `script` is its startup script.
pub fn ours(script: &str) -> Value {
    json!({"metadata": {"tpu-watchdog-owner": "me", "tpu-watchdog-slot": "a", "startup-script": script,
        "tpu-watchdog-run": "{\"generation\":1,\"checkpoint\":\"\",\"step\":null}"}})
}

pub fn and(mut change: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        change[key] = value.clone();
    }
    change
}

impl World {
    pub fn beacons(&mut self, heartbeat: Option<i64>) {
        let of = Incarnation { id: "1".into(), created: "2026-01-01T00:00:00Z".parse().unwrap() };
        let beacon = |value| Beacon {
            boot_id: "b".into(),
            generation: 1,
            attempt: 0,
            value,
            text: String::new(),
        };
        let report = heartbeat.map(|value| WorkerReport {
            boot: Some(beacon(1)),
            heartbeat: Some(beacon(value)),
            ..WorkerReport::default()
        });
        self.input(Input::Attributes {
            slot: "a".into(),
            of,
            began: self.now,
            result: Ok(vec![report.unwrap_or_default()]),
        });
    }
}

pub const MARK: &str = crate::resource::spec::SUPERVISOR_MARK;

#[test]
fn no_beacon_is_expected_from_a_node_of_ours_whose_startup_script_is_not_the_supervisor() {
    for (script, judged) in [("echo mine", false), (MARK, true)] {
        let mut world = with_job();
        let node = node("a", ours(script));
        for _ in 0..30 {
            world.poll(std::slice::from_ref(&node));
            world.beacons(None);
            world.wait(30);
        }
        assert_eq!(
            world.fleet.slots["a"].verdict.condition == Condition::NeverBooted,
            judged,
            "{script}"
        );
    }
}

#[test]
fn a_get_that_saw_a_healthy_node_confirms_nothing_and_an_older_listing_overrules_no_newer_get() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 600);
    let listed = world.now;
    world.wait(1);
    world.get("a", Some(node("a", json!({}))));
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    assert_eq!(world.fleet.memory["a"].confirmed, None);
    let shown = Arc::new(NodeView::parse(node("a", timeout())).unwrap());
    let listing =
        Listing { zone: ZONE.into(), result: Ok((vec![shown], vec![]).into()), requests: None };
    let stale = Poll { began: listed, listings: vec![listing], jobs: vec![] };
    world.input(Input::Polled(Box::new(stale)));
    assert!(world.actions.is_empty());
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn a_delete_that_was_refused_for_good_does_not_hold_the_create_of_a_node_that_is_gone() {
    let mut world = World::new(settings(&["a"]));
    let refused = || CallOutcome::Refused(Failure::new(FailureClass::Permission, "denied"));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    for _ in 0..3 {
        world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
        assert!(is_delete(&world.actions));
        world.called("a", refused());
        world.wait(600);
        world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
    }
    assert_eq!(world.hold("a"), Some(HoldReason::DeleteFailed));
    // It is never given up: at the longest wait it is tried again.
    world.wait(1200);
    world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
    world.called("a", refused());
    for _ in 0..8 {
        world.wait(30);
        world.poll(&[]);
        if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
            world.get("a", None);
        }
        if matches!(world.actions[..], [Action::Create { .. }]) {
            return;
        }
    }
    panic!("a person deleted it, and it is never created: {:?}", world.fleet.slots["a"].decision);
}

#[test]
fn a_recovery_that_waits_for_a_person_does_not_hold_the_others() {
    let mut world = World::new(settings(&["a", "b"]));
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    assert!(is_delete(&world.actions));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    // Another client stops the replacement: that recovery never ends by itself.
    let stopped = world.replacement("a", json!({"state": "STOPPED"}));
    world.poll(&[stopped.clone(), node("b", timeout())]);
    for _ in 0..21 {
        world.wait(30);
        world.poll(&[stopped.clone(), node("b", timeout())]);
    }
    world.get("b", Some(node("b", timeout())));
    assert!(is_delete(&world.actions), "{:?}", world.hold("b"));
}

#[test]
fn creates_that_are_lost_on_the_way_are_not_repeated_without_a_wait() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert_eq!(world.actions.len(), 1);
    world.wait(1);
    world.called(
        "a",
        CallOutcome::NotSent(Failure::new(FailureClass::Transient, "connection refused")),
    );
    assert!(world.actions.is_empty());
    assert_eq!(world.hold("a"), Some(HoldReason::Backoff));
    assert!(world.fleet.ledger.creates.is_empty(), "what never left uses nothing up");
    // Thirty seconds, less a part that differs from slot to slot.
    let wake = super::super::next_wake(&world.fleet).unwrap();
    assert!((22..=30).contains(&elapsed(world.now, wake).as_secs()), "{wake}");
}

#[test]
fn s4_a_read_counts_although_the_call_after_it_never_left() {
    let mut world = World::new(settings(&["a"]));
    let preempted = json!({"state": "PREEMPTED", "createTime": world.now.to_string()});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted)));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    world.wait(1);
    world.called(
        "a",
        CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer within 20 s")),
    );
    world.wait(5);
    world.get("a", None);
    assert_eq!(world.phase("a"), Some(Phase::Gone), "read back: it was not carried out");
    world.wait(120);
    world.input(Input::Tick);
    let began = after(world.now, Duration::from_secs(1));
    world.wait(2);
    world.called(
        "a",
        CallOutcome::NotSent(Failure::new(
            FailureClass::Transient,
            "the lock was not renewed in time",
        )),
    );
    assert_eq!(world.phase("a"), Some(Phase::Gone));
    // The answer to an earlier create was lost: what it made is there.
    let node = world.replacement("a", json!({"state": "CREATING"}));
    let reading = Reading::Node(Arc::new(NodeView::parse(node).unwrap()));
    world.input(Input::Got { slot: "a".into(), began, reading });
    assert_eq!(world.phase("a"), Some(Phase::Creating));
    world.wait(120);
    world.input(Input::Tick);
    assert!(world.actions.is_empty(), "nothing is created once more");
}

#[test]
fn s1_a_delete_that_never_left_is_verified_again() {
    let mut world = World::new(settings(&["a"]));
    let preempted = json!({"state": "PREEMPTED", "createTime": world.now.to_string()});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted.clone())));
    assert!(is_delete(&world.actions));
    world.called("a", CallOutcome::NotSent(Failure::new(FailureClass::Transient, "no token")));
    assert!(world.actions.is_empty(), "not again and again as fast as it fails");
    world.wait(1);
    world.get("a", Some(node("a", preempted)));
    assert!(is_delete(&world.actions));
}

#[test]
fn a_replacement_that_is_preempted_after_it_was_ready_is_replaced_at_once() {
    let mut world = with_job();
    world.recreate_preempted();
    let starting = world.replacement("a", json!({"state": "CREATING"}));
    world.poll(std::slice::from_ref(&starting));
    world.wait(30);
    let mut preempted = starting.clone();
    preempted["state"] = json!("PREEMPTED");
    world.poll(std::slice::from_ref(&preempted));
    world.get("a", Some(preempted));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
}

#[test]
fn a_create_operation_without_an_end_and_without_a_node_is_given_up() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let mut creates = 0;
    for _ in 0..1200 {
        world.wait(5);
        world.done("a", OperationState::Running);
        if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
            world.get("a", None);
        }
        creates += world.actions.len();
        if creates > 0 {
            return;
        }
    }
    panic!("it waits for ever");
}

#[test]
fn a_slot_that_may_live_in_a_zone_that_was_not_read_is_not_created_elsewhere() {
    let mut settings = settings(&["a"]);
    let slot = settings.slots.get_mut("a").unwrap();
    slot.zones = vec![ZONE.to_owned(), "us-east5-a".to_owned()];
    slot.create.fields =
        [("acceleratorType".to_owned(), json!("v4-8")), ("runtimeVersion".to_owned(), json!("r"))]
            .into();
    let mut world = World::new(settings);
    for _ in 0..20 {
        let listings = vec![
            Listing { zone: ZONE.into(), result: Ok(Default::default()), requests: None },
            Listing {
                zone: "us-east5-a".into(),
                result: Err(Failure::new(FailureClass::Transient, "503")),
                requests: None,
            },
        ];
        let began = world.now;
        world.input(Input::Polled(Box::new(Poll { began, listings, jobs: vec![] })));
        assert!(world.actions.is_empty() && world.looks.is_empty());
        world.wait(30);
    }
}

#[test]
fn a_success_is_journaled_under_the_job_that_was_ordered() {
    let mut world = with_job();
    world.recreate_preempted();
    let first = world.fleet.slots["a"].job.ordered.clone();
    let ready = world.replacement("a", json!({"metadata": ours(MARK)["metadata"]}));
    world.get("a", Some(ready.clone()));
    let mut changed = world.fleet.settings.clone();
    changed.slots.get_mut("a").unwrap().job.as_mut().unwrap().command = Some("another".into());
    world.input(Input::Configured(Box::new(changed)));
    let of = world.fleet.slots["a"].incarnation.clone().unwrap();
    let exit = Beacon {
        boot_id: "b".into(),
        generation: 1,
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
    assert_eq!(world.fleet.slots["a"].job.finished, first);
    world.wait(30);
    world.poll(&[ready]);
    assert_ne!(
        world.fleet.slots["a"].verdict.condition,
        Condition::Finished,
        "the other job has not run yet"
    );
}

#[test]
fn a_recovery_that_cannot_go_on_does_not_wake_the_loop_again_and_again() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::Quota);
    let mut dry = world.fleet.settings.clone();
    dry.dry_run = true;
    world.wait(3600);
    world.input(Input::Configured(Box::new(dry)));
    assert_eq!(super::super::next_wake(&world.fleet), None);
}

#[test]
fn s11_deletes_that_are_lost_on_the_way_are_not_repeated_without_a_wait() {
    let mut world = World::new(settings(&["a"]));
    let preempted = || Some(node("a", json!({"state": "PREEMPTED"})));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", preempted());
    world.called("a", CallOutcome::Unknown(Failure::new(FailureClass::Garbage, "<html>")));
    world.wait(1);
    world.get("a", preempted());
    assert_eq!(
        (world.hold("a"), world.actions.len()),
        (Some(HoldReason::Backoff), 0),
        "the first may still be on its way"
    );
    world.wait(40);
    world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
    world.get("a", preempted());
    assert!(is_delete(&world.actions));
    // The create that follows does not wait for it.
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}

#[test]
fn two_recoveries_under_a_smaller_budget_do_not_hold_each_other() {
    let mut two = settings(&["a", "b"]);
    two.max_unavailable = Share::Count(2);
    let mut world = World::new(two.clone());
    world.sick(&["a", "b"], timeout(), 600);
    for name in ["a", "b"] {
        world.get(name, Some(node(name, timeout())));
        world.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        world.called(name, CallOutcome::Accepted(OPERATION.into()));
    }
    two.max_unavailable = Share::Count(1);
    world.input(Input::Configured(Box::new(two)));
    let mut deletes = Vec::new();
    let bad = ["a", "b"].map(|name| world.replacement(name, json!({"health": "TIMEOUT"})));
    // Two bad replacements suspend judged deletes until the trial.
    for _ in 0..300 {
        world.wait(30);
        world.poll(&bad);
        for (name, raw) in ["a", "b"].iter().zip(&bad) {
            if world.looks.iter().any(|l| matches!(l, Look::Node { .. }) && l.slot() == *name)
                || deletes.is_empty()
            {
                world.get(name, Some(raw.clone()));
                deletes.extend(world.actions.iter().map(|a| a.slot().to_owned()));
            }
        }
    }
    assert!(!deletes.is_empty(), "{:?} {:?}", world.hold("a"), world.hold("b"));
}

#[test]
fn a_failed_listing_does_not_make_another_clients_delete_younger() {
    let mut world = World::new(settings(&["a"]));
    for round in 0..64 {
        world.wait(30);
        if round % 20 == 10 {
            world.poll_result(Err(Failure::new(FailureClass::Transient, "503")));
        } else {
            world.poll(&[node("a", json!({"state": "DELETING"}))]);
        }
    }
    assert!(
        world.fleet.memory["a"].pending.contains(&Pending::Node),
        "its time is over, and a GET confirms it: {:?}",
        world.fleet.slots["a"].decision
    );
}

#[test]
fn a_record_of_a_former_version_is_read() {
    let former = json!({"name": "a", "zone": ZONE, "incarnation": null, "ours": false, "ready_since": null, "seen": {"state": "READY"},
        "verdict": {"condition": "healthy", "evidence": ""}, "since": "2026-01-01T00:00:00Z", "attempts": [], "healthy_since": null,
        "suspicion": {"since": "2026-01-01T00:00:00Z", "sick_for": {"secs": 1, "nanos": 0}, "reads": 1, "seen": ["maintenance"],
            "healthy_for": {"secs": 0, "nanos": 0}},
        "recovery": null, "job": {"generation": 3}, "mutated_at": null});
    let record: crate::model::slot::SlotRecord = serde_json::from_value(former).unwrap();
    assert_eq!((record.job.generation, record.suspicion.unwrap().reads), (3, 1));
}

#[test]
fn a_read_that_lags_behind_brings_no_deleted_node_back() {
    let mut world = World::new(settings(&["a"]));
    let first = node("a", json!({"state": "PREEMPTED", "createTime": "2026-05-01T00:00:00Z"}));
    world.poll(std::slice::from_ref(&first));
    world.get("a", Some(first.clone()));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.actions);
    world.called(
        "a",
        CallOutcome::Unknown(Failure::new(FailureClass::Transient, "the answer was lost")),
    );
    world.wait(5);
    world.get("a", Some(first.clone()));
    assert_eq!(world.phase("a"), Some(Phase::Creating), "it shows the past");
    // Nor does a watchdog believe in it that has taken over and whose clock is far ahead.
    world.wait(3600);
    world.get("a", Some(first.clone()));
    assert_eq!(world.phase("a"), Some(Phase::Creating), "its delete is done");
    let second = world.replacement("a", json!({}));
    world.wait(5);
    world.get("a", Some(second.clone()));
    assert_eq!(world.phase("a"), None, "recovered");
    // A node that was replaced is never believed in again, however late.
    world.wait(3600);
    world.poll(&[first]);
    assert_eq!(world.fleet.slots["a"].incarnation.as_ref().unwrap().id, "2");
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn after_a_restart_a_recovery_that_was_held_is_not_counted_and_passes_no_budget() {
    let mut both = settings(&["a", "b"]);
    both.max_unavailable = Share::Count(1);
    both.slots.get_mut("a").unwrap().policy.attempts.max = 1;
    let mut world = World::new(both);
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let bad = world.replacement("a", json!({"health": "TIMEOUT"}));
    for _ in 0..25 {
        world.wait(30);
        world.poll(&[bad.clone(), node("b", json!({}))]);
    }
    assert_eq!(world.hold("a"), Some(HoldReason::Attempts));
    assert_eq!(
        crate::core::budget::unavailable(&world.fleet),
        0,
        "a slot that waits for a person takes no room"
    );
    world.fleet = Fleet::new(
        world.fleet.settings.clone(),
        world.fleet.slots.clone(),
        world.fleet.ledger.clone(),
    );
    assert_eq!(crate::core::budget::unavailable(&world.fleet), 0, "nor after a restart");
}
