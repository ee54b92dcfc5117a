//! The loop of whoever holds the lock: polls, inputs, the journal, signals, in one place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::journal::Finished;
use super::{Signal, Watchdog};
use crate::decide::next_wake;
use crate::model::action::Input;
use crate::model::fleet::{after, elapsed};
use crate::model::lever::Lever;
use crate::model::view::ActionName;
use crate::store::{StoreError, StoreFailure};

/// The loop turns at least this often.
const LONGEST: Duration = Duration::from_secs(60);

/// Why the loop ended.
pub enum Left {
    /// Told to stop.
    Stopped,
    /// Nothing is due before the deadline, or it has come.
    Finished,
    /// Somebody else holds the lock now.
    LockLost,
}

impl Watchdog {
    /// Polls and recovers until told to stop, until the lock is lost or, with a deadline, until
    /// nothing is due before it.
    pub(super) async fn hold(
        &mut self,
        signals: &mut mpsc::UnboundedReceiver<Signal>,
        deadline: Option<Instant>,
    ) -> Result<Left, StoreError> {
        let mut next_poll = Instant::now();
        let mut polling = false;
        loop {
            let now = Instant::now();
            if deadline.is_some_and(|at| now >= at) {
                return Ok(Left::Finished);
            }
            if now >= next_poll && !polling {
                polling = true;
                next_poll = now + self.settings.poll.every;
                self.journal.ask_for_levers();
                self.poll();
            }
            let metrics = Arc::clone(&self.metrics);
            self.journal.begin(|events| metrics.sums().changes(events));
            self.alive();
            let core = now + self.until_wake();
            let timers =
                [Some(core), self.journal.due(), Some(next_poll).filter(|_| !polling), deadline];
            let wake = timers.into_iter().flatten().min().unwrap_or(core);
            tokio::select! {
                biased;
                signal = signals.recv() => match signal {
                    Some(Signal::Reload(settings)) => {
                        let every = self.settings.poll.every;
                        self.reconfigure(*settings);
                        if self.settings.poll.every != every {
                            next_poll = Instant::now();
                        }
                        self.turn(Input::Configured(Box::new(self.settings.clone())));
                        self.notify.ready();
                    }
                    Some(Signal::NotReloaded) => self.notify.ready(),
                    Some(Signal::Stop) | None => return Ok(Left::Stopped),
                },
                finished = self.journal.finished() => {
                    if let Some(left) = self.finished(finished)? {
                        return Ok(left);
                    }
                }
                Some(input) = self.inputs.recv() => {
                    polling &= !matches!(input, Input::Polled(_));
                    self.arrived(input);
                }
                () = tokio::time::sleep_until(wake.into()) => {
                    if Instant::now() >= core {
                        self.turn(Input::Tick);
                    }
                }
            }
            let quiet =
                !polling && self.under_way == 0 && self.fleet.polls > 0 && self.journal.is_quiet();
            if deadline.is_some_and(|at| quiet && !self.due_before(at)) {
                return Ok(Left::Finished);
            }
        }
    }

    fn finished(&mut self, finished: Finished) -> Result<Option<Left>, StoreError> {
        let error = match finished {
            Finished::Written(batch, then) => {
                self.written(&batch, then);
                return Ok(None);
            }
            Finished::Reloaded(stored, levers) => {
                self.reloaded(*stored);
                self.pulled(levers);
                return Ok(None);
            }
            Finished::Pulled(levers) => {
                self.pulled(levers);
                return Ok(None);
            }
            Finished::Failed(error, then) => {
                self.not_written(&error, &then);
                error
            }
            Finished::StillFailing(error) => {
                tracing::error!("{error}; it is tried again every second");
                error
            }
        };
        match error.failure {
            StoreFailure::Fenced => {
                self.journal.lost();
                self.show_nobody(false);
                tracing::warn!("the lock is lost: nothing is decided here until it is ours again");
                Ok(Some(Left::LockLost))
            }
            StoreFailure::Refused => Err(error),
            StoreFailure::Unavailable => Ok(None),
        }
    }

    pub(super) fn pulled(&mut self, levers: Vec<Lever>) {
        if !levers.is_empty() {
            self.turn(Input::Pulled(levers));
        }
    }

    fn until_wake(&self) -> Duration {
        let longest = self.notify.interval().map_or(LONGEST, |most| most.min(LONGEST));
        if self.store_failing {
            return longest;
        }
        let wake = next_wake(&self.fleet)
            .map(|at| elapsed(Timestamp::now(), at).max(Duration::from_millis(1)));
        wake.map_or(longest, |wake| wake.min(longest))
    }

    /// Whether a recovery, or a wait that ends in time, is worth staying for.
    fn due_before(&self, deadline: Instant) -> bool {
        let end = after(Timestamp::now(), deadline.saturating_duration_since(Instant::now()));
        self.fleet.slots.iter().any(|(name, record)| {
            let decision = self.fleet.memory.get(name).and_then(|m| m.decision.as_ref());
            let until = decision.and_then(|d| d.until);
            match decision.map(|d| if d.hold.is_some() { ActionName::Hold } else { d.action }) {
                Some(ActionName::Hold | ActionName::Escalate) => {
                    record.recovery.is_some() && until.is_some_and(|at| at < end)
                }
                Some(ActionName::Wait) => {
                    record.recovery.is_some() || until.is_some_and(|at| at < end)
                }
                Some(_) => record.recovery.is_some(),
                None => false,
            }
        })
    }
}
