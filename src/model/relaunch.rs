//! A newer run order for the node that is there: the slot's job starts again on the same machines.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ids::{Incarnation, RunOrder};
use super::recovery::Call;

/// The version of the supervisor from which on it follows a newer run order.
pub const TAKES_ORDERS: u64 = 2;

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
    /// It was refused, and not merely not sent.
    pub refused: bool,
    /// When the API took it.
    pub written_at: Option<Timestamp>,
}
