//! Takes one reading of a slot's node into its record: incarnation, specification, condition,
//! suspicion.
//!
//! A reading passes once from top to bottom: what shows the past is dropped; the specification is
//! learned; a recovery under way is moved on; the condition is diagnosed; the suspicion is
//! accumulated; a recovery that has reached its end is closed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::action::Reading;
use crate::model::condition::{Condition, Verdict};
use crate::model::event::What;
use crate::model::fleet::{Confirmed, Fleet, Ledger, Memory, Pending, Stray};
use crate::model::node::{NodeState, NodeView};
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::{Overlay, Settings};
use crate::model::slot::{Seen, SlotRecord};
use crate::model::spec::TRAINING_KEY;
use crate::model::time::elapsed;

use super::identity::{Source, become_incarnation, shows_the_past};
use super::suspicion::{set_verdict, settled, suspect};
use super::turn::Turn;
use super::{
    amend, answers, confirm, diagnose, ended, learning, lookups, machines, pool, readback,
    relaunch, request, settle,
};

/// A delete of ours of a slot that was called off is seen within this time.
const OWN_DELETE_FOR: Duration = Duration::from_secs(3600);

/// Applies one reading that began at `began`.
pub fn observe(
    fleet: &mut Fleet,
    name: &str,
    reading: Reading,
    began: Timestamp,
    source: Source,
    turn: &mut Turn,
) {
    // The clock may have been set back while the read was under way.
    let took = elapsed(began, turn.now);
    let began = began.min(turn.now);
    let Some(slot) = fleet.settings.slots.get(name) else { return };
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let memory = fleet.memory.entry(name.to_owned()).or_default();
    if source == Source::List && !matches!(reading, Reading::Node(_)) {
        fleet.dirty.extend(is_unseen(record).then(|| name.to_owned()));
    }
    if source == Source::Get {
        memory.slow_gets =
            if took > confirm::good_for(&slot.policy) { memory.slow_gets + 1 } else { 0 };
    }
    if let Reading::Unread(why) = reading {
        if let Some(failure) = answers::refused_unread(record, source, turn.now) {
            return answers::create_failed(fleet, name, failure, turn);
        }
        set_verdict(record, Verdict::new(Condition::Unclear, why), &mut fleet.dirty, turn);
        return;
    }
    if is_outdated(record, memory, began) {
        return;
    }
    let reading = ended::taken_in(record, memory, reading, source, turn);
    let shown = if let Reading::Node(view) = &reading { Some(view) } else { None };
    if shown.is_some_and(|view| shows_the_past(record, view, began, slot.policy.max_age)) {
        return;
    }
    lookups::is_present(memory, shown, source);
    let before = std::mem::replace(&mut memory.shown, shown.map(|view| view.fingerprint));
    if let Some(view) = shown.filter(|_| before != memory.shown) {
        notice_deletion(record, view, &fleet.ledger, &mut fleet.dirty, turn.now);
        note(record, view, &fleet.settings, &mut fleet.dirty, turn);
        let lesson = learning::learn(record, view, source, (&fleet.settings.owner, &slot.create));
        tell_differences(record, &lesson.differs, turn);
        fleet.dirty_specs.extend(lesson.specification.then(|| name.to_owned()));
        fleet.dirty.extend(lesson.record.then(|| name.to_owned()));
        memory.acceptable = None;
    }
    fleet.dirty.extend(order_is_shown(record, memory, shown, began, turn).then(|| name.to_owned()));
    let get = source == Source::Get && shown.is_none();
    if let Some(failure) = if get { answers::failed_and_gone(record, memory) } else { None } {
        memory.last_read = Some(began);
        return answers::create_failed(fleet, name, failure, turn);
    }
    if readback::observed(record, memory, &fleet.settings, &slot.policy, &reading, source, turn) {
        fleet.dirty.insert(name.to_owned());
        fleet.dirty_ledger |= supplied(record, &slot.create, &mut fleet.ledger);
    }
    // While the old node is being deleted, or is gone and the new one not there yet, a read is not
    // a diagnosis.
    let between = record.recovery.as_ref().is_some_and(|r| match r.phase() {
        Phase::Deleting | Phase::Gone => true,
        Phase::Creating => record.incarnation.is_none(),
        _ => false,
    });
    if between {
        memory.last_read = Some(began);
        return;
    }
    judge_by(fleet, name, &reading, began, source, turn);
}

