//! A newer run order for the node that is there: when it is written, what follows, and what is
//! never concluded from it.

use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::command::{CommandKind, Pause};
use crate::model::ids::RunOrder;
use crate::model::relaunch::{Asked, Patch};

pub const STALE: (i64, &str) = (139, "stale_order ran=734: a run of this order lasted that long");

pub const WAITS: Option<(i64, &str)> =
    Some((139, "waits: for a newer order, or starts by itself in 300 s"));

/// A worker's generation, its supervisor's word, and its exit.
pub type Says<'a> = (u64, &'a str, Option<(i64, &'a str)>);

impl World {
    /// One answer of each worker.
    pub fn workers_say(&mut self, says: &[Says]) {
        let of = self.fleet.slots["a"].incarnation.clone().unwrap();
        let beat = self.now.as_second() % 100_000;
        let report = |(generation, version, exit): &Says| {
            let beacon = |value: i64, text: &str| Beacon {
                boot_id: "b".into(),
                generation: *generation,
                attempt: 0,
                value,
                text: text.into(),
            };
            WorkerReport {
                boot: Some(beacon(1, version)),
                heartbeat: Some(beacon(beat, "running")),
                exit: exit.map(|(code, text)| beacon(code, text)),
                ..WorkerReport::default()
            }
        };
        let result = Ok(says.iter().map(report).collect());
        self.input(Input::Attributes { slot: "a".into(), of, began: self.now, result });
    }

    pub fn ordered(&mut self, outcome: CallOutcome) {
        let generation = self.fleet.slots["a"].job.generation;
        self.input(Input::Ordered { slot: "a".into(), generation, outcome });
    }

    pub fn run_order(&self) -> Option<RunOrder> {
        match &self.actions[..] {
            [Action::Patch { patch: Patch::Order(order), .. }] => Some(order.clone()),
            _ => None,
        }
    }

    pub fn asks_for_checkpoints(&self) -> bool {
        self.looks.iter().any(|look| matches!(look, Look::Checkpoints { .. }))
    }

    /// A run of generation 1 that has crashed after a long time. Returns its node.
    pub fn crashed(&mut self) -> Value {
        let node = self.supervised_run();
        self.workers_say(&[(1, "v2", None)]);
        for _ in 0..30 {
            self.wait(30);
            self.poll(std::slice::from_ref(&node));
            self.workers_say(&[(1, "v2", None)]);
        }
        self.surveyed(&[100, 200]);
        self.wait(90);
        self.workers_say(&[(1, "v2", Some(STALE))]);
        self.poll(std::slice::from_ref(&node));
        node
    }

    /// An operator wants the job of a healthy slot to start again; `change` comes before that is
    /// decided.
    pub fn relaunch_but(&mut self, change: impl FnOnce(&mut World)) {
        let node = self.supervised_run();
        self.reports(7, None);
        for worker in self.fleet.slots.get_mut("a").unwrap().job.workers.values_mut() {
            worker.version = 2;
        }
        self.wait(30);
        self.poll(std::slice::from_ref(&node));
        self.surveyed(&[100]);
        self.fleet.slots.get_mut("a").unwrap().job.relaunch_by =
            Some(Asked { who: "ada".into(), at: self.now });
        change(self);
        self.wait(1);
        self.get("a", Some(node));
    }

    fn relaunch(&mut self) {
        self.command(CommandKind::Relaunch { slot: "a".into() });
    }
}

/// The node after the order was written.
pub fn patched(node: &Value, order: &RunOrder) -> Value {
    let mut node = node.clone();
    node["metadata"]["tpu-watchdog-run"] = json!(order.text());
    node
}

pub fn accepted() -> CallOutcome {
    CallOutcome::Accepted(OPERATION.into())
}

fn lost() -> CallOutcome {
    CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer"))
}

#[test]
fn l10_a_run_whose_order_is_stale_is_followed_by_one_from_the_newest_checkpoint() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::JobFailed);
    assert!(world.asks_for_checkpoints() && world.actions.is_empty(), "{:?}", world.hold("a"));
    world.wait(1);
    world.surveyed(&[100, 200, 300]);
    let order = world.run_order().expect("an order");
    assert_eq!((order.generation, order.step), (2, Some(300)));
    assert!(world.events.iter().any(|event| matches!(event, What::OrderIntent { .. })));
    world.ordered(accepted());
    // The former generation's words count no more, and nothing else is ordered meanwhile.
    world.next_poll(&patched(&node, &order));
    world.workers_say(&[(1, "v2", Some(STALE))]);
    assert!(world.actions.is_empty());
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    world.wait(30);
    world.workers_say(&[(2, "v2", None)]);
    assert!(world.messages.iter().any(|m| m.contains("every worker follows generation 2")));
    // A listing that lags behind shows the former order once more.
    world.next_poll(&node);
    world.workers_say(&[(2, "v2", None)]);
    assert_eq!(world.fleet.slots["a"].heard_from(), 2);
    world.next_poll(&patched(&node, &order));
    let record = &world.fleet.slots["a"];
    assert_eq!((record.job.relaunch.as_ref(), world.hold("a")), (None, None));
    assert_eq!(record.incarnation.as_ref().unwrap().id, "10", "the same node");
}

