//! A queued resource and its nodes, put together into one reading: the request says what is wanted,
//! the nodes say what is there, and neither alone tells how its TPU is.
//!
//! The reading is that of a node. Its identity is the request's creation time, since Google's own
//! repair may change the nodes; its specification is what the request asks for. While the request
//! itself says that there is no TPU to judge (it waits, failed, was suspended), its condition is part
//! of the reading, and its state one that no rule takes for a node's at work. Of several slices the
//! worst is shown, since none can run the job without the others.
//!
//! Sources: Cloud TPU API v2, `projects.locations.queuedResources`; "Manage queued resources".

use std::sync::Arc;

use super::super::capacity;
use super::super::node::fingerprint;
use super::body;
use crate::model::action::Reading;
use crate::model::condition::{Condition, Verdict};
use crate::model::filling::Deletable;
use serde_json::Value;

use crate::model::node::{Health, NodeState, NodeView};
use crate::model::queued::{Initiator, RequestState, RequestView};
use crate::model::spec::RESERVATION;

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
    let unnamed = |node: &&Arc<NodeView>| mine(node) && !request.nodes.contains(&node.node);
    if let Some(node) = nodes.iter().find(unnamed) {
        return Reading::Unread(format!(
            "the node {} is of the queued resource {id}, whose specification does not name it",
            node.node
        ));
    }
    let named: Vec<_> =
        request.nodes.iter().filter_map(|id| nodes.iter().find(|node| node.node == *id)).collect();
    if let Some(node) = named.iter().find(|node| !(mine(node) && is_younger(node, request))) {
        return Reading::Unread(format!(
            "the node {} that was read does not belong to the queued resource {id}: it is another client's, or older than the request; if it stays, compare \
             its queuedResource and createTime with the request's",
            node.node
        ));
    }
    match composed(request, &named) {
        Ok(view) => Reading::Node(Arc::new(view)),
        Err(why) => Reading::Unread(why),
    }
}

/// A node that was made before the request is that of a former one: reads may lag behind.
fn is_younger(node: &NodeView, request: &RequestView) -> bool {
    let made = node.incarnation.as_ref().map(|incarnation| incarnation.created);
    made.zip(request.created).is_none_or(|(made, asked)| made >= asked)
}

