//! Managed training jobs and their people: what they submit, cancel and ask for meanwhile.

use super::runs::LOCATION;
use super::training::{EXIT, REGION, Service, job, training, trains};
use super::*;
use crate::model::checkpoint::{CheckpointSurvey, NotComplete};
use crate::model::command::{Command, CommandKind};
use crate::model::filling::Filling;
use crate::model::time::elapsed;
use crate::model::training::{JobKind, NO_REGION, Named, Training};

fn command(kind: CommandKind) -> Input {
    let at = Timestamp::UNIX_EPOCH;
    Input::Commands(vec![Command { id: "1".into(), at, who: "ada".into(), reason: None, kind }])
}

pub fn retry() -> Input {
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
    service.half_a_minute();
    assert_eq!((service.live(), service.hold()), (2, Some(HoldReason::Ambiguous)));
    // The newer one is cancelled within a poll, and the other goes on.
    service.minutes(2);
    assert_eq!((service.live(), service.hold()), (1, None));
    assert_eq!(service.jobs[2].1["state"], "JOB_STATE_CANCELLED");
}

#[test]
fn s13_spot_capacity_that_is_taken_back_says_nothing_of_the_job() {
    // No checkpoint between them, and more often than `restart.no_progress`.
    let mut service = Service::new();
    for count in 1..=12 {
        service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (1 + count, None));
    }
    assert_eq!(service.world.fleet.slots["a"].resubmitted.fruitless, 0);
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
fn a_job_whose_error_is_awaited_is_going_in_each_poll() {
    let mut service = Service::new();
    service.sets("JOB_STATE_FAILED", None);
    service.half_a_minute();
    service.world.events.clear();
    for _ in 0..4 {
        service.half_a_minute();
        assert_eq!(service.world.condition("a"), Condition::Going);
    }
    let turns = |what: &&What| matches!(what, What::Condition { .. });
    assert_eq!(service.world.events.iter().find(turns), None);
    service.sets("JOB_STATE_FAILED", Some((3, &format!("{EXIT} 1."))));
    service.half_a_minute();
    assert_eq!(service.hold(), Some(HoldReason::JobFailed));
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

/// A job that runs on this machine, with further ones for a lack of memory.
fn on_machines(machine: &str, next: &[&str]) -> Service {
    let mut settings = training();
    let slot = settings.slots.get_mut("a").unwrap();
    let Filling::Training(of) = &mut slot.filling else { unreachable!() };
    Arc::make_mut(of).next_machine = next.iter().map(|machine| (*machine).to_owned()).collect();
    let mut service = Service { world: World::new(settings), ..Service::new() };
    service.jobs.clear();
    let pool =
        |machine: &str| json!({"machineSpec": {"machineType": machine}, "replicaCount": "1"});
    let mut of = job("sft");
    of["jobSpec"]["workerPoolSpecs"] = json!([pool(machine), pool(machine), pool("ps")]);
    service.make(REGION, of);
    service.poll();
    service
}

#[test]
fn a_job_that_runs_out_of_memory_goes_on_with_the_next_machine_and_then_is_told() {
    let mut service = on_machines("m1", &["m2", "m3"]);
    let machines = |service: &Service| {
        let pools = service.jobs.last().unwrap().1["jobSpec"]["workerPoolSpecs"].clone();
        let kind = |pool: &Value| pool["machineSpec"]["machineType"].as_str().unwrap().to_owned();
        pools.as_array().unwrap().iter().map(kind).collect::<Vec<_>>().join(" ")
    };
    for (count, expected) in [(2, "m2 m2 ps"), (3, "m3 m3 ps")] {
        let words = "The replica workerpool0-0 ran out of memory and exited with 137";
        service.sets("JOB_STATE_FAILED", Some((3, words)));
        service.minutes(10);
        assert_eq!((service.jobs.len(), machines(&service)), (count, expected.to_owned()));
        assert_eq!(service.hold(), None);
    }
    // Another end keeps the machine that it has come to.
    service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
    service.minutes(10);
    assert_eq!((service.jobs.len(), machines(&service)), (4, "m3 m3 ps".to_owned()));
    let words = "The replica workerpool0-0 ran out-of-memory and exited with 9(SIGKILL)";
    service.sets("JOB_STATE_FAILED", Some((3, words)));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (4, Some(HoldReason::JobFailed)));
    let evidence = &service.world.fleet.slots["a"].verdict.evidence;
    assert!(evidence.contains("it ran out of memory on m3"), "{evidence}");
}

