//! The request around a node: learned from a queued resource, kept inside the node's specification,
//! and made into the body of a create again.
//!
//! The specification of the node stays one like any other, so that the config's overlay, the limits
//! and the drift are the same for every kind; what else the request said stands in it under
//! [`REQUEST_KEY`]. Spot and reserved capacity are said by the node's `schedulingConfig` there, as
//! for a plain node, and moved to where a request says them when it is sent.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::model::node::NodeView;
use crate::model::queued::RequestView;
use crate::model::spec::{REQUEST_KEY, SLICES_KEY};
use crate::model::time::after;
use crate::resource::node::time;
use crate::resource::spec;

/// How long a request of ours waits at most, where neither the request that was learned nor the config
/// says: one that this program has lost sight of ends by itself.
const VALID_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// The fields that name several nodes, in place of `nodeId`: of v2, and of v2alpha1.
pub const SEVERAL: [&str; 2] = ["multisliceParams", "multiNodeParams"];

/// Whether the full name of a queued resource is that of this id.
pub fn names_request(name: &str, id: &str) -> bool {
    name.rsplit('/').next() == Some(id)
}

/// Whether a node names the queued resource of this id.
pub fn is_of(node: &NodeView, id: &str) -> bool {
    node.queued_resource.as_deref().is_some_and(|name| names_request(name, id))
}

/// Fields of a node that its people can change after its create: the request, which never changes, has
/// them as they were. Source: Cloud TPU API v2, `nodes.patch`.
const CHANGED: [&str; 4] = ["metadata", "labels", "tags", "description"];

/// The JSON of a node as the request wants it; what it leaves to the API, and what was changed since, is
/// taken from the node that is there.
pub fn as_node(request: &RequestView, there: Option<&Value>) -> Value {
    let mut around = request.raw.as_object().cloned().unwrap_or_default();
    let first =
        around.remove("tpu").and_then(|mut tpu| Some(tpu.get_mut("nodeSpec")?.get_mut(0)?.take()));
    let mut spec = match first {
        Some(Value::Object(spec)) => spec,
        _ => Map::new(),
    };
    let mut node = match spec.remove("node") {
        Some(Value::Object(node)) => node,
        _ => Map::new(),
    };
    let typed = node.contains_key("acceleratorType") || node.contains_key("acceleratorConfig");
    for (key, lacks) in [
        ("acceleratorType", !typed),
        ("acceleratorConfig", !typed),
        ("runtimeVersion", !node.contains_key("runtimeVersion")),
    ] {
        if let Some(value) = there.and_then(|there| there.get(key)).filter(|_| lacks) {
            node.insert(key.to_owned(), value.clone());
        }
    }
    // A disk of one slice is not that of all.
    let disks = Some("dataDisks").filter(|_| request.nodes.len() == 1);
    for key in CHANGED.into_iter().chain(disks) {
        if let Some(value) = there.and_then(|there| there.get(key)) {
            node.insert(key.to_owned(), value.clone());
        }
    }
    let (spot, reserved) = (around.remove("spot").is_some(), take_reserved(&mut around));
    for (key, _) in [("spot", spot), ("reserved", reserved)].iter().filter(|(_, is)| *is) {
        let scheduling = node.entry("schedulingConfig").or_insert_with(|| json!({}));
        scheduling[*key] = json!(true);
    }
    for output in ["name", "createTime", "state"] {
        around.remove(output);
    }
    spec.remove("parent");
    for key in SEVERAL {
        let count = spec.get_mut(key).and_then(|many| many.as_object_mut()?.remove("nodeCount"));
        if let Some(count) = count.filter(|count| count.as_i64().is_some_and(|count| count > 1)) {
            around.insert(SLICES_KEY.into(), count);
        }
    }
    if !spec.is_empty() {
        around.insert("nodeSpec".into(), Value::Object(spec));
    }
    // A time that counts from the creation of this one would put a recreate off.
    if let Some(policy) = around.get_mut("queueingPolicy").and_then(Value::as_object_mut) {
        policy.remove("validAfterDuration");
        if policy.is_empty() {
            around.remove("queueingPolicy");
        }
    }
    if let Some(run) = around.get_mut("runDuration").and_then(Value::as_object_mut) {
        run.remove("terminationTime");
    }
    let id = request.nodes.first().map_or(request.id.as_str(), String::as_str);
    let project = request.raw["name"].as_str().and_then(|name| name.split('/').nth(1));
    let (project, zone) = (project.unwrap_or_default(), &request.zone);
    node.insert("name".into(), json!(format!("projects/{project}/locations/{zone}/nodes/{id}")));
    if let Some(created) = request.raw.get("createTime") {
        node.insert("createTime".into(), created.clone());
    }
    node.insert(REQUEST_KEY.into(), Value::Object(around));
    Value::Object(node)
}

