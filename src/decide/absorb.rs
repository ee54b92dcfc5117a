//! Takes one input into the fleet: what was read, what came of a call, what the user now wants.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::action::{CallOutcome, Input, Poll, Reading};
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::checkpoint::{Checkpoint, CheckpointSurvey};
use crate::model::condition::Kind;
use crate::model::event::What;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Pending, after, elapsed};
use crate::model::mutant::{self, Mutant};
use crate::model::node::{Incarnation, NodeView};
use crate::model::recovery::Phase;
use crate::model::settings::{Policy, Settings, SlotSettings};
use crate::model::slot::{JobState, SlotRecord};

use super::beside::Beside;
use super::observe::{self, Source, observe};
use super::turn::Turn;
use super::{ending, lever, location, recover, runs};

/// Dispatches one input.
pub fn absorb(fleet: &mut Fleet, input: Input, turn: &mut Turn) {
    match input {
        Input::Configured(settings) => configured(fleet, *settings, turn),
        Input::Polled(poll) => polled(fleet, *poll, turn),
        Input::Got { slot, began, reading } => {
            done(fleet, &slot, Pending::Node);
            observe(fleet, &slot, reading, began, Source::Get, turn);
        }
        Input::Attributes { slot, of, began, result } => {
            done(fleet, &slot, Pending::Attributes);
            if let Some(memory) = fleet.memory.get_mut(&slot) {
                memory.answered = true;
            }
            match result {
                Ok(reports) => attributes(fleet, &slot, &of, began, &reports, turn),
                Err(failure) => unread_attributes(fleet, &slot, &failure, turn),
            }
        }
        Input::Surveyed { slot, began, location, result } => {
            done(fleet, &slot, Pending::Checkpoints);
            match result {
                Ok(survey) => surveyed(fleet, &slot, began, &location, survey, turn),
                Err(failure) => {
                    let listed = fleet.settings.slots.get(&slot).and_then(location::listed);
                    if let Some(record) = fleet.slots.get_mut(&slot)
                        && listed.is_some_and(|listed| listed.uri == location)
                        && location::failed(record, &failure, turn)
                    {
                        fleet.dirty.insert(slot.clone());
                    }
                    let memory = fleet.memory.entry(slot).or_default();
                    (memory.survey_failure, memory.went_back) = (Some(failure.to_string()), false);
                }
            }
        }
        Input::Called { slot, outcome } => {
            done(fleet, &slot, Pending::Call);
            called(fleet, &slot, outcome, turn);
        }
        Input::Operated { slot, operation, result } => {
            done(fleet, &slot, Pending::Operation);
            recover::operated(fleet, &slot, &operation, result, turn);
        }
        Input::Pulled(levers) => {
            fleet.look_anew();
            lever::pulled(fleet, levers, turn);
        }
        Input::Tick => {}
    }
}

fn done(fleet: &mut Fleet, slot: &str, pending: Pending) {
    if let Some(memory) = fleet.memory.get_mut(slot) {
        memory.pending.remove(&pending);
    }
}

fn configured(fleet: &mut Fleet, settings: Settings, turn: &mut Turn) {
    let mut before = std::mem::replace(&mut fleet.settings, settings);
    fleet.look_anew();
    let kept = fleet.ledger.left_paused.len();
    fleet.ledger.left_paused.retain(|_, pause| pause.until.is_none_or(|until| until > turn.now));
    fleet.dirty_ledger |= fleet.ledger.left_paused.len() != kept;
    for (name, slot) in &fleet.settings.slots {
        match fleet.slots.get_mut(name) {
            None => {
                let zone = slot.zones.first().map_or("", String::as_str);
                let mut record = SlotRecord::new(name, zone, turn.now);
                record.paused = fleet.ledger.left_paused.remove(name);
                fleet.dirty_ledger |= record.paused.is_some();
                fleet.slots.insert(name.clone(), record);
                fleet.memory.entry(name.clone()).or_default();
            }
            Some(record) => {
                record.leaving = false;
                let idle = record.incarnation.is_none() && record.recovery.is_none();
                if idle && !slot.zones.contains(&record.zone) {
                    record.zone = slot.zones.first().cloned().unwrap_or_default();
                }
            }
        }
        fleet.dirty.insert(name.clone());
    }
    let gone: Vec<String> = fleet.slots.keys().filter(|name| !fleet.settings.slots.contains_key(*name)).cloned().collect();
    for name in gone {
        let Some(record) = fleet.slots.get_mut(&name) else { continue };
        if record.recovery.as_ref().is_some_and(|r| r.owes_create()) || mutant::is(Mutant::LeavingIsWatched) {
            turn.note(format!("{name} was taken out of the config while a create is owed: it is finished first"));
            record.leaving = !mutant::is(Mutant::LeavingIsWatched);
            // It is created as it was configured last.
            let slot = before.slots.remove(&name).unwrap_or_else(|| journaled(record));
            fleet.settings.slots.insert(name.clone(), slot);
            fleet.dirty.insert(name);
        } else {
            turn.note(format!("{name} is not in the config any more: it is not watched from now on"));
            drop_slot(fleet, name, turn);
        }
    }
}

