//! Queued resources, single and multislice: the queue, PROVISIONING that can't be deleted, capacity
//! that is taken back, requests that fail and hold their names until they are deleted.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::cloud::Cloud;
use super::shape::{self, Answer, error, not_found};
use super::things::{Happening, Node, Queued};
use super::trouble::{Event, Trouble};
use super::wire::{Place, Request, answer_operation, check_parameters, page};
use super::{fields, quota};
use crate::model::time::{after, elapsed};

/// From the forced delete of a request in PROVISIONING to the failure of its operation, as measured.
const UNDELETABLE: Duration = Duration::from_millis(1_500);
/// While a request is PROVISIONING, its nodes show as CREATING and are absent in turn, each for so long.
const FLAPS_EVERY: Duration = Duration::from_secs(45);

/// Fields of a request that v2alpha1 alone has. Source: discovery documents of v2 and v2alpha1.
const ALPHA_ONLY: [&str; 4] = ["bestEffort", "provisioningModel", "runDuration", "trafficConfig"];

/// Whether reads show a node of this zone at present.
pub fn shows(cloud: &Cloud, zone: &str, node: &Node) -> bool {
    let request = node.queued_resource.as_ref().and_then(|name| name.rsplit('/').next());
    let queued = request.and_then(|id| cloud.queued.get(&(zone.to_owned(), id.to_owned())));
    let flaps = queued.is_some_and(|queued| queued.state == "PROVISIONING");
    let turns = elapsed(node.created, cloud.now()).as_secs() / FLAPS_EVERY.as_secs();
    !flaps || turns.is_multiple_of(2)
}

pub fn list(cloud: &Cloud, place: &Place, request: &Request) -> Answer {
    if let Some(refusal) = check_parameters(request, &["pageSize", "pageToken"]) {
        return refusal;
    }
    let mine: Vec<&Queued> = cloud
        .queued
        .iter()
        .filter(|((zone, _), _)| place.zone == "-" || *zone == place.zone)
        .map(|(_, queued)| queued)
        .collect();
    let (page, next) = match page(&mine, request, cloud.page_max) {
        Ok(page) => page,
        Err(refusal) => return *refusal,
    };
    let mut body = json!({});
    if !page.is_empty() {
        body["queuedResources"] = page.iter().map(|queued| render(queued, place)).collect();
    }
    if let Some(next) = next {
        body["nextPageToken"] = next;
    }
    let name = |zone: &String| format!("projects/{}/locations/{zone}", place.project);
    let unreachable: Vec<String> = cloud.unreachable_zones().map(name).collect();
    if place.zone == "-" && !unreachable.is_empty() {
        body["unreachable"] = json!(unreachable);
    }
    (200, body)
}

pub fn get(cloud: &Cloud, place: &Place, id: &str) -> Answer {
    match cloud.queued.get(&(place.zone.to_owned(), id.to_owned())) {
        Some(queued) => (200, render(queued, place)),
        None => not_found(&format!("{}/queuedResources/{id}", place.parent())),
    }
}

