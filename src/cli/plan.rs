//! `plan`: looks, and shows what would be done and what would not. Runs the same core over a copy
//! of the journal.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{Failed, Outcome, Output, ReadArgs, load, print, table, wire};
use crate::core::view::{needs_a_person, without_dry_run};
use crate::driver::message::Mode;
use crate::shell::clock;
use crate::store::sqlite::SqliteStore;
use crate::store::{Store, StoreError};

pub async fn plan(args: &ReadArgs) -> Outcome {
    let began = jiff::Timestamp::now();
    let config = load(&args.config)?;
    let clients = wire::clients(&config)?;
    clients
        .preflight(config.settings.poll.timeout)
        .await
        .map_err(|none| Failed::Work(none.to_string()))?;
    let failed = |e: StoreError| Failed::Work(e.to_string());
    let mut settings = wire::settings(&config);
    let mut copy = SqliteStore::in_memory().map_err(failed)?;
    if let Some(mut journal) = wire::open_store_read_only(&config.state, &clients.state).await? {
        if settings.owner.is_empty() {
            journal.owner().clone_into(&mut settings.owner);
        }
        let batch = journal.load().await.map_err(failed)?.into_batch(Vec::new());
        copy.take(None, "plan", config.lease).await.map_err(failed)?;
        copy.release(&batch).await.map_err(failed)?;
    }
    settings.dry_run = true;
    let project = settings.project.clone();
    let limit = settings.poll.timeout * 3 + Duration::from_secs(5);
    let mode = Mode::Look { deadline: clock::boottime() + limit };
    let mut wired = wire::wire(&config, settings, clients, Box::new(copy), mode);
    let (_open, mut signals) = mpsc::unbounded_channel();
    wire::ended(wired.watchdog.run(&mut signals).await)?;
    let document = without_dry_run(wired.watchdog.document(), config.settings.dry_run);
    match args.output {
        Output::Json => print(&format!(
            "{}\n",
            serde_json::to_string(&document).map_err(|e| Failed::Work(e.to_string()))?
        )),
        Output::Text => print(&table::plan(&project, &document, jiff::Timestamp::now())),
    }
    if document.observed_at.is_none_or(|at| at < began) {
        return Err(Failed::Work("not every zone could be read; see the lines above".into()));
    }
    if needs_a_person(&document) { Err(Failed::NeedsAPerson) } else { Ok(()) }
}
