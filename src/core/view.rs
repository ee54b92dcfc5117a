//! The fleet as people see it.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::location;
use crate::model::action::Input;
use crate::model::condition::{Condition, Kind};
use crate::model::fleet::{Fleet, Ledger, Removal, Stray};
use crate::model::hold::HoldReason;
use crate::model::job_phase::JobPhase;
use crate::model::phase::Phase;
use crate::model::recovery::Call;
use crate::model::relaunch::{TAKES_ORDERS, TAKES_WAIT};
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::view::{
    ActionName, AttemptsView, BreakerState, Decision, JobView, SlotView, StatusDocument, StrayView,
};

/// The document of `status` and `plan`.
pub fn document(fleet: &Fleet, now: Timestamp) -> StatusDocument {
    StatusDocument {
        observed_at: fleet.ledger.observed_at,
        acting: None,
        breaker: if fleet.ledger.breaker.is_some() {
            BreakerState::Open
        } else {
            BreakerState::Closed
        },
        tpus: fleet.slots.values().map(|record| slot(fleet, record, now)).collect(),
        strays: fleet.ledger.strays.values().map(stray).collect(),
    }
}

fn stray(stray: &Stray) -> StrayView {
    StrayView {
        name: stray.name.clone(),
        zone: stray.zone.clone(),
        state: stray.state.clone(),
        since: stray.since,
        why: stray.why.clone(),
        removal: stray.removal.as_ref().map(removal),
    }
}

fn removal(removal: &Removal) -> String {
    let at = removal.at;
    match (&removal.call, &removal.failure) {
        (Some(Call::Intended), _) => format!("its delete was decided at {at:.0}"),
        (Some(_), None) => format!("its delete was sent at {at:.0}"),
        (Some(_), Some(why)) => format!("its delete of {at:.0} has no answer: {why}"),
        (None, why) => {
            let why = why.as_deref().unwrap_or("see the log");
            format!("its delete of {at:.0} failed and is tried again: {why}")
        }
    }
}

/// The document of what a journal holds, decided over without carrying anything out.
pub fn at_rest(
    settings: &Settings,
    slots: BTreeMap<String, SlotRecord>,
    ledger: Ledger,
    now: Timestamp,
) -> StatusDocument {
    let mut looking = settings.clone();
    looking.dry_run = true;
    let mut fleet = Fleet::new(looking.clone(), slots, ledger);
    // The effects are dropped: this is a look at what would be decided.
    let _ = super::step(&mut fleet, Input::Configured(Box::new(looking)), now);
    without_dry_run(document(&fleet, now), settings.dry_run)
}

fn slot(fleet: &Fleet, record: &SlotRecord, now: Timestamp) -> SlotView {
    let settings = fleet.settings.slots.get(&record.name);
    let undecided = Decision::wait("not decided about yet", None);
    let decision =
        fleet.memory.get(&record.name).and_then(|m| m.decision.as_ref()).unwrap_or(&undecided);
    let seen = record.seen.as_ref();
    let window = settings.map(|s| s.policy.attempts.window).unwrap_or_default();
    SlotView {
        name: record.name.clone(),
        zone: record.zone.clone(),
        kind: "node".to_owned(),
        incarnation: record.incarnation.clone(),
        state: seen.filter(|_| record.incarnation.is_some()).map(|s| s.state.clone()),
        health: seen.filter(|_| record.incarnation.is_some()).and_then(|s| s.health.clone()),
        condition: record.verdict.condition,
        since: record.since,
        evidence: record.verdict.evidence.clone(),
        phase: record.recovery.as_ref().map(|r| r.phase.name().to_owned()),
        action: decision.action,
        hold: decision.hold.map(|h: HoldReason| h.name().to_owned()),
        reason: decision.reason.clone(),
        until: decision.until,
        attempts: AttemptsView {
            used: record.attempts_used(Kind::Judged, window, now),
            max: settings.map_or(0, |s| s.policy.attempts.max),
        },
        job: settings.filter(|s| s.job.is_some()).map(|slot| job(record, slot)),
        accelerator: seen.map(|s| s.accelerator.clone()),
        drift: match (settings, &record.spec) {
            (Some(settings), Some(spec)) => spec.drift(&settings.create),
            _ => Vec::new(),
        },
        unhealthy_since: match &record.recovery {
            Some(recovery) => Some(recovery.symptom_at),
            None => record
                .suspicion
                .as_ref()
                .filter(|_| record.verdict.condition != Condition::Healthy)
                .map(|s| s.since),
        },
        maintenance_start: seen.and_then(|s| s.maintenance_start),
        paused: [&record.paused, &fleet.ledger.paused]
            .into_iter()
            .flatten()
            .any(|pause| pause.holds(now)),
        warnings: settings.map(|settings| warnings(record, settings)).unwrap_or_default(),
        opted_out: seen.is_some_and(|seen| seen.opted_out),
        refused: record
            .recovery
            .as_ref()
            .filter(|r| matches!(r.phase, Phase::Gone | Phase::Creating))
            .and_then(|r| r.refusal.as_ref())
            .map(|(class, _)| class.name().to_owned()),
    }
}

