//! Answers store calls: the store may be slow, full, down, torn by a power cut, or whose answer is
//! lost.

use tpu_watchdog::driver::message::{Message, StoreCall};
use tpu_watchdog::model::event::What;
use tpu_watchdog::model::lease::Lease;
use tpu_watchdog::store::{Batch, StoreError};

use crate::fault::Fault;
use crate::process::Tag;
use crate::setup::Ms;
use crate::shelf::{Shelf, unavailable};
use crate::world::{Task, World};

impl Shelf {
    /// Whether requests follow from this write.
    pub fn allows(&self, call: &StoreCall) -> bool {
        let (StoreCall::Commit(batch) | StoreCall::Release(batch)) = call else { return false };
        batch.events.iter().any(|event| matches!(event.what, What::Intent { .. }))
    }
}

impl World {
    /// A call that began at `began` reaches the store; its answer takes `back`. A process that died
    /// before has not made it.
    pub fn at_store(&mut self, tag: Tag, call: StoreCall, began: Ms, back: Ms) {
        if self.processes[tag.pid].life != tag.life {
            return;
        }
        let down = self.now < self.store_down_until || self.strikes(Fault::StoreFails, 60);
        let full = self.now < self.store_full_until;
        let allows = self.shelf.allows(&call);
        let answer = match call {
            StoreCall::Load if down => Message::Loaded(Err(unavailable())),
            StoreCall::Load => Message::Loaded(self.shelf.load(tag.pid).map(Box::new)),
            StoreCall::Commands if down => Message::Commands(Err(unavailable())),
            StoreCall::Commands => {
                let commands = self.shelf.commands(tag.pid);
                self.commands_are_read(tag, commands.as_deref().unwrap_or_default());
                Message::Commands(commands)
            }
            StoreCall::Take { .. } if down || full => Message::Taken(Err(unavailable())),
            StoreCall::Take { seen, holder, .. } => {
                Message::Taken(self.take(tag, seen.as_ref(), &holder, began))
            }
            StoreCall::Commit(batch)
                if self.strikes(Fault::TornWrite, if allows { 15 } else { 500 }) =>
            {
                return self.power_cut(tag, batch);
            }
            StoreCall::Commit(_) | StoreCall::Release(_) if down || full => {
                Message::Written(Err(unavailable()))
            }
            StoreCall::Commit(batch) => Message::Written(self.write(tag, batch, false, began)),
            StoreCall::Release(batch) => Message::Written(self.write(tag, batch, true, began)),
        };
        self.at(self.now + back, Task::Answered(tag, Box::new(answer)));
    }

    fn take(
        &mut self,
        tag: Tag,
        seen: Option<&Lease>,
        holder: &str,
        began: Ms,
    ) -> Result<bool, StoreError> {
        // Another process came in between: the lease is no longer as it was seen.
        if self.strikes(Fault::StoreConflict, 3) {
            return Ok(false);
        }
        let before = seen.map_or(0, |lease| lease.epoch);
        let taken = self.shelf.take(tag.pid, seen, holder, self.setup.ttl)?;
        if taken {
            let epoch = self.shelf.epoch(tag.pid);
            self.check("S9", "-", epoch > before, || format!("epoch {epoch} after {before}"));
            self.tell(|| format!("watchdog {} holds the lock (epoch {epoch})", tag.pid));
            self.holds(began);
            self.holder = Some(tag);
            // It is not known to its own holder: the next look finds it there.
            if self.strikes(Fault::StoreUnknown, 20) {
                return Err(unavailable());
            }
        }
        Ok(taken)
    }

    fn write(
        &mut self,
        tag: Tag,
        batch: Batch,
        release: bool,
        began: Ms,
    ) -> Result<(), StoreError> {
        let events = batch.events.clone();
        self.shelf.commit(tag.pid, batch, release)?;
        self.truth.renewed_at = self.truth.renewed_at.max(began);
        for event in &events {
            let (slot, message) = (event.slot.as_deref().unwrap_or("-"), &event.message);
            self.tell(|| format!("watchdog {}: {slot} {message}", tag.pid));
        }
        self.written(&events);
        if !release && self.strikes(Fault::StoreUnknown, 60) {
            return Err(unavailable());
        }
        Ok(())
    }

    /// The machine is off within a write: every process on it is gone.
    fn power_cut(&mut self, tag: Tag, batch: Batch) {
        let events = batch.events.clone();
        let at = self.rng.f64();
        self.tell(|| format!("the power fails within a write of watchdog {}", tag.pid));
        let renewals = |lease: Option<Lease>| lease.map(|l| (l.epoch, l.renewals));
        let before = renewals(self.shelf.durable("").lease);
        self.shelf.tear(tag.pid, batch, at);
        if renewals(self.shelf.durable("").lease) != before {
            self.written(&events);
        }
        for pid in 0..self.processes.len() {
            if self.processes[pid].is_up() {
                self.crash(pid);
            }
        }
    }
}
