//! SQLite: the journal of a service with a disk. WAL with `synchronous=FULL`, so that a commit survives a power cut and
//! readers work beside a running service.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::{Store, StoreError, Stored};
use crate::model::action::Record;
use crate::model::event::Event;
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;

/// Marks the file as ours ("TPUW").
const APPLICATION_ID: i64 = 0x5450_5557;
/// Each entry brings the schema from its index to the next version.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE slot (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE spec (name TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
    CREATE TABLE ledger (id INTEGER PRIMARY KEY CHECK (id = 1), record TEXT NOT NULL) STRICT;
    CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, slot TEXT, event TEXT NOT NULL) STRICT;
"];
/// Events beyond this number are forgotten, oldest first.
const EVENTS_KEPT: i64 = 100_000;

/// A journal in one SQLite file, or in memory.
pub struct SqliteStore {
    connection: Connection,
    location: String,
    owner: String,
    // Held as long as the store is open for writing: a second service on the same file is refused.
    _lock: Option<File>,
}

impl SqliteStore {
    /// Opens for writing, and creates what is missing.
    ///
    /// # Errors
    /// When another process writes, or the file is newer, damaged or not ours.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let at = |message: String| StoreError { location: path.display().to_string(), message };
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|e| at(format!("its folder can't be made: {e}; create it or set `state`")))?;
        }
        let lock = lock(path).map_err(at)?;
        // Metadata may hold secrets: nobody else reads the file. SQLite gives its side files the same mode.
        File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| at(format!("it can't be opened: {e}; check its permissions and those of its folder")))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|e| at(format!("it can't be opened: {e}")))?;
        Self::prepare(connection, path.display().to_string(), Some(lock))
    }

    /// A journal that ends with the process.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn in_memory() -> Result<Self, StoreError> {
        let location = "memory:".to_owned();
        match Connection::open_in_memory() {
            Ok(connection) => Self::prepare(connection, location, None),
            Err(error) => Err(StoreError { location, message: error.to_string() }),
        }
    }

    /// Opens for reading beside a running service. `None` when there is no state yet.
    ///
    /// # Errors
    /// When the file is newer, damaged or not ours.
    pub fn open_read_only(path: &Path) -> Result<Option<Self>, StoreError> {
        if !path.exists() {
            return Ok(None);
        }
        let location = path.display().to_string();
        let at = |message: String| StoreError { location: location.clone(), message };
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(|e| at(explain(&e)))?;
        connection.busy_timeout(Duration::from_secs(5)).map_err(|e| at(explain(&e)))?;
        let version = version(&connection).map_err(&at)?;
        if version == 0 {
            return Ok(None);
        }
        let owner = owner(&connection).map_err(|e| at(explain(&e)))?.unwrap_or_default();
        Ok(Some(SqliteStore { connection, location, owner, _lock: None }))
    }

    fn prepare(mut connection: Connection, location: String, lock: Option<File>) -> Result<Self, StoreError> {
        let at = |message: String| StoreError { location: location.clone(), message };
        let sql = |e: rusqlite::Error| at(explain(&e));
        connection.busy_timeout(Duration::from_secs(5)).map_err(sql)?;
        let found = version(&connection).map_err(at)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(sql)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
        let transaction = connection.transaction().map_err(sql)?;
        for migration in &MIGRATIONS[found..] {
            transaction.execute_batch(migration).map_err(sql)?;
        }
        if found < MIGRATIONS.len() {
            transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(sql)?;
            transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64).map_err(sql)?;
        }
        if owner(&transaction).map_err(sql)?.is_none() {
            let made = format!("tpu-watchdog-{}", uuid::Uuid::new_v4());
            transaction.execute("INSERT INTO meta (key, value) VALUES ('owner', ?1)", [made]).map_err(sql)?;
        }
        transaction.commit().map_err(sql)?;
        let owner = owner(&connection).map_err(sql)?.unwrap_or_default();
        Ok(SqliteStore { connection, location, owner, _lock: lock })
    }

    /// The newest events, oldest first.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn events(&self, last: usize) -> Result<Vec<Event>, StoreError> {
        let query = || {
            let mut statement = self.connection.prepare("SELECT event FROM event ORDER BY id DESC LIMIT ?1")?;
            let rows = statement.query_map([last as i64], |row| row.get::<_, String>(0))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        let rows = query().map_err(|e| self.error(&e))?;
        Ok(rows.iter().rev().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    fn error(&self, error: &rusqlite::Error) -> StoreError {
        StoreError { location: self.location.clone(), message: explain(error) }
    }

    fn write(&mut self, records: &[Record], events: &[Event]) -> Result<(), rusqlite::Error> {
        let json =
            |value: Result<String, serde_json::Error>| value.map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)));
        let transaction = self.connection.transaction()?;
        for record in records {
            match record {
                Record::Slot(record) => transaction
                    .prepare_cached("INSERT OR REPLACE INTO slot (name, record) VALUES (?1, ?2)")?
                    .execute(params![record.name, json(serde_json::to_string(record))?])?,
                Record::Spec(name, body) => transaction
                    .prepare_cached("INSERT OR REPLACE INTO spec (name, body) VALUES (?1, ?2)")?
                    .execute(params![name, body.to_string()])?,
                Record::Removed(name) => {
                    transaction.execute("DELETE FROM spec WHERE name = ?1", [name])?;
                    transaction.execute("DELETE FROM slot WHERE name = ?1", [name])?
                }
                Record::Ledger(ledger) => transaction
                    .prepare_cached("INSERT OR REPLACE INTO ledger (id, record) VALUES (1, ?1)")?
                    .execute([json(serde_json::to_string(ledger))?])?,
            };
        }
        for event in events {
            transaction
                .prepare_cached("INSERT INTO event (slot, event) VALUES (?1, ?2)")?
                .execute(params![event.slot, json(serde_json::to_string(event))?])?;
        }
        if !events.is_empty() {
            transaction
                .prepare_cached("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?1")?
                .execute([EVENTS_KEPT])?;
        }
        transaction.commit()
    }
}