/// The request and those of its nodes that are there, in the order of their ids, as one.
fn composed(request: &RequestView, nodes: &[&Arc<NodeView>]) -> Result<NodeView, String> {
    let mut wanted = NodeView::parse(body::as_node(request, nodes.first().map(|node| &*node.raw)))?;
    wanted.spot |= capacity::is_taken_back(&request.raw);
    let several = request.nodes.len() > 1;
    let node = nodes.iter().copied().min_by_key(|node| rank(node));
    let standing = standing(request, nodes, wanted.spot);
    let judged = node.filter(|_| standing.is_none());
    // An order goes to the nodes in turn: the last one is the last to have it, or to lose it.
    let behind = nodes
        .iter()
        .rev()
        .min_by_key(|node| node.run.as_ref().map_or(u64::MAX, |run| run.generation));
    let first =
        |value: fn(&NodeView) -> &Option<String>| nodes.iter().find_map(|node| value(node).clone());
    let unsaid = nodes.iter().all(|node| node.is_bare());
    let seen = nodes.iter().fold(0_u64, |all, node| all.rotate_left(1) ^ node.fingerprint);
    let made = nodes.iter().filter_map(|n| Some((n.node.clone(), n.incarnation.as_ref()?.created)));
    // Indices of hosts go on from slice to slice, also past one that is not there.
    let hosts = nodes.iter().map(|node| node.workers).max().unwrap_or(0);
    Ok(NodeView {
        incarnation: request.incarnation(),
        state: state(request, judged),
        health: judged.and_then(|node| node.health.clone()),
        maintenance_event: judged.and_then(|node| node.maintenance_event),
        symptoms: judged.map(|node| node.symptoms.clone()).unwrap_or_default(),
        // An announced maintenance of any of them excuses the silence of its hosts.
        upcoming: judged.and_then(|_| {
            let all = nodes.iter().filter_map(|node| node.upcoming.as_ref());
            all.max_by_key(|of| (of.ongoing, of.window_end)).cloned()
        }),
        multislice: has_several_specifications(request),
        workers: hosts * request.nodes.len(),
        // The label may be taken off a node, and never off its request.
        opted_out: match nodes {
            [] => wanted.opted_out,
            all => all.iter().any(|node| node.opted_out),
        },
        owner: if unsaid { wanted.owner } else { first(|node| &node.owner) },
        slot: if unsaid { wanted.slot } else { first(|node| &node.slot) },
        out_of_step: out_of_step(nodes),
        run: behind.map_or(wanted.run, |node| node.run.clone()),
        supervised: match nodes {
            [] => wanted.supervised,
            all => all.iter().all(|node| node.supervised),
        },
        slice: judged.filter(|node| several && rank(node) < BEST).map(|node| node.node.clone()),
        standing,
        members: request.nodes.clone(),
        machines: Some(made.collect()),
        labelled: nodes.iter().filter(|n| n.opted_out).map(|n| n.node.clone()).collect(),
        deletable: deletable(&request.state),
        own_state: Some(request.state.as_str().to_owned()),
        by_service: request.by == Some(Initiator::Service),
        not_listed: request.state == RequestState::Active
            && nodes.is_empty()
            && !request.nodes.is_empty(),
        failure: request.failure.clone(),
        times: request.times,
        alpha: request.alpha,
        reserved: wanted.reserved || !reservation(request).is_empty(),
        reservation: reservation(request).to_owned(),
        fingerprint: fingerprint(&request.raw) ^ seen.rotate_left(1) ^ u64::from(request.alpha),
        ..wanted
    })
}

/// The newest generation that a slice has, where not all have the same run order.
fn out_of_step(nodes: &[&Arc<NodeView>]) -> Option<u64> {
    let differs = nodes.iter().any(|node| node.run != nodes[0].run);
    let newest = nodes.iter().filter_map(|node| Some(node.run.as_ref()?.generation)).max();
    newest.filter(|_| differs)
}

/// The reservation that it names: v2 says by that alone that its capacity is reserved.
fn reservation(request: &RequestView) -> &str {
    request.raw.get(RESERVATION).and_then(Value::as_str).unwrap_or_default()
}

/// Slices of different types: a create knows one specification for all of them.
fn has_several_specifications(request: &RequestView) -> bool {
    let specs = request.raw.pointer("/tpu/nodeSpec").and_then(Value::as_array);
    specs.is_some_and(|specs| specs.len() > 1)
}

/// Of a node with which nothing is wrong.
const BEST: (u8, u8) = (9, 9);
/// Of a node in a state or health on which no rule acts.
const HELD: (u8, u8) = (0, 0);

/// How a node is, the worst first: by its state, then by its health.
fn rank(node: &NodeView) -> (u8, u8) {
    use NodeState::*;
    let state = match &node.state {
        Ready => 9,
        Repairing => 8,
        Creating | Starting | Restarting | Reimaging => 7,
        Unknown => 6,
        // A dead one is dead whatever its health says.
        Preempted | Terminated => return (5, 0),
        // A state that no rule acts on must not be hidden by one that a rule acts on.
        _ => 0,
    };
    let health = match &node.health {
        Some(Health::Other(_) | Health::Unspecified) => return HELD,
        None | Some(Health::Healthy) if node.symptoms.is_empty() => 9,
        None | Some(Health::Healthy) => 8,
        Some(Health::UnhealthyTensorflow) => 7,
        Some(Health::Timeout) => 6,
        Some(Health::UnhealthyMaintenance) => 5,
    };
    if state == 0 { HELD } else { (state, health) }
}

/// Whether no rule acts on a node in such a state or health.
fn is_held(node: &NodeView) -> bool {
    rank(node) == HELD
}

