//! `run`: the service.

use super::{ConfigArgs, Outcome, load, wire};

pub async fn run(args: &ConfigArgs) -> Outcome {
    let config = load(args)?;
    let store = wire::open_store(&config)?;
    let owner = store.owner().to_owned();
    let settings = wire::settings(&config, &owner);
    tracing::info!(
        "watching {} TPUs of {} every {}{}, as {}",
        settings.slots.len(),
        settings.project,
        crate::model::view::span(settings.poll.every),
        if settings.dry_run { ", dry run: nothing is changed" } else { "" },
        settings.owner,
    );
    let mut wired = wire::wire(&config, settings, store)?;
    wire::serve(&config, wired.endpoints).await?;
    let mut signals = wire::signals(Some(args.config.clone()), owner)?;
    wired.watchdog.run(&mut signals).await;
    Ok(())
}
