//! A finished poll: each slot's reading among the listings of all zones. A zone that was not read
//! in every part gives no reading.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::action::{Poll, Reading};
use crate::model::event::What;
use crate::model::fleet::Fleet;
use crate::model::node::NodeView;

use super::identity::Source;
use super::observe::observe;
use super::turn::Turn;

/// Applies a poll.
pub fn polled(fleet: &mut Fleet, poll: Poll, turn: &mut Turn) {
    fleet.polls += 1;
    let mut complete = true;
    let mut nodes: Vec<Arc<NodeView>> = Vec::new();
    let mut unread: BTreeMap<String, String> = BTreeMap::new();
    let mut read_all = false;
    for listing in poll.listings {
        match listing.result {
            Ok((found, unreachable)) => {
                read_all |= listing.zone == "-";
                for zone in unreachable {
                    complete = false;
                    unread.insert(zone, "the API could not reach the zone".to_owned());
                }
                nodes.extend(found);
            }
            Err(failure) => {
                complete = false;
                unread.insert(listing.zone, format!("the listing failed: {failure}"));
            }
        }
    }
    let mut nodes = Nodes::new(nodes);
    let mut readings: Vec<(String, Reading)> = Vec::new();
    for (name, record) in &mut fleet.slots {
        let slot = fleet.settings.slots.get(name);
        let mut memory = fleet.memory.get_mut(name);
        // A slot with several zones and no node yet may have been created in any of them.
        if record.incarnation.is_none()
            && record.recovery.is_none()
            && let Some(zone) =
                slot.and_then(|slot| slot.zones.iter().find(|zone| nodes.get(zone, name).is_some()))
        {
            record.zone.clone_from(zone);
        }
        let was_read =
            !unread.contains_key(&record.zone) && (read_all || !unread.contains_key("-"));
        if was_read
            && record.recovery.is_none()
            && memory.as_ref().is_some_and(|memory| memory.absence_confirmed)
            && nodes.get(&record.zone, name).is_none()
            && let Some(zone) =
                slot.and_then(|slot| slot.zones.iter().find(|zone| nodes.get(zone, name).is_some()))
        {
            // A GET says that it is gone where it was: somebody has made it where it may be, too.
            turn.tell(
                record,
                What::Note,
                format!("the node is in {zone} now, and not in {} any more", record.zone),
            );
            record.zone.clone_from(zone);
            (record.incarnation, record.suspicion) = (None, None);
            if let Some(memory) = &mut memory {
                // That it is absent was said of where it was.
                (memory.absence_confirmed, memory.confirmed, memory.last_read) =
                    (false, None, None);
            }
            fleet.dirty.insert(name.clone());
        }
        let found = nodes.get(&record.zone, name);
        let mut unseen =
            unread.get(&record.zone).or_else(|| if read_all { None } else { unread.get("-") });
        if found.is_none() && record.incarnation.is_none() && record.recovery.is_none() {
            // It may live in another of its zones, one that could not be read.
            unseen = unseen.or_else(|| {
                slot.and_then(|slot| slot.zones.iter().find_map(|zone| unread.get(zone)))
            });
        }
        let reading = match (unseen, found) {
            (Some(why), _) => Reading::Unread(why.clone()),
            (None, Some(view)) => Reading::Node(Arc::clone(view)),
            (None, None) => Reading::Absent,
        };
        readings.push((name.clone(), reading));
    }
    for (name, reading) in readings {
        observe(fleet, &name, reading, poll.began, Source::List, turn);
    }
    if complete {
        fleet.ledger.observed_at = Some(turn.now);
        fleet.dirty_ledger = true;
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
