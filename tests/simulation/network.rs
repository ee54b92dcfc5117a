//! What the watchdogs' calls meet on their way: answers that fail, lag behind, lack something, or
//! are lost.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use tpu_watchdog::driver::poll::Plan;
use tpu_watchdog::google::classify::{http_failure, operation_failure};
use tpu_watchdog::google::origin::Origin;
use tpu_watchdog::model::action::{Input, Listing, Look, Poll, Reading};
use tpu_watchdog::model::beacon::{Beacon, WorkerReport};
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::lookup::{CreateCheck, Deletion};
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::operation::OperationState;
use tpu_watchdog::simulator::shape;
use tpu_watchdog::simulator::things::{Node, Operation};

use crate::accidents::Accident;
use crate::bucket::Surveys;
use crate::fault::Fault;
use crate::mutations::NO_RIGHT;
use crate::process::{Tag, wall};
use crate::setup::*;
use crate::world::{Task, World};

/// A read may show what was so long ago.
const LAG: Ms = 100_000;

/// What a node looks like from outside: when this changes, its view does. Of its labels it knows
/// nothing: see [`Network::relabelled`].
#[derive(Clone, PartialEq)]
struct Print {
    uid: u64,
    state: &'static str,
    health: Option<String>,
    described: bool,
    upcoming: bool,
    symptoms: usize,
}

impl Print {
    fn of(node: &Node) -> Print {
        Print {
            uid: node.uid,
            state: node.state,
            health: node.health.clone(),
            described: node.health_description.is_some(),
            upcoming: node.upcoming.is_some(),
            symptoms: node.symptoms.len(),
        }
    }

    fn is_of(&self, node: &Node) -> bool {
        self.uid == node.uid
            && self.state == node.state
            && self.health == node.health
            && self.described == node.health_description.is_some()
            && self.upcoming == node.upcoming.is_some()
            && self.symptoms == node.symptoms.len()
    }
}

/// What was shown, and when.
type Past = VecDeque<(Ms, Option<Arc<NodeView>>)>;

#[derive(Default)]
pub struct Network {
    views: BTreeMap<(String, String), (Print, Arc<NodeView>)>,
    // All of a zone that lives, and the number of changes to nodes by which it was so.
    present: BTreeMap<String, (u64, Vec<Arc<NodeView>>)>,
    // What reads have shown, for those that lag behind.
    past: BTreeMap<(String, String), Past>,
    stale: bool,
    pub unreachable: BTreeMap<String, Ms>,
    /// Operations that never end, and those that are gone, as far as can be read.
    hanging: BTreeSet<String>,
    vanished: BTreeSet<String>,
    /// Until when the answers about a slot's workers lack so many.
    short: BTreeMap<String, (Ms, usize)>,
    /// By slot.
    pub surveys: BTreeMap<String, Surveys>,
}

impl Network {
    pub fn new(setup: &Setup) -> Network {
        Network { stale: setup.has(Fault::StaleRead), ..Network::default() }
    }

    /// A person has changed a label.
    pub fn relabelled(&mut self, zone: &str, name: &str) {
        self.present.remove(zone);
        self.views.remove(&(zone.to_owned(), name.to_owned()));
    }
}

pub fn transient(text: &str) -> Failure {
    Failure::new(FailureClass::Transient, text)
}

impl World {
    /// The node as the API shows it now.
    pub fn view(&mut self, zone: &str, name: &str) -> Option<Arc<NodeView>> {
        let key = (zone.to_owned(), name.to_owned());
        let Some(node) = self.cloud.nodes.get(&key) else {
            self.network.views.remove(&key);
            return None;
        };
        if let Some((known, view)) = self.network.views.get(&key)
            && known.is_of(node)
        {
            return Some(Arc::clone(view));
        }
        let path = format!("projects/p/locations/{zone}/nodes/{name}");
        let version = if self.setup.settings.alpha { "v2alpha1" } else { "v2" };
        let view = NodeView::parse(shape::node(node, &path, version))
            .expect("the simulated API shows nodes");
        let view = Arc::new(if self.setup.settings.alpha { view.through_alpha() } else { view });
        self.network.views.insert(key, (Print::of(node), Arc::clone(&view)));
        Some(view)
    }

