//! Obstacles that stand whatever happens to a slot: the gates ask them before a step, and every view
//! asks them of a healthy slot, since a recovery would meet them on the day on which it is needed.

use super::common::WENT_BACK_AFTER;
use super::judged::CREATE_CHECKED_FOR;
use crate::core::ctx::Subject;
use crate::core::{diagnose, ending, location};
use crate::model::condition::{Condition, Kind};
use crate::model::failure::FailureClass;
use crate::model::filling::Filling;
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::{JobSettings, WhenMissing};
use crate::model::slot::SlotRecord;
use crate::model::time::{elapsed, span};
use crate::model::training::JobKind;
use crate::model::view::Decision;
use crate::resource::training::possible;
use jiff::Timestamp;

/// Why a slot would not be recreated, without what happened to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Obstacle {
    /// The reason.
    pub hold: HoldReason,
    /// The reason in words, with the next step for an operator.
    pub why: String,
    /// It ends by itself then.
    pub until: Option<Timestamp>,
}

impl Obstacle {
    fn new(hold: HoldReason, why: impl Into<String>) -> Self {
        Obstacle { hold, why: why.into(), until: None }
    }

    /// The hold of a step that `what` would want.
    pub fn stops(self, what: &str) -> Decision {
        Decision::hold(self.hold, format!("{what}, but {}", self.why), self.until)
    }

    /// Whether it is an operator's choice.
    pub fn is_a_choice(&self) -> bool {
        matches!(
            self.hold,
            HoldReason::Paused
                | HoldReason::OptedOut
                | HoldReason::Forgotten
                | HoldReason::DryRun
                | HoldReason::Stopped
                | HoldReason::Deleted
                | HoldReason::Missing
        )
    }
}

/// A check of what is known of one slot.
type Check = fn(Subject) -> Option<Obstacle>;

/// All of them, in the order of the gates.
const ALL: [(&str, Check); 16] = [
    ("paused", paused),
    ("opted_out", opted_out),
    ("forgotten", forgotten),
    ("plain_node", plain_node),
    ("missing", missing),
    ("ended_early", ended_early),
    ("stopped", stopped),
    ("job_held", job_held),
    ("specification", specification),
    ("possible", impossible),
    ("study", study),
    ("attempts", attempts),
    ("checkpoints", checkpoints),
    ("create_backoff", refused),
    ("create_check", create_check),
    ("dry_run", dry_run),
];

/// The first of the obstacles.
pub fn obstacle(subject: Subject) -> Option<Obstacle> {
    ALL.iter().find_map(|(_, check)| check(subject))
}

/// The answer of each of them.
pub fn answers(subject: Subject) -> Vec<(&'static str, Option<Obstacle>)> {
    ALL.iter().map(|(name, check)| (*name, check(subject))).collect()
}

/// S7: an operator said so.
pub fn paused(subject: Subject) -> Option<Obstacle> {
    let pause = subject.paused()?;
    let why = pause.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    let why = format!("{} paused it{why}", pause.who);
    Some(Obstacle { until: pause.until, ..Obstacle::new(HoldReason::Paused, why) })
}

/// S7: the label is remembered when its node is gone.
pub fn opted_out(subject: Subject) -> Option<Obstacle> {
    let seen = subject.record.seen.as_ref().filter(|seen| seen.opted_out)?;
    let on: Vec<&str> = seen.labelled.keys().map(String::as_str).collect();
    let on = match on.as_slice() {
        [] => String::new(),
        names => format!(
            " (on {}; `resume {}` ends that of a machine that is lost)",
            names.join(", "),
            subject.record.name
        ),
    };
    let text = format!("the label tpu-watchdog=off opts it out{on}");
    Some(Obstacle::new(HoldReason::OptedOut, text))
}

/// An operator has called its create off.
pub fn forgotten(subject: Subject) -> Option<Obstacle> {
    let record = subject.record;
    let why = match &record.released {
        Some(release) => format!("{} released its TPU", release.who),
        None => "`forget` called it off".to_owned(),
    };
    let text = || format!("{why}; `retry {}` wants it again", record.name);
    record.forgotten.then(|| Obstacle::new(HoldReason::Forgotten, text()))
}

