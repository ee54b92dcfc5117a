//! The oracle: looks at everything that a watchdog reads, decides, writes and sends, knows what is true, and says which
//! invariant does not hold. What it needs it works out anew from what was delivered. Of the core it believes what that is doing
//! with a slot (its phase, a call under way, its hold and verdict) and, after a restart, what stands in the journal.
//!
//! Its bounds err on the watchdog's side where a crash may have taken something out of its memory, or where a read may be no
//! diagnosis.

pub mod deciding;
pub mod evidence;
pub mod journal;
pub mod liveness;
pub mod sending;
pub mod watch;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tpu_watchdog::model::action::{CallOutcome, Input, Reading};
use tpu_watchdog::model::condition::Kind;
use tpu_watchdog::model::failure::FailureClass;
use tpu_watchdog::model::fleet::{Fleet, elapsed};
use tpu_watchdog::model::lever::{Lever, Pull};
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::operation::OperationState;
use tpu_watchdog::model::recovery::Phase;
use tpu_watchdog::model::settings::Settings;
use tpu_watchdog::model::slot::SlotRecord;

use self::evidence::{Evidence, Shown};
use self::watch::{During, Get, Watch};
use crate::process::{EPOCH_MS, Tag, ms};
use crate::setup::{HOUR, Ms, Origin, Setup};

/// Of each slot so many GETs are remembered.
const GETS_KEPT: usize = 8;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// As in the list: `S1`, `L3`.
    pub name: &'static str,
    pub slot: String,
    pub message: String,
}

/// Creates of a zone and type that were refused.
#[derive(Default)]
pub struct Refusals {
    pub refused_at: Option<Timestamp>,
    pub trial_at: Option<Timestamp>,
    /// Which slot that was.
    pub trial: Option<String>,
    /// The last recovery there.
    pub recovered_at: Option<Ms>,
    /// Replacements that did not boot.
    pub unfit: Vec<(Timestamp, String)>,
    /// Some were refused at some time.
    pub ever: bool,
}

pub struct Oracle {
    pub violation: Option<Violation>,
    /// How often each invariant was looked at.
    pub checked: BTreeMap<&'static str, u64>,
    pub calm_since: Option<Ms>,
    /// The world has not changed for long: nothing may be mutated any more.
    pub settled: bool,
    pub late_mutations: Vec<(String, String)>,
    pub slots: BTreeMap<String, Watch>,
    settings: Settings,
    origins: BTreeMap<String, Origin>,
    bodies: BTreeMap<String, Map<String, Value>>,
    levers: BTreeMap<String, Lever>,
    /// When the store's levers were last read, in true time, and by whom.
    levers_read: Option<(Tag, Timestamp)>,
    /// Those among them that will do nothing.
    void: BTreeSet<String>,
    /// Pauses that are durable: of a slot, or of all.
    paused: BTreeMap<Option<String>, Option<Timestamp>>,
    breaker_open: bool,
    /// Judged slots that were condemned: when they became ripe.
    gusts: Vec<(Timestamp, String)>,
    /// When judged slots were condemned.
    judged: Vec<Timestamp>,
    /// When a person closed the breaker last.
    reset_at: Option<Timestamp>,
    /// The same, or before that where the clock was set back since: what was judged then may be younger than it looks.
    reset_no_later: Option<Timestamp>,
    refusals: BTreeMap<String, Refusals>,
    creates: VecDeque<Ms>,
    highest_epoch: u64,
    held_since: Ms,
    /// When the last write began that renewed the lock.
    renewed_at: Ms,
    ttl: Ms,
    /// Since when nobody has held the lock although somebody stands by.
    alone_since: Option<Ms>,
    /// The slots in the config that a process read last.
    configured: BTreeMap<usize, BTreeSet<String>>,
    /// Whose commits the store takes: what anybody else decides is never written.
    pub holder: Option<Tag>,
    last_wall: Option<Timestamp>,
    /// The journal was read: it may hold times of somebody whose clock is ahead.
    is_restored: bool,
    /// When the last listing began that a holder got.
    observed: Option<Timestamp>,
    /// Which slots counted under `max_unavailable` before the present turn.
    counted: Vec<String>,
    pub intents: u64,
}

