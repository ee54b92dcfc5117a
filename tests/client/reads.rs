//! Reads of nodes: through v2alpha1 where it answers, past entries that can't be read, worker by
//! worker; and the delete operations on a node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::google::auth::Credentials;
use tpu_watchdog::google::http::Http;
use tpu_watchdog::google::tpu::TpuClient;
use tpu_watchdog::model::action::Reading;
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::training::{JobKind, Training};
use tpu_watchdog::simulator::api;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::{Fault, Logged, Simulator};
use tpu_watchdog::simulator::wire::{self, Reply};

use crate::{Attempts, ZONE, in_a_minute, peer};

fn is_alpha(logged: &Logged) -> bool {
    logged.path.starts_with("/v2alpha1/")
}

fn error(code: u16, status: &str, message: &str) -> Reply {
    let error = json!({"error": {"code": code, "status": status, "message": message}});
    Reply::new(code, error.to_string())
}

#[tokio::test]
async fn nodes_are_read_through_v2alpha1_which_shows_what_v2_hides() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    simulator.with(|cloud| {
        let node = cloud.nodes.values_mut().next().unwrap();
        node.body.insert("bootDiskConfig".into(), json!({"diskSizeGb": "500"}));
    });
    let list = client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    let got = client.get_node(ZONE, "a", in_a_minute()).await.unwrap();
    for view in [&*list.nodes[0], &got] {
        assert!(view.alpha && view.raw["bootDiskConfig"]["diskSizeGb"] == "500", "{view:?}");
    }
    assert!(simulator.log().iter().all(is_alpha), "{:?}", simulator.log());
    assert_eq!(list.nodes[0].fingerprint, got.fingerprint);
}

#[tokio::test]
async fn where_v2alpha1_does_not_answer_v2_is_asked_at_once_and_alone_from_then_on() {
    let answers: [fn() -> Fault; 6] = [
        || Fault::AnswerBefore(error(403, "PERMISSION_DENIED", "no")),
        || Fault::AnswerBefore(error(404, "NOT_FOUND", "Method not found.")),
        || Fault::AnswerBefore(error(503, "UNAVAILABLE", "later")),
        || Fault::AnswerBefore(Reply::new(404, "<html>")),
        || Fault::AnswerBefore(Reply::new(200, r#"{"nodes":7,"name":"x"}"#)),
        || Fault::Hang,
    ];
    for answer in answers {
        let (simulator, client, _) = peer(Duration::from_secs(5)).await;
        simulator.set_hook(Some(Box::new(move |logged| is_alpha(logged).then(answer))));
        let soon = || std::time::Instant::now() + Duration::from_secs(2);
        let view = client.get_node(ZONE, "a", soon()).await.unwrap();
        assert!(!view.alpha);
        assert_eq!(client.list_nodes(ZONE, soon()).await.unwrap().nodes.len(), 1);
        client.clone().get_node(ZONE, "a", soon()).await.unwrap();
        let log = simulator.log();
        assert_eq!(log.iter().map(is_alpha).collect::<Vec<_>>(), [true, false, false, false]);
        // A listing notices it as well.
        let (simulator, client, _) = peer(Duration::from_secs(5)).await;
        simulator.set_hook(Some(Box::new(move |logged| is_alpha(logged).then(answer))));
        assert!(!client.list_nodes(ZONE, soon()).await.unwrap().nodes[0].alpha);
    }
}

#[tokio::test]
async fn a_404_of_v2alpha1_about_the_node_is_an_answer() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    let failure = client.get_node(ZONE, "b", in_a_minute()).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::NotFound);
    assert_eq!(simulator.log().len(), 1);
    // And v2alpha1 is asked again.
    assert!(client.get_node(ZONE, "a", in_a_minute()).await.unwrap().alpha);
}

