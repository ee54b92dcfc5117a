//! The listings of one poll, by zone and name, with what could not be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::action::{Listing, NodeList, Poll, Reading};
use crate::model::filling::Filling;
use crate::model::node::NodeView;
use crate::model::queued::RequestView;
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;
use crate::model::submission::{JobListing, JobView};
use crate::resource::queued::{body, reading};
use crate::resource::training;

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
    // The queued resources, by zone and id …
    requests: BTreeMap<String, BTreeMap<String, RequestView>>,
    // … where they were listed, `-` for all …
    requests_read: BTreeSet<String>,
    // … and where they were not read, and why.
    requests_unread: BTreeMap<String, String>,
    // The managed training jobs that live, by region …
    jobs: BTreeMap<String, Vec<JobView>>,
    // … and where they were not read, and why.
    jobs_unread: BTreeMap<String, String>,
    // When all of it was asked for.
    began: Timestamp,
}

impl Listed {
    /// Also returns whether every zone was read.
    pub fn new(poll: Poll) -> (Listed, bool) {
        let Poll { began, listings, jobs: listed } = poll;
        let (mut nodes, mut unread, mut read_all) = (BTreeMap::new(), BTreeMap::new(), false);
        let (mut unreadable, mut nameless) = (BTreeMap::new(), BTreeSet::new());
        let (mut requests, mut requests_unread) = (BTreeMap::new(), BTreeMap::new());
        let mut requests_read = BTreeSet::new();
        for Listing { zone, result, requests: asked } in listings {
            match asked {
                Some(Ok(list)) => {
                    requests_read.insert(zone.clone());
                    let why = "the API could not reach the zone";
                    requests_unread
                        .extend(list.unreachable.into_iter().map(|zone| (zone, why.to_owned())));
                    for view in list.requests {
                        let zone: &mut BTreeMap<_, _> =
                            requests.entry(view.zone.clone()).or_default();
                        zone.insert(view.id.clone(), view);
                    }
                }
                Some(Err(failure)) => {
                    let why = format!("the listing of queued resources failed: {failure}");
                    requests_unread.insert(zone.clone(), why);
                }
                None => {}
            }
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
        let (jobs, jobs_unread) = by_region(listed);
        let unread_anywhere = [&unread, &requests_unread, &jobs_unread];
        let complete = unread_anywhere.iter().all(|unread| unread.is_empty());
        let listed = Listed {
            nodes,
            unread,
            unreadable,
            nameless,
            read_all,
            requests,
            requests_read,
            requests_unread,
            jobs,
            jobs_unread,
            began,
        };
        (listed, complete)
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

    /// The first of a slot's zones with what fills it. What can't run again must not hide what lives in
    /// another zone.
    pub fn zone_of<'s>(&self, slot: &'s SlotSettings) -> Option<&'s String> {
        let filled = slot.zones.iter().filter(|zone| self.fills(zone, slot));
        let is_lost = |zone: &String| match self.shown(zone, &slot.name, &slot.filling) {
            Reading::Node(view) => view.is_lost(),
            Reading::Absent | Reading::Unread(_) => false,
        };
        filled.min_by_key(|zone| is_lost(zone))
    }

    /// Whether what fills a slot was listed in a zone.
    pub fn fills(&self, zone: &str, slot: &SlotSettings) -> bool {
        match &slot.filling {
            Filling::Node => self.node(zone, &slot.name).is_some(),
            Filling::QueuedResource(id) => self.request(zone, id).is_some(),
            Filling::Training(_) => {
                matches!(self.shown(zone, &slot.name, &slot.filling), Reading::Node(_))
            }
        }
    }

    /// The training jobs that live in a region; none where it was not read.
    pub fn jobs(&self, region: &str) -> Option<&[JobView]> {
        self.jobs.get(region).map(Vec::as_slice)
    }

    /// Whether every region of a training job was listed, and no job of it lives in one (S24).
    pub fn has_no_job(&self, record: &SlotRecord, slot: &SlotSettings) -> bool {
        let filling = slot.filling.found(record.spec.as_ref());
        let Some(of) = filling.training() else { return false };
        let lineage = training::lineage(record.nodes());
        slot.places(&record.zone).all(|region| {
            let jobs = self.jobs.get(region);
            jobs.is_some_and(|jobs| !jobs.iter().any(|job| of.may_be(lineage, job)))
        })
    }

    /// The reading of a training job: one that lives in any of its regions, or none does.
    fn job(&self, record: &SlotRecord, slot: &SlotSettings) -> Reading {
        let filling = slot.filling.found(record.spec.as_ref());
        let Some(of) = filling.training() else { return Reading::Absent };
        let mut regions = slot.places(&record.zone);
        let listed = slot.places(&record.zone).filter_map(|region| self.jobs.get(region));
        let jobs: Vec<&JobView> = listed.flatten().collect();
        let shown = training::reading(of, &record.name, record.nodes(), &jobs, self.began);
        let not_yet = "its jobs are listed with the next poll";
        let unread = |region: &String| match self.jobs_unread.get(region) {
            Some(why) => Some(format!("{region}: {why}")),
            None => (!self.jobs.contains_key(region)).then(|| not_yet.to_owned()),
        };
        match (shown, regions.find_map(unread)) {
            // A job that lives is there, whatever else could not be read.
            (Reading::Node(view), _) => Reading::Node(view),
            (_, Some(why)) => Reading::Unread(why),
            (shown, None) => shown,
        }
    }

