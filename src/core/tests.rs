//! The safety and liveness rules by their names, on the core alone: inputs in, effects out, time as
//! an argument.

mod ahead;
mod amend;

mod budgets;
mod called_off;
mod chips;
mod codes;
mod commands;
mod cure;
mod effects;
mod emptied;
mod endings;
mod finished;
mod gates;
mod handover;
mod harm;
mod heard;
mod idle;
mod jobs_and_tpus;
mod late;
mod learning;
mod lines;
mod liveness;
mod machines;
mod owed;
mod pauses;
mod pools;
mod purpose;
mod reads;
mod regressions;
mod relaunch;
mod remains;
mod reports;
mod request;
mod restarts;
mod resubmission;
mod resume;
mod rhythm;
mod rollcall;
mod runs;
mod safety;
mod set_up;
mod shown;
mod slices;
mod stalls;
mod times;
mod training;
mod training_ends;
mod training_gates;
mod twins;
mod went_back;
mod wishes;
mod withdrawal;
mod zones;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::gates::{GATES, Gate};
use super::{step_with, view};
use crate::model::action::{
    Action, CallOutcome, Effect, Input, Listing, Look, Poll, Reading, Record,
};
use crate::model::condition::Condition;
use crate::model::event::{CallResult, Verb, What};
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Ledger, Pending, Pool, Short};
use crate::model::hold::HoldReason;
use crate::model::lookup::{CreateCheck, Deletion};
use crate::model::node::NodeView;
use crate::model::operation::OperationState;
use crate::model::phase::Phase;
use crate::model::settings::{
    JobSettings, Overlay, Policy, PollSettings, Settings, Share, SlotSettings, Storm,
};
use crate::model::time::after;

const ZONE: &str = "us-central2-b";
const OPERATION: &str = "projects/p/locations/us-central2-b/operations/o";

/// A fleet, a clock and what came out of the last step.
struct World {
    fleet: Fleet,
    gates: Vec<Gate>,
    now: Timestamp,
    actions: Vec<Action>,
    looks: Vec<Look>,
    records: Vec<Record>,
    events: Vec<What>,
    messages: Vec<String>,
    create_check: CreateCheck,
    deletions: Result<Vec<Deletion>, Failure>,
}

