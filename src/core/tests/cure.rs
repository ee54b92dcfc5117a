//! A sick TPU whose hosts beat: its job is relaunched before the TPU is replaced.

use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::command::{Command, CommandKind, Pause};
use crate::model::fleet::Breaker;
use crate::model::traits::BudgetOf;

/// A polled minute of a TPU like this, whose worker follows this generation. Returns whether something
/// is sent.
fn minute(world: &mut World, node: &Value, generation: u64) -> bool {
    for _ in 0..2 {
        world.wait(30);
        world.poll(std::slice::from_ref(node));
        if world.actions.is_empty() {
            world.workers_say(&[(generation, "v2", None)]);
        }
        if world.actions.is_empty() {
            world.surveyed(&[100, 200]);
        }
        if world.actions.is_empty() {
            world.get("a", Some(node.clone()));
        }
        if !world.actions.is_empty() {
            return true;
        }
    }
    false
}

/// The minute in which something is sent.
fn sent_after(world: &mut World, node: &Value, generation: u64) -> Option<u32> {
    (1..200).find(|_| minute(world, node, generation))
}

/// A run that has saved. Returns its node.
fn running(world: &mut World) -> Value {
    let node = world.supervised_run();
    world.workers_say(&[(1, "v2", None)]);
    world.wait(30);
    world.poll(std::slice::from_ref(&node));
    world.surveyed(&[100, 200]);
    assert!(world.fleet.slots["a"].recovery.is_none(), "its recovery is over");
    node
}

fn sick(node: &Value, health: &str) -> Value {
    let mut sick = node.clone();
    sick["health"] = json!(health);
    sick
}

#[test]
fn an_unresponsive_tpu_whose_hosts_beat_gets_a_newer_order_before_it_is_replaced() {
    for health in ["TIMEOUT", "UNHEALTHY_TENSORFLOW"] {
        let mut world = with_checkpoints();
        let node = sick(&running(&mut world), health);
        let after = sent_after(&mut world, &node, 1);
        assert!(matches!(after, Some(59..=62)), "{after:?} {:?}", world.actions);
        let order = world.run_order().expect("an order, and no delete");
        assert_eq!((order.generation, order.step), (2, Some(200)));
        world.ordered(accepted());
        let ordered = patched(&node, &order);
        let after = sent_after(&mut world, &ordered, 2);
        assert!(matches!(after, Some(58..=62)), "{after:?} {:?}", world.actions);
        assert!(is_delete(&world.actions), "once an illness: {:?}", world.actions);
    }
}

#[test]
fn a_tpu_that_heals_by_the_newer_order_is_kept() {
    let mut world = with_checkpoints();
    let node = running(&mut world);
    let timeout = sick(&node, "TIMEOUT");
    sent_after(&mut world, &timeout, 1);
    let order = world.run_order().expect("an order");
    world.ordered(accepted());
    let well = patched(&node, &order);
    assert_eq!(sent_after(&mut world, &well, 2), None);
    assert!(world.fleet.slots["a"].suspicion.is_none());
    // Another illness is another matter.
    assert!(sent_after(&mut world, &sick(&well, "TIMEOUT"), 2).is_some());
    assert_eq!(world.run_order().map(|order| order.generation), Some(3));
}

#[test]
fn an_order_that_is_refused_or_never_followed_ends_in_a_replacement() {
    let refused = CallOutcome::Refused(Failure::new(FailureClass::Permission, "no (HTTP 403)"));
    for outcome in [refused, accepted()] {
        let mut world = with_checkpoints();
        let node = sick(&running(&mut world), "TIMEOUT");
        sent_after(&mut world, &node, 1);
        assert!(world.run_order().is_some(), "{:?}", world.actions);
        world.ordered(outcome.clone());
        let after = sent_after(&mut world, &node, 1);
        assert!(is_delete(&world.actions), "{outcome:?}: {after:?} {:?}", world.actions);
    }
}

#[test]
fn what_an_order_can_not_reach_is_replaced_and_what_guards_a_delete_guards_the_order() {
    let mut world = with_checkpoints();
    let node = sick(&running(&mut world), "TIMEOUT");
    world.workers_say(&[(1, "", None)]);
    for _ in 0..70 {
        world.reports(world.now.as_second(), None);
        world.next_poll(&node);
        world.surveyed(&[100, 200]);
        world.get("a", Some(node.clone()));
        if !world.actions.is_empty() {
            break;
        }
        world.wait(30);
    }
    assert!(is_delete(&world.actions), "a supervisor of the first version: {:?}", world.hold("a"));
    let mut world = with_checkpoints();
    let node = sick(&running(&mut world), "TIMEOUT");
    world.fleet.ledger.breaker =
        Some(Breaker { opened_at: world.now, why: "half".into(), of: BudgetOf::Tpus });
    assert_eq!(sent_after(&mut world, &node, 1), None);
    assert_eq!(world.hold("a"), Some(HoldReason::Breaker));
}

