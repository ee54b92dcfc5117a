//! The quota of a zone: refused for a while by a scenario, or used up. A node uses it from its creation to
//! the end of its delete, also PREEMPTED; a request from its grant to its own delete, also SUSPENDED or
//! FAILED. Source: guide "Manage queued resources".

use serde_json::json;

use super::answer::{Answer, error};
use super::cloud::Cloud;
use super::wire::Place;

/// The refusal of a create of so many nodes, where the quota does not have them.
pub fn refusal(cloud: &Cloud, place: &Place, nodes: usize) -> Option<Answer> {
    let now = cloud.now();
    let scripted = cloud.quota.get(place.zone).filter(|(until, _)| *until > now);
    let message = scripted.map(|(_, message)| message.clone()).or_else(|| {
        let limit = *cloud.limits.get(place.zone)?;
        let text = "Quota limit 'TPUsPerProjectPerZoneForTPUAPI' has been exceeded.";
        (used(cloud, place.zone) + nodes > limit)
            .then(|| format!("{text} Limit: {limit} in zone {}.", place.zone))
    })?;
    let (status, mut body) = error(429, message.clone());
    body["error"]["details"] = json!([{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"description": message}]}]);
    Some((status, body))
}

/// How many nodes of a zone's quota are used.
fn used(cloud: &Cloud, zone: &str) -> usize {
    let alone =
        cloud.nodes.iter().filter(|((of, _), node)| of == zone && node.queued_resource.is_none());
    let requests = cloud.queued.iter().filter(|((of, _), queued)| {
        of == zone && !["ACCEPTED", "WAITING_FOR_RESOURCES"].contains(&queued.state)
    });
    alone.count() + requests.map(|(_, queued)| queued.nodes.len()).sum::<usize>()
}
