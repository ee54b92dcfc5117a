//! The flags of the present run order, kept as they should be: `wait` while the slot is paused,
//! `notice` while the API announces the end of a Spot TPU, or flex-start capacity is about to run out,
//! where the job can be asked for a checkpoint.
//! `reboot` names the boots of hosts that came up unfit, once, where nothing of the job runs. Two more
//! changes of a node go the same way: its release, which takes all that is ours out of its metadata, and
//! its stop after its job has finished.
//!
//! No flag changes the generation, or ends a run: supervisors of version 3 start nothing by
//! themselves while the order says `wait`, and ask the job for a checkpoint when it says `notice`.
//! The change is journaled before it is sent (S11), on a READY node of ours alone (S17), and what
//! the node shows decides whether it is sent again. One that is refused is no hold: the slot is as
//! safe as without it, so that it is told, and tried again after five minutes; after six hours where the right
//! is missing, or with the next `pause` or `resume`.
//!
//! Example: `pause a` at 10:00. The poll of 10:00:30 decides `wait` for generation 4, the patch is
//! accepted, and the poll of 10:01 shows it. `a` crashes at 10:05 and stays down. `resume a` at
//! 11:00 takes the flag back within a poll, and its hosts start again.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::{Action, CallOutcome};
use crate::model::condition::Condition;
use crate::model::event::{CallResult, What};
use crate::model::exit::Stuck;
use crate::model::failure::FailureClass;
use crate::model::fleet::{Fleet, Pending, Stray};
use crate::model::hold::HoldReason;
use crate::model::ids::{Incarnation, RunOrder};
use crate::model::node::{NodeState, NodeView};
use crate::model::relaunch::{Amendment, Patch, TAKES_WAIT};
use crate::model::slot::{Seen, SlotRecord};
use crate::model::step::{Call, Remedy};
use crate::model::time::{after, elapsed, span};
use crate::model::view::{ActionName, Decision};

use super::ctx::SlotCtx;
use super::turn::Turn;
use super::{check, confirm, diagnose, idle, life, location, relaunch, runs};

/// A change that was sent is read back for so long; one that was refused or not seen is tried again
/// after as long.
const AGAIN_AFTER: Duration = Duration::from_secs(5 * 60);
/// So long before its capacity runs out a job is asked for a checkpoint: saving takes minutes.
const ASKED_BEFORE: Duration = Duration::from_secs(15 * 60);
const UNSENT_WAIT: Duration = Duration::from_secs(30);
/// A role that lacks the right refuses each slot of a paused fleet: that must not fill the log.
const FORBIDDEN_WAIT: Duration = Duration::from_secs(6 * 3600);
/// Changes that one turn decides: a pause of the whole fleet must not use the API's quota up.
const IN_A_TURN: usize = 50;

/// A change is being sent: nothing else is sent to its slot meanwhile (S9).
pub fn is_sent(ctx: &SlotCtx) -> Option<Decision> {
    ctx.record.job.amendment.as_ref()?;
    let calls = ctx.memory.pending.contains(&Pending::Call);
    calls.then(|| Decision::act(ActionName::Wait, "its run order is being written"))
}

/// Brings the flags to what they should be. Returns whether the record changed.
pub fn keep(ctx: &mut SlotCtx, turn: &mut Turn) -> bool {
    if ctx.memory.pending.contains(&Pending::Call) {
        return false;
    }
    let wanted = wanted(ctx);
    // One that failed must not keep another one waiting.
    let waits = |amendment: &Amendment| {
        let same = amendment.call.is_some() || wanted.as_ref() == Some(&amendment.patch);
        // A stop is decided elsewhere, and a reboot is wanted in the moments after a report alone.
        let comes_again = wanted.is_none()
            && match &amendment.patch {
                Patch::Stop => ctx.condition() == Condition::Finished,
                Patch::Order(order) => asks_for_a_reboot(ctx, order),
                Patch::Release => false,
            };
        ctx.now < amendment.until && (same || comes_again)
    };
    if ctx.record.job.amendment.as_ref().is_some_and(waits) {
        return false;
    }
    let given_up = ctx.record.job.amendment.take();
    if let Some(Amendment { patch: Patch::Order(order), .. }) = &given_up {
        unreboot(ctx.record, order);
    }
    let changed = given_up.is_some();
    let Some(patch) = wanted else { return changed };
    if ctx.budget.amended >= IN_A_TURN || !may_be_written(ctx, &patch) {
        return changed;
    }
    intend(ctx, patch, turn);
    true
}

