//! `[[vertex_job]]`: a slot that a managed training job fills.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::Check;
use super::job;
use super::policy::policy;
use super::raw::*;
use super::slot::{Place, fits_name, fleet_alone, places};
use crate::model::filling::Filling;
use crate::model::settings::*;
use crate::model::training::{JobKind, NO_REGION, Named, Strategy, Training};
use crate::resource::limits;
use crate::resource::training::{body, place, possible};

/// Flex-start capacity of managed training waits so long at most where nothing else is said. Source: aiplatform v1,
/// `Scheduling.maxWaitDuration`.
const WAIT: Duration = Duration::from_secs(24 * 3600);
const REGION: Place = Place { one: "region", many: "regions", parts: 2, example: "us-central1" };
const SETTLE: Duration = Duration::from_secs(300);
/// A shorter `stall` would cancel jobs that are about to save.
const STALL_MIN: Duration = Duration::from_secs(30 * 60);

pub fn slot(
    c: &mut Check,
    key: &str,
    raw: RawVertexJob,
    fleet: &Policy,
    folder: &Path,
) -> SlotSettings {
    use Strategy::*;
    let k = |name: &str| format!("{key}.{name}");
    let (named, of_name) = named(c, key, &raw);
    let (of_name, its_region) = of_name.unzip();
    let one = raw.region.clone();
    let one = one.or_else(|| its_region.clone().filter(|_| raw.regions.is_none()));
    let regions = places(c, key, &REGION, one, raw.regions.clone());
    if let Some(lacks) = its_region.filter(|its| !regions.is_empty() && !regions.contains(its)) {
        c.wrong(&k("region"), format!("lacks {lacks:?}, where `job` is"));
    }
    let file = raw.create.as_ref().map(|file| folder.join(file));
    let create = file.and_then(|file| created(c, &k("create"), &file, &raw));
    let wait = c.span(&k("max_wait"), raw.max_wait, Duration::ZERO, WAIT);
    let flexible = FlexStart(wait);
    let known = [("keep", Keep), ("spot", Spot), ("standard", Standard), ("flex_start", flexible)];
    let strategy = c.one_of(&k("strategy"), raw.strategy.as_deref(), &known, Keep);
    if raw.max_wait.is_some() && strategy != flexible {
        c.wrong(&k("max_wait"), "works only with flex-start; set strategy = \"flex_start\"");
    }
    let known = of_name.or(create.as_ref().map(JobKind::of));
    let restart_study = raw.restart_study == Some(true);
    if restart_study && known == Some(JobKind::Custom) {
        let text = "is of a tuning job alone, and `job` or `create` has a custom job: remove one of the two";
        c.wrong(&k("restart_study"), text);
    }
    let kind = if restart_study { JobKind::Tuning } else { known.unwrap_or_default() };
    if raw.stall.is_some() && kind == JobKind::Tuning && !restart_study {
        let text = "cancels the study, and a new submission begins it with the first trial: set restart_study = true if that is wanted";
        c.wrong(&k("stall"), text);
    }
    let either = known.is_none() && !restart_study;
    let training =
        Training { kind, either, named, regions, create, strategy, ..Training::default() };
    of_either_service(c, key, raw, training, fleet)
}

/// A job is read and submitted in the config's project alone. Names that the service gives have the project's number, which
/// the config may not have.
pub fn of_this_project(c: &mut Check, key: &str, raw: &RawVertexJob, project: &str) {
    let named = raw.job.as_ref().and_then(|job| job.strip_prefix("projects/")?.split('/').next());
    let is_number = |project: &str| project.bytes().all(|b| b.is_ascii_digit());
    let same = |named: &str| named == project || is_number(named) || is_number(project);
    if let Some(other) = named.filter(|named| !same(named)) {
        let text = format!(
            "is of the project {other:?}, and this config is of {project:?}: watch it with a config of its own"
        );
        c.wrong(&format!("{key}.job"), text);
    }
}

/// `[[ai_platform_job]]`: the same of the legacy service, whose jobs have an id that their user gave, and no region.
pub fn legacy(c: &mut Check, key: &str, raw: RawLegacyJob, fleet: &Policy) -> SlotSettings {
    let id = raw.job;
    if !id.starts_with(|ch: char| ch.is_ascii_alphabetic()) || !JobKind::Legacy.is_id(&id) {
        let text = "is no id of a job: letters, digits and underscores, a letter first";
        c.wrong(&format!("{key}.job"), format!("{id:?} {text}"));
    }
    let raw = RawVertexJob {
        name: raw.name.or_else(|| Some(id.to_ascii_lowercase().replace('_', "-"))),
        checkpoint: raw.checkpoint,
        restart: raw.restart,
        next_machine: raw.next_machine,
        on_timeout: raw.on_timeout,
        settle: raw.settle,
        stall: raw.stall,
        policy: raw.policy,
        // It goes on where its predecessor was.
        restart_study: Some(true),
        ..RawVertexJob::default()
    };
    of_either_service(c, key, raw, Training::one(JobKind::Legacy, NO_REGION, &id), fleet)
}

