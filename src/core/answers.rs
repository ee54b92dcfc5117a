//! What came of a call: the answer to a delete or create, and how its operation ended.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::action::CallOutcome;
use crate::model::event::{CallResult, Verb, What};
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Ledger, Memory, Pending};
use crate::model::operation::OperationState;
use crate::model::phase::Phase;
use crate::model::settings::{Policy, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::step::Call;
use crate::model::time::{after, elapsed};
use crate::model::traits::BudgetOf;
use crate::resource::mask::Mask;

use super::gates::DELETE_FAILURES;
use super::identity::Source;
use super::moves::{advance, backoff, came_of, resend_later, set_call, spend};
use super::pool::{self, spread};
use super::turn::Turn;

/// The name of a create that was refused is read for so long before its zone is left.
const UNREAD_FOR: Duration = Duration::from_secs(120);

/// A quota of managed training is asked again after this.
const QUOTA_AGAIN: Duration = Duration::from_secs(3600);

/// Applies the outcome of a delete or create.
pub fn called(fleet: &mut Fleet, slot: &str, outcome: CallOutcome, turn: &mut Turn) {
    if let Some(record) = fleet.slots.get_mut(slot) {
        let creating = record.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Creating);
        // Whatever came back: reads that began before this prove nothing about the slot (S2). Only
        // a create that never left changed nothing; a delete that never left is verified again.
        if !(creating && matches!(outcome, CallOutcome::NotSent(_))) {
            record.mutated_at = Some(turn.now);
        }
        fleet.dirty.insert(slot.to_owned());
    }
    settle_call(fleet, slot, outcome, turn);
}

fn settle_call(fleet: &mut Fleet, name: &str, outcome: CallOutcome, turn: &mut Turn) {
    let Some(slot) = fleet.settings.slots.get(name) else {
        return left_meanwhile(fleet, name, outcome);
    };
    let (policy, several) = (slot.policy.clone(), slot.zones.len() > 1);
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(phase) = record.recovery.as_ref().map(|r| r.phase()) else { return };
    // The call of a request ahead that was dropped meanwhile.
    if phase.stands() {
        return;
    }
    let verb = if phase == Phase::Deleting { Verb::Delete } else { Verb::Create };
    if phase == Phase::Creating {
        let intended = record.recovery.as_ref().map(|r| r.phase_since);
        count_create(fleet, intended, &outcome, turn);
    }
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let (result, message) = told(verb, &outcome);
    came_of(record, verb, result, &message, turn);
    remember(record, verb, &outcome);
    if matches!(outcome, CallOutcome::Refused(_) | CallOutcome::NotSent(_)) {
        record.submitted_at = None;
    }
    if let Some(memory) = fleet.memory.get_mut(name) {
        // The state of the last call's operation says nothing about this one's.
        (memory.looked_at, memory.operation_lost, memory.vanished) = (None, None, 0);
    }
    match (phase, outcome) {
        (_, CallOutcome::Accepted(operation)) => set_call(record, Call::Accepted { operation }),
        (_, CallOutcome::Unknown(_)) => set_call(record, Call::Unknown),
        (Phase::Deleting, CallOutcome::Refused(failure))
            if failure.class == FailureClass::NotFound && !record.traits().ends_in_place =>
        {
            advance(record, Phase::Gone, "the API says that the node does not exist", turn);
        }
        (Phase::Deleting, CallOutcome::Refused(failure)) => {
            delete_failed(record, &policy, &failure, turn)
        }
        (Phase::Deleting, CallOutcome::NotSent(_)) => {
            advance(record, Phase::Condemned, "the delete was not sent", turn)
        }
        (_, CallOutcome::Refused(failure)) if failure.class == FailureClass::Conflict => {
            set_call(record, Call::Unknown);
            if let Some(recovery) = &mut record.recovery {
                recovery.refusal = Some((failure.class, failure.message));
                recovery.refused_in.clone_from(&record.zone);
            }
        }
        (_, CallOutcome::Refused(failure)) if several => {
            // The name is read in a zone before it is left.
            set_call(record, Call::Unknown);
            if let Some(recovery) = &mut record.recovery {
                recovery.failed = Some(failure);
                recovery.not_made = true;
            }
        }
        (_, CallOutcome::Refused(failure)) => create_failed(fleet, name, failure, turn),
        (_, CallOutcome::NotSent(failure)) => {
            resend_later(record, &policy, Some(failure), "the create was not sent", turn);
        }
    }
}

