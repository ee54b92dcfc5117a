//! The gates: why a slot that is condemned is left alone all the same, or its pending create not
//! sent yet.
//!
//! A gate reads what is known of one slot and of the fleet, and either lets pass or gives the hold (a few
//! only a wait for a read that is under way), with the number, the reason and the next step for an operator. The table is asked from the top,
//! the first hold counts, and nothing is remembered: a gate that opens is passed by the next step.
//! Longer holds come first, so that a slot that waits for an operator takes no room in a
//! budget.
//!
//! Gates of *lost* and *judged* slots stand before a delete, or before the create for a slot
//! without a node; those of *creates* before a pending create. A lost slot passes the storm
//! breaker, quiet hours, `max_unavailable` and the like: nothing is left to save, and a whole Spot
//! fleet that is preempted at night must come back by itself. Half a fleet that looks sick at once
//! is first of all a reason to doubt our eyes. A gate never deletes, never creates, and asks for no
//! read.
//!
//! Example: `a` is READY with health TIMEOUT for 11 min (judged). It is not paused, its
//! specification is known, its attempts are not used up; its checkpoints were listed 20 min ago;
//! the breaker is closed; no other slot is in recovery. It passes every row, and the confirming GET
//! is asked for. With `b` in recovery and `max_unavailable = 1` the last row holds it:
//! "unresponsive: waiting: judged slots in recovery: 1, max_unavailable: 1".

mod common;
mod create;
mod judged;
mod relaunch;
mod resubmission;
mod slot;
mod standing;

use self::create::*;
use self::judged::*;
use self::relaunch::*;
use self::resubmission::*;
use self::slot::*;
use super::ctx::SlotCtx;
use crate::model::view::Decision;

pub use self::judged::CREATE_CHECKED_FOR;
pub use self::slot::DELETE_FAILURES;
pub use self::standing::{Obstacle, answers, no_create_could_follow, obstacle};

/// The step that a gate stands before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The removal of a lost node of ours. Its create is another decision (L9).
    Lost,
    /// The recreate of a lost node that an operator made.
    Foreign,
    /// The recreate of a judged slot.
    Judged,
    /// A recreate that an operator asked for.
    Asked,
    /// A delete by another hand that is sent once more.
    Stuck,
    /// The removal of a TPU whose job has finished.
    Finished,
    /// A create that was not sent.
    Create,
    /// A newer run order for the node that is there.
    Relaunch,
    /// A queued resource that is asked for before the present one's capacity ends.
    Ahead,
}

/// One row of the table.
#[derive(Clone, Copy)]
pub struct Gate {
    /// Its name, for tests and for those who read the table.
    pub name: &'static str,
    guards: &'static [Before],
    check: fn(&SlotCtx) -> Option<Decision>,
}

const ALL: &[Before] = &[
    Before::Lost,
    Before::Foreign,
    Before::Judged,
    Before::Asked,
    Before::Stuck,
    Before::Finished,
    Before::Create,
    Before::Relaunch,
    Before::Ahead,
];
const THERE: &[Before] = &[
    Before::Lost,
    Before::Foreign,
    Before::Judged,
    Before::Asked,
    Before::Stuck,
    Before::Finished,
    Before::Relaunch,
    Before::Ahead,
];
const RUNS: &[Before] = &[Before::Judged, Before::Asked, Before::Relaunch];
const RELAUNCHES: &[Before] = &[Before::Relaunch];
const DELETES: &[Before] = &[
    Before::Lost,
    Before::Foreign,
    Before::Judged,
    Before::Asked,
    Before::Stuck,
    Before::Finished,
];
const REPLACES: &[Before] = &[Before::Lost, Before::Foreign, Before::Judged, Before::Asked];
/// `retry` may want a finished job again: its TPU is deleted only where it could be created again.
const SPECIFIED: &[Before] = &[
    Before::Lost,
    Before::Foreign,
    Before::Judged,
    Before::Asked,
    Before::Finished,
    Before::Ahead,
];
/// The create of a lost node of ours is held by these, its removal is not.
const RECREATES: &[Before] = &[Before::Foreign, Before::Judged, Before::Asked, Before::Create];
const STARTED: &[Before] =
    &[Before::Foreign, Before::Judged, Before::Asked, Before::Create, Before::Ahead];
