//! What happens to the fleet as a whole: its journal is read again, its config or an operator's wish
//! changes, a call is lost.

use std::collections::BTreeMap;

use crate::model::fleet::{Fleet, Ledger, Memory, Pending, split};
use crate::model::slot::SlotRecord;

impl Fleet {
    /// The journal could not be written and was read again: it counts, whatever memory said. Calls
    /// that are under way still are.
    pub fn read_again(&mut self, slots: BTreeMap<String, SlotRecord>, ledger: Ledger) {
        (self.left, self.slots) = split(slots);
        // A GET that was answered meanwhile was not taken in.
        self.looked_for.clear();
        self.ledger = ledger;
        // Times that were read may lie in the future of this clock, as at the start.
        self.stepped_at = None;
        for memory in self.memory.values_mut() {
            let calling = memory.pending.contains(&Pending::Call);
            *memory = Memory::default();
            if calling {
                memory.pending.insert(Pending::Call);
            }
        }
        for name in self
            .slots
            .keys()
            .filter(|name| !self.memory.contains_key(*name))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.memory.insert(name, Memory::default());
        }
        self.dirty.clear();
        self.dirty_specs.clear();
        self.dirty_ledger = false;
    }

    /// The wanted state has changed: no decision rests on an earlier one.
    pub fn forget_decisions(&mut self) {
        self.memory
            .values_mut()
            .for_each(|memory| (memory.shown, memory.acceptable) = (None, None));
        self.slots.values_mut().for_each(|record| record.at_ease = false);
    }

    /// A call that was decided was not sent, or its answer comes while nothing can be written: it
    /// is read back.
    pub fn forget_call(&mut self, slot: &str) {
        if let Some(memory) = self.memory.get_mut(slot) {
            memory.pending.remove(&Pending::Call);
        }
    }
}
