//! A Cloud TPU node as the API returns it, read tolerantly: what is not known is kept and never an
//! error.
//!
//! Field and enum meanings: Cloud TPU API v2 reference, `projects.locations.nodes`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::spec::{OPT_OUT_LABEL, accelerator, is_supervised};
use crate::model::filling::Deletable;
use crate::model::ids::{Incarnation, OWNER_KEY, RUN_KEY, SLOT_KEY};
use crate::model::node::{Health, NodeState, NodeView, Symptom, UpcomingMaintenance};

impl NodeState {
    /// From the REST text or the proto number.
    pub fn from_wire(value: &Value) -> NodeState {
        known(NodeState::WIRE, value).unwrap_or_else(|| NodeState::Other(text(value)))
    }
}

impl Health {
    /// From the REST text or the proto number.
    pub fn from_wire(value: &Value) -> Health {
        known(Health::WIRE, value).unwrap_or_else(|| Health::Other(text(value)))
    }
}

/// The known value of a REST text or a proto number.
pub(super) fn known<T: Clone>(wire: &[(T, &str, i64)], value: &Value) -> Option<T> {
    let (text, number) = (value.as_str(), value.as_i64());
    let found = wire.iter().find(|(_, name, n)| text == Some(name) || number == Some(*n));
    found.map(|(known, ..)| known.clone())
}

/// An unknown value, as it was.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl NodeView {
    /// Reads a node. Only an unusable `name` is an error; every other oddity is kept and means
    /// "unclear" later.
    pub fn parse(raw: Value) -> Result<NodeView, String> {
        let name = raw.get("name").and_then(Value::as_str).ok_or("a node without \"name\"")?;
        let parts: Vec<&str> = name.split('/').collect();
        let ["projects", _, "locations", zone, "nodes", node] = parts[..] else {
            return Err(format!("node name {name:?} is not projects/P/locations/Z/nodes/N"));
        };
        if [zone, node].contains(&"") {
            return Err(format!("node name {name:?} has an empty part"));
        }
        let id = match raw.get("id") {
            Some(Value::String(id)) => id.clone(),
            Some(Value::Number(id)) => id.to_string(),
            _ => String::new(),
        };
        let metadata = |key: &str| raw.pointer("/metadata")?.get(key)?.as_str();
        let list = |key: &str| raw.get(key).and_then(Value::as_array);
        let flag = |pointer: &str| raw.pointer(pointer).and_then(Value::as_bool).unwrap_or(false);
        Ok(NodeView {
            incarnation: time(&raw, "createTime").map(|created| Incarnation { id, created }),
            state: raw.get("state").map_or(NodeState::Unspecified, NodeState::from_wire),
            health: raw.get("health").filter(|h| !h.is_null()).map(Health::from_wire),
            maintenance_event: raw
                .get("healthDescription")
                .and_then(Value::as_str)
                .and_then(maintenance_event),
            symptoms: list("symptoms").into_iter().flatten().map(symptom).collect(),
            upcoming: raw.get("upcomingMaintenance").filter(|u| u.is_object()).map(upcoming),
            is_v1: raw.get("apiVersion").is_some_and(|of| *of == "V1" || *of == "V1_ALPHA1"),
            own_state: None,
            by_service: false,
            queued_resource: raw
                .get("queuedResource")
                .and_then(Value::as_str)
                .filter(|q| !q.is_empty())
                .map(str::to_owned),
            multislice: flag("/multisliceNode"),
            accelerator: accelerator(&raw),
            reserved: flag("/schedulingConfig/reserved"),
            spot: flag("/schedulingConfig/spot") || flag("/schedulingConfig/preemptible"),
            reservation: raw
                .pointer("/schedulingConfig/reservationName")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            workers: list("networkEndpoints").map_or(0, Vec::len),
            opted_out: is_opted_out(&raw),
            owner: metadata(OWNER_KEY).map(str::to_owned),
            slot: metadata(SLOT_KEY).map(str::to_owned),
            supervised: raw.get("metadata").and_then(Value::as_object).is_some_and(is_supervised),
            run: metadata(RUN_KEY).and_then(|text| serde_json::from_str(text).ok()),
            node: node.to_owned(),
            zone: zone.to_owned(),
            standing: None,
            members: Vec::new(),
            machines: None,
            labelled: Default::default(),
            slice: None,
            out_of_step: None,
            deletable: Deletable::Now,
            ended: false,
            not_listed: false,
            failure: None,
            outgrown: None,
            times: Default::default(),
            alpha: false,
            fingerprint: fingerprint(&raw),
            raw: Arc::new(raw),
        })
    }

    /// The same node, read through v2alpha1: it teaches more than an equal answer of v2 does.
    pub fn through_alpha(mut self) -> NodeView {
        if !std::mem::replace(&mut self.alpha, true) {
            self.fingerprint = !self.fingerprint;
        }
        self
    }
}

