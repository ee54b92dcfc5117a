//! The gates: why a slot that is condemned is left alone all the same, or its pending create not
//! sent yet.
//!
//! A gate reads what is known of one slot and of the fleet, and either lets pass or gives the hold,
//! with the number, the reason and the next step for an operator. The table is asked from the top,
//! the first hold counts, and nothing is remembered: a gate that opens is passed by the next step.
//! What may last longer comes first, so that a slot that waits for an operator takes no room in a
//! budget.
//!
//! Gates of *lost* and *judged* slots stand before a delete, or before the create for a slot
//! without a node; those of *creates* before a pending create. A lost slot passes the storm
//! breaker, quiet hours, `max_unavailable` and the like: nothing is left to save, and a whole Spot
//! fleet that is preempted at night must come back by itself. Half a fleet that looks sick at once
//! is first of all a reason to doubt our eyes. A gate never deletes, never creates, and asks for no
//! read.
//!
//! Example: `a` is READY with health TIMEOUT for 11 min (judged). It is not paused, its
//! specification is known, its attempts are not used up; its checkpoints were listed 20 min ago;
//! the breaker is closed; no other slot is in recovery. It passes every row, and the confirming GET
//! is asked for. With `b` in recovery and `max_unavailable = 1` the last row holds it:
//! "unresponsive: 1 judged slots are in recovery, max_unavailable allows 1".

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::{JobSettings, WhenMissing};
use crate::model::spec::NodeSpec;
use crate::model::time::span;
use crate::model::time::{after, elapsed};
use crate::model::view::{ActionName, Decision};

use super::budget::{self, CREATE_WINDOW, CREATES_PER_MINUTE};
use super::ctx::SlotCtx;
use super::storm::SMALL;
use super::{diagnose, ending, life, location, pool, runs};

/// In a fleet of one or two, a second judged recreate within this time …
const REPEATED_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// … waits so much longer (S8).
const REPEATED_WAIT: Duration = Duration::from_secs(3600);
/// Refused deletes in a row after which an operator is called.
pub const DELETE_FAILURES: u32 = 3;
/// Whether a create could follow was asked at most so long ago (S20).
pub const CREATE_CHECKED_FOR: Duration = Duration::from_secs(3600);
/// A recorded checkpoint that complete listings lack for so long is gone (S15).
const WENT_BACK_AFTER: Duration = Duration::from_secs(10 * 60);

/// What a gate stands before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The removal of a lost node of ours. Its create is another decision (L9).
    Lost,
    /// The recreate of a lost node that an operator made.
    Foreign,
    /// The recreate of a judged slot.
    Judged,
    /// A recreate that an operator asked for.
    Asked,
    /// A delete by another hand that is sent once more.
    Stuck,
    /// A create that was not sent.
    Create,
}

/// One row of the table.
#[derive(Clone, Copy)]
pub struct Gate {
    /// Its name, for tests and for those who read the table.
    pub name: &'static str,
    guards: &'static [Before],
    check: fn(&SlotCtx) -> Option<Decision>,
}

const ALL: &[Before] =
    &[Before::Lost, Before::Foreign, Before::Judged, Before::Asked, Before::Stuck, Before::Create];
const DELETES: &[Before] =
    &[Before::Lost, Before::Foreign, Before::Judged, Before::Asked, Before::Stuck];
const REPLACES: &[Before] = &[Before::Lost, Before::Foreign, Before::Judged, Before::Asked];
/// What holds the create of a lost node of ours does not hold its removal.
const RECREATES: &[Before] = &[Before::Foreign, Before::Judged, Before::Asked, Before::Create];
const DOUBTED: &[Before] = &[Before::Judged, Before::Asked];
const JUDGED: &[Before] = &[Before::Judged];
const CREATES: &[Before] = &[Before::Create];

const fn gate(
    name: &'static str,
    guards: &'static [Before],
    check: fn(&SlotCtx) -> Option<Decision>,
) -> Gate {
    Gate { name, guards, check }
}

