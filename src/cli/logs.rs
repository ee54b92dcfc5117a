//! `logs`: the last lines of a slot's failed runs, from the journal: they are there when the TPU is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::names::no_slot;
use super::{ConfigFile, Failed, Outcome, Output, load, print, wire};
use crate::config::{Config, StateLocation};
use crate::model::beacon::Meaning;
use crate::model::event::{Event, What};
use crate::model::slot::SlotRecord;
use crate::model::spec::TRAINING_KEY;
use crate::model::time::{elapsed, span};
use crate::model::training::JobKind;

/// The newest events that are looked through.
const EVENTS: usize = 20_000;
/// How often `--follow` looks for more: in a bucket each look reads many objects.
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_IN_A_BUCKET: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The slot.
    slot: String,
    /// Only this worker.
    #[arg(long, value_name = "N")]
    worker: Option<usize>,
    /// All failed runs, not only those of the newest generation.
    #[arg(long)]
    all: bool,
    /// Keeps printing new reports, until Ctrl-C.
    #[arg(short, long, conflicts_with = "output")]
    follow: bool,
    /// Text, or one JSON document.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// One run's last lines.
struct Run {
    at: Timestamp,
    worker: usize,
    generation: u64,
    code: i64,
    lines: Vec<String>,
    meaning: Option<Meaning>,
}

pub async fn logs(at: &ConfigFile, args: &LogsArgs) -> Outcome {
    let config = load(at)?;
    let storage = wire::storage_for(&config, &config.state)?;
    let Some(mut store) = wire::open_store_read_only(&config.state, &storage).await? else {
        return Err(Failed::Work("there is no state yet: start `run` or `once` first".into()));
    };
    let failed = |error: crate::store::StoreError| Failed::Work(error.to_string());
    let mut shown = None;
    loop {
        let events = store.events(EVENTS).await.map_err(failed)?;
        is_known(args, &config, &events)?;
        let runs = runs(args, &events, shown);
        let newest = events.last().map(|event| event.at);
        match args.output {
            Output::Json => print(&format!("{}\n", document(&runs))),
            Output::Text if runs.is_empty() && shown.is_none() => {
                let stored = store.load().await.map_err(failed)?;
                print(&nothing(args, stored.slots.get(&args.slot), &config, &events))
            }
            Output::Text => print(&text(args, &config, &runs)),
        }
        if !args.follow {
            return Ok(());
        }
        shown = newest.or(shown).or(Some(Timestamp::UNIX_EPOCH));
        let local = matches!(config.state, StateLocation::Sqlite(_));
        tokio::time::sleep(if local { AGAIN } else { AGAIN_IN_A_BUCKET }).await;
    }
}

/// A name that is neither in the config nor in any event is a mistake.
fn is_known(args: &LogsArgs, config: &Config, events: &[Event]) -> Outcome {
    let slots = &config.settings.slots;
    let known = slots.contains_key(&args.slot)
        || events.iter().any(|event| event.slot.as_ref() == Some(&args.slot));
    if known {
        return Ok(());
    }
    Err(no_slot(&args.slot, slots.keys()))
}

/// The runs to be shown, oldest first: after `shown` all, else of the newest generation alone.
fn runs(args: &LogsArgs, events: &[Event], shown: Option<Timestamp>) -> Vec<Run> {
    let wanted = |event: &&Event| {
        event.slot.as_ref() == Some(&args.slot) && shown.is_none_or(|shown| event.at > shown)
    };
    let run = |event: &Event| match &event.what {
        What::LastLines { worker, generation, code, lines, meaning } => Some(Run {
            at: event.at,
            worker: *worker,
            generation: *generation,
            code: *code,
            lines: lines.clone(),
            meaning: meaning.clone(),
        }),
        _ => None,
    };
    let mut runs: Vec<Run> = events.iter().filter(wanted).filter_map(run).collect();
    let newest = runs.iter().map(|run| run.generation).max();
    runs.retain(|run| args.all || shown.is_some() || Some(run.generation) == newest);
    runs.retain(|run| args.worker.is_none_or(|worker| worker == run.worker));
    runs
}

