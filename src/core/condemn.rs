//! The condemnation: one commit with the decision, the intent of the delete, and both in the log. Nothing is chosen here;
//! whoever calls has passed the gates and the checker.
//!
//! It reads what was suspected and for how long, and the confirming GET. It writes the recovery with its cause, its evidence
//! and the exact incarnation; the attempt that this uses up (S13); for a judged slot the hour's budget and the storm. Then the
//! recovery stands at `deleting` with an intended call, or at `gone` where nothing is left to delete: a TPU that is missing, a
//! training job that has ended.
//!
//! Three ends use no attempt: another hand's stuck delete, the TPU of a finished job, and a replacement whose capacity was
//! taken before it was READY, which backs off like a create that was refused. A replacement that fails goes back to
//! `condemned` within the same recovery, so that its outage is one, and counts.
//!
//! It never names another incarnation than the GET showed, and never sends anything: the delete leaves when the commit is
//! durable.
//!
//! Example: `a` was UNHEALTHY_TENSORFLOW for 15 min, and a GET of 2 s ago shows incarnation 7 the same. The commit says
//! "condemned as runtime_unhealthy", uses one of three attempts, and intends the delete of 7. Should the process die before
//! the call, the next one finds the intent, and reads 7 back before it sends anything.

use jiff::Timestamp;

use crate::model::action::Action;
use crate::model::condition::{Condition, Kind};
use crate::model::event::{Evidence, Verb, What};
use crate::model::failure::{Failure, FailureClass};
use crate::model::filling::Deletable;
use crate::model::fleet::Pending;
use crate::model::ids::Incarnation;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::slot::{Attempt, SlotRecord};
use crate::model::step::Call;
use crate::model::time::elapsed;
use crate::model::traits::BudgetOf;

use super::ctx::SlotCtx;
use super::moves::{advance, came_to_nothing, request_id};
use super::turn::Turn;
use super::{request, resubmission, runs};

/// Journals the condemnation together with the intent of the call that follows from it.
pub fn condemn(
    ctx: &mut SlotCtx,
    condition: Condition,
    kind: Kind,
    verified: Timestamp,
    turn: &mut Turn,
) {
    let incarnation = ctx
        .record
        .incarnation
        .clone()
        .filter(|_| condition != Condition::Missing && !ctx.record.has_ended());
    let observed = evidence(ctx.record, condition, kind, verified, turn.now);
    let again = ctx.record.recovery.as_ref().is_some_and(|r| {
        r.phase() == Phase::Condemned && !(r.kind == Kind::Lost && kind == Kind::Judged)
    });
    let stillborn = is_stillborn(ctx, condition);
    let tries = kind == Kind::Judged && !ctx.record.has_ended();
    if !again {
        open(ctx, &observed, incarnation.as_ref(), stillborn, turn);
    }
    came_to_nothing(ctx.record, condition.name(), turn);
    if ctx.record.recovery.as_ref().is_some_and(|r| r.phase() != Phase::Condemned)
        && condition != Condition::Missing
    {
        let why = format!("the replacement is {}", condition.name());
        advance(ctx.record, Phase::Condemned, &why, turn);
    }
    if tries {
        mark_trial(ctx, turn.now);
    }
    let failed = match condition {
        Condition::RequestFailed => Some(request::failure(ctx.record, turn.now)),
        _ if stillborn => Some(Failure::new(
            FailureClass::PreemptedInCreation,
            format!("it was {} before it was READY", condition.name()),
        )),
        _ => None,
    };
    if let Some(recovery) = &mut ctx.record.recovery {
        // The reason of a request that is gone by now holds for the next one.
        recovery.request_failed =
            failed.or(recovery.request_failed.take().filter(|_| condition == Condition::Missing));
        recovery.observed = Some(observed.clone());
        recovery.tried_at = tries.then_some(turn.now);
    }
    match incarnation {
        Some(incarnation) => delete(ctx, incarnation, observed, turn),
        None => advance(ctx.record, Phase::Gone, "there is nothing to delete", turn),
    }
}

/// A replacement that capacity was taken from while it was created: its next create counts like one that
/// was refused, and no attempt is used up.
fn is_stillborn(ctx: &SlotCtx, condition: Condition) -> bool {
    let record = &*ctx.record;
    let startup = ctx.slot.policy.grace.startup(record.size());
    // One that was not read for longer may have been at work for hours.
    let creating = record.recovery.as_ref().is_some_and(|recovery| {
        recovery.phase() == Phase::Creating && elapsed(recovery.phase_since, ctx.now) < startup
    });
    let taken = matches!(condition, Condition::Preempted | Condition::Terminated);
    creating && taken && !record.traits().ends_in_place
}