/// All gates, in the order in which they are asked.
pub const GATES: &[Gate] = &[
    gate("paused", ALL, paused),
    gate("opted_out", ALL, opted_out),
    gate("forgotten", ALL, forgotten),
    gate("plain_node", DELETES, plain_node),
    gate("deleted", REPLACES, deleted),
    gate("when_missing", REPLACES, when_missing),
    gate("ended_early", RECREATES, ended_early),
    gate("create_backoff", CREATES, create_backoff),
    gate("dry_run", CREATES, dry_run),
    gate(CHECKPOINTS, CREATES, checkpoints),
    gate("create_limit", CREATES, create_limit),
    gate("startup_script_url", RECREATES, startup_script_url),
    gate("specification", REPLACES, specification),
    gate("body", CREATES, body),
    gate("delete_backoff", DELETES, delete_backoff),
    gate("attempts", RECREATES, attempts),
    // The last before a create: a slot that is held otherwise must not keep the others waiting.
    gate("probe", CREATES, probe),
    gate("beacon_channel", DOUBTED, beacon_channel),
    gate("breaker", JUDGED, breaker),
    gate("no_progress", DOUBTED, no_progress),
    gate("location", DOUBTED, location_listed),
    gate("create_check", DOUBTED, create_check),
    gate("quiet_hours", JUDGED, quiet_hours),
    gate("pool", DOUBTED, trouble_in_pool),
    gate("repeated", JUDGED, repeated),
    gate("judged_per_hour", DOUBTED, judged_per_hour),
    gate("max_unavailable", JUDGED, max_unavailable),
];

/// The gate whose hold is ended by a listing, which has to be asked for.
pub const CHECKPOINTS: &str = "checkpoints";

/// The first gate that holds, and its decision.
pub fn first_hold(
    gates: &[Gate],
    ctx: &SlotCtx,
    before: Before,
) -> Option<(&'static str, Decision)> {
    gates
        .iter()
        .filter(|gate| gate.guards.contains(&before))
        .find_map(|gate| Some((gate.name, (gate.check)(ctx)?)))
}

/// Whether no gate but this one holds.
pub fn holds_only(gates: &[Gate], ctx: &SlotCtx, before: Before, name: &str) -> bool {
    let others = |gate: &&Gate| gate.guards.contains(&before) && gate.name != name;
    gates.iter().filter(others).all(|gate| (gate.check)(ctx).is_none())
}

fn hold(reason: HoldReason, text: String, until: Option<Timestamp>) -> Option<Decision> {
    Some(Decision::hold(reason, text, until))
}

/// What a gate of deletes and creates alike holds.
fn what(ctx: &SlotCtx) -> String {
    if is_pending(ctx) { "the create is owed".to_owned() } else { ctx.condition().to_string() }
}

fn is_pending(ctx: &SlotCtx) -> bool {
    ctx.record.recovery.as_ref().is_some_and(|recovery| recovery.phase == Phase::Gone)
}

/// S7: an operator said so. A create that was not sent waits as well.
fn paused(ctx: &SlotCtx) -> Option<Decision> {
    let pause = ctx.paused()?;
    let why = pause.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    hold(
        HoldReason::Paused,
        format!("{}, but {} paused it{why}", what(ctx), pause.who),
        pause.until,
    )
}

/// S7: the label is remembered when its node is gone.
fn opted_out(ctx: &SlotCtx) -> Option<Decision> {
    ctx.record.seen.as_ref().filter(|seen| seen.opted_out)?;
    let release = if is_pending(ctx) {
        format!("; `resume {}` releases the create", ctx.record.name)
    } else {
        String::new()
    };
    let text = format!("{}, but the label tpu-watchdog=off opts it out{release}", what(ctx));
    hold(HoldReason::OptedOut, text, None)
}

/// What was owed was called off by an operator.
fn forgotten(ctx: &SlotCtx) -> Option<Decision> {
    let text = || {
        format!(
            "{}, but `forget` called it off; `retry {}` wants it again",
            what(ctx),
            ctx.record.name
        )
    };
    ctx.record.forgotten.then(|| Decision::hold(HoldReason::Forgotten, text(), None))
}

/// A node that was deleted on purpose is not created again by itself.
fn deleted(ctx: &SlotCtx) -> Option<Decision> {
    let missing = ctx.condition() == Condition::Missing && ctx.record.recovery.is_none();
    if !missing || ctx.slot.policy.when_missing != WhenMissing::Auto {
        return None;
    }
    if let Some(why) = &ctx.record.deleted {
        let text = format!(
            "missing, and deleted on purpose: {why}. `recreate {0}` creates it again, `forget {0}` keeps it gone",
            ctx.record.name
        );
        return hold(HoldReason::Deleted, text, None);
    }
    // Looked up once before the create. After what was lost a deletion is only its end.
    let unknown = ctx.memory.deletions.is_none() && diagnose::may_be_on_purpose(ctx.record);
    unknown.then(|| {
        Decision::wait(
            "missing: its zone's operations tell whether it was deleted on purpose",
            None,
        )
    })
}

