//! What a listing of a slot's checkpoint location shows: a newer complete checkpoint, growth, or
//! that the recorded one is gone.

use jiff::Timestamp;

use crate::model::checkpoint::{Checkpoint, CheckpointSurvey};
use crate::model::condition::Kind;
use crate::model::failure::Failure;
use crate::model::fleet::Fleet;
use crate::model::job::{JobState, MadeAgain};
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;
use crate::model::spec::{NodeSpec, TRAINING_KEY};

use super::turn::Turn;
use super::{location, resubmission, runs, settle};

/// Applies a listing, or the failure to get one.
pub fn answered(
    fleet: &mut Fleet,
    slot: &str,
    began: Timestamp,
    location: &str,
    result: Result<CheckpointSurvey, Failure>,
    turn: &mut Turn,
) {
    match result {
        Ok(survey) => {
            was_saved(fleet, slot, (began, location), &survey);
            surveyed(fleet, slot, began, location, survey, turn);
        }
        Err(failure) => {
            if let Some(record) = fleet.slots.get_mut(slot)
                && let Some(settings) = listed_at(record, fleet.settings.slots.get(slot), location)
                && location::failed(record, settings, &failure, turn)
            {
                fleet.dirty.insert(slot.to_owned());
            }
            let memory = fleet.memory.entry(slot.to_owned()).or_default();
            (memory.survey_failure, memory.went_back) = (Some(failure.to_string()), false);
        }
    }
}

/// Of machines that were made again, the first listing tells what the former ones had saved; what comes later is the
/// present run's.
fn was_saved(fleet: &mut Fleet, slot: &str, of: (Timestamp, &str), survey: &CheckpointSurvey) {
    let (began, location) = of;
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    let first = |of: &MadeAgain| !of.listed && began >= of.at;
    if record.job.location == location
        && let Some(again) = record.job.made_again.as_mut().filter(|of| first(of))
    {
        let newest = survey.newest.as_ref().map(|checkpoint| checkpoint.step);
        (again.saved, again.listed) = (again.saved.max(newest), true);
        fleet.dirty.insert(slot.to_owned());
    }
}

/// The slot's settings, where it is this location that is listed for it.
fn listed_at<'a>(
    record: &SlotRecord,
    slot: Option<&'a SlotSettings>,
    location: &str,
) -> Option<&'a SlotSettings> {
    slot.filter(|slot| location::watched(record, slot).is_some_and(|of| of.uri == location))
}