/// S17: what is not the slot's own plain node is replaced by those whose it is, or not at all.
pub fn plain_node(subject: Subject) -> Option<Obstacle> {
    let record = subject.record;
    let seen = record.seen.as_ref()?;
    let other = seen.other_owner.as_ref().filter(|owner| record.adopted.as_ref() != Some(owner));
    if let Some(owner) = other {
        let text = format!(
            "the watchdog {owner:?} owns it (metadata tpu-watchdog-owner); take it over with `resume {} --adopt`",
            record.name
        );
        return Some(Obstacle::new(HoldReason::OtherOwner, text));
    }
    if let Some(queued) = &seen.queued_resource {
        let name = queued.rsplit('/').next().unwrap_or(queued);
        let text = format!(
            "it belongs to queued resource {name} and can only be replaced through it; set queued_resource = {name:?} in its [[tpu]]"
        );
        return Some(Obstacle::new(HoldReason::QueuedResource, text));
    }
    if seen.multislice {
        let text = "it is part of a multislice whose slices differ, or whose queued resource is not known: it can't be created again as it is; recreate it by hand";
        return Some(Obstacle::new(HoldReason::Multislice, text));
    }
    let text = "it was made by API v1, and v2 can't recreate it";
    seen.is_v1.then(|| Obstacle::new(HoldReason::ApiV1, text))
}

/// It is missing, and an operator has to say that it is wanted.
fn missing(subject: Subject) -> Option<Obstacle> {
    let Subject { record, slot, .. } = subject;
    let wanted = record.wanted.is_some() || diagnose::is_owed(record);
    if wanted || record.verdict.condition != Condition::Missing {
        return None;
    }
    let name = &record.name;
    match (slot.policy.when_missing, &record.deleted) {
        (WhenMissing::Hold, _) => {
            let text =
                format!("it is missing, and when_missing = \"hold\"; `recreate {name}` creates it");
            Some(Obstacle::new(HoldReason::Missing, text))
        }
        (WhenMissing::Auto, Some(why)) => {
            let text =
                format!("it was deleted on purpose: {why}; `recreate {name}` creates it again");
            Some(Obstacle::new(HoldReason::Deleted, text))
        }
        _ => None,
    }
}

/// The API refuses its create for a reason that waiting does not end; it is tried again all the same.
fn refused(subject: Subject) -> Option<Obstacle> {
    use FailureClass::{ApiDisabled, BadRequest, Billing, ClosedQueue, NotFound, Permission};
    let tries = |of: &&Recovery| matches!(of.phase(), Phase::Gone | Phase::Creating);
    let recovery = subject.record.recovery.as_ref().filter(tries)?;
    // One that shows by now was made.
    subject.record.incarnation.is_none().then_some(())?;
    let (class, text) = recovery.refusal.as_ref()?;
    let stays =
        matches!(class, ApiDisabled | BadRequest | Billing | ClosedQueue | NotFound | Permission);
    let why = || {
        format!(
            "the API refuses its create ({}): {text}. Mend [tpu.create], the permission or the project, then `retry {}`",
            class.name(),
            subject.record.name
        )
    };
    stays.then(|| Obstacle::new(HoldReason::Backoff, why()))
}

/// S23: its job may be done.
fn ended_early(subject: Subject) -> Option<Obstacle> {
    let key = subject.slot.job.as_ref().map(JobSettings::key);
    let held = ending::holds_recreate(subject.record, key)?;
    Some(Obstacle::new(held.hold?, held.reason))
}

/// Another client stopped it.
fn stopped(subject: Subject) -> Option<Obstacle> {
    subject.record.seen.as_ref().filter(|seen| seen.stopped)?;
    let text = diagnose::left_alone(subject.record);
    Some(Obstacle::new(HoldReason::Stopped, text))
}

/// A training job that has ended, or is being ended, and that its people have to look at.
pub fn job_held(subject: Subject) -> Option<Obstacle> {
    let record = subject.record;
    let verdict = subject.slot.filling.traits().is_job.then_some(&record.verdict)?;
    let deleted = record.deleted.as_ref().filter(|_| record.has_ended());
    let hold = verdict.hold.or(deleted.map(|_| HoldReason::Deleted))?;
    let why = deleted
        .map_or(String::new(), |why| format!("; {why}: `retry {}` submits it again", record.name));
    Some(Obstacle::new(hold, format!("{}{why}", verdict.evidence)))
}

/// A submission as the config wants it, which the job can't have: told while it runs.
pub fn impossible(subject: Subject) -> Option<Obstacle> {
    let of = subject.slot.filling.training()?;
    let next = subject.record.next_machine(&subject.slot.filling);
    let spec = subject.record.spec.clone()?.on_machine(next);
    let why = possible::obstacle(&spec, of)?;
    let why = format!("it can't be submitted again as the config wants: {why}");
    Some(Obstacle::new(HoldReason::NotPossible, why))
}