/// The condition that the request gives by itself; none where its nodes are there to be judged.
fn standing(request: &RequestView, nodes: &[&Arc<NodeView>], spot: bool) -> Option<Verdict> {
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
        RequestState::Suspended if request.is_by_user() => says(Stopped, " by a user"),
        RequestState::Suspended if request.is_by_service() => {
            says(Preempted, ": its capacity was taken back")
        }
        RequestState::Suspended => says(
            Unclear,
            ", and by whom is not known: to have it asked for again delete it, then `retry`",
        ),
        RequestState::Suspending | RequestState::Deleting => says(Going, ""),
        RequestState::Active if nodes.iter().any(|node| node.state == NodeState::Deleting) => {
            says(Going, ", and its node is being deleted")
        }
        RequestState::Active if request.nodes.is_empty() => {
            says(Unclear, ", and names no node in a way that is known")
        }
        // A person's doing, or a value that is not known, must not be hidden by a slice that is lost.
        RequestState::Active if nodes.iter().any(|node| is_held(node)) => None,
        // Spot capacity that is taken back may leave the request ACTIVE for a while. Other nodes may come back: the
        // service repairs them.
        RequestState::Active if nodes.is_empty() => match spot {
            true => says(Preempted, ", and its Spot node is gone"),
            false => says(SliceLost, ", and its node is gone"),
        },
        RequestState::Active => {
            let lost = lost_slices(request, nodes);
            let all = request.nodes.len();
            match lost.len() {
                0 => None,
                // Nothing is left to save.
                count if count == all && all > 1 => says(
                    Preempted,
                    &format!(", and of its slices none is left: {}", lost.join(", ")),
                ),
                count if count == all => None,
                count => {
                    let text =
                        format!(", and {count} of its {all} slices are lost: {}", lost.join(", "));
                    says(SliceLost, &text)
                }
            }
        }
        RequestState::Unspecified | RequestState::Other(_) => says(Unclear, ""),
    }
}

/// The nodes of an ACTIVE request that are not there, or dead, with how they are.
fn lost_slices(request: &RequestView, nodes: &[&Arc<NodeView>]) -> Vec<String> {
    let of = |id: &String| match nodes.iter().find(|node| node.node == *id) {
        None => Some(format!("{id} is not there")),
        Some(node) => matches!(node.state, NodeState::Preempted | NodeState::Terminated)
            .then(|| format!("{id} is {}", node.state.as_str())),
    };
    request.nodes.iter().filter_map(of).collect()
}

/// The node's state where there is a node to judge; else one that no rule takes for a node at work.
fn state(request: &RequestView, judged: Option<&Arc<NodeView>>) -> NodeState {
    match (&request.state, judged.map(|node| &node.state)) {
        (RequestState::Active, Some(state)) => state.clone(),
        (RequestState::Suspended, _) if request.is_by_user() => NodeState::Stopped,
        (RequestState::Suspended, _) if request.is_by_service() => NodeState::Preempted,
        (RequestState::Deleting, _) => NodeState::Deleting,
        (state, _) => NodeState::Other(state.as_str().to_owned()),
    }
}

