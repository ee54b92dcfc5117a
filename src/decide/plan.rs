//! Decides about every slot: recoveries go on, the rest is judged. No choice is left to the shell.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::{Action, Look};
use crate::model::checkpoint::Checkpoint;
use crate::model::condition::Condition;
use crate::model::event::What;
use crate::model::fleet::{Fleet, Memory, Pending, after, elapsed};
use crate::model::hold::HoldReason;
use crate::model::mutant::{self, Mutant};
use crate::model::recovery::{Call, Phase, Recovery};
use crate::model::settings::{Owed, SlotSettings};
use crate::model::slot::{RunOrder, SlotRecord};
use crate::model::spec::NodeSpec;
use crate::model::view::{ActionName, Decision};

use super::judge::{Bench, UNHEARD_FOR, request_id};
use super::turn::Turn;
use super::{absorb, ending, judge, lever, location, recover, runs};

/// Creates a minute and project (S18): the quota is about 90, others limit themselves to 60.
pub const CREATES_PER_MINUTE: usize = 59;
/// The window of [`CREATES_PER_MINUTE`].
pub const CREATE_WINDOW: Duration = Duration::from_secs(60);
/// A recorded checkpoint that complete listings lack for so long is gone: a person has to look (S15).
const WENT_BACK_AFTER: Duration = Duration::from_secs(10 * 60);
/// Slots that are well are asked for guest attributes and checkpoints once in this many polls.
const STAGGER: u64 = 4;

/// Budgets of the whole fleet, kept true while slots are decided about one after the other.
pub struct Budget {
    /// Judged slots in recovery.
    pub unavailable: usize,
    /// How many there may be.
    pub max_unavailable: usize,
    /// The ledger was written to.
    pub ledger_changed: bool,
    /// Slots that are wanted.
    pub desired: usize,
    /// Creates that the ledger counts no more and that may still leave.
    pub on_their_way: usize,
}

/// Whether a slot counts under `max_unavailable` (S6): judged and in recovery, and not merely waiting for capacity, for a
/// person, or for nothing at all.
pub fn is_unavailable(record: &SlotRecord) -> bool {
    let at_rest = matches!(record.verdict.condition, Condition::Stopped | Condition::JobFailed | Condition::Finished);
    let counts = record
        .recovery
        .as_ref()
        .is_some_and(|r| r.is_judged_and_supplied() && (!r.set_apart || mutant::is(Mutant::WaitingCounts)));
    counts && !at_rest && !mutant::is(Mutant::RecoveringIsHealthy)
}

/// How many slots count under `max_unavailable` now.
pub fn unavailable(fleet: &Fleet) -> usize {
    fleet.slots.values().filter(|record| is_unavailable(record)).count()
}

/// Whether a hold may last for ever: it must not keep the rest of the fleet waiting.
fn is_open_ended(hold: Option<HoldReason>) -> bool {
    !matches!(hold, None | Some(HoldReason::Backoff | HoldReason::CreateLimit | HoldReason::Unclear))
}

/// What is well stays decided about: what happens to one slot costs next to nothing for all others.
fn is_at_ease(record: &SlotRecord) -> bool {
    record.at_ease && record.is_well()
}

/// Creates that may still leave although the minute of their intent is over (S18): a write was slow, or their process ended.
fn on_its_way(record: &SlotRecord, memory: &BTreeMap<String, Memory>, name: &str, now: Timestamp) -> bool {
    record.recovery.as_ref().is_some_and(|r| {
        let (intended, age) = (r.phase == Phase::Creating && r.call == Some(Call::Intended), elapsed(r.phase_since, now));
        let sending = || memory.get(name).is_some_and(|m| m.pending.contains(&Pending::Call));
        intended && age >= CREATE_WINDOW && (age < CREATE_WINDOW * 2 || sending())
    })
}

