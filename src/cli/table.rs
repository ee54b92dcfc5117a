//! What `status` and `plan` print.

use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use jiff::Timestamp;

use crate::model::condition::Condition;
use crate::model::time::elapsed;
use crate::model::time::span;
use crate::model::view::{ActionName, SlotView, StatusDocument, StrayView};

/// A table of all slots; `acting` says who watches them.
pub fn status(document: &StatusDocument, acting: &str, now: Timestamp) -> String {
    let observed = document
        .observed_at
        .map_or("not read yet".to_owned(), |at| format!("read {} ago", span(elapsed(at, now))));
    let mut text = format!(
        "{acting}\n{}, breaker {}\n\n{}\n",
        observed,
        document.breaker,
        slots(document, now)
    );
    let reasons: Vec<(&str, String)> = document
        .tpus
        .iter()
        .filter(|slot| !matches!(slot.action, ActionName::None) || slot.hold.is_some())
        .map(|slot| (slot.name.as_str(), format!("{}{}", slot.reason, until(slot, now))))
        .collect();
    lines(&mut text, "Why:", &reasons);
    lines(&mut text, IF_LOST, &resumed(document, now));
    lines(&mut text, "Warnings:", &warnings(document));
    lines(&mut text, STRAYS, &strays(document, now));
    text
}

/// Until when a decision stands.
fn until(slot: &SlotView, now: Timestamp) -> String {
    slot.until
        .filter(|at| *at > now)
        .map_or(String::new(), |at| format!(" (in {})", span(elapsed(now, at))))
}

/// The gaps that a recovery would find, told before it happens.
fn warnings(document: &StatusDocument) -> Vec<(&str, String)> {
    let of = |slot| -> (&str, &Vec<String>) {
        let slot: &SlotView = slot;
        (slot.name.as_str(), &slot.warnings)
    };
    document
        .tpus
        .iter()
        .map(of)
        .flat_map(|(name, all)| all.iter().map(move |text| (name, text.clone())))
        .collect()
}

const STRAYS: &str =
    "Belongs to no slot and is left alone; put it back into the config, or delete it by hand:";

/// Nodes and creates of ours that no slot owns (S21).
fn strays(document: &StatusDocument, now: Timestamp) -> Vec<(&str, String)> {
    let line = |stray: &StrayView| {
        let (zone, told) = (&stray.zone, span(elapsed(stray.since, now)));
        let state = stray.state.as_deref().unwrap_or("not seen yet");
        let removal = stray.removal.as_ref().map_or(String::new(), |text| format!("; {text}"));
        format!("in {zone}: {state}, told for {told}: {}{removal}", stray.why)
    };
    document.strays.iter().map(|stray| (stray.name.as_str(), line(stray))).collect()
}

fn lines(text: &mut String, head: &str, all: &[(&str, String)]) {
    if all.is_empty() {
        return;
    }
    // Writing to a String never fails.
    let _ = write!(text, "\n{head}\n");
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, line) in all {
        let _ = writeln!(text, "  {name:<width$}  {line}");
    }
}

const IF_LOST: &str = "If it were lost now, its job would start:";

fn resumed(document: &StatusDocument, now: Timestamp) -> Vec<(&str, String)> {
    document
        .tpus
        .iter()
        .filter_map(|slot| Some((slot.name.as_str(), resumes(slot, now)?)))
        .collect()
}

/// The checkpoint that a job would start from if its TPU were lost now.
fn resumes(slot: &SlotView, now: Timestamp) -> Option<String> {
    let job = slot.job.as_ref()?;
    Some(match (&job.checkpoint, job.checkpoint_step) {
        _ if job.held => "not at all: its create would be held, see the warnings".to_owned(),
        (Some(uri), Some(step)) => {
            let age = job
                .checkpoint_at
                .map_or(String::new(), |at| format!(", seen {} ago", span(elapsed(at, now))));
            format!("from step {step}{age}: {uri}")
        }
        _ if job.location.is_none() => "no checkpoint is configured".to_owned(),
        _ => format!(
            "no complete checkpoint known under {}: from the beginning",
            job.location.as_deref().unwrap_or_default()
        ),
    })
}

/// The rows alone.
fn slots(document: &StatusDocument, now: Timestamp) -> Table {
    let header = [
        "SLOT",
        "ZONE",
        "STATE",
        "HEALTH",
        "CONDITION",
        "SINCE",
        "PHASE",
        "ACTION",
        "TRIES",
        "STEP",
        "CHECKPOINT",
    ];
    let rows = document.tpus.iter().map(|slot| {
        let [state, health, phase, action, step, checkpoint] = cells(slot);
        let since = span(elapsed(slot.since, now));
        let tries = format!("{}/{}", slot.attempts.used, slot.attempts.max);
        let condition = slot.condition.name().to_owned();
        [
            slot.name.clone(),
            slot.zone.clone(),
            state,
            health,
            condition,
            since,
            phase,
            action,
            tries,
            step,
            checkpoint,
        ]
    });
    plain(header, rows)
}

