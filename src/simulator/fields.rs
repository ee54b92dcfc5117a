//! The fields of a node in each version: which a create takes, and which a read shows.
//! Source: discovery documents of v2 and v2alpha1, revision 20261001.

use serde_json::{Map, Value, json};

use super::answer::{Answer, error};

const V2_FIELDS: [&str; 27] = [
    "name",
    "id",
    "description",
    "acceleratorType",
    "acceleratorConfig",
    "runtimeVersion",
    "state",
    "health",
    "healthDescription",
    "symptoms",
    "upcomingMaintenance",
    "createTime",
    "apiVersion",
    "schedulingConfig",
    "networkConfig",
    "networkConfigs",
    "networkEndpoints",
    "cidrBlock",
    "serviceAccount",
    "dataDisks",
    "labels",
    "metadata",
    "tags",
    "shieldedInstanceConfig",
    "bootDiskConfig",
    "multisliceNode",
    "queuedResource",
];
const ALPHA_FIELDS: [&str; 1] = ["autocheckpointEnabled"];
/// Not in v2alpha1.
const V2_ALONE: [&str; 1] = ["protectionTier"];

/// Fields of nested messages, and of lists of them; those marked by `+` exist in v2alpha1 alone.
const NESTED: [(&str, &[&str]); 7] = [
    ("acceleratorConfig", &["type", "topology"]),
    (
        "schedulingConfig",
        &[
            "preemptible",
            "reserved",
            "spot",
            "+provisioningModel",
            "+reservationName",
            "+terminationTimestamp",
        ],
    ),
    (
        "networkConfig",
        &["network", "subnetwork", "enableExternalIps", "canIpForward", "queueCount"],
    ),
    ("serviceAccount", &["email", "scope"]),
    ("shieldedInstanceConfig", &["enableSecureBoot"]),
    ("dataDisks", &["sourceDisk", "mode", "+workerIds"]),
    (
        "bootDiskConfig",
        &[
            "customerEncryptionKey",
            "+diskSizeGb",
            "+enableConfidentialCompute",
            "+provisionedIops",
            "+provisionedThroughput",
            "+sourceImage",
            "+storagePool",
        ],
    ),
];

/// Output-only fields of the input are ignored (AIP-203).
const IGNORED: [&str; 13] = [
    "name",
    "id",
    "state",
    "health",
    "healthDescription",
    "symptoms",
    "upcomingMaintenance",
    "createTime",
    "apiVersion",
    "networkEndpoints",
    "multisliceNode",
    "queuedResource",
    "protectionTier",
];

pub(super) fn unknown(name: &str, at: &str) -> Answer {
    let message = format!(
        "Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find field."
    );
    let (status, mut body) = error(400, message.clone());
    let violations = json!([{"field": at, "description": message}]);
    body["error"]["details"] = json!([{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]);
    (status, body)
}

/// Refuses fields that the version does not have.
pub(super) fn check(body: &Map<String, Value>, at: &str, alpha: bool) -> Result<(), Box<Answer>> {
    let of_version = |name: &str| {
        let one = if alpha { ALPHA_FIELDS.contains(&name) } else { V2_ALONE.contains(&name) };
        one || V2_FIELDS.contains(&name)
    };
    for (name, value) in body {
        if !of_version(name) {
            return Err(Box::new(unknown(name, at)));
        }
        let Some((_, fields)) = NESTED.iter().find(|(nested, _)| nested == name) else { continue };
        let fits = |key: &&String| {
            fields.iter().any(|f| f == key || alpha && f.strip_prefix('+') == Some(key))
        };
        let list = std::slice::from_ref(value);
        for inner in value.as_array().map_or(list, Vec::as_slice) {
            let Some(inner) = inner.as_object() else {
                return Err(Box::new(error(400, format!("Invalid value at '{at}.{name}'"))));
            };
            if let Some(key) = inner.keys().find(|key| !fits(key)) {
                return Err(Box::new(unknown(key, &format!("{at}.{name}"))));
            }
        }
    }
    Ok(())
}

/// The fields that a create keeps.
pub(super) fn kept(body: &Map<String, Value>) -> Map<String, Value> {
    let mut kept = body.clone();
    kept.retain(|name, _| !IGNORED.contains(&name.as_str()));
    kept
}

/// Takes away what a version does not show.
pub(super) fn hide(body: &mut Map<String, Value>, version: &str) {
    if version == "v2alpha1" {
        return;
    }
    body.retain(|name, _| !ALPHA_FIELDS.contains(&name.as_str()));
    for (name, fields) in NESTED {
        let Some(value) = body.get_mut(name) else { continue };
        let hidden = |key: &str| fields.iter().any(|field| field.strip_prefix('+') == Some(key));
        match value {
            Value::Object(inner) => inner.retain(|key, _| !hidden(key)),
            Value::Array(all) => {
                for inner in all.iter_mut().filter_map(Value::as_object_mut) {
                    inner.retain(|key, _| !hidden(key));
                }
            }
            _ => {}
        }
    }
    if body.get("bootDiskConfig").is_some_and(|disk| *disk == json!({})) {
        body.remove("bootDiskConfig");
    }
    if version == "v1" {
        let later = [
            "id",
            "metadata",
            "tags",
            "queuedResource",
            "acceleratorConfig",
            "networkConfig",
            "runtimeVersion",
        ];
        body.retain(|name, _| !later.contains(&name.as_str()));
    } else {
        body.insert("protectionTier".into(), json!("STANDARD"));
    }
}
