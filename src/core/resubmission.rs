//! How often a managed training job is submitted again. The service has spent its own restarts when a job shows
//! FAILED, so that ours are few; a newer complete checkpoint gives them back, and so does `retry`.

use crate::model::condition::Condition;
use crate::model::failure::FailureClass;
use crate::model::hold::HoldReason;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;
use crate::model::training::Resubmitted;
use crate::resource::training::possible;

use super::location;

/// Submissions without progress where no location of checkpoints is known.
const UNSEEN: u32 = 1;

/// The present job is condemned: the next submission counts by what ended this one.
pub fn count(record: &mut SlotRecord, condition: Condition) {
    if !record.has_ended() {
        return;
    }
    let mut counts = since_progress(record);
    match class(record, condition) {
        // It never got its machines.
        Some(FailureClass::StockOut | FailureClass::Quota) => {}
        class => {
            counts.fruitless += 1;
            counts.transient += u32::from(class == Some(FailureClass::TransientExit));
            counts.job += u32::from(class == Some(FailureClass::Internal));
        }
    }
    record.resubmitted = counts;
}

/// Why the job is not submitted again before a person has looked.
pub fn used_up(
    record: &SlotRecord,
    slot: &SlotSettings,
    condition: Condition,
) -> Option<(HoldReason, String)> {
    let of = slot.filling.training().filter(|_| record.has_ended())?;
    let spec = record.spec.as_ref();
    if let Some(why) = spec.and_then(|spec| possible::obstacle(spec, of, slot.zones.len())) {
        return Some((
            HoldReason::NotPossible,
            format!("it can't be submitted again as the config wants: {why}"),
        ));
    }
    let (counts, restart) = (since_progress(record), of.restart);
    let class = class(record, condition);
    let of_class = match class {
        Some(FailureClass::StockOut | FailureClass::Quota) => return None,
        Some(FailureClass::TransientExit) => {
            Some((counts.transient, restart.transient, "restart.transient"))
        }
        Some(FailureClass::Internal) => Some((counts.job, restart.job, "restart.job")),
        _ => None,
    };
    let then = format!("find the cause, then `retry {}`", record.name);
    if let Some((used, most, key)) = of_class.filter(|(used, most, _)| used >= most) {
        let text = format!("submitted again {used} times for such an end ({key} = {most}); {then}");
        return Some((HoldReason::Attempts, text));
    }
    let seen = location::listed(slot).is_some();
    let most = if seen { restart.no_progress } else { restart.no_progress.min(UNSEEN) };
    let why = if seen {
        "without a newer complete checkpoint"
    } else {
        "and no checkpoint location is known"
    };
    (counts.fruitless >= most).then(|| {
        let text = format!(
            "submitted again {} times {why} (restart.no_progress); {then}",
            counts.fruitless
        );
        (HoldReason::NoProgress, text)
    })
}

/// The counts as they stand: a newer complete checkpoint ends them.
fn since_progress(record: &SlotRecord) -> Resubmitted {
    let step = record.job.checkpoint.as_ref().map(|checkpoint| checkpoint.step);
    let known = record.resubmitted;
    if step > known.step { Resubmitted { step, ..Resubmitted::default() } } else { known }
}

/// The cause of its end, where that decides which count it is; none for a preemption.
fn class(record: &SlotRecord, condition: Condition) -> Option<FailureClass> {
    let failure = record.seen.as_ref()?.failure.as_ref()?;
    (condition == Condition::RequestFailed).then_some(failure.class)
}
