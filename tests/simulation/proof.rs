//! What is checked in every world: the truth at each mutation (`truth`), the event log as an audit,
//! the core's own assertions, the lock, and, long after the faults have stopped, what is still
//! pending.

use tpu_watchdog::model::command::Command;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::event::{Event, Verb};
use tpu_watchdog::model::fleet::Fleet;
use tpu_watchdog::model::hold::HoldReason;
use tpu_watchdog::model::phase::Phase;
use tpu_watchdog::model::slot::SlotRecord;
use tpu_watchdog::model::step::Call;
use tpu_watchdog::simulator::things::Exit;

use jiff::Timestamp;

use crate::fault::Fault;
use crate::process::{EPOCH_MS, Tag, ms, wall};
use crate::setup::{HOUR, Kind, Ms, OWNER, Origin};
use crate::truth::{identity, is_dead, owner, owner_of};
use crate::world::World;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// As in docs/invariants.md: `S1`, `L3`.
    pub name: &'static str,
    pub slot: String,
    pub message: String,
}

/// Holds that last because somebody wants them, or because there is nothing that a watchdog could
/// go by. All others that do not call for an operator pass by themselves: long after the faults
/// have stopped they should have.
fn is_wanted(hold: HoldReason) -> bool {
    use HoldReason::*;
    let by_a_person = matches!(hold, Forgotten | Deleted | Stopped | OptedOut | QuietHours);
    let of_another = matches!(hold, OtherOwner | QueuedResource | Multislice | ApiV1);
    by_a_person || of_another || matches!(hold, Degraded | Missing | NeverSeen | NoSpecification)
}

impl World {
    /// Looks at one rule.
    pub fn check(
        &mut self,
        name: &'static str,
        slot: &str,
        holds: bool,
        message: impl FnOnce() -> String,
    ) {
        *self.checked.entry(name).or_default() += 1;
        if !holds && self.violation.is_none() {
            self.violation = Some(Violation { name, slot: slot.to_owned(), message: message() });
        }
    }

    /// A commit is on the disk: its events are in the log.
    pub fn written(&mut self, events: &[Event]) {
        for event in events {
            for found in self.audit.take(event) {
                self.check(found.invariant, found.slot.as_deref().unwrap_or("-"), false, || {
                    format!("the log shows it: {}", found.text)
                });
            }
        }
    }

    /// A process holds the lock, by a take that began at `began`.
    pub fn holds(&mut self, began: Ms) {
        let ttl = ms(self.setup.ttl);
        if let Some(since) = self.alone_since.take() {
            // Its last renewal is seen a look later: an eighth of the lease.
            let (took, most) = (self.now - since, ttl + ttl / 8 + 1_000);
            self.check("L4 in time", "-", took <= most, || {
                format!("a dead holder's lock was taken after {took} ms, {most} are allowed")
            });
        }
        (self.held_since, self.truth.renewed_at) = (self.now, began);
    }

    /// L1 at the wait that nothing else bounds: a create whose outcome is not known ends with one
    /// of the next few GETs that are answered. Only reads that lag behind may take longer.
    pub fn settles(&mut self, pid: usize, slot: &str) {
        let leader = self.processes[pid].leading();
        let record = leader.and_then(|driver| driver.fleet().slots.get(slot));
        let gone = record.filter(|record| record.incarnation.is_none());
        let waits = gone.and_then(|record| record.recovery.as_ref()).is_some_and(|recovery| {
            let calls = matches!(recovery.call(), Some(Call::Intended | Call::Accepted { .. }));
            recovery.phase() == Phase::Creating && !calls
        });
        let known = self.known(slot);
        known.unsettled = if waits { known.unsettled + 1 } else { 0 };
        let count = known.unsettled;
        let most = if self.setup.has(Fault::StaleRead) { 60 } else { 12 };
        self.check("L1", slot, count <= most, || {
            format!("{count} GETs were answered, and settled nothing of its create")
        });
    }

    /// L7: long after the faults have stopped, and with the same leader, one poll is enough for a
    /// command.
    pub fn commands_are_read(&mut self, tag: Tag, commands: &[Command]) {
        let leads = self.processes[tag.pid].leading().is_some();
        let same = self.holder.is_some_and(|of| (of.pid, of.life) == (tag.pid, tag.life));
        let Some(calm) = self.calm_since.filter(|_| leads && same) else { return };
        let (since, every) = (self.held_since.max(calm + HOUR), ms(self.setup.settings.poll.every));
        let given = commands.iter().map(|command| command.at.as_millisecond() - EPOCH_MS);
        for took in given.filter(|at| *at >= since).map(|at| self.now - at).collect::<Vec<_>>() {
            self.check("L7 in time", "-", took <= every + 1_000, || format!("after {took} ms"));
        }
    }

