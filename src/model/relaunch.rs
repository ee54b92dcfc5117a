//! A newer run order for the node that is there: the slot's job starts again on the same machines.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::failure::FailureClass;
use super::ids::{Incarnation, RunOrder};
use super::recovery::Call;

/// The version of the supervisor from which on it follows a newer run order.
pub const TAKES_ORDERS: u64 = 2;

/// The version from which on it waits while its order says so, and takes notices from it.
pub const TAKES_WAIT: u64 = 3;

/// An operator's wish that the job starts again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Who.
    pub who: String,
    /// When.
    pub at: Timestamp,
}

/// A run order that is being written to a node, or waits for its workers to follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relaunch {
    /// When it was decided.
    pub at: Timestamp,
    /// Why.
    pub why: String,
    /// The node that gets it.
    pub incarnation: Incarnation,
    /// The order.
    pub order: RunOrder,
    /// How far the call is; none when it was refused or not sent.
    pub call: Option<Call>,
    /// Why it was refused or not sent.
    pub failure: Option<String>,
    /// How it was refused, where it was not merely not sent.
    pub refused: Option<FailureClass>,
    /// When the node, or its workers, first showed it.
    pub written_at: Option<Timestamp>,
}

/// The present order of a node, with a flag that is being changed: no new generation, and no end of
/// what runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amendment {
    /// When it was decided.
    pub at: Timestamp,
    /// The node that gets it.
    pub incarnation: Incarnation,
    /// The order as it becomes.
    pub order: RunOrder,
    /// How far the call is; none when it was refused or not sent.
    pub call: Option<Call>,
}
