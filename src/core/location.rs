//! Whether a create may rest on what a checkpoint location holds: it was listed completely, and
//! what lies there is understood.
//!
//! A location counts as understood when a complete checkpoint was found in it, or when nothing in
//! it is older than the job's first run: then there is none yet. Anything else would be "no
//! checkpoint" by mistake, and the job would begin from scratch over its own work. A judged TPU is
//! not deleted unless the location was listed completely within the last hour: its create would be
//! held.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::checkpoint::{CheckpointSurvey, NotComplete};
use crate::model::event::What;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::Memory;
use crate::model::hold::HoldReason;
use crate::model::job::LocationTrouble;
use crate::model::settings::{CheckpointSettings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::time::elapsed;
use crate::model::time::span;
use crate::model::view::Decision;
use crate::resource::training::body;

use super::turn::Turn;

/// A judged delete rests on a complete listing of at most this age.
const LISTED_WITHIN: Duration = Duration::from_secs(3600);

/// The location of a slot's checkpoints, where they are looked for.
pub fn listed(slot: &SlotSettings) -> Option<&CheckpointSettings> {
    slot.job.as_ref()?.checkpoint.as_ref().filter(|checkpoint| checkpoint.is_listed())
}

/// The location that is listed for a slot: that of the config, else the one that the service gives to a training job. Of
/// the latter only a complete checkpoint counts, since its job may save in other ways.
pub fn watched<'s>(
    record: &SlotRecord,
    slot: &'s SlotSettings,
) -> Option<Cow<'s, CheckpointSettings>> {
    if let Some(job) = &slot.job {
        return job.checkpoint.as_ref().filter(|listed| listed.is_listed()).map(Cow::Borrowed);
    }
    let uri = body::checkpoints(record.spec.as_ref()?)?;
    Some(Cow::Owned(CheckpointSettings { uri, format: None, orbax_mode: Default::default() }))
}

/// When a location was last listed completely; none where it never was.
pub fn listed_at(record: &SlotRecord, uri: &str) -> Option<Timestamp> {
    record.job.listed_at.filter(|_| record.job.location == uri)
}

/// A complete listing came in. Returns whether the record changed.
pub fn surveyed(
    record: &mut SlotRecord,
    slot: &SlotSettings,
    survey: &CheckpointSurvey,
    now: Timestamp,
    turn: &mut Turn,
) -> bool {
    let Some(location) = watched(record, slot) else { return false };
    let trusted = listed(slot).is_some();
    let other = survey.other.as_ref().filter(|_| survey.newest.is_none() && trusted);
    let strange =
        other.filter(|other| other.oldest.is_none_or(|oldest| oldest < began(record, now)));
    let job = &mut record.job;
    let written = survey.written.filter(|_| survey.newest == job.checkpoint);
    // Neighbours that could not be listed are those that were listed before.
    let empty = survey.newest.is_none() && survey.other.is_none();
    let kept = if empty && survey.around.is_empty() { &job.around } else { &survey.around };
    let shown = (written.or(job.checkpoint_written), kept);
    let news = shown != (job.checkpoint_written, &job.around);
    (job.checkpoint_written, job.around) = (shown.0, shown.1.clone());
    let trouble =
        strange.map(|other| LocationTrouble::NotUnderstood(not_understood(&location, other)));
    change(record, slot, trouble, turn) || news
}

/// A listing failed. What passes by itself says nothing about the location. Returns whether the
/// record changed.
pub fn failed(
    record: &mut SlotRecord,
    slot: &SlotSettings,
    failure: &Failure,
    turn: &mut Turn,
) -> bool {
    let passing = matches!(
        failure.class,
        FailureClass::Transient | FailureClass::Rate | FailureClass::Garbage
    );
    let trusted = listed(slot).is_some();
    !passing
        && trusted
        && change(record, slot, Some(LocationTrouble::Unlisted(failure.message.clone())), turn)
}

