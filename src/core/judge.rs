//! From a condition to a decision about one slot: wait out the grace, hold for a reason, confirm by
//! a GET, condemn.
//!
//! Reads the slot's condition and accumulated sickness (`suspicion`), the workers' reports, the
//! gates' table, and the confirming GET. Concludes one of: nothing to do; wait, until when; hold,
//! for which reason; condemn, in which case the intent of the delete is journaled by the same
//! commit. Never sends anything, never judges on a read that failed, and never condemns without a
//! GET of the last 5 s that showed the same incarnation in the same condition.
//!
//! The order matters. The grace comes first, so that a hold is only told when there is something to
//! hold. The gates come before the GET, so that a slot that is held costs no calls. What rests on
//! the workers' reports asks for these first, which may be slow, and for the GET after them: each
//! has to be fresh when the checker looks at it.
//!
//! Example: health TIMEOUT, grace 10 min, `confirmations` 2. The poll at 0:00 starts the suspicion;
//! each later one adds the time since the one before. At 10:00 the grace is over, the gates pass,
//! and a GET is asked for; its answer at 10:01 shows the same. The checker agrees: the slot is
//! condemned, and the delete leaves when the commit is durable.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::exit::Stuck;
use crate::model::filling::Deletable;
use crate::model::fleet::Pending;
use crate::model::hold::HoldReason;
use crate::model::settings::WhenMissing;
use crate::model::time::span;
use crate::model::time::{after, elapsed};
use crate::model::view::{ActionName, Decision};

use super::condemn::condemn;
use super::ctx::SlotCtx;
use super::gates::{self, Before, Gate};
use super::turn::Turn;
use super::{
    ahead, amend, asked, budget, confirm, diagnose, ending, life, reads, relaunch, request, storm,
};

/// An operator has to look when guest attributes that would condemn could not be read for this
/// long.
pub const UNHEARD_FOR: Duration = Duration::from_secs(10 * 60);
/// Hosts that get no order start again by themselves after this (the supervisor's ALONE).
const STARTS_ALONE: Duration = Duration::from_secs(10 * 60);
/// A TPU that is being taken away is waited for so long before an operator is called.
const GOING_FOR: Duration = Duration::from_secs(3600);
/// A maintenance window's end is trusted, plus this, but not for longer than
/// [`diagnose::WINDOW_MAX`].
const WINDOW_SLACK: Duration = Duration::from_secs(15 * 60);

/// Judges a slot whose node is (or should be) there.
pub fn judge(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let condition = ctx.condition();
    if !condition.is_reported() && condition != Condition::Unclear {
        stop_asking(ctx);
    }
    let sent = relaunch::is_sent(ctx).or_else(|| amend::is_sent(ctx));
    if let Some(decision) = sent.or_else(|| ahead::is_sent(ctx)) {
        return decision;
    }
    if ctx.record.wanted.is_some() && asked::applies(ctx) {
        return asked::judge(ctx, gates, turn);
    }
    if let Some(decision) = relaunch::judge(ctx, gates, turn) {
        return decision;
    }
    let Some(kind) = condition.kind() else { return at_rest(ctx, gates, turn) };
    if let Some(wait) = made_by_another(ctx) {
        return wait;
    }
    if kind == Kind::Judged {
        reads::create_check(ctx, turn);
    }
    if let Some(wait) = graced(ctx, kind).or_else(|| excused(ctx)) {
        return wait;
    }
    if has_old_reports(ctx) {
        let wait = || {
            Decision::wait(
                format!("{condition}: its workers' last reports are too old to act on"),
                None,
            )
        };
        // A reason that holds it anyway is said first.
        let hold = unheard(ctx).map(|unheard| held(ctx, gates, kind).unwrap_or(unheard));
        return hold.unwrap_or_else(wait);
    }
    if !diagnose::is_still_reported(ctx.record, ctx.slot, ctx.ledger, ctx.now) {
        let text = format!(
            "{condition}: but its workers now report otherwise; waiting for the next read of the node"
        );
        return Decision::wait(text, None);
    }
    if diagnose::may_be_on_purpose(ctx.record) {
        reads::deletions(ctx, turn);
    }
    if let Some(hold) = held(ctx, gates, kind) {
        stop_asking(ctx);
        return hold;
    }
    confirm(ctx, kind, gates, turn)
}

