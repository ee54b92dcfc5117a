//! Managed training jobs of Vertex AI: list, get, submit, cancel. Source: aiplatform v1, `customJobs`.

use std::time::Instant;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use super::http::{CallFailure, Prepared, Sent};
use super::origin::Origin;
use super::tpu::{TpuClient, encode};
use crate::model::action::Reading;
use crate::model::failure::{Failure, FailureClass};
use crate::model::ids::Incarnation;
use crate::model::submission::{JobState, JobView};
use crate::model::training::{LINEAGE_LABEL, Named, Training};
use crate::resource::training::{self, body};

/// Asked for on each page; the server may give fewer.
const PAGE_SIZE: u32 = 100;
const LIST: &str = "customJobs.list";
const GET: &str = "customJobs.get";

impl TpuClient {
    /// The jobs of a region that have not ended: those that have grow in number for ever.
    ///
    /// # Errors
    /// When any page, or any entry, can't be read: what it lacks would look ended.
    pub async fn list_jobs(
        &self,
        region: &str,
        deadline: Instant,
    ) -> Result<Vec<JobView>, Failure> {
        let ends = JobState::ENDS.map(|state| format!("state!=\"{}\"", state.as_str()));
        self.jobs_that(region, &ends.join(" AND "), deadline).await
    }

    async fn jobs_that(
        &self,
        region: &str,
        filter: &str,
        deadline: Instant,
    ) -> Result<Vec<JobView>, Failure> {
        let parent = self.jobs_url(region);
        let url = format!("{parent}?pageSize={PAGE_SIZE}&filter={}", encode(filter));
        let mut jobs = Vec::new();
        self.each_page(LIST, &url, deadline, |mut page| {
            match page.get_mut("customJobs").map(Value::take) {
                None | Some(Value::Null) => {}
                Some(Value::Array(all)) => {
                    for raw in all {
                        jobs.push(JobView::parse(raw)?);
                    }
                }
                Some(_) => return Err("\"customJobs\" is not a list".into()),
            }
            let next = page.get("nextPageToken").and_then(Value::as_str);
            Ok(next.filter(|next| !next.is_empty()).map(str::to_owned))
        })
        .await?;
        Ok(jobs)
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
        let lineage = training::lineage(slot, known);
        let began = Timestamp::now();
        let quoted =
            |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let label = |key: &str, value: &str| format!("labels.{key}={}", quoted(value));
        let filter = match (lineage, &of.named) {
            (Some(lineage), _) => Some(label(LINEAGE_LABEL, lineage)),
            (None, Named::Id(_)) => None,
            (None, Named::DisplayName(name)) => Some(format!("display_name={}", quoted(name))),
            (None, Named::Labels(labels)) => {
                let all: Vec<String> =
                    labels.iter().map(|(key, value)| label(key, value)).collect();
                Some(all.join(" AND "))
            }
        };
        // The first job has no label of ours, and a list may lag behind.
        let named = match (lineage, &of.named) {
            (None, Named::Id(id)) => std::slice::from_ref(id),
            (None, _) => &[],
            (Some(_), _) => known,
        };
        let here = [region.to_owned()];
        // One that was never seen may have ended anywhere.
        let regions = if lineage.is_none() { of.regions.as_slice() } else { &here };
        let mut jobs = Vec::new();
        for region in regions {
            if let Some(filter) = &filter {
                jobs.extend(self.jobs_that(region, filter, deadline).await?);
            }
            for id in named.iter().filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())) {
                if jobs.iter().any(|job: &JobView| job.id == *id) {
                    continue;
                }
                match self.one_job(region, id, deadline).await {
                    Ok(job) => jobs.push(job),
                    Err(failure) if failure.class == FailureClass::NotFound => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        let jobs: Vec<&JobView> = jobs.iter().collect();
        Ok(training::reading(of, slot, lineage, &jobs, began))
    }

    async fn one_job(&self, region: &str, id: &str, deadline: Instant) -> Result<JobView, Failure> {
        let url = format!("{}/{id}", self.jobs_url(region));
        let raw = self.http.read(GET, Method::GET, &url, None, deadline).await?;
        let job = JobView::parse(raw).map_err(|text| self.http.reject(GET, text))?;
        if job.id != id || job.region != region {
            let text = format!("asked for {id} in {region}, got {} in {}", job.id, job.region);
            return Err(self.http.reject(GET, text));
        }
        Ok(job)
    }

    /// Submits a job of this specification, in one attempt: the API takes no request id.
    pub(super) async fn submit_job(
        &self,
        region: &str,
        of: &Training,
        specification: &Value,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let body = body::submission(specification, of).map_err(|why| {
            CallFailure::of(Failure::new(FailureClass::BadRequest, why), Sent::No)
        })?;
        let (url, origin) = (self.jobs_url(region), Origin::create(&json!({})));
        let (name, method) = ("customJobs.create", Method::POST);
        let job = self.http.mutate(name, method, origin, &url, Some(&body), prepared).await?;
        match JobView::parse(job) {
            Ok(job) => Ok(json!({"name": job.raw["name"]})),
            Err(why) => {
                Err(CallFailure::of(Failure::new(FailureClass::Garbage, why), Sent::Perhaps))
            }
        }
    }

    /// Cancels a job: best effort, and asynchronous.
    pub(super) async fn cancel_job(
        &self,
        region: &str,
        incarnation: &Incarnation,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let url = format!("{}/{}:cancel", self.jobs_url(region), incarnation.id);
        let (name, origin) = ("customJobs.cancel", Origin::DELETE);
        let body = json!({});
        self.http.mutate(name, Method::POST, origin, &url, Some(&body), prepared).await?;
        Ok(json!({"name": format!("projects/-/locations/{region}/customJobs/{}", incarnation.id)}))
    }

    fn jobs_url(&self, region: &str) -> String {
        let endpoint = self.vertex.replace("{region}", region);
        format!("{endpoint}/v1/projects/{}/locations/{region}/customJobs", self.project)
    }
}
