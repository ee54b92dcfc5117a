//! Replacing a node, once it is condemned: the delete is followed, the pending create waits for what holds it, is sent, is
//! followed, and its node is waited for.
//!
//! It reads the recovery, the operation or the node that its call made, the pools, and the newest complete checkpoint. It
//! chooses the zone: the present one, unless its pool is short and another of the list is not. Gates and checker stand before
//! the create, each time that it could be sent: what has passed when the TPU was condemned may hold by now. The delete
//! has passed them when it was condemned.
//!
//! A create has one generation however often it is sent, so that one that was lost and comes late is still known as ours. An
//! answer that was lost is never sent again before a read says that nothing came of it (S4, S24). A replacement that is there
//! is judged like any other TPU, within the same recovery.
//!
//! It never creates while a node of the slot may live, and never forgets a create that is owed: only success, an operator's
//! `forget`, or a config without the slot ends it (L2).
//!
//! Example: the delete of `a` is done at 10:00, and us-central2-b has been short since 09:50, with its probe at 10:20. The
//! slot goes on in us-east1-d, the next zone of its list, at once; were there no other, it would hold with `backoff` until
//! 10:20.

use crate::model::action::Action;
use crate::model::checkpoint::Checkpoint;
use crate::model::condition::Condition;
use crate::model::event::{Verb, What};
use crate::model::fleet::Pending;
use crate::model::hold::HoldReason;
use crate::model::ids::RunOrder;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::spec::NodeSpec;
use crate::model::step::Call;
use crate::model::time::{after, elapsed};
use crate::model::view::{ActionName, Decision};

use super::ctx::SlotCtx;
use super::gates::{self, Before, Gate};
use super::judge::{self, UNHEARD_FOR};
use super::moves::{advance, request_id};
use super::turn::Turn;
use super::{confirm, diagnose, ending, location, pool, reads, request, resubmission, runs};

/// A delete is under way: its operation is looked at, or the node itself where the operation is not
/// known.
pub fn deleting(ctx: &mut SlotCtx, turn: &mut Turn) -> Decision {
    let Some(recovery) = &ctx.record.recovery else { return Decision::none("no recovery") };
    let deadline = after(recovery.phase_since, ctx.slot.policy.grace.deleting);
    let (call, no_create) = (recovery.call().cloned(), recovery.no_create);
    if turn.now >= deadline && ctx.memory.operation_lost.is_none() {
        ctx.memory.operation_lost = Some("the delete is not done in its time".to_owned());
    }
    reads::follow(ctx, call.as_ref(), turn);
    if turn.now >= deadline {
        let what = ctx.record.traits().ended_by;
        let text = format!(
            "the delete has not finished within grace.deleting: {what} by hand; the watchdog still follows it"
        );
        return Decision::hold(HoldReason::DeleteFailed, text, None);
    }
    let action = if no_create { ActionName::Wait } else { ActionName::Recreate };
    Decision::act(action, describe("delete", call.as_ref()))
}

/// A create is under way.
pub fn creating(ctx: &mut SlotCtx, turn: &mut Turn) -> Decision {
    let Some(recovery) = &ctx.record.recovery else { return Decision::none("no recovery") };
    let call = recovery.call().cloned();
    if turn.now >= after(recovery.phase_since, ctx.slot.policy.grace.startup(ctx.record.size()))
        && ctx.memory.operation_lost.is_none()
    {
        // An operation without an end proves nothing: from now on the node itself is asked, too.
        ctx.memory.operation_lost = Some("the create is not done in its time".to_owned());
    }
    let (since, failed) = (recovery.phase_since, recovery.failed.clone());
    // A request that waits is shown by each listing; its operation is long over.
    let waits = ctx.condition() == Condition::Waiting && ctx.record.incarnation.is_some();
    // Nor is there an operation of what lists show while it lives.
    let known = ctx.record.traits().is_found_by_lists && ctx.record.incarnation.is_some();
    if !(known || waits && call == Some(Call::Observed)) {
        reads::follow(ctx, call.as_ref(), turn);
    }
    let late =
        elapsed(since, turn.now) > ctx.slot.policy.grace.startup(ctx.record.size()) + UNHEARD_FOR;
    if late && ctx.record.incarnation.is_none() {
        let last = failed
            .map_or(String::new(), |failure| format!(" (its operation ended with: {failure})"));
        let text = format!(
            "the create sent at {since:.0} has no known result{last}: the API shows neither its node nor a 404. Inspect it: {}; \
             the watchdog keeps checking",
            ctx.filling().shown_by(&ctx.record.name, &ctx.record.zone)
        );
        return Decision::hold(HoldReason::CreateUnresolved, text, None);
    }
    Decision::act(ActionName::Create, describe("create", call.as_ref()))
}

fn describe(verb: &str, call: Option<&Call>) -> String {
    match call {
        Some(Call::Accepted { operation }) => {
            format!("{verb} is under way: {}", operation.rsplit('/').next().unwrap_or(operation))
        }
        Some(Call::Observed) => format!("{verb} is under way, as the node shows"),
        Some(Call::Intended) => format!("{verb} is being sent"),
        Some(Call::Unknown) | None => {
            format!("the result of the {verb} is unknown; reading it back")
        }
    }
}

