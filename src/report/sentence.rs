//! One sentence a slot: what it is, since when, why, what comes next and when. The same in the
//! terminal, on the page, in JSON.
//!
//! Example: `waiting: no v4-8 capacity in us-central2-b (try 4); next try in 28s; saved step 1015
//! (3m old)`. Its words come from the view of the slot alone, and nothing decides by them.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::failure::FailureClass;
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::time::{elapsed, span};
use crate::model::view::{ActionName, JobView, PauseView, SlotView, StatusDocument};

/// How urgent a slot is, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    /// An operator has to act.
    Bad,
    /// A recovery of it would not come about, and not by choice.
    Unprotected,
    /// It waits: for capacity, for the end of a grace, for a hold to end.
    Waiting,
    /// Something is being done about it.
    Acting,
    /// It is left alone by choice.
    Off,
    /// It is well.
    Good,
}

impl Tone {
    /// A mark of one column.
    pub fn mark(self) -> &'static str {
        match self {
            Tone::Bad | Tone::Unprotected => "✗",
            Tone::Waiting => "◌",
            Tone::Acting => "●",
            Tone::Off => "○",
            Tone::Good => "✓",
        }
    }
}

/// The state of a slot in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// How urgent.
    pub tone: Tone,
    /// The state: one or two words.
    pub word: &'static str,
    /// Since when it has been so.
    pub since: Timestamp,
    /// Why, what comes next and when, and where the job stands.
    pub text: String,
}

impl Sentence {
    /// The whole of it, for JSON and one-line places.
    pub fn whole(&self, now: Timestamp) -> String {
        let (word, since) = (self.word, span(elapsed(self.since, now)));
        let text = if self.text.is_empty() { String::new() } else { format!("; {}", self.text) };
        if self.tone == Tone::Good {
            return format!("{word} for {since}{text}");
        }
        format!("{word}: {}", self.text)
    }
}

/// Writes the sentence of each slot into a document that is about to be shown.
pub fn fill(document: &mut StatusDocument, now: Timestamp) {
    for slot in &mut document.tpus {
        slot.sentence = sentence(slot, now).whole(now);
    }
}

/// The slots with their sentences, the most urgent first.
pub fn by_urgency(document: &StatusDocument, now: Timestamp) -> Vec<(&SlotView, Sentence)> {
    let mut all: Vec<_> = document.tpus.iter().map(|slot| (slot, sentence(slot, now))).collect();
    all.sort_by_key(|(_, sentence)| sentence.tone);
    all
}

/// The noun over the rows of a table.
pub fn heading(document: &StatusDocument) -> &'static str {
    let jobs = document.tpus.iter().filter(|slot| slot.is_job()).count();
    match jobs {
        0 => "TPU",
        jobs if jobs == document.tpus.len() => "Job",
        _ => "Slot",
    }
}

/// The sentence of one slot.
pub fn sentence(slot: &SlotView, now: Timestamp) -> Sentence {
    let (tone, word) = state(slot);
    let mut parts = Vec::new();
    match &slot.pause {
        Some(pause) if word == "paused" => {
            parts.push(paused(pause, now));
            parts.push(slot.condition.name().replace('_', " "));
        }
        _ if word == "healthy" && slot.empty && slot.protected => {
            parts.push("would come back empty: no startup script, no [tpu.job]".to_owned());
        }
        _ if matches!(word, "healthy" | "not found") => {}
        _ => parts.push(why(slot, now)),
    }
    // A choice of its people that holds it now is told already.
    let held = slot.unprotected_by_choice && slot.hold == slot.unprotected_by;
    let told = slot.unprotected_reason.as_ref().filter(|_| !held);
    let told = told.filter(|why| !parts.join(";").contains(*why));
    let open = matches!(word, "healthy" | "not found") || tone == Tone::Waiting;
    if let Some(why) = told.filter(|_| open && word != "paused") {
        parts.push(format!("NOT PROTECTED: {why}"));
    }
    if let Some(next) = next(slot, now) {
        parts.push(next);
    }
    if let Some(job) = slot.job.as_ref().filter(|_| slot.condition != Condition::Finished) {
        parts.extend(stands(job, now));
    }
    let since = match &slot.pause {
        Some(pause) if word == "paused" => pause.since,
        _ if slot.phase.is_some() => slot.unhealthy_since,
        _ => None,
    };
    Sentence { tone, word, since: since.unwrap_or(slot.since), text: parts.join("; ") }
}

