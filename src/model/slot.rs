//! The record of one slot: everything that must survive a restart, and is stored as one row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::command::Pause;
use super::condition::{Condition, Kind, Verdict};
use super::exit::Stuck;
use super::ids::{Incarnation, RunOrder};
use super::job_phase::JobPhase;
use super::lines::KeptLines;
use super::lookup::CreateCheck;
use super::recovery::{Call, Recovery};
use super::relaunch::{Amendment, Asked, Patch, Relaunch, Release};
use super::settings::Size;
use super::spec::NodeSpec;
use super::time::elapsed;
use super::view::{self, Decision};

/// The last successful read of the slot's node; kept for status, opt-out and adoption.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// State as the API spelled it; empty when the node was absent.
    pub state: String,
    /// That state is READY.
    pub ready: bool,
    /// That state is CREATING.
    pub creating: bool,
    /// That state is STOPPED.
    pub stopped: bool,
    /// Health as the API spelled it.
    pub health: Option<String>,
    /// Time of the last maintenance event that the API mentions; shown, decides nothing.
    pub maintenance_event: Option<Timestamp>,
    /// End of an ongoing maintenance window.
    pub window_end: Option<Timestamp>,
    /// A maintenance is ongoing or announced.
    pub maintenance_start: Option<Timestamp>,
    /// The label `tpu-watchdog=off`.
    pub opted_out: bool,
    /// Another owner's id.
    pub other_owner: Option<String>,
    /// The queued resource that the node belongs to.
    pub queued_resource: Option<String>,
    /// Part of a multislice.
    pub multislice: bool,
    /// Made by API v1.
    pub is_v1: bool,
    /// Its startup script is our supervisor.
    pub supervised: bool,
    /// That script is the one that the config asks for now.
    pub as_configured: bool,
    /// Accelerator type.
    pub accelerator: String,
    /// Reserved capacity.
    pub reserved: bool,
    /// Spot or preemptible capacity.
    pub spot: bool,
    /// The named reservation, where one is named.
    pub reservation: String,
    /// Workers of the slice.
    pub workers: usize,
    /// The run order in its metadata.
    pub run: Option<RunOrder>,
}

/// Sickness, accumulated over successful reads only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// When the first sick read began.
    pub since: Timestamp,
    /// Time between successful reads that were sick, without gaps.
    pub sick_for: Duration,
    /// Sick reads, the confirming GET included.
    pub reads: u32,
    /// All sick conditions seen since: the longest grace among them applies.
    pub seen: BTreeSet<Condition>,
    /// Healthy time since the last sick read.
    pub healthy_for: Duration,
    /// When the last successful read began: time goes on from there after a restart.
    #[serde(default)]
    pub last_read: Timestamp,
    /// A listing since then could not be read, or lacked the node: what follows tells nothing about
    /// the time before it.
    #[serde(default)]
    pub unseen: bool,
}

/// An operator's `recreate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Who asked for it.
    pub who: String,
    /// The incarnation that is meant.
    pub incarnation: Incarnation,
}

/// One recovery or replacement, for the budget of S13.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// When it was condemned.
    pub at: Timestamp,
    /// Which budget it counts against.
    pub kind: Kind,
}

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

/// The job of a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    /// The last generation that was ordered.
    pub generation: u64,
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

