//! What must never leave or arrive, checked against what is true: the cloud's own story of each
//! node, the bucket, the lease, the bodies with which people made their nodes. Of the watchdogs it
//! knows what they sent and which GETs they were answered, and of the journal what is durable; it
//! asks no watchdog what it believes, nor why.
//!
//! It errs on the watchdog's side: a node may have healed since the GET that showed it sick, a read
//! may have lagged behind, what is late or comes twice on the wire hits whatever stands there by
//! then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tpu_watchdog::model::action::Action;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::condition::{Condition, Kind};
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::fleet::Stray;
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::relaunch::Patch;
use tpu_watchdog::model::settings::{Grace, OnSuccess, Size};
use tpu_watchdog::model::time::elapsed;
use tpu_watchdog::simulator::nodes::{Facts, Moment};
use tpu_watchdog::simulator::things::{Exit, Node};

use crate::fault::Fault;
use crate::process::{Tag, wall};
use crate::setup::{MINUTE, Ms, OWNER};
use crate::world::{Arrival, World};

/// From the GET, or the workers' reports, that showed a node sick, to the arrival of its delete.
const SHOWN_WITHIN: Ms = 20_000;
/// So much longer where reads lag behind, or the clock by which their age is told is set back.
const LAG: Ms = 5 * MINUTE;
/// A node that was well for so long begins a new illness: no watchdog goes without a read of it for
/// longer.
const WELL: Duration = Duration::from_secs(3 * 3600);
/// Two heartbeats of a worker may be so far apart: silence is counted from the last one.
const BEAT: Duration = Duration::from_secs(60);
/// A delete or create of ours that arrived within this time, and is under way, is a recovery under
/// way whatever else holds.
const UNDER_WAY: Ms = 5 * MINUTE;

/// What is known of one slot.
#[derive(Default)]
pub struct Known {
    pub last_sent: Option<Ms>,
    /// Steps whose checkpoints were complete at some time.
    pub complete: BTreeSet<u64>,
    /// Nodes that a late or second create made, and those that a person made.
    strays: BTreeSet<u64>,
    pub theirs: BTreeSet<u64>,
    adopted: bool,
    /// Nodes that an operator wants recreated.
    wanted: BTreeSet<String>,
    /// When a delete of ours was carried out last.
    deleted: Option<Ms>,
    /// That delete was of a judged slot.
    judged: bool,
    /// When an operator last wanted its job started again.
    pub asked: Option<Ms>,
    /// An operator wants its node back.
    released: bool,
    /// A create of it was on its way for long, or twice: its request is a stray.
    pub late_requests: bool,
    /// When its job crashed last.
    pub crashed: Ms,
    /// Orders to start since the last step, create or command.
    pub fruitless: u32,
}

/// What was sent and answered, as far as the checks need it.
#[derive(Default)]
pub struct Truth {
    pub slots: BTreeMap<String, Known>,
    /// When the last GET of a slot was asked for that its process was answered.
    pub gets: BTreeMap<(String, usize), (Tag, Ms)>,
    pub creates: VecDeque<Ms>,
    /// When the last write began that renewed the lock.
    pub renewed_at: Ms,
    /// Mutations that left although the world had not changed for hours.
    pub late_mutations: Vec<(String, String)>,
}

/// What a create orders its job to run from.
pub fn ordered(body: &Value) -> RunOrder {
    let run =
        body.pointer("/metadata/tpu-watchdog-run").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_str(run).unwrap_or_default()
}

/// The sickness that a node truly has, if any.
pub fn illness(facts: &Facts) -> Option<Condition> {
    let health = facts.health.as_deref();
    Some(match (facts.state, health) {
        ("PREEMPTED" | "TERMINATED", _) => Condition::Terminated,
        ("CREATING" | "STARTING" | "RESTARTING" | "REIMAGING", _) => Condition::Starting,
        ("UNKNOWN", _) => Condition::FailedRepair,
        ("REPAIRING", _) | ("READY", Some("UNHEALTHY_MAINTENANCE")) => Condition::Maintenance,
        ("READY", Some("HEALTH_OF_THE_FUTURE")) => return None,
        ("READY", _) if facts.maintenance && health != Some("HEALTHY") => Condition::Maintenance,
        ("READY", Some("TIMEOUT")) => Condition::Unresponsive,
        ("READY", Some("UNHEALTHY_TENSORFLOW")) => Condition::RuntimeUnhealthy,
        ("READY", _) if !facts.at_work => Condition::Silent,
        _ => return None,
    })
}

