//! Google's training service by the clock: it restarts a job whose attempts fail, gives it up after so many, and shows why
//! a while later. A region may lack capacity or quota, and lists may lag behind a create.
//!
//! Source: the restarts and the late `error` are those of "Vertex AI custom training", the words those of its guides.

use super::cloud::Cloud;
use super::shape::{Answer, error};
use super::things::{Happening, Job, JobKey, JobKind};
use crate::model::time::after;

/// Restarts of a job before the service gives it up.
const RESTARTS: u32 = 3;

/// Refuses a create for which a region has no quota.
pub(super) fn refuses(cloud: &Cloud, region: &str) -> Option<Answer> {
    let most = *cloud.service.quota.get(region)?;
    let lives = |((_, at, _), job): &(&JobKey, &Job)| at == region && job.ended.is_none();
    let text = "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia_a100_gpus";
    (cloud.training.iter().filter(lives).count() >= most).then(|| error(429, text))
}

/// Whether lists show a job yet.
pub(super) fn is_listed(cloud: &Cloud, job: &Job) -> bool {
    after(job.created, cloud.service.lag) <= cloud.now()
}

/// Each attempt of the jobs of this name ends so from now on, those at work first.
pub fn fails(cloud: &mut Cloud, name: &str, code: i64, words: &str) {
    cloud.service.failing.insert(name.to_owned(), (code, words.to_owned()));
    let of = |(key, job): (&JobKey, &Job)| {
        (called(key, job) == name && job.state == "RUNNING").then(|| key.clone())
    };
    let keys: Vec<JobKey> = cloud.training.iter().filter_map(of).collect();
    for key in keys {
        attempt_ends(cloud, key);
    }
}

/// How its people call a job.
fn called<'j>(key: &'j JobKey, job: &'j Job) -> &'j str {
    let name = job.body.get("displayName").and_then(serde_json::Value::as_str);
    name.unwrap_or(&key.2)
}

/// Why the present attempt of a job comes to nothing: no machines, or its own failure once it runs.
pub(super) fn trouble(cloud: &Cloud, key: &JobKey, runs: bool) -> Option<(i64, String)> {
    let job = cloud.training.get(key)?;
    if !runs && cloud.service.full.contains(&key.1) {
        let text = format!(
            "Resources are insufficient in region: {}. Please try a different region or use a different accelerator.",
            key.1
        );
        return Some((8, text));
    }
    cloud.service.failing.get(called(key, job)).filter(|_| runs).cloned()
}

/// An attempt of a job has come to nothing: the service restarts it, or gives it up.
pub fn attempt_ends(cloud: &mut Cloud, key: JobKey) {
    let (now, timing) = (cloud.now(), cloud.timing.clone());
    let why = trouble(cloud, &key, true).or_else(|| trouble(cloud, &key, false));
    let Some(job) = cloud.training.get_mut(&key) else { return };
    job.restarts += 1;
    job.withheld = why.or_else(|| Some((13, "Internal error occurred".to_owned())));
    let wait = if job.restarts <= RESTARTS {
        job.state = "PENDING";
        timing.create
    } else {
        (job.state, job.ended) = ("FAILED", Some(now));
        timing.refusal
    };
    cloud.schedule(wait, Happening::Training { key });
}

/// The words of an end show: of a cancel, and of what failed. The legacy API has none of a person's cancel.
pub(super) fn explain(cloud: &mut Cloud, key: &JobKey) {
    let Some(job) = cloud.training.get_mut(key).filter(|job| job.error.is_none()) else { return };
    job.error = match job.state {
        "CANCELLED" if key.0 == JobKind::Legacy => None,
        "CANCELLED" => Some((1, "CANCELED".to_owned())),
        _ => job.withheld.take(),
    };
}
