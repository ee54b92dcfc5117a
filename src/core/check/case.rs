//! The case that the rules look at, and how they answer.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::fleet::{Ledger, Memory};
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::SlotRecord;

/// A GET, or a report of the workers, that verifies a delete is at most this old.
pub(super) const VERIFIED_FOR: Duration = Duration::from_secs(5);
pub(super) const REPORTED_FOR: Duration = Duration::from_secs(10);

/// Creates that may be in a minute.
pub(super) const CREATES: usize = 60;

/// A broken invariant, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation(pub(super) &'static str, pub(super) &'static str);

impl Violation {
    /// As in docs/invariants.md: `S1`.
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0, self.1)
    }
}

/// The case to check: one slot and what its mutation rests on.
pub struct Case<'a> {
    /// The config.
    pub settings: &'a Settings,
    /// Of the slot.
    pub slot: &'a SlotSettings,
    /// As journaled, before the mutation.
    pub record: &'a SlotRecord,
    /// The memory of this process.
    pub memory: &'a Memory,
    /// Budgets.
    pub ledger: &'a Ledger,
    /// The time of the step.
    pub now: Timestamp,
}

/// Whether a rule holds.
pub type Checked = Result<(), Violation>;

pub(super) fn rule(holds: bool, name: &'static str, text: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(Violation(name, text)) }
}

/// The location of the job's checkpoints, where they are looked for.
pub(super) fn listed(slot: &SlotSettings) -> Option<&str> {
    let checkpoint = slot.job.as_ref()?.checkpoint.as_ref()?;
    checkpoint.is_listed().then_some(checkpoint.uri.as_str())
}
