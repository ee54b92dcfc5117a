//! The next queued resource of a slot whose capacity ends by itself (flex-start): it is asked for before that end, under
//! an id of its own, and fills the slot from then on.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids::{Incarnation, RunOrder};
use super::step::Call;
use super::time::elapsed;

const SUFFIX: &str = "-next";

/// The id of what comes after this one. Two ids take turns: the former is free by then.
pub fn next_id(id: &str) -> String {
    id.strip_suffix(SUFFIX).map_or_else(|| format!("{id}{SUFFIX}"), str::to_owned)
}

/// A queued resource that was asked for ahead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// Its id.
    pub id: String,
    /// Its zone.
    pub zone: String,
    /// When the present capacity ends: it is not granted before.
    pub from: Timestamp,
    /// When its create was decided.
    pub asked_at: Timestamp,
    /// The run order that it is made with.
    pub order: RunOrder,
    /// The job that its machines are made for, as [`super::job::JobState::ordered`] has it.
    pub ordered: Option<String>,
    /// How far its create is; none once it came to nothing: it is not asked for again before that end.
    pub call: Option<Call>,
    /// Its state and identity, as last listed.
    pub seen: Option<(String, Incarnation)>,
    /// Since when complete listings have lacked it.
    #[serde(default)]
    pub unseen: Option<Timestamp>,
    /// It was told that it was granted, and has not taken the slot over.
    #[serde(default)]
    pub told: bool,
}

impl Ahead {
    /// Whether it may be granted.
    pub fn is_live(&self) -> bool {
        self.call.is_some()
    }

    /// Whether a create that is owed waits for it: the time from which it may be granted has come, or comes within `soon`.
    pub fn is_awaited(&self, now: Timestamp, soon: Duration) -> bool {
        now >= self.from || elapsed(now, self.from) <= soon
    }
}

/// The queued resource that fills a slot in the place of the one that the config names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilledBy {
    /// Its id.
    pub id: String,
    /// The one that the config names.
    pub of: String,
    /// The queueing policy as it was learned: that of a request ahead has the end of another one in it.
    pub policy: Option<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ids_take_turns() {
        assert_eq!((next_id("qr"), next_id("qr-next")), ("qr-next".to_owned(), "qr".to_owned()));
    }
}
