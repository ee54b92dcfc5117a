//! Cloud Storage's XML API, as far as a listing needs it: `GET /bucket?list-type=2&prefix=…&delimiter=/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::Timestamp;

use super::cloud::Cloud;

/// One object.
#[derive(Debug, Clone)]
pub struct Object {
    /// Bytes.
    pub size: u64,
    /// Last update.
    pub updated: Timestamp,
}

/// One page holds everything: simulated buckets are small.
pub fn list(cloud: &Cloud, bucket: &str, query: &BTreeMap<String, String>) -> String {
    let get = |key: &str| query.get(key).map_or("", String::as_str);
    let (prefix, delimiter) = (get("prefix"), get("delimiter"));
    let mut folders = BTreeSet::new();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
    );
    let base = format!("{bucket}/");
    for (name, object) in cloud.objects.range(base.clone()..) {
        let Some(key) = name.strip_prefix(&base) else { break };
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
            Some(cut) => {
                folders.insert(&key[..prefix.len() + cut + delimiter.len()]);
            }
            // Writing to a String never fails.
            None => {
                let _ = write!(
                    xml,
                    "<Contents><Key>{key}</Key><LastModified>{:.3}</LastModified><ETag>\"1\"</ETag><Size>{}</Size></Contents>",
                    object.updated, object.size
                );
            }
        }
    }
    for folder in folders {
        let _ = write!(xml, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
    }
    xml.push_str("</ListBucketResult>");
    xml
}