/// The outcome of a call as the log has it.
fn told(verb: Verb, outcome: &CallOutcome) -> (CallResult, String) {
    match outcome {
        CallOutcome::Accepted(operation) => {
            (CallResult::Accepted, format!("{verb} accepted: {operation}"))
        }
        CallOutcome::Refused(failure) => {
            (CallResult::Refused, format!("{verb} refused: {failure}"))
        }
        CallOutcome::Unknown(failure) => {
            let text =
                format!("{verb}: {failure}; it may have been carried out, so it is read back");
            (CallResult::Unknown, text)
        }
        CallOutcome::NotSent(failure) => {
            (CallResult::NotSent, format!("{verb} was not sent: {failure}"))
        }
    }
}

/// A slot left the config while its delete was on its way, and may come back.
fn left_meanwhile(fleet: &mut Fleet, name: &str, outcome: CallOutcome) {
    let left = fleet.left.get_mut(name).filter(|record| record.unanswered_delete.is_some());
    let Some(record) = left else { return };
    match outcome {
        CallOutcome::Accepted(operation) => record.own_delete = Some(operation),
        CallOutcome::Refused(_) | CallOutcome::NotSent(_) => record.deleting = None,
        CallOutcome::Unknown(_) => return,
    }
    fleet.dirty.insert(name.to_owned());
}

/// S18: the minute of the limit begins when the call has certainly left; one that never left counts no
/// more.
fn count_create(
    fleet: &mut Fleet,
    intended: Option<Timestamp>,
    outcome: &CallOutcome,
    turn: &Turn,
) {
    if let Some(position) = fleet.ledger.creates.iter().position(|at| Some(*at) == intended) {
        fleet.ledger.creates.remove(position);
    }
    match outcome {
        CallOutcome::NotSent(_) => {}
        // One whose answer was not waited for may still be on its way to the API.
        CallOutcome::Unknown(_) => {
            fleet.ledger.creates.push(after(turn.now, fleet.settings.poll.timeout))
        }
        CallOutcome::Accepted(_) | CallOutcome::Refused(_) => fleet.ledger.creates.push(turn.now),
    }
    fleet.dirty_ledger = true;
}

/// Counts calls that were not sent, and keeps the name of our own delete.
fn remember(record: &mut SlotRecord, verb: Verb, outcome: &CallOutcome) {
    if let Some(recovery) = &mut record.recovery {
        match outcome {
            CallOutcome::NotSent(failure) => {
                recovery.not_sent += 1;
                recovery.unsent = Some(failure.to_string());
            }
            _ => (recovery.not_sent, recovery.unsent) = (0, None),
        }
    }
    if let (Verb::Delete, CallOutcome::Accepted(operation)) = (verb, outcome) {
        record.own_delete = Some(operation.clone());
    }
}

