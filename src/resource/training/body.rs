//! The body of a submission: the job's own specification, as it was read, with our labels.
//!
//! It is kept inside a node's specification, so that learning, limits and drift are the same for every
//! kind. Lossless: what is known to be output-only is taken out, and a field that this program never heard
//! of is sent again. Source of the output-only fields: discovery document of aiplatform v1.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::model::ids::{OWNER_KEY, RUN_KEY};
use crate::model::spec::{NodeSpec, TRAINING_KEY};
use crate::model::submission::JobView;
use crate::model::training::{
    ATTEMPT_LABEL, JobKind, LINEAGE_LABEL, NONCE_LABEL, Named, Strategy, Training,
};

/// Labels take so many characters. Source: aiplatform v1, `CustomJob.labels`.
const LABEL_MAX: usize = 63;

#[rustfmt::skip]
const OUTPUT_ONLY: [&str; 16] = [
    "labels", "name", "state", "createTime", "startTime", "endTime", "updateTime", "error", "errorMessage", "webAccessUris", "satisfiesPzs",
    "satisfiesPzi", "trials", "etag", "jobPosition", "trainingOutput",
];

impl NodeSpec {
    /// The specification of a job with another machine type in the place of one that it has.
    pub fn on_machine(mut self, machine: Option<(&str, &str)>) -> NodeSpec {
        let (Some((from, to)), Some(kind)) = (machine, self.job_kind()) else { return self };
        let job = self.body_mut().get_mut(TRAINING_KEY);
        let spec = job.and_then(|job| job.get_mut(kind.spec())?.as_object_mut());
        let Some(spec) = spec else { return self };
        // Of a legacy job each role has a field for its type, and no other field has such a value.
        for value in spec.values_mut().filter(|value| **value == *from) {
            *value = json!(to);
        }
        // Types that end so come with so many GPUs, and take no other count.
        let gpus =
            to.rsplit('-').next().and_then(|last| last.strip_suffix('g')?.parse::<u32>().ok());
        let pools = spec.get_mut("workerPoolSpecs").and_then(Value::as_array_mut);
        let machines = pools.into_iter().flatten().filter_map(|pool| pool.get_mut("machineSpec"));
        for machine in machines.filter(|machine| machine["machineType"] == *from) {
            machine["machineType"] = json!(to);
            if let (Some(count), Some(gpus)) = (machine.get_mut("acceleratorCount"), gpus) {
                *count = json!(gpus);
            }
        }
        self
    }
}

/// A job in the form of a node, which a specification is learned from.
pub fn as_node(job: &JobView, slot: &str) -> Value {
    let (mut labels, ours) = (job.labels.clone(), [LINEAGE_LABEL, ATTEMPT_LABEL, NONCE_LABEL]);
    labels.retain(|key, _| !ours.contains(&key.as_str()));
    let mut body = job.raw.as_object().cloned().unwrap_or_default();
    body.retain(|field, _| !OUTPUT_ONLY.contains(&field.as_str()));
    // The one field that is not the job's.
    body.insert(LINEAGE_LABEL.into(), json!(job.lineage()));
    json!({
        "name": format!("projects/-/locations/{}/nodes/{slot}", job.region),
        "id": job.id,
        "createTime": job.created,
        "labels": labels,
        TRAINING_KEY: body,
    })
}

/// The specification of a job that the config describes and that no region has. `whose`: the watchdog and its slot.
pub fn first(whose: (&str, &str), of: &Training) -> Option<NodeSpec> {
    let create = of.create.as_ref()?;
    let mut body = create.as_object()?.clone();
    // There is no job yet that could give its id: the same description of the same slot is the same lineage.
    let of = format!("{} {} {create}", whose.0, whose.1);
    let digest = Uuid::new_v5(&Uuid::NAMESPACE_OID, of.as_bytes()).simple();
    body.insert(LINEAGE_LABEL.into(), json!(format!("new-{digest}")));
    let labels = body.remove("labels").unwrap_or_else(|| json!({}));
    NodeSpec::learn(&json!({ "labels": labels, TRAINING_KEY: body }))
}

