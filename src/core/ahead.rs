//! The next queued resource of a slot whose capacity ends by itself (flex-start), asked for before that end.
//!
//! It reads when the present capacity ends, and asks an hour before, once for each end. The request may not be granted before
//! that time (`validInterval`), so that no two grants are billed, and has ids of its own for itself and its nodes: the
//! present ones are taken. Its machines are made with the order of that hour, and one from the newest checkpoint follows when
//! they are up (`machines`). Where hosts of this project have followed such an order before, the first says `wait`. Where none
//! has, nothing rests on it: a job that finds its own checkpoints starts by the first, and one that is told its checkpoint is
//! not asked for ahead.
//!
//! It takes the place of the former one when that is removed and its create is due (`takeover`). Where it was refused, has
//! failed, or is gone by then, the create goes on as after any other end. A recovery that needs another TPU before that, a job that is finished, and an operator's `forget`
//! leave it behind as a stray, which is withdrawn while it waits (`strays`). It never touches the capacity that is there.
//!
//! Example: `a` is filled by `qr`, whose capacity ends at 12:00. At 11:00 `qr-next` is asked for, from 12:00 on. At 12:00 `qr`
//! is SUSPENDED, is removed within a poll, and `a` waits as `qr-next`, with an hour's place in the queue.

// unverified: a request with a beginning that is ahead gets its place in the queue when it is made, and flex-start takes one.
// settled by: gcloud alpha compute tpus queued-resources create ID --provisioning-model=flex-start --valid-after-time TIME …

use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::{Action, CallOutcome};
use crate::model::ahead::{Ahead, next_id};
use crate::model::condition::{Condition, Kind};
use crate::model::event::{CallResult, Evidence, Verb, What};
use crate::model::filling::Filling;
use crate::model::fleet::{Fleet, Ledger, Pending, Stray};
use crate::model::hold::HoldReason;
use crate::model::ids::RunOrder;
use crate::model::phase::Phase;
use crate::model::queued::{RequestState, RequestView};
use crate::model::settings::{JobSettings, Resume};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::step::Call;
use crate::model::time::elapsed;
use crate::model::view::Decision;

use super::ctx::SlotCtx;
use super::gates::{self, Before, Gate};
use super::listed::Listed;
use super::moves::request_id;
use super::turn::Turn;
use super::{check, diagnose, ending};

/// So long before the end it is asked for.
const ASKED_BEFORE: Duration = Duration::from_secs(3600);
/// A request that no listing has shown for so long is gone, or was never made.
const SHOWN_WITHIN: Duration = Duration::from_secs(10 * 60);
/// A recovery that owes a create so long before the end does not wait for it.
pub const TAKEN_UP_BEFORE: Duration = diagnose::RUN_OUT;

/// Whether a slot that is well has to be looked at: its capacity ends soon.
pub fn is_near(record: &SlotRecord, now: Timestamp) -> bool {
    record.asked_ahead().is_some() || ending(record, now).is_some()
}

/// When the capacity that is there ends, where that is soon and nothing was asked for yet.
fn ending(record: &SlotRecord, now: Timestamp) -> Option<Timestamp> {
    let seen = record.seen.as_ref().filter(|seen| seen.ready && seen.times.is_limited)?;
    let from = seen.times.ends_at.filter(|at| now < *at && elapsed(now, *at) <= ASKED_BEFORE)?;
    let known = record.ahead.as_ref().is_some_and(|ahead| is_same(ahead.from, from));
    (record.incarnation.is_some() && !known).then_some(from)
}

/// Whether both are one end: reads may tell it a little otherwise.
fn is_same(one: Timestamp, other: Timestamp) -> bool {
    elapsed(one, other).max(elapsed(other, one)) < TAKEN_UP_BEFORE
}

/// The slot waits while its create is on its way: there is one call at a time (S9).
pub fn is_sent(ctx: &SlotCtx) -> Option<Decision> {
    let ahead = ctx.record.asked_ahead().filter(|ahead| ahead.call == Some(Call::Intended))?;
    let text = format!("its next request {} is being sent", ahead.id);
    ctx.memory.pending.contains(&Pending::Call).then(|| Decision::wait(text, None))
}

