//! The only place that reads TOML and the environment: gives typed, validated values, or errors
//! with file, line, key, what was wrong and what is allowed.

mod api;
mod check;
mod create;
mod document;
mod job;
mod policy;
mod program;
mod raw;
mod slot;
mod snippet;
mod state;
mod token;
mod training;
mod validate;
mod words;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use crate::model::settings::Settings;

/// Where state is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateLocation {
    /// A file.
    Sqlite(PathBuf),
    /// Nowhere: ends with the process.
    Memory,
    /// A bucket.
    Object {
        /// `gs` or `s3`.
        scheme: String,
        /// The bucket.
        bucket: String,
        /// The path below which everything is kept.
        prefix: String,
    },
}

impl fmt::Display for StateLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateLocation::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StateLocation::Memory => f.write_str("memory:"),
            StateLocation::Object { scheme, bucket, prefix } => {
                write!(f, "{scheme}://{bucket}/{prefix}")
            }
        }
    }
}

/// `[api]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiSettings {
    /// Base URL of the Cloud TPU API.
    pub tpu: String,
    /// Base URL of the Vertex AI API; `{region}` in it stands for the region.
    pub vertex: String,
    /// Base URL of the API of the legacy AI Platform Training.
    pub ml: String,
    /// Base URL of Cloud Storage, when it is not Google's own.
    pub storage: Option<String>,
    /// Base URL of the Resource Manager API; none: it is not asked.
    pub resource_manager: Option<String>,
    /// Base URL of the IAM API; none: it is not asked.
    pub iam: Option<String>,
    /// Base URL of the Cloud Quotas API; none: it is not asked.
    pub quotas: Option<String>,
    /// `v2` or `v2alpha1`: what creates. Reads of nodes go through v2alpha1 where it answers.
    pub version: &'static str,
    /// Nothing is sent as credentials.
    pub anonymous: bool,
}

impl ApiSettings {
    /// The endpoint of Cloud Storage.
    pub fn storage_base(&self) -> &str {
        self.storage.as_deref().unwrap_or(api::DEFAULT_STORAGE)
    }
}

/// A loaded config.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The settings for decisions. `owner` is empty when the store's own id applies; no
    /// supervisor is rendered yet.
    pub settings: Settings,
    /// `lease`.
    pub lease: Duration,
    /// `pushgateway`: metrics of a scheduled run go there.
    pub pushgateway: Option<String>,
    /// `state`.
    pub state: StateLocation,
    /// `listen`; none for "off".
    pub listen: Option<SocketAddr>,
    /// `listen_token_file`: what is not open to all needs its token off loopback.
    pub listen_token_file: Option<PathBuf>,
    /// `[api]`.
    pub api: ApiSettings,
}

/// One mistake in a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line in the file, from 1.
    pub line: usize,
    /// Dotted key; empty when the text is no TOML at all.
    pub key: String,
    /// The mistake, and what is allowed.
    pub message: String,
}

/// All mistakes that were found in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// In the order of the file.
    pub mistakes: Vec<Mistake>,
    /// The file as it was written, before any variable was replaced.
    pub text: String,
}

