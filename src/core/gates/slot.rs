//! Gates of deletes and creates alike, and of deletes of every kind.

use super::common::hold;
use super::common::is_pending;
use super::common::undeleted;
use super::common::what;
use super::standing;
use crate::core::budget;
use crate::core::ctx::SlotCtx;
use crate::core::diagnose;
use crate::core::ending;
use crate::model::condition::Condition;
use crate::model::condition::Kind;
use crate::model::hold::HoldReason;
use crate::model::recovery::Recovery;
use crate::model::settings::JobSettings;
use crate::model::settings::WhenMissing;
use crate::model::slot::Wish;
use crate::model::time::span;
use crate::model::view::Decision;

/// Refused deletes in a row after which an operator is called.
pub const DELETE_FAILURES: u32 = 3;

/// S7: an operator said so. A create that was not sent waits as well.
pub fn paused(ctx: &SlotCtx) -> Option<Decision> {
    Some(standing::paused(ctx.subject())?.stops(&what(ctx)))
}

/// S7: the label is remembered when its node is gone.
pub fn opted_out(ctx: &SlotCtx) -> Option<Decision> {
    let mut obstacle = standing::opted_out(ctx.subject())?;
    if is_pending(ctx) || ctx.record.is_gone() {
        obstacle.why += &format!("; `resume {}` releases the create", ctx.record.name);
    }
    Some(obstacle.stops(&what(ctx)))
}

/// An operator has called its create off.
pub fn forgotten(ctx: &SlotCtx) -> Option<Decision> {
    Some(standing::forgotten(ctx.subject())?.stops(&what(ctx)))
}

/// A node that was deleted on purpose is not created again by itself.
pub fn deleted(ctx: &SlotCtx) -> Option<Decision> {
    // After what was lost a deletion is only its end.
    let asks = diagnose::may_be_on_purpose(ctx.record);
    let missing = asks || ctx.condition() == Condition::Missing;
    let owed = is_asked_for(ctx) || diagnose::is_owed(ctx.record);
    if !missing || owed || ctx.slot.policy.when_missing != WhenMissing::Auto {
        return None;
    }
    if let Some(why) = &ctx.record.deleted {
        return hold(HoldReason::Deleted, deleted_for(ctx, why), None);
    }
    let text =
        || format!("{}: checking the zone's operations for a deliberate delete", ctx.condition());
    (asks && ctx.memory.deletions.is_none()).then(|| Decision::wait(text(), None))
}

fn deleted_for(ctx: &SlotCtx, why: &str) -> String {
    let (condition, name) = (ctx.condition(), &ctx.record.name);
    format!(
        "{condition}, and deleted on purpose: {why}. `recreate {name}` creates it again, `forget {name}` keeps it gone"
    )
}

/// An operator wants it recreated, and it is gone already.
fn is_asked_for(ctx: &SlotCtx) -> bool {
    let present = &ctx.record.incarnation;
    let of_it = |wish: &Wish| present.is_none() || *present == wish.incarnation;
    ctx.record.wanted.as_ref().is_some_and(of_it)
}

/// S17: what is not the slot's own plain node is replaced by those whose it is, or not at all.
pub fn plain_node(ctx: &SlotCtx) -> Option<Decision> {
    Some(standing::plain_node(ctx.subject())?.stops(&what(ctx)))
}

/// A node that is missing may have been deleted on purpose: the config says so.
pub fn when_missing(ctx: &SlotCtx) -> Option<Decision> {
    let held = ctx.condition() == Condition::Missing
        && !diagnose::is_owed(ctx.record)
        && !is_asked_for(ctx)
        && ctx.slot.policy.when_missing == WhenMissing::Hold;
    let text = || {
        format!(
            "{}, and when_missing = \"hold\"; `recreate {}` creates it",
            ctx.condition(),
            ctx.record.name
        )
    };
    held.then(|| Decision::hold(HoldReason::Missing, text(), None))
}

/// S23: a job that ended early may be done: neither a replacement nor a delete is known to be
/// right.
pub fn ended_early(ctx: &SlotCtx) -> Option<Decision> {
    ending::holds_recreate(ctx.record, ctx.slot.job.as_ref().map(JobSettings::key))
}

/// S12: nothing is deleted that could not be created again.
pub fn specification(ctx: &SlotCtx) -> Option<Decision> {
    Some(standing::specification(ctx.subject())?.stops(&what(ctx)))
}

/// After a refusal, or an answer that was lost, the next delete waits; one that is refused again and
/// again is told, and tried at the longest wait (L2).
pub fn delete_backoff(ctx: &SlotCtx) -> Option<Decision> {
    let recovery = undeleted(ctx)?;
    let at = recovery.not_before.filter(|at| *at > ctx.now)?;
    let (what, failures) = (ctx.condition(), recovery.delete_failures);
    if failures < DELETE_FAILURES {
        let text = format!("{what}: waiting after a failed delete");
        return hold(HoldReason::Backoff, text, Some(at));
    }
    let why = recovery.undeleted.as_deref().unwrap_or("see the log");
    let text =
        format!("{what}: the delete was refused {failures} times ({why}); it is tried again");
    hold(HoldReason::DeleteFailed, text, Some(at))
}

/// S13. A delete that is tried again is the same recovery; what was lost when its delete failed,
/// and is judged by now, is another decision.
pub fn attempts(ctx: &SlotCtx) -> Option<Decision> {
    let pending = ctx.record.recovery.as_ref().filter(|_| is_pending(ctx)).map(|r| r.kind);
    let kind = pending.or(ctx.condition().kind()).or(asked_for(ctx))?;
    // A judged slot has passed here before its delete.
    if pending == Some(Kind::Judged) || is_tried_again(ctx, kind) {
        return None;
    }
    let window = ctx.slot.policy.attempts.window;
    let all = ctx.record.attempts_used(kind, window, ctx.now);
    let used = all.saturating_sub(usize::from(pending.is_some()));
    match kind {
        Kind::Lost => preemptions(ctx, used),
        Kind::Judged => recoveries(ctx, used),
    }
}

fn asked_for(ctx: &SlotCtx) -> Option<Kind> {
    ctx.record.wanted.as_ref().map(|_| Kind::Judged)
}

fn is_tried_again(ctx: &SlotCtx, kind: Kind) -> bool {
    let again = |recovery: &Recovery| (recovery.kind, kind) != (Kind::Lost, Kind::Judged);
    undeleted(ctx).is_some_and(again)
}

fn preemptions(ctx: &SlotCtx, used: usize) -> Option<Decision> {
    let (what, policy) = (what(ctx), &ctx.slot.policy.attempts);
    let window = span(policy.window);
    let text = format!(
        "{what}: {used} preemptions within {window}, the limit (attempts.preemptions); resumes as the window slides"
    );
    let until = budget::slides_at(ctx.record, &ctx.slot.policy);
    (used >= policy.preemptions).then(|| Decision::hold(HoldReason::Preemptions, text, until))
}

fn recoveries(ctx: &SlotCtx, used: usize) -> Option<Decision> {
    let (what, policy) = (what(ctx), &ctx.slot.policy.attempts);
    let text = format!(
        "{what}: {used} recoveries within {} did not help; find the cause, then `retry {}` (or raise attempts.max)",
        span(policy.window),
        ctx.record.name
    );
    (used >= policy.max).then(|| Decision::hold(HoldReason::Attempts, text, None))
}
