//! A multislice: it is judged as long as a slice of it lives, and lost when none does.

use super::relaunch::accepted;
use super::runs::{LOCATION, survey, with_checkpoints};
use super::*;
use crate::model::action::RequestList;
use crate::model::command::CommandKind;
use crate::model::filling::{Deletable, Filling};
use crate::model::queued::RequestView;
use crate::model::relaunch::Asked;
use crate::resource::queued::reading::reading;

const REQUEST: &str = "projects/p/locations/us-central2-b/queuedResources/q";

fn request() -> RequestView {
    let spec = json!({"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s"},
                      "node": {"acceleratorType": "v4-8", "runtimeVersion": "r"}});
    let raw = json!({"name": REQUEST, "createTime": "2026-01-01T00:00:00Z", "spot": {},
                     "state": {"state": "ACTIVE"}, "tpu": {"nodeSpec": [spec]}});
    RequestView::parse(raw).unwrap()
}

/// Two slices, in these states; an empty one is not there.
fn slices(states: [&str; 2]) -> Vec<Arc<NodeView>> {
    let there = states.iter().enumerate().filter(|(_, state)| !state.is_empty());
    let view = |(slice, state): (usize, &&str)| {
        let raw = node(&format!("s-{slice}"), json!({"state": state, "queuedResource": REQUEST}));
        Arc::new(NodeView::parse(raw).unwrap())
    };
    there.map(view).collect()
}

/// The slot `a` is a Spot multislice whose job has checkpoints; it is healthy.
fn multislice() -> World {
    let mut world = with_checkpoints();
    let mut settings = world.fleet.settings.clone();
    settings.slots.get_mut("a").unwrap().filling = Filling::QueuedResource("q".into());
    world.input(Input::Configured(Box::new(settings)));
    shows(&mut world, ["READY", "READY"]);
    world.surveyed(&[100]);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    world
}

/// A poll half a minute later; a GET that it asks for shows the same.
fn shows(world: &mut World, states: [&str; 2]) {
    lists(world, slices(states));
    if world.looks.iter().any(|look| matches!(look, Look::Node { .. })) {
        world.wait(1);
        let reading = reading("q", Some(&request()), &slices(states));
        world.input(Input::Got { slot: "a".into(), began: world.now, reading });
    }
}

/// A poll half a minute later that lists the request and these nodes.
fn lists(world: &mut World, nodes: Vec<Arc<NodeView>>) {
    world.wait(30);
    let idle = ["idle-1", "idle-2"].map(|name| NodeView::parse(node(name, json!({}))).unwrap());
    let nodes: Vec<_> = nodes.into_iter().chain(idle.map(Arc::new)).collect();
    let requests = RequestList { requests: vec![request()], unreachable: vec![] };
    let result = Ok((nodes, vec![]).into());
    let listing = Listing { zone: ZONE.into(), result, requests: Some(Ok(requests)) };
    world.input(Input::Polled(Box::new(Poll {
        began: world.now,
        listings: vec![listing],
        jobs: vec![],
    })));
}

/// The seconds for which it shows these states until it is deleted, at most an hour.
fn lasts(world: &mut World, states: [&str; 2]) -> Option<u64> {
    (1..=120).find_map(|poll| {
        shows(world, states);
        is_delete(&world.actions).then_some(poll * 30)
    })
}

#[test]
fn s3_a_lost_slice_is_waited_for_and_the_others_go_with_it() {
    let mut world = multislice();
    let deleted = lasts(&mut world, ["READY", ""]).unwrap();
    assert!((600..=660).contains(&deleted), "10 min on Spot: {deleted} s");
    let [Action::Delete { filling, force: true, .. }] = &world.actions[..] else {
        panic!("{:?}", world.actions)
    };
    assert_eq!(*filling, Filling::QueuedResource("q".into()));
    assert_eq!(world.fleet.slots["a"].seen.as_ref().unwrap().deletable, Deletable::WithItsNodes);
}

#[test]
fn a_slice_that_comes_back_clears_the_suspicion() {
    let mut world = multislice();
    for _ in 0..18 {
        shows(&mut world, ["READY", "PREEMPTED"]);
    }
    shows(&mut world, ["READY", "CREATING"]);
    assert!(world.actions.is_empty(), "it is repaired");
    for _ in 0..25 {
        shows(&mut world, ["READY", "READY"]);
        assert!(world.actions.is_empty());
    }
    assert!(world.fleet.slots["a"].suspicion.is_none());
}