/// S17: what is not the slot's own plain node is replaced by those whose it is, or not at all.
fn plain_node(ctx: &SlotCtx) -> Option<Decision> {
    let (seen, what) = (ctx.record.seen.as_ref()?, ctx.condition());
    if let Some(owner) =
        seen.other_owner.as_ref().filter(|owner| ctx.record.adopted.as_ref() != Some(owner))
    {
        let text =
            format!("{what}, but the watchdog {owner:?} owns it (metadata tpu-watchdog-owner)");
        return hold(HoldReason::OtherOwner, text, None);
    }
    if let Some(queued) = &seen.queued_resource {
        return hold(
            HoldReason::QueuedResource,
            format!("{what}, but it belongs to {queued}: recreate that by hand"),
            None,
        );
    }
    if seen.multislice {
        return hold(
            HoldReason::Multislice,
            format!("{what}, but it is part of a multislice: recreate that by hand"),
            None,
        );
    }
    seen.is_v1.then(|| {
        Decision::hold(
            HoldReason::ApiV1,
            format!("{what}, but it was made by API v1: v2 can't recreate it"),
            None,
        )
    })
}

/// A node that is missing may have been deleted on purpose: the config says so.
fn when_missing(ctx: &SlotCtx) -> Option<Decision> {
    let held = ctx.condition() == Condition::Missing
        && ctx.record.recovery.is_none()
        && ctx.slot.policy.when_missing == WhenMissing::Hold;
    held.then(|| {
        Decision::hold(
            HoldReason::Missing,
            format!("{}, and when_missing = \"hold\"", ctx.condition()),
            None,
        )
    })
}

/// S23: a job that ended early may be done: neither a replacement nor a delete is known to be
/// right.
fn ended_early(ctx: &SlotCtx) -> Option<Decision> {
    ending::holds_recreate(ctx.record, ctx.slot.job.as_ref().map(JobSettings::key))
}

/// Google's agent would run the script in no order with the supervisor.
fn startup_script_url(ctx: &SlotCtx) -> Option<Decision> {
    let runs_a_url = ctx.slot.supervisor.is_some()
        && NodeSpec::runs_a_url(ctx.record.spec.as_ref(), &ctx.slot.create);
    runs_a_url.then(|| location::unordered_script(ctx.record, &what(ctx)))
}

/// S12: nothing is deleted that could not be created again.
fn specification(ctx: &SlotCtx) -> Option<Decision> {
    let Err(why) = ctx.memory.acceptable.as_ref()? else { return None };
    match ctx.record.spec {
        None if ctx.record.seen.is_none() => {
            hold(HoldReason::NeverSeen, format!("never seen, so nothing was learned: {why}"), None)
        }
        _ => {
            let text =
                format!("{}, but its specification can't be created again: {why}", ctx.condition());
            hold(HoldReason::NoSpecification, text, None)
        }
    }
}

/// A recovery whose delete was refused or did not come about, for the same node. One that is gone
/// by now needs no delete.
fn undeleted<'a>(ctx: &'a SlotCtx) -> Option<&'a Recovery> {
    let recovery = ctx.record.recovery.as_ref()?;
    (recovery.phase == Phase::Condemned && ctx.condition() != Condition::Missing)
        .then_some(recovery)
}

/// After a refusal, or an answer that was lost, the next delete waits; one that is refused again and
/// again is told, and tried at the longest wait (L2).
fn delete_backoff(ctx: &SlotCtx) -> Option<Decision> {
    let recovery = undeleted(ctx)?;
    let at = recovery.not_before.filter(|at| *at > ctx.now)?;
    let (what, failures) = (ctx.condition(), recovery.delete_failures);
    if failures < DELETE_FAILURES {
        let text = format!("{what}: waiting after a failed delete");
        return hold(HoldReason::Backoff, text, Some(at));
    }
    let why = recovery.undeleted.as_deref().unwrap_or("see the log");
    let text =
        format!("{what}: the delete was refused {failures} times ({why}); it is tried again");
    hold(HoldReason::DeleteFailed, text, Some(at))
}

