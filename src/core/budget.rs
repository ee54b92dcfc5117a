//! The budgets of the whole fleet: judged slots in recovery (S6), creates a minute (S18), and
//! preemptions that slide out of their window.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::fleet::{Fleet, Gust, Ledger, Memory, Pending};
use crate::model::phase::Phase;
use crate::model::settings::{Policy, SlotSettings, Storm};
use crate::model::slot::SlotRecord;
use crate::model::step::Call;
use crate::model::time::{after, elapsed};

/// Creates a minute and project (S18): the quota is about 90, others limit themselves to 60.
pub const CREATES_PER_MINUTE: usize = 59;
/// The window of [`CREATES_PER_MINUTE`].
pub const CREATE_WINDOW: Duration = Duration::from_secs(60);
/// Slots that were judged are forgotten after this long.
const KEPT: Duration = Duration::from_secs(7 * 86_400);

/// How many slots of one sort are wanted, and in recovery on a judgement.
#[derive(Debug, Default, Clone, Copy)]
pub struct Room {
    /// Slots that are wanted.
    pub desired: usize,
    /// Judged slots in recovery.
    pub unavailable: usize,
    /// How many there may be.
    pub max_unavailable: usize,
}

/// Kept true while slots are decided about one after the other.
#[derive(Default)]
pub struct Budget {
    /// Of TPUs, and of managed training jobs: two hundred jobs are no reason to take down all of four
    /// TPUs at once (S6, S8).
    pub rooms: [Room; 2],
    /// The ledger was written to.
    pub ledger_changed: bool,
    /// Slots that the storm breaker has counted.
    pub counted: Counted,
    /// Changes of run orders that this turn decided.
    pub amended: usize,
    /// Creates that the ledger counts no more and that may still leave.
    pub on_their_way: usize,
    /// Pools without capacity in which a create is under way: a probe (S14).
    pub probing: BTreeMap<String, String>,
    /// Pools in which a create that is still owed was refused for good: of which slot, and why.
    pub refused: BTreeMap<String, (String, String)>,
    /// Pools with a judged slot, ready to be tried, that shows no sign of life.
    pub lifeless: BTreeSet<String>,
}

/// The slots that the storm breaker has counted (S8), as the ledger has them: read once a turn.
#[derive(Default)]
pub struct Counted {
    at: BTreeMap<String, Timestamp>,
    // As rooms: of TPUs, and of training jobs.
    recent: [usize; 2],
}

impl Counted {
    /// Forgets what is old, and reads the rest.
    pub fn read(
        ledger: &mut Ledger,
        slots: &BTreeMap<String, SlotSettings>,
        storm: Storm,
        now: Timestamp,
    ) -> Counted {
        // One a slot, kept beyond the window: the same trouble is not counted again when it has passed.
        ledger.storm.retain(|gust| elapsed(gust.at, now) < KEPT.max(storm.window));
        let mut recent = [0; 2];
        for gust in ledger.storm.iter().filter(|gust| is_recent(gust, storm, now)) {
            recent[slots.get(&gust.slot).map_or(0, room)] += 1;
        }
        let at = ledger.storm.iter().map(|gust| (gust.slot.clone(), gust.at)).collect();
        Counted { at, recent }
    }

    /// When a slot was counted last.
    pub fn last(&self, slot: &str) -> Option<Timestamp> {
        self.at.get(slot).copied()
    }

    /// How many of this sort are within the window, and were not forgiven.
    pub fn recent(&self, slot: &SlotSettings) -> usize {
        self.recent[room(slot)]
    }

    /// Counts a slot now, in place of an older time of it.
    pub fn add(&mut self, ledger: &mut Ledger, gust: Gust, slot: &SlotSettings, storm: Storm) {
        let recent = &mut self.recent[room(slot)];
        if self.at.insert(gust.slot.clone(), gust.at).is_some() {
            ledger.storm.retain(|old| {
                let other = old.slot != gust.slot;
                *recent -= usize::from(!other && is_recent(old, storm, gust.at));
                other
            });
        }
        *recent += 1;
        ledger.storm.push(gust);
    }
}

/// Which room of [`Budget::rooms`] a slot counts in.
pub fn room(slot: &SlotSettings) -> usize {
    slot.filling.traits().budget as usize
}

fn is_recent(gust: &Gust, storm: Storm, now: Timestamp) -> bool {
    !gust.forgiven && elapsed(gust.at, now) < storm.window
}

/// Whether a slot counts under `max_unavailable` (S6): judged and in recovery, its replacement not
/// booted yet, and not merely waiting for capacity, for an operator, or for nothing at all; or its job
/// is being relaunched because its TPU is sick.
pub fn is_unavailable(record: &SlotRecord) -> bool {
    let condition = record.verdict.condition;
    let at_rest =
        matches!(condition, Condition::Stopped | Condition::Finished | Condition::Waiting)
            || condition.job_stands();
    let beacons = record.seen.as_ref().is_some_and(|seen| seen.supervised);
    let up = |phase: Phase| match phase {
        Phase::Booted | Phase::Launched => true,
        // No beacon is expected where the supervisor is not there to send one.
        Phase::Ready => !beacons,
        _ => false,
    };
    let counts = record
        .recovery
        .as_ref()
        .is_some_and(|r| r.kind == Kind::Judged && !r.set_apart && !up(r.phase()));
    counts && !at_rest || record.is_relaunched_for_sickness()
}

/// How many TPUs count under `max_unavailable` now.
pub fn unavailable(fleet: &Fleet) -> usize {
    tpus(fleet).filter(|record| is_unavailable(record)).count()
}

/// How many others may be taken into recovery on a judgement.
pub fn remaining(fleet: &Fleet) -> usize {
    let most = fleet.settings.max_unavailable.of(tpus(fleet).count());
    most.saturating_sub(unavailable(fleet))
}

fn tpus(fleet: &Fleet) -> impl Iterator<Item = &SlotRecord> {
    let slots = fleet.settings.slots.values().filter(|slot| room(slot) == 0);
    slots.filter_map(|slot| fleet.slots.get(&slot.name))
}

/// Creates that may still leave although the minute of their intent is over (S18): a write was
/// slow, or their process ended.
pub fn on_its_way(
    record: &SlotRecord,
    memory: &BTreeMap<String, Memory>,
    name: &str,
    now: Timestamp,
) -> bool {
    record.recovery.as_ref().is_some_and(|r| {
        let (intended, age) = (
            r.phase() == Phase::Creating && r.call() == Some(&Call::Intended),
            elapsed(r.phase_since, now),
        );
        let sending = || memory.get(name).is_some_and(|m| m.pending.contains(&Pending::Call));
        intended && age >= CREATE_WINDOW && (age < CREATE_WINDOW * 2 || sending())
    })
}

/// When a lost slot of this record may be tried again: preemptions slide out of their window.
pub fn slides_at(record: &SlotRecord, policy: &Policy) -> Option<Timestamp> {
    record
        .attempts
        .iter()
        .find(|a| a.kind == Kind::Lost)
        .map(|oldest| after(oldest.at, policy.attempts.window))
}