/// The smallest grace that any rule could give this sickness.
fn least_grace(graces: &Grace, illness: Condition) -> Duration {
    match illness {
        Condition::Silent => graces.boot(Size::default()).min(graces.silent.saturating_sub(BEAT)),
        illness => graces.of(illness, Size::default()),
    }
}

/// Since when a node has been sick that was so in the moment at `index`, short spells of health
/// included.
fn sick_since(story: &[Moment], index: usize) -> Timestamp {
    let mut since = story[index].since;
    for moment in story[..index].iter().rev() {
        if moment.facts.as_ref().is_some_and(|facts| illness(facts).is_some()) {
            since = moment.since;
        } else if elapsed(moment.since, since) > WELL {
            break;
        }
    }
    since
}

impl World {
    /// A GET of a slot's node was answered.
    pub fn got(&mut self, tag: Tag, slot: &str, asked: Ms) {
        let last = self.truth.gets.entry((slot.to_owned(), tag.pid)).or_insert((tag, asked));
        if last.0 != tag || last.1 <= asked {
            *last = (tag, asked);
        }
    }

    /// An operator's command went into the store.
    pub fn commanded(&mut self, kind: &CommandKind) {
        // An operator may want another try.
        self.truth.slots.values_mut().for_each(|known| known.fruitless = 0);
        match kind {
            CommandKind::Resume { slot: Some(slot), adopt: true } => {
                self.truth.slots.entry(slot.clone()).or_default().adopted = true;
            }
            CommandKind::Retry { slot, .. } | CommandKind::Relaunch { slot, .. } => {
                self.truth.slots.entry(slot.clone()).or_default().asked = Some(self.now);
            }
            CommandKind::Release { slot } => {
                self.truth.slots.entry(slot.clone()).or_default().released = true;
            }
            CommandKind::Recreate { slot, incarnation: Some(meant) } => {
                let known = self.truth.slots.entry(slot.clone()).or_default();
                known.wanted.insert(meant.id.clone());
            }
            _ => {}
        }
    }

    /// A person made such a node in the place of another one.
    pub fn replaced_by_a_person(&mut self, slot: &str, before: Option<u64>, made: Option<u64>) {
        let known = self.truth.slots.entry(slot.to_owned()).or_default();
        known.theirs.extend(made);
        if before.is_some_and(|uid| known.strays.contains(&uid)) {
            known.strays.extend(made);
        }
    }

    /// These checkpoints of a slot's job are complete now.
    pub fn are_complete(&mut self, slot: &str, steps: &[u64]) {
        self.truth.slots.entry(slot.to_owned()).or_default().complete.extend(steps);
    }

    /// How long before a delete arrives its node may have been shown as it was.
    pub fn shown_within(&self) -> Ms {
        let lags = self.setup.has(Fault::StaleRead) || self.setup.has(Fault::ClockJump);
        SHOWN_WITHIN + if lags { LAG } else { 0 }
    }

    /// S17, S1, S10: what is removed is a dead node of ours, and the one that was meant.
    fn stray_arrives(&mut self, at: &(String, String), target: &str, arrival: Arrival) {
        let wanted = self.setup.settings.removes_dead && !self.setup.settings.dry_run;
        self.check("S17", &at.1, wanted, || "the config removes no strays".to_owned());
        let Some(node) =
            self.cloud.nodes.get(at).cloned().filter(|_| !(arrival.late || arrival.again))
        else {
            return;
        };
        let metadata = node.body.get("metadata");
        let owner = metadata.and_then(|m| m["tpu-watchdog-owner"].as_str());
        let (state, uid, ours) = (node.state, node.uid.to_string(), owner == Some(OWNER));
        self.check("S17", &at.1, ours, || format!("{uid} is not ours: {owner:?}"));
        self.check("S1", &at.1, uid == target, || format!("meant for {target}, it hits {uid}"));
        let dead = matches!(state, "PREEMPTED" | "TERMINATED" | "DELETING");
        self.check("S10", &at.1, dead, || format!("{uid} is {state}, and is removed as a stray"));
    }

