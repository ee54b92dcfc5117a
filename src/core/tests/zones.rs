//! Creates over several zones and in scarce pools: which zone is asked next and when, and what counts.

use super::*;
use crate::model::command::CommandKind;
use crate::model::condition::Kind;
use crate::model::filling::Filling;
use crate::model::step::{At, Call};
use crate::model::time::elapsed;

const EAST: &str = "us-east5-a";

fn gone() -> CallOutcome {
    CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone"))
}

fn preempted() -> Value {
    json!({"state": "PREEMPTED"})
}

/// The slots, of which these may be created in the east, too.
fn over_two(names: &[&str], in_both: &[&str]) -> World {
    let mut all = settings(names);
    for name in in_both {
        all.slots.get_mut(*name).unwrap().zones.push(EAST.into());
    }
    (all.max_unavailable, all.storm.min) = (Share::Count(9), 9);
    World::new(all)
}

/// For so many minutes each create is refused as `refusal` says for its zone; names are read as absent.
/// Returns the slot, the zone and the minute of each.
fn refuse(
    world: &mut World,
    minutes: u64,
    refusal: impl Fn(&str) -> FailureClass,
) -> Vec<(String, String, u64)> {
    let (began, mut asked) = (world.now, vec![]);
    let mut actions = std::mem::take(&mut world.actions);
    while elapsed(began, world.now).as_secs() < minutes * 60 {
        let Some(action) = actions.pop() else {
            world.wait(10);
            world.input(Input::Tick);
            actions.append(&mut world.actions);
            continue;
        };
        let Action::Create { slot, zone, .. } = action else { continue };
        asked.push((slot.clone(), zone.clone(), elapsed(began, world.now).as_secs() / 60));
        world.called(&slot, CallOutcome::Refused(Failure::new(refusal(&zone), "no")));
        actions.append(&mut world.actions);
        if world.asks(&slot) {
            world.wait(1);
            world.get(&slot, None);
            actions.append(&mut world.actions);
        }
    }
    world.actions = actions;
    asked
}

fn lose(world: &mut World, names: &[&str]) {
    world.sick(names, preempted(), 0);
    let mut owed = vec![];
    for name in names {
        world.get(name, Some(node(name, preempted())));
        world.called(name, gone());
        owed.append(&mut world.actions);
    }
    world.actions = owed;
}

#[test]
fn s20_a_refusal_for_good_is_that_of_the_zone_in_which_it_was_made() {
    let mut world = over_two(&["a", "b"], &["a"]);
    lose(&mut world, &["a"]);
    let closed = Failure::new(FailureClass::ClosedQueue, "closed");
    world.called("a", CallOutcome::Refused(closed));
    world.wait(1);
    world.get("a", None);
    let record = &world.fleet.slots["a"];
    let refused = record.recovery.as_ref().unwrap().refused_in.as_str();
    assert_eq!((record.zone.as_str(), refused), (EAST, ZONE));
    for _ in 0..60 {
        world.wait(30);
        world.poll(&[node("b", timeout())]);
        if world.asks("b") {
            world.get("b", Some(node("b", timeout())));
        }
        assert!(!is_delete(&world.actions), "no create could follow there");
    }
    assert_eq!(world.hold("b"), Some(HoldReason::CannotCreate));
}

