//! Managed training jobs of Vertex AI and of the legacy AI Platform: list, get, submit, cancel. Sources: aiplatform v1,
//! `customJobs` and `hyperparameterTuningJobs`; ml v1, `projects.jobs`.

// unverified: the list of ml v1 takes OR between states. A live job that it lacked would be read by its id before anything follows.
// settled by: gcloud ai-platform jobs list --filter 'state:RUNNING OR state:QUEUED' --log-http

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use super::answers;
use super::http::{CallFailure, Prepared, Sent};
use super::origin::Origin;
use super::tpu::{PAGE_SIZE, TpuClient, encode};
use crate::model::action::Reading;
use crate::model::failure::{Failure, FailureClass};
use crate::model::ids::Incarnation;
use crate::model::submission::{JobState, JobView};
use crate::model::training::{JobKind, LINEAGE_LABEL, NO_REGION, Named, Training};
use crate::resource::training::{self, body};

/// The name of a call about a kind of job, for metrics and errors.
macro_rules! method {
    ($kind:expr, $verb:literal) => {
        match $kind {
            JobKind::Custom => concat!("customJobs.", $verb),
            JobKind::Tuning => concat!("hyperparameterTuningJobs.", $verb),
            JobKind::Legacy => concat!("ml.jobs.", $verb),
        }
    };
}

/// The states of a legacy job that has not ended.
const LIVE: [&str; 4] = ["QUEUED", "PREPARING", "RUNNING", "CANCELLING"];
/// So many ids that others have taken are tried.
const TAKEN_MAX: u32 = 5;

impl TpuClient {
    /// The jobs of a region, of these kinds, each with whether a slot is known to be of it: those that a filter takes, or
    /// that have not ended, since those that have grow in number for ever. A kind that is looked for on the chance, and that
    /// the account may not list, is left out, as long as another can be listed.
    ///
    /// # Errors
    /// When any page, or any entry, can't be read: what it lacks would look ended.
    pub async fn list_jobs(
        &self,
        region: &str,
        kinds: &BTreeMap<JobKind, bool>,
        filter: Option<&str>,
        deadline: Instant,
    ) -> Result<Vec<JobView>, Failure> {
        let (mut jobs, mut refused) = (None, None);
        for (&kind, is_known) in kinds {
            let (parent, collection) = (self.jobs_url(kind, region), kind.collection());
            let filter = encode(&filter.map_or_else(|| live(kind), str::to_owned));
            let url = format!("{parent}?pageSize={PAGE_SIZE}&filter={filter}");
            let mut listed = Vec::new();
            let read = self.each_page(method!(kind, "list"), &url, deadline, |mut page| {
                for raw in answers::list(&mut page, collection)? {
                    listed.push(JobView::parse(raw)?);
                }
                answers::next_page(&page)
            });
            match read.await.map_err(|failure| of_kind(kind, failure)) {
                Ok(()) => jobs.get_or_insert_with(Vec::new).extend(listed),
                Err(why) if !is_known && why.class == FailureClass::Permission => {
                    if self.is_news(format!("{region} {collection}")) {
                        tracing::warn!(
                            "{collection} of {region} can't be listed: {why}; a slot that is named by display_name or labels is not looked for among them"
                        );
                    }
                    refused = Some(why);
                }
                Err(why) => return Err(why),
            }
        }
        let none = refused.map_or_else(|| Ok(Vec::new()), Err);
        jobs.map_or(none, Ok)
    }

    /// The job of a slot, whether it lives or has ended: in one region by its lineage, once that is among the `known`
    /// members of the slot, else in all of its regions, as the config names it.
    ///
    /// # Errors
    /// When any read fails: nothing follows from the others alone.
    pub async fn get_job(
        &self,
        of: &Training,
        (slot, known): (&str, &[String]),
        region: &str,
        deadline: Instant,
    ) -> Result<Reading, Failure> {
        let lineage = training::lineage(known);
        let began = Timestamp::now();
        let quoted = |text: &str| Value::from(text).to_string();
        let label = |key: &str, value: &str| format!("labels.{key}={}", quoted(value));
        let (filter, id) = match (lineage, &of.named) {
            (Some(first), _) if of.kind.takes_ids() => (format!("jobId:{first}*"), known.last()),
            (Some(first), _) => (label(LINEAGE_LABEL, first), known.last()),
            (None, Named::Id(id)) => (String::new(), Some(id)),
            (None, Named::DisplayName(name)) => (format!("display_name={}", quoted(name)), None),
            (None, Named::Labels(labels)) => {
                let all: Vec<_> = labels.iter().map(|(key, value)| label(key, value)).collect();
                (all.join(" AND "), None)
            }
        };
        let kinds: BTreeMap<_, _> = of.kinds().map(|kind| (kind, !of.either)).collect();
        let here = [region.to_owned()];
        // One that was never seen may have ended anywhere.
        let regions = if lineage.is_none() { of.regions.as_slice() } else { &here };
        let mut jobs = Vec::new();
        for region in regions {
            if !filter.is_empty() {
                jobs.extend(self.list_jobs(region, &kinds, Some(&filter), deadline).await?);
            }
            // The first job of a lineage has no label of ours, and a list may lag behind.
            if let Some(id) = id.filter(|id| !jobs.iter().any(|job: &JobView| job.id == **id)) {
                jobs.extend(answers::found(self.one_job(of.kind, region, id, deadline).await)?);
            }
        }
        let jobs: Vec<&JobView> = jobs.iter().collect();
        Ok(training::reading(of, slot, known, &jobs, began))
    }

