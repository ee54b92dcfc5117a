//! The words of `status` that are neither a hold nor a condition, explained: steps of a recovery, gates, alerts.

use super::meanings::{Meaning, says};
use crate::model::phase::Phase;

/// A section for each alert: the text that its `runbook_url` leads to.
const RUNBOOK: &str = include_str!("../../docs/runbook.md");

/// A step of a recovery that is under way.
pub fn phase(phase: Phase) -> Meaning {
    match phase {
        Phase::Condemned => says(
            "It was judged, and its delete was not sent yet, or was refused.",
            "`pause SLOT` keeps the TPU while nothing was sent. `status SLOT` says what it waits for.",
        ),
        Phase::Deleting => says(
            "The watchdog's own delete is under way. The TPU can't be kept any longer.",
            "Nothing: once it is gone, it is created again. `forget SLOT` calls that create off.",
        ),
        Phase::Gone => says(
            "The former TPU is gone, and a create is owed: it is sent as soon as nothing holds it.",
            "Nothing. `status SLOT` says what it waits for, and when it is tried next; `forget SLOT` calls it off.",
        ),
        Phase::Creating => says(
            "A create was sent, and its TPU is not READY yet.",
            "Nothing. After grace.startup it is read back; `forget SLOT` calls it off.",
        ),
        Phase::Ready => says(
            "The new TPU is READY, and not all of its hosts have reported yet.",
            "Nothing. Hosts that stay silent for grace.boot have it replaced once more; `logs SLOT` shows their startup script.",
        ),
        Phase::Booted => says(
            "All hosts of the new TPU have reported, and the job has not started yet.",
            "Nothing. `logs SLOT` shows what its hosts do.",
        ),
        Phase::Launched => says(
            "The job runs on the new TPU. The recovery is over with its first new step or checkpoint.",
            "Nothing. Where no step comes, `logs SLOT` shows the job's last lines.",
        ),
    }
}

/// The step that a word of `status` stands for, or its own name.
pub fn phase_of(word: &str) -> Option<Phase> {
    let word = if word == "removing" { Phase::Deleting.name() } else { word };
    Phase::ALL.into_iter().find(|phase| phase.name() == word)
}

/// The hold that a gate, or a word of `status`, stands for.
pub fn hold_of(word: &str) -> &str {
    match word {
        "specification" => "no_specification",
        "plain_node" => "queued_resource",
        "possible" => "not_possible",
        "not_found" => "never_seen",
        other => other,
    }
}

/// A word that only says how a slot stands.
pub fn standing(word: &str) -> Option<Meaning> {
    Some(match word {
        "protected" => says(
            "If its TPU were lost now, the watchdog would create it again, with its own specification.",
            "Nothing. `plan --if-lost SLOT` shows the request that would be sent.",
        ),
        "not_protected" => says(
            "If its TPU were lost now, nothing would be created: the row says why.",
            "`status SLOT` says what to do. One that a person chose (paused, forgotten, opted out) needs nothing.",
        ),
        _ => return None,
    })
}

/// The runbook's section about an alert.
pub fn alert(name: &str) -> Option<&'static str> {
    let head = format!("\n## {name}\n");
    let from = RUNBOOK.find(&head)? + head.len();
    let section = &RUNBOOK[from..];
    Some(section.find("\n## ").map_or(section, |end| &section[..end]).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alert_has_its_section_and_none_other() {
        let rules = include_str!("../../deploy/prometheus/rules.yml");
        let alerts: Vec<_> =
            rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(alerts.len() > 20, "{alerts:?}");
        for name in alerts {
            let text = alert(name).unwrap_or_else(|| panic!("{name}"));
            assert!(!text.is_empty() && !text.contains("\n## "), "{name}: {text}");
        }
        assert_eq!(alert("TpuNoSuchAlert"), None);
    }
}