// unverified: whether a request that is CREATING can be deleted; it is not tried.
// settled by: gcloud compute tpus queued-resources delete ID --zone ZONE, right after its create
/// Of one that is ACTIVE a delete takes `force`.
fn deletable(state: &RequestState) -> Deletable {
    match state {
        state if RequestState::WITHOUT_NODES.contains(state) => Deletable::Now,
        RequestState::Active => Deletable::WithItsNodes,
        _ => Deletable::NotNow,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::ids::Incarnation;

    const OF: &str = "projects/p/locations/z";

    fn request(state: Value, spot: bool) -> RequestView {
        asked_for(state, spot, json!({"nodeId": "n"}))
    }

    /// With what names its nodes.
    fn asked_for(state: Value, spot: bool, mut spec: Value) -> RequestView {
        spec["node"] = json!({"acceleratorType": "v6e-8", "runtimeVersion": "v"});
        let mut raw = json!({
            "name": format!("{OF}/queuedResources/q"), "createTime": "2026-06-01T12:00:00Z", "state": state,
            "tpu": {"nodeSpec": [spec]},
        });
        if spot {
            raw["spot"] = json!({});
        }
        RequestView::parse(raw).unwrap()
    }

    fn node(state: &str, of: Option<&str>) -> Arc<NodeView> {
        slice("n", state, of, json!({}))
    }

    /// A node of this id, with more or other fields.
    fn slice(id: &str, state: &str, of: Option<&str>, more: Value) -> Arc<NodeView> {
        let mut raw = json!({
            "name": format!("{OF}/nodes/{id}"), "id": "7", "createTime": "2026-06-01T13:00:00Z", "state": state,
            "health": "HEALTHY", "networkEndpoints": [{}],
            "queuedResource": of.map(|id| format!("{OF}/queuedResources/{id}")),
        });
        raw.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
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
            (json!({"state": "SUSPENDED"}), Unclear, Now),
            (json!({"state": "SUSPENDED", "stateInitiator": "LATER"}), Unclear, Now),
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
    fn a_request_that_names_a_reservation_is_of_reserved_capacity() {
        let mut of = request(json!({"state": "ACTIVE"}), false);
        assert!(!view(&of, &[node("READY", Some("q"))]).reserved);
        let raw = Arc::make_mut(&mut of.raw);
        raw["reservationName"] = json!("projects/p/reservations/r");
        assert!(view(&of, &[node("READY", Some("q"))]).reserved);
    }

    #[test]
    fn an_active_request_is_as_its_node_is() {
        let active = request(json!({"state": "ACTIVE"}), false);
        let found = view(&active, &[node("READY", Some("q"))]);
        assert_eq!((found.standing.clone(), &found.state), (None, &NodeState::Ready));
        assert_eq!(found.deletable, Deletable::WithItsNodes);
        assert_eq!((found.workers, &found.members[..]), (1, &["n".to_owned()][..]));
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
        assert_eq!(condition(false, &[]), Some(Condition::SliceLost));
        assert_eq!(condition(true, &[node("DELETING", Some("q"))]), Some(Condition::Going));
        assert!(view(&active, &[]).not_listed);
        assert!(!view(&active, &[node("DELETING", Some("q"))]).not_listed);
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

    /// A multislice of three, ACTIVE.
    fn three(spot: bool) -> RequestView {
        asked_for(json!({"state": "ACTIVE"}), spot, json!({"multisliceParams": {"nodeCount": 3}}))
    }

    #[test]
    fn several_slices_are_as_the_worst_of_them_and_a_lost_one_is_told_by_name() {
        use Condition::*;
        let of = |id, state, more| slice(id, state, Some("q"), more);
        let ready = |id| of(id, "READY", json!({}));
        let all = [ready("q-0"), ready("q-1"), ready("q-2")];
        let found = view(&three(false), &all);
        assert_eq!((found.standing.clone(), &found.slice, found.workers), (None, &None, 3));
        assert_eq!(found.members, ["q-0", "q-1", "q-2"]);
        assert!(!found.multislice, "it is replaced as a whole");
        // The worst one, whichever place it has; READY and sick is better than not READY.
        let sick = of("q-0", "READY", json!({"health": "TIMEOUT"}));
        let found = view(&three(false), &[sick.clone(), ready("q-1"), ready("q-2")]);
        assert_eq!((&found.health, found.slice.as_deref()), (&Some(Health::Timeout), Some("q-0")));
        let repaired = of("q-2", "CREATING", json!({}));
        let found = view(&three(false), &[sick, ready("q-1"), repaired]);
        assert_eq!((&found.state, found.slice.as_deref()), (&NodeState::Creating, Some("q-2")));
        // A stopped one is a person's: it is not hidden by a dead one.
        let stopped = of("q-1", "STOPPED", json!({}));
        let found = view(&three(false), &[ready("q-0"), stopped.clone(), ready("q-2")]);
        assert_eq!(found.state, NodeState::Stopped);
        for others in [vec![of("q-0", "PREEMPTED", json!({}))], vec![]] {
            let nodes: Vec<_> = others.into_iter().chain([stopped.clone()]).collect();
            let found = view(&three(false), &nodes);
            assert_eq!((&found.standing, &found.state), (&None, &NodeState::Stopped));
        }
        let unknown = of("q-0", "READY", json!({"health": "LATER"}));
        let found = view(&three(true), &[unknown, of("q-1", "REPAIRING", json!({}))]);
        assert_eq!(found.health, Some(Health::Other("LATER".into())));
        let ongoing = json!({"upcomingMaintenance": {"maintenanceStatus": "ONGOING"}});
        let maintained = of("q-2", "READY", ongoing);
        let found = view(&three(false), &[ready("q-0"), ready("q-1"), maintained]);
        assert!(found.upcoming.as_ref().is_some_and(|upcoming| upcoming.ongoing));
        // A node that names the request by another name than is expected.
        let other = [ready("q-0"), of("q.1", "READY", json!({}))];
        assert!(matches!(reading("q", Some(&three(true)), &other), Reading::Unread(_)));
        let dead = |id| of(id, "PREEMPTED", json!({}));
        for (nodes, condition, says) in [
            (
                vec![ready("q-0"), dead("q-1"), ready("q-2")],
                SliceLost,
                "1 of its 3 slices are lost: q-1 is PREEMPTED",
            ),
            (vec![ready("q-2")], SliceLost, "q-0 is not there, q-1 is not there"),
            // Whatever its health says, and whatever that hides: the others live.
            (
                vec![
                    ready("q-0"),
                    of("q-1", "PREEMPTED", json!({"health": "HEALTH_UNSPECIFIED"})),
                    ready("q-2"),
                ],
                SliceLost,
                "q-1 is PREEMPTED",
            ),
            (vec![dead("q-0"), dead("q-1")], Preempted, "none is left"),
            (vec![ready("q-0"), of("q-1", "DELETING", json!({}))], Going, "is being deleted"),
            (vec![], SliceLost, "is gone"),
        ] {
            let found = view(&three(false), &nodes);
            let standing = found.standing.as_ref().unwrap();
            assert_eq!(standing.condition, condition, "{standing:?}");
            assert!(standing.evidence.contains(says), "{standing:?}");
            assert!(
                !matches!(found.state, NodeState::Ready | NodeState::Preempted),
                "{standing:?}"
            );
        }
        // The hosts keep their numbers when a slice is away.
        assert_eq!(view(&three(true), &[ready("q-2")]).workers, 3);
    }

    #[test]
    fn an_order_is_placed_once_the_last_slice_has_it() {
        let run = |id, generation: u64, wait| {
            let text =
                json!({"generation": generation, "checkpoint": "", "step": null, "wait": wait})
                    .to_string();
            slice(id, "READY", Some("q"), json!({"metadata": {"tpu-watchdog-run": text}}))
        };
        let of = |nodes: &[Arc<NodeView>]| {
            let run = view(&three(false), nodes).run.clone().unwrap();
            (run.generation, run.wait)
        };
        assert_eq!(
            of(&[run("q-0", 3, false), run("q-1", 2, false), run("q-2", 2, false)]),
            (2, false)
        );
        assert_eq!(
            of(&[run("q-0", 2, true), run("q-1", 2, true), run("q-2", 2, false)]),
            (2, false)
        );
        assert_eq!(
            of(&[run("q-0", 3, false), run("q-1", 3, false), run("q-2", 3, false)]),
            (3, false)
        );
        // A release has reached the first of them.
        let released = slice("q-0", "READY", Some("q"), json!({}));
        assert_eq!(of(&[released, run("q-1", 3, false), run("q-2", 3, false)]), (3, false));
    }
}
