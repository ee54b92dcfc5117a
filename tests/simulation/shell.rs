//! What a watchdog's shell does, without its tasks: it takes the lock, polls, turns, writes, sends,
//! and leaves. Crashes and pauses are aimed at what matters here: writes that allow something,
//! requests right before and after they leave, answers.

use tpu_watchdog::decide::{next_wake, step};
use tpu_watchdog::model::action::{Action, CallOutcome, Effect, Input, Look, Reading};
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::fleet::Fleet;
use tpu_watchdog::model::lease::{Claim as Turn, Lease, Patience, sending_ends_after};
use tpu_watchdog::model::settings::Settings;
use tpu_watchdog::store::{StoreFailure, Stored};
use tpu_watchdog::watchdog::queue::Queue;

use crate::fault::Fault;
use crate::process::*;
use crate::setup::*;
use crate::shelf::{Claim, unavailable};
use crate::world::{Arrival, Task, World, brief};

impl World {
    pub fn start(&mut self, pid: usize) {
        let scheduled = self.processes[pid].kind == Kind::Schedule;
        if scheduled {
            self.at(self.now + 5 * MINUTE, Task::Start(pid));
        }
        if self.processes[pid].is_up() {
            return;
        }
        let ttl = self.setup.ttl;
        let config = if self.calm { 0 } else { self.processes[pid].config };
        let process = &mut self.processes[pid];
        process.life += 1;
        process.config = config;
        process.role = Role::StandingBy(Patience::new(ttl, std::time::Duration::ZERO));
        let tag = process.tag(pid);
        if scheduled {
            let deadline = self.now + self.rng.i64(90..240) * 1000;
            self.processes[pid].deadline = Some(deadline);
            self.at(deadline, Task::Deadline(tag));
        }
        self.tell(|| format!("watchdog {pid} starts"));
        self.at(self.now, Task::Lock(tag));
    }

    /// The process is gone with everything in its memory.
    pub fn end(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        process.role = Role::Down;
        process.life += 1;
        process.tenure += 1;
        (process.paused_until, process.awake_at) = (0, 0);
        self.shelf.close(pid);
    }

    pub fn crash(&mut self, pid: usize) {
        self.tell(|| format!("watchdog {pid} crashes"));
        // Somebody who stands by, and is awake, has to follow.
        let stands_by = |p: &Process| {
            matches!(p.role, Role::StandingBy(_))
                && p.kind == Kind::Service
                && p.awake_at < self.now
        };
        if self.calm && self.processes[pid].held().is_some() && self.processes.iter().any(stands_by)
        {
            self.alone_since = Some(self.now);
        }
        self.end(pid);
        if self.processes[pid].kind == Kind::Service {
            self.soon(500, 90_000, Task::Start(pid));
        }
    }

    pub fn store_fails(&mut self) -> bool {
        self.now < self.store_down_until
    }

    pub fn look_at_lock(&mut self, tag: Tag) {
        let pid = tag.pid;
        let lease = if self.store_fails() { Err(unavailable()) } else { self.shelf.lease(pid) };
        let Ok(lease) = lease else { return self.at(self.now + 1000, Task::Lock(tag)) };
        let now = std::time::Duration::from_millis(u64::try_from(self.now).unwrap_or(0));
        let Role::StandingBy(patience) = &mut self.processes[pid].role else { return };
        match patience.look(lease.as_ref(), now) {
            Turn::Wait(wait) => self.at(self.now + ms(wait).max(20), Task::Lock(tag)),
            // Between the look and the take others look and take, too.
            Turn::Take => {
                let Ok(stored) = self.shelf.load(pid) else {
                    return self.at(self.now + 1000, Task::Lock(tag));
                };
                let wait = if self.strikes(Fault::SlowStore, 6) {
                    self.rng.i64(500..25_000)
                } else {
                    self.rng.i64(1..30)
                };
                self.at(self.now + wait, Task::Take(tag, Box::new(stored), self.now));
            }
        }
    }

