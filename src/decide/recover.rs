//! Moves a recovery on: by what was read, by what came of a call, by what an operation became, by progress.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::action::{CallOutcome, Reading};
use crate::model::condition::{Condition, Kind};
use crate::model::event::What;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Ledger, Memory, Shortage, after, elapsed};
use crate::model::mask::Mask;
use crate::model::mutant::{self, Mutant};
use crate::model::node::{NodeState, NodeView};
use crate::model::operation::OperationState;
use crate::model::recovery::{Call, Phase};
use crate::model::settings::{Policy, Settings};
use crate::model::slot::{SlotRecord, WorkerState};

use super::observe::{Source, become_incarnation, is_our_create, unsettled};
use super::turn::Turn;

/// Looks that find neither operation nor node before a create counts as not carried out.
const VANISHED_LIMIT: u32 = 3;

/// Takes a reading into the recovery. Returns whether the record changed.
pub fn observed(
    record: &mut SlotRecord,
    memory: &mut Memory,
    settings: &Settings,
    policy: &Policy,
    reading: &Reading,
    source: Source,
    turn: &mut Turn,
) -> bool {
    let Some(recovery) = &record.recovery else { return false };
    let call = recovery.call.clone();
    if matches!(reading, Reading::Node(view) if view.incarnation.is_none()) {
        // Without a creation time it can't be told from another node: it settles nothing.
        return false;
    }
    let calling = memory.pending.contains(&crate::model::fleet::Pending::Call);
    let get = source == Source::Get;
    match (recovery.phase, reading) {
        // Only a GET settles a delete: the listing may be older than the call.
        (Phase::Deleting, Reading::Absent) if get && !calling => {
            came_of(record, "delete", "done", "read back: GET says 404, the node is gone", turn);
            advance(record, Phase::Gone, "GET says 404: the node is gone", turn)
        }
        (Phase::Deleting, Reading::Node(view)) if get && !calling => {
            if view.incarnation != recovery.condemned {
                superseded(record, view, settings, turn);
            } else if view.state == NodeState::Deleting {
                if unsettled(call.as_ref()) {
                    set_call(record, Call::Observed);
                }
            } else if unsettled(call.as_ref()) {
                // It is judged anew, with this read as its confirmation.
                came_of(record, "delete", "failed", "read back: the node is there, the delete was not carried out", turn);
                advance(record, Phase::Condemned, "read back: the delete was not carried out", turn);
                if let Some(recovery) = &mut record.recovery {
                    // Once may be bad luck; a server that never carries it out is not asked at the speed of the network.
                    recovery.resends += 1;
                    if recovery.resends > 1 {
                        recovery.not_before = Some(after(turn.now, backoff(policy, recovery.resends - 1)));
                    }
                }
            } else if memory.operation_lost.is_some() {
                memory.vanished += 1;
                if memory.vanished >= VANISHED_LIMIT {
                    memory.vanished = 0;
                    came_of(record, "delete", "failed", "its operation is lost, and the node is not being deleted", turn);
                    advance(record, Phase::Condemned, "the operation is lost and the node is not being deleted", turn);
                    spend(record);
                }
            }
        }
        (Phase::Gone, Reading::Node(view)) => {
            if is_our_create(record, settings, view) {
                // An earlier create whose answer was lost has been carried out after all.
                came_of(record, "create", "done", "read back: an earlier create of ours was carried out after all", turn);
                advance(record, Phase::Creating, "an earlier create of ours was carried out after all", turn);
                set_call(record, Call::Observed);
                replaced(record, view, turn);
            } else if view.incarnation != recovery.condemned {
                superseded(record, view, settings, turn);
            } else if get {
                advance(record, Phase::Condemned, "the condemned node is still there", turn);
            }
        }
        (Phase::Creating, Reading::Node(view)) if record.incarnation.is_none() && !calling => {
            if is_our_create(record, settings, view) {
                replaced(record, view, turn);
            } else if get && view.incarnation != recovery.condemned {
                superseded(record, view, settings, turn);
            } else if get && unsettled(call.as_ref()) {
                came_of(record, "create", "failed", "read back: the condemned node is still there", turn);
                advance(record, Phase::Condemned, "the condemned node is still there", turn);
            }
        }
        (Phase::Creating, Reading::Node(view)) if record.incarnation.is_some() => {
            if record.incarnation == view.incarnation && view.state == NodeState::Ready {
                replaced(record, view, turn);
            } else if view.incarnation.is_some() && record.incarnation != view.incarnation {
                superseded(record, view, settings, turn);
            }
        }
        // One whose operation ended with an error is told by its caller, which knows of capacity and zones.
        (Phase::Creating, Reading::Absent) if get && !calling && record.incarnation.is_none() => {
            memory.vanished += 1;
            // With an operation under way a 404 may only mean "not yet"; without one the create was not carried out.
            if unsettled(call.as_ref()) || memory.vanished >= VANISHED_LIMIT {
                memory.vanished = 0;
                came_of(record, "create", "failed", "read back: GET says 404, the create was not carried out", turn);
                resend_later(record, policy, None, "read back: the create was not carried out", turn);
                if matches!(call, Some(Call::Accepted { .. } | Call::Observed)) {
                    spend(record);
                }
            }
        }
        (Phase::Ready | Phase::Booted | Phase::Launched | Phase::Condemned, Reading::Node(view)) => {
            let known = if recovery.phase == Phase::Condemned { &recovery.condemned } else { &record.incarnation };
            if view.incarnation.is_some() && *known != view.incarnation {
                superseded(record, view, settings, turn);
            } else {
                return false;
            }
        }
        _ => return false,
    }
    true
}