/// Asks for it, or leaves behind what is not wanted any longer. Returns whether the record changed.
pub fn keep(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> bool {
    if ctx.memory.pending.contains(&Pending::Call) {
        return false;
    }
    if let Some(ahead) = ctx.record.asked_ahead() {
        let Some(why) = unwanted(ctx, ahead) else { return false };
        // Listings show within minutes whether it was made at all.
        if ahead.call == Some(Call::Unknown) && ahead.seen.is_none() {
            return false;
        }
        let left = leave(ctx.record, ctx.ledger, &why, turn);
        ctx.budget.ledger_changed |= left;
        return left;
    }
    let Some(from) = ending(ctx.record, ctx.now) else { return false };
    let recovery = ctx.record.recovery.as_ref();
    // One whose TPU is there waits for the job alone.
    let stands = recovery.is_none_or(|recovery| recovery.phase().stands());
    let here = ctx.slot.zones.contains(&ctx.record.zone);
    let free = ctx.record.ours && here && stands && ctx.record.wanted.is_none();
    let over = diagnose::finished(ctx.record, ctx.slot) || ctx.record.released.is_some();
    let over = over || !is_there(ctx);
    let mine = |stray: &Stray| stray.made_for() == ctx.record.name && stray.twin.is_none();
    let followed = ctx.ledger.strays.values().any(mine);
    if !free || over || followed || gates::first_hold(gates, ctx, Before::Ahead).is_some() {
        return false;
    }
    ask(ctx, from, turn);
    true
}

/// S2: a recent read showed the TPU whose end it is to follow.
fn is_there(ctx: &SlotCtx) -> bool {
    let recent = |at: Timestamp| elapsed(at, ctx.now) <= ctx.slot.policy.max_age;
    let read = ctx.memory.is_there && ctx.memory.last_read.is_some_and(recent);
    use Condition::{Deleting, Going, Missing, Stopped, Unclear};
    read && !matches!(ctx.condition(), Unclear | Missing | Stopped | Going | Deleting)
}

/// Whether a person deleted the present TPU, or the config says that nothing follows one that is gone.
fn stays_gone(ctx: &SlotCtx, is_awaited: bool) -> bool {
    let hold = ctx.record.decision.as_ref().and_then(|decision| decision.hold);
    let held = matches!(hold, Some(HoldReason::Deleted | HoldReason::Missing));
    // Nodes alone may be made again.
    let gone = ctx.condition() == Condition::Missing;
    let long = elapsed(ctx.record.since, ctx.now) >= ctx.slot.policy.grace.slice(ctx.record.size());
    held && ctx.record.recovery.is_none() && (gone || long || is_awaited)
}

/// Why what was asked for ahead is not wanted any longer.
fn unwanted(ctx: &SlotCtx, ahead: &Ahead) -> Option<String> {
    let record = &*ctx.record;
    let job = ctx.slot.job.as_ref().map(JobSettings::key);
    if diagnose::finished(record, ctx.slot) {
        return Some("its job is finished".to_owned());
    }
    if ending::holds_recreate(record, job.clone()).is_some() {
        return Some("its job ended early, and may be done".to_owned());
    }
    if stays_gone(ctx, ahead.is_awaited(ctx.now, TAKEN_UP_BEFORE)) {
        return Some("its TPU was deleted on purpose, or is not to be created again".to_owned());
    }
    if ctx.now < ahead.from && ahead.ordered != job {
        return Some("the config has another command or checkpoint by now".to_owned());
    }
    if record.released.is_some() || record.forgotten {
        return Some("its TPU is given back, or the slot is forgotten".to_owned());
    }
    let soon = ahead.is_awaited(ctx.now, TAKEN_UP_BEFORE);
    let owes = record.recovery.as_ref().is_some_and(|recovery| recovery.phase() == Phase::Gone);
    if owes && !soon {
        return Some(format!("the slot needs another TPU before {:.0}", ahead.from));
    }
    // Another request took the place of the one that it was to follow.
    let ends = record.seen.as_ref().filter(|seen| seen.ready).and_then(|seen| seen.times.ends_at);
    let other = ends.is_some_and(|at| !is_same(at, ahead.from));
    other.then(|| format!("the capacity that it was to follow at {:.0} is not there", ahead.from))
}

/// How machines begin by the order that they are made with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    /// They start: their startup script, or a job that finds its own checkpoints.
    Starts,
    /// They wait for the next order, which reaches them.
    Waits,
    /// They would start from an old checkpoint, or wait for an order that may not reach them.
    Untold,
}

