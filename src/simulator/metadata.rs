//! The metadata server of one worker, under `/metadata/ZONE/NODE/WORKER/computeMetadata/v1/…`: what
//! a supervisor reads and reports.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::{Value, json};

use super::cloud::Cloud;
use crate::model::ids::RUN_KEY;

/// Where a VM's service account gets its access token.
pub const TOKEN_PATH: &str = "computeMetadata/v1/instance/service-accounts/default/token";
/// Where the name of that account is.
pub const EMAIL_PATH: &str = "computeMetadata/v1/instance/service-accounts/default/email";
/// The account of the machine that the watchdog runs on.
pub const EMAIL: &str = "tpu-watchdog@simulated.iam.gserviceaccount.com";
/// The token that is given there: worth nothing anywhere else.
pub const TOKEN: &str = "simulated-access-token";

/// The answer at [`TOKEN_PATH`].
pub fn token() -> Value {
    json!({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})
}

/// The ETag of a value: another one for another value.
pub fn etag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Answers as the metadata server does: status and text.
pub fn handle(cloud: &mut Cloud, method: &str, path: &str, body: &str) -> (u16, String) {
    let missing = (404, String::new());
    let parts: Vec<&str> = path.split('/').collect();
    let [zone, node, worker, "computeMetadata", "v1", "instance", rest @ ..] = &parts[..] else {
        return missing;
    };
    let address = cloud.host_address.clone();
    let Some(found) = cloud.nodes.get_mut(&((*zone).to_owned(), (*node).to_owned())) else {
        return missing;
    };
    let Some(attributes) = worker.parse::<usize>().ok().and_then(|w| found.attributes.get_mut(w))
    else {
        return missing;
    };
    match (method, rest) {
        ("PUT", ["guest-attributes", namespace, key]) => {
            attributes.insert(format!("{namespace}/{key}"), body.to_owned());
            (200, String::new())
        }
        ("GET", ["preempted"]) => {
            (200, if found.run.announced { "TRUE" } else { "FALSE" }.to_owned())
        }
        // unverified: with recursive=true&alt=json instance/upcoming-maintenance answers as one JSON text on a TPU VM.
        // settled by: curl -H 'Metadata-Flavor: Google' 'http://metadata/computeMetadata/v1/instance/upcoming-maintenance?recursive=true&alt=json', with a notice
        ("GET", ["upcoming-maintenance"]) => {
            let none = json!({"error": "no notifications have been received yet, try again later"});
            (200, found.upcoming.as_ref().unwrap_or(&none).to_string())
        }
        ("GET", ["service-accounts", "default", "token"]) => (200, token().to_string()),
        ("GET", ["attributes", "agent-worker-number"]) => (200, (*worker).to_owned()),
        ("GET", ["attributes", "worker-network-endpoints"]) => {
            let all: Vec<String> = (0..found.attributes.len())
                .map(|i| match &address {
                    Some(address) => format!("w-{i}:uid:{address}"),
                    None => format!("w-{i}:uid:127.0.0.{}", i + 2),
                })
                .collect();
            (200, all.join(","))
        }
        ("GET", ["attributes", key]) => {
            let (uid, metadata) = (found.uid, found.body.get("metadata"));
            let Some(value) = metadata.and_then(|m| m.get(key)).and_then(Value::as_str) else {
                return missing;
            };
            let value = value.to_owned();
            match cloud.first_orders.as_mut().filter(|_| *key == RUN_KEY) {
                Some(orders) => (200, orders.entry(uid).or_insert(value).clone()),
                None => (200, value),
            }
        }
        _ => missing,
    }
}