#[tokio::test]
async fn a_create_goes_through_the_version_that_can_express_it() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    let plain = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    let mut large = plain.clone();
    large["bootDiskConfig"] = json!({"diskSizeGb": "500"});
    large["schedulingConfig"] = json!({"reserved": true, "reservationName": "llm"});
    for (node, body) in [("b", &plain), ("c", &large)] {
        let prepared = client.prepare().await.unwrap();
        client.create_node(ZONE, node, body, Some("r1"), prepared).await;
    }
    client.delete_node(ZONE, "a", Some("r2"), client.prepare().await.unwrap()).await;
    let log = simulator.log();
    let paths: Vec<&str> = log.iter().map(|l| l.path.as_str()).collect();
    let nodes = format!("projects/p/locations/{ZONE}/nodes");
    assert_eq!(
        paths,
        [
            format!("/v2/{nodes}?nodeId=b"),
            format!("/v2alpha1/{nodes}?nodeId=c&requestId=r1"),
            format!("/v2/{nodes}/a"),
        ],
        "v2 takes no request id of a node"
    );
    assert!(log.iter().all(|l| l.status == Some(200)), "{log:?}");
    let made = simulator.with(|cloud| cloud.nodes[&(ZONE.into(), "c".into())].body.clone());
    assert_eq!(made["bootDiskConfig"]["diskSizeGb"], "500");
    let reservation = format!("projects/p/locations/{ZONE}/reservations/llm");
    assert_eq!(made["schedulingConfig"]["reservationName"], reservation);
}

#[tokio::test]
async fn an_alien_entry_of_a_listing_hides_no_other_node() {
    let (simulator, client, attempts) = peer(Duration::from_secs(5)).await;
    let node = |id: &str| json!({"name": format!("projects/p/locations/{ZONE}/nodes/{id}")});
    let page = json!({"nodes": [node("a"), {"name": "nodes/x"}, {"state": "READY"}, 7, node("b"), {"name": ""}]});
    simulator.set_hook(Some(Box::new(move |_| {
        Some(Fault::AnswerBefore(Reply::new(200, page.to_string())))
    })));
    let list = client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    let names: Vec<&str> = list.nodes.iter().map(|view| view.node.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!((&list.unreadable[..], list.nameless), (&["x".to_owned()][..], 3));
    assert_eq!(attempts.0.lock().unwrap().len(), 5, "one call, four entries that are counted");
}

/// Workers of a node `s` with four hosts; each wrote a boot beacon but for those named.
async fn slice(silent: &[usize]) -> (crate::Simulator, crate::TpuClient) {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    let silent = silent.to_vec();
    simulator.with(|cloud| {
        let body = json!({"acceleratorType": "v4-32", "runtimeVersion": "r"});
        cloud.add_node(ZONE, "s", body.as_object().unwrap().clone(), true);
        let node = cloud.nodes.get_mut(&(ZONE.into(), "s".into())).unwrap();
        for (worker, attributes) in node.attributes.iter_mut().enumerate() {
            if !silent.contains(&worker) {
                attributes.insert("tpu-watchdog/boot".into(), format!("boot-{worker} 1 1"));
            }
        }
    });
    (simulator, client)
}

#[tokio::test]
async fn a_guest_attribute_that_was_never_written_is_no_failure() {
    let (simulator, client) = slice(&[0, 1, 2, 3]).await;
    let reports = client.guest_attributes(ZONE, "a", 1, in_a_minute()).await.unwrap();
    assert_eq!(reports, [Default::default()]);
    assert_eq!(simulator.log()[0].status, Some(404));
    let reports = client.guest_attributes(ZONE, "s", 4, in_a_minute()).await.unwrap();
    assert_eq!(reports, vec![Default::default(); 4]);
    // A 404 about the node is one.
    for workers in [1, 4] {
        let failure = client.guest_attributes(ZONE, "b", workers, in_a_minute()).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::NotFound);
    }
}