fn first_order(ctx: &SlotCtx) -> First {
    let job = ctx.slot.job.as_ref().filter(|_| ctx.slot.supervisor.is_some());
    match job.filter(|job| job.command.is_some()) {
        None => First::Starts,
        Some(_) if ctx.ledger.orders_followed => First::Waits,
        Some(job) if is_told_its_checkpoint(ctx, job) => First::Untold,
        Some(_) => First::Starts,
    }
}

/// Whether the run order names the checkpoint of a start, as the supervisor tells it where the config does not say so.
fn is_told_its_checkpoint(ctx: &SlotCtx, job: &JobSettings) -> bool {
    let script = NodeSpec::script(ctx.record.spec.as_ref(), &ctx.slot.create);
    let texts = job.command.iter().chain(job.env.values()).map(String::as_str).chain(script);
    let says = |text: &str| text.contains("CHECKPOINT_PATH") || text.contains("CHECKPOINT_STEP");
    job.resume.map_or_else(|| texts.into_iter().any(says), |by| by == Resume::Watchdog)
}

/// The request to ask for, as it is journaled, and its specification; or why it is not asked for ahead.
fn planned(ctx: &SlotCtx, from: Timestamp) -> (Ahead, Result<NodeSpec, &'static str>) {
    let record = &*ctx.record;
    let id = next_id(ctx.slot.filling.id());
    let first = first_order(ctx);
    let order = RunOrder {
        generation: record.job.generation + 1,
        step: record.job.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
        checkpoint: record.job.checkpoint.clone().map(|of| of.uri).unwrap_or_default(),
        wait: first == First::Waits,
        ..RunOrder::default()
    };
    let taken = ctx.settings.slots.values().any(|slot| slot.filling.id() == id);
    let spec = match ctx.specification().after_end(from, &record.name) {
        _ if taken => Err("another slot has that id"),
        None => Err("its ids get too long, or its own end is over by then"),
        Some(_) if first == First::Untold => Err(
            "whether a newer run order reaches its hosts is not known in this project (`drill` measures it), and its job is told its checkpoint",
        ),
        Some(spec) => Ok(spec),
    };
    let ahead = Ahead {
        id,
        zone: record.zone.clone(),
        from,
        asked_at: ctx.now,
        order,
        ordered: ctx.slot.job.as_ref().map(|job| job.key()),
        call: None,
        seen: None,
        unseen: None,
        told: false,
    };
    (ahead, spec)
}

fn ask(ctx: &mut SlotCtx, from: Timestamp, turn: &mut Turn) {
    let (ahead, spec) = planned(ctx, from);
    let (now, id) = (ctx.now, ahead.id.clone());
    let spec = match spec {
        Ok(spec) => spec,
        Err(why) => {
            ctx.record.ahead = Some(ahead);
            let text = format!(
                "its capacity ends at {from:.0}, and the next request is sent then: {id} is not asked for ahead, since {why}"
            );
            return turn.tell(ctx.record, What::Note, text);
        }
    };
    let supervisor = ctx.slot.supervisor.as_deref();
    let body = spec.render(&ctx.settings.owner, &ctx.record.name, &ahead.order, supervisor);
    let (_, case) = ctx.case();
    if let Err(violation) = check::ahead(&case, &ahead, &body) {
        let what = What::InvariantViolation { invariant: violation.name().to_owned() };
        ctx.record.ahead = Some(ahead);
        return turn.tell(ctx.record, what, format!("{id} is not asked for ahead: {violation}"));
    }
    let record = &mut *ctx.record;
    let evidence = Evidence {
        condition: record.verdict.condition,
        kind: Kind::Lost,
        symptom_at: now,
        sick_seconds: 0.0,
        reads: 0,
        confirmed_at: ctx.memory.last_read.unwrap_or(now),
        observed: format!("its capacity ends at {from:.0}"),
    };
    let intent = What::Intent {
        call: Verb::Create,
        zone: record.zone.clone(),
        incarnation: None,
        generation: Some(ahead.order.generation),
        evidence: Some(evidence),
        decided_by: ctx.settings.decided_by.clone(),
    };
    let text = format!(
        "its capacity ends at {from:.0}: create queued resource {id} in {}, which is granted then at the earliest",
        record.zone
    );
    turn.tell(record, intent, text);
    let of = format!("ahead {from}");
    let request_id = Some(request_id(record, "create", &of));
    record.ahead = Some(Ahead { call: Some(Call::Intended), ..ahead });
    ctx.memory.pending.insert(Pending::Call);
    ctx.ledger.creates.push(now);
    ctx.budget.ledger_changed = true;
    let (slot, zone) = (record.name.clone(), record.zone.clone());
    let filling = Filling::QueuedResource(id);
    turn.act(Action::Create { slot, zone, body, request_id, filling });
}

