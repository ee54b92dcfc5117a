//! Machines that Google's own repair makes again inside their queued resource.

use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::WorkerReport;
use crate::model::command::CommandKind;
use crate::model::ids::RunOrder;
use crate::model::relaunch::Patch;

/// A poll half a minute later that shows this node as the machines of a request, made so many hours after the
/// first ones; a negative one is not there.
fn shows(world: &mut World, node: &Value, made: [i64; 2]) {
    shows_with(world, node, made, |_| ());
}

/// The same; and what else they show.
fn shows_with(world: &mut World, node: &Value, made: [i64; 2], change: impl Fn(&mut NodeView)) {
    world.wait(30);
    let mut view = NodeView::parse(node.clone()).unwrap();
    let first: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    view.members = ["a-0", "a-1"].map(str::to_owned).to_vec();
    for (name, hours) in view.members.iter().zip(made).filter(|(_, hours)| *hours >= 0) {
        let made = first + jiff::SignedDuration::from_hours(hours);
        view.fingerprint = view.fingerprint.rotate_left(1) ^ made.as_second().unsigned_abs();
        view.machines.get_or_insert_default().insert(name.clone(), made);
    }
    change(&mut view);
    view.opted_out |= !view.labelled.is_empty();
    view.fingerprint ^=
        view.out_of_step.unwrap_or_default() << 40 | (view.labelled.len() as u64) << 50;
    let idle = ["idle-1", "idle-2"].map(|name| super::node(name, json!({})));
    let idle = idle.map(|raw| Arc::new(NodeView::parse(raw).unwrap()));
    let nodes = [Arc::new(view)].into_iter().chain(idle).collect();
    world.poll_result(Ok((nodes, vec![])));
}

/// At work under generation 2, from step 500; step 900 is saved. Returns the node as it was created.
fn at_work_for_long() -> (World, Value) {
    let mut world = with_checkpoints();
    let created = world.at_work("v3");
    let newer = super::amend::present(&created);
    let newer = RunOrder { generation: 2, step: Some(500), ..newer };
    world.fleet.slots.get_mut("a").unwrap().job.generation = 2;
    shows(&mut world, &patched(&created, &newer), [0, 0]);
    world.workers_say(&[(2, "v3", None)]);
    world.surveyed(&[100, 500, 900]);
    (world, created)
}

/// The first order that is sent within a quarter of an hour in which such machines show.
fn next_order(world: &mut World, node: &Value, made: [i64; 2]) -> Option<RunOrder> {
    first_order(world, &[100, 500, 900], |world| shows(world, node, made))
}

/// The first order that is sent while these steps are saved and this is shown.
fn first_order(world: &mut World, saved: &[u64], show: impl Fn(&mut World)) -> Option<RunOrder> {
    (0..30).find_map(|_| {
        show(world);
        let shown = world.run_order();
        world.workers_say(&[(1, "v3", None)]);
        let first = shown.or(world.run_order());
        if first.is_none() && world.fleet.memory["a"].pending.contains(&Pending::Checkpoints) {
            world.surveyed(saved);
        }
        first.or(world.run_order())
    })
}

#[test]
fn s15_machines_that_are_made_again_get_an_order_from_the_newest_checkpoint() {
    for made in [[5, 5], [0, 5]] {
        let (mut world, created) = at_work_for_long();
        let order = next_order(&mut world, &created, made);
        let decided = &world.fleet.slots["a"].decision;
        let order = order.unwrap_or_else(|| panic!("{made:?}: {decided:?}"));
        assert_eq!((order.generation, order.step), (3, Some(900)), "{made:?}");
        world.ordered(accepted());
        // Once they have it, nothing more is ordered; nor by a read of the past.
        let ordered = patched(&created, &order);
        for poll in 0..40 {
            let past = poll % 7 == 3;
            shows(
                &mut world,
                if past { &created } else { &ordered },
                if past { [0, 0] } else { made },
            );
            assert!(world.run_order().is_none(), "{made:?} {poll}: {:?}", world.messages);
            world.workers_say(&[(3, "v3", None)]);
        }
    }
}

