//! What the simulated cloud holds: nodes and what runs on them, operations, queued resources,
//! objects; and what is going to happen to them. Plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::trouble::Event;
use crate::model::ids::RunOrder;
use crate::model::job_phase::JobPhase;
pub use crate::model::training::JobKind;

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

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With 0, its work done.
    Well,
    /// For good: its supervisor has used up the restarts.
    Failed,
    /// After a long run: the next one takes a newer order.
    Crashed,
}

/// Why nothing starts on hosts that are up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// The startup script fails.
    SetUp,
    /// Another process holds the chips.
    Chips,
}

/// The job on one node.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// No job runs on this incarnation now.
    pub stopped: bool,
    /// Its end is announced to its hosts (`instance/preempted`).
    pub announced: bool,
    /// How its last run ended, until another one starts.
    pub exit: Option<Exit>,
    /// Why nothing starts, though its hosts are up.
    pub hindrance: Option<Hindrance>,
    /// Its hosts came up without an index each of their own, so that nothing starts; whether a reboot
    /// mends that.
    pub ungathered: Option<bool>,
    /// Nothing starts, as the run order says.
    pub held: bool,
    /// It makes no step, although its hosts beat.
    pub hangs: bool,
    /// Starts without an order since the last one …
    pub restarts: u32,
    /// … and how long it has waited for one.
    pub waited: Duration,
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
    /// The present run has made a step.
    pub stepped: bool,
}

impl Run {
    /// Where the job stands, by the supervisor's table of phases.
    pub fn phase(&self) -> JobPhase {
        match (self.hindrance, self.exit) {
            _ if self.ungathered.is_some() || self.held => JobPhase::Waiting,
            (_, Some(Exit::Well)) => JobPhase::Done,
            (_, Some(Exit::Failed)) => JobPhase::Failed,
            (_, Some(Exit::Crashed)) => JobPhase::Exited,
            (Some(Hindrance::SetUp), None) => JobPhase::Setup,
            (Some(Hindrance::Chips), None) => JobPhase::Chips,
            (None, None) if self.announced => JobPhase::Saving,
            (None, None) if self.stepped => JobPhase::Running,
            (None, None) => JobPhase::Compile,
        }
    }

    /// The words of a heartbeat on `hosts` hosts, as the supervisor has them.
    pub(super) fn words(&self, hosts: usize) -> &'static str {
        match self.phase() {
            JobPhase::Waiting if self.ungathered.is_none() => "waiting: the run order says wait",
            JobPhase::Waiting if hosts == 1 => {
                "setup_failed: this host has no agent-worker-number yet"
            }
            JobPhase::Waiting => "roll_call: two hosts call themselves worker 0",
            JobPhase::Setup => {
                "setup_failed code=1 tries=3: the startup script is tried again in 60 s"
            }
            JobPhase::Chips => {
                "chips_busy: process 4711 of user ada has a chip open: python3 other.py"
            }
            JobPhase::Saving => "saving",
            JobPhase::Done => "done",
            JobPhase::Failed => "failed",
            JobPhase::Compile | JobPhase::Running | JobPhase::Exited => "running",
        }
    }

    /// A newer order ends the run and starts the next one from its checkpoint.
    pub(super) fn follow(&mut self, order: RunOrder) {
        (self.exit, self.stepped) = (None, false);
        (self.restarts, self.waited) = (0, Duration::ZERO);
        (self.step, self.part) = (order.step.unwrap_or(0), Duration::ZERO);
        self.held = order.wait;
        self.order = order;
    }

    /// Its last run has ended, and no other one follows by itself.
    pub fn has_ended(&self, how: Exit) -> bool {
        self.exit == Some(how)
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
    /// It is not filled before then.
    pub valid_after: Option<Timestamp>,
    /// It fails when it still waits by then.
    pub(super) valid_until: Option<Timestamp>,
    /// Its capacity, which has a time of its own (flex-start), is taken back then.
    pub(super) ends_at: Option<Timestamp>,
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
    /// How often the service has begun it once more.
    pub restarts: u32,
    /// Why its last attempt ended: not shown before it has ended for good, and then a while later.
    pub withheld: Option<(i64, String)>,
    /// Code and words of its end, once they show.
    pub error: Option<(i64, String)>,
}

/// How the training service behaves: nothing fails, and nothing is short, unless it says so.
#[derive(Debug, Default)]
pub struct Service {
    /// Each attempt of the jobs of this display name, or legacy id, ends so.
    pub failing: BTreeMap<String, (i64, String)>,
    /// Regions without capacity.
    pub full: BTreeSet<String>,
    /// The most jobs that may live in a region.
    pub quota: BTreeMap<String, usize>,
    /// Lists lack a job for so long after its create.
    pub lag: Duration,
}

impl Service {
    /// Jobs of this name run again from their next attempt on.
    pub fn mends(&mut self, name: &str) {
        self.failing.remove(name);
    }
}

/// An event that is due later.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Created {
        operation: String,
        zone: String,
        node: String,
        uid: u64,
    },
    Refused {
        operation: String,
        zone: String,
        node: String,
        uid: u64,
        error: Value,
    },
    Failed {
        operation: String,
        error: Value,
    },
    Deleted {
        operation: String,
        zone: String,
        node: String,
        uid: u64,
    },
    Changed {
        operation: String,
        zone: String,
        node: String,
        uid: u64,
        state: &'static str,
    },
    Done {
        operation: String,
    },
    Booted {
        zone: String,
        node: String,
        uid: u64,
    },
    /// The job may start again on its hosts.
    Unhindered {
        zone: String,
        node: String,
        uid: u64,
    },
    Beat {
        zone: String,
        node: String,
        uid: u64,
    },
    Healed {
        zone: String,
        node: String,
        uid: u64,
        event: bool,
    },
    Queue {
        zone: String,
        id: String,
        number: u64,
    },
    Dequeued {
        operation: String,
        zone: String,
        id: String,
    },
    Training {
        key: JobKey,
    },
    Scenario(Box<Event>),
}