/// A job whose only location is the one that the service gives it.
pub fn with_an_output_directory() -> Service {
    let mut service = on_machines("m1", &[]);
    let slot = service.world.fleet.settings.slots.get_mut("a").unwrap();
    slot.job = None;
    let (_, of) = &mut service.jobs[0];
    of["jobSpec"]["baseOutputDirectory"] = json!({"outputUriPrefix": format!("{LOCATION}/")});
    service
}

#[test]
fn the_folder_that_the_service_gives_a_job_is_where_its_checkpoints_are_looked_for() {
    let mut service = with_an_output_directory();
    service.minutes(10);
    service.steps.push(100);
    service.minutes(10);
    let shown = view::document(&service.world.fleet, service.world.now);
    let of = shown.tpus[0].job.as_ref().unwrap();
    assert_eq!(
        (of.checkpoint_step, of.location.as_deref()),
        (Some(100), Some("gs://b/c/checkpoints"))
    );
    // Hours without a newer one are told, once, and shown.
    service.minutes(5 * 60);
    let told = service.told.iter().filter(|text| text.contains("no new complete")).count();
    assert_eq!((told, service.jobs.len(), service.hold()), (1, 1, None));
    // Nor does the next scheduled run tell it again.
    let slots = std::mem::take(&mut service.world.fleet.slots);
    let (settings, ledger) =
        (service.world.fleet.settings.clone(), service.world.fleet.ledger.clone());
    service.world.fleet = Fleet::new(settings.clone(), slots, ledger);
    service.ask(Input::Configured(Box::new(settings)));
    service.minutes(30);
    let told = service.told.iter().filter(|text| text.contains("no new complete")).count();
    assert_eq!(told, 1);
    let shown = view::document(&service.world.fleet, service.world.now);
    assert!(shown.tpus[0].warnings[0].contains("no new complete checkpoint since"), "{shown:?}");
    service.steps.push(200);
    service.minutes(10);
    let shown = view::document(&service.world.fleet, service.world.now);
    assert_eq!(shown.tpus[0].warnings, Vec::<String>::new());
}

#[test]
fn a_location_that_no_config_names_holds_nothing() {
    let mut service = with_an_output_directory();
    service.minutes(5);
    let other = NotComplete { names: vec!["model.pt".into()], oldest: None };
    let survey = CheckpointSurvey { other: Some(other), ..CheckpointSurvey::default() };
    let began = service.world.now;
    service.ask(Input::Surveyed {
        slot: "a".into(),
        began,
        location: format!("{LOCATION}/checkpoints"),
        result: Ok(survey),
    });
    assert_eq!(service.world.fleet.slots["a"].job.trouble, None);
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (2, None));
}

/// The slot is a job of this kind, of its display name or id.
pub fn of_kind(kind: JobKind, change: impl FnOnce(&mut Training)) -> Service {
    let mut settings = training();
    let slot = settings.slots.get_mut("a").unwrap();
    let Filling::Training(of) = &mut slot.filling else { unreachable!() };
    let of = Arc::make_mut(of);
    of.kind = kind;
    if kind == JobKind::Legacy {
        of.named = Named::Id("census_2024".into());
        slot.zones = vec![NO_REGION.to_owned()];
    }
    change(of);
    Service { world: World::new(settings), jobs: vec![], ..Service::new() }
}

fn study() -> Value {
    let trials = json!([{"state": "SUCCEEDED"}, {"state": "ACTIVE"}, {"state": "INFEASIBLE"}]);
    let (mut study, spec) = (job("sft"), json!({"workerPoolSpecs": []}));
    study.as_object_mut().unwrap().remove("jobSpec");
    study["trialJobSpec"] = spec;
    (study["trials"], study["maxTrialCount"]) = (trials, json!("8"));
    study
}

