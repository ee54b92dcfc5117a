//! The condemnation: one commit with the decision, the intent of the delete, and both in the log.
//! Nothing is chosen here; whoever calls has passed the gates and the checker.

use jiff::Timestamp;

use crate::model::action::Action;
use crate::model::condition::{Condition, Kind};
use crate::model::event::{Evidence, Verb, What};
use crate::model::fleet::Pending;
use crate::model::phase::Phase;
use crate::model::recovery::{Call, Recovery};
use crate::model::slot::{Attempt, SlotRecord};
use crate::model::time::elapsed;

use super::ctx::SlotCtx;
use super::moves::{advance, came_to_nothing};
use super::runs;
use super::turn::Turn;

/// Journals the condemnation together with the intent of the call that follows from it.
pub fn condemn(
    ctx: &mut SlotCtx,
    condition: Condition,
    kind: Kind,
    verified: Timestamp,
    turn: &mut Turn,
) {
    let (now, pool) = (turn.now, ctx.pool());
    let record = &mut *ctx.record;
    let symptom_at = record.suspicion.as_ref().map_or(now, |s| s.since);
    let incarnation = record.incarnation.clone().filter(|_| condition != Condition::Missing);
    let again = record.recovery.as_ref().is_some_and(|r| {
        r.phase == Phase::Condemned && !(r.kind == Kind::Lost && kind == Kind::Judged)
    });
    let observed = Evidence {
        condition,
        kind,
        symptom_at,
        sick_seconds: record.suspicion.as_ref().map_or(0.0, |s| s.sick_for.as_secs_f64()),
        reads: record.suspicion.as_ref().map_or(0, |s| s.reads),
        confirmed_at: verified,
        observed: record.verdict.evidence.clone(),
    };
    if !again {
        runs::ended(record, condition, turn);
        record
            .attempts
            .retain(|a| a.kind != kind || elapsed(a.at, now) < ctx.slot.policy.attempts.window);
        record.attempts.push(Attempt { at: now, kind });
        if kind == Kind::Judged {
            ctx.ledger.judged.push(now);
        }
        ctx.budget.ledger_changed = true;
        if let Some(recovery) = &mut record.recovery {
            // A bad replacement: the walk goes on, with a new order. Failed deletes are those of
            // one node.
            if recovery.phase != Phase::Condemned {
                recovery.delete_failures = 0;
            }
            recovery.kind = kind;
            recovery.condemned.clone_from(&incarnation);
            recovery.order = None;
            recovery.not_before = None;
        } else {
            record.recovery = Some(Recovery {
                cause: condition,
                kind,
                evidence: record.verdict.evidence.clone(),
                symptom_at,
                condemned_at: now,
                phase: Phase::Condemned,
                phase_since: now,
                phases: Vec::new(),
                condemned: incarnation.clone(),
                call: None,
                delete_failures: 0,
                create_failures: 0,
                not_before: None,
                refusal: None,
                order: None,
                resends: 0,
                spent: 0,
                step_before: record.job.step,
                saved_at: None,
                set_apart: false,
                unfit: None,
                tried_at: None,
                creating_since: None,
                failed: None,
                observed: None,
            });
        }
        let who = incarnation
            .as_ref()
            .map_or("nothing to delete".to_owned(), |i| format!("incarnation {i}"));
        let message =
            format!("condemned as {}: {}; {who}", condition.name(), record.verdict.evidence);
        let detection_seconds = elapsed(symptom_at, now).as_secs_f64();
        turn.tell(
            record,
            What::Condemned {
                cause: condition,
                kind,
                incarnation: incarnation.clone(),
                detection_seconds,
            },
            message,
        );
    }
    came_to_nothing(record, condition.name(), turn);
    if record.recovery.as_ref().is_some_and(|r| r.phase != Phase::Condemned)
        && condition != Condition::Missing
    {
        advance(
            record,
            Phase::Condemned,
            &format!("the replacement is {}", condition.name()),
            turn,
        );
    }
    let tries = kind == Kind::Judged && condition != Condition::FailedRepair;
    if tries {
        for shortage in [ctx.ledger.short.get_mut(&pool), ctx.ledger.suspended.get_mut(&pool)]
            .into_iter()
            .flatten()
        {
            shortage.trial_at = Some(now);
            ctx.budget.ledger_changed = true;
        }
    }
    if let Some(recovery) = &mut record.recovery {
        recovery.observed = Some(observed.clone());
        recovery.tried_at = tries.then_some(now);
    }
    let Some(incarnation) = incarnation else {
        return advance(record, Phase::Gone, "there is nothing to delete", turn);
    };
    advance(record, Phase::Deleting, &format!("deleting {incarnation}"), turn);
    let message = format!(
        "delete {} in {}, incarnation {incarnation}: {}",
        record.name, record.zone, record.verdict.evidence
    );
    let intent = What::Intent {
        call: Verb::Delete,
        zone: record.zone.clone(),
        incarnation: Some(incarnation.clone()),
        generation: None,
        evidence: Some(observed),
        decided_by: ctx.settings.decided_by.clone(),
    };
    turn.tell(record, intent, message);
    let (failures, spent) =
        record.recovery.as_ref().map_or((0, 0), |r| (r.delete_failures, r.spent));
    let request_id = ctx
        .settings
        .alpha
        .then(|| request_id(record, "delete", &format!("{incarnation} {failures} {spent}")));
    if let Some(recovery) = &mut record.recovery {
        recovery.call = Some(Call::Intended);
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
    });
}

/// A request id that is the same for the same intent: derived, so that the core stays
/// deterministic. One that comes late after its answer was lost does nothing any more.
pub fn request_id(record: &SlotRecord, verb: &str, of: &str) -> String {
    let name = format!("{verb} {} {} {of} {}", record.zone, record.name, record.job.generation);
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, name.as_bytes()).to_string()
}
