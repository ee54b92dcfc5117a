//! A small fleet in virtual time: the driver over a real store and the simulated cloud, interrupted only
//! where a story says so.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;
use object_store::ObjectStoreExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tpu_watchdog::checkpoint::lister::survey_in;
use tpu_watchdog::config;
use tpu_watchdog::driver::Driver;
use tpu_watchdog::google::answers::{deletion, operation_page};
use tpu_watchdog::google::classify::{http_failure, operation_failure};
use tpu_watchdog::google::origin::Origin;
use tpu_watchdog::launch;
use tpu_watchdog::model::action::{Action, CallOutcome, Input, Look, Reading};
use tpu_watchdog::model::beacon::WorkerReport;
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::lookup::Deletion;
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::operation::OperationState;
use tpu_watchdog::model::settings::Settings;
use tpu_watchdog::resource::attributes::parse_guest_attributes;
use tpu_watchdog::simulator::api;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::scenario::Scenario;
use tpu_watchdog::simulator::things::{Node, Workload};
use tpu_watchdog::simulator::trouble::{Event, Trouble};
use tpu_watchdog::simulator::wire::Request;
use tpu_watchdog::store::Store;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::{process, requests};

/// Milliseconds since the story began.
pub type Ms = i64;

pub const fn minutes(count: i64) -> Ms {
    count * 60_000
}

/// One mutation, as it arrived.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sent {
    pub at: Ms,
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub body: Option<Value>,
}

impl Sent {
    /// What it does; the supervisor's own text aside, which each version brings along.
    pub fn brief(&self) -> String {
        let body = self.body.clone().map(|mut body| {
            body["metadata"].as_object_mut().map(|metadata| metadata.remove("startup-script"));
            body.to_string()
        });
        format!("{} {} {:?} {}", self.method, self.path, self.query, body.unwrap_or_default())
    }
}

/// The fate of a call whose answer is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    NeverArrives,
    Arrives,
    /// So long after it was given up.
    ArrivesLate(Ms),
}

pub enum Task {
    Process(process::Task),
    Arrives(Sent),
    Exit(&'static str, &'static str, &'static str),
}

/// Waits for something that never really waits.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// The wall clock.
pub fn at(ms: Ms) -> Timestamp {
    // Noon of a Monday.
    Timestamp::from_millisecond(1_780_315_200_000 + ms).unwrap()
}

fn settings(config: &str) -> Settings {
    let mut settings =
        config::parse(std::path::Path::new("watchdog.toml"), config, &|_| None).unwrap().settings;
    for slot in settings.slots.values_mut() {
        slot.supervisor = slot.job.as_ref().map(|job| launch::supervisor(&slot.name, job));
    }
    // The store's own id counts.
    settings.owner.clear();
    settings
}

pub struct World {
    pub cloud: Cloud,
    pub sent: Vec<Sent>,
    pub recovered: BTreeSet<String>,
    pub log: Vec<String>,
    pub settings: Settings,
    /// The process dies at one of the next mutations: at which, and whether it has arrived by then.
    pub dies_at: Option<(usize, bool)>,
    /// The answer to the next call is lost.
    pub loses: Option<Loss>,
    /// Nodes and requests that lists lack, although they are there.
    pub hidden: BTreeSet<String>,
    /// Guest attributes can't be read.
    pub deaf: bool,
    /// Regions whose training jobs can't be listed.
    pub unlisted: BTreeSet<String>,
    /// The buckets of checkpoints can't be listed.
    pub unreadable: bool,
    pub store: Box<dyn Store>,
    pub driver: Option<Box<Driver>>,
    /// How many processes have begun, and how many commands were given.
    pub starts: u32,
    pub commands: u32,
    /// When the driver is woken next.
    pub wakes_at: Option<Ms>,
    pub now: Ms,
    pub agenda: BTreeMap<(Ms, u64), Task>,
    counter: u64,
}

impl World {
    pub fn new(config: &str, scenario: &str, store: Box<dyn Store>) -> World {
        let cloud = Scenario::parse(scenario).unwrap().build(at(0), 1.0);
        World {
            cloud,
            sent: Vec::new(),
            recovered: BTreeSet::new(),
            log: Vec::new(),
            settings: settings(config),
            dies_at: None,
            loses: None,
            hidden: BTreeSet::new(),
            deaf: false,
            unlisted: BTreeSet::new(),
            unreadable: false,
            store,
            driver: None,
            starts: 0,
            commands: 0,
            wakes_at: None,
            now: 0,
            agenda: BTreeMap::new(),
            counter: 0,
        }
    }

