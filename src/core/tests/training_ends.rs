//! Training jobs: time limits, queues, regions without capacity, lists that fail, and jobs that are found by labels.

use std::collections::BTreeMap;

use super::resubmission::{of_kind, retry, with_an_output_directory};
use super::training::{EXIT, OTHER, REGION, Service, job};
use super::*;
use crate::model::command::CommandKind;
use crate::model::submission::JobListing;
use crate::model::time::elapsed;
use crate::model::training::{JobKind, NO_REGION, Named};

#[test]
fn a_time_limit_that_shows_as_a_cancel_first_is_no_persons() {
    // Vertex AI tells why only when the job has ended.
    for (resubmits, code, jobs, hold) in [
        (true, 4, 2, None),
        (false, 4, 1, Some(HoldReason::TimeLimit)),
        (true, 1, 1, Some(HoldReason::Stopped)),
    ] {
        let mut service = of_kind(JobKind::Custom, |of| of.outlives_timeout = resubmits);
        service.make(REGION, job("sft"));
        service.minutes(2);
        service.sets("JOB_STATE_CANCELLING", None);
        service.minutes(1);
        service.sets("JOB_STATE_CANCELLED", Some((code, "it ran for longer than its timeout")));
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (jobs, hold), "{resubmits} {code}");
    }
}

#[test]
fn a_time_limit_whose_words_come_late_is_no_persons_either() {
    let mut service = of_kind(JobKind::Custom, |of| of.outlives_timeout = true);
    service.make(REGION, job("sft"));
    service.minutes(2);
    for state in ["JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED"] {
        service.sets(state, None);
        service.minutes(1);
    }
    assert!(service.world.fleet.slots["a"].deleted.is_some());
    service.sets("JOB_STATE_CANCELLED", Some((4, "it ran for longer than its timeout")));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (2, None));
}

#[test]
fn a_job_is_not_protected_where_its_next_submission_is_impossible_or_waits_for_its_people() {
    let shown = |service: &Service| {
        let world = &service.world;
        super::super::view::document(&world.fleet, world.now).tpus[0].clone()
    };
    let mut service = Service::new();
    service.minutes(2);
    assert!(shown(&service).protected, "{:?}", shown(&service).unprotected_reason);
    service.world.fleet.slots.get_mut("a").unwrap().resubmitted.fruitless = 2;
    assert_eq!((shown(&service).attempts.used, shown(&service).attempts.max), (2, 9));
    // A key is of one region, and the config names two.
    service.jobs[0].1["encryptionSpec"] = json!({"kmsKeyName": "k"});
    service.minutes(2);
    let why = shown(&service).unprotected_reason.unwrap_or_default();
    assert!(!shown(&service).protected && why.contains("encryptionSpec.kmsKeyName"), "{why}");
    let mut service = Service::new();
    service.minutes(2);
    service.sets("JOB_STATE_CANCELLED", Some((1, "CANCELED")));
    service.minutes(2);
    assert!(!shown(&service).protected);
}

#[test]
fn a_region_without_capacity_is_asked_ever_more_seldom() {
    let mut service = of_kind(JobKind::Legacy, |_| ());
    service.make(NO_REGION, json!({"jobId": "census_2024", "trainingInput": {}}));
    service.minutes(2);
    for _ in 0..6 * 60 {
        service.sets(
            "JOB_STATE_FAILED",
            Some((0, "Resources are insufficient in region: us-central1.")),
        );
        service.half_a_minute();
    }
    let times: Vec<Timestamp> = service.jobs.iter().map(|(at, _)| *at).collect();
    let waits: Vec<Duration> = times.windows(2).map(|pair| elapsed(pair[0], pair[1])).collect();
    let longest = Duration::from_secs(20 * 60);
    assert!(waits.len() > 5 && waits.last() >= Some(&longest), "{waits:?}");
}

#[test]
fn time_in_a_queue_is_counted_apart_from_time_that_is_lost() {
    let mut service = Service::new();
    service.sets("JOB_STATE_QUEUED", None);
    service.minutes(60);
    service.sets("JOB_STATE_RUNNING", None);
    service.minutes(1);
    let queued = |service: &Service| -> f64 {
        let waited = |what: &What| match what {
            What::Queued { seconds } => Some(*seconds),
            _ => None,
        };
        service.events.iter().filter_map(waited).sum()
    };
    assert!((3500.0..3700.0).contains(&queued(&service)), "{}", queued(&service));
    // Its next submission waits for an hour as well.
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    for _ in 0..20 {
        service.half_a_minute();
        if service.jobs.len() == 2 {
            break;
        }
    }
    service.sets("JOB_STATE_QUEUED", None);
    service.minutes(60);
    service.sets("JOB_STATE_RUNNING", None);
    service.minutes(30);
    let (down, waited) = service
        .events
        .iter()
        .find_map(|what| match what {
            What::Recovered { down_seconds, queued_seconds, .. } => {
                Some((*down_seconds, *queued_seconds))
            }
            _ => None,
        })
        .unwrap();
    assert!((3500.0..3700.0).contains(&waited) && down > waited, "{waited} of {down}");
}

