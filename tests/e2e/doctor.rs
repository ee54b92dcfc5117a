//! `doctor`: each thing that a recovery needs is missed by name, with the command that mends it.

use serde_json::json;
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{Rig, job};
use crate::training::post;

/// A rig whose watchdog has credentials: those of a VM, whose metadata server is the simulator.
fn with_credentials() -> Rig {
    let rig = Rig::with_one_node(&job("a"));
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let checks = format!("resource_manager = \"{0}\"\niam = \"{0}\"\nquotas = \"{0}\"", rig.base);
    std::fs::write(rig.config(), config.replace("credentials = \"anonymous\"", &checks)).unwrap();
    rig
}

fn doctor(rig: &Rig, more: &[&str]) -> (i32, String) {
    let metadata = rig.base.trim_start_matches("http://");
    let output = rig
        .command(&["doctor"])
        .args(more)
        .env("GCE_METADATA_HOST", metadata)
        .env("HOME", rig.folder.path())
        .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
        .current_dir(rig.folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap(), text + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn nothing_is_missing_where_all_is_there() {
    let rig = with_credentials();
    let (code, text) = doctor(&rig, &[]);
    assert_eq!(code, 0, "{text}");
    for words in [
        "tpu-watchdog@simulated.iam.gserviceaccount.com",
        "all 9 of deploy/iam/role.yaml",
        "READY in us-central2-b",
        // Its job goes on meanwhile.
        "newest complete checkpoint is step ",
        "can be written",
        "agrees with the API's",
        "Nothing is missing.",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    let (code, text) = doctor(&rig, &["--node", "b"]);
    assert!(code == 2 && text.contains("there are a"), "{text}");
}

#[test]
fn the_rights_for_training_jobs_are_asked_for_where_there_are_some() {
    let rig = with_credentials();
    let jobs = "[[vertex_job]]\nname = \"sft\"\nregion = \"us-central1\"\ndisplay_name = \"sft\"\n[[ai_platform_job]]\njob = \"census\"\n";
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let api = format!("[api]\nvertex = \"{0}\"\nml = \"{0}\"\n", rig.base);
    std::fs::write(rig.config(), config.replace("[api]\n", &api) + "\n" + jobs).unwrap();
    let (_, text) = doctor(&rig, &[]);
    assert!(text.contains("1 TPU and 2 training jobs of p"), "{text}");
    assert!(text.contains("all 21 of deploy/iam/role.yaml and for training jobs"), "{text}");
    for (right, role) in [
        ("aiplatform.customJobs.create", "roles/aiplatform.user"),
        ("ml.jobs.list", "roles/ml.developer"),
    ] {
        rig.simulator.with(|cloud| {
            cloud.denied.clear();
            cloud.denied.insert(right.to_owned());
        });
        let (code, text) = doctor(&rig, &[]);
        assert_eq!(code, 3, "{text}");
        assert!(text.contains(&format!("✗ {right} is not granted on project p: ")), "{text}");
        assert!(text.contains(role), "{text}");
    }
    // The name may be that of a tuning job, and need not.
    rig.simulator.with(|cloud| {
        cloud.denied.clear();
        cloud.denied.insert("aiplatform.hyperparameterTuningJobs.create".to_owned());
    });
    let (code, text) = doctor(&rig, &[]);
    assert!(
        code == 0 && text.contains("where a slot named by display_name or labels is"),
        "{text}"
    );
    assert!(text.contains("nothing is submitted before one was seen"), "{text}");
    assert!(!text.contains("accelerator_type"), "a job has none: {text}");
}

#[test]
fn a_job_that_names_a_service_account_needs_the_right_to_act_as_it() {
    let rig = with_credentials();
    let job = "[[vertex_job]]\nname = \"sft\"\nregion = \"us-central1\"\ndisplay_name = \"sft\"\n";
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let api = format!("[api]\nvertex = \"{}\"\n", rig.base);
    std::fs::write(rig.config(), config.replace("[api]\n", &api) + "\n" + job).unwrap();
    let pools = json!([{"machineSpec": {"machineType": "g2-standard-12"}, "replicaCount": "1"}]);
    let body = json!({"displayName": "sft", "jobSpec": {"workerPoolSpecs": pools, "serviceAccount": "trainer@p.iam.gserviceaccount.com"}});
    post(&rig, "locations/us-central1/customJobs", body);
    let slot = "sft";
    let missed = "iam.serviceAccounts.actAs is not granted on trainer@p.iam.gserviceaccount.com";
    let (code, text) = doctor(&rig, &["--node", slot]);
    assert!(code == 0 && !text.contains(missed), "{text}");
    rig.simulator.with(|cloud| {
        cloud.denied.insert("iam.serviceAccounts.actAs".to_owned());
    });
    let (code, text) = doctor(&rig, &["--node", slot]);
    assert!(code == 3 && text.contains(missed) && text.contains("1 thing missing"), "{text}");
    assert!(text.contains("add-iam-policy-binding trainer@p.iam.gserviceaccount.com"), "{text}");
    // Where its checkpoints are, and where it runs.
    rig.simulator.with(|cloud| {
        cloud.denied.clear();
        _ = cloud.bucket_regions.insert("far".to_owned(), "europe-west4".to_owned());
    });
    let saves = |uri: &str| {
        let config = std::fs::read_to_string(rig.config()).unwrap();
        let at = config.find("display_name = \"sft\"").unwrap();
        let line = format!("{}checkpoint = \"{uri}\"\n{}", &config[..at], &config[at..]);
        std::fs::write(rig.config(), line).unwrap();
        let told = doctor(&rig, &["--node", slot]).1;
        std::fs::write(rig.config(), config).unwrap();
        told.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = saves("gs://far/sft");
    assert!(text.contains("gs://far is in europe-west4 alone"), "{text}");
    assert!(saves("gs://near/sft").contains("gs://near is in us (multi-region)"));
    rig.simulator.with(|cloud| _ = cloud.denied.insert("storage.buckets.get".to_owned()));
    assert!(saves("gs://far/sft").contains("it takes storage.buckets.get"));
    rig.simulator.with(|cloud| _ = cloud.denied.insert("iam.serviceAccounts.actAs".to_owned()));
    // One that is not there yet, and that the config describes.
    let described = "workerPoolSpecs:\n- machineSpec: {machineType: g2-standard-12}\n  replicaCount: 1\nserviceAccount: other@p.iam.gserviceaccount.com\n";
    std::fs::write(rig.folder.path().join("job.yaml"), described).unwrap();
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let new = "display_name = \"new\"\ncreate = \"job.yaml\"";
    std::fs::write(rig.config(), config.replace("display_name = \"sft\"", new)).unwrap();
    let (code, text) = doctor(&rig, &["--node", slot]);
    assert!(code == 3 && text.contains("it would be submitted as `create` says"), "{text}");
    assert!(text.contains("1 thing missing"), "{text}");
    assert!(text.contains("actAs is not granted on other@p.iam.gserviceaccount.com"), "{text}");
}

#[test]
fn each_permission_that_is_missing_is_told_with_its_consequence_and_the_command() {
    let rig = with_credentials();
    let role = include_str!("../../deploy/iam/role.yaml");
    let permissions: Vec<&str> = role.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(permissions.len(), 9);
    for permission in permissions {
        rig.simulator.with(|cloud| {
            cloud.denied.clear();
            cloud.denied.insert(permission.to_owned());
        });
        let (code, text) = doctor(&rig, &[]);
        assert_eq!(code, 3, "{text}");
        assert!(text.contains(&format!("✗ {permission} is not granted on project p: ")), "{text}");
        let grant = "--member serviceAccount:tpu-watchdog@simulated.iam.gserviceaccount.com --role projects/p/roles/tpuWatchdog";
        assert!(text.contains(grant), "{text}");
    }
    rig.simulator.with(|cloud| {
        cloud.denied.clear();
        cloud.denied.insert("iam.serviceAccounts.actAs".to_owned());
    });
    let (code, text) = doctor(&rig, &[]);
    assert_eq!(code, 3, "{text}");
    let missed = "✗ iam.serviceAccounts.actAs is not granted";
    assert!(text.contains(missed) && text.contains("roles/iam.serviceAccountUser"), "{text}");
}

#[test]
fn a_bucket_that_may_not_be_listed_and_credentials_that_are_missing_are_told() {
    let rig = with_credentials();
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let body = r#"{"error": {"code": 403, "message": "no storage.objects.list"}}"#;
        logged.path.contains("list-type").then(|| Fault::AnswerBefore(Reply::new(403, body)))
    })));
    let (code, text) = doctor(&rig, &[]);
    assert!(code == 3 && text.contains("roles/storage.objectViewer"), "{text}");
    rig.simulator.set_hook(None);
    let output = rig
        .command(&["doctor"])
        .env("GCE_METADATA_HOST", "127.0.0.1:1")
        .env("HOME", rig.folder.path())
        .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    let login = "gcloud auth application-default login";
    assert!(text.contains("no Google credentials found") && text.contains(login), "{text}");
}