    /// The take that a look at `stored` led to arrives; `began`: when it was sent.
    pub fn take_the_lock(&mut self, tag: Tag, stored: Stored, began: Ms) {
        let pid = tag.pid;
        if !matches!(self.processes[pid].role, Role::StandingBy(_)) {
            return;
        }
        if self.store_fails() || self.now < self.store_full_until {
            return self.at(self.now + 1000, Task::Lock(tag));
        }
        let (ttl, holder) = (self.setup.ttl, format!("watchdog-{pid}-{}", tag.life));
        // What was seen is outdated when somebody else comes in between.
        let conflict = self.strikes(Fault::StoreConflict, 3);
        let taken =
            !conflict && self.shelf.take(pid, stored.lease.as_ref(), &holder, ttl).unwrap_or(false);
        if !taken {
            self.tell(|| format!("watchdog {pid} came too late to take the lock"));
            return self.at(self.now + 50, Task::Lock(tag));
        }
        let epoch = Lease::next(stored.lease.as_ref(), &holder, ttl).epoch;
        self.tell(|| format!("watchdog {pid} holds the lock (epoch {epoch})"));
        let settings = self.config(pid);
        self.holds(epoch, began);
        let process = &mut self.processes[pid];
        process.tenure += 1;
        let fleet = Fleet::new(settings.clone(), stored.slots, stored.ledger);
        process.role = Role::Holding(Box::new(Holding {
            fleet,
            queue: Queue::default(),
            claim: Claim { holder, epoch },
            write: None,
            sending_until: began + ms(sending_ends_after(ttl)),
            polling: false,
            mutations: 0,
            wake_at: None,
            leaving: false,
        }));
        let tag = process.tag(pid);
        self.holder = Some(tag);
        self.at(self.now + ms(ttl) / 3, Task::Renew(tag));
        if let Some(deadline) = self.processes[pid].deadline {
            self.at(deadline, Task::Deadline(tag));
        }
        self.turn(tag, Input::Configured(Box::new(settings)));
        self.at(self.now, Task::Poll(tag));
    }

