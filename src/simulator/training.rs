//! Google's managed training: custom jobs and tuning jobs of Vertex AI, and the jobs of the legacy AI
//! Platform. A job is queued, prepared, runs, and ends by being cancelled; its `error` shows a while
//! after its end.
//!
//! Sources: discovery documents of aiplatform v1 (20261106) and ml v1 (20251213).

use serde_json::{Map, Value, json};

use super::cloud::Cloud;
use super::service;
use super::shape::{self, Answer, error, not_found};
use super::things::{Happening, Job, JobKey, JobKind};
use super::wire::{Request, check_parameters, page};

/// Names in answers carry the project's number, whatever the request said.
const PROJECT_NUMBER: u64 = 140_837_806_760;
/// Ids are numbers that the server gives.
const FIRST_ID: u64 = 2_749_708_440_233_312_000;

/// Answers a request for one of these resources; none where it is for something else.
pub fn answer(cloud: &mut Cloud, request: &Request) -> Option<Answer> {
    let segments: Vec<&str> = request.path.split('/').collect();
    let ["v1", "projects", _, rest @ ..] = &segments[..] else { return None };
    let (kind, region, rest) = match rest {
        ["jobs", rest @ ..] => (JobKind::Legacy, "", rest),
        [call] if call.starts_with("jobs:") => return None,
        ["locations", region, "customJobs", rest @ ..] => (JobKind::Custom, *region, rest),
        ["locations", region, "hyperparameterTuningJobs", rest @ ..] => {
            (JobKind::Tuning, *region, rest)
        }
        _ => return None,
    };
    Some(match (request.method, rest) {
        ("GET", []) => list(cloud, kind, region, request),
        ("POST", []) => create(cloud, kind, region, request),
        (method, [one]) => {
            let (id, verb) = one.split_once(':').unwrap_or((one, ""));
            let key = (kind, region.to_owned(), id.to_owned());
            if !cloud.training.contains_key(&key) {
                return Some(not_found(&name(&key)));
            }
            match (method, verb) {
                ("GET", "") => (200, render(&key, &cloud.training[&key])),
                ("POST", "cancel") => cancel(cloud, &key),
                ("PATCH", "") if kind == JobKind::Legacy => relabel(cloud, &key, request),
                _ => error(404, "Method not found."),
            }
        }
        _ => error(404, "Method not found."),
    })
}

fn name((kind, region, id): &JobKey) -> String {
    let collection = kind.collection();
    match kind {
        JobKind::Legacy => format!("projects/{PROJECT_NUMBER}/{collection}/{id}"),
        _ => format!("projects/{PROJECT_NUMBER}/locations/{region}/{collection}/{id}"),
    }
}

fn list(cloud: &Cloud, kind: JobKind, region: &str, request: &Request) -> Answer {
    let known = ["filter", "pageSize", "pageToken", "readMask"];
    if let Some(refusal) = check_parameters(request, &known) {
        return refusal;
    }
    let any: Vec<Vec<&str>> = request
        .parameter("filter")
        .split(" OR ")
        .map(|terms| terms.split(" AND ").map(str::trim).collect())
        .collect();
    let mine: Vec<_> = cloud
        .training
        .iter()
        .filter(|((of, at, _), _)| *of == kind && at == region)
        .filter(|(_, job)| service::is_listed(cloud, job))
        .filter(|(key, job)| any.iter().any(|terms| terms.iter().all(|term| fits(key, job, term))))
        .collect();
    let (page, next) = match page(&mine, request, cloud.page_max) {
        Ok(page) => page,
        Err(refusal) => return *refusal,
    };
    let mut body = json!({});
    if !page.is_empty() {
        body[kind.collection()] = page.iter().map(|(key, job)| render(key, job)).collect();
    }
    if let Some(next) = next {
        body["nextPageToken"] = next;
    }
    (200, body)
}

