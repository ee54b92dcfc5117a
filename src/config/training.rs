//! `[[vertex_job]]`: a slot that a managed training job fills.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::Check;
use super::job;
use super::policy::policy;
use super::raw::*;
use super::slot::{fits_name, fleet_alone};
use crate::model::filling::Filling;
use crate::model::settings::*;
use crate::model::spec::NodeSpec;
use crate::model::training::{JobKind, NO_REGION, Named, Restart, Strategy, Training};
use crate::resource::limits;
use crate::resource::training::{body, possible};

/// Flex-start capacity of managed training waits so long at most where nothing else is said. Source: aiplatform v1,
/// `Scheduling.maxWaitDuration`.
const WAIT: Duration = Duration::from_secs(24 * 3600);
const SETTLE: Duration = Duration::from_secs(300);
/// A shorter `stall` would cancel jobs that are about to save.
const STALL_MIN: Duration = Duration::from_secs(30 * 60);
/// The longest display name.
const NAME_MAX: usize = 128;

pub fn slot(
    c: &mut Check,
    key: &str,
    raw: RawVertexJob,
    fleet: &Policy,
    folder: &Path,
) -> SlotSettings {
    let k = |name: &str| format!("{key}.{name}");
    let (named, of_study, of_name) = named(c, key, &raw);
    let zones = regions(c, key, raw.region, raw.regions, of_name);
    let name = raw.name.or(raw.display_name).unwrap_or_default();
    named_slot(c, key, &name);
    fleet_alone(c, &k("policy"), &raw.policy);
    let policy = policy(c, &k("policy"), &raw.policy, fleet.clone());
    let job = raw.checkpoint.and_then(|raw| trained(c, &k("checkpoint"), raw));
    let create = raw.create.and_then(|file| created(c, &k("create"), &folder.join(file), &named));
    let strategy = strategy(c, key, raw.strategy.as_deref());
    let flexible = strategy == Strategy::FlexStart;
    if raw.max_wait.is_some() && !flexible {
        c.wrong(&k("max_wait"), "is of flex-start capacity alone; set strategy = \"flex_start\"");
    }
    let max_wait = c.span(&k("max_wait"), raw.max_wait, Duration::ZERO, WAIT);
    let stall = stall(c, &k("stall"), raw.stall);
    let described = create.as_ref().map(JobKind::of);
    let tuning = of_study || described == Some(JobKind::Tuning) || raw.restart_study == Some(true);
    let custom = described == Some(JobKind::Custom) || matches!(named, Named::Id(_)) && !of_study;
    if tuning && custom {
        let text = "is of a tuning job alone, and `job` or `create` has a custom job: remove one of the two";
        c.wrong(&k("restart_study"), text);
    }
    let training = Training {
        kind: if tuning { JobKind::Tuning } else { JobKind::Custom },
        either: !tuning && described.is_none() && !matches!(named, Named::Id(_)),
        named,
        regions: zones.clone(),
        create,
        settle: c.span(&k("settle"), raw.settle, Duration::ZERO, SETTLE),
        restart: restart(c, &k("restart"), &raw.restart),
        strategy,
        max_wait: Some(max_wait).filter(|_| flexible),
        outlives_timeout: outlives_timeout(c, &k("on_timeout"), raw.on_timeout.as_deref()),
        restart_study: raw.restart_study.unwrap_or(false),
        stall,
        next_machine: next_machine(c, &k("next_machine"), raw.next_machine),
    };
    if stall.is_some() && tuning && !training.restart_study {
        let text = "cancels the study, and a new submission begins it with the first trial: set restart_study = true if that is wanted";
        c.wrong(&k("stall"), text);
    }
    let spec =
        training.create.as_ref().map(|create| NodeSpec::new(body::first(("", &name), create)));
    if let Some(why) = spec.and_then(|spec| possible::obstacle(&spec, &training, zones.len())) {
        c.wrong(&k("create"), format!("describes a job that is not possible so: {why}"));
    }
    settings(name, zones, training, job, policy)
}

/// `[[ai_platform_job]]`: the same of the legacy service, whose jobs have an id that their user gave, and no region.
pub fn legacy(c: &mut Check, key: &str, raw: RawLegacyJob, fleet: &Policy) -> SlotSettings {
    let k = |name: &str| format!("{key}.{name}");
    if !raw.job.starts_with(|ch: char| ch.is_ascii_alphabetic()) || !JobKind::Legacy.is_id(&raw.job)
    {
        let text = format!(
            "{:?} is no id of a job: letters, digits and underscores, a letter first",
            raw.job
        );
        c.wrong(&k("job"), text);
    }
    let name = raw.name.unwrap_or_else(|| raw.job.to_ascii_lowercase().replace('_', "-"));
    named_slot(c, key, &name);
    fleet_alone(c, &k("policy"), &raw.policy);
    let policy = policy(c, &k("policy"), &raw.policy, fleet.clone());
    let job = raw.checkpoint.and_then(|raw| trained(c, &k("checkpoint"), raw));
    let stall = stall(c, &k("stall"), raw.stall);
    let zones = vec![NO_REGION.to_owned()];
    let training = Training {
        kind: JobKind::Legacy,
        either: false,
        named: Named::Id(raw.job),
        regions: zones.clone(),
        create: None,
        settle: c.span(&k("settle"), raw.settle, Duration::ZERO, SETTLE),
        restart: restart(c, &k("restart"), &raw.restart),
        strategy: Strategy::Keep,
        max_wait: None,
        outlives_timeout: outlives_timeout(c, &k("on_timeout"), raw.on_timeout.as_deref()),
        restart_study: true,
        stall,
        next_machine: next_machine(c, &k("next_machine"), raw.next_machine),
    };
    settings(name, zones, training, job, policy)
}

