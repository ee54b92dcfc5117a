//! The rule about the create that has to follow the delete of a judged TPU.

use std::time::Duration;

use super::case::{Case, Checked, listed, rule};
use crate::model::time::elapsed;

/// A judged delete rests on a listing of its checkpoints of at most this age.
const LISTED_FOR: Duration = Duration::from_secs(3600);

/// S20: a create can follow.
pub fn can_follow(case: &Case) -> Checked {
    let Case { slot, record, now, .. } = case;
    if slot.policy.create_check {
        let asked = record.create_check.as_ref().filter(|(at, _)| elapsed(*at, *now) <= LISTED_FOR);
        let possible = asked.is_some_and(|(_, found)| found.certain.is_none());
        rule(possible, "S20", "a create could not follow, or that was not asked within the hour")?;
    }
    if let Some(location) = listed(slot) {
        let listed_at = record.job.listed_at.filter(|_| record.job.location == location);
        let known = listed_at.is_some_and(|at| elapsed(at, *now) <= LISTED_FOR)
            && record.job.trouble.is_none()
            && record.job.went_back_since.is_none();
        rule(
            known,
            "S20",
            "its checkpoints must have been listed within the last hour, be understood, and include the recorded one",
        )?;
    }
    Ok(())
}