/// The node is gone and a create is pending: from the newest complete checkpoint, as soon as the
/// gates allow.
pub fn gone(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let finished = diagnose::finished(ctx.record, ctx.slot);
    if let Some(recovery) = &mut ctx.record.recovery
        && recovery.cause == Condition::Finished
        && !ctx.record.forgotten
    {
        // Where the job is wanted again by now, the delete was that of a recreate.
        recovery.no_create = finished;
    }
    if let Some(why) = unwanted(ctx) {
        return withdraw(ctx, why, turn);
    }
    request::failed(ctx, turn);
    let Some(recovery) = &ctx.record.recovery else { return Decision::none("no recovery") };
    let waits = recovery.not_before.is_some_and(|at| at > ctx.now);
    if !waits {
        // The config may have moved the slot while its node lived elsewhere.
        ctx.record.zone = ctx.slot.next_zone(&ctx.record.zone).clone();
    }
    if let Some(zone) = supplied_zone(ctx).filter(|_| !waits) {
        ctx.record.zone = zone;
    }
    request::leave_closed_zone(ctx);
    if let Some((gate, hold)) = gates::first_hold(gates, ctx, Before::Create) {
        if gate == gates::CHECKPOINTS {
            reads::checkpoints(ctx, turn);
        }
        return hold;
    }
    let location = location::listed(ctx.slot);
    let job = &ctx.record.job;
    // One of another location means nothing in this one, which may not have been listed yet.
    let checkpoint = location
        .filter(|location| location.uri == job.location)
        .and_then(|_| job.checkpoint.clone());
    let spec = ctx.specification();
    create(ctx, &spec, checkpoint, turn)
}

/// Why nothing is created in the place of what is gone.
fn unwanted(ctx: &SlotCtx) -> Option<&'static str> {
    let recovery = ctx.record.recovery.as_ref()?;
    if recovery.no_create {
        return Some("it is deleted, and nothing is created");
    }
    diagnose::finished(ctx.record, ctx.slot)
        .then_some("its job is finished: what was lost is removed, and nothing is created")
}

fn withdraw(ctx: &mut SlotCtx, why: &'static str, turn: &mut Turn) -> Decision {
    if let Some(recovery) = ctx.record.recovery.take() {
        if recovery.cause == Condition::Deleting {
            ctx.record.deleted = Some("another client's delete of it was stuck".to_owned());
        }
        turn.tell(ctx.record, What::Withdrawn { cause: recovery.cause }, why);
    }
    Decision::none(why)
}

/// The next zone of the list, where the pool of the present one is short and not probed yet. A zone
/// further up may have refused a moment ago: it is asked again after a wait, or when its pool is due.
fn supplied_zone(ctx: &SlotCtx) -> Option<String> {
    let recovery = ctx.record.recovery.as_ref()?;
    let begins_again = recovery.create_failures == 0 || recovery.not_before.is_some();
    let zones = &ctx.slot.zones;
    let here = zones.iter().position(|zone| *zone == ctx.record.zone)?;
    let short = |zone: &str| {
        let pool = pool::name(ctx.record, &ctx.slot.create, zone);
        pool::probed_at(ctx.ledger, &pool).is_some_and(|at| at > ctx.now)
    };
    let due = |zone: &&String| {
        let pool = pool::name(ctx.record, &ctx.slot.create, zone);
        pool::probed_at(ctx.ledger, &pool).is_some_and(|at| at <= ctx.now)
    };
    let earlier = zones[..here].iter().filter(|zone| begins_again || due(zone));
    let others = zones[here + 1..].iter().chain(earlier);
    let supplied = |zone: &&String| !short(zone) && !recovery.closed.contains(*zone);
    short(&zones[here]).then(|| others.into_iter().find(supplied).cloned())?
}

fn create(
    ctx: &mut SlotCtx,
    spec: &NodeSpec,
    checkpoint: Option<Checkpoint>,
    turn: &mut Turn,
) -> Decision {
    let Some(recovery) = &ctx.record.recovery else { return Decision::none("no recovery") };
    // The same intent keeps its generation: a create that was lost on the way and comes late is
    // still known as ours.
    let generation =
        recovery.order.as_ref().map_or(ctx.record.job.generation + 1, |o| o.generation);
    let order = RunOrder {
        generation,
        step: checkpoint.as_ref().map(|c| c.step),
        checkpoint: checkpoint.map(|c| c.uri).unwrap_or_default(),
        ..RunOrder::default()
    };
    let body =
        spec.render(&ctx.settings.owner, &ctx.record.name, &order, ctx.slot.supervisor.as_deref());
    let (checker, case) = ctx.case();
    if let Err(violation) = checker.create(&case, &order, &body) {
        return confirm::refused(ctx, violation.name(), &violation.to_string(), turn);
    }
    let from = order
        .step
        .map_or("no checkpoint".to_owned(), |step| format!("the checkpoint of step {step}"));
    if let Some(text) = resubmission::elsewhere(ctx.record, ctx.slot) {
        turn.tell(ctx.record, What::Note, text);
    }
    let request_id = intend(ctx, order, &from, turn);
    let (slot, zone) = (ctx.record.name.clone(), ctx.record.zone.clone());
    turn.act(Action::Create { slot, zone, body, request_id, filling: ctx.filling() });
    Decision::act(ActionName::Create, format!("creating generation {generation} from {from}"))
}

