//! Chips that a host lacks, and chips that another process holds.

use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::fleet::Breaker;
use crate::model::ids::RunOrder;
use crate::model::traits::BudgetOf;

impl World {
    /// The single host of `a` says how many chips it has, and what it does.
    fn host_says(&mut self, boot: &str, chips: u32, does: &str) {
        let of = self.fleet.slots["a"].incarnation.clone().unwrap();
        let beat = self.now.as_second() % 100_000;
        let beacon = |value: i64, text: &str| {
            let (boot_id, text) = (boot.to_owned(), text.to_owned());
            Some(Beacon { boot_id, generation: 1, attempt: 1, value, text })
        };
        let report = WorkerReport {
            boot: beacon(1, &format!("v4 i0 c{chips}")),
            heartbeat: beacon(beat, does),
            ..WorkerReport::default()
        };
        let result = Ok(vec![report]);
        self.input(Input::Attributes { slot: "a".into(), of, began: self.now, result });
    }

    /// Polls for so many minutes while it says so. Returns the first order, or the minute of a delete.
    fn host_goes_on(
        &mut self,
        node: &Value,
        minutes: u32,
        (boot, chips, does): (&str, u32, &str),
    ) -> Option<Result<RunOrder, u32>> {
        (1..=minutes * 2).find_map(|half| {
            self.wait(30);
            self.host_says(boot, chips, does);
            self.poll(std::slice::from_ref(node));
            if let Some(order) = self.run_order() {
                return Some(Ok(order));
            }
            if self.asks("a") {
                self.get("a", Some(node.clone()));
            }
            is_delete(&self.actions).then_some(Err(half / 2))
        })
    }
}

const BUSY: &str = "chips_busy: process 42 of user bob has a chip open: python3 serve.py";

#[test]
fn a_host_that_lacks_chips_reboots_once_and_is_then_replaced() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.fleet.ledger.chips.insert("v4-8".into(), 4);
    let lacks = ("b1", 3, "failed");
    let Some(Ok(order)) = world.host_goes_on(&node, 60, lacks) else { panic!("a reboot") };
    assert_eq!((order.generation, order.reboot.clone()), (1, vec!["b1".to_owned()]));
    let evidence = world.fleet.slots["a"].verdict.evidence.clone();
    assert_eq!(evidence, "worker 0 has 3 chips, other hosts of type v4-8 had 4");
    world.ordered(accepted());
    let node = patched(&node, &order);
    let Some(Err(minute)) = world.host_goes_on(&node, 60, ("b2", 3, "failed")) else {
        panic!("a replacement")
    };
    assert!((9..=13).contains(&minute), "{minute}");
}

#[test]
fn s8_a_storm_of_training_jobs_keeps_no_host_from_the_reboot_that_spares_its_tpu() {
    for (of, reboots) in [(BudgetOf::Jobs, true), (BudgetOf::Tpus, false)] {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        world.fleet.ledger.chips.insert("v4-8".into(), 4);
        let (opened_at, why) = (world.now, "a storm".to_owned());
        world.fleet.ledger.breaker = Some(Breaker { opened_at, why, of });
        let first = world.host_goes_on(&node, 60, ("b1", 3, "failed"));
        assert_eq!(first.map(|first| first.is_ok()), reboots.then_some(true), "{of:?}");
    }
}

#[test]
fn chips_are_missed_only_where_hosts_of_the_type_had_more_and_nothing_is_done_with_those_there() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    // None is known to have had more: a type without devices of these names is none that lacks them.
    assert_eq!(world.host_goes_on(&node, 60, ("b1", 0, "failed")), None);
    assert_eq!(world.host_goes_on(&node, 10, ("b1", 9, "failed")), None);
    assert!(world.fleet.ledger.chips.is_empty(), "only hosts at work tell how many there are");
    assert_eq!(world.host_goes_on(&node, 10, ("b1", 4, "running")), None);
    assert_eq!(world.fleet.ledger.chips["v4-8"], 4);
    // The job runs with what is there.
    assert_eq!(world.host_goes_on(&node, 60, ("b1", 3, "running")), None);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn a_process_that_holds_the_chips_is_named_and_waited_for() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    assert_eq!(world.host_goes_on(&node, 120, ("b1", 4, BUSY)), None, "it is not killed");
    assert_eq!(world.hold("a"), Some(HoldReason::ChipsBusy));
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
    for part in ["process 42 of user bob", "python3 serve.py", "--worker 0", "starts by itself"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(world.host_goes_on(&node, 1, ("b1", 4, "running")), None);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn one_of_our_own_that_can_not_be_ended_costs_a_reboot_and_then_the_tpu() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let stuck = ("b1", 4, "chips_stuck: left by an earlier run and not to be ended: process 42");
    let Some(Ok(order)) = world.host_goes_on(&node, 5, stuck) else { panic!("a reboot") };
    assert_eq!(order.reboot, ["b1"]);
    world.ordered(accepted());
    let node = patched(&node, &order);
    // It is held until the time to boot is over, twice: before the verdict, and as the verdict's grace.
    assert_eq!(world.host_goes_on(&node, 8, stuck), None, "once");
    assert_eq!(world.hold("a"), Some(HoldReason::ChipsBusy));
    // Whether the reboot came about or not.
    let rebooted = ("b2", stuck.1, stuck.2);
    let Some(Err(minute)) = world.host_goes_on(&node, 60, rebooted) else {
        panic!("a replacement: {:?}", world.fleet.slots["a"].decision)
    };
    assert!((9..=14).contains(&minute), "{minute}");
    let evidence = world.fleet.slots["a"].verdict.evidence.clone();
    assert!(evidence.starts_with("worker 0 was told to reboot, and 10m later still"), "{evidence}");
}

