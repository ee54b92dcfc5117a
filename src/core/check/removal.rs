//! The rules of removing a stray, and of telling one to wait.

use std::time::Duration;

use jiff::Timestamp;

use super::case::{Checked, VERIFIED_FOR, rule};
use crate::model::command::Pause;
use crate::model::condition::Condition;
use crate::model::filling::Deletable;
use crate::model::fleet::{Fleet, Stray, Twin};
use crate::model::ids::RunOrder;
use crate::model::node::{NodeState, NodeView};
use crate::model::time::elapsed;

/// Polls between a lost submission and the next one, at most.
const POLLS: Duration = Duration::from_secs(60);

/// Whether this stray may be removed now.
///
/// # Errors
/// The first rule that forbids it.
pub fn removal(
    fleet: &Fleet,
    stray: &Stray,
    view: &NodeView,
    began: Timestamp,
    now: Timestamp,
) -> Checked {
    let (settings, ledger) = (&fleet.settings, &fleet.ledger);
    if let Some(twin) = &stray.twin {
        return cancel(fleet, twin, stray, view, (began, now));
    }
    let called_off = stray.request.is_some();
    rule(settings.removes_dead || called_off, "S17", "the config removes no strays")?;
    let made_here = view.owner.as_ref() == Some(&settings.owner)
        && view.slot.as_deref() == Some(stray.made_for())
        && view.zone == stray.zone
        && (called_off || view.node == stray.name);
    let plain = view.queued_resource.is_none() && !view.multislice && !view.is_v1;
    rule(made_here && plain, "S17", "no create of this journal made it")?;
    rule(!is_anothers(fleet, stray), "S17", "a slot of another name owns the queued resource")?;
    let cannot_run = match called_off {
        true => matches!(
            view.standing.as_ref().map(|standing| standing.condition),
            Some(Condition::Waiting | Condition::RequestFailed | Condition::Preempted)
        ),
        false => matches!(view.state, NodeState::Preempted | NodeState::Terminated),
    };
    let dead = cannot_run && view.deletable == Deletable::Now;
    rule(dead, "S10", "only what can't run is removed")?;
    let fresh = began <= now && elapsed(began, now) <= VERIFIED_FOR;
    let same = view.incarnation.is_some() && view.incarnation == stray.incarnation;
    rule(fresh && same, "S1", "the GET must show the listed incarnation, at most 5 s ago")?;
    let holds = |pause: &Pause| pause.until.is_none_or(|until| now < until);
    let paused = ledger.paused.iter().chain(ledger.left_paused.get(stray.made_for())).any(holds);
    let held = settings.dry_run || view.opted_out || paused;
    rule(!held, "S7", "dry run, opted out or paused")
}

/// Whether this twin of a slot's training job may be cancelled now: an elder one of its lineage is the slot's.
fn cancel(
    fleet: &Fleet,
    twin: &Twin,
    stray: &Stray,
    view: &NodeView,
    (began, now): (Timestamp, Timestamp),
) -> Checked {
    let slot = fleet.slots.get(&twin.slot);
    let elder = slot.and_then(|slot| slot.incarnation.as_ref());
    let younger = view
        .incarnation
        .as_ref()
        .zip(elder)
        .is_some_and(|(twin, elder)| (elder.created, &elder.id) < (twin.created, &twin.id));
    let known = slot.and_then(|slot| slot.seen.as_ref()).and_then(|seen| seen.members.first());
    let one_lineage = known.is_some() && view.members.first() == known;
    rule(younger && one_lineage, "S24", "no elder job of its lineage is the slot's")?;
    let goes_on = slot.and_then(|slot| slot.seen.as_ref());
    let goes_on = goes_on.is_some_and(|seen| seen.deletable == Deletable::Now && !seen.ended);
    rule(goes_on, "S24", "the elder job has ended, or is being cancelled")?;
    let ours = view.owner.as_ref() == Some(&fleet.settings.owner) && view.zone == stray.zone;
    let settle = fleet.settings.slots.get(&twin.slot).map(|slot| slot.filling.settle());
    let apart = elder.zip(view.incarnation.as_ref()).map(|(a, b)| elapsed(a.created, b.created));
    let poll = &fleet.settings.poll;
    let in_time = apart
        .zip(settle)
        .is_some_and(|(apart, settle)| apart <= (poll.timeout + settle + poll.every) * 2 + POLLS);
    let attempt = |run: Option<&RunOrder>| run.map(|run| run.generation);
    let known = slot.and_then(|slot| slot.seen.as_ref()).and_then(|seen| seen.run.as_ref());
    let in_time = in_time && attempt(known) == attempt(view.run.as_ref());
    rule(ours && in_time, "S17", "no submission of this journal made it")?;
    let lives = !view.ended && view.deletable == Deletable::Now;
    rule(lives, "S10", "it has ended, or is being cancelled")?;
    let fresh = began <= now && elapsed(began, now) <= VERIFIED_FOR;
    let same = view.incarnation.is_some() && view.incarnation == stray.incarnation;
    rule(fresh && same, "S1", "the GET must show the listed incarnation, at most 5 s ago")?;
    let holds = |pause: &Pause| pause.until.is_none_or(|until| now < until);
    let pauses = slot.and_then(|slot| slot.paused.as_ref()).into_iter().chain(&fleet.ledger.paused);
    let held = fleet.settings.dry_run || pauses.into_iter().any(holds);
    rule(!held, "S7", "dry run, or paused")
}

/// Whether the config names its queued resource for a slot of another name, which is wanted.
fn is_anothers(fleet: &Fleet, stray: &Stray) -> bool {
    let Some(id) = &stray.request else { return false };
    fleet.settings.slots.iter().any(|(name, slot)| {
        let named = slot.filling.id() == id && slot.zones.contains(&stray.zone);
        let forgotten = fleet.slots.get(name).is_some_and(|record| record.forgotten);
        named && name != stray.made_for() && !forgotten
    })
}

/// Whether this stray's run order may become this one now.
///
/// # Errors
/// The first rule that forbids it.
pub fn idling(fleet: &Fleet, stray: &Stray, view: &NodeView, order: &RunOrder) -> Checked {
    let settings = &fleet.settings;
    let made_here = view.owner.as_ref() == Some(&settings.owner)
        && view.slot.as_deref() == Some(stray.made_for())
        && view.zone == stray.zone
        && (stray.request.is_some() || view.node == stray.name);
    let here = fleet.slots.get(stray.made_for()).filter(|record| record.zone == stray.zone);
    let filling = settings.slots.get(stray.made_for()).map(|slot| &slot.filling);
    let slot = here.filter(|_| stray.request.is_none() || filling == Some(&stray.filling()));
    let owned = slot.is_some_and(|record| !record.forgotten) || is_anothers(fleet, stray);
    rule(!owned, "S17", "a slot owns the node")?;
    let plain = view.queued_resource.is_none() && !view.multislice && !view.is_v1;
    rule(made_here && plain && view.supervised, "S17", "no create of this journal made it")?;
    rule(!(settings.dry_run || view.opted_out), "S7", "dry run, or opted out")?;
    let removed = stray.removal.as_ref().is_some_and(|removal| removal.call.is_some());
    rule(!removed, "S9", "it is being removed")?;
    let flag_alone =
        view.run.as_ref().is_some_and(|run| RunOrder { wait: true, ..run.clone() } == *order);
    rule(flag_alone, "S15", "more than its flag would change")
}
