//! What is looked up once before something is decided about a slot.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::settings::SlotSettings;
use super::spec::NodeSpec;

/// The create that would follow a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextCreate {
    /// Its zone.
    pub zone: String,
    /// Its specification.
    pub spec: NodeSpec,
    /// The fields that the slot's TPU, as it is or was, does not show to be possible: the config changes
    /// them, or has moved the slot.
    pub new: Vec<&'static str>,
}

impl NextCreate {
    /// The fields that are asked about.
    pub const ASKED: [&'static str; 3] = ["acceleratorType", "runtimeVersion", "serviceAccount"];

    /// The one of a slot whose TPU lives, or last lived, in `zone`.
    pub fn of(learned: Option<&NodeSpec>, slot: &SlotSettings, zone: &String) -> NextCreate {
        let next = slot.next_zone(zone);
        let known = learned.cloned().unwrap_or_else(NodeSpec::empty);
        let spec = known.clone().in_zone(next).overlaid(&slot.create);
        let moved = next != zone;
        let is_new = |key: &&str| {
            let stays = known.body().get(*key) == spec.body().get(*key);
            !stays || moved && *key != "serviceAccount"
        };
        let new = Self::ASKED.into_iter().filter(is_new).collect();
        NextCreate { zone: next.clone(), spec, new }
    }

    /// The question about the create of a slot, by which its answer is known.
    pub fn question(learned: Option<&NodeSpec>, slot: &SlotSettings, zone: &String) -> String {
        let value = |key| {
            let configured = slot.create.fields.get(key);
            let known = || learned.and_then(|spec| spec.body().get(key));
            configured.or_else(known).map_or(String::new(), ToString::to_string)
        };
        format!("{} {}", slot.next_zone(zone), Self::ASKED.map(value).join(" "))
    }
}

/// Whether a create could follow a delete (S20).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateCheck {
    /// A create is certainly impossible: why, with the command that mends it.
    pub certain: Option<String>,
    /// Reasons that may stand in its way; told, not held.
    pub doubts: Vec<String>,
    /// The question that it answers: [`NextCreate::question`].
    pub question: String,
}

/// A delete operation on a node, whoever asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The operation's full name.
    pub operation: String,
    /// When the API accepted it.
    pub at: Timestamp,
}