/// A replacement does not last until its create was told to be done.
pub fn came_to_nothing(record: &SlotRecord, why: &str, turn: &mut Turn) {
    let untold = record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Creating && r.call != Some(Call::Observed));
    if untold {
        came_of(record, "create", "failed", &format!("the replacement is {why} before it was READY"), turn);
    }
}

/// The result of a mutation, for the audit.
fn came_of(record: &SlotRecord, call: &str, result: &str, message: &str, turn: &mut Turn) {
    let incarnation = if call == "delete" {
        record.recovery.as_ref().and_then(|recovery| recovery.condemned.clone())
    } else {
        record.incarnation.clone()
    };
    turn.tell(record, What::Outcome { call: call.into(), result: result.into(), incarnation }, message.to_owned());
}

/// Our create produced this node.
fn replaced(record: &mut SlotRecord, view: &NodeView, turn: &mut Turn) {
    if mutant::is(Mutant::ReplacementResetsAttempts) {
        record.attempts.clear();
    }
    let (ready, first) = (view.state == NodeState::Ready, record.incarnation != view.incarnation);
    let result = match record.recovery.as_ref().and_then(|r| r.call.as_ref()) {
        // Its operation has told it, or tells it while it is looked at: up to READY.
        Some(Call::Observed) => None,
        Some(Call::Accepted { .. }) => ready.then_some("done"),
        Some(Call::Intended | Call::Unknown) | None if ready => Some("done"),
        Some(Call::Intended | Call::Unknown) | None => first.then_some("accepted"),
    };
    if first {
        become_incarnation(record, view, true, turn.now);
    }
    if let (Some(result), Some(made)) = (result, &view.incarnation) {
        came_of(record, "create", result, &format!("read back: the create makes {made}"), turn);
    }
    if ready {
        record.ready_since = Some(turn.now);
        let made = view.incarnation.as_ref().map_or("?".to_owned(), ToString::to_string);
        advance(record, Phase::Ready, &format!("the replacement is READY: {made}"), turn);
        if let Some(recovery) = &mut record.recovery {
            recovery.create_failures = 0;
            recovery.resends = 0;
            recovery.refusal = None;
        }
    }
}

