//! The simulated API refuses and answers as Google's does.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tpu_watchdog::model::time::after;
use tpu_watchdog::simulator::api::handle;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::trouble::{Event, Trouble};
use tpu_watchdog::simulator::wire::Request;

mod requests;

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
        (
            "b1",
            json!({"bootDiskConfig": {"diskSizeGb": "9"}}),
            400,
            "Unknown name \"diskSizeGb\" at 'node.bootDiskConfig'",
        ),
        (
            "b1",
            json!({"autocheckpointEnabled": true}),
            400,
            "Unknown name \"autocheckpointEnabled\"",
        ),
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

#[test]
fn v2_hides_the_fields_of_v2alpha1_and_shows_its_own() {
    let mut api = Api::new();
    let body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "autocheckpointEnabled": true,
        "bootDiskConfig": {"diskSizeGb": "500", "customerEncryptionKey": "k"},
        "schedulingConfig": {"reserved": true, "provisioningModel": "RESERVATION_BOUND", "reservationName": "r"},
        "dataDisks": [{"sourceDisk": "d", "mode": "READ_ONLY", "workerIds": ["0"]}]});
    let nodes = "v2alpha1/projects/p/locations/us-central2-b/nodes";
    let (status, answer) = api.call("POST", &format!("{NODES}?nodeId=a"), Some(body.clone()));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(api.call("POST", &format!("{nodes}?nodeId=a"), Some(body.clone())).0, 200);
    let (_, whole) = api.call("GET", &format!("{nodes}/a"), None);
    for field in ["autocheckpointEnabled", "bootDiskConfig", "schedulingConfig", "dataDisks"] {
        assert_eq!(whole[field], body[field], "{field}");
    }
    assert!(whole.get("protectionTier").is_none());
    let (_, shown) = api.call("GET", &format!("{NODES}/a"), None);
    assert_eq!(shown["bootDiskConfig"], json!({"customerEncryptionKey": "k"}));
    assert_eq!(shown["schedulingConfig"], json!({"reserved": true}));
    assert_eq!(shown["dataDisks"], json!([{"sourceDisk": "d", "mode": "READ_ONLY"}]));
    assert_eq!(shown["protectionTier"], "STANDARD");
    assert!(shown.get("autocheckpointEnabled").is_none());
    // It is ignored in a create of v2, and unknown to v2alpha1.
    let tier =
        json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "protectionTier": "STANDARD"});
    assert_eq!(api.call("POST", &format!("{NODES}?nodeId=b"), Some(tier.clone())).0, 200);
    assert_eq!(api.call("POST", &format!("{nodes}?nodeId=c"), Some(tier)).0, 400);
}

#[test]
fn permissions_are_granted_until_they_are_taken_away() {
    let mut api = Api::new();
    let project = "v3/projects/p:testIamPermissions";
    let account = "v1/projects/-/serviceAccounts/tpu@p.iam.gserviceaccount.com:testIamPermissions";
    let ask = |api: &mut Api, path: &str, permission: &str| {
        let (status, answer) =
            api.call("POST", path, Some(json!({"permissions": [permission, "tpu.nodes.get"]})));
        (status, answer)
    };
    let (create, act_as) = ("tpu.nodes.create", "iam.serviceAccounts.actAs");
    assert_eq!(
        ask(&mut api, project, create),
        (200, json!({"permissions": [create, "tpu.nodes.get"]}))
    );
    assert_eq!(ask(&mut api, account, act_as).1["permissions"][0], act_as);
    api.cloud.denied.insert(act_as.into());
    assert_eq!(ask(&mut api, account, act_as).1, json!({"permissions": ["tpu.nodes.get"]}));
    let (status, answer) = api.create("a", json!({}));
    assert!(status == 403 && answer.to_string().contains("iam.serviceAccountUser"), "{answer}");
    api.cloud.denied.insert(create.into());
    api.cloud.denied.insert("tpu.nodes.get".into());
    assert_eq!(ask(&mut api, project, create), (200, json!({})));
    let (status, answer) = api.create("a", json!({}));
    assert!(status == 403 && answer.to_string().contains("'tpu.nodes.create' denied"), "{answer}");
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).0, 403);
    assert_eq!(api.call("POST", project, None).0, 400);
    assert_eq!(api.call("GET", project, None).0, 404);
}

