//! The REST API over the cloud's state: paths, parameters, validation, paging, operations. Pure: a
//! request in, an answer out.

use std::time::Duration;

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::queued;
use super::shape::{self, Answer, error, not_found};
use super::things::{Happening, Node};
use super::trouble::{Event, Trouble};
use super::wire::{Place, Request, answer_operation, check_parameters};
use crate::model::time::elapsed;

/// A delete may rest on a GET of this age.
const VERIFIED_FOR: Duration = Duration::from_secs(5);

/// Answers one request.
pub fn handle(cloud: &mut Cloud, request: &Request) -> Answer {
    let segments: Vec<&str> = request.path.split('/').collect();
    let [version @ ("v1" | "v2" | "v2alpha1"), "projects", project, "locations", rest @ ..] =
        &segments[..]
    else {
        return error(404, "The requested URL was not found on this server.");
    };
    let (zone, rest) = match rest {
        [] => return locations(project),
        [zone, rest @ ..] => (*zone, rest),
    };
    let place = Place { version, project, zone };
    if *version == "v1" && request.method != "GET" {
        return error(501, "This simulator serves reads of v1 alone.");
    }
    if zone != "-" && !is_zone(zone) {
        return error(403, format!("Location {zone} is not found or access is unauthorized."));
    }
    match (request.method, rest) {
        ("GET", []) => (200, location(project, zone)),
        ("GET", ["nodes"]) => list_nodes(cloud, &place, request),
        ("POST", ["nodes"]) => create_node(cloud, &place, request),
        ("GET", ["nodes", id]) => {
            let now = cloud.now();
            match cloud.nodes.get_mut(&(zone.to_owned(), (*id).to_owned())) {
                Some(node) => {
                    if !is_well(node) {
                        node.shown_sick = Some(now);
                    }
                    (200, shape::node(node, &place.node(zone, id), version))
                }
                None => not_found(&place.node(zone, id)),
            }
        }
        ("DELETE", ["nodes", id]) => delete_node(cloud, &place, id, request),
        ("PATCH", ["nodes", id]) => patch_node(cloud, &place, id, request),
        ("POST", ["nodes", call]) => match call.split_once(':') {
            Some((id, verb)) => node_verb(cloud, &place, id, verb, request),
            None => error(404, "Method not found."),
        },
        ("GET", ["queuedResources"]) => queued::list(cloud, &place),
        ("POST", ["queuedResources"]) => queued::create(cloud, &place, request),
        ("GET", ["queuedResources", id]) => queued::get(cloud, &place, id),
        ("DELETE", ["queuedResources", id]) => queued::delete(
            cloud,
            &place,
            id,
            request.parameter("force").eq_ignore_ascii_case("true"),
        ),
        ("GET", ["operations"]) => {
            let mine = cloud.operations.values().filter(|o| o.name.starts_with(&place.parent()));
            (
                200,
                json!({"operations": mine.map(|o| shape::operation(o, version)).collect::<Vec<_>>()}),
            )
        }
        ("GET", ["operations", id]) => {
            answer_operation(cloud, &place, &format!("{}/operations/{id}", place.parent()))
        }
        ("DELETE", ["operations", _]) => (200, json!({})),
        ("GET", ["acceleratorTypes"]) => {
            let all = ["v2-8", "v3-8", "v4-8", "v4-16", "v4-32", "v5litepod-8", "v5p-8", "v6e-8"];
            let one = |t: &&str| json!({"name": format!("{}/acceleratorTypes/{t}", place.parent()), "type": t});
            (200, json!({"acceleratorTypes": all.iter().map(one).collect::<Vec<_>>()}))
        }
        ("GET", ["runtimeVersions"]) => {
            let name = format!("{}/runtimeVersions/tpu-ubuntu2204-base", place.parent());
            (200, json!({"runtimeVersions": [{"name": name, "version": "tpu-ubuntu2204-base"}]}))
        }
        _ => error(404, "Method not found."),
    }
}

fn is_zone(zone: &str) -> bool {
    let parts: Vec<&str> = zone.split('-').collect();
    matches!(parts[..], [a, b, c] if !a.is_empty() && b.ends_with(|ch: char| ch.is_ascii_digit()) && c.len() == 1)
}

fn location(project: &str, zone: &str) -> Value {
    json!({"name": format!("projects/{project}/locations/{zone}"), "locationId": zone, "labels": {"cloud.googleapis.com/region": &zone[..zone.len() - 2]}})
}

fn locations(project: &str) -> Answer {
    let zones = ["us-central1-a", "us-central2-b", "us-east1-d", "us-east5-a", "europe-west4-a"];
    (200, json!({"locations": zones.map(|z| location(project, z))}))
}

