//! Slots that are a multislice: several nodes of one queued resource, watched, ordered and replaced as
//! one.

use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::simulator::things::{Node, Workload};
use tpu_watchdog::simulator::trouble::{Event, Trouble};

use crate::harness::{POLICY, Rig, ZONE, job};

const CREATE: &str = "[tpu.create]\naccelerator_type = \"v4-16\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\nnodes = 2\n";

/// The slot `a`, a request for two slices of two hosts each that the watchdog makes; each slice runs the job.
fn rig(grace: &str) -> Rig {
    let policy = POLICY.replace("boot = \"1s\"", &format!("boot = \"3s\", {grace}"));
    let slot = format!(
        "[[tpu]]\nname = \"a\"\nqueued_resource = \"qr\"\nzone = \"{ZONE}\"\n{CREATE}{}",
        job("a")
    );
    let rig = Rig::new("", &policy, &slot);
    rig.simulator.with(|cloud| {
        for node in ["a-0", "a-1"] {
            let job = Workload {
                checkpoint: "gs://bucket/a".into(),
                step: Duration::from_millis(100),
                every: 5,
                at_step: 10,
            };
            cloud.workloads.insert(node.into(), job);
        }
    });
    rig
}

fn slices(rig: &Rig) -> Vec<Node> {
    ["a-0", "a-1"].iter().filter_map(|node| rig.node(node)).collect()
}

fn seen(rig: &Rig) -> Value {
    rig.status()["tpus"][0].clone()
}

/// All slices run this generation or a later one, and nothing is wrong.
fn wait_whole(rig: &Rig, generation: u64) {
    rig.wait_until("both slices run", || {
        let slices = slices(rig);
        let runs = |node: &Node| node.run.order.generation >= generation && node.run.step > 0;
        slices.len() == 2 && slices.iter().all(runs) && seen(rig)["condition"] == "healthy"
    });
    rig.wait_until("the recovery is over", || seen(rig)["phase"].is_null());
}

/// The mutations so far, by method and the path below the zone.
fn mutations(rig: &Rig) -> Vec<String> {
    let call = |path: &str| path.split_once("/locations/").unwrap_or(("", path)).1.to_owned();
    let path = |path: &str| call(path).split('?').next().unwrap_or_default().to_owned();
    let zone = format!("{ZONE}/");
    rig.mutations()
        .iter()
        .map(|m| format!("{} {}", m.method, path(&m.path).replace(&zone, "")))
        .collect()
}

#[test]
fn a_multislice_is_made_watched_and_replaced_as_a_whole() {
    let mut rig = rig("slice = \"30s\"");
    rig.start();
    wait_whole(&rig, 1);
    let spec = json!({"nodeCount": 2, "nodeIdPrefix": "a"});
    let key = (ZONE.to_owned(), "qr".to_owned());
    let asked = rig.simulator.with(|cloud| cloud.queued[&key].body["tpu"]["nodeSpec"][0].clone());
    assert_eq!(asked["multisliceParams"], spec);
    rig.wait("a later step is saved", |cloud| {
        cloud.objects.contains_key("bucket/a/20/commit_success.txt")
    });
    // Capacity is taken back as a whole, as often as it likes.
    for round in 2..=4 {
        if round == 4 {
            // The third time there is none: the request waits in its place, and its watchdog dies.
            rig.simulator.with(|cloud| {
                let event = |what| Event {
                    at: Duration::ZERO,
                    node: String::new(),
                    zone: ZONE.into(),
                    what,
                    lasts: None,
                };
                cloud.trouble(event(Trouble::StockOut));
            });
        }
        rig.trouble("a-1", Trouble::Preempt, None);
        if round == 4 {
            rig.wait_until("it is asked for again", || mutations(&rig).len() == 7);
            rig.wait_until("it waits", || seen(&rig)["condition"] == "waiting");
            rig.kill();
            // The grant comes late, to a process that did not ask for it.
            rig.simulator.with(|cloud| cloud.refusals.clear());
            rig.start();
        }
        rig.wait_until("it is replaced", || {
            slices(&rig).iter().all(|node| node.run.order.generation >= round)
                && slices(&rig).len() == 2
        });
        wait_whole(&rig, round);
        let orders: Vec<RunOrder> =
            slices(&rig).iter().map(|node| node.run.order.clone()).collect();
        assert_eq!(orders[0], orders[1]);
        assert!(orders[0].step >= Some(20), "{orders:?}");
    }
    let calls = mutations(&rig);
    let expected: Vec<&str> = std::iter::once("POST queuedResources")
        .chain(["DELETE queuedResources/qr", "POST queuedResources"].repeat(3))
        .collect();
    assert_eq!(calls, expected);
}

