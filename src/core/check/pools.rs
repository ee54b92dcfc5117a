//! The rules about where capacity comes from.

use std::time::Duration;

use serde_json::Value;

use super::case::{Case, Checked, rule};
use crate::model::phase::Phase;
use crate::model::spec::REQUEST_KEY;
use crate::model::time::elapsed;

/// After the first refusal, or failed replacement, one trial in this time (S14).
const TRIAL_EVERY: Duration = Duration::from_secs(2 * 3600);
const TRIAL_EVERY_RESERVED: Duration = Duration::from_secs(30 * 60);

/// S14.
pub fn pool_is_supplied(case: &Case) -> Checked {
    let Case { record, ledger, now, .. } = case;
    let Some(pool) = ledger.pools.get(&pool(case)) else { return Ok(()) };
    let short = pool.short.as_ref().map(|short| short.since).into_iter();
    let trouble = short.chain(pool.failing).chain(pool.queued);
    let reserved = record.seen.as_ref().is_some_and(|seen| seen.reserved);
    let every = if reserved { TRIAL_EVERY_RESERVED } else { TRIAL_EVERY };
    let tried = record
        .recovery
        .as_ref()
        .filter(|recovery| recovery.phase() == Phase::Condemned)
        .and_then(|recovery| recovery.tried_at);
    let own = tried.is_some() && tried == pool.trial_at;
    let waits = trouble.min().is_some_and(|since| {
        elapsed(pool.trial_at.map_or(since, |at| at.max(since)), *now) < every
    });
    rule(own || !waits, "S14", "creates are refused there, or replacements fail")
}

/// Where the slot's capacity comes from, by this file's own reading.
fn pool(case: &Case) -> String {
    let Some(seen) = &case.record.seen else { return case.record.zone.clone() };
    let configured = case.slot.create.fields.get("acceleratorType").and_then(Value::as_str);
    let kind = configured.unwrap_or(&seen.accelerator);
    let wants = |key: &str| {
        let value = case.slot.create.fields.get("schedulingConfig")?.get(key)?;
        Some(value.as_bool().unwrap_or(false))
    };
    let spot = match (wants("spot"), wants("preemptible")) {
        (Some(true), _) | (_, Some(true)) => true,
        (Some(false), Some(false)) => false,
        (None, None) => seen.spot,
        // The other of the two, as it was learned.
        (spot, _) => {
            let other = if spot.is_some() { "preemptible" } else { "spot" };
            let known = case.record.spec.as_ref().map(|spec| {
                spec.body().get("schedulingConfig").and_then(|of| of.get(other)?.as_bool())
            });
            known.map_or(seen.spot, |flag| flag == Some(true))
        }
    };
    let around = case.slot.create.fields.get(REQUEST_KEY);
    let limited = match around.and_then(|around| around.get("provisioningModel")) {
        Some(model) => model == "FLEX_START",
        None => seen.times.is_limited,
    };
    let reserved = wants("reserved").unwrap_or(seen.reserved);
    let configured = |key: &str| case.slot.create.fields.get(key)?.get("reservationName")?.as_str();
    let named = configured("schedulingConfig").or_else(|| configured(REQUEST_KEY));
    let of = named.unwrap_or(&seen.reservation).rsplit('/').next().unwrap_or_default();
    match (reserved, of.is_empty() || of == "-", spot) {
        (false, _, false) if limited => format!("{} {kind} flex-start", case.record.zone),
        (true, false, _) => format!("reservation {of} {kind}"),
        (true, true, _) => format!("{} {kind} reserved", case.record.zone),
        (false, _, true) => format!("{} {kind} spot", case.record.zone),
        (false, _, false) => format!("{} {kind}", case.record.zone),
    }
}