#[test]
fn s7_s17_machines_that_are_made_again_are_not_ordered_where_nothing_may_be_written() {
    let (mut world, mut created) = at_work_for_long();
    created["labels"] = json!({"tpu-watchdog": "off"});
    assert_eq!(next_order(&mut world, &created, [5, 0]), None, "opted out");
    let (mut world, created) = at_work_for_long();
    world.command(CommandKind::Forget { slot: "a".into(), purge: false });
    assert_eq!(next_order(&mut world, &created, [5, 0]), None, "forgotten");
    let (mut world, created) = at_work_for_long();
    world.fleet.settings.dry_run = true;
    assert_eq!(next_order(&mut world, &created, [5, 0]), None, "dry run");
}

/// The first machine has the label.
fn labelled(view: &mut NodeView) {
    view.labelled = ["a-0".to_owned()].into();
}

#[test]
fn s7_the_label_of_a_machine_that_is_lost_or_made_again_counts_until_resume() {
    let opted_out = |world: &World| world.fleet.slots["a"].seen.as_ref().unwrap().opted_out;
    for later in [[-1, 0], [5, 0]] {
        let (mut world, created) = at_work_for_long();
        shows_with(&mut world, &created, [0, 0], labelled);
        assert!(opted_out(&world));
        for _ in 0..3 {
            shows(&mut world, &created, later);
            assert!(opted_out(&world), "{later:?}: the labelled one is not there");
        }
        let decided = world.fleet.slots["a"].decision.clone().unwrap();
        let why = view::document(&world.fleet, world.now).tpus[0].unprotected_reason.clone();
        assert!(why.unwrap().contains("on a-0; `resume a`"), "{decided:?}");
        world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
        shows(&mut world, &created, later);
        assert!(!opted_out(&world), "{later:?}");
        // One that is there is opted out by its label, whatever was said.
        shows_with(&mut world, &created, later, |view| view.labelled = ["a-1".to_owned()].into());
        world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
        shows_with(&mut world, &created, later, |view| view.labelled = ["a-1".to_owned()].into());
        assert!(opted_out(&world), "{later:?}");
    }
    // People take it off a machine that is there.
    let (mut world, created) = at_work_for_long();
    shows_with(&mut world, &created, [0, 0], labelled);
    shows(&mut world, &created, [0, 0]);
    assert!(!opted_out(&world));
}

#[test]
fn s5_a_run_is_not_ended_for_what_it_saved_after_its_machines_were_made_again() {
    let (mut world, node) = with_two_machines();
    shows(&mut world, &node, [5, 5]);
    world.workers_say(&[(1, "v3", None)]);
    for round in 0..20 {
        world.surveyed(if round < 3 { &[100] } else { &[100, 200] });
        shows(&mut world, &node, [5, 5]);
        world.workers_say(&[(1, "v3", None)]);
        let ordered = &world.fleet.slots["a"].job.relaunch;
        assert!(ordered.is_none(), "{round}: {:?}", world.messages);
    }
    // Steps that the former machines had saved unseen count.
    let (mut world, node) = with_two_machines();
    shows(&mut world, &node, [5, 5]);
    world.surveyed(&[100, 200]);
    let order = first_order(&mut world, &[100, 200], |world| shows(world, &node, [5, 5]));
    assert_eq!(order.and_then(|order| order.step), Some(200));
}

/// At work under generation 1, from the only step that is saved. Returns the node.
fn with_two_machines() -> (World, Value) {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    shows(&mut world, &node, [0, 0]);
    world.workers_say(&[(1, "v3", None)]);
    world.surveyed(&[100]);
    (world, node)
}