/// Counts those that are ripe.
fn count(fleet: &mut Fleet, awake: &[(u64, String)], budget: &mut Budget, turn: &mut Turn) {
    for (_, name) in awake {
        let suspected = |record: &&mut SlotRecord| !record.leaving && record.suspicion.is_some();
        let Some(record) = fleet.slots.get_mut(name).filter(suspected).filter(|record| !is_at_ease(record)) else { continue };
        let (Some(slot), Some(memory)) = (fleet.settings.slots.get(name), fleet.memory.get_mut(name)) else { continue };
        let (settings, ledger, polls) = (&fleet.settings, &mut fleet.ledger, fleet.polls);
        judge::count(&mut Bench { settings, slot, record, memory, ledger, budget: &mut *budget, polls }, turn);
    }
}

/// Decides about every slot, in the order of their names.
pub fn plan(fleet: &mut Fleet, turn: &mut Turn) {
    let now = turn.now;
    let before = fleet.ledger.judged.len() + fleet.ledger.creates.len();
    fleet.ledger.judged.retain(|at| elapsed(*at, now) < Duration::from_secs(3600));
    fleet.ledger.creates.retain(|at| elapsed(*at, now) < CREATE_WINDOW);
    let mut budget = Budget {
        unavailable: 0,
        max_unavailable: 0,
        desired: 0,
        on_their_way: 0,
        ledger_changed: before != fleet.ledger.judged.len() + fleet.ledger.creates.len(),
    };
    let looks = turn.polled && fleet.settings.slots.values().any(|slot| slot.job.is_some() || slot.supervisor.is_some());
    let mut awake: Vec<(u64, String)> = Vec::new();
    for (index, (name, record)) in (0..).zip(&fleet.slots) {
        budget.desired += usize::from(!record.leaving);
        if record.recovery.is_some() {
            budget.unavailable += usize::from(is_unavailable(record));
            budget.on_their_way += usize::from(on_its_way(record, &fleet.memory, name, now));
        }
        if looks || !is_at_ease(record) {
            awake.push((index, name.clone()));
        }
    }
    budget.max_unavailable = fleet.settings.max_unavailable.of(budget.desired);
    count(fleet, &awake, &mut budget, turn);
    let mut removed = Vec::new();
    for (index, name) in awake {
        let (Some(record), Some(slot)) = (fleet.slots.get_mut(&name), fleet.settings.slots.get(&name)) else { continue };
        let Some(memory) = fleet.memory.get_mut(&name) else { continue };
        if is_at_ease(record) {
            stagger(record, memory, slot, fleet.polls, index, turn);
            continue;
        }
        if record.leaving && record.recovery.as_ref().is_none_or(|r| !r.owes_create()) {
            removed.push(name.clone());
            continue;
        }
        let mut bench = Bench {
            settings: &fleet.settings,
            slot,
            record,
            memory,
            ledger: &mut fleet.ledger,
            budget: &mut budget,
            polls: fleet.polls,
        };
        let counted = is_unavailable(bench.record);
        let recovering = bench.record.recovery.is_some();
        let phase = bench.record.recovery.as_ref().map(|r| (r.phase, r.call.clone()));
        let short = bench.record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Gone && r.refusal.is_some());
        let decision = decide(&mut bench, turn);
        stagger(bench.record, bench.memory, slot, fleet.polls, index, turn);
        if let Some(recovery) = &mut record.recovery
            && std::mem::replace(&mut recovery.set_apart, is_open_ended(decision.hold)) != is_open_ended(decision.hold)
        {
            fleet.dirty.insert(name.clone());
        }
        budget.unavailable += usize::from(!counted && is_unavailable(record));
        if keep(record, slot) {
            fleet.dirty.insert(name.clone());
        }
        if recovering != record.recovery.is_some() || phase != record.recovery.as_ref().map(|r| (r.phase, r.call.clone())) {
            fleet.dirty.insert(name.clone());
        }
        // One line for each new decision, not for each poll that repeats it.
        let told = (decision.action.name(), decision.hold.map_or("", HoldReason::name));
        if fleet.polls > 0 && memory.told.replace(told) != Some(told) && decision.action != ActionName::None {
            let until = decision.until.map_or(String::new(), |at| format!(" (until {at:.0})"));
            let message = format!("{}: {}{until}", told.0, decision.reason);
            let reason = if told.1.is_empty() { record.verdict.condition.name() } else { told.1 };
            turn.tell(record, What::Decision { action: told.0.into(), reason: reason.into() }, message);
        }
        record.at_ease = record.is_well() && decision.action == ActionName::None && decision.hold.is_none();
        memory.decision = Some(decision);
        if short && mutant::is(Mutant::OneHoldsAll) {
            break;
        }
    }
    for name in removed {
        absorb::drop_slot(fleet, name, turn);
    }
    fleet.dirty_ledger |= budget.ledger_changed;
}

