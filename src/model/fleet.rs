//! The fleet: everything that the watchdog knows, and exactly what the store holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::command::Pause;
use super::condition::Condition;
use super::filling::{Deletable, Filling};
use super::ids::Incarnation;
use super::lease::Leader;
use super::lookup::Deletion;
use super::node::NodeView;
use super::relaunch::{Amendment, Patch};
use super::settings::{Settings, SlotSettings};
use super::slot::{Seen, SlotRecord};
use super::step::Call;
use super::training::{JobKind, Training};
use super::traits::BudgetOf;

/// Budgets and counts that outlive restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// When judged recoveries began, within the last hour.
    pub judged: Vec<Timestamp>,
    /// When creates were sent, within the last minute.
    pub creates: Vec<Timestamp>,
    /// A beacon was received in this project before: guest attributes work here.
    pub beacons_seen: bool,
    /// Hosts in this project have followed a run order that was written while they ran: such orders reach them.
    pub orders_followed: bool,
    /// The most chips that a host of each accelerator type has reported here.
    pub chips: BTreeMap<String, u32>,
    /// Pools in which creates are refused for want of capacity, or replacements fail.
    pub pools: BTreeMap<String, Pool>,
    /// Replacements that failed to boot, or to make progress, by pool: which slot's, and when.
    pub unfit: BTreeMap<String, Vec<Unfit>>,
    /// The end of the last poll in which every zone was read.
    pub observed_at: Option<Timestamp>,
    /// The end of the last poll in which at least one zone was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_at: Option<Timestamp>,
    /// Slots whose grace was over, within the storm's window.
    pub storm: Vec<Gust>,
    /// Open since, and why: no judged slot is deleted until an operator resets it.
    pub breaker: Option<Breaker>,
    /// Every slot is paused.
    pub paused: Option<Pause>,
    /// Pauses of slots that are not in the config and of which nothing else is known: one counts again
    /// when its slot is back.
    pub left_paused: BTreeMap<String, Pause>,
    /// Nodes and creates of ours that no slot owns, by zone and name.
    pub strays: BTreeMap<String, Stray>,
    /// The process that took the lock last.
    pub leader: Option<Leader>,
}

/// A node, or a create, of ours that no slot owns (S21).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stray {
    /// Its zone.
    pub zone: String,
    /// The node's name, and that of the slot that it was made for.
    pub name: String,
    /// Since when it is followed.
    pub since: Timestamp,
    /// Why no slot owns it.
    pub why: String,
    /// Its state as it was last listed; none while it was not seen.
    pub state: Option<String>,
    /// The incarnation that was seen.
    pub incarnation: Option<Incarnation>,
    /// The id of the queued resource that was asked for: it may be granted for as long as it is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The slot that it was asked for, where its name is not that: ahead of the end of the slot's capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// It is a training job, and an elder one of its lineage lives and goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<Twin>,
    /// Its delete, once one was decided: of a request that was called off, or with `orphans = "dead"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<Removal>,
    /// The order to wait that it was sent …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Amendment>,
    /// … and in which state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_in: Option<String>,
}

/// A training job that lives while an elder one of its lineage does. Its name is its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Twin {
    /// Its collection.
    pub kind: JobKind,
    /// The slot that the lineage is of.
    pub slot: String,
}

/// The delete of a stray that can't run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// When it was decided.
    pub at: Timestamp,
    /// The incarnation that is deleted.
    pub incarnation: Incarnation,
    /// The state that the GET before it showed.
    pub state: String,
    /// How far it is; none when it was refused or not sent.
    pub call: Option<Call>,
    /// Why it was refused or not sent.
    pub failure: Option<String>,
}

impl Stray {
    /// Where a stray of this zone and name is kept in the ledger.
    pub fn key(zone: &str, name: &str) -> String {
        format!("{zone}/{name}")
    }