/// The rows that fit a terminal of 100 columns; times are `speed` times those of the clock.
pub fn live(document: &StatusDocument, now: Timestamp, speed: f64) -> Table {
    let header = ["SLOT", "HEALTH", "CONDITION", "FOR", "PHASE", "ACTION", "STEP", "CHECKPOINT"];
    let rows = document.tpus.iter().map(|slot| {
        let [state, health, phase, action, step, checkpoint] = cells(slot);
        let since = span(elapsed(slot.since, now).mul_f64(speed));
        let health = if state == "READY" { health } else { state };
        [
            slot.name.clone(),
            health,
            slot.condition.name().to_owned(),
            since,
            phase,
            action,
            step,
            checkpoint,
        ]
    });
    plain(header, rows)
}

/// State, health, phase, action, step and checkpoint as they are shown.
fn cells(slot: &SlotView) -> [String; 6] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let job = slot.job.as_ref();
    let action = slot
        .hold
        .as_ref()
        .map_or(slot.action.name().to_owned(), |hold| format!("{} ({hold})", slot.action.name()));
    [
        or_dash(slot.state.clone()),
        or_dash(slot.health.clone()),
        or_dash(slot.phase.clone()),
        action,
        or_dash(job.and_then(|j| j.step).map(|n| n.to_string())),
        or_dash(job.and_then(|j| j.checkpoint_step).map(|n| n.to_string())),
    ]
}

fn plain<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table
}

/// What would be done, in the manner of a plan that is read before it is agreed to.
pub fn plan(project: &str, document: &StatusDocument, now: Timestamp) -> String {
    let count = document.tpus.len();
    let mut text = format!(
        "Plan for {count} TPU{} of {project}. Nothing is changed by this command.\n",
        if count == 1 { "" } else { "s" }
    );
    let (mut recreate, mut create, mut held, mut waiting, mut quiet) = (0, 0, 0, 0, Vec::new());
    for slot in &document.tpus {
        let (mark, verb) = match slot.action {
            ActionName::Recreate => ("-/+", "would be recreated"),
            ActionName::Create => ("+", "would be created"),
            ActionName::Relaunch => ("~", "would be relaunched"),
            ActionName::Hold => ("!", "is held"),
            ActionName::Escalate => ("!", "is held and waits for a person"),
            ActionName::Wait => ("?", "is waited for"),
            ActionName::None if slot.drift.is_empty() => {
                quiet.push(slot);
                continue;
            }
            ActionName::None => ("=", "is left alone"),
        };
        match slot.action {
            ActionName::Recreate => recreate += 1,
            ActionName::Create => create += 1,
            ActionName::Hold | ActionName::Escalate => held += 1,
            ActionName::Wait => waiting += 1,
            _ => {}
        }
        entry(&mut text, mark, verb, slot, now);
    }
    if !quiet.is_empty() {
        let names: Vec<&str> = quiet.iter().map(|s| s.name.as_str()).collect();
        // Writing to a String never fails.
        let _ = write!(text, "\n  =   {} left alone: {}\n", names.len(), names.join(", "));
    }
    lines(&mut text, IF_LOST, &resumed(document, now));
    lines(&mut text, "Warnings:", &warnings(document));
    lines(&mut text, STRAYS, &strays(document, now));
    let unchanged = document.tpus.len() - recreate - create - held - waiting;
    let _ = write!(
        text,
        "\nPlan: {recreate} to recreate, {create} to create, {held} held, {waiting} waited for, {unchanged} left alone.\n"
    );
    text
}

fn entry(text: &mut String, mark: &str, verb: &str, slot: &SlotView, now: Timestamp) {
    let place =
        slot.accelerator.as_ref().map_or(slot.zone.clone(), |a| format!("{a} in {}", slot.zone));
    let _ = write!(text, "\n  {mark:<3} {} ({place}) {verb}\n", slot.name);
    let mut line = |label: &str, value: &str| {
        let _ = writeln!(text, "        {label:<11}{value}");
    };
    line("why", &slot.reason);
    if let Some(hold) = &slot.hold {
        line("held by", hold);
    }
    if let Some(at) = slot.until.filter(|at| *at > now) {
        line("until", &format!("{at:.0} (in {})", span(elapsed(now, at))));
    }
    if let (ActionName::Recreate, Some(incarnation)) = (slot.action, &slot.incarnation) {
        line(
            "delete",
            &format!("exactly id {}, created {:.0}", incarnation.id, incarnation.created),
        );
    }
    if let Some(job) = slot
        .job
        .as_ref()
        .filter(|_| matches!(slot.action, ActionName::Recreate | ActionName::Create))
    {
        let from = match (&job.checkpoint, job.checkpoint_step) {
            (Some(uri), Some(step)) => format!("from step {step}, {uri}"),
            _ => "from the newest complete checkpoint; none is known yet".to_owned(),
        };
        line("job", &from);
    }
    if !slot.drift.is_empty() {
        line("config", &format!("the next recreate changes {}", slot.drift.join(", ")));
    }
    if let Some(phase) = &slot.phase {
        line("recovery", &format!("under way: {phase}"));
    }
    if slot.condition != Condition::Healthy && !slot.reason.contains(&slot.evidence) {
        line("evidence", &slot.evidence);
    }
}
