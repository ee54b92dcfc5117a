//! The journal: one trait, and its engines. Whatever is written in one commit is there whole after a power cut, or not at all.

pub mod sqlite;

use std::collections::BTreeMap;
use std::fmt;

use crate::model::action::Record;
use crate::model::event::Event;
use crate::model::fleet::Ledger;
use crate::model::slot::SlotRecord;

/// What a store holds.
#[derive(Debug, Default)]
pub struct Stored {
    /// Slot records with their specifications.
    pub slots: BTreeMap<String, SlotRecord>,
    /// Budgets.
    pub ledger: Ledger,
}

/// A store failed; nothing may be done to the world until it works again.
#[derive(Debug)]
pub struct StoreError {
    /// Where.
    pub location: String,
    /// What was tried, what came back, and what to do.
    pub message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}: {}", self.location, self.message)
    }
}

impl std::error::Error for StoreError {}

/// A journal.
pub trait Store {
    /// The id made with the store, which moves with it.
    fn owner(&self) -> &str;

    /// Everything that is held.
    ///
    /// # Errors
    /// When it can't be read or makes no sense; nothing is changed then.
    fn load(&self) -> Result<Stored, StoreError>;

    /// Writes all of it, or nothing.
    ///
    /// # Errors
    /// When it may not be durable.
    fn commit(&mut self, records: &[Record], events: &[Event]) -> Result<(), StoreError>;
}
