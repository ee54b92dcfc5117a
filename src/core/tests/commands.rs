//! The storm breaker and an operator's commands.

use super::*;
use crate::model::command::{Command, CommandKind};
use crate::model::view::ActionName;

const EIGHT: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn command(kind: CommandKind) -> Input {
    let command = Command {
        id: "1".into(),
        at: Timestamp::UNIX_EPOCH,
        who: "me@here".into(),
        reason: Some("why".into()),
        kind,
    };
    Input::Commands(vec![command])
}

fn breaker(world: &World) -> bool {
    world.fleet.ledger.breaker.is_some()
}

/// Eight slots, and a GET that confirms the sickness of the first.
fn storm(sick: &[&str], change: Value) -> World {
    let mut settings = settings(&EIGHT);
    settings.max_unavailable = Share::Percent(100.0);
    let mut world = World::new(settings);
    world.sick(sick, change.clone(), 1200);
    world.get(sick[0], Some(node(sick[0], change)));
    world
}

#[test]
fn s8_half_the_fleet_judged_within_the_window_opens_the_breaker_and_nothing_is_deleted() {
    let mut world = storm(&["a", "b", "c", "d"], timeout());
    assert!(breaker(&world));
    assert!(world.actions.is_empty(), "{:?}", world.actions);
    assert_eq!(world.hold("a"), Some(HoldReason::Breaker));
    assert_eq!(
        view::document(&world.fleet, world.now).breaker,
        crate::model::view::BreakerState::Open
    );
    // Neither time nor a restart closes it.
    let (slots, ledger) = (world.fleet.slots.clone(), world.fleet.ledger.clone());
    let mut again = World::new(world.fleet.settings.clone());
    again.fleet = Fleet::new(world.fleet.settings.clone(), slots, ledger);
    again.now = after(world.now, Duration::from_secs(7 * 86_400));
    again.input(Input::Tick);
    assert!(breaker(&again));
    world.wait(7 * 86_400);
    world.sick(&["a", "b", "c", "d"], timeout(), 1200);
    world.get("a", Some(node("a", timeout())));
    assert!(world.actions.is_empty() && breaker(&world));
}

#[test]
fn s8_fewer_than_the_minimum_or_the_fraction_open_nothing() {
    let mut world = storm(&["a", "b", "c"], timeout());
    assert!(!breaker(&world), "three are fewer than four");
    assert!(is_delete(&world.actions), "{:?}", world.actions);
    let names: Vec<String> = (0..9).map(|n| format!("s{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world = World::new(settings(&names));
    world.sick(&names[..4], timeout(), 1200);
    assert!(!breaker(&world), "four of nine are less than half");
    // One after the other, each outside the other's window.
    let mut settings = settings(&EIGHT);
    settings.storm.window = Duration::from_secs(60);
    world = World::new(settings);
    let sick_after = |n: usize, poll: usize| if poll >= n * 10 { timeout() } else { json!({}) };
    for poll in 0..60 {
        world.wait(30);
        let nodes: Vec<Value> = EIGHT
            .iter()
            .enumerate()
            .map(|(n, name)| node(name, if n < 4 { sick_after(n, poll) } else { json!({}) }))
            .collect();
        world.poll(&nodes);
    }
    assert!(!breaker(&world), "{:?}", world.fleet.ledger.storm);
}

#[test]
fn s8_lost_slots_neither_open_the_breaker_nor_wait_for_it() {
    let preempted = json!({"state": "PREEMPTED"});
    let mut world = storm(&EIGHT, preempted.clone());
    assert!(!breaker(&world), "the API itself says that nothing is left to save");
    assert!(is_delete(&world.actions), "{:?}", world.actions);
    world = storm(&["a", "b", "c", "d"], timeout());
    assert!(breaker(&world));
    world.wait(30);
    let nodes: Vec<Value> = EIGHT
        .iter()
        .map(|n| node(n, if *n == "h" { preempted.clone() } else { json!({}) }))
        .collect();
    world.poll(&nodes);
    world.wait(30);
    world.poll(&nodes);
    world.get("h", Some(node("h", preempted)));
    assert!(is_delete(&world.actions), "{:?}", world.actions);
}

#[test]
fn l7_a_reset_closes_the_breaker_and_judges_the_present() {
    let mut world = storm(&["a", "b", "c", "d"], timeout());
    world.wait(30);
    world.input(command(CommandKind::BreakerReset));
    assert!(!breaker(&world));
    assert!(
        world.records.iter().any(|r| matches!(r, Record::CommandDone(id) if id == "1")),
        "it works once"
    );
    assert!(
        world.events.iter().any(|e| matches!(e, What::Command { who, .. } if who == "me@here"))
    );
    // Slots that healed meanwhile are left alone, the one that did not is replaced.
    let nodes: Vec<Value> =
        EIGHT.iter().map(|n| node(n, if *n == "a" { timeout() } else { json!({}) })).collect();
    world.wait(30);
    world.poll(&nodes);
    world.get("a", Some(node("a", timeout())));
    assert!(is_delete(&world.actions), "{:?}", world.actions);
    assert!(!breaker(&world));
}

#[test]
fn s7_what_is_paused_is_left_alone_until_it_is_resumed_or_the_time_is_over() {
    let preempted = json!({"state": "PREEMPTED"});
    let confirm = |world: &mut World| {
        world.wait(30);
        world.poll(&[node("a", preempted.clone())]);
        world.get("a", Some(node("a", preempted.clone())));
    };
    for slot in [Some("a".to_owned()), None] {
        let mut world = World::new(settings(&["a"]));
        let until = Some(after(world.now, Duration::from_secs(3600)));
        world.input(command(CommandKind::Pause { slot: slot.clone(), until }));
        world.sick(&["a"], preempted.clone(), 60);
        confirm(&mut world);
        assert!(world.actions.is_empty(), "{:?}", world.actions);
        assert_eq!(world.hold("a"), Some(HoldReason::Paused));
        assert!(view::document(&world.fleet, world.now).tpus[0].paused);
        // The GET of a moment ago still counts.
        world.input(command(CommandKind::Resume { slot, adopt: false }));
        assert!(is_delete(&world.actions), "{:?}", world.actions);
    }
    let mut world = World::new(settings(&["a"]));
    let until = Some(after(world.now, Duration::from_secs(100)));
    world.input(command(CommandKind::Pause { slot: Some("a".into()), until }));
    world.sick(&["a"], preempted.clone(), 60);
    assert_eq!(world.hold("a"), Some(HoldReason::Paused));
    world.wait(60);
    confirm(&mut world);
    assert!(is_delete(&world.actions), "it ended by itself: {:?}", world.actions);
}

#[test]
fn s7_a_create_that_was_not_sent_waits_while_paused() {
    let mut world = World::new(settings(&["a"]));
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted)));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.input(command(CommandKind::Pause { slot: None, until: None }));
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Paused), 0));
    world.input(command(CommandKind::Resume { slot: None, adopt: false }));
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.actions);
}

