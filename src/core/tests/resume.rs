//! Where a job starts: by its own newest checkpoint, and as the views tell it before a listing.

use super::harm::strange;
use super::runs::{LOCATION, with_checkpoints};
use super::*;
use crate::core::if_lost::if_lost;
use crate::model::command::CommandKind;
use crate::model::settings::Resume;
use crate::report::sentence;

#[test]
fn s20_with_resume_framework_what_is_lost_is_created_and_what_is_judged_is_not_deleted() {
    let finds_its_own = |mut world: World| {
        let mut settings = world.fleet.settings.clone();
        settings.slots.get_mut("a").unwrap().job.as_mut().unwrap().resume = Some(Resume::Framework);
        world.input(Input::Configured(Box::new(settings)));
        world
    };
    let old = Some("2025-01-01T00:00:00Z".parse().unwrap());
    let preempted = || node("a", json!({"state": "PREEMPTED"}));
    for seen in [None, Some(Ok(vec![100])), Some(Err(()))] {
        let mut world = finds_its_own(with_checkpoints());
        world.poll(&[node("a", json!({}))]);
        match &seen {
            None => world.listed(strange(old)),
            Some(Ok(steps)) => world.surveyed(steps),
            Some(Err(())) => {}
        }
        world.next_poll(&preempted());
        world.get("a", Some(preempted()));
        assert!(is_delete(&world.actions), "what is lost is removed");
        world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        // No listing was answered since the node is gone.
        let [Action::Create { body, .. }] = &world.actions[..] else {
            panic!("{seen:?}: {:?}", world.hold("a"))
        };
        let ordered = body["metadata"]["tpu-watchdog-run"].as_str().unwrap_or_default().to_owned();
        assert_eq!(ordered.contains("\"step\":100"), matches!(seen, Some(Ok(_))), "{ordered}");
    }
    let mut world = finds_its_own(with_checkpoints());
    world.poll(&[node("a", json!({}))]);
    world.listed(strange(old));
    for _ in 0..25 {
        world.next_poll(&node("a", timeout()));
        world.get("a", Some(node("a", timeout())));
    }
    assert_eq!((world.phase("a"), world.hold("a")), (None, Some(HoldReason::CheckpointUnreadable)));
}

#[test]
fn l3_a_create_that_is_owed_when_its_location_changes_is_sent_without_a_listing() {
    let mut world = with_checkpoints();
    let mut settings = world.fleet.settings.clone();
    let own = |settings: &mut Settings| {
        settings.slots.get_mut("a").unwrap().job.as_mut().unwrap().resume = Some(Resume::Framework);
    };
    own(&mut settings);
    world.input(Input::Configured(Box::new(settings.clone())));
    world.poll(&[node("a", json!({}))]);
    world.surveyed(&[100]);
    world.next_poll(&node("a", json!({"state": "PREEMPTED"})));
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    let job = settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.checkpoint.as_mut().unwrap().uri = "gs://other/place".into();
    world.input(Input::Configured(Box::new(settings)));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    let [Action::Create { body, .. }] = &world.actions[..] else { panic!("{:?}", world.hold("a")) };
    let ordered = body["metadata"]["tpu-watchdog-run"].as_str().unwrap_or_default();
    assert!(ordered.contains("\"step\":null"), "{ordered}");
}

#[test]
fn of_a_location_that_was_never_listed_nothing_is_claimed() {
    let mut world = with_checkpoints();
    world.poll(&[node("a", json!({}))]);
    let shown = |world: &World| {
        let slot = view::document(&world.fleet, world.now).tpus.remove(0);
        let lost = if_lost(&world.fleet, &world.fleet.settings, Some("a"), world.now).remove(0);
        let job = slot.job.unwrap();
        assert_eq!(job.unlisted, lost.unlisted);
        sentence::stands(&job, world.now).join(", ")
    };
    world.listed(Err(Failure::new(FailureClass::Transient, "HTTP 503")));
    assert_eq!(shown(&world), format!("{LOCATION} has not been listed yet"));
    world.surveyed(&[]);
    assert_eq!(shown(&world), format!("no checkpoint found under {LOCATION}"));
    // The list of another place says nothing about this one.
    let mut moved = world.fleet.settings.clone();
    let job = moved.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.checkpoint.as_mut().unwrap().uri = "gs://other/place".into();
    world.input(Input::Configured(Box::new(moved)));
    assert_eq!(shown(&world), "gs://other/place has not been listed yet");
}

#[test]
fn what_a_gate_would_hold_is_not_said_to_be_created_again() {
    let mut world = with_checkpoints();
    world.poll(&[node("a", json!({}))]);
    let lost = |world: &World| {
        let lost = if_lost(&world.fleet, &world.fleet.settings, Some("a"), world.now).remove(0);
        (lost.held, lost.by_choice)
    };
    world.fleet.settings.dry_run = true;
    assert_eq!(lost(&world), (None, false), "asked of a dry run, as if it were none");
    world.fleet.settings.dry_run = false;
    world.command(CommandKind::Forget { slot: "a".into(), purge: false });
    let (held, by_choice) = lost(&world);
    assert!(by_choice && held.as_ref().is_some_and(|why| why.contains("forget")), "{held:?}");
}
