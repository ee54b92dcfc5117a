//! From a condition to a decision: wait out the grace, hold for a reason, confirm by a GET, condemn.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::{Action, Look};
use crate::model::condition::{Condition, Kind};
use crate::model::event::{Evidence, What};
use crate::model::failure::FailureClass;
use crate::model::fleet::{Confirmed, Ledger, Memory, Pending, Shortage, Unfit, after, elapsed};
use crate::model::hold::HoldReason;
use crate::model::mutant::{self, Mutant};
use crate::model::recovery::{Call, Phase, Recovery};
use crate::model::settings::{JobSettings, Settings, SlotSettings};
use crate::model::slot::{Attempt, SlotRecord};
use crate::model::spec::NodeSpec;
use crate::model::view::{ActionName, Decision, span};

use super::plan::Budget;
use super::turn::Turn;
use super::{absorb, diagnose, ending, guard, lever, location, plan, recover, runs};

/// A confirming GET is good for this long (S1).
pub const CONFIRMED_FOR: Duration = Duration::from_secs(5);
/// A person has to look when guest attributes that would condemn could not be read for this long.
pub const UNHEARD_FOR: Duration = Duration::from_secs(10 * 60);
/// A maintenance window's end is trusted, plus this, …
const WINDOW_SLACK: Duration = Duration::from_secs(15 * 60);
/// … but not for longer than this after the first symptom.
pub const WINDOW_MAX: Duration = Duration::from_secs(6 * 3600);
/// After a stock-out one doubtful TPU may be tried again after this long (S14).
const TRIAL_AFTER: Duration = Duration::from_secs(30 * 60);
/// Replacements of this many slots …
const UNFIT_SLOTS: usize = 2;
/// … that fail to boot within this time suspend judged deletes (S14).
const UNFIT_WINDOW: Duration = Duration::from_secs(3600);
/// Refused deletes in a row after which a person has to look.
const DELETE_FAILURES: u32 = 3;

/// What one slot's judgement reads and writes.
pub struct Bench<'a> {
    pub settings: &'a Settings,
    pub slot: &'a SlotSettings,
    pub record: &'a mut SlotRecord,
    pub memory: &'a mut Memory,
    pub ledger: &'a mut Ledger,
    pub budget: &'a mut Budget,
    pub polls: u64,
}

