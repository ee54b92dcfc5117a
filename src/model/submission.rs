//! A managed training job as it was read: a typed view next to the raw JSON. `resource::training` reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::node::wire_enum;
use super::training::{ATTEMPT_LABEL, JobKind, LINEAGE_LABEL, NONCE_LABEL};

wire_enum! {
    /// `JobState` of Vertex AI. Source: aiplatform v1.
    JobState {
        /// Not set.
        Unspecified = "JOB_STATE_UNSPECIFIED" / 0,
        /// Not begun; also while a quota is short.
        Queued = "JOB_STATE_QUEUED" / 1,
        /// Being prepared.
        Pending = "JOB_STATE_PENDING" / 2,
        /// All workers are there.
        Running = "JOB_STATE_RUNNING" / 3,
        /// The primary replica exited with 0.
        Succeeded = "JOB_STATE_SUCCEEDED" / 4,
        /// Failed; its error follows about a minute later.
        Failed = "JOB_STATE_FAILED" / 5,
        /// May end in any way yet.
        Cancelling = "JOB_STATE_CANCELLING" / 6,
        /// By a person, or by a time limit.
        Cancelled = "JOB_STATE_CANCELLED" / 7,
        /// Stopped, and can be resumed.
        Paused = "JOB_STATE_PAUSED" / 8,
        /// A time limit has passed.
        Expired = "JOB_STATE_EXPIRED" / 9,
        /// Only from RUNNING, and back.
        Updating = "JOB_STATE_UPDATING" / 10,
        /// Some results may be missing.
        PartiallySucceeded = "JOB_STATE_PARTIALLY_SUCCEEDED" / 11,
    }
}

impl JobState {
    /// The states of a job that a cancel may end.
    pub const CANCELLABLE: [JobState; 3] = [JobState::Queued, JobState::Pending, JobState::Running];
    /// The states that are an end. A state that is not known is none: such a job may be at work.
    pub const ENDS: [JobState; 5] = {
        use JobState::*;
        [Succeeded, Failed, Cancelled, Expired, PartiallySucceeded]
    };
}

/// The typed view of one job.
#[derive(Debug, Clone)]
pub struct JobView {
    /// Its collection.
    pub kind: JobKind,
    /// Its id, which the service gives; of a legacy job its user does.
    pub id: String,
    /// Its region.
    pub region: String,
    /// `state`.
    pub state: JobState,
    /// `createTime`.
    pub created: Option<Timestamp>,
    /// `endTime`; where the API tells none, `updateTime`.
    pub ended: Option<Timestamp>,
    /// `error`: its code and message.
    pub error: Option<(i64, String)>,
    /// `labels`.
    pub labels: BTreeMap<String, String>,
    /// Its capacity is Spot.
    pub spot: bool,
    /// The machine of its first worker pool.
    pub machine: String,
    /// The answer as it was.
    pub raw: Arc<Value>,
}

impl JobView {
    /// Whether it has ended, for good.
    pub fn has_ended(&self) -> bool {
        JobState::ENDS.contains(&self.state)
    }

    /// The id of the first job of its lineage.
    pub fn lineage(&self) -> &str {
        match self.labels.get(LINEAGE_LABEL) {
            None => &self.id,
            // A label does not take every id of the legacy API. Later ones are `<id>_r<attempt>`, or `<id>_r<attempt>_<number>`
            // where that was taken.
            Some(_) if self.kind == JobKind::Legacy => {
                let (first, number) = self.id.rsplit_once("_r").unwrap_or_default();
                let number = number.split('_').next().and_then(|number| number.parse().ok());
                if number == Some(self.attempt()) { first } else { &self.id }
            }
            Some(lineage) => lineage,
        }
    }

    /// Its number within the lineage.
    pub fn attempt(&self) -> u64 {
        self.labels.get(ATTEMPT_LABEL).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Who submitted it, where a watchdog did.
    pub fn nonce(&self) -> Option<&String> {
        self.labels.get(NONCE_LABEL).filter(|_| self.labels.contains_key(LINEAGE_LABEL))
    }
}

/// All pages of a listing of jobs that have not ended.
#[derive(Debug)]
pub struct JobListing {
    /// The region.
    pub region: String,
    /// The jobs, or why they can't be read.
    pub result: Result<Vec<JobView>, super::failure::Failure>,
}
