//! What the user wants, validated: the typed values that the config room produces and decisions
//! read.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::condition::Condition;
use super::filling::Filling;
use super::quiet::QuietHours;

/// The whole of what decisions need to know about the user's wishes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The Google Cloud project.
    pub project: String,
    /// Who watches: the store's own id.
    pub owner: String,
    /// `owner` of the config: a label for people, which former versions wrote as the owner.
    pub label: Option<String>,
    /// The process that decides, for the audit.
    pub decided_by: String,
    /// Of the config's text and the scripts that it names: tells whether a process has loaded it.
    pub digest: String,
    /// Decide and say, but call nothing that changes anything.
    pub dry_run: bool,
    /// Whether alpha-only fields and request ids are used (`api.version = "v2alpha1"`).
    pub alpha: bool,
    /// How often health is read.
    pub poll: PollSettings,
    /// Strays of ours that can't run are removed (`orphans = "dead"`).
    pub removes_dead: bool,
    /// At most this many judged slots in recovery at once.
    pub max_unavailable: Share,
    /// At most this many judged recreates in a sliding hour.
    pub max_judged_recreates_per_hour: usize,
    /// When too many slots look sick at once.
    pub storm: Storm,
    /// The desired slots, by name.
    pub slots: BTreeMap<String, SlotSettings>,
}

/// `[poll]`.
#[derive(Debug, Clone, PartialEq)]
pub struct PollSettings {
    /// Between the starts of two polls.
    pub every: Duration,
    /// Between two looks at a running operation.
    pub operations: Duration,
    /// One attempt of one API call.
    pub timeout: Duration,
    /// The most that one gap between reads adds to a suspicion.
    pub max_gap: Duration,
}

/// A count, or a share of the desired slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Share {
    /// Percent of the desired slots, rounded down.
    Percent(f64),
    /// An absolute number.
    Count(usize),
}

impl Share {
    /// The number for a fleet of `total` slots: at least one.
    pub fn of(self, total: usize) -> usize {
        match self {
            // Rounding down a non-negative share of a fleet's size; truncation is the intent.
            Share::Percent(percent) => ((total as f64 * percent / 100.0).floor() as usize).max(1),
            Share::Count(count) => count.max(1),
        }
    }
}

/// One `[[tpu]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotSettings {
    /// Node id, and the slot's name.
    pub name: String,
    /// Zones in the order in which they are tried; never empty.
    pub zones: Vec<String>,
    /// The thing that fills it.
    pub filling: Filling,
    /// The config's settings for the node.
    pub create: Overlay,
    /// The job, if there is one.
    pub job: Option<JobSettings>,
    /// Policy, already merged from `[policy]` and `[tpu.policy]`.
    pub policy: Policy,
    /// The rendered supervisor, when there is a job to supervise.
    pub supervisor: Option<String>,
}

/// `[tpu.job]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSettings {
    /// The command, if any; without one the startup script is the job.
    pub command: Option<String>,
    /// Where checkpoints are written.
    pub checkpoint: Option<CheckpointSettings>,
    /// The path under which the job sees `checkpoint`, where that is mounted.
    pub checkpoint_as: Option<String>,
    /// The user that runs the command; root when empty.
    pub user: String,
    /// The folder it runs in; the user's home when empty.
    pub dir: String,
    /// The container's image that the command is run in.
    pub image: Option<String>,
    /// Its code, fetched into `dir` before each run: `gs://bucket/archive.tar.gz#GENERATION`, or the URL
    /// of a git repository with `#` and a commit.
    pub code: Option<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Who picks the checkpoint of a start, where the config says it. Otherwise: the job, unless its
    /// command mentions `CHECKPOINT_PATH` or `CHECKPOINT_STEP`.
    pub resume: Option<Resume>,
    /// How the job is asked for a checkpoint when the end of its machine is announced: a signal, or a
    /// command.
    pub on_notice: Option<String>,
    /// A file of variables on the host.
    pub env_file: Option<String>,
    /// Variables that the host reads from Secret Manager, each by the resource name of a version.
    pub secrets: BTreeMap<String, String>,
    /// Where the last lines of failed runs are written as well: gs://, without a slash at the end.
    pub logs: Option<String>,
    /// From SIGTERM to the end of what is left of a run.
    pub stop_grace: Duration,
    /// Restarts by the supervisor within one generation.
    pub restarts_per_run: u32,
    /// Runs in a row without a new step after which an operator must look (S16).
    pub no_progress: u32,
    /// Codes with which a run may end again and again without being the program's fault.
    pub transient_exit_codes: Vec<i64>,
}

