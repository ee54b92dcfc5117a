//! The journal on a disk, with real processes: 200 rounds of SIGKILL at the points between two
//! writes and at any other moment, and a disk that is full for a while.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tpu_watchdog::simulator::http::{Fault, Logged};
use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{POLICY, Rig, ZONE, get, job, kill, slot};

const RIGS: u32 = 8;
const ROUNDS: u32 = 25;

type Point = (&'static str, fn(&Logged) -> bool);

/// The requests that stand right before or right after a write of the journal.
const POINTS: [Point; 6] = [
    ("the delete", |logged| logged.method == "DELETE"),
    ("the create", |logged| logged.method == "POST" && logged.path.contains("/nodes?")),
    ("a look at an operation", |logged| logged.path.contains("/operations/")),
    ("a GET of the node", |logged| logged.method == "GET" && logged.path.ends_with("/nodes/a")),
    ("a listing of checkpoints", |logged| logged.path.contains("list-type")),
    ("what the workers report", |logged| logged.path.contains("getGuestAttributes")),
];

fn preempted_with_patience(rig: u32) -> Rig {
    let run =
        "job = { checkpoint = \"gs://bucket/{node}\", step = \"100ms\", every = 5, at_step = 10 }";
    let nodes = format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\nspot = true\n{run}\n");
    let policy =
        POLICY.replace("settled = \"60s\"", "settled = \"60s\", max = 1000, preemptions = 1000");
    assert_ne!(policy, POLICY, "rig {rig}");
    Rig::new(&nodes, &policy, &slot("a", &job("a")))
}

/// Kills the process once: at a request, before or after it is carried out, or when `moment` is
/// over.
fn one_round(rig: &mut Rig, number: u32) {
    let old = rig.node("a").unwrap().uid;
    let done = Arc::new(AtomicBool::new(false));
    let choice = number as usize % (POINTS.len() * 2 + 3);
    if choice < POINTS.len() * 2 {
        let ((point, is_it), before, mut struck) =
            (POINTS[choice / 2], choice.is_multiple_of(2), false);
        let (child, flag) = (Arc::clone(&rig.child), Arc::clone(&done));
        rig.simulator.set_hook(Some(Box::new(move |logged| {
            if !is_it(logged) || std::mem::replace(&mut struck, true) {
                return None;
            }
            let (child, flag) = (Arc::clone(&child), Arc::clone(&flag));
            // Done when it is dead, no sooner: a kill that comes late would hit its successor.
            let then = Box::new(move || {
                kill(&child);
                flag.store(true, Ordering::SeqCst);
            });
            Some(if before { Fault::Before(then) } else { Fault::After(then) })
        })));
        rig.trouble("a", Trouble::Preempt, None);
        rig.wait(&format!("the kill at {point}"), |_| done.load(Ordering::SeqCst));
    } else {
        rig.trouble("a", Trouble::Preempt, None);
        // Any moment: that it differs from round to round is the point.
        std::thread::sleep(Duration::from_millis(u64::from(number * 37 % 700)));
        rig.kill();
    }
    rig.simulator.set_hook(None);
    rig.start();
    rig.wait_recovered("a", old);
}

#[test]
fn two_hundred_kills_forget_no_owed_create_and_repeat_none() {
    std::thread::scope(|scope| {
        for index in 0..RIGS {
            scope.spawn(move || {
                let mut rig = preempted_with_patience(index);
                rig.start();
                rig.wait_polls(2);
                for round in 0..ROUNDS {
                    one_round(&mut rig, index * ROUNDS + round);
                    assert_eq!(
                        rig.creations("a"),
                        round + 2,
                        "round {round} of rig {index}\n{}",
                        rig.mutations_text()
                    );
                    assert_eq!(
                        rig.simulator.with(|cloud| cloud.harmed),
                        0,
                        "{}",
                        rig.mutations_text()
                    );
                }
            });
        }
    });
}

/// Sets how large a file this process may write: a disk that is full from there on.
fn limit_files(pid: u32, bytes: &str) {
    let limit = format!("--fsize={bytes}:unlimited");
    let done = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), &limit])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(done.success());
}

#[test]
fn while_the_disk_is_full_nothing_is_sent_and_afterwards_it_goes_on() {
    let mut rig = preempted_with_patience(0);
    rig.start_ignoring_sigxfsz();
    rig.wait_polls(2);
    let pid = rig.child.lock().unwrap().as_ref().unwrap().id();
    // Its log can't be written either: the metrics tell.
    let metrics = format!("{}/metrics", rig.endpoint());
    limit_files(pid, "1");
    rig.wait_until("the store fails", || get(&metrics).1.contains("tpuwatchdog_store_failing 1"));
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    for _ in 0..5 {
        rig.wait_polls(1);
        assert!(get(&metrics).1.contains("tpuwatchdog_store_failing 1"));
        assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    }
    limit_files(pid, "unlimited");
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
}

#[test]
fn while_the_disk_is_full_after_a_delete_the_create_waits_and_is_not_forgotten() {
    let mut rig = preempted_with_patience(0);
    rig.start_ignoring_sigxfsz();
    rig.wait_polls(2);
    let pid = rig.child.lock().unwrap().as_ref().unwrap().id();
    let metrics = format!("{}/metrics", rig.endpoint());
    // Carried out, and not answered: what follows can't be written down.
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        (logged.method == "DELETE").then(|| Fault::After(Box::new(move || limit_files(pid, "1"))))
    })));
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_until("the store fails", || get(&metrics).1.contains("tpuwatchdog_store_failing 1"));
    rig.wait("the node is gone", |cloud| cloud.nodes.is_empty());
    for _ in 0..5 {
        rig.wait_polls(1);
        assert_eq!(rig.mutations().len(), 1, "{}", rig.mutations_text());
    }
    limit_files(pid, "unlimited");
    rig.wait_recovered("a", old);
    assert_eq!((rig.creations("a"), rig.mutations().len()), (2, 2), "{}", rig.mutations_text());
}