/// Keeps with a create that is owed what it needs of the config. Returns whether that has changed.
fn keep(record: &mut SlotRecord, slot: &SlotSettings) -> bool {
    if !record.recovery.as_ref().is_some_and(Recovery::owes_create) || mutant::is(Mutant::ForgetOwed) {
        return record.owed.take().is_some();
    }
    let changed = !record.owed.as_ref().is_some_and(|owed| owed.is_of(slot));
    if changed {
        record.owed = Some(Box::new(Owed::of(slot)));
    }
    changed
}

fn decide(bench: &mut Bench, turn: &mut Turn) -> Decision {
    let Some(recovery) = &bench.record.recovery else {
        let decision = judge::judge(bench, turn);
        // What was just condemned as missing is created in the same turn.
        return match bench.record.recovery.as_ref().map(|r| r.phase) {
            Some(Phase::Gone) => gone(bench, turn),
            _ => decision,
        };
    };
    match recovery.phase {
        Phase::Deleting => deleting(bench, turn),
        Phase::Gone => gone(bench, turn),
        Phase::Creating => {
            let decision = creating(bench, turn);
            // A replacement that is there is judged like any other node: preempted at birth, stuck in CREATING.
            match bench.record.incarnation {
                Some(_) if bench.record.leaving => leave(bench, turn, decision),
                Some(_) => judge_replacement(bench, turn, decision),
                None => decision,
            }
        }
        Phase::Condemned => judge::judge(bench, turn),
        Phase::Ready | Phase::Booted | Phase::Launched => {
            let decision = awaited(bench, recovery, turn.now);
            judge_replacement(bench, turn, decision)
        }
    }
}

/// What a replacement that is there is waited for; a person has to look where nothing can tell whether it booted.
fn awaited(bench: &Bench, recovery: &Recovery, now: Timestamp) -> Decision {
    let (phase, since) = (recovery.phase, recovery.phase_since);
    let awaited = match phase {
        Phase::Ready => "the boot beacons",
        Phase::Booted => "the job to start",
        _ => "the job's first step or checkpoint",
    };
    let supervised = bench.record.seen.as_ref().is_some_and(|s| s.supervised) && bench.slot.supervisor.is_some();
    let long = elapsed(since, now) > bench.slot.policy.grace.boot + UNHEARD_FOR;
    let unheard = bench.memory.answered && bench.memory.heard.is_none_or(|at| elapsed(at, now) > UNHEARD_FOR);
    if phase == Phase::Ready && supervised && long && unheard {
        let text = format!(
            "{phase} since {since:.0}, but nothing tells whether its workers booted: guest attributes can't be read, or lack workers"
        );
        return Decision::hold(HoldReason::NoBeaconChannel, text, None);
    }
    Decision::wait(format!("{phase} since {since:.0}: waiting for {awaited}"), None)
}

fn judge_replacement(bench: &mut Bench, turn: &mut Turn, otherwise: Decision) -> Decision {
    let judged = judge::judge(bench, turn);
    if bench.record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Gone) {
        return gone(bench, turn);
    }
    let waiting = matches!(bench.record.verdict.condition, Condition::Healthy | Condition::Starting);
    // A hold is always shown: a replacement that is stuck for good needs a person.
    if waiting && judged.hold.is_none() && judged.action != ActionName::Recreate { otherwise } else { judged }
}

