//! SQLite: the journal of a service with a disk. WAL with `synchronous=FULL`, so that a commit
//! survives a power cut and readers work while a service runs.

mod copy;
mod failure;
mod file;
mod place;
mod rows;
mod schema;

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

use self::failure::{Refusal, error, json, refused};
use self::file::Opened;
use self::schema::{MIGRATIONS, PATIENCE, meta};
use super::marker::Lost;
use super::{Batch, Store, StoreError, StoreFailure, Stored, moved};
use crate::model::command::Command;
use crate::model::event::Event;
use crate::model::lease::Lease;

/// Another process's transaction is waited for this long, and everything else of this one waits
/// with it.
const BUSY: Duration = Duration::from_millis(500);
const THERE: &str = "there is a state here, so none was lost; nothing was changed. If it is damaged, restore a copy, or move it away and run the command again";

/// A journal in one SQLite file, or in memory.
pub struct SqliteStore {
    connection: Connection,
    location: String,
    owner: String,
    // Less than the newest only where it is read alone, next to an older program.
    schema: usize,
    // The term of leadership that `take` began.
    held: Option<(String, u64)>,
    // None in memory, and where the file is only read.
    opened: Option<Opened>,
    path: Option<PathBuf>,
}

impl SqliteStore {
    /// Opens for writing, and creates what is missing.
    ///
    /// # Errors
    /// When the file is newer, damaged or not ours, its state has moved, or was lost.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        place::refuse_lost(path)?;
        place::create(path)?;
        let location = path.display().to_string();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let (connection, opened) = Opened::by(path, || {
            Connection::open_with_flags(path, flags)
                .map_err(|e| refused(&location, format!("it can't be opened: {e}")))
        })?;
        let mut store = Self::prepare(connection, location, Some(path))?;
        store.opened = Some(opened.with_log(path)?);
        Ok(store)
    }

    /// A journal that ends with the process.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn in_memory() -> Result<Self, StoreError> {
        let location = "memory:".to_owned();
        match Connection::open_in_memory() {
            Ok(connection) => Self::prepare(connection, location, None),
            Err(error) => Err(refused(&location, error.to_string())),
        }
    }

    /// Opens for reading while a service runs. `None` when there is no state yet.
    ///
    /// # Errors
    /// When the file is newer, damaged or not ours, or was lost.
    pub fn open_read_only(path: &Path) -> Result<Option<Self>, StoreError> {
        place::refuse_lost(path)?;
        if !path.exists() {
            return Ok(None);
        }
        let location = path.display().to_string();
        let sql = |e: rusqlite::Error| error(&location, &e);
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .map_err(sql)?;
        connection.busy_timeout(PATIENCE).map_err(sql)?;
        let found = known_version(&connection, &location, Some(path))?;
        if found == 0 {
            return Ok(None);
        }
        if let Some(to) = meta(&connection, "moved_to").map_err(sql)? {
            return Err(refused(&location, moved(&to)));
        }
        let owner = meta(&connection, "owner").map_err(sql)?.unwrap_or_default();
        let (held, opened, path) = (None, None, Some(path.to_owned()));
        Ok(Some(SqliteStore { connection, location, owner, schema: found, held, opened, path }))
    }

    /// Gives up what was lost at `path`, so that the next opening begins a new state. `None` when
    /// nothing was lost.
    ///
    /// # Errors
    /// When there is a state, or what is left of the lost one can't be removed.
    pub fn accept_loss(path: &Path) -> Result<Option<Lost>, StoreError> {
        let location = path.display().to_string();
        let sign = place::sign(path);
        if place::holds_something(path) {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection =
                Connection::open_with_flags(path, flags).map_err(|e| error(&location, &e))?;
            if schema::version(&connection, || copy::way_back(path))
                .map_err(|message| refused(&location, message))?
                > 0
            {
                return Err(refused(&location, THERE.into()));
            }
        }
        if sign.is_some() {
            place::give_up(path).map_err(|e| {
                failure::unavailable(
                    &location,
                    format!("what is left of the lost state can't be removed: {e}; check the permissions of its folder, then run the command again"),
                )
            })?;
        }
        Ok(sign)
    }

    fn prepare(
        mut connection: Connection,
        location: String,
        path: Option<&Path>,
    ) -> Result<Self, StoreError> {
        let sql = |e: rusqlite::Error| error(&location, &e);
        connection.busy_timeout(PATIENCE).map_err(sql)?;
        known_version(&connection, &location, path)?;
        schema::write_ahead(&connection).map_err(sql)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql)?;
        // Another process may have brought it up to date just now.
        let found = schema::version(&transaction, String::new)
            .map_err(|message| refused(&location, message))?;
        if found > 0
            && let Some(to) = meta(&transaction, "moved_to").map_err(sql)?
        {
            return Err(refused(&location, moved(&to)));
        }
        copy::bring_up_to_date(&transaction, found, path)
            .map_err(|refusal| refusal.at(&location))?;
        transaction.commit().map_err(sql)?;
        let owner = meta(&connection, "owner").map_err(sql)?.unwrap_or_default();
        connection.busy_timeout(BUSY).map_err(sql)?;
        let (schema, path) = (MIGRATIONS.len(), path.map(Path::to_owned));
        Ok(SqliteStore { connection, location, owner, schema, held: None, opened: None, path })
    }

    /// Whether the file is still the one that was opened.
    fn check_file(&self) -> Result<(), StoreError> {
        self.opened.as_ref().map_or(Ok(()), Opened::check)
    }

    /// One transaction that begins with the lock: `then` sees the lease as it is, and gives the one
    /// to leave behind.
    fn locked<T>(
        &mut self,
        then: impl FnOnce(&Transaction, Option<Lease>) -> Result<(Lease, T), Refusal>,
    ) -> Result<T, StoreError> {
        self.check_file()?;
        let write = || {
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if let Some(to) = meta(&transaction, "moved_to")? {
                return Err(Refusal::Moved(to));
            }
            let found: Option<String> = transaction
                .query_row("SELECT record FROM lease", [], |row| row.get(0))
                .optional()?;
            let found = found
                .map(|text| serde_json::from_str(&text))
                .transpose()
                .map_err(Refusal::Damaged)?;
            let (lease, result) = then(&transaction, found)?;
            transaction
                .prepare_cached("INSERT OR REPLACE INTO lease (id, record) VALUES (1, ?1)")?
                .execute([json(&lease)?])?;
            transaction.commit()?;
            Ok(result)
        };
        let result = write().map_err(|refusal: Refusal| refusal.at(&self.location))?;
        // A file that went in the meantime took the write with it: no request may rest on that.
        self.check_file()?;
        Ok(result)
    }

    /// A write under the lock that is held, which it renews (or, at the end, releases).
    fn held(
        &mut self,
        release: bool,
        write: impl FnOnce(&Transaction) -> Result<(), Refusal>,
    ) -> Result<(), StoreError> {
        let held = self.held.clone();
        self.locked(|transaction, lease| match (held, lease) {
            (Some((holder, epoch)), Some(mut lease)) if lease.is_held_by(&holder, epoch) => {
                write(transaction)?;
                lease.renewals += 1;
                lease.released = release;
                Ok((lease, ()))
            }
            (_, lease) => Err(Refusal::Fenced(lease)),
        })
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn location(&self) -> &str {
        &self.location
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn pace(&self) -> Duration {
        Duration::ZERO
    }

    async fn load(&mut self) -> Result<Stored, StoreError> {
        self.check_file()?;
        rows::load(&mut self.connection, &self.location, &self.owner, self.schema)
    }

    async fn take(
        &mut self,
        seen: Option<&Lease>,
        holder: &str,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let next = Lease::next(seen, holder, ttl);
        let path = self.path.clone();
        let taken = self.locked(|transaction, found| match found.as_ref() == seen {
            true => {
                copy::take_over(transaction, path.as_deref())?;
                Ok((next.clone(), ()))
            }
            false => Err(Refusal::Fenced(found)),
        });
        match taken {
            Ok(()) => {
                if let Some(path) = &self.path {
                    place::mark(path, &self.owner, false)?;
                }
                self.held = Some((next.holder, next.epoch));
                Ok(true)
            }
            Err(error) if error.failure == StoreFailure::Fenced => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.held(false, |transaction| rows::write(transaction, batch))
    }

    async fn release(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.held(true, |transaction| rows::write(transaction, batch))?;
        self.held = None;
        Ok(())
    }

    async fn events(&mut self, last: usize) -> Result<Vec<Event>, StoreError> {
        let query = || {
            let mut statement =
                self.connection.prepare("SELECT event FROM event ORDER BY id DESC LIMIT ?1")?;
            let rows = statement.query_map([last as i64], |row| row.get::<_, String>(0))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        let rows = query().map_err(|e| error(&self.location, &e))?;
        Ok(rows.iter().rev().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    async fn submit(&mut self, command: &Command) -> Result<(), StoreError> {
        self.check_file()?;
        let put = || {
            let record = json(command)?;
            self.connection.busy_timeout(PATIENCE)?;
            self.connection.execute(
                "INSERT OR IGNORE INTO lever (id, record) VALUES (?1, ?2)",
                params![command.id, record],
            )
        };
        put().map_err(|e| error(&self.location, &e))?;
        self.check_file()
    }

    async fn commands(&mut self) -> Result<Vec<Command>, StoreError> {
        let query = || {
            let mut statement = self
                .connection
                .prepare_cached("SELECT number, record FROM lever ORDER BY number")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        let rows = query().map_err(|e| error(&self.location, &e))?;
        let command = |(number, text): &(i64, String)| match serde_json::from_str(text) {
            Ok(command) => Some(command),
            Err(error) => {
                tracing::error!(
                    "state {}: row {number} of table lever is no command ({error}); delete it",
                    self.location
                );
                None
            }
        };
        Ok(rows.iter().filter_map(command).collect())
    }

    fn blocks(&self) -> bool {
        true
    }

    async fn adopt(&mut self, owner: &str, batch: &Batch) -> Result<(), StoreError> {
        self.held(false, |transaction| {
            let rows: i64 =
                transaction.query_row("SELECT count(*) FROM slot", [], |row| row.get(0))?;
            // State that an interrupted move left behind is its own.
            if rows > 0 && meta(transaction, "owner")?.as_deref() != Some(owner) {
                return Err(Refusal::NotEmpty);
            }
            for table in ["spec", "slot", "ledger", "event", "tally"] {
                transaction.execute(&format!("DELETE FROM {table}"), [])?;
            }
            transaction.execute("UPDATE meta SET value = ?1 WHERE key = 'owner'", [owner])?;
            rows::write(transaction, batch)
        })?;
        self.owner = owner.to_owned();
        // The marker names the id that moved in.
        self.path.as_ref().map_or(Ok(()), |path| place::mark(path, owner, true))
    }

    async fn leave_for(&mut self, location: &str) -> Result<(), StoreError> {
        self.held(true, |transaction| {
            transaction.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('moved_to', ?1)",
                [location],
            )?;
            Ok(())
        })?;
        // The state lives elsewhere: nothing is lost when this file goes.
        if let Some(path) = &self.path
            && let Err(error) = place::unmark(path)
        {
            tracing::warn!(
                "state {}: its marker was not removed: {error}; remove it with the closed file",
                self.location
            );
        }
        Ok(())
    }
}

/// The schema's version, of a file that is not the empty rest of a lost state.
fn known_version(
    connection: &Connection,
    location: &str,
    path: Option<&Path>,
) -> Result<usize, StoreError> {
    let version = || {
        schema::version(connection, || path.map(copy::way_back).unwrap_or_default())
            .map_err(|message| refused(location, message))
    };
    let found = version()?;
    let sign = path.filter(|_| found == 0).and_then(|path| Some((path, place::marked(path)?)));
    let Some((path, sign)) = sign else { return Ok(found) };
    // Another process may have made both since the first look: the tables come before the marker.
    match version()? {
        0 => Err(place::lost(path, &sign)),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests;
