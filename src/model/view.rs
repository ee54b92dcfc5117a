//! What people and programs are shown about the slots: the same values for status, plan, metrics
//! and the JSON API.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

use super::command::Pause;
use super::condition::Condition;
use super::hold::HoldReason;
use super::job_phase::JobPhase;
use super::lease::Leader;
use super::names::named;

named! {
/// The action that is, or would be, taken on a slot.
ActionName {
    /// Nothing to do.
    None = "none",
    /// Waiting for a grace, a confirmation, an operation.
    Wait = "wait",
    /// Delete and create again.
    Recreate = "recreate",
    /// Create: there is nothing to delete.
    Create = "create",
    /// Start the job again on the same node.
    Relaunch = "relaunch",
    /// Held, with a reason.
    Hold = "hold",
    /// Held, and an operator must look.
    Escalate = "escalate",
}
}

named! {
/// The storm breaker, as it is shown.
#[derive(Default)]
BreakerState {
    /// Judged slots are recreated.
    #[default]
    Closed = "closed",
    /// No judged slot is deleted until `breaker reset`.
    Open = "open",
}
}

/// The decision about one slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What.
    pub action: ActionName,
    /// The hold's reason, when it is one.
    pub hold: Option<HoldReason>,
    /// Why, in words.
    pub reason: String,
    /// Until when it stands, where that is known.
    pub until: Option<Timestamp>,
}

impl Decision {
    /// Nothing to do.
    pub fn none(reason: impl Into<String>) -> Self {
        Decision { action: ActionName::None, hold: None, reason: reason.into(), until: None }
    }

    /// Waiting.
    pub fn wait(reason: impl Into<String>, until: Option<Timestamp>) -> Self {
        Decision { action: ActionName::Wait, hold: None, reason: reason.into(), until }
    }

    /// Acting.
    pub fn act(action: ActionName, reason: impl Into<String>) -> Self {
        Decision { action, hold: None, reason: reason.into(), until: None }
    }

    /// Holding; escalated where an operator must look.
    pub fn hold(hold: HoldReason, reason: impl Into<String>, until: Option<Timestamp>) -> Self {
        let action = if hold.needs_a_person() { ActionName::Escalate } else { ActionName::Hold };
        Decision { action, hold: Some(hold), reason: reason.into(), until }
    }
}

/// Reads a stored decision; one with a name of a later version is left out.
///
/// # Errors
/// When it is no JSON.
pub fn understood<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Decision>, D::Error> {
    let value = Option::<serde_json::Value>::deserialize(deserializer)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// The version of [`StatusDocument`]: fields are added within it, none is renamed or removed.
pub const VERSION: u32 = 1;

/// The JSON document of `plan` and `status`, of the page and of the gauges.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StatusDocument {
    /// [`VERSION`]; 0 in documents of before.
    #[serde(default)]
    pub version: u32,
    /// When every zone was last read.
    pub observed_at: Option<Timestamp>,
    /// When at least one zone was last read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_at: Option<Timestamp>,
    /// The watchdog that acts: it holds the lock, and reads the TPUs. None when none does.
    #[serde(default)]
    pub acting: Option<Acting>,
    /// The pause of every slot.
    #[serde(default)]
    pub paused: Option<PauseView>,
    /// The digest of the config by which all of this is shown.
    #[serde(default)]
    pub config: String,
    /// `dry_run`.
    #[serde(default)]
    pub dry_run: bool,
    /// `closed` or `open`.
    pub breaker: BreakerState,
    /// When it was opened, and by which event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker_why: Option<String>,
    /// The slots.
    pub tpus: Vec<SlotView>,
    /// TPUs that the watchdog asked for, and that no slot owns.
    #[serde(default)]
    pub strays: Vec<StrayView>,
}

