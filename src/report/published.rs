//! The snapshot that the shell publishes after each turn, and the HTTP handlers read.

use std::sync::{Arc, RwLock};

use jiff::Timestamp;

use crate::model::view::StatusDocument;

/// Whether this process may act.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lock {
    /// Not known yet.
    #[default]
    Unknown,
    /// It is ours.
    Held,
    /// Somebody else's, by that name: the slots are as its journal has them.
    StandingBy(String),
}

/// The state of the service as of its last turn.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The slots.
    pub status: StatusDocument,
    /// The end of the last turn of the loop.
    pub turned_at: Option<Timestamp>,
    /// Polls completed, whether or not every zone answered.
    pub polls: u64,
    /// The journal can't be written: nothing is done.
    pub store_failing: bool,
    /// Journaled calls without a known result.
    pub intents_pending: usize,
    /// Judged slots that may still go into recovery.
    pub budget_remaining: usize,
    /// `dry_run`.
    pub dry_run: bool,
    /// Who may act.
    pub lock: Lock,
}

/// Shared between the shell and the handlers.
#[derive(Debug, Clone, Default)]
pub struct Published(Arc<RwLock<Arc<Snapshot>>>);

impl Published {
    /// Replaces the snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        *self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// The present snapshot.
    pub fn get(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