/// Judges a slot whose node is (or should be) there.
pub fn judge(bench: &mut Bench, turn: &mut Turn) -> Decision {
    let condition = bench.record.verdict.condition;
    if !condition.is_reported() && condition != Condition::Unclear {
        stop_asking(bench);
    }
    let evidence = bench.record.verdict.evidence.clone();
    let Some(kind) = condition.kind() else { return at_rest(bench, turn, condition, evidence) };
    if let Some(wait) = graced(bench, condition, kind, turn.now) {
        return wait;
    }
    if has_old_reports(bench, condition, turn.now) {
        let wait = || Decision::wait(format!("{}: its workers' last reports are too old to act on", condition.name()), None);
        // What holds it anyway is said first.
        let hold = unheard(bench, condition, turn.now).map(|unheard| held(bench, condition, kind, turn.now).unwrap_or(unheard));
        return hold.unwrap_or_else(wait);
    }
    if !diagnose::is_still_reported(bench.record, bench.slot, bench.ledger, turn.now) {
        let text =
            format!("{}: but its workers' reports say otherwise by now; the next read of the node tells", condition.name());
        return Decision::wait(text, None);
    }
    if let Some(hold) = held(bench, condition, kind, turn.now) {
        stop_asking(bench);
        return hold;
    }
    let record = &*bench.record;
    let (reads, sick_for) = record.suspicion.as_ref().map_or((0, Duration::ZERO), |s| (s.reads, s.sick_for));
    let wanted = bench.slot.policy.confirmations;
    let action = if condition == Condition::Missing { ActionName::Create } else { ActionName::Recreate };
    if bench.settings.dry_run && reads + 1 >= wanted && !mutant::is(Mutant::IgnoresDryRun) {
        // Nothing follows: no GET has to confirm it, again with each poll.
        stop_asking(bench);
        let mut decision =
            Decision::act(action, format!("{}: {evidence}; {reads} reads over {}", condition.name(), span(sick_for)));
        decision.hold = Some(HoldReason::DryRun);
        return decision;
    }
    let confirmed = bench.memory.confirmed.as_ref().filter(|c| {
        elapsed(c.began, turn.now) <= CONFIRMED_FOR
            && c.condition == condition
            && (condition == Condition::Missing) == c.incarnation.is_none()
            && (c.incarnation.is_none() || c.incarnation == record.incarnation || mutant::is(Mutant::AnyIncarnation))
            && (record.mutated_at.is_none_or(|at| c.began > at) || mutant::is(Mutant::StaleReads))
    });
    let unconfirmed = Confirmed {
        began: turn.now,
        incarnation: record.incarnation.clone().filter(|_| condition != Condition::Missing),
        condition,
    };
    let blind = mutant::is(Mutant::NoConfirmingGet) || (condition == Condition::Missing && mutant::is(Mutant::AbsenceIsEnough));
    let confirmed = confirmed.or(Some(&unconfirmed).filter(|_| blind));
    let Some(confirmed) = confirmed.cloned() else {
        if reads + 1 < wanted {
            return Decision::wait(format!("{}: {reads} of {wanted} confirming reads", condition.name()), None);
        }
        // First their answer, which may be slow, then the GET: each has to be fresh.
        if !is_heard(bench, condition, turn.now) {
            return hear(bench, action, condition, turn.now);
        }
        ask(bench, turn);
        let asked = Decision::act(action, format!("{}: {evidence}; a GET confirms it", condition.name()));
        return unheard(bench, condition, turn.now).unwrap_or(asked);
    };
    if reads < wanted {
        return Decision::wait(format!("{}: {reads} of {wanted} confirming reads", condition.name()), None);
    }
    if !is_heard(bench, condition, turn.now) {
        return hear(bench, action, condition, turn.now);
    }
    stop_asking(bench);
    let reason = format!("{}: {evidence}; {reads} reads over {}", condition.name(), span(sick_for));
    if let Err(violation) = guard::may_condemn(bench, condition, kind, &confirmed, turn.now) {
        let message =
            format!("the safety check refused the plan ({violation}): nothing is done; this is a defect, please report it");
        turn.tell(bench.record, What::InvariantViolation { invariant: violation.name().into() }, message.clone());
        return Decision::hold(HoldReason::Refused, message, None);
    }
    condemn(bench, condition, kind, confirmed.began, turn);
    Decision::act(action, reason)
}

/// Counts a slot whose grace is over as judged, before anything is decided about any slot: the storm breaker may open, and
/// judged deletes be suspended, with the last of those that are ripe in one turn (S8, S14).
pub fn count(bench: &mut Bench, turn: &mut Turn) {
    let condition = bench.record.verdict.condition;
    let lost = condition.kind() == Some(Kind::Lost) && mutant::is(Mutant::LostIsAStorm);
    if (condition.kind() == Some(Kind::Judged) || lost)
        && graced(bench, condition, Kind::Judged, turn.now).is_none()
        && !has_old_reports(bench, condition, turn.now)
        && diagnose::is_still_reported(bench.record, bench.slot, bench.ledger, turn.now)
    {
        lever::gust(bench, turn);
        unfit(bench, turn.now);
    }
}

/// What a slot still waits for before it can be judged: its grace, and for a maintenance the end of its window.
fn graced(bench: &Bench, condition: Condition, kind: Kind, now: Timestamp) -> Option<Decision> {
    let record = &*bench.record;
    let evidence = &record.verdict.evidence;
    let Some(suspicion) = &record.suspicion else {
        return Some(Decision::wait(format!("{}: first read pending", condition.name()), None));
    };
    let reserved = record.seen.as_ref().is_some_and(|s| s.reserved) && !mutant::is(Mutant::ReservedIsOrdinary);
    let graces = &bench.slot.policy.grace;
    let grace = match kind {
        Kind::Lost => graces.of(condition, reserved),
        Kind::Judged => suspicion.seen.iter().map(|c| graces.of(*c, reserved)).max().unwrap_or_default(),
    };
    let window = (condition == Condition::Maintenance && !mutant::is(Mutant::NoWindow))
        .then(|| record.seen.as_ref().and_then(|s| s.window_end))
        .flatten()
        .filter(|end| *end > suspicion.since)
        .map(|end| {
            after(end, if mutant::is(Mutant::NoWindowSlack) { Duration::ZERO } else { WINDOW_SLACK })
                .min(after(suspicion.since, WINDOW_MAX))
        });
    let grace = match condition {
        _ if mutant::is(Mutant::NoGrace) => Duration::ZERO,
        _ if mutant::is(Mutant::OneGrace) => graces.of(condition, reserved),
        Condition::Missing if mutant::is(Mutant::MissingAtOnce) => Duration::ZERO,
        _ if mutant::is(Mutant::WaitForEver) => Duration::from_secs(u64::from(u32::MAX)),
        Condition::Starting | Condition::Maintenance if mutant::is(Mutant::NoDeadlineOfTheApi) => Duration::ZERO,
        _ => grace,
    };
    let left = grace.saturating_sub(suspicion.sick_for);
    if !left.is_zero() || window.is_some_and(|end| now < end) {
        let until = window.map_or(after(now, left), |end| end.max(after(now, left)));
        let why = if window.is_some() { "its announced window" } else { "grace" };
        let reason = format!("{}: {evidence}; sick for {} of {} {why}", condition.name(), span(suspicion.sick_for), span(grace));
        return Some(Decision::wait(reason, Some(until)));
    }
    None
}

