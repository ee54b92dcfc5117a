//! Queued resources: list, get, delete.

use std::time::Instant;

use reqwest::Method;

use super::answers;
use super::http::Prepared;
use super::origin::Origin;
use super::tpu::{TpuClient, encode, outcome};
use crate::model::action::CallOutcome;
use crate::model::failure::Failure;
use crate::model::queued::RequestView;

/// Asked for on each page; the server may give fewer.
const PAGE_SIZE: u32 = 100;

/// A list of queued resources.
#[derive(Debug, Default)]
pub struct RequestList {
    /// The queued resources.
    pub requests: Vec<RequestView>,
    /// Zones that did not answer.
    pub unreachable: Vec<String>,
}

impl TpuClient {
    /// All queued resources of a zone (`-` for all zones).
    ///
    /// # Errors
    /// When any page, or any entry, can't be read.
    pub async fn list_requests(
        &self,
        zone: &str,
        deadline: Instant,
    ) -> Result<RequestList, Failure> {
        let url = format!("{}/queuedResources?pageSize={PAGE_SIZE}", self.parent(zone));
        let mut list = RequestList::default();
        self.each_page("queuedResources.list", &url, deadline, |page| {
            let page = answers::request_page(page)?;
            list.requests.extend(page.requests);
            list.unreachable.extend(page.unreachable);
            Ok(page.next)
        })
        .await?;
        Ok(list)
    }

    /// One queued resource.
    ///
    /// # Errors
    /// [`crate::model::failure::FailureClass::NotFound`] only on a 404 that is an API error.
    pub async fn get_request(
        &self,
        zone: &str,
        id: &str,
        deadline: Instant,
    ) -> Result<RequestView, Failure> {
        const METHOD: &str = "queuedResources.get";
        let url = format!("{}/queuedResources/{id}", self.parent(zone));
        let raw = self.http.read(METHOD, Method::GET, &url, None, deadline).await?;
        let view = RequestView::parse(raw).map_err(|text| self.http.reject(METHOD, text))?;
        if view.id != id || view.zone != zone {
            let text = format!("asked for {id} in {zone}, got {} in {}", view.id, view.zone);
            return Err(self.http.reject(METHOD, text));
        }
        Ok(view)
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
        let url = format!(
            "{}/queuedResources/{id}?force={force}&requestId={}",
            self.parent(zone),
            encode(request_id)
        );
        let (name, origin) = ("queuedResources.delete", Origin::DELETE);
        outcome(self.http.mutate(name, Method::DELETE, origin, &url, None, prepared).await)
    }
}
