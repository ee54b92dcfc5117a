//! Sorts failed calls by the texts that the Cloud TPU API really sends.
//!
//! Stock-out and quota share code 8 (RESOURCE_EXHAUSTED): they are told apart by where the error
//! came from (a synchronous 429, or an operation), by a `QuotaFailure` detail, and by their words.

use serde_json::Value;

use crate::model::beacon::plain;
use crate::model::failure::{Failure, FailureClass};
use crate::resource::mask::Mask;

/// Longest message that is kept of an answer.
const MESSAGE_MAX: usize = 600;
/// Longest beginning that is shown of an answer that is no API error.
const EXCERPT_MAX: usize = 120;
/// Of which this much is looked through for what must not be shown.
const EXCERPT_READ: usize = 4 << 10;

/// An HTTP answer that is not a success.
pub fn http_failure(status: u16, body: &[u8]) -> Failure {
    http_failure_masked(status, body, &Mask::default())
}

/// An HTTP answer that is not a success, told without what the request keeps secret. Its class is
/// that of the whole text.
pub fn http_failure_masked(status: u16, body: &[u8], mask: &Mask) -> Failure {
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
    let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
    let name = error.get("status").and_then(Value::as_str).unwrap_or_default();
    let details = error.get("details").map(Value::to_string).unwrap_or_default();
    let text = format!("{message} {details}");
    let class = match status {
        404 => FailureClass::NotFound,
        401 | 403 => FailureClass::Permission,
        409 => FailureClass::Conflict,
        429 => exhausted(&text, FailureClass::Quota),
        400 if preempted(message) => FailureClass::PreemptedInCreation,
        400 if name == "FAILED_PRECONDITION" => FailureClass::Conflict,
        400..=499 if status != 408 => FailureClass::BadRequest,
        408 | 500..=599 => FailureClass::Transient,
        _ => FailureClass::Garbage,
    };
    Failure::new(
        class,
        format!("HTTP {status} {}: {}", shorten(name), shorten(&mask.apply(message))),
    )
}

/// The `error` of a finished operation, or of a queued resource (`google.rpc.Status`).
pub fn operation_failure(error: &Value) -> Failure {
    let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
    let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
    let details = error.get("details").map(Value::to_string).unwrap_or_default();
    let lower = message.to_lowercase();
    let class = match code {
        _ if preempted(message) => FailureClass::PreemptedInCreation,
        _ if no_capacity(&lower) => FailureClass::StockOut,
        8 => exhausted(&format!("{message} {details}"), FailureClass::StockOut),
        // Refusals of Spot capacity in disguise, as operators saw them.
        5 if lower.contains("reservation not found") => FailureClass::StockOut,
        13 if lower.contains("internal error") => FailureClass::StockOut,
        3 => FailureClass::BadRequest,
        5 => FailureClass::NotFound,
        6 | 9 | 10 => FailureClass::Conflict,
        7 | 16 => FailureClass::Permission,
        _ => FailureClass::Transient,
    };
    Failure::new(class, format!("operation failed with code {code}: {}", shorten(message)))
}

fn exhausted(text: &str, otherwise: FailureClass) -> FailureClass {
    let lower = text.to_lowercase();
    if lower.contains("requests per minute")
        || lower.contains("/qps/")
        || lower.contains("rate limit")
    {
        FailureClass::Rate
    } else if no_capacity(&lower) {
        FailureClass::StockOut
    } else if lower.contains("quotafailure") || lower.contains("quota") {
        FailureClass::Quota
    } else {
        otherwise
    }
}

fn no_capacity(lower: &str) -> bool {
    ["no more capacity", "insufficient capacity", "insufficient reserved capacity"]
        .iter()
        .any(|words| lower.contains(words))
}

fn preempted(message: &str) -> bool {
    message.contains("not supported while in state PREEMPTED")
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
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn operation(code: i64, message: &str, wanted: FailureClass) {
        assert_eq!(
            operation_failure(&json!({"code": code, "message": message})).class,
            wanted,
            "{message}"
        );
    }

    #[test]
    fn operations_end_in_the_classes_of_the_texts_that_were_seen() {
        use FailureClass::*;
        operation(
            8,
            "There is no more capacity in the zone \"us-central1-c\"; you can try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x9f48947a7d57c8d]",
            StockOut,
        );
        operation(
            8,
            "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 1]",
            StockOut,
        );
        operation(
            9,
            "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 1]",
            StockOut,
        );
        operation(13, "an internal error has occurred", StockOut);
        operation(5, "Reservation not found", StockOut);
        operation(14, "insufficient capacity", StockOut);
        operation(
            3,
            "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 1]",
            PreemptedInCreation,
        );
        operation(
            3,
            "CloudTpu received an invalid AcceleratorType, \"v3-8\" for zone \"z\". Valid values are \"v2-8, \".",
            BadRequest,
        );
        operation(
            8,
            "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 20800 in region us-central2",
            Quota,
        );
        operation(14, "the service is unavailable", Transient);
    }

    #[track_caller]
    fn http(status: u16, body: Value, wanted: FailureClass) {
        assert_eq!(http_failure(status, body.to_string().as_bytes()).class, wanted, "{body}");
    }

    #[test]
    fn answers_end_in_the_classes_of_the_texts_that_were_seen() {
        use FailureClass::*;
        let error = |code: u16, status: &str, message: &str| json!({"error": {"code": code, "status": status, "message": message}});
        let e429 = |message: &str| error(429, "RESOURCE_EXHAUSTED", message);
        http(
            429,
            e429(
                "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5.",
            ),
            Quota,
        );
        http(
            429,
            e429(
                "Quota exceeded for quota metric 'x' and limit 'Maximum number of CreateNode requests per minute' of tpu.googleapis.com/qps/create",
            ),
            Rate,
        );
        let details =
            json!([{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []}]);
        http(
            429,
            json!({"error": {"code": 429, "message": "exhausted", "details": details}}),
            Quota,
        );
        http(
            404,
            error(404, "NOT_FOUND", "Resource 'projects/p/locations/z/nodes/n' was not found"),
            NotFound,
        );
        http(409, error(409, "ALREADY_EXISTS", "Resource already exists"), Conflict);
        http(
            403,
            error(
                403,
                "PERMISSION_DENIED",
                "Location us-east1-d is not found or access is unauthorized.",
            ),
            Permission,
        );
        http(400, error(400, "INVALID_ARGUMENT", "Invalid JSON payload received."), BadRequest);
        http(503, error(503, "UNAVAILABLE", "try later"), Transient);
    }

    #[test]
    fn an_answer_writes_no_lines_of_its_own() {
        let failure =
            operation_failure(&json!({"code": 14, "message": "a\n2026 ERROR forged \u{1b}[31m"}));
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
        let failure = http_failure_masked(429, answer.as_bytes(), &mask);
        assert_eq!(failure.class, FailureClass::StockOut, "classified by the words that came");
        assert!(failure.message.ends_with("x: [metadat…"), "{failure}");
        let page = format!("<html>{value}</html>");
        let failure = http_failure_masked(400, page.as_bytes(), &mask);
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
        assert_eq!(http_failure(404, b"<html>not here</html>").class, FailureClass::Garbage);
        assert_eq!(http_failure(302, b"").class, FailureClass::Garbage);
        assert_eq!(http_failure(502, b"<html>bad gateway</html>").class, FailureClass::Transient);
        assert!(http_failure(404, b"<html>\nnot here").message.contains("<html> not here"));
    }
}
