//! A node as it was read: a typed view next to the raw JSON. `resource::node` reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::condition::{Kind, Verdict};
use super::failure::Failure;
use super::filling::{Deletable, RequestTimes};
use super::ids::{Incarnation, RunOrder};

macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal / $number:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// A value this version does not know: means hold, never more.
            Other(String),
        }

        impl $name {
            /// Every known value, with its REST text and its proto number (`enum-encoding=int`).
            pub const WIRE: &[($name, &str, i64)] = &[$(($name::$variant, $text, $number)),+];

            /// The REST text.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $text,)+
                    $name::Other(text) => text,
                }
            }
        }
    };
}

pub(super) use wire_enum;

wire_enum! {
    /// `Node.State`.
    NodeState {
        /// Not set.
        Unspecified = "STATE_UNSPECIFIED" / 0,
        /// Being created.
        Creating = "CREATING" / 1,
        /// Created; says nothing about health.
        Ready = "READY" / 2,
        /// Restarting.
        Restarting = "RESTARTING" / 3,
        /// Being reimaged.
        Reimaging = "REIMAGING" / 4,
        /// Being deleted.
        Deleting = "DELETING" / 5,
        /// Being repaired, may be unusable.
        Repairing = "REPAIRING" / 6,
        /// Stopped by a person.
        Stopped = "STOPPED" / 8,
        /// Being stopped.
        Stopping = "STOPPING" / 9,
        /// Being started.
        Starting = "STARTING" / 10,
        /// Preempted; can't be used again.
        Preempted = "PREEMPTED" / 11,
        /// Terminated; can't be used again.
        Terminated = "TERMINATED" / 12,
        /// Being hidden.
        Hiding = "HIDING" / 13,
        /// Hidden.
        Hidden = "HIDDEN" / 14,
        /// Being unhidden.
        Unhiding = "UNHIDING" / 15,
        /// "Unknown state after a failed repair".
        Unknown = "UNKNOWN" / 16,
    }
}

wire_enum! {
    /// `Node.Health`. The field may be absent, also on nodes in good health.
    Health {
        /// Not initialised, or could not be retrieved.
        Unspecified = "HEALTH_UNSPECIFIED" / 0,
        /// Healthy.
        Healthy = "HEALTHY" / 1,
        /// Unresponsive.
        Timeout = "TIMEOUT" / 3,
        /// The in-guest ML stack is unhealthy.
        UnhealthyTensorflow = "UNHEALTHY_TENSORFLOW" / 4,
        /// Under maintenance, or rescheduled by a priority boost.
        UnhealthyMaintenance = "UNHEALTHY_MAINTENANCE" / 5,
    }
}

/// `upcomingMaintenance`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpcomingMaintenance {
    /// `maintenanceStatus` is ONGOING.
    pub ongoing: bool,
    /// `windowStartTime`.
    pub window_start: Option<Timestamp>,
    /// `windowEndTime`: "time by which the disruption will be completed".
    pub window_end: Option<Timestamp>,
}

/// One entry of `symptoms[]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symptom {
    /// `createTime`.
    pub at: Option<Timestamp>,
    /// `symptomType`, as text.
    pub kind: String,
}

impl NodeView {
    /// Whether the API itself says that nothing is left of it to save.
    pub fn is_lost(&self) -> bool {
        let lost = |verdict: &Verdict| verdict.condition.kind() == Some(Kind::Lost);
        matches!(self.state, NodeState::Preempted | NodeState::Terminated)
            || self.standing.as_ref().is_some_and(lost)
    }

    /// Whether it is a node that is being made and shows no metadata yet: that may come later.
    pub fn is_bare(&self) -> bool {
        self.state == NodeState::Creating && self.raw.get("metadata").is_none()
    }

    /// Whether it is a queued resource without any node.
    pub fn is_empty(&self) -> bool {
        self.machines.as_ref().is_some_and(BTreeMap::is_empty)
    }
}

/// The typed view of one node, along with its raw JSON.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// The node id: the last part of `name`.
    pub node: String,
    /// The zone: taken from `name`.
    pub zone: String,
    /// `None` where neither id nor creation time can be read: such a node is held.
    pub incarnation: Option<Incarnation>,
    /// `state`.
    pub state: NodeState,
    /// `health`; absent is not unhealthy.
    pub health: Option<Health>,
    /// The event time in a `healthDescription` that follows Google's known sentence; it decides
    /// nothing.
    pub maintenance_event: Option<Timestamp>,
    /// `symptoms`.
    pub symptoms: Vec<Symptom>,
    /// `upcomingMaintenance`.
    pub upcoming: Option<UpcomingMaintenance>,
    /// `apiVersion` is one of the V1 family.
    pub is_v1: bool,
    /// `queuedResource`, when the node belongs to one.
    pub queued_resource: Option<String>,
    /// The state of the queued resource, or training job, in the API's word; `state` is one that rules know.
    pub own_state: Option<String>,
    /// The service itself, and no person, brought its queued resource into its state.
    pub by_service: bool,
    /// `multisliceNode`.
    pub multislice: bool,
    /// `acceleratorType`, or type and topology where it is absent.
    pub accelerator: String,
    /// `schedulingConfig.reserved`.
    pub reserved: bool,
    /// `schedulingConfig.spot` or `.preemptible`.
    pub spot: bool,
    /// `schedulingConfig.reservationName` (v2alpha1); empty where none is named.
    pub reservation: String,
    /// Number of `networkEndpoints`, one a worker.
    pub workers: usize,
    /// The label `tpu-watchdog=off` is set.
    pub opted_out: bool,
    /// Of a queued resource: its nodes with that label.
    pub labelled: BTreeSet<String>,
    /// Metadata `tpu-watchdog-owner`.
    pub owner: Option<String>,
    /// Metadata `tpu-watchdog-slot`.
    pub slot: Option<String>,
    /// Metadata `tpu-watchdog-run`.
    pub run: Option<RunOrder>,
    /// The startup script is our supervisor: only then are beacons expected.
    pub supervised: bool,
    /// The condition that follows from what surrounds the node: its queued resource waits, failed, was
    /// suspended. None where the node itself is to be judged.
    pub standing: Option<Verdict>,
    /// The ids of the nodes themselves, where that is not the slot's name alone: one a slice.
    pub members: Vec<String>,
    /// Of a queued resource: when each of its nodes that are there was made.
    pub machines: Option<BTreeMap<String, Timestamp>>,
    /// Of several slices, not all have the same run order: the newest generation that one has.
    pub out_of_step: Option<u64>,
    /// Of several slices, the one that state, health and symptoms are of.
    pub slice: Option<String>,
    /// Whether, and how, it can be deleted.
    pub deletable: Deletable,
    /// It has ended and stays where it is: nothing is to be deleted before another one is created.
    pub ended: bool,
    /// Of a queued resource that is ACTIVE, no node was listed: they are gone, or the list lags behind.
    pub not_listed: bool,
    /// Why its queued resource failed.
    pub failure: Option<Failure>,
    /// The machine type that its training job ran out of memory on.
    pub outgrown: Option<String>,
    /// When its queued resource ends by itself.
    pub times: RequestTimes,
    /// Read through v2alpha1, which shows fields that v2 hides.
    pub alpha: bool,
    /// The node exactly as it was read.
    pub raw: Arc<Value>,
    /// Of `raw` and `alpha`: two reads that have the same one say the same.
    pub fingerprint: u64,
}