/// Takes a look at an operation. A failed look says nothing about the operation: the node itself is
/// asked.
pub fn operated(
    fleet: &mut Fleet,
    name: &str,
    operation: &str,
    result: Result<OperationState, Failure>,
    turn: &mut Turn,
) {
    let Some(slot) = fleet.settings.slots.get(name) else { return };
    let (policy, kind) = (slot.policy.clone(), slot.filling.traits());
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = &record.recovery else { return };
    if recovery.call() != Some(&Call::Accepted { operation: operation.to_owned() }) {
        return;
    }
    let phase = recovery.phase();
    let memory = fleet.memory.entry(name.to_owned()).or_default();
    match (phase, result) {
        (_, Ok(OperationState::Running)) if memory.vanished == 0 => memory.operation_lost = None,
        // A request goes after its nodes, and a cancel takes a while: a read has to say that it is over, too.
        (Phase::Deleting, Ok(OperationState::Succeeded)) if !kind.ends_with_operation => {
            read_back(record, memory, turn.now);
            // Should it be there, the next delete is another one than this.
            spend(record);
        }
        (Phase::Deleting, Ok(OperationState::Succeeded)) => {
            record.mutated_at = Some(turn.now);
            came_of(record, Verb::Delete, CallResult::Done, "the delete is done", turn);
            advance(record, Phase::Gone, "the delete is done", turn);
            record.end_was_told = true;
        }
        (Phase::Creating, Ok(OperationState::Succeeded)) => {
            came_of(record, Verb::Create, CallResult::Done, "the create is done", turn);
            set_call(record, Call::Observed);
            memory.looked_at = None;
        }
        (Phase::Deleting, Ok(OperationState::Failed(failure))) => {
            let text = format!("the delete failed: {failure}");
            came_of(record, Verb::Delete, CallResult::Failed, &text, turn);
            delete_failed(record, &policy, &failure, turn);
            spend(record);
        }
        (Phase::Creating, Ok(OperationState::Failed(mut failure))) => {
            // An operation may quote what was sent as well as a refusal does.
            if let (Some(spec), Some(slot)) = (&record.spec, fleet.settings.slots.get(name)) {
                let sent = Value::Object(spec.overlaid(&slot.create).body().clone());
                failure.message = Mask::of(Some(&sent)).apply(&failure.message);
            }
            let class = failure.class;
            let text = format!("the create's operation failed ({class}); its name is read back");
            came_of(record, Verb::Create, CallResult::Failed, &text, turn);
            if let Some(recovery) = &mut record.recovery {
                recovery.failed = Some(failure);
            }
            // A failed create may have left a node behind, which a poll may have shown.
            read_back(record, memory, turn.now);
        }
        (_, Err(failure)) => {
            let first = memory.operation_lost.is_none();
            memory.operation_lost = Some(failure.to_string());
            if first {
                let message = format!(
                    "operation {operation} could not be read: {failure}; the node itself is looked at"
                );
                turn.tell(record, What::Note, message);
            }
        }
        _ => {}
    }
    fleet.dirty.insert(name.to_owned());
}

/// The end of an operation does not say what is there: only a read from after it does.
fn read_back(record: &mut SlotRecord, memory: &mut Memory, now: Timestamp) {
    record.mutated_at = Some(now);
    set_call(record, Call::Unknown);
    (memory.looked_at, memory.vanished) = (None, 0);
}

fn delete_failed(record: &mut SlotRecord, policy: &Policy, failure: &Failure, turn: &mut Turn) {
    advance(record, Phase::Condemned, &format!("the delete failed: {failure}"), turn);
    if let Some(recovery) = &mut record.recovery {
        // A rate limit or a server error says nothing about the delete itself: only real refusals
        // are counted.
        let passing = matches!(
            failure.class,
            FailureClass::Rate | FailureClass::Quota | FailureClass::Transient
        );
        recovery.delete_failures += u32::from(!passing);
        recovery.undeleted = Some(failure.to_string());
        let wait = if recovery.delete_failures < DELETE_FAILURES {
            backoff(policy, &record.name, recovery.delete_failures.max(1))
        } else {
            policy.backoff_max
        };
        recovery.not_before = Some(after(turn.now, wait));
    }
}

/// A GET answers 404 after the create's operation ended with an error: the failure, which counts
/// now.
pub fn failed_and_gone(record: &mut SlotRecord, memory: &Memory) -> Option<Failure> {
    let calling = memory.pending.contains(&Pending::Call);
    let recovery = record
        .recovery
        .as_mut()
        .filter(|recovery| recovery.phase() == Phase::Creating && !calling)?;
    recovery.failed.take()
}

/// A create was refused in a zone that can't be read either: after a while it is left for the next one.
pub fn refused_unread(record: &mut SlotRecord, source: Source, now: Timestamp) -> Option<Failure> {
    let recovery = record.recovery.as_mut().filter(|recovery| {
        let long = elapsed(recovery.phase_since, now) >= UNREAD_FOR;
        source == Source::Get && recovery.phase() == Phase::Creating && recovery.not_made && long
    })?;
    recovery.failed.take()
}

/// The create is over without a node.
pub fn create_failed(fleet: &mut Fleet, name: &str, failure: Failure, turn: &mut Turn) {
    let (Some(record), Some(slot)) = (fleet.slots.get_mut(name), fleet.settings.slots.get(name))
    else {
        return;
    };
    advance(record, Phase::Gone, &format!("the create failed ({})", failure.class.name()), turn);
    fleet.dirty_ledger |= refused(record, slot, &mut fleet.ledger, failure, turn);
    fleet.dirty.insert(name.to_owned());
}

