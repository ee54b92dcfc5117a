//! Decides about every slot: recoveries go on, the rest is judged. No choice is left to the shell.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::Condition;
use crate::model::event::{Reason, What};
use crate::model::failure::FailureClass;
use crate::model::fleet::{Fleet, Ledger};
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;
use crate::model::time::elapsed;
use crate::model::view::{ActionName, Decision};

use super::budget::{self, Budget, CREATE_WINDOW, Counted};
use super::check::Checker;
use super::ctx::SlotCtx;
use super::gates::Gate;
use super::turn::Turn;
use super::{ahead, amend, asked, judge, pool, reads, replace, takeover};

/// The window of `max_judged_recreates_per_hour`.
const HOUR: Duration = Duration::from_secs(3600);

/// Calls in a row that were not sent, after which that is shown as a hold.
const NOT_SENT: u32 = 3;

/// A slot that is decided about, with its place among all: reads are staggered by it.
type Awake = (u64, String);

/// Decides about every slot, in the order of their names.
pub fn plan(fleet: &mut Fleet, gates: &[Gate], turn: &mut Turn) {
    takeover::hand_over(fleet, turn);
    let (mut budget, awake) = prepare(fleet, turn);
    let mut checker = Checker::new(fleet);
    let turns = reads::attribute_turns(fleet, turn.now);
    for (_, name) in &awake {
        let suspected = |ctx: &SlotCtx| ctx.record.suspicion.is_some() && !is_at_ease(ctx.record);
        if let Some(mut ctx) =
            context(fleet, name, &mut budget, &mut checker, turn).filter(suspected)
        {
            judge::count(&mut ctx, gates, turn);
        }
    }
    for (index, name) in awake {
        let Some(mut ctx) = context(fleet, &name, &mut budget, &mut checker, turn) else {
            continue;
        };
        let (slot, polls) = (ctx.slot, ctx.polls);
        let mut changed = false;
        if is_at_ease(ctx.record) {
            reads::stagger(ctx.record, ctx.memory, slot, (polls, index), turns, turn);
        } else {
            changed = one(&mut ctx, gates, (index, turns), turn);
        }
        if amend::keep(&mut ctx, turn) | ahead::keep(&mut ctx, gates, turn) || changed {
            fleet.dirty.insert(name);
        }
    }
    fleet.dirty_ledger |= budget.ledger_changed;
}

/// The budgets as they stand, and the slots that need a decision.
fn prepare(fleet: &mut Fleet, turn: &Turn) -> (Budget, Vec<Awake>) {
    let now = turn.now;
    let queues_changed = turn.polled && pool::queues(fleet, now);
    let ledger = &mut fleet.ledger;
    let kept = |ledger: &Ledger| ledger.judged.len() + ledger.creates.len() + ledger.storm.len();
    let before = kept(ledger);
    ledger.judged.retain(|at| elapsed(*at, now) < HOUR);
    ledger.creates.retain(|at| elapsed(*at, now) < CREATE_WINDOW);
    let (slots, storm) = (&fleet.settings.slots, fleet.settings.storm);
    let counted = Counted::read(ledger, slots, storm, now);
    let ledger_changed = queues_changed || before != kept(ledger);
    let mut budget = Budget { ledger_changed, counted, ..Budget::default() };
    let looks = turn.polled
        && fleet.settings.slots.values().any(|of| of.job.is_some() || of.filling.traits().is_job);
    let mut awake = Vec::new();
    for (index, (name, record)) in (0..).zip(&fleet.slots) {
        let room = &mut budget.rooms[fleet.settings.slots.get(name).map_or(0, budget::room)];
        room.desired += 1;
        if record.recovery.is_some() || record.job.relaunch.is_some() {
            room.unavailable += usize::from(budget::is_unavailable(record));
            budget.on_their_way +=
                usize::from(budget::on_its_way(record, &fleet.memory, name, now));
        }
        if record.recovery.is_some()
            && let Some(slot) = fleet.settings.slots.get(name)
        {
            if let Some(pool) = probes(record, slot, now) {
                budget.probing.entry(pool).or_insert_with(|| name.clone());
            }
            if let Some((pool, why)) = refused(record, slot) {
                budget.refused.entry(pool).or_insert_with(|| (name.clone(), why));
            }
        }
        if looks || !is_at_ease(record) || ahead::is_near(record, now) {
            awake.push((index, name.clone()));
        }
    }
    awake.sort_by_cached_key(|(index, name)| turn_of(fleet, name, *index));
    for room in &mut budget.rooms {
        room.max_unavailable = fleet.settings.max_unavailable.of(room.desired);
    }
    (budget, awake)
}

