//! Deletes that no sickness asks for: an operator's `recreate`, another hand's delete that is
//! stuck and is sent once more, and the removal of a TPU whose job has finished.
//!
//! A `recreate` skips graces, quiet hours, `max_unavailable` and the storm breaker, for a person is
//! there; every other gate still refuses, by name, and a GET confirms the incarnation that was meant.
//! A wish that could not be met within an hour is dropped.
//! A node that is DELETING by another hand for longer than `grace.deleting` is deleted once more,
//! which has unblocked such deletes; no create follows, and what is still there then is escalated.
//! With `on_success = "delete"` a TPU of ours is deleted where worker 0 has reported an end with code 0,
//! once it has been READY and held by nothing for ten minutes; no create follows, until `retry`. With
//! `on_success = "stop"` one of a single host is stopped instead, once: started by hand, it is left running.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::event::What;
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::OnSuccess;
use crate::model::time::{after, elapsed};
use crate::model::view::{ActionName, Decision};

use super::condemn::condemn;
use super::ctx::SlotCtx;
use super::gates::{self, Before, Gate};
use super::relaunch::wanted_for;
use super::turn::Turn;
use super::{amend, confirm, diagnose, reads, runs};

/// From the success of a job to the removal of its TPU: other workers may still save or write their
/// logs, and an operator may still want it.
const REMOVED_AFTER: Duration = Duration::from_secs(10 * 60);

/// A replacement that an operator asks for waits so long for the last lines of the hosts.
const LAST_LINES: Duration = Duration::from_secs(20);

/// Whether an operator's wish counts now: not where the API itself works on the node, where it was
/// stopped, or where nothing is known of it (S10, S5).
pub fn applies(ctx: &SlotCtx) -> bool {
    let at_work = matches!(
        ctx.condition(),
        Condition::Stopped
            | Condition::Deleting
            | Condition::Unclear
            | Condition::Starting
            | Condition::Waiting
            | Condition::Going
    );
    let at_work = at_work && !ctx.record.has_ended();
    !at_work && ctx.condition().kind() != Some(Kind::Lost)
}

/// Drops a wish that is no longer what its operator meant: what was sick is healthy by now, or an hour
/// has passed, and what runs by then is not ended for it.
pub fn forget_old_wish(ctx: &mut SlotCtx, turn: &mut Turn) {
    let condition = ctx.condition();
    let Some(wish) = &mut ctx.record.wanted else { return };
    let asked = *wish.at.get_or_insert(turn.now);
    let was = wish.condition.filter(|was| *was != Condition::Healthy);
    let why = match was.filter(|_| condition == Condition::Healthy) {
        Some(was) => format!("its TPU was {was} when it was asked for, and is healthy now"),
        None if elapsed(asked, turn.now) >= wanted_for(&ctx.settings.poll) => {
            "nothing could be done for it in time".to_owned()
        }
        None => return,
    };
    let text = format!("recreate by {}: {why}, so it is dropped; ask again", wish.who);
    ctx.record.wanted = None;
    turn.tell(ctx.record, What::Note, text);
}

/// Judges a slot that an operator wants recreated.
pub fn judge(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let Some(wish) = ctx.record.wanted.clone() else { return Decision::none("not asked for") };
    if ctx.record.incarnation != wish.incarnation {
        ctx.record.wanted = None;
        let meant = wish.incarnation.map_or("a TPU".to_owned(), |of| of.to_string());
        let text = format!("recreate by {}: {meant} is not there", wish.who);
        turn.tell(ctx.record, What::Note, text.clone());
        return Decision::none(text);
    }
    reads::create_check(ctx, turn);
    reads::look_over_specification(ctx);
    if let Some((_, hold)) = gates::first_hold(gates, ctx, Before::Asked) {
        return hold;
    }
    let reason = match ctx.slot.filling.traits().ends_in_place {
        true => format!("{} wants it submitted again", wish.who),
        false => format!("{} asked for it (recreate)", wish.who),
    };
    if let Some(waits) = last_lines(ctx, wish.at, &reason, turn) {
        return waits;
    }
    match confirmed(ctx, Condition::Requested, &reason, turn) {
        Err(decision) => decision,
        Ok(verified) => {
            // A person's try is a new one.
            runs::retry(ctx.record);
            condemn(ctx, Condition::Requested, Kind::Judged, verified, turn);
            Decision::act(ActionName::Recreate, reason)
        }
    }
}

