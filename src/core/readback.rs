//! What a reading says about a recovery under way: whether a delete or create whose outcome is not
//! known was carried out, whether the replacement is READY, and whether a person has put another
//! node in its place.

use jiff::Timestamp;

use crate::model::action::Reading;
use crate::model::event::{CallResult, Verb, What};
use crate::model::fleet::{Memory, Pending};
use crate::model::node::{NodeState, NodeView};
use crate::model::phase::Phase;
use crate::model::settings::{Policy, Settings};
use crate::model::slot::SlotRecord;
use crate::model::step::Call;
use crate::model::submission::JobState;
use crate::model::time::{after, elapsed};

use super::identity::{Source, become_incarnation, is_our_create, unsettled};
use super::moves::{advance, backoff, came_of, resend_later, set_call, spend};
use super::turn::Turn;

/// Looks that find neither operation nor node before a create counts as not carried out.
const VANISHED_LIMIT: u32 = 3;

/// Takes a reading into the recovery. Returns whether the record changed.
pub fn observed(
    record: &mut SlotRecord,
    memory: &mut Memory,
    settings: &Settings,
    policy: &Policy,
    reading: &Reading,
    source: Source,
    turn: &mut Turn,
) -> bool {
    let Some(recovery) = &record.recovery else { return false };
    if matches!(reading, Reading::Node(view) if view.incarnation.is_none()) {
        // Without a creation time it can't be told from another node: it settles nothing.
        return false;
    }
    let calling = memory.pending.contains(&Pending::Call);
    let get = source == Source::Get;
    let (phase, there) = (recovery.phase(), record.incarnation.is_some());
    let known = match phase {
        Phase::Condemned => recovery.condemned.clone(),
        _ => record.incarnation.clone(),
    };
    match (phase, reading) {
        // A cancel that seemed to be lost: what it ends is not a person's.
        (Phase::Condemned, Reading::Node(view))
            if known == view.incarnation
                && is_cancelled(view)
                && !calling
                && recovery.resends + recovery.spent > 0 =>
        {
            advance(record, Phase::Deleting, "its cancel was carried out after all", turn);
            set_call(record, Call::Observed);
        }
        // Only a GET settles a delete: the listing may be older than the call.
        (Phase::Deleting, Reading::Absent) if get && !calling => {
            let text = record.traits().over;
            let read_back = format!("read back: {text}");
            came_of(record, Verb::Delete, CallResult::Done, &read_back, turn);
            advance(record, Phase::Gone, text, turn);
        }
        (Phase::Deleting, Reading::Node(view)) if get && !calling => {
            node_while_deleting(record, memory, settings, policy, view, turn);
        }
        (Phase::Gone, Reading::Node(view)) => {
            node_while_gone(record, settings, view, get, turn);
        }
        (Phase::Creating, Reading::Node(view)) if !there && !calling => {
            node_while_creating(record, settings, view, get, turn);
        }
        (Phase::Creating, Reading::Node(view)) if there => {
            if known == view.incarnation && view.state == NodeState::Ready {
                replaced(record, view, turn);
            } else if known != view.incarnation {
                superseded(record, view, settings, turn);
            }
        }
        // One whose operation ended with an error is told by its caller, which knows of capacity
        // and zones.
        (Phase::Creating, Reading::Absent) if get && !calling && !there => {
            if !may_still_show(record, settings, turn.now) {
                absent_while_creating(record, memory, policy, turn);
            }
        }
        (
            Phase::Ready | Phase::Booted | Phase::Launched | Phase::Condemned,
            Reading::Node(view),
        ) if known != view.incarnation => superseded(record, view, settings, turn),
        _ => return false,
    }
    true
}

/// Whether a training job is being cancelled, or was.
fn is_cancelled(view: &NodeView) -> bool {
    let states = [JobState::Cancelling, JobState::Cancelled];
    states.iter().any(|state| state.as_str() == view.state.as_str())
}

/// A GET while the delete is intended, sent or running shows a node.
fn node_while_deleting(
    record: &mut SlotRecord,
    memory: &mut Memory,
    settings: &Settings,
    policy: &Policy,
    view: &NodeView,
    turn: &mut Turn,
) {
    let Some(recovery) = &record.recovery else { return };
    let open = unsettled(recovery.call());
    if view.incarnation != recovery.condemned {
        superseded(record, view, settings, turn);
    } else if view.state == NodeState::Deleting || is_cancelled(view) {
        if open {
            set_call(record, Call::Observed);
        }
    } else if open {
        // It is judged again, with this read as its confirmation.
        let text = "read back: the node is there, the delete was not carried out";
        came_of(record, Verb::Delete, CallResult::Failed, text, turn);
        advance(record, Phase::Condemned, "read back: the delete was not carried out", turn);
        if let Some(recovery) = &mut record.recovery {
            // It may still be on its way to the API, so the next one waits; and a server that never
            // carries it out is not asked at the speed of the network.
            recovery.resends += 1;
            let wait = backoff(policy, &record.name, recovery.resends);
            recovery.not_before = Some(after(turn.now, wait));
        }
    } else if memory.operation_lost.is_some() {
        memory.vanished += 1;
        if memory.vanished >= VANISHED_LIMIT {
            memory.vanished = 0;
            let text = "its operation is lost, and the node is not being deleted";
            came_of(record, Verb::Delete, CallResult::Failed, text, turn);
            let text = "the operation is lost and the node is not being deleted";
            advance(record, Phase::Condemned, text, turn);
            spend(record);
        }
    }
}