#[test]
fn a_zone_lists_and_shows_its_types_and_versions() {
    let mut api = Api::new();
    let zone = "v2/projects/p/locations/us-central2-b";
    for (path, field, name) in [
        ("acceleratorTypes", "type", "v4-8"),
        ("runtimeVersions", "version", "tpu-ubuntu2204-base"),
    ] {
        let entry = |api: &mut Api| {
            let (_, list) = api.call("GET", &format!("{zone}/{path}"), None);
            let all = list[path].as_array().unwrap().clone();
            (
                all.iter().any(|e| e[field] == name),
                api.call("GET", &format!("{zone}/{path}/{name}"), None),
            )
        };
        let (listed, (status, shown)) = entry(&mut api);
        assert!(listed && status == 200 && shown[field] == name, "{shown}");
        api.cloud.withdrawn.insert(("us-central2-b".into(), name.into()));
        let (listed, (status, _)) = entry(&mut api);
        assert!(!listed && status == 404);
        assert_eq!(
            api.call("GET", &format!("v2/projects/p/locations/us-east5-a/{path}/{name}"), None).0,
            200
        );
        assert_eq!(api.call("GET", &format!("{zone}/{path}/none"), None).0, 404);
    }
}

#[test]
fn a_create_may_fail_and_leave_its_node() {
    let mut api = Api::new();
    let strike = |api: &mut Api, node: &str, lasts: Option<u64>| {
        api.cloud.trouble(Event {
            at: Duration::ZERO,
            node: node.into(),
            zone: "us-central2-b".into(),
            what: Trouble::LeftBehind,
            lasts: lasts.map(Duration::from_secs),
        });
    };
    strike(&mut api, "a", Some(15));
    strike(&mut api, "b", None);
    for node in ["a", "b"] {
        let (_, operation) = api.create(node, json!({}));
        api.wait();
        let (_, done) =
            api.call("GET", &format!("v2/{}", operation["name"].as_str().unwrap()), None);
        assert_eq!((&done["done"], &done["error"]["code"]), (&true.into(), &13.into()), "{done}");
        assert_eq!(api.call("GET", &format!("{NODES}/{node}"), None).1["state"], "CREATING");
    }
    api.wait();
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).1["state"], "READY");
    assert_eq!(api.call("GET", &format!("{NODES}/b"), None).1["state"], "CREATING");
    // The next one goes well.
    api.call("DELETE", &format!("{NODES}/b"), None);
    api.wait();
    api.create("b", json!({}));
    api.wait();
    assert_eq!(api.call("GET", &format!("{NODES}/b"), None).1["state"], "READY");
}

#[test]
fn a_guest_attribute_that_a_worker_never_wrote_is_a_404() {
    let mut api = Api::new();
    api.create("a", json!({"acceleratorType": "v4-16"}));
    api.wait();
    let path = format!("{NODES}/a:getGuestAttributes");
    let ours = |ids: Value| Some(json!({"queryPath": "tpu-watchdog/", "workerIds": ids}));
    let (status, answer) = api.call("POST", &path, ours(json!([])));
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(
        status == 404 && text.contains("resource 'tpu-watchdog/' of type 'Guest Attribute'"),
        "{text}"
    );
    let node = api.cloud.nodes.values_mut().next().unwrap();
    node.attributes[1].insert("tpu-watchdog/boot".into(), "b 1 1".into());
    assert_eq!(api.call("POST", &path, ours(json!([]))).0, 404, "worker 0 has none");
    let (status, answer) = api.call("POST", &path, ours(json!(["1"])));
    assert!(
        status == 200 && answer["guestAttributes"][0]["queryValue"]["items"][0]["key"] == "boot"
    );
    // Without a path there are always some.
    assert_eq!(api.call("POST", &path, Some(json!({}))).0, 200);
    let (_, answer) = api.call("POST", &format!("{NODES}/b:getGuestAttributes"), ours(json!([])));
    assert!(answer.to_string().contains("nodes/b' was not found"), "{answer}");
}

