//! Operator commands, as the journal takes them in.

use jiff::Timestamp;

use crate::model::command::{Command, CommandKind, Pause};
use crate::model::condition::{Condition, Verdict};
use crate::model::event::{CallResult, CommandName, Event, Verb, What};
use crate::model::fleet::{Fleet, Memory, Pending};
use crate::model::hold::HoldReason;
use crate::model::ids::Incarnation;
use crate::model::phase::Phase;
use crate::model::relaunch::{Asked, Release};
use crate::model::slot::{SlotRecord, Wish};
use crate::model::step::Call;
use crate::model::time::{elapsed, span};
use crate::model::training::Resubmitted;
use crate::model::traits::BudgetOf;

use super::moves::came_of;
use super::turn::Turn;
use super::{called_off, ending, relaunch, reload, runs, settle};

/// Carries commands out, each once: the commit that holds their effect takes them out of the
/// store.
pub fn carry_out(fleet: &mut Fleet, commands: Vec<Command>, turn: &mut Turn) {
    for command in commands {
        let ended = wants_job_again(fleet, &command.kind);
        let (name, about) = (name(&command.kind), command.kind.slot().map(str::to_owned));
        let left = about.as_ref().filter(|slot| !fleet.slots.contains_key(*slot));
        // A slot that left the config is known for a while: a pause waits for the day on which it is
        // back.
        let pauses = matches!(command.kind, CommandKind::Pause { .. });
        let has_left = left.is_some();
        let kept = |slot: &String| {
            fleet.left.contains_key(slot) || fleet.ledger.left_paused.contains_key(slot)
        };
        let unknown = left.is_some_and(|slot| !pauses && !kept(slot));
        let why = command.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        let late = is_of_another_day(fleet, &command, turn.now);
        let message = match left {
            _ if late => format!(
                "{name} by {} was given at {:.0}, {} before it was read: nothing was done, since another job may run there by now; give it again",
                command.who,
                command.at,
                span(elapsed(command.at, turn.now))
            ),
            Some(slot) if unknown => {
                format!("{name} by {}: there is no slot {slot:?}; nothing was done", command.who)
            }
            Some(_) if pauses => format!(
                "{name}{} by {}{why}; it is not in the config; the pause applies once it is back",
                effect(&command.kind),
                command.who
            ),
            _ => format!("{name}{} by {}{why}{ended}", effect(&command.kind), command.who),
        };
        if !unknown && !late {
            apply(fleet, &command, turn);
        }
        let until =
            if let CommandKind::Pause { until, .. } = &command.kind { *until } else { None };
        let what = What::Command {
            command: name,
            who: command.who.clone(),
            reason: command.reason.clone(),
            until,
            left: has_left,
        };
        turn.happened(Event { at: turn.now, slot: about, message, what });
        turn.command_done(command.id);
    }
}

/// When the job of a slot starts that an operator wants again: a supervisor can't be told before
/// its next boot.
fn wants_job_again(fleet: &Fleet, kind: &CommandKind) -> &'static str {
    let CommandKind::Retry { slot, .. } = kind else { return "" };
    let record = fleet.slots.get(slot).filter(|record| record.incarnation.is_some());
    record.and_then(ending::starts_again).unwrap_or_default()
}

/// The command, as the event log names it.
pub fn name(kind: &CommandKind) -> CommandName {
    match kind {
        CommandKind::Pause { .. } => CommandName::Pause,
        CommandKind::Resume { .. } => CommandName::Resume,
        CommandKind::Retry { .. } => CommandName::Retry,
        CommandKind::Forget { .. } => CommandName::Forget,
        CommandKind::Recreate { .. } => CommandName::Recreate,
        CommandKind::Relaunch { .. } => CommandName::Relaunch,
        CommandKind::Done { .. } => CommandName::Done,
        CommandKind::Release { .. } => CommandName::Release,
        CommandKind::Drill { .. } => CommandName::Drill,
        CommandKind::BreakerReset => CommandName::BreakerReset,
    }
}

fn effect(kind: &CommandKind) -> String {
    match kind {
        CommandKind::Pause { slot: None, until: Some(until) } => {
            format!(" of all slots until {until:.0}")
        }
        CommandKind::Pause { slot: None, .. } | CommandKind::Resume { slot: None, .. } => {
            " of all slots".to_owned()
        }
        CommandKind::Pause { until: Some(until), .. } => format!(" until {until:.0}"),
        CommandKind::Resume { adopt: true, .. } => " and adopt".to_owned(),
        CommandKind::Retry { from: Some(step), .. } => format!(" from step {step}"),
        _ => String::new(),
    }
}

