//! Rules that a person's commands and Google's answers are part of: recreate, forget, deletions on
//! purpose, creates that could not follow, nodes that no slot owns.

use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{POLICY, Rig, ZONE, job, request, slot};

/// A command that must succeed.
#[track_caller]
fn order(rig: &Rig, arguments: &[&str]) {
    let output = rig.command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(rig: &Rig, command: &str) -> String {
    String::from_utf8_lossy(&rig.command(&[command]).output().unwrap().stdout).into_owned()
}

fn hold(rig: &Rig) -> String {
    rig.status()["tpus"][0]["hold"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_healthy_tpu_is_recreated_where_an_operator_names_its_incarnation() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let refused = rig.command(&["recreate", "a"]).output().unwrap();
    let log = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && log.contains("--incarnation"), "{log}");
    let id = rig.status()["tpus"][0]["incarnation"]["id"].as_str().unwrap().to_owned();
    order(&rig, &["recreate", "a", "--incarnation", &id]);
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
}

#[test]
fn s21_a_create_that_forget_called_off_is_not_sent_until_retry_wants_it() {
    let mut rig = Rig::with_one_node(&job("a"));
    // Long enough for a command between two tries.
    let policy = POLICY.replace(
        "stock_out = { first = \"200ms\", max = \"400ms\" }",
        "stock_out = { first = \"20s\", max = \"20s\" }",
    );
    rig.configure("", &policy, &slot("a", &job("a")));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let over = rig.trouble("", Trouble::StockOut, Some(4_000)) + Duration::from_secs(4);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("create failed (stock_out)");
    order(&rig, &["forget", "a"]);
    rig.wait_until("it is forgotten", || hold(&rig) == "forgotten");
    let sent = rig.mutations().len();
    // Capacity is there again, and nothing is created.
    rig.wait("the stock-out is over", |cloud| cloud.now() > over);
    rig.wait_polls(4);
    assert_eq!(rig.mutations().len(), sent, "{}", rig.mutations_text());
    order(&rig, &["retry", "a"]);
    rig.wait_recovered("a", old);
}

#[test]
fn a_node_that_a_person_deletes_while_it_works_stays_deleted() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(3);
    rig.trouble("a", Trouble::Deleting, None);
    rig.wait_for_log("another client is deleting it");
    rig.trouble("a", Trouble::Vanish, None);
    rig.wait_until("it is told", || hold(&rig) == "deleted");
    rig.wait_polls(4);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    assert!(text(&rig, "status").contains("`recreate a` creates it again"));
    order(&rig, &["recreate", "a"]);
    rig.wait("it is created again", |cloud| cloud.creations.get("a") == Some(&2));
}

#[test]
fn a_node_that_a_person_deletes_again_and_unseen_stays_deleted() {
    let mut rig = Rig::with_one_node("");
    let person = rig.door("person");
    let delete = || {
        let path = format!("v2/projects/p/locations/{ZONE}/nodes/a");
        assert_eq!(request("DELETE", &format!("{person}/{path}")).0, 200);
    };
    // No poll sees it DELETING.
    rig.simulator.with(|cloud| cloud.timing.delete = Duration::ZERO);
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Vanish, None);
    rig.wait_recovered("a", old);
    delete();
    rig.wait_until("it is told", || hold(&rig) == "deleted");
    rig.wait_polls(4);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
    // Operations that may not be listed are no evidence, and told.
    rig.simulator.with(|cloud| cloud.denied.insert("tpu.operations.list".into()));
    order(&rig, &["recreate", "a"]);
    rig.wait("it is created again", |cloud| cloud.creations.get("a") == Some(&3));
    rig.wait_until("it is healthy", || rig.status()["tpus"][0]["condition"] == "healthy");
    delete();
    rig.wait("it is created again", |cloud| cloud.creations.get("a") == Some(&4));
    rig.wait_for_log("whether it was deleted on purpose is not known");
}

#[test]
fn s7_the_opt_out_of_a_tpu_that_is_gone_ends_with_resume() {
    let mut rig = Rig::with_one_node("");
    rig.trouble("a", Trouble::OptOut, None);
    rig.start();
    rig.wait_polls(2);
    let refused = rig.command(&["resume", "a"]).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("remove that label"), "{told}");
    rig.trouble("a", Trouble::Vanish, None);
    rig.wait_until("it is held", || hold(&rig) == "opted_out");
    assert!(text(&rig, "status").contains("`resume a` releases the create"));
    order(&rig, &["resume", "a"]);
    rig.wait("it is created again", |cloud| cloud.creations.get("a") == Some(&2));
}

