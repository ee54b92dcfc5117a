//! Takes one reading of a slot's node into its record: incarnation, specification, condition, suspicion.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::action::Reading;
use crate::model::condition::{Condition, Kind, Verdict};
use crate::model::event::What;
use crate::model::fleet::{Confirmed, Fleet, Ledger, Memory, after, elapsed};
use crate::model::mutant::{self, Mutant};
use crate::model::node::{NodeState, NodeView};
use crate::model::recovery::{Call, Phase};
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::{Seen, SlotRecord, Suspicion};
use crate::model::spec::NodeSpec;

use super::judge::WINDOW_MAX;
use super::turn::Turn;
use super::{diagnose, ending, recover};

/// What a delete's own operation has ended is not believed to live for this long.
const ENDED_FOR: Duration = Duration::from_secs(24 * 3600);

/// Where a reading comes from. Only a GET settles what became of a call, and only a GET confirms (S1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    List,
    Get,
}

/// Takes in a listed node that says what it said before about a slot that is well: only time goes on. Returns whether that is
/// all; otherwise the reading has to be observed.
pub fn goes_on(
    record: &mut SlotRecord,
    memory: &mut Memory,
    slot: &SlotSettings,
    ledger: &Ledger,
    view: &NodeView,
    began: Timestamp,
    now: Timestamp,
) -> bool {
    let began = began.min(now);
    // While attempts wait to be forgotten, each read counts.
    let at_ease = record.at_ease && record.is_well() && !was_judged(record) && record.healthy_since.is_some();
    let known = at_ease && memory.shown == Some(view.fingerprint) && view.symptoms.is_empty() && !is_in_window(view, now);
    let late = record.mutated_at.is_some_and(|at| began <= at) || memory.last_read.is_some_and(|at| began < at);
    if !known || late || diagnose::reported(record, slot, ledger, now).is_some() {
        return false;
    }
    memory.absence_confirmed = false;
    memory.last_read = Some(began);
    true
}

