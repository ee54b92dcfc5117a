//! The end of a recovery that is not wanted any longer: an operator forgets the slot, it leaves the config, or something else is
//! to fill it. A call that may have been sent is followed from then on, as a stray.

use jiff::Timestamp;

use crate::model::condition::{Condition, Verdict};
use crate::model::event::{CallResult, Verb, What};
use crate::model::filling::Filling;
use crate::model::fleet::{Fleet, Ledger, Memory, Stray};
use crate::model::phase::Phase;
use crate::model::slot::SlotRecord;
use crate::model::step::Call;
use crate::resource::training::body;

use super::ahead;
use super::moves::came_of;
use super::turn::Turn;

/// Ends what is owed to a slot. Returns what that was, in words.
///
/// A delete that is under way goes on to its end while the slot is watched, without a create.
pub fn call_off(
    fleet: &mut Fleet,
    name: &str,
    why: &str,
    watched: bool,
    turn: &mut Turn,
) -> Option<String> {
    let record = fleet.slots.get_mut(name)?;
    if ahead::leave(record, &mut fleet.ledger, why, turn) {
        fleet.dirty_ledger = true;
        fleet.dirty.insert(name.to_owned());
    }
    let waits = record.ungranted().is_some();
    let Some(recovery) = record.recovery.as_mut() else {
        // It was taken up while it waited: no recovery is under way, and it may be granted all the same.
        let former = former_slot(fleet, name);
        let asked = if waits { fleet.slots.get(name) } else { former.as_ref() }?;
        let why = match waits {
            true => why.to_owned(),
            false => format!("its slot, which was called {name} by then: {why}"),
        };
        fleet.dirty_ledger = true;
        return Some(leave_behind(asked, &why, &mut fleet.ledger, turn.now));
    };
    fleet.dirty.insert(name.to_owned());
    let (phase, cause) = (recovery.phase(), recovery.cause);
    let lost_in = recovery.lost_in.clone();
    if phase == Phase::Deleting && watched {
        recovery.no_create = true;
        return Some("its delete is under way, and no create follows".to_owned());
    }
    if phase == Phase::Deleting {
        // Should it be wanted once more, that delete is no other client's.
        record.deleting = recovery.condemned.clone().map(|of| (of, turn.now));
        let unanswered = matches!(recovery.call(), None | Some(Call::Intended | Call::Unknown));
        record.unanswered_delete = unanswered.then_some(recovery.phase_since);
    }
    let untold = phase == Phase::Deleting
        || (phase == Phase::Creating && recovery.call() != Some(&Call::Observed));
    if untold {
        let verb = if phase == Phase::Deleting { Verb::Delete } else { Verb::Create };
        came_of(record, verb, CallResult::CalledOff, &format!("{verb}: {why}"), turn);
    }
    let ended = match phase {
        // The request that was to be deleted holds quota, and may be one that still waits.
        Phase::Condemned | Phase::Deleting if waits => {
            leave_behind(record, why, &mut fleet.ledger, turn.now)
        }
        // One that was lost may arrive late, although a read showed nothing.
        Phase::Gone if lost_in.is_some() => {
            elsewhere(record, lost_in, why, &mut fleet.ledger, turn.now)
        }
        Phase::Gone => "the pending create is called off".to_owned(),
        Phase::Condemned => "its recovery is called off".to_owned(),
        Phase::Deleting => "its delete is under way, and no create follows".to_owned(),
        Phase::Creating | Phase::Ready | Phase::Booted | Phase::Launched => {
            let other = lost_in.filter(|zone| *zone != record.zone);
            if other.is_some() {
                elsewhere(record, other, why, &mut fleet.ledger, turn.now);
            }
            leave_behind(record, why, &mut fleet.ledger, turn.now)
        }
    };
    fleet.dirty_ledger = true;
    record.recovery = None;
    let message = format!("{}: {why}; {ended}", cause.name());
    turn.tell(record, What::Withdrawn { cause }, message);
    Some(ended)
}

/// The same of a create that was lost on its way to a zone.
fn elsewhere(
    record: &SlotRecord,
    zone: Option<String>,
    why: &str,
    ledger: &mut Ledger,
    now: Timestamp,
) -> String {
    let zone = zone.unwrap_or_else(|| record.zone.clone());
    let mut there = SlotRecord { zone, ..record.clone() };
    (there.incarnation, there.seen) = (None, None);
    leave_behind(&there, why, ledger, now)
}

/// The former name of a slot that was renamed while its request waited: by that name the request is ours.
fn former_slot(fleet: &Fleet, name: &str) -> Option<SlotRecord> {
    let record = fleet.slots.get(name).filter(|record| record.queued_since().is_some())?;
    let same = |left: &&SlotRecord| {
        left.ours && left.request.is_some() && left.incarnation == record.incarnation
    };
    fleet.left.values().find(same).cloned()
}

