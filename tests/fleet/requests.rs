//! Queued resources in a world: how they are read, asked for, deleted and ordered, as the client does.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tpu_watchdog::google::answers;
use tpu_watchdog::google::origin::Origin;
use tpu_watchdog::model::action::{Action, CallOutcome, Reading, RequestList};
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::queued::RequestView;
use tpu_watchdog::model::relaunch::Patch;
use tpu_watchdog::resource::queued::{body, reading::reading};
use tpu_watchdog::resource::spec::{is_supervised, strip_ours};

use crate::process::HasIt;
use crate::world::{Sent, World};

/// The call that a mutation of a queued resource stands for.
pub fn call(
    action: &Action,
    query: &mut BTreeMap<String, String>,
) -> (&'static str, String, Option<Value>) {
    match action {
        Action::Create { slot, zone, body, request_id, filling } => {
            let parent = format!("projects/p/locations/{zone}");
            let (body, alpha) = body::create_body(body, &parent, slot, false);
            query.insert("queuedResourceId".into(), filling.id().into());
            query.extend(request_id.clone().map(|id| ("requestId".into(), id)));
            let version = if alpha { "v2alpha1" } else { "v2" };
            ("POST", format!("{version}/{parent}/queuedResources"), Some(body))
        }
        Action::Delete { zone, filling, force, request_id, .. } => {
            query.insert("force".into(), force.to_string());
            query.extend(request_id.clone().map(|id| ("requestId".into(), id)));
            let id = filling.id();
            ("DELETE", format!("v2/projects/p/locations/{zone}/queuedResources/{id}"), None)
        }
        Action::Patch { .. } => unreachable!("it goes to the nodes"),
    }
}

impl World {
    pub fn requests(&mut self, zone: &str) -> RequestList {
        let path = format!("v2alpha1/projects/p/locations/{zone}/queuedResources");
        let (_, page) = self.call("GET", &path, &BTreeMap::new(), None);
        let mut page = answers::request_page(page, true).unwrap();
        page.requests.retain(|request| !self.hidden.contains(&request.id));
        RequestList { requests: page.requests, unreachable: page.unreachable }
    }

    pub fn request(&mut self, zone: &str, id: &str) -> Option<RequestView> {
        self.requests(zone).requests.into_iter().find(|request| request.id == id)
    }

    /// The answer to a GET of a slot, as the client puts it together.
    pub fn filled(
        &mut self,
        zone: &str,
        (slot, known): (&str, &[String]),
        filling: &Filling,
    ) -> Reading {
        let id = match filling {
            Filling::Node => return self.get(zone, slot),
            Filling::QueuedResource(id) => id,
            Filling::Training(of) => {
                let job = self.job_of(of, (slot, known), zone);
                return job.unwrap_or_else(|why| Reading::Unread(why.to_string()));
            }
        };
        let request = self.request(zone, id);
        let own = [slot.to_owned()];
        let known = if known.is_empty() { &own[..] } else { known };
        let named = request.as_ref().map_or(known, |request| &request.nodes);
        let mut nodes: Vec<Arc<NodeView>> = Vec::new();
        for node in named {
            if let Reading::Node(view) = self.get(zone, node) {
                nodes.push(view);
            }
        }
        reading(id, request.as_ref(), &nodes)
    }

    /// Changes our part of one node's metadata, as the client does; none where the process dies at it.
    pub fn patch_one(&mut self, action: &Action, node: &str) -> Option<Result<CallOutcome, HasIt>> {
        let Action::Patch { slot, zone, nodes, filling, incarnation, patch, stray } = action else {
            unreachable!("only patches go to nodes");
        };
        let refused = |class, text: &str| Some(Ok(CallOutcome::Refused(Failure::new(class, text))));
        let unsent = |class, text: &str| Some(Ok(CallOutcome::NotSent(Failure::new(class, text))));
        let Reading::Node(view) = self.get(zone, node) else {
            return unsent(FailureClass::NotFound, "no such node");
        };
        let same = match filling {
            Filling::QueuedResource(id) => {
                let made = self.request(zone, id).and_then(|request| request.created);
                made == Some(incarnation.created) && body::is_of(&view, id)
            }
            _ => view.incarnation.as_ref() == Some(incarnation),
        };
        if !same {
            return refused(FailureClass::NotFound, "another node is there by now");
        }
        let mut path = format!("v2/projects/p/locations/{zone}/nodes/{node}");
        let (mut query, mut method) = (BTreeMap::new(), "PATCH");
        let body = if *patch == Patch::Stop {
            (path, method) = (format!("{path}:stop"), "POST");
            json!({})
        } else {
            query.insert("updateMask".to_owned(), "metadata".to_owned());
            let mut metadata = view.raw["metadata"].clone();
            let supervised = is_supervised(metadata.as_object().unwrap());
            let supervised = supervised || *patch == Patch::Release;
            let named = if *stray { view.slot.is_some() } else { view.slot.as_ref() == Some(slot) };
            let whole = supervised && named && view.run.is_some();
            match patch {
                Patch::Order(order) if nodes.len() > 1 && view.run.as_ref() == Some(order) => {
                    return Some(Err(HasIt));
                }
                Patch::Release if nodes.len() > 1 && view.slot.is_none() && view.run.is_none() => {
                    return Some(Err(HasIt));
                }
                _ if !whole => {
                    return unsent(FailureClass::Garbage, "the node was read without its metadata");
                }
                Patch::Order(order) => {
                    if view.run.as_ref().is_some_and(|run| run.generation > order.generation) {
                        return refused(FailureClass::Conflict, "the node has a newer order");
                    }
                    metadata["tpu-watchdog-run"] = json!(order.text());
                }
                _ => strip_ours(metadata.as_object_mut().unwrap()),
            }
            json!({ "metadata": metadata })
        };
        let (at, method, body) = (self.now, method.to_owned(), Some(body));
        Some(Ok(self.arrives(Origin::PATCH, Sent { at, method, path, query, body })?))
    }
}
