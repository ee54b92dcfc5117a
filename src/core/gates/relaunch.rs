//! Gates of a newer run order for the node that is there.

use super::common::{goes_back_at, hold, went_back};
use crate::core::ctx::SlotCtx;
use crate::core::{ending, location, runs};
use crate::model::exit::Stuck;
use crate::model::hold::HoldReason;
use crate::model::relaunch::TAKES_ROLL_CALL;
use crate::model::time::{after, elapsed};
use crate::model::view::{ActionName, Decision};
use jiff::Timestamp;
use std::time::Duration;

/// The listing that an order rests on is at most this old, and newer than the exit or the wish: what runs
/// may save at its end.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// The pause after the first run without a new step; it doubles so many times.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSES: u32 = 6;
/// From an end with 0 that was too early to the start that follows it.
const ONCE_MORE: Duration = Duration::from_secs(300);
/// Hosts that get no order start by themselves after this (the supervisor's ALONE): an order comes some
/// polls before.
const ALONE: Duration = Duration::from_secs(600);
/// The same of the versions before those that take the roll-call.
const ALONE_BEFORE: Duration = Duration::from_secs(300);

/// Reports that an order rests on and that can't be read for this long call an operator.
const UNHEARD_FOR: Duration = Duration::from_secs(600);

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
    takes_no_order(ctx).or_else(|| is_in_setup(ctx)).or_else(|| never_starts_together(ctx))
}

fn takes_no_order(ctx: &SlotCtx) -> Option<Decision> {
    let (record, hosts) = (&*ctx.record, ctx.record.size().hosts);
    let there = record.seen.as_ref().is_some_and(|seen| seen.supervised && seen.ready);
    let text = format!(
        "a relaunch is wanted, but not all of {hosts} workers have reported a supervisor that follows newer orders (version 2): a TPU \
         that this version creates has it; `recreate {}` replaces this one",
        record.name
    );
    (!(record.ours && there && record.takes_orders()))
        .then(|| Decision::hold(HoldReason::CannotRelaunch, text, None))
}

fn is_in_setup(ctx: &SlotCtx) -> Option<Decision> {
    let (worker, _) = ctx.record.job.workers.iter().find(|(_, worker)| worker.in_setup)?;
    let text = format!("a relaunch is wanted; worker {worker} is still being set up");
    Some(Decision::wait(text, None))
}

/// Supervisors that tell no index start the job without one.
fn never_starts_together(ctx: &SlotCtx) -> Option<Decision> {
    let record = &*ctx.record;
    if !record.supervisors_are(TAKES_ROLL_CALL) || record.has_its_indices() {
        return None;
    }
    let text = format!(
        "a relaunch is wanted, but {}, so that they would never start together; `recreate {}` replaces the TPU",
        ending::said_indices(record),
        record.name
    );
    hold(HoldReason::CannotRelaunch, text, None)
}

/// The supervisors on the TPU run the command of its creation: another job of the config is not what
/// would start.
pub fn same_job(ctx: &SlotCtx) -> Option<Decision> {
    let why = starts_another(ctx)?;
    let name = &ctx.record.name;
    let text = format!("a relaunch is wanted, but {why}; `recreate {name}` replaces the TPU");
    hold(HoldReason::CannotRelaunch, text, None)
}

fn starts_another(ctx: &SlotCtx) -> Option<&'static str> {
    let record = &*ctx.record;
    let job = ctx.slot.job.as_ref().filter(|_| ctx.slot.supervisor.is_some());
    let runs = job.filter(|job| job.command.as_ref().is_some_and(|text| !text.trim().is_empty()));
    let known = record.seen.as_ref().is_some_and(|seen| seen.as_configured);
    Some(match (runs, &record.job.ordered) {
        (None, _) => "the config names no command for it, so there is nothing to start",
        (Some(job), Some(ordered)) if *ordered != job.key() => {
            "the config's command or checkpoint location has changed since the TPU was created"
        }
        (Some(_), None) if !known => "it is not known which command the TPU was created with",
        _ => return None,
    })
}

/// S23: a job that ended with 0 too early is started once more, after a while in which an operator may
/// say that its work is done.
pub fn order_once_more(ctx: &SlotCtx) -> Option<Decision> {
    let job = &ctx.record.job;
    let early = job.stuck == Some(Stuck::EndedEarly) && job.relaunch_by.is_none();
    let until = after(job.failed_at.filter(|_| early)?, ONCE_MORE);
    let why = ending::too_early(ctx.record);
    let text = format!(
        "{}; {why}, so it is started once more; `done {}` when its work is done",
        ctx.record.verdict.evidence, ctx.record.name
    );
    if ctx.now < until { hold(HoldReason::Backoff, text, Some(until)) } else { None }
}

