//! Assertions about the fleet between two steps, whatever came in: in debug builds, which the tests
//! and the simulation are, of the slots that a step writes, and after each poll of all. A fleet that
//! was read from a damaged journal may be unsound; a step never makes it so.

use crate::model::action::{Action, Effect, Record};
use crate::model::fleet::{Fleet, Memory, Pending};
use crate::model::phase::Phase;
use crate::model::slot::SlotRecord;

/// Looks at every slot.
///
/// # Errors
/// The first slot of which something is not true, and what.
pub fn check(fleet: &Fleet) -> Result<(), String> {
    records(fleet)?;
    let (wanted, watched) = (&fleet.settings.slots, &fleet.slots);
    let missing = wanted.keys().find(|name| !watched.contains_key(*name));
    match missing.or_else(|| watched.keys().find(|name| !wanted.contains_key(*name))) {
        Some(name) => Err(format!(
            "{name}: it is configured without a record, or has one and is not configured"
        )),
        None => Ok(()),
    }
}

/// As [`check`], while the config may be another one than that of the records.
///
/// # Errors
/// As [`check`].
pub fn records(fleet: &Fleet) -> Result<(), String> {
    fleet.slots.iter().try_for_each(|(name, record)| one(fleet, name, record))
}

/// Looks at the slots whose records a step wants to write.
///
/// # Errors
/// As [`check`].
pub fn touched(fleet: &Fleet, effects: &[Effect]) -> Result<(), String> {
    let commits = effects.iter().filter_map(|effect| match effect {
        Effect::Commit { records, .. } => Some(records),
        Effect::Look(_) => None,
    });
    let names = commits.flatten().filter_map(|record| match record {
        Record::Slot(slot) => fleet.slots.get_key_value(&slot.name),
        _ => None,
    });
    names.into_iter().try_for_each(|(name, record)| one(fleet, name, record))
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
        rule(suspicion.reads > 0 && !suspicion.seen.is_empty(), "it is suspected of nothing")?;
        rule(
            suspicion.seen.iter().all(|condition| condition.is_sick()),
            "it is suspected of what is no sickness",
        )?;
    }
    let calling = memory.pending.contains(&Pending::Call);
    let Some(recovery) = &record.recovery else { return Ok(()) };
    let has_call = recovery.call.is_some();
    match recovery.phase {
        Phase::Condemned => rule(!has_call, "it has a call before its delete"),
        Phase::Deleting => {
            rule(recovery.condemned.is_some(), "it is deleted, and no incarnation is named")
        }
        Phase::Gone => rule(
            record.incarnation.is_none() && !has_call,
            "it is gone, and is there or has a call",
        ),
        Phase::Creating => rule(recovery.order.is_some(), "it is created without a run order"),
        Phase::Ready | Phase::Booted | Phase::Launched => {
            rule(record.incarnation.is_some(), "its replacement is nowhere")
        }
    }?;
    let orders = record.job.relaunch.is_some() || record.job.amendment.is_some();
    rule(
        !calling || orders || matches!(recovery.phase, Phase::Deleting | Phase::Creating),
        "a call is under way in no phase of one",
    )
}

/// Looks at what a step wants to do: each mutation rests on a record of the same commit that
/// intends it (S11).
///
/// # Errors
/// The mutation that none intends.
pub fn intends(effects: &[Effect]) -> Result<(), String> {
    for effect in effects {
        let Effect::Commit { records, then, .. } = effect else { continue };
        let intended = |action: &&Action| records.iter().any(|record| record.intends(action));
        if let Some(action) = then.iter().find(|action| !intended(action)) {
            return Err(format!("nothing intends {action:?}: {records:?}"));
        }
    }
    Ok(())
}