/// The state in a word, and how urgent it is.
fn state(slot: &SlotView) -> (Tone, &'static str) {
    let phase = slot.phase.as_deref();
    let is = |wanted: Phase| phase == Some(wanted.name());
    if slot.action == ActionName::Escalate {
        return (Tone::Bad, escalated(slot));
    }
    if slot.pause.is_some() {
        return (Tone::Off, "paused");
    }
    let hold = slot.hold.as_deref();
    if is_unknown(slot) && hold != Some(HoldReason::Forgotten.name()) {
        return (Tone::Unprotected, "not found");
    }
    let held = |reason: HoldReason| hold == Some(reason.name());
    let chosen = [HoldReason::OptedOut, HoldReason::Forgotten, HoldReason::Stopped];
    if let Some(reason) = chosen.into_iter().find(|reason| held(*reason)) {
        let word = match reason {
            HoldReason::OptedOut => "opted out",
            HoldReason::Forgotten => "forgotten",
            _ => "stopped",
        };
        return (Tone::Off, word);
    }
    if held(HoldReason::DryRun) {
        return (Tone::Waiting, "dry run");
    }
    if held(HoldReason::Unclear) {
        return (Tone::Waiting, "unclear");
    }
    if is(Phase::Gone) {
        return (Tone::Waiting, if slot.hold.is_some() { "waiting" } else { "creating" });
    }
    if slot.hold.is_some() {
        return (Tone::Waiting, "held");
    }
    if is(Phase::Condemned) || is(Phase::Deleting) {
        return (Tone::Acting, "removing");
    }
    if is(Phase::Creating) && slot.condition == Condition::Waiting {
        return (Tone::Waiting, "waiting");
    }
    if is(Phase::Creating) {
        return (Tone::Acting, "creating");
    }
    if phase.is_some() {
        return (Tone::Acting, "starting");
    }
    match (slot.action, slot.condition) {
        (ActionName::Recreate, _) => (Tone::Acting, "recreating"),
        (ActionName::Create, _) => (Tone::Acting, "creating"),
        (ActionName::Relaunch, _) => (Tone::Acting, "relaunching"),
        (_, Condition::Finished) => (Tone::Good, "finished"),
        (_, Condition::Healthy) if !slot.protected && !slot.unprotected_by_choice => {
            (Tone::Unprotected, "healthy")
        }
        (_, Condition::Healthy) if !slot.protected => (Tone::Off, "healthy"),
        (_, Condition::Healthy) if slot.empty || may_be_misplaced(slot) => {
            (Tone::Waiting, "healthy")
        }
        (_, Condition::Healthy) => (Tone::Good, "healthy"),
        (_, condition) => (Tone::Waiting, in_words(condition)),
    }
}

/// Never seen, and not described either: a name that is written wrongly, most of the time.
fn is_unknown(slot: &SlotView) -> bool {
    let unseen = slot.accelerator.is_none() && slot.incarnation.is_none();
    unseen && slot.condition == Condition::Missing && !slot.protected && slot.phase.is_none()
}

/// No checkpoint, and folders next to its place: one of them may be meant.
fn may_be_misplaced(slot: &SlotView) -> bool {
    slot.job.as_ref().is_some_and(|job| job.checkpoint.is_none() && !job.around.is_empty())
}

/// A hold that an operator has to end.
fn escalated(slot: &SlotView) -> &'static str {
    match slot.condition {
        Condition::JobFailed => "job failed",
        Condition::SetupFailed => "set-up failed",
        Condition::ChipsBusy => "chips busy",
        _ => "stuck",
    }
}