/// The workers' reports would condemn it, and are too old to act on.
fn has_old_reports(bench: &Bench, condition: Condition, now: Timestamp) -> bool {
    let record = &*bench.record;
    let heard = record
        .job
        .attributes_at
        .filter(|at| record.mutated_at.is_none_or(|mutated| *at > mutated) || mutant::is(Mutant::ReuseTheReports));
    condition.is_reported()
        && heard.is_none_or(|at| elapsed(at, now) > bench.slot.policy.max_age)
        && !mutant::is(Mutant::OldReports)
}

/// A TPU may have come to life since its workers last reported. They are asked with every poll while something is wrong.
fn hear(bench: &mut Bench, action: ActionName, condition: Condition, now: Timestamp) -> Decision {
    unheard(bench, condition, now).unwrap_or_else(|| {
        let evidence = &bench.record.verdict.evidence;
        Decision::act(action, format!("{}: {evidence}; its workers are asked once more", condition.name()))
    })
}

/// Where the workers' silence condemns, and for so long no answers came that a delete could rest on, somebody has to see to it
/// that they can be had.
fn unheard(bench: &mut Bench, condition: Condition, now: Timestamp) -> Option<Decision> {
    if !condition.is_reported() {
        return None;
    }
    let since = *bench.record.job.unheard_since.get_or_insert(now);
    // What an earlier process did not hear is no news: this one asks first.
    let asks_since = *bench.memory.asks_since.get_or_insert(now);
    let waits = [Pending::Attributes, Pending::Node].iter().any(|pending| bench.memory.pending.contains(pending));
    bench.memory.unheard |= asks_since < now && bench.memory.answered && !waits;
    if !bench.memory.unheard || elapsed(since, now) <= UNHEARD_FOR {
        return None;
    }
    let text = format!(
        "{}: {}; but since {since:.0} guest attributes could not be read, lacked workers, or took too long with the GET after them: \
         nothing is deleted",
        condition.name(),
        bench.record.verdict.evidence,
    );
    Some(Decision::hold(HoldReason::NoBeaconChannel, text, None))
}

/// What was asked for is there, or not needed any more.
fn stop_asking(bench: &mut Bench) {
    bench.record.job.unheard_since = None;
    (bench.memory.asks_since, bench.memory.unheard) = (None, false);
}

fn is_heard(bench: &Bench, condition: Condition, now: Timestamp) -> bool {
    guard::is_heard(bench, condition, now) || mutant::is(Mutant::OldReports)
}

/// Conditions that never lead to a delete.
fn at_rest(bench: &mut Bench, turn: &mut Turn, condition: Condition, evidence: String) -> Decision {
    match condition {
        Condition::Healthy => match &bench.record.suspicion {
            Some(s) => Decision::none(format!(
                "healthy for {}, {} clears the suspicion",
                span(s.healthy_for),
                span(bench.slot.policy.heal)
            )),
            None => Decision::none("healthy"),
        },
        Condition::Stopped => Decision::hold(HoldReason::Stopped, format!("{evidence}: somebody wanted that"), None),
        Condition::Deleting => {
            let deadline = after(bench.record.since, bench.slot.policy.grace.deleting);
            if turn.now < deadline {
                return Decision::wait(format!("{evidence}: somebody deletes it"), Some(deadline));
            }
            let mut decision =
                Decision::hold(HoldReason::Deleting, format!("{evidence}, for too long: a person has to look"), None);
            decision.action = ActionName::Escalate;
            decision
        }
        Condition::JobFailed => ending::hold(bench.record, &evidence),
        Condition::Degraded => {
            Decision::hold(HoldReason::Degraded, format!("{evidence}; it informs, and no rule acts on it yet"), None)
        }
        Condition::Unclear => {
            let absent = !bench.memory.absence_confirmed && evidence.starts_with("absent");
            if absent {
                ask(bench, turn);
            }
            Decision::hold(HoldReason::Unclear, evidence, None)
        }
        _ => Decision::none(evidence),
    }
}