impl Store for SqliteStore {
    fn owner(&self) -> &str {
        &self.owner
    }

    fn load(&self) -> Result<Stored, StoreError> {
        let damaged = |what: &str, error: serde_json::Error| StoreError {
            location: self.location.clone(),
            message: format!(
                "{what} is damaged ({error}); nothing was changed. Restore a backup, or move the file away to start anew"
            ),
        };
        let rows = |table: &str, column: &str| -> Result<Vec<(String, String)>, rusqlite::Error> {
            let mut statement = self.connection.prepare(&format!("SELECT name, {column} FROM {table}"))?;
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        let mut stored = Stored::default();
        for (name, text) in rows("slot", "record").map_err(|e| self.error(&e))? {
            let record: SlotRecord = serde_json::from_str(&text).map_err(|e| damaged(&format!("the record of {name}"), e))?;
            stored.slots.insert(name, record);
        }
        for (name, text) in rows("spec", "body").map_err(|e| self.error(&e))? {
            let spec: NodeSpec = serde_json::from_str(&text).map_err(|e| damaged(&format!("the specification of {name}"), e))?;
            if let Some(record) = stored.slots.get_mut(&name) {
                record.spec = Some(spec);
            }
        }
        let ledger: Option<String> = self
            .connection
            .query_row("SELECT record FROM ledger", [], |row| row.get(0))
            .optional()
            .map_err(|e| self.error(&e))?;
        if let Some(text) = ledger {
            stored.ledger = serde_json::from_str(&text).map_err(|e| damaged("the ledger", e))?;
        }
        Ok(stored)
    }

    fn commit(&mut self, records: &[Record], events: &[Event]) -> Result<(), StoreError> {
        self.write(records, events).map_err(|e| self.error(&e))
    }
}

fn owner(connection: &Connection) -> Result<Option<String>, rusqlite::Error> {
    connection.query_row("SELECT value FROM meta WHERE key = 'owner'", [], |row| row.get(0)).optional()
}

/// The schema version: 0 for a new file. Refuses what is newer or not ours.
fn version(connection: &Connection) -> Result<usize, String> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(|e| explain(&e));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).map_err(|e| explain(&e))?;
    if application != APPLICATION_ID && (tables > 0 || application != 0) {
        return Err("it is a database of another program; nothing was changed. Set `state` to another file".into());
    }
    let known = MIGRATIONS.len();
    usize::try_from(version).ok().filter(|v| *v <= known).ok_or_else(|| {
        format!("its schema version is {version}, this program knows up to {known}; nothing was changed. Install the newer tpu-watchdog again")
    })
}

