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
use crate::model::training::{Named, Restart, Strategy, Training};
use crate::resource::limits;

/// Flex-start capacity of managed training waits so long at most where nothing else is said. Source: aiplatform v1,
/// `Scheduling.maxWaitDuration`.
const WAIT: Duration = Duration::from_secs(24 * 3600);
const SETTLE: Duration = Duration::from_secs(300);
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
    let (named, of_name) = named(c, key, &raw);
    let zones = regions(c, key, raw.region, raw.regions, of_name);
    let name = raw.name.or(raw.display_name).unwrap_or_default();
    if !fits_name(&name) {
        let text = format!(
            "{name:?} is no name of a slot: write `name`, of 1 to 63 lower-case letters, digits and '-', starting with a letter"
        );
        c.wrong(&k("name"), text);
    }
    fleet_alone(c, &k("policy"), &raw.policy);
    let policy = policy(c, &k("policy"), &raw.policy, fleet.clone());
    // The Cloud TPU API, which would be asked, knows nothing of a job.
    let policy = Policy { create_check: false, ..policy };
    let job = raw.checkpoint.and_then(|raw| trained(c, &k("checkpoint"), raw));
    let create = raw.create.and_then(|file| created(c, &k("create"), &folder.join(file), &named));
    let mut count = |name: &str, value, least, default| {
        u32::try_from(c.at_least(&k(name), value, least, default)).unwrap_or(u32::MAX)
    };
    let restart = Restart {
        job: count("restart.job", raw.restart.job, 0, 3),
        transient: count("restart.transient", raw.restart.transient, 0, 1),
        no_progress: count("restart.no_progress", raw.restart.no_progress, 0, 3),
    };
    let strategy = strategy(c, key, raw.strategy.as_deref());
    let flexible = strategy == Strategy::FlexStart;
    if raw.max_wait.is_some() && !flexible {
        c.wrong(&k("max_wait"), "is of flex-start capacity alone; set strategy = \"flex_start\"");
    }
    let max_wait = c.span(&k("max_wait"), raw.max_wait, Duration::ZERO, WAIT);
    let outlives_timeout = match raw.on_timeout.as_deref() {
        None | Some("hold") => false,
        Some("resubmit") => true,
        Some(other) => {
            c.wrong(
                &k("on_timeout"),
                format!("{other:?} is unknown; use \"hold\" or \"resubmit\""),
            );
            false
        }
    };
    c.later(&k("next_machine"), &raw.next_machine, "another machine after a lack of memory");
    c.later(&k("restart_study"), &raw.restart_study, "tuning jobs");
    c.later(&k("stall"), &raw.stall, "stalls of training jobs");
    let training = Training {
        named,
        regions: zones.clone(),
        create,
        settle: c.span(&k("settle"), raw.settle, Duration::ZERO, SETTLE),
        restart,
        strategy,
        max_wait: Some(max_wait).filter(|_| flexible),
        outlives_timeout,
    };
    let filling = Filling::Training(Arc::new(training));
    let create = Overlay::default();
    SlotSettings { name, zones, filling, create, job, policy, supervisor: None }
}

/// The job, as far as its checkpoints tell of it.
fn trained(c: &mut Check, key: &str, raw: RawCheckpoint) -> Option<JobSettings> {
    let checkpoint = job::checkpoint(c, key, raw)?;
    Some(JobSettings {
        checkpoint: Some(checkpoint),
        // `restart` of the slot counts.
        no_progress: u32::MAX,
        restarts_per_run: u32::MAX,
        ..JobSettings::default()
    })
}

/// How the job is found, and the region that its resource name has.
fn named(c: &mut Check, key: &str, raw: &RawVertexJob) -> (Named, Option<String>) {
    let k = |name: &str| format!("{key}.{name}");
    let ways = [raw.display_name.is_some(), raw.job.is_some(), !raw.labels.is_empty()];
    if ways.iter().filter(|way| **way).count() != 1 {
        let text = "names its job by exactly one of display_name, job and labels";
        c.wrong(key, text);
    }
    if let Some(job) = &raw.job {
        let parts: Vec<&str> = job.split('/').collect();
        if let ["projects", _, "locations", region, "customJobs", id] = parts[..]
            && !id.is_empty()
            && id.bytes().all(|byte| byte.is_ascii_digit())
        {
            return (Named::Id(id.to_owned()), Some(region.to_owned()));
        }
        let text = format!(
            "{job:?} is no job; they look like \"projects/P/locations/us-central1/customJobs/123\""
        );
        c.wrong(&k("job"), text);
        return (Named::Id(String::new()), None);
    }
    if let Some(name) = &raw.display_name {
        if name.is_empty() || name.chars().count() > NAME_MAX {
            c.wrong(&k("display_name"), format!("must have 1 to {NAME_MAX} characters"));
        }
        return (Named::DisplayName(name.clone()), None);
    }
    for (label, value) in &raw.labels {
        if let Err(why) = limits::label(label, value) {
            c.wrong(&k(&format!("labels.{label}")), why);
        }
    }
    (Named::Labels(raw.labels.clone()), None)
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
    let mut body =
        if spec.get("workerPoolSpecs").is_some() { json!({"jobSpec": spec}) } else { spec };
    if body.pointer("/jobSpec/workerPoolSpecs").is_none() {
        c.wrong(
            key,
            format!(
                "{shown} has no workerPoolSpecs: write a CustomJobSpec, as for gcloud's --config"
            ),
        );
        return None;
    }
    // It has to be found again as it was not found now.
    match named {
        Named::DisplayName(name) => body["displayName"] = json!(name),
        Named::Labels(labels) => {
            for (key, value) in labels {
                body["labels"][key] = json!(value);
            }
            if body.get("displayName").is_none() {
                body["displayName"] = json!(path.file_stem().map(|stem| stem.to_string_lossy()));
            }
        }
        Named::Id(_) => c.wrong(key, "and `job` exclude each other: the id of a job is not chosen"),
    }
    Some(body)
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
