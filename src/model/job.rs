//! The job of one slot: its run orders, the reports of its workers, its checkpoints, and how its runs
//! went.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::exit::Stuck;
use super::ids::Incarnation;
use super::job_phase::JobPhase;
use super::lines::KeptLines;
use super::relaunch::{Amendment, Asked, Patch, Relaunch};
use super::step::Call;

/// The known state of one worker's heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerState {
    /// A boot beacon of the present node was read.
    pub booted: bool,
    /// The boot that it told of last.
    pub boot_id: Option<String>,
    /// The heartbeat last read, with its boot id.
    pub heartbeat: Option<(String, i64)>,
    /// How long it stood still over successful reads.
    pub quiet_for: Duration,
    /// When two reads close together last showed it to change.
    pub beat_at: Option<Timestamp>,
    /// It still waits for its startup script, or for its index.
    pub in_setup: bool,
    /// The generation of the last boot beacon.
    pub generation: u64,
    /// The runs of that generation that its host has started; 0 also where it does not say.
    pub attempt: u64,
    /// The version of its supervisor, where it tells one.
    pub version: u64,
    /// It has read that its order says `wait`.
    pub waits: bool,
    /// The index that it says it has.
    pub index: Option<usize>,
    /// How many chips it says it has.
    pub chips: Option<u32>,
    /// The job's phase there, as its last heartbeat tells it, and the words.
    pub phase: Option<(JobPhase, String)>,
}

impl WorkerState {
    /// Whether its last heartbeat says that the job runs there.
    pub fn runs(&self) -> bool {
        matches!(self.phase, Some((JobPhase::Running | JobPhase::Saving, _)))
    }
}

/// How the job stood when machines of its queued resource were made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeAgain {
    /// When that was seen.
    pub at: Timestamp,
    /// The last generation that was ordered.
    pub generation: u64,
    /// The newest step that was saved by then.
    pub saved: Option<u64>,
    /// A listing has shown since then what that was.
    pub listed: bool,
}

impl MadeAgain {
    /// As the job stands now.
    pub fn now(job: &JobState, at: Timestamp) -> MadeAgain {
        let saved = job.checkpoint.as_ref().map(|checkpoint| checkpoint.step);
        MadeAgain { at, generation: job.generation, saved, listed: false }
    }
}

/// The job of a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    /// The last generation that was ordered.
    pub generation: u64,
    /// Machines of its queued resource were made again, with an order that may be an old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_again: Option<MadeAgain>,
    /// The lowest generation that the run order of the present node ever named.
    pub heard_from: Option<u64>,
    /// The newest step reported by the job.
    pub step: Option<u64>,
    /// The newest complete checkpoint, and the location it was found in.
    pub checkpoint: Option<Checkpoint>,
    /// The configured location that `checkpoint` belongs to.
    pub location: String,
    /// When the first run of a job in this location began: what was there before is not its own.
    pub location_since: Option<Timestamp>,
    /// When that location was last listed completely.
    pub listed_at: Option<Timestamp>,
    /// Why no create may rest on what that location holds.
    pub trouble: Option<LocationTrouble>,
    /// The newest incomplete checkpoint that is known, step and size: growth is what goes beyond
    /// it.
    pub incomplete: Option<(u64, u64)>,
    /// The lowest step that an operator accepts instead of the recorded one, and since when; 0: any, or none.
    pub accepts: Option<(u64, Timestamp)>,
    /// Since when complete listings have lacked `checkpoint` (or what is accepted) and anything newer.
    pub went_back_since: Option<Timestamp>,
    /// When the newest complete checkpoint was first seen.
    pub checkpoint_at: Option<Timestamp>,
    /// Of a managed training job: the set of step folders as it was last listed ([`CheckpointSurvey::steps`]).
    ///
    /// [`CheckpointSurvey::steps`]: super::checkpoint::CheckpointSurvey::steps
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub steps: String,
    /// The location holds something, and no rule finds a step or a complete checkpoint in it: that nothing was saved
    /// can't be told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unrecognised: bool,
    /// When that set was last seen to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_at: Option<Timestamp>,
    /// When its files were written, by the store's clock: shown, decides nothing.
    pub checkpoint_written: Option<Timestamp>,
    /// Of a location that was found empty: names in the folder above it.
    pub around: Vec<String>,
    /// The last mark of progress.
    pub progress_at: Option<Timestamp>,
    /// Seconds between the last marks of progress, oldest first: the job's own rhythm.
    pub intervals: Vec<u64>,
    /// A recovery, a hold or a pause lay between the last mark and now: what it adds is no rhythm.
    pub interrupted: bool,
    /// How long its hosts have been up without an index each of their own, over successful reads.
    pub ungathered_for: Duration,
    /// How long one of them has lacked chips while nothing of the job ran on it, over successful reads.
    pub short_for: Duration,
    /// … and for how long a process of an earlier run holds the chips of a host that was told to reboot.
    #[serde(default)]
    pub stuck_for: Duration,
    /// A run of the job has begun on the present node.
    pub has_run: bool,
    /// Hosts that were ordered to reboot, with the boot that was to end: once in a node's life.
    pub reboots: BTreeMap<usize, String>,
    /// Workers of the present node, by index.
    pub workers: BTreeMap<usize, WorkerState>,
    /// The worker whose job ended and waits for an operator, with its code and text …
    pub failed: Option<(usize, i64, String)>,
    /// When that was first heard.
    pub failed_at: Option<Timestamp>,
    /// When the first of its workers was heard to have failed.
    pub failing_since: Option<Timestamp>,
    /// … and why; in a record of the first version, because the restarts were used up.
    pub stuck: Option<Stuck>,
    /// Since when a worker has reported that it can't be set up.
    pub setup_since: Option<Timestamp>,
    /// Since when a training job that runs has saved nothing, as far as that was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saves_nothing: Option<Timestamp>,
    /// The training job whose failure was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_job: Option<Incarnation>,
    /// Since when hosts that are set up wait for each other.
    pub roll_call_since: Option<Timestamp>,
    /// The report of an exit with 0 that was judged to be too early.
    pub early: Option<String>,
    /// The last `exit` report of each worker of the present node.
    pub exits: BTreeMap<usize, String>,
    /// The last lines of failed runs that were told.
    pub lines: KeptLines,
    /// The reports that an operator has answered by `retry`: they count no more.
    pub pardoned: BTreeMap<usize, String>,
    /// The key of a job whose success is journaled.
    pub finished: Option<String>,
    /// An operator said that it is (`done`), whatever its hosts report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_by: Option<Asked>,
    /// Since when its TPU has been READY and held by nothing, where success deletes it.
    pub removable_since: Option<Timestamp>,
    /// The node that was stopped after the success: it is stopped once.
    #[serde(default)]
    pub stopped: Option<Incarnation>,
    /// The generation whose success an operator took back: it is not journaled once more.
    pub wanted_again: Option<u64>,
    /// The key of the job that the last run order started.
    pub ordered: Option<String>,
    /// How long a READY node lacked a boot beacon, over successful reads.
    pub unbooted_for: Duration,
    /// When guest attributes were last read.
    pub attributes_at: Option<Timestamp>,
    /// Since when a delete waits for answers that it could rest on: reports of all its workers, and
    /// a GET soon after.
    pub unheard_since: Option<Timestamp>,
    /// The runs of the job, for S16.
    pub runs: Runs,
    /// A newer run order for the present node, until its workers follow it.
    pub relaunch: Option<Relaunch>,
    /// The operator who wants one.
    pub relaunch_by: Option<Asked>,
    /// A flag of the present order that is being changed.
    pub amendment: Option<Amendment>,
}