/// The present order with the flags as they should be, where they are not; or the release.
fn wanted(ctx: &SlotCtx) -> Option<Patch> {
    if let Some(release) = &ctx.record.released {
        return (!release.done).then_some(Patch::Release);
    }
    let seen = ctx.record.seen.as_ref()?;
    let run = seen.run.as_ref()?;
    // A newer order that some slices have is followed by one for all (`relaunch`).
    if seen.out_of_step > Some(run.generation) {
        return None;
    }
    let ending = seen.spot
        && ctx.condition() == Condition::Maintenance
        && seen.health.as_deref() == Some("UNHEALTHY_MAINTENANCE");
    let runs_out = |at: Timestamp| elapsed(ctx.now, at) <= ASKED_BEFORE;
    let ending = ending || seen.ready && seen.times.ends_at.is_some_and(runs_out);
    let asks = ctx.slot.job.as_ref().is_some_and(|job| job.on_notice.is_some());
    // Hosts that wait for a newer order start by that order alone: one that started now would meet
    // hosts that hang in the former run. Where that order is held, they start as they would without.
    let hold = ctx.record.decision.as_ref().and_then(|decision| decision.hold);
    let unheard = hold == Some(HoldReason::Unclear) && ctx.condition() != Condition::Unclear;
    let comes = unheard || hold.is_none_or(|hold| hold == HoldReason::Backoff);
    // Their exits may be in before the read that judges by them.
    let waits = ctx.record.job.stuck == Some(Stuck::Waits) && ctx.record.takes_orders();
    let ordered_soon = run.wait && comes && (waits || relaunch::wanted(ctx).is_some());
    // A job that is over starts no more, also on a TPU that was granted late.
    let old = location::waits_for_newer(ctx.record, ctx.slot);
    let wait = old || ctx.paused().is_some() || ordered_soon;
    let (wait, notice) = (wait || is_over(ctx, run) || is_hopeless(ctx), ending && asks);
    let mut reboot = run.reboot.clone();
    let fresh = reboots(ctx).into_iter().map(|(_, boot)| boot);
    reboot.extend(fresh.filter(|boot| !run.reboot.contains(boot)));
    let order = RunOrder { wait, notice, reboot, ..run.clone() };
    // A slice that Google's repair made again has the order that the request was created with.
    let behind = seen.out_of_step == Some(run.generation);
    (order != *run || behind).then_some(Patch::Order(order))
}

/// Whether the job that the TPU was created with is journaled as finished, whatever the config names now,
/// and worker 0 does not rest: one whose end an operator has passed over starts again with the next boot.
fn is_over(ctx: &SlotCtx, run: &RunOrder) -> bool {
    let job = &ctx.record.job;
    // Not by the last read's condition, which an operator's `retry` ends.
    let same = job.finished.is_some() && job.finished == job.ordered;
    let counts = job.exits.get(&0).is_none_or(|exit| job.pardoned.get(&0) != Some(exit));
    let ended = |(of, code): (u64, i64)| of >= run.generation && code == 0;
    let rests = counts && ctx.record.exit_of(0).is_some_and(ended);
    (same || diagnose::finished(ctx.record, ctx.slot)) && !rests
}

/// Whether hosts are told to reboot that the node's order, as it was read, does not name.
fn asks_for_a_reboot(ctx: &SlotCtx, order: &RunOrder) -> bool {
    let run = ctx.record.seen.as_ref().and_then(|seen| seen.run.as_ref());
    run.is_some_and(|run| order.reboot.iter().any(|boot| !run.reboot.contains(boot)))
}

