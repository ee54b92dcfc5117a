//! Permissions on the project: which of those that the program needs its account lacks, and what happens without
//! each.

use std::collections::BTreeSet;
use std::time::Instant;

use super::findings::{Finding, doubt, fine, missing};
use super::wire::Clients;
use crate::config::Config;
use crate::model::training::JobKind;

/// The role that the program needs, as it is handed out.
const ROLE: &str = include_str!("../../deploy/iam/role.yaml");

/// A permission for managed training jobs of a kind, and what happens without it.
const TRAINING: [(JobKind, &str, &str); 12] = [
    (JobKind::Custom, "aiplatform.customJobs.list", UNREAD),
    (JobKind::Custom, "aiplatform.customJobs.get", NO_END),
    (JobKind::Custom, "aiplatform.customJobs.create", UNSENT),
    (JobKind::Custom, "aiplatform.customJobs.cancel", NO_CANCEL),
    (JobKind::Tuning, "aiplatform.hyperparameterTuningJobs.list", UNREAD),
    (JobKind::Tuning, "aiplatform.hyperparameterTuningJobs.get", NO_END),
    (JobKind::Tuning, "aiplatform.hyperparameterTuningJobs.create", UNSENT),
    (JobKind::Tuning, "aiplatform.hyperparameterTuningJobs.cancel", NO_CANCEL),
    (JobKind::Legacy, "ml.jobs.list", UNREAD),
    (JobKind::Legacy, "ml.jobs.get", NO_END),
    (JobKind::Legacy, "ml.jobs.create", UNSENT),
    (JobKind::Legacy, "ml.jobs.cancel", NO_CANCEL),
];
const UNREAD: &str = "no training job is read, and each is held";
const NO_END: &str = "an end is never read, and nothing is submitted again";
const NO_CANCEL: &str = "a job that saves nothing for `stall`, or is there twice, is not cancelled";
const UNSENT: &str = "a job that has failed is not submitted again";

/// A permission, and what happens without it.
const WITHOUT: [(&str, &str); 9] = [
    ("tpu.nodes.list", "nothing is read, everything is held"),
    ("tpu.nodes.get", "nothing is ever condemned"),
    ("tpu.nodes.delete", "a recovery stops at its delete"),
    ("tpu.nodes.create", "a deleted TPU is not created again"),
    (
        "tpu.nodes.update",
        "a job is not started again on the TPU that is there, a pause does not reach its hosts",
    ),
    ("tpu.operations.get", "deletes and creates are followed more slowly"),
    ("tpu.operations.list", "a TPU that was deleted on purpose is created again"),
    ("tpu.runtimeversions.get", "a runtime version that is gone is noticed at the create"),
    ("tpu.acceleratortypes.get", "a type that is gone is noticed at the create"),
];

/// Asks the API, and says what is missing together with the command that grants it.
pub async fn permissions(clients: &Clients, config: &Config, account: &str) -> Vec<Finding> {
    let slots = config.settings.slots.values();
    let (jobs, tpus): (Vec<_>, Vec<_>) = slots.partition(|slot| slot.filling.traits().is_job);
    let of_role = ROLE.lines().filter_map(|line| line.strip_prefix("- "));
    let trainings = || jobs.iter().filter_map(|slot| slot.filling.training());
    let kinds: BTreeSet<JobKind> = trainings().flat_map(|of| of.kinds()).collect();
    // A name or labels may be those of a tuning job as well.
    let named: BTreeSet<JobKind> = trainings().map(|of| of.kind).collect();
    let of_jobs =
        TRAINING.iter().filter(|(kind, ..)| kinds.contains(kind)).map(|(_, name, _)| *name);
    let wanted: Vec<&str> = of_role.filter(|_| !tpus.is_empty()).chain(of_jobs).collect();
    let deadline = Instant::now() + config.settings.poll.timeout;
    let project = &config.settings.project;
    let lacking = match clients.tpu.lacking(&wanted, deadline).await {
        None => {
            let text = "not asked: anonymous credentials, or api.resource_manager is not set";
            return vec![doubt("permissions", text)];
        }
        Some(Err(why)) => return vec![not_asked(project, &why.to_string())],
        Some(Ok(lacking)) => lacking,
    };
    if lacking.is_empty() {
        let of = match (tpus.is_empty(), jobs.is_empty()) {
            (false, true) => "deploy/iam/role.yaml",
            (false, false) => "deploy/iam/role.yaml and for training jobs",
            (true, _) => "for training jobs",
        };
        return vec![fine("permissions", format!("all {} of {of}", wanted.len()))];
    }
    let grant = |role: &str| {
        format!(
            "gcloud projects add-iam-policy-binding {project} --member {account} --role {role} --condition None"
        )
    };
    let cure = format!(
        "gcloud iam roles create tpuWatchdog --project {project} --file deploy/iam/role.yaml (update, where it exists); gcloud projects \
         add-iam-policy-binding {project} --member {account} --role projects/{project}/roles/tpuWatchdog --condition None"
    );
    let without = |name: &str| {
        let of_jobs = TRAINING.iter().map(|(_, name, what)| (*name, *what));
        let found = WITHOUT.into_iter().chain(of_jobs).find(|(of, _)| *of == name);
        found.map_or("see deploy/iam/README.md", |(_, what)| what)
    };
    let of = |name: &String| {
        let text = format!("{name} is not granted on project {project}: {}", without(name));
        let cure = match name.split('.').next() {
            Some("aiplatform") => grant("roles/aiplatform.user"),
            Some("ml") => grant("roles/ml.developer"),
            _ => cure.clone(),
        };
        let kind = TRAINING.iter().find(|(_, of, _)| of == name).map(|(kind, ..)| kind);
        match kind.is_none_or(|kind| named.contains(kind)) {
            true => missing("permission", text, Some(cure)),
            false => Finding {
                cure: Some(cure),
                ..doubt(
                    "permission",
                    format!(
                        "{text}; it is needed where a slot named by display_name or labels is a tuning job"
                    ),
                )
            },
        }
    };
    lacking.iter().map(of).collect()
}

fn not_asked(project: &str, why: &str) -> Finding {
    let cure =
        format!("gcloud services enable cloudresourcemanager.googleapis.com --project {project}");
    Finding { cure: Some(cure), ..doubt("permissions", format!("could not be asked: {why}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_permission_of_the_role_is_told_with_its_consequence() {
        let mut wanted: Vec<&str> = ROLE.lines().filter_map(|l| l.strip_prefix("- ")).collect();
        let mut known: Vec<&str> = WITHOUT.iter().map(|(name, _)| *name).collect();
        wanted.sort_unstable();
        known.sort_unstable();
        assert_eq!(wanted, known);
    }
}