/// Asks for the confirming GET, at most once a poll.
fn ask(bench: &mut Bench, turn: &mut Turn) {
    if bench.memory.asked_in_poll != bench.polls && bench.memory.pending.insert(Pending::Node) {
        bench.memory.asked_in_poll = bench.polls;
        turn.look(Look::Node { slot: bench.record.name.clone(), zone: bench.record.zone.clone() });
    }
}

/// The reasons that hold a condemned slot: first those that hold both kinds, then those that guard judged ones.
fn held(bench: &mut Bench, condition: Condition, kind: Kind, now: Timestamp) -> Option<Decision> {
    let record = &*bench.record;
    let hold = |reason, text: String, until| Some(Decision::hold(reason, text, until));
    let what = condition.name();
    if let Some(pause) = lever::paused(bench, now) {
        let why = pause.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        return hold(HoldReason::Paused, format!("{what}, but {} paused it{why}", pause.who), pause.until);
    }
    if let Some(seen) = &record.seen {
        let forgotten = condition == Condition::Missing && mutant::is(Mutant::ForgetsOptOut);
        if seen.opted_out && !forgotten && !mutant::is(Mutant::NoOptOut) {
            return hold(HoldReason::OptedOut, format!("{what}, but the label tpu-watchdog=off opts it out"), None);
        }
        let strange = !mutant::is(Mutant::AnyNode);
        if let Some(owner) = seen.other_owner.as_ref().filter(|_| strange).filter(|owner| record.adopted.as_ref() != Some(owner))
        {
            return hold(
                HoldReason::OtherOwner,
                format!("{what}, but the watchdog {owner:?} owns it (metadata tpu-watchdog-owner)"),
                None,
            );
        }
        if let Some(queued) = seen.queued_resource.as_ref().filter(|_| strange) {
            return hold(HoldReason::QueuedResource, format!("{what}, but it belongs to {queued}: recreate that by hand"), None);
        }
        if seen.multislice && strange {
            return hold(HoldReason::Multislice, format!("{what}, but it is part of a multislice: recreate that by hand"), None);
        }
        if seen.is_v1 && strange {
            return hold(HoldReason::ApiV1, format!("{what}, but it was made by API v1: v2 can't recreate it"), None);
        }
    }
    if condition == Condition::Missing && record.recovery.is_none() && !bench.slot.policy.create_missing {
        return hold(HoldReason::Missing, format!("{what}, and when_missing = \"hold\""), None);
    }
    if let Some(hold) = ending::holds_recreate(record, bench.slot.job.as_ref().map(JobSettings::key)) {
        return Some(hold);
    }
    if bench.slot.supervisor.is_some() && NodeSpec::runs_a_url(record.spec.as_ref(), &bench.slot.create) {
        return Some(location::unordered_script(record, what));
    }
    let acceptable = bench.memory.acceptable.get_or_insert_with(|| {
        let spec = record.spec.clone().unwrap_or_else(NodeSpec::empty).overlaid(&bench.slot.create);
        spec.acceptable(&bench.settings.owner, &record.name, bench.slot.supervisor.as_deref())
    });
    if let Err(why) = acceptable.clone().or_else(|why| if mutant::is(Mutant::AnySpecification) { Ok(()) } else { Err(why) }) {
        let (reason, why) = match record.spec {
            None if record.seen.is_none() => (HoldReason::NeverSeen, format!("never seen, so nothing was learned: {why}")),
            _ => (HoldReason::NoSpecification, format!("{what}, but its specification can't be created again: {why}")),
        };
        return hold(reason, why, None);
    }
    // A delete that failed holds a delete: a node that is gone by now needs none.
    let refused = record.recovery.as_ref().filter(|r| r.phase == Phase::Condemned && condition != Condition::Missing);
    if let Some(recovery) = refused {
        if recovery.delete_failures >= DELETE_FAILURES && !mutant::is(Mutant::DeletesForEver) {
            return hold(HoldReason::DeleteFailed, format!("{what}: the delete failed {} times", recovery.delete_failures), None);
        }
        if let Some(at) = recovery.not_before.filter(|at| *at > now) {
            return hold(HoldReason::Backoff, format!("{what}: waiting after a failed delete"), Some(at));
        }
        // What was lost when its delete failed, and is judged by now, is another decision, with all guards of its own.
        if !(recovery.kind == Kind::Lost && kind == Kind::Judged) {
            return judged(bench, condition, kind, now);
        }
    }
    let policy = &bench.slot.policy.attempts;
    let used = record.attempts_used(kind, policy.window, now);
    match kind {
        Kind::Lost if used >= policy.preemptions && !mutant::is(Mutant::NoPreemptionLimit) => {
            let until = absorb::slides_at(record, &bench.slot.policy);
            return hold(HoldReason::Preemptions, format!("{what}: {used} preemptions within {}", span(policy.window)), until);
        }
        Kind::Judged if used >= policy.max && !mutant::is(Mutant::NoAttempts) => {
            let text = format!(
                "{what}: {used} recoveries within {} did not help; find the cause, then `retry` (or raise attempts.max)",
                span(policy.window)
            );
            return hold(HoldReason::Attempts, text, None);
        }
        _ => {}
    }
    judged(bench, condition, kind, now)
}