    async fn one_job(
        &self,
        kind: JobKind,
        region: &str,
        id: &str,
        deadline: Instant,
    ) -> Result<JobView, Failure> {
        let url = format!("{}/{id}", self.jobs_url(kind, region));
        let method = method!(kind, "get");
        let read = self.http.read(method, Method::GET, &url, None, deadline).await;
        let raw = read.map_err(|failure| of_kind(kind, failure))?;
        let job = JobView::parse(raw).map_err(|text| self.http.reject(method, text))?;
        self.is_of(method, (id, region), (&job.id, &job.region))?;
        Ok(job)
    }

    /// The job to submit for a specification. The id of a legacy one, which its user gives, is one that no other job has
    /// ever had; one of ours with this intent keeps its id, and is refused once more.
    pub(super) async fn submission(
        &self,
        of: &Training,
        specification: &Value,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let refused = |why: &str| Failure::new(FailureClass::BadRequest, why);
        let mut job = body::submission(specification, of).map_err(refused)?;
        if !of.kind.takes_ids() {
            return Ok(job);
        }
        for taken in 0..TAKEN_MAX {
            let Some(id) = body::next_id(specification, taken) else { break };
            let known = self.one_job(of.kind, NO_REGION, &id, deadline).await;
            if answers::found(known)?.is_none_or(|known| body::is_sent_again(&job, &known)) {
                job["jobId"] = json!(id);
                return Ok(job);
            }
        }
        Err(refused("all ids that its submission could have are taken"))
    }

    /// Submits a job, in one attempt: the API takes no request id.
    pub(super) async fn submit_job(
        &self,
        (region, kind): (&str, JobKind),
        job: &Value,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let (url, origin) = (self.jobs_url(kind, region), Origin::create(&json!({})));
        let (name, method) = (method!(kind, "create"), Method::POST);
        let job = self.http.mutate(name, method, origin, &url, Some(job), prepared).await;
        let job = job.map_err(|failure| match failure.failure.class {
            // An earlier copy of this submission may have taken the id.
            FailureClass::Conflict => CallFailure::of(failure.failure, Sent::Perhaps),
            _ => failure,
        })?;
        let job = JobView::parse(job)
            .map_err(|why| CallFailure::new(FailureClass::Garbage, why, Sent::Perhaps))?;
        Ok(answer(kind, region, &job.id))
    }

    /// Cancels a job: best effort, and asynchronous.
    pub(super) async fn cancel_job(
        &self,
        (region, kind): (&str, JobKind),
        incarnation: &Incarnation,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let url = format!("{}/{}:cancel", self.jobs_url(kind, region), incarnation.id);
        let (name, origin) = (method!(kind, "cancel"), Origin::DELETE);
        self.http.mutate(name, Method::POST, origin, &url, Some(&json!({})), prepared).await?;
        Ok(answer(kind, region, &incarnation.id))
    }

    fn jobs_url(&self, kind: JobKind, region: &str) -> String {
        let (project, collection) = (&self.project, kind.collection());
        if kind == JobKind::Legacy {
            return format!("{}/v1/projects/{project}/{collection}", self.ml);
        }
        let endpoint = self.vertex.replace("{region}", region);
        format!("{endpoint}/v1/projects/{project}/locations/{region}/{collection}")
    }
}

/// The filter of the jobs of a kind that have not ended.
fn live(kind: JobKind) -> String {
    if kind.takes_ids() {
        return LIVE.map(|state| format!("state:{state}")).join(" OR ");
    }
    JobState::ENDS.map(|state| format!("state!=\"{}\"", state.as_str())).join(" AND ")
}

/// The answer to a call, which names the job in the place of an operation.
fn answer(kind: JobKind, region: &str, id: &str) -> Value {
    json!({"name": format!("projects/-/locations/{region}/{}/{id}", kind.collection())})
}

/// A failure, with the reason that is likely where the legacy service is gone.
fn of_kind(kind: JobKind, mut failure: Failure) -> Failure {
    use FailureClass::*;
    // A 410 is a bad request like any other 4xx.
    let gone = matches!(failure.class, Permission | NotFound | ApiDisabled | Garbage | BadRequest);
    if kind == JobKind::Legacy && gone {
        failure.message += ". AI Platform Training may have ended for this project: submit the job to Vertex AI, and name it in a [[vertex_job]]";
    }
    failure
}