/// Absorbs one reading that began at `began`.
pub fn observe(fleet: &mut Fleet, name: &str, reading: Reading, began: Timestamp, source: Source, turn: &mut Turn) {
    // The clock may have been set back while the read was under way.
    let began = began.min(turn.now);
    let Some(slot) = fleet.settings.slots.get(name) else { return };
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let memory = fleet.memory.entry(name.to_owned()).or_default();
    let unseen = source == Source::List && !matches!(reading, Reading::Node(_));
    if let Some(suspicion) = record.suspicion.as_mut().filter(|suspicion| unseen && !suspicion.unseen) {
        suspicion.unseen = true;
        fleet.dirty.insert(name.to_owned());
    }
    if let Reading::Unread(why) = reading {
        set_verdict(record, Verdict::new(Condition::Unclear, why), &mut fleet.dirty, turn);
        return;
    }
    // A read that began before our last mutation was answered, or before a read already taken in, shows the past (S2). That
    // was perhaps taken in by a former process, or before the journal was read again: its time must not count twice.
    // Nor does one that began before the intent of a call, whose answer may have come while nothing could be written.
    let intended =
        record.recovery.as_ref().filter(|r| matches!(r.phase, Phase::Deleting | Phase::Creating)).map(|r| r.phase_since);
    let before = record.mutated_at.is_some_and(|at| began <= at) || intended.is_some_and(|at| began < at);
    let before = before && !mutant::is(Mutant::StaleReads);
    let last_read = memory.last_read.max(record.suspicion.as_ref().map(|s| s.last_read));
    if before || last_read.is_some_and(|at| began < at) {
        return;
    }
    let shown = match &reading {
        Reading::Node(view) => Some(view),
        _ => None,
    };
    if shown.is_some_and(|view| shows_the_past(record, view, began, slot.policy.max_age)) {
        return;
    }
    memory.absence_confirmed &= shown.is_none();
    let before = std::mem::replace(&mut memory.shown, shown.map(|view| view.fingerprint));
    if let Some(view) = shown.filter(|_| before != memory.shown) {
        learn(record, view, &fleet.settings, &mut fleet.dirty, &mut fleet.dirty_specs);
        memory.acceptable = None;
    }
    let get = source == Source::Get && shown.is_none();
    if let Some(failure) = if get { recover::failed_and_gone(record, memory) } else { None } {
        memory.last_read = Some(began);
        let policy = slot.policy.clone();
        return recover::create_failed(fleet, name, &policy, failure, turn);
    }
    if recover::observed(record, memory, &fleet.settings, &slot.policy, &reading, source, turn) {
        fleet.dirty.insert(name.to_owned());
    }
    // While the old node is being deleted, or is gone and the new one not there yet, a read is not a diagnosis.
    let between = record.recovery.as_ref().is_some_and(|r| match r.phase {
        Phase::Deleting | Phase::Gone => true,
        Phase::Creating => record.incarnation.is_none(),
        _ => false,
    });
    if between {
        memory.last_read = Some(began);
        return;
    }
    if shown.is_some_and(|view| is_in_window(view, turn.now)) {
        at_rest(record);
    }
    let verdict = match &reading {
        Reading::Node(view) => {
            let heard_from = record.job.heard_from;
            adopt(record, view, &fleet.settings, &mut fleet.dirty, turn);
            if record.job.heard_from != heard_from {
                fleet.dirty.insert(name.to_owned());
            }
            diagnose::node(record, slot, &fleet.ledger, view, turn.now)
        }
        Reading::Absent => {
            let enough =
                [Mutant::AbsenceIsEnough, Mutant::FailedListingIsEmpty, Mutant::UnreachableIsEmpty].into_iter().any(mutant::is);
            memory.absence_confirmed |= source == Source::Get || enough;
            if diagnose::finished(record, slot) {
                Verdict::new(Condition::Finished, diagnose::FINISHED)
            } else if memory.absence_confirmed {
                Verdict::new(Condition::Missing, "absent from a complete listing, and GET says 404")
            } else {
                Verdict::new(Condition::Unclear, "absent from the listing, not yet confirmed by a GET")
            }
        }
        Reading::Unread(_) => return,
    };
    if source == Source::Get {
        let incarnation = match &reading {
            Reading::Node(view) => view.incarnation.clone(),
            _ => None,
        };
        let condition = verdict.condition;
        memory.confirmed = condition.is_sick().then_some(Confirmed { began, incarnation, condition });
    }
    let condition = verdict.condition;
    if matches!(condition, Condition::Maintenance | Condition::Starting | Condition::FailedRepair | Condition::Deleting) {
        at_rest(record);
    }
    if set_verdict(record, verdict, &mut fleet.dirty, turn) || condition.is_sick() || record.suspicion.is_some() {
        fleet.dirty.insert(name.to_owned());
    }
    let max_gap = fleet.settings.poll.max_gap;
    // What an earlier process read last is not known by the slot, but by the poll.
    let last = memory.last_read.or(fleet.ledger.observed_at);
    let missed = last.map(|last| elapsed(last, began).saturating_sub(max_gap)).unwrap_or_default();
    suspect(record, memory, slot.policy.heal, max_gap, condition, began);
    if settled(record, slot.policy.attempts.settled, condition, missed, turn.now) {
        fleet.dirty.insert(name.to_owned());
    }
    recover::settle(fleet, name, turn);
}

/// A host that is being repaired can neither boot nor beat: its time begins when the node is back.
fn at_rest(record: &mut SlotRecord) {
    record.job.unbooted_for = Duration::ZERO;
    for worker in record.job.workers.values_mut() {
        worker.quiet_for = Duration::ZERO;
    }
}

/// Whether a maintenance is announced as going on, whatever the node's health says. One without an end, or with one far ahead,
/// would excuse silence for too long.
fn is_in_window(view: &NodeView, now: Timestamp) -> bool {
    let soon = |end: Timestamp| now < end && elapsed(now, end) <= WINDOW_MAX;
    view.upcoming.as_ref().is_some_and(|upcoming| upcoming.ongoing && upcoming.window_end.is_some_and(soon))
}

/// Keeps what the node is for the day on which it must be created again.
fn learn(
    record: &mut SlotRecord,
    view: &NodeView,
    settings: &Settings,
    dirty: &mut BTreeSet<String>,
    specs: &mut BTreeSet<String>,
) {
    let configured = settings.slots.get(&record.name).and_then(|slot| slot.supervisor.as_deref());
    let seen = Seen {
        state: view.state.as_str().to_owned(),
        health: view.health.as_ref().map(|h| h.as_str().to_owned()),
        maintenance_event: view.maintenance_event,
        window_end: view.upcoming.as_ref().filter(|u| u.ongoing).and_then(|u| u.window_end),
        maintenance_start: view.upcoming.as_ref().and_then(|u| u.window_start),
        opted_out: view.opted_out,
        other_owner: view.owner.clone().filter(|owner| *owner != settings.owner),
        queued_resource: view.queued_resource.clone(),
        multislice: view.multislice,
        is_v1: view.is_v1,
        supervised: view.supervised,
        as_configured: configured.is_some() && view.raw.pointer("/metadata/startup-script").and_then(Value::as_str) == configured,
        accelerator: view.accelerator.clone(),
        reserved: view.reserved,
        // Endpoints vanish from a node that is being deleted or repaired: the number of workers does not.
        workers: if view.workers > 0 { view.workers } else { record.seen.as_ref().map_or(0, |s| s.workers) },
    };
    if record.seen.as_ref() != Some(&seen) {
        record.seen = Some(seen);
        dirty.insert(record.name.clone());
    }
    let healthy = view.state == NodeState::Ready && view.health.as_ref().is_none_or(|h| h.as_str() == "HEALTHY");
    if view.is_v1 || !(record.spec.is_none() || healthy) {
        return;
    }
    if let Some(spec) = NodeSpec::learn(&view.raw)
        && spec.validate().is_ok()
        && record.spec.as_ref() != Some(&spec)
    {
        record.spec = Some(spec);
        specs.insert(record.name.clone());
    }
}

