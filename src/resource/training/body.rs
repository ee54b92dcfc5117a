//! The body of a submission: the job's own specification, as it was read, with our labels.
//!
//! It is kept inside a node's specification, so that learning, limits and drift are the same for every
//! kind. Lossless: what is known to be output-only is taken out, and a field that this program never heard
//! of is sent again. Source of the output-only fields: discovery document of aiplatform v1.

use serde_json::{Map, Value, json};

use crate::model::ids::{OWNER_KEY, RUN_KEY};
use crate::model::spec::{NodeSpec, TRAINING_KEY};
use crate::model::submission::JobView;
use crate::model::training::{
    ATTEMPT_LABEL, LINEAGE_LABEL, NONCE_LABEL, Named, Strategy, Training,
};

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

/// The job of a specification, as its fields are shown.
pub fn job(spec: &NodeSpec) -> Map<String, Value> {
    let Some(Value::Object(job)) = spec.body().get(TRAINING_KEY) else { return Map::new() };
    let mut job = job.clone();
    job.remove(LINEAGE);
    if let Some(labels) = spec.body().get("labels") {
        job.insert("labels".into(), labels.clone());
    }
    job
}

/// Whether the config still means the job of a specification.
pub fn fits(of: &Training, spec: &NodeSpec) -> bool {
    let Some(job) = spec.body().get(TRAINING_KEY) else { return false };
    match &of.named {
        // The one that is named may be any submission of its lineage, and later ones have ids of their own.
        Named::Id(_) => true,
        Named::DisplayName(name) => job.get("displayName").is_some_and(|known| known == name),
        Named::Labels(wanted) => {
            let labels = spec.body().get("labels");
            // Labels of Google's own are never learned.
            wanted.iter().filter(|(key, _)| !key.starts_with("goog-")).all(|(key, value)| {
                labels.and_then(|labels| labels.get(key)).is_some_and(|known| known == value)
            })
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::RunOrder;
    use crate::model::training::Restart;
    use std::time::Duration;

    fn training(strategy: Strategy) -> Training {
        Training {
            named: Named::Id("7".into()),
            regions: vec![],
            create: None,
            settle: Duration::ZERO,
            restart: Restart { job: 3, transient: 1, no_progress: 3 },
            strategy,
            max_wait: Some(Duration::from_secs(3600)),
            outlives_timeout: false,
        }
    }

    /// Twelve jobs, each with fields of its own, known or not.
    fn specifications() -> Vec<Value> {
        let pools = json!([{"replicaCount": "4", "machineSpec": {"machineType": "a2-highgpu-1g"},
                            "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100}}]);
        let more = [
            json!({"jobSpec": {"workerPoolSpecs": pools}}),
            json!({"jobSpec": {"workerPoolSpecs": pools}, "labels": {"team": "llm", "empty": ""}}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "scheduling": {"timeout": "60s", "later": true}}}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "enableWebAccess": true, "later": null}}),
            json!({"jobSpec": {"workerPoolSpecs": []}, "encryptionSpec": {"kmsKeyName": "k"}}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "tensorboard": "t"}, "laterField": [1, {"a": []}]}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "baseOutputDirectory": {"outputUriPrefix": "gs://b/x/"}}}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "serviceAccount": "a@b", "network": "n"}}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "pscInterfaceConfig": {"networkAttachment": "x"}}}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "protectedArtifactLocationId": "us"}, "number": 1.5}),
            json!({"jobSpec": {"workerPoolSpecs": pools, "models": ["m"], "experiment": "e"}}),
            json!({"jobSpec": {"workerPoolSpecs": pools}, "networkConfig": {"like": "a node's"}, "metadata": {"k": "v"}}),
        ];
        more.into_iter()
            .map(|mut job| {
                job["displayName"] = json!("sft");
                job
            })
            .collect()
    }

    fn read(mut job: Value) -> JobView {
        job["name"] = json!("projects/77/locations/us-central1/customJobs/7");
        for (key, value) in [
            ("createTime", "2026-06-01T12:00:00Z"),
            ("state", "JOB_STATE_FAILED"),
            ("updateTime", "x"),
            ("endTime", "2026-06-01T13:00:00Z"),
            ("startTime", "2026-06-01T12:10:00Z"),
        ] {
            job[key] = json!(value);
        }
        (job["error"], job["webAccessUris"], job["satisfiesPzs"]) =
            (json!({"code": 13}), json!({}), json!(true));
        JobView::parse(job).unwrap()
    }

    fn submitted(job: &JobView, attempt: u64, strategy: Strategy) -> Value {
        let order = RunOrder { generation: attempt, ..RunOrder::default() };
        let spec = NodeSpec::learn(&as_node(job, "slot")).unwrap();
        assert_eq!(spec.validate(), Ok(()));
        submission(&spec.render("me", "slot", &order, None), &training(strategy)).unwrap()
    }

    #[test]
    fn s12_what_is_submitted_again_is_equal_but_for_labels_and_what_was_asked_for() {
        let all = specifications();
        assert_eq!(all.len(), 12);
        for job in all {
            let mut expected = job.clone();
            for (key, value) in [("lineage", "7"), ("attempt", "1"), ("nonce", "me")] {
                expected["labels"][format!("tpu-watchdog-{key}")] = json!(value);
            }
            let first = submitted(&read(job), 1, Strategy::Keep);
            assert_eq!(first, expected);
            // The next one goes on with the same lineage.
            expected["labels"]["tpu-watchdog-attempt"] = json!("2");
            let second = submitted(&read(first.clone()), 2, Strategy::Keep);
            assert_eq!(second, expected);
            expected["jobSpec"]["scheduling"]["strategy"] = json!("FLEX_START");
            expected["jobSpec"]["scheduling"]["maxWaitDuration"] = json!("3600s");
            assert_eq!(submitted(&read(first), 2, Strategy::FlexStart), expected);
        }
    }
}
