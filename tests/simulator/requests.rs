//! Queued resources of the simulated API: what it prints and refuses, the queue, and ends of its own.

use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::model::time::after;
use tpu_watchdog::simulator::trouble::{Event, Trouble};

use super::{Api, NODES};

const REQUESTS: &str = "v2/projects/p/locations/us-central2-b/queuedResources";
const ALPHA: &str = "v2alpha1/projects/p/locations/us-central2-b/queuedResources";

impl Api {
    /// Asks for one node, `a`, as the request `q`.
    fn ask(&mut self) -> u16 {
        let node = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
        let body = json!({"tpu": {"nodeSpec": [{"nodeId": "a", "node": node}]}, "spot": {}});
        self.call("POST", &format!("{REQUESTS}?queuedResourceId=q"), Some(body)).0
    }

    /// The request, once it is in this state; at most some minutes are waited for that.
    fn once(&mut self, wanted: &str) -> Value {
        for _ in 0..60 {
            let (_, shown) = self.call("GET", &format!("{REQUESTS}/q"), None);
            if shown["state"]["state"] == *wanted {
                return shown;
            }
            self.milliseconds(500);
        }
        panic!("it was never {wanted}")
    }

    fn milliseconds(&mut self, count: u64) {
        self.now = after(self.now, Duration::from_millis(count));
        self.cloud.advance(self.now);
    }

    /// Capacity, or the queue, of its zone is gone from now on.
    fn trouble(&mut self, what: Trouble) {
        let (zone, lasts) = ("us-central2-b".to_owned(), Some(Duration::from_secs(3600)));
        self.cloud.trouble(Event { at: Duration::ZERO, node: String::new(), zone, what, lasts });
        self.milliseconds(1);
    }
}

fn no_force(api: &mut Api) -> (u16, Value) {
    api.call("DELETE", &format!("{REQUESTS}/q"), None)
}

#[test]
fn a_request_that_is_provisioning_can_not_be_deleted() {
    let mut api = Api::new();
    assert_eq!(api.ask(), 200);
    api.once("PROVISIONING");
    let words = "DeleteQueuedResource is not supported when state is PROVISIONING";
    let (status, refused) = no_force(&mut api);
    assert_eq!((status, &refused["error"]["status"]), (400, &json!("FAILED_PRECONDITION")));
    assert_eq!(refused["error"]["message"], words);
    // With force the call is accepted, and its operation fails a second and a half later.
    let (status, operation) = api.call("DELETE", &format!("{REQUESTS}/q?force=true"), None);
    assert_eq!(status, 200, "{operation}");
    let path = format!("v2/{}", operation["name"].as_str().unwrap());
    api.milliseconds(1_400);
    assert_ne!(api.call("GET", &path, None).1["done"], true);
    api.milliseconds(200);
    let (_, failed) = api.call("GET", &path, None);
    assert_eq!((&failed["done"], &failed["error"]["code"]), (&json!(true), &json!(9)));
    assert_eq!(failed["error"]["message"], words);
    api.once("ACTIVE");
}

#[test]
fn an_active_request_is_deleted_with_force_alone_and_says_which_states_it_would_take() {
    let mut api = Api::new();
    api.ask();
    let shown = api.once("ACTIVE");
    // Google prints the request's own name there, and two fields that no version takes back.
    let node = &shown["tpu"]["nodeSpec"][0]["node"];
    assert_eq!(node["queuedResource"], shown["name"]);
    assert!(node["useTpuVm"] == true && node["bootDisk"].is_object(), "{node}");
    let spec = shown["tpu"].clone();
    let (status, _) =
        api.call("POST", &format!("{REQUESTS}?queuedResourceId=r"), Some(json!({"tpu": spec})));
    assert_eq!(status, 400, "not as it was printed");
    let (status, refused) = no_force(&mut api);
    let words = refused["error"]["message"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(
        words.ends_with("(must be one of [ACCEPTED WAITING_FOR_RESOURCES SUSPENDED FAILED])"),
        "{words}"
    );
    assert_eq!(api.call("DELETE", &format!("{REQUESTS}/q?force=true"), None).0, 200);
    api.milliseconds(60_000);
    for path in [format!("{REQUESTS}/q"), format!("{NODES}/a")] {
        assert_eq!(api.call("GET", &path, None).0, 404, "{path}");
    }
}

#[test]
fn nodes_of_a_request_that_is_provisioning_come_and_go() {
    let mut api = Api::new();
    api.cloud.timing.create = Duration::from_secs(300);
    api.ask();
    api.once("PROVISIONING");
    let seen: Vec<u16> = (0..6)
        .map(|_| {
            let (status, _) = api.call("GET", &format!("{NODES}/a"), None);
            api.milliseconds(45_000);
            status
        })
        .collect();
    assert_eq!(seen, [200, 404, 200, 404, 200, 404]);
}

#[test]
fn a_grant_that_collapses_is_suspended_then_failed_and_holds_its_name() {
    let mut api = Api::new();
    api.ask();
    api.once("PROVISIONING");
    api.trouble(Trouble::StockOut);
    let suspending = api.once("SUSPENDING");
    assert_eq!(suspending["state"]["stateInitiator"], "SERVICE");
    let failed = api.once("FAILED");
    let error = &failed["state"]["failedData"]["error"];
    assert!(error["code"] == 8 && error["message"].is_string(), "{failed}");
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).0, 404);
    assert_eq!(api.ask(), 409, "a husk holds its name");
    assert_eq!(no_force(&mut api).0, 200);
}

