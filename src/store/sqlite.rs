//! SQLite: the journal of a service with a disk. WAL with `synchronous=FULL`, so that a commit
//! survives a power cut and readers work beside a running service.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};
use serde::de::DeserializeOwned;

use super::{Batch, Store, StoreError, StoreFailure, Stored, fenced, moved};
use crate::model::action::Record;
use crate::model::event::Event;
use crate::model::lease::Lease;
use crate::model::lever::Lever;
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;

/// Marks the file as ours ("TPUW").
const APPLICATION_ID: i64 = 0x5450_5557;
/// Each entry brings the schema from its index to the next version.
const MIGRATIONS: [&str; 3] = [
    "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE slot (name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE spec (name TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
    CREATE TABLE ledger (id INTEGER PRIMARY KEY CHECK (id = 1), record TEXT NOT NULL) STRICT;
    CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, slot TEXT, event TEXT NOT NULL) STRICT;
",
    "
    CREATE TABLE lease (id INTEGER PRIMARY KEY CHECK (id = 1), record TEXT NOT NULL) STRICT;
    CREATE TABLE tally (key TEXT PRIMARY KEY, sum TEXT NOT NULL) STRICT;
",
    "
    CREATE TABLE lever (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, record TEXT NOT NULL) STRICT;
",
];
/// Events beyond this number are forgotten, oldest first.
const EVENTS_KEPT: i64 = 100_000;
/// Another process's transaction is waited for this long, and everything else of this one waits
/// with it.
const BUSY: Duration = Duration::from_millis(500);
/// The same where nothing else waits: while a process begins, and while a person pulls a lever. A
/// slow disk makes a service that runs hold the file for seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first schema with a lock and counters.
const LOCK_SCHEMA: usize = 2;
const NOT_EMPTY: &str = "there is state here already; nothing was changed. Give an empty place";

/// A journal in one SQLite file, or in memory.
pub struct SqliteStore {
    connection: Connection,
    location: String,
    owner: String,
    // Less than the newest only where it is read alone, beside an older program.
    schema: usize,
    // The tenure that `take` began.
    held: Option<(String, u64)>,
}

