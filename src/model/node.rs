//! A node as the API returns it: a typed view beside the raw JSON, tolerant of everything it does
//! not know.
//!
//! Field and enum meanings: Cloud TPU API v2 reference, `projects.locations.nodes`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids::{Incarnation, OWNER_KEY, RUN_KEY, RunOrder, SLOT_KEY};
use super::spec::is_supervised;

/// Label by which a person opts a TPU out; the value is `off`.
pub const OPT_OUT_LABEL: &str = "tpu-watchdog";

macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal / $number:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// A value this version does not know: means hold, never more.
            Other(String),
        }

        impl $name {
            /// From the REST text or the proto number (`enum-encoding=int`).
            pub fn from_wire(value: &Value) -> Self {
                match value {
                    $(Value::String(s) if s == $text => $name::$variant,)+
                    $(Value::Number(n) if n.as_i64() == Some($number) => $name::$variant,)+
                    Value::String(s) => $name::Other(s.clone()),
                    other => $name::Other(other.to_string()),
                }
            }

            /// The REST text.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $text,)+
                    $name::Other(text) => text,
                }
            }
        }
    };
}

wire_enum! {
    /// `Node.State`.
    NodeState {
        /// Not set.
        Unspecified = "STATE_UNSPECIFIED" / 0,
        /// Being created.
        Creating = "CREATING" / 1,
        /// Created; says nothing about health.
        Ready = "READY" / 2,
        /// Restarting.
        Restarting = "RESTARTING" / 3,
        /// Being reimaged.
        Reimaging = "REIMAGING" / 4,
        /// Being deleted.
        Deleting = "DELETING" / 5,
        /// Being repaired, may be unusable.
        Repairing = "REPAIRING" / 6,
        /// Stopped by a person.
        Stopped = "STOPPED" / 8,
        /// Being stopped.
        Stopping = "STOPPING" / 9,
        /// Being started.
        Starting = "STARTING" / 10,
        /// Preempted; can't be used again.
        Preempted = "PREEMPTED" / 11,
        /// Terminated; can't be used again.
        Terminated = "TERMINATED" / 12,
        /// Being hidden.
        Hiding = "HIDING" / 13,
        /// Hidden.
        Hidden = "HIDDEN" / 14,
        /// Being unhidden.
        Unhiding = "UNHIDING" / 15,
        /// "Unknown state after a failed repair".
        Unknown = "UNKNOWN" / 16,
    }
}

wire_enum! {
    /// `Node.Health`. The field may be absent, also on nodes in good health.
    Health {
        /// Not initialised, or could not be retrieved.
        Unspecified = "HEALTH_UNSPECIFIED" / 0,
        /// Healthy.
        Healthy = "HEALTHY" / 1,
        /// Unresponsive.
        Timeout = "TIMEOUT" / 3,
        /// The in-guest ML stack is unhealthy.
        UnhealthyTensorflow = "UNHEALTHY_TENSORFLOW" / 4,
        /// Under maintenance, or rescheduled by a priority boost.
        UnhealthyMaintenance = "UNHEALTHY_MAINTENANCE" / 5,
    }
}

/// `upcomingMaintenance`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpcomingMaintenance {
    /// `maintenanceStatus` is ONGOING.
    pub ongoing: bool,
    /// `windowStartTime`.
    pub window_start: Option<Timestamp>,
    /// `windowEndTime`: "time by which the disruption will be completed".
    pub window_end: Option<Timestamp>,
}

/// One entry of `symptoms[]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symptom {
    /// `createTime`.
    pub at: Option<Timestamp>,
    /// `symptomType`, as text.
    pub kind: String,
}

