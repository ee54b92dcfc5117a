//! Managed training jobs that run and save nothing: told, and with `stall` cancelled and submitted again.

use super::training::{REGION, Service, training};
use super::*;
use crate::core::resubmission;
use crate::model::command::{Command, CommandKind};
use crate::model::filling::Filling;

const STALL: u64 = 6 * 60;

/// A job that is watched with `stall`, and has saved step 100.
pub fn stalling() -> Service {
    stalling_as(|_| ())
}

fn stalling_as(change: impl FnOnce(&mut Value)) -> Service {
    let mut settings = training();
    let slot = settings.slots.get_mut("a").unwrap();
    let Filling::Training(of) = &mut slot.filling else { unreachable!() };
    let of = Arc::make_mut(of);
    (of.stall, of.restart.no_progress) = (Some(Duration::from_secs(STALL * 60)), 2);
    of.either = true;
    let mut service = Service { world: World::new(settings), ..Service::new() };
    change(&mut service.jobs[0].1);
    service.poll();
    service.steps.push(100);
    service.minutes(10);
    service
}

/// A cancel is answered, and then carried out: the job ends half a minute later.
pub fn cancel(service: &mut Service, action: &Action, id: &str) {
    let of = |(_, job): &&mut (Timestamp, Value)| job["name"].as_str().unwrap().ends_with(id);
    let (_, job) = service.jobs.iter_mut().find(of).unwrap();
    job["state"] = json!("JOB_STATE_CANCELLING");
    job["cancelled"] = json!(true);
    let operation = format!("projects/p/locations/r/customJobs/{id}");
    service.ask(action.answer(CallOutcome::Accepted(operation)));
    service.carry_out();
}

fn states(service: &Service) -> Vec<&str> {
    service.jobs.iter().map(|(_, job)| job["state"].as_str().unwrap_or_default()).collect()
}

const CANCELLED: &str = "JOB_STATE_CANCELLED";
const RUNNING: &str = "JOB_STATE_RUNNING";

#[test]
fn a_job_that_saves_nothing_is_cancelled_and_submitted_again_until_that_does_not_help() {
    let mut service = stalling();
    service.minutes(STALL - 30);
    assert_eq!(states(&service), [RUNNING]);
    let shown = view::document(&service.world.fleet, service.world.now);
    assert!(shown.tpus[0].warnings[0].contains("submitted again after 6h"), "{shown:?}");
    assert_eq!(shown.tpus[0].state.as_deref(), Some(RUNNING), "the service's own word");
    service.minutes(40);
    assert_eq!((states(&service), service.hold()), (vec![CANCELLED, RUNNING], None));
    assert_eq!(service.world.fleet.slots["a"].recovery, None);
    let (_, again) = &service.jobs[1];
    assert_eq!(again["labels"]["tpu-watchdog-lineage"], "1000");
    // The next one has its own time, and a checkpoint gives it more.
    service.minutes(STALL - 30);
    assert_eq!(service.jobs.len(), 2);
    service.steps.push(200);
    service.minutes(STALL - 30);
    assert_eq!(service.jobs.len(), 2);
    // Two submissions without a newer one are the last.
    service.minutes(2 * STALL + 60);
    assert_eq!(service.jobs.len(), 4);
    service.minutes(2 * STALL);
    assert_eq!((service.jobs.len(), service.hold()), (4, Some(HoldReason::NoProgress)));
    assert_eq!(service.live(), 1, "what stalls is left at work");
}

#[test]
fn s5_a_checkpoint_that_comes_late_and_a_location_that_is_not_listed_cancel_nothing() {
    let mut service = stalling();
    service.minutes(STALL - 12);
    service.steps.push(200);
    service.minutes(30);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], None));
    // Nor does one that saves below the steps of an older run in its folder.
    let mut service = stalling();
    for of in 1..8 {
        service.minutes(STALL / 2);
        service.below = format!("{of} steps");
    }
    service.minutes(STALL / 2);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], None));
    service.minutes(STALL);
    assert_eq!(service.jobs.len(), 2, "it stands, and is submitted again");
    // The study of a tuning job, which the name may mean as well, would begin once more.
    let mut service = stalling_as(|job| {
        let spec = job.as_object_mut().unwrap().remove("jobSpec").unwrap();
        job["trialJobSpec"] = spec;
        job["name"] =
            json!(format!("projects/77/locations/{REGION}/hyperparameterTuningJobs/1000"));
    });
    service.minutes(3 * STALL);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], None));
    // Without `stall` it is told alone.
    let mut service = stalling();
    service.ask(Input::Configured(Box::new(training())));
    service.minutes(3 * STALL);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], None));
    // A person's pause holds.
    let mut service = stalling();
    let kind = CommandKind::Pause { slot: Some("a".into()), until: None };
    let at = Timestamp::UNIX_EPOCH;
    service.ask(Input::Commands(vec![Command {
        id: "1".into(),
        at,
        who: "ada".into(),
        reason: None,
        kind,
    }]));
    service.minutes(2 * STALL);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], Some(HoldReason::Paused)));
}

#[test]
fn s5_files_that_no_rule_knows_are_no_sign_that_a_job_saves_nothing() {
    let mut service = stalling_as(|_| ());
    service.strange = Some(Some(after(service.world.now, Duration::from_secs(3600))));
    let record = service.world.fleet.slots.get_mut("a").unwrap();
    record.job.checkpoint = None;
    record.job.checkpoint_at = None;
    service.minutes(4 * STALL);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], None));
    let shown = view::document(&service.world.fleet, service.world.now);
    let told = shown.tpus[0].warnings.iter().any(|text| text.contains("in a layout of its own"));
    assert!(told, "{:?}", shown.tpus[0].warnings);
}

