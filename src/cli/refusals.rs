//! Commands of an operator that would do nothing, or that name an object that is not there: why each is refused.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::core::left_alone;
use crate::model::command::{Command, CommandKind, Pause};
use crate::model::condition::Condition;
use crate::model::phase::Phase;
use crate::model::settings::{Overlay, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::{NodeSpec, TRAINING_KEY};
use crate::model::step::Remedy;
use crate::model::training::JobKind;
use crate::store::Stored;

/// Why a command is not carried out.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is so already.
    Needless(String),
    /// It makes no sense as things are.
    Wrong(String),
}

impl Refused {
    /// Whether these commands, which are still to be carried out, can't change it: checkpoints are no matter of
    /// commands, and whose a TPU is only of some.
    pub fn stands(&self, of: &CommandKind, waiting: &[&Command]) -> bool {
        let gives = |command: &&Command| {
            let adopts = matches!(command.kind, CommandKind::Resume { adopt: true, .. });
            adopts || matches!(command.kind, CommandKind::Recreate { .. })
        };
        let lasts = match of {
            CommandKind::Retry { from: Some(_), .. } => true,
            CommandKind::Relaunch { .. } | CommandKind::Release { .. } => {
                !waiting.iter().any(gives)
            }
            _ => false,
        };
        lasts && matches!(self, Refused::Wrong(_))
    }
}

/// Whether a command would do nothing, as far as the journal tells.
pub fn refused(
    kind: &CommandKind,
    stored: &Stored,
    slots: &BTreeMap<String, SlotSettings>,
    now: Timestamp,
) -> Option<Refused> {
    let record = |slot: &String| stored.slots.get(slot);
    let needless = |text: String| Some(Refused::Needless(text));
    match kind {
        CommandKind::Resume { slot: None, .. } => {
            if holds(stored.ledger.paused.as_ref(), now) {
                return None;
            }
            match by_name(stored, now).as_slice() {
                [] => needless("nothing is paused".into()),
                names => Some(Refused::Wrong(format!(
                    "there is no pause of everything; paused by name, and resumed by name: {}",
                    names.join(", ")
                ))),
            }
        }
        CommandKind::Resume { slot: Some(name), adopt } => {
            resume_refused(record(name)?, *adopt, stored, now)
        }
        CommandKind::Retry { slot, from: Some(step) } => {
            let newest = record(slot)?.job.checkpoint.as_ref()?;
            (newest.step < *step).then(|| {
                Refused::Wrong(format!(
                    "{slot} has no checkpoint of step {step} or later; the newest is step {}",
                    newest.step
                ))
            })
        }
        CommandKind::Retry { slot, from: None } => retry_refused(record(slot)?),
        CommandKind::Recreate { slot, .. } => {
            let described = slots.get(slot).map(|slot| &slot.create);
            unknown(record(slot)?, described).or_else(|| recreate_refused(record(slot)?))
        }
        CommandKind::Relaunch { slot } => relaunch_refused(record(slot)?),
        CommandKind::Done { slot } if record(slot)?.traits().is_job => {
            Some(Refused::Wrong(format!(
                "a training job that succeeds is done by itself; `forget {slot}` has it left alone from now on"
            )))
        }
        CommandKind::Release { slot } => release_refused(record(slot)?),
        // It also lets judged TPUs go on where replacements have failed (S14).
        CommandKind::BreakerReset
            if stored.ledger.breaker.is_none()
                && stored.ledger.unfit.is_empty()
                && stored.ledger.pools.values().all(|pool| pool.failing.is_none()) =>
        {
            needless("the storm breaker is closed".into())
        }
        _ => None,
    }
}