#[test]
fn s8_a_create_that_is_owed_goes_on_while_the_breaker_is_open() {
    let mut world = World::new(settings(&EIGHT));
    let nodes = |rest: &Value| -> Vec<Value> {
        EIGHT
            .iter()
            .map(|n| {
                node(n, if ["a", "b", "c", "d"].contains(n) { rest.clone() } else { json!({}) })
            })
            .collect()
    };
    world.sick(&["a", "b", "c", "d"], timeout(), 570);
    // The first of them is condemned, and a moment later the others are ripe, too.
    world.sick(&["a"], timeout(), 0);
    world.get("a", Some(node("a", timeout())));
    assert!(is_delete(&world.actions), "{:?}", world.actions);
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    for _ in 0..60 {
        if breaker(&world) {
            break;
        }
        world.wait(30);
        world.poll(&nodes(&timeout())[1..]);
    }
    assert!(breaker(&world));
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.actions);
}

#[test]
fn s8_all_that_are_ripe_in_one_turn_are_counted_before_the_first_of_them_is_judged() {
    let mut world = World::new(settings(&EIGHT));
    let nodes = EIGHT
        .map(|n| node(n, if ["a", "b", "c", "d"].contains(&n) { timeout() } else { json!({}) }));
    world.poll(&nodes);
    while !breaker(&world) {
        world.wait(26);
        // A GET that was asked for in another matter is fresh when the grace is over.
        world.get("a", Some(node("a", timeout())));
        assert!(world.actions.is_empty());
        world.wait(4);
        world.poll(&nodes);
        assert!(world.actions.is_empty(), "{:?}", world.actions);
    }
}

#[test]
fn s8_a_breaker_that_opens_without_anybody_new_is_durable_too() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let mut world = World::new(settings(&names));
    world.sick(&names[..4], timeout(), 630);
    assert!(!breaker(&world), "four of nine are less than half");
    // One that is well leaves the config.
    world.input(Input::Configured(Box::new(settings(&names[..8]))));
    assert!(breaker(&world));
    assert!(world.events.iter().any(|e| matches!(e, What::BreakerOpened { .. })));
    assert!(
        world
            .records
            .iter()
            .any(|r| matches!(r, Record::Ledger(ledger) if ledger.breaker.is_some())),
        "{:?}",
        world.records
    );
}

#[test]
fn l5_healing_clears_suspicion_while_the_breaker_is_open() {
    let mut world = storm(&["a", "b", "c", "d"], timeout());
    assert!(breaker(&world) && world.fleet.slots["a"].suspicion.is_some());
    for _ in 0..40 {
        world.wait(30);
        world.poll(&EIGHT.map(|name| node(name, json!({}))));
    }
    assert!(breaker(&world), "it waits for a person");
    assert!(
        world
            .fleet
            .slots
            .values()
            .all(|record| record.suspicion.is_none() && record.recovery.is_none())
    );
    assert_eq!(world.hold("a"), None);
}

