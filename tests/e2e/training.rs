//! Slots that are managed training jobs: an end that is Google's is submitted again, once, from the job's own
//! specification; one that is its own, or a person's, is left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::simulator::api::handle;
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::service;
use tpu_watchdog::simulator::things::{Job, JobKey, JobKind};
use tpu_watchdog::simulator::wire::{Reply, Request};

use crate::harness::{POLICY, Rig, get};

const REGION: &str = "us-central1";
const OTHER: &str = "europe-west4";
const INTERNAL: &str = "Internal error occurred for the current attempt";

/// The slot `sft`, of two regions, whose job runs in the first where `exists` says so.
fn rig(exists: bool, more: &str) -> Rig {
    let rig = Rig::new("", POLICY, "");
    let slots = format!(
        "[[vertex_job]]\nname = \"sft\"\nregions = [\"{REGION}\", \"{OTHER}\"]\ndisplay_name = \"llama-sft\"\nsettle = \"1s\"\n{more}\n"
    );
    configure(&rig, &slots);
    if exists {
        submit(&rig);
        rig.wait("the job runs", |cloud| cloud.training.values().any(|job| job.state == "RUNNING"));
    }
    rig
}

fn configure(rig: &Rig, slots: &str) {
    rig.configure("", POLICY, slots);
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let api = format!("[api]\nvertex = \"{0}\"\nml = \"{0}\"\n", rig.base);
    std::fs::write(rig.config(), config.replace("[api]\n", &api)).unwrap();
}

fn spec() -> Value {
    json!({
        "workerPoolSpecs": [{
            "machineSpec": {"machineType": "a2-highgpu-1g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 1},
            "replicaCount": "1", "containerSpec": {"imageUri": "gcr.io/p/train:7", "args": ["--epochs=3"]},
        }],
        "scheduling": {"timeout": "604800s"},
        "baseOutputDirectory": {"outputUriPrefix": "gs://bucket/sft"},
        "fieldOfALaterVersion": {"kept": [1, 2]},
    })
}

/// A person submits the job.
fn submit(rig: &Rig) {
    let body = json!({"displayName": "llama-sft", "labels": {"team": "llm"}, "jobSpec": spec()});
    post(rig, &format!("locations/{REGION}/customJobs"), body);
}

/// A call of a person to the service.
pub fn post(rig: &Rig, collection: &str, body: Value) {
    let path = format!("v1/projects/p/{collection}");
    let query = Default::default();
    let request = Request { method: "POST", path: &path, query: &query, body: Some(body) };
    let (status, answer) = rig.simulator.with(|cloud| handle(cloud, &request));
    assert_eq!(status, 200, "{answer}");
}

/// All jobs, the oldest first.
fn jobs(rig: &Rig) -> Vec<(JobKey, Job)> {
    let mut jobs: Vec<(JobKey, Job)> = rig
        .simulator
        .with(|cloud| cloud.training.iter().map(|(key, job)| (key.clone(), job.clone())).collect());
    jobs.sort_by_key(|((.., id), _)| id.clone());
    jobs
}

fn label<'j>(job: &'j Job, key: &str) -> &'j str {
    job.body["labels"][key].as_str().unwrap_or_default()
}

/// The newest job ends; its error shows at once, or is given.
fn ends(rig: &Rig, state: &'static str, error: Option<(i64, &str)>) {
    let (key, _) = jobs(rig).pop().unwrap();
    rig.simulator.with(|cloud| {
        let now = cloud.now();
        let job = cloud.training.get_mut(&key).unwrap();
        (job.state, job.ended) = (state, Some(now));
        job.error = error.map(|(code, text)| (code, text.to_owned()));
    });
}

fn seen(rig: &Rig) -> Value {
    rig.status()["tpus"][0].clone()
}

/// The watchdog starts, and has state to show.
fn starts(rig: &mut Rig) {
    rig.start();
    rig.wait_until("it leads", || rig.logs().matches("now leading").count() > 0);
    rig.wait_log_lists(2);
}

#[track_caller]
fn wait_running(rig: &Rig, count: usize) {
    rig.wait_until(&format!("job {count} runs and is well"), || {
        let jobs = jobs(rig);
        jobs.len() == count
            && jobs[count - 1].1.state == "RUNNING"
            && seen(rig)["condition"] == "healthy"
            && seen(rig)["phase"].is_null()
    });
}

#[track_caller]
fn wait_held(rig: &Rig, reason: &str) -> String {
    rig.wait_until(&format!("it is held: {reason}"), || seen(rig)["hold"] == reason);
    seen(rig)["reason"].as_str().unwrap().to_owned()
}

