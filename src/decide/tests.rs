//! The safety and liveness rules by their names, on the core alone: inputs in, effects out, time as an argument.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::step;
use crate::model::action::{Action, CallOutcome, Effect, Input, Listing, Look, Poll, Reading, Record};
use crate::model::condition::Condition;
use crate::model::event::What;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Ledger, after};
use crate::model::hold::HoldReason;
use crate::model::node::NodeView;
use crate::model::operation::OperationState;
use crate::model::recovery::Phase;
use crate::model::settings::{JobSettings, Overlay, Policy, PollSettings, Settings, Share, SlotSettings};

const ZONE: &str = "us-central2-b";
const OPERATION: &str = "projects/p/locations/us-central2-b/operations/o";

/// A fleet, a clock and what came out of the last step.
struct World {
    fleet: Fleet,
    now: Timestamp,
    actions: Vec<Action>,
    looks: Vec<Look>,
    records: Vec<Record>,
    events: Vec<What>,
}

fn settings(names: &[&str]) -> Settings {
    let slot = |name: &&str| {
        let slot = SlotSettings {
            name: (*name).to_owned(),
            zones: vec![ZONE.to_owned()],
            create: Overlay::default(),
            job: None,
            policy: Policy::default(),
            supervisor: None,
        };
        ((*name).to_owned(), slot)
    };
    let seconds = Duration::from_secs;
    Settings {
        project: "p".into(),
        owner: "me".into(),
        dry_run: false,
        alpha: false,
        poll: PollSettings { every: seconds(30), operations: seconds(5), timeout: seconds(20), max_gap: seconds(300) },
        max_unavailable: Share::Percent(25.0),
        max_judged_recreates_per_hour: 20,
        slots: names.iter().map(slot).collect(),
    }
}

/// A node with id 1, plus whatever `change` says.
fn node(name: &str, change: Value) -> Value {
    let mut raw = json!({
        "name": format!("projects/p/locations/{ZONE}/nodes/{name}"), "id": "1", "createTime": "2026-01-01T00:00:00Z", "state": "READY",
        "health": "HEALTHY", "acceleratorType": "v4-8", "runtimeVersion": "r", "networkEndpoints": [{}],
    });
    for (key, value) in change.as_object().unwrap() {
        raw[key] = value.clone();
    }
    raw
}

impl World {
    fn new(settings: Settings) -> World {
        let now = "2026-06-01T12:00:00Z".parse().unwrap();
        let fleet = Fleet::new(settings.clone(), Default::default(), Ledger::default());
        let mut world = World { fleet, now, actions: vec![], looks: vec![], records: vec![], events: vec![] };
        world.input(Input::Configured(Box::new(settings)));
        world
    }