/// The job of a specification, as its fields are shown.
pub fn job(spec: &NodeSpec) -> Map<String, Value> {
    let Some(Value::Object(job)) = spec.body().get(TRAINING_KEY) else { return Map::new() };
    let mut job = job.clone();
    job.remove(LINEAGE_LABEL);
    let labels = spec.body().get("labels").cloned();
    job.extend(labels.map(|labels| ("labels".to_owned(), labels)));
    job
}

/// The folder that the service tells the job to save in (`AIP_CHECKPOINT_DIR`), where the job has an output
/// directory; of a legacy job its `jobDir`. Source: aiplatform v1, `CustomJobSpec.baseOutputDirectory`.
pub fn checkpoints(spec: &NodeSpec) -> Option<String> {
    let job = spec.body().get(TRAINING_KEY)?;
    let folder = |pointer: &str| {
        let folder = job.pointer(pointer)?.as_str()?.trim_end_matches('/');
        folder.starts_with("gs://").then_some(folder)
    };
    let base = folder("/jobSpec/baseOutputDirectory/outputUriPrefix");
    let base = base.map(|base| format!("{base}/checkpoints"));
    base.or_else(|| folder("/trainingInput/jobDir").map(str::to_owned))
}

/// The service account that a job names for its program.
pub fn account(spec: &NodeSpec) -> Option<&str> {
    let job = spec.body().get(TRAINING_KEY)?;
    job[JobKind::of(job).spec()]["serviceAccount"].as_str().filter(|email| email.contains('@'))
}

/// Whether the config still means the job of a specification, which it named so before, of this lineage and id.
pub fn fits(of: &Training, spec: &NodeSpec, named: Option<&str>, members: &[String]) -> bool {
    let job = spec.body().get(TRAINING_KEY).filter(|job| of.may_have(JobKind::of(job)));
    let Some(job) = job else { return false };
    match &of.named {
        // The one that is named may be any submission of its lineage, and later ones have ids of their own.
        // One that was found by its name is in general another one.
        Named::Id(id) => named.is_some_and(|named| named == id) || members.contains(id),
        Named::DisplayName(name) => job["displayName"] == *name,
        Named::Labels(wanted) => {
            let labels = spec.body().get("labels").unwrap_or(&Value::Null);
            // Labels of Google's own are never learned.
            let mut wanted = wanted.iter().filter(|(key, _)| !key.starts_with("goog-"));
            wanted.all(|(key, value)| labels[key] == *value)
        }
    }
}

/// The body of the POST for a specification with our own metadata. A legacy one lacks its `jobId` ([`next_id`]).
///
/// # Errors
/// Which of our marks it lacks: without them a lost answer could not be told from a call that never arrived.
pub fn submission(specification: &Value, of: &Training) -> Result<Value, &'static str> {
    let body = specification.get(TRAINING_KEY).and_then(Value::as_object);
    let mut body = body.ok_or("it is no training job's")?.clone();
    let lineage = body.remove(LINEAGE_LABEL).ok_or("it has no lineage")?;
    let attempt = attempt(specification).ok_or("it has no run order")?;
    let owner = specification["metadata"][OWNER_KEY].as_str().ok_or("it names no owner")?;
    let labels = specification.get("labels").and_then(Value::as_object);
    let mut labels = labels.cloned().unwrap_or_default();
    // A label takes no more of an id of the legacy API, which has letters, digits and underscores.
    let lineage = lineage.as_str().unwrap_or_default().to_ascii_lowercase();
    let lineage: String = lineage.chars().take(LABEL_MAX).collect();
    labels.insert(LINEAGE_LABEL.into(), json!(lineage));
    labels.insert(ATTEMPT_LABEL.into(), json!(attempt.to_string()));
    labels.insert(NONCE_LABEL.into(), json!(owner));
    body.insert("labels".into(), Value::Object(labels));
    // A legacy job has it, and its study goes on where that was. Source: ml v1, `HyperparameterSpec.resumePreviousJobId`.
    let before = body.remove("jobId");
    let mut body = Value::Object(body);
    let study = body.pointer_mut("/trainingInput/hyperparameters");
    if let (Some(Value::Object(study)), Some(before)) = (study, before) {
        study.insert("resumePreviousJobId".into(), before);
    }
    let (strategy, wait) = match of.strategy {
        Strategy::Keep => return Ok(body),
        Strategy::Spot => ("SPOT", None),
        Strategy::Standard => ("STANDARD", None),
        Strategy::FlexStart(wait) => ("FLEX_START", Some(format!("{}s", wait.as_secs()))),
    };
    let spec = body.get_mut(JobKind::of(&body).spec()).and_then(Value::as_object_mut);
    let spec = spec.ok_or("it does not describe its machines")?;
    let scheduling = spec.entry("scheduling").or_insert_with(|| json!({}));
    let Value::Object(scheduling) = scheduling else { return Err("its scheduling is no object") };
    scheduling.insert("strategy".into(), json!(strategy));
    // Of flex-start alone; learned from a job that had it.
    scheduling.remove("maxWaitDuration");
    scheduling.extend(wait.map(|wait| ("maxWaitDuration".to_owned(), json!(wait))));
    Ok(body)
}

