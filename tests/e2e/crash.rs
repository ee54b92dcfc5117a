//! SIGKILL and lost answers at every mutation of a recovery: exactly one recreate, the same final
//! state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tpu_watchdog::simulator::http::{Fault, Logged, Simulator};
use tpu_watchdog::simulator::things::Operation;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{Rig, job, kill, slot};

#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    Before,
    After,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Kill,
    LoseTheAnswer,
}

/// Whether this is the request, or one of those, that is meant.
type IsIt = fn(&Simulator, &Logged) -> bool;

/// The request that `is_it` picks (the `k`-th of its kind) is hit once.
fn hit(rig: &Rig, k: usize, is_it: IsIt, when: When, what: What) -> Arc<AtomicBool> {
    let (child, done, mut seen) = (Arc::clone(&rig.child), Arc::new(AtomicBool::new(false)), 0);
    let (flag, simulator) = (Arc::clone(&done), rig.simulator.clone());
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        if !is_it(&simulator, logged) {
            return None;
        }
        seen += 1;
        if seen != k {
            return None;
        }
        let (child, flag) = (Arc::clone(&child), Arc::clone(&flag));
        let then = Box::new(move || {
            if what == What::Kill {
                kill(&child);
            }
            flag.store(true, Ordering::SeqCst);
        });
        Some(if when == When::Before { Fault::Before(then) } else { Fault::After(then) })
    })));
    done
}

#[track_caller]
fn one_recreate(trouble: Trouble, k: usize, is_it: IsIt, when: When, what: What) {
    let mut rig = Rig::with_one_node(&job("a"));
    let healthy = rig.simulator.with(|cloud| {
        let body = cloud.nodes.values().next().unwrap().body.clone();
        cloud.add_node(crate::harness::ZONE, "b", body, true)
    });
    // Long enough to be looked at while it runs, and well within the grace of what is being
    // created.
    let long = std::time::Duration::from_secs(2);
    rig.simulator.with(|cloud| (cloud.timing.delete, cloud.timing.create) = (long, long));
    let text = std::fs::read_to_string(rig.config()).unwrap();
    let text = text.replace("startup = \"1s\"", "startup = \"20s\"");
    std::fs::write(rig.config(), format!("{text}\n{}", slot("b", ""))).unwrap();
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let done = hit(&rig, k, is_it, when, what);
    rig.trouble("a", trouble, None);
    rig.wait("the fault strikes", |_| done.load(Ordering::SeqCst));
    if what == What::Kill {
        rig.start();
    }
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
    assert_eq!(rig.creations("b"), 1, "{}", rig.mutations_text());
    assert_eq!(rig.node("b").unwrap().uid, healthy);
    assert_eq!(rig.simulator.with(|cloud| cloud.harmed), 0, "{}", rig.mutations_text());
    assert!(rig.mutations().iter().all(|m| !m.path.contains("/nodes/b")));
    let body = rig.node("a").unwrap().body;
    assert_eq!(body["labels"]["team"], "llm", "the specification survived");
    assert_eq!(body["metadata"]["tpu-watchdog-user-script"], "#! /bin/bash\n# the user's own\n");
    assert!(
        body["metadata"]["tpu-watchdog-run"]
            .as_str()
            .unwrap()
            .contains("\"checkpoint\":\"gs://bucket/a/")
    );
}