#[test]
fn s14_a_multislice_that_makes_progress_without_a_slice_is_left_alone() {
    let mut world = multislice();
    for round in 1..=40 {
        for _ in 0..4 {
            shows(&mut world, ["READY", ""]);
            assert!(world.actions.is_empty(), "round {round}: {:?}", world.messages);
        }
        let result = Ok(survey(&[100 + round * 10]));
        let (slot, began, location) = ("a".into(), world.now, LOCATION.into());
        world.input(Input::Surveyed { slot, began, location, result });
        let told = world.fleet.slots["a"].decision.clone().expect("it is decided");
        assert!(told.reason.contains("its job made progress at"), "{told:?}");
    }
}

#[test]
fn s10_a_multislice_without_a_living_slice_is_lost_at_once() {
    for states in [["PREEMPTED", "PREEMPTED"], ["PREEMPTED", ""]] {
        let mut world = multislice();
        let deleted = lasts(&mut world, states).unwrap();
        assert!(deleted <= 60, "{states:?}: {deleted} s");
    }
    let mut world = multislice();
    assert_eq!(lasts(&mut world, ["READY", "STOPPED"]), None, "a person stopped one");
    assert_eq!(world.hold("a"), Some(HoldReason::Stopped));
}

#[test]
fn s3_nodes_that_no_list_shows_are_waited_for_before_their_grant_is_given_up() {
    let mut world = multislice();
    let deleted = lasts(&mut world, ["", ""]).unwrap();
    assert!((120..=180).contains(&deleted), "grace.missing: {deleted} s");
    // The list of nodes lags behind the request.
    let mut world = multislice();
    for _ in 0..3 {
        shows(&mut world, ["", ""]);
        assert!(world.actions.is_empty());
    }
    assert_eq!(lasts(&mut world, ["READY", "READY"]), None);
}

#[test]
fn spot_nodes_that_vanish_are_asked_for_again_and_those_that_a_person_deletes_are_not() {
    // The service may take Spot capacity back that way: a night must not be lost to a guess.
    let mut world = multislice();
    assert_eq!(lasts(&mut world, ["READY", "READY"]), None);
    let deleted = lasts(&mut world, ["", ""]).unwrap();
    assert!((120..=180).contains(&deleted), "grace.missing: {deleted} s");
    // DELETING of nodes at work under a request that stays ACTIVE is a person's doing.
    let mut world = multislice();
    assert_eq!(lasts(&mut world, ["READY", "READY"]), None);
    shows(&mut world, ["DELETING", "DELETING"]);
    assert_eq!(lasts(&mut world, ["", ""]), None, "S1: {:?}", world.messages);
    assert_eq!(world.hold("a"), Some(HoldReason::Deleted));
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    assert!(lasts(&mut world, ["", ""]).is_some(), "{:?}", world.hold("a"));
    // One that came to nothing, or that the config asks for in any case, holds nothing.
    let mut world = multislice();
    assert_eq!(lasts(&mut world, ["READY", "READY"]), None);
    shows(&mut world, ["DELETING", "DELETING"]);
    shows(&mut world, ["READY", "READY"]);
    assert!(world.fleet.slots["a"].deleted.is_some(), "S4: that may be the past");
    assert_eq!(lasts(&mut world, ["READY", "READY"]), None);
    assert!(lasts(&mut world, ["", ""]).is_some(), "{:?}", world.hold("a"));
    let mut world = multislice();
    let slot = world.fleet.settings.slots.get_mut("a").unwrap();
    slot.policy.when_missing = crate::model::settings::WhenMissing::Create;
    assert_eq!(lasts(&mut world, ["READY", "READY"]), None);
    shows(&mut world, ["DELETING", "DELETING"]);
    assert!(lasts(&mut world, ["", ""]).is_some(), "{:?}", world.hold("a"));
    // After what was lost it is only its end.
    let mut world = multislice();
    shows(&mut world, ["PREEMPTED", "PREEMPTED"]);
    shows(&mut world, ["DELETING", "DELETING"]);
    assert_eq!(world.fleet.slots["a"].deleted, None);
}

/// A poll half a minute later that shows this node, with slices of which not all have its run order.
fn shows_out_of_step(world: &mut World, node: &Value, out_of_step: bool) {
    shows_newest(world, node, out_of_step.then_some(1));
}

/// The same; `newest` is the newest generation that one of them has.
fn shows_newest(world: &mut World, node: &Value, newest: Option<u64>) {
    world.wait(30);
    let mut view = NodeView::parse(node.clone()).unwrap();
    view.fingerprint ^= newest.unwrap_or_default();
    view.out_of_step = newest;
    let idle = ["idle-1", "idle-2"].map(|name| super::node(name, json!({})));
    let idle = idle.map(|raw| Arc::new(NodeView::parse(raw).unwrap()));
    let nodes = [Arc::new(view)].into_iter().chain(idle).collect();
    world.poll_result(Ok((nodes, vec![])));
}