/// A reboot that the node was never told is still to be told.
fn unreboot(record: &mut SlotRecord, order: &RunOrder) {
    let run = record.seen.as_ref().and_then(|seen| seen.run.as_ref());
    let told = run.map_or(Vec::new(), |run| run.reboot.clone());
    record.job.reboots.retain(|_, boot| told.contains(boot) || !order.reboot.contains(boot));
}

/// Whether a run on several hosts would end the same way once more: they would start it by themselves.
fn is_hopeless(ctx: &SlotCtx) -> bool {
    let job = ctx.slot.job.as_ref();
    let condition = ctx.condition();
    let known = job.is_some_and(|job| runs::permanent(ctx.record, job, condition).is_some());
    known && runs::is_over(ctx.record, job, condition)
}

/// Hosts that a reboot may mend, each with its boot: once in a node's life, and not while it is paused.
fn reboots(ctx: &SlotCtx) -> Vec<(usize, String)> {
    let record = &*ctx.record;
    let concerned = match ctx.condition() {
        Condition::GangIncomplete => record.without_index(),
        Condition::ChipsMissing => {
            let usual = ctx.ledger.chips.get(ctx.accelerator()).copied().unwrap_or(0);
            record.short_of_chips(usual)
        }
        Condition::ChipsBusy if record.job.stuck == Some(Stuck::ChipsStuck) => {
            record.job.failed.iter().map(|(worker, ..)| *worker).collect()
        }
        _ => return Vec::new(),
    };
    let fresh = |worker: &usize| !record.job.reboots.contains_key(worker);
    let boot = |worker| Some((worker, record.job.workers.get(&worker)?.boot_id.clone()?));
    let quiet = ctx.slot.policy.quiet_hours.iter().any(|hours| hours.until(ctx.now).is_some());
    // It may have mended itself since its hosts last reported.
    let heard = ctx.memory.heard.is_some_and(|at| elapsed(at, ctx.now) <= life::HEARD_FOR);
    let budget = ctx.slot.filling.traits().budget;
    let storm = ctx.ledger.breaker.as_ref().is_some_and(|breaker| breaker.holds(budget));
    let free = heard
        && ctx.slot.filling.traits().steps(Remedy::Restart).is_some()
        && ctx.paused().is_none()
        && record.seen.as_ref().is_some_and(|seen| !seen.opted_out)
        && !(quiet || storm);
    concerned.into_iter().filter(|worker| free && fresh(worker)).filter_map(boot).collect()
}

/// Whether the node and its supervisors can take it now.
fn may_be_written(ctx: &SlotCtx, patch: &Patch) -> bool {
    let record = &*ctx.record;
    let Some(seen) = &record.seen else { return false };
    let idle = record.recovery.as_ref().is_none_or(|r| r.phase().is_up());
    // A flag is taken back also where nothing else is done.
    let undoes = patch.only_undoes(seen.run.as_ref());
    let clear = ctx.condition() != Condition::Unclear && !seen.opted_out;
    let allowed = !ctx.settings.dry_run && (undoes || clear);
    let takes = match patch {
        Patch::Release => may_be_released(ctx),
        Patch::Stop => true,
        Patch::Order(order) => follows(ctx, order, undoes),
    };
    is_shown(ctx, seen) && idle && allowed && takes
}

/// A read of just now showed the slot's own plain node as READY: it may be gone, or its zone out of
/// reach.
fn is_shown(ctx: &SlotCtx, seen: &Seen) -> bool {
    let record = &*ctx.record;
    let recent = |at: Timestamp| elapsed(at, ctx.now) <= ctx.slot.policy.max_age;
    let shown = ctx.memory.is_there && ctx.memory.last_read.is_some_and(recent);
    let others = seen.other_owner.is_some() && record.adopted != seen.other_owner;
    let plain = seen.queued_resource.is_none() && !seen.multislice && !seen.is_v1 && !others;
    shown && record.ours && seen.ready && plain
}