#[test]
fn s13_attempts_are_forgotten_after_settled_healthy_time_and_not_before() {
    let mut one = settings(&["a"]);
    let settled = Duration::from_secs(1800);
    if let Some(slot) = one.slots.get_mut("a") {
        slot.policy.attempts.settled = settled;
    }
    let mut world = World::new(one);
    world.sick(&["a"], timeout(), 60);
    let of = |kind| crate::model::slot::Attempt { at: world.now, kind };
    use crate::model::condition::Kind;
    world.fleet.slots.get_mut("a").unwrap().attempts = vec![of(Kind::Judged), of(Kind::Lost)];
    let kept =
        |world: &World| world.fleet.slots["a"].attempts.iter().map(|a| a.kind).collect::<Vec<_>>();
    let mut healthy = Duration::ZERO;
    world.wait(30);
    world.poll(&[node("a", json!({}))]);
    while healthy < settled {
        assert_eq!(kept(&world), [Kind::Judged, Kind::Lost], "after {healthy:?}");
        world.wait(30);
        healthy += Duration::from_secs(30);
        world.poll(&[node("a", json!({}))]);
    }
    assert_eq!(kept(&world), [Kind::Lost], "preemptions slide out of their window instead");
}

#[test]
fn s13_time_of_which_nothing_is_known_is_no_healthy_time() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    let used =
        crate::model::slot::Attempt { at: world.now, kind: crate::model::condition::Kind::Judged };
    world.fleet.slots.get_mut("a").unwrap().attempts = vec![used];
    let settled = world.fleet.settings.slots["a"].policy.attempts.settled;
    // Unreachable for as long as it would take, then a restart after as long again: one read after
    // each.
    for restarts in [false, true] {
        for _ in 0..settled.as_secs() / 60 + 1 {
            world.wait(60);
            world.poll_result(Err(Failure::new(FailureClass::Transient, "503")));
        }
        if restarts {
            let (settings, slots) = (world.fleet.settings.clone(), world.fleet.slots.clone());
            world.fleet = Fleet::new(settings, slots, world.fleet.ledger.clone());
        }
        world.poll(&[node("a", json!({}))]);
        assert_eq!(world.fleet.slots["a"].attempts.len(), 1, "{restarts}");
    }
}

#[test]
fn s13_judged_attempts_do_not_slide_out_of_their_window_once_they_are_used_up() {
    let mut world = World::new(settings(&["a"]));
    let policy = world.fleet.settings.slots["a"].policy.attempts.clone();
    world.sick(&["a"], timeout(), 1200);
    let at = |hours: u64| after(world.now, Duration::from_secs(hours * 3600));
    let kind = crate::model::condition::Kind::Judged;
    let used = (0..policy.max).map(|n| crate::model::slot::Attempt { at: at(n as u64), kind });
    world.fleet.slots.get_mut("a").unwrap().attempts = used.collect();
    world.now = after(world.now, policy.window * 2);
    world.sick(&["a"], timeout(), 1200);
    world.get("a", Some(node("a", timeout())));
    assert_eq!(world.hold("a"), Some(HoldReason::Attempts));
    world.input(command(CommandKind::Retry { slot: "a".into(), from: None }));
    assert!(is_delete(&world.actions), "{:?} {:?}", world.actions, world.hold("a"));
}

#[test]
fn s13_retry_gives_a_slot_its_attempts_back() {
    let mut one = settings(&["a"]);
    if let Some(slot) = one.slots.get_mut("a") {
        slot.policy.attempts.max = 1;
    }
    let mut world = World::new(one);
    let used =
        crate::model::slot::Attempt { at: world.now, kind: crate::model::condition::Kind::Judged };
    world.sick(&["a"], timeout(), 1200);
    world.fleet.slots.get_mut("a").unwrap().attempts = vec![used];
    world.get("a", Some(node("a", timeout())));
    assert_eq!(world.hold("a"), Some(HoldReason::Attempts));
    world.input(command(CommandKind::Retry { slot: "a".into(), from: None }));
    assert!(is_delete(&world.actions), "{:?}", world.actions);
}

#[test]
fn a_node_of_another_owner_is_ours_only_after_resume_adopt() {
    let theirs = json!({"state": "PREEMPTED", "metadata": {"tpu-watchdog-owner": "they"}});
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], theirs.clone(), 60);
    world.get("a", Some(node("a", theirs)));
    assert_eq!(world.hold("a"), Some(HoldReason::OtherOwner));
    world.input(command(CommandKind::Resume { slot: Some("a".into()), adopt: true }));
    assert!(is_delete(&world.actions), "{:?}", world.actions);
}

#[test]
fn a_command_for_a_slot_that_is_not_there_is_told_and_taken_out() {
    let mut world = World::new(settings(&["a"]));
    world.input(command(CommandKind::Retry { slot: "zz".into(), from: None }));
    assert!(world.records.iter().any(|r| matches!(r, Record::CommandDone(_))));
    assert!(
        world
            .fleet
            .slots
            .get("a")
            .is_none_or(|r| r.decision.as_ref().is_none_or(|d| d.action != ActionName::Recreate))
    );
}
