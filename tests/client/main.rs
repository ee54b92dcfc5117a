//! The client against a server that misbehaves: what is repeated, what is waited for, what is never
//! repeated.

mod checks;
mod credentials;
mod failures;
mod markers;
mod patch;
mod reads;
mod tokens;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::HeaderMap;
use google_cloud_auth::credentials::user_account;
use serde_json::{Value, json};
use tpu_watchdog::google::auth::Credentials;
use tpu_watchdog::google::http::{Http, Observer};
use tpu_watchdog::google::sources::{Places, Source};
use tpu_watchdog::google::tpu::TpuClient;
use tpu_watchdog::model::action::CallOutcome;
use tpu_watchdog::model::event::Verb;
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::operation::OperationState;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::{Fault, Simulator};
use tpu_watchdog::simulator::wire::Reply;

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
    assert_eq!(client.list_nodes(ZONE, in_a_minute()).await.unwrap().nodes.len(), 1);
    assert_eq!(attempts.0.lock().unwrap().len(), 3);
    let mut broken = false;
    simulator.set_hook(Some(Box::new(move |_| {
        (!std::mem::replace(&mut broken, true)).then(|| Fault::Before(Box::new(|| ())))
    })));
    assert!(client.get_node(ZONE, "a", in_a_minute()).await.is_ok());
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    first(
        &simulator,
        1,
        Reply { status: 429, headers: vec![("retry-after", "2".into())], body: Vec::new() },
    );
    client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    let log = simulator.log();
    assert!(log[1].at.duration_since(log[0].at).as_secs_f64() >= 2.0, "{log:?}");
    // Longer than there is time for: the failure comes at once, the next poll tries again.
    first(
        &simulator,
        1,
        Reply { status: 429, headers: vec![("retry-after", "3600".into())], body: Vec::new() },
    );
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
        Reply::new(
            code,
            json!({"error": {"code": code, "status": status, "message": "m"}}).to_string(),
        )
    };
    assert!(matches!(outcome(error(503, "UNAVAILABLE")).await, CallOutcome::Unknown(_)));
    assert!(matches!(outcome(Reply::new(200, "<html>")).await, CallOutcome::Unknown(_)));
    assert!(matches!(outcome(Reply::new(200, "{}")).await, CallOutcome::Unknown(_)));
    assert!(
        matches!(outcome(Reply::new(404, "<html>")).await, CallOutcome::Unknown(_)),
        "no API error: it proves nothing"
    );
    assert!(matches!(outcome(error(429, "RESOURCE_EXHAUSTED")).await, CallOutcome::Refused(_)));
    assert!(matches!(outcome(error(400, "INVALID_ARGUMENT")).await, CallOutcome::Refused(_)));
    assert_eq!(attempts.0.lock().unwrap().len(), 6, "each was sent once");
    simulator.set_hook(Some(Box::new(|_| Some(Fault::Hang))));
    assert!(matches!(
        client.delete_node(ZONE, "a", None, client.prepare().await.unwrap()).await,
        CallOutcome::Unknown(_)
    ));
    simulator.set_hook(None);
    assert!(matches!(
        client.delete_node(ZONE, "a", None, client.prepare().await.unwrap()).await,
        CallOutcome::Accepted(_)
    ));
}

#[tokio::test]
async fn a_call_that_never_left_is_known_not_to_have_been_carried_out() {
    let http =
        Http::new(Credentials::Anonymous, Duration::from_secs(2), Arc::new(Attempts::default()))
            .unwrap();
    // Bound and dropped: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = TpuClient::new(http, &format!("http://127.0.0.1:{port}"), "v2", "p");
    assert!(matches!(
        client.delete_node(ZONE, "a", None, client.prepare().await.unwrap()).await,
        CallOutcome::NotSent(_)
    ));
}