/// No other patch of the node is on its way.
fn may_be_released(ctx: &SlotCtx) -> bool {
    !stray(ctx).is_some_and(|stray| idle::is_on_its_way(stray, ctx.now))
}

/// Whether its supervisors follow the flags of this order, and the slot is not left to itself.
fn follows(ctx: &SlotCtx, order: &RunOrder, undoes: bool) -> bool {
    let record = &*ctx.record;
    let supervised = record.seen.as_ref().is_some_and(|seen| seen.supervised);
    // Workers may follow a newer order than the last read showed.
    let known = (record.heard_from()..=record.job.generation).contains(&order.generation)
        && record.job.relaunch.is_none();
    // A called-off create's node is a stray, which waits until its slot takes it up.
    let wanted = !record.forgotten || undoes && stray(ctx).is_none();
    // Its reports are read no more, and an older supervisor passes the flag over.
    let takes = record.supervisors_are(TAKES_WAIT) || order.wait && is_over(ctx, order);
    supervised && known && wanted && takes
}

/// The slot's own node, as far as it is followed as a stray.
fn stray<'a>(ctx: &'a SlotCtx) -> Option<&'a Stray> {
    ctx.ledger.strays.get(&Stray::key(&ctx.record.zone, &ctx.record.name))
}

/// Stops the node of a finished job, which has passed every gate.
pub fn stop(ctx: &mut SlotCtx, reason: String, turn: &mut Turn) -> Decision {
    if let Some(amendment) = &ctx.record.job.amendment {
        let text = match &amendment.call {
            Some(_) => format!("{reason}; what became of its last change is read back"),
            None => {
                format!("{reason}; its stop was refused (the log says why), and is tried again")
            }
        };
        return Decision::wait(text, Some(amendment.until));
    }
    if !may_be_written(ctx, &Patch::Stop) {
        return Decision::wait(format!("{reason}; a read of just now is awaited"), None);
    }
    intend(ctx, Patch::Stop, turn);
    Decision::act(ActionName::Wait, reason)
}

fn intend(ctx: &mut SlotCtx, patch: Patch, turn: &mut Turn) {
    let Some(incarnation) = ctx.record.incarnation.clone() else { return };
    if let Err(violation) = check::amendment(&ctx.case().1, &patch) {
        _ = confirm::refused(ctx, violation.name(), &violation.to_string(), turn);
        return;
    }
    ctx.budget.amended += 1;
    let reboots = match &patch {
        Patch::Order(order) => {
            let mut reboots = reboots(ctx);
            reboots.retain(|(_, boot)| order.reboot.contains(boot));
            reboots
        }
        _ => Vec::new(),
    };
    let paused_by = ctx.paused().map(|pause| pause.who.clone());
    let hopeless = is_hopeless(ctx) && paused_by.is_none();
    let record = &mut *ctx.record;
    let generation = patch.generation();
    let (wait, notice, text) = match &patch {
        Patch::Release => (false, false, release_text(record, &incarnation)),
        Patch::Stop => {
            let text =
                format!("stop {incarnation}: its job is finished, and on_success = \"stop\"");
            (false, false, text)
        }
        Patch::Order(order) if hopeless && order.wait => {
            let text = format!(
                "order of generation {}: wait true: its job would end the same way once more",
                order.generation
            );
            (true, order.notice, text)
        }
        Patch::Order(order) if !reboots.is_empty() => {
            let workers: Vec<String> =
                reboots.iter().map(|(worker, _)| worker.to_string()).collect();
            let text = format!(
                "order of generation {}: reboot of worker {}: {}",
                order.generation,
                workers.join(", "),
                record.verdict.evidence
            );
            (order.wait, order.notice, text)
        }
        Patch::Order(order) => (order.wait, order.notice, flags_text(record, order, paused_by)),
    };
    let decided_by = ctx.settings.decided_by.clone();
    let what =
        What::Amendment { incarnation: incarnation.clone(), generation, wait, notice, decided_by };
    turn.tell(record, what, text);
    record.job.reboots.extend(reboots);
    record.job.amendment = Some(Amendment {
        at: turn.now,
        incarnation: incarnation.clone(),
        patch: patch.clone(),
        call: Some(Call::Intended),
        of_wait: record
            .seen
            .as_ref()
            .and_then(|seen| seen.run.as_ref())
            .is_some_and(|run| run.wait != wait),
        until: after(turn.now, AGAIN_AFTER),
    });
    ctx.memory.pending.insert(Pending::Call);
    let (slot, zone, nodes) = (record.name.clone(), record.zone.clone(), record.nodes().to_vec());
    let filling = ctx.slot.filling.clone();
    turn.act(Action::Patch { slot, zone, nodes, filling, incarnation, patch, stray: false });
}

