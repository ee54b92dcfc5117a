//! A queued resource without a TPU: how long it waits, and, once it has failed, whether another one is
//! asked for.
//!
//! Its place in the queue is kept, however long that takes, unless `grace.queue` says otherwise: then the
//! next zone of the list is asked, once the request is withdrawn and gone (`strays`). Being provisioned
//! has a clock of its own: the API deletes nothing in that state, so that nothing can be done, but an
//! operator is told.
//!
//! A lack of capacity passes, and so does the end of the time for which a request may wait: the next
//! request follows, without a count, as after a create that was refused. A reason that another request
//! would meet as well (a closed queue, billing, a permission, a field) holds the create until an
//! operator says `retry`. A reason that no rule knows is tried once more, then held. The failed request
//! itself is removed in each case: it holds quota, and runs nothing (L9).
//!
//! Sources: error texts of queued resources; "Manage queued resources".

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::event::{CallResult, Verb, What};
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::Stray;
use crate::model::hold::HoldReason;
use crate::model::node::NodeView;
use crate::model::phase::Phase;
use crate::model::queued::RequestState;
use crate::model::recovery::Recovery;
use crate::model::slot::{Seen, SlotRecord};
use crate::model::step::Call;
use crate::model::time::{after, elapsed, span};
use crate::model::view::Decision;
use crate::resource::texts::{self, Action, Section, Text};

use super::ctx::SlotCtx;
use super::moves::{advance, came_of};
use super::turn::Turn;
use super::{answers, called_off};

/// Requests of one recovery that may fail for a reason that no rule knows.
const UNEXPLAINED: u32 = 1;

/// A training job that waits for longer is told, with what may be short; `TpuWaitsInQueue` is its alert.
const TOLD_AFTER: Duration = Duration::from_secs(3600);

enum Then {
    /// Another request may be granted.
    Again,
    /// It would fail as well.
    Halt,
    /// No rule knows the reason.
    OnceMore,
}

/// Why the queued resource of a slot failed, as its last reading tells.
pub fn failure(record: &SlotRecord, now: Timestamp) -> Failure {
    let seen = record.seen.as_ref();
    let none = || Failure::new(FailureClass::Garbage, "the API gives no reason");
    let failure = seen.and_then(|seen| seen.failure.clone()).unwrap_or_else(none);
    let expired = seen.and_then(|seen| seen.times.valid_until).filter(|until| *until <= now);
    match (expired, then(&failure)) {
        (Some(until), Then::OnceMore) => Failure::new(
            FailureClass::StockOut,
            format!("it waited until {until:.0}, the end of its time: {failure}"),
        ),
        _ => failure,
    }
}

/// The state of a request, or job, in the API's word, and since when it was seen.
pub fn own_state(
    record: &SlotRecord,
    view: &NodeView,
    now: Timestamp,
) -> Option<(String, Timestamp)> {
    let state = view.own_state.clone()?;
    let seen = record.seen.as_ref().filter(|_| record.incarnation == view.incarnation);
    let known = seen.and_then(|seen| seen.own_state.clone()).filter(|(known, _)| *known == state);
    Some(known.unwrap_or((state, now)))
}

/// Since when a request has been in the state that this reading shows; none once it has a TPU.
pub fn waits_since(record: &SlotRecord, view: &NodeView, now: Timestamp) -> Option<Timestamp> {
    view.standing.as_ref().filter(|standing| standing.condition == Condition::Waiting)?;
    let on = record.traits().waits_as_one;
    let same = |seen: &&Seen| {
        record.incarnation == view.incarnation && (on || seen.state == view.state.as_str())
    };
    record.seen.as_ref().filter(same).and_then(|seen| seen.waits_since).or(Some(now))
}

/// Tells how long a request has waited in its queue and for its machines, once it does not any longer: such time is not
/// billed, and counts apart. `since` is when it began, of the request that is read.
pub fn has_waited(record: &mut SlotRecord, since: Option<Timestamp>, turn: &mut Turn) {
    let waits = record.seen.as_ref().is_some_and(|seen| seen.waits_since.is_some());
    let Some(since) = since.filter(|_| !waits) else { return };
    // The wait of one that tells each of its states apart began when it was made.
    let made = record.incarnation.as_ref().filter(|_| !record.traits().waits_as_one);
    let since = made.map_or(since, |made| made.created.min(since));
    // One that was asked for ahead cost nothing while the former one was there.
    let since = record.left_behind.map_or(since, |(_, gone)| since.max(gone));
    if let Some(recovery) = &mut record.recovery {
        let within = elapsed(since.max(recovery.symptom_at), turn.now);
        recovery.queued_seconds += within.as_secs_f64();
    }
    let waited = elapsed(since, turn.now);
    let what = What::Queued { seconds: waited.as_secs_f64() };
    turn.tell(record, what, format!("waited {} for capacity", span(waited)));
}

