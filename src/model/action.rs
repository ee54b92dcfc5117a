//! What goes into a decision and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::beacon::WorkerReport;
use super::checkpoint::CheckpointSurvey;
use super::command::Command;
use super::event::{Event, Verb};
use super::failure::Failure;
use super::filling::Filling;
use super::fleet::{Ledger, Removal, Stray};
use super::ids::Incarnation;
use super::lookup::{CreateCheck, Deletion, NextCreate};
use super::node::NodeView;
use super::operation::OperationState;
use super::phase::Phase;
use super::queued::RequestView;
use super::relaunch::Patch;
use super::settings::{CheckpointSettings, Settings};
use super::slot::SlotRecord;
use super::step::Call;
use super::submission::JobListing;
use super::time::elapsed;

/// A delete leaves at most this long after the GET that verified its target (S1).
pub const VERIFIED_FOR: Duration = Duration::from_secs(5);

/// Everything that can happen to the watchdog.
#[derive(Debug)]
pub enum Input {
    /// The config was loaded, at start or again.
    Configured(Box<Settings>),
    /// A term begins, or the journal was read again: the config, and what operators commanded
    /// meanwhile. Both count before anything is decided.
    Begun(Box<Settings>, Vec<Command>),
    /// A poll is complete.
    Polled(Box<Poll>),
    /// A GET of a slot's node was answered.
    Got {
        /// The slot.
        slot: String,
        /// When the GET was sent.
        began: Timestamp,
        /// The answer.
        reading: Reading,
    },
    /// Guest attributes were read.
    Attributes {
        /// The slot.
        slot: String,
        /// The incarnation that was asked about.
        of: Incarnation,
        /// When they were asked for.
        began: Timestamp,
        /// One report a worker.
        result: Result<Vec<WorkerReport>, Failure>,
    },
    /// The checkpoint location was listed.
    Surveyed {
        /// The slot.
        slot: String,
        /// When the listing was started.
        began: Timestamp,
        /// The location that was listed.
        location: String,
        /// The checkpoints found there.
        result: Result<CheckpointSurvey, Failure>,
    },
    /// A delete or create was sent (or not).
    Called {
        /// The slot.
        slot: String,
        /// Its outcome.
        outcome: CallOutcome,
    },
    /// A GET of a stray was answered.
    StrayGot {
        /// Its zone.
        zone: String,
        /// Its name.
        name: String,
        /// When the GET was sent.
        began: Timestamp,
        /// The answer.
        reading: Reading,
    },
    /// A node was patched (or not).
    Ordered {
        /// The slot.
        slot: String,
        /// The generation that it orders; 0: none.
        generation: u64,
        /// The outcome.
        outcome: CallOutcome,
    },
    /// The delete of a stray, or its order to wait, was sent (or not).
    StrayCalled {
        /// Its zone.
        zone: String,
        /// Its name.
        name: String,
        /// It was the order to wait.
        patch: bool,
        /// The outcome.
        outcome: CallOutcome,
    },
    /// A look at an operation.
    Operated {
        /// The slot.
        slot: String,
        /// The operation's full name.
        operation: String,
        /// Its state; an error says nothing about the operation.
        result: Result<OperationState, Failure>,
    },
    /// Whether a create could follow was asked.
    CreateChecked {
        /// The slot.
        slot: String,
        /// When it was asked for.
        began: Timestamp,
        /// The result of the check.
        found: CreateCheck,
    },
    /// The delete operations of a node's name were listed.
    Deletions {
        /// The slot.
        slot: String,
        /// When they were asked for.
        began: Timestamp,
        /// The operations in the slot's zone that target its name, newest first.
        result: Result<Vec<Deletion>, Failure>,
    },
    /// Commands of an operator.
    Commands(Vec<Command>),
    /// Time has passed.
    Tick,
}

impl Input {
    /// Whether it says what came of a request.
    pub fn is_outcome(&self) -> bool {
        matches!(self, Input::Called { .. } | Input::Ordered { .. } | Input::StrayCalled { .. })
    }
}

/// One poll: listings of zones.
#[derive(Debug)]
pub struct Poll {
    /// When it was started.
    pub began: Timestamp,
    /// One a zone that was asked for (`-` stands for all).
    pub listings: Vec<Listing>,
    /// The managed training jobs that live, by region.
    pub jobs: Vec<JobListing>,
}

impl Poll {
    /// One that lists no training jobs.
    pub fn of(began: Timestamp, listings: Vec<Listing>) -> Poll {
        Poll { began, listings, jobs: Vec::new() }
    }
}

/// The listing of one parent.
#[derive(Debug)]
pub struct Listing {
    /// The zone, or `-`.
    pub zone: String,
    /// All pages, or why they can't be read.
    pub result: Result<NodeList, Failure>,
    /// Its queued resources, listed before the nodes, where a slot is one.
    pub requests: Option<Result<RequestList, Failure>>,
}