fn is_opted_out(raw: &Value) -> bool {
    raw.pointer("/labels").and_then(|labels| labels.get(OPT_OUT_LABEL)?.as_str()) == Some("off")
}

pub(super) fn fingerprint(raw: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    raw.hash(&mut hasher);
    hasher.finish()
}

fn upcoming(value: &Value) -> UpcomingMaintenance {
    UpcomingMaintenance {
        ongoing: value.get("maintenanceStatus").and_then(Value::as_str) == Some("ONGOING"),
        window_start: time(value, "windowStartTime"),
        window_end: time(value, "windowEndTime"),
    }
}

fn symptom(value: &Value) -> Symptom {
    let kind = match value.get("symptomType") {
        Some(Value::String(kind)) => kind.clone(),
        // Proto numbers, as plain REST returns them only under enum-encoding=int.
        Some(Value::Number(n)) if n.as_i64() == Some(3) => "EXECUTE_TIMED_OUT".to_owned(),
        Some(Value::Number(n)) if n.as_i64() == Some(4) => "MESH_BUILD_FAIL".to_owned(),
        other => other.map(Value::to_string).unwrap_or_default(),
    };
    Symptom { at: time(value, "createTime"), kind }
}

/// The time in "The TPU had a maintenance event at T"; any other text gives nothing.
pub fn maintenance_event(description: &str) -> Option<Timestamp> {
    description.strip_prefix("The TPU had a maintenance event at ")?.trim_end().parse().ok()
}

/// A time in RFC 3339; none where it is missing, or none.
pub(super) fn time(value: &Value, key: &str) -> Option<Timestamp> {
    value.get(key)?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn name(node: &str) -> String {
        format!("projects/p/locations/us-central2-b/nodes/{node}")
    }

    #[test]
    fn enums_are_read_as_text_and_as_number_and_unknown_values_survive() {
        assert_eq!(NodeState::from_wire(&json!("READY")), NodeState::Ready);
        assert_eq!(NodeState::from_wire(&json!(16)), NodeState::Unknown);
        assert_eq!(NodeState::from_wire(&json!("PAUSING")), NodeState::Other("PAUSING".into()));
        assert_eq!(NodeState::from_wire(&json!(99)).as_str(), "99");
        assert_eq!(Health::from_wire(&json!(5)), Health::UnhealthyMaintenance);
    }

    #[test]
    fn an_ordinary_node_is_read_whole() {
        let view = NodeView::parse(json!({
            "name": name("a"), "id": "77", "createTime": "2026-01-02T03:04:05.123456789Z", "state": "READY", "health": "HEALTHY",
            "healthDescription": "The TPU had a maintenance event at 2022-01-26T03:44:36.265703305Z",
            "acceleratorType": "v4-32", "networkEndpoints": [{}, {}], "labels": {"tpu-watchdog": "off"},
            "metadata": {"tpu-watchdog-owner": "me", "tpu-watchdog-run": "{\"generation\":3,\"checkpoint\":\"gs://b/1\",\"step\":1}"},
        }))
        .unwrap();
        assert_eq!(
            (view.node.as_str(), view.zone.as_str(), view.workers),
            ("a", "us-central2-b", 2)
        );
        assert!(view.opted_out);
        assert_eq!(view.run.unwrap().generation, 3);
        assert_eq!(view.maintenance_event.unwrap().to_string(), "2022-01-26T03:44:36.265703305Z");
    }

    #[test]
    fn oddities_are_kept_and_never_an_error() {
        let view = NodeView::parse(
            json!({"name": name("a"), "state": 12345, "health": null, "metadata": [], "labels": 7,
            "symptoms": {}, "createTime": "yesterday", "healthDescription": "all is lost"}),
        )
        .unwrap();
        assert_eq!(view.incarnation, None);
        assert_eq!(view.health, None);
        assert_eq!(view.maintenance_event, None);
        assert!(NodeView::parse(json!({"name": "nodes/a"})).is_err());
        assert!(NodeView::parse(json!({})).is_err());
    }
}
