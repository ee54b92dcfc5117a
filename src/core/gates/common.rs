//! What the gates share.

use crate::core::ctx::SlotCtx;
use crate::core::location;
use crate::model::condition::Condition;
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::time::after;
use crate::model::view::Decision;
use jiff::Timestamp;
use std::time::Duration;

/// A recorded checkpoint that complete listings lack for so long is gone (S15).
pub const WENT_BACK_AFTER: Duration = Duration::from_secs(10 * 60);

/// When the recorded checkpoint counts as gone, where the last listing lacked it.
pub fn goes_back_at(ctx: &SlotCtx) -> Option<Timestamp> {
    let job = &ctx.record.job;
    let here = location::listed(ctx.slot).is_some_and(|location| location.uri == job.location);
    let since = job.went_back_since.filter(|_| here && ctx.memory.went_back)?;
    Some(after(since, WENT_BACK_AFTER))
}

/// S15: the recorded checkpoint is gone, and an operator has to say from which step to go on.
pub fn went_back(ctx: &SlotCtx, wanted: &str) -> Option<Decision> {
    goes_back_at(ctx).filter(|at| *at <= ctx.now)?;
    let (why, name) = (ctx.memory.survey_failure.as_ref()?, &ctx.record.name);
    let text = format!(
        "{wanted} {why}: restore it, or say from which step with `retry {name} --from STEP`"
    );
    hold(HoldReason::CheckpointWentBack, text, None)
}

pub fn hold(reason: HoldReason, text: String, until: Option<Timestamp>) -> Option<Decision> {
    Some(Decision::hold(reason, text, until))
}

/// The subject of a gate of deletes and creates alike, in words.
pub fn what(ctx: &SlotCtx) -> String {
    if is_pending(ctx) { "its create is pending".to_owned() } else { ctx.condition().to_string() }
}

pub fn is_pending(ctx: &SlotCtx) -> bool {
    ctx.record.recovery.as_ref().is_some_and(|recovery| recovery.phase() == Phase::Gone)
}

/// A recovery whose delete was refused or did not come about, for the same node. One that is gone
/// by now needs no delete.
pub fn undeleted<'a>(ctx: &'a SlotCtx) -> Option<&'a Recovery> {
    let recovery = ctx.record.recovery.as_ref()?;
    (recovery.phase() == Phase::Condemned && ctx.condition() != Condition::Missing)
        .then_some(recovery)
}