/// Whether a person may have deleted it: who did is asked first, and that is no sickness of the fleet.
fn may_be_deleted(ctx: &SlotCtx) -> bool {
    let asks = ctx.slot.policy.when_missing == WhenMissing::Auto;
    let known = ctx.memory.deletions.is_some() && ctx.record.deleted.is_none();
    asks && diagnose::may_be_on_purpose(ctx.record) && !known
}

/// Every gate is open: a GET confirms what is condemned, or what its job is relaunched for.
fn confirm(ctx: &mut SlotCtx, kind: Kind, gates: &[Gate], turn: &mut Turn) -> Decision {
    let (condition, evidence) = (ctx.condition(), ctx.record.verdict.evidence.clone());
    let (reads, sick_for) =
        ctx.record.suspicion.as_ref().map_or((0, Duration::ZERO), |s| (s.reads, s.sick_for));
    // The end of a training job is final: the GET that shows it is enough.
    let wanted = if ctx.record.has_ended() { 1 } else { ctx.slot.policy.confirmations };
    let relaunches = relaunch::comes_first(ctx);
    let action = match condition {
        Condition::Missing => ActionName::Create,
        _ if relaunches => ActionName::Relaunch,
        _ => ActionName::Recreate,
    };
    let plural = if reads == 1 { "" } else { "s" };
    let reason = format!("{condition}: {evidence}; {reads} read{plural} over {}", span(sick_for));
    if ctx.settings.dry_run && reads + 1 >= wanted {
        // Nothing follows: no GET has to confirm it, again with each poll.
        stop_asking(ctx);
        let mut decision = Decision::act(action, reason);
        decision.hold = Some(HoldReason::DryRun);
        return decision;
    }
    let few = || Decision::wait(format!("{condition}: {reads} of {wanted} confirming reads"), None);
    let Some(confirmed) = confirm::confirmed(ctx) else {
        if reads + 1 < wanted {
            return few();
        }
        // First the workers' answer, which may be slow, then the GET: each has to be fresh.
        if !is_heard(ctx) {
            return hear(ctx, action);
        }
        reads::confirm(ctx, turn);
        let asked =
            || Decision::act(action, format!("{condition}: {evidence}; sending a GET to confirm"));
        return unheard(ctx).or_else(|| confirm::too_slow(ctx)).unwrap_or_else(asked);
    };
    if reads < wanted {
        return few();
    }
    if !is_heard(ctx) {
        return hear(ctx, action);
    }
    stop_asking(ctx);
    let counted = budget::is_unavailable(ctx.record);
    let (checker, case) = ctx.case();
    if let Err(violation) = checker.delete(&case, condition, &confirmed) {
        return confirm::refused(ctx, violation.name(), &violation.to_string(), turn);
    }
    if relaunches {
        let decision = relaunch::instead(ctx, gates, turn);
        if !(counted || budget::is_unavailable(ctx.record)) {
            ctx.checker.not_done();
        }
        return decision;
    }
    condemn(ctx, condition, kind, confirmed.began, turn);
    Decision::act(action, reason)
}

