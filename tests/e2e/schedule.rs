//! Runs for a schedule, with state in a bucket: overlapping, killed, cut off, and still nothing is
//! forgotten.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tpu_watchdog::model::time::elapsed;
use tpu_watchdog::simulator::http::{Fault, Logged};
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::chaos::Dice;
use crate::harness::{POLICY, Rig, ZONE, get, job, slot};

const RUNS: usize = 300;
const SLOTS: usize = 20;
const AT_ONCE: usize = 3;

fn in_a_bucket(rig: &Rig) {
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), text.replace("sqlite:state.db", "gs://state/watchdog")).unwrap();
}

fn fleet(rig_policy: &str) -> Rig {
    let run =
        "job = { checkpoint = \"gs://bucket/{node}\", step = \"100ms\", every = 5, at_step = 10 }";
    let nodes = format!("[[nodes]]\nprefix = \"n\"\ncount = {SLOTS}\nzone = \"{ZONE}\"\n{run}\n");
    let slots: String =
        (0..SLOTS).map(|i| slot(&format!("n{i}"), &job(&format!("n{i}")))).collect();
    let rig = Rig::new(&nodes, rig_policy, &slots);
    in_a_bucket(&rig);
    rig
}

#[test]
fn three_hundred_runs_that_overlap_and_are_killed_bring_every_slot_back() {
    let policy =
        format!("max_unavailable = \"50%\"\nmax_judged_recreates_per_hour = 1000\n{POLICY}")
            .replace("storm = { min = 4 }", "storm = { min = 1000 }")
            .replace("attempts = {", "attempts = { max = 1000, preemptions = 1000,")
            .replace("startup = \"1s\"", "startup = \"5s\"");
    let rig = fleet(&policy);
    let mut dice = Dice(5);
    let mut running: Vec<(Child, Option<Instant>)> = Vec::new();
    let (mut started, mut killed, mut failed) = (0, 0, Vec::new());
    while started < RUNS || !running.is_empty() {
        running.retain_mut(|(child, end)| match child.try_wait().unwrap() {
            Some(status) => {
                // A run that was killed, or that had no time to read every zone, may fail; a wrong
                // use may not.
                if !status.success() && end.is_none() && status.code() != Some(1) {
                    failed.push(status);
                }
                false
            }
            None => {
                if end.is_some_and(|at| Instant::now() >= at) {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    killed += 1;
                    return false;
                }
                true
            }
        });
        if started < RUNS && running.len() < AT_ONCE {
            if started == 0 {
                for i in 0..SLOTS {
                    rig.trouble(&format!("n{i}"), Trouble::Preempt, None);
                }
            } else if dice.roll(4) == 0 {
                let name = format!("n{}", dice.roll(SLOTS as u64));
                match dice.roll(4) {
                    0 => rig.trouble(&name, Trouble::Preempt, None),
                    1 => rig.trouble(&name, Trouble::Vanish, None),
                    2 => rig.trouble(&name, Trouble::FailedRepair, None),
                    _ => rig.trouble("", Trouble::StockOut, Some(500)),
                };
            }
            let deadline = format!("{}ms", 2000 + dice.roll(4000));
            let log =
                std::fs::File::create(rig.folder.path().join(format!("once.{started}"))).unwrap();
            let mut command = rig.command(&["once", "--deadline", &deadline]);
            let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
            let end = (dice.roll(4) == 0)
                .then(|| Instant::now() + Duration::from_millis(dice.roll(3000)));
            running.push((child, end));
            started += 1;
        }
        // The pace of the schedule, not a wait for a condition.
        std::thread::sleep(Duration::from_millis(20 + dice.roll(300)));
    }
    assert!(failed.is_empty(), "{failed:?}");
    // Then the schedule goes on in peace.
    let began = Instant::now();
    loop {
        let output = rig.command(&["once", "--deadline", "20s"]).output().unwrap();
        let status = rig.status();
        let tpus = status["tpus"].as_array().unwrap();
        if tpus.iter().all(|s| s["condition"] == "healthy" && s["phase"].is_null()) {
            break;
        }
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            began.elapsed() < Duration::from_secs(180),
            "{status:#}\n{log}\n{}",
            rig.mutations_text()
        );
    }
    let status = rig.status();
    assert_eq!(status["tpus"].as_array().unwrap().len(), SLOTS);
    assert_eq!(
        rig.simulator.with(|c| (c.harmed, c.nodes.len())),
        (0, SLOTS),
        "{}",
        rig.mutations_text()
    );
    assert!(rig.simulator.with(|c| c.nodes.values().all(|n| n.state == "READY")));
    // One write a second of one object, whoever writes.
    let log = rig.simulator.log();
    let written =
        |l: &&Logged| l.method == "PUT" && l.path.contains("state.json") && l.status == Some(200);
    let writes: Vec<Timestamp> = log.iter().filter(written).map(|l| l.at).collect();
    let span = elapsed(writes[0], writes[writes.len() - 1]).as_secs();
    println!(
        "{started} runs, {killed} killed, {} deletes and creates, {} writes of the state object within {span} s",
        rig.mutations().len(),
        writes.len(),
    );
    assert!(
        writes.len() as u64 <= span + 2,
        "{} writes of one object within {span} s",
        writes.len()
    );
}