#[test]
fn a_create_that_came_to_the_last_zone_is_tried_in_the_first_again_when_that_is_due() {
    // In the east `y` goes first.
    let mut world = over_two(&["x", "y"], &["x"]);
    let y = world.fleet.settings.slots.get_mut("y").unwrap();
    (y.zones, y.policy.priority) = (vec![EAST.into()], 9);
    world.fleet.slots.get_mut("y").unwrap().zone = EAST.into();
    let here = |name: &str, zone: &str, change: Value| {
        let mut raw = node(name, change);
        raw["name"] = json!(format!("projects/p/locations/{zone}/nodes/{name}"));
        Arc::new(NodeView::parse(raw).unwrap())
    };
    for state in ["READY", "PREEMPTED", "PREEMPTED"] {
        world.wait(30);
        let listing = |zone: &str, name: &str| Listing {
            zone: zone.into(),
            result: Ok((vec![here(name, zone, json!({ "state": state }))], vec![]).into()),
            requests: None,
        };
        let listings = vec![listing(ZONE, "x"), listing(EAST, "y")];
        let (began, jobs) = (world.now, vec![]);
        world.input(Input::Polled(Box::new(Poll { began, listings, jobs })));
    }
    let mut owed = vec![];
    for (name, zone) in [("x", ZONE), ("y", EAST)] {
        let reading = Reading::Node(here(name, zone, preempted()));
        world.input(Input::Got { slot: name.into(), began: world.now, reading });
        world.called(name, gone());
        owed.append(&mut world.actions);
    }
    world.actions = owed;
    let asked = refuse(&mut world, 60, |_| FailureClass::StockOut);
    let first = asked.iter().filter(|(slot, zone, _)| slot == "x" && zone == ZONE).count();
    assert!(first > 5, "{asked:?}");
}

#[test]
fn l1_a_refusal_in_a_zone_that_can_not_be_read_is_left_for_the_next_zone() {
    let mut world = over_two(&["a"], &["a"]);
    lose(&mut world, &["a"]);
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::StockOut, "none")));
    world.wait(1);
    world.get("a", None);
    assert!(matches!(&world.actions[..], [Action::Create { zone, .. }] if zone == EAST));
    let denied =
        "HTTP 403 PERMISSION_DENIED: Location us-east5-a is not found or access is unauthorized.";
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::BadRequest, denied)));
    let mut asked = vec![];
    for _ in 0..60 {
        world.wait(10);
        if world.asks("a") {
            let (slot, began, reading) = ("a".into(), world.now, Reading::Unread(denied.into()));
            world.input(Input::Got { slot, began, reading });
        } else {
            world.input(Input::Tick);
        }
        if let [Action::Create { zone, .. }] = &world.actions[..] {
            asked.push(zone.clone());
            let refusal = Failure::new(FailureClass::BadRequest, denied);
            world.called("a", CallOutcome::Refused(refusal));
        }
    }
    assert!(asked.iter().any(|zone| zone == ZONE), "{asked:?} {:?}", world.hold("a"));
}

#[test]
fn an_hour_of_stock_outs_makes_no_other_refusal_wait_longer() {
    let mut world = over_two(&["a"], &[]);
    lose(&mut world, &["a"]);
    let asked = refuse(&mut world, 60, |_| FailureClass::StockOut);
    assert!(asked.len() > 15, "{asked:?}");
    while !matches!(world.actions[..], [Action::Create { .. }]) {
        world.wait(10);
        world.input(Input::Tick);
    }
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::Quota, "used up")));
    let until = world.fleet.slots["a"].recovery.as_ref().unwrap().not_before.unwrap();
    assert!(elapsed(world.now, until).as_secs() <= 60, "{until}");
}

#[test]
fn l6_a_zone_that_is_short_is_probed_in_its_time_whatever_the_other_one_refuses_for() {
    for (here, east) in [
        (FailureClass::StockOut, FailureClass::Quota),
        (FailureClass::Quota, FailureClass::StockOut),
    ] {
        let mut world = over_two(&["a"], &["a"]);
        lose(&mut world, &["a"]);
        let asked = refuse(&mut world, 180, |zone| if zone == ZONE { here } else { east });
        let short = if here == FailureClass::StockOut { ZONE } else { EAST };
        let late = asked.iter().filter(|(_, zone, minute)| zone == short && *minute >= 120);
        assert!(late.count() >= 15, "{here:?}: {asked:?}");
    }
}

