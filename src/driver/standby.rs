//! Getting the lock: at once when it is free, after having seen it stand still for one whole lease
//! when its holder is gone.
//!
//! A standby loads the state again and again. When the lock may be taken, it reads the operator
//! commands first, so that what was commanded before its term counts before its first decision, and
//! then takes the lock as it saw it.

use std::time::Duration;

use super::message::{
    Claimant, Instruction, Level, Message, Mode, Shown, StoreCall, StoreFacts, says_the_same,
};
use crate::model::lease::Lease;

use super::patience::{Claim, Patience};
use crate::model::command::Command;
use crate::model::time::span;
use crate::store::{StoreError, StoreFailure, Stored};

/// A store that fails is asked again after this.
const RETRY: Duration = Duration::from_secs(1);
/// When another process was faster, the lock is looked at again after this.
const LOST_THE_RACE: Duration = Duration::from_millis(50);

/// The consequence of an answer.
#[derive(Debug)]
pub enum Claimed {
    /// Not yet.
    Waiting,
    /// The lock is ours.
    Held(Box<Taken>),
    /// Another watchdog has it, and there is no time to see whether it is gone: the line to print.
    Another(String),
    /// The state can't be used, or does not answer in time.
    Failed(StoreError),
}

/// A term begins with this.
#[derive(Debug)]
pub struct Taken {
    /// The state as it was when the lock was taken.
    pub stored: Stored,
    /// The operator commands that wait.
    pub commands: Vec<Command>,
    /// When taking the lock began, since boot.
    pub began: Duration,
}

#[derive(Debug)]
enum Stage {
    Waiting { until: Duration },
    Loading,
    Commands(Box<Stored>),
    Taking(Box<Taken>),
}

/// A process that wants the lock.
#[derive(Debug)]
pub struct Standby {
    claimant: Claimant,
    facts: StoreFacts,
    began: Duration,
    patience: Patience,
    // The last line of the log, so that it is written once.
    told: String,
    stage: Stage,
}

impl Standby {
    /// Begins to want the lock.
    pub fn new(claimant: Claimant, facts: StoreFacts, now: Duration) -> Self {
        // Where renewals are a second apart, a lease of a second is given a little longer.
        let patience = Patience::new(claimant.ttl, facts.pace / 4);
        let (told, stage) = (String::new(), Stage::Waiting { until: now });
        Standby { claimant, facts, began: now, patience, told, stage }
    }

    /// When [`Standby::begin`] has something to do; never while a call is under way.
    pub fn due(&self) -> Option<Duration> {
        match self.stage {
            Stage::Waiting { until } => Some(until),
            _ => None,
        }
    }

    /// Whether the lock may be ours already, and only the answer is missing.
    pub fn is_taking(&self) -> bool {
        matches!(self.stage, Stage::Taking(_))
    }

    /// The call that is due.
    pub fn begin(&mut self, now: Duration) -> Option<StoreCall> {
        self.due().filter(|at| *at <= now)?;
        self.stage = Stage::Loading;
        Some(StoreCall::Load)
    }

    /// The error of a store that has not answered when the time is over.
    pub fn out_of_time(&self) -> StoreError {
        let (location, message) =
            (self.facts.location.clone(), "it did not answer before the deadline");
        StoreError { failure: StoreFailure::Unavailable, location, message: message.to_owned() }
    }

    /// Takes in the answer to the call under way.
    pub fn answered(
        &mut self,
        answer: Message,
        mode: Mode,
        now: Duration,
        out: &mut Vec<Instruction>,
    ) -> Claimed {
        let stage = std::mem::replace(&mut self.stage, Stage::Waiting { until: now });
        match (stage, answer) {
            (Stage::Loading, Message::Loaded(Ok(stored))) => self.seen(stored, mode, now, out),
            (Stage::Commands(stored), Message::Commands(Ok(commands))) => {
                let seen = stored.lease.clone();
                let Claimant { holder, ttl } = self.claimant.clone();
                out.push(Instruction::Store(StoreCall::Take { seen, holder, ttl }));
                let taken = Taken { stored: *stored, commands, began: now };
                self.stage = Stage::Taking(Box::new(taken));
                Claimed::Waiting
            }
            (Stage::Taking(taken), Message::Taken(Ok(true))) => {
                self.tell_of_the_take(taken.stored.lease.as_ref(), mode, out);
                Claimed::Held(taken)
            }
            (Stage::Taking(_), Message::Taken(Ok(false))) => {
                self.stage = Stage::Waiting { until: now + LOST_THE_RACE };
                Claimed::Waiting
            }
            // Also for commands: a leader must know whether all is paused.
            (
                _,
                Message::Loaded(Err(error))
                | Message::Commands(Err(error))
                | Message::Taken(Err(error)),
            ) => self.failed(error, mode, now, out),
            (stage, _) => {
                // An answer that nothing asked for changes nothing.
                self.stage = stage;
                Claimed::Waiting
            }
        }
    }

