//! The specification of a node: learned from what the API returns, overlaid by the config, rendered
//! into a create.
//!
//! Lossless by construction: it is the raw JSON minus the fields known to be output-only or
//! derived, so that a field which this program never heard of survives a recreate.
//! `learn(render(s)) = s`, over any number of recreates.

use serde_json::{Map, Value, json};

use super::capacity;
use crate::model::filling::Filling;
use crate::model::ids::{OWNER_KEY, RUN_KEY, RunOrder, SLOT_KEY};
use crate::model::settings::Overlay;
use crate::model::spec::{NodeSpec, REQUEST_KEY, RESERVATION, SLICES_KEY};

/// Metadata key: the user's startup script, verbatim, next to our supervisor.
pub const USER_SCRIPT_KEY: &str = "tpu-watchdog-user-script";
/// Metadata key: where the user's startup script is fetched from.
pub const USER_SCRIPT_URL_KEY: &str = "tpu-watchdog-user-script-url";
/// Metadata key: other keys that we added because the user had not set them.
pub const ADDED_KEY: &str = "tpu-watchdog-added";
/// The line by which a startup script is known to be our supervisor.
pub const SUPERVISOR_MARK: &str = "# tpu-watchdog-supervisor";
/// Needed on plain Compute Engine VMs for guest attributes; harmless elsewhere.
const GUEST_ATTRIBUTES_KEY: &str = "enable-guest-attributes";
const STARTUP_SCRIPT: &str = "startup-script";
const STARTUP_SCRIPT_URL: &str = "startup-script-url";
const OUR_PREFIX: &str = "tpu-watchdog-";

/// Label by which a person opts a TPU out; the value is `off`.
pub const OPT_OUT_LABEL: &str = "tpu-watchdog";
/// Labels of Google's own services begin with this.
// unverified: a create that carries a goog-* label is refused; it is never sent back.
// settled by: gcloud compute tpus tpu-vm create NODE --zone ZONE --labels goog-test=1 --accelerator-type TYPE --version VERSION
const GOOGLE_LABELS: &str = "goog-";

/// Fields that the API sets and never takes: Cloud TPU API v1, v2 and v2alpha1 reference; and two that it prints for the node of
/// a queued resource, as Google's tutorials show it, which no version takes (`bootDisk`, `useTpuVm`).
const OUTPUT_ONLY: [&str; 18] = [
    "name",
    "id",
    "state",
    "health",
    "healthDescription",
    "symptoms",
    "upcomingMaintenance",
    "createTime",
    "apiVersion",
    "networkEndpoints",
    "multisliceNode",
    "queuedResource",
    "ipAddress",
    "port",
    "protectionTier",
    "bootDisk",
    "useTpuVm",
    // Reads return the derived range, creates take a /29: sent only when the config sets it.
    "cidrBlock",
];

/// Fields of a node that v2alpha1 alone takes and shows, by the field that holds them; an empty list
/// means the whole field. Source: discovery documents of v2 and v2alpha1, revision 20261001.
const ALPHA_ONLY: [(&str, &[&str]); 5] = [
    ("autocheckpointEnabled", &[]),
    (
        "bootDiskConfig",
        &[
            "diskSizeGb",
            "enableConfidentialCompute",
            "provisionedIops",
            "provisionedThroughput",
            "sourceImage",
            "storagePool",
        ],
    ),
    ("schedulingConfig", &["provisioningModel", "reservationName"]),
    ("dataDisks", &["workerIds"]),
    (REQUEST_KEY, &["bestEffort", "provisioningModel", "runDuration", "trafficConfig"]),
];

impl NodeSpec {
    /// The type that a create asks for, or its configuration.
    pub fn accelerator(&self) -> String {
        accelerator(&Value::Object(self.body().clone()))
    }

    /// How many nodes a create asks for.
    pub fn slices(&self) -> u64 {
        let around = self.body().get(REQUEST_KEY);
        around.and_then(|around| around.get(SLICES_KEY)?.as_u64()).unwrap_or(1)
    }

