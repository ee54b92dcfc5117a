//! The other commands, the endpoints, and the journal's guard against a second holder.

use std::process::{Command, Output};

use tpu_watchdog::simulator::http::{Fault, Logged};
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{POLICY, Rig, get, job, slot};

fn text(output: &Output) -> (i32, String, String) {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), of(&output.stdout), of(&output.stderr))
}

#[test]
fn the_endpoints_answer() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    let base = rig.endpoint();
    assert_eq!(get(&format!("{base}/-/healthy")).0, 200);
    rig.wait_until("ready", || get(&format!("{base}/-/ready")).0 == 200);
    let (_, status) = get(&format!("{base}/api/v1/status"));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["breaker"], "closed");
    assert_eq!(status["tpus"][0]["name"], "a");
    let pid = rig.child.lock().unwrap().as_ref().map(std::process::Child::id);
    assert_eq!(status["acting"]["pid"].as_u64(), pid.map(u64::from));
    let (_, metrics) = get(&format!("{base}/metrics"));
    for line in [
        "tpuwatchdog_slot_healthy{slot=\"a\",zone=\"us-central2-b\"} 1",
        "tpuwatchdog_slot_condition{condition=\"healthy\",slot=\"a\",zone=\"us-central2-b\"} 1",
        "tpuwatchdog_slots{condition=\"healthy\"} 1",
        "tpuwatchdog_recoveries_in_progress 0",
        "tpuwatchdog_invariant_violations_total 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let (_, page) = get(&format!("{base}/"));
    assert!(page.contains("1 of 1 healthy"), "{page}");
}

#[test]
fn plan_shows_what_would_be_done_and_changes_nothing() {
    let rig = Rig::with_one_node(&job("a"));
    rig.trouble("a", Trouble::Preempt, None);
    let (code, out, log) = text(&rig.command(&["plan"]).output().unwrap());
    assert_eq!(code, 0, "{log}");
    assert!(out.contains("-/+ a (v4-8 in us-central2-b) would be deleted"), "{out}");
    assert!(out.contains("state PREEMPTED") && out.contains("delete   exactly id "), "{out}");
    assert!(
        out.contains("Plan: 1 to recreate, 0 to create, 0 held, 0 waited for, 0 left alone."),
        "{out}"
    );
    let (_, json, _) = text(&rig.command(&["plan", "--output", "json"]).output().unwrap());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["tpus"][0]["action"], &json["tpus"][0]["condition"]),
        (&"recreate".into(), &"preempted".into())
    );
    assert!(rig.mutations().is_empty());
    assert!(!rig.folder.path().join("state.db").exists(), "plan leaves no state behind");
}

#[test]
fn once_recovers_and_leaves_and_has_nothing_to_do_the_next_time() {
    let rig = Rig::with_one_node(&job("a"));
    rig.trouble("a", Trouble::Preempt, None);
    let (code, _, log) = text(&rig.command(&["once", "--deadline", "60s"]).output().unwrap());
    assert_eq!(code, 0, "{log}");
    assert_eq!(rig.creations("a"), 2, "{log}");
    let (code, out, log) = text(&rig.command(&["once", "--deadline", "60s"]).output().unwrap());
    assert_eq!(code, 0, "{log}");
    assert_eq!(rig.mutations().len(), 2, "{log}");
    // One line on standard output, in the shape that Cloud Logging takes apart.
    let line: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&line["severity"], &line["once"]["healthy"]), (&"INFO".into(), &1.into()), "{out}");
    assert!(
        line["message"].as_str().unwrap().contains("1 of 1 TPUs healthy")
            && line["time"].is_string(),
        "{out}"
    );
}

#[test]
fn once_that_runs_out_of_time_is_carried_on_by_the_next() {
    let rig = Rig::with_one_node(&job("a"));
    rig.trouble("a", Trouble::Preempt, None);
    for round in 0..200 {
        // Longer and longer: on a slow machine, too, one of them gets somewhere, and outlives what
        // a former one held.
        let deadline = format!("{}ms", 400 + 20 * round);
        let (code, _, log) =
            text(&rig.command(&["once", "--deadline", &deadline]).output().unwrap());
        let too_short = ["no poll read every zone", "did not answer before the deadline"];
        assert!(code == 0 || too_short.iter().any(|told| log.contains(told)), "{log}");
        if rig.status()["tpus"][0]["phase"].is_null() && rig.creations("a") == 2 {
            assert_eq!(rig.mutations().len(), 2, "{}", rig.mutations_text());
            return;
        }
    }
    panic!("it never came to an end: {}", rig.status());
}

