//! Slots that are queued resources: the request and its node are watched and replaced as one.

use serde_json::{Value, json};
use tpu_watchdog::simulator::api::handle;
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::things::Workload;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::{Reply, Request};

use crate::harness::{POLICY, Rig, ZONE, job};

const PARENT: &str = "projects/p/locations/us-central2-b";

/// The slot `a` is the queued resource `qr`, whose job has run for a while where `exists` says so.
fn rig(exists: bool, create: &str) -> Rig {
    let rig = Rig::new("", POLICY, &slot(create));
    rig.simulator.with(|cloud| {
        let job = Workload {
            checkpoint: "gs://bucket/a".into(),
            step: std::time::Duration::from_millis(100),
            every: 5,
            at_step: 10,
        };
        cloud.workloads.insert("a".into(), job);
    });
    if exists {
        call(&rig, "POST", "queuedResources", Some(("queuedResourceId", "qr")), Some(body("a")));
        rig.wait_until("the request is granted", || state(&rig) == Some("ACTIVE"));
    }
    rig
}

fn slot(create: &str) -> String {
    format!(
        "[[tpu]]\nname = \"a\"\nqueued_resource = \"qr\"\nzone = \"{ZONE}\"\n{create}\n{}",
        job("a")
    )
}

fn body(node: &str) -> Value {
    let wanted = json!({
        "acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "labels": {"team": "llm"},
        "metadata": {"startup-script": "#! /bin/bash\necho mine"},
    });
    json!({
        "tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": node, "node": wanted}]}, "spot": {},
        "queueingPolicy": {"validUntilDuration": "21600s"},
    })
}

/// A call of another client.
fn call(rig: &Rig, method: &str, path: &str, query: Option<(&str, &str)>, body: Option<Value>) {
    let query = query.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let path = format!("v2/{PARENT}/{path}");
    let request = Request { method, path: &path, query: &query, body };
    let (status, answer) = rig.simulator.with(|cloud| handle(cloud, &request));
    assert_eq!(status, 200, "{answer}");
}

fn state(rig: &Rig) -> Option<&'static str> {
    let key = (ZONE.to_owned(), "qr".to_owned());
    rig.simulator.with(|cloud| cloud.queued.get(&key).map(|queued| queued.state))
}

/// The body that the request was created with.
fn asked(rig: &Rig) -> Value {
    let key = (ZONE.to_owned(), "qr".to_owned());
    Value::Object(rig.simulator.with(|cloud| cloud.queued[&key].body.clone()))
}

fn seen(rig: &Rig) -> Value {
    rig.status()["tpus"][0].clone()
}

/// The mutations of queued resources and nodes so far, by method and path without its parameters.
fn mutations(rig: &Rig) -> Vec<String> {
    let call = |path: &str| path.split_once("/locations/").unwrap_or(("", path)).1.to_owned();
    let path = |path: &str| call(path).split('?').next().unwrap_or_default().to_owned();
    rig.mutations().iter().map(|m| format!("{} {}", m.method, path(&m.path))).collect()
}

#[test]
fn a_preempted_request_waits_out_a_stock_out_and_its_job_continues() {
    let mut rig = rig(true, "");
    rig.start();
    rig.wait_polls(2);
    rig.wait("the job saves a later step", |cloud| {
        cloud.objects.contains_key("bucket/a/20/commit_success.txt")
    });
    assert_eq!(seen(&rig)["condition"], "healthy");
    let old = rig.node("a").unwrap().uid;
    rig.trouble(ZONE, Trouble::StockOut, Some(3_000));
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_until("the next request waits", || {
        let seen = seen(&rig);
        seen["condition"] == "waiting" && seen["phase"] == "creating"
    });
    assert!(rig.node("a").is_none() && state(&rig) == Some("WAITING_FOR_RESOURCES"));
    rig.wait_recovered("a", old);
    let place = format!("{ZONE}/queuedResources");
    assert_eq!(mutations(&rig), [format!("DELETE {place}/qr"), format!("POST {place}")]);
    // As it was asked for, with what this program adds.
    let log = rig.mutations();
    let sent = asked(&rig);
    assert_eq!(sent["spot"], json!({}));
    assert_eq!(sent["queueingPolicy"], json!({"validUntilDuration": "21600s"}));
    let wanted = &sent["tpu"]["nodeSpec"][0]["node"];
    assert_eq!(wanted["labels"], json!({"team": "llm"}));
    assert_eq!(wanted["metadata"]["tpu-watchdog-user-script"], "#! /bin/bash\necho mine");
    assert!(log[1].path.contains("requestId=") && log[0].path.contains("force=false"), "{log:?}");
    let order = rig.node("a").unwrap().run.order;
    assert!(order.step >= Some(20), "{order:?}");
    rig.wait_until("its steps are told", || seen(&rig)["job"]["step"].as_u64() > order.step);
    // A second preemption, of a request that is this watchdog's own.
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    assert_eq!(mutations(&rig).len(), 4, "{}", rig.mutations_text());
}