    /// A node of which nothing is known yet.
    pub fn followed(zone: String, name: String, why: String, since: Timestamp) -> Stray {
        Stray {
            zone,
            name,
            since,
            why,
            state: None,
            incarnation: None,
            request: None,
            slot: None,
            twin: None,
            removal: None,
            told: None,
            told_in: None,
        }
    }

    /// The slot that it was made for, by the name in its metadata.
    pub fn made_for(&self) -> &str {
        self.slot.as_ref().unwrap_or(&self.name)
    }

    /// The kind of thing that is read, and deleted.
    pub fn filling(&self) -> Filling {
        if let Some(twin) = &self.twin {
            return Filling::Training(Arc::new(Training::one(twin.kind, &self.zone, &self.name)));
        }
        self.request.clone().map_or(Filling::Node, Filling::QueuedResource)
    }

    /// Whether a slot of its name would be filled by it, as the config is now.
    pub fn fills(&self, settings: &Settings) -> bool {
        let slot = settings.slots.get(&self.name);
        let same = |slot: &SlotSettings| slot.filling == self.filling();
        // A plain node of a slot that is a queued resource by now fills nothing.
        if self.request.is_none() { slot.is_none_or(same) } else { slot.is_some_and(same) }
    }

    /// The slot that it belongs to, as the config is now: that of its name, or another one with the same
    /// queued resource.
    pub fn slot<'a>(&self, settings: &'a Settings) -> Option<&'a str> {
        let own = settings.slots.get_key_value(&self.name).filter(|_| self.fills(settings));
        let filling = self.filling();
        let other = || {
            let same =
                |slot: &SlotSettings| slot.filling == filling && slot.zones.contains(&self.zone);
            settings.slots.iter().find(|(_, slot)| self.request.is_some() && same(slot))
        };
        own.or_else(other).map(|(name, _)| name.as_str())
    }

    /// Whether a training job is a twin still: an elder one of its lineage is its slot's, and may be at work.
    pub fn has_elder(&self, slots: &BTreeMap<String, SlotRecord>) -> bool {
        let slot = self.twin.as_ref().and_then(|twin| slots.get(&twin.slot));
        let goes_on = |seen: &Seen| !seen.ended && seen.deletable == Deletable::Now;
        let elder = slot.filter(|slot| slot.seen.as_ref().is_some_and(goes_on));
        let elder = elder.and_then(|slot| slot.incarnation.as_ref());
        elder
            .zip(self.incarnation.as_ref())
            .is_some_and(|(elder, twin)| (elder.created, &elder.id) < (twin.created, &twin.id))
    }

    /// Whether this very patch of it is journaled as about to be sent (S11).
    pub fn intends(&self, patch: &Patch) -> bool {
        let intended = |told: &&Amendment| told.call == Some(Call::Intended);
        self.told.as_ref().filter(intended).is_some_and(|told| told.patch == *patch)
    }

    /// Whether a delete of it may be under way: its name is not free.
    pub fn is_being_removed(&self) -> bool {
        self.removal.as_ref().is_some_and(|removal| removal.call.is_some())
    }
}

/// One slot that was judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gust {
    /// When.
    pub at: Timestamp,
    /// Which.
    pub slot: String,
    /// An operator has seen it and closed the breaker: this trouble of this slot opens it no more.
    #[serde(default)]
    pub forgiven: bool,
}

/// The open storm breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// Since when.
    pub opened_at: Timestamp,
    /// The reason why it opened, in words.
    pub why: String,
    /// Whose trouble it was. That of TPUs holds training jobs as well; not the other way round.
    #[serde(default, skip_serializing_if = "BudgetOf::is_of_tpus")]
    pub of: BudgetOf,
}

impl Breaker {
    /// Whether it holds a judged slot of this budget.
    pub fn holds(&self, budget: BudgetOf) -> bool {
        self.of == BudgetOf::Tpus || self.of == budget
    }
}