#[test]
fn a_job_that_never_saved_where_the_service_tells_it_to_is_told_and_left_at_work() {
    let mut service = with_an_output_directory();
    service.steps.clear();
    service.minutes(5 * 60);
    let told = service.told.iter().find(|text| text.contains("has had no new complete checkpoint"));
    assert!(told.is_some_and(|text| text.contains("name that as its checkpoint")), "{told:?}");
    assert_eq!((service.jobs.len(), service.live()), (1, 1));
}

#[test]
fn a_region_whose_list_fails_is_never_a_job_that_is_gone() {
    let mut service = Service::new();
    service.minutes(2);
    for _ in 0..60 {
        service.world.wait(30);
        let failed = Failure::new(FailureClass::Garbage, "the second page can't be read");
        let listing = |region: &str, result| JobListing { region: region.to_owned(), result };
        let jobs = vec![listing(REGION, Err(failed)), listing(OTHER, Ok(vec![]))];
        let began = service.world.now;
        service.ask(Input::Polled(Box::new(Poll { began, listings: vec![], jobs })));
        assert_eq!(service.hold(), Some(HoldReason::Unclear));
        assert!(service.world.actions.is_empty() && service.world.phase("a").is_none());
    }
    service.minutes(2);
    assert_eq!((service.hold(), service.live()), (None, 1));
}

#[test]
fn a_job_is_found_by_its_labels_and_goes_on_by_its_lineage() {
    let labels = BTreeMap::from([("team".to_owned(), "llm".to_owned())]);
    let mut service = of_kind(JobKind::Custom, |of| of.named = Named::Labels(labels));
    let mut other = job("sft");
    other["labels"] = json!({"team": "vision"});
    service.make(REGION, other);
    let mut mine = job("another name");
    mine["labels"] = json!({"team": "llm", "more": "x"});
    service.make(REGION, mine);
    service.minutes(2);
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    service.minutes(10);
    let (_, again) = service.jobs.last().unwrap();
    assert_eq!((service.jobs.len(), service.hold()), (3, None));
    assert_eq!(again["displayName"], "another name");
    assert_eq!((&again["labels"]["team"], &again["labels"]["more"]), (&json!("llm"), &json!("x")));
}

/// The words for an exit code.
type Exit = fn(i64) -> String;

/// A job of each service, and how its end names an exit code.
fn of_each_service() -> [(Service, Exit); 2] {
    let vertex = Service::new();
    let mut legacy = of_kind(JobKind::Legacy, |_| ());
    legacy.make(NO_REGION, json!({"jobId": "census_2024", "trainingInput": {}}));
    legacy.minutes(2);
    let exit = |code| format!("The replica master 0 exited with a non-zero status of {code}.");
    [(vertex, |code| format!("{EXIT} {code}.")), (legacy, exit)]
}

#[test]
fn an_exit_that_may_pass_is_submitted_again_once() {
    for code in [6, 11, 134, 139] {
        for (mut service, says) in of_each_service() {
            service.sets("JOB_STATE_FAILED", Some((3, &says(code))));
            service.minutes(10);
            assert_eq!((service.jobs.len(), service.hold()), (2, None), "{code}");
            service.sets("JOB_STATE_FAILED", Some((3, &says(code))));
            service.minutes(10);
            let held = (2, Some(HoldReason::Attempts));
            assert_eq!((service.jobs.len(), service.hold()), held, "{code}");
            let why = service.world.fleet.slots["a"].decision.clone().unwrap().reason;
            assert!(why.contains("restart.transient = 1"), "{why}");
        }
    }
}

#[test]
fn an_error_that_never_comes_is_waited_for_five_minutes() {
    for (time, (mut service, _)) in ["endTime", "updateTime"]
        .into_iter()
        .flat_map(|time| of_each_service().map(move |of| (time, of)))
    {
        service.sets("JOB_STATE_FAILED", None);
        let (_, job) = service.jobs.last_mut().unwrap();
        job[time] = job.as_object_mut().unwrap().remove("endTime").unwrap();
        for _ in 0..9 {
            service.half_a_minute();
            let condition = service.world.fleet.slots["a"].verdict.condition;
            assert_eq!((condition, service.jobs.len()), (Condition::Going, 1));
        }
        service.minutes(3);
        assert_eq!((service.jobs.len(), service.hold()), (2, None));
        assert!(service.told.iter().any(|text| text.contains("the API gives no reason")));
    }
}

