//! The time by both clocks.

use std::time::Duration;

use jiff::Timestamp;

/// Both clocks, read at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Time since boot, including the time that the machine slept: leases, pauses and deadlines.
    pub boot: Duration,
    /// The wall clock: everything that is decided and stored.
    pub wall: Timestamp,
}
