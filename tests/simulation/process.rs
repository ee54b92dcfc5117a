//! The watchdogs of a world: the product's driver, turned in virtual time. Crashes and pauses are
//! aimed at what matters here: writes that allow something, requests right before and after they
//! leave, answers.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tpu_watchdog::driver::Driver;
use tpu_watchdog::driver::message::{Claimant, Instruction, Message, Mode, StoreCall, StoreFacts};
use tpu_watchdog::driver::now::Now;
use tpu_watchdog::driver::term::Term;
use tpu_watchdog::google::http::CONNECT_MAX;
use tpu_watchdog::model::action::{Action, CallOutcome, Input, Look, Reading};
use tpu_watchdog::model::settings::Settings;

use crate::fault::Fault;
use crate::network::transient;
use crate::setup::*;
use crate::world::{Arrival, Task, World, brief};

/// Noon of a Monday: where every world begins.
pub const EPOCH_MS: Ms = 1_780_315_200_000;

/// Virtual time by a clock that is off by so much.
pub fn wall(now: Ms, offset: Ms) -> Timestamp {
    Timestamp::from_millisecond(EPOCH_MS + now + offset).expect("worlds are short")
}

/// Virtual time as a machine counts it since its boot.
pub fn boot(now: Ms) -> Duration {
    Duration::from_millis(now.unsigned_abs())
}

/// Milliseconds of a duration.
pub fn ms(duration: Duration) -> Ms {
    Ms::try_from(duration.as_millis()).unwrap_or(Ms::MAX / 4)
}

/// Whose call or answer it is: what is for an earlier life goes nowhere, and the driver itself
/// knows its terms apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub pid: usize,
    pub life: u32,
    pub term: u64,
}

pub struct Process {
    pub kind: Kind,
    pub life: u32,
    /// How far its clock is off.
    pub offset: Ms,
    /// When its clock was last set.
    pub clock_set: Ms,
    pub paused_until: Ms,
    /// What came while it stood still comes then, whatever happens to the world.
    pub awake_at: Ms,
    /// None while it is down.
    pub driver: Option<Box<Driver>>,
    /// When it is woken next.
    pub wake_at: Option<Ms>,
    /// The config it was started with, or read last.
    pub config: usize,
    /// Since when its config says `dry_run`.
    pub dry_since: Option<Ms>,
    /// Slots that its config lacks, since when.
    pub left: BTreeMap<String, Ms>,
}

impl Process {
    pub fn new(kind: Kind) -> Process {
        Process {
            kind,
            life: 0,
            offset: 0,
            clock_set: Ms::MIN / 2,
            paused_until: 0,
            awake_at: 0,
            driver: None,
            wake_at: None,
            config: 0,
            dry_since: None,
            left: BTreeMap::new(),
        }
    }

    pub fn tag(&self, pid: usize) -> Tag {
        Tag { pid, life: self.life, term: self.driver.as_ref().map_or(0, |driver| driver.term()) }
    }

    pub fn is_up(&self) -> bool {
        self.driver.is_some()
    }

    /// The driver of a process that holds the lock, as far as it knows.
    pub fn leading(&self) -> Option<&Driver> {
        self.driver.as_deref().filter(|driver| driver.leads())
    }

    fn stands_by(&self) -> bool {
        self.is_up() && self.leading().is_none()
    }
}

impl World {
    pub fn start(&mut self, pid: usize) {
        let scheduled = self.processes[pid].kind == Kind::Schedule;
        if scheduled {
            self.at(self.now + 5 * MINUTE, Task::Start(pid));
        }
        if self.processes[pid].is_up() {
            return;
        }
        self.processes[pid].life += 1;
        if self.calm {
            self.processes[pid].config = 0;
        }
        let mode = if scheduled {
            let deadline = boot(self.now + self.rng.i64(90..240) * 1000);
            Mode::Once { deadline, end: deadline + Duration::from_secs(8) }
        } else {
            Mode::Serve
        };
        // In memory it is paced as a bucket is.
        let pace = Duration::from_secs(if self.setup.sqlite { 0 } else { 1 });
        let facts = StoreFacts { location: "simulation".into(), pace };
        let holder = format!("watchdog-{pid}-{}", self.processes[pid].life);
        let claimant = Claimant { holder, ttl: self.setup.ttl };
        let settings = self.config(pid);
        let driver = Driver::new(settings, facts, claimant, mode, boot(self.now));
        self.processes[pid].driver = Some(Box::new(driver));
        self.tell(|| format!("watchdog {pid} starts"));
        self.drive(pid, Message::Woke);
    }

