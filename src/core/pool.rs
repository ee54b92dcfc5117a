//! Pools: where capacity comes from. A pool is a zone or a reservation, an accelerator type and a
//! provisioning model; all slots that would be created in it share its fate.
//!
//! A create that is refused for want of capacity makes its pool short. One create at a time probes a
//! short pool, every 2 to 3 min, for all slots that wait there: the next is the one with the highest
//! priority, then the oldest. A replacement that becomes READY ends the stock-out. While a pool is
//! short, a queued resource waits in its queue, or its replacements fail, no judged TPU in it is deleted, but for one trial in a while
//! (S14).
//!
//! Example: `a` is refused at 10:00, so `b`, which waits for the same type in the same zone, is not
//! tried. At 10:02:20 `a` probes, and is refused again; at 10:05 it is granted and `b` goes at once.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::condition::Condition;
use crate::model::fleet::{Fleet, Ledger, Pool, Short};
use crate::model::settings::Overlay;
use crate::model::slot::{Seen, SlotRecord};
use crate::model::spec::{REQUEST_KEY, RESERVATION, reservation};
use crate::model::time::{after, elapsed};

/// A create that is under way for longer has found its capacity: it probes no more.
pub const PROBES_FOR: Duration = Duration::from_secs(600);
/// A request that waits in its queue for so long found no capacity; others are granted within minutes.
const QUEUED_FOR: Duration = Duration::from_secs(600);
/// One trial in this time, of ordinary and of reserved capacity (S14).
const TRIAL_EVERY: Duration = Duration::from_secs(2 * 3600);
const TRIAL_EVERY_RESERVED: Duration = Duration::from_secs(30 * 60);

/// The name of the pool in which a slot's node would be created in a zone.
pub fn name(record: &SlotRecord, create: &Overlay, zone: &str) -> String {
    let seen = record.seen.as_ref();
    let learned = seen.map(|seen| seen.accelerator.as_str()).filter(|known| !known.is_empty());
    let configured = create.fields.get("acceleratorType").and_then(|kind| kind.as_str());
    let accelerator = configured.or(learned).unwrap_or_default();
    let was = |of: fn(&Seen) -> bool| seen.is_some_and(of);
    let (spot, reserved, limited) = chosen(record, create);
    let named = named_reservation(create).or(seen.map(|seen| seen.reservation.as_str()));
    match reservation(named.unwrap_or_default()) {
        name if reserved.unwrap_or(was(|seen| seen.reserved)) => match name {
            "" => format!("{zone} {accelerator} reserved"),
            name => format!("reservation {name} {accelerator}"),
        },
        _ if spot.unwrap_or(was(|seen| seen.spot)) => format!("{zone} {accelerator} spot"),
        _ if limited.unwrap_or(was(|seen| seen.times.is_limited)) => {
            format!("{zone} {accelerator} flex-start")
        }
        _ => format!("{zone} {accelerator}"),
    }
}

/// The reservation that the config names, of a node or of a queued resource.
fn named_reservation(create: &Overlay) -> Option<&str> {
    let mut places = ["schedulingConfig", REQUEST_KEY].iter();
    places.find_map(|place| create.fields.get(*place)?.get(RESERVATION)?.as_str())
}

/// Which capacity the config chooses, where it says so: Spot, reserved, flex-start. It takes the place of what was
/// learned with the next create.
fn chosen(record: &SlotRecord, create: &Overlay) -> (Option<bool>, Option<bool>, Option<bool>) {
    let scheduling = create.fields.get("schedulingConfig");
    let flag = |key: &str| Some(scheduling?.get(key)? == &Value::Bool(true));
    // One that is taken out leaves the other, where that was learned.
    let learned = |key: &str| {
        let scheduling = record.spec.as_ref()?.body().get("schedulingConfig");
        Some(scheduling.and_then(|of| of.get(key)) == Some(&Value::Bool(true)))
    };
    let spot = match (flag("spot"), flag("preemptible")) {
        (None, None) => None,
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        (Some(false), None) => learned("preemptible"),
        (None, Some(false)) => learned("spot"),
    };
    let model = create.fields.get(REQUEST_KEY).and_then(|around| around.get("provisioningModel"));
    (spot, flag("reserved"), model.map(|model| model == "FLEX_START"))
}