#[test]
fn a_sick_node_is_replaced_with_its_request_and_never_alone() {
    let mut rig = rig(true, "");
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::FailedRepair, None);
    rig.wait_recovered("a", old);
    let place = format!("{ZONE}/queuedResources");
    assert_eq!(mutations(&rig), [format!("DELETE {place}/qr"), format!("POST {place}")]);
    assert!(rig.mutations()[0].path.contains("force=true"), "{}", rig.mutations_text());
}

#[test]
fn a_request_that_does_not_exist_is_made_from_the_config_and_what_fails_is_removed() {
    let create = "[tpu.create]\naccelerator_type = \"v4-8\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\nvalid_until = \"6h\"\n";
    let mut rig = rig(false, create);
    rig.start();
    rig.wait_until("it is asked for", || state(&rig) == Some("PROVISIONING"));
    // Capacity is gone while it is being filled: SUSPENDING, then FAILED.
    rig.trouble(ZONE, Trouble::StockOut, Some(1_500));
    rig.wait_until("the request that failed is removed", || {
        mutations(&rig).iter().any(|call| call.starts_with("DELETE"))
    });
    rig.wait_recovered("a", 0);
    let sent = asked(&rig);
    assert_eq!(sent["queueingPolicy"], json!({"validUntilDuration": "21600s"}));
    assert_eq!(sent["tpu"]["nodeSpec"][0]["nodeId"], "a");
    let calls = mutations(&rig);
    assert_eq!(calls.iter().filter(|call| call.starts_with("POST")).count(), 2, "{calls:?}");
    assert_eq!(rig.creations("a"), 2);
}

#[test]
fn a_request_whose_job_has_ended_is_shown_by_sweep_and_goes_when_it_is_named() {
    let create = "[tpu.create]\naccelerator_type = \"v4-8\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\n";
    let mut rig = rig(false, create);
    rig.start();
    rig.wait_recovered("a", 0);
    let sweep = |more: &[&str]| {
        let output = rig.command(&["sweep"]).args(more).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text + &String::from_utf8_lossy(&output.stderr)
    };
    let text = sweep(&[]);
    assert!(text.contains("nothing uses quota without doing work"), "{text}");
    rig.trouble("a", Trouble::JobEnds, None);
    rig.wait_until("it has ended", || seen(&rig)["condition"] == "finished");
    let text = sweep(&[]);
    assert!(text.contains("qr") && text.contains("ACTIVE and idle"), "{text}");
    rig.kill();
    let body = rig.node("a").unwrap().body;
    let owner = body["metadata"]["tpu-watchdog-owner"].as_str().unwrap();
    let text = sweep(&["qr", "--yes", "--owner", owner]);
    assert!(text.contains("qr: deleted") && rig.node("a").is_none(), "{text}");
}

