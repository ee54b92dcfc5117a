//! The mutations of the watchdogs as they arrive at the API: refused, half carried out, or without an end.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tpu_watchdog::google::classify::http_failure;
use tpu_watchdog::google::origin::Origin;
use tpu_watchdog::model::action::{Action, CallOutcome};
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::ids::{Incarnation, RunOrder};
use tpu_watchdog::model::relaunch::Patch;
use tpu_watchdog::resource::queued::body::create_body;
use tpu_watchdog::resource::spec::strip_ours;
use tpu_watchdog::simulator::api;
use tpu_watchdog::simulator::shape;
use tpu_watchdog::simulator::things::Operation;
use tpu_watchdog::simulator::wire::Request;

use crate::accidents::Accident;
use crate::fault::Fault;
use crate::process::{Tag, wall};
use crate::setup::*;
use crate::world::{Arrival, Task, World};

/// The API's answer where a right is missing.
pub const NO_RIGHT: &str = "Permission 'tpu.nodes.create' denied.";

impl World {
    /// A mutation reaches the API.
    pub fn arrive(&mut self, tag: Tag, action: Action, arrival: Arrival) {
        let slot = action.slot().to_owned();
        let answer = action.clone();
        self.arrivals.arrives(self.now, &action);
        self.arrives(tag, &action, arrival);
        let outcome = match self.refusal(&action) {
            Some((status, message)) => {
                let body = shape::error(status, message).1.to_string();
                CallOutcome::Refused(http_failure(origin(&action), status, body.as_bytes()))
            }
            None if self.strikes(Fault::ServerError, 8) => {
                // The answer does not say whether it was carried out.
                if self.rng.bool() {
                    self.carry_out(&action);
                }
                let status = [500, 502, 503, 504][self.rng.usize(0..4)];
                outcome(origin(&action), status, &shape::error(status, "later").1)
            }
            None => self.carry_out(&action),
        };
        self.tell(|| {
            format!(
                "the API answers {slot}: {outcome:?}{}",
                if arrival.again { " (again)" } else { "" }
            )
        });
        if arrival.answered {
            let latency = self.rng.i64(20..400);
            self.at(
                self.now + latency,
                Task::Deliver(tag, Box::new(answer.answer(outcome)), arrival.sent),
            );
        }
    }

    /// Since when the right to create TPUs is taken.
    pub fn rights_taken(&self) -> Option<Ms> {
        let (since, until) = self.rights;
        (self.now < until).then_some(since)
    }

    fn refusal(&mut self, action: &Action) -> Option<(u16, &'static str)> {
        let refused = self.calm && self.setup.refuses_deletes_of(action.slot());
        if matches!(action, Action::Delete { .. }) && refused {
            return Some((403, "Permission 'tpu.nodes.delete' denied."));
        }
        if matches!(action, Action::Create { .. }) && self.rights_taken().is_some() {
            return Some((403, NO_RIGHT));
        }
        if !self.strikes(Fault::CallRefused, 6) {
            return None;
        }
        // A 404 of a delete or a 409 of a create would be a lie about the node itself.
        let all: &[(u16, &str)] = match action {
            Action::Delete { .. } => &[
                (400, "bad request"),
                (401, "no"),
                (403, "no"),
                (409, "busy"),
                (429, "rate limit exceeded"),
            ],
            Action::Create { .. } => &[
                (400, "bad request"),
                (401, "no"),
                (403, "no"),
                (404, "no such network"),
                (429, "rate limit exceeded"),
            ],
            Action::Patch { .. } => &[(400, "bad request"), (403, "no"), (409, "busy")],
        };
        Some(all[self.rng.usize(0..all.len())])
    }