    /// What is known and decided now, and the time by whose clock. A schedule may be between two
    /// runs: what its journal holds is what counts then, by the clock of the last one.
    pub fn what_is_known(&mut self) -> (Fleet, Timestamp) {
        let stored = self.shelf.load(usize::MAX - 1).expect("the faults have stopped");
        let (mut slots, mut ledger) = (stored.slots, stored.ledger);
        let last = self.holder.map(|tag| &self.processes[tag.pid]);
        if let Some(leader) = last.and_then(|process| process.leading()) {
            slots.clone_from(&leader.fleet().slots);
            ledger.clone_from(&leader.fleet().ledger);
        }
        let now = wall(self.now, last.map_or(0, |process| process.offset));
        (Fleet::new(self.setup.settings.clone(), slots, ledger), now)
    }

    /// Long after the faults have stopped nothing may be pending.
    pub fn judge_the_end(&mut self) {
        let (fleet, now) = self.what_is_known();
        let nodes = (*self.cloud.nodes).clone();
        nodes.iter().for_each(|((_, slot), node)| self.starts_in_time(slot, node));
        let served = self.processes.iter().any(|p| p.kind != Kind::Schedule);
        let held = self.processes.iter().any(|p| p.leading().is_some());
        self.check("L4", "-", held || !served, || "no process holds the lock".to_owned());
        let waiting = self.shelf.commands(usize::MAX - 1).expect("the faults have stopped");
        self.check("L7", "-", waiting.is_empty(), || format!("no holder took {waiting:?}"));
        if self.setup.settings.dry_run {
            return;
        }
        let observed = fleet.ledger.observed_at.map(|at| (now.as_second() - at.as_second()).abs());
        let polls = observed.is_some_and(|seconds| seconds < 900);
        self.check("L4", "-", polls, || format!("the last complete poll was {observed:?} s ago"));
        let breaker = &fleet.ledger.breaker;
        self.check("L7", "-", breaker.is_none(), || format!("hours after its reset: {breaker:?}"));
        for name in self.setup.settings.slots.clone().into_keys() {
            match fleet.slots.get(&name) {
                _ if self.setup.is_broken(&name) => {}
                Some(record) => self.is_settled(record, &fleet, now),
                None => self.check("L1", &name, false, || "it is not watched".to_owned()),
            }
        }
    }