/// Somebody else replaced the node: it is left alone, and judged like any other from now on.
fn superseded(record: &mut SlotRecord, view: &NodeView, settings: &Settings, turn: &mut Turn) {
    let Some(recovery) = record.recovery.clone() else { return };
    match recovery.phase {
        Phase::Deleting => came_of(record, "delete", "done", "read back: the condemned node is gone, another one is there", turn),
        Phase::Creating if recovery.call != Some(Call::Observed) => {
            came_of(record, "create", "failed", "read back: somebody else's node is there", turn);
        }
        _ => {}
    }
    record.recovery = None;
    let ours = view.owner.as_ref() == Some(&settings.owner) && view.slot.as_ref() == Some(&record.name);
    become_incarnation(record, view, ours, turn.now);
    let new = view.incarnation.as_ref().map_or("?".to_owned(), ToString::to_string);
    let message =
        format!("another node ({new}) fills the slot: the recovery for {} ends, the node is left alone", recovery.cause.name());
    turn.tell(record, What::Withdrawn { cause: recovery.cause }, message);
}

fn set_call(record: &mut SlotRecord, call: Call) {
    if let Some(recovery) = &mut record.recovery {
        recovery.call = Some(call);
    }
}

/// One legal move, told. An illegal one changes nothing and is told as a violation.
pub fn advance(record: &mut SlotRecord, next: Phase, why: &str, turn: &mut Turn) {
    let Some(recovery) = &mut record.recovery else { return };
    let from = recovery.phase;
    let spent = elapsed(recovery.phase_since, turn.now);
    match recovery.advance(next, turn.now) {
        Ok(()) => {
            if (from, next) == (Phase::Deleting, Phase::Gone) {
                // What the delete had to wait for is no reason for the create to wait.
                recovery.resends = 0;
                recovery.not_before = None;
            }
            if next == Phase::Gone {
                if let Some(gone) = record.incarnation.take() {
                    record.left_behind = Some((gone.created, turn.now));
                    record.end_was_told = false;
                }
                record.ours = false;
                record.ready_since = None;
                record.suspicion = None;
            }
            let message = format!("{from} -> {next} after {}: {why}", crate::model::view::span(spent));
            turn.tell(record, What::Phase { from, seconds: spent.as_secs_f64(), to: next }, message);
        }
        Err(illegal) => {
            let message = format!("{illegal} ({why}); the recovery stays where it is");
            turn.tell(record, What::InvariantViolation { invariant: "legal_move".into() }, message);
        }
    }
}

/// Takes the outcome of a delete or create.
pub fn called(fleet: &mut Fleet, name: &str, outcome: CallOutcome, turn: &mut Turn) {
    let Some(policy) = fleet.settings.slots.get(name).map(|s| s.policy.clone()) else { return };
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(phase) = record.recovery.as_ref().map(|r| r.phase) else { return };
    let (verb, result) = (
        if phase == Phase::Deleting { "delete" } else { "create" },
        match &outcome {
            CallOutcome::Accepted(_) => "accepted",
            CallOutcome::Refused(_) => "refused",
            CallOutcome::Unknown(_) => "unknown",
            CallOutcome::NotSent(_) => "not_sent",
        },
    );
    if phase == Phase::Creating {
        // The minute of the limit begins when the call has certainly left (S18); one that never left counts no more.
        let intended = record.recovery.as_ref().map(|r| r.phase_since);
        if let Some(position) = fleet.ledger.creates.iter().position(|at| Some(*at) == intended) {
            fleet.ledger.creates.remove(position);
        }
        match outcome {
            CallOutcome::NotSent(_) => {}
            // One whose answer was not waited for may still be on its way to the API.
            CallOutcome::Unknown(_) => fleet.ledger.creates.push(after(turn.now, fleet.settings.poll.timeout)),
            CallOutcome::Accepted(_) | CallOutcome::Refused(_) => fleet.ledger.creates.push(turn.now),
        }
        fleet.dirty_ledger = true;
    }
    let message = match &outcome {
        CallOutcome::Accepted(operation) => format!("{verb} accepted: {operation}"),
        CallOutcome::Refused(failure) => format!("{verb} refused: {failure}"),
        CallOutcome::Unknown(failure) => format!("{verb}: {failure}; it may have been carried out, so it is read back"),
        CallOutcome::NotSent(failure) => format!("{verb} was not sent: {failure}"),
    };
    came_of(record, verb, result, &message, turn);
    if let Some(memory) = fleet.memory.get_mut(name) {
        // What is known about the last call's operation says nothing about this one's.
        (memory.looked_at, memory.operation_lost, memory.vanished) = (None, None, 0);
    }
    match (phase, outcome) {
        (_, CallOutcome::Accepted(operation)) => set_call(record, Call::Accepted { operation }),
        (Phase::Creating, CallOutcome::Unknown(_)) if mutant::is(Mutant::BlindRepeat) => {
            resend_later(record, &policy, None, "it is sent again", turn);
        }
        (_, CallOutcome::Unknown(_)) => set_call(record, Call::Unknown),
        (Phase::Deleting, CallOutcome::Refused(failure)) if failure.class == FailureClass::NotFound => {
            advance(record, Phase::Gone, "the API says that the node does not exist", turn);
        }
        (Phase::Deleting, CallOutcome::Refused(failure)) => delete_failed(record, &policy, &failure, turn),
        (Phase::Deleting, CallOutcome::NotSent(_)) => advance(record, Phase::Condemned, "the delete was not sent", turn),
        (_, CallOutcome::Refused(failure)) if failure.class == FailureClass::Conflict => {
            set_call(record, Call::Unknown);
            if let Some(recovery) = &mut record.recovery {
                recovery.refusal = Some((failure.class, failure.message));
            }
        }
        (_, CallOutcome::Refused(failure)) => create_failed(fleet, name, &policy, failure, turn),
        (_, CallOutcome::NotSent(failure)) => {
            resend_later(record, &policy, Some(failure), "the create was not sent", turn);
        }
    }
}