    fn carry_out(&mut self, action: &Action) -> CallOutcome {
        if let Action::Patch { slot, zone, incarnation, patch, .. } = action {
            return self.patch(slot, zone, incarnation, patch);
        }
        let version = if self.setup.settings.alpha { "v2alpha1" } else { "v2" };
        let mut query = BTreeMap::new();
        let (method, zone, slot, mut body, request_id, filling) = match action {
            Action::Delete { slot, zone, request_id, filling, force, .. } => {
                if *filling != Filling::Node {
                    query.insert("force".to_owned(), force.to_string());
                }
                ("DELETE", zone, slot, None, request_id, filling)
            }
            Action::Create { slot, zone, body, request_id, filling } => {
                ("POST", zone, slot, Some(body.clone()), request_id, filling)
            }
            Action::Patch { .. } => unreachable!("it is a patch"),
        };
        let parent = format!("projects/p/locations/{zone}");
        if let Some(id) = request_id {
            query.insert("requestId".to_owned(), id.clone());
        }
        let create = body.is_some();
        let of = filling.path(slot);
        let path = match (create, of.split_once('/')) {
            (true, Some((all, id))) => {
                let key = if *filling == Filling::Node { "nodeId" } else { "queuedResourceId" };
                query.insert(key.to_owned(), id.to_owned());
                format!("{version}/{parent}/{all}")
            }
            _ => format!("{version}/{parent}/{of}"),
        };
        if *filling != Filling::Node {
            body = body.map(|body| create_body(&body, &parent, slot, false).0);
        }
        let key = (zone.clone(), slot.clone());
        if self.strikes(Fault::OperationFails, 6) {
            return self.failing_operation(&key, (filling, create), &path, &query, body);
        }
        let (status, answer) =
            api::handle(&mut self.cloud, &Request { method, path: &path, query: &query, body });
        if create && status == 200 {
            self.born(zone, slot);
        }
        outcome(origin(action), status, &answer)
    }

    /// The run order in a node's metadata, changed as the client does it.
    fn patch(&mut self, slot: &str, zone: &str, meant: &Incarnation, patch: &Patch) -> CallOutcome {
        let node = self.cloud.nodes.get(&(zone.to_owned(), slot.to_owned())).cloned();
        let id = node.as_ref().map(|node| self.identity(zone, node).id);
        let Some(node) = node.filter(|_| id.as_ref() == Some(&meant.id)) else {
            let text = "another node is there";
            return CallOutcome::Refused(Failure::new(FailureClass::NotFound, text));
        };
        let path = format!("v2/projects/p/locations/{zone}/nodes/{slot}");
        if *patch == Patch::Stop {
            let (path, query) = (format!("{path}:stop"), BTreeMap::new());
            let request =
                Request { method: "POST", path: &path, query: &query, body: Some(json!({})) };
            let (status, answer) = api::handle(&mut self.cloud, &request);
            return outcome(Origin::PATCH, status, &answer);
        }
        let mut metadata = node.body["metadata"].clone();
        // As the client does, which reads the node right before.
        let run = metadata["tpu-watchdog-run"].as_str().unwrap_or_default();
        let present: RunOrder = serde_json::from_str(run).unwrap_or_default();
        if present.generation > patch.generation() && *patch != Patch::Release {
            return CallOutcome::Refused(Failure::new(FailureClass::Conflict, "a newer order"));
        }
        match (patch, metadata.as_object_mut()) {
            (Patch::Order(order), _) => metadata["tpu-watchdog-run"] = json!(order.text()),
            (Patch::Release, Some(metadata)) => strip_ours(metadata),
            _ => {}
        }
        let query = [("updateMask".to_owned(), "metadata".to_owned())].into();
        let body = Some(json!({ "metadata": metadata }));
        let request = Request { method: "PATCH", path: &path, query: &query, body };
        let (status, answer) = api::handle(&mut self.cloud, &request);
        self.network.relabelled(zone, slot);
        if let Patch::Order(order) = patch
            && order.generation > present.generation
        {
            self.gets_nowhere(zone.to_owned(), slot.to_owned(), order.step, self.now + 20_000);
        }
        outcome(Origin::PATCH, status, &answer)
    }

    /// A run from a checkpoint that no run gets any further from stops before its first step: by a crash in
    /// every other world.
    fn gets_nowhere(&mut self, zone: String, name: String, from: Option<u64>, at: Ms) {
        if self.stuck.get(&name) != Some(&from) {
            return;
        }
        self.struck(Fault::StuckJob);
        let crashes = self.setup.seed.is_multiple_of(2);
        let silence = Accident::Silence { zone: zone.clone(), name: name.clone() };
        let accident = if crashes { Accident::Crash { zone, name } } else { silence };
        self.at(at, Task::Accident(accident));
    }

