//! The record of one slot: everything that must survive a restart, and is stored as one row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ahead::{Ahead, FilledBy};
use super::command::Pause;
use super::condition::{Condition, Kind, Verdict};
use super::failure::Failure;
use super::filling::{Deletable, Filling, RequestTimes};
use super::ids::{Incarnation, RunOrder};
use super::job::JobState;
use super::lookup::CreateCheck;
use super::queued::RequestState;
use super::recovery::Recovery;
use super::relaunch::Release;
use super::settings::{Size, SlotSettings};
use super::spec::{NodeSpec, TRAINING_KEY};
use super::step::Call;
use super::time::elapsed;
use super::training::Resubmitted;
use super::traits::Traits;
use super::view::{self, Decision};

/// The last successful read of the slot's node; kept for status, opt-out and adoption.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// State as the API spelled it; empty when the node was absent.
    pub state: String,
    /// That state is READY.
    pub ready: bool,
    /// That state is CREATING, or its queued resource waits or is being filled.
    pub creating: bool,
    /// That state is STOPPED.
    pub stopped: bool,
    /// Health as the API spelled it.
    pub health: Option<String>,
    /// Time of the last maintenance event that the API mentions; shown, decides nothing.
    pub maintenance_event: Option<Timestamp>,
    /// The newest symptom of memory that ran out, newer than our first sight of the node; shown,
    /// decides nothing.
    pub memory_symptom: Option<(String, Timestamp)>,
    /// End of an ongoing maintenance window.
    pub window_end: Option<Timestamp>,
    /// A maintenance is ongoing or announced.
    pub maintenance_start: Option<Timestamp>,
    /// The label `tpu-watchdog=off`.
    pub opted_out: bool,
    /// Of a queued resource: the machines that had it, each by when it was made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labelled: BTreeMap<String, Timestamp>,
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
    /// The ids of the nodes themselves, where that is not the slot's name alone: one a slice.
    #[serde(default)]
    pub members: Vec<String>,
    /// When each of them was made, as far as they are known: Google's own repair makes one again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machines: BTreeMap<String, Timestamp>,
    /// Of several slices, not all have the same run order: the newest generation that one has.
    #[serde(default, rename = "newest", skip_serializing_if = "Option::is_none")]
    pub out_of_step: Option<u64>,
    /// Whether, and how, it can be deleted.
    pub deletable: Deletable,
    /// It has ended and stays where it is: nothing is to be deleted before another one is created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Of a queued resource that is ACTIVE, no node was listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_listed: bool,
    /// Why its queued resource failed.
    pub failure: Option<Failure>,
    /// The machine type that its training job ran out of memory on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outgrown: Option<String>,
    /// When its queued resource ends by itself.
    #[serde(flatten)]
    pub times: RequestTimes,
    /// The state of its queued resource, or training job, in the API's word, and since when it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_state: Option<(String, Timestamp)>,
    /// Since when its queued resource is in this state, while it has no TPU yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_since: Option<Timestamp>,
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
    /// The first healthy read since then …
    #[serde(default)]
    pub healthy_since: Option<Timestamp>,
    /// … and how many there were, whatever was not seen between them.
    #[serde(default)]
    pub healthy_reads: u32,
    /// When the last successful read began: time goes on from there after a restart.
    #[serde(default)]
    pub last_read: Timestamp,
    /// A listing since then could not be read, or lacked the node: what follows tells nothing about
    /// the time before it.
    #[serde(default)]
    pub unseen: bool,
    /// Its job was relaunched because of it: should it last, its TPU is replaced.
    #[serde(default)]
    pub relaunched: bool,
}

/// An operator's `recreate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Who asked for it.
    pub who: String,
    /// The incarnation that is meant; none where the slot has no TPU, and one is to be created.
    pub incarnation: Option<Incarnation>,
    /// When it was taken up; not known of one that an earlier version took up.
    #[serde(default)]
    pub at: Option<Timestamp>,
    /// The condition of the TPU then.
    #[serde(default)]
    pub condition: Option<Condition>,
}

