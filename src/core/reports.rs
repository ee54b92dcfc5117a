//! What the workers of a node report through guest attributes.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::beacon::{Beacon, Idle, WorkerReport};
use crate::model::condition::Condition;
use crate::model::event::What;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Ledger, Memory};
use crate::model::ids::Incarnation;
use crate::model::job::{JobState, WorkerState};
use crate::model::job_phase::JobPhase;
use crate::model::relaunch::TAKES_ROLL_CALL;
use crate::model::settings::Grace;
use crate::model::slot::SlotRecord;
use crate::model::time::{after, elapsed};

use super::turn::Turn;
use super::{amend, ending, life, lines, reads, relaunch, runs, settle};

/// After the first word of an end the reports are read once more.
const SIBLINGS: Duration = Duration::from_secs(5);

/// After a refusal for its rate half as many reads are asked for, for so long.
const SLOWED: Duration = Duration::from_secs(600);

/// Applies an answer about the workers of the incarnation `of`, or the failure to get one.
pub fn answered(
    fleet: &mut Fleet,
    slot: &str,
    of: &Incarnation,
    began: Timestamp,
    result: Result<Vec<WorkerReport>, Failure>,
    turn: &mut Turn,
) {
    if let Some(memory) = fleet.memory.get_mut(slot) {
        memory.answered = true;
    }
    match result {
        Ok(reports) => attributes(fleet, slot, of, began, &reports, turn),
        Err(failure) => unread_attributes(fleet, slot, &failure, turn),
    }
}

/// An organisation may forbid guest attributes: a failed read adds nothing and clears nothing, and
/// is told once.
fn unread_attributes(fleet: &mut Fleet, slot: &str, failure: &Failure, turn: &mut Turn) {
    if failure.class == FailureClass::Rate {
        fleet.attributes_slowed = Some(after(turn.now, SLOWED));
    }
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
            format!(
                "guest attributes can't be read: {failure}; nothing is concluded from missing beacons"
            )
        };
        turn.tell(record, What::Note, message);
    }
}

fn attributes(
    fleet: &mut Fleet,
    slot: &str,
    of: &Incarnation,
    began: Timestamp,
    reports: &[WorkerReport],
    turn: &mut Turn,
) {
    let now = turn.now;
    let max_gap = fleet.settings.poll.max_gap;
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    if record.incarnation.as_ref() != Some(of) {
        return;
    }
    let workers = record.seen.as_ref().map_or(1, |s| s.workers.max(1));
    let since = record.job.attributes_at.map(|last| elapsed(last, now));
    // A node that can't be read may be stopped or in maintenance: its silence counts from the next read.
    let unread = record.verdict.condition == Condition::Unclear;
    let gap = since.filter(|_| !unread).unwrap_or_default().min(max_gap);
    let close = since.is_some_and(|since| since <= life::fresh_for(&fleet.settings.poll));
    record.job.attributes_at = Some(now);
    let memory = fleet.memory.entry(slot.to_owned()).or_default();
    memory.attributes_failing = false;
    // The API answers with one entry a worker: an answer that lacks one says nothing about it.
    let whole = reports.len() >= workers;
    if whole {
        memory.heard = memory.heard.max(Some(began.min(now)));
    }
    if whole {
        follow(record, reports);
    }
    let waited = amend::is_followed(record);
    let from = record.heard_from();
    let (mut step, mut booted) = (None, false);
    for (index, report) in reports.iter().enumerate() {
        let worker = record.job.workers.entry(index).or_default();
        let before = worker.heartbeat.clone();
        booted |= report.boot.as_ref().is_some_and(|boot| boot.generation >= from);
        record.job.runs.began |= heard(worker, report, from, gap);
        if worker.quiet_for.is_zero() && worker.heartbeat != before {
            worker.beat_at = (close && before.is_some()).then_some(now);
        }
        let reported = report.step.as_ref().filter(|beacon| beacon.generation >= from);
        step = step.max(reported.and_then(|beacon| u64::try_from(beacon.value).ok()));
    }
    if booted && !std::mem::replace(&mut fleet.ledger.beacons_seen, true) {
        fleet.dirty_ledger = true;
    }
    tell_of_set_up(record, memory, reports, turn);
    let all_booted = (0..workers).all(|w| record.job.workers.get(&w).is_some_and(|s| s.booted));
    if whole && !all_booted && record.ready_since.is_some() {
        record.job.unbooted_for += gap;
    }
    record.job.has_run |= record.job.runs.began;
    fleet.dirty_ledger |= chips(&mut fleet.ledger, record);
    gathered(record, &fleet.ledger, gap, whole);
    amend::tell_followed(record, waited, turn);
    fleet.dirty.insert(slot.to_owned());
    if step > record.job.step {
        record.job.step = step;
        step.into_iter().for_each(|step| _ = runs::stepped(record, step));
        settle::progress(record, now);
    }
    if let Some(record) = fleet.slots.get_mut(slot) {
        lines::keep(record, reports, from, turn);
    }
    ends(fleet, slot, reports, from, whole, turn);
    relaunch::reported(fleet, slot, turn);
    settle::settle(fleet, slot, turn);
}

