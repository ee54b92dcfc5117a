//! The client against a server that misbehaves: what is repeated, what is waited for, what is never repeated.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tpu_watchdog::google::auth::Credentials;
use tpu_watchdog::google::http::{Http, Observer};
use tpu_watchdog::google::tpu::TpuClient;
use tpu_watchdog::model::action::CallOutcome;
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::{Fault, Reply, Simulator};

const ZONE: &str = "us-central2-b";

#[derive(Default)]
struct Attempts(Mutex<Vec<&'static str>>);

impl Observer for Attempts {
    fn attempt(&self, method: &'static str, _: Duration, _: Option<&Failure>) {
        self.0.lock().unwrap().push(method);
    }

    fn rejected(&self, method: &'static str, _: &Failure) {
        self.0.lock().unwrap().push(method);
    }
}

/// A simulator with one node, and a client for it.
async fn peer(timeout: Duration) -> (Simulator, TpuClient, Arc<Attempts>) {
    let simulator = Simulator::new(Cloud::new(Default::default()));
    let body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    simulator.with(|cloud| cloud.add_node(ZONE, "a", body.as_object().unwrap().clone(), true));
    let listener = Simulator::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(simulator.clone().serve(listener));
    let attempts = Arc::new(Attempts::default());
    let http = Http::new(Credentials::Anonymous, timeout, Arc::clone(&attempts) as _).unwrap();
    (simulator, TpuClient::new(http, &base, "v2", "p"), attempts)
}

/// The first `times` requests are answered with `reply`.
fn first(simulator: &Simulator, times: usize, reply: Reply) {
    let mut seen = 0;
    simulator.set_hook(Some(Box::new(move |_| {
        seen += 1;
        (seen <= times).then(|| Fault::AnswerBefore(reply.clone()))
    })));
}

fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test]
async fn a_read_is_repeated_on_503_and_on_a_broken_connection() {
    let (simulator, client, attempts) = peer(Duration::from_secs(5)).await;
    first(&simulator, 2, Reply::new(503, ""));
    assert_eq!(client.list_nodes(ZONE, in_a_minute()).await.unwrap().0.len(), 1);
    assert_eq!(attempts.0.lock().unwrap().len(), 3);
    let mut broken = false;
    simulator.set_hook(Some(Box::new(move |_| (!std::mem::replace(&mut broken, true)).then(|| Fault::Before(Box::new(|| ()))))));
    assert!(client.get_node(ZONE, "a", in_a_minute()).await.is_ok());
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    first(&simulator, 1, Reply { status: 429, headers: vec![("retry-after", "2".into())], body: Vec::new() });
    client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    let log = simulator.log();
    assert!(log[1].at.duration_since(log[0].at).as_secs_f64() >= 2.0, "{log:?}");
    // Longer than there is time for: the failure comes at once, the next poll tries again.
    first(&simulator, 1, Reply { status: 429, headers: vec![("retry-after", "3600".into())], body: Vec::new() });
    assert_eq!(client.list_nodes(ZONE, in_a_minute()).await.unwrap_err().class, FailureClass::Rate);
}

#[tokio::test]
async fn a_mutation_is_sent_once_and_its_outcome_is_what_is_known() {
    let (simulator, client, attempts) = peer(Duration::from_secs(1)).await;
    let body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    let outcome = async |reply: Reply| {
        first(&simulator, 1, reply);
        client.create_node(ZONE, "b", &body, None, client.prepare().await.unwrap()).await
    };
    let error = |code: u16, status: &str| {
        Reply::new(code, json!({"error": {"code": code, "status": status, "message": "m"}}).to_string())
    };
    assert!(matches!(outcome(error(503, "UNAVAILABLE")).await, CallOutcome::Unknown(_)));
    assert!(matches!(outcome(Reply::new(200, "<html>")).await, CallOutcome::Unknown(_)));
    assert!(matches!(outcome(Reply::new(200, "{}")).await, CallOutcome::Unknown(_)));
    assert!(matches!(outcome(Reply::new(404, "<html>")).await, CallOutcome::Unknown(_)), "no API error: it proves nothing");
    assert!(matches!(outcome(error(429, "RESOURCE_EXHAUSTED")).await, CallOutcome::Refused(_)));
    assert!(matches!(outcome(error(400, "INVALID_ARGUMENT")).await, CallOutcome::Refused(_)));
    assert_eq!(attempts.0.lock().unwrap().len(), 6, "each was sent once");
    simulator.set_hook(Some(Box::new(|_| Some(Fault::Hang))));
    assert!(matches!(client.delete_node(ZONE, "a", None, client.prepare().await.unwrap()).await, CallOutcome::Unknown(_)));
    simulator.set_hook(None);
    assert!(matches!(client.delete_node(ZONE, "a", None, client.prepare().await.unwrap()).await, CallOutcome::Accepted(_)));
}

#[tokio::test]
async fn a_call_that_never_left_is_known_not_to_have_been_carried_out() {
    let http = Http::new(Credentials::Anonymous, Duration::from_secs(2), Arc::new(Attempts::default())).unwrap();
    // Bound and dropped: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = TpuClient::new(http, &format!("http://127.0.0.1:{port}"), "v2", "p");
    assert!(matches!(client.delete_node(ZONE, "a", None, client.prepare().await.unwrap()).await, CallOutcome::NotSent(_)));
}

#[tokio::test]
async fn a_list_that_never_ends_is_not_believed() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    simulator.set_hook(Some(Box::new(|_| Some(Fault::AnswerBefore(Reply::new(200, r#"{"nextPageToken":"again"}"#))))));
    assert!(client.list_nodes(ZONE, in_a_minute()).await.unwrap_err().message.contains("repeats a page"));
}
