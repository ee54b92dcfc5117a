//! The Cloud TPU API, as far as the watchdog calls it. Source: Cloud TPU REST reference v2 and
//! v2alpha1.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;

use super::answers::{self, Unreadable};
use super::http::{CallFailure, Http, Prepared, Sent};
use super::origin::Origin;
use crate::model::action::{CallOutcome, NodeList};
use crate::model::beacon::plain;
use crate::model::event::Verb;
use crate::model::failure::{Failure, FailureClass};
use crate::model::node::NodeView;
use crate::model::operation::OperationState;
use crate::model::training::JobKind;
use crate::resource::capacity;
use crate::resource::spec::needs_alpha;

/// The public endpoint of the Vertex AI API.
const VERTEX: &str = "https://{region}-aiplatform.googleapis.com";
const ML: &str = "https://ml.googleapis.com";
/// Asked for on each page of a list; the server may give fewer.
pub(super) const PAGE_SIZE: u32 = 100;

/// Reads of nodes go through this version: v2 hides fields that a create must say.
// unverified: v2alpha1 shows each node that v2 shows, and its 404 of a node holds for v2 too.
// settled by: gcloud alpha compute tpus tpu-vm list --zone ZONE, compared with gcloud compute tpus tpu-vm list --zone ZONE
pub(super) const ALPHA: &str = "v2alpha1";
/// After a read that v2alpha1 did not answer, the configured version is asked directly for so long.
const ALPHA_RESTS: Duration = Duration::from_secs(600);
/// As many kinds of unreadable entries are warned of once each; with more of them again from the
/// start.
const WARNED_MAX: usize = 1_000;

/// A client for one project.
#[derive(Clone)]
pub struct TpuClient {
    pub(super) http: Http,
    pub(super) endpoint: String,
    // It creates, deletes, and reads all but nodes.
    version: String,
    pub(super) project: String,
    pub(super) checks: CheckEndpoints,
    // The Vertex AI API, with `{region}` for the region.
    pub(super) vertex: String,
    // The API of the legacy AI Platform Training.
    pub(super) ml: String,
    // Until when v2alpha1 is not asked.
    alpha_rests: Arc<Mutex<Option<Instant>>>,
    // Unreadable entries of listings that were warned of.
    warned: Arc<Mutex<BTreeSet<String>>>,
}

/// Whom [`TpuClient::create_check`] asks about permissions; `None`: they are not asked about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckEndpoints {
    /// The Resource Manager API, for the project.
    pub resource_manager: Option<String>,
    /// The IAM API, for the service account of the nodes.
    pub iam: Option<String>,
    /// The Cloud Quotas API, for `doctor` alone.
    pub quotas: Option<String>,
    /// Cloud Storage, for `doctor` alone.
    pub storage: Option<String>,
}

impl TpuClient {
    /// `endpoint` without a slash at its end; `version` is `v2` or `v2alpha1`.
    pub fn new(http: Http, endpoint: &str, version: &str, project: &str) -> Self {
        TpuClient {
            http,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            version: version.to_owned(),
            project: project.to_owned(),
            checks: CheckEndpoints::default(),
            vertex: VERTEX.to_owned(),
            ml: ML.to_owned(),
            alpha_rests: Arc::default(),
            warned: Arc::default(),
        }
    }

    /// The same client, which also asks about permissions.
    pub fn with_checks(self, checks: CheckEndpoints) -> Self {
        TpuClient { checks, ..self }
    }

    /// The same client, with other endpoints of the Vertex AI API and of the legacy AI Platform.
    pub fn with_training(self, vertex: &str, ml: &str) -> Self {
        let whole = |endpoint: &str| endpoint.trim_end_matches('/').to_owned();
        TpuClient { vertex: whole(vertex), ml: whole(ml), ..self }
    }

    /// The zone's name at the API.
    pub(super) fn name_of(&self, zone: &str) -> String {
        format!("projects/{}/locations/{zone}", self.project)
    }

    pub(super) fn parent_in(&self, version: &str, zone: &str) -> String {
        format!("{}/{version}/{}", self.endpoint, self.name_of(zone))
    }

    /// The configured version.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The zone in the configured version.
    pub(super) fn parent(&self, zone: &str) -> String {
        self.parent_in(&self.version, zone)
    }

