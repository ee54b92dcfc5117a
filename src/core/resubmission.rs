//! How often a managed training job is submitted again. The service has spent its own restarts when a job shows
//! FAILED, so that ours are few; a newer complete checkpoint gives them back, and so does `retry`.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::checkpoint::CheckpointSurvey;
use crate::model::condition::{Condition, Verdict};
use crate::model::event::What;
use crate::model::failure::FailureClass;
use crate::model::hold::HoldReason;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::time::{elapsed, span};
use crate::model::training::{Resubmitted, Training};

use super::location;
use super::turn::Turn;

/// A job that runs for so long without a new complete checkpoint is told of. Source: the guides' advice on hung workers.
const TOLD_AFTER: Duration = Duration::from_secs(4 * 3600);

/// Since when a job has run without saving anything complete, where that is long enough to be told, for how long it was
/// watched, and both in words.
fn saves_nothing(
    record: &SlotRecord,
    slot: &SlotSettings,
) -> Option<(Timestamp, Duration, String)> {
    let runs = matches!(record.verdict.condition, Condition::Healthy | Condition::JobStalled);
    let of = slot.filling.training().filter(|_| runs)?;
    let location = location::watched(record, slot)?;
    // Growth of one that is being written counts as well.
    let saved = record.job.checkpoint_at.max(record.job.progress_at).max(record.job.steps_at);
    let since = record.ready_since?.max(saved.unwrap_or_default());
    let uri = &location.uri;
    let lasts = elapsed(since, location::listed_at(record, uri)?);
    let told = stall(record, of).map_or(TOLD_AFTER, |stall| stall.min(TOLD_AFTER));
    let text = || {
        let lasts = span(lasts);
        format!("it runs, and {uri} has had no new complete checkpoint since {since:.0} ({lasts})")
    };
    (lasts >= told).then(|| (since, lasts, text()))
}

/// Takes in the set of step folders of a listing: a job that begins in the folder of an older run saves below that one's
/// steps, and must not look as if it stood. Returns whether it is another set.
pub fn saw(record: &mut SlotRecord, seen: &CheckpointSurvey, now: Timestamp) -> bool {
    let (job, steps) = (&mut record.job, seen.steps.as_str());
    let unrecognised = seen.newest.is_none() && steps.is_empty() && seen.other.is_some();
    let changed = std::mem::replace(&mut job.unrecognised, unrecognised) != unrecognised;
    if job.steps == steps {
        return changed;
    }
    // The first one that is known may be old.
    job.steps_at = if job.steps.is_empty() { job.steps_at } else { Some(now) };
    steps.clone_into(&mut job.steps);
    true
}

/// The verdict on a job that saves nothing for `stall`, where the config has that.
pub fn stalled(record: &SlotRecord, slot: &SlotSettings) -> Option<Verdict> {
    let stall = stall(record, slot.filling.training()?)?;
    let known = !record.job.unrecognised && is_known(record, slot);
    let (_, lasts, text) = saves_nothing(record, slot).filter(|_| known)?;
    let text = format!("{text}, stall = {}", span(stall));
    (lasts >= stall).then(|| Verdict::new(Condition::JobStalled, text))
}

/// Whether the job saves where its location is listed: one that the config does not name is known once it has had a complete
/// checkpoint, since the job may save elsewhere.
fn is_known(record: &SlotRecord, slot: &SlotSettings) -> bool {
    slot.job.is_some() || record.job.checkpoint.is_some()
}

fn stall(record: &SlotRecord, of: &Training) -> Option<Duration> {
    let kind = record.spec.as_ref().and_then(NodeSpec::job_kind).unwrap_or(of.kind);
    of.stall.filter(|_| !of.takes_consent(kind))
}

/// The same in words.
pub fn warning(record: &SlotRecord, slot: &SlotSettings) -> Option<String> {
    let (.., text) = saves_nothing(record, slot)?;
    let then = match stall(record, slot.filling.training()?) {
        _ if record.job.unrecognised || !is_known(record, slot) => {
            "nothing is cancelled for it: if the job saves elsewhere, or in a layout of its own, name that as its checkpoint (checkpoint = { uri, format })".to_owned()
        }
        Some(stall) => format!("it is cancelled and submitted again after {}", span(stall)),
        None => "nothing is cancelled for it without `stall` (and `restart_study` of a study)".to_owned(),
    };
    Some(format!("{text}: a hung worker looks like this. Look at the job's logs; {then}"))
}

