//! Commits that wait for the journal, and the order in which they are handed out.
//!
//! Commits that fall together become one write. What a commit allows is handed out only when that
//! write has succeeded; when it fails, everything that was decided since is thrown away with it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::model::action::{Action, CallOutcome, Input, Record};
use crate::model::command::Command;
use crate::model::event::Event;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Stray};
use crate::model::phase::Phase;
use crate::model::step::Call;
use crate::store::Batch;

/// Commits that wait for the next write.
#[derive(Debug, Default)]
pub struct Queue {
    batch: Batch,
    then: Vec<Action>,
    failing: bool,
    // Handed out, and perhaps not out of the store yet.
    handed_out: BTreeSet<String>,
    // Some of them were forgotten with a write that failed.
    forgot: bool,
}

impl Queue {
    /// Adds a commit to the next write.
    pub fn push(&mut self, records: Vec<Record>, events: Vec<Event>, then: Vec<Action>) {
        self.batch.records.extend(records);
        self.batch.events.extend(events);
        self.then.extend(then);
    }

    /// Whether anything waits.
    pub fn waits(&self) -> bool {
        !(self.batch.records.is_empty() && self.batch.events.is_empty() && self.then.is_empty())
    }

    /// The store must be read again before it is written.
    pub fn is_failing(&self) -> bool {
        self.failing
    }

    /// A write begins: this is what it holds, and what it allows.
    pub fn take(&mut self) -> (Batch, Vec<Action>) {
        (std::mem::take(&mut self.batch), std::mem::take(&mut self.then))
    }

    /// The write failed. Returns all actions that are not carried out: its own, and those that were
    /// decided since.
    pub fn failed(&mut self, mut then: Vec<Action>) -> Vec<Action> {
        self.failing = true;
        self.forgot |= !std::mem::take(&mut self.handed_out).is_empty();
        // Later decisions rest on what was not written.
        self.batch = Batch::default();
        then.append(&mut self.then);
        then
    }

    /// The store was read again and can be written.
    pub fn reloaded(&mut self) {
        (self.failing, self.forgot) = (false, false);
    }

    /// Commands that were handed out may be forgotten: nothing is decided before they can be read
    /// again.
    pub fn has_forgotten_commands(&self) -> bool {
        self.forgot
    }

    /// The last write: what happened. Nothing where requests wait that are not sent any longer: with their
    /// intents all else stays behind, and the next start reads back what it needs.
    pub fn last(&mut self) -> Batch {
        let (batch, then) = self.take();
        if then.is_empty() { batch } else { Batch::default() }
    }

    /// The commands in the store that were not handed out before.
    pub fn fresh(&mut self, commands: Vec<Command>) -> Vec<Command> {
        commands.into_iter().filter(|command| self.handed_out.insert(command.id.clone())).collect()
    }
}

/// Requests that are still wanted, and the answers for those that were called off, paused or left
/// to a dry run while their intent was being written (S7).
pub fn apart(fleet: &Fleet, then: Vec<Action>, now: Timestamp) -> (Vec<Action>, Vec<Input>) {
    let is_intended = |action: &Action| {
        let patches = matches!(action, Action::Patch { .. });
        if fleet.settings.dry_run || (!patches && is_paused(fleet, whose(fleet, action), now)) {
            return false;
        }
        if let Action::Delete { slot, zone, incarnation, stray: true, .. } = action {
            let stray = fleet.ledger.strays.get(&Stray::key(zone, slot));
            return stray.is_some_and(|stray| {
                let removal = stray.removal.as_ref();
                let intended = removal.is_some_and(|r| r.call == Some(Call::Intended));
                intended && stray.incarnation.as_ref() == Some(incarnation)
            });
        }
        if let Action::Patch { slot, zone, patch, stray: true, .. } = action {
            let stray = fleet.ledger.strays.get(&Stray::key(zone, slot));
            return stray.is_some_and(|stray| stray.intends(patch));
        }
        let record = fleet.slots.get(action.slot());
        if let Action::Create { filling, .. } = action
            && record.is_some_and(|record| record.intends_ahead(filling))
        {
            return true;
        }
        let phase = match action {
            Action::Delete { .. } => Phase::Deleting,
            Action::Create { .. } => Phase::Creating,
            Action::Patch { patch, .. } => {
                return record.is_some_and(|record| record.job.intends(patch));
            }
        };
        record.and_then(|record| record.recovery.as_ref()).is_some_and(|r| r.intends(phase))
    };
    let (intended, called_off): (Vec<_>, Vec<_>) = then.into_iter().partition(is_intended);
    let answer = |action: Action| {
        let text = "it was called off before it was sent";
        let outcome = CallOutcome::NotSent(Failure::new(FailureClass::Transient, text));
        action.answer(outcome)
    };
    (intended, called_off.into_iter().map(answer).collect())
}

/// The slot whose pause counts: a late twin of a training job is cancelled for its lineage's slot.
fn whose<'a>(fleet: &'a Fleet, action: &'a Action) -> &'a str {
    let stray = match action {
        Action::Delete { slot, zone, stray: true, .. } => {
            fleet.ledger.strays.get(&Stray::key(zone, slot))
        }
        _ => None,
    };
    let of = |stray: &'a Stray| match &stray.twin {
        Some(twin) => twin.slot.as_str(),
        None => stray.made_for(),
    };
    stray.map_or(action.slot(), of)
}

/// Whether a slot, or a stray of that name, is paused. A patch is none of this: a pause is told to the
/// hosts by one.
fn is_paused(fleet: &Fleet, name: &str, now: Timestamp) -> bool {
    let record = fleet.slots.get(name).or_else(|| fleet.left.get(name));
    let own = record.and_then(|record| record.paused.as_ref());
    let pauses = [own, fleet.ledger.left_paused.get(name), fleet.ledger.paused.as_ref()];
    pauses.into_iter().flatten().any(|pause| pause.holds(now))
}
