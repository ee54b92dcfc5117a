//! The request that was asked for ahead takes its slot over (`ahead`): when the former one is removed and a create is due, when one
//! that was left behind was granted too early, and when its slot gets another name.
//!
//! The slot is filled by the new id from then on (`Settings::filled`), and waits in the queue without a recovery. Its generation
//! goes beyond that of the request's order, so that the machines count as ones that came up with an old order.
//!
//! Example: `qr` is gone at 12:01, and `a` owes a create. `qr-next` waits since 11:00: `a` is filled by it, and no create is sent.

use std::collections::BTreeMap;

use crate::model::ahead::{Ahead, FilledBy, next_id};
use crate::model::condition::{Condition, Verdict};
use crate::model::event::{CallResult, What};
use crate::model::filling::Filling;
use crate::model::fleet::{Fleet, Pending, Stray};
use crate::model::ids::RunOrder;
use crate::model::phase::Phase;
use crate::model::queued::RequestState;
use crate::model::settings::{JobSettings, Settings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::step::Call;

use super::ahead::{TAKEN_UP_BEFORE, tell};
use super::turn::Turn;
use super::{diagnose, ending};

/// The slots that owe a create, and for which a request waits already, go on with that one.
pub fn hand_over(fleet: &mut Fleet, turn: &mut Turn) {
    taken_back(fleet, turn);
    let due = |record: &&SlotRecord| {
        let owes =
            record.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Gone && !r.no_create);
        let soon = |ahead: &Ahead| ahead.is_awaited(turn.now, TAKEN_UP_BEFORE);
        owes && !record.forgotten && record.asked_ahead().is_some_and(soon)
    };
    let names: Vec<String> =
        fleet.slots.values().filter(due).map(|record| record.name.clone()).collect();
    for name in names {
        let calls = |fleet: &Fleet| {
            let memory = fleet.memory.get(&name);
            memory.is_some_and(|memory| memory.pending.contains(&Pending::Call))
        };
        if fleet.settings.dry_run || calls(fleet) {
            continue;
        }
        take_up(fleet, &name, turn);
    }
}

fn take_up(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    let (Some(record), Some(slot)) =
        (fleet.slots.get_mut(name), fleet.settings.slots.get_mut(name))
    else {
        return;
    };
    let job = slot.job.as_ref().map(JobSettings::key);
    if diagnose::finished(record, slot) || ending::holds_recreate(record, job).is_some() {
        return;
    }
    let (Some(ahead), Some(recovery)) = (record.ahead.take(), record.recovery.take()) else {
        return;
    };
    let why = format!(
        "queued resource {}, asked for at {:.0}, takes the place of {}, which is gone",
        ahead.id,
        ahead.asked_at,
        slot.filling.id()
    );
    if ahead.call != Some(Call::Observed) {
        let text = format!(
            "create of {} ahead: no list shows it yet; it is looked for as the slot's own from now on",
            ahead.id
        );
        tell(record, CallResult::CalledOff, text, turn);
    }
    let former = record.filled_by.take().map(|by| by.of);
    let of = former.unwrap_or_else(|| slot.filling.id().to_owned());
    if let (Some(zone), Some(request)) = (recovery.lost_in, record.request.take()) {
        // A create of the former id that was lost may arrive late.
        let why = format!("its create was lost before {} took its place", ahead.id);
        let key = Stray::key(&zone, name);
        let stray = Stray::followed(zone, name.to_owned(), why, turn.now);
        let stray = Stray { request: Some(request), ..stray };
        fleet.ledger.strays.entry(key).or_insert(stray);
        fleet.dirty_ledger = true;
    }
    slot.filling = Filling::QueuedResource(ahead.id.clone());
    let policy = record.spec.as_ref().and_then(NodeSpec::policy).cloned();
    record.zone = ahead.zone;
    record.request = Some(ahead.id.clone());
    record.filled_by = Some(FilledBy { id: ahead.id, of, policy });
    if record.job.ordered != ahead.ordered {
        // How far another job came says nothing about this one.
        record.job.runs.best_step = None;
    }
    (record.job.ordered, record.job.step) = (ahead.ordered, None);
    // Its order is older than any from now on: one from the newest checkpoint follows.
    record.job.generation = record.job.generation.max(ahead.order.generation) + 1;
    (record.incarnation, record.seen, record.suspicion) = (None, None, None);
    (record.ours, record.since) = (true, turn.now);
    record.verdict = Verdict::new(Condition::Waiting, "asked for ahead, and not read yet");
    // Reads that are under way are of the former one.
    record.mutated_at = Some(turn.now);
    turn.tell(record, What::Withdrawn { cause: recovery.cause }, why);
    if let Some(memory) = fleet.memory.get_mut(name) {
        (memory.shown, memory.confirmed, memory.absence_confirmed) = (None, None, false);
    }
    fleet.dirty.insert(name.to_owned());
}

