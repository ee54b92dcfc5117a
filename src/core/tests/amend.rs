//! The flags of the present run order: when they are changed, and when not.

use super::super::check::{self, Case};
use super::endings::CommandKind;
use super::relaunch::{WAITS, accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::command::Pause;
use crate::model::ids::RunOrder;
use crate::model::relaunch::Patch;
use crate::model::slot::Seen;

impl World {
    /// A run whose workers have this supervisor, at work. Returns its node.
    pub fn at_work(&mut self, version: &str) -> Value {
        let node = self.supervised_run();
        self.workers_say(&[(1, version, None)]);
        self.polled(&node);
        node
    }

    /// A run on two hosts whose order says `wait`. Returns its node.
    pub fn paused_on_two_hosts(&mut self) -> Value {
        let mut node = self.supervised_run();
        node["networkEndpoints"] = json!([{}, {}]);
        self.workers_say(&[(1, "v3", None), (1, "v3", None)]);
        self.polled(&node);
        self.pause();
        let waiting = patched(&node, &self.run_order().expect("an order"));
        self.ordered(accepted());
        self.polled(&waiting);
        waiting
    }

    fn polled(&mut self, node: &Value) {
        self.wait(30);
        self.poll(std::slice::from_ref(node));
    }

    fn pause(&mut self) {
        self.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    }

    pub fn resume(&mut self) {
        self.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    }
}

#[test]
fn s22_a_pause_orders_to_wait_and_its_end_takes_that_back_each_once() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    let order = RunOrder { generation: 1, ..present(&node) };
    world.pause();
    let waits = world.run_order().expect("an order");
    assert_eq!(waits, RunOrder { wait: true, ..order.clone() }, "its generation stays");
    assert!(world.events.iter().any(|event| matches!(event, What::Amendment { wait: true, .. })));
    world.ordered(accepted());
    let waiting = patched(&node, &waits);
    world.polled(&waiting);
    world.workers_say(&[(1, "v3 wait", None)]);
    assert!(world.messages[0].contains("every worker has read its order and waits"));
    for _ in 0..30 {
        world.polled(&waiting);
        assert!(world.actions.is_empty(), "L2: {:?}", world.actions);
    }
    world.resume();
    let goes_on = world.run_order().expect("an order");
    assert_eq!(goes_on, order);
    world.ordered(accepted());
    for _ in 0..30 {
        world.polled(&node);
        assert!(world.actions.is_empty(), "L2: {:?}", world.actions);
    }
}

pub fn present(node: &Value) -> RunOrder {
    serde_json::from_str(node["metadata"]["tpu-watchdog-run"].as_str().unwrap()).unwrap()
}

#[test]
fn s17_nothing_is_written_to_an_older_supervisor_or_where_nothing_may_be_called() {
    type Change = fn(&mut World, &mut Value);
    let changes: [(&str, Change); 5] = [
        ("v2", |_, _| ()),
        ("v3", |world, _| world.fleet.settings.dry_run = true),
        ("v3", |_, node| node["labels"] = json!({"tpu-watchdog": "off"})),
        ("v3", |_, node| node["state"] = json!("STOPPED")),
        // An order that this journal never sent.
        ("v3", |world, _| world.fleet.slots.get_mut("a").unwrap().job.generation = 0),
    ];
    for (index, (version, change)) in changes.into_iter().enumerate() {
        let mut world = with_checkpoints();
        let mut node = world.at_work(version);
        change(&mut world, &mut node);
        world.polled(&node);
        world.pause();
        for _ in 0..10 {
            world.polled(&node);
            assert!(world.actions.is_empty(), "{index}: {:?}", world.actions);
        }
    }
}

