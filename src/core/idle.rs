//! Strays that live start nothing by themselves: `wait` is written into their run order. A node that
//! a called-off create made all the same, or that is left in another zone than its slot's, would else
//! run the slot's job a second time, into the same checkpoints (S15).
//!
//! The change is journaled before it is sent (S11), goes to nodes alone that a create of this journal made
//! (S17), to all of a queued resource that was granted after it was called off, and ends nothing: a job that
//! already runs there goes on, and is told as a stray. The listings show whether it is there. A slot that
//! takes the node up takes the flag back (`amend`).
//!
//! Example: `a` was taken out of the config while its create was running. The listing of 10:20 shows
//! its node READY, while the startup script still installs: the order says `wait` at 10:20, and the
//! job is not started when the script ends at 10:24.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::{Action, CallOutcome};
use crate::model::event::{Event, What};
use crate::model::fleet::{Fleet, Stray};
use crate::model::ids::RunOrder;
use crate::model::node::{NodeState, NodeView};
use crate::model::relaunch::{Amendment, Patch};
use crate::model::step::Call;
use crate::model::time::after;

use super::check;
use super::turn::Turn;

/// A change that was sent, refused or not, is tried again after this; at once where the node's state
/// is another one.
const AGAIN_AFTER: Duration = Duration::from_secs(5 * 60);

/// Writes `wait` into the order of the stray of this key, as it was just listed. Returns whether it did.
pub fn order(fleet: &mut Fleet, key: &str, view: &NodeView, turn: &mut Turn) -> bool {
    let Some(stray) = fleet.ledger.strays.get(key) else { return false };
    let Some(run) =
        view.run.clone().filter(|run| !run.wait && is_wanted(fleet, stray, view, turn.now))
    else {
        return false;
    };
    let Some(incarnation) = view.incarnation.clone() else { return false };
    let order = RunOrder { wait: true, ..run };
    if let Err(violation) = check::idling(fleet, stray, view, &order) {
        let what = What::InvariantViolation { invariant: violation.name().to_owned() };
        let message = format!("the safety check refused the order to stray {key} ({violation})");
        turn.happened(Event { at: turn.now, slot: None, message, what });
        return false;
    }
    let (name, zone, generation) = (stray.name.clone(), view.zone.clone(), order.generation);
    let filling = stray.filling();
    let what = What::Amendment {
        incarnation: incarnation.clone(),
        generation,
        wait: true,
        notice: order.notice,
        decided_by: fleet.settings.decided_by.clone(),
    };
    let message = format!(
        "order of generation {generation} to stray {name} in {zone}: wait, so that its job does not start there; {}",
        stray.why
    );
    turn.happened(Event { at: turn.now, slot: None, message, what });
    let patch = Patch::Order(order);
    let told = Amendment {
        at: turn.now,
        incarnation: incarnation.clone(),
        patch: patch.clone(),
        call: Some(Call::Intended),
        of_wait: true,
        until: after(turn.now, AGAIN_AFTER),
    };
    if let Some(stray) = fleet.ledger.strays.get_mut(key) {
        (stray.told, stray.told_in) = (Some(told), stray.state.clone());
        fleet.dirty_ledger = true;
    }
    let plain = view.members.is_empty();
    let nodes = if plain { vec![name.clone()] } else { view.members.clone() };
    turn.act(Action::Patch { slot: name, zone, nodes, filling, incarnation, patch, stray: true });
    true
}

/// Takes in the answer.
pub fn called(fleet: &mut Fleet, zone: &str, name: &str, outcome: &CallOutcome, turn: &mut Turn) {
    let Some(stray) = fleet.ledger.strays.get_mut(&Stray::key(zone, name)) else { return };
    let sent = |told: &&mut Amendment| told.call == Some(Call::Intended);
    let Some(told) = stray.told.as_mut().filter(sent) else { return };
    let (call, text) = match outcome {
        CallOutcome::Accepted(operation) => {
            (Some(Call::Accepted { operation: operation.clone() }), "accepted".to_owned())
        }
        CallOutcome::Unknown(failure) => {
            (Some(Call::Unknown), format!("{failure}; the listings show what came of it"))
        }
        CallOutcome::Refused(failure) | CallOutcome::NotSent(failure) => {
            (None, format!("{failure}; it is tried again in 5 min, and its job may run there"))
        }
    };
    told.call = call;
    fleet.dirty_ledger = true;
    turn.note(format!("order to stray {name} in {zone} to wait: {text}"));
}

/// Whether such an order may be on its way to the API: nothing has answered it yet.
pub fn is_on_its_way(stray: &Stray, now: Timestamp) -> bool {
    let sent = stray.told.as_ref().filter(|told| told.call == Some(Call::Intended));
    sent.is_some_and(|told| now < told.until)
}

/// Whether the config and the operators leave this stray to be told now.
fn is_wanted(fleet: &Fleet, stray: &Stray, view: &NodeView, now: Timestamp) -> bool {
    let slot = stray.slot(&fleet.settings).and_then(|name| fleet.slots.get(name));
    let lives_here = slot.is_some_and(|record| {
        record.zone == stray.zone && !(record.forgotten && record.released.is_none())
    });
    let waits = stray.told.as_ref().is_some_and(|told| {
        let same = view.incarnation.as_ref() == Some(&told.incarnation);
        let recent = now < told.until;
        // The state in which it was refused may be why.
        let sent = told.call.is_some() || stray.told_in == stray.state;
        same && recent && sent
    });
    let comes = matches!(view.state, NodeState::Creating | NodeState::Ready);
    let ours = view.owner.as_ref() == Some(&fleet.settings.owner)
        && view.slot.as_deref() == Some(stray.made_for())
        && view.supervised;
    let plain = view.queued_resource.is_none() && !view.multislice && !view.is_v1;
    let free = !fleet.settings.dry_run && !view.opted_out && !stray.is_being_removed();
    comes && ours && plain && free && !(lives_here || waits)
}
