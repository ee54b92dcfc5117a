//! The removal of strays that can't run. With `orphans = "dead"`: PREEMPTED or TERMINATED nodes that
//! a create of this journal made and that no slot owns. They run nothing, and they eat quota. Always: late
//! twins of training jobs (`twins`), which are cancelled, and
//! queued resources of ours that were called off, by `forget` or by leaving the config, while they
//! wait, and once they have failed. The delete never has `force`: the API refuses it where the request
//! was granted meanwhile, and the grant is told.
//!
//! Each removal takes a GET of that node (S1), an intent in the journal (S11), the delete, and the
//! listings that show the node gone. The delete's operation is not followed: a node that is still
//! listed 30 minutes later is deleted once more, and 5 minutes after a refusal; a request also 5 minutes after a lost answer. A node that is or may become READY is never removed,
//! nor what an operator paused or opted out, nor what lives where a slot of that name does: that
//! slot deals with it. While a removal may be under way, no create of that name is sent there.
//!
//! Example: `a` was taken out of the config while its create was running; the node came up and was
//! preempted at 10:20. The listing shows PREEMPTED, the GET shows the same incarnation with our
//! store's id: it is deleted at 10:20, and at 10:21 "stray a in us-central2-b: it is gone".

use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::{Action, CallOutcome, Look, Reading, VERIFIED_FOR};
use crate::model::condition::Condition;
use crate::model::event::{CallResult, Event, What};
use crate::model::failure::FailureClass;
use crate::model::filling::Deletable;
use crate::model::fleet::{Fleet, Removal, Stray};
use crate::model::ids::Incarnation;
use crate::model::node::{NodeState, NodeView};
use crate::model::queued::RequestState;
use crate::model::step::Call;
use crate::model::submission::JobState;
use crate::model::time::elapsed;

use super::check;
use super::turn::Turn;

/// Why a stray is followed no longer: the listings lack it.
pub const GONE: &str = "it is gone";
/// A stray that is still there so long after its delete is deleted once more.
const AGAIN_AFTER: Duration = Duration::from_secs(30 * 60);
/// One whose delete was refused or not sent is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(5 * 60);
/// A delete that was decided so long ago was answered, or never will be.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// Asks for the GET that a removal rests on, of each stray that was listed dead.
pub fn look(fleet: &mut Fleet, turn: &mut Turn) {
    let wanted = |(_, stray): &(&String, &Stray)| is_removable(fleet, stray, turn.now);
    let strays = fleet.ledger.strays.iter().filter(wanted);
    let looks: Vec<(String, Look)> = strays
        .map(|(key, stray)| {
            let (zone, name) = (stray.zone.clone(), stray.name.clone());
            (key.clone(), Look::Stray { zone, name, filling: stray.filling() })
        })
        .collect();
    for (key, look) in looks {
        if fleet.looked_for.insert(key) {
            turn.look(look);
        }
    }
}

/// Takes in that GET: the delete is intended when it shows the same dead node, or waiting request.
pub fn got(
    fleet: &mut Fleet,
    zone: &str,
    name: &str,
    began: Timestamp,
    reading: Reading,
    turn: &mut Turn,
) {
    let key = Stray::key(zone, name);
    fleet.looked_for.remove(&key);
    // The listings follow a stray that can't be read, or is gone.
    let (Reading::Node(view), Some(stray)) = (reading, fleet.ledger.strays.get(&key)) else {
        return;
    };
    let now = turn.now;
    let is_fresh = began <= now && elapsed(began, now) <= VERIFIED_FOR;
    let is_request = stray.request.is_some();
    let can_go = match (&stray.twin, is_request) {
        (Some(_), _) => view.deletable == Deletable::Now && !view.ended,
        (None, true) => view.deletable == Deletable::Now,
        (None, false) => is_dead(view.state.as_str()),
    };
    let same = view.incarnation == stray.incarnation;
    let is_it = same && can_go && is_removable(fleet, stray, now);
    if is_it && !is_ours(fleet, stray, &view) {
        // It is not asked about again by this process while the listings show the same.
        fleet.looked_for.insert(key);
        return;
    }
    if !(is_fresh && is_it) {
        return;
    }
    if let Err(violation) = check::removal(fleet, stray, &view, began, now) {
        let what = What::InvariantViolation { invariant: violation.name().to_owned() };
        let message = format!("the safety check refused to remove stray {key} ({violation})");
        return turn.happened(Event { at: now, slot: None, message, what });
    }
    let Some(incarnation) = view.incarnation.clone() else { return };
    let asked = view.standing.as_ref().filter(|_| is_request || stray.twin.is_some());
    let observed =
        asked.map_or_else(|| view.state.as_str().to_owned(), |standing| standing.evidence.clone());
    intend(fleet, &key, (incarnation, observed), began, turn);
}

