//! A recovery: one journaled walk from "condemned" to "making progress again", and its legal moves.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::condition::{Condition, Kind};
use super::event::Evidence;
use super::failure::{Failure, FailureClass};
use super::ids::Incarnation;
use super::ids::RunOrder;
use super::phase::Phase;
use super::step::{At, Call};

/// A move that the journal does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IllegalMove {
    /// From.
    pub from: Phase,
    /// To.
    pub to: Phase,
}

impl fmt::Display for IllegalMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a recovery can't go from {} to {}", self.from, self.to)
    }
}

impl std::error::Error for IllegalMove {}

/// One recovery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// The condition that condemned the slot.
    pub cause: Condition,
    /// Lost or judged.
    pub kind: Kind,
    /// The evidence on which it was condemned.
    pub evidence: String,
    /// The first symptom.
    pub symptom_at: Timestamp,
    /// When it was condemned.
    pub condemned_at: Timestamp,
    /// Where it stands.
    #[serde(flatten)]
    pub at: At,
    /// Since when.
    pub phase_since: Timestamp,
    /// Finished phases and how long they took, in seconds.
    pub phases: Vec<(Phase, f64)>,
    /// The incarnation to delete, exactly.
    pub condemned: Option<Incarnation>,
    /// Deletes that failed in a row.
    pub delete_failures: u32,
    /// Why the last of them failed.
    #[serde(default)]
    pub undeleted: Option<String>,
    /// Creates that failed in a row.
    pub create_failures: u32,
    /// Not before this time is the next create (or delete) sent.
    pub not_before: Option<Timestamp>,
    /// The last refusal of a create, in words.
    pub refusal: Option<(FailureClass, String)>,
    /// The zone in which it was refused; empty in a record of a former version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refused_in: String,
    /// Creates that failed in a row for another reason than a lack of capacity.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// The last create was refused: certainly not carried out, whatever can be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_made: bool,
    /// The run order of the create.
    pub order: Option<RunOrder>,
    /// Creates that were lost on the way or not sent, in a row.
    #[serde(default)]
    pub resends: u32,
    /// Calls that were accepted and came to an end without their effect. The next one is another
    /// request: the API answers a repeated request id with the operation that it had.
    #[serde(default)]
    pub spent: u32,
    /// The step that the job had reported when the slot was condemned.
    pub step_before: Option<u64>,
    /// When the checkpoint of the run order was first seen.
    #[serde(default)]
    pub saved_at: Option<Timestamp>,
    /// It waits for something that may never come, and does not count under `max_unavailable` (S6).
    #[serde(default)]
    pub set_apart: bool,
    /// The replacement that was counted as one that failed to boot (S14).
    #[serde(default)]
    pub unfit: Option<Incarnation>,
    /// When its last delete was decided: the trial in spite of refusals is known by it (S14).
    #[serde(default)]
    pub tried_at: Option<Timestamp>,
    /// When its last create was decided: a refusal, or a failed replacement, that is newer than
    /// this outlives it (S14).
    #[serde(default)]
    pub creating_since: Option<Timestamp>,
    /// The create's operation ended with this error. What it left behind is read before anything is
    /// forgotten or sent.
    #[serde(default)]
    pub failed: Option<Failure>,
    /// The observations on which it was condemned last.
    #[serde(default)]
    pub observed: Option<Evidence>,
    /// Calls that were decided and not sent, in a row, and why the last was not.
    #[serde(default)]
    pub not_sent: u32,
    /// Why the last of them was not.
    #[serde(default)]
    pub unsent: Option<String>,
    /// Why the queued resource that is removed had failed: what its create was refused for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_failed: Option<Failure>,
    /// Queued resources that failed for a reason that no rule knows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unexplained: u32,
    /// Zones whose last queued resource failed for a reason that another one would meet as well.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub closed: BTreeSet<String>,
    /// Why no other queued resource is asked for until an operator says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<Failure>,
    /// Only a stuck delete of another hand is sent once more: no create follows.
    #[serde(default)]
    pub no_create: bool,
    /// The zone in which a create had no answer, and a read then showed nothing: it may arrive all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_in: Option<String>,
    /// Seconds since the first symptom that were waited in a queue, which are not billed.
    #[serde(default)]
    pub queued_seconds: f64,
}

impl Recovery {
    /// A recovery that begins now.
    pub fn condemned(cause: Condition, kind: Kind, symptom_at: Timestamp, now: Timestamp) -> Self {
        Recovery {
            cause,
            kind,
            evidence: String::new(),
            symptom_at,
            condemned_at: now,
            at: At::of(Phase::Condemned),
            phase_since: now,
            phases: Vec::new(),
            condemned: None,
            delete_failures: 0,
            undeleted: None,
            create_failures: 0,
            not_before: None,
            refusal: None,
            refused_in: String::new(),
            failures: 0,
            not_made: false,
            order: None,
            resends: 0,
            spent: 0,
            step_before: None,
            saved_at: None,
            set_apart: false,
            unfit: None,
            tried_at: None,
            creating_since: None,
            failed: None,
            observed: None,
            not_sent: 0,
            unsent: None,
            request_failed: None,
            unexplained: 0,
            closed: BTreeSet::new(),
            halted: None,
            no_create: false,
            lost_in: None,
            queued_seconds: 0.0,
        }
    }

    /// The phase, by its name in the contract.
    pub fn phase(&self) -> Phase {
        self.at.phase()
    }

    /// The call of the present step.
    pub fn call(&self) -> Option<&Call> {
        self.at.call()
    }

    /// Whether the journal intends the call of this phase (S11).
    pub fn intends(&self, phase: Phase) -> bool {
        self.phase() == phase && self.call() == Some(&Call::Intended)
    }

    /// Moves on, and keeps how long the phase took.
    ///
    /// # Errors
    /// [`IllegalMove`] when the journal does not know such a move; nothing is changed then.
    pub fn advance(&mut self, next: Phase, now: Timestamp) -> Result<(), IllegalMove> {
        let (from, at) = (self.phase(), At::of(next));
        if !self.at.may_become(&at) {
            return Err(IllegalMove { from, to: next });
        }
        let spent = now.duration_since(self.phase_since).as_secs_f64().max(0.0);
        self.phases.push((from, spent));
        self.at = at;
        self.phase_since = now;
        self.failed = None;
        self.not_made = false;
        if next == Phase::Creating {
            self.creating_since = Some(now);
        }
        Ok(())
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}