/// A request waits, or is being provisioned.
pub fn waits(ctx: &mut SlotCtx, turn: &mut Turn) -> Decision {
    if let Some(wish) = ctx.record.wanted.take() {
        let text = format!(
            "recreate by {}: its request waits and has no TPU yet, so nothing is deleted",
            wish.who
        );
        turn.tell(ctx.record, What::Note, text);
    }
    if let Some(waited) = gives_up(ctx) {
        return leave_queue(ctx, waited, turn);
    }
    let (record, evidence) = (&*ctx.record, &ctx.record.verdict.evidence);
    let seen = record.seen.as_ref();
    let since = seen.and_then(|seen| seen.waits_since).unwrap_or(record.since);
    let late = after(since, TOLD_AFTER);
    if ctx.slot.filling.traits().waits_as_one && ctx.now >= late {
        let text = format!(
            "{evidence} since {since:.0}: a quota or the capacity of {} may be short. It keeps waiting. Inspect it: {}",
            record.zone,
            ctx.filling().shown_by(&record.name, &record.zone)
        );
        return Decision::wait(text, None);
    }
    let provisioned = RequestState::Provisioning.as_str();
    let Some(seen) = seen.filter(|seen| seen.state == provisioned) else {
        let until = leaves_at(ctx).filter(|at| *at > ctx.now);
        let then = if until.is_some() { "; then the next zone is asked (grace.queue)" } else { "" };
        let text = format!("{evidence} since {since:.0}: waiting for capacity{then}");
        return Decision::wait(text, until);
    };
    let grace = ctx.slot.policy.grace.provision(&seen.accelerator, seen.members.len());
    let deadline = after(since, grace);
    if ctx.now < deadline {
        let text = format!("{evidence} since {since:.0}: its TPU is being provisioned");
        return Decision::wait(text, Some(deadline));
    }
    let text = format!(
        "{evidence} since {since:.0}, longer than grace.provision ({}): the API deletes nothing in this state. The recovery continues when that \
         state ends. Inspect it: {}",
        span(grace),
        ctx.filling().shown_by(&record.name, &record.zone)
    );
    Decision::hold(HoldReason::CreateUnresolved, text, None)
}

/// When a request that waits is given up for the queue of another zone.
fn leaves_at(ctx: &SlotCtx) -> Option<Timestamp> {
    let record = &*ctx.record;
    let closed = record.recovery.as_ref().map(|recovery| &recovery.closed);
    let is_closed = |zone: &String| closed.is_some_and(|closed| closed.contains(zone));
    let open = |zone: &String| *zone != record.zone && !is_closed(zone);
    let others = ctx.slot.zones.iter().any(open);
    let grace = ctx.slot.policy.grace.queue.filter(|_| others && record.ours)?;
    record.request.as_ref()?;
    Some(after(record.queued_since()?, grace))
}

/// For how long a request has waited in its queue, where that is long enough.
fn gives_up(ctx: &SlotCtx) -> Option<Duration> {
    let record = &*ctx.record;
    let sent = match &record.recovery {
        // Taken up while it waited: as another slot's, before a retry, or as one that was asked for ahead.
        None => record.incarnation.is_some(),
        // Also one whose create had no answer: it is there.
        Some(recovery) => {
            let shown = recovery.call() == Some(&Call::Observed) || record.incarnation.is_some();
            recovery.phase() == Phase::Creating && shown
        }
    };
    let opted_out = record.seen.as_ref().is_some_and(|seen| seen.opted_out);
    let held = ctx.settings.dry_run || ctx.paused().is_some() || opted_out || record.forgotten;
    let followed = ctx.ledger.strays.contains_key(&Stray::key(&record.zone, &record.name));
    let long = leaves_at(ctx).is_some_and(|at| at <= ctx.now);
    let waited = elapsed(record.queued_since()?, ctx.now);
    (long && sent && !(held || followed)).then_some(waited)
}

