//! Reading and writing the rows.

use rusqlite::{Connection, Transaction, params};

use super::failure::{Refusal, error, json, parse};
use super::schema::LOCK_SCHEMA;
use crate::model::action::Record;
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::tally;
use crate::store::{Batch, StoreError, Stored};

/// Events beyond this number are forgotten, oldest first.
const EVENTS_KEPT: i64 = 100_000;

/// Everything that a file of this schema holds.
pub fn load(
    connection: &mut Connection,
    location: &str,
    owner: &str,
    schema: usize,
) -> Result<Stored, StoreError> {
    let sql = |e: rusqlite::Error| error(location, &e);
    // One transaction: what it shows belongs together.
    let transaction = connection.transaction().map_err(sql)?;
    let rows = |query: &str| -> Result<Vec<(String, String)>, rusqlite::Error> {
        let mut statement = transaction.prepare(query)?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    let mut stored = Stored { owner: owner.to_owned(), ..Stored::default() };
    for (name, text) in rows("SELECT name, record FROM slot").map_err(sql)? {
        let record: SlotRecord = parse(location, &format!("the record of {name}"), &text)?;
        stored.slots.insert(name, record);
    }
    for (name, text) in rows("SELECT name, body FROM spec").map_err(sql)? {
        let spec: NodeSpec = parse(location, &format!("the specification of {name}"), &text)?;
        if let Some(record) = stored.slots.get_mut(&name) {
            record.spec = Some(spec);
        }
    }
    for (_, text) in rows("SELECT id || '', record FROM ledger").map_err(sql)? {
        stored.ledger = parse(location, "the ledger", &text)?;
    }
    if schema < LOCK_SCHEMA {
        return Ok(stored);
    }
    for (key, text) in rows("SELECT key, sum FROM tally").map_err(sql)? {
        stored.tally.insert(key, parse(location, "a counter", &text)?);
    }
    for (_, text) in rows("SELECT id || '', record FROM lease").map_err(sql)? {
        stored.lease = Some(parse(location, "the lock", &text)?);
    }
    Ok(stored)
}

/// The counters of a slot end with it.
fn forget_sums(transaction: &Transaction, slot: &str) -> Result<(), Refusal> {
    let mut query = transaction.prepare_cached("SELECT key FROM tally")?;
    let keys: Vec<String> = query.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for key in keys.iter().filter(|key| tally::is_of(key, slot)) {
        transaction.execute("DELETE FROM tally WHERE key = ?1", [key])?;
    }
    Ok(())
}

/// Writes a batch.
pub fn write(transaction: &Transaction, batch: &Batch) -> Result<(), Refusal> {
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
                forget_sums(transaction, name)?;
                transaction.execute("DELETE FROM slot WHERE name = ?1", [name])?
            }
            Record::CommandDone(id) => {
                transaction.execute("DELETE FROM lever WHERE id = ?1", [id])?
            }
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