pub fn create(cloud: &mut Cloud, place: &Place, request: &Request) -> Answer {
    if let Some(refusal) = check_parameters(request, &["queuedResourceId", "requestId"]) {
        return refusal;
    }
    if let Some(operation) = cloud.requests.get(request.parameter("requestId")).cloned() {
        return answer_operation(cloud, place, &operation);
    }
    let id = request.parameter("queuedResourceId").to_owned();
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.~+%-".contains(&b)) {
        return error(400, format!("Invalid queued resource id {id:?}."));
    }
    let key = (place.zone.to_owned(), id.clone());
    let name = format!("{}/queuedResources/{id}", place.parent());
    if cloud.queued.contains_key(&key) {
        return error(409, format!("Resource '{name}' already exists"));
    }
    let Some(body) = request.body.as_ref().and_then(Value::as_object).cloned() else {
        return error(400, "The body is missing.");
    };
    if let Some(field) =
        ALPHA_ONLY.iter().find(|field| !place.alpha() && body.contains_key(**field))
    {
        return fields::unknown(field, "queued_resource");
    }
    if !place.alpha() && body.get("guaranteed").is_some_and(|of| of.get("reserved").is_some()) {
        return fields::unknown("reserved", "queued_resource.guaranteed");
    }
    let nodes = match nodes_of(&body, &id, place) {
        Ok(nodes) => nodes,
        Err(refusal) => return *refusal,
    };
    if cloud.closed.get(place.zone).is_some_and(|until| *until > cloud.now()) {
        let of = nodes.first().and_then(|(_, node)| node.get("acceleratorType"));
        let kind = of.and_then(Value::as_str).unwrap_or_default();
        return error(
            403,
            format!(
                "User does not have permission to submit requests into this queue for accelerator type {kind} in location {}.",
                place.zone
            ),
        );
    }
    if let Some(refusal) = quota::refusal(cloud, place, nodes.len()) {
        return refusal;
    }
    let (created, number) = (cloud.now(), cloud.number());
    let (valid_after, valid_until) = validity(&body, created);
    let queued = Queued {
        name: name.clone(),
        number,
        body,
        state: "WAITING_FOR_RESOURCES",
        by_user: false,
        error: None,
        created,
        valid_after,
        valid_until,
        ends_at: None,
        project: place.project.to_owned(),
        nodes,
    };
    cloud.queued.insert(key.clone(), queued);
    let operation = cloud.operation(place.project, place.zone, name, "create");
    cloud.schedule(cloud.timing.change, Happening::Done { operation: operation.clone() });
    next(cloud, cloud.timing.change, (key, number));
    remember(cloud, request, &operation);
    answer_operation(cloud, place, &operation)
}

/// From when a request may be filled, and until when.
fn validity(
    body: &Map<String, Value>,
    created: Timestamp,
) -> (Option<Timestamp>, Option<Timestamp>) {
    let policy = body.get("queueingPolicy").unwrap_or(&Value::Null);
    let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let of = |duration: &str, at: &str, interval: &str| {
        let lasts = seconds(&policy[duration]).map(|lasts| after(created, lasts));
        lasts.or(time(&policy[at])).or(time(&policy["validInterval"][interval]))
    };
    (
        of("validAfterDuration", "validAfterTime", "startTime"),
        of("validUntilDuration", "validUntilTime", "endTime"),
    )
}

/// A duration as the API writes it, in whole seconds.
fn seconds(value: &Value) -> Option<Duration> {
    value.as_str()?.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}

type Nodes = Vec<(String, Map<String, Value>)>;

impl Cloud {
    /// A request of the project `p` for Spot capacity that has been granted, its node READY.
    pub fn grant(&mut self, zone: &str, id: &str, node: &str, body: &Map<String, Value>) {
        let place = &Place { version: "v2alpha1", project: "p", zone };
        let spec = json!({"parent": place.parent(), "nodeId": node, "node": body});
        let asked = json!({"tpu": {"nodeSpec": [spec]}, "spot": {}});
        let query = [("queuedResourceId".to_owned(), id.to_owned())].into();
        let request = Request { method: "POST", path: "", query: &query, body: Some(asked) };
        let refused = create(self, place, &request).0 != 200;
        debug_assert!(!refused, "the simulated API takes it");
        let key = (zone.to_owned(), id.to_owned());
        if let Some(queued) = self.queued.get_mut(&key) {
            queued.state = "ACTIVE";
        }
        add_nodes(self, &key);
        become_ready(self, &key);
    }
}