#[test]
fn what_was_refused_is_no_hold_and_is_tried_again_after_five_minutes() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.pause();
    assert!(world.run_order().is_some());
    world.ordered(CallOutcome::Refused(Failure::new(FailureClass::Conflict, "busy")));
    assert!(world.messages.iter().any(|text| text.contains("tried again in 5m")));
    let again = (1..=20).find(|_| {
        world.polled(&node);
        world.run_order().is_some()
    });
    assert_eq!(again, Some(10));
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    // Without the right it is tried some times a day, and at once when it is asked for again.
    world.ordered(CallOutcome::Refused(Failure::new(FailureClass::Permission, "no")));
    assert!(world.messages.iter().any(|text| text.contains("tried again in 6h")));
    for _ in 0..100 {
        world.polled(&node);
        assert!(world.actions.is_empty(), "{:?}", world.actions);
    }
    world.resume();
    world.pause();
    assert!(world.run_order().is_some());
}

#[test]
fn s11_a_process_that_ends_before_the_answer_reads_it_back() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.pause();
    let waits = world.run_order().expect("an order");
    let (settings, slots, ledger) =
        (world.fleet.settings.clone(), world.fleet.slots.clone(), world.fleet.ledger.clone());
    world.fleet = Fleet::new(settings.clone(), slots, ledger);
    world.input(Input::Configured(Box::new(settings)));
    world.polled(&patched(&node, &waits));
    assert!(world.fleet.slots["a"].job.amendment.is_none() && world.actions.is_empty());
    let told = |what: &What| matches!(what, What::OrderOutcome { result: CallResult::Done, .. });
    assert!(world.events.iter().any(told), "{:?}", world.messages);
}

#[test]
fn a_spot_tpu_whose_end_is_announced_asks_its_job_for_a_checkpoint() {
    for (spot, asks) in [(true, true), (true, false), (false, true)] {
        let mut world = with_checkpoints();
        let mut settings = world.fleet.settings.clone();
        let job = settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
        job.on_notice = asks.then(|| "SIGUSR1".to_owned());
        world.input(Input::Configured(Box::new(settings)));
        let mut node = world.at_work("v3");
        node["schedulingConfig"] = json!({"spot": spot});
        world.polled(&node);
        let mut sick = node.clone();
        sick["health"] = json!("UNHEALTHY_MAINTENANCE");
        world.polled(&sick);
        assert_eq!(world.run_order().is_some_and(|order| order.notice), spot && asks);
        if !(spot && asks) {
            continue;
        }
        world.ordered(accepted());
        world.polled(&patched(&sick, &RunOrder { notice: true, ..present(&node) }));
        assert!(world.actions.is_empty());
        // It passes, and the notice with it.
        world.polled(&patched(&node, &RunOrder { notice: true, ..present(&node) }));
        assert_eq!(world.run_order(), Some(present(&node)));
    }
}

#[test]
fn s9_nothing_is_deleted_while_a_flag_is_on_its_way() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.pause();
    assert!(world.run_order().is_some());
    let mut dead = node;
    dead["state"] = json!("PREEMPTED");
    world.polled(&dead);
    assert!(world.actions.is_empty() && world.looks.is_empty(), "{:?}", world.looks);
}

#[test]
fn the_checker_refuses_changes_that_no_plan_may_send() {
    type Change<'a> = &'a dyn Fn(&mut Fleet, &mut RunOrder);
    let verdict = |change: Change| {
        let mut world = with_checkpoints();
        let node = world.at_work("v3");
        let mut order = RunOrder { wait: true, ..present(&node) };
        change(&mut world.fleet, &mut order);
        let (fleet, now) = (&world.fleet, world.now);
        let (slot, record, memory) =
            (&fleet.settings.slots["a"], &fleet.slots["a"], &fleet.memory["a"]);
        let (settings, ledger) = (&fleet.settings, &fleet.ledger);
        let case = Case { settings, slot, record, memory, ledger, now };
        let verdict = check::amendment(&case, &Patch::Order(order));
        verdict.map_err(|violation| violation.name())
    };
    fn seen(fleet: &mut Fleet) -> &mut Seen {
        fleet.slots.get_mut("a").unwrap().seen.as_mut().unwrap()
    }
    assert_eq!(verdict(&|_, _| ()), Ok(()), "the plan as it should be");
    assert_eq!(verdict(&|fleet, _| fleet.settings.dry_run = true), Err("S7"));
    assert_eq!(verdict(&|fleet, _| seen(fleet).opted_out = true), Err("S7"));
    let starts_while_paused = |fleet: &mut Fleet, order: &mut RunOrder| {
        fleet.ledger.paused =
            Some(Pause { who: "ada".into(), reason: None, until: None, since: None });
        order.wait = false;
    };
    assert_eq!(verdict(&starts_while_paused), Err("S7"));
    let calls =
        |fleet: &mut Fleet| _ = fleet.memory.get_mut("a").unwrap().pending.insert(Pending::Call);
    assert_eq!(verdict(&|fleet, _| calls(fleet)), Err("S9"));
    assert_eq!(verdict(&|fleet, _| seen(fleet).ready = false), Err("S10"));
    assert_eq!(verdict(&|_, order| order.generation = 2), Err("S15"));
    assert_eq!(verdict(&|_, order| order.step = None), Err("S15"));
    assert_eq!(verdict(&|fleet, _| seen(fleet).supervised = false), Err("S17"));
    assert_eq!(verdict(&|fleet, _| seen(fleet).is_v1 = true), Err("S17"));
}

