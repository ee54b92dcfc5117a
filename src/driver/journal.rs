//! The order of writes: commits that fall together become one write, and the requests that a commit
//! allows are handed out only when that write has succeeded. Renewing the lock is an empty commit.
//!
//! After a failed write the journal is read again (load, operator commands, an empty commit) before
//! anything else is written: memory was ahead of it, and what was decided since rests on what was
//! not stored.

use std::time::Duration;

use super::message::{Instruction, Level, Message, StoreCall};
use super::queue::Queue;
use super::term::Term;
use crate::model::action::{Action, Record};
use crate::model::command::Command;
use crate::model::event::Event;
use crate::store::{Batch, StoreError, Stored};

/// A store that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// The meaning of a store call's answer.
#[derive(Debug)]
pub enum Finished {
    /// Durable: send these requests.
    Written(Vec<Action>),
    /// Not durable, as far as is known: none of these requests is sent.
    Failed(StoreError, Vec<Action>),
    /// The store works again, and this is what it holds.
    Reloaded(Box<Stored>, Vec<Command>),
    /// It still does not work.
    StillFailing(StoreError),
    /// Operator commands, each handed out once.
    Commands(Vec<Command>),
    /// One part of several is done.
    Underway,
}

/// The store call under way.
#[derive(Debug)]
enum Busy {
    Commands,
    Write(Vec<Action>),
    // The three parts of reading the journal again.
    Load,
    LoadCommands(Box<Stored>),
    Probe(Box<Stored>, Result<Vec<Command>, StoreError>),
}

/// Commits that wait to be written, and those being written.
#[derive(Debug)]
pub struct Journal {
    queue: Queue,
    busy: Option<Busy>,
    pace: Duration,
    ttl: Duration,
    term: Term,
    // Since boot: when the last write began and ended.
    began: Duration,
    ended: Duration,
    commands_wanted: bool,
    // Operator commands were read since the last write.
    commands_read: bool,
}

impl Journal {
    /// Over a store whose lock is not held yet.
    pub fn new(pace: Duration, ttl: Duration) -> Self {
        Journal {
            queue: Queue::default(),
            busy: None,
            pace,
            ttl,
            term: Term::default(),
            began: Duration::ZERO,
            ended: Duration::ZERO,
            commands_wanted: false,
            commands_read: false,
        }
    }

    /// The present term, for those who send on behalf of what was written.
    pub fn term(&self) -> &Term {
        &self.term
    }

    /// The lock was taken by a call that began at `began`.
    pub fn taken(&mut self, began: Duration, now: Duration) {
        (self.began, self.ended) = (began, now);
        (self.queue, self.busy) = (Queue::default(), None);
        (self.commands_wanted, self.commands_read) = (false, false);
        self.term.next();
        self.term.renewed(began, self.ttl);
    }

    /// The lock is lost: what was not written never will be, what was handed out is not sent.
    pub fn lost(&mut self) {
        self.term.end();
        (self.queue, self.busy) = (Queue::default(), None);
    }

    /// Operator commands are read as soon as the store is free.
    pub fn want_commands(&mut self) {
        self.commands_wanted = true;
    }

    /// Operator commands that were not handed out before.
    pub fn hand_out(
        &mut self,
        commands: Result<Vec<Command>, StoreError>,
        out: &mut Vec<Instruction>,
    ) -> Vec<Command> {
        match commands {
            Ok(commands) => self.queue.fresh(commands),
            Err(error) => {
                let text = format!("{error}; operator commands are read again with the next poll");
                out.push(Instruction::Say(Level::Warn, text));
                Vec::new()
            }
        }
    }

    /// Adds a commit to the next write.
    pub fn push(&mut self, records: Vec<Record>, events: Vec<Event>, then: Vec<Action>) {
        self.queue.push(records, events, then);
    }

    /// A write failed, and the journal has not been read again yet.
    pub fn is_failing(&self) -> bool {
        self.queue.is_failing()
    }

    /// Whether a store call is under way.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Nothing is being written, and nothing waits to be.
    pub fn is_quiet(&self) -> bool {
        !self.is_busy() && !self.queue.waits() && !self.queue.is_failing()
    }

    /// Whether a store call hangs: a service manager should know.
    pub fn hangs(&self, now: Duration) -> bool {
        self.is_busy() && now.saturating_sub(self.began) > self.ttl * 2
    }