/// The replacement of a slot that is not wanted any more: it is waited for and not judged, and created again if it vanishes.
fn leave(bench: &mut Bench, turn: &mut Turn, otherwise: Decision) -> Decision {
    match bench.record.verdict.condition {
        Condition::Starting => otherwise,
        Condition::Missing => {
            recover::came_to_nothing(bench.record, Condition::Missing.name(), turn);
            recover::resend_later(bench.record, &bench.slot.policy, None, "the replacement has vanished", turn);
            gone(bench, turn)
        }
        Condition::Unclear => judge::judge(bench, turn),
        condition => {
            recover::came_to_nothing(bench.record, condition.name(), turn);
            if let Some(recovery) = bench.record.recovery.take() {
                turn.tell(bench.record, What::Withdrawn { cause: recovery.cause }, "what was owed is there");
            }
            Decision::none(format!("{}: what was owed is there, and the slot is not watched any more", condition.name()))
        }
    }
}

/// A delete is under way: its operation is looked at, or the node itself where the operation is not known.
fn deleting(bench: &mut Bench, turn: &mut Turn) -> Decision {
    let Some(recovery) = &bench.record.recovery else { return Decision::none("no recovery") };
    let deadline = after(recovery.phase_since, bench.slot.policy.grace.deleting);
    let call = recovery.call.clone();
    if turn.now >= deadline && bench.memory.operation_lost.is_none() {
        bench.memory.operation_lost = Some("the delete is not done in its time".to_owned());
    }
    follow(bench, call.as_ref(), turn);
    if turn.now >= deadline {
        let text = "the delete is not done in its time: a person has to look; it is still followed".to_owned();
        return Decision::hold(HoldReason::DeleteFailed, text, None);
    }
    Decision::act(ActionName::Recreate, describe("delete", call.as_ref()))
}

fn creating(bench: &mut Bench, turn: &mut Turn) -> Decision {
    let Some(recovery) = &bench.record.recovery else { return Decision::none("no recovery") };
    let call = recovery.call.clone();
    if turn.now >= after(recovery.phase_since, bench.slot.policy.grace.startup) && bench.memory.operation_lost.is_none() {
        // An operation without an end proves nothing: from now on the node itself is asked, too.
        bench.memory.operation_lost = Some("the create is not done in its time".to_owned());
    }
    if mutant::is(Mutant::RepeatsAtStart) && call == Some(Call::Intended) && !bench.memory.pending.contains(&Pending::Call) {
        recover::resend_later(bench.record, &bench.slot.policy, None, "it is sent again", turn);
        return gone(bench, turn);
    }
    let (since, failed) = (recovery.phase_since, recovery.failed.clone());
    follow(bench, call.as_ref(), turn);
    let late = elapsed(since, turn.now) > bench.slot.policy.grace.startup + UNHEARD_FOR;
    if late && bench.record.incarnation.is_none() {
        let last = failed.map_or(String::new(), |failure| format!(" (its operation ended with: {failure})"));
        let text = format!(
            "the create sent at {since:.0} has come to nothing that can be read{last}: no node of its name is shown as this create's, and \
             none is shown as gone. Look at it: gcloud compute tpus tpu-vm describe {} --zone {}; it is still followed",
            bench.record.name, bench.record.zone
        );
        return Decision::hold(HoldReason::CreateUnresolved, text, None);
    }
    Decision::act(ActionName::Create, describe("create", call.as_ref()))
}

fn describe(verb: &str, call: Option<&Call>) -> String {
    match call {
        Some(Call::Accepted { operation }) => {
            format!("{verb} is under way: {}", operation.rsplit('/').next().unwrap_or(operation))
        }
        Some(Call::Observed) => format!("{verb} is under way, as the node shows"),
        Some(Call::Intended) => format!("{verb} is being sent"),
        Some(Call::Unknown) | None => format!("what became of the {verb} is read back"),
    }
}