/// Takes in what came of its create. Returns whether it was that call's: there is one at a time.
pub fn called(fleet: &mut Fleet, name: &str, outcome: &CallOutcome, turn: &mut Turn) -> bool {
    let Some(record) = fleet.slots.get_mut(name).or_else(|| fleet.left.get_mut(name)) else {
        return false;
    };
    let intended = |ahead: &&mut Ahead| ahead.call == Some(Call::Intended);
    let Some(ahead) = record.ahead.as_mut().filter(intended) else { return false };
    let id = ahead.id.clone();
    let (call, result, why) = match outcome {
        CallOutcome::Accepted(operation) => {
            let operation = operation.clone();
            (Some(Call::Accepted { operation }), CallResult::Accepted, String::new())
        }
        CallOutcome::Unknown(failure) => {
            (Some(Call::Unknown), CallResult::Unknown, format!(": {failure}"))
        }
        CallOutcome::Refused(failure) => (None, CallResult::Refused, format!(": {failure}")),
        CallOutcome::NotSent(failure) => (None, CallResult::NotSent, format!(": {failure}")),
    };
    let then = if call.is_none() { "; the next request is sent at the end" } else { "" };
    ahead.call = call;
    tell(record, result, format!("create of {id} ahead {}{why}{then}", result.name()), turn);
    fleet.dirty.insert(name.to_owned());
    true
}

/// The result of its create, for the audit.
pub fn tell(record: &SlotRecord, result: CallResult, message: String, turn: &mut Turn) {
    let what = What::Outcome { call: Verb::Create, result, incarnation: None, submission: None };
    turn.tell(record, what, message);
}

/// An earlier process may have sent what it intended.
pub fn forget_calls(fleet: &mut Fleet) {
    for (name, record) in &mut fleet.slots {
        let calls = fleet.memory.get(name).is_some_and(|of| of.pending.contains(&Pending::Call));
        let intended = |ahead: &&mut Ahead| ahead.call == Some(Call::Intended) && !calls;
        if let Some(ahead) = record.ahead.as_mut().filter(intended) {
            ahead.call = Some(Call::Unknown);
        }
    }
}

/// Follows it in the listings of a poll.
pub fn listed(fleet: &mut Fleet, listed: &Listed, turn: &mut Turn) {
    let live = fleet.slots.values().filter(|record| record.asked_ahead().is_some());
    let names: Vec<String> = live.map(|record| record.name.clone()).collect();
    for name in names {
        let Fleet { slots, ledger, settings, dirty, dirty_ledger, memory, .. } = &mut *fleet;
        let Some(record) = slots.get_mut(&name) else { continue };
        let Some(ahead) = record.asked_ahead() else { continue };
        let calls = memory.get(&name).is_some_and(|of| of.pending.contains(&Pending::Call));
        if calls && ahead.call == Some(Call::Intended) {
            // Its answer is still to come.
            continue;
        }
        let request = listed.request(&ahead.zone, &ahead.id);
        let is_there = request.is_some_and(|of| is_ours(record, of, &settings.owner));
        let came_to = match request {
            Some(request) if is_there => shown(record, request, turn),
            Some(_) => Some("another client's queued resource has its id".to_owned()),
            None if !listed.requests_were_read(&ahead.zone) => None,
            // A listing may lag behind.
            None if elapsed(ahead.unseen.unwrap_or(turn.now), turn.now) < SHOWN_WITHIN => {
                unseen(record, turn.now);
                None
            }
            None if ahead.seen.is_some() => Some("it is gone, not by this watchdog".to_owned()),
            None => Some("no listing shows it, so it was not made".to_owned()),
        };
        if let Some(why) = came_to {
            // One that has ended holds quota until it is deleted.
            match is_there {
                true => *dirty_ledger |= leave(record, ledger, &why, turn),
                false => gone(record, &why, turn),
            }
        }
        dirty.insert(name);
    }
}

