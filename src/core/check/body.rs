//! S12: the body that a create may have.

use super::case::Case;
use crate::model::spec::NodeSpec;

/// The learned specification, in its zone, under the config's overlay; of a job that ran out of memory on the next machine
/// that the config names.
pub(super) fn specification(case: &Case) -> NodeSpec {
    let (record, slot) = (case.record, case.slot);
    let learned = record.spec.clone().unwrap_or_else(NodeSpec::empty);
    let outgrown = record.seen.as_ref().and_then(|seen| seen.outgrown.as_deref());
    let next = |from| Some((from, slot.filling.training()?.machine_after(from)?));
    let spec = learned.in_zone(&record.zone).overlaid(&slot.create);
    spec.for_filling(&slot.filling).on_machine(outgrown.and_then(next))
}