/// S13. A delete that is tried again is the same recovery; what was lost when its delete failed,
/// and is judged by now, is another decision.
fn attempts(ctx: &SlotCtx) -> Option<Decision> {
    let pending = ctx.record.recovery.as_ref().filter(|_| is_pending(ctx)).map(|r| r.kind);
    let kind =
        pending.or(ctx.condition().kind()).or(ctx.record.wanted.as_ref().map(|_| Kind::Judged))?;
    // A judged slot has passed here before its delete.
    if pending == Some(Kind::Judged)
        || undeleted(ctx)
            .is_some_and(|recovery| (recovery.kind, kind) != (Kind::Lost, Kind::Judged))
    {
        return None;
    }
    let policy = &ctx.slot.policy.attempts;
    let own = usize::from(pending.is_some());
    let used = ctx.record.attempts_used(kind, policy.window, ctx.now).saturating_sub(own);
    let (what, window) = (what(ctx), span(policy.window));
    match kind {
        Kind::Lost if used >= policy.preemptions => {
            let until = budget::slides_at(ctx.record, &ctx.slot.policy);
            hold(
                HoldReason::Preemptions,
                format!("{what}: {used} preemptions within {window}"),
                until,
            )
        }
        Kind::Judged if used >= policy.max => {
            let help = "did not help; find the cause, then `retry` (or raise attempts.max)";
            hold(
                HoldReason::Attempts,
                format!("{what}: {used} recoveries within {window} {help}"),
                None,
            )
        }
        _ => None,
    }
}

/// S5: where no beacon was ever received its absence proves nothing.
fn beacon_channel(ctx: &SlotCtx) -> Option<Decision> {
    let unproven = ctx.condition() == Condition::NeverBooted && !ctx.ledger.beacons_seen;
    let evidence = &ctx.record.verdict.evidence;
    let text =
        || format!("{evidence}; guest attributes may be forbidden here: check the node by hand");
    unproven.then(|| Decision::hold(HoldReason::NoBeaconChannel, text(), None))
}

/// S8.
fn breaker(ctx: &SlotCtx) -> Option<Decision> {
    let breaker = ctx.ledger.breaker.as_ref()?;
    let text = format!(
        "{}: the storm breaker has been open since {:.0}: {}",
        ctx.condition(),
        breaker.opened_at,
        breaker.why
    );
    hold(HoldReason::Breaker, text, None)
}

/// S16.
fn no_progress(ctx: &SlotCtx) -> Option<Decision> {
    let (condition, job) = (ctx.condition(), ctx.slot.job.as_ref());
    let count = runs::fruitless(ctx.record, condition);
    let text = || {
        format!(
            "{condition}: {count} runs in a row made no new step; find the cause in the job's log, then `retry` it"
        )
    };
    runs::is_over(ctx.record, job, condition)
        .then(|| Decision::hold(HoldReason::NoProgress, text(), None))
}

/// S20: its create would be held for the checkpoints.
fn location_listed(ctx: &SlotCtx) -> Option<Decision> {
    location::holds_judged(ctx.record, ctx.memory, ctx.slot, ctx.now)
}

/// S20: whether a create could follow was asked within the hour, and nothing says for certain that it
/// could not.
fn create_check(ctx: &SlotCtx) -> Option<Decision> {
    if !ctx.slot.policy.create_check {
        return None;
    }
    let fresh = |at: Timestamp| elapsed(at, ctx.now) <= CREATE_CHECKED_FOR;
    let Some((_, found)) = ctx.memory.create_check.as_ref().filter(|(at, _)| fresh(*at)) else {
        let text = format!("{}: whether a create could follow is being asked", ctx.condition());
        return Some(Decision::wait(text, None));
    };
    let text = format!(
        "{}: keeping the current TPU: a create could not follow: {}",
        ctx.condition(),
        found.certain.as_ref()?
    );
    hold(HoldReason::CannotCreate, text, None)
}

/// S7.
fn quiet_hours(ctx: &SlotCtx) -> Option<Decision> {
    let until =
        ctx.slot.policy.quiet_hours.iter().filter_map(|hours| hours.until(ctx.now)).max()?;
    hold(
        HoldReason::QuietHours,
        format!("{}, but these are quiet hours", ctx.condition()),
        Some(until),
    )
}