impl Oracle {
    pub fn new(setup: &Setup) -> Oracle {
        let watch = |(name, slot): (&String, &tpu_watchdog::model::settings::SlotSettings)| {
            let evidence = Evidence::new(slot.policy.clone(), setup.settings.poll.max_gap, slot.job.is_some());
            (name.clone(), Watch::new(evidence))
        };
        Oracle {
            violation: None,
            checked: BTreeMap::new(),
            calm_since: None,
            settled: false,
            late_mutations: Vec::new(),
            slots: setup.settings.slots.iter().map(watch).collect(),
            settings: setup.settings.clone(),
            origins: setup.origins.clone(),
            bodies: setup.bodies.clone(),
            levers: BTreeMap::new(),
            levers_read: None,
            void: BTreeSet::new(),
            paused: BTreeMap::new(),
            breaker_open: false,
            gusts: Vec::new(),
            judged: Vec::new(),
            reset_at: None,
            reset_no_later: None,
            refusals: BTreeMap::new(),
            creates: VecDeque::new(),
            highest_epoch: 0,
            held_since: 0,
            renewed_at: 0,
            ttl: ms(setup.ttl),
            alone_since: None,
            configured: BTreeMap::new(),
            holder: None,
            last_wall: None,
            is_restored: false,
            observed: None,
            counted: Vec::new(),
            intents: 0,
        }
    }

    /// Looks at one rule.
    pub fn check(&mut self, name: &'static str, slot: &str, holds: bool, message: impl FnOnce() -> String) {
        *self.checked.entry(name).or_default() += 1;
        if !holds && self.violation.is_none() {
            self.violation = Some(Violation { name, slot: slot.to_owned(), message: message() });
        }
    }

    fn key(&self, zone: &str, slot: &str) -> String {
        let kind = self.bodies.get(slot).and_then(|b| b.get("acceleratorType")).and_then(Value::as_str).unwrap_or_default();
        format!("{zone} {kind}")
    }

    /// The holder died, and another one stands by.
    pub fn left_alone(&mut self, now: Ms) {
        self.alone_since = Some(now);
    }

    /// Somebody has the lock, by a take that began at `began`.
    pub fn holds(&mut self, epoch: u64, slots: &BTreeMap<String, SlotRecord>, began: Ms, now: Ms) {
        if let Some(since) = self.alone_since.take() {
            // Its last renewal is seen a look later: an eighth of the lease.
            let (took, most) = (now - since, self.ttl + self.ttl / 8 + 1_000);
            self.check("L4", "-", took <= most, || {
                format!("a dead holder's lock was taken after {took} ms, at most {most} are allowed")
            });
        }
        (self.held_since, self.renewed_at) = (now, began);
        let highest = self.highest_epoch;
        self.check("S9", "-", epoch > highest, || format!("epoch {epoch} was given out after {highest}"));
        self.highest_epoch = self.highest_epoch.max(epoch);
        self.forget_what_may_be_lost();
        self.restored(slots);
    }

    /// A write is durable that began then: it renews the lock.
    pub fn renewed(&mut self, began: Ms) {
        self.renewed_at = self.renewed_at.max(began);
    }

    /// A process is gone, or not the holder any more.
    pub fn gone(&mut self, pid: usize) {
        for watch in self.slots.values_mut() {
            watch.gets.remove(&pid);
        }
        self.forget_what_may_be_lost();
    }

    pub fn reloaded(&mut self, slots: &BTreeMap<String, SlotRecord>) {
        self.forget_what_may_be_lost();
        self.restored(slots);
    }

