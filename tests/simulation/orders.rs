//! What a create or an order starts: the specification (S12), the checkpoint (S15), how often without a
//! step (S16), whole slices (S22), soon after a crash (L10), in time (L8).

use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::Size;
use tpu_watchdog::model::time::elapsed;
use tpu_watchdog::resource::spec::{SUPERVISOR_MARK, USER_SCRIPT_KEY};
use tpu_watchdog::simulator::nodes::Moment;
use tpu_watchdog::simulator::things::{Exit, Node};

use crate::fault::Fault;
use crate::process::wall;
use crate::setup::{HOUR, Ms};
use crate::truth::illness;
use crate::world::World;

/// From a crash to the order after it: a heartbeat, two polls, the longest pause between two of five
/// runs, and a few answers.
const ORDERED_WITHIN: Ms = 60_000 + 2 * 30_000 + 80_000 + 20_000;

/// An operator's wish for another run is dropped after this.
const WANTED_FOR: Ms = HOUR;

impl World {
    /// S16: runs that make no step come to an end: those that end by themselves, those that are ended, and
    /// three that are no fault of the job's.
    pub fn is_worth_it(&mut self, slot: &str, zone: &str) {
        let node = self.cloud.nodes.get(&(zone.to_owned(), slot.to_owned()));
        let stepped = node.is_none_or(|node| node.run.stepped);
        let job = self.setup.settings.slots[slot].job.as_ref();
        let most = job.map_or(0, |job| job.restarts_per_run + job.no_progress) + 3;
        let known = self.truth.slots.entry(slot.to_owned()).or_default();
        known.fruitless = if stepped { 0 } else { known.fruitless + 1 };
        let count = known.fruitless;
        self.check("S16", slot, count <= most, || format!("start {count} without a step"));
    }

    /// S5: what is well and at work is given no newer order, unless an operator wants it, or its hosts began
    /// by themselves after the reports that the order rests on, which are at most `max_age` old.
    pub fn ends_no_good_run(&mut self, slot: &str, zone: &str) {
        let node = self.cloud.nodes.get(&(zone.to_owned(), slot.to_owned()));
        let asked = self.truth.slots.get(slot).and_then(|known| known.asked);
        let wanted = asked.is_some_and(|at| self.now - at <= WANTED_FOR);
        let Some(uid) = node.map(|node| node.uid).filter(|_| !wanted) else { return };
        let Some(settings) = self.setup.settings.slots.get(slot) else { return };
        let within =
            settings.policy.max_age + Duration::from_millis(self.shown_within().unsigned_abs());
        let (story, now) = (self.cloud.nodes.story(uid), wall(self.now, 0));
        let well = |moment: &Moment| {
            moment.facts.as_ref().is_some_and(|f| f.at_work && illness(f).is_none())
        };
        let last = story
            .last()
            .filter(|moment| well(moment) && elapsed(moment.since, now) > within)
            .cloned();
        self.check("S5", slot, last.is_none(), || {
            format!("an order ends a run that is well: {last:?}")
        });
    }

    /// S22: hosts without an index each start nothing, and a reboot ends nothing that runs.
    pub fn starts_whole(&mut self, slot: &str, zone: &str, order: &RunOrder, starts: bool) {
        let Some(node) = self.cloud.nodes.get(&(zone.to_owned(), slot.to_owned())) else { return };
        let (run, uid) = (node.run.clone(), node.uid);
        let ungathered = run.ungathered.is_some();
        self.check("S22", slot, !(starts && ungathered && run.boots > 0), || {
            format!("{order:?} starts hosts of {uid} that are not whole")
        });
        // Where nothing else is wrong.
        let quiet =
            self.setup.faults.iter().all(|f| matches!(f, Fault::JobCrashes | Fault::Preemption));
        if starts && run.has_ended(Exit::Crashed) && quiet {
            let since = self.now - self.truth.slots.get(slot).map_or(0, |known| known.crashed);
            self.check("L10", slot, since <= ORDERED_WITHIN, || {
                format!("its order comes {} s after its crash", since / 1000)
            });
        }
        let present = format!("-{}", run.boots);
        let of_node = format!("boot-{uid}-");
        let ends = |boot: &String| boot.starts_with(&of_node) && boot.ends_with(&present);
        let reboots = order.reboot.iter().any(ends) && !run.order.reboot.iter().any(ends);
        self.check("S22", slot, !reboots || ungathered, || {
            format!("{order:?} reboots hosts of {uid} on which a job runs")
        });
    }

