//! What happens in the simulated cloud as time goes on, and when something goes wrong.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cloud::Cloud;
use super::things::{Exit, Happening, Hindrance, Node};
use super::trouble::{Event, Trouble};
use super::{queued, shape, training, workload};
use crate::model::time::after;

impl Cloud {
    /// Time goes on: everything that is due by `to` happens, in order.
    pub fn advance(&mut self, to: Timestamp) {
        while let Some(entry) = self.agenda.first_entry().filter(|e| e.key().0 <= to) {
            let at = entry.key().0;
            let happening = entry.remove();
            // Changes from outside date from before this step.
            self.nodes.chronicle(self.now());
            self.now = Some(self.now.map_or(at, |now| now.max(at)));
            self.happen(happening);
        }
        self.nodes.chronicle(self.now());
        self.now = Some(self.now.map_or(to, |now| now.max(to)));
    }

    /// Its queued resource was suspended: nothing brings the node back.
    fn is_taken(&self, place: &(String, String)) -> bool {
        let preempted = self.nodes.get(place).filter(|node| node.state == "PREEMPTED");
        let of = |name: &String| self.queued.values().any(|queued| queued.name == *name);
        preempted.and_then(|node| node.queued_resource.as_ref()).is_some_and(of)
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
                self.created(&operation, zone, node, uid);
            }
            Happening::Failed { operation, error } => self.end(&operation, Err(error)),
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
            Happening::Unhindered { zone, node, uid } => {
                if let Some(found) = self.same(&zone, &node, uid) {
                    found.run.hindrance = None;
                }
            }
            Happening::Beat { zone, node, uid } => {
                if workload::beat(self, &zone, &node, uid) {
                    self.schedule(self.timing.beat, Happening::Beat { zone, node, uid });
                }
            }
            Happening::Healed { zone, node, uid, event } => self.healed(zone, node, uid, event),
            Happening::Queue { zone, id, number } => queued::goes_on(self, &zone, &id, number),
            Happening::Dequeued { operation, zone, id } => {
                let name = self.queued.remove(&(zone, id)).map(|q| q.name).unwrap_or_default();
                self.nodes.retain(|_, n| n.queued_resource.as_ref() != Some(&name));
                self.end(
                    &operation,
                    Ok(json!({"@type": "type.googleapis.com/google.protobuf.Empty"})),
                );
            }
            Happening::Training { key } => training::goes_on(self, key),
            Happening::Scenario(event) => {
                self.tell(&event);
                self.trouble(*event);
            }
        }
    }

    fn healed(&mut self, zone: String, node: String, uid: u64, event: bool) {
        let now = self.now();
        // A node that is being deleted does not come back.
        let taken = self.is_taken(&(zone.clone(), node.clone()));
        let stays = |found: &&mut Node| found.state != "DELETING" && !taken;
        let Some(found) = self.same(&zone, &node, uid).filter(stays) else { return };
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

    /// A create comes to its end.
    fn created(&mut self, operation: &str, zone: String, node: String, uid: u64) {
        let Some(found) = self.same(&zone, &node, uid) else {
            let text = "the node was deleted while it was being created";
            return self.end(operation, Err(json!({"code": 5, "message": text})));
        };
        if found.state != "CREATING" {
            let message = format!(
                "Cloud TPU received a bad request. update is not supported while in state {} [EID: 0x1]",
                found.state
            );
            return self.end(operation, Err(json!({"code": 3, "message": message})));
        }
        found.state = "READY";
        found.health = Some("HEALTHY".into());
        let target = self.operations.get(operation).map(|o| o.target.clone()).unwrap_or_default();
        let response =
            self.nodes.get(&(zone.clone(), node.clone())).map(|n| shape::node(n, &target, "v2"));
        // Of a create that has failed already nothing is told a second time.
        self.end(operation, Ok(response.unwrap_or_default()));
        self.schedule(self.timing.boot, Happening::Booted { zone, node, uid });
    }

    /// Writes down what an event is about to do, and whether there is anything for it to do.
    fn tell(&mut self, event: &Event) {
        let Event { node, zone, what, .. } = event;
        let key = (zone.clone(), node.clone());
        let of_a_node = !what.is_of_a_zone();
        let to_come = matches!(what, Trouble::NeverBoot | Trouble::LeftBehind);
        let text = match of_a_node {
            false => format!("scenario: {what} in {zone}"),
            true if to_come => format!("scenario: {what} awaits the next {node}"),
            true if !self.nodes.contains_key(&key) => {
                format!("scenario: {what} of {node} in {zone} did nothing: it is not there")
            }
            true => format!("scenario: {what} of {node} in {zone}"),
        };
        self.struck.push(text);
    }

    /// Something goes wrong, or right, as a scenario says.
    pub fn trouble(&mut self, event: Event) {
        self.strike(event);
        self.nodes.chronicle(self.now());
    }

    /// Whether the event concerns a zone, or nodes to come; it has struck then.
    fn strike_zone(&mut self, event: &Event) -> bool {
        let until = event.lasts.map(|lasts| after(self.now(), lasts));
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
            }
            Trouble::Quota => {
                let message = format!(
                    "Quota limit 'TPUV4PerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone {zone}."
                );
                self.quota.insert(zone, (until.unwrap_or(forever), message));
            }
            Trouble::ClosedQueue => {
                self.closed.insert(zone, until.unwrap_or(forever));
            }
            Trouble::Unreachable => {
                self.unreachable.insert(zone, until.unwrap_or(forever));
            }
            Trouble::NeverBoot => {
                self.dead_on_arrival.insert(event.node.clone());
            }
            Trouble::LeftBehind => {
                self.left_behind.insert(event.node.clone(), event.lasts);
            }
            _ => return false,
        }
        true
    }

    /// Whether the event concerns the job alone, or the hosts that it is about to run on; it has struck then.
    fn strike_job(&mut self, event: &Event) -> bool {
        let place = (event.zone.clone(), event.node.clone());
        let Some(node) = self.nodes.get_mut(&place) else { return false };
        if event.what == Trouble::JobHangs {
            node.run.hangs = true;
            node.health = Some("TIMEOUT".into());
            return true;
        }
        let ended = match event.what {
            Trouble::JobFails => Ok(Exit::Failed),
            Trouble::JobCrashes => Ok(Exit::Crashed),
            Trouble::JobEnds => Ok(Exit::Well),
            Trouble::SetupFails => Err(Hindrance::SetUp),
            Trouble::ChipsBusy => Err(Hindrance::Chips),
            _ => return false,
        };
        match ended {
            // One end follows no other.
            Ok(how) => node.run.exit = node.run.exit.or(Some(how)),
            Err(hindrance) => node.run.hindrance = Some(hindrance),
        }
        let ((zone, name), uid) = (place, node.uid);
        if let (Some(lasts), Err(_)) = (event.lasts, ended) {
            self.schedule(lasts, Happening::Unhindered { zone, node: name, uid });
        }
        true
    }

    /// Another machine, or none, stands there from now on. Returns whether it was about that.
    fn strike_machine(&mut self, event: &Event, key: &(String, String)) -> bool {
        match event.what {
            Trouble::Remake => queued::remake(self, key),
            Trouble::Vanish => drop(self.nodes.remove(key)),
            Trouble::Replace => {
                if let Some(mut old) = self.nodes.remove(key) {
                    old.body.remove("metadata");
                    self.add_node(&key.0, &key.1, old.body, true);
                }
            }
            _ => return false,
        }
        true
    }

    fn strike(&mut self, event: Event) {
        if self.strike_zone(&event)
            || self.is_taken(&(event.zone.clone(), event.node.clone()))
            || self.strike_job(&event)
        {
            return;
        }
        let now = self.now();
        let zone = event.zone.clone();
        let key = (zone.clone(), event.node.clone());
        if self.strike_machine(&event, &key) {
            return;
        }
        let Some(node) = self.nodes.get_mut(&key) else { return };
        let uid = node.uid;
        let mut dead = true;
        match event.what {
            Trouble::Preempt | Trouble::PreemptNode => node.state = "PREEMPTED",
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
                let end = event.lasts.map(|lasts| shape::time(after(now, lasts)));
                let start = shape::time(now);
                node.upcoming = Some(
                    json!({"type": "UNSCHEDULED", "maintenanceStatus": "ONGOING", "canReschedule": false,
                    "windowStartTime": start, "windowEndTime": end, "latestWindowStartTime": start}),
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
            Trouble::Heal => {
                let healed = Happening::Healed { zone, node: event.node, uid, event: true };
                return self.schedule(Duration::ZERO, healed);
            }
            // It has struck before: a zone, a node to come, a job.
            _ => return,
        }
        node.run.stopped |= dead;
        let request = node.queued_resource.clone().filter(|_| event.what == Trouble::Preempt);
        if let Some(request) = request {
            queued::suspend(self, &zone, &request);
        }
        if let (Some(lasts), true) = (event.lasts, dead) {
            self.schedule(lasts, Happening::Healed { zone, node: event.node, uid, event: true });
        }
    }
}