#[test]
fn s17_a_release_takes_out_what_is_ours_once_and_the_slot_is_left_alone_until_retry() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.command(CommandKind::Release { slot: "a".into() });
    let released =
        |world: &World| matches!(world.actions[..], [Action::Patch { patch: Patch::Release, .. }]);
    assert!(released(&world), "{:?}", world.actions);
    world.input(Input::Ordered { slot: "a".into(), generation: 0, outcome: accepted() });
    let mut theirs = node.clone();
    theirs["metadata"] = json!({"startup-script": "#! /bin/sh\n"});
    world.polled(&theirs);
    assert!(
        !world.fleet.slots["a"].ours
            && world.messages[0].contains("its metadata has no keys of the watchdog left")
    );
    // A read that lags behind makes it ours no more.
    world.polled(&node);
    assert!(!world.fleet.slots["a"].ours);
    let mut lost = theirs.clone();
    lost["state"] = json!("PREEMPTED");
    for _ in 0..40 {
        world.polled(&lost);
        assert!(
            world.actions.is_empty() && !world.looks.iter().any(|l| matches!(l, Look::Node { .. }))
        );
    }
    assert_eq!(world.hold("a"), Some(HoldReason::Forgotten));
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.get("a", Some(lost));
    assert!(is_delete(&world.actions), "it is watched again: {:?}", world.hold("a"));
}

#[test]
fn a_release_that_was_refused_is_not_done_by_a_read_that_lacks_the_metadata() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.command(CommandKind::Release { slot: "a".into() });
    let refused = CallOutcome::Refused(Failure::new(FailureClass::Permission, "no"));
    world.input(Input::Ordered { slot: "a".into(), generation: 0, outcome: refused });
    let mut bare = node.clone();
    bare["metadata"] = json!({"startup-script": "#! /bin/sh\n"});
    world.polled(&bare);
    let record = &world.fleet.slots["a"];
    assert!(record.ours && !record.released.as_ref().unwrap().done, "{:?}", world.messages);
}

#[test]
fn s17_only_a_tpu_of_ours_is_released() {
    let mut world = with_checkpoints();
    world.poll(&[node("a", json!({}))]);
    world.command(CommandKind::Release { slot: "a".into() });
    assert!(world.actions.is_empty() && !world.fleet.slots["a"].forgotten);
    assert!(world.messages.iter().any(|text| text.contains("its TPU has nothing of ours")));
    // While it is being replaced there is nothing to give back.
    world.begin(&[100]);
    world.command(CommandKind::Release { slot: "a".into() });
    assert!(!world.fleet.slots["a"].forgotten, "{:?}", world.messages);
}

