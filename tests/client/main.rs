//! The client against a server that misbehaves: what is repeated, what is waited for, what is never
//! repeated.

mod checks;
mod reads;

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
use tpu_watchdog::model::action::{Action, CallOutcome};
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

/// Authorization and quota project of each call so far.
fn sent(calls: &Calls) -> Vec<(String, Option<String>)> {
    let text =
        |headers: &HeaderMap, name: &str| headers.get(name).map(|v| v.to_str().unwrap().to_owned());
    let calls = calls.lock().unwrap();
    calls
        .iter()
        .map(|(_, headers)| {
            (text(headers, "authorization").unwrap(), text(headers, "x-goog-user-project"))
        })
        .collect()
}

#[tokio::test]
async fn the_calls_of_a_user_name_their_quota_project() {
    let (base, calls) =
        server(|_, _| (200, json!({"name": "projects/p/locations/z/operations/o"}))).await;
    let client = client_of_a_user(&base, Some("payer"));
    client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    let outcome = client.delete_node(ZONE, "a", None, client.prepare().await.unwrap()).await;
    assert!(matches!(outcome, CallOutcome::Accepted(_)), "{outcome:?}");
    assert_eq!(sent(&calls), vec![("Bearer loopback-token".into(), Some("payer".into())); 2]);
    // Without one in the file there is none.
    let client = client_of_a_user(&base, None);
    client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    assert_eq!(sent(&calls)[2], ("Bearer loopback-token".into(), None));
}

/// Refuses what names a quota project, as Google does when the caller may not use it.
fn denied(headers: &HeaderMap) -> Option<(u16, Value)> {
    headers.get("x-goog-user-project")?;
    let message = "Caller does not have required permission to use project payer. Grant the caller the \
                   roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use permission";
    let info = json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "USER_PROJECT_DENIED",
        "domain": "googleapis.com", "metadata": {"consumer": "projects/payer", "service": "tpu.googleapis.com"}});
    Some((
        403,
        json!({"error": {"code": 403, "status": "PERMISSION_DENIED", "message": message, "details": [info]}}),
    ))
}