fn in_words(condition: Condition) -> &'static str {
    match condition {
        Condition::RequestFailed => "request failed",
        Condition::SliceLost => "slice lost",
        Condition::FailedRepair => "failed repair",
        Condition::RuntimeUnhealthy => "runtime sick",
        Condition::GangIncomplete => "incomplete",
        Condition::NeverBooted => "never booted",
        Condition::SetupFailed => "set-up failed",
        Condition::ChipsBusy => "chips busy",
        Condition::ChipsMissing => "chips missing",
        Condition::JobFailed => "job failed",
        Condition::JobStalled => "job stalled",
        condition => condition.name(),
    }
}

/// Why it is so: the decision's reason, without what its word says already.
fn why(slot: &SlotView, now: Timestamp) -> String {
    let capacity = slot.refused.as_deref().filter(|_| slot.phase.as_deref() == Some("gone"));
    // Another hold says itself why nothing is created.
    let waits = match slot.hold.as_deref() {
        Some(hold) if hold == HoldReason::Backoff.name() => slot.until.is_some(),
        hold => hold == Some(HoldReason::WaitsForProbe.name()),
    };
    if let Some(class) = capacity.filter(|_| slot.action == ActionName::Hold && waits) {
        return refused(slot, class);
    }
    let condition = slot.condition.name();
    // A grace: the evidence, and then what comes when it is over.
    if slot.action == ActionName::Wait && slot.hold.is_none() && next(slot, now).is_some() {
        return slot.evidence.clone();
    }
    let subjects = [
        format!("{condition}, but "),
        format!("{condition}: "),
        "its create is pending, but ".to_owned(),
        "its create is pending; ".to_owned(),
    ];
    let reason = subjects.iter().find_map(|subject| slot.reason.strip_prefix(subject));
    let reason = reason.unwrap_or(&slot.reason);
    let sick = slot.condition.kind().is_some() && slot.phase.is_none();
    if sick && slot.hold.is_some() {
        let since = span(elapsed(slot.since, now));
        return format!("{} for {since}; {reason}", in_words(slot.condition));
    }
    reason.to_owned()
}

/// A create that is refused.
fn refused(slot: &SlotView, class: &str) -> String {
    let what = slot.accelerator.as_deref().filter(|name| !name.is_empty()).unwrap_or("TPU");
    let (zone, tries) = (slot.refused_in.as_ref().unwrap_or(&slot.zone), slot.create_failures);
    let tries = if tries > 0 { format!(" (try {tries})") } else { String::new() };
    let other = slot.hold.as_deref() == Some(HoldReason::WaitsForProbe.name());
    let refusal = slot.refusal.as_deref().unwrap_or_default();
    let text = if class == FailureClass::StockOut.name() {
        format!("no {what} capacity in {zone}{tries}")
    } else if class == FailureClass::Quota.name() {
        format!("the quota is used up in {zone}{tries}: {refusal}")
    } else {
        format!("the create failed{tries}: {refusal}")
    };
    if other { format!("{text}; another slot is tried first") } else { text }
}

/// The next step, and when.
fn next(slot: &SlotView, now: Timestamp) -> Option<String> {
    let at = slot.until.filter(|at| *at > now)?;
    let left = span(elapsed(now, at));
    let judged = slot.condition.kind() == Some(Kind::Judged) && slot.phase.is_none();
    Some(match (slot.action, slot.hold.as_deref()) {
        (_, Some("paused")) => return None,
        (_, None) if slot.condition == Condition::Going => return None,
        (_, Some("backoff" | "waits_for_probe" | "create_limit" | "delete_failed")) => {
            format!("next try in {left}")
        }
        (_, Some("deleting") | None) if slot.condition == Condition::Deleting => {
            format!("the delete is sent once more in {left}")
        }
        (ActionName::Wait, None) if judged => {
            let hung = [Condition::Unresponsive, Condition::RuntimeUnhealthy];
            let first = hung.contains(&slot.condition) && slot.job.is_some();
            let what = if first { "relaunched or recreated" } else { "recreated" };
            format!("{what} in {left} unless it recovers")
        }
        (ActionName::Wait, None) if slot.condition.kind() == Some(Kind::Lost) => {
            if !slot.protected {
                return None;
            }
            format!("created again in {left} unless it appears")
        }
        (_, Some(_)) => format!("held for {left} more"),
        _ => format!("next step in {left}"),
    })
}

