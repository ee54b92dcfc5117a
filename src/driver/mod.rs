//! The shell without I/O: who may act, what is written in which order, what is sent, when to poll,
//! when to leave.
//!
//! [`Driver::on`] takes what happened and returns what to do; [`Driver::due`] says when it wants to
//! be woken. Tokio turns it in production (`shell`), the simulation turns the same one in virtual
//! time. It does no I/O and reads no clock.
//!
//! A process is a standby until it holds the lock, then leads, and at the end leaves. Leading is
//! one loop over `core::step`: answers go in, commits go to the journal, requests leave when
//! their commit is durable. When the journal can't be written, everything decided since the last
//! write is thrown away with it and the journal is read again: a delete whose commit fails is not
//! sent, and the next poll decides again.

mod journal;
mod leaving;
pub mod message;
pub mod now;
pub mod patience;
pub mod poll;
mod queue;
mod standby;
pub mod term;

#[cfg(test)]
mod tests;

use std::time::Duration;

use self::journal::{Finished, Journal};
use self::leaving::{LAST_WRITE, Leaving, Next};
use self::message::{Claimant, End, Instruction, Level, Message, Mode, Shown, StoreFacts};
use self::now::Now;
use self::standby::{Claimed, Standby, Taken};
use crate::core::{next_wake, step};
use crate::model::action::{Action, Effect, Input};
use crate::model::command::Command;
use crate::model::fleet::{Fleet, Ledger};
use crate::model::settings::Settings;
use crate::model::time::{after, elapsed};
use crate::store::{StoreError, StoreFailure};

/// The core is turned at least this often.
const LONGEST: Duration = Duration::from_secs(60);
#[derive(Debug)]
enum Role {
    Standby(Box<Standby>),
    Leading,
    Leaving(Leaving),
    Ended,
}

/// A watchdog process, as far as it decides.
#[derive(Debug)]
pub struct Driver {
    // As configured; the fleet's own may hold slots that are leaving.
    settings: Settings,
    claimant: Claimant,
    facts: StoreFacts,
    mode: Mode,
    role: Role,
    fleet: Fleet,
    journal: Journal,
    next_poll: Duration,
    polling: bool,
    // Polls, queries and requests without an answer, and the requests among them.
    under_way: usize,
    requests: usize,
    core_due: Duration,
    // The last turn of the core.
    turned: Duration,
    // The last finished poll, or answer of the store to a standby.
    progressed: Duration,
    // Told to stop while the lock was being taken: its answer is waited for until then.
    stop_by: Option<Duration>,
    // Why the journal fails, as it was said last: an outage of hours is no line a second.
    failing: Option<String>,
}

impl Driver {
    /// Over a store whose lock is not held. An empty `settings.owner` means the store's own.
    pub fn new(
        settings: Settings,
        facts: StoreFacts,
        claimant: Claimant,
        mode: Mode,
        now: Duration,
    ) -> Self {
        Driver {
            fleet: Fleet::new(settings.clone(), Default::default(), Ledger::default()),
            role: Role::Standby(Box::new(Standby::new(claimant.clone(), facts.clone(), now))),
            journal: Journal::new(facts.pace, claimant.ttl),
            settings,
            claimant,
            facts,
            mode,
            next_poll: now,
            polling: false,
            under_way: 0,
            requests: 0,
            core_due: now,
            turned: now,
            progressed: now,
            stop_by: None,
            failing: None,
        }
    }

