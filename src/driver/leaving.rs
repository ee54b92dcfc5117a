//! The end of a term: requests that were sent are answered, the last write is made, the lock is
//! given back.

use std::time::Duration;

use jiff::Timestamp;

use super::journal::Journal;
use super::message::StoreCall;
use crate::model::fleet::Fleet;
use crate::model::view::ActionName;

/// Answers to requests that are under way are waited for this long, so that the next start need not
/// ask.
pub const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// The last write.
pub const LAST_WRITE: Duration = Duration::from_millis(2500);

/// Whether a recovery, or a wait that ends before `end`, is worth staying for.
pub fn has_work(fleet: &Fleet, end: Timestamp) -> bool {
    fleet.slots.values().any(|record| {
        let decision = record.decision.as_ref();
        let until = decision.and_then(|d| d.until);
        match decision.map(|d| if d.hold.is_some() { ActionName::Hold } else { d.action }) {
            Some(ActionName::Hold | ActionName::Escalate) => {
                record.recovery.is_some() && until.is_some_and(|at| at < end)
            }
            Some(ActionName::Wait) => record.recovery.is_some() || until.is_some_and(|at| at < end),
            Some(_) => record.recovery.is_some(),
            None => false,
        }
    })
}

/// The next step of leaving.
#[derive(Debug)]
pub enum Next {
    /// Something is under way.
    Wait,
    /// The last write.
    Call(StoreCall),
    /// All is done.
    Done,
    /// The last write takes too long.
    OutOfTime,
}

/// A process on its way out. Times are since boot.
#[derive(Debug)]
pub struct Leaving {
    // When it has to be gone.
    end: Option<Duration>,
    answers_until: Duration,
    // Since the last write is due.
    write_until: Option<Duration>,
    asked: bool,
}

impl Leaving {
    /// Begins to leave; gone by `end`, if there is one.
    pub fn new(end: Option<Duration>, now: Duration) -> Self {
        let answers_until = now + LAST_ANSWERS.min(left(end, 2, now));
        Leaving { end, answers_until, write_until: None, asked: false }
    }

    /// When [`Leaving::next`] does not wait any longer.
    pub fn due(&self) -> Duration {
        self.write_until.unwrap_or(self.answers_until)
    }

    /// Whether answers are no longer waited for.
    pub fn is_writing(&self) -> bool {
        self.write_until.is_some()
    }

    /// Whether the last write was asked for.
    pub fn has_written(&self) -> bool {
        self.asked
    }

    /// Takes the next step, with so many requests unanswered.
    pub fn next(&mut self, journal: &mut Journal, requests: usize, now: Duration) -> Next {
        let waits = journal.is_busy() || requests > 0;
        if !self.is_writing() && waits && now < self.answers_until {
            return Next::Wait;
        }
        if self.asked && !journal.is_busy() {
            return Next::Done;
        }
        let most = LAST_WRITE.min(left(self.end, 3, now));
        if now >= *self.write_until.get_or_insert(now + most) {
            return Next::OutOfTime;
        }
        if journal.is_busy() {
            return Next::Wait;
        }
        self.asked = true;
        // A request that is still on its way would meet the next leader's: then the lock ends by
        // itself.
        journal.last(requests == 0, now).map_or(Next::Done, Next::Call)
    }
}

/// So many quarters of the time that is left, if it is limited.
fn left(end: Option<Duration>, quarters: u32, now: Duration) -> Duration {
    end.map_or(Duration::MAX, |end| end.saturating_sub(now) * quarters / 4)
}
