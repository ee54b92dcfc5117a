//! The table of `status`: a sentence a slot, the most urgent first.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::screen::{self, Row, paint, paragraph};
use crate::model::settings::Settings;
use crate::model::time::{elapsed, span};
use crate::model::view::{SlotView, StatusDocument, StrayView};
use crate::report::banner;
use crate::report::sentence::{Sentence, Tone, by_urgency, heading};

/// How a fleet is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Fits 80 columns.
    Narrow,
    /// More columns, each slot on one line.
    Wide,
}

/// All slots; `acting` says who watches them.
pub fn status(
    document: &StatusDocument,
    acting: &str,
    now: Timestamp,
    detail: Detail,
    width: Option<usize>,
) -> String {
    let slots = by_urgency(document, now);
    let mut text = paragraph(acting, width);
    for banner in banners(document, now) {
        text += &paint(screen::style(Tone::Waiting), paragraph(&banner, width).trim_end());
        text.push('\n');
    }
    text += &paragraph(&summary(document, &slots), width);
    text.push('\n');
    let of = heading(document).to_uppercase();
    text += &match detail {
        Detail::Narrow => narrow(&of, &slots, now, width),
        Detail::Wide => wide(&of, &slots, now),
    };
    text += &lines("Warnings:", &warnings(document), width);
    text += &lines(STRAYS, &strays(document, now), width);
    text
}

/// States of the whole fleet: a pause, the breaker, a dry run.
pub fn banners(document: &StatusDocument, now: Timestamp) -> Vec<String> {
    banner::banners(document, now).into_iter().map(|of| format!("! {}", of.text)).collect()
}

/// How many are in which state, and how many are protected.
fn summary(document: &StatusDocument, slots: &[(&SlotView, Sentence)]) -> String {
    let mut words: Vec<(&str, usize)> = Vec::new();
    for (_, sentence) in slots {
        match words.iter_mut().find(|(word, _)| *word == sentence.word) {
            Some((_, count)) => *count += 1,
            None => words.push((sentence.word, 1)),
        }
    }
    let words: Vec<String> = words.iter().map(|(word, count)| format!("{count} {word}")).collect();
    let states = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    format!("{}{states}; {}", shown(document), protection(document))
}

/// `3 of 4 protected`.
pub fn protection(document: &StatusDocument) -> String {
    let protected = document.tpus.iter().filter(|slot| slot.protected).count();
    format!("{protected} of {} protected", document.tpus.len())
}

/// A count with its noun.
pub fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A fleet by its kinds: `3 TPUs and 1 training job`.
pub fn fleet(settings: &Settings) -> String {
    let jobs = settings.slots.values().filter(|slot| slot.filling.traits().is_job).count();
    counted(settings.slots.len() - jobs, jobs)
}

/// The same of what is shown.
pub fn shown(document: &StatusDocument) -> String {
    let is_job = |slot: &&SlotView| ["vertex_job", "ai_platform_job"].contains(&slot.kind.as_str());
    let jobs = document.tpus.iter().filter(is_job).count();
    counted(document.tpus.len() - jobs, jobs)
}

fn counted(tpus: usize, jobs: usize) -> String {
    match (tpus, jobs) {
        (tpus, 0) => plural(tpus, "TPU"),
        (0, jobs) => plural(jobs, "training job"),
        (tpus, jobs) => format!("{} and {}", plural(tpus, "TPU"), plural(jobs, "training job")),
    }
}

/// The noun for all slots of a fleet.
pub fn kinds(settings: &Settings) -> &'static str {
    let jobs = settings.slots.values().filter(|slot| slot.filling.traits().is_job).count();
    match jobs {
        0 => "TPUs",
        jobs if jobs == settings.slots.len() => "training jobs",
        _ => "TPUs and training jobs",
    }
}

fn narrow(
    heading: &str,
    slots: &[(&SlotView, Sentence)],
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let rows: Vec<Row> = slots
        .iter()
        .map(|(slot, sentence)| Row {
            tone: Some(sentence.tone),
            cells: vec![
                slot.name.clone(),
                sentence.word.to_owned(),
                span(elapsed(sentence.since, now)),
            ],
            text: sentence.text.clone(),
        })
        .collect();
    screen::table(&[heading, "STATE", "FOR", "WHY, AND WHAT COMES NEXT"], &rows, width)
}