/// Takes a look at an operation. A failed look says nothing about the operation: the node itself is asked.
pub fn operated(fleet: &mut Fleet, name: &str, operation: &str, result: Result<OperationState, Failure>, turn: &mut Turn) {
    let Some(policy) = fleet.settings.slots.get(name).map(|s| s.policy.clone()) else { return };
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = &record.recovery else { return };
    if recovery.call != Some(Call::Accepted { operation: operation.to_owned() }) {
        return;
    }
    let phase = recovery.phase;
    let memory = fleet.memory.entry(name.to_owned()).or_default();
    match (phase, result) {
        (_, Ok(OperationState::Running)) if memory.vanished == 0 => memory.operation_lost = None,
        (Phase::Deleting, Ok(OperationState::Succeeded)) => {
            record.mutated_at = Some(turn.now);
            came_of(record, "delete", "done", "the delete is done", turn);
            advance(record, Phase::Gone, "the delete is done", turn);
            record.end_was_told = true;
            if mutant::is(Mutant::ForgetOwedCreate) {
                record.recovery = None;
            }
        }
        (Phase::Creating, Ok(OperationState::Succeeded)) => {
            came_of(record, "create", "done", "the create is done", turn);
            set_call(record, Call::Observed);
            memory.looked_at = None;
        }
        (Phase::Deleting, Ok(OperationState::Failed(failure))) => {
            came_of(record, "delete", "failed", &format!("the delete failed: {failure}"), turn);
            delete_failed(record, &policy, &failure, turn);
            spend(record);
        }
        (Phase::Creating, Ok(OperationState::Failed(mut failure))) => {
            // An operation may quote what was sent as well as a refusal does.
            if let (Some(spec), Some(slot)) = (&record.spec, fleet.settings.slots.get(name)) {
                let sent = Value::Object(spec.overlaid(&slot.create).body().clone());
                failure.message = Mask::of(Some(&sent)).apply(&failure.message);
            }
            came_of(record, "create", "failed", &format!("the create failed: {failure}; its name is read back"), turn);
            // A failed create says nothing about what is there: it may have left a node behind, which a poll may have shown. Only a
            // read from after its end tells.
            record.mutated_at = Some(turn.now);
            set_call(record, Call::Unknown);
            if let Some(recovery) = &mut record.recovery {
                recovery.failed = Some(failure);
            }
            (memory.looked_at, memory.vanished) = (None, 0);
        }
        (_, Err(failure)) => {
            let first = memory.operation_lost.is_none();
            memory.operation_lost = Some(failure.to_string());
            if first {
                let message = format!("operation {operation} could not be read: {failure}; the node itself is looked at");
                turn.tell(record, What::Note, message);
            }
        }
        _ => {}
    }
    fleet.dirty.insert(name.to_owned());
}