    /// What was not written is not known any more: it may be new once again.
    fn restored(&mut self, slots: &BTreeMap<String, SlotRecord>) {
        self.is_restored = true;
        for (name, watch) in &mut self.slots {
            let Some(record) = slots.get(name) else { continue };
            watch.evidence.restored(record);
            watch.retried = false;
            watch.best_step = watch.best_step.min(record.job.runs.best_step);
            watch.is_recorded(record);
            watch.passed = record.job.runs.set_aside.is_some();
            watch.run_began &= record.job.runs.began;
            // A label that was read just before the node went, and whose write failed, nobody can read again.
            watch.opted_out &= record.seen.as_ref().is_some_and(|seen| seen.opted_out);
            // A sick read that was not written did not interrupt its health.
            if let Some(since) = record.healthy_since {
                watch.healthy_since = Some(watch.healthy_since.map_or(since, |known| known.min(since)));
            }
            // The journal says that a create is owed, whatever was seen or read from a config since.
            if record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Gone) {
                watch.is_gone(0);
            }
            watch.owes_create |= record.recovery.as_ref().is_some_and(|r| matches!(r.phase, Phase::Gone | Phase::Creating));
        }
    }

    /// What was read since the last write may be forgotten by the watchdog.
    fn forget_what_may_be_lost(&mut self) {
        for watch in self.slots.values_mut() {
            watch.evidence.interrupted();
        }
    }

    /// A person made such a node in the place of another one.
    pub fn replaced_by_a_person(&mut self, slot: &str, before: Option<u64>, made: Option<u64>) {
        if let Some(watch) = self.slots.get_mut(slot) {
            watch.theirs.extend(made);
            if before.is_some_and(|uid| watch.strays.contains(&uid)) {
                watch.strays.extend(made);
            }
        }
    }

    /// These checkpoints of a slot's job are complete now.
    pub fn are_complete(&mut self, slot: &str, steps: &[u64]) {
        if let Some(watch) = self.slots.get_mut(slot) {
            watch.complete.extend(steps);
        }
    }

    /// A holder has read the levers that were in the store.
    pub fn levers_read(&mut self, tag: Tag, now: Timestamp) {
        self.levers_read = Some((tag, now));
    }

    /// Whether a person's pause holds a slot: one that is durable, or that its holder has read. What was pulled last counts.
    pub fn is_paused(&self, tag: Tag, slot: &str, wall: Timestamp) -> bool {
        let read = self.levers_read.filter(|(of, _)| *of == tag).map(|(_, at)| at);
        [None, Some(slot.to_owned())].into_iter().any(|whose| {
            let pulled = self.levers.values().filter(|lever| read.is_some_and(|read| lever.at <= read));
            let last = pulled.filter(|lever| match &lever.pull {
                Pull::Pause { slot, .. } | Pull::Resume { slot, .. } => *slot == whose,
                Pull::Retry { .. } | Pull::BreakerReset => false,
            });
            let until = match last.max_by_key(|lever| lever.at).map(|lever| &lever.pull) {
                Some(Pull::Pause { until, .. }) => Some(*until),
                Some(_) => None,
                None => self.paused.get(&whose).copied(),
            };
            until.is_some_and(|until| until.is_none_or(|until| wall < until))
        })
    }

    pub fn pulled_by_a_person(&mut self, lever: &Lever) {
        self.levers.insert(lever.id.clone(), lever.clone());
    }

    /// A GET was served; whether it lags behind is nothing that a watchdog could know.
    pub fn shows(&mut self, slot: &str, asked: Ms, stale: bool) {
        if let Some(watch) = self.slots.get_mut(slot) {
            watch.served_stale = Some((asked, stale));
        }
    }

    /// Something is delivered to a holder; `fleet` is what it knew before.
    pub fn comes_in(&mut self, tag: Tag, fleet: &Fleet, input: &Input, now: Ms, asked: Ms, wall: Timestamp) {
        // What somebody reads who has lost the lock, and does not know it yet, is nothing that the holder goes by; nor is its clock.
        let holds = self.holder == Some(tag);
        if holds {
            self.keep_up(wall, now);
        }
        self.counted.clear();
        let counts = |record: &&SlotRecord| deciding::counts(record, deciding::hold(fleet, &record.name));
        self.counted.extend(fleet.slots.values().filter(|r| r.recovery.is_some()).filter(counts).map(|r| r.name.clone()));
        match input {
            Input::Polled(poll) if holds => {
                let lacks = |zone: &String, name: &String| {
                    let read = poll.listings.iter().filter(|listing| listing.zone == *zone).find_map(|l| l.result.as_ref().ok());
                    read.is_some_and(|(nodes, unreachable)| unreachable.is_empty() && nodes.iter().all(|view| view.node != *name))
                };
                for listing in &poll.listings {
                    let Ok((nodes, unreachable)) = &listing.result else {
                        for record in fleet.slots.values().filter(|record| record.zone == listing.zone) {
                            self.slots.entry(record.name.clone()).and_modify(|watch| watch.evidence.unseen());
                        }
                        continue;
                    };
                    // Listings are in the order of names, as slots are: one walk along all three.
                    let (mut nodes, mut records) = (nodes.iter().peekable(), fleet.slots.values().peekable());
                    for (name, watch) in &mut self.slots {
                        let order =
                            |view: &&Arc<NodeView>| if watch.has_shown(view) { Ordering::Equal } else { view.node.cmp(name) };
                        let view = loop {
                            match nodes.peek().map(order) {
                                Some(Ordering::Less) => drop(nodes.next()),
                                Some(Ordering::Equal) => break nodes.next(),
                                Some(Ordering::Greater) | None => break None,
                            }
                        };
                        let record = loop {
                            match records.peek().map(|record| record.name.cmp(name)) {
                                Some(Ordering::Less) => drop(records.next()),
                                Some(Ordering::Equal) => break records.next(),
                                Some(Ordering::Greater) | None => break None,
                            }
                        };
                        let its_zone = record.is_some_and(|r| r.zone == listing.zone);
                        if its_zone && (view.is_none() || unreachable.contains(&listing.zone)) {
                            watch.evidence.unseen();
                        }
                        if view.is_none() && its_zone {
                            watch.evidence.not_listed(poll.began, wall, unreachable.is_empty());
                        }
                        let (Some(view), Some(record)) = (view, record) else { continue };
                        // Where nothing is known of it, or it is gone where it was, it may be in any of its zones.
                        let is_gone =
                            || fleet.memory.get(name).is_some_and(|memory| memory.absence_confirmed) && lacks(&record.zone, name);
                        let anywhere = || record.recovery.is_none() && (record.incarnation.is_none() || is_gone());
                        let is_its = |zone: &String| fleet.settings.slots.get(name).is_some_and(|slot| slot.zones.contains(zone));
                        if its_zone || (anywhere() && is_its(&listing.zone)) {
                            watch.reads(view, (poll.began, self.observed), asked, wall, During::of(fleet, record));
                        }
                    }
                }
                if poll.listings.iter().any(|listing| listing.result.is_ok()) {
                    self.observed = self.observed.max(Some(poll.began.min(wall)));
                }
            }
            Input::Got { slot, began, reading } => {
                let Some(watch) = self.slots.get_mut(slot) else { return };
                let stale = watch.served_stale.is_some_and(|(at, stale)| at == asked && stale);
                let state = match reading {
                    Reading::Node(view) => view.state.as_str().to_owned(),
                    _ => String::new(),
                };
                let shown = match reading {
                    Reading::Unread(_) => return,
                    Reading::Absent => {
                        if holds {
                            watch.is_gone(asked);
                            watch.evidence.absent(*began, wall);
                        }
                        None
                    }
                    Reading::Node(view) => {
                        let during = fleet.slots.get(slot).map(|record| During::of(fleet, record)).unwrap_or_default();
                        if holds {
                            watch.reads(view, (*began, self.observed), asked, wall, during);
                        }
                        Some((view.incarnation.clone(), Shown::of(view)))
                    }
                };
                watch.unknown &= watch.last_sent.is_some_and(|sent| asked < sent);
                let get = Get { tag, asked, began: *began, state, shown, stale };
                watch.got.truncate(GETS_KEPT - 1);
                watch.got.push_front(get.clone());
                // An answer that was overtaken by a later one verifies nothing.
                if watch.gets.get(&tag.pid).is_none_or(|get| get.tag != tag || get.asked <= asked) {
                    watch.gets.insert(tag.pid, get);
                }
            }
            Input::Attributes { slot, of, result: Ok(reports), .. } if holds => {
                let Some(watch) = self.slots.get_mut(slot) else { return };
                let Some(record) = fleet.slots.get(slot).filter(|r| r.incarnation.as_ref() == Some(of)) else { return };
                let workers = record.seen.as_ref().map_or(1, |s| s.workers.max(1));
                // An answer that lacks workers says nothing about those.
                let whole = reports.len() >= workers;
                if whole && watch.heard.get(&tag.pid).is_none_or(|(of, before)| *of != tag || *before <= asked) {
                    watch.heard.insert(tag.pid, (tag, asked));
                }
                watch.evidence.reports(of, reports, workers, wall);
                // What stands among a node's attributes was written by its own workers.
                for report in reports {
                    watch.run_began |= report.heartbeat.is_some();
                    let step = report.step.as_ref().and_then(|b| u64::try_from(b.value).ok());
                    let before = watch.best_step.max(watch.order.and_then(|(_, step)| step));
                    if step > before {
                        watch.best_step = step;
                        (watch.fruitless, watch.progressed) = (0, true);
                    }
                }
            }
            Input::Surveyed { slot, began, result: Ok(survey), .. } => {
                let Some(watch) = self.slots.get_mut(slot) else { return };
                // What was asked before a checkpoint was passed over may still show it.
                let newest = survey.newest.as_ref().map(|c| c.step).filter(|_| asked >= watch.passed_over_at && holds);
                if holds && asked >= watch.passed_over_at {
                    let lacks = newest < watch.newest_checkpoint;
                    watch.lacks_since = lacks.then(|| watch.lacks_since.unwrap_or(*began).min(wall));
                }
                if newest > watch.newest_checkpoint {
                    watch.newest_checkpoint = newest;
                    (watch.fruitless, watch.progressed) = (0, true);
                    watch.attempts.retain(|(_, kind)| *kind == Kind::Lost);
                }
            }
            Input::Called { slot, outcome } => {
                let Some(watch) = self.slots.get_mut(slot) else { return };
                watch.answered = watch.answered.max(now);
                match outcome {
                    CallOutcome::Unknown(_) => {}
                    CallOutcome::Refused(failure) => {
                        watch.unknown &= watch.last_sent != Some(asked);
                        let deleting =
                            fleet.slots.get(slot).and_then(|r| r.recovery.as_ref()).map(|r| r.phase) == Some(Phase::Deleting);
                        if deleting && failure.class == FailureClass::NotFound {
                            watch.is_gone(asked);
                        }
                    }
                    CallOutcome::Accepted(_) => watch.unknown &= watch.last_sent != Some(asked),
                    CallOutcome::NotSent(_) => {}
                }
            }
            Input::Operated { slot, result: Ok(state), .. } => {
                let Some(watch) = self.slots.get_mut(slot) else { return };
                let phase = fleet.slots.get(slot).and_then(|r| r.recovery.as_ref()).map(|r| r.phase);
                if matches!(
                    (phase, state),
                    (Some(Phase::Deleting), OperationState::Succeeded) | (Some(Phase::Creating), OperationState::Failed(_))
                ) {
                    // What was read before this was known may show what was before the call, or in the middle of it.
                    watch.answered = watch.answered.max(now);
                    watch.is_gone(asked);
                }
            }
            Input::Configured(settings) => {
                self.configured.insert(tag.pid, settings.slots.keys().cloned().collect());
                // What left the config is forgotten, sooner or later, and begins anew when it comes back.
                let anew = |name: &String| !settings.slots.contains_key(name) || !fleet.slots.contains_key(name);
                for (name, watch) in self.slots.iter_mut().filter(|(name, _)| anew(name)) {
                    watch.attempts.clear();
                    (watch.fruitless, watch.run_began, watch.set_aside) = (0, false, true);
                    (watch.passed, watch.open, watch.booted, watch.result_owed) = (false, false, false, false);
                    (watch.best_step, watch.newest_checkpoint, watch.order) = (None, None, None);
                    watch.evidence.interrupted();
                    watch.evidence.forget_what_was_seen();
                    (watch.retried, watch.lacks_since) = (false, None);
                    // What owes a create is kept until then, with its checkpoint.
                    let kept = fleet.slots.get(name).filter(|r| r.recovery.as_ref().is_some_and(|r| r.owes_create()));
                    watch.owes_create &= kept.is_some();
                    if let Some(record) = kept {
                        watch.is_recorded(record);
                    }
                }
            }
            Input::Pulled(levers) if holds => {
                for lever in levers {
                    let about = match &lever.pull {
                        Pull::Pause { slot, .. } | Pull::Resume { slot, .. } => slot.as_ref(),
                        Pull::Retry { slot, .. } => Some(slot),
                        Pull::BreakerReset => None,
                    };
                    // Long after the faults have stopped, and with the same holder, one poll is enough.
                    let pulled = lever.at.as_millisecond() - EPOCH_MS;
                    if self.calm_since.is_some_and(|calm| pulled >= calm + HOUR) && self.held_since <= pulled {
                        let (took, every) = (now - pulled, ms(self.settings.poll.every));
                        self.check("L7", "-", took <= every + 1_000, || format!("{:?} works after {took} ms", lever.pull));
                    }
                    // What is about a slot that is not configured does nothing, but for a pause: that counts when it is back.
                    let left = |slot: &String| match lever.pull {
                        Pull::Pause { .. } => true,
                        Pull::Resume { .. } => fleet.ledger.left_paused.contains_key(slot),
                        _ => false,
                    };
                    if about.is_some_and(|slot| !fleet.slots.contains_key(slot) && !left(slot)) {
                        self.void.insert(lever.id.clone());
                    } else {
                        self.void.remove(&lever.id);
                        self.takes_effect(&lever.pull, now);
                    }
                }
            }
            _ => {}
        }
    }

    /// A clock that was set back, or a holder whose clock is behind the last one's: what lies in the future is now.
    fn keep_up(&mut self, wall: Timestamp, now: Ms) {
        // Forgotten by a clock that is ahead, they stay forgotten.
        self.judged.retain(|at| elapsed(*at, wall) < deciding::HOURLY);
        let restored = std::mem::take(&mut self.is_restored);
        let was_set_back = self.last_wall.replace(wall).is_some_and(|last| last > wall);
        if !was_set_back && !restored {
            return;
        }
        for watch in self.slots.values_mut() {
            if was_set_back {
                // The last call seems to have been answered just now: what was read before that may be from before the call.
                watch.answered = watch.answered.max(now);
            }
            watch.evidence.set_back(wall);
            watch.healthy_since = watch.healthy_since.map(|at| at.min(wall));
            watch.lacks_since = watch.lacks_since.map(|at| at.min(wall));
            watch.creating_since = watch.creating_since.map(|at| at.min(wall));
            watch.attempts.iter_mut().for_each(|(at, _)| *at = (*at).min(wall));
        }
        self.observed = self.observed.map(|at| at.min(wall));
        self.reset_no_later = self.reset_no_later.map(|at| at.min(wall));
        self.gusts.iter_mut().for_each(|(at, _)| *at = (*at).min(wall));
        self.judged.iter_mut().for_each(|at| *at = (*at).min(wall));
        for refusals in self.refusals.values_mut() {
            refusals.refused_at = refusals.refused_at.map(|at| at.min(wall));
            refusals.trial_at = refusals.trial_at.map(|at| at.min(wall));
            refusals.unfit.iter_mut().for_each(|(at, _)| *at = (*at).min(wall));
        }
    }

    /// What loosens takes effect at once; what holds only when it is durable.
    fn takes_effect(&mut self, pull: &Pull, now: Ms) {
        match pull {
            Pull::Resume { slot, adopt } => {
                self.paused.remove(slot);
                if let Some(watch) = slot.as_ref().filter(|_| *adopt).and_then(|slot| self.slots.get_mut(slot)) {
                    watch.adopted = true;
                }
            }
            Pull::Retry { slot, from } => {
                if let Some(watch) = self.slots.get_mut(slot) {
                    // From there on, and nothing before it.
                    if let Some(from) = from {
                        watch.newest_checkpoint = Some(*from).filter(|from| *from > 0);
                        watch.best_step = watch.best_step.min(Some(*from));
                        watch.passed_over_at = watch.passed_over_at.max(now);
                    }
                    watch.passed = false;
                    watch.attempts.clear();
                    watch.fruitless = 0;
                    watch.run_began = false;
                    (watch.set_aside, watch.retried, watch.lacks_since) = (true, true, None);
                }
            }
            Pull::BreakerReset => {
                self.breaker_open = false;
                (self.reset_at, self.reset_no_later) = (self.last_wall, self.last_wall);
                self.gusts.clear();
                self.refusals.values_mut().for_each(|r| r.unfit.clear());
                for watch in self.slots.values_mut().filter(|watch| watch.open && !watch.booted) {
                    watch.forgiven = watch.evidence.is_dead_inside() || watch.evidence.ripe_since.is_some();
                }
            }
            Pull::Pause { slot, until } => {
                // One that ends sooner takes the place of the one that was.
                if let (Some(before), Some(_)) = (self.paused.get_mut(slot), until) {
                    *before = before.map_or(*until, |before| Some(before).min(*until));
                }
            }
        }
    }
}
