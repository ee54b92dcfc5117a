//! Managed training jobs and TPUs in one fleet: neither weakens the guards of the other, and what nothing can be lost
//! by is not guarded as if it could.

use std::sync::Arc;

use super::training::{EXIT, REGION, Service, job, trains};
use super::*;
use crate::model::command::{Command, CommandKind};
use crate::model::filling::Filling;
use crate::model::fleet::{Breaker, Gust, Unfit};
use crate::model::training::Named;
use crate::model::traits::BudgetOf;

fn retry_all(names: &[String]) -> Input {
    let at = Timestamp::UNIX_EPOCH;
    let of = |name: &String| {
        let kind = CommandKind::Retry { slot: name.clone(), from: None };
        Command { id: name.clone(), at, who: "ada".into(), reason: None, kind }
    };
    Input::Commands(names.iter().map(of).collect())
}

/// So many jobs that run, each in a slot of its own.
fn jobs(count: usize) -> (Service, Vec<String>) {
    let names: Vec<String> = (0..count).map(|n| format!("job-{n}")).collect();
    let slots: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut settings = settings(&slots);
    for name in &names {
        trains(settings.slots.get_mut(name).unwrap(), name);
    }
    let mut service = Service { world: World::new(settings), jobs: vec![], ..Service::new() };
    names.iter().for_each(|name| service.make(REGION, job(name)));
    service.minutes(2);
    (service, names)
}

fn end_all(service: &mut Service, code: i64, message: &str) {
    for (_, job) in &mut service.jobs {
        job["state"] = json!("JOB_STATE_FAILED");
        job["endTime"] = json!(service.world.now.to_string());
        job["error"] = json!({"code": code, "message": message});
    }
}

#[test]
fn retry_submits_every_job_that_has_ended_and_uses_up_no_recreate_of_a_tpu() {
    let (mut service, names) = jobs(30);
    end_all(&mut service, 3, &format!("{EXIT} 1."));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.live()), (30, 0), "its own fault");
    service.ask(retry_all(&names));
    service.minutes(5);
    assert_eq!((service.jobs.len(), service.live()), (60, 30));
    assert!(service.world.fleet.ledger.judged.is_empty());
}

#[test]
fn retry_submits_a_job_although_another_one_found_no_capacity_there() {
    let (mut service, names) = jobs(1);
    end_all(&mut service, 3, &format!("{EXIT} 1."));
    service.minutes(10);
    let name =
        super::super::pool::name(&service.world.fleet.slots["job-0"], &Overlay::default(), REGION);
    let (now, probe_at) = (service.world.now, service.world.now);
    let short = Some(Short { since: now, last: now, refusals: 1, probe_at });
    service.world.fleet.ledger.pools.insert(name, Pool { short, ..Pool::default() });
    service.ask(retry_all(&names));
    service.minutes(5);
    assert_eq!(service.live(), 1, "{:?}", service.world.hold("job-0"));
}

/// Forty jobs and four TPUs, which are well.
fn forty_jobs_and_four_tpus() -> World {
    let names: Vec<String> = (0..40).map(|n| format!("job-{n}")).collect();
    let slots: Vec<&str> = names.iter().map(String::as_str).chain(TPUS).collect();
    let mut settings = settings(&slots);
    settings.max_unavailable = Share::Percent(25.0);
    for name in &names {
        trains(settings.slots.get_mut(name).unwrap(), name);
    }
    let mut world = World::new(settings);
    world.poll(&TPUS.map(|name| node(name, json!({"health": "HEALTHY"}))));
    world
}

const TPUS: [&str; 4] = ["a", "b", "c", "d"];

/// The first TPUs, so many, are sick for half an hour. Returns how many are deleted.
fn are_sick(world: &mut World, sick: usize) -> usize {
    let health = |name: &str| match TPUS[..sick].contains(&name) {
        true => timeout(),
        false => json!({"health": "HEALTHY"}),
    };
    let mut deleted = 0;
    for _ in 0..60 {
        world.wait(30);
        world.poll(&TPUS.map(|name| node(name, health(name))));
        for name in TPUS {
            deleted += usize::from(is_delete(&world.actions));
            world.actions.clear();
            if world.asks(name) {
                world.get(name, Some(node(name, health(name))));
                deleted += usize::from(is_delete(&world.actions));
                world.actions.clear();
            }
        }
    }
    deleted
}