/// A list lacks what is suspected. Whether that is new.
fn is_unseen(record: &mut SlotRecord) -> bool {
    let suspicion = record.suspicion.as_mut();
    suspicion.is_some_and(|suspicion| !std::mem::replace(&mut suspicion.unseen, true))
}

/// Every later recreate will be as this replacement is.
fn tell_differences(record: &SlotRecord, differs: &[String], turn: &mut Turn) {
    if !differs.is_empty() {
        let text = format!(
            "the replacement is not what was asked for: {} differ; later recreates follow it; set these fields under [tpu.create] if they \
             are wanted",
            differs.join(", ")
        );
        turn.tell(record, What::Note, text);
    }
}

/// Whether a node shows how far a run order got that is not being sent.
fn order_is_shown(
    record: &mut SlotRecord,
    memory: &Memory,
    shown: Option<&Arc<NodeView>>,
    began: Timestamp,
    turn: &mut Turn,
) -> bool {
    !memory.pending.contains(&Pending::Call)
        && shown.is_some_and(|view| {
            amend::shown(record, view, began, turn) | relaunch::shown(record, view, began, turn)
        })
}

/// A replacement that is READY ends the stock-out of its pool.
fn supplied(record: &SlotRecord, create: &Overlay, ledger: &mut Ledger) -> bool {
    let ready = record.recovery.as_ref().filter(|recovery| recovery.phase() == Phase::Ready);
    ready.is_some_and(|recovery| {
        let pool = pool::name(record, create, &record.zone);
        pool::supplied(ledger, &pool, recovery.creating_since)
    })
}

/// Whether a read shows the past (S2): it began before our last mutation was answered, or before a
/// read already taken in.
///
/// That read was perhaps taken in by a former process, or before the journal was read again: its
/// time must not count twice. Nor does one count that began before the intent of a call, whose
/// answer may have come while nothing could be written.
fn is_outdated(record: &SlotRecord, memory: &Memory, began: Timestamp) -> bool {
    let calls = |r: &&Recovery| matches!(r.phase(), Phase::Deleting | Phase::Creating);
    let intended = record.recovery.as_ref().filter(calls).map(|r| r.phase_since);
    let last_read = memory.last_read.max(record.suspicion.as_ref().map(|s| s.last_read));
    record.mutated_at.is_some_and(|at| began <= at)
        || intended.is_some_and(|at| began < at)
        || last_read.is_some_and(|at| began < at)
}

/// Diagnoses a read that counts, and accumulates the suspicion.
fn judge_by(
    fleet: &mut Fleet,
    name: &str,
    reading: &Reading,
    began: Timestamp,
    source: Source,
    turn: &mut Turn,
) {
    let Some(verdict) = verdict(fleet, name, reading, source, turn) else { return };
    let Some(slot) = fleet.settings.slots.get(name) else { return };
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let memory = fleet.memory.entry(name.to_owned()).or_default();
    let condition = verdict.condition;
    if source == Source::Get {
        let incarnation = match reading {
            Reading::Node(view) => view.incarnation.clone(),
            _ => None,
        };
        let asked = record.wanted.is_some()
            || matches!(condition, Condition::Deleting | Condition::Finished);
        memory.confirmed =
            (asked || condition.is_sick()).then_some(Confirmed { began, incarnation, condition });
    }
    // A node whose health is not known to this version may not be able to beat either.
    let unknown = condition == Condition::Unclear && matches!(reading, Reading::Node(_));
    if condition == Condition::Maintenance || unknown {
        at_rest(record);
    }
    if condition == Condition::Stopped && record.suspicion.take().is_some() {
        // A start of it starts other machines.
        fleet.dirty.insert(name.to_owned());
    }
    if unknown {
        // It was read, and was something else: a condition from before does not last through it.
        record.last_clear = None;
    }
    if set_verdict(record, verdict, &mut fleet.dirty, turn)
        || condition.is_sick()
        || record.suspicion.is_some()
    {
        fleet.dirty.insert(name.to_owned());
    }
    if slot.filling.traits().ends_in_place && ended::tell_failure(record, turn) {
        fleet.dirty.insert(name.to_owned());
    }
    let max_gap = fleet.settings.poll.max_gap;
    // An earlier process's last read is known for the poll, not for the slot.
    let last = memory.last_read.or(fleet.ledger.observed_at);
    let missed = last.map(|last| elapsed(last, began).saturating_sub(max_gap)).unwrap_or_default();
    suspect(record, memory, slot.policy.heal, max_gap, condition, began);
    if settled(record, slot.policy.attempts.settled, condition, missed, turn.now) {
        fleet.dirty.insert(name.to_owned());
    }
    settle::settle(fleet, name, turn);
}

