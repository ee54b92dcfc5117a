//! The watchdog of a fleet: the product's driver, turned in virtual time over a real store. It dies where
//! a story says so, and what it had under way dies with it.

use std::time::Duration;

use tpu_watchdog::driver::Driver;
use tpu_watchdog::driver::message::{Claimant, Instruction, Message, Mode, StoreCall, StoreFacts};
use tpu_watchdog::driver::now::Now;
use tpu_watchdog::driver::poll::Plan;
use tpu_watchdog::driver::term::Term;
use tpu_watchdog::google::http::CONNECT_MAX;
use tpu_watchdog::model::action::{Action, CallOutcome, Input, Listing, Look, Poll};
use tpu_watchdog::model::command::{Command, CommandKind};
use tpu_watchdog::model::event::{Event, What};
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::fleet::Fleet;
use tpu_watchdog::store::Batch;

use crate::world::{Ms, World, at, wait};

/// The answer of the store takes so long, and that of the API.
const STORE: Ms = 5;
const API: Ms = 200;

/// The calls and waits of a process; they die with it.
pub enum Task {
    Woke,
    /// The store, or the API, has answered.
    Told(Box<Message>),
    Poll(u64, Plan),
    Query(u64, Box<Look>),
    Send(Term, Box<Action>),
    /// A patch goes to one node after the other; the answer of the last one.
    Patch(Term, Box<Action>, Vec<String>, Option<CallOutcome>),
    Store(StoreCall),
}

/// The node has what it is to be told.
pub struct HasIt;

/// The nodes before it have it.
fn unknown(failed: CallOutcome) -> CallOutcome {
    match failed {
        CallOutcome::Refused(why) | CallOutcome::Unknown(why) | CallOutcome::NotSent(why) => {
            CallOutcome::Unknown(why)
        }
        accepted => accepted,
    }
}

impl World {
    /// A watchdog begins with what the store holds.
    pub fn start(&mut self, name: &str) {
        let facts = StoreFacts { location: "fleet".into(), pace: Duration::ZERO };
        self.starts += 1;
        let holder = format!("{name}-{}", self.starts);
        let claimant = Claimant { holder, ttl: Duration::from_secs(30) };
        // The store's own id counts.
        let driver =
            Driver::new(self.settings.clone(), facts, claimant, Mode::Serve, self.clock().boot);
        self.driver = Some(Box::new(driver));
        self.drive(Message::Woke);
    }

    /// The process dies with all that it has under way, and another one begins.
    pub fn restart(&mut self) {
        self.stop();
        self.start("next");
    }

    /// The process dies with all that it has under way.
    pub fn stop(&mut self) {
        self.dies_at = None;
        self.agenda.retain(|_, task| !matches!(task, crate::world::Task::Process(_)));
    }

    /// The config was changed, and is read again.
    pub fn reload(&mut self) {
        self.drive(Message::Reload(Box::new(self.settings.clone())));
    }

    /// An operator gives this command.
    pub fn command(&mut self, kind: CommandKind) {
        self.commands += 1;
        let (id, at) = (self.commands.to_string(), at(self.now));
        let command = Command { id, at, who: "ada".into(), reason: None, kind };
        wait(self.store.submit(&command)).unwrap();
    }

    /// The fleet as the watchdog has it.
    pub fn fleet(&self) -> &Fleet {
        self.driver.as_ref().expect("a watchdog was started").fleet()
    }

    fn clock(&self) -> Now {
        Now { boot: Duration::from_millis(self.now.unsigned_abs()), wall: at(self.now) }
    }

    /// One turn of the driver, and all that follows from it.
    fn drive(&mut self, message: Message) {
        let now = self.clock();
        let Some(driver) = self.driver.as_mut() else { return };
        let instructions = driver.on(message, now);
        let due = driver.due(now.boot);
        for instruction in instructions {
            match instruction {
                Instruction::Store(call) => self.has(STORE, Task::Store(call)),
                Instruction::Poll { term, plan } => self.has(100, Task::Poll(term, plan)),
                Instruction::Query { term, query, .. } => {
                    let asked =
                        query.at().map_or(0, |due| due.duration_since(now.wall).as_millis());
                    let after = Ms::try_from(asked).unwrap().max(0) + 100;
                    self.has(after, Task::Query(term, Box::new(query)));
                }
                Instruction::Send { term, action } => {
                    let nodes = match &action {
                        Action::Patch { nodes, .. } => nodes.clone(),
                        Action::Create { .. } | Action::Delete { .. } => Vec::new(),
                    };
                    let action = Box::new(action);
                    self.has(
                        100,
                        match nodes.is_empty() {
                            true => Task::Send(term, action),
                            false => Task::Patch(term, action, nodes, None),
                        },
                    );
                }
                Instruction::Say(_, line) => self.note(&line),
                Instruction::Show(_) | Instruction::CatchUp(_) => {}
                Instruction::End(end) => panic!("{end:?}\n{}", self.log.join("\n")),
            }
        }
        let due = Ms::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap_or(Ms::MAX / 2);
        // An earlier wake-up that was asked for before does no harm.
        if self.wakes_at.replace(due) != Some(due) {
            self.has(due.max(self.now + 1) - self.now, Task::Woke);
        }
    }

