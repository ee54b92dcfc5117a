//! The copy of a file that comes before an upgrade, and the way back to it.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, Transaction};

use super::failure::{Refusal, explain};
use super::schema::{APPLICATION_ID, MIGRATIONS, meta, set_meta};
use crate::store::upgrade;

/// A file's name with an ending of its own.
pub fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Brings a file of schema `found` up to date and makes its id, in a transaction that can write. An
/// older file is copied first; one in memory has no path and no copy.
pub fn bring_up_to_date(
    transaction: &Transaction,
    found: usize,
    path: Option<&Path>,
) -> Result<(), Refusal> {
    if found < MIGRATIONS.len() {
        if found > 0 {
            keep(transaction, found, path)?;
        }
        for migration in &MIGRATIONS[found..] {
            transaction.execute_batch(migration)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
        set_meta(transaction, "program", upgrade::PROGRAM)?;
    }
    if meta(transaction, "owner")?.is_none() {
        set_meta(transaction, "owner", &format!("tpu-watchdog-{}", uuid::Uuid::new_v4()))?;
    }
    Ok(())
}

/// Keeps a copy if an older program wrote the file last, and writes this one's version down.
pub fn take_over(transaction: &Transaction, path: Option<&Path>) -> Result<(), Refusal> {
    let program = meta(transaction, "program")?;
    if upgrade::is_from_before(program.as_deref()) {
        keep(transaction, MIGRATIONS.len(), path)?;
    }
    if program.as_deref() != Some(upgrade::PROGRAM) {
        set_meta(transaction, "program", upgrade::PROGRAM)?;
    }
    Ok(())
}

/// Copies the file as it was before this transaction, unless there is a copy of that version.
fn keep(transaction: &Transaction, schema: usize, path: Option<&Path>) -> Result<(), Refusal> {
    let Some(path) = path else { return Ok(()) };
    let program = meta(transaction, "program")?;
    let ending = upgrade::ending(program.as_deref(), schema);
    let kept = with_ending(path, &format!(".{ending}"));
    let place = kept.display();
    // A dangling link is something, too.
    if std::fs::symlink_metadata(&kept).is_ok() {
        tracing::info!(
            "state {}: {place} is kept as it is: the copy from the first upgrade of version {ending}",
            path.display()
        );
        return Ok(());
    }
    write(path, &kept).map_err(|cause| {
        Refusal::NoCopy(format!(
            "no copy could be kept before this version writes it: {place}: {cause}; nothing was changed, and nothing is done to any TPU until the copy is there"
        ))
    })?;
    tracing::info!(
        "state {}: version {ending} left it; a copy was kept before version {} writes it: {place}",
        path.display(),
        upgrade::PROGRAM
    );
    Ok(())
}

/// Writes the copy whole or not at all, readable by its owner alone. A second connection reads what
/// was committed: the first one is in the middle of its transaction, and keeps others from writing.
fn write(path: &Path, kept: &Path) -> Result<(), String> {
    let part = with_ending(kept, ".part");
    let Some(text) = part.to_str() else { return Err("its name is not UTF-8".into()) };
    let io = |e: std::io::Error| e.to_string();
    match std::fs::remove_file(&part) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(e)),
        _ => {}
    }
    File::options().create_new(true).write(true).mode(0o600).open(&part).map_err(io)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copied = Connection::open_with_flags(path, flags)
        .and_then(|reader| reader.execute("VACUUM INTO ?1", [text]));
    let done = copied
        .map_err(|e| explain(&e))
        .and_then(|_| File::open(&part).and_then(|file| file.sync_all()).map_err(io))
        .and_then(|()| std::fs::rename(&part, kept).map_err(io))
        .and_then(|()| sync_folder(kept).map_err(io));
    if done.is_err() {
        // A part that can't be removed now is removed before the next try.
        let _ = std::fs::remove_file(&part);
    }
    done
}

/// Makes names in the folder of `path` survive a power cut.
pub fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Copies that upgrades kept, by name.
pub fn copies(path: &Path) -> Vec<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(path.with_file_name(entry.ok()?.file_name())))
        .filter(|copy| ending_of(path, copy).is_some())
        .collect();
    found.sort();
    found
}

/// The ending of a copy of `path`, as `v3`.
fn ending_of<'a>(path: &Path, copy: &'a Path) -> Option<&'a str> {
    let (name, copy) = (path.file_name()?.to_str()?, copy.file_name()?.to_str()?);
    let ending = copy.strip_prefix(name)?.strip_prefix('.')?;
    let is_version = ending.strip_prefix('v')?.starts_with(|c: char| c.is_ascii_digit());
    (is_version && !ending.ends_with(".part")).then_some(ending)
}

/// The steps that lead back from a newer version's file to a copy.
pub fn way_back(path: &Path) -> String {
    let (file, copies) = (path.display(), copies(path));
    let endings = copies.iter().filter_map(|copy| ending_of(path, copy));
    match upgrade::best(endings, MIGRATIONS.len() as u64) {
        Some(ending) => format!(
            "stop every tpu-watchdog, move {file}, {file}-wal and {file}-shm away together, `cp -p {file}.{ending} {file}`, start this version. The copy was kept when a newer version took over; what was recorded since then is lost"
        ),
        None => format!(
            "no copy that this version can read is in its folder ({file}.v…): stop every tpu-watchdog, move {file}, {file}-wal and {file}-shm away together, restore a backup of your own, start this version"
        ),
    }
}
