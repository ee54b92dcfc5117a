//! The state object: its shape, what a batch makes of it, and reading it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, UpdateVersion};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::action::Record;
use crate::model::event::Event;
use crate::model::lease::Lease;
use crate::model::tally::{self, Tally};
use crate::store::{Batch, StoreError, StoreFailure, upgrade};

/// Marks the object as ours.
const FORMAT: &str = "tpu-watchdog state";
/// The newest shape of the state object.
pub const SCHEMA: u32 = 1;
/// Beyond this many events in the outbox the oldest are dropped: their objects can't be written,
/// but the state can.
const OUTBOX_MAX: usize = 5_000;

/// The state object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Document {
    pub format: String,
    pub schema: u32,
    /// The version of the program that last took the lock.
    #[serde(default)]
    pub program: Option<String>,
    pub owner: String,
    #[serde(default)]
    pub moved_to: Option<String>,
    /// By the writer's clock.
    pub written_at: Timestamp,
    /// Who wrote it, and which of its writes it is: tells a lost answer from another's write.
    pub writer: String,
    pub sequence: u64,
    pub lease: Option<Lease>,
    pub slots: BTreeMap<String, Value>,
    pub specs: BTreeMap<String, Value>,
    pub ledger: Value,
    pub tally: Tally,
    /// Events without an object of their own yet, by the name that it will have.
    pub outbox: BTreeMap<String, Vec<Event>>,
    /// Commands that have worked and whose objects may still be there.
    #[serde(rename = "pulled", default)]
    pub done: BTreeSet<String>,
}

impl Document {
    /// Of a state that nothing was written to.
    pub fn new(writer: &str) -> Self {
        Document {
            format: FORMAT.to_owned(),
            schema: SCHEMA,
            program: Some(upgrade::PROGRAM.to_owned()),
            owner: format!("tpu-watchdog-{}", uuid::Uuid::new_v4()),
            moved_to: None,
            // A new object was not written within the last second: the first lock need not wait.
            written_at: Timestamp::UNIX_EPOCH,
            writer: writer.to_owned(),
            sequence: 0,
            lease: None,
            slots: BTreeMap::new(),
            specs: BTreeMap::new(),
            ledger: Value::Object(serde_json::Map::new()),
            tally: Tally::new(),
            outbox: BTreeMap::new(),
            done: BTreeSet::new(),
        }
    }

    /// Whether an older program wrote it last.
    pub fn is_from_before(&self) -> bool {
        self.schema < SCHEMA || upgrade::is_from_before(self.program.as_deref())
    }

    /// Applies a batch. Events in `flushed` have objects of their own, commands in `removed` were not
    /// listed any longer.
    pub fn apply(
        &mut self,
        batch: &Batch,
        flushed: &BTreeSet<String>,
        removed: &BTreeSet<String>,
        location: &str,
    ) -> Result<(), serde_json::Error> {
        if let Some(lease) = &mut self.lease {
            lease.renewals += 1;
        }
        for record in &batch.records {
            match record {
                Record::Slot(record) => {
                    self.slots.insert(record.name.clone(), serde_json::to_value(record)?);
                }
                Record::Spec(name, body) => {
                    self.specs.insert(name.clone(), body.clone());
                }
                Record::Removed(name) => {
                    self.slots.remove(name);
                    self.specs.remove(name);
                    self.tally.retain(|key, _| !tally::is_of(key, name));
                }
                Record::CommandDone(id) => {
                    self.done.insert(id.clone());
                }
                Record::Ledger(ledger) => self.ledger = serde_json::to_value(ledger)?,
            }
        }
        self.tally.extend(batch.tally.iter().cloned());
        self.outbox.retain(|name, _| !flushed.contains(name));
        // Only a command that a listing no longer showed can't work twice.
        self.done.retain(|id| !removed.contains(id));
        if let Some(first) = batch.events.first() {
            let epoch = self.lease.as_ref().map_or(0, |l| l.epoch);
            let day = first.at.strftime("%Y-%m-%d");
            let name = format!("{day}/{:.3}-{epoch:06}-{:08}.jsonl", first.at, self.sequence + 1);
            self.outbox.insert(name, batch.events.clone());
        }
        while self.outbox.len() > 1
            && self.outbox.values().map(Vec::len).sum::<usize>() > OUTBOX_MAX
        {
            self.outbox.pop_first();
            tracing::warn!("state {location}: events can't be written; the oldest are dropped");
        }
        Ok(())
    }
}