/// Whether a job is this submission: ours, with the same attempt.
pub fn is_sent_again(submission: &Value, job: &JobView) -> bool {
    let labels = &submission["labels"];
    let same = |key: &str| job.labels.get(key).is_some_and(|known| labels[key] == *known);
    same(NONCE_LABEL) && same(ATTEMPT_LABEL)
}

/// The id of a legacy submission: the first one's with the attempt, and with a number where others have taken that.
pub fn next_id(specification: &Value, taken: u32) -> Option<String> {
    let lineage = specification[TRAINING_KEY][LINEAGE_LABEL].as_str()?;
    let id = format!("{lineage}_r{}", attempt(specification)?);
    Some(if taken == 0 { id } else { format!("{id}_{}", taken + 1) })
}

/// The number of a submission within its lineage.
fn attempt(specification: &Value) -> Option<u64> {
    let order = specification.get("metadata")?.get(RUN_KEY)?.as_str()?;
    serde_json::from_str::<Value>(order).ok()?.get("generation")?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::RunOrder;
    use std::time::Duration;

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
        submission(
            &spec.render("me", "slot", &order, None),
            &Training { strategy, ..Training::default() },
        )
        .unwrap()
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
            for (strategy, name) in [(Strategy::Spot, "SPOT"), (Strategy::Standard, "STANDARD")] {
                expected["jobSpec"]["scheduling"]["strategy"] = json!(name);
                assert_eq!(submitted(&read(first.clone()), 2, strategy), expected);
            }
            expected["jobSpec"]["scheduling"]["strategy"] = json!("FLEX_START");
            expected["jobSpec"]["scheduling"]["maxWaitDuration"] = json!("3600s");
            assert_eq!(
                submitted(&read(first), 2, Strategy::FlexStart(Duration::from_secs(3600))),
                expected
            );
        }
    }

    #[test]
    fn checkpoints_are_where_the_service_tells_the_job_to_save() {
        let spec = |job: Value| NodeSpec::new(Map::from_iter([(TRAINING_KEY.to_owned(), job)]));
        let output = json!({"baseOutputDirectory": {"outputUriPrefix": "gs://b/run/"}});
        for (job, folder) in [
            (json!({"jobSpec": output}), Some("gs://b/run/checkpoints")),
            (json!({"trainingInput": {"jobDir": "gs://b/census/"}}), Some("gs://b/census")),
            (json!({"trainingInput": {"jobDir": "/local"}}), None),
            (json!({"jobSpec": {}}), None),
        ] {
            assert_eq!(checkpoints(&spec(job.clone())).as_deref(), folder, "{job}");
        }
    }
}