/// The time that its hosts have been up without an index each of their own, or short of chips.
fn gathered(record: &mut SlotRecord, ledger: &Ledger, gap: Duration, whole: bool) {
    let usual = record.seen.as_ref().and_then(|seen| ledger.chips.get(&seen.accelerator)).copied();
    let short = usual.is_some_and(|usual| !record.short_of_chips(usual).is_empty());
    let ungathered = record.is_ungathered();
    let counts = |so: bool, time: &mut Duration| {
        *time = if so { *time + if whole { gap } else { Duration::ZERO } } else { Duration::ZERO };
    };
    let ready = record.ready_since.is_some();
    counts(ready && ungathered, &mut record.job.ungathered_for);
    counts(ready && short, &mut record.job.short_for);
    let stuck = record.has_stuck_chips().is_some();
    counts(ready && stuck, &mut record.job.stuck_for);
}

/// The most chips that a host of a type has had. Returns whether it is more than before.
fn chips(ledger: &mut Ledger, record: &SlotRecord) -> bool {
    // Of a host that runs the job: any process of a guest may write what it likes.
    let runs = record.job.workers.values().filter(|worker| worker.runs());
    let chips = runs.filter_map(|worker| worker.chips).max();
    let (Some(chips), Some(seen)) = (chips, &record.seen) else { return false };
    let most = ledger.chips.entry(seen.accelerator.clone()).or_default();
    let more = chips > *most;
    *most = chips.max(*most);
    more
}

/// Whatever a node's metadata showed last: once every worker follows an order, the reports of earlier
/// ones are stale.
fn follow(record: &mut SlotRecord, reports: &[WorkerReport]) {
    let of = |report: &WorkerReport| report.boot.as_ref().map(|boot| boot.generation);
    let follows = reports.iter().map(of).min().flatten();
    // Any process of the guest may write these attributes.
    let ordered = follows.filter(|generation| *generation <= record.job.generation);
    if let Some(generation) = ordered.filter(|generation| *generation > record.heard_from()) {
        record.job.heard_from = Some(generation);
    }
}

/// Takes in one worker's boot and heartbeat. Returns whether its job has begun.
fn heard(worker: &mut WorkerState, report: &WorkerReport, from: u64, gap: Duration) -> bool {
    let fresh = |beacon: &&Beacon| beacon.generation >= from;
    // A host that has just booted is alive, although its first heartbeat is still to come.
    let mut rebooted = false;
    // The time before a boot was first seen is no silence.
    let was_booted = worker.booted;
    if let Some(boot) = report.boot.as_ref().filter(fresh) {
        let before = worker.boot_id.replace(boot.boot_id.clone());
        rebooted = before.is_some_and(|before| before != boot.boot_id);
        worker.booted = true;
        (worker.generation, worker.version) = (boot.generation, boot.version());
        (worker.waits, worker.index) = (boot.waits(), boot.index());
        worker.attempt = boot.attempt;
        worker.chips = boot.chips();
    }
    // A run that ended between two heartbeats has begun as well.
    let mut began = worker.version >= TAKES_ROLL_CALL && worker.attempt > 0;
    match report.heartbeat.as_ref().filter(fresh) {
        Some(beat) => {
            worker.in_setup = beat.in_setup();
            began |= beat.idle().is_none();
            let phase = || JobPhase::told(report.phase.as_ref().filter(fresh)?);
            worker.phase = JobPhase::told(beat).or_else(phase);
            let value = (beat.boot_id.clone(), beat.value);
            if worker.heartbeat.as_ref() == Some(&value) {
                worker.quiet_for += gap;
            } else {
                worker.heartbeat = Some(value);
                worker.quiet_for = Duration::ZERO;
            }
        }
        None if was_booted => worker.quiet_for += gap,
        None => {}
    }
    if rebooted {
        worker.quiet_for = Duration::ZERO;
    }
    began
}