/// Gaps that matter on the day on which the slot is created again.
fn warnings(record: &SlotRecord, slot: &SlotSettings) -> Vec<String> {
    let Some(job) = slot.job.as_ref() else { return Vec::new() };
    let (learned, mut all) = (record.spec.as_ref(), Vec::new());
    if !NodeSpec::has_a_script(learned, &slot.create)
        && (learned.is_some() || record.seen.is_none())
    {
        let lacks = if job.command.is_some() {
            "the command finds the bare image"
        } else {
            "nothing runs on it"
        };
        all.push(format!(
            "no startup script is known: a recreated TPU has an empty boot disk, so {lacks}; set startup_script = \"FILE\" that installs \
             what the job needs"
        ));
    }
    all.extend(old_supervisor(record));
    all.extend(waits(record));
    if location::listed(slot).is_some() {
        all.extend(record.job.trouble.as_ref().map(|trouble| trouble.text().to_owned()));
    }
    all
}

/// Its TPU is well, and its job has not begun: on which host it waits, and for what.
fn waits(record: &SlotRecord) -> Option<String> {
    let (phase, worker, words) = present_phase(record)?;
    let well = record.verdict.condition == Condition::Healthy && phase.is_before_a_run();
    well.then(|| format!("the job does not run yet: worker {worker}: {words}"))
}

/// The job's phase on the hosts of a node that is READY.
fn present_phase(record: &SlotRecord) -> Option<(JobPhase, usize, &str)> {
    let ready = record.seen.as_ref().is_some_and(|seen| seen.ready && seen.supervised);
    record.job_phase().filter(|_| ready && record.ours)
}

/// Its hosts run an earlier supervisor: nothing condemns them for it, and some commands do not reach
/// them.
fn old_supervisor(record: &SlotRecord) -> Option<String> {
    let supervised = record.ours && record.seen.as_ref().is_some_and(|seen| seen.supervised);
    let booted = |worker| record.job.workers.get(&worker).filter(|state| state.booted);
    let versions: Option<Vec<u64>> =
        (0..record.size().hosts).map(|worker| Some(booted(worker)?.version)).collect();
    let oldest = versions.filter(|_| supervised)?.into_iter().min()?;
    let lacks = match oldest {
        TAKES_WAIT.. => return None,
        TAKES_ORDERS.. => "a pause and a health notice do not reach its hosts",
        _ => "no newer run order, pause or health notice reaches its hosts",
    };
    Some(format!("old supervisor (version {oldest}) until the next recreate: {lacks}"))
}

fn job(record: &SlotRecord, slot: &SlotSettings) -> JobView {
    let phase = record.recovery.as_ref().map(|r| r.phase);
    let on_hosts = present_phase(record).map(|(phase, ..)| phase);
    let state = match (record.verdict.condition, phase) {
        (Condition::Finished, _) => "finished",
        (Condition::JobFailed, _) => "failed",
        (condition, _) if condition.job_stands() => "waiting",
        (Condition::Healthy, _) if on_hosts.is_some_and(JobPhase::is_before_a_run) => "waiting",
        (_, Some(Phase::Launched)) => "running",
        (_, Some(_)) => "waiting",
        (Condition::Healthy, None) if record.ours || record.job.progress_at.is_some() => "running",
        _ => "unknown",
    };
    let location = location::listed(slot).map(|listed| listed.uri.clone());
    // A checkpoint of another place starts nothing.
    let checkpoint =
        record.job.checkpoint.as_ref().filter(|_| location.as_ref() == Some(&record.job.location));
    JobView {
        state: state.to_owned(),
        phase: on_hosts,
        step: record.job.step,
        checkpoint: checkpoint.map(|c| c.uri.clone()),
        checkpoint_step: checkpoint.map(|c| c.step),
        checkpoint_at: record.job.checkpoint_at.filter(|_| checkpoint.is_some()),
        held: location.is_some() && record.job.trouble.is_some(),
        location,
    }
}

/// For a look over a fleet that was held by the looker's own dry run: only the user's `dry_run` is
/// shown as a hold.
pub fn without_dry_run(mut document: StatusDocument, users_dry_run: bool) -> StatusDocument {
    if !users_dry_run {
        for slot in document
            .tpus
            .iter_mut()
            .filter(|s| s.hold.as_deref() == Some(HoldReason::DryRun.name()))
        {
            slot.hold = None;
        }
    }
    document
}

/// Whether anything waits for a person.
pub fn needs_a_person(document: &StatusDocument) -> bool {
    document.breaker == BreakerState::Open
        || document.tpus.iter().any(|slot| slot.action == ActionName::Escalate)
}