/// Everything that is known about one slot and must survive a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// The slot's name and node id.
    pub name: String,
    /// The zone in which the node is, or will be created.
    pub zone: String,
    /// The incarnation that fills the slot.
    pub incarnation: Option<Incarnation>,
    /// Whether that incarnation was created by this watchdog.
    pub ours: bool,
    /// When it was first read READY.
    pub ready_since: Option<Timestamp>,
    /// The specification, learned before anything is deleted. Stored apart from the rest of the
    /// record.
    #[serde(skip)]
    pub spec: Option<NodeSpec>,
    /// The incarnation that the specification was learned from …
    #[serde(default)]
    pub learned_from: Option<Incarnation>,
    /// … and whether v2alpha1 showed it: v2 hides some of what a create must say.
    #[serde(default)]
    pub learned_alpha: bool,
    /// The last successful read.
    pub seen: Option<Seen>,
    /// The present condition with its evidence.
    pub verdict: Verdict,
    /// Since when the condition is this one.
    pub since: Timestamp,
    /// The last condition that was not `unclear`, and since when.
    #[serde(default)]
    pub last_clear: Option<(Condition, Timestamp)>,
    /// Accumulated sickness.
    pub suspicion: Option<Suspicion>,
    /// The recovery under way.
    pub recovery: Option<Recovery>,
    /// Recoveries and replacements in the window.
    pub attempts: Vec<Attempt>,
    /// Healthy since, for `settled`.
    pub healthy_since: Option<Timestamp>,
    /// The job.
    pub job: JobState,
    /// When our last mutation's outcome arrived: older reads prove nothing (S2).
    pub mutated_at: Option<Timestamp>,
    /// Since when it has not been in the config: what is known of it is kept for a while.
    #[serde(default)]
    pub left_at: Option<Timestamp>,
    /// Whether a create could follow, and when that was asked (S20).
    #[serde(default)]
    pub create_check: Option<(Timestamp, CreateCheck)>,
    /// `forget` called its create off: nothing is done until `retry`.
    #[serde(default)]
    pub forgotten: bool,
    /// `release` gives its node back, or has given it back.
    #[serde(default)]
    pub released: Option<Release>,
    /// Why its node counts as deleted on purpose: nothing is created until `retry` or `recreate`.
    #[serde(default)]
    pub deleted: Option<String>,
    /// An operator wants this node replaced.
    #[serde(default)]
    pub wanted: Option<Wish>,
    /// The incarnation whose delete by another hand was stuck, and was sent once more by us.
    #[serde(default)]
    pub nudged: Option<Incarnation>,
    /// The operation of our own last delete.
    #[serde(default)]
    pub own_delete: Option<String>,
    /// When the present node was first seen: what it says of the time before is another run's.
    #[serde(default)]
    pub first_seen: Option<Timestamp>,
    /// Paused by an operator.
    #[serde(default)]
    pub paused: Option<Pause>,
    /// The other owner whose node an operator made ours.
    #[serde(default)]
    pub adopted: Option<String>,
    /// The creation time of the last node that is known to be gone, and when that was learned: a
    /// read that still shows it shows the past.
    #[serde(default)]
    pub left_behind: Option<(Timestamp, Timestamp)>,
    /// Its zone: a node of that name elsewhere is another one, however old. Records of version
    /// 0.1.0 do not name it.
    #[serde(default)]
    pub left_in: Option<String>,
    /// That end was told by the delete's own operation: no read, however late, shows that node
    /// alive.
    #[serde(default)]
    pub end_was_told: bool,
    /// The last decision about it: what every view shows. Names of a later version are left out.
    #[serde(
        default,
        deserialize_with = "view::understood",
        skip_serializing_if = "Option::is_none"
    )]
    pub decision: Option<Decision>,
    /// The last decision of this process was that nothing is to be done.
    #[serde(skip)]
    pub at_ease: bool,
}

impl SlotRecord {
    /// Well and wanted: the decision about it depends on nothing that another slot's input could
    /// change.
    pub fn is_well(&self) -> bool {
        let healthy = self.verdict.condition == Condition::Healthy;
        let asked = self.wanted.is_some() || self.job.relaunch_by.is_some();
        let under_way = self.recovery.is_some() || self.job.relaunch.is_some();
        healthy && !under_way && self.suspicion.is_none() && !asked
    }

    /// The generation and the code of the last end that this worker of the present node reported.
    pub fn exit_of(&self, worker: usize) -> Option<(u64, i64)> {
        let mut words = self.job.exits.get(&worker)?.split(' ').skip(1);
        let run = words.next()?;
        let generation = run.split_once('.').map_or(run, |(generation, _)| generation);
        Some((generation.parse().ok()?, words.next()?.parse().ok()?))
    }

    /// The size of its TPU, as it was last seen.
    pub fn size(&self) -> Size {
        let seen = self.seen.as_ref();
        Size {
            hosts: seen.map_or(1, |seen| seen.workers.max(1)),
            reserved: seen.is_some_and(|seen| seen.reserved),
        }
    }

    /// How many recoveries of this kind count against their budget (S13). Preemptions slide out of
    /// the window; judged ones count as they stood at the last of them, so that time alone gives a
    /// slot that was given up no further one.
    pub fn attempts_used(&self, kind: Kind, window: Duration, now: Timestamp) -> usize {
        let of_kind = || self.attempts.iter().filter(|attempt| attempt.kind == kind);
        let until = match kind {
            Kind::Lost => now,
            Kind::Judged => of_kind().map(|attempt| attempt.at).max().unwrap_or(now),
        };
        of_kind().filter(|attempt| elapsed(attempt.at, until) < window).count()
    }

    /// From which generation on beacons are those of the slot's node. Its own run order says so,
    /// which is not always the last one that was sent: a create that was given up may be carried
    /// out after all.
    pub fn heard_from(&self) -> u64 {
        self.job.heard_from.unwrap_or(self.job.generation)
    }

    /// A slot that was never read.
    pub fn new(name: &str, zone: &str, now: Timestamp) -> Self {
        SlotRecord {
            name: name.to_owned(),
            zone: zone.to_owned(),
            incarnation: None,
            ours: false,
            ready_since: None,
            spec: None,
            learned_from: None,
            learned_alpha: false,
            seen: None,
            verdict: Verdict::new(Condition::Unclear, "not read yet"),
            since: now,
            last_clear: None,
            suspicion: None,
            recovery: None,
            attempts: Vec::new(),
            healthy_since: None,
            job: JobState::default(),
            mutated_at: None,
            left_at: None,
            create_check: None,
            forgotten: false,
            released: None,
            deleted: None,
            wanted: None,
            nudged: None,
            own_delete: None,
            first_seen: None,
            paused: None,
            adopted: None,
            left_behind: None,
            left_in: None,
            end_was_told: false,
            decision: None,
            at_ease: false,
        }
    }
}
