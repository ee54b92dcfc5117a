//! The safety rules once more, before every delete and every create, by predicates of its own: this
//! file imports `model` alone and shares no rule with the gates, so that a mistake in one of them
//! is found by the other.
//!
//! It reads the slot's record and memory, the ledger and the config as they are before the
//! mutation. A violation is a defect of the plan, not a state of the world: it is counted and told,
//! and nothing is done. It never asks whether acting is wise, only whether a rule of
//! docs/invariants.md forbids it. Worked example: a node is READY with health TIMEOUT for 11 min,
//! its GET is 2 s old, no judged slot is in recovery. Every rule holds, and the delete goes on. The
//! same with a GET of 6 s ago breaks S1, and the slot is held as `refused`.

mod ahead;
mod body;
mod case;
mod follows;
mod order;
mod pools;
mod removal;
mod room;
mod rules;
mod stalled;

pub use ahead::ahead;
pub use case::{Case, Checked, Violation};
pub use order::{amendment, order};
pub use removal::{idling, removal};

use body::specification;
use case::{CREATES, REPORTED_FOR, VERIFIED_FOR, listed, rule};
use follows::can_follow;
use pools::pool_is_supplied;
use room::{Sort, sort, takes_room};
use rules::{guards_judged, is_held, is_over, is_plain, is_specified, lasted};
use stalled::is_stalled;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::model::condition::{Condition, Kind};
use crate::model::exit::Stuck;
use crate::model::filling::Deletable;
use crate::model::fleet::{Confirmed, Fleet, Pending, Stray};
use crate::model::ids::RunOrder;
use crate::model::job::WorkerState;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::OnSuccess;
use crate::model::time::elapsed;

/// In a fleet of one or two a judged recreate within a day after another one, without progress
/// between them, waits so much longer (S8).
const DAY: Duration = Duration::from_secs(24 * 3600);
const SECOND_LOOK: Duration = Duration::from_secs(3600);

/// The count of judged slots in recovery, by this file's own reading of S6, kept while one step
/// decides about many slots.
pub struct Checker {
    // Of TPUs, and of managed training jobs.
    sorts: [Sort; 2],
    last: usize,
}

impl Checker {
    /// Before a step decides about the first slot.
    pub fn new(fleet: &Fleet) -> Checker {
        Checker { sorts: room::counted(fleet), last: 0 }
    }

    /// Whether this slot may be condemned for this condition now, and what it names be deleted.
    ///
    /// # Errors
    /// The first rule that forbids it.
    pub fn delete(&mut self, case: &Case, condition: Condition, confirmed: &Confirmed) -> Checked {
        is_shown(case, condition, confirmed)?;
        is_free(case)?;
        is_plain(case)?;
        is_deletable(case, condition)?;
        if condition == Condition::Deleting {
            let long = elapsed(case.record.since, case.now) >= case.slot.policy.grace.deleting;
            let shown = case.record.verdict.condition == Condition::Deleting;
            return rule(shown && long, "S10", "another hand deletes it, and not for long");
        }
        if condition == Condition::Requested {
            return self.asked(case);
        }
        if condition == Condition::Finished {
            return is_over(case, OnSuccess::Delete);
        }
        let kind = condition.kind().ok_or(Violation("S5", "the condition is no sickness"))?;
        lasted(case, condition)?;
        is_reported(case, condition)?;
        is_stalled(case, condition)?;
        let counted = takes_room(case.record);
        if kind == Kind::Judged {
            let of = &self.sorts[sort(case.slot)];
            let others = of.judged.saturating_sub(usize::from(counted));
            rule(others < of.most, "S6", "too many judged slots are in recovery")?;
            guards_judged(case)?;
            self.second_look(case)?;
        }
        // A lost node of ours is removed; its budget is asked before the create.
        if !(kind == Kind::Lost && case.record.ours) {
            is_within_attempts(case, kind)?;
        }
        is_specified(case)?;
        self.last = sort(case.slot);
        self.sorts[self.last].judged += usize::from(kind == Kind::Judged && !counted);
        Ok(())
    }

    /// The judged slot that was checked last takes no room after all.
    pub fn not_done(&mut self) {
        let judged = &mut self.sorts[self.last].judged;
        *judged = judged.saturating_sub(1);
    }