    /// What this process reads as its config, and goes by from now on.
    pub fn config(&mut self, pid: usize) -> Settings {
        let mut settings = self.configs[self.processes[pid].config].clone();
        settings.decided_by = format!("watchdog-{pid}");
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

    fn renewed(&mut self, began: Ms) {
        self.truth.renewed_at = self.truth.renewed_at.max(began);
    }

    pub fn reload(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        process.config = 1 - process.config;
        let tag = process.tag(pid);
        if process.held().is_some() && process.paused_until <= self.now {
            let settings = self.config(pid);
            self.tell(|| format!("watchdog {pid} reads its config again"));
            self.turn(tag, Input::Configured(Box::new(settings)));
        }
    }

    pub fn poll(&mut self, tag: Tag) {
        let every = ms(self.setup.settings.poll.every);
        self.at(self.now + every, Task::Poll(tag));
        let Some(holding) = self.processes[tag.pid].holding() else { return };
        if std::mem::replace(&mut holding.polling, true) || holding.leaving {
            return;
        }
        self.read_levers(tag);
        self.soon(20, 900, Task::ServePoll(tag, self.now));
    }

    /// With each poll, and after each reload.
    fn read_levers(&mut self, tag: Tag) {
        if !self.store_fails()
            && let Ok(levers) = self.shelf.levers(tag.pid)
            && let Some(holding) = self.processes[tag.pid].holding()
            && !holding.queue.is_failing()
        {
            let fresh = holding.queue.fresh(levers);
            if !fresh.is_empty() {
                let pulled: Vec<_> = fresh.iter().map(|lever| lever.at).collect();
                self.commands_are_read(tag, &pulled);
                self.turn(tag, Input::Pulled(fresh));
            }
        }
    }

    pub fn deliver(&mut self, tag: Tag, input: Input, asked: Ms) {
        let pid = tag.pid;
        if let Input::Called { .. } = &input {
            if self.strikes(Fault::AnswerCrash, 5) {
                return self.crash(pid);
            }
            if let Some(holding) = self.processes[pid].holding() {
                holding.mutations = holding.mutations.saturating_sub(1);
            }
        }
        if let (Input::Polled(_), Some(holding)) = (&input, self.processes[pid].holding()) {
            holding.polling = false;
        }
        // Whoever leaves waits for outcomes alone: anything else could lead to a call that nobody
        // would wait for.
        if self.processes[pid].held().is_some_and(|h| h.leaving)
            && !matches!(input, Input::Called { .. })
        {
            return;
        }
        let read = match &input {
            Input::Got { slot, reading, .. } if !matches!(reading, Reading::Unread(_)) => {
                Some(slot.clone())
            }
            _ => None,
        };
        self.turn(tag, input);
        if let Some(slot) = read {
            self.got(tag, &slot, asked);
            self.settles(pid, slot);
        }
        self.leave_when_done(tag);
    }

    /// One turn of the core, and everything that follows from it.
    pub fn turn(&mut self, tag: Tag, input: Input) {
        let pid = tag.pid;
        let now = wall(self.now, self.processes[pid].offset);
        let Some(holding) = self.processes[pid].holding() else { return };
        if holding.queue.is_failing() {
            // What became of this call is read back from the world once the journal works again.
            if let Input::Called { slot, .. } = &input {
                holding.fleet.forget_call(&slot.clone());
            }
            return;
        }
        self.turns += 1;
        let effects = step(&mut holding.fleet, input, now);
        let mut looks = Vec::new();
        let mut told: Vec<String> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Look(look) => looks.push(look),
                Effect::Commit { records, events, then } => {
                    if self.trace.is_some() {
                        told.extend(events.iter().map(|e| {
                            format!(
                                "watchdog {pid}: {} {}",
                                e.slot.as_deref().unwrap_or("-"),
                                e.message
                            )
                        }));
                    }
                    holding.queue.push(records, events, then);
                }
            }
        }
        let wake = next_wake(&holding.fleet)
            .map(|at| at.as_millisecond() - EPOCH_MS - self.processes[pid].offset);
        for line in told {
            self.tell(|| line);
        }
        for look in looks {
            let wait = match &look {
                Look::Operation { at, .. } => at.duration_since(now).as_millis().max(0) as Ms,
                _ => 0,
            };
            let latency = self.latency();
            self.at(self.now + wait + latency, Task::Serve(tag, Box::new(look), self.now + wait));
        }
        if let (Some(at), Some(holding)) = (wake, self.processes[pid].holding()) {
            let at = at.max(self.now + 1);
            if holding.wake_at != Some(at) {
                holding.wake_at = Some(at);
                self.at(at, Task::Wake(tag, at));
            }
        }
        self.write(tag, false);
    }

    pub fn latency(&mut self) -> Ms {
        if self.strikes(Fault::SlowRead, 12) {
            self.rng.i64(3_000..25_000)
        } else {
            self.rng.i64(20..300)
        }
    }

    /// Begins the write that is due; `renew`: also an empty one.
    pub fn write(&mut self, tag: Tag, renew: bool) {
        let Some(holding) = self.processes[tag.pid].holding() else { return };
        if holding.write.is_some()
            || !(renew || holding.queue.waits() || holding.queue.is_failing())
        {
            return;
        }
        let kind = if holding.queue.is_failing() { WriteKind::Reload } else { WriteKind::Commit };
        let (batch, then) =
            if kind == WriteKind::Commit { holding.queue.take() } else { Default::default() };
        let allows = !then.is_empty();
        holding.write =
            Some(Write { batch: Some(batch), then, began: self.now, kind, result: None });
        self.begin_write(tag, allows);
    }

    pub fn begin_write(&mut self, tag: Tag, allows: bool) {
        let slow = self.strikes(Fault::SlowStore, 6);
        let (most, wait) = if slow { (25_000, 500) } else { (30, 1) };
        let first = self.rng.i64(wait..=most);
        let second = self.rng.i64(wait..=most);
        self.at(self.now + first, Task::Durable(tag));
        self.at(self.now + first + second, Task::Wrote(tag));
        // Aimed at what matters: writes that allow something.
        if self.strikes(Fault::CommitCrash, if allows { 8 } else { 400 }) {
            let at = self.now + self.rng.i64(0..=first + second);
            self.at(at, Task::Crash(tag.pid));
        }
    }

    /// A write reaches the disk, or does not. It needs no process any more: the disk has it.
    pub fn durable(&mut self, tag: Tag) {
        let process = &mut self.processes[tag.pid];
        if process.life != tag.life || process.tenure != tag.tenure {
            return;
        }
        let Some(holding) = process.holding() else { return };
        let claim = holding.claim.clone();
        let Some(write) = &mut holding.write else { return };
        let (kind, began, Some(batch)) = (write.kind, write.began, write.batch.take()) else {
            return;
        };
        let allows = !write.then.is_empty();
        if self.strikes(Fault::TornWrite, if allows { 15 } else { 500 }) {
            return self.power_cut(tag, &claim, batch);
        }
        let down = self.store_fails();
        let full = self.now < self.store_full_until;
        let fails = kind == WriteKind::Commit && self.strikes(Fault::StoreFails, 60);
        let result = if down || fails {
            Err(unavailable())
        } else if kind == WriteKind::Reload {
            let loaded = self.shelf.load(tag.pid);
            // An empty commit tells whether it can be written, and whether the lock is still held.
            let written = if full {
                Err(unavailable())
            } else {
                self.shelf.commit(tag.pid, &claim, batch, false)
            };
            if written.is_ok() {
                self.renewed(began);
            }
            written.and(loaded).map(Some)
        } else if full {
            Err(unavailable())
        } else {
            let events = batch.events.clone();
            let written = self.shelf.commit(tag.pid, &claim, batch, kind == WriteKind::Release);
            if written.is_ok() {
                self.renewed(began);
                self.written(&events);
            }
            if written.is_ok() && kind == WriteKind::Commit && self.strikes(Fault::StoreUnknown, 60)
            {
                Err(unavailable())
            } else {
                written.map(|()| None)
            }
        };
        if let Some(write) = self.processes[tag.pid].holding().and_then(|h| h.write.as_mut()) {
            write.result = Some(result);
        }
    }

    /// The machine is off within a write: every process on it is gone.
    pub fn power_cut(&mut self, tag: Tag, claim: &Claim, batch: tpu_watchdog::store::Batch) {
        let events = batch.events.clone();
        let at = self.rng.f64();
        self.tell(|| format!("the power fails within a write of watchdog {}", tag.pid));
        let renewals = |lease: Option<Lease>| lease.map(|l| (l.epoch, l.renewals));
        let before = renewals(self.shelf.durable("").1);
        self.shelf.tear(tag.pid, claim, batch, at);
        if renewals(self.shelf.durable("").1) != before {
            self.written(&events);
        }
        for pid in 0..self.processes.len() {
            if self.processes[pid].is_up() {
                self.crash(pid);
            }
        }
    }

    pub fn wrote(&mut self, tag: Tag) {
        let Some(holding) = self.processes[tag.pid].holding() else { return };
        let Some(write) = holding.write.take_if(|w| w.result.is_some()) else { return };
        let Some(result) = write.result else { return };
        match result {
            Ok(stored) => {
                let ttl = self.setup.ttl;
                holding.sending_until =
                    holding.sending_until.max(write.began + ms(sending_ends_after(ttl)));
                if write.kind == WriteKind::Release {
                    let memory = std::mem::take(&mut holding.fleet.memory);
                    self.last_known = memory;
                    self.tell(|| format!("watchdog {} gives the lock back", tag.pid));
                    return self.end(tag.pid);
                }
                if let Some(stored) = stored {
                    holding.queue.reloaded();
                    holding.fleet.read_again(stored.slots, stored.ledger);
                    let settings = self.config(tag.pid);
                    self.tell(|| format!("watchdog {} has read its journal again", tag.pid));
                    self.turn(tag, Input::Configured(Box::new(settings)));
                    self.read_levers(tag);
                }
                for action in write.then {
                    if let Some(holding) = self.processes[tag.pid].holding() {
                        holding.mutations += 1;
                    }
                    let most =
                        if self.strikes(Fault::Pause, 8) { self.pause(tag.pid) } else { 300 };
                    self.soon(1, most, Task::Send(tag, Box::new(action)));
                }
                self.write(tag, false);
                self.leave_when_done(tag);
            }
            Err(error) if error.failure == StoreFailure::Fenced => {
                self.tell(|| format!("watchdog {} has lost the lock", tag.pid));
                let process = &mut self.processes[tag.pid];
                process.tenure += 1;
                process.role =
                    Role::StandingBy(Patience::new(self.setup.ttl, std::time::Duration::ZERO));
                let tag = process.tag(tag.pid);
                self.at(self.now, Task::Lock(tag));
            }
            Err(_) => {
                if write.kind == WriteKind::Release {
                    return self.end(tag.pid);
                }
                let unsent = holding.queue.failed(write.then);
                for action in unsent {
                    holding.fleet.forget_call(action.slot());
                }
                self.tell(|| format!("a write of watchdog {} failed", tag.pid));
                self.at(self.now + 1000, Task::Reread(tag));
            }
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

    pub fn leave_when_done(&mut self, tag: Tag) {
        let Some(holding) = self.processes[tag.pid].holding() else { return };
        if !holding.leaving || holding.write.is_some() || holding.mutations > 0 {
            return;
        }
        if holding.queue.is_failing() {
            return self.end(tag.pid);
        }
        let batch = holding.queue.last();
        holding.write = Some(Write {
            batch: Some(batch),
            then: Vec::new(),
            began: self.now,
            kind: WriteKind::Release,
            result: None,
        });
        self.begin_write(tag, false);
    }

    pub fn send(&mut self, tag: Tag, action: Action) {
        let pid = tag.pid;
        let slot = action.slot().to_owned();
        let offset = self.processes[pid].offset;
        if self.strikes(Fault::SendCrash, 10) {
            return self.crash(pid);
        }
        let Some(holding) = self.processes[pid].holding() else { return };
        let not_sent =
            |text: &str| CallOutcome::NotSent(Failure::new(FailureClass::Transient, text));
        let refused = if self.now >= holding.sending_until {
            Some(not_sent("the lock was not renewed in time"))
        } else if !action.may_leave(wall(self.now, offset), std::time::Duration::from_secs(2)) {
            Some(not_sent("the GET that verified it would be older than 5 s"))
        } else if self.strikes(Fault::CallNotSent, 8) {
            Some(not_sent("there is no access token"))
        } else {
            None
        };
        if let Some(outcome) = refused {
            let latency = self.latency();
            return self.at(
                self.now + latency,
                Task::Deliver(tag, Box::new(Input::Called { slot, outcome }), self.now),
            );
        }
        let epoch = self.processes[pid].held().map_or(0, |h| h.claim.epoch);
        let (record, lease) = self.shelf.durable(&slot);
        self.leaves(tag, epoch, &action, record.as_ref(), lease.as_ref());
        self.tell(|| format!("watchdog {pid} sends {}", brief(&action)));
        let lost_before = self.strikes(Fault::CallLostBefore, 8);
        let late = !lost_before && self.strikes(Fault::CallLate, 8);
        let lost_after = self.strikes(Fault::CallLostAfter, 8);
        let arrival =
            Arrival { sent: self.now, answered: !(lost_after || late), late, again: false };
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
                self.at(
                    self.now + delay + after,
                    Task::Arrive(tag, Box::new(action.clone()), again),
                );
            }
            self.at(self.now + delay, Task::Arrive(tag, Box::new(action), arrival));
        }
        if !arrival.answered || lost_before {
            let outcome = CallOutcome::Unknown(Failure::new(
                FailureClass::Transient,
                "no answer within 20 s",
            ));
            self.at(
                self.now + 20_000,
                Task::Deliver(tag, Box::new(Input::Called { slot, outcome }), self.now),
            );
        }
        if self.strikes(Fault::SendCrash, 10) {
            self.crash(pid);
        }
    }
}
