//! `[[tpu]]`: one slot, and how its node is created.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::Check;
use super::create;
use super::job::job;
use super::policy::policy;
use super::raw::*;
use crate::model::filling::Filling;
use crate::model::settings::*;
use crate::model::spec::{REQUEST_KEY, RESERVATION, SLICES_KEY, SLICES_MAX};
use crate::resource::limits;

/// A request that is valid for less would end before its first look at the queue.
const VALID_LEAST: Duration = Duration::from_secs(60);
/// How long flex-start capacity may be asked for. Source: "Request TPUs using flex-start".
const RUN_LEAST: Duration = Duration::from_secs(60);
const RUN_MOST: Duration = Duration::from_secs(7 * 86_400);

pub fn slot(c: &mut Check, key: &str, raw: RawTpu, fleet: &Policy, folder: &Path) -> SlotSettings {
    let k = |name: &str| format!("{key}.{name}");
    if !fits_name(&raw.name) {
        c.wrong(
            &k("name"),
            format!("{:?} is not a node id: 1 to 63 lower-case letters, digits and '-', starting with a letter", raw.name),
        );
    }
    let filling = filling(c, key, &raw);
    let zones = places(c, key, &ZONE, raw.zone, raw.zones);
    fleet_alone(c, &k("policy"), &raw.policy);
    let policy = policy(c, &k("policy"), &raw.policy, fleet.clone());
    if filling.has_nodes() && policy.on_success == OnSuccess::Stop {
        let text = "\"stop\" is not possible: the API stops no TPU of a queued resource; write on_success = \"keep\" or \"delete\" here";
        c.wrong(&k("policy.on_success"), text);
    }
    let place = raw.create.reservation.as_deref().and_then(|name| name.split('/').nth(3));
    if let Some(zone) = place.filter(|zone| zones.iter().any(|of| of != zone)) {
        let text = format!(
            "is in {zone}, and the slot may be created elsewhere; write its name alone, for the one of each zone"
        );
        c.wrong(&k("create.reservation"), text);
    }
    let mut create = overlay(c, &k("create"), &raw.create, &filling);
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
    let job = raw.job.map(|raw| job(c, &k("job"), raw));
    SlotSettings { name: raw.name, zones, filling, create, job, policy, supervisor: None }
}

/// The words for where a thing lives.
pub struct Place {
    pub one: &'static str,
    pub many: &'static str,
    pub parts: usize,
    pub example: &'static str,
}

const ZONE: Place = Place { one: "zone", many: "zones", parts: 3, example: "us-central2-b" };

/// The zones, or regions, of a slot, by the one key or the other.
pub fn places(
    c: &mut Check,
    key: &str,
    of: &Place,
    one: Option<String>,
    many: Option<Vec<String>>,
) -> Vec<String> {
    let Place { one: noun, many: nouns, parts, example } = *of;
    let (key, keys) = (format!("{key}.{noun}"), format!("{key}.{nouns}"));
    let places = match (one, many) {
        (Some(place), None) => vec![place],
        (None, Some(places)) => places,
        (Some(_), Some(_)) => {
            c.wrong(&keys, format!("{noun} and {nouns} are both set; keep one of them"));
            return Vec::new();
        }
        (None, None) => {
            let text = format!("is missing; write {noun} = {example:?}, or {nouns} = [ … ]");
            c.wrong(&key, text);
            return Vec::new();
        }
    };
    if places.is_empty() {
        c.wrong(&keys, format!("is empty; name at least one {noun}"));
    }
    for (index, place) in places.iter().enumerate() {
        if place.split('-').count() != parts || !place.bytes().all(fits_byte) {
            c.wrong(&key, format!("{place:?} is not a {noun}; they look like {example:?}"));
        }
        if places[..index].contains(place) {
            c.wrong(&keys, format!("{place:?} is named twice"));
        }
    }
    places
}

fn fits_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

/// Whether a slot may have this name: that of a node.
pub fn fits_name(name: &str) -> bool {
    name.starts_with(|ch: char| ch.is_ascii_lowercase())
        && name.bytes().all(fits_byte)
        && name.len() <= 63
        && !name.ends_with('-')
}