#[test]
fn a_study_is_shown_with_its_trials_and_starts_over_only_where_a_person_says_so() {
    let (tuning, either) = ((JobKind::Tuning, false), (JobKind::Custom, true));
    for ((kind, either), consents) in [(tuning, false), (tuning, true), (either, false)] {
        let mut service = of_kind(kind, |of| (of.either, of.restart_study) = (either, consents));
        service.make(REGION, study());
        service.minutes(1);
        let evidence = service.world.fleet.slots["a"].verdict.evidence.clone();
        let shown = "tuning job 1000 is JOB_STATE_RUNNING (1 of 8 trials done, 1 infeasible)";
        assert_eq!(evidence, shown);
        let world = &service.world;
        assert_eq!(view::document(&world.fleet, world.now).tpus[0].protected, consents);
        service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
        service.minutes(10);
        if !consents {
            assert_eq!((service.jobs.len(), service.hold()), (1, Some(HoldReason::JobFailed)));
            let why = service.world.fleet.slots["a"].verdict.evidence.clone();
            assert!(why.contains("begins its study with the first trial"), "{why}");
            service.ask(retry());
            service.minutes(10);
        }
        let (_, again) = service.jobs.last().unwrap();
        assert_eq!((service.jobs.len(), service.hold()), (2, None));
        assert_eq!((&again["trialJobSpec"], again.get("trials")), (&study()["trialJobSpec"], None));
        assert_eq!(again["labels"]["tpu-watchdog-lineage"], "1000");
    }
}

#[test]
fn a_legacy_job_goes_on_under_ids_of_its_own_and_its_study_where_it_was() {
    // A job may be called as its slot is.
    for first in ["census_2024", "a"] {
        goes_on_as_legacy(first);
    }
}

fn goes_on_as_legacy(first: &str) {
    let mut service = of_kind(JobKind::Legacy, |of| {
        of.named = Named::Id(first.into());
        of.next_machine = vec!["large".into()];
    });
    let input = json!({"masterType": "small", "workerType": "other", "jobDir": "gs://b/c", "hyperparameters": {"goal": "MINIMIZE"}});
    let of = json!({"jobId": first, "trainingInput": input, "etag": "e", "labels": {"t": "x"}});
    service.make(NO_REGION, of);
    service.minutes(2);
    assert_eq!(service.world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    let words =
        "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)";
    let mut before = first.to_owned();
    for (number, error, machine) in [
        (1, "Internal error occurred for the current attempt", "small"),
        (2, words, "large"),
        (3, "Internal error occurred", "large"),
    ] {
        service.sets("JOB_STATE_FAILED", Some((0, error)));
        service.minutes(10);
        let (_, again) = service.jobs.last().unwrap();
        let id = format!("{first}_r{number}");
        assert_eq!((again["jobId"].as_str(), service.hold()), (Some(id.as_str()), None));
        let input = &again["trainingInput"];
        assert_eq!(input["hyperparameters"]["resumePreviousJobId"], before);
        assert_eq!(
            (&input["masterType"], &input["workerType"]),
            (&json!(machine), &json!("other"))
        );
        assert_eq!((again.get("etag"), &again["labels"]["t"]), (None, &json!("x")));
        assert_eq!(again["labels"]["tpu-watchdog-lineage"], first);
        before = id;
    }
    // A time limit cancels with words.
    service.sets("JOB_STATE_CANCELLED", Some((0, "The job was cancelled: maxRunningTime")));
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (4, Some(HoldReason::TimeLimit)));
}

#[test]
fn each_end_of_a_legacy_job_is_submitted_again_or_held_for_its_reason() {
    use HoldReason::*;
    let exit =
        |code: &str| format!("The replica master 0 exited with a non-zero status of {code}.");
    let memory =
        "The replica worker 1 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)";
    let quota = "The following quota metrics exceed quota limits: x";
    for (state, words, jobs, hold) in [
        ("QUEUED", None, 1, None),
        ("PREPARING", None, 1, None),
        ("RUNNING", None, 1, None),
        ("SUCCEEDED", None, 1, None),
        ("FAILED", Some(exit("139")), 2, None),
        ("FAILED", Some(exit("1")), 1, Some(JobFailed)),
        ("FAILED", Some(memory.to_owned()), 1, Some(JobFailed)),
        ("FAILED", Some("Internal error occurred for the current attempt".into()), 2, None),
        ("FAILED", Some("words that no rule knows".into()), 2, None),
        ("FAILED", Some(quota.into()), 1, Some(Quota)),
        ("CANCELLING", None, 1, Some(Stopped)),
        ("CANCELLED", None, 1, Some(Stopped)),
        ("CANCELLED", Some("The job was cancelled: maxRunningTime".into()), 1, Some(TimeLimit)),
        ("LATER", None, 1, Some(Unclear)),
    ] {
        let mut service = of_kind(JobKind::Legacy, |_| ());
        service.make(NO_REGION, json!({"jobId": "census_2024", "trainingInput": {}}));
        service.minutes(2);
        service.sets(&format!("JOB_STATE_{state}"), words.as_deref().map(|words| (0, words)));
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (jobs, hold), "{state} {words:?}");
    }
    // There is no other region: capacity is waited for.
    let mut service = of_kind(JobKind::Legacy, |_| ());
    service.make(NO_REGION, json!({"jobId": "census_2024", "trainingInput": {}}));
    service.minutes(2);
    service
        .sets("JOB_STATE_FAILED", Some((0, "Resources are insufficient in region: us-central1.")));
    service.minutes(60);
    assert_eq!((service.jobs.len(), service.live(), service.hold()), (2, 1, None));
}

