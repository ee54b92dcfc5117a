//! `status`: each slot as the journal has it.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::{ConfigArgs, Failed, Outcome, Output, load, print, table, wire};
use crate::config::Config;
use crate::decide::view::{document, needs_a_person, without_dry_run};
use crate::model::action::Input;
use crate::model::fleet::Fleet;
use crate::model::view::StatusDocument;
use crate::store::Store;

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
        let document = read(&config)?;
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
fn read(config: &Config) -> Result<StatusDocument, Failed> {
    let Some(store) = wire::open_store_read_only(config)? else {
        return Err(Failed::Work("there is no state yet: start `run` or `once` first, or use `plan`".into()));
    };
    let stored = store.load().map_err(|e| Failed::Work(e.to_string()))?;
    let mut settings = wire::settings(config, store.owner());
    settings.dry_run = true;
    let now = Timestamp::now();
    let mut fleet = Fleet::new(settings.clone(), stored.slots, stored.ledger);
    // The effects are dropped: this is a look at what would be decided.
    let _ = crate::decide::step(&mut fleet, Input::Configured(Box::new(settings)), now);
    Ok(without_dry_run(document(&fleet, now), config.settings.dry_run))
}
