//! Sorts failed calls by the texts that Google's APIs really send (`resource::texts`), and by where
//! they came from.
//!
//! Stock-out and quota share code 8 (RESOURCE_EXHAUSTED): they are told apart by where the error
//! came from (a synchronous 429, or an operation), by a `QuotaFailure` detail, and by their words.
//! Codes 5 and 13 stand for a lack of capacity at the end of a create's operation, and nowhere else:
//! at once, of a delete and of a read they are what they say.

use serde_json::Value;

use super::origin::{Call, Origin};
use crate::model::beacon::plain;
use crate::model::failure::{Failure, FailureClass};
use crate::resource::mask::Mask;
use crate::resource::texts::{self, Action, Section, Text};

/// Longest message that is kept of an answer.
const MESSAGE_MAX: usize = 600;
/// Longest beginning that is shown of an answer that is no API error.
const EXCERPT_MAX: usize = 120;
/// Of which this much is looked through for what must not be shown.
const EXCERPT_READ: usize = 4 << 10;

/// An HTTP answer that is not a success.
pub fn http_failure(origin: Origin, status: u16, body: &[u8]) -> Failure {
    http_failure_masked(origin, status, body, &Mask::default())
}

/// An HTTP answer that is not a success, told without what the request keeps secret. Its class is
/// that of the whole text.
pub fn http_failure_masked(origin: Origin, status: u16, body: &[u8], mask: &Mask) -> Failure {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let Some(error) = json.as_ref().and_then(|j| j.get("error")).filter(|e| e.is_object()) else {
        let class = match status {
            429 => FailureClass::Rate,
            500..=599 | 408 => FailureClass::Transient,
            _ => FailureClass::Garbage,
        };
        return Failure::new(
            class,
            format!("HTTP {status} without an API error: {}", excerpt(body, mask)),
        );
    };
    let (message, text) = words(error);
    let name = error.get("status").and_then(Value::as_str).unwrap_or_default();
    // Some statuses say it all: a 404 that nothing exists, a 409 to a create that it may be our own.
    let known = match status {
        401 | 404 | 408 => None,
        409 if origin.call != Call::Delete => None,
        400..=499 => known(origin, &text, None),
        _ => None,
    };
    let class = match (known, status) {
        (Some((_, class)), _) => class,
        (_, 404) => FailureClass::NotFound,
        (_, 401 | 403) => FailureClass::Permission,
        (_, 409) => FailureClass::Conflict,
        (_, 429) => exhausted(origin, &text).unwrap_or(FailureClass::Quota),
        // A name that is taken is a 409: a create does not fit into the state of something else.
        (_, 400) if name == "FAILED_PRECONDITION" && origin.call != Call::Create => {
            FailureClass::Conflict
        }
        (_, 408 | 500..=599) => FailureClass::Transient,
        (_, 400..=499) => FailureClass::BadRequest,
        _ => FailureClass::Garbage,
    };
    let told = format!("HTTP {status} {}: {}", shorten(name), shorten(&mask.apply(message)));
    Failure::new(class, advised(told, known))
}

/// The `error` of a finished operation, or of a queued resource (`google.rpc.Status`).
pub fn operation_failure(origin: Origin, error: &Value) -> Failure {
    let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
    let (message, text) = words(error);
    let known = known(origin, &text, Some(code));
    // A create that ran out of something ran out of capacity, unless its words tell of a quota.
    let otherwise = match origin.call {
        Call::Create => FailureClass::StockOut,
        Call::Delete | Call::Patch | Call::Read => FailureClass::Transient,
    };
    let class = match (known, code) {
        (Some((_, class)), _) => class,
        (_, 8) => exhausted(origin, &text).unwrap_or(otherwise),
        (_, 3) => FailureClass::BadRequest,
        (_, 5) => FailureClass::NotFound,
        (_, 6 | 9 | 10) => FailureClass::Conflict,
        (_, 7 | 16) => FailureClass::Permission,
        _ => FailureClass::Transient,
    };
    let told = format!("operation failed with code {code}: {}", shorten(message));
    Failure::new(class, advised(told, known))
}

/// The message of an error, and all its words: a quota's name may stand in the details alone.
fn words(error: &Value) -> (&str, String) {
    let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
    let details = error.get("details").map(Value::to_string).unwrap_or_default();
    (message, format!("{message} {details}"))
}

/// The first text of the table that fits where the failure came from, and its class.
fn known(origin: Origin, text: &str, code: Option<i64>) -> Option<(&'static Text, FailureClass)> {
    texts::matching(text)
        .filter(|row| matches!(row.section, Section::Api | Section::Access))
        .filter_map(|row| {
            let class = FailureClass::ALL.into_iter().find(|class| class.name() == row.class);
            class.map(|class| (row, class))
        })
        .find(|(row, class)| origin.fits(row, *class, code))
}