    /// A mutation reaches the API.
    pub fn arrives(&mut self, tag: Tag, action: &Action, arrival: Arrival) {
        let slot = action.slot().to_owned();
        if let Action::Delete { zone, incarnation, filling, stray: true, force, .. } = action {
            return match filling {
                Filling::Node => {
                    self.stray_arrives(&(zone.clone(), slot), &incarnation.id, arrival)
                }
                Filling::QueuedResource(id) => {
                    self.withdrawal_arrives((zone, &slot, id), &incarnation.id, *force, arrival)
                }
                Filling::Training(_) => unreachable!("no slot of these worlds is a training job"),
            };
        }
        if let Action::Patch { zone, stray: true, .. } = action {
            let node = self.cloud.nodes.get(&(zone.clone(), slot.clone()));
            let owner = node.and_then(|node| node.body["metadata"]["tpu-watchdog-owner"].as_str());
            let ours = owner.is_none_or(|owner| owner == OWNER);
            let owner = owner.map(str::to_owned);
            return self.check("S17", &slot, ours, || format!("it is not ours: {owner:?}"));
        }
        let configured = self.setup.settings.slots.contains_key(&slot);
        self.check("S17", &slot, configured, || "it is not configured".to_owned());
        let dry_run =
            self.processes[tag.pid].dry_since.is_some_and(|since| arrival.sent - since > MINUTE);
        self.check("S7", &slot, !dry_run, || format!("watchdog {} runs dry", tag.pid));
        match action {
            Action::Delete { zone, incarnation, filling, .. } => {
                let node = self.cloud.nodes.get(&(zone.clone(), slot.clone())).cloned();
                let mut meant = incarnation.id.clone();
                if let Filling::QueuedResource(id) = filling
                    && !(arrival.late || arrival.again)
                    && self.request_is_hit(zone, &slot, id, &incarnation.id)
                {
                    meant = node.as_ref().map_or(meant, |node| node.uid.to_string());
                }
                if let Some(node) = node {
                    self.delete_hits(tag, &slot, &meant, &node, arrival);
                }
            }
            Action::Create { zone, body, filling, .. } => {
                self.is_the_specification(&slot, body);
                let late = arrival.late || arrival.again;
                if late {
                    self.truth.slots.entry(slot.clone()).or_default().late_requests = true;
                }
                if let Filling::QueuedResource(id) = filling
                    && !late
                {
                    self.request_is_alone(zone, &slot, id);
                }
                if !late {
                    self.is_in_its_config(tag, &slot, arrival);
                    self.create_hits(&slot, zone);
                    self.starts_from(&slot, &ordered(body));
                }
            }
            Action::Patch { patch: Patch::Release, .. } => {
                let asked = self.truth.slots.get(&slot).is_some_and(|known| known.released);
                self.check("S17", &slot, asked, || "no operator wants it released".to_owned());
            }
            Action::Patch { zone, patch: Patch::Stop, .. } => {
                let node = self.cloud.nodes.get(&(zone.clone(), slot.clone()));
                let run = node.map(|node| node.run.clone());
                let over = run.as_ref().is_none_or(|run| run.has_ended(Exit::Well));
                let stops = self.setup.settings.slots[&slot].policy.on_success == OnSuccess::Stop;
                self.check("S23", &slot, over && stops || arrival.late || arrival.again, || {
                    format!("it is stopped as finished: {run:?}")
                });
            }
            Action::Patch { zone, patch: Patch::Order(order), .. } => {
                let node = self.cloud.nodes.get(&(zone.clone(), slot.clone()));
                if let Some(present) = node.map(|node| node.run.order.clone())
                    && !(arrival.late || arrival.again)
                {
                    let amends = order.generation == present.generation;
                    let same = order.step == present.step;
                    let newer = order.generation > present.generation;
                    let text = || format!("{order:?} after {present:?}");
                    self.check("S15", &slot, newer || amends && same, text);
                    self.starts_whole(&slot, zone, order, !amends);
                    if !amends {
                        self.ends_no_good_run(&slot, zone);
                        self.starts_from(&slot, order);
                        self.is_worth_it(&slot, zone);
                    }
                }
            }
        }
    }