/// Counts a slot whose grace is over as judged, before anything is decided about any slot: the
/// storm breaker may open, and judged deletes be suspended, with the last of those that are ripe in
/// one turn (S8, S14).
pub fn count(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) {
    if ctx.condition().kind() == Some(Kind::Judged)
        && made_by_another(ctx).is_none()
        && graced(ctx, Kind::Judged).is_none()
        && excused(ctx).is_none()
        && !has_old_reports(ctx)
        && !may_be_deleted(ctx)
        && diagnose::is_still_reported(ctx.record, ctx.slot, ctx.ledger, ctx.now)
    {
        storm::gust(ctx, turn);
        storm::unfit(ctx, ctx.now);
        // A slot that may be tried where creates are refused: one without a sign of life goes first.
        let pool = ctx.pool();
        if ctx.ledger.pools.contains_key(&pool) && ctx.is_lifeless() {
            reads::look_over_specification(ctx);
            if gates::holds_only(gates, ctx, Before::Judged, "pool") {
                ctx.budget.lifeless.insert(pool);
            }
        }
    }
}

fn held(ctx: &mut SlotCtx, gates: &[Gate], kind: Kind) -> Option<Decision> {
    reads::look_over_specification(ctx);
    let before = match kind {
        Kind::Lost if ctx.record.ours => Before::Lost,
        Kind::Lost => Before::Foreign,
        Kind::Judged => Before::Judged,
    };
    gates::first_hold(gates, ctx, before).map(|(_, hold)| hold)
}

/// The wait before a slot can be judged: its grace, and for a maintenance the end of its window.
fn graced(ctx: &SlotCtx, kind: Kind) -> Option<Decision> {
    let (record, condition, now) = (&*ctx.record, ctx.condition(), ctx.now);
    let Some(suspicion) = &record.suspicion else {
        // Progress disproves what was suspected until then.
        let lives = record.job.progress_at.filter(|at| *at >= record.since);
        let why = lives.map_or("first read pending".to_owned(), |at| {
            let evidence = &record.verdict.evidence;
            format!("{evidence}; but its job made progress at {at:.0}; its grace begins again then")
        });
        return Some(Decision::wait(format!("{condition}: {why}"), None));
    };
    let (graces, poll) = (&ctx.slot.policy.grace, &ctx.settings.poll);
    let of = |condition: &Condition| life::grace(record, graces, poll, *condition, now);
    let grace = match kind {
        Kind::Lost => of(&condition),
        Kind::Judged => suspicion.seen.iter().map(of).max().unwrap_or_default(),
    };
    let announced = record
        .seen
        .as_ref()
        .filter(|_| condition == Condition::Maintenance)
        .and_then(|s| s.window_end);
    let window = announced
        .filter(|end| *end > suspicion.since)
        .map(|end| after(end, WINDOW_SLACK).min(after(suspicion.since, diagnose::WINDOW_MAX)));
    let left = grace.saturating_sub(suspicion.sick_for);
    if left.is_zero() && window.is_none_or(|end| now >= end) {
        return None;
    }
    let until = window.map_or(after(now, left), |end| end.max(after(now, left)));
    let (evidence, spent) = (&record.verdict.evidence, span(suspicion.sick_for));
    let why = match window {
        Some(end) => format!("its announced window ends at {end:.0}"),
        None if suspicion.relaunched => {
            format!("its job was relaunched; {spent} of {} since then used", span(grace))
        }
        None => format!("{spent} of its {} grace used", span(grace)),
    };
    Some(Decision::wait(format!("{condition}: {evidence}; {why}"), Some(until)))
}

/// A TPU that another program or an operator is making is never judged.
fn made_by_another(ctx: &SlotCtx) -> Option<Decision> {
    let creating = ctx.record.seen.as_ref().is_some_and(|seen| seen.creating) && !ctx.record.ours;
    let text = "starting: another client is creating it; it is waited for, however long that takes";
    (ctx.condition() == Condition::Starting && creating).then(|| Decision::wait(text, None))
}