    pub(super) fn node_url(&self, zone: &str, node: &str) -> String {
        format!("{}/nodes/{node}", self.parent(zone))
    }

    /// When a read through v2alpha1 has to have ended, so that the configured version still has its
    /// time; none where that one is asked directly.
    pub(super) fn alpha_until(&self, deadline: Instant) -> Option<Instant> {
        let now = Instant::now();
        let rests = *self.alpha_rests.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = self.version != ALPHA && rests.is_none_or(|until| until <= now);
        asked.then(|| now + deadline.saturating_duration_since(now) / 2)
    }

    /// v2alpha1 did not answer: the configured version is asked instead, after as long as the
    /// server wants to be left alone.
    pub(super) async fn instead(
        &self,
        method: &'static str,
        error: CallFailure,
        deadline: Instant,
    ) -> Result<(), Failure> {
        // Without a token or a connection the version was never asked.
        if error.sent == Sent::No {
            return Ok(());
        }
        let until = Instant::now() + ALPHA_RESTS;
        let before = self.alpha_rests.lock().unwrap_or_else(PoisonError::into_inner).replace(until);
        if before.is_none() {
            tracing::warn!(
                "{method} through {ALPHA} failed: {}; {} is asked instead, which hides boot disk, provisioning model, \
                 reservation and autocheckpoint; {ALPHA} is tried again every {} min",
                error.failure,
                self.version,
                ALPHA_RESTS.as_secs() / 60
            );
        }
        self.http.wait_out(error, deadline).await
    }

    /// All nodes of a zone (`-` for all zones), with the zones that did not answer, and the entries
    /// that can't be read. All pages, or a failure.
    ///
    /// # Errors
    /// When any page can't be read.
    pub async fn list_nodes(&self, zone: &str, deadline: Instant) -> Result<NodeList, Failure> {
        if let Some(limit) = self.alpha_until(deadline) {
            match self.node_pages(zone, ALPHA, true, limit).await {
                Ok(list) => {
                    // The next failure is told again. Another list may have failed meanwhile.
                    let now = Instant::now();
                    let mut rests = self.alpha_rests.lock().unwrap_or_else(PoisonError::into_inner);
                    rests.take_if(|until| *until <= now);
                    return Ok(list);
                }
                Err(error) => self.instead("nodes.list", error, deadline).await?,
            }
        }
        let listed = self.node_pages(zone, &self.version, false, deadline).await;
        listed.map_err(|error| error.failure)
    }

    /// The pages of a listing through one version; `once`: no page is asked for a second time.
    async fn node_pages(
        &self,
        zone: &str,
        version: &str,
        once: bool,
        deadline: Instant,
    ) -> Result<NodeList, CallFailure> {
        let url = format!("{}/nodes?pageSize={PAGE_SIZE}", self.parent_in(version, zone));
        let mut list = NodeList::default();
        let read = |page| {
            let page = answers::node_page(page, version == ALPHA)?;
            list.nodes.extend(page.nodes);
            list.unreachable.extend(page.unreachable);
            for entry in page.unreadable {
                self.warn_of(zone, &entry);
                match entry.node {
                    Some(node) => list.unreadable.push(node),
                    None => list.nameless += 1,
                }
            }
            Ok(page.next)
        };
        self.pages("nodes.list", &url, (deadline, once), read).await?;
        Ok(list)
    }

    /// Counts an entry of a listing that can't be read, and tells of it once.
    fn warn_of(&self, zone: &str, entry: &Unreadable) {
        let text = plain(&entry.why);
        self.http.reject("nodes.list", text.clone());
        if self.is_news(format!("{zone} {text}")) {
            let consequence = match &entry.node {
                Some(_) => "a slot of its name is held",
                None => "it may be any of the slots that the listing lacks, and these are held",
            };
            tracing::warn!(
                "an entry in the listing of {zone} can't be read: {text}; it is left out, and {consequence}"
            );
        }
    }

