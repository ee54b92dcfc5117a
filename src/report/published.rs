//! The snapshot that the shell publishes after each turn, and the HTTP handlers read.

use std::sync::{Arc, RwLock};

use jiff::Timestamp;

use crate::model::action::{NodeList, Poll};
use crate::model::submission::JobListing;
use crate::model::view::StatusDocument;

/// Whether this process may act.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lock {
    /// Not known yet.
    #[default]
    Unknown,
    /// It is ours.
    Held,
    /// Another process's, by that name: the slots are as its journal has them.
    StandingBy(String),
}

/// Whether the TPUs could be read since the start of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Reading {
    /// No poll is done.
    #[default]
    NotYet,
    /// No poll has read a zone: the last failure by its zone and class, since the words of an
    /// answer are not for everyone who may ask.
    Failed(String),
    /// A poll has read a zone. It stays so: slots that can't be read later are held one by one.
    Done,
}

impl Reading {
    /// Takes in a poll.
    pub fn polled(&mut self, poll: &Poll) {
        if *self == Reading::Done {
            return;
        }
        let failure = |zone: &str, why: &str| Reading::Failed(format!("{zone}: {why}"));
        *self = Reading::Done;
        for listing in &poll.listings {
            *self = match &listing.result {
                Ok(NodeList { unreachable, .. }) if unreachable.contains(&listing.zone) => {
                    failure(&listing.zone, "unreachable")
                }
                Ok(_) => return *self = Reading::Done,
                Err(error) => failure(&listing.zone, error.class.name()),
            };
        }
        for JobListing { region, result } in &poll.jobs {
            *self = match result {
                Ok(_) => return *self = Reading::Done,
                Err(error) => failure(region, error.class.name()),
            };
        }
    }
}

/// The state of the service as of its last turn.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The slots.
    pub status: StatusDocument,
    /// The end of the last turn of the loop.
    pub turned_at: Option<Timestamp>,
    /// Polls completed, whether or not every zone answered.
    pub polls: u64,
    /// Whether the TPUs could be read.
    pub reading: Reading,
    /// The journal can't be written: nothing is done.
    pub store_failing: bool,
    /// Journaled calls without a known result.
    pub intents_pending: usize,
    /// Judged slots that may still go into recovery.
    pub budget_remaining: usize,
    /// `dry_run`.
    pub dry_run: bool,
    /// Who may act.
    pub lock: Lock,
}

/// Shared between the shell and the handlers.
#[derive(Debug, Clone, Default)]
pub struct Published(Arc<RwLock<Arc<Snapshot>>>);

impl Published {
    /// Replaces the snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        *self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// The present snapshot.
    pub fn get(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::action::Listing;
    use crate::model::failure::{Failure, FailureClass};

    fn poll(results: Vec<Result<Vec<&str>, FailureClass>>) -> Poll {
        let listing = |result: Result<Vec<&str>, FailureClass>| Listing {
            zone: "z".into(),
            result: result
                .map(|unreachable| NodeList {
                    unreachable: unreachable.into_iter().map(str::to_owned).collect(),
                    ..NodeList::default()
                })
                .map_err(|class| Failure::new(class, "secret words")),
            requests: None,
        };
        Poll {
            began: Timestamp::UNIX_EPOCH,
            listings: results.into_iter().map(listing).collect(),
            jobs: Vec::new(),
        }
    }

    #[test]
    fn one_zone_that_was_read_once_is_enough() {
        let mut reading = Reading::NotYet;
        reading.polled(&poll(vec![Err(FailureClass::Permission)]));
        assert_eq!(reading, Reading::Failed("z: permission".into()));
        reading.polled(&poll(vec![Ok(vec!["z"]), Ok(vec!["z"])]));
        assert_eq!(reading, Reading::Failed("z: unreachable".into()));
        reading.polled(&poll(vec![Err(FailureClass::Transient), Ok(vec![]), Ok(vec!["z"])]));
        assert_eq!(reading, Reading::Done);
        reading.polled(&poll(vec![Err(FailureClass::Transient)]));
        assert_eq!(reading, Reading::Done);
        // Training jobs alone.
        let jobs = |result| JobListing { region: "r".into(), result };
        let mut reading = Reading::NotYet;
        let refused = Err(Failure::new(FailureClass::Permission, "secret words"));
        reading.polled(&Poll { jobs: vec![jobs(refused)], ..poll(vec![]) });
        assert_eq!(reading, Reading::Failed("r: permission".into()));
        reading.polled(&Poll { jobs: vec![jobs(Ok(vec![]))], ..poll(vec![]) });
        assert_eq!(reading, Reading::Done);
    }
}