impl SlotSettings {
    /// The zone in which it is created next: the one in which it lives, unless the config names others.
    pub fn next_zone<'z>(&'z self, present: &'z String) -> &'z String {
        let moved = !self.zones.contains(present);
        self.zones.first().filter(|_| moved).unwrap_or(present)
    }

    /// S20: the config says that the job finds its own newest checkpoint.
    pub fn finds_its_own(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.resume == Some(Resume::Framework))
    }
}

impl JobSettings {
    /// The key under which a success is journaled: a changed command or location is another job.
    pub fn key(&self) -> String {
        let uri = self.checkpoint.as_ref().map_or("", |c| c.uri.as_str());
        format!("{}\n{uri}", self.command.as_deref().unwrap_or_default())
    }
}

/// `resume`: who picks the checkpoint of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// The job finds its own newest one: neither an order nor a create waits for a listing.
    Framework,
    /// The run order names it.
    Watchdog,
}

impl Resume {
    /// As the config and the supervisor spell it.
    pub fn name(self) -> &'static str {
        match self {
            Resume::Framework => "framework",
            Resume::Watchdog => "watchdog",
        }
    }
}

/// `checkpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSettings {
    /// gs://, s3:// or file://, without a slash at the end.
    pub uri: String,
    /// The layout, when the user names it; otherwise it is learned from the files.
    pub format: Option<CheckpointFormat>,
    /// How Orbax finalises a step there.
    #[serde(default)]
    pub orbax_mode: OrbaxMode,
}

impl CheckpointSettings {
    /// Whether checkpoints are looked for at all.
    pub fn is_listed(&self) -> bool {
        self.format != Some(CheckpointFormat::Unlisted)
    }
}

/// `orbax_mode`: see Orbax's `atomicity.py`, and its `allow_legacy_atomic_rename`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrbaxMode {
    /// Commit files on gs://; elsewhere a step is whole by its name where no step has one.
    #[default]
    Auto,
    /// A step is whole by its name, also on gs://, as written through gcsfuse before Orbax 0.12.3.
    Rename,
    /// Only a step with its commit file is whole.
    CommitFile,
}

/// Checkpoint layouts that are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointFormat {
    /// Orbax and everything on it (MaxText among them).
    Orbax,
    /// The Hugging Face Trainer.
    HuggingFace,
    /// `format = "none"`: nothing is looked for, every run begins without a checkpoint.
    #[serde(rename = "none")]
    Unlisted,
}

/// The fields that the config sets on a node; all others are learned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overlay {
    /// Top-level node fields that replace the learned ones, by their API name. `Null` removes.
    pub fields: BTreeMap<String, Value>,
    /// Labels, merged per key; `None` removes.
    pub labels: BTreeMap<String, Option<String>>,
    /// Metadata, merged per key; `None` removes.
    pub metadata: BTreeMap<String, Option<String>>,
    /// The user's startup script from the config, in place of the learned one.
    pub startup_script: Option<String>,
}

/// `[policy]` as it applies to one slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Successful sick reads that a judgement needs.
    pub confirmations: u32,
    /// How old the last successful read may be when acting.
    pub max_age: Duration,
    /// Graces a condition.
    pub grace: Grace,
    /// This long healthy clears suspicion.
    pub heal: Duration,
    /// The policy for a slot whose node is missing.
    pub when_missing: WhenMissing,
    /// Whether a TPU of ours outlives its job's success.
    pub on_success: OnSuccess,
    /// Budgets of recoveries.
    pub attempts: AttemptsPolicy,
    /// First wait after a refused create.
    pub backoff_first: Duration,
    /// Longest wait between creates.
    pub backoff_max: Duration,
    /// Least and longest time between two creates that probe a pool without capacity.
    pub stock_out: (Duration, Duration),
    /// Who is created first when capacity or creates are short: the higher one.
    pub priority: i64,
    /// A judged TPU waits until a create can follow (S20); else a doubt is told alone.
    pub create_check: bool,
    /// When judged slots are left alone.
    pub quiet_hours: Vec<QuietHours>,
}

