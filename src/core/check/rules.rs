//! Rules that deletes and run orders have in common.

use std::time::Duration;

use super::body::specification;
use super::case::{Case, Checked, Violation, rule};
use super::follows::can_follow;
use super::pools::pool_is_supplied;
use crate::model::command::Pause;
use crate::model::condition::Condition;
use crate::model::settings::{OnSuccess, Size};
use crate::model::time::elapsed;
use crate::model::traits::BudgetOf;

/// A finished TPU has been READY and held by nothing for so long when it is deleted.
const FINISHED_FOR: Duration = Duration::from_secs(600);

/// S7: paused.
pub(super) fn is_paused(case: &Case) -> bool {
    let holds = |pause: &&Pause| pause.until.is_none_or(|until| case.now < until);
    case.record.paused.iter().chain(&case.ledger.paused).any(|pause| holds(&pause))
}

/// S7: paused, or opted out.
pub(super) fn is_held(case: &Case) -> bool {
    is_paused(case) || case.record.seen.as_ref().is_some_and(|seen| seen.opted_out)
}

/// S17: the slot's own plain node.
pub(super) fn is_plain(case: &Case) -> Checked {
    let Some(seen) = &case.record.seen else { return Ok(()) };
    let adopted = case.record.adopted.as_ref();
    let others = seen.other_owner.as_ref().is_some_and(|owner| adopted != Some(owner));
    let plain = seen.queued_resource.is_none() && !seen.multislice && !seen.is_v1 && !others;
    rule(plain, "S17", "the node is not the slot's own plain node")
}

/// S3, S10: sick for its grace, over all confirmations, and nothing that is at work.
pub(super) fn lasted(case: &Case, condition: Condition) -> Checked {
    let record = case.record;
    let Some(suspicion) = &record.suspicion else {
        return Err(Violation("S3", "it is not suspected of anything"));
    };
    let Size { spot, not_listed, .. } = case.record.size();
    let smallest = Size { spot, not_listed, ..Size::default() };
    let least = case.slot.policy.grace.of(condition, smallest);
    // The end of a training job is final.
    let reads = if record.has_ended() { 1 } else { case.slot.policy.confirmations };
    let lasted = suspicion.sick_for >= least && suspicion.reads >= reads;
    rule(lasted, "S3", "the whole grace and all confirmations must have passed")?;
    let wanted = matches!(condition, Condition::Stopped | Condition::Deleting);
    rule(!wanted, "S10", "stopped, or being deleted")?;
    let creating = record.seen.as_ref().is_some_and(|seen| seen.creating);
    let made_by_others = condition == Condition::Starting && creating && !record.ours;
    rule(!made_by_others, "S10", "it is being created, and not by this watchdog")
}

/// S23: the TPU of a job that has finished, with evidence, is not wanted any longer.
pub(super) fn is_over(case: &Case, how: OnSuccess) -> Checked {
    let Case { slot, record, now, .. } = case;
    let wanted = slot.policy.on_success == how;
    rule(wanted && record.ours, "S17", "it is not ours, or the config keeps it")?;
    let ready = record.seen.as_ref().is_some_and(|seen| seen.ready);
    rule(ready, "S10", "it is not READY")?;
    let key = slot.job.as_ref().map(|job| job.key());
    let journaled = key.is_some() && record.job.finished == key;
    let ended = |(generation, code)| code == 0 && generation >= record.heard_from();
    let its_own = record.job.ordered.is_none() || record.job.ordered == key;
    let said = record.job.exits.get(&0).filter(|exit| record.job.pardoned.get(&0) != Some(exit));
    let over = journaled && its_own && said.is_some() && record.exit_of(0).is_some_and(ended);
    rule(over, "S23", "nothing shows that its job has finished on it")?;
    let shown = record.verdict.condition == Condition::Finished;
    let since = record.job.removable_since.filter(|_| shown).map(|at| at.max(record.since));
    let long = since.is_some_and(|since| elapsed(since, *now) >= FINISHED_FOR);
    rule(long, "S23", "it has not been there, held by nothing, for long enough")?;
    is_specified(case)
}

/// S12.
pub(super) fn is_specified(case: &Case) -> Checked {
    let supervisor = case.slot.supervisor.as_deref();
    let (owner, name) = (&case.settings.owner, &case.record.name);
    let acceptable = specification(case).acceptable(owner, name, supervisor);
    rule(acceptable.is_ok(), "S12", "there is no stored, valid specification")
}

/// S7, S8, S14, S20: what guards judged slots alone.
pub(super) fn guards_judged(case: &Case) -> Checked {
    let Case { slot, ledger, now, .. } = case;
    let quiet = slot.policy.quiet_hours.iter().any(|hours| hours.until(*now).is_some());
    rule(!quiet, "S7", "quiet hours")?;
    // A storm of jobs that stopped saving says nothing of a TPU.
    let is_tpu = slot.filling.traits().budget == BudgetOf::Tpus;
    let open = ledger.breaker.as_ref().is_some_and(|of| !is_tpu || of.of == BudgetOf::Tpus);
    rule(!open, "S8", "the storm breaker is open")?;
    can_follow(case)?;
    pool_is_supplied(case)
}