/// Whether a slot has nothing that `retry` would give back.
fn retry_refused(record: &SlotRecord) -> Option<Refused> {
    let held = record.decision.as_ref().is_some_and(|decision| decision.hold.is_some());
    let released = record.released.is_some() || record.deleted.is_some();
    let asked = record.create_check.is_some() || record.job.went_back_since.is_some();
    let used = !record.attempts.is_empty() || record.forgotten || released || asked;
    let (job, runs) = (&record.job, &record.job.runs);
    let counted = runs.fruitless + runs.exits + runs.stuck + runs.free > 0;
    let passed = runs.set_aside.is_some() || runs.once_more.is_some();
    let ended = job.finished.is_some() || job.failed.is_some() || counted || passed;
    let ended = ended || record.resubmitted.fruitless > 0;
    let healthy = record.verdict.condition == Condition::Healthy;
    let nothing = healthy && record.recovery.is_none() && !held && !used && !ended;
    nothing.then(|| Refused::Needless(format!("{} is healthy and has its attempts", record.name)))
}

/// Nothing says how a TPU that was never seen is to be created.
fn unknown(record: &SlotRecord, described: Option<&Overlay>) -> Option<Refused> {
    let name = &record.name;
    let never = record.spec.is_none() && record.seen.is_none() && !record.traits().is_job;
    let read = record.verdict.condition == Condition::Missing;
    let why = NodeSpec::empty().overlaid(described?).validate().err()?;
    let text = format!(
        "no TPU {name} was ever seen in {}, and its config can't create one: {why}. Correct its name or zone, or describe it in [tpu.create]",
        record.zone
    );
    (never && read).then_some(Refused::Wrong(text))
}

fn recreate_refused(record: &SlotRecord) -> Option<Refused> {
    let waited = record.seen.as_ref().is_some_and(|seen| seen.waits_since.is_some());
    let waits = waited || matches!(record.verdict.condition, Condition::Waiting | Condition::Going);
    let text = || {
        format!(
            "{}: there is no TPU to recreate; deleting a request that waits would only lose its place in the queue",
            record.verdict.evidence
        )
    };
    if waits {
        return Some(Refused::Wrong(text()));
    }
    let (condition, name) = (record.verdict.condition, &record.name);
    let job = record.spec.as_ref().and_then(|spec| spec.body().get(TRAINING_KEY));
    if let (Some(job), Some(incarnation)) = (job, &record.incarnation) {
        let cancel = JobKind::of(job).asks(&format!("cancel {}", incarnation.id), &record.zone);
        let then = match record.has_ended() {
            true => format!("`retry {name}` submits it again"),
            false => format!("cancel it first ({cancel}), then `retry {name}`"),
        };
        return Some(Refused::Wrong(format!("{}: {then}", record.verdict.evidence)));
    }
    let next = match condition {
        _ if record.recovery.is_some() => return None,
        // Its queued resource has lost its node: the request can be replaced.
        Condition::Stopped if record.seen.as_ref().is_some_and(|seen| seen.not_listed) => {
            return None;
        }
        Condition::Stopped => left_alone(record),
        Condition::Starting => "it is not replaced while the API works on it".to_owned(),
        Condition::Deleting => {
            format!("another client is deleting it; `recreate {name}` once it is gone")
        }
        Condition::Unclear => {
            format!(
                "its state is unknown, so the watchdog does not delete it; `status {name}` says why"
            )
        }
        _ => return None,
    };
    Some(Refused::Wrong(format!("{name} is {condition}: {next}")))
}