    /// The node as a read shows it, which may lag behind.
    fn shown(&mut self, zone: &str, name: &str) -> Option<Arc<NodeView>> {
        let present = self.view(zone, name);
        if !self.network.stale {
            return present;
        }
        let now = self.now;
        let past = self.network.past.entry((zone.to_owned(), name.to_owned())).or_default();
        past.push_back((now, present.clone()));
        while past.front().is_some_and(|(at, _)| *at < now - LAG) {
            past.pop_front();
        }
        if self.strikes(Fault::StaleRead, 6) {
            let past = &self.network.past[&(zone.to_owned(), name.to_owned())];
            let back = self.rng.usize(0..past.len());
            return past[back].1.clone();
        }
        present
    }

    fn read_failure(&mut self) -> Option<Failure> {
        if !self.strikes(Fault::ReadFails, 10) {
            return None;
        }
        let (status, body): (u16, &[u8]) = [
            (401, b"{\"error\":{\"code\":401,\"status\":\"UNAUTHENTICATED\",\"message\":\"no\"}}".as_slice()),
            (403, b"{\"error\":{\"code\":403,\"status\":\"PERMISSION_DENIED\",\"message\":\"no\"}}"),
            (429, b"{\"error\":{\"code\":429,\"status\":\"RESOURCE_EXHAUSTED\",\"message\":\"rate limit\"}}"),
            (503, b"{\"error\":{\"code\":503,\"status\":\"UNAVAILABLE\",\"message\":\"later\"}}"),
            (404, b"<html>not the API's</html>"),
            (500, b""),
        ][self.rng.usize(0..6)];
        Some(http_failure(Origin::READ, status, body))
    }

    pub fn serve_poll(&mut self, tag: Tag, plan: Plan, asked: Ms) {
        let process = &self.processes[tag.pid];
        if process.life != tag.life {
            return;
        }
        let began = wall(asked, process.offset);
        let mut listings = Vec::new();
        for zone in plan.zones {
            let result = match self.read_failure() {
                Some(failure) => Err(failure),
                None => Ok(self.list(&zone).into()),
            };
            let requests = plan.requests.contains(&zone).then(|| match self.read_failure() {
                Some(failure) => Err(failure),
                None => Ok(self.requests(&zone)),
            });
            listings.push(Listing { zone, result, requests });
        }
        let latency = self.latency();
        self.at(
            self.now + latency,
            Task::Deliver(
                tag,
                Box::new(Input::Polled(Box::new(Poll { began, listings, jobs: vec![] }))),
                asked,
            ),
        );
    }

    fn list(&mut self, zone: &str) -> (Vec<Arc<NodeView>>, Vec<String>) {
        if self.network.unreachable.get(zone).is_some_and(|until| *until > self.now) {
            return (Vec::new(), vec![zone.to_owned()]);
        }
        let from = (zone.to_owned(), String::new());
        let lacks = self.strikes(Fault::ListLacksNodes, 25);
        if !self.network.stale && !lacks {
            return (self.present(zone), Vec::new());
        }
        let mut names: Vec<String> = self
            .cloud
            .nodes
            .range(from..)
            .take_while(|((z, _), _)| z == zone)
            .map(|((_, name), _)| name.clone())
            .collect();
        if self.network.stale {
            let past =
                self.network.past.keys().filter(|(z, _)| z == zone).map(|(_, name)| name.clone());
            names.extend(past);
            names.sort();
            names.dedup();
        }
        let nodes = names
            .into_iter()
            .filter_map(|name| {
                if lacks && self.rng.u32(0..4) == 0 { None } else { self.shown(zone, &name) }
            })
            .collect();
        (nodes, Vec::new())
    }