/// The guards of judged slots alone: half a fleet that looks sick at once is first of all a reason to doubt our eyes.
///
/// What may last longer is asked first: a slot that waits for a person takes no room in the budget.
fn judged(bench: &Bench, condition: Condition, kind: Kind, now: Timestamp) -> Option<Decision> {
    if kind == Kind::Lost && !mutant::is(Mutant::GuardsHoldLost) {
        return None;
    }
    let what = condition.name();
    if condition == Condition::NeverBooted && !bench.ledger.beacons_seen {
        let text = format!("{}; guest attributes may be forbidden here: check the node by hand", bench.record.verdict.evidence);
        return Some(Decision::hold(HoldReason::NoBeaconChannel, text, None));
    }
    if let Some(breaker) = &bench.ledger.breaker {
        let text = format!("{what}: the storm breaker has been open since {:.0}: {}", breaker.opened_at, breaker.why);
        return Some(Decision::hold(HoldReason::Breaker, text, None));
    }
    if runs::is_over(bench.record, bench.slot.job.as_ref(), condition) {
        let count = runs::fruitless(bench.record, condition);
        let text = format!("{what}: {count} runs in a row made no new step; find the cause in the job's log, then `retry` it");
        return Some(Decision::hold(HoldReason::NoProgress, text, None));
    }
    if let Some(hold) = location::holds_judged(bench.record, bench.memory, bench.slot, kind, now) {
        return Some(hold);
    }
    let quiet = bench.slot.policy.quiet_hours.iter().filter_map(|hours| hours.until(now)).max();
    if let Some(until) = quiet.filter(|_| !mutant::is(Mutant::NoQuietHours)) {
        return Some(Decision::hold(HoldReason::QuietHours, format!("{what}, but these are quiet hours"), Some(until)));
    }
    if let Some(hold) = suspended(bench, condition, now) {
        return Some(hold);
    }
    // A slot that counts already raises no number by being recreated once more: it never waits for the others.
    let counted = plan::is_unavailable(bench.record);
    let limit = bench.settings.max_judged_recreates_per_hour;
    if !counted && bench.ledger.judged.len() >= limit && !mutant::is(Mutant::NoHourlyLimit) {
        let until = bench.ledger.judged.first().map(|at| after(*at, Duration::from_secs(3600)));
        return Some(Decision::hold(
            HoldReason::JudgedPerHour,
            format!("{what}: {limit} judged recreates in the last hour"),
            until,
        ));
    }
    let others = bench.budget.unavailable;
    if !counted && others >= bench.budget.max_unavailable {
        let text =
            format!("{what}: {others} judged slots are in recovery, max_unavailable allows {}", bench.budget.max_unavailable);
        return Some(Decision::hold(HoldReason::MaxUnavailable, text, None));
    }
    None
}

