//! What must never leave or arrive, checked against what is true: the cloud's own story of each
//! node, the bucket, the lease, the bodies with which people made their nodes. Of the watchdogs it
//! knows what they sent and which GETs they were answered; of the log it takes whether a delete is
//! of a judged or of a finished one, of the journal what is followed as a stray.
//!
//! It errs on the watchdog's side: a node may have healed since the GET that showed it sick, a read
//! may have lagged behind, what is late or comes twice on the wire hits whatever stands there by
//! then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tpu_watchdog::model::action::Action;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::condition::{Condition, Kind};
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::fleet::Stray;
use tpu_watchdog::model::ids::{Incarnation, RunOrder};
use tpu_watchdog::model::relaunch::Patch;
use tpu_watchdog::model::settings::{Grace, OnSuccess, Size};
use tpu_watchdog::model::time::elapsed;
use tpu_watchdog::simulator::nodes::{Facts, Moment, Place};
use tpu_watchdog::simulator::things::{Exit, Node, Queued};

use crate::fault::Fault;
use crate::process::{Tag, wall};
use crate::setup::{MINUTE, Ms, OWNER};
use crate::world::{Arrival, World};

/// From the GET, or the workers' reports, that showed a node sick, to the arrival of its delete.
const SHOWN_WITHIN: Duration = Duration::from_secs(20);
/// So much longer where reads lag behind, or the clock by which their age is told is set back.
const LAG: Duration = Duration::from_secs(300);
/// A node that was well for so long begins a new illness: no watchdog goes without a read of it for
/// longer.
const WELL: Duration = Duration::from_secs(3 * 3600);
/// Two heartbeats of a worker may be so far apart: silence is counted from the last one.
const BEAT: Duration = Duration::from_secs(60);
/// A delete of ours that arrived within this time, and is under way, is a recovery under way whatever
/// else holds.
const UNDER_WAY: Ms = 5 * MINUTE;

/// What is known of one slot.
#[derive(Default)]
pub struct Known {
    /// When the last GET was asked for that a leader was answered.
    pub got: Option<Ms>,
    /// When our last delete or create left.
    pub last_sent: Option<Ms>,
    /// Answered GETs in a row that settled nothing of a create whose outcome is not known.
    pub unsettled: u32,
    /// Steps whose checkpoints were complete at some time.
    pub complete: BTreeSet<u64>,
    /// When a create of it last arrived late or twice, or a person made it: not the slot's own.
    pub others: Option<Ms>,
    /// A person made a node in the place of another one.
    pub theirs: bool,
    adopted: bool,
    /// Nodes, or requests, that an operator wants recreated.
    wanted: BTreeSet<String>,
    /// When a delete of it arrived last, where that was judged.
    judged: Option<Ms>,
    /// When an operator last wanted its job started again.
    pub asked: Option<Ms>,
    /// Orders to start since the last step, create or command.
    pub fruitless: u32,
    /// The node, and the generation that it had, when the last of them arrived.
    pub reached: Option<(u64, u64)>,
}

/// What was sent and answered, as far as the checks need it.
#[derive(Default)]
pub struct Truth {
    pub slots: BTreeMap<String, Known>,
    pub creates: Vec<Ms>,
    /// When the last write began that renewed the lock.
    pub renewed_at: Ms,
}

/// What a create orders its job to run from.
pub fn ordered(body: &Value) -> RunOrder {
    let run =
        body.pointer("/metadata/tpu-watchdog-run").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_str(run).unwrap_or_default()
}

/// The owner that a node's metadata names.
pub fn owner(node: &Node) -> Option<&str> {
    node.body.get("metadata")?.get("tpu-watchdog-owner")?.as_str()
}

pub fn is_dead(node: &Node) -> bool {
    matches!(node.state, "PREEMPTED" | "TERMINATED")
}