#[test]
fn s22_hosts_that_wait_for_an_order_start_by_that_order_alone_after_a_pause() {
    let mut world = with_checkpoints();
    let node = world.paused_on_two_hosts();
    // The resume comes before the read that judges by the exit.
    world.workers_say(&[(1, "v3 wait", None), (1, "v3 wait", WAITS)]);
    world.resume();
    // A host that started now would meet others that hang in the former run.
    let order = (0..20).find_map(|_| {
        let order = world.run_order();
        assert!(order.as_ref().is_none_or(|order| order.generation == 2), "{order:?}");
        if order.is_none() {
            world.polled(&node);
            world.workers_say(&[(1, "v3 wait", None), (1, "v3 wait", WAITS)]);
            world.surveyed(&[100]);
        }
        order
    });
    assert!(order.is_some_and(|order| !order.wait), "{:?}", world.hold("a"));
}

#[test]
fn a_wait_is_taken_back_whatever_else_holds_the_slot() {
    let forget = |world: &mut World, _: &mut Value| {
        // Its recovery is long over: no create of it is a stray.
        world.fleet.slots.get_mut("a").unwrap().recovery = None;
        world.command(CommandKind::Forget { slot: "a".into(), purge: false });
    };
    let opt_out = |_: &mut World, node: &mut Value| node["labels"] = json!({"tpu-watchdog": "off"});
    let strange = |_: &mut World, node: &mut Value| node["health"] = json!("HEALTH_OF_THE_FUTURE");
    type Hold<'a> = &'a dyn Fn(&mut World, &mut Value);
    let holds: [Hold; 3] = [&forget, &opt_out, &strange];
    for (index, hold) in holds.into_iter().enumerate() {
        let mut world = with_checkpoints();
        let node = world.at_work("v3");
        world.pause();
        let mut node = patched(&node, &world.run_order().expect("an order"));
        world.ordered(accepted());
        world.polled(&node);
        hold(&mut world, &mut node);
        world.polled(&node);
        world.resume();
        let taken_back = world.run_order().is_some_and(|order| !order.wait);
        assert!(taken_back, "{index}: {:?}", world.actions);
    }
}

#[test]
fn hosts_whose_newer_order_is_held_start_as_they_would_without_a_pause() {
    let mut world = with_checkpoints();
    let node = world.paused_on_two_hosts();
    // The config names another command by now: no order can follow.
    world.fleet.slots.get_mut("a").unwrap().job.ordered = Some("another\njob".into());
    world.workers_say(&[(1, "v3 wait", None), (1, "v3 wait", WAITS)]);
    world.polled(&node);
    world.resume();
    assert_eq!(world.hold("a"), Some(HoldReason::CannotRelaunch));
    let taken_back = (0..4).any(|_| {
        let order = world.run_order();
        world.polled(&node);
        order.is_some_and(|order| !order.wait && order.generation == 1)
    });
    assert!(taken_back, "{:?}", world.hold("a"));
}

#[test]
fn what_was_not_sent_is_tried_after_half_a_minute_and_keeps_nothing_else_waiting() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.pause();
    let unsent = || CallOutcome::NotSent(Failure::new(FailureClass::Transient, "timeout"));
    world.ordered(unsent());
    world.polled(&node);
    assert!(world.run_order().is_some_and(|order| order.wait));
    let refused = Failure::new(FailureClass::Permission, "no");
    world.ordered(CallOutcome::Refused(refused));
    world.command(CommandKind::Release { slot: "a".into() });
    assert!(matches!(world.actions[..], [Action::Patch { patch: Patch::Release, .. }]));
}

#[test]
fn a_release_is_no_relaunch_any_longer_and_a_slot_that_left_is_told() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.command(CommandKind::Relaunch { slot: "a".into() });
    world.surveyed(&[100]);
    assert!(world.run_order().is_some());
    world.ordered(accepted());
    world.polled(&node);
    world.command(CommandKind::Release { slot: "a".into() });
    assert!(world.fleet.slots["a"].job.relaunch.is_none());
    assert!(matches!(world.actions[..], [Action::Patch { patch: Patch::Release, .. }]));
    let mut world = with_checkpoints();
    world.at_work("v3");
    world.input(Input::Configured(Box::new(settings(&["b"]))));
    world.command(CommandKind::Release { slot: "a".into() });
    assert!(world.messages.iter().any(|text| text.contains("put it back, then release it")));
}