    /// An operation that is accepted and ends in an error: a delete that leaves the node, a create
    /// that leaves none.
    fn failing_operation(
        &mut self,
        (zone, slot): &(String, String),
        (filling, create): (&Filling, bool),
        path: &str,
        query: &BTreeMap<String, String>,
        body: Option<Value>,
    ) -> CallOutcome {
        let error = [
            json!({"code": 13, "message": "an internal error has occurred"}),
            json!({"code": 8, "message": "There is no more capacity in the zone"}),
            json!({"code": 10, "message": "aborted"}),
            json!({"code": 14, "message": "the service is unavailable"}),
        ][self.rng.usize(0..4)]
        .clone();
        if create {
            let of = body.as_ref().map_or(Origin::DELETE, Origin::create);
            let until = wall(self.now + 1, 0);
            let before = self.cloud.refusals.insert(zone.clone(), (until, error));
            let (status, answer) =
                api::handle(&mut self.cloud, &Request { method: "POST", path, query, body });
            self.cloud.refusals.remove(zone);
            if let Some(before) = before {
                self.cloud.refusals.insert(zone.clone(), before);
            }
            return outcome(of, status, &answer);
        }
        let there = match filling {
            Filling::Node => self.cloud.nodes.contains_key(&(zone.clone(), slot.clone())),
            Filling::QueuedResource(id) => {
                self.cloud.queued.contains_key(&(zone.clone(), id.clone()))
            }
            Filling::Training(_) => unreachable!("no slot of these worlds is a training job"),
        };
        if !there {
            return CallOutcome::Refused(Failure::new(FailureClass::NotFound, "no such node"));
        }
        let name = format!("projects/p/locations/{zone}/operations/failing-{}", self.now);
        let operation = Operation {
            name: name.clone(),
            target: slot.clone(),
            verb: "delete",
            created: wall(self.now, 0),
            ended: Some(wall(self.now + 5_000, 0)),
            error: Some(error),
            response: json!({}),
        };
        self.cloud.operations.insert(name.clone(), operation);
        CallOutcome::Accepted(name)
    }

    /// A replacement is on its way: what it will be.
    fn born(&mut self, zone: &str, name: &str) {
        let (zone, name) = (zone.to_owned(), name.to_owned());
        if self.strikes(Fault::PreemptedAtBirth, 6) {
            let wait = self.rng.i64(5_000..140_000);
            self.at(
                self.now + wait,
                Task::Accident(Accident::Lose { zone: zone.clone(), name: name.clone() }),
            );
        }
        if self.strikes(Fault::BornSick, 6) {
            self.at(
                self.now + 95_000,
                Task::Accident(Accident::Sicken { zone: zone.clone(), name: name.clone() }),
            );
        }
        let bad_script = self.now < self.bad_script_until;
        if bad_script || self.strikes(Fault::NeverBoots, 8) {
            if bad_script {
                self.struck(Fault::BadScript);
            }
            self.cloud.dead_on_arrival.insert(name.clone());
        }
        if self.strikes(Fault::Ungathered, 8) {
            let mends = self.rng.bool();
            self.cloud.ungathered.insert(name.clone(), mends);
        }
        let from = self.cloud.nodes.get(&(zone.clone(), name.clone())).and_then(|node| {
            let run = node.body.get("metadata")?.get("tpu-watchdog-run")?.as_str()?;
            serde_json::from_str::<Value>(run).ok()?.get("step")?.as_u64()
        });
        // It boots and beats before.
        self.gets_nowhere(zone, name, from, self.now + 90_000 + 30_000 + 150_000);
    }
}

/// Where an answer to it comes from.
fn origin(action: &Action) -> Origin {
    match action {
        Action::Create { body, .. } => Origin::create(body),
        Action::Delete { .. } => Origin::DELETE,
        Action::Patch { .. } => Origin::PATCH,
    }
}

fn outcome(of: Origin, status: u16, answer: &Value) -> CallOutcome {
    let failure = || http_failure(of, status, answer.to_string().as_bytes());
    match (status, answer.get("name").and_then(Value::as_str)) {
        (200, Some(name)) => CallOutcome::Accepted(name.to_owned()),
        (400..=499, _) => CallOutcome::Refused(failure()),
        _ => CallOutcome::Unknown(failure()),
    }
}