#[tokio::test]
async fn a_list_that_never_ends_is_not_believed() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    simulator.set_hook(Some(Box::new(|_| {
        Some(Fault::AnswerBefore(Reply::new(200, r#"{"nextPageToken":"again"}"#)))
    })));
    assert!(
        client
            .list_nodes(ZONE, in_a_minute())
            .await
            .unwrap_err()
            .message
            .contains("repeats a page")
    );
}

/// One call as the server saw it: path with query, and headers.
type Calls = Arc<Mutex<Vec<(String, HeaderMap)>>>;

/// A server on loopback that answers each call by its path and its headers, and gives out the same
/// access token at `/token` each time.
async fn server(answer: fn(&str, &HeaderMap) -> (u16, Value)) -> (String, Calls) {
    server_with_tokens(answer, |_| "loopback-token".to_owned()).await
}

/// The same, with the access token that is asked for as the so-and-so-many-th.
async fn server_with_tokens(
    answer: fn(&str, &HeaderMap) -> (u16, Value),
    token: fn(usize) -> String,
) -> (String, Calls) {
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    let fetched = Arc::new(AtomicUsize::new(0));
    let app = axum::Router::new().fallback(async move |request: Request| {
        let (path, headers) = (request.uri().to_string(), request.headers().clone());
        if path == "/token" {
            let token = token(fetched.fetch_add(1, Ordering::SeqCst) + 1);
            if token.is_empty() {
                let refused = json!({"error": "invalid_grant"}).to_string();
                return (axum::http::StatusCode::BAD_REQUEST, refused);
            }
            let token = json!({"access_token": token, "expires_in": 3599, "token_type": "Bearer"});
            return (axum::http::StatusCode::OK, token.to_string());
        }
        let (status, body) = answer(&path, &headers);
        seen.lock().unwrap().push((format!("{} {path}", request.method()), headers));
        (axum::http::StatusCode::from_u16(status).unwrap(), body.to_string())
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (base, calls)
}

/// A client with the credentials of a user, as `gcloud auth application-default login` leaves them,
/// at a token endpoint of ours.
fn client_of_a_user(base: &str, quota_project: Option<&str>) -> TpuClient {
    let mut file = json!({"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r",
        "token_uri": format!("{base}/token")});
    if let Some(project) = quota_project {
        file["quota_project_id"] = json!(project);
    }
    let make = move || user_account::Builder::new(file.clone()).build_access_token_credentials();
    let credentials = Credentials::made(make, Source::of(Places::default())).unwrap();
    let http =
        Http::new(credentials, Duration::from_secs(10), Arc::new(Attempts::default())).unwrap();
    TpuClient::new(http, base, "v2", "p")
}

#[tokio::test]
async fn what_an_operation_failed_with_depends_on_its_call() {
    let (base, _) = server(|_, _| {
        let error = json!({"code": 5, "message": "Reservation not found"});
        (200, json!({"name": "projects/p/locations/z/operations/o", "done": true, "error": error}))
    })
    .await;
    let client = client_of_a_user(&base, None);
    let class = async |verb: Verb, spot: bool| {
        let name = "projects/p/locations/z/operations/o";
        match client.get_operation(name, verb, spot, in_a_minute()).await.unwrap() {
            OperationState::Failed(failure) => failure.class,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(class(Verb::Create, true).await, FailureClass::StockOut);
    assert_eq!(class(Verb::Create, false).await, FailureClass::NotFound);
    assert_eq!(class(Verb::Delete, true).await, FailureClass::NotFound);
}

#[tokio::test]
async fn a_refusal_that_quotes_metadata_tells_nothing_of_it() {
    let (simulator, client, _) = peer(Duration::from_secs(5)).await;
    let script =
        "#!/bin/bash\nexport WANDB_API_KEY=0123456789abcdef0123456789abcdef\ntrain \"$@\"\n"
            .repeat(20);
    let metadata =
        json!({"token": "hunter2", "startup-script": script, "tpu-watchdog-owner": "owner-1"});
    let body =
        json!({"acceleratorType": "v4-8", "runtimeVersion": "tpu-vm-base", "metadata": metadata});
    let quoted = Value::from(script.as_str()).to_string();
    for (status, name, class) in [
        (400, "INVALID_ARGUMENT", FailureClass::BadRequest),
        (503, "UNAVAILABLE", FailureClass::Transient),
    ] {
        // Of the script, what a server with a limit of its own leaves.
        let message = format!(
            "owner-1: metadata \"hunter2\" of tpu-vm-base is not allowed, nor {}",
            &quoted[..900]
        );
        let answer = json!({"error": {"code": status, "status": name, "message": message}});
        first(&simulator, 1, Reply::new(status, answer.to_string()));
        let outcome =
            client.create_node(ZONE, "b", &body, None, client.prepare().await.unwrap()).await;
        let (CallOutcome::Refused(failure) | CallOutcome::Unknown(failure)) = outcome else {
            panic!("{outcome:?}")
        };
        let told = "owner-1: metadata \"[metadata value]\" of tpu-vm-base is not allowed, nor \"[metadata value]";
        assert_eq!(
            (failure.class, failure.message),
            (class, format!("HTTP {status} {name}: {told}"))
        );
    }
    // A proxy's page that echoes the request.
    first(&simulator, 1, Reply::new(403, format!("<html>{body}</html>")));
    let outcome = client.create_node(ZONE, "b", &body, None, client.prepare().await.unwrap()).await;
    assert!(
        !format!("{outcome:?}").contains("hunter2") && !format!("{outcome:?}").contains("WANDB"),
        "{outcome:?}"
    );
}
