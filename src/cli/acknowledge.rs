//! The answer to an operator's command, in the words of its object.

use jiff::Timestamp;

use crate::core::{command_name, starts_again};
use crate::model::command::{Command, CommandKind};
use crate::model::ids::Incarnation;
use crate::model::phase::Phase;
use crate::model::slot::SlotRecord;
use crate::model::time::{elapsed, span};
use crate::report::sentence::rounded;
use crate::store::Stored;

use super::refusals::{by_name, holds};

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
            let paused = record(slot).is_some_and(|record| holds(record.paused.as_ref(), now))
                || holds(stored.ledger.paused.as_ref(), now);
            let there = record(slot).is_some_and(|record| {
                let stands = record.recovery.as_ref().is_none_or(|of| of.phase().stands());
                let ready = record.seen.as_ref().is_some_and(|seen| seen.ready);
                let gone = record.incarnation.is_none() || record.is_gone();
                ready && stands && !gone && asked.is_none() && !record.traits().is_job
            });
            forgotten(slot, *purge, (asked, paused), &why) + if there { STAYS } else { "" }
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
    let creates = record.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Creating);
    let ahead = record.asked_ahead().map(|ahead| ahead.id.as_str());
    record.request.as_deref().filter(|_| creates).or(ahead)
}

fn waits_on(record: &SlotRecord) -> Option<String> {
    let (id, slot) = (asked_for(record)?, &record.name);
    Some(format!(
        "\n  its request keeps waiting and may be granted ({id}); withdraw it: tpu-watchdog resume {slot}, then tpu-watchdog forget {slot}"
    ))
}

/// Of a TPU that is there.
const STAYS: &str = "\n  its TPU keeps running and is billed; the watchdog leaves it alone";

fn forgotten(slot: &str, purge: bool, (asked, paused): (Option<&str>, bool), why: &str) -> String {
    let kept = if purge { "are dropped" } else { "are kept for 30 days" };
    let when = if paused { "once its pause ends (resume), " } else { "" };
    let request = asked.map_or(String::new(), |id| {
        format!("; its queued resource {id} is deleted {when}if it still waits, and reported as a stray if it was granted")
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
    use super::super::refusals::{self, Refused};
    use super::*;
    use crate::model::command::Pause;
    use crate::model::condition::Condition;
    use crate::model::slot::Seen;
    use crate::model::spec::NodeSpec;
    use serde_json::json;

    fn refused(kind: &CommandKind, stored: &Stored, now: Timestamp) -> Option<Refused> {
        refusals::refused(kind, stored, &Default::default(), now)
    }

    fn stored(change: impl FnOnce(&mut SlotRecord)) -> Stored {
        let mut record = SlotRecord::new("a", "z", Timestamp::UNIX_EPOCH);
        record.verdict.condition = Condition::Healthy;
        change(&mut record);
        Stored { slots: [("a".to_owned(), record)].into(), ..Stored::default() }
    }

    fn pause() -> Option<Pause> {
        Some(Pause { who: "ada".into(), reason: None, until: None, since: None })
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

    #[test]
    fn a_pause_puts_off_the_withdrawal_that_a_forget_promises() {
        let forget = CommandKind::Forget { slot: "a".into(), purge: false };

        let answer = |paused: Option<Pause>| {
            let waits = stored(|record| {
                (record.ours, record.request) = (true, Some("q".into()));
                (record.verdict.condition, record.paused) = (Condition::Waiting, paused);
            });
            let command = Command {
                id: "1".into(),
                at: Timestamp::UNIX_EPOCH,
                who: "ada".into(),
                reason: None,
                kind: forget.clone(),
            };
            done(&command, &waits, Timestamp::UNIX_EPOCH)
        };
        assert!(answer(None).contains("q is deleted if it still waits"), "{}", answer(None));
        assert!(answer(pause()).contains("once its pause ends (resume)"));
    }
}