/// Back to owing a create that was lost on the way: sent again after a growing wait.
pub fn resend_later(record: &mut SlotRecord, policy: &Policy, failure: Option<Failure>, why: &str, turn: &mut Turn) {
    advance(record, Phase::Gone, why, turn);
    if let Some(recovery) = &mut record.recovery {
        let failure = failure.map(|f| (f.class, f.message));
        recovery.refusal = failure.or(recovery.refusal.take()).or(Some((FailureClass::Transient, why.to_owned())));
        recovery.resends += 1;
        let wait = if mutant::is(Mutant::NeverResend) { Duration::MAX } else { backoff(policy, recovery.resends) };
        recovery.not_before = Some(after(turn.now, wait));
    }
}

/// What was accepted has come to nothing: sent again, it must not be taken for the same request.
fn spend(record: &mut SlotRecord) {
    if let Some(recovery) = &mut record.recovery {
        recovery.spent += 1;
    }
}

fn delete_failed(record: &mut SlotRecord, policy: &Policy, failure: &Failure, turn: &mut Turn) {
    advance(record, Phase::Condemned, &format!("the delete failed: {failure}"), turn);
    if let Some(recovery) = &mut record.recovery {
        // A rate limit or a server error says nothing about the delete itself: only real refusals are counted.
        let passing = matches!(failure.class, FailureClass::Rate | FailureClass::Quota | FailureClass::Transient);
        recovery.delete_failures += u32::from(!passing);
        recovery.not_before = Some(after(turn.now, backoff(policy, recovery.delete_failures.max(1))));
    }
}

/// A GET answers 404 after the create's operation ended with an error: the failure, which counts now.
pub fn failed_and_gone(record: &mut SlotRecord, memory: &Memory) -> Option<Failure> {
    let calling = memory.pending.contains(&crate::model::fleet::Pending::Call);
    let recovery = record.recovery.as_mut().filter(|recovery| recovery.phase == Phase::Creating && !calling)?;
    recovery.failed.take()
}

/// The create is over without a node: the next zone, or the next try.
pub fn create_failed(fleet: &mut Fleet, name: &str, policy: &Policy, failure: Failure, turn: &mut Turn) {
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let zones = fleet.settings.slots.get(name).map(|s| s.zones.clone()).unwrap_or_default();
    advance(record, Phase::Gone, &format!("the create failed ({})", failure.class.name()), turn);
    let Some(recovery) = &mut record.recovery else { return };
    let cause = recovery.cause;
    recovery.create_failures += 1;
    recovery.refusal = Some((failure.class, failure.message.clone()));
    if failure.class == FailureClass::StockOut || (failure.class == FailureClass::Quota && mutant::is(Mutant::QuotaIsShortage)) {
        let accelerator = record.seen.as_ref().map_or("", |s| s.accelerator.as_str());
        let key = shortage_key(&record.zone, accelerator);
        let shortage = fleet.ledger.short.entry(key).or_insert(Shortage { refused_at: turn.now, trial_at: None });
        shortage.refused_at = turn.now;
        fleet.dirty_ledger = true;
    }
    // The next zone is tried at once; a wait comes when all of them were asked.
    let position = zones.iter().position(|z| *z == record.zone).unwrap_or(0);
    let next = (position + 1) % zones.len().max(1);
    let wait = backoff(policy, recovery.create_failures.div_ceil(u32::try_from(zones.len()).unwrap_or(1).max(1)));
    let mut until = Some(after(turn.now, wait));
    // Of other failures a node may be left behind here.
    if failure.class == FailureClass::StockOut && zones.len() > 1 {
        if next != 0 {
            until = None;
        }
        record.zone.clone_from(&zones[next]);
    }
    recovery.not_before = until;
    let message = format!(
        "create failed ({}): {}; the specification is kept, {}",
        failure.class.name(),
        failure.message,
        until.map_or(format!("{} is tried next", record.zone), |at| format!("the next try is at {at:.0}")),
    );
    turn.tell(record, What::RecoveryFailure { cause, reason: failure.class.name().into() }, message);
    fleet.dirty.insert(name.to_owned());
}