#[test]
fn a_lost_slice_is_waited_for_then_the_multislice_is_replaced_with_its_living_slice() {
    let mut rig = rig("slice = \"1s\"");
    rig.start();
    wait_whole(&rig, 1);
    let old: Vec<u64> = slices(&rig).iter().map(|node| node.uid).collect();
    // The job can't run without it.
    rig.simulator.with(|cloud| cloud.workloads.clear());
    rig.simulator.with(|cloud| cloud.nodes.remove(&(ZONE.to_owned(), "a-1".to_owned())));
    rig.wait_for_log("1 of its 2 slices are lost: a-1 is not there");
    rig.wait_until("both are new", || {
        let new = slices(&rig);
        new.len() == 2 && new.iter().all(|node| !old.contains(&node.uid))
    });
    assert_eq!(mutations(&rig)[1], "DELETE queuedResources/qr");
    assert!(rig.mutations()[1].path.contains("force=true"), "{}", rig.mutations_text());
}

#[test]
fn an_order_reaches_every_slice() {
    let mut rig = rig("slice = \"30s\"");
    rig.start();
    wait_whole(&rig, 1);
    rig.wait_until("the first step is told", || seen(&rig)["job"]["step"].as_u64() > Some(5));
    let asked = rig.command(&["relaunch", "a"]).output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    rig.wait_until("both slices run the next generation", || {
        slices(&rig).iter().all(|node| node.run.order.generation >= 2)
    });
    wait_whole(&rig, 2);
    let patches: Vec<String> =
        mutations(&rig).into_iter().filter(|call| call.starts_with("PATCH")).collect();
    assert_eq!(patches, ["PATCH nodes/a-0", "PATCH nodes/a-1"]);
    rig.wait_for_log("the order of generation 2");
    // Google's repair makes a slice as the request asked for it, with the order of then.
    rig.simulator.with(|cloud| {
        let node = cloud.nodes.get_mut(&(ZONE.to_owned(), "a-1".to_owned())).unwrap();
        let former = RunOrder { generation: 1, ..node.run.order.clone() };
        node.body["metadata"]["tpu-watchdog-run"] = json!(former.text());
        node.run.order = former;
    });
    rig.wait_until("it has the present order", || slices(&rig)[1].run.order.generation >= 2);
    let calls = mutations(&rig);
    assert_eq!(calls[3..], ["PATCH nodes/a-1"], "{calls:?}");
    wait_whole(&rig, 2);
    // The last of four hosts is the second of the second slice.
    let logs = rig.command(&["logs", "a", "--worker", "3"]).output().unwrap();
    let words = String::from_utf8_lossy(&logs.stdout).into_owned();
    assert!(words.contains("ssh a-1 --zone us-central2-b --worker 1 "), "{words}");
}

#[test]
fn init_and_doctor_know_a_multislice_as_one() {
    let mut rig = rig("slice = \"30s\"");
    rig.start();
    wait_whole(&rig, 1);
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"));
        let output = command.args(arguments).env_remove("TPU_WATCHDOG_CONFIG").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.toml");
    let (base, file) = (rig.base.as_str(), file.to_str().unwrap());
    let endpoints = ["--api-tpu", base, "--api-storage", base, "--api-credentials", "anonymous"];
    let init = ["init", "--project", "p", "--yes", "--output", file];
    let text = run(&[&init[..], &endpoints[..]].concat());
    let shown = "READY in us-central2-b, 2 x v4-16";
    assert!(text.contains("qr   2 x v4-16") && text.contains(shown), "{text}");
    assert!(text.contains("Nothing is missing."), "{text}");
    let written = std::fs::read_to_string(file).unwrap();
    let slot = "[[tpu]]\nname = \"qr\"\nzone = \"us-central2-b\"\nqueued_resource = \"qr\"\n";
    assert!(written.contains(slot) && written.matches("[[tpu]]").count() == 1, "{written}");
    let config = rig.config();
    let of_the_slot = run(&["doctor", "--config", config.to_str().unwrap()]);
    assert!(of_the_slot.contains(shown), "{of_the_slot}");
}