/// Tells the reasons of RESOURCE_EXHAUSTED apart where the table does not.
fn exhausted(origin: Origin, text: &str) -> Option<FailureClass> {
    let lower = text.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|words| lower.contains(words));
    if says(&["requests per minute", "/qps/", "rate limit"]) {
        Some(FailureClass::Rate)
    } else if origin.call == Call::Create
        && says(&["no more capacity", "resources are insufficient"])
    {
        Some(FailureClass::StockOut)
    } else if says(&["quota"]) {
        Some(FailureClass::Quota)
    } else {
        None
    }
}

/// With what to do about it, where that takes an operator.
fn advised(told: String, known: Option<(&Text, FailureClass)>) -> String {
    match known {
        Some((row, class)) if row.action == Action::Hold || class == FailureClass::ClosedQueue => {
            let end = if told.ends_with(['.', '!', '?', '…']) { "" } else { "." };
            format!("{told}{end} {}", row.advice.trim_end_matches('.'))
        }
        _ => told,
    }
}

/// Whether a call was refused because the caller may not use the quota project that it named
/// (`google.rpc.ErrorInfo`).
pub fn quota_project_denied(status: u16, body: &[u8]) -> bool {
    let json: Option<Value> = if status == 403 { serde_json::from_slice(body).ok() } else { None };
    let details = json.as_ref().and_then(|j| j.pointer("/error/details")).and_then(Value::as_array);
    details
        .into_iter()
        .flatten()
        .any(|detail| detail.get("reason").is_some_and(|reason| reason == "USER_PROJECT_DENIED"))
}

/// The beginning of an answer that is not what was expected, on one line.
pub fn excerpt(body: &[u8], mask: &Mask) -> String {
    let text = mask.apply(&String::from_utf8_lossy(&body[..body.len().min(EXCERPT_READ)]));
    let line = plain(&text.chars().take(EXCERPT_MAX).collect::<String>());
    if line.trim().is_empty() {
        format!("{} bytes", body.len())
    } else {
        format!("{:?}", line.trim())
    }
}

/// On one line, and not longer than a log line should be: what a server says must not write lines
/// of its own.
fn shorten(message: &str) -> String {
    let line = plain(&message.chars().take(MESSAGE_MAX).collect::<String>());
    if message.chars().nth(MESSAGE_MAX).is_some() { format!("{line}…") } else { line }
}

#[cfg(test)]
mod tests {
    use super::super::origin::By;
    use super::*;
    use serde_json::json;

    const CREATE: Origin = Origin { call: Call::Create, by: By::AtOnce, spot: false };
    const CREATED: Origin = Origin { call: Call::Create, by: By::Operation, spot: false };
    const CREATED_SPOT: Origin = Origin { call: Call::Create, by: By::Operation, spot: true };
    const DELETED: Origin = Origin { call: Call::Delete, by: By::Operation, spot: false };

    #[track_caller]
    fn operation(origin: Origin, code: i64, message: &str, wanted: FailureClass) {
        let failure = operation_failure(origin, &json!({"code": code, "message": message}));
        assert_eq!(failure.class, wanted, "{origin:?} {message}");
    }

    #[test]
    fn operations_end_in_the_classes_of_the_texts_that_were_seen() {
        use FailureClass::*;
        let reserved = "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 1]";
        let preempted = "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 1]";
        for (code, message, wanted) in [
            (
                8,
                "There is no more capacity in the zone \"us-central1-c\"; you can try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x9f48947a7d57c8d]",
                StockOut,
            ),
            (8, reserved, StockOut),
            (9, reserved, StockOut),
            (14, "insufficient capacity", StockOut),
            (8, "Resource exhausted", StockOut),
            (3, preempted, PreemptedInCreation),
            (
                3,
                "CloudTpu received an invalid AcceleratorType, \"v3-8\" for zone \"z\". Valid values are \"v2-8, \".",
                BadRequest,
            ),
            (
                8,
                "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 20800 in region us-central2",
                Quota,
            ),
            (8, "Quota 'IN_USE_ADDRESSES' exceeded.  Limit: 8.0 in region europe-west3.", Quota),
            (6, "Resource already exists", Conflict),
            (14, "the service is unavailable", Transient),
        ] {
            operation(CREATED, code, message, wanted);
            operation(CREATED_SPOT, code, message, wanted);
        }
    }

