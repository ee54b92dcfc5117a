//! Quota that is used without work: the rules of `sweep`, over a listing of nodes and one of
//! queued resources. Pure: it says what is dead and why, and deletes nothing.
//!
//! Dead are a node that is PREEMPTED or TERMINATED, a request that is FAILED or SUSPENDED, and an
//! ACTIVE request none of whose nodes lives, or all of whose nodes are idle. A node of a request that is there is never named by
//! itself: it goes with its request. A READY TPU is named only when each of its hosts reports that
//! its job has ended, or the journal follows exactly it as a stray: asked for by this watchdog, called off, and granted
//! all the same. Whatever can't be read is never dead.
//!
//! Example: the request `q` reads ACTIVE while its only node `n` is PREEMPTED. Both hold quota;
//! `q` is named, and its delete takes `n` along.

use std::sync::Arc;

use jiff::Timestamp;

use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::fleet::Stray;
use crate::model::ids::Incarnation;
use crate::model::job_phase::JobPhase;
use crate::model::node::{NodeState, NodeView};
use crate::model::queued::{RequestState, RequestView};

/// Everything of a project that could hold quota.
#[derive(Debug, Default)]
pub struct Inventory {
    /// All nodes that were listed.
    pub nodes: Vec<Arc<NodeView>>,
    /// All queued resources; none where they could not be listed.
    pub requests: Option<Vec<RequestView>>,
    /// Zones that did not answer one of both listings.
    pub unreachable: Vec<String>,
    /// READY nodes whose hosts report that their job has ended, with how.
    pub ended: Vec<(Incarnation, &'static str)>,
    /// The strays of the journal, where there is one.
    pub strays: Vec<Stray>,
}

/// Which one it is, so that no other one of its name is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thing {
    /// A node; none where it can't be told from a later one of its name.
    Node(Option<Incarnation>),
    /// A queued resource.
    Request {
        /// Its time of creation.
        created: Option<Timestamp>,
        /// Its nodes go with it.
        force: bool,
    },
}

/// One thing that does no work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its kind.
    pub thing: Thing,
    /// Its zone.
    pub zone: String,
    /// Its name.
    pub name: String,
    /// The capacity that it holds: a type, or how many of it.
    pub holds: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Why it does no work.
    pub why: String,
    /// The store's id of the watchdog that made it.
    pub owner: Option<String>,
    /// The journal follows it as a stray.
    pub is_stray: bool,
}

/// All that does no work, by zone and name.
pub fn leftovers(all: &Inventory) -> Vec<Leftover> {
    let mut found: Vec<Leftover> = all.nodes.iter().filter_map(|node| of_node(node, all)).collect();
    let requests = all.requests.iter().flatten();
    found.extend(requests.filter_map(|request| of_request(request, all)));
    found.sort_by(|a, b| (&a.zone, &a.name).cmp(&(&b.zone, &b.name)));
    found
}

/// Why a node does no work; none where it may do some, or goes with its request.
pub fn of_node(node: &NodeView, all: &Inventory) -> Option<Leftover> {
    if let Some(name) = &node.queued_resource {
        let requests = all.requests.as_ref()?;
        let id = name.rsplit('/').next().unwrap_or_default();
        let owned = requests.iter().any(|request| request.zone == node.zone && request.id == id);
        if owned || all.unreachable.contains(&node.zone) {
            return None;
        }
    }
    let gone = node.queued_resource.as_ref().map(|_| "; its queued resource is gone");
    let stray = all.strays.iter().find(|stray| {
        let same = stray.zone == node.zone && stray.name == node.node;
        same && stray.request.is_none() && is_seen(stray, node.incarnation.as_ref())
    });
    let why = match node.state {
        NodeState::Preempted => "PREEMPTED: it can't come back, and holds its quota".to_owned(),
        NodeState::Terminated => "TERMINATED: it can't come back, and holds its quota".to_owned(),
        NodeState::Ready if stray.is_some() => called_off("READY", stray),
        NodeState::Ready => {
            let known = node.incarnation.as_ref()?;
            let (_, how) = all.ended.iter().find(|(ended, _)| ended == known)?;
            format!("READY and idle: all its hosts report that its job has {how}")
        }
        _ => return None,
    };
    Some(Leftover {
        thing: Thing::Node(node.incarnation.clone()),
        zone: node.zone.clone(),
        name: node.node.clone(),
        holds: node.accelerator.clone(),
        created: node.incarnation.as_ref().map(|incarnation| incarnation.created),
        why: why + gone.unwrap_or_default(),
        owner: node.owner.clone(),
        is_stray: stray.is_some(),
    })
}