fn apply(fleet: &mut Fleet, command: &Command, turn: &mut Turn) {
    let (now, said) = (turn.now, command.at.min(turn.now));
    match &command.kind {
        CommandKind::Pause { slot, until } => {
            let pause = Pause {
                who: command.who.clone(),
                reason: command.reason.clone(),
                until: *until,
                since: Some(command.at.min(now)),
            };
            match slot {
                Some(slot) if !fleet.slots.contains_key(slot) && !fleet.left.contains_key(slot) => {
                    drop(fleet.ledger.left_paused.insert(slot.clone(), pause))
                }
                Some(slot) => change(fleet, slot, |record| record.paused = Some(pause)),
                None => fleet.ledger.paused = Some(pause),
            }
        }
        CommandKind::Resume { slot: Some(slot), adopt } => resume(fleet, slot, *adopt),
        CommandKind::Resume { slot: None, .. } => fleet.ledger.paused = None,
        CommandKind::Retry { slot, from } => {
            let ended = fleet.slots.get(slot).is_some_and(ending::is_started_again_by_an_order);
            retry(fleet, slot, *from, (said, now));
            submit_again(fleet, slot, &command.who, turn);
            if ended {
                // However late it is read: what had ended is forgiven by now, and nothing else would start it.
                relaunch(fleet, slot, &command.who, now);
            }
        }
        CommandKind::Forget { slot, purge } => {
            called_off::call_off(fleet, slot, &format!("forget by {}", command.who), !*purge, turn);
            if *purge {
                reload::purge(fleet, slot, turn);
            }
            change(fleet, slot, |record| {
                record.forgotten = true;
                record.wanted = None;
            });
        }
        CommandKind::Recreate { slot, incarnation } => change(fleet, slot, |record| {
            let lives = record.incarnation.is_some() && !record.has_ended();
            if lives && record.traits().is_its_peoples {
                return;
            }
            wanted(record, said);
            recreate(record, incarnation.clone(), &command.who, now);
        }),
        CommandKind::Relaunch { slot } => relaunch(fleet, slot, &command.who, command.at.min(now)),
        CommandKind::Done { slot } => {
            done(fleet, slot, Asked { who: command.who.clone(), at: said }, turn)
        }
        // The event is watched like any other.
        CommandKind::Drill { .. } => {}
        CommandKind::Release { slot } => release(fleet, slot, &command.who, turn),
        CommandKind::BreakerReset => reset_breaker(fleet),
    }
    fleet.dirty_ledger = true;
}

fn resume(fleet: &mut Fleet, slot: &str, adopt: bool) {
    fleet.ledger.left_paused.remove(slot);
    change(fleet, slot, |record| {
        record.paused = None;
        if adopt {
            adopt_node(record);
        }
        let gone = record.is_gone();
        let Some(seen) = &mut record.seen else { return };
        // Labels of machines that are lost; that of one which is there is read again.
        seen.labelled.clear();
        if gone && seen.opted_out {
            // Also where a person deleted it to get rid of the label.
            (seen.opted_out, record.deleted) = (false, None);
        }
    });
    if let Some(memory) = fleet.memory.get_mut(slot) {
        memory.shown = None;
    }
}

/// The present state is judged from scratch: by the budgets that the open breaker held, or all.
fn reset_breaker(fleet: &mut Fleet) {
    let of = fleet.ledger.breaker.take();
    if of.as_ref().is_none_or(|of| of.holds(BudgetOf::Tpus)) {
        fleet.ledger.unfit.clear();
        fleet.ledger.pools.values_mut().for_each(|pool| pool.failing = None);
        fleet.ledger.pools.retain(|_, pool| !pool.is_sound());
    }
    let slots = &fleet.settings.slots;
    let seen = |slot: &str| {
        let budget = slots.get(slot).map(|slot| slot.filling.traits().budget);
        budget.zip(of.as_ref()).is_none_or(|(budget, of)| of.holds(budget))
    };
    let storm = fleet.ledger.storm.iter_mut();
    storm.for_each(|gust| gust.forgiven |= seen(&gust.slot));
}

/// Whether a command would end what runs by now, and was given too long ago for that (S3).
fn is_of_another_day(fleet: &Fleet, command: &Command, now: Timestamp) -> bool {
    let ends = match &command.kind {
        CommandKind::Recreate { incarnation, .. } => incarnation.is_some(),
        CommandKind::Relaunch { .. } => true,
        _ => false,
    };
    ends && elapsed(command.at, now) >= relaunch::wanted_for(&fleet.settings.poll)
}

