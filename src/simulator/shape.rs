//! The shapes of the API: what a create accepts, what a read returns.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub use super::answer::{Answer, error, not_found};
use super::fields;
use super::things::{Node, Operation};
use crate::resource::limits;

/// RFC 3339 with nine digits, as the API writes times.
pub fn time(at: Timestamp) -> String {
    format!("{at:.9}")
}

/// Checks the body of a create as Google does.
pub fn check_node(
    body: &Value,
    at: &str,
    alpha: bool,
    zone: &str,
) -> Result<Map<String, Value>, Box<Answer>> {
    let bad = |message: String| Box::new(error(400, message));
    let body = body
        .as_object()
        .ok_or_else(|| bad(format!("Invalid JSON payload received. '{at}' is not an object.")))?;
    fields::check(body, at, alpha)?;
    let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
    let (kind, config) = (text("acceleratorType"), body.get("acceleratorConfig"));
    match (kind.is_empty(), config) {
        (false, Some(_)) => {
            return Err(bad(
                "Only one of accelerator_type and accelerator_config may be set.".into()
            ));
        }
        (true, None) => {
            return Err(bad(
                "Cloud TPU received a bad request. accelerator_type is required [EID: 0x2]".into(),
            ));
        }
        (false, None) if cores(kind).is_none() => {
            let message = format!(
                "CloudTpu received an invalid AcceleratorType, \"{kind}\" for zone \"{zone}\". Valid values are \"v2-8, v4-8, v4-16, \"."
            );
            return Err(bad(message));
        }
        _ => {}
    }
    if text("runtimeVersion").is_empty() {
        return Err(bad(
            "Cloud TPU received a bad request. runtime_version is required [EID: 0x3]".into(),
        ));
    }
    if body.contains_key("networkConfig") && body.contains_key("networkConfigs") {
        return Err(bad("Only one of network_config and network_configs may be set.".into()));
    }
    let region = zone.rsplit_once('-').map_or(zone, |(region, _)| region);
    let several = body.get("networkConfigs").and_then(Value::as_array).into_iter().flatten();
    for network in body.get("networkConfig").into_iter().chain(several) {
        let subnetwork = network.get("subnetwork").and_then(Value::as_str).unwrap_or_default();
        let there = subnetwork.split_once("regions/").and_then(|(_, rest)| rest.split('/').next());
        if there.is_some_and(|there| there != region) {
            return Err(bad(format!(
                "Cloud TPU received a bad request. Subnetwork \"{subnetwork}\" is not in {region} [EID: 0x4]"
            )));
        }
    }
    if !text("cidrBlock").is_empty() && !text("cidrBlock").ends_with("/29") {
        return Err(bad(format!("Invalid CIDR block {:?}: it must be a /29.", text("cidrBlock"))));
    }
    for (key, value) in body.get("labels").and_then(Value::as_object).into_iter().flatten() {
        let value = value
            .as_str()
            .ok_or_else(|| bad(format!("Invalid value at '{at}.labels[0].value' (TYPE_STRING)")))?;
        limits::label(key, value).map_err(|why| bad(format!("Invalid label: {why}")))?;
    }
    let mut total = 0;
    for (key, value) in body.get("metadata").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().ok_or_else(|| {
            bad(format!("Invalid value at '{at}.metadata[0].value' (TYPE_STRING)"))
        })?;
        total += key.len() + value.len();
        if value.len() > 262_144 || total > 524_288 {
            return Err(bad(format!("Metadata {key:?} is too large.")));
        }
    }
    for flag in ["spot", "preemptible", "reserved"] {
        if body.get("schedulingConfig").and_then(|s| s.get(flag)).is_some_and(|v| !v.is_boolean()) {
            return Err(bad(format!(
                "Invalid value at '{at}.scheduling_config.{flag}' (TYPE_BOOL)"
            )));
        }
    }
    Ok(fields::kept(body))
}

/// Whether an id is allowed for a node.
pub fn node_id_fits(id: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !id.is_empty()
        && id.len() <= 63
        && id.as_bytes()[0].is_ascii_lowercase()
        && id.bytes().all(fits)
        && !id.ends_with('-')
}