/// All pages of a listing of queued resources.
#[derive(Debug, Default)]
pub struct RequestList {
    /// The queued resources.
    pub requests: Vec<RequestView>,
    /// The zones that did not answer.
    pub unreachable: Vec<String>,
}

/// All pages of a listing.
#[derive(Debug, Default)]
pub struct NodeList {
    /// The nodes.
    pub nodes: Vec<Arc<NodeView>>,
    /// The zones that did not answer.
    pub unreachable: Vec<String>,
    /// Node ids of entries of which nothing else could be read.
    pub unreadable: Vec<String>,
    /// Entries whose name could not be read either: each may be any node.
    pub nameless: usize,
}

impl From<(Vec<Arc<NodeView>>, Vec<String>)> for NodeList {
    fn from((nodes, unreachable): (Vec<Arc<NodeView>>, Vec<String>)) -> Self {
        NodeList { nodes, unreachable, ..NodeList::default() }
    }
}

/// The result of reading one node.
#[derive(Debug)]
pub enum Reading {
    /// The node.
    Node(Arc<NodeView>),
    /// Absent: from a complete listing, or by a 404.
    Absent,
    /// Nothing could be read: no evidence of anything.
    Unread(String),
}

/// The outcome of a mutation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// Accepted, with the operation's name.
    Accepted(String),
    /// Refused: certainly not carried out.
    Refused(Failure),
    /// The answer was lost or makes no sense: it may have been carried out.
    Unknown(Failure),
    /// Not sent at all.
    NotSent(Failure),
}

/// A consequence.
#[derive(Debug)]
pub enum Effect {
    /// Write `records` and `events` durably; only when that succeeded carry out `then`.
    Commit {
        /// The changed records.
        records: Vec<Record>,
        /// The events to report.
        events: Vec<Event>,
        /// The actions to take once both are written.
        then: Vec<Action>,
    },
    /// Read something; changes nothing, needs no commit.
    Look(Look),
}

/// A row of the journal.
#[derive(Debug)]
pub enum Record {
    /// A slot's record, without its specification.
    Slot(Box<SlotRecord>),
    /// A slot's specification.
    Spec(String, Value),
    /// A slot that is no more.
    Removed(String),
    /// Budgets and counts of the fleet.
    Ledger(Box<Ledger>),
    /// The command of this id has worked: it is taken out of the store by the same commit.
    CommandDone(String),
}

impl Record {
    /// Whether this record intends this mutation (S11): the journal says so before it is sent.
    pub fn intends(&self, action: &Action) -> bool {
        match (self, action) {
            (
                Record::Ledger(ledger),
                Action::Delete { slot, zone, incarnation, stray: true, .. },
            ) => ledger.strays.get(&Stray::key(zone, slot)).is_some_and(|stray| {
                let intended = |of: &&Removal| of.call == Some(Call::Intended);
                let removal = stray.removal.as_ref().filter(intended);
                removal.is_some_and(|removal| removal.incarnation == *incarnation)
            }),
            (Record::Ledger(ledger), Action::Patch { slot, zone, patch, stray: true, .. }) => {
                let stray = ledger.strays.get(&Stray::key(zone, slot));
                stray.is_some_and(|stray| stray.intends(patch))
            }
            (Record::Slot(record), action) if record.name == action.slot() => {
                let calls = |phase| record.recovery.as_ref().is_some_and(|r| r.intends(phase));
                match action {
                    Action::Delete { stray, .. } => !stray && calls(Phase::Deleting),
                    Action::Create { filling, .. } => {
                        calls(Phase::Creating) || record.intends_ahead(filling)
                    }
                    Action::Patch { patch, stray, .. } => !stray && record.job.intends(patch),
                }
            }
            _ => false,
        }
    }
}

/// A mutation, with nothing left to choose.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Delete exactly this incarnation.
    Delete {
        /// The slot, and node id.
        slot: String,
        /// Its zone.
        zone: String,
        /// The incarnation that was condemned.
        incarnation: Incarnation,
        /// When the GET that verified it was sent: older than 5 s means that the delete is not sent
        /// (S1).
        verified: Timestamp,
        /// Where the call takes one.
        request_id: Option<String>,
        /// The kind of thing that is deleted.
        filling: Filling,
        /// Its nodes are deleted along with it.
        force: bool,
        /// It is no slot's: a request that was called off, or a dead stray (`orphans = "dead"`).
        stray: bool,
    },
    /// Create the node.
    Create {
        /// The slot, and node id where the specification names none.
        slot: String,
        /// Its zone.
        zone: String,
        /// The specification of the node, with our own metadata.
        body: Value,
        /// Where the call takes one.
        request_id: Option<String>,
        /// The kind of thing that is created.
        filling: Filling,
    },
    /// Change our part of the metadata of each node. The metadata is read and the incarnation compared
    /// right before.
    Patch {
        /// The slot.
        slot: String,
        /// Its zone.
        zone: String,
        /// The ids of its nodes.
        nodes: Vec<String>,
        /// The kind of thing whose incarnation it is.
        filling: Filling,
        /// The incarnation that is meant.
        incarnation: Incarnation,
        /// The change.
        patch: Patch,
        /// It goes to a stray.
        stray: bool,
    },
}