/// Refuses parameters that the method does not have, as Google does.
fn list_nodes(cloud: &Cloud, place: &Place, request: &Request) -> Answer {
    if let Some(refusal) = check_parameters(request, &["pageSize", "pageToken"]) {
        return refusal;
    }
    let all: Vec<_> = cloud
        .nodes
        .iter()
        .filter(|((zone, _), _)| {
            (place.zone == "-" || *zone == place.zone) && !cloud.unreachable.contains(zone)
        })
        .collect();
    let start = match request.parameter("pageToken") {
        "" => 0,
        token => match token.strip_prefix("page-").and_then(|t| t.parse::<usize>().ok()) {
            Some(start) => start,
            None => return error(400, "The page token is invalid."),
        },
    };
    let asked = request.parameter("pageSize").parse::<usize>().unwrap_or(0);
    let size = if asked == 0 { 500 } else { asked }.min(cloud.page_max.unwrap_or(500));
    let page: Vec<Value> = all
        .iter()
        .skip(start)
        .take(size)
        .map(|((zone, id), node)| shape::node(node, &place.node(zone, id), place.version))
        .collect();
    let mut body = json!({});
    if !page.is_empty() {
        body["nodes"] = json!(page);
    }
    if start + size < all.len() {
        body["nextPageToken"] = json!(format!("page-{}", start + size));
    }
    let unreachable: Vec<String> = cloud
        .unreachable
        .iter()
        .filter(|zone| place.zone == "-" || **zone == place.zone)
        .map(|zone| format!("projects/{}/locations/{zone}", place.project))
        .collect();
    if !unreachable.is_empty() {
        body["unreachable"] = json!(unreachable);
    }
    (200, body)
}

fn create_node(cloud: &mut Cloud, place: &Place, request: &Request) -> Answer {
    let known: &[&str] = if place.alpha() { &["nodeId", "requestId"] } else { &["nodeId"] };
    if let Some(refusal) = check_parameters(request, known) {
        return refusal;
    }
    let request_id = request.parameter("requestId").to_owned();
    if let Some(operation) = cloud.requests.get(&request_id).cloned() {
        return answer_operation(cloud, place, &operation);
    }
    let id = match request.parameter("nodeId") {
        "" => format!("node-{}", cloud.number()),
        id if shape::node_id_fits(id) => id.to_owned(),
        id => {
            return error(
                400,
                format!("Invalid node id {id:?}: it must match ^[a-z]([-a-z0-9]*[a-z0-9])?$."),
            );
        }
    };
    let body = request.body.clone().unwrap_or_else(|| json!({}));
    let body = match shape::check_node(&body, "node", place.alpha(), place.zone) {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    let name = place.node(place.zone, &id);
    if cloud.nodes.contains_key(&(place.zone.to_owned(), id.clone())) {
        return error(409, format!("Resource '{name}' already exists"));
    }
    let now = cloud.now();
    if let Some((_, message)) = cloud.quota.get(place.zone).filter(|(until, _)| *until > now) {
        let (status, mut body) = error(429, message.clone());
        body["error"]["details"] = json!([{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"description": message}]}]);
        return (status, body);
    }
    let operation = cloud.operation(place.project, place.zone, name, "create");
    let refusal =
        cloud.refusals.get(place.zone).filter(|(until, _)| *until > now).map(|(_, e)| e.clone());
    let (zone, node) = (place.zone.to_owned(), id.clone());
    let uid = cloud.add_node(place.zone, &id, body, false);
    let (wait, happening) = match refusal {
        Some(error) => {
            // A refused node was never there to be counted.
            if let Some(count) = cloud.creations.get_mut(&id) {
                *count -= 1;
            }
            (
                cloud.timing.refusal,
                Happening::Refused { operation: operation.clone(), zone, node, uid, error },
            )
        }
        None => (
            cloud.timing.create,
            Happening::Created { operation: operation.clone(), zone, node, uid },
        ),
    };
    cloud.schedule(wait, happening);
    if !request_id.is_empty() {
        cloud.requests.insert(request_id, operation.clone());
    }
    answer_operation(cloud, place, &operation)
}

fn is_well(node: &Node) -> bool {
    node.state == "READY" && node.health.as_deref() == Some("HEALTHY")
}

fn delete_node(cloud: &mut Cloud, place: &Place, id: &str, request: &Request) -> Answer {
    let known: &[&str] = if place.alpha() { &["requestId"] } else { &[] };
    if let Some(refusal) = check_parameters(request, known) {
        return refusal;
    }
    let request_id = request.parameter("requestId").to_owned();
    if let Some(operation) = cloud.requests.get(&request_id).cloned() {
        return answer_operation(cloud, place, &operation);
    }
    let name = place.node(place.zone, id);
    let (key, now) = ((place.zone.to_owned(), id.to_owned()), cloud.now());
    let Some(node) = cloud.nodes.get_mut(&key) else { return not_found(&name) };
    if node.queued_resource.is_some() {
        return error(
            400,
            format!(
                "Cloud TPU received a bad request. {name} belongs to a queued resource; delete that [EID: 0x5]"
            ),
        );
    }
    let at_work = is_well(node) && node.run.boots > 0 && !node.run.stopped;
    let unseen = node.shown_sick.is_none_or(|at| elapsed(at, now) > VERIFIED_FOR);
    node.state = "DELETING";
    node.run.stopped = true;
    let uid = node.uid;
    cloud.harmed += u32::from(at_work);
    cloud.harmed_unseen += u32::from(at_work && unseen);
    let operation = cloud.operation(place.project, place.zone, name, "delete");
    let happening =
        Happening::Deleted { operation: operation.clone(), zone: key.0, node: key.1, uid };
    cloud.schedule(cloud.timing.delete, happening);
    if !request_id.is_empty() {
        cloud.requests.insert(request_id, operation.clone());
    }
    answer_operation(cloud, place, &operation)
}

