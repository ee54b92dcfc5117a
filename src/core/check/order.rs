//! The rules of writing a newer run order to the node that is there.

use std::time::Duration;

use super::case::{Case, Checked, REPORTED_FOR, VERIFIED_FOR, listed, rule};
use super::rules::{guards_judged, is_held, is_over, is_paused, is_plain, lasted};
use crate::model::condition::Condition;
use crate::model::fleet::Pending;
use crate::model::ids::RunOrder;
use crate::model::phase::Phase;
use crate::model::relaunch::Patch;
use crate::model::settings::OnSuccess;
use crate::model::time::elapsed;

/// Checkpoints were listed at most so long ago.
const LISTED_FOR: Duration = Duration::from_secs(60);

/// Whether this order may be written to the slot's node now.
///
/// # Errors
/// The first rule that forbids it.
pub fn order(case: &Case, order: &RunOrder) -> Checked {
    let Case { settings, slot, record, memory, now, .. } = case;
    rule(!(settings.dry_run || is_held(case)), "S7", "dry run, opted out or paused")?;
    is_plain(case)?;
    let seen = record.seen.as_ref();
    let ours = record.ours && !record.forgotten && seen.is_some_and(|seen| seen.supervised);
    rule(ours, "S17", "the node runs no supervisor of this watchdog")?;
    let condition = record.verdict.condition;
    let well =
        [Condition::Healthy, Condition::Degraded].contains(&condition) || condition.job_stands();
    let curable = [Condition::Unresponsive, Condition::RuntimeUnhealthy].contains(&condition);
    // An operator's wish skips graces, quiet hours and the breaker.
    if curable && record.job.relaunch_by.is_none() {
        is_curable(case)?;
    }
    rule(
        (well || curable) && seen.is_some_and(|seen| seen.ready),
        "S15",
        "the node is not READY and well",
    )?;
    let idle = record.recovery.as_ref().is_none_or(|r| r.phase() == Phase::Launched);
    let calls = memory.pending.contains(&Pending::Call);
    rule(idle && !calls, "S9", "the slot is in recovery, or another call is under way")?;
    let newest = seen.and_then(|seen| seen.out_of_step).unwrap_or_default();
    let newer = order.generation > record.job.generation.max(record.heard_from()).max(newest);
    rule(newer, "S15", "the generation is not new")?;
    let key = slot.job.as_ref().map(|job| job.key());
    let same = record.job.ordered.is_none() || record.job.ordered == key;
    rule(same, "S15", "the TPU runs another job than the config names")?;
    let hosts = seen.map_or(1, |seen| seen.workers.max(1));
    let there = (0..hosts).all(|worker| record.job.workers.get(&worker).is_some_and(|w| w.booted));
    rule(there, "S22", "not every worker has reported")?;
    let job = &record.job;
    let asked = job.relaunch_by.is_some() || job.wanted_again == Some(job.generation);
    let heard = memory.heard.is_some_and(|at| elapsed(at, *now) <= slot.policy.max_age);
    rule(asked || heard, "S5", "what its workers reported last is too old")?;
    let Some(location) = listed(slot) else {
        return rule(order.checkpoint.is_empty(), "S15", "a checkpoint of no location");
    };
    let recorded = record.job.checkpoint.as_ref().filter(|_| record.job.location == location);
    let newest = order.step == recorded.map(|checkpoint| checkpoint.step);
    rule(newest, "S15", "not the newest complete checkpoint")?;
    if slot.finds_its_own() {
        return Ok(());
    }
    let ended = record.job.failed_at;
    let fresh =
        memory.surveyed_at.is_some_and(|at| elapsed(at, *now) <= LISTED_FOR && Some(at) >= ended);
    let known = fresh && memory.survey_failure.is_none();
    rule(known, "S15", "the checkpoints were not listed within a minute")?;
    rule(record.job.trouble.is_none(), "S20", "the checkpoint location is not understood")
}

