//! A queued resource as read: a typed view next to the raw JSON. `resource::queued` reads it.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::failure::Failure;
use super::filling::RequestTimes;
use super::ids::Incarnation;
use super::node::wire_enum;

wire_enum! {
    /// `QueuedResourceState.State`.
    RequestState {
        /// Not set.
        Unspecified = "STATE_UNSPECIFIED" / 0,
        /// Received, and being looked at.
        Creating = "CREATING" / 1,
        /// In the queue, in the words of older versions.
        Accepted = "ACCEPTED" / 2,
        /// Selected: its nodes are being made. Can't be deleted, not even with `force`.
        Provisioning = "PROVISIONING" / 3,
        /// It failed, or could not be filled in time. It holds quota until it is deleted.
        Failed = "FAILED" / 4,
        /// Being deleted.
        Deleting = "DELETING" / 5,
        /// Granted; says nothing about its nodes.
        Active = "ACTIVE" / 6,
        /// Its nodes are being taken away.
        Suspending = "SUSPENDING" / 7,
        /// Its nodes were taken away; it is never queued again.
        Suspended = "SUSPENDED" / 8,
        /// In the queue.
        Waiting = "WAITING_FOR_RESOURCES" / 9,
    }
}

impl RequestState {
    /// Whether it can't be granted any longer.
    pub fn is_over(&self) -> bool {
        use RequestState::{Deleting, Failed, Suspended, Suspending};
        matches!(self, Deleting | Failed | Suspended | Suspending)
    }

    /// The states in which a delete needs no `force`: there is no node that could run. Source: the
    /// refusal that names them, "must be one of [ACCEPTED WAITING_FOR_RESOURCES SUSPENDED FAILED]".
    pub const WITHOUT_NODES: [RequestState; 4] = [
        RequestState::Accepted,
        RequestState::Waiting,
        RequestState::Suspended,
        RequestState::Failed,
    ];
}

/// The typed view of one queued resource, with its raw JSON.
#[derive(Debug, Clone)]
pub struct RequestView {
    /// The id: the last part of `name`.
    pub id: String,
    /// The zone: taken from `name`.
    pub zone: String,
    /// `createTime`, which tells one request from a later one of its name.
    pub created: Option<Timestamp>,
    /// `state.state`.
    pub state: RequestState,
    /// `state.stateInitiator`: who brought it there, where the API says it.
    pub by: Option<Initiator>,
    /// `state.failedData.error.message`.
    pub error: Option<String>,
    /// Its class and words, where the error was looked at.
    pub failure: Option<Failure>,
    /// When it ends by itself.
    pub times: RequestTimes,
    /// The ids of the nodes that it asks for.
    pub nodes: Vec<String>,
    /// The accelerator type of each of them.
    pub accelerator: String,
    /// The store's id of the watchdog that made it, from its nodes' metadata.
    pub owner: Option<String>,
    /// The slot that it was made for, from the same place.
    pub slot: Option<String>,
    /// Read through v2alpha1, which shows fields that v2 hides.
    pub alpha: bool,
    /// The answer as it was.
    pub raw: Arc<Value>,
}

/// Who brought a request into its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initiator {
    /// A person, or a program of theirs.
    User,
    /// The service itself.
    Service,
}

impl RequestView {
    /// Whether a person, and not the service, brought it into its state.
    pub fn is_by_user(&self) -> bool {
        self.by == Some(Initiator::User)
    }

    /// Whether the service did.
    pub fn is_by_service(&self) -> bool {
        self.by == Some(Initiator::Service)
    }

    /// Its identity: the API gives a request no number of its own, and a later one of its id has another
    /// time.
    pub fn incarnation(&self) -> Option<Incarnation> {
        let created = self.created?;
        Some(Incarnation { id: format!("{}.{}", self.id, created.as_second()), created })
    }
}