fn document(runs: &[Run]) -> serde_json::Value {
    let run = |run: &Run| {
        json!({
            "at": run.at, "worker": run.worker, "generation": run.generation, "code": run.code,
            "class": run.meaning.as_ref().map(|meaning| &meaning.class),
            "advice": run.meaning.as_ref().map(|meaning| &meaning.advice),
            "lines": run.lines
        })
    };
    json!({"runs": runs.iter().map(run).collect::<Vec<_>>()})
}

fn text(args: &LogsArgs, config: &Config, runs: &[Run]) -> String {
    let now = Timestamp::now();
    let mut text = String::new();
    let mut ended: BTreeMap<u64, usize> = BTreeMap::new();
    for run in runs {
        *ended.entry(run.generation).or_default() += 1;
        text += &format!(
            "{}: worker {}, generation {}, ended with code {} at {:.0} ({} ago)\n",
            args.slot,
            run.worker,
            run.generation,
            run.code,
            run.at,
            span(elapsed(run.at, now))
        );
        text.extend(run.lines.iter().map(|line| format!("    {line}\n")));
        if let Some(meaning) = &run.meaning {
            text += &format!("{}: {}\n", meaning.class, meaning.advice);
        }
        text += "\n";
    }
    let job = config.settings.slots.get(&args.slot).and_then(|slot| slot.job.as_ref());
    if let (Some(place), Some((generation, _))) =
        (job.and_then(|job| job.logs.as_ref()), ended.last_key_value())
    {
        text += &format!("200 lines of each worker: {place}/{}/{generation}.*/\n", args.slot);
    }
    text
}

fn nothing(
    args: &LogsArgs,
    record: Option<&SlotRecord>,
    config: &Config,
    events: &[Event],
) -> String {
    let of = |event: &Event| match &event.what {
        What::LastLines { worker, .. } if event.slot.as_ref() == Some(&args.slot) => Some(*worker),
        _ => None,
    };
    let others: BTreeSet<usize> = events.iter().filter_map(of).collect();
    if let Some(worker) = args.worker.filter(|_| !others.is_empty()) {
        let others: Vec<String> = others.iter().map(usize::to_string).collect();
        return format!(
            "no lines of worker {worker} of {} are kept: of workers that fail alike, only one is kept; kept: {}\n",
            args.slot,
            others.join(", ")
        );
    }
    let slot = config.settings.slots.get(&args.slot);
    if let (Some(record), true) = (record, slot.is_some_and(|slot| slot.filling.traits().is_job)) {
        let id = record.incarnation.as_ref().map_or("ID", |of| of.id.as_str());
        let job = record.spec.as_ref().and_then(|spec| spec.body().get(TRAINING_KEY));
        let of = slot.and_then(|slot| slot.filling.training());
        let kind = job.map(JobKind::of).or(of.map(|of| of.kind)).unwrap_or(JobKind::Custom);
        return format!(
            "The lines of a training job are in Cloud Logging:\n    {}\n",
            kind.asks(&format!("stream-logs {id}"), &record.zone)
        );
    }
    let configured = slot.and_then(|slot| slot.zones.first()).map_or("ZONE", String::as_str);
    let worker = args.worker.unwrap_or(0);
    // Of a multislice it is the node of the host's slice, and the host's number there.
    let (node, host) = record.map_or((args.slot.as_str(), worker), |record| record.host(worker));
    let zone = record.map_or(configured, |record| record.zone.as_str());
    format!(
        "No failed run of {0} is recorded. The last lines are kept where a run ends with another code than 0, under a supervisor of version \
         2.1 or later. While it runs, the journal of its host has them:\n    gcloud compute tpus tpu-vm ssh {node} --zone {zone} --worker {host} --command \
         \"sudo journalctl -f -u 'tpu-watchdog-job-*'\"\n",
        args.slot
    )
}
