//! Strays (S21): what was asked for and no slot owns. A create that was called off may be carried
//! out all the same; a zone that was left may show a node late.
//!
//! Each is followed in the listings until it is gone, or a slot takes it up, and is told meanwhile
//! in status, metrics and an alert. A stray that lives is never deleted: its job may be at work; one
//! that can't run is removed where the config says so (`remains`). What was expected and never came
//! is dropped when a create can no longer succeed.
//!
//! Example: `a` was taken out of the config while its create was running. The node comes up at
//! 10:20: from then on "stray a in us-central2-b: READY" is told, until an operator deletes it, or
//! puts `a` back into the config, which takes it up.

use std::sync::Arc;
use std::time::Duration;

use crate::model::action::Reading;
use crate::model::ahead::next_id;
use crate::model::event::What;
use crate::model::fleet::{Fleet, Stray};
use crate::model::node::NodeView;
use crate::model::phase::Phase;
use crate::model::queued::{RequestState, RequestView};
use crate::model::step::Call;
use crate::model::time::elapsed;

use super::listed::Listed;
use super::moves::{advance, set_call};
use super::turn::Turn;
use super::{idle, remains};

/// A create that no listing has shown for so long will not come.
const EXPECTED_FOR: Duration = Duration::from_secs(3 * 3600);
/// Strays that one poll tells to wait: the API's quota is everybody's.
const TOLD_IN_A_POLL: usize = 50;

/// Looks for strays among what a poll has listed.
pub fn listed(fleet: &mut Fleet, listed: &Listed, turn: &mut Turn) {
    // The request of a node that is listed with it tells what becomes of both.
    late_requests(fleet, listed, turn);
    let mut told = 0;
    for view in listed.views() {
        let Some(why) = ownerless(fleet, view) else { continue };
        let key = Stray::key(&view.zone, &view.node);
        // The request tells what becomes of its nodes.
        let known = fleet.ledger.strays.get(&key);
        if known.is_none_or(|stray| stray.request.is_none()) {
            show(fleet, view, why, turn);
            told += usize::from(told < TOLD_IN_A_POLL && idle::order(fleet, &key, view, turn));
        }
    }
    let strays = fleet.ledger.strays.iter().filter(|(_, stray)| stray.twin.is_none());
    let keys: Vec<String> = strays.map(|(key, _)| key.clone()).collect();
    for key in keys {
        let Some(stray) = fleet.ledger.strays.get(&key) else { continue };
        let shown = listed.node(&stray.zone, &stray.name);
        let request = stray.request.as_deref().map(|id| listed.request(&stray.zone, id));
        let (asked, filling) = (request.flatten(), stray.filling());
        if let Some(request) = asked.filter(|request| is_taken_back(fleet, &key, request)) {
            take_back(fleet, &key, request, turn);
            continue;
        }
        let Some(stray) = fleet.ledger.strays.get(&key) else { continue };
        let slot = stray.slot(&fleet.settings).and_then(|name| fleet.slots.get(name));
        let owned = slot.is_some_and(|record| {
            record.zone == stray.zone
                && !record.forgotten
                && (record.recovery.is_none() || record.incarnation.is_some())
                && (shown.is_some() || asked.is_some())
        });
        let gone = shown.is_none()
            && asked.is_none()
            && (stray.request.is_none() || listed.requests_were_read(&stray.zone))
            && listed.was_read(&stray.zone)
            && listed.doubt(&stray.zone, &stray.name).is_none();
        let over = stray.state.is_some() || elapsed(stray.since, turn.now) >= EXPECTED_FOR;
        // A delete on its way must not meet another owner, or a new node of that name.
        let stays = remains::is_on_its_way(stray, turn.now)
            || asked.is_some() && remains::is_withdrawn(stray, turn.now);
        let why = match (owned && !stays, gone && over && !stays) {
            (true, _) => "its slot has taken it up",
            (false, true) if stray.state.is_some() => remains::GONE,
            (false, true) => "it never came",
            (false, false) => {
                if let Some(request) = asked {
                    still_asked_for(fleet, &key, request, turn);
                    let shown = listed.shown(&request.zone, &request.id, &filling);
                    if let Reading::Node(view) = shown {
                        told += usize::from(
                            told < TOLD_IN_A_POLL && idle::order(fleet, &key, &view, turn),
                        );
                    }
                }
                continue;
            }
        };
        remains::ended(stray, why, turn);
        let unanswered = remains::unanswered(stray);
        if let (Some(at), Some(record)) = (unanswered, fleet.slots.get_mut(stray.made_for())) {
            record.unanswered_delete = Some(at);
            fleet.dirty.insert(stray.made_for().to_owned());
        }
        fleet.ledger.strays.remove(&key);
        fleet.dirty_ledger = true;
    }
}

