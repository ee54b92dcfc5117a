//! S24: a lost submission that shows late, when another one was sent in its place.

use super::training::{REGION, Service};
use super::*;
use crate::model::command::{Command, CommandKind};

/// A job that was submitted again runs, and another one of its lineage with this label, created so many seconds
/// before it or after it.
fn twins(seconds: i64, label: Option<(&str, &str)>) -> Service {
    let mut service = Service::new();
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    service.minutes(10);
    assert_eq!((service.live(), service.hold()), (1, None));
    let (_, mut twin) = service.jobs[1].clone();
    if let Some((label, value)) = label {
        twin["labels"][label] = json!(value);
    }
    service.make(REGION, twin.clone());
    let made: Timestamp = twin["createTime"].as_str().unwrap().parse().unwrap();
    let made = made + jiff::SignedDuration::from_secs(seconds);
    service.jobs[2].1["createTime"] = json!(made.to_string());
    service
}

fn state(service: &Service, index: usize) -> &str {
    service.jobs[index].1["state"].as_str().unwrap().trim_start_matches("JOB_STATE_")
}

fn ask(service: &mut Service, kind: CommandKind) {
    let (id, at, who) = ("1".to_owned(), Timestamp::UNIX_EPOCH, "ada".to_owned());
    service.ask(Input::Commands(vec![Command { id, at, who, reason: None, kind }]));
}

fn followed(service: &Service) -> usize {
    service.world.fleet.ledger.strays.len()
}

#[test]
fn s24_of_two_jobs_of_a_lineage_the_newer_one_is_cancelled_whichever_shows_late() {
    for (seconds, goes_on, ends) in [(180, 1, 2), (-30, 2, 1)] {
        let mut service = twins(seconds, None);
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
        // That of the one that went on is.
        service.jobs[goes_on].1["state"] = json!("JOB_STATE_FAILED");
        service.jobs[goes_on].1["error"] = json!({"code": 0, "message": "STOCKOUT"});
        service.jobs[goes_on].1["endTime"] = json!(service.world.now.to_string());
        service.minutes(10);
        let end = (service.jobs.len(), service.live(), service.hold());
        assert_eq!(end, (4, 1, None), "{:?}", service.told);
    }
}

#[test]
fn s24_where_polls_are_seldom_a_late_twin_is_known_as_well() {
    // The second send waited for lists, which come every ten minutes.
    let mut service = twins(20 * 60, None);
    service.world.fleet.settings.poll.every = Duration::from_secs(600);
    service.minutes(4);
    assert_eq!((state(&service, 2), service.live(), service.hold()), ("CANCELLED", 1, None));
}

#[test]
fn s17_another_watchdogs_job_and_a_persons_copy_are_told_and_left_alone() {
    let other = Some(("tpu-watchdog-nonce", "another"));
    let of_another_attempt = Some(("tpu-watchdog-attempt", "7"));
    for (seconds, label) in [(180, other), (1800, None), (180, of_another_attempt)] {
        let mut service = twins(seconds, label);
        service.minutes(10);
        assert_eq!((service.live(), service.hold()), (2, Some(HoldReason::Ambiguous)));
        assert_eq!(followed(&service), 0);
    }
}

#[test]
fn s24_of_two_jobs_the_one_that_is_not_being_cancelled_goes_on() {
    // A person cancels the elder, while the slot is paused.
    let mut service = twins(180, None);
    ask(&mut service, CommandKind::Pause { slot: Some("a".into()), until: None });
    service.minutes(2);
    service.jobs[1].1["state"] = json!("JOB_STATE_CANCELLING");
    ask(&mut service, CommandKind::Resume { slot: Some("a".into()), adopt: false });
    service.minutes(2);
    service.jobs[1].1["state"] = json!("JOB_STATE_CANCELLED");
    service.minutes(30);
    assert_eq!((state(&service, 2), service.hold(), followed(&service)), ("RUNNING", None, 0));
    // The elder ends while the newer one is being cancelled by us.
    let mut service = twins(180, None);
    service.half_a_minute();
    assert_eq!(state(&service, 2), "CANCELLING");
    service.jobs[1].1["state"] = json!("JOB_STATE_FAILED");
    service.jobs[1].1["error"] = json!({"code": 0, "message": "STOCKOUT"});
    service.jobs[1].1["endTime"] = json!(service.world.now.to_string());
    service.minutes(20);
    assert_eq!((service.jobs.len(), service.live(), service.hold()), (4, 1, None));
}

#[test]
fn s7_a_twin_of_a_paused_slot_waits() {
    let mut service = twins(180, None);
    ask(&mut service, CommandKind::Pause { slot: Some("a".into()), until: None });
    service.minutes(10);
    assert_eq!((service.live(), followed(&service)), (2, 1));
    ask(&mut service, CommandKind::Resume { slot: Some("a".into()), adopt: false });
    service.minutes(2);
    assert_eq!((service.live(), followed(&service)), (1, 0));
}
