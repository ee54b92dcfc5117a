//! The output of `plan`: the steps that the watchdog would take, to be read before it gets the right to take them.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::names;
use super::screen::{self, HEAD, Row, labelled, paint, style};
use super::table::{STRAYS, banners, lines, protection, shown, strays, warnings};
use crate::core::if_lost::IfLost;
use crate::model::condition::Condition;
use crate::model::time::{elapsed, span};
use crate::model::view::{ActionName, SlotView, StatusDocument};
use crate::report::sentence::{Tone, heading, none_known};

/// The whole plan.
pub fn plan(
    project: &str,
    document: &StatusDocument,
    lost: &[IfLost],
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let count = document.tpus.len();
    let head = format!("Plan for {} of {project}. This command changes nothing.", shown(document));
    let mut text = screen::paragraph(&head, width);
    for banner in banners(document, now) {
        text += &screen::paragraph(&banner, width);
    }
    let [mut recreate, mut create, mut relaunch, mut held, mut waiting] = [0; 5];
    for slot in &document.tpus {
        let (mark, tone, verb, counted) = match slot.action {
            ActionName::Recreate => {
                ("-/+", Tone::Acting, "would be deleted and created again", &mut recreate)
            }
            ActionName::Create => ("+", Tone::Acting, "would be created", &mut create),
            ActionName::Relaunch => ("~", Tone::Acting, "would be relaunched", &mut relaunch),
            ActionName::Hold => ("!", Tone::Waiting, "is held", &mut held),
            ActionName::Escalate => ("!", Tone::Bad, "is held until an operator acts", &mut held),
            ActionName::Wait => ("?", Tone::Waiting, "is waited for", &mut waiting),
            ActionName::None => continue,
        };
        *counted += 1;
        text += &entry(mark, tone, verb, slot, now, width);
    }
    text += &protected(document, lost, now, width);
    text += &lines("Warnings:", &warnings(document), width);
    text += &lines(STRAYS, &strays(document, now), width);
    let alone = count - recreate - create - relaunch - held - waiting;
    let relaunch = if relaunch > 0 { format!("{relaunch} to relaunch, ") } else { String::new() };
    let all = format!(
        "\nPlan: {recreate} to recreate, {create} to create, {relaunch}{held} held, {waiting} waited for, {alone} left alone.\n"
    );
    text += &paint(HEAD, all.trim_end());
    let _ = writeln!(text, "\n{}.", protection(document));
    text
}

/// Each slot, whether it is protected, and what its job would start from.
fn protected(
    document: &StatusDocument,
    lost: &[IfLost],
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let notes = |name: &str| {
        let lost = lost.iter().find(|lost| lost.name == name);
        let notes = lost.into_iter().flat_map(|lost| &lost.notes);
        notes.map(|note| format!("; note: {note}")).collect::<String>()
    };
    let rows: Vec<Row> = document
        .tpus
        .iter()
        .map(|slot| {
            let (tone, text) = match &slot.unprotected_reason {
                None if slot.empty => {
                    let text = "protected, but would come back EMPTY: it has no startup script and no [tpu.job], so nothing would run";
                    (Tone::Waiting, text.to_owned())
                }
                None => (Tone::Good, format!("protected; {}", starts_from(slot, now))),
                Some(why) if slot.unprotected_by_choice => {
                    (Tone::Off, format!("not protected, by choice: {why}"))
                }
                Some(why) => (Tone::Unprotected, format!("NOT PROTECTED: {why}")),
            };
            let drift = match slot.drift.as_slice() {
                [] => String::new(),
                keys => format!("; the next recreate changes {}", keys.join(", ")),
            };
            let kind = slot.accelerator.clone().filter(|name| !name.is_empty());
            Row {
                tone: Some(tone),
                cells: vec![
                    slot.name.clone(),
                    kind.unwrap_or_else(|| "-".to_owned()),
                    slot.zone.clone(),
                ],
                text: text + &drift + &notes(&slot.name),
            }
        })
        .collect();
    format!(
        "\n{}",
        screen::table(
            &[&heading(document).to_uppercase(), "TYPE", "ZONE", "IF IT WERE LOST NOW"],
            &rows,
            width
        )
    )
}

/// Where a job would start if its TPU were lost now.
fn starts_from(slot: &SlotView, now: Timestamp) -> String {
    let script = slot.drift.iter().any(|field| field.starts_with("metadata.startup-script"));
    let Some(job) = &slot.job else {
        return match script {
            true => "the startup script of the config would run; no job is configured".to_owned(),
            false => "its startup script runs again; no job is configured".to_owned(),
        };
    };
    match (job.checkpoint_step, &job.location) {
        (Some(step), _) => {
            let age = job
                .checkpoint_at
                .map_or(String::new(), |at| format!(" ({} old)", span(elapsed(at, now))));
            format!("its job would resume from step {step}{age}")
        }
        (None, Some(location)) => {
            let start = if job.unlisted {
                "where its job would start is not known"
            } else {
                "its job would start from the beginning"
            };
            format!("{}: {start}", none_known(location, job.unlisted, &job.around))
        }
        (None, None) => {
            "no checkpoint is configured: its job would start from the beginning".into()
        }
    }
}

