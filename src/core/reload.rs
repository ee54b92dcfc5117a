//! A config, at start or again: slots that are new, gone, or gone while a create is pending.

use crate::model::fleet::Fleet;
use crate::model::settings::{Policy, Settings, SlotSettings};
use crate::model::slot::SlotRecord;

use super::settle::drop_slot;
use super::turn::Turn;

/// Applies a config.
pub fn configured(fleet: &mut Fleet, settings: Settings, turn: &mut Turn) {
    let mut before = std::mem::replace(&mut fleet.settings, settings);
    fleet.forget_decisions();
    let kept = fleet.ledger.left_paused.len();
    fleet.ledger.left_paused.retain(|_, pause| pause.until.is_none_or(|until| until > turn.now));
    fleet.dirty_ledger |= fleet.ledger.left_paused.len() != kept;
    for (name, slot) in &fleet.settings.slots {
        match fleet.slots.get_mut(name) {
            None => {
                let zone = slot.zones.first().map_or("", String::as_str);
                let mut record = SlotRecord::new(name, zone, turn.now);
                record.paused = fleet.ledger.left_paused.remove(name);
                fleet.dirty_ledger |= record.paused.is_some();
                fleet.slots.insert(name.clone(), record);
                fleet.memory.entry(name.clone()).or_default();
            }
            Some(record) => {
                record.leaving = false;
                let idle = record.incarnation.is_none() && record.recovery.is_none();
                if idle && !slot.zones.contains(&record.zone) {
                    record.zone = slot.zones.first().cloned().unwrap_or_default();
                }
            }
        }
        fleet.dirty.insert(name.clone());
    }
    let gone: Vec<String> = fleet
        .slots
        .keys()
        .filter(|name| !fleet.settings.slots.contains_key(*name))
        .cloned()
        .collect();
    for name in gone {
        let Some(record) = fleet.slots.get_mut(&name) else { continue };
        if record.recovery.as_ref().is_some_and(|r| r.owes_create()) {
            turn.note(format!(
                "{name} was taken out of the config while a create is owed: it is finished first"
            ));
            record.leaving = true;
            // It is created as it was configured last.
            let slot = before.slots.remove(&name).unwrap_or_else(|| journaled(record));
            fleet.settings.slots.insert(name.clone(), slot);
            fleet.dirty.insert(name);
        } else {
            turn.note(format!(
                "{name} is not in the config any more: it is not watched from now on"
            ));
            drop_slot(fleet, name, turn);
        }
    }
}

/// A slot of which nothing is known but what is journaled.
fn journaled(record: &SlotRecord) -> SlotSettings {
    let owed = record.owed.as_deref().cloned().unwrap_or_default();
    SlotSettings {
        name: record.name.clone(),
        zones: if owed.zones.is_empty() { vec![record.zone.clone()] } else { owed.zones },
        create: owed.create,
        job: owed.job,
        policy: Policy::default(),
        supervisor: owed.supervisor,
    }
}