/// A request that was left behind, and was granted before it could be withdrawn, is taken up by its slot, which would wait for
/// its end.
fn taken_back(fleet: &mut Fleet, turn: &mut Turn) {
    let granted = [RequestState::Active.as_str(), RequestState::Provisioning.as_str()];
    let strays = fleet.ledger.strays.iter().filter(|(_, stray)| {
        let state = stray.state.as_deref().unwrap_or_default();
        granted.contains(&state) && !stray.is_being_removed()
    });
    let of = |(key, stray): (&String, &Stray)| Some((key.clone(), stray.slot.clone()?));
    for (key, name) in strays.filter_map(of).collect::<Vec<_>>() {
        let (Some(record), Some(slot)) =
            (fleet.slots.get_mut(&name), fleet.settings.slots.get(&name))
        else {
            continue;
        };
        let Some(stray) = fleet.ledger.strays.get(&key) else { continue };
        let owes =
            record.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Gone && !r.no_create);
        let fits = stray.request.as_ref() == Some(&next_id(slot.filling.id()));
        let here = stray.zone == record.zone && slot.zones.contains(&stray.zone);
        let seen = stray.state.clone().zip(stray.incarnation.clone());
        if !(owes && fits && here && seen.is_some()) || record.forgotten {
            continue;
        }
        let order = RunOrder { generation: record.job.generation + 1, ..RunOrder::default() };
        record.ahead = Some(Ahead {
            id: stray.name.clone(),
            zone: stray.zone.clone(),
            from: turn.now,
            asked_at: stray.since,
            order,
            ordered: record.job.ordered.clone(),
            call: Some(Call::Observed),
            seen,
            unseen: None,
            told: false,
        });
        fleet.ledger.strays.remove(&key);
        fleet.dirty_ledger = true;
    }
}

/// The config may name the queued resource that fills a slot by now: what comes after it is in its place, too.
pub fn named(fleet: &mut Fleet, settings: &Settings) {
    for (name, slot) in &settings.slots {
        let record = fleet.slots.get_mut(name).or_else(|| fleet.left.get_mut(name));
        let by = record.and_then(|record| record.filled_by.as_mut());
        if let Some(by) = by.filter(|by| by.id == slot.filling.id()) {
            by.of.clone_from(&by.id);
        }
    }
}

/// By slots that are new by their name: what fills the queued resource that their config names, where the slot of that is
/// not in the config any longer. It was renamed.
pub fn inherited(fleet: &Fleet, settings: &Settings) -> BTreeMap<String, (String, FilledBy)> {
    let new = settings
        .slots
        .iter()
        .filter(|(name, _)| !fleet.slots.contains_key(*name) && !fleet.left.contains_key(*name));
    let former = |slot: &SlotSettings| {
        fleet.slots.values().chain(fleet.left.values()).find_map(|record| {
            let by = record.filled_by.as_ref().filter(|by| by.of == slot.filling.id())?;
            let left = !settings.slots.contains_key(&record.name) && record.incarnation.is_some();
            let fits = left && slot.zones.contains(&record.zone);
            fits.then(|| (record.zone.clone(), by.clone()))
        })
    };
    new.filter_map(|(name, slot)| Some((name.clone(), former(slot)?))).collect()
}
