//! Puts the rooms together: clients, journal and shell from a config.

use std::io::{ErrorKind, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::changes::changes;
use super::{Failed, Outcome};
use crate::checkpoint::lister::StorageAccess;
use crate::config::{self, Config, StateLocation};
use crate::driver::message::{Claimant, End, Mode};
use crate::google::auth::{Credentials, StorageCredentials};
use crate::google::http::Http;
use crate::google::sources::{NoCredentials, Places, Source};
use crate::google::tpu::{CheckEndpoints, TpuClient};
use crate::launch;
use crate::model::beacon::joined;
use crate::model::settings::Settings;
use crate::report::access::{Token, is_loopback};
use crate::report::metrics::Metrics;
use crate::report::published::Published;
use crate::report::server::{self, Endpoints};
use crate::report::systemd::Notify;
use crate::shell::{ApiMetrics, Signal, Watchdog, World};
use crate::store::marker::Lost;
use crate::store::object::ObjectState;
use crate::store::sqlite::SqliteStore;
use crate::store::{Store, StoreError};

/// An address that is in use is tried again after this.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// A watchdog and what is shared with its endpoints.
pub struct Wired {
    pub watchdog: Watchdog,
    pub endpoints: Endpoints,
}

/// Opens a place for state for writing.
pub async fn open_store(
    location: &StateLocation,
    storage: &StorageAccess,
) -> Result<Box<dyn Store>, Failed> {
    let failed = |error: StoreError| Failed::Work(error.to_string());
    Ok(match location {
        StateLocation::Sqlite(path) => Box::new(SqliteStore::open(path).map_err(failed)?),
        StateLocation::Memory => Box::new(SqliteStore::in_memory().map_err(failed)?),
        StateLocation::Object { scheme, bucket, prefix } => {
            let (client, prefix) = bucket_at(storage, scheme, bucket, prefix)?;
            Box::new(
                ObjectState::open(client, prefix, &location.to_string()).await.map_err(failed)?,
            )
        }
    })
}

/// Opens a place for state for reading; `None` when there is none yet.
pub async fn open_store_read_only(
    location: &StateLocation,
    storage: &StorageAccess,
) -> Result<Option<Box<dyn Store>>, Failed> {
    let failed = |error: StoreError| Failed::Work(error.to_string());
    let boxed = |store: SqliteStore| Box::new(store) as Box<dyn Store>;
    match location {
        StateLocation::Sqlite(path) => {
            Ok(SqliteStore::open_read_only(path).map_err(failed)?.map(boxed))
        }
        StateLocation::Memory => Ok(None),
        StateLocation::Object { scheme, bucket, prefix } => {
            let (client, prefix) = bucket_at(storage, scheme, bucket, prefix)?;
            let store = ObjectState::open_existing(client, prefix, &location.to_string())
                .await
                .map_err(failed)?;
            Ok(store.map(|store| Box::new(store) as Box<dyn Store>))
        }
    }
}

/// Gives up what was lost at a place for state, so that the next opening begins a new one; `None`
/// when nothing was lost.
pub async fn accept_loss(
    location: &StateLocation,
    storage: &StorageAccess,
) -> Result<Option<Lost>, Failed> {
    let lost = match location {
        StateLocation::Sqlite(path) => SqliteStore::accept_loss(path),
        StateLocation::Memory => Ok(None),
        StateLocation::Object { scheme, bucket, prefix } => {
            let (client, prefix) = bucket_at(storage, scheme, bucket, prefix)?;
            ObjectState::accept_loss(client, prefix, &location.to_string()).await
        }
    };
    lost.map_err(|error: StoreError| Failed::Work(error.to_string()))
}

fn bucket_at(
    storage: &StorageAccess,
    scheme: &str,
    bucket: &str,
    prefix: &str,
) -> Result<(Arc<dyn object_store::ObjectStore>, object_store::path::Path), Failed> {
    let client = storage
        .client(scheme, bucket)
        .map_err(|e| Failed::Work(format!("state {scheme}://{bucket}: {e}")))?;
    Ok((client, object_store::path::Path::from(prefix)))
}

/// Access to a place for state: credentials are asked for only where they are needed.
pub fn storage_for(config: &Config, location: &StateLocation) -> Result<StorageAccess, Failed> {
    match location {
        StateLocation::Object { .. } => Ok(clients(config)?.state),
        StateLocation::Sqlite(_) | StateLocation::Memory => {
            Ok(StorageAccess::new(None, None, config.settings.poll.timeout))
        }
    }
}

/// Google's APIs, with the config's credentials.
pub struct Clients {
    pub state: StorageAccess,
    pub storage: StorageAccess,
    pub tpu: TpuClient,
    metrics: Arc<Metrics>,
    credentials: Credentials,
}

impl Clients {
    /// Where the credentials come from, in words.
    pub fn source(&self) -> String {
        self.credentials.source().map_or("anonymous".to_owned(), ToString::to_string)
    }

    /// Whether the credentials are a login in this user's home folder.
    pub fn is_a_login(&self) -> bool {
        self.credentials.source().is_some_and(Source::is_a_login)
    }

    /// The account that the credentials are of, where it is named: by their file, or by the metadata
    /// server that gives them.
    pub async fn account(&self, limit: Duration) -> Option<String> {
        let source = self.credentials.source()?;
        let Some(host) = source.metadata_host() else { return source.account() };
        self.tpu.account_at(host, limit).await
    }

    /// Asks for an access token before anything else is done: without one nothing can be read, and
    /// why is told once.
    pub async fn preflight(&self, limit: Duration) -> Result<(), NoCredentials> {
        self.credentials.check(limit).await?;
        if let Some(account) = self.account(limit).await {
            self.tpu.asks_as(account);
        }
        Ok(())
    }
}

/// Makes the clients of a config.
pub fn clients(config: &Config) -> Result<Clients, Failed> {
    let failed = |error: &dyn std::fmt::Display| Failed::Work(error.to_string());
    let settings = &config.settings;
    let metrics = Arc::new(Metrics::new().map_err(|e| failed(&e))?);
    let credentials = if config.api.anonymous {
        Credentials::Anonymous
    } else {
        let config::CredentialsEnvironment { file, home, metadata_host } =
            config::credentials_environment();
        Credentials::application_default(Places { named: file, home, metadata_host })
            .map_err(|e| failed(&e))?
    };
    let observer = Arc::new(ApiMetrics(Arc::clone(&metrics)));
    let http =
        Http::new(credentials.clone(), settings.poll.timeout, observer).map_err(|e| failed(&e))?;
    let access = |timeout: Duration| {
        let credentials = (!config.api.anonymous)
            .then(|| Arc::new(StorageCredentials(credentials.clone(), timeout)) as _);
        StorageAccess::new(config.api.storage.clone(), credentials, timeout)
    };
    // A renewal that hangs must have failed, and been tried again, before the lease is over.
    let state = access(settings.poll.timeout.min(config.lease / 3).max(Duration::from_secs(1)));
    let storage = access(settings.poll.timeout);
    let checks = CheckEndpoints {
        resource_manager: config.api.resource_manager.clone(),
        iam: config.api.iam.clone(),
        quotas: config.api.quotas.clone(),
        storage: Some(config.api.storage_base().to_owned()),
    };
    let tpu = TpuClient::new(http, &config.api.tpu, config.api.version, &settings.project)
        .with_checks(checks)
        .with_training(&config.api.vertex, &config.api.ml);
    Ok(Clients { state, storage, tpu, metrics, credentials })
}

/// The settings with the rendered supervisors. An `owner` that is not configured stays empty: the
/// store has one.
pub fn settings(config: &Config) -> Settings {
    let mut settings = config.settings.clone();
    for slot in settings.slots.values_mut() {
        let job = slot.job.as_ref().filter(|_| !slot.filling.traits().is_job);
        slot.supervisor = job.map(|job| launch::supervisor(&slot.name, job));
    }
    settings
}

/// Who this process is when it wants the lock.
pub fn claimant(config: &Config) -> Claimant {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let place = config::execution().unwrap_or_else(host);
    let random = uuid::Uuid::new_v4().simple().to_string();
    Claimant {
        holder: format!("{place}:{}:{}", std::process::id(), &random[..8]),
        ttl: config.lease,
    }
}

/// Builds the watchdog over an open journal.
pub fn wire(
    config: &Config,
    settings: Settings,
    clients: Clients,
    store: Box<dyn Store>,
    mode: Mode,
) -> Wired {
    let Clients { state: _, storage, tpu, metrics, credentials: _ } = clients;
    let published = Published::default();
    let stuck_after = (settings.poll.every.max(settings.poll.timeout).max(config.lease) * 3)
        .max(Duration::from_secs(180));
    let world = World::new(tpu, storage);
    let watchdog = Watchdog::new(
        settings,
        store,
        claimant(config),
        mode,
        world,
        Arc::clone(&metrics),
        published.clone(),
    );
    Wired { watchdog, endpoints: Endpoints { published, metrics, stuck_after } }
}

/// The outcome of a service that has ended.
pub fn ended(end: End) -> Outcome {
    match end {
        End::Failed(error) => Err(Failed::Work(error.to_string())),
        End::Done | End::Another(_) | End::Stopped => Ok(()),
    }
}

/// Starts the endpoints, if the config wants them.
pub async fn serve(config: &Config, endpoints: Endpoints) -> Result<(), Failed> {
    let Some(address) = config.listen else { return Ok(()) };
    let file = config.listen_token_file.as_deref();
    let token = file.map(config::read_token).transpose().map_err(Failed::Config)?.map(Token::new);
    if token.is_none() && !is_loopback(address.ip()) {
        tracing::warn!(
            "listen = \"{address}\" is off loopback and listen_token_file is not set: all paths but /metrics and /-/ answer 403"
        );
    }
    let listener = match server::bind(address).await {
        Ok(listener) => Ok(listener),
        // In use by the watchdog that this one stands by for, perhaps; at boot the address may not be there yet. Neither
        // is a reason not to watch.
        Err(error)
            if [ErrorKind::AddrInUse, ErrorKind::AddrNotAvailable].contains(&error.kind()) =>
        {
            Err(error)
        }
        Err(error) => {
            return Err(Failed::Config(format!(
                "listen = \"{address}\" failed: {error}; choose another one, or listen = \"off\""
            )));
        }
    };
    tokio::spawn(async move {
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(
                    "listen = \"{address}\" failed: {error}; it is tried again every 5 s"
                );
                loop {
                    tokio::time::sleep(BIND_RETRY).await;
                    if let Ok(listener) = server::bind(address).await {
                        break listener;
                    }
                }
            }
        };
        if let Ok(address) = listener.local_addr() {
            tracing::info!(
                "serving http://{address}/ (page), /metrics, /-/healthy, /-/ready, /api/v1/status"
            );
        }
        server::serve(listener, endpoints, token).await;
    });
    Ok(())
}