    fn seen(
        &mut self,
        stored: Box<Stored>,
        mode: Mode,
        now: Duration,
        out: &mut Vec<Instruction>,
    ) -> Claimed {
        let lease = stored.lease.clone();
        let own = lease.as_ref().is_some_and(|lease| lease.holder == self.claimant.holder);
        let claim = if own { Claim::Take } else { self.patience.look(lease.as_ref(), now) };
        let wait = match claim {
            Claim::Take => {
                self.stage = Stage::Commands(stored);
                out.push(Instruction::Store(StoreCall::Commands));
                return Claimed::Waiting;
            }
            Claim::Wait(wait) => wait,
        };
        self.stage = Stage::Waiting { until: now + wait };
        let Some(lease) = lease else { return Claimed::Waiting };
        let who = format!("{} holds the lock (epoch {})", lease.holder, lease.epoch);
        if let Some(deadline) = mode.deadline() {
            return self.no_time_for(&lease, &who, deadline);
        }
        if self.told != who {
            out.push(Instruction::Say(Level::Info, format!("standing by: {who}")));
            self.told = who;
        }
        out.push(Instruction::Show(Shown::Standby(stored, Box::new(lease))));
        Claimed::Waiting
    }

    /// Whether a cycle with a deadline leaves its work to the one that holds the lock.
    fn no_time_for(&self, lease: &Lease, who: &str, deadline: Duration) -> Claimed {
        if self.patience.renewed() {
            return Claimed::Another(format!("{who} and is at work: nothing to do for this run"));
        }
        let whole = lease.ttl().max(self.claimant.ttl) + self.facts.pace / 4;
        if self.began + whole < deadline {
            return Claimed::Waiting;
        }
        Claimed::Another(format!(
            "{who}; checking whether it still runs takes {}, longer than the deadline; nothing was done",
            span(whole)
        ))
    }

    fn tell_of_the_take(&self, before: Option<&Lease>, mode: Mode, out: &mut Vec<Instruction>) {
        let own = before.is_some_and(|lease| lease.holder == self.claimant.holder);
        if let Some(before) = before.filter(|lease| !lease.released && !own) {
            let text = format!(
                "took the lock from {} (epoch {}), which did not renew it for {}",
                before.holder,
                before.epoch,
                span(before.ttl().max(self.claimant.ttl))
            );
            out.push(Instruction::Say(Level::Warn, text));
        }
        if mode == Mode::Serve {
            let epoch = Lease::next(before, &self.claimant.holder, self.claimant.ttl).epoch;
            let text = format!("acquired the lock (epoch {epoch}); now leading");
            out.push(Instruction::Say(Level::Info, text));
        }
    }

    fn failed(
        &mut self,
        error: StoreError,
        mode: Mode,
        now: Duration,
        out: &mut Vec<Instruction>,
    ) -> Claimed {
        let too_late = mode.deadline().is_some_and(|at| now + RETRY >= at);
        if error.failure == StoreFailure::Refused || too_late {
            return Claimed::Failed(error);
        }
        if !says_the_same(&self.told, &error.message) {
            let text = format!("{error}; it is tried again every second");
            out.push(Instruction::Say(Level::Error, text));
            self.told = error.message;
        }
        out.push(Instruction::Show(Shown::Unknown { store_failing: true }));
        self.stage = Stage::Waiting { until: now + RETRY };
        Claimed::Waiting
    }
}