/// One recovery or replacement, for the budget of S13.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// When it was condemned.
    pub at: Timestamp,
    /// Which budget it counts against.
    pub kind: Kind,
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
    /// When a person last said that it is wanted (`retry`, `recreate`): a delete of before holds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_since: Option<Timestamp>,
    /// An operator wants this node replaced.
    #[serde(default)]
    pub wanted: Option<Wish>,
    /// The incarnation whose delete by another hand was stuck, and was sent once more by us.
    #[serde(default)]
    pub nudged: Option<Incarnation>,
    /// The id of the queued resource that was asked for last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The queued resource that was asked for ahead of the end of its capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Ahead>,
    /// The one that was asked for ahead fills it, in the place of the one that the config names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled_by: Option<FilledBy>,
    /// When a submission of its training job was intended that no read has shown yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_at: Option<Timestamp>,
    /// The id by which the config named its training job when that was first read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<String>,
    /// Submissions of its training job since the newest checkpoint.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resubmitted: Resubmitted,
    /// The operation of our own last delete.
    #[serde(default)]
    pub own_delete: Option<String>,
    /// The incarnation whose delete of ours was under way when its slot was called off, and when that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting: Option<(Incarnation, Timestamp)>,
    /// When our own last delete was decided whose answer never came: its operation is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered_delete: Option<Timestamp>,
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
    /// The request that another watchdog made ahead of the end of its capacity, in words, as the last complete lists show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by_another: Option<String>,
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
        let in_step = self.seen.as_ref().is_none_or(|seen| seen.out_of_step.is_none());
        let one_order = in_step && self.outdated_order().is_none();
        healthy && !under_way && self.suspicion.is_none() && !asked && one_order
    }

    /// The answers on which rules depend, of the thing that was last read: the config may mean another kind by now.
    pub fn traits(&self) -> Traits {
        match &self.spec {
            Some(spec) if spec.body().contains_key(TRAINING_KEY) => Traits::TRAINING_JOB,
            _ if self.request.is_some() => Traits::QUEUED_RESOURCE,
            _ => Traits::NODE,
        }
    }

    /// Its training job has ended, and stays where it is.
    pub fn has_ended(&self) -> bool {
        self.incarnation.is_some() && self.seen.as_ref().is_some_and(|seen| seen.ended)
    }

    /// The machine type that its training job ran out of memory on, and the one that the config names after it.
    pub fn next_machine<'m>(&'m self, filling: &'m Filling) -> Option<(&'m str, &'m str)> {
        let outgrown = self.seen.as_ref()?.outgrown.as_deref()?;
        Some((outgrown, filling.training()?.machine_after(outgrown)?))
    }

    /// No node of it is there: missing, or between a delete and its create.
    pub fn is_gone(&self) -> bool {
        self.incarnation.is_none() || self.verdict.condition == Condition::Missing
    }

    /// The ids of its nodes, for calls to the nodes themselves: one a slice.
    pub fn nodes(&self) -> &[String] {
        let members = self.seen.as_ref().map(|seen| seen.members.as_slice());
        members.filter(|members| !members.is_empty()).unwrap_or(std::slice::from_ref(&self.name))
    }

    /// The node of a worker, and its number among the workers of that node.
    pub fn host(&self, worker: usize) -> (&str, usize) {
        let nodes = self.nodes();
        let each = (self.size().hosts / nodes.len()).max(1);
        let node = nodes.get(worker / each).unwrap_or(&self.name);
        (node, if nodes.len() > 1 { worker % each } else { worker })
    }

    /// The generation and the code of the last end that this worker of the present node reported.
    pub fn exit_of(&self, worker: usize) -> Option<(u64, i64)> {
        let mut words = self.job.exits.get(&worker)?.split(' ').skip(1);
        let run = words.next()?;
        let generation = run.split_once('.').map_or(run, |(generation, _)| generation);
        Some((generation.parse().ok()?, words.next()?.parse().ok()?))
    }

    /// Its job is being relaunched because its TPU is sick: the order is not followed yet.
    pub fn is_relaunched_for_sickness(&self) -> bool {
        let for_sickness = self.suspicion.as_ref().is_some_and(|suspicion| suspicion.relaunched);
        for_sickness && self.recovery.is_none() && self.job.relaunch.is_some()
    }

    /// The size of its TPU, as it was last seen.
    pub fn size(&self) -> Size {
        let seen = self.seen.as_ref();
        Size {
            hosts: seen.map_or(1, |seen| seen.workers.max(1)),
            reserved: seen.is_some_and(|seen| seen.reserved),
            spot: seen.is_some_and(|seen| seen.spot),
            not_listed: seen.is_some_and(|seen| seen.not_listed),
        }
    }

    /// Its queued resource, where that is ours and has no TPU: not yet, or no more.
    pub fn ungranted(&self) -> Option<&str> {
        use Condition::*;
        let none = matches!(self.verdict.condition, Waiting | Going | RequestFailed | Preempted);
        // Also while it can't be read, or nothing is wanted any longer.
        let waits = self.seen.as_ref().is_some_and(|seen| seen.waits_since.is_some());
        self.request.as_deref().filter(|_| self.ours && (none || waits))
    }

    /// The queued resource that was asked for ahead, and may be granted.
    pub fn asked_ahead(&self) -> Option<&Ahead> {
        self.ahead.as_ref().filter(|ahead| ahead.is_live())
    }

    /// Whether the journal intends the create of this queued resource ahead (S11).
    pub fn intends_ahead(&self, filling: &Filling) -> bool {
        let ahead = self.asked_ahead().filter(|ahead| ahead.id == filling.id());
        ahead.is_some_and(|ahead| ahead.call == Some(Call::Intended))
    }

    /// Since when its queued resource has waited in its queue.
    pub fn queued_since(&self) -> Option<Timestamp> {
        let seen = self.seen.as_ref()?;
        let waits = [RequestState::Accepted, RequestState::Waiting];
        // Also one that was provisioned for a while has found no capacity since it was made.
        let waits = waits.iter().any(|state| state.as_str() == seen.state);
        let made = self.incarnation.as_ref().filter(|_| waits).map(|of| of.created);
        // One that was asked for ahead is waited for from the end of the former one.
        made.max(self.left_behind.filter(|_| made.is_some()).map(|(_, gone)| gone))
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
            wanted_since: None,
            wanted: None,
            nudged: None,
            request: None,
            ahead: None,
            filled_by: None,
            submitted_at: None,
            named: None,
            resubmitted: Resubmitted::default(),
            own_delete: None,
            deleting: None,
            unanswered_delete: None,
            first_seen: None,
            paused: None,
            adopted: None,
            left_behind: None,
            left_in: None,
            asked_by_another: None,
            end_was_told: false,
            decision: None,
            at_ease: false,
        }
    }
}

impl SlotSettings {
    /// Its zones, and the one in which it lives where the config no longer names that.
    pub fn places<'z>(&'z self, present: &'z String) -> impl Iterator<Item = &'z String> {
        self.zones.iter().chain(Some(present).filter(|zone| !self.zones.contains(zone)))
    }
}

/// Whether a field says nothing: the journal leaves it out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