#[tokio::test]
async fn a_quota_project_that_may_not_be_used_is_left_out_and_the_read_is_repeated_once() {
    let (base, calls) =
        server(|_, headers| denied(headers).unwrap_or((200, json!({"nodes": []})))).await;
    let client = client_of_a_user(&base, Some("payer"));
    client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    client.clone().list_nodes(ZONE, in_a_minute()).await.unwrap();
    let projects: Vec<_> = sent(&calls).into_iter().map(|(_, project)| project).collect();
    assert_eq!(projects, [Some("payer".into()), None, None], "repeated once, and never sent again");
    // A refusal for anything else is no reason to leave it out.
    let (base, calls) = server(|_, _| {
        (403, json!({"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "m"}}))
    })
    .await;
    let client = client_of_a_user(&base, Some("payer"));
    for _ in 0..2 {
        assert_eq!(
            client.list_nodes(ZONE, in_a_minute()).await.unwrap_err().class,
            FailureClass::Permission
        );
    }
    assert_eq!(
        sent(&calls),
        vec![("Bearer loopback-token".into(), Some("payer".into())); 3],
        "and it is not repeated, but through v2 after v2alpha1"
    );
}

#[tokio::test]
async fn a_mutation_refused_for_its_quota_project_is_not_repeated_but_the_next_leaves_without() {
    let (base, calls) = server(|_, headers| {
        denied(headers).unwrap_or((200, json!({"name": "projects/p/locations/z/operations/o"})))
    })
    .await;
    let client = client_of_a_user(&base, Some("payer"));
    let (first, second) = (client.prepare().await.unwrap(), client.prepare().await.unwrap());
    let outcome = client.delete_node(ZONE, "a", None, first).await;
    assert!(
        matches!(&outcome, CallOutcome::Refused(f) if f.class == FailureClass::Permission),
        "{outcome:?}"
    );
    // Also what was prepared before.
    let outcome = client.delete_node(ZONE, "a", None, second).await;
    assert!(matches!(outcome, CallOutcome::Accepted(_)), "{outcome:?}");
    let projects: Vec<_> = sent(&calls).into_iter().map(|(_, project)| project).collect();
    assert_eq!(projects, [Some("payer".into()), None]);
}

/// Refuses every access token but the second, as Google does with one that was revoked.
fn wants_the_second(headers: &HeaderMap) -> Option<(u16, Value)> {
    let told = headers.get("authorization").map(|v| v.to_str().unwrap());
    let message = "Request had invalid authentication credentials.";
    (told != Some("Bearer token-2")).then(|| {
        (401, json!({"error": {"code": 401, "status": "UNAUTHENTICATED", "message": message}}))
    })
}

fn bearers(calls: &Calls) -> Vec<String> {
    sent(calls).into_iter().map(|(token, _)| token.replace("Bearer token-", "")).collect()
}

#[tokio::test]
async fn a_read_whose_token_is_refused_is_repeated_once_with_another_one() {
    let answer = |_: &str, headers: &HeaderMap| {
        wants_the_second(headers).unwrap_or((200, json!({"nodes": []})))
    };
    let (base, calls) = server_with_tokens(answer, |n| format!("token-{n}")).await;
    let client = client_of_a_user(&base, None);
    client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    client.clone().list_nodes(ZONE, in_a_minute()).await.unwrap();
    assert_eq!(bearers(&calls), ["1", "2", "2"], "and the other one is kept");
    // All calls that meet the same refusal share one other token.
    let (base, calls) = server_with_tokens(answer, |n| format!("token-{n}")).await;
    let client = client_of_a_user(&base, None);
    let reads = (0..5).map(|_| client.list_nodes(ZONE, in_a_minute()));
    for result in futures::future::join_all(reads).await {
        result.unwrap();
    }
    assert!(bearers(&calls).iter().all(|n| n == "1" || n == "2"), "{:?}", bearers(&calls));
}

#[tokio::test]
async fn a_token_that_is_refused_again_is_not_replaced_with_each_call() {
    let refuse = |_: &str, _: &HeaderMap| {
        (401, json!({"error": {"code": 401, "status": "UNAUTHENTICATED", "message": "m"}}))
    };
    let (base, calls) = server_with_tokens(refuse, |n| format!("token-{n}")).await;
    let client = client_of_a_user(&base, None);
    for _ in 0..3 {
        let failure = client.list_nodes(ZONE, in_a_minute()).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Permission);
    }
    // The first listing asks both versions of the API; the later ones v2 alone.
    let sent = ["1", "2", "2", "2", "2"];
    assert_eq!(bearers(&calls), sent, "one repetition, one other token a minute");
    // Without credentials there is none to replace.
    let http =
        Http::new(Credentials::Anonymous, Duration::from_secs(5), Arc::new(Attempts::default()));
    let client = TpuClient::new(http.unwrap(), &base, "v2", "p");
    assert!(client.list_nodes(ZONE, in_a_minute()).await.is_err());
    assert_eq!(calls.lock().unwrap().len(), 7);
}

#[tokio::test]
async fn a_mutation_whose_token_is_refused_is_permitted_again_and_sent_once_more() {
    let answer = |_: &str, headers: &HeaderMap| {
        wants_the_second(headers)
            .unwrap_or((200, json!({"name": "projects/p/locations/z/operations/o"})))
    };
    let body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    let create =
        Action::Create { slot: "a".into(), zone: ZONE.into(), body, request_id: Some("r".into()) };
    let (base, calls) = server_with_tokens(answer, |n| format!("token-{n}")).await;
    let asked = AtomicUsize::new(0);
    let permitted = |times: usize| {
        let asked = &asked;
        move || {
            let not_sent = || Failure::new(FailureClass::Transient, "the lock was lost");
            let permitted = asked.fetch_add(1, Ordering::SeqCst) < times;
            permitted.then_some(()).ok_or_else(|| CallOutcome::NotSent(not_sent()))
        }
    };
    let outcome = client_of_a_user(&base, None).carry_out(&create, permitted(2)).await;
    assert!(matches!(outcome, CallOutcome::Accepted(_)), "{outcome:?}");
    assert_eq!((bearers(&calls), asked.load(Ordering::SeqCst)), (vec!["1".into(), "2".into()], 2));
    let urls: Vec<String> = calls.lock().unwrap().iter().map(|(call, _)| call.clone()).collect();
    assert!(urls[0].ends_with("nodeId=a") && urls[0] == urls[1], "{urls:?}");
    // What may no longer leave does not: the lock may be lost by the time the other token is there.
    let (base, calls) = server_with_tokens(answer, |n| format!("token-{n}")).await;
    asked.store(0, Ordering::SeqCst);
    let outcome = client_of_a_user(&base, None).carry_out(&create, permitted(1)).await;
    assert!(matches!(outcome, CallOutcome::NotSent(_)), "{outcome:?}");
    assert_eq!((bearers(&calls), asked.load(Ordering::SeqCst)), (vec!["1".into()], 2));
}

#[tokio::test]
async fn a_mutation_is_never_sent_a_third_time() {
    let refuse = |_: &str, _: &HeaderMap| {
        (401, json!({"error": {"code": 401, "status": "UNAUTHENTICATED", "message": "m"}}))
    };
    let (base, calls) = server_with_tokens(refuse, |n| format!("token-{n}")).await;
    let body = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    let create = Action::Create { slot: "a".into(), zone: ZONE.into(), body, request_id: None };
    let outcome = client_of_a_user(&base, None).carry_out(&create, || Ok(())).await;
    assert!(
        matches!(&outcome, CallOutcome::Refused(f) if f.class == FailureClass::Permission),
        "{outcome:?}"
    );
    assert_eq!(bearers(&calls), ["1", "2"]);
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

/// The real binary with a config that uses Application Default Credentials against `api`, in a home
/// of its own.
struct Binary {
    folder: tempfile::TempDir,
    metadata: String,
}

impl Binary {
    fn new(api: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "project = \"p\"\nstate = \"sqlite:state.db\"\nlisten = \"off\"\n[poll]\nevery = \"500ms\"\ntimeout = \"5s\"\n\
             [api]\ntpu = \"{api}\"\n[[tpu]]\nname = \"a\"\nzone = \"{ZONE}\"\n"
        );
        std::fs::write(folder.path().join("w.toml"), config).unwrap();
        Binary { folder, metadata: nobody_there() }
    }

    fn command(&self, command: &str) -> std::process::Command {
        let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"));
        process
            .env_clear()
            .env("HOME", self.folder.path())
            .env("GCE_METADATA_HOST", &self.metadata);
        process.arg(command).arg("--config").arg(self.folder.path().join("w.toml"));
        process
    }

    /// Exit code, and everything that it wrote.
    fn run(&self, command: &str) -> (i32, String) {
        let output = self.command(command).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }

    /// The output of `run` until a line holds `words`, and of a second more.
    fn run_until(&self, words: &str) -> String {
        let log = self.folder.path().join("log");
        let mut process =
            self.command("run").stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        let began = Instant::now();
        let read = || std::fs::read_to_string(&log).unwrap();
        while !read().contains(words) && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_secs(1));
        process.kill().unwrap();
        process.wait().unwrap();
        read()
    }
}

/// An address where nothing listens: bound and dropped.
fn nobody_there() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

const LIBRARY: [&str; 3] =
    ["Subsequent calls with this credential", "future attempts", "cannot create auth headers"];

#[test]
fn without_any_credentials_each_command_says_once_where_it_looked_and_what_to_do() {
    let binary = Binary::new("https://tpu.googleapis.com");
    for command in ["plan", "once"] {
        let (code, text) = binary.run(command);
        assert_eq!(code, 1, "{text}");
        let table =
            text.lines().skip_while(|l| !l.starts_with("tpu-watchdog: ")).collect::<Vec<_>>();
        let words: Vec<String> =
            table.iter().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            words,
            [
                "tpu-watchdog: no Google credentials found".to_owned(),
                "looked at GOOGLE_APPLICATION_CREDENTIALS not set".into(),
                "~/.config/gcloud/application_default_credentials.json not there".into(),
                format!("metadata server not reachable at {} (GCE_METADATA_HOST)", binary.metadata),
                "do gcloud auth application-default login (your own machine)".into(),
                "or see deploy/iam/README.md (service account, workload identity)".into(),
            ],
            "{text}"
        );
        // Of `once` there is also the line that sums up, for a scheduler's log.
        assert_eq!(
            text.matches("no Google credentials found").count(),
            if command == "plan" { 1 } else { 2 },
            "{text}"
        );
        assert!(LIBRARY.iter().all(|words| !text.contains(words)), "{text}");
        assert!(!binary.folder.path().join("state.db").exists(), "nothing else was done");
    }
    let log = binary.run_until("no access token from");
    let told: Vec<&str> =
        log.lines().filter(|l| l.contains("no Google credentials found; looked at")).collect();
    assert!(
        told.len() == 1
            && told[0].contains("ERROR")
            && told[0].contains("; do gcloud auth application-default"),
        "{log}"
    );
    assert!(LIBRARY.iter().all(|words| !log.contains(words)), "{log}");
    let polls: Vec<&str> =
        log.lines().filter(|l| l.contains("no access token from the metadata server at")).collect();
    assert!(!polls.is_empty() && polls.iter().all(|l| l.len() < 300), "{log}");
}

