//! Gates of a managed training job that has ended, and of its next submission.

use super::common::{hold, undeleted, what};
use super::standing;
use crate::core::ctx::SlotCtx;
use crate::core::resubmission;
use crate::model::condition::Condition;
use crate::model::hold::HoldReason;
use crate::model::time::{after, elapsed};
use crate::model::view::Decision;

/// A job that had ended before this watchdog knew of it is a person's to run again.
pub fn found_ended(ctx: &SlotCtx) -> Option<Decision> {
    Some(standing::job_held(ctx.subject())?.stops(&what(ctx)))
}

/// A submission as the config wants it, which the job can't have.
pub fn possible(ctx: &SlotCtx) -> Option<Decision> {
    Some(standing::impossible(ctx.subject())?.stops(&what(ctx)))
}

/// S13: submissions that did not help.
pub fn resubmissions(ctx: &SlotCtx) -> Option<Decision> {
    // A cancel that did not come about is counted already.
    if undeleted(ctx).is_some() && ctx.condition() == Condition::JobStalled {
        return None;
    }
    let (reason, why) = resubmission::used_up(ctx.record, ctx.slot, ctx.condition())?;
    hold(reason, format!("{}; {why}", ctx.record.verdict.evidence), None)
}

/// S5: what a job saved last was listed just now, and all of it: a checkpoint may have come meanwhile.
pub fn stalled(ctx: &SlotCtx) -> Option<Decision> {
    let condition = Some(ctx.condition()).filter(|of| *of == Condition::JobStalled)?;
    let fresh = |at| elapsed(at, ctx.now) <= ctx.slot.policy.max_age;
    let failure = &ctx.memory.survey_failure;
    if failure.is_none() && ctx.memory.surveyed_at.is_some_and(fresh) {
        return None;
    }
    let why = failure.as_deref().unwrap_or("its checkpoints are listed once more");
    let text = format!("{condition}, but {why}: it is left at work until a listing shows the same");
    hold(HoldReason::CheckpointUnreadable, text, None)
}

/// S24: complete lists of every region, newer than the end of its predecessor, show no live job of its lineage.
pub fn none_live(ctx: &SlotCtx) -> Option<Decision> {
    let listed = ctx.slot.filling.traits().is_found_by_lists;
    let since = ctx.record.recovery.as_ref().filter(|_| listed)?.phase_since;
    // A submission that was called off may show for so long.
    let shows = ctx.settings.poll.timeout + ctx.slot.filling.settle();
    let since = since.max(ctx.record.submitted_at.map_or(since, |at| after(at, shows)));
    let fresh = |at| at >= since && elapsed(at, ctx.now) <= ctx.slot.policy.max_age;
    let stale = !ctx.memory.none_live.is_some_and(fresh);
    let why = "its submission is pending; a poll has to show first that none of its lineage lives";
    stale.then(|| Decision::hold(HoldReason::Unclear, why, None))
}