/// The last lines of a run go with its node: the hosts are read once more, as long as they may answer
/// in time.
fn last_lines(
    ctx: &mut SlotCtx,
    asked: Option<Timestamp>,
    reason: &str,
    turn: &mut Turn,
) -> Option<Decision> {
    let (record, memory) = (&*ctx.record, &mut *ctx.memory);
    let asked = asked?;
    let told =
        record.ours && record.seen.as_ref().is_some_and(|seen| seen.supervised && seen.ready);
    let heard = record.job.attributes_at >= Some(asked) || memory.attributes_failing;
    let until = after(asked, LAST_LINES);
    if !told || heard || turn.now >= until || ctx.settings.dry_run {
        return None;
    }
    reads::attributes(record, memory, turn.now, turn);
    let text = format!("{reason}; the last lines of its hosts are read first");
    let mut decision = Decision::act(ActionName::Recreate, text);
    decision.until = Some(until);
    Some(decision)
}

// unverified: a second delete unblocks one that is stuck (one operator saw it).
// settled by: gcloud compute tpus tpu-vm delete NODE --zone ZONE, of a node that has been DELETING for long
/// Decides about a node that another hand deletes.
pub fn nudge(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let evidence = ctx.record.verdict.evidence.clone();
    let deadline = after(ctx.record.since, ctx.slot.policy.grace.deleting);
    if turn.now < deadline {
        let text = format!("{evidence}: another client is deleting it");
        return Decision::wait(text, Some(deadline));
    }
    let again = ctx.record.recovery.is_some();
    if ctx.record.nudged.is_some() && ctx.record.nudged == ctx.record.incarnation && !again {
        let text = format!(
            "{evidence} since {:.0}, even after the watchdog sent its own delete; delete it by hand",
            ctx.record.since
        );
        let mut decision = Decision::hold(HoldReason::Deleting, text, None);
        decision.action = ActionName::Escalate;
        return decision;
    }
    if let Some((_, hold)) = gates::first_hold(gates, ctx, Before::Stuck) {
        return hold;
    }
    let reason = format!("{evidence} since {:.0}: the delete is sent once more", ctx.record.since);
    match confirmed(ctx, Condition::Deleting, &reason, turn) {
        Err(decision) => decision,
        Ok(verified) => {
            let owed = diagnose::is_owed(ctx.record);
            condemn(ctx, Condition::Deleting, Kind::Lost, verified, turn);
            ctx.record.nudged.clone_from(&ctx.record.incarnation);
            // A recovery that had no replacement yet still owes its create.
            if let Some(recovery) = ctx.record.recovery.as_mut().filter(|_| !owed) {
                recovery.no_create = true;
            }
            Decision::act(ActionName::Wait, reason)
        }
    }
}

/// Decides about a node whose job has finished.
pub fn finished(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let evidence = ctx.record.verdict.evidence.clone();
    if ctx.record.seen.as_ref().is_some_and(|seen| seen.stopped) {
        ctx.record.job.stopped.clone_from(&ctx.record.incarnation);
    }
    if let Some(why) = outlives(ctx) {
        ctx.record.job.removable_since = None;
        withdraw_removal(ctx, turn);
        return Decision::none(format!("{evidence}{why}"));
    }
    reads::look_over_specification(ctx);
    if let Some((_, hold)) = gates::first_hold(gates, ctx, Before::Finished) {
        // It may be held for something that is still to be fetched: the ten minutes begin once more.
        let refused = matches!(hold.hold, Some(HoldReason::Backoff | HoldReason::DeleteFailed));
        if !refused {
            ctx.record.job.removable_since = None;
        }
        return hold;
    }
    let stops = ctx.slot.policy.on_success == OnSuccess::Stop;
    let (how, done) = if stops { ("stop", "stopped") } else { ("delete", "deleted") };
    let reason = format!("{evidence}, and on_success = \"{how}\"");
    let known = ctx.record.job.removable_since;
    // Not from a former success, nor from before the slot was there again.
    let until = after(known.unwrap_or(turn.now).max(ctx.record.since), REMOVED_AFTER);
    // `status` judges as in dry run, and shows the time that the service counts; a dry run counts none.
    let dry = ctx.settings.dry_run && (known.is_none() || turn.now >= until);
    ctx.record.job.removable_since = Some(known.unwrap_or(turn.now)).filter(|_| !dry);
    if dry {
        let mut decision = Decision::act(ActionName::Wait, reason);
        decision.hold = Some(HoldReason::DryRun);
        return decision;
    }
    if turn.now < until {
        let text = format!("{evidence}; the TPU is {done}, as on_success says; `pause` keeps it");
        return Decision::wait(text, Some(until));
    }
    if stops {
        return amend::stop(ctx, reason, turn);
    }
    match confirmed(ctx, Condition::Finished, &reason, turn) {
        Err(decision) => decision,
        Ok(verified) => {
            condemn(ctx, Condition::Finished, Kind::Lost, verified, turn);
            if let Some(recovery) = &mut ctx.record.recovery {
                recovery.no_create = true;
            }
            Decision::act(ActionName::Wait, reason)
        }
    }
}