fn change(
    record: &mut SlotRecord,
    slot: &SlotSettings,
    trouble: Option<LocationTrouble>,
    turn: &mut Turn,
) -> bool {
    if record.job.trouble == trouble {
        return false;
    }
    let kind = |trouble: &Option<LocationTrouble>| trouble.as_ref().map(std::mem::discriminant);
    let news = kind(&record.job.trouble) != kind(&trouble);
    record.job.trouble = trouble;
    if let Some(trouble) = record.job.trouble.as_ref().filter(|_| news) {
        let none = if slot.finds_its_own() { "" } else { ", and creates none" };
        let message = format!(
            "{}. Until that is fixed, the watchdog deletes no judged TPU of this slot{none}",
            trouble.text()
        );
        turn.tell(record, What::CheckpointTrouble, message);
    }
    true
}

/// When the job's first run began, as far as is known: what was written before is not its own.
pub fn began(record: &SlotRecord, now: Timestamp) -> Timestamp {
    let node = || record.incarnation.as_ref().map(|incarnation| incarnation.created);
    // A record of the first version names no first run: the oldest that it knows of.
    let known = || node().or(record.left_behind.map(|(created, _)| created));
    let earliest =
        |at: Timestamp| record.attempts.iter().map(|attempt| attempt.at).fold(at, Timestamp::min);
    record.job.location_since.or_else(|| known().map(earliest)).unwrap_or(now)
}

fn not_understood(location: &CheckpointSettings, other: &NotComplete) -> String {
    let age = other.oldest.map_or("more than can be looked at".to_owned(), |oldest| {
        format!("some of it from {oldest:.0}")
    });
    format!(
        "no complete checkpoint is recognised under {0}, but it contains {1} ({age}, before this job's first run). Is it the right place? Name \
         the layout: checkpoint = {{ uri = \"{0}\", orbax_mode = \"rename\" }} for Orbax without commit files, format = \"orbax\" or \
         \"huggingface\". To begin from scratch once: `retry SLOT --from 0`; each time: format = \"none\"",
        location.uri,
        other.names.join(", "),
    )
}

/// The hold of a create, where what was listed last does not bear it.
pub fn holds_create(record: &SlotRecord) -> Option<Decision> {
    let trouble = record.job.trouble.as_ref()?;
    let text = format!("its create is pending, but {}; it is listed again", trouble.text());
    Some(Decision::hold(HoldReason::CheckpointUnreadable, text, None))
}

/// Why a judged TPU is kept: its create would be held for the checkpoints.
pub fn holds_judged(
    record: &SlotRecord,
    memory: &Memory,
    slot: &SlotSettings,
    now: Timestamp,
) -> Option<Decision> {
    let location = listed(slot)?;
    let why = match (&record.job.trouble, listed_at(record, &location.uri)) {
        (Some(trouble), _) => trouble.text().to_owned(),
        (None, Some(_)) if record.job.went_back_since.is_some() => {
            let gone =
                || format!("complete listings of {} lack the recorded checkpoint", location.uri);
            memory.survey_failure.clone().unwrap_or_else(gone)
        }
        (None, Some(at)) if elapsed(at, now) <= LISTED_WITHIN => return None,
        (None, at) => {
            let failure =
                memory.survey_failure.as_ref().map_or("it is listed now".to_owned(), Clone::clone);
            match at {
                Some(at) => format!(
                    "{} was last listed completely {} ago ({failure})",
                    location.uri,
                    span(elapsed(at, now))
                ),
                None => format!("{} was never listed completely ({failure})", location.uri),
            }
        }
    };
    let text = format!("{}: keeping the current TPU: {why}", record.verdict.condition.name());
    Some(Decision::hold(HoldReason::CheckpointUnreadable, text, None))
}

/// Whether its machines came up with an old order that says `wait`, and its job would go by the checkpoint of that: it waits for
/// one from the newest, which is not known before it is listed.
pub fn waits_for_newer(record: &SlotRecord, slot: &SlotSettings) -> bool {
    let waits = record.outdated_order().is_some_and(|order| order.wait);
    waits && listed(slot).is_some() && !slot.finds_its_own()
}
