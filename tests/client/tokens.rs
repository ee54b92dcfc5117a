//! Tokens and quota projects: which call is repeated with another one, and which is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::HeaderMap;
use serde_json::{Value, json};
use tpu_watchdog::google::auth::Credentials;
use tpu_watchdog::google::http::Http;
use tpu_watchdog::google::tpu::TpuClient;
use tpu_watchdog::model::action::{Action, CallOutcome};
use tpu_watchdog::model::failure::{Failure, FailureClass};

use crate::{Attempts, Calls, ZONE, client_of_a_user, in_a_minute, server, server_with_tokens};

/// Authorization and quota project of each call so far.
pub fn sent(calls: &Calls) -> Vec<(String, Option<String>)> {
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
pub fn denied(headers: &HeaderMap) -> Option<(u16, Value)> {
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
async fn a_source_of_tokens_that_refuses_once_is_asked_again() {
    let listed = |_: &str, _: &HeaderMap| (200, json!({"nodes": []}));
    // The token endpoint answers 400 to an empty name, once.
    let token = |n: usize| if n == 1 { String::new() } else { format!("token-{n}") };
    let (base, calls) = server_with_tokens(listed, token).await;
    let client = client_of_a_user(&base, None);
    // The first listing may fail, or go on through the other version of the API.
    let first = client.list_nodes(ZONE, in_a_minute()).await;
    assert!(first.err().is_none_or(|failure| failure.class == FailureClass::Permission));
    client.list_nodes(ZONE, in_a_minute()).await.unwrap();
    assert!(bearers(&calls).iter().all(|token| token == "2"), "{:?}", bearers(&calls));
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
    let create = Action::Create {
        slot: "a".into(),
        zone: ZONE.into(),
        body,
        request_id: Some("r".into()),
        filling: Default::default(),
    };
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
    let create = Action::Create {
        slot: "a".into(),
        zone: ZONE.into(),
        body,
        request_id: None,
        filling: Default::default(),
    };
    let outcome = client_of_a_user(&base, None).carry_out(&create, || Ok(())).await;
    assert!(
        matches!(&outcome, CallOutcome::Refused(f) if f.class == FailureClass::Permission),
        "{outcome:?}"
    );
    assert_eq!(bearers(&calls), ["1", "2"]);
}