fn wide(heading: &str, slots: &[(&SlotView, Sentence)], now: Timestamp) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows: Vec<Row> = slots
        .iter()
        .map(|(slot, sentence)| {
            let job = slot.job.as_ref();
            let seen = format!(
                "{}/{}",
                slot.state.as_deref().unwrap_or("-"),
                slot.health.as_deref().unwrap_or("-")
            );
            Row {
                tone: Some(sentence.tone),
                cells: vec![
                    slot.name.clone(),
                    sentence.word.to_owned(),
                    span(elapsed(sentence.since, now)),
                    or_dash(slot.accelerator.clone().filter(|name| !name.is_empty())),
                    slot.zone.clone(),
                    seen,
                    slot.condition.name().to_owned(),
                    or_dash(slot.phase.clone()),
                    slot.recoveries_24h.to_string(),
                    format!("{}/{}", slot.attempts.used, slot.attempts.max),
                    or_dash(job.and_then(|job| job.step).map(|step| step.to_string())),
                    or_dash(job.and_then(|job| job.checkpoint_step).map(|step| step.to_string())),
                ],
                text: sentence.text.clone(),
            }
        })
        .collect();
    let header = [
        heading,
        "STATE",
        "FOR",
        "TYPE",
        "ZONE",
        "READ AS",
        "CONDITION",
        "PHASE",
        "RECOVERED(24H)",
        "WITHOUT PROGRESS",
        "STEP",
        "SAVED",
        "WHY, AND WHAT COMES NEXT",
    ];
    screen::table(&header, &rows, None)
}

/// The gaps that a recovery would find, told before it happens.
pub fn warnings(document: &StatusDocument) -> Vec<(&str, String)> {
    // The reason that makes a slot unprotected is told in its own row.
    let told = |slot: &SlotView, text: &str| {
        slot.unprotected_reason.as_ref().is_some_and(|why| why.contains(text))
    };
    document
        .tpus
        .iter()
        .flat_map(|slot| slot.warnings.iter().map(move |text| (slot, text)))
        .filter(|(slot, text)| !told(slot, text))
        .map(|(slot, text)| (slot.name.as_str(), text.clone()))
        .collect()
}

/// The heading of what no slot owns.
pub const STRAYS: &str = "Belongs to no slot; what runs is left alone: put it back into the config, or delete it by hand:";

/// Nodes and creates of ours that no slot owns (S21).
pub fn strays(document: &StatusDocument, now: Timestamp) -> Vec<(&str, String)> {
    let line = |stray: &StrayView| {
        let (zone, told) = (&stray.zone, span(elapsed(stray.since, now)));
        let state = stray.state.as_deref().unwrap_or("not seen yet");
        let removal = stray.removal.as_ref().map_or(String::new(), |text| format!("; {text}"));
        let request = stray
            .queued_resource
            .as_ref()
            .map_or(String::new(), |id| format!("queued resource {id}, "));
        format!("in {zone}: {request}{state}, told for {told}: {}{removal}", stray.why)
    };
    document.strays.iter().map(|stray| (stray.name.as_str(), line(stray))).collect()
}

/// A heading, and a line a name.
pub fn lines(head: &str, all: &[(&str, String)], width: Option<usize>) -> String {
    let mut text = String::new();
    if all.is_empty() {
        return text;
    }
    // Writing to a String never fails.
    let _ = write!(text, "\n{}", paragraph(head, width));
    let longest = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, line) in all {
        text += &paragraph(&format!("  {name:<longest$}  {line}"), width);
    }
    text
}

/// The rows alone, by their names, for a display that is drawn again and again.
pub fn slots(document: &StatusDocument, now: Timestamp, width: Option<usize>) -> String {
    let mut slots = by_urgency(document, now);
    slots.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    narrow(&heading(document).to_uppercase(), &slots, now, width)
}
