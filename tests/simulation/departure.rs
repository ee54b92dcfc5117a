//! What must be true of a request when it leaves: the lock is held, the journal had its intent when
//! it was handed out, and a fresh GET goes before a delete.

use tpu_watchdog::model::action::Action;
use tpu_watchdog::model::condition::Kind;
use tpu_watchdog::model::event::Verb;
use tpu_watchdog::report::audit;

use crate::fault::Fault;
use crate::process::{Tag, ms};
use crate::setup::{HOUR, MINUTE};
use crate::shelf::Durable;
use crate::truth::ordered;
use crate::world::World;

/// What is durable about a request when it is handed out.
pub struct HandedOut {
    durable: Durable,
    call: Option<audit::Call>,
}

impl World {
    /// What the journal knows of a request in the moment in which it is handed out.
    pub fn hands_out(&mut self, action: &Action) -> HandedOut {
        HandedOut {
            durable: self.shelf.durable(action.slot()),
            call: self.audit.last_call(action.slot()).cloned(),
        }
    }

    /// A mutation leaves. What calls it off from here on can't stop it (S21 follows it).
    pub fn leaves(&mut self, tag: Tag, epoch: u64, action: &Action, known: HandedOut) {
        let (slot, now) = (action.slot().to_owned(), self.now);
        let (durable, call) = (&known.durable, known.call);
        let record = durable.record.as_ref();
        let lease = self.shelf.durable(&slot).lease;
        if self.settled {
            self.truth.late_mutations.push((slot.clone(), crate::world::brief(action)));
        }
        let held = lease.as_ref().is_some_and(|lease| lease.epoch == epoch && !lease.released);
        self.check("S9", &slot, held, || {
            format!("watchdog {} sends in epoch {epoch}, the lease is {lease:?}", tag.pid)
        });
        // By whatever clock: no lease of that length can end before.
        let (since, most) = (now - self.truth.renewed_at, ms(self.setup.ttl) * 2 / 3);
        self.check("S9", &slot, since <= most, || {
            format!("it sends {since} ms after the lock was renewed, {most} are allowed")
        });
        let intended = durable.journal().iter().any(|record| record.intends(action));
        self.check("S11", &slot, intended, || {
            format!("the journal does not intend {}", crate::world::brief(action))
        });
        let verb = match action {
            Action::Patch { .. } | Action::Delete { stray: true, .. } => return,
            Action::Delete { .. } => Verb::Delete,
            Action::Create { .. } => Verb::Create,
        };
        let told = call.as_ref().is_some_and(|call| {
            call.open
                && call.verb == verb
                && match action {
                    Action::Delete { incarnation, zone, .. } => {
                        (call.incarnation.as_ref(), &call.zone) == (Some(incarnation), zone)
                    }
                    Action::Create { body, zone, .. } => {
                        (call.generation, &call.zone) == (Some(ordered(body).generation), zone)
                    }
                    Action::Patch { .. } => false,
                }
        });
        self.check("S18", &slot, told, || {
            format!("the log says {call:?} about {}", crate::world::brief(action))
        });
        if verb == Verb::Delete {
            let spec =
                record.and_then(|r| r.spec.as_ref()).is_some_and(|spec| spec.validate().is_ok());
            self.check("S12", &slot, spec, || "no valid specification is stored".to_owned());
            let judged = call.and_then(|call| call.kind) == Some(Kind::Judged);
            let taken = self.rights_taken().filter(|_| judged && !self.setup.has(Fault::ClockJump));
            // Whether a create could follow is asked every hour.
            let may_follow = taken.is_none_or(|since| now - since <= HOUR + MINUTE);
            self.check("S20", &slot, may_follow, || {
                format!("the right to create TPUs was taken at {taken:?} ms, and it is {now} ms")
            });
            self.is_verified(tag, &slot);
        } else {
            self.truth.creates.retain(|at| now - *at < MINUTE);
            self.truth.creates.push_back(now);
            let count = self.truth.creates.len();
            self.check("S18", &slot, count <= 60, || {
                format!("{count} creates left within a minute")
            });
        }
        self.truth.slots.entry(slot).or_default().last_sent = Some(now);
    }

    /// A GET of at most 5 s ago, asked for after our last mutation, goes before a delete.
    fn is_verified(&mut self, tag: Tag, slot: &str) {
        let (now, clock_set) = (self.now, self.processes[tag.pid].clock_set);
        let get = self
            .truth
            .gets
            .get(&(slot.to_owned(), tag.pid))
            .filter(|(of, _)| *of == tag)
            .map(|(_, asked)| *asked);
        // By a clock that was set since then its age can't be told.
        let fresh = get.is_some_and(|asked| now - asked <= 5_000 || clock_set >= asked);
        self.check("S1", slot, fresh, || {
            format!("it is {now} ms, and the last GET of its node was asked for at {get:?}")
        });
        let sent = self.truth.slots.get(slot).and_then(|known| known.last_sent);
        self.check("S2", slot, sent.is_none() || get >= sent, || {
            format!("the GET was asked for at {get:?}, our last mutation left at {sent:?}")
        });
    }
}