    /// When [`Journal::begin`] has something to do; never while a call is under way.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        if self.is_busy() {
            return None;
        }
        if self.queue.is_failing() {
            return Some(self.ended + RETRY);
        }
        Some(if self.commands_wanted { now } else { self.write_due() })
    }

    fn write_due(&self) -> Duration {
        let soonest = self.ended + self.pace;
        let renewal = self.began + self.ttl / 3;
        if self.queue.waits() { soonest } else { soonest.max(renewal) }
    }

    /// The call that is due: a write, operator commands or, after a failure, reading the journal
    /// again.
    pub fn begin(&mut self, now: Duration) -> Option<StoreCall> {
        if self.due(now).is_none_or(|at| at > now) {
            return None;
        }
        if self.queue.is_failing() {
            self.began = now;
            self.busy = Some(Busy::Load);
            return Some(StoreCall::Load);
        }
        // However slow the store is: a write that is due, renewals too, waits for one read of
        // commands at most.
        let overdue = self.commands_read && self.write_due() <= now;
        if self.commands_wanted && !overdue {
            (self.commands_wanted, self.commands_read) = (false, true);
            self.busy = Some(Busy::Commands);
            return Some(StoreCall::Commands);
        }
        self.commands_read = false;
        self.began = now;
        let (batch, then) = self.queue.take();
        self.busy = Some(Busy::Write(then));
        Some(StoreCall::Commit(batch))
    }

    /// Takes in the answer to the call under way. May ask for the next part of reading the journal
    /// again.
    pub fn answered(
        &mut self,
        answer: Message,
        now: Duration,
        out: &mut Vec<Instruction>,
    ) -> Finished {
        if !matches!(answer, Message::Commands(_)) {
            self.ended = now;
        }
        match (self.busy.take(), answer) {
            (Some(Busy::Commands), Message::Commands(commands)) => {
                Finished::Commands(self.hand_out(commands, out))
            }
            (Some(Busy::Write(then)), Message::Written(Ok(()))) => {
                self.term.renewed(self.began, self.ttl);
                Finished::Written(then)
            }
            (Some(Busy::Write(then)), Message::Written(Err(error))) => {
                Finished::Failed(error, self.queue.failed(then))
            }
            (Some(Busy::Load), Message::Loaded(Ok(stored))) => {
                self.next(Busy::LoadCommands(stored), StoreCall::Commands, now, out)
            }
            (Some(Busy::LoadCommands(stored)), Message::Commands(commands)) => {
                // Commands that can't be read stop nothing, unless some were handed out and lost
                // with the failed write.
                if let Err(error) = &commands
                    && self.queue.has_forgotten_commands()
                {
                    self.ended = now;
                    return Finished::StillFailing(error.clone());
                }
                // An empty commit tells whether the store can be written and the lock is still
                // held.
                let probe = StoreCall::Commit(Batch::default());
                self.next(Busy::Probe(stored, commands), probe, now, out)
            }
            (Some(Busy::Probe(stored, commands)), Message::Written(Ok(()))) => {
                self.queue.reloaded();
                self.term.renewed(self.began, self.ttl);
                // A command whose effect was not stored takes effect again, before anything else.
                Finished::Reloaded(stored, self.hand_out(commands, out))
            }
            (Some(Busy::Probe(..)), Message::Written(Err(error)))
            | (Some(Busy::Load), Message::Loaded(Err(error))) => Finished::StillFailing(error),
            (busy, _) => {
                // An answer that nothing asked for changes nothing.
                self.busy = busy;
                Finished::Underway
            }
        }
    }

    fn next(
        &mut self,
        busy: Busy,
        call: StoreCall,
        now: Duration,
        out: &mut Vec<Instruction>,
    ) -> Finished {
        self.busy = Some(busy);
        self.began = now;
        out.push(Instruction::Store(call));
        Finished::Underway
    }

    /// The last write: what happened, unless requests wait that are not sent any longer.
    /// None where the journal would have to be read again first: the lock ends by itself.
    pub fn last(&mut self, give_back: bool, now: Duration) -> Option<StoreCall> {
        if self.is_busy() || self.queue.is_failing() {
            return None;
        }
        self.began = now;
        self.busy = Some(Busy::Write(Vec::new()));
        let batch = self.queue.last();
        Some(if give_back { StoreCall::Release(batch) } else { StoreCall::Commit(batch) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::command::CommandKind;
    use crate::model::slot::SlotRecord;
    use crate::store::StoreFailure;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn journal() -> Journal {
        let mut journal = Journal::new(at(1), TTL);
        journal.taken(at(0), at(0));
        journal
    }

    fn slot() -> Vec<Record> {
        vec![Record::Slot(Box::new(SlotRecord::new("a", "z", jiff::Timestamp::UNIX_EPOCH)))]
    }

    fn create() -> Vec<Action> {
        let body = serde_json::Value::Null;
        vec![Action::Create {
            slot: "a".into(),
            zone: "z".into(),
            body,
            request_id: None,
            filling: Default::default(),
        }]
    }

    fn command() -> Command {
        let kind = CommandKind::Pause { slot: Some("a".into()), until: None };
        let at = jiff::Timestamp::UNIX_EPOCH;
        Command { id: "1".into(), at, who: "ada".into(), reason: None, kind }
    }

    fn unavailable() -> StoreError {
        let (failure, location) = (StoreFailure::Unavailable, "here".to_owned());
        StoreError { failure, location, message: "it can't be reached".into() }
    }

    #[test]
    fn s11_requests_are_handed_out_after_their_write_and_only_while_the_lock_is_held() {
        let mut journal = journal();
        journal.push(slot(), Vec::new(), create());
        assert!(journal.begin(at(0)).is_none(), "the last write has just ended");
        let Some(StoreCall::Commit(batch)) = journal.begin(at(1)) else { panic!("a write is due") };
        assert_eq!((batch.records.len(), journal.begin(at(2)).is_none()), (1, true));
        let mut out = Vec::new();
        let written = journal.answered(Message::Written(Ok(())), at(3), &mut out);
        assert!(matches!(written, Finished::Written(then) if then == create()));
        // It counts from the moment the write began, not from its answer.
        assert!(journal.term().may_send(at(20)) && !journal.term().may_send(at(21)));
        let handed_out = journal.term().clone();
        journal.lost();
        assert!(!handed_out.may_send(at(4)));
    }

    #[test]
    fn what_was_decided_since_a_failed_write_is_thrown_away_with_it() {
        let mut journal = journal();
        journal.push(slot(), Vec::new(), create());
        assert!(journal.begin(at(1)).is_some());
        journal.push(slot(), Vec::new(), create());
        let mut out = Vec::new();
        let failed = journal.answered(Message::Written(Err(unavailable())), at(2), &mut out);
        assert!(matches!(failed, Finished::Failed(_, unsent) if unsent.len() == 2));
        assert!(journal.is_failing() && journal.due(at(2)) == Some(at(3)));
        assert!(matches!(journal.begin(at(3)), Some(StoreCall::Load)));
        let again = journal.answered(Message::Loaded(Err(unavailable())), at(4), &mut out);
        assert!(matches!(again, Finished::StillFailing(_)) && journal.due(at(4)) == Some(at(5)));
    }

    #[test]
    fn a_command_whose_write_failed_works_again_when_the_journal_was_read_again() {
        let mut journal = journal();
        journal.want_commands();
        assert!(matches!(journal.begin(at(0)), Some(StoreCall::Commands)));
        let mut out = Vec::new();
        let read = |journal: &mut Journal, out: &mut _| {
            journal.answered(Message::Commands(Ok(vec![command()])), at(1), out)
        };
        assert!(matches!(read(&mut journal, &mut out), Finished::Commands(c) if c.len() == 1));
        journal.push(slot(), Vec::new(), Vec::new());
        assert!(journal.begin(at(1)).is_some());
        journal.answered(Message::Written(Err(unavailable())), at(1), &mut out);
        // Its last part fails the first time: what was handed out by then is handed out once more.
        for probe in [Err(unavailable()), Ok(())] {
            assert!(matches!(journal.begin(at(9)), Some(StoreCall::Load)));
            let stored = Message::Loaded(Ok(Box::default()));
            assert!(matches!(journal.answered(stored, at(2), &mut out), Finished::Underway));
            assert!(matches!(read(&mut journal, &mut out), Finished::Underway));
            let works = probe.is_ok();
            match journal.answered(Message::Written(probe), at(2), &mut out) {
                Finished::Reloaded(_, commands) => assert!(works && commands == [command()]),
                Finished::StillFailing(_) => assert!(!works),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_write_that_is_due_waits_for_one_read_of_commands_at_most() {
        let (mut journal, mut out) = (journal(), Vec::new());
        for (second, commands_first) in (10..).zip([true, false, true, false]) {
            journal.want_commands();
            journal.push(slot(), Vec::new(), Vec::new());
            let call = journal.begin(at(second)).expect("something is due");
            assert_eq!(matches!(call, StoreCall::Commands), commands_first);
            let answer = if commands_first {
                Message::Commands(Ok(Vec::new()))
            } else {
                Message::Written(Ok(()))
            };
            journal.answered(answer, at(second), &mut out);
        }
        // With nothing to write, commands are read each time.
        for second in 20..23 {
            journal.want_commands();
            assert!(matches!(journal.begin(at(second)), Some(StoreCall::Commands)));
            journal.answered(Message::Commands(Ok(Vec::new())), at(second), &mut out);
        }
    }

    #[test]
    fn commands_that_cannot_be_read_stop_nothing_unless_some_were_forgotten() {
        for forgotten in [false, true] {
            let (mut journal, mut out) = (journal(), Vec::new());
            if forgotten {
                assert_eq!(journal.hand_out(Ok(vec![command()]), &mut out).len(), 1);
            }
            journal.push(slot(), Vec::new(), Vec::new());
            assert!(journal.begin(at(1)).is_some());
            journal.answered(Message::Written(Err(unavailable())), at(1), &mut out);
            assert!(journal.begin(at(2)).is_some());
            journal.answered(Message::Loaded(Ok(Box::default())), at(2), &mut out);
            let read = journal.answered(Message::Commands(Err(unavailable())), at(2), &mut out);
            assert_eq!(matches!(read, Finished::StillFailing(_)), forgotten);
            assert_eq!(matches!(read, Finished::Underway), !forgotten);
        }
    }

    #[test]
    fn the_last_write_holds_what_happened_but_no_intent_of_a_request_that_is_not_sent() {
        for (then, written) in [(Vec::new(), 1), (create(), 0)] {
            let mut journal = journal();
            journal.push(slot(), Vec::new(), then);
            let Some(StoreCall::Release(batch)) = journal.last(true, at(1)) else { panic!() };
            assert_eq!(batch.records.len(), written);
        }
    }
}
