//! Slots that are queued resources: how the cloud begins with them, what reads show of them, and which
//! node is that of which request.

use std::sync::Arc;

use serde_json::Value;
use tpu_watchdog::google::answers;
use tpu_watchdog::model::action::{Reading, RequestList};
use tpu_watchdog::model::failure::Failure;
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::fleet::{Fleet, Stray};
use tpu_watchdog::model::ids::Incarnation;
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::queued::RequestView;
use tpu_watchdog::resource::queued::reading::reading;
use tpu_watchdog::simulator::api;
use tpu_watchdog::simulator::things::Node;
use tpu_watchdog::simulator::wire::Request;

use crate::proof::Pending;
use crate::setup::{OWNER, Setup};
use crate::world::{Arrival, World};

impl Setup {
    /// The world of a seed in which every plain slot is a queued resource of Spot capacity. People leave
    /// the nodes inside a request alone: such a node is held for good.
    pub fn queued(seed: u64) -> Setup {
        use crate::fault::Fault;
        let mut setup = Setup::of(seed);
        for fault in [Fault::PersonReplaces, Fault::PersonDeletes, Fault::PersonStops] {
            setup.faults.remove(&fault);
        }
        for (name, slot) in &mut setup.settings.slots {
            if setup.origins[name] == crate::setup::Origin::Plain {
                slot.filling = Filling::QueuedResource(format!("qr-{name}"));
                if let Some(body) = setup.bodies.get_mut(name) {
                    body["schedulingConfig"] = serde_json::json!({"spot": true});
                }
            }
        }
        setup
    }
}

impl World {
    /// The id of a slot's queued resource, where it is one.
    pub fn request_of(&self, slot: &str) -> Option<String> {
        match &self.setup.settings.slots.get(slot)?.filling {
            Filling::Node | Filling::Training(_) => None,
            Filling::QueuedResource(id) => Some(id.clone()),
        }
    }

    /// The queued resource as the API shows it now.
    pub fn request(&mut self, zone: &str, id: &str) -> Option<RequestView> {
        let path = format!("v2alpha1/projects/p/locations/{zone}/queuedResources/{id}");
        let (status, body) = self.asked(&path);
        (status == 200)
            .then(|| answers::request(body, true).expect("the simulated API shows requests"))
    }

    /// All queued resources of a zone.
    pub fn requests(&mut self, zone: &str) -> RequestList {
        if self.network.unreachable.get(zone).is_some_and(|until| *until > self.now) {
            return RequestList { unreachable: vec![zone.to_owned()], ..RequestList::default() };
        }
        let path = format!("v2alpha1/projects/p/locations/{zone}/queuedResources");
        let (_, body) = self.asked(&path);
        let page = answers::request_page(body, true).expect("the simulated API lists requests");
        RequestList { requests: page.requests, unreachable: page.unreachable }
    }

    fn asked(&mut self, path: &str) -> (u16, Value) {
        let query = Default::default();
        api::handle(&mut self.cloud, &Request { method: "GET", path, query: &query, body: None })
    }

    /// The answer to a GET of a slot, as the client puts it together.
    pub fn filled(
        &mut self,
        zone: &str,
        id: &str,
        failed: Option<Failure>,
        node: Option<Arc<NodeView>>,
    ) -> Reading {
        if let Some(failure) = failed {
            return Reading::Unread(failure.to_string());
        }
        let request = self.request(zone, id);
        reading(id, request.as_ref(), &node.into_iter().collect::<Vec<_>>())
    }

    /// The identity by which a slot knows this node: its own, or that of its request.
    pub fn identity(&self, zone: &str, node: &Node) -> Incarnation {
        let id = node.queued_resource.as_ref().and_then(|name| name.rsplit('/').next());
        let request = id.and_then(|id| self.cloud.queued.get(&(zone.to_owned(), id.to_owned())));
        match (id, request) {
            (Some(id), Some(request)) => Incarnation {
                id: format!("{id}.{}", request.created.as_second()),
                created: request.created,
            },
            _ => Incarnation { id: node.uid.to_string(), created: node.created },
        }
    }