/// The name of a zone and accelerator type in the ledger of stock-outs.
pub fn shortage_key(zone: &str, accelerator: &str) -> String {
    format!("{zone} {accelerator}")
}

/// Exponential, from `backoff.first` to `backoff.max`.
fn backoff(policy: &Policy, failures: u32) -> Duration {
    let failures = failures + u32::from(mutant::is(Mutant::TossesACoin) && mutant::coin());
    let factor = 1u32.checked_shl(failures.saturating_sub(1).min(20)).unwrap_or(u32::MAX);
    policy.backoff_first.saturating_mul(factor).min(policy.backoff_max)
}

/// A mark of progress: while there is progress, bad health alone condemns nothing.
pub fn progress(record: &mut SlotRecord, now: Timestamp) {
    record.job.progress_at = Some(now);
    // What is lost is lost: a checkpoint that appears late does not bring the node back.
    if record.verdict.condition.kind() != Some(Kind::Lost) {
        record.suspicion = None;
    }
    for worker in record.job.workers.values_mut() {
        worker.quiet_for = Duration::ZERO;
    }
}

/// Moves READY → booted → launched → over, as far as what is known allows; withdraws what healed.
pub fn settle(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    let Some(slot) = fleet.settings.slots.get(name) else { return };
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = &record.recovery else { return };
    let there = match recovery.phase {
        Phase::Condemned => recovery.call.is_none(),
        Phase::Creating => record.incarnation.is_some(),
        phase => matches!(phase, Phase::Ready | Phase::Booted | Phase::Launched),
    };
    if there && record.verdict.condition == Condition::Finished {
        return withdraw(fleet, name, "its job is finished: nothing is wanted any more", turn);
    }
    if recovery.phase == Phase::Condemned {
        // A delete whose answer was lost may still come about, and a read may lag behind it: the slot is not let go too early.
        let recent = record.mutated_at.is_some_and(|at| elapsed(at, turn.now) < slot.policy.max_age);
        if !there || (recent && recovery.resends + recovery.spent > 0) {
            return;
        }
        // What held between the decision and the delete does not hold any more.
        let condition = record.verdict.condition;
        let progressed = record.job.progress_at.is_some_and(|at| at > recovery.phase_since);
        if condition == Condition::Healthy {
            withdraw(fleet, name, "healthy again before it was deleted: it is left alone", turn);
        } else if progressed && condition.kind() == Some(Kind::Judged) {
            withdraw(fleet, name, "its job made progress before it was deleted: it is left alone", turn);
        }
        return;
    }
    if !matches!(recovery.phase, Phase::Ready | Phase::Booted | Phase::Launched) {
        return;
    }
    let healthy = record.verdict.condition == Condition::Healthy;
    let supervised = record.seen.as_ref().is_some_and(|s| s.supervised);
    let Some(job) = slot.job.as_ref().filter(|_| slot.supervisor.is_some() && supervised) else {
        // Without a job no beacon is expected: it is over when the node is not unhealthy.
        if healthy {
            over(fleet, name, "the node is READY and not unhealthy", turn);
        }
        return;
    };
    let workers = record.seen.as_ref().map_or(1, |s| s.workers.max(1));
    let booted = (0..workers).all(|w| record.job.workers.get(&w).is_some_and(|s| s.booted));
    let beats = |w: &WorkerState| w.heartbeat.is_some() && !w.in_setup;
    let launched = record.job.step.is_some() || (booted && record.job.workers.values().any(beats));
    let started_from = recovery.order.as_ref().and_then(|o| o.step);
    let stepped = record.job.step.is_some() && record.job.step > started_from;
    // Where no beacon came, a checkpoint is this run's only when it was seen after the time to boot.
    let since_ready = record.ready_since.zip(record.job.checkpoint_at).map(|(ready, at)| elapsed(ready, at));
    let own = booted || since_ready.is_some_and(|time| time >= slot.policy.grace.boot);
    // A checkpoint that was passed over before, and is taken back by a person, is no work of this run.
    let before = started_from.max(record.job.runs.listed_before);
    let saved = own && record.job.checkpoint.as_ref().map(|c| c.step) > before;
    let phase = recovery.phase;
    if phase == Phase::Ready && booted {
        advance(record, Phase::Booted, "every worker sent its boot beacon", turn);
        fleet.dirty.insert(name.to_owned());
    }
    let Some(record) = fleet.slots.get_mut(name) else { return };
    if record.recovery.as_ref().is_some_and(|r| r.phase != Phase::Launched) && (launched || stepped || saved) {
        advance(record, Phase::Launched, "the job runs", turn);
        fleet.dirty.insert(name.to_owned());
    }
    if stepped || saved {
        over(fleet, name, "the job makes progress again", turn);
        return;
    }
    let Some(recovery) = fleet.slots.get(name).and_then(|r| r.recovery.as_ref()) else { return };
    // Where no step can be seen (yet), or beacons can't be read, a node that stays healthy has to do.
    let seen = recovery.phase == Phase::Launched && job.checkpoint.is_none();
    let patience = if seen { slot.policy.heal } else { slot.policy.attempts.settled };
    if healthy && elapsed(recovery.phase_since, turn.now) >= patience {
        over(fleet, name, "the node stays healthy; no step was reported", turn);
    }
}

