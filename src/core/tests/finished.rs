//! A TPU whose job has finished: kept, or deleted.

use super::super::check::{Case, Checker};
use super::amend::present;
use super::endings::CommandKind;
use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::ids::RunOrder;
use crate::model::relaunch::Patch;
use crate::model::settings::{OnSuccess, WhenMissing};
use crate::model::slot::SlotRecord;

impl World {
    /// A run of ours whose command ends with 0 after an hour, under this policy. Returns its node.
    fn finishes(&mut self, on_success: OnSuccess) -> Value {
        let node = self.supervised_run();
        let mut settings = self.fleet.settings.clone();
        settings.slots.get_mut("a").unwrap().policy.on_success = on_success;
        self.input(Input::Configured(Box::new(settings)));
        self.exited(0, "done ran=3600 step=200");
        assert!(self.fleet.slots["a"].job.finished.is_some());
        node
    }

    /// Polls for so many minutes, and answers each GET. Returns after how many a delete left.
    fn deleted_within(&mut self, node: &Value, minutes: u64) -> Option<u64> {
        for half in 1..=2 * minutes {
            self.wait(30);
            self.poll(std::slice::from_ref(node));
            if self.looks.iter().any(|look| matches!(look, Look::Node { .. })) {
                self.get("a", Some(node.clone()));
            }
            if is_delete(&self.actions) {
                return Some(half / 2);
            }
        }
        None
    }
}

#[test]
fn s23_the_tpu_of_a_finished_job_is_kept_unless_the_config_says_otherwise() {
    for (on_success, deleted) in [(OnSuccess::Keep, None), (OnSuccess::Delete, Some(10))] {
        let mut world = with_checkpoints();
        let node = world.finishes(on_success);
        assert_eq!(world.deleted_within(&node, 60), deleted);
    }
}

impl World {
    fn stop_is_answered(&mut self, outcome: CallOutcome) {
        self.input(Input::Ordered { slot: "a".into(), generation: 0, outcome });
    }

    /// Polls for so many minutes. Returns after how many a stop left.
    fn stopped_within(&mut self, node: &Value, minutes: u64) -> Option<u64> {
        (1..=2 * minutes).find_map(|half| {
            self.wait(30);
            self.poll(std::slice::from_ref(node));
            assert!(!is_delete(&self.actions));
            let stops = matches!(self.actions[..], [Action::Patch { patch: Patch::Stop, .. }]);
            stops.then_some(half / 2)
        })
    }
}

fn denied() -> CallOutcome {
    CallOutcome::Refused(Failure::new(FailureClass::Permission, "tpu.nodes.stop denied"))
}

#[test]
fn s23_a_finished_tpu_is_stopped_once_where_the_config_says_so() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Stop);
    assert_eq!(world.stopped_within(&node, 60), Some(10));
    world.stop_is_answered(CallOutcome::Accepted(OPERATION.into()));
    // A read may lag behind.
    assert_eq!(world.stopped_within(&node, 4), None);
    let mut stopped = node.clone();
    stopped["state"] = json!("STOPPED");
    assert_eq!(world.stopped_within(&stopped, 60), None);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Finished);
    // A person starts it, to look at something.
    assert_eq!(world.stopped_within(&node, 600), None);
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
    assert!(reason.contains("it was stopped once and started by hand"), "{reason}");
}

#[test]
fn a_stop_that_is_refused_is_told_and_tried_again_after_six_hours() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Stop);
    assert_eq!(world.stopped_within(&node, 60), Some(10));
    world.stop_is_answered(denied());
    let told = world.messages.iter().any(|m| {
        m.starts_with("stop: refused") && m.contains("right tpu.nodes.stop") && m.contains("6h")
    });
    assert!(told, "{:?}", world.messages);
    assert_eq!(world.stopped_within(&node, 359), None);
    assert!(world.stopped_within(&node, 12).is_some());
}

#[test]
fn what_can_not_be_stopped_is_kept_and_says_so() {
    let mut world = with_checkpoints();
    let mut node = world.finishes(OnSuccess::Stop);
    node["networkEndpoints"] = json!([{}, {}]);
    assert_eq!(world.stopped_within(&node, 60), None);
    let reason = world.fleet.slots["a"].decision.as_ref().unwrap().reason.clone();
    assert!(reason.contains("a TPU of 2 hosts can't be stopped, so it is kept"), "{reason}");
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Stop);
    world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    assert_eq!(world.stopped_within(&node, 60), None, "S7");
}