fn settings(
    name: String,
    zones: Vec<String>,
    training: Training,
    job: Option<JobSettings>,
    policy: Policy,
) -> SlotSettings {
    // The Cloud TPU API, which would be asked, knows nothing of a job.
    let policy = Policy { create_check: false, ..policy };
    let (filling, create) = (Filling::Training(Arc::new(training)), Overlay::default());
    SlotSettings { name, zones, filling, create, job, policy, supervisor: None }
}

fn named_slot(c: &mut Check, key: &str, name: &str) {
    if !fits_name(name) {
        let text = format!(
            "{name:?} is no name of a slot: write `name`, of 1 to 63 lower-case letters, digits and '-', starting with a letter"
        );
        c.wrong(&format!("{key}.name"), text);
    }
}

fn restart(c: &mut Check, key: &str, raw: &RawVertexRestart) -> Restart {
    let mut count = |name: &str, value, default| {
        u32::try_from(c.at_least(&format!("{key}.{name}"), value, 0, default)).unwrap_or(u32::MAX)
    };
    Restart {
        job: count("job", raw.job, 3),
        transient: count("transient", raw.transient, 1),
        no_progress: count("no_progress", raw.no_progress, 3),
    }
}

fn outlives_timeout(c: &mut Check, key: &str, raw: Option<&str>) -> bool {
    match raw {
        None | Some("hold") => false,
        Some("resubmit") => true,
        Some(other) => {
            c.wrong(key, format!("{other:?} is unknown; use \"hold\" or \"resubmit\""));
            false
        }
    }
}

/// From the last complete checkpoint to the cancel of a job that runs.
fn stall(c: &mut Check, key: &str, raw: Option<Span>) -> Option<Duration> {
    raw.is_some().then(|| c.span(key, raw, STALL_MIN, STALL_MIN))
}

fn next_machine(c: &mut Check, key: &str, raw: Option<Vec<String>>) -> Vec<String> {
    let machines = raw.unwrap_or_default();
    for (index, machine) in machines.iter().enumerate() {
        if machine.is_empty() || machines[..index].contains(machine) {
            c.wrong(key, format!("{machine:?} is empty, or named twice"));
        }
    }
    machines
}

/// The job, as far as its checkpoints tell of it.
fn trained(c: &mut Check, key: &str, raw: RawCheckpoint) -> Option<JobSettings> {
    let checkpoint = job::checkpoint(c, key, raw)?;
    Some(JobSettings {
        checkpoint: Some(checkpoint),
        // No order reaches it: it is sent again as it was.
        resume: Some(Resume::Framework),
        // `restart` of the slot counts.
        no_progress: u32::MAX,
        restarts_per_run: u32::MAX,
        ..JobSettings::default()
    })
}

/// How the job is found, whether that names a tuning job, and the region that its resource name has.
fn named(c: &mut Check, key: &str, raw: &RawVertexJob) -> (Named, bool, Option<String>) {
    let k = |name: &str| format!("{key}.{name}");
    let ways = [raw.display_name.is_some(), raw.job.is_some(), !raw.labels.is_empty()];
    if ways.iter().filter(|way| **way).count() != 1 {
        let text = "names its job by exactly one of display_name, job and labels";
        c.wrong(key, text);
    }
    if let Some(job) = &raw.job {
        let parts: Vec<&str> = job.split('/').collect();
        if let ["projects", _, "locations", region, collection, id] = parts[..]
            && let Some(kind) =
                [JobKind::Custom, JobKind::Tuning].iter().find(|k| k.collection() == collection)
            && kind.is_id(id)
        {
            let study = *kind == JobKind::Tuning;
            return (Named::Id(id.to_owned()), study, Some(region.to_owned()));
        }
        let text = format!(
            "{job:?} is no job; they look like \"projects/P/locations/us-central1/customJobs/123\""
        );
        c.wrong(&k("job"), text);
        return (Named::Id(String::new()), false, None);
    }
    if let Some(name) = &raw.display_name {
        if name.is_empty() || name.chars().count() > NAME_MAX {
            c.wrong(&k("display_name"), format!("must have 1 to {NAME_MAX} characters"));
        }
        return (Named::DisplayName(name.clone()), false, None);
    }
    for (label, value) in &raw.labels {
        if let Err(why) = limits::label(label, value) {
            c.wrong(&k(&format!("labels.{label}")), why);
        }
    }
    (Named::Labels(raw.labels.clone()), false, None)
}