    /// Learns the specification of a node from the API's JSON.
    pub fn learn(raw: &Value) -> Option<NodeSpec> {
        let mut body = raw.as_object()?.clone();
        body.retain(|field, value| {
            let around = field == REQUEST_KEY && value.is_object();
            around || !OUTPUT_ONLY.contains(&field.as_str())
        });
        // Reads carry both; a create takes one.
        if body.get("acceleratorType").is_some_and(|t| t.as_str().is_some_and(|t| !t.is_empty())) {
            body.remove("acceleratorConfig");
        }
        let several = body.get("networkConfigs").and_then(Value::as_array).map_or(0, Vec::len);
        if several > 1 {
            body.remove("networkConfig");
        } else if several == 1 || body.contains_key("networkConfig") {
            let configs = body.remove("networkConfigs");
            if let (false, Some(Value::Array(mut only))) =
                (body.contains_key("networkConfig"), configs)
            {
                body.insert("networkConfig".into(), only.remove(0));
            }
        }
        never_sent(&mut body);
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            strip_ours(metadata);
            if metadata.is_empty() {
                body.remove("metadata");
            }
        }
        Some(NodeSpec::new(body))
    }

    /// This specification with the fields of v2alpha1 that `former` has, where v2 shows both alike:
    /// a read through v2 hides them, and loses none of them by it.
    pub fn with_hidden_of(mut self, former: &NodeSpec) -> NodeSpec {
        for (field, hidden) in ALPHA_ONLY {
            if field == REQUEST_KEY {
                capacity::with_hidden_of(self.body_mut(), former.body(), hidden);
                continue;
            }
            let shown = |spec: &NodeSpec| spec.body().get(field).and_then(|v| in_v2(v, hidden));
            if let Some(value) = former.body().get(field)
                && shown(&self) == shown(former)
            {
                self.body_mut().insert(field.to_owned(), value.clone());
            }
        }
        // v2 shows no `guaranteed.reserved` of a queued resource.
        let pointer =
            |spec: &NodeSpec| spec.body().get("schedulingConfig")?.get("reserved").cloned();
        if let Some(reserved) = pointer(former)
            && self.body().contains_key(REQUEST_KEY)
            && pointer(&self).is_none()
        {
            let scheduling = self.body_mut().entry("schedulingConfig").or_insert_with(|| json!({}));
            scheduling["reserved"] = reserved;
        }
        self
    }

    /// This specification with what it lacks taken from another one of the same node.
    pub fn filled_from(&self, other: &NodeSpec) -> Option<NodeSpec> {
        let mut body = self.body().clone();
        for (key, value) in other.body() {
            match (body.get_mut(key), value) {
                (Some(Value::Object(mine)), Value::Object(theirs)) => {
                    for (key, value) in theirs {
                        mine.entry(key).or_insert_with(|| value.clone());
                    }
                }
                (Some(_), _) => {}
                (None, _) => _ = body.insert(key.clone(), value.clone()),
            }
        }
        // Each of the two may have been given in the other's way.
        NodeSpec::learn(&Value::Object(body))
    }

    /// The specification for a zone, which may lie in another region than the node that it was
    /// learned from: reads name a subnetwork also where the create named none, and a subnetwork
    /// lies in one region. There it is the one of the same name, and so is a reservation, which lies in one zone.
    pub fn in_zone(mut self, zone: &str) -> NodeSpec {
        let region = zone.rsplit_once('-').map_or(zone, |(region, _)| region);
        let several =
            self.body().get("networkConfigs").and_then(Value::as_array).map_or(0, Vec::len);
        let places = (0..several)
            .map(|i| format!("/networkConfigs/{i}/subnetwork"))
            .chain(["/networkConfig/subnetwork".into()]);
        let mut body = Value::Object(std::mem::take(self.body_mut()));
        for place in places {
            if let Some(Value::String(path)) = body.pointer_mut(&place) {
                let mut parts: Vec<&str> = path.split('/').collect();
                let at = parts.iter().position(|part| *part == "regions");
                if let Some(at) = at.filter(|at| at + 1 < parts.len()) {
                    parts[at + 1] = region;
                }
                *path = parts.join("/");
            }
        }
        for place in capacity::RESERVED_BY {
            let name = body.get_mut(place).and_then(|of| of.get_mut(RESERVATION));
            if let Some(Value::String(path)) = name {
                let mut parts: Vec<&str> = path.split('/').collect();
                if let ["projects", _, "locations", at, "reservations", _] = &mut parts[..] {
                    *at = zone;
                }
                *path = parts.join("/");
            }
        }
        if let Value::Object(body) = body {
            *self.body_mut() = body;
        }
        self
    }

    /// Without what only a queued resource has, where a plain node is to be created.
    #[must_use]
    pub fn for_filling(mut self, filling: &Filling) -> NodeSpec {
        if *filling == Filling::Node {
            self.body_mut().remove(REQUEST_KEY);
        }
        self
    }

    /// The specification with the config laid over it; labels and metadata merge per key.
    pub fn overlaid(&self, overlay: &Overlay) -> NodeSpec {
        let mut body = self.body().clone();
        for (key, value) in &overlay.fields {
            match key.as_str() {
                "acceleratorType" => body.remove("acceleratorConfig"),
                "acceleratorConfig" => body.remove("acceleratorType"),
                _ => None,
            };
            match (body.get_mut(key), value) {
                (_, Value::Null) => {
                    body.remove(key);
                }
                // Nested objects merge one level deep: `spot` must not drop what was learned
                // along with it.
                (Some(Value::Object(old)), Value::Object(new)) => {
                    for (key, value) in new {
                        let same = |old: &Value| capacity::means_the_same(key, (old, value));
                        match value {
                            Value::Null => _ = old.remove(key),
                            // The learned one says it in full.
                            _ if old.get(key).is_some_and(same) => {}
                            _ => _ = old.insert(key.clone(), value.clone()),
                        }
                    }
                }
                (_, Value::Object(new)) => {
                    let new = new
                        .iter()
                        .filter(|(_, v)| !v.is_null())
                        .map(|(k, v)| (k.clone(), v.clone()));
                    let new: Map<String, Value> = new.collect();
                    // It only clears, and there is nothing to clear.
                    if !new.is_empty() {
                        body.insert(key.clone(), Value::Object(new));
                    }
                }
                _ => {
                    body.insert(key.clone(), value.clone());
                }
            }
        }
        if ["schedulingConfig", REQUEST_KEY].iter().any(|key| overlay.fields.contains_key(*key)) {
            let scheduling = overlay.fields.get("schedulingConfig");
            capacity::agree(&mut body, scheduling.is_some_and(|of| of.get("spot").is_some()));
        }
        if !overlay.labels.is_empty() {
            merge(&mut body, "labels", overlay.labels.iter());
        }
        if !overlay.metadata.is_empty() {
            merge(&mut body, "metadata", overlay.metadata.iter());
        }
        if let Some(script) = &overlay.startup_script {
            merge(
                &mut body,
                "metadata",
                [(&STARTUP_SCRIPT.to_owned(), &Some(script.clone()))].into_iter(),
            );
            // The file takes the place of whatever set the node up before.
            if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut)
                && !overlay.metadata.contains_key(STARTUP_SCRIPT_URL)
            {
                metadata.remove(STARTUP_SCRIPT_URL);
            }
        }
        NodeSpec::new(body)
    }

    /// Whether a node of this specification with this overlay would run a startup script of the
    /// user's, whatever it comes from.
    pub fn has_a_script(learned: Option<&NodeSpec>, overlay: &Overlay) -> bool {
        let is_there = |key| match overlay.metadata.get(key) {
            Some(configured) => configured.is_some(),
            None => learned
                .and_then(|spec| spec.metadata(key))
                .is_some_and(|value| !value.trim().is_empty()),
        };
        overlay.startup_script.is_some() || is_there(STARTUP_SCRIPT) || is_there(STARTUP_SCRIPT_URL)
    }

    /// The text of that script, where it is known: a URL's is not.
    pub fn script<'a>(learned: Option<&'a NodeSpec>, overlay: &'a Overlay) -> Option<&'a str> {
        let configured = overlay.metadata.get(STARTUP_SCRIPT).map(|text| text.as_deref());
        let learned = || learned.and_then(|spec| spec.metadata(STARTUP_SCRIPT));
        overlay.startup_script.as_deref().or_else(|| configured.unwrap_or_else(learned))
    }

    fn metadata(&self, key: &str) -> Option<&str> {
        self.body().get("metadata")?.get(key)?.as_str()
    }

    /// The body of a create: the specification and our own metadata. With a supervisor, it becomes
    /// the startup script and the user's script, or its URL, stands verbatim next to it.
    pub fn render(
        &self,
        owner: &str,
        slot: &str,
        order: &RunOrder,
        supervisor: Option<&str>,
    ) -> Value {
        let mut body = self.body().clone();
        // Learned by a former version, or set by the config.
        for key in ["protectionTier", "bootDisk", "useTpuVm"] {
            body.remove(key);
        }
        never_sent(&mut body);
        let mut metadata = match body.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        if let Some(supervisor) = supervisor {
            if let Some(script) = metadata.insert(STARTUP_SCRIPT.into(), json!(supervisor)) {
                metadata.insert(USER_SCRIPT_KEY.into(), script);
            }
            // Google's agent would run it before, during or after the supervisor, by its version.
            if let Some(url) = metadata.remove(STARTUP_SCRIPT_URL) {
                metadata.insert(USER_SCRIPT_URL_KEY.into(), url);
            }
            if !metadata.contains_key(GUEST_ATTRIBUTES_KEY) {
                metadata.insert(GUEST_ATTRIBUTES_KEY.into(), json!("TRUE"));
                metadata.insert(ADDED_KEY.into(), json!(GUEST_ATTRIBUTES_KEY));
            }
        }
        metadata.insert(OWNER_KEY.into(), json!(owner));
        metadata.insert(SLOT_KEY.into(), json!(slot));
        metadata.insert(RUN_KEY.into(), json!(order.text()));
        body.insert("metadata".into(), Value::Object(metadata));
        Value::Object(body)
    }

    /// The dotted keys that laying `overlay` over this would change. Never values.
    pub fn drift(&self, overlay: &Overlay) -> Vec<String> {
        self.differences(&self.overlaid(overlay))
    }

    /// The dotted keys in which another specification differs. Never values.
    pub fn differences(&self, other: &NodeSpec) -> Vec<String> {
        let mut keys = Vec::new();
        let (old, new) = (self.body(), other.body());
        for key in old.keys().chain(new.keys().filter(|k| !old.contains_key(*k))) {
            match (old.get(key), new.get(key)) {
                (a, b) if a == b => {}
                (Some(Value::Object(a)), Some(Value::Object(b))) => {
                    let inner = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
                    let same = |k: &str| match (a.get(k), b.get(k)) {
                        (Some(a), Some(b)) => capacity::means_the_same(k, (a, b)),
                        (a, b) => a == b,
                    };
                    keys.extend(inner.filter(|k| !same(k)).map(|k| format!("{key}.{k}")));
                }
                _ => keys.push(key.clone()),
            }
        }
        keys
    }
}

