//! How the runs of a job go (S16): runs that make no new step are counted, a checkpoint that none of them gets away from is
//! passed over once, and then an operator must look.
//!
//! A run begins with a run order, and is counted once, when it ends: by itself with a code, by a hang, or because its TPU
//! broke in a way that may be the job's doing. A TPU that is preempted says nothing about the job. What counts is a step
//! beyond all that were seen before, or a newer complete checkpoint: the present run then starts all counts from zero.
//!
//! Two counts run side by side. `fruitless` counts runs without a new step, whatever ended them; after `no_progress` of them
//! nothing is started. `stuck` counts those that did not even get past the checkpoint that they started from; the third has
//! the next older one taken, once, and if that does not help either, nothing is started.
//!
//! Example: three runs from step 500 end without a step 501. The fourth starts from 400. If it reaches 501, all is forgotten;
//! if it does not, the slot holds with `no_progress`, and says from which checkpoints was tried.

use jiff::Timestamp;

use crate::model::condition::Condition;
use crate::model::event::What;
use crate::model::exit::Stuck;
use crate::model::job::Runs;
use crate::model::settings::JobSettings;
use crate::model::slot::SlotRecord;

use super::codes;
use super::turn::Turn;

/// Runs from one checkpoint that never reached a first step, after which it is passed over.
const STUCK_RUNS: u32 = 3;

/// A run is ordered to start from this step.
pub fn ordered(record: &mut SlotRecord, from: Option<u64>) {
    let runs = &mut record.job.runs;
    if runs.started_from != from {
        runs.stuck = 0;
    }
    (runs.started_from, runs.began, runs.progressed, runs.stepped) = (from, false, false, false);
    runs.listed_before = runs.best_listed;
}

/// Checkpoints are looked for in another place, where `newest` was before: what was counted in the
/// old one means nothing here.
pub fn elsewhere(runs: &mut Runs, newest: Option<u64>) {
    (runs.best_listed, runs.listed_before, runs.set_aside) = (None, newest, None);
    (runs.fruitless, runs.exits, runs.stuck, runs.code) = (0, 0, 0, None);
}

/// A listing's newest complete checkpoint. Returns whether none before got so far.
pub fn listed(record: &mut SlotRecord, step: u64) -> bool {
    let runs = &mut record.job.runs;
    let new = Some(step) > runs.best_listed;
    runs.best_listed = runs.best_listed.max(Some(step));
    new
}

/// An operator went back to `newest`, the newest complete checkpoint now: what lies beyond it is to
/// be done once more.
pub fn went_back(runs: &mut Runs, newest: Option<u64>) {
    runs.best_listed = newest;
    (runs.best_step, runs.listed_before) =
        (runs.best_step.min(newest), runs.listed_before.min(newest));
}

/// The present run reported this step. Returns whether no run before got so far.
pub fn stepped(record: &mut SlotRecord, step: u64) -> bool {
    let runs = &mut record.job.runs;
    runs.stepped |= Some(step) > runs.started_from;
    let new = Some(step) > runs.best_step.max(runs.started_from);
    if new {
        runs.best_step = Some(step);
        progressed(record);
    }
    new
}

/// The present run got beyond everything before it.
pub fn progressed(record: &mut SlotRecord) {
    let runs = &mut record.job.runs;
    runs.progressed = true;
    (runs.fruitless, runs.exits, runs.stuck, runs.code) = (0, 0, 0, None);
}

/// Whether the job is what fails under this condition: a node that breaks under it says nothing
/// about its runs.
fn is_about_the_job(condition: Condition) -> bool {
    matches!(condition, Condition::Silent | Condition::RuntimeUnhealthy | Condition::JobFailed)
}

/// Whether the present run has begun and its end was not taken in yet: that is done once, however
/// often the slot is condemned, or its job ordered, before the next run.
fn is_new(record: &SlotRecord, condition: Condition) -> bool {
    let runs = &record.job.runs;
    is_about_the_job(condition) && runs.began && runs.counted != Some(record.heard_from())
}

/// Whether that end counts against the job.
fn counts(record: &SlotRecord, condition: Condition) -> bool {
    is_new(record, condition) && !is_free(record, condition)
}

fn is_free(record: &SlotRecord, condition: Condition) -> bool {
    let gave_up = condition == Condition::JobFailed && record.job.stuck == Some(Stuck::GaveUp);
    (gave_up || ends_by_itself(record, condition)) && codes::is_free(record)
}

