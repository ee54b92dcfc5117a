//! The limits of a create: whatever the API would refuse is found before anything is deleted; and the capacity, and so the quota,
//! that it would be served from.

use serde_json::Value;

use crate::model::ids::RunOrder;
use crate::model::spec::{NodeSpec, REQUEST_KEY, TRAINING_KEY};
use crate::model::training::JobKind;

use super::capacity;

/// From which capacity a node is created: each has a quota of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capacity {
    /// Neither of the others.
    OnDemand,
    /// Also what is preemptible.
    Spot,
    /// A reservation's.
    Reserved,
}

impl NodeSpec {
    /// From which capacity a create would be served, by its quota: flex-start is counted as preemptible.
    pub fn capacity(&self) -> Capacity {
        let (body, around) = (self.body(), self.body().get(REQUEST_KEY));
        let scheduling = body.get("schedulingConfig");
        let flag = |key| scheduling.and_then(|s| s.get(key)?.as_bool()) == Some(true);
        match () {
            () if flag("spot") || flag("preemptible") => Capacity::Spot,
            () if flag("reserved") => Capacity::Reserved,
            () if around.is_some_and(|of| of.get("runDuration").is_some()) => Capacity::Spot,
            () if around.is_some_and(capacity::is_taken_back) => Capacity::Spot,
            () => Capacity::OnDemand,
        }
    }
}

/// Compute Engine metadata limits: 256 KiB a value, 512 KiB in all.
// unverified: the limits of Compute Engine instances hold for the metadata of a TPU node.
// settled by: gcloud compute tpus tpu-vm create NODE --zone ZONE --accelerator-type TYPE --version VERSION --metadata-from-file=key=FILE, of 256 KiB
const METADATA_VALUE_MAX: usize = 262_144;
const METADATA_TOTAL_MAX: usize = 524_288;

impl NodeSpec {
    /// Everything that the API would refuse, found before anything is deleted.
    ///
    /// # Errors
    /// The mistake, for an operator; never with a metadata value in it.
    pub fn validate(&self) -> Result<(), String> {
        let text = |key: &str| self.body().get(key).and_then(Value::as_str).unwrap_or_default();
        let job = self.body().get(TRAINING_KEY);
        let field = job.map_or("", |job| JobKind::of(job).spec());
        if job.is_some_and(|job| !job.get(field).is_some_and(Value::is_object)) {
            return Err(format!("its specification has no {field}"));
        }
        let is_node = job.is_none();
        if is_node
            && text("acceleratorType").is_empty()
            && self.body().get("acceleratorConfig").is_none_or(|c| !c.is_object())
        {
            return Err("it has neither acceleratorType nor acceleratorConfig; set tpu.create.accelerator_type".into());
        }
        if is_node && text("runtimeVersion").is_empty() {
            return Err("it has no runtimeVersion; set tpu.create.runtime_version".into());
        }
        if self.body().contains_key("networkConfig") && self.body().contains_key("networkConfigs") {
            return Err(
                "it has several networks (networkConfigs), and the config sets one; remove network, subnetwork and external_ips"
                    .into(),
            );
        }
        if text("description").chars().count() > 512 {
            return Err("its description is longer than 512 characters".into());
        }
        if let Some(labels) = self.body().get("labels").and_then(Value::as_object) {
            for (key, value) in labels {
                let value = value.as_str().ok_or_else(|| format!("label {key:?} is not text"))?;
                // A job that was read has labels that its API took, by another rule.
                if is_node {
                    label(key, value)?;
                }
            }
        }
        if let Some(metadata) = self.body().get("metadata").and_then(Value::as_object) {
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
    /// The part that the API would refuse.
    pub fn acceptable(
        &self,
        owner: &str,
        slot: &str,
        supervisor: Option<&str>,
    ) -> Result<(), String> {
        self.validate()?;
        // The longest order that can be: a checkpoint's URI has at most 1,024 bytes of object name.
        let order = RunOrder {
            generation: u64::MAX,
            checkpoint: "x".repeat(1100),
            step: Some(u64::MAX),
            wait: true,
            notice: true,
            roll_called: true,
            // A create orders no reboot.
            reboot: Vec::new(),
        };
        let Value::Object(body) = self.render(owner, slot, &order, supervisor) else {
            return Ok(());
        };
        NodeSpec::new(body)
            .validate()
            .map_err(|why| format!("with the watchdog's own metadata, {why}"))
    }
}

/// Checks one label of a TPU against Google Cloud's label syntax.
///
/// # Errors
/// Which rule it breaks.
pub fn label(key: &str, value: &str) -> Result<(), String> {
    if !key.starts_with(char::is_alphabetic) {
        return Err(format!("label key {key:?} must start with a letter"));
    }
    label_within(63, key, value)
}

/// The same of a managed training job. Source: aiplatform v1, `CustomJob.labels`.
///
/// # Errors
/// Which rule it breaks.
pub fn job_label(key: &str, value: &str) -> Result<(), String> {
    label_within(64, key, value)
}

fn label_within(most: usize, key: &str, value: &str) -> Result<(), String> {
    let fits = |c: char| (c.is_alphanumeric() && !c.is_uppercase()) || c == '-' || c == '_';
    let fit = |text: &str| text.chars().count() <= most && text.chars().all(fits);
    if key.is_empty() || !fit(key) {
        return Err(format!(
            "label key {key:?} must be 1 to {most} lower-case letters, digits, '_' or '-'"
        ));
    }
    if !fit(value) {
        return Err(format!(
            "label {key:?}: its value must be at most {most} lower-case letters, digits, '_' or '-'"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_label_of_a_job_may_be_longer_than_that_of_a_tpu_and_begin_with_a_digit() {
        let digest = "0".repeat(64);
        for (key, value, of_a_tpu, of_a_job) in [
            ("team", "llm", true, true),
            ("2024-run", "1", false, true),
            ("config-sha", digest.as_str(), false, true),
            ("config-sha", &"0".repeat(65), false, false),
            ("Team", "llm", false, false),
            ("team", "LLM", false, false),
            ("", "llm", false, false),
        ] {
            assert_eq!(label(key, value).is_ok(), of_a_tpu, "{key} {value}");
            assert_eq!(job_label(key, value).is_ok(), of_a_job, "{key} {value}");
        }
        // One that was read is taken as it is.
        let job = json!({"jobSpec": {"workerPoolSpecs": []}});
        let spec = json!({"labels": {"2024-run": digest}, TRAINING_KEY: job});
        assert_eq!(NodeSpec::new(spec.as_object().unwrap().clone()).validate(), Ok(()));
    }

    #[test]
    fn flex_start_is_served_from_the_quota_of_preemptible_tpus() {
        for (body, capacity) in [
            (json!({}), Capacity::OnDemand),
            (json!({"schedulingConfig": {"spot": true}}), Capacity::Spot),
            (json!({"schedulingConfig": {"reserved": true}}), Capacity::Reserved),
            (json!({"queuedResource": {"runDuration": {"maxRunDuration": "60s"}}}), Capacity::Spot),
            (json!({"queuedResource": {"bestEffort": {}}}), Capacity::Spot),
            (json!({"queuedResource": {"provisioningModel": "SPOT"}}), Capacity::Spot),
            (json!({"queuedResource": {"provisioningModel": "STANDARD"}}), Capacity::OnDemand),
        ] {
            let spec = NodeSpec::new(body.as_object().unwrap().clone());
            assert_eq!(spec.capacity(), capacity, "{body}");
        }
    }
}