#[test]
fn a_node_of_another_watchdog_is_ours_after_resume_with_adopt() {
    let mut rig = Rig::with_one_node("");
    let run = json!({"generation": 7, "checkpoint": ""}).to_string();
    let metadata = json!({
        "tpu-watchdog-owner": "another", "tpu-watchdog-slot": "a", "tpu-watchdog-run": run,
    });
    rig.simulator.with(|cloud| {
        let node = cloud.nodes.values_mut().next().unwrap();
        node.body.insert("metadata".into(), metadata);
    });
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_until("it is held", || hold(&rig) == "other_owner");
    rig.wait_polls(4);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    order(&rig, &["resume", "a", "--adopt"]);
    rig.wait_recovered("a", old);
    let metadata = rig.node("a").unwrap().body["metadata"].clone();
    let order: Value =
        serde_json::from_str(metadata["tpu-watchdog-run"].as_str().unwrap()).unwrap();
    assert_eq!(order["generation"], 8, "it goes on from the highest that was seen");
    assert_ne!(metadata["tpu-watchdog-owner"], "another");
}

/// Google denies the right to create; the watchdog asks for its rights.
fn without_the_right_to_create(policy: &str) -> Rig {
    let mut rig = Rig::with_one_node("");
    rig.configure("", policy, &slot("a", ""));
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let checks = format!("resource_manager = \"{0}\"\niam = \"{0}\"", rig.base);
    std::fs::write(rig.config(), config.replace("credentials = \"anonymous\"", &checks)).unwrap();
    rig.simulator.with(|cloud| cloud.denied.insert("tpu.nodes.create".into()));
    let home = rig.folder.path().to_str().unwrap().to_owned();
    let metadata = rig.base.trim_start_matches("http://").to_owned();
    rig.start_with(&[("GCE_METADATA_HOST", &metadata), ("HOME", &home)]);
    rig.wait_polls(2);
    rig
}

#[test]
fn s20_a_judged_tpu_is_kept_while_google_denies_the_right_to_create() {
    let rig = without_the_right_to_create(POLICY);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Unresponsive, None);
    rig.wait_until("it is held", || hold(&rig) == "cannot_create");
    rig.wait_polls(8);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    let shown = text(&rig, "status");
    assert!(shown.contains("tpu.nodes.create") && shown.contains("roles/tpu.admin"), "{shown}");
    rig.simulator.with(|cloud| cloud.denied.clear());
    // The right is checked again within five minutes, or after `retry`.
    order(&rig, &["retry", "a"]);
    rig.wait_until("it is recreated", || {
        rig.node("a").is_some_and(|node| node.uid != old && node.state == "READY")
    });
}

#[test]
fn s20_with_create_check_warn_the_missing_right_is_told_and_holds_nothing() {
    let policy = format!("{POLICY}\ncreate_check = \"warn\"");
    let rig = without_the_right_to_create(&policy);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Unresponsive, None);
    rig.wait_for_log("which holds nothing with create_check = \"warn\"");
    rig.wait_for_log("create failed (permission)");
    let shown = text(&rig, "status");
    assert!(shown.contains("Warnings:") && shown.contains("tpu.nodes.create"), "{shown}");
    rig.simulator.with(|cloud| cloud.denied.clear());
    rig.wait_recovered("a", old);
}

#[test]
fn a_delete_that_google_refuses_is_told_and_tried_until_it_may() {
    let mut rig = Rig::with_one_node("");
    rig.simulator.with(|cloud| cloud.denied.insert("tpu.nodes.delete".into()));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_until("an operator is called", || hold(&rig) == "delete_failed");
    let shown = text(&rig, "status");
    assert!(shown.contains("tpu.nodes.delete") && shown.contains("tried again"), "{shown}");
    assert_eq!(rig.creations("a"), 1, "no create before its delete");
    rig.simulator.with(|cloud| cloud.denied.clear());
    rig.wait_recovered("a", old);
}

