//! The specification of a slot: which read of its node teaches it.
//!
//! v2 hides fields that a create must say (boot disk, provisioning model, reservation's name,
//! autocheckpoint), so that a read through v2alpha1 teaches more than one through v2.

use crate::model::ahead::FilledBy;
use crate::model::filling::Filling;
use crate::model::node::{Health, NodeState, NodeView};
use crate::model::settings::{Overlay, SlotSettings};
use crate::model::slot::{Seen, SlotRecord};
use crate::model::spec::{NodeSpec, TRAINING_KEY};
use crate::resource::training::body;

use super::identity::Source;

/// The rows that a read changed.
#[derive(Debug, Default)]
pub struct Lesson {
    pub specification: bool,
    pub record: bool,
    /// In what a replacement of ours is not what was asked for: field names, never values.
    pub differs: Vec<String>,
}

/// Keeps what the node is for the day on which it must be created again.
///
/// A replacement that is not what was asked for is learned all the same: the API would refuse or drop
/// the rest once more.
pub fn learn(
    record: &mut SlotRecord,
    view: &NodeView,
    source: Source,
    (owner, create): (&str, &Overlay),
) -> Lesson {
    let mut lesson = Lesson::default();
    if view.is_v1 || view.is_empty() && record.spec.is_some() {
        return lesson;
    }
    let Some(shown) = NodeSpec::learn(&view.raw).filter(|spec| spec.validate().is_ok()) else {
        return lesson;
    };
    let Some((spec, alpha)) = taught(record, view, source, shown, owner) else { return lesson };
    // One that was asked for ahead says when the former one ended.
    let is = |by: &&FilledBy| {
        let filling = Filling::QueuedResource(by.id.clone());
        view.incarnation.as_ref().is_some_and(|of| filling.has_identity(of))
    };
    let by = record.filled_by.as_ref().filter(is);
    let spec = by.map_or(spec.clone(), |by| spec.with_policy(by.policy.as_ref()));
    // Two reads may have been put together: the result is looked over once more.
    if spec.validate().is_err() {
        return lesson;
    }
    lesson.differs = differences(record, view, &spec, (owner, create));
    if record.learned_alpha != alpha || record.learned_from != view.incarnation {
        (record.learned_alpha, lesson.record) = (alpha, true);
        record.learned_from.clone_from(&view.incarnation);
    }
    if record.spec.as_ref() != Some(&spec) {
        (record.spec, lesson.specification) = (Some(spec), true);
    }
    lesson
}

/// Takes the specification of a training job from the config, where there was never one to learn from. Returns
/// whether it is another one.
pub fn described(record: &mut SlotRecord, slot: &SlotSettings, owner: &str) -> bool {
    let of = slot.filling.training().filter(|_| record.learned_from.is_none());
    let spec = of.and_then(|of| body::first((owner, &record.name), of));
    let new = spec.is_some() && record.spec != spec;
    record.spec = spec.or(record.spec.take());
    new
}

/// The specification after a read, and whether v2alpha1 showed it; none where the known one stays.
fn taught(
    record: &SlotRecord,
    view: &NodeView,
    source: Source,
    shown: NodeSpec,
    owner: &str,
) -> Option<(NodeSpec, bool)> {
    let Some(known) = &record.spec else { return Some((shown, view.alpha)) };
    // Each read of a training job is whole, whatever became of it.
    if shown.body().contains_key(TRAINING_KEY) {
        return Some((shown, view.alpha));
    }
    let healthy =
        view.state == NodeState::Ready && matches!(view.health, None | Some(Health::Healthy));
    // A record of a former version does not say where its specification comes from.
    let from = record.learned_from.as_ref().or(record.incarnation.as_ref());
    let same = from.is_some() && from == view.incarnation.as_ref();
    let ours = is_ours(record, view, owner);
    match (same, healthy) {
        (false, false) => None,
        // Created from the known specification: what v2 hides of it is as it was.
        (false, true) if !view.alpha && record.learned_alpha && ours => {
            Some((shown.with_hidden_of(known), true))
        }
        (false, true) => Some((shown, view.alpha)),
        (true, true) if view.alpha || !record.learned_alpha => Some((shown, view.alpha)),
        // Of a node that is sick or on its way out, reads may lack what it still is.
        (true, false) if view.alpha && !record.learned_alpha => {
            Some((shown.filled_from(known)?, true))
        }
        // A GET may show what a listing lacked, and the delete that follows it needs all of it.
        (true, _) if source == Source::Get => {
            Some((known.filled_from(&shown)?, record.learned_alpha))
        }
        (true, _) => None,
    }
}

/// In what a READY replacement of ours differs from the specification that it was created from. The
/// fields of the config may be written otherwise than the API shows them, and v2 hides some.
fn differences(
    record: &SlotRecord,
    view: &NodeView,
    shown: &NodeSpec,
    (owner, create): (&str, &Overlay),
) -> Vec<String> {
    let Some(known) = &record.spec else { return Vec::new() };
    // A submission differs as the config wants it, and the service drops nothing.
    if shown.body().contains_key(TRAINING_KEY) {
        return Vec::new();
    }
    let another = record.learned_from.is_some() && record.learned_from != view.incarnation;
    if !another || !is_ours(record, view, owner) || (record.learned_alpha && !view.alpha) {
        return Vec::new();
    }
    let asked = known.clone().in_zone(&view.zone);
    let mut keys = asked.differences(shown);
    keys.retain(|key| {
        let (field, name) = key.split_once('.').unwrap_or((key, ""));
        let configured = create.fields.contains_key(field)
            || field == "labels" && create.labels.contains_key(name)
            || field == "metadata" && create.metadata.contains_key(name)
            || key == "metadata.startup-script" && create.startup_script.is_some();
        let whole = |map: bool| name.is_empty() && map;
        let labelled = whole(field == "labels" && !create.labels.is_empty());
        // A place in the queue that nothing bounded is bounded by us, and a time of the past is not asked for again.
        // So is Spot through v2alpha1 told by its model, too.
        let queue = key == "queuedResource.queueingPolicy"
            || view.spot && key == "queuedResource.provisioningModel";
        // A former version learned them otherwise.
        let named = ["queuedResource.nodeSpec", "bootDisk", "useTpuVm"].contains(&key.as_str());
        !(configured
            || queue
            || named
            || labelled
            || whole(field == "metadata" && !create.metadata.is_empty()))
    });
    keys
}

/// Whether the node's own metadata names this store and this slot.
pub fn is_ours(record: &SlotRecord, view: &NodeView, owner: &str) -> bool {
    view.owner.as_deref() == Some(owner) && view.slot.as_ref() == Some(&record.name)
}

/// The reservation that a node names. v2 hides it: what v2alpha1 showed of the same node holds.
pub fn reservation(record: &SlotRecord, view: &NodeView) -> String {
    match hidden_by_v2(record, view) {
        Some(seen) if view.reservation.is_empty() => seen.reservation.clone(),
        _ => view.reservation.clone(),
    }
}

/// The former read of the same TPU, where this read is of v2, which hides a part of it.
pub fn hidden_by_v2<'r>(record: &'r SlotRecord, view: &NodeView) -> Option<&'r Seen> {
    let same = record.incarnation.is_some() && record.incarnation == view.incarnation;
    record.seen.as_ref().filter(|_| same && !view.alpha)
}
