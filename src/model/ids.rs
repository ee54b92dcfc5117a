//! The identity of a node, and the marks that the watchdog writes on the nodes that it makes.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Metadata key: who watches the node.
pub const OWNER_KEY: &str = "tpu-watchdog-owner";
/// Metadata key: the slot that the node fills.
pub const SLOT_KEY: &str = "tpu-watchdog-slot";
/// Metadata key: the run order (JSON: generation, checkpoint, step).
pub const RUN_KEY: &str = "tpu-watchdog-run";

/// One concrete node: the API's unique id together with its creation time. A recreate changes both.
// unverified: the id of a node that is created again under its name is another one; createTime tells them apart as well.
// settled by: gcloud compute tpus tpu-vm describe NODE --zone ZONE --format 'value(id,createTime)', before and after a recreate
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation {
    /// The output-only `id` (an int64 as text); empty where the API does not give one.
    pub id: String,
    /// `createTime`.
    pub created: Timestamp,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{}",
            if self.id.is_empty() { "?" } else { &self.id },
            self.created.strftime("%FT%H:%M:%SZ")
        )
    }
}

/// Which generation of a job runs from which checkpoint: metadata `tpu-watchdog-run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOrder {
    /// Counts up with every launch of the slot's job.
    pub generation: u64,
    /// Where to resume from; empty when there is no checkpoint yet.
    #[serde(default)]
    pub checkpoint: String,
    /// The step of that checkpoint.
    #[serde(default)]
    pub step: Option<u64>,
    /// Nothing starts by itself until a later order takes this back; what runs goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
    /// The API announces the end of the machines: the job is asked for a checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub notice: bool,
    /// Every host had reported when this was written (S22): hosts that can't reach each other start it
    /// all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub roll_called: bool,
    /// Boots that are to end: a host whose boot id is among them reboots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reboot: Vec<String>,
}

impl RunOrder {
    /// The order as the metadata key holds it.
    pub fn text(&self) -> String {
        let RunOrder { generation, checkpoint, step, wait, notice, roll_called, reboot } = self;
        let mut text = json!({"generation": generation, "checkpoint": checkpoint, "step": step});
        let flags = [("wait", wait), ("notice", notice), ("roll_called", roll_called)];
        for (key, _) in flags.iter().filter(|(_, set)| **set) {
            text[key] = true.into();
        }
        if !reboot.is_empty() {
            text["reboot"] = json!(reboot);
        }
        text.to_string()
    }
}