impl SqliteStore {
    /// Opens for writing, and creates what is missing.
    ///
    /// # Errors
    /// When the file is newer, damaged or not ours, or its state has moved.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let location = path.display().to_string();
        let at = |message: String| StoreError {
            failure: StoreFailure::Refused,
            location: location.clone(),
            message,
        };
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| {
                at(format!("its folder can't be made: {e}; create it or set `state`"))
            })?;
        }
        // Metadata may hold secrets: nobody else reads the file. SQLite gives its side files the
        // same mode.
        File::options().create(true).append(true).mode(0o600).open(path).map_err(|e| {
            at(format!("it can't be opened: {e}; check its permissions and those of its folder"))
        })?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|e| at(format!("it can't be opened: {e}")))?;
        Self::prepare(connection, location)
    }

    /// A journal that ends with the process.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn in_memory() -> Result<Self, StoreError> {
        let location = "memory:".to_owned();
        match Connection::open_in_memory() {
            Ok(connection) => Self::prepare(connection, location),
            Err(error) => Err(StoreError {
                failure: StoreFailure::Refused,
                location,
                message: error.to_string(),
            }),
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
        let sql = |e: rusqlite::Error| error(&location, &e);
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .map_err(sql)?;
        connection.busy_timeout(PATIENCE).map_err(sql)?;
        let found = version(&connection).map_err(|message| StoreError {
            failure: StoreFailure::Refused,
            location: location.clone(),
            message,
        })?;
        if found == 0 {
            return Ok(None);
        }
        if let Some(to) = meta(&connection, "moved_to").map_err(sql)? {
            return Err(StoreError {
                failure: StoreFailure::Refused,
                location,
                message: moved(&to),
            });
        }
        let owner = meta(&connection, "owner").map_err(sql)?.unwrap_or_default();
        Ok(Some(SqliteStore { connection, location, owner, schema: found, held: None }))
    }

    fn prepare(mut connection: Connection, location: String) -> Result<Self, StoreError> {
        let sql = |e: rusqlite::Error| error(&location, &e);
        let refused = |message: String| StoreError {
            failure: StoreFailure::Refused,
            location: location.clone(),
            message,
        };
        connection.busy_timeout(PATIENCE).map_err(sql)?;
        version(&connection).map_err(refused)?;
        write_ahead(&connection).map_err(sql)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql)?;
        // Another process may have brought it up to date just now.
        let found = version(&transaction).map_err(refused)?;
        for migration in &MIGRATIONS[found..] {
            transaction.execute_batch(migration).map_err(sql)?;
        }
        if found < MIGRATIONS.len() {
            transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(sql)?;
            transaction
                .pragma_update(None, "user_version", MIGRATIONS.len() as i64)
                .map_err(sql)?;
        }
        if let Some(to) = meta(&transaction, "moved_to").map_err(sql)? {
            return Err(refused(moved(&to)));
        }
        if meta(&transaction, "owner").map_err(sql)?.is_none() {
            let made = format!("tpu-watchdog-{}", uuid::Uuid::new_v4());
            transaction
                .execute("INSERT INTO meta (key, value) VALUES ('owner', ?1)", [made])
                .map_err(sql)?;
        }
        transaction.commit().map_err(sql)?;
        let owner = meta(&connection, "owner").map_err(sql)?.unwrap_or_default();
        connection.busy_timeout(BUSY).map_err(sql)?;
        Ok(SqliteStore { connection, location, owner, schema: MIGRATIONS.len(), held: None })
    }

    /// One transaction that begins with the lock: `then` sees the lease as it is, and gives the one
    /// to leave behind.
    fn locked<T>(
        &mut self,
        then: impl FnOnce(&Transaction, Option<Lease>) -> Result<(Lease, T), Refusal>,
    ) -> Result<T, StoreError> {
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
        write().map_err(|refusal: Refusal| {
            let (failure, message) = match refusal {
                Refusal::Sql(e) => return error(&self.location, &e),
                Refusal::Fenced(lease) => (StoreFailure::Fenced, fenced(lease.as_ref())),
                Refusal::Moved(to) => (StoreFailure::Refused, moved(&to)),
                Refusal::Damaged(e) => (StoreFailure::Refused, damaged("the lock", &e)),
                Refusal::NotEmpty => (StoreFailure::Refused, NOT_EMPTY.to_owned()),
            };
            StoreError { failure, location: self.location.clone(), message }
        })
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

/// Why nothing was written.
enum Refusal {
    Sql(rusqlite::Error),
    Fenced(Option<Lease>),
    Moved(String),
    Damaged(serde_json::Error),
    NotEmpty,
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Refusal::Sql(error)
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
        let location = self.location.clone();
        let sql = |e: rusqlite::Error| error(&location, &e);
        // One transaction: what it shows belongs together.
        let transaction = self.connection.transaction().map_err(sql)?;
        let rows = |query: &str| -> Result<Vec<(String, String)>, rusqlite::Error> {
            let mut statement = transaction.prepare(query)?;
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        let mut stored = Stored { owner: self.owner.clone(), ..Stored::default() };
        for (name, text) in rows("SELECT name, record FROM slot").map_err(sql)? {
            let record: SlotRecord = parse(&location, &format!("the record of {name}"), &text)?;
            stored.slots.insert(name, record);
        }
        for (name, text) in rows("SELECT name, body FROM spec").map_err(sql)? {
            let spec: NodeSpec = parse(&location, &format!("the specification of {name}"), &text)?;
            if let Some(record) = stored.slots.get_mut(&name) {
                record.spec = Some(spec);
            }
        }
        for (_, text) in rows("SELECT id || '', record FROM ledger").map_err(sql)? {
            stored.ledger = parse(&location, "the ledger", &text)?;
        }
        if self.schema < LOCK_SCHEMA {
            return Ok(stored);
        }
        for (key, text) in rows("SELECT key, sum FROM tally").map_err(sql)? {
            stored.tally.insert(key, parse(&location, "a counter", &text)?);
        }
        for (_, text) in rows("SELECT id || '', record FROM lease").map_err(sql)? {
            stored.lease = Some(parse(&location, "the lock", &text)?);
        }
        Ok(stored)
    }

    async fn take(
        &mut self,
        seen: Option<&Lease>,
        holder: &str,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let next = Lease::next(seen, holder, ttl);
        let taken = self.locked(|_, found| match found.as_ref() == seen {
            true => Ok((next.clone(), ())),
            false => Err(Refusal::Fenced(found)),
        });
        match taken {
            Ok(()) => {
                self.held = Some((next.holder, next.epoch));
                Ok(true)
            }
            Err(error) if error.failure == StoreFailure::Fenced => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.held(false, |transaction| write(transaction, batch))
    }

    async fn release(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.held(true, |transaction| write(transaction, batch))?;
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

    async fn pull(&mut self, lever: &Lever) -> Result<(), StoreError> {
        let put = || {
            let record = json(lever)?;
            self.connection.busy_timeout(PATIENCE)?;
            self.connection.execute(
                "INSERT OR IGNORE INTO lever (id, record) VALUES (?1, ?2)",
                params![lever.id, record],
            )
        };
        put().map(drop).map_err(|e| error(&self.location, &e))
    }

    async fn levers(&mut self) -> Result<Vec<Lever>, StoreError> {
        let query = || {
            let mut statement = self
                .connection
                .prepare_cached("SELECT number, record FROM lever ORDER BY number")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        let rows = query().map_err(|e| error(&self.location, &e))?;
        let lever = |(number, text): &(i64, String)| match serde_json::from_str(text) {
            Ok(lever) => Some(lever),
            Err(error) => {
                tracing::error!(
                    "state {}: row {number} of table lever is no lever ({error}); delete it",
                    self.location
                );
                None
            }
        };
        Ok(rows.iter().filter_map(lever).collect())
    }

    fn blocks(&self) -> bool {
        true
    }

    async fn adopt(&mut self, owner: &str, batch: &Batch) -> Result<(), StoreError> {
        self.held(false, |transaction| {
            let rows: i64 =
                transaction.query_row("SELECT count(*) FROM slot", [], |row| row.get(0))?;
            // What an interrupted move left behind is its own.
            if rows > 0 && meta(transaction, "owner")?.as_deref() != Some(owner) {
                return Err(Refusal::NotEmpty);
            }
            for table in ["spec", "slot", "ledger", "event", "tally"] {
                transaction.execute(&format!("DELETE FROM {table}"), [])?;
            }
            transaction.execute("UPDATE meta SET value = ?1 WHERE key = 'owner'", [owner])?;
            write(transaction, batch)
        })?;
        self.owner = owner.to_owned();
        Ok(())
    }

    async fn leave_for(&mut self, location: &str) -> Result<(), StoreError> {
        self.held(true, |transaction| {
            transaction.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('moved_to', ?1)",
                [location],
            )?;
            Ok(())
        })
    }
}

fn write(transaction: &Transaction, batch: &Batch) -> Result<(), Refusal> {
    for record in &batch.records {
        match record {
            Record::Slot(record) => transaction
                .prepare_cached("INSERT OR REPLACE INTO slot (name, record) VALUES (?1, ?2)")?
                .execute(params![record.name, json(record)?])?,
            Record::Spec(name, body) => transaction
                .prepare_cached("INSERT OR REPLACE INTO spec (name, body) VALUES (?1, ?2)")?
                .execute(params![name, body.to_string()])?,
            Record::Removed(name) => {
                transaction.execute("DELETE FROM spec WHERE name = ?1", [name])?;
                transaction.execute("DELETE FROM slot WHERE name = ?1", [name])?
            }
            Record::Pulled(id) => transaction.execute("DELETE FROM lever WHERE id = ?1", [id])?,
            Record::Ledger(ledger) => transaction
                .prepare_cached("INSERT OR REPLACE INTO ledger (id, record) VALUES (1, ?1)")?
                .execute([json(ledger)?])?,
        };
    }
    for event in &batch.events {
        transaction
            .prepare_cached("INSERT INTO event (slot, event) VALUES (?1, ?2)")?
            .execute(params![event.slot, json(event)?])?;
    }
    if !batch.events.is_empty() {
        transaction
            .prepare_cached("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?1")?
            .execute([EVENTS_KEPT])?;
    }
    for (key, sum) in &batch.tally {
        transaction
            .prepare_cached("INSERT OR REPLACE INTO tally (key, sum) VALUES (?1, ?2)")?
            .execute(params![key, json(sum)?])?;
    }
    Ok(())
}

fn json(value: &impl serde::Serialize) -> Result<String, rusqlite::Error> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}

fn parse<T: DeserializeOwned>(location: &str, what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError {
        failure: StoreFailure::Refused,
        location: location.to_owned(),
        message: damaged(what, &e),
    })
}

fn damaged(what: &str, error: &serde_json::Error) -> String {
    format!(
        "{what} is damaged ({error}); nothing was changed. Restore a backup, or move the file away to start anew"
    )
}

fn meta(connection: &Connection, key: &str) -> Result<Option<String>, rusqlite::Error> {
    connection
        .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
        .optional()
}

/// Turns the write-ahead log on. SQLite itself waits for nobody here: another process that begins
/// on a new file may be doing the same.
fn write_ahead(connection: &Connection) -> Result<(), rusqlite::Error> {
    let began = Instant::now();
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(e)
                if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                    && began.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// The schema version: 0 for a new file. Refuses what is newer or not ours.
fn version(connection: &Connection) -> Result<usize, String> {
    // One view of the file: somebody else who begins on a new one may be writing its first tables.
    let _view = connection
        .is_autocommit()
        .then(|| connection.unchecked_transaction())
        .transpose()
        .map_err(|e| explain(&e))?;
    let pragma = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(|e| explain(&e))
    };
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(|e| explain(&e))?;
    if application != APPLICATION_ID && (tables > 0 || application != 0) {
        return Err(
            "it is a database of another program; nothing was changed. Set `state` to another file"
                .into(),
        );
    }
    let known = MIGRATIONS.len();
    usize::try_from(version).ok().filter(|v| *v <= known).ok_or_else(|| {
        format!("its schema version is {version}, this program knows up to {known}; nothing was changed. Install the newer tpu-watchdog again")
    })
}

fn error(location: &str, error: &rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let refused = matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase));
    let failure = if refused { StoreFailure::Refused } else { StoreFailure::Unavailable };
    StoreError { failure, location: location.to_owned(), message: explain(error) }
}