#[test]
fn l6_pools_that_were_short_long_ago_make_no_refusal_of_today_come_faster() {
    let mut world = over_two(&["a"], &["a"]);
    lose(&mut world, &["a"]);
    let (now, probe_at) = (world.now, world.now);
    for zone in [ZONE, EAST] {
        let short = Some(Short { since: now, last: now, refusals: 1, probe_at });
        world.fleet.ledger.pools.insert(format!("{zone} v4-8"), Pool { short, ..Pool::default() });
    }
    let asked = refuse(&mut world, 60, |_| FailureClass::Quota);
    assert!((4..60).contains(&asked.len()), "{}", asked.len());
    let asked = refuse(&mut world, 60, |zone| {
        if zone == ZONE { FailureClass::Quota } else { FailureClass::StockOut }
    });
    assert!((20..70).contains(&asked.len()), "{}", asked.len());
}

#[test]
fn s13_capacity_that_is_taken_before_it_was_ready_backs_off_and_uses_no_attempt_up() {
    let mut world = over_two(&["a"], &[]);
    lose(&mut world, &["a"]);
    let (began, mut births) = (world.now, vec![]);
    for _ in 0..2_000 {
        if matches!(world.actions[..], [Action::Create { .. }]) {
            births.push(elapsed(began, world.now).as_secs());
            world.called("a", CallOutcome::Accepted(OPERATION.into()));
            world.wait(20);
            let made = world.replacement("a", json!({"id": births.len().to_string()}));
            for state in ["CREATING", "PREEMPTED"] {
                world.wait(10);
                let mut shown = made.clone();
                shown["state"] = json!(state);
                world.poll(&[shown.clone()]);
                if world.asks("a") {
                    world.get("a", Some(shown));
                }
            }
        } else if is_delete(&world.actions) {
            world.called("a", gone());
        } else {
            world.wait(10);
            world.input(Input::Tick);
        }
    }
    let lost = world.fleet.slots["a"].attempts.iter().filter(|a| a.kind == Kind::Lost).count();
    assert_eq!(lost, 1, "that of the TPU that was at work");
    let waits: Vec<u64> = births.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.len() > 5 && waits.last().unwrap() > &600, "{waits:?}");
}

#[test]
fn s7_a_create_that_forget_called_off_is_owed_again_after_retry_while_its_delete_is_under_way() {
    let mut world = over_two(&["a"], &[]);
    world.sick(&["a"], preempted(), 0);
    world.get("a", Some(node("a", preempted())));
    assert!(is_delete(&world.actions));
    world.order(CommandKind::Forget { slot: "a".into(), purge: false });
    world.order(CommandKind::Retry { slot: "a".into(), from: None });
    world.called("a", gone());
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}

#[test]
fn a_delete_of_ours_without_an_answer_is_no_other_clients_once_its_slot_is_back() {
    for answered in [true, false] {
        let mut world = over_two(&["a", "b"], &[]);
        world.sick(&["a"], preempted(), 0);
        world.get("a", Some(node("a", preempted())));
        assert!(is_delete(&world.actions));
        let at = world.now;
        world.input(Input::Configured(Box::new(settings(&["b"]))));
        if answered {
            world.called("a", CallOutcome::Accepted(OPERATION.into()));
        }
        world.wait(60);
        world.input(Input::Configured(Box::new(settings(&["a", "b"]))));
        // Its operation is listed.
        let late = if answered { 3_600 } else { 0 };
        let at = after(at, Duration::from_secs(late));
        world.deletions = Ok(vec![Deletion { operation: OPERATION.into(), at }]);
        for _ in 0..12 {
            world.wait(30);
            world.poll(&[node("b", json!({}))]);
            if world.asks("a") {
                world.get("a", None);
            }
            if !world.actions.is_empty() {
                break;
            }
        }
        let create = matches!(world.actions[..], [Action::Create { .. }]);
        assert!(create, "{answered}: {:?}", world.hold("a"));
    }
}