#[test]
fn readers_work_beside_a_service_and_a_scheduled_run_leaves_it_alone() {
    let mut rig = Rig::with_one_node("");
    // Longer than a slow disk keeps it from renewing its lock.
    let text_of = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), text_of.replace("lease = \"1s\"", "lease = \"10s\"")).unwrap();
    rig.start();
    rig.wait_polls(2);
    let (code, out, log) = text(&rig.command(&["once"]).output().unwrap());
    assert_eq!(code, 0, "{log}");
    let line: serde_json::Value = serde_json::from_str(&out).unwrap();
    let message = line["message"].as_str().unwrap();
    assert!(
        message.contains("holds the lock (epoch 1) and is at work")
            && line["once"]["result"] == "another",
        "{out}"
    );
    assert_eq!((out.lines().count(), log.as_str()), (1, ""), "one line");
    let (code, out, _) = text(&rig.command(&["once", "--deadline", "800ms"]).output().unwrap());
    assert!(
        code == 0 && out.contains("takes 10s, longer than the deadline"),
        "its deadline is shorter than the lease: {out}"
    );
    let (code, out, log) = text(&rig.command(&["status"]).output().unwrap());
    assert_eq!(code, 0, "{log}");
    assert!(out.contains("healthy"), "{out}");
    assert_eq!(text(&rig.command(&["plan"]).output().unwrap()).0, 0);
}

#[test]
fn a_journal_that_cannot_be_written_means_no_action() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let other = rusqlite::Connection::open(rig.folder.path().join("state.db")).unwrap();
    // Another program holds the write lock for longer than the service waits for it.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("it is tried again every second");
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    other.execute_batch("ROLLBACK").unwrap();
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2);
}