#[test]
fn a_tpu_that_was_stopped_by_hand_after_its_success_is_not_stopped_once_it_is_started() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Stop);
    let mut stopped = node.clone();
    stopped["state"] = json!("STOPPED");
    assert_eq!(world.stopped_within(&stopped, 60), None);
    assert_eq!(world.stopped_within(&node, 60), None);
}

#[test]
fn a_refused_stop_keeps_no_flag_from_a_job_that_is_wanted_again() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Stop);
    let hosts = |world: &mut World| {
        let workers = world.fleet.slots.get_mut("a").unwrap().job.workers.values_mut();
        workers.for_each(|worker| worker.version = 3);
    };
    assert_eq!(world.stopped_within(&node, 60), Some(10));
    world.stop_is_answered(denied());
    hosts(&mut world);
    world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    if world.run_order().is_none() {
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
    }
    assert_eq!(world.run_order().map(|order| order.wait), Some(true));
}

#[test]
fn a_finished_job_that_is_wanted_again_while_its_tpu_is_stopped_starts_when_that_is_back() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Keep);
    let mut stopped = node.clone();
    stopped["state"] = json!("STOPPED");
    world.next_poll(&stopped);
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    // Longer than a wish is kept.
    for _ in 0..80 {
        world.wait(60);
        world.poll(std::slice::from_ref(&stopped));
        assert_eq!(world.run_order(), None);
    }
    let order = (0..20).find_map(|_| {
        world.wait(30);
        world.exited(0, "done ran=3600 step=200");
        let workers = world.fleet.slots.get_mut("a").unwrap().job.workers.values_mut();
        workers.for_each(|worker| worker.version = 3);
        world.poll(std::slice::from_ref(&node));
        world.surveyed(&[100]);
        world.run_order()
    });
    assert_eq!(order.map(|order| order.generation), Some(2));
}

#[test]
fn l2_nothing_follows_the_delete_until_the_job_is_wanted_again() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    let attempts = world.fleet.slots["a"].attempts.len();
    assert_eq!(world.deleted_within(&node, 60), Some(10));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    assert_eq!((world.phase("a"), world.actions.len()), (None, 0));
    assert_eq!(world.fleet.slots["a"].attempts.len(), attempts, "it is no recovery");
    for _ in 0..120 {
        world.wait(30);
        world.poll(&[]);
        assert!(world.actions.is_empty() && world.phase("a").is_none());
    }
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    for _ in 0..6 {
        world.wait(30);
        world.poll(&[]);
        if world.asks("a") {
            world.get("a", None);
        }
        world.surveyed(&[100]);
    }
    assert!(world.phase("a").is_some(), "it is created again: {:?}", world.hold("a"));
}

fn node_of_a_person(world: &World) -> Value {
    node("a", json!({"id": "77", "createTime": world.now.to_string()}))
}

#[test]
fn s23_what_is_not_known_to_have_ended_here_is_kept() {
    // An operator's word alone: what runs on the hosts goes on.
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let mut settings = world.fleet.settings.clone();
    settings.slots.get_mut("a").unwrap().policy.on_success = OnSuccess::Delete;
    world.input(Input::Configured(Box::new(settings)));
    world.command(CommandKind::Done { slot: "a".into() });
    assert_eq!(world.deleted_within(&node, 60), None);
    // Also after an end that came too early: a training in the background may be at work.
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.exited(0, "done ran=1 step=none");
    world.command(CommandKind::Done { slot: "a".into() });
    assert_eq!(world.deleted_within(&node, 60), None);
    // The end of another job that the same TPU was ordered to run.
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    world.fleet.slots.get_mut("a").unwrap().job.ordered = Some("another\njob".into());
    assert_eq!(world.deleted_within(&node, 60), None);
    // A TPU that a person made in its place.
    let mut world = with_checkpoints();
    world.finishes(OnSuccess::Delete);
    let theirs = node_of_a_person(&world);
    assert_eq!(world.deleted_within(&theirs, 60), None);
}

