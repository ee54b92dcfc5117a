//! Which config file a command reads: the one that is named, that of the environment, the one of this
//! folder, that of the system.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use super::Failed;
use crate::config::{self, Config};

/// Looked for in the present folder.
const HERE: &str = "watchdog.toml";
/// The service's own.
const SYSTEM: &str = "/etc/tpu-watchdog/watchdog.toml";

/// The config file of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    path: PathBuf,
    /// Named by the user; else the first that is there.
    named: bool,
}

impl ConfigFile {
    /// The one that the user names, or the first that is there.
    pub fn find(named: Option<PathBuf>) -> Self {
        match named {
            Some(path) => ConfigFile { path, named: true },
            None => {
                let here = Path::new(HERE);
                let path = if here.exists() { here } else { Path::new(SYSTEM) };
                ConfigFile { path: path.to_owned(), named: false }
            }
        }
    }

    /// Whether it is the service's own.
    pub fn is_of_the_service(&self) -> bool {
        self.path.starts_with(Path::new(SYSTEM).parent().unwrap_or(Path::new(SYSTEM)))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks it.
    ///
    /// # Errors
    /// Every mistake with its place and remedy; where there is no file, where it was looked for.
    pub fn load(&self) -> Result<Config, Failed> {
        if !self.named && !self.path.exists() {
            return Err(Failed::Config(format!(
                "there is no config: neither ./{HERE} nor {SYSTEM} exists. Write one with `tpu-watchdog init`, or name it with --config \
                 FILE (or TPU_WATCHDOG_CONFIG); nothing was done"
            )));
        }
        config::load(&self.path).map_err(|error| {
            let styled = std::io::stderr().is_terminal() && config::colours();
            // A journal has a line for each entry.
            let whole = config::logs_to_the_journal();
            let shown = if whole { error.to_string() } else { error.shown(styled) };
            Failed::Config(format!("the config is not usable, nothing was done:\n{shown}"))
        })
    }
}