/// Whether a job fits one term of a filter: `labels.KEY=VALUE`, `labels.KEY:*`, `display_name=NAME`,
/// `state=STATE`; of the legacy API `jobId:BEGINNING*` and `state:STATE`.
fn fits(key: &JobKey, job: &Job, term: &str) -> bool {
    if term.is_empty() {
        return true;
    }
    let labels = job.body.get("labels");
    if let Some(label) = term.strip_prefix("labels.").and_then(|term| term.strip_suffix(":*")) {
        return labels.is_some_and(|labels| labels.get(label).is_some());
    }
    if let Some(beginning) = term.strip_prefix("jobId:").and_then(|term| term.strip_suffix('*')) {
        return key.2.starts_with(beginning);
    }
    if let Some(value) = term.strip_prefix("state:") {
        return state(key.0, job.state) == value;
    }
    if let Some((field, value)) = term.split_once("!=") {
        return !fits(key, job, &format!("{field}={value}"));
    }
    let Some((field, value)) = term.split_once('=') else { return false };
    let value = value.trim().trim_matches('"');
    let is = |found: Option<&Value>| found.and_then(Value::as_str) == Some(value);
    match field.trim() {
        "display_name" | "displayName" => is(job.body.get("displayName")),
        "state" => state(key.0, job.state) == value,
        field => field
            .strip_prefix("labels.")
            .is_some_and(|label| is(labels.and_then(|labels| labels.get(label)))),
    }
}

fn create(cloud: &mut Cloud, kind: JobKind, region: &str, request: &Request) -> Answer {
    let Some(body) = request.body.as_ref().and_then(Value::as_object).cloned() else {
        return error(400, "The body is missing.");
    };
    if let Err(refusal) = check(kind, &body) {
        return *refusal;
    }
    if let Some(refusal) = service::refuses(cloud, region) {
        return refusal;
    }
    let id = match kind {
        JobKind::Legacy => match body.get("jobId").and_then(Value::as_str) {
            Some(id) if is_legacy_id(id) => id.to_owned(),
            _ => {
                return error(
                    400,
                    "Field: job.job_id Error: A name should start with a letter and contain only letters, numbers and underscores.",
                );
            }
        },
        _ => (FIRST_ID + cloud.number()).to_string(),
    };
    let key = (kind, region.to_owned(), id);
    if cloud.training.contains_key(&key) {
        let text = format!("Field: job.job_id Error: A job with this id already exists: {}", key.2);
        return error(409, text);
    }
    let job = Job {
        body,
        state: "QUEUED",
        created: cloud.now(),
        started: None,
        ended: None,
        restarts: 0,
        withheld: None,
        error: None,
    };
    let answer = render(&key, &job);
    cloud.training.insert(key.clone(), job);
    cloud.schedule(cloud.timing.change, Happening::Training { key });
    (200, answer)
}

fn is_legacy_id(id: &str) -> bool {
    id.starts_with(|ch: char| ch.is_ascii_alphabetic())
        && id.chars().all(|ch| ch.is_ascii_alphanumeric() || ch == '_')
}

/// Refuses what Google refuses at once: a field that it does not know, a duration that is none.
fn check(kind: JobKind, body: &Map<String, Value>) -> Result<(), Box<Answer>> {
    let known: &[&str] = match kind {
        JobKind::Custom => &["displayName", "jobSpec", "labels", "encryptionSpec"],
        JobKind::Tuning => &[
            "displayName",
            "studySpec",
            "maxTrialCount",
            "parallelTrialCount",
            "maxFailedTrialCount",
            "trialJobSpec",
            "labels",
            "encryptionSpec",
        ],
        JobKind::Legacy => &["jobId", "trainingInput", "labels", "etag"],
    };
    let refuse = |text: String| Err(Box::new(error(400, text)));
    if let Some(field) = body.keys().find(|field| !known.contains(&field.as_str())) {
        return refuse(format!(
            "Invalid JSON payload received. Unknown name \"{field}\": Cannot find field."
        ));
    }
    if kind != JobKind::Legacy && body.get("displayName").is_none_or(|name| name == "") {
        return refuse("The display name is required.".to_owned());
    }
    let Some(spec) = body.get(kind.spec()) else {
        return refuse("The job's specification is required.".to_owned());
    };
    for field in ["timeout", "maxWaitDuration", "maxRunningTime", "maxWaitTime"] {
        let value = spec.pointer(&format!("/scheduling/{field}")).and_then(Value::as_str);
        let seconds = |text: &str| text.strip_suffix('s').is_some_and(|n| n.parse::<f64>().is_ok());
        if let Some(text) = value.filter(|text| !seconds(text)) {
            return refuse(format!(
                "Invalid value at 'scheduling.{field}' (type.googleapis.com/google.protobuf.Duration), Field '{field}', Illegal \
                 duration format; duration must end with 's': {text:?}"
            ));
        }
    }
    Ok(())
}

