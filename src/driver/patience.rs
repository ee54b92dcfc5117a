//! When a standby may take the lock: it has watched the same lease stand still for one whole lease,
//! by its own clock.

use std::time::Duration;

use crate::model::lease::Lease;

/// The next step of a process that wants the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// No process holds it, or its holder is gone: take it.
    Take,
    /// A process holds it, as far as can be told: look again after this long at the latest.
    Wait(Duration),
}

/// Watches another process's lease by a clock of its own: what any other clock says is not
/// believed.
#[derive(Debug)]
pub struct Patience {
    own: Duration,
    slack: Duration,
    seen: Option<(Lease, Duration)>,
    renewed: bool,
}

impl Patience {
    /// For a process whose own lease is `own`; `slack` is added where renewals can't come as often
    /// as one would like.
    pub fn new(own: Duration, slack: Duration) -> Self {
        Patience { own, slack, seen: None, renewed: false }
    }

    /// A read of the lease was complete at `now`, by a clock that only goes forward.
    pub fn look(&mut self, lease: Option<&Lease>, now: Duration) -> Claim {
        let Some(lease) = lease.filter(|lease| !lease.released) else { return Claim::Take };
        let since = match &self.seen {
            Some((seen, since)) if seen == lease => *since,
            before => {
                self.renewed |= before.is_some();
                self.seen = Some((lease.clone(), now));
                now
            }
        };
        let whole = lease.ttl().max(self.own) + self.slack;
        let left = (since + whole).saturating_sub(now);
        if left.is_zero() { Claim::Take } else { Claim::Wait(left.min(whole / 8)) }
    }

    /// The holder was seen at work: the lease was renewed while it was watched.
    pub fn renewed(&self) -> bool {
        self.renewed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::lease::sending_ends_after;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn l4_a_dead_holders_lock_is_taken_after_one_whole_lease_and_not_before() {
        let lease = Lease::next(None, "a", TTL);
        let mut patience = Patience::new(TTL, Duration::ZERO);
        assert_eq!(patience.look(None, at(0)), Claim::Take, "it was never held");
        assert!(
            matches!(patience.look(Some(&lease), at(100)), Claim::Wait(_)),
            "how long it stood still before is not known"
        );
        assert!(matches!(patience.look(Some(&lease), at(129)), Claim::Wait(left) if left <= at(1)));
        assert_eq!(patience.look(Some(&lease), at(130)), Claim::Take);
        assert!(!patience.renewed());
    }

    #[test]
    fn s9_a_renewal_restarts_the_wait_and_so_does_another_holder() {
        let mut lease = Lease::next(None, "a", TTL);
        let mut patience = Patience::new(TTL, Duration::ZERO);
        patience.look(Some(&lease), at(0));
        lease.renewals += 1;
        assert!(matches!(patience.look(Some(&lease), at(30)), Claim::Wait(_)));
        assert!(patience.renewed());
        let other = Lease::next(Some(&lease), "b", TTL);
        assert!(matches!(patience.look(Some(&other), at(59)), Claim::Wait(_)));
        assert!(matches!(patience.look(Some(&other), at(88)), Claim::Wait(_)));
        assert_eq!(patience.look(Some(&other), at(89)), Claim::Take);
    }

    #[test]
    fn s9_the_longer_of_both_leases_counts() {
        let lease = Lease::next(None, "a", TTL);
        let mut patience = Patience::new(at(1), Duration::ZERO);
        patience.look(Some(&lease), at(0));
        assert!(matches!(patience.look(Some(&lease), at(29)), Claim::Wait(_)));
        assert!(sending_ends_after(TTL) < TTL, "the holder has stopped by then");
    }

    #[test]
    fn what_was_given_back_is_taken_at_once_with_a_new_epoch() {
        let mut lease = Lease::next(None, "a", TTL);
        lease.released = true;
        assert_eq!(Patience::new(TTL, Duration::ZERO).look(Some(&lease), at(0)), Claim::Take);
        let next = Lease::next(Some(&lease), "b", TTL);
        assert_eq!(next.epoch, lease.epoch + 1);
        assert!(next.is_held_by("b", 2) && !next.is_held_by("a", 1));
    }
}
