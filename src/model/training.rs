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

/// The region of a legacy job, whose API has none.
pub const NO_REGION: &str = "global";

/// The collection of the API that a job is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A custom job of Vertex AI.
    #[default]
    Custom,
    /// A hyperparameter tuning job of Vertex AI: a study, whose trials are custom jobs.
    Tuning,
    /// A job of the legacy AI Platform Training.
    Legacy,
}

const TUNING: [&str; 4] =
    ["hyperparameterTuningJobs", "tuning job", "ai hp-tuning-jobs", "trialJobSpec"];

impl JobKind {
    /// The kind of a job by the field that describes its machines.
    pub fn of(job: &Value) -> JobKind {
        let has = |kind: &JobKind| job.get(kind.spec()).is_some();
        [JobKind::Tuning, JobKind::Legacy].into_iter().find(has).unwrap_or_default()
    }

    /// Whether this is the resource name of a job: the answer to a submission or cancel names the job itself, and no
    /// operation.
    pub fn has_named(name: &str) -> bool {
        ["Jobs/", "/jobs/"].iter().any(|collection| name.contains(collection))
    }

    /// The words for it: its name in the path of a call, in text, in gcloud, and the field of a job that describes its
    /// machines and its program.
    const fn words(self) -> [&'static str; 4] {
        match self {
            JobKind::Custom => ["customJobs", "custom job", "ai custom-jobs", "jobSpec"],
            JobKind::Tuning => TUNING,
            JobKind::Legacy => ["jobs", "AI Platform job", "ai-platform jobs", "trainingInput"],
        }
    }

    /// Its name in the path of a call.
    pub fn collection(self) -> &'static str {
        self.words()[0]
    }

    /// In words.
    pub fn noun(self) -> &'static str {
        self.words()[1]
    }

    /// The field of a job that describes its machines and its program.
    pub fn spec(self) -> &'static str {
        self.words()[3]
    }

    /// Whether this text may be the id of one.
    pub fn is_id(self, id: &str) -> bool {
        let named = |byte: u8| self.takes_ids() && (byte.is_ascii_alphabetic() || byte == b'_');
        !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit() || named(byte))
    }

    /// Whether its user gives the id of one, which no two may ever have.
    pub fn takes_ids(self) -> bool {
        self == JobKind::Legacy
    }

    /// The command of gcloud about it: a verb, and the id of a job.
    pub fn asks(self, what: &str, region: &str) -> String {
        let region = Some(format!(" --region {region}")).filter(|_| !self.takes_ids());
        format!("gcloud {} {what}{}", self.words()[2], region.unwrap_or_default())
    }
}

/// The job that fills a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Training {
    /// Its collection.
    pub kind: JobKind,
    /// It may be a tuning job as well: the config gives a name or labels, which say nothing of the kind.
    pub either: bool,
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
    /// A job that ran into its own time limit is submitted again.
    pub outlives_timeout: bool,
    /// A tuning job that has failed is submitted again, although its study begins once more with the first trial.
    pub restart_study: bool,
    /// A job that runs for so long without a new complete checkpoint is cancelled, and submitted again.
    pub stall: Option<Duration>,
    /// Machine types, in order: each for a job that ran out of memory on the one before.
    pub next_machine: Vec<String>,
}

impl Training {
    /// One job of a region by its id, and no more than that.
    pub fn one(kind: JobKind, region: &str, id: &str) -> Training {
        Training {
            kind,
            named: Named::Id(id.to_owned()),
            regions: vec![region.to_owned()],
            ..Training::default()
        }
    }

    /// The kinds that it may be.
    pub fn kinds(&self) -> impl Iterator<Item = JobKind> {
        std::iter::once(self.kind).chain(self.either.then_some(JobKind::Tuning))
    }

    /// Whether it may be one of this kind.
    pub fn may_have(&self, kind: JobKind) -> bool {
        self.kinds().any(|of| of == kind)
    }

    /// Whether a new submission of this kind starts a study over, and the config does not consent to that.
    pub fn takes_consent(&self, kind: JobKind) -> bool {
        kind == JobKind::Tuning && !self.restart_study
    }

    /// The machine type after this one, for a job that ran out of memory on it.
    pub fn machine_after(&self, present: &str) -> Option<&str> {
        let index = self.next_machine.iter().position(|machine| machine == present);
        let next = self.next_machine.get(index.map_or(0, |index| index + 1));
        next.filter(|_| !present.is_empty()).map(String::as_str)
    }
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

impl Default for Named {
    fn default() -> Self {
        Named::Id(String::new())
    }
}

/// Submissions that are sent without a newer checkpoint. The service has spent its own restarts by then,
/// and ours multiply them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// After an internal error, or a reason that no rule knows.
    pub job: u32,
    /// After an exit code that may pass (6, 11, 134, 139).
    pub transient: u32,
    /// After whatever reason, but for capacity that never came.
    pub no_progress: u32,
}

impl Default for Restart {
    fn default() -> Self {
        Restart { job: 3, transient: 1, no_progress: 3 }
    }
}

/// Capacity of a submission: `scheduling.strategy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Its predecessor's.
    #[default]
    Keep,
    /// Spot.
    Spot,
    /// On demand.
    Standard,
    /// Flex-start, and the longest wait for it.
    FlexStart(Duration),
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