    /// The queued resource of this id in a zone.
    pub fn request(&self, zone: &str, id: &str) -> Option<&RequestView> {
        self.requests.get(zone)?.get(id)
    }

    /// All queued resources that were listed.
    pub fn all_requests(&self) -> impl Iterator<Item = &RequestView> {
        self.requests.values().flat_map(BTreeMap::values)
    }

    /// Whether every queued resource of a zone was listed.
    pub fn requests_were_read(&self, zone: &str) -> bool {
        let read = |zone: &str| self.requests_read.contains(zone);
        let unread = |zone: &str| self.requests_unread.contains_key(zone);
        (read(zone) || read("-")) && !(unread(zone) || unread("-"))
    }

    /// Why a zone gives no reading of a slot; none where it was read.
    fn unread_in(&self, zone: &str, filling: &Filling) -> Option<&str> {
        let all = if self.read_all { None } else { self.unread.get("-") };
        let unread = self.unread.get(zone).or(all).map(String::as_str);
        match filling {
            Filling::Node => unread,
            Filling::Training(_) => self.jobs_unread.get(zone).map(String::as_str),
            Filling::QueuedResource(_) => unread.or_else(|| self.requests_unread_in(zone)),
        }
    }

    /// Why the queued resources of a zone are not known.
    fn requests_unread_in(&self, zone: &str) -> Option<&str> {
        let why = self.requests_unread.get(zone).or(self.requests_unread.get("-"));
        let asked = self.requests_read.contains(zone) || self.requests_read.contains("-");
        let not_yet = "its queued resources are listed with the next poll";
        why.map(String::as_str).or((!asked).then_some(not_yet))
    }

    /// The slot as the listings show it in a zone, however much of it was read.
    pub fn shown(&self, zone: &str, name: &str, filling: &Filling) -> Reading {
        match filling {
            Filling::Node => self
                .node(zone, name)
                .map_or(Reading::Absent, |view| Reading::Node(Arc::clone(view))),
            Filling::QueuedResource(id) => {
                let request = self.request(zone, id);
                let other = self.node(zone, name).filter(|view| view.queued_resource.is_none());
                if request.is_none() && other.is_some() {
                    return Reading::Unread(format!(
                        "the node {name} is there, and the queued resource {id} that its [[tpu]] names is not: take queued_resource out, or delete \
                         the node, so that {id} can be asked for"
                    ));
                }
                let named = request.into_iter().flat_map(|request| &request.nodes);
                let mut nodes: Vec<_> =
                    named.filter_map(|node| self.node(zone, node).cloned()).collect();
                if request.is_none_or(|request| nodes.len() < request.nodes.len().max(1)) {
                    // Its nodes may outlive it for a moment, or have other names than are expected.
                    let known = |view: &Arc<NodeView>| nodes.iter().any(|of| of.node == view.node);
                    let all = self.nodes.get(zone).into_iter().flat_map(BTreeMap::values);
                    let mine = all.filter(|view| body::is_of(view, id) && !known(view));
                    let mine: Vec<_> = mine.cloned().collect();
                    nodes.extend(mine);
                }
                reading::reading(id, request, &nodes)
            }
            Filling::Training(of) => {
                let jobs: Vec<&JobView> = self.jobs.get(zone).into_iter().flatten().collect();
                training::reading(of, name, &[], &jobs, self.began)
            }
        }
    }

    /// The reading that the poll gives of a slot.
    pub fn reading(&self, record: &SlotRecord, slot: Option<&SlotSettings>) -> Reading {
        let node = Filling::Node;
        let filling = slot.map_or(&node, |slot| &slot.filling);
        if let Some(slot) = slot.filter(|slot| slot.filling.traits().is_job) {
            return self.job(record, slot);
        }
        let shown = self.shown(&record.zone, &record.name, filling);
        let mut unread = self.unread_in(&record.zone, filling);
        let absent = matches!(shown, Reading::Absent);
        for node in record.nodes() {
            if absent || self.node(&record.zone, node).is_none() {
                unread = unread.or_else(|| self.doubt(&record.zone, node));
            }
        }
        let lost = matches!(&shown, Reading::Node(view) if view.is_lost());
        if (absent || lost) && record.incarnation.is_none() && record.recovery.is_none() {
            // It may live in another of its zones, one that could not be read.
            let mut zones = slot.into_iter().flat_map(|slot| &slot.zones);
            unread = unread.or_else(|| {
                zones.find_map(|zone| {
                    self.unread_in(zone, filling).or_else(|| self.doubt(zone, &record.name))
                })
            });
        }
        unread.map_or(shown, |why| Reading::Unread(why.to_owned()))
    }
}

/// The jobs of each region, and why those of others are not known.
fn by_region(
    listings: Vec<JobListing>,
) -> (BTreeMap<String, Vec<JobView>>, BTreeMap<String, String>) {
    let (mut jobs, mut unread) = (BTreeMap::new(), BTreeMap::new());
    for JobListing { region, result } in listings {
        match result {
            Ok(found) => _ = jobs.insert(region, found),
            Err(failure) => {
                let why = format!("the listing of training jobs failed: {failure}");
                unread.insert(region, why);
            }
        }
    }
    (jobs, unread)
}