/// A node that fills the slot without our doing: another incarnation than the one known.
fn adopt(record: &mut SlotRecord, view: &NodeView, settings: &Settings, dirty: &mut BTreeSet<String>, turn: &mut Turn) {
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
        // Whoever changes its run order: the job that runs under the former one is still heard.
        if let Some(run) = &view.run {
            record.job.heard_from = Some(record.heard_from().min(run.generation));
        }
        return;
    }
    if record.incarnation.is_some() && mutant::is(Mutant::AnyIncarnation) {
        return;
    }
    if let (Some(old), Some(new)) = (&record.incarnation, &view.incarnation) {
        turn.tell(record, What::Note, format!("the node was replaced by somebody: {old} is now {new}"));
    }
    let ours = view.owner.as_ref() == Some(&settings.owner) && view.slot.as_ref() == Some(&record.name);
    become_incarnation(record, view, ours, turn.now);
}

/// Starts the record of a new incarnation: nothing known of the former one speaks against it.
pub fn become_incarnation(record: &mut SlotRecord, view: &NodeView, ours: bool, now: Timestamp) {
    record.incarnation.clone_from(&view.incarnation);
    record.ours = ours;
    record.ready_since = (view.state == NodeState::Ready).then_some(now);
    record.suspicion = None;
    record.job.heard_from = view.run.as_ref().map(|run| run.generation);
    if ours {
        record.job.generation = record.job.generation.max(record.heard_from());
    }
    record.job.runs.began = false;
    record.job.workers.clear();
    (record.job.attributes_at, record.job.unheard_since) = (None, None);
    record.job.unbooted_for = Duration::ZERO;
    record.first_seen = Some(now);
    ending::forget(record);
}

/// Evidence of different kinds is not added up: what is lost, what the API says of the node, what the supervisor reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Lost,
    State,
    Report,
}

fn class(condition: Condition) -> Option<Class> {
    match condition.kind()? {
        Kind::Lost => Some(Class::Lost),
        Kind::Judged if matches!(condition, Condition::NeverBooted | Condition::Silent) => Some(Class::Report),
        Kind::Judged => Some(Class::State),
    }
}

/// Accumulates sickness over successful reads: gaps and failures add nothing and clear nothing.
fn suspect(
    record: &mut SlotRecord,
    memory: &mut Memory,
    heal: Duration,
    max_gap: Duration,
    condition: Condition,
    began: Timestamp,
) {
    let before = memory.last_read.or(record.suspicion.as_ref().map(|s| s.last_read));
    let max_gap = if mutant::is(Mutant::GapsCount) { Duration::MAX } else { max_gap };
    let gap = before.map(|last| elapsed(last, began).min(max_gap)).unwrap_or_default();
    memory.last_read = Some(began);
    if condition.is_sick() {
        // Only time that follows a sick read is known to be sick: the first one adds nothing.
        let suspicion = record.suspicion.get_or_insert_with(|| Suspicion {
            since: began,
            sick_for: Duration::ZERO,
            reads: 0,
            seen: BTreeSet::new(),
            healthy_for: Duration::ZERO,
            last_read: began,
            unseen: false,
        });
        if suspicion.seen.iter().any(|seen| class(*seen) != class(condition)) {
            suspicion.since = began;
            suspicion.sick_for = Duration::ZERO;
            suspicion.reads = 0;
            suspicion.seen.clear();
        }
        if suspicion.reads > 0 {
            suspicion.sick_for += gap;
        }
        suspicion.reads += 1;
        suspicion.seen.insert(condition);
        suspicion.healthy_for = Duration::ZERO;
        suspicion.last_read = began;
        suspicion.unseen &= condition == Condition::Missing;
    } else if matches!(condition, Condition::Healthy | Condition::Degraded | Condition::Finished | Condition::JobFailed)
        && let Some(suspicion) = &mut record.suspicion
    {
        // It is not known to have been healthy while it was not seen.
        let unseen = std::mem::take(&mut suspicion.unseen) && !mutant::is(Mutant::UnseenHeals);
        suspicion.healthy_for += if unseen { Duration::ZERO } else { gap };
        suspicion.last_read = began;
        if suspicion.healthy_for >= heal && !mutant::is(Mutant::NeverHeals) {
            record.suspicion = None;
        }
    }
}

