//! From the raw config to typed values. All mistakes are collected, each with its key, so that one
//! run shows them all.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::document::Document;
use super::raw::*;
use super::{ApiSettings, Config, Environment, Mistake, StateLocation};
use crate::model::quiet::QuietHours;
use crate::model::settings::*;
use crate::model::spec;

const DEFAULT_STATE: &str = "sqlite:/var/lib/tpu-watchdog/state.db";
const DEFAULT_LISTEN: &str = "127.0.0.1:9470";
const DEFAULT_TPU: &str = "https://tpu.googleapis.com";
const DEFAULT_STORAGE: &str = "https://storage.googleapis.com";

/// Collects mistakes while values are taken out.
pub(super) struct Check<'a> {
    document: &'a Document,
    mistakes: Vec<Mistake>,
}

impl Check<'_> {
    pub(super) fn wrong(&mut self, key: &str, message: impl Into<String>) {
        self.mistakes.push(self.document.mistake(key, message));
    }

    pub(super) fn later<T>(&mut self, key: &str, value: &Option<T>, what: &str) {
        if value.is_some() {
            self.wrong(key, format!("not supported yet: {what}; remove the key"));
        }
    }

    pub(super) fn at_least(
        &mut self,
        key: &str,
        value: Option<i64>,
        least: i64,
        default: usize,
    ) -> usize {
        match value {
            None => default,
            Some(given) if given >= least && given <= 1_000_000 => {
                usize::try_from(given).unwrap_or(default)
            }
            Some(given) => {
                self.wrong(
                    key,
                    format!("must be a whole number from {least} to 1000000, got {given}"),
                );
                default
            }
        }
    }

    fn span(
        &mut self,
        key: &str,
        value: Option<Span>,
        least: Duration,
        default: Duration,
    ) -> Duration {
        match value {
            Some(Span(given)) if given < least => {
                self.wrong(key, format!("must be at least {}", crate::model::time::span(least)));
                default
            }
            Some(Span(given)) => given,
            None => default,
        }
    }
}

