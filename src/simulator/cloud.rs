//! The state of the simulated cloud, and what happens to it as time goes on. No clock but the one
//! it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::nodes::Nodes;
use super::queued::Queued;
use super::scenario::{Event, Trouble};
use super::workload::{self, Workload};
use super::{shape, storage::Object};
use crate::model::time::after;

/// How long things take.
#[derive(Debug, Clone)]
pub struct Timing {
    /// A create, from accepted to READY.
    pub create: Duration,
    /// A delete.
    pub delete: Duration,
    /// Stop, start, patch.
    pub change: Duration,
    /// From READY to the first boot beacon.
    pub boot: Duration,
    /// Between two heartbeats of a worker.
    pub beat: Duration,
    /// A refused create, from accepted to its error.
    pub refusal: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Timing {
            create: ms(500),
            delete: ms(300),
            change: ms(300),
            boot: ms(200),
            beat: ms(500),
            refusal: ms(300),
        }
    }
}

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    /// As it was created.
    pub body: Map<String, Value>,
    /// The unique id.
    pub uid: u64,
    /// When it was created.
    pub created: Timestamp,
    /// `state`.
    pub state: &'static str,
    /// `health`; absent when none.
    pub health: Option<String>,
    /// `healthDescription`.
    pub health_description: Option<String>,
    /// `upcomingMaintenance`.
    pub upcoming: Option<Value>,
    /// `symptoms`.
    pub symptoms: Vec<Value>,
    /// The API version that made it.
    pub made_by: &'static str,
    /// The queued resource that it belongs to.
    pub queued_resource: Option<String>,
    /// `multisliceNode`.
    pub multislice: bool,
    /// Guest attributes, one map a worker, by "namespace/key".
    pub attributes: Vec<BTreeMap<String, String>>,
    /// When a GET last showed it otherwise than READY and HEALTHY, or its guest attributes that
    /// nothing runs on it.
    pub shown_sick: Option<Timestamp>,
    /// What runs on it.
    pub run: workload::Run,
}

/// One long-running operation.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Full name.
    pub name: String,
    /// The resource.
    pub target: String,
    /// `create`, `delete`, …
    pub verb: &'static str,
    /// When it was accepted.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// `error`.
    pub error: Option<Value>,
    /// `response`.
    pub response: Value,
}

/// What is going to happen.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Created { operation: String, zone: String, node: String, uid: u64 },
    Refused { operation: String, zone: String, node: String, uid: u64, error: Value },
    Deleted { operation: String, zone: String, node: String, uid: u64 },
    Changed { operation: String, zone: String, node: String, uid: u64, state: &'static str },
    Done { operation: String },
    Booted { zone: String, node: String, uid: u64 },
    Beat { zone: String, node: String, uid: u64 },
    Healed { zone: String, node: String, uid: u64, event: bool },
    Queue { zone: String, id: String },
    Dequeued { operation: String, zone: String, id: String },
    Scenario(Box<Event>),
}

/// Everything that the API knows.
#[derive(Debug, Default)]
pub struct Cloud {
    /// The virtual clock; `None` before the first [`Cloud::advance`].
    pub now: Option<Timestamp>,
    /// How long things take.
    pub timing: Timing,
    /// Nodes by zone and id.
    pub nodes: Nodes,
    /// Operations by name.
    pub operations: BTreeMap<String, Operation>,
    /// Queued resources by zone and id.
    pub queued: BTreeMap<(String, String), Queued>,
    /// Objects by "bucket/key".
    pub objects: BTreeMap<String, Object>,
    /// What runs on a node of this id, once it has booted.
    pub workloads: BTreeMap<String, Workload>,
    /// Creates in a zone end in this error until the time given.
    pub refusals: BTreeMap<String, (Timestamp, Value)>,
    /// Synchronous refusals (quota): the message, until the time given.
    pub quota: BTreeMap<String, (Timestamp, String)>,
    /// Zones that listings report as unreachable.
    pub unreachable: BTreeSet<String>,
    /// The next node of this id never boots.
    pub dead_on_arrival: BTreeSet<String>,
    /// Requests by id, for v2alpha1: a repeated one gets the same operation.
    pub requests: BTreeMap<String, String>,
    /// Nodes created so far, by id: what tests count.
    pub creations: BTreeMap<String, u32>,
    /// Deletes of nodes that were READY, HEALTHY and at work: what a watchdog must never do.
    pub harmed: u32,
    /// Those among them that no read within the 5 s before had shown sick. A node that heals in
    /// between is not protected: the API deletes by name, whatever it has become.
    pub harmed_unseen: u32,
    /// The most nodes that one page holds.
    pub page_max: Option<usize>,
    agenda: BTreeMap<(Timestamp, u64), Happening>,
    counter: u64,
}