/// Follows a request of ours that came late, when its slot was asked for in another zone already (S21).
fn late_requests(fleet: &mut Fleet, listed: &Listed, turn: &mut Turn) {
    for request in listed.all_requests() {
        let name = request.slot.as_ref();
        let owner = request.owner.as_ref();
        let Some(name) = name.filter(|_| owner == Some(&fleet.settings.owner)) else { continue };
        let slot = fleet.settings.slots.get(name);
        let (Some(record), Some(slot)) = (fleet.slots.get(name), slot) else { continue };
        let is_it = slot.filling.id() == request.id && record.zone != request.zone;
        // One that was asked for ahead, and that lists lacked for long.
        let is_next = next_id(slot.filling.id()) == request.id && record.asked_ahead().is_none();
        let lives = record.incarnation.is_some() || record.recovery.is_some();
        // A list that lags may show the one that was removed there before its slot went on.
        let left = record.left_behind.filter(|_| record.left_in.as_ref() == Some(&request.zone));
        let former = left.is_some_and(|(created, _)| request.created <= Some(created));
        let late = (is_it && lives || is_next) && !(record.forgotten || former);
        let stray = if is_next { &request.id } else { name };
        let key = Stray::key(&request.zone, stray);
        let is_of = |stray: &Stray| stray.request.as_ref() == Some(&request.id);
        let told = || fleet.ledger.strays.values().any(|of| of.zone == request.zone && is_of(of));
        if !late || is_next && told() {
            continue;
        }
        if let Some(known) = fleet.ledger.strays.get_mut(&key) {
            // Its node was listed before it.
            if known.request.is_none() && request.nodes.contains(&known.name) {
                known.request = Some(request.id.clone());
                fleet.dirty_ledger = true;
            }
            continue;
        }
        let why = match is_next {
            true => {
                format!("it was asked for ahead of the end of {name}'s capacity, and shows late")
            }
            false => {
                format!("its create came when {name} was asked for in {} already", record.zone)
            }
        };
        let (id, zone) = (&request.id, &request.zone);
        turn.note(format!(
            "queued resource {id} in {zone}: {why}; it is deleted while it waits, and reported as a stray once it is granted"
        ));
        let slot = is_next.then(|| name.clone());
        let (zone, name) = (zone.clone(), stray.clone());
        let request = Some(request.id.clone());
        let stray = Stray { request, slot, ..Stray::followed(zone, name, why, turn.now) };
        fleet.ledger.strays.insert(key, stray);
        fleet.dirty_ledger = true;
    }
}

/// Whether a request that was left for the queue of another zone has found capacity first: no other one
/// was sent while it might (S21).
fn is_taken_back(fleet: &Fleet, key: &str, request: &RequestView) -> bool {
    let Some(stray) = fleet.ledger.strays.get(key) else { return false };
    let pending = fleet.slots.get(&stray.name).is_some_and(|record| {
        let phase = record.recovery.as_ref().map(|recovery| recovery.phase());
        phase == Some(Phase::Gone) && record.zone != stray.zone && !record.forgotten
    });
    let granted = matches!(request.state, RequestState::Provisioning | RequestState::Active);
    let zones = fleet.settings.slots.get(&stray.name).map(|slot| &slot.zones);
    let allowed = zones.is_some_and(|zones| zones.contains(&stray.zone));
    pending
        && granted
        && allowed
        && stray.fills(&fleet.settings)
        && request.owner.as_ref() == Some(&fleet.settings.owner)
}

/// The slot goes back to the zone of a request that was granted late.
fn take_back(fleet: &mut Fleet, key: &str, request: &RequestView, turn: &mut Turn) {
    let Some(stray) = fleet.ledger.strays.remove(key) else { return };
    let Some(record) = fleet.slots.get_mut(&stray.name) else { return };
    let (id, state) = (&request.id, request.state.as_str());
    record.zone.clone_from(&stray.zone);
    record.request.clone_from(&stray.request);
    (record.left_behind, record.left_in) = (None, None);
    let why = format!(
        "its queued resource {id} in {} was not withdrawn in time: it is {state}, and is taken up",
        stray.zone
    );
    let recovery = record.recovery.take_if(|recovery| recovery.order.is_none());
    if let Some(recovery) = recovery {
        // A request of an earlier recovery: it fills the slot, and this one has asked for nothing yet.
        (record.incarnation, record.seen, record.suspicion) = (None, None, None);
        turn.tell(record, What::Withdrawn { cause: recovery.cause }, why);
    } else {
        advance(record, Phase::Creating, &why, turn);
        set_call(record, Call::Observed);
    }
    fleet.dirty.insert(stray.name.clone());
    fleet.dirty_ledger = true;
}

/// Why no slot owns a node that is ours; none where one does, or where it is not ours.
fn ownerless(fleet: &Fleet, view: &NodeView) -> Option<String> {
    let slot = view.slot.as_ref().filter(|slot| **slot == view.node)?;
    if view.owner.as_ref() != Some(&fleet.settings.owner) {
        return None;
    }
    if let Some(stray) = fleet.ledger.strays.get(&Stray::key(&view.zone, slot)) {
        return Some(stray.why.clone());
    }
    // Elsewhere than where its slot lives, while that slot has a node, or is about to have one.
    let record = fleet.slots.get(slot).filter(|record| record.zone != view.zone)?;
    let lives = record.incarnation.is_some() || record.recovery.is_some();
    lives.then(|| format!("{slot} is in {} now", record.zone))
}

