//! One poll: the zones in use are listed at once, each on its own, all within one poll interval or
//! two seconds.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::google::tpu::TpuClient;
use crate::model::action::{Listing, Poll};
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::Fleet;

/// With more zones than this in use, one listing of all of them costs less.
const ZONES_MAX: usize = 8;

/// A listing has this long at least, however often one is asked for.
const LEAST: Duration = Duration::from_secs(2);

/// What a poll will ask.
pub struct Plan {
    zones: Vec<String>,
    limit: Duration,
}

/// The zones in use, and how long the poll may take: the next one should be on time.
pub fn plan(fleet: &Fleet) -> Plan {
    let configured = fleet.settings.slots.values().flat_map(|s| s.zones.iter());
    let zones: BTreeSet<&String> =
        configured.chain(fleet.slots.values().map(|r| &r.zone)).collect();
    let zones = if zones.len() > ZONES_MAX {
        vec!["-".to_owned()]
    } else {
        zones.into_iter().cloned().collect()
    };
    Plan { zones, limit: fleet.settings.poll.every.max(LEAST) }
}

/// Lists; a zone that fails or is not done in time is a failure of that zone alone.
pub async fn carry_out(tpu: &TpuClient, plan: Plan) -> Poll {
    let began = Timestamp::now();
    let deadline = Instant::now() + plan.limit;
    let listings = plan.zones.into_iter().map(|zone| async move {
        let result = match tokio::time::timeout_at(deadline.into(), tpu.list_nodes(&zone, deadline)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::new(FailureClass::Transient, format!("not done within {:.1} s", plan.limit.as_secs_f64()))),
        };
        if let Err(failure) = &result {
            tracing::warn!("listing the nodes of {zone} failed: {failure}; its slots are held, the next poll tries again");
        }
        Listing { zone, result }
    });
    Poll { began, listings: futures::future::join_all(listings).await }
}
