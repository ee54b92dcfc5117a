//! Cloud Storage's XML API: `GET /bucket?list-type=2&prefix=…&delimiter=/`, and `GET`, `PUT`,
//! `DELETE` of an object with the preconditions that Cloud Storage (`x-goog-if-generation-match`)
//! and S3 (`if-match`, `if-none-match: *`) know.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::cloud::Cloud;
use super::things::Object;
use super::wire::Reply;

/// `GET`, `PUT` or `DELETE` of `bucket/key`; `header` looks up a request's header.
pub fn object(
    cloud: &mut Cloud,
    method: &str,
    name: &str,
    header: impl Fn(&str) -> Option<String>,
    body: &[u8],
) -> Reply {
    let error = |status: u16, code: &str| {
        Reply::new(
            status,
            format!(
                "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
            ),
        )
    };
    let present = cloud.objects.get(name).cloned();
    match (method, present) {
        ("PUT", present) => {
            let generation = present.as_ref().map_or(0, |o| o.generation);
            let etag = present.as_ref().map(Object::etag);
            let refused = header("x-goog-if-generation-match")
                .is_some_and(|g| g != generation.to_string())
                || header("if-match").is_some_and(|wanted| Some(wanted) != etag)
                || header("if-none-match").is_some_and(|any| any == "*" && present.is_some());
            if refused {
                return error(412, "PreconditionFailed");
            }
            // A generation is never used again, whatever was deleted before.
            let generation =
                u64::try_from(cloud.now().as_microsecond()).unwrap_or(0).max(generation + 1);
            let object = Object {
                size: body.len() as u64,
                updated: cloud.now(),
                body: body.to_vec(),
                generation,
            };
            let reply = with_headers(Reply::new(200, Vec::new()), &object);
            cloud.objects.insert(name.to_owned(), object);
            reply
        }
        (_, None) => error(404, "NoSuchKey"),
        ("GET" | "HEAD", Some(object)) => {
            let unchanged = header("if-none-match").is_some_and(|etag| etag == object.etag());
            let reply = if unchanged {
                Reply::new(304, Vec::new())
            } else {
                Reply::new(200, object.body.clone())
            };
            with_headers(reply, &object)
        }
        ("DELETE", Some(_)) => {
            cloud.objects.remove(name);
            Reply::new(204, Vec::new())
        }
        _ => error(405, "MethodNotAllowed"),
    }
}

/// S3's `POST /bucket?delete`: each `<Key>` of the body.
pub fn delete_all(cloud: &mut Cloud, bucket: &str, body: &str) -> Reply {
    let mut answer = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><DeleteResult>");
    for key in body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
        cloud.objects.remove(&format!("{bucket}/{key}"));
        // Writing to a String never fails.
        let _ = write!(answer, "<Deleted><Key>{key}</Key></Deleted>");
    }
    answer.push_str("</DeleteResult>");
    Reply::new(200, answer)
}

fn with_headers(mut reply: Reply, object: &Object) -> Reply {
    let modified = object.updated.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    reply.headers.extend([
        ("etag", object.etag()),
        ("x-goog-generation", object.generation.to_string()),
        ("last-modified", modified),
    ]);
    reply
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
                    "<Contents><Key>{key}</Key><LastModified>{:.3}</LastModified><ETag>&quot;{:x}&quot;</ETag><Size>{}</Size></Contents>",
                    object.updated, object.generation, object.size
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