#[test]
fn counters_survive_each_run_and_grow() {
    let rig = fleet(POLICY);
    rig.trouble("n0", Trouble::Preempt, None);
    let run = || rig.command(&["once", "--deadline", "60s"]).output().unwrap();
    let tally = || {
        let body = rig.simulator.with(|c| c.objects["state/watchdog/state.json"].body.clone());
        let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let count = |key: &str| document["tally"][key].as_f64().unwrap_or(0.0);
        (count("recoveries_total|preempted"), count("api_requests_total|tpu|nodes.list"))
    };
    assert!(run().status.success());
    let first = tally();
    assert_eq!(first.0, 1.0);
    rig.trouble("n1", Trouble::Preempt, None);
    assert!(run().status.success());
    let second = tally();
    assert_eq!(second.0, 2.0);
    assert!(second.1 > first.1, "{first:?} {second:?}");
}

#[test]
fn the_state_moves_from_a_file_to_a_bucket_and_the_file_is_closed() {
    let rig = Rig::with_one_node("");
    let run = |arguments: &[&str]| {
        let output = rig.command(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(run(&["once", "--deadline", "20s"]).0, 0);
    let file = format!("sqlite:{}", rig.folder.path().join("state.db").display());
    // A person's word that no run has read yet moves with it.
    assert_eq!(run(&["pause", "a", "--reason", "moving"]).0, 0);
    let (code, out, log) = run(&["state", "migrate", &file, "gs://state/watchdog"]);
    assert!(
        code == 0 && out.contains("moved 1 slot ") && out.contains("the next run: 1."),
        "{out}{log}"
    );
    let (code, _, log) = run(&["once"]);
    assert!(
        code == 1 && log.contains("state = \"gs://state/watchdog\""),
        "the old one is refused: {log}"
    );
    in_a_bucket(&rig);
    rig.trouble("a", Trouble::Preempt, None);
    let before = rig.simulator.log().len();
    let (_, _, log) = run(&["once", "--deadline", "60s"]);
    assert_eq!(rig.creations("a"), 1, "it is paused: {log}");
    // However slow the bucket is: what a person said before a run is known to it before it looks at
    // any TPU.
    let asked = rig.simulator.log().split_off(before);
    let first = |part: &str| asked.iter().position(|l| l.path.contains(part)).unwrap();
    assert!(
        first("levers") < first("/nodes"),
        "{:?}",
        asked.iter().map(|l| &l.path).collect::<Vec<_>>()
    );
    assert_eq!(run(&["resume", "a"]).0, 0);
    assert_eq!(run(&["once", "--deadline", "60s"]).0, 0);
    assert_eq!(rig.creations("a"), 2);
    // And back, into a new file; a config that still names the bucket is told so by every command.
    let back = format!("sqlite:{}", rig.folder.path().join("back.db").display());
    let (code, out, log) = run(&["state", "migrate", "gs://state/watchdog", &back]);
    assert!(code == 0 && out.contains("moved 1 slot "), "{out}{log}");
    for command in ["once", "status", "plan"] {
        let (code, _, log) = run(&[command]);
        assert!(code == 1 && log.contains("this state was moved to"), "{command}: {log}");
    }
    let (code, _, log) = run(&["state", "migrate", "gs://state/watchdog", "gs://state/watchdog"]);
    assert!(code == 2 && log.contains("same place"), "{log}");
    let (code, _, log) = run(&["state", "migrate", "memory:", "gs://state/x"]);
    assert!(code == 2 && log.contains("FROM"), "{log}");
}

#[test]
fn a_run_whose_bucket_never_answers_ends_at_its_deadline_and_says_why() {
    let rig = Rig::with_one_node("");
    in_a_bucket(&rig);
    let text = std::fs::read_to_string(rig.config()).unwrap();
    let text = text
        .replace("timeout = \"2s\"", "timeout = \"1h\"")
        .replace("lease = \"1s\"", "lease = \"3h\"");
    std::fs::write(rig.config(), text).unwrap();
    rig.simulator.set_hook(Some(Box::new(|logged| {
        logged.path.contains("state.json").then_some(Fault::Hang)
    })));
    let output = rig.command(&["once", "--deadline", "2s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&line["severity"], &line["once"]["result"]),
        (&"ERROR".into(), &"failed".into()),
        "{line}"
    );
    assert!(
        line["message"].as_str().unwrap().contains("did not answer before the deadline"),
        "{line}"
    );
}

#[test]
fn a_run_that_is_told_to_stop_in_the_middle_of_a_recovery_leaves_in_order_and_the_next_carries_on()
{
    let rig = Rig::with_one_node(&job("a"));
    in_a_bucket(&rig);
    rig.trouble("", Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    let log = std::fs::File::create(rig.folder.path().join("once.log")).unwrap();
    let mut child = rig
        .command(&["once", "--deadline", "10m"])
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    rig.wait("the node is deleted, and its create refused", |c| c.nodes.is_empty());
    let refused = || {
        std::fs::read_to_string(rig.folder.path().join("once.log")).unwrap().contains("stock_out")
    };
    rig.wait_until("the refusal is in the journal", refused);
    let stopped = std::process::Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(stopped.success());
    let mut out = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut out).unwrap();
    assert!(child.wait().unwrap().success(), "{out}");
    assert!(out.contains("1 recovery continues in the next run"), "{out}");
    let lease = rig.simulator.with(|c| c.objects["state/watchdog/state.json"].body.clone());
    assert!(String::from_utf8_lossy(&lease).contains("\"released\":true"), "it gave the lock back");
    rig.simulator.with(|c| c.refusals.clear());
    assert!(rig.command(&["once", "--deadline", "60s"]).output().unwrap().status.success());
    assert_eq!(rig.creations("a"), 2);
}

#[test]
fn while_the_bucket_is_down_nothing_is_done_and_afterwards_it_catches_up() {
    let mut rig = Rig::with_one_node("");
    in_a_bucket(&rig);
    rig.start();
    rig.wait_polls(3);
    let old = rig.node("a").unwrap().uid;
    let endpoint = rig.endpoint();
    rig.simulator.set_hook(Some(Box::new(|logged| {
        logged.path.starts_with("/state/").then(|| Fault::AnswerBefore(Reply::new(503, "down")))
    })));
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("it is tried again every second");
    rig.wait_polls(6);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    assert_eq!(get(&format!("{endpoint}/-/ready")).0, 503);
    assert!(get(&format!("{endpoint}/metrics")).1.contains("tpuwatchdog_store_failing 1"));
    rig.simulator.set_hook(None);
    rig.wait_for_log("the journal can be written again");
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2);
}

#[test]
fn commits_that_fall_together_become_one_write() {
    let mut rig = fleet(POLICY);
    rig.start();
    rig.wait_polls(3);
    let writes = || {
        let log = rig.simulator.log();
        log.iter()
            .filter(|l| l.method == "PUT" && l.path.contains("state.json") && l.status == Some(200))
            .count()
    };
    let before = writes();
    for i in 0..SLOTS {
        rig.trouble(&format!("n{i}"), Trouble::Preempt, None);
    }
    rig.wait("all are created again", |c| (0..SLOTS).all(|i| c.creations[&format!("n{i}")] == 2));
    // Each delete and each create stands in the journal before it is sent.
    let (written, mutations) = (writes() - before, rig.mutations().len());
    println!("{mutations} deletes and creates, {written} writes");
    assert!(written < mutations / 2, "{written} writes for {mutations} mutations");
}

#[test]
fn a_reload_that_would_change_what_the_clients_were_made_for_is_refused() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(
        rig.config(),
        text.replace("project = \"p\"", "project = \"other\"")
            .replace("name = \"a\"", "name = \"b\""),
    )
    .unwrap();
    let pid = rig.child.lock().unwrap().as_ref().unwrap().id().to_string();
    assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    rig.wait_for_log("nothing was reloaded: restart it");
    rig.wait_polls(5);
    assert!(
        rig.mutations().is_empty(),
        "nothing is created in the wrong project: {}",
        rig.mutations_text()
    );
}

#[test]
fn a_config_that_the_service_has_not_loaded_is_told_until_it_has() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let told = |rig: &Rig, command: &str| {
        let output = rig.command(&[command]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("has not loaded it")
    };
    assert!(!told(&rig, "status") && !told(&rig, "plan"));
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), format!("{text}\n# Changed by hand.\n")).unwrap();
    assert!(told(&rig, "status") && told(&rig, "plan"));
    let pid = rig.child.lock().unwrap().as_ref().unwrap().id().to_string();
    assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    rig.wait_for_log("the config was reloaded: nothing in it has changed");
    rig.wait_polls(2);
    assert!(!told(&rig, "status") && !told(&rig, "plan"));
}