impl Cloud {
    /// An empty cloud.
    pub fn new(timing: Timing) -> Self {
        Cloud { timing, ..Cloud::default() }
    }

    /// Time goes on: everything that is due by `to` happens, in order.
    pub fn advance(&mut self, to: Timestamp) {
        while let Some(entry) = self.agenda.first_entry().filter(|e| e.key().0 <= to) {
            let at = entry.key().0;
            let happening = entry.remove();
            // What was changed from outside is so since then.
            self.nodes.chronicle(self.now());
            self.now = Some(self.now.map_or(at, |now| now.max(at)));
            self.happen(happening);
        }
        self.nodes.chronicle(self.now());
        self.now = Some(self.now.map_or(to, |now| now.max(to)));
    }

    /// The present.
    pub fn now(&self) -> Timestamp {
        self.now.unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(super) fn schedule(&mut self, in_: Duration, happening: Happening) {
        let key = (after(self.now(), in_), self.number());
        self.agenda.insert(key, happening);
    }

    /// Puts a scenario's event on the agenda, counted from now.
    pub fn plan(&mut self, event: Event) {
        self.schedule(event.at, Happening::Scenario(Box::new(event)));
    }

    /// Starts an operation; it ends by a happening.
    pub(super) fn operation(
        &mut self,
        project: &str,
        zone: &str,
        target: String,
        verb: &'static str,
    ) -> String {
        let number = self.number();
        let name = format!(
            "projects/{project}/locations/{zone}/operations/operation-{}-{number:013x}",
            self.now().as_millisecond()
        );
        let operation = Operation {
            name: name.clone(),
            target,
            verb,
            created: self.now(),
            ended: None,
            error: None,
            response: json!({}),
        };
        self.operations.insert(name.clone(), operation);
        name
    }

    /// Adds a node in state CREATING, or READY when `ready`.
    pub fn add_node(
        &mut self,
        zone: &str,
        node: &str,
        body: Map<String, Value>,
        ready: bool,
    ) -> u64 {
        let uid = 1_000_000_000_000 + self.number() * 7_919;
        let workers = shape::workers(&body);
        let created = self.now();
        *self.creations.entry(node.to_owned()).or_default() += 1;
        self.nodes.insert(
            (zone.to_owned(), node.to_owned()),
            Node {
                shown_sick: None,
                body,
                uid,
                created,
                state: if ready { "READY" } else { "CREATING" },
                health: ready.then(|| "HEALTHY".to_owned()),
                health_description: None,
                upcoming: None,
                symptoms: Vec::new(),
                made_by: "V2",
                queued_resource: None,
                multislice: false,
                attributes: vec![BTreeMap::new(); workers],
                run: workload::Run::default(),
            },
        );
        if ready {
            let boot = Happening::Booted { zone: zone.to_owned(), node: node.to_owned(), uid };
            self.schedule(self.timing.boot, boot);
        }
        uid
    }

    /// The node, if it still is this incarnation.
    pub(super) fn same(&mut self, zone: &str, node: &str, uid: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&(zone.to_owned(), node.to_owned())).filter(|n| n.uid == uid)
    }