/// Forgets a slot, but for a person's pause: the config without it may be a mistake. An incident that is still open ends.
pub fn drop_slot(fleet: &mut Fleet, name: String, turn: &mut Turn) {
    recover::withdraw(fleet, &name, "it is not watched any more", turn);
    if let Some(pause) = fleet.slots.remove(&name).and_then(|record| record.paused) {
        fleet.ledger.left_paused.insert(name.clone(), pause);
        fleet.dirty_ledger = true;
    }
    fleet.settings.slots.remove(&name);
    fleet.memory.remove(&name);
    turn.remove(name);
}

/// A slot of which nothing is known but what is journaled.
fn journaled(record: &SlotRecord) -> SlotSettings {
    let owed = record.owed.as_deref().cloned().unwrap_or_default();
    SlotSettings {
        name: record.name.clone(),
        zones: if owed.zones.is_empty() { vec![record.zone.clone()] } else { owed.zones },
        create: owed.create,
        job: owed.job,
        policy: Policy::default(),
        supervisor: owed.supervisor,
    }
}

fn polled(fleet: &mut Fleet, poll: Poll, turn: &mut Turn) {
    fleet.polls += 1;
    let mut complete = true;
    let mut nodes: Vec<Arc<NodeView>> = Vec::new();
    let mut unread: BTreeMap<String, String> = BTreeMap::new();
    let mut read_all = false;
    for listing in poll.listings {
        match listing.result {
            Ok((found, unreachable)) => {
                read_all |= listing.zone == "-";
                for zone in unreachable {
                    if mutant::is(Mutant::UnreachableIsEmpty) {
                        continue;
                    }
                    complete = false;
                    unread.insert(zone, "the API could not reach the zone".to_owned());
                }
                nodes.extend(found);
            }
            Err(failure) => {
                complete = false;
                if mutant::is(Mutant::FailedListingIsEmpty) {
                    continue;
                }
                unread.insert(listing.zone, format!("the listing failed: {failure}"));
            }
        }
    }
    let mut nodes = Nodes::new(nodes);
    let mut changed: Vec<(String, Reading)> = Vec::new();
    let (mut slots, mut memories) = (Beside::new(&fleet.settings.slots), Beside::new(&mut fleet.memory));
    for (name, record) in &mut fleet.slots {
        let (slot, mut memory) = (slots.at(name), memories.at(name));
        // A slot with several zones and no node yet may have been created in any of them.
        if record.incarnation.is_none()
            && record.recovery.is_none()
            && let Some(zone) = slot.and_then(|slot| slot.zones.iter().find(|zone| nodes.get(zone, name).is_some()))
        {
            record.zone.clone_from(zone);
        }
        let was_read = !unread.contains_key(&record.zone) && (read_all || !unread.contains_key("-"));
        if was_read
            && record.recovery.is_none()
            && memory.as_ref().is_some_and(|memory| memory.absence_confirmed)
            && nodes.get(&record.zone, name).is_none()
            && let Some(zone) = slot.and_then(|slot| slot.zones.iter().find(|zone| nodes.get(zone, name).is_some()))
        {
            // A GET says that it is gone where it was: somebody has made it where it may be, too.
            turn.tell(record, What::Note, format!("the node is in {zone} now, and not in {} any more", record.zone));
            record.zone.clone_from(zone);
            (record.incarnation, record.suspicion) = (None, None);
            if let Some(memory) = &mut memory {
                // That it is absent was said of where it was.
                (memory.absence_confirmed, memory.confirmed, memory.last_read) = (false, None, None);
            }
            fleet.dirty.insert(name.clone());
        }
        let found = nodes.get(&record.zone, name);
        let mut unseen = unread.get(&record.zone).or_else(|| if read_all { None } else { unread.get("-") });
        if found.is_none() && record.incarnation.is_none() && record.recovery.is_none() {
            // It may live in another of its zones, one that could not be read.
            unseen = unseen.or_else(|| slot.and_then(|slot| slot.zones.iter().find_map(|zone| unread.get(zone))));
        }
        let reading = match (unseen, found) {
            (Some(why), _) => Reading::Unread(why.clone()),
            (None, Some(view)) => {
                if let (Some(slot), Some(memory)) = (slot, memory)
                    && observe::goes_on(record, memory, slot, &fleet.ledger, view, poll.began, turn.now)
                {
                    continue;
                }
                Reading::Node(Arc::clone(view))
            }
            (None, None) => Reading::Absent,
        };
        changed.push((name.clone(), reading));
    }
    for (name, reading) in changed {
        observe(fleet, &name, reading, poll.began, Source::List, turn);
    }
    if complete {
        fleet.ledger.observed_at = Some(turn.now);
        fleet.dirty_ledger = true;
    }
}