impl ConfigError {
    /// Every mistake with its line, for a terminal.
    pub fn shown(&self, styled: bool) -> String {
        snippet::render(self, styled)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let key =
                if mistake.key.is_empty() { String::new() } else { format!(" {}:", mistake.key) };
            write!(f, "{}:{}:{key} {}", self.file.display(), mistake.line, mistake.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Looks up an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Loads a config file with the process's environment.
///
/// # Errors
/// Every mistake, with its place and remedy.
pub fn load(file: &Path) -> Result<Config, ConfigError> {
    let unread = |message: String| ConfigError {
        file: file.to_owned(),
        mistakes: vec![Mistake { line: 1, key: String::new(), message }],
        text: String::new(),
    };
    if file.is_dir() {
        let name = file.join("watchdog.toml");
        return Err(unread(format!(
            "this is a folder; name the file in it, as in --config {}",
            name.display()
        )));
    }
    let bytes = std::fs::read(file).map_err(|error| {
        unread(format!("the file can't be read: {error}; give its path with --config"))
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| unread("this is not text, so it is no config (TOML in UTF-8)".to_owned()))?;
    parse(file, &text, &|name| std::env::var(name).ok())
}

/// Loads a config from its text. Relative paths in it start at the folder of `file`.
///
/// # Errors
/// Every mistake, with its place and remedy.
pub fn parse(file: &Path, text: &str, environment: Environment) -> Result<Config, ConfigError> {
    let wrap = |mistakes: Vec<Mistake>| ConfigError {
        file: file.to_owned(),
        mistakes,
        text: text.to_owned(),
    };
    let document = document::Document::parse(text, environment).map_err(wrap)?;
    let raw: raw::Raw = document.deserialize().map_err(wrap)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut config = validate::validate(raw, &document, folder, environment).map_err(wrap)?;
    config.settings.digest = digest(text, &config.settings);
    Ok(config)
}

/// Tells one config from another, with the scripts that it names.
fn digest(text: &str, settings: &Settings) -> String {
    let scripts = settings.slots.values().filter_map(|slot| slot.create.startup_script.as_deref());
    let all: Vec<&str> = std::iter::once(text).chain(scripts).collect();
    Uuid::new_v5(&Uuid::NAMESPACE_OID, all.join("\0").as_bytes()).simple().to_string()
}

/// Whether colours are not refused (<https://no-color.org>).
pub fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `RUST_LOG`, for the log's filter.
pub fn log_filter() -> Option<String> {
    std::env::var("RUST_LOG").ok()
}

/// A place for state as in the config's `state`; a relative path is one from `folder`.
///
/// # Errors
/// With what is allowed.
pub fn state_location(text: &str, folder: &Path) -> Result<StateLocation, String> {
    state::state_location(text, folder)
}

/// The token of `listen_token_file`.
///
/// # Errors
/// With the file and the remedy, never with its content.
pub fn read_token(path: &Path) -> Result<String, String> {
    token::read_token(path)
}

/// The name of the Cloud Run execution that this process belongs to, if it is one.
pub fn execution() -> Option<String> {
    std::env::var("CLOUD_RUN_EXECUTION").ok().filter(|name| !name.is_empty())
}

/// The part of the environment that says where Google's library looks for credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialsEnvironment {
    /// `GOOGLE_APPLICATION_CREDENTIALS`: a file that is taken without looking further.
    pub file: Option<PathBuf>,
    /// `HOME`: gcloud's own file lies below it.
    pub home: Option<PathBuf>,
    /// `GCE_METADATA_HOST`: where the metadata server is.
    pub metadata_host: Option<String>,
}

/// Where Google's library looks for credentials. It reads the same variables by itself; this is for
/// telling what it found.
pub fn credentials_environment() -> CredentialsEnvironment {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    CredentialsEnvironment {
        file: path("GOOGLE_APPLICATION_CREDENTIALS"),
        home: path("HOME"),
        metadata_host: std::env::var("GCE_METADATA_HOST").ok(),
    }
}

/// Standard error goes to systemd's journal, which adds the time by itself (`systemd.exec(5)`,
/// `JOURNAL_STREAM`).
pub fn logs_to_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    // The variable is inherited by children whose standard error goes elsewhere.
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// The project that the shell names.
pub fn project_of_the_environment() -> Option<String> {
    std::env::var("GOOGLE_CLOUD_PROJECT").ok().filter(|name| !name.is_empty())
}

/// Who uses this program, for the event log: as the shell says, the one behind `sudo` first.
pub fn person() -> String {
    let name = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|n| !n.is_empty()));
    let by_id = || match rustix::process::getuid().as_raw() {
        0 => "root".to_owned(),
        id => format!("uid-{id}"),
    };
    format!(
        "{}@{}",
        name.unwrap_or_else(by_id),
        rustix::system::uname().nodename().to_string_lossy()
    )
}
