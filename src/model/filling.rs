//! What fills a slot at the API, and how it can be deleted. `resource` knows the rest of each kind.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ids::Incarnation;
use super::spec::NodeSpec;
use super::training::{JobKind, Training};
use super::traits::Traits;

/// The thing that is read, created and deleted for a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Filling {
    /// The Cloud TPU node that has the slot's name.
    #[default]
    Node,
    /// The queued resource of this id, with its node.
    QueuedResource(String),
    /// A managed training job of Vertex AI.
    Training(Arc<Training>),
}

impl Filling {
    /// The kind, as `kind` of the config has it.
    pub fn name(&self) -> &'static str {
        match self {
            Filling::Node => "node",
            Filling::QueuedResource(_) => "queued_resource",
            Filling::Training(of) if of.kind == JobKind::Legacy => "ai_platform_job",
            Filling::Training(_) => "vertex_job",
        }
    }

    /// The answers on which rules depend.
    pub fn traits(&self) -> Traits {
        match self {
            Filling::Node => Traits::NODE,
            Filling::QueuedResource(_) => Traits::QUEUED_RESOURCE,
            Filling::Training(_) => Traits::TRAINING_JOB,
        }
    }

    /// The id of the queued resource; empty of what has its slot's name, or an id that the service gives.
    pub fn id(&self) -> &str {
        match self {
            Filling::Node | Filling::Training(_) => "",
            Filling::QueuedResource(id) => id,
        }
    }

    /// Whether this may be the identity of one: a queued resource has that of its request, a node its own.
    pub fn has_identity(&self, known: &Incarnation) -> bool {
        let request = known.id.rsplit_once('.');
        match self {
            Filling::Node => request.is_none(),
            Filling::QueuedResource(id) => request.is_some_and(|(of, _)| of == id),
            Filling::Training(_) => true,
        }
    }

    /// Whether it is more than a node: it ends after its nodes.
    pub fn has_nodes(&self) -> bool {
        match self {
            Filling::Node | Filling::Training(_) => false,
            Filling::QueuedResource(_) => true,
        }
    }

    /// Its name at the API below its zone, for the slot of this name.
    pub fn path(&self, slot: &str) -> String {
        match self {
            Filling::Node => format!("nodes/{slot}"),
            Filling::QueuedResource(id) => format!("queuedResources/{id}"),
            Filling::Training(of) => format!("{} of {slot}", of.kind.collection()),
        }
    }

    /// The command that shows it to an operator.
    pub fn shown_by(&self, slot: &str, zone: &str) -> String {
        let (kind, id) = match self {
            Filling::Node => ("tpu-vm", slot),
            Filling::QueuedResource(id) => ("queued-resources", id.as_str()),
            Filling::Training(of) => return of.kind.asks("list", zone),
        };
        format!("gcloud compute tpus {kind} describe {id} --zone {zone}")
    }

    /// Whether a create or delete of it takes a request id; `alpha`: calls go through v2alpha1. Source:
    /// discovery documents of v2 and v2alpha1.
    pub fn takes_request_ids(&self, alpha: bool) -> bool {
        match self {
            Filling::Node => alpha,
            Filling::QueuedResource(_) => true,
            Filling::Training(_) => false,
        }
    }

    /// The managed training job, where it is one.
    pub fn training(&self) -> Option<&Training> {
        match self {
            Filling::Node | Filling::QueuedResource(_) => None,
            Filling::Training(job) => Some(job),
        }
    }

    /// The same once what fills the slot is known: a name may be that of jobs of two kinds.
    #[must_use]
    pub fn found(&self, spec: Option<&NodeSpec>) -> Filling {
        match (self, spec.and_then(NodeSpec::job_kind)) {
            (Filling::Training(of), Some(kind)) if of.either => {
                Filling::Training(Arc::new(Training { kind, either: false, ..(**of).clone() }))
            }
            _ => self.clone(),
        }
    }

    /// So long after a create could last arrive, a read that lacks it says that it was not carried out:
    /// lists may lag behind.
    pub fn settle(&self) -> Duration {
        self.training().map_or(Duration::ZERO, |job| job.settle)
    }
}

/// Whether, and how, what was read can be deleted in the state that it is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deletable {
    /// By a delete.
    #[default]
    Now,
    /// By a delete that takes its nodes along (`force`).
    WithItsNodes,
    /// Not in this state, whatever the call says.
    NotNow,
}

/// When a queued resource ends by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestTimes {
    /// It fails if it still waits then: `queueingPolicy.validUntil…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
    /// Its capacity ends (flex-start): `runDuration.terminationTime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Its capacity is asked for a limited time (flex-start), and comes from a pool of its own:
    /// `provisioningModel` is FLEX_START, or `runDuration` is set.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_limited: bool,
}