#[test]
fn an_older_supervisor_is_held_as_ever_and_gets_no_order() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.workers_say(&[(1, "", Some(STALE))]);
    world.next_poll(&node);
    world.surveyed(&[100, 200]);
    assert_eq!(world.hold("a"), Some(HoldReason::StaleOrder));
    world.relaunch();
    assert_eq!(world.hold("a"), Some(HoldReason::CannotRelaunch));
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.next_poll(&node);
    assert_eq!(world.hold("a"), None, "an operator takes the wish back");
}

#[test]
fn an_order_that_is_refused_is_held_by_name_and_tried_again_with_a_new_listing() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[100, 200]);
    let refused = Failure::new(FailureClass::Permission, "HTTP 403 tpu.nodes.update");
    world.ordered(CallOutcome::Refused(refused));
    world.next_poll(&node);
    assert_eq!(world.hold("a"), Some(HoldReason::CannotRelaunch));
    assert!(world.fleet.slots["a"].suspicion.is_none(), "it says nothing about the machine");
    for _ in 0..8 {
        world.next_poll(&node);
        assert!(world.actions.is_empty());
        world.workers_say(&[(1, "v2", Some(STALE))]);
    }
    for _ in 0..4 {
        world.next_poll(&node);
        world.workers_say(&[(1, "v2", Some(STALE))]);
    }
    world.surveyed(&[100, 200, 400]);
    assert_eq!(world.run_order().and_then(|order| order.step), Some(400));
}

#[test]
fn s11_an_order_whose_answer_is_lost_is_read_back() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[200]);
    let order = world.run_order().expect("an order");
    world.ordered(lost());
    world.next_poll(&patched(&node, &order));
    let relaunch = world.fleet.slots["a"].job.relaunch.clone().unwrap();
    assert!(relaunch.written_at.is_some() && world.actions.is_empty(), "it was written");

    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[200]);
    world.ordered(lost());
    let mut waited = 0;
    while world.run_order().is_none() {
        waited += 30;
        assert!(waited < 300, "{:?}", world.fleet.slots["a"].decision);
        world.next_poll(&node);
        let lists = world.asks_for_checkpoints();
        if world.run_order().is_none() {
            world.workers_say(&[(1, "v2", Some(STALE))]);
        }
        if world.run_order().is_none() && lists {
            world.surveyed(&[200]);
        }
    }
    assert_eq!(world.run_order().map(|order| order.generation), Some(3), "once more");
    assert!(waited >= 180, "after {waited} s");
}

#[test]
fn s11_an_order_that_a_former_process_intended_is_read_back() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[200]);
    let order = world.run_order().expect("an order");
    // The process ends before the answer.
    let (settings, slots) = (world.fleet.settings.clone(), world.fleet.slots.clone());
    world.fleet = Fleet::new(settings, slots, world.fleet.ledger.clone());
    let settings = Box::new(world.fleet.settings.clone());
    world.input(Input::Configured(settings));
    assert!(world.actions.is_empty());
    world.next_poll(&patched(&node, &order));
    world.workers_say(&[(2, "v2", None)]);
    assert!(world.fleet.slots["a"].job.relaunch.is_none() && world.actions.is_empty());
}

#[test]
fn an_order_that_no_worker_follows_judges_nothing_and_an_operator_orders_again() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[200]);
    let order = world.run_order().expect("an order");
    world.ordered(accepted());
    for _ in 0..60 {
        world.next_poll(&patched(&node, &order));
        world.workers_say(&[(1, "v2", Some(STALE))]);
        assert!(world.actions.is_empty());
    }
    assert_eq!(world.hold("a"), Some(HoldReason::CannotRelaunch));
    assert!(world.fleet.slots["a"].suspicion.is_none());
    world.relaunch();
    world.surveyed(&[200]);
    assert_eq!(world.run_order().map(|order| order.generation), Some(3));
}

