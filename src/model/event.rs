//! Events: one value makes the log line, the metric and the row of the event log, so that they
//! never disagree.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::beacon::Meaning;
use super::condition::{Condition, Kind};
use super::exit::Stuck;
use super::failure::FailureClass;
use super::hold::HoldReason;
use super::ids::Incarnation;
use super::names::named;
use super::phase::Phase;
use super::traits::BudgetOf;
use super::view::ActionName;

named! {
/// A mutation of a node.
Verb {
    /// `nodes.delete`.
    Delete = "delete",
    /// `nodes.create`.
    Create = "create",
}
}

named! {
/// The result of a mutation, as far as is known.
CallResult {
    /// The API has taken it; its operation runs.
    Accepted = "accepted",
    /// The API has refused it: certainly not carried out.
    Refused = "refused",
    /// The answer was lost or ambiguous.
    Unknown = "unknown",
    /// It never left.
    NotSent = "not_sent",
    /// Carried out.
    Done = "done",
    /// Accepted, and not carried out.
    Failed = "failed",
    /// Called off while its outcome was open: what comes of it is told as a stray.
    CalledOff = "called_off",
}
}

impl CallResult {
    /// Whether nothing more is owed about the call: an acceptance and a lost answer are followed by
    /// how it ended.
    pub fn is_final(self) -> bool {
        !matches!(self, CallResult::Accepted | CallResult::Unknown)
    }
}

named! {
/// The result of a submission. Names are label values of the metrics.
Submission {
    /// The service has made the job.
    Created = "created",
    /// It was certainly not made.
    Refused = "refused",
    /// The answer was lost.
    Unknown = "unknown",
    /// A read shows the job of a call whose answer was lost.
    Found = "found",
}
}

named! {
/// An operator's command.
CommandName {
    /// `pause`.
    Pause = "pause",
    /// `resume`.
    Resume = "resume",
    /// `retry`.
    Retry = "retry",
    /// `breaker reset`.
    BreakerReset = "breaker_reset",
    /// Calls off what is owed.
    Forget = "forget",
    /// Replaces a node that nothing condemns.
    Recreate = "recreate",
    /// Starts the job again on the same node.
    Relaunch = "relaunch",
    /// Says that the job's work is done.
    Done = "done",
    /// Gives a node back.
    Release = "release",
    /// Asks the API for a simulated maintenance event.
    Drill = "drill",
}
}

/// Why a decision is what it is: the hold, or else the condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reason {
    /// A hold. Read back from a log, a name that is both is taken for a hold.
    Hold(HoldReason),
    /// The condition of the slot.
    Condition(Condition),
    /// A name that another version wrote.
    Other(String),
}

/// Something that an operator may want to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// The slot, if it is about one.
    pub slot: Option<String>,
    /// One line for an operator, with its evidence.
    pub message: String,
    /// The event itself.
    #[serde(flatten)]
    pub what: What,
}

/// The evidence for a mutation, as it was observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The condition that condemned the slot.
    pub condition: Condition,
    /// Lost or judged.
    pub kind: Kind,
    /// The first symptom.
    pub symptom_at: Timestamp,
    /// Time between successful sick reads, in seconds.
    pub sick_seconds: f64,
    /// Sick reads in a row, the confirming GET included.
    pub reads: u32,
    /// When the GET that confirmed it was sent.
    pub confirmed_at: Timestamp,
    /// The reading, in words.
    pub observed: String,
}

