//! A queued resource and its nodes, put together into one reading: the request says what is wanted,
//! the nodes say what is there, and neither alone tells how its TPU is.
//!
//! The reading is that of a node. Its identity is the request's creation time, since Google's own
//! repair may change the nodes; its specification is what the request asks for. While the request
//! itself says that there is no TPU to judge (it waits, failed, was suspended), its condition is part
//! of the reading, and its state one that no rule takes for a node's at work.
//!
//! Sources: Cloud TPU API v2, `projects.locations.queuedResources`; "Manage queued resources".

use std::sync::Arc;

use super::super::node::fingerprint;
use super::body;
use crate::model::action::Reading;
use crate::model::condition::{Condition, Verdict};
use crate::model::filling::Deletable;
use crate::model::ids::Incarnation;
use crate::model::node::{NodeState, NodeView};
use crate::model::queued::{RequestState, RequestView};

/// The reading of a slot that is the queued resource `id`, of which the request was read first and then
/// the nodes of its zone: all of them, or those that it names.
pub fn reading(id: &str, request: Option<&RequestView>, nodes: &[Arc<NodeView>]) -> Reading {
    let mine = |node: &&Arc<NodeView>| body::is_of(node, id);
    let Some(request) = request else {
        return match nodes.iter().any(|node| mine(&node)) {
            true => {
                Reading::Unread(format!("the queued resource {id} is gone, its node is not yet"))
            }
            false => Reading::Absent,
        };
    };
    let named = nodes.iter().find(|node| request.nodes.contains(&node.node));
    if let Some(node) = named.filter(|node| !(mine(node) && is_younger(node, request))) {
        return Reading::Unread(format!(
            "the node {} that was read does not belong to the queued resource {id}: it is another client's, or older than the request; if it stays, compare \
             its queuedResource and createTime with the request's",
            node.node
        ));
    }
    match composed(request, named) {
        Ok(view) => Reading::Node(Arc::new(view)),
        Err(why) => Reading::Unread(why),
    }
}

/// A node that was made before the request is that of a former one: reads may lag behind.
fn is_younger(node: &NodeView, request: &RequestView) -> bool {
    let made = node.incarnation.as_ref().map(|incarnation| incarnation.created);
    made.zip(request.created).is_none_or(|(made, asked)| made >= asked)
}

/// The request and its node as one.
fn composed(request: &RequestView, node: Option<&Arc<NodeView>>) -> Result<NodeView, String> {
    let wanted = NodeView::parse(body::as_node(request, node.map(|node| &*node.raw)))?;
    let standing = standing(request, node, wanted.spot);
    let judged = node.filter(|_| standing.is_none());
    let created = request.created;
    let seen = node.map_or(0, |node| node.fingerprint.rotate_left(1));
    Ok(NodeView {
        // The API gives a request no number of its own; a later one of its id has another time.
        incarnation: created.map(|created| Incarnation {
            id: format!("{}.{}", request.id, created.as_second()),
            created,
        }),
        state: state(request, node),
        health: judged.and_then(|node| node.health.clone()),
        maintenance_event: judged.and_then(|node| node.maintenance_event),
        symptoms: judged.map(|node| node.symptoms.clone()).unwrap_or_default(),
        upcoming: judged.and_then(|node| node.upcoming.clone()),
        multislice: request.nodes.len() > 1,
        workers: node.map_or(0, |node| node.workers),
        opted_out: wanted.opted_out || node.is_some_and(|node| node.opted_out),
        owner: node.map_or(wanted.owner, |node| node.owner.clone()),
        slot: node.map_or(wanted.slot, |node| node.slot.clone()),
        run: node.map_or(wanted.run, |node| node.run.clone()),
        supervised: node.map_or(wanted.supervised, |node| node.supervised),
        standing,
        member: request.nodes.first().cloned(),
        deletable: deletable(&request.state),
        failure: request.failure.clone(),
        alpha: request.alpha,
        fingerprint: fingerprint(&request.raw) ^ seen ^ u64::from(request.alpha),
        ..wanted
    })
}

/// The condition that the request gives by itself; none where its node is there to be judged.
fn standing(request: &RequestView, node: Option<&Arc<NodeView>>, spot: bool) -> Option<Verdict> {
    use Condition::*;
    let (id, state) = (&request.id, request.state.as_str());
    let says = |condition, more: &str| {
        Some(Verdict::new(condition, format!("queued resource {id} is {state}{more}")))
    };
    match &request.state {
        RequestState::Creating
        | RequestState::Accepted
        | RequestState::Waiting
        | RequestState::Provisioning => says(Waiting, ""),
        RequestState::Failed => {
            let error = request.error.as_deref().unwrap_or("the API gives no reason");
            says(RequestFailed, &format!(": {error}"))
        }
        RequestState::Suspended if request.by_user => says(Stopped, " by a user"),
        RequestState::Suspended => says(Preempted, ": its capacity was taken back"),
        RequestState::Suspending | RequestState::Deleting => says(Going, ""),
        RequestState::Active => match node.map(|node| &node.state) {
            Some(NodeState::Deleting) => says(Going, ", and its node is being deleted"),
            Some(_) => None,
            // Spot capacity that is taken back may leave the request ACTIVE for a while. Other nodes
            // go when someone deletes them.
            None if spot => says(Preempted, ", and its Spot node is gone"),
            None => says(Stopped, ", and its node was deleted"),
        },
        RequestState::Unspecified | RequestState::Other(_) => says(Unclear, ""),
    }
}

