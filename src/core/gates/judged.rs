//! Gates of judged slots: reasons to doubt our eyes, and to keep a doubtful TPU in hand. A training job
//! that has ended is nothing in hand: those that guard what lives let it pass.

use super::common::hold;
use super::common::undeleted;
use super::common::went_back;
use crate::core::budget;
use crate::core::ctx::SlotCtx;
use crate::core::life;
use crate::core::location;
use crate::core::pool;
use crate::core::runs;
use crate::core::storm::SMALL;
use crate::model::condition::Condition;
use crate::model::condition::Kind;
use crate::model::fleet::Pool;
use crate::model::hold::HoldReason;
use crate::model::lookup::CreateCheck;
use crate::model::time::after;
use crate::model::time::elapsed;
use crate::model::traits::BudgetOf;
use crate::model::view::Decision;
use jiff::Timestamp;
use std::time::Duration;

/// In a fleet of one or two, a second judged recreate within this time …
const REPEATED_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// … waits so much longer (S8).
const REPEATED_WAIT: Duration = Duration::from_secs(3600);
/// Whether a create could follow was asked at most so long ago (S20).
pub const CREATE_CHECKED_FOR: Duration = Duration::from_secs(3600);

/// S5: where no beacon was ever received its absence proves nothing.
pub fn beacon_channel(ctx: &SlotCtx) -> Option<Decision> {
    let unproven = ctx.condition() == Condition::NeverBooted && !ctx.ledger.beacons_seen;
    let evidence = &ctx.record.verdict.evidence;
    let text =
        || format!("{evidence}; guest attributes may be forbidden here: check the node by hand");
    unproven.then(|| Decision::hold(HoldReason::NoBeaconChannel, text(), None))
}

/// S8.
pub fn breaker(ctx: &SlotCtx) -> Option<Decision> {
    let budget = ctx.slot.filling.traits().budget;
    let breaker = ctx.ledger.breaker.as_ref().filter(|breaker| breaker.holds(budget))?;
    let text = format!(
        "{}: the storm breaker has been open since {:.0}: {}",
        ctx.condition(),
        breaker.opened_at,
        breaker.why
    );
    hold(HoldReason::Breaker, text, None)
}

/// S16.
pub fn no_progress(ctx: &SlotCtx) -> Option<Decision> {
    let (condition, job) = (ctx.condition(), ctx.slot.job.as_ref());
    // An operator asks for another try.
    let asked = ctx.record.job.relaunch_by.is_some() || ctx.record.wanted.is_some();
    if asked || !runs::is_over(ctx.record, job, condition) {
        return None;
    }
    let count = runs::fruitless(ctx.record, condition);
    if runs::ends_by_itself(ctx.record, condition) {
        return hold(HoldReason::JobFailed, its_runs_end(ctx, count), None);
    }
    hold(HoldReason::NoProgress, its_runs_are_in_vain(ctx, count), None)
}

fn its_runs_are_in_vain(ctx: &SlotCtx, count: u32) -> String {
    format!(
        "{}: {count} runs in a row made no new step; find the cause (`logs {1}`), then `retry {1}`",
        ctx.condition(),
        ctx.record.name
    )
}

fn its_runs_end(ctx: &SlotCtx, count: u32) -> String {
    let (evidence, name) = (&ctx.record.verdict.evidence, &ctx.record.name);
    let job = ctx.slot.job.as_ref();
    let permanent = job.and_then(|job| runs::permanent(ctx.record, job, ctx.condition()));
    let why = permanent
        .unwrap_or_else(|| format!("{count} runs in a row made no new step (restart.per_run)"));
    // A line that the evidence has already is not told twice.
    let known = why.split_once(": ").filter(|(_, line)| evidence.contains(*line));
    let why = known.map_or(why.as_str(), |(cause, _)| cause);
    format!(
        "{evidence}; {why}; fix the job (`logs {name}` shows how its runs ended), then `relaunch {name}`: it starts again on \
         the same TPU, from its newest checkpoint. After a config change: `recreate {name}`"
    )
}

