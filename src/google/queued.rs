//! Queued resources: list, get, create, delete; and one with its node, as a slot is read.

use std::sync::Arc;
use std::time::Instant;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use reqwest::Method;
use serde_json::Value;

use super::answers;
use super::http::{CallFailure, Prepared, Sent};
use super::origin::Origin;
use super::tpu::{ALPHA, PAGE_SIZE, TpuClient, encode, outcome};
use crate::model::action::{CallOutcome, Reading, RequestList};
use crate::model::failure::{Failure, FailureClass};
use crate::model::queued::RequestView;
use crate::resource::queued::{body, reading};

/// Nodes of one request that are read at once.
const AT_ONCE: usize = 16;
const LIST: &str = "queuedResources.list";
const GET: &str = "queuedResources.get";

impl TpuClient {
    /// All queued resources of a zone (`-` for all zones); through v2alpha1, where that answers.
    ///
    /// # Errors
    /// When any page, or any entry, can't be read.
    pub async fn list_requests(
        &self,
        zone: &str,
        deadline: Instant,
    ) -> Result<RequestList, Failure> {
        if let Some(limit) = self.alpha_until(deadline) {
            match self.request_pages(zone, ALPHA, true, limit).await {
                Ok(list) => return Ok(list),
                Err(why) => self.instead(LIST, why, deadline).await?,
            }
        }
        let listed = self.request_pages(zone, self.version(), false, deadline).await;
        listed.map_err(|error| error.failure)
    }

    async fn request_pages(
        &self,
        zone: &str,
        version: &str,
        once: bool,
        deadline: Instant,
    ) -> Result<RequestList, CallFailure> {
        let parent = self.parent_in(version, zone);
        let url = format!("{parent}/queuedResources?pageSize={PAGE_SIZE}");
        let mut list = RequestList::default();
        self.pages(LIST, &url, (deadline, once), |page| {
            let page = answers::request_page(page, version == ALPHA)?;
            list.requests.extend(page.requests);
            list.unreachable.extend(page.unreachable);
            Ok(page.next)
        })
        .await?;
        Ok(list)
    }

    /// One queued resource; through v2alpha1, where that answers.
    ///
    /// # Errors
    /// [`FailureClass::NotFound`] only on a 404 that is an API error.
    pub async fn get_request(
        &self,
        zone: &str,
        id: &str,
        deadline: Instant,
    ) -> Result<RequestView, Failure> {
        if let Some(limit) = self.alpha_until(deadline) {
            let url = format!("{}/queuedResources/{id}", self.parent_in(ALPHA, zone));
            let read = self.http.ask(GET, Method::GET, &url, None, limit).await;
            let view = read.and_then(|raw| {
                let one = self.one_request(raw, zone, id, true);
                one.map_err(|why| CallFailure::of(why, Sent::Perhaps))
            });
            match view {
                Ok(view) => return Ok(view),
                Err(error) if is_about(&error.failure, id) => return Err(error.failure),
                Err(error) => self.instead(GET, error, deadline).await?,
            }
        }
        let url = format!("{}/queuedResources/{id}", self.parent(zone));
        let raw = self.http.read(GET, Method::GET, &url, None, deadline).await?;
        self.one_request(raw, zone, id, self.version() == ALPHA)
    }

    /// The queued resource that was asked for, and no other.
    fn one_request(
        &self,
        raw: Value,
        zone: &str,
        id: &str,
        alpha: bool,
    ) -> Result<RequestView, Failure> {
        let view = answers::request(raw, alpha).map_err(|text| self.http.reject(GET, text))?;
        self.is_of(GET, (id, zone), (&view.id, &view.zone))?;
        Ok(view)
    }

    /// A queued resource and its nodes; the request is read first, so that a node it lacks then was
    /// not there. Without a request the nodes that were last `known` are looked for.
    ///
    /// # Errors
    /// When either could not be read: nothing follows from one of them alone.
    pub async fn get_filled(
        &self,
        zone: &str,
        id: &str,
        known: &[String],
        deadline: Instant,
    ) -> Result<Reading, Failure> {
        let request = answers::found(self.get_request(zone, id, deadline).await)?;
        let named = request.as_ref().map_or(known, |request| request.nodes.as_slice());
        let ask = async |node: &String| self.get_node(zone, node, deadline).await;
        let read: Vec<_> = stream::iter(named).map(ask).buffered(AT_ONCE).collect().await;
        let mut nodes = Vec::new();
        for answer in read {
            nodes.extend(answers::found(answer)?.map(Arc::new));
        }
        Ok(reading::reading(id, request.as_ref(), &nodes))
    }

    /// Creates a queued resource for a node of this specification.
    pub(super) async fn create_request(
        &self,
        (zone, id, slot): (&str, &str, &str),
        specification: &Value,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let parent = self.name_of(zone);
        let wanted = body::still_ahead(specification, Timestamp::now());
        let (body, alpha) = body::create_body(&wanted, &parent, slot, self.version() == ALPHA);
        let version = if alpha { ALPHA } else { self.version() };
        let parent = self.parent_in(version, zone);
        let mut url = format!("{parent}/queuedResources?queuedResourceId={}", encode(id));
        if let Some(id) = request_id {
            url.push_str(&format!("&requestId={}", encode(id)));
        }
        let (name, origin) = ("queuedResources.create", Origin::create(specification));
        self.http.mutate(name, Method::POST, origin, &url, Some(&body), prepared).await
    }

    /// Deletes a queued resource, in one attempt; with `force` its nodes too. The caller has verified
    /// which one it is.
    pub async fn delete_request(
        &self,
        zone: &str,
        id: &str,
        force: bool,
        request_id: &str,
        prepared: Prepared,
    ) -> CallOutcome {
        outcome(self.remove_request(zone, id, force, Some(request_id), prepared).await)
    }

    pub(super) async fn remove_request(
        &self,
        zone: &str,
        id: &str,
        force: bool,
        request_id: Option<&str>,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let mut url = format!("{}/queuedResources/{id}?force={force}", self.parent(zone));
        if let Some(id) = request_id {
            url.push_str(&format!("&requestId={}", encode(id)));
        }
        let (name, origin) = ("queuedResources.delete", Origin::DELETE);
        self.http.mutate(name, Method::DELETE, origin, &url, None, prepared).await
    }
}

/// Whether a failure is the API's word that this very request is not there: an address that does not
/// exist is a 404 as well.
fn is_about(failure: &Failure, id: &str) -> bool {
    failure.class == FailureClass::NotFound
        && failure.message.contains(&format!("/queuedResources/{id}"))
}
