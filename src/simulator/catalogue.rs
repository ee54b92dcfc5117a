//! The offers of a zone: accelerator types and runtime versions.

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::shape::{Answer, not_found};
use super::wire::Place;

const TYPES: [&str; 10] = [
    "v2-8",
    "v3-8",
    "v4-8",
    "v4-16",
    "v4-32",
    "v5litepod-8",
    "v5litepod-16",
    "v5p-8",
    "v6e-8",
    "v6e-16",
];
const VERSIONS: [&str; 5] = [
    "tpu-ubuntu2204-base",
    "tpu-vm-v4-base",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
];

/// The name of a collection, the field that holds a name, and all names.
type Collection = (&'static str, &'static str, &'static [&'static str]);

fn collection(name: &str) -> Option<Collection> {
    match name {
        "acceleratorTypes" => Some(("acceleratorTypes", "type", &TYPES)),
        "runtimeVersions" => Some(("runtimeVersions", "version", &VERSIONS)),
        _ => None,
    }
}

/// Answers a GET of a collection, or of one entry; none where it is another call.
pub(super) fn answer(cloud: &Cloud, place: &Place, rest: &[&str]) -> Option<Answer> {
    let (path, field, all) = collection(rest.first()?)?;
    let offered = |name: &str| !cloud.withdrawn.contains(&(place.zone.to_owned(), name.to_owned()));
    let full = |name: &str| format!("{}/{path}/{name}", place.parent());
    let entry = |name: &str| json!({"name": full(name), field: name});
    match rest {
        [_] => {
            let entries: Vec<Value> =
                all.iter().filter(|name| offered(name)).map(|name| entry(name)).collect();
            Some((200, json!({path: entries})))
        }
        [_, name] if all.contains(name) && offered(name) => Some((200, entry(name))),
        [_, name] => Some(not_found(&full(name))),
        _ => None,
    }
}
