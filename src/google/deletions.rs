//! The delete operations on a node: it may have been deleted on purpose.

use std::time::Instant;

use jiff::Timestamp;

use super::answers;
use super::tpu::{PAGE_SIZE, TpuClient};
use crate::model::failure::Failure;
use crate::model::lookup::Deletion;

const METHOD: &str = "operations.list";
// unverified: operations.list takes a pageSize of 100, and keeps a delete for at least a day.
// settled by: gcloud compute tpus operations list --zone ZONE --page-size 100 --log-http

impl TpuClient {
    /// The delete operations on a `target` of a zone (`nodes/N`, `queuedResources/Q`) since then that did not fail, newest first.
    ///
    /// # Errors
    /// When they could not be listed whole.
    pub async fn deletions(
        &self,
        zone: &str,
        targets: &[String],
        since: Timestamp,
        deadline: Instant,
    ) -> Result<Vec<Deletion>, Failure> {
        let targets: Vec<String> =
            targets.iter().map(|target| format!("/locations/{zone}/{target}")).collect();
        let url = format!("{}/operations?pageSize={PAGE_SIZE}", self.parent(zone));
        let mut found: Vec<Deletion> = Vec::new();
        self.each_page(METHOD, &url, deadline, |page| {
            let (operations, next) = answers::operation_page(&page)?;
            found.extend(operations.iter().filter_map(|o| answers::deletion(o, &targets, since)));
            Ok(next)
        })
        .await?;
        found.sort_by_key(|deletion| std::cmp::Reverse(deletion.at));
        Ok(found)
    }
}