/// A create was refused: the next zone, or the next try. Returns whether the ledger changed.
///
/// Every refusal but a rate limit and a transient error goes on to the next zone of the list; when
/// all of them were asked, a wait comes. A stock-out is waited out by its pool.
pub fn refused(
    record: &mut SlotRecord,
    slot: &SlotSettings,
    ledger: &mut Ledger,
    failure: Failure,
    turn: &mut Turn,
) -> bool {
    let policy = &slot.policy;
    let pool = pool::name(record, &slot.create, &record.zone);
    let in_zone = |zone: &String| pool::name(record, &slot.create, zone);
    let pools: Vec<String> = slot.zones.iter().map(in_zone).collect();
    let Some(recovery) = &mut record.recovery else { return false };
    let cause = recovery.cause;
    recovery.create_failures += 1;
    recovery.refusal = Some((failure.class, failure.message.clone()));
    recovery.refused_in.clone_from(&record.zone);
    let short = failure.class == FailureClass::StockOut;
    let mut changed = short;
    // Stock-outs have the pool's own pace: hours of them say nothing about how often to try another refusal.
    recovery.failures += u32::from(!short);
    if short {
        let wait = short_for(slot, &record.name, &pool, recovery.create_failures);
        pool::refused(ledger, &pool, wait, turn.now);
    }
    let zones = slot.zones.len();
    let position = slot.zones.iter().position(|zone| *zone == record.zone).unwrap_or(0);
    let next = (position + 1) % zones.max(1);
    let rounds = recovery.failures.div_ceil(u32::try_from(zones).unwrap_or(1).max(1));
    let mut until = Some(after(turn.now, backoff(policy, &record.name, rounds)));
    if failure.class == FailureClass::Quota && slot.filling.traits().is_held_by_refusal {
        until = Some(after(turn.now, QUOTA_AGAIN));
    } else if failure.class.tries_next_zone() && zones > 1 {
        record.zone.clone_from(&slot.zones[next]);
        until = until.filter(|_| next == 0);
        // One that was short long ago is no zone to try again at once.
        let wait = spread(policy.stock_out.0, policy.stock_out.1, &pool, recovery.create_failures);
        let found = ledger.pools.get_mut(&pool).and_then(|found| found.short.as_mut());
        if let Some(known) = found.filter(|_| !short) {
            known.probe_at = known.probe_at.max(after(turn.now, wait));
            changed = true;
        }
        // A zone of the list that is short is probed in its own time, however long the others wait.
        // One that is due already was asked a moment ago, or is another slot's to probe.
        let ahead = |pool: &String| pool::probed_at(ledger, pool).filter(|at| *at > turn.now);
        let due = pools.iter().filter_map(ahead).min();
        until = until.map(|until| due.map_or(until, |at| at.min(until)));
    }
    // The pool says when it is probed again.
    recovery.not_before = until.filter(|_| !short);
    let then = match recovery.not_before {
        Some(at) => format!("the next try is at {at:.0}"),
        None if zones > 1 => format!("{} is tried next", record.zone),
        None => "it waits for capacity".to_owned(),
    };
    // A job that was submitted long ago has ended, and is submitted again like one that was refused.
    let what = if record.has_ended() { "its job ended" } else { "create failed" };
    let message = format!(
        "{what} ({}): {}; the specification is kept, {then}",
        failure.class.name(),
        failure.message,
    );
    turn.tell(record, What::RecoveryFailure { cause, reason: failure.class }, message);
    changed
}

/// How long a pool rests that lacks capacity. Google's service tries a job three times before it gives that up: once all
/// regions were asked, our tries are few.
fn short_for(slot: &SlotSettings, name: &str, pool: &str, failures: u32) -> Duration {
    let (first, most) = slot.policy.stock_out;
    let regions = u32::try_from(slot.zones.len()).unwrap_or(1).max(1);
    match slot.filling.traits().budget {
        BudgetOf::Tpus => spread(first, most, pool, failures),
        BudgetOf::Jobs => backoff(&slot.policy, name, failures.div_ceil(regions))
            .max(spread(first, most, pool, failures)),
    }
}
