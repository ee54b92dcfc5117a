//! The moves of a recovery from one phase to the next, and what the log says of its calls.
//!
//! `advance` is the only way to change a phase: it refuses a move that `model::phase` does not know, forgets the call of the
//! phase that ends, and tells how long that took. `came_of` tells once for each intent what came of it: accepted, done,
//! refused, unknown, not sent, called off. The audit counts on both: a mutation without an intent, or an intent without an end,
//! is a violation.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::event::{CallResult, Submission, Verb, What};
use crate::model::failure::{Failure, FailureClass};
use crate::model::phase::Phase;
use crate::model::settings::Policy;
use crate::model::slot::SlotRecord;
use crate::model::spec::TRAINING_KEY;
use crate::model::step::Call;
use crate::model::time::{after, elapsed};

use super::pool::spread;
use super::turn::Turn;

/// A replacement does not last until its create was told to be done.
pub fn came_to_nothing(record: &SlotRecord, why: &str, turn: &mut Turn) {
    let untold = record
        .recovery
        .as_ref()
        .is_some_and(|r| r.phase() == Phase::Creating && r.call() != Some(&Call::Observed));
    if untold {
        came_of(
            record,
            Verb::Create,
            CallResult::Failed,
            &format!("the replacement is {why} before it was READY"),
            turn,
        );
    }
}

/// The result of a mutation, for the audit.
pub fn came_of(
    record: &SlotRecord,
    call: Verb,
    result: CallResult,
    message: &str,
    turn: &mut Turn,
) {
    let incarnation = if call == Verb::Delete {
        record.recovery.as_ref().and_then(|recovery| recovery.condemned.clone())
    } else {
        record.incarnation.clone()
    };
    let submission = submission(record, call, result, turn.now);
    turn.tell(record, What::Outcome { call, result, incarnation, submission }, message.to_owned());
}

/// How a submission of a training job came out, where this call is one.
fn submission(
    record: &SlotRecord,
    call: Verb,
    result: CallResult,
    now: Timestamp,
) -> Option<Submission> {
    let spec = record.spec.as_ref().filter(|_| call == Verb::Create)?;
    spec.body().get(TRAINING_KEY)?;
    let sent = record.recovery.as_ref().and_then(|recovery| recovery.call());
    let lost = matches!(sent, Some(Call::Intended | Call::Unknown));
    match result {
        CallResult::Accepted | CallResult::Done if record.incarnation.is_some() => {
            // It is told once more when it runs.
            (lost && record.first_seen == Some(now)).then_some(Submission::Found)
        }
        CallResult::Accepted => Some(Submission::Created),
        CallResult::Refused => Some(Submission::Refused),
        CallResult::Unknown => Some(Submission::Unknown),
        _ => None,
    }
}

pub fn set_call(record: &mut SlotRecord, call: Call) {
    if let Some(recovery) = &mut record.recovery {
        recovery.at.set_call(call);
    }
}

/// One legal move, told. An illegal one changes nothing and is told as a violation.
pub fn advance(record: &mut SlotRecord, next: Phase, why: &str, turn: &mut Turn) {
    let Some(recovery) = &mut record.recovery else { return };
    let from = recovery.phase();
    let spent = elapsed(recovery.phase_since, turn.now);
    match recovery.advance(next, turn.now) {
        Ok(()) => {
            if matches!(from, Phase::Condemned | Phase::Deleting) && next == Phase::Gone {
                // A delay of the delete does not delay the create.
                recovery.resends = 0;
                recovery.not_before = None;
            }
            if next == Phase::Gone {
                if let Some(gone) = record.incarnation.take() {
                    record.left_behind = Some((gone.created, turn.now));
                    record.left_in = Some(record.zone.clone());
                    record.end_was_told = false;
                }
                record.ours = false;
                record.wanted = None;
                record.ready_since = None;
                record.suspicion = None;
            }
            let message =
                format!("{from} -> {next} after {}: {why}", crate::model::time::span(spent));
            turn.tell(
                record,
                What::Phase { from, seconds: spent.as_secs_f64(), to: next },
                message,
            );
        }
        Err(illegal) => {
            let message = format!("{illegal} ({why}); the recovery stays where it is");
            turn.tell(record, What::InvariantViolation { invariant: "legal_move".into() }, message);
        }
    }
}

/// Back to owing a create that was lost on the way: sent again after a growing wait.
pub fn resend_later(
    record: &mut SlotRecord,
    policy: &Policy,
    failure: Option<Failure>,
    why: &str,
    turn: &mut Turn,
) {
    advance(record, Phase::Gone, why, turn);
    if let Some(recovery) = &mut record.recovery {
        let failure = failure.map(|f| (f.class, f.message));
        let news = failure.is_some() || recovery.refusal.is_none();
        recovery.refusal =
            failure.or(recovery.refusal.take()).or(Some((FailureClass::Transient, why.to_owned())));
        if news {
            recovery.refused_in.clone_from(&record.zone);
        }
        recovery.resends += 1;
        recovery.not_before =
            Some(after(turn.now, backoff(policy, &record.name, recovery.resends)));
    }
}

/// An accepted call has come to nothing: sent again, it must not be taken for the same request.
pub fn spend(record: &mut SlotRecord) {
    if let Some(recovery) = &mut record.recovery {
        recovery.spent += 1;
    }
}

/// Exponential, from `backoff.first` to `backoff.max`, spread over its last quarter by the slot's
/// name: two hundred slots do not come back in step.
pub fn backoff(policy: &Policy, slot: &str, failures: u32) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1).min(20)).unwrap_or(u32::MAX);
    let longest = policy.backoff_first.saturating_mul(factor).min(policy.backoff_max);
    spread(longest * 3 / 4, longest, slot, failures)
}

/// A request id that is the same for the same intent: derived, so that the core stays
/// deterministic. A late copy, after its answer was lost, does nothing more.
pub fn request_id(record: &SlotRecord, verb: &str, of: &str) -> String {
    let name = format!("{verb} {} {} {of} {}", record.zone, record.name, record.job.generation);
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, name.as_bytes()).to_string()
}
