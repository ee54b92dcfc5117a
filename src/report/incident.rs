//! Incidents: the story of a slot from condemned to over, folded from the event log.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use crate::model::condition::{Condition, Kind};
use crate::model::event::{Event, What};
use crate::model::failure::FailureClass;
use crate::model::ids::Incarnation;
use crate::model::phase::Phase;
use crate::model::time::elapsed;

/// How an incident ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The slot makes progress again.
    Recovered,
    /// It healed, another client replaced the node, or the slot is no longer watched.
    Withdrawn,
}

/// One incident.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// The slot.
    pub slot: String,
    /// The condition that condemned it.
    pub cause: Condition,
    /// Lost or judged.
    pub kind: Kind,
    /// When it was condemned.
    pub condemned_at: Timestamp,
    /// The incarnation; none when the node was gone.
    pub incarnation: Option<Incarnation>,
    /// From the first symptom to condemned.
    pub detection_seconds: f64,
    /// Each finished phase and how long it took.
    pub phases: Vec<(Phase, f64)>,
    /// Creates that were refused, by their reasons.
    pub refusals: BTreeMap<FailureClass, u32>,
    /// When it ended, and how; none while it is under way.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub ending: Option<Ending>,
    /// Why it was withdrawn, in words.
    pub withdrawn: Option<String>,
    /// From the first symptom to recovered.
    pub down_seconds: Option<f64>,
    /// Steps between the last reported one and the checkpoint.
    pub steps_lost: Option<u64>,
    /// Work that is repeated, in time.
    pub repeated_seconds: Option<f64>,
    /// The evidence, in words.
    pub evidence: String,
}

/// The incidents in a part of the event log, oldest first. One whose beginning is not in it is left
/// out.
pub fn incidents(events: &[Event]) -> Vec<Incident> {
    let mut all: Vec<Incident> = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for event in events {
        let Some(slot) = event.slot.as_deref() else { continue };
        if let What::Condemned { cause, kind, incarnation, detection_seconds } = &event.what {
            // A bad replacement goes on in the same incident.
            if !open.contains_key(slot) {
                open.insert(slot, all.len());
                all.push(Incident {
                    slot: slot.to_owned(),
                    cause: *cause,
                    kind: *kind,
                    condemned_at: event.at,
                    incarnation: incarnation.clone(),
                    detection_seconds: *detection_seconds,
                    phases: Vec::new(),
                    refusals: BTreeMap::new(),
                    ended_at: None,
                    ending: None,
                    withdrawn: None,
                    down_seconds: None,
                    steps_lost: None,
                    repeated_seconds: None,
                    evidence: event.message.clone(),
                });
            }
            continue;
        }
        let Some(incident) = open.get(slot).and_then(|index| all.get_mut(*index)) else { continue };
        match &event.what {
            What::Phase { from, seconds, .. } => incident.phases.push((*from, *seconds)),
            What::RecoveryFailure { reason, .. } => {
                *incident.refusals.entry(*reason).or_default() += 1
            }
            What::Recovered { down_seconds, steps_lost, repeated_seconds, .. } => {
                (incident.ended_at, incident.ending) = (Some(event.at), Some(Ending::Recovered));
                incident.down_seconds = Some(*down_seconds);
                (incident.steps_lost, incident.repeated_seconds) = (*steps_lost, *repeated_seconds);
                open.remove(slot);
            }
            What::Withdrawn { .. } => {
                (incident.ended_at, incident.ending) = (Some(event.at), Some(Ending::Withdrawn));
                incident.withdrawn = Some(event.message.clone());
                open.remove(slot);
            }
            _ => {}
        }
    }
    all
}

/// Trouble that ended by itself, within its grace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Healed {
    /// The slot.
    pub slot: String,
    /// The first sick condition.
    pub condition: Condition,
    /// When it began.
    pub since: Timestamp,
    /// How long it took.
    pub seconds: f64,
}