/// The condition that a read shows.
fn verdict(
    fleet: &mut Fleet,
    name: &str,
    reading: &Reading,
    source: Source,
    turn: &mut Turn,
) -> Option<Verdict> {
    let slot = fleet.settings.slots.get(name)?;
    let record = fleet.slots.get_mut(name)?;
    match reading {
        Reading::Node(view) => {
            if view.state != NodeState::Ready || diagnose::is_in_window(view, turn.now) {
                at_rest(record);
            }
            let (heard_from, same) =
                (record.job.heard_from, record.incarnation == view.incarnation);
            adopt(record, view, &fleet.settings, &mut fleet.dirty, turn);
            if record.job.heard_from != heard_from {
                fleet.dirty.insert(name.to_owned());
            }
            let verdict = diagnose::node(record, slot, &fleet.ledger, view, turn.now);
            let memory = fleet.memory.get(name);
            let confirmed = memory.is_some_and(|memory| memory.emptiness_confirmed);
            Some(if confirmed {
                verdict
            } else {
                diagnose::unconfirmed(record, same, verdict, view)
            })
        }
        Reading::Absent => {
            let memory = fleet.memory.entry(name.to_owned()).or_default();
            memory.absence_confirmed |= source == Source::Get;
            if slot.filling.traits().ends_in_place && memory.absence_confirmed {
                if let Some(verdict) = ended::deleted(record) {
                    return Some(verdict);
                }
                if learning::described(record, slot, &fleet.settings.owner) {
                    (memory.acceptable, _) = (None, fleet.dirty_specs.insert(name.to_owned()));
                }
            }
            Some(if diagnose::finished(record, slot) {
                diagnose::over(record)
            } else if memory.absence_confirmed {
                Verdict::new(Condition::Missing, "absent from a complete listing, and GET says 404")
            } else if slot.filling.traits().ends_in_place
                && record.verdict.condition == Condition::Going
            {
                // It has ended, so that lists lack it, and its error is still to come.
                Verdict { unconfirmed: true, ..record.verdict.clone() }
            } else {
                Verdict::unconfirmed_absence()
            })
        }
        Reading::Unread(_) => None,
    }
}

/// A host whose node is not READY, or is being repaired, can neither boot nor beat: its time begins
/// when the node is back.
fn at_rest(record: &mut SlotRecord) {
    let job = &mut record.job;
    (job.unbooted_for, job.ungathered_for, job.short_for) = Default::default();
    job.stuck_for = Duration::ZERO;
    for worker in record.job.workers.values_mut() {
        worker.quiet_for = Duration::ZERO;
    }
}

