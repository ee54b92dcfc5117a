//! What may go wrong, or right, in the simulated cloud, and when.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};

use crate::model::names::named;

named! {
/// An event that strikes a node or zone.
Trouble {
    /// Health UNHEALTHY_MAINTENANCE; heals after `lasts`, or never.
    Maintenance = "maintenance",
    /// `upcomingMaintenance` ONGOING with a window that ends after `lasts`.
    Window = "window",
    /// State REPAIRING.
    Repairing = "repairing",
    /// State RESTARTING.
    Restarting = "restarting",
    /// State UNKNOWN.
    FailedRepair = "failed_repair",
    /// Health TIMEOUT.
    Unresponsive = "unresponsive",
    /// Health UNHEALTHY_TENSORFLOW.
    RuntimeUnhealthy = "runtime_unhealthy",
    /// A health value of a later API.
    Strange = "strange",
    /// A state of a later API.
    StrangeState = "strange_state",
    /// A MESH_BUILD_FAIL symptom.
    MeshFailure = "mesh_failure",
    /// State PREEMPTED.
    Preempt = "preempt",
    /// State PREEMPTED, while its queued resource stays ACTIVE.
    PreemptNode = "preempt_node",
    /// Google's own repair makes it again inside its queued resource: another machine of its name.
    Remake = "remake",
    /// State TERMINATED.
    Terminate = "terminate",
    /// The node is gone without a trace.
    Vanish = "vanish",
    /// A person stopped it.
    Stop = "stop",
    /// A person hid it.
    Hide = "hide",
    /// A person deletes it, and the delete never ends.
    Deleting = "deleting",
    /// A person deletes it and creates another one of its name.
    Replace = "replace",
    /// A person sets the label tpu-watchdog=off.
    OptOut = "opt_out",
    /// The workers fall silent while the node looks healthy.
    Silence = "silence",
    /// The startup script fails on a host that comes up, and the job waits, for `lasts`.
    SetupFails = "setup_fails",
    /// Another process takes the chips, and the run ends, for `lasts`.
    ChipsBusy = "chips_busy",
    /// The job fails and its supervisor gives up.
    JobFails = "job_fails",
    /// The job crashes after a long run: its order is older than its checkpoints.
    JobCrashes = "job_crashes",
    /// The job hangs: no step, and health TIMEOUT, while its hosts beat, until a newer order or a
    /// reboot.
    JobHangs = "job_hangs",
    /// The job ends well.
    JobEnds = "job_ends",
    /// The next incarnation of the node never boots.
    NeverBoot = "never_boot",
    /// The next create of the node ends in an error and leaves it: CREATING, and READY after
    /// `lasts`, or never.
    LeftBehind = "left_behind",
    /// The node is healthy again.
    Heal = "heal",
    /// Creates in the zone are refused for want of capacity.
    StockOut = "stock_out",
    /// Creates in the zone are refused by quota.
    Quota = "quota",
    /// Queued resources in the zone are refused: its queue is closed to the project.
    ClosedQueue = "closed_queue",
    /// Listings do not reach the zone.
    Unreachable = "unreachable",
}
}

impl Trouble {
    /// It concerns a zone, and no node.
    pub fn is_of_a_zone(self) -> bool {
        matches!(
            self,
            Trouble::StockOut | Trouble::Quota | Trouble::ClosedQueue | Trouble::Unreachable
        )
    }
}

/// One event of a scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// From the start.
    #[serde(default, deserialize_with = "span")]
    pub at: Duration,
    /// The node, where it is about one.
    #[serde(default)]
    pub node: String,
    /// The zone; that of the first `[[nodes]]` when left out.
    #[serde(default)]
    pub zone: String,
    /// The trouble itself.
    pub what: Trouble,
    /// How long it lasts; for ever when left out.
    #[serde(default, deserialize_with = "optional_span")]
    pub lasts: Option<Duration>,
}

pub(super) fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let span: SignedDuration = text.parse().map_err(serde::de::Error::custom)?;
    Duration::try_from(span).map_err(serde::de::Error::custom)
}

pub(super) fn optional_span<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    span(deserializer).map(Some)
}
