//! The commands of an operator, given at any time and without the lock: it goes into the store,
//! and whoever holds the lock takes it from there within one poll.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ids::Incarnation;

/// One command of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Made with it, so that it works once.
    pub id: String,
    /// When, by the clock of the person's machine.
    pub at: Timestamp,
    /// Who gave it.
    pub who: String,
    /// Why, in the person's words.
    #[serde(default)]
    pub reason: Option<String>,
    /// Which one.
    #[serde(flatten)]
    pub kind: CommandKind,
}

/// The commands. No slot means all of them, now and later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "lever", rename_all = "snake_case")]
pub enum CommandKind {
    /// Nothing is begun on a slot; a create that was not sent waits as well.
    Pause {
        /// The slot.
        slot: Option<String>,
        /// It ends by itself then.
        until: Option<Timestamp>,
    },
    /// Takes a pause back.
    Resume {
        /// The slot.
        slot: Option<String>,
        /// Makes a node that carries another owner's name this watchdog's.
        adopt: bool,
    },
    /// Gives a slot its attempts back, and whatever else was used up.
    Retry {
        /// The slot.
        slot: String,
        /// Accepts a newest complete checkpoint of this step or later, though a later one is
        /// recorded.
        from: Option<u64>,
    },
    /// Calls off what is owed to a slot: nothing is created for it until `retry`.
    Forget {
        /// The slot.
        slot: String,
        /// Its specification, attempts and recorded checkpoint are dropped as well.
        #[serde(default)]
        purge: bool,
    },
    /// Replaces the slot's node though nothing condemns it.
    Recreate {
        /// The slot.
        slot: String,
        /// The incarnation that is meant; none where the slot has no node.
        #[serde(default)]
        incarnation: Option<Incarnation>,
    },
    /// Starts the slot's job again on the node that is there.
    Relaunch {
        /// The slot.
        slot: String,
    },
    /// Journals the success of the slot's job: nothing is wanted until `retry`.
    Done {
        /// The slot.
        slot: String,
    },
    /// Takes all that is ours out of the metadata of the slot's node, and leaves it alone until
    /// `retry`.
    Release {
        /// The slot.
        slot: String,
    },
    /// A person asks the API for a simulated maintenance event on the slot's node: it is written down
    /// before, and nothing is done about it here.
    Drill {
        /// The slot.
        slot: String,
    },
    /// Closes the storm breaker: the present state is judged from scratch.
    BreakerReset,
}

impl CommandKind {
    /// The slot that it names; none where it means all of them, or no slot.
    pub fn slot(&self) -> Option<&str> {
        match self {
            CommandKind::Pause { slot, .. } | CommandKind::Resume { slot, .. } => slot.as_deref(),
            CommandKind::Retry { slot, .. }
            | CommandKind::Forget { slot, .. }
            | CommandKind::Recreate { slot, .. }
            | CommandKind::Relaunch { slot }
            | CommandKind::Release { slot }
            | CommandKind::Drill { slot }
            | CommandKind::Done { slot } => Some(slot),
            CommandKind::BreakerReset => None,
        }
    }
}

/// A pause, as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who wanted it.
    pub who: String,
    /// Why.
    pub reason: Option<String>,
    /// It ends by itself then.
    pub until: Option<Timestamp>,
    /// When it was given; a former version did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

impl Pause {
    /// Whether it still holds.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}