/// The node's state where there is a node to judge; else one that no rule takes for a node at work.
fn state(request: &RequestView, node: Option<&Arc<NodeView>>) -> NodeState {
    match (&request.state, node.map(|node| &node.state)) {
        (RequestState::Active, Some(state)) if *state != NodeState::Deleting => state.clone(),
        (RequestState::Suspended, _) if request.by_user => NodeState::Stopped,
        (RequestState::Suspended, _) => NodeState::Preempted,
        (RequestState::Deleting, _) => NodeState::Deleting,
        (state, _) => NodeState::Other(state.as_str().to_owned()),
    }
}

// unverified: whether a request that is CREATING can be deleted; it is not tried.
// settled by: gcloud compute tpus queued-resources delete ID --zone ZONE, right after its create
/// Source: the refusal that names the states, "must be one of [ACCEPTED WAITING_FOR_RESOURCES SUSPENDED
/// FAILED]"; ACTIVE takes `force`.
fn deletable(state: &RequestState) -> Deletable {
    match state {
        RequestState::Accepted
        | RequestState::Waiting
        | RequestState::Suspended
        | RequestState::Failed => Deletable::Now,
        RequestState::Active => Deletable::WithItsNodes,
        _ => Deletable::NotNow,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OF: &str = "projects/p/locations/z";

    fn request(state: Value, spot: bool) -> RequestView {
        let mut raw = json!({
            "name": format!("{OF}/queuedResources/q"), "createTime": "2026-06-01T12:00:00Z", "state": state,
            "tpu": {"nodeSpec": [{"nodeId": "n", "node": {"acceleratorType": "v6e-8", "runtimeVersion": "v"}}]},
        });
        if spot {
            raw["spot"] = json!({});
        }
        RequestView::parse(raw).unwrap()
    }

    fn node(state: &str, of: Option<&str>) -> Arc<NodeView> {
        let raw = json!({
            "name": format!("{OF}/nodes/n"), "id": "7", "createTime": "2026-06-01T13:00:00Z", "state": state,
            "health": "HEALTHY", "networkEndpoints": [{}],
            "queuedResource": of.map(|id| format!("{OF}/queuedResources/{id}")),
        });
        Arc::new(NodeView::parse(raw).unwrap())
    }

    fn view(request: &RequestView, nodes: &[Arc<NodeView>]) -> Arc<NodeView> {
        match reading("q", Some(request), nodes) {
            Reading::Node(view) => view,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_state_of_a_request_has_its_condition_and_its_way_of_being_deleted() {
        use Condition::*;
        use Deletable::*;
        let table = [
            (json!({"state": "CREATING"}), Waiting, NotNow),
            (json!({"state": "ACCEPTED"}), Waiting, Now),
            (json!({"state": "WAITING_FOR_RESOURCES"}), Waiting, Now),
            (json!({"state": "PROVISIONING"}), Waiting, NotNow),
            (json!({"state": "FAILED"}), RequestFailed, Now),
            (json!({"state": "SUSPENDING", "stateInitiator": "SERVICE"}), Going, NotNow),
            (json!({"state": "DELETING", "stateInitiator": "USER"}), Going, NotNow),
            (json!({"state": "SUSPENDED", "stateInitiator": "SERVICE"}), Preempted, Now),
            (json!({"state": "SUSPENDED", "stateInitiator": "USER"}), Stopped, Now),
            (json!({"state": "LATER"}), Unclear, NotNow),
        ];
        for (state, condition, deletable) in table {
            let view = view(&request(state.clone(), true), &[node("READY", Some("q"))]);
            let standing = view.standing.as_ref().map(|verdict| verdict.condition);
            assert_eq!((standing, view.deletable), (Some(condition), deletable), "{state}");
            assert_ne!(view.state, NodeState::Ready, "{state}");
        }
    }

    #[test]
    fn an_active_request_is_as_its_node_is() {
        let active = request(json!({"state": "ACTIVE"}), false);
        let found = view(&active, &[node("READY", Some("q"))]);
        assert_eq!((found.standing.clone(), &found.state), (None, &NodeState::Ready));
        assert_eq!(found.deletable, Deletable::WithItsNodes);
        assert_eq!((found.workers, found.member.as_deref()), (1, Some("n")));
        // Google's repair makes another node: the identity is the request's.
        let created = active.created.unwrap();
        let id = format!("q.{}", created.as_second());
        assert_eq!(found.incarnation, Some(Incarnation { id, created }));
        assert_eq!(view(&active, &[node("PREEMPTED", Some("q"))]).state, NodeState::Preempted);
        let condition = |spot, nodes: &[Arc<NodeView>]| {
            let request = request(json!({"state": "ACTIVE"}), spot);
            view(&request, nodes).standing.as_ref().map(|verdict| verdict.condition)
        };
        assert_eq!(condition(true, &[]), Some(Condition::Preempted));
        assert_eq!(condition(false, &[]), Some(Condition::Stopped));
        assert_eq!(condition(true, &[node("DELETING", Some("q"))]), Some(Condition::Going));
        let none: [Arc<NodeView>; 0] = [];
        assert!(matches!(reading("q", None, &none), Reading::Absent));
        let left = [node("READY", Some("q"))];
        assert!(matches!(reading("q", None, &left), Reading::Unread(_)));
        let other = [node("READY", None)];
        assert!(matches!(reading("q", None, &other), Reading::Absent));
        // Another client's node of that name, and one of a former request of that id.
        assert!(matches!(reading("q", Some(&active), &other), Reading::Unread(_)));
        let later =
            RequestView { created: Some("2026-06-01T14:00:00Z".parse().unwrap()), ..active };
        assert!(matches!(reading("q", Some(&later), &left), Reading::Unread(_)));
    }
}
