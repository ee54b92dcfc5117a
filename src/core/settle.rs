//! How a recovery ends: with progress, with a node that stays healthy, because it healed before anything was deleted, because
//! the job is finished, or because the slot is no longer watched.
//!
//! A new step, or a newer complete checkpoint after the hosts have booted, is progress, and ends it at once. Where no step
//! can be seen, a node that stays healthy has to do: for `heal` where its job runs and saves nowhere, else for
//! `attempts.settled`. A recovery whose delete did not come about ends when its reason is gone.
//!
//! Example: `a` is READY at 10:05, boots at 10:07 and tells step 301 at 10:09; its order was to start from 300. The recovery
//! is over at 10:09, and "recovered … after the first symptom" has the whole outage.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::event::What;
use crate::model::fleet::Fleet;
use crate::model::job::WorkerState;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::Overlay;
use crate::model::slot::SlotRecord;
use crate::model::time::elapsed;
use crate::model::time::span;

use super::moves::advance;
use super::turn::Turn;
use super::{life, pool};

/// A mark of progress: while there is progress, bad health alone condemns nothing.
pub fn progress(record: &mut SlotRecord, now: Timestamp) {
    life::mark(&mut record.job, now);
    // A lost node stays lost: a checkpoint that appears late does not bring it back.
    if record.verdict.condition.kind() != Some(Kind::Lost) {
        record.suspicion = None;
    }
    for worker in record.job.workers.values_mut() {
        worker.quiet_for = Duration::ZERO;
    }
}

/// Moves READY → booted → launched → over, as far as what is known allows; withdraws what healed.
pub fn settle(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    let Some(slot) = fleet.settings.slots.get(name) else { return };
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = &record.recovery else { return };
    let there = match recovery.phase() {
        Phase::Condemned => true,
        Phase::Creating => record.incarnation.is_some(),
        phase => phase.stands(),
    };
    if there && is_unwanted(record, recovery) {
        return withdraw(fleet, name, "its job has finished: nothing follows", turn);
    }
    if recovery.phase() == Phase::Condemned {
        if there {
            healed(fleet, name, turn);
        }
        return;
    }
    if !recovery.phase().stands() {
        return;
    }
    let healthy = record.verdict.condition == Condition::Healthy;
    let supervised = record.seen.as_ref().is_some_and(|s| s.supervised);
    if slot.job.is_none() || slot.supervisor.is_none() || !supervised {
        // Without a job no beacon is expected: it is over when the node is not unhealthy.
        if healthy {
            let works = record.traits().at_work;
            over(fleet, name, works, turn);
        }
        return;
    }
    let workers = record.seen.as_ref().map_or(1, |s| s.workers.max(1));
    let booted = (0..workers).all(|w| record.job.workers.get(&w).is_some_and(|s| s.booted));
    let beats = |w: &WorkerState| w.heartbeat.is_some() && !w.in_setup;
    let launched = record.job.step.is_some() || (booted && record.job.workers.values().any(beats));
    let started_from = recovery.order.as_ref().and_then(|o| o.step);
    let stepped = record.job.step.is_some() && record.job.step > started_from;
    // Where no beacon came, a checkpoint is this run's only when it was seen after the time to
    // boot.
    let since_ready =
        record.ready_since.zip(record.job.checkpoint_at).map(|(ready, at)| elapsed(ready, at));
    let own =
        booted || since_ready.is_some_and(|time| time >= slot.policy.grace.boot(record.size()));
    // A checkpoint that was passed over before, and is taken back by an operator, is no work of
    // this run.
    let before = started_from.max(record.job.runs.listed_before);
    let saved = own && record.job.checkpoint.as_ref().map(|c| c.step) > before;
    let phase = recovery.phase();
    if phase == Phase::Ready && booted {
        advance(record, Phase::Booted, "every worker sent its boot beacon", turn);
        fleet.dirty.insert(name.to_owned());
    }
    let Some(record) = fleet.slots.get_mut(name) else { return };
    if record.recovery.as_ref().is_some_and(|r| r.phase() != Phase::Launched)
        && (launched || stepped || saved)
    {
        advance(record, Phase::Launched, "the job runs", turn);
        fleet.dirty.insert(name.to_owned());
    }
    if stepped || saved {
        over(fleet, name, "the job makes progress again", turn);
        return;
    }
    if healthy {
        stays_healthy(fleet, name, turn);
    }
}