/// Journals the intent of a create. Returns its request id, where the API version takes one.
fn intend(ctx: &mut SlotCtx, order: RunOrder, from: &str, turn: &mut Turn) -> Option<String> {
    let (now, generation, step) = (ctx.now, order.generation, order.step);
    let record = &mut *ctx.record;
    record.job.generation = generation;
    record.submitted_at = ctx.slot.filling.traits().is_found_by_lists.then_some(now);
    record.request = Some(ctx.slot.filling.id().to_owned()).filter(|id| !id.is_empty());
    let ordered = ctx.slot.job.as_ref().map(|job| job.key());
    if ordered != record.job.ordered {
        // How far another job came says nothing about this one.
        record.job.runs.best_step = None;
    }
    record.job.ordered = ordered;
    record.job.location_since = Some(location::began(record, now));
    record.job.step = None;
    record.job.workers.clear();
    (record.job.relaunch, record.job.relaunch_by) = (None, None);
    record.job.amendment = None;
    ending::forget(record);
    runs::ordered(record, step);
    record.incarnation = None;
    advance(record, Phase::Creating, "the create is sent", turn);
    let intent = What::Intent {
        call: Verb::Create,
        zone: record.zone.clone(),
        incarnation: None,
        generation: Some(generation),
        evidence: record.recovery.as_ref().and_then(|r| r.observed.clone()),
        decided_by: ctx.settings.decided_by.clone(),
    };
    turn.tell(
        record,
        intent,
        format!("create {} in {}, generation {generation}, from {from}", record.name, record.zone),
    );
    if ctx.slot.supervisor.is_some() {
        let message = format!("generation {generation} is ordered to start from {from}");
        turn.tell(record, What::Launch { generation, step }, message);
    }
    let takes_id = ctx.slot.filling.takes_request_ids(ctx.settings.alpha);
    let of = record
        .recovery
        .as_ref()
        .map(|r| format!("{} {} {}", r.condemned_at, r.create_failures, r.spent));
    let request_id = takes_id.then(|| request_id(record, "create", &of.unwrap_or_default()));
    if let Some(recovery) = &mut record.recovery {
        recovery.saved_at = record.job.checkpoint_at.filter(|_| step.is_some());
        recovery.order = Some(order);
        recovery.at.set_call(Call::Intended);
        recovery.not_before = None;
    }
    ctx.memory.pending.insert(Pending::Call);
    ctx.memory.looked_at = None;
    ctx.memory.confirmed = None;
    ctx.ledger.creates.push(now);
    let (pool, slot) = (ctx.pool(), ctx.record.name.clone());
    ctx.budget.probing.insert(pool, slot);
    ctx.budget.ledger_changed = true;
    request_id
}

/// The event that a replacement still waits for; an operator must look where nothing can tell
/// whether it booted.
pub fn awaited(ctx: &SlotCtx, recovery: &Recovery) -> Decision {
    let (phase, since) = (recovery.phase(), recovery.phase_since);
    let awaited = match phase {
        Phase::Ready => "the boot beacons",
        Phase::Booted => "the job to start",
        _ => "the job's first step or checkpoint",
    };
    let supervised =
        ctx.record.seen.as_ref().is_some_and(|s| s.supervised) && ctx.slot.supervisor.is_some();
    let long =
        elapsed(since, ctx.now) > ctx.slot.policy.grace.boot(ctx.record.size()) + UNHEARD_FOR;
    let unheard =
        ctx.memory.answered && ctx.memory.heard.is_none_or(|at| elapsed(at, ctx.now) > UNHEARD_FOR);
    if phase == Phase::Ready && supervised && long && unheard {
        let text = format!(
            "{phase} since {since:.0}: cannot tell whether the workers booted (guest attributes unreadable or incomplete)"
        );
        return Decision::hold(HoldReason::NoBeaconChannel, text, None);
    }
    Decision::wait(format!("{phase} since {since:.0}: waiting for {awaited}"), None)
}

/// A replacement that is there is judged like any other node.
pub fn judge_replacement(
    ctx: &mut SlotCtx,
    gates: &[Gate],
    turn: &mut Turn,
    otherwise: Decision,
) -> Decision {
    let judged = judge::judge(ctx, gates, turn);
    if ctx.record.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Gone) {
        return gone(ctx, gates, turn);
    }
    let waiting = matches!(ctx.condition(), Condition::Healthy | Condition::Starting);
    // A hold is always shown: a replacement that is stuck for good needs an operator.
    if waiting && judged.hold.is_none() && judged.action != ActionName::Recreate {
        otherwise
    } else {
        judged
    }
}
