//! Long-running operations, as far as decisions need them.

use super::failure::Failure;

/// The state of an operation, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationState {
    /// Not done.
    Running,
    /// Done without an error.
    Succeeded,
    /// Done with an error, classified.
    Failed(Failure),
}