/// The trouble in a part of the event log that healed before anything was condemned, oldest first.
pub fn healed(events: &[Event]) -> Vec<Healed> {
    let mut open: BTreeMap<&str, (Condition, Timestamp)> = BTreeMap::new();
    let mut replaced: BTreeSet<&str> = BTreeSet::new();
    let mut all = Vec::new();
    for event in events {
        let Some(slot) = event.slot.as_deref() else { continue };
        match &event.what {
            What::Condemned { .. } => _ = replaced.insert(slot),
            What::Recovered { .. } | What::Withdrawn { .. } => _ = replaced.remove(slot),
            _ => {}
        }
        match &event.what {
            // A replacement that boots is no trouble.
            What::Condition { .. } if replaced.contains(slot) => {}
            What::Condition { to, .. } if to.is_sick() => {
                open.entry(slot).or_insert((*to, event.at));
            }
            What::Condition { to: Condition::Healthy, .. } => {
                let Some((condition, since)) = open.remove(slot) else { continue };
                let seconds = elapsed(since, event.at).as_secs_f64();
                all.push(Healed { slot: slot.to_owned(), condition, since, seconds });
            }
            // Which the list of incidents has, or which is no healing.
            What::Condemned { .. } | What::Condition { to: Condition::Stopped, .. } => {
                open.remove(slot);
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(second: i64, slot: &str, what: What) -> Event {
        let at = Timestamp::from_second(second).unwrap();
        Event { at, slot: Some(slot.into()), message: "m".into(), what }
    }

    fn condemned() -> What {
        What::Condemned {
            cause: Condition::Preempted,
            kind: Kind::Lost,
            incarnation: None,
            detection_seconds: 1.0,
        }
    }

    #[test]
    fn the_events_of_several_slots_fold_into_their_incidents() {
        let recovered = What::Recovered {
            queued_seconds: 0.0,
            cause: Condition::Preempted,
            seconds: 9.0,
            down_seconds: 10.0,
            steps_lost: Some(7),
            repeated_seconds: None,
        };
        let refused =
            What::RecoveryFailure { cause: Condition::Preempted, reason: FailureClass::StockOut };
        let phase = What::Phase { from: Phase::Deleting, seconds: 3.0, to: Phase::Gone };
        let events = [
            event(0, "z", recovered.clone()),
            event(1, "a", condemned()),
            event(2, "b", condemned()),
            event(3, "a", phase),
            event(4, "a", refused.clone()),
            event(5, "a", refused),
            event(6, "a", condemned()),
            event(7, "a", recovered),
            event(8, "a", condemned()),
        ];
        let all = incidents(&events);
        assert_eq!(
            all.iter().map(|i| i.slot.as_str()).collect::<Vec<_>>(),
            ["a", "b", "a"],
            "z began before"
        );
        assert_eq!(
            (all[0].ending, all[0].down_seconds, all[0].steps_lost),
            (Some(Ending::Recovered), Some(10.0), Some(7))
        );
        assert_eq!(
            (all[0].phases.as_slice(), all[0].refusals[&FailureClass::StockOut]),
            ([(Phase::Deleting, 3.0)].as_slice(), 2)
        );
        assert_eq!((all[1].ending, all[2].ending), (None, None), "under way");
    }

    #[test]
    fn what_heals_by_itself_is_kept_apart_from_what_was_condemned() {
        let turns = |from, to| What::Condition { from, to };
        let (well, sick) = (Condition::Healthy, Condition::Maintenance);
        let events = [
            event(0, "a", turns(well, sick)),
            event(1, "b", turns(well, sick)),
            event(3, "a", turns(sick, Condition::Unclear)),
            event(4, "a", turns(Condition::Unclear, sick)),
            event(5, "b", condemned()),
            event(6, "a", turns(sick, well)),
            event(9, "b", turns(sick, well)),
            // The replacement boots.
            event(10, "b", turns(Condition::Missing, Condition::Starting)),
            event(11, "b", turns(Condition::Starting, well)),
        ];
        let all = healed(&events);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!((all[0].slot.as_str(), all[0].condition, all[0].seconds), ("a", sick, 6.0));
    }
}
