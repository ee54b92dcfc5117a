//! Runs on several hosts that fail one after the other: the pauses between them, and their end.

use super::relaunch::{WAITS, accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::command::CommandKind;
use crate::model::time::elapsed;

impl World {
    /// A run on two hosts that ended at once.
    pub fn failed_at_once(&mut self) {
        let mut node = self.supervised_run();
        node["networkEndpoints"] = json!([{}, {}]);
        self.workers_say(&[(1, "v2", None), (1, "v2", None)]);
        self.next_poll(&node);
        self.workers_say(&[(1, "v2", None), (1, "v2", WAITS)]);
        self.surveyed(&[100]);
        self.wait(1);
        self.poll(&[node]);
    }

    /// A run that ended at once with 0.
    pub fn ended_early_at_once(&mut self) {
        let node = self.supervised_run();
        self.workers_say(&[(1, "v2", None)]);
        self.next_poll(&node);
        self.workers_say(&[(1, "v2", Some((0, "done ran=4 step=none")))]);
        self.surveyed(&[100]);
        self.wait(1);
        self.poll(&[node]);
    }
}

/// The pauses before the runs that follow each other on two hosts whose supervisors are of these versions.
fn pauses(versions: [&'static str; 2], per_run: u32) -> (World, Vec<u64>) {
    let mut world = with_checkpoints();
    let mut node = world.supervised_run();
    node["networkEndpoints"] = json!([{}, {}]);
    let job = world.fleet.settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.restarts_per_run = per_run;
    // Nothing is passed over twice.
    world.fleet.slots.get_mut("a").unwrap().job.runs.set_aside = Some((110, world.now));
    let mut pauses = Vec::new();
    for generation in 1..=u64::from(per_run) {
        let says = |ends: [_; 2]| [0, 1].map(|host| (generation, versions[host], ends[host]));
        world.workers_say(&says([None, None]));
        world.next_poll(&node);
        world.workers_say(&says([None, WAITS]));
        let ended = world.now;
        let mut order = None;
        for _ in 0..120 {
            world.wait(5);
            world.poll(std::slice::from_ref(&node));
            order = world.run_order();
            if order.is_none() {
                // The other one dies of it later: the pause goes on.
                world.workers_say(&says([WAITS, WAITS]));
                world.surveyed(&[100]);
                order = world.run_order();
            }
            if order.is_some() {
                break;
            }
        }
        let Some(order) = order else { break };
        pauses.push(elapsed(ended, world.now).as_secs());
        world.ordered(accepted());
        node = patched(&node, &order);
        world.next_poll(&node);
    }
    (world, pauses)
}

#[test]
fn s16_a_run_that_fails_at_once_on_several_hosts_is_ordered_again_after_growing_pauses() {
    let (mut world, pauses) = pauses(["v2", "v2"], 5);
    assert_eq!(pauses, [10, 20, 40, 80]);
    assert_eq!(world.hold("a"), Some(HoldReason::JobFailed), "five runs");
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
    assert!(reason.contains("5 runs in a row") && reason.contains("`relaunch a`"), "{reason}");
    assert_eq!(world.fleet.slots["a"].job.runs.fruitless, 0, "runs that end otherwise count apart");
    world.wait(5);
    world.command(CommandKind::Relaunch { slot: "a".into() });
    world.workers_say(&[(5, "v2", WAITS), (5, "v2", WAITS)]);
    world.surveyed(&[100]);
    assert_eq!(
        world.run_order().map(|order| order.generation),
        Some(6),
        "a person starts it again"
    );
}

#[test]
fn s16_the_pauses_grow_up_to_the_time_at_which_the_hosts_start_by_themselves() {
    // Three polls of 30 s before ten minutes, or five of the first versions.
    let (_, now) = pauses(["v4 i0", "v4 i1"], 9);
    assert_eq!(now, [10, 20, 40, 80, 160, 320, 510, 510]);
    let (_, before) = pauses(["v2", "v2"], 9);
    assert_eq!(before, [10, 20, 40, 80, 160, 210, 210, 210]);
}

#[test]
fn l6_a_run_that_waits_is_told_where_its_hosts_can_not_be_heard_any_longer() {
    let mut world = with_checkpoints();
    let mut node = world.supervised_run();
    node["networkEndpoints"] = json!([{}, {}]);
    // One host of the two has never said which orders it takes: nothing can be ordered.
    world.workers_say(&[(1, "v2", None), (1, "", None)]);
    world.next_poll(&node);
    world.workers_say(&[(1, "v2", WAITS), (1, "", None)]);
    let holds: Vec<_> = (0..50)
        .map(|_| {
            world.next_poll(&node);
            world.hold("a")
        })
        .collect();
    let heard = (0..39).all(|at| holds[at].is_none());
    assert!(heard && holds[49] == Some(HoldReason::NoBeaconChannel), "{holds:?}");
    world.workers_say(&[(1, "v2", WAITS), (1, "", None)]);
    world.next_poll(&node);
    assert_eq!(world.hold("a"), None, "its hosts are heard again");
}
