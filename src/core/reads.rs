//! Which reads a decision asks for: the confirming GET, the operation and the node of a call under
//! way, guest attributes and checkpoints. Each is asked for once and answered by exactly one input.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::action::Look;
use crate::model::condition::Condition;
use crate::model::event::Verb;
use crate::model::filling::Filling;
use crate::model::fleet::{Fleet, Memory, Pending};
use crate::model::lookup::CreateCheck;
use crate::model::phase::Phase;
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::step::Call;
use crate::model::time::after;

use super::ctx::SlotCtx;
use super::gates::CREATE_CHECKED_FOR;
use super::turn::Turn;
use super::{location, runs};

/// Whether a create could follow is asked again after this time, where it could not.
const MENDED_WITHIN: Duration = Duration::from_secs(300);
/// Slots that are well are asked for checkpoints once in this many polls.
const STAGGER: u64 = 4;
/// Calls a second that guest attributes use, and in a poll at least so many.
const ATTRIBUTES_A_SECOND: u128 = 5;
const ATTRIBUTES_LEAST: u128 = 20;

/// In how many polls each slot that is well is asked for guest attributes once: in every one, unless
/// the fleet is too large for that, or the API has refused one for its rate.
pub fn attribute_turns(fleet: &Fleet, now: Timestamp) -> u64 {
    let in_a_poll = fleet.settings.poll.every.as_millis() * ATTRIBUTES_A_SECOND / 1000;
    let slowed = fleet.attributes_slowed.is_some_and(|until| now < until);
    let most = in_a_poll.max(ATTRIBUTES_LEAST) / if slowed { 2 } else { 1 };
    u64::try_from((fleet.slots.len() as u128).div_ceil(most)).unwrap_or(u64::MAX).max(1)
}

/// Asks for the confirming GET, at most once a poll.
pub fn confirm(ctx: &mut SlotCtx, turn: &mut Turn) {
    if ctx.memory.asked_in_poll != ctx.polls && ctx.memory.pending.insert(Pending::Node) {
        ctx.memory.asked_in_poll = ctx.polls;
        let (slot, zone) = (ctx.record.name.clone(), ctx.record.zone.clone());
        let (filling, nodes) = (ctx.filling(), ctx.record.nodes().to_vec());
        turn.look(Look::Node { slot, zone, filling, nodes });
    }
}

/// Whether its specification can be created again is looked over once, until the node or the config
/// changes.
pub fn look_over_specification(ctx: &mut SlotCtx) {
    let SlotCtx { settings, slot, record, memory, .. } = ctx;
    memory.acceptable.get_or_insert_with(|| acceptable(settings, slot, record));
}

/// Whether a slot's specification can be created again as the config wants it, or why not.
pub fn acceptable(
    settings: &Settings,
    slot: &SlotSettings,
    record: &SlotRecord,
) -> Result<(), String> {
    let spec = record.spec.clone().unwrap_or_else(NodeSpec::empty).overlaid(&slot.create);
    spec.acceptable(&settings.owner, &record.name, slot.supervisor.as_deref())
}

/// Follows a call: by its operation while that can be read, by the node otherwise.
pub fn follow(ctx: &mut SlotCtx, call: Option<&Call>, turn: &mut Turn) {
    // No operation tells of what lists alone show: it is read at their pace.
    let listed = ctx.slot.filling.traits().is_found_by_lists;
    let poll = &ctx.settings.poll;
    let interval = if listed { poll.every.max(poll.operations) } else { poll.operations };
    let slot = ctx.record.name.clone();
    let creating = ctx.record.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Creating);
    let verb = if creating { Verb::Create } else { Verb::Delete };
    let memory = &mut *ctx.memory;
    if memory.pending.contains(&Pending::Call) {
        return;
    }
    let mut look_at_node = true;
    if let Some(Call::Accepted { operation }) = call {
        look_at_node = memory.operation_lost.is_some();
        if memory.pending.insert(Pending::Operation) {
            turn.look(Look::Operation {
                slot: slot.clone(),
                operation: operation.clone(),
                verb,
                spot: ctx.record.seen.as_ref().is_some_and(|seen| seen.spot),
                at: after(turn.now, interval),
            });
        }
    } else {
        memory.operation_lost = None;
    }
    let due = memory.looked_at.is_none_or(|at| after(at, interval) <= turn.now);
    if look_at_node && due && memory.pending.insert(Pending::Node) {
        memory.looked_at = Some(turn.now);
        let (zone, filling) = (ctx.record.zone.clone(), ctx.filling());
        let nodes = ctx.record.nodes().to_vec();
        turn.look(Look::Node { slot, zone, filling, nodes });
    }
}

