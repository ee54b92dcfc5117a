//! How long this process may send. Asked for each request at the moment it leaves.
//!
//! A leader stops sending a third of a lease before anybody may take the lock over. The answer is
//! shared with the tasks that send, because a request may wait for a token or a connection long
//! after the driver handed it out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::now::Now;
use crate::model::action::{Action, CallOutcome};
use crate::model::failure::{Failure, FailureClass};
use crate::model::lease::sending_ends_after;

/// One term of leadership: from taking the lock to losing it or giving it back.
#[derive(Debug, Clone, Default)]
pub struct Term {
    number: u64,
    // Milliseconds since boot.
    until: Arc<AtomicU64>,
}

impl Term {
    /// Grows with each term of this process: answers to what an earlier term asked are recognised
    /// by it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// A new term begins. What was handed out in the one before is never sent.
    pub fn next(&mut self) {
        self.end();
        *self = Term { number: self.number + 1, until: Arc::default() };
    }

    /// A renewal that began at `began` (since boot) succeeded.
    pub fn renewed(&self, began: Duration, ttl: Duration) {
        let until = began + sending_ends_after(ttl);
        self.until
            .fetch_max(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// The lock is lost: what was handed out is never sent, even if this process leads again later.
    pub fn end(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Whether a request may leave at this time since boot.
    pub fn may_send(&self, boot: Duration) -> bool {
        boot.as_millis() < u128::from(self.until.load(Ordering::SeqCst))
    }

    /// Whether this request may leave now, when connecting may take so long.
    ///
    /// # Errors
    /// The answer to the request, which is not sent.
    pub fn permits(
        &self,
        action: &Action,
        now: Now,
        connecting: Duration,
    ) -> Result<(), CallOutcome> {
        let refused = if !self.may_send(now.boot) {
            "the lock was not renewed in time, and another watchdog may be at work"
        } else if !action.may_leave(now.wall, connecting) {
            "the GET that verified it would be older than 5 s; it is verified again"
        } else {
            return Ok(());
        };
        Err(CallOutcome::NotSent(Failure::new(FailureClass::Transient, refused)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_sending_ends_a_third_of_the_lease_before_its_end_and_at_once_when_it_is_lost() {
        let (mut term, ttl) = (Term::default(), Duration::from_secs(30));
        let at = Duration::from_secs;
        assert!(!term.may_send(at(100)), "nothing was taken yet");
        term.renewed(at(100), ttl);
        assert!(term.may_send(at(119)) && !term.may_send(at(120)));
        // A renewal that comes in late never shortens what a newer one gave.
        term.renewed(at(90), ttl);
        assert!(term.may_send(at(119)));
        let handed_out = term.clone();
        term.next();
        term.renewed(at(110), ttl);
        assert!(term.may_send(at(119)));
        assert!(
            !handed_out.may_send(at(111)),
            "a request of the former term stays unsent in the next"
        );
        assert_ne!(handed_out.number(), term.number());
    }

    #[test]
    fn s1_a_request_leaves_only_within_the_term_and_soon_after_the_get_that_verified_it() {
        let wall = jiff::Timestamp::UNIX_EPOCH + Duration::from_secs(1000);
        let now = Now { boot: Duration::from_secs(100), wall };
        let incarnation = crate::model::ids::Incarnation { id: "1".into(), created: wall };
        let delete = |verified: jiff::Timestamp| Action::Delete {
            filling: Default::default(),
            force: false,
            stray: false,
            slot: "a".into(),
            zone: "z".into(),
            incarnation: incarnation.clone(),
            verified,
            request_id: None,
        };
        let (second, connecting) = (Duration::from_secs(1), Duration::from_secs(2));
        let term = Term::default();
        assert!(term.permits(&delete(wall), now, connecting).is_err(), "nothing was taken");
        term.renewed(now.boot, second * 30);
        assert!(term.permits(&delete(wall - second * 3), now, connecting).is_ok());
        assert!(term.permits(&delete(wall - second * 4), now, connecting).is_err());
        term.end();
        let refused = term.permits(&delete(wall), now, connecting);
        assert!(matches!(refused, Err(CallOutcome::NotSent(_))), "the lock is lost");
    }
}