    /// The process is gone with everything in its memory.
    pub fn end(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        process.driver = None;
        process.life += 1;
        (process.paused_until, process.awake_at, process.wake_at) = (0, 0, None);
        self.shelf.close(pid);
    }

    pub fn crash(&mut self, pid: usize) {
        self.tell(|| format!("watchdog {pid} crashes"));
        // Another that stands by, and is awake, has to follow.
        let follows =
            |p: &Process| p.stands_by() && p.kind == Kind::Service && p.awake_at < self.now;
        if self.calm
            && self.processes[pid].leading().is_some()
            && self.processes.iter().any(follows)
        {
            self.alone_since = Some(self.now);
        }
        self.end(pid);
        if self.processes[pid].kind == Kind::Service {
            self.soon(500, 90_000, Task::Start(pid));
        }
    }

    /// It stands still for longer than its lease. Returns a wait that ends before it is awake
    /// again.
    pub fn pause(&mut self, pid: usize) -> Ms {
        let long = self.rng.i64(5_000..180_000);
        self.processes[pid].paused_until = self.now + long;
        self.processes[pid].awake_at = self.now + long;
        self.tell(|| format!("watchdog {pid} stands still for {} s", long / 1000));
        300
    }

    /// Reads a process's config, which it goes by from now on.
    fn config(&mut self, pid: usize) -> Settings {
        let mut settings = self.configs[self.processes[pid].config].clone();
        // The store's own id counts.
        settings.owner.clear();
        let (now, process) = (self.now, &mut self.processes[pid]);
        process.dry_since = settings.dry_run.then(|| process.dry_since.unwrap_or(now));
        process.left.retain(|name, _| !settings.slots.contains_key(name));
        for name in
            self.setup.settings.slots.keys().filter(|name| !settings.slots.contains_key(*name))
        {
            process.left.entry(name.clone()).or_insert(now);
        }
        settings
    }

    /// The other config is put in place, and the process is told to read it.
    pub fn change_config(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        process.config = 1 - process.config;
        if process.is_up() {
            let tag = process.tag(pid);
            self.at(self.now, Task::Reload(tag));
        }
    }

    pub fn reload(&mut self, tag: Tag) {
        let settings = self.config(tag.pid);
        self.tell(|| format!("watchdog {} reads its config again", tag.pid));
        self.drive(tag.pid, Message::Reload(Box::new(settings)));
    }

    /// One turn of a driver, and everything that follows from it.
    pub fn drive(&mut self, pid: usize, message: Message) {
        let now = Now { boot: boot(self.now), wall: wall(self.now, self.processes[pid].offset) };
        let Some(driver) = self.processes[pid].driver.as_mut() else { return };
        let instructions = driver.on(message, now);
        self.turns += 1;
        let tag = self.processes[pid].tag(pid);
        for instruction in instructions {
            match instruction {
                Instruction::Store(call) => self.call_store(tag, call),
                Instruction::Poll { plan, .. } => {
                    self.soon(20, 900, Task::ServePoll(tag, plan, self.now));
                }
                Instruction::Query { query, .. } => self.query(tag, query, now.wall),
                Instruction::Send { term, action } => {
                    let most = if self.strikes(Fault::Pause, 8) { self.pause(pid) } else { 300 };
                    if term.may_send(now.boot) {
                        self.hands_out(&action);
                    }
                    self.soon(1, most, Task::Send(tag, term, Box::new(action)));
                }
                Instruction::Say(_, line) => self.tell(|| format!("watchdog {pid}: {line}")),
                Instruction::Show(_) | Instruction::CatchUp(_) => {}
                Instruction::End(end) => {
                    self.tell(|| format!("watchdog {pid} leaves: {end:?}"));
                    if self.processes[pid].kind == Kind::Service {
                        self.soon(500, 90_000, Task::Start(pid));
                    }
                    return self.end(pid);
                }
            }
        }
        self.wake_later(pid);
    }

    fn wake_later(&mut self, pid: usize) {
        let Some(driver) = &self.processes[pid].driver else { return };
        let due = driver.due(boot(self.now));
        let at = Ms::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap_or(Ms::MAX);
        let at = at.max(self.now + 1);
        if self.processes[pid].wake_at != Some(at) {
            self.processes[pid].wake_at = Some(at);
            self.at(at, Task::Wake(self.processes[pid].tag(pid), at));
        }
    }

    fn query(&mut self, tag: Tag, query: Look, now: Timestamp) {
        let wait = query.at().map_or(0, |at| at.duration_since(now).as_millis().max(0) as Ms);
        let latency = self.latency();
        let asked = self.now + wait;
        self.at(asked + latency, Task::Serve(tag, Box::new(query), asked));
    }