/// The kinds of event, with their fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The condition of a slot changed.
    Condition {
        /// Before.
        from: Condition,
        /// Now.
        to: Condition,
    },
    /// The decision about a slot changed (acting, waiting, holding).
    Decision {
        /// `wait`, `hold`, …
        action: ActionName,
        /// Why.
        reason: Reason,
    },
    /// A slot was condemned.
    Condemned {
        /// By which condition.
        cause: Condition,
        /// Lost or judged.
        kind: Kind,
        /// The incarnation; none when the node is gone.
        incarnation: Option<Incarnation>,
        /// From the first symptom to this decision.
        detection_seconds: f64,
    },
    /// A mutation is about to be sent: the audit record of S18.
    Intent {
        /// Which.
        call: Verb,
        /// In which zone; empty in the log of a former version.
        #[serde(default)]
        zone: String,
        /// The incarnation to delete.
        incarnation: Option<Incarnation>,
        /// The generation of the job that a create orders.
        #[serde(default)]
        generation: Option<u64>,
        /// The observations that it rests on; none in the log of a former version.
        #[serde(default)]
        evidence: Option<Evidence>,
        /// Who decided: the process that held the lock.
        #[serde(default)]
        decided_by: String,
    },
    /// The outcome of a mutation: its answer, and how its operation ended, or what was read
    /// back from the world.
    Outcome {
        /// Of which.
        call: Verb,
        /// What.
        result: CallResult,
        /// Of a delete the one that was to be deleted; of a create the one that it made, as soon as
        /// that was seen.
        #[serde(default)]
        incarnation: Option<Incarnation>,
        /// Of a create that submits a training job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        submission: Option<Submission>,
    },
    /// A recovery moved on.
    Phase {
        /// The finished phase.
        from: Phase,
        /// Its duration.
        seconds: f64,
        /// The new one.
        to: Phase,
    },
    /// A create failed or was refused.
    RecoveryFailure {
        /// The cause of the recovery.
        cause: Condition,
        /// The class of the failure.
        reason: FailureClass,
    },
    /// The slot makes progress again (or, without a job, is no longer unhealthy).
    Recovered {
        /// The cause of the recovery.
        cause: Condition,
        /// From condemned to over.
        seconds: f64,
        /// From the first symptom to over.
        down_seconds: f64,
        /// Steps between the last reported one and the checkpoint; none where the job reported
        /// none.
        steps_lost: Option<u64>,
        /// From the checkpoint to the first symptom: the work that is repeated.
        repeated_seconds: Option<f64>,
        /// The part of `down_seconds` that was waited in a queue.
        #[serde(default)]
        queued_seconds: f64,
    },
    /// A queued resource, or a training job, does not wait in its queue any longer: it has machines, or ended.
    Queued {
        /// How long it did.
        seconds: f64,
    },
    /// The recovery ended without our doing: it healed, or another client replaced the node.
    Withdrawn {
        /// The cause of the recovery.
        cause: Condition,
    },
    /// A run order was written.
    Launch {
        /// The generation.
        generation: u64,
        /// The step it starts from.
        step: Option<u64>,
    },
    /// The job ended well.
    JobFinished,
    /// The job's supervisor gave up, or a managed training job failed and is not submitted again by itself.
    JobFailed {
        /// The exit code of the first worker that failed; of a training job it is in its error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i64>,
        /// Why it waits; none where its restarts are used up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stuck: Option<Stuck>,
    },
    /// The last lines of a run that failed on one worker.
    LastLines {
        /// Its index.
        worker: usize,
        /// The generation of the run.
        generation: u64,
        /// The code that it ended with.
        code: i64,
        /// Oldest first.
        lines: Vec<String>,
        /// Their meaning, where one is known.
        meaning: Option<Meaning>,
    },
    /// The safety check refused a plan: a defect, and nothing was done.
    InvariantViolation {
        /// The invariant's name.
        invariant: String,
    },
    /// An operator gave a command.
    #[serde(rename = "lever")]
    Command {
        /// Which one.
        #[serde(rename = "lever")]
        command: CommandName,
        /// Who.
        who: String,
        /// Why, in their words.
        #[serde(default)]
        reason: Option<String>,
        /// A pause ends by itself then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// Its slot was not in the config then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        left: bool,
    },
    /// The storm breaker opened (its reset is a command).
    BreakerOpened {
        /// Slots judged within the window.
        slots: usize,
        /// Whose they are.
        #[serde(default, skip_serializing_if = "BudgetOf::is_of_tpus")]
        of: BudgetOf,
    },
    /// The user's startup script fails on a worker: the job waits for it.
    SetupFailed {
        /// Its index.
        worker: usize,
    },
    /// A slot's checkpoint location can't be listed, or is not understood.
    CheckpointTrouble,
    /// A checkpoint that no run got away from is passed over, once.
    SetAside {
        /// Its step.
        step: u64,
    },
    /// A newer run order is about to be written: its audit record (S18).
    OrderIntent {
        /// The node that gets it.
        incarnation: Incarnation,
        /// The generation that it names.
        generation: u64,
        /// Why.
        evidence: String,
        /// Who decided: the process that held the lock.
        decided_by: String,
    },
    /// A flag of the present order is about to be changed, or the node given back: its audit record
    /// (S18).
    Amendment {
        /// The node that gets it.
        incarnation: Incarnation,
        /// The generation, which stays; 0 where the node is given back.
        generation: u64,
        /// Nothing starts by itself from then on.
        wait: bool,
        /// The job is asked for a checkpoint.
        notice: bool,
        /// Who decided: the process that held the lock.
        decided_by: String,
    },
    /// An order was written or not; `done` when all workers follow it.
    OrderOutcome {
        /// The generation that it names.
        generation: u64,
        /// The result.
        result: CallResult,
    },
    /// Every worker has read its changed order.
    OrderRead {
        /// It says that nothing starts by itself.
        waits: bool,
    },
    /// The delete of a stray that can't run is about to be sent: its audit record (S18).
    StrayIntent {
        /// Its zone.
        zone: String,
        /// Its name.
        name: String,
        /// The incarnation to delete.
        incarnation: Incarnation,
        /// When the GET that confirmed it was sent.
        confirmed_at: Timestamp,
        /// The state that it showed.
        observed: String,
        /// Who decided: the process that held the lock.
        decided_by: String,
    },
    /// The outcome of that delete.
    StrayOutcome {
        /// Its zone.
        zone: String,
        /// Its name.
        name: String,
        /// The result.
        result: CallResult,
    },
    /// Anything else worth a line.
    Note,
}
