//! The fleet as people see it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::ctx::Subject;
use super::gates::{self, Obstacle};
use super::relaunch::wanted_for;
use super::{location, pool, reads, resubmission};
use crate::model::action::Input;
use crate::model::ahead::Ahead;
use crate::model::condition::{Condition, Kind};
use crate::model::failure::FailureClass;
use crate::model::fleet::{Breaker, Fleet, Ledger, Removal, Stray};
use crate::model::hold::HoldReason;
use crate::model::job_phase::JobPhase;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::relaunch::{TAKES_ORDERS, TAKES_ROLL_CALL, TAKES_WAIT};
use crate::model::settings::{PollSettings, Settings, SlotSettings};
use crate::model::slot::{Seen, SlotRecord};
use crate::model::spec::NodeSpec;
use crate::model::step::Call;
use crate::model::step::Remedy;
use crate::model::time::{after, elapsed};
use crate::model::view::{
    Acting, ActionName, AttemptsView, BreakerState, Decision, JobView, PauseView, RequestStatus,
    SlotView, StatusDocument, StepOf, StrayView, VERSION,
};

const DAY: Duration = Duration::from_secs(86_400);

/// The document of every view: the last decisions, and whether each slot would be recreated now.
pub fn document(fleet: &Fleet, now: Timestamp) -> StatusDocument {
    let ledger = &fleet.ledger;
    let state = if ledger.breaker.is_some() { BreakerState::Open } else { BreakerState::Closed };
    let why = |breaker: &Breaker| format!("since {:.0}: {}", breaker.opened_at, breaker.why);
    StatusDocument {
        version: VERSION,
        observed_at: ledger.observed_at,
        polled_at: ledger.polled_at,
        acting: ledger.leader.as_ref().map(|leader| Acting::of(&leader.holder, Some(leader))),
        paused: ledger
            .paused
            .as_ref()
            .filter(|pause| pause.holds(now))
            .map(|pause| PauseView::of(pause, true)),
        config: fleet.settings.digest.clone(),
        dry_run: fleet.settings.dry_run,
        breaker: state,
        breaker_why: ledger.breaker.as_ref().map(why),
        tpus: fleet.slots.values().map(|record| slot(fleet, record, now)).collect(),
        strays: ledger.strays.values().map(stray).collect(),
    }
}

/// The document of what a journal holds, as it was last decided about. Slots that the config has and
/// the journal has not are shown as not read.
pub fn at_rest(
    settings: &Settings,
    slots: BTreeMap<String, SlotRecord>,
    ledger: Ledger,
    holder: Option<&str>,
    now: Timestamp,
) -> StatusDocument {
    let fleet = at_rest_fleet(settings, slots, ledger, now);
    let acting = holder.map(|holder| Acting::of(holder, fleet.ledger.leader.as_ref()));
    StatusDocument { acting, ..document(&fleet, now) }
}

fn at_rest_fleet(
    settings: &Settings,
    slots: BTreeMap<String, SlotRecord>,
    ledger: Ledger,
    now: Timestamp,
) -> Fleet {
    let mut fleet = Fleet::new(settings.clone(), slots, ledger);
    fleet.slots.retain(|name, _| settings.slots.contains_key(name));
    for (name, slot) in &settings.slots {
        let zone = slot.zones.first().map_or("", String::as_str);
        fleet.slots.entry(name.clone()).or_insert_with(|| SlotRecord::new(name, zone, now));
    }
    decide(&mut fleet, now);
    fleet
}