#[test]
fn what_google_ended_is_submitted_again_from_its_own_specification() {
    let mut rig = rig(true, "");
    starts(&mut rig);
    wait_running(&rig, 1);
    let first = jobs(&rig)[0].clone();
    // The service restarts it three times, gives it up, and says why a while later.
    rig.simulator.with(|cloud| service::fails(cloud, "llama-sft", 13, INTERNAL));
    rig.wait("the service has given it up", |cloud| {
        cloud.training.values().any(|job| job.state == "FAILED")
    });
    rig.simulator.with(|cloud| cloud.service.mends("llama-sft"));
    wait_running(&rig, 2);
    assert_eq!(jobs(&rig)[0].1.restarts, 4);
    let (_, again) = &jobs(&rig)[1];
    assert_eq!(label(again, "tpu-watchdog-lineage"), first.0.2);
    assert_eq!(label(again, "tpu-watchdog-attempt"), "1");
    assert!(label(again, "tpu-watchdog-nonce").starts_with("tpu-watchdog-"));
    let mut body = again.body.clone();
    body["labels"] = json!({"team": "llm"});
    // The disk is filled in by the service's answer.
    body["jobSpec"]["workerPoolSpecs"][0].as_object_mut().unwrap().remove("diskSpec");
    assert_eq!(body, first.1.body);
    // The second submission is the last where no progress can be seen.
    ends(&rig, "FAILED", Some((13, INTERNAL)));
    let why = wait_held(&rig, "no_progress");
    assert!(
        why.contains("submitted again 1 times and no complete checkpoint was ever seen"),
        "{why}"
    );
    assert_eq!(jobs(&rig).len(), 2);
    assert!(rig.command(&["retry", "sft"]).status().unwrap().success());
    wait_running(&rig, 3);
    assert_eq!(label(&jobs(&rig)[2].1, "tpu-watchdog-attempt"), "2");
}

#[test]
fn a_region_without_capacity_is_left_for_the_next() {
    let mut rig = rig(true, "");
    starts(&mut rig);
    wait_running(&rig, 1);
    // Its machines are taken, and the region has no others.
    rig.simulator.with(|cloud| {
        cloud.service.full.insert(REGION.to_owned());
        let (key, _) = cloud.training.first_key_value().unwrap();
        service::attempt_ends(cloud, key.clone());
    });
    wait_running(&rig, 2);
    let (code, words) = jobs(&rig)[0].1.error.clone().unwrap();
    assert!(code == 8 && words.contains("Resources are insufficient"), "{words}");
    let ((_, region, _), again) = &jobs(&rig)[1];
    assert_eq!((region.as_str(), seen(&rig)["zone"].as_str()), (OTHER, Some(OTHER)));
    assert_eq!(label(again, "tpu-watchdog-lineage"), jobs(&rig)[0].0.2);
}

#[test]
fn a_quota_that_refuses_the_create_is_named() {
    let mut rig = rig(true, "");
    starts(&mut rig);
    wait_running(&rig, 1);
    rig.simulator.with(|cloud| cloud.service.quota.insert(REGION.to_owned(), 0));
    ends(&rig, "FAILED", Some((13, INTERNAL)));
    let why = wait_held(&rig, "quota");
    assert!(why.contains("custom_model_training_nvidia_a100_gpus"), "{why}");
    assert_eq!(jobs(&rig).len(), 1);
    let (_, metrics) = get(&format!("{}/metrics", rig.endpoint()));
    let refused = "tpuwatchdog_job_submissions_total{slot=\"sft\",result=\"refused\"} 1";
    assert!(metrics.contains(refused), "{metrics}");
}

#[test]
fn a_failure_of_the_program_is_held_and_retry_submits_it_again() {
    let mut rig = rig(true, "");
    starts(&mut rig);
    wait_running(&rig, 1);
    ends(
        &rig,
        "FAILED",
        Some((3, "The replica workerpool0-0 exited with a non-zero status of 1.")),
    );
    let why = wait_held(&rig, "job_failed");
    assert!(why.contains("its program exited with 1: fix that, then `retry`"), "{why}");
    assert!(rig.command(&["retry", "sft"]).status().unwrap().success());
    wait_running(&rig, 2);
}

#[test]
fn nothing_is_judged_before_the_error_is_there() {
    let mut rig = rig(true, "");
    starts(&mut rig);
    wait_running(&rig, 1);
    ends(&rig, "FAILED", None);
    rig.wait_until("it is being read", || seen(&rig)["condition"] == "going");
    rig.wait_log_lists(5);
    assert_eq!((seen(&rig)["condition"].as_str(), jobs(&rig).len()), (Some("going"), 1));
    ends(
        &rig,
        "FAILED",
        Some((
            3,
            "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137",
        )),
    );
    wait_held(&rig, "job_failed");
}