/// While creates of a zone and type are refused or their replacements fail, a doubtful TPU in hand is worth more than none (S14).
fn suspended(bench: &Bench, condition: Condition, now: Timestamp) -> Option<Decision> {
    if condition == Condition::FailedRepair && !mutant::is(Mutant::DeadOnesWait) {
        return None;
    }
    // The trial itself, whose delete did not come about, goes on until a create is refused once more.
    let tried_at = bench.record.recovery.as_ref().filter(|r| r.phase == Phase::Condemned).and_then(|r| r.tried_at);
    let is_trial = |shortage: &Shortage| tried_at.is_some_and(|at| shortage.trial_at == Some(at) && at > shortage.refused_at);
    let what = condition.name();
    let accelerator = bench.record.seen.as_ref().map_or("", |s| s.accelerator.as_str());
    let (zone, key) = (&bench.record.zone, recover::shortage_key(&bench.record.zone, accelerator));
    // One trial at a time; when nothing was refused for as long after it, the next one may follow.
    let tried = |shortage: &Shortage| shortage.trial_at.filter(|_| !mutant::is(Mutant::ManyTrials));
    let until =
        |shortage: &Shortage| after(tried(shortage).map_or(shortage.refused_at, |at| at.max(shortage.refused_at)), TRIAL_AFTER);
    let waits = |shortage: &Shortage| now < until(shortage) && !is_trial(shortage);
    let (reason, text, shortage) = match (bench.ledger.suspended.get(&key), bench.ledger.short.get(&key)) {
        (Some(shortage), _) if waits(shortage) && !mutant::is(Mutant::NoUnfit) => (
            HoldReason::ReplacementsFail,
            format!("{what}: replacements of {accelerator} in {zone} fail to boot, so the TPU in hand is kept; look at one"),
            shortage,
        ),
        (_, Some(shortage)) if waits(shortage) && !mutant::is(Mutant::NoShortage) => (
            HoldReason::ZoneShort,
            format!("{what}: creates of {accelerator} in {zone} are refused, so the TPU in hand is kept"),
            shortage,
        ),
        _ => return None,
    };
    Some(Decision::hold(reason, text, Some(until(shortage))))
}

/// The grace of a replacement is over before it booted: those of two slots within an hour suspend judged deletes (S14).
fn unfit(bench: &mut Bench, now: Timestamp) {
    let (ledger, record) = (&mut *bench.ledger, &mut *bench.record);
    let Some(recovery) = &mut record.recovery else { return };
    if !matches!(recovery.phase, Phase::Creating | Phase::Ready) || recovery.unfit == record.incarnation {
        return;
    }
    recovery.unfit.clone_from(&record.incarnation);
    bench.budget.ledger_changed = true;
    let accelerator = record.seen.as_ref().map_or("", |s| s.accelerator.as_str());
    let key = recover::shortage_key(&record.zone, accelerator);
    let failed = ledger.unfit.entry(key.clone()).or_default();
    failed.retain(|unfit| elapsed(unfit.at, now) < UNFIT_WINDOW && unfit.slot != record.name);
    failed.push(Unfit { at: now, slot: record.name.clone() });
    if failed.len() >= UNFIT_SLOTS {
        let before = ledger.suspended.get(&key).and_then(|shortage| shortage.trial_at);
        ledger.suspended.insert(key, Shortage { refused_at: now, trial_at: before });
    }
}