    fn end(&mut self, operation: &str, outcome: Result<Value, Value>) {
        let now = self.now();
        if let Some(operation) = self.operations.get_mut(operation) {
            operation.ended = Some(now);
            match outcome {
                Ok(response) => operation.response = response,
                Err(error) => operation.error = Some(error),
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Created { operation, zone, node, uid } => {
                let Some(found) = self.same(&zone, &node, uid) else {
                    return self
                        .end(&operation, Err(json!({"code": 5, "message": "the node was deleted while it was being created"})));
                };
                if found.state != "CREATING" {
                    let message = format!(
                        "Cloud TPU received a bad request. update is not supported while in state {} [EID: 0x1]",
                        found.state
                    );
                    return self.end(&operation, Err(json!({"code": 3, "message": message})));
                }
                found.state = "READY";
                found.health = Some("HEALTHY".into());
                let target =
                    self.operations.get(&operation).map(|o| o.target.clone()).unwrap_or_default();
                let response = self
                    .nodes
                    .get(&(zone.clone(), node.clone()))
                    .map(|n| shape::node(n, &target, "v2"));
                self.end(&operation, Ok(response.unwrap_or_default()));
                self.schedule(self.timing.boot, Happening::Booted { zone, node, uid });
            }
            Happening::Refused { operation, zone, node, uid, error } => {
                if self.same(&zone, &node, uid).is_some() {
                    self.nodes.remove(&(zone, node));
                }
                self.end(&operation, Err(error));
            }
            Happening::Deleted { operation, zone, node, uid } => {
                if self.same(&zone, &node, uid).is_some() {
                    self.nodes.remove(&(zone, node));
                }
                self.end(
                    &operation,
                    Ok(json!({"@type": "type.googleapis.com/google.protobuf.Empty"})),
                );
            }
            Happening::Changed { operation, zone, node, uid, state } => {
                let started = state == "READY";
                if let Some(found) = self.same(&zone, &node, uid) {
                    found.state = state;
                    found.health = started.then(|| "HEALTHY".to_owned());
                }
                self.end(&operation, Ok(json!({})));
                if started {
                    self.schedule(self.timing.boot, Happening::Booted { zone, node, uid });
                }
            }
            Happening::Done { operation } => self.end(&operation, Ok(json!({}))),
            Happening::Booted { zone, node, uid } => {
                if self.dead_on_arrival.remove(&node) {
                    return;
                }
                workload::boot(self, &zone, &node, uid);
                self.schedule(self.timing.beat, Happening::Beat { zone, node, uid });
            }
            Happening::Beat { zone, node, uid } => {
                if workload::beat(self, &zone, &node, uid) {
                    self.schedule(self.timing.beat, Happening::Beat { zone, node, uid });
                }
            }
            Happening::Healed { zone, node, uid, event } => {
                let now = self.now();
                // What is being deleted does not come back.
                let Some(found) =
                    self.same(&zone, &node, uid).filter(|found| found.state != "DELETING")
                else {
                    return;
                };
                found.state = "READY";
                found.health = Some("HEALTHY".into());
                found.upcoming = None;
                if event {
                    found.health_description =
                        Some(format!("The TPU had a maintenance event at {}", shape::time(now)));
                    found.run.stopped = true;
                    // The hosts come up again: the startup script runs once more.
                    self.schedule(self.timing.boot, Happening::Booted { zone, node, uid });
                }
            }
            Happening::Queue { zone, id } => super::queued::provision(self, &zone, &id),
            Happening::Dequeued { operation, zone, id } => {
                let name = self.queued.remove(&(zone, id)).map(|q| q.name).unwrap_or_default();
                self.nodes.retain(|_, n| n.queued_resource.as_ref() != Some(&name));
                self.end(
                    &operation,
                    Ok(json!({"@type": "type.googleapis.com/google.protobuf.Empty"})),
                );
            }
            Happening::Scenario(event) => self.trouble(*event),
        }
    }

    /// Something goes wrong, or right, as a scenario says.
    pub fn trouble(&mut self, event: Event) {
        self.strike(event);
        self.nodes.chronicle(self.now());
    }

    fn strike(&mut self, event: Event) {
        let now = self.now();
        let until = event.lasts.map(|lasts| after(now, lasts));
        let forever = Timestamp::MAX;
        let zone = event.zone.clone();
        match event.what {
            Trouble::StockOut => {
                let message = format!(
                    "There is no more capacity in the zone \"{zone}\"; you can try in another zone where Cloud TPU Nodes are offered \
                     (see https://cloud.google.com/tpu/docs/regions) [EID: 0x9f48947a7d57c8d]"
                );
                self.refusals.insert(
                    zone,
                    (until.unwrap_or(forever), json!({"code": 8, "message": message})),
                );
                return;
            }
            Trouble::Quota => {
                let message = format!(
                    "Quota limit 'TPUV4PerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone {zone}."
                );
                self.quota.insert(zone, (until.unwrap_or(forever), message));
                return;
            }
            Trouble::Unreachable => {
                self.unreachable.insert(zone);
                return;
            }
            Trouble::NeverBoot => {
                self.dead_on_arrival.insert(event.node);
                return;
            }
            _ => {}
        }
        let key = (zone.clone(), event.node.clone());
        if event.what == Trouble::Vanish {
            self.nodes.remove(&key);
            return;
        }
        if event.what == Trouble::Replace {
            if let Some(old) = self.nodes.remove(&key) {
                let mut body = old.body;
                body.remove("metadata");
                self.add_node(&zone, &event.node, body, true);
            }
            return;
        }
        let Some(node) = self.nodes.get_mut(&key) else { return };
        let uid = node.uid;
        let mut dead = true;
        match event.what {
            Trouble::Preempt => node.state = "PREEMPTED",
            Trouble::Terminate => node.state = "TERMINATED",
            Trouble::FailedRepair => node.state = "UNKNOWN",
            Trouble::Stop => node.state = "STOPPED",
            Trouble::Hide => node.state = "HIDDEN",
            Trouble::Deleting => node.state = "DELETING",
            Trouble::Restarting => node.state = "RESTARTING",
            Trouble::Repairing => node.state = "REPAIRING",
            Trouble::Maintenance => node.health = Some("UNHEALTHY_MAINTENANCE".into()),
            Trouble::Unresponsive => node.health = Some("TIMEOUT".into()),
            Trouble::RuntimeUnhealthy => node.health = Some("UNHEALTHY_TENSORFLOW".into()),
            Trouble::StrangeState => node.state = "STATE_OF_THE_FUTURE",
            Trouble::Strange => node.health = Some("HEALTH_OF_THE_FUTURE".into()),
            Trouble::Window => {
                let end = until.map(shape::time);
                node.upcoming = Some(
                    json!({"type": "UNSCHEDULED", "maintenanceStatus": "ONGOING", "canReschedule": false,
                    "windowStartTime": shape::time(now), "windowEndTime": end, "latestWindowStartTime": shape::time(now)}),
                );
            }
            Trouble::MeshFailure => {
                node.symptoms.push(
                    json!({"createTime": shape::time(now), "symptomType": "MESH_BUILD_FAIL", "details": "", "workerId": "0"}),
                );
            }
            Trouble::Silence => {}
            Trouble::OptOut => {
                dead = false;
                let labels = node.body.entry("labels").or_insert_with(|| json!({}));
                labels["tpu-watchdog"] = json!("off");
            }
            Trouble::JobFails => {
                dead = false;
                node.run.failing = true;
            }
            Trouble::JobEnds => {
                dead = false;
                node.run.ended = true;
            }
            Trouble::Heal => {
                self.schedule(
                    Duration::ZERO,
                    Happening::Healed { zone, node: event.node, uid, event: true },
                );
                return;
            }
            Trouble::StockOut
            | Trouble::Quota
            | Trouble::Unreachable
            | Trouble::NeverBoot
            | Trouble::Vanish
            | Trouble::Replace => return,
        }
        node.run.stopped |= dead;
        if let (Some(lasts), true) = (event.lasts, dead) {
            self.schedule(lasts, Happening::Healed { zone, node: event.node, uid, event: true });
        }
    }
}
