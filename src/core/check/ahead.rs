//! Before a queued resource is asked for ahead of the end of the present one's capacity.

use serde_json::Value;

use super::body::specification;
use super::case::{CREATES, Case, Checked, rule};
use super::rules::is_held;
use crate::model::ahead::Ahead;
use crate::model::fleet::{Pending, Stray};
use crate::model::phase::Phase;
use crate::model::time::elapsed;

/// So long before an end at most.
const BEFORE: u64 = 3600;

/// Whether it may be sent with this body now.
///
/// # Errors
/// The first rule that forbids it.
pub fn ahead(case: &Case, ahead: &Ahead, body: &Value) -> Checked {
    let Case { settings, slot, record, memory, ledger, now } = case;
    rule(!(settings.dry_run || is_held(case)), "S7", "dry run, opted out or paused")?;
    let phase = record.recovery.as_ref().map(|recovery| recovery.phase());
    let stands = matches!(phase, None | Some(Phase::Ready | Phase::Booted | Phase::Launched));
    let free = stands && !memory.pending.contains(&Pending::Call);
    rule(free, "S9", "its TPU is being replaced, or another call is under way")?;
    let seen = record.seen.as_ref().filter(|seen| seen.ready && record.incarnation.is_some());
    let ends = seen.and_then(|seen| seen.times.ends_at);
    let soon = *now < ahead.from && elapsed(*now, ahead.from).as_secs() <= BEFORE;
    rule(ends == Some(ahead.from) && soon, "S21", "its capacity does not end then")?;
    let recent = |at| elapsed(at, *now) <= slot.policy.max_age;
    let read = memory.is_there && memory.last_read.is_some_and(recent);
    rule(read, "S2", "no recent read shows its TPU")?;
    let mine = |stray: &Stray| stray.made_for() == record.name && stray.twin.is_none();
    let followed = ledger.strays.values().any(mine);
    let wanted = record.ours && !record.forgotten && record.asked_ahead().is_none();
    rule(wanted && !followed, "S21", "another queued resource of the slot may still be granted")?;
    rule(slot.zones.contains(&record.zone), "S17", "the zone is not the slot's")?;
    let starts = body.pointer("/queuedResource/queueingPolicy/validInterval/startTime");
    let starts = starts.and_then(|at| at.as_str()?.parse().ok());
    rule(starts == Some(ahead.from), "S21", "it could be granted before the present one ends")?;
    let supervisor = slot.supervisor.as_deref();
    let (owner, name) = (&settings.owner, &record.name);
    let whole = specification(case);
    let expected = whole.after_end(ahead.from, name);
    let expected = expected.map(|spec| spec.render(owner, name, &ahead.order, supervisor));
    let valid = whole.acceptable(owner, name, supervisor).is_ok();
    rule(
        valid && expected.as_ref() == Some(body),
        "S12",
        "the body is not a stored, valid specification",
    )?;
    rule(ledger.creates.len() < CREATES, "S18", "too many creates within a minute")
}
