//! S12: the body that a create may have.

use super::case::Case;
use crate::model::spec::NodeSpec;

/// The learned specification, in its zone, under the config's overlay; of a job that ran out of memory on the next machine
/// that the config names.
pub(super) fn specification(case: &Case) -> NodeSpec {
    let (record, slot) = (case.record, case.slot);
    let learned = record.spec.clone().unwrap_or_else(NodeSpec::empty);
    let named = slot.filling.training().map_or(&[][..], |of| &of.next_machine);
    let machine = record.resubmitted.machine.as_ref();
    let machine = machine.filter(|machine| named.contains(&machine.to));
    let spec = learned.in_zone(&record.zone).overlaid(&slot.create);
    spec.for_filling(&slot.filling).on_machine(machine)
}
