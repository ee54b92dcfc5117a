//! A queued resource as the API returns it, read tolerantly: what is not known is kept and never an
//! error.
//!
//! Field and enum meanings: Cloud TPU API v2 reference, `projects.locations.queuedResources`.

pub mod ahead;
pub mod body;
pub mod reading;
mod slices;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::capacity;
use super::node::{known, text, time};
use super::spec::accelerator;
use crate::model::filling::RequestTimes;
use crate::model::ids::{OWNER_KEY, SLOT_KEY};
use crate::model::queued::{Initiator, RequestState, RequestView};
use crate::model::spec::SLICES_MAX;
use crate::model::time::after;

impl RequestState {
    /// From the REST text or the proto number.
    pub fn from_wire(value: &Value) -> RequestState {
        known(RequestState::WIRE, value).unwrap_or_else(|| RequestState::Other(text(value)))
    }
}

impl RequestView {
    /// Reads a queued resource. Only an unusable `name` is an error.
    pub fn parse(raw: Value) -> Result<RequestView, String> {
        let name =
            raw.get("name").and_then(Value::as_str).ok_or("a queued resource without \"name\"")?;
        let parts: Vec<&str> = name.split('/').collect();
        let ["projects", _, "locations", zone, "queuedResources", id] = parts[..] else {
            return Err(format!(
                "queued resource name {name:?} is not projects/P/locations/Z/queuedResources/Q"
            ));
        };
        if zone.is_empty() || id.is_empty() {
            return Err(format!("queued resource name {name:?} has an empty part"));
        }
        let specs = raw.pointer("/tpu/nodeSpec").and_then(Value::as_array);
        let specs = specs.map(Vec::as_slice).unwrap_or_default();
        let first = specs.first().and_then(|spec| spec.get("node"));
        let metadata = |key: &str| {
            first.and_then(|node| node.get("metadata")?.get(key)?.as_str()).map(str::to_owned)
        };
        Ok(RequestView {
            id: id.to_owned(),
            zone: zone.to_owned(),
            created: time(&raw, "createTime"),
            state: raw
                .pointer("/state/state")
                .map_or(RequestState::Unspecified, RequestState::from_wire),
            by: raw.pointer("/state/stateInitiator").and_then(initiator),
            error: raw
                .pointer("/state/failedData/error/message")
                .and_then(Value::as_str)
                .map(str::to_owned),
            failure: None,
            times: RequestTimes {
                valid_until: valid_until(&raw),
                ends_at: raw.get("runDuration").and_then(|run| time(run, "terminationTime")),
                is_limited: raw.get("runDuration").is_some()
                    || raw.get("provisioningModel").is_some_and(|model| model == "FLEX_START"),
            },
            alpha: false,
            nodes: specs.iter().flat_map(|spec| node_ids(spec, id)).collect(),
            accelerator: first.map(accelerator).unwrap_or_default(),
            owner: metadata(OWNER_KEY),
            slot: metadata(SLOT_KEY),
            raw: Arc::new(raw),
        })
    }
}

/// Source: discovery document of v2, `QueuedResourceState.stateInitiator`.
fn initiator(value: &Value) -> Option<Initiator> {
    match (value.as_str(), value.as_i64()) {
        (Some("USER"), _) | (_, Some(1)) => Some(Initiator::User),
        (Some("SERVICE"), _) | (_, Some(2)) => Some(Initiator::Service),
        _ => None,
    }
}

/// The end of its place in the queue, in any of the three spellings.
fn valid_until(raw: &Value) -> Option<Timestamp> {
    let policy = raw.get("queueingPolicy")?;
    let lasts = body::lasts(policy).and_then(|lasts| Some(after(time(raw, "createTime")?, lasts)));
    let interval = || time(policy.get("validInterval")?, "endTime");
    lasts.or_else(|| time(policy, "validUntilTime")).or_else(interval)
}