/// The thing that fills the slot: its node, or a queued resource.
fn filling(c: &mut Check, key: &str, raw: &RawTpu) -> Filling {
    let k = |name: &str| format!("{key}.{name}");
    c.later(&k("group"), &raw.group, "managed instance groups of Compute Engine");
    let kind = match (raw.kind.as_deref(), &raw.queued_resource) {
        (Some("queued_resource"), _) | (None, Some(_)) => Kind::Queued,
        (Some("node") | None, None) => Kind::Node,
        (Some("node"), Some(_)) => {
            c.wrong(&k("kind"), "\"node\" and queued_resource are both set; keep one of them");
            Kind::Node
        }
        (Some(later @ ("instance" | "slice" | "node_v1")), _) => {
            c.wrong(&k("kind"), format!("not supported yet: {later:?}; remove the key"));
            Kind::Node
        }
        (Some(other), _) => {
            c.wrong(
                &k("kind"),
                format!("{other:?} is no kind; write \"node\" or \"queued_resource\""),
            );
            Kind::Node
        }
    };
    if matches!(kind, Kind::Node) {
        let create = &raw.create;
        for (name, given) in [
            ("create.valid_until", create.valid_until.is_some()),
            ("create.nodes", create.nodes.is_some()),
            ("create.provisioning_model", create.provisioning_model.is_some()),
            ("create.max_run", create.max_run.is_some()),
        ] {
            if given {
                let why = "works only with a queued resource; set queued_resource = \"ID\", or remove the key";
                c.wrong(&k(name), why);
            }
        }
        return Filling::Node;
    }
    let id = raw.queued_resource.clone().unwrap_or_else(|| raw.name.clone());
    // The API's own rule for an id.
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.~+%-".contains(&b);
    if id.is_empty() || !id.bytes().all(fits) {
        let text = format!(
            "{id:?} is not the id of a queued resource: letters, digits and _.~+%-; of a full name write the last part"
        );
        c.wrong(&k("queued_resource"), text);
    }
    Filling::QueuedResource(id)
}

/// The kinds that are supported.
enum Kind {
    Node,
    Queued,
}

/// Rules of the whole fleet, which a slot can't have for itself.
pub fn fleet_alone(c: &mut Check, key: &str, raw: &RawPolicy) {
    for (name, given) in [
        ("max_unavailable", raw.max_unavailable.is_some()),
        ("storm", raw.storm.is_some()),
        ("max_judged_recreates_per_hour", raw.max_judged_recreates_per_hour.is_some()),
        ("orphans", raw.orphans.is_some()),
    ] {
        if given {
            c.wrong(&format!("{key}.{name}"), "is the whole fleet's; set it under [policy]");
        }
    }
}