/// The slot's TPU is preempted, and `forget` comes when its create has been accepted.
fn forgotten_after_its_create(rig: &mut Rig) {
    rig.start();
    rig.wait_polls(2);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("create accepted");
    order(rig, &["forget", "a"]);
    rig.wait_for_log("can't be cancelled");
}

#[test]
fn s21_what_a_called_off_create_makes_is_told_until_its_slot_takes_it_up() {
    let run =
        "job = { checkpoint = \"gs://bucket/{node}\", step = \"100ms\", every = 5, at_step = 10 }";
    let nodes = format!(
        "[times]\ncreate = \"3s\"\n[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\nspot = true\n{run}\n"
    );
    let mut rig = Rig::new(&nodes, POLICY, &slot("a", &job("a")));
    forgotten_after_its_create(&mut rig);
    rig.wait_until("it is told", || {
        let shown = text(&rig, "status");
        shown.contains("Belongs to no slot") && shown.contains(&format!("in {ZONE}: READY"))
    });
    let base = rig.endpoint();
    let (_, metrics) = crate::harness::get(&format!("{base}/metrics"));
    assert!(metrics.contains("tpuwatchdog_orphans{kind=\"node\"} 1"), "{metrics}");
    let waits = |cloud: &mut Cloud| {
        let node = cloud.nodes.values().next().unwrap();
        let order = node.body["metadata"]["tpu-watchdog-run"].as_str().unwrap_or_default();
        order.contains("wait")
    };
    rig.wait("it is told to wait", waits);
    let sent = rig.mutations().len();
    order(&rig, &["retry", "a"]);
    rig.wait_until("its slot has it", || {
        let status = rig.status();
        status["strays"].as_array().is_some_and(Vec::is_empty)
            && status["tpus"][0]["condition"] == "healthy"
    });
    // As a stray it was told to wait; its slot takes that back, and changes nothing else.
    rig.wait("its job may start", |cloud| !waits(cloud));
    assert_eq!(rig.mutations().len(), sent + 1, "{}", rig.mutations_text());
}

#[test]
fn s17_a_stray_that_can_not_run_is_removed_where_the_config_says_so() {
    let nodes = format!(
        "[times]\ncreate = \"3s\"\n[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\nspot = true\n"
    );
    let policy = format!("{POLICY}\norphans = \"dead\"");
    let mut rig = Rig::new(&nodes, &policy, &slot("a", ""));
    forgotten_after_its_create(&mut rig);
    rig.wait_until("it is told", || text(&rig, "status").contains(&format!("in {ZONE}: READY")));
    // It runs: it is left alone, until it is preempted.
    rig.wait_polls(4);
    let sent = rig.mutations().len();
    assert!(rig.node("a").is_some(), "{}", rig.mutations_text());
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait("it is removed", |cloud| cloud.nodes.is_empty());
    rig.wait_for_log("stray a in us-central2-b: it is gone");
    assert_eq!(rig.mutations().len(), sent + 1, "{}", rig.mutations_text());
    assert_eq!(rig.status()["strays"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_command_that_no_poll_has_taken_in_is_told_and_taken_back_by_the_next() {
    let rig = Rig::with_one_node("");
    order(&rig, &["once"]);
    let given = |arguments: &[&str]| {
        let output = rig.command(arguments).output().unwrap();
        let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), of(&output.stdout) + &of(&output.stderr))
    };
    order(&rig, &["pause", "a"]);
    assert!(text(&rig, "status").contains("waiting for the next poll: pause a by "));
    let (code, told) = given(&["resume", "a"]);
    assert!(code == Some(0) && told.contains("the pause of a ends"), "{told}");
    order(&rig, &["once"]);
    assert_eq!((rig.status()["tpus"][0]["paused"].as_bool(), hold(&rig)), (Some(false), "".into()));
    let (code, told) = given(&["resume", "a"]);
    assert!(code == Some(0) && told.contains("a is not paused; nothing was done"), "{told}");
    // There is nothing on an adopted TPU that could start its job again.
    let (code, told) = given(&["relaunch", "a"]);
    assert!(code == Some(2) && told.contains("has no command in the config"), "{told}");
    rig.configure("", POLICY, &slot("a", &job("a")));
    let (code, told) = given(&["relaunch", "a"]);
    assert!(code == Some(2) && told.contains("did not create the TPU of a"), "{told}");
}
