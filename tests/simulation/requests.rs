//! Slots that are queued resources: how the cloud begins with them, and what reads show of them.

use std::sync::Arc;

use serde_json::Value;
use tpu_watchdog::google::answers;
use tpu_watchdog::model::action::{Reading, RequestList};
use tpu_watchdog::model::failure::Failure;
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::queued::RequestView;
use tpu_watchdog::resource::queued::reading::reading;
use tpu_watchdog::simulator::api;
use tpu_watchdog::simulator::wire::Request;

use crate::setup::Setup;
use crate::world::World;

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
}
