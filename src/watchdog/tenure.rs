//! How long this process may send. Asked right before each mutation leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::model::lease::sending_ends_after;

/// Time since boot, the time that the machine slept included: a holder that was suspended must know
/// that it was.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Shared between the loop, which extends it, and the tasks that send.
#[derive(Debug, Clone, Default)]
pub struct Tenure(Arc<AtomicU64>);

impl Tenure {
    /// A renewal that was begun at `began` (since boot) succeeded.
    pub fn renewed(&self, began: Duration, ttl: Duration) {
        let until = began + sending_ends_after(ttl);
        self.0.fetch_max(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// The lock is somebody else's: whatever was handed out in this tenure is never sent, also when
    /// another tenure of this process follows.
    pub fn lost(&mut self) {
        self.0.store(0, Ordering::SeqCst);
        self.0 = Arc::default();
    }

    /// Whether a request may leave now.
    pub fn may_send(&self) -> bool {
        boottime().as_millis() < u128::from(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_sending_ends_a_third_of_the_lease_before_its_end_and_at_once_when_it_is_lost() {
        let mut tenure = Tenure::default();
        assert!(!tenure.may_send(), "nothing was taken yet");
        // Short enough for a machine that has just booted, long enough for one that is slow.
        let ttl = Duration::from_secs(20);
        tenure.renewed(boottime(), ttl);
        assert!(tenure.may_send());
        let handed_out = tenure.clone();
        tenure.lost();
        assert!(!tenure.may_send() && !handed_out.may_send());
        tenure.renewed(boottime().saturating_sub(ttl * 2 / 3), ttl);
        assert!(!tenure.may_send(), "two thirds have passed since the renewal began");
        // A renewal that comes in late never shortens what a newer one gave.
        tenure.renewed(boottime(), ttl);
        tenure.renewed(boottime().saturating_sub(ttl), ttl);
        assert!(tenure.may_send());
        assert!(!handed_out.may_send(), "a call of the former tenure stays unsent in the next one");
    }
}
