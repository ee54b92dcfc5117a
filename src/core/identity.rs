//! Which node a reading shows: the slot's own, one that our create made, one that is gone by now,
//! or another client's.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::job::MadeAgain;
use crate::model::node::{NodeState, NodeView};
use crate::model::settings::Settings;
use crate::model::slot::SlotRecord;
use crate::model::spec::TRAINING_KEY;
use crate::model::step::Call;
use crate::model::time::elapsed;
use crate::model::training::Resubmitted;

use super::ending;

/// A node whose delete operation succeeded is not believed to live for this long.
const ENDED_FOR: Duration = Duration::from_secs(24 * 3600);

/// Where a reading comes from. Only a GET settles what became of a call, and only a GET confirms
/// (S1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    List,
    Get,
}

/// Starts the record of a new incarnation: nothing known of the former one speaks against it.
pub fn become_incarnation(record: &mut SlotRecord, view: &NodeView, ours: bool, now: Timestamp) {
    record.incarnation.clone_from(&view.incarnation);
    record.ours = ours;
    // A node of its name is there again: a deletion of before is over.
    (record.wanted, record.deleted) = (None, None);
    record.ready_since = (view.state == NodeState::Ready).then_some(now);
    record.suspicion = None;
    // A request that was granted late, or that a person made from an old description, has an old order.
    let older = view.run.as_ref().is_some_and(|run| run.generation < record.job.generation);
    let again = ours && older && view.machines.is_some();
    record.job.made_again = again.then(|| MadeAgain::now(&record.job, now));
    record.job.heard_from = view.run.as_ref().map(|run| run.generation);
    if ours {
        record.job.generation = record.job.generation.max(record.heard_from());
    } else {
        // A person's own submission is a new beginning.
        record.resubmitted = Resubmitted::default();
    }
    record.submitted_at = None;
    record.job.runs.began = false;
    record.job.workers.clear();
    (record.job.attributes_at, record.job.unheard_since) = (None, None);
    (record.job.relaunch, record.job.relaunch_by) = (None, None);
    (record.job.amendment, record.released) = (None, None);
    record.job.unbooted_for = Duration::ZERO;
    record.first_seen = Some(now);
    // The former node's time is not its own.
    (record.since, record.last_clear) = (now, None);
    ending::forget(record);
}

/// Whether a read that began now still shows a node that has been replaced or deleted: reads may
/// lag behind.
///
/// Creation times are the API's own, so that they order the nodes of one name in one zone; a node
/// that is there again long after its end was seen never ended.
pub fn shows_the_past(
    record: &SlotRecord,
    view: &NodeView,
    began: Timestamp,
    lag: Duration,
) -> bool {
    let Some(shown) = &view.incarnation else { return false };
    // An older training job that lives is another one, and no past.
    let is_job = view.raw.get(TRAINING_KEY).is_some() && !view.ended;
    if record.incarnation.as_ref().is_some_and(|known| shown.created < known.created && !is_job) {
        return true;
    }
    // Clocks of two watchdogs may disagree by more than reads lag: what the API itself has ended
    // stays so for a day.
    let lag = if record.end_was_told { lag.max(ENDED_FOR) } else { lag };
    record.left_in.as_ref().is_none_or(|zone| *zone == view.zone)
        && record
            .left_behind
            .is_some_and(|(created, at)| shown.created <= created && elapsed(at, began) < lag)
}

/// Whether a node that was read is the result of one of our creates for this slot.
pub fn is_our_create(record: &SlotRecord, settings: &Settings, view: &NodeView) -> bool {
    let order = record.recovery.as_ref().and_then(|r| r.order.as_ref());
    // A create that a former version sent carries the label.
    let owner = view.owner.as_ref();
    (owner == Some(&settings.owner) || (owner.is_some() && owner == settings.label.as_ref()))
        && view.slot.as_ref() == Some(&record.name)
        && order.is_some()
        && view.run.as_ref().map(|r| r.generation) == order.map(|o| o.generation)
}

/// Whether the recovery waits for a GET to learn what became of its call.
pub fn unsettled(call: Option<&Call>) -> bool {
    matches!(call, None | Some(Call::Intended | Call::Unknown | Call::Observed))
}
