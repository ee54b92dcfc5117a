//! Hosts that wait for each other: when they are ordered to start, and when a person is told.

use super::endings::Pull;
use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::ids::RunOrder;

/// A host of two: its generation and try, its index, what it does, how its last run ended.
type Host<'a> = ((u64, u64), &'a str, &'a str, Option<(u64, i64, &'a str)>);

const CALLS: &str = "roll_call: not heard from: 1";

impl World {
    /// A run on two hosts that have not reported yet. Returns its node.
    fn slice(&mut self) -> Value {
        let mut node = self.supervised_run();
        node["networkEndpoints"] = json!([{}, {}]);
        self.wait(30);
        self.poll(std::slice::from_ref(&node));
        node
    }

    fn hosts_say(&mut self, hosts: [Host; 2]) {
        let of = self.fleet.slots["a"].incarnation.clone().unwrap();
        let beat = self.now.as_second() % 100_000;
        let report = |((generation, attempt), index, does, exit): Host| {
            let beacon = |attempt: u64, value: i64, text: &str| Beacon {
                boot_id: "b".into(),
                generation,
                attempt,
                value,
                text: text.into(),
            };
            WorkerReport {
                boot: Some(beacon(attempt, 1, &format!("v4 {index}"))),
                heartbeat: Some(beacon(attempt, beat, does)),
                exit: exit.map(|(attempt, code, text)| beacon(attempt, code, text)),
                ..WorkerReport::default()
            }
        };
        let result = Ok(hosts.map(report).into());
        self.input(Input::Attributes { slot: "a".into(), of, began: self.now, result });
    }

    /// Polls for so many minutes, while the hosts say this. Returns the first order and its minute.
    fn ordered_within(
        &mut self,
        node: &Value,
        minutes: u32,
        hosts: [Host; 2],
    ) -> Option<(u32, RunOrder)> {
        (0..minutes * 2).find_map(|half| {
            self.wait(30);
            self.hosts_say(hosts);
            let mut order = self.run_order();
            if order.is_none() {
                self.poll(std::slice::from_ref(node));
                order = self.run_order();
            }
            if order.is_none() {
                self.surveyed(&[100]);
                order = self.run_order();
            }
            Some((half / 2, order?))
        })
    }
}

const fn host<'a>(attempt: u64, index: &'a str, does: &'a str) -> Host<'a> {
    ((1, attempt), index, does, None)
}

#[test]
fn l8_hosts_that_do_not_meet_for_ten_minutes_are_ordered_to_start_once() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let calls =
        |generation| [((generation, 0), "i0", CALLS, None), ((generation, 0), "i1", CALLS, None)];
    let (minute, order) = world.ordered_within(&node, 20, calls(1)).expect("an order");
    assert!((9..=11).contains(&minute), "{minute}");
    assert_eq!((order.generation, order.roll_called), (2, true), "the watchdog has heard of both");
    world.ordered(accepted());
    let node = patched(&node, &order);
    // An order is none for ever: what keeps them apart is told, with the port.
    assert_eq!(world.ordered_within(&node, 60, calls(2)), None);
    assert_eq!(world.hold("a"), Some(HoldReason::JobFailed));
    let reason = world.fleet.memory["a"].decision.as_ref().unwrap().reason.clone();
    assert!(
        reason.contains("the hosts wait for each other") && reason.contains("TCP port 8377"),
        "{reason}"
    );
    // It began nothing, so no run of it has failed.
    assert_eq!(world.fleet.slots["a"].job.runs.exits, 0);
    world.ordered_within(
        &node,
        2,
        [((2, 1), "i0", "running", None), ((2, 1), "i1", "running", None)],
    );
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn s22_hosts_that_are_two_alike_or_without_an_index_are_ordered_nothing() {
    for (index, named) in
        [("i0", "the workers 0, 0"), ("i7", "the workers 0, 7"), ("i-", "0, none")]
    {
        let mut world = with_checkpoints();
        let node = world.slice();
        let calls = [host(0, "i0", CALLS), host(0, index, "roll_call: two hosts call themselves")];
        assert_eq!(world.ordered_within(&node, 60, calls), None, "{index}");
        let reason = world.fleet.memory["a"].decision.as_ref().unwrap().reason.clone();
        assert!(reason.contains(named), "{reason}");
        // Nor where a person asks for it.
        world.pull(Pull::Relaunch { slot: "a".into() });
        assert_eq!(world.ordered_within(&node, 10, calls), None, "{index}");
        assert_eq!(world.hold("a"), Some(HoldReason::CannotRelaunch));
    }
}

#[test]
fn hosts_that_wait_for_one_that_is_set_up_are_let_wait() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let calls = [host(0, "i0", CALLS), host(0, "i1", "setup")];
    assert_eq!(world.ordered_within(&node, 25, calls), None);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    // The ten minutes begin when it is ready.
    let calls = [host(0, "i0", CALLS), host(0, "i1", CALLS)];
    let (minute, _) = world.ordered_within(&node, 20, calls).expect("an order");
    assert!((9..=11).contains(&minute), "{minute}");
}

#[test]
fn the_exit_of_an_earlier_try_is_stale() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let waits = Some((1, 139, "waits: for a newer order, or in 600 s for the other hosts"));
    world.hosts_say([((1, 1), "i0", "running", None), ((1, 1), "i1", "running", waits)]);
    assert!(world.fleet.slots["a"].job.failed.is_some());
    // They have begun the next one, and the former's exit is still there to be read.
    world.hosts_say([((1, 2), "i0", "running", None), ((1, 2), "i1", "running", waits)]);
    assert_eq!(world.fleet.slots["a"].job.failed, None);
    assert_eq!(
        world.ordered_within(
            &node,
            10,
            [((1, 2), "i0", "running", None), ((1, 2), "i1", "running", waits),]
        ),
        None
    );
    // The same words once more are another exit.
    let again = Some((2, 139, "waits: for a newer order, or in 600 s for the other hosts"));
    world.hosts_say([((1, 2), "i0", "running", None), ((1, 2), "i1", "running", again)]);
    assert!(world.fleet.slots["a"].job.failed.is_some());
    assert_eq!(world.fleet.slots["a"].exit_of(1), Some((1, 139)));
}
