//! From the raw config to typed values. All mistakes are collected, each with its key, so that one
//! run shows them all.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::api::{api, listen, listen_token_file};
use super::check::Check;
use super::document::Document;
use super::policy::{policy, removes_dead, share, storm};
use super::raw::*;
use super::slot::slot;
use super::state::{pushgateway, state};
use super::training;
use super::{Config, Environment, Mistake};
use crate::model::filling::Filling;
use crate::model::settings::*;
use crate::model::training::Training;

/// Validates everything.
pub fn validate(
    raw: Raw,
    document: &Document,
    folder: &Path,
    environment: Environment,
) -> Result<Config, Vec<Mistake>> {
    let mut check = Check::new(document);
    let c = &mut check;
    c.later("fleet", &raw.fleet, "fleets by label");
    c.later("notify", &raw.notify, "notifications");
    let project = project(c, raw.project, environment);
    if raw.owner.as_ref().is_some_and(String::is_empty) {
        c.wrong("owner", "must not be empty; leave it out for an id made with the store");
    }
    let poll = poll(c, &raw.poll);
    let max_unavailable = share(c, raw.policy.max_unavailable.as_ref());
    let per_hour = c.at_least(
        "policy.max_judged_recreates_per_hour",
        raw.policy.max_judged_recreates_per_hour,
        0,
        20,
    );
    let storm = storm(c, raw.policy.storm.as_ref());
    let removes_dead = removes_dead(c, raw.policy.orphans.as_deref());
    let fleet_policy = policy(c, "policy", &raw.policy, Policy::default());
    let lease = c.span("lease", raw.lease, Duration::from_secs(1), Duration::from_secs(30));
    let state = state(c, raw.state.as_deref(), folder, environment);
    let pushgateway = pushgateway(c, raw.pushgateway);
    let listen = listen(c, raw.listen.as_deref());
    let listen_token_file = listen_token_file(c, raw.listen_token_file.as_deref(), folder);
    let api = api(c, &raw.api);
    if raw.tpu.is_empty() && raw.vertex_job.is_empty() && raw.ai_platform_job.is_empty() {
        c.wrong("tpu", "there is no [[tpu]]: add one with name and zone");
    }
    for (index, job) in raw.vertex_job.iter().enumerate() {
        training::of_this_project(c, &format!("vertex_job[{index}]"), job, &project);
    }
    let slots = slots(c, raw.tpu, (raw.vertex_job, raw.ai_platform_job), &fleet_policy, folder);
    check.finish()?;
    let settings = Settings {
        project,
        owner: String::new(),
        label: raw.owner,
        decided_by: String::new(),
        digest: String::new(),
        dry_run: raw.dry_run.unwrap_or(false),
        alpha: api.version == "v2alpha1",
        poll,
        removes_dead,
        max_unavailable,
        max_judged_recreates_per_hour: per_hour,
        storm,
        slots,
    };
    Ok(Config { settings, lease, pushgateway, state, listen, listen_token_file, api })
}

/// All slots, by name.
fn slots(
    c: &mut Check,
    tpus: Vec<RawTpu>,
    (vertex, legacy): (Vec<RawVertexJob>, Vec<RawLegacyJob>),
    fleet: &Policy,
    folder: &Path,
) -> BTreeMap<String, SlotSettings> {
    let mut slots: BTreeMap<String, SlotSettings> = BTreeMap::new();
    let mut all: Vec<(String, SlotSettings)> = Vec::new();
    for (index, raw) in tpus.into_iter().enumerate() {
        let key = format!("tpu[{index}]");
        let slot = slot(c, &key, raw, fleet, folder);
        all.push((key, slot));
    }
    for (index, raw) in vertex.into_iter().enumerate() {
        let key = format!("vertex_job[{index}]");
        let slot = training::slot(c, &key, raw, fleet, folder);
        all.push((key, slot));
    }
    for (index, raw) in legacy.into_iter().enumerate() {
        let key = format!("ai_platform_job[{index}]");
        let slot = training::legacy(c, &key, raw, fleet);
        all.push((key, slot));
    }
    for (key, slot) in all {
        if slots.contains_key(&slot.name) {
            let text = format!("two slots are named {:?}; names must be unique", slot.name);
            c.wrong(&format!("{key}.name"), text);
        }
        is_its_own(c, &key, &slot, &slots);
        slots.insert(slot.name.clone(), slot);
    }
    slots
}

/// Two slots of one request, or of one job, would act against each other.
fn is_its_own(
    c: &mut Check,
    key: &str,
    slot: &SlotSettings,
    slots: &BTreeMap<String, SlotSettings>,
) {
    let mut others = slots.values().filter(|other| {
        other.name != slot.name && other.zones.iter().any(|zone| slot.zones.contains(zone))
    });
    match &slot.filling {
        Filling::Node => {}
        Filling::QueuedResource(id) => {
            if let Some(other) = others.find(|other| other.filling == slot.filling) {
                let text = format!(
                    "{id:?} is the slot {:?} already; one slot is a queued resource with all its nodes: remove one of the two",
                    other.name
                );
                c.wrong(&format!("{key}.queued_resource"), text);
            }
        }
        Filling::Training(of) => {
            let is_it = |other: &Training| other.named == of.named;
            if let Some(other) = others.find(|other| other.filling.training().is_some_and(is_it)) {
                let text =
                    format!("names the job of the slot {:?}; remove one of the two", other.name);
                c.wrong(key, text);
            }
        }
    }
}

/// `[poll]`.
fn poll(c: &mut Check, raw: &RawPoll) -> PollSettings {
    let every =
        c.span("poll.every", raw.every, Duration::from_millis(100), Duration::from_secs(30));
    c.later("poll.cron", &raw.cron, "polling by cron");
    PollSettings {
        every,
        operations: c.span(
            "poll.operations",
            raw.operations,
            Duration::from_millis(10),
            Duration::from_secs(5),
        ),
        timeout: c.span(
            "poll.timeout",
            raw.timeout,
            Duration::from_millis(10),
            Duration::from_secs(20),
        ),
        max_gap: c.span(
            "poll.max_gap",
            raw.max_gap,
            Duration::from_millis(100),
            Duration::from_secs(300).max(every * 2),
        ),
    }
}

/// The project: as configured, or as the credentials name it.
fn project(c: &mut Check, raw: Option<String>, environment: Environment) -> String {
    let project = raw.or_else(|| project_of_the_credentials(environment)).unwrap_or_default();
    if project.is_empty() {
        c.wrong(
            "project",
            "is missing, and neither GOOGLE_CLOUD_PROJECT nor a key file names one; set project = \"my-project\"",
        );
    } else if !project
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b':' | b'.'))
    {
        c.wrong(
            "project",
            format!("{project:?} is not a project id: lower-case letters, digits and '-'"),
        );
    }
    project
}

fn project_of_the_credentials(environment: Environment) -> Option<String> {
    let from_file = || {
        let text = std::fs::read_to_string(environment("GOOGLE_APPLICATION_CREDENTIALS")?).ok()?;
        let json: Value = serde_json::from_str(&text).ok()?;
        // A user's file has a quota project alone: that pays for calls, and the TPUs may be
        // anywhere.
        json.get("project_id")?.as_str().map(str::to_owned)
    };
    environment("GOOGLE_CLOUD_PROJECT").or_else(from_file)
}