#[test]
fn credentials_that_give_no_token_are_named_with_what_came_back() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (base, _) = runtime.block_on(server(|_, _| {
        (400, json!({"error": "invalid_grant", "error_description": "Token has been\nexpired or revoked."}))
    }));
    let binary = Binary::new(&base);
    let file = binary.folder.path().join(".config/gcloud/application_default_credentials.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let write = |token_uri: String| {
        let user = json!({"type": "authorized_user", "client_id": "i", "client_secret": "hunter1", "refresh_token": "hunter2",
            "token_uri": token_uri});
        std::fs::write(&file, user.to_string()).unwrap();
    };
    let told = |words: &[&str]| {
        let (code, text) = binary.run("plan");
        assert_eq!(code, 1, "{text}");
        assert_eq!(text.matches("no access token from").count(), 1, "{text}");
        assert!(words.iter().all(|words| text.contains(words)), "{text}");
        assert!(text.contains(&format!("used       {}", file.display())), "{text}");
        assert!(LIBRARY.iter().chain(&["hunter"]).all(|words| !text.contains(words)), "{text}");
    };
    write(format!("{base}/revoked"));
    told(&[
        "HTTP 400 invalid_grant: Token has been expired or revoked.",
        "gcloud auth application-default login",
    ]);
    let log = binary.run_until("no access token from");
    assert!(
        log.contains("; then restart tpu-watchdog")
            && LIBRARY.iter().all(|words| !log.contains(words)),
        "{log}"
    );
    write(format!("http://{}/token", nobody_there()));
    told(&["Connection refused", "try again"]);
    for (content, words) in [
        ("{hunter", "it is not the JSON of credentials"),
        ("{\"type\":\"hunter\"}", "its \"type\" is not one"),
        (
            "{\"type\":\"authorized_user\",\"client_id\":\"hunter\",\"client_secret\":\"hunter\"}",
            "missing field `refresh_token` in it",
        ),
    ] {
        std::fs::write(&file, content).unwrap();
        let (code, text) = binary.run("plan");
        assert!(
            code == 1
                && text.contains(words)
                && text.contains("used       /")
                && !text.contains("hunter"),
            "{text}"
        );
    }
    // Named by the environment, and not there: the library looks no further.
    let output = binary
        .command("plan")
        .env("GOOGLE_APPLICATION_CREDENTIALS", "/no/such.json")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("no Google credentials found") && text.contains("/no/such.json is not there"),
        "{text}"
    );
}

#[test]
fn the_plan_of_a_user_reads_with_the_quota_project_of_the_file() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (base, calls) = runtime
        .block_on(server(|_, headers| denied(headers).unwrap_or((200, json!({"nodes": []})))));
    let binary = Binary::new(&base);
    let file = binary.folder.path().join(".config/gcloud/application_default_credentials.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let user = json!({"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r",
        "quota_project_id": "payer", "token_uri": format!("{base}/token")});
    std::fs::write(&file, user.to_string()).unwrap();
    let (_, text) = binary.run("plan");
    let projects: Vec<_> = sent(&calls).into_iter().map(|(_, project)| project).collect();
    assert_eq!(projects[0], Some("payer".into()), "{text}");
    assert!(projects.len() > 1 && projects[1..].iter().all(Option::is_none), "{projects:?} {text}");
    assert_eq!(text.matches("roles/serviceusage.serviceUsageConsumer").count(), 1, "{text}");
}
