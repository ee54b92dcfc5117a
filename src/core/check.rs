//! The safety rules once more, before every delete and every create, by predicates of its own: this
//! file imports `model` alone and shares no rule with the gates, so that a mistake in one of them
//! is found by the other.
//!
//! It reads the slot's record and memory, the ledger and the config as they are before the
//! mutation. A violation is a defect of the plan, not a state of the world: it is counted and told,
//! and nothing is done. It never asks whether acting is wise, only whether a rule of
//! docs/invariants.md forbids it. Worked example: a node is READY with health TIMEOUT for 11 min,
//! its GET is 2 s old, no judged slot is in recovery. Every rule holds, and the delete goes on. The
//! same with a GET of 6 s ago breaks S1, and the slot is held as
//! `refused`.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::condition::{Condition, Kind};
use crate::model::failure::FailureClass;
use crate::model::fleet::{Confirmed, Fleet, Ledger, Memory, Pending, Shortage};
use crate::model::ids::RunOrder;
use crate::model::lever::Pause;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::{Settings, Size, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::time::elapsed;

/// A GET, or a report of the workers, that verifies a delete is at most this old.
const VERIFIED_FOR: Duration = Duration::from_secs(5);
const REPORTED_FOR: Duration = Duration::from_secs(10);
/// A judged delete rests on a listing of its checkpoints of at most this age.
const LISTED_FOR: Duration = Duration::from_secs(3600);
/// After a refusal, or a failed replacement, one trial in this time (S14).
const TRIAL_EVERY: Duration = Duration::from_secs(30 * 60);
/// Creates that may be in a minute.
const CREATES: usize = 60;

/// A broken invariant, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation(&'static str, &'static str);

impl Violation {
    /// As in docs/invariants.md: `S1`.
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0, self.1)
    }
}

/// What is looked at: one slot and what its mutation rests on.
pub struct Case<'a> {
    /// The config.
    pub settings: &'a Settings,
    /// Of the slot.
    pub slot: &'a SlotSettings,
    /// As journaled, before the mutation.
    pub record: &'a SlotRecord,
    /// What this process remembers.
    pub memory: &'a Memory,
    /// Budgets.
    pub ledger: &'a Ledger,
    /// The time of the step.
    pub now: Timestamp,
}

/// The count of judged slots in recovery, by this file's own reading of S6, kept while one step
/// decides about many slots.
pub struct Checker {
    judged: usize,
    most: usize,
}

type Checked = Result<(), Violation>;

fn rule(holds: bool, name: &'static str, text: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(Violation(name, text)) }
}

impl Checker {
    /// Before a step decides about the first slot.
    pub fn new(fleet: &Fleet) -> Checker {
        let desired = fleet.slots.values().filter(|record| !record.leaving).count();
        let judged = fleet.slots.values().filter(|record| takes_room(record)).count();
        Checker { judged, most: fleet.settings.max_unavailable.of(desired) }
    }

    /// Whether this slot may be condemned for this condition now, and what it names be deleted.
    ///
    /// # Errors
    /// The first rule that forbids it.
    pub fn delete(&mut self, case: &Case, condition: Condition, confirmed: &Confirmed) -> Checked {
        let kind = condition.kind().ok_or(Violation("S5", "the condition is no sickness"))?;
        is_verified(case, condition, confirmed)?;
        is_reported(case, condition)?;
        is_free(case)?;
        is_plain(case)?;
        let counted = takes_room(case.record);
        if kind == Kind::Judged {
            let others = self.judged.saturating_sub(usize::from(counted));
            rule(others < self.most, "S6", "too many judged slots are in recovery")?;
            guards_judged(case, condition)?;
        }
        is_within_attempts(case, kind)?;
        let spec = specification(case);
        let acceptable = spec.acceptable(
            &case.settings.owner,
            &case.record.name,
            case.slot.supervisor.as_deref(),
        );
        rule(acceptable.is_ok(), "S12", "there is no stored, valid specification")?;
        self.judged += usize::from(kind == Kind::Judged && !counted);
        Ok(())
    }

