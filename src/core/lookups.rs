//! What was looked up once before something is decided: whether a create could follow (S20), and who
//! deleted a node that is missing.

use jiff::Timestamp;

use crate::model::action::{CreateCheck, Deletion};
use crate::model::failure::Failure;
use crate::model::fleet::Fleet;

use super::turn::Turn;

/// Takes in whether a create could follow.
pub fn create_checked(
    fleet: &mut Fleet,
    slot: &str,
    began: Timestamp,
    found: CreateCheck,
    turn: &mut Turn,
) {
    let _ = (fleet, slot, began, found, turn);
}

/// Takes in the delete operations on a slot's node.
pub fn deletions(
    fleet: &mut Fleet,
    slot: &str,
    began: Timestamp,
    result: Result<Vec<Deletion>, Failure>,
    turn: &mut Turn,
) {
    let _ = (fleet, slot, began, result, turn);
}