fn surveyed(
    fleet: &mut Fleet,
    slot: &str,
    began: Timestamp,
    location: &str,
    survey: CheckpointSurvey,
    turn: &mut Turn,
) {
    let now = turn.now;
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    let Some(settings) = listed_at(record, fleet.settings.slots.get(slot), location) else {
        // The config names another location by now.
        return;
    };
    if runs::is_outdated(record, began) {
        return;
    }
    let memory = fleet.memory.entry(slot.to_owned()).or_default();
    memory.surveyed_at = Some(began.min(now));
    memory.survey_failure = None;
    let seen = survey.clone();
    // Steps found by the first look at a location were there before: they are no progress.
    let mut first = record.job.location != location;
    let job = &mut record.job;
    let newest = survey.newest.as_ref().map(|c| c.step);
    if first {
        elsewhere(job, location, newest);
        job.location_since = record.incarnation.as_ref().map(|incarnation| incarnation.created);
        // A submission is given back by a step beyond these.
        record.resubmitted.step = newest;
        fleet.dirty.insert(slot.to_owned());
    }
    // So is what a person goes back to, once it is listed; from 0 whatever is there, also nothing.
    let went_back_to =
        job.accepts.take_if(|(least, _)| *least == 0 || newest >= Some(*least)).is_some();
    if went_back_to {
        goes_back(job, (&record.spec, &mut record.ready_since), newest, now);
        first = true;
        fleet.dirty.insert(slot.to_owned());
    }
    let newer = survey.newest > job.checkpoint && job.accepts.is_none();
    // A listing that lags behind or lacks something may show once more what was there before: that
    // is no growth.
    let beyond = survey.incomplete.map(|(step, _)| step) > job.checkpoint.as_ref().map(|c| c.step);
    let grown = beyond && job.incomplete.is_some() && survey.incomplete > job.incomplete;
    // The first one that is known may be old: growth is counted from there.
    let begins = job.incomplete.is_none() && survey.incomplete.is_some();
    memory.survey_failure = lacks(job, survey.newest.as_ref()).map(|lacks| {
        let newest = newest.map_or("none".to_owned(), |step| format!("step {step}"));
        format!("the newest complete checkpoint under {location} is {newest}, but {lacks}")
    });
    let went_back = memory.survey_failure.is_some();
    memory.went_back = went_back;
    if went_back != job.went_back_since.is_some() {
        job.went_back_since = went_back.then_some(began.min(now));
        fleet.dirty.insert(slot.to_owned());
    }
    let mut news = false;
    if newer {
        job.checkpoint = survey.newest;
        // How old that is which an operator goes back to is not known.
        (job.checkpoint_at, job.checkpoint_written) = ((!went_back_to).then_some(now), None);
        // A step that was listed before, and passed over or lost since, is no news.
        let step = record.job.checkpoint.as_ref().map(|c| c.step);
        news = step.is_some_and(|step| runs::listed(record, step)) && !first;
        if news {
            runs::progressed(record);
            // Preemptions are the provider's doing: they slide out of their window instead.
            record.attempts.retain(|a| a.kind == Kind::Lost);
        }
    }
    if newer || grown || begins {
        // With a new complete one, what else is there now is where growth begins: an earlier run
        // may have left something.
        record.job.incomplete =
            if newer { survey.incomplete } else { record.job.incomplete.max(survey.incomplete) };
        if news || (grown && !first) {
            settle::progress(record, now);
        }
        fleet.dirty.insert(slot.to_owned());
    }
    if went_back_to && seen.newest.is_none() {
        // An operator has said that the job begins again here: what lies there now is accepted.
        record.job.location_since = seen.other.as_ref().and_then(|other| other.oldest);
    }
    record.job.listed_at = Some(began.min(now));
    let saw = settings.filling.traits().is_job && resubmission::saw(record, &seen, now);
    let changed = saw | resubmission::tell(record, settings, turn);
    // Written where a judgement may soon rest on it.
    if location::surveyed(record, settings, &seen, now, turn)
        || changed
        || record.suspicion.is_some()
    {
        fleet.dirty.insert(slot.to_owned());
    }
    settle::settle(fleet, slot, turn);
}

/// The step that was recorded, or asked for, and is not listed.
fn lacks(job: &JobState, newest: Option<&Checkpoint>) -> Option<String> {
    match (&job.checkpoint, job.accepts) {
        (Some(recorded), _) => {
            (newest < Some(recorded)).then(|| format!("step {} was recorded before", recorded.step))
        }
        (None, Some((least, _))) => Some(format!("step {least} or a later one was asked for")),
        (None, None) => None,
    }
}

/// Another location is another history: steps of the old one mean nothing here.
fn elsewhere(job: &mut JobState, location: &str, newest: Option<u64>) {
    job.accepts.take_if(|_| !job.location.is_empty());
    job.location = location.to_owned();
    (job.checkpoint, job.incomplete, job.went_back_since) = (None, None, None);
    job.steps.clear();
    job.unrecognised = false;
    runs::elsewhere(&mut job.runs, newest);
}

/// A person takes a job back to this step. A managed training job has its whole time to save something again; the time of a
/// TPU goes on, since its hosts' boot is counted by it.
fn goes_back(
    job: &mut JobState,
    (spec, ready_since): (&Option<NodeSpec>, &mut Option<Timestamp>),
    newest: Option<u64>,
    now: Timestamp,
) {
    runs::went_back(&mut job.runs, newest);
    if spec.as_ref().is_some_and(|spec| spec.body().contains_key(TRAINING_KEY)) {
        *ready_since = ready_since.map(|_| now);
    }
}