/// Trouble in one pool: a zone or reservation, an accelerator type, a provisioning model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Creates are refused for want of capacity.
    pub short: Option<Short>,
    /// Since when replacements of two slots have failed within an hour.
    pub failing: Option<Timestamp>,
    /// Since when a queued resource of ours has waited in its queue, once that is a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<Timestamp>,
    /// The last judged delete that was tried in spite of it (S14).
    pub trial_at: Option<Timestamp>,
}

impl Pool {
    /// Whether nothing is wrong with it.
    pub fn is_sound(&self) -> bool {
        self.short.is_none() && self.failing.is_none() && self.queued.is_none()
    }
}

/// A stock-out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Short {
    /// The first refusal.
    pub since: Timestamp,
    /// The last.
    pub last: Timestamp,
    /// Refusals so far.
    pub refusals: u32,
    /// The next create there probes the pool, not before this time.
    pub probe_at: Timestamp,
}

/// A replacement that failed to boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    /// When it was condemned.
    pub at: Timestamp,
    /// Whose it was.
    pub slot: String,
}

/// Reads and calls that are under way: not stored, since a restart ends them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pending {
    /// A GET of the node.
    Node,
    /// A delete or create.
    Call,
    /// A look at an operation.
    Operation,
    /// Guest attributes.
    Attributes,
    /// A checkpoint listing.
    Checkpoints,
    /// Whether a create could follow.
    CreateCheck,
    /// The delete operations of its name.
    Deletions,
}

/// The memory of a slot between inputs; it need not survive a restart.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// When the last successful read began.
    pub last_read: Option<Timestamp>,
    /// The question about a create that was asked last.
    pub create_asked: String,
    /// Fingerprint of the node as it was last taken in.
    pub shown: Option<u64>,
    /// The last successful read showed the node.
    pub is_there: bool,
    /// Guest attributes could not be read the last time: told once.
    pub attributes_failing: bool,
    /// A worker's startup script fails: told once.
    pub setup_failing: bool,
    /// Since when this process has asked for answers that a delete could rest on …
    pub asks_since: Option<Timestamp>,
    /// … and whether those that came were none.
    pub unheard: bool,
    /// Guest attributes were asked for by this process.
    pub asked_attributes: bool,
    /// They were answered, or could not be read.
    pub answered: bool,
    /// When the newest reports of all workers that were taken in were asked for.
    pub heard: Option<Timestamp>,
    /// When checkpoints were last asked for.
    pub asked_checkpoints: Option<Timestamp>,
    /// When the last complete survey was started.
    pub surveyed_at: Option<Timestamp>,
    /// Why a create may not rest on the last survey.
    pub survey_failure: Option<String>,
    /// The last survey was complete, and lacked the recorded checkpoint and anything newer.
    pub went_back: bool,
    /// Whether its specification can be created again as the config wants it, or why not, once that
    /// was looked at.
    pub acceptable: Option<Result<(), String>>,
    /// A GET that confirmed the present condition of exactly this incarnation (or its absence).
    pub confirmed: Option<Confirmed>,
    /// The reads and calls under way.
    pub pending: BTreeSet<Pending>,
    /// The count of polls when the confirming GET was last asked for: one poll asks for it at most
    /// once.
    pub asked_in_poll: u64,
    /// When a GET was last asked for by a recovery.
    pub looked_at: Option<Timestamp>,
    /// The end of its training job, as a GET showed it: lists show what lives.
    pub ended: Option<Arc<NodeView>>,
    /// When the newest complete lists that show no live job of its lineage were begun (S24).
    pub none_live: Option<Timestamp>,
    /// A GET answered 404 since the node was last seen.
    pub absence_confirmed: bool,
    /// A GET showed its request ACTIVE and none of the nodes, as every listing since.
    pub emptiness_confirmed: bool,
    /// Looks at an operation that found neither the operation nor the node, in a row.
    pub vanished: u32,
    /// Why the operation under way could not be read the last time.
    pub operation_lost: Option<String>,
    /// The delete operations of its node, looked up once each time it is missing; empty where they
    /// can't be listed.
    pub deletions: Option<Vec<Deletion>>,
    /// How often they could not be listed since it is missing.
    pub deletions_unread: u32,
    /// GETs in a row that took longer than a confirmation may be old.
    pub slow_gets: u32,
    /// The words of the present decision are not written yet.
    pub reworded: bool,
    /// The decision last told, so that it is told once.
    pub told: Option<(&'static str, &'static str)>,
}

