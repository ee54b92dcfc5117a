//! Hosts that wait for each other: when they are ordered to start, and when an operator is told.

use super::endings::CommandKind;
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
        let report = |(host, ((generation, attempt), index, does, exit)): (usize, Host)| {
            let beacon = |attempt: u64, value: i64, text: &str| Beacon {
                boot_id: format!("b{host}"),
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
        let result = Ok(hosts.into_iter().enumerate().map(report).collect());
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
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
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
fn s22_hosts_that_are_two_alike_or_without_an_index_reboot_once_and_are_then_replaced() {
    for (index, named, reboots) in [
        ("i0", "the workers 0, 0", vec!["b0", "b1"]),
        ("i7", "the workers 0, 7", vec!["b1"]),
        ("i-", "the workers 0, none", vec!["b1"]),
    ] {
        let mut world = with_checkpoints();
        let node = world.slice();
        let hosts = [host(0, "i0", CALLS), host(0, index, "roll_call: two hosts call themselves")];
        let (minute, order) = world.ordered_within(&node, 60, hosts).expect("a reboot");
        assert!((9..=11).contains(&minute), "{minute}");
        assert_eq!(order.reboot, reboots);
        assert_eq!(order.generation, 1, "nothing starts");
        let evidence = &world.fleet.slots["a"].verdict.evidence;
        assert!(evidence.contains(named), "{evidence}");
        world.ordered(accepted());
        let node = patched(&node, &order);
        // They come up as they were: they are started by no order, and after as long again the TPU is replaced.
        let deleted = (1..=60).find(|_| {
            assert_eq!(world.ordered_within(&node, 1, hosts), None, "{index}");
            world.get("a", Some(node.clone()));
            is_delete(&world.actions)
        });
        assert!(deleted.is_some_and(|minute| (9..=13).contains(&minute)), "{deleted:?}");
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::GangIncomplete);
    }
}

#[test]
fn hosts_that_a_reboot_has_mended_start_and_are_left_alone() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let (_, order) = world
        .ordered_within(&node, 60, [host(0, "i0", CALLS), host(0, "i-", "setup_failed: no index")])
        .expect("a reboot");
    world.ordered(accepted());
    let node = patched(&node, &order);
    let runs = [host(1, "i0", "running"), host(1, "i1", "running")];
    assert_eq!(world.ordered_within(&node, 30, runs), None);
    let record = &world.fleet.slots["a"];
    assert_eq!((record.verdict.condition, &record.suspicion), (Condition::Healthy, &None));
}

#[test]
fn a_slice_that_has_run_and_hosts_of_an_earlier_supervisor_are_not_incomplete() {
    let mut world = with_checkpoints();
    let node = world.slice();
    world.ordered_within(&node, 1, [host(1, "i0", "running"), host(1, "i1", "running")]);
    let alike = [host(1, "i0", "running"), host(1, "i0", "running")];
    assert_eq!(world.ordered_within(&node, 60, alike), None);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    let mut world = with_checkpoints();
    let mut node = world.supervised_run();
    node["networkEndpoints"] = json!([{}, {}]);
    for _ in 0..60 {
        world.workers_say(&[(1, "v3", None), (1, "v3", None)]);
        world.next_poll(&node);
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
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
    let waits = Some((1, 139, "waits: for a newer order, or 600 s, then for the other hosts"));
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
    let again = Some((2, 139, "waits: for a newer order, or 600 s, then for the other hosts"));
    world.hosts_say([((1, 2), "i0", "running", None), ((1, 2), "i1", "running", again)]);
    assert!(world.fleet.slots["a"].job.failed.is_some());
    assert_eq!(world.fleet.slots["a"].exit_of(1), Some((1, 139)));
}

#[test]
fn where_the_job_stands_is_shown_by_the_host_that_is_least_advanced() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let shown = |world: &World| {
        let slot = view::document(&world.fleet, world.now).tpus.remove(0);
        let job = slot.job.unwrap();
        let waits = slot.warnings.into_iter().find(|text| text.starts_with("the job does"));
        (job.state, job.phase.map(|phase| phase.name()), waits.unwrap_or_default())
    };
    let mut says = |zero: &str, one: &str| {
        world.wait(30);
        world.hosts_say([host(1, "i0", zero), host(1, "i1", one)]);
        world.poll(std::slice::from_ref(&node));
        shown(&world)
    };
    let waits =
        |worker: usize, words: &str| format!("the job does not run yet: worker {worker}: {words}");
    let setup = says(CALLS, "setup_failed code=1 tries=2: again in 20 s");
    let words = waits(1, "setup_failed code=1 tries=2: again in 20 s");
    assert_eq!(setup, ("waiting".into(), Some("setup"), words));
    let calls = says(CALLS, "roll_call: worker 0 does not answer");
    assert_eq!(calls, ("waiting".into(), Some("waiting"), waits(0, CALLS)));
    assert_eq!(says("running", "restarting").1, Some("waiting"));
    assert_eq!(says("running", "running"), ("running".into(), Some("running"), String::new()));
    assert_eq!(says("saving", "saving; the disk of /var is full").1, Some("saving"));
    assert_eq!(says("running", "done").1, Some("running"));
    assert_eq!(says("running", "a word of a later version").1, None);
    // Where steps are reported, what has made none yet compiles.
    world.fleet.slots.get_mut("a").unwrap().job.runs.best_step = Some(100);
    world.hosts_say([host(1, "i0", "running"), host(1, "i1", "running")]);
    assert_eq!(shown(&world).1, Some("compile"));
    world.fleet.slots.get_mut("a").unwrap().job.step = Some(101);
    assert_eq!(shown(&world).1, Some("running"));
}

