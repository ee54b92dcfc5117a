//! `status`: each slot as the journal has it.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::{ConfigArgs, Failed, Outcome, Output, load, print, table, wire};
use crate::config::Config;
use crate::core::view::{at_rest, needs_a_person};
use crate::model::time::elapsed;
use crate::model::time::span;
use crate::model::view::{Acting, StatusDocument};

/// Scheduled runs are at most this far apart; without one for longer the TPUs are not watched.
const SCHEDULED: Duration = Duration::from_secs(30 * 60);

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Text for people, or one JSON document.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
    /// Shows it again every two seconds.
    #[arg(long)]
    watch: bool,
}

pub async fn status(args: &StatusArgs) -> Outcome {
    loop {
        let config = load(&args.config)?;
        let (document, acting) = read(&config).await?;
        let text = match args.output {
            Output::Json => format!(
                "{}\n",
                serde_json::to_string(&document).map_err(|e| Failed::Work(e.to_string()))?
            ),
            Output::Text => table::status(&document, &acting, Timestamp::now()),
        };
        if !args.watch {
            print(&text);
            return if needs_a_person(&document) { Err(Failed::NeedsAPerson) } else { Ok(()) };
        }
        print(&format!("\x1b[H\x1b[2J{text}"));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Reads the journal and decides over it without carrying anything out. Also says who watches.
async fn read(config: &Config) -> Result<(StatusDocument, String), Failed> {
    let storage = wire::storage_for(config, &config.state)?;
    let Some(mut store) = wire::open_store_read_only(&config.state, &storage).await? else {
        return Err(Failed::Work(
            "there is no state yet: start `run` or `once` first, or use `plan`".into(),
        ));
    };
    let stored = store.load().await.map_err(|e| Failed::Work(e.to_string()))?;
    let mut settings = wire::settings(config);
    if settings.owner.is_empty() {
        store.owner().clone_into(&mut settings.owner);
    }
    let now = Timestamp::now();
    let mut document = at_rest(&settings, stored.slots, stored.ledger, now);
    let holder = stored.lease.filter(|lease| !lease.released).map(|lease| lease.holder);
    let acting = acting(&mut document, holder, config, now);
    Ok((document, acting))
}

/// A lock that is held says nothing about a process that died; the time of the last complete poll
/// does.
fn acting(
    document: &mut StatusDocument,
    holder: Option<String>,
    config: &Config,
    now: Timestamp,
) -> String {
    // Two polls may fail, and one may take its time.
    let poll = &config.settings.poll;
    let patience = (poll.every * 3).max(config.lease * 2) + poll.timeout;
    let age = document.observed_at.map(|at| elapsed(at, now));
    let since = document
        .observed_at
        .map_or("ever".to_owned(), |at| format!("{at:.0} ({} ago)", span(elapsed(at, now))));
    let pending = document.tpus.iter().filter(|slot| slot.phase.is_some()).count();
    let start = "start it: tpu-watchdog run --config FILE";
    let owed = match pending {
        0 => String::new(),
        1 => ", 1 recovery pending".to_owned(),
        count => format!(", {count} recoveries pending"),
    };
    match (holder, age) {
        (Some(holder), Some(age)) if age <= patience => {
            document.acting = Some(Acting::of(&holder));
            format!("watched by {holder}")
        }
        (None, Some(age)) if age <= SCHEDULED => {
            format!("no watchdog runs now; the last run ended well{owed}")
        }
        (Some(holder), _) => {
            format!(
                "inactive since {since}: {holder} has the lock and has not read every zone since{owed}. If it is gone, {start}"
            )
        }
        (None, _) => format!("inactive since {since}{owed}; {start}"),
    }
}