/// `when_missing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenMissing {
    /// Created again, but held after a deletion that was watched and is not ours.
    Auto,
    /// Created again.
    Create,
    /// Held.
    Hold,
}

/// `on_success`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSuccess {
    /// The TPU is kept, and billed.
    Keep,
    /// It is stopped, where it has one host: what is on its disk stays.
    Stop,
    /// It is deleted.
    Delete,
}

/// `attempts`.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptsPolicy {
    /// Judged recoveries in the window.
    pub max: usize,
    /// Preemptions and terminations in the window.
    pub preemptions: usize,
    /// The sliding window.
    pub window: Duration,
    /// This long healthy resets the count.
    pub settled: Duration,
}

/// `grace`.
#[derive(Debug, Clone, PartialEq)]
pub struct Grace {
    /// CREATING, STARTING, RESTARTING, REIMAGING; none: "auto".
    pub startup: Option<Duration>,
    /// Maintenance; none: "auto".
    pub maintenance: Option<Duration>,
    /// State UNKNOWN.
    pub failed_repair: Duration,
    /// PREEMPTED.
    pub preempted: Duration,
    /// TERMINATED.
    pub terminated: Duration,
    /// Health TIMEOUT.
    pub unresponsive: Duration,
    /// Health UNHEALTHY_TENSORFLOW.
    pub runtime_unhealthy: Duration,
    /// From READY to the boot beacon; none: "auto".
    pub boot: Option<Duration>,
    /// A heartbeat that stands still.
    pub silent: Duration,
    /// Absence.
    pub missing: Duration,
    /// DELETING, not by us; also the deadline of our own deletes.
    pub deleting: Duration,
    /// Of a request that waits in the queue of one of several zones; then the next one is asked. None: its
    /// place is kept.
    pub queue: Option<Duration>,
    /// A queued resource is PROVISIONING; auto: 45 min for a type of one host, 2 h above.
    pub provision: Option<Duration>,
    /// A slice is lost while others of its multislice live; auto: 30 min, 10 min on Spot.
    pub slice: Option<Duration>,
    /// From the boot beacon to the end of the user's set-up.
    pub setup: Duration,
    /// From the start of the job to its first step.
    pub compile: Duration,
}

/// The size of a slot's TPU, on which "auto" graces depend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Hosts of all slices.
    pub hosts: usize,
    /// Reserved capacity.
    pub reserved: bool,
    /// Spot or preemptible capacity.
    pub spot: bool,
    /// Lists lack the nodes of its queued resource.
    pub not_listed: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            confirmations: 2,
            max_age: Duration::from_secs(120),
            grace: Grace::default(),
            heal: minutes(10),
            when_missing: WhenMissing::Auto,
            on_success: OnSuccess::Keep,
            attempts: AttemptsPolicy {
                max: 5,
                preemptions: 50,
                window: minutes(24 * 60),
                settled: minutes(60),
            },
            backoff_first: Duration::from_secs(30),
            backoff_max: minutes(30),
            stock_out: (minutes(2), minutes(3)),
            priority: 0,
            create_check: true,
            quiet_hours: Vec::new(),
        }
    }
}

impl Default for Grace {
    fn default() -> Self {
        Grace {
            startup: None,
            maintenance: None,
            // Google's release note for the state: it keeps a node from READY while it is diagnosed.
            // unverified: state UNKNOWN lasts for less than 15 min while Google still works on it.
            // settled by: gcloud compute tpus tpu-vm describe NODE --zone ZONE --format 'value(state)', each minute of it
            failed_repair: minutes(15),
            preempted: Duration::ZERO,
            terminated: Duration::ZERO,
            // unverified: health TIMEOUT of a node that recovers lasts for less than 10 min.
            // settled by: gcloud compute tpus tpu-vm describe NODE --zone ZONE --format 'value(health)', each minute of it
            unresponsive: minutes(10),
            // unverified: health UNHEALTHY_TENSORFLOW of a node that recovers lasts for less than 15 min.
            // settled by: gcloud compute tpus tpu-vm describe NODE --zone ZONE --format 'value(health)', each minute of it
            runtime_unhealthy: minutes(15),
            boot: None,
            silent: minutes(15),
            missing: minutes(2),
            deleting: minutes(30),
            provision: None,
            queue: None,
            slice: None,
            setup: minutes(30),
            compile: minutes(60),
        }
    }
}