/// S20: its create would be held for the checkpoints.
pub fn location_listed(ctx: &SlotCtx) -> Option<Decision> {
    if ctx.record.has_ended() {
        return None;
    }
    went_back(ctx, &format!("{}: keeping the current TPU:", ctx.condition()))
        .or_else(|| location::holds_judged(ctx.record, ctx.memory, ctx.slot, ctx.now))
}

/// S20: whether a create could follow was asked within the hour, and nothing says for certain that it
/// could not.
pub fn create_check(ctx: &SlotCtx) -> Option<Decision> {
    if !ctx.slot.policy.create_check {
        return None;
    }
    let what = ctx.condition();
    let Some(found) = fresh_check(ctx) else {
        let text = format!("{what}: checking that a create could follow the delete");
        return Some(Decision::wait(text, None));
    };
    let why = found.certain.as_ref()?;
    let text = format!("{what}: keeping the current TPU: a create could not follow: {why}");
    hold(HoldReason::CannotCreate, text, None)
}

/// The answer to the present question, where it is no older than an hour.
fn fresh_check<'a>(ctx: &'a SlotCtx) -> Option<&'a CreateCheck> {
    let (at, found) = ctx.record.create_check.as_ref()?;
    let fresh = elapsed(*at, ctx.now) <= CREATE_CHECKED_FOR;
    Some(found).filter(|found| fresh && found.question == ctx.create_question())
}

/// S20: the create of another slot was refused for a reason that no wait mends.
pub fn refused_in_pool(ctx: &SlotCtx) -> Option<Decision> {
    if ctx.record.has_ended() {
        return None;
    }
    let pool = ctx.pool();
    let (slot, why) = ctx.budget.refused.get(&pool)?;
    let text = format!(
        "{}: keeping the current TPU: the create of {slot} in the same pool ({pool}) was refused: {why}; fix that, or \
         cancel that create with `forget {slot}`",
        ctx.condition()
    );
    (*slot != ctx.record.name).then(|| Decision::hold(HoldReason::CannotCreate, text, None))
}

/// S7.
pub fn quiet_hours(ctx: &SlotCtx) -> Option<Decision> {
    let until =
        ctx.slot.policy.quiet_hours.iter().filter_map(|hours| hours.until(ctx.now)).max()?;
    hold(
        HoldReason::QuietHours,
        format!(
            "{}: held by quiet_hours; `recreate {}` overrides them",
            ctx.condition(),
            ctx.record.name
        ),
        Some(until),
    )
}

/// S14: while creates of a pool are refused or its replacements fail, a doubtful TPU in hand is worth
/// more than none. One is tried in a while, first one without any sign of life.
pub fn trouble_in_pool(ctx: &SlotCtx) -> Option<Decision> {
    let name = ctx.pool();
    let pool = ctx.ledger.pools.get(&name).filter(|_| !ctx.record.has_ended())?;
    let suspended = pool::suspended(pool, ctx.record.size().reserved);
    let (until, failing) = suspended.filter(|_| !is_the_trial(ctx, pool))?;
    let (reason, why) = if failing { fails(&name) } else { is_short(pool, &name) };
    let keeps = format!("{}: keeping the current TPU: {why}", ctx.condition());
    if ctx.now < until {
        let text = format!("{keeps}; the next trial replacement is at {until:.0}");
        return hold(reason, text, Some(until));
    }
    let text = format!("{keeps}; another TPU in the pool shows no sign of life and is tried first");
    let waits = ctx.budget.lifeless.contains(&name) && !ctx.is_lifeless();
    waits.then(|| Decision::hold(reason, text, None))
}

/// The trial itself, whose delete did not come about, goes on.
fn is_the_trial(ctx: &SlotCtx, pool: &Pool) -> bool {
    let tried_at = undeleted(ctx).and_then(|recovery| recovery.tried_at);
    tried_at.is_some() && tried_at == pool.trial_at
}