/// S16: runs on several hosts that fail at once are ordered again after growing pauses, so that
/// trouble of some minutes does not use them up.
pub fn order_pause(ctx: &SlotCtx) -> Option<Decision> {
    let job = &ctx.record.job;
    let waits = runs::ends_by_itself(ctx.record, ctx.condition()) && job.relaunch_by.is_none();
    let ended = job.failing_since.filter(|_| waits)?;
    let count = runs::fruitless(ctx.record, ctx.condition()).checked_sub(1)?;
    let alone = if ctx.record.supervisors_are(TAKES_ROLL_CALL) { ALONE } else { ALONE_BEFORE };
    let most = alone.saturating_sub(ctx.settings.poll.every.saturating_mul(3));
    let until = after(ended, PAUSE.saturating_mul(1 << count.min(PAUSES)).min(most));
    let evidence = &ctx.record.verdict.evidence;
    let text = format!("{evidence}; run {} without a new step, so the next one waits", count + 1);
    if ctx.now < until { hold(HoldReason::Backoff, text, Some(until)) } else { None }
}

/// S5: what was reported long ago, or to an earlier process, may be over: hosts start again by themselves.
pub fn order_heard(ctx: &SlotCtx) -> Option<Decision> {
    let (record, job) = (&*ctx.record, &ctx.record.job);
    let asked = job.relaunch_by.is_some() || job.wanted_again == Some(job.generation);
    let since = |at: &Timestamp| record.mutated_at.is_none_or(|mutated| *at > mutated);
    let fresh = |at| elapsed(at, ctx.now) <= ctx.slot.policy.max_age;
    if asked || ctx.memory.heard.filter(since).is_some_and(fresh) {
        return None;
    }
    let evidence = &record.verdict.evidence;
    let text = format!("{evidence}; its workers are asked once more, and then relaunched");
    unheard_for_long(ctx).or_else(|| hold(HoldReason::Unclear, text, None))
}

/// An answer that lacks a worker says nothing about it.
fn unheard_for_long(ctx: &SlotCtx) -> Option<Decision> {
    let (record, name) = (&*ctx.record, &ctx.record.name);
    let last = ctx.memory.heard.or(record.job.attributes_at);
    let since = last.filter(|at| elapsed(*at, ctx.now) > UNHEARD_FOR)?;
    let text = format!(
        "{}; guest attributes unreadable since {since:.0}, so whether it has started again is not known: check the hosts; `relaunch {name}` \
         starts it in any case",
        record.verdict.evidence
    );
    hold(HoldReason::NoBeaconChannel, text, None)
}

/// S15: the newest complete checkpoint, listed just now.
pub fn order_checkpoints(ctx: &SlotCtx) -> Option<Decision> {
    let uri = &location::listed(ctx.slot)?.uri;
    if let Some(back) = went_back(ctx, "a relaunch is wanted, but") {
        return Some(back);
    }
    if ctx.slot.finds_its_own() {
        return None;
    }
    unlisted(ctx).or_else(|| {
        let text = format!("looking for the newest complete checkpoint under {uri}");
        (!is_just_listed(ctx, uri)).then(|| Decision::act(ActionName::Relaunch, text))
    })
}

fn unlisted(ctx: &SlotCtx) -> Option<Decision> {
    let wanted = |why: &str| format!("a relaunch is wanted, but {why}; it is listed again");
    if let Some(trouble) = &ctx.record.job.trouble {
        return hold(HoldReason::CheckpointUnreadable, wanted(trouble.text()), None);
    }
    let why = ctx.memory.survey_failure.as_ref()?;
    hold(HoldReason::CheckpointUnreadable, wanted(why), goes_back_at(ctx))
}

fn is_just_listed(ctx: &SlotCtx, uri: &str) -> bool {
    let job = &ctx.record.job;
    let since = job.failed_at.max(job.relaunch_by.as_ref().map(|asked| asked.at));
    let fresh = |at| elapsed(at, ctx.now) <= LISTED_WITHIN && Some(at) >= since;
    job.location == uri && ctx.memory.surveyed_at.is_some_and(fresh)
}