/// The typed view of one node, with its raw JSON beside it.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// The node id: the last part of `name`.
    pub node: String,
    /// The zone: taken from `name`.
    pub zone: String,
    /// `None` where neither id nor creation time can be read: such a node is held.
    pub incarnation: Option<Incarnation>,
    /// `state`.
    pub state: NodeState,
    /// `health`; absent is not unhealthy.
    pub health: Option<Health>,
    /// The event time in a `healthDescription` that follows Google's known sentence; it decides
    /// nothing.
    pub maintenance_event: Option<Timestamp>,
    /// `symptoms`.
    pub symptoms: Vec<Symptom>,
    /// `upcomingMaintenance`.
    pub upcoming: Option<UpcomingMaintenance>,
    /// `apiVersion` is one of the V1 family.
    pub is_v1: bool,
    /// `queuedResource`, when the node belongs to one.
    pub queued_resource: Option<String>,
    /// `multisliceNode`.
    pub multislice: bool,
    /// `acceleratorType`, or type and topology where it is absent.
    pub accelerator: String,
    /// `schedulingConfig.reserved`.
    pub reserved: bool,
    /// Number of `networkEndpoints`, one a worker.
    pub workers: usize,
    /// The label `tpu-watchdog=off` is set.
    pub opted_out: bool,
    /// Metadata `tpu-watchdog-owner`.
    pub owner: Option<String>,
    /// Metadata `tpu-watchdog-slot`.
    pub slot: Option<String>,
    /// Metadata `tpu-watchdog-run`.
    pub run: Option<RunOrder>,
    /// The startup script is our supervisor: only then are beacons expected.
    pub supervised: bool,
    /// The node exactly as it was read.
    pub raw: Arc<Value>,
    /// Of `raw`: two reads that have the same one say the same.
    pub fingerprint: u64,
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
        if zone.is_empty() || node.is_empty() {
            return Err(format!("node name {name:?} has an empty part"));
        }
        let (zone, node) = (zone.to_owned(), node.to_owned());
        let created = time(&raw, "createTime");
        let id = match raw.get("id") {
            Some(Value::String(id)) => id.clone(),
            Some(Value::Number(id)) => id.to_string(),
            _ => String::new(),
        };
        let metadata =
            |key: &str| raw.pointer("/metadata").and_then(|m| m.get(key)).and_then(Value::as_str);
        let flag = |pointer: &str| raw.pointer(pointer).and_then(Value::as_bool).unwrap_or(false);
        Ok(NodeView {
            incarnation: created.map(|created| Incarnation { id, created }),
            state: raw.get("state").map_or(NodeState::Unspecified, NodeState::from_wire),
            health: raw.get("health").filter(|h| !h.is_null()).map(Health::from_wire),
            maintenance_event: raw
                .get("healthDescription")
                .and_then(Value::as_str)
                .and_then(maintenance_event),
            symptoms: raw
                .get("symptoms")
                .and_then(Value::as_array)
                .map(|all| all.iter().map(symptom).collect())
                .unwrap_or_default(),
            upcoming: raw.get("upcomingMaintenance").filter(|u| u.is_object()).map(|u| {
                UpcomingMaintenance {
                    ongoing: u.get("maintenanceStatus").and_then(Value::as_str) == Some("ONGOING"),
                    window_start: time(u, "windowStartTime"),
                    window_end: time(u, "windowEndTime"),
                }
            }),
            is_v1: matches!(
                raw.get("apiVersion").and_then(Value::as_str),
                Some("V1" | "V1_ALPHA1")
            ),
            queued_resource: raw
                .get("queuedResource")
                .and_then(Value::as_str)
                .filter(|q| !q.is_empty())
                .map(str::to_owned),
            multislice: flag("/multisliceNode"),
            accelerator: accelerator(&raw),
            reserved: flag("/schedulingConfig/reserved"),
            workers: raw.get("networkEndpoints").and_then(Value::as_array).map_or(0, Vec::len),
            opted_out: raw
                .pointer("/labels")
                .and_then(|l| l.get(OPT_OUT_LABEL))
                .and_then(Value::as_str)
                == Some("off"),
            owner: metadata(OWNER_KEY).map(str::to_owned),
            slot: metadata(SLOT_KEY).map(str::to_owned),
            supervised: raw.get("metadata").and_then(Value::as_object).is_some_and(is_supervised),
            run: metadata(RUN_KEY).and_then(|text| serde_json::from_str(text).ok()),
            node,
            zone,
            fingerprint: fingerprint(&raw),
            raw: Arc::new(raw),
        })
    }
}

fn fingerprint(raw: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    raw.hash(&mut hasher);
    hasher.finish()
}

fn accelerator(raw: &Value) -> String {
    if let Some(kind) = raw.get("acceleratorType").and_then(Value::as_str) {
        return kind.to_owned();
    }
    let part = |key: &str| {
        raw.pointer("/acceleratorConfig")
            .and_then(|c| c.get(key))
            .and_then(Value::as_str)
            .unwrap_or("?")
    };
    format!("{}:{}", part("type"), part("topology"))
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

fn time(value: &Value, key: &str) -> Option<Timestamp> {
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
