//! The rule of cancelling a managed training job that saves nothing.

use super::case::{Case, Checked, rule};
use crate::model::condition::Condition;
use crate::model::spec::TRAINING_KEY;
use crate::model::time::elapsed;

/// S5: it has run for `stall`, and so long has a location that was listed just now had nothing new.
pub fn is_stalled(case: &Case, condition: Condition) -> Checked {
    if condition != Condition::JobStalled {
        return Ok(());
    }
    let (record, memory, now) = (case.record, case.memory, case.now);
    let job = record.spec.as_ref().and_then(|spec| spec.body().get(TRAINING_KEY));
    let is_study = job.is_some_and(|job| job.get("trialJobSpec").is_some());
    let of = case.slot.filling.training().filter(|of| of.restart_study || !is_study);
    let stall = of.and_then(|of| of.stall);
    let listed =
        memory.surveyed_at.filter(|at| *at <= now && elapsed(*at, now) <= case.slot.policy.max_age);
    let listed =
        listed.filter(|_| memory.survey_failure.is_none() && record.job.listed_at.is_some());
    let known = case.slot.job.is_some() || record.job.checkpoint.is_some();
    let last = record
        .ready_since
        .max(record.job.checkpoint_at)
        .max(record.job.progress_at)
        .max(record.job.steps_at)
        .filter(|_| record.ready_since.is_some());
    let stands = stall
        .zip(last)
        .zip(listed)
        .is_some_and(|((stall, last), listed)| elapsed(last, listed) >= stall);
    rule(
        known && stands && !record.job.unrecognised,
        "S5",
        "its checkpoints do not show that it has stood for `stall`",
    )
}