/// S14: while creates of a pool are refused or its replacements fail, a doubtful TPU in hand is worth
/// more than none. One is tried in a while, first one without any sign of life.
fn trouble_in_pool(ctx: &SlotCtx) -> Option<Decision> {
    let (what, name) = (ctx.condition(), ctx.pool());
    let pool = ctx.ledger.pools.get(&name)?;
    let (until, failing) = pool::suspended(pool, ctx.record.size().reserved)?;
    // The trial itself, whose delete did not come about, goes on.
    let tried_at = undeleted(ctx).and_then(|recovery| recovery.tried_at);
    if tried_at.is_some() && tried_at == pool.trial_at {
        return None;
    }
    let (reason, why) = if failing {
        let why = format!(
            "replacements in the pool {name} fail to boot or to make progress; inspect one"
        );
        (HoldReason::ReplacementsFail, why)
    } else {
        (
            HoldReason::ZoneShort,
            format!("creates in the pool {name} are refused for want of capacity"),
        )
    };
    if ctx.now < until {
        let text = format!("{what}: keeping the current TPU: {why}; one is tried at {until:.0}");
        return hold(reason, text, Some(until));
    }
    let waits = ctx.budget.lifeless.contains(&name) && !ctx.is_lifeless();
    let text = || {
        format!(
            "{what}: keeping the current TPU: {why}; one without any sign of life is tried first"
        )
    };
    waits.then(|| Decision::hold(reason, text(), None))
}

/// S8: a fleet of one or two has no storm breaker: a second look takes its place.
fn repeated(ctx: &SlotCtx) -> Option<Decision> {
    if ctx.budget.desired > SMALL || undeleted(ctx).is_some() {
        return None;
    }
    let judged = ctx.record.attempts.iter().filter(|attempt| attempt.kind == Kind::Judged);
    let last = judged.map(|attempt| attempt.at).max()?;
    let progressed = ctx.record.job.progress_at.is_some_and(|at| at > last);
    if progressed || elapsed(last, ctx.now) >= REPEATED_WITHIN {
        return None;
    }
    let suspicion = ctx.record.suspicion.as_ref()?;
    let (graces, poll) = (&ctx.slot.policy.grace, &ctx.settings.poll);
    let grace = suspicion
        .seen
        .iter()
        .map(|condition| life::grace(ctx.record, graces, poll, *condition, ctx.now))
        .max()?;
    let left = (grace + REPEATED_WAIT).saturating_sub(suspicion.sick_for);
    let text = || {
        format!(
            "{}: it was recreated on a judgement at {last:.0} and made no progress since, so this one waits 1 h longer",
            ctx.condition()
        )
    };
    (!left.is_zero())
        .then(|| Decision::hold(HoldReason::Repeated, text(), Some(after(ctx.now, left))))
}

/// A slot that counts under `max_unavailable` already is not recreated once more, but still.
fn judged_per_hour(ctx: &SlotCtx) -> Option<Decision> {
    let limit = ctx.settings.max_judged_recreates_per_hour;
    let full = !budget::is_unavailable(ctx.record) && ctx.ledger.judged.len() >= limit;
    let until = ctx.ledger.judged.first().map(|at| after(*at, Duration::from_secs(3600)));
    let text = || format!("{}: {limit} judged recreates in the last hour", ctx.condition());
    full.then(|| Decision::hold(HoldReason::JudgedPerHour, text(), until))
}

/// S6. A slot that counts already asks as well: it may count again without having passed here, as
/// after a hold that had set it apart while others took its place.
fn max_unavailable(ctx: &SlotCtx) -> Option<Decision> {
    let itself = usize::from(budget::is_unavailable(ctx.record));
    let (others, most) =
        (ctx.budget.unavailable.saturating_sub(itself), ctx.budget.max_unavailable);
    let full = others >= most;
    let text = || {
        format!(
            "{}: {others} judged slots are in recovery, max_unavailable allows {most}",
            ctx.condition()
        )
    };
    full.then(|| Decision::hold(HoldReason::MaxUnavailable, text(), None))
}