/// The pool that a create under way draws on, while it may still be refused there.
fn probes(record: &SlotRecord, slot: &SlotSettings, now: Timestamp) -> Option<String> {
    let recovery = record.recovery.as_ref()?;
    let probing = recovery.phase() == Phase::Creating
        && record.incarnation.is_none()
        && elapsed(recovery.phase_since, now) < pool::PROBES_FOR;
    probing.then(|| pool::name(record, &slot.create, &record.zone))
}

/// The pool in which a create that is still owed was refused for a reason that no wait mends, and that
/// reason.
fn refused(record: &SlotRecord, slot: &SlotSettings) -> Option<(String, String)> {
    use FailureClass::{ApiDisabled, Billing, ClosedQueue, Permission};
    let recovery = record.recovery.as_ref().filter(|_| record.incarnation.is_none())?;
    let (class, why) = recovery.refusal.as_ref()?;
    let lasts = matches!(class, ApiDisabled | Billing | ClosedQueue | Permission);
    let zone = if recovery.refused_in.is_empty() { &record.zone } else { &recovery.refused_in };
    lasts.then(|| (pool::name(record, &slot.create, zone), why.clone()))
}

/// Pending creates come last, by priority and age; all other slots by their names.
fn turn_of(fleet: &Fleet, name: &str, index: u64) -> (bool, i64, Option<Timestamp>, u64) {
    let recovery = fleet.slots.get(name).and_then(|record| record.recovery.as_ref());
    let pending = recovery.filter(|recovery| recovery.phase() == Phase::Gone);
    let priority = fleet.settings.slots.get(name).map_or(0, |slot| slot.policy.priority);
    match pending {
        Some(recovery) => (true, -priority, Some(recovery.condemned_at), index),
        None => (false, 0, None, index),
    }
}

fn context<'a>(
    fleet: &'a mut Fleet,
    name: &str,
    budget: &'a mut Budget,
    checker: &'a mut Checker,
    turn: &Turn,
) -> Option<SlotCtx<'a>> {
    let (record, slot) = (fleet.slots.get_mut(name)?, fleet.settings.slots.get(name)?);
    let memory = fleet.memory.get_mut(name)?;
    let (settings, ledger, polls, now) =
        (&fleet.settings, &mut fleet.ledger, fleet.polls, turn.now);
    Some(SlotCtx { settings, slot, record, memory, ledger, budget, checker, polls, now })
}

/// Decides about one slot. Returns whether its record has to be written.
fn one(ctx: &mut SlotCtx, gates: &[Gate], (index, turns): (u64, u64), turn: &mut Turn) -> bool {
    let counted = budget::is_unavailable(ctx.record);
    let at = |record: &SlotRecord| record.recovery.as_ref().map(|r| r.at.clone());
    let before = at(ctx.record);
    let patches = |record: &SlotRecord| (record.job.relaunch.clone(), record.job.amendment.clone());
    let patched = patches(ctx.record);
    let ends = |record: &SlotRecord| {
        (record.job.removable_since, record.job.stopped.clone(), record.wanted.clone())
    };
    let ended = ends(ctx.record);
    // Every view tells whether it could be created again, also of a slot that is well.
    reads::look_over_specification(ctx);
    asked::forget_old_wish(ctx, turn);
    let decision = decide(ctx, gates, turn);
    ctx.record.job.removable_since.take_if(|_| ctx.record.verdict.condition != Condition::Finished);
    // A call that was not sent is tried all the same: shown as a hold, it counts as under way (S6).
    let set_apart = is_open_ended(decision.hold) || is_short(ctx.record, decision.hold);
    let decision = unsent(ctx, decision);
    reads::stagger(ctx.record, ctx.memory, ctx.slot, (ctx.polls, index), turns, turn);
    let mut changed = false;
    if let Some(recovery) = &mut ctx.record.recovery {
        changed = std::mem::replace(&mut recovery.set_apart, set_apart) != set_apart;
    }
    let unavailable = usize::from(!counted && budget::is_unavailable(ctx.record));
    ctx.budget.rooms[budget::room(ctx.slot)].unavailable += unavailable;
    changed |= before != at(ctx.record) || patched != patches(ctx.record);
    changed |= ended != ends(ctx.record);
    let held = decision.hold.is_some_and(|hold| hold != HoldReason::Unclear);
    let interrupts = held || ctx.record.recovery.is_some() || ctx.paused().is_some();
    changed |= interrupts && !std::mem::replace(&mut ctx.record.job.interrupted, true);
    tell(ctx, &decision, turn);
    ctx.record.at_ease =
        ctx.record.is_well() && decision.action == ActionName::None && decision.hold.is_none();
    changed | keep(ctx, decision, turn)
}

