//! What is checked in every world: the truth at each mutation (`truth`), the event log as an audit,
//! the core's own assertions, the lock, and, long after the faults have stopped, what is still
//! `pending`.

use tpu_watchdog::model::command::Command;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::event::{Event, What};
use tpu_watchdog::model::fleet::Fleet;
use tpu_watchdog::model::phase::Phase;
use tpu_watchdog::model::recovery::Call;
use tpu_watchdog::model::slot::SlotRecord;
use tpu_watchdog::simulator::things::{Exit, Node};

use jiff::Timestamp;

use crate::fault::Fault;
use crate::process::{EPOCH_MS, Tag, ms, wall};
use crate::setup::{HOUR, Kind, Ms, Origin};
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
const WANTED: [&str; 13] = [
    "forgotten",
    "deleted",
    "degraded",
    "stopped",
    "missing",
    "opted_out",
    "other_owner",
    "queued_resource",
    "multislice",
    "api_v1",
    "never_seen",
    "no_specification",
    "quiet_hours",
];

/// What is still to come: the invariant, the slot, the reason.
pub type Pending = (&'static str, String, String);

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
            if matches!(event.what, What::Intent { .. }) {
                ["S7", "S8", "S11", "S18"]
                    .into_iter()
                    .for_each(|name| *self.checked.entry(name).or_default() += 1);
            }
            for found in self.audit.take(event) {
                self.check(found.invariant, found.slot.as_deref().unwrap_or("-"), false, || {
                    format!("the log shows it: {}", found.text)
                });
            }
        }
    }

    /// A process holds the lock, by a take that began at `began`.
    pub fn holds(&mut self, epoch: u64, began: Ms) {
        let ttl = ms(self.setup.ttl);
        if let Some(since) = self.alone_since.take() {
            // Its last renewal is seen a look later: an eighth of the lease.
            let (took, most) = (self.now - since, ttl + ttl / 8 + 1_000);
            self.check("L4 in time", "-", took <= most, || {
                format!("a dead holder's lock was taken after {took} ms, {most} are allowed")
            });
        }
        (self.held_since, self.truth.renewed_at) = (self.now, began);
        let highest = self.highest_epoch;
        self.check("S9", "-", epoch > highest, || {
            format!("epoch {epoch} was given out after {highest}")
        });
        self.highest_epoch = highest.max(epoch);
    }

    /// L1 at the wait that nothing else bounds: a create whose outcome is not known ends with one
    /// of the next few GETs that are answered. Only reads that lag behind may take longer. L1 at
    /// the end of a world does not see such a wait: it is asked hours after the last fault, and
    /// each of them ended by itself when `max_age` was over.
    pub fn settles(&mut self, pid: usize, slot: String) {
        let waits = |record: &&SlotRecord| {
            let calls =
                |call: &Option<Call>| matches!(call, None | Some(Call::Unknown | Call::Observed));
            record.incarnation.is_none()
                && record
                    .recovery
                    .as_ref()
                    .is_some_and(|r| r.phase == Phase::Creating && calls(&r.call))
        };
        let waits = self.processes[pid]
            .leading()
            .and_then(|driver| driver.fleet().slots.get(&slot))
            .filter(waits)
            .is_some();
        let count = if waits { self.unsettled.get(&slot).copied().unwrap_or(0) + 1 } else { 0 };
        let most = if self.setup.has(Fault::StaleRead) { 60 } else { 12 };
        self.check("L1", &slot, count <= most, || {
            format!("{count} GETs were answered, and settled nothing of its create")
        });
        self.unsettled.insert(slot, count);
    }

    /// L7: long after the faults have stopped, and with the same leader, one poll is enough for a
    /// command.
    pub fn commands_are_read(&mut self, tag: Tag, commands: &[Command]) {
        if self.processes[tag.pid].leading().is_none() {
            return;
        }
        let (now, every) = (self.now, ms(self.setup.settings.poll.every));
        let same =
            self.holder.is_some_and(|holder| (holder.pid, holder.life) == (tag.pid, tag.life));
        for command in commands {
            let at = command.at.as_millisecond() - EPOCH_MS;
            let late = self.calm_since.is_some_and(|calm| at >= calm + HOUR);
            if self.commands_read.insert(command.id.clone())
                && late
                && same
                && self.held_since <= at
            {
                let took = now - at;
                self.check("L7 in time", "-", took <= every + 1_000, || {
                    format!("a command works after {took} ms")
                });
            }
        }
    }

    /// What is known and decided now, and the time by whose clock. A schedule may be between two
    /// runs: what its journal holds is what counts then.
    pub fn what_is_known(&mut self) -> (Fleet, Timestamp) {
        let stored = self.shelf.load(usize::MAX - 1).expect("the faults have stopped");
        let holder = self.processes.iter().position(|p| p.leading().is_some());
        let mut fleet = Fleet::new(self.setup.settings.clone(), stored.slots, stored.ledger);
        // Between two runs it is the clock of the last one.
        let last = holder.or(self.holder.map(|tag| tag.pid));
        let now = wall(self.now, last.map_or(0, |pid| self.processes[pid].offset));
        if let Some(leader) = holder.and_then(|pid| self.processes[pid].leading()) {
            fleet.memory.clone_from(&leader.fleet().memory);
            fleet.slots.clone_from(&leader.fleet().slots);
            fleet.ledger.clone_from(&leader.fleet().ledger);
            fleet.polls = leader.fleet().polls;
        } else {
            // Between two runs of a schedule: what the last one decided stands.
            fleet.memory.clone_from(&self.last_known);
        }
        (fleet, now)
    }

    /// Long after the faults have stopped nothing may be pending.
    pub fn judge_the_end(&mut self) {
        let (fleet, now) = self.what_is_known();
        let mut looked_at = vec!["L4", "L7"];
        let nodes: Vec<_> =
            self.cloud.nodes.iter().map(|((_, of), node)| (of.clone(), node.clone())).collect();
        nodes.iter().for_each(|(slot, node)| self.starts_in_time(slot, node));
        let pending = self.pending(&fleet, now, &mut looked_at);
        looked_at.into_iter().for_each(|name| *self.checked.entry(name).or_default() += 1);
        if let Some((name, slot, reason)) = pending {
            self.check(name, &slot, false, || reason);
        }
    }

    /// What must have followed by now and has not.
    fn pending(
        &mut self,
        fleet: &Fleet,
        now: Timestamp,
        looked_at: &mut Vec<&'static str>,
    ) -> Option<Pending> {
        let fleet_wide = |name, reason: String| Some((name, "-".to_owned(), reason));
        let held = self.processes.iter().any(|p| p.leading().is_some());
        if !held && self.processes.iter().any(|p| p.kind != Kind::Schedule) {
            return fleet_wide("L4", "hours later no process holds the lock".to_owned());
        }
        let waiting = self.shelf.commands(usize::MAX - 1).expect("the faults have stopped");
        if !waiting.is_empty() {
            return fleet_wide("L7", format!("commands that no holder took: {waiting:?}"));
        }
        if self.setup.settings.dry_run {
            return None;
        }
        let observed = fleet.ledger.observed_at.map(|at| (now.as_second() - at.as_second()).abs());
        if observed.is_none_or(|seconds| seconds >= 900) {
            return fleet_wide("L4", format!("the last complete poll was {observed:?} s ago"));
        }
        if fleet.ledger.breaker.is_some() {
            return fleet_wide(
                "L7",
                "the breaker is open again or still, hours after its reset".to_owned(),
            );
        }
        self.setup
            .settings
            .slots
            .keys()
            .find_map(|name| self.pending_of(name, fleet, now, looked_at))
    }

    /// What must have followed for one slot and has not. Something that stays broken excuses its
    /// own slot alone.
    fn pending_of(
        &self,
        name: &str,
        fleet: &Fleet,
        now: Timestamp,
        looked_at: &mut Vec<&'static str>,
    ) -> Option<Pending> {
        let found = |invariant, reason: String| Some((invariant, name.to_owned(), reason));
        let Some(record) = fleet.slots.get(name) else {
            return found("L1", "it is configured, and not watched".to_owned());
        };
        let decision = fleet.slots.get(name).and_then(|r| r.decision.as_ref());
        let hold = decision.and_then(|d| d.hold);
        let (phase, condition) =
            (record.recovery.as_ref().map(|r| r.phase), record.verdict.condition);
        let node = self.cloud.nodes.get(&(record.zone.clone(), name.to_owned()));
        let state = format!(
            "{}; recovery {phase:?}, {decision:?}, suspicion {:?}; the node is {:?}",
            record.verdict.evidence,
            record.suspicion,
            node.map(|n| (n.state, n.health.clone(), n.run.boots, n.run.stopped))
        );
        let zones = &self.setup.settings.slots[name].zones;
        let broken = self.setup.broken_zone.as_ref();
        if broken.is_some_and(|zone| zones.contains(zone)) {
            return None;
        }
        // A refused delete is tried on at the longest wait: the API answers, the world is not asked in
        // vain.
        let last = self.setup.settings.slots.keys().next_back().is_some_and(|last| last == name);
        let refused = self.setup.forbidden_deletes && last;
        let late = self.truth.late_mutations.iter().find(|(slot, _)| slot == name && !refused);
        if let Some((_, mutation)) = late {
            return found("L2", format!("hours after the last fault: {mutation}"));
        }
        if hold.is_some_and(|hold| hold.name() == "paused") {
            return found("L7", format!("it was resumed hours ago: {state}"));
        }
        if let Some(found) = self.remains(name, fleet, hold.map(|hold| hold.name())) {
            return Some(found);
        }
        looked_at.extend(["L9", "S21"]);
        let told = hold.is_some_and(|hold| hold.needs_a_person() || WANTED.contains(&hold.name()));
        // A job that makes progress outranks the health of its node.
        let progress =
            record.job.progress_at.is_some_and(|at| now.as_second() - at.as_second() < 3600);
        let at_rest =
            matches!(condition, Condition::Healthy | Condition::Finished | Condition::Degraded);
        let rests = phase.is_none() && (at_rest || progress);
        let invariant = if broken.is_some() { "L6" } else { "L1" };
        looked_at.extend(["L2", invariant, "L3"]);
        if !(rests || told) {
            return found(
                invariant,
                format!("it neither rests nor waits for an operator: {state}"),
            );
        }
        let works = node.is_some_and(|n| {
            n.state == "READY" && n.health.as_deref().is_none_or(|h| h == "HEALTHY")
        });
        if condition == Condition::Healthy && phase.is_none() && !progress && !works {
            return found("L1", format!("it is taken for healthy: {state}"));
        }
        let is_wanted = condition != Condition::Finished;
        if node.is_none() && is_wanted && hold.is_none() {
            return found("L3", format!("its node is gone, and no create is owed: {state}"));
        }
        if phase.is_none() && self.audit.last_call(name).is_some_and(|call| call.open) {
            return found("S11", format!("the log has no result of its last call: {state}"));
        }
        let well = works && node.is_some_and(|n| n.upcoming.is_none());
        if !(well && rests) {
            return None;
        }
        looked_at.push("L5");
        if condition != Condition::Degraded && record.suspicion.is_some() {
            return found("L5", format!("it is well, and suspected: {state}"));
        }
        let node = node.filter(|_| hold.is_none())?;
        let runs = self.job_runs(name, record, node)?;
        looked_at.push("L8");
        if runs {
            None
        } else {
            found("L8", format!("its job does not run: {:?}; {state}", node.run))
        }
    }

    /// L9: what is lost and ours is gone by now. S21: what we asked for has an owner, or is told.
    fn remains(&self, name: &str, fleet: &Fleet, hold: Option<&'static str>) -> Option<Pending> {
        let ours = |node: &Node| {
            let metadata = node.body.get("metadata");
            let owner = metadata.and_then(|metadata| metadata.get("tpu-watchdog-owner"));
            owner.is_some_and(|owner| owner == crate::setup::OWNER)
        };
        let record = fleet.slots.get(name)?;
        let excused = ["paused", "opted_out", "forgotten", "delete_failed", "not_sent"];
        for ((zone, of), node) in self.cloud.nodes.iter().filter(|((_, of), _)| of == name) {
            if !ours(node) {
                continue;
            }
            let uid = self.identity(zone, node).id;
            let own = record.incarnation.as_ref().is_some_and(|known| known.id == uid);
            let told = fleet.ledger.strays.values().any(|s| (&s.zone, &s.name) == (zone, of));
            if !(own || told || record.recovery.is_some()) {
                let reason = format!("{uid} in {zone} is {}, and no slot owns it", node.state);
                return Some(("S21", name.to_owned(), reason));
            }
            let lies = matches!(node.state, "PREEMPTED" | "TERMINATED");
            let stray = told && !own && record.zone != *zone && self.setup.settings.removes_dead;
            let dead = lies && (own && record.ours || stray);
            let held = hold.is_some_and(|hold| excused.contains(&hold));
            if dead && !(held || self.setup.forbidden_deletes) {
                let reason =
                    format!("{uid} in {zone} is {}, and not removed: {hold:?}", node.state);
                return Some(("L9", name.to_owned(), reason));
            }
        }
        self.requests_remain(name, fleet, hold)
    }

    /// L8: whether a job of ours runs on a node of ours that is well; none where nothing is known
    /// of it.
    fn job_runs(&self, name: &str, record: &SlotRecord, node: &Node) -> Option<bool> {
        let ours = record.seen.as_ref().is_some_and(|s| s.supervised) && record.ours;
        // Where no report can be read no watchdog can know.
        if !ours
            || self.setup.forbidden_reports
            || self.setup.origins.get(name) != Some(&Origin::Plain)
        {
            return None;
        }
        // `forget` has called its create off, so its hosts wait.
        if record.forgotten {
            return None;
        }
        let run = &node.run;
        Some(
            run.boots > 0
                && (!run.stopped || run.has_ended(Exit::Well))
                && !(run.phase().is_before_a_run() || run.has_ended(Exit::Crashed))
                && run.order.generation == record.heard_from(),
        )
    }
}