#[test]
fn a_reboot_that_frees_the_chips_costs_no_tpu() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let stuck = ("b1", 4, "chips_stuck: left by an earlier run and not to be ended: process 42");
    let Some(Ok(order)) = world.host_goes_on(&node, 5, stuck) else { panic!("a reboot") };
    world.ordered(accepted());
    let node = patched(&node, &order);
    assert_eq!(world.host_goes_on(&node, 15, stuck), None);
    assert_eq!(world.host_goes_on(&node, 60, ("b2", 4, "running")), None);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn s7_nothing_is_rebooted_while_it_is_paused() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.fleet.ledger.chips.insert("v4-8".into(), 4);
    world.command(super::endings::CommandKind::Pause { slot: Some("a".into()), until: None });
    for _ in 0..60 {
        if let Some(order) = world.host_goes_on(&node, 1, ("b1", 3, "failed")) {
            assert!(order.unwrap().reboot.is_empty());
        }
    }
}

#[test]
fn a_reboot_that_was_refused_is_told_again_and_rests_on_reports_of_just_now() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.fleet.ledger.chips.insert("v4-8".into(), 4);
    let lacks = ("b1", 3, "failed");
    let Some(Ok(order)) = world.host_goes_on(&node, 60, lacks) else { panic!("a reboot") };
    world.ordered(CallOutcome::Refused(Failure::new(FailureClass::Conflict, "busy")));
    // Some turns come long after a report, some right after one: neither tells it at once.
    for _ in 0..8 {
        world.wait(15);
        world.poll(std::slice::from_ref(&node));
        assert_eq!(world.run_order(), None, "it was refused a moment ago");
        world.wait(15);
        world.host_says("b1", 3, "failed");
        assert_eq!(world.run_order(), None, "it was refused a moment ago");
    }
    // Reports that are older than ten seconds reboot nothing, whatever they say.
    world.wait(120);
    world.poll(std::slice::from_ref(&node));
    assert_eq!(world.run_order(), None);
    let again = (0..3).find_map(|_| {
        world.wait(1);
        world.host_says("b1", 3, "failed");
        world.run_order()
    });
    assert_eq!(again.map(|again| again.reboot), Some(order.reboot));
}

#[test]
fn a_host_that_dies_while_its_chips_are_held_is_silent() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    assert_eq!(world.host_goes_on(&node, 2, ("b1", 4, BUSY)), None);
    // The same words, again and again: its heartbeat stands still.
    let of = world.fleet.slots["a"].incarnation.clone().unwrap();
    let beacon = |text: &str| {
        let (boot_id, text) = ("b1".to_owned(), text.to_owned());
        Some(Beacon { boot_id, generation: 1, attempt: 1, value: 7, text })
    };
    let report = WorkerReport {
        boot: beacon("v4 i0 c4"),
        heartbeat: beacon(BUSY),
        ..WorkerReport::default()
    };
    for _ in 0..40 {
        world.wait(30);
        let result = Ok(vec![report.clone()]);
        let (of, began) = (of.clone(), world.now);
        world.input(Input::Attributes { slot: "a".into(), of, began, result });
        world.poll(std::slice::from_ref(&node));
    }
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Silent);
}

#[test]
fn s3_a_stop_ends_what_was_counted_before_it() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.fleet.ledger.chips.insert("v4-8".into(), 4);
    let Some(Ok(order)) = world.host_goes_on(&node, 60, ("b1", 3, "failed")) else {
        panic!("a reboot")
    };
    world.ordered(accepted());
    let node = patched(&node, &order);
    // Nearly judged, and then an operator stops it for a while.
    assert_eq!(world.host_goes_on(&node, 8, ("b2", 3, "failed")), None);
    let mut stopped = node.clone();
    stopped["state"] = json!("STOPPED");
    for _ in 0..10 {
        world.wait(30);
        world.poll(std::slice::from_ref(&stopped));
    }
    // After its start it is another boot, and has the whole time that the first one had.
    let end = world.host_goes_on(&node, 60, ("b3", 3, "failed"));
    assert!(matches!(end, Some(Err(15..))), "{end:?}");
}