#[test]
fn l2_what_is_gone_or_out_of_reach_is_patched_no_more() {
    let mut world = with_checkpoints();
    world.fleet.settings.slots.get_mut("a").unwrap().policy.when_missing =
        crate::model::settings::WhenMissing::Hold;
    let node = world.at_work("v3");
    world.pause();
    let waiting = patched(&node, &world.run_order().expect("an order"));
    world.ordered(accepted());
    world.polled(&waiting);
    for gone in [true, false] {
        world.wait(300);
        if gone {
            world.poll(&[]);
        } else {
            world.poll_result(Err(Failure::new(FailureClass::Transient, "unreachable")));
        }
        world.resume();
        assert!(world.actions.is_empty(), "{gone}: {:?}", world.actions);
        world.pause();
    }
    world.polled(&waiting);
    world.resume();
    assert!(world.run_order().is_some_and(|order| !order.wait), "it is there again");
}

/// Workers follow a newer order before the node is read again, which showed `wait` last. Returns the
/// node as it was, and that order.
fn followed_before_it_is_read(world: &mut World) -> (Value, RunOrder) {
    let node = world.at_work("v3");
    world.pause();
    let waits = world.run_order().expect("an order");
    world.ordered(accepted());
    world.polled(&patched(&node, &waits));
    world.command(CommandKind::Relaunch { slot: "a".into() });
    world.resume();
    world.surveyed(&[100]);
    let mut newer = None;
    for _ in 0..4 {
        newer = newer.or(world.run_order().filter(|order| order.generation == 2));
        if newer.is_none() {
            world.polled(&patched(&node, &waits));
            world.surveyed(&[100]);
        } else {
            break;
        }
    }
    let newer = newer.expect("generation 2");
    let lost = CallOutcome::Unknown(Failure::new(FailureClass::Transient, "503"));
    world.ordered(lost);
    world.workers_say(&[(2, "v3", None)]);
    (node, newer)
}

#[test]
fn s15_workers_that_follow_a_newer_order_than_the_last_read_showed_get_no_older_one() {
    let mut world = with_checkpoints();
    let (node, newer) = followed_before_it_is_read(&mut world);
    assert_eq!(world.run_order(), None, "{:?}", world.messages);
    world.polled(&patched(&node, &newer));
    assert_eq!(world.run_order(), None, "it says no `wait` by now");
}

#[test]
fn s15_a_read_that_lags_behind_the_workers_takes_no_order_back() {
    let mut world = with_checkpoints();
    let (node, newer) = followed_before_it_is_read(&mut world);
    world.polled(&node);
    world.pause();
    assert_eq!(world.run_order(), Some(RunOrder { wait: true, ..newer }));
}

#[test]
fn hosts_that_read_their_order_before_the_node_is_read_are_told_of_once() {
    for first in [true, false] {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        let says = |world: &mut World, words: &str| {
            let words = words.to_owned();
            world.workers_say(&[(1, words.leak(), None)]);
        };
        says(&mut world, "v3");
        world.next_poll(&node);
        world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
        let order = world.run_order().expect("a flag");
        world.ordered(accepted());
        let mut told = Vec::new();
        let mut keep = |world: &World| told.extend(world.messages.clone());
        if first {
            says(&mut world, "v3 wait");
            keep(&world);
        }
        world.next_poll(&patched(&node, &order));
        keep(&world);
        says(&mut world, "v3 wait");
        keep(&world);
        let count = told.iter().filter(|text| text.contains("has read its order and waits"));
        assert_eq!(count.count(), 1, "{first}: {told:?}");
    }
}

#[test]
fn s15_a_read_of_the_past_never_takes_an_order_back() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    let newer = RunOrder { generation: 3, ..present(&node) };
    world.fleet.slots.get_mut("a").unwrap().job.generation = 3;
    world.polled(&patched(&node, &newer));
    world.workers_say(&[(3, "v3", None)]);
    // A listing that lags behind shows the former order once more.
    world.polled(&node);
    world.pause();
    let order = world.run_order().expect("an order");
    assert_eq!(order, RunOrder { wait: true, ..newer });
}