/// The ids and bodies of the nodes that a request asks for.
fn nodes_of(body: &Map<String, Value>, id: &str, place: &Place) -> Result<Nodes, Box<Answer>> {
    let refuse = |text: &str| Err(Box::new(error(400, text)));
    let spot = body.contains_key("spot");
    let mut nodes = Vec::new();
    let specs = body.get("tpu").and_then(|tpu| tpu.get("nodeSpec")).and_then(Value::as_array);
    for spec in specs.into_iter().flatten() {
        let mut node = shape::check_node(
            spec.get("node").unwrap_or(&json!({})),
            "queued_resource.tpu.node_spec[0].node",
            place.alpha(),
            place.zone,
        )?;
        if spot {
            node.insert("schedulingConfig".into(), json!({"spot": true}));
        }
        // The versions have a name each for it.
        let [known, other] = match place.alpha() {
            true => ["multiNodeParams", "multisliceParams"],
            false => ["multisliceParams", "multiNodeParams"],
        };
        if spec.get(other).is_some() {
            return Err(Box::new(fields::unknown(other, "queued_resource.tpu.node_spec[0]")));
        }
        let many = spec.get(known);
        match (spec.get("nodeId").and_then(Value::as_str), many) {
            (Some(node_id), None) => nodes.push((node_id.to_owned(), node)),
            (None, Some(many)) => {
                let count = many.get("nodeCount").and_then(Value::as_u64).unwrap_or(1);
                let prefix = many.get("nodeIdPrefix").and_then(Value::as_str).unwrap_or(id);
                nodes.extend((0..count.min(64)).map(|i| (format!("{prefix}-{i}"), node.clone())));
            }
            _ => return refuse("Exactly one of node_id and multislice_params must be set."),
        }
    }
    if nodes.is_empty() {
        return refuse("queued_resource.tpu.node_spec is required.");
    }
    Ok(nodes)
}

/// A mutation with that request id is carried out once.
fn remember(cloud: &mut Cloud, request: &Request, operation: &str) {
    let id = request.parameter("requestId");
    if !id.is_empty() {
        cloud.requests.insert(id.to_owned(), operation.to_owned());
    }
}

fn next(cloud: &mut Cloud, wait: Duration, ((zone, id), number): ((String, String), u64)) {
    cloud.schedule(wait, Happening::Queue { zone, id, number });
}

fn not_in_this_state(text: String) -> Answer {
    (400, json!({"error": {"code": 400, "message": text, "status": "FAILED_PRECONDITION"}}))
}

pub fn delete(cloud: &mut Cloud, place: &Place, id: &str, request: &Request) -> Answer {
    if let Some(refusal) = check_parameters(request, &["force", "requestId"]) {
        return refusal;
    }
    if let Some(operation) = cloud.requests.get(request.parameter("requestId")).cloned() {
        return answer_operation(cloud, place, &operation);
    }
    let force = request.parameter("force").eq_ignore_ascii_case("true");
    let key = (place.zone.to_owned(), id.to_owned());
    let name = format!("{}/queuedResources/{id}", place.parent());
    let emptied = !cloud.nodes.iter().any(|(_, node)| node.queued_resource.as_ref() == Some(&name));
    let Some(queued) = cloud.queued.get_mut(&key) else { return not_found(&name) };
    let text = format!("DeleteQueuedResource is not supported when state is {}", queued.state);
    match queued.state {
        "ACCEPTED" | "WAITING_FOR_RESOURCES" | "SUSPENDED" | "FAILED" => {}
        "ACTIVE" if force || emptied => {}
        "ACTIVE" => {
            return not_in_this_state(format!(
                "{text} (must be one of [ACCEPTED WAITING_FOR_RESOURCES SUSPENDED FAILED])"
            ));
        }
        // With force the call is accepted, and its operation fails.
        "PROVISIONING" if force => {
            let operation = cloud.operation(place.project, place.zone, name, "delete");
            let error = json!({"code": 9, "message": text});
            let failed = Happening::Failed { operation: operation.clone(), error };
            cloud.schedule(UNDELETABLE, failed);
            remember(cloud, request, &operation);
            return answer_operation(cloud, place, &operation);
        }
        _ => return not_in_this_state(text),
    }
    queued.state = "DELETING";
    queued.by_user = true;
    let nodes: Vec<_> = queued.nodes.iter().map(|(node, _)| node.clone()).collect();
    cloud.count_harm(place.zone, &nodes);
    let operation = cloud.operation(place.project, place.zone, name, "delete");
    let happening = Happening::Dequeued { operation: operation.clone(), zone: key.0, id: key.1 };
    cloud.schedule(cloud.timing.delete, happening);
    remember(cloud, request, &operation);
    answer_operation(cloud, place, &operation)
}