fn release_text(record: &SlotRecord, incarnation: &Incarnation) -> String {
    let who = record.released.as_ref().map_or("an operator", |release| release.who.as_str());
    format!(
        "release of {incarnation} by {who}: the watchdog's part of its metadata is removed; what runs goes on, and the next boot runs the \
         user's own script"
    )
}

fn flags_text(record: &SlotRecord, order: &RunOrder, paused_by: Option<String>) -> String {
    let RunOrder { generation, wait, notice, .. } = order;
    let why = match (wait, notice, paused_by) {
        (true, _, Some(who)) => format!("{who} paused it, so nothing starts by itself"),
        (true, _, None) if record.job.finished.is_some() => {
            "its job is done, so nothing starts there again".to_owned()
        }
        (true, _, None) => "a newer order follows".to_owned(),
        (_, true, _) => {
            let ends_at = record.seen.as_ref().and_then(|seen| seen.times.ends_at);
            let why = ends_at.map(|at| format!("its flex-start capacity ends at {at:.0}"));
            let why = why.unwrap_or_else(|| record.verdict.evidence.clone());
            format!("{why}: its job is asked for a checkpoint")
        }
        _ => "it is neither paused nor about to end".to_owned(),
    };
    format!("order of generation {generation}: wait {wait}, notice {notice}: {why}")
}

/// Takes in the answer to a change. Returns whether it was one.
pub fn ordered(
    fleet: &mut Fleet,
    slot: &str,
    generation: u64,
    outcome: &CallOutcome,
    turn: &mut Turn,
) -> bool {
    let record = match fleet.slots.get_mut(slot) {
        Some(record) => Some(record),
        None => fleet.left.get_mut(slot),
    };
    let Some(record) = record else { return false };
    let sent = |amendment: &&mut Amendment| {
        amendment.patch.generation() == generation && amendment.call == Some(Call::Intended)
    };
    let Some(amendment) = record.job.amendment.as_mut().filter(sent) else { return false };
    fleet.dirty.insert(slot.to_owned());
    let (call, result, text) = match outcome {
        CallOutcome::Accepted(operation) => {
            let operation = operation.clone();
            let text = operation.clone();
            (Some(Call::Accepted { operation }), CallResult::Accepted, text)
        }
        CallOutcome::Unknown(failure) => {
            (Some(Call::Unknown), CallResult::Unknown, format!("{failure}; it is read back"))
        }
        CallOutcome::Refused(failure) => {
            let stops = amendment.patch == Patch::Stop && !failure.class.passes_by_itself();
            if failure.class == FailureClass::Permission || stops {
                amendment.until = after(turn.now, FORBIDDEN_WAIT);
            }
            let again = span(elapsed(turn.now, amendment.until));
            let right = match (amendment.patch == Patch::Stop, failure.class) {
                (true, FailureClass::Permission) => {
                    " (it takes the right tpu.nodes.stop, see deploy/iam)"
                }
                _ => "",
            };
            let text = format!(
                "{failure}{right}; what runs goes on as before, and it is tried again in {again}"
            );
            (None, CallResult::Refused, text)
        }
        CallOutcome::NotSent(failure) => {
            amendment.until = after(turn.now, UNSENT_WAIT);
            (None, CallResult::NotSent, format!("{failure}; it is tried again in 30 s"))
        }
    };
    let unsent = call.is_none().then(|| amendment.patch.clone());
    amendment.call = call;
    let what = What::OrderOutcome { generation, result };
    let name = result.name();
    let about = match &amendment.patch {
        Patch::Order(_) => format!("flags of generation {generation}"),
        Patch::Release => "release".to_owned(),
        Patch::Stop => "stop".to_owned(),
    };
    if let Some(Patch::Order(order)) = unsent {
        unreboot(record, &order);
    }
    turn.tell(record, what, format!("{about}: {name}: {text}"));
    true
}