/// Whether a request's capacity can be taken back at any time, where its `spot` does not say so: v2alpha1 has two more words for
/// that (discovery document: `bestEffort`, one of the tiers, and `provisioningModel`).
pub fn is_taken_back(around: &Value) -> bool {
    around.get("bestEffort").is_some()
        || around.get("provisioningModel").is_some_and(|model| model == "SPOT")
}

/// `guaranteed.reserved` of a request, taken out of it.
fn take_reserved(around: &mut Map<String, Value>) -> bool {
    let guaranteed = around.get_mut("guaranteed").and_then(Value::as_object_mut);
    let Some(guaranteed) = guaranteed else { return false };
    let reserved = guaranteed.remove("reserved") == Some(json!(true));
    if reserved && guaranteed.is_empty() {
        around.remove("guaranteed");
    }
    reserved
}

/// The body of a create for a specification, and whether v2alpha1 alone takes it. `parent` is
/// `projects/P/locations/Z`; `node` is the node's id where the specification names none.
pub fn create_body(specification: &Value, parent: &str, node: &str) -> (Value, bool) {
    let mut body = specification.as_object().cloned().unwrap_or_default();
    let mut around = match body.remove(REQUEST_KEY) {
        Some(Value::Object(around)) => around,
        _ => Map::new(),
    };
    let mut spec = match around.remove("nodeSpec") {
        Some(Value::Object(spec)) => spec,
        _ => Map::new(),
    };
    let (mut spot, mut reserved) = (false, false);
    if let Some(scheduling) = body.get_mut("schedulingConfig").and_then(Value::as_object_mut) {
        let mut take = |key: &str| scheduling.remove(key) == Some(json!(true));
        (spot, reserved) = (take("spot") | take("preemptible"), take("reserved"));
        if scheduling.is_empty() {
            body.remove("schedulingConfig");
        }
    }
    if spot {
        around.insert("spot".into(), json!({}));
        around.retain(|key, _| !["guaranteed", "bestEffort"].contains(&key.as_str()));
        // Refused: "STANDARD provisioning model is incompatible with spot requests".
        around.retain(|key, value| key != "provisioningModel" || *value == "SPOT");
    }
    if reserved {
        // A request has one tier.
        around.remove("bestEffort");
        let guaranteed = around.entry("guaranteed").or_insert_with(|| json!({}));
        guaranteed["reserved"] = json!(true);
    }
    limit(&mut around);
    let several = name_nodes(&mut spec, around.remove(SLICES_KEY), node);
    let alpha = reserved || several == Some("multiNodeParams") || spec::needs_alpha(specification);
    spec.insert("parent".into(), json!(parent));
    spec.insert("node".into(), Value::Object(body));
    around.insert("tpu".into(), json!({"nodeSpec": [spec]}));
    (Value::Object(around), alpha)
}

/// A specification as its request will say it.
pub fn limited(specification: &mut Value) {
    if let Some(body) = specification.as_object_mut() {
        let around = body.entry(REQUEST_KEY).or_insert_with(|| json!({}));
        around.as_object_mut().map(limit);
    }
}

/// Bounds the time for which a request waits, where no person has said when: one that this program has lost sight of
/// ends by itself. `around` is what a specification says of its request; its policy takes one rule.
fn limit(around: &mut Map<String, Value>) {
    let policy = around.entry("queueingPolicy").or_insert_with(|| json!({}));
    let Some(policy) = policy.as_object_mut() else { return };
    if policy.is_empty() {
        let seconds = VALID_FOR.as_secs();
        policy.insert("validUntilDuration".into(), json!(format!("{seconds}s")));
    } else if let Some(from) = time(&Value::Object(policy.clone()), "validAfterTime") {
        // A beginning alone has no end.
        let interval = json!({"startTime": from, "endTime": after(from, VALID_FOR)});
        *policy = [("validInterval".to_owned(), interval)].into_iter().collect();
    } else if policy.contains_key("validUntilDuration") {
        policy.retain(|key, _| key == "validUntilDuration");
    }
}

