//! `status`: each slot as the journal has it.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::{ConfigArgs, Failed, Outcome, Output, load, print, table, wire};
use crate::config::Config;
use crate::decide::view::{at_rest, needs_a_person};
use crate::model::view::StatusDocument;

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
        let document = read(&config).await?;
        let text = match args.output {
            Output::Json => format!("{}\n", serde_json::to_string(&document).map_err(|e| Failed::Work(e.to_string()))?),
            Output::Text => table::status(&document, Timestamp::now()),
        };
        if !args.watch {
            print(&text);
            return if needs_a_person(&document) { Err(Failed::NeedsAPerson) } else { Ok(()) };
        }
        print(&format!("\x1b[H\x1b[2J{text}"));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Reads the journal and decides over it without carrying anything out.
async fn read(config: &Config) -> Result<StatusDocument, Failed> {
    let storage = wire::storage_for(config, &config.state)?;
    let Some(mut store) = wire::open_store_read_only(&config.state, &storage).await? else {
        return Err(Failed::Work("there is no state yet: start `run` or `once` first, or use `plan`".into()));
    };
    let stored = store.load().await.map_err(|e| Failed::Work(e.to_string()))?;
    let mut settings = wire::settings(config);
    if settings.owner.is_empty() {
        store.owner().clone_into(&mut settings.owner);
    }
    Ok(at_rest(&settings, stored.slots, stored.ledger, Timestamp::now()))
}
