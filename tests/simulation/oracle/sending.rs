//! Looks at what leaves and at what arrives: the journal must know of it, the lock must be held, the target must be the one.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tpu_watchdog::model::action::Action;
use tpu_watchdog::model::event::What;
use tpu_watchdog::model::lease::Lease;
use tpu_watchdog::model::recovery::{Call, Phase};
use tpu_watchdog::model::slot::{RunOrder, SlotRecord};
use tpu_watchdog::model::spec::{SUPERVISOR_MARK, USER_SCRIPT_KEY};
use tpu_watchdog::simulator::cloud::Node;

use super::Oracle;
use super::evidence::Shown;
use crate::process::Tag;
use crate::setup::{Ms, OWNER, Origin};
use crate::world::{Arrival, brief};

/// What a create orders its job to run from.
pub fn ordered(body: &Value) -> RunOrder {
    let run = body.pointer("/metadata/tpu-watchdog-run").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_str(run).unwrap_or_default()
}

impl Oracle {
    /// A mutation leaves. `record` and `lease` are what is durable in this moment.
    #[allow(clippy::too_many_arguments)]
    pub fn sends(
        &mut self,
        tag: Tag,
        epoch: u64,
        action: &Action,
        record: Option<&SlotRecord>,
        lease: Option<&Lease>,
        now: Ms,
        clock_set: Ms,
    ) {
        let slot = action.slot().to_owned();
        if self.settled {
            self.late_mutations.push((slot.clone(), brief(action)));
        }
        let held = lease.is_some_and(|lease| lease.epoch == epoch && !lease.released);
        self.check("S9", &slot, held, || format!("watchdog {} sends in epoch {epoch}, the lease is {lease:?}", tag.pid));
        // By whatever clock: no lease of that length can end before.
        let (since, most) = (now - self.renewed_at, self.ttl * 2 / 3);
        self.check("S9", &slot, since <= most, || format!("it sends {since} ms after the lock was renewed, {most} are allowed"));
        let recovery = record.and_then(|r| r.recovery.as_ref());
        let wanted = match action {
            Action::Delete { .. } => Phase::Deleting,
            Action::Create { .. } => Phase::Creating,
        };
        let intended = recovery.is_some_and(|r| r.phase == wanted && r.call == Some(Call::Intended));
        self.check("S11", &slot, intended, || format!("the journal does not intend it: {recovery:?}"));
        let Some(watch) = self.slots.get_mut(&slot) else {
            return self.check("S17", &slot, false, || "it is not configured".to_owned());
        };
        // Until somebody answers for it, or has read it back.
        let unknown = std::mem::replace(&mut watch.unknown, true);
        watch.last_sent = Some(now);
        let intent = watch.intent.clone();
        let told = match &intent {
            Some(What::Intent { call, zone, incarnation, evidence, decided_by, generation })
                if evidence.is_some() && !decided_by.is_empty() =>
            {
                match action {
                    Action::Delete { incarnation: target, zone: of, .. } => {
                        call == "delete" && zone == of && incarnation.as_ref() == Some(target)
                    }
                    Action::Create { body, zone: of, .. } => {
                        call == "create" && zone == of && *generation == Some(ordered(body).generation)
                    }
                }
            }
            _ => false,
        };
        self.check("S18", &slot, told, || format!("the audit says {intent:?} about {}", brief(action)));
        self.check("S11", &slot, !unknown, || "what became of the last call was not read back".to_owned());
        match action {
            Action::Delete { incarnation, .. } => {
                let spec = record.and_then(|r| r.spec.as_ref()).is_some_and(|spec| spec.validate().is_ok());
                self.check("S12", &slot, spec, || "no valid specification is stored".to_owned());
                let Some(watch) = self.slots.get(&slot) else { return };
                let get = watch.gets.get(&tag.pid).cloned();
                let age = get.as_ref().map(|get| now - get.asked);
                let fresh = age.is_some_and(|age| age <= 5_000) || get.is_some_and(|get| clock_set >= get.asked);
                self.check("S1", &slot, fresh, || format!("the GET that verified {incarnation} is {age:?} ms old"));
            }
            Action::Create { body, zone, .. } => {
                if let Some(watch) = self.slots.get_mut(&slot) {
                    watch.created_in.clone_from(zone);
                }
                self.create(&slot, body, now);
            }
        }
    }