/// SIGTERM and SIGINT stop; SIGHUP reloads the config, and keeps the old one when the new one is
/// bad. In the foreground of a terminal SIGHUP is its end, and stops.
/// `service` is the config's file and the config as it was at the start.
pub fn signals(
    service: Option<(std::path::PathBuf, Config)>,
    notify: Notify,
) -> Result<mpsc::UnboundedReceiver<Signal>, Failed> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let listen =
        |kind| signal(kind).map_err(|e| Failed::Work(format!("signals can't be listened to: {e}")));
    let (mut term, mut int, mut hup) = (
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
        listen(SignalKind::hangup())?,
    );
    let on_a_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    // The settings of the last reload.
    let mut loaded: Option<Settings> = None;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = int.recv() => break,
                _ = hup.recv() => {
                    // Where it runs in the foreground, the terminal is gone, and with it whoever
                    // would see what it does.
                    if on_a_terminal && !std::io::stdin().is_terminal() {
                        tracing::warn!("the terminal is gone: stopping");
                        break;
                    }
                    let Some((path, started)) = &service else { continue };
                    notify.reloading();
                    let signal = match config::load(path) {
                        Ok(config) if fixed(&config) != fixed(started) => {
                            tracing::error!(
                                "project, state, poll.timeout and [api] can't change while it runs; nothing was reloaded: restart it"
                            );
                            Signal::NotReloaded
                        }
                        Ok(config) => {
                            let now = settings(&config);
                            let told = changes(&loaded.take().unwrap_or_else(|| settings(started)), &now);
                            tracing::info!("the config was reloaded: {told} (lease, listen and listen_token_file need a restart)");
                            loaded = Some(now.clone());
                            Signal::Reload(Box::new(now))
                        }
                        Err(error) => {
                            tracing::error!("the new config is not usable, the old one stays: {}", joined(&error.to_string()));
                            Signal::NotReloaded
                        }
                    };
                    // Without a receiver the loop has ended anyway.
                    let _ = sender.send(signal);
                }
            }
        }
        notify.stopping();
        tracing::info!("stopping: what is under way is in the journal");
        let _ = sender.send(Signal::Stop);
    });
    Ok(receiver)
}

/// The settings that clients and journal were made with.
fn fixed(config: &Config) -> (&str, &StateLocation, &config::ApiSettings, Duration) {
    (&config.settings.project, &config.state, &config.api, config.settings.poll.timeout)
}