/// Validates everything.
pub fn validate(
    raw: Raw,
    document: &Document,
    folder: &Path,
    environment: Environment,
) -> Result<Config, Vec<Mistake>> {
    let mut check = Check { document, mistakes: Vec::new() };
    let c = &mut check;
    c.later("fleet", &raw.fleet, "fleets by label");
    c.later("vertex_job", &raw.vertex_job, "Vertex AI jobs");
    c.later("ai_platform_job", &raw.ai_platform_job, "AI Platform jobs");
    c.later("notify", &raw.notify, "notifications");
    let project =
        raw.project.or_else(|| project_of_the_credentials(environment)).unwrap_or_default();
    if project.is_empty() {
        c.wrong(
            "project",
            "is missing, and the credentials name none; set project = \"my-project\"",
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
    if raw.owner.as_ref().is_some_and(String::is_empty) {
        c.wrong("owner", "must not be empty; leave it out for an id made with the store");
    }
    let every =
        c.span("poll.every", raw.poll.every, Duration::from_millis(100), Duration::from_secs(30));
    c.later("poll.cron", &raw.poll.cron, "polling by cron");
    let poll = PollSettings {
        every,
        operations: c.span(
            "poll.operations",
            raw.poll.operations,
            Duration::from_millis(10),
            Duration::from_secs(5),
        ),
        timeout: c.span(
            "poll.timeout",
            raw.poll.timeout,
            Duration::from_millis(10),
            Duration::from_secs(20),
        ),
        max_gap: c.span(
            "poll.max_gap",
            raw.poll.max_gap,
            Duration::from_millis(100),
            Duration::from_secs(300).max(every * 2),
        ),
    };
    let max_unavailable = share(c, raw.policy.max_unavailable.as_ref());
    let per_hour = c.at_least(
        "policy.max_judged_recreates_per_hour",
        raw.policy.max_judged_recreates_per_hour,
        0,
        20,
    );
    let storm = storm(c, raw.policy.storm.as_ref());
    let fleet_policy = policy(c, "policy", &raw.policy, Policy::default());
    let lease = c.span("lease", raw.lease, Duration::from_secs(1), Duration::from_secs(30));
    let state = state(c, raw.state.as_deref(), folder, environment);
    let pushgateway = pushgateway(c, raw.pushgateway);
    let listen = listen(c, raw.listen.as_deref());
    let api = api(c, &raw.api);
    if raw.tpu.is_empty() {
        c.wrong("tpu", "there is no [[tpu]]: add one with name and zone");
    }
    let mut slots = BTreeMap::new();
    for (index, tpu) in raw.tpu.into_iter().enumerate() {
        let key = format!("tpu[{index}]");
        let slot = slot(c, &key, tpu, &fleet_policy, folder);
        if slots.contains_key(&slot.name) {
            c.wrong(
                &format!("{key}.name"),
                format!("two slots are named {:?}; names must be unique", slot.name),
            );
        }
        slots.insert(slot.name.clone(), slot);
    }
    if !check.mistakes.is_empty() {
        check.mistakes.sort_by_key(|m| m.line);
        return Err(check.mistakes);
    }
    let settings = Settings {
        project,
        owner: raw.owner.unwrap_or_default(),
        decided_by: String::new(),
        dry_run: raw.dry_run.unwrap_or(false),
        alpha: api.version == "v2alpha1",
        poll,
        max_unavailable,
        max_judged_recreates_per_hour: per_hour,
        storm,
        slots,
    };
    Ok(Config { settings, lease, pushgateway, state, listen, api })
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

fn share(c: &mut Check, raw: Option<&RawShare>) -> Share {
    let key = "policy.max_unavailable";
    match raw {
        None => Share::Percent(25.0),
        Some(RawShare::Count(count)) => Share::Count(c.at_least(key, Some(*count), 1, 1)),
        Some(RawShare::Percent(text)) => {
            match text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok()) {
                Some(percent) if (0.0..=100.0).contains(&percent) => Share::Percent(percent),
                _ => {
                    c.wrong(key, format!("{text:?} is neither a number of slots nor a percentage; write 2 or \"25%\""));
                    Share::Percent(25.0)
                }
            }
        }
    }
}

fn storm(c: &mut Check, raw: Option<&RawStorm>) -> Storm {
    let default = Storm::default();
    let Some(raw) = raw else { return default };
    let percent = match raw.fraction.as_deref() {
        None => default.percent,
        Some(text) => match text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok()) {
            Some(percent) if percent > 0.0 && percent <= 100.0 => percent,
            _ => {
                c.wrong(
                    "policy.storm.fraction",
                    format!("{text:?} is not a percentage; write \"50%\""),
                );
                default.percent
            }
        },
    };
    Storm {
        percent,
        min: c.at_least("policy.storm.min", raw.min, 1, default.min),
        window: c.span("policy.storm.window", raw.window, Duration::from_secs(1), default.window),
    }
}

fn state(
    c: &mut Check,
    raw: Option<&str>,
    folder: &Path,
    environment: Environment,
) -> StateLocation {
    let text = raw.unwrap_or(DEFAULT_STATE);
    let nowhere = StateLocation::Sqlite(PathBuf::new());
    if environment("CLOUD_RUN_JOB").is_some()
        && (text.starts_with("sqlite:") || text.starts_with("memory:"))
    {
        c.wrong(
            "state",
            format!(
                "{text:?} ends with the Cloud Run task: a create that is owed would be forgotten; use \"gs://bucket/prefix\""
            ),
        );
        return nowhere;
    }
    state_location(text, folder).unwrap_or_else(|message| {
        c.wrong("state", message);
        nowhere
    })
}

/// See [`super::state_location`].
pub fn state_location(text: &str, folder: &Path) -> Result<StateLocation, String> {
    match text.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => Ok(StateLocation::Sqlite(folder.join(path))),
        Some(("sqlite", _)) => {
            Err("sqlite: needs a path, as in \"sqlite:/var/lib/tpu-watchdog/state.db\"".into())
        }
        Some(("memory", "")) => Ok(StateLocation::Memory),
        Some((scheme @ ("gs" | "s3"), rest)) => {
            let (bucket, prefix) = rest
                .trim_start_matches("//")
                .split_once('/')
                .unwrap_or((rest.trim_start_matches("//"), ""));
            let prefix = prefix.trim_matches('/');
            if !rest.starts_with("//") || bucket.is_empty() || prefix.is_empty() {
                return Err(format!(
                    "{text:?} needs a bucket and a prefix, as in \"{scheme}://my-bucket/tpu-watchdog\""
                ));
            }
            if object_store::path::Path::parse(prefix).is_err() {
                return Err(format!(
                    "{prefix:?} is not a path in a bucket: no empty parts, no \"..\""
                ));
            }
            Ok(StateLocation::Object {
                scheme: scheme.into(),
                bucket: bucket.into(),
                prefix: prefix.into(),
            })
        }
        Some(("postgres", _)) => Err(format!(
            "not supported yet: {text:?}; use \"sqlite:PATH\" or \"gs://bucket/prefix\""
        )),
        _ => Err(format!(
            "{text:?} is not a place for state; use \"sqlite:PATH\", \"gs://bucket/prefix\" or \"memory:\""
        )),
    }
}