/// Where no step can be seen (yet), or beacons can't be read, a node that stays healthy has to do.
fn stays_healthy(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    let slot = fleet.settings.slots.get(name);
    let Some((slot, job)) = slot.and_then(|slot| Some((slot, slot.job.as_ref()?))) else { return };
    let Some(recovery) = fleet.slots.get(name).and_then(|r| r.recovery.as_ref()) else { return };
    let seen = recovery.phase() == Phase::Launched && job.checkpoint.is_none();
    let patience = if seen { slot.policy.heal } else { slot.policy.attempts.settled };
    if elapsed(recovery.phase_since, turn.now) >= patience {
        over(fleet, name, "the node stays healthy; no step was reported", turn);
    }
}

/// Ends a recovery whose delete did not come about, where its reason is gone.
fn healed(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    let (Some(slot), Some(record)) = (fleet.settings.slots.get(name), fleet.slots.get(name)) else {
        return;
    };
    let Some(recovery) = &record.recovery else { return };
    // A delete whose answer was lost may still come about, and a read may lag behind it: the slot is
    // not let go too early.
    let recent = record.mutated_at.is_some_and(|at| elapsed(at, turn.now) < slot.policy.max_age);
    let repeats = recent && recovery.resends + recovery.spent > 0;
    if repeats || record.wanted.is_some() {
        return;
    }
    let condition = record.verdict.condition;
    let progressed = record.job.progress_at.is_some_and(|at| at > recovery.phase_since);
    // A job that has ended on hosts that are well is no reason for a delete.
    if condition == Condition::Healthy || condition.job_stands() {
        let why = "its hosts were well again before it was deleted: it is left alone";
        withdraw(fleet, name, why, turn);
    } else if progressed && condition.kind() == Some(Kind::Judged) {
        let why = "its job made progress before it was deleted: it is left alone";
        withdraw(fleet, name, why, turn);
    }
}

/// The job is finished; a delete that is its very end, and did not come about yet, goes on.
fn is_unwanted(record: &SlotRecord, recovery: &Recovery) -> bool {
    let finished = Condition::Finished;
    record.verdict.condition == finished && recovery.cause != finished
}

/// The job of a slot has ended well. What was sent, and what is owed, goes on: that ends no delete
/// that is on its way.
pub fn finished(fleet: &mut Fleet, name: &str, turn: &mut Turn) {
    match fleet
        .slots
        .get(name)
        .and_then(|record| record.recovery.as_ref())
        .map(|recovery| recovery.phase())
    {
        Some(Phase::Condemned) => {
            withdraw(fleet, name, "its job has finished: nothing follows", turn)
        }
        Some(Phase::Ready | Phase::Booted | Phase::Launched) => {
            over(fleet, name, "its job is finished", turn)
        }
        _ => {}
    }
}

/// The recovery of a slot ends without a replacement that was seen at work.
pub fn withdraw(fleet: &mut Fleet, name: &str, why: &str, turn: &mut Turn) {
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = record.recovery.take() else { return };
    turn.tell(record, What::Withdrawn { cause: recovery.cause }, why);
    fleet.dirty.insert(name.to_owned());
}

fn over(fleet: &mut Fleet, name: &str, why: &str, turn: &mut Turn) {
    let Some(record) = fleet.slots.get_mut(name) else { return };
    let Some(recovery) = record.recovery.take() else { return };
    let seconds = elapsed(recovery.condemned_at, turn.now).as_secs_f64();
    let down = elapsed(recovery.symptom_at, turn.now);
    let resumed = recovery.order.as_ref().and_then(|o| o.step);
    let steps_lost = recovery.step_before.map(|before| before.saturating_sub(resumed.unwrap_or(0)));
    let repeated_seconds =
        recovery.saved_at.map(|at| elapsed(at, recovery.symptom_at).as_secs_f64());
    let from = resumed.map_or(String::new(), |step| format!(", resumed from step {step}"));
    let message = format!(
        "recovered from {} {} after the first symptom: {why}{from}",
        recovery.cause.name(),
        span(down)
    );
    record.suspicion = None;
    let create = fleet.settings.slots.get(name).map(|slot| &slot.create);
    let pool = pool::name(record, create.unwrap_or(&Overlay::default()), &record.zone);
    pool::relieve(&mut fleet.ledger, &pool, recovery.creating_since);
    let what = What::Recovered {
        cause: recovery.cause,
        seconds,
        down_seconds: down.as_secs_f64(),
        steps_lost,
        repeated_seconds,
        queued_seconds: recovery.queued_seconds,
    };
    turn.tell(record, what, message);
    fleet.dirty.insert(name.to_owned());
    fleet.dirty_ledger = true;
}