/// Keeps the decision for every view. Another action or hold is written at once, other words with
/// the next poll. Returns whether the record has to be written for it.
fn keep(ctx: &mut SlotCtx, decision: Decision, turn: &Turn) -> bool {
    let kind = |decision: &Decision| (decision.action, decision.hold);
    let before = ctx.record.decision.replace(decision);
    let after = ctx.record.decision.as_ref();
    ctx.memory.reworded |= before.as_ref() != after;
    let due = turn.polled && std::mem::take(&mut ctx.memory.reworded);
    due || before.as_ref().map(kind) != after.map(kind)
}

/// A call that was decided again and again and never left is shown as a hold; it is tried all the
/// same.
fn unsent(ctx: &SlotCtx, decision: Decision) -> Decision {
    let recovery = ctx.record.recovery.as_ref().filter(|recovery| recovery.not_sent >= NOT_SENT);
    let between = || matches!(decision.hold, None | Some(HoldReason::Backoff));
    let Some(recovery) = recovery.filter(|_| between()) else { return decision };
    let why = recovery.unsent.as_deref().unwrap_or("see the log");
    let text = format!(
        "{}: decided {} times and not sent: {why}; it is tried again",
        decision.reason, recovery.not_sent
    );
    Decision::hold(HoldReason::NotSent, text, decision.until)
}

/// One line for each new decision, not for each poll that repeats it.
fn tell(ctx: &mut SlotCtx, decision: &Decision, turn: &mut Turn) {
    let told = (decision.action.name(), decision.hold.map_or("", HoldReason::name));
    if ctx.polls > 0
        && ctx.memory.told.replace(told) != Some(told)
        && decision.action != ActionName::None
    {
        let until = decision.until.map_or(String::new(), |at| format!(" (until {at:.0})"));
        let acts = !matches!(decision.action, ActionName::Wait | ActionName::Escalate);
        let would = if ctx.settings.dry_run && acts { "would " } else { "" };
        let message = format!("{would}{}: {}{until}", told.0, decision.reason);
        let reason = decision.hold.map_or(Reason::Condition(ctx.condition()), Reason::Hold);
        turn.tell(ctx.record, What::Decision { action: decision.action, reason }, message);
    }
}

fn decide(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let Some(recovery) = &ctx.record.recovery else {
        let decision = judge::judge(ctx, gates, turn);
        // A slot just condemned as missing is created in the same turn.
        return match ctx.record.recovery.as_ref().map(|r| r.phase()) {
            Some(Phase::Gone) => replace::gone(ctx, gates, turn),
            _ => decision,
        };
    };
    match recovery.phase() {
        Phase::Deleting => replace::deleting(ctx, turn),
        Phase::Gone => replace::gone(ctx, gates, turn),
        Phase::Creating => {
            let decision = replace::creating(ctx, turn);
            // A replacement that is there is judged like any other node: preempted at birth, stuck
            // in CREATING.
            match ctx.record.incarnation {
                Some(_) => replace::judge_replacement(ctx, gates, turn, decision),
                None => decision,
            }
        }
        Phase::Condemned => judge::judge(ctx, gates, turn),
        Phase::Ready | Phase::Booted | Phase::Launched => {
            let decision = replace::awaited(ctx, recovery);
            replace::judge_replacement(ctx, gates, turn, decision)
        }
    }
}

/// Healthy slots are skipped: their decision cannot have changed, so the input of one slot costs
/// next to nothing for the rest.
fn is_at_ease(record: &SlotRecord) -> bool {
    record.at_ease && record.is_well()
}

/// Whether a slot waits for capacity: its pool says when it is tried next, not the recovery.
fn is_short(record: &SlotRecord, hold: Option<HoldReason>) -> bool {
    let refused = record.recovery.as_ref().filter(|r| r.phase() == Phase::Gone);
    let class = refused.and_then(|recovery| recovery.refusal.as_ref()).map(|(class, _)| class);
    hold == Some(HoldReason::Backoff) && class.is_some_and(|class| class.is_shortage())
}

/// Whether a hold may last for ever: it must not keep the rest of the fleet waiting.
fn is_open_ended(hold: Option<HoldReason>) -> bool {
    !matches!(
        hold,
        None | Some(HoldReason::Backoff | HoldReason::CreateLimit | HoldReason::Unclear)
    )
}
