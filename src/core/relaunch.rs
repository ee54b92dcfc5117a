//! A newer run order for the node that is there: the job starts again on the same machines, from the
//! newest complete checkpoint of that moment.
//!
//! Asked for by an operator (`relaunch`), by a run that ended after its order had become stale, or by
//! one worker of several whose run failed: all start together. It takes supervisors that follow newer orders on every worker (S22), a complete listing of the
//! checkpoints within the last minute (S15), and an intent in the journal (S11). The metadata is
//! patched; then each worker reports the new generation. An order that is refused, or that no worker
//! follows within 5 min, says nothing about the machine: it is held as `cannot_relaunch`, and judges
//! nothing.
//!
//! Example: generation 3 of `a` began at step 1,200, ran for an hour, saved step 4,800 and crashed at
//! 11:02. Worker 0 reports `stale_order` at 11:02. The listing of 11:02 shows 4,800: generation 4 is
//! ordered from there, and at 11:03 "every worker follows generation 4".

// unverified: a key that nodes.patch changes in the metadata reaches a guest that runs.
// settled by: tpu-watchdog drill SLOT --incarnation ID, which measures when each host has read a patched key

use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::{Action, CallOutcome, Look};
use crate::model::condition::Condition;
use crate::model::event::{CallResult, What};
use crate::model::exit::Stuck;
use crate::model::failure::FailureClass;
use crate::model::fleet::{Fleet, Memory, Pending};
use crate::model::hold::HoldReason;
use crate::model::ids::RunOrder;
use crate::model::node::NodeView;
use crate::model::phase::Phase;
use crate::model::relaunch::{Asked, Patch, Relaunch};
use crate::model::settings::PollSettings;
use crate::model::slot::SlotRecord;
use crate::model::step::{Call, Remedy};
use crate::model::time::{after, elapsed};
use crate::model::view::{ActionName, Decision};

use super::ctx::SlotCtx;
use super::gates::{self, Before, Gate};
use super::turn::Turn;
use super::{check, codes, confirm, ending, life, location, machines, runs};

/// Workers that do not report the new generation so long after it was written can't be told.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(5 * 60);
/// A refused order is tried again after this, one that was not sent after half a minute.
const REFUSED_WAIT: Duration = Duration::from_secs(5 * 60);
const UNSENT_WAIT: Duration = Duration::from_secs(30);
/// An operator's wish is dropped after this, unless polls are farther apart.
const WANTED_FOR: Duration = Duration::from_secs(3600);
/// A node that still shows the former order so long after the new one was sent never got it. Reads may
/// lag behind.
const READ_BACK_AFTER: Duration = Duration::from_secs(3 * 60);

/// An order is being sent: nothing else is done to its slot meanwhile (S9).
pub fn is_sent(ctx: &SlotCtx) -> Option<Decision> {
    let relaunch = ctx.record.job.relaunch.as_ref()?;
    let text = || format!("generation {} is being ordered", relaunch.order.generation);
    let calls = ctx.memory.pending.contains(&Pending::Call);
    calls.then(|| Decision::act(ActionName::Relaunch, text()))
}

