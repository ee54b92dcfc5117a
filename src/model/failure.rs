//! Failures of calls, sorted into the few classes that decisions depend on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What kind of refusal or accident a failed call was. Names are label values of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The zone has no capacity now; waiting helps.
    StockOut,
    /// A quota is exhausted; waiting may help, a person may have to raise it.
    Quota,
    /// Too many calls a minute.
    Rate,
    /// Credentials missing, expired or not allowed to do this.
    Permission,
    /// The resource does not exist.
    NotFound,
    /// The resource exists already, or is in another state than the call needs.
    Conflict,
    /// The request itself is wrong; repeating it won't help.
    BadRequest,
    /// The node was preempted while it was being created.
    PreemptedInCreation,
    /// A server error, a timeout, a broken connection: may pass.
    Transient,
    /// An answer that is not the API's: HTML, a redirect, truncated or oversized JSON.
    Garbage,
}

impl FailureClass {
    /// The name used in logs, metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            FailureClass::StockOut => "stock_out",
            FailureClass::Quota => "quota",
            FailureClass::Rate => "rate",
            FailureClass::Permission => "permission",
            FailureClass::NotFound => "not_found",
            FailureClass::Conflict => "conflict",
            FailureClass::BadRequest => "bad_request",
            FailureClass::PreemptedInCreation => "preempted_in_creation",
            FailureClass::Transient => "transient",
            FailureClass::Garbage => "garbage",
        }
    }

    /// Whether the call was refused for want of capacity, quota or rate: waited out without a count.
    pub fn is_shortage(self) -> bool {
        matches!(self, FailureClass::StockOut | FailureClass::Quota | FailureClass::Rate)
    }
}

/// A failed call: its class and the words that a person needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The class.
    pub class: FailureClass,
    /// What came back, shortened, never with credentials.
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
        write!(f, "{} ({})", self.message, self.class.name())
    }
}

impl std::error::Error for Failure {}