/// Why a finished TPU is neither deleted nor stopped, in words that follow the evidence.
fn outlives(ctx: &SlotCtx) -> Option<String> {
    let (record, job) = (&*ctx.record, &ctx.record.job);
    let there = record.incarnation.is_some() && record.seen.as_ref().is_some_and(|s| s.ready);
    let (how, stops) = match ctx.slot.policy.on_success {
        OnSuccess::Keep => return Some(String::new()),
        OnSuccess::Stop => ("stop", true),
        OnSuccess::Delete => ("delete", false),
    };
    if !there || ctx.memory.absence_confirmed {
        return Some(String::new());
    }
    let although = format!("so it is kept although on_success = \"{how}\"");
    if !record.ours {
        return Some(format!("; it is adopted, {although}"));
    }
    // An operator's `done` says nothing about what still runs on the hosts, nor does another job's end.
    let ended = |(generation, code)| code == 0 && generation >= record.heard_from();
    let counts = job.exits.get(&0).is_none_or(|exit| job.pardoned.get(&0) != Some(exit));
    let its_own = job.ordered.is_none() || job.ordered == job.finished;
    if !(record.exit_of(0).is_some_and(ended) && counts && its_own) {
        let why = "nothing shows that its job has ended by itself on this TPU";
        return Some(format!("; {why}, {although}"));
    }
    // "Only available with single TPU nodes" (Cloud TPU API v2, nodes.stop).
    let hosts = record.size().hosts;
    if stops && hosts > 1 {
        return Some(format!("; a TPU of {hosts} hosts can't be stopped, {although}"));
    }
    let started = stops && record.job.stopped == record.incarnation;
    started.then(|| format!("; it was stopped once and started by hand, {although}"))
}

/// A delete that did not come about yet is not wanted any longer, or the node is gone without it.
fn withdraw_removal(ctx: &mut SlotCtx, turn: &mut Turn) {
    let pending = |recovery: &mut Recovery| {
        recovery.cause == Condition::Finished && recovery.phase() == Phase::Condemned
    };
    if let Some(recovery) = ctx.record.recovery.take_if(pending) {
        let what = What::Withdrawn { cause: recovery.cause };
        turn.tell(ctx.record, what, "its TPU is kept, stopped, or gone by another hand");
    }
}

/// The GET that a delete rests on, once the checker agrees; else what is done meanwhile.
fn confirmed(
    ctx: &mut SlotCtx,
    cause: Condition,
    reason: &str,
    turn: &mut Turn,
) -> Result<Timestamp, Decision> {
    let action = match cause {
        Condition::Requested => ActionName::Recreate,
        _ => ActionName::Wait,
    };
    if ctx.settings.dry_run {
        let mut decision = Decision::act(action, reason);
        decision.hold = Some(HoldReason::DryRun);
        return Err(decision);
    }
    let Some(confirmed) = confirm::confirmed(ctx) else {
        reads::confirm(ctx, turn);
        let asked = || Decision::act(action, format!("{reason}; sending a GET to confirm"));
        return Err(confirm::too_slow(ctx).unwrap_or_else(asked));
    };
    let (checker, case) = ctx.case();
    match checker.delete(&case, cause, &confirmed) {
        Ok(()) => Ok(confirmed.began),
        Err(violation) => {
            Err(confirm::refused(ctx, violation.name(), &violation.to_string(), turn))
        }
    }
}
