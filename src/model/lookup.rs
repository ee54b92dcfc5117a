//! What is looked up once before something is decided about a slot.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Whether a create could follow a delete (S20).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateCheck {
    /// A create is certainly impossible: why, with the command that mends it.
    pub certain: Option<String>,
    /// Reasons that may stand in its way; told, not held.
    pub doubts: Vec<String>,
}

/// A delete operation on a node, whoever asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The operation's full name.
    pub operation: String,
    /// When the API accepted it.
    pub at: Timestamp,
}