#[test]
fn a_node_that_is_preempted_leaves_its_request_active_for_a_while() {
    let mut api = Api::new();
    api.ask();
    api.once("ACTIVE");
    let event = Event {
        at: Duration::ZERO,
        node: "a".into(),
        zone: "us-central2-b".into(),
        what: Trouble::PreemptNode,
        lasts: None,
    };
    api.cloud.trouble(event);
    api.milliseconds(1);
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).1["state"], "PREEMPTED");
    assert_eq!(api.call("GET", &format!("{REQUESTS}/q"), None).1["state"]["state"], "ACTIVE");
}

#[test]
fn a_closed_queue_refuses_at_once_and_each_version_knows_its_own_words() {
    let mut api = Api::new();
    let two = |name: &str| {
        let node = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
        let spec = json!({name: {"nodeCount": 2, "nodeIdPrefix": "s"}, "node": node});
        json!({"tpu": {"nodeSpec": [spec]}})
    };
    for (path, name, expected) in [
        (REQUESTS, "multiNodeParams", 400),
        (ALPHA, "multisliceParams", 400),
        (ALPHA, "multiNodeParams", 200),
    ] {
        let path = format!("{path}?queuedResourceId=s");
        let (status, answer) = api.call("POST", &path, Some(two(name)));
        assert_eq!(status, expected, "{path} {name}: {answer}");
    }
    api.trouble(Trouble::ClosedQueue);
    assert_eq!(api.ask(), 403);
}

#[test]
fn a_request_with_a_time_of_its_own_begins_and_ends_by_it_and_v2_knows_nothing_of_it() {
    let mut api = Api::new();
    let requests =
        |version| format!("{version}/projects/p/locations/us-central2-b/queuedResources");
    let (alpha, v2) = (requests("v2alpha1"), requests("v2"));
    let node = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    let body = json!({"tpu": {"nodeSpec": [{"nodeId": "a", "node": node}]},
        "queueingPolicy": {"validAfterDuration": "60s"},
        "provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "100s"}});
    let (status, answer) =
        api.call("POST", &format!("{v2}?queuedResourceId=q"), Some(body.clone()));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(api.call("POST", &format!("{alpha}?queuedResourceId=q"), Some(body)).0, 200);
    let state = |api: &mut Api| {
        let (_, shown) = api.call("GET", &format!("{alpha}/q"), None);
        (shown["state"]["state"].as_str().unwrap().to_owned(), shown)
    };
    (0..5).for_each(|_| api.wait());
    assert_eq!(state(&mut api).0, "WAITING_FOR_RESOURCES", "not before its time");
    assert_eq!(api.call("POST", &format!("{alpha}/q:reset"), None).0, 400);
    (0..2).for_each(|_| api.wait());
    let (active, shown) = state(&mut api);
    assert_eq!(active, "ACTIVE", "{shown}");
    assert!(shown["runDuration"]["terminationTime"].is_string(), "{shown}");
    let (_, hidden) = api.call("GET", &format!("{v2}/q"), None);
    assert!(hidden.get("runDuration").is_none() && hidden.get("provisioningModel").is_none());
    // A reset starts its machines again; the node is the same.
    let (_, before) = api.call("GET", &format!("{NODES}/a"), None);
    assert_eq!(api.call("POST", &format!("{alpha}/q:reset"), None).0, 200);
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).1["state"], "RESTARTING");
    api.wait();
    let (_, after) = api.call("GET", &format!("{NODES}/a"), None);
    assert_eq!((&after["state"], &after["id"]), (&json!("READY"), &before["id"]));
    (0..10).for_each(|_| api.wait());
    let (suspended, shown) = state(&mut api);
    assert_eq!(
        (suspended.as_str(), &shown["state"]["stateInitiator"]),
        ("SUSPENDED", &json!("SERVICE"))
    );
    assert_eq!(api.call("GET", &format!("{NODES}/a"), None).0, 404, "its node is deleted");
}
