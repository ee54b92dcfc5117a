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
