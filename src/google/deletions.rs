//! The delete operations on a node: it may have been deleted on purpose.

use std::collections::HashSet;
use std::time::Instant;

use jiff::Timestamp;
use reqwest::Method;

use super::answers;
use super::tpu::{TpuClient, encode};
use crate::model::failure::Failure;
use crate::model::lookup::Deletion;

const METHOD: &str = "operations.list";
/// Asked for on each page; the server may give fewer.
// unverified: operations.list takes a pageSize of 100, and keeps a delete for at least a day.
// settled by: gcloud compute tpus operations list --zone ZONE --page-size 100 --log-http
const PAGE_SIZE: u32 = 100;
/// More pages than a zone has operations.
const PAGES_MAX: usize = 200;

impl TpuClient {
    /// The delete operations on a node since then that did not fail, newest first.
    ///
    /// # Errors
    /// When they could not be listed whole.
    pub async fn deletions(
        &self,
        zone: &str,
        node: &str,
        since: Timestamp,
        deadline: Instant,
    ) -> Result<Vec<Deletion>, Failure> {
        let garbage = |text: String| self.http.reject(METHOD, text);
        let target = format!("/locations/{zone}/nodes/{node}");
        let mut found: Vec<Deletion> = Vec::new();
        let (mut token, mut tokens) = (String::new(), HashSet::new());
        for _ in 0..PAGES_MAX {
            let mut url = format!("{}/operations?pageSize={PAGE_SIZE}", self.parent(zone));
            if !token.is_empty() {
                url.push_str("&pageToken=");
                url.push_str(&encode(&token));
            }
            let page = self.http.read(METHOD, Method::GET, &url, None, deadline).await?;
            let (operations, next) = answers::operation_page(&page).map_err(garbage)?;
            found.extend(operations.iter().filter_map(|o| answers::deletion(o, &target, since)));
            let Some(next) = next else {
                found.sort_by_key(|deletion| std::cmp::Reverse(deletion.at));
                return Ok(found);
            };
            token = next;
            if !tokens.insert(token.clone()) {
                return Err(garbage("the list repeats a page".into()));
            }
        }
        Err(garbage(format!("the list did not end within {PAGES_MAX} pages")))
    }
}