/// A complete listing lacks it.
fn unseen(record: &mut SlotRecord, now: Timestamp) {
    if let Some(ahead) = &mut record.ahead {
        ahead.unseen.get_or_insert(now);
    }
}

fn is_ours(record: &SlotRecord, request: &RequestView, owner: &str) -> bool {
    request.owner.as_deref() == Some(owner) && request.slot.as_ref() == Some(&record.name)
}

/// Takes in how it stands. Returns why it won't be granted, where it has ended.
fn shown(record: &mut SlotRecord, request: &RequestView, turn: &mut Turn) -> Option<String> {
    let (state, incarnation) = (request.state.as_str().to_owned(), request.incarnation()?);
    let ahead = record.ahead.as_mut()?;
    let (id, from) = (ahead.id.clone(), ahead.from);
    let untold = ahead.call.replace(Call::Observed) != Some(Call::Observed);
    (ahead.seen, ahead.unseen) = (Some((state, incarnation)), None);
    let granted = matches!(request.state, RequestState::Active | RequestState::Provisioning);
    let late = elapsed(from, turn.now) >= TAKEN_UP_BEFORE;
    let tells = granted && (turn.now < from || late) && !std::mem::replace(&mut ahead.told, true);
    let state = request.state.as_str();
    if untold {
        tell(record, CallResult::Done, format!("create of {id} ahead: it is listed"), turn);
    }
    if tells {
        let text = format!(
            "{id} is {state}, and can't take the place of the present request yet: it is billed meanwhile"
        );
        turn.tell(record, What::Note, text);
    }
    let error = request.error.as_deref().unwrap_or("the API gives no reason");
    request.state.is_over().then(|| format!("it is {state}: {error}"))
}

/// It is not asked for again before that end.
fn gone(record: &mut SlotRecord, why: &str, turn: &mut Turn) {
    let Some(ahead) = record.ahead.as_mut() else { return };
    let told = ahead.call.take() == Some(Call::Observed);
    let text =
        format!("{} was asked for ahead: {why}; the next request is sent at the end", ahead.id);
    match told {
        true => turn.tell(record, What::Note, text),
        false => tell(record, CallResult::Failed, text, turn),
    }
}

/// Leaves it behind as a stray: it is withdrawn while it waits. Returns whether that could be.
pub fn leave(record: &mut SlotRecord, ledger: &mut Ledger, why: &str, turn: &mut Turn) -> bool {
    let Some(ahead) = record.asked_ahead() else { return false };
    let (zone, slot) = (ahead.zone.clone(), record.name.clone());
    let key = Stray::key(&zone, &ahead.id);
    if ledger.strays.contains_key(&key) {
        return false;
    }
    let (state, incarnation) = ahead.seen.clone().unzip();
    let why = format!("it was asked for ahead of the end of {slot}'s capacity, and {why}");
    let (id, slot) = (ahead.id.clone(), Some(slot));
    let stray = Stray {
        request: Some(id.clone()),
        slot,
        state,
        incarnation,
        ..Stray::followed(zone, id, why.clone(), turn.now)
    };
    ledger.strays.insert(key, stray);
    let Some(ahead) = record.ahead.as_mut() else { return false };
    let untold = ahead.call.take() != Some(Call::Observed);
    let text = format!("queued resource {}: {why}; it is deleted while it waits", ahead.id);
    match untold {
        true => tell(record, CallResult::CalledOff, text, turn),
        false => turn.tell(record, What::Note, text),
    }
    true
}
