//! S6: judged slots in recovery at once.

use super::*;
use crate::model::command::Pause;
use crate::model::condition::Kind;

#[test]
fn s6_judged_slots_in_recovery_never_exceed_the_budget_and_lost_ones_do_not_wait_for_it() {
    let mut world = World::new(settings(&["a", "b", "c", "d"]));
    world.sick(&["a", "b", "c"], timeout(), 600);
    for name in ["a", "b", "c"] {
        world.get(name, Some(node(name, timeout())));
    }
    let judged =
        |world: &World| world.fleet.slots.values().filter(|r| r.recovery.is_some()).count();
    assert_eq!(judged(&world), 1);
    assert_eq!(world.hold("b"), Some(HoldReason::MaxUnavailable));
    world.wait(30);
    let nodes = ["a", "b", "c", "d"]
        .map(|n| node(n, if n == "d" { json!({"state": "PREEMPTED"}) } else { timeout() }));
    world.poll(&nodes);
    world.get("d", Some(nodes[3].clone()));
    assert!(is_delete(&world.actions), "a preempted one is replaced at once");
}

#[test]
fn s6_a_lost_slot_that_is_there_again_and_sick_is_judged_like_any_other() {
    let mut world = World::new(settings(&["a", "b", "c", "d"]));
    let preempted = || json!({"state": "PREEMPTED"});
    world.sick(&["a", "b"], preempted(), 0);
    for name in ["a", "b"] {
        world.get(name, Some(node(name, preempted())));
        world.called(name, CallOutcome::Refused(Failure::new(FailureClass::Permission, "403")));
        assert_eq!(world.phase(name), Some(Phase::Condemned));
    }
    world.sick(&["a", "b"], json!({"state": "UNKNOWN"}), 120);
    world.get("a", Some(node("a", json!({"state": "UNKNOWN"}))));
    assert!(is_delete(&world.actions));
    let record = &world.fleet.slots["a"];
    let kinds: Vec<Kind> = record.attempts.iter().map(|attempt| attempt.kind).collect();
    let recovery = record.recovery.as_ref().unwrap();
    assert_eq!(
        (recovery.kind, recovery.delete_failures, kinds),
        (Kind::Judged, 1, vec![Kind::Lost, Kind::Judged])
    );
    world.get("b", Some(node("b", json!({"state": "UNKNOWN"}))));
    assert_eq!(world.hold("b"), Some(HoldReason::MaxUnavailable));
    // Nor does a delete that was allowed because there was nothing left excuse one of a node that
    // is there again (S14).
    world.is_short();
    world.sick(&["b"], timeout(), 900);
    assert_eq!(world.hold("b"), Some(HoldReason::ZoneShort));
}

