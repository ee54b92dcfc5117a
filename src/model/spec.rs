//! The specification of a node, as plain data. `resource::spec` learns, overlays and renders it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::training::JobKind;

/// Where a specification holds what its queued resource says of the node: the fields of the request
/// around it. A node's own JSON has text there, which is never part of a specification.
pub const REQUEST_KEY: &str = "queuedResource";

/// The field that names a reservation, of a node's `schedulingConfig` (v2alpha1) or of a queued resource:
/// `projects/P/locations/ZONE/reservations/NAME`; the config may say the last part alone. Source: discovery documents
/// of v2 and v2alpha1.
pub const RESERVATION: &str = "reservationName";

/// The last part of a reservation's name; empty where it stands for any.
pub fn reservation(name: &str) -> &str {
    name.rsplit('/').next().filter(|last| *last != "-").unwrap_or_default()
}

/// In there: the number of nodes, one a slice, where there are several. The API has it in a field of
/// another name in each of its versions.
pub const SLICES_KEY: &str = "nodes";

/// Where a specification holds a managed training job, in place of a node's own fields.
pub const TRAINING_KEY: &str = "trainingJob";

/// The largest number of slices that names are made for.
pub const SLICES_MAX: i64 = 4_096;

/// The specification that a create of the slot's node sends. Shared: each record that is written holds it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeSpec(Arc<Map<String, Value>>);

// Metadata values may be secrets: a specification never prints them.
impl std::fmt::Debug for NodeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NodeSpec").field(&self.0.keys().collect::<Vec<_>>()).finish()
    }
}

impl NodeSpec {
    /// A specification of these fields.
    pub fn new(body: Map<String, Value>) -> NodeSpec {
        NodeSpec(Arc::new(body))
    }

    /// An empty specification, for a slot that is described by the config alone.
    pub fn empty() -> NodeSpec {
        NodeSpec::new(Map::new())
    }

    /// A short name of its content, to compare two of them without showing any value.
    pub fn digest(&self) -> String {
        let text = Value::Object(self.body().clone()).to_string();
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()).simple().to_string();
        id[..12].to_owned()
    }

    /// The learned fields.
    pub fn body(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The kind of the managed training job that it describes.
    pub fn job_kind(&self) -> Option<JobKind> {
        self.body().get(TRAINING_KEY).map(JobKind::of)
    }

    /// The same, to be changed.
    pub fn body_mut(&mut self) -> &mut Map<String, Value> {
        Arc::make_mut(&mut self.0)
    }
}