    fn has(&mut self, after: Ms, task: Task) {
        self.at(self.now + after, crate::world::Task::Process(task));
    }

    /// Something that the process has under way comes about.
    pub fn happens_to_process(&mut self, task: Task) {
        match task {
            Task::Woke => {
                self.wakes_at = None;
                self.drive(Message::Woke);
            }
            Task::Told(message) => self.drive(*message),
            Task::Poll(term, plan) => {
                let poll = self.poll(plan);
                self.answers(term, Input::Polled(Box::new(poll)));
            }
            Task::Query(term, query) => {
                let answer = self.look(*query);
                self.answers(term, answer);
            }
            Task::Send(term, action) => {
                let outcome = match term.permits(&action, self.clock(), CONNECT_MAX) {
                    Err(not_sent) => Some(not_sent),
                    Ok(()) => self.carry_out(&action),
                };
                match outcome {
                    Some(outcome) => self.answers(term.number(), action.answer(outcome)),
                    None => self.restart(),
                }
            }
            Task::Patch(term, action, nodes, last) => self.patch(term, action, nodes, last),
            Task::Store(call) => {
                let answer = self.store_answers(call);
                self.has(STORE, Task::Told(Box::new(answer)));
            }
        }
    }

    /// The next node of a patch, and half a second later the one after it.
    fn patch(
        &mut self,
        term: Term,
        action: Box<Action>,
        mut nodes: Vec<String>,
        last: Option<CallOutcome>,
    ) {
        let node = nodes.remove(0);
        let sent = match term.permits(&action, self.clock(), CONNECT_MAX) {
            Err(not_sent) => Some(Ok(not_sent)),
            Ok(()) => self.patch_one(&action, &node),
        };
        let outcome = match sent {
            None => return self.restart(),
            Some(Ok(accepted @ CallOutcome::Accepted(_))) => Some(accepted),
            Some(Err(HasIt)) => last,
            Some(Ok(failed)) => {
                nodes.clear();
                Some(if last.is_some() { unknown(failed) } else { failed })
            }
        };
        if !nodes.is_empty() {
            return self.has(500, Task::Patch(term, action, nodes, outcome));
        }
        let all_have_it = || Failure::new(FailureClass::Conflict, "each node has it");
        let outcome = outcome.unwrap_or_else(|| CallOutcome::Unknown(all_have_it()));
        self.answers(term.number(), action.answer(outcome));
    }

    fn answers(&mut self, term: u64, input: Input) {
        let message = Message::Answer { term, input: Box::new(input) };
        self.has(API, Task::Told(Box::new(message)));
    }

    fn poll(&mut self, plan: Plan) -> Poll {
        let listing = |zone: &String| Listing {
            zone: zone.clone(),
            requests: plan.requests.contains(zone).then(|| Ok(self.requests(zone))),
            result: self.list(zone).map(Into::into),
        };
        let listings = plan.zones.iter().map(listing).collect();
        let jobs = plan.jobs.iter().map(|(region, kinds)| self.list_jobs(region, kinds)).collect();
        Poll { began: at(self.now), listings, jobs }
    }

    fn store_answers(&mut self, call: StoreCall) -> Message {
        match call {
            StoreCall::Load => Message::Loaded(wait(self.store.load()).map(Box::new)),
            StoreCall::Commands => Message::Commands(wait(self.store.commands())),
            StoreCall::Take { seen, holder, ttl } => {
                Message::Taken(wait(self.store.take(seen.as_ref(), &holder, ttl)))
            }
            StoreCall::Commit(batch) => {
                self.tells(&batch);
                Message::Written(wait(self.store.commit(&batch)))
            }
            StoreCall::Release(batch) => {
                self.tells(&batch);
                Message::Written(wait(self.store.release(&batch)))
            }
        }
    }

    fn tells(&mut self, batch: &Batch) {
        for Event { slot, message, what, .. } in &batch.events {
            let slot = slot.clone().unwrap_or_default();
            self.note(&format!("{slot}: {message}"));
            if matches!(what, What::Recovered { .. }) {
                self.recovered.insert(slot);
            }
        }
    }

    fn note(&mut self, line: &str) {
        self.log.push(format!("{:>7} {line}", self.now / 1000));
    }
}