/// The sickness that a node truly has, if any; also another hand's delete.
pub fn illness(facts: &Facts) -> Option<Condition> {
    let health = facts.health.as_deref();
    Some(match (facts.state, health) {
        ("PREEMPTED" | "TERMINATED", _) => Condition::Terminated,
        ("DELETING", _) => Condition::Deleting,
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

/// Since when a node has been sick that is so at the end of its story, short spells of health included.
/// Another hand's delete has a deadline of its own (S10).
fn sick_since(story: &[Moment], of: Condition) -> Timestamp {
    let counts = |before: Condition| match of {
        Condition::Deleting => matches!(before, Condition::Deleting | Condition::Terminated),
        _ => true,
    };
    let mut since = Timestamp::MAX;
    for moment in story.iter().rev() {
        if moment.facts.as_ref().and_then(illness).is_some_and(counts) {
            since = moment.since;
        } else if elapsed(moment.since, since) > WELL {
            break;
        }
    }
    since
}

/// The rule that a delete breaks of a node that was so at the end of its story, and why.
fn forbids(
    graces: &Grace,
    story: &[Moment],
    now: Timestamp,
    counts_time: bool,
) -> Option<(&'static str, String)> {
    let facts = story.last()?.facts.as_ref()?;
    let Some(illness) = illness(facts) else {
        let rule = if facts.state == "READY" { "S5" } else { "S10" };
        return Some((rule, format!("it is not sick: {facts:?}")));
    };
    let (grace, lasts) = (least_grace(graces, illness), elapsed(sick_since(story, illness), now));
    let worked_on = matches!(illness, Condition::Starting | Condition::Deleting);
    let long = lasts >= grace || !counts_time || illness.kind() == Some(Kind::Lost);
    let why = || format!("{illness} for {lasts:?}, the least grace is {grace:?}");
    (!long).then(|| (if worked_on { "S10" } else { "S3" }, why()))
}

/// The identity of a request of this id.
pub fn identity(id: &str, request: &Queued) -> Incarnation {
    let created = request.created;
    Incarnation { id: format!("{id}.{}", created.as_second()), created }
}

/// The owner that the metadata of its node names.
pub fn owner_of(request: &Queued) -> Option<&str> {
    request.body.get("tpu")?.pointer("/nodeSpec/0/node/metadata/tpu-watchdog-owner")?.as_str()
}

impl World {
    /// The knowledge of a slot.
    pub fn known(&mut self, slot: &str) -> &mut Known {
        self.truth.slots.entry(slot.to_owned()).or_default()
    }

    /// An operator's command went into the store.
    pub fn commanded(&mut self, kind: &CommandKind) {
        let now = self.now;
        // An operator may want another try.
        self.truth.slots.values_mut().for_each(|known| known.fruitless = 0);
        let Some(slot) = kind.slot() else { return };
        let known = self.known(slot);
        match kind {
            CommandKind::Resume { adopt: true, .. } => known.adopted = true,
            CommandKind::Retry { .. } | CommandKind::Relaunch { .. } => known.asked = Some(now),
            CommandKind::Recreate { incarnation: Some(meant), .. } => {
                known.wanted.insert(meant.id.clone());
            }
            _ => {}
        }
    }

    /// The identity by which a slot knows this node: its own, or that of its request.
    pub fn identity(&self, zone: &str, node: &Node) -> Incarnation {
        let id = node.queued_resource.as_ref().and_then(|name| name.rsplit('/').next());
        let request = id.and_then(|id| self.cloud.queued.get(&(zone.to_owned(), id.to_owned())));
        match (id, request) {
            (Some(id), Some(request)) => identity(id, request),
            _ => Incarnation { id: node.uid.to_string(), created: node.created },
        }
    }

    /// How long before a delete arrives its node may have been shown as it was.
    pub fn shown_within(&self) -> Duration {
        let lags = self.setup.has(Fault::StaleRead) || self.setup.has(Fault::ClockJump);
        SHOWN_WITHIN + if lags { LAG } else { Duration::ZERO }
    }

    /// A mutation reaches the API. What is late or comes twice hits whatever stands there by then.
    pub fn arrives(&mut self, tag: Tag, action: &Action, arrival: Arrival) {
        let (Action::Delete { zone, .. }
        | Action::Create { zone, .. }
        | Action::Patch { zone, .. }) = action;
        let slot = action.slot();
        // By the config of whoever sent it, now or a minute ago.
        let process = &self.processes[tag.pid];
        let long = |since: &Ms| arrival.sent - since > MINUTE;
        let dry = process.dry_since.as_ref().is_some_and(long);
        let left = process.left.get(slot).is_some_and(long);
        let configured = self.setup.settings.slots.contains_key(slot) && !left;
        self.check("S7", slot, !dry, || format!("watchdog {} runs dry", tag.pid));
        let known = configured || action.is_of_stray();
        self.check("S17", slot, known, || "it is not, or no longer, configured".to_owned());
        let late = arrival.late || arrival.again;
        if matches!(action, Action::Create { .. }) {
            let (now, known) = (self.now, self.known(slot));
            (known.fruitless, known.others) = (0, late.then_some(now).or(known.others));
        }
        if late || self.violation.is_some() {
            return;
        }
        let node = self.cloud.nodes.get(&(zone.clone(), slot.to_owned())).cloned();
        match (action, node) {
            (Action::Delete { filling, incarnation, stray, force, .. }, node) => {
                if let Filling::QueuedResource(id) = filling {
                    let withdrawn = stray.then_some(*force);
                    self.request_is_hit([zone, slot, id], &incarnation.id, withdrawn);
                }
                match node {
                    Some(node) if !*stray => self.delete_hits(slot, zone, &incarnation.id, &node),
                    Some(node) if *filling == Filling::Node => {
                        self.stray_is_hit(slot, &incarnation.id, &node);
                    }
                    _ => {}
                }
            }
            (Action::Create { body, .. }, _) => {
                self.is_the_specification(slot, body);
                self.is_alone(slot, zone);
                self.starts_from(slot, &ordered(body));
            }
            (Action::Patch { stray: true, .. }, Some(node)) => {
                let owner = owner(&node);
                self.check("S17", slot, owner.is_none_or(|owner| owner == OWNER), || {
                    format!("it is not ours: {owner:?}")
                });
            }
            (Action::Patch { patch: Patch::Order(order), .. }, Some(node)) => {
                self.is_ordered(slot, &node, order);
            }
            (Action::Patch { patch: Patch::Stop, .. }, Some(node)) => {
                let stops = self.setup.settings.slots[slot].policy.on_success == OnSuccess::Stop;
                self.check("S23", slot, stops && node.run.has_ended(Exit::Well), || {
                    format!("it is stopped as finished: {:?}", node.run)
                });
            }
            (Action::Patch { patch: Patch::Release, .. }, _) => {
                self.check("S17", slot, false, || "no operator wants it released".to_owned());
            }
            (Action::Patch { .. }, None) => {}
        }
    }

    /// S17, S1, S10: what is removed is a dead node of ours, and the one that was meant.
    fn stray_is_hit(&mut self, slot: &str, meant: &str, node: &Node) {
        let (uid, state, owner) = (node.uid.to_string(), node.state, owner(node));
        let ours = owner == Some(OWNER) && self.setup.settings.removes_dead;
        self.check("S17", slot, ours, || format!("{uid} is not ours to remove: {owner:?}"));
        self.check("S1", slot, uid == meant, || format!("meant for {meant}, it hits {uid}"));
        let dead = is_dead(node) || state == "DELETING";
        self.check("S10", slot, dead, || format!("{uid} is {state}, and is removed as a stray"));
    }

    fn delete_hits(&mut self, slot: &str, zone: &str, meant: &str, node: &Node) {
        let policy = self.setup.settings.slots[slot].policy.clone();
        let ours = owner(node).is_none_or(|owner| owner == OWNER) || self.known(slot).adopted;
        let request = node.queued_resource.as_deref().and_then(|name| name.rsplit('/').next());
        let own = request.unwrap_or_default() == self.setup.settings.slots[slot].filling.id();
        self.check("S17", slot, own && ours && node.made_by == "V2", || {
            format!("the node is not the slot's own plain node: {:?}", node.body)
        });
        let same = self.identity(zone, node).id == meant;
        let young = elapsed(node.created, wall(self.now, 0)) < self.shown_within();
        self.check("S1", slot, same || young, || format!("meant for {meant}, it hits {node:?}"));
        if !same {
            return;
        }
        self.starts_in_time(slot, node);
        let evidence = self.audit.last_call(slot).and_then(|call| call.evidence.clone());
        if evidence.as_ref().is_some_and(|e| e.condition == Condition::Finished) {
            let over = policy.on_success == OnSuccess::Delete && node.run.has_ended(Exit::Well);
            self.check("S23", slot, over, || format!("it is removed as finished: {node:?}"));
            return;
        }
        // An operator's recreate needs no grace, and may go beyond max_unavailable.
        let asked = self.known(slot).wanted.contains(meant);
        self.is_sick_enough(slot, node.uid, &policy.grace, asked);
        self.leaves_enough(slot, evidence.is_some_and(|e| e.kind == Kind::Judged) && !asked);
    }

    /// A delete reaches a request: S1, it is the one that was meant; S10, it does not lose its place in
    /// the queue. One that was called off is withdrawn: it is ours (S17), and loses no node, which
    /// `force` would take along.
    fn request_is_hit(&mut self, of: [&str; 3], meant: &str, withdrawn: Option<bool>) {
        let [zone, slot, id] = of;
        let request = self.cloud.queued.get(&(zone.to_owned(), id.to_owned())).cloned();
        let Some(request) = request else { return };
        let same = identity(id, &request).id == meant;
        self.check("S1", slot, same, || format!("meant for {meant}, it hits {request:?}"));
        let ours = withdrawn.is_none() || owner_of(&request) == Some(OWNER);
        self.check("S17", slot, ours, || format!("it is not ours: {request:?}"));
        let kept = ["WAITING_FOR_RESOURCES", "ACCEPTED", "CREATING", "PROVISIONING"];
        let waits = kept.contains(&request.state);
        self.check("S10", slot, withdrawn.map_or(!waits, |force| !force), || {
            format!("it loses its place, or its node: {request:?}")
        });
    }

    /// S3, S5, S7 and S10: the node that is deleted truly was sick, for long enough, and not opted
    /// out.
    fn is_sick_enough(&mut self, slot: &str, uid: u64, graces: &Grace, asked: bool) {
        let (now, within) = (wall(self.now, 0), self.shown_within());
        let counts_time = !self.setup.has(Fault::ClockJump);
        let story = self.cloud.nodes.story(uid).to_vec();
        let shown = story.iter().rposition(|m| elapsed(m.since, now) > within).unwrap_or(0);
        let is_out = |m: &Moment| m.facts.as_ref().is_some_and(|facts| facts.opted_out);
        let opted_out = !story.is_empty() && story[shown..].iter().all(is_out);
        self.check("S7", slot, !opted_out, || "its label opts it out".to_owned());
        // One moment in which nothing forbade it is enough.
        let wrong = (shown..story.len())
            .map(|at| forbids(graces, &story[..=at], now, counts_time))
            .collect::<Option<Vec<_>>>();
        let wrong = wrong.and_then(|mut all| all.pop()).filter(|_| !asked);
        let (broken, why) = wrong.unwrap_or_default();
        for rule in ["S3", "S5", "S10"] {
            self.check(rule, slot, broken != rule, || why.clone());
        }
    }

    /// S6: judged slots whose delete is truly under way, this one included.
    fn leaves_enough(&mut self, slot: &str, judged: bool) {
        let now = self.now;
        self.known(slot).judged = judged.then_some(now);
        // By a clock that was set, a delete may be taken for one that does not end, which counts
        // no more.
        if !judged || self.setup.has(Fault::ClockJump) {
            return;
        }
        let slots = self.setup.settings.slots.len();
        let most = self.configs.iter().map(|s| s.max_unavailable.of(slots)).max().unwrap_or(1);
        let is_under_way = |(zone, name): &Place, node: &Node| {
            let id = self.setup.settings.slots.get(name).map_or("", |slot| slot.filling.id());
            let request = self.cloud.queued.get(&(zone.clone(), id.to_owned()));
            let judged = self.truth.slots.get(name).and_then(|known| known.judged);
            request.map_or(node.state, |request| request.state) == "DELETING"
                && judged.is_some_and(|at| now - at < UNDER_WAY)
        };
        let nodes = self.cloud.nodes.iter().filter(|(place, _)| place.1 != slot);
        let others = nodes.filter(|(place, node)| is_under_way(place, node)).count();
        self.check("S6", slot, others < most, || format!("{others} others are, of {most}"));
    }

    /// S4, S21: a create that arrives in one zone while the slot's own node, or a request that may
    /// still be granted, is in another was not decided on a 404. In the same zone the API refuses it: a
    /// name exists once.
    fn is_alone(&mut self, slot: &str, zone: &str) {
        let others = self.known(slot).others.map(|at| wall(at, 0));
        let (now, within) = (wall(self.now, 0), self.shown_within() + Duration::from_secs(60));
        // Remains that the journal follows to their removal are no node of the slot.
        let told = self.shelf.durable(slot).ledger.strays;
        let is_its_own = |((at, name), node): &(&Place, &Node)| {
            let remains = is_dead(node) && told.contains_key(&Stray::key(at, name));
            let own = Some(self.identity(at, node).created) > others;
            let old = own && elapsed(node.created, now) > within;
            name == slot && at != zone && old && !remains && node.state != "DELETING"
        };
        let there = self.cloud.nodes.iter().find(is_its_own);
        let there = there.map(|(at, node)| (at.clone(), node.state));
        self.check("S4", slot, there.is_none(), || format!("in {zone}, although it is {there:?}"));
        let id = self.setup.settings.slots[slot].filling.id();
        let live = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"];
        let mut requests = self.cloud.queued.iter();
        let is_live =
            |queued: &Queued| live.contains(&queued.state) && Some(queued.created) > others;
        let there = requests
            .find(|((at, of), queued)| at != zone && of == id && is_live(queued))
            .map(|(at, queued)| (at.clone(), queued.state));
        self.check("S21", slot, there.is_none(), || format!("in {zone}, although it is {there:?}"));
    }
}