fn fails(name: &str) -> (HoldReason, String) {
    let why = format!(
        "recent replacements in pool {name} failed to boot or to make progress; inspect one of them"
    );
    (HoldReason::ReplacementsFail, why)
}

fn is_short(pool: &Pool, name: &str) -> (HoldReason, String) {
    if pool.short.is_some() {
        let why = format!("creates in pool {name} are refused for lack of capacity");
        return (HoldReason::ZoneShort, why);
    }
    let since = pool.queued.map_or(String::new(), |since| format!(" since {since:.0}"));
    let why = format!("a queued resource has waited for capacity in the pool {name}{since}");
    (HoldReason::ZoneShort, why)
}

/// S8: a fleet of one or two has no storm breaker: a second look takes its place.
pub fn repeated(ctx: &SlotCtx) -> Option<Decision> {
    if ctx.room().desired > SMALL || undeleted(ctx).is_some() {
        return None;
    }
    let last = recreated_in_vain(ctx)?;
    let left = until_second_look(ctx)?;
    let text = format!(
        "{}: it was recreated on a judgement at {last:.0} and made no progress since, so this one waits 1 h longer",
        ctx.condition()
    );
    (!left.is_zero())
        .then(|| Decision::hold(HoldReason::Repeated, text, Some(after(ctx.now, left))))
}

/// The time left of its grace and an hour.
fn until_second_look(ctx: &SlotCtx) -> Option<Duration> {
    let suspicion = ctx.record.suspicion.as_ref()?;
    let (graces, poll) = (&ctx.slot.policy.grace, &ctx.settings.poll);
    let grace = |of: &Condition| life::grace(ctx.record, graces, poll, *of, ctx.now);
    let longest = suspicion.seen.iter().map(grace).max()?;
    Some((longest + REPEATED_WAIT).saturating_sub(suspicion.sick_for))
}

/// The last recreate on a judgement, where that was lately and without progress since.
fn recreated_in_vain(ctx: &SlotCtx) -> Option<Timestamp> {
    let judged = ctx.record.attempts.iter().filter(|attempt| attempt.kind == Kind::Judged);
    let last = judged.map(|attempt| attempt.at).max()?;
    let progressed = ctx.record.job.progress_at.is_some_and(|at| at > last);
    Some(last).filter(|last| !progressed && elapsed(*last, ctx.now) < REPEATED_WITHIN)
}

/// A slot that counts under `max_unavailable` already is not recreated once more, but still.
pub fn judged_per_hour(ctx: &SlotCtx) -> Option<Decision> {
    if ctx.slot.filling.traits().budget == BudgetOf::Jobs {
        return None;
    }
    let limit = ctx.settings.max_judged_recreates_per_hour;
    let full = !budget::is_unavailable(ctx.record) && ctx.ledger.judged.len() >= limit;
    let until = ctx.ledger.judged.first().map(|at| after(*at, Duration::from_secs(3600)));
    let text = || {
        format!(
            "{}: {limit} judged recreates in the last hour, the limit (max_judged_recreates_per_hour)",
            ctx.condition()
        )
    };
    full.then(|| Decision::hold(HoldReason::JudgedPerHour, text(), until))
}

/// S6. A slot that counts already asks as well: it may count again without having passed here, as
/// after a hold that had set it apart while others took its place.
pub fn max_unavailable(ctx: &SlotCtx) -> Option<Decision> {
    let itself = usize::from(budget::is_unavailable(ctx.record));
    let (others, most) =
        (ctx.room().unavailable.saturating_sub(itself), ctx.room().max_unavailable);
    let full = others >= most;
    let text = || {
        format!(
            "{}: waiting: judged slots in recovery: {others}, max_unavailable: {most}",
            ctx.condition()
        )
    };
    full.then(|| Decision::hold(HoldReason::MaxUnavailable, text(), None))
}