#[test]
fn a_cancel_without_words_is_a_persons_and_one_with_words_a_time_limit() {
    for (words, resubmits, jobs, hold) in [
        (None, true, 1, Some(HoldReason::Stopped)),
        (Some((0, "The job was cancelled: maxRunningTime")), true, 2, None),
        (Some((0, "The job was cancelled: maxRunningTime")), false, 1, Some(HoldReason::TimeLimit)),
    ] {
        let mut service = of_kind(JobKind::Legacy, |of| of.outlives_timeout = resubmits);
        service.make(NO_REGION, json!({"jobId": "census_2024", "trainingInput": {}}));
        service.minutes(2);
        for state in ["JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED"] {
            service.sets(state, words);
            service.minutes(if state.ends_with("ING") { 1 } else { 10 });
        }
        assert_eq!((service.jobs.len(), service.hold()), (jobs, hold), "{words:?}");
    }
}

#[test]
fn the_pool_that_ran_out_of_memory_gets_the_next_machine_and_retry_keeps_it() {
    let mut service = on_machines("m1", &["a2-highgpu-2g"]);
    let (_, job) = &mut service.jobs[0];
    job["jobSpec"]["workerPoolSpecs"][2]["machineSpec"]["acceleratorCount"] = json!(1);
    service.poll();
    let words = "The replica workerpool2-0 ran out of memory and exited with 137";
    service.sets("JOB_STATE_FAILED", Some((3, words)));
    for _ in 0..10 {
        service.world.wait(30);
        service.poll();
        if !service.world.actions.is_empty() {
            break;
        }
    }
    // Refused for a while, and a person asks for it.
    let refused =
        Failure::new(FailureClass::Quota, "The following quota metrics exceed quota limits");
    service.called(CallOutcome::Refused(refused));
    service.ask(retry());
    service.minutes(90);
    assert_eq!(service.jobs.len(), 2, "{:?}", service.hold());
    let pools = &service.jobs[1].1["jobSpec"]["workerPoolSpecs"];
    let machine = |index: usize| pools[index]["machineSpec"].clone();
    let large = json!({"machineType": "a2-highgpu-2g", "acceleratorCount": 2});
    assert_eq!((machine(0), machine(2)), (json!({"machineType": "m1"}), large));
}

#[test]
fn another_id_in_the_config_is_another_job_and_the_same_id_stays_what_it_was() {
    let named = |id: &str| {
        let mut settings = training();
        let slot = settings.slots.get_mut("a").unwrap();
        let Filling::Training(of) = &mut slot.filling else { unreachable!() };
        Arc::make_mut(of).named = Named::Id(id.into());
        settings
    };
    let mut service = Service { world: World::new(named("1000")), jobs: vec![], ..Service::new() };
    service.make(REGION, job("sft"));
    service.minutes(2);
    service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
    service.minutes(10);
    let shown = |service: &Service| {
        service.world.fleet.slots["a"].incarnation.as_ref().map(|of| of.id.clone())
    };
    assert_eq!((service.jobs.len(), shown(&service).as_deref()), (2, Some("1001")));
    // The first id, and that of the lineage's present job, mean the same.
    for id in ["1000", "1001", "1000"] {
        service.ask(Input::Configured(Box::new(named(id))));
        service.minutes(2);
        let ours = service.world.fleet.slots["a"].ours;
        assert_eq!((ours, shown(&service).as_deref()), (true, Some("1001")), "{id}");
    }
    service.make(REGION, job("another"));
    service.ask(Input::Configured(Box::new(named("1002"))));
    service.minutes(2);
    assert_eq!((shown(&service).as_deref(), service.hold()), (Some("1002"), None));
}

#[test]
fn s24_a_submission_that_was_accepted_is_there_however_long_lists_lack_it() {
    let mut service = Service::new();
    service.minutes(65);
    service.lag = 3600;
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    service.minutes(55);
    assert_eq!((service.jobs.len(), service.live()), (2, 1));
    service.minutes(15);
    assert_eq!((service.jobs.len(), service.hold(), service.world.phase("a")), (2, None, None));
}