#[tokio::test]
async fn one_worker_without_a_word_hides_no_other() {
    let (simulator, client) = slice(&[2]).await;
    let reports = client.guest_attributes(ZONE, "s", 4, in_a_minute()).await.unwrap();
    let boots: Vec<Option<&str>> =
        reports.iter().map(|r| r.boot.as_ref().map(|boot| boot.boot_id.as_str())).collect();
    assert_eq!(boots, [Some("boot-0"), Some("boot-1"), None, Some("boot-3")]);
    assert_eq!(simulator.log().len(), 5, "all at once, then each");
    let (simulator, client) = slice(&[]).await;
    client.guest_attributes(ZONE, "s", 4, in_a_minute()).await.unwrap();
    assert_eq!(simulator.log().len(), 1);
}

#[tokio::test]
async fn hosts_keep_their_numbers_when_a_slice_before_theirs_is_gone() {
    let (_simulator, client) = slice(&[]).await;
    let of = async |nodes: &[&str]| {
        let names: Vec<String> = nodes.iter().map(|name| (*name).to_owned()).collect();
        let reports = client.reports_of(ZONE, &names, 4 * nodes.len(), in_a_minute()).await?;
        Ok::<Vec<bool>, Failure>(reports.iter().map(|report| report.boot.is_some()).collect())
    };
    let (gone, there) = ([false; 4], [true; 4]);
    assert_eq!(of(&["gone", "s"]).await.unwrap(), [gone, there].concat());
    assert_eq!(of(&["s", "gone", "s"]).await.unwrap(), [there, gone, there].concat());
    let failure = of(&["gone", "also"]).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::NotFound);
}

#[tokio::test]
async fn workers_that_cant_be_read_are_named_and_a_refusal_is_not_asked_for_again() {
    let (simulator, client) = slice(&[]).await;
    let mut calls = 0;
    simulator.set_hook(Some(Box::new(move |_| {
        calls += 1;
        // The answer about all, and those about the second and the fourth worker.
        matches!(calls, 1 | 3 | 5)
            .then(|| Fault::AnswerBefore(error(400, "FAILED_PRECONDITION", "no agent")))
    })));
    let failure = client.guest_attributes(ZONE, "s", 4, in_a_minute()).await.unwrap_err();
    let told = failure.message.split(':').next().unwrap();
    assert!(
        told.starts_with("workers ") && told.ends_with(" of 4") && told.matches(", ").count() == 1,
        "{failure}"
    );
    let (simulator, client) = slice(&[]).await;
    simulator.set_hook(Some(Box::new(move |_| {
        Some(Fault::AnswerBefore(error(403, "PERMISSION_DENIED", "disabled by a policy")))
    })));
    let failure = client.guest_attributes(ZONE, "s", 4, in_a_minute()).await.unwrap_err();
    assert_eq!((failure.class, simulator.log().len()), (FailureClass::Permission, 1));
}

#[tokio::test]
async fn the_deletes_of_a_name_are_listed_from_all_pages_newest_first() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    let since = simulator.with(|cloud| cloud.now());
    let body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    let body = body.as_object().unwrap();
    simulator.with(|cloud| {
        cloud.page_max = Some(2);
        cloud.timing.delete = Duration::ZERO;
        cloud.add_node(ZONE, "aa", body.clone(), true);
    });
    let delete = async |node: &str| {
        client.delete_node(ZONE, node, None, client.prepare().await.unwrap()).await;
        simulator.with(|_| ());
    };
    delete("a").await;
    delete("aa").await;
    let between = simulator.with(|cloud| cloud.now());
    for node in ["a", "b"] {
        simulator.with(|cloud| cloud.add_node(ZONE, node, body.clone(), true));
        delete(node).await;
    }
    let found =
        client.deletions(ZONE, &["nodes/a".to_owned()], since, in_a_minute()).await.unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].at > found[1].at && found[0].operation.contains("/operations/"));
    let later =
        client.deletions(ZONE, &["nodes/a".to_owned()], between, in_a_minute()).await.unwrap();
    assert_eq!(later, found[..1]);
    assert!(
        client
            .deletions(ZONE, &["nodes/c".to_owned()], since, in_a_minute())
            .await
            .unwrap()
            .is_empty()
    );
    // One that failed deleted nothing.
    simulator.with(|cloud| {
        let operation = cloud.operations.get_mut(&found[0].operation).unwrap();
        operation.error = Some(json!({"code": 13, "message": "an internal error has occurred"}));
    });
    assert_eq!(
        client.deletions(ZONE, &["nodes/a".to_owned()], since, in_a_minute()).await.unwrap(),
        found[1..]
    );
    simulator.with(|cloud| cloud.denied.insert("tpu.operations.list".into()));
    let failure =
        client.deletions(ZONE, &["nodes/a".to_owned()], since, in_a_minute()).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Permission);
    simulator.set_hook(Some(Box::new(|_| {
        let page: Value = json!({"unreachable": ["projects/p/locations/us-central2-b"]});
        Some(Fault::AnswerBefore(Reply::new(200, page.to_string())))
    })));
    let failure =
        client.deletions(ZONE, &["nodes/a".to_owned()], since, in_a_minute()).await.unwrap_err();
    assert!(failure.message.contains("us-central2-b did not answer"), "{failure}");
}