/// The defaults, but for two that would get in the way of other rules' stories: a repair counts as
/// failed after 2 min, and the storm breaker wants four slots.
fn settings(names: &[&str]) -> Settings {
    let mut policy = Policy::default();
    policy.grace.failed_repair = Duration::from_secs(120);
    let slot = |name: &&str| {
        let slot = SlotSettings {
            filling: Default::default(),
            name: (*name).to_owned(),
            zones: vec![ZONE.to_owned()],
            create: Overlay::default(),
            job: None,
            policy: policy.clone(),
            supervisor: None,
        };
        ((*name).to_owned(), slot)
    };
    let seconds = Duration::from_secs;
    Settings {
        digest: String::new(),
        project: "p".into(),
        owner: "me".into(),
        label: None,
        decided_by: "test".into(),
        dry_run: false,
        alpha: false,
        poll: PollSettings {
            every: seconds(30),
            operations: seconds(5),
            timeout: seconds(20),
            max_gap: seconds(300),
        },
        max_unavailable: Share::Percent(25.0),
        removes_dead: false,
        max_judged_recreates_per_hour: 20,
        storm: Storm { min: 4, ..Storm::default() },
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
        let gates = GATES.to_vec();
        let mut world = World {
            fleet,
            gates,
            now,
            actions: vec![],
            looks: vec![],
            records: vec![],
            events: vec![],
            messages: vec![],
            create_check: CreateCheck::default(),
            deletions: Ok(vec![]),
        };
        world.input(Input::Configured(Box::new(settings)));
        world
    }

    /// One input. Lookups that most stories have nothing to do with are answered at once: a create
    /// could follow, and no other hand deleted anything.
    fn input(&mut self, input: Input) {
        (self.actions, self.looks, self.records, self.events) = (vec![], vec![], vec![], vec![]);
        self.messages.clear();
        let mut inputs = std::collections::VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.step(input, &mut inputs);
        }
    }

    fn step(&mut self, input: Input, next: &mut std::collections::VecDeque<Input>) {
        for effect in step_with(&self.gates, &mut self.fleet, input, self.now) {
            match effect {
                Effect::Look(Look::CreateCheck { slot, .. }) => {
                    let found = self.create_check.clone();
                    next.push_back(Input::CreateChecked { slot, began: self.now, found });
                }
                Effect::Look(Look::Deletions { slot, since, .. }) => {
                    // As the client answers.
                    let mut result = self.deletions.clone();
                    result.iter_mut().for_each(|found| found.retain(|one| one.at >= since));
                    next.push_back(Input::Deletions { slot, began: self.now, result });
                }
                Effect::Look(look) => self.looks.push(look),
                Effect::Commit { records, events, then } => {
                    self.actions.extend(then);
                    self.records.extend(records);
                    self.messages.extend(events.iter().map(|e| e.message.clone()));
                    self.events.extend(events.into_iter().map(|e| e.what));
                }
            }
        }
        // A refusal of the checker is a defect of the plan, also where nothing follows from it.
        let refused = |event: &What| matches!(event, What::InvariantViolation { .. });
        assert!(
            self.gates.len() < GATES.len() || !self.events.iter().any(refused),
            "{:?}",
            self.messages
        );
    }

    fn wait(&mut self, seconds: u64) {
        self.now = after(self.now, Duration::from_secs(seconds));
    }

    /// Creates of v4-8 are refused for want of capacity, for the first time now.
    fn is_short(&mut self) {
        let (now, probe_at) = (self.now, after(self.now, Duration::from_secs(120)));
        let short = Some(Short { since: now, last: now, refusals: 1, probe_at });
        self.fleet.ledger.pools.insert(format!("{ZONE} v4-8"), Pool { short, ..Pool::default() });
    }

    /// The TPU of a slot is lost, and its create is refused.
    fn is_refused(&mut self, name: &str, class: FailureClass) {
        let lost = || node(name, json!({"state": "PREEMPTED"}));
        self.poll(&[node(name, json!({}))]);
        self.poll(&[lost()]);
        self.get(name, Some(lost()));
        self.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        assert!(matches!(self.actions[..], [Action::Create { .. }]), "{:?}", self.hold(name));
        self.called(name, CallOutcome::Refused(Failure::new(class, "no")));
    }

    /// A complete listing of these nodes, and of idle ones that are healthy.
    fn poll(&mut self, nodes: &[Value]) {
        let idle = self.fleet.slots.keys().filter(|name| name.starts_with("idle"));
        let idle: Vec<Value> = idle.map(|name| node(name, json!({}))).collect();
        let nodes = nodes
            .iter()
            .chain(&idle)
            .map(|n| Arc::new(NodeView::parse(n.clone()).unwrap()))
            .collect();
        self.poll_result(Ok((nodes, vec![])));
    }

    fn poll_result(&mut self, result: Result<(Vec<Arc<NodeView>>, Vec<String>), Failure>) {
        let result = result.map(Into::into);
        let poll = Poll {
            began: self.now,
            listings: vec![Listing { zone: ZONE.into(), result, requests: None }],
            jobs: vec![],
        };
        self.input(Input::Polled(Box::new(poll)));
    }

    fn get(&mut self, name: &str, node: Option<Value>) {
        let reading = match node {
            Some(raw) => Reading::Node(Arc::new(NodeView::parse(raw).unwrap())),
            None => Reading::Absent,
        };
        self.input(Input::Got { slot: name.into(), began: self.now, reading });
    }

    fn called(&mut self, name: &str, outcome: CallOutcome) {
        self.input(Input::Called { slot: name.into(), outcome });
    }

    fn done(&mut self, name: &str, state: OperationState) {
        self.input(Input::Operated {
            slot: name.into(),
            operation: OPERATION.into(),
            result: Ok(state),
        });
    }

    /// The operation of a create ends with this error, and nothing is there.
    fn create_fails(&mut self, name: &str, class: FailureClass) {
        self.done(name, OperationState::Failed(Failure::new(class, "no more capacity")));
        assert!(
            self.looks.iter().any(|look| matches!(look, Look::Node { .. })),
            "its name is read back: {:?}",
            self.looks
        );
        self.wait(1);
        self.get(name, None);
    }

    fn phase(&self, name: &str) -> Option<Phase> {
        self.fleet.slots[name].recovery.as_ref().map(|r| r.phase())
    }

    fn hold(&self, name: &str) -> Option<HoldReason> {
        self.fleet.slots[name].decision.as_ref().and_then(|d| d.hold)
    }

    /// A GET was asked for, now or before, and is not answered.
    fn asks(&self, name: &str) -> bool {
        self.fleet.memory[name].pending.contains(&Pending::Node)
    }

    /// Healthy, then sick with `change` for `seconds`, polled every 30 s; the last poll has just
    /// been applied.
    fn sick(&mut self, names: &[&str], change: Value, seconds: u64) {
        let all: Vec<String> = self.fleet.slots.keys().cloned().collect();
        let show = |sick: &Value| -> Vec<Value> {
            all.iter()
                .map(|n| {
                    node(n, if names.contains(&n.as_str()) { sick.clone() } else { json!({}) })
                })
                .collect()
        };
        self.poll(&show(&json!({})));
        for _ in 0..=seconds / 30 {
            self.wait(30);
            self.poll(&show(&change));
        }
    }

    /// Deletes `a`, which is preempted, and creates it: up to the create's acceptance.
    fn recreate_preempted(&mut self) {
        let preempted = json!({"state": "PREEMPTED", "createTime": self.now.to_string()});
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
        let mut raw = node(
            name,
            json!({"id": "2", "createTime": self.now.to_string(),
            "metadata": {"tpu-watchdog-owner": "me", "tpu-watchdog-slot": name, "tpu-watchdog-run": run}}),
        );
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