#[test]
fn an_operator_starts_the_job_of_a_healthy_slot_again_and_one_that_was_finished() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.workers_say(&[(1, "v2", None)]);
    world.next_poll(&node);
    world.wait(90);
    world.relaunch();
    world.surveyed(&[100]);
    let order = world.run_order().expect("an order");
    assert_eq!((order.generation, order.step), (2, Some(100)));
    world.ordered(accepted());
    world.workers_say(&[(2, "v2", None)]);
    for _ in 0..25 {
        world.next_poll(&patched(&node, &order));
        world.workers_say(&[(2, "v2", None)]);
    }
    world.surveyed(&[100, 200]);
    world.workers_say(&[(2, "v2", Some((0, "done ran=734 step=200")))]);
    world.next_poll(&patched(&node, &order));
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Finished);
    world.relaunch();
    world.next_poll(&patched(&node, &order));
    assert_eq!(world.run_order(), None, "listed before the wish");
    world.surveyed(&[100, 200]);
    assert_eq!(world.run_order().map(|order| (order.generation, order.step)), Some((3, Some(200))));
}

#[test]
fn s7_nothing_is_ordered_while_the_slot_is_paused() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    let pause = Pause { who: "ada".into(), reason: None, until: None, since: None };
    world.fleet.slots.get_mut("a").unwrap().paused = Some(pause);
    world.surveyed(&[200]);
    world.next_poll(&node);
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Paused), 0));
}

#[test]
fn s16_orders_end_after_three_runs_without_a_new_step() {
    let mut world = with_checkpoints();
    let mut node = world.crashed();
    let mut orders = Vec::new();
    for _ in 0..12 {
        // A checkpoint that is passed over is listed no more.
        let passed_over = world.fleet.slots["a"].job.runs.set_aside.is_some();
        world.surveyed(if passed_over { &[100] } else { &[100, 200] });
        let Some(order) = world.run_order() else {
            world.next_poll(&node);
            continue;
        };
        orders.push(order.step.unwrap());
        world.ordered(accepted());
        node = patched(&node, &order);
        world.next_poll(&node);
        let generation = order.generation;
        world.workers_say(&[(generation, "v2", None)]);
        world.next_poll(&node);
        world.workers_say(&[(generation, "v2", None)]);
        world.wait(700);
        world.workers_say(&[(generation, "v2", Some(STALE))]);
        world.next_poll(&node);
        world.wait(30);
    }
    assert_eq!(orders, [200, 200, 200, 100, 100, 100]);
    assert_eq!(world.hold("a"), Some(HoldReason::NoProgress));
}

#[test]
fn s9_nothing_is_deleted_while_an_order_is_being_written() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[200]);
    assert!(world.run_order().is_some());
    let mut preempted = node.clone();
    preempted["state"] = json!("PREEMPTED");
    world.next_poll(&preempted);
    world.get("a", Some(preempted.clone()));
    assert!(world.actions.is_empty(), "{:?}", world.actions);
    world.ordered(accepted());
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
}

#[test]
fn s22_nothing_is_ordered_before_every_worker_has_reported() {
    let mut world = with_checkpoints();
    world.crashed();
    let seen = world.fleet.slots.get_mut("a").unwrap().seen.as_mut().unwrap();
    seen.workers = 2;
    world.surveyed(&[200]);
    assert!(world.actions.is_empty());
    assert_eq!(world.hold("a"), Some(HoldReason::StaleOrder));
}

#[test]
fn s16_an_order_that_is_refused_again_and_again_counts_no_run() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    for _ in 0..8 {
        world.surveyed(&[100, 200]);
        assert_eq!(world.run_order().and_then(|order| order.step), Some(200));
        world.ordered(CallOutcome::Refused(Failure::new(FailureClass::Permission, "403")));
        for _ in 0..11 {
            world.next_poll(&node);
            world.workers_say(&[(1, "v2", Some(STALE))]);
        }
    }
    let runs = &world.fleet.slots["a"].job.runs;
    assert_eq!(
        (runs.set_aside, runs.stuck, runs.fruitless),
        (None, 1, 0),
        "the run of generation 1"
    );
}

#[test]
fn an_order_that_was_accepted_and_is_never_shown_is_written_again() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[200]);
    world.ordered(accepted());
    let mut generations = Vec::new();
    for _ in 0..12 {
        world.next_poll(&node);
        generations.extend(world.run_order().map(|order| order.generation));
        world.workers_say(&[(1, "v2", Some(STALE))]);
        world.surveyed(&[200]);
        generations.extend(world.run_order().map(|order| order.generation));
    }
    assert_eq!(generations, [3]);
}

#[test]
fn s15_an_order_rests_on_a_listing_that_is_newer_than_the_exit() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.workers_say(&[(1, "v2", None)]);
    world.next_poll(&node);
    world.workers_say(&[(1, "v2", None)]);
    world.surveyed(&[100, 200]);
    world.wait(5);
    // It saved once more at its end.
    world.workers_say(&[(1, "v2", Some(STALE))]);
    world.wait(1);
    world.poll(std::slice::from_ref(&node));
    assert_eq!(world.run_order(), None);
    world.surveyed(&[100, 200, 300]);
    assert_eq!(world.run_order().and_then(|order| order.step), Some(300));
}

