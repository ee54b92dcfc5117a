//! Sickness as accumulated time over successful reads, the health that clears it, and the healthy
//! time after which attempts are forgotten.
//!
//! Each successful sick read adds the time since the successful read before it, at most
//! `poll.max_gap`; the first one adds nothing, for only time that follows a sick read is known to
//! be sick. Failed reads and gaps add nothing and clear nothing. `heal` of healthy reads clears it;
//! time in which the node was not seen is no healthy time. Where reads fail all the time, three healthy
//! ones in a row over three times `heal` clear it: suspicion must not last for hours. Evidence of
//! different kinds (lost, state and health, the workers' reports) is never added up: another kind
//! starts its own time. Nothing here decides: the grace is compared in `judge`.
//!
//! Example: reads at 0:00 sick, 0:30 sick, 1:00 failed, 1:30 sick, 2:00 healthy, 2:30 sick: 30 s +
//! 60 s + 30 s = 2 min of sickness.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind, Verdict};
use crate::model::event::What;
use crate::model::fleet::Memory;
use crate::model::slot::{SlotRecord, Suspicion};
use crate::model::time::{after, elapsed};

use super::turn::Turn;

/// So many healthy reads over so many times `heal`, with no sick one between, clear a suspicion.
const OUTLIVED_READS: u32 = 3;

/// Evidence of different kinds is not added up: what is lost, what the API says of the node, what
/// the supervisor reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Lost,
    State,
    Report,
}

fn class(condition: Condition) -> Option<Class> {
    match condition.kind()? {
        Kind::Lost => Some(Class::Lost),
        Kind::Judged if condition.is_reported() => Some(Class::Report),
        Kind::Judged => Some(Class::State),
    }
}

/// Accumulates sickness over successful reads: gaps and failures add nothing and clear nothing.
pub fn suspect(
    record: &mut SlotRecord,
    memory: &mut Memory,
    heal: Duration,
    max_gap: Duration,
    condition: Condition,
    began: Timestamp,
) {
    let before = memory.last_read.or(record.suspicion.as_ref().map(|s| s.last_read));
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
            healthy_since: None,
            healthy_reads: 0,
            last_read: began,
            unseen: false,
            relaunched: false,
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
        (suspicion.healthy_since, suspicion.healthy_reads) = (None, 0);
        suspicion.last_read = began;
        suspicion.unseen &= condition == Condition::Missing;
    } else if (condition.job_stands()
        || matches!(condition, Condition::Healthy | Condition::Degraded | Condition::Finished))
        && let Some(suspicion) = &mut record.suspicion
    {
        // It is not known to have been healthy while it was not seen.
        let unseen = std::mem::take(&mut suspicion.unseen);
        suspicion.healthy_for += if unseen { Duration::ZERO } else { gap };
        suspicion.last_read = began;
        suspicion.healthy_reads += 1;
        let since = *suspicion.healthy_since.get_or_insert(began);
        let outlived = suspicion.healthy_reads >= OUTLIVED_READS
            && elapsed(since, began) >= heal.saturating_mul(OUTLIVED_READS);
        if suspicion.healthy_for >= heal || outlived {
            record.suspicion = None;
        }
    }
}

/// Attempts are forgotten after `settled` healthy time (S13), in which what was `missed` between
/// two reads does not count. Returns whether anything changed that has to be kept.
pub fn settled(
    record: &mut SlotRecord,
    settled: Duration,
    condition: Condition,
    missed: Duration,
    now: Timestamp,
) -> bool {
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
        // Preemptions are a property of the capacity, not of the slot's health: they slide out of
        // their window instead.
        record.attempts.retain(|a| a.kind == Kind::Lost);
    }
    settled || (!missed.is_zero() && was_judged(record))
}

pub fn was_judged(record: &SlotRecord) -> bool {
    record.attempts.iter().any(|a| a.kind == Kind::Judged)
}

fn is_settled(record: &SlotRecord, settled: Duration, now: Timestamp) -> bool {
    record.recovery.is_none()
        && was_judged(record)
        && record.healthy_since.is_some_and(|since| elapsed(since, now) >= settled)
}

pub fn set_verdict(
    record: &mut SlotRecord,
    verdict: Verdict,
    dirty: &mut BTreeSet<String>,
    turn: &mut Turn,
) -> bool {
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
    let message = format!(
        "{} -> {}: {}",
        from.name(),
        record.verdict.condition.name(),
        record.verdict.evidence
    );
    turn.tell(record, What::Condition { from, to: record.verdict.condition }, message);
    true
}
