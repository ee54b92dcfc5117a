//! `plan`: looks, and shows what would be done and what would not. Runs the same core over a copy of the journal.

use std::time::{Duration, Instant};

use super::{Failed, Outcome, Output, ReadArgs, load, print, table, wire};
use crate::decide::view::{needs_a_person, without_dry_run};
use crate::model::action::Record;
use crate::store::sqlite::SqliteStore;
use crate::store::{Store, StoreError};

pub async fn plan(args: &ReadArgs) -> Outcome {
    let began = jiff::Timestamp::now();
    let config = load(&args.config)?;
    let journal = wire::open_store_read_only(&config)?;
    let failed = |e: StoreError| Failed::Work(e.to_string());
    let owner = journal.as_ref().map_or("tpu-watchdog-plan".to_owned(), |s| s.owner().to_owned());
    let mut copy = SqliteStore::in_memory().map_err(failed)?;
    if let Some(journal) = &journal {
        let stored = journal.load().map_err(failed)?;
        let mut records = vec![Record::Ledger(Box::new(stored.ledger))];
        for (name, slot) in stored.slots {
            if let Some(spec) = &slot.spec {
                records.push(Record::Spec(name, serde_json::Value::Object(spec.body().clone())));
            }
            records.push(Record::Slot(Box::new(slot)));
        }
        copy.commit(&records, &[]).map_err(failed)?;
    }
    let mut settings = wire::settings(&config, &owner);
    settings.dry_run = true;
    let project = settings.project.clone();
    let deadline = Instant::now() + settings.poll.timeout * 3 + Duration::from_secs(5);
    let mut wired = wire::wire(&config, settings, Box::new(copy))?;
    wired.watchdog.look(deadline).await;
    let document = without_dry_run(wired.watchdog.document(), config.settings.dry_run);
    match args.output {
        Output::Json => print(&format!("{}\n", serde_json::to_string(&document).map_err(|e| Failed::Work(e.to_string()))?)),
        Output::Text => print(&table::plan(&project, &document, jiff::Timestamp::now())),
    }
    if document.observed_at.is_none_or(|at| at < began) {
        return Err(Failed::Work("not every zone could be read; see the lines above".into()));
    }
    if needs_a_person(&document) { Err(Failed::NeedsAPerson) } else { Ok(()) }
}