/// A job that starts over by an operator's word alone: told while it runs.
fn study(subject: Subject) -> Option<Obstacle> {
    let of = subject.slot.filling.training()?;
    let held = of.takes_consent(subject.record.spec.as_ref()?.job_kind()?);
    let text = || {
        format!(
            "a new submission would begin its study with the first trial: where it fails, `retry {}` submits it, and restart_study = true does so \
             each time",
            subject.record.name
        )
    };
    held.then(|| Obstacle::new(HoldReason::JobFailed, text()))
}

/// S12: nothing is deleted that could not be created again.
pub fn specification(subject: Subject) -> Option<Obstacle> {
    let Err(why) = subject.acceptable? else { return None };
    let record = subject.record;
    let unseen = record.spec.is_none() && record.seen.is_none();
    let unread = unseen && record.verdict.condition == Condition::Unclear;
    let (hold, text) = if unread {
        let text = format!(
            "{} was not read yet ({}), so that it is not known whether it exists, nor how",
            record.zone, record.verdict.evidence
        );
        (HoldReason::Unclear, text)
    } else if unseen {
        let text = match &subject.slot.filling {
            Filling::Training(job) => format!(
                "no {} that the config means was ever seen in {}: correct its name or region, or name create = \"job.yaml\" to have it made",
                job.kinds().map(JobKind::noun).collect::<Vec<_>>().join(" or "),
                subject.slot.zones.join(", ")
            ),
            Filling::Node | Filling::QueuedResource(_) => format!(
                "no TPU of this name was ever seen in {}: correct `name` or `zone` in the config, or describe it in [tpu.create] to have it \
                 created ({why})",
                record.zone
            ),
        };
        (HoldReason::NeverSeen, text)
    } else {
        (HoldReason::NoSpecification, format!("its specification can't be created again: {why}"))
    };
    Some(Obstacle::new(hold, text))
}

/// S13: recoveries that did not help.
fn attempts(subject: Subject) -> Option<Obstacle> {
    let (record, policy) = (subject.record, &subject.slot.policy.attempts);
    let own = |kind| {
        let recovery = record.recovery.as_ref();
        usize::from(recovery.is_some_and(|recovery| recovery.kind == kind))
    };
    let used =
        |kind| record.attempts_used(kind, policy.window, subject.now).saturating_sub(own(kind));
    let window = span(policy.window);
    if used(Kind::Judged) >= policy.max {
        let text = format!(
            "{} recoveries within {window} did not help; find the cause, then `retry {}`",
            used(Kind::Judged),
            record.name
        );
        return Some(Obstacle::new(HoldReason::Attempts, text));
    }
    let text = || {
        format!(
            "{} preemptions within {window} reach attempts.preemptions; recreates resume as the window slides",
            used(Kind::Lost)
        )
    };
    (used(Kind::Lost) >= policy.preemptions).then(|| Obstacle::new(HoldReason::Preemptions, text()))
}

/// S15, S20: its create would be held for what its checkpoint location holds.
fn checkpoints(subject: Subject) -> Option<Obstacle> {
    let (job, listed) = (&subject.record.job, location::listed(subject.slot)?);
    let here = job.location.is_empty() || job.location == listed.uri;
    // Once it is lost it is created again all the same.
    let matters = here && !subject.slot.finds_its_own();
    if let Some(trouble) = job.trouble.as_ref().filter(|_| matters) {
        return Some(Obstacle::new(HoldReason::CheckpointUnreadable, trouble.text()));
    }
    let gone = |since: Timestamp| elapsed(since, subject.now) >= WENT_BACK_AFTER;
    job.went_back_since.filter(|since| here && gone(*since))?;
    let text = format!(
        "the recorded checkpoint is gone from {}: restore it, or say from which step with `retry {} --from STEP`",
        listed.uri, subject.record.name
    );
    Some(Obstacle::new(HoldReason::CheckpointWentBack, text))
}

/// S20: a create could certainly not follow.
fn create_check(subject: Subject) -> Option<Obstacle> {
    let why = no_create_could_follow(subject.record, subject.now)?;
    subject.slot.policy.create_check.then(|| Obstacle::new(HoldReason::CannotCreate, why))
}

/// Why a create could certainly not follow, as the last check found.
pub fn no_create_could_follow(record: &SlotRecord, now: Timestamp) -> Option<String> {
    let (_, found) =
        record.create_check.as_ref().filter(|(at, _)| elapsed(*at, now) <= CREATE_CHECKED_FOR)?;
    Some(format!("a create could not follow: {}", found.certain.as_ref()?))
}

/// S7.
fn dry_run(subject: Subject) -> Option<Obstacle> {
    let text = "dry_run = true in the config: nothing is done";
    subject.settings.dry_run.then(|| Obstacle::new(HoldReason::DryRun, text))
}
