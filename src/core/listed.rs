//! The listings of one poll, by zone and name, with what could not be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::action::{Listing, NodeList, Reading};
use crate::model::node::NodeView;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;

/// The answers of a poll.
pub struct Listed {
    // By zone and name; of a node that is listed twice the last counts.
    nodes: BTreeMap<String, BTreeMap<String, Arc<NodeView>>>,
    // Zones that were not read, `-` for all, and why.
    unread: BTreeMap<String, String>,
    // By zone, `-` for all: names of entries of which nothing else could be read …
    unreadable: BTreeMap<String, Vec<String>>,
    // … and where entries had no name either.
    nameless: BTreeSet<String>,
    // One listing of all zones was answered.
    read_all: bool,
}

impl Listed {
    /// Also returns whether every zone was read.
    pub fn new(listings: Vec<Listing>) -> (Listed, bool) {
        let (mut nodes, mut unread, mut read_all) = (BTreeMap::new(), BTreeMap::new(), false);
        let (mut unreadable, mut nameless) = (BTreeMap::new(), BTreeSet::new());
        for Listing { zone, result } in listings {
            match result {
                Ok(NodeList { nodes: found, unreachable, unreadable: names, nameless: some }) => {
                    read_all |= zone == "-";
                    let why = "the API could not reach the zone";
                    unread.extend(unreachable.into_iter().map(|zone| (zone, why.to_owned())));
                    for view in found {
                        let zone: &mut BTreeMap<_, _> = nodes.entry(view.zone.clone()).or_default();
                        zone.insert(view.node.clone(), view);
                    }
                    if some > 0 {
                        nameless.insert(zone.clone());
                    }
                    unreadable.insert(zone, names);
                }
                Err(failure) => {
                    unread.insert(zone, format!("the listing failed: {failure}"));
                }
            }
        }
        let complete = unread.is_empty();
        (Listed { nodes, unread, unreadable, nameless, read_all }, complete)
    }

    /// All nodes of all zones.
    pub fn views(&self) -> impl Iterator<Item = &Arc<NodeView>> {
        self.nodes.values().flat_map(BTreeMap::values)
    }

    /// The node of this name in a zone.
    pub fn node(&self, zone: &str, name: &str) -> Option<&Arc<NodeView>> {
        self.nodes.get(zone)?.get(name)
    }

    /// Why a node that is not among those of a zone may be there all the same.
    pub fn doubt(&self, zone: &str, name: &str) -> Option<&'static str> {
        let is_it = |of: &str| {
            self.unreadable.get(of).is_some_and(|names| names.iter().any(|known| known == name))
        };
        if is_it(zone) || is_it("-") {
            Some("its entry in the listing can't be read")
        } else if self.nameless.contains(zone) || self.nameless.contains("-") {
            Some("an entry of the listing has no name that can be read: it may be this node")
        } else {
            None
        }
    }

    /// Whether every part of a zone was read.
    pub fn was_read(&self, zone: &str) -> bool {
        !self.unread.contains_key(zone) && (self.read_all || !self.unread.contains_key("-"))
    }

    /// The first of a slot's zones with a node of its name.
    pub fn zone_of<'s>(&self, slot: &'s SlotSettings) -> Option<&'s String> {
        slot.zones.iter().find(|zone| self.node(zone, &slot.name).is_some())
    }

    /// The reading that the poll gives of a slot.
    pub fn reading(&self, record: &SlotRecord, slot: Option<&SlotSettings>) -> Reading {
        let found = self.node(&record.zone, &record.name);
        let all = if self.read_all { None } else { self.unread.get("-") };
        let mut unread = self.unread.get(&record.zone).or(all).map(String::as_str);
        if found.is_none() {
            unread = unread.or_else(|| self.doubt(&record.zone, &record.name));
        }
        if found.is_none() && record.incarnation.is_none() && record.recovery.is_none() {
            // It may live in another of its zones, one that could not be read.
            let mut zones = slot.into_iter().flat_map(|slot| &slot.zones);
            unread = unread.or_else(|| {
                zones.find_map(|zone| {
                    let unread = self.unread.get(zone).map(String::as_str);
                    unread.or_else(|| self.doubt(zone, &record.name))
                })
            });
        }
        match (unread, found) {
            (Some(why), _) => Reading::Unread(why.to_owned()),
            (None, Some(view)) => Reading::Node(Arc::clone(view)),
            (None, None) => Reading::Absent,
        }
    }
}
