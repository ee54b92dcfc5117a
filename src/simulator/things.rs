//! What the simulated cloud holds: nodes and what runs on them, operations, queued resources,
//! objects; and what is going to happen to them. Plain data.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::trouble::{Event, Trouble};
use crate::model::ids::RunOrder;

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
    /// The index of its first host among those of all slices.
    pub first_host: usize,
    /// Guest attributes, one map a worker, by "namespace/key".
    pub attributes: Vec<BTreeMap<String, String>>,
    /// When a GET last showed it otherwise than READY and HEALTHY, or its guest attributes that
    /// nothing runs on it.
    pub shown_sick: Option<Timestamp>,
    /// The job on it.
    pub run: Run,
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

/// A job as a scenario describes it.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Where checkpoints go: gs://bucket/path.
    pub checkpoint: String,
    /// Time of one step.
    pub step: Duration,
    /// Steps between two checkpoints.
    pub every: u64,
    /// Where an adopted node's job stands at the start.
    pub at_step: u64,
}

/// The job on one node.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// No job runs on this incarnation now.
    pub stopped: bool,
    /// Its end is announced to its hosts (`instance/preempted`).
    pub announced: bool,
    /// The job fails and its supervisor gives up.
    pub failing: bool,
    /// It has crashed after a long run, and waits for a newer order.
    pub crashed: bool,
    /// The job has ended well.
    pub ended: bool,
    /// Its hosts came up without an index each of their own, so that nothing starts; whether a reboot
    /// mends that.
    pub ungathered: Option<bool>,
    /// Nothing starts, as the run order says.
    pub held: bool,
    /// The startup script is the watchdog's supervisor.
    pub supervised: bool,
    /// The order that the supervisor follows.
    pub order: RunOrder,
    /// Boots so far.
    pub boots: u32,
    /// Heartbeats so far.
    pub beats: u64,
    /// Whole steps done.
    pub step: u64,
    /// Part of the next step.
    pub part: Duration,
}

impl Run {
    /// Its hosts are up, and the job has not started on them.
    pub fn is_before_a_run(&self) -> bool {
        self.ungathered.is_some() || self.held
    }

    /// A newer order ends the run and starts the next one from its checkpoint.
    pub(super) fn follow(&mut self, order: RunOrder) {
        (self.ended, self.failing, self.crashed) = (false, false, false);
        (self.step, self.part) = (order.step.unwrap_or(0), Duration::ZERO);
        self.held = order.wait;
        self.order = order;
    }

    /// The job ends in one of three ways.
    pub(super) fn end(&mut self, how: Trouble) {
        if self.failing || self.crashed || self.ended {
            return;
        }
        match how {
            Trouble::JobFails => self.failing = true,
            Trouble::JobCrashes => self.crashed = true,
            _ => self.ended = true,
        }
    }
}

/// One queued resource.
#[derive(Debug, Clone)]
pub struct Queued {
    pub(super) name: String,
    /// Tells it from a later one of its name.
    pub(super) number: u64,
    /// As it was created.
    pub body: Map<String, Value>,
    /// `state.state`.
    pub state: &'static str,
    /// `state.stateInitiator` is USER.
    pub by_user: bool,
    /// `state.failedData.error`, or what it will be.
    pub error: Option<Value>,
    /// When it was created.
    pub created: Timestamp,
    /// It fails when it still waits by then.
    pub(super) valid_until: Option<Timestamp>,
    pub(super) project: String,
    /// Node id and body.
    pub(super) nodes: Vec<(String, Map<String, Value>)>,
}

/// One object.
#[derive(Debug, Clone)]
pub struct Object {
    /// Bytes.
    pub size: u64,
    /// Last update.
    pub updated: Timestamp,
    /// Content; empty for what a simulated job wrote.
    pub body: Vec<u8>,
    /// New with each write.
    pub generation: u64,
}

impl Object {
    /// One whose content is never read.
    pub fn sized(size: u64, updated: Timestamp) -> Object {
        Object { size, updated, body: Vec::new(), generation: 1 }
    }

    pub(super) fn etag(&self) -> String {
        format!("\"{:x}\"", self.generation)
    }
}

/// The kinds of job of managed training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// `customJobs`.
    Custom,
    /// `hyperparameterTuningJobs`.
    Tuning,
    /// `jobs` of AI Platform Training, whose ids are the user's and unique in the project.
    Legacy,
}

/// Where such a job is kept: its region (empty for legacy ones) and id.
pub type JobKey = (JobKind, String, String);

/// One job of managed training.
#[derive(Debug, Clone)]
pub struct Job {
    /// As it was created.
    pub body: Map<String, Value>,
    /// In the words of Vertex AI, without `JOB_STATE_`.
    pub state: &'static str,
    /// When it was created.
    pub created: Timestamp,
    /// When it first ran.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Code and words of its end, once they show.
    pub error: Option<(i64, String)>,
}

/// An event that is due later.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Created { operation: String, zone: String, node: String, uid: u64 },
    Refused { operation: String, zone: String, node: String, uid: u64, error: Value },
    Failed { operation: String, error: Value },
    Deleted { operation: String, zone: String, node: String, uid: u64 },
    Changed { operation: String, zone: String, node: String, uid: u64, state: &'static str },
    Done { operation: String },
    Booted { zone: String, node: String, uid: u64 },
    Beat { zone: String, node: String, uid: u64 },
    Healed { zone: String, node: String, uid: u64, event: bool },
    Queue { zone: String, id: String, number: u64 },
    Dequeued { operation: String, zone: String, id: String },
    Training { key: JobKey },
    Scenario(Box<Event>),
}
