//! Checks of a request that is handed out, the journal has its intent, and of one that leaves: the
//! lock is held, and a fresh GET goes before a delete.

use tpu_watchdog::model::action::Action;
use tpu_watchdog::model::condition::Kind;
use tpu_watchdog::model::event::Verb;

use crate::fault::Fault;
use crate::process::{Tag, ms};
use crate::setup::{HOUR, MINUTE};
use crate::truth::ordered;
use crate::world::{World, brief};

impl World {
    /// A mutation is handed out. What calls it off from here on can't stop it (S21 follows it).
    pub fn hands_out(&mut self, action: &Action) {
        let (slot, now) = (action.slot(), self.now);
        let durable = self.shelf.durable(slot);
        let intended = durable.journal().iter().any(|record| record.intends(action));
        self.check("S11", slot, intended, || {
            format!("the journal does not intend {}", brief(action))
        });
        let (verb, zone, meant) = match action {
            Action::Patch { .. } | Action::Delete { stray: true, .. } => return,
            Action::Delete { zone, incarnation, .. } => (Verb::Delete, zone, Some(incarnation)),
            Action::Create { zone, .. } => (Verb::Create, zone, None),
        };
        let call = self.audit.last_call(slot).cloned();
        let told = call.as_ref().filter(|call| call.open);
        let told = told.map(|call| (call.verb, &call.zone, call.incarnation.as_ref()));
        self.check("S18", slot, told == Some((verb, zone, meant)), || {
            format!("the log says {call:?} about {}", brief(action))
        });
        let Some(record) = durable.record else { return };
        if let Action::Create { body, .. } = action {
            let order = record.recovery.and_then(|recovery| recovery.order);
            return self.check("S11", slot, order.as_ref() == Some(&ordered(body)), || {
                format!("the journal has {order:?} about {}", brief(action))
            });
        }
        let valid = record.spec.is_some_and(|spec| spec.validate().is_ok());
        self.check("S12", slot, valid, || "no valid specification is stored".to_owned());
        let judged = call.and_then(|call| call.evidence).is_some_and(|e| e.kind == Kind::Judged);
        let taken = self.rights_taken().filter(|_| judged && !self.setup.has(Fault::ClockJump));
        // Whether a create could follow is asked every hour.
        let may_follow = taken.is_none_or(|since| now - since <= HOUR + MINUTE);
        self.check("S20", slot, may_follow, || {
            format!("the right to create TPUs was taken at {taken:?} ms, and it is {now} ms")
        });
    }

    /// A mutation leaves.
    pub fn leaves(&mut self, tag: Tag, action: &Action) {
        let (slot, now) = (action.slot(), self.now);
        let (lease, epoch) = (self.shelf.durable(slot).lease, self.shelf.epoch(tag.pid));
        // By whatever clock: no lease of that length can end before.
        let (since, most) = (now - self.truth.renewed_at, ms(self.setup.ttl) * 2 / 3);
        let held = lease.as_ref().is_some_and(|l| l.epoch == epoch && !l.released);
        self.check("S9", slot, held && since <= most, || {
            format!("it leaves in epoch {epoch}, {since} ms after the lock was renewed: {lease:?}")
        });
        // A refused delete is tried on at the longest wait: the API answers, the world is not asked in
        // vain.
        let broken = self.setup.is_broken(slot) || self.setup.refuses_deletes_of(slot);
        self.check("L2", slot, broken || !self.settled, || {
            format!("hours after the last fault: {}", brief(action))
        });
        if matches!(action, Action::Patch { .. } | Action::Delete { stray: true, .. }) {
            return;
        }
        let sent = self.known(slot).last_sent.replace(now);
        if matches!(action, Action::Create { .. }) {
            self.truth.creates.push(now);
            let recent = self.truth.creates.iter().rev().take_while(|at| now - **at < MINUTE);
            let count = recent.count();
            return self.check("S18", slot, count <= 60, || {
                format!("{count} creates left within a minute")
            });
        }
        // A GET of at most 5 s ago, asked for after our last mutation, goes before a delete. By a clock
        // that was set since then its age can't be told.
        let (get, clock_set) = (self.known(slot).got, self.processes[tag.pid].clock_set);
        let fresh = get.is_some_and(|asked| now - asked <= 5_000 || clock_set >= asked);
        self.check("S1", slot, fresh, || {
            format!("it is {now} ms, and the last GET of its node was asked for at {get:?}")
        });
        self.check("S2", slot, sent.is_none() || get >= sent, || {
            format!("the GET was asked for at {get:?}, our last mutation left at {sent:?}")
        });
    }
}