#[test]
fn s21_a_create_that_is_owed_is_called_off_when_its_slot_leaves_the_config() {
    let mut rig = Rig::with_one_node("");
    rig.simulator.with(|cloud| {
        let body = cloud.nodes.values().next().unwrap().body.clone();
        cloud.add_node(crate::harness::ZONE, "b", body, true);
    });
    rig.configure("", POLICY, &format!("{}{}", slot("a", ""), slot("b", "")));
    rig.start();
    rig.wait_polls(2);
    rig.trouble("", Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("create failed (stock_out)");
    rig.kill();
    rig.configure("", POLICY, &slot("b", ""));
    rig.start();
    rig.wait_for_log("called off");
    let before = rig.mutations().len();
    rig.simulator.with(|cloud| cloud.refusals.clear());
    rig.wait_polls(8);
    assert_eq!(rig.mutations().len(), before, "{}", rig.mutations_text());
    assert_eq!(rig.status()["tpus"].as_array().unwrap().len(), 1);
    // It is back, and created from what was learned before.
    rig.kill();
    rig.configure("", POLICY, &format!("{}{}", slot("a", ""), slot("b", "")));
    rig.start();
    rig.wait("it is created again", |cloud| {
        let key = (crate::harness::ZONE.to_owned(), "a".to_owned());
        cloud.nodes.get(&key).is_some_and(|node| node.state == "READY")
    });
}

#[test]
fn once_that_could_read_nothing_fails_also_when_an_earlier_one_could() {
    let rig = Rig::with_one_node("");
    assert_eq!(text(&rig.command(&["once"]).output().unwrap()).0, 0);
    rig.simulator.set_hook(Some(Box::new(|_| {
        let body = r#"{"error":{"code":403,"status":"PERMISSION_DENIED","message":"denied"}}"#;
        Some(tpu_watchdog::simulator::http::Fault::AnswerBefore(
            tpu_watchdog::simulator::wire::Reply::new(403, body),
        ))
    })));
    let (code, _, log) = text(&rig.command(&["once"]).output().unwrap());
    assert!(code == 1 && log.contains("no poll read every zone"), "{code} {log}");
    assert_eq!(text(&rig.command(&["plan"]).output().unwrap()).0, 1);
}

#[test]
fn the_demo_ends_by_itself_with_every_story_told() {
    let (code, out, log) = text(
        &Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
            .args(["demo", "--speed", "120"])
            .output()
            .unwrap(),
    );
    assert_eq!(code, 0, "{out}\n{log}");
    for words in [
        "sweep-2   recovered   preempted",
        "sweep-5   recovered   preempted",
        "refused creates waited out",
        "sweep-7   recovered   missing",
        "llama-1   recovered   maintenance",
        "llama-0   left alone  maintenance",
        "sweep-0   held        stopped",
        "11 of 12 TPUs are healthy; 0 healthy ones were deleted.",
    ] {
        assert!(out.contains(words), "{words} is not in\n{out}");
    }
}

#[test]
fn the_token_of_the_vm_goes_with_every_call_and_into_no_log() {
    let rig = Rig::with_one_node(&job("a"));
    let config =
        std::fs::read_to_string(rig.config()).unwrap().replace("credentials = \"anonymous\"", "");
    std::fs::write(rig.config(), config).unwrap();
    rig.trouble("a", Trouble::Preempt, None);
    let home = tempfile::tempdir().unwrap();
    let output = rig
        .command(&["once", "--deadline", "60s"])
        .env("GCE_METADATA_HOST", rig.base.trim_start_matches("http://"))
        .env("HOME", home.path())
        .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
        .env("RUST_LOG", "debug")
        .output()
        .unwrap();
    let (code, out, log) = text(&output);
    assert_eq!((code, rig.creations("a")), (0, 2), "{log}");
    assert!(!format!("{out}{log}").contains("simulated-access-token"), "{log}");
    let calls: Vec<_> =
        rig.simulator.log().into_iter().filter(|l| !l.path.contains("computeMetadata")).collect();
    assert!(
        calls.iter().any(|l| l.path.contains("list-type")),
        "the bucket is listed with the same credentials"
    );
    assert!(calls.iter().all(|l| l.authorized), "{calls:?}");
}

#[test]
fn the_newest_checkpoint_is_found_on_s3_too() {
    let rig = Rig::with_one_node(&job("a").replace("gs://", "s3://"));
    rig.wait("the job has saved something", |cloud| {
        cloud.objects.contains_key("bucket/a/10/commit_success.txt")
    });
    rig.trouble("a", Trouble::Preempt, None);
    let output = rig
        .command(&["once", "--deadline", "60s"])
        .env("AWS_ENDPOINT", &rig.base)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "simulated")
        .env("AWS_SECRET_ACCESS_KEY", "simulated")
        .output()
        .unwrap();
    let (code, _, log) = text(&output);
    assert_eq!((code, rig.creations("a")), (0, 2), "{log}");
    let order = rig.node("a").unwrap().run.order;
    assert!(
        order.checkpoint.starts_with("s3://bucket/a/") && order.step.is_some_and(|s| s >= 10),
        "{order:?}"
    );
}

#[test]
fn a_journal_that_is_damaged_or_newer_is_refused_before_anything_is_asked() {
    let rig = Rig::with_one_node("");
    let state = rig.folder.path().join("state.db");
    let refused = |words: &str| {
        let before = std::fs::read(&state).unwrap();
        for command in ["run", "once", "status", "plan"] {
            let (code, _, log) = text(&rig.command(&[command]).output().unwrap());
            assert!(code == 1 && log.contains(words), "{command}: {code} {log}");
        }
        assert_eq!(std::fs::read(&state).unwrap(), before, "nothing was changed");
        assert!(rig.simulator.log().is_empty(), "nothing was asked");
    };
    std::fs::write(&state, vec![7u8; 8192]).unwrap();
    refused("damaged or not a database");
    std::fs::remove_file(&state).unwrap();
    let newer = rusqlite::Connection::open(&state).unwrap();
    newer
        .execute_batch(
            "PRAGMA application_id = 1414550871; PRAGMA user_version = 99; CREATE TABLE t (a);",
        )
        .unwrap();
    drop(newer);
    refused("schema version is 99");
}

