//! Too many slots that look sick for good at once, or replacements that fail one after the other:
//! first of all a reason to doubt our eyes. Counted before anything is decided about any slot (S8,
//! S14).

use jiff::Timestamp;

use crate::model::condition::Kind;
use crate::model::event::{Event, What};
use crate::model::fleet::{Breaker, Gust, Unfit};
use crate::model::phase::Phase;
use crate::model::time::elapsed;
use crate::model::time::span;
use crate::model::traits::BudgetOf;

use super::budget;
use super::ctx::SlotCtx;
use super::pool;
use super::turn::Turn;

/// A fleet of so few slots has no storm breaker (S8).
pub const SMALL: usize = 2;
/// Replacements of this many slots that fail within an hour suspend judged deletes (S14).
const UNFIT_SLOTS: usize = 2;

/// Counts a slot whose grace is over; too many within the window open the breaker (S8).
pub fn gust(ctx: &mut SlotCtx, turn: &mut Turn) {
    let (storm, now) = (ctx.settings.storm, turn.now);
    let since = ctx.record.suspicion.as_ref().map_or(now, |s| s.since);
    let (ledger, counted) = (&mut *ctx.ledger, &mut ctx.budget.counted);
    let known = counted.last(&ctx.record.name).is_some_and(|at| at >= since);
    // A replacement that fails is counted elsewhere (S14); one that was lost, and is there again,
    // is judged for the first time.
    let first = ctx
        .record
        .recovery
        .as_ref()
        .is_none_or(|r| r.phase() == Phase::Condemned && r.kind == Kind::Lost);
    if first && !known {
        let gust = Gust { at: now, slot: ctx.record.name.clone(), forgiven: false };
        counted.add(ledger, gust, ctx.slot, storm);
        ctx.budget.ledger_changed = true;
    }
    let count = counted.recent(ctx.slot);
    let desired = ctx.budget.rooms[budget::room(ctx.slot)].desired;
    let share = count as f64 * 100.0 >= storm.percent * desired as f64;
    // Half a fleet of one or two is one slot: there a second judgement waits instead (`repeated`).
    let large = desired > SMALL;
    let of = ctx.slot.filling.traits().budget;
    let open = ledger.breaker.as_ref().is_some_and(|breaker| breaker.holds(of));
    if !open && large && count >= storm.min && share {
        let within = span(storm.window);
        let (why, then) = match of {
            BudgetOf::Tpus => (
                format!("{count} of {desired} TPUs looked sick for good within {within}"),
                "no judged slot is deleted",
            ),
            BudgetOf::Jobs => (
                format!("{count} of {desired} training jobs stopped saving within {within}"),
                "no job that saves nothing is cancelled",
            ),
        };
        let message = format!("the storm breaker opened: {why}; {then} until `breaker reset`");
        let what = What::BreakerOpened { slots: count, of };
        turn.happened(Event { at: now, slot: None, message, what });
        ledger.breaker = Some(Breaker { opened_at: now, why, of });
        ctx.budget.ledger_changed = true;
    }
}

/// The grace of a replacement is over before it booted, or it made no progress within set-up and
/// compile: those of two slots within an hour suspend judged deletes (S14).
pub fn unfit(ctx: &mut SlotCtx, now: Timestamp) {
    let (name, graces) = (ctx.pool(), &ctx.slot.policy.grace);
    let (ledger, record) = (&mut *ctx.ledger, &mut *ctx.record);
    let Some(recovery) = &mut record.recovery else { return };
    let failed = match recovery.phase() {
        Phase::Creating | Phase::Ready => true,
        Phase::Booted | Phase::Launched => {
            let ready = record.ready_since.unwrap_or(recovery.phase_since);
            elapsed(ready, now) >= graces.setup + graces.compile
        }
        _ => false,
    };
    if !failed || recovery.unfit == record.incarnation {
        return;
    }
    recovery.unfit.clone_from(&record.incarnation);
    ctx.budget.ledger_changed = true;
    let failed = ledger.unfit.entry(name.clone()).or_default();
    failed.retain(|unfit| pool::is_recent(unfit.at, now) && unfit.slot != record.name);
    failed.push(Unfit { at: now, slot: record.name.clone() });
    if failed.len() >= UNFIT_SLOTS {
        ledger.pools.entry(name).or_default().failing.get_or_insert(now);
    }
}