/// A node is there although the condemned one was gone and no create was sent.
fn node_while_gone(
    record: &mut SlotRecord,
    settings: &Settings,
    view: &NodeView,
    get: bool,
    turn: &mut Turn,
) {
    let condemned = record.recovery.as_ref().and_then(|r| r.condemned.clone());
    if is_our_create(record, settings, view) {
        // An earlier create whose answer was lost has been carried out after all.
        let text = "an earlier create of ours was carried out after all";
        let read_back = format!("read back: {text}");
        came_of(record, Verb::Create, CallResult::Done, &read_back, turn);
        advance(record, Phase::Creating, text, turn);
        set_call(record, Call::Observed);
        replaced(record, view, turn);
    } else if view.incarnation != condemned {
        superseded(record, view, settings, turn);
    } else if get {
        advance(record, Phase::Condemned, "the condemned node is still there", turn);
    }
}

/// A node is there for the first time since the create was intended.
fn node_while_creating(
    record: &mut SlotRecord,
    settings: &Settings,
    view: &NodeView,
    get: bool,
    turn: &mut Turn,
) {
    let Some(recovery) = &record.recovery else { return };
    let (open, old) = (unsettled(recovery.call()), view.incarnation == recovery.condemned);
    if is_our_create(record, settings, view) {
        replaced(record, view, turn);
    } else if get && !old {
        superseded(record, view, settings, turn);
    } else if get && open {
        let text = "the condemned node is still there";
        came_of(record, Verb::Create, CallResult::Failed, &format!("read back: {text}"), turn);
        advance(record, Phase::Condemned, text, turn);
    }
}

/// Whether a list that lacks a submission proves nothing yet: the call may arrive late, and lists lag behind.
/// One that was accepted is there.
fn may_still_show(record: &SlotRecord, settings: &Settings, now: Timestamp) -> bool {
    let (Some(recovery), Some(slot)) = (&record.recovery, settings.slots.get(&record.name)) else {
        return false;
    };
    if !slot.filling.traits().is_found_by_lists {
        return false;
    }
    let sent = record.mutated_at.unwrap_or(recovery.phase_since).max(recovery.phase_since);
    let accepted = matches!(recovery.call(), Some(Call::Accepted { .. } | Call::Observed));
    accepted || elapsed(sent, now) < settings.poll.timeout + slot.filling.settle()
}

/// A GET shows no node although a create was intended.
fn absent_while_creating(
    record: &mut SlotRecord,
    memory: &mut Memory,
    policy: &Policy,
    turn: &mut Turn,
) {
    let call = record.recovery.as_ref().and_then(|r| r.call().cloned());
    memory.vanished += 1;
    // With an operation under way a 404 may only mean "not yet"; without one the create was not
    // carried out.
    if unsettled(call.as_ref()) || memory.vanished >= VANISHED_LIMIT {
        memory.vanished = 0;
        let text = "read back: GET says 404, the create was not carried out";
        came_of(record, Verb::Create, CallResult::Failed, text, turn);
        let zone = record.zone.clone();
        if let Some(recovery) = &mut record.recovery {
            recovery.lost_in = Some(zone);
        }
        resend_later(record, policy, None, "read back: the create was not carried out", turn);
        if matches!(call, Some(Call::Accepted { .. } | Call::Observed)) {
            spend(record);
        }
    }
}

/// Our create produced this node.
fn replaced(record: &mut SlotRecord, view: &NodeView, turn: &mut Turn) {
    let (ready, first) = (view.state == NodeState::Ready, record.incarnation != view.incarnation);
    let result = match record.recovery.as_ref().and_then(|r| r.call()) {
        // Its operation has told it, or tells it while it is looked at: up to READY.
        Some(Call::Observed) => None,
        Some(Call::Accepted { .. }) => ready.then_some(CallResult::Done),
        Some(Call::Intended | Call::Unknown) | None if ready => Some(CallResult::Done),
        Some(Call::Intended | Call::Unknown) | None => first.then_some(CallResult::Accepted),
    };
    if first {
        become_incarnation(record, view, true, turn.now);
    }
    if let (Some(result), Some(made)) = (result, &view.incarnation) {
        came_of(record, Verb::Create, result, &format!("read back: the create makes {made}"), turn);
    }
    if ready {
        record.ready_since = Some(turn.now);
        let made = view.incarnation.as_ref().map_or("?".to_owned(), ToString::to_string);
        advance(record, Phase::Ready, &format!("the replacement is READY: {made}"), turn);
        if let Some(recovery) = &mut record.recovery {
            (recovery.create_failures, recovery.failures) = (0, 0);
            recovery.resends = 0;
            recovery.refusal = None;
        }
    }
}

/// Another client replaced the node: it is left alone, and judged like any other from now on.
fn superseded(record: &mut SlotRecord, view: &NodeView, settings: &Settings, turn: &mut Turn) {
    let Some(recovery) = record.recovery.clone() else { return };
    match recovery.phase() {
        Phase::Deleting => came_of(
            record,
            Verb::Delete,
            CallResult::Done,
            "read back: the condemned node is gone, another one is there",
            turn,
        ),
        Phase::Creating if recovery.call() != Some(&Call::Observed) => {
            came_of(
                record,
                Verb::Create,
                CallResult::Failed,
                "read back: another client's node exists under this name",
                turn,
            );
        }
        _ => {}
    }
    record.recovery = None;
    let ours =
        view.owner.as_ref() == Some(&settings.owner) && view.slot.as_ref() == Some(&record.name);
    become_incarnation(record, view, ours, turn.now);
    let new = view.incarnation.as_ref().map_or("?".to_owned(), ToString::to_string);
    let message = format!(
        "another node ({new}) fills the slot: the recovery for {} ends, the node is left alone",
        recovery.cause.name()
    );
    turn.tell(record, What::Withdrawn { cause: recovery.cause }, message);
}