impl JobState {
    /// Whether this very patch is journaled as about to be written to the node (S11).
    pub fn intends(&self, patch: &Patch) -> bool {
        let relaunch = self.relaunch.as_ref().filter(|r| r.call == Some(Call::Intended));
        let amendment = self.amendment.as_ref().filter(|a| a.call == Some(Call::Intended));
        let ordered =
            relaunch.is_some_and(|relaunch| *patch == Patch::Order(relaunch.order.clone()));
        ordered || amendment.is_some_and(|amendment| *patch == amendment.patch)
    }
}

/// Why no create may rest on a checkpoint location, in words for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocationTrouble {
    /// It can't be listed, and no waiting helps.
    Unlisted(String),
    /// No complete checkpoint was found in it, although it is not empty.
    NotUnderstood(String),
}

impl LocationTrouble {
    /// The trouble in words, with the remedy.
    pub fn text(&self) -> &str {
        match self {
            LocationTrouble::Unlisted(text) | LocationTrouble::NotUnderstood(text) => text,
        }
    }
}

/// How the runs of a job went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Runs {
    /// The furthest step that any of them reported.
    pub best_step: Option<u64>,
    /// The checkpoint's step that the present one was started from.
    pub started_from: Option<u64>,
    /// The present one was seen at work.
    pub began: bool,
    /// The present one got beyond everything before it.
    pub progressed: bool,
    /// The present one reported a first step beyond its checkpoint.
    pub stepped: bool,
    /// The generation of the run whose end was counted last: each is counted once.
    pub counted: Option<u64>,
    /// Runs in a row that ended without a new step.
    pub fruitless: u32,
    /// The same of runs on several hosts that ended with a code: `restart.per_run` bounds them.
    pub exits: u32,
    /// The code that those ended with last, and how many in a row did.
    pub code: Option<(i64, u32)>,
    /// Runs in a row that ended with their machine and count for nothing.
    pub free: u32,
    /// Of these, the latest in a row that never got away from `started_from`.
    pub stuck: u32,
    /// The checkpoint's step that is passed over, and since when.
    pub set_aside: Option<(u64, Timestamp)>,
    /// The step of the newest complete checkpoint ever listed, those passed over included …
    pub best_listed: Option<u64>,
    /// … and when the present run was ordered.
    pub listed_before: Option<u64>,
    /// The generation that was started once more after an end with 0 that was too early.
    pub once_more: Option<u64>,
}