/// Notes what the read showed.
fn note(
    record: &mut SlotRecord,
    view: &NodeView,
    settings: &Settings,
    dirty: &mut BTreeSet<String>,
    turn: &mut Turn,
) {
    let (now, known) = (turn.now, record.incarnation == view.incarnation);
    machines::made_again(record, view, settings, turn);
    let waited = record.seen.as_ref().filter(|_| known).and_then(|seen| seen.waits_since);
    let configured = settings.slots.get(&record.name).and_then(|slot| slot.supervisor.as_deref());
    let hidden = learning::hidden_by_v2(record, view);
    let seen = Seen {
        state: view.state.as_str().to_owned(),
        ready: view.state == NodeState::Ready,
        creating: view.state == NodeState::Creating
            || view.standing.as_ref().is_some_and(|of| of.condition == Condition::Waiting),
        stopped: view.state == NodeState::Stopped,
        health: view.health.as_ref().map(|h| h.as_str().to_owned()),
        maintenance_event: view.maintenance_event,
        memory_symptom: memory_symptom(record, view),
        window_end: view.upcoming.as_ref().filter(|u| u.ongoing).and_then(|u| u.window_end),
        maintenance_start: view.upcoming.as_ref().and_then(|u| u.window_start),
        opted_out: machines::is_opted_out(record, view),
        labelled: machines::opted_out(record, view),
        other_owner: view.owner.clone().filter(|owner| {
            // Former versions wrote the label; what this journal made stays ours.
            let labelled = record.ours && settings.label.as_ref() == Some(owner);
            *owner != settings.owner && !labelled
        }),
        queued_resource: view.queued_resource.clone(),
        multislice: view.multislice,
        is_v1: view.is_v1,
        supervised: view.supervised,
        as_configured: configured.is_some()
            && view.raw.pointer("/metadata/startup-script").and_then(Value::as_str) == configured,
        accelerator: view.accelerator.clone(),
        reserved: view.reserved || hidden.is_some_and(|seen| seen.reserved),
        spot: view.spot,
        reservation: learning::reservation(record, view),
        // Endpoints vanish from a node that is being deleted or repaired: the number of workers
        // does not.
        workers: if view.workers > 0 {
            view.workers
        } else {
            record.seen.as_ref().map_or(0, |s| s.workers)
        },
        run: machines::order(record, view),
        members: view.members.clone(),
        machines: machines::known(record, view),
        out_of_step: view.out_of_step,
        deletable: view.deletable,
        ended: view.ended,
        not_listed: view.not_listed,
        failure: view.failure.clone(),
        outgrown: view.outgrown.clone(),
        times: hidden
            .filter(|seen| seen.times.is_limited && !view.times.is_limited)
            .map_or(view.times, |seen| seen.times),
        own_state: request::own_state(record, view, now),
        waits_since: request::waits_since(record, view, now),
    };
    if record.seen.as_ref() != Some(&seen) {
        record.seen = Some(seen);
        dirty.insert(record.name.clone());
    }
    request::has_waited(record, waited, turn);
}

/// The newest symptom that tells of memory, unless it is of a time of which nothing is known.
fn memory_symptom(record: &SlotRecord, view: &NodeView) -> Option<(String, Timestamp)> {
    let since = record.first_seen.filter(|_| record.incarnation == view.incarnation)?;
    let memory = view.symptoms.iter().filter(|symptom| symptom.kind.ends_with("_MEMORY"));
    let dated = memory.filter_map(|symptom| Some((symptom.kind.clone(), symptom.at?)));
    dated.filter(|(_, at)| *at > since).max_by_key(|(_, at)| *at)
}

