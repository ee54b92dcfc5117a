//! The pure core: every input goes in here, every consequence comes out as a value.
//!
//! This room never does I/O, reads a clock, draws a random number or awaits anything: the same inputs give the same effects.

mod absorb;
mod diagnose;
mod guard;
mod judge;
mod observe;
mod plan;
mod recover;
mod turn;
pub mod view;

#[cfg(test)]
mod tests;

use jiff::Timestamp;

use crate::model::action::{Effect, Input};
use crate::model::fleet::{Fleet, after};
use crate::model::recovery::{Call, Phase};

/// One turn of the watchdog: absorb the input, diagnose what it showed, plan, check, return the consequences.
///
/// Reads under way are remembered in the fleet, so that the shell must answer every [`Effect::Look`] and every action of a
/// commit with exactly one input.
pub fn step(fleet: &mut Fleet, input: Input, now: Timestamp) -> Vec<Effect> {
    let mut turn = turn::Turn::new(now, matches!(input, Input::Polled(_)));
    absorb::absorb(fleet, input, &mut turn);
    plan::plan(fleet, &mut turn);
    fleet.stepped_at = Some(now);
    turn.into_effects(fleet)
}

/// When a [`Input::Tick`] is needed at the latest, without any other input.
pub fn next_wake(fleet: &Fleet) -> Option<jiff::Timestamp> {
    let mut wake: Option<Timestamp> = None;
    for (name, record) in &fleet.slots {
        let Some(recovery) = &record.recovery else { continue };
        let memory = fleet.memory.get(name);
        if memory.is_some_and(|m| !m.pending.is_empty()) {
            continue;
        }
        let look = memory.and_then(|m| m.looked_at).map(|at| after(at, fleet.settings.poll.operations));
        let survey = memory.and_then(|m| m.asked_checkpoints).map(|at| after(at, fleet.settings.poll.operations));
        let due = match recovery.phase {
            Phase::Deleting | Phase::Creating if !matches!(recovery.call, Some(Call::Accepted { .. })) => look,
            Phase::Gone => match (recovery.not_before, fleet.ledger.creates.first()) {
                (Some(at), _) => Some(at),
                (None, Some(first)) if fleet.ledger.creates.len() >= plan::CREATES_PER_MINUTE => {
                    Some(after(*first, plan::CREATE_WINDOW))
                }
                _ => survey,
            },
            _ => None,
        };
        // What was due in the last turn and is still here waits for something else: another input will tell.
        let due = due.filter(|at| fleet.stepped_at.is_none_or(|turn| *at > turn));
        wake = match (wake, due) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    wake
}