/// A person wants the present TPU replaced, or a missing one created.
fn recreate(record: &mut SlotRecord, incarnation: Option<Incarnation>, who: &str, now: Timestamp) {
    record.job.relaunch_by = None;
    // A request that waits has no TPU yet, and the one that it is granted is not meant.
    let waits = record.seen.as_ref().is_some_and(|seen| seen.waits_since.is_some());
    let condition = record.verdict.condition;
    // One that is on its way already needs no wish.
    let absent = incarnation.is_none() && record.incarnation.is_none() && record.recovery.is_none();
    let meant = (incarnation.is_some() || absent) && condition != Condition::Waiting && !waits;
    let wish = Wish { who: who.to_owned(), incarnation, at: Some(now), condition: Some(condition) };
    record.wanted = Some(wish).filter(|_| meant);
    if let Some(recovery) = &mut record.recovery {
        recovery.not_before = None;
        (recovery.unexplained, recovery.halted) = (0, None);
        recovery.closed.clear();
    }
}

/// A person has said then that the slot is wanted.
fn wanted(record: &mut SlotRecord, at: Timestamp) {
    (record.forgotten, record.deleted, record.released) = (false, None, None);
    record.wanted_since = Some(at);
    if let Some(recovery) = &mut record.recovery {
        // Also where only its delete was left of what `forget` had called off.
        recovery.no_create = false;
    }
}

/// A person knows that the present job's work is done: as when it has ended well.
fn done(fleet: &mut Fleet, slot: &str, said: Asked, turn: &mut Turn) {
    let job = fleet.settings.slots.get(slot).and_then(|slot| slot.job.as_ref());
    let (Some(key), Some(record)) = (job.map(|job| job.key()), fleet.slots.get_mut(slot)) else {
        turn.note(format!("done {slot}: the config names no job for it; nothing was done"));
        return;
    };
    let ran = record.job.ordered.clone().unwrap_or_else(|| key.clone());
    if ran != key {
        let text = "done: the job that ran is not the one that the config names by now, which is still wanted";
        turn.tell(record, What::Note, text);
    }
    (record.job.finished, record.job.finished_by) = (Some(ran), Some(said));
    (record.wanted, record.job.relaunch_by, record.job.wanted_again) = (None, None, None);
    if let Some(id) = record.ungranted() {
        let text = format!(
            "done: its queued resource {id} waits on, and may be granted and billed: `forget {slot}` withdraws it"
        );
        turn.tell(record, What::Note, text);
    }
    record.suspicion = None;
    ending::retry(record);
    if let Some(memory) = fleet.memory.get_mut(slot) {
        memory.confirmed = None;
    }
    fleet.dirty.insert(slot.to_owned());
    settle::finished(fleet, slot, turn);
}

/// An operator wants a TPU of ours back, without anything of ours on it.
fn release(fleet: &mut Fleet, slot: &str, who: &str, turn: &mut Turn) {
    let calls = |memory: &Memory| memory.pending.contains(&Pending::Call);
    let calling = fleet.memory.get(slot).is_some_and(calls);
    let Some(record) = fleet.slots.get_mut(slot) else {
        let text = "it is not in the config, so its TPU is not read; put it back, then release it";
        return turn.note(format!("release {slot}: {text}; nothing was done"));
    };
    let rests = record.recovery.as_ref().is_none_or(|r| r.phase() == Phase::Launched);
    let node =
        record.incarnation.clone().filter(|_| record.ours && rests && !record.traits().is_job);
    let Some(incarnation) = node else {
        let why = match (&record.incarnation, record.ours) {
            (None, _) => "it has no TPU now",
            (_, true) => "its TPU is being deleted or replaced",
            (_, false) => "its TPU has nothing of ours",
        };
        return turn.tell(record, What::Note, format!("release: {why}; nothing was done"));
    };
    if !record.seen.as_ref().is_some_and(|seen| seen.ready) {
        turn.tell(record, What::Note, "release: its TPU is not READY; it is released when it is");
    }
    settle::withdraw(fleet, slot, "its TPU is given back", turn);
    change(fleet, slot, |record| {
        record.released = Some(Release { who: who.to_owned(), incarnation, done: false });
        (record.forgotten, record.suspicion) = (true, None);
        (record.wanted, record.job.relaunch_by, record.job.amendment) = (None, None, None);
        record.job.relaunch.take_if(|_| !calling);
    });
}

