//! The recreate of a slot as it would be today, compared with its TPU as it was learned.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::model::fleet::Fleet;
use crate::model::ids::{Incarnation, RunOrder};
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;

use super::{location, reads};

/// The recreate of one slot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IfLost {
    /// The slot.
    pub name: String,
    /// The zone that it is created in first.
    pub zone: String,
    /// Exactly this incarnation is deleted; none where there is no node.
    pub deletes: Option<Incarnation>,
    /// Why it could not be created.
    pub refused: Option<String>,
    /// The fields of the create, by dotted key.
    pub fields: Vec<Field>,
    /// Where its job starts: a step with its place and when that was written, or nothing.
    pub checkpoint: Option<(u64, String, Option<Timestamp>)>,
    /// Where checkpoints are looked for.
    pub location: Option<String>,
}

/// One field of a create.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Field {
    /// Dotted.
    pub key: String,
    /// Of the TPU; none where it has none. Of metadata the length and a digest alone.
    pub learned: Option<String>,
    /// Of the create.
    pub sent: Option<String>,
}

/// The recreates of all slots, or of one.
pub fn if_lost(fleet: &Fleet, settings: &Settings, only: Option<&str>) -> Vec<IfLost> {
    let wanted = |record: &&SlotRecord| only.is_none_or(|only| only == record.name);
    let of = |record: &SlotRecord| Some(one(settings, settings.slots.get(&record.name)?, record));
    fleet.slots.values().filter(wanted).filter_map(of).collect()
}

fn one(settings: &Settings, slot: &SlotSettings, record: &SlotRecord) -> IfLost {
    let listed = location::listed(slot);
    let here = listed.is_some_and(|listed| listed.uri == record.job.location);
    let checkpoint = record.job.checkpoint.as_ref().filter(|_| here);
    let order = RunOrder {
        generation: record.job.generation + 1,
        checkpoint: checkpoint.map(|found| found.uri.clone()).unwrap_or_default(),
        step: checkpoint.map(|found| found.step),
        ..RunOrder::default()
    };
    let learned = record.spec.clone().unwrap_or_else(NodeSpec::empty);
    let wanted = learned.clone().in_zone(&record.zone).overlaid(&slot.create);
    let supervisor = slot.supervisor.as_deref();
    let body = wanted.render(&settings.owner, &record.name, &order, supervisor);
    IfLost {
        name: record.name.clone(),
        zone: record.zone.clone(),
        deletes: record.incarnation.clone(),
        refused: reads::acceptable(settings, slot, record).err(),
        fields: fields(learned.body(), body.as_object()),
        checkpoint: checkpoint
            .map(|found| (found.step, found.uri.clone(), record.job.checkpoint_written)),
        location: listed.map(|listed| listed.uri.clone()),
    }
}

fn fields(learned: &Map<String, Value>, body: Option<&Map<String, Value>>) -> Vec<Field> {
    let (old, new) = (flat(learned), body.map(flat).unwrap_or_default());
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let field = |key: &String| Field {
        key: key.clone(),
        learned: old.get(key).cloned(),
        sent: new.get(key).cloned(),
    };
    keys.into_iter().map(field).collect()
}

/// Fields by dotted key, two levels deep. Metadata values are secrets: what is shown of one tells it
/// from another, and no more.
fn flat(body: &Map<String, Value>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (key, value) in body {
        match value {
            Value::Object(inner) => {
                for (name, value) in inner {
                    let shown = if key == "metadata" { masked(value) } else { value.to_string() };
                    all.insert(format!("{key}.{name}"), shown);
                }
            }
            value => _ = all.insert(key.clone(), value.to_string()),
        }
    }
    all
}

fn masked(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let digest = NodeSpec(Map::from_iter([(String::new(), value.clone())])).digest();
    format!("({} bytes, digest {})", text.len(), &digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_metadata_value_is_never_shown() {
        let body = json!({ "metadata": { "token": "hunter2-hunter2" }, "labels": { "team": "a" } });
        let all = flat(body.as_object().unwrap());
        assert_eq!(all["labels.team"], "\"a\"");
        assert!(all["metadata.token"].starts_with("(15 bytes, digest "), "{all:?}");
        let other = json!({ "metadata": { "token": "hunter2-hunter3" } });
        assert_ne!(flat(other.as_object().unwrap())["metadata.token"], all["metadata.token"]);
    }
}
