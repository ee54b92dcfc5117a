//! The phases of a recovery.

use super::names::named;

named! {
/// Where a recovery stands. Names are label values of `recovery_phase_duration_seconds`.
Phase {
    /// Condemned; the delete was not sent, or was refused.
    Condemned = "condemned",
    /// A delete is intended, sent or running.
    Deleting = "deleting",
    /// The node is gone; a create is owed.
    Gone = "gone",
    /// A create is intended, sent or running.
    Creating = "creating",
    /// The replacement is READY.
    Ready = "ready",
    /// Its workers sent their boot beacons.
    Booted = "booted",
    /// The job of the new generation runs.
    Launched = "launched",
}
}

impl Phase {
    /// Whether the node is there and its hosts have reported.
    pub fn is_up(self) -> bool {
        matches!(self, Phase::Booted | Phase::Launched)
    }

    /// Whether the replacement is there.
    pub fn stands(self) -> bool {
        self.is_up() || self == Phase::Ready
    }

    /// Whether a create was sent: what it asked for may come, or is there.
    pub fn is_asked_for(self) -> bool {
        self.stands() || self == Phase::Creating
    }
}
