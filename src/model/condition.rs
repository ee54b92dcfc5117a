//! Conditions: the diagnosis of one observation of a slot. The order of the variants is the order
//! of the table.

use serde::{Deserialize, Serialize};

use super::hold::HoldReason;
use super::names::named;

named! {
/// The diagnosis of one successful read of a slot. Names are part of the metrics contract.
Condition {
    /// The job's success is journaled: nothing more is wanted.
    Finished = "finished",
    /// Another client stopped or hid the node; that is respected.
    Stopped = "stopped",
    /// State PREEMPTED: the API says that nothing is left to save.
    Preempted = "preempted",
    /// State TERMINATED: ended by maintenance or at the end of a preemptible node's life.
    Terminated = "terminated",
    /// Its queued resource has FAILED.
    RequestFailed = "request_failed",
    /// Its queued resource, or the node in it, is being taken away.
    Going = "going",
    /// Absent from a complete listing, and a GET answered 404.
    Missing = "missing",
    /// Another client deletes the node.
    Deleting = "deleting",
    /// CREATING, STARTING, RESTARTING or REIMAGING.
    Starting = "starting",
    /// Its queued resource waits for capacity, or is being filled.
    Waiting = "waiting",
    /// A slice of a multislice is gone or dead, and others live.
    SliceLost = "slice_lost",
    /// State UNKNOWN, "unknown state after a failed repair".
    FailedRepair = "failed_repair",
    /// UNHEALTHY_MAINTENANCE, REPAIRING, or an upcoming maintenance that is ONGOING.
    Maintenance = "maintenance",
    /// Health TIMEOUT.
    Unresponsive = "unresponsive",
    /// Health UNHEALTHY_TENSORFLOW: the ML stack in the guest is not healthy.
    RuntimeUnhealthy = "runtime_unhealthy",
    /// A symptom (mesh build failed, execution timed out) newer than the last progress.
    Degraded = "degraded",
    /// Hosts of ours that have never started anything don't have an index each of their own.
    GangIncomplete = "gang_incomplete",
    /// An incarnation of ours is READY but a worker never sent its boot beacon.
    NeverBooted = "never_booted",
    /// A host could not be set up for long, and the job waits for it.
    SetupFailed = "setup_failed",
    /// A process that is not the job's holds the chips of a host.
    ChipsBusy = "chips_busy",
    /// A host has fewer chips than others of its type had.
    ChipsMissing = "chips_missing",
    /// A worker's heartbeat stands still.
    Silent = "silent",
    /// A managed training job runs, and has saved nothing complete for `stall`.
    JobStalled = "job_stalled",
    /// The supervisor gave up on the job after its budget of restarts.
    JobFailed = "job_failed",
    /// No diagnosis, but the cause of a recovery that an operator asked for.
    Requested = "requested",
    /// READY, and health HEALTHY or absent.
    Healthy = "healthy",
    /// Anything that is not understood or could not be read: never evidence of anything.
    Unclear = "unclear",
}
}

impl Condition {
    /// Whether time in this condition counts towards a recreate.
    pub fn is_sick(self) -> bool {
        self.kind().is_some()
    }

    /// Whether it is known from the workers' reports alone: the node itself looks healthy.
    pub fn is_reported(self) -> bool {
        matches!(
            self,
            Condition::Silent
                | Condition::NeverBooted
                | Condition::GangIncomplete
                | Condition::ChipsMissing
        )
    }

    /// Whether the hosts are well, and the job stands: it has ended, or waits for one of them.
    pub fn job_stands(self) -> bool {
        matches!(self, Condition::JobFailed | Condition::SetupFailed | Condition::ChipsBusy)
    }

    /// How a slot in this condition is condemned, if it ever is.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Condition::Preempted
            | Condition::Terminated
            | Condition::RequestFailed
            | Condition::Missing => Some(Kind::Lost),
            Condition::Starting
            | Condition::SliceLost
            | Condition::FailedRepair
            | Condition::Maintenance
            | Condition::Unresponsive
            | Condition::RuntimeUnhealthy
            | Condition::NeverBooted
            | Condition::GangIncomplete
            | Condition::ChipsMissing
            | Condition::Silent
            | Condition::JobStalled => Some(Kind::Judged),
            Condition::Finished
            | Condition::Stopped
            | Condition::Going
            | Condition::Deleting
            | Condition::Waiting
            | Condition::Degraded
            | Condition::SetupFailed
            | Condition::ChipsBusy
            | Condition::JobFailed
            | Condition::Requested
            | Condition::Healthy
            | Condition::Unclear => None,
        }
    }
}

named! {
/// The two kinds of condemned slot; they have different guards.
Kind {
    /// The API itself says that nothing is left; replacing it takes nothing away from anybody.
    Lost = "lost",
    /// The TPU still exists and the watchdog concludes that it won't recover.
    Judged = "judged",
}
}

/// A condition with the words that prove it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The condition.
    pub condition: Condition,
    /// The reading, in words for a log line.
    pub evidence: String,
    /// A listing lacks the node and no GET has confirmed that yet: one is asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// Nothing follows from it before a person acts, for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldReason>,
}

impl Verdict {
    /// A verdict with its evidence.
    pub fn new(condition: Condition, evidence: impl Into<String>) -> Self {
        Verdict { condition, evidence: evidence.into(), unconfirmed: false, hold: None }
    }

    /// A verdict from which nothing follows before a person acts.
    pub fn held(condition: Condition, evidence: impl Into<String>, hold: HoldReason) -> Self {
        Verdict { hold: Some(hold), ..Verdict::new(condition, evidence) }
    }

    /// Absent from a complete listing, which proves nothing by itself (S4).
    pub fn unconfirmed_absence() -> Self {
        let evidence = "absent from the listing, not yet confirmed by a GET".to_owned();
        Verdict { unconfirmed: true, ..Verdict::new(Condition::Unclear, evidence) }
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
