//! The GET that confirms what a delete rests on (S1), and the answer when it does not.

use std::time::Duration;

use crate::model::condition::Condition;
use crate::model::event::What;
use crate::model::fleet::Confirmed;
use crate::model::hold::HoldReason;
use crate::model::settings::Policy;
use crate::model::time::{elapsed, span};
use crate::model::view::Decision;

use super::ctx::SlotCtx;
use super::turn::Turn;

/// A confirming GET is good for this long (S1).
const CONFIRMED_FOR: Duration = Duration::from_secs(5);
/// GETs in a row that were too slow, after which that is shown as a hold.
const SLOW_GETS: u32 = 3;

/// The GET that confirms the present condition of exactly this incarnation, if there is one that is
/// fresh enough.
pub fn confirmed(ctx: &SlotCtx) -> Option<Confirmed> {
    let (condition, record) = (ctx.condition(), &*ctx.record);
    let confirmed = ctx.memory.confirmed.as_ref()?;
    let fresh = elapsed(confirmed.began, ctx.now) <= good_for(&ctx.slot.policy);
    let same = confirmed.incarnation.is_none() || confirmed.incarnation == record.incarnation;
    let holds = fresh
        && confirmed.condition == condition
        && (condition == Condition::Missing) == confirmed.incarnation.is_none()
        && same
        && record.mutated_at.is_none_or(|at| confirmed.began > at);
    holds.then(|| confirmed.clone())
}

/// How old a confirming GET may be: nothing rests on a read older than `max_age` either (S2).
pub fn good_for(policy: &Policy) -> Duration {
    CONFIRMED_FOR.min(policy.max_age)
}

/// A GET that takes longer than it may be old confirms nothing (S1): told, and asked for again.
pub fn too_slow(ctx: &SlotCtx) -> Option<Decision> {
    let text = || {
        format!(
            "{}: {} GETs of the node in a row took longer than {}, so none is fresh enough to delete on (S1); check the network between this machine and the API",
            ctx.condition(),
            ctx.memory.slow_gets,
            span(good_for(&ctx.slot.policy))
        )
    };
    (ctx.memory.slow_gets >= SLOW_GETS).then(|| Decision::hold(HoldReason::SlowGet, text(), None))
}

/// The checker forbids what was planned: a defect of the plan.
pub fn refused(ctx: &SlotCtx, invariant: &str, violation: &str, turn: &mut Turn) -> Decision {
    let message = format!(
        "the safety check refused the plan ({violation}): nothing is done; this is a defect, please report it"
    );
    turn.tell(
        ctx.record,
        What::InvariantViolation { invariant: invariant.to_owned() },
        message.clone(),
    );
    Decision::hold(HoldReason::Refused, message, None)
}