/// A judged TPU whose grace is over, and which is left alone all the same: its job keeps its rhythm.
fn excused(ctx: &SlotCtx) -> Option<Decision> {
    let (record, condition, now) = (&*ctx.record, ctx.condition(), ctx.now);
    if condition.kind() != Some(Kind::Judged) || condition.is_reported() {
        return None;
    }
    let until = life::excused_until(record, ctx.slot.policy.grace.silent).filter(|at| *at > now)?;
    let usual = life::usual(&record.job).unwrap_or_default();
    let text = format!(
        "{condition}: {}; but its job made progress recently (usually every {}); keeping the TPU for twice that time",
        record.verdict.evidence,
        span(usual)
    );
    Some(Decision::wait(text, Some(until)))
}

/// The workers' reports would condemn it, and are too old to act on.
fn has_old_reports(ctx: &SlotCtx) -> bool {
    let record = &*ctx.record;
    let heard =
        record.job.attributes_at.filter(|at| record.mutated_at.is_none_or(|mutated| *at > mutated));
    ctx.condition().is_reported()
        && heard.is_none_or(|at| elapsed(at, ctx.now) > ctx.slot.policy.max_age)
}

/// Whether the workers' reports are fresh, where they are what condemns.
fn is_heard(ctx: &SlotCtx) -> bool {
    let after_mutation = |at: &Timestamp| ctx.record.mutated_at.is_none_or(|mutated| *at > mutated);
    let fresh = |at: Timestamp| elapsed(at, ctx.now) <= life::HEARD_FOR && at <= ctx.now;
    !ctx.condition().is_reported() || ctx.memory.heard.filter(after_mutation).is_some_and(fresh)
}

/// A TPU may have come to life since its workers last reported. They are asked with every poll
/// while something is wrong.
fn hear(ctx: &mut SlotCtx, action: ActionName) -> Decision {
    unheard(ctx).unwrap_or_else(|| {
        let (condition, evidence) = (ctx.condition(), &ctx.record.verdict.evidence);
        Decision::act(action, format!("{condition}: {evidence}; its workers are asked once more"))
    })
}

/// The verdict rests on the workers' reports, and none that a delete could rest on came for
/// [`UNHEARD_FOR`]: escalated, since guest attributes need mending.
fn unheard(ctx: &mut SlotCtx) -> Option<Decision> {
    let (condition, now) = (ctx.condition(), ctx.now);
    if !condition.is_reported() {
        return None;
    }
    let since = *ctx.record.job.unheard_since.get_or_insert(now);
    // Silence towards an earlier process proves nothing: this one asks first.
    let asks_since = *ctx.memory.asks_since.get_or_insert(now);
    let waits = [Pending::Attributes, Pending::Node]
        .iter()
        .any(|pending| ctx.memory.pending.contains(pending));
    ctx.memory.unheard |= asks_since < now && ctx.memory.answered && !waits;
    if !ctx.memory.unheard || elapsed(since, now) <= UNHEARD_FOR {
        return None;
    }
    let text = format!(
        "{condition}: {}; guest attributes unreadable, incomplete or too slow since {since:.0}; keeping the TPU",
        ctx.record.verdict.evidence,
    );
    Some(Decision::hold(HoldReason::NoBeaconChannel, text, None))
}

/// The reports that were asked for came, or are no longer needed.
fn stop_asking(ctx: &mut SlotCtx) {
    ctx.record.job.unheard_since = None;
    (ctx.memory.asks_since, ctx.memory.unheard) = (None, false);
}

/// Hosts that wait start again by themselves after ten minutes; whether they did is not known where
/// their reports can't be read.
fn waits_unheard(ctx: &SlotCtx) -> Option<Decision> {
    let job = &ctx.record.job;
    let since = job.attributes_at.filter(|_| job.stuck == Some(Stuck::Waits))?;
    let unheard = elapsed(since, ctx.now) > STARTS_ALONE + UNHEARD_FOR;
    let text = || {
        format!(
            "{}; guest attributes unreadable since {since:.0}, so whether it has started again is not known: check the hosts",
            ctx.record.verdict.evidence
        )
    };
    unheard.then(|| Decision::hold(HoldReason::NoBeaconChannel, text(), None))
}

