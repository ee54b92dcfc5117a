//! S6: how many judged slots are in recovery, by this room's own reading. TPUs and managed training jobs
//! are counted apart: two hundred jobs are no reason to take all of four TPUs down at once.

use crate::model::condition::{Condition, Kind};
use crate::model::failure::FailureClass;
use crate::model::fleet::Fleet;
use crate::model::phase::Phase;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;

/// Slots of one sort.
#[derive(Default)]
pub(super) struct Sort {
    /// How many there are.
    pub(super) desired: usize,
    /// How many of them take room.
    pub(super) judged: usize,
    /// How many may.
    pub(super) most: usize,
}

/// Where a slot is counted.
pub(super) fn sort(slot: &SlotSettings) -> usize {
    slot.filling.traits().budget as usize
}

/// TPUs, and training jobs.
pub(super) fn counted(fleet: &Fleet) -> [Sort; 2] {
    let mut sorts = [Sort::default(), Sort::default()];
    for (name, record) in &fleet.slots {
        let of = &mut sorts[fleet.settings.slots.get(name).map_or(0, sort)];
        of.desired += 1;
        of.judged += usize::from(takes_room(record));
    }
    for of in &mut sorts {
        of.most = fleet.settings.max_unavailable.of(of.desired);
    }
    sorts
}

/// Judged and in recovery; not up again, nor merely short of capacity, held, or at rest.
pub(super) fn takes_room(record: &SlotRecord) -> bool {
    let Some(recovery) = record.recovery.as_ref().filter(|recovery| recovery.kind == Kind::Judged)
    else {
        return record.is_relaunched_for_sickness();
    };
    let shortage = |class: &FailureClass| {
        matches!(class, FailureClass::StockOut | FailureClass::Quota | FailureClass::Rate)
    };
    let refused = recovery.refusal.as_ref().is_some_and(|(class, _)| shortage(class));
    let short = recovery.phase() == Phase::Gone && recovery.not_before.is_some() && refused;
    let beacons = record.seen.as_ref().is_some_and(|seen| seen.supervised);
    let up = matches!(recovery.phase(), Phase::Booted | Phase::Launched)
        || (recovery.phase() == Phase::Ready && !beacons);
    let condition = record.verdict.condition;
    let at_rest = [Condition::Stopped, Condition::Finished, Condition::Waiting]
        .contains(&condition)
        || condition.job_stands();
    !(short || at_rest || recovery.set_apart || up)
}