#[test]
fn a_dead_host_that_the_others_wait_for_is_found_and_replaced() {
    // One that never booted, and one that fell silent after it had.
    for booted in [false, true] {
        let mut world = with_checkpoints();
        let node = world.slice();
        let of = world.fleet.slots["a"].incarnation.clone().unwrap();
        let dead = |beat: i64| {
            let beacon = |value: i64, text: &str| {
                booted.then(|| Beacon {
                    boot_id: "c".into(),
                    generation: 1,
                    attempt: 0,
                    value,
                    text: text.into(),
                })
            };
            WorkerReport {
                boot: beacon(1, "v4 i1"),
                heartbeat: beacon(beat, CALLS),
                ..WorkerReport::default()
            }
        };
        let calls = |beat: i64| WorkerReport {
            boot: Beacon::parse("b 1.0 1 v4 i0"),
            heartbeat: Beacon::parse(&format!("b 1.0 {beat} {CALLS}")),
            ..WorkerReport::default()
        };
        let cause = (0..60).find_map(|beat| {
            world.wait(30);
            let result = Ok(vec![calls(beat), dead(7)]);
            let input =
                Input::Attributes { slot: "a".into(), of: of.clone(), began: world.now, result };
            world.input(input);
            assert_eq!(world.run_order(), None, "who is dead does not start");
            world.poll(std::slice::from_ref(&node));
            world.surveyed(&[100]);
            assert_eq!(world.run_order(), None, "who is dead does not start");
            let condition = world.fleet.slots["a"].verdict.condition;
            (condition != Condition::Healthy && condition != Condition::JobFailed)
                .then_some(condition)
        });
        let expected = if booted { Condition::Silent } else { Condition::NeverBooted };
        assert_eq!(cause, Some(expected), "{:?}", world.fleet.slots["a"].verdict);
    }
}

#[test]
fn s16_a_run_that_ends_between_two_heartbeats_is_counted() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let waits = "waits: for a newer order, or 600 s, then for the other hosts";
    let mut orders = Vec::new();
    for generation in 1..=20 {
        // No heartbeat ever says that it runs.
        let fails = ((generation, 1), "i1", "waiting for an order", Some((1, 1, waits)));
        let lost = ((generation, 1), "i0", "waiting for an order", Some((1, 134, waits)));
        let Some((minutes, order)) = world.ordered_within(&node, 30, [lost, fails]) else { break };
        world.ordered(accepted());
        orders.push((order.generation, minutes));
    }
    let generations: Vec<u64> = orders.iter().map(|(generation, _)| *generation).collect();
    // restart.per_run is 5, and a checkpoint that none got away from is passed over once.
    assert_eq!(generations, [2, 3, 4, 5, 6, 7]);
    assert!(orders[3].1 >= 1, "it is paused between them: {orders:?}");
    assert_eq!(world.hold("a"), Some(HoldReason::JobFailed));
}