#[test]
fn l1_machines_that_are_made_again_and_never_boot_are_judged() {
    let (mut world, created) = at_work_for_long();
    let never = (0..60).any(|_| {
        shows_with(&mut world, &created, [0, 5], |view| view.out_of_step = Some(2));
        let of = world.fleet.slots["a"].incarnation.clone().unwrap();
        let (began, result) = (world.now, Ok(vec![WorkerReport::default()]));
        world.input(Input::Attributes { slot: "a".into(), of, began, result });
        world.fleet.slots["a"].verdict.condition == Condition::NeverBooted
    });
    assert!(never, "{:?}", world.fleet.slots["a"].verdict);
}

#[test]
fn l8_machines_that_are_made_again_while_an_order_waits_for_them_get_the_next_one() {
    let (mut world, created) = at_work_for_long();
    let newer = RunOrder { generation: 2, step: Some(500), ..super::amend::present(&created) };
    world.command(CommandKind::Relaunch { slot: "a".into() });
    let order = (0..10).find_map(|_| {
        let first = world.run_order();
        if first.is_none() && world.fleet.memory["a"].pending.contains(&Pending::Checkpoints) {
            world.surveyed(&[100, 500, 900]);
        } else if first.is_none() {
            shows(&mut world, &patched(&created, &newer), [0, 0]);
        }
        first.or(world.run_order())
    });
    let order = order.expect("the operator's");
    world.ordered(accepted());
    shows(&mut world, &patched(&created, &order), [0, 0]);
    let next = next_order(&mut world, &created, [0, 5]).expect("one for the new machine");
    assert_eq!((order.generation, next.generation, next.step), (3, 4, Some(900)));
    assert_eq!(world.fleet.slots["a"].job.runs.fruitless, 0, "S16: no run of the job has failed");
}

#[test]
fn s15_a_request_of_ours_that_comes_with_an_old_order_gets_the_next_one() {
    let (mut world, created) = at_work_for_long();
    // Another request with the same names: granted late, or made by a person from its description.
    let later = |view: &mut NodeView| {
        let known = view.incarnation.as_mut().unwrap();
        (known.id, known.created) =
            ("q.late".into(), known.created + jiff::SignedDuration::from_hours(1));
        view.fingerprint ^= 1 << 60;
    };
    let show = |world: &mut World| shows_with(world, &created, [9, 9], later);
    let order = first_order(&mut world, &[100, 500, 900], show);
    assert_eq!(order.map(|order| (order.generation, order.step)), Some((3, Some(900))));
}

#[test]
fn s16_a_run_that_google_ended_with_its_machines_is_no_failed_one() {
    let (mut world, created) = at_work_for_long();
    shows(&mut world, &created, [5, 5]);
    // Its hosts, which started the old order meanwhile, have done something.
    world.fleet.slots.get_mut("a").unwrap().job.runs.began = true;
    let order = next_order(&mut world, &created, [5, 5]);
    assert_eq!(order.map(|order| order.generation), Some(3), "{:?}", world.messages);
    let runs = &world.fleet.slots["a"].job.runs;
    assert_eq!((runs.began, runs.fruitless, runs.stuck, runs.exits), (false, 0, 0, 0));
}

#[test]
fn s17_a_released_machine_that_is_made_again_is_released_once_more() {
    let (mut world, created) = at_work_for_long();
    world.command(CommandKind::Release { slot: "a".into() });
    world.input(Input::Ordered { slot: "a".into(), generation: 0, outcome: accepted() });
    let mut theirs = created.clone();
    theirs["metadata"] = json!({"startup-script": "#! /bin/sh\n"});
    shows(&mut world, &theirs, [0, 0]);
    assert!(!world.fleet.slots["a"].ours, "{:?}", world.messages);
    let again = (0..10).any(|_| {
        shows(&mut world, &created, [5, 5]);
        matches!(world.actions[..], [Action::Patch { patch: Patch::Release, .. }])
    });
    assert!(again, "it has our keys once more: {:?}", world.messages);
}