/// The nodes of a poll, found by zone and name. In the order of names first, as slots are looked up: the next one is mostly the
/// next here, whatever zones there are.
struct Nodes {
    sorted: Vec<Arc<NodeView>>,
    next: usize,
}

impl Nodes {
    fn new(mut nodes: Vec<Arc<NodeView>>) -> Nodes {
        let order = |a: &Arc<NodeView>, b: &Arc<NodeView>| a.node.cmp(&b.node).then_with(|| a.zone.cmp(&b.zone));
        // The API lists a zone in this order, mostly.
        if !nodes.is_sorted_by(|a, b| order(a, b).is_lt()) {
            nodes.sort_by(order);
            // Of one that is listed twice the last counts.
            nodes.dedup_by(|later, kept| {
                let twice = order(later, kept).is_eq();
                if twice {
                    std::mem::swap(later, kept);
                }
                twice
            });
        }
        Nodes { sorted: nodes, next: 0 }
    }

    fn get(&mut self, zone: &str, name: &str) -> Option<&Arc<NodeView>> {
        let is = |view: &Arc<NodeView>| view.node == name && view.zone == zone;
        if !self.sorted.get(self.next).is_some_and(is) {
            self.next = self.sorted.partition_point(|view| (view.node.as_str(), view.zone.as_str()) < (name, zone));
            if !self.sorted.get(self.next).is_some_and(is) {
                return None;
            }
        }
        self.next += 1;
        self.sorted.get(self.next - 1)
    }
}

fn called(fleet: &mut Fleet, slot: &str, outcome: CallOutcome, turn: &mut Turn) {
    let now = turn.now;
    if let Some(record) = fleet.slots.get_mut(slot) {
        let creating = record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Creating);
        // Whatever came back: reads that began before this prove nothing about the slot (S2). Only a create that never left
        // changed nothing; a delete that never left is verified anew.
        if !(creating && matches!(outcome, CallOutcome::NotSent(_))) {
            record.mutated_at = Some(now);
        }
        fleet.dirty.insert(slot.to_owned());
    }
    recover::called(fleet, slot, outcome, turn);
}

/// An organisation may forbid guest attributes: a failed read adds nothing and clears nothing, and is told once.
fn unread_attributes(fleet: &mut Fleet, slot: &str, failure: &Failure, turn: &mut Turn) {
    let memory = fleet.memory.entry(slot.to_owned()).or_default();
    if !std::mem::replace(&mut memory.attributes_failing, true)
        && let Some(record) = fleet.slots.get(slot)
    {
        let message = if failure.class == FailureClass::NotFound {
            format!(
                "guest attributes: 404, {}: no worker of this node ever wrote one, or the node is gone; this is taken for no answer, and \
                 nothing is concluded from missing beacons",
                failure.message
            )
        } else {
            format!("guest attributes can't be read: {failure}; nothing is concluded from missing beacons")
        };
        turn.tell(record, What::Note, message);
    }
}