#[test]
fn recreate_is_a_way_out_of_a_relaunch_that_is_held() {
    let mut world = with_checkpoints();
    let node = world.crashed();
    world.surveyed(&[200]);
    world.ordered(CallOutcome::Refused(Failure::new(FailureClass::Permission, "403")));
    world.next_poll(&node);
    assert_eq!(world.hold("a"), Some(HoldReason::CannotRelaunch));
    let incarnation = world.fleet.slots["a"].incarnation.clone();
    world.command(CommandKind::Recreate { slot: "a".into(), incarnation });
    world.wait(1);
    world.workers_say(&[(1, "v2", Some(STALE))]);
    world.get("a", Some(node));
    assert!(is_delete(&world.actions), "{:?}", world.fleet.slots["a"].decision);
}

#[test]
fn a_wish_that_could_not_be_met_within_an_hour_is_dropped() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.workers_say(&[(1, "v2", None)]);
    world.next_poll(&node);
    let pause = Pause { who: "ada".into(), reason: None, until: None, since: None };
    world.fleet.slots.get_mut("a").unwrap().paused = Some(pause);
    world.relaunch();
    let mut told = false;
    for beat in 0..130 {
        world.next_poll(&node);
        told |= world.messages.iter().any(|message| message.contains("is dropped"));
        world.reports(1000 + beat, None);
    }
    assert!(told);
    world.fleet.slots.get_mut("a").unwrap().paused = None;
    world.next_poll(&node);
    world.surveyed(&[100]);
    assert_eq!((world.run_order(), world.hold("a")), (None, None));
}

#[test]
fn the_exit_of_a_run_that_its_supervisor_has_left_behind_counts_no_more() {
    let mut world = with_checkpoints();
    world.crashed();
    world.surveyed(&[200]);
    world.ordered(accepted());
    world.wait(30);
    world.workers_say(&[(2, "v2", None)]);
    // A listing that lags lowers what is heard, the attribute of the former run is still there, and the
    // answer lacks a worker.
    let record = world.fleet.slots.get_mut("a").unwrap();
    record.seen.as_mut().unwrap().workers = 2;
    record.job.heard_from = Some(1);
    record.job.pardoned.clear();
    let of = record.incarnation.clone().unwrap();
    let beacon = |generation: u64, value: i64, text: &str| {
        Some(Beacon { boot_id: "b".into(), generation, attempt: 0, value, text: text.into() })
    };
    let report = WorkerReport {
        boot: beacon(2, 1, "v2"),
        heartbeat: beacon(2, 9, "running"),
        exit: beacon(1, STALE.0, STALE.1),
        ..WorkerReport::default()
    };
    let began = world.now;
    world.input(Input::Attributes { slot: "a".into(), of, began, result: Ok(vec![report]) });
    assert_eq!(world.fleet.slots["a"].job.failed, None);
}

#[test]
fn s15_when_one_worker_of_several_fails_all_of_them_start_together() {
    let mut world = with_checkpoints();
    let mut node = world.supervised_run();
    node["networkEndpoints"] = json!([{}, {}]);
    world.workers_say(&[(1, "v2", None), (1, "v2", None)]);
    world.next_poll(&node);
    world.workers_say(&[(1, "v2", None), (1, "v2", None)]);
    world.workers_say(&[(1, "v2", None), (1, "v2", WAITS)]);
    world.next_poll(&node);
    world.surveyed(&[100, 200]);
    let order = world.run_order().expect("an order");
    assert_eq!((order.generation, order.step), (2, Some(200)));
    world.ordered(accepted());
    world.next_poll(&patched(&node, &order));
    // One follows at once, the other later: nothing is concluded before.
    world.workers_say(&[(1, "v2", None), (2, "v2", None)]);
    assert!(world.fleet.slots["a"].job.relaunch.is_some() && world.actions.is_empty());
    world.next_poll(&patched(&node, &order));
    world.workers_say(&[(2, "v2", None), (2, "v2", None)]);
    assert!(world.fleet.slots["a"].job.relaunch.is_none());
    // A worker with an older supervisor starts by itself: no person is called.
    let mut world = with_checkpoints();
    let mut node = world.supervised_run();
    node["networkEndpoints"] = json!([{}, {}]);
    world.next_poll(&node);
    world.workers_say(&[(1, "", None), (1, "v2", WAITS)]);
    world.next_poll(&node);
    world.surveyed(&[100, 200]);
    assert_eq!((world.run_order(), world.hold("a")), (None, None));
}
