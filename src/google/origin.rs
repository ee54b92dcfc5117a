//! Where a failure came from: the same text means different things at the end of a create's operation
//! and anywhere else.

use serde_json::Value;

use crate::model::event::Verb;
use crate::model::failure::FailureClass;
use crate::resource::texts::Text;

/// Which call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A create of a node or a queued resource.
    Create,
    /// A delete.
    Delete,
    /// A change of a node's metadata.
    Patch,
    /// Whatever changes nothing.
    Read,
}

/// How a failure was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The answer to the call.
    AtOnce,
    /// Its operation, or the state of its queued resource.
    Operation,
}

/// Where a failure came from: the same text means different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The call.
    pub call: Call,
    /// How it was told.
    pub by: By,
    /// Of a create: whether it asked for Spot capacity.
    pub spot: bool,
}

impl Origin {
    /// The answer to a read.
    pub const READ: Origin = Origin { call: Call::Read, by: By::AtOnce, spot: false };
    /// The answer to a delete.
    pub const DELETE: Origin = Origin { call: Call::Delete, by: By::AtOnce, spot: false };

    /// The answer to a change of a node's metadata.
    pub const PATCH: Origin = Origin { call: Call::Patch, by: By::AtOnce, spot: false };

    /// The answer to a create with this body.
    pub fn create(body: &Value) -> Origin {
        let scheduling = body.get("schedulingConfig");
        let is = |field: &str| {
            scheduling.and_then(|s| s.get(field)).and_then(Value::as_bool).unwrap_or_default()
        };
        // Preemptible is the older word for it, on the same capacity.
        Origin { call: Call::Create, by: By::AtOnce, spot: is("spot") || is("preemptible") }
    }

    /// The operation of a create or delete.
    pub fn operation(verb: Verb, spot: bool) -> Origin {
        let call = match verb {
            Verb::Create => Call::Create,
            Verb::Delete => Call::Delete,
        };
        Origin { call, by: By::Operation, spot }
    }

    /// Whether a text of the table may give its class to a failure that came from here.
    pub fn fits(self, text: &Text, class: FailureClass, code: Option<i64>) -> bool {
        use FailureClass::*;
        let create = self.call == Call::Create;
        if let Some(disguise) = text.only_by_create {
            return create
                && self.by == By::Operation
                && code == Some(disguise.code)
                && (self.spot || !disguise.spot);
        }
        match class {
            StockOut | PreemptedInCreation | ClosedQueue => create,
            Undeletable | Conflict => self.call == Call::Delete,
            Quota | Rate | Permission | BadRequest | Billing | ApiDisabled => true,
            // That something does not exist is believed on its code alone: a TPU is given up on it.
            NotFound | Transient | Garbage | TransientExit | Internal | OutOfMemory => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_create_is_of_spot_capacity_when_its_body_says_so() {
        let spot = |body: Value| Origin::create(&body).spot;
        assert!(spot(json!({"schedulingConfig": {"spot": true}})));
        assert!(spot(json!({"schedulingConfig": {"preemptible": true}})));
        assert!(!spot(json!({"schedulingConfig": {"spot": false, "reserved": true}})));
        assert!(!spot(json!({})) && !spot(json!({"schedulingConfig": "spot"})));
    }
}
