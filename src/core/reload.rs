//! A config, at start or again: slots that are new, are back, or have left.
//!
//! A slot that leaves ends what is owed to it: nothing is created that is no longer wanted. Its
//! specification, attempts, recorded checkpoint and pause are kept for 30 days, since the config
//! without it may be a mistake; it counts again when the slot is back.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Verdict};
use crate::model::filling::Filling;
use crate::model::fleet::{Fleet, Memory};
use crate::model::lease::Leader;
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::time::elapsed;

use super::turn::Turn;
use super::{ahead, called_off, diagnose, learning, takeover};

/// A slot that left the config is remembered for this long.
const KEPT_FOR: Duration = Duration::from_secs(30 * 86_400);

/// Applies a config.
pub fn configured(fleet: &mut Fleet, settings: Settings, turn: &mut Turn) {
    takeover::named(fleet, &settings);
    let inherited = takeover::inherited(fleet, &settings);
    fleet.settings = settings.filled(&fleet.slots).filled(&fleet.left);
    for (name, (_, by)) in &inherited {
        if let Some(slot) = fleet.settings.slots.get_mut(name) {
            slot.filling = Filling::QueuedResource(by.id.clone());
        }
    }
    fleet.forget_decisions();
    ahead::forget_calls(fleet);
    fleet.slots.values_mut().for_each(diagnose::keep_a_former_hold);
    lead(fleet, turn);
    for (name, slot) in &fleet.settings.slots {
        match fleet.slots.get_mut(name) {
            None => {
                let zone = slot.zones.first().map_or("", String::as_str);
                let record = match fleet.left.remove(name) {
                    Some(record) => back(record, slot, turn),
                    None => {
                        let mut record = SlotRecord::new(name, zone, turn.now);
                        let pause = fleet.ledger.left_paused.remove(name);
                        fleet.dirty_ledger |= pause.is_some();
                        record.paused = pause.filter(|pause| pause.holds(turn.now));
                        if let Some((zone, by)) = inherited.get(name) {
                            (record.zone, record.filled_by) = (zone.clone(), Some(by.clone()));
                        }
                        record
                    }
                };
                fleet.slots.insert(name.clone(), record);
                fleet.memory.entry(name.clone()).or_default();
            }
            Some(record) => {
                let idle = record.incarnation.is_none() && record.recovery.is_none();
                if idle
                    && !record.traits().is_sought_everywhere
                    && !slot.zones.contains(&record.zone)
                {
                    record.zone = slot.zones.first().cloned().unwrap_or_default();
                }
            }
        }
        fleet.dirty.insert(name.clone());
    }
    let names: Vec<String> = fleet.slots.keys().cloned().collect();
    for name in names {
        called_off::filled_otherwise(fleet, &name, turn);
        described(fleet, &name);
    }
    let wanted = &fleet.settings.slots;
    let gone: Vec<String> =
        fleet.slots.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
    for name in gone {
        leave(fleet, name, turn);
    }
    forget_old(fleet, turn);
}

/// The config may describe a training job otherwise, and mean its end otherwise.
fn described(fleet: &mut Fleet, name: &str) {
    let (Some(record), Some(slot)) = (fleet.slots.get_mut(name), fleet.settings.slots.get(name))
    else {
        return;
    };
    if record.spec.is_some() && learning::described(record, slot, &fleet.settings.owner) {
        fleet.dirty_specs.insert(name.to_owned());
    }
    if let Some(memory) = fleet.memory.get_mut(name) {
        memory.ended = None;
    }
}

/// Since when the process that decides has done so.
fn lead(fleet: &mut Fleet, turn: &Turn) {
    let (holder, leader) = (&fleet.settings.decided_by, &mut fleet.ledger.leader);
    let same = leader.take_if(|leader| leader.holder == *holder);
    let since = same.as_ref().map_or(turn.now, |leader| leader.since);
    let config = fleet.settings.digest.clone();
    let present = Leader { holder: holder.clone(), since, config };
    fleet.dirty_ledger |= same.as_ref() != Some(&present);
    *leader = Some(present);
}

