//! Managed training jobs and their people: what they submit, cancel and ask for meanwhile.

use super::training::{EXIT, REGION, Service, job, training, trains};
use super::*;
use crate::model::command::{Command, CommandKind};
use crate::model::time::elapsed;

fn command(kind: CommandKind) -> Input {
    let at = Timestamp::UNIX_EPOCH;
    Input::Commands(vec![Command { id: "1".into(), at, who: "ada".into(), reason: None, kind }])
}

fn retry() -> Input {
    command(CommandKind::Retry { slot: "a".into(), from: None })
}

#[test]
fn s24_a_submission_that_was_called_off_may_still_show_and_another_job_that_lives_is_told() {
    let mut service = Service::new();
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    for _ in 0..10 {
        service.world.wait(30);
        service.poll();
        if !service.world.actions.is_empty() {
            break;
        }
    }
    service.called(CallOutcome::Unknown(Failure::new(FailureClass::Transient, "HTTP 503")));
    service.ask(command(CommandKind::Forget { slot: "a".into(), purge: false }));
    service.ask(retry());
    let before = service.world.now;
    service.half_a_minute();
    for _ in 0..100 {
        if service.jobs.len() > 1 {
            break;
        }
        service.half_a_minute();
    }
    let waited = elapsed(before, service.world.now);
    assert!(waited >= Duration::from_secs(300), "settle has passed: {waited:?}");
    // The lost one shows after all, an hour late.
    service.minutes(2);
    assert_eq!((service.live(), service.hold()), (1, None));
    let (_, twin) = service.jobs[1].clone();
    service.make(
        REGION,
        json!({"displayName": "sft", "labels": twin["labels"], "jobSpec": twin["jobSpec"]}),
    );
    service.minutes(1);
    assert_eq!((service.live(), service.hold()), (2, Some(HoldReason::Ambiguous)));
}

#[test]
fn a_persons_own_job_of_that_name_is_what_is_submitted_again_later() {
    let mut service = Service::new();
    service.sets("JOB_STATE_FAILED", Some((3, &format!("{EXIT} 1."))));
    service.minutes(2);
    assert_eq!(service.hold(), Some(HoldReason::JobFailed));
    let mut mended = job("sft");
    mended["jobSpec"]["fixed"] = json!(true);
    service.make(REGION, mended);
    service.sets("JOB_STATE_PENDING", None);
    service.minutes(1);
    service
        .sets("JOB_STATE_FAILED", Some((8, "Resources are insufficient in region: us-central1.")));
    service.minutes(10);
    let (_, again) = service.jobs.last().unwrap();
    assert_eq!((service.jobs.len(), again["jobSpec"]["fixed"].as_bool()), (3, Some(true)));
    assert_eq!(again["labels"]["tpu-watchdog-lineage"], "1001");
}

#[test]
fn retry_submits_what_was_deleted_and_what_failed_before_it_ever_ran() {
    let mut service = Service::new();
    service.jobs.clear();
    service.minutes(5);
    assert_eq!(service.hold(), Some(HoldReason::Deleted));
    service.ask(retry());
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (1, None));
    // Its next submission ends before it is seen to run.
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    for _ in 0..20 {
        service.half_a_minute();
        if service.jobs.len() == 2 {
            service.sets("JOB_STATE_FAILED", Some((3, &format!("{EXIT} 1."))));
            break;
        }
    }
    service.minutes(5);
    assert_eq!(service.hold(), Some(HoldReason::JobFailed));
    service.ask(retry());
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (3, None));
}

#[test]
fn a_persons_cancel_that_ends_as_a_failure_and_a_cancel_without_words_are_waited_for() {
    let mut service = Service::new();
    service.sets("JOB_STATE_CANCELLING", None);
    service.minutes(1);
    service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (1, Some(HoldReason::Deleted)));
    let mut service = Service::new();
    service.sets("JOB_STATE_CANCELLED", None);
    service.minutes(2);
    assert_eq!(service.hold(), None, "its words may come");
    service.sets("JOB_STATE_CANCELLED", Some((4, "it ran for longer than its timeout")));
    service.minutes(2);
    assert_eq!(service.hold(), Some(HoldReason::TimeLimit));
}

#[test]
fn a_slot_that_means_another_job_by_now_starts_over() {
    let mut service = Service::new();
    let mut other = training();
    trains(other.slots.get_mut("a").unwrap(), "another");
    service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
    service.ask(Input::Configured(Box::new(other)));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (1, Some(HoldReason::NeverSeen)));
    // A TPU of that name is no job's.
    let plain = settings(&["a"]);
    service.ask(Input::Configured(Box::new(plain)));
    assert_eq!(service.world.fleet.slots["a"].zone, ZONE);
}
