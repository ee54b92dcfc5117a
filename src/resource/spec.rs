//! The specification of a node: learned from what the API returns, overlaid by the config, rendered
//! into a create.
//!
//! Lossless by construction: it is the raw JSON minus the fields known to be output-only or
//! derived, so that a field which this program never heard of survives a recreate.
//! `learn(render(s)) = s`, over any number of recreates.

use serde_json::{Map, Value, json};

use crate::model::ids::{OWNER_KEY, RUN_KEY, RunOrder, SLOT_KEY};
use crate::model::settings::Overlay;
use crate::model::spec::NodeSpec;

/// Metadata key: the user's startup script, verbatim, beside our supervisor.
pub const USER_SCRIPT_KEY: &str = "tpu-watchdog-user-script";
/// Metadata key: other keys that we added because the user had not set them.
pub const ADDED_KEY: &str = "tpu-watchdog-added";
/// The line by which a startup script is known to be our supervisor.
pub const SUPERVISOR_MARK: &str = "# tpu-watchdog-supervisor";
/// Needed on plain Compute Engine VMs for guest attributes; harmless elsewhere.
const GUEST_ATTRIBUTES_KEY: &str = "enable-guest-attributes";
const STARTUP_SCRIPT: &str = "startup-script";
const STARTUP_SCRIPT_URL: &str = "startup-script-url";
const OUR_PREFIX: &str = "tpu-watchdog-";

/// Fields that the API sets and never takes: Cloud TPU API v1, v2 and v2alpha1 reference.
const OUTPUT_ONLY: [&str; 15] = [
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
    // Reads return the derived range, creates take a /29: sent only when the config sets it.
    "cidrBlock",
];

/// Compute Engine metadata limits: 256 KiB a value, 512 KiB in all.
const METADATA_VALUE_MAX: usize = 262_144;
const METADATA_TOTAL_MAX: usize = 524_288;