const DOUBTED: &[Before] = &[Before::Judged, Before::Asked];
const JUDGED: &[Before] = &[Before::Judged];
const CREATES: &[Before] = &[Before::Create];
const ASKS: &[Before] = &[Before::Create, Before::Ahead];
const AT_WORK: &[Before] = &[Before::Relaunch, Before::Ahead];
const SUBMITS: &[Before] =
    &[Before::Lost, Before::Foreign, Before::Judged, Before::Asked, Before::Create];
const LOST: &[Before] = &[Before::Lost, Before::Foreign];
/// All that the watchdog condemns by itself.
const CONDEMNS: &[Before] = &[Before::Lost, Before::Foreign, Before::Judged];

const fn gate(
    name: &'static str,
    guards: &'static [Before],
    check: fn(&SlotCtx) -> Option<Decision>,
) -> Gate {
    Gate { name, guards, check }
}

/// All gates, in the order in which they are asked.
pub const GATES: &[Gate] = &[
    gate("paused", ALL, paused),
    gate("opted_out", ALL, opted_out),
    gate("forgotten", ALL, forgotten),
    gate("plain_node", THERE, plain_node),
    gate("deleted", REPLACES, deleted),
    gate("when_missing", REPLACES, when_missing),
    gate("ended_early", STARTED, ended_early),
    gate("found_ended", LOST, found_ended),
    gate("possible", SUBMITS, possible),
    gate("resubmissions", CONDEMNS, resubmissions),
    gate("remains", ASKS, remains),
    gate("other_request", ASKS, other_request),
    gate("request_refused", CREATES, request_refused),
    gate("create_backoff", CREATES, create_backoff),
    gate("dry_run", CREATES, dry_run),
    gate(CHECKPOINTS, CREATES, checkpoints),
    gate("none_live", CREATES, none_live),
    gate("create_limit", ASKS, create_limit),
    gate("specification", SPECIFIED, specification),
    gate("body", ASKS, body),
    gate("delete_backoff", DELETES, delete_backoff),
    gate("attempts", RECREATES, attempts),
    // The last before a create: a slot that is held otherwise must not keep the others waiting.
    gate("probe", CREATES, probe),
    gate("beacon_channel", DOUBTED, beacon_channel),
    gate("breaker", JUDGED, breaker),
    gate("no_progress", RUNS, no_progress),
    gate("location", DOUBTED, location_listed),
    gate("stalled", JUDGED, stalled),
    gate("create_check", DOUBTED, create_check),
    gate("refused_in_pool", DOUBTED, refused_in_pool),
    gate("quiet_hours", JUDGED, quiet_hours),
    gate("pool", DOUBTED, trouble_in_pool),
    gate("repeated", JUDGED, repeated),
    gate("judged_per_hour", DOUBTED, judged_per_hour),
    gate("max_unavailable", JUDGED, max_unavailable),
    gate("order_dry_run", AT_WORK, order_dry_run),
    gate("same_job", RELAUNCHES, same_job),
    gate("supervisors", RELAUNCHES, supervisors),
    gate("order_pause", RELAUNCHES, order_pause),
    gate("order_once_more", RELAUNCHES, order_once_more),
    // Nothing is listed for an order that can't be given.
    gate("order_heard", RELAUNCHES, order_heard),
    gate(ORDER_CHECKPOINTS, RELAUNCHES, order_checkpoints),
];

/// The gate whose hold is ended by a listing, which has to be asked for.
pub const CHECKPOINTS: &str = "checkpoints";
/// The same of a run order.
pub const ORDER_CHECKPOINTS: &str = "order_checkpoints";

/// The first gate that holds, and its decision.
pub fn first_hold(
    gates: &[Gate],
    ctx: &SlotCtx,
    before: Before,
) -> Option<(&'static str, Decision)> {
    gates
        .iter()
        .filter(|gate| gate.guards.contains(&before))
        .find_map(|gate| Some((gate.name, (gate.check)(ctx)?)))
}

/// Whether an order would reach the hosts, and start what the config names.
pub fn could_relaunch(ctx: &SlotCtx) -> bool {
    [same_job, supervisors].iter().all(|gate| gate(ctx).is_none())
}

/// Whether no gate but this one holds.
pub fn holds_only(gates: &[Gate], ctx: &SlotCtx, before: Before, name: &str) -> bool {
    let others = |gate: &&Gate| gate.guards.contains(&before) && gate.name != name;
    gates.iter().filter(others).all(|gate| (gate.check)(ctx).is_none())
}
