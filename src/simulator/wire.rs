//! A request as the HTTP skin took it apart, and what all answers share.

use std::collections::BTreeMap;

use serde_json::Value;

use super::cloud::Cloud;
use super::shape::{self, Answer, error, not_found};

/// One request, as the HTTP skin took it apart.
#[derive(Debug)]
pub struct Request<'a> {
    /// GET, POST, PATCH or DELETE.
    pub method: &'a str,
    /// Path without a leading slash: `v2/projects/…`.
    pub path: &'a str,
    /// Query parameters.
    pub query: &'a BTreeMap<String, String>,
    /// Body, if any.
    pub body: Option<Value>,
}

impl Request<'_> {
    pub(super) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

/// A resource path taken apart.
pub(super) struct Place<'a> {
    pub version: &'a str,
    pub project: &'a str,
    pub zone: &'a str,
}

impl Place<'_> {
    pub fn alpha(&self) -> bool {
        self.version == "v2alpha1"
    }

    pub fn parent(&self) -> String {
        format!("projects/{}/locations/{}", self.project, self.zone)
    }

    pub fn node(&self, zone: &str, id: &str) -> String {
        format!("projects/{}/locations/{zone}/nodes/{id}", self.project)
    }
}

/// Query parameters that every method takes.
const SYSTEM_PARAMETERS: [&str; 12] = [
    "$alt",
    "alt",
    "$.xgafv",
    "access_token",
    "callback",
    "fields",
    "key",
    "oauth_token",
    "prettyPrint",
    "quotaUser",
    "uploadType",
    "upload_protocol",
];

/// A raw answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl Reply {
    /// An answer without headers.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Reply { status, headers: Vec::new(), body: body.into() }
    }
}

pub(super) fn check_parameters(request: &Request, known: &[&str]) -> Option<Answer> {
    let fits = |name: &String| {
        known.contains(&name.as_str()) || SYSTEM_PARAMETERS.contains(&name.as_str())
    };
    request.query.keys().find(|name| !fits(name)).map(|name| {
        error(400, format!("Invalid JSON payload received. Unknown name \"{name}\": Cannot bind query parameter. Field '{name}' could not be found in request message."))
    })
}

/// The page of a listing that a request asks for, of at most so many entries, and the token of the
/// next one.
pub(super) fn page<'a, T>(
    all: &'a [T],
    request: &Request,
    most: Option<usize>,
) -> Result<(&'a [T], Option<Value>), Box<Answer>> {
    let start = match request.parameter("pageToken") {
        "" => Some(0),
        token => token.strip_prefix("page-").and_then(|t| t.parse::<usize>().ok()),
    };
    let Some(start) = start else {
        return Err(Box::new(error(400, "The page token is invalid.")));
    };
    let asked = request.parameter("pageSize").parse::<usize>().unwrap_or(0);
    let size = if asked == 0 { 500 } else { asked }.min(most.unwrap_or(500));
    let end = (start + size).min(all.len());
    let next = (end < all.len()).then(|| Value::from(format!("page-{end}")));
    Ok((all.get(start..end).unwrap_or_default(), next))
}

pub(super) fn answer_operation(cloud: &Cloud, place: &Place, name: &str) -> Answer {
    match cloud.operations.get(name) {
        Some(operation) => (200, shape::operation(operation, place.version)),
        None => not_found(name),
    }
}