#[test]
fn an_end_without_error_and_time_is_waited_for_until_an_operator_says_retry() {
    for (mut service, _) in of_each_service() {
        service.sets("JOB_STATE_FAILED", None);
        let (_, job) = service.jobs.last_mut().unwrap();
        job.as_object_mut().unwrap().remove("endTime");
        service.minutes(60);
        let verdict = service.world.fleet.slots["a"].verdict.clone();
        assert_eq!((verdict.condition, service.jobs.len()), (Condition::Going, 1));
        assert!(verdict.evidence.contains("tells no time of its end"), "{verdict:?}");
        service.world.command(CommandKind::Retry { slot: "a".into(), from: None });
        service.minutes(5);
        assert_eq!((service.jobs.len(), service.hold()), (2, None));
    }
}

#[test]
fn retry_submits_what_was_deleted_before_it_ran_or_was_ever_listed() {
    for listed in [true, false] {
        let mut service = Service::new();
        service.sets(
            "JOB_STATE_FAILED",
            Some((8, "Resources are insufficient in region: us-central1.")),
        );
        while service.jobs.len() < 2 {
            service.half_a_minute();
        }
        service.sets("JOB_STATE_QUEUED", None);
        if listed {
            service.minutes(2);
            assert_eq!(service.world.phase("a"), Some(Phase::Creating));
        }
        service.jobs.pop();
        service.minutes(90);
        let expected = if listed { HoldReason::Deleted } else { HoldReason::CreateUnresolved };
        assert_eq!((service.jobs.len(), service.hold()), (1, Some(expected)), "{listed}");
        service.ask(retry());
        assert!(service.told.iter().any(|text| text.contains("is not waited for")), "{listed}");
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (2, None), "{listed}");
    }
}

#[test]
fn a_create_that_a_quota_refuses_is_asked_for_again_after_an_hour() {
    for (mut service, _) in of_each_service() {
        service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
        while service.world.actions.is_empty() {
            service.world.wait(30);
            service.poll();
        }
        let words = "The following quota metrics exceed quota limits: x";
        service.called(CallOutcome::Refused(Failure::new(FailureClass::Quota, words)));
        service.minutes(55);
        assert_eq!((service.jobs.len(), service.hold()), (1, Some(HoldReason::Quota)));
        let told = service.world.fleet.slots["a"].decision.clone().unwrap();
        assert!(told.reason.contains(words) && told.until.is_some(), "{told:?}");
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (2, None));
    }
}

#[test]
fn a_submission_that_the_api_refuses_for_its_body_is_held_with_its_words() {
    for (mut service, _) in of_each_service() {
        service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
        let words = "Machine type \"a2-highgpu-1g\" is not allowed";
        // Each region of the list has a say.
        let held = (0..100).any(|_| {
            if !service.world.actions.is_empty() {
                let refused = Failure::new(FailureClass::BadRequest, words);
                service.called(CallOutcome::Refused(refused));
            }
            service.world.wait(5);
            service.poll();
            service.hold() == Some(HoldReason::CannotCreate)
        });
        let told = service.world.fleet.slots["a"].decision.clone().unwrap();
        assert!(held && told.reason.contains(words) && told.until.is_some(), "{told:?}");
        assert_eq!(service.jobs.len(), 1);
    }
}

#[test]
fn a_job_that_expires_is_held_or_submitted_again_as_the_config_says() {
    for (resubmits, jobs, hold) in [(true, 2, None), (false, 1, Some(HoldReason::TimeLimit))] {
        let mut service = of_kind(JobKind::Custom, |of| of.outlives_timeout = resubmits);
        service.make(REGION, job("sft"));
        service.minutes(2);
        service
            .sets("JOB_STATE_EXPIRED", Some((4, "it waited for longer than its maxWaitDuration")));
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (jobs, hold), "{resubmits}");
    }
}

#[test]
fn s13_spot_capacity_that_is_taken_back_for_ever_uses_up_preemptions() {
    let mut service = Service::new();
    service.world.fleet.settings.slots.get_mut("a").unwrap().policy.attempts.preemptions = 3;
    for count in 1..=3 {
        service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (1 + count, None));
    }
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    service.minutes(60);
    assert_eq!((service.jobs.len(), service.hold()), (4, Some(HoldReason::Preemptions)));
}

#[test]
fn a_job_whose_checkpoints_are_nowhere_is_submitted_again_once() {
    let mut service = Service::new();
    service.world.fleet.settings.slots.get_mut("a").unwrap().job = None;
    for expected in [(2, None), (2, Some(HoldReason::NoProgress))] {
        service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), expected);
    }
}