    fn create(&mut self, slot: &str, body: &Value, now: Ms) {
        self.creates.retain(|at| now - *at < 60_000);
        self.creates.push_back(now);
        let count = self.creates.len();
        self.check("S18", slot, count <= 60, || format!("{count} creates left within a minute"));
        let original = self.bodies.get(slot).cloned().unwrap_or_default();
        let overlay = self.settings.slots.get(slot).map(|s| s.create.clone()).unwrap_or_default();
        let fields: BTreeSet<&String> = original.keys().chain(overlay.fields.keys()).collect();
        for key in fields.into_iter().filter(|key| !matches!(key.as_str(), "labels" | "metadata")) {
            let (learned, is) = (original.get(key), body.get(key));
            // Of an object's own fields those are replaced that are given.
            let was = match (learned.cloned(), overlay.fields.get(key)) {
                (Some(Value::Object(mut fields)), Some(Value::Object(given))) => {
                    fields.extend(given.clone());
                    Some(Value::Object(fields))
                }
                (learned, given) => given.cloned().or(learned),
            };
            self.check("S12", slot, was.as_ref() == is, || format!("{key} was {was:?} and is created as {is:?}"));
        }
        for label in ["team", "n", "cost"] {
            let label_of = |body: Option<&Value>| body.and_then(|l| l.get(label)).and_then(Value::as_str).map(str::to_owned);
            let (learned, is) = (label_of(original.get("labels")), label_of(body.get("labels")));
            let was = overlay.labels.get(label).cloned().unwrap_or(learned.clone());
            self.check("S12", slot, was == is, || format!("the label {label} was {was:?} and is created as {is:?}"));
        }
        self.metadata(slot, &original, body);
        let order = ordered(body);
        let Some(watch) = self.slots.get_mut(slot) else { return };
        let complete = order.step.is_none_or(|step| watch.complete.contains(&step));
        let before = watch.order.replace((order.generation, order.step));
        (watch.run_began, watch.progressed, watch.forgiven, watch.recreated) = (false, false, false, true);
        let set_aside = std::mem::take(&mut watch.set_aside);
        self.check("S15", slot, complete, || format!("the checkpoint of step {:?} was never complete", order.step));
        if let Some((generation, step)) = before {
            self.check("S15", slot, order.generation >= generation, || {
                format!("generation {} follows {generation}", order.generation)
            });
            self.check("S15", slot, set_aside || order.step >= step, || format!("step {:?} follows step {step:?}", order.step));
        }
    }

    /// The user's own metadata survives, and their startup script, beside the supervisor or as it was.
    fn metadata(&mut self, slot: &str, original: &Map<String, Value>, body: &Value) {
        let replaced = self.slots.get(slot).is_some_and(|watch| watch.replaced);
        let supervised = self.settings.slots.get(slot).is_some_and(|s| s.supervisor.is_some());
        let startup = body.pointer("/metadata/startup-script").and_then(Value::as_str).unwrap_or_default();
        let ours = startup.contains(SUPERVISOR_MARK);
        self.check("S12", slot, ours == supervised, || format!("its startup script is {startup:?}"));
        let script = if ours { USER_SCRIPT_KEY } else { "startup-script" };
        for (key, place) in [("token", "token"), ("startup-script", script)] {
            let was = original.get("metadata").and_then(|m| m.get(key));
            let is = body.get("metadata").and_then(|m| m.get(place));
            // A person's own node has none; what was learned before it may be created all the same.
            let holds = was == is || (replaced && is.is_none());
            if let Some(watch) = self.slots.get_mut(slot) {
                watch.restores = is.is_some();
            }
            self.check("S12", slot, holds, || format!("the metadata {key} was {was:?} and is created as {is:?}"));
        }
    }

    /// A create was carried out. `others`: what stands under the name in the slot's other zones.
    pub fn created(&mut self, slot: &str, uid: u64, others: &[u64], arrival: Arrival) {
        let Some(watch) = self.slots.get_mut(slot) else { return };
        if arrival.late || arrival.again {
            watch.strays.insert(uid);
            return;
        }
        // The person's node is not there any more, and what was learned before it is.
        watch.replaced &= !watch.restores;
        let helped: Vec<&u64> = others.iter().filter(|uid| !watch.strays.contains(uid)).collect();
        let (one, text) = (helped.is_empty(), format!("{helped:?}"));
        self.check("S15", slot, one, || format!("it is created while {text} stands under its name in another zone"));
    }

    /// A mutation reaches the API, where this node (or none) stands under the name.
    pub fn arrives(&mut self, tag: Tag, action: &Action, node: Option<&Node>, arrival: Arrival, now: Ms) {
        let slot = action.slot().to_owned();
        let Some(node) = node else { return };
        let Action::Delete { incarnation, .. } = action else { return };
        let metadata = |key: &str| node.body.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_str);
        let adopted = self.slots.get(&slot).is_some_and(|watch| watch.adopted);
        let nobody_elses = metadata("tpu-watchdog-owner").is_none_or(|o| o == OWNER) || adopted;
        let plain = node.queued_resource.is_none() && node.made_by == "V2" && nobody_elses;
        let origin = self.origins.get(&slot).copied().unwrap_or(Origin::Plain);
        self.check("S17", &slot, plain, || format!("the node is not the slot's own plain node ({origin:?})"));
        // What is late or comes twice on the wire hits whatever stands there by then: no watchdog can help that.
        if arrival.late || arrival.again {
            return;
        }
        let ours = metadata("tpu-watchdog-owner") == Some(OWNER) && metadata("tpu-watchdog-slot") == Some(&slot);
        let same = incarnation.id == node.uid.to_string();
        self.check("S1", &slot, same || !ours, || format!("meant for {incarnation}, it hits {}, which is our own", node.uid));
        let Some(get) = self.slots.get(&slot).and_then(|watch| watch.gets.get(&tag.pid).cloned()).filter(|get| get.tag == tag)
        else {
            return;
        };
        let at_work =
            node.state == "READY" && node.health.as_deref() == Some("HEALTHY") && node.run.boots > 0 && !node.run.stopped;
        // It may have healed since the GET that showed it sick, or the GET lagged behind.
        // Likewise when its workers' reports were what said it: they are read apart.
        let doomed = self.slots.get(&slot).is_some_and(|watch| watch.doomed);
        let excused = get.stale || doomed || !matches!(get.shown, Some((_, Shown::Healthy)));
        self.check("S5", &slot, !same || !at_work || excused, || format!("a healthy node at work is deleted at {now} ms"));
    }
}