    fn input(&mut self, input: Input) {
        (self.actions, self.looks, self.records, self.events) = (vec![], vec![], vec![], vec![]);
        for effect in step(&mut self.fleet, input, self.now) {
            match effect {
                Effect::Look(look) => self.looks.push(look),
                Effect::Commit { records, events, then } => {
                    self.actions.extend(then);
                    self.records.extend(records);
                    self.events.extend(events.into_iter().map(|e| e.what));
                }
            }
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = after(self.now, Duration::from_secs(seconds));
    }

    /// A complete listing of these nodes.
    fn poll(&mut self, nodes: &[Value]) {
        let nodes = nodes.iter().map(|n| NodeView::parse(n.clone()).unwrap()).collect();
        self.poll_result(Ok((nodes, vec![])));
    }

    fn poll_result(&mut self, result: Result<(Vec<NodeView>, Vec<String>), Failure>) {
        let poll = Poll { began: self.now, listings: vec![Listing { zone: ZONE.into(), result }] };
        self.input(Input::Polled(Box::new(poll)));
    }

    fn get(&mut self, name: &str, node: Option<Value>) {
        let reading = match node {
            Some(raw) => Reading::Node(Box::new(NodeView::parse(raw).unwrap())),
            None => Reading::Absent,
        };
        self.input(Input::Got { slot: name.into(), began: self.now, reading });
    }

    fn called(&mut self, name: &str, outcome: CallOutcome) {
        self.input(Input::Called { slot: name.into(), outcome });
    }

    fn done(&mut self, name: &str, state: OperationState) {
        self.input(Input::Operated { slot: name.into(), operation: OPERATION.into(), result: Ok(state) });
    }

    fn phase(&self, name: &str) -> Option<Phase> {
        self.fleet.slots[name].recovery.as_ref().map(|r| r.phase)
    }

    fn hold(&self, name: &str) -> Option<HoldReason> {
        self.fleet.memory[name].decision.as_ref().and_then(|d| d.hold)
    }

    /// Healthy, then sick with `change` for `seconds`, polled every 30 s; the last poll has just been absorbed.
    fn sick(&mut self, names: &[&str], change: Value, seconds: u64) {
        let all: Vec<String> = self.fleet.slots.keys().cloned().collect();
        let show = |sick: &Value| -> Vec<Value> {
            all.iter().map(|n| node(n, if names.contains(&n.as_str()) { sick.clone() } else { json!({}) })).collect()
        };
        self.poll(&show(&json!({})));
        for _ in 0..=seconds / 30 {
            self.wait(30);
            self.poll(&show(&change));
        }
    }

    /// Deletes `a`, which is preempted, and creates it: up to the create's acceptance.
    fn recreate_preempted(&mut self) {
        let preempted = json!({"state": "PREEMPTED"});
        self.sick(&["a"], preempted.clone(), 0);
        self.get("a", Some(node("a", preempted)));
        self.called("a", CallOutcome::Accepted(OPERATION.into()));
        self.wait(5);
        self.done("a", OperationState::Succeeded);
        assert!(matches!(self.actions[..], [Action::Create { .. }]), "{:?}", self.actions);
        self.wait(1);
        self.called("a", CallOutcome::Accepted(OPERATION.into()));
        self.wait(5);
    }

    /// The node that the last create asked for, as it is read afterwards.
    fn replacement(&self, name: &str, change: Value) -> Value {
        let order = self.fleet.slots[name].recovery.as_ref().unwrap().order.clone().unwrap();
        let run = json!({"generation": order.generation, "checkpoint": order.checkpoint, "step": order.step}).to_string();
        let mut raw = node(name, json!({"id": "2", "createTime": self.now.to_string(),
            "metadata": {"tpu-watchdog-owner": "me", "tpu-watchdog-slot": name, "tpu-watchdog-run": run}}));
        for (key, value) in change.as_object().unwrap() {
            raw[key] = value.clone();
        }
        raw
    }
}

fn timeout() -> Value {
    json!({"health": "TIMEOUT"})
}

fn is_delete(actions: &[Action]) -> bool {
    matches!(actions, [Action::Delete { .. }])
}

#[test]
fn s1_a_delete_targets_exactly_the_incarnation_that_a_fresh_get_showed() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 600);
    assert!(world.actions.is_empty() && matches!(world.looks[..], [Look::Node { .. }]), "it asks first");
    // Another incarnation answers: nothing is deleted, the suspicion was about the old one.
    world.get("a", Some(node("a", json!({"id": "9", "health": "TIMEOUT"}))));
    assert!(world.actions.is_empty());
    assert_eq!(world.fleet.slots["a"].suspicion.as_ref().unwrap().reads, 1);

    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    match &world.actions[..] {
        [Action::Delete { incarnation, verified, .. }] => assert_eq!((incarnation.id.as_str(), *verified), ("1", world.now)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn s1_a_confirmation_that_came_late_is_asked_for_again() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 600);
    let began = world.now;
    world.wait(6);
    let reading = Reading::Node(Box::new(NodeView::parse(node("a", timeout())).unwrap()));
    world.input(Input::Got { slot: "a".into(), began, reading });
    assert!(world.actions.is_empty());
    world.wait(24);
    world.poll(&[node("a", timeout())]);
    assert!(matches!(world.looks[..], [Look::Node { .. }]));
}

#[test]
fn s2_a_read_that_began_before_our_last_mutation_proves_nothing() {
    let mut world = World::new(settings(&["a"]));
    let before = world.now;
    world.recreate_preempted();
    let stale = Reading::Node(Box::new(NodeView::parse(node("a", json!({"state": "PREEMPTED"}))).unwrap()));
    world.input(Input::Got { slot: "a".into(), began: before, reading: stale });
    assert_eq!(world.phase("a"), Some(Phase::Creating));
    assert!(world.actions.is_empty());
}