/// One stray in that document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrayView {
    /// Name.
    pub name: String,
    /// Zone.
    pub zone: String,
    /// State as the API spelled it, where it was read.
    pub state: Option<String>,
    /// Since when no slot owns it.
    pub since: Timestamp,
    /// How it came to be one.
    pub why: String,
    /// The id of the queued resource that was asked for, where it is one.
    #[serde(default)]
    pub queued_resource: Option<String>,
    /// It is a training job.
    #[serde(default)]
    pub is_job: bool,
    /// Its removal, where one was decided: when, and what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<String>,
}

impl StrayView {
    /// Its kind, as the metrics have it.
    pub fn kind(&self) -> &'static str {
        match &self.queued_resource {
            _ if self.is_job => "training_job",
            Some(_) => "queued_resource",
            None => "node",
        }
    }
}

/// The process that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acting {
    /// Its host, or its Cloud Run execution.
    pub host: String,
    /// Its process id.
    pub pid: Option<u32>,
    /// Since when it has held the lock, where its journal says so.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// The digest of the config that it has loaded, where its journal says so.
    #[serde(default)]
    pub config: Option<String>,
}

impl Acting {
    /// From the lock's holder, `host:pid:random`, and the one that the journal knows the time of.
    pub fn of(holder: &str, leader: Option<&Leader>) -> Acting {
        let mut parts = holder.rsplitn(3, ':');
        let (_, pid, host) = (parts.next(), parts.next(), parts.next());
        let leader = leader.filter(|leader| leader.holder == holder);
        Acting {
            host: host.unwrap_or(holder).to_owned(),
            pid: pid.and_then(|pid| pid.parse().ok()),
            since: leader.map(|leader| leader.since),
            config: leader.map(|of| of.config.clone()).filter(|digest| !digest.is_empty()),
        }
    }
}

/// A pause, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseView {
    /// Who wanted it.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// It ends by itself then.
    pub until: Option<Timestamp>,
    /// When it was given.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// It is the pause of all slots, which `resume --all` ends.
    #[serde(default)]
    pub all: bool,
}

impl PauseView {
    /// A pause of one slot, or of `all`.
    pub fn of(pause: &Pause, all: bool) -> Self {
        let Pause { who, reason, until, since } = pause.clone();
        PauseView { by: who, reason, until, since, all }
    }
}

/// The queued resource that a slot is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestStatus {
    /// Its id.
    pub name: String,
    /// Its state as the API spelled it.
    pub state: String,
    /// Since when it was seen in that state.
    pub since: Timestamp,
}

/// How far a recovery is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct StepOf {
    /// The number of the present step, from 1.
    pub at: usize,
    /// The number of all of them.
    pub of: usize,
}

