//! Queued resources, single and multislice, as far as a user of gcloud sees them.

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::shape::{self, Answer, error, not_found};
use super::things::{Happening, Queued};
use super::wire::{Place, Request, answer_operation, check_parameters};

pub fn list(cloud: &Cloud, place: &Place) -> Answer {
    let mine =
        cloud.queued.iter().filter(|((zone, _), _)| place.zone == "-" || *zone == place.zone);
    (200, json!({"queuedResources": mine.map(|(_, q)| render(q)).collect::<Vec<_>>()}))
}

pub fn get(cloud: &Cloud, place: &Place, id: &str) -> Answer {
    match cloud.queued.get(&(place.zone.to_owned(), id.to_owned())) {
        Some(queued) => (200, render(queued)),
        None => not_found(&format!("{}/queuedResources/{id}", place.parent())),
    }
}

pub fn create(cloud: &mut Cloud, place: &Place, request: &Request) -> Answer {
    if let Some(refusal) = check_parameters(request, &["queuedResourceId", "requestId"]) {
        return refusal;
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
    let spot = body.contains_key("spot");
    let mut nodes = Vec::new();
    let specs = request
        .body
        .as_ref()
        .and_then(|b| b.pointer("/tpu/nodeSpec"))
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for spec in &specs {
        let checked = shape::check_node(
            spec.get("node").unwrap_or(&json!({})),
            "queued_resource.tpu.node_spec[0].node",
            place.alpha(),
            place.zone,
        );
        let mut node = match checked {
            Ok(node) => node,
            Err(refusal) => return *refusal,
        };
        if spot {
            node.insert("schedulingConfig".into(), json!({"spot": true}));
        }
        let many = spec.get("multisliceParams").or_else(|| spec.get("multiNodeParams"));
        match (spec.get("nodeId").and_then(Value::as_str), many) {
            (Some(node_id), None) => nodes.push((node_id.to_owned(), node)),
            (None, Some(many)) => {
                let count = many.get("nodeCount").and_then(Value::as_u64).unwrap_or(1);
                let prefix = many.get("nodeIdPrefix").and_then(Value::as_str).unwrap_or(&id);
                nodes.extend((0..count.min(64)).map(|i| (format!("{prefix}-{i}"), node.clone())));
            }
            _ => return error(400, "Exactly one of node_id and multislice_params must be set."),
        }
    }
    if nodes.is_empty() {
        return error(400, "queued_resource.tpu.node_spec is required.");
    }
    let created = cloud.now();
    let queued = Queued {
        name: name.clone(),
        body,
        state: "WAITING_FOR_RESOURCES",
        created,
        project: place.project.to_owned(),
        nodes,
    };
    cloud.queued.insert(key.clone(), queued);
    let operation = cloud.operation(place.project, place.zone, name, "create");
    cloud.schedule(cloud.timing.change, Happening::Done { operation: operation.clone() });
    cloud.schedule(cloud.timing.create, Happening::Queue { zone: key.0, id: key.1 });
    answer_operation(cloud, place, &operation)
}

pub fn delete(cloud: &mut Cloud, place: &Place, id: &str, force: bool) -> Answer {
    let key = (place.zone.to_owned(), id.to_owned());
    let name = format!("{}/queuedResources/{id}", place.parent());
    let Some(queued) = cloud.queued.get_mut(&key) else { return not_found(&name) };
    if queued.state == "ACTIVE" && !force {
        return error(400, format!("{name} is ACTIVE: delete its nodes first, or use force."));
    }
    queued.state = "DELETING";
    let operation = cloud.operation(place.project, place.zone, name, "delete");
    let happening = Happening::Dequeued { operation: operation.clone(), zone: key.0, id: key.1 };
    cloud.schedule(cloud.timing.delete, happening);
    answer_operation(cloud, place, &operation)
}

/// The nodes of a queued resource come to be.
pub(super) fn provision(cloud: &mut Cloud, zone: &str, id: &str) {
    let Some(queued) = cloud
        .queued
        .get_mut(&(zone.to_owned(), id.to_owned()))
        .filter(|q| q.state == "WAITING_FOR_RESOURCES")
    else {
        return;
    };
    queued.state = "ACTIVE";
    let (name, nodes) = (queued.name.clone(), queued.nodes.clone());
    let several = nodes.len() > 1;
    for (node, body) in nodes {
        cloud.add_node(zone, &node, body, true);
        if let Some(node) = cloud.nodes.get_mut(&(zone.to_owned(), node)) {
            node.queued_resource = Some(name.clone());
            node.multislice = several;
        }
    }
}

fn render(queued: &Queued) -> Value {
    let mut body = queued.body.clone();
    body.insert("name".into(), json!(queued.name));
    body.insert("createTime".into(), json!(shape::time(queued.created)));
    body.insert("state".into(), json!({"state": queued.state, "stateInitiator": "SERVICE"}));
    if let Some(specs) =
        body.get_mut("tpu").and_then(|t| t.get_mut("nodeSpec")).and_then(Value::as_array_mut)
    {
        for spec in specs {
            spec["parent"] = json!(format!(
                "projects/{}/locations/{}",
                queued.project,
                queued.name.split('/').nth(3).unwrap_or_default()
            ));
        }
    }
    Value::Object(body)
}
