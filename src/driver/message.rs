//! Messages to the driver and its instructions: the whole border between deciding and acting.

use std::time::Duration;

use super::poll::Plan;
use super::term::Term;
use crate::model::action::{Action, Input, Look};
use crate::model::command::Command;
use crate::model::lease::Lease;
use crate::model::settings::Settings;
use crate::model::tally::Tally;
use crate::store::{Batch, StoreError, Stored};

/// How long the driver works. Deadlines are times since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Until told to stop.
    Serve,
    /// One cycle for a scheduler: until nothing is due before `deadline`; it has left by `end`.
    Once {
        /// Nothing new begins after this.
        deadline: Duration,
        /// The last write has ended by then.
        end: Duration,
    },
    /// One poll and the queries that follow from it; nothing is written. Settings must say
    /// `dry_run`.
    Look {
        /// It has ended by then, whatever is still unanswered.
        deadline: Duration,
    },
}

impl Mode {
    /// When it has to end, if it has to.
    pub fn deadline(self) -> Option<Duration> {
        match self {
            Mode::Serve => None,
            Mode::Once { deadline, .. } | Mode::Look { deadline } => Some(deadline),
        }
    }

    /// Until when a standby waits for its store: longer while it is `taking` the lock, which may be
    /// its own by then.
    pub fn last_answer(self, taking: bool) -> Duration {
        match self {
            Mode::Serve => Duration::MAX,
            Mode::Once { end, .. } if taking => end,
            Mode::Once { deadline, .. } | Mode::Look { deadline } => deadline,
        }
    }
}

/// Who wants the lock, and for how long the lock outlives its holder.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// Unique to this process.
    pub holder: String,
    /// `lease`.
    pub ttl: Duration,
}

/// Facts about the store.
#[derive(Debug, Clone)]
pub struct StoreFacts {
    /// As in `state`.
    pub location: String,
    /// The least time between the ends of two writes.
    pub pace: Duration,
}

/// Something that happened.
#[derive(Debug)]
pub enum Message {
    /// The time of [`super::Driver::due`] has come, or may have.
    Woke,
    /// The answer to [`StoreCall::Load`].
    Loaded(Result<Box<Stored>, StoreError>),
    /// The answer to [`StoreCall::Commands`].
    Commands(Result<Vec<Command>, StoreError>),
    /// The answer to [`StoreCall::Take`]; false: another process was faster.
    Taken(Result<bool, StoreError>),
    /// The answer to [`StoreCall::Commit`] or [`StoreCall::Release`].
    Written(Result<(), StoreError>),
    /// The answer to a poll, a query or a request of the term with this number.
    Answer {
        /// The number of the term that asked.
        term: u64,
        /// The answer.
        input: Box<Input>,
    },
    /// The config was loaded again.
    Reload(Box<Settings>),
    /// Finish what was sent, and leave.
    Stop,
}

/// A call to the store. One is under way at a time, and each gets exactly one answer.
#[derive(Debug)]
pub enum StoreCall {
    /// [`crate::store::Store::load`].
    Load,
    /// [`crate::store::Store::commands`].
    Commands,
    /// [`crate::store::Store::take`].
    Take {
        /// The lease that is taken over.
        seen: Option<Lease>,
        /// The new holder.
        holder: String,
        /// Its `lease`.
        ttl: Duration,
    },
    /// [`crate::store::Store::commit`]. The shell adds the sums and, once durable, reports the
    /// events.
    Commit(Batch),
    /// [`crate::store::Store::release`]: the same, and the lock is given back.
    Release(Batch),
}

/// One thing that the shell has to do; several are done in their order.
#[derive(Debug)]
pub enum Instruction {
    /// Call the store.
    Store(StoreCall),
    /// List zones.
    Poll {
        /// To be named in the answer.
        term: u64,
        /// The zones.
        plan: Plan,
    },
    /// Read something.
    Query {
        /// To be named in the answer.
        term: u64,
        /// The read.
        query: Look,
        /// Give up after this.
        limit: Duration,
    },
    /// Send a request whose intent is durable, if [`Term::permits`] it at the moment it leaves.
    Send {
        /// The term that may send it.
        term: Term,
        /// The request.
        action: Action,
    },
    /// Write a line to the log.
    Say(Level, String),
    /// Show the present state of the slots.
    Show(Shown),
    /// Take over these counters: the process leads now, or has read its journal again.
    CatchUp(Tally),
    /// There is nothing more to do.
    End(End),
}

/// How important a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Ordinary.
    Info,
    /// Something that may need attention.
    Warn,
    /// Something that does.
    Error,
}

/// The slots to show.
#[derive(Debug)]
pub enum Shown {
    /// The fleet as this process leads it.
    Leader,
    /// The slots as the leader's journal has them.
    Standby(Box<Stored>, Box<Lease>),
    /// It is not known who leads.
    Unknown {
        /// The store does not answer.
        store_failing: bool,
    },
}

/// How the driver ended.
#[derive(Debug, Clone)]
pub enum End {
    /// It led, and left in order.
    Done,
    /// Another watchdog leads, or whether one does can't be told in time: the line to print.
    Another(String),
    /// It was stopped before it led.
    Stopped,
    /// The state can't be used.
    Failed(StoreError),
}

/// Whether two errors differ by numbers alone: a client tells how long a call took, and an outage of
/// hours is no line a second.
pub fn says_the_same(one: &str, other: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let told = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
        text.split_whitespace().filter(told).map(str::to_owned).collect()
    };
    words(one) == words(other)
}
