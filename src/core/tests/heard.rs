//! S5: an order rests on what the workers say now.

use super::relaunch::WAITS;
use super::runs::with_checkpoints;
use super::*;
use crate::model::settings::Resume;

/// The slots of [`with_checkpoints`], whose job finds its own checkpoint, so that nothing has to be listed.
fn configured(world: &mut World, dry_run: bool) {
    let mut settings = world.fleet.settings.clone();
    settings.slots.get_mut("a").unwrap().job.as_mut().unwrap().resume = Some(Resume::Framework);
    settings.dry_run = dry_run;
    world.input(Input::Configured(Box::new(settings)));
}

#[test]
fn s5_what_an_earlier_process_was_told_orders_nothing() {
    for runs_again in [false, true] {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        world.workers_say(&[(1, "v2", None)]);
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
        world.surveyed(&[100, 200]);
        // An earlier process saw that all hosts wait, and sent nothing.
        configured(&mut world, true);
        world.wait(30);
        world.workers_say(&[(1, "v2", WAITS)]);
        world.next_poll(&node);
        assert_eq!(world.hold("a"), Some(HoldReason::DryRun));
        world.fleet.memory.clear();
        configured(&mut world, false);
        for _ in 0..30 {
            world.next_poll(&node);
            assert!(world.actions.is_empty(), "{:?}", world.actions);
        }
        // Reports that can't be read for long call an operator.
        assert_eq!(world.hold("a"), Some(HoldReason::NoBeaconChannel));
        world.workers_say(&[(1, "v2", if runs_again { None } else { WAITS })]);
        assert_eq!(world.run_order().is_some(), !runs_again, "{:?}", world.hold("a"));
    }
}

#[test]
fn l6_answers_that_lack_a_worker_call_an_operator_in_the_end() {
    let mut world = with_checkpoints();
    let mut node = world.supervised_run();
    node["networkEndpoints"] = json!([{}, {}]);
    world.workers_say(&[(1, "v2", None), (1, "v2", None)]);
    world.next_poll(&node);
    world.workers_say(&[(1, "v2", None), (1, "v2", WAITS)]);
    // Its sibling is not among those of which the API tells from here on.
    let held = (1..=60).find(|_| {
        world.workers_say(&[(1, "v2", WAITS)]);
        world.next_poll(&node);
        assert!(world.actions.is_empty(), "{:?}", world.actions);
        world.hold("a") == Some(HoldReason::NoBeaconChannel)
    });
    assert!(held.is_some_and(|polls| (20..=24).contains(&polls)), "ten minutes: {held:?}");
}

#[test]
fn s22_hosts_that_wait_for_a_newer_order_are_not_let_go_before_it() {
    let mut world = with_checkpoints();
    let waiting = world.paused_on_two_hosts();
    world.workers_say(&[(1, "v3", WAITS), (1, "v3", WAITS)]);
    world.next_poll(&waiting);
    // Another process takes over, and has heard nothing yet.
    world.fleet.memory.values_mut().for_each(|memory| memory.heard = None);
    world.resume();
    for _ in 0..4 {
        world.next_poll(&waiting);
        assert_eq!(world.run_order(), None, "{:?}", world.messages);
    }
    world.workers_say(&[(1, "v3", WAITS), (1, "v3", WAITS)]);
    world.surveyed(&[100]);
    let order = world.run_order().expect("a newer order");
    assert_eq!((order.generation, order.wait), (2, false));
}