/// An operator wants the job to start again on the TPU that is there.
fn relaunch(fleet: &mut Fleet, slot: &str, who: &str, said: Timestamp) {
    let calls = |memory: &Memory| memory.pending.contains(&Pending::Call);
    let calling = fleet.memory.get(slot).is_some_and(calls);
    change(fleet, slot, |record| relaunch::asked(record, who, said, calling));
}

/// Gives a slot its attempts back, and whatever else was used up.
fn retry(fleet: &mut Fleet, slot: &str, from: Option<u64>, (said, now): (Timestamp, Timestamp)) {
    change(fleet, slot, |record| {
        wanted(record, said);
        record.attempts.clear();
        // Asked again at once: a right may have been granted.
        record.create_check = None;
        record.job.relaunch_by = None;
        runs::retry(record);
        ending::retry(record);
        record.job.stopped = None;
        if record.job.finished.take().is_some() {
            record.job.wanted_again = Some(record.job.generation);
        }
        if let Some(recovery) = &mut record.recovery {
            recovery.delete_failures = 0;
            recovery.not_before = None;
            (recovery.unexplained, recovery.halted) = (0, None);
            recovery.closed.clear();
        }
        // Something older than what is recorded is taken only when a person says from
        // where.
        if let Some(step) = from {
            (record.job.checkpoint, record.job.incomplete) = (None, None);
            record.job.accepts = Some((step, now));
        }
        record.job.went_back_since = None;
    });
    if let Some(memory) = fleet.memory.get_mut(slot) {
        memory.survey_failure = None;
        memory.surveyed_at = None;
        if !memory.pending.contains(&Pending::Checkpoints) {
            memory.asked_checkpoints = None;
        }
    }
}

/// A training job that has ended is submitted again where nothing else would: it had succeeded, was cancelled,
/// or failed by itself.
fn submit_again(fleet: &mut Fleet, slot: &str, who: &str, turn: &mut Turn) {
    let calls = |memory: &Memory| memory.pending.contains(&Pending::Call);
    let (calling, now) = (fleet.memory.get(slot).is_some_and(calls), turn.now);
    change(fleet, slot, |record| {
        if !record.traits().is_job {
            return;
        }
        record.resubmitted = Resubmitted::default();
        let condition = record.verdict.condition;
        let deleted = record.verdict.hold == Some(HoldReason::Deleted);
        let held = record.decision.as_ref().and_then(|decision| decision.hold);
        let unlisted = held == Some(HoldReason::CreateUnresolved) && record.incarnation.is_none();
        if (deleted || unlisted) && !calling {
            drop_submission(record, who, turn);
        }
        if deleted {
            // It is gone: missing from now on, and created like anything that is.
            let gone = record.incarnation.take();
            record.left_behind = gone.map(|gone| (gone.created, now)).or(record.left_behind);
            record.verdict = Verdict::new(Condition::Unclear, "not read yet");
        } else if record.has_ended() && condition.kind().is_none() {
            recreate(record, record.incarnation.clone(), who, now);
        }
    });
}

/// A submission that a person deleted before it ran shows no more: it is not waited for any longer.
fn drop_submission(record: &mut SlotRecord, who: &str, turn: &mut Turn) {
    let sent = record.recovery.as_ref().filter(|recovery| recovery.phase() == Phase::Creating);
    let Some((cause, call)) = sent.map(|recovery| (recovery.cause, recovery.call().cloned()))
    else {
        return;
    };
    let why = format!("retry by {who}: its submission is not listed, and is not waited for");
    if call != Some(Call::Observed) {
        came_of(record, Verb::Create, CallResult::CalledOff, &why, turn);
    }
    record.recovery = None;
    turn.tell(record, What::Withdrawn { cause }, why);
}

fn change(fleet: &mut Fleet, slot: &str, change: impl FnOnce(&mut SlotRecord)) {
    let record = match fleet.slots.get_mut(slot) {
        Some(record) => Some(record),
        None => fleet.left.get_mut(slot),
    };
    if let Some(record) = record {
        change(record);
        fleet.dirty.insert(slot.to_owned());
    }
}

/// An operator makes another watchdog's node ours, in every sense: its generation goes on from the
/// highest that was seen.
fn adopt_node(record: &mut SlotRecord) {
    record.adopted = record.seen.as_ref().and_then(|seen| seen.other_owner.clone());
    if record.incarnation.is_some() {
        record.ours = true;
        record.job.generation = record.job.generation.max(record.heard_from());
    }
}