#[test]
fn s3_failed_reads_and_gaps_add_nothing_and_clear_nothing() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 300);
    let before = world.fleet.slots["a"].suspicion.clone().unwrap();
    assert_eq!(before.sick_for, Duration::from_secs(300));
    for _ in 0..100 {
        world.wait(30);
        world.poll_result(Err(Failure::new(FailureClass::Transient, "down")));
    }
    assert_eq!(world.fleet.slots["a"].suspicion.as_ref(), Some(&before));
    world.poll(&[node("a", timeout())]);
    // The gap of 50 minutes adds max_gap at most.
    assert_eq!(world.fleet.slots["a"].suspicion.as_ref().unwrap().sick_for, Duration::from_secs(600));
}

#[test]
fn s3_confirmations_count_the_get_and_a_zero_grace_is_acted_on_in_one_poll() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));

    let mut three = settings(&["a"]);
    three.slots.get_mut("a").unwrap().policy.confirmations = 3;
    let mut world = World::new(three);
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    assert!(world.looks.is_empty(), "one read of three: the next poll first");
    world.wait(30);
    world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));
}

#[test]
fn s4_absence_alone_creates_nothing_and_never_deletes() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    for _ in 0..20 {
        world.wait(30);
        world.poll(&[]);
        assert!(world.actions.is_empty());
        // The GET that is asked for says that the node is there: the listing was wrong.
        if !world.looks.is_empty() {
            world.get("a", Some(node("a", json!({}))));
        }
    }
    assert_eq!(world.phase("a"), None);
}

#[test]
fn s4_a_confirmed_absence_is_created_after_its_grace() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    for round in 0..6 {
        world.wait(30);
        world.poll(&[]);
        if !world.looks.is_empty() {
            world.get("a", None);
        }
        if let [Action::Create { body, .. }] = &world.actions[..] {
            assert!(round >= 4, "two minutes of grace");
            assert_eq!(body["acceleratorType"], "v4-8");
            return;
        }
    }
    panic!("it was never created");
}

#[test]
fn s5_an_unknown_state_or_health_means_hold() {
    for change in [json!({"state": "PAUSED"}), json!({"health": "WEIRD"}), json!({"state": 77}), json!({"createTime": null})] {
        let mut world = World::new(settings(&["a"]));
        world.sick(&["a"], change.clone(), 100_000);
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Unclear, "{change}");
        assert!(world.actions.is_empty() && world.looks.is_empty());
    }
}

#[test]
fn s6_judged_slots_in_recovery_never_exceed_the_budget_and_lost_ones_do_not_wait_for_it() {
    let mut world = World::new(settings(&["a", "b", "c", "d"]));
    world.sick(&["a", "b", "c"], timeout(), 600);
    for name in ["a", "b", "c"] {
        world.get(name, Some(node(name, timeout())));
    }
    let judged = |world: &World| world.fleet.slots.values().filter(|r| r.recovery.is_some()).count();
    assert_eq!(judged(&world), 1);
    assert_eq!(world.hold("b"), Some(HoldReason::MaxUnavailable));
    world.wait(30);
    let nodes = ["a", "b", "c", "d"].map(|n| node(n, if n == "d" { json!({"state": "PREEMPTED"}) } else { timeout() }));
    world.poll(&nodes);
    world.get("d", Some(nodes[3].clone()));
    assert!(is_delete(&world.actions), "a preempted one is replaced at once");
}

#[test]
fn s7_dry_run_and_opt_out_hold_both_kinds() {
    for (change, dry_run, reason) in [
        (json!({"state": "PREEMPTED", "labels": {"tpu-watchdog": "off"}}), false, HoldReason::OptedOut),
        (json!({"state": "PREEMPTED"}), true, HoldReason::DryRun),
    ] {
        let mut settings = settings(&["a"]);
        settings.dry_run = dry_run;
        let mut world = World::new(settings);
        world.sick(&["a"], change.clone(), 60);
        world.get("a", Some(node("a", change)));
        assert!(world.actions.is_empty());
        assert_eq!(world.hold("a"), Some(reason));
    }
}

