//! Which slots are not protected although no operator chose that: told in the log once, and once more
//! when it is over.

use std::collections::BTreeSet;

use crate::model::condition::Condition;
use crate::model::view::{SlotView, StatusDocument};

/// The slots that were told.
#[derive(Debug, Default)]
pub struct Protection {
    told: BTreeSet<String>,
}

impl Protection {
    /// The slots whose protection is another one than was told last, each with the reason why it is
    /// not protected.
    pub fn news<'a>(
        &mut self,
        document: &'a StatusDocument,
    ) -> Vec<(&'a SlotView, Option<&'a str>)> {
        // Neither a slot that was not read nor one that is paused says what it would be otherwise.
        let says =
            |slot: &&SlotView| slot.condition != Condition::Unclear && !slot.unprotected_by_choice;
        let mut news = Vec::new();
        for slot in document.tpus.iter().filter(says) {
            let why = slot.unprotected_reason.as_deref();
            let changed = match why {
                Some(_) => self.told.insert(slot.name.clone()),
                None => self.told.remove(&slot.name),
            };
            if changed {
                news.push((slot, why));
            }
        }
        news
    }
}

/// Writes what is new into the log.
pub fn log(protection: &mut Protection, document: &StatusDocument) {
    for (slot, why) in protection.news(document) {
        let slot = slot.name.as_str();
        match why {
            Some(why) => tracing::warn!(slot, "NOT PROTECTED: {why}"),
            None => tracing::info!(slot, "protected again: it would be recreated if it were lost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_not_protected_is_told_once_and_once_more_when_that_is_over() {
        let text = include_str!("../../tests/snapshots/document.json");
        let mut document: StatusDocument = serde_json::from_str(text).unwrap();
        let mut protection = Protection::default();
        let names = |protection: &mut Protection, document: &StatusDocument| -> Vec<String> {
            let news = protection.news(document);
            let word = |why: Option<&str>| if why.is_some() { "not" } else { "again" };
            news.iter().map(|(slot, why)| format!("{} {}", slot.name, word(*why))).collect()
        };
        assert_eq!(names(&mut protection, &document), ["llama-2 not"]);
        assert!(names(&mut protection, &document).is_empty());
        let slot = document.tpus.iter_mut().find(|slot| slot.name == "llama-2").unwrap();
        slot.unprotected_by_choice = true;
        assert!(names(&mut protection, &document).is_empty(), "a pause protects nothing");
        let slot = document.tpus.iter_mut().find(|slot| slot.name == "llama-2").unwrap();
        (slot.unprotected_by_choice, slot.unprotected_reason) = (false, None);
        assert_eq!(names(&mut protection, &document), ["llama-2 again"]);
    }
}
