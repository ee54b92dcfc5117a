//! The answer to an operator's command, in the words of its object; a command that would do nothing, or
//! names an object that is not there, is refused.

use jiff::Timestamp;

use crate::core::{command_name, left_alone, starts_again};
use crate::model::command::{Command, CommandKind, Pause};
use crate::model::condition::Condition;
use crate::model::ids::Incarnation;
use crate::model::phase::Phase;
use crate::model::slot::SlotRecord;
use crate::model::spec::TRAINING_KEY;
use crate::model::time::{elapsed, span};
use crate::model::training::JobKind;
use crate::report::sentence::rounded;
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
pub fn refused(kind: &CommandKind, stored: &Stored, now: Timestamp) -> Option<Refused> {
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
        CommandKind::Retry { slot, from: None } => {
            let record = record(slot)?;
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
            if nothing {
                return needless(format!("{slot} is healthy and has its attempts"));
            }
            None
        }
        CommandKind::Recreate { slot, .. } => recreate_refused(record(slot)?),
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
    let under_way = recovery.filter(|recovery| recovery.phase != Phase::Launched);
    let why = match &record.incarnation {
        _ if record.released.is_some() => return None,
        _ if under_way.is_some() => {
            format!("the TPU of {name} is being replaced, so there is none to give back yet")
        }
        None => format!("{name} has no TPU now"),
        Some(_) if record.ours => return None,
        Some(_) => {
            format!(
                "the watchdog did not create the TPU of {name}, so nothing of it is to be taken out"
            )
        }
    };
    Some(Refused::Wrong(format!("{why}; `forget {name}` leaves it alone from now on")))
}