impl NodeSpec {
    /// Learns the specification of a node from the API's JSON.
    pub fn learn(raw: &Value) -> Option<NodeSpec> {
        let mut body = raw.as_object()?.clone();
        for field in OUTPUT_ONLY {
            body.remove(field);
        }
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
        if let Some(scheduling) = body.get_mut("schedulingConfig").and_then(Value::as_object_mut) {
            scheduling.remove("terminationTimestamp");
        }
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            strip_ours(metadata);
            if metadata.is_empty() {
                body.remove("metadata");
            }
        }
        Some(NodeSpec(body))
    }

    /// The specification for a zone, which may lie in another region than the node that it was
    /// learned from: reads name a subnetwork also where the create named none, and a subnetwork
    /// lies in one region. There it is the one of the same name.
    pub fn in_zone(mut self, zone: &str) -> NodeSpec {
        let region = zone.rsplit_once('-').map_or(zone, |(region, _)| region);
        let several = self.0.get("networkConfigs").and_then(Value::as_array).map_or(0, Vec::len);
        let places = (0..several)
            .map(|i| format!("/networkConfigs/{i}/subnetwork"))
            .chain(["/networkConfig/subnetwork".into()]);
        let mut body = Value::Object(std::mem::take(&mut self.0));
        for place in places {
            if let Some(Value::String(path)) = body.pointer_mut(&place) {
                let mut parts: Vec<&str> = path.split('/').collect();
                if let Some(at) = parts
                    .iter()
                    .position(|part| *part == "regions")
                    .filter(|at| at + 1 < parts.len())
                {
                    parts[at + 1] = region;
                }
                *path = parts.join("/");
            }
        }
        if let Value::Object(body) = body {
            self.0 = body;
        }
        self
    }

    /// The specification with the config laid over it; labels and metadata merge per key.
    pub fn overlaid(&self, overlay: &Overlay) -> NodeSpec {
        let mut body = self.0.clone();
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
                // Nested objects merge one level deep: `spot` must not drop what was learned beside
                // it.
                (Some(Value::Object(old)), Value::Object(new)) => {
                    for (key, value) in new {
                        if value.is_null() {
                            old.remove(key)
                        } else {
                            old.insert(key.clone(), value.clone())
                        };
                    }
                }
                (_, Value::Object(new)) => {
                    let new = new
                        .iter()
                        .filter(|(_, v)| !v.is_null())
                        .map(|(k, v)| (k.clone(), v.clone()));
                    body.insert(key.clone(), Value::Object(new.collect()));
                }
                _ => {
                    body.insert(key.clone(), value.clone());
                }
            }
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
        NodeSpec(body)
    }

    /// Whether a node of this specification with this overlay would run a startup script from a
    /// URL.
    pub fn runs_a_url(learned: Option<&NodeSpec>, overlay: &Overlay) -> bool {
        match overlay.metadata.get(STARTUP_SCRIPT_URL) {
            Some(configured) => configured.is_some(),
            None => {
                overlay.startup_script.is_none()
                    && learned.is_some_and(|spec| spec.metadata(STARTUP_SCRIPT_URL).is_some())
            }
        }
    }

    /// Whether a node of this specification with this overlay would run a startup script of the
    /// user's, whatever it comes from.
    pub fn has_a_script(learned: Option<&NodeSpec>, overlay: &Overlay) -> bool {
        let learned = learned
            .and_then(|spec| spec.metadata(STARTUP_SCRIPT))
            .is_some_and(|script| !script.trim().is_empty());
        overlay.startup_script.is_some() || learned
    }

    fn metadata(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get(key)?.as_str()
    }

    /// The body of a create: the specification and our own metadata. With a supervisor, it becomes
    /// the startup script and the user's script stands verbatim beside it.
    pub fn render(
        &self,
        owner: &str,
        slot: &str,
        order: &RunOrder,
        supervisor: Option<&str>,
    ) -> Value {
        let mut body = self.0.clone();
        let mut metadata = match body.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        if let Some(supervisor) = supervisor {
            if let Some(script) = metadata.insert(STARTUP_SCRIPT.into(), json!(supervisor)) {
                metadata.insert(USER_SCRIPT_KEY.into(), script);
            }
            if !metadata.contains_key(GUEST_ATTRIBUTES_KEY) {
                metadata.insert(GUEST_ATTRIBUTES_KEY.into(), json!("TRUE"));
                metadata.insert(ADDED_KEY.into(), json!(GUEST_ATTRIBUTES_KEY));
            }
        }
        metadata.insert(OWNER_KEY.into(), json!(owner));
        metadata.insert(SLOT_KEY.into(), json!(slot));
        let order = json!({"generation": order.generation, "checkpoint": order.checkpoint, "step": order.step});
        metadata.insert(RUN_KEY.into(), json!(order.to_string()));
        body.insert("metadata".into(), Value::Object(metadata));
        Value::Object(body)
    }

    /// Everything that the API would refuse, found before anything is deleted.
    ///
    /// # Errors
    /// What is wrong, for a person; never with a metadata value in it.
    pub fn validate(&self) -> Result<(), String> {
        let text = |key: &str| self.0.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("acceleratorType").is_empty()
            && self.0.get("acceleratorConfig").is_none_or(|c| !c.is_object())
        {
            return Err("it has neither acceleratorType nor acceleratorConfig; set tpu.create.accelerator_type".into());
        }
        if text("runtimeVersion").is_empty() {
            return Err("it has no runtimeVersion; set tpu.create.runtime_version".into());
        }
        if self.0.contains_key("networkConfig") && self.0.contains_key("networkConfigs") {
            return Err(
                "it has several networks (networkConfigs), and the config sets one; remove network, subnetwork and external_ips"
                    .into(),
            );
        }
        if text("description").chars().count() > 512 {
            return Err("its description is longer than 512 characters".into());
        }
        if let Some(labels) = self.0.get("labels").and_then(Value::as_object) {
            for (key, value) in labels {
                let value = value.as_str().ok_or_else(|| format!("label {key:?} is not text"))?;
                label(key, value)?;
            }
        }
        if let Some(metadata) = self.0.get("metadata").and_then(Value::as_object) {
            let mut total = 0;
            for (key, value) in metadata {
                let value =
                    value.as_str().ok_or_else(|| format!("metadata {key:?} is not text"))?;
                if key.len() >= 128
                    || key.is_empty()
                    || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                {
                    return Err(format!(
                        "metadata key {key:?} must be 1 to 127 letters, digits, '-' or '_'"
                    ));
                }
                if value.len() > METADATA_VALUE_MAX {
                    return Err(format!(
                        "metadata {key:?} has {} bytes, more than 256 KiB; use startup-script-url",
                        value.len()
                    ));
                }
                total += key.len() + value.len();
            }
            if total > METADATA_TOTAL_MAX {
                return Err(format!("its metadata has {total} bytes in all, more than 512 KiB"));
            }
        }
        Ok(())
    }

    /// [`NodeSpec::validate`], also with everything that a create of the slot adds.
    ///
    /// # Errors
    /// What the API would refuse.
    pub fn acceptable(
        &self,
        owner: &str,
        slot: &str,
        supervisor: Option<&str>,
    ) -> Result<(), String> {
        self.validate()?;
        // The longest order that can be: a checkpoint's URI has at most 1,024 bytes of object name.
        let order =
            RunOrder { generation: u64::MAX, checkpoint: "x".repeat(1100), step: Some(u64::MAX) };
        let Value::Object(body) = self.render(owner, slot, &order, supervisor) else {
            return Ok(());
        };
        NodeSpec(body).validate().map_err(|why| format!("with the watchdog's own metadata, {why}"))
    }

    /// What laying `overlay` over this would change, by dotted key. Never values.
    pub fn drift(&self, overlay: &Overlay) -> Vec<String> {
        let wanted = self.overlaid(overlay);
        let mut keys = Vec::new();
        let (old, new) = (&self.0, &wanted.0);
        for key in old.keys().chain(new.keys().filter(|k| !old.contains_key(*k))) {
            match (old.get(key), new.get(key)) {
                (a, b) if a == b => {}
                (Some(Value::Object(a)), Some(Value::Object(b))) => {
                    let inner = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
                    keys.extend(
                        inner.filter(|k| a.get(*k) != b.get(*k)).map(|k| format!("{key}.{k}")),
                    );
                }
                _ => keys.push(key.clone()),
            }
        }
        keys
    }
}