/// A read shows whether the change is there. Returns whether the record changed.
pub fn shown(record: &mut SlotRecord, view: &NodeView, began: Timestamp, turn: &mut Turn) -> bool {
    let Some(amendment) = &record.job.amendment else { return false };
    let at = amendment.at;
    if began <= at || view.incarnation.as_ref() != Some(&amendment.incarnation) {
        return false;
    }
    let flags = |run: &RunOrder| (run.generation, run.wait, run.notice, run.reboot.clone());
    let (there, text) = match &amendment.patch {
        Patch::Order(order) => {
            let there =
                view.run.as_ref().map(flags) == Some(flags(order)) && view.out_of_step.is_none();
            let says = format!("wait {}, notice {}", order.wait, order.notice);
            (there, format!("the order of generation {} says {says}", order.generation))
        }
        Patch::Release => {
            // A read that lacks the metadata proves nothing of a patch that was refused.
            let ours = view.owner.is_some() || view.run.is_some() || view.supervised;
            (
                !ours && amendment.call.is_some(),
                "its metadata has no keys of the watchdog left".to_owned(),
            )
        }
        Patch::Stop => {
            let stops = matches!(view.state, NodeState::Stopping | NodeState::Stopped);
            (stops && amendment.call.is_some(), "it is stopped".to_owned())
        }
    };
    if there {
        let generation = amendment.patch.generation();
        // Its hosts may have said so before the node was read.
        let mut followed = None;
        match &amendment.patch {
            Patch::Order(order) => {
                let news = amendment.of_wait;
                followed = is_followed(record).filter(|waits| news && *waits == order.wait);
            }
            Patch::Release => {
                record.ours = false;
                record.released.iter_mut().for_each(|release| release.done = true);
            }
            Patch::Stop => record.job.stopped = Some(amendment.incarnation.clone()),
        }
        record.job.amendment = None;
        let took = elapsed(at, turn.now).as_secs();
        let text = format!("read back {took} s later: {text}");
        turn.tell(record, What::OrderOutcome { generation, result: CallResult::Done }, text);
        followed.into_iter().for_each(|waits| tell_read(record, waits, turn));
    }
    there
}

/// Whether every worker has read that its order says `wait`; none where some have, and some not.
pub fn is_followed(record: &SlotRecord) -> Option<bool> {
    let waits = |worker| record.job.workers.get(&worker).is_some_and(|state| state.waits);
    let hosts = record.size().hosts;
    let count = (0..hosts).filter(|worker| waits(*worker)).count();
    (count == 0 || count == hosts).then_some(count == hosts)
}

/// Tells that every worker follows a change by now: how long a patched key takes to reach a guest.
pub fn tell_followed(record: &SlotRecord, before: Option<bool>, turn: &mut Turn) {
    let (now, said) = (is_followed(record), record.seen.as_ref().and_then(|s| s.run.as_ref()));
    if now != before
        && let (Some(waits), Some(order)) = (now, said)
        && waits == order.wait
    {
        tell_read(record, waits, turn);
    }
}

fn tell_read(record: &SlotRecord, waits: bool, turn: &mut Turn) {
    let what = if waits { "waits: nothing starts by itself" } else { "may start again" };
    let text = format!("every worker has read its order and {what}");
    turn.tell(record, What::OrderRead { waits }, text);
}
