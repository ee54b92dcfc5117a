//! Gates of a create that was not sent.

use super::common::{goes_back_at, hold, went_back};
use crate::core::budget::{CREATE_WINDOW, CREATES_PER_MINUTE};
use crate::core::ctx::SlotCtx;
use crate::core::location;
use crate::model::failure::FailureClass;
use crate::model::fleet::Stray;
use crate::model::hold::HoldReason;
use crate::model::queued::RequestState;
use crate::model::time::{after, elapsed};
use crate::model::traits::BudgetOf;
use crate::model::view::ActionName;
use crate::model::view::Decision;
use jiff::Timestamp;

/// S9: the delete of a dead stray must not hit the node that this create makes.
pub fn remains(ctx: &SlotCtx) -> Option<Decision> {
    let (zone, name) = (&ctx.record.zone, &ctx.record.name);
    ctx.ledger.strays.get(&Stray::key(zone, name)).filter(|stray| stray.is_being_removed())?;
    let text = format!(
        "its create is pending: first the dead TPU of that name in {zone} is being deleted"
    );
    hold(HoldReason::Backoff, text, None)
}

/// S21: another queued resource that was asked for in the slot's name may still be granted.
pub fn other_request(ctx: &SlotCtx) -> Option<Decision> {
    let another = || {
        ctx.record.asked_by_another.as_ref().map(|why| format!("its create is pending, but {why}"))
    };
    let holds = || hold(HoldReason::CreateUnresolved, another()?, None);
    gives_way(ctx).or_else(|| called_off(ctx)).or_else(holds)
}

/// The one that was asked for ahead comes first.
fn gives_way(ctx: &SlotCtx) -> Option<Decision> {
    let id = &ctx.record.asked_ahead()?.id;
    let text = format!(
        "its create is pending: {id}, which was asked for ahead, takes its place, or is withdrawn first"
    );
    hold(HoldReason::Backoff, text, None)
}

fn called_off(ctx: &SlotCtx) -> Option<Decision> {
    let here = |stray: &Stray| stray.zone == ctx.record.zone && stray.filling() == ctx.slot.filling;
    let mine = |stray: &Stray| stray.made_for() == ctx.record.name && stray.request.is_some();
    let asked = |stray: &&Stray| mine(stray) && !here(stray);
    let stray = ctx.ledger.strays.values().find(asked)?;
    let (id, zone) = (stray.filling().id().to_owned(), &stray.zone);
    let state = stray.state.as_deref().unwrap_or("not listed yet");
    let asked = format!("its create is pending, but its queued resource {id} in {zone} is {state}");
    if ends_without_a_tpu(stray) {
        let text = format!("{asked}; the next request waits until that one is gone");
        return hold(HoldReason::Backoff, text, None);
    }
    hold(HoldReason::CreateUnresolved, format!("{asked}; {}", may_hold_a_tpu(stray)), None)
}

fn ends_without_a_tpu(stray: &Stray) -> bool {
    stray.state.as_ref().is_none_or(|state| {
        RequestState::WITHOUT_NODES.iter().any(|of| of.as_str() == state)
            || *state == RequestState::Deleting.as_str()
    })
}

fn may_hold_a_tpu(stray: &Stray) -> String {
    format!(
        "no new request is sent while that one may hold a TPU; it is a stray, inspect it: {}",
        stray.filling().shown_by(&stray.name, &stray.zone)
    )
}

/// After a refusal the next try waits.
pub fn create_backoff(ctx: &SlotCtx) -> Option<Decision> {
    let recovery = ctx.record.recovery.as_ref()?;
    let at = recovery.not_before.filter(|at| *at > ctx.now)?;
    let (class, text) =
        recovery.refusal.as_ref().map_or(("", ""), |(class, text)| (class.name(), text.as_str()));
    let held = ctx.slot.filling.traits().is_held_by_refusal;
    let reason = match recovery.refusal.as_ref().map(|(class, _)| *class).filter(|_| held) {
        Some(FailureClass::Quota) => HoldReason::Quota,
        // The same body is refused once more until a person has changed something.
        Some(FailureClass::BadRequest | FailureClass::Permission) => HoldReason::CannotCreate,
        _ => HoldReason::Backoff,
    };
    hold(reason, format!("its create is pending; {class}: {text}"), Some(at))
}

/// Its queued resource failed for a reason that another one would meet as well.
pub fn request_refused(ctx: &SlotCtx) -> Option<Decision> {
    let failure = ctx.record.recovery.as_ref()?.halted.as_ref()?;
    let text = format!(
        "its create is pending, but its queued resource failed ({}): {failure}. The watchdog sends no new request: find the cause, then `retry {}`",
        failure.class.name(),
        ctx.record.name
    );
    hold(HoldReason::RequestRefused, text, None)
}

