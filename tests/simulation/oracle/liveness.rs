//! Looks at the end of a world: what must follow once faults have stopped. Something that stays broken excuses its own slot
//! alone.

use jiff::Timestamp;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::fleet::Fleet;
use tpu_watchdog::model::recovery::Phase;

use crate::process::wall;
use crate::setup::Origin;
use crate::world::World;

/// Holds that last because somebody wants them, or because there is nothing that a watchdog could go by. All others that do
/// not call for a person pass by themselves: long after the faults have stopped they should have.
const WANTED: [&str; 11] = [
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

impl World {
    /// What is known and decided now, and the time by whose clock. A schedule may be between two runs: what its journal holds
    /// is what counts then.
    pub fn what_is_known(&mut self) -> (Fleet, Timestamp) {
        let stored = self.shelf.load(usize::MAX - 1).expect("the faults have stopped");
        let holder = self.processes.iter().position(|p| p.held().is_some());
        let mut fleet = Fleet::new(self.setup.settings.clone(), stored.slots, stored.ledger);
        // Between two runs it is the clock of the last one.
        let last = holder.or(self.oracle.holder.map(|tag| tag.pid));
        let now = wall(self.now, last.map_or(0, |pid| self.processes[pid].offset));
        if let Some(holding) = holder.and_then(|pid| self.processes[pid].held()) {
            fleet.memory.clone_from(&holding.fleet.memory);
            fleet.slots.clone_from(&holding.fleet.slots);
            fleet.ledger.clone_from(&holding.fleet.ledger);
            fleet.polls = holding.fleet.polls;
        } else {
            // Between two runs of a schedule: what the last one decided stands.
            fleet.memory.clone_from(&self.last_known);
        }
        (fleet, now)
    }

    /// Long after the faults have stopped.
    pub fn judge_the_end(&mut self) {
        let late = std::mem::take(&mut self.oracle.late_mutations);
        let broken_zone = self.setup.broken_zone.clone();
        let held = self.processes.iter().any(|p| p.held().is_some());
        let scheduled = self.processes.iter().all(|p| p.kind == crate::setup::Kind::Schedule);
        self.oracle.check("L4", "-", held || scheduled, || "hours later nobody holds the lock".to_owned());
        let (fleet, now) = self.what_is_known();
        let waiting = self.shelf.levers(usize::MAX - 1).expect("the faults have stopped");
        self.oracle.check("L7", "-", waiting.is_empty(), || format!("levers that nobody took: {waiting:?}"));
        if self.setup.settings.dry_run {
            return;
        }
        let observed = fleet.ledger.observed_at.map(|at| (now.as_second() - at.as_second()).abs());
        self.oracle
            .check("L4", "-", observed.is_some_and(|s| s < 900), || format!("the last complete poll was {observed:?} s ago"));
        let open = fleet.ledger.breaker.is_some();
        let names: Vec<String> = self.setup.settings.slots.keys().cloned().collect();
        for name in &names {
            let restless = late.iter().find(|(slot, _)| slot == name).filter(|_| !self.is_broken(name, broken_zone.as_deref()));
            self.oracle.check("L2", name, restless.is_none(), || format!("hours after the last fault: {restless:?}"));
        }
        for name in &names {
            self.end_of_slot(name, &fleet, open, broken_zone.as_deref(), now);
        }
        let events = self.shelf.events();
        if self.setup.sqlite {
            let intents =
                events.iter().filter(|e| matches!(e.what, tpu_watchdog::model::event::What::Intent { .. })).count() as u64;
            let known = self.oracle.intents;
            // The log keeps a hundred thousand events.
            let whole = events.len() < 100_000;
            self.oracle.check("S18", "-", !whole || intents == known, || format!("the log holds {intents} intents of {known}"));
        }
    }

    /// Whether nothing is promised about a slot: it may live in a zone that stays without capacity.
    fn is_broken(&self, name: &str, broken_zone: Option<&str>) -> bool {
        let zones = self.setup.settings.slots.get(name).map(|s| s.zones.as_slice()).unwrap_or_default();
        broken_zone.is_some_and(|zone| zones.iter().any(|z| z == zone))
    }

    fn end_of_slot(&mut self, name: &str, fleet: &Fleet, open: bool, broken_zone: Option<&str>, now: Timestamp) {
        let Some(record) = fleet.slots.get(name) else {
            return self.oracle.check("L1", name, false, || "it is configured, and not watched".to_owned());
        };
        let decision = fleet.memory.get(name).and_then(|m| m.decision.as_ref());
        let hold = decision.and_then(|d| d.hold);
        let phase = record.recovery.as_ref().map(|r| r.phase);
        let node = self.cloud.nodes.get(&(record.zone.clone(), name.to_owned()));
        let well = node.is_some_and(|n| n.state == "READY" && n.health.as_deref() == Some("HEALTHY") && n.upcoming.is_none());
        let state = format!(
            "{}; recovery {phase:?}, {decision:?}, suspicion {:?}; the node is {:?}",
            record.verdict.evidence,
            record.suspicion,
            node.map(|n| (n.state, n.health.clone(), n.run.boots, n.run.stopped))
        );
        let excused = self.is_broken(name, broken_zone);
        let name_of = if broken_zone.is_some() && !excused { "L6" } else { "L1" };
        let rests =
            matches!(record.verdict.condition, Condition::Healthy | Condition::Finished | Condition::Degraded) && phase.is_none();
        // A job that makes progress outranks the health of its node.
        let progress = record.job.progress_at.is_some_and(|at| now.as_second() - at.as_second() < 3600);
        let rests = rests || (phase.is_none() && progress);
        // What is believed to be well has to be so.
        let works = node.is_some_and(|n| n.state == "READY" && n.health.as_deref().is_none_or(|h| h == "HEALTHY"));
        let believed = record.verdict.condition == Condition::Healthy && phase.is_none() && !progress;
        self.oracle.check("L1", name, works || !believed, || format!("it is taken for healthy: {state}"));
        let told = hold.is_some_and(|hold| hold.needs_a_person() || WANTED.contains(&hold.name()));
        let paused = hold.is_some_and(|hold| hold.name() == "paused");
        self.oracle.check("L7", name, !paused, || format!("it was resumed hours ago: {state}"));
        self.oracle.check("L7", name, !open, || format!("the breaker is open again or still, hours after its reset: {state}"));
        self.oracle
            .check(name_of, name, rests || told || excused, || format!("it neither rests nor waits for a person: {state}"));
        let owed = matches!(phase, Some(Phase::Deleting | Phase::Gone | Phase::Creating));
        self.oracle.check("L3", name, !owed || told || excused, || format!("a create is still owed: {state}"));
        // Where the job is finished no node is wanted.
        let gone = node.is_none() && !record.leaving && record.verdict.condition != Condition::Finished;
        self.oracle
            .check("L3", name, !gone || hold.is_some() || excused, || format!("its node is gone, and nobody minds: {state}"));
        // A slot that left the config and came back begins anew.
        let forgotten = gone
            && record.seen.is_some()
            && phase.is_none()
            && self.oracle.slots.get(name).is_some_and(|watch| watch.owes_create);
        self.oracle.check("L3", name, !forgotten, || format!("a create was owed, and is forgotten: {state}"));
        let silent = self.oracle.slots.get(name).is_some_and(|watch| watch.result_owed);
        self.oracle.check("S11", name, !silent || phase.is_some(), || format!("the log has no result of its last call: {state}"));
        if well && rests && record.verdict.condition != Condition::Degraded {
            self.oracle.check("L5", name, record.suspicion.is_none(), || format!("it is well, and suspected: {state}"));
        }
        // L8: a job of ours runs on a node of ours that is well.
        let supervised = record.seen.as_ref().is_some_and(|s| s.supervised) && record.ours;
        let origin = self.setup.origins.get(name).copied().unwrap_or(Origin::Plain);
        // Where no report can be read nobody can know.
        let known = !self.setup.forbidden_reports;
        if let Some(node) = node.filter(|_| well && rests && supervised && known && origin == Origin::Plain && hold.is_none()) {
            let runs =
                node.run.boots > 0 && (!node.run.stopped || node.run.ended) && node.run.order.generation == record.heard_from();
            self.oracle.check("L8", name, runs, || format!("its job does not run: {:?}; {state}", node.run));
        }
    }
}
