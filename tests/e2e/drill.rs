//! `drill` with the real binary: what it measures, what it follows, and when it refuses.

use std::process::{Command, Output};

use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{POLICY, Rig, ZONE, job, slot};
use tpu_watchdog::simulator::trouble::Trouble;

/// A slot whose node was made by the watchdog, and whose maintenance passes.
fn ours() -> Rig {
    let mut rig = Rig::with_one_node(&job("a"));
    let policy = POLICY.replace("maintenance = \"1s\"", "maintenance = \"1h\"");
    rig.configure("", &policy, &slot("a", &job("a")));
    // As long as some polls.
    rig.simulator.with(|cloud| cloud.timing.change = std::time::Duration::from_secs(2));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    rig.wait_until("its job runs", || rig.status()["tpus"][0]["job"]["state"] == "running");
    rig
}

fn drill(rig: &Rig, arguments: &[&str]) -> (Option<i32>, String, String) {
    let id = rig.node("a").unwrap().uid.to_string();
    let mut all = vec!["drill", "a", "--incarnation", &id];
    all.extend(arguments);
    let Output { status, stdout, stderr } = rig.command(&all).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_drill_measures_the_order_and_follows_a_maintenance_that_passes() {
    let rig = ours();
    let (code, out, err) = drill(&rig, &["--for", "1m"]);
    assert_eq!(code, Some(0), "{out}{err}");
    for part in [
        "pause until ",
        "every worker has read its order and waits",
        "A changed run order reached every host within ",
        "drill by ",
        ": a maintenance event is simulated on worker 0",
        "the API has taken it: projects/p/",
        "healthy -> maintenance",
        "Seen as maintenance after ",
        "it came back by itself, and nothing was deleted",
    ] {
        assert!(out.contains(part), "{part:?} is missing in\n{out}{err}");
    }
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
    let order = rig.node("a").unwrap().body["metadata"]["tpu-watchdog-run"].clone();
    assert!(!order.to_string().contains("wait"), "the pause is taken back: {order}");
}

#[test]
fn a_drill_needs_the_tpu_that_is_meant_somebody_who_watches_and_the_right() {
    let rig = ours();
    let refused = |output: &Output, code: i32, part: &str| {
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert!(err.contains(part), "{part:?} is missing in {err}");
    };
    let run = |rig: &Rig, arguments: &[&str]| rig.command(arguments).output().unwrap();
    refused(&run(&rig, &["drill", "a"]), 2, "Say which TPU is meant: --incarnation ");
    refused(&run(&rig, &["drill", "a", "--incarnation", "7"]), 2, "Say which TPU is meant");
    refused(&run(&rig, &["drill", "b", "--incarnation", "7"]), 2, "there is no slot \"b\"");
    assert!(run(&rig, &["pause", "a"]).status.success());
    rig.wait_until("it is paused", || rig.status()["tpus"][0]["paused"] == true);
    let (code, _, err) = drill(&rig, &[]);
    assert_eq!(code, Some(2));
    assert!(err.contains("it is paused, so that nothing would mend its TPU"), "{err}");
    assert!(run(&rig, &["resume", "a"]).status.success());
    rig.wait_until("it is not", || rig.status()["tpus"][0]["paused"] == false);
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let event = logged.path.contains(":simulateMaintenanceEvent");
        let body = r#"{"error": {"code": 403, "message": "Permission denied", "status": "PERMISSION_DENIED"}}"#;
        event.then(|| Fault::AnswerBefore(Reply::new(403, body)))
    })));
    let (code, out, err) = drill(&rig, &[]);
    assert_eq!(code, Some(1), "{out}");
    assert!(err.contains("the maintenance event was refused") && err.contains("403"), "{err}");
    rig.simulator.set_hook(None);
    let mut child = rig.child.lock().unwrap().take().unwrap();
    let ended = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
    assert!(ended.success() && child.wait().unwrap().success());
    let (code, _, err) = drill(&rig, &[]);
    assert_eq!(code, Some(1));
    assert!(err.contains("no watchdog runs that could react"), "{err}");
}

#[test]
fn a_drill_of_a_multislice_strikes_its_first_slice_and_follows_the_whole_slot() {
    let policy = POLICY
        .replace("maintenance = \"1s\"", "maintenance = \"1h\"")
        .replace("boot = \"1s\"", "boot = \"3s\", slice = \"1h\"");
    let slot = format!(
        "[[tpu]]\nname = \"a\"\nqueued_resource = \"qr\"\nzone = \"{ZONE}\"\n[tpu.create]\n\
         accelerator_type = \"v4-16\"\nruntime_version = \"r\"\nspot = true\nnodes = 2\n{}",
        job("a")
    );
    let mut rig = Rig::new("", &policy, &slot);
    rig.start();
    rig.wait_polls(1);
    let seen = || rig.status()["tpus"][0].clone();
    rig.wait_until("both slices are up", || {
        seen()["condition"] == "healthy" && rig.node("a-1").is_some_and(|node| node.run.boots > 0)
    });
    rig.simulator.with(|cloud| cloud.timing.change = std::time::Duration::from_secs(2));
    let id = seen()["incarnation"]["id"].as_str().unwrap().to_owned();
    let all = ["drill", "a", "--incarnation", &id, "--for", "1m"];
    let Output { status, stdout, stderr } = rig.command(&all).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(stdout), text(stderr));
    assert_eq!(status.code(), Some(0), "{out}{err}");
    for part in [
        "a maintenance event is simulated on worker 0 of a-0",
        "Seen as maintenance after ",
        "it came back by itself, and nothing was deleted",
    ] {
        assert!(out.contains(part), "{part:?} is missing in\n{out}{err}");
    }
}