fn overlay(c: &mut Check, key: &str, raw: &RawCreate, filling: &Filling) -> Overlay {
    let k = |name: &str| format!("{key}.{name}");
    create::values(c, key, raw);
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
    if let Some(scheduling) = capacity(c, key, raw) {
        fields.insert("schedulingConfig".into(), scheduling);
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
    if let Some(gb) = raw.boot_disk_gb {
        fields.insert("bootDiskConfig".into(), json!({"diskSizeGb": gb.to_string()}));
    }
    let around_it = [raw.valid_until.is_some(), raw.nodes.is_some()];
    if around_it.contains(&true) || raw.provisioning_model.is_some() || raw.max_run.is_some() {
        fields.insert(REQUEST_KEY.into(), around(c, key, raw));
    }
    if let Some(name) = &raw.reservation {
        let of = if filling.has_nodes() { REQUEST_KEY } else { "schedulingConfig" };
        fields.entry(of.into()).or_insert_with(|| json!({}))[RESERVATION] = json!(name);
    }
    if let Some(email) = &raw.service_account {
        fields.insert("serviceAccount".into(), json!({"email": email}));
    }
    if let Some(tags) = &raw.tags {
        fields.insert("tags".into(), json!(tags));
    }
    let (labels, metadata) = entries(c, key, raw);
    Overlay { fields, labels, metadata, startup_script: None }
}

/// The capacity that is chosen, and what that takes the place of.
fn capacity(c: &mut Check, key: &str, raw: &RawCreate) -> Option<Value> {
    // One that is named is the capacity.
    let reserved = raw.reserved.or(raw.reservation.as_ref().map(|_| true));
    let all = [("spot", raw.spot), ("preemptible", raw.preemptible), ("reserved", reserved)];
    if raw.reservation.is_some() && raw.reserved == Some(false) {
        c.wrong(&format!("{key}.reservation"), "and reserved = false exclude each other; keep one");
    }
    let chosen: Vec<&str> = all.iter().filter(|(_, v)| *v == Some(true)).map(|(n, _)| *n).collect();
    if chosen.len() > 1 {
        let key = format!("{key}.{}", chosen[1]);
        c.wrong(&key, format!("{} are both true; choose one", chosen.join(" and ")));
    }
    let flexible = raw.provisioning_model.as_deref() == Some("flex-start");
    if !flexible && all.iter().all(|(_, value)| value.is_none()) {
        return None;
    }
    // Choosing one clears the others; `false` alone clears itself.
    let clears = flexible || !chosen.is_empty();
    let scheduling =
        all.iter().filter(|(_, v)| v.is_some() || clears).map(|(name, value)| match value {
            Some(true) if !flexible => ((*name).to_owned(), json!(true)),
            _ => ((*name).to_owned(), Value::Null),
        });
    Some(Value::Object(scheduling.collect()))
}

/// The fields of a queued resource around its nodes.
fn around(c: &mut Check, key: &str, raw: &RawCreate) -> Value {
    let k = |name: &str| format!("{key}.{name}");
    let mut around = json!({});
    if let Some(valid) = raw.valid_until {
        let valid = c.span(&k("valid_until"), Some(valid), VALID_LEAST, VALID_LEAST);
        around["queueingPolicy"] = json!({"validUntilDuration": format!("{}s", valid.as_secs())});
    }
    flex_start(c, key, raw, &mut around);
    match raw.nodes {
        None => {}
        // One of a request that was learned with several.
        Some(1) => around[SLICES_KEY] = Value::Null,
        Some(count) if (2..=SLICES_MAX).contains(&count) => around[SLICES_KEY] = json!(count),
        Some(count) => {
            let text = format!("{count} is no number of slices; write 1 to {SLICES_MAX}");
            c.wrong(&k("nodes"), text);
        }
    }
    around
}

/// Capacity that waits for its start and ends by itself.
fn flex_start(c: &mut Check, key: &str, raw: &RawCreate, around: &mut Value) {
    let k = |name: &str| format!("{key}.{name}");
    let flexible = match raw.provisioning_model.as_deref() {
        None => false,
        Some("flex-start") => true,
        Some("standard") => {
            // One of a request that was learned as flex-start.
            (around["provisioningModel"], around["runDuration"]) = (Value::Null, Value::Null);
            false
        }
        Some(other) => {
            let text = format!(
                "{other:?} is unknown; write \"flex-start\" or \"standard\"; for other capacity use spot = true or reserved = true"
            );
            c.wrong(&k("provisioning_model"), text);
            return;
        }
    };
    if flexible {
        around["provisioningModel"] = json!("FLEX_START");
        let chosen =
            [("spot", raw.spot), ("preemptible", raw.preemptible), ("reserved", raw.reserved)];
        let named = ("reservation", raw.reservation.as_ref().map(|_| true));
        for (name, _) in chosen.iter().chain([&named]).filter(|(_, value)| *value == Some(true)) {
            c.wrong(&k(name), "and flex-start exclude each other; keep one of them");
        }
    }
    let Some(lasts) = raw.max_run else { return };
    let lasts = c.span(&k("max_run"), Some(lasts), RUN_LEAST, RUN_LEAST);
    if !flexible {
        c.wrong(
            &k("max_run"),
            "works only with flex-start; set provisioning_model = \"flex-start\"",
        );
    } else if lasts > RUN_MOST {
        c.wrong(&k("max_run"), "flex-start capacity lasts 7 days at most; write \"7d\" or less");
    }
    around["runDuration"] = json!({"maxRunDuration": format!("{}s", lasts.as_secs())});
}

/// Labels and metadata: text, or nothing where an entry is removed.
type Entries = BTreeMap<String, Option<String>>;

fn entries(c: &mut Check, key: &str, raw: &RawCreate) -> (Entries, Entries) {
    let k = |name: &str| format!("{key}.{name}");
    let read = |c: &mut Check, name: &str, raw: &BTreeMap<String, RawEntry>| {
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
    let labels = read(c, "labels", &raw.labels);
    for (label, value) in &labels {
        if let Err(why) = limits::label(label, value.as_deref().unwrap_or_default()) {
            c.wrong(&k(&format!("labels.{label}")), why);
        }
    }
    let metadata = read(c, "metadata", &raw.metadata);
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
    (labels, metadata)
}