/// The confirming read of S1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    /// When the GET was sent.
    pub began: Timestamp,
    /// The incarnation that it showed; none for a 404.
    pub incarnation: Option<Incarnation>,
    /// The condition that it showed.
    pub condition: Condition,
}

/// Everything that the watchdog knows.
#[derive(Debug)]
pub struct Fleet {
    /// The user's settings.
    pub settings: Settings,
    /// The slots, by name.
    pub slots: BTreeMap<String, SlotRecord>,
    /// Slots that left the config within the last 30 days: kept for the day on which they are back.
    pub left: BTreeMap<String, SlotRecord>,
    /// Budgets.
    pub ledger: Ledger,
    /// Per slot, and for each one of them, what a restart may forget.
    pub memory: BTreeMap<String, Memory>,
    /// Strays of which a GET is under way, by their keys.
    pub looked_for: BTreeSet<String>,
    /// Slots changed since the last commit.
    pub dirty: BTreeSet<String>,
    /// Slots whose specification changed since the last commit.
    pub dirty_specs: BTreeSet<String>,
    /// The ledger changed since the last commit.
    pub dirty_ledger: bool,
    /// Polls applied.
    pub polls: u64,
    /// The API had enough of reads of guest attributes: fewer are asked for until then.
    pub attributes_slowed: Option<Timestamp>,
    /// The time of the last turn.
    pub stepped_at: Option<Timestamp>,
    /// The journal held what can't be: nothing is asserted of such a fleet.
    pub damaged: bool,
}

/// Slots that left the config, and the others.
pub fn split(
    slots: BTreeMap<String, SlotRecord>,
) -> (BTreeMap<String, SlotRecord>, BTreeMap<String, SlotRecord>) {
    slots.into_iter().partition(|(_, record)| record.left_at.is_some())
}

impl SlotSettings {
    /// The slot as it is filled: by what was asked for ahead, where that has taken the place of the queued resource that the
    /// config names.
    #[must_use]
    pub fn filled(mut self, record: Option<&SlotRecord>) -> SlotSettings {
        let by = record.and_then(|record| record.filled_by.as_ref());
        if let (Some(by), Filling::QueuedResource(id)) = (by, &mut self.filling)
            && *id == by.of
        {
            id.clone_from(&by.id);
        }
        self
    }
}

impl Settings {
    /// The settings with each slot as it is filled.
    #[must_use]
    pub fn filled(mut self, records: &BTreeMap<String, SlotRecord>) -> Settings {
        let slots = self.slots.into_iter();
        self.slots =
            slots.map(|(name, slot)| (name.clone(), slot.filled(records.get(&name)))).collect();
        self
    }
}

impl Fleet {
    /// A fleet from what the store held.
    pub fn new(settings: Settings, slots: BTreeMap<String, SlotRecord>, ledger: Ledger) -> Self {
        let (left, slots) = split(slots);
        let settings = settings.filled(&slots).filled(&left);
        let memory: BTreeMap<_, _> =
            slots.keys().map(|name| (name.clone(), Memory::default())).collect();
        Fleet {
            settings,
            slots,
            left,
            ledger,
            memory,
            looked_for: BTreeSet::new(),
            dirty: BTreeSet::new(),
            dirty_specs: BTreeSet::new(),
            dirty_ledger: false,
            polls: 0,
            attributes_slowed: None,
            stepped_at: None,
            damaged: false,
        }
    }
}