/// Records of an earlier version do not hold their decision: it is made over a copy, of which nothing
/// is carried out.
fn decide(fleet: &mut Fleet, now: Timestamp) {
    let undecided = |record: &SlotRecord| record.decision.is_none() && record.seen.is_some();
    if !fleet.slots.values().any(undecided) {
        return;
    }
    let looking = Settings { dry_run: true, ..fleet.settings.clone() };
    let mut copy = Fleet::new(looking.clone(), fleet.slots.clone(), fleet.ledger.clone());
    let _ = super::step(&mut copy, Input::Configured(Box::new(looking)), now);
    for record in fleet.slots.values_mut().filter(|record| undecided(record)) {
        record.decision = copy.slots.get(&record.name).and_then(|record| record.decision.clone());
        if let Some(decision) = record.decision.as_mut().filter(|_| !fleet.settings.dry_run) {
            decision.hold.take_if(|hold| *hold == HoldReason::DryRun);
        }
    }
}

/// Why a slot would not be recreated if it were lost now.
fn obstacle(fleet: &Fleet, record: &SlotRecord, now: Timestamp) -> Option<Obstacle> {
    let slot = fleet.settings.slots.get(&record.name)?;
    let looked_over = fleet.memory.get(&record.name).and_then(|memory| memory.acceptable.as_ref());
    let look = || reads::acceptable(&fleet.settings, slot, record);
    let now_looked = if looked_over.is_none() { Some(look()) } else { None };
    let acceptable = looked_over.or(now_looked.as_ref());
    let (settings, ledger) = (&fleet.settings, &fleet.ledger);
    gates::obstacle(Subject { settings, slot, record, ledger, acceptable, now })
}

/// A job's in the service's own word.
fn state(record: &SlotRecord, seen: &Seen) -> String {
    let own = seen.own_state.as_ref().filter(|_| record.traits().is_job);
    own.map_or(&seen.state, |(state, _)| state).clone()
}

/// Recoveries that count against the slot: of a job its submissions without a newer checkpoint.
fn attempts(record: &SlotRecord, slot: Option<&SlotSettings>, now: Timestamp) -> AttemptsView {
    let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let Some(slot) = slot else { return AttemptsView { used: 0, max: 0 } };
    let policy = &slot.policy.attempts;
    match slot.filling.training() {
        Some(of) => AttemptsView {
            used: count(record.resubmitted.fruitless),
            max: count(of.restart.no_progress),
        },
        None => AttemptsView {
            used: record.attempts_used(Kind::Judged, policy.window, now),
            max: policy.max,
        },
    }
}

fn requested(slot: Option<&SlotSettings>, seen: Option<&Seen>) -> Option<RequestStatus> {
    let name = Some(slot?.filling.id().to_owned()).filter(|id| !id.is_empty())?;
    let (state, since) = seen?.own_state.clone()?;
    Some(RequestStatus { name, state, since })
}

/// Which step of a replacement its recovery is at, and of how many.
fn step(record: &SlotRecord, recovery: &Recovery) -> Option<StepOf> {
    let steps = record.traits().steps(Remedy::Replace)?;
    let at = steps.iter().position(|step| *step == recovery.at.step())?;
    Some(StepOf { at: at + 1, of: steps.len() })
}

fn ahead(ahead: &Ahead) -> RequestStatus {
    let state = ahead.seen.as_ref().map_or("not listed yet", |(state, _)| state.as_str());
    RequestStatus { name: ahead.id.clone(), state: state.to_owned(), since: ahead.asked_at }
}

