//! Takes one input into the fleet: dispatches it to the file of its kind.

use crate::model::action::Input;
use crate::model::fleet::{Fleet, Pending};

use super::identity::Source;
use super::observe::observe;
use super::turn::Turn;
use super::{
    ahead, amend, answers, command, idle, listing, lookups, relaunch, reload, remains, reports,
    surveys, twins,
};

/// Applies one input.
pub fn apply(fleet: &mut Fleet, input: Input, turn: &mut Turn) {
    match input {
        Input::Configured(settings) => reload::configured(fleet, *settings, turn),
        Input::Polled(poll) => listing::polled(fleet, *poll, turn),
        Input::Got { slot, began, reading } => {
            done(fleet, &slot, Pending::Node);
            let reading = twins::masked(&fleet.ledger, reading);
            observe(fleet, &slot, reading, began, Source::Get, turn);
        }
        Input::Attributes { slot, of, began, result } => {
            done(fleet, &slot, Pending::Attributes);
            reports::answered(fleet, &slot, &of, began, result, turn);
        }
        Input::Surveyed { slot, began, location, result } => {
            done(fleet, &slot, Pending::Checkpoints);
            surveys::answered(fleet, &slot, began, &location, result, turn);
        }
        Input::Called { slot, outcome } => {
            done(fleet, &slot, Pending::Call);
            if !ahead::called(fleet, &slot, &outcome, turn) {
                answers::called(fleet, &slot, outcome, turn);
            }
        }
        Input::Ordered { slot, generation, outcome } => {
            done(fleet, &slot, Pending::Call);
            if !amend::ordered(fleet, &slot, generation, &outcome, turn) {
                relaunch::ordered(fleet, &slot, generation, outcome, turn);
            }
        }
        Input::StrayGot { zone, name, began, reading } => {
            remains::got(fleet, &zone, &name, began, reading, turn);
        }
        Input::StrayCalled { zone, name, patch, outcome } => {
            if patch {
                idle::called(fleet, &zone, &name, &outcome, turn);
            } else {
                remains::called(fleet, &zone, &name, outcome, turn);
            }
        }
        Input::Operated { slot, operation, result } => {
            done(fleet, &slot, Pending::Operation);
            answers::operated(fleet, &slot, &operation, result, turn);
        }
        Input::CreateChecked { slot, began, found } => {
            done(fleet, &slot, Pending::CreateCheck);
            lookups::create_checked(fleet, &slot, began, found, turn);
        }
        Input::Deletions { slot, result, .. } => {
            done(fleet, &slot, Pending::Deletions);
            lookups::deletions(fleet, &slot, result, turn);
        }
        Input::Begun(settings, commands) => {
            reload::configured(fleet, *settings, turn);
            command::carry_out(fleet, commands, turn);
        }
        Input::Commands(commands) => {
            fleet.forget_decisions();
            command::carry_out(fleet, commands, turn);
        }
        Input::Tick => {}
    }
}

fn done(fleet: &mut Fleet, slot: &str, pending: Pending) {
    if let Some(memory) = fleet.memory.get_mut(slot) {
        memory.pending.remove(&pending);
    }
}