    /// Whether this slot's pending create may be sent now with this body.
    ///
    /// # Errors
    /// The first rule that forbids it.
    pub fn create(&self, case: &Case, order: &RunOrder, body: &Value) -> Checked {
        let Case { settings, slot, record, memory, ledger, now } = case;
        let gone = record.recovery.as_ref().is_some_and(|recovery| recovery.phase == Phase::Gone);
        rule(gone && record.incarnation.is_none(), "S4", "nothing says that the node is gone")?;
        rule(
            !memory.pending.contains(&Pending::Call),
            "S9",
            "another call of the slot is under way",
        )?;
        rule(!settings.dry_run, "S7", "dry run")?;
        rule(
            slot.zones.is_empty() || slot.zones.contains(&record.zone),
            "S17",
            "the zone is not the slot's",
        )?;
        let expected = specification(case).render(
            &settings.owner,
            &record.name,
            order,
            slot.supervisor.as_deref(),
        );
        let acceptable = specification(case).acceptable(
            &settings.owner,
            &record.name,
            slot.supervisor.as_deref(),
        );
        rule(
            *body == expected && acceptable.is_ok(),
            "S12",
            "the body is not a stored, valid specification",
        )?;
        rule(ledger.creates.len() < CREATES, "S18", "too many creates within a minute")?;
        let Some(location) = listed(slot) else {
            return rule(order.checkpoint.is_empty(), "S15", "a checkpoint of no location");
        };
        let recorded = record.job.checkpoint.as_ref().filter(|_| record.job.location == location);
        rule(
            order.step == recorded.map(|checkpoint| checkpoint.step),
            "S15",
            "not the newest complete checkpoint",
        )?;
        let fresh = memory.surveyed_at.is_some_and(|at| elapsed(at, *now) <= slot.policy.max_age);
        rule(
            fresh && memory.survey_failure.is_none(),
            "S15",
            "the checkpoints were not listed since the node is gone",
        )?;
        rule(record.job.trouble.is_none(), "S20", "the checkpoint location is not understood")
    }
}

/// Judged and in recovery; not merely short of capacity, held, or at rest.
fn takes_room(record: &SlotRecord) -> bool {
    let Some(recovery) = record.recovery.as_ref().filter(|recovery| recovery.kind == Kind::Judged)
    else {
        return false;
    };
    let shortage = |class: &FailureClass| {
        matches!(class, FailureClass::StockOut | FailureClass::Quota | FailureClass::Rate)
    };
    let refused = recovery.refusal.as_ref().is_some_and(|(class, _)| shortage(class));
    let short = recovery.phase == Phase::Gone && recovery.not_before.is_some() && refused;
    let at_rest = [Condition::Stopped, Condition::JobFailed, Condition::Finished]
        .contains(&record.verdict.condition);
    !(short || at_rest || recovery.set_apart)
}

/// S1, S2, S3: this incarnation, sick for its grace, shown by a GET of just now.
fn is_verified(case: &Case, condition: Condition, confirmed: &Confirmed) -> Checked {
    let (record, now) = (case.record, case.now);
    let target = if condition == Condition::Missing { None } else { record.incarnation.as_ref() };
    let fresh = confirmed.began <= now && elapsed(confirmed.began, now) <= VERIFIED_FOR;
    let same = confirmed.incarnation.as_ref() == target
        && (target.is_some() || condition == Condition::Missing);
    rule(same && fresh, "S1", "the GET must show the condemned incarnation, at most 5 s ago")?;
    let after = record.mutated_at.is_none_or(|at| confirmed.began > at);
    let read = case.memory.last_read.is_some_and(|at| elapsed(at, now) <= case.slot.policy.max_age);
    rule(after && read, "S2", "the read must be younger than max_age and than our last mutation")?;
    let Some(suspicion) = &record.suspicion else {
        return Err(Violation("S3", "it is not suspected of anything"));
    };
    let least = case.slot.policy.grace.of(condition, Size::default());
    let lasted = suspicion.sick_for >= least && suspicion.reads >= case.slot.policy.confirmations;
    rule(lasted, "S3", "the whole grace and all confirmations must have passed")?;
    let wanted = matches!(condition, Condition::Stopped | Condition::Deleting);
    rule(!wanted, "S10", "stopped, or being deleted")
}

/// S5: what rests on the workers' reports rests on those of the last 10 s, which still say it.
fn is_reported(case: &Case, condition: Condition) -> Checked {
    if !matches!(condition, Condition::NeverBooted | Condition::Silent) {
        return Ok(());
    }
    let (record, graces) = (case.record, &case.slot.policy.grace);
    let heard = case
        .memory
        .heard
        .filter(|at| *at <= case.now && record.mutated_at.is_none_or(|mutated| *at > mutated));
    let fresh = heard.is_some_and(|at| elapsed(at, case.now) <= REPORTED_FOR);
    rule(fresh, "S5", "the workers' reports must have been asked for at most 10 s ago")?;
    let workers = record.seen.as_ref().map_or(1, |seen| seen.workers.max(1));
    let state = |worker: usize| record.job.workers.get(&worker);
    let says = if condition == Condition::NeverBooted {
        let lacks = (0..workers).any(|worker| state(worker).is_none_or(|worker| !worker.booted));
        lacks && record.job.unbooted_for >= graces.boot(record.size())
    } else {
        record.job.workers.values().any(|worker| worker.quiet_for >= graces.silent)
    };
    rule(record.ours && says, "S5", "the workers' reports say that it is alive, or it is not ours")
}