    /// Whether everything has followed for one slot. Something that stays broken excuses its own slot alone.
    fn is_settled(&mut self, record: &SlotRecord, fleet: &Fleet, now: Timestamp) {
        let name = record.name.as_str();
        let hold = record.decision.as_ref().and_then(|d| d.hold);
        let (phase, condition) =
            (record.recovery.as_ref().map(|r| r.phase()), record.verdict.condition);
        let node = self.cloud.nodes.get(&(record.zone.clone(), name.to_owned())).cloned();
        let told = |what: &str| {
            let SlotRecord { verdict, decision, suspicion, .. } = record;
            let node = node.as_ref().map(|n| (n.state, &n.health, &n.run));
            format!(
                "{what}: {}; recovery {phase:?}, {decision:?}, suspicion {suspicion:?}; the node is {node:?}",
                verdict.evidence
            )
        };
        self.check("L7", name, hold != Some(HoldReason::Paused), || told("resumed hours ago"));
        self.remains(record, fleet, hold);
        // A TPU that our own delete has ended is owed a create, also where a missing one is not.
        let ended = self.audit.last_call(name).is_some_and(|call| {
            let sick = call.evidence.as_ref().is_some_and(|of| of.condition.is_sick());
            call.verb == Verb::Delete && call.done && sick
        });
        let called_off = self.setup.has(Fault::Reload) || self.setup.has(Fault::Commands);
        let ended = ended && !called_off && self.known(name).others.is_none();
        let left = hold.is_none() || ended && hold == Some(HoldReason::Missing);
        let owed = phase.is_none() && left && condition != Condition::Finished;
        self.check("L3", name, node.is_some() || !owed, || {
            told("its node is gone, and no create is owed")
        });
        // A job that makes progress outranks the health of its node.
        let progress =
            record.job.progress_at.is_some_and(|at| now.as_second() - at.as_second() < 3600);
        let at_rest =
            matches!(condition, Condition::Healthy | Condition::Finished | Condition::Degraded);
        let rests = phase.is_none() && (at_rest || progress);
        let waits = hold.is_some_and(|hold| hold.needs_a_person() || is_wanted(hold));
        let invariant = if self.setup.broken_zone.is_some() { "L6" } else { "L1" };
        self.check(invariant, name, rests || waits, || told("it neither rests nor waits"));
        let works = node.as_ref().is_some_and(|n| {
            n.state == "READY" && n.health.as_deref().is_none_or(|h| h == "HEALTHY")
        });
        let healthy = condition == Condition::Healthy && phase.is_none() && !progress;
        self.check("L1", name, works || !healthy, || told("it is taken for healthy"));
        let open = self.audit.last_call(name).is_some_and(|call| call.open);
        self.check("S11", name, phase.is_some() || !open, || told("its last call has no result"));
        let Some(node) = node.as_ref().filter(|n| works && rests && n.upcoming.is_none()) else {
            return;
        };
        let suspected = condition != Condition::Degraded && record.suspicion.is_some();
        self.check("L5", name, !suspected, || told("it is well, and suspected"));
        // L8, where something can be known of a job of ours: `forget` has called its create off, so that
        // its hosts wait.
        let ours = record.ours && record.seen.as_ref().is_some_and(|seen| seen.supervised);
        let held = hold.is_some() || record.forgotten || self.setup.forbidden_reports;
        // A job that is done need not run.
        let held = held || condition == Condition::Finished;
        if ours && !held && self.setup.origins.get(name) == Some(&Origin::Plain) {
            let run = &node.run;
            let over = run.has_ended(Exit::Well);
            let starts = run.phase().is_before_a_run() || run.has_ended(Exit::Crashed);
            let runs = run.boots > 0 && (over || !run.stopped) && !starts;
            self.check("L8", name, runs && run.order.generation == record.heard_from(), || {
                told("its job does not run")
            });
        }
    }

    /// S21: what we asked for, nodes and requests, has an owner, or is told. L9: what is lost and ours is
    /// gone by now, and no request that is over holds quota.
    fn remains(&mut self, record: &SlotRecord, fleet: &Fleet, hold: Option<HoldReason>) {
        use HoldReason::*;
        let name = record.name.as_str();
        let is_own = |id: &str| record.incarnation.as_ref().is_some_and(|known| known.id == id);
        let strays = || fleet.ledger.strays.values();
        let kept = hold.is_some_and(|hold| {
            matches!(hold, Paused | OptedOut | Forgotten | DeleteFailed | NotSent)
        });
        let busy = record.recovery.is_some();
        let mut all = Vec::new();
        for ((zone, of), node) in self.cloud.nodes.iter() {
            if of == name && owner(node) == Some(OWNER) {
                let own = is_own(&self.identity(zone, node).id);
                let told = strays().any(|stray| (&stray.zone, &stray.name) == (zone, of));
                let elsewhere = told && record.zone != *zone && self.setup.settings.removes_dead;
                let ours = if own { record.ours } else { elsewhere };
                all.push((zone.clone(), node.state, own || told, is_dead(node) && ours && !kept));
            }
        }
        let id = self.setup.settings.slots[name].filling.id();
        for ((zone, of), request) in &self.cloud.queued {
            if of == id && owner_of(request) == Some(OWNER) {
                let own = is_own(&identity(of, request).id) && record.zone == *zone;
                let told = strays().any(|s| s.zone == *zone && s.request.as_ref() == Some(of));
                let over = matches!(request.state, "FAILED" | "SUSPENDED") && !request.by_user;
                let lost = over && hold.is_none() && !busy;
                all.push((zone.clone(), request.state, own || told, lost));
            }
        }
        let refused = self.setup.refuses_deletes_of(name);
        for (zone, state, owned, lost) in all {
            self.check("S21", name, owned || busy, || {
                format!("no slot owns it: {state} in {zone}")
            });
            self.check("L9", name, !lost || refused, || format!("{hold:?}: {state} in {zone}"));
        }
    }
}
