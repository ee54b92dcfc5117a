//! One poll: its zones are listed at the same time, each on its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::driver::message::says_the_same;
use crate::driver::poll::Plan;
use crate::google::tpu::TpuClient;
use crate::model::action::{Listing, Poll};
use crate::model::failure::{Failure, FailureClass};
use crate::model::submission::JobListing;

/// Lists that fail, by what they list, with the reason that was said: an outage of hours is not a line a poll.
#[derive(Clone, Default)]
pub struct Failing(Arc<Mutex<BTreeMap<String, String>>>);

impl Failing {
    /// Says that a list fails, or works again, where that is new.
    fn took_in<T>(&self, list: &Result<T, Failure>, of: &str, zone: &str) {
        let key = format!("{of} of {zone}");
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(failure) = list else {
            if failing.remove(&key).is_some() {
                tracing::info!("listing the {key} works again");
            }
            return;
        };
        let why = failure.to_string();
        if failing.get(&key).is_none_or(|said| !says_the_same(said, &why)) {
            tracing::warn!(
                "listing the {key} failed: {why}; its slots are held, each poll tries again"
            );
        }
        failing.insert(key, why);
    }
}

/// Lists; a zone that fails or is not done in time is a failure of that zone alone.
pub async fn list(tpu: &TpuClient, failing: &Failing, plan: Plan) -> Poll {
    let began = Timestamp::now();
    let deadline = Instant::now() + plan.limit;
    let listings = plan.zones.into_iter().map(|zone| async {
        // A node that a listing lacks, of a request that was ACTIVE before it, is gone.
        let requests = match plan.requests.contains(&zone) {
            true => {
                let list = in_time(deadline, plan.limit, tpu.list_requests(&zone, deadline)).await;
                failing.took_in(&list, "queued resources", &zone);
                Some(list)
            }
            false => None,
        };
        let result = in_time(deadline, plan.limit, tpu.list_nodes(&zone, deadline)).await;
        failing.took_in(&result, "nodes", &zone);
        Listing { zone, result, requests }
    });
    let jobs = plan.jobs.into_iter().map(|(region, kinds)| async move {
        let list = tpu.list_jobs(&region, &kinds, None, deadline);
        let result = in_time(deadline, plan.limit, list).await;
        failing.took_in(&result, "training jobs", &region);
        JobListing { region, result }
    });
    let (listings, jobs) =
        futures::future::join(futures::future::join_all(listings), futures::future::join_all(jobs))
            .await;
    Poll { began, listings, jobs }
}

/// A listing, which has failed when it is not done in time.
async fn in_time<T>(
    deadline: Instant,
    limit: Duration,
    list: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::time::timeout_at(deadline.into(), list).await.unwrap_or_else(|_| {
        let text = format!("not done within {:.1} s", limit.as_secs_f64());
        Err(Failure::new(FailureClass::Transient, text))
    })
}