/// Whether the journal has seen exactly this one.
fn is_seen(stray: &Stray, shown: Option<&Incarnation>) -> bool {
    shown.is_some() && stray.incarnation.as_ref() == shown
}

fn called_off(state: &str, stray: Option<&Stray>) -> String {
    let why = stray.map_or("", |stray| &stray.why);
    format!("{state} and billed, and no slot owns it: {why}")
}

/// Why a queued resource does no work.
pub fn of_request(request: &RequestView, all: &Inventory) -> Option<Leftover> {
    let shown = request.incarnation();
    let stray = all.strays.iter().find(|stray| {
        let same = stray.zone == request.zone && stray.request.as_ref() == Some(&request.id);
        same && is_seen(stray, shown.as_ref())
    });
    let (why, force) = match request.state {
        RequestState::Active if stray.is_some() => (called_off("ACTIVE", stray), true),
        RequestState::Failed => {
            let error = request.error.as_deref().unwrap_or("the API gives no reason");
            (format!("FAILED: {error}"), false)
        }
        RequestState::Suspended if request.is_by_user() => {
            ("SUSPENDED by a person".to_owned(), false)
        }
        RequestState::Suspended if !request.is_by_service() => {
            ("SUSPENDED, and by whom is not known".to_owned(), false)
        }
        RequestState::Suspended => (
            "SUSPENDED: its capacity was taken back, and it is never queued again".to_owned(),
            false,
        ),
        RequestState::Active => {
            // A node that a listing lacks is gone only where the whole zone was listed.
            let listed = !all.unreachable.contains(&request.zone) && !request.nodes.is_empty();
            let mine = |node: &&Arc<NodeView>| {
                node.zone == request.zone
                    && (request.nodes.contains(&node.node)
                        || node.queued_resource.as_deref().is_some_and(|name| {
                            name.rsplit('/').next() == Some(request.id.as_str())
                        }))
            };
            let nodes: Vec<_> = all.nodes.iter().filter(mine).collect();
            if let Some(how) = idles(request, &nodes, all) {
                let why = format!("ACTIVE and idle: all its hosts report that its job has {how}");
                return Some(leftover(request, why, true, None));
            }
            let dead = |node: &&Arc<NodeView>| {
                matches!(node.state, NodeState::Preempted | NodeState::Terminated)
            };
            if !listed || !nodes.iter().all(dead) {
                return None;
            }
            let (count, of) = (nodes.len(), request.nodes.len());
            let why = match count {
                0 => "ACTIVE, and its nodes are gone".to_owned(),
                _ => format!(
                    "ACTIVE, and {count} of its {of} nodes are left, all PREEMPTED or TERMINATED"
                ),
            };
            (why, true)
        }
        _ => return None,
    };
    Some(leftover(request, why, force, stray))
}

fn leftover(request: &RequestView, why: String, force: bool, stray: Option<&Stray>) -> Leftover {
    let holds = match request.nodes.len() {
        0 | 1 => request.accelerator.clone(),
        count => format!("{count} x {}", request.accelerator),
    };
    Leftover {
        thing: Thing::Request { created: request.created, force },
        zone: request.zone.clone(),
        name: request.id.clone(),
        holds,
        created: request.created,
        why,
        owner: request.owner.clone(),
        is_stray: stray.is_some(),
    }
}

/// How the job of a request has ended: each of its nodes is READY, and all hosts of each report that.
fn idles(request: &RequestView, nodes: &[&Arc<NodeView>], all: &Inventory) -> Option<&'static str> {
    let whole = !nodes.is_empty() && nodes.len() == request.nodes.len();
    let how = |node: &&Arc<NodeView>| {
        let known = node.incarnation.as_ref().filter(|_| node.state == NodeState::Ready)?;
        all.ended.iter().find(|(ended, _)| ended == known).map(|(_, how)| *how)
    };
    let ends: Option<Vec<&str>> = nodes.iter().filter(|_| whole).map(how).collect();
    let ends = ends.filter(|ends| !ends.is_empty())?;
    Some(if ends.contains(&FAILED) { FAILED } else { ENDED_WELL })
}