/// Asks whether a create could follow, where a judgement may soon rest on it.
pub fn create_check(ctx: &mut SlotCtx, turn: &mut Turn) {
    // Renewed before its hour is over, so that a judgement need not wait for it; sooner where
    // something is to be mended.
    let question = ctx.create_question();
    let due = |(at, found): &(Timestamp, CreateCheck)| {
        let after_so_long =
            if found.certain.is_some() { MENDED_WITHIN } else { CREATE_CHECKED_FOR / 2 };
        after(*at, after_so_long) <= turn.now || found.question != question
    };
    // The Cloud TPU API knows nothing of a training job.
    let asked = !ctx.slot.filling.traits().is_job;
    if asked
        && ctx.record.create_check.as_ref().is_none_or(due)
        && ctx.memory.pending.insert(Pending::CreateCheck)
    {
        ctx.memory.create_asked = question;
        let next = ctx.next_create();
        turn.look(Look::CreateCheck { slot: ctx.record.name.clone(), next });
    }
}

/// Asks who deleted a TPU that is missing, once; with the next poll again where that can't be read.
pub fn deletions(ctx: &mut SlotCtx, turn: &mut Turn) {
    let Some(known) = &ctx.record.incarnation else { return };
    // Machines that were made again were deleted before that.
    let seen = ctx.record.seen.as_ref();
    let machines = seen.and_then(|seen| seen.machines.values().max()).copied();
    let since = machines.map_or(known.created, |made| made.max(known.created));
    let emptied = seen.is_some_and(|seen| seen.not_listed);
    if ctx.memory.deletions_unread > 0 && !turn.polled {
        return;
    }
    if ctx.memory.deletions.is_none() && ctx.memory.pending.insert(Pending::Deletions) {
        let (slot, zone) = (ctx.record.name.clone(), ctx.record.zone.clone());
        // Of a queued resource that had lost its nodes, their deletes say who wanted that.
        let nodes =
            ctx.record.nodes().iter().filter(|_| emptied).map(|node| Filling::Node.path(node));
        let whole = (ctx.condition() == Condition::Missing).then(|| ctx.filling().path(&slot));
        let targets = whole.into_iter().chain(nodes).collect();
        turn.look(Look::Deletions { slot, zone, targets, since });
    }
}

/// Asks for the listing that a pending create waits for.
pub fn checkpoints(ctx: &mut SlotCtx, turn: &mut Turn) {
    let (Some(location), Some(recovery)) = (location::listed(ctx.slot), &ctx.record.recovery)
    else {
        return;
    };
    let (memory, interval) = (&mut *ctx.memory, ctx.settings.poll.operations);
    let asked = memory.asked_checkpoints.filter(|at| *at >= recovery.phase_since);
    if asked.is_none_or(|at| after(at, interval) <= turn.now)
        && memory.pending.insert(Pending::Checkpoints)
    {
        memory.asked_checkpoints = Some(turn.now);
        let (slot, set_aside) = (ctx.record.name.clone(), runs::set_aside(ctx.record));
        turn.look(Look::Checkpoints { slot, location: location.clone(), set_aside });
    }
}

/// Asks for the workers' reports, not before `at`.
pub fn attributes(record: &SlotRecord, memory: &mut Memory, at: Timestamp, turn: &mut Turn) {
    let Some(of) = &record.incarnation else { return };
    if memory.pending.insert(Pending::Attributes) {
        turn.look(Look::Attributes {
            slot: record.name.clone(),
            zone: record.zone.clone(),
            nodes: record.nodes().to_vec(),
            of: of.clone(),
            workers: record.size().hosts,
            at,
        });
    }
}

/// Reads that need a call a slot: every poll where something is wrong or under way, else spread
/// over several polls.
pub fn stagger(
    record: &SlotRecord,
    memory: &mut Memory,
    slot: &SlotSettings,
    (polls, index): (u64, u64),
    turns: u64,
    turn: &mut Turn,
) {
    let rests = record.verdict.condition == Condition::Finished && record.wanted.is_none();
    if !turn.polled || rests {
        return;
    }
    let relaunches = record.job.relaunch.is_some() || record.job.relaunch_by.is_some();
    let settled = record.recovery.is_none() && record.suspicion.is_none() && !relaunches;
    // The first look of a process comes at once: a scheduled run may have no second poll.
    let in_turn = |turns: u64| !settled || (polls + index).is_multiple_of(turns);
    let supervised = record.seen.as_ref().is_some_and(|s| s.supervised);
    if (in_turn(turns) || !memory.asked_attributes)
        && record.ours
        && supervised
        && slot.supervisor.is_some()
        && record.ready_since.is_some()
    {
        memory.asked_attributes = true;
        attributes(record, memory, turn.now, turn);
    }
    if let Some(checkpoint) = location::watched(record, slot)
        && (in_turn(STAGGER) || memory.asked_checkpoints.is_none())
        && record.incarnation.is_some()
        && memory.pending.insert(Pending::Checkpoints)
    {
        memory.asked_checkpoints = Some(turn.now);
        let set_aside = runs::set_aside(record);
        turn.look(Look::Checkpoints {
            slot: record.name.clone(),
            location: checkpoint.into_owned(),
            set_aside,
        });
    }
}