#[test]
fn s7_s10_a_paused_a_stopped_and_an_opted_out_tpu_is_kept() {
    for change in [json!({"state": "STOPPED"}), json!({"labels": {"tpu-watchdog": "off"}})] {
        let mut world = with_checkpoints();
        let node = world.finishes(OnSuccess::Delete);
        let mut held = node.clone();
        for (key, value) in change.as_object().unwrap() {
            held[key] = value.clone();
        }
        assert_eq!(world.deleted_within(&held, 60), None, "{change}");
        // It may have been started for its files: ten minutes from then on.
        assert_eq!(world.deleted_within(&node, 60), Some(10), "{change}");
    }
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    assert_eq!(world.deleted_within(&node, 5), None);
    world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    assert_eq!(world.deleted_within(&node, 60), None);
    assert_eq!(world.hold("a"), Some(HoldReason::Paused));
    world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    assert_eq!(world.deleted_within(&node, 60), Some(10));
}

#[test]
fn s7_in_dry_run_nothing_is_deleted_and_its_time_does_not_count() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    world.fleet.settings.dry_run = true;
    assert_eq!(world.deleted_within(&node, 60), None);
    assert_eq!(world.hold("a"), Some(HoldReason::DryRun));
    world.fleet.settings.dry_run = false;
    assert_eq!(world.deleted_within(&node, 60), Some(10));
}

#[test]
fn a_job_that_is_wanted_again_while_its_tpu_is_deleted_gets_another_one() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    world.fleet.settings.slots.get_mut("a").unwrap().policy.when_missing = WhenMissing::Hold;
    assert_eq!(world.deleted_within(&node, 60), Some(10));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    world.wait(1);
    world.surveyed(&[100, 200]);
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}

#[test]
fn l1_a_removal_ends_when_the_tpu_is_gone_by_another_hand() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    assert_eq!(world.deleted_within(&node, 60), Some(10));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::Permission, "403")));
    for _ in 0..4 {
        world.wait(30);
        world.poll(&[]);
        if world.asks("a") {
            world.get("a", None);
        }
    }
    assert!(world.phase("a").is_none(), "{:?}", world.fleet.slots["a"].decision);
    world.wait(30);
    world.poll(&[]);
    assert!(!world.asks("a"), "nothing is left to be asked about");
}

#[test]
fn l3_a_delete_that_was_refused_is_tried_again_after_a_wait() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    assert_eq!(world.deleted_within(&node, 60), Some(10));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::Permission, "403")));
    assert!(world.phase("a").is_some(), "it is still owed");
    world.wait(1);
    world.poll(std::slice::from_ref(&node));
    assert!(world.actions.is_empty(), "not at once");
    assert!(world.deleted_within(&node, 60).is_some());
}

#[test]
fn the_checker_refuses_the_removal_of_what_has_not_finished_here() {
    type Change<'a> = &'a dyn Fn(&mut Fleet);
    let verdict = |change: Change| {
        let mut world = with_checkpoints();
        let node = world.finishes(OnSuccess::Delete);
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
        world.wait(600);
        // The very GET that the delete would rest on, with the delete held back.
        world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
        world.get("a", Some(node));
        let fleet = &mut world.fleet;
        let record = fleet.slots.get_mut("a").unwrap();
        (record.paused, record.job.removable_since) = (None, Some(record.since));
        let confirmed = fleet.memory["a"].confirmed.clone().unwrap();
        change(fleet);
        let (slot, record, memory) =
            (&fleet.settings.slots["a"], &fleet.slots["a"], &fleet.memory["a"]);
        let (settings, ledger, now) = (&fleet.settings, &fleet.ledger, world.now);
        let case = Case { settings, slot, record, memory, ledger, now };
        let verdict = Checker::new(fleet).delete(&case, Condition::Finished, &confirmed);
        verdict.map_err(|violation| violation.name())
    };
    let record = |fleet: &mut Fleet, change: &dyn Fn(&mut SlotRecord)| {
        change(fleet.slots.get_mut("a").unwrap());
    };
    assert_eq!(verdict(&|_| ()), Ok(()), "the plan as it should be");
    let keep = |fleet: &mut Fleet| {
        fleet.settings.slots.get_mut("a").unwrap().policy.on_success = OnSuccess::Keep;
    };
    assert_eq!(verdict(&keep), Err("S17"));
    assert_eq!(verdict(&|fleet| record(fleet, &|r| r.ours = false)), Err("S17"));
    assert_eq!(
        verdict(&|fleet| record(fleet, &|r| r.seen.as_mut().unwrap().ready = false)),
        Err("S10")
    );
    assert_eq!(verdict(&|fleet| record(fleet, &|r| r.job.finished = None)), Err("S23"));
    assert_eq!(verdict(&|fleet| record(fleet, &|r| r.job.exits.clear())), Err("S23"));
    let later = |r: &mut SlotRecord| {
        r.job.removable_since = Some(after(r.since, Duration::from_secs(300)));
    };
    let another = |r: &mut SlotRecord| r.job.ordered = Some("another job".into());
    assert_eq!(verdict(&|fleet| record(fleet, &another)), Err("S23"));
    let doubted = |r: &mut SlotRecord| r.job.pardoned.clone_from(&r.job.exits);
    assert_eq!(verdict(&|fleet| record(fleet, &doubted)), Err("S23"));
    assert_eq!(verdict(&|fleet| record(fleet, &later)), Err("S23"));
    assert_eq!(verdict(&|fleet| record(fleet, &|r| r.spec = None)), Err("S12"));
}