#[test]
fn operations_that_can_not_be_listed_for_a_moment_are_asked_for_again_before_anything_is_created() {
    let mut world = over_two(&["a"], &[]);
    world.poll(&[node("a", json!({}))]);
    let by_hand =
        Deletion { operation: "projects/p/locations/z/operations/9".into(), at: world.now };
    world.deletions = Err(Failure::new(FailureClass::Transient, "HTTP 503"));
    for poll in 0..20 {
        world.wait(30);
        world.poll(&[]);
        if world.fleet.memory["a"].deletions_unread > 0 {
            world.deletions = Ok(vec![by_hand.clone()]);
        }
        if world.asks("a") {
            world.get("a", None);
        }
        assert!(world.actions.is_empty(), "poll {poll}: {:?}", world.actions);
    }
    assert_eq!(world.hold("a"), Some(HoldReason::Deleted));
}

#[test]
fn l3_operations_that_no_scheduled_run_can_list_hold_a_create_for_a_quarter_of_an_hour() {
    let mut world = over_two(&["a"], &[]);
    world.poll(&[node("a", json!({}))]);
    world.deletions = Err(Failure::new(FailureClass::Transient, "no answer within 30 s"));
    let began = world.now;
    while world.actions.is_empty() {
        // A run every five minutes: each one knows what is journaled, and polls once.
        world.wait(300);
        let slots = std::mem::take(&mut world.fleet.slots);
        let (settings, ledger) = (world.fleet.settings.clone(), world.fleet.ledger.clone());
        world.fleet = Fleet::new(settings.clone(), slots, ledger);
        world.input(Input::Configured(Box::new(settings)));
        for _ in 0..3 {
            world.wait(5);
            world.poll(&[]);
            if world.asks("a") {
                world.get("a", None);
            }
            if !world.actions.is_empty() || world.fleet.memory["a"].deletions_unread > 0 {
                break;
            }
        }
        assert!(elapsed(began, world.now).as_secs() < 2 * 3600, "{:?}", world.hold("a"));
    }
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.actions);
    assert!(elapsed(began, world.now).as_secs() > 600);
}

#[test]
fn s10_a_persons_delete_of_a_replacement_at_work_is_followed_by_no_create() {
    for phase in [Phase::Creating, Phase::Launched] {
        let mut world = over_two(&["a"], &[]);
        world.recreate_preempted();
        let made = world.replacement("a", json!({"state": "CREATING"}));
        world.poll(std::slice::from_ref(&made));
        let recovery = world.fleet.slots.get_mut("a").unwrap().recovery.as_mut().unwrap();
        recovery.at = At::of(phase);
        recovery.at.set_call(Call::Unknown);
        let mut dying = made.clone();
        dying["state"] = json!("DELETING");
        for _ in 0..90 {
            world.wait(30);
            world.poll(std::slice::from_ref(&dying));
            if world.asks("a") {
                world.get("a", Some(dying.clone()));
            }
            if is_delete(&world.actions) {
                break;
            }
        }
        assert!(is_delete(&world.actions), "it is stuck: {:?}", world.hold("a"));
        world.called("a", gone());
        let owed = world.fleet.slots["a"].recovery.is_some();
        assert_eq!(owed, phase == Phase::Creating, "{phase}: {:?}", world.hold("a"));
    }
}

#[test]
fn s12_a_plain_node_is_asked_for_without_what_only_a_queued_resource_has() {
    let mut world = over_two(&["a"], &[]);
    lose(&mut world, &["a"]);
    let record = world.fleet.slots.get_mut("a").unwrap();
    let around = json!({"queueingPolicy": {"validUntilDuration": "3600s"}});
    record.spec.as_mut().unwrap().body_mut().insert("queuedResource".into(), around);
    // Not sent, so that it is asked for once more, with what was learned of a request.
    world.called("a", CallOutcome::NotSent(Failure::new(FailureClass::Transient, "late")));
    for _ in 0..30 {
        if !world.actions.is_empty() {
            break;
        }
        world.wait(10);
        world.input(Input::Tick);
    }
    let [Action::Create { body, filling: Filling::Node, .. }] = &world.actions[..] else {
        panic!()
    };
    assert_eq!(body.get("queuedResource"), None);
}