#[test]
fn a_persons_cancel_and_what_had_ended_before_are_left_alone() {
    let mut rig = rig(true, "");
    starts(&mut rig);
    wait_running(&rig, 1);
    ends(&rig, "CANCELLED", Some((1, "CANCELED")));
    wait_held(&rig, "stopped");
    rig.kill();
    let config = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), config.replace("state.db", "another.db")).unwrap();
    // Nothing is known of it now, and it failed for a reason that is Google's.
    ends(&rig, "FAILED", Some((13, INTERNAL)));
    starts(&mut rig);
    let why = wait_held(&rig, "deleted");
    assert!(why.contains("it had ended before this watchdog saw it"), "{why}");
    rig.wait_log_lists(5);
    assert_eq!(jobs(&rig).len(), 1);
    assert!(rig.command(&["retry", "sft"]).status().unwrap().success());
    wait_running(&rig, 2);
}

#[test]
fn s24_a_lost_answer_submits_no_job_twice() {
    for carried_out in [true, false] {
        let mut rig =
            rig(true, "restart = { job = 9, no_progress = 9 }\ncheckpoint = \"gs://bucket/none\"");
        starts(&mut rig);
        wait_running(&rig, 1);
        // A list shows a job half a second after it was made.
        rig.simulator.with(|cloud| cloud.service.lag = Duration::from_millis(500));
        let mut lost = 0;
        rig.simulator.set_hook(Some(Box::new(move |logged| {
            let submits = logged.method == "POST" && logged.path.contains("/customJobs");
            lost += usize::from(submits);
            let reply = || Reply::new(503, "");
            (submits && lost == 1).then(|| match carried_out {
                true => Fault::AnswerAfter(reply()),
                false => Fault::AnswerBefore(reply()),
            })
        })));
        ends(&rig, "FAILED", Some((13, INTERNAL)));
        wait_running(&rig, 2);
        rig.wait_log_lists(5);
        let all = jobs(&rig);
        assert_eq!(all.len(), 2, "{}", rig.mutations_text());
        let (_, metrics) = get(&format!("{}/metrics", rig.endpoint()));
        let counted = |result: &str, count: u32| {
            metrics.contains(&format!(
                "job_submissions_total{{slot=\"sft\",result=\"{result}\"}} {count}"
            ))
        };
        let after = if carried_out { counted("found", 1) } else { counted("created", 1) };
        assert!(counted("unknown", 1) && after, "{metrics}");
        assert_eq!(label(&all[1].1, "tpu-watchdog-attempt"), "1");
        if !carried_out {
            a_late_twin_is_cancelled(&rig, &all[1].1);
        }
    }
}

/// The lost submission was on its way for long, and shows after all.
fn a_late_twin_is_cancelled(rig: &Rig, sent_again: &Job) {
    post(rig, &format!("locations/{REGION}/customJobs"), Value::Object(sent_again.body.clone()));
    // It was made when it was sent, a moment after the other one.
    rig.simulator.with(|cloud| {
        let late = cloud.training.values_mut().last().unwrap();
        late.created = sent_again.created + jiff::SignedDuration::from_millis(100);
    });
    rig.wait("the newer of the two is cancelled", |cloud| {
        cloud.training.values().any(|job| job.state == "CANCELLED")
    });
    rig.wait_log_lists(5);
    let states: Vec<&str> = jobs(rig).iter().map(|(_, job)| job.state).collect();
    assert_eq!(states, ["FAILED", "RUNNING", "CANCELLED"], "{}", rig.mutations_text());
    let (_, metrics) = get(&format!("{}/metrics", rig.endpoint()));
    assert!(metrics.contains("orphans{kind=\"training_job\"} 0"), "{metrics}");
}

#[test]
fn a_job_that_is_nowhere_is_made_from_its_file() {
    let mut rig = rig(false, "create = \"job.yaml\"");
    // JSON is YAML, too.
    std::fs::write(rig.folder.path().join("job.yaml"), spec().to_string()).unwrap();
    starts(&mut rig);
    wait_running(&rig, 1);
    let (_, job) = &jobs(&rig)[0];
    assert_eq!(
        (&job.body["jobSpec"], job.body["displayName"].as_str()),
        (&spec(), Some("llama-sft"))
    );
    let lineage = label(job, "tpu-watchdog-lineage").to_owned();
    assert!(lineage.starts_with("new-") && lineage.len() <= 63, "{lineage}");
    ends(&rig, "FAILED", Some((13, INTERNAL)));
    wait_running(&rig, 2);
    assert_eq!(label(&jobs(&rig)[1].1, "tpu-watchdog-lineage"), lineage);
    assert!(jobs(&rig).iter().all(|((kind, ..), _)| *kind == JobKind::Custom));
}