/// S7, S9: no operator holds it, and no create of it is pending.
fn is_free(case: &Case) -> Checked {
    let holds = |pause: &&Pause| pause.until.is_none_or(|until| case.now < until);
    let paused = case.record.paused.iter().chain(&case.ledger.paused).any(|pause| holds(&pause));
    let opted_out = case.record.seen.as_ref().is_some_and(|seen| seen.opted_out);
    rule(!(case.settings.dry_run || opted_out || paused), "S7", "dry run, opted out or paused")?;
    let pending = |recovery: &Recovery| {
        matches!(recovery.phase, Phase::Deleting | Phase::Gone | Phase::Creating)
    };
    let busy =
        case.record.recovery.as_ref().is_some_and(pending) && case.record.incarnation.is_none();
    rule(
        !busy && !case.memory.pending.contains(&Pending::Call),
        "S9",
        "the slot is in recovery already",
    )
}

/// S17: the slot's own plain node.
fn is_plain(case: &Case) -> Checked {
    let Some(seen) = &case.record.seen else { return Ok(()) };
    let adopted = case.record.adopted.as_ref();
    let others = seen.other_owner.as_ref().is_some_and(|owner| adopted != Some(owner));
    let plain = seen.queued_resource.is_none()
        && !seen.multislice
        && !seen.is_v1
        && !others
        && !case.record.leaving;
    rule(plain, "S17", "the node is not the slot's own plain node")
}

/// S7, S8, S14, S20: what guards judged slots alone.
fn guards_judged(case: &Case, condition: Condition) -> Checked {
    let Case { slot, record, ledger, now, .. } = case;
    let quiet = slot.policy.quiet_hours.iter().any(|hours| hours.until(*now).is_some());
    rule(!quiet, "S7", "quiet hours")?;
    rule(ledger.breaker.is_none(), "S8", "the storm breaker is open")?;
    if let Some(location) = listed(slot) {
        let listed_at = record.job.listed_at.filter(|_| record.job.location == location);
        let known = listed_at.is_some_and(|at| elapsed(at, *now) <= LISTED_FOR)
            && record.job.trouble.is_none();
        rule(
            known,
            "S20",
            "its checkpoints must have been listed within the last hour, and be understood",
        )?;
    }
    if condition == Condition::FailedRepair {
        return Ok(());
    }
    let accelerator = record.seen.as_ref().map_or("", |seen| seen.accelerator.as_str());
    let pool = format!("{} {accelerator}", record.zone);
    let tried = record
        .recovery
        .as_ref()
        .filter(|recovery| recovery.phase == Phase::Condemned)
        .and_then(|r| r.tried_at);
    let waits = |shortage: &Shortage| {
        let last =
            shortage.trial_at.map_or(shortage.refused_at, |trial| trial.max(shortage.refused_at));
        let own = tried.is_some_and(|at| shortage.trial_at == Some(at) && at > shortage.refused_at);
        elapsed(last, *now) < TRIAL_EVERY && !own
    };
    let suspended =
        [ledger.short.get(&pool), ledger.suspended.get(&pool)].into_iter().flatten().any(waits);
    rule(!suspended, "S14", "creates are refused there, or replacements fail")
}

/// S13: one more recovery fits into the budget, or this one is that of a delete that did not come
/// about.
fn is_within_attempts(case: &Case, kind: Kind) -> Checked {
    let again = |recovery: &Recovery| {
        recovery.phase == Phase::Condemned && (recovery.kind, kind) != (Kind::Lost, Kind::Judged)
    };
    if case.record.recovery.as_ref().is_some_and(again) {
        return Ok(());
    }
    let attempts = &case.slot.policy.attempts;
    let most = if kind == Kind::Judged { attempts.max } else { attempts.preemptions };
    rule(
        case.record.attempts_used(kind, attempts.window, case.now) < most,
        "S13",
        "its attempts are used up",
    )
}

/// The location of the job's checkpoints, where they are looked for.
fn listed(slot: &SlotSettings) -> Option<&str> {
    let checkpoint = slot.job.as_ref()?.checkpoint.as_ref()?;
    checkpoint.is_listed().then_some(checkpoint.uri.as_str())
}

/// What a create sends: what was learned, in its zone, as the config overlays it.
fn specification(case: &Case) -> NodeSpec {
    let learned = case.record.spec.clone().unwrap_or_else(NodeSpec::empty);
    learned.in_zone(&case.record.zone).overlaid(&case.slot.create)
}
