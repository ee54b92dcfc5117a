//! One poll: its zones are listed at the same time, each on its own.

use std::time::Instant;

use jiff::Timestamp;

use crate::driver::poll::Plan;
use crate::google::tpu::TpuClient;
use crate::model::action::{Listing, Poll};
use crate::model::failure::{Failure, FailureClass};

/// Lists; a zone that fails or is not done in time is a failure of that zone alone.
pub async fn list(tpu: &TpuClient, plan: Plan) -> Poll {
    let began = Timestamp::now();
    let deadline = Instant::now() + plan.limit;
    let listings = plan.zones.into_iter().map(|zone| async move {
        let listed = tokio::time::timeout_at(deadline.into(), tpu.list_nodes(&zone, deadline)).await;
        let result = listed.unwrap_or_else(|_| {
            let text = format!("not done within {:.1} s", plan.limit.as_secs_f64());
            Err(Failure::new(FailureClass::Transient, text))
        });
        if let Err(failure) = &result {
            tracing::warn!(
                "listing the nodes of {zone} failed: {failure}; its slots are held, the next poll tries again"
            );
        }
        Listing { zone, result }
    });
    Poll { began, listings: futures::future::join_all(listings).await }
}