fn regions(
    c: &mut Check,
    key: &str,
    region: Option<String>,
    regions: Option<Vec<String>>,
    of_name: Option<String>,
) -> Vec<String> {
    let k = |name: &str| format!("{key}.{name}");
    let given = match (region, regions) {
        (Some(_), Some(_)) => {
            c.wrong(&k("regions"), "region and regions are both set; keep one of them");
            Vec::new()
        }
        (Some(region), None) => vec![region],
        (None, Some(regions)) => regions,
        (None, None) => of_name.clone().into_iter().collect(),
    };
    if given.is_empty() {
        c.wrong(&k("region"), "is missing; write region = \"us-central1\", or regions = [ … ]");
    }
    if let Some(of_name) = of_name.filter(|of_name| !given.is_empty() && !given.contains(of_name)) {
        c.wrong(&k("region"), format!("lacks {of_name:?}, where `job` is"));
    }
    for (index, region) in given.iter().enumerate() {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if region.split('-').count() != 2 || !region.bytes().all(fits) {
            let text = format!("{region:?} is not a region; they look like \"us-central1\"");
            c.wrong(&k("region"), text);
        }
        if given[..index].contains(region) {
            c.wrong(&k("regions"), format!("{region:?} is named twice"));
        }
    }
    given
}

fn strategy(c: &mut Check, key: &str, raw: Option<&str>) -> Strategy {
    match raw {
        None | Some("keep") => Strategy::Keep,
        Some("spot") => Strategy::Spot,
        Some("standard") => Strategy::Standard,
        Some("flex_start") => Strategy::FlexStart,
        Some(other) => {
            let text = format!(
                "{other:?} is unknown; use \"keep\", \"spot\", \"standard\" or \"flex_start\""
            );
            c.wrong(&format!("{key}.strategy"), text);
            Strategy::Keep
        }
    }
}

/// The body of a create: a CustomJobSpec as gcloud takes it, or a whole job.
fn created(c: &mut Check, key: &str, path: &Path, named: &Named) -> Option<Value> {
    let shown = path.display();
    let read = std::fs::read_to_string(path).map_err(|error| {
        format!("{shown} can't be read: {error}; the path is relative to the config")
    });
    let parsed = read.and_then(|text| {
        serde_saphyr::from_str::<Value>(&text)
            .map_err(|error| format!("{shown} is no YAML: {error}"))
    });
    let spec = match parsed {
        Ok(spec) => spec,
        Err(why) => {
            c.wrong(key, why);
            return None;
        }
    };
    let mut whole =
        if spec.get("workerPoolSpecs").is_some() { json!({"jobSpec": spec}) } else { spec };
    let machines = format!("/{}/workerPoolSpecs", JobKind::of(&whole).spec());
    if whole.pointer(&machines).is_none() {
        c.wrong(
            key,
            format!(
                "{shown} has no workerPoolSpecs: write a CustomJobSpec, or the whole of a tuning job, as for gcloud's --config"
            ),
        );
        return None;
    }
    let field = JobKind::of(&whole).spec();
    for (name, pointer) in
        [("labels", "/labels".to_owned()), ("scheduling", format!("/{field}/scheduling"))]
    {
        if whole.pointer(&pointer).is_some_and(|value| !value.is_object()) {
            c.wrong(key, format!("{shown}: {name} is to be a table of keys and values"));
            return None;
        }
    }
    // It has to be found again as it was not found now.
    match named {
        Named::DisplayName(name) => whole["displayName"] = json!(name),
        Named::Labels(labels) => {
            for (key, value) in labels {
                whole["labels"][key] = json!(value);
            }
            if whole.get("displayName").is_none() {
                whole["displayName"] = json!(path.file_stem().map(|stem| stem.to_string_lossy()));
            }
        }
        Named::Id(_) => c.wrong(key, "and `job` exclude each other: the id of a job is not chosen"),
    }
    Some(whole)
}

/// Two slots of one job would submit it against each other.
pub fn job_is_its_own(
    c: &mut Check,
    key: &str,
    slot: &SlotSettings,
    slots: &BTreeMap<String, SlotSettings>,
) {
    let Some(of) = slot.filling.training() else { return };
    let same = |other: &&SlotSettings| {
        other.filling.training().is_some_and(|other| other.named == of.named)
            && other.zones.iter().any(|zone| slot.zones.contains(zone))
    };
    if let Some(other) = slots.values().find(same) {
        c.wrong(key, format!("names the job of the slot {:?}; remove one of the two", other.name));
    }
}
