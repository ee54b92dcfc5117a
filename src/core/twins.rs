//! Late twins of training jobs (S24). A submission whose answer was lost, and that no list had shown for `settle`, is sent
//! again; should the first one show after all, two jobs of one lineage live. The newer one of this journal is followed
//! like a stray, and cancelled: `remains` confirms it by a GET, journals the cancel, and sends it.
//!
//! Example: the submission of 10:00 was lost, and sent again at 10:06 as job 12. At 10:40 job 11 shows, with the same
//! labels, created at 10:00. The slot goes on as job 11, the elder; job 12 is cancelled within a poll.

use std::time::Duration;

use crate::model::action::Reading;
use crate::model::fleet::{Fleet, Ledger, Stray, Twin};
use crate::model::ids::Incarnation;
use crate::model::submission::{JobState, JobView};
use crate::model::time::elapsed;
use crate::resource::training;

use super::listed::Listed;
use super::remains;
use super::turn::Turn;

/// Polls between a lost submission and the next one, at most.
const SLACK: Duration = Duration::from_secs(60);

/// Follows the twins that a poll has listed, until lists lack them. The ledger is written after each poll that read some.
pub fn listed(fleet: &mut Fleet, listed: &Listed, turn: &mut Turn) {
    for (slot, job) in shown(fleet, listed) {
        let key = Stray::key(&job.region, &job.id);
        let (id, kind, region) = (job.id.clone(), job.kind, job.region.clone());
        let Some(created) = job.created else { continue };
        fleet.ledger.strays.entry(key).or_insert_with(|| {
            let why = format!("an elder job of the lineage of {slot} lives, and goes on");
            let by_hand = kind.asks(&format!("cancel {id}"), &region);
            turn.note(format!(
                "job {id} in {region}: {why}; the newer one is to be cancelled. If it stays: {by_hand}"
            ));
            Stray {
                state: Some(job.state.as_str().to_owned()),
                incarnation: Some(Incarnation { id: id.clone(), created }),
                twin: Some(Twin { kind, slot }),
                ..Stray::followed(region, id, why, turn.now)
            }
        });
    }
    let Fleet { ledger, slots, looked_for, .. } = fleet;
    ledger.strays.retain(|key, stray| {
        // A region that was not read says nothing.
        let jobs = listed.jobs(&stray.zone).filter(|_| stray.twin.is_some());
        let Some(jobs) = jobs else { return true };
        let state = jobs.iter().find(|job| job.id == stray.name).map(|job| job.state.as_str());
        if stray.state.as_deref() != state {
            stray.state = state.map(str::to_owned);
            looked_for.remove(key);
        }
        let over = match state {
            Some(_) if stray.is_being_removed() || stray.has_elder(slots) => return true,
            // It is the slot's own by now, or no slot's.
            Some(_) => "no elder job of its lineage lives",
            None => remains::GONE,
        };
        remains::ended(stray, over, turn);
        false
    });
}

/// The jobs of this journal that live while an elder one of their slot's lineage does.
fn shown(fleet: &Fleet, listed: &Listed) -> Vec<(String, JobView)> {
    let mut twins = Vec::new();
    for (name, slot) in &fleet.settings.slots {
        let Some(of) = slot.filling.training() else { continue };
        let Some(record) = fleet.slots.get(name) else { continue };
        // The service refuses a second job of one id.
        let known = training::lineage(record.nodes()).filter(|_| !of.kind.takes_ids());
        let Some(lineage) = known else { continue };
        let jobs = slot.places(&record.zone).filter_map(|region| listed.jobs(region)).flatten();
        // One that is being cancelled does not go on.
        let goes_on = |job: &JobView| JobState::CANCELLABLE.contains(&job.state);
        let is_it = |job: &&JobView| job.lineage() == lineage && goes_on(job);
        let mut live: Vec<&JobView> = jobs.filter(is_it).collect();
        live.sort_by_key(|job| (job.created, &job.id));
        // A person's copy has the same labels, and another time: sent twice means within twice the wait for lists.
        let poll = &fleet.settings.poll;
        let within = (poll.timeout + of.settle + poll.every) * 2 + SLACK;
        let Some(elder) = live.first() else { continue };
        let again = |job: &&&JobView| {
            let apart = elder.created.zip(job.created).map(|(a, b)| elapsed(a, b));
            elder.attempt() == job.attempt() && apart.is_some_and(|apart| apart <= within)
        };
        let ours = |job: &&&JobView| job.nonce() == Some(&fleet.settings.owner);
        let late = live.iter().skip(1).filter(ours).filter(again);
        twins.extend(late.map(|job| (name.clone(), (*job).clone())));
    }
    twins
}

/// A reading that shows a twin which is being cancelled says nothing of its slot: its end is no person's.
pub fn masked(ledger: &Ledger, reading: Reading) -> Reading {
    let Reading::Node(view) = &reading else { return reading };
    let shown = view.incarnation.as_ref().filter(|_| !view.ended);
    let stray = shown.and_then(|shown| ledger.strays.get(&Stray::key(&view.zone, &shown.id)));
    let is_twin = |stray: &&Stray| stray.twin.is_some() && stray.is_being_removed();
    let Some(stray) = stray.filter(is_twin) else { return reading };
    Reading::Unread(format!("job {} is a late twin, and is being cancelled", stray.name))
}
