//! Training jobs whose end, or whose next submission, is for their people to see to.

use super::resubmission::{of_kind, with_an_output_directory};
use super::training::{REGION, Service, job};
use super::*;
use crate::model::time::elapsed;
use crate::model::training::{JobKind, NO_REGION};

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
fn a_job_is_not_protected_where_its_next_submission_is_impossible_or_waits_for_its_people() {
    let shown = |service: &Service| {
        let world = &service.world;
        super::super::view::document(&world.fleet, world.now).tpus[0].clone()
    };
    let mut service = Service::new();
    service.minutes(2);
    assert!(shown(&service).protected, "{:?}", shown(&service).unprotected_reason);
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