/// The slot, with the keys that both services have.
fn of_either_service(
    c: &mut Check,
    key: &str,
    raw: RawVertexJob,
    training: Training,
    fleet: &Policy,
) -> SlotSettings {
    let k = |name: &str| format!("{key}.{name}");
    let name = raw.name.or(raw.display_name).unwrap_or_default();
    if !fits_name(&name) {
        let text = "is no name of a slot: write `name`, of 1 to 63 lower-case letters, digits and '-', starting with a letter";
        c.wrong(&k("name"), format!("{name:?} {text}"));
    }
    fleet_alone(c, &k("policy"), &raw.policy);
    let policy = policy(c, &k("policy"), &raw.policy, fleet.clone());
    let checkpoint = raw.checkpoint.and_then(|raw| job::checkpoint(c, &k("checkpoint"), raw));
    let job = checkpoint.map(|checkpoint| JobSettings {
        checkpoint: Some(checkpoint),
        // No order reaches it: it is sent again as it was.
        resume: Some(Resume::Framework),
        // `restart` of the slot counts.
        no_progress: u32::MAX,
        restarts_per_run: u32::MAX,
        ..JobSettings::default()
    });
    let timeouts = [("hold", false), ("resubmit", true)];
    let next_machine = raw.next_machine.unwrap_or_default();
    for (index, machine) in next_machine.iter().enumerate() {
        if machine.is_empty() || next_machine[..index].contains(machine) {
            c.wrong(&k("next_machine"), format!("{machine:?} is empty, or named twice"));
        }
    }
    let stall = raw.stall.map(|stall| c.span(&k("stall"), Some(stall), STALL_MIN, STALL_MIN));
    let training = Training {
        settle: c.span(&k("settle"), raw.settle, Duration::ZERO, SETTLE),
        restart: raw.restart,
        restart_study: raw.restart_study == Some(true),
        outlives_timeout: c.one_of(&k("on_timeout"), raw.on_timeout.as_deref(), &timeouts, false),
        stall,
        next_machine,
        ..training
    };
    let spec = body::first(("", key), &training);
    if let Some(why) = spec.and_then(|spec| possible::obstacle(&spec, &training)) {
        c.wrong(&k("create"), format!("describes a job that is not possible so: {why}"));
    }
    SlotSettings {
        name,
        zones: training.regions.clone(),
        filling: Filling::Training(Arc::new(training)),
        create: Overlay::default(),
        job,
        // The Cloud TPU API, which would be asked, knows nothing of a job.
        policy: Policy { create_check: false, ..policy },
        supervisor: None,
    }
}

/// How the job is found, and the kind and the region that its resource name has.
fn named(c: &mut Check, key: &str, raw: &RawVertexJob) -> (Named, Option<(JobKind, String)>) {
    let k = |name: &str| format!("{key}.{name}");
    for (label, value) in &raw.labels {
        if let Err(why) = limits::job_label(label, value) {
            c.wrong(&k(&format!("labels.{label}")), why);
        }
    }
    match (&raw.display_name, &raw.job, raw.labels.is_empty()) {
        (Some(name), None, true) if !name.is_empty() => (Named::DisplayName(name.clone()), None),
        (None, None, false) => (Named::Labels(raw.labels.clone()), None),
        (None, Some(job), true) => match place(job) {
            Ok((kind, region, id)) if kind.is_id(&id) => (Named::Id(id), Some((kind, region))),
            _ => {
                let text =
                    "is no job; they look like \"projects/P/locations/us-central1/customJobs/123\"";
                c.wrong(&k("job"), format!("{job:?} {text}"));
                Default::default()
            }
        },
        _ => {
            c.wrong(key, "names its job by exactly one of display_name, job and labels");
            Default::default()
        }
    }
}

/// The body of a create: a CustomJobSpec as gcloud takes it, or a whole job.
fn created(c: &mut Check, key: &str, path: &Path, raw: &RawVertexJob) -> Option<Value> {
    let unusable = |why: String| c.wrong(key, format!("{} {why}", path.display()));
    let mut job = described(path).map_err(unusable).ok()?;
    if raw.job.is_some() {
        c.wrong(key, "and `job` exclude each other: the id of a job is not chosen");
    }
    // It has to be found again as it was not found now.
    for (label, value) in &raw.labels {
        job["labels"][label] = json!(value);
    }
    if raw.display_name.is_some() || job.get("displayName").is_none() {
        job["displayName"] = json!(raw.display_name.as_ref().or(raw.name.as_ref()));
    }
    for (label, value) in job["labels"].as_object().into_iter().flatten() {
        if let Err(why) = limits::job_label(label, value.as_str().unwrap_or("?")) {
            c.wrong(key, format!("{}: {why}", path.display()));
        }
    }
    Some(job)
}

/// A whole job from a file.
fn described(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("can't be read: {error}; the path is relative to the config"))?;
    let job: Value =
        serde_saphyr::from_str(&text).map_err(|error| format!("is no YAML: {error}"))?;
    let mut job =
        if job.get("workerPoolSpecs").is_some() { json!({ "jobSpec": job }) } else { job };
    let kind = JobKind::of(&job);
    let field = kind.spec();
    let pools = job.pointer(&format!("/{field}/workerPoolSpecs")).and_then(Value::as_array);
    if pools.is_none_or(Vec::is_empty) {
        return Err("has no workerPoolSpecs: write a CustomJobSpec, or the whole of a tuning job, as for gcloud's --config".to_owned());
    }
    let is_table = |value: Option<&Value>| value.is_none_or(Value::is_object);
    if !is_table(job.get("labels")) || !is_table(job.pointer(&format!("/{field}/scheduling"))) {
        return Err("has labels or scheduling that are no table of keys and values".to_owned());
    }
    // As gcloud's flags have them where they are not given.
    for count in ["maxTrialCount", "parallelTrialCount"].iter().filter(|_| kind == JobKind::Tuning)
    {
        if job.get(count).is_none() {
            job[count] = json!(1);
        }
    }
    Ok(job)
}