/// S7. Trouble with the checkpoints or the pool, which holds it anyway, is said first.
pub fn dry_run(ctx: &SlotCtx) -> Option<Decision> {
    if !ctx.settings.dry_run {
        return None;
    }
    let trouble = location::listed(ctx.slot)
        .filter(|_| !ctx.slot.finds_its_own())
        .and_then(|_| location::holds_create(ctx.record))
        .or_else(|| probe(ctx));
    let mut decision =
        trouble.unwrap_or_else(|| Decision::act(ActionName::Create, "its create is pending"));
    decision.hold = decision.hold.or(Some(HoldReason::DryRun));
    Some(decision)
}

/// S15, S20: the checkpoint to start from, listed since the node is gone so that nothing newer can
/// appear.
pub fn checkpoints(ctx: &SlotCtx) -> Option<Decision> {
    let uri = &location::listed(ctx.slot)?.uri;
    if is_listed(ctx, uri)? {
        return None;
    }
    if let Some(back) = went_back(ctx, "its create is pending, but") {
        return Some(back);
    }
    // The order names the newest one that is known, and the job does not go by it.
    if ctx.slot.finds_its_own() {
        return None;
    }
    // The last listing's verdict outlives the process that made it.
    location::holds_create(ctx.record).or_else(|| looks_for_checkpoints(ctx, uri))
}

/// Whether the location was listed, and understood, since the node is gone.
fn is_listed(ctx: &SlotCtx, uri: &str) -> Option<bool> {
    let (since, memory) = (ctx.record.recovery.as_ref()?.phase_since, &ctx.memory);
    let fresh = |at: Timestamp| at >= since && elapsed(at, ctx.now) <= ctx.slot.policy.max_age;
    let listed = memory.surveyed_at.is_some_and(fresh) && memory.survey_failure.is_none();
    Some(listed && ctx.record.job.location == uri && ctx.record.job.trouble.is_none())
}

fn looks_for_checkpoints(ctx: &SlotCtx, uri: &str) -> Option<Decision> {
    let Some(why) = &ctx.memory.survey_failure else {
        let text = format!("looking for the newest complete checkpoint under {uri}");
        return Some(Decision::act(ActionName::Create, text));
    };
    let text = format!("its create is pending, but {why}; it is listed again");
    hold(HoldReason::CheckpointUnreadable, text, goes_back_at(ctx))
}

/// A pool without capacity is probed by one slot at a time.
pub fn probe(ctx: &SlotCtx) -> Option<Decision> {
    let name = ctx.pool();
    let short = ctx.ledger.pools.get(&name)?.short.as_ref()?;
    let none = format!("no capacity in the pool {name} since {:.0}", short.since);
    if let Some(other) = ctx.budget.probing.get(&name).filter(|slot| **slot != ctx.record.name) {
        let text = format!("{none}; slot {other} is probing the pool first");
        return hold(HoldReason::WaitsForProbe, text, None);
    }
    let refusal = ctx.record.recovery.as_ref().and_then(|recovery| recovery.refusal.as_ref());
    let words = refusal.map_or(String::new(), |(_, words)| format!(": {words}"));
    let text = format!("{none} (try {}){words}", short.refusals);
    (short.probe_at > ctx.now)
        .then(|| Decision::hold(HoldReason::Backoff, text, Some(short.probe_at)))
}

/// S18.
pub fn create_limit(ctx: &SlotCtx) -> Option<Decision> {
    let most = match ctx.slot.filling.traits().budget {
        BudgetOf::Tpus => CREATES_PER_MINUTE,
        // Half of it is kept for TPUs: a region that loses its jobs must not delay them.
        BudgetOf::Jobs => CREATES_PER_MINUTE / 2,
    };
    let full = ctx.ledger.creates.len() + ctx.budget.on_their_way >= most;
    let until = ctx.ledger.creates.first().map(|at| after(*at, CREATE_WINDOW));
    let text = || format!("{most} creates in the last minute, the watchdog's own limit");
    full.then(|| Decision::hold(HoldReason::CreateLimit, text(), until))
}

/// S12: the body that would be sent.
pub fn body(ctx: &SlotCtx) -> Option<Decision> {
    let acceptable = ctx.specification().acceptable(
        &ctx.settings.owner,
        &ctx.record.name,
        ctx.slot.supervisor.as_deref(),
    );
    hold(
        HoldReason::NoSpecification,
        format!("its create is pending, but {}", acceptable.err()?),
        None,
    )
}
