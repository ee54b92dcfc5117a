//! The simulated API refuses and answers as Google's does.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tpu_watchdog::model::time::after;
use tpu_watchdog::simulator::api::handle;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::wire::Request;

const NODES: &str = "v2/projects/p/locations/us-central2-b/nodes";

struct Api {
    cloud: Cloud,
    now: Timestamp,
}

impl Api {
    fn new() -> Api {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let mut cloud = Cloud::new(Default::default());
        cloud.advance(now);
        Api { cloud, now }
    }

    fn call(&mut self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let query: BTreeMap<String, String> =
            pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        handle(&mut self.cloud, &Request { method, path, query: &query, body })
    }

    fn create(&mut self, id: &str, change: Value) -> (u16, Value) {
        let mut body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
        for (key, value) in change.as_object().unwrap() {
            if value.is_null() {
                body.as_object_mut().unwrap().remove(key)
            } else {
                body.as_object_mut().unwrap().insert(key.clone(), value.clone())
            };
        }
        self.call("POST", &format!("{NODES}?nodeId={id}"), Some(body))
    }

    fn wait(&mut self) {
        self.now = after(self.now, Duration::from_secs(10));
        self.cloud.advance(self.now);
    }
}

#[test]
fn what_google_refuses_is_refused_with_its_words() {
    let cases = [
        (
            "b1",
            json!({"colour": "red"}),
            400,
            "Unknown name \"colour\" at 'node': Cannot find field.",
        ),
        (
            "b1",
            json!({"schedulingConfig": {"cheap": true}}),
            400,
            "Unknown name \"cheap\" at 'node.schedulingConfig'",
        ),
        ("b1", json!({"bootDiskConfig": {}}), 400, "Unknown name \"bootDiskConfig\""),
        (
            "b1",
            json!({"acceleratorType": "v99-8"}),
            400,
            "invalid AcceleratorType, \"v99-8\" for zone \"us-central2-b\"",
        ),
        (
            "b1",
            json!({"acceleratorConfig": {"type": "V4", "topology": "2x2x1"}}),
            400,
            "Only one of",
        ),
        ("b1", json!({"runtimeVersion": null}), 400, "runtime_version is required"),
        ("b1", json!({"labels": {"Team": "x"}}), 400, "Invalid label"),
        ("b1", json!({"metadata": {"k": 1}}), 400, "TYPE_STRING"),
        ("b1", json!({"cidrBlock": "10.0.0.0/20"}), 400, "must be a /29"),
        ("b1", json!({"networkConfig": {}, "networkConfigs": []}), 400, "network_configs"),
        ("B1", json!({}), 400, "Invalid node id"),
        ("a", json!({}), 409, "already exists"),
    ];
    let mut api = Api::new();
    assert_eq!(api.create("a", json!({})).0, 200);
    for (id, change, status, words) in cases {
        let (code, body) = api.create(id, change.clone());
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(code == status && message.contains(words), "{change}: {code} {message}");
        assert_eq!(body["error"]["code"], status);
    }
    let (code, body) = api.call("GET", &format!("{NODES}?filter=x"), None);
    assert!(
        code == 400
            && body["error"]["message"].as_str().unwrap().contains("Cannot bind query parameter"),
        "{body}"
    );
    assert_eq!(
        api.call(
            "GET",
            &format!("{NODES}?$alt=json;enum-encoding=int&pageSize=0&pageToken="),
            None
        )
        .0,
        200
    );
    assert_eq!(
        api.call("POST", &format!("{NODES}?nodeId=c&requestId=1"), Some(json!({}))).0,
        400,
        "v2 has no request ids"
    );
    assert_eq!(api.call("GET", "v2/projects/p/locations/mars/nodes", None).0, 403);
    assert_eq!(
        api.call("GET", &format!("{NODES}/none"), None).1["error"]["details"][0]["resourceName"],
        "projects/p/locations/us-central2-b/nodes/none"
    );
}

#[test]
fn a_read_returns_more_than_a_create_takes() {
    let mut api = Api::new();
    let (_, operation) = api.create("a", json!({"acceleratorType": "v4-16"}));
    assert_eq!(
        (&operation["done"], &operation["metadata"]["verb"]),
        (&false.into(), &"create".into())
    );
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).1["state"], "CREATING");
    api.wait();
    let (_, done) = api.call("GET", &format!("v2/{}", operation["name"].as_str().unwrap()), None);
    assert_eq!(
        (&done["done"], &done["response"]["state"]),
        (&true.into(), &"READY".into()),
        "{done}"
    );
    let (_, node) = api.call("GET", &format!("{NODES}/a"), None);
    assert_eq!(node["acceleratorConfig"], json!({"type": "V4", "topology": "2x2x2"}));
    assert_eq!(node["networkEndpoints"].as_array().unwrap().len(), 2);
    assert!(node["cidrBlock"].as_str().unwrap().ends_with("/20"));
    assert!(node["id"].is_string() && node["createTime"].is_string());
    let (_, old) = api.call("GET", "v1/projects/p/locations/us-central2-b/nodes/a", None);
    assert!(
        old["acceleratorType"] == "v4-16"
            && old.get("metadata").is_none()
            && old.get("id").is_none(),
        "{old}"
    );
}

#[test]
fn a_recreated_node_has_a_new_id_and_a_deleted_one_is_gone() {
    let mut api = Api::new();
    api.create("a", json!({}));
    api.wait();
    let first = api.call("GET", &format!("{NODES}/a"), None).1["id"].clone();
    assert_eq!(api.call("DELETE", &format!("{NODES}/a"), None).0, 200);
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).1["state"], "DELETING");
    api.wait();
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).0, 404);
    assert_eq!(api.call("DELETE", &format!("{NODES}/a"), None).0, 404);
    api.create("a", json!({}));
    api.wait();
    assert_ne!(api.call("GET", &format!("{NODES}/a"), None).1["id"], first);
}

#[test]
fn v2alpha1_takes_alpha_fields_and_answers_a_repeated_request_id_with_the_same_operation() {
    let mut api = Api::new();
    let path = "v2alpha1/projects/p/locations/us-central2-b/nodes?nodeId=a&requestId=r1";
    let body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "bootDiskConfig": {"diskSizeGb": "200"}});
    let first = api.call("POST", path, Some(body.clone())).1["name"].clone();
    assert_eq!(api.call("POST", path, Some(body)).1["name"], first);
    let (_, node) = api.call("GET", "v2alpha1/projects/p/locations/us-central2-b/nodes/a", None);
    assert_eq!(node["bootDiskConfig"]["diskSizeGb"], "200");
    assert!(api.call("GET", &format!("{NODES}/a"), None).1.get("bootDiskConfig").is_none());
}

#[test]
fn lists_come_in_pages() {
    let mut api = Api::new();
    for i in 0..7 {
        api.create(&format!("n{i}"), json!({}));
    }
    let (mut token, mut names) = (String::new(), Vec::new());
    loop {
        let (_, page) = api.call(
            "GET",
            &format!("v2/projects/p/locations/-/nodes?pageSize=3&pageToken={token}"),
            None,
        );
        let nodes = page["nodes"].as_array().unwrap();
        assert!(nodes.len() <= 3);
        names.extend(
            nodes
                .iter()
                .map(|n| n["name"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()),
        );
        match page["nextPageToken"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    assert_eq!(names, (0..7).map(|i| format!("n{i}")).collect::<Vec<_>>());
}