/// A queued resource that no slot owns is listed: it may be granted.
fn still_asked_for(fleet: &mut Fleet, key: &str, request: &RequestView, turn: &mut Turn) {
    let Some(stray) = fleet.ledger.strays.get_mut(key) else { return };
    let (id, state) = (&request.id, request.state.as_str());
    let is = (Some(state.to_owned()), request.incarnation());
    let ended = stray.removal.take_if(|removal| {
        // Another request of that id is not the one that was deleted, and one that was granted was not, unless the call
        // can still arrive.
        let granted = matches!(request.state, RequestState::Provisioning | RequestState::Active);
        let sent = removal.call == Some(Call::Intended)
            && elapsed(removal.at, turn.now) < remains::ANSWERED_WITHIN;
        granted && !sent || Some(&removal.incarnation) != is.1.as_ref()
    });
    fleet.dirty_ledger |= ended.is_some();
    if (&stray.state, &stray.incarnation) == (&is.0, &is.1) {
        return;
    }
    let (filling, slot) = (stray.filling(), stray.made_for().to_owned());
    let Stray { name, zone, why, .. } = stray;
    let forgotten = fleet.slots.get(&slot).is_some_and(|record| record.forgotten);
    let by_hand = format!("gcloud compute tpus queued-resources delete {id} --zone {zone}");
    let then = match &request.state {
        _ if request.owner.as_ref() != Some(&fleet.settings.owner) => {
            let look = filling.shown_by(name, zone);
            format!(
                "its nodes' metadata does not name this watchdog, so it is left alone. Look at it: {look}"
            )
        }
        RequestState::Deleting => "it is being deleted".to_owned(),
        RequestState::Active => {
            let take = match forgotten {
                true => format!("`retry {slot}` takes it up"),
                false => format!(
                    "Have {slot} in the config with queued_resource = \"{id}\" to take it up"
                ),
            };
            format!(
                "it was granted: while its TPU runs it is billed. {take}, or delete it: tpu-watchdog sweep {id} --yes"
            )
        }
        RequestState::Suspended if !request.is_by_service() => format!(
            "a person stopped it, or by whom is not known: it is left alone, and holds quota: {by_hand}"
        ),
        state if RequestState::WITHOUT_NODES.contains(state) => format!(
            "it is deleted, unless a pause, a dry run or an opt-out keeps it. If it stays: {by_hand}"
        ),
        _ => "the API deletes nothing in this state. If it waits again or fails it is deleted; if it is granted, its TPU is kept and \
              reported here"
            .to_owned(),
    };
    turn.note(format!(
        "stray {name} in {zone}: its queued resource {id} is {state}, and no slot owns it: {why}; {then}"
    ));
    (stray.state, stray.incarnation) = is;
    fleet.dirty_ledger = true;
    fleet.looked_for.remove(key);
}

fn show(fleet: &mut Fleet, view: &Arc<NodeView>, why: String, turn: &mut Turn) {
    let key = Stray::key(&view.zone, &view.node);
    let state = Some(view.state.as_str().to_owned());
    let known = fleet.ledger.strays.get(&key);
    if known.is_some_and(|known| known.state == state && known.incarnation == view.incarnation) {
        return;
    }
    let first = known.is_none_or(|known| known.state.is_none());
    fleet.looked_for.remove(&key);
    let stray = Stray {
        zone: view.zone.clone(),
        name: view.node.clone(),
        since: known.map_or(turn.now, |known| known.since),
        why: why.clone(),
        state,
        incarnation: view.incarnation.clone(),
        // Another node of that name is not the one that was deleted.
        removal: known
            .filter(|known| known.incarnation == view.incarnation)
            .and_then(|known| known.removal.clone()),
        request: known.and_then(|known| known.request.clone()),
        slot: known.and_then(|known| known.slot.clone()),
        twin: None,
        told: known.and_then(|known| known.told.clone()),
        told_in: known.and_then(|known| known.told_in.clone()),
    };
    if first {
        let (name, zone) = (&view.node, &view.zone);
        let advice = match (remains::is_dead(view.state.as_str()), fleet.settings.removes_dead) {
            (true, true) => "it can't run again, and is removed".to_owned(),
            (true, false) => format!(
                "it can't run again, and holds quota. policy.orphans = \"dead\" removes it, or delete it: \
                 gcloud compute tpus tpu-vm delete {name} --zone {zone}"
            ),
            (false, _) => format!(
                "no slot owns it, and it may be at work. Put {name} back into the config to take it up, or delete it: \
                 gcloud compute tpus tpu-vm delete {name} --zone {zone}"
            ),
        };
        turn.note(format!("stray {name} in {zone} is {}: {why}; {advice}", view.state.as_str()));
    }
    fleet.ledger.strays.insert(key, stray);
    fleet.dirty_ledger = true;
}