/// The type of a node, or its configuration.
pub(super) fn accelerator(raw: &Value) -> String {
    if let Some(kind) = raw.get("acceleratorType").and_then(Value::as_str) {
        return kind.to_owned();
    }
    let part = |key: &str| {
        raw.pointer("/acceleratorConfig")
            .and_then(|c| c.get(key))
            .and_then(Value::as_str)
            .unwrap_or("?")
    };
    format!("{}:{}", part("type"), part("topology"))
}

/// Whether the body of a create has fields that v2alpha1 alone takes.
pub fn needs_alpha(body: &Value) -> bool {
    let has = |value: &Value, hidden: &[&str]| {
        hidden.is_empty() || hidden.iter().any(|key| value.get(key).is_some())
    };
    ALPHA_ONLY.iter().any(|(field, hidden)| match body.get(field) {
        Some(Value::Array(all)) => all.iter().any(|value| has(value, hidden)),
        Some(value) => has(value, hidden),
        None => false,
    })
}

/// The part of a field that v2 shows and takes; nothing where it would be empty.
fn in_v2(value: &Value, hidden: &[&str]) -> Option<Value> {
    match value {
        _ if hidden.is_empty() => None,
        Value::Object(all) => {
            let mut all = all.clone();
            all.retain(|key, _| !hidden.contains(&key.as_str()));
            Some(all).filter(|all| !all.is_empty()).map(Value::Object)
        }
        Value::Array(all) => {
            let shown = |value| in_v2(value, hidden).unwrap_or(Value::Null);
            Some(Value::Array(all.iter().map(shown).collect()))
        }
        value => Some(value.clone()),
    }
}