impl Action {
    /// The slot that is acted on.
    pub fn slot(&self) -> &str {
        match self {
            Action::Delete { slot, .. }
            | Action::Create { slot, .. }
            | Action::Patch { slot, .. } => slot,
        }
    }

    /// Whether it is a stray's: the slot of that name has no part in it.
    pub fn is_of_stray(&self) -> bool {
        matches!(self, Action::Delete { stray: true, .. } | Action::Patch { stray: true, .. })
    }

    /// The input that tells its outcome.
    pub fn answer(&self, outcome: CallOutcome) -> Input {
        match self {
            Action::Delete { slot, zone, stray: true, .. }
            | Action::Patch { slot, zone, stray: true, .. } => {
                let (zone, name) = (zone.clone(), slot.clone());
                let patch = matches!(self, Action::Patch { .. });
                Input::StrayCalled { zone, name, patch, outcome }
            }
            Action::Delete { slot, .. } | Action::Create { slot, .. } => {
                Input::Called { slot: slot.clone(), outcome }
            }
            Action::Patch { slot, patch, .. } => {
                Input::Ordered { slot: slot.clone(), generation: patch.generation(), outcome }
            }
        }
    }

    /// Whether it may still leave at `now` when connecting takes so long: a delete only soon after
    /// the GET that verified it.
    pub fn may_leave(&self, now: Timestamp, connecting: Duration) -> bool {
        match self {
            // A GET from the future means that the clock was set back: its age can't be told.
            Action::Delete { verified, .. } => {
                *verified <= now && elapsed(*verified, now) + connecting <= VERIFIED_FOR
            }
            Action::Create { .. } | Action::Patch { .. } => true,
        }
    }
}

/// A read.
#[derive(Debug, Clone, PartialEq)]
pub enum Look {
    /// GET the slot's node.
    Node {
        /// The slot.
        slot: String,
        /// Its zone.
        zone: String,
        /// The kind of thing that is read.
        filling: Filling,
        /// The ids of its nodes, as last known.
        nodes: Vec<String>,
    },
    /// GET a stray.
    Stray {
        /// Its zone.
        zone: String,
        /// Its name.
        name: String,
        /// The kind of thing that is read.
        filling: Filling,
    },
    /// Look at an operation, not before the time given.
    Operation {
        /// The slot.
        slot: String,
        /// The operation's full name.
        operation: String,
        /// The call that it carries out: the same error means something else on another call.
        verb: Verb,
        /// The capacity is Spot or preemptible: some refusals come in disguise.
        spot: bool,
        /// Not before.
        at: Timestamp,
    },
    /// Read the supervisor's guest attributes.
    Attributes {
        /// The slot.
        slot: String,
        /// Its zone.
        zone: String,
        /// The ids of its nodes.
        nodes: Vec<String>,
        /// The incarnation that is meant.
        of: Incarnation,
        /// The number of the workers of all nodes, as far as known; at least one.
        workers: usize,
        /// Not before.
        at: Timestamp,
    },
    /// List the checkpoint location.
    Checkpoints {
        /// The slot.
        slot: String,
        /// The configured location.
        location: CheckpointSettings,
        /// A step that is taken only when there is no other.
        set_aside: Option<u64>,
    },
    /// Ask whether a create of this specification could follow a delete (S20): permissions, runtime
    /// version, accelerator type. Nothing is asked with anonymous credentials.
    CreateCheck {
        /// The slot.
        slot: String,
        /// The create.
        next: NextCreate,
    },
    /// List the delete operations on what is gone.
    Deletions {
        /// The slot.
        slot: String,
        /// The zone.
        zone: String,
        /// The paths, within the zone, of what may have been deleted.
        targets: Vec<String>,
        /// Older ones are not wanted.
        since: Timestamp,
    },
}

impl Look {
    /// When it is due, where that is not at once.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Look::Operation { at, .. } | Look::Attributes { at, .. } => Some(*at),
            _ => None,
        }
    }

    /// The slot that is looked at, or that a stray was made for.
    pub fn slot(&self) -> &str {
        match self {
            Look::Node { slot, .. }
            | Look::Stray { name: slot, .. }
            | Look::Operation { slot, .. }
            | Look::Attributes { slot, .. }
            | Look::Checkpoints { slot, .. }
            | Look::CreateCheck { slot, .. }
            | Look::Deletions { slot, .. } => slot,
        }
    }
}
