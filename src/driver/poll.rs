//! Which zones a poll lists, and how long it and other reads may take.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::action::Look;
use crate::model::filling::Filling;
use crate::model::fleet::{Fleet, Stray};
use crate::model::settings::{PollSettings, SlotSettings};
use crate::model::training::JobKind;

/// With more zones than this in use, one listing of all of them costs less.
const ZONES_MAX: usize = 8;

/// A listing has this long at least, however short the poll interval is.
const LEAST: Duration = Duration::from_secs(2);

/// A large bucket takes longer to list than a poll interval lasts.
const SURVEY: Duration = Duration::from_secs(120);

/// The listings of one poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The zones to list, each on its own; `-` stands for all.
    pub zones: Vec<String>,
    /// The ones whose queued resources are listed as well.
    pub requests: BTreeSet<String>,
    /// The regions whose training jobs are listed, and the kinds of these, each with whether a slot is known to be of it.
    pub jobs: BTreeMap<String, BTreeMap<JobKind, bool>>,
    /// A listing that takes longer has failed.
    pub limit: Duration,
}

/// How long a read may take: one attempt at least, and a poll interval where that is longer.
pub fn limit(look: &Look, poll: &PollSettings) -> Duration {
    match look {
        Look::Checkpoints { .. } => SURVEY,
        Look::Node { .. }
        | Look::Stray { .. }
        | Look::Operation { .. }
        | Look::Attributes { .. }
        | Look::CreateCheck { .. }
        | Look::Deletions { .. } => poll.every.max(poll.timeout),
    }
}

/// Lists the zones in use; a listing that takes longer than a poll interval delays the next poll.
pub fn plan(fleet: &Fleet) -> Plan {
    let (training, tpus): (Vec<_>, Vec<_>) =
        fleet.settings.slots.values().partition(|slot| slot.filling.traits().is_job);
    let lived_in = |slot: &SlotSettings| fleet.slots.get(&slot.name).map(|record| &record.zone);
    let mut jobs: BTreeMap<String, BTreeMap<JobKind, bool>> = BTreeMap::new();
    for slot in training {
        let spec = fleet.slots.get(&slot.name).and_then(|record| record.spec.as_ref());
        let filling = slot.filling.found(spec);
        let Some(of) = filling.training() else { continue };
        for region in slot.zones.iter().chain(lived_in(slot)) {
            let listed = jobs.entry(region.clone()).or_default();
            of.kinds().for_each(|kind| *listed.entry(kind).or_default() |= !of.either);
        }
    }
    let is_job = |stray: &&Stray| stray.twin.is_some();
    for stray in fleet.ledger.strays.values() {
        if let Some(twin) = &stray.twin {
            jobs.entry(stray.zone.clone()).or_default().insert(twin.kind, true);
        }
    }
    let configured = tpus.iter().flat_map(|s| s.zones.iter());
    let zones: BTreeSet<&String> = configured
        .chain(tpus.iter().filter_map(|slot| lived_in(slot)))
        .chain(fleet.ledger.strays.values().filter(|of| !is_job(of)).map(|stray| &stray.zone))
        .collect();
    let all = zones.len() > ZONES_MAX;
    let zone = |zone: &String| if all { "-".to_owned() } else { zone.clone() };
    let listed: BTreeSet<String> = zones.into_iter().map(zone).collect();
    let queued = tpus.iter().filter(|slot| slot.filling != Filling::Node);
    let requests = queued.flat_map(|slot| slot.zones.iter().chain(lived_in(slot)));
    let strays = fleet.ledger.strays.values().filter(|stray| stray.request.is_some());
    let requests = requests.chain(strays.map(|stray| &stray.zone)).map(zone).collect();
    let zones = listed.into_iter().collect();
    let poll = &fleet.settings.poll;
    Plan { zones, requests, jobs, limit: poll.every.max(poll.timeout).max(LEAST) }
}
