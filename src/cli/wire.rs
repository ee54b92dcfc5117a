//! Puts the rooms together: clients, journal and shell from a config.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::Failed;
use crate::checkpoint::lister::StorageAccess;
use crate::config::{self, Config, StateLocation};
use crate::google::auth::{Credentials, StorageCredentials};
use crate::google::http::Http;
use crate::google::tpu::TpuClient;
use crate::launch;
use crate::model::settings::Settings;
use crate::report::metrics::Metrics;
use crate::report::published::Published;
use crate::report::server::{self, Endpoints};
use crate::store::Store;
use crate::store::sqlite::SqliteStore;
use crate::watchdog::{ApiMetrics, Signal, Watchdog, World};

/// A watchdog and what is shared with its endpoints.
pub struct Wired {
    pub watchdog: Watchdog,
    pub endpoints: Endpoints,
}

/// Opens the journal for writing.
pub fn open_store(config: &Config) -> Result<Box<dyn Store>, Failed> {
    let store = match &config.state {
        StateLocation::Sqlite(path) => SqliteStore::open(path),
        StateLocation::Memory => SqliteStore::in_memory(),
    };
    store.map(|s| Box::new(s) as Box<dyn Store>).map_err(|e| Failed::Work(e.to_string()))
}

/// Opens the journal for reading; `None` when there is none yet.
pub fn open_store_read_only(config: &Config) -> Result<Option<SqliteStore>, Failed> {
    match &config.state {
        StateLocation::Sqlite(path) => SqliteStore::open_read_only(path).map_err(|e| Failed::Work(e.to_string())),
        StateLocation::Memory => Ok(None),
    }
}

/// The settings with the owner's id and the rendered supervisors.
pub fn settings(config: &Config, owner: &str) -> Settings {
    let mut settings = config.settings.clone();
    if settings.owner.is_empty() {
        settings.owner = owner.to_owned();
    }
    for slot in settings.slots.values_mut() {
        slot.supervisor = slot.job.as_ref().map(|job| launch::supervisor(&slot.name, job));
    }
    settings
}

/// Builds the watchdog over an open journal.
pub fn wire(config: &Config, settings: Settings, store: Box<dyn Store>) -> Result<Wired, Failed> {
    let failed = |error: &dyn std::fmt::Display| Failed::Work(error.to_string());
    let metrics = Arc::new(Metrics::new().map_err(|e| failed(&e))?);
    let credentials =
        if config.api.anonymous { Credentials::Anonymous } else { Credentials::application_default().map_err(|e| failed(&e))? };
    let observer = Arc::new(ApiMetrics(Arc::clone(&metrics)));
    let http = Http::new(credentials.clone(), settings.poll.timeout, observer).map_err(|e| failed(&e))?;
    let storage_credentials = (!config.api.anonymous).then(|| Arc::new(StorageCredentials(credentials)) as _);
    let storage = StorageAccess::new(config.api.storage.clone(), storage_credentials, settings.poll.timeout);
    let world = World { tpu: TpuClient::new(http, &config.api.tpu, config.api.version, &settings.project), storage };
    let published = Published::default();
    let stuck_after = (settings.poll.every * 3).max(Duration::from_secs(180));
    let watchdog = Watchdog::new(settings, store, world, Arc::clone(&metrics), published.clone()).map_err(|e| failed(&e))?;
    Ok(Wired { watchdog, endpoints: Endpoints { published, metrics, stuck_after } })
}

/// Starts the endpoints, if the config wants them.
pub async fn serve(config: &Config, endpoints: Endpoints) -> Result<(), Failed> {
    let Some(address) = config.listen else { return Ok(()) };
    let listener = server::bind(address).await.map_err(Failed::Config)?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!("serving http://{address}/ (page), /metrics, /-/healthy, /-/ready, /api/v1/status");
    }
    tokio::spawn(server::serve(listener, endpoints));
    Ok(())
}

/// SIGTERM and SIGINT stop; SIGHUP reloads the config, and keeps the old one when the new one is bad.
pub fn signals(path: Option<std::path::PathBuf>, owner: String) -> Result<mpsc::UnboundedReceiver<Signal>, Failed> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let listen = |kind| signal(kind).map_err(|e| Failed::Work(format!("signals can't be listened to: {e}")));
    let (mut term, mut int, mut hup) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?, listen(SignalKind::hangup())?);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = int.recv() => break,
                _ = hup.recv() => {
                    let Some(path) = &path else { continue };
                    match config::load(path) {
                        Ok(config) => {
                            tracing::info!("the config was reloaded (state, listen and [api] need a restart)");
                            // Without a receiver the loop has ended anyway.
                            let _ = sender.send(Signal::Reload(Box::new(settings(&config, &owner))));
                        }
                        Err(error) => tracing::error!("the new config is not usable, the old one stays:\n{error}"),
                    }
                }
            }
        }
        tracing::info!("stopping: what is under way is in the journal");
        let _ = sender.send(Signal::Stop);
    });
    Ok(receiver)
}