#[test]
fn s6_s8_training_jobs_make_no_room_for_judged_tpus() {
    let mut world = forty_jobs_and_four_tpus();
    let deleted = are_sick(&mut world, 4);
    assert!(deleted <= 1, "a quarter of four TPUs is one: {deleted}");
    assert!(world.fleet.ledger.breaker.is_some(), "all four TPUs look sick at once");
}

#[test]
fn s8_jobs_that_stop_saving_all_at_once_hold_no_tpu_and_hide_no_storm_of_tpus() {
    let mut world = forty_jobs_and_four_tpus();
    let opened = |of| Breaker { opened_at: Timestamp::UNIX_EPOCH, why: "a storm".into(), of };
    world.fleet.ledger.breaker = Some(opened(BudgetOf::Jobs));
    assert_eq!(are_sick(&mut world, 1), 1, "{:?}", world.hold("a"));
    let mut world = forty_jobs_and_four_tpus();
    world.fleet.ledger.breaker = Some(opened(BudgetOf::Jobs));
    are_sick(&mut world, 4);
    assert_eq!(world.fleet.ledger.breaker.map(|breaker| breaker.of), Some(BudgetOf::Tpus));
    // That of TPUs holds one that a breaker of jobs would not.
    let mut world = forty_jobs_and_four_tpus();
    world.fleet.ledger.breaker = Some(opened(BudgetOf::Tpus));
    assert_eq!(are_sick(&mut world, 1), 0);
    assert!(opened(BudgetOf::Tpus).holds(BudgetOf::Jobs));
}

/// So many jobs that run, save nothing for an hour, and would be cancelled then.
fn stalled(count: usize, breaker: Option<BudgetOf>) -> Service {
    let (mut service, names) = jobs(count);
    let mut settings = service.world.fleet.settings.clone();
    for name in &names {
        let slot = settings.slots.get_mut(name).unwrap();
        let Filling::Training(of) = &mut slot.filling else { unreachable!() };
        Arc::make_mut(of).stall = Some(Duration::from_secs(3600));
    }
    service.ask(Input::Configured(Box::new(settings)));
    service.steps.push(100);
    service.minutes(10);
    service.world.fleet.ledger.breaker =
        breaker.map(|of| Breaker { opened_at: service.world.now, why: "a storm".into(), of });
    service.minutes(90);
    service
}

fn cancelled(service: &Service) -> usize {
    service.jobs.iter().filter(|(_, job)| job.get("cancelled").is_some()).count()
}

#[test]
fn s8_jobs_that_stop_saving_all_at_once_open_a_breaker_of_their_own() {
    let service = stalled(1, None);
    assert!(cancelled(&service) > 0, "{:?}", service.world.hold("job-0"));
    for of in [BudgetOf::Tpus, BudgetOf::Jobs] {
        let service = stalled(1, Some(of));
        assert_eq!(service.world.hold("job-0"), Some(HoldReason::Breaker), "{of:?}");
        assert_eq!(cancelled(&service), 0);
    }
    let service = stalled(6, None);
    let breaker = service.world.fleet.ledger.breaker.as_ref();
    assert_eq!(breaker.map(|breaker| breaker.of), Some(BudgetOf::Jobs));
    assert!(breaker.is_some_and(|of| of.why.contains("training jobs stopped saving")));
}

#[test]
fn s8_a_reset_of_the_jobs_breaker_forgives_no_tpu() {
    let mut world = forty_jobs_and_four_tpus();
    let gust = |slot: &str| Gust { at: world.now, slot: slot.into(), forgiven: false };
    let storm = vec![gust("a"), gust("job-1")];
    for (of, forgiven) in [(BudgetOf::Jobs, [false, true]), (BudgetOf::Tpus, [true, true])] {
        world.fleet.ledger.storm = storm.clone();
        let unfit = vec![Unfit { at: world.now, slot: "a".into() }];
        world.fleet.ledger.unfit = [("pool".to_owned(), unfit)].into();
        world.fleet.ledger.breaker = Some(Breaker { opened_at: world.now, why: "".into(), of });
        let (id, at, who) = ("1".to_owned(), world.now, "ada".to_owned());
        let reset = Command { id, at, who, reason: None, kind: CommandKind::BreakerReset };
        world.input(Input::Commands(vec![reset]));
        assert_eq!(world.fleet.ledger.breaker, None);
        let shown: Vec<bool> = world.fleet.ledger.storm.iter().map(|of| of.forgiven).collect();
        assert_eq!(shown, forgiven, "{of:?}");
        // Replacements that failed are the TPUs' trouble (S14).
        assert_eq!(world.fleet.ledger.unfit.is_empty(), of == BudgetOf::Tpus);
    }
}

