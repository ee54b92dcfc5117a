//! Answers of Google's APIs, errors among them.

use serde_json::{Value, json};

/// An answer: HTTP status and JSON body.
pub type Answer = (u16, Value);

/// A Google error body.
pub fn error(status: u16, message: impl Into<String>) -> Answer {
    let name = match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        409 => "ALREADY_EXISTS",
        429 => "RESOURCE_EXHAUSTED",
        501 => "UNIMPLEMENTED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    };
    (status, json!({"error": {"code": status, "message": message.into(), "status": name}}))
}

/// 404 for a resource, with the detail that the API sends.
pub fn not_found(resource: &str) -> Answer {
    let (status, mut body) = error(404, format!("Resource '{resource}' was not found"));
    body["error"]["details"] =
        json!([{"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": resource}]);
    (status, body)
}