    /// The same in memory; the node `a` has a job that makes a step a second and saves in `gs://bucket/a`.
    pub fn training(config: &str, scenario: &str) -> World {
        let mut world = World::new(config, scenario, Box::new(SqliteStore::in_memory().unwrap()));
        world.trains("a", 120);
        world
    }

    /// A node of this name has such a job, which saves after so many steps.
    pub fn trains(&mut self, node: &str, every: u64) {
        let (checkpoint, step) = ("gs://bucket/a".into(), std::time::Duration::from_secs(1));
        let job = Workload { checkpoint, step, every, at_step: 0 };
        self.cloud.workloads.entry(node.into()).or_insert(job);
    }

    /// These nodes get on with one job while all of them are there and at work, and save after so many steps.
    pub fn trains_whole(&mut self, names: &[String], every: u64) {
        let works = |((_, name), node): &(&(String, String), &Node)| {
            names.contains(name) && node.state == "READY" && !node.run.stopped
        };
        if self.cloud.nodes.iter().filter(works).count() < names.len() {
            return self.cloud.workloads.clear();
        }
        names.iter().for_each(|name| self.trains(name, every));
    }

    /// The newest complete checkpoint of the job that saves in `gs://bucket/a`.
    pub fn newest_checkpoint(&self) -> Option<u64> {
        let step = |name: &String| {
            name.strip_prefix("bucket/a/")?.strip_suffix("/commit_success.txt")?.parse().ok()
        };
        self.cloud.objects.keys().filter_map(step).max()
    }

    /// The supervisor of a slot's worker 0 reports an exit.
    pub fn exit_at(&mut self, at: Ms, slot: &'static str, zone: &'static str, text: &'static str) {
        self.at(at, Task::Exit(slot, zone, text));
    }

    /// The phase of a slot's recovery and what is decided about it, for a message.
    pub fn state(&self, slot: &str) -> String {
        let record = &self.fleet().slots[slot];
        let decision = self.fleet().slots[slot].decision.as_ref();
        format!(
            "{:?} {:?} {decision:?}",
            record.recovery.as_ref().map(|r| r.phase()),
            record.verdict
        )
    }

    /// The cloud as it was left by what arrived until then.
    pub fn replay(&mut self, before: &[Sent], until: Ms) {
        for sent in before {
            self.run_scripted(sent.at);
            self.cloud.advance(at(sent.at));
            let (status, answer) =
                self.call(&sent.method, &sent.path, &sent.query, sent.body.clone());
            assert_eq!(status, 200, "{} {answer}", sent.brief());
        }
        self.run_scripted(until);
        self.now = until;
    }

    /// Plays the agenda up to the moment at which a watchdog begins.
    fn run_scripted(&mut self, until: Ms) {
        while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= until) {
            let ((at, _), task) = entry.remove_entry();
            self.now = at;
            self.happen(task);
        }
    }

    /// The id of the store, which owns.
    pub fn owner(&self) -> &str {
        self.store.owner()
    }