/// Follows a call: by its operation while that can be read, by the node otherwise.
fn follow(bench: &mut Bench, call: Option<&Call>, turn: &mut Turn) {
    let interval = bench.settings.poll.operations;
    let slot = bench.record.name.clone();
    let memory = &mut *bench.memory;
    if memory.pending.contains(&Pending::Call) {
        return;
    }
    let mut look_at_node = true;
    if let Some(Call::Accepted { operation }) = call {
        look_at_node = memory.operation_lost.is_some();
        if memory.pending.insert(Pending::Operation) {
            turn.look(Look::Operation { slot: slot.clone(), operation: operation.clone(), at: after(turn.now, interval) });
        }
    } else {
        memory.operation_lost = None;
    }
    let due = memory.looked_at.is_none_or(|at| after(at, interval) <= turn.now);
    if look_at_node && due && memory.pending.insert(Pending::Node) {
        memory.looked_at = Some(turn.now);
        turn.look(Look::Node { slot, zone: bench.record.zone.clone() });
    }
}

/// The node is gone and a create is owed: from the newest complete checkpoint, as soon as limits allow.
fn gone(bench: &mut Bench, turn: &mut Turn) -> Decision {
    let now = turn.now;
    let Some(recovery) = &bench.record.recovery else { return Decision::none("no recovery") };
    if let Some(pause) = lever::paused(bench, now).filter(|_| mutant::is(Mutant::PauseHoldsCreates)) {
        return Decision::hold(HoldReason::Paused, "paused", pause.until);
    }
    if mutant::is(Mutant::BreakerHoldsCreates) && bench.ledger.breaker.is_some() {
        return Decision::hold(HoldReason::Breaker, "the storm breaker is open", None);
    }
    if let Some(at) = recovery.not_before.filter(|at| *at > now) {
        let (class, text) = recovery.refusal.clone().map_or(("", String::new()), |(c, t)| (c.name(), t));
        return Decision::hold(
            HoldReason::Backoff,
            format!("the create is owed and will be tried again; {class}: {text}"),
            Some(at),
        );
    }
    if let Some(first) = bench.slot.zones.first().filter(|_| !bench.slot.zones.contains(&bench.record.zone)) {
        // The config moved the slot while its node lived elsewhere: the new one is created where it is wanted now.
        bench.record.zone.clone_from(first);
    }
    if bench.settings.dry_run && !mutant::is(Mutant::IgnoresDryRun) {
        // Holds that apply anyway are said first: a refusal above, or trouble with the checkpoints.
        let trouble = location::listed(bench.slot).and_then(|_| location::holds_create(bench.record));
        let mut decision = trouble.unwrap_or_else(|| Decision::act(ActionName::Create, "a create is owed"));
        decision.hold = decision.hold.or(Some(HoldReason::DryRun));
        return decision;
    }
    let checkpoint = match checkpoint(bench, turn) {
        Ok(checkpoint) => checkpoint,
        Err(decision) => return decision,
    };
    let full = bench.ledger.creates.len() + bench.budget.on_their_way >= CREATES_PER_MINUTE;
    if full && !mutant::is(Mutant::NoCreateLimit) {
        let until = bench.ledger.creates.first().map(|at| after(*at, CREATE_WINDOW));
        return Decision::hold(HoldReason::CreateLimit, format!("{CREATES_PER_MINUTE} creates in the last minute"), until);
    }
    if bench.slot.supervisor.is_some() && NodeSpec::runs_a_url(bench.record.spec.as_ref(), &bench.slot.create) {
        return location::unordered_script(bench.record, "the create is owed");
    }
    let learned = bench.record.spec.clone().unwrap_or_else(NodeSpec::empty).in_zone(&bench.record.zone);
    let spec = if mutant::is(Mutant::ForgetOverlay) { learned } else { learned.overlaid(&bench.slot.create) };
    if let Err(why) = spec.acceptable(&bench.settings.owner, &bench.record.name, bench.slot.supervisor.as_deref()) {
        return Decision::hold(HoldReason::NoSpecification, format!("the create is owed, but {why}"), None);
    }
    create(bench, &spec, checkpoint, turn)
}

