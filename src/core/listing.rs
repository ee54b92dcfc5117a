//! A finished poll: each slot's reading among the listings of all zones. A zone that was not read
//! in every part gives no reading.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::action::{Poll, Reading};
use crate::model::ahead::next_id;
use crate::model::event::What;
use crate::model::fleet::{Fleet, Memory};
use crate::model::queued::RequestView;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;
use crate::model::training::Named;
use crate::resource::training;

use super::identity::Source;
use super::listed::Listed;
use super::observe::observe;
use super::turn::Turn;
use super::{ahead, reload, remains, strays, twins};

/// Applies a poll.
pub fn polled(fleet: &mut Fleet, poll: Poll, turn: &mut Turn) {
    fleet.polls += 1;
    let read = poll.listings.iter().any(|listing| listing.result.is_ok())
        || poll.jobs.iter().any(|listing| listing.result.is_ok());
    let began = poll.began;
    let (listed, complete) = Listed::new(poll);
    let mut readings: Vec<(String, Reading)> = Vec::new();
    let lineages = lineages(fleet);
    for (name, record) in &mut fleet.slots {
        let slot = fleet.settings.slots.get(name);
        if let (Some(slot), Some(memory)) = (slot, fleet.memory.get_mut(name))
            && follow(record, memory, slot, &listed, turn)
        {
            fleet.dirty.insert(name.clone());
        }
        let mut reading = listed.reading(record, slot);
        if let Some(slot) = slot.filter(|slot| all_requests_were_read(slot, &listed)) {
            let theirs = asked_by_another(record, slot, &listed, &fleet.settings.owner);
            if record.asked_by_another != theirs {
                record.asked_by_another = theirs;
                fleet.dirty.insert(name.clone());
            }
            if let Some(why) = &record.asked_by_another
                && is_unfilled(record, slot, &listed)
            {
                reading = Reading::Unread(why.clone());
            }
        }
        let trains = slot.filter(|slot| slot.filling.traits().is_job);
        if let Some(slot) = trains
            && let Some(memory) = fleet.memory.get_mut(name)
        {
            let of = training::lineage(record.nodes());
            let shared = of.and_then(|of| lineages.get(of)).filter(|of| *of != name);
            reading = match shared {
                None => {
                    let reading = twins::masked(&fleet.ledger, reading);
                    of_training(record, memory, slot, &listed, (reading, began))
                }
                Some(other) => Reading::Unread(format!(
                    "its job is that of the slot {other}, too: take one of the two out of the config"
                )),
            };
        }
        readings.push((name.clone(), reading));
    }
    for (name, reading) in readings {
        observe(fleet, &name, reading, began, Source::List, turn);
    }
    ahead::listed(fleet, &listed, turn);
    strays::listed(fleet, &listed, turn);
    twins::listed(fleet, &listed, turn);
    remains::look(fleet, turn);
    reload::forget_old(fleet, turn);
    if complete {
        fleet.ledger.observed_at = Some(turn.now);
    }
    if complete || read {
        fleet.ledger.polled_at = Some(turn.now);
        fleet.dirty_ledger = true;
    }
}

/// The request that another watchdog, or this one before it lost its journal, made ahead of the end of a slot's capacity. A
/// create would be a second grant.
fn asked_by_another(
    record: &SlotRecord,
    slot: &SlotSettings,
    listed: &Listed,
    owner: &str,
) -> Option<String> {
    let id = Some(slot.filling.id()).filter(|id| !id.is_empty())?;
    let theirs = |next: &&RequestView| {
        next.owner.as_deref().is_some_and(|of| of != owner)
            && next.slot.as_ref() == Some(&record.name)
            && !next.state.is_over()
    };
    let next = next_id(id);
    let next = slot.zones.iter().find_map(|zone| listed.request(zone, &next).filter(theirs))?;
    Some(format!(
        "queued resource {0}, which another watchdog asked for ahead of the end of {id}, is {1} in {2}: set queued_resource = \"{0}\", then \
         `resume {3} --adopt`",
        next.id,
        next.state.as_str(),
        next.zone,
        record.name
    ))
}

/// Whether each zone of a slot tells all its requests: one list that fails says nothing of them. A slot that is filled by none has
/// none.
fn all_requests_were_read(slot: &SlotSettings, listed: &Listed) -> bool {
    let none = slot.filling.id().is_empty();
    none || slot.zones.iter().all(|zone| listed.requests_were_read(zone))
}

/// Whether a slot has never been filled, and none of its zones has its queued resource.
fn is_unfilled(record: &SlotRecord, slot: &SlotSettings, listed: &Listed) -> bool {
    let there = |zone: &String| listed.request(zone, slot.filling.id()).is_some();
    record.incarnation.is_none() && record.recovery.is_none() && !slot.zones.iter().any(there)
}

/// The first slot of each lineage of a training job: one is not for two slots to submit.
fn lineages(fleet: &Fleet) -> BTreeMap<String, String> {
    let mut lineages = BTreeMap::new();
    let jobs = fleet.slots.values().filter(|record| record.traits().is_job);
    for record in jobs {
        if let Some(of) = training::lineage(record.nodes()) {
            lineages.entry(of.to_owned()).or_insert_with(|| record.name.clone());
        }
    }
    lineages
}

/// The reading of a training job. Lists show what lives: an end that was read stays what it was.
fn of_training(
    record: &mut SlotRecord,
    memory: &mut Memory,
    slot: &SlotSettings,
    listed: &Listed,
    (reading, began): (Reading, Timestamp),
) -> Reading {
    if listed.has_no_job(record, slot) {
        memory.none_live = Some(began);
    }
    let reading = match (reading, &memory.ended) {
        (Reading::Absent, Some(ended)) => Reading::Node(Arc::clone(ended)),
        (reading, _) => reading,
    };
    if let (Reading::Node(view), None) = (&reading, &record.recovery) {
        // A job may live in any of its regions.
        record.zone.clone_from(&view.zone);
    }
    if let (Reading::Node(_), Some(Named::Id(id))) =
        (&reading, slot.filling.training().map(|of| &of.named))
    {
        record.named = Some(id.clone());
    }
    reading
}

/// The node of a slot with several zones may be in another one than last time. Returns whether it
/// was moved there by another program or an operator.
fn follow(
    record: &mut SlotRecord,
    memory: &mut Memory,
    slot: &SlotSettings,
    listed: &Listed,
    turn: &mut Turn,
) -> bool {
    if record.recovery.is_some() || slot.filling.traits().is_sought_everywhere {
        return false;
    }
    // Without a node yet it may have been created in any of them.
    if record.incarnation.is_none()
        && let Some(zone) = listed.zone_of(slot)
    {
        record.zone.clone_from(zone);
    }
    let gone = memory.absence_confirmed
        && listed.was_read(&record.zone)
        && listed.doubt(&record.zone, &slot.name).is_none()
        && !listed.fills(&record.zone, slot);
    if !gone {
        return false;
    }
    let Some(zone) = listed.zone_of(slot) else { return false };
    // A GET says that it is gone where it was: it was made where it may be, too.
    let message = format!("the node is in {zone} now, and no longer in {}", record.zone);
    turn.tell(record, What::Note, message);
    record.zone.clone_from(zone);
    (record.incarnation, record.suspicion) = (None, None);
    // That it is absent was said of where it was.
    (memory.absence_confirmed, memory.confirmed, memory.last_read) = (false, None, None);
    true
}