    #[test]
    fn codes_5_and_13_mean_capacity_at_the_end_of_a_create_alone() {
        use FailureClass::*;
        let (gone, internal) = ("Reservation not found", "an internal error has occurred");
        operation(CREATED_SPOT, 5, gone, StockOut);
        operation(CREATED, 5, gone, NotFound);
        operation(CREATED, 13, internal, StockOut);
        operation(CREATED_SPOT, 13, internal, StockOut);
        operation(
            CREATED_SPOT,
            5,
            "Resource 'projects/p/global/networks/n' was not found",
            NotFound,
        );
        operation(CREATED_SPOT, 14, internal, Transient);
        operation(DELETED, 5, gone, NotFound);
        operation(DELETED, 13, internal, Transient);
        for (origin, status) in [(CREATE, 404), (Origin::DELETE, 404), (Origin::READ, 404)] {
            http(origin, status, error(status, "NOT_FOUND", gone), NotFound);
        }
        for origin in [CREATE, Origin { spot: true, ..CREATE }, Origin::DELETE, Origin::READ] {
            http(origin, 500, error(500, "INTERNAL", internal), Transient);
        }
    }

    #[test]
    fn what_no_words_tell_of_follows_from_code_and_call() {
        use FailureClass::*;
        operation(DELETED, 8, "There is no more capacity in the zone", Transient);
        operation(DELETED, 8, "Quota 'x' exceeded", Quota);
        operation(DELETED, 3, "update is not supported while in state PREEMPTED", BadRequest);
        operation(DELETED, 9, "Resource 'projects/p/locations/z/nodes/n' was not found", Conflict);
        operation(CREATED, 3, "network 'n' already exists", BadRequest);
        http(CREATE, 400, error(400, "FAILED_PRECONDITION", "m"), BadRequest);
        http(Origin::DELETE, 400, error(400, "FAILED_PRECONDITION", "m"), Conflict);
        http(Origin::READ, 429, error(429, "RESOURCE_EXHAUSTED", "m"), Quota);
        http(CREATE, 302, error(302, "FOUND", "insufficient capacity"), Garbage);
    }

    #[track_caller]
    fn http(origin: Origin, status: u16, body: Value, wanted: FailureClass) {
        let failure = http_failure(origin, status, body.to_string().as_bytes());
        assert_eq!(failure.class, wanted, "{origin:?} {body}");
    }

    fn error(code: u16, status: &str, message: &str) -> Value {
        json!({"error": {"code": code, "status": status, "message": message}})
    }

    #[test]
    fn answers_end_in_the_classes_of_the_texts_that_were_seen() {
        use FailureClass::*;
        let all = [CREATE, Origin::DELETE, Origin::READ];
        for (status, name, message, wanted) in [
            (
                429,
                "RESOURCE_EXHAUSTED",
                "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5.",
                Quota,
            ),
            (
                429,
                "RESOURCE_EXHAUSTED",
                "Quota exceeded for quota metric 'x' and limit 'Maximum number of CreateNode requests per minute' of tpu.googleapis.com/qps/create",
                Rate,
            ),
            (404, "NOT_FOUND", "Resource 'projects/p/locations/z/nodes/n' was not found", NotFound),
            (409, "ALREADY_EXISTS", "Resource already exists", Conflict),
            (
                403,
                "PERMISSION_DENIED",
                "Location us-east1-d is not found or access is unauthorized.",
                BadRequest,
            ),
            (
                403,
                "PERMISSION_DENIED",
                "Permission 'tpu.nodes.create' denied on resource",
                Permission,
            ),
            (
                403,
                "PERMISSION_DENIED",
                "This API method requires billing to be enabled. Please enable billing on project #1",
                Billing,
            ),
            (
                403,
                "PERMISSION_DENIED",
                "Cloud TPU API has not been used in project 1 before or it is disabled. Enable it",
                ApiDisabled,
            ),
            (401, "UNAUTHENTICATED", "Request had invalid authentication credentials.", Permission),
            (400, "INVALID_ARGUMENT", "Invalid JSON payload received.", BadRequest),
            (503, "UNAVAILABLE", "insufficient capacity", Transient),
        ] {
            for origin in all {
                http(origin, status, error(status, name, message), wanted);
            }
        }
        let closed = "User does not have permission to submit requests into this queue for accelerator type v5p-8 in location us-east1-d.";
        http(CREATE, 403, error(403, "PERMISSION_DENIED", closed), ClosedQueue);
        let stuck = "DeleteQueuedResource is not supported when state is PROVISIONING";
        for (status, name) in [(400, "FAILED_PRECONDITION"), (409, "ABORTED")] {
            http(Origin::DELETE, status, error(status, name, stuck), Undeletable);
        }
        let active = "DeleteQueuedResource is not supported when state is ACTIVE (must be one of [ACCEPTED])";
        http(Origin::DELETE, 400, error(400, "INVALID_ARGUMENT", active), Conflict);
        let quota = json!([{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [
            {"description": "Quota 'TPUV2sPreemptiblePodPerProjectPerZoneForTPUAPI' exhausted. Limit 32 in zone europe-west4-a"}]}]);
        let mut detailed = error(429, "RESOURCE_EXHAUSTED", "exhausted");
        detailed["error"]["details"] = quota;
        http(CREATE, 429, detailed, Quota);
    }