/// Its machines start again, each node with what is on its disk.
pub fn reset(cloud: &mut Cloud, place: &Place, id: &str) -> Answer {
    let name = format!("{}/queuedResources/{id}", place.parent());
    let Some(queued) = cloud.queued.get(&(place.zone.to_owned(), id.to_owned())) else {
        return not_found(&name);
    };
    if queued.state != "ACTIVE" {
        let text = format!("ResetQueuedResource is not supported when state is {}", queued.state);
        return not_in_this_state(text);
    }
    for (node, _) in queued.nodes.clone() {
        cloud.trouble(Event {
            at: Duration::ZERO,
            node,
            zone: place.zone.to_owned(),
            what: Trouble::Restarting,
            lasts: Some(cloud.timing.create),
        });
    }
    let operation = cloud.operation(place.project, place.zone, name, "reset");
    cloud.schedule(cloud.timing.create, Happening::Done { operation: operation.clone() });
    answer_operation(cloud, place, &operation)
}

/// A request goes on: from the queue to its nodes, or to its end.
pub(super) fn goes_on(cloud: &mut Cloud, zone: &str, id: &str, number: u64) {
    let (now, key) = (cloud.now(), (zone.to_owned(), id.to_owned()));
    let refused =
        cloud.refusals.get(zone).filter(|(until, _)| *until > now).map(|(_, e)| e.clone());
    let (create, change, refusal) =
        (cloud.timing.create, cloud.timing.change, cloud.timing.refusal);
    let Some(queued) = cloud.queued.get_mut(&key).filter(|queued| queued.number == number) else {
        return;
    };
    match queued.state {
        "CREATING" => {
            queued.state = "WAITING_FOR_RESOURCES";
            next(cloud, change, (key, number));
        }
        "ACCEPTED" | "WAITING_FOR_RESOURCES"
            if queued.valid_until.is_some_and(|until| until <= now) =>
        {
            let error = json!({"code": 4, "message": "The request was not filled in its time."});
            fail(cloud, &key, refused.unwrap_or(error));
        }
        "ACCEPTED" | "WAITING_FOR_RESOURCES"
            if refused.is_some() || queued.valid_after.is_some_and(|from| from > now) =>
        {
            next(cloud, refusal, (key, number))
        }
        "ACCEPTED" | "WAITING_FOR_RESOURCES" => {
            queued.state = "PROVISIONING";
            add_nodes(cloud, &key);
            next(cloud, create, (key, number));
        }
        "PROVISIONING" if refused.is_some() => {
            queued.state = "SUSPENDING";
            queued.error = refused;
            next(cloud, change, (key, number));
        }
        "PROVISIONING" => {
            queued.state = "ACTIVE";
            let run = queued.body.get("runDuration").unwrap_or(&Value::Null);
            if let Some(lasts) = seconds(&run["maxRunDuration"]) {
                queued.ends_at = Some(after(now, lasts));
                next(cloud, lasts, (key.clone(), number));
            }
            become_ready(cloud, &key);
        }
        // The time of flex-start capacity is over: its nodes are deleted, and it is not queued again.
        "ACTIVE" if queued.ends_at.is_some_and(|at| at <= now) => {
            queued.state = "SUSPENDING";
            let name = queued.name.clone();
            cloud.nodes.retain(|_, node| node.queued_resource.as_ref() != Some(&name));
            next(cloud, change, (key, number));
        }
        "SUSPENDING" => match queued.error.take() {
            Some(error) => fail(cloud, &key, error),
            None => queued.state = "SUSPENDED",
        },
        _ => {}
    }
}

/// It ends for want of what it asks for; nothing of it is left.
fn fail(cloud: &mut Cloud, key: &(String, String), error: Value) {
    let Some(queued) = cloud.queued.get_mut(key) else { return };
    queued.state = "FAILED";
    queued.error = Some(error);
    let name = queued.name.clone();
    cloud.nodes.retain(|_, node| node.queued_resource.as_ref() != Some(&name));
}

