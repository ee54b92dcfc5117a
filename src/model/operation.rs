//! Long-running operations, as far as decisions need them.

use super::failure::Failure;

/// What a look at an operation showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationState {
    /// Not done.
    Running,
    /// Done without an error.
    Succeeded,
    /// Done with an error, classified.
    Failed(Failure),
}
