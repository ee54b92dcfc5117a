//! The stories of the gates that managed training jobs have of their own.

use super::gates::{Acts, Refused, Row};
use super::training::Service;
use super::*;
use crate::model::slot::SlotRecord;

pub const STORIES: &[Row] = &[
    ("found_ended", HoldReason::Deleted, Acts, |w| {
        ended(w, |record| record.deleted = Some("it had ended".into()), acts)
    }),
    ("possible", HoldReason::NotPossible, Acts, |w| {
        let keyed = |job: &mut Value| job["encryptionSpec"] = json!({"kmsKeyName": "k"});
        ended_as(w, keyed, |_| (), acts)
    }),
    ("resubmissions", HoldReason::NoProgress, Acts, used_up),
    ("stalled", HoldReason::CheckpointUnreadable, Refused("S5"), super::stalls::unlisted),
    ("none_live", HoldReason::Unclear, Refused("S24"), |w| {
        ended(w, |_| (), |world| world.phase("a").is_some())
    }),
];

/// The job of `a` has ended for a reason of Google's: up to four polls, until `is_there`.
fn ended(w: &mut World, change: fn(&mut SlotRecord), is_there: fn(&World) -> bool) {
    ended_as(w, |_| (), change, is_there);
}

fn ended_as(
    w: &mut World,
    of: fn(&mut Value),
    change: fn(&mut SlotRecord),
    is_there: fn(&World) -> bool,
) {
    let mut service = Service::new();
    service.world.gates.clone_from(&w.gates);
    of(&mut service.jobs[0].1);
    service.poll();
    // Its Spot capacity was taken back.
    service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
    for _ in 0..4 {
        change(service.world.fleet.slots.get_mut("a").unwrap());
        service.world.wait(30);
        service.poll();
        if is_there(&service.world) {
            break;
        }
    }
    *w = service.world;
}

fn acts(world: &World) -> bool {
    !world.actions.is_empty()
}

/// A job fails for an unknown reason whose resubmissions are used up.
fn used_up(w: &mut World) {
    let mut service = Service::new();
    service.world.gates.clone_from(&w.gates);
    service.sets("JOB_STATE_FAILED", Some((2, "something else")));
    for _ in 0..12 {
        service.world.fleet.slots.get_mut("a").unwrap().resubmitted.fruitless = 9;
        service.world.wait(30);
        service.poll();
        if !service.world.actions.is_empty() {
            break;
        }
    }
    *w = service.world;
}
