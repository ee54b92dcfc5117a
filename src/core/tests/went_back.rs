//! An operator says from which checkpoint a job goes on, and what counts as progress from there.

use super::endings::CommandKind;
use super::runs::{LOCATION, survey, with_checkpoints};
use super::*;
use crate::model::checkpoint::CheckpointSurvey;

#[test]
fn l8_growth_is_counted_again_from_where_an_operator_went_back_to() {
    let mut world = with_checkpoints();
    let listed = |world: &mut World, steps: &[u64], incomplete: (u64, u64)| {
        world.wait(60);
        let result = Ok(CheckpointSurvey { incomplete: Some(incomplete), ..survey(steps) });
        world.input(Input::Surveyed {
            slot: "a".into(),
            began: world.now,
            location: LOCATION.into(),
            result,
        });
        world.fleet.slots["a"].job.progress_at == Some(world.now)
    };
    listed(&mut world, &[100], (110, 5));
    assert!(listed(&mut world, &[100], (110, 9)), "it grows");
    world.command(CommandKind::Retry { slot: "a".into(), from: Some(50) });
    assert!(!listed(&mut world, &[], (60, 1)), "what is there may be old");
    assert!(listed(&mut world, &[], (60, 2)), "it grows");
}

#[test]
fn a_tpu_that_runs_was_ready_when_it_was_whatever_a_person_goes_back_to() {
    let mut world = with_checkpoints();
    world.poll(&[node("a", json!({}))]);
    world.surveyed(&[100]);
    let ready = world.fleet.slots["a"].ready_since;
    world.wait(600);
    world.command(CommandKind::Retry { slot: "a".into(), from: Some(50) });
    world.surveyed(&[50]);
    let record = &world.fleet.slots["a"];
    assert_eq!(record.job.checkpoint.as_ref().map(|of| of.step), Some(50));
    assert!(ready.is_some() && record.ready_since == ready, "{ready:?} {:?}", record.ready_since);
}

/// Its checkpoint of step 100 is recorded, its TPU is lost, and for ten minutes complete listings
/// show no more than these.
fn went_back_to(steps: &[u64]) -> World {
    went_back(100, steps)
}

fn went_back(recorded: u64, steps: &[u64]) -> World {
    let mut world = with_checkpoints();
    world.poll(&[node("a", json!({}))]);
    world.surveyed(&[recorded]);
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    for _ in 0..13 {
        world.wait(60);
        world.surveyed(steps);
        assert!(world.actions.is_empty(), "{:?}", world.from());
    }
    assert_eq!(world.hold("a"), Some(HoldReason::CheckpointWentBack));
    world
}

fn retry_from(world: &mut World, step: u64) {
    world.command(CommandKind::Retry { slot: "a".into(), from: Some(step) });
    world.wait(1);
}

#[test]
fn s15_a_person_says_from_which_step_a_job_goes_on_and_nothing_older_is_taken() {
    let mut world = went_back_to(&[40]);
    retry_from(&mut world, 60);
    world.surveyed(&[40]);
    assert!(world.actions.is_empty(), "older than what was asked for: {:?}", world.from());
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
    assert!(reason.contains("is step 40, but step 60 or a later one was asked for"), "{reason}");
    retry_from(&mut world, 50);
    world.surveyed(&[40, 55]);
    assert_eq!(world.from(), Some(55), "{:?}", world.hold("a"));
    // From 0: whatever is there, also nothing.
    let mut world = went_back_to(&[]);
    retry_from(&mut world, 1);
    world.surveyed(&[]);
    assert!(world.actions.is_empty());
    retry_from(&mut world, 0);
    world.surveyed(&[]);
    assert!(
        matches!(world.actions[..], [Action::Create { .. }]) && world.from().is_none(),
        "{:?}",
        world.hold("a")
    );
    // The recorded checkpoint may be step 0 itself.
    let mut world = went_back(0, &[]);
    retry_from(&mut world, 0);
    world.surveyed(&[]);
    assert!(
        matches!(world.actions[..], [Action::Create { .. }]) && world.from().is_none(),
        "{:?}",
        world.hold("a")
    );
}