/// What was created `since` then came up: what was refused there, or failed, before that counts no more (S14).
fn relieve(ledger: &mut Ledger, key: &str, since: Option<Timestamp>) {
    let outlives = |at: Timestamp| !mutant::is(Mutant::AnyRecoveryRelieves) && since.is_none_or(|since| at >= since);
    ledger.short.retain(|at, shortage| at != key || outlives(shortage.refused_at));
    ledger.suspended.retain(|at, shortage| at != key || outlives(shortage.refused_at));
    if let Some(unfit) = ledger.unfit.get_mut(key) {
        unfit.retain(|unfit| outlives(unfit.at));
    }
    ledger.unfit.retain(|_, unfit| !unfit.is_empty());
}

/// The job of a slot has ended well. What was sent, and what is owed, goes on: that ends no delete that is on its way.
pub fn finished(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    match fleet.slots.get(name).and_then(|record| record.recovery.as_ref()).map(|recovery| recovery.phase) {
        Some(Phase::Condemned) => withdraw(fleet, name, "its job is finished: nothing is wanted any more", turn),
        Some(Phase::Ready | Phase::Booted | Phase::Launched) => over(fleet, name, "its job is finished", turn),
        _ => {}
    }
}

/// The recovery of a slot ends without a replacement that was seen at work.
pub fn withdraw(fleet: &mut Fleet, name: &str, why: &str, turn: &mut Turn) {
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = record.recovery.take() else { return };
    turn.tell(record, What::Withdrawn { cause: recovery.cause }, why);
    fleet.dirty.insert(name.to_owned());
}

fn over(fleet: &mut Fleet, name: &str, why: &str, turn: &mut Turn) {
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = record.recovery.take() else { return };
    let seconds = elapsed(recovery.condemned_at, turn.now).as_secs_f64();
    let down = elapsed(recovery.symptom_at, turn.now);
    let resumed = recovery.order.as_ref().and_then(|o| o.step);
    let steps_lost = recovery.step_before.map(|before| before.saturating_sub(resumed.unwrap_or(0)));
    let repeated_seconds = recovery.saved_at.map(|at| elapsed(at, recovery.symptom_at).as_secs_f64());
    let from = resumed.map_or(String::new(), |step| format!(", resumed from step {step}"));
    let message = format!(
        "recovered from {} {} after the first symptom: {why}{from}",
        recovery.cause.name(),
        crate::model::view::span(down)
    );
    record.suspicion = None;
    let key = shortage_key(&record.zone, record.seen.as_ref().map_or("", |s| s.accelerator.as_str()));
    relieve(&mut fleet.ledger, &key, recovery.creating_since);
    let what = What::Recovered { cause: recovery.cause, seconds, down_seconds: down.as_secs_f64(), steps_lost, repeated_seconds };
    turn.tell(record, what, message);
    fleet.dirty.insert(name.to_owned());
    fleet.dirty_ledger = true;
}