/// The request is withdrawn like one that was called off; the create in the next zone waits for its end
/// (S21), and is taken back if the request is granted first.
fn leave_queue(ctx: &mut SlotCtx, waited: Duration, turn: &mut Turn) -> Decision {
    let zone = ctx.record.zone.clone();
    let why = format!("it waited for {} in the queue of {zone} (grace.queue)", span(waited));
    if ctx.record.recovery.as_ref().is_some_and(|r| r.call() != Some(&Call::Observed)) {
        came_of(ctx.record, Verb::Create, CallResult::CalledOff, &format!("create: {why}"), turn);
    }
    if ctx.record.recovery.is_none() {
        owe_a_create(ctx.record, &why, turn);
    }
    called_off::leave_behind(ctx.record, &why, ctx.ledger, turn.now);
    advance(ctx.record, Phase::Gone, &why, turn);
    let failure = Failure::new(FailureClass::StockOut, why.clone());
    answers::refused(ctx.record, ctx.slot, ctx.ledger, failure, turn);
    ctx.budget.ledger_changed = true;
    Decision::wait(why, None)
}

/// A request that was taken up while it waited is the slot's without a recovery: one begins when its place is given up.
fn owe_a_create(record: &mut SlotRecord, why: &str, turn: &mut Turn) {
    let (cause, kind) = (Condition::Missing, Kind::Lost);
    let mut recovery = Recovery::condemned(cause, kind, turn.now, turn.now);
    why.clone_into(&mut recovery.evidence);
    record.recovery = Some(recovery);
    let condemned = What::Condemned { cause, kind, incarnation: None, detection_seconds: 0.0 };
    turn.tell(record, condemned, format!("it has no TPU: {why}; nothing to delete"));
}

/// Takes in why the queued resource that was removed had failed.
pub fn failed(ctx: &mut SlotCtx, turn: &mut Turn) {
    let recovery = ctx.record.recovery.as_mut();
    let Some(failure) = recovery.and_then(|recovery| recovery.request_failed.take()) else {
        return;
    };
    let zone = ctx.record.zone.clone();
    answers::refused(ctx.record, ctx.slot, ctx.ledger, failure.clone(), turn);
    ctx.budget.ledger_changed = true;
    // A refusal that holds says by itself when it is tried again.
    let holds = ctx.slot.filling.traits().is_held_by_refusal;
    let Some(recovery) = &mut ctx.record.recovery else { return };
    let closes = match then(&failure) {
        _ if holds => false,
        Then::Again => false,
        Then::Halt => true,
        Then::OnceMore => {
            recovery.unexplained += 1;
            recovery.unexplained > UNEXPLAINED
        }
    };
    match closes {
        true => _ = recovery.closed.insert(zone),
        false => _ = recovery.closed.remove(&zone),
    }
    let all = ctx.slot.zones.iter().all(|zone| recovery.closed.contains(zone));
    recovery.halted = Some(failure).filter(|_| all);
}

/// A zone that is closed is not asked again while another one of the list may have capacity.
pub fn leave_closed_zone(ctx: &mut SlotCtx) {
    let Some(recovery) = &ctx.record.recovery else { return };
    let closed = |zone: &String| recovery.closed.contains(zone);
    let open = ctx.slot.zones.iter().find(|zone| !closed(zone)).cloned();
    if let Some(open) = open.filter(|_| closed(&ctx.record.zone)) {
        ctx.record.zone = open;
    }
}

fn then(failure: &Failure) -> Then {
    use FailureClass::*;
    let held = |text: &Text| text.section == Section::Api && text.action == Action::Hold;
    match failure.class {
        // One that was never given, or of another service, is given by people; what was just deleted may still count.
        Quota if texts::explain(&failure.message).is_some_and(held) => Then::OnceMore,
        // Another one ends with what is deleted or granted: it is tried again at `backoff.max`.
        StockOut | Quota | Rate | PreemptedInCreation => Then::Again,
        // A training job has counts of its own for these.
        TransientExit | Internal | OutOfMemory => Then::Again,
        BadRequest | ClosedQueue | Billing | ApiDisabled | Permission | NotFound => Then::Halt,
        Conflict | Undeletable | Transient | Garbage => Then::OnceMore,
    }
}