/// A startup script that fails is told once, until it no longer does.
fn tell_of_set_up(
    record: &SlotRecord,
    memory: &mut Memory,
    reports: &[WorkerReport],
    turn: &mut Turn,
) {
    let setup = |report: &WorkerReport| {
        report.heartbeat.as_ref().filter(|beat| beat.idle() == Some(Idle::SetUpFails)).cloned()
    };
    let failing =
        reports.iter().enumerate().find_map(|(index, report)| Some((index, setup(report)?)));
    if std::mem::replace(&mut memory.setup_failing, failing.is_some()) != failing.is_some()
        && let Some((index, beat)) = failing
    {
        let message = format!(
            "worker {index}: the startup script fails, and the job waits for it: {}",
            beat.text
        );
        turn.tell(record, What::SetupFailed { worker: index }, message);
    }
}

/// Takes in the exits that were reported: the job may be finished, or may have failed.
fn ends(
    fleet: &mut Fleet,
    slot: &str,
    reports: &[WorkerReport],
    from: u64,
    whole: bool,
    turn: &mut Turn,
) {
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    // Journaled under the job that the run order started, whatever the config says by now. Where
    // that order is not known (the slot left the config, the state was lost), the node's own script
    // tells whether it runs the present one.
    let as_configured = record.seen.as_ref().is_some_and(|seen| seen.as_configured);
    let settings = fleet.settings.slots.get(slot);
    let job = settings.and_then(|s| s.job.as_ref()).filter(|_| as_configured);
    let set_up = settings.map_or(Grace::default().setup, |s| s.policy.grace.setup);
    let present = || job.map(|job| job.key());
    let key = record.job.ordered.clone().or_else(present);
    let kind =
        |job: &JobState| (job.stuck, job.failed.as_ref().map(|(worker, code, _)| (*worker, *code)));
    let failed = kind(&record.job);
    // After `done` the hosts may go on trying: that is no failure of anything that is wanted.
    let over = key.is_some() && record.job.finished == key;
    let finished = ending::exits(record, reports, from, key.as_deref(), whole, set_up, turn.now);
    if finished && key.is_some() && record.job.finished != key {
        (record.job.finished, record.job.finished_by) = (key, None);
        record.suspicion = None;
        if let Some(memory) = fleet.memory.get_mut(slot) {
            memory.confirmed = None;
        }
        let message = "worker 0 ended with code 0: the job is finished, and nothing more is wanted";
        turn.tell(record, What::JobFinished, message);
        settle::finished(fleet, slot, turn);
    }
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    if kind(&record.job) != failed {
        record.job.failed_at = record.job.failed.is_some().then_some(turn.now);
    }
    // The pause before the next run counts from the first word of the present one's end.
    let since = record.job.failing_since.or(Some(turn.now));
    record.job.failing_since = since.filter(|_| record.job.failed.is_some());
    let ended = kind(&record.job) != failed && record.job.failed.is_some();
    if let Some(memory) = fleet.memory.get_mut(slot).filter(|_| ended) {
        // The other workers' ends, and what they say of the cause, follow in a moment.
        let soon = after(turn.now, SIBLINGS.min(fleet.settings.poll.every));
        reads::attributes(record, memory, soon, turn);
    }
    if kind(&record.job) != failed
        && !over
        && let Some((code, message)) = ending::told(record)
    {
        turn.tell(record, What::JobFailed { code: Some(code), stuck: record.job.stuck }, message);
    }
}
