//! Managed training jobs in a world: how they are listed, read, submitted and cancelled, as the client does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tpu_watchdog::google::origin::Origin;
use tpu_watchdog::model::action::{CallOutcome, Reading};
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::ids::Incarnation;
use tpu_watchdog::model::submission::{JobListing, JobState, JobView};
use tpu_watchdog::model::training::{JobKind, LINEAGE_LABEL, NO_REGION, Named, Training};
use tpu_watchdog::resource::training::{body, lineage, reading};

use crate::world::{Sent, World, at};

fn parent(kind: JobKind, region: &str) -> String {
    match kind {
        JobKind::Legacy => "v1/projects/p/jobs".to_owned(),
        _ => format!("v1/projects/p/locations/{region}/{}", kind.collection()),
    }
}

/// The filter of live jobs, as the client has it.
fn lives(kind: JobKind) -> String {
    match kind {
        JobKind::Legacy => ["QUEUED", "PREPARING", "RUNNING", "CANCELLING"]
            .map(|state| format!("state:{state}"))
            .join(" OR "),
        _ => JobState::ENDS.map(|state| format!("state!=\"{}\"", state.as_str())).join(" AND "),
    }
}

impl World {
    fn jobs_that(
        &mut self,
        kind: JobKind,
        region: &str,
        filter: &str,
    ) -> Result<Vec<JobView>, Failure> {
        if self.unlisted.contains(region) {
            return Err(Failure::new(FailureClass::Transient, "HTTP 503"));
        }
        let query = [("filter".to_owned(), filter.to_owned())].into();
        let (status, mut page) = self.call("GET", &parent(kind, region), &query, None);
        assert_eq!((status, page.get("nextPageToken")), (200, None));
        let jobs = page.get_mut(kind.collection()).map(Value::take).unwrap_or_default();
        let jobs = jobs.as_array().cloned().unwrap_or_default();
        Ok(jobs.into_iter().map(|job| JobView::parse(job).unwrap()).collect())
    }

    /// The jobs of a region that live.
    pub fn list_jobs(&mut self, region: &str, kinds: &BTreeMap<JobKind, bool>) -> JobListing {
        let all: Result<Vec<_>, _> =
            kinds.keys().map(|kind| self.jobs_that(*kind, region, &lives(*kind))).collect();
        JobListing { region: region.to_owned(), result: all.map(|all| all.concat()) }
    }

    fn one_job(&mut self, kind: JobKind, region: &str, id: &str) -> Option<JobView> {
        let path = format!("{}/{id}", parent(kind, region));
        let (status, job) = self.call("GET", &path, &BTreeMap::new(), None);
        (status == 200).then(|| JobView::parse(job).unwrap())
    }

    /// The job of a slot, by its lineage or as the config names it.
    pub fn job_of(
        &mut self,
        of: &Training,
        (slot, known): (&str, &[String]),
        region: &str,
    ) -> Result<Reading, Failure> {
        let began = at(self.now);
        let of_lineage = lineage(known);
        let filter = match (of_lineage, &of.named) {
            (Some(lineage), _) if of.kind == JobKind::Legacy => Some(format!("jobId:{lineage}*")),
            (Some(lineage), _) => Some(format!("labels.{LINEAGE_LABEL}=\"{lineage}\"")),
            (None, Named::DisplayName(name)) => Some(format!("display_name=\"{name}\"")),
            (None, Named::Id(_)) => None,
            (None, Named::Labels(_)) => unreachable!("no slot here is named by labels"),
        };
        let id = match (of_lineage, &of.named) {
            (None, Named::Id(id)) => Some(id),
            (None, _) => None,
            (Some(_), _) => known.last(),
        };
        let here = [region.to_owned()];
        let regions = if of_lineage.is_none() { of.regions.as_slice() } else { &here };
        let mut jobs: Vec<JobView> = Vec::new();
        for region in regions {
            for kind in of.kinds().filter(|_| filter.is_some()) {
                jobs.extend(self.jobs_that(kind, region, filter.as_deref().unwrap_or(""))?);
            }
            if let Some(id) = id.filter(|id| !jobs.iter().any(|job| job.id == **id)) {
                jobs.extend(self.one_job(of.kind, region, id));
            }
        }
        let unique: BTreeSet<&String> = jobs.iter().map(|job| &job.id).collect();
        assert_eq!(unique.len(), jobs.len());
        Ok(reading(of, slot, known, &jobs.iter().collect::<Vec<_>>(), began))
    }

    /// A submission; a legacy one under the first id that no other job has.
    pub fn submits(
        &mut self,
        of: &Training,
        region: &str,
        specification: &Value,
    ) -> Option<CallOutcome> {
        let mut job = body::submission(specification, of).unwrap();
        if of.kind == JobKind::Legacy {
            let free = (0..5).filter_map(|taken| body::next_id(specification, taken)).find(|id| {
                let known = self.one_job(of.kind, NO_REGION, id);
                known.is_none_or(|known| body::is_sent_again(&job, &known))
            });
            job["jobId"] = json!(free.unwrap());
        }
        let id = job["jobId"].as_str().map(str::to_owned);
        let (at, path, query) = (self.now, parent(of.kind, region), BTreeMap::new());
        let sent = Sent { at, method: "POST".into(), path, query, body: Some(job) };
        Some(match self.arrives(Origin::create(&json!({})), sent)? {
            // An earlier copy of this submission may have taken the id.
            CallOutcome::Refused(why) if why.class == FailureClass::Conflict => {
                CallOutcome::Unknown(why)
            }
            CallOutcome::Accepted(name) => {
                let given = name.rsplit('/').next().unwrap_or_default();
                answer(of.kind, region, id.as_deref().unwrap_or(given))
            }
            outcome => outcome,
        })
    }

    /// A cancel.
    pub fn cancels(
        &mut self,
        kind: JobKind,
        region: &str,
        incarnation: &Incarnation,
    ) -> Option<CallOutcome> {
        let path = format!("{}/{}:cancel", parent(kind, region), incarnation.id);
        let (at, query, body) = (self.now, BTreeMap::new(), Some(json!({})));
        let sent = Sent { at, method: "POST".into(), path, query, body };
        Some(match self.arrives(Origin::DELETE, sent)? {
            CallOutcome::Accepted(_) => answer(kind, region, &incarnation.id),
            outcome => outcome,
        })
    }
}

/// The answer to a call, which names the job in the place of an operation.
fn answer(kind: JobKind, region: &str, id: &str) -> CallOutcome {
    CallOutcome::Accepted(format!("projects/-/locations/{region}/{}/{id}", kind.collection()))
}