impl Grace {
    /// The grace of a sick condition. `boot` and `silent` are already spent when their verdict is
    /// given.
    pub fn of(&self, condition: Condition, size: Size) -> Duration {
        match condition {
            Condition::Starting => self.startup(size),
            Condition::Maintenance => self.maintenance(size),
            Condition::FailedRepair => self.failed_repair,
            Condition::SliceLost => self.slice(size),
            // A list that lags behind a grant must not cost the capacity that was waited for.
            Condition::Preempted if size.not_listed => self.preempted.max(self.missing),
            Condition::Preempted => self.preempted,
            Condition::Terminated => self.terminated,
            Condition::Unresponsive => self.unresponsive,
            Condition::RuntimeUnhealthy => self.runtime_unhealthy,
            Condition::Missing => self.missing,
            Condition::Deleting => self.deleting,
            // Spent once before the verdict, and once more for a reboot to help.
            Condition::GangIncomplete | Condition::ChipsMissing => self.boot(size),
            _ => Duration::ZERO,
        }
    }

    /// From CREATING to READY: large slices take longer to assemble.
    pub fn startup(&self, size: Size) -> Duration {
        // unverified: a node that becomes READY does so within 45 min, a large slice within 2 h.
        // settled by: gcloud compute tpus operations list --zone ZONE, createTime and endTime of creates
        self.startup.unwrap_or(minutes(if size.hosts >= 16 { 120 } else { 45 }))
    }

    /// Google: large slices may be unavailable for up to a few hours.
    pub fn maintenance(&self, size: Size) -> Duration {
        // unverified: a maintenance event of a slice below 16 hosts is over within an hour.
        // settled by: gcloud alpha compute tpus tpu-vm simulate-maintenance-event NODE --zone ZONE --workers 0
        let long = size.reserved || size.hosts >= 16;
        self.maintenance.unwrap_or(minutes(if long { 180 } else { 60 }))
    }

    /// From PROVISIONING to ACTIVE, of a request for `slices` nodes of this type.
    pub fn provision(&self, accelerator: &str, slices: usize) -> Duration {
        // unverified: a request that becomes ACTIVE does so within 45 min of PROVISIONING, one of several hosts within 2 h.
        // settled by: gcloud compute tpus queued-resources describe ID --zone ZONE, each minute while it is PROVISIONING
        let count = accelerator.rsplit('-').next().and_then(|count| count.parse::<u32>().ok());
        // All types end in the number of cores or chips; eight of either fit one host.
        let single = slices <= 1 && count.is_some_and(|count| count <= 8);
        self.provision.unwrap_or(minutes(if single { 45 } else { 120 }))
    }

    /// Google's overview speaks of a repair that replaces the slice alone; no operator has seen it on Spot.
    pub fn slice(&self, size: Size) -> Duration {
        // unverified: Google's repair brings a lost slice of a multislice back within 30 min, if at all.
        // settled by: gcloud compute tpus tpu-vm list --zone ZONE, each minute after a slice was lost
        self.slice.unwrap_or(minutes(if size.spot { 10 } else { 30 }))
    }

    /// From READY to the boot beacon of every host.
    pub fn boot(&self, size: Size) -> Duration {
        // unverified: a READY node's hosts run the startup script within 10 min, those of large slices later.
        // settled by: tpu-watchdog history SLOT, the time from ready to booted
        let auto = match size.hosts {
            0..=8 => 10,
            9..=64 => 20,
            _ => 40,
        };
        self.boot.unwrap_or(minutes(auto))
    }
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// The storm breaker opens when this many slots were judged within its window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Storm {
    /// Percent of the desired slots …
    pub percent: f64,
    /// … and at least so many.
    pub min: usize,
    /// Within this time.
    pub window: Duration,
}

impl Default for Storm {
    fn default() -> Self {
        Storm { percent: 50.0, min: 3, window: Duration::from_secs(600) }
    }
}