#[test]
fn a_request_that_a_person_deleted_stays_deleted() {
    let mut rig = rig(true, "");
    rig.start();
    rig.wait_polls(3);
    call(&rig, "DELETE", "queuedResources/qr", Some(("force", "true")), None);
    rig.wait_until("it is held as deleted", || seen(&rig)["hold"] == "deleted");
    rig.wait_polls(3);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

#[test]
fn a_request_that_waits_is_left_in_its_place() {
    let mut rig = rig(false, "");
    rig.trouble(ZONE, Trouble::StockOut, None);
    call(&rig, "POST", "queuedResources", Some(("queuedResourceId", "qr")), Some(body("a")));
    rig.start();
    rig.wait_polls(2);
    rig.wait_until("it is seen", || seen(&rig)["condition"] == "waiting");
    let refused = rig.command(&["recreate", "a", "--yes"]).output().unwrap();
    rig.wait_polls(4);
    assert_eq!((state(&rig), mutations(&rig).len()), (Some("WAITING_FOR_RESOURCES"), 0));
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn s21_a_request_that_was_called_off_is_withdrawn_and_told_until_it_is_gone() {
    let create = "[tpu.create]\naccelerator_type = \"v4-8\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\n";
    let mut rig = rig(false, create);
    let lost = rig.command(&["plan", "--if-lost", "a"]).output().unwrap();
    let words = String::from_utf8_lossy(&lost.stdout).into_owned();
    assert!(words.contains(r#"{"validUntilDuration":"604800s"}"#), "bounded, and shown: {words}");
    rig.trouble(ZONE, Trouble::StockOut, None);
    rig.start();
    rig.wait_until("it waits", || state(&rig) == Some("WAITING_FOR_RESOURCES"));
    rig.wait_until("that is shown", || seen(&rig)["condition"] == "waiting");
    let forgets = rig.command(&["forget", "a"]).output().unwrap();
    assert!(forgets.status.success(), "{forgets:?}");
    let strays = |rig: &Rig| rig.status()["strays"].clone();
    rig.wait_until("it is withdrawn", || state(&rig).is_none());
    rig.wait_until("it is told no longer", || strays(&rig).as_array().is_some_and(Vec::is_empty));
    let place = format!("{ZONE}/queuedResources");
    assert_eq!(mutations(&rig), [format!("POST {place}"), format!("DELETE {place}/qr")]);
    assert!(rig.mutations()[1].path.contains("force=false"), "{}", rig.mutations_text());
    rig.wait_polls(3);
    assert_eq!(mutations(&rig).len(), 2, "a forgotten slot is not created again");
}

#[test]
fn s7_a_request_that_was_called_off_is_kept_while_it_is_paused_and_told_once_it_is_granted() {
    let create = "[tpu.create]\naccelerator_type = \"v4-8\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\n";
    let mut rig = rig(false, create);
    rig.trouble(ZONE, Trouble::StockOut, None);
    rig.start();
    rig.wait_until("it waits", || state(&rig) == Some("WAITING_FOR_RESOURCES"));
    rig.wait_until("that is shown", || seen(&rig)["condition"] == "waiting");
    let paused = rig.command(&["pause", "a"]).output().unwrap();
    let words = String::from_utf8_lossy(&paused.stdout).into_owned();
    assert!(words.contains("its request keeps waiting and may be granted"), "{words}");
    rig.wait_until("it is paused", || seen(&rig)["paused"] == true);
    // Out of the config as well: it is looked for all the same.
    rig.configure("", POLICY, &format!("[[tpu]]\nname = \"b\"\nzone = \"{ZONE}\"\n"));
    rig.kill();
    rig.start();
    let strays = |rig: &Rig| rig.status()["strays"].clone();
    rig.wait_until("the request is told", || strays(&rig)[0]["state"] == "WAITING_FOR_RESOURCES");
    rig.wait_polls(3);
    assert_eq!(mutations(&rig).len(), 1, "{}", rig.mutations_text());
    rig.simulator.with(|cloud| cloud.refusals.clear());
    rig.wait_until("the grant is told", || strays(&rig)[0]["state"] == "ACTIVE");
    assert!(rig.command(&["resume", "a"]).output().unwrap().status.success());
    rig.wait_polls(3);
    let deletes = mutations(&rig).iter().filter(|call| call.starts_with("DELETE")).count();
    assert_eq!((deletes, state(&rig)), (0, Some("ACTIVE")), "{}", rig.mutations_text());
    // It takes a person, who names it.
    let sweep = |more: &[&str]| {
        let output = rig.command(&["sweep"]).args(more).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
    };
    let (_, text) = sweep(&[]);
    assert!(text.contains("ACTIVE and billed, and no slot owns it"), "{text}");
    assert_eq!(state(&rig), Some("ACTIVE"));
    let (done, text) = sweep(&["qr", "--yes"]);
    assert!(done, "{text}");
    rig.wait_until("it is gone", || state(&rig).is_none() && strays(&rig)[0].is_null());
}

#[test]
fn l9_a_queue_that_gives_nothing_is_left_for_that_of_the_next_zone() {
    const OTHER: &str = "us-east5-a";
    let mut rig = rig(true, "");
    let config = std::fs::read_to_string(rig.config()).unwrap();
    let zone = format!("zone = \"{ZONE}\"\n");
    let zones =
        format!("zones = [\"{ZONE}\", \"{OTHER}\"]\npolicy = {{ grace = {{ queue = \"1s\" }} }}\n");
    assert!(config.contains(&zone), "{config}");
    std::fs::write(rig.config(), config.replace(&zone, &zones)).unwrap();
    rig.start();
    rig.wait_polls(2);
    rig.trouble(ZONE, Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    let there = (OTHER.to_owned(), "qr".to_owned());
    rig.wait("it is granted in the next zone", |cloud| {
        cloud.queued.get(&there).is_some_and(|request| request.state == "ACTIVE")
    });
    rig.wait_until("it is healthy there", || {
        let seen = seen(&rig);
        seen["condition"] == "healthy" && seen["phase"].is_null() && seen["zone"] == OTHER
    });
    // S21: the one that waited was withdrawn, and was gone, before the next was asked for.
    assert_eq!(state(&rig), None);
    let here = format!("{ZONE}/queuedResources");
    let expected = [
        format!("DELETE {here}/qr"),
        format!("POST {here}"),
        format!("DELETE {here}/qr"),
        format!("POST {OTHER}/queuedResources"),
    ];
    assert_eq!(mutations(&rig), expected, "{}", rig.mutations_text());
}

#[test]
fn a_request_is_replaced_as_it_was_also_where_v2alpha1_does_not_answer() {
    let mut rig = rig(true, "");
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let read = logged.method == "GET" && logged.path.starts_with("/v2alpha1/");
        read.then(|| Fault::AnswerBefore(Reply::new(404, "<html>not found</html>")))
    })));
    let doctor = rig.command(&["doctor"]).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("v2 hides whether its queued resource is reserved"), "{text}");
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    let sent = asked(&rig);
    assert_eq!(
        (&sent["spot"], &sent["tpu"]["nodeSpec"][0]["node"]["labels"]),
        (&json!({}), &json!({"team": "llm"}))
    );
    assert_eq!(sent["queueingPolicy"], json!({"validUntilDuration": "21600s"}));
    assert_eq!(mutations(&rig).len(), 2, "{}", rig.mutations_text());
}
