//! The pure core: every input goes in here, every consequence comes out as a value.
//!
//! This room never does I/O, reads a clock, draws a random number or awaits anything: the same
//! inputs give the same effects.

mod ahead;
mod amend;
mod answers;
mod apply;
mod asked;
mod budget;
mod called_off;
mod check;
mod clock;
mod codes;
mod command;
mod condemn;
mod confirm;
mod ctx;
mod diagnose;
mod ended;
mod ending;
mod fleet;
pub mod gates;
mod identity;
mod idle;
pub mod if_lost;
mod judge;
mod learning;
mod life;
mod lines;
mod listed;
mod listing;
pub mod location;
mod lookups;
mod machines;
mod moves;
mod observe;
mod plan;
mod pool;
mod readback;
mod reads;
mod relaunch;
mod reload;
mod remains;
mod replace;
mod reports;
mod request;
mod resubmission;
mod runs;
mod settle;
mod sound;
mod storm;
mod strays;
mod surveys;
mod suspicion;
pub mod sweep;
mod takeover;
mod turn;
mod twins;
pub mod view;

#[cfg(test)]
mod tests;

use jiff::Timestamp;

use crate::model::action::{Effect, Input};
use crate::model::fleet::Fleet;
use crate::model::phase::Phase;
use crate::model::step::Call;
use crate::model::time::after;

/// One turn of the watchdog: apply the input, diagnose what it showed, plan, check, return the
/// consequences.
///
/// Reads under way are remembered in the fleet, so that the shell must answer every
/// [`Effect::Look`] and every action of a commit with exactly one input.
pub fn step(fleet: &mut Fleet, input: Input, now: Timestamp) -> Vec<Effect> {
    step_with(gates::GATES, fleet, input, now)
}

/// The same with other gates: tests take rows away to show what they are for.
pub fn step_with(
    gates: &[gates::Gate],
    fleet: &mut Fleet,
    input: Input,
    now: Timestamp,
) -> Vec<Effect> {
    let (configures, polled) = (
        matches!(input, Input::Configured(_) | Input::Begun(..)),
        matches!(input, Input::Polled(_)),
    );
    // A start, or a journal that was read again.
    if cfg!(debug_assertions) && configures {
        fleet.damaged = sound::records(fleet).is_err();
    }
    let mut turn = turn::Turn::new(now, &input);
    clock::keep_up(fleet, now);
    apply::apply(fleet, input, &mut turn);
    plan::plan(fleet, gates, &mut turn);
    fleet.stepped_at = Some(now);
    let effects = turn.into_effects(fleet);
    if cfg!(debug_assertions) && !fleet.damaged {
        let checked = if configures || polled { sound::check(fleet) } else { Ok(()) };
        debug_assert_eq!(checked.and_then(|()| sound::commits(fleet, &effects)), Ok(()));
    }
    effects
}

pub use budget::remaining;
pub use command::name as command_name;
pub use diagnose::left_alone;
pub use ending::starts_again;

/// When a [`Input::Tick`] is needed at the latest, without any other input.
pub fn next_wake(fleet: &Fleet) -> Option<jiff::Timestamp> {
    let mut wake: Option<Timestamp> = None;
    for (name, record) in &fleet.slots {
        let Some(recovery) = &record.recovery else { continue };
        let memory = fleet.memory.get(name);
        if memory.is_some_and(|m| !m.pending.is_empty()) {
            continue;
        }
        let later = |at: Option<Timestamp>| at.map(|at| after(at, fleet.settings.poll.operations));
        let due = match recovery.phase() {
            Phase::Deleting | Phase::Creating
                if !matches!(recovery.call(), Some(Call::Accepted { .. })) =>
            {
                [later(memory.and_then(|m| m.looked_at)), None, None]
            }
            Phase::Gone => {
                let full = fleet.ledger.creates.len() >= budget::CREATES_PER_MINUTE;
                let limit = fleet
                    .ledger
                    .creates
                    .first()
                    .filter(|_| full)
                    .map(|first| after(*first, budget::CREATE_WINDOW));
                let create = fleet.settings.slots.get(name).map(|slot| &slot.create);
                let probe = create.and_then(|create| {
                    let pool = pool::name(record, create, &record.zone);
                    pool::probed_at(&fleet.ledger, &pool)
                });
                let asked = later(memory.and_then(|m| m.asked_checkpoints));
                [recovery.not_before.max(probe), limit, asked]
            }
            _ => [None; 3],
        };
        // A time that was due in the last turn and is still here waits for something else: another
        // input will tell.
        let ahead = due
            .into_iter()
            .flatten()
            .filter(|at| fleet.stepped_at.is_none_or(|turn| *at > turn))
            .min();
        wake = match (wake, ahead) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    wake
}
