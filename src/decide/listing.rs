//! A finished poll: each slot's reading among the listings of all zones. A zone that was not read
//! in every part gives no reading.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::action::{Listing, Poll, Reading};
use crate::model::event::What;
use crate::model::fleet::{Fleet, Memory};
use crate::model::node::NodeView;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;

use super::identity::Source;
use super::observe::observe;
use super::turn::Turn;

/// Applies a poll.
pub fn polled(fleet: &mut Fleet, poll: Poll, turn: &mut Turn) {
    fleet.polls += 1;
    let (mut listed, complete) = Listed::new(poll.listings);
    let mut readings: Vec<(String, Reading)> = Vec::new();
    for (name, record) in &mut fleet.slots {
        let slot = fleet.settings.slots.get(name);
        if let (Some(slot), Some(memory)) = (slot, fleet.memory.get_mut(name))
            && follow(record, memory, slot, &mut listed, turn)
        {
            fleet.dirty.insert(name.clone());
        }
        readings.push((name.clone(), listed.reading(record, slot)));
    }
    for (name, reading) in readings {
        observe(fleet, &name, reading, poll.began, Source::List, turn);
    }
    if complete {
        fleet.ledger.observed_at = Some(turn.now);
        fleet.dirty_ledger = true;
    }
}

/// The node of a slot with several zones may be in another one than last time. Returns whether it
/// was moved there by somebody else.
fn follow(
    record: &mut SlotRecord,
    memory: &mut Memory,
    slot: &SlotSettings,
    listed: &mut Listed,
    turn: &mut Turn,
) -> bool {
    if record.recovery.is_some() {
        return false;
    }
    // Without a node yet it may have been created in any of them.
    if record.incarnation.is_none()
        && let Some(zone) = listed.zone_of(slot)
    {
        record.zone.clone_from(zone);
    }
    let gone = listed.was_read(&record.zone)
        && memory.absence_confirmed
        && listed.nodes.get(&record.zone, &slot.name).is_none();
    let Some(zone) = listed.zone_of(slot).filter(|_| gone) else { return false };
    // A GET says that it is gone where it was: it was made where it may be, too.
    let message = format!("the node is in {zone} now, and no longer in {}", record.zone);
    turn.tell(record, What::Note, message);
    record.zone.clone_from(zone);
    (record.incarnation, record.suspicion) = (None, None);
    // That it is absent was said of where it was.
    (memory.absence_confirmed, memory.confirmed, memory.last_read) = (false, None, None);
    true
}

/// The answers of a poll.
struct Listed {
    nodes: Nodes,
    // Zones that were not read, `-` for all, and why.
    unread: BTreeMap<String, String>,
    // One listing of all zones was answered.
    read_all: bool,
}

impl Listed {
    /// Also returns whether every zone was read.
    fn new(listings: Vec<Listing>) -> (Listed, bool) {
        let (mut nodes, mut unread, mut read_all) = (Vec::new(), BTreeMap::new(), false);
        for Listing { zone, result } in listings {
            match result {
                Ok((found, unreachable)) => {
                    read_all |= zone == "-";
                    let why = "the API could not reach the zone";
                    unread.extend(unreachable.into_iter().map(|zone| (zone, why.to_owned())));
                    nodes.extend(found);
                }
                Err(failure) => {
                    unread.insert(zone, format!("the listing failed: {failure}"));
                }
            }
        }
        let complete = unread.is_empty();
        (Listed { nodes: Nodes::new(nodes), unread, read_all }, complete)
    }

    fn was_read(&self, zone: &str) -> bool {
        !self.unread.contains_key(zone) && (self.read_all || !self.unread.contains_key("-"))
    }

    /// The first of a slot's zones with a node of its name.
    fn zone_of<'s>(&mut self, slot: &'s SlotSettings) -> Option<&'s String> {
        slot.zones.iter().find(|zone| self.nodes.get(zone, &slot.name).is_some())
    }

    /// The reading that the poll gives of a slot.
    fn reading(&mut self, record: &SlotRecord, slot: Option<&SlotSettings>) -> Reading {
        let found = self.nodes.get(&record.zone, &record.name);
        let all = if self.read_all { None } else { self.unread.get("-") };
        let mut unread = self.unread.get(&record.zone).or(all);
        if found.is_none() && record.incarnation.is_none() && record.recovery.is_none() {
            // It may live in another of its zones, one that could not be read.
            let mut zones = slot.into_iter().flat_map(|slot| &slot.zones);
            unread = unread.or_else(|| zones.find_map(|zone| self.unread.get(zone)));
        }
        match (unread, found) {
            (Some(why), _) => Reading::Unread(why.clone()),
            (None, Some(view)) => Reading::Node(Arc::clone(view)),
            (None, None) => Reading::Absent,
        }
    }
}

/// The nodes of a poll, found by zone and name. In the order of names first, as slots are looked
/// up: the next one is mostly the next here, whatever zones there are.
struct Nodes {
    sorted: Vec<Arc<NodeView>>,
    next: usize,
}

impl Nodes {
    fn new(mut nodes: Vec<Arc<NodeView>>) -> Nodes {
        let order = |a: &Arc<NodeView>, b: &Arc<NodeView>| {
            a.node.cmp(&b.node).then_with(|| a.zone.cmp(&b.zone))
        };
        // The API lists a zone in this order, mostly.
        if !nodes.is_sorted_by(|a, b| order(a, b).is_lt()) {
            nodes.sort_by(order);
            // Of one that is listed twice the last counts.
            nodes.dedup_by(|later, kept| {
                let twice = order(later, kept).is_eq();
                if twice {
                    std::mem::swap(later, kept);
                }
                twice
            });
        }
        Nodes { sorted: nodes, next: 0 }
    }

    fn get(&mut self, zone: &str, name: &str) -> Option<&Arc<NodeView>> {
        let is = |view: &Arc<NodeView>| view.node == name && view.zone == zone;
        if !self.sorted.get(self.next).is_some_and(is) {
            self.next = self
                .sorted
                .partition_point(|view| (view.node.as_str(), view.zone.as_str()) < (name, zone));
            if !self.sorted.get(self.next).is_some_and(is) {
                return None;
            }
        }
        self.next += 1;
        self.sorted.get(self.next - 1)
    }
}
