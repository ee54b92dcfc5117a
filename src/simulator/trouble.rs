//! What may go wrong, or right, in the simulated cloud, and when.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};

/// What happens to a node or zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// Health UNHEALTHY_MAINTENANCE; heals after `lasts`, or never.
    Maintenance,
    /// `upcomingMaintenance` ONGOING with a window that ends after `lasts`.
    Window,
    /// State REPAIRING.
    Repairing,
    /// State RESTARTING.
    Restarting,
    /// State UNKNOWN.
    FailedRepair,
    /// Health TIMEOUT.
    Unresponsive,
    /// Health UNHEALTHY_TENSORFLOW.
    RuntimeUnhealthy,
    /// A health value of a later API.
    Strange,
    /// A state of a later API.
    StrangeState,
    /// A MESH_BUILD_FAIL symptom.
    MeshFailure,
    /// State PREEMPTED.
    Preempt,
    /// State TERMINATED.
    Terminate,
    /// The node is gone without a trace.
    Vanish,
    /// Somebody stopped it.
    Stop,
    /// Somebody hid it.
    Hide,
    /// Somebody deletes it, without an end.
    Deleting,
    /// Somebody deletes it and creates another one under its name.
    Replace,
    /// A person sets the label tpu-watchdog=off.
    OptOut,
    /// The workers fall silent while the node looks healthy.
    Silence,
    /// The job fails and its supervisor gives up.
    JobFails,
    /// The job crashes after a long run: its order is older than its checkpoints.
    JobCrashes,
    /// The job ends well.
    JobEnds,
    /// The next incarnation of the node never boots.
    NeverBoot,
    /// The next create of the node ends in an error and leaves it: CREATING, and READY after
    /// `lasts`, or never.
    LeftBehind,
    /// The node is healthy again.
    Heal,
    /// Creates in the zone are refused for want of capacity.
    StockOut,
    /// Creates in the zone are refused by quota.
    Quota,
    /// Listings do not reach the zone.
    Unreachable,
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
    /// What happens.
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