/// The answer to a read of the state object.
pub enum Read {
    Found(Box<Document>, UpdateVersion),
    Unchanged,
    Absent,
}

/// Reads the state object, unless it is as `known`.
pub async fn read(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
    known: Option<String>,
) -> Result<Read, StoreError> {
    let path = object(prefix);
    let options = GetOptions { if_none_match: known, ..GetOptions::default() };
    let found = match client.get_opts(&path, options).await {
        Ok(found) => found,
        Err(Error::NotModified { .. }) => return Ok(Read::Unchanged),
        Err(Error::NotFound { .. }) => return Ok(Read::Absent),
        Err(error) => return Err(unread(location, error)),
    };
    let version =
        UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    let bytes = found.bytes().await.map_err(|e| unread(location, e))?;
    let refused =
        |message: String| refused(location, format!("{path} {message}; nothing was changed"));
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| {
        refused(format!(
            "is torn or not ours ({e}): restore an older generation, or use another prefix"
        ))
    })?;
    if value["format"] != FORMAT {
        return Err(refused("was not written by tpu-watchdog: use another prefix".into()));
    }
    match value["schema"].as_u64() {
        Some(schema) if schema <= u64::from(SCHEMA) => {}
        schema => {
            let schema = schema.map_or("unknown".to_owned(), |s| s.to_string());
            let back = way_back(client, prefix, location).await;
            let program = value["program"].as_str();
            let message = upgrade::newer(&schema, SCHEMA, program, &back);
            return Err(self::refused(location, message));
        }
    }
    let document = serde_json::from_value(value)
        .map_err(|e| refused(format!("is damaged ({e}): restore an older generation")))?;
    Ok(Read::Found(Box::new(document), version))
}

/// Copies that upgrades kept, by the ending of their names; none where they can't be listed.
pub async fn copies(client: &dyn ObjectStore, prefix: &Path) -> Vec<String> {
    let listed = client.list_with_delimiter(Some(prefix)).await;
    let objects = listed.map(|listed| listed.objects).unwrap_or_default();
    let ending =
        |name: &str| name.strip_prefix("state.").filter(|e| e.starts_with('v')).map(Into::into);
    objects.iter().filter_map(|object| ending(object.location.filename()?)).collect()
}

/// The steps that lead back from a newer version's object to a copy.
async fn way_back(client: &dyn ObjectStore, prefix: &Path, location: &str) -> String {
    let copies = copies(client, prefix).await;
    let steps = format!("stop every tpu-watchdog, copy {location}/state.json away");
    match upgrade::best(copies.iter().map(String::as_str), u64::from(SCHEMA)) {
        Some(ending) => format!(
            "{steps}, copy {location}/state.{ending} over it, start this version. The copy was kept when a newer version took over; what was recorded since then is lost"
        ),
        None => format!(
            "{steps}, restore an older generation of it (no copy that this version can read was found as {location}/state.v…), start this version"
        ),
    }
}

/// A state that an operator has to put right.
pub fn refused(location: &str, message: String) -> StoreError {
    StoreError { failure: StoreFailure::Refused, location: location.to_owned(), message }
}

/// A bucket that does not do it now.
pub fn unavailable(location: &str, message: &str) -> StoreError {
    let message = format!("{message}; nothing is done to any TPU until it works again");
    StoreError { failure: StoreFailure::Unavailable, location: location.to_owned(), message }
}

/// A read that failed.
pub fn unread(location: &str, error: Error) -> StoreError {
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => StoreError {
            failure: StoreFailure::Unavailable,
            location: location.to_owned(),
            message: format!(
                "reading is not allowed: {error}; give the service account roles/storage.objectUser on the bucket"
            ),
        },
        error => unavailable(location, &format!("reading failed: {error}")),
    }
}

/// The place of the state object.
pub fn object(prefix: &Path) -> Path {
    prefix.clone().join("state.json")
}