    #[test]
    fn the_advice_of_the_table_follows_where_a_person_is_needed() {
        let told = |status: u16, message: &str| {
            http_failure(CREATE, status, error(status, "S", message).to_string().as_bytes()).message
        };
        assert_eq!(
            told(429, "Quota limit 'X' has been exceeded. Limit: 0 in region us-east5."),
            "HTTP 429 S: Quota limit 'X' has been exceeded. Limit: 0 in region us-east5. This project was never given this \
             type here; waiting won't help"
        );
        assert_eq!(
            told(403, "This API method requires billing to be enabled [EID: 1]"),
            "HTTP 403 S: This API method requires billing to be enabled [EID: 1]. Billing is off: the whole API is down for \
             the project"
        );
        assert!(
            told(403, "Cloud TPU API has not been used in project 1 before or it is disabled.")
                .ends_with("Enable the API named in the text")
        );
        assert!(
            told(403, "User does not have permission to submit requests")
                .ends_with("(quota may be granted elsewhere)")
        );
        // Time cures these.
        assert_eq!(told(429, "insufficient capacity"), "HTTP 429 S: insufficient capacity");
        assert_eq!(
            told(429, "Quota limit 'X' has been exceeded. Limit: 16"),
            "HTTP 429 S: Quota limit 'X' has been exceeded. Limit: 16"
        );
        let long = told(403, &format!("requires billing to be enabled {}", "x".repeat(700)));
        assert!(long.contains("x… Billing is off") && !long.contains('\n'), "{long}");
    }

    #[test]
    fn an_answer_writes_no_lines_of_its_own() {
        let failure = operation_failure(
            CREATED,
            &json!({"code": 14, "message": "a\n2026 ERROR forged \u{1b}[31m"}),
        );
        assert!(!failure.message.chars().any(char::is_control), "{:?}", failure.message);
    }

    #[test]
    fn what_is_secret_is_masked_before_the_message_is_shortened_and_after_it_is_classified() {
        let value = "there is no more capacity for hunter2".repeat(40);
        let request = json!({"metadata": {"k": value}});
        let mask = Mask::of(Some(&request));
        let message = format!("{}: {value}", "x".repeat(590));
        let answer =
            json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": message}})
                .to_string();
        let failure = http_failure_masked(CREATE, 429, answer.as_bytes(), &mask);
        assert_eq!(failure.class, FailureClass::StockOut, "classified by the words that came");
        assert!(failure.message.ends_with("x: [metadat…"), "{failure}");
        let page = format!("<html>{value}</html>");
        let failure = http_failure_masked(CREATE, 400, page.as_bytes(), &mask);
        assert!(failure.message.ends_with("\"<html>[metadata value]</html>\""), "{failure}");
    }

    #[test]
    fn a_quota_project_that_may_not_be_used_is_known_by_its_reason() {
        let denied = json!({"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "Caller does not have required permission to use project q.",
            "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "USER_PROJECT_DENIED", "domain": "googleapis.com"}]}});
        assert!(quota_project_denied(403, denied.to_string().as_bytes()));
        assert!(!quota_project_denied(400, denied.to_string().as_bytes()));
        let other = denied.to_string().replace("USER_PROJECT_DENIED", "SERVICE_DISABLED");
        assert!(!quota_project_denied(403, other.as_bytes()));
        assert!(!quota_project_denied(403, b"USER_PROJECT_DENIED"));
    }

    #[test]
    fn what_is_not_an_api_error_is_never_taken_for_one() {
        assert_eq!(
            http_failure(Origin::READ, 404, b"<html>not here</html>").class,
            FailureClass::Garbage
        );
        assert_eq!(http_failure(Origin::READ, 302, b"").class, FailureClass::Garbage);
        assert_eq!(
            http_failure(Origin::READ, 502, b"<html>bad gateway</html>").class,
            FailureClass::Transient
        );
        assert!(
            http_failure(Origin::READ, 404, b"<html>\nnot here")
                .message
                .contains("<html> not here")
        );
    }
}
