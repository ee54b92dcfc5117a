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

use super::slices::{name_nodes, tell_slices};
use crate::model::node::NodeView;
use crate::model::queued::RequestView;
use crate::model::spec::{REQUEST_KEY, SLICES_KEY};
use crate::model::time::after;
use crate::resource::capacity::{self, SEVERAL, WORKLOAD};
use crate::resource::node::time;
use crate::resource::spec;

/// How long a request of ours waits at most, where neither the request that was learned nor the config
/// says: one that this program has lost sight of ends by itself.
pub(super) const VALID_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

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
    take_slices(&mut spec, &mut around);
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
    // The end of this one; given by a person in place of a duration, it is that of the next one, too.
    if let Some(run) = around.get_mut("runDuration").and_then(Value::as_object_mut)
        && run.contains_key("maxRunDuration")
    {
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

/// The number of slices, taken to where the config chooses it. The versions have a name each for the same field.
fn take_slices(spec: &mut Map<String, Value>, around: &mut Map<String, Value>) {
    if let Some(Value::Object(mut many)) = SEVERAL.iter().find_map(|key| spec.remove(*key)) {
        let count = many.remove("nodeCount");
        if let Some(count) = count.filter(|count| count.as_i64().is_some_and(|count| count > 1)) {
            around.insert(SLICES_KEY.into(), count);
        }
        spec.insert(SEVERAL[0].into(), Value::Object(many));
    }
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

/// The body of a create for a specification, and whether it goes through v2alpha1: where the client does (`alpha`), or where
/// that alone takes it. `parent` is `projects/P/locations/Z`; `node` is the node's id where the specification names none.
pub fn create_body(specification: &Value, parent: &str, node: &str, alpha: bool) -> (Value, bool) {
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
        around.remove("guaranteed");
        // Refused: "STANDARD provisioning model is incompatible with spot requests".
        around.retain(|key, value| key != "provisioningModel" || *value == "SPOT");
    }
    if reserved {
        let guaranteed = around.entry("guaranteed").or_insert_with(|| json!({}));
        guaranteed["reserved"] = json!(true);
    }
    limit(&mut around);
    let alpha = alpha || reserved || has_workload(&spec) || spec::needs_alpha(specification);
    if spot && alpha {
        // v2alpha1 takes a Spot request without a model for a STANDARD one.
        around.entry("provisioningModel").or_insert_with(|| json!("SPOT"));
    }
    let slices = around.remove(SLICES_KEY);
    tell_slices(&mut body, slices.as_ref());
    name_nodes(&mut spec, slices, node, alpha);
    spec.insert("parent".into(), json!(parent));
    spec.insert("node".into(), Value::Object(body));
    around.insert("tpu".into(), json!({"nodeSpec": [spec]}));
    let mut around = Value::Object(around);
    capacity::name_reservation(Some(&mut around), parent);
    (around, alpha)
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

/// For how long a request waits at most, where its policy says that as a duration.
pub(super) fn lasts(policy: &Value) -> Option<Duration> {
    let text = policy.get("validUntilDuration")?.as_str()?;
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}

/// Whether several nodes are asked for in a way that v2 has no word for.
fn has_workload(spec: &Map<String, Value>) -> bool {
    let mut known = SEVERAL.iter().filter_map(|key| spec.get(*key));
    known.any(|many| many.get(WORKLOAD).is_some())
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
        let (body, _) = create_body(&Value::Object(learned.body().clone()), OF, "other", false);
        let node = &body["tpu"]["nodeSpec"][0]["node"];
        assert_eq!(node["metadata"], there["metadata"]);
        assert_eq!((&node["tags"], &node["labels"]), (&json!(["t"]), &json!({"team": "llm"})));
        assert_eq!(node["runtimeVersion"], "v2-alpha-tpuv6e");
        assert_eq!(node.get("health"), None);
    }

    #[test]
    fn s12_fields_that_google_prints_and_no_version_takes_are_not_sent_back() {
        // `queued-resources describe` in Google's tutorials (vLLM on TPU, 2026).
        let raw = json!({
            "name": "projects/your-project-id/locations/us-east5-b/queuedResources/q",
            "state": {"state": "ACTIVE"},
            "tpu": {"nodeSpec": [{
                "node": {
                    "acceleratorType": "v6e-4", "bootDisk": {}, "networkConfig": {"enableExternalIps": true},
                    "queuedResource": "projects/your-project-number/locations/us-east5-b/queuedResources/q",
                    "runtimeVersion": "v2-alpha-tpuv6e", "schedulingConfig": {}, "serviceAccount": {},
                    "shieldedInstanceConfig": {}, "useTpuVm": true,
                },
                "nodeId": "n", "parent": "projects/your-project-number/locations/us-east5-b",
            }]},
        });
        let (body, _) = create_body(&Value::Object(learned(&raw).body().clone()), OF, "n", false);
        let node = &body["tpu"]["nodeSpec"][0]["node"];
        for field in ["bootDisk", "useTpuVm", "queuedResource"] {
            assert_eq!(node.get(field), None, "{field}");
        }
        assert_eq!(node["networkConfig"], json!({"enableExternalIps": true}));
    }

    #[test]
    fn each_version_gets_the_words_that_it_knows() {
        let many = json!({"nodeIdPrefix": "s"});
        let [v2, alpha] = SEVERAL;
        let workload = json!({"nodeIdPrefix": "s", "workloadType": "AVAILABILITY_OPTIMIZED"});
        for (learned, through_alpha, sent, needs) in [
            (json!({v2: many}), false, v2, false),
            (json!({v2: many}), true, alpha, true),
            // As a former version learned it.
            (json!({alpha: many}), false, v2, false),
            (json!({alpha: workload}), false, alpha, true),
            (json!({}), true, alpha, true),
        ] {
            let spec = json!({
                "acceleratorType": "v6e-8", "runtimeVersion": "v", "schedulingConfig": {"spot": true},
                "queuedResource": {"nodes": 2, "nodeSpec": learned},
            });
            let (body, goes) = create_body(&spec, OF, "s", through_alpha);
            let spec = body["tpu"]["nodeSpec"][0].as_object().unwrap();
            let names: Vec<&str> =
                spec.keys().map(String::as_str).filter(|k| SEVERAL.contains(k)).collect();
            assert_eq!((names, goes), (vec![sent], needs), "{learned}");
            assert_eq!(spec[sent]["nodeCount"], 2);
            // v2alpha1 takes Spot without a model for a STANDARD one, and v2 has no such field.
            let model = needs.then(|| json!("SPOT"));
            assert_eq!(body.get("provisioningModel"), model.as_ref(), "{learned}");
        }
        // Chosen capacity that v2 lacks decides the version, and so the names.
        let spec = json!({
            "acceleratorType": "v6e-8", "runtimeVersion": "v",
            "queuedResource": {"nodes": 2, "provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "60s"}},
        });
        let (body, goes) = create_body(&spec, OF, "s", false);
        assert!(goes && body["tpu"]["nodeSpec"][0].get(alpha).is_some(), "{body}");
    }

    #[test]
    fn an_end_that_was_given_in_place_of_a_duration_is_kept() {
        let end = json!({"terminationTime": "2026-06-09T12:00:00Z"});
        for (run, kept) in [
            (end.clone(), end.clone()),
            (
                json!({"maxRunDuration": "60s", "terminationTime": "2026-06-09T12:00:00Z"}),
                json!({"maxRunDuration": "60s"}),
            ),
        ] {
            let raw = request(json!({"provisioningModel": "FLEX_START", "runDuration": run}));
            let (body, _) =
                create_body(&Value::Object(learned(&raw).body().clone()), OF, "n", false);
            assert_eq!(body["runDuration"], kept);
        }
    }

    #[test]
    fn s12_a_request_is_created_again_as_it_was_asked_for() {
        let policy = json!({"validUntilDuration": "21600s"});
        for (more, alpha) in [
            (json!({"spot": {}, "queueingPolicy": policy}), false),
            (json!({"guaranteed": {"minDuration": "60s"}, "queueingPolicy": policy}), false),
            (
                json!({"guaranteed": {"reserved": true}, "queueingPolicy": policy,
                       "reservationName": "projects/p/locations/us-east5-b/reservations/r"}),
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
                create_body(&Value::Object(learned(&raw).body().clone()), OF, "other", false);
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
        let (body, alpha) = create_body(&spec, OF, "slot", false);
        let expected = json!({
            "tpu": {"nodeSpec": [{"parent": OF, "nodeId": "slot",
                                  "node": {"acceleratorType": "v6e-8", "runtimeVersion": "v"}}]},
            "spot": {}, "queueingPolicy": {"validUntilDuration": "604800s"},
        });
        assert_eq!((body, alpha), (expected, false));
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
                let (body, _) =
                    create_body(&still_ahead(&spec, now.parse().unwrap()), OF, "n", false);
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
                create_body(&Value::Object(learned(&raw).body().clone()), OF, "slot", false);
            assert_eq!((&body["tpu"], needs), (&raw["tpu"], alpha));
        }
        let of = |count: u64| {
            let around = json!({"nodes": count, "nodeSpec": {"nodeId": "n"}});
            let spec = json!({"acceleratorType": "v6e-8", "runtimeVersion": "v", "queuedResource": around});
            create_body(&spec, OF, "slot", false).0["tpu"]["nodeSpec"][0].clone()
        };
        let mut two = of(2);
        two.as_object_mut().unwrap().remove("node");
        let params = json!({"nodeCount": 2, "nodeIdPrefix": "slot"});
        assert_eq!(two, json!({"parent": OF, "multisliceParams": params}));
        assert_eq!(of(1)["nodeId"], "n");
    }
}
