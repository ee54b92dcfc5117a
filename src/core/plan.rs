//! Decides about every slot: recoveries go on, the rest is judged. No choice is left to the shell.

use std::time::Duration;

use crate::model::event::{Reason, What};
use crate::model::fleet::Fleet;
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::{Owed, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::time::elapsed;
use crate::model::view::{ActionName, Decision};

use super::budget::{self, Budget, CREATE_WINDOW};
use super::check::Checker;
use super::ctx::SlotCtx;
use super::gates::Gate;
use super::turn::Turn;
use super::{judge, reads, replace, settle};

/// What `max_judged_recreates_per_hour` counts.
const HOUR: Duration = Duration::from_secs(3600);

/// A slot that is decided about, with its place among all: reads are staggered by it.
type Awake = (u64, String);

/// Decides about every slot, in the order of their names.
pub fn plan(fleet: &mut Fleet, gates: &[Gate], turn: &mut Turn) {
    let (mut budget, awake) = prepare(fleet, turn);
    let mut checker = Checker::new(fleet);
    for (_, name) in &awake {
        let suspected = |ctx: &SlotCtx| {
            !ctx.record.leaving && ctx.record.suspicion.is_some() && !is_at_ease(ctx.record)
        };
        if let Some(mut ctx) =
            context(fleet, name, &mut budget, &mut checker, turn).filter(suspected)
        {
            judge::count(&mut ctx, turn);
        }
    }
    let mut removed = Vec::new();
    for (index, name) in awake {
        let Some(mut ctx) = context(fleet, &name, &mut budget, &mut checker, turn) else {
            continue;
        };
        let (slot, polls) = (ctx.slot, ctx.polls);
        if is_at_ease(ctx.record) {
            reads::stagger(ctx.record, ctx.memory, slot, polls, index, turn);
        } else if ctx.record.leaving
            && ctx.record.recovery.as_ref().is_none_or(|r| !r.owes_create())
        {
            removed.push(name);
        } else if one(&mut ctx, gates, index, turn) {
            fleet.dirty.insert(name);
        }
    }
    for name in removed {
        settle::drop_slot(fleet, name, turn);
    }
    fleet.dirty_ledger |= budget.ledger_changed;
}

/// The budgets as they stand, and the slots that need a decision.
fn prepare(fleet: &mut Fleet, turn: &Turn) -> (Budget, Vec<Awake>) {
    let (now, ledger) = (turn.now, &mut fleet.ledger);
    let before = ledger.judged.len() + ledger.creates.len();
    ledger.judged.retain(|at| elapsed(*at, now) < HOUR);
    ledger.creates.retain(|at| elapsed(*at, now) < CREATE_WINDOW);
    let ledger_changed = before != ledger.judged.len() + ledger.creates.len();
    let mut budget =
        Budget { unavailable: 0, max_unavailable: 0, desired: 0, on_their_way: 0, ledger_changed };
    let looks = turn.polled
        && fleet
            .settings
            .slots
            .values()
            .any(|slot| slot.job.is_some() || slot.supervisor.is_some());
    let mut awake = Vec::new();
    for (index, (name, record)) in (0..).zip(&fleet.slots) {
        budget.desired += usize::from(!record.leaving);
        if record.recovery.is_some() {
            budget.unavailable += usize::from(budget::is_unavailable(record));
            budget.on_their_way +=
                usize::from(budget::on_its_way(record, &fleet.memory, name, now));
        }
        if looks || !is_at_ease(record) {
            awake.push((index, name.clone()));
        }
    }
    budget.max_unavailable = fleet.settings.max_unavailable.of(budget.desired);
    (budget, awake)
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
fn one(ctx: &mut SlotCtx, gates: &[Gate], index: u64, turn: &mut Turn) -> bool {
    let counted = budget::is_unavailable(ctx.record);
    let phase = |record: &SlotRecord| record.recovery.as_ref().map(|r| (r.phase, r.call.clone()));
    let before = phase(ctx.record);
    let decision = decide(ctx, gates, turn);
    reads::stagger(ctx.record, ctx.memory, ctx.slot, ctx.polls, index, turn);
    let mut changed = false;
    if let Some(recovery) = &mut ctx.record.recovery {
        let set_apart = is_open_ended(decision.hold);
        changed = std::mem::replace(&mut recovery.set_apart, set_apart) != set_apart;
    }
    ctx.budget.unavailable += usize::from(!counted && budget::is_unavailable(ctx.record));
    changed |= keep(ctx.record, ctx.slot);
    changed |= before != phase(ctx.record);
    tell(ctx, &decision, turn);
    ctx.record.at_ease =
        ctx.record.is_well() && decision.action == ActionName::None && decision.hold.is_none();
    ctx.memory.decision = Some(decision);
    changed
}

/// One line for each new decision, not for each poll that repeats it.
fn tell(ctx: &mut SlotCtx, decision: &Decision, turn: &mut Turn) {
    let told = (decision.action.name(), decision.hold.map_or("", HoldReason::name));
    if ctx.polls > 0
        && ctx.memory.told.replace(told) != Some(told)
        && decision.action != ActionName::None
    {
        let until = decision.until.map_or(String::new(), |at| format!(" (until {at:.0})"));
        let message = format!("{}: {}{until}", told.0, decision.reason);
        let reason = decision.hold.map_or(Reason::Condition(ctx.condition()), Reason::Hold);
        turn.tell(ctx.record, What::Decision { action: decision.action, reason }, message);
    }
}

fn decide(ctx: &mut SlotCtx, gates: &[Gate], turn: &mut Turn) -> Decision {
    let Some(recovery) = &ctx.record.recovery else {
        let decision = judge::judge(ctx, gates, turn);
        // What was just condemned as missing is created in the same turn.
        return match ctx.record.recovery.as_ref().map(|r| r.phase) {
            Some(Phase::Gone) => replace::gone(ctx, gates, turn),
            _ => decision,
        };
    };
    match recovery.phase {
        Phase::Deleting => replace::deleting(ctx, turn),
        Phase::Gone => replace::gone(ctx, gates, turn),
        Phase::Creating => {
            let decision = replace::creating(ctx, turn);
            // A replacement that is there is judged like any other node: preempted at birth, stuck
            // in CREATING.
            match ctx.record.incarnation {
                Some(_) if ctx.record.leaving => replace::leave(ctx, gates, turn, decision),
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

/// Whether a hold may last for ever: it must not keep the rest of the fleet waiting.
fn is_open_ended(hold: Option<HoldReason>) -> bool {
    !matches!(
        hold,
        None | Some(HoldReason::Backoff | HoldReason::CreateLimit | HoldReason::Unclear)
    )
}

/// Keeps with a pending create what it needs of the config. Returns whether that has changed.
fn keep(record: &mut SlotRecord, slot: &SlotSettings) -> bool {
    if !record.recovery.as_ref().is_some_and(Recovery::owes_create) {
        return record.owed.take().is_some();
    }
    let changed = !record.owed.as_ref().is_some_and(|owed| owed.is_of(slot));
    if changed {
        record.owed = Some(Box::new(Owed::of(slot)));
    }
    changed
}