    /// L8: a node's job starts within twice the time in which its hosts gather, and two polls, of its
    /// being READY: a host without an index reboots once. Where nothing else is wrong.
    pub fn starts_in_time(&mut self, slot: &str, node: &Node) {
        let passing = [Fault::JobCrashes, Fault::Preemption, Fault::Ungathered];
        let Some(settings) = self.setup.settings.slots.get(slot) else { return };
        if !node.run.supervised || !self.setup.faults.iter().all(|fault| passing.contains(fault)) {
            return;
        }
        let (uid, hosts) = (node.uid, node.attributes.len());
        let boot = settings.policy.grace.boot(Size { hosts, ..Size::default() });
        let bound = 2 * boot + Duration::from_secs(120);
        let ready = |moment: &&Moment| moment.facts.as_ref().is_some_and(|f| f.state == "READY");
        let story: Vec<Moment> =
            self.cloud.nodes.story(uid).iter().skip_while(|m| !ready(m)).cloned().collect();
        let at_work = |moment: &&Moment| moment.facts.as_ref().is_some_and(|facts| facts.at_work);
        let Some(since) = story.first().map(|moment| moment.since) else { return };
        // One that was lost before may have had less time.
        let lost = story.iter().find(|moment| !ready(moment)).map(|moment| moment.since);
        let starts = story.iter().find(at_work).map(|moment| moment.since);
        let until = [lost, starts].into_iter().flatten().min().unwrap_or(wall(self.now, 0));
        let took = elapsed(since, until);
        self.check("L8", slot, took <= bound, || {
            format!("the job of {uid} did not start for {took:?}, with {hosts} hosts")
        });
    }

    /// S12: what is created is what a person made, as the config overlays it: the fields, those of an object
    /// one by one, the labels, and the user's own metadata.
    pub fn is_the_specification(&mut self, slot: &str, body: &Value) {
        let mut wanted = self.setup.bodies.get(slot).cloned().unwrap_or_default();
        let Some(settings) = self.setup.settings.slots.get(slot).cloned() else { return };
        for (key, given) in &settings.create.fields {
            match (wanted.get_mut(key), given) {
                (Some(Value::Object(fields)), Value::Object(given)) => fields.extend(given.clone()),
                _ => drop(wanted.insert(key.clone(), given.clone())),
            }
        }
        let metadata = wanted.remove("metadata");
        let labels = wanted.remove("labels");
        let mut labels = labels.and_then(|all| all.as_object().cloned()).unwrap_or_default();
        for (label, given) in &settings.create.labels {
            match given {
                Some(value) => drop(labels.insert(label.clone(), Value::from(value.clone()))),
                None => drop(labels.remove(label)),
            }
        }
        wanted.insert("labels".into(), Value::Object(labels));
        let mut sent = json!({"labels": {}});
        sent.as_object_mut()
            .expect("an object")
            .extend(body.as_object().cloned().unwrap_or_default());
        for (key, was) in &wanted {
            let is = sent.get(key);
            self.check("S12", slot, Some(was) == is, || {
                format!("{key} was {was:?} and is created as {is:?}")
            });
        }
        self.is_the_metadata(slot, metadata.as_ref(), body, settings.supervisor.is_some());
    }

    /// The user's own metadata survives, and their startup script, beside the supervisor or as it
    /// was.
    fn is_the_metadata(
        &mut self,
        slot: &str,
        original: Option<&Value>,
        body: &Value,
        supervised: bool,
    ) {
        let sent = |key: &str| body.get("metadata").and_then(|metadata| metadata.get(key));
        let startup = sent("startup-script").and_then(Value::as_str).unwrap_or_default();
        let ours = startup.contains(SUPERVISOR_MARK);
        self.check("S12", slot, ours == supervised, || {
            format!("its startup script is {startup:?}")
        });
        // A person's own node has none; what was learned before it may be created all the same.
        let replaced = self.truth.slots.get(slot).is_some_and(|known| !known.theirs.is_empty());
        let script = if ours { USER_SCRIPT_KEY } else { "startup-script" };
        for (key, place) in [("token", "token"), ("startup-script", script)] {
            let (was, is) = (original.and_then(|metadata| metadata.get(key)), sent(place));
            self.check("S12", slot, was == is || replaced && is.is_none(), || {
                format!("the metadata {key} was {was:?} and is created as {is:?}")
            });
        }
    }

    /// S15: a job starts from a checkpoint that was complete. That it is the newest one, unless an operator or run after run
    /// without a step says otherwise, is the business of the core's tests and of the rig: hosts that start by themselves, and
    /// calls that arrive late, make it undecidable here.
    pub fn starts_from(&mut self, slot: &str, order: &RunOrder) {
        let known = self.truth.slots.entry(slot.to_owned()).or_default();
        let complete = order.step.is_none_or(|step| known.complete.contains(&step));
        self.check("S15", slot, complete, || {
            format!("the checkpoint of step {:?} was never complete", order.step)
        });
    }
}