fn patch_node(cloud: &mut Cloud, place: &Place, id: &str, request: &Request) -> Answer {
    if let Some(refusal) = check_parameters(request, &["updateMask"]) {
        return refusal;
    }
    let name = place.node(place.zone, id);
    let mask: Vec<String> = request.parameter("updateMask").split(',').map(str::to_owned).collect();
    let Some(node) = cloud.nodes.get_mut(&(place.zone.to_owned(), id.to_owned())) else {
        return not_found(&name);
    };
    for field in &mask {
        if !["description", "tags", "labels", "metadata"].contains(&field.as_str()) {
            return error(400, format!("Invalid update mask: {field:?}."));
        }
        match request.body.as_ref().and_then(|b| b.get(field)) {
            Some(value) => node.body.insert(field.clone(), value.clone()),
            None => node.body.remove(field),
        };
    }
    let operation = cloud.operation(place.project, place.zone, name, "update");
    cloud.schedule(cloud.timing.change, Happening::Done { operation: operation.clone() });
    answer_operation(cloud, place, &operation)
}

fn node_verb(cloud: &mut Cloud, place: &Place, id: &str, verb: &str, request: &Request) -> Answer {
    let name = place.node(place.zone, id);
    let (key, now) = ((place.zone.to_owned(), id.to_owned()), cloud.now());
    let Some(node) = cloud.nodes.get_mut(&key) else { return not_found(&name) };
    let uid = node.uid;
    match verb {
        "getGuestAttributes" => {
            if node.run.boots == 0 || node.run.stopped {
                node.shown_sick = Some(now);
            }
            (200, guest_attributes(node, request.body.as_ref()))
        }
        "stop" | "start" => {
            let (wanted, state) =
                if verb == "stop" { ("READY", "STOPPED") } else { ("STOPPED", "READY") };
            if node.state != wanted {
                return error(
                    400,
                    format!(
                        "Cloud TPU received a bad request. {verb} is not supported while in state {} [EID: 0x6]",
                        node.state
                    ),
                );
            }
            if node.attributes.len() > 1 && verb == "stop" {
                return error(
                    400,
                    "Cloud TPU received a bad request. stop is only available with single TPU nodes [EID: 0x7]",
                );
            }
            node.state = if verb == "stop" { "STOPPING" } else { "STARTING" };
            node.run.stopped = true;
            let operation = cloud.operation(
                place.project,
                place.zone,
                name,
                if verb == "stop" { "stop" } else { "start" },
            );
            let happening = Happening::Changed {
                operation: operation.clone(),
                zone: key.0,
                node: key.1,
                uid,
                state,
            };
            cloud.schedule(cloud.timing.change, happening);
            answer_operation(cloud, place, &operation)
        }
        "simulateMaintenanceEvent" | "performMaintenance" if place.alpha() => {
            let operation =
                cloud.operation(place.project, place.zone, name, "simulateMaintenanceEvent");
            let lasts = Some(cloud.timing.change);
            cloud.trouble(Event {
                at: Duration::ZERO,
                zone: key.0,
                node: key.1,
                what: Trouble::Maintenance,
                lasts,
            });
            let text = format!("The TPU had a maintenance event at {}", shape::time(cloud.now()));
            if let Some(node) = cloud.same(place.zone, id, uid) {
                node.health_description = Some(text);
            }
            cloud.schedule(cloud.timing.change, Happening::Done { operation: operation.clone() });
            answer_operation(cloud, place, &operation)
        }
        _ => error(404, "Method not found."),
    }
}

fn guest_attributes(node: &Node, body: Option<&Value>) -> Value {
    let path = body.and_then(|b| b.get("queryPath")).and_then(Value::as_str).unwrap_or_default();
    let ids: Vec<usize> = body
        .and_then(|b| b.get("workerIds"))
        .and_then(Value::as_array)
        .map(|ids| ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect())
        .unwrap_or_default();
    let answer = node
        .attributes
        .iter()
        .enumerate()
        .filter(|(index, _)| ids.is_empty() || ids.contains(index))
        .map(|(_, attributes)| {
            let items = attributes.iter().filter(|(key, _)| key.starts_with(path)).filter_map(
                |(key, value)| {
                    let (namespace, key) = key.split_once('/')?;
                    Some(json!({"namespace": namespace, "key": key, "value": value}))
                },
            );
            json!({"queryPath": path, "queryValue": {"items": items.collect::<Vec<_>>()}})
        });
    json!({"guestAttributes": answer.collect::<Vec<_>>()})
}
