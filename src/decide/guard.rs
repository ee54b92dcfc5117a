//! The safety rules once more, apart from the plan: every condemnation passes here right before it is journaled.
//!
//! A violation is a defect of the plan, not a state of the world: it is counted, told, and nothing is done.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::fleet::{Confirmed, elapsed};
use crate::model::mutant::{self, Mutant};
use crate::model::spec::NodeSpec;

use super::judge::{Bench, CONFIRMED_FOR};

/// A broken invariant, by its name in the safety list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation(&'static str, &'static str);

impl Violation {
    /// The invariant's name, as in `S1`.
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0, self.1)
    }
}

/// The workers' reports on which a delete rests were asked for at most this long before it is decided: those of a pod take longer
/// than the GET that follows them.
pub const HEARD_FOR: Duration = Duration::from_secs(10);

/// Whether the workers' reports are fresh, where they are what condemns.
pub fn is_heard(bench: &Bench, condition: Condition, now: Timestamp) -> bool {
    let after_mutation =
        |at: &Timestamp| bench.record.mutated_at.is_none_or(|mutated| *at > mutated) || mutant::is(Mutant::ReuseTheReports);
    !condition.is_reported()
        || bench.memory.heard.filter(after_mutation).is_some_and(|at| elapsed(at, now) <= HEARD_FOR && at <= now)
}

/// Whether this slot may be condemned now, on this evidence.
pub fn may_condemn(
    bench: &Bench,
    condition: Condition,
    kind: Kind,
    confirmed: &Confirmed,
    now: Timestamp,
) -> Result<(), Violation> {
    if mutant::is_any() {
        return Ok(());
    }
    let record = &*bench.record;
    let rule = |holds: bool, name, text| if holds { Ok(()) } else { Err(Violation(name, text)) };
    let target = record.incarnation.as_ref().filter(|_| condition != Condition::Missing);
    rule(
        confirmed.incarnation.as_ref() == target && elapsed(confirmed.began, now) <= CONFIRMED_FOR && confirmed.began <= now,
        "S1",
        "the GET must show the condemned incarnation, at most 5 s ago",
    )?;
    rule(
        record.mutated_at.is_none_or(|at| confirmed.began > at)
            && bench.memory.last_read.is_some_and(|at| elapsed(at, now) <= bench.slot.policy.max_age),
        "S2",
        "the read must be younger than max_age and than our last mutation",
    )?;
    let suspicion = record.suspicion.as_ref();
    rule(
        suspicion.is_some_and(|s| {
            let reserved = record.seen.as_ref().is_some_and(|s| s.reserved);
            s.reads >= bench.slot.policy.confirmations && s.sick_for >= bench.slot.policy.grace.of(condition, reserved)
        }),
        "S3",
        "the whole grace and all confirmations must have passed",
    )?;
    rule(condition.is_sick() && condition.kind() == Some(kind), "S5", "the condition must be a known sick one")?;
    let reported = super::diagnose::is_still_reported(record, bench.slot, bench.ledger, now);
    rule(reported, "S5", "its workers' reports say that it is alive")?;
    rule(is_heard(bench, condition, now), "S5", "its workers' reports must have been asked for at most 10 s ago")?;
    let seen = record.seen.as_ref();
    let counted = super::plan::is_unavailable(record);
    rule(
        kind == Kind::Lost || counted || bench.budget.unavailable < bench.budget.max_unavailable,
        "S6",
        "too many judged slots in recovery",
    )?;
    rule(
        !bench.settings.dry_run && seen.is_none_or(|s| !s.opted_out) && super::lever::paused(bench, now).is_none(),
        "S7",
        "dry run, opted out or paused",
    )?;
    let quiet = bench.slot.policy.quiet_hours.iter().any(|hours| hours.until(now).is_some());
    rule(kind == Kind::Lost || !quiet, "S7", "quiet hours")?;
    rule(kind == Kind::Lost || bench.ledger.breaker.is_none(), "S8", "the storm breaker is open")?;
    rule(
        record.recovery.as_ref().is_none_or(|r| !r.owes_create() || record.incarnation.is_some()),
        "S9",
        "the slot is in recovery already",
    )?;
    rule(condition != Condition::Stopped && condition != Condition::Deleting, "S10", "stopped or being deleted")?;
    rule(
        record
            .spec
            .clone()
            .unwrap_or_else(NodeSpec::empty)
            .overlaid(&bench.slot.create)
            .acceptable(&bench.settings.owner, &record.name, bench.slot.supervisor.as_deref())
            .is_ok(),
        "S12",
        "there is no stored, valid specification",
    )?;
    let location = bench.slot.job.as_ref().and_then(|job| job.checkpoint.as_ref()).filter(|checkpoint| checkpoint.is_listed());
    let hour = Duration::from_secs(3600);
    rule(
        kind == Kind::Lost
            || location.is_none()
            || (record.job.trouble.is_none() && record.job.listed_at.is_some_and(|at| elapsed(at, now) <= hour)),
        "S20",
        "the checkpoints that its create starts from must have been listed within the last hour, and be understood",
    )?;
    rule(
        seen.is_none_or(|s| {
            s.queued_resource.is_none()
                && !s.multislice
                && !s.is_v1
                && s.other_owner.as_ref().is_none_or(|o| record.adopted.as_ref() == Some(o))
        }),
        "S17",
        "the node is not the slot's own plain node",
    )
}