/// One slot in that document.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SlotView {
    /// Name.
    pub name: String,
    /// Zone.
    pub zone: String,
    /// `node`, `queued_resource`, `vertex_job` or `ai_platform_job`.
    pub kind: String,
    /// The queued resource, while there is one; none for other kinds.
    #[serde(default)]
    pub request: Option<RequestStatus>,
    /// Which step of its recovery that is, and of how many.
    #[serde(default)]
    pub recovery_step: Option<StepOf>,
    /// The queued resource that was asked for ahead of the end of its capacity.
    #[serde(default)]
    pub next_request: Option<RequestStatus>,
    /// The incarnation.
    pub incarnation: Option<super::ids::Incarnation>,
    /// State as the API spelled it.
    pub state: Option<String>,
    /// Health as the API spelled it.
    pub health: Option<String>,
    /// The condition.
    pub condition: Condition,
    /// Since when.
    pub since: Timestamp,
    /// The evidence for the condition.
    pub evidence: String,
    /// The phase of a recovery.
    pub phase: Option<String>,
    /// The action.
    pub action: ActionName,
    /// The name of the hold's reason.
    pub hold: Option<String>,
    /// Why.
    pub reason: String,
    /// Until when.
    pub until: Option<Timestamp>,
    /// Attempts of the window.
    pub attempts: AttemptsView,
    /// The job.
    pub job: Option<JobView>,
    /// Accelerator type.
    pub accelerator: Option<String>,
    /// The number of slices of a multislice.
    #[serde(default)]
    pub slices: Option<usize>,
    /// The keys that the next recreate would change against the learned specification.
    pub drift: Vec<String>,
    /// First symptom of the present trouble.
    pub unhealthy_since: Option<Timestamp>,
    /// Start of the maintenance that the API announces or carries out.
    pub maintenance_start: Option<Timestamp>,
    /// When its capacity ends by itself (flex-start).
    #[serde(default)]
    pub ends_at: Option<Timestamp>,
    /// The slot as one sentence: what it is, since when, why, what comes next and when.
    #[serde(default)]
    pub sentence: String,
    /// Whether it would be recreated if it were lost now.
    #[serde(default)]
    pub protected: bool,
    /// Why not.
    #[serde(default)]
    pub unprotected_reason: Option<String>,
    /// By choice: a pause, the label, `forget`, a dry run, a finished job.
    #[serde(default)]
    pub unprotected_by_choice: bool,
    /// Paused by an operator.
    #[serde(default)]
    pub paused: bool,
    /// That pause, the slot's own or that of all.
    #[serde(default)]
    pub pause: Option<PauseView>,
    /// Gaps that a recovery of this slot would find, told before it happens.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The label `tpu-watchdog=off` opts the node out.
    #[serde(default)]
    pub opted_out: bool,
    /// The class of the last refusal of a create that is still owed.
    #[serde(default)]
    pub refused: Option<String>,
    /// The zone in which it was refused, where it was the slot's own.
    #[serde(default)]
    pub refused_in: Option<String>,
    /// The words of that refusal.
    #[serde(default)]
    pub refusal: Option<String>,
    /// Creates that were refused in a row.
    #[serde(default)]
    pub create_failures: u32,
    /// The learned specification: its digest, and where it was learned. Its values may be secrets.
    #[serde(default)]
    pub specification: Option<String>,
    /// Recoveries of every kind that began within the last 24 h.
    #[serde(default)]
    pub recoveries_24h: usize,
    /// Spot or preemptible capacity.
    #[serde(default)]
    pub spot: bool,
    /// The hold that a recovery would meet, where it is not protected.
    #[serde(default)]
    pub unprotected_by: Option<String>,
    /// It would be created again with nothing to run on it: no startup script, and no job.
    #[serde(default)]
    pub empty: bool,
}

impl SlotView {
    /// Whether a managed training job fills it.
    pub fn is_job(&self) -> bool {
        matches!(self.kind.as_str(), "vertex_job" | "ai_platform_job")
    }
}

/// Attempts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttemptsView {
    /// Used in the window.
    pub used: usize,
    /// Allowed.
    pub max: usize,
}

/// The job of a slot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobView {
    /// `unknown`, `waiting`, `running`, `failed` or `finished`.
    pub state: String,
    /// Where it stands on the hosts; none where they do not tell.
    #[serde(default)]
    pub phase: Option<JobPhase>,
    /// The newest reported step.
    pub step: Option<u64>,
    /// The newest complete checkpoint.
    pub checkpoint: Option<String>,
    /// Its step.
    pub checkpoint_step: Option<u64>,
    /// When it was written; where the store does not tell, when it was first seen.
    pub checkpoint_at: Option<Timestamp>,
    /// Of a location that is empty: names in the folder above it.
    #[serde(default)]
    pub around: Vec<String>,
    /// Where checkpoints are looked for; none where the config names no place, or `format =
    /// "none"`.
    #[serde(default)]
    pub location: Option<String>,
    /// The job is to save there: the config names the place, and does not leave the rest to the framework.
    #[serde(default)]
    pub expected: bool,
    /// A create would be held for what was listed there last: see the warnings.
    #[serde(default)]
    pub held: bool,
    /// That location was not listed completely yet: whether it holds a checkpoint is not known.
    #[serde(default)]
    pub unlisted: bool,
}