/// A simulated service of training jobs, and a client of it.
async fn training() -> (Simulator, TpuClient) {
    let simulator = Simulator::new(Cloud::new(Default::default()));
    let listener = Simulator::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(simulator.clone().serve(listener));
    let attempts: Arc<Attempts> = Arc::default();
    let http = Http::new(Credentials::Anonymous, Duration::from_secs(5), attempts).unwrap();
    (simulator, TpuClient::new(http, &base, "v2", "p").with_training(&base, &base))
}

/// Submits a job with these labels. Returns its id.
fn submit(simulator: &Simulator, labels: Value) -> String {
    let body = json!({"displayName": "sft", "labels": labels, "jobSpec": {"workerPoolSpecs": [{
        "machineSpec": {"machineType": "a2-highgpu-1g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 1},
        "replicaCount": "1", "containerSpec": {"imageUri": "i"},
    }]}});
    let (query, path) = (Default::default(), "v1/projects/p/locations/us-central1/customJobs");
    let request = wire::Request { method: "POST", path, query: &query, body: Some(body) };
    let (status, job) = simulator.with(|cloud| api::handle(cloud, &request));
    assert_eq!(status, 200, "{job}");
    job["name"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_later_job_of_a_lineage_that_is_listed_is_read_by_its_list_alone() {
    let (simulator, client) = training().await;
    let first = submit(&simulator, json!({}));
    let labels = json!({"tpu-watchdog-lineage": first, "tpu-watchdog-attempt": "1"});
    let second = submit(&simulator, labels);
    let of = Training::one(JobKind::Custom, "us-central1", &first);
    let known = [first, second.clone()];
    let read = client.get_job(&of, ("sft", &known), "us-central1", in_a_minute()).await.unwrap();
    let Reading::Node(view) = read else { panic!("{read:?}") };
    assert_eq!(view.members.last(), Some(&second));
    assert_eq!(simulator.log().len(), 1, "the first job is of no interest: {:?}", simulator.log());
}

#[tokio::test]
async fn jobs_are_read_page_by_page_and_a_page_that_fails_is_no_end_of_theirs() {
    let (simulator, client) = training().await;
    simulator.with(|cloud| cloud.page_max = Some(2));
    for _ in 0..5 {
        submit(&simulator, json!({}));
    }
    let kinds = BTreeMap::from([(JobKind::Custom, true)]);
    let list = || client.list_jobs("us-central1", &kinds, None, in_a_minute());
    assert_eq!(list().await.unwrap().len(), 5);
    assert_eq!(simulator.log().len(), 3);
    simulator.set_hook(Some(Box::new(|logged| {
        let later = logged.path.contains("pageToken");
        later.then(|| Fault::AnswerBefore(error(403, "PERMISSION_DENIED", "no more")))
    })));
    assert!(list().await.unwrap_err().message.contains("no more"));
}