/// The ids of one specification's nodes: its own, or `{prefix}-0` to `{prefix}-(n-1)`; the prefix is
/// the request's id where none is given.
fn node_ids(spec: &Value, request: &str) -> Vec<String> {
    if let Some(id) = spec.get("nodeId").and_then(Value::as_str) {
        return vec![id.to_owned()];
    }
    let many = capacity::SEVERAL.iter().find_map(|key| spec.get(*key));
    let Some(count) = many.and_then(|many| many.get("nodeCount")?.as_i64()) else {
        return Vec::new();
    };
    let prefix = many.and_then(|many| many.get("nodeIdPrefix")?.as_str()).unwrap_or(request);
    (0..count.min(SLICES_MAX)).map(|slice| format!("{prefix}-{slice}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::action::Reading;
    use crate::model::node::NodeView;

    #[test]
    fn names_states_and_nodes_are_read_and_what_is_unknown_is_kept() {
        let request = |state: Value, spec: Value| {
            let name = "projects/p/locations/us-east5-b/queuedResources/q";
            let node = json!({"acceleratorType": "v6e-8", "metadata": {OWNER_KEY: "o"}});
            let mut spec = spec;
            spec["node"] = node;
            let created = "2026-06-01T12:00:00Z";
            let tpu = json!({"nodeSpec": [spec]});
            RequestView::parse(
                json!({"name": name, "createTime": created, "state": state, "tpu": tpu}),
            )
            .unwrap()
        };
        let failed = json!({"state": "FAILED", "failedData": {"error": {"message": "no"}}});
        let view = request(failed, json!({"nodeId": "n"}));
        assert_eq!((view.id.as_str(), view.zone.as_str()), ("q", "us-east5-b"));
        assert_eq!((view.state, view.error.as_deref()), (RequestState::Failed, Some("no")));
        assert_eq!((view.nodes, view.accelerator.as_str()), (vec!["n".to_owned()], "v6e-8"));
        assert_eq!((view.owner.as_deref(), view.by), (Some("o"), None));
        let several = json!({"multisliceParams": {"nodeCount": 2}});
        let view = request(json!({"state": 8, "stateInitiator": 1}), several);
        assert_eq!((view.is_by_user(), view.state), (true, RequestState::Suspended));
        assert_eq!(view.nodes, ["q-0", "q-1"]);
        let prefixed = json!({"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s"}});
        let view = request(json!({"state": "LATER"}), prefixed);
        assert_eq!(view.state, RequestState::Other("LATER".into()));
        assert_eq!(view.nodes, ["s-0", "s-1"]);
        assert!(RequestView::parse(json!({"name": "projects/p/queuedResources/q"})).is_err());
    }

    #[test]
    fn whose_a_request_is_stands_in_it_until_its_nodes_show_their_metadata() {
        let of = "projects/p/locations/z/queuedResources/q";
        let node = json!({"metadata": {OWNER_KEY: "theirs", SLOT_KEY: "n"}});
        let request = RequestView::parse(json!({
            "name": of, "createTime": "2026-06-01T12:00:00Z", "state": {"state": "ACTIVE"},
            "tpu": {"nodeSpec": [{"nodeId": "n", "node": node}]},
        }));
        let request = request.unwrap();
        let owner = |state: &str, metadata: Value| {
            let mut raw = json!({
                "name": "projects/p/locations/z/nodes/n", "id": "7", "createTime": "2026-06-01T12:01:00Z",
                "state": state, "queuedResource": of, "metadata": metadata,
            });
            raw.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            let node = Arc::new(NodeView::parse(raw).unwrap());
            match reading::reading("q", Some(&request), &[node]) {
                Reading::Node(view) => view.owner.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(owner("CREATING", Value::Null).as_deref(), Some("theirs"));
        assert_eq!(owner("CREATING", json!({OWNER_KEY: "ours"})).as_deref(), Some("ours"));
        // A person has taken it out.
        assert_eq!(owner("READY", Value::Null), None);
    }

    #[test]
    fn what_can_be_taken_back_is_spot_however_the_request_says_it() {
        let spot = |around: Value| {
            let mut raw = json!({
                "name": "projects/p/locations/z/queuedResources/q", "createTime": "2026-06-01T12:00:00Z",
                "state": {"state": "ACTIVE"},
                // The API prints its own name there, where a specification keeps what surrounds the node.
                "tpu": {"nodeSpec": [{"nodeId": "n", "node": {"queuedResource": "projects/7/locations/z/queuedResources/q"}}]},
            });
            raw.as_object_mut().unwrap().extend(around.as_object().cloned().unwrap());
            match reading::reading("q", Some(&RequestView::parse(raw).unwrap()), &[]) {
                Reading::Node(view) => {
                    assert_eq!(view.queued_resource, None);
                    view.spot
                }
                other => panic!("{other:?}"),
            }
        };
        for (around, is) in [
            (json!({"spot": {}}), true),
            (json!({"bestEffort": {}}), true),
            (json!({"provisioningModel": "SPOT"}), true),
            (json!({"provisioningModel": "FLEX_START"}), false),
            (json!({}), false),
        ] {
            assert_eq!(spot(around.clone()), is, "{around}");
        }
    }
}