    pub fn run(&mut self, until: Ms) {
        while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 < until) {
            let ((at, _), task) = entry.remove_entry();
            self.now = at;
            self.happen(task);
        }
        self.now = until;
    }

    pub fn at(&mut self, at: Ms, task: Task) {
        self.counter += 1;
        self.agenda.insert((at, self.counter), task);
    }

    fn happen(&mut self, task: Task) {
        self.cloud.advance(at(self.now));
        match task {
            Task::Process(task) => self.happens_to_process(task),
            Task::Arrives(sent) => {
                self.call(&sent.method, &sent.path, &sent.query, sent.body.clone());
                self.sent.push(sent);
            }
            Task::Exit(slot, zone, text) => {
                let node = self.cloud.nodes.get_mut(&(zone.into(), slot.into())).unwrap();
                let (uid, boots, generation) =
                    (node.uid, node.run.boots, node.run.order.generation);
                let exit = format!("boot-{uid}-0-{boots} {generation} 1 {text}");
                node.attributes[0].insert("tpu-watchdog/exit".into(), exit);
            }
        }
    }

    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        query: &BTreeMap<String, String>,
        body: Option<Value>,
    ) -> (u16, Value) {
        api::handle(&mut self.cloud, &Request { method, path, query, body })
    }

    pub fn list(&mut self, zone: &str) -> Result<(Vec<Arc<NodeView>>, Vec<String>), Failure> {
        let (_, mut page) = self.call(
            "GET",
            &format!("v2/projects/p/locations/{zone}/nodes"),
            &BTreeMap::new(),
            None,
        );
        if let Some(zones) = page.get("unreachable") {
            return Err(Failure::new(FailureClass::Transient, format!("{zones} is unreachable")));
        }
        let nodes = page.get_mut("nodes").map(Value::take).unwrap_or_default();
        let nodes = nodes.as_array().cloned().unwrap_or_default();
        let views = nodes.into_iter().map(|node| Arc::new(NodeView::parse(node).unwrap()));
        Ok((views.filter(|view| !self.hidden.contains(&view.node)).collect(), Vec::new()))
    }

    pub fn get(&mut self, zone: &str, node: &str) -> Reading {
        let path = format!("v2/projects/p/locations/{zone}/nodes/{node}");
        match self.call("GET", &path, &BTreeMap::new(), None) {
            (200, node) => Reading::Node(Arc::new(NodeView::parse(node).unwrap())),
            _ => Reading::Absent,
        }
    }

    pub fn look(&mut self, look: Look) -> Input {
        let began = at(self.now);
        let none = BTreeMap::new();
        match look {
            Look::Stray { zone, name, filling } => {
                let reading = self.filled(&zone, (&name, &[]), &filling);
                Input::StrayGot { zone, name, began, reading }
            }
            Look::Node { slot, zone, filling, nodes } => {
                let reading = self.filled(&zone, (&slot, &nodes), &filling);
                Input::Got { slot, began, reading }
            }
            Look::Operation { slot, operation, verb, spot, .. } => {
                let (status, answer) = self.call("GET", &format!("v2/{operation}"), &none, None);
                let of = Origin::operation(verb, spot);
                let result = match (status, answer["done"].as_bool(), answer.get("error")) {
                    (200, Some(true), Some(error)) => {
                        Ok(OperationState::Failed(operation_failure(of, error)))
                    }
                    (200, Some(true), None) => Ok(OperationState::Succeeded),
                    (200, ..) => Ok(OperationState::Running),
                    _ => Err(Failure::new(FailureClass::NotFound, "no such operation")),
                };
                Input::Operated { slot, operation, result }
            }
            Look::Attributes { slot, zone, nodes, of, workers, .. } => {
                let each = workers / nodes.len();
                let reports = nodes.iter().map(|node| self.reports(&zone, node, each));
                let result = reports.collect::<Result<Vec<_>, _>>().map(|all| all.concat());
                Input::Attributes { slot, of, began, result }
            }
            Look::CreateCheck { slot, .. } => {
                Input::CreateChecked { slot, began, found: Default::default() }
            }
            Look::Deletions { slot, zone, targets, since } => {
                let result = Ok(self.deletions(&zone, &targets, since));
                Input::Deletions { slot, began, result }
            }
            Look::Checkpoints { slot, location, set_aside } => {
                let bucket = InMemory::new();
                let result = wait(async {
                    for name in
                        self.cloud.objects.keys().filter_map(|name| name.strip_prefix("bucket/"))
                    {
                        bucket.put(&Path::from(name), "x".into()).await.unwrap();
                    }
                    survey_in(&bucket, &Path::from(slot.as_str()), &location, set_aside).await
                });
                let failure = || Failure::new(FailureClass::Transient, "HTTP 503");
                let result = if self.unreadable { Err(failure()) } else { result };
                Input::Surveyed { slot, began, location: location.uri, result }
            }
        }
    }

    /// A mutation arrives; none where the process dies at it.
    pub fn carry_out(&mut self, action: &Action) -> Option<CallOutcome> {
        let mut query = BTreeMap::new();
        let (method, path, body) = match action {
            Action::Delete { slot, zone, filling: Filling::Node, .. } => {
                ("DELETE", format!("v2/projects/p/locations/{zone}/nodes/{slot}"), None)
            }
            Action::Create { slot, zone, body, filling: Filling::Node, .. } => {
                query.insert("nodeId".to_owned(), slot.clone());
                ("POST", format!("v2/projects/p/locations/{zone}/nodes"), Some(body.clone()))
            }
            Action::Create { zone, body, filling: Filling::Training(of), .. } => {
                return self.submits(of, zone, body);
            }
            Action::Delete { zone, incarnation, filling: Filling::Training(of), .. } => {
                return self.cancels(of.kind, zone, incarnation);
            }
            of_request => requests::call(of_request, &mut query),
        };
        let of = body.as_ref().map_or(Origin::DELETE, Origin::create);
        self.arrives(of, Sent { at: self.now, method: method.into(), path, query, body })
    }

    /// A call arrives, unless the process dies before it does; it may die before the answer.
    pub fn arrives(&mut self, of: Origin, sent: Sent) -> Option<CallOutcome> {
        let dies = match &mut self.dies_at {
            Some((0, arrives)) => Some(*arrives),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        if dies == Some(false) {
            return None;
        }
        let lost = CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer"));
        let loses = self.loses.take();
        match loses {
            Some(Loss::NeverArrives) => return Some(lost),
            Some(Loss::ArrivesLate(after)) => {
                self.at(self.now + after, Task::Arrives(sent));
                return Some(lost);
            }
            Some(Loss::Arrives) | None => {}
        }
        let (status, answer) = self.call(&sent.method, &sent.path, &sent.query, sent.body.clone());
        self.sent.push(sent);
        let name = answer["name"].as_str().unwrap_or_default().to_owned();
        let outcome = match status {
            _ if loses.is_some() => lost,
            200 => CallOutcome::Accepted(name),
            _ => CallOutcome::Refused(http_failure(of, status, answer.to_string().as_bytes())),
        };
        Some(outcome).filter(|_| dies.is_none())
    }
}