#[test]
fn s6_a_job_that_is_relaunched_for_its_tpu_counts_until_it_follows() {
    let mut world = with_checkpoints();
    let node = sick(&running(&mut world), "TIMEOUT");
    sent_after(&mut world, &node, 1);
    let order = world.run_order().expect("an order");
    assert_eq!(crate::core::budget::unavailable(&world.fleet), 1);
    world.ordered(accepted());
    assert_eq!(crate::core::budget::unavailable(&world.fleet), 1);
    minute(&mut world, &patched(&node, &order), 2);
    assert_eq!(crate::core::budget::unavailable(&world.fleet), 0);
}

#[test]
fn an_operators_relaunch_of_a_sick_tpu_waits_for_no_grace() {
    let mut world = with_checkpoints();
    let node = sick(&running(&mut world), "TIMEOUT");
    assert!(!minute(&mut world, &node, 1), "its grace has just begun");
    world.command(CommandKind::Relaunch { slot: "a".into() });
    assert_eq!(world.run_order().map(|order| order.generation), Some(2));
    world.ordered(accepted());
    // Whether that helped is seen within its whole grace.
    assert!(matches!(sent_after(&mut world, &node, 2), Some(58..=62)), "{:?}", world.actions);
}

#[test]
fn s6_a_relaunch_that_its_order_holds_takes_no_room_from_others() {
    let mut world = with_checkpoints();
    let mut settings = world.fleet.settings.clone();
    let plain = SlotSettings { name: "b".into(), ..settings.slots["idle-1"].clone() };
    settings.slots.insert("b".into(), plain);
    world.input(Input::Configured(Box::new(settings)));
    let a = sick(&running(&mut world), "TIMEOUT");
    for turn in 0..140 {
        // `a` is ripe after an hour, and `b` some minutes later.
        let b = node("b", if turn < 106 { json!({}) } else { timeout() });
        world.wait(30);
        world.poll(&[a.clone(), b.clone()]);
        world.workers_say(&[(1, "v2", None)]);
        world.surveyed(&[100, 200]);
        // The order waits for its hosts.
        world.fleet.memory.get_mut("a").unwrap().heard = None;
        world.get("a", Some(a.clone()));
        if world.actions.is_empty() {
            world.get("b", Some(b.clone()));
        }
        if is_delete(&world.actions) {
            let reason = &world.fleet.slots["a"].decision.as_ref().unwrap().reason;
            assert!(
                turn > 120 && reason.contains("its workers are asked once more"),
                "{turn} {reason}"
            );
            return;
        }
    }
    panic!("b was never condemned: {:?} {:?}", world.hold("a"), world.hold("b"));
}

#[test]
fn s3_an_order_that_was_lost_is_not_sent_again_for_a_wish_of_more_than_an_hour_ago() {
    for (minutes, again) in [(10, 3), (65, 2)] {
        let mut world = with_checkpoints();
        let node = running(&mut world);
        world.command(CommandKind::Relaunch { slot: "a".into() });
        while world.run_order().is_none() {
            world.next_poll(&node);
            world.surveyed(&[100, 200]);
        }
        world.ordered(CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer")));
        // No watchdog runs meanwhile.
        world.wait(minutes * 60);
        world.surveyed(&[100, 200]);
        for _ in 0..6 {
            world.workers_say(&[(1, "v2", None)]);
            world.next_poll(&node);
            if world.asks_for_checkpoints() {
                world.surveyed(&[100, 200]);
            }
        }
        let sent = world.fleet.slots["a"].job.generation;
        assert_eq!(sent, again, "{minutes} min: {:?}", world.fleet.slots["a"].decision);
    }
}

#[test]
fn s3_a_wish_is_as_old_as_when_it_was_given_and_not_as_when_it_was_read() {
    let mut world = with_checkpoints();
    let node = running(&mut world);
    let pause = Pause { who: "ada".into(), reason: None, until: None, since: None };
    world.fleet.slots.get_mut("a").unwrap().paused = Some(pause);
    let at = world.now - jiff::SignedDuration::from_mins(50);
    let kind = CommandKind::Relaunch { slot: "a".into() };
    let command = Command { id: "1".into(), at, who: "ada".into(), reason: None, kind };
    world.input(Input::Commands(vec![command]));
    let dropped = (1..=60).find(|_| {
        world.next_poll(&node);
        world.messages.iter().any(|message| message.contains("is dropped"))
    });
    assert!(matches!(dropped, Some(19..=21)), "10 min in polls of 30 s: {dropped:?}");
}
