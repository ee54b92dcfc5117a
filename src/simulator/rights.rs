//! Permissions: which the caller lacks, what is refused for it, and what testIamPermissions answers
//! (Resource Manager v3 for a project, IAM v1 for a service account). And the quotas.

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::shape::{Answer, error};
use super::wire::Request;

const ACT_AS: &str = "iam.serviceAccounts.actAs";

/// Answers `testIamPermissions`; none where it is another call.
pub(super) fn answer(cloud: &Cloud, request: &Request) -> Option<Answer> {
    let segments: Vec<&str> = request.path.split('/').collect();
    let resource = match segments[..] {
        ["v3", "projects", resource] | ["v1", "projects", _, "serviceAccounts", resource] => {
            resource
        }
        _ => return None,
    };
    let ("POST", Some((_, "testIamPermissions"))) = (request.method, resource.rsplit_once(':'))
    else {
        return None;
    };
    let asked = request.body.as_ref().and_then(|body| body.get("permissions")?.as_array());
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else {
        return Some(error(400, "permissions is required."));
    };
    let granted: Vec<&Value> = asked
        .iter()
        .filter(|permission| permission.as_str().is_some_and(|p| !cloud.denied.contains(p)))
        .collect();
    // An empty list is left out of the JSON.
    Some((200, if granted.is_empty() { json!({}) } else { json!({"permissions": granted}) }))
}

/// Where a bucket is (`buckets.get` of the Cloud Storage JSON API).
pub(super) fn bucket(cloud: &Cloud, name: &str) -> Answer {
    const GET: &str = "storage.buckets.get";
    if cloud.denied.contains(GET) {
        return error(
            403,
            format!("The caller does not have {GET} access to the Google Cloud Storage bucket."),
        );
    }
    match cloud.bucket_regions.get(name) {
        Some(region) => (200, json!({"location": region.to_uppercase(), "locationType": "region"})),
        None => (200, json!({"location": "US", "locationType": "multi-region"})),
    }
}

/// Answers `quotaInfos.list` of the Cloud Quotas API v1.
pub(super) fn quota_infos(cloud: &Cloud) -> Answer {
    const READ: &str = "cloudquotas.quotas.get";
    if cloud.denied.contains(READ) {
        return error(
            403,
            format!("Permission '{READ}' denied on resource (or it may not exist)."),
        );
    }
    (200, json!({ "quotaInfos": cloud.quota_infos }))
}

/// The refusal of a call whose permission the caller lacks.
pub(super) fn refusal(
    cloud: &Cloud,
    request: &Request,
    rest: &[&str],
    zone: &str,
) -> Option<Answer> {
    if cloud.denied.is_empty() {
        return None;
    }
    let permission = permission(request.method, rest)?;
    if cloud.denied.contains(permission) {
        let resource = format!("locations/{zone}/{}", rest.join("/"));
        let text =
            format!("Permission '{permission}' denied on '{resource}' (or it may not exist).");
        return Some(error(403, text));
    }
    if permission == "tpu.nodes.create" && cloud.denied.contains(ACT_AS) {
        let account = request.body.as_ref().and_then(|body| body.pointer("/serviceAccount/email"));
        let account = account.and_then(Value::as_str).unwrap_or("default");
        return Some(error(
            403,
            format!(
                "The user does not have access to service account \"{account}\". Ask a project owner to grant you the \
                 iam.serviceAccountUser role on the service account."
            ),
        ));
    }
    None
}

/// The permission of a call, by <https://docs.cloud.google.com/iam/docs/roles-permissions/tpu>.
fn permission(method: &str, rest: &[&str]) -> Option<&'static str> {
    Some(match (method, rest) {
        ("GET", ["nodes"]) => "tpu.nodes.list",
        ("GET", ["nodes", _]) => "tpu.nodes.get",
        ("POST", ["nodes"]) => "tpu.nodes.create",
        ("DELETE", ["nodes", _]) => "tpu.nodes.delete",
        ("PATCH", ["nodes", _]) => "tpu.nodes.update",
        // unverified: queued resources have no permissions of their own, and go by those of nodes.
        // settled by: gcloud iam roles describe roles/tpu.admin
        ("GET", ["queuedResources"]) => "tpu.nodes.list",
        ("GET", ["queuedResources", _]) => "tpu.nodes.get",
        ("POST", ["queuedResources"]) => "tpu.nodes.create",
        ("DELETE", ["queuedResources", _]) => "tpu.nodes.delete",
        ("GET", ["operations"]) => "tpu.operations.list",
        ("GET", ["operations", _]) => "tpu.operations.get",
        ("GET", ["acceleratorTypes"]) => "tpu.acceleratortypes.list",
        ("GET", ["acceleratorTypes", _]) => "tpu.acceleratortypes.get",
        ("GET", ["runtimeVersions"]) => "tpu.runtimeversions.list",
        ("GET", ["runtimeVersions", _]) => "tpu.runtimeversions.get",
        _ => return None,
    })
}