/// Journals the delete of a stray; it leaves when that is durable.
fn intend(
    fleet: &mut Fleet,
    key: &str,
    (incarnation, observed): (Incarnation, String),
    began: Timestamp,
    turn: &mut Turn,
) {
    let Some(stray) = fleet.ledger.strays.get_mut(key) else { return };
    let (now, zone, name) = (turn.now, stray.zone.clone(), stray.name.clone());
    let filling = stray.filling();
    let removal = Removal {
        at: now,
        incarnation: incarnation.clone(),
        state: observed.clone(),
        call: Some(Call::Intended),
        failure: None,
    };
    let verb = if stray.twin.is_some() { "cancel late twin" } else { "delete stray" };
    let message =
        format!("{verb} {name} in {zone}, incarnation {incarnation}: {observed}; {}", stray.why);
    let what = What::StrayIntent {
        zone: zone.clone(),
        name: name.clone(),
        incarnation: incarnation.clone(),
        confirmed_at: began,
        observed,
        decided_by: fleet.settings.decided_by.clone(),
    };
    turn.happened(Event { at: now, slot: None, message, what });
    let of = format!("delete stray {zone} {name} {incarnation} {now}");
    let id = || uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, of.as_bytes()).to_string();
    let request_id = filling.takes_request_ids(fleet.settings.alpha).then(id);
    stray.removal = Some(removal);
    fleet.dirty_ledger = true;
    turn.act(Action::Delete {
        slot: name,
        zone,
        incarnation,
        verified: began,
        request_id,
        filling,
        force: false,
        stray: true,
    });
}

/// Takes in what came of that delete.
pub fn called(fleet: &mut Fleet, zone: &str, name: &str, outcome: CallOutcome, turn: &mut Turn) {
    let key = Stray::key(zone, name);
    let Some(stray) = fleet.ledger.strays.get_mut(&key) else { return };
    let verb = if stray.twin.is_some() { "cancel of late twin" } else { "delete of stray" };
    let of = stray.made_for().to_owned();
    let Some(removal) = &mut stray.removal else { return };
    let (call, failure, result) = match outcome {
        CallOutcome::Accepted(operation) => {
            // A slot of that name that is back must not take it for another hand's delete.
            if let Some(record) = fleet.slots.get_mut(&of).or_else(|| fleet.left.get_mut(&of)) {
                record.own_delete = Some(operation.clone());
                fleet.dirty.insert(of);
            }
            (Some(Call::Accepted { operation }), None, CallResult::Accepted)
        }
        CallOutcome::Unknown(failure) => {
            (Some(Call::Unknown), Some(failure.to_string()), CallResult::Unknown)
        }
        // The listings show that it is gone.
        CallOutcome::Refused(failure) if failure.class == FailureClass::NotFound => {
            (Some(Call::Unknown), None, CallResult::Refused)
        }
        CallOutcome::Refused(failure) => (None, Some(failure.to_string()), CallResult::Refused),
        CallOutcome::NotSent(failure) => (None, Some(failure.to_string()), CallResult::NotSent),
    };
    let why = failure.as_ref().map_or(String::new(), |failure| format!(": {failure}"));
    let message = format!("{verb} {name} in {zone} {}{why}", words(result));
    (removal.call, removal.failure) = (call, failure);
    fleet.dirty_ledger = true;
    let what = What::StrayOutcome { zone: zone.to_owned(), name: name.to_owned(), result };
    turn.happened(Event { at: turn.now, slot: None, message, what });
}

fn words(result: CallResult) -> &'static str {
    match result {
        CallResult::Accepted => "accepted",
        CallResult::Unknown => "has no answer; the listings show what came of it",
        CallResult::NotSent => "was not sent; it is tried again in 5 min",
        _ => "refused; it is tried again in 5 min",
    }
}

