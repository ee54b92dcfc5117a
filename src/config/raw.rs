//! The config exactly as it is written, before validation. Keys that do not work yet are read, to
//! be refused with a reason.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use toml::Value;

use crate::model::time;
use crate::model::training::Restart;

/// A duration as "90s", "15m", "1h 30m".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        span(&text(deserializer)?).map(Span).map_err(serde::de::Error::custom)
    }
}

/// The text of a duration; a number without a unit is told with one.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text),
        Value::Integer(number) => {
            let text = format!(
                "{number} has no unit; write \"{number}s\", or as in \"15m\" or \"1h 30m\""
            );
            Err(serde::de::Error::custom(text))
        }
        other => {
            let text = format!(
                "a {} is no duration; write \"90s\", \"15m\" or \"1h 30m\"",
                other.type_str()
            );
            Err(serde::de::Error::custom(text))
        }
    }
}

fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write \"90s\", \"15m\" or \"1h 30m\"");
    time::duration(text).ok_or_else(wrong)
}

/// A duration, or "auto".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoSpan {
    Auto,
    Given(Span),
}

impl<'de> Deserialize<'de> for AutoSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        if text == "auto" {
            return Ok(AutoSpan::Auto);
        }
        let given = span(&text).map(|span| AutoSpan::Given(Span(span)));
        given.map_err(|why| serde::de::Error::custom(format!("{why}, or \"auto\"")))
    }
}

/// A duration, or "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaybeSpan {
    None,
    Given(Span),
}

impl<'de> Deserialize<'de> for MaybeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        if text == "none" {
            return Ok(MaybeSpan::None);
        }
        let given = span(&text).map(|span| MaybeSpan::Given(Span(span)));
        given.map_err(|why| serde::de::Error::custom(format!("{why}, or \"none\"")))
    }
}

/// A number, or a percentage in quotes.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum RawShare {
    Count(i64),
    Percent(String),
}