    /// Whether this was not told before.
    pub(super) fn is_news(&self, text: String) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() >= WARNED_MAX {
            warned.clear();
        }
        warned.insert(text)
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
        if let Some(limit) = self.alpha_until(deadline) {
            let url = format!("{}/nodes/{node}", self.parent_in(ALPHA, zone));
            let read = self.http.ask("nodes.get", Method::GET, &url, None, limit).await;
            let view = read.and_then(|raw| {
                self.one(raw, zone, node).map_err(|why| CallFailure::of(why, Sent::Perhaps))
            });
            match view {
                Ok(view) => return Ok(view.through_alpha()),
                Err(error) if is_about(&error.failure, node) => return Err(error.failure),
                Err(error) => self.instead("nodes.get", error, deadline).await?,
            }
        }
        let url = self.node_url(zone, node);
        let raw = self.http.read("nodes.get", Method::GET, &url, None, deadline).await?;
        let view = self.one(raw, zone, node)?;
        Ok(if self.version == ALPHA { view.through_alpha() } else { view })
    }

    /// The node that was asked for, and no other.
    fn one(&self, raw: Value, zone: &str, node: &str) -> Result<NodeView, Failure> {
        let view = NodeView::parse(raw).map_err(|text| self.http.reject("nodes.get", text))?;
        self.is_of("nodes.get", (node, zone), (&view.node, &view.zone))?;
        Ok(view)
    }

    /// Whether an answer is of exactly that which was asked for, by id and place.
    ///
    /// # Errors
    /// Where it is of another one.
    pub(super) fn is_of(
        &self,
        method: &'static str,
        asked: (&str, &str),
        got: (&str, &str),
    ) -> Result<(), Failure> {
        if asked == got {
            return Ok(());
        }
        let text = format!("asked for {} in {}, got {} in {}", asked.0, asked.1, got.0, got.1);
        Err(self.http.reject(method, text))
    }

    /// Gets ready for a mutation, which then leaves within [`super::http::CONNECT_MAX`] or not at
    /// all.
    ///
    /// # Errors
    /// When there is no access token.
    pub async fn prepare(&self) -> Result<Prepared, Failure> {
        self.http.prepare().await
    }

    /// Creates a node, in one attempt: through the configured version or, where the body has fields
    /// that v2alpha1 alone takes, through that.
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

    pub(super) async fn create(
        &self,
        zone: &str,
        node: &str,
        body: &Value,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let version = if needs_alpha(body) { ALPHA } else { &self.version };
        let mut url = format!("{}/nodes?nodeId={}", self.parent_in(version, zone), encode(node));
        // v2 refuses it as an unknown parameter.
        if let Some(id) = request_id.filter(|_| version == ALPHA) {
            url.push_str(&format!("&requestId={}", encode(id)));
        }
        let origin = Origin::create(body);
        let (mut body, parent) = (body.clone(), self.name_of(zone));
        capacity::name_reservation(body.get_mut("schedulingConfig"), &parent);
        self.http.mutate("nodes.create", Method::POST, origin, &url, Some(&body), prepared).await
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

    pub(super) async fn delete(
        &self,
        zone: &str,
        node: &str,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let mut url = self.node_url(zone, node);
        if let Some(id) = request_id.filter(|_| self.version == ALPHA) {
            url.push_str(&format!("?requestId={}", encode(id)));
        }
        let origin = Origin::DELETE;
        self.http.mutate("nodes.delete", Method::DELETE, origin, &url, None, prepared).await
    }

    /// The operation of a create or delete, by its full name and through the configured version;
    /// `spot` says whether the create asked for Spot capacity. An error says nothing about the
    /// operation.
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
        if JobKind::has_named(name) {
            return Ok(OperationState::Succeeded);
        }
        // unverified: an operation of a create through v2alpha1 is read through v2 under its name.
        // settled by: gcloud compute tpus operations describe OPERATION --zone ZONE, of a gcloud alpha create
        let url = format!("{}/{}/{name}", self.endpoint, self.version);
        let operation = self.http.read("operations.get", Method::GET, &url, None, deadline).await?;
        Ok(answers::operation(&operation, verb, spot))
    }
}

/// The outcome of a mutation.
pub(super) fn outcome(result: Result<Value, CallFailure>) -> CallOutcome {
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

/// Whether a failure is the API's word that this very node is not there: an address that does not
/// exist is a 404 as well.
fn is_about(failure: &Failure, node: &str) -> bool {
    failure.class == FailureClass::NotFound && failure.message.contains(&format!("/nodes/{node}"))
}

/// Percent-encodes a query value.
pub(super) fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(b).to_string()
            }
            _ => format!("%{b:02X}"),
        })
        .collect()
}
