//! The machines in a queued resource: Google's own repair may make one of them again, in the same request and
//! under the same name. Such a machine is another one. Its disk is empty, its metadata is what the
//! request was created with: a run order of long ago, and none of the labels that people put on the former one.
//!
//! Example: generation 1 of `a` began without a checkpoint; step 900 is saved when slice `a-1` is made again.
//! Its hosts start generation 1 from nothing, and generation 2 is ordered from step 900 for all slices.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::event::What;
use crate::model::ids::RunOrder;
use crate::model::job::MadeAgain;
use crate::model::node::{NodeState, NodeView};
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::{Seen, SlotRecord};

use super::turn::Turn;
use super::{ending, learning};

/// Takes in that machines were made again: nothing that was heard of the former ones holds for them.
pub fn made_again(record: &mut SlotRecord, view: &NodeView, settings: &Settings, turn: &mut Turn) {
    let Some(known) = same(record, view).map(|seen| &seen.machines) else { return };
    let younger = |(name, made): &(&String, &Timestamp)| {
        known.get(*name).is_some_and(|before| *made > before)
    };
    let again: Vec<&str> =
        view.machines.iter().flatten().filter(younger).map(|(name, _)| name.as_str()).collect();
    if again.is_empty() {
        return;
    }
    let message = format!(
        "{} was made again inside its queued resource, not by this watchdog: it comes up with the run order of the request's creation",
        again.join(", ")
    );
    record.deleted = None;
    if view.standing.is_none() {
        // None is lost any longer, and how long they were is not held against the new ones.
        record.suspicion = None;
    }
    record.ready_since = (view.state == NodeState::Ready).then_some(turn.now);
    let slot = settings.slots.get(&record.name);
    let job = &mut record.job;
    job.workers.clear();
    (job.attributes_at, job.unheard_since) = (None, None);
    job.unbooted_for = Duration::ZERO;
    job.runs.began = false;
    // One that waits for its hosts to follow it waits for hosts that are gone.
    job.relaunch.take_if(|relaunch| relaunch.written_at.is_some());
    // A job on one machine that finds its checkpoints by itself needs none.
    let alone = slot.is_some_and(SlotSettings::finds_its_own) && view.members.len() < 2;
    job.made_again = Some(MadeAgain::now(job, turn.now)).filter(|_| !alone);
    ending::forget(record);
    if let Some(seen) = &mut record.seen {
        seen.run = None;
    }
    let ours = learning::is_ours(record, view, &settings.owner);
    if let Some(release) = record.released.as_mut().filter(|release| release.done && ours) {
        // It has our keys once more, and is given back once more.
        (release.done, record.ours) = (false, true);
    }
    turn.tell(record, What::Note, message);
}

/// Why a newer order is wanted for machines that came up with an old one: made again, or granted late.
pub fn want_an_order(record: &SlotRecord) -> Option<String> {
    let order = record.outdated_order().filter(|_| record.takes_orders())?;
    let generation = order.generation;
    Some(format!("its machines came up with the old order of generation {generation}"))
}

/// Which machines are known, each by when it was made: one that a read lacks may be there again.
pub fn known(record: &SlotRecord, view: &NodeView) -> BTreeMap<String, Timestamp> {
    let mut all = same(record, view).map(|seen| seen.machines.clone()).unwrap_or_default();
    for (name, made) in view.machines.iter().flatten() {
        let before = all.entry(name.clone()).or_insert(*made);
        *before = (*before).max(*made);
    }
    all
}

/// Which machines people have opted out, each by when it was made: the label of one that is lost, or was made again without
/// it, counts until `resume`.
pub fn opted_out(record: &SlotRecord, view: &NodeView) -> BTreeMap<String, Timestamp> {
    let there = view.machines.clone().unwrap_or_default();
    let mut all = same(record, view).map(|seen| seen.labelled.clone()).unwrap_or_default();
    all.retain(|name, made| there.get(name) != Some(made));
    let labelled = there.into_iter().filter(|(name, _)| view.labelled.contains(name));
    all.extend(labelled);
    all
}

/// Whether people have opted it out. A request alone shows the label as it was asked for.
pub fn is_opted_out(record: &SlotRecord, view: &NodeView) -> bool {
    if view.is_empty() {
        return same(record, view).map_or(view.opted_out, |seen| seen.opted_out);
    }
    view.opted_out || !opted_out(record, view).is_empty()
}

/// The run order that they have. Its generation only grows: a read that still shows a lower one shows the past.
pub fn order(record: &SlotRecord, view: &NodeView) -> Option<RunOrder> {
    let known = same(record, view).and_then(|seen| seen.run.as_ref());
    let shown = view.run.as_ref()?;
    Some(known.filter(|known| known.generation > shown.generation).unwrap_or(shown).clone())
}

/// As the last read of the same incarnation showed it.
fn same<'r>(record: &'r SlotRecord, view: &NodeView) -> Option<&'r Seen> {
    record.seen.as_ref().filter(|_| record.incarnation == view.incarnation)
}