#[test]
fn a_slot_a_hold_and_a_text_are_explained() {
    let mut rig = Rig::with_one_node(&job("a"));
    let explain = |rig: &Rig, text: &str| {
        let output = rig.command(&["explain", text]).output().unwrap();
        let (out, log) = (output.stdout, output.stderr);
        let text = String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&log);
        (output.status.code().unwrap(), text)
    };
    rig.start();
    rig.wait_polls(2);
    let (code, text) = explain(&rig, "a");
    assert!(code == 0 && text.starts_with("a: healthy for "), "{text}");
    let (code, text) = explain(&rig, "cannot_create");
    assert!(code == 0 && text.contains("doctor"), "{text}");
    let (code, text) = explain(&rig, "Quota limit 'X' has been exceeded. Limit: 0 in region r");
    assert!(code == 0 && text.contains("never given this type here"), "{text}");
    let (code, text) = explain(&rig, "what is this");
    assert!(code == 1 && text.contains("give the whole line"), "{text}");
    std::fs::write(rig.config(), "project = 3\n").unwrap();
    let (code, text) = explain(&rig, "a");
    assert!(code == 1 && text.contains("its slots are not known"), "{text}");
}

#[test]
fn init_writes_a_config_for_the_tpus_that_are_there_and_never_over_one() {
    let rig = Rig::with_one_node("");
    let folder = tempfile::tempdir().unwrap();
    let init = |more: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
            .args(["init", "--api-tpu", &rig.base, "--api-storage", &rig.base])
            .args(["--api-credentials", "anonymous"])
            .args(more)
            .env_remove("TPU_WATCHDOG_CONFIG")
            .env_remove("GOOGLE_CLOUD_PROJECT")
            .stdin(std::process::Stdio::null())
            .current_dir(folder.path())
            .output()
            .unwrap();
        let (out, log) = (output.stdout, output.stderr);
        let text = String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&log);
        (output.status.code().unwrap(), text)
    };
    let (code, text) = init(&[]);
    assert!(code == 2 && text.contains("no project: give --project"), "{text}");
    let (code, text) = init(&["--project", "p"]);
    assert!(code == 2 && text.contains("--tpu NAME"), "never asks without a terminal: {text}");
    let (code, text) = init(&["--project", "p", "--tpu", "b"]);
    assert!(code == 2 && text.contains("there are a"), "{text}");
    let (code, text) = init(&["--project", "p", "--checkpoint", "gs://bucket/a/", "--yes"]);
    // Which one that is depends on how far its job has got by now.
    for words in ["wrote watchdog.toml for 1 TPU", "doctor", "newest complete checkpoint is step "]
    {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    assert!(code == 0 && text.contains("1 of 1 protected"), "{code}: {text}");
    let written = std::fs::read_to_string(folder.path().join("watchdog.toml")).unwrap();
    assert!(written.contains("checkpoint = \"gs://bucket/a\""), "{written}");
    let (code, text) = init(&["--project", "p", "--yes"]);
    assert!(code == 2 && text.contains("is never written over"), "{text}");
    // It is found without being named.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
        .arg("check")
        .env_remove("TPU_WATCHDOG_CONFIG")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("watchdog.toml is fine"), "{text}");
    // A queued resource that waits has no node yet, and is chosen by its id.
    rig.simulator.with(|cloud| {
        let body =
            serde_json::json!({"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"});
        cloud.grant("us-central2-b", "waits", "n", body.as_object().unwrap());
        cloud.queued.values_mut().for_each(|queued| queued.state = "WAITING_FOR_RESOURCES");
        cloud.nodes.remove(&("us-central2-b".into(), "n".into()));
    });
    let (_, text) = init(&["--project", "p", "--tpu", "waits", "--output", "waits.toml"]);
    assert!(text.contains("WAITING_FOR_RESOURCES, a queued resource"), "{text}");
    let written = std::fs::read_to_string(folder.path().join("waits.toml")).unwrap();
    assert!(written.contains("queued_resource = \"waits\""), "{written}");
    rig.simulator.with(|cloud| cloud.queued.clear());
    // Without a place of checkpoints the job's table is there to be filled in.
    let (code, text) = init(&["--project", "p", "--yes", "--output", "bare.toml"]);
    assert!(code == 0, "{code}: {text}");
    let written = std::fs::read_to_string(folder.path().join("bare.toml")).unwrap();
    let filled = written.replace("# [tpu.job]", "[tpu.job]").replace("# checkpoint", "checkpoint");
    assert!(filled != written, "{written}");
    std::fs::write(folder.path().join("bare.toml"), filled).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
        .args(["check", "--config", "bare.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("is fine") && text.contains("with a [tpu.job]"), "{text}");
}

#[test]
fn quota_limits_are_shown_next_to_what_the_slots_need() {
    let rig = with_credentials();
    let quota = |id: &str, limit: &str| {
        let limits = serde_json::json!({"details": {"value": limit}, "applicableLocations": ["us-central2"]});
        serde_json::json!({"quotaId": id, "dimensionsInfos": [limits]})
    };
    let id = "TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI";
    rig.simulator.with(|cloud| cloud.quota_infos = vec![quota(id, "64"), quota("TPUV3Other", "0")]);
    let (code, text) = doctor(&rig, &[]);
    let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = format!("1 x v4-8 (Spot) in us-central2-b against {id} 64");
    assert!(code == 0 && plain.contains(&shown), "{text}");
    rig.simulator.with(|cloud| cloud.quota_infos = vec![quota(id, "0")]);
    let (code, text) = doctor(&rig, &[]);
    assert!(
        code == 3 && text.contains("never granted") && text.contains("iam-admin/quotas"),
        "{text}"
    );
    // The role does not have this right: that is no trouble.
    rig.simulator.with(|cloud| _ = cloud.denied.insert("cloudquotas.quotas.get".to_owned()));
    let (code, text) = doctor(&rig, &[]);
    assert!(code == 0 && text.contains("gcloud beta quotas info list"), "{text}");
}

#[test]
fn a_slot_is_looked_for_where_it_was_made_last() {
    let mut rig = with_credentials();
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let zones = "zones = [\"us-central2-b\", \"us-east5-a\"]";
    std::fs::write(rig.config(), config.replace("zone = \"us-central2-b\"", zones)).unwrap();
    let metadata = rig.base.trim_start_matches("http://").to_owned();
    rig.start_with(&[("GCE_METADATA_HOST", &metadata)]);
    rig.wait_polls(2);
    rig.trouble("", Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    let moved = || rig.status()["tpus"][0]["zone"] == "us-east5-a";
    rig.wait_until("it is made in its second zone", moved);
    rig.wait_until("and ready there", || rig.status()["tpus"][0]["condition"] == "healthy");
    let (code, text) = doctor(&rig, &["--node", "a"]);
    assert!(code == 0 && text.contains("READY in us-east5-a"), "{text}");
}

#[test]
fn a_bucket_that_cant_hold_the_state_is_told_with_what_it_lacks() {
    let rig = with_credentials();
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let bucket = config.replace("sqlite:state.db", "gs://state/watchdog");
    std::fs::write(rig.config(), bucket).unwrap();
    let (code, text) = doctor(&rig, &[]);
    assert!(code == 0 && text.contains("written under a condition, and deleted"), "{text}");
    let answered = |status: u16| {
        rig.simulator.set_hook(Some(Box::new(move |logged| {
            let write = logged.path.contains("doctor-") && logged.method != "GET";
            let mut reply = Reply::new(status, "");
            reply.headers.push(("etag", "\"1\"".into()));
            write.then_some(Fault::AnswerBefore(reply))
        })));
        doctor(&rig, &[])
    };
    let (code, text) = answered(403);
    let grant = "roles/storage.objectUser --member serviceAccount:tpu-watchdog@simulated";
    assert!(code == 3 && text.contains("can't be created") && text.contains(grant), "{text}");
    // A store that takes every write.
    let (code, text) = answered(200);
    assert!(code == 3 && text.contains("was not refused, so two watchdogs"), "{text}");
}

#[test]
fn a_clock_that_is_off_is_told_with_how_far() {
    let rig = with_credentials();
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let mut reply = Reply::new(404, "");
        reply.headers.push(("date", "Thu, 01 Jan 2026 00:00:00 GMT".into()));
        (logged.method == "HEAD").then_some(Fault::AnswerBefore(reply))
    })));
    let (code, text) = doctor(&rig, &[]);
    let told = text.contains("ahead of the API's: ages and leases are wrong");
    assert!(code == 3 && told && text.contains("timedatectl set-ntp true"), "{text}");
}

#[test]
fn an_api_that_gives_no_answer_is_missing_and_claims_nothing_about_the_tpu() {
    let rig = with_credentials();
    let config = std::fs::read_to_string(rig.config()).unwrap();
    // Nothing listens there.
    let away =
        config.replacen(&format!("tpu = \"{}\"", rig.base), "tpu = \"http://127.0.0.1:1\"", 1);
    assert_ne!(away, config);
    std::fs::write(rig.config(), away).unwrap();
    let (code, text) = doctor(&rig, &[]);
    assert!(code == 3 && text.contains("it could not be read"), "{text}");
    assert!(!text.contains("could not be created again"), "{text}");
}