#[test]
fn s15_of_what_a_person_says_the_last_counts_and_a_listing_that_began_before_it_says_nothing() {
    let mut world = went_back_to(&[]);
    retry_from(&mut world, 40);
    retry_from(&mut world, 90);
    world.surveyed(&[60]);
    assert!(world.actions.is_empty(), "{:?}", world.from());
    // An operator restores 95 and says 0; what was listed before shows nothing.
    let before = world.now;
    world.wait(1);
    retry_from(&mut world, 0);
    world.input(Input::Surveyed {
        slot: "a".into(),
        began: before,
        location: LOCATION.into(),
        result: Ok(survey(&[])),
    });
    assert!(world.actions.is_empty(), "{:?}", world.from());
    world.surveyed(&[95]);
    assert_eq!(world.from(), Some(95), "{:?}", world.hold("a"));
}

#[test]
fn s15_what_a_person_says_before_anything_was_listed_counts() {
    let mut world = with_checkpoints();
    retry_from(&mut world, 60);
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    world.wait(1);
    world.surveyed(&[40]);
    assert!(world.actions.is_empty(), "{:?}", world.from());
    world.surveyed(&[60]);
    assert_eq!(world.from(), Some(60), "{:?}", world.hold("a"));
}

#[test]
fn a_job_that_a_person_sent_back_makes_progress_where_it_has_been_before() {
    let mut world = went_back_to(&[40]);
    retry_from(&mut world, 40);
    world.surveyed(&[40]);
    assert_eq!(world.from(), Some(40));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let node = world.supervised("10", world.now);
    world.wait(5);
    world.get("a", Some(node));
    world.wait(60);
    world.reports(1, None);
    world.surveyed(&[40]);
    assert!(world.phase("a").is_some(), "that was there before");
    world.wait(60);
    world.surveyed(&[40, 60]);
    assert_eq!(world.phase("a"), None, "a step before 100 is new now");
}

#[test]
fn l8_what_a_listing_shows_once_more_is_no_growth() {
    let mut world = with_checkpoints();
    let mut listed = |wait: u64, newest: u64, incomplete: Option<(u64, u64)>| {
        world.wait(wait);
        let result = Ok(CheckpointSurvey { incomplete, ..survey(&[newest]) });
        world.input(Input::Surveyed {
            slot: "a".into(),
            began: world.now,
            location: LOCATION.into(),
            result,
        });
        world.fleet.slots["a"].job.progress_at == Some(world.now)
    };
    assert!(!listed(0, 100, Some((110, 5))), "the first look tells nothing");
    assert!(listed(60, 100, Some((110, 6))), "it grows");
    assert!(listed(60, 108, None), "a new checkpoint, in a listing that lacks the incomplete one");
    assert!(!listed(60, 108, Some((110, 6))), "it is shown once more");
    assert!(listed(60, 108, Some((110, 7))), "it grows");
    assert!(listed(60, 110, None), "it is complete");
    assert!(!listed(60, 110, Some((130, 9))), "what an earlier run has left");
    assert!(listed(60, 112, None), "this run's next one; the job has cleaned up");
    assert!(!listed(60, 112, Some((124, 1))), "from here on");
    assert!(listed(60, 112, Some((124, 2))), "it grows, although the earlier run had come further");
    assert!(listed(60, 120, None), "a new one");
    assert!(!listed(60, 110, Some((115, 9))), "what lags behind the newest");
    assert!(listed(60, 120, Some((125, 1))), "the next one");
}

#[test]
fn s20_a_judged_tpu_outlives_a_checkpoint_that_is_gone_from_its_location() {
    for by_a_person in [false, true] {
        let mut world = with_checkpoints();
        let sick = node("a", timeout());
        world.poll(&[node("a", json!({}))]);
        world.surveyed(&[100]);
        for _ in 0..40 {
            world.next_poll(&sick);
            world.surveyed(&[40]);
            world.get("a", Some(sick.clone()));
            if by_a_person {
                let incarnation = world.fleet.slots["a"].incarnation.clone();
                world.command(CommandKind::Recreate { slot: "a".into(), incarnation });
                world.get("a", Some(sick.clone()));
            }
            assert!(world.phase("a").is_none(), "its create would be held");
        }
        assert_eq!(world.hold("a"), Some(HoldReason::CheckpointWentBack));
        let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
        assert!(reason.contains("is step 40, but step 100 was recorded before"), "{reason}");
        retry_from(&mut world, 40);
        world.surveyed(&[40]);
        for _ in 0..40 {
            if world.phase("a").is_some() {
                break;
            }
            world.next_poll(&sick);
            world.get("a", Some(sick.clone()));
        }
        assert_eq!(world.phase("a"), Some(Phase::Deleting), "{:?}", world.hold("a"));
    }
}