fn paused(pause: &PauseView, now: Timestamp) -> String {
    let until = pause.until.filter(|at| *at > now);
    let until = until.map_or(String::new(), |at| {
        format!("until {} UTC ({}) ", at.strftime("%H:%M"), span(rounded(elapsed(now, at))))
    });
    let why = pause.reason.as_ref().map_or(String::new(), |why| format!(": {why}"));
    format!("{until}by {}{why}", pause.by)
}

/// Where the job stands: its step, and the checkpoint that it would start from.
pub fn stands(job: &JobView, now: Timestamp) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(step) = job.step.filter(|step| job.checkpoint_step.is_none_or(|at| at < *step)) {
        parts.push(format!("step {step}"));
    }
    match (job.checkpoint_step, &job.location) {
        (Some(step), _) => {
            let age = job
                .checkpoint_at
                .map_or(String::new(), |at| format!(" ({} old)", span(elapsed(at, now))));
            parts.push(format!("saved step {step}{age}"));
        }
        (None, Some(location)) if !job.held => {
            parts.push(none_known(location, job.unlisted, &job.around));
        }
        _ => {}
    }
    parts
}

/// A job without a known checkpoint: none is there, or it has not been listed yet.
pub fn none_known(location: &str, unlisted: bool, around: &[String]) -> String {
    if unlisted {
        format!("{location} has not been listed yet")
    } else {
        none_found(location, around)
    }
}

/// A location without a checkpoint, and its neighbours where they may explain it.
pub fn none_found(location: &str, around: &[String]) -> String {
    let above = location.rsplit_once('/').map_or(location, |(above, _)| above);
    let neighbours = match around {
        [] => String::new(),
        names => format!(" ({above} has {})", names.join(", ")),
    };
    format!("no checkpoint found under {location}{neighbours}")
}

/// A time to come, to the nearest second: two hours from a moment ago are two hours.
pub fn rounded(time: Duration) -> Duration {
    Duration::from_secs((time + Duration::from_millis(500)).as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::view::{PauseView, StatusDocument};

    #[test]
    fn a_pause_is_told_since_it_was_given_and_a_recovery_since_its_first_symptom() {
        let text = include_str!("../../tests/snapshots/document.json");
        let mut document: StatusDocument = serde_json::from_str(text).unwrap();
        let now = document.observed_at.unwrap();
        let since = |slot: &SlotView| sentence(slot, now).since;
        let slot = &mut document.tpus[0];
        let symptom = slot.unhealthy_since.expect("a TPU that is being replaced");
        assert_eq!(since(slot), symptom);
        let given = symptom + jiff::SignedDuration::from_mins(5);
        let pause = PauseView {
            by: "ana".into(),
            reason: None,
            until: None,
            since: Some(given),
            all: false,
        };
        (slot.phase, slot.pause, slot.action) = (None, Some(pause), ActionName::Hold);
        assert_eq!(since(slot), given);
        slot.pause = None;
        assert_eq!(since(slot), slot.since);
    }

    #[test]
    fn a_slot_that_was_never_seen_and_is_forgotten_says_so() {
        let text = include_str!("../../tests/snapshots/document.json");
        let mut document: StatusDocument = serde_json::from_str(text).unwrap();
        let now = document.observed_at.unwrap();
        let slot = &mut document.tpus[0];
        (slot.accelerator, slot.incarnation, slot.phase) = (None, None, None);
        (slot.condition, slot.protected) = (Condition::Missing, false);
        assert_eq!(sentence(slot, now).word, "not found");
        let why = "`forget` called it off; `retry a` wants it again";
        slot.hold = Some(HoldReason::Forgotten.name().to_owned());
        (slot.unprotected_by, slot.unprotected_by_choice) = (slot.hold.clone(), true);
        (slot.reason, slot.unprotected_reason) = (why.to_owned(), Some(why.to_owned()));
        let told = sentence(slot, now);
        assert_eq!(told.word, "forgotten");
        assert!(!told.text.is_empty(), "{told:?}");
    }
}