/// Whether the slot's node may be patched so now, with no new generation.
///
/// # Errors
/// The first rule that forbids it.
pub fn amendment(case: &Case, patch: &Patch) -> Checked {
    let Case { settings, record, memory, .. } = case;
    let opted_out = record.seen.as_ref().is_some_and(|seen| seen.opted_out);
    let undoes = patch.only_undoes(record.seen.as_ref().and_then(|seen| seen.run.as_ref()));
    rule(!settings.dry_run && (undoes || !opted_out), "S7", "dry run, or opted out")?;
    is_plain(case)?;
    rule(record.ours, "S17", "the node is not this watchdog's")?;
    let seen = record.seen.as_ref();
    rule(seen.is_some_and(|seen| seen.ready), "S10", "the node is not READY")?;
    let idle = record.recovery.as_ref().is_none_or(|r| r.phase().is_up());
    let ordered = record.job.relaunch.is_some() && matches!(patch, Patch::Order(_));
    let calls = memory.pending.contains(&Pending::Call) || ordered;
    rule(idle && !calls, "S9", "the slot is in recovery, or another call is under way")?;
    if *patch == Patch::Stop {
        rule(!is_paused(case), "S7", "it is paused")?;
        rule(record.size().hosts == 1, "S17", "it has more than one host")?;
        let once = record.job.stopped != record.incarnation;
        rule(once, "S17", "it was stopped before, and started by hand")?;
        return is_over(case, OnSuccess::Stop);
    }
    let Patch::Order(order) = patch else {
        let meant = record.released.as_ref().map(|release| &release.incarnation);
        let asked = meant.is_some() && meant == record.incarnation.as_ref();
        return rule(asked, "S17", "no operator wants this node released");
    };
    rule(order.wait || !is_paused(case), "S7", "it is paused, and its job would start")?;
    let ours = (undoes || !record.forgotten) && seen.is_some_and(|seen| seen.supervised);
    rule(ours, "S17", "the node runs no supervisor of this watchdog")?;
    let run = seen.and_then(|seen| seen.run.as_ref());
    let flags_alone = run.is_some_and(|run| {
        let RunOrder { wait, notice, reboot, .. } = order.clone();
        *order == RunOrder { wait, notice, reboot, ..run.clone() }
    });
    let before = run.map_or(&[][..], |run| &run.reboot);
    let reboots = order.reboot.iter().any(|boot| !before.contains(boot));
    rule(!reboots || may_reboot(case, order), "S9", "a run would end by a reboot")?;
    let known = order.generation <= record.job.generation;
    rule(flags_alone && known, "S15", "more than its flags would change")?;
    let starts = run.is_some_and(|run| run.wait) && !order.wait;
    let older = record.outdated_order().is_some();
    let goes_by_it = listed(case.slot).is_some() && !case.slot.finds_its_own();
    rule(!(starts && older && goes_by_it), "S15", "its job would start from an older checkpoint")
}

/// Whether each boot that this order ends is that of a host on which nothing of the job runs.
fn may_reboot(case: &Case, order: &RunOrder) -> bool {
    let record = case.record;
    let stands = [Condition::GangIncomplete, Condition::ChipsMissing, Condition::ChipsBusy];
    let idle = |boot: &String| {
        let host = record.job.workers.values().find(|w| w.boot_id.as_ref() == Some(boot));
        host.is_none_or(|host| !host.runs())
    };
    let heard = case.memory.heard.is_some_and(|at| elapsed(at, case.now) <= REPORTED_FOR);
    heard && stands.contains(&record.verdict.condition) && order.reboot.iter().all(idle)
}

/// An order that ends a run for its TPU's sickness passes what guards a judged delete.
fn is_curable(case: &Case) -> Checked {
    let Case { record, memory, now, .. } = case;
    lasted(case, record.verdict.condition)?;
    guards_judged(case)?;
    let once = record.suspicion.as_ref().is_some_and(|suspicion| !suspicion.relaunched);
    rule(once && record.recovery.is_none(), "S16", "its job was relaunched for it before")?;
    let shown = memory.confirmed.as_ref().is_some_and(|confirmed| {
        confirmed.condition == record.verdict.condition
            && elapsed(confirmed.began, *now) <= VERIFIED_FOR
    });
    rule(shown, "S1", "no GET of the last 5 s shows it")
}