/// Tells why a stray is followed no longer, and how its removal ended.
pub fn ended(stray: &Stray, why: &str, turn: &mut Turn) {
    let (zone, name) = (&stray.zone, &stray.name);
    let message = format!("stray {name} in {zone}: {why}");
    let what = match stray.is_being_removed() {
        true => {
            What::StrayOutcome { zone: zone.clone(), name: name.clone(), result: CallResult::Done }
        }
        false => What::Note,
    };
    turn.happened(Event { at: turn.now, slot: None, message, what });
}

/// Whether a delete that was decided may be on its way to the API: nothing has answered it yet.
pub fn is_on_its_way(stray: &Stray, now: Timestamp) -> bool {
    let intended = stray.removal.as_ref().filter(|r| r.call == Some(Call::Intended));
    intended.is_some_and(|removal| elapsed(removal.at, now) <= ANSWERED_WITHIN)
}

/// When a removal was decided whose answer never came.
pub fn unanswered(stray: &Stray) -> Option<Timestamp> {
    let removal = stray.removal.as_ref()?;
    matches!(removal.call, Some(Call::Intended | Call::Unknown)).then_some(removal.at)
}

/// Whether a request that is listed is being deleted by us: its end is ours to follow.
pub fn is_withdrawn(stray: &Stray, now: Timestamp) -> bool {
    let removal = stray.removal.as_ref().filter(|removal| removal.call.is_some());
    stray.request.is_some() && removal.is_some_and(|r| elapsed(r.at, now) < AGAIN_AFTER)
}

/// Whether the config, the operators and the slots leave a dead stray to be removed now.
fn is_removable(fleet: &Fleet, stray: &Stray, now: Timestamp) -> bool {
    let zone = &stray.zone;
    let state = stray.state.as_deref().unwrap_or_default();
    let wanted = match (&stray.twin, &stray.request) {
        (Some(_), _) if !stray.has_elder(&fleet.slots) => false,
        (Some(_), _) => JobState::CANCELLABLE.iter().any(|of| of.as_str() == state),
        (None, None) => is_dead(state) && fleet.settings.removes_dead,
        (None, Some(_)) => RequestState::WITHOUT_NODES.iter().any(|of| of.as_str() == state),
    };
    let waits = stray.removal.as_ref().is_some_and(|removal| {
        // A delete without an answer may never have left: what is listed still waits, and may be granted.
        let lost = matches!(removal.call, Some(Call::Intended | Call::Unknown));
        let again = removal.call.is_none() || lost && stray.request.is_some();
        let wait = if again { RETRY_AFTER } else { AGAIN_AFTER };
        elapsed(removal.at, now) < wait
    });
    let of = stray.twin.as_ref().map_or(stray.made_for(), |twin| &twin.slot);
    let record = fleet.slots.get(of).or_else(|| fleet.left.get(of));
    let slot = stray.slot(&fleet.settings).and_then(|name| fleet.slots.get(name));
    let lives_here = slot.is_some_and(|record| record.zone == *zone && !record.forgotten);
    let ledger = &fleet.ledger;
    let pauses = [
        record.and_then(|record| record.paused.as_ref()),
        ledger.left_paused.get(of),
        ledger.paused.as_ref(),
    ];
    let paused = pauses.into_iter().flatten().any(|pause| pause.holds(now));
    wanted
        && !fleet.settings.dry_run
        && stray.incarnation.is_some()
        && !(waits || lives_here || paused)
}

/// Whether nothing runs in this state, nor ever will.
pub fn is_dead(state: &str) -> bool {
    [NodeState::Preempted, NodeState::Terminated].iter().any(|dead| dead.as_str() == state)
}

/// Made by a create of this journal and not opted out: a node of its own, or a request without one
/// that no person stopped.
fn is_ours(fleet: &Fleet, stray: &Stray, view: &NodeView) -> bool {
    let ours = view.owner.as_ref() == Some(&fleet.settings.owner)
        && view.slot.as_deref() == Some(stray.made_for());
    // By a person, or by whom is not known.
    let held = [Condition::Stopped, Condition::Unclear];
    let standing = view.standing.as_ref().filter(|_| stray.request.is_some());
    let stopped = standing.is_some_and(|standing| held.contains(&standing.condition));
    let others = view.queued_resource.is_some() || view.multislice || view.is_v1 || stopped;
    ours && !others && !view.opted_out
}
