//! The part of `doctor` that compares where a training job runs with where the bucket of its checkpoints is: traffic between
//! regions is slow, and billed.

use std::time::Instant;

use super::findings::{Finding, doubt, fine};
use super::wire::Clients;
use crate::core::location;
use crate::model::settings::SlotSettings;
use crate::model::spec::NodeSpec;
use crate::model::training::NO_REGION;
use crate::resource::training::body;

/// The comparison for one job whose checkpoints are in a bucket of Cloud Storage.
pub async fn of_job(
    clients: &Clients,
    slot: &SlotSettings,
    learned: Option<&NodeSpec>,
    deadline: Instant,
) -> Option<Finding> {
    let of = slot.filling.training()?;
    let configured = location::listed(slot).map(|listed| listed.uri.clone());
    let uri = configured.or_else(|| body::checkpoints(learned?))?;
    let bucket = uri.strip_prefix("gs://")?.split('/').next()?;
    if of.regions.iter().any(|region| region == NO_REGION) {
        return None;
    }
    Some(match clients.tpu.bucket_location(bucket, deadline).await {
        Ok((location, kind)) => compared(bucket, (&location, &kind), &of.regions),
        Err(failure) => doubt(
            "",
            format!(
                "the location of gs://{bucket} can't be read, so it is not compared with {}: {failure} (it takes storage.buckets.get, of \
                 roles/storage.bucketViewer)",
                of.regions.join(", ")
            ),
        ),
    })
}

fn compared(bucket: &str, (location, kind): (&str, &str), regions: &[String]) -> Finding {
    let location = location.to_ascii_lowercase();
    let others: Vec<&str> =
        regions.iter().map(String::as_str).filter(|region| *region != location).collect();
    if kind != "region" || others.is_empty() {
        return fine("", format!("gs://{bucket} is in {location} ({kind})"));
    }
    let others = others.join(", ");
    doubt(
        "",
        format!(
            "gs://{bucket} is in {location} alone, and the job may run in {others}: what it reads and saves from there is slower, and its traffic \
             is billed; a dual-region or multi-region bucket of both costs neither"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_of_one_region_is_elsewhere_for_a_job_of_another() {
        let of = |location: &str, kind: &str, regions: &[&str]| {
            let regions: Vec<String> = regions.iter().map(|region| (*region).to_owned()).collect();
            compared("b", (location, kind), &regions).text
        };
        let near = of("US-CENTRAL1", "region", &["us-central1"]);
        assert_eq!(near, "gs://b is in us-central1 (region)");
        let far = of("US-CENTRAL1", "region", &["us-central1", "europe-west4"]);
        assert!(far.contains("may run in europe-west4: "), "{far}");
        for (location, kind) in [("US", "multi-region"), ("NAM4", "dual-region")] {
            assert!(!of(location, kind, &["us-central1", "us-east1"]).contains("billed"));
        }
    }
}