/// The checkpoint to start from (S15), listed since the node is gone so that nothing newer can appear.
fn checkpoint(bench: &mut Bench, turn: &mut Turn) -> Result<Option<Checkpoint>, Decision> {
    let Some(settings) = location::listed(bench.slot) else { return Ok(None) };
    let Some(recovery) = &bench.record.recovery else { return Ok(None) };
    let memory = &mut *bench.memory;
    let here = bench.record.job.location == settings.uri;
    let fresh = here
        && memory.surveyed_at.is_some_and(|at| at >= recovery.phase_since && elapsed(at, turn.now) <= bench.slot.policy.max_age);
    if fresh && memory.survey_failure.is_none() && bench.record.job.trouble.is_none() {
        return Ok(bench.record.job.checkpoint.clone());
    }
    let interval = bench.settings.poll.operations;
    let asked = memory.asked_checkpoints.filter(|at| *at >= recovery.phase_since);
    if asked.is_none_or(|at| after(at, interval) <= turn.now) && memory.pending.insert(Pending::Checkpoints) {
        memory.asked_checkpoints = Some(turn.now);
        let (slot, set_aside) = (bench.record.name.clone(), runs::set_aside(bench.record));
        turn.look(Look::Checkpoints { slot, location: settings.clone(), set_aside });
    }
    let gone_since = bench.record.job.went_back_since.filter(|_| here && memory.went_back);
    Err(match &memory.survey_failure {
        Some(why)
            if gone_since.is_some_and(|since| elapsed(since, turn.now) >= WENT_BACK_AFTER || mutant::is(Mutant::GoneAtOnce)) =>
        {
            let text = format!("the create is owed, but {why}: restore it, or say from which step with `retry --from`");
            Decision::hold(HoldReason::CheckpointWentBack, text, None)
        }
        // The last listing's verdict outlives the process that made it.
        _ if let Some(hold) = location::holds_create(bench.record) => hold,
        Some(why) => {
            let until = gone_since.map(|since| after(since, WENT_BACK_AFTER));
            Decision::hold(HoldReason::CheckpointUnreadable, format!("the create is owed, but {why}; it is listed again"), until)
        }
        None => Decision::act(ActionName::Create, format!("looking for the newest complete checkpoint under {}", settings.uri)),
    })
}

