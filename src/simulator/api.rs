//! The REST API over the cloud's state: paths, parameters, validation, paging, operations. Pure: a
//! request in, an answer out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::shape::{self, Answer, error, not_found};
use super::things::{Happening, Node};
use super::trouble::{Event, Trouble};
use super::wire::{Place, Request, answer_operation, check_parameters, page};
use super::{catalogue, queued, quota, rights, training, workload};
use crate::model::time::elapsed;

/// A delete may rest on a GET of this age.
const VERIFIED_FOR: Duration = Duration::from_secs(5);

/// Answers one request.
pub fn handle(cloud: &mut Cloud, request: &Request) -> Answer {
    if let Some(answer) = training::answer(cloud, request) {
        return answer;
    }
    let segments: Vec<&str> = request.path.split('/').collect();
    let [version @ ("v1" | "v2" | "v2alpha1"), "projects", project, "locations", rest @ ..] =
        &segments[..]
    else {
        return rights::answer(cloud, request)
            .unwrap_or_else(|| error(404, "The requested URL was not found on this server."));
    };
    if *version == "v1"
        && matches!(rest, ["global", "services", "tpu.googleapis.com", "quotaInfos"])
    {
        return rights::quota_infos(cloud);
    }
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
    if let Some(refusal) = rights::refusal(cloud, request, rest, zone) {
        return refusal;
    }
    match (request.method, rest) {
        ("GET", []) => (200, location(project, zone)),
        ("GET", ["nodes"]) => list_nodes(cloud, &place, request),
        ("POST", ["nodes"]) => create_node(cloud, &place, request),
        ("GET", ["nodes", id]) => {
            let (now, key) = (cloud.now(), (zone.to_owned(), (*id).to_owned()));
            let shown = cloud.nodes.get(&key).is_some_and(|node| queued::shows(cloud, zone, node));
            match cloud.nodes.get_mut(&key).filter(|_| shown) {
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
        ("GET", ["queuedResources"]) => queued::list(cloud, &place, request),
        ("POST", ["queuedResources"]) => queued::create(cloud, &place, request),
        ("GET", ["queuedResources", id]) => queued::get(cloud, &place, id),
        ("POST", ["queuedResources", call]) if call.ends_with(":reset") => {
            queued::reset(cloud, &place, call.trim_end_matches(":reset"))
        }
        ("DELETE", ["queuedResources", id]) => queued::delete(cloud, &place, id, request),
        ("GET", ["operations"]) => list_operations(cloud, &place, request),
        ("GET", ["operations", id]) => {
            answer_operation(cloud, &place, &format!("{}/operations/{id}", place.parent()))
        }
        ("DELETE", ["operations", _]) => (200, json!({})),
        ("GET", rest) => catalogue::answer(cloud, &place, rest)
            .unwrap_or_else(|| error(404, "Method not found.")),
        _ => error(404, "Method not found."),
    }
}

fn list_operations(cloud: &Cloud, place: &Place, request: &Request) -> Answer {
    let known = ["filter", "pageSize", "pageToken", "returnPartialSuccess"];
    if let Some(refusal) = check_parameters(request, &known) {
        return refusal;
    }
    let under = format!("{}/operations/", place.parent());
    let all: Vec<_> = cloud.operations.values().filter(|o| o.name.starts_with(&under)).collect();
    let (page, next) = match page(&all, request, cloud.page_max) {
        Ok(page) => page,
        Err(refusal) => return *refusal,
    };
    let mut body = json!({});
    if !page.is_empty() {
        body["operations"] = page.iter().map(|o| shape::operation(o, place.version)).collect();
    }
    if let Some(next) = next {
        body["nextPageToken"] = next;
    }
    (200, body)
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
    let unreachable: BTreeSet<&String> = cloud.unreachable_zones().collect();
    let all: Vec<_> = cloud
        .nodes
        .iter()
        .filter(|((zone, _), node)| {
            (place.zone == "-" || *zone == place.zone)
                && !unreachable.contains(zone)
                && queued::shows(cloud, zone, node)
        })
        .collect();
    let (page, next) = match page(&all, request, cloud.page_max) {
        Ok(page) => page,
        Err(refusal) => return *refusal,
    };
    let page: Vec<Value> = page
        .iter()
        .map(|((zone, id), node)| shape::node(node, &place.node(zone, id), place.version))
        .collect();
    let mut body = json!({});
    if !page.is_empty() {
        body["nodes"] = json!(page);
    }
    if let Some(next) = next {
        body["nextPageToken"] = next;
    }
    let unreachable: Vec<String> = unreachable
        .into_iter()
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
    if let Some(refusal) = quota::refusal(cloud, place, 1) {
        return refusal;
    }
    let now = cloud.now();
    let operation = cloud.operation(place.project, place.zone, name, "create");
    let refusal =
        cloud.refusals.get(place.zone).filter(|(until, _)| *until > now).map(|(_, e)| e.clone());
    let uid = cloud.add_node(place.zone, &id, body, false);
    follow_create(cloud, &operation, (place.zone.to_owned(), id), uid, refusal);
    if !request_id.is_empty() {
        cloud.requests.insert(request_id, operation.clone());
    }
    answer_operation(cloud, place, &operation)
}

/// The end that a create comes to, and when.
fn follow_create(
    cloud: &mut Cloud,
    operation: &str,
    (zone, node): (String, String),
    uid: u64,
    refusal: Option<Value>,
) {
    let (create, refused) = (cloud.timing.create, cloud.timing.refusal);
    let operation = operation.to_owned();
    if let Some(ready) = cloud.left_behind.remove(&node) {
        let error = json!({"code": 13, "message": "an internal error has occurred"});
        cloud.schedule(refused, Happening::Failed { operation, error });
        if let Some(ready) = ready {
            // No operation tells of it: the one there was has failed by then.
            let operation = String::new();
            cloud.schedule(ready, Happening::Created { operation, zone, node, uid });
        }
    } else if let Some(error) = refusal {
        // A refused node was never there to be counted.
        if let Some(count) = cloud.creations.get_mut(&node) {
            *count -= 1;
        }
        cloud.schedule(refused, Happening::Refused { operation, zone, node, uid, error });
    } else {
        cloud.schedule(create, Happening::Created { operation, zone, node, uid });
    }
}

fn is_well(node: &Node) -> bool {
    node.state == "READY" && node.health.as_deref() == Some("HEALTHY")
}

impl Cloud {
    /// These nodes are about to be deleted together: whether all of them were at work, and no read showed otherwise.
    pub(super) fn count_harm(&mut self, zone: &str, nodes: &[String]) {
        let (now, zone) = (self.now(), zone.to_owned());
        let found = nodes.iter().filter_map(|node| self.nodes.get(&(zone.clone(), node.clone())));
        let found: Vec<&Node> = found.collect();
        let is_at_work = |node: &&Node| is_well(node) && node.run.boots > 0 && !node.run.stopped;
        let is_seen =
            |node: &&Node| node.shown_sick.is_some_and(|at| elapsed(at, now) <= VERIFIED_FOR);
        let whole = !nodes.is_empty() && found.len() == nodes.len();
        let at_work = whole && found.iter().all(is_at_work);
        let unseen = !found.iter().any(is_seen);
        self.harmed += u32::from(at_work);
        self.harmed_unseen += u32::from(at_work && unseen);
    }
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
    let key = (place.zone.to_owned(), id.to_owned());
    cloud.count_harm(place.zone, &[id.to_owned()]);
    let Some(node) = cloud.nodes.get_mut(&key) else { return not_found(&name) };
    node.state = "DELETING";
    node.run.stopped = true;
    let uid = node.uid;
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
    let uid = node.uid;
    if mask.iter().any(|field| field == "metadata") {
        workload::ordered(cloud, place.zone, id, uid);
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
            guest_attributes(node, request.body.as_ref())
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

/// A worker that never wrote below a path makes the answer a 404, as each is a resource of its own
/// on Compute Engine.
fn guest_attributes(node: &Node, body: Option<&Value>) -> Answer {
    let path = body.and_then(|b| b.get("queryPath")).and_then(Value::as_str).unwrap_or_default();
    let ids: Vec<usize> = body
        .and_then(|b| b.get("workerIds"))
        .and_then(Value::as_array)
        .map(|ids| ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect())
        .unwrap_or_default();
    let asked = || {
        let all = node.attributes.iter().enumerate();
        all.filter(|(index, _)| ids.is_empty() || ids.contains(index))
    };
    let wrote = |attributes: &BTreeMap<String, String>| {
        path.is_empty() || attributes.keys().any(|key| key.starts_with(path))
    };
    if asked().any(|(_, attributes)| !wrote(attributes)) {
        return error(
            404,
            format!("The resource '{path}' of type 'Guest Attribute' was not found."),
        );
    }
    let answer = asked().map(|(_, attributes)| {
        let items = attributes.iter().filter(|(key, _)| key.starts_with(path)).filter_map(
            |(key, value)| {
                let (namespace, key) = key.split_once('/')?;
                Some(json!({"namespace": namespace, "key": key, "value": value}))
            },
        );
        json!({"queryPath": path, "queryValue": {"items": items.collect::<Vec<_>>()}})
    });
    (200, json!({"guestAttributes": answer.collect::<Vec<_>>()}))
}
