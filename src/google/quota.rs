//! Quota limits of the Cloud TPU API, for an operator's eyes (`doctor`). No decision rests on them.
//!
//! Source: Cloud Quotas API v1, `projects.locations.services.quotaInfos`.

use std::time::Instant;

use serde_json::Value;

use super::answers;
use super::tpu::{TpuClient, encode};
use crate::model::failure::Failure;

/// One quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Its id, such as `TPUV4PreemptiblePodPerProjectPerZoneForTPUAPI`.
    pub id: String,
    /// Its limits, each with the zones or regions that it holds for.
    pub limits: Vec<(Vec<String>, i64)>,
}

impl Quota {
    /// The limit in a zone; none where the quota holds elsewhere alone.
    pub fn limit(&self, zone: &str) -> Option<i64> {
        let region = zone.rsplit_once('-').map_or(zone, |(region, _)| region);
        let holds = |place: &String| [zone, region, "global"].contains(&place.as_str());
        self.limits.iter().find(|(places, _)| places.iter().any(holds)).map(|(_, limit)| *limit)
    }
}

impl TpuClient {
    /// All quotas of the Cloud TPU API; none where nothing is asked: anonymous credentials, or an
    /// endpoint that is not Google's.
    ///
    /// # Errors
    /// When they can't be read.
    pub async fn quotas(&self, deadline: Instant) -> Option<Result<Vec<Quota>, Failure>> {
        let base = self.checks.quotas.as_ref().filter(|_| !self.http.is_anonymous())?;
        let url = format!(
            "{base}/v1/projects/{}/locations/global/services/tpu.googleapis.com/quotaInfos?pageSize=500",
            encode(&self.project)
        );
        let mut all = Vec::new();
        let read = |page: Value| {
            let infos = page.get("quotaInfos").and_then(Value::as_array);
            all.extend(infos.into_iter().flatten().filter_map(quota));
            answers::next_page(&page)
        };
        let answer = self.each_page("quotaInfos.list", &url, deadline, read).await;
        Some(answer.map(|()| all))
    }
}

fn quota(info: &Value) -> Option<Quota> {
    let dimensions = info.get("dimensionsInfos").and_then(Value::as_array);
    let limit = |dimension: &Value| {
        let limit = dimension.pointer("/details/value")?.as_str()?.parse().ok()?;
        let places = dimension.get("applicableLocations")?.as_array()?;
        let places = places.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Some((places, limit))
    };
    Some(Quota {
        id: info.get("quotaId")?.as_str()?.to_owned(),
        limits: dimensions.into_iter().flatten().filter_map(limit).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_limit_holds_for_its_zone_its_region_or_everywhere() {
        let dimension = |value: &str, place: &str| json!({"details": {"value": value}, "applicableLocations": [place]});
        let info = json!({"quotaId": "Q", "dimensionsInfos": [
            dimension("32", "us-central2-b"), dimension("0", "us-east5"), {"details": {}}]});
        let quota = quota(&info).unwrap();
        assert_eq!(quota.limit("us-central2-b"), Some(32));
        assert_eq!(quota.limit("us-east5-a"), Some(0));
        assert_eq!(quota.limit("europe-west4-a"), None);
    }
}
