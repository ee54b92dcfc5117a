//! What the gates share.

use crate::core::ctx::SlotCtx;
use crate::model::condition::Condition;
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::view::Decision;
use jiff::Timestamp;

pub fn hold(reason: HoldReason, text: String, until: Option<Timestamp>) -> Option<Decision> {
    Some(Decision::hold(reason, text, until))
}

/// The subject of a gate of deletes and creates alike, in words.
pub fn what(ctx: &SlotCtx) -> String {
    if is_pending(ctx) { "the create is owed".to_owned() } else { ctx.condition().to_string() }
}

pub fn is_pending(ctx: &SlotCtx) -> bool {
    ctx.record.recovery.as_ref().is_some_and(|recovery| recovery.phase == Phase::Gone)
}

/// A recovery whose delete was refused or did not come about, for the same node. One that is gone
/// by now needs no delete.
pub fn undeleted<'a>(ctx: &'a SlotCtx) -> Option<&'a Recovery> {
    let recovery = ctx.record.recovery.as_ref()?;
    (recovery.phase == Phase::Condemned && ctx.condition() != Condition::Missing)
        .then_some(recovery)
}
