//! `status`: each slot as the journal has it, or one slot whole.

use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use super::acknowledge::brief;
use super::names::no_slot;
use super::screen::{self, AlternateScreen, height, width};
use super::table::{self, Detail, plural};
use super::{ConfigFile, Failed, Outcome, describe, load, print, wire};
use crate::config::Config;
use crate::core::view::{GateAnswer, at_rest, gates_of, needs_a_person, specification};
use crate::model::command::Command;
use crate::model::event::Event;
use crate::model::time::{elapsed, span};
use crate::model::view::{Acting, ActionName, BreakerState, StatusDocument};
use crate::report::sentence;
use crate::store::Stored;

/// Scheduled runs are at most this far apart; without one for longer the TPUs are not watched.
const SCHEDULED: Duration = Duration::from_secs(30 * 60);
/// The newest events that one slot's timeline is taken from.
const EVENTS: usize = 5_000;
/// Clocks of machines that are kept in time differ by less.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);
/// How often `--watch` looks again.
const AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tpu-watchdog status                 every TPU, the most urgent first\n  \
                        tpu-watchdog status llama-v4-32     one TPU: evidence, gates, events, what to do\n  \
                        tpu-watchdog status -o json | jq '.tpus[] | select(.protected | not) | .name'\n\n\
                        Exit code 3: something waits for an operator, or no watchdog acts (after a run that ended\n\
                        well: only 30 minutes later)."
)]
pub struct StatusArgs {
    /// Describes one slot in full.
    slot: Option<String>,
    /// `text` fits the terminal, `wide` adds columns, `json` prints one document.
    #[arg(short, long, value_enum, default_value = "text")]
    output: StatusOutput,
    /// Refreshes every two seconds, until Ctrl-C.
    #[arg(long, conflicts_with = "slot")]
    watch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StatusOutput {
    Text,
    Wide,
    Json,
}

pub async fn status(at: &ConfigFile, args: &StatusArgs) -> Outcome {
    let config = load(at)?;
    if args.watch {
        return watch(&config, args).await;
    }
    let Some(seen) = read(&config, args.slot.is_some()).await? else {
        return Err(Failed::Work(
            "there is no state yet: start `run` or `once` first, or use `plan`".into(),
        ));
    };
    let Some(slot) = &args.slot else {
        show(&seen, args.output)?;
        return outcome(&seen.document, &seen.acts);
    };
    let Some(view) = seen.document.tpus.iter().find(|view| view.name == *slot) else {
        return Err(no_slot(slot, seen.document.tpus.iter().map(|view| &view.name)));
    };
    match args.output {
        StatusOutput::Json => print(&json(view)?),
        _ => screen::print(&describe::describe(
            view,
            &seen.gates,
            &seen.events,
            &seen.acts.line,
            Timestamp::now(),
            width(),
        )),
    }
    // Of this slot alone; the storm breaker holds all.
    let breaks = seen.document.breaker == BreakerState::Open;
    let needed = breaks || view.action == ActionName::Escalate || seen.acts.inactive;
    if needed { Err(Failed::NeedsAPerson) } else { Ok(()) }
}

/// The journal at one moment.
struct Seen {
    document: StatusDocument,
    acts: Acts,
    events: Vec<Event>,
    gates: Vec<(String, Vec<GateAnswer>)>,
}

/// Who watches.
struct Acts {
    line: String,
    /// No process does, although one should.
    inactive: bool,
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, Failed> {
    let text = serde_json::to_string(value).map_err(|e| Failed::Work(e.to_string()))?;
    Ok(text + "\n")
}

fn show(seen: &Seen, output: StatusOutput) -> Result<(), Failed> {
    match text(seen, output) {
        Some(text) => screen::print(&text),
        None => print(&json(&seen.document)?),
    }
    Ok(())
}

/// The table; none where JSON is asked for.
fn text(seen: &Seen, output: StatusOutput) -> Option<String> {
    let detail = match output {
        StatusOutput::Json => return None,
        StatusOutput::Wide => Detail::Wide,
        StatusOutput::Text => Detail::Narrow,
    };
    let now = Timestamp::now();
    Some(table::status(&seen.document, &seen.acts.line, now, detail, width()))
}

fn outcome(document: &StatusDocument, acts: &Acts) -> Outcome {
    if acts.inactive || needs_a_person(document) { Err(Failed::NeedsAPerson) } else { Ok(()) }
}

/// Shows it again and again, on a screen of its own where there is a terminal.
async fn watch(config: &Config, args: &StatusArgs) -> Outcome {
    let failed =
        |error: std::io::Error| Failed::Work(format!("signals can't be listened to: {error}"));
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    let _screen = height().map(|_| AlternateScreen::enter());
    loop {
        tokio::select! {
            seen = read(config, false) => frame(seen?, args)?,
            _ = int.recv() => return Ok(()),
            _ = term.recv() => return Ok(()),
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            _ = int.recv() => return Ok(()),
            _ = term.recv() => return Ok(()),
        }
    }
}

/// One look of `--watch`. Lines that do not fit are cut below, where the least urgent slots are.
fn frame(seen: Option<Seen>, args: &StatusArgs) -> Result<(), Failed> {
    let Some(seen) = seen else {
        screen::print("\x1b[H\x1b[2Jthere is no state yet: waiting for `run` or `once`\n");
        return Ok(());
    };
    let (Some(text), Some(rows)) = (text(&seen, args.output), height()) else {
        return show(&seen, args.output);
    };
    let lines = text.lines().take(rows.saturating_sub(1));
    let lines: Vec<String> = match (args.output, width()) {
        (StatusOutput::Wide, Some(width)) => {
            lines.map(|line| screen::cut(&screen::strip(line), width)).collect()
        }
        _ => lines.map(str::to_owned).collect(),
    };
    screen::print(&format!("\x1b[H\x1b[2J{}", lines.join("\n")));
    Ok(())
}

/// The journal as it was last decided about; none where there is no state yet.
async fn read(config: &Config, with_events: bool) -> Result<Option<Seen>, Failed> {
    let storage = wire::storage_for(config, &config.state)?;
    let Some(mut store) = wire::open_store_read_only(&config.state, &storage).await? else {
        return Ok(None);
    };
    let failed = |e: crate::store::StoreError| Failed::Work(e.to_string());
    let Stored { slots, ledger, lease, .. } = store.load().await.map_err(failed)?;
    let commands = store.commands().await.map_err(failed)?;
    let events = match with_events {
        true => store.events(EVENTS).await.map_err(failed)?,
        false => Vec::new(),
    };
    let mut settings = wire::settings(config);
    if settings.owner.is_empty() {
        store.owner().clone_into(&mut settings.owner);
    }
    let now = Timestamp::now();
    let holder = lease.filter(|lease| !lease.released).map(|lease| lease.holder);
    let gates = match with_events {
        true => gates_of(&settings, slots.clone(), ledger.clone(), now),
        false => Vec::new(),
    };
    let specifications: Vec<(String, Option<String>)> = match with_events {
        true => slots.iter().map(|(name, record)| (name.clone(), specification(record))).collect(),
        false => Vec::new(),
    };
    let mut document = at_rest(&settings, slots, ledger, holder.as_deref(), now);
    sentence::fill(&mut document, now);
    for slot in &mut document.tpus {
        let own = specifications.iter().find(|(name, _)| *name == slot.name);
        slot.specification = own.and_then(|(_, digest)| digest.clone());
    }
    // Two polls may fail, and one may take its time.
    let poll = &config.settings.poll;
    let patience = (poll.every * 3).max(config.lease * 2) + poll.timeout;
    let mut acts = acts(&mut document, holder, patience, now);
    acts.line += &waiting(&commands);
    Ok(Some(Seen { document, acts, events, gates }))
}

/// Commands that no poll has taken in yet.
fn waiting(commands: &[Command]) -> String {
    let one = |command: &Command| format!("{} by {}", brief(&command.kind), command.who);
    let all: Vec<String> = commands.iter().map(one).collect();
    match all.as_slice() {
        [] => String::new(),
        all => format!("; waiting for the next poll: {}", all.join(", ")),
    }
}

/// A lock that is held says nothing about a process that died; the time of the last complete poll
/// does.
fn acts(
    document: &mut StatusDocument,
    holder: Option<String>,
    patience: Duration,
    now: Timestamp,
) -> Acts {
    let age = document.observed_at.map(|at| elapsed(at, now));
    let polls = document.polled_at.is_some_and(|at| elapsed(at, now) <= patience);
    let read = document.observed_at.map_or("never read".to_owned(), |at| read_ago(at, now));
    let since = document
        .observed_at
        .map_or("ever".to_owned(), |at| format!("{at:.0} ({} ago)", span(elapsed(at, now))));
    let pending = document.tpus.iter().filter(|slot| slot.phase.is_some()).count();
    let start = "start it: tpu-watchdog run, or systemctl start tpu-watchdog";
    let owed = match pending {
        0 => String::new(),
        count => format!(", {} pending", plural_of(count)),
    };
    let acting = document.acting.take();
    match (holder, age) {
        (Some(_), Some(age)) if age <= patience => {
            document.acting = acting;
            let who = document.acting.as_ref().map_or(String::new(), name);
            Acts { line: format!("● watched by {who}, {read}"), inactive: false }
        }
        (Some(_), _) if polls => {
            document.acting = acting;
            let who = document.acting.as_ref().map_or(String::new(), name);
            let line = format!(
                "● watched by {who}; not every zone was read since {since}: its log names the zone, and why"
            );
            Acts { line, inactive: false }
        }
        (None, Some(age)) if age <= SCHEDULED => Acts {
            line: format!("○ no watchdog runs now; the last run ended well, {read}{owed}"),
            inactive: false,
        },
        (Some(_), _) => {
            let who = acting.as_ref().map_or(String::new(), name);
            let line = format!(
                "✗ inactive since {since}: {who} has the lock and has read no zone since{owed}: its log says why, and `doctor` looks at \
                 credentials and permissions. If it is gone, {start}"
            );
            Acts { line, inactive: true }
        }
        (None, _) => {
            Acts { line: format!("✗ inactive since {since}{owed}; {start}"), inactive: true }
        }
    }
}

/// How old the newest reading is. One from the future was made by another clock than this one.
fn read_ago(at: Timestamp, now: Timestamp) -> String {
    let ahead = elapsed(now, at);
    if ahead > CLOCKS_DIFFER {
        let ahead = span(ahead);
        return format!("read {ahead} in the future: this clock, or the watchdog's, is wrong");
    }
    format!("read {} ago", span(elapsed(at, now)))
}

fn plural_of(count: usize) -> String {
    plural(count, "recreate")
}

/// `vm-1 (pid 7) since 2026-06-01 12:00 UTC`.
fn name(acting: &Acting) -> String {
    let pid = acting.pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
    let since =
        acting.since.map_or(String::new(), |at| format!(" since {}", at.strftime("%F %H:%M UTC")));
    format!("{}{pid}{since}", acting.host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_that_can_not_read_one_zone_of_several_is_not_inactive() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let ago = |seconds| Some(now - jiff::SignedDuration::from_secs(seconds));
        let told = |polled| {
            let mut document = StatusDocument {
                observed_at: ago(1_800),
                polled_at: ago(polled),
                ..StatusDocument::default()
            };
            let acts = acts(&mut document, Some("vm-1".into()), Duration::from_secs(90), now);
            (acts.inactive, acts.line)
        };
        let (inactive, line) = told(20);
        assert!(!inactive && line.contains("not every zone was read since 2026-06-01"), "{line}");
        let (inactive, line) = told(1_800);
        assert!(inactive && line.contains("has read no zone since"), "{line}");
    }

    #[test]
    fn a_reading_from_the_future_is_not_told_as_new() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| read_ago(text.parse().unwrap(), now);
        assert_eq!(at("2026-06-01T11:59:48Z"), "read 12s ago");
        assert_eq!(at("2026-06-01T12:00:09Z"), "read 0s ago", "clocks differ a little");
        assert!(at("2026-06-04T12:00:00Z").starts_with("read 3d 0h in the future: this clock"));
    }
}
