//! The lock: who may act, and for how long without a renewal.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The lock as the store keeps it. Every commit is conditional on its holder and epoch, and renews
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who holds it: host or Cloud Run execution, process, and a random part.
    pub holder: String,
    /// Grows by one with each holder: what an older one writes is refused.
    pub epoch: u64,
    /// Grows with each commit: that it stands still is how a taker knows a holder to be gone.
    pub renewals: u64,
    /// The holder's `lease`, in milliseconds.
    pub ttl_ms: u64,
    /// Given back: anybody may take it at once.
    pub released: bool,
}

/// A process that holds the lock, or held it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Its name in the lease.
    pub holder: String,
    /// When it began to decide.
    pub since: Timestamp,
    /// The digest of the config that it has loaded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub config: String,
}

impl Lease {
    /// The lease that follows `before`.
    pub fn next(before: Option<&Lease>, holder: &str, ttl: Duration) -> Lease {
        Lease {
            holder: holder.to_owned(),
            epoch: before.map_or(0, |lease| lease.epoch) + 1,
            renewals: 0,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            released: false,
        }
    }

    /// How long it outlives its last renewal.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// The same term of leadership, whatever its renewals.
    pub fn is_held_by(&self, holder: &str, epoch: u64) -> bool {
        !self.released && self.holder == holder && self.epoch == epoch
    }
}

/// How long a holder may go on sending after the start of its last successful renewal: a third of
/// the lease is left then.
pub fn sending_ends_after(ttl: Duration) -> Duration {
    ttl * 2 / 3
}