fn attributes(fleet: &mut Fleet, slot: &str, of: &Incarnation, began: Timestamp, reports: &[WorkerReport], turn: &mut Turn) {
    let now = turn.now;
    let max_gap = fleet.settings.poll.max_gap;
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    if record.incarnation.as_ref() != Some(of) {
        return;
    }
    let workers = record.seen.as_ref().map_or(1, |s| s.workers.max(1));
    let gap = record.job.attributes_at.map(|last| elapsed(last, now).min(max_gap)).unwrap_or_default();
    record.job.attributes_at = Some(now);
    let memory = fleet.memory.entry(slot.to_owned()).or_default();
    memory.attributes_failing = false;
    // The API answers with one entry a worker: an answer that lacks one says nothing about it.
    let whole = reports.len() >= workers || mutant::is(Mutant::ShortReports);
    if whole {
        memory.heard = memory.heard.max(Some(began.min(now)));
    }
    let from = if mutant::is(Mutant::AnotherGeneration) { record.job.generation } else { record.heard_from() };
    let mut step = None;
    for (index, report) in reports.iter().enumerate() {
        let fresh = |beacon: &&Beacon| beacon.generation >= from;
        let worker = record.job.workers.entry(index).or_default();
        if report.boot.as_ref().filter(fresh).is_some() {
            worker.booted = true;
            if !fleet.ledger.beacons_seen {
                fleet.ledger.beacons_seen = true;
                fleet.dirty_ledger = true;
            }
        }
        match report.heartbeat.as_ref().filter(fresh) {
            Some(beat) => {
                worker.in_setup = beat.text.starts_with("setup");
                record.job.runs.began |= !worker.in_setup;
                let value = (beat.boot_id.clone(), beat.value);
                if worker.heartbeat.as_ref() == Some(&value) {
                    worker.quiet_for += gap;
                } else {
                    worker.heartbeat = Some(value);
                    worker.quiet_for = std::time::Duration::ZERO;
                }
            }
            None if worker.booted => worker.quiet_for += gap,
            None => {}
        }
        step = step.max(report.step.as_ref().filter(fresh).and_then(|b| u64::try_from(b.value).ok()));
    }
    let setup = |report: &WorkerReport| report.heartbeat.as_ref().filter(|beat| beat.text.starts_with("setup_failed")).cloned();
    let failing = reports.iter().enumerate().find_map(|(index, report)| Some((index, setup(report)?)));
    if std::mem::replace(&mut memory.setup_failing, failing.is_some()) != failing.is_some()
        && let Some((index, beat)) = failing
    {
        let message = format!("worker {index}: the startup script fails, and the job waits for it: {}", beat.text);
        turn.tell(record, What::SetupFailed { worker: index }, message);
    }
    let booted = (0..workers).all(|w| record.job.workers.get(&w).is_some_and(|s| s.booted));
    if whole && !booted && record.ready_since.is_some() {
        record.job.unbooted_for += gap;
    }
    fleet.dirty.insert(slot.to_owned());
    if step > record.job.step {
        record.job.step = step;
        step.into_iter().for_each(|step| _ = runs::stepped(record, step));
        recover::progress(record, now);
    }
    // Journaled under the job that the run order started, whatever the config says by now. Where that order is not known (the
    // slot left the config, the state was lost), the node's own script tells whether it runs the present one.
    let as_configured = record.seen.as_ref().is_some_and(|seen| seen.as_configured);
    let job = fleet.settings.slots.get(slot).and_then(|s| s.job.as_ref()).filter(|_| as_configured);
    let present = || job.map(|job| job.key());
    let key = record.job.ordered.clone().or_else(present);
    let kind = |job: &JobState| (job.stuck, job.failed.as_ref().map(|(worker, code, _)| (*worker, *code)));
    let failed = kind(&record.job);
    let finished = ending::exits(record, reports, from, key.as_deref(), whole, now);
    if finished && key.is_some() && record.job.finished != key {
        record.job.finished = key;
        record.suspicion = None;
        if let Some(memory) = fleet.memory.get_mut(slot) {
            memory.confirmed = None;
        }
        turn.tell(record, What::JobFinished, "worker 0 ended with code 0: the job is finished, the TPU is kept");
        recover::finished(fleet, slot, turn);
    }
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    if kind(&record.job) != failed
        && let Some((code, message)) = ending::told(record)
    {
        turn.tell(record, What::JobFailed { code }, message);
    }
    recover::settle(fleet, slot, turn);
}