/// A node that fills the slot without our doing: another incarnation than the one known.
fn adopt(
    record: &mut SlotRecord,
    view: &NodeView,
    settings: &Settings,
    dirty: &mut BTreeSet<String>,
    turn: &mut Turn,
) {
    if view.state != NodeState::Ready && view.raw.get(TRAINING_KEY).is_some() {
        // The service has restarted it: it saves nothing before it runs again.
        record.ready_since = None;
    }
    if view.state == NodeState::Ready && record.ready_since.is_none() {
        record.ready_since = Some(turn.now);
    }
    if view.incarnation.is_none() {
        return;
    }
    if record.incarnation == view.incarnation {
        // A record of the first version does not say when its node was first seen.
        if record.first_seen.is_none() {
            record.first_seen = Some(turn.now);
            dirty.insert(record.name.clone());
        }
        // unverified: reads of a node that is CREATING show its metadata; it may come later.
        // settled by: gcloud compute tpus tpu-vm describe NODE --zone ZONE --format 'yaml(state,metadata)', while it is created
        if !record.ours
            && record.released.is_none()
            && learning::is_ours(record, view, &settings.owner)
        {
            record.ours = true;
            record.job.generation = record.job.generation.max(record.heard_from());
            dirty.insert(record.name.clone());
            let text = "its metadata shows by now, and names this watchdog: it is ours";
            turn.tell(record, What::Note, text);
            know_request(record, settings);
        }
        // A client may change its run order: the job that runs under the former one is still heard.
        if let Some(run) = &view.run {
            record.job.heard_from = Some(record.heard_from().min(run.generation));
        }
        return;
    }
    if let (Some(old), Some(new)) = (&record.incarnation, &view.incarnation) {
        turn.tell(
            record,
            What::Note,
            format!("the node was replaced outside the watchdog: {old} is now {new}"),
        );
    }
    let ours = learning::is_ours(record, view, &settings.owner);
    become_incarnation(record, view, ours, turn.now);
    know_request(record, settings);
    let other =
        view.slot.as_ref().filter(|_| !ours && view.owner.as_ref() == Some(&settings.owner));
    if let Some(other) = other {
        let text = format!(
            "its TPU was created for slot {other}, the name to which its hosts report: what runs there is not watched or restarted. \
             `recreate {} --yes` replaces it; or give the slot its former name",
            record.name
        );
        turn.tell(record, What::Note, text);
    }
    if view.ended {
        record.deleted = Some("it had ended before this watchdog saw it".to_owned());
    }
}

/// A queued resource of ours that is taken up once more is followed like one that was just asked for.
fn know_request(record: &mut SlotRecord, settings: &Settings) {
    let id = settings.slots.get(&record.name).map_or("", |slot| slot.filling.id());
    if record.ours && record.request.is_none() && !id.is_empty() {
        record.request = Some(id.to_owned());
    }
}

/// `when_missing = "auto"`: a node at work that turns to DELETING, and not by us, is deleted on
/// purpose. After what was lost, or maintenance on Spot, DELETING is only its end.
fn notice_deletion(
    record: &mut SlotRecord,
    view: &NodeView,
    ledger: &Ledger,
    dirty: &mut BTreeSet<String>,
    now: Timestamp,
) {
    ended::notice_cancel(record, view);
    if diagnose::was_no_deletion(record, view, now) && record.deleted.take().is_some() {
        dirty.insert(record.name.clone());
    }
    let inside = diagnose::loses_its_node(view);
    let Some(seen) = record.seen.as_ref().filter(|_| view.state == NodeState::Deleting || inside)
    else {
        return;
    };
    // Also a delete of ours whose answer was lost, and the API's own end of a create that failed.
    let by_us = record.recovery.as_ref().is_some_and(|r| {
        matches!(r.phase(), Phase::Deleting | Phase::Creating)
            || r.condemned.is_some() && r.condemned == view.incarnation
    });
    // Also under the name that its slot had before.
    let withdrawn = |stray: &Stray| {
        let same = stray.zone == record.zone && stray.incarnation == view.incarnation;
        same && stray.is_being_removed()
    };
    let recent = record.deleting.as_ref().filter(|(_, at)| elapsed(*at, now) < OWN_DELETE_FOR);
    let called_off = recent.is_some_and(|(of, _)| view.incarnation.as_ref() == Some(of));
    let by_us = by_us || called_off || ledger.strays.values().any(withdrawn);
    // A request that goes takes its nodes along, and the end of its capacity both.
    let by_request = view.queued_resource.is_some()
        || view.by_service && !inside
        || diagnose::runs_out(view, now);
    if diagnose::was_there(seen) && !by_us && !by_request && record.deleted.is_none() {
        record.deleted = Some(format!("another client deleted it while it was {}", seen.state));
        dirty.insert(record.name.clone());
    }
}
