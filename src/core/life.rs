//! Signs of life that outrank a bad health value: heartbeats that change, and a job that keeps its
//! own rhythm.
//!
//! A heartbeat is fresh when two reads close together showed it to change. Fresh heartbeats of all
//! workers prove that hosts run, so an `unresponsive` or `runtime_unhealthy` TPU is given an hour. A
//! mark of progress (a newer step, a newer complete checkpoint, growth of the newest incomplete one)
//! proves that the job runs: a READY TPU is not condemned before its last mark plus twice its usual
//! interval. Nothing here condemns; a heartbeat that stands still for `silent`, or a reported exit,
//! ends the excuse.
//!
//! Example: checkpoints come every 50 to 60 min. At 10:00 one was seen, at 10:20 the health turns to
//! TIMEOUT: the TPU is judged from 12:00 on, unless its worker falls silent before.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::Condition;
use crate::model::job::JobState;
use crate::model::settings::{Grace, PollSettings};
use crate::model::slot::SlotRecord;
use crate::model::time::{after, elapsed};

/// The workers' reports on which a delete or a reboot rests were asked for at most this long before it
/// is decided: those of a pod take longer than the GET that follows them.
pub const HEARD_FOR: Duration = Duration::from_secs(10);
/// Two heartbeats of the supervisor, as it sends them.
const TWO_BEATS: Duration = Duration::from_secs(120);
/// The grace of a TPU whose workers all beat.
const BEATING: Duration = Duration::from_secs(3600);
/// Marks whose intervals are kept.
const MARKS: usize = 20;
/// However rare its marks are, a job excuses its TPU for no longer.
const RHYTHM_MAX: Duration = Duration::from_secs(6 * 3600);

/// Two reads of a heartbeat are close together within this time, and a change is fresh for as long.
pub fn fresh_for(poll: &PollSettings) -> Duration {
    TWO_BEATS.max(poll.every * 2)
}

/// Whether the heartbeats of all workers are fresh.
pub fn beats(record: &SlotRecord, poll: &PollSettings, now: Timestamp) -> bool {
    let fresh = |worker: usize| {
        let beat = record.job.workers.get(&worker).and_then(|state| state.beat_at);
        beat.is_some_and(|at| elapsed(at, now) <= fresh_for(poll))
    };
    record.seen.is_some() && (0..record.size().hosts).all(fresh)
}

/// The grace of a condition for this slot now.
pub fn grace(
    record: &SlotRecord,
    graces: &Grace,
    poll: &PollSettings,
    condition: Condition,
    now: Timestamp,
) -> Duration {
    let grace = graces.of(condition, record.size());
    let excused = matches!(condition, Condition::Unresponsive | Condition::RuntimeUnhealthy);
    if excused && beats(record, poll, now) { grace.max(BEATING) } else { grace }
}

/// A mark of progress: the interval since the last one belongs to the rhythm, unless something
/// interrupted it.
pub fn mark(job: &mut JobState, now: Timestamp) {
    let interval = job.progress_at.replace(now).map(|last| elapsed(last, now));
    if let Some(interval) = interval.filter(|_| !job.interrupted) {
        job.intervals.push(interval.as_secs());
        let surplus = job.intervals.len().saturating_sub(MARKS);
        job.intervals.drain(..surplus);
    }
    job.interrupted = false;
}

/// The 90th percentile of the last intervals.
pub fn usual(job: &JobState) -> Option<Duration> {
    let mut sorted = job.intervals.clone();
    sorted.sort_unstable();
    let last = sorted.len().checked_sub(1)?;
    Some(Duration::from_secs(sorted[last * 9 / 10]))
}

/// Until when a mark of progress stands for the beacons of hosts that send none: twice the usual
/// interval, at least `silent`; six hours where no interval is known.
pub fn progress_stands_until(job: &JobState, silent: Duration) -> Option<Timestamp> {
    let stands = usual(job).map_or(RHYTHM_MAX, |usual| (usual * 2).clamp(silent, RHYTHM_MAX));
    Some(after(job.progress_at?, stands))
}

/// Until when the job's own rhythm excuses a READY TPU.
pub fn excused_until(record: &SlotRecord, silent: Duration) -> Option<Timestamp> {
    let ready = record.seen.as_ref().is_some_and(|seen| seen.ready);
    let ended = !record.job.exits.is_empty()
        || record.job.workers.values().any(|worker| worker.quiet_for >= silent);
    let (last, usual) = (record.job.progress_at?, usual(&record.job)?);
    (ready && !ended).then(|| after(last, (usual * 2).min(RHYTHM_MAX)))
}