fn lock(path: &Path) -> Result<File, String> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&name)
        .map_err(|e| format!("{} can't be opened: {e}", name.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err("another tpu-watchdog is at work with it; stop that one first (`status` and `plan` work beside it)".into())
        }
        Err(TryLockError::Error(error)) => Err(format!("{} can't be locked: {error}", name.display())),
    }
}

fn explain(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode::*;
    let advice = match error.sqlite_error_code() {
        Some(DiskFull) => "the disk is full: free some space; nothing is done to any TPU until then",
        Some(DatabaseCorrupt | NotADatabase) => {
            "it is damaged or not a database; nothing was changed. Restore a backup, or move it away to start anew"
        }
        Some(ReadOnly | CannotOpen | PermissionDenied) => "check its permissions and those of its folder",
        Some(DatabaseBusy | DatabaseLocked) => "another process holds it",
        _ => "nothing is done to any TPU until it works again",
    };
    format!("{error}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::What;
    use crate::model::fleet::Ledger;
    use jiff::Timestamp;

    fn slot(name: &str) -> SlotRecord {
        SlotRecord::new(name, "z", Timestamp::UNIX_EPOCH)
    }

    fn event(message: &str) -> Event {
        Event { at: Timestamp::UNIX_EPOCH, slot: Some("a".into()), message: message.into(), what: What::Note }
    }

    #[test]
    fn what_was_committed_is_there_after_reopening_and_the_owner_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/state.db");
        let mut store = SqliteStore::open(&path).unwrap();
        let owner = store.owner().to_owned();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "metadata may hold secrets");
        let body = serde_json::json!({"acceleratorType": "v4-8", "unknown": [1]});
        let ledger = Ledger { beacons_seen: true, ..Ledger::default() };
        let records =
            [Record::Slot(Box::new(slot("a"))), Record::Spec("a".into(), body.clone()), Record::Ledger(Box::new(ledger))];
        store.commit(&records, &[event("one"), event("two")]).unwrap();
        let beside = SqliteStore::open_read_only(&path).unwrap().unwrap();
        assert_eq!(beside.load().unwrap().slots.len(), 1);
        assert!(SqliteStore::open(&path).err().unwrap().message.contains("another tpu-watchdog is at work"));
        drop((store, beside));
        let store = SqliteStore::open(&path).unwrap();
        let stored = store.load().unwrap();
        assert_eq!(store.owner(), owner);
        assert_eq!(serde_json::Value::Object(stored.slots["a"].spec.as_ref().unwrap().body().clone()), body);
        assert!(stored.ledger.beacons_seen);
        assert_eq!(store.events(1).unwrap()[0].message, "two");
    }

    #[test]
    fn a_newer_an_alien_and_a_torn_file_are_refused_and_left_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, words: &str| {
            let path = folder.path().join(name);
            let before = std::fs::read(&path).unwrap();
            let error = SqliteStore::open(&path).err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
        };
        let newer = Connection::open(folder.path().join("newer.db")).unwrap();
        newer
            .execute_batch(&format!("PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=99; CREATE TABLE t(a);"))
            .unwrap();
        drop(newer);
        refused("newer.db", "schema version is 99");
        Connection::open(folder.path().join("alien.db")).unwrap().execute_batch("CREATE TABLE t(a);").unwrap();
        refused("alien.db", "another program");
        std::fs::write(folder.path().join("torn.db"), vec![7u8; 5000]).unwrap();
        refused("torn.db", "damaged or not a database");
    }

    #[test]
    fn a_full_disk_refuses_the_commit_and_keeps_what_was_there() {
        let mut store = SqliteStore::in_memory().unwrap();
        store.commit(&[Record::Slot(Box::new(slot("a")))], &[]).unwrap();
        let pages: i64 = store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        store.connection.pragma_update(None, "max_page_count", pages).unwrap();
        let large = Record::Spec("a".into(), serde_json::json!({"x": "y".repeat(100_000)}));
        let error = store.commit(&[large, Record::Removed("a".into())], &[]).unwrap_err();
        assert!(error.message.contains("the disk is full"), "{error}");
        assert_eq!(store.load().unwrap().slots.len(), 1);
    }

    #[test]
    fn a_damaged_record_is_named() {
        let store = SqliteStore::in_memory().unwrap();
        store.connection.execute("INSERT INTO slot VALUES ('a', '{\"name\":')", []).unwrap();
        assert!(store.load().unwrap_err().message.contains("the record of a is damaged"));
    }
}