/// The checkpoints of a job can't be listed from the moment on when it stalls.
pub fn unlisted(w: &mut World) {
    let mut service = stalling();
    service.world.gates.clone_from(&w.gates);
    for _ in 0..STALL * 3 {
        service.half_a_minute();
        let fleet = &service.world.fleet;
        if resubmission::stalled(&fleet.slots["a"], &fleet.settings.slots["a"]).is_some() {
            break;
        }
    }
    // As after a start: this process has listed nothing yet.
    service.world.fleet.memory.get_mut("a").unwrap().surveyed_at = None;
    service.unlisted = true;
    for _ in 0..4 {
        service.world.wait(30);
        service.poll();
    }
    *w = service.world;
}

/// The cancel of a job that stalls, before it is answered.
fn cancelling() -> Service {
    let mut service = stalling();
    for _ in 0..STALL * 3 {
        service.world.wait(30);
        service.poll();
        if !service.world.actions.is_empty() {
            break;
        }
    }
    assert!(matches!(service.world.actions[..], [Action::Delete { .. }]));
    service.world.actions.clear();
    service
}

#[test]
fn a_lost_cancel_is_read_back_and_what_it_ended_is_no_persons() {
    for carried_out in [true, false] {
        let mut service = cancelling();
        let failure = Failure::new(FailureClass::Transient, "HTTP 503");
        service.called(CallOutcome::Unknown(failure));
        service.half_a_minute();
        assert_eq!(service.world.phase("a"), Some(Phase::Condemned));
        if carried_out {
            service.sets("JOB_STATE_CANCELLING", None);
            service.half_a_minute();
            assert_eq!(service.world.phase("a"), Some(Phase::Deleting));
            service.sets(CANCELLED, Some((1, "CANCELED")));
        }
        service.minutes(30);
        assert_eq!((states(&service), service.hold()), (vec![CANCELLED, RUNNING], None));
    }
}

#[test]
fn a_job_that_succeeds_while_it_is_cancelled_is_finished() {
    for answered in [true, false] {
        let mut service = cancelling();
        service.sets("JOB_STATE_SUCCEEDED", None);
        if answered {
            service.called(CallOutcome::Accepted("projects/p/locations/r/customJobs/1000".into()));
        } else {
            let failure = Failure::new(FailureClass::Transient, "HTTP 503");
            service.called(CallOutcome::NotSent(failure));
        }
        service.minutes(10);
        let condition = service.world.fleet.slots["a"].verdict.condition;
        assert_eq!((service.jobs.len(), condition), (1, Condition::Finished), "{answered}");
        assert_eq!(service.world.fleet.slots["a"].recovery, None);
    }
}

#[test]
fn a_job_that_the_service_restarts_has_its_whole_time_again() {
    let mut service = stalling();
    service.minutes(STALL - 60);
    service.sets("JOB_STATE_PENDING", None);
    service.minutes(STALL);
    service.sets(RUNNING, None);
    service.minutes(STALL - 30);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], None));
    service.minutes(40);
    assert_eq!(service.jobs.len(), 2);
}

#[test]
fn a_job_that_a_person_takes_back_to_an_earlier_step_has_its_whole_time_again() {
    let mut service = stalling();
    service.minutes(STALL - 60);
    service.steps = vec![50];
    service.minutes(STALL);
    assert_eq!(service.jobs.len(), 1, "{:?}", service.hold());
    let kind = CommandKind::Retry { slot: "a".into(), from: Some(50) };
    let (id, at, who) = ("1".to_owned(), Timestamp::UNIX_EPOCH, "ada".to_owned());
    service.ask(Input::Commands(vec![Command { id, at, who, reason: None, kind }]));
    service.minutes(STALL - 30);
    assert_eq!((states(&service), service.hold()), (vec![RUNNING], None));
}

#[test]
fn a_cancel_that_never_left_is_sent_again_and_counts_once_and_a_persons_is_none_of_ours() {
    for by_a_person in [false, true] {
        let mut service = cancelling();
        let slot = service.world.fleet.settings.slots.get_mut("a").unwrap();
        let Filling::Training(of) = &mut slot.filling else { unreachable!() };
        Arc::make_mut(of).restart.no_progress = 1;
        let failure = Failure::new(FailureClass::Transient, "no token");
        service.called(CallOutcome::NotSent(failure));
        if by_a_person {
            service.world.actions.clear();
            service.sets("JOB_STATE_CANCELLING", None);
            service.minutes(1);
            service.sets(CANCELLED, Some((1, "CANCELED")));
            service.minutes(30);
            assert_eq!((service.jobs.len(), service.hold()), (1, Some(HoldReason::Stopped)));
        } else {
            service.minutes(30);
            assert_eq!((states(&service), service.hold()), (vec![CANCELLED, RUNNING], None));
        }
    }
}

#[test]
fn a_job_that_fails_while_it_is_cancelled_goes_on_all_the_same() {
    let mut service = cancelling();
    service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
    service.called(CallOutcome::Accepted("projects/p/locations/r/customJobs/1000".into()));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (2, None));
}