/// Machines that were made with the order to wait get the next one once their supervisors have reported: where no report can be
/// read, nothing runs there.
fn waits_untold(ctx: &SlotCtx) -> Option<Decision> {
    let record = &*ctx.record;
    let order = record.outdated_order().filter(|order| order.wait && !record.takes_orders())?;
    let since = record.ready_since?;
    let grace = ctx.slot.policy.grace.boot(record.size()) + UNHEARD_FOR;
    let recent = |at: Timestamp| elapsed(at, ctx.now) <= UNHEARD_FOR;
    let unheard = ctx.memory.answered && !ctx.memory.heard.is_some_and(recent);
    let text = || {
        format!(
            "READY since {since:.0}, and its hosts wait for an order newer than that of generation {}: guest attributes are unreadable or \
             incomplete, so it is not sent, and no job runs there. Mend them (docs/runbook.md), or `recreate {}`",
            order.generation, record.name
        )
    };
    let long = elapsed(since, ctx.now) > grace;
    (long && unheard).then(|| Decision::hold(HoldReason::NoBeaconChannel, text(), None))
}

/// A queued resource, or the node in it, is being taken away: what follows shows when that is over.
fn going(ctx: &SlotCtx) -> Decision {
    let (since, evidence) = (ctx.record.since, &ctx.record.verdict.evidence);
    let deadline = after(since, GOING_FOR);
    if ctx.now < deadline {
        return Decision::wait(format!("{evidence} since {since:.0}"), Some(deadline));
    }
    let deletable = ctx.record.seen.as_ref().map(|seen| seen.deletable);
    let then = match deletable {
        Some(Deletable::WithItsNodes) => {
            "it stays billed meanwhile: delete it by hand (--force), then `retry`. Inspect it"
        }
        Some(Deletable::NotNow) => "the API refuses deletes in this state. Inspect it",
        Some(Deletable::Now) | None => "inspect it",
    };
    let text = format!(
        "{evidence} since {since:.0}, which should take minutes; {then}: {}",
        ctx.filling().shown_by(&ctx.record.name, &ctx.record.zone)
    );
    let mut decision = Decision::hold(HoldReason::Deleting, text, None);
    decision.action = ActionName::Escalate;
    decision
}

/// Conditions that never lead to a delete.
fn at_rest(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let evidence = ctx.record.verdict.evidence.clone();
    if let Some(hold) = ctx.record.verdict.hold {
        return Decision::hold(hold, evidence, None);
    }
    if ctx.record.verdict.unconfirmed && !ctx.memory.absence_confirmed {
        reads::confirm(ctx, turn);
    }
    match ctx.condition() {
        Condition::Healthy => match &ctx.record.suspicion {
            Some(s) => Decision::none(format!(
                "healthy for {} of the {} that clear the suspicion",
                span(s.healthy_for),
                span(ctx.slot.policy.heal)
            )),
            None => waits_untold(ctx).unwrap_or_else(|| Decision::none("healthy")),
        },
        Condition::Stopped => {
            let text = format!("{evidence}: {}", diagnose::left_alone(ctx.record));
            Decision::hold(HoldReason::Stopped, text, None)
        }
        Condition::Deleting => asked::nudge(ctx, gates, turn),
        Condition::Waiting => request::waits(ctx, turn),
        Condition::Going => going(ctx),
        Condition::Finished => asked::finished(ctx, gates, turn),
        condition if condition.job_stands() => {
            waits_unheard(ctx).unwrap_or_else(|| ending::hold(ctx.record, &evidence))
        }
        Condition::Degraded => Decision::hold(
            HoldReason::Degraded,
            format!("{evidence}; no rule acts on this symptom; check the job"),
            None,
        ),
        Condition::Unclear => Decision::hold(HoldReason::Unclear, evidence, None),
        _ => Decision::none(evidence),
    }
}