    /// All nodes of a zone as they are. What has not changed since the last look costs next to
    /// nothing.
    fn present(&mut self, zone: &str) -> Vec<Arc<NodeView>> {
        let changes = self.cloud.nodes.changes();
        if let Some((_, nodes)) =
            self.network.present.get(zone).filter(|(before, _)| *before == changes)
        {
            return nodes.clone();
        }
        let nodes = self.look_at_all(zone);
        self.network.present.insert(zone.to_owned(), (changes, nodes.clone()));
        nodes
    }

    fn look_at_all(&mut self, zone: &str) -> Vec<Arc<NodeView>> {
        // No name sorts behind this one: nothing has to be compared with the zone.
        let (first, behind) =
            ((zone.to_owned(), String::new()), (zone.to_owned(), "\u{10ffff}".to_owned()));
        let mut views = self.network.views.range(first.clone()..behind.clone()).peekable();
        let mut shown: Vec<Option<Arc<NodeView>>> = Vec::new();
        let mut changed = Vec::new();
        for (key, node) in self.cloud.nodes.range(first..behind) {
            let known = loop {
                match views.peek().map(|(known, _)| known.1.cmp(&key.1)) {
                    Some(Ordering::Less) => drop(views.next()),
                    Some(Ordering::Equal) => break views.next(),
                    Some(Ordering::Greater) | None => break None,
                }
            };
            let known = known.filter(|(_, (print, _))| print.is_of(node));
            if known.is_none() {
                changed.push((shown.len(), key.1.clone()));
            }
            shown.push(known.map(|(_, (_, view))| Arc::clone(view)));
        }
        for (at, name) in changed {
            shown[at] = self.view(zone, &name);
        }
        shown.into_iter().flatten().collect()
    }

    pub fn serve(&mut self, tag: Tag, look: Look, asked: Ms) {
        let process = &self.processes[tag.pid];
        if process.life != tag.life {
            return;
        }
        let began = wall(asked, process.offset);
        let input = match look {
            Look::Node { slot, zone, filling, .. } => {
                let failed = self.read_failure();
                let shown = self.shown(&zone, &slot);
                let reading = match (failed, shown) {
                    (failed, shown) if filling != Filling::Node => {
                        self.filled(&zone, filling.id(), failed, shown)
                    }
                    (Some(failure), _) if failure.class == FailureClass::NotFound => {
                        Reading::Absent
                    }
                    (Some(failure), _) => Reading::Unread(failure.to_string()),
                    (None, Some(view)) => Reading::Node(view),
                    (None, None) => Reading::Absent,
                };
                let sick = matches!(&reading, Reading::Node(view) if view.health.as_ref().is_some_and(|h| h.as_str() != "HEALTHY"));
                if sick && self.strikes(Fault::HealsBetween, 5) {
                    self.accident(Accident::Heal { zone, name: slot.clone() });
                }
                Input::Got { slot, began, reading }
            }
            Look::Stray { zone, name, filling } => {
                let reading = match (self.read_failure(), self.shown(&zone, &name)) {
                    (failed, shown) if filling != Filling::Node => {
                        self.filled(&zone, filling.id(), failed, shown)
                    }
                    (Some(failure), _) => Reading::Unread(failure.to_string()),
                    (None, Some(view)) => Reading::Node(view),
                    (None, None) => Reading::Absent,
                };
                Input::StrayGot { zone, name, began, reading }
            }
            Look::Operation { slot, operation, verb, spot, .. } => {
                let result = self.operation(&operation, Origin::operation(verb, spot));
                Input::Operated { slot, operation, result }
            }
            Look::Attributes { slot, zone, of, .. } => {
                let for_good = self.calm && self.setup.forbidden_reports;
                let failed = for_good || self.strikes(Fault::AttributesFail, 4);
                let lack = self.lacks_workers(&slot);
                let node = self.cloud.nodes.get(&(zone, slot.clone()));
                let result = match node {
                    _ if failed => Err(Failure::new(
                        FailureClass::Permission,
                        "guest attributes are forbidden",
                    )),
                    Some(node) => {
                        let mut reports = reports(node);
                        reports.truncate(reports.len().saturating_sub(lack));
                        Ok(reports)
                    }
                    None => Err(Failure::new(FailureClass::NotFound, "no such node")),
                };
                Input::Attributes { slot, of, began, result }
            }
            Look::CreateCheck { slot, .. } => {
                let certain = self.rights_taken().map(|_| NO_RIGHT.to_owned());
                let found = CreateCheck { certain, ..CreateCheck::default() };
                Input::CreateChecked { slot, began, found }
            }
            Look::Deletions { slot, zone, since, targets } => {
                let result = self.deletions(&targets, &zone, since);
                Input::Deletions { slot, began, result }
            }
            Look::Checkpoints { slot, location, set_aside } => {
                let result = self.survey(&slot, &location, set_aside);
                Input::Surveyed { slot, began, location: location.uri, result }
            }
        };
        let latency = self.latency();
        self.at(self.now + latency, Task::Deliver(tag, Box::new(input), asked));
    }