/// Tells it once for each job, and once more for each checkpoint after it. Returns whether the record
/// changed: the next scheduled run must not tell it again.
pub fn tell(record: &mut SlotRecord, slot: &SlotSettings, turn: &mut Turn) -> bool {
    let since = saves_nothing(record, slot).map(|(since, ..)| since);
    let news = record.job.saves_nothing != since;
    if let Some(text) = warning(record, slot).filter(|_| news) {
        turn.tell(record, What::Note, text);
    }
    record.job.saves_nothing = since;
    news
}

/// Tells of the data of a job that is submitted in another region than its predecessor.
pub fn elsewhere(record: &SlotRecord, slot: &SlotSettings) -> Option<String> {
    slot.filling.training()?;
    let before = record.left_in.as_ref().filter(|before| **before != record.zone)?;
    let (region, uri) = (&record.zone, &location::watched(record, slot)?.uri);
    Some(format!(
        "it goes on in {region}, and reads {uri} from there: where that bucket is in {before} alone this is slower, and its traffic is billed; a bucket of both regions costs neither"
    ))
}

/// The present job is condemned: the next submission counts by what ended this one.
pub fn count(record: &mut SlotRecord, condition: Condition) {
    let (mut counts, class) = (since_progress(record), class(record, condition));
    let never_began = matches!(class, Some(FailureClass::StockOut | FailureClass::Quota));
    // Nor does a person's own wish count.
    if is_over(record, condition) && !never_began && condition != Condition::Requested {
        counts.fruitless += 1;
        counts.transient += u32::from(class == Some(FailureClass::TransientExit));
        counts.job += u32::from(class == Some(FailureClass::Internal));
        record.resubmitted = counts;
    }
}

/// Why the job is not submitted again before a person has looked.
pub fn used_up(
    record: &SlotRecord,
    slot: &SlotSettings,
    condition: Condition,
) -> Option<(HoldReason, String)> {
    let of = slot.filling.training().filter(|_| is_over(record, condition))?;
    let (counts, restart) = (since_progress(record), of.restart);
    let (used, most, key) = match class(record, condition) {
        Some(FailureClass::StockOut | FailureClass::Quota) => return None,
        Some(FailureClass::TransientExit) => (counts.transient, restart.transient, "transient"),
        Some(FailureClass::Internal) => (counts.job, restart.job, "job"),
        _ => (0, u32::MAX, ""),
    };
    let then = format!("find the cause, or correct its `checkpoint`, then `retry {}`", record.name);
    if used >= most {
        let text = format!(
            "submitted again {used} times for such an end (restart.{key} = {most}); {then}"
        );
        return Some((HoldReason::Attempts, text));
    }
    // A location that the config does not name is known once the job has saved there.
    let seen = location::watched(record, slot).is_some() && is_known(record, slot);
    let (most, why) = match seen {
        true => (restart.no_progress, "without a newer complete checkpoint"),
        // Where no location of checkpoints is known, one submission has to do.
        false => (restart.no_progress.min(1), "and no complete checkpoint was ever seen"),
    };
    let used = counts.fruitless;
    let text = format!("submitted again {used} times {why} (restart.no_progress); {then}");
    (used >= most).then_some((HoldReason::NoProgress, text))
}

/// Whether the job has ended by what its resubmissions count. Capacity that is taken back says nothing of the job:
/// `attempts.preemptions` bounds that.
fn is_over(record: &SlotRecord, condition: Condition) -> bool {
    condition == Condition::JobStalled || record.has_ended() && condition != Condition::Preempted
}

/// The counts as they stand: a newer complete checkpoint ends them.
fn since_progress(record: &SlotRecord) -> Resubmitted {
    let step = record.job.checkpoint.as_ref().map(|checkpoint| checkpoint.step);
    let known = record.resubmitted;
    if step > known.step { Resubmitted { step, ..Resubmitted::default() } } else { known }
}

/// The cause of its end, where that decides which count it is.
fn class(record: &SlotRecord, condition: Condition) -> Option<FailureClass> {
    let failure = record.seen.as_ref()?.failure.as_ref()?;
    (condition == Condition::RequestFailed).then_some(failure.class)
}
