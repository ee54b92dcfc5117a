//! The wall clock may be set back while the watchdog runs or between two runs. What lies in the
//! future then would hold slots, creates and reads until the clock has caught up: it is brought
//! back to the present.

use jiff::Timestamp;

use crate::model::fleet::{Fleet, Ledger};
use crate::model::job::JobState;
use crate::model::relaunch::Amendment;
use crate::model::time::{after, elapsed};

/// Clamps every remembered time to `now`, when `now` lies before the last turn (or this is the
/// first one).
pub fn keep_up(fleet: &mut Fleet, now: Timestamp) {
    if fleet.stepped_at.is_some_and(|last| last <= now) {
        return;
    }
    let past = |at: &mut Timestamp| *at = (*at).min(now);
    let maybe_past = |at: &mut Option<Timestamp>| *at = at.map(|at| at.min(now));
    for (name, record) in &mut fleet.slots {
        past(&mut record.since);
        maybe_past(&mut record.mutated_at);
        maybe_past(&mut record.ready_since);
        maybe_past(&mut record.healthy_since);
        maybe_past(&mut record.first_seen);
        maybe_past(&mut record.submitted_at);
        maybe_past(&mut record.wanted_since);
        job(&mut record.job, now);
        if let Some((_, at)) = &mut record.last_clear {
            past(at);
        }
        if let Some(wish) = &mut record.wanted {
            maybe_past(&mut wish.at);
        }
        if let Some(ahead) = &mut record.ahead {
            past(&mut ahead.asked_at);
        }
        if let Some((at, _)) = &mut record.create_check {
            past(at);
        }
        if let Some((_, at)) = &mut record.deleting {
            past(at);
        }
        if let Some((_, learned)) = &mut record.left_behind {
            past(learned);
        }
        record.attempts.iter_mut().for_each(|attempt| past(&mut attempt.at));
        if let Some(suspicion) = &mut record.suspicion {
            past(&mut suspicion.since);
            past(&mut suspicion.last_read);
            maybe_past(&mut suspicion.healthy_since);
        }
        if let Some(recovery) = &mut record.recovery {
            past(&mut recovery.symptom_at);
            past(&mut recovery.condemned_at);
            past(&mut recovery.phase_since);
            maybe_past(&mut recovery.creating_since);
            maybe_past(&mut recovery.saved_at);
            maybe_past(&mut recovery.tried_at);
            let longest = fleet.settings.slots.get(name).map(|s| after(now, s.policy.backoff_max));
            recovery.not_before =
                recovery.not_before.map(|at| longest.map_or(at, |longest| at.min(longest)));
        }
    }
    fleet.left.values_mut().for_each(|record| maybe_past(&mut record.left_at));
    let longest = fleet.settings.slots.values().map(|slot| slot.policy.stock_out.1).max();
    ledger(&mut fleet.ledger, now, after(now, longest.unwrap_or_default()));
    for memory in fleet.memory.values_mut() {
        maybe_past(&mut memory.last_read);
        maybe_past(&mut memory.surveyed_at);
        maybe_past(&mut memory.asked_checkpoints);
        maybe_past(&mut memory.looked_at);
        maybe_past(&mut memory.asks_since);
        // A confirmation's age can no longer be told, nor that of the workers' reports.
        (memory.confirmed, memory.heard, memory.none_live) = (None, None, None);
    }
}

/// The same of a job.
fn job(job: &mut JobState, now: Timestamp) {
    let past = |at: &mut Timestamp| *at = (*at).min(now);
    let maybe_past = |at: &mut Option<Timestamp>| *at = at.map(|at| at.min(now));
    maybe_past(&mut job.progress_at);
    maybe_past(&mut job.checkpoint_at);
    maybe_past(&mut job.steps_at);
    maybe_past(&mut job.attributes_at);
    maybe_past(&mut job.unheard_since);
    maybe_past(&mut job.went_back_since);
    maybe_past(&mut job.setup_since);
    maybe_past(&mut job.saves_nothing);
    maybe_past(&mut job.roll_call_since);
    maybe_past(&mut job.failed_at);
    maybe_past(&mut job.failing_since);
    maybe_past(&mut job.listed_at);
    if let Some((_, at)) = &mut job.accepts {
        past(at);
    }
    if let Some((_, at)) = &mut job.runs.set_aside {
        past(at);
    }
    if let Some(asked) = &mut job.relaunch_by {
        past(&mut asked.at);
    }
    if let Some(relaunch) = &mut job.relaunch {
        past(&mut relaunch.at);
        maybe_past(&mut relaunch.written_at);
    }
    if let Some(again) = &mut job.made_again {
        past(&mut again.at);
    }
    job.amendment.iter_mut().for_each(|amendment| amended(amendment, now));
    job.workers.values_mut().for_each(|worker| maybe_past(&mut worker.beat_at));
}

/// The same of a patch, which is not decided once more before its wait is over.
fn amended(amendment: &mut Amendment, now: Timestamp) {
    let wait = elapsed(amendment.at, amendment.until);
    amendment.until = amendment.until.min(after(now, wait));
    amendment.at = amendment.at.min(now);
}

/// `latest` is the latest time at which any pool may be probed next.
fn ledger(ledger: &mut Ledger, now: Timestamp, latest: Timestamp) {
    let past = |at: &mut Timestamp| *at = (*at).min(now);
    let maybe_past = |at: &mut Option<Timestamp>| *at = at.map(|at| at.min(now));
    ledger.judged.iter_mut().for_each(past);
    ledger.creates.iter_mut().for_each(past);
    maybe_past(&mut ledger.observed_at);
    maybe_past(&mut ledger.polled_at);
    for stray in ledger.strays.values_mut() {
        past(&mut stray.since);
        if let Some(removal) = &mut stray.removal {
            past(&mut removal.at);
        }
        stray.told.iter_mut().for_each(|told| amended(told, now));
    }
    for pool in ledger.pools.values_mut() {
        if let Some(short) = &mut pool.short {
            past(&mut short.since);
            past(&mut short.last);
            short.probe_at = short.probe_at.min(latest);
        }
        maybe_past(&mut pool.failing);
        maybe_past(&mut pool.trial_at);
    }
    ledger.unfit.values_mut().flatten().for_each(|unfit| past(&mut unfit.at));
    ledger.storm.iter_mut().for_each(|gust| past(&mut gust.at));
}