/// Runs in a row without a new step, the present one included, if this condition ended it now.
pub fn fruitless(record: &SlotRecord, condition: Condition) -> u32 {
    let runs = &record.job.runs;
    let before = match ends_by_itself(record, condition) {
        true if codes::was_long(record) => 0,
        true => runs.exits,
        false => runs.fruitless,
    };
    before + u32::from(counts(record, condition) && !runs.progressed)
}

/// Whether the next run starts from an older checkpoint, if this condition ends the present one.
fn passes_over(record: &SlotRecord, condition: Condition) -> Option<u64> {
    let runs = &record.job.runs;
    let stuck = runs.stuck + u32::from(counts(record, condition) && !runs.stepped);
    runs.started_from.filter(|_| stuck >= STUCK_RUNS && runs.set_aside.is_none())
}

/// Whether an operator must look before the job is started again.
pub fn is_over(record: &SlotRecord, job: Option<&JobSettings>, condition: Condition) -> bool {
    let most = |job: &JobSettings| {
        if ends_by_itself(record, condition) { job.restarts_per_run } else { job.no_progress }
    };
    is_about_the_job(condition)
        && job.is_some_and(|job| {
            fruitless(record, condition) >= most(job) || permanent(record, job, condition).is_some()
        })
        && passes_over(record, condition).is_none()
}

/// Why the present run would end as it did once more, where that is known.
pub fn permanent(record: &SlotRecord, job: &JobSettings, condition: Condition) -> Option<String> {
    if !ends_by_itself(record, condition) {
        return None;
    }
    codes::permanent(record, job, counts(record, condition))
}

/// Whether the run is one on several hosts that ended with a code: on a single one its supervisor
/// would start it again, `restart.per_run` times.
pub fn ends_by_itself(record: &SlotRecord, condition: Condition) -> bool {
    condition == Condition::JobFailed && record.job.stuck == Some(Stuck::Waits)
}

/// The slot was condemned, or its job is ordered again: the present run has ended. Returns whether its
/// checkpoint is passed over from now on.
pub fn ended(record: &mut SlotRecord, condition: Condition, turn: &mut Turn) -> bool {
    let passed_over = passes_over(record, condition);
    let (counts, count) = (counts(record, condition), fruitless(record, condition));
    let (heard_from, exited) = (record.heard_from(), ends_by_itself(record, condition));
    let (is_new, is_free) = (is_new(record, condition), is_free(record, condition));
    let code = if exited && counts { codes::counted(record) } else { record.job.runs.code };
    let runs = &mut record.job.runs;
    if is_new {
        runs.counted = Some(heard_from);
        runs.free = if is_free { runs.free + 1 } else { 0 };
    }
    if counts {
        runs.stuck = if runs.stepped { 0 } else { runs.stuck + 1 };
    }
    runs.code = code;
    *(if exited { &mut runs.exits } else { &mut runs.fruitless }) = count;
    runs.began = false;
    let Some(step) = passed_over else { return false };
    (runs.set_aside, runs.stuck) = (Some((step, turn.now)), 0);
    (runs.fruitless, runs.exits, runs.code) = (0, 0, None);
    (record.job.checkpoint, record.job.incomplete) = (None, None);
    let message = format!(
        "{STUCK_RUNS} runs from the checkpoint of step {step} never reached a step; skipping it once; `retry` uses it again"
    );
    turn.tell(record, What::SetAside { step }, message);
    true
}

/// The step that is passed over when checkpoints are looked for.
pub fn set_aside(record: &SlotRecord) -> Option<u64> {
    record.job.runs.set_aside.map(|(step, _)| step)
}

/// Whether a listing that began then still took what is passed over for the newest, or does not
/// know yet what an operator wants.
pub fn is_outdated(record: &SlotRecord, began: Timestamp) -> bool {
    record.job.runs.set_aside.is_some_and(|(_, at)| began <= at)
        || record.job.accepts.is_some_and(|(_, at)| began < at)
}

/// An operator wants another try.
pub fn retry(record: &mut SlotRecord) {
    let runs = &mut record.job.runs;
    (runs.fruitless, runs.exits, runs.stuck, runs.set_aside) = (0, 0, 0, None);
    (runs.code, runs.free, runs.once_more) = (None, 0, None);
    // The present run is given its time again, too.
    (runs.began, runs.counted) = (false, None);
}