#[test]
fn without_credentials_it_says_what_to_do() {
    let rig = Rig::with_one_node("");
    let config =
        std::fs::read_to_string(rig.config()).unwrap().replace("credentials = \"anonymous\"", "");
    std::fs::write(rig.config(), config).unwrap();
    let file = rig.folder.path().join("no-such-file.json");
    let output =
        rig.command(&["plan"]).env("GOOGLE_APPLICATION_CREDENTIALS", file).output().unwrap();
    let (code, _, log) = text(&output);
    assert_eq!(code, 1);
    assert!(log.contains("gcloud auth application-default login"), "{log}");
    // A journal on this machine is shown without any.
    let file = rig.folder.path().join("no-such-file.json");
    let output =
        rig.command(&["status"]).env("GOOGLE_APPLICATION_CREDENTIALS", file).output().unwrap();
    assert!(text(&output).2.contains("there is no state yet"), "{}", text(&output).2);
}

#[test]
fn logs_for_cloud_logging_are_one_json_object_a_line() {
    let rig = Rig::with_one_node("");
    rig.trouble("a", Trouble::Preempt, None);
    let output = rig.command(&["--log", "json", "once", "--deadline", "60s"]).output().unwrap();
    let (code, out, log) = text(&output);
    assert_eq!(code, 0, "{log}");
    let lines: Vec<serde_json::Value> =
        log.lines().chain(out.lines()).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.iter().all(|l| l["severity"].is_string()
            && l["time"].is_string()
            && l["message"].is_string()),
        "{log}"
    );
    let condemned = lines.iter().find(|l| l["event"] == "condemned").unwrap();
    assert_eq!((&condemned["severity"], &condemned["slot"]), (&"WARNING".into(), &"a".into()));
    assert!(
        condemned["message"].as_str().unwrap().contains("state PREEMPTED"),
        "every decision has its evidence"
    );
}

#[test]
fn v2alpha1_keeps_alpha_fields_and_sends_request_ids() {
    let mut rig = Rig::with_one_node("");
    rig.simulator.with(|cloud| {
        let node = cloud.nodes.values_mut().next().unwrap();
        node.body.insert("bootDiskConfig".into(), serde_json::json!({"diskSizeGb": "200"}));
    });
    let config = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), config.replace("[api]", "[api]\nversion = \"v2alpha1\"")).unwrap();
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    assert_eq!(rig.node("a").unwrap().body["bootDiskConfig"]["diskSizeGb"], "200");
    assert!(
        rig.mutations()
            .iter()
            .all(|m| m.path.starts_with("/v2alpha1/") && m.path.contains("requestId=")),
        "{}",
        rig.mutations_text()
    );
}

#[test]
fn fields_that_v2_hides_survive_a_recreate_also_where_v2alpha1_answers_no_more() {
    let mut rig = Rig::with_one_node("");
    rig.simulator.with(|cloud| {
        let node = cloud.nodes.values_mut().next().unwrap();
        node.body.insert("bootDiskConfig".into(), serde_json::json!({"diskSizeGb": "200"}));
    });
    rig.start();
    rig.wait_polls(2);
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let read = logged.method == "GET" && logged.path.starts_with("/v2alpha1/");
        read.then(|| Fault::AnswerBefore(Reply::new(404, "<html>no such version</html>")))
    })));
    for _ in 0..2 {
        let old = rig.node("a").unwrap().uid;
        rig.trouble("a", Trouble::Preempt, None);
        rig.wait_recovered("a", old);
        assert_eq!(rig.node("a").unwrap().body["bootDiskConfig"]["diskSizeGb"], "200");
    }
    let through = |m: &Logged| m.path.starts_with("/v2alpha1/");
    assert!(
        rig.mutations().iter().all(|m| through(m) == (m.method == "POST")),
        "{}",
        rig.mutations_text()
    );
    let warnings = rig.logs().matches("v2 is asked instead").count();
    assert_eq!(warnings, 1, "{}", rig.logs());
}

#[test]
fn sigterm_leaves_at_once_with_code_0() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let mut child = rig.child.lock().unwrap().take().unwrap();
    let killed = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn check_and_wrong_use_have_their_exit_codes() {
    let rig = Rig::with_one_node("");
    let (code, out, _) = text(&rig.command(&["check"]).output().unwrap());
    assert_eq!(code, 0);
    assert!(out.contains("is fine: project p, 1 TPU,"), "{out}");
    std::fs::write(
        rig.config(),
        "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\nkind = \"slice\"\n",
    )
    .unwrap();
    let (code, _, log) = text(&rig.command(&["check"]).output().unwrap());
    assert_eq!(code, 2);
    assert!(log.contains("watchdog.toml:5: tpu[0].kind: not supported yet"), "{log}");
}