/// A TPU that `release` would not give back, for which `forget` is meant.
fn release_refused(record: &SlotRecord) -> Option<Refused> {
    let (name, recovery) = (&record.name, record.recovery.as_ref());
    if record.traits().is_job {
        let text = format!(
            "a training job has nothing of ours on it; `forget {name}` leaves it alone from now on"
        );
        return Some(Refused::Wrong(text));
    }
    let under_way = recovery.filter(|recovery| recovery.phase() != Phase::Launched);
    let why = match &record.incarnation {
        _ if record.released.is_some() => return None,
        _ if under_way.is_some() => {
            format!("the TPU of {name} is being replaced, so there is none to give back yet")
        }
        None => format!("{name} has no TPU now"),
        Some(_) if record.ours => return None,
        Some(_) => {
            if let Some(other) = record.seen.as_ref().and_then(|seen| seen.other_owner.as_ref()) {
                let text = format!(
                    "the TPU of {name} carries the keys of another watchdog ({other}): take it over first (resume {name} --adopt), then \
                     release {name}"
                );
                return Some(Refused::Wrong(text));
            }
            format!(
                "the watchdog did not create the TPU of {name}, so its metadata has nothing to remove"
            )
        }
    };
    Some(Refused::Wrong(format!("{why}; `forget {name}` leaves it alone from now on")))
}

fn relaunch_refused(record: &SlotRecord) -> Option<Refused> {
    if record.traits().steps(Remedy::Relaunch).is_none() {
        let text = format!(
            "no run order reaches a training job: cancel it, then `retry {}` submits it again",
            record.name
        );
        return Some(Refused::Wrong(text));
    }
    let theirs = record.incarnation.is_some() && !record.ours && record.recovery.is_none();
    theirs.then(|| {
        Refused::Wrong(format!(
            "the watchdog did not create the TPU of {0}, so no supervisor there can start its job again: restart it by hand, or replace the \
             TPU (recreate {0})",
            record.name
        ))
    })
}

/// Whether `resume` of one slot would do nothing.
fn resume_refused(
    record: &SlotRecord,
    adopt: bool,
    stored: &Stored,
    now: Timestamp,
) -> Option<Refused> {
    let name = &record.name;
    let seen = record.seen.as_ref();
    let other = seen.is_some_and(|seen| seen.other_owner.is_some());
    if adopt {
        let text = format!("no other watchdog owns {name}");
        return (!other).then_some(Refused::Needless(text));
    }
    let opted_out = seen.is_some_and(|seen| seen.opted_out);
    // The label may be that of a machine that is lost, or was made again.
    let lost = record.verdict.condition == Condition::SliceLost || record.job.made_again.is_some();
    if holds(record.paused.as_ref(), now) || opted_out && (lost || record.is_gone()) {
        return None;
    }
    if opted_out {
        let text = format!(
            "{name} is opted out by the label tpu-watchdog=off of its TPU: remove that label"
        );
        return Some(Refused::Wrong(text));
    }
    if let Some(pause) = stored.ledger.paused.as_ref().filter(|pause| pause.holds(now)) {
        let text = format!(
            "{name} is not paused by itself: {} paused everything; end that with `resume --all`",
            pause.who
        );
        return Some(Refused::Wrong(text));
    }
    Some(Refused::Needless(format!("{name} is not paused")))
}

/// Whether such a pause holds now.
pub fn holds(pause: Option<&Pause>, now: Timestamp) -> bool {
    pause.is_some_and(|pause| pause.holds(now))
}

/// The slots that are paused by name.
pub fn by_name(stored: &Stored, now: Timestamp) -> Vec<&str> {
    let paused = stored.slots.iter().filter(|(_, record)| holds(record.paused.as_ref(), now));
    paused.map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::condition::Verdict;
    use serde_json::json;

    #[test]
    fn a_recreate_of_what_was_never_seen_nor_described_is_refused() {
        let mut record = SlotRecord::new("a", "us-central2-b", Timestamp::UNIX_EPOCH);
        record.verdict = Verdict::new(Condition::Missing, "GET says 404");
        let mut create = Overlay::default();
        let Some(Refused::Wrong(text)) = unknown(&record, Some(&create)) else {
            panic!("it is refused")
        };
        assert!(text.contains("no TPU a was ever seen in us-central2-b"), "{text}");
        create.fields.insert("acceleratorType".into(), json!("v4-8"));
        create.fields.insert("runtimeVersion".into(), json!("v2-alpha-tpuv4"));
        assert_eq!(unknown(&record, Some(&create)), None);
    }
}