/// Ends what is owed to a slot that something else is to fill: its queued resource has another id in the
/// config, or it is none any longer.
pub fn filled_otherwise(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    let (Some(record), Some(slot)) = (fleet.slots.get(name), fleet.settings.slots.get(name)) else {
        return;
    };
    let asked = record.recovery.as_ref().is_some_and(|r| r.phase().is_asked_for());
    let same = match &record.request {
        Some(id) => id == slot.filling.id(),
        // A plain node may have been asked for: a request is seen with the names of its nodes.
        None => {
            let plain = record.seen.as_ref().is_none_or(|seen| seen.members.is_empty());
            match slot.filling {
                Filling::Node => true,
                Filling::QueuedResource(_) => !(asked && plain),
                Filling::Training(_) => true,
            }
        }
    };
    let meant = match &slot.filling {
        Filling::Training(of) => {
            let named = record.named.as_deref();
            record.spec.as_ref().is_none_or(|spec| body::fits(of, spec, named, record.nodes()))
        }
        Filling::Node | Filling::QueuedResource(_) => !record.traits().is_job,
    };
    if !meant {
        return start_over(fleet, name, turn);
    }
    // A node is younger than its request: what is known of the one would hide the other (`shows_the_past`).
    let other = record.incarnation.as_ref().is_some_and(|known| !slot.filling.has_identity(known));
    // A request that was called off is followed already.
    if !other && (same || record.forgotten) {
        return;
    }
    let why = format!("the config has it as {} now", slot.filling.path(name));
    let told = call_off(fleet, name, &why, false, turn);
    let Some(record) = fleet.slots.get_mut(name) else { return };
    // The former TPU is followed whichever way its recovery ended: it may live.
    let followed = fleet.ledger.strays.contains_key(&Stray::key(&record.zone, name));
    let left = !followed && record.ours && record.incarnation.is_some();
    let left = left.then(|| leave_behind(record, &why, &mut fleet.ledger, turn.now));
    let told = left.or(told);
    if let Some(told) = told {
        turn.note(format!("{name}: {why}; {told}"));
    }
    (record.request, record.incarnation, record.ready_since) = (None, None, None);
    record.filled_by = None;
    (record.ours, record.suspicion, record.wanted) = (false, None, None);
    record.verdict = Verdict::new(Condition::Unclear, "not read yet");
    if other {
        record.seen = None;
    }
    fleet.dirty_ledger = true;
    fleet.dirty.insert(name.to_owned());
}

/// The config means another training job by a slot, or another kind of thing: nothing that is known of the former
/// one holds. A TPU is followed as a stray, a job is its people's.
fn start_over(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    let (Some(record), Some(slot)) = (fleet.slots.get(name), fleet.settings.slots.get(name)) else {
        return;
    };
    let (why, zone) =
        (format!("the config has it as {} now", slot.filling.path(name)), slot.zones.first());
    let zone = zone.unwrap_or(&record.zone).clone();
    let left = record.ours && record.incarnation.is_some() && !record.traits().is_its_peoples;
    if left {
        let record = record.clone();
        leave_behind(&record, &why, &mut fleet.ledger, turn.now);
        fleet.dirty_ledger = true;
    }
    if let Some(told) = call_off(fleet, name, &why, false, turn) {
        turn.note(format!("{name}: {why}; {told}"));
    }
    if let Some(record) = fleet.slots.get_mut(name) {
        let fresh = SlotRecord::new(name, &zone, turn.now);
        let old = std::mem::replace(record, fresh);
        (record.paused, record.submitted_at) = (old.paused, old.submitted_at);
        // A generation is never used twice.
        record.job.generation = old.job.generation;
    }
    fleet.memory.insert(name.to_owned(), Memory::default());
    fleet.dirty.insert(name.to_owned());
}

/// A slot leaves behind a stray that was asked for and is not wanted any longer. Returns its fate, in
/// words.
pub fn leave_behind(record: &SlotRecord, why: &str, ledger: &mut Ledger, now: Timestamp) -> String {
    if record.traits().is_its_peoples {
        return "its submission may have been sent; a job that it makes runs until it is cancelled"
            .to_owned();
    }
    let incarnation = record.incarnation.clone();
    let state = record.seen.as_ref().map(|seen| seen.state.clone());
    let why = format!("its create had been sent when it was called off: {why}");
    let stray = Stray {
        state: state.filter(|_| incarnation.is_some()),
        incarnation,
        request: record.request.clone(),
        ..Stray::followed(record.zone.clone(), record.name.clone(), why, now)
    };
    let fate = match &stray.request {
        Some(id) => format!(
            "its queued resource {id} in {} is deleted if it still waits; if it was granted, it is reported as a stray",
            stray.zone
        ),
        None => "its create may have been sent and can't be cancelled; a node that it makes is reported as a stray".to_owned(),
    };
    ledger.strays.insert(Stray::key(&stray.zone, &stray.name), stray);
    fate
}