/// Takes out of a body all that is never part of a create, whoever put it there.
fn never_sent(body: &mut Map<String, Value>) {
    if let Some(labels) = body.get_mut("labels").and_then(Value::as_object_mut) {
        labels.retain(|key, value| {
            !(key.starts_with(GOOGLE_LABELS) || key == OPT_OUT_LABEL && *value == "off")
        });
        if labels.is_empty() {
            body.remove("labels");
        }
    }
    if let Some(scheduling) = body.get_mut("schedulingConfig").and_then(Value::as_object_mut) {
        scheduling.remove("terminationTimestamp");
        if is_true(scheduling, "spot") && is_true(scheduling, "preemptible") {
            scheduling.remove("preemptible");
        }
        // Refused by v2alpha1: "STANDARD provisioning model is incompatible with spot requests".
        if is_true(scheduling, "spot")
            && scheduling.get("provisioningModel").is_some_and(|model| model == "STANDARD")
        {
            scheduling.remove("provisioningModel");
        }
    }
}

fn is_true(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).is_some_and(|value| *value == true)
}

/// Whether this metadata's startup script is our supervisor: its head says so, and our own keys
/// stand next to it. A user's script that merely mentions the mark is the user's.
pub fn is_supervised(metadata: &Map<String, Value>) -> bool {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    let marked =
        |script: &str| script.lines().take(2).any(|line| line.starts_with(SUPERVISOR_MARK));
    text(STARTUP_SCRIPT).is_some_and(marked)
        && text(OWNER_KEY).is_some()
        && text(SLOT_KEY).is_some()
}

/// Takes out of a node's metadata all that is ours, and puts the user's startup script back.
pub fn strip_ours(metadata: &mut Map<String, Value>) {
    if is_supervised(metadata) {
        match metadata.remove(USER_SCRIPT_KEY) {
            Some(script) => metadata.insert(STARTUP_SCRIPT.into(), script),
            None => metadata.remove(STARTUP_SCRIPT),
        };
        if let Some(url) = metadata.remove(USER_SCRIPT_URL_KEY) {
            metadata.insert(STARTUP_SCRIPT_URL.into(), url);
        }
    }
    if let Some(Value::String(added)) = metadata.remove(ADDED_KEY) {
        for key in added.split(',') {
            metadata.remove(key);
        }
    }
    metadata.retain(|key, _| !key.starts_with(OUR_PREFIX));
}

fn merge<'a>(
    body: &mut Map<String, Value>,
    field: &str,
    entries: impl Iterator<Item = (&'a String, &'a Option<String>)>,
) {
    let mut map = match body.remove(field) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    for (key, value) in entries {
        match value {
            Some(value) => map.insert(key.clone(), json!(value)),
            None => map.remove(key),
        };
    }
    if !map.is_empty() {
        body.insert(field.to_owned(), Value::Object(map));
    }
}
