//! Failures of calls, sorted into the few classes that decisions depend on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::names::named;

named! {
/// The kind of refusal or accident of a failed call. Names are label values of the metrics.
FailureClass {
    /// The zone has no capacity now; waiting helps.
    StockOut = "stock_out",
    /// A quota is exhausted; waiting may help, an operator may have to raise it.
    Quota = "quota",
    /// Too many calls a minute.
    Rate = "rate",
    /// Credentials missing, expired or not allowed to do this.
    Permission = "permission",
    /// The resource does not exist.
    NotFound = "not_found",
    /// The resource exists already, or is in another state than the call needs.
    Conflict = "conflict",
    /// The request itself is wrong; repeating it won't help.
    BadRequest = "bad_request",
    /// The queue of this zone is closed to the project.
    ClosedQueue = "closed_queue",
    /// The project has no billing: the whole API is down for it.
    Billing = "billing",
    /// The API is not enabled in the project.
    ApiDisabled = "api_disabled",
    /// The resource can't be deleted in its present state.
    Undeletable = "undeletable",
    /// The node was preempted while it was being created.
    PreemptedInCreation = "preempted_in_creation",
    /// A server error, a timeout, a broken connection: may pass.
    Transient = "transient",
    /// A managed training job ended with an exit code that may pass.
    TransientExit = "transient_exit",
    /// A managed training job ended for a reason within Google's service, or one that no rule knows.
    Internal = "internal",
    /// A managed training job ran out of memory.
    OutOfMemory = "out_of_memory",
    /// An answer that is not the API's: HTML, a redirect, truncated or oversized JSON.
    Garbage = "garbage",
}
}

impl FailureClass {
    /// Whether the call was refused for want of capacity, quota or rate: waited out without a
    /// count.
    pub fn is_shortage(self) -> bool {
        matches!(self, FailureClass::StockOut | FailureClass::Quota | FailureClass::Rate)
    }

    /// Whether the same call may be taken a little later.
    pub fn passes_by_itself(self) -> bool {
        use FailureClass::*;
        matches!(self, Rate | Transient | Garbage | TransientExit | Internal | OutOfMemory)
    }

    /// Whether a create that was refused so goes on to the next zone: another one may not refuse it.
    /// A type, a queue, a quota, a network, even a right may be missing in one zone alone. A refusal
    /// that passes by itself, and one that holds for the whole project, keep it where it is.
    pub fn tries_next_zone(self) -> bool {
        use FailureClass::*;
        !self.passes_by_itself() && !matches!(self, Billing | ApiDisabled)
    }
}

/// A failed call: its class and the words that an operator needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The class.
    pub class: FailureClass,
    /// The answer or error, shortened, never with credentials.
    pub message: String,
}

impl Failure {
    /// A failure with its message.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Failure { class, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_or_holds_for_the_whole_project_keeps_a_create_in_its_zone() {
        use FailureClass::*;
        let stay: Vec<_> =
            FailureClass::ALL.into_iter().filter(|class| !class.tries_next_zone()).collect();
        assert_eq!(
            stay,
            [Rate, Billing, ApiDisabled, Transient, TransientExit, Internal, OutOfMemory, Garbage]
        );
    }
}
