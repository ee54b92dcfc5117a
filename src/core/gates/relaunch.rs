//! Gates of a newer run order for the node that is there.

use super::common::hold;
use crate::core::ctx::SlotCtx;
use crate::core::location;
use crate::model::hold::HoldReason;
use crate::model::time::elapsed;
use crate::model::view::{ActionName, Decision};
use std::time::Duration;

/// The listing that an order rests on is at most this old: what runs may save meanwhile.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// S7.
pub fn order_dry_run(ctx: &SlotCtx) -> Option<Decision> {
    ctx.settings.dry_run.then(|| {
        let text = "the job would be started again on the same TPU";
        let mut decision = Decision::act(ActionName::Relaunch, text);
        decision.hold = Some(HoldReason::DryRun);
        decision
    })
}

/// S22: every worker is there, and its supervisor follows newer orders.
pub fn supervisors(ctx: &SlotCtx) -> Option<Decision> {
    let (record, hosts) = (&*ctx.record, ctx.record.size().hosts);
    let ours =
        record.ours && record.seen.as_ref().is_some_and(|seen| seen.supervised && seen.ready);
    if ours && ctx.slot.supervisor.is_some() && record.takes_orders() {
        return None;
    }
    let text = format!(
        "a relaunch is wanted, but not all of {hosts} workers have reported a supervisor that follows newer orders (version 2): a TPU that \
         this version creates has it; `recreate {}` replaces this one",
        record.name
    );
    hold(HoldReason::CannotRelaunch, text, None)
}

/// S15: the newest complete checkpoint, listed just now.
pub fn order_checkpoints(ctx: &SlotCtx) -> Option<Decision> {
    let settings = location::listed(ctx.slot)?;
    let (memory, job) = (&*ctx.memory, &ctx.record.job);
    if let Some(trouble) = &job.trouble {
        let text = format!("a relaunch is wanted, but {}; it is listed again", trouble.text());
        return hold(HoldReason::CheckpointUnreadable, text, None);
    }
    if let Some(why) = &memory.survey_failure {
        let text = format!("a relaunch is wanted, but {why}; it is listed again");
        return hold(HoldReason::CheckpointUnreadable, text, None);
    }
    let fresh = |at| elapsed(at, ctx.now) <= LISTED_WITHIN;
    let known = job.location == settings.uri && memory.surveyed_at.is_some_and(fresh);
    let text = || format!("looking for the newest complete checkpoint under {}", settings.uri);
    (!known).then(|| Decision::act(ActionName::Relaunch, text()))
}
