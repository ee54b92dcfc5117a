//! `sweep`: shows what holds quota and serves nobody, and deletes only what is named, while it is dead.

use serde_json::{Value, json};
use tpu_watchdog::simulator::api::handle;
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::{Reply, Request};

use crate::harness::Rig;

const TWO: &str =
    "[[nodes]]\nnames = [\"dead\", \"well\"]\nzone = \"us-central2-b\"\nspot = true\n";

fn rig() -> (Rig, tempfile::TempDir) {
    (Rig::new(TWO, "", ""), tempfile::tempdir().unwrap())
}

/// Runs it without a config, and gives the exit code and all that it said.
fn sweep((rig, folder): &(Rig, tempfile::TempDir), more: &[&str]) -> (i32, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
        .args(["sweep", "--project", "p", "--api-tpu", &rig.base, "--api-credentials", "anonymous"])
        .args(more)
        .env_remove("TPU_WATCHDOG_CONFIG")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap(), text + &String::from_utf8_lossy(&output.stderr))
}

/// Asks for a queued resource of one node.
fn request(rig: &Rig, id: &str, owner: Option<&str>) {
    let metadata = owner.map_or(json!({}), |owner| json!({"tpu-watchdog-owner": owner}));
    let node = json!({
        "acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "metadata": metadata,
    });
    let parent = "projects/p/locations/us-central2-b";
    let spec = json!({"parent": parent, "nodeId": format!("{id}-node"), "node": node});
    let body: Value = json!({"tpu": {"nodeSpec": [spec]}, "spot": {}});
    let query = [("queuedResourceId".to_owned(), id.to_owned())].into();
    let (path, body) = (format!("v2/{parent}/queuedResources"), Some(body));
    let request = Request { method: "POST", path: &path, query: &query, body };
    assert_eq!(rig.simulator.with(|cloud| handle(cloud, &request)).0, 200);
}

fn state(rig: &Rig, id: &str) -> Option<&'static str> {
    let key = ("us-central2-b".to_owned(), id.to_owned());
    rig.simulator.with(|cloud| cloud.queued.get(&key).map(|queued| queued.state))
}

#[test]
fn what_is_dead_is_shown_and_only_what_is_named_is_deleted() {
    let test = rig();
    let rig = &test.0;
    request(rig, "granted", None);
    rig.wait_until("the request is granted", || state(rig, "granted") == Some("ACTIVE"));
    let (code, text) = sweep(&test, &[]);
    assert!(code == 0 && text.contains("nothing uses quota without doing work"), "{text}");
    rig.trouble("dead", Trouble::Preempt, None);
    rig.trouble("granted-node", Trouble::Preempt, None);
    rig.wait_until("it is suspended", || state(rig, "granted") == Some("SUSPENDED"));
    let before = rig.mutations().len();
    let (code, text) = sweep(&test, &[]);
    for words in ["dead", "PREEMPTED", "granted", "SUSPENDED: its capacity was taken back"] {
        assert!(code == 0 && text.contains(words), "{words}: {text}");
    }
    assert!(text.contains("2 of p use quota without doing work: 2 x v4-8"), "{text}");
    assert!(!text.contains("granted-node") && !text.contains("well "), "{text}");
    let (code, text) = sweep(&test, &["dead"]);
    assert!(code == 0 && text.contains("would delete dead in us-central2-b"), "{text}");
    let (code, text) = sweep(&test, &["dead", "well", "--yes"]);
    assert!(
        code == 2 && text.contains("well is READY: sweep deletes only what it shows"),
        "{text}"
    );
    assert_eq!(rig.mutations().len(), before, "{}", rig.mutations_text());
    let (code, text) = sweep(&test, &["dead", "granted", "--yes"]);
    assert!(
        code == 0 && text.contains("dead: deleted") && text.contains("granted: deleted"),
        "{text}"
    );
    assert_eq!((state(rig, "granted"), rig.node("granted-node").is_some()), (None, false));
    assert!(rig.node("dead").is_none() && rig.node("well").is_some());
}

#[test]
fn what_a_watchdog_made_is_deleted_only_with_its_id() {
    let test = rig();
    request(&test.0, "theirs", Some("another-store"));
    let granted = || state(&test.0, "theirs") == Some("ACTIVE");
    test.0.wait_until("the request is granted", granted);
    test.0.trouble("theirs-node", Trouble::Preempt, None);
    test.0.wait_until("it is suspended", || state(&test.0, "theirs") == Some("SUSPENDED"));
    for more in [&["theirs", "--yes"][..], &["theirs", "--yes", "--owner", "this-one"]] {
        let (code, text) = sweep(&test, more);
        assert!(code == 2 && text.contains("say --owner another-store"), "{text}");
    }
    assert!(state(&test.0, "theirs").is_some());
    let (code, text) = sweep(&test, &["theirs", "--yes", "--owner", "another-store"]);
    assert!(code == 0 && text.contains("theirs: deleted"), "{text}");
}

#[test]
fn requests_that_may_not_be_listed_hide_no_tpu() {
    let test = rig();
    test.0.trouble("dead", Trouble::Preempt, None);
    test.0.simulator.set_hook(Some(Box::new(|logged| {
        let body = r#"{"error": {"code": 403, "message": "no", "status": "PERMISSION_DENIED"}}"#;
        let requests = logged.path.contains("/queuedResources");
        requests.then(|| Fault::AnswerBefore(Reply::new(403, body)))
    })));
    let (code, text) = sweep(&test, &[]);
    assert!(code == 0 && text.contains("! the queued resources can't be listed"), "{text}");
    assert!(text.contains("PREEMPTED: it can't come back"), "{text}");
}