#[test]
fn s8_attempts_survive_a_restart_and_escalate_when_used_up() {
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().policy.attempts.max = 1;
    let mut world = World::new(settings.clone());
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    let record = world.records.iter().find_map(|r| if let Record::Slot(r) = r { Some((**r).clone()) } else { None }).unwrap();
    let text = serde_json::to_string(&record).unwrap();
    let mut back: crate::model::slot::SlotRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(back.attempts.len(), 1);
    back.spec.clone_from(&record.spec);
    back.recovery = None;
    let mut again = World::new(settings.clone());
    again.now = world.now;
    again.fleet = Fleet::new(settings, [("a".to_owned(), back)].into(), Ledger::default());
    again.sick(&["a"], timeout(), 600);
    assert!(again.actions.is_empty() && again.looks.is_empty());
    assert_eq!(again.hold("a"), Some(HoldReason::Attempts));
}

#[test]
fn s9_there_is_never_a_second_recovery_or_call_for_a_slot() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));
    for _ in 0..10 {
        world.wait(1);
        world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
        assert!(world.actions.is_empty(), "the call is under way");
    }
}

#[test]
fn s10_a_node_that_the_api_works_on_has_its_own_deadline_and_a_stopped_one_none() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "RESTARTING"}), 44 * 60);
    assert!(world.looks.is_empty() && world.actions.is_empty());
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "STOPPED", "health": "TIMEOUT"}), 100_000);
    assert!(world.looks.is_empty() && world.actions.is_empty());
}

#[test]
fn s11_the_intent_is_in_the_same_commit_as_the_call_and_a_lost_answer_is_read_back() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));
    assert!(world.records.iter().any(|r| matches!(r, Record::Slot(r) if r.recovery.as_ref().is_some_and(|r| r.phase == Phase::Deleting))));
    assert!(world.events.iter().any(|e| matches!(e, What::Intent { call, .. } if call == "delete")));
    world.wait(1);
    world.called("a", CallOutcome::Unknown(Failure::new(FailureClass::Transient, "reset")));
    assert!(world.actions.is_empty() && matches!(world.looks[..], [Look::Node { .. }]));
    world.wait(1);
    world.get("a", None);
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "it was carried out: {:?}", world.actions);
}

#[test]
fn s12_without_a_valid_specification_nothing_is_deleted() {
    let mut world = World::new(settings(&["a"]));
    let bare = json!({"state": "PREEMPTED", "runtimeVersion": null});
    world.poll(&[node("a", bare.clone())]);
    world.wait(30);
    world.poll(&[node("a", bare.clone())]);
    assert!(world.actions.is_empty() && world.looks.is_empty());
    assert_eq!(world.hold("a"), Some(HoldReason::NoSpecification));
}

#[test]
fn s13_preemptions_have_a_budget_of_their_own() {
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().policy.attempts.max = 1;
    let mut world = World::new(settings);
    for _ in 0..3 {
        world.recreate_preempted();
        let ready = world.replacement("a", json!({}));
        world.get("a", Some(ready.clone()));
        assert_eq!(world.phase("a"), None, "over: READY and not unhealthy");
        world.wait(30);
    }
}

#[test]
fn s14_a_stock_out_keeps_doubtful_tpus_but_not_dead_ones() {
    let mut world = World::new(settings(&["a", "b"]));
    world.recreate_preempted();
    world.done("a", OperationState::Failed(Failure::new(FailureClass::StockOut, "no more capacity")));
    assert_eq!(world.phase("a"), Some(Phase::Gone));
    let sick = |world: &mut World, change: Value, polls: u32| {
        for _ in 0..polls {
            world.wait(30);
            world.poll(&[node("b", change.clone())]);
            if matches!(world.looks[..], [Look::Node { .. }]) {
                world.get("b", Some(node("b", change.clone())));
            }
        }
    };
    sick(&mut world, timeout(), 25);
    assert_eq!(world.hold("b"), Some(HoldReason::ZoneShort));
    assert_eq!(world.phase("b"), None);
    sick(&mut world, json!({"state": "UNKNOWN"}), 1);
    assert_eq!(world.phase("b"), Some(Phase::Deleting), "dead nodes eat quota");
}