    /// The fleet as this process has it: of its last term, if it does not lead.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Whether this process holds the lock, as far as it knows.
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Leading | Role::Leaving(_))
    }

    /// The number of the present term.
    pub fn term(&self) -> u64 {
        self.journal.term().number()
    }

    /// The journal can't be written: nothing is decided.
    pub fn store_fails(&self) -> bool {
        self.journal.is_failing()
    }

    /// Who this process is.
    pub fn holder(&self) -> &str {
        &self.claimant.holder
    }

    /// The config as it was loaded last.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether it makes progress: false when polls stopped ending, or a store call hangs.
    pub fn is_alive(&self, now: Duration) -> bool {
        let poll = self.settings.poll.every.max(self.settings.poll.timeout);
        let patience = poll.max(self.claimant.ttl) * 2 + Duration::from_secs(30);
        now.saturating_sub(self.progressed) < patience && !self.journal.hangs(now)
    }

    /// When it wants to be woken at the latest, since boot.
    pub fn due(&self, now: Duration) -> Duration {
        let never = now + LONGEST;
        let deadline = self.mode.deadline();
        let due = match &self.role {
            Role::Standby(standby) => {
                let last = Some(self.mode.last_answer(standby.is_taking()));
                [standby.due(), last, self.stop_by, None]
            }
            Role::Leading if self.looks() => [deadline, None, None, None],
            Role::Leading => {
                let poll = Some(self.next_poll).filter(|_| !self.polling);
                [Some(self.core_due), self.journal.due(now), poll, deadline]
            }
            Role::Leaving(leaving) => [Some(leaving.due()), None, None, None],
            Role::Ended => [None; 4],
        };
        due.into_iter().flatten().fold(never, Duration::min)
    }

    /// One turn: takes in what happened, and returns what to do about it.
    pub fn on(&mut self, message: Message, now: Now) -> Vec<Instruction> {
        let mut out = Vec::new();
        match message {
            Message::Stop => self.stop(now, &mut out),
            Message::Reload(settings) => self.reload(*settings, now, &mut out),
            Message::Answer { term, input } => self.answer(term, *input, now, &mut out),
            Message::Woke if now.boot >= self.core_due => self.tick(now, &mut out),
            Message::Woke => {}
            answer => self.store_answered(answer, now, &mut out),
        }
        self.advance(now, &mut out);
        out
    }

    fn looks(&self) -> bool {
        matches!(self.mode, Mode::Look { .. })
    }

    fn stop(&mut self, now: Now, out: &mut Vec<Instruction>) {
        match &self.role {
            // The lock may be ours already: it is given back when the answer is there.
            Role::Standby(standby) if standby.is_taking() => {
                self.stop_by.get_or_insert(now.boot + LAST_WRITE);
            }
            Role::Standby(_) => self.end(End::Stopped, out),
            Role::Leading => self.leave(now),
            Role::Leaving(_) | Role::Ended => {}
        }
    }

    fn reload(&mut self, mut settings: Settings, now: Now, out: &mut Vec<Instruction>) {
        if settings.owner.is_empty() {
            settings.owner.clone_from(&self.settings.owner);
        }
        settings.decided_by.clone_from(&self.claimant.holder);
        if settings.poll.every != self.settings.poll.every {
            self.next_poll = now.boot;
        }
        self.settings = settings;
        if matches!(self.role, Role::Leading) {
            self.turn(Input::Configured(Box::new(self.settings.clone())), now, out);
        }
    }

    fn answer(&mut self, term: u64, input: Input, now: Now, out: &mut Vec<Instruction>) {
        // Answers to what an earlier term asked mean nothing to this one.
        if term != self.term() || !self.leads() {
            return;
        }
        self.under_way = self.under_way.saturating_sub(1);
        match input {
            _ if input.is_outcome() => self.requests = self.requests.saturating_sub(1),
            Input::Polled(_) => (self.polling, self.progressed) = (false, now.boot),
            _ => {}
        }
        // On the way out only outcomes count: anything else could lead to a request that nothing
        // would wait for.
        if matches!(self.role, Role::Leading) || input.is_outcome() {
            self.turn(input, now, out);
        }
    }

    fn tick(&mut self, now: Now, out: &mut Vec<Instruction>) {
        self.turned = now.boot;
        if matches!(self.role, Role::Leading) && !self.looks() {
            self.turn(Input::Tick, now, out);
        }
    }

    /// One turn of the core: its commit goes into the next write, its queries leave at once.
    fn turn(&mut self, input: Input, now: Now, out: &mut Vec<Instruction>) {
        out.push(Instruction::Show(Shown::Leader));
        self.turned = now.boot;
        if self.journal.is_failing() {
            // The outcome of this request is read back from the API once the journal works again.
            if let Input::Called { slot, .. } | Input::Ordered { slot, .. } = &input {
                self.fleet.forget_call(slot);
            }
            return;
        }
        let term = self.term();
        for effect in step(&mut self.fleet, input, now.wall) {
            match effect {
                Effect::Look(query) => {
                    self.under_way += 1;
                    let limit = poll::limit(&query, &self.settings.poll);
                    out.push(Instruction::Query { term, query, limit });
                }
                Effect::Commit { records, events, then } => {
                    self.journal.push(records, events, then)
                }
            }
        }
    }

    fn store_answered(&mut self, answer: Message, now: Now, out: &mut Vec<Instruction>) {
        match &mut self.role {
            Role::Standby(standby) => {
                self.progressed = now.boot;
                match standby.answered(answer, self.mode, now.boot, out) {
                    Claimed::Waiting => {}
                    Claimed::Held(taken) => self.lead(*taken, now, out),
                    Claimed::Another(line) => self.end(End::Another(line), out),
                    Claimed::Failed(error) => self.end(End::Failed(error), out),
                }
                if self.stop_by.is_some() {
                    self.stop(now, out);
                }
            }
            Role::Leading => {
                let finished = self.journal.answered(answer, now.boot, out);
                self.finished(finished, now, out);
            }
            Role::Leaving(_) => {
                let finished = self.journal.answered(answer, now.boot, out);
                self.finished_while_leaving(finished, now, out);
            }
            Role::Ended => {}
        }
    }

    /// The lock is ours: the journal is folded into a fleet, and a new term begins.
    fn lead(&mut self, taken: Taken, now: Now, out: &mut Vec<Instruction>) {
        if self.settings.owner.is_empty() {
            self.settings.owner.clone_from(&taken.stored.owner);
        }
        self.settings.decided_by.clone_from(&self.claimant.holder);
        out.push(Instruction::CatchUp(taken.stored.tally));
        self.fleet = Fleet::new(self.settings.clone(), taken.stored.slots, taken.stored.ledger);
        (self.under_way, self.requests, self.polling) = (0, 0, false);
        self.next_poll = now.boot;
        self.role = Role::Leading;
        self.journal.taken(taken.began, now.boot);
        let commands = self.journal.hand_out(Ok(taken.commands), out);
        self.begun(commands, now, out);
    }

    /// A pause that was given meanwhile holds what the first turn would send.
    fn begun(&mut self, commands: Vec<Command>, now: Now, out: &mut Vec<Instruction>) {
        self.turn(Input::Begun(Box::new(self.settings.clone()), commands), now, out);
    }

    fn commanded(&mut self, commands: Vec<Command>, now: Now, out: &mut Vec<Instruction>) {
        if !commands.is_empty() {
            self.turn(Input::Commands(commands), now, out);
        }
    }

    fn finished(&mut self, finished: Finished, now: Now, out: &mut Vec<Instruction>) {
        let error = match finished {
            Finished::Underway => return,
            Finished::Written(then) => {
                let (intended, called_off) = queue::apart(&self.fleet, then, now.wall);
                self.send(intended, out);
                return called_off.into_iter().for_each(|answer| self.turn(answer, now, out));
            }
            Finished::Commands(commands) => return self.commanded(commands, now, out),
            Finished::Reloaded(stored, commands) => {
                out.push(Instruction::CatchUp(stored.tally));
                self.fleet.read_again(stored.slots, stored.ledger);
                self.failing = None;
                let text = "the journal can be written again";
                out.push(Instruction::Say(Level::Info, text.to_owned()));
                return self.begun(commands, now, out);
            }
            Finished::Failed(error, then) => {
                self.not_written(&error, &then, out);
                error
            }
            Finished::StillFailing(error) => {
                let text = format!("{error}; it is tried again every second");
                let last = self.failing.replace(text.clone());
                let new = last.is_none_or(|last| !message::says_the_same(&last, &text));
                out.extend(new.then_some(Instruction::Say(Level::Error, text)));
                error
            }
        };
        match error.failure {
            StoreFailure::Fenced => self.lost(now, out),
            StoreFailure::Refused => self.end(End::Failed(error), out),
            StoreFailure::Unavailable => {}
        }
    }

    fn send(&mut self, then: Vec<Action>, out: &mut Vec<Instruction>) {
        for action in then {
            self.under_way += 1;
            self.requests += 1;
            out.push(Instruction::Send { term: self.journal.term().clone(), action });
        }
    }

    /// A write failed: memory is ahead of the journal, and nothing goes on until both agree again.
    fn not_written(&mut self, error: &StoreError, then: &[Action], out: &mut Vec<Instruction>) {
        let unsent = then.len();
        let text = format!(
            "{error}; requests not sent because of it: {unsent}; re-reading the state before any decision"
        );
        out.push(Instruction::Say(Level::Error, text));
        for action in then.iter().filter(|action| !action.is_of_stray()) {
            self.fleet.forget_call(action.slot());
        }
        out.push(Instruction::Show(Shown::Leader));
    }

    /// Another process holds the lock now.
    fn lost(&mut self, now: Now, out: &mut Vec<Instruction>) {
        self.journal.lost();
        out.push(Instruction::Show(Shown::Unknown { store_failing: false }));
        let text = "lost the lock; standing by, no decisions until it is reacquired";
        out.push(Instruction::Say(Level::Warn, text.to_owned()));
        if self.mode == Mode::Serve {
            let standby = Standby::new(self.claimant.clone(), self.facts.clone(), now.boot);
            self.role = Role::Standby(Box::new(standby));
        } else {
            let line = "another watchdog took the lock; this run leaves the rest to it";
            self.end(End::Another(line.to_owned()), out);
        }
    }

    /// Does what is due now.
    fn advance(&mut self, now: Now, out: &mut Vec<Instruction>) {
        let over = self.mode.deadline().is_some_and(|at| now.boot >= at);
        match &mut self.role {
            Role::Standby(_) if self.stop_by.is_some_and(|at| now.boot >= at) => {
                self.end(End::Stopped, out);
            }
            Role::Standby(standby) if self.mode.last_answer(standby.is_taking()) <= now.boot => {
                let error = standby.out_of_time();
                self.end(End::Failed(error), out);
            }
            Role::Standby(standby) => out.extend(standby.begin(now.boot).map(Instruction::Store)),
            Role::Leading => self.keep_going(over, now, out),
            Role::Leaving(_) => self.part(now, out),
            Role::Ended => {}
        }
    }

    fn keep_going(&mut self, over: bool, now: Now, out: &mut Vec<Instruction>) {
        if over || self.has_finished(now) {
            self.leave(now);
            return self.part(now, out);
        }
        if now.boot >= self.next_poll && !self.polling && !(self.looks() && self.fleet.polls > 0) {
            self.polling = true;
            self.next_poll = now.boot + self.settings.poll.every;
            self.journal.want_commands();
            self.under_way += 1;
            out.push(Instruction::Poll { term: self.term(), plan: poll::plan(&self.fleet) });
        }
        if !self.looks() {
            out.extend(self.journal.begin(now.boot).map(Instruction::Store));
        }
        let wake = next_wake(&self.fleet).filter(|_| !self.journal.is_failing());
        let wake = wake.map(|at| now.boot + elapsed(now.wall, at).max(Duration::from_millis(1)));
        // Renewals and other messages come more often, and turn nothing.
        let latest = self.turned + LONGEST;
        self.core_due = wake.map_or(latest, |wake| wake.min(latest));
    }

    /// Whether a cycle with a deadline has nothing left to do.
    fn has_finished(&self, now: Now) -> bool {
        let Some(deadline) = self.mode.deadline() else { return false };
        let answered = !self.polling && self.under_way == 0 && self.fleet.polls > 0;
        let end = after(now.wall, deadline.saturating_sub(now.boot));
        answered
            && (self.looks() || (self.journal.is_quiet() && !leaving::has_work(&self.fleet, end)))
    }

    /// Nothing new begins; answers to what was sent are waited for.
    fn leave(&mut self, now: Now) {
        let end = match self.mode {
            Mode::Once { end, .. } => Some(end),
            Mode::Serve | Mode::Look { .. } => None,
        };
        self.role = Role::Leaving(Leaving::new(end, now.boot));
    }

    /// Leaves as far as is possible now.
    fn part(&mut self, now: Now, out: &mut Vec<Instruction>) {
        if self.looks() {
            return self.end(End::Done, out);
        }
        let Role::Leaving(leaving) = &mut self.role else { return };
        match leaving.next(&mut self.journal, self.requests, now.boot) {
            Next::Wait => {}
            Next::Call(call) => out.push(Instruction::Store(call)),
            Next::Done => self.end(End::Done, out),
            Next::OutOfTime => {
                let text = "the last write is not done in time; the next start reads back what was under way";
                out.push(Instruction::Say(Level::Error, text.to_owned()));
                self.end(End::Done, out);
            }
        }
    }

    fn finished_while_leaving(&mut self, finished: Finished, now: Now, out: &mut Vec<Instruction>) {
        let Role::Leaving(leaving) = &self.role else { return };
        match finished {
            // Requests are sent while their answers are waited for; later the next start finds
            // their intents.
            Finished::Written(then) if !leaving.is_writing() => {
                self.send(queue::apart(&self.fleet, then, now.wall).0, out)
            }
            Finished::Failed(error, _) if leaving.has_written() => {
                let text = format!(
                    "{error}; the lock ends by itself, the next start reads back what was under way"
                );
                out.push(Instruction::Say(Level::Error, text));
            }
            Finished::Failed(error, then) => self.not_written(&error, &then, out),
            Finished::StillFailing(error) => {
                out.push(Instruction::Say(Level::Error, error.to_string()))
            }
            // An answer that comes now is taken in by what the journal holds.
            Finished::Reloaded(stored, _) => self.fleet.read_again(stored.slots, stored.ledger),
            Finished::Written(_) | Finished::Commands(_) | Finished::Underway => {}
        }
    }

    fn end(&mut self, end: End, out: &mut Vec<Instruction>) {
        if self.leads() && !matches!(end, End::Another(_)) {
            out.push(Instruction::Show(Shown::Leader));
        }
        self.role = Role::Ended;
        out.push(Instruction::End(end));
    }
}
