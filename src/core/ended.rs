//! Training jobs that have ended. They stay where they are: what a read of one says depends on whether the slot goes on
//! with another one, and on who ended it.

use std::sync::Arc;

use crate::model::action::Reading;
use crate::model::condition::{Condition, Verdict};
use crate::model::event::{CallResult, Verb, What};
use crate::model::fleet::Memory;
use crate::model::hold::HoldReason;
use crate::model::node::NodeView;
use crate::model::phase::Phase;
use crate::model::slot::{Seen, SlotRecord};
use crate::model::submission::JobState;

use super::identity::Source;
use super::moves::came_of;
use super::turn::Turn;

/// A training job that is gone: its record is kept by the service, so that a person has deleted it.
pub fn deleted(record: &SlotRecord) -> Option<Verdict> {
    let known = record.incarnation.as_ref()?;
    if let Some((Condition::Finished, _)) = record.last_clear {
        return Some(Verdict::new(Condition::Finished, record.verdict.evidence.clone()));
    }
    let (id, name) = (&known.id, &record.name);
    let text = format!("job {id} is gone: a person deleted it; `retry {name}` submits it again");
    Some(Verdict::held(Condition::Stopped, text, HoldReason::Deleted))
}

/// Tells once that a training job has failed and is not submitted again by itself. A gap in its reads does not make the
/// same end a new one. Returns whether it was news.
pub fn tell_failure(record: &mut SlotRecord, turn: &mut Turn) -> bool {
    let told = record.job.failed_job == record.incarnation;
    if record.verdict.condition != Condition::JobFailed || told {
        return false;
    }
    record.job.failed_job.clone_from(&record.incarnation);
    turn.tell(record, What::JobFailed { code: None, stuck: None }, record.verdict.evidence.clone());
    true
}

/// A training job that has ended, and that another one is to go on with, stays for good: it counts as absent. Lists
/// show the jobs that live, so that the end of one is read once, when its error is there.
pub fn taken_in(
    record: &mut SlotRecord,
    memory: &mut Memory,
    reading: Reading,
    source: Source,
    turn: &mut Turn,
) -> Reading {
    if let Reading::Node(view) = &reading {
        succeeded(record, view, turn);
    }
    let left = record.left_behind.map(|(created, _)| created);
    // Cancelled by us: its end is what is waited for.
    let cancelled = record.recovery.as_ref().filter(|recovery| recovery.phase() == Phase::Deleting);
    let is_left = |view: &NodeView| {
        let Some(shown) = view.incarnation.as_ref().filter(|_| view.ended) else { return false };
        cancelled.is_some_and(|of| of.condemned.as_ref() == Some(shown))
            || left.is_some_and(|left| shown.created <= left)
    };
    let reading = match reading {
        Reading::Node(view) if is_left(&view) => Reading::Absent,
        reading => reading,
    };
    let shown = if let Reading::Node(view) = &reading { Some(view) } else { None };
    // A list that shows an end says no more than the GET before it.
    if source == Source::Get || !shown.is_some_and(|view| view.ended) {
        let is_last = |view: &&Arc<NodeView>| view.ended && !ended_as(view, Condition::Going);
        memory.ended = shown.filter(is_last).cloned();
    }
    reading
}

/// Why a job whose cancel was seen, and was not ours, is left alone.
const CANCELLED: &str = "a person had cancelled it";

/// Whether a training job has ended so.
fn ended_as(view: &NodeView, condition: Condition) -> bool {
    view.ended && view.standing.as_ref().is_some_and(|of| of.condition == condition)
}

/// A training job that a person cancels may end in any way.
pub fn notice_cancel(record: &mut SlotRecord, view: &NodeView) {
    let ours = record.recovery.as_ref().is_some_and(|of| of.condemned == view.incarnation);
    // The service cancels what runs into its time limit, and tells why only at the end.
    let held = view.standing.as_ref().and_then(|of| of.hold);
    let limit = ended_as(view, Condition::Terminated) || held == Some(HoldReason::TimeLimit);
    if limit && record.deleted.as_deref() == Some(CANCELLED) {
        // Its words came after its end.
        record.deleted = None;
    }
    let same = record.incarnation == view.incarnation && view.ended && !(ours || limit);
    let cancelling = |seen: &Seen| seen.state == JobState::Cancelling.as_str();
    if same && record.seen.as_ref().is_some_and(cancelling) {
        record.deleted = Some(CANCELLED.to_owned());
    }
}

/// A training job has succeeded, although its cancel was sent: nothing follows.
fn succeeded(record: &mut SlotRecord, view: &NodeView, turn: &mut Turn) {
    let known = view.incarnation.is_some() && ended_as(view, Condition::Finished);
    let of = record.recovery.as_ref().filter(|of| known && of.phase() == Phase::Deleting);
    let of = of.filter(|of| of.condemned == view.incarnation);
    let Some(cause) = of.map(|of| of.cause) else { return };
    let why = "its job has succeeded meanwhile";
    came_of(record, Verb::Delete, CallResult::Failed, why, turn);
    record.recovery = None;
    turn.tell(record, What::Withdrawn { cause }, why);
}