const ENDED_WELL: &str = "ended well";
const FAILED: &str = "failed";

/// How the job of a node has ended, where all its hosts report that, of one boot each; none while
/// any may run.
pub fn has_ended(reports: &[WorkerReport], workers: usize) -> Option<&'static str> {
    let certain = |beat: &&Beacon| !beat.ended_early();
    let phase =
        |report: &WorkerReport| report.heartbeat.as_ref().filter(certain).and_then(JobPhase::of);
    let all = |wanted| reports.iter().all(|report| phase(report) == Some(wanted));
    if reports.is_empty() || reports.len() != workers.max(1) {
        return None;
    }
    match (all(JobPhase::Done), all(JobPhase::Failed)) {
        (true, _) => Some(ENDED_WELL),
        (_, true) => Some(FAILED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, state: &str, request: Option<&str>) -> Arc<NodeView> {
        let of = "projects/p/locations/z";
        let raw = json!({
            "name": format!("{of}/nodes/{name}"), "id": name, "createTime": "2026-06-01T12:00:00Z",
            "state": state, "acceleratorType": "v4-8", "metadata": {"tpu-watchdog-owner": "o"},
            "queuedResource": request.map(|id| format!("{of}/queuedResources/{id}")),
        });
        Arc::new(NodeView::parse(raw).unwrap())
    }

    fn request(id: &str, state: Value, nodes: &[&str]) -> RequestView {
        let specs: Vec<Value> = nodes
            .iter()
            .map(|id| json!({"nodeId": id, "node": {"acceleratorType": "v6e-8"}}))
            .collect();
        RequestView::parse(json!({
            "name": format!("projects/p/locations/z/queuedResources/{id}"),
            "state": state, "tpu": {"nodeSpec": specs},
        }))
        .unwrap()
    }

    fn names(all: &Inventory) -> Vec<String> {
        leftovers(all).into_iter().map(|left| left.name).collect()
    }

    #[test]
    fn dead_nodes_and_requests_are_named_and_nothing_that_may_live() {
        let active = json!({"state": "ACTIVE"});
        let all = Inventory {
            nodes: vec![
                node("dead", "PREEMPTED", None),
                node("ended", "TERMINATED", None),
                node("well", "READY", None),
                node("stopped", "STOPPED", None),
                node("strange", "LATER", None),
                node("of-dead", "PREEMPTED", Some("active-dead")),
                node("of-half", "PREEMPTED", Some("active-half")),
                node("half", "READY", Some("active-half")),
                node("husk", "PREEMPTED", Some("no-more")),
            ],
            requests: Some(vec![
                request("failed", json!({"state": "FAILED"}), &["f"]),
                request("suspended", json!({"state": "SUSPENDED"}), &["s"]),
                request("waiting", json!({"state": "WAITING_FOR_RESOURCES"}), &["w"]),
                request("provisioning", json!({"state": "PROVISIONING"}), &["pr"]),
                request("active-dead", active.clone(), &["of-dead"]),
                request("active-half", active.clone(), &["of-half", "half"]),
                request("active-gone", active.clone(), &["nowhere", "either"]),
                request("active-unknown", active, &[]),
            ]),
            ..Inventory::default()
        };
        let wanted = ["active-dead", "active-gone", "dead", "ended", "failed", "husk", "suspended"];
        assert_eq!(names(&all), wanted);
        let found = leftovers(&all);
        let of = |name: &str| found.iter().find(|left| left.name == name).unwrap();
        assert_eq!(of("active-dead").thing, Thing::Request { created: None, force: true });
        assert_eq!(of("failed").thing, Thing::Request { created: None, force: false });
        assert_eq!(of("active-gone").holds, "2 x v6e-8");
        assert_eq!(of("dead").owner.as_deref(), Some("o"));
        assert!(of("husk").why.ends_with("its queued resource is gone"), "{}", of("husk").why);
    }

    #[test]
    fn a_request_is_idle_only_when_each_of_its_nodes_is() {
        let (first, second) = (node("s-0", "READY", Some("q")), node("s-1", "READY", Some("q")));
        let ended = |node: &Arc<NodeView>| (node.incarnation.clone().unwrap(), ENDED_WELL);
        let mut all = Inventory {
            nodes: vec![first.clone(), second.clone()],
            requests: Some(vec![request("q", json!({"state": "ACTIVE"}), &["s-0", "s-1"])]),
            ended: vec![ended(&first)],
            ..Inventory::default()
        };
        assert_eq!(names(&all), Vec::<String>::new(), "the other slice may run");
        all.ended.push(ended(&second));
        let found = leftovers(&all);
        assert_eq!(found.len(), 1, "its nodes go with it");
        assert_eq!(
            found[0].why,
            "ACTIVE and idle: all its hosts report that its job has ended well"
        );
        assert_eq!(found[0].thing, Thing::Request { created: None, force: true });
        // One that the listing lacks may run.
        all.nodes.pop();
        assert_eq!(names(&all), Vec::<String>::new());
    }

    #[test]
    fn what_could_not_be_read_is_never_dead() {
        let mut all = Inventory {
            nodes: vec![node("n", "PREEMPTED", Some("q"))],
            requests: None,
            ..Inventory::default()
        };
        assert_eq!(names(&all), Vec::<String>::new(), "its request may live");
        all.requests = Some(vec![request("active", json!({"state": "ACTIVE"}), &["gone"])]);
        all.unreachable = vec!["z".into()];
        assert_eq!(names(&all), Vec::<String>::new(), "the zone was not listed whole");
    }

    #[test]
    fn a_ready_node_is_idle_only_when_each_host_says_so() {
        let says = |text: &str| WorkerReport {
            heartbeat: Some(Beacon::parse(&format!("b 1 7 {text}")).unwrap()),
            ..WorkerReport::default()
        };
        assert_eq!(has_ended(&[says("done"), says("done")], 2), Some("ended well"));
        assert_eq!(has_ended(&[says("failed")], 1), Some("failed"));
        for (reports, workers) in [
            (vec![says("done"), says("running")], 2),
            (vec![says("done")], 2),
            (vec![says("ended_early: less than 10 min")], 1),
            (vec![WorkerReport::default()], 1),
            (vec![], 0),
        ] {
            assert_eq!(has_ended(&reports, workers), None, "{reports:?}");
        }
        let well = node("a", "READY", None);
        let ended = vec![(well.incarnation.clone().unwrap(), "ended well")];
        let all = Inventory { nodes: vec![well], ended, ..Inventory::default() };
        assert_eq!(names(&all), ["a"]);
    }

    #[test]
    fn s17_a_living_one_is_named_only_where_the_journal_follows_exactly_it() {
        let (lives, asked) =
            (node("a", "READY", None), request("q", json!({"state": "ACTIVE"}), &["b"]));
        let of = |name: &str, request: Option<&str>, incarnation: Option<Incarnation>| Stray {
            zone: "z".into(),
            name: name.into(),
            since: Timestamp::UNIX_EPOCH,
            why: "it was called off".into(),
            state: None,
            incarnation,
            slot: None,
            twin: None,
            request: request.map(str::to_owned),
            removal: None,
            told: None,
            told_in: None,
        };
        let all = |strays: Vec<Stray>| Inventory {
            nodes: vec![Arc::clone(&lives), node("b", "READY", Some("q"))],
            requests: Some(vec![asked.clone()]),
            strays,
            ..Inventory::default()
        };
        let (known, other) =
            (lives.incarnation.clone(), node("b", "READY", None).incarnation.clone());
        assert_eq!(
            names(&all(vec![of("a", None, other), of("a", None, None)])),
            Vec::<String>::new()
        );
        assert_eq!(names(&all(vec![of("a", Some("a"), known.clone())])), Vec::<String>::new());
        let found = leftovers(&all(vec![of("a", None, known)]));
        assert!(found.len() == 1 && found[0].is_stray, "{found:?}");
        assert_eq!(found[0].why, "READY and billed, and no slot owns it: it was called off");
    }
}