fn surveyed(fleet: &mut Fleet, slot: &str, began: Timestamp, location: &str, mut survey: CheckpointSurvey, turn: &mut Turn) {
    let now = turn.now;
    let settings = fleet.settings.slots.get(slot).and_then(|s| s.job.as_ref()).and_then(|j| j.checkpoint.as_ref());
    let Some(settings) = settings.filter(|checkpoint| checkpoint.uri == location && checkpoint.is_listed()) else {
        // The config names another location by now.
        return;
    };
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    if runs::is_outdated(record, began) {
        return;
    }
    if let (Some((step, _)), true) = (survey.incomplete, mutant::is(Mutant::IncompleteIsComplete)) {
        survey.newest = Some(Checkpoint { step, uri: format!("{location}/{step}") });
    }
    let memory = fleet.memory.entry(slot.to_owned()).or_default();
    memory.surveyed_at = Some(began.min(now));
    memory.survey_failure = None;
    let seen = survey.clone();
    let job = &mut record.job;
    // What the first look at a location finds was there before: it is no progress.
    let mut first = job.location != location;
    if first {
        // Another location is another history: steps of the old one mean nothing here.
        job.accepts.take_if(|_| !job.location.is_empty());
        job.location = location.to_owned();
        job.checkpoint = None;
        job.incomplete = None;
        job.went_back_since = None;
        job.location_since = record.incarnation.as_ref().map(|incarnation| incarnation.created);
        runs::elsewhere(&mut job.runs, survey.newest.as_ref().map(|c| c.step));
        fleet.dirty.insert(slot.to_owned());
    }
    // So is what a person goes back to, once it is listed; from 0 whatever is there, also nothing.
    let newest = survey.newest.as_ref().map(|c| c.step);
    let went_back_to = job.accepts.take_if(|(least, _)| *least == 0 || newest >= Some(*least)).is_some();
    if went_back_to {
        runs::went_back(&mut job.runs, newest);
        first = true;
        fleet.dirty.insert(slot.to_owned());
    }
    let newer = survey.newest > job.checkpoint && job.accepts.is_none();
    // A listing that lags behind or lacks something may show once more what was there before: that is no growth.
    let beyond = survey.incomplete.map(|(step, _)| step) > job.checkpoint.as_ref().map(|c| c.step);
    let grown = beyond && job.incomplete.is_some() && survey.incomplete > job.incomplete;
    // The first one that is known may be old: growth is counted from there.
    let begins = job.incomplete.is_none() && survey.incomplete.is_some();
    let lacks = match (&job.checkpoint, job.accepts) {
        (Some(recorded), _) => {
            (survey.newest.as_ref() < Some(recorded)).then(|| format!("step {} was recorded before", recorded.step))
        }
        (None, Some((least, _))) => Some(format!("step {least} or a later one was asked for")),
        (None, None) => None,
    };
    memory.survey_failure = lacks.map(|lacks| {
        let newest = newest.map_or("none".to_owned(), |step| format!("step {step}"));
        format!("the newest complete checkpoint under {location} is {newest}, but {lacks}")
    });
    let went_back = memory.survey_failure.is_some();
    memory.went_back = went_back;
    let newer = newer || (mutant::is(Mutant::CheckpointGoesBack) && went_back);
    if mutant::is(Mutant::CheckpointGoesBack) {
        memory.survey_failure = None;
    }
    if went_back != job.went_back_since.is_some() {
        job.went_back_since = went_back.then_some(began.min(now));
        fleet.dirty.insert(slot.to_owned());
    }
    let mut news = false;
    if newer {
        job.checkpoint = survey.newest;
        // How old that is which a person goes back to is not known.
        job.checkpoint_at = (!went_back_to).then_some(now);
        // What was listed before, and passed over or lost since, is no news.
        let step = record.job.checkpoint.as_ref().map(|c| c.step);
        news = step.is_some_and(|step| runs::listed(record, step)) && !first;
        if news {
            runs::progressed(record);
            // Preemptions are the provider's doing: they slide out of their window instead.
            record.attempts.retain(|a| a.kind == Kind::Lost);
        }
    }
    if newer || grown || begins {
        // With a new complete one, what else is there now is where growth begins: an earlier run may have left something.
        record.job.incomplete = if newer { survey.incomplete } else { record.job.incomplete.max(survey.incomplete) };
        if news || (grown && !first) {
            recover::progress(record, now);
        }
        fleet.dirty.insert(slot.to_owned());
    }
    if went_back_to && seen.newest.is_none() {
        // An operator has said that the job begins again here: what lies there now is accepted.
        record.job.location_since = seen.other.as_ref().and_then(|other| other.oldest);
    }
    record.job.listed_at = Some(began.min(now));
    // Written where a judgement may soon rest on it.
    let changed = location::surveyed(record, settings, &seen, now, turn);
    if changed || record.suspicion.is_some() {
        fleet.dirty.insert(slot.to_owned());
    }
    recover::settle(fleet, slot, turn);
}

/// When a lost slot of this record may be tried again: preemptions slide out of their window.
pub fn slides_at(record: &SlotRecord, policy: &Policy) -> Option<jiff::Timestamp> {
    record.attempts.iter().find(|a| a.kind == Kind::Lost).map(|oldest| after(oldest.at, policy.attempts.window))
}
