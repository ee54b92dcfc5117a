//! The state of the simulated cloud, its clock and its agenda. No clock but the one it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::nodes::Nodes;
use super::shape;
use super::things::{
    Happening, Job, JobKey, Node, Object, Operation, Queued, Run, Service, Timing, Workload,
};
use super::trouble::Event;
use crate::model::time::after;

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
    /// Jobs of managed training.
    pub training: BTreeMap<JobKey, Job>,
    /// How their service behaves.
    pub service: Service,
    /// Objects by "bucket/key".
    pub objects: BTreeMap<String, Object>,
    /// The workload of a node of this id, once it has booted.
    pub workloads: BTreeMap<String, Workload>,
    /// Creates in a zone end in this error until the time given.
    pub refusals: BTreeMap<String, (Timestamp, Value)>,
    /// Synchronous refusals (quota): the message, until the time given.
    pub quota: BTreeMap<String, (Timestamp, String)>,
    /// The most nodes that the quota of a zone allows.
    pub limits: BTreeMap<String, usize>,
    /// Zones whose queue is closed to the project, until the time given.
    pub closed: BTreeMap<String, Timestamp>,
    /// Zones that listings report as unreachable, until the time given.
    pub unreachable: BTreeMap<String, Timestamp>,
    /// The next node of this id never boots.
    pub dead_on_arrival: BTreeSet<String>,
    /// The hosts of the next node of this id come up without an index each; whether a reboot mends that.
    pub ungathered: BTreeMap<String, bool>,
    /// Where set, hosts see the run order that they saw first, by the node's uid, whatever it becomes.
    pub first_orders: Option<BTreeMap<u64, String>>,
    /// The next create of this id ends in an error and leaves its node, which becomes READY after
    /// the time given, or never.
    pub left_behind: BTreeMap<String, Option<Duration>>,
    /// Permissions that the caller lacks; all others are granted.
    pub denied: BTreeSet<String>,
    /// The regions of buckets that have one; others are multi-regional.
    pub bucket_regions: BTreeMap<String, String>,
    /// The quotas of the Cloud TPU API, as the Cloud Quotas API lists them.
    pub quota_infos: Vec<Value>,
    /// Accelerator types and runtime versions that a zone does not offer, by zone and name.
    pub withdrawn: BTreeSet<(String, String)>,
    /// Requests by id, for v2alpha1: a repeated one gets the same operation.
    pub requests: BTreeMap<String, String>,
    /// The effects of the scenario's events that are not told yet.
    pub struck: Vec<String>,
    /// Nodes created so far, by id: what tests count.
    pub creations: BTreeMap<String, u32>,
    /// Deletes of nodes that were READY, HEALTHY and at work: what a watchdog must never do.
    pub harmed: u32,
    /// Of these, the nodes that no read within the 5 s before had shown sick. A node that heals in
    /// between is not protected: the API deletes by name, whatever it has become.
    pub harmed_unseen: u32,
    /// The internal address of every host, where several slices are processes of one machine; else each
    /// host has a loopback address of its own.
    pub host_address: Option<String>,
    /// The most nodes that one page holds.
    pub page_max: Option<usize>,
    pub(super) agenda: BTreeMap<(Timestamp, u64), Happening>,
    counter: u64,
}

impl Cloud {
    /// The zones that listings do not reach now.
    pub fn unreachable_zones(&self) -> impl Iterator<Item = &String> {
        let now = self.now();
        self.unreachable.iter().filter(move |(_, until)| **until > now).map(|(zone, _)| zone)
    }

    /// An empty cloud.
    pub fn new(timing: Timing) -> Self {
        Cloud { timing, ..Cloud::default() }
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
                first_host: 0,
                attributes: vec![BTreeMap::new(); workers],
                run: Run::default(),
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
}