fn relaunch_refused(record: &SlotRecord) -> Option<Refused> {
    if record.traits().is_job {
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
    if holds(record.paused.as_ref(), now) || opted_out && record.is_gone() {
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

fn holds(pause: Option<&Pause>, now: Timestamp) -> bool {
    pause.is_some_and(|pause| pause.holds(now))
}

/// The slots that are paused by name.
fn by_name(stored: &Stored, now: Timestamp) -> Vec<&str> {
    let paused = stored.slots.iter().filter(|(_, record)| holds(record.paused.as_ref(), now));
    paused.map(|(name, _)| name.as_str()).collect()
}

/// A command as it is typed.
pub fn brief(kind: &CommandKind) -> String {
    match kind {
        CommandKind::BreakerReset => "breaker reset".to_owned(),
        kind => format!("{} {}", command_name(kind).name(), kind.slot().unwrap_or("--all")),
    }
}

/// The effect of a command that was put in.
pub fn done(command: &Command, stored: &Stored, now: Timestamp) -> String {
    let why = command.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    let record = |slot: &String| stored.slots.get(slot);
    match &command.kind {
        CommandKind::Pause { slot, until } => {
            let until = until.map_or(", until it is resumed".to_owned(), |at| {
                let time = at.strftime("%F %H:%M UTC");
                format!(" until {time} ({})", span(rounded(elapsed(now, at))))
            });
            let (what, end) = match slot {
                Some(slot) => (format!("{slot} is paused"), format!("resume {slot}")),
                None => ("everything is paused".to_owned(), "resume --all".to_owned()),
            };
            let waits = slot.as_ref().and_then(record).and_then(waits_on).unwrap_or_default();
            format!(
                "{what}{until}{why}\n  nothing starts on it; to end the pause: tpu-watchdog {end}{waits}"
            )
        }
        CommandKind::Resume { slot: None, .. } => match by_name(stored, now).as_slice() {
            [] => format!("the pause of everything ends{why}"),
            names => format!(
                "everything but what is paused by name is resumed{why}\n  still paused: {}",
                names.join(", ")
            ),
        },
        CommandKind::Resume { slot: Some(slot), adopt: true } => {
            format!("{slot} becomes this watchdog's own{why}")
        }
        CommandKind::Resume { slot: Some(slot), .. } => {
            let all = match holds(stored.ledger.paused.as_ref(), now) {
                true => "\n  the pause of everything still holds it: tpu-watchdog resume --all",
                false => "",
            };
            format!("the pause of {slot} ends{why}{all}")
        }
        CommandKind::Retry { slot, from } => retried(slot, *from, record(slot), &why),
        CommandKind::Forget { slot, purge } => {
            let asked =
                record(slot).and_then(|record| asked_for(record).or_else(|| record.ungranted()));
            forgotten(slot, *purge, asked, &why)
        }
        CommandKind::Recreate { slot, incarnation } => recreated(slot, incarnation.as_ref(), &why),
        CommandKind::Relaunch { slot } => {
            let from = record(slot).and_then(|record| record.job.checkpoint.as_ref());
            let from = from.map_or("its newest complete checkpoint".to_owned(), |found| {
                format!("its newest complete checkpoint (now step {})", found.step)
            });
            format!("the job of {slot} starts again on the TPU that is there, from {from}{why}")
        }
        CommandKind::Done { slot } => format!(
            "the job of {slot} is done{why}\n  nothing is recreated or started for it; to undo: tpu-watchdog retry {slot}"
        ),
        CommandKind::Release { slot } => format!(
            "the TPU of {slot} is given back{why}\n  the watchdog removes its keys from the TPU's metadata and leaves it alone; to undo: \
             tpu-watchdog retry {slot}"
        ),
        CommandKind::Drill { slot } => format!("a maintenance event of {slot} is simulated{why}"),
        CommandKind::BreakerReset => format!("the storm breaker is closed{why}"),
    }
}

/// The queued resource of a slot that is being created.
fn asked_for(record: &SlotRecord) -> Option<&str> {
    let creates = record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Creating);
    record.request.as_deref().filter(|_| creates)
}

fn waits_on(record: &SlotRecord) -> Option<String> {
    let (id, slot) = (asked_for(record)?, &record.name);
    Some(format!(
        "\n  its request keeps waiting and may be granted ({id}); withdraw it: tpu-watchdog resume {slot}, then tpu-watchdog forget {slot}"
    ))
}

fn forgotten(slot: &str, purge: bool, asked: Option<&str>, why: &str) -> String {
    let kept = if purge { "are dropped" } else { "are kept for 30 days" };
    let request = asked.map_or(String::new(), |id| {
        format!("; its queued resource {id} is deleted if it still waits, and reported as a stray if it was granted")
    });
    format!(
        "{slot} is forgotten{why}\n  nothing is created for it{request}; its specification, attempts and recorded checkpoint {kept}; to undo: \
         tpu-watchdog retry {slot}"
    )
}

fn retried(slot: &str, from: Option<u64>, record: Option<&SlotRecord>, why: &str) -> String {
    let from = match from {
        Some(0) => ", from any checkpoint, or from scratch".to_owned(),
        Some(step) => format!(", from a checkpoint of step {step} or later"),
        None => String::new(),
    };
    let unwanted =
        record.is_some_and(|of| of.forgotten || of.released.is_some() || of.job.finished.is_some());
    let has = if unwanted { "is wanted again" } else { "has its attempts restored" };
    let job = record.and_then(starts_again).unwrap_or_default();
    format!("{slot} {has}{from}{job}{why}")
}

fn recreated(slot: &str, incarnation: Option<&Incarnation>, why: &str) -> String {
    let deleted = incarnation.map_or("there is no TPU to delete".to_owned(), |of| {
        format!("exactly id {} is deleted", of.id)
    });
    format!(
        "{slot} is recreated{why}\n  {deleted}, and a new one is created from its specification"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::slot::Seen;
    use crate::model::spec::NodeSpec;
    use serde_json::json;

    fn stored(change: impl FnOnce(&mut SlotRecord)) -> Stored {
        let mut record = SlotRecord::new("a", "z", Timestamp::UNIX_EPOCH);
        record.verdict.condition = Condition::Healthy;
        change(&mut record);
        Stored { slots: [("a".to_owned(), record)].into(), ..Stored::default() }
    }

    fn pause() -> Option<Pause> {
        Some(Pause { who: "ada".into(), reason: None, until: None })
    }

    fn answer(kind: CommandKind, stored: &Stored) -> String {
        let (id, at) = (String::new(), Timestamp::UNIX_EPOCH);
        let who = "ada".into();
        done(&Command { id, at, who, reason: None, kind }, stored, at)
    }

    #[test]
    fn a_request_that_lost_its_node_can_be_recreated_and_a_suspended_one_not() {
        let seen = |not_listed| {
            stored(|record| {
                record.verdict.condition = Condition::Stopped;
                let members = vec!["q-0".to_owned()];
                record.seen = Some(Seen { stopped: true, not_listed, members, ..Seen::default() });
            })
        };
        let kind = CommandKind::Recreate { slot: "a".into(), incarnation: None };
        assert_eq!(refused(&kind, &seen(true), Timestamp::UNIX_EPOCH), None);
        let told = refused(&kind, &seen(false), Timestamp::UNIX_EPOCH);
        assert!(matches!(told, Some(Refused::Wrong(text)) if text.contains("then `retry a`")));
    }

    #[test]
    fn a_training_job_has_no_run_order_and_its_restarts_are_given_back_by_retry() {
        let spec = json!({"trainingJob": {"jobSpec": {}}});
        let spec = NodeSpec::new(spec.as_object().unwrap().clone());
        let job = |change: fn(&mut SlotRecord)| {
            stored(|record| {
                record.spec = Some(spec.clone());
                change(record);
            })
        };
        let (slot, now) = (|| "a".to_owned(), Timestamp::UNIX_EPOCH);
        for kind in [CommandKind::Relaunch { slot: slot() }, CommandKind::Done { slot: slot() }] {
            assert!(
                matches!(refused(&kind, &job(|_| ()), now), Some(Refused::Wrong(_))),
                "{kind:?}"
            );
        }
        let retry = CommandKind::Retry { slot: slot(), from: None };
        assert!(matches!(refused(&retry, &job(|_| ()), now), Some(Refused::Needless(_))));
        let used = job(|record| record.resubmitted.fruitless = 3);
        assert_eq!(refused(&retry, &used, now), None);
    }

    #[test]
    fn a_pause_that_stays_is_named() {
        let all = || CommandKind::Resume { slot: None, adopt: false };
        let mut by_name = stored(|record| record.paused = pause());
        let told = refused(&all(), &by_name, Timestamp::UNIX_EPOCH);
        assert!(matches!(told, Some(Refused::Wrong(text)) if text.ends_with("by name: a")));
        by_name.ledger.paused = pause();
        assert_eq!(refused(&all(), &by_name, Timestamp::UNIX_EPOCH), None);
        assert!(answer(all(), &by_name).contains("still paused: a"));
        let one = CommandKind::Resume { slot: Some("a".into()), adopt: false };
        assert!(answer(one, &by_name).contains("resume --all"));
    }

    #[test]
    fn a_breaker_reset_is_needless_only_where_no_replacements_failed() {
        let needless = |stored: &Stored| {
            refused(&CommandKind::BreakerReset, stored, Timestamp::UNIX_EPOCH).is_some()
        };
        let mut world = stored(|_| ());
        assert!(needless(&world));
        let pool = world.ledger.pools.entry("z v4-8".into()).or_default();
        pool.failing = Some(Timestamp::UNIX_EPOCH);
        assert!(!needless(&world), "`replacements_fail` tells the operator to use it");
    }

    #[test]
    fn a_recreate_of_a_request_that_waits_is_refused() {
        let recreate = CommandKind::Recreate { slot: "a".into(), incarnation: None };
        let told = |condition| {
            let waits = stored(|record| record.verdict.condition = condition);
            refused(&recreate, &waits, Timestamp::UNIX_EPOCH)
        };
        assert!(matches!(told(Condition::Waiting), Some(Refused::Wrong(_))));
        assert!(told(Condition::Healthy).is_none());
    }

    #[test]
    fn a_recreate_that_could_not_act_is_refused() {
        let recreate = CommandKind::Recreate { slot: "a".into(), incarnation: None };
        for condition in [Condition::Stopped, Condition::Deleting, Condition::Unclear] {
            let at_rest = stored(|record| record.verdict.condition = condition);
            let told = refused(&recreate, &at_rest, Timestamp::UNIX_EPOCH);
            assert!(matches!(told, Some(Refused::Wrong(text)) if text.starts_with("a is ")));
        }
    }

    #[test]
    fn a_release_of_what_is_not_ours_names_the_command_that_leaves_it_alone() {
        let release = CommandKind::Release { slot: "a".into() };
        let told = |change: &dyn Fn(&mut SlotRecord)| {
            refused(&release, &stored(change), Timestamp::UNIX_EPOCH)
        };
        let there = |record: &mut SlotRecord| {
            let (id, created) = ("1".into(), Timestamp::UNIX_EPOCH);
            record.incarnation = Some(Incarnation { id, created });
        };
        let names = |told: Option<Refused>| matches!(told, Some(Refused::Wrong(text)) if text.contains("`forget a` leaves it alone"));
        assert!(names(told(&|_| ())), "no TPU");
        assert!(names(told(&there)), "adopted");
        let ours = |record: &mut SlotRecord| {
            there(record);
            record.ours = true;
        };
        assert_eq!(told(&ours), None);
    }

    #[test]
    fn a_retry_is_needless_only_where_nothing_was_used_up() {
        let retry = CommandKind::Retry { slot: "a".into(), from: None };
        let needless = |change: fn(&mut SlotRecord)| {
            refused(&retry, &stored(change), Timestamp::UNIX_EPOCH).is_some()
        };
        assert!(needless(|_| ()));
        assert!(!needless(|record| record.job.runs.set_aside = Some((7, Timestamp::UNIX_EPOCH))));
        assert!(!needless(|record| record.create_check = Some(Default::default())));
        assert!(!needless(|record| record.job.runs.exits = 1));
        assert!(!needless(|record| record.forgotten = true));
    }
}