fn explain(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode::*;
    let advice = match error.sqlite_error_code() {
        Some(DiskFull) => {
            "the disk is full: free some space; nothing is done to any TPU until then"
        }
        Some(DatabaseCorrupt | NotADatabase) => {
            "it is damaged or not a database; nothing was changed. Restore a backup, or move it away to start anew"
        }
        Some(ReadOnly | CannotOpen | PermissionDenied) => {
            "check its permissions and those of its folder"
        }
        Some(DatabaseBusy | DatabaseLocked) => "another process holds it",
        _ => "nothing is done to any TPU until it works again",
    };
    format!("{error}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn slot(name: &str) -> SlotRecord {
        SlotRecord::new(name, "z", Timestamp::UNIX_EPOCH)
    }

    async fn held(mut store: SqliteStore) -> SqliteStore {
        assert!(store.take(None, "me", Duration::from_secs(30)).await.unwrap());
        store
    }

    fn batch(records: Vec<Record>) -> Batch {
        Batch { records, ..Batch::default() }
    }

    #[tokio::test]
    async fn the_file_is_for_its_owners_eyes_alone_and_read_beside_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/state.db");
        let mut store = held(SqliteStore::open(&path).unwrap()).await;
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "metadata may hold secrets");
        store.commit(&batch(vec![Record::Slot(Box::new(slot("a")))])).await.unwrap();
        let mut beside = SqliteStore::open_read_only(&path).unwrap().unwrap();
        assert_eq!(beside.load().await.unwrap().slots.len(), 1);
        assert!(SqliteStore::open_read_only(&folder.path().join("none.db")).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_file_of_the_former_version_is_read_as_it_is_and_brought_up_to_date_when_it_is_written()
     {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(MIGRATIONS[0]).unwrap();
        let record = serde_json::to_string(&slot("a")).unwrap();
        old.execute_batch(&format!(
            "PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=1; INSERT INTO meta VALUES ('owner', 'o');
             INSERT INTO slot VALUES ('a', '{record}');"
        ))
        .unwrap();
        let mut looking = SqliteStore::open_read_only(&path).unwrap().unwrap();
        assert_eq!(looking.load().await.unwrap().slots.len(), 1);
        let mut store = held(SqliteStore::open(&path).unwrap()).await;
        assert_eq!(store.load().await.unwrap().slots.len(), 1);
        assert_eq!(store.owner(), "o");
    }

    #[tokio::test]
    async fn a_process_that_begins_and_a_person_wait_for_a_writer_on_a_slow_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let mut persons = SqliteStore::open(&path).unwrap();
        let lever = Lever {
            id: "1".into(),
            at: Timestamp::UNIX_EPOCH,
            who: "ada".into(),
            reason: None,
            pull: crate::model::lever::Pull::Pause { slot: None, until: None },
        };
        for pulls in [false, true] {
            let writer = Connection::open(&path).unwrap();
            writer.execute_batch("BEGIN IMMEDIATE").unwrap();
            let slow = std::thread::spawn(move || {
                std::thread::sleep(BUSY * 2);
                writer.execute_batch("COMMIT").unwrap();
            });
            match pulls {
                true => persons.pull(&lever).await.unwrap(),
                false => drop(SqliteStore::open(&path).unwrap()),
            }
            slow.join().unwrap();
        }
        let newer = "INSERT INTO lever (id, record) VALUES ('2', '{\"pull\": \"of the future\"}')";
        Connection::open(&path).unwrap().execute_batch(newer).unwrap();
        assert_eq!(persons.levers().await.unwrap(), [lever], "what is no lever hides none");
    }

    #[test]
    fn processes_that_begin_at_once_on_a_new_file_all_find_it_theirs() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..100 {
            let (path, start) =
                (folder.path().join(format!("{round}.db")), std::sync::Barrier::new(4));
            let begin = |_| {
                start.wait();
                SqliteStore::open(&path).map(|store| store.owner).map_err(|e| e.to_string())
            };
            let owners: Vec<Result<String, String>> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..4).map(|index| scope.spawn(move || begin(index))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(owners.iter().all(|owner| owner.is_ok() && *owner == owners[0]), "{owners:?}");
        }
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
            .execute_batch(&format!(
                "PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=99; CREATE TABLE t(a);"
            ))
            .unwrap();
        drop(newer);
        refused("newer.db", "schema version is 99");
        Connection::open(folder.path().join("alien.db"))
            .unwrap()
            .execute_batch("CREATE TABLE t(a);")
            .unwrap();
        refused("alien.db", "another program");
        std::fs::write(folder.path().join("torn.db"), vec![7u8; 5000]).unwrap();
        refused("torn.db", "damaged or not a database");
    }

    #[tokio::test]
    async fn a_full_disk_refuses_the_commit_and_keeps_what_was_there() {
        let mut store = held(SqliteStore::in_memory().unwrap()).await;
        store.commit(&batch(vec![Record::Slot(Box::new(slot("a")))])).await.unwrap();
        let pages: i64 =
            store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        store.connection.pragma_update(None, "max_page_count", pages).unwrap();
        let large = Record::Spec("a".into(), serde_json::json!({"x": "y".repeat(100_000)}));
        let error =
            store.commit(&batch(vec![large, Record::Removed("a".into())])).await.unwrap_err();
        assert!(error.message.contains("the disk is full"), "{error}");
        assert_eq!(error.failure, StoreFailure::Unavailable);
        assert_eq!(store.load().await.unwrap().slots.len(), 1);
    }

    #[tokio::test]
    async fn a_damaged_record_is_named() {
        let mut store = SqliteStore::in_memory().unwrap();
        store.connection.execute("INSERT INTO slot VALUES ('a', '{\"name\":')", []).unwrap();
        assert!(store.load().await.unwrap_err().message.contains("the record of a is damaged"));
    }
}
