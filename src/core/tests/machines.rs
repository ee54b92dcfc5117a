//! Machines that Google's own repair makes again inside their queued resource.

use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::command::CommandKind;
use crate::model::ids::RunOrder;

/// A poll half a minute later that shows this node as the machines of a request, made so many hours after the
/// first ones; a negative one is not there.
fn shows(world: &mut World, node: &Value, made: [i64; 2]) {
    world.wait(30);
    let mut view = NodeView::parse(node.clone()).unwrap();
    let first: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    view.members = ["a-0", "a-1"].map(str::to_owned).to_vec();
    for (name, hours) in view.members.iter().zip(made).filter(|(_, hours)| *hours >= 0) {
        let made = first + jiff::SignedDuration::from_hours(hours);
        view.fingerprint = view.fingerprint.rotate_left(1) ^ made.as_second().unsigned_abs();
        view.machines.get_or_insert_default().insert(name.clone(), made);
    }
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
    (0..30).find_map(|_| {
        shows(world, node, made);
        let first = world.run_order();
        world.workers_say(&[(1, "v3", None)]);
        if first.is_none() && world.fleet.memory["a"].pending.contains(&Pending::Checkpoints) {
            world.surveyed(&[100, 500, 900]);
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

#[test]
fn s7_a_label_on_a_machine_that_is_lost_counts_until_all_are_there_without_it() {
    let (mut world, created) = at_work_for_long();
    let mut labelled = created.clone();
    labelled["labels"] = json!({"tpu-watchdog": "off"});
    let opted_out = |world: &World| world.fleet.slots["a"].seen.as_ref().unwrap().opted_out;
    shows(&mut world, &labelled, [0, 0]);
    assert!(opted_out(&world));
    shows(&mut world, &created, [-1, 0]);
    assert!(opted_out(&world), "the labelled one is not there");
    shows(&mut world, &created, [0, 0]);
    assert!(!opted_out(&world));
}