#[test]
fn the_ten_minutes_are_those_of_this_success_alone() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    assert_eq!(world.deleted_within(&node, 5), None);
    // It is wanted again, works on the same TPU for a while, and finishes once more.
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.fleet.slots.get_mut("a").unwrap().job.wanted_again = None;
    world.exited(1, "restarting 1 of 5 in 10 s");
    for _ in 0..8 {
        world.wait(60);
        world.poll(std::slice::from_ref(&node));
        world.exited(1, "restarting 1 of 5 in 10 s");
    }
    world.exited(0, "done ran=7200 step=300");
    assert!(world.fleet.slots["a"].job.finished.is_some());
    assert_eq!(world.deleted_within(&node, 60), Some(10), "{:?}", world.fleet.slots["a"].decision);
}

#[test]
fn time_in_which_it_was_not_understood_does_not_count_towards_its_end() {
    let mut world = with_checkpoints();
    let node = world.finishes(OnSuccess::Delete);
    assert_eq!(world.deleted_within(&node, 5), None);
    for _ in 0..60 {
        world.wait(30);
        world.poll_result(Err(Failure::new(FailureClass::Transient, "zone unreachable")));
    }
    assert_eq!(world.deleted_within(&node, 60), Some(10));
}

#[test]
fn s23_hosts_whose_job_an_operator_calls_done_wait_until_it_is_wanted_again() {
    let mut world = with_checkpoints();
    let node = world.at_work("v3");
    world.command(CommandKind::Done { slot: "a".into() });
    let order = world.run_order().expect("nothing starts there");
    assert_eq!(order, RunOrder { wait: true, ..present(&node) });
    world.ordered(accepted());
    let node = patched(&node, &order);
    for _ in 0..20 {
        world.next_poll(&node);
        assert!(world.actions.is_empty(), "L2: {:?}", world.actions);
    }
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.surveyed(&[100]);
    world.next_poll(&node);
    let started = world.run_order().expect("a newer order starts it");
    assert_eq!((started.generation, started.wait), (2, false));
}

#[test]
fn s23_what_is_called_done_is_told_to_wait_before_its_hosts_have_said_anything() {
    // As a TPU that is granted after its job is done.
    let mut world = with_checkpoints();
    world.supervised_run();
    world.command(CommandKind::Done { slot: "a".into() });
    assert!(world.run_order().is_some_and(|order| order.wait), "{:?}", world.hold("a"));
    let told = "its job is done, so nothing starts there again";
    assert!(world.messages.iter().any(|message| message.contains(told)), "{:?}", world.messages);
}

#[test]
fn s23_an_end_that_came_too_early_starts_nothing_after_done_whatever_the_config_names() {
    let mut world = with_checkpoints();
    world.ended_early_at_once();
    let node = world.supervised("10", world.fleet.slots["a"].incarnation.clone().unwrap().created);
    world.command(CommandKind::Done { slot: "a".into() });
    let order = world.run_order().expect("its next boot would start it");
    assert!(order.wait, "{order:?}");
    world.ordered(accepted());
    let node = patched(&node, &order);
    world.next_poll(&node);
    // The hosts have the old command.
    let mut settings = world.fleet.settings.clone();
    let job = settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.command = Some("python3 another.py".into());
    world.input(Input::Configured(Box::new(settings)));
    for _ in 0..20 {
        world.next_poll(&node);
        assert!(world.run_order().is_none_or(|order| order.wait), "{:?}", world.messages);
    }
}
