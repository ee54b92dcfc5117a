//! What the decision about one slot reads and writes.

use jiff::Timestamp;

use crate::model::command::Pause;
use crate::model::condition::Condition;
use crate::model::filling::Filling;
use crate::model::fleet::{Ledger, Memory};
use crate::model::lookup::NextCreate;
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;

use super::budget::{self, Budget, Room};
use super::check::{Case, Checker};
use super::{life, pool};

/// One slot and the fleet, as they are known in a step and outside of one.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub settings: &'a Settings,
    pub slot: &'a SlotSettings,
    pub record: &'a SlotRecord,
    pub ledger: &'a Ledger,
    /// Whether its specification can be created again, or why not, where that was looked over.
    pub acceptable: Option<&'a Result<(), String>>,
    pub now: Timestamp,
}

impl<'a> Subject<'a> {
    /// The present condition.
    pub fn condition(self) -> Condition {
        self.record.verdict.condition
    }

    /// The pause that holds the slot now, its own or everybody's.
    pub fn paused(self) -> Option<&'a Pause> {
        let pauses = [&self.record.paused, &self.ledger.paused];
        pauses.into_iter().flatten().find(|pause| pause.holds(self.now))
    }
}

/// One slot in one step.
pub struct SlotCtx<'a> {
    pub settings: &'a Settings,
    pub slot: &'a SlotSettings,
    pub record: &'a mut SlotRecord,
    pub memory: &'a mut Memory,
    pub ledger: &'a mut Ledger,
    pub budget: &'a mut Budget,
    pub checker: &'a mut Checker,
    /// Polls applied by this process.
    pub polls: u64,
    pub now: Timestamp,
}

impl SlotCtx<'_> {
    /// The present condition.
    pub fn condition(&self) -> Condition {
        self.record.verdict.condition
    }

    /// The slot as it is known.
    pub fn subject(&self) -> Subject<'_> {
        Subject {
            settings: self.settings,
            slot: self.slot,
            record: self.record,
            ledger: self.ledger,
            acceptable: self.memory.acceptable.as_ref(),
            now: self.now,
        }
    }

    /// The pause that holds the slot now, its own or everybody's.
    pub fn paused(&self) -> Option<&Pause> {
        self.subject().paused()
    }

    /// The accelerator type that was last seen; empty where none was.
    pub fn accelerator(&self) -> &str {
        self.record.seen.as_ref().map_or("", |seen| seen.accelerator.as_str())
    }

    /// The room of its sort: TPUs, or training jobs.
    pub fn room(&self) -> Room {
        self.budget.rooms[budget::room(self.slot)]
    }

    /// The name of the pool that its node would come from.
    pub fn pool(&self) -> String {
        pool::name(self.record, &self.slot.create, &self.record.zone)
    }

    /// Whether nothing shows that its hosts or its job live.
    pub fn is_lifeless(&self) -> bool {
        !life::beats(self.record, &self.settings.poll, self.now)
            && life::excused_until(self.record, self.slot.policy.grace.silent)
                .is_none_or(|until| until <= self.now)
    }

    /// The specification that a create in its present zone would send.
    pub fn specification(&self) -> NodeSpec {
        let learned = self.record.spec.clone().unwrap_or_else(NodeSpec::empty);
        let spec = learned.in_zone(&self.record.zone).overlaid(&self.slot.create);
        let spec = spec.for_filling(&self.slot.filling);
        spec.on_machine(self.record.next_machine(&self.slot.filling))
    }

    /// The kind of thing that fills the slot, as it was found.
    pub fn filling(&self) -> Filling {
        self.slot.filling.found(self.record.spec.as_ref())
    }

    /// The create that would follow a delete.
    pub fn next_create(&self) -> NextCreate {
        NextCreate::of(self.record.spec.as_ref(), self.slot, &self.record.zone)
    }

    /// The question about it, by which an answer is known.
    pub fn create_question(&self) -> String {
        NextCreate::question(self.record.spec.as_ref(), self.slot, &self.record.zone)
    }

    /// The same for the checker, and the checker itself.
    pub fn case(&mut self) -> (&mut Checker, Case<'_>) {
        let SlotCtx { settings, slot, record, memory, ledger, now, .. } = self;
        (self.checker, Case { settings, slot, record, memory, ledger, now: *now })
    }
}
