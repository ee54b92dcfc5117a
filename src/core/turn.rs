//! What one turn collects: events, reads and actions, until they leave as effects.

use jiff::Timestamp;

use crate::model::action::{Action, Effect, Input, Look, Record};
use crate::model::event::{Event, What};
use crate::model::fleet::Fleet;
use crate::model::slot::SlotRecord;

/// The consequences of one input, as they are found.
#[derive(Debug)]
pub struct Turn {
    /// The time of the input.
    pub now: Timestamp,
    /// The input was a finished poll: what is staggered by polls is due.
    pub polled: bool,
    events: Vec<Event>,
    looks: Vec<Look>,
    actions: Vec<Action>,
    removed: Vec<String>,
    commands_done: Vec<String>,
}

impl Turn {
    pub fn new(now: Timestamp, input: &Input) -> Self {
        Turn {
            now,
            polled: matches!(input, Input::Polled(_)),
            events: Vec::new(),
            looks: Vec::new(),
            actions: Vec::new(),
            removed: Vec::new(),
            commands_done: Vec::new(),
        }
    }

    pub fn tell(&mut self, record: &SlotRecord, what: What, message: impl Into<String>) {
        self.events.push(Event {
            at: self.now,
            slot: Some(record.name.clone()),
            message: message.into(),
            what,
        });
    }

    pub fn note(&mut self, message: impl Into<String>) {
        self.events.push(Event {
            at: self.now,
            slot: None,
            message: message.into(),
            what: What::Note,
        });
    }

    pub fn happened(&mut self, event: Event) {
        self.events.push(event);
    }

    /// A command has worked.
    pub fn command_done(&mut self, id: String) {
        self.commands_done.push(id);
    }

    pub fn look(&mut self, look: Look) {
        self.looks.push(look);
    }

    pub fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub fn remove(&mut self, slot: String) {
        self.removed.push(slot);
    }

    /// One commit with everything that changed, then the reads.
    pub fn into_effects(self, fleet: &mut Fleet) -> Vec<Effect> {
        let mut records: Vec<Record> = self.removed.into_iter().map(Record::Removed).collect();
        records.extend(self.commands_done.into_iter().map(Record::CommandDone));
        // The specification first: it stands before anything that might delete.
        for name in std::mem::take(&mut fleet.dirty_specs) {
            if let Some(spec) = fleet.slots.get(&name).and_then(|r| r.spec.as_ref()) {
                records.push(Record::Spec(name, serde_json::Value::Object(spec.body().clone())));
            }
        }
        for name in std::mem::take(&mut fleet.dirty) {
            if let Some(record) = fleet.slots.get(&name).or_else(|| fleet.left.get(&name)) {
                records.push(Record::Slot(Box::new(record.clone())));
            }
        }
        if std::mem::take(&mut fleet.dirty_ledger) {
            records.push(Record::Ledger(Box::new(fleet.ledger.clone())));
        }
        let mut effects = Vec::with_capacity(1 + self.looks.len());
        if !(records.is_empty() && self.events.is_empty() && self.actions.is_empty()) {
            effects.push(Effect::Commit { records, events: self.events, then: self.actions });
        }
        effects.extend(self.looks.into_iter().map(Effect::Look));
        effects
    }
}
