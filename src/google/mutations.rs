//! Mutations, as the core decided them: sent one at a time, each when it is permitted at the moment it
//! leaves. The change of a run order goes to each node of the slot.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::http::{CallFailure, Prepared};
use super::origin::Origin;
use super::tpu::{TpuClient, outcome};
use crate::model::action::{Action, CallOutcome};
use crate::model::failure::{Failure, FailureClass};
use crate::model::filling::Filling;
use crate::model::ids::{RUN_KEY, RunOrder};
use crate::model::relaunch::Patch;
use crate::resource::queued::body::names_request;
use crate::resource::spec::{is_supervised, strip_ours};

/// The metadata that a patch changes is read within this time.
const METADATA_WITHIN: Duration = Duration::from_secs(5);

impl TpuClient {
    /// Carries out a mutation that `permitted` allows at the moment when it leaves. When its access
    /// token is refused (HTTP 401), nothing was carried out: it is prepared and permitted again with
    /// another token, once.
    ///
    /// A patch goes to the nodes in turn, to those that lack it; where one refuses it and others have
    /// it the outcome is unknown, and a later one goes to the rest.
    pub async fn carry_out(
        &self,
        action: &Action,
        permitted: impl Fn() -> Result<(), CallOutcome>,
    ) -> CallOutcome {
        let Action::Patch { nodes, .. } = action else {
            // Only a patch can be done already.
            let only = self.carry_out_on(action, "", &permitted).await;
            return only.unwrap_or_else(|AlreadyDone| already());
        };
        let mut last = None;
        for node in nodes {
            match self.carry_out_on(action, node, &permitted).await {
                Ok(accepted @ CallOutcome::Accepted(_)) => last = Some(accepted),
                Ok(failed) if last.is_none() => return failed,
                Ok(failed) => return after_others(node, failed),
                Err(AlreadyDone) => {}
            }
        }
        last.unwrap_or_else(already)
    }

    /// One call of it; `node` is the one that a patch goes to.
    async fn carry_out_on(
        &self,
        action: &Action,
        node: &str,
        permitted: &impl Fn() -> Result<(), CallOutcome>,
    ) -> Result<CallOutcome, AlreadyDone> {
        let mut with_another_token = false;
        loop {
            // A token that must be fetched is fetched before the age of anything is looked at.
            let prepared = match self.prepare().await {
                Ok(prepared) => prepared,
                Err(failure) => return Ok(CallOutcome::NotSent(failure)),
            };
            // Read before the request is permitted: that may take seconds.
            let read_at = Instant::now();
            let metadata = match self.metadata(action, node).await {
                Ok(Some(metadata)) => metadata,
                Ok(None) => return Err(AlreadyDone),
                Err(outcome) => return Ok(outcome),
            };
            if let Err(not_sent) = permitted() {
                return Ok(not_sent);
            }
            if read_at.elapsed() > METADATA_WITHIN {
                let text = "the metadata was read more than 5 s ago; it is read again";
                return Ok(CallOutcome::NotSent(Failure::new(FailureClass::Transient, text)));
            }
            let result = match action {
                Action::Delete { slot, zone, incarnation, request_id, filling, force, .. } => {
                    let request_id = request_id.as_deref();
                    match filling {
                        Filling::Node => self.delete(zone, slot, request_id, prepared).await,
                        Filling::QueuedResource(id) => {
                            self.remove_request(zone, id, *force, request_id, prepared).await
                        }
                        Filling::Training(of) => {
                            self.cancel_job((zone, of.kind), incarnation, prepared).await
                        }
                    }
                }
                Action::Create { slot, zone, body, request_id, filling } => {
                    let at = (zone.as_str(), slot.as_str());
                    let made = (body, request_id.as_deref(), &metadata);
                    self.make(at, filling, made, prepared).await
                }
                Action::Patch { zone, patch: Patch::Stop, .. } => {
                    let url = format!("{}:stop", self.node_url(zone, node));
                    let (name, method) = ("nodes.stop", Method::POST);
                    let (origin, body) = (Origin::PATCH, Some(&metadata));
                    self.http.mutate(name, method, origin, &url, body, prepared).await
                }
                Action::Patch { zone, .. } => {
                    let url = format!("{}?updateMask=metadata", self.node_url(zone, node));
                    let (name, method) = ("nodes.patch", Method::PATCH);
                    let (origin, body) = (Origin::PATCH, Some(&metadata));
                    self.http.mutate(name, method, origin, &url, body, prepared).await
                }
            };
            let again = result.as_ref().is_err_and(|error| error.with_another_token);
            if !again || std::mem::replace(&mut with_another_token, true) {
                return Ok(outcome(result));
            }
        }
    }