fn stray(stray: &Stray) -> StrayView {
    StrayView {
        name: stray.name.clone(),
        zone: stray.zone.clone(),
        state: stray.state.clone(),
        since: stray.since,
        why: stray.why.clone(),
        queued_resource: stray.request.clone(),
        is_job: stray.twin.is_some(),
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

fn slot(fleet: &Fleet, record: &SlotRecord, now: Timestamp) -> SlotView {
    let settings = fleet.settings.slots.get(&record.name);
    let undecided = Decision::wait("not decided about yet", None);
    let decision = record.decision.as_ref().unwrap_or(&undecided);
    let seen = record.seen.as_ref();
    let present = seen.filter(|_| record.incarnation.is_some());
    let obstacle = obstacle(fleet, record, now);
    let done = record.verdict.condition == Condition::Finished;
    let pause = pause(fleet, record, now);
    let refusal = refusal(fleet, record);
    SlotView {
        name: record.name.clone(),
        zone: record.zone.clone(),
        kind: settings.map_or("node", |slot| slot.filling.name()).to_owned(),
        incarnation: record.incarnation.clone(),
        request: requested(settings, present),
        next_request: record.asked_ahead().map(ahead),
        state: present.map(|seen| state(record, seen)),
        health: present.and_then(|s| s.health.clone()),
        condition: record.verdict.condition,
        since: record.since,
        evidence: record.verdict.evidence.clone(),
        phase: record.recovery.as_ref().map(|r| r.phase().name().to_owned()),
        recovery_step: record.recovery.as_ref().and_then(|of| step(record, of)),
        action: decision.action,
        hold: decision.hold.map(|h: HoldReason| h.name().to_owned()),
        reason: decision.reason.clone(),
        until: decision.until,
        attempts: attempts(record, settings, now),
        job: settings
            .filter(|slot| slot.job.is_some() || slot.filling.traits().is_job)
            .map(|slot| job(record, slot)),
        accelerator: seen.map(|s| s.accelerator.clone()),
        slices: seen.map(|s| s.members.len()).filter(|slices| *slices > 1),
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
        ends_at: seen.and_then(|s| s.times.ends_at),
        sentence: String::new(),
        protected: obstacle.is_none() && !done,
        unprotected_by_choice: done || obstacle.as_ref().is_some_and(Obstacle::is_a_choice),
        unprotected_by: obstacle.as_ref().filter(|_| !done).map(|of| of.hold.name().to_owned()),
        unprotected_reason: match obstacle {
            _ if done => Some("its job has finished: nothing is wanted".to_owned()),
            obstacle => obstacle.map(|obstacle| obstacle.why),
        },
        paused: pause.is_some(),
        pause,
        warnings: settings.map_or_else(Vec::new, |slot| warnings(fleet, record, slot, now)),
        opted_out: seen.is_some_and(|seen| seen.opted_out),
        refused_in: refusal.is_some().then(|| refused_in(record)).flatten(),
        refused: refusal.as_ref().map(|(class, ..)| class.name().to_owned()),
        create_failures: refusal.as_ref().map_or(0, |(_, _, tries)| *tries),
        refusal: refusal.map(|(_, text, _)| text),
        specification: None,
        recoveries_24h: record.attempts.iter().filter(|a| elapsed(a.at, now) < DAY).count(),
        spot: seen.is_some_and(|seen| seen.spot),
        empty: settings.is_some_and(|slot| is_empty(record, slot)),
    }
}

/// The pause that holds a slot now: its own, or that of all.
fn pause(fleet: &Fleet, record: &SlotRecord, now: Timestamp) -> Option<PauseView> {
    let pauses = [(&record.paused, false), (&fleet.ledger.paused, true)];
    pauses.into_iter().find_map(|(pause, all)| {
        pause.as_ref().filter(|pause| pause.holds(now)).map(|pause| PauseView::of(pause, all))
    })
}

/// The zone in which its own create was refused.
fn refused_in(record: &SlotRecord) -> Option<String> {
    let recovery = record.recovery.as_ref().filter(|recovery| recovery.refusal.is_some())?;
    Some(recovery.refused_in.clone()).filter(|zone| !zone.is_empty())
}

/// Why the create of a slot was refused, in words, and how often: its own, or that of another slot
/// which asks the same pool.
fn refusal(fleet: &Fleet, record: &SlotRecord) -> Option<(FailureClass, String, u32)> {
    let waits = |recovery: &&Recovery| matches!(recovery.phase(), Phase::Gone | Phase::Creating);
    let recovery = record.recovery.as_ref().filter(waits)?;
    // A refusal in another zone, or of an earlier request, is over once one waits in its queue.
    if record.verdict.condition == Condition::Waiting && record.incarnation.is_some() {
        return None;
    }
    if let Some((class, text)) = &recovery.refusal {
        return Some((*class, text.clone(), recovery.create_failures));
    }
    let slot = fleet.settings.slots.get(&record.name)?;
    let pool = pool::name(record, &slot.create, &record.zone);
    let short = fleet.ledger.pools.get(&pool)?.short.as_ref()?;
    Some((FailureClass::StockOut, String::new(), short.refusals))
}

/// The learned specification of a slot without its values, which may be secrets.
pub fn specification(record: &SlotRecord) -> Option<String> {
    let spec = record.spec.as_ref()?;
    let learned = record.learned_from.as_ref();
    let from = learned.map_or(String::new(), |of| format!(", learned from id {}", of.id));
    let through = if record.learned_alpha { " through v2alpha1" } else { "" };
    Some(format!("digest {}{from}{through}", spec.digest()))
}

/// A `recreate` that nothing has come of yet.
fn wish(record: &SlotRecord, poll: &PollSettings) -> Option<String> {
    let wish = record.wanted.as_ref().filter(|_| record.recovery.is_none())?;
    let asked = wish.at.map_or(String::new(), |at| format!(" at {at:.0}"));
    let ends = wish.at.map_or(String::new(), |at| {
        format!("; if that can't be done by {:.0}, it lapses", after(at, wanted_for(poll)))
    });
    let keeps = match &record.incarnation {
        Some(_) => format!("; `pause {}` keeps the present one until then", record.name),
        None => String::new(),
    };
    Some(format!("{} asked for a new TPU (recreate){asked}{ends}{keeps}", wish.who))
}

/// Whether its TPU would be created again with nothing to run on it.
fn is_empty(record: &SlotRecord, slot: &SlotSettings) -> bool {
    if slot.job.is_some() || slot.filling.traits().is_job {
        return false;
    }
    let learned = record.spec.as_ref();
    // Of one that nothing describes there is more to say than that.
    let known = learned.is_some() || !slot.create.fields.is_empty();
    known && !NodeSpec::has_a_script(learned, &slot.create)
}

/// Gaps that matter on the day on which the slot is created again.
fn warnings(
    fleet: &Fleet,
    record: &SlotRecord,
    slot: &SlotSettings,
    now: Timestamp,
) -> Vec<String> {
    let impossible =
        gates::no_create_could_follow(record, now).filter(|_| !slot.policy.create_check);
    let mut all: Vec<String> = impossible.into_iter().collect();
    let (next, there) = (slot.next_zone(&record.zone), record.incarnation.is_some());
    if there && *next != record.zone {
        all.push(format!(
            "the TPU is in {}, and the config says {next}: a recreate would move it to {next}; correct `zone` if that is not intended",
            record.zone
        ));
    }
    let memory = record.seen.as_ref().and_then(|seen| seen.memory_symptom.as_ref());
    all.extend(wish(record, &fleet.settings.poll));
    all.extend(record.asked_ahead().filter(|ahead| ahead.told).map(|ahead| {
        format!(
            "{} was granted and is billed, and can't take the place of the present one yet",
            ahead.id
        )
    }));
    all.extend(memory.map(|(kind, at)| {
        format!(
            "memory ran short on a host at {at:.0} (symptom {kind}): `logs {}` may name the cause",
            record.name
        )
    }));
    if slot.filling.traits().is_job {
        all.extend(resubmission::warning(record, slot));
        all.extend(record.job.trouble.as_ref().map(|trouble| trouble.text().to_owned()));
        return all;
    }
    if is_empty(record, slot) {
        all.push(
            "it has no startup script and no [tpu.job]: it would be created again empty, and nothing would run on it; name what it runs \
             ([tpu.job] command), or what installs it (startup_script)"
                .to_owned(),
        );
    }
    let Some(job) = slot.job.as_ref() else { return all };
    let learned = record.spec.as_ref();
    if !NodeSpec::has_a_script(learned, &slot.create)
        && (learned.is_some() || record.seen.is_none())
    {
        let lacks = if job.command.is_some() {
            "the command would run on a bare image"
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
        TAKES_ROLL_CALL.. => return None,
        TAKES_WAIT.. if record.size().hosts == 1 => return None,
        TAKES_WAIT.. => "each host starts its job without waiting for the others",
        TAKES_ORDERS.. => "a pause and a health notice do not reach its hosts",
        _ => "no newer run order, pause or health notice reaches its hosts",
    };
    Some(format!("old supervisor (version {oldest}) until the next recreate: {lacks}"))
}

fn job(record: &SlotRecord, slot: &SlotSettings) -> JobView {
    let phase = record.recovery.as_ref().map(|r| r.phase());
    let on_hosts = present_phase(record).map(|(phase, ..)| phase);
    let state = match (record.verdict.condition, phase) {
        (Condition::Finished, _) => "finished",
        (Condition::JobFailed, _) => "failed",
        (condition, _) if condition.job_stands() => "waiting",
        (Condition::Healthy, _) if on_hosts.is_some_and(JobPhase::is_before_a_run) => "waiting",
        (_, Some(Phase::Launched)) => "running",
        (_, Some(_)) => "waiting",
        (Condition::Healthy, None)
            if record.ours || record.job.progress_at.is_some() || slot.filling.traits().is_job =>
        {
            "running"
        }
        _ => "unknown",
    };
    let location = location::watched(record, slot).map(|listed| listed.uri.clone());
    // A checkpoint of another place starts nothing.
    let checkpoint =
        record.job.checkpoint.as_ref().filter(|_| location.as_ref() == Some(&record.job.location));
    let written = record.job.checkpoint_written.or(record.job.checkpoint_at);
    JobView {
        state: state.to_owned(),
        phase: on_hosts,
        step: record.job.step,
        checkpoint: checkpoint.map(|c| c.uri.clone()),
        checkpoint_step: checkpoint.map(|c| c.step),
        checkpoint_at: written.filter(|_| checkpoint.is_some()),
        around: record.job.around.clone(),
        expected: location::listed(slot).is_some() && !slot.finds_its_own(),
        held: location.is_some() && record.job.trouble.is_some(),
        unlisted: location.as_ref().is_some_and(|uri| location::listed_at(record, uri).is_none()),
        location,
    }
}

/// Whether anything waits for an operator.
pub fn needs_a_person(document: &StatusDocument) -> bool {
    document.breaker == BreakerState::Open
        || document.tpus.iter().any(|slot| slot.action == ActionName::Escalate)
}

/// One gate and what it says of a slot now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateAnswer {
    /// The gate.
    pub name: &'static str,
    /// Why it holds; none where it is open.
    pub holds: Option<String>,
}

/// The answers of the gates that stand before any recovery, for each slot of a journal.
pub fn gates_of(
    settings: &Settings,
    slots: BTreeMap<String, SlotRecord>,
    ledger: Ledger,
    now: Timestamp,
) -> Vec<(String, Vec<GateAnswer>)> {
    let fleet = at_rest_fleet(settings, slots, ledger, now);
    let of = |record: &SlotRecord| {
        let slot = fleet.settings.slots.get(&record.name)?;
        let acceptable = reads::acceptable(&fleet.settings, slot, record);
        let (settings, ledger) = (&fleet.settings, &fleet.ledger);
        let acceptable = Some(&acceptable);
        let all = gates::answers(Subject { settings, slot, record, ledger, acceptable, now });
        let answer = |(name, obstacle): (&'static str, Option<Obstacle>)| GateAnswer {
            name,
            holds: obstacle.map(|obstacle| obstacle.why),
        };
        Some((record.name.clone(), all.into_iter().map(answer).collect()))
    };
    fleet.slots.values().filter_map(of).collect()
}
