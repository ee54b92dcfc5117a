//! What a create or an order starts: the specification (S12), the checkpoint (S15), how often without a
//! step (S16), whole slices (S22), soon after a crash (L10), in time (L8).

use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::Size;
use tpu_watchdog::model::time::elapsed;
use tpu_watchdog::resource::spec::USER_SCRIPT_KEY;
use tpu_watchdog::simulator::nodes::Moment;
use tpu_watchdog::simulator::things::{Exit, Node};

use crate::fault::Fault;
use crate::process::wall;
use crate::setup::{HOUR, Kind, OWNER};
use crate::truth::illness;
use crate::world::World;

/// From a crash to the order after it: a heartbeat, two polls, the longest pause between two of five
/// runs, and a few answers.
const ORDERED_WITHIN: Duration = Duration::from_secs(60 + 2 * 30 + 80 + 20);

impl World {
    /// A run order reaches a node: S15, it is the next one, or changes flags of the present one.
    pub fn is_ordered(&mut self, slot: &str, node: &Node, order: &RunOrder) {
        let present = &node.run.order;
        let starts = order.generation > present.generation;
        let amends = (order.generation, order.step) == (present.generation, present.step);
        self.check("S15", slot, starts || amends, || format!("{order:?} after {present:?}"));
        self.starts_whole(slot, node, order, starts);
        if starts {
            self.ends_no_good_run(slot, node);
            self.starts_from(slot, order);
            self.is_worth_it(slot, node);
        }
    }

    /// S16: runs that make no step come to an end: those that end by themselves, those that are ended, and
    /// three that are no fault of the job's.
    fn is_worth_it(&mut self, slot: &str, node: &Node) {
        let job = self.setup.settings.slots[slot].job.as_ref();
        let most = job.map_or(0, |job| job.restarts_per_run + job.no_progress) + 3;
        let known = self.known(slot);
        // An order that the API refuses starts no run.
        let reached = (node.uid, node.run.order.generation);
        if known.reached.replace(reached) == Some(reached) {
            return;
        }
        known.fruitless = if node.run.stepped { 0 } else { known.fruitless + 1 };
        let count = known.fruitless;
        self.check("S16", slot, count <= most, || format!("start {count} without a step"));
    }

    /// S5: what is well and at work is given no newer order, unless an operator wanted it within the hour, or
    /// its hosts began by themselves after the reports that the order rests on, which are at most
    /// `max_age` old. L10: what has crashed is given one soon, where nothing else is wrong.
    fn ends_no_good_run(&mut self, slot: &str, node: &Node) {
        let policy = &self.setup.settings.slots[slot].policy;
        let within = policy.max_age + self.shown_within();
        let Some(last) = self.cloud.nodes.story(node.uid).last().cloned() else { return };
        let (lasts, now) = (elapsed(last.since, wall(self.now, 0)), self.now);
        let well = last.facts.as_ref().is_some_and(|f| f.at_work && illness(f).is_none());
        let wanted = self.known(slot).asked.is_some_and(|at| now - at <= HOUR);
        self.check("S5", slot, !well || wanted || lasts <= within, || {
            format!("an order ends a run that is well: {last:?}")
        });
        // Where nothing else is wrong, and no operator gives an order.
        let passing = [Fault::JobCrashes, Fault::Preemption];
        let serves = self.setup.watchdogs.iter().all(|kind| *kind == Kind::Service);
        let quiet = !self.calm && serves && self.setup.faults.iter().all(|of| passing.contains(of));
        if node.run.has_ended(Exit::Crashed) && quiet {
            self.check("L10", slot, lasts <= ORDERED_WITHIN, || format!("after {lasts:?}"));
        }
    }