#[test]
fn s15_a_create_waits_for_a_complete_listing_of_checkpoints_and_never_goes_back() {
    let mut with_job = settings(&["a"]);
    let slot = with_job.slots.get_mut("a").unwrap();
    let location = crate::model::settings::CheckpointSettings { uri: "gs://b/c".into(), format: None };
    slot.job = Some(JobSettings { checkpoint: Some(location), ..JobSettings::default() });
    slot.supervisor = Some("# tpu-watchdog-supervisor".into());
    let mut world = World::new(with_job);
    let survey = |world: &mut World, result: Result<Option<u64>, Failure>| {
        let checkpoint = |step| crate::model::checkpoint::Checkpoint { step, uri: format!("gs://b/c/{step}") };
        let result = result.map(|newest| crate::model::checkpoint::CheckpointSurvey { newest: newest.map(checkpoint), incomplete: None });
        world.input(Input::Surveyed { slot: "a".into(), began: world.now, location: "gs://b/c".into(), result });
    };
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    survey(&mut world, Ok(Some(100)));
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    assert!(world.actions.is_empty() && matches!(world.looks[..], [Look::Checkpoints { .. }]));
    survey(&mut world, Err(Failure::new(FailureClass::Transient, "503")));
    assert_eq!(world.hold("a"), Some(HoldReason::CheckpointUnreadable));
    world.wait(6);
    world.input(Input::Tick);
    survey(&mut world, Ok(Some(90)));
    assert_eq!(world.hold("a"), Some(HoldReason::CheckpointWentBack));
    assert!(world.actions.is_empty());
    world.wait(6);
    world.input(Input::Tick);
    survey(&mut world, Ok(Some(110)));
    match &world.actions[..] {
        [Action::Create { body, .. }] => {
            let run: Value = serde_json::from_str(body["metadata"]["tpu-watchdog-run"].as_str().unwrap()).unwrap();
            assert_eq!(run, json!({"generation": 1, "checkpoint": "gs://b/c/110", "step": 110}));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn s17_a_node_that_is_not_the_slots_own_plain_node_is_never_mutated() {
    for (change, reason) in [
        (json!({"state": "PREEMPTED", "queuedResource": "q"}), HoldReason::QueuedResource),
        (json!({"state": "PREEMPTED", "multisliceNode": true}), HoldReason::Multislice),
        (json!({"state": "PREEMPTED", "apiVersion": "V1"}), HoldReason::ApiV1),
        (json!({"state": "PREEMPTED", "metadata": {"tpu-watchdog-owner": "them"}}), HoldReason::OtherOwner),
    ] {
        let mut world = World::new(settings(&["a"]));
        world.sick(&["a"], change.clone(), 300);
        assert!(world.actions.is_empty() && world.looks.is_empty());
        assert_eq!(world.hold("a"), Some(reason));
    }
}

#[test]
fn s18_creates_stay_under_sixty_a_minute() {
    let names: Vec<String> = (0..100).map(|i| format!("n{i:03}")).collect();
    let mut world = World::new(settings(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&names.iter().map(String::as_str).collect::<Vec<_>>(), preempted.clone(), 0);
    let mut creates = 0;
    for name in &names {
        world.get(name, Some(node(name, preempted.clone())));
        assert!(is_delete(&world.actions));
        world.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        creates += world.actions.len();
    }
    assert_eq!(creates, 59);
    world.wait(61);
    world.input(Input::Tick);
    assert_eq!(world.actions.len(), 41);
}

#[test]
fn s19_the_same_inputs_give_the_same_effects() {
    let story = || {
        let mut world = World::new(settings(&["a", "b"]));
        let mut trace = String::new();
        world.recreate_preempted();
        trace += &format!("{:?}{:?}{:?}", world.actions, world.looks, world.records);
        world.sick(&["b"], timeout(), 700);
        trace + &format!("{:?}{:?}{:?}", world.actions, world.looks, world.events)
    };
    assert_eq!(story(), story());
}

#[test]
fn l1_a_replacement_preempted_at_birth_is_replaced_again() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let dead = world.replacement("a", json!({"state": "PREEMPTED"}));
    world.poll(std::slice::from_ref(&dead));
    world.get("a", Some(dead));
    match &world.actions[..] {
        [Action::Delete { incarnation, .. }] => assert_eq!(incarnation.id, "2"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn l2_an_unchanged_world_causes_no_mutation_and_no_write_but_the_time_of_the_poll() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    for _ in 0..100 {
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
        assert!(world.actions.is_empty() && world.looks.is_empty() && world.events.is_empty());
        assert!(matches!(world.records[..], [Record::Ledger(_)]), "{:?}", world.records);
    }
}

#[test]
fn l3_an_owed_create_is_finished_after_a_crash_at_any_phase() {
    // The journal is folded into a fleet that knows of nothing under way.
    for phase in ["deleting", "gone", "creating"] {
        let mut world = World::new(settings(&["a"]));
        world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
        world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
        if phase != "deleting" {
            world.called("a", CallOutcome::Accepted(OPERATION.into()));
            world.wait(5);
            world.done("a", OperationState::Succeeded);
        }
        if phase == "gone" {
            world.called("a", CallOutcome::Refused(Failure::new(FailureClass::StockOut, "none")));
            assert_eq!(world.phase("a"), Some(Phase::Gone));
        }
        let slots = std::mem::take(&mut world.fleet.slots);
        let settings = world.fleet.settings.clone();
        world.fleet = Fleet::new(settings.clone(), slots, world.fleet.ledger.clone());
        world.wait(60);
        world.input(Input::Configured(Box::new(settings)));
        for _ in 0..10 {
            if matches!(world.actions[..], [Action::Create { .. }]) {
                break;
            }
            assert!(world.actions.is_empty(), "{phase}: {:?}", world.actions);
            world.wait(6);
            if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) { world.get("a", None) } else { world.input(Input::Tick) }
        }
        assert!(matches!(world.actions[..], [Action::Create { .. }]), "{phase}: the create was forgotten");
    }
}

#[test]
fn l5_healing_clears_suspicion_and_flapping_does_not_reset_it() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 300);
    world.wait(30);
    world.poll(&[node("a", json!({}))]);
    world.wait(30);
    world.poll(&[node("a", timeout())]);
    assert!(world.fleet.slots["a"].suspicion.as_ref().unwrap().sick_for >= Duration::from_secs(330), "flapping");
    for _ in 0..21 {
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
    }
    assert_eq!(world.fleet.slots["a"].suspicion, None);
}

#[test]
fn l6_a_slot_that_is_short_of_capacity_delays_no_other() {
    let mut world = World::new(settings(&["a", "b"]));
    world.sick(&["a", "b"], json!({"state": "UNKNOWN"}), 120);
    world.get("a", Some(node("a", json!({"state": "UNKNOWN"}))));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert!(matches!(world.actions[..], [Action::Create { .. }]));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::Quota, "Quota exhausted")));
    assert_eq!(world.hold("a"), Some(HoldReason::Backoff));
    world.wait(29);
    world.poll(&[node("b", json!({"state": "UNKNOWN"}))]);
    world.get("b", Some(node("b", json!({"state": "UNKNOWN"}))));
    assert_eq!(world.phase("b"), Some(Phase::Deleting));
}

#[test]
fn a_maintenance_window_that_is_announced_is_waited_out_and_not_for_ever() {
    let window = |end: &str| json!({"upcomingMaintenance": {"maintenanceStatus": "ONGOING", "windowEndTime": end}});
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], window("2026-06-01T15:00:00Z"), 3 * 3600);
    assert!(world.looks.is_empty(), "15 minutes beyond its end");
    world.sick(&["a"], window("2026-06-01T15:00:00Z"), 0);
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], window("2026-06-09T15:00:00Z"), 6 * 3600);
    assert!(matches!(world.looks[..], [Look::Node { .. }]), "six hours at most");
}

#[test]
fn progress_outranks_health() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"health": "UNHEALTHY_MAINTENANCE"}), 3500);
    let now = world.now;
    super::recover::progress(world.fleet.slots.get_mut("a").unwrap(), now);
    world.wait(300);
    world.poll(&[node("a", json!({"health": "UNHEALTHY_MAINTENANCE"}))]);
    assert!(world.looks.is_empty() && world.actions.is_empty());
}