/// A create was refused for want of capacity: the pool is probed again after `wait`.
pub fn refused(ledger: &mut Ledger, pool: &str, wait: Duration, now: Timestamp) {
    let pool = ledger.pools.entry(pool.to_owned()).or_default();
    let short =
        pool.short.get_or_insert(Short { since: now, last: now, refusals: 0, probe_at: now });
    (short.last, short.probe_at) = (now, after(now, wait));
    short.refusals += 1;
}

/// When the pool is probed next, where it is short.
pub fn probed_at(ledger: &Ledger, pool: &str) -> Option<Timestamp> {
    Some(ledger.pools.get(pool)?.short.as_ref()?.probe_at)
}

/// Until when no judged TPU of a pool is deleted (S14), and whether replacements fail there.
pub fn suspended(pool: &Pool, reserved: bool) -> Option<(Timestamp, bool)> {
    let short = pool.short.as_ref().map(|short| short.since);
    let since = short.into_iter().chain(pool.failing).chain(pool.queued).min()?;
    let every = if reserved { TRIAL_EVERY_RESERVED } else { TRIAL_EVERY };
    Some((after(since.max(pool.trial_at.unwrap_or(since)), every), pool.failing.is_some()))
}

/// Notes in which pools a queued resource waits for capacity (S14): what a judged slot would ask for would
/// stand behind it. Returns whether the ledger changed.
pub fn queues(fleet: &mut Fleet, now: Timestamp) -> bool {
    let mut queues: BTreeMap<String, Timestamp> = BTreeMap::new();
    for (record, slot) in fleet.slots.values().filter_map(|record| {
        // The last state of one that is gone says nothing about the queue.
        let asked = matches!(record.verdict.condition, Condition::Waiting | Condition::Unclear)
            && record.incarnation.is_some();
        if !(asked && record.seen.as_ref()?.waits_since.is_some()) {
            return None;
        }
        Some((record, fleet.settings.slots.get(&record.name)?))
    }) {
        if let Some(since) =
            record.queued_since().filter(|since| elapsed(*since, now) >= QUEUED_FOR)
        {
            let first = queues.entry(name(record, &slot.create, &record.zone)).or_insert(since);
            *first = since.min(*first);
        }
    }
    let before = fleet.ledger.pools.clone();
    for (name, pool) in &mut fleet.ledger.pools {
        pool.queued = queues.remove(name);
    }
    fleet.ledger.pools.retain(|_, pool| !pool.is_sound());
    for (name, since) in queues {
        fleet.ledger.pools.insert(name, Pool { queued: Some(since), ..Pool::default() });
    }
    before != fleet.ledger.pools
}

/// A create that was decided `since` then became READY: the pool has capacity again.
pub fn supplied(ledger: &mut Ledger, pool: &str, since: Option<Timestamp>) -> bool {
    let Some(found) = ledger.pools.get_mut(pool) else { return false };
    let ends = found.short.take_if(|short| since.is_none_or(|since| short.last < since)).is_some();
    if found.is_sound() {
        ledger.pools.remove(pool);
    }
    ends
}

/// A replacement that was decided `since` then is at work: those that failed before count no more.
pub fn relieve(ledger: &mut Ledger, pool: &str, since: Option<Timestamp>) {
    supplied(ledger, pool, since);
    let outlives = |at: Timestamp| since.is_none_or(|since| at >= since);
    if let Some(found) = ledger.pools.get_mut(pool) {
        found.failing = found.failing.filter(|at| outlives(*at));
        if found.is_sound() {
            ledger.pools.remove(pool);
        }
    }
    if let Some(unfit) = ledger.unfit.get_mut(pool) {
        unfit.retain(|unfit| outlives(unfit.at));
    }
    ledger.unfit.retain(|_, unfit| !unfit.is_empty());
}

/// A wait between `first` and `max`, spread by a name and a count: slots that wait for the same do
/// not come at once, and the same inputs give the same wait.
pub fn spread(first: Duration, max: Duration, name: &str, count: u32) -> Duration {
    // FNV-1a: the same on every machine and in every version.
    let bytes = name.bytes().chain(count.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    first + (max.saturating_sub(first) / 1000) * u32::try_from((hash >> 16) % 1000).unwrap_or(0)
}

/// Whether a replacement failed at once with another one's, of which `unfit` tells.
pub fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    elapsed(at, now) < Duration::from_secs(3600)
}
