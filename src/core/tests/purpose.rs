//! TPUs that are gone or left alone because a person wanted it: deletions by another hand, the label
//! that opts out.

use super::owed::preempted;
use super::*;
use crate::model::command::{Command, CommandKind};
use crate::model::settings::WhenMissing;

#[test]
fn a_node_that_another_hand_deleted_while_it_lived_is_not_created_again() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.wait(30);
    world.poll(&[node("a", json!({"state": "DELETING"}))]);
    world.missing();
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Deleted), 0));
    world.order(CommandKind::Recreate { slot: "a".into(), incarnation: None });
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    // After a preemption DELETING is only the end of what was lost.
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", preempted())]);
    world.wait(30);
    world.poll(&[node("a", json!({"state": "DELETING"}))]);
    world.missing();
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}

#[test]
fn a_delete_operation_of_another_hand_says_that_a_missing_node_was_deleted_on_purpose() {
    let played = |deletions: Result<Vec<Deletion>, Failure>, policy: WhenMissing| {
        let mut world = World::new(settings(&["a"]));
        world.deletions = deletions;
        world.fleet.settings.slots.get_mut("a").unwrap().policy.when_missing = policy;
        world.poll(&[node("a", json!({}))]);
        world.missing();
        (world.hold("a"), world.actions.len())
    };
    let at = "2026-06-01T12:00:10Z".parse().unwrap();
    let foreign = || Ok(vec![Deletion { operation: "o/9".into(), at }]);
    let refused = || Err(Failure::new(FailureClass::Permission, "403"));
    assert_eq!(played(foreign(), WhenMissing::Auto), (Some(HoldReason::Deleted), 0));
    assert_eq!(played(foreign(), WhenMissing::Create), (None, 1));
    assert_eq!(played(refused(), WhenMissing::Auto), (None, 1), "that is no evidence");
    assert_eq!(played(Ok(vec![]), WhenMissing::Auto), (None, 1));
}

#[test]
fn a_person_who_deletes_a_tpu_and_then_wants_it_gets_it() {
    let retry = || CommandKind::Retry { slot: "a".into(), from: None };
    // Its operation is found after the `retry`.
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.wait(10);
    world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at: world.now }]);
    world.wait(10);
    world.order(retry());
    world.missing();
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    // It was seen DELETING before the `retry`.
    let deleting = [node("a", json!({"state": "DELETING"}))];
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.wait(10);
    world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at: world.now }]);
    world.poll(&deleting);
    assert!(world.fleet.slots["a"].deleted.is_some());
    world.wait(10);
    world.order(retry());
    world.wait(10);
    world.poll(&deleting);
    world.missing();
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    // One that is deleted after the `retry` is deleted on purpose, also where that is read later.
    for (seen_deleting, read_later) in [(false, false), (true, false), (false, true)] {
        let mut world = World::new(settings(&["a"]));
        world.poll(&[node("a", json!({}))]);
        world.wait(10);
        let asked = world.now;
        if !read_later {
            world.order(retry());
        }
        world.wait(10);
        world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at: world.now }]);
        if read_later {
            world.wait(10);
            let (id, who, kind) = ("1".into(), "ada".into(), retry());
            let command = Command { id, at: asked, who, reason: None, kind };
            world.input(Input::Commands(vec![command]));
        }
        if seen_deleting {
            world.wait(10);
            world.poll(&deleting);
        }
        world.missing();
        let held = (world.hold("a"), world.actions.len());
        assert_eq!(held, (Some(HoldReason::Deleted), 0), "{seen_deleting} {read_later}");
    }
}

#[test]
fn a_tpu_that_is_deleted_on_purpose_a_second_time_stays_deleted() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.missing();
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "no other hand deleted it");
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    let ready = world.replacement("a", json!({}));
    world.get("a", Some(ready.clone()));
    world.wait(30);
    world.poll(std::slice::from_ref(&ready));
    let at = world.now;
    world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
    world.missing();
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Deleted), 0));
}

#[test]
fn who_deleted_a_node_that_is_back_is_asked_when_it_is_missing_again() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    // A flap: the operations are looked up, and the node is back before a create.
    world.fleet.settings.dry_run = true;
    world.missing();
    assert!(world.fleet.memory["a"].deletions.is_some() && world.actions.is_empty());
    world.wait(30);
    world.poll(&[node("a", json!({}))]);
    world.fleet.settings.dry_run = false;
    let at = world.now;
    world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
    world.missing();
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Deleted), 0));
}

#[test]
fn s7_a_node_that_was_opted_out_is_not_created_again_when_it_is_missing() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({"labels": {"tpu-watchdog": "off"}}))]);
    for _ in 0..8 {
        world.wait(30);
        world.poll(&[]);
        world.get("a", None);
    }
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::OptedOut), 0));
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
    assert!(reason.ends_with("`resume a` releases the create"), "{reason}");
    world.order(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}

#[test]
fn s7_a_tpu_that_was_deleted_for_its_label_is_created_again_by_resume() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({"labels": {"tpu-watchdog": "off"}}))]);
    world.wait(30);
    world.poll(&[node("a", json!({"labels": {"tpu-watchdog": "off"}, "state": "DELETING"}))]);
    world.missing();
    assert!(world.fleet.slots["a"].deleted.is_some() && world.actions.is_empty());
    world.order(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    if world.asks("a") {
        world.get("a", None);
    }
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}
