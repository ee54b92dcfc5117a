//! Assertions about the fleet between two steps, whatever came in: in debug builds, which the tests
//! and the simulation are, of the slots that a step writes, and after each poll of all. A fleet that
//! was read from a damaged journal may be unsound; a step never makes it so.

use crate::model::action::{Action, Effect, Record};
use crate::model::fleet::{Fleet, Memory, Pending};
use crate::model::phase::Phase;
use crate::model::slot::SlotRecord;
use crate::model::step::Call;

/// Looks at every slot: the first of which something is not true, and what.
pub fn check(fleet: &Fleet) -> Result<(), String> {
    records(fleet)?;
    let others = || format!("not the records of those configured: {:?}", fleet.slots.keys());
    fleet.settings.slots.keys().eq(fleet.slots.keys()).then_some(()).ok_or_else(others)
}

/// As [`check`], while the config may be another one than that of the records.
pub fn records(fleet: &Fleet) -> Result<(), String> {
    fleet.slots.iter().try_for_each(|(name, record)| one(fleet, name, record))
}

/// Looks at what a step wants to write and to do: its records, and that each mutation rests on a
/// record of the same commit that intends it (S11).
pub fn commits(fleet: &Fleet, effects: &[Effect]) -> Result<(), String> {
    for effect in effects {
        let Effect::Commit { records, then, .. } = effect else { continue };
        for record in records {
            if let Record::Slot(slot) = record
                && let Some(record) = fleet.slots.get(&slot.name)
            {
                one(fleet, &slot.name, record)?;
            }
        }
        let intended = |action: &&Action| records.iter().any(|record| record.intends(action));
        if let Some(action) = then.iter().find(|action| !intended(action)) {
            return Err(format!("nothing intends {action:?}: {records:?}"));
        }
    }
    Ok(())
}

fn one(fleet: &Fleet, name: &str, record: &SlotRecord) -> Result<(), String> {
    let unsound = |what: &str| Err(format!("{name}: {what}: {:?}", record.recovery));
    match fleet.memory.get(name) {
        Some(memory) if name == record.name => slot(record, memory).or_else(unsound),
        _ => unsound("nothing is remembered of it, or its record has another name"),
    }
}

fn slot(record: &SlotRecord, memory: &Memory) -> Result<(), &'static str> {
    let rule = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
    if let Some(suspicion) = &record.suspicion {
        let sick = suspicion.seen.iter().all(|condition| condition.is_sick());
        let founded = suspicion.reads > 0 && !suspicion.seen.is_empty() && sick;
        rule(founded, "it is suspected of nothing, or of what is no sickness")?;
    }
    let Some(recovery) = &record.recovery else { return Ok(()) };
    let is_there = record.incarnation.is_some();
    match recovery.phase() {
        Phase::Condemned => Ok(()),
        Phase::Deleting => {
            rule(recovery.condemned.is_some(), "it is deleted, and no incarnation is named")
        }
        Phase::Gone => rule(!is_there, "it is gone, and is there"),
        Phase::Creating => rule(recovery.order.is_some(), "it is created without a run order"),
        Phase::Ready | Phase::Booted | Phase::Launched => {
            rule(is_there, "its replacement is nowhere")
        }
    }?;
    let ahead = record.asked_ahead().is_some_and(|ahead| ahead.call == Some(Call::Intended));
    let calls = ahead
        || record.job.relaunch.is_some()
        || record.job.amendment.is_some()
        || matches!(recovery.phase(), Phase::Deleting | Phase::Creating);
    let calling = memory.pending.contains(&Pending::Call);
    rule(!calling || calls, "a call is under way in no phase of one")
}