/// Attempts are forgotten after `settled` healthy time (S13), in which what was `missed` between two reads does not count.
/// Returns whether anything changed that has to be kept.
fn settled(record: &mut SlotRecord, settled: Duration, condition: Condition, missed: Duration, now: Timestamp) -> bool {
    if condition != Condition::Healthy {
        if condition != Condition::Unclear {
            record.healthy_since = None;
        }
        return false;
    }
    let since = *record.healthy_since.get_or_insert(now);
    record.healthy_since = Some(after(since, missed).min(now));
    let settled = is_settled(record, settled, now);
    if settled {
        // Preemptions are a property of the capacity, not of the slot's health: they slide out of their window instead.
        record.attempts.retain(|a| a.kind == Kind::Lost);
    }
    settled || (!missed.is_zero() && was_judged(record))
}

fn was_judged(record: &SlotRecord) -> bool {
    record.attempts.iter().any(|a| a.kind == Kind::Judged)
}

fn is_settled(record: &SlotRecord, settled: Duration, now: Timestamp) -> bool {
    record.recovery.is_none()
        && was_judged(record)
        && record.healthy_since.is_some_and(|since| elapsed(since, now) >= settled || mutant::is(Mutant::SettledAtOnce))
}

fn set_verdict(record: &mut SlotRecord, verdict: Verdict, dirty: &mut BTreeSet<String>, turn: &mut Turn) -> bool {
    if record.verdict.condition == verdict.condition {
        let changed = record.verdict.evidence != verdict.evidence;
        record.at_ease &= !changed;
        record.verdict = verdict;
        return changed && record.verdict.condition != Condition::Unclear;
    }
    let from = record.verdict.condition;
    record.at_ease = false;
    record.since = turn.now;
    if verdict.condition != Condition::Unclear {
        // A read that failed in between does not make an old condition a new one.
        match record.last_clear {
            Some((condition, since)) if condition == verdict.condition => record.since = since,
            _ => record.last_clear = Some((verdict.condition, turn.now)),
        }
    }
    record.verdict = verdict;
    dirty.insert(record.name.clone());
    let message = format!("{} -> {}: {}", from.name(), record.verdict.condition.name(), record.verdict.evidence);
    turn.tell(record, What::Condition { from, to: record.verdict.condition }, message);
    true
}

/// Whether a read that began now still shows a node that has been replaced or deleted: reads may lag behind.
///
/// Creation times are the API's own, so that they order the nodes of one name; a node that is there again long after its
/// end was seen never ended.
fn shows_the_past(record: &SlotRecord, view: &NodeView, began: Timestamp, lag: Duration) -> bool {
    if mutant::is(Mutant::StaleReads) {
        return false;
    }
    let Some(shown) = &view.incarnation else { return false };
    if record.incarnation.as_ref().is_some_and(|known| shown.created < known.created) {
        return true;
    }
    // Clocks of two watchdogs may disagree by more than reads lag: what the API itself has ended stays so for a day.
    let lag = if record.end_was_told { lag.max(ENDED_FOR) } else { lag };
    record.left_behind.is_some_and(|(created, at)| shown.created <= created && elapsed(at, began) < lag)
}

/// Whether a node that was read is the result of one of our creates for this slot.
pub fn is_our_create(record: &SlotRecord, settings: &Settings, view: &NodeView) -> bool {
    let order = record.recovery.as_ref().and_then(|r| r.order.as_ref());
    view.owner.as_ref() == Some(&settings.owner)
        && view.slot.as_ref() == Some(&record.name)
        && order.is_some()
        && view.run.as_ref().map(|r| r.generation) == order.map(|o| o.generation)
}

/// Whether the recovery waits for a GET to learn what became of its call.
pub fn unsettled(call: Option<&Call>) -> bool {
    matches!(call, None | Some(Call::Intended | Call::Unknown | Call::Observed))
}