/// A node of it was preempted: its capacity is taken back as a whole, by the service.
pub(super) fn suspend(cloud: &mut Cloud, zone: &str, name: &str) {
    let key = (zone.to_owned(), name.rsplit('/').next().unwrap_or_default().to_owned());
    let change = cloud.timing.change;
    let Some(queued) = cloud.queued.get_mut(&key).filter(|queued| queued.state == "ACTIVE") else {
        return;
    };
    queued.state = "SUSPENDING";
    let number = queued.number;
    next(cloud, change, (key, number));
}

fn add_nodes(cloud: &mut Cloud, key: &(String, String)) {
    let slices = cloud.queued.get(key).map_or(0, |queued| queued.nodes.len());
    for slice in 0..slices {
        add_slice(cloud, key, slice);
    }
}

/// A node of a request begins. Returns its unique id.
fn add_slice(cloud: &mut Cloud, key: &(String, String), slice: usize) -> Option<u64> {
    let queued = cloud.queued.get(key)?;
    let (name, several) = (queued.name.clone(), queued.nodes.len() > 1);
    let (node, body) = queued.nodes.get(slice)?.clone();
    let uid = cloud.add_node(&key.0, &node, body, false);
    let node = cloud.nodes.get_mut(&(key.0.clone(), node))?;
    (node.queued_resource, node.multislice) = (Some(name), several);
    node.first_host = slice * node.attributes.len();
    Some(uid)
}

/// A node is made again inside its request, as that was asked for.
pub(super) fn remake(cloud: &mut Cloud, (zone, node): &(String, String)) {
    let found = cloud.queued.iter().find_map(|(key, queued)| {
        let slice = queued.nodes.iter().position(|(name, _)| name == node)?;
        (key.0 == *zone && queued.state == "ACTIVE").then(|| (key.clone(), slice))
    });
    let Some((key, slice)) = found else { return };
    cloud.nodes.remove(&(zone.clone(), node.clone()));
    if let Some(uid) = add_slice(cloud, &key, slice) {
        let (zone, node) = (zone.clone(), node.clone());
        let again = Happening::Healed { zone, node, uid, event: true };
        cloud.schedule(cloud.timing.create, again);
    }
}

fn become_ready(cloud: &mut Cloud, key: &(String, String)) {
    let Some(queued) = cloud.queued.get(key) else { return };
    for (node, _) in queued.nodes.clone() {
        let Some(found) = cloud.nodes.get_mut(&(key.0.clone(), node.clone())) else { continue };
        (found.state, found.health) = ("READY", Some("HEALTHY".to_owned()));
        let (zone, uid) = (key.0.clone(), found.uid);
        cloud.schedule(cloud.timing.boot, Happening::Booted { zone, node, uid });
    }
}

fn render(queued: &Queued, place: &Place) -> Value {
    let mut body = queued.body.clone();
    if let Some(at) = queued.ends_at {
        body["runDuration"]["terminationTime"] = json!(shape::time(at));
    }
    // v2 has no such fields.
    if !place.alpha() {
        body.retain(|field, _| !ALPHA_ONLY.contains(&field.as_str()));
        let guaranteed = body.get_mut("guaranteed").and_then(Value::as_object_mut);
        guaranteed.map(|of| of.remove("reserved"));
    }
    body.insert("name".into(), json!(queued.name));
    body.insert("createTime".into(), json!(shape::time(queued.created)));
    let by = if queued.by_user { "USER" } else { "SERVICE" };
    let mut state = json!({"state": queued.state, "stateInitiator": by});
    if let Some(error) = queued.error.as_ref().filter(|_| queued.state == "FAILED") {
        state["failedData"] = json!({"error": error});
    }
    body.insert("state".into(), state);
    if let Some(specs) =
        body.get_mut("tpu").and_then(|t| t.get_mut("nodeSpec")).and_then(Value::as_array_mut)
    {
        for spec in specs {
            spec["parent"] = json!(format!(
                "projects/{}/locations/{}",
                queued.project,
                queued.name.split('/').nth(3).unwrap_or_default()
            ));
            // As Google's tutorials print it: no version takes these back.
            spec["node"]["bootDisk"] = json!({});
            spec["node"]["useTpuVm"] = json!(true);
            spec["node"]["queuedResource"] = json!(queued.name);
        }
    }
    Value::Object(body)
}
