//! `run`: the service.

use std::time::Duration;

use super::{ConfigFile, Outcome, load, wire};
use crate::driver::message::Mode;
use crate::report::systemd::Notify;

/// A token that takes longer at the start is not waited for: the polls ask for it as well.
const PREFLIGHT: Duration = Duration::from_secs(10);

pub async fn run(at: &ConfigFile) -> Outcome {
    let config = load(at)?;
    let clients = wire::clients(&config)?;
    // The service goes on: the network or the metadata server may come up later.
    if let Err(none) = clients.preflight(config.settings.poll.timeout.min(PREFLIGHT)).await {
        let restart = if none.for_good { "; then restart tpu-watchdog" } else { "" };
        tracing::error!("{}{restart}", none.line());
    }
    let store = wire::open_store(&config.state, &clients.state).await?;
    let settings = wire::settings(&config);
    tracing::info!(
        "watching {} of {} every {}{}, as {}",
        super::table::fleet(&settings),
        settings.project,
        crate::model::time::span(settings.poll.every),
        if settings.dry_run { ", dry run: nothing is changed" } else { "" },
        if settings.owner.is_empty() { store.owner() } else { &settings.owner },
    );
    let mut wired = wire::wire(&config, settings, clients, store, Mode::Serve);
    wire::serve(&config, wired.endpoints).await?;
    let mut signals =
        wire::signals(Some((at.path().to_owned(), config.clone())), Notify::service())?;
    let notify = Notify::service();
    notify.ready();
    wired.watchdog.notify(notify);
    wired.watchdog.tell_protection();
    wire::ended(wired.watchdog.run(&mut signals).await)
}
