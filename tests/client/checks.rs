//! Whether a create could follow (S20): what is asked, which answers are certain, and which are
//! doubts.

use axum::http::HeaderMap;
use serde_json::{Value, json};
use tpu_watchdog::google::tpu::CheckEndpoints;
use tpu_watchdog::model::lookup::{CreateCheck, NextCreate};
use tpu_watchdog::model::spec::NodeSpec;

use crate::{Calls, ZONE, client_of_a_user, in_a_minute, server};

const ACCOUNT: &str = "tpu@p.iam.gserviceaccount.com";

/// A create of what the slot's TPU is already, but for these fields.
fn next(account: Option<&str>, new: &[&'static str]) -> NextCreate {
    NextCreate { zone: ZONE.into(), spec: spec(account), new: new.to_vec() }
}

fn spec(account: Option<&str>) -> NodeSpec {
    let mut raw = json!({"acceleratorType": "v4-8", "runtimeVersion": "tpu-vm-base"});
    if let Some(account) = account {
        raw["serviceAccount"] = json!({"email": account});
    }
    NodeSpec::learn(&raw).unwrap()
}

/// All is granted, and the zone offers everything.
fn granted(path: &str, _: &HeaderMap) -> (u16, Value) {
    if path.contains("serviceAccounts") {
        (200, json!({"permissions": ["iam.serviceAccounts.actAs"]}))
    } else if path.contains(":testIamPermissions") {
        (200, json!({"permissions": ["tpu.nodes.create"]}))
    } else {
        (200, json!({"name": "x"}))
    }
}

fn nothing(path: &str, headers: &HeaderMap) -> (u16, Value) {
    if path.contains(":testIamPermissions") { (200, json!({})) } else { granted(path, headers) }
}

fn off(_: &str, _: &HeaderMap) -> (u16, Value) {
    let message =
        "Cloud Resource Manager API has not been used in project p before or it is disabled.";
    (403, json!({"error": {"code": 403, "status": "PERMISSION_DENIED", "message": message}}))
}

fn withdrawn(path: &str, headers: &HeaderMap) -> (u16, Value) {
    if path.starts_with("/v2/") {
        let message = format!("Resource '{path}' was not found");
        return (404, json!({"error": {"code": 404, "status": "NOT_FOUND", "message": message}}));
    }
    granted(path, headers)
}

fn gone(path: &str, headers: &HeaderMap) -> (u16, Value) {
    if path.contains("serviceAccounts") {
        let message = "Unknown service account";
        return (404, json!({"error": {"code": 404, "status": "NOT_FOUND", "message": message}}));
    }
    withdrawn(path, headers)
}

async fn check(
    answer: fn(&str, &HeaderMap) -> (u16, Value),
    account: Option<&str>,
    asked: bool,
) -> (CreateCheck, Vec<String>) {
    check_of(answer, &next(account, &[]), asked).await
}

async fn check_of(
    answer: fn(&str, &HeaderMap) -> (u16, Value),
    next: &NextCreate,
    asked: bool,
) -> (CreateCheck, Vec<String>) {
    let (base, calls): (String, Calls) = server(answer).await;
    let base_of = |asked: bool| asked.then(|| base.clone());
    let checks = CheckEndpoints {
        resource_manager: base_of(asked),
        iam: base_of(asked),
        ..CheckEndpoints::default()
    };
    let client = client_of_a_user(&base, None).with_checks(checks);
    let found = client.create_check(next, in_a_minute()).await;
    let mut paths: Vec<String> =
        calls.lock().unwrap().iter().map(|(path, _)| path.clone()).collect();
    paths.sort();
    (found, paths)
}

#[tokio::test]
async fn all_that_a_create_needs_is_asked_for() {
    let (found, paths) = check(granted, Some(ACCOUNT), true).await;
    assert_eq!(found, CreateCheck::default());
    let parent = format!("/v2/projects/p/locations/{ZONE}");
    assert_eq!(
        paths,
        [
            format!("GET {parent}/acceleratorTypes/v4-8"),
            format!("GET {parent}/runtimeVersions/tpu-vm-base"),
            "POST /v1/projects/-/serviceAccounts/tpu%40p.iam.gserviceaccount.com:testIamPermissions".into(),
            "POST /v3/projects/p:testIamPermissions".into(),
        ]
    );
}

#[tokio::test]
async fn a_permission_that_is_certainly_missing_is_told_with_the_command_that_mends_it() {
    let (found, _) = check(nothing, Some(ACCOUNT), true).await;
    let certain = found.certain.unwrap();
    for words in [
        "tpu.nodes.create is not granted on project p",
        "gcloud projects add-iam-policy-binding p --member serviceAccount:WATCHDOG --role roles/tpu.admin",
        "iam.serviceAccounts.actAs is not granted on tpu@p.iam.gserviceaccount.com",
        "gcloud iam service-accounts add-iam-policy-binding tpu@p.iam.gserviceaccount.com --member",
        "create_check = \"warn\"",
    ] {
        assert!(certain.contains(words), "{certain}");
    }
    assert!(found.doubts.is_empty(), "{:?}", found.doubts);
}

#[tokio::test]
async fn an_api_that_is_off_and_a_zone_that_lists_less_are_doubts() {
    let (found, _) = check(off, Some(ACCOUNT), true).await;
    assert_eq!((found.certain, found.doubts.len()), (None, 4), "{:?}", found.doubts);
    let (found, _) = check(withdrawn, Some(ACCOUNT), true).await;
    assert_eq!(found.certain, None);
    assert!(
        found.doubts[0].contains("runtime version tpu-vm-base")
            && found.doubts[1].contains("accelerator-types list --zone us-central2-b"),
        "{:?}",
        found.doubts
    );
}

#[tokio::test]
async fn what_the_config_has_changed_and_is_not_there_is_certain() {
    let all = next(Some(ACCOUNT), &NextCreate::ASKED);
    let (found, _) = check_of(gone, &all, true).await;
    let certain = found.certain.unwrap();
    for words in [
        "there is no service account tpu@p.iam.gserviceaccount.com",
        "us-central2-b does not offer the runtime version tpu-vm-base, which the config asks for",
        "us-central2-b does not offer the accelerator type v4-8",
    ] {
        assert!(certain.contains(words), "{certain}");
    }
    // The TPU that is there has the type and the account.
    let (found, _) = check_of(gone, &next(Some(ACCOUNT), &["runtimeVersion"]), true).await;
    assert!(!found.certain.unwrap().contains("accelerator type") && found.doubts.len() == 2);
}

#[tokio::test]
async fn the_default_account_is_a_doubt_where_the_projects_number_is_not_known() {
    let (found, paths) = check(granted, None, true).await;
    assert_eq!((found.certain, found.doubts.len(), paths.len()), (None, 1, 3));
    assert!(found.doubts[0].contains("tpu.create.service_account"), "{:?}", found.doubts);
}

#[tokio::test]
async fn google_is_not_asked_about_what_a_private_endpoint_serves() {
    let (found, paths) = check(granted, Some(ACCOUNT), false).await;
    assert_eq!((found.certain, paths.len()), (None, 2), "{paths:?}");
    assert!(found.doubts.iter().all(|doubt| doubt.contains("was not asked")), "{:?}", found.doubts);
    assert_eq!(found.doubts.len(), 2);
}

#[tokio::test]
async fn anonymous_credentials_ask_nothing() {
    let (simulator, client, _) = crate::peer(std::time::Duration::from_secs(5)).await;
    let base = Some("http://127.0.0.1:1".to_owned());
    let client = client.with_checks(CheckEndpoints {
        storage: None,
        resource_manager: base.clone(),
        iam: base,
        quotas: None,
    });
    let found = client.create_check(&next(Some(ACCOUNT), &[]), in_a_minute()).await;
    assert_eq!(found, CreateCheck::default());
    assert!(simulator.log().is_empty());
}