/// TensorCores (v2 to v5p) or chips (v5e, v6e) of an accelerator type, with the number that one
/// host has.
fn cores(kind: &str) -> Option<(u64, u64)> {
    let (family, count) = kind.rsplit_once('-')?;
    let count: u64 = count.parse().ok().filter(|n| *n > 0)?;
    match family {
        "v2" | "v3" | "v4" | "v5p" => Some((count, 8)),
        "v5litepod" | "v6e" if count <= 8 => Some((count, 8)),
        "v5litepod" | "v6e" => Some((count, 4)),
        _ => None,
    }
}

/// The number of workers.
pub fn workers(body: &Map<String, Value>) -> usize {
    let kind = body.get("acceleratorType").and_then(Value::as_str).unwrap_or("v4-8");
    cores(kind).map_or(1, |(count, host)| usize::try_from(count.div_ceil(host)).unwrap_or(1)).max(1)
}

/// A node as a read returns it: both accelerator fields, a derived range, endpoints.
pub fn node(node: &Node, name: &str, version: &str) -> Value {
    let mut body = node.body.clone();
    let kind = body.get("acceleratorType").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some((family, count)) = kind.rsplit_once('-') {
        let family =
            if family == "v5litepod" { "V5LITE_POD".to_owned() } else { family.to_uppercase() };
        let chips = count.parse::<u64>().unwrap_or(8) / 2;
        body.entry("acceleratorConfig").or_insert_with(
            || json!({"type": family, "topology": format!("2x2x{}", (chips / 4).max(1))}),
        );
    } else {
        body.insert("acceleratorType".into(), json!("v4-8"));
    }
    let octet = node.uid % 200;
    body.entry("cidrBlock").or_insert_with(|| json!(format!("10.{octet}.0.0/20")));
    let region = name
        .split('/')
        .nth(3)
        .and_then(|zone| zone.rsplit_once('-'))
        .map_or("", |(region, _)| region);
    // Also where the create named none.
    let subnetwork = format!("projects/p/regions/{region}/subnetworks/default");
    body.entry("networkConfig").or_insert_with(
        || json!({"network": "projects/p/global/networks/default", "subnetwork": subnetwork, "enableExternalIps": false}),
    );
    body.entry("serviceAccount")
        .or_insert_with(|| json!({"email": "1-compute@developer.gserviceaccount.com", "scope": ["https://www.googleapis.com/auth/cloud-platform"]}));
    body.entry("schedulingConfig").or_insert_with(|| json!({}));
    body.entry("shieldedInstanceConfig").or_insert_with(|| json!({}));
    body.insert("name".into(), json!(name));
    body.insert("id".into(), json!(node.uid.to_string()));
    body.insert("createTime".into(), json!(time(node.created)));
    body.insert("state".into(), json!(node.state));
    body.insert("apiVersion".into(), json!(node.made_by));
    if !matches!(node.state, "CREATING" | "DELETING" | "PREEMPTED" | "TERMINATED" | "STOPPED") {
        let endpoints = (0..node.attributes.len())
            .map(|i| json!({"ipAddress": format!("10.{octet}.0.{}", i + 2), "port": 8470, "accessConfig": {}}));
        body.insert("networkEndpoints".into(), endpoints.collect());
    }
    let optional = [
        ("health", node.health.clone().map(Value::from)),
        ("healthDescription", node.health_description.clone().map(Value::from)),
        ("upcomingMaintenance", node.upcoming.clone()),
        ("symptoms", (!node.symptoms.is_empty()).then(|| json!(node.symptoms))),
        ("queuedResource", node.queued_resource.clone().map(Value::from)),
        ("multisliceNode", node.multislice.then_some(Value::Bool(true))),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            body.insert(key.into(), value);
        }
    }
    fields::hide(&mut body, version);
    Value::Object(body)
}

/// An operation as a read returns it.
pub fn operation(operation: &Operation, version: &str) -> Value {
    let mut body = json!({
        "name": operation.name,
        "metadata": {
            "@type": format!("type.googleapis.com/google.cloud.tpu.{version}.OperationMetadata"),
            "createTime": time(operation.created),
            "target": operation.target,
            "verb": operation.verb,
            "cancelRequested": false,
            "apiVersion": version,
        },
        "done": operation.ended.is_some(),
    });
    if let Some(ended) = operation.ended {
        body["metadata"]["endTime"] = json!(time(ended));
        match &operation.error {
            Some(error) => body["error"] = error.clone(),
            None => {
                body["response"] = operation.response.clone();
                if body["response"].get("@type").is_none() {
                    body["response"]["@type"] =
                        json!(format!("type.googleapis.com/google.cloud.tpu.{version}.Node"));
                }
            }
        }
    }
    body
}
