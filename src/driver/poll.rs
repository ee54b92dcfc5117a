//! Which zones a poll lists, and how long it may take.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::fleet::Fleet;

/// With more zones than this in use, one listing of all of them costs less.
const ZONES_MAX: usize = 8;

/// A listing has this long at least, however short the poll interval is.
const LEAST: Duration = Duration::from_secs(2);

/// The listings of one poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The zones to list, each on its own; `-` stands for all.
    pub zones: Vec<String>,
    /// A listing that takes longer has failed.
    pub limit: Duration,
}

/// Lists the zones in use, within one poll interval: the next poll should be on time.
pub fn plan(fleet: &Fleet) -> Plan {
    let configured = fleet.settings.slots.values().flat_map(|s| s.zones.iter());
    let zones: BTreeSet<&String> = configured
        .chain(fleet.slots.values().map(|r| &r.zone))
        .chain(fleet.ledger.strays.values().map(|stray| &stray.zone))
        .collect();
    let zones = if zones.len() > ZONES_MAX {
        vec!["-".to_owned()]
    } else {
        zones.into_iter().cloned().collect()
    };
    Plan { zones, limit: fleet.settings.poll.every.max(LEAST) }
}