#[test]
fn operations_are_listed_in_pages_with_verb_target_and_time() {
    let mut api = Api::new();
    api.create("a", json!({}));
    api.wait();
    api.call("DELETE", &format!("{NODES}/a"), None);
    api.create("b", json!({}));
    let (mut token, mut found) = (String::new(), Vec::new());
    loop {
        let path = "v2/projects/p/locations/us-central2-b/operations?pageSize=2&pageToken=";
        let (_, page) = api.call("GET", &format!("{path}{token}"), None);
        for operation in page["operations"].as_array().unwrap() {
            let of = &operation["metadata"];
            assert!(of["createTime"].as_str().unwrap().parse::<Timestamp>().is_ok());
            let target = of["target"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            found.push((of["verb"].as_str().unwrap().to_owned(), target));
        }
        match page["nextPageToken"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    found.sort();
    let pair = |verb: &str, node: &str| (verb.to_owned(), node.to_owned());
    assert_eq!(found, [pair("create", "a"), pair("create", "b"), pair("delete", "a")]);
    let elsewhere = api.call("GET", "v2/projects/p/locations/us-east5-a/operations", None);
    assert_eq!(elsewhere, (200, json!({})));
}

#[test]
fn jobs_of_managed_training_carry_numbers_labels_and_a_late_error() {
    let mut api = Api::new();
    let jobs = "v1/projects/p/locations/us-central1/customJobs";
    let pool = json!({"replicaCount": 2, "containerSpec": {"imageUri": "i"}});
    let body = |name: &str, lineage: &str| json!({"displayName": name, "labels": {"tpu-watchdog-lineage": lineage}, "jobSpec": {"workerPoolSpecs": [pool]}});
    let (status, one) = api.call("POST", jobs, Some(body("one", "1")));
    assert_eq!((status, one["state"].as_str()), (200, Some("JOB_STATE_QUEUED")), "{one}");
    // The number of the project, whatever the request said; int64 is text.
    assert!(
        one["name"].as_str().unwrap().starts_with("projects/140837806760/locations/us-central1/")
    );
    assert_eq!(one["jobSpec"]["workerPoolSpecs"][0]["replicaCount"], "2");
    api.call("POST", jobs, Some(body("two", "2")));
    for (filter, wanted) in [
        ("labels.tpu-watchdog-lineage=1", 1),
        ("labels.tpu-watchdog-lineage:*", 2),
        ("labels.tpu-watchdog-lineage:* AND display_name=two", 1),
        ("labels.other:*", 0),
    ] {
        let (_, page) = api.call("GET", &format!("{jobs}?filter={filter}"), None);
        let found = page["customJobs"].as_array().map_or(0, Vec::len);
        assert_eq!(found, wanted, "{filter}");
    }
    let id = one["name"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    api.wait();
    assert_eq!(api.call("GET", &format!("{jobs}/{id}"), None).1["state"], "JOB_STATE_RUNNING");
    api.call("POST", &format!("{jobs}/{id}:cancel"), Some(json!({})));
    api.now = after(api.now, Duration::from_millis(400));
    api.cloud.advance(api.now);
    let (_, cancelled) = api.call("GET", &format!("{jobs}/{id}"), None);
    assert_eq!(cancelled["state"], "JOB_STATE_CANCELLED");
    assert!(cancelled["endTime"].is_string() && cancelled.get("error").is_none(), "{cancelled}");
    api.wait();
    assert_eq!(api.call("GET", &format!("{jobs}/{id}"), None).1["error"]["code"], 1);
    let unknown = json!({"displayName": "x", "jobSpec": {}, "colour": "red"});
    assert_eq!(api.call("POST", jobs, Some(unknown)).0, 400);
    // A legacy id is the user's, once and for all.
    let legacy = json!({"jobId": "census_1", "trainingInput": {"region": "us-central1"}});
    assert_eq!(api.call("POST", "v1/projects/p/jobs", Some(legacy.clone())).0, 200);
    assert_eq!(api.call("POST", "v1/projects/p/jobs", Some(legacy)).0, 409);
}