/// After a refusal the next try waits.
fn create_backoff(ctx: &SlotCtx) -> Option<Decision> {
    let recovery = ctx.record.recovery.as_ref()?;
    let at = recovery.not_before.filter(|at| *at > ctx.now)?;
    let (class, text) =
        recovery.refusal.as_ref().map_or(("", ""), |(class, text)| (class.name(), text.as_str()));
    hold(
        HoldReason::Backoff,
        format!("the create is owed and will be tried again; {class}: {text}"),
        Some(at),
    )
}

/// S7. Trouble with the checkpoints, which holds it anyway, is said first.
fn dry_run(ctx: &SlotCtx) -> Option<Decision> {
    if !ctx.settings.dry_run {
        return None;
    }
    let trouble = location::listed(ctx.slot).and_then(|_| location::holds_create(ctx.record));
    let mut decision =
        trouble.unwrap_or_else(|| Decision::act(ActionName::Create, "a create is owed"));
    decision.hold = decision.hold.or(Some(HoldReason::DryRun));
    Some(decision)
}

/// S15, S20: the checkpoint to start from, listed since the node is gone so that nothing newer can
/// appear.
fn checkpoints(ctx: &SlotCtx) -> Option<Decision> {
    let (settings, recovery) = (location::listed(ctx.slot)?, ctx.record.recovery.as_ref()?);
    let (memory, job) = (&*ctx.memory, &ctx.record.job);
    let here = job.location == settings.uri;
    let is_fresh = |at: Timestamp| {
        at >= recovery.phase_since && elapsed(at, ctx.now) <= ctx.slot.policy.max_age
    };
    if here
        && memory.surveyed_at.is_some_and(is_fresh)
        && memory.survey_failure.is_none()
        && job.trouble.is_none()
    {
        return None;
    }
    let gone_since = job.went_back_since.filter(|_| here && memory.went_back);
    let Some(why) = &memory.survey_failure else {
        // The last listing's verdict outlives the process that made it.
        let looking =
            || format!("looking for the newest complete checkpoint under {}", settings.uri);
        return location::holds_create(ctx.record)
            .or_else(|| Some(Decision::act(ActionName::Create, looking())));
    };
    if gone_since.is_some_and(|since| elapsed(since, ctx.now) >= WENT_BACK_AFTER) {
        let text = format!(
            "the create is owed, but {why}: restore it, or say from which step with `retry --from`"
        );
        return hold(HoldReason::CheckpointWentBack, text, None);
    }
    location::holds_create(ctx.record).or_else(|| {
        let until = gone_since.map(|since| after(since, WENT_BACK_AFTER));
        hold(
            HoldReason::CheckpointUnreadable,
            format!("the create is owed, but {why}; it is listed again"),
            until,
        )
    })
}

/// A pool without capacity is probed by one slot at a time.
fn probe(ctx: &SlotCtx) -> Option<Decision> {
    let name = ctx.pool();
    let short = ctx.ledger.pools.get(&name)?.short.as_ref()?;
    if let Some(other) = ctx.budget.probing.get(&name).filter(|slot| **slot != ctx.record.name) {
        let text = format!(
            "no capacity in the pool {name} since {:.0}; {other} is being tried first",
            short.since
        );
        return hold(HoldReason::WaitsForProbe, text, None);
    }
    let text = || {
        format!("no capacity in the pool {name} since {:.0} (try {})", short.since, short.refusals)
    };
    (short.probe_at > ctx.now)
        .then(|| Decision::hold(HoldReason::Backoff, text(), Some(short.probe_at)))
}

/// S18.
fn create_limit(ctx: &SlotCtx) -> Option<Decision> {
    let full = ctx.ledger.creates.len() + ctx.budget.on_their_way >= CREATES_PER_MINUTE;
    let until = ctx.ledger.creates.first().map(|at| after(*at, CREATE_WINDOW));
    let text = || format!("{CREATES_PER_MINUTE} creates in the last minute");
    full.then(|| Decision::hold(HoldReason::CreateLimit, text(), until))
}

/// S12: the body that would be sent.
fn body(ctx: &SlotCtx) -> Option<Decision> {
    let acceptable = ctx.specification().acceptable(
        &ctx.settings.owner,
        &ctx.record.name,
        ctx.slot.supervisor.as_deref(),
    );
    hold(
        HoldReason::NoSpecification,
        format!("the create is owed, but {}", acceptable.err()?),
        None,
    )
}
