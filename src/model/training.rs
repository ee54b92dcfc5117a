//! A managed training job as the config names it, and the marks that a submission of ours carries.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Label: the first job of the lineage that this one goes on with.
pub const LINEAGE_LABEL: &str = "tpu-watchdog-lineage";
/// Label: the number of the submission within its lineage; the first job has none.
pub const ATTEMPT_LABEL: &str = "tpu-watchdog-attempt";
/// Label: who submitted it. With lineage and attempt it is the same for the same intent, however often
/// that is sent.
pub const NONCE_LABEL: &str = "tpu-watchdog-nonce";

/// The job that fills a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Training {
    /// How it is found.
    pub named: Named,
    /// Where it may be, in the order of the config.
    pub regions: Vec<String>,
    /// Its specification where no job is found: the body of a create.
    pub create: Option<Value>,
    /// So long after a create could last arrive, a complete list that lacks it says that it was not
    /// carried out.
    pub settle: Duration,
    /// How often it is submitted again.
    pub restart: Restart,
    /// The capacity of a submission, where that is not its predecessor's.
    pub strategy: Strategy,
    /// Longest wait of flex-start capacity.
    pub max_wait: Option<Duration>,
    /// A job that ran into its own time limit is submitted again.
    pub outlives_timeout: bool,
}

/// How a job is found in its regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// Its id: the last part of the resource name.
    Id(String),
    /// Its display name.
    DisplayName(String),
    /// Its labels, all of them.
    Labels(BTreeMap<String, String>),
}

/// Submissions that are sent without a newer checkpoint. The service has spent its own restarts by then,
/// and ours multiply them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// After an internal error, or a reason that no rule knows.
    pub job: u32,
    /// After an exit code that may pass (6, 11, 134, 139).
    pub transient: u32,
    /// After whatever reason, but for capacity that never came.
    pub no_progress: u32,
}

/// Capacity of a submission: `scheduling.strategy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Its predecessor's.
    Keep,
    /// Spot.
    Spot,
    /// On demand.
    Standard,
    /// Flex-start.
    FlexStart,
}

/// Submissions since the newest checkpoint, by what ended the job before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resubmitted {
    /// Internal errors, and reasons that no rule knows.
    pub job: u32,
    /// Exit codes that may pass.
    pub transient: u32,
    /// All that had got their machines.
    pub fruitless: u32,
    /// The step of the newest complete checkpoint then.
    pub step: Option<u64>,
}

impl Resubmitted {
    /// Whether there was none.
    pub fn is_none(&self) -> bool {
        *self == Resubmitted::default()
    }
}