/// The reasons for a condemnation, as the journal keeps them.
fn evidence(
    record: &SlotRecord,
    condition: Condition,
    kind: Kind,
    confirmed_at: Timestamp,
    now: Timestamp,
) -> Evidence {
    let suspicion = record.suspicion.as_ref();
    Evidence {
        condition,
        kind,
        symptom_at: suspicion.map_or(now, |s| s.since),
        sick_seconds: suspicion.map_or(0.0, |s| s.sick_for.as_secs_f64()),
        reads: suspicion.map_or(0, |s| s.reads),
        confirmed_at,
        observed: record.verdict.evidence.clone(),
    }
}

/// A recovery begins, or one under way gets another node to replace. Both count as an attempt.
fn open(
    ctx: &mut SlotCtx,
    observed: &Evidence,
    incarnation: Option<&Incarnation>,
    stillborn: bool,
    turn: &mut Turn,
) {
    let (now, record) = (turn.now, &mut *ctx.record);
    let (condition, kind) = (observed.condition, observed.kind);
    // Another hand's delete that is sent once more is no recovery, nor is the end of a finished job. A
    // request that failed gave no machines: its next one counts like a create that was refused.
    let counts =
        !matches!(condition, Condition::Deleting | Condition::Finished | Condition::RequestFailed)
            && !stillborn;
    resubmission::count(record, condition);
    if counts {
        _ = runs::ended(record, condition, turn);
        let window = ctx.slot.policy.attempts.window;
        record.attempts.retain(|a| a.kind != kind || elapsed(a.at, now) < window);
        record.attempts.push(Attempt { at: now, kind });
    }
    // The hourly limit is that of TPUs: `restart` bounds how often a job is submitted again.
    if kind == Kind::Judged && ctx.slot.filling.traits().budget == BudgetOf::Tpus {
        ctx.ledger.judged.push(now);
    }
    ctx.budget.ledger_changed = true;
    let step_before = record.job.step;
    match &mut record.recovery {
        Some(recovery) => {
            // A bad replacement: the walk goes on, with a new order. Failed deletes are those of
            // one node.
            if recovery.phase() != Phase::Condemned {
                recovery.delete_failures = 0;
            }
            recovery.kind = kind;
            recovery.condemned = incarnation.cloned();
            (recovery.order, recovery.not_before) = (None, None);
        }
        none => {
            let mut recovery = Recovery::condemned(condition, kind, observed.symptom_at, now);
            recovery.evidence.clone_from(&observed.observed);
            recovery.condemned = incarnation.cloned();
            recovery.step_before = step_before;
            *none = Some(recovery);
        }
    }
    let who = incarnation.map_or("nothing to delete".to_owned(), |i| format!("incarnation {i}"));
    let message = format!("condemned as {}: {}; {who}", condition.name(), observed.observed);
    let condemned = What::Condemned {
        cause: condition,
        kind,
        incarnation: incarnation.cloned(),
        detection_seconds: elapsed(observed.symptom_at, now).as_secs_f64(),
    };
    turn.tell(record, condemned, message);
}

/// Where creates are refused, or replacements fail together, this delete is the one that tries it.
fn mark_trial(ctx: &mut SlotCtx, now: Timestamp) {
    let name = ctx.pool();
    if let Some(pool) = ctx.ledger.pools.get_mut(&name) {
        pool.trial_at = Some(now);
        ctx.budget.ledger_changed = true;
    }
}

/// The delete is intended: it leaves when this is durable.
fn delete(ctx: &mut SlotCtx, incarnation: Incarnation, observed: Evidence, turn: &mut Turn) {
    let record = &mut *ctx.record;
    advance(record, Phase::Deleting, &format!("deleting {incarnation}"), turn);
    let message = format!(
        "delete {} in {}, incarnation {incarnation}: {}",
        record.name, record.zone, record.verdict.evidence
    );
    let verified = observed.confirmed_at;
    let intent = What::Intent {
        call: Verb::Delete,
        zone: record.zone.clone(),
        incarnation: Some(incarnation.clone()),
        generation: None,
        evidence: Some(observed),
        decided_by: ctx.settings.decided_by.clone(),
    };
    turn.tell(record, intent, message);
    let recovery = record.recovery.as_ref();
    let (failures, spent) = recovery.map_or((0, 0), |r| (r.delete_failures, r.spent));
    let of = format!("{incarnation} {failures} {spent}");
    let takes_id = ctx.slot.filling.takes_request_ids(ctx.settings.alpha);
    let request_id = takes_id.then(|| request_id(record, "delete", &of));
    let deletable = record.seen.as_ref().map(|seen| seen.deletable);
    let force = deletable == Some(Deletable::WithItsNodes);
    if let Some(recovery) = &mut record.recovery {
        recovery.at.set_call(Call::Intended);
        recovery.condemned = Some(incarnation.clone());
    }
    ctx.memory.pending.insert(Pending::Call);
    ctx.memory.looked_at = None;
    turn.act(Action::Delete {
        slot: record.name.clone(),
        zone: record.zone.clone(),
        incarnation,
        verified,
        request_id,
        filling: ctx.filling(),
        force,
        stray: false,
    });
}