    fn delete_hits(&mut self, tag: Tag, slot: &str, target: &str, node: &Node, arrival: Arrival) {
        let metadata =
            |key: &str| node.body.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_str);
        let adopted = self.truth.slots.get(slot).is_some_and(|known| known.adopted);
        let ours = metadata("tpu-watchdog-owner").is_none_or(|owner| owner == OWNER) || adopted;
        let id = self.request_of(slot);
        let of = node.queued_resource.as_deref().and_then(|name| name.rsplit('/').next());
        let plain = of == id.as_deref() && node.made_by == "V2" && ours;
        self.check("S17", slot, plain, || {
            format!("the node is not the slot's own plain node: {:?}", node.body)
        });
        if arrival.late || arrival.again {
            return;
        }
        let now = wall(self.now, 0);
        let within = Duration::from_millis(self.shown_within().unsigned_abs());
        let young = elapsed(node.created, now) < within;
        self.check("S1", slot, node.uid.to_string() == target || young, || {
            format!("meant for {target}, it hits {}", node.uid)
        });
        if node.uid.to_string() != target {
            return;
        }
        self.is_in_its_config(tag, slot, arrival);
        self.starts_in_time(slot, node);
        if self.is_over(slot, node) {
            return;
        }
        self.is_sick_enough(slot, node.uid, now, within);
        self.leaves_enough(slot, node.uid);
    }

    /// S17: the process that sent this has the slot in its config, or had it a minute ago.
    fn is_in_its_config(&mut self, tag: Tag, slot: &str, arrival: Arrival) {
        let left = self.processes[tag.pid]
            .left
            .get(slot)
            .is_some_and(|since| arrival.sent - since > MINUTE);
        self.check("S17", slot, !left, || "it has left the config".to_owned());
    }

    /// S23: its job has ended well, and the config wants no such node.
    fn is_over(&mut self, slot: &str, node: &Node) -> bool {
        let removes = self.setup.settings.slots[slot].policy.on_success == OnSuccess::Delete;
        let finished =
            self.audit.last_call(slot).is_some_and(|call| call.cause == Some(Condition::Finished));
        self.check("S23", slot, !finished || removes && node.run.has_ended(Exit::Well), || {
            format!("{} is removed as finished, and is {}: {:?}", node.uid, node.state, node.run)
        });
        finished
    }

    /// S3, S5, S7 and S10: the node that is deleted truly was sick, for long enough, and not opted
    /// out.
    fn is_sick_enough(&mut self, slot: &str, uid: u64, now: Timestamp, within: Duration) {
        let graces = self.setup.settings.slots[slot].policy.grace.clone();
        let counts_time = !self.setup.has(Fault::ClockJump);
        let story = self.cloud.nodes.story(uid).to_vec();
        let end = |index: usize| story.get(index + 1).map_or(now, |next| next.since);
        let recent: Vec<usize> =
            (0..story.len()).filter(|index| elapsed(end(*index), now) <= within).collect();
        let facts = |index: &usize| story[*index].facts.as_ref();
        let opted_out =
            !recent.is_empty() && recent.iter().filter_map(facts).all(|facts| facts.opted_out);
        self.check("S7", slot, !opted_out, || "its label opts it out".to_owned());
        let asked = self.is_wanted(slot, uid);
        // Another hand's delete that is stuck may be sent once more. Nothing is left to save where it was preempted
        // between two reads.
        let deleting = |moment: &&Moment| {
            let dead = ["DELETING", "PREEMPTED", "TERMINATED"];
            moment.facts.as_ref().is_some_and(|facts| dead.contains(&facts.state))
        };
        // From the first time on: strikes of this world that interrupt a delete are not always read.
        let stuck = recent.iter().filter(|index| deleting(&&story[**index])).any(|index| {
            let first = story[..=*index].iter().find(deleting);
            first.is_some_and(|m| elapsed(m.since, now) >= graces.deleting || !counts_time)
        });
        let wrong = if asked || stuck {
            None
        } else {
            unfounded(&graces, &story, &recent, now, counts_time)
        };
        for name in ["S3", "S5", "S10"] {
            let why = wrong.as_ref().filter(|(broken, _)| *broken == name);
            self.check(name, slot, why.is_none(), || why.expect("it is broken").1.clone());
        }
    }

    /// An operator wants this node, or its request, recreated.
    fn is_wanted(&mut self, slot: &str, uid: u64) -> bool {
        let here =
            self.cloud.nodes.iter().find(|((_, name), node)| name == slot && node.uid == uid);
        let here = here.map(|((zone, _), node)| (zone.clone(), node.clone()));
        let id = here.map_or(uid.to_string(), |(zone, node)| self.identity(&zone, &node).id);
        self.truth.slots.get(slot).is_some_and(|known| known.wanted.contains(&id))
    }

    /// S6: judged slots whose delete is truly under way, this one included. What an operator asked
    /// for may go beyond it.
    fn leaves_enough(&mut self, slot: &str, uid: u64) {
        let judged = self.audit.last_call(slot).is_some_and(|call| call.kind == Some(Kind::Judged));
        let (now, asked) = (self.now, self.is_wanted(slot, uid));
        let known = self.truth.slots.entry(slot.to_owned()).or_default();
        let judged = judged && !asked;
        known.judged = judged;
        // By a clock that was set, a delete may be taken for one that does not end, which counts
        // no more.
        if !judged || self.setup.has(Fault::ClockJump) {
            return;
        }
        let slots = self.setup.settings.slots.len();
        let most = self.configs.iter().map(|s| s.max_unavailable.of(slots)).max().unwrap_or(1);
        let is_under_way = |name: &str, state: &str| {
            let known = self.truth.slots.get(name).filter(|known| name != slot && known.judged);
            let deleted = known.and_then(|known| known.deleted);
            state == "DELETING" && deleted.is_some_and(|at| now - at < UNDER_WAY)
        };
        let nodes = self.cloud.nodes.iter();
        let others = nodes.filter(|((_, name), node)| is_under_way(name, node.state)).count();
        self.check("S6", slot, others < most, || {
            format!("{others} judged slots are being deleted, {most} are allowed")
        });
    }

    /// S4: a create that arrives in one zone while the slot's own node is in another was not decided
    /// on a 404. In the same zone the API refuses it: a name exists once.
    fn create_hits(&mut self, slot: &str, zone: &str) {
        let now = wall(self.now, 0);
        let within = Duration::from_millis((self.shown_within() + MINUTE).unsigned_abs());
        let known = self.truth.slots.entry(slot.to_owned()).or_default();
        let late = |node: &Node| known.late_requests && node.queued_resource.is_some();
        let others = |node: &Node| {
            let uid = node.uid;
            known.strays.contains(&uid) || known.theirs.contains(&uid) || late(node)
        };
        let is_its_own = |node: &Node| {
            !others(node) && elapsed(node.created, now) > within && node.state != "DELETING"
        };
        let mut there: Vec<(&str, &Node)> = self
            .cloud
            .nodes
            .iter()
            .filter(|((at, name), node)| name == slot && at != zone && is_its_own(node))
            .map(|((at, _), node)| (at.as_str(), node))
            .collect();
        if there.iter().any(|(_, node)| is_dead(node)) {
            // Remains that the journal follows to their removal are no node of the slot.
            let told = self.shelf.durable(slot).ledger.strays;
            there.retain(|(at, node)| !is_dead(node) || !told.contains_key(&Stray::key(at, slot)));
        }
        let is = |(at, node): &(&str, &Node)| format!("{} is {} in {at}", node.uid, node.state);
        let there: Vec<String> = there.iter().map(is).collect();
        self.check("S4", slot, there.is_empty(), || {
            format!("it is created in {zone} although {there:?}")
        });
    }

    /// A delete was carried out.
    pub fn deleted(&mut self, slot: &str) {
        self.truth.slots.entry(slot.to_owned()).or_default().deleted = Some(self.now);
    }

    /// A create was carried out.
    pub fn created(&mut self, slot: &str, uid: u64, arrival: Arrival) {
        self.truth.slots.entry(slot.to_owned()).or_default().fruitless = 0;
        if arrival.late || arrival.again {
            self.truth.slots.entry(slot.to_owned()).or_default().strays.insert(uid);
        }
    }
}

/// The rule that a delete breaks whose node was at no recent moment sick for long enough, and why.
fn unfounded(
    graces: &Grace,
    story: &[Moment],
    recent: &[usize],
    now: Timestamp,
    counts_time: bool,
) -> Option<(&'static str, String)> {
    let facts = |index: &usize| story[*index].facts.as_ref();
    let mut why = None;
    for index in recent {
        let Some(illness) = facts(index).and_then(illness) else { continue };
        let (grace, lasts) =
            (least_grace(graces, illness), elapsed(sick_since(story, *index), now));
        if illness.kind() == Some(Kind::Lost) || lasts >= grace || !counts_time {
            return None;
        }
        let rule = if illness == Condition::Starting { "S10" } else { "S3" };
        why = Some((rule, format!("{illness} for {lasts:?}, the least grace is {grace:?}")));
    }
    let last = recent.iter().rev().find_map(facts);
    let at_work = last.is_none_or(|facts| matches!(facts.state, "READY" | "REPAIRING"));
    let rule = if at_work { "S5" } else { "S10" };
    why.or_else(|| Some((rule, format!("it is not sick: {last:?}"))))
}

fn is_dead(node: &Node) -> bool {
    matches!(node.state, "PREEMPTED" | "TERMINATED")
}