/// Text sets a key, `false` removes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum RawEntry {
    Text(String),
    Remove(bool),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    pub project: Option<String>,
    pub state: Option<String>,
    pub lease: Option<Span>,
    pub owner: Option<String>,
    pub listen: Option<String>,
    pub listen_token_file: Option<String>,
    pub pushgateway: Option<String>,
    pub dry_run: Option<bool>,
    #[serde(default)]
    pub poll: RawPoll,
    #[serde(default)]
    pub api: RawApi,
    #[serde(default)]
    pub policy: RawPolicy,
    #[serde(default)]
    pub tpu: Vec<RawTpu>,
    pub fleet: Option<Value>,
    #[serde(default)]
    pub vertex_job: Vec<RawVertexJob>,
    #[serde(default)]
    pub ai_platform_job: Vec<RawLegacyJob>,
    pub notify: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPoll {
    pub every: Option<Span>,
    pub cron: Option<Value>,
    pub operations: Option<Span>,
    pub timeout: Option<Span>,
    pub max_gap: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawApi {
    pub tpu: Option<String>,
    pub vertex: Option<String>,
    pub storage: Option<String>,
    pub ml: Option<String>,
    pub resource_manager: Option<String>,
    pub iam: Option<String>,
    pub quotas: Option<String>,
    pub version: Option<String>,
    pub credentials: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPolicy {
    pub confirmations: Option<i64>,
    pub max_age: Option<Span>,
    #[serde(default)]
    pub grace: RawGrace,
    pub heal: Option<Span>,
    pub when_missing: Option<String>,
    pub max_unavailable: Option<RawShare>,
    pub max_judged_recreates_per_hour: Option<i64>,
    pub storm: Option<RawStorm>,
    #[serde(default)]
    pub attempts: RawAttempts,
    #[serde(default)]
    pub backoff: RawBackoff,
    pub quiet_hours: Option<Vec<RawQuietHours>>,
    pub on_success: Option<String>,
    pub priority: Option<i64>,
    #[serde(default)]
    pub stock_out: RawBackoff,
    pub create_check: Option<String>,
    pub orphans: Option<String>,
    pub early_maintenance: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawQuietHours {
    pub cron: String,
    #[serde(rename = "for")]
    pub lasts: Span,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawGrace {
    pub startup: Option<AutoSpan>,
    pub maintenance: Option<AutoSpan>,
    pub failed_repair: Option<Span>,
    pub preempted: Option<Span>,
    pub terminated: Option<Span>,
    pub unresponsive: Option<Span>,
    pub runtime_unhealthy: Option<Span>,
    pub boot: Option<AutoSpan>,
    pub silent: Option<Span>,
    pub missing: Option<Span>,
    pub deleting: Option<Span>,
    pub setup: Option<Span>,
    pub compile: Option<Span>,
    pub stall: Option<Value>,
    pub queue: Option<MaybeSpan>,
    pub provision: Option<AutoSpan>,
    pub slice: Option<AutoSpan>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawAttempts {
    pub max: Option<i64>,
    pub preemptions: Option<i64>,
    pub window: Option<Span>,
    pub settled: Option<Span>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawStorm {
    pub fraction: Option<String>,
    pub min: Option<i64>,
    pub window: Option<Span>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawBackoff {
    pub first: Option<Span>,
    pub max: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTpu {
    pub name: String,
    pub zone: Option<String>,
    pub zones: Option<Vec<String>>,
    pub kind: Option<String>,
    pub queued_resource: Option<String>,
    pub group: Option<String>,
    pub startup_script: Option<String>,
    #[serde(default)]
    pub create: RawCreate,
    pub job: Option<RawJob>,
    #[serde(default)]
    pub policy: RawPolicy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawVertexJob {
    pub name: Option<String>,
    pub region: Option<String>,
    pub regions: Option<Vec<String>>,
    pub display_name: Option<String>,
    pub job: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub create: Option<String>,
    pub checkpoint: Option<RawCheckpoint>,
    #[serde(default)]
    pub restart: Restart,
    pub strategy: Option<String>,
    pub max_wait: Option<Span>,
    pub next_machine: Option<Vec<String>>,
    pub on_timeout: Option<String>,
    pub restart_study: Option<bool>,
    pub settle: Option<Span>,
    pub stall: Option<Span>,
    #[serde(default)]
    pub policy: RawPolicy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLegacyJob {
    pub name: Option<String>,
    pub job: String,
    pub checkpoint: Option<RawCheckpoint>,
    #[serde(default)]
    pub restart: Restart,
    pub next_machine: Option<Vec<String>>,
    pub on_timeout: Option<String>,
    pub settle: Option<Span>,
    pub stall: Option<Span>,
    #[serde(default)]
    pub policy: RawPolicy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCreate {
    pub accelerator_type: Option<String>,
    pub accelerator_config: Option<RawAccelerator>,
    pub runtime_version: Option<String>,
    pub spot: Option<bool>,
    pub preemptible: Option<bool>,
    pub reserved: Option<bool>,
    pub reservation: Option<String>,
    pub nodes: Option<i64>,
    pub valid_until: Option<Span>,
    pub provisioning_model: Option<String>,
    pub max_run: Option<Span>,
    pub boot_disk_gb: Option<i64>,
    pub network: Option<String>,
    pub subnetwork: Option<String>,
    pub external_ips: Option<bool>,
    pub cidr_block: Option<String>,
    pub service_account: Option<String>,
    pub tags: Option<Vec<String>>,
    pub description: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, RawEntry>,
    #[serde(default)]
    pub metadata: BTreeMap<String, RawEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawAccelerator {
    #[serde(rename = "type")]
    pub kind: String,
    pub topology: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawJob {
    pub command: Option<String>,
    pub checkpoint: Option<RawCheckpoint>,
    pub launch: Option<String>,
    pub resume: Option<String>,
    pub user: Option<String>,
    pub dir: Option<String>,
    pub image: Option<String>,
    pub code: Option<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub on_notice: Option<String>,
    pub env_file: Option<String>,
    #[serde(default)]
    pub secret: BTreeMap<String, String>,
    pub stop_grace: Option<Span>,
    pub logs: Option<String>,
    #[serde(default)]
    pub restart: RawRestart,
    pub progress: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum RawCheckpoint {
    Uri(String),
    Table(RawCheckpointTable),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCheckpointTable {
    pub uri: String,
    #[serde(rename = "as")]
    pub seen_as: Option<String>,
    pub format: Option<String>,
    pub orbax_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRestart {
    pub per_run: Option<i64>,
    pub job: Option<Value>,
    pub no_progress: Option<i64>,
    pub transient_exit_codes: Option<Vec<i64>>,
}
