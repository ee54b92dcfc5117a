//! The folder around the file: the marker, what a lost file leaves behind, and a new file.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::copy::{copies, sync_folder, with_ending};
use super::failure::{refused, unavailable};
use crate::store::StoreError;
use crate::store::marker::{Lost, Marker};

/// Hidden, so that `rm state.db*` leaves it.
fn marker(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.exists"))
}

/// Where the first version had it.
fn former_marker(path: &Path) -> PathBuf {
    with_ending(path, ".exists")
}

fn log(path: &Path) -> PathBuf {
    with_ending(path, "-wal")
}

/// The sign that a state was made at `path`, for when it is not there: its marker, or a log whose
/// file is gone.
pub fn sign(path: &Path) -> Option<Lost> {
    marked(path).or_else(|| {
        let log = log(path);
        let is_there = std::fs::metadata(&log).is_ok_and(|found| found.len() > 0);
        is_there.then(|| Lost { sign: log.display().to_string(), marker: None })
    })
}

/// The marker of `path`; one that can't be read is there all the same.
pub fn marked(path: &Path) -> Option<Lost> {
    [marker(path), former_marker(path)].into_iter().find_map(|place| {
        let marker = match std::fs::read(&place) {
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            found => found.ok().and_then(|bytes| Marker::read(&bytes)),
        };
        Some(Lost { sign: place.display().to_string(), marker })
    })
}

/// The error of a state that was lost.
pub fn lost(path: &Path, lost: &Lost) -> StoreError {
    let location = path.display().to_string();
    let kept: Vec<String> = copies(path).iter().map(|copy| copy.display().to_string()).collect();
    let from = match kept.is_empty() {
        true => "from your backup".to_owned(),
        false => {
            format!("from your backup, or the copy that an upgrade kept ({})", kept.join(", "))
        }
    };
    let restore = format!(
        "If it was moved, move it back, with its -wal. If it was deleted, restore a copy {from}: move {location}-wal and {location}-shm away first, `cp -p COPY {location}`"
    );
    refused(&location, lost.message(&restore))
}

/// Whether there is a file, and not an empty one: SQLite would throw the log of an empty file away.
pub fn holds_something(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() > 0)
}

/// Refuses a path whose state was there and is gone.
pub fn refuse_lost(path: &Path) -> Result<(), StoreError> {
    if holds_something(path) {
        return Ok(());
    }
    match sign(path) {
        // Another process may have made both since the first look: the file comes first.
        Some(_) if holds_something(path) => Ok(()),
        Some(sign) => Err(lost(path, &sign)),
        None => Ok(()),
    }
}

/// Makes a new file where there is none, and the folder. Metadata may hold secrets: only the owner
/// can read it. SQLite gives its other files the same mode.
pub fn create(path: &Path) -> Result<(), StoreError> {
    let location = path.display().to_string();
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|e| {
            refused(&location, format!("its folder can't be made: {e}; create it or set `state`"))
        })?;
    }
    // A file that is there is left to SQLite: closing a descriptor of it would drop its locks.
    let made = match File::options().create_new(true).write(true).mode(0o600).open(path) {
        // A link that leads nowhere yet.
        Err(e) if e.kind() == ErrorKind::AlreadyExists && !path.exists() => {
            File::options().create(true).append(true).mode(0o600).open(path)
        }
        made => made,
    };
    match made {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(refused(
            &location,
            format!("it can't be opened: {e}; check its permissions and those of its folder"),
        )),
        _ => Ok(()),
    }
}

/// Makes the marker where there is none; `again` writes it over, for a state whose id changed.
pub fn mark(path: &Path, owner: &str, again: bool) -> Result<(), StoreError> {
    let place = marker(path);
    if !again && place.exists() {
        return Ok(());
    }
    let location = path.display().to_string();
    let bytes = Marker::new(owner).bytes().map_err(|message| refused(&location, message))?;
    let write = || {
        let mut file =
            File::options().create(true).truncate(true).write(true).mode(0o600).open(&place)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        sync_folder(&place)
    };
    write().map_err(|e| {
        unavailable(
            &location,
            format!(
                "its marker {} can't be written: {e}; nothing is done to any TPU until it can",
                place.display()
            ),
        )
    })?;
    // The new one stands in for it; if this one stays, no harm is done.
    let _ = std::fs::remove_file(former_marker(path));
    Ok(())
}

/// Removes the marker of a state that has another home, or is given up.
pub fn unmark(path: &Path) -> std::io::Result<()> {
    for place in [marker(path), former_marker(path)] {
        match std::fs::remove_file(place) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    sync_folder(path)
}

/// Gives a lost state up: its marker goes, its log is set aside under a name that is free.
pub fn give_up(path: &Path) -> std::io::Result<()> {
    let log = log(path);
    if std::fs::symlink_metadata(&log).is_ok() {
        let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%f");
        std::fs::rename(&log, with_ending(path, &format!(".lost-{now}-wal")))?;
    }
    match std::fs::remove_file(with_ending(path, "-shm")) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    unmark(path)
}
