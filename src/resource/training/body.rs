//! The body of a submission: the job's own specification, as it was read, with our labels.
//!
//! It is kept inside a node's specification, so that learning, limits and drift are the same for every
//! kind. Lossless: what is known to be output-only is taken out, and a field that this program never heard
//! of is sent again. Source of the output-only fields: discovery document of aiplatform v1.

use serde_json::{Map, Value, json};

use crate::model::ids::{OWNER_KEY, RUN_KEY};
use crate::model::spec::TRAINING_KEY;
use crate::model::submission::JobView;
use crate::model::training::{ATTEMPT_LABEL, LINEAGE_LABEL, NONCE_LABEL, Strategy, Training};

/// In there: the lineage. The other fields are the job's.
const LINEAGE: &str = "tpu-watchdog-lineage";

const OUTPUT_ONLY: [&str; 10] = [
    "name",
    "state",
    "createTime",
    "startTime",
    "endTime",
    "updateTime",
    "error",
    "webAccessUris",
    "satisfiesPzs",
    "satisfiesPzi",
];

/// A job in the form of a node, which a specification is learned from.
pub fn as_node(job: &JobView, slot: &str) -> Value {
    let mut body = job.raw.as_object().cloned().unwrap_or_default();
    let created = body.get("createTime").cloned();
    let mut labels = body.remove("labels").and_then(|labels| match labels {
        Value::Object(labels) => Some(labels),
        _ => None,
    });
    if let Some(labels) = &mut labels {
        labels
            .retain(|key, _| ![LINEAGE_LABEL, ATTEMPT_LABEL, NONCE_LABEL].contains(&key.as_str()));
    }
    for output in OUTPUT_ONLY {
        body.remove(output);
    }
    body.insert(LINEAGE.into(), json!(job.lineage()));
    let mut node = json!({
        "name": format!("projects/-/locations/{}/nodes/{slot}", job.region),
        "id": job.id,
        TRAINING_KEY: body,
    });
    if let Some(created) = created {
        node["createTime"] = created;
    }
    if let Some(labels) = labels.filter(|labels| !labels.is_empty()) {
        node["labels"] = Value::Object(labels);
    }
    node
}

/// The specification of a job that the config describes and that no region has.
pub fn first(slot: &str, create: &Value) -> Map<String, Value> {
    let mut body = create.as_object().cloned().unwrap_or_default();
    let labels = body.remove("labels");
    // There is no job yet that could give its id.
    body.insert(LINEAGE.into(), json!(format!("new-{slot}")));
    let mut spec = Map::from_iter([(TRAINING_KEY.to_owned(), Value::Object(body))]);
    if let Some(labels) = labels {
        spec.insert("labels".into(), labels);
    }
    spec
}

/// The body of the POST for a specification with our own metadata.
///
/// # Errors
/// Which of our marks it lacks: without them a lost answer could not be told from a call that never arrived.
pub fn submission(specification: &Value, of: &Training) -> Result<Value, &'static str> {
    let mut body = match specification.get(TRAINING_KEY) {
        Some(Value::Object(body)) => body.clone(),
        _ => return Err("it is no training job's"),
    };
    let lineage = body.remove(LINEAGE).ok_or("it has no lineage")?;
    let metadata = |key: &str| specification.get("metadata")?.get(key)?.as_str();
    let order: Value = metadata(RUN_KEY)
        .and_then(|text| serde_json::from_str(text).ok())
        .ok_or("it has no run order")?;
    let attempt = order.get("generation").and_then(Value::as_u64).ok_or("it has no generation")?;
    let owner = metadata(OWNER_KEY).ok_or("it names no owner")?;
    let mut labels = match specification.get("labels") {
        Some(Value::Object(labels)) => labels.clone(),
        _ => Map::new(),
    };
    labels.insert(LINEAGE_LABEL.into(), lineage);
    labels.insert(ATTEMPT_LABEL.into(), json!(attempt.to_string()));
    labels.insert(NONCE_LABEL.into(), json!(owner));
    body.insert("labels".into(), Value::Object(labels));
    let mut body = Value::Object(body);
    let strategy = match of.strategy {
        Strategy::Keep => return Ok(body),
        Strategy::Spot => "SPOT",
        Strategy::Standard => "STANDARD",
        Strategy::FlexStart => "FLEX_START",
    };
    body["jobSpec"]["scheduling"]["strategy"] = json!(strategy);
    if let Some(wait) = of.max_wait.filter(|_| of.strategy == Strategy::FlexStart) {
        body["jobSpec"]["scheduling"]["maxWaitDuration"] = json!(format!("{}s", wait.as_secs()));
    }
    Ok(body)
}