    /// An operator is there: graces, quiet hours, `max_unavailable` and the breaker are skipped.
    fn asked(&mut self, case: &Case) -> Checked {
        let wanted = case.record.wanted.as_ref().and_then(|wish| wish.incarnation.as_ref());
        let meant = wanted.is_some() && wanted == case.record.incarnation.as_ref();
        rule(meant, "S3", "no operator asked for this incarnation")?;
        let state = case.record.verdict.condition;
        let at_work =
            [Condition::Stopped, Condition::Starting, Condition::Waiting, Condition::Going]
                .contains(&state);
        let ended = case.record.has_ended();
        rule(!at_work || ended, "S10", "it was stopped, or the API works on it")?;
        rule(state != Condition::Unclear, "S5", "what it is is not known")?;
        // A training job that has ended can lose nothing by a submission that is refused.
        if !ended {
            can_follow(case)?;
            pool_is_supplied(case)?;
        }
        is_within_attempts(case, Kind::Judged)?;
        is_specified(case)
    }

    /// S8, where there is no storm breaker.
    fn second_look(&self, case: &Case) -> Checked {
        let again = case.record.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Condemned);
        let judged = case.record.attempts.iter().filter(|attempt| attempt.kind == Kind::Judged);
        let last = judged.map(|attempt| attempt.at).max();
        let recent = last.is_some_and(|last| {
            elapsed(last, case.now) < DAY && case.record.job.progress_at.is_none_or(|at| at <= last)
        });
        let waited = case.record.suspicion.as_ref().is_some_and(|s| s.sick_for >= SECOND_LOOK);
        let small = self.sorts[sort(case.slot)].desired <= 2;
        let holds = !small || again || !recent || waited;
        rule(holds, "S8", "a second judged recreate within a day waits an hour")
    }

    /// Whether this slot's pending create may be sent now with this body.
    ///
    /// # Errors
    /// The first rule that forbids it.
    pub fn create(&self, case: &Case, order: &RunOrder, body: &Value) -> Checked {
        let Case { settings, slot, record, memory, ledger, now } = case;
        let gone = record.recovery.as_ref().is_some_and(|recovery| recovery.phase() == Phase::Gone);
        rule(gone && record.incarnation.is_none(), "S4", "nothing says that the node is gone")?;
        let calls = memory.pending.contains(&Pending::Call);
        rule(!calls, "S9", "another call of the slot is under way")?;
        let remains = ledger.strays.get(&Stray::key(&record.zone, &record.name));
        let free = !remains.is_some_and(Stray::is_being_removed);
        rule(free, "S9", "a dead node of that name is being removed there")?;
        let asked = |stray: &Stray| {
            let elsewhere = stray.zone != record.zone || stray.filling() != slot.filling;
            stray.made_for() == record.name && stray.request.is_some() && elsewhere
        };
        let others = record.asked_ahead().is_some() || record.asked_by_another.is_some();
        let alone = !ledger.strays.values().any(asked) && !others;
        rule(alone, "S21", "another queued resource of the slot may still be granted")?;
        rule(!(settings.dry_run || is_held(case)), "S7", "dry run, opted out or paused")?;
        let recovery = record.recovery.as_ref();
        if recovery.is_some_and(|recovery| recovery.kind == Kind::Lost) {
            let attempts = &slot.policy.attempts;
            let used = record.attempts_used(Kind::Lost, attempts.window, *now);
            rule(used <= attempts.preemptions, "S13", "its preemptions are used up")?;
        }
        let wanted = recovery.is_some_and(|recovery| !recovery.no_create) && !record.forgotten;
        rule(wanted, "S21", "the create was called off")?;
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
        no_job_lives(case)?;
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
        if slot.finds_its_own() {
            return Ok(());
        }
        let fresh = memory.surveyed_at.is_some_and(|at| elapsed(at, *now) <= slot.policy.max_age);
        rule(
            fresh && memory.survey_failure.is_none(),
            "S15",
            "the checkpoints were not listed since the node is gone",
        )?;
        rule(record.job.trouble.is_none(), "S20", "the checkpoint location is not understood")
    }
}

/// S24: lists that are newer than the predecessor's end show no live job of the lineage.
fn no_job_lives(case: &Case) -> Checked {
    let Case { slot, record, memory, now, .. } = case;
    let since = record.recovery.as_ref().map(|recovery| recovery.phase_since);
    let settled = |sent| elapsed(sent, *now) >= slot.filling.settle();
    let settled = record.submitted_at.is_none_or(settled);
    let newer = |at| settled && Some(at) >= since && elapsed(at, *now) <= slot.policy.max_age;
    let alone = !slot.filling.traits().is_found_by_lists || memory.none_live.is_some_and(newer);
    rule(alone, "S24", "another job of its lineage may live")
}

