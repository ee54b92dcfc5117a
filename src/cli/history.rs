//! `history`: incidents and the commands of operators, from the journal; as JSON every event with its evidence.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::names::no_slot;
use super::screen::{labelled, paragraph, width};
use super::{ConfigFile, Failed, Outcome, Output, load, print, wire};
use crate::model::event::{Event, What};
use crate::model::phase::Phase;
use crate::model::time::elapsed;
use crate::model::time::span;
use crate::report::audit::audit;
use crate::report::incident::{Ending, Healed, Incident, healed, incidents};

/// The newest events that are looked through.
const EVENTS: usize = 20_000;
/// So many refused creates in a row are told as one.
const TRIES: usize = 3;

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Only this slot.
    slot: Option<String>,
    /// How far back: 7d, 12h, or a date (UTC).
    #[arg(long, value_name = "DURATION|DATE", default_value = "7d", value_parser = days)]
    since: Duration,
    /// Text shows incidents; JSON has incidents and all events with their evidence.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Check the invariants that an event log can show; exit code 1 on a violation.
    #[arg(long, conflicts_with_all = ["slot", "output"])]
    audit: bool,
}

/// A duration, or the date that it goes back to.
fn days(text: &str) -> Result<Duration, String> {
    if let Ok(date) = text.parse::<jiff::civil::Date>() {
        let began = date.to_zoned(jiff::tz::TimeZone::UTC).map_err(|why| why.to_string())?;
        return Ok(elapsed(began.timestamp(), Timestamp::now()));
    }
    super::once::duration(text)
}

pub async fn history(at: &ConfigFile, args: &HistoryArgs) -> Outcome {
    let config = load(at)?;
    let storage = wire::storage_for(&config, &config.state)?;
    let Some(mut store) = wire::open_store_read_only(&config.state, &storage).await? else {
        return Err(Failed::Work("there is no state yet: start `run` or `once` first".into()));
    };
    let now = Timestamp::now();
    let events: Vec<Event> = store.events(EVENTS).await.map_err(|e| Failed::Work(e.to_string()))?;
    if let Some(line) = not_all(&events, args.since, now) {
        tracing::warn!("{line}");
    }
    if args.audit {
        return audited(&events);
    }
    let known = |slot: &String| {
        let told = || events.iter().any(|event| event.slot.as_ref() == Some(slot));
        config.settings.slots.contains_key(slot) || told()
    };
    if let Some(slot) = args.slot.as_ref().filter(|slot| !known(slot)) {
        return Err(no_slot(slot, config.settings.slots.keys()));
    }
    let ours = |event: &Event| args.slot.is_none() || event.slot == args.slot;
    let events: Vec<Event> =
        events.into_iter().filter(|e| ours(e) && elapsed(e.at, now) <= args.since).collect();
    let (incidents, healed) = (incidents(&events), healed(&events));
    match args.output {
        Output::Json => print(&format!(
            "{}\n",
            json!({ "incidents": incidents, "healed": healed, "events": events })
        )),
        Output::Text if incidents.is_empty() && healed.is_empty() => {
            let said: String = events.iter().filter_map(said).collect();
            print(&format!("{said}no incidents within {}\n", within(args.since)));
        }
        Output::Text => {
            let mut text: String = incidents.iter().map(|incident| entry(incident, now)).collect();
            text.extend(healed.iter().map(left_alone));
            text.extend(events.iter().filter_map(said));
            print(&(text + &totals(&incidents, &healed)));
        }
    }
    Ok(())
}

/// `7 days`, or as a duration.
fn within(since: Duration) -> String {
    match since.as_secs() {
        day if day >= 86_400 && day.is_multiple_of(86_400) => plural_days(day / 86_400),
        _ => span(since),
    }
}

fn plural_days(days: u64) -> String {
    format!("{days} day{}", if days == 1 { "" } else { "s" })
}

fn left_alone(healed: &Healed) -> String {
    let text = format!(
        "{:.0}  {:<20} {:<17} healed by itself after {}: left alone",
        healed.since,
        healed.slot,
        healed.condition.name(),
        span(Duration::from_secs_f64(healed.seconds))
    );
    paragraph(&text, width())
}

/// A command of an operator.
fn said(event: &Event) -> Option<String> {
    let What::Command { .. } = event.what else { return None };
    let slot = event.slot.as_deref().unwrap_or("all");
    Some(paragraph(&format!("{:.0}  {slot:<20} {}", event.at, event.message), width()))
}