/// Best effort and asynchronous; of a job that has ended it changes nothing.
fn cancel(cloud: &mut Cloud, key: &JobKey) -> Answer {
    if let Some(job) = cloud.training.get_mut(key).filter(|job| job.ended.is_none()) {
        job.state = "CANCELLING";
        cloud.schedule(cloud.timing.change, Happening::Training { key: key.clone() });
    }
    (200, json!({}))
}

fn relabel(cloud: &mut Cloud, key: &JobKey, request: &Request) -> Answer {
    if request.parameter("updateMask") != "labels" {
        return error(400, "Only labels can be updated.");
    }
    let labels = request.body.as_ref().and_then(|body| body.get("labels")).cloned();
    let Some(job) = cloud.training.get_mut(key) else { return not_found(&name(key)) };
    job.body.insert("labels".into(), labels.unwrap_or_default());
    (200, render(key, job))
}

/// A job goes on to its next state.
pub(super) fn goes_on(cloud: &mut Cloud, key: JobKey) {
    let (now, timing) = (cloud.now(), cloud.timing.clone());
    let Some(state) = cloud.training.get(&key).map(|job| job.state) else { return };
    let runs = state == "PENDING" && service::trouble(cloud, &key, false).is_none();
    if state == "PENDING" && !runs {
        return service::attempt_ends(cloud, key);
    }
    let fails = service::trouble(cloud, &key, true).is_some();
    let Some(job) = cloud.training.get_mut(&key) else { return };
    let next = match job.state {
        "QUEUED" => {
            job.state = "PENDING";
            timing.create
        }
        "PENDING" => {
            job.state = "RUNNING";
            job.started.get_or_insert(now);
            timing.change
        }
        "RUNNING" if fails => return service::attempt_ends(cloud, key),
        "CANCELLING" => {
            (job.state, job.ended) = ("CANCELLED", Some(now));
            timing.refusal
        }
        // The words come later than the state.
        _ if job.ended.is_some() => return service::explain(cloud, &key),
        _ => return,
    };
    cloud.schedule(next, Happening::Training { key });
}

/// The state as the API spells it.
fn state(kind: JobKind, state: &str) -> String {
    match (kind, state) {
        (JobKind::Legacy, "PENDING") => "PREPARING".to_owned(),
        (JobKind::Legacy, state) => state.to_owned(),
        (_, state) => format!("JOB_STATE_{state}"),
    }
}

fn render(key: &JobKey, job: &Job) -> Value {
    let mut body = Value::Object(job.body.clone());
    body["createTime"] = json!(shape::time(job.created));
    body["state"] = json!(state(key.0, job.state));
    for (field, at) in [("startTime", job.started), ("endTime", job.ended)] {
        if let Some(at) = at {
            body[field] = json!(shape::time(at));
        }
    }
    if key.0 == JobKind::Legacy {
        body["etag"] = json!("b3B0aW1pc3RpYw==");
        if let Some((_, text)) = &job.error {
            body["errorMessage"] = json!(text);
        }
        return body;
    }
    body["name"] = json!(name(key));
    body["updateTime"] = json!(shape::time(job.ended.or(job.started).unwrap_or(job.created)));
    if let Some((code, message)) = &job.error {
        body["error"] = json!({"code": code, "message": message});
    }
    for pool in ["/jobSpec/workerPoolSpecs", "/trialJobSpec/workerPoolSpecs"] {
        for pool in body.pointer_mut(pool).and_then(Value::as_array_mut).into_iter().flatten() {
            // An int64 is text in an answer, and the disk is filled in.
            if let Some(count) = pool.get("replicaCount").and_then(Value::as_i64) {
                pool["replicaCount"] = json!(count.to_string());
            }
            if pool.get("diskSpec").is_none() {
                pool["diskSpec"] = json!({"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100});
            }
        }
    }
    body
}