/// Journals the condemnation together with the intent of the call that follows from it.
fn condemn(bench: &mut Bench, condition: Condition, kind: Kind, verified: Timestamp, turn: &mut Turn) {
    let now = turn.now;
    let record = &mut *bench.record;
    let symptom_at = record.suspicion.as_ref().map_or(now, |s| s.since);
    let incarnation = record.incarnation.clone().filter(|_| condition != Condition::Missing);
    let again =
        record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Condemned && !(r.kind == Kind::Lost && kind == Kind::Judged));
    let observed = Evidence {
        condition,
        kind,
        symptom_at,
        sick_seconds: record.suspicion.as_ref().map_or(0.0, |s| s.sick_for.as_secs_f64()),
        reads: record.suspicion.as_ref().map_or(0, |s| s.reads),
        confirmed_at: if mutant::is(Mutant::OldEvidence) { symptom_at } else { verified },
        observed: record.verdict.evidence.clone(),
    };
    if !again {
        runs::ended(record, condition, turn);
        record.attempts.retain(|a| a.kind != kind || elapsed(a.at, now) < bench.slot.policy.attempts.window);
        record.attempts.push(Attempt { at: now, kind });
        if kind == Kind::Judged {
            bench.ledger.judged.push(now);
        }
        bench.budget.ledger_changed = true;
        if let Some(recovery) = &mut record.recovery {
            // A bad replacement: the walk goes on, with a new order. Failed deletes are those of one node.
            if recovery.phase != Phase::Condemned {
                recovery.delete_failures = 0;
            }
            recovery.kind = kind;
            recovery.condemned.clone_from(&incarnation);
            recovery.order = None;
            recovery.not_before = None;
        } else {
            record.recovery = Some(Recovery {
                cause: condition,
                kind,
                evidence: record.verdict.evidence.clone(),
                symptom_at,
                condemned_at: now,
                phase: Phase::Condemned,
                phase_since: now,
                phases: Vec::new(),
                condemned: incarnation.clone(),
                call: None,
                delete_failures: 0,
                create_failures: 0,
                not_before: None,
                refusal: None::<(FailureClass, String)>,
                order: None,
                resends: 0,
                spent: 0,
                step_before: record.job.step,
                saved_at: None,
                set_apart: false,
                unfit: None,
                tried_at: None,
                creating_since: None,
                failed: None,
                observed: None,
            });
        }
        let who = incarnation.as_ref().map_or("nothing to delete".to_owned(), |i| format!("incarnation {i}"));
        let message = format!("condemned as {}: {}; {who}", condition.name(), record.verdict.evidence);
        let detection_seconds = elapsed(symptom_at, now).as_secs_f64();
        turn.tell(
            record,
            What::Condemned { cause: condition, kind, incarnation: incarnation.clone(), detection_seconds },
            message,
        );
    }
    recover::came_to_nothing(record, condition.name(), turn);
    if record.recovery.as_ref().is_some_and(|r| r.phase != Phase::Condemned) && condition != Condition::Missing {
        recover::advance(record, Phase::Condemned, &format!("the replacement is {}", condition.name()), turn);
    }
    let tries = kind == Kind::Judged && condition != Condition::FailedRepair;
    if tries {
        let accelerator = record.seen.as_ref().map_or("", |s| s.accelerator.as_str());
        let key = recover::shortage_key(&record.zone, accelerator);
        for shortage in [bench.ledger.short.get_mut(&key), bench.ledger.suspended.get_mut(&key)].into_iter().flatten() {
            shortage.trial_at = Some(now);
            bench.budget.ledger_changed = true;
        }
    }
    if let Some(recovery) = &mut record.recovery {
        recovery.observed = Some(observed.clone());
        recovery.tried_at = tries.then_some(now);
    }
    let Some(incarnation) = incarnation else {
        return recover::advance(record, Phase::Gone, "there is nothing to delete", turn);
    };
    recover::advance(record, Phase::Deleting, &format!("deleting {incarnation}"), turn);
    let message = format!("delete {} in {}, incarnation {incarnation}: {}", record.name, record.zone, record.verdict.evidence);
    let intent = What::Intent {
        call: "delete".into(),
        zone: record.zone.clone(),
        incarnation: Some(incarnation.clone()),
        generation: None,
        evidence: Some(observed),
        decided_by: bench.settings.decided_by.clone(),
    };
    turn.tell(record, intent, message);
    let (failures, spent) = record.recovery.as_ref().map_or((0, 0), |r| (r.delete_failures, r.spent));
    let request_id = bench.settings.alpha.then(|| request_id(record, "delete", &format!("{incarnation} {failures} {spent}")));
    if let Some(recovery) = &mut record.recovery {
        recovery.call = Some(Call::Intended);
        recovery.condemned = Some(incarnation.clone());
    }
    bench.memory.pending.insert(Pending::Call);
    bench.memory.looked_at = None;
    turn.act(Action::Delete { slot: record.name.clone(), zone: record.zone.clone(), incarnation, verified, request_id });
}

/// A request id that is the same for the same intent: derived, so that the core stays deterministic. One that comes late after its
/// answer was lost does nothing any more.
pub fn request_id(record: &SlotRecord, verb: &str, of: &str) -> String {
    let name = format!("{verb} {} {} {of} {}", record.zone, record.name, record.job.generation);
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, name.as_bytes()).to_string()
}
