//! The journal: one trait, and its engines. Whatever is written in one commit is there whole after
//! a power cut, or not at all; and it is written only while the lock is held by the epoch that
//! writes.

pub mod marker;
pub mod object;
pub mod sqlite;
pub mod upgrade;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::model::action::Record;
use crate::model::command::Command;
use crate::model::event::Event;
use crate::model::fleet::Ledger;
use crate::model::lease::Lease;
use crate::model::slot::SlotRecord;
use crate::model::tally::{Sum, Tally};

/// The content of a store.
#[derive(Debug, Default)]
pub struct Stored {
    /// The id made with the store: known only when its state was read, since another process may
    /// have made it meanwhile.
    pub owner: String,
    /// Slot records with their specifications.
    pub slots: BTreeMap<String, SlotRecord>,
    /// Budgets.
    pub ledger: Ledger,
    /// Counters.
    pub tally: Tally,
    /// The lock.
    pub lease: Option<Lease>,
}

impl Stored {
    /// All of it as one batch for another store; its lock does not move with it.
    pub fn into_batch(self, events: Vec<Event>) -> Batch {
        let mut records = vec![Record::Ledger(Box::new(self.ledger))];
        for (name, slot) in self.slots {
            if let Some(spec) = &slot.spec {
                records.push(Record::Spec(name, Value::Object(spec.body().clone())));
            }
            records.push(Record::Slot(Box::new(slot)));
        }
        Batch { records, events, tally: self.tally.into_iter().collect() }
    }
}

/// The changes of one atomic write.
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows, in their order.
    pub records: Vec<Record>,
    /// Events.
    pub events: Vec<Event>,
    /// Sums that changed.
    pub tally: Vec<(String, Sum)>,
}

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFailure {
    /// It can't be reached or written now, or it is not known whether it was written: load it
    /// again, then go on.
    Unavailable,
    /// Another process holds the lock, or none does: nothing was written.
    Fenced,
    /// The state is newer, torn, alien or moved away: nothing is changed, an operator must look.
    Refused,
}

/// A store failed; nothing may be done to the world until it works again.
#[derive(Debug, Clone)]
pub struct StoreError {
    /// The kind of failure.
    pub failure: StoreFailure,
    /// Where.
    pub location: String,
    /// The attempt, the answer, and what to do.
    pub message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}: {}", self.location, self.message)
    }
}

impl std::error::Error for StoreError {}

/// A journal with a lock. After a failed write it must be loaded before it is written again.
#[async_trait]
pub trait Store: Send {
    /// As in `state`.
    fn location(&self) -> &str;

    /// The id made with the store, which moves with it.
    fn owner(&self) -> &str;

    /// The least time between the ends of two writes.
    fn pace(&self) -> Duration;

    /// Everything that is held.
    ///
    /// # Errors
    /// When it can't be read or makes no sense; nothing is changed then.
    async fn load(&mut self) -> Result<Stored, StoreError>;

    /// Takes the lock if it is still as `seen`. False: another process was faster.
    ///
    /// # Errors
    /// When it is not known whether it was taken.
    async fn take(
        &mut self,
        seen: Option<&Lease>,
        holder: &str,
        ttl: Duration,
    ) -> Result<bool, StoreError>;

    /// Writes all of it, or nothing, and renews the lock.
    ///
    /// # Errors
    /// When it may not be durable, or the lock is no longer held.
    async fn commit(&mut self, batch: &Batch) -> Result<(), StoreError>;

    /// Gives the lock back, with a last batch.
    ///
    /// # Errors
    /// As with a commit; the lock ends by itself then.
    async fn release(&mut self, batch: &Batch) -> Result<(), StoreError>;

    /// The newest events, oldest first.
    ///
    /// # Errors
    /// When they can't be read.
    async fn events(&mut self, last: usize) -> Result<Vec<Event>, StoreError>;

    /// Puts a command in for whoever holds the lock; needs no lock itself.
    ///
    /// # Errors
    /// When it may not be there.
    async fn submit(&mut self, command: &Command) -> Result<(), StoreError>;

    /// Commands that were given and have not worked yet, in their order.
    ///
    /// # Errors
    /// When they can't be read.
    async fn commands(&mut self) -> Result<Vec<Command>, StoreError>;

    /// Whether its calls block the thread that they are made on.
    fn blocks(&self) -> bool {
        false
    }

    /// Becomes the home of what another store held under this owner's id. The lock must be held.
    ///
    /// # Errors
    /// As with a commit; refused when another owner's state is here already.
    async fn adopt(&mut self, owner: &str, batch: &Batch) -> Result<(), StoreError>;

    /// Marks itself as left for another place: no process opens it for writing again. The lock
    /// must be held.
    ///
    /// # Errors
    /// As with a commit.
    async fn leave_for(&mut self, location: &str) -> Result<(), StoreError>;
}

/// The message of a store that was left for another.
fn moved(to: &str) -> String {
    format!("this state was moved to {to}: set `state = \"{to}\"`; nothing was changed")
}

/// The message of a commit that came too late.
fn fenced(lease: Option<&Lease>) -> String {
    match lease.filter(|lease| !lease.released) {
        Some(lease) => format!(
            "the lock is held by {} (epoch {}); nothing was written",
            lease.holder, lease.epoch
        ),
        None => "the lock is not held; nothing was written".to_owned(),
    }
}