#[test]
fn a_legacy_job_is_submitted_again_under_an_id_that_is_free() {
    let mut rig = Rig::new("", POLICY, "");
    configure(
        &rig,
        "[[ai_platform_job]]\njob = \"census_2024\"\nsettle = \"1s\"\nrestart = { job = 9, no_progress = 9 }\ncheckpoint = \"gs://bucket/none\"\n",
    );
    let body = |id: &str| json!({"jobId": id, "trainingInput": {"region": REGION, "masterType": "n1"}, "labels": {"team": "llm"}});
    // Another program has taken the id that the first submission would have.
    post(&rig, "jobs", body("census_2024_r1"));
    post(&rig, "jobs", body("census_2024"));
    starts(&mut rig);
    let runs = |rig: &Rig, id: &str| {
        rig.wait_until(&format!("{id} runs and is well"), || {
            let all = jobs(rig);
            let it = all.iter().find(|((.., of), _)| of == id);
            it.is_some_and(|(_, job)| job.state == "RUNNING")
                && seen(rig)["condition"] == "healthy"
                && seen(rig)["phase"].is_null()
        });
    };
    let fails = |rig: &Rig, id: &str| {
        rig.simulator.with(|cloud| {
            let now = cloud.now();
            let key = (JobKind::Legacy, String::new(), id.to_owned());
            let job = cloud.training.get_mut(&key).unwrap();
            (job.state, job.ended) = ("FAILED", Some(now));
            job.error = Some((0, INTERNAL.to_owned()));
        });
    };
    runs(&rig, "census_2024");
    assert_eq!(
        (&seen(&rig)["name"], &seen(&rig)["kind"]),
        (&json!("census-2024"), &json!("ai_platform_job"))
    );
    fails(&rig, "census_2024");
    runs(&rig, "census_2024_r1_2");
    // Its answer is lost after it was carried out: the id says that it was.
    let mut lost = 0;
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        lost += usize::from(logged.method == "POST" && logged.path.ends_with("/jobs"));
        (logged.method == "POST" && lost == 1).then(|| Fault::AnswerAfter(Reply::new(503, "")))
    })));
    fails(&rig, "census_2024_r1_2");
    runs(&rig, "census_2024_r2");
    let all = jobs(&rig);
    assert_eq!(all.len(), 4, "{}", rig.mutations_text());
    let (_, last) = all.iter().find(|((.., id), _)| id == "census_2024_r2").unwrap();
    assert_eq!((label(last, "tpu-watchdog-attempt"), label(last, "team")), ("2", "llm"));
    assert_eq!(last.body["trainingInput"], body("x")["trainingInput"]);
    // Lists do not show the next one before it is sent again: its id is taken, and by this intent.
    let (mut lost, sent) = (0, Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&sent);
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        let submits = logged.method == "POST" && logged.path.ends_with("/jobs");
        lost += usize::from(submits);
        counted.store(lost, Ordering::Relaxed);
        (submits && lost == 1).then(|| Fault::AnswerAfter(Reply::new(503, "")))
    })));
    rig.simulator.with(|cloud| cloud.service.lag = Duration::from_secs(3600));
    fails(&rig, "census_2024_r2");
    rig.wait_until("it is sent once more", || sent.load(Ordering::Relaxed) > 1);
    rig.simulator.with(|cloud| cloud.service.lag = Duration::ZERO);
    runs(&rig, "census_2024_r3");
    assert_eq!(jobs(&rig).len(), 5, "{}", rig.mutations_text());
}

#[test]
fn a_tuning_job_is_submitted_again_where_its_config_consents() {
    let mut rig = Rig::new("", POLICY, "");
    let study = json!({
        "displayName": "llama-sft", "maxTrialCount": 4, "parallelTrialCount": 2,
        "studySpec": {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}]},
        "trialJobSpec": spec(),
    });
    let slot = format!(
        "[[vertex_job]]\nname = \"sft\"\nregion = \"{REGION}\"\ndisplay_name = \"llama-sft\"\nsettle = \"1s\"\n"
    );
    configure(&rig, &slot);
    post(&rig, &format!("locations/{REGION}/hyperparameterTuningJobs"), study.clone());
    // The name alone says nothing of the kind: the study is found.
    starts(&mut rig);
    wait_running(&rig, 1);
    assert!(seen(&rig)["evidence"].as_str().unwrap().contains("0 of 4 trials done"));
    ends(&rig, "FAILED", Some((13, INTERNAL)));
    rig.wait_until("it is held", || seen(&rig)["hold"] == "job_failed");
    rig.kill();
    configure(&rig, &format!("{slot}restart_study = true\n"));
    rig.start();
    wait_running(&rig, 2);
    let ((kind, ..), again) = &jobs(&rig)[1];
    assert_eq!((*kind, &again.body["studySpec"]), (JobKind::Tuning, &study["studySpec"]));
    assert_eq!(label(again, "tpu-watchdog-attempt"), "1");
}