#[test]
fn s6_a_slot_that_goes_on_to_its_next_zone_keeps_its_place() {
    let mut settings = settings(&["a", "b", "c", "d"]);
    settings.slots.get_mut("b").unwrap().zones.push("us-east1-d".into());
    let mut world = World::new(settings);
    // Of another type: the stock-out itself must not be what holds it.
    let other = node("a", json!({"health": "TIMEOUT", "acceleratorType": "v4-16"}));
    for _ in 0..=600 / 30 {
        world.wait(30);
        world.poll(&[
            other.clone(),
            node("b", timeout()),
            node("c", json!({})),
            node("d", json!({})),
        ]);
    }
    world.get("b", Some(node("b", timeout())));
    world.called("b", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    world.done("b", OperationState::Succeeded);
    world.wait(1);
    world.get("a", Some(other));
    assert_eq!(world.hold("a"), Some(HoldReason::MaxUnavailable));
    world.called(
        "b",
        CallOutcome::Refused(Failure::new(FailureClass::StockOut, "no more capacity")),
    );
    world.wait(1);
    world.get("b", None);
    assert!(
        matches!(&world.actions[..], [Action::Create { slot, zone, .. }] if slot == "b" && zone == "us-east1-d"),
        "{:?}",
        world.actions
    );
}

#[test]
fn s6_a_judged_slot_whose_delete_is_carried_out_late_keeps_its_place() {
    let mut world = World::new(settings(&["a", "b", "c", "d"]));
    world.sick(&["a", "b"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    let others =
        ["b", "c", "d"].map(|name| node(name, if name == "b" { timeout() } else { json!({}) }));
    world.called("a", CallOutcome::Unknown(Failure::new(FailureClass::Transient, "reset")));
    world.wait(1);
    world.get("a", Some(node("a", timeout())));
    assert_eq!(
        (world.phase("a"), world.hold("a")),
        (Some(Phase::Condemned), Some(HoldReason::Backoff))
    );
    for _ in 0..6 {
        world.wait(30);
        world.poll(&others);
        world.get("a", None);
        world.get("b", Some(others[0].clone()));
        assert_eq!(world.hold("b"), Some(HoldReason::MaxUnavailable));
    }
    assert_eq!(world.phase("a"), Some(Phase::Creating));
    let kinds: Vec<Kind> =
        world.fleet.slots["a"].attempts.iter().map(|attempt| attempt.kind).collect();
    assert_eq!(kinds, [Kind::Judged], "it is one recovery");
}

#[test]
fn s6_a_slot_that_was_set_apart_passes_the_budget_again() {
    let mut world = World::new(settings(&["a", "b", "c", "d"]));
    world.sick(&["a", "b"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    let not_sent = Failure::new(FailureClass::Transient, "no token");
    world.called("a", CallOutcome::NotSent(not_sent));
    let nodes =
        ["a", "b", "c", "d"].map(|name| node(name, if name < "c" { timeout() } else { json!({}) }));
    // While an operator holds it, another one takes its place.
    let pause = Pause { until: None, since: None, who: "ada".into(), reason: None };
    world.fleet.slots.get_mut("a").unwrap().paused = Some(pause);
    world.wait(30);
    world.poll(&nodes);
    assert_eq!(world.hold("a"), Some(HoldReason::Paused));
    world.get("b", Some(nodes[1].clone()));
    assert!(is_delete(&world.actions));
    world.called("b", CallOutcome::Accepted(OPERATION.into()));
    // A slot that can't be read is no longer held by an operator: it counts again.
    world.fleet.slots.get_mut("a").unwrap().paused = None;
    world.wait(30);
    world.poll_result(Err(Failure::new(FailureClass::Transient, "503")));
    world.wait(30);
    world.poll(&nodes);
    world.get("a", Some(nodes[0].clone()));
    assert!(world.actions.is_empty(), "{:?}", world.messages);
    assert_eq!(world.hold("a"), Some(HoldReason::MaxUnavailable));
}

#[test]
fn s6_a_delete_that_is_not_sent_again_and_again_still_takes_its_place() {
    let mut world = World::new(settings(&["a", "b", "c", "d"]));
    world.sick(&["a", "b"], timeout(), 600);
    let nodes =
        ["a", "b", "c", "d"].map(|name| node(name, if name < "c" { timeout() } else { json!({}) }));
    for _ in 0..5 {
        world.get("a", Some(nodes[0].clone()));
        assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
        // While it may be under way, and after it was not sent.
        world.get("b", Some(nodes[1].clone()));
        assert!(world.actions.is_empty(), "{:?}", world.messages);
        world.called("a", CallOutcome::NotSent(Failure::new(FailureClass::Transient, "no token")));
        world.wait(30);
        world.poll(&nodes);
        assert_eq!(world.hold("b"), Some(HoldReason::MaxUnavailable));
    }
    assert_eq!(world.hold("a"), Some(HoldReason::NotSent));
}

#[test]
fn s6_a_slot_that_is_short_of_capacity_takes_no_place_from_another_pool() {
    let mut world = World::new(settings(&["a", "b", "c", "d"]));
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::StockOut, "none")));
    world.get("a", None);
    assert_eq!(world.hold("a"), Some(HoldReason::Backoff), "{:?}", world.phase("a"));
    let sick = json!({"health": "TIMEOUT", "acceleratorType": "v4-16"});
    let nodes = [node("b", sick.clone()), node("c", json!({})), node("d", json!({}))];
    for _ in 0..60 {
        world.wait(30);
        world.poll(&nodes);
        if matches!(world.actions[..], [Action::Create { .. }]) {
            let none = Failure::new(FailureClass::StockOut, "none");
            world.called("a", CallOutcome::Refused(none));
            world.get("a", None);
        }
        if world.looks.iter().any(|look| matches!(look, Look::Node { slot, .. } if slot == "b")) {
            world.get("b", Some(nodes[0].clone()));
        }
        if is_delete(&world.actions) {
            return;
        }
    }
    panic!("b is {:?}", world.hold("b"));
}