macro_rules! at_mutations {
    ($($name:ident: $trouble:ident, $k:literal, $when:ident, $what:ident;)+) => {
        $(#[test] fn $name() { one_recreate(Trouble::$trouble, $k, |_, logged| logged.is_mutation(), When::$when, What::$what); })+
    };
}

at_mutations! {
    killed_before_the_delete: Preempt, 1, Before, Kill;
    killed_after_the_delete: Preempt, 1, After, Kill;
    killed_before_the_create: Preempt, 2, Before, Kill;
    killed_after_the_create: Preempt, 2, After, Kill;
    killed_before_the_delete_of_a_judged_one: Maintenance, 1, Before, Kill;
    killed_after_the_delete_of_a_judged_one: Maintenance, 1, After, Kill;
    killed_before_the_create_of_a_judged_one: Maintenance, 2, Before, Kill;
    killed_after_the_create_of_a_judged_one: Maintenance, 2, After, Kill;
    the_delete_never_arrives: Preempt, 1, Before, LoseTheAnswer;
    the_answer_of_the_delete_is_lost: Preempt, 1, After, LoseTheAnswer;
    the_create_never_arrives: Preempt, 2, Before, LoseTheAnswer;
    the_answer_of_the_create_is_lost: Preempt, 2, After, LoseTheAnswer;
    killed_before_the_create_of_a_missing_one: Vanish, 1, Before, Kill;
    killed_after_the_create_of_a_missing_one: Vanish, 1, After, Kill;
    the_create_of_a_missing_one_never_arrives: Vanish, 1, Before, LoseTheAnswer;
    the_answer_of_the_create_of_a_missing_one_is_lost: Vanish, 1, After, LoseTheAnswer;
}

fn is_operation(logged: &Logged) -> bool {
    logged.path.contains("/operations/")
}

/// A look at an operation of this kind; `ended`: one that will be told that it has ended.
fn looks_at(simulator: &Simulator, logged: &Logged, verb: &str, ended: bool) -> bool {
    let name = logged.path.trim_start_matches("/v2/");
    let is_it = |o: &Operation| o.verb == verb && o.ended.is_some() == ended;
    is_operation(logged) && simulator.with(|cloud| cloud.operations.get(name).is_some_and(is_it))
}

fn is_confirmation(logged: &Logged) -> bool {
    logged.method == "GET" && logged.path.ends_with("/nodes/a")
}

#[test]
fn killed_while_the_delete_runs() {
    one_recreate(
        Trouble::Preempt,
        1,
        |s, l| looks_at(s, l, "delete", false),
        When::Before,
        What::Kill,
    );
}

#[test]
fn killed_when_the_delete_is_done() {
    one_recreate(
        Trouble::Preempt,
        1,
        |s, l| looks_at(s, l, "delete", true),
        When::After,
        What::Kill,
    );
}

#[test]
fn killed_while_the_create_runs() {
    one_recreate(
        Trouble::Preempt,
        1,
        |s, l| looks_at(s, l, "create", false),
        When::After,
        What::Kill,
    );
}

#[test]
fn killed_at_the_confirming_read() {
    one_recreate(Trouble::Preempt, 1, |_, logged| is_confirmation(logged), When::After, What::Kill);
}

#[test]
fn the_answer_of_the_confirming_read_is_lost() {
    one_recreate(
        Trouble::Maintenance,
        1,
        |_, logged| is_confirmation(logged),
        When::After,
        What::LoseTheAnswer,
    );
}

#[test]
fn the_answer_of_a_look_at_the_delete_is_lost() {
    one_recreate(
        Trouble::Preempt,
        1,
        |s, l| looks_at(s, l, "delete", false),
        When::After,
        What::LoseTheAnswer,
    );
}

#[test]
fn the_answer_of_a_look_at_the_create_is_lost() {
    one_recreate(
        Trouble::Preempt,
        1,
        |s, l| looks_at(s, l, "create", false),
        When::Before,
        What::LoseTheAnswer,
    );
}

#[test]
fn the_answer_of_the_guest_attributes_is_lost() {
    let is_it: IsIt = |_, logged| logged.path.contains(":getGuestAttributes");
    one_recreate(Trouble::Preempt, 1, is_it, When::After, What::LoseTheAnswer);
}

#[test]
fn the_answer_of_the_bucket_is_lost() {
    let is_it: IsIt = |_, logged| logged.path.contains("list-type");
    one_recreate(Trouble::Preempt, 1, is_it, When::After, What::LoseTheAnswer);
}

#[test]
fn an_operation_that_cannot_be_read_says_nothing_about_itself() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let reply = tpu_watchdog::simulator::wire::Reply::new(
            404,
            r#"{"error":{"code":404,"status":"NOT_FOUND","message":"gone"}}"#,
        );
        is_operation(logged).then_some(Fault::AnswerBefore(reply))
    })));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
    assert!(rig.logs().contains("the node itself is looked at"));
}

#[test]
fn a_node_that_heals_between_the_decision_and_the_delete_is_left_alone() {
    healed_by_the_confirming_read(Trouble::Heal);
}

#[test]
fn a_node_that_a_person_replaces_between_the_decision_and_the_delete_is_left_alone() {
    healed_by_the_confirming_read(Trouble::Replace);
}

/// The world changes right before the confirming GET is answered.
#[track_caller]
fn healed_by_the_confirming_read(change: Trouble) {
    let mut rig = Rig::with_one_node("");
    let simulator = rig.simulator.clone();
    let done = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&done);
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        if is_confirmation(logged) && !flag.load(Ordering::SeqCst) {
            simulator.with(|cloud| {
                let event = |what| tpu_watchdog::simulator::trouble::Event {
                    at: std::time::Duration::ZERO,
                    node: "a".into(),
                    zone: crate::harness::ZONE.into(),
                    what,
                    lasts: None,
                };
                cloud.trouble(event(change));
            });
            flag.store(true, Ordering::SeqCst);
        }
        None
    })));
    rig.start();
    rig.wait_polls(2);
    rig.trouble("a", Trouble::Unresponsive, None);
    rig.wait("the confirming GET", |_| done.load(Ordering::SeqCst));
    let uid = rig.node("a").unwrap().uid;
    rig.wait_polls(8);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    assert_eq!(rig.node("a").unwrap().uid, uid);
}
