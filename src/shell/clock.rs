//! The two clocks of this machine.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

use crate::driver::now::Now;

/// Time since boot, including the time that the machine slept: a leader that was suspended must
/// know that it was.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Both clocks.
pub fn now() -> Now {
    Now { boot: boottime(), wall: Timestamp::now() }
}

/// The same moment as time since boot.
pub fn since_boot(at: Instant) -> Duration {
    boottime() + at.saturating_duration_since(Instant::now())
}