#[test]
fn a_slice_that_lacks_the_order_is_ordered_again_in_five_minutes_and_not_before() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    shows_out_of_step(&mut world, &node, false);
    assert!(world.actions.is_empty());
    shows_out_of_step(&mut world, &node, true);
    let order = world.run_order().expect("the present order");
    assert_eq!(order.generation, 1);
    world.ordered(accepted());
    let again = (1..=30).find(|_| {
        shows_out_of_step(&mut world, &node, true);
        world.run_order().is_some()
    });
    assert_eq!(again, Some(10), "5 min in polls of 30 s");
    world.ordered(accepted());
    for _ in 0..30 {
        shows_out_of_step(&mut world, &node, false);
        assert!(world.actions.is_empty(), "L2: {:?}", world.actions);
    }
}

/// An operator's order of generation 2 is being sent. Returns the node as it was before.
fn ordered() -> (World, Value) {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.surveyed(&[100]);
    world.fleet.slots.get_mut("a").unwrap().job.relaunch_by =
        Some(Asked { who: "ada".into(), at: world.now });
    world.wait(1);
    world.get("a", Some(node.clone()));
    (world, node)
}

/// An order of generation 2 whose answer was lost, and whose reason has passed, shows as this newest one. Returns the
/// generation of the next order that is sent within a quarter of an hour.
fn next_order(newest: u64) -> Option<u64> {
    let (mut world, node) = ordered();
    assert_eq!(world.run_order().map(|order| order.generation), Some(2));
    world.ordered(CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer")));
    world.fleet.slots.get_mut("a").unwrap().job.relaunch_by = None;
    let sent = |world: &World| world.run_order().map(|order| order.generation);
    (1..=30).find_map(|_| {
        world.workers_say(&[(1, "v3", None)]);
        let first = sent(&world);
        shows_newest(&mut world, &node, Some(newest));
        let first = first.or(sent(&world));
        if world.fleet.memory["a"].pending.contains(&Pending::Checkpoints) {
            world.surveyed(&[100]);
        }
        first.or(sent(&world))
    })
}

#[test]
fn an_order_that_reached_some_slices_alone_is_followed_by_one_for_all_whatever_it_was_for() {
    assert_eq!(next_order(2), Some(3));
    // It reached none of them, and one lacks the order before it: that one goes to all, and nothing starts again.
    assert_eq!(next_order(1), Some(1));
}

#[test]
fn s15_an_order_for_all_slices_is_newer_than_that_of_each_whatever_the_journal_knows() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.surveyed(&[100]);
    for _ in 0..10 {
        world.workers_say(&[(1, "v3", None)]);
        shows_newest(&mut world, &node, Some(2));
        if world.fleet.memory["a"].pending.contains(&Pending::Checkpoints) {
            world.surveyed(&[100]);
        }
    }
    let relaunch = world.fleet.slots["a"].job.relaunch.clone().expect("one slice has generation 2");
    assert_eq!(relaunch.order.generation, 3);
}

#[test]
fn an_order_that_one_slice_refuses_for_good_is_told_with_its_reason_and_tried_in_five_minutes() {
    let (mut world, node) = ordered();
    assert!(world.run_order().is_some(), "{:?}", world.hold("a"));
    let denied = Failure::new(FailureClass::Permission, "tpu.nodes.update denied on s-1");
    world.ordered(CallOutcome::Unknown(denied));
    let mut held = 0;
    let again = (1..=30).find(|_| {
        shows_out_of_step(&mut world, &node, true);
        held += usize::from(world.hold("a") == Some(HoldReason::CannotRelaunch));
        let lists = world.fleet.memory["a"].pending.contains(&Pending::Checkpoints);
        let sent = world.run_order().is_some();
        if lists && !sent {
            world.surveyed(&[100]);
        }
        world.run_order().is_some()
    });
    assert_eq!((again, held > 0), (Some(10), true), "5 min in polls of 30 s");
}

#[test]
fn s5_hosts_without_the_present_order_are_not_taken_for_silent() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.fleet.slots.get_mut("a").unwrap().job.workers.get_mut(&0).unwrap().quiet_for =
        Duration::from_secs(3600);
    let condition = |world: &World| world.fleet.slots["a"].verdict.condition;
    shows_out_of_step(&mut world, &node, true);
    assert_eq!(condition(&world), Condition::Healthy);
    shows_out_of_step(&mut world, &node, false);
    assert_eq!(condition(&world), Condition::Silent);
}

#[test]
fn s5_nodes_of_the_request_under_other_names_than_are_expected_give_no_reading() {
    let mut world = multislice();
    let raw = node("other", json!({"queuedResource": REQUEST}));
    for _ in 0..10 {
        lists(&mut world, vec![Arc::new(NodeView::parse(raw.clone()).unwrap())]);
        assert!(world.actions.is_empty() && world.fleet.slots["a"].suspicion.is_none());
    }
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Unclear);
}