#[test]
fn hosts_that_have_run_their_order_and_wait_for_one_that_hangs_are_ordered_again() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let node = patched(&node, &RunOrder { roll_called: true, ..order_of(&node) });
    world.poll(std::slice::from_ref(&node));
    // One was started again by its systemd, and calls; the other hangs in the first try.
    let hangs = [((1, 1), "i0", "running", None), ((1, 1), "i1", CALLS, None)];
    let (minute, order) = world.ordered_within(&node, 20, hangs).expect("an order");
    assert!((9..=11).contains(&minute) && order.generation == 2, "{minute} {order:?}");
    assert!(!order.roll_called, "the one that hangs calls later");
}

fn order_of(node: &Value) -> RunOrder {
    serde_json::from_str(node["metadata"]["tpu-watchdog-run"].as_str().unwrap()).unwrap()
}

#[test]
fn s22_an_order_vouches_only_for_hosts_that_all_call_and_were_heard_within_the_last_minutes() {
    let calling = |index| host(0, index, CALLS);
    for (quiet, second, called) in [
        (0, calling("i1"), true),
        (180, calling("i1"), false),
        // It may still be fetching an image, or end its run: it must not be left out.
        (0, host(1, "i1", "running"), false),
        (0, host(1, "i1", "exited"), false),
    ] {
        let mut world = with_checkpoints();
        let node = world.slice();
        let both = [calling("i0"), second];
        for _ in 0..21 {
            world.wait(30);
            world.hosts_say(both);
            assert_eq!(world.run_order(), None);
            world.poll(std::slice::from_ref(&node));
        }
        let workers = &mut world.fleet.slots.get_mut("a").unwrap().job.workers;
        workers.get_mut(&1).unwrap().quiet_for = Duration::from_secs(quiet);
        world.command(CommandKind::Relaunch { slot: "a".into() });
        let mut order = world.run_order();
        if order.is_none() {
            world.surveyed(&[100]);
            order = world.run_order();
        }
        let order = order.expect("an order");
        assert_eq!((order.generation, order.roll_called), (2, called), "{quiet} s, {second:?}");
    }
}

#[test]
fn s5_what_a_host_said_in_the_boot_before_orders_nothing() {
    for (beats_in, ordered) in [("b", true), ("before", false)] {
        let mut world = with_checkpoints();
        let node = world.slice();
        let of = world.fleet.slots["a"].incarnation.clone().unwrap();
        let order = (0..26).find_map(|_| {
            world.wait(30);
            let beat = world.now.as_second() % 100_000;
            let beacon = |boot: &str, value: i64, text: &str| Beacon {
                boot_id: boot.into(),
                generation: 1,
                attempt: 0,
                value,
                text: text.into(),
            };
            let report = |index: &str| WorkerReport {
                boot: Some(beacon("b", 1, &format!("v4 {index}"))),
                heartbeat: Some(beacon(beats_in, beat, CALLS)),
                ..WorkerReport::default()
            };
            let (of, result) = (of.clone(), Ok(vec![report("i0"), report("i1")]));
            world.input(Input::Attributes { slot: "a".into(), of, began: world.now, result });
            world
                .run_order()
                .or_else(|| {
                    world.poll(std::slice::from_ref(&node));
                    world.run_order()
                })
                .or_else(|| {
                    world.surveyed(&[100]);
                    world.run_order()
                })
        });
        assert_eq!(order.is_some(), ordered, "{:?}", world.fleet.slots["a"].decision);
    }
}

#[test]
fn l5_hosts_that_made_progress_since_they_were_heard_have_met() {
    let mut world = with_checkpoints();
    let node = world.slice();
    let none = ((1, 0), "i-", "setup_failed: this host has no agent-worker-number yet", None);
    for _ in 0..22 {
        world.wait(30);
        world.hosts_say([none, none]);
        world.poll(std::slice::from_ref(&node));
    }
    let condition = |world: &World| world.fleet.slots["a"].verdict.condition;
    assert_eq!(condition(&world), Condition::GangIncomplete);
    // From now on their reports can't be read, and their job saves.
    world.wait(30);
    world.surveyed(&[100, 200]);
    world.next_poll(&node);
    assert_eq!(condition(&world), Condition::Healthy, "{:?}", world.fleet.slots["a"].verdict);
}