fn pushgateway(c: &mut Check, raw: Option<String>) -> Option<String> {
    let text = raw?;
    let url = reqwest::Url::parse(&text)
        .ok()
        .filter(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
    if url.is_none_or(|u| !u.username().is_empty() || u.password().is_some()) {
        c.wrong("pushgateway", "is not the URL of a Pushgateway; write \"http://127.0.0.1:9091\", without user and password");
        return None;
    }
    Some(text.trim_end_matches('/').to_owned())
}

fn listen(c: &mut Check, raw: Option<&str>) -> Option<SocketAddr> {
    let text = raw.unwrap_or(DEFAULT_LISTEN);
    if text == "off" {
        return None;
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Some(address),
        Ok(address) => {
            c.wrong(
                "listen",
                format!("not supported yet: {address} is not a loopback address, and tokens are not there yet; use 127.0.0.1"),
            );
            None
        }
        Err(_) => {
            c.wrong(
                "listen",
                format!("{text:?} is not ADDRESS:PORT; write \"{DEFAULT_LISTEN}\" or \"off\""),
            );
            None
        }
    }
}

fn api(c: &mut Check, raw: &RawApi) -> ApiSettings {
    // Written out as their defaults they change nothing.
    let other = |given: &Option<toml::Value>, default: &str| {
        given.as_ref().filter(|v| v.as_str() != Some(default)).cloned()
    };
    c.later(
        "api.vertex",
        &other(&raw.vertex, "https://{region}-aiplatform.googleapis.com"),
        "Vertex AI",
    );
    c.later("api.ml", &other(&raw.ml, "https://ml.googleapis.com"), "AI Platform");
    let mut url = |key: &str, given: Option<&String>, default: &str| {
        let text = given.map_or(default, String::as_str).trim_end_matches('/').to_owned();
        let parsed = reqwest::Url::parse(&text)
            .ok()
            .filter(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
        match parsed {
            None => c.wrong(key, format!("{text:?} is not a URL; write \"{default}\"")),
            Some(u) if u.scheme() == "http" && !is_loopback(&u) => {
                c.wrong(key, format!("{text:?}: http is allowed towards loopback only; use https"))
            }
            Some(_) => {}
        }
        text
    };
    let tpu = url("api.tpu", raw.tpu.as_ref(), DEFAULT_TPU);
    let storage = url("api.storage", raw.storage.as_ref(), DEFAULT_STORAGE);
    let anonymous = match raw.credentials.as_deref() {
        None | Some("application-default") => false,
        Some("anonymous") => {
            for (key, text) in [("api.tpu", &tpu), ("api.storage", &storage)] {
                let loopback = reqwest::Url::parse(text).is_ok_and(|u| is_loopback(&u));
                if !loopback && (key == "api.tpu" || raw.storage.is_some()) {
                    c.wrong(
                        "api.credentials",
                        format!(
                            "\"anonymous\" is allowed only towards loopback, and {key} is {text:?}"
                        ),
                    );
                }
            }
            true
        }
        Some(other) => {
            c.wrong(
                "api.credentials",
                format!("{other:?} is unknown; use \"application-default\", or \"anonymous\" towards loopback"),
            );
            false
        }
    };
    let version = match raw.version.as_deref() {
        None | Some("v2") => "v2",
        Some("v2alpha1") => "v2alpha1",
        Some(other) => {
            c.wrong("api.version", format!("{other:?} is unknown; use \"v2\" or \"v2alpha1\""));
            "v2"
        }
    };
    ApiSettings { tpu, storage: raw.storage.is_some().then_some(storage), version, anonymous }
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn policy(c: &mut Check, key: &str, raw: &RawPolicy, base: Policy) -> Policy {
    let k = |name: &str| format!("{key}.{name}");
    c.later(&k("grace.queue"), &raw.grace.queue, "queued resources");
    if raw.grace.stall.as_ref().is_some_and(|s| s.as_str() != Some("auto")) {
        c.wrong(
            &k("grace.stall"),
            "not supported yet: stall detection; leave it out or write \"auto\"",
        );
    }
    match raw.on_success.as_deref() {
        None | Some("keep") => {}
        Some(other @ ("stop" | "delete")) => {
            c.wrong(&k("on_success"), format!("not supported yet: {other:?}; use \"keep\""))
        }
        Some(other) => c.wrong(&k("on_success"), format!("{other:?} is unknown; use \"keep\"")),
    }
    let create_missing = match raw.when_missing.as_deref() {
        None => base.create_missing,
        Some("create") => true,
        Some("hold") => false,
        Some(other) => {
            c.wrong(
                &k("when_missing"),
                format!("{other:?} is unknown; use \"create\" or \"hold\""),
            );
            true
        }
    };
    let zero = Duration::ZERO;
    let mut grace = |name: &str, value: Option<Span>, default: Duration| {
        c.span(&k(&format!("grace.{name}")), value, zero, default)
    };
    let (g, b) = (&raw.grace, &base.grace);
    let grace = Grace {
        startup: grace("startup", g.startup, b.startup),
        maintenance: grace("maintenance", g.maintenance, b.maintenance),
        // Reserved capacity is repaired in place and takes longer: three times the ordinary grace,
        // as in the defaults.
        maintenance_reserved: g.maintenance.map_or(b.maintenance_reserved, |Span(given)| given * 3),
        failed_repair: grace("failed_repair", g.failed_repair, b.failed_repair),
        preempted: grace("preempted", g.preempted, b.preempted),
        terminated: grace("terminated", g.terminated, b.terminated),
        unresponsive: grace("unresponsive", g.unresponsive, b.unresponsive),
        runtime_unhealthy: grace("runtime_unhealthy", g.runtime_unhealthy, b.runtime_unhealthy),
        boot: grace("boot", g.boot, b.boot),
        silent: grace("silent", g.silent, b.silent),
        missing: grace("missing", g.missing, b.missing),
        deleting: grace("deleting", g.deleting, b.deleting),
    };
    let second = Duration::from_secs(1);
    let quiet_hours = match &raw.quiet_hours {
        Some(all) => all
            .iter()
            .enumerate()
            .filter_map(|(index, raw)| quiet(c, &k(&format!("quiet_hours[{index}]")), raw))
            .collect(),
        None => base.quiet_hours,
    };
    let backoff_first = c.span(
        &k("backoff.first"),
        raw.backoff.first,
        Duration::from_millis(100),
        base.backoff_first,
    );
    let backoff_max = c.span(
        &k("backoff.max"),
        raw.backoff.max,
        Duration::from_millis(100),
        base.backoff_max.max(backoff_first),
    );
    if backoff_max < backoff_first {
        c.wrong(&k("backoff.max"), "must not be shorter than backoff.first");
    }
    Policy {
        confirmations: u32::try_from(c.at_least(
            &k("confirmations"),
            raw.confirmations,
            1,
            base.confirmations as usize,
        ))
        .unwrap_or(u32::MAX),
        max_age: c.span(&k("max_age"), raw.max_age, second, base.max_age),
        grace,
        heal: c.span(&k("heal"), raw.heal, zero, base.heal),
        create_missing,
        attempts: AttemptsPolicy {
            max: c.at_least(&k("attempts.max"), raw.attempts.max, 1, base.attempts.max),
            preemptions: c.at_least(
                &k("attempts.preemptions"),
                raw.attempts.preemptions,
                1,
                base.attempts.preemptions,
            ),
            window: c.span(
                &k("attempts.window"),
                raw.attempts.window,
                second,
                base.attempts.window,
            ),
            settled: c.span(
                &k("attempts.settled"),
                raw.attempts.settled,
                second,
                base.attempts.settled,
            ),
        },
        backoff_first,
        backoff_max,
        quiet_hours,
    }
}

fn quiet(c: &mut Check, key: &str, raw: &RawQuietHours) -> Option<QuietHours> {
    let lasts =
        c.span(&format!("{key}.for"), Some(raw.lasts), Duration::from_secs(1), Duration::ZERO);
    match QuietHours::new(&raw.cron, lasts) {
        Ok(hours) => Some(hours),
        Err(why) => {
            let example =
                "write seconds, minutes, hours, day, month, weekday, as in \"0 0 9 * * MON-FRI\"";
            c.wrong(
                &format!("{key}.cron"),
                format!("{:?} is not a cron expression ({why}); {example}", raw.cron),
            );
            None
        }
    }
}

fn slot(c: &mut Check, key: &str, raw: RawTpu, fleet: &Policy, folder: &Path) -> SlotSettings {
    let k = |name: &str| format!("{key}.{name}");
    let name_fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !(raw.name.starts_with(|ch: char| ch.is_ascii_lowercase())
        && raw.name.bytes().all(name_fits)
        && raw.name.len() <= 63)
        || raw.name.ends_with('-')
    {
        c.wrong(
            &k("name"),
            format!("{:?} is not a node id: 1 to 63 lower-case letters, digits and '-', starting with a letter", raw.name),
        );
    }
    c.later(&k("queued_resource"), &raw.queued_resource, "queued resources");
    let zones = match (raw.zone, raw.zones) {
        (Some(zone), None) => vec![zone],
        (None, Some(zones)) if !zones.is_empty() => zones,
        (None, Some(_)) => {
            c.wrong(&k("zones"), "is empty; name at least one zone");
            Vec::new()
        }
        (Some(_), Some(_)) => {
            c.wrong(&k("zones"), "zone and zones are both set; keep one of them");
            Vec::new()
        }
        (None, None) => {
            c.wrong(&k("zone"), "is missing; write zone = \"us-central2-b\", or zones = [ … ]");
            Vec::new()
        }
    };
    for (index, zone) in zones.iter().enumerate() {
        let parts = zone.split('-').count();
        if parts != 3 || !zone.bytes().all(name_fits) {
            c.wrong(
                &k("zone"),
                format!("{zone:?} is not a zone; they look like \"us-central2-b\""),
            );
        }
        if zones[..index].contains(zone) {
            c.wrong(&k("zones"), format!("{zone:?} is named twice"));
        }
    }
    if raw.policy.max_unavailable.is_some() {
        c.wrong(&k("policy.max_unavailable"), "is the whole fleet's; set it under [policy]");
    }
    if raw.policy.storm.is_some() {
        c.wrong(&k("policy.storm"), "is the whole fleet's; set it under [policy]");
    }
    if raw.policy.max_judged_recreates_per_hour.is_some() {
        c.wrong(
            &k("policy.max_judged_recreates_per_hour"),
            "is the whole fleet's; set it under [policy]",
        );
    }
    let policy = policy(c, &k("policy"), &raw.policy, fleet.clone());
    let mut create = overlay(c, &k("create"), &raw.create);
    if let Some(script) = raw.startup_script {
        let path = folder.join(&script);
        match std::fs::read_to_string(&path) {
            Ok(text) if text.len() > 262_144 => c.wrong(
                &k("startup_script"),
                format!(
                    "{} is larger than 256 KiB; use the metadata startup-script-url",
                    path.display()
                ),
            ),
            Ok(text) => create.startup_script = Some(text),
            Err(error) => c.wrong(
                &k("startup_script"),
                format!(
                    "{} can't be read: {error}; the path is relative to the config",
                    path.display()
                ),
            ),
        }
    }
    let job = raw.job.map(|raw| super::job::job(c, &k("job"), raw));
    SlotSettings { name: raw.name, zones, create, job, policy, supervisor: None }
}

fn overlay(c: &mut Check, key: &str, raw: &RawCreate) -> Overlay {
    let k = |name: &str| format!("{key}.{name}");
    c.later(&k("nodes"), &raw.nodes, "multislice queued resources");
    let mut fields: BTreeMap<String, Value> = BTreeMap::new();
    if let Some(kind) = &raw.accelerator_type {
        if raw.accelerator_config.is_some() {
            c.wrong(
                &k("accelerator_config"),
                "accelerator_type and accelerator_config are both set; keep one of them",
            );
        }
        fields.insert("acceleratorType".into(), json!(kind));
    }
    if let Some(config) = &raw.accelerator_config {
        fields.insert(
            "acceleratorConfig".into(),
            json!({"type": config.kind, "topology": config.topology}),
        );
    }
    for (name, value) in [
        ("runtimeVersion", &raw.runtime_version),
        ("description", &raw.description),
        ("cidrBlock", &raw.cidr_block),
    ] {
        if let Some(value) = value {
            fields.insert(name.into(), json!(value));
        }
    }
    let capacity =
        [("spot", raw.spot), ("preemptible", raw.preemptible), ("reserved", raw.reserved)];
    let chosen: Vec<&str> =
        capacity.iter().filter(|(_, v)| *v == Some(true)).map(|(n, _)| *n).collect();
    if chosen.len() > 1 {
        c.wrong(&k(chosen[1]), format!("{} are both true; choose one", chosen.join(" and ")));
    }
    if capacity.iter().any(|(_, v)| v.is_some()) {
        // Choosing one clears the others; `false` alone clears itself.
        let scheduling = capacity.iter().filter(|(_, v)| v.is_some() || !chosen.is_empty()).map(
            |(name, value)| match value {
                Some(true) => ((*name).to_owned(), json!(true)),
                _ => ((*name).to_owned(), Value::Null),
            },
        );
        fields.insert("schedulingConfig".into(), Value::Object(scheduling.collect()));
    }
    let mut network = serde_json::Map::new();
    for (name, value) in [("network", &raw.network), ("subnetwork", &raw.subnetwork)] {
        if let Some(value) = value {
            network.insert(name.into(), json!(value));
        }
    }
    if let Some(external) = raw.external_ips {
        network.insert("enableExternalIps".into(), json!(external));
    }
    if !network.is_empty() {
        fields.insert("networkConfig".into(), Value::Object(network));
    }
    if let Some(email) = &raw.service_account {
        fields.insert("serviceAccount".into(), json!({"email": email}));
    }
    if let Some(tags) = &raw.tags {
        fields.insert("tags".into(), json!(tags));
    }
    let entries = |c: &mut Check, name: &str, raw: &BTreeMap<String, RawEntry>| {
        let mut map = BTreeMap::new();
        for (entry, value) in raw {
            match value {
                RawEntry::Text(text) => map.insert(entry.clone(), Some(text.clone())),
                RawEntry::Remove(false) => map.insert(entry.clone(), None),
                RawEntry::Remove(true) => {
                    c.wrong(
                        &k(&format!("{name}.{entry}")),
                        "true is no value; write text, or false to remove it",
                    );
                    None
                }
            };
        }
        map
    };
    let labels = entries(c, "labels", &raw.labels);
    for (label, value) in &labels {
        if let Err(why) = spec::label(label, value.as_deref().unwrap_or_default()) {
            c.wrong(&k(&format!("labels.{label}")), why);
        }
    }
    let metadata = entries(c, "metadata", &raw.metadata);
    for name in metadata.keys() {
        if name.starts_with("tpu-watchdog-") {
            c.wrong(
                &k(&format!("metadata.{name}")),
                "keys that begin with tpu-watchdog- are written by this program alone",
            );
        } else if name == "startup-script" {
            c.wrong(
                &k("metadata.startup-script"),
                "use the slot's startup_script = \"file\" instead",
            );
        }
    }
    Overlay { fields, labels, metadata, startup_script: None }
}
