//! Conditions: the diagnosis of one observation of a slot. The order of the variants is the order of the table.

use serde::{Deserialize, Serialize};

/// What one successful read says about a slot. Names are part of the metrics contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The job's success is journaled: nothing is wanted any more.
    Finished,
    /// Somebody stopped or hid the node; that is respected.
    Stopped,
    /// State PREEMPTED: the API says that nothing is left to save.
    Preempted,
    /// State TERMINATED: ended by maintenance or at the end of a preemptible node's life.
    Terminated,
    /// Absent from a complete listing, and a GET answered 404.
    Missing,
    /// Somebody else deletes the node.
    Deleting,
    /// CREATING, STARTING, RESTARTING or REIMAGING.
    Starting,
    /// State UNKNOWN, "unknown state after a failed repair".
    FailedRepair,
    /// UNHEALTHY_MAINTENANCE, REPAIRING, or an upcoming maintenance that is ONGOING.
    Maintenance,
    /// Health TIMEOUT.
    Unresponsive,
    /// Health UNHEALTHY_TENSORFLOW: the ML stack in the guest is not healthy.
    RuntimeUnhealthy,
    /// A symptom (mesh build failed, execution timed out) newer than the last progress.
    Degraded,
    /// An incarnation of ours is READY but a worker never sent its boot beacon.
    NeverBooted,
    /// A worker's heartbeat stands still.
    Silent,
    /// The supervisor gave up on the job after its budget of restarts.
    JobFailed,
    /// READY, and health HEALTHY or absent.
    Healthy,
    /// Anything that is not understood or could not be read: never evidence of anything.
    Unclear,
}

impl Condition {
    /// All conditions, in the order of the table.
    pub const ALL: [Condition; 17] = [
        Condition::Finished,
        Condition::Stopped,
        Condition::Preempted,
        Condition::Terminated,
        Condition::Missing,
        Condition::Deleting,
        Condition::Starting,
        Condition::FailedRepair,
        Condition::Maintenance,
        Condition::Unresponsive,
        Condition::RuntimeUnhealthy,
        Condition::Degraded,
        Condition::NeverBooted,
        Condition::Silent,
        Condition::JobFailed,
        Condition::Healthy,
        Condition::Unclear,
    ];

    /// The name used in logs, metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Finished => "finished",
            Condition::Stopped => "stopped",
            Condition::Preempted => "preempted",
            Condition::Terminated => "terminated",
            Condition::Missing => "missing",
            Condition::Deleting => "deleting",
            Condition::Starting => "starting",
            Condition::FailedRepair => "failed_repair",
            Condition::Maintenance => "maintenance",
            Condition::Unresponsive => "unresponsive",
            Condition::RuntimeUnhealthy => "runtime_unhealthy",
            Condition::Degraded => "degraded",
            Condition::NeverBooted => "never_booted",
            Condition::Silent => "silent",
            Condition::JobFailed => "job_failed",
            Condition::Healthy => "healthy",
            Condition::Unclear => "unclear",
        }
    }

    /// Whether time in this condition counts towards a recreate.
    pub fn is_sick(self) -> bool {
        self.kind().is_some()
    }

    /// Whether it is known from the workers' reports alone: the node itself looks healthy.
    pub fn is_reported(self) -> bool {
        matches!(self, Condition::Silent | Condition::NeverBooted)
    }

    /// How a slot in this condition is condemned, if it ever is.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Condition::Preempted | Condition::Terminated | Condition::Missing => Some(Kind::Lost),
            Condition::Starting
            | Condition::FailedRepair
            | Condition::Maintenance
            | Condition::Unresponsive
            | Condition::RuntimeUnhealthy
            | Condition::NeverBooted
            | Condition::Silent => Some(Kind::Judged),
            Condition::Finished
            | Condition::Stopped
            | Condition::Deleting
            | Condition::Degraded
            | Condition::JobFailed
            | Condition::Healthy
            | Condition::Unclear => None,
        }
    }
}

/// The two kinds of condemned slot; they have different guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The API itself says that nothing is left; replacing it takes nothing away from anybody.
    Lost,
    /// The TPU still exists and the watchdog concludes that it won't recover.
    Judged,
}

/// A condition with the words that prove it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The condition.
    pub condition: Condition,
    /// What was read, in words for a log line.
    pub evidence: String,
}

impl Verdict {
    /// A verdict with its evidence.
    pub fn new(condition: Condition, evidence: impl Into<String>) -> Self {
        Verdict { condition, evidence: evidence.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_equal_the_serialised_form() {
        for condition in Condition::ALL {
            assert_eq!(serde_json::to_value(condition).unwrap(), condition.name());
        }
    }
}