    /// S22: hosts without an index each start nothing, and a reboot ends nothing that runs.
    fn starts_whole(&mut self, slot: &str, node: &Node, order: &RunOrder, starts: bool) {
        let (of_node, present) = (format!("boot-{}-", node.uid), format!("-{}", node.run.boots));
        let ends = |boot: &String| boot.starts_with(&of_node) && boot.ends_with(&present);
        let wrong = match node.run.ungathered {
            Some(_) => starts && node.run.boots > 0,
            None => order.reboot.iter().any(ends) && !node.run.order.reboot.iter().any(ends),
        };
        self.check("S22", slot, !wrong, || {
            format!("{order:?} starts hosts that are not whole, or ends what runs: {node:?}")
        });
    }

    /// L8: a node's job starts within twice the time in which its hosts gather, and two polls, of its
    /// being READY, unless it is lost before: a host without an index reboots once. Where nothing else is
    /// wrong.
    pub fn starts_in_time(&mut self, slot: &str, node: &Node) {
        let passing = [Fault::JobCrashes, Fault::Preemption, Fault::Ungathered];
        let Some(settings) = self.setup.settings.slots.get(slot) else { return };
        if !node.run.supervised || !self.setup.faults.iter().all(|fault| passing.contains(fault)) {
            return;
        }
        let hosts = node.attributes.len();
        let boot = settings.policy.grace.boot(Size { hosts, ..Size::default() });
        let is = |moment: &Moment, at_work: bool| {
            moment.facts.as_ref().is_some_and(|f| f.state == "READY" && (at_work || !f.at_work))
        };
        let mut story = self.cloud.nodes.story(node.uid).iter().skip_while(|m| !is(m, true));
        let Some(first) = story.next() else { return };
        let until = if is(first, false) { story.find(|m| !is(m, false)) } else { Some(first) };
        let took = elapsed(first.since, until.map_or(wall(self.now, 0), |moment| moment.since));
        self.check("L8", slot, took <= 2 * boot + Duration::from_secs(120), || {
            format!("the job did not start for {took:?}, with {hosts} hosts: {node:?}")
        });
    }

    /// S12: what is created is what a person made, as the config overlays it. Of the metadata it is the
    /// user's own that survives, their startup script beside the supervisor or as it was; a person's own
    /// node has none, and what was learned before it may be created all the same.
    pub fn is_the_specification(&mut self, slot: &str, sent: &Value) {
        let settings = self.setup.settings.slots[slot].clone();
        let mut wanted = Value::Object(self.setup.bodies[slot].clone());
        for (key, given) in settings.create.fields {
            match (&mut wanted[&key], given) {
                (Value::Object(fields), Value::Object(given)) => fields.extend(given),
                (field, given) => *field = given,
            }
        }
        for (label, given) in settings.create.labels {
            wanted["labels"][&label] = json!(given);
        }
        let labels = wanted["labels"].as_object_mut().into_iter();
        labels.for_each(|labels| labels.retain(|_, given| !given.is_null()));
        wanted["metadata"]["tpu-watchdog-owner"] = json!(OWNER);
        if let Some(supervisor) = settings.supervisor {
            let metadata = &mut wanted["metadata"];
            metadata[USER_SCRIPT_KEY] = metadata["startup-script"].take();
            metadata["startup-script"] = json!(supervisor);
        }
        let replaced = self.known(slot).theirs;
        for (key, was) in wanted.as_object().into_iter().flatten() {
            let is = &sent[key];
            let same = match was.as_object().filter(|_| key == "metadata") {
                Some(all) => {
                    all.iter().all(|(of, was)| is[of] == *was || replaced && is[of].is_null())
                }
                None => is == was,
            };
            self.check("S12", slot, same, || format!("{key} was {was} and is created as {is}"));
        }
    }

    /// S15: a job starts from a checkpoint that was complete. That it is the newest one, unless an operator or run after run
    /// without a step says otherwise, is the business of the core's tests and of the rig: hosts that start by themselves, and
    /// calls that arrive late, make it undecidable here.
    pub fn starts_from(&mut self, slot: &str, order: &RunOrder) {
        let complete = order.step.is_none_or(|step| self.known(slot).complete.contains(&step));
        self.check("S15", slot, complete, || format!("{order:?} was never complete"));
    }
}