    /// Creates what fills a slot; `read` is what was read before.
    async fn make(
        &self,
        (zone, slot): (&str, &str),
        filling: &Filling,
        (body, request_id, read): (&Value, Option<&str>, &Value),
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        match filling {
            Filling::Node => self.create(zone, slot, body, request_id, prepared).await,
            Filling::QueuedResource(id) => {
                self.create_request((zone, id, slot), body, request_id, prepared).await
            }
            Filling::Training(of) => self.submit_job((zone, of.kind), read, prepared).await,
        }
    }

    /// All that has to be read before a call: the job to submit, with an id that is free where that is chosen; the body of a
    /// stop, which is empty; or that of a patch, which changes our part of the metadata of exactly this node, and keeps every
    /// other key, since the API has no patch of one key. None where several nodes are ordered and this one has it.
    async fn metadata(&self, action: &Action, node: &str) -> Result<Option<Value>, CallOutcome> {
        let deadline = Instant::now() + METADATA_WITHIN;
        if let Action::Create { filling: Filling::Training(of), body, .. } = action {
            let job = self.submission(of, body, deadline).await;
            return job.map(Some).map_err(CallOutcome::NotSent);
        }
        let Action::Patch { slot, zone, nodes, filling, incarnation, patch, stray } = action else {
            return Ok(Some(Value::Null));
        };
        let view = self.get_node(zone, node, deadline).await.map_err(CallOutcome::NotSent)?;
        let same = match filling {
            Filling::Node => view.incarnation.as_ref() == Some(incarnation),
            // Nothing can be written on a job that is there.
            Filling::Training(_) => false,
            Filling::QueuedResource(id) => {
                let request = self.get_request(zone, id, deadline).await;
                let request = request.map_err(CallOutcome::NotSent)?;
                let named = view.queued_resource.as_deref();
                request.created == Some(incarnation.created)
                    && named.is_some_and(|name| names_request(name, id))
            }
        };
        if !same {
            let text = format!("another node than {incarnation} is there by now");
            return Err(CallOutcome::Refused(Failure::new(FailureClass::NotFound, text)));
        }
        if *patch == Patch::Stop {
            return Ok(Some(json!({})));
        }
        let metadata = view.raw.get("metadata").and_then(Value::as_object);
        let released = metadata.is_some() && view.slot.is_none() && view.run.is_none();
        if nodes.len() > 1 && *patch == Patch::Release && released {
            return Ok(None);
        }
        // An answer that lacks them would take them from the node. A TPU without a job has no supervisor.
        let whole = metadata.filter(|metadata| {
            let supervised = is_supervised(metadata) || *patch == Patch::Release;
            // A stray may be called otherwise than the slot that it was made for.
            let named =
                if *stray { view.slot.is_some() } else { view.slot.as_deref() == Some(slot) };
            supervised && named && view.run.is_some()
        });
        let Some(mut metadata) = whole.cloned() else {
            let text = "the node was read without its metadata: supervisor, owner, slot, run order";
            return Err(CallOutcome::NotSent(Failure::new(FailureClass::Garbage, text)));
        };
        let Patch::Order(order) = patch else {
            strip_ours(&mut metadata);
            return Ok(Some(json!({ "metadata": metadata })));
        };
        if nodes.len() > 1 && view.run.as_ref() == Some(order) {
            return Ok(None);
        }
        let another = |run: &RunOrder| {
            let (ours, theirs) = (order.generation, run.generation);
            theirs > ours
                || theirs == ours && (run.step, &run.checkpoint) != (order.step, &order.checkpoint)
        };
        if let Some(run) = view.run.filter(another) {
            let text = format!("the node has the order of generation {} by now", run.generation);
            return Err(CallOutcome::Refused(Failure::new(FailureClass::Conflict, text)));
        }
        metadata.insert(RUN_KEY.to_owned(), Value::String(order.text()));
        Ok(Some(json!({ "metadata": metadata })))
    }
}

/// The node has what it is to be told.
struct AlreadyDone;

/// The outcome where that is so of all nodes: none was called.
fn already() -> CallOutcome {
    let text = "each node has the order already; the next read shows it";
    CallOutcome::Unknown(Failure::new(FailureClass::Conflict, text))
}

/// The outcome of a patch that other nodes have taken already.
fn after_others(node: &str, failed: CallOutcome) -> CallOutcome {
    match failed {
        CallOutcome::Accepted(operation) => CallOutcome::Accepted(operation),
        CallOutcome::Refused(why) | CallOutcome::Unknown(why) | CallOutcome::NotSent(why) => {
            let text = format!("the nodes before {node} have it; on {node}: {}", why.message);
            CallOutcome::Unknown(Failure { message: text, ..why })
        }
    }
}