/// The sums, below the list.
fn totals(incidents: &[Incident], healed: &[Healed]) -> String {
    let ended = |ending: Ending| incidents.iter().filter(|i| i.ending == Some(ending)).count();
    let open = incidents.iter().filter(|incident| incident.ending.is_none()).count();
    let down: f64 = incidents.iter().filter_map(|incident| incident.down_seconds).sum();
    let steps: u64 = incidents.iter().filter_map(|incident| incident.steps_lost).sum();
    let repeated: f64 = incidents.iter().filter_map(|incident| incident.repeated_seconds).sum();
    let time = |seconds: f64| span(Duration::from_secs_f64(seconds.max(0.0)));
    let mut parts =
        vec![format!("{} recovered, down {} in all", ended(Ending::Recovered), time(down))];
    if steps > 0 {
        parts.push(format!("{steps} steps repeated"));
    }
    if repeated > 0.0 {
        parts.push(format!("about {} of work repeated", time(repeated)));
    }
    for (count, what) in [
        (ended(Ending::Withdrawn), "withdrawn"),
        (open, "under way"),
        (healed.len(), "healed by itself"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    format!("\n{}", paragraph(&format!("{}.", parts.join("; ")), width()))
}

/// The audit needs every event, in order: what it says does not depend on `--since`.
fn audited(events: &[Event]) -> Outcome {
    let violations = audit(events);
    print(&violations.iter().map(|violation| format!("{violation}\n")).collect::<String>());
    match violations.len() {
        0 => print(&format!("no violation in {} events\n", events.len())),
        count => {
            let text = format!(
                "{count} violations in {} events: a defect, please report it with these lines",
                events.len()
            );
            return Err(Failed::Work(text));
        }
    }
    Ok(())
}

/// The note when there may be more within `since` than was looked through.
fn not_all(events: &[Event], since: Duration, now: Timestamp) -> Option<String> {
    let oldest = events
        .first()
        .filter(|oldest| events.len() >= EVENTS && elapsed(oldest.at, now) <= since)?;
    Some(format!(
        "only the newest {EVENTS} events were searched; nothing before {:.0} is shown",
        oldest.at
    ))
}

/// Each phase and how long it took; creates that were refused again and again as one.
fn phases(all: &[(Phase, f64)]) -> Vec<String> {
    let seconds = |s: f64| span(Duration::from_secs_f64(s.max(0.0)));
    let mut told = Vec::new();
    let mut rest = all;
    while let Some(((phase, took), after)) = rest.split_first() {
        let tries = rest
            .chunks_exact(2)
            .take_while(|pair| pair[0].0 == Phase::Creating && pair[1].0 == Phase::Gone);
        let count = tries.count();
        if count >= TRIES {
            let took: f64 = rest[..2 * count].iter().map(|(_, took)| took).sum();
            told.push(format!("{count} creates refused over {}", seconds(took)));
            rest = &rest[2 * count..];
        } else {
            told.push(format!("{phase} {}", seconds(*took)));
            rest = after;
        }
    }
    told
}

fn entry(incident: &Incident, now: Timestamp) -> String {
    let seconds = |s: f64| span(Duration::from_secs_f64(s.max(0.0)));
    let ended = match incident.ending {
        Some(Ending::Recovered) => {
            format!("recovered, down {}", seconds(incident.down_seconds.unwrap_or_default()))
        }
        Some(Ending::Withdrawn) => {
            let why = incident.withdrawn.as_deref().unwrap_or_default();
            let cause = format!("{}: ", incident.cause.name());
            format!("withdrawn: {}", why.strip_prefix(&cause).unwrap_or(why))
        }
        None => format!("under way for {}", span(elapsed(incident.condemned_at, now))),
    };
    let head = format!(
        "{:.0}  {:<20} {:<17} {ended}",
        incident.condemned_at,
        incident.slot,
        incident.cause.name()
    );
    let mut text = paragraph(&head, width());
    let mut line = |label: &str, value: String| {
        text += &labelled(&format!("  {label}"), &value, width());
    };
    line("evidence", incident.evidence.clone());
    let phases = phases(&incident.phases);
    if !phases.is_empty() {
        line(
            "phases",
            format!("noticed {}, {}", seconds(incident.detection_seconds), phases.join(", ")),
        );
    }
    if !incident.refusals.is_empty() {
        let all: Vec<String> =
            incident.refusals.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        line("refused", all.join(", "));
    }
    match (incident.steps_lost, incident.repeated_seconds) {
        (Some(steps), _) => line("lost", format!("{steps} steps")),
        (None, Some(s)) => line("lost", format!("about {} of work", seconds(s))),
        (None, None) => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_looked_through_is_said() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let at = "2026-06-01T11:00:00Z".parse().unwrap();
        let event = Event { at, slot: None, message: String::new(), what: What::Note };
        let all = vec![event; EVENTS];
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        assert!(not_all(&all, hours(2), now).unwrap().contains("before 2026-06-01T11:00:00Z"));
        assert_eq!(not_all(&all, hours(0), now), None, "nothing older was asked for");
        assert_eq!(not_all(&all[1..], hours(2), now), None, "these are all");
    }

    #[test]
    fn creates_that_are_refused_again_and_again_are_told_as_one() {
        let mut all = vec![(Phase::Deleting, 30.0), (Phase::Gone, 1.0)];
        (0..70).for_each(|_| all.extend([(Phase::Creating, 3.0), (Phase::Gone, 9.0)]));
        all.extend([(Phase::Creating, 240.0), (Phase::Ready, 40.0)]);
        let told =
            ["deleting 30s", "gone 1s", "70 creates refused over 14m", "creating 4m", "ready 40s"];
        assert_eq!(phases(&all), told);
        let few = [(Phase::Gone, 1.0), (Phase::Creating, 3.0), (Phase::Gone, 9.0)];
        assert_eq!(phases(&few), ["gone 1s", "creating 3s", "gone 9s"]);
    }
}
