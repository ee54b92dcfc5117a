//! The tables, how they came about, and whether a file is ours.

use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension};

use super::failure::explain;
use crate::store::upgrade;

/// A file is waited for so long while a process begins, and while a person gives a command. A slow disk makes a service that
/// runs hold it for seconds.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Marks the file as ours ("TPUW").
pub const APPLICATION_ID: i64 = 0x5450_5557;
/// Each entry brings the schema from its index to the next version.
pub const MIGRATIONS: [&str; 3] = [
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
/// The first schema with a lock and counters.
pub const LOCK_SCHEMA: usize = 2;

/// A value of the file about itself.
pub fn meta(connection: &Connection, key: &str) -> Result<Option<String>, rusqlite::Error> {
    connection
        .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
        .optional()
}

/// Sets a value of the file about itself.
pub fn set_meta(connection: &Connection, key: &str, value: &str) -> Result<(), rusqlite::Error> {
    connection
        .execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)", [key, value])
        .map(drop)
}

/// Turns the write-ahead log on. SQLite itself does not wait here: another process that begins
/// on a new file may be doing the same.
pub fn write_ahead(connection: &Connection) -> Result<(), rusqlite::Error> {
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

/// The schema version: 0 for a new file. Refuses what is newer or not ours; `way_back` tells how to
/// go back to a copy of an older one.
pub fn version(
    connection: &Connection,
    way_back: impl FnOnce() -> String,
) -> Result<usize, String> {
    // One view of the file: another process that begins may be writing its first tables.
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
        // A future schema may keep it elsewhere.
        let program = meta(connection, "program").ok().flatten();
        upgrade::newer(&version.to_string(), known, program.as_deref(), &way_back())
    })
}