#[test]
fn a_job_that_is_known_is_not_read_again_and_again_while_it_waits_or_is_held() {
    let mut service = Service::new();
    service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
    while service.jobs.len() < 2 {
        service.half_a_minute();
    }
    service.sets("JOB_STATE_QUEUED", None);
    service.minutes(5);
    assert_eq!(service.world.phase("a"), Some(Phase::Creating));
    // It ends before it ever ran.
    service.sets("JOB_STATE_FAILED", Some((3, &format!("{EXIT} 1."))));
    service.minutes(10);
    assert_eq!(service.hold(), Some(HoldReason::JobFailed));
    let before = service.gets;
    service.minutes(30);
    assert_eq!(service.gets, before);
}

#[test]
fn steps_of_another_location_do_not_keep_submissions_from_being_given_back() {
    let mut service = Service::new();
    service.steps.push(50_000);
    service.minutes(10);
    let fails = |service: &mut Service| {
        service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
        service.minutes(10);
    };
    fails(&mut service);
    // The place that was meant, with lower steps.
    let mut settings = service.world.fleet.settings.clone();
    let job = settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.checkpoint.as_mut().unwrap().uri += "/meant";
    service.ask(Input::Configured(Box::new(settings)));
    service.steps = vec![];
    service.minutes(10);
    for step in 1..=5 {
        service.steps.push(step * 1_000);
        service.minutes(10);
        fails(&mut service);
    }
    assert_eq!((service.jobs.len(), service.hold()), (7, None));
}

#[test]
fn a_job_that_the_config_names_by_id_is_that_one_and_not_the_one_found_by_its_name() {
    let mut service = Service::new();
    let mut settings = service.world.fleet.settings.clone();
    service.make(REGION, job("sft"));
    service.minutes(3);
    assert_eq!(service.hold(), Some(HoldReason::Ambiguous));
    let Filling::Training(of) = &mut settings.slots.get_mut("a").unwrap().filling else { panic!() };
    Arc::make_mut(of).named = Named::Id("1001".into());
    service.ask(Input::Configured(Box::new(settings)));
    service.minutes(3);
    let shown = service.world.fleet.slots["a"].incarnation.as_ref().map(|of| of.id.as_str());
    assert_eq!((shown, service.hold()), (Some("1001"), None));
    // The end of the other one is its people's.
    service.jobs[0].1["state"] = json!("JOB_STATE_FAILED");
    service.jobs[0].1["error"] = json!({"code": 13, "message": "Internal error occurred"});
    service.minutes(10);
    assert_eq!(service.jobs.len(), 2);
}

#[test]
fn a_job_that_waits_is_told_after_an_hour_whatever_stage_of_waiting_it_is_in() {
    let mut service = Service::new();
    service.sets("JOB_STATE_QUEUED", None);
    service.minutes(50);
    service.sets("JOB_STATE_PENDING", None);
    service.minutes(5);
    let reason = |service: &Service| {
        let decision = service.world.fleet.slots["a"].decision.as_ref();
        decision.map_or(String::new(), |decision| decision.reason.clone())
    };
    assert!(!reason(&service).contains("may be short"), "{}", reason(&service));
    service.minutes(10);
    assert!(reason(&service).contains("may be short"), "{}", reason(&service));
    assert_eq!(service.hold(), None, "it waits, and nothing is to be done");
}

#[test]
fn stalled_jobs_use_up_no_hourly_recreate_of_a_tpu() {
    let mut service = super::stalls::stalling();
    service.minutes(6 * 60 + 10);
    assert_eq!(service.jobs.len(), 2, "it was cancelled, and submitted again");
    assert!(service.world.fleet.ledger.judged.is_empty());
}

#[test]
fn a_job_that_failed_by_its_own_fault_is_told_and_counted_once() {
    let mut service = Service::new();
    let told = |service: &Service| {
        service.events.iter().filter(|what| matches!(what, What::JobFailed { .. })).count()
    };
    service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
    while service.jobs.len() < 2 {
        service.half_a_minute();
    }
    service.minutes(5);
    assert_eq!(told(&service), 0, "that end was Google's");
    service.sets("JOB_STATE_FAILED", Some((3, &format!("{EXIT} 1."))));
    service.minutes(30);
    assert_eq!((service.hold(), told(&service)), (Some(HoldReason::JobFailed), 1));
}
