//! S24: a lost submission that shows late, when another one was sent in its place.

use super::training::{REGION, Service};
use super::*;
use crate::model::command::{Command, CommandKind};

/// A job that was submitted again runs, and another one of its lineage that this nonce has, created so many minutes
/// before it or after it.
fn twins(minutes: i64, nonce: Option<&str>) -> Service {
    let mut service = Service::new();
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    service.minutes(10);
    assert_eq!((service.live(), service.hold()), (1, None));
    let (_, mut twin) = service.jobs[1].clone();
    if let Some(nonce) = nonce {
        twin["labels"]["tpu-watchdog-nonce"] = json!(nonce);
    }
    service.make(REGION, twin.clone());
    let made: Timestamp = twin["createTime"].as_str().unwrap().parse().unwrap();
    let made = made + jiff::SignedDuration::from_mins(minutes);
    service.jobs[2].1["createTime"] = json!(made.to_string());
    service
}

fn state(service: &Service, index: usize) -> &str {
    service.jobs[index].1["state"].as_str().unwrap().trim_start_matches("JOB_STATE_")
}

fn followed(service: &Service) -> usize {
    service.world.fleet.ledger.strays.len()
}

#[test]
fn s24_of_two_jobs_of_a_lineage_the_newer_one_is_cancelled_whichever_shows_late() {
    for (minutes, goes_on, ends) in [(3, 1, 2), (-3, 2, 1)] {
        let mut service = twins(minutes, None);
        service.half_a_minute();
        assert_eq!((state(&service, ends), followed(&service)), ("CANCELLING", 1));
        service.minutes(3);
        assert_eq!((state(&service, goes_on), state(&service, ends)), ("RUNNING", "CANCELLED"));
        assert_eq!((service.hold(), followed(&service)), (None, 0), "{:?}", service.told);
        let record = &service.world.fleet.slots["a"];
        let id = record.incarnation.as_ref().map(|of| of.id.clone());
        assert_eq!(id, Some(format!("{}", 1000 + goes_on)));
        // The end of the other is not the lineage's.
        service.minutes(60);
        assert_eq!((service.jobs.len(), service.live(), service.hold()), (3, 1, None));
    }
}

#[test]
fn s17_a_twin_of_another_watchdog_is_told_and_left_alone() {
    let mut service = twins(3, Some("another"));
    service.minutes(10);
    assert_eq!((service.live(), service.hold()), (2, Some(HoldReason::Ambiguous)));
    assert_eq!(followed(&service), 0);
}

#[test]
fn s7_a_twin_of_a_paused_slot_waits() {
    let mut service = twins(3, None);
    let at = Timestamp::UNIX_EPOCH;
    let ask = |service: &mut Service, kind| {
        let (id, who) = ("1".to_owned(), "ada".to_owned());
        service.ask(Input::Commands(vec![Command { id, at, who, reason: None, kind }]));
    };
    ask(&mut service, CommandKind::Pause { slot: Some("a".into()), until: None });
    service.minutes(10);
    assert_eq!((service.live(), followed(&service)), (2, 1));
    ask(&mut service, CommandKind::Resume { slot: Some("a".into()), adopt: false });
    service.minutes(2);
    assert_eq!((service.live(), followed(&service)), (1, 0));
}
