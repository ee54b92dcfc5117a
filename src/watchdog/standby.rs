//! Getting the lock: at once when nobody holds it, after having seen it stand still for one whole
//! lease when its holder is gone.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::tenure::boottime;
use super::{Signal, Watchdog};
use crate::model::lease::{Claim, Lease, Patience};
use crate::store::{StoreError, StoreFailure};

/// A store that can't be read is asked again after this; likewise when somebody else was faster.
const RETRY: Duration = Duration::from_secs(1);

/// What came of wanting the lock.
pub enum Acquired {
    /// It is ours, and the fleet is folded from the journal.
    Held,
    /// Somebody else has it, and there is no time to see whether they are gone: the line to say.
    Another(String),
    /// Told to stop.
    Stopped,
}

impl Watchdog {
    /// Wants the lock; until `deadline`, or for ever.
    pub(super) async fn acquire(
        &mut self,
        signals: &mut mpsc::UnboundedReceiver<Signal>,
        deadline: Option<Instant>,
    ) -> Result<Acquired, StoreError> {
        let began = Instant::now();
        let mut patience: Option<Patience> = None;
        let mut told = String::new();
        loop {
            // A store that does not answer must not keep anybody from being heard; a look that is
            // dropped is looked at again.
            let looked = tokio::select! {
                biased;
                signal = signals.recv() => {
                    if self.told_to_stop(signal) {
                        return Ok(Acquired::Stopped);
                    }
                    continue;
                }
                looked = self.look_at_lock(&mut patience, began, deadline, &mut told) => looked,
                () = until(deadline) => {
                    let (location, message) = (self.location.clone(), "it did not answer before the deadline".to_owned());
                    return Err(StoreError { failure: StoreFailure::Unavailable, location, message });
                }
            };
            let wait = match looked {
                Ok(Looked::Held) => return Ok(Acquired::Held),
                Ok(Looked::Another(line)) => return Ok(Acquired::Another(line)),
                Ok(Looked::Wait(wait)) => wait,
                Err(error) if error.failure == StoreFailure::Refused => return Err(error),
                Err(error) => {
                    if deadline.is_some_and(|at| Instant::now() + RETRY >= at) {
                        return Err(error);
                    }
                    if told != error.message {
                        tracing::error!("{error}; it is tried again every second");
                        told.clone_from(&error.message);
                    }
                    self.show_nobody(true);
                    RETRY
                }
            };
            self.progressed = Instant::now();
            self.alive();
            let wait = self.notify.interval().map_or(wait, |most| wait.min(most));
            tokio::select! {
                biased;
                signal = signals.recv() => {
                    if self.told_to_stop(signal) {
                        return Ok(Acquired::Stopped);
                    }
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn told_to_stop(&mut self, signal: Option<Signal>) -> bool {
        match signal {
            Some(Signal::Reload(settings)) => self.reconfigure(*settings),
            Some(Signal::NotReloaded) => {}
            Some(Signal::Stop) | None => return true,
        }
        self.notify.ready();
        false
    }

    async fn look_at_lock(
        &mut self,
        patience: &mut Option<Patience>,
        began: Instant,
        deadline: Option<Instant>,
        told: &mut String,
    ) -> Result<Looked, StoreError> {
        let (holder, ttl) = (self.claimant.holder.clone(), self.claimant.ttl);
        let Some(store) = self.journal.store() else { return Ok(Looked::Wait(RETRY)) };
        // Where renewals are a second apart, a lease of a second is given a little longer.
        let slack = store.pace() / 4;
        let patience = patience.get_or_insert_with(|| Patience::new(ttl, slack));
        let stored = store.load().await?;
        let lease = stored.lease.clone();
        let own = lease.as_ref().is_some_and(|lease| lease.holder == holder);
        let claim = if own { Claim::Take } else { patience.look(lease.as_ref(), began.elapsed()) };
        match (claim, lease) {
            (Claim::Take, lease) => {
                let epoch = Lease::next(lease.as_ref(), &holder, ttl).epoch;
                // What a person said before this tenure counts before its first decision.
                let levers = store.levers().await;
                let began = (Instant::now(), boottime());
                if !store.take(lease.as_ref(), &holder, ttl).await? {
                    return Ok(Looked::Wait(Duration::from_millis(50)));
                }
                if let Some(before) = lease.filter(|lease| !lease.released && !own) {
                    tracing::warn!(
                        "took the lock from {} (epoch {}), which did not renew it for {}",
                        before.holder,
                        before.epoch,
                        crate::model::view::span(before.ttl().max(ttl))
                    );
                }
                if deadline.is_none() {
                    tracing::info!("holding the lock (epoch {epoch}): this watchdog acts");
                }
                let owner = store.owner().to_owned();
                self.journal.taken(began);
                let levers = self.journal.hand_out(levers);
                self.begin(stored, &owner);
                self.pulled(levers);
                Ok(Looked::Held)
            }
            (Claim::Wait(wait), Some(lease)) => {
                let who = format!("{} holds the lock (epoch {})", lease.holder, lease.epoch);
                if let Some(deadline) = deadline {
                    if patience.renewed() {
                        return Ok(Looked::Another(format!(
                            "{who} and is at work: nothing to do for this run"
                        )));
                    }
                    let whole = lease.ttl().max(ttl) + slack;
                    if began + whole >= deadline {
                        let line = format!(
                            "{who}; whether it is still there takes {} to see, and the deadline is sooner: nothing was done",
                            crate::model::view::span(whole)
                        );
                        return Ok(Looked::Another(line));
                    }
                }
                if deadline.is_none() {
                    if *told != who {
                        tracing::info!("standing by: {who}");
                        told.clone_from(&who);
                    }
                    self.show_standby(stored, &lease);
                }
                Ok(Looked::Wait(wait))
            }
            (Claim::Wait(wait), None) => Ok(Looked::Wait(wait)),
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

enum Looked {
    Held,
    Another(String),
    Wait(Duration),
}