fn entry(
    mark: &str,
    tone: Tone,
    verb: &str,
    slot: &SlotView,
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let kind = slot.accelerator.as_ref().filter(|name| !name.is_empty());
    let place = kind.map_or(slot.zone.clone(), |kind| format!("{kind} in {}", slot.zone));
    let head = paint(style(tone), &format!("{mark:<3} {}", slot.name));
    let mut text = format!("\n  {head} ({place}) {verb}\n");
    let mut line = |label: &str, value: &str| {
        text += &labelled(&format!("      {label}"), value, width);
    };
    line("why", &slot.reason);
    if let Some(hold) = &slot.hold {
        line("hold", hold);
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
    let acts = matches!(slot.action, ActionName::Recreate | ActionName::Create);
    if let Some(job) = slot.job.as_ref().filter(|_| acts) {
        let from = match (&job.checkpoint, job.checkpoint_step) {
            (Some(uri), Some(step)) => format!("from step {step}, {uri}"),
            _ => "from the newest complete checkpoint; none is known yet".to_owned(),
        };
        line("job", &from);
    }
    if acts && !slot.drift.is_empty() {
        line("config", &format!("changes {}", slot.drift.join(", ")));
    }
    if let Some(phase) = &slot.phase {
        line("now", &format!("a recovery is under way: {phase}"));
    }
    if slot.condition != Condition::Healthy && !slot.reason.contains(&slot.evidence) {
        line("read", &slot.evidence);
    }
    text
}

/// The recreate of each slot as it would be today.
pub fn if_lost(all: &[IfLost], width: Option<usize>) -> String {
    all.iter().map(|lost| recreate(lost, width)).collect::<Vec<_>>().join("\n")
}

fn recreate(lost: &IfLost, width: Option<usize>) -> String {
    let mark = if lost.deletes.is_some() { "-/+" } else { "+" };
    let verb = if lost.is_job { "submitted" } else { "created" };
    let (tone, would) = match (&lost.refused, &lost.held) {
        (None, None) => (Tone::Acting, "would"),
        _ => (Tone::Unprotected, "would NOT"),
    };
    let head = paint(style(tone), &format!("{mark} {}", lost.name));
    let mut text = format!("{head} {would} be {verb} again in {}\n", lost.zone);
    if let Some(why) = &lost.refused {
        text += &labelled("REFUSED", why, width);
    }
    if let Some(why) = &lost.held {
        text += &labelled("HELD", why, width);
    }
    let nothing = match lost.is_job {
        true => "nothing: a job that has ended stays listed",
        false => "nothing: there is no TPU now",
    };
    let deletes = lost.deletes.as_ref().map_or(nothing.to_owned(), |of| {
        format!("exactly id {}, created {:.0}, unless it is gone by then", of.id, of.created)
    });
    text += &labelled("delete", &deletes, width);
    let from = match (&lost.checkpoint, &lost.location) {
        (None, _) if lost.is_job => {
            let known = lost
                .location
                .as_ref()
                .map_or("none is known here".to_owned(), |uri| format!("{uri} shows none yet"));
            format!("starts where its own program finds a checkpoint: {known}")
        }
        (Some((step, uri, _)), _) => format!("resumes from step {step}, {uri}"),
        (None, Some(location)) => {
            let how = if lost.unlisted {
                "where it starts is not known"
            } else {
                "starts from the beginning"
            };
            format!("{how}: {}", none_known(location, lost.unlisted, &[]))
        }
        (None, None) => "starts from the beginning: no checkpoint is configured".to_owned(),
    };
    text += &labelled("job", &from, width);
    if let Some(runs) = &lost.runs {
        let within = runs.image.as_ref().map_or(String::new(), |image| format!(", in {image}"));
        let how = format!("{}, as {} in {}{within}", runs.command, runs.user, runs.dir);
        text += &labelled("runs", &how, width);
    }
    for note in &lost.notes {
        text += &labelled("note", note, width);
    }
    text += "  create\n";
    let longest = lost.fields.iter().map(|field| field.key.len()).max().unwrap_or(0);
    for field in &lost.fields {
        let (mark, tone, value) = match (&field.learned, &field.sent) {
            (Some(old), Some(new)) if old == new => (" ", None, new.clone()),
            (Some(old), Some(new)) => ("~", Some(Tone::Waiting), format!("{old} -> {new}")),
            (None, Some(new)) => ("+", Some(Tone::Good), new.clone()),
            (Some(old), None) => ("-", Some(Tone::Bad), old.clone()),
            (None, None) => continue,
        };
        let mark = tone.map_or(mark.to_owned(), |tone| paint(style(tone), mark));
        let _ = writeln!(text, "    {mark} {:<longest$}  {value}", field.key);
    }
    text
}

/// A TPU that is not there yet, and that the config describes.
pub fn to_be_made(what: &str, zone: &str) -> String {
    format!(
        "{what} is not in {zone} yet: the watchdog asks for it as [tpu.create] says, after grace.missing"
    )
}

/// A TPU that is not there and never was: what is there, and which one may be meant.
pub fn never_seen(name: &str, zone: &str, there: &[String]) -> String {
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    let names = match there.as_slice() {
        [] => format!("there is none in {zone}"),
        names => format!("there are: {}", names::listed(names)),
    };
    let meant = names::meant(name, &there);
    format!(
        "no TPU {name:?} is in {zone}, and none was ever seen; {names}{meant}. To have it created, describe it in [tpu.create]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_written_wrongly_is_told_with_the_one_that_may_be_meant() {
        let there = ["bad-boot".to_owned(), "flap".to_owned()];
        let text = never_seen("flapp", "us-east5-a", &there);
        assert!(text.contains("there are: bad-boot, flap (did you mean flap?). To have"), "{text}");
        assert!(never_seen("x", "z", &there).contains("flap. To have it created"));
        assert!(never_seen("x", "z", &[]).contains("there is none in z"));
    }
}