fn create(bench: &mut Bench, spec: &NodeSpec, checkpoint: Option<Checkpoint>, turn: &mut Turn) -> Decision {
    let now = turn.now;
    let record = &mut *bench.record;
    let Some(recovery) = &record.recovery else { return Decision::none("no recovery") };
    // The same intent keeps its generation: a create that was lost on the way and comes late is still known as ours.
    let generation = recovery.order.as_ref().map_or(record.job.generation + 1, |o| o.generation);
    let order = RunOrder {
        generation,
        step: checkpoint.as_ref().map(|c| c.step),
        checkpoint: checkpoint.map(|c| c.uri).unwrap_or_default(),
    };
    let supervisor = bench.slot.supervisor.as_deref().filter(|_| !mutant::is(Mutant::ForgetSupervisor));
    let mut body = spec.render(&bench.settings.owner, &record.name, &order, supervisor);
    if mutant::is(Mutant::ForgetLabels) {
        body["labels"] = serde_json::Value::Null;
    }
    if let Some(fields) = body.as_object_mut().filter(|_| mutant::is(Mutant::ForgetUnknownFields)) {
        fields.retain(|key, _| !matches!(key.as_str(), "dataDisks" | "shieldedInstanceConfig"));
    }
    if let Some(metadata) = body["metadata"].as_object_mut().filter(|_| mutant::is(Mutant::ForgetMetadata)) {
        metadata.retain(|key, _| key.starts_with("tpu-watchdog") || key == "startup-script");
    }
    record.job.generation = generation;
    let ordered = bench.slot.job.as_ref().map(|job| job.key());
    if ordered != record.job.ordered {
        // How far another job came says nothing about this one.
        record.job.runs.best_step = None;
    }
    record.job.ordered = ordered;
    record.job.location_since = Some(location::began(record, now));
    record.job.step = None;
    record.job.workers.clear();
    ending::forget(record);
    runs::ordered(record, order.step);
    record.incarnation = None;
    recover::advance(record, Phase::Creating, "the create is sent", turn);
    let from = order.step.map_or("no checkpoint".to_owned(), |step| format!("the checkpoint of step {step}"));
    turn.tell(
        record,
        What::Intent {
            call: "create".into(),
            zone: record.zone.clone(),
            incarnation: None,
            generation: Some(generation),
            evidence: record.recovery.as_ref().and_then(|r| r.observed.clone()).filter(|_| !mutant::is(Mutant::ForgetEvidence)),
            decided_by: bench.settings.decided_by.clone(),
        },
        format!("create {} in {}, generation {generation}, from {from}", record.name, record.zone),
    );
    if bench.slot.supervisor.is_some() {
        turn.tell(
            record,
            What::Launch { generation, step: order.step },
            format!("generation {generation} is ordered to start from {from}"),
        );
    }
    let intent = record.recovery.as_ref().map(|r| format!("{} {} {}", r.condemned_at, r.create_failures, r.spent));
    let intent = intent.unwrap_or_default();
    let request_id = bench.settings.alpha.then(|| request_id(record, "create", &intent));
    if let Some(recovery) = &mut record.recovery {
        recovery.saved_at = record.job.checkpoint_at.filter(|_| order.step.is_some());
        recovery.order = Some(order);
        recovery.call = Some(Call::Intended);
        recovery.not_before = None;
    }
    bench.memory.pending.insert(Pending::Call);
    bench.memory.looked_at = None;
    bench.memory.confirmed = None;
    bench.ledger.creates.push(now);
    bench.budget.ledger_changed = true;
    turn.act(Action::Create { slot: record.name.clone(), zone: record.zone.clone(), body, request_id });
    Decision::act(ActionName::Create, format!("creating generation {generation} from {from}"))
}

/// Reads that need a call a slot: every poll where something is wrong or under way, else spread over several polls.
fn stagger(record: &SlotRecord, memory: &mut Memory, slot: &SlotSettings, polls: u64, index: u64, turn: &mut Turn) {
    if !turn.polled || record.verdict.condition == Condition::Finished {
        return;
    }
    let settled = record.recovery.is_none() && record.suspicion.is_none();
    // The first look of a process comes at once: a scheduled run may have no second poll.
    let waits = settled && !(polls + index).is_multiple_of(STAGGER);
    let supervised = record.seen.as_ref().is_some_and(|s| s.supervised);
    if !(waits && memory.asked_attributes)
        && record.ours
        && supervised
        && slot.supervisor.is_some()
        && let (Some(of), Some(_)) = (&record.incarnation, record.ready_since)
        && memory.pending.insert(Pending::Attributes)
    {
        memory.asked_attributes = true;
        turn.look(Look::Attributes { slot: record.name.clone(), zone: record.zone.clone(), of: of.clone() });
    }
    if let Some(checkpoint) = location::listed(slot)
        && !(waits && memory.asked_checkpoints.is_some())
        && record.incarnation.is_some()
        && memory.pending.insert(Pending::Checkpoints)
    {
        memory.asked_checkpoints = Some(turn.now);
        let set_aside = runs::set_aside(record);
        turn.look(Look::Checkpoints { slot: record.name.clone(), location: checkpoint.clone(), set_aside });
    }
}