/// A slot is in the config again, with what was known of it.
fn back(mut record: SlotRecord, slot: &SlotSettings, turn: &mut Turn) -> SlotRecord {
    record.left_at = None;
    record.verdict = Verdict::new(Condition::Unclear, "not read yet");
    record.since = turn.now;
    if !slot.zones.contains(&record.zone) && !record.traits().is_sought_everywhere {
        record.zone = slot.zones.first().cloned().unwrap_or_default();
        (record.incarnation, record.ready_since) = (None, None);
    }
    record
}

/// A slot is not in the config any longer: what is owed to it ends.
fn leave(fleet: &mut Fleet, name: String, turn: &mut Turn) {
    let ended = called_off::call_off(fleet, &name, "it was taken out of the config", false, turn);
    let Some(mut record) = fleet.slots.remove(&name) else { return };
    fleet.memory.remove(&name);
    let waits = record.incarnation.as_ref().filter(|_| record.queued_since().is_some());
    turn.note(match (ended, waits) {
        (Some(ended), _) => format!("{name} is not in the config: {ended}"),
        (None, None) => format!("{name} is not in the config: it is not watched from now on"),
        // It was adopted, or asked for under another name of the slot: it is not withdrawn.
        (None, Some(request)) => format!(
            "{name} is not in the config: its queued resource {request} waits on unwatched, and may be granted and billed: delete it unless it \
             is wanted"
        ),
    });
    if record.seen.as_ref().and_then(|seen| seen.run.as_ref()).is_some_and(|run| run.wait) {
        turn.note(format!(
            "{name}: its run order says wait, so its hosts start nothing once their job ends; to end that, put it back into the config, then \
             `resume {name}` or `release {name}`"
        ));
    }
    record.left_at = Some(turn.now);
    (record.suspicion, record.wanted) = (None, None);
    (record.job.relaunch, record.job.relaunch_by) = (None, None);
    record.job.amendment = None;
    fleet.left.insert(name.clone(), record);
    fleet.dirty.insert(name);
}

/// Drops what is known of slots that left too long ago.
pub fn forget_old(fleet: &mut Fleet, turn: &mut Turn) {
    let old = |at: Timestamp| elapsed(at, turn.now) >= KEPT_FOR;
    let names: Vec<String> = fleet
        .left
        .iter()
        .filter(|(_, record)| record.left_at.is_some_and(old))
        .map(|(name, _)| name.clone())
        .collect();
    for name in names {
        purge(fleet, &name, turn);
    }
}

/// Drops everything that is known of a slot. One that is in the config begins as if it were new.
pub fn purge(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    // A pause is an operator's order, not knowledge: it counts when the slot is back.
    let paused = fleet.left.remove(name).and_then(|record| record.paused);
    if let Some(pause) = paused.filter(|pause| pause.holds(turn.now)) {
        fleet.ledger.left_paused.insert(name.to_owned(), pause);
        fleet.dirty_ledger = true;
    }
    turn.remove(name.to_owned());
    if let Some(record) = fleet.slots.get_mut(name) {
        let fresh = SlotRecord::new(name, &record.zone, turn.now);
        let old = std::mem::replace(record, fresh);
        (record.paused, record.incarnation) = (old.paused, old.incarnation);
        (record.ours, record.seen) = (old.ours, old.seen);
        // A request that it takes up once more is still one that may be called off.
        record.request = old.request;
        (record.ahead, record.filled_by) = (old.ahead, old.filled_by);
        record.submitted_at = old.submitted_at;
        // A delete of ours that is under way is no other client's.
        (record.deleting, record.own_delete) = (old.deleting, old.own_delete);
        record.unanswered_delete = old.unanswered_delete;
        // A generation is never used twice: an old create that comes late must not pass for a new one.
        record.job.generation = old.job.generation;
        fleet.memory.insert(name.to_owned(), Memory::default());
        fleet.dirty.insert(name.to_owned());
    }
}
