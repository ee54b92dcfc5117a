//! What was looked up once before something is decided: whether a create could follow (S20), and who
//! deleted a node that is missing.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::event::What;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Memory};
use crate::model::lookup::{CreateCheck, Deletion};
use crate::model::node::NodeView;
use crate::model::time::elapsed;

use super::diagnose;
use super::identity::Source;
use super::turn::Turn;

/// A delete that was accepted this close to one of ours without an answer is ours.
const UNANSWERED: Duration = Duration::from_secs(5 * 60);

/// Takes in whether a create could follow. Doubts are told once. A certain reason holds (a gate), or
/// is told with `create_check = "warn"`.
pub fn create_checked(
    fleet: &mut Fleet,
    slot: &str,
    began: Timestamp,
    mut found: CreateCheck,
    turn: &mut Turn,
) {
    let Some(record) = fleet.slots.get_mut(slot) else { return };
    let memory = fleet.memory.get_mut(slot);
    found.question = memory.map(|memory| memory.create_asked.clone()).unwrap_or_default();
    let holds = fleet.settings.slots.get(slot).is_none_or(|slot| slot.policy.create_check);
    let before = record.create_check.as_ref().map(|(_, known)| known.clone()).unwrap_or_default();
    if let Some(why) = found.certain.as_ref().filter(|_| !holds && before.certain != found.certain)
    {
        let message = format!(
            "a create of it could not follow, which holds nothing with create_check = \"warn\": {why}"
        );
        turn.tell(record, What::Note, message);
    }
    if before.doubts != found.doubts && !found.doubts.is_empty() {
        let message = format!(
            "a create of it may be refused, which holds nothing: {}",
            found.doubts.join("; ")
        );
        turn.tell(record, What::Note, message);
    }
    // Of the journal: `status` shows what is held for it, and the next process need not ask at once.
    record.create_check = Some((began.min(turn.now), found));
    fleet.dirty.insert(slot.to_owned());
}

/// A node that is there ends what was known of its absence. Who deleted it is looked up again when
/// it disappears once more: that may be on purpose.
pub fn is_present(memory: &mut Memory, shown: Option<&Arc<NodeView>>, source: Source) {
    let was_emptied = memory.emptiness_confirmed;
    let emptied = shown.is_some_and(|view| view.not_listed);
    let there = shown.is_some() && !emptied;
    let confirmed = memory.emptiness_confirmed || source == Source::Get;
    memory.emptiness_confirmed = confirmed && emptied;
    memory.is_there = there;
    memory.absence_confirmed &= shown.is_none();
    // Another question, once the request is gone as well.
    memory.deletions.take_if(|_| there || emptied != was_emptied);
    if there {
        memory.deletions_unread = 0;
    }
}

/// So often are the operations of a zone asked for, a poll apart, before a TPU that is missing counts as
/// not deleted on purpose.
const LISTINGS: u32 = 3;
/// Or after it has been missing for so long.
const UNLISTED_FOR: Duration = Duration::from_secs(900);

/// Takes in the delete operations on a slot's node: one that is not ours says that the node was
/// deleted on purpose. Operations that can't be listed are no evidence, and told.
pub fn deletions(
    fleet: &mut Fleet,
    slot: &str,
    result: Result<Vec<Deletion>, Failure>,
    turn: &mut Turn,
) {
    let (Some(record), Some(memory)) = (fleet.slots.get_mut(slot), fleet.memory.get_mut(slot))
    else {
        return;
    };
    if memory.is_there {
        return;
    }
    match result {
        Ok(found) => {
            let unanswered = |at: Timestamp| {
                let sent = record.unanswered_delete;
                sent.is_some_and(|sent| elapsed(sent.min(at), sent.max(at)) <= UNANSWERED)
            };
            // A person may have deleted it, and then said that it is wanted.
            let answered = |at: Timestamp| record.wanted_since.is_some_and(|since| at <= since);
            let foreign = found.iter().find(|deletion| {
                let own = record.own_delete.as_ref() == Some(&deletion.operation);
                !own && !unanswered(deletion.at) && !answered(deletion.at)
            });
            if let Some(deletion) = foreign.filter(|_| !diagnose::is_owed(record)) {
                record.deleted = Some(format!(
                    "another client deleted it at {:.0} (operation {})",
                    deletion.at,
                    deletion.operation.rsplit('/').next().unwrap_or_default()
                ));
                fleet.dirty.insert(slot.to_owned());
            }
            memory.deletions = Some(found);
        }
        Err(failure) => {
            memory.deletions_unread += 1;
            let passes = matches!(
                failure.class,
                FailureClass::Transient | FailureClass::Rate | FailureClass::Garbage
            );
            // A scheduled run polls once: there its time counts, from the first symptom on.
            let since = record.suspicion.as_ref().map_or(turn.now, |suspicion| suspicion.since);
            let early = elapsed(since, turn.now) < UNLISTED_FOR;
            if passes && early && memory.deletions_unread < LISTINGS {
                return;
            }
            let message = format!(
                "the operations of its zone can't be listed ({failure}): whether it was deleted on purpose is not known, so it is created \
                 again"
            );
            turn.tell(record, What::Note, message);
            memory.deletions = Some(Vec::new());
        }
    }
}
