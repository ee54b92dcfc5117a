//! Jobs that start again on the TPU that is there: a checkpoint that is gone, a delete that did not come
//! about, what is told between two reads.

use super::endings::CommandKind;
use super::relaunch::{STALE, accepted};
use super::runs::with_checkpoints;
use super::*;

#[test]
fn s15_a_relaunch_whose_checkpoint_is_gone_waits_for_a_person_after_ten_minutes() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[100]);
    let generation = world.fleet.slots["a"].job.generation;
    let mut world = with_checkpoints();
    world.crashed();
    for minute in 0..12 {
        assert_eq!(world.run_order(), None, "{minute}");
        world.wait(60);
        world.workers_say(&[(1, "v2", Some(STALE))]);
        world.poll(std::slice::from_ref(&node));
        world.surveyed(&[]);
        let held = world.hold("a");
        let expected = if minute < 10 {
            HoldReason::CheckpointUnreadable
        } else {
            HoldReason::CheckpointWentBack
        };
        assert_eq!(held, Some(expected), "{minute}");
    }
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
    assert!(reason.contains("`retry a --from STEP`"), "{reason}");
    world.command(CommandKind::Retry { slot: "a".into(), from: Some(0) });
    world.wait(1);
    world.surveyed(&[]);
    let order = world.run_order().expect("a person has said from where");
    assert_eq!((order.generation, order.step), (generation + 1, None));
}

#[test]
fn a_job_that_crashes_on_a_tpu_that_heals_before_its_delete_starts_again_on_it() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let sick = |node: &Value| {
        let mut node = node.clone();
        node["health"] = json!("TIMEOUT");
        node
    };
    world.workers_say(&[(1, "v2", None)]);
    for _ in 0..40 {
        world.wait(30);
        world.poll(&[sick(&node)]);
        if world.asks("a") {
            world.get("a", Some(sick(&node)));
        }
        if is_delete(&world.actions) {
            break;
        }
    }
    let refused = Failure::new(FailureClass::Transient, "unavailable");
    world.called("a", CallOutcome::Refused(refused));
    assert_eq!(world.phase("a"), Some(Phase::Condemned));
    // It heals, and its job has died of it.
    let order = (0..20).find_map(|_| {
        world.wait(30);
        world.workers_say(&[(1, "v2", Some(STALE))]);
        world.poll(std::slice::from_ref(&node));
        assert!(!is_delete(&world.actions));
        world.surveyed(&[100]);
        world.run_order()
    });
    assert_eq!(order.map(|order| order.generation), Some(2));
    assert_eq!(world.phase("a"), None);
}

#[test]
fn a_job_that_has_just_started_again_is_not_told_as_one_that_waits_for_a_person() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.wait(1);
    world.surveyed(&[100, 200, 300]);
    world.ordered(accepted());
    // Its workers follow before the node is read once more.
    world.wait(5);
    world.workers_say(&[(2, "v2", None)]);
    world.surveyed(&[300]);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::JobFailed);
    assert_eq!(world.hold("a"), None);
    world.next_poll(&node);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn s9_workers_that_follow_an_order_before_its_call_is_answered_are_taken_at_their_word_after_it() {
    let mut world = with_checkpoints();
    world.crashed();
    world.wait(1);
    world.surveyed(&[100, 200, 300]);
    assert_eq!(world.run_order().map(|order| order.generation), Some(2));
    world.workers_say(&[(2, "v2", None)]);
    assert!(world.fleet.slots["a"].job.relaunch.is_some(), "its call is under way");
    world.ordered(accepted());
    world.workers_say(&[(2, "v2", None)]);
    assert!(world.messages.iter().any(|text| text == "every worker follows generation 2"));
    assert_eq!(world.fleet.slots["a"].job.relaunch, None);
}