    /// A delete reaches a request: S10, it is one that the API deletes, and S1, the one that was meant.
    /// Returns whether it is that one.
    pub fn request_is_hit(&mut self, zone: &str, slot: &str, id: &str, meant: &str) -> bool {
        let Some(request) = self.request(zone, id) else { return false };
        let created = request.created.map_or(0, |created| created.as_second());
        let same = format!("{id}.{created}") == meant;
        let state = request.state.as_str().to_owned();
        self.check("S1", slot, same, || format!("meant for {meant}, it hits {id}.{created}"));
        let waits = ["WAITING_FOR_RESOURCES", "ACCEPTED", "CREATING"].contains(&state.as_str());
        self.check("S10", slot, !waits, || format!("{id} is {state}, and loses its place"));
        same
    }

    /// S17, S1, S10: what is withdrawn is a request of ours that was called off, and the one that was
    /// meant; never with `force`.
    pub fn withdrawal_arrives(
        &mut self,
        (zone, slot, id): (&str, &str, &str),
        meant: &str,
        force: bool,
        arrival: Arrival,
    ) {
        let dry = self.setup.settings.dry_run;
        self.check("S7", slot, !dry, || format!("{id} is withdrawn in a dry run"));
        self.check("S10", slot, !force, || format!("{id} is withdrawn with force"));
        let request = self.request(zone, id).filter(|_| !(arrival.late || arrival.again));
        let Some(request) = request else { return };
        let ours = request.owner.as_deref() == Some(OWNER);
        self.check("S17", slot, ours, || format!("{id} is not ours: {:?}", request.owner));
        let same = request.incarnation().is_some_and(|of| of.id == meant);
        self.check("S1", slot, same, || format!("meant for {meant}, it hits {request:?}"));
    }

    /// S21: never a second request of a slot while another one may still be granted.
    pub fn request_is_alone(&mut self, zone: &str, slot: &str, id: &str) {
        let live = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"];
        let others: Vec<String> = self
            .cloud
            .queued
            .iter()
            .filter(|((at, of), queued)| at != zone && of == id && live.contains(&queued.state))
            .map(|((at, _), queued)| format!("{} in {at}", queued.state))
            .collect();
        let known = self.truth.slots.get(slot).is_some_and(|known| known.late_requests);
        self.check("S21", slot, others.is_empty() || known, || {
            format!("{id} is asked for in {zone} although it is {others:?}")
        });
    }

    /// The same for requests: S21, each of ours has its slot, or is told; L9, none that is over holds quota.
    pub fn requests_remain(
        &self,
        name: &str,
        fleet: &Fleet,
        hold: Option<&'static str>,
    ) -> Option<Pending> {
        let record = fleet.slots.get(name)?;
        let id = self.setup.settings.slots.get(name)?.filling.id();
        const OWNED_BY: &str = "/tpu/nodeSpec/0/node/metadata/tpu-watchdog-owner";
        for ((zone, of), request) in self.cloud.queued.iter().filter(|((_, of), _)| of == id) {
            let body = Value::Object(request.body.clone());
            if body.pointer(OWNED_BY).is_none_or(|owner| owner != OWNER) {
                continue;
            }
            let shown = format!("{of}.{}", request.created.as_second());
            let own = record.zone == *zone
                && record.incarnation.as_ref().is_some_and(|known| known.id == shown);
            let follows = |stray: &Stray| stray.zone == *zone && stray.request.as_ref() == Some(of);
            let told = fleet.ledger.strays.values().any(follows);
            let state = request.state;
            if !(own || told || record.recovery.is_some()) {
                let reason = format!("{of} in {zone} is {state}, and no slot owns it");
                return Some(("S21", name.to_owned(), reason));
            }
            let over = matches!(state, "FAILED" | "SUSPENDED") && !request.by_user;
            let waits = hold.is_some() || record.recovery.is_some();
            if over && !waits && !self.setup.forbidden_deletes {
                let reason = format!("{of} in {zone} is {state}, and not removed");
                return Some(("L9", name.to_owned(), reason));
            }
        }
        None
    }
}
