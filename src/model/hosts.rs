//! The hosts of a slot's TPU together: their supervisors, their indices, where the job stands on them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::beacon::Idle;
use super::exit::Stuck;
use super::ids::RunOrder;
use super::job::WorkerState;
use super::job_phase::JobPhase;
use super::lines::LastLine;
use super::relaunch::{TAKES_ORDERS, TAKES_ROLL_CALL};
use super::slot::SlotRecord;

/// A host whose heartbeat, one a minute, stood still for less than this is there.
const ALIVE: Duration = Duration::from_secs(180);

impl SlotRecord {
    /// Whether every worker has reported a supervisor that follows newer run orders.
    pub fn takes_orders(&self) -> bool {
        self.supervisors_are(TAKES_ORDERS)
    }

    /// Whether every worker has reported a supervisor of at least this version.
    pub fn supervisors_are(&self, version: u64) -> bool {
        (0..self.size().hosts).all(|worker| {
            let state = self.job.workers.get(&worker);
            state.is_some_and(|state| state.booted && state.version >= version)
        })
    }

    /// The order with which machines came up that were made again, where a newer one has to follow.
    pub fn outdated_order(&self) -> Option<&RunOrder> {
        let (again, run) = (self.job.made_again?, self.seen.as_ref()?.run.as_ref()?);
        let older = run.generation < again.generation || again.saved > run.step;
        (run.generation <= again.generation && older).then_some(run)
    }

    /// The job's phase, with the host that is least advanced and its words; none where a host tells none.
    pub fn job_phase(&self) -> Option<(JobPhase, usize, &str)> {
        let of = |worker| {
            let (phase, words) = self.job.workers.get(&worker)?.phase.as_ref()?;
            Some((*phase, worker, words.as_str()))
        };
        let all: Option<Vec<_>> = (0..self.size().hosts).map(of).collect();
        let (phase, worker, words) =
            all?.into_iter().min_by_key(|(phase, worker, _)| (*phase, *worker))?;
        // Only where steps are reported at all.
        let compiles = self.job.step.is_none() && self.job.runs.best_step.is_some();
        let phase = if phase == JobPhase::Running && compiles { JobPhase::Compile } else { phase };
        Some((phase, worker, words))
    }

    /// The worker whose last lines name the cause of the present run's end, and those.
    pub fn known_cause(&self) -> Option<(usize, &LastLine)> {
        let lines = &self.job.lines;
        let (worker, last) = lines.cause().filter(|_| lines.generation >= self.heard_from())?;
        let known = last.meaning.as_ref().is_some_and(|meaning| !meaning.is_victim);
        known.then_some((worker, last))
    }

    /// The indices that the hosts say they have.
    pub fn indices(&self) -> Vec<Option<usize>> {
        let index = |worker| self.job.workers.get(&worker)?.index;
        (0..self.size().hosts).map(index).collect()
    }

    /// Hosts without an index of their own: none, one that no host has, or one that two have.
    pub fn without_index(&self) -> Vec<usize> {
        let indices = self.indices();
        let alone = |index: &Option<usize>| {
            let same = indices.iter().filter(|other| *other == index).count();
            index.is_some_and(|index| index < indices.len()) && same == 1
        };
        (0..indices.len()).filter(|worker| !alone(&indices[*worker])).collect()
    }

    /// Hosts that are all up, have started nothing yet, and don't have an index each.
    pub fn is_ungathered(&self) -> bool {
        let idle = |worker: &WorkerState| worker.attempt == 0 && worker.generation > 0;
        let idle = self.job.workers.values().all(idle) && !self.job.has_run;
        idle && self.supervisors_are(TAKES_ROLL_CALL) && !self.without_index().is_empty()
    }

    /// Hosts with fewer chips than `usual`, on which nothing of the job runs.
    pub fn short_of_chips(&self, usual: u32) -> Vec<usize> {
        let short = |worker: &WorkerState| {
            worker.chips.is_some_and(|chips| chips < usual) && !worker.runs()
        };
        let hosts = self.job.workers.iter().filter(|(_, worker)| short(worker));
        hosts.map(|(index, _)| *index).collect()
    }

    /// The host that was told to reboot, and whose chips a process of an earlier run holds all the same.
    pub fn has_stuck_chips(&self) -> Option<usize> {
        let stuck = self.job.failed.as_ref().filter(|_| self.job.stuck == Some(Stuck::ChipsStuck));
        stuck.map(|(worker, ..)| *worker).filter(|worker| self.job.reboots.contains_key(worker))
    }

    /// Whether every host has reported within the last minutes, each with an index of its own (S22).
    /// Supervisors before version 4 tell no index.
    pub fn roll_is_whole(&self) -> bool {
        let alive = self.job.workers.values().all(|worker| worker.quiet_for < ALIVE);
        alive && self.has_its_indices()
    }

    /// Whether every host calls the others, ready to start, and was heard within the last minutes (S22): one that
    /// is only late must not be left out of a run.
    pub fn all_hosts_call(&self) -> bool {
        let calls = |worker: &WorkerState| {
            worker.phase.as_ref().and_then(|(_, words)| Idle::of(words)) == Some(Idle::RollCall)
        };
        self.roll_is_whole() && self.job.workers.values().all(calls)
    }

    /// Whether every host has an index of its own.
    pub fn has_its_indices(&self) -> bool {
        let indices = self.indices();
        let known = indices.iter().flatten().filter(|index| **index < indices.len());
        self.supervisors_are(TAKES_ROLL_CALL)
            && known.collect::<BTreeSet<_>>().len() == indices.len()
    }
}