impl World {
    fn deletions(&mut self, zone: &str, targets: &[String], since: Timestamp) -> Vec<Deletion> {
        let path = format!("v2/projects/p/locations/{zone}/operations");
        let (_, page) = self.call("GET", &path, &BTreeMap::new(), None);
        let (operations, _) = operation_page(&page).unwrap();
        operations.iter().filter_map(|one| deletion(one, targets, since)).collect()
    }

    fn reports(
        &mut self,
        zone: &str,
        node: &str,
        workers: usize,
    ) -> Result<Vec<WorkerReport>, Failure> {
        if self.deaf {
            return Err(Failure::new(FailureClass::Permission, "HTTP 403"));
        }
        let path = format!("v2/projects/p/locations/{zone}/nodes/{node}:getGuestAttributes");
        let body = serde_json::json!({"queryPath": "tpu-watchdog/"});
        match self.call("POST", &path, &BTreeMap::new(), Some(body)) {
            (200, answer) => Ok(parse_guest_attributes(&answer).unwrap()),
            (404, answer) if answer.to_string().contains("Guest Attribute") => {
                Ok(vec![WorkerReport::default(); workers])
            }
            (status, answer) => {
                Err(http_failure(Origin::READ, status, answer.to_string().as_bytes()))
            }
        }
    }

    /// Time goes on.
    pub fn run_for(&mut self, ms: Ms) {
        self.run(self.now + ms);
    }

    /// Capacity is taken back.
    pub fn preempt(&mut self, zone: &str, node: &str) {
        self.trouble(zone, node, Trouble::Preempt, None);
    }

    /// Something happens now.
    pub fn trouble(&mut self, zone: &str, node: &str, what: Trouble, lasts: Option<Ms>) {
        self.cloud.advance(at(self.now));
        let event = Event {
            at: std::time::Duration::ZERO,
            node: node.to_owned(),
            zone: zone.to_owned(),
            what,
            lasts: lasts.map(|ms| std::time::Duration::from_millis(ms.unsigned_abs())),
        };
        self.cloud.trouble(event);
    }

    /// Whether the node is there and at work.
    pub fn is_ready(&self, zone: &str, node: &str) -> bool {
        self.cloud
            .nodes
            .get(&(zone.to_owned(), node.to_owned()))
            .is_some_and(|node| node.state == "READY")
    }
}