    pub fn latency(&mut self) -> Ms {
        if self.strikes(Fault::SlowRead, 12) {
            self.rng.i64(3_000..25_000)
        } else {
            self.rng.i64(20..300)
        }
    }

    /// A call to the store reaches it, and its answer comes back, both after a while.
    fn call_store(&mut self, tag: Tag, call: StoreCall) {
        let slow = self.strikes(Fault::SlowStore, 6);
        let (most, least) = if slow { (25_000, 500) } else { (30, 1) };
        let first = self.rng.i64(least..=most);
        let second = self.rng.i64(least..=most);
        // Aimed at what matters: writes that allow something.
        let one_in = if self.shelf.allows(&call) { 8 } else { 400 };
        if self.strikes(Fault::CommitCrash, one_in) {
            let at = self.now + self.rng.i64(0..=first + second);
            self.at(at, Task::Crash(tag.pid));
        }
        self.at(self.now + first, Task::AtStore(tag, Box::new(call), self.now, second));
    }

    /// Answers a poll, a query or a request of a process.
    pub fn deliver(&mut self, tag: Tag, input: Input, asked: Ms) {
        let pid = tag.pid;
        if input.is_outcome() && self.strikes(Fault::AnswerCrash, 5) {
            return self.crash(pid);
        }
        let present = self.processes[pid].leading().is_some_and(|d| d.term() == tag.term);
        let read = match &input {
            Input::Got { slot, reading, .. } if !matches!(reading, Reading::Unread(_)) => {
                Some(slot.clone()).filter(|_| present)
            }
            _ => None,
        };
        // Before the turn: a request that follows from it may leave in the same moment.
        if let Some(slot) = &read {
            let known = self.known(slot);
            known.got = known.got.max(Some(asked));
        }
        self.drive(pid, Message::Answer { term: tag.term, input: Box::new(input) });
        if let Some(slot) = read {
            self.settles(pid, &slot);
        }
    }

    /// A request is about to leave.
    pub fn send(&mut self, tag: Tag, term: &Term, action: Action) {
        let pid = tag.pid;
        let slot = action.slot().to_owned();
        if self.strikes(Fault::SendCrash, 10) {
            return self.crash(pid);
        }
        let now = Now { boot: boot(self.now), wall: wall(self.now, self.processes[pid].offset) };
        let refused = match term.permits(&action, now, CONNECT_MAX) {
            Err(not_sent) => Some(not_sent),
            Ok(()) if self.strikes(Fault::CallNotSent, 8) => {
                Some(CallOutcome::NotSent(transient("there is no access token")))
            }
            Ok(()) => None,
        };
        if let Some(outcome) = refused {
            let latency = self.latency();
            let answer = Box::new(action.answer(outcome));
            return self.at(self.now + latency, Task::Deliver(tag, answer, self.now));
        }
        let present = self.processes[pid].leading().is_some_and(|d| d.term() == term.number());
        self.check("S9", &slot, present, || "it was handed out in a term that is over".to_owned());
        self.leaves(tag, &action);
        self.tell(|| format!("watchdog {pid} sends {}", brief(&action)));
        self.on_the_wire(tag, action);
        if self.strikes(Fault::SendCrash, 10) {
            self.crash(pid);
        }
    }

    /// It has left: it arrives, late or twice or never, and is answered or not.
    fn on_the_wire(&mut self, tag: Tag, action: Action) {
        let lost_before = self.strikes(Fault::CallLostBefore, 8);
        let late = !lost_before && self.strikes(Fault::CallLate, 8);
        let lost_after = self.strikes(Fault::CallLostAfter, 8);
        let answered = !(lost_after || late);
        let arrival = Arrival { sent: self.now, answered, late, again: false };
        if !lost_before {
            // Half of the late ones come long after they were given up and read back.
            let delay = match (late, late && self.rng.bool()) {
                (false, _) => self.rng.i64(10..200),
                (true, false) => self.rng.i64(2_000..19_000),
                (true, true) => self.rng.i64(20_000..3 * MINUTE),
            };
            if self.strikes(Fault::CallDuplicated, 10) {
                let again = Arrival { answered: false, again: true, ..arrival };
                let after = if self.rng.bool() { 900 } else { self.rng.i64(900..3 * MINUTE) };
                let second = Task::Arrive(tag, Box::new(action.clone()), again);
                self.at(self.now + delay + after, second);
            }
            self.at(self.now + delay, Task::Arrive(tag, Box::new(action.clone()), arrival));
        }
        if !answered || lost_before {
            let outcome = CallOutcome::Unknown(transient("no answer within 20 s"));
            let answer = Box::new(action.answer(outcome));
            self.at(self.now + 20_000, Task::Deliver(tag, answer, self.now));
        }
    }
}