/// Decides about a slot whose job is to start again, or whose order is on its way.
pub fn judge(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Option<Decision> {
    forget_old_wish(ctx, turn);
    // A sick node is judged; its replacement starts the job anyway.
    let recovery = ctx.record.recovery.as_ref();
    let settled = recovery.is_none_or(|recovery| recovery.phase() == Phase::Launched);
    let well = matches!(ctx.condition(), Condition::Healthy | Condition::Degraded)
        || ctx.condition().job_stands();
    ctx.slot.filling.traits().steps(Remedy::Relaunch)?;
    // An operator's wish waits for no grace.
    let asked = is_curable(ctx) && recovery.is_none() && ctx.record.job.relaunch_by.is_some();
    if !settled || !(well || asked) {
        return None;
    }
    if let Some(relaunch) = ctx.record.job.relaunch.clone()
        && let Some(decision) = follow(ctx, &relaunch)
    {
        return Some(decision);
    }
    // An order that was not written is over only now.
    forget_old_wish(ctx, turn);
    let why = wanted(ctx)?;
    if let Some((gate, hold)) = gates::first_hold(gates, ctx, Before::Relaunch) {
        if gate == gates::ORDER_CHECKPOINTS {
            list(ctx, turn);
        }
        return Some(hold);
    }
    Some(order(ctx, why, turn))
}

/// Whether a sick TPU's job is relaunched before the TPU is replaced: its hosts beat, and what hangs may
/// be a process. Once an illness, and where an order can reach the hosts.
pub fn comes_first(ctx: &SlotCtx) -> bool {
    let record = &*ctx.record;
    let once = record.suspicion.as_ref().is_some_and(|suspicion| !suspicion.relaunched);
    let free = record.recovery.is_none() && record.job.relaunch.is_none();
    let ours = ctx.slot.supervisor.is_some() && gates::could_relaunch(ctx);
    is_curable(ctx) && once && free && ours && life::beats(record, &ctx.settings.poll, ctx.now)
}

/// A process that hangs may be the cause.
fn is_curable(ctx: &SlotCtx) -> bool {
    matches!(ctx.condition(), Condition::Unresponsive | Condition::RuntimeUnhealthy)
}

/// A TPU that could be replaced gets a newer order in place of that.
pub fn instead(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    if let Some((gate, hold)) = gates::first_hold(gates, ctx, Before::Relaunch) {
        if gate == gates::ORDER_CHECKPOINTS {
            list(ctx, turn);
        }
        return hold;
    }
    let why = format!(
        "{}: {}; its hosts beat, so its job is relaunched before the TPU is replaced",
        ctx.condition(),
        ctx.record.verdict.evidence
    );
    order(ctx, why, turn)
}

/// Why a newer order is wanted.
pub fn wanted(ctx: &SlotCtx) -> Option<String> {
    let record = &*ctx.record;
    if let Some(asked) = &record.job.relaunch_by {
        return Some(format!("{} asked for it (relaunch)", asked.who));
    }
    // Its hosts rest: nothing else would start what an operator wants again.
    let generation = record.job.generation;
    let finished = record.exit_of(0) == Some((generation, 0));
    if record.job.wanted_again == Some(generation) && finished && record.takes_orders() {
        return Some("its job had finished, and is wanted again (retry)".to_owned());
    }
    if let Some(why) = machines::want_an_order(record).or_else(|| reached_some(record)) {
        return Some(why);
    }
    let ended = match record.job.stuck {
        Some(Stuck::StaleOrder | Stuck::Waits) => true,
        Some(Stuck::EndedEarly) => ending::is_started_once_more(record),
        // Its host can't know that its machine was sick.
        Some(Stuck::GaveUp) => codes::is_free(record),
        // Hosts that have started nothing of an order that was written after all of them had reported are
        // kept apart by something that no other order would mend. Those that have wait for some that hang.
        Some(Stuck::RollCall) => {
            let seen = record.seen.as_ref().and_then(|seen| seen.run.as_ref());
            let tried = record.job.workers.values().any(|worker| worker.attempt > 0);
            record.roll_is_whole() && (tried || seen.is_some_and(|run| !run.roll_called))
        }
        _ => false,
    };
    let stale = ended && ctx.condition() == Condition::JobFailed && ctx.slot.supervisor.is_some();
    // An older supervisor is held as it always was.
    (stale && record.takes_orders()).then(|| record.verdict.evidence.clone())
}

/// A crash between the patches of an order leaves slices under different ones: their hosts wait for each other, and none is
/// heard before all have one order.
fn reached_some(record: &SlotRecord) -> Option<String> {
    let seen = record.seen.as_ref().filter(|_| record.takes_orders())?;
    let (newest, run) = (seen.out_of_step?, seen.run.as_ref()?);
    (newest > run.generation)
        .then(|| format!("the order of generation {newest} reached some of its slices alone"))
}

/// A wish that could not be met for long is another day's: what runs by then is not ended for it.
fn forget_old_wish(ctx: &mut SlotCtx, turn: &mut Turn) {
    let old = |asked: &mut Asked| elapsed(asked.at, turn.now) >= wanted_for(&ctx.settings.poll);
    let free = ctx.record.job.relaunch.is_none();
    if let Some(asked) = ctx.record.job.relaunch_by.take_if(|asked| free && old(asked)) {
        let text = format!(
            "relaunch by {}: it could not be ordered in time and is dropped; ask again",
            asked.who
        );
        turn.tell(ctx.record, What::Note, text);
    }
}

/// An order that was decided: what it waits for. None when it is to be decided once more.
fn follow(ctx: &mut SlotCtx, relaunch: &Relaunch) -> Option<Decision> {
    let generation = relaunch.order.generation;
    if let Some(at) = relaunch.written_at {
        let until = after(at, FOLLOWED_WITHIN);
        if ctx.now < until {
            let text = format!("generation {generation} was ordered at {at:.0}: its workers start");
            return Some(Decision::wait(text, Some(until)));
        }
        let text = format!(
            "generation {generation} was ordered at {at:.0}, and not every worker has reported it: what runs there is not known. \
             `relaunch {0}` orders again, a reboot of its hosts reads the order, `recreate {0}` replaces the TPU",
            ctx.record.name
        );
        return Some(Decision::hold(HoldReason::CannotRelaunch, text, None));
    }
    if relaunch.call.is_some() {
        let text = format!("what became of the order of generation {generation} is read back");
        return Some(Decision::act(ActionName::Relaunch, text));
    }
    let wait = if relaunch.refused.is_some() { REFUSED_WAIT } else { UNSENT_WAIT };
    let until = after(relaunch.at, wait);
    if ctx.now >= until {
        ctx.record.job.relaunch = None;
        return None;
    }
    let failure = relaunch.failure.as_deref().unwrap_or("see the log");
    if relaunch.refused.is_none() {
        let text = format!("the order of generation {generation} did not arrive: {failure}");
        return Some(Decision::wait(text, Some(until)));
    }
    let right = match relaunch.refused {
        Some(FailureClass::Permission) => " It takes the right tpu.nodes.update (deploy/iam).",
        _ => "",
    };
    let text = format!(
        "{}, but the order of generation {generation} was refused: {failure}.{right} It is tried again; `recreate {}` starts the job on a new \
         TPU",
        relaunch.why, ctx.record.name
    );
    Some(Decision::hold(HoldReason::CannotRelaunch, text, Some(until)))
}

/// Asks for the listing that the order rests on.
fn list(ctx: &mut SlotCtx, turn: &mut Turn) {
    let Some(location) = location::listed(ctx.slot) else { return };
    let again = ctx.settings.poll.operations;
    if ctx.memory.asked_checkpoints.is_none_or(|at| after(at, again) <= turn.now)
        && ctx.memory.pending.insert(Pending::Checkpoints)
    {
        ctx.memory.asked_checkpoints = Some(turn.now);
        let (slot, set_aside) = (ctx.record.name.clone(), runs::set_aside(ctx.record));
        turn.look(Look::Checkpoints { slot, location: location.clone(), set_aside });
    }
}

/// Every gate is open: the order is intended, and leaves when that is durable.
fn order(ctx: &mut SlotCtx, why: String, turn: &mut Turn) -> Decision {
    let Some(incarnation) = ctx.record.incarnation.clone() else {
        return Decision::none("no node");
    };
    let is_sick = is_curable(ctx);
    let cause = if is_sick { ctx.condition() } else { Condition::JobFailed };
    // Machines that were made again have ended no run: Google has.
    ctx.record.job.runs.began &= ctx.record.outdated_order().is_none();
    if runs::ended(ctx.record, cause, turn) {
        // Listed once more, without the checkpoint that no run got away from.
        ctx.memory.surveyed_at = None;
        list(ctx, turn);
        return Decision::act(ActionName::Relaunch, "an older checkpoint is looked for");
    }
    let checkpoint = location::listed(ctx.slot).and_then(|_| ctx.record.job.checkpoint.clone());
    // One slice may have a newer order than this journal knows of.
    let newest = ctx.record.seen.as_ref().and_then(|seen| seen.out_of_step).unwrap_or_default();
    let generation = ctx.record.job.generation.max(newest) + 1;
    if ctx.record.job.stuck == Some(Stuck::EndedEarly) {
        ctx.record.job.runs.once_more = Some(generation);
    }
    let step = checkpoint.as_ref().map(|checkpoint| checkpoint.step);
    let uri = checkpoint.map(|checkpoint| checkpoint.uri).unwrap_or_default();
    let roll_called = ctx.record.job.stuck == Some(Stuck::RollCall) && ctx.record.all_hosts_call();
    let order = RunOrder { generation, checkpoint: uri, step, roll_called, ..RunOrder::default() };
    if let Err(violation) = check::order(&ctx.case().1, &order) {
        return confirm::refused(ctx, violation.name(), &violation.to_string(), turn);
    }
    let record = &mut *ctx.record;
    record.job.generation = generation;
    let from = step.map_or("no checkpoint".to_owned(), |s| format!("the checkpoint of step {s}"));
    let intent = What::OrderIntent {
        incarnation: incarnation.clone(),
        generation,
        evidence: why.clone(),
        decided_by: ctx.settings.decided_by.clone(),
    };
    let message = format!("order generation {generation} from {from}, on {incarnation}: {why}");
    turn.tell(record, intent, message);
    record.job.relaunch = Some(Relaunch {
        at: turn.now,
        why,
        incarnation: incarnation.clone(),
        order: order.clone(),
        call: Some(Call::Intended),
        failure: None,
        refused: None,
        written_at: None,
    });
    if is_sick && let Some(suspicion) = &mut record.suspicion {
        // It has its whole grace to show whether that helped.
        (suspicion.relaunched, suspicion.sick_for, suspicion.reads) = (true, Duration::ZERO, 1);
    }
    ctx.memory.pending.insert(Pending::Call);
    let (slot, zone, nodes) = (record.name.clone(), record.zone.clone(), record.nodes().to_vec());
    let (patch, filling) = (Patch::Order(order), ctx.slot.filling.clone());
    turn.act(Action::Patch { slot, zone, nodes, filling, incarnation, patch, stray: false });
    let text = format!("ordering generation {generation} from {from}");
    Decision::act(ActionName::Relaunch, text)
}

/// Takes in what came of writing an order.
pub fn ordered(
    fleet: &mut Fleet,
    slot: &str,
    generation: u64,
    outcome: CallOutcome,
    turn: &mut Turn,
) {
    let Some(record) = fleet.slots.get_mut(slot).or_else(|| fleet.left.get_mut(slot)) else {
        return;
    };
    fleet.dirty.insert(slot.to_owned());
    let present = |relaunch: &&mut Relaunch| relaunch.order.generation == generation;
    let Some(relaunch) = record.job.relaunch.as_mut().filter(present) else { return };
    let (result, text) = match outcome {
        CallOutcome::Accepted(operation) => {
            // Its operation may fail: the node itself, or its workers, show that it was written.
            let text = operation.clone();
            relaunch.call = Some(Call::Accepted { operation });
            (CallResult::Accepted, text)
        }
        CallOutcome::Unknown(failure) => {
            relaunch.call = Some(Call::Unknown);
            // Of several slices one may refuse it for good; another has it by then.
            let says_nothing =
                failure.class.passes_by_itself() || failure.class == FailureClass::Conflict;
            relaunch.refused = Some(failure.class).filter(|_| !says_nothing);
            relaunch.failure = Some(failure.to_string());
            let text = format!("{failure}; it may have been written, so it is read back");
            (CallResult::Unknown, text)
        }
        CallOutcome::Refused(failure) => {
            (relaunch.call, relaunch.refused) = (None, Some(failure.class));
            relaunch.failure = Some(failure.to_string());
            (CallResult::Refused, failure.to_string())
        }
        CallOutcome::NotSent(failure) => {
            relaunch.call = None;
            relaunch.failure = Some(failure.to_string());
            (CallResult::NotSent, failure.to_string())
        }
    };
    let what = What::OrderOutcome { generation, result };
    turn.tell(record, what, format!("order of generation {generation}: {}: {text}", result.name()));
}

/// The node has the order: what its workers reported of the former generation counts no more.
fn written(record: &mut SlotRecord, result: CallResult, text: String, turn: &mut Turn) {
    let Some(relaunch) = &mut record.job.relaunch else { return };
    relaunch.written_at = Some(turn.now);
    let (generation, step) = (relaunch.order.generation, relaunch.order.step);
    runs::ordered(record, step);
    ending::leave_behind(record, generation);
    record.job.early = None;
    record.job.relaunch_by = None;
    turn.tell(record, What::OrderOutcome { generation, result }, text);
    let from = step.map_or("no checkpoint".to_owned(), |s| format!("the checkpoint of step {s}"));
    let text = format!("generation {generation} is ordered to start from {from}");
    turn.tell(record, What::Launch { generation, step }, text);
}

/// A read shows which order the node has. Returns whether the record changed.
pub fn shown(record: &mut SlotRecord, view: &NodeView, began: Timestamp, turn: &mut Turn) -> bool {
    let Some(relaunch) = &mut record.job.relaunch else { return false };
    let known = view.incarnation.as_ref() == Some(&relaunch.incarnation);
    if !known || relaunch.written_at.is_some() || relaunch.call.is_none() || began <= relaunch.at {
        return false;
    }
    let generation = relaunch.order.generation;
    if view.run.as_ref().is_some_and(|run| run.generation >= generation) {
        relaunch.call = Some(Call::Observed);
        let text = format!("read back: the node has the order of generation {generation}");
        written(record, CallResult::Accepted, text, turn);
    } else if elapsed(relaunch.at, began) >= READ_BACK_AFTER {
        let text = format!("read back: the order of generation {generation} was not written");
        relaunch.call = None;
        relaunch.failure.get_or_insert_with(|| "it was not written".to_owned());
        turn.tell(record, What::OrderOutcome { generation, result: CallResult::Failed }, text);
    } else {
        return false;
    }
    true
}

/// The workers' reports were taken in: the order is followed when each of them names it.
pub fn reported(fleet: &mut Fleet, slot: &str, turn: &mut Turn) {
    let calls = |memory: &Memory| memory.pending.contains(&Pending::Call);
    // Its call is answered first: the next reports say so once more (S9).
    if fleet.memory.get(slot).is_some_and(calls) {
        return;
    }
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    let Some(relaunch) = &record.job.relaunch else { return };
    let generation = relaunch.order.generation;
    let follows = |worker| {
        record.job.workers.get(&worker).is_some_and(|state| state.generation >= generation)
    };
    if !(0..record.size().hosts).all(follows) {
        return;
    }
    if relaunch.written_at.is_none() {
        // Reads may lag behind what the workers have read.
        let order = relaunch.order.clone();
        if let Some(seen) = &mut record.seen {
            seen.run = Some(order);
        }
        let text = format!("read back: the workers have the order of generation {generation}");
        written(record, CallResult::Accepted, text, turn);
    }
    record.job.relaunch = None;
    record.job.heard_from = Some(generation);
    ending::clear(record);
    // The former generation's step is that of another run.
    record.job.step = None;
    for worker in record.job.workers.values_mut() {
        (worker.heartbeat, worker.beat_at, worker.phase) = (None, None, None);
        worker.quiet_for = Duration::ZERO;
    }
    let text = format!("every worker follows generation {generation}");
    turn.tell(record, What::OrderOutcome { generation, result: CallResult::Done }, text);
    fleet.dirty_ledger |= !std::mem::replace(&mut fleet.ledger.orders_followed, true);
}

/// How long an operator's wish counts: what runs by then is not ended for it.
pub fn wanted_for(poll: &PollSettings) -> Duration {
    WANTED_FOR.max(poll.max_gap)
}

/// An operator wants the job to start again.
pub fn asked(record: &mut SlotRecord, who: &str, now: Timestamp, calling: bool) {
    if !calling {
        record.job.relaunch = None;
    }
    record.job.relaunch_by = Some(Asked { who: who.to_owned(), at: now });
    runs::retry(record);
    if record.job.finished.take().is_some() {
        record.job.wanted_again = Some(record.job.generation);
    }
}