/// Checks one label against Google Cloud's label syntax.
///
/// # Errors
/// Which rule it breaks.
pub fn label(key: &str, value: &str) -> Result<(), String> {
    let fits = |c: char| {
        c.is_lowercase()
            || c.is_numeric()
            || c == '-'
            || c == '_'
            || (c.is_alphabetic() && !c.is_uppercase())
    };
    if key.is_empty()
        || key.chars().count() > 63
        || !key.chars().all(fits)
        || !key.starts_with(|c: char| c.is_alphabetic())
    {
        return Err(format!(
            "label key {key:?} must be 1 to 63 lower-case letters, digits, '_' or '-', and start with a letter"
        ));
    }
    if value.chars().count() > 63 || !value.chars().all(fits) {
        return Err(format!(
            "label {key:?}: its value must be at most 63 lower-case letters, digits, '_' or '-'"
        ));
    }
    Ok(())
}

/// Whether this metadata's startup script is our supervisor: its head says so, and our own keys
/// stand beside it. A user's script that merely mentions the mark is the user's.
pub fn is_supervised(metadata: &Map<String, Value>) -> bool {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    let marked =
        |script: &str| script.lines().take(2).any(|line| line.starts_with(SUPERVISOR_MARK));
    text(STARTUP_SCRIPT).is_some_and(marked)
        && text(OWNER_KEY).is_some()
        && text(SLOT_KEY).is_some()
}

fn strip_ours(metadata: &mut Map<String, Value>) {
    if is_supervised(metadata) {
        match metadata.remove(USER_SCRIPT_KEY) {
            Some(script) => metadata.insert(STARTUP_SCRIPT.into(), script),
            None => metadata.remove(STARTUP_SCRIPT),
        };
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
