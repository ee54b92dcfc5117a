//! The safety and liveness rules by their names, on the core alone: inputs in, effects out, time as
//! an argument.

mod endings;
mod gates;
mod harm;
mod learning;
mod levers;
mod liveness;
mod regressions;
mod reports;
mod runs;
mod safety;

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
use crate::model::fleet::{Fleet, Ledger};
use crate::model::hold::HoldReason;
use crate::model::node::NodeView;
use crate::model::operation::OperationState;
use crate::model::phase::Phase;
use crate::model::settings::{
    JobSettings, Orphans, Overlay, Policy, PollSettings, Settings, Share, SlotSettings, Storm,
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
        max_judged_recreates_per_hour: 20,
        orphans: Orphans::Report,
        storm: Storm::default(),
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
        };
        world.input(Input::Configured(Box::new(settings)));
        world
    }

    fn input(&mut self, input: Input) {
        (self.actions, self.looks, self.records, self.events) = (vec![], vec![], vec![], vec![]);
        self.messages.clear();
        for effect in step_with(&self.gates, &mut self.fleet, input, self.now) {
            match effect {
                Effect::Look(look) => self.looks.push(look),
                Effect::Commit { records, events, then } => {
                    self.actions.extend(then);
                    self.records.extend(records);
                    self.messages.extend(events.iter().map(|e| e.message.clone()));
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
        let nodes = nodes.iter().map(|n| Arc::new(NodeView::parse(n.clone()).unwrap())).collect();
        self.poll_result(Ok((nodes, vec![])));
    }

    fn poll_result(&mut self, result: Result<(Vec<Arc<NodeView>>, Vec<String>), Failure>) {
        let result = result.map(Into::into);
        let poll = Poll { began: self.now, listings: vec![Listing { zone: ZONE.into(), result }] };
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
        self.fleet.slots[name].recovery.as_ref().map(|r| r.phase)
    }

    fn hold(&self, name: &str) -> Option<HoldReason> {
        self.fleet.memory[name].decision.as_ref().and_then(|d| d.hold)
    }

    /// Healthy, then sick with `change` for `seconds`, polled every 30 s; the last poll has just
    /// been absorbed.
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
