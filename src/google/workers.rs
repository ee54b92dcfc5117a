//! The reports of a node's workers, as guest attributes.

use std::sync::OnceLock;
use std::time::Instant;

use futures::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};

use super::http::{CallFailure, Sent};
use super::tpu::TpuClient;
use crate::model::beacon::{NAMESPACE, WorkerReport};
use crate::model::failure::{Failure, FailureClass};
use crate::resource::attributes::parse_guest_attributes;

const METHOD: &str = "nodes.getGuestAttributes";
/// Workers that are asked at once, each by a call of its own.
const AT_ONCE: usize = 16;

impl TpuClient {
    /// The reports of the workers of all these nodes, in the order of the nodes: of so many in all. A
    /// node that is not there, where others are, tells nothing.
    ///
    /// # Errors
    /// When any of them could not be read. [`FailureClass::NotFound`]: none of the nodes is there.
    pub async fn reports_of(
        &self,
        zone: &str,
        nodes: &[String],
        workers: usize,
        deadline: Instant,
    ) -> Result<Vec<WorkerReport>, Failure> {
        let each = (workers / nodes.len().max(1)).max(1);
        let ask = async |node: &String| self.guest_attributes(zone, node, each, deadline).await;
        let answers: Vec<_> =
            futures::stream::iter(nodes).map(ask).buffered(AT_ONCE).collect().await;
        let is_gone = |answer: &Result<Vec<WorkerReport>, Failure>| {
            answer.as_ref().is_err_and(|failure| failure.class == FailureClass::NotFound)
        };
        let some_are_there = !answers.iter().all(is_gone);
        let mut reports = Vec::new();
        for answer in answers {
            let of_node = match answer {
                answer if is_gone(&answer) && some_are_there => {
                    vec![WorkerReport::default(); each]
                }
                answer => answer?,
            };
            // After one that lacks a worker the numbers of the next ones would not be theirs.
            let lacks = of_node.len() < each;
            let most = if nodes.len() > 1 { each } else { usize::MAX };
            reports.extend(of_node.into_iter().take(most));
            if lacks {
                break;
            }
        }
        Ok(reports)
    }

    /// The supervisor's guest attributes of all workers, of which there should be so many.
    ///
    /// A 404 that names the guest attribute says that nothing was written. Where the answer about
    /// all of them fails they are asked one by one: one worker that can't be read, or that never
    /// wrote, hides no other.
    ///
    /// # Errors
    /// When any of them could not be read, with their numbers. [`FailureClass::NotFound`]: the node
    /// is not there.
    pub async fn guest_attributes(
        &self,
        zone: &str,
        node: &str,
        workers: usize,
        deadline: Instant,
    ) -> Result<Vec<WorkerReport>, Failure> {
        let url = format!("{}:getGuestAttributes", self.node_url(zone, node));
        let body = json!({"queryPath": format!("{NAMESPACE}/")});
        if workers <= 1 {
            let read = self.http.read(METHOD, Method::POST, &url, Some(&body), deadline).await;
            return self.reports(read, 1);
        }
        // The workers still have their time when no answer comes.
        let now = Instant::now();
        let half = now + deadline.saturating_duration_since(now) / 2;
        let error = match self.http.ask(METHOD, Method::POST, &url, Some(&body), half).await {
            Ok(answer) => match self.reports(Ok(answer), workers) {
                Ok(reports) => return Ok(reports),
                Err(failure) => failure,
            },
            Err(error) if is_the_same_for_each(&error.failure) => return Err(error.failure),
            // unverified: one worker without values makes the answer about all workers a 404.
            // settled by: gcloud compute tpus tpu-vm get-guest-attributes NODE --zone ZONE --query-path none/
            Err(error) => {
                let failure = error.failure.clone();
                self.http.wait_out(error, deadline).await?;
                failure
            }
        };
        self.one_by_one(&url, workers, &error, deadline).await
    }

    async fn one_by_one(
        &self,
        url: &str,
        workers: usize,
        error: &Failure,
        deadline: Instant,
    ) -> Result<Vec<WorkerReport>, Failure> {
        // The quota of these reads is small: they end with the first that it refuses.
        let refused = OnceLock::new();
        let ask = async |worker: usize| {
            if let Some(refusal) = refused.get() {
                return Err(Failure::clone(refusal));
            }
            let body =
                json!({"queryPath": format!("{NAMESPACE}/"), "workerIds": [worker.to_string()]});
            let mut read = self.http.ask(METHOD, Method::POST, url, Some(&body), deadline).await;
            if let Err(error) = &read {
                match error.failure.class {
                    FailureClass::Rate => _ = refused.get_or_init(|| error.failure.clone()),
                    FailureClass::Transient => {
                        let again =
                            self.http.read(METHOD, Method::POST, url, Some(&body), deadline);
                        read = again.await.map_err(|why| CallFailure::of(why, Sent::Perhaps));
                    }
                    _ => {}
                }
            }
            let read = read.map_err(|error| error.failure);
            self.reports(read, 1).map(|reports| reports.into_iter().next().unwrap_or_default())
        };
        let answers: Vec<Result<WorkerReport, Failure>> =
            futures::stream::iter(0..workers).map(ask).buffered(AT_ONCE).collect().await;
        let failed =
            || answers.iter().enumerate().filter_map(|(w, a)| Some((w, a.as_ref().err()?)));
        let Some((_, first)) = failed().next() else {
            return answers.into_iter().collect();
        };
        if first.class == FailureClass::NotFound {
            return Err(first.clone());
        }
        let names: Vec<String> = failed().map(|(worker, _)| worker.to_string()).collect();
        let text = format!(
            "workers {} of {workers}: {}; asked one by one after all at once failed: {}",
            names.join(", "),
            first.message,
            error.message
        );
        Err(Failure::new(first.class, text))
    }

    /// The reports in an answer about so many workers.
    fn reports(
        &self,
        read: Result<Value, Failure>,
        workers: usize,
    ) -> Result<Vec<WorkerReport>, Failure> {
        match read {
            Ok(answer) => {
                parse_guest_attributes(&answer).map_err(|text| self.http.reject(METHOD, text))
            }
            Err(failure) if is_unwritten(&failure) => Ok(vec![WorkerReport::default(); workers]),
            Err(failure) => Err(failure),
        }
    }
}

/// Whether a 404 is about the guest attribute, and not about the node. Compute Engine's words:
/// "The resource 'tpu-watchdog/' of type 'Guest Attribute' was not found."
// unverified: the TPU API passes on Compute Engine's words about a guest attribute that is not there.
// settled by: gcloud compute tpus tpu-vm get-guest-attributes NODE --zone ZONE --query-path none/ --log-http
fn is_unwritten(failure: &Failure) -> bool {
    let text = failure.message.to_lowercase();
    failure.class == FailureClass::NotFound && text.contains("guest attribute")
}

/// Whether each worker would be refused alike: asking them one by one would tell nothing more.
fn is_the_same_for_each(failure: &Failure) -> bool {
    match failure.class {
        FailureClass::NotFound => !is_unwritten(failure),
        FailureClass::Permission
        | FailureClass::Rate
        | FailureClass::Quota
        | FailureClass::Billing
        | FailureClass::ApiDisabled => true,
        _ => false,
    }
}