/// S1, S2: this incarnation, shown by a GET of just now, newer than our last mutation.
fn is_shown(case: &Case, condition: Condition, confirmed: &Confirmed) -> Checked {
    let (record, now) = (case.record, case.now);
    let target = if condition == Condition::Missing { None } else { record.incarnation.as_ref() };
    let fresh = confirmed.began <= now && elapsed(confirmed.began, now) <= VERIFIED_FOR;
    let same = confirmed.incarnation.as_ref() == target
        && (target.is_some() || condition == Condition::Missing);
    rule(same && fresh, "S1", "the GET must show the condemned incarnation, at most 5 s ago")?;
    let after = record.mutated_at.is_none_or(|at| confirmed.began > at);
    let read = case.memory.last_read.is_some_and(|at| elapsed(at, now) <= case.slot.policy.max_age);
    rule(after && read, "S2", "the read must be younger than max_age and than our last mutation")
}

/// S5: what rests on the workers' reports rests on those of the last 10 s, which still say it.
fn is_reported(case: &Case, condition: Condition) -> Checked {
    if !condition.is_reported() {
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
    let boot = graces.boot(record.size());
    let says = match condition {
        Condition::NeverBooted => {
            let booted = |worker| state(worker).is_some_and(|worker: &WorkerState| worker.booted);
            !(0..workers).all(booted) && record.job.unbooted_for >= boot
        }
        Condition::GangIncomplete => {
            let started =
                record.job.has_run || record.job.workers.values().any(|worker| worker.attempt > 0);
            let of = |worker| state(worker).and_then(|worker| worker.index);
            let indices: BTreeSet<usize> = (0..workers).filter_map(of).collect();
            let whole = indices.len() == workers && indices.last().is_none_or(|i| *i < workers);
            !(started || whole) && record.job.ungathered_for >= boot
        }
        Condition::ChipsMissing => {
            let kind = record.seen.as_ref().map_or("", |seen| seen.accelerator.as_str());
            let usual = case.ledger.chips.get(kind).copied().unwrap_or(0);
            let lacks = |w: &WorkerState| w.chips.is_some_and(|n| n < usual) && !w.runs();
            let short = record.job.workers.values().any(lacks) && record.job.short_for >= boot;
            let told =
                |(worker, ..): &(usize, i64, String)| record.job.reboots.contains_key(worker);
            let stuck = record.job.stuck == Some(Stuck::ChipsStuck)
                && record.job.failed.as_ref().is_some_and(told);
            short || stuck && record.job.stuck_for >= boot
        }
        _ => record.job.workers.values().any(|worker| worker.quiet_for >= graces.silent),
    };
    rule(record.ours && says, "S5", "the workers' reports say that it is alive, or it is not ours")
}

/// S7, S9: no operator holds it, and no create of it is pending.
fn is_free(case: &Case) -> Checked {
    rule(!(case.settings.dry_run || is_held(case)), "S7", "dry run, opted out or paused")?;
    let pending = |recovery: &Recovery| {
        matches!(recovery.phase(), Phase::Deleting | Phase::Gone | Phase::Creating)
    };
    let busy =
        case.record.recovery.as_ref().is_some_and(pending) && case.record.incarnation.is_none();
    rule(
        !busy && !case.memory.pending.contains(&Pending::Call),
        "S9",
        "the slot is in recovery already",
    )
}

/// S10: a delete that the API refuses in this state is not asked for.
fn is_deletable(case: &Case, condition: Condition) -> Checked {
    let seen = case.record.seen.as_ref().filter(|_| condition != Condition::Missing);
    let now = seen.is_none_or(|seen| seen.deletable != Deletable::NotNow);
    rule(now, "S10", "its queued resource can't be deleted in this state")
}

/// S13: one more recovery fits into the budget, or this one is that of a delete that did not come
/// about.
fn is_within_attempts(case: &Case, kind: Kind) -> Checked {
    let again = |recovery: &Recovery| {
        recovery.phase() == Phase::Condemned && (recovery.kind, kind) != (Kind::Lost, Kind::Judged)
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