    /// The delete operations on a node, newest first.
    fn deletions(
        &mut self,
        targets: &[String],
        zone: &str,
        since: Timestamp,
    ) -> Result<Vec<Deletion>, Failure> {
        if let Some(failure) = self.read_failure() {
            return Err(failure);
        }
        let ends = |target: &String| format!("/locations/{zone}/{target}");
        let targets: Vec<String> = targets.iter().map(ends).collect();
        let is = |operation: &&Operation| {
            operation.verb == "delete"
                && targets.iter().any(|target| operation.target.ends_with(target))
                && operation.created >= since
        };
        let found = self.cloud.operations.values().filter(is);
        let mut found: Vec<Deletion> = found
            .map(|operation| Deletion { operation: operation.name.clone(), at: operation.created })
            .collect();
        found.sort_by_key(|deletion| std::cmp::Reverse(deletion.at));
        Ok(found)
    }

    /// How many workers an answer lacks: for a while the same of the same slot.
    fn lacks_workers(&mut self, slot: &str) -> usize {
        if self.strikes(Fault::AttributesShort, 20) {
            let (until, lack) = (self.now + self.rng.i64(60_000..HOUR), self.rng.usize(1..4));
            self.network.short.insert(slot.to_owned(), (until, lack));
        }
        let short =
            self.network.short.get(slot).filter(|(until, _)| !self.calm && self.now < *until);
        short.map_or(0, |(_, lack)| *lack)
    }

    fn operation(&mut self, name: &str, of: Origin) -> Result<OperationState, Failure> {
        if let Some(failure) = self.read_failure() {
            return Err(failure);
        }
        if self.strikes(Fault::OperationHangs, 40) {
            self.network.hanging.insert(name.to_owned());
        }
        if self.strikes(Fault::OperationVanishes, 40) {
            self.network.vanished.insert(name.to_owned());
        }
        if !self.calm && self.network.vanished.contains(name) {
            return Err(Failure::new(FailureClass::NotFound, "no such operation"));
        }
        let now = wall(self.now, 0);
        Ok(match self.cloud.operations.get(name) {
            None => return Err(Failure::new(FailureClass::NotFound, "no such operation")),
            Some(_) if !self.calm && self.network.hanging.contains(name) => OperationState::Running,
            Some(operation) if operation.ended.is_none_or(|at| at > now) => OperationState::Running,
            Some(operation) => match &operation.error {
                Some(error) => OperationState::Failed(operation_failure(of, error)),
                None => OperationState::Succeeded,
            },
        })
    }
}

fn reports(node: &Node) -> Vec<WorkerReport> {
    let beacon = |attributes: &BTreeMap<String, String>, key: &str| {
        attributes.get(key).and_then(|text| Beacon::parse(text))
    };
    let report = |attributes: &BTreeMap<String, String>| WorkerReport {
        phase: None,
        boot: beacon(attributes, "tpu-watchdog/boot"),
        heartbeat: beacon(attributes, "tpu-watchdog/heartbeat"),
        step: beacon(attributes, "tpu-watchdog/step"),
        exit: beacon(attributes, "tpu-watchdog/exit"),
        lines: attributes
            .get("tpu-watchdog/log")
            .and_then(|text| tpu_watchdog::resource::attributes::last_lines(text)),
    };
    node.attributes.iter().map(report).collect()
}