/// The specification without times that have passed, which the API would refuse. An end that a person gave their request
/// holds for the next one, too, while it is ahead.
pub fn still_ahead(specification: &Value, now: Timestamp) -> Value {
    let mut specification = specification.clone();
    let around = specification.get_mut(REQUEST_KEY);
    let policy = around.and_then(|around| around.get_mut("queueingPolicy")?.as_object_mut());
    let Some(policy) = policy else { return specification };
    let ahead = |value: &Value, key: &str| time(value, key).is_some_and(|at| at > now);
    for key in ["validUntilTime", "validAfterTime"] {
        if policy.contains_key(key) && !ahead(&Value::Object(policy.clone()), key) {
            policy.remove(key);
        }
    }
    if let Some(interval) = policy.get("validInterval").cloned()
        && !ahead(&interval, "startTime")
    {
        policy.remove("validInterval");
        if ahead(&interval, "endTime") {
            policy.insert("validUntilTime".into(), interval["endTime"].clone());
        }
    }
    specification
}

/// The ids of the nodes: one, or the prefix of `count`. Returns the field that holds the latter.
fn name_nodes(
    spec: &mut Map<String, Value>,
    count: Option<Value>,
    node: &str,
) -> Option<&'static str> {
    let Some(count) = count.filter(|count| count.as_i64().is_some_and(|count| count > 1)) else {
        SEVERAL.iter().for_each(|key| _ = spec.remove(*key));
        spec.entry("nodeId").or_insert_with(|| json!(node));
        return None;
    };
    spec.remove("nodeId");
    let known = SEVERAL.into_iter().find(|key| spec.contains_key(*key));
    let key = known.unwrap_or(SEVERAL[0]);
    let many = spec.entry(key).or_insert_with(|| json!({"nodeIdPrefix": node}));
    if let Some(many) = many.as_object_mut() {
        many.insert("nodeCount".into(), count);
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::NodeSpec;

    const OF: &str = "projects/p/locations/us-east5-b";

    fn learned(raw: &Value) -> NodeSpec {
        let request = RequestView::parse(raw.clone()).unwrap();
        NodeSpec::learn(&as_node(&request, None)).unwrap()
    }

    fn request(more: Value) -> Value {
        let mut raw = json!({
            "name": format!("{OF}/queuedResources/q"), "createTime": "2026-06-01T12:00:00Z",
            "state": {"state": "ACTIVE"},
            "tpu": {"nodeSpec": [{"parent": OF, "nodeId": "n", "node": {
                "acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e", "labels": {"team": "llm"},
                "later": {"field": 1},
            }}]},
        });
        raw.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        raw
    }

    #[test]
    fn s12_what_was_changed_on_the_node_since_is_created_again() {
        let there = json!({
            "metadata": {"startup-script": "new"}, "tags": ["t"], "runtimeVersion": "of the node", "health": "HEALTHY",
        });
        let asked = RequestView::parse(request(json!({}))).unwrap();
        let learned = NodeSpec::learn(&as_node(&asked, Some(&there))).unwrap();
        let (body, _) = create_body(&Value::Object(learned.body().clone()), OF, "other");
        let node = &body["tpu"]["nodeSpec"][0]["node"];
        assert_eq!(node["metadata"], there["metadata"]);
        assert_eq!((&node["tags"], &node["labels"]), (&json!(["t"]), &json!({"team": "llm"})));
        assert_eq!(node["runtimeVersion"], "v2-alpha-tpuv6e");
        assert_eq!(node.get("health"), None);
    }

    #[test]
    fn s12_a_request_is_created_again_as_it_was_asked_for() {
        let policy = json!({"validUntilDuration": "21600s"});
        for (more, alpha) in [
            (json!({"spot": {}, "queueingPolicy": policy}), false),
            (json!({"guaranteed": {"minDuration": "60s"}, "queueingPolicy": policy}), false),
            (
                json!({"guaranteed": {"reserved": true}, "reservationName": "r", "queueingPolicy": policy}),
                true,
            ),
            (
                json!({"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "3600s"},
                       "queueingPolicy": policy, "laterField": [1]}),
                true,
            ),
        ] {
            let raw = request(more);
            let (body, needs) =
                create_body(&Value::Object(learned(&raw).body().clone()), OF, "other");
            let mut expected = raw.clone();
            for output in ["name", "createTime", "state"] {
                expected.as_object_mut().unwrap().remove(output);
            }
            assert_eq!((body.clone(), needs), (expected, alpha));
            // The same over any number of recreates.
            let mut again = body;
            for output in ["name", "createTime", "state"] {
                again[output] = raw[output].clone();
            }
            assert_eq!(learned(&again), learned(&raw));
        }
    }

    #[test]
    fn a_request_of_the_config_alone_is_bounded_and_names_its_node() {
        let spec = json!({"acceleratorType": "v6e-8", "runtimeVersion": "v", "schedulingConfig": {"spot": true}});
        let (body, alpha) = create_body(&spec, OF, "slot");
        let expected = json!({
            "tpu": {"nodeSpec": [{"parent": OF, "nodeId": "slot",
                                  "node": {"acceleratorType": "v6e-8", "runtimeVersion": "v"}}]},
            "spot": {}, "queueingPolicy": {"validUntilDuration": "604800s"},
        });
        assert_eq!((body, alpha), (expected, false));
    }

    #[test]
    fn a_capacity_that_the_config_chooses_takes_the_place_of_best_effort() {
        for (scheduling, tiers) in [
            (json!({}), json!({"bestEffort": {}})),
            (json!({"spot": true}), json!({"spot": {}})),
            (json!({"reserved": true}), json!({"guaranteed": {"reserved": true}})),
        ] {
            let spec = json!({
                "acceleratorType": "v6e-8", "runtimeVersion": "v", "schedulingConfig": scheduling,
                "queuedResource": {"bestEffort": {}},
            });
            let (mut body, _) = create_body(&spec, OF, "slot");
            let body = body.as_object_mut().unwrap();
            body.retain(|key, _| !["tpu", "queueingPolicy"].contains(&key.as_str()));
            assert_eq!(json!(body), tiers);
        }
    }

    #[test]
    fn times_of_the_past_are_not_asked_for_again_and_an_end_that_is_ahead_holds() {
        let [start, end] = ["2026-06-01T12:00:00Z", "2026-06-01T18:00:00Z"];
        let ours = json!({"validUntilDuration": "604800s"});
        // A beginning gets an end, too: one that is lost sight of ends by itself.
        let week_after = "2026-06-08T18:00:00Z";
        let bounded = json!({"validInterval": {"startTime": end, "endTime": week_after}});
        for (given, before, between, past) in [
            (json!({"validAfterDuration": "60s"}), &ours, &ours, &ours),
            (
                json!({ "validUntilTime": end }),
                &json!({ "validUntilTime": end }),
                &json!({ "validUntilTime": end }),
                &ours,
            ),
            (json!({ "validAfterTime": end }), &bounded, &bounded, &ours),
            (
                json!({"validInterval": {"startTime": start, "endTime": end}}),
                &json!({"validInterval": {"startTime": start, "endTime": end}}),
                &json!({ "validUntilTime": end }),
                &ours,
            ),
        ] {
            let raw = request(json!({
                "queueingPolicy": given,
                "runDuration": {"maxRunDuration": "60s", "terminationTime": "2026-06-02T12:00:00Z"},
            }));
            let spec = Value::Object(learned(&raw).body().clone());
            for (now, expected) in [
                ("2026-06-01T11:00:00Z", before),
                ("2026-06-01T13:00:00Z", between),
                ("2026-06-01T19:00:00Z", past),
            ] {
                let (body, _) = create_body(&still_ahead(&spec, now.parse().unwrap()), OF, "n");
                assert_eq!(body["queueingPolicy"], *expected, "{given} at {now}");
                assert_eq!(body["runDuration"], json!({"maxRunDuration": "60s"}));
            }
        }
    }

    #[test]
    fn several_slices_are_asked_for_as_they_were_learned_or_as_the_config_says() {
        for (many, alpha) in [
            (json!({"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s"}}), false),
            (json!({"multisliceParams": {"nodeCount": 2}}), false),
            (
                json!({"multiNodeParams": {"nodeCount": 2, "workloadType": "THROUGHPUT_OPTIMIZED"}}),
                true,
            ),
        ] {
            let mut raw = request(json!({"queueingPolicy": {"validUntilDuration": "60s"}}));
            let spec = raw["tpu"]["nodeSpec"][0].as_object_mut().unwrap();
            spec.remove("nodeId");
            spec.extend(many.as_object().cloned().unwrap());
            let (body, needs) =
                create_body(&Value::Object(learned(&raw).body().clone()), OF, "slot");
            assert_eq!((&body["tpu"], needs), (&raw["tpu"], alpha));
        }
        let of = |count: u64| {
            let around = json!({"nodes": count, "nodeSpec": {"nodeId": "n"}});
            let spec = json!({"acceleratorType": "v6e-8", "runtimeVersion": "v", "queuedResource": around});
            create_body(&spec, OF, "slot").0["tpu"]["nodeSpec"][0].clone()
        };
        let mut two = of(2);
        two.as_object_mut().unwrap().remove("node");
        let params = json!({"nodeCount": 2, "nodeIdPrefix": "slot"});
        assert_eq!(two, json!({"parent": OF, "multisliceParams": params}));
        assert_eq!(of(1)["nodeId"], "n");
    }
}
