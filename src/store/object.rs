//! Object storage: the journal of a job without a disk. One state object, written by
//! compare-and-set on its generation; events become immutable objects of their own.
//!
//! Events are first written with the state (its outbox) and leave it when their own object is
//! there: an event is never told of a commit that failed, and never lost with one that succeeded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::TryStreamExt as _;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Batch, Store, StoreError, StoreFailure, Stored, fenced, moved};
use crate::model::action::Record;
use crate::model::event::Event;
use crate::model::lease::Lease;
use crate::model::lever::Lever;
use crate::model::tally::Tally;
use crate::model::time::{after, elapsed};

/// Marks the object as ours.
const FORMAT: &str = "tpu-watchdog state";
/// The newest shape of the state object.
const SCHEMA: u32 = 1;
/// Cloud Storage takes about one write a second of one object:
/// <https://cloud.google.com/storage/quotas#objects>.
const PACE: Duration = Duration::from_secs(1);
/// Beyond this many events in the outbox the oldest are dropped: their objects can't be written,
/// but the state can.
const OUTBOX_MAX: usize = 5_000;

/// The state object.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Document {
    format: String,
    schema: u32,
    owner: String,
    #[serde(default)]
    moved_to: Option<String>,
    /// By the writer's clock.
    written_at: Timestamp,
    /// Who wrote it, and which of its writes it is: tells a lost answer from somebody else's write.
    writer: String,
    sequence: u64,
    lease: Option<Lease>,
    slots: BTreeMap<String, Value>,
    specs: BTreeMap<String, Value>,
    ledger: Value,
    tally: Tally,
    /// Events without an object of their own yet, by the name that it will have.
    outbox: BTreeMap<String, Vec<Event>>,
    /// Levers that have worked and whose objects may still be there.
    #[serde(default)]
    pulled: BTreeSet<String>,
}

/// A journal in one object of a bucket.
pub struct ObjectState {
    client: Arc<dyn ObjectStore>,
    location: String,
    prefix: Path,
    writer: String,
    document: Document,
    version: UpdateVersion,
    // After a failed write it is not known what is there.
    stale: bool,
    held: Option<(String, u64)>,
    last_write: Option<Instant>,
    flushed: Arc<Mutex<BTreeSet<String>>>,
    // Levers that worked and were not there any more in the last listing.
    removed: BTreeSet<String>,
    flushing: tokio::task::JoinSet<()>,
}

impl ObjectState {
    /// Opens `prefix` of a bucket; whoever first takes the lock creates the state object when there
    /// is none. `location` is how it is called in the config.
    ///
    /// # Errors
    /// When it can't be reached, is newer, torn or not ours, or has moved.
    pub async fn open(
        client: Arc<dyn ObjectStore>,
        prefix: Path,
        location: &str,
    ) -> Result<Self, StoreError> {
        if let Some(state) =
            Self::open_existing(Arc::clone(&client), prefix.clone(), location).await?
        {
            return Ok(state);
        }
        let writer = uuid::Uuid::new_v4().to_string();
        let document = Document {
            format: FORMAT.to_owned(),
            schema: SCHEMA,
            owner: format!("tpu-watchdog-{}", uuid::Uuid::new_v4()),
            moved_to: None,
            // A new object was not written within the last second: the first lock need not wait.
            written_at: Timestamp::UNIX_EPOCH,
            writer: writer.clone(),
            sequence: 0,
            lease: None,
            slots: BTreeMap::new(),
            specs: BTreeMap::new(),
            ledger: Value::Object(serde_json::Map::new()),
            tally: Tally::new(),
            outbox: BTreeMap::new(),
            pulled: BTreeSet::new(),
        };
        // No version: the object is not there yet.
        let version = UpdateVersion { e_tag: None, version: None };
        Ok(Self::with(client, prefix, location, writer, document, version))
    }

    /// Opens what is there for reading. `None` when there is no state yet.
    ///
    /// # Errors
    /// When it can't be reached, is newer, torn or not ours, or has moved.
    pub async fn open_existing(
        client: Arc<dyn ObjectStore>,
        prefix: Path,
        location: &str,
    ) -> Result<Option<Self>, StoreError> {
        let read = read(&*client, &object(&prefix), location, None).await?;
        let Read::Found(document, version) = read else { return Ok(None) };
        let writer = uuid::Uuid::new_v4().to_string();
        let state = Self::with(client, prefix, location, writer, *document, version);
        match &state.document.moved_to {
            Some(to) => Err(state.refused(moved(to))),
            None => Ok(Some(state)),
        }
    }

    fn with(
        client: Arc<dyn ObjectStore>,
        prefix: Path,
        location: &str,
        writer: String,
        document: Document,
        version: UpdateVersion,
    ) -> Self {
        ObjectState {
            client,
            location: location.to_owned(),
            prefix,
            writer,
            document,
            version,
            stale: false,
            held: None,
            last_write: None,
            flushed: Arc::default(),
            removed: BTreeSet::new(),
            flushing: tokio::task::JoinSet::new(),
        }
    }

    fn refused(&self, message: String) -> StoreError {
        StoreError { failure: StoreFailure::Refused, location: self.location.clone(), message }
    }

    fn fenced(&self, lease: Option<&Lease>) -> StoreError {
        StoreError {
            failure: StoreFailure::Fenced,
            location: self.location.clone(),
            message: fenced(lease),
        }
    }

    fn exists(&self) -> bool {
        self.version.e_tag.is_some() || self.version.version.is_some()
    }

    /// Brings the copy up to date with the object.
    async fn refresh(&mut self) -> Result<(), StoreError> {
        let known = self.version.e_tag.clone().filter(|_| !self.stale);
        match read(&*self.client, &object(&self.prefix), &self.location, known).await? {
            Read::Found(document, version) => (self.document, self.version) = (*document, version),
            Read::Unchanged => {}
            Read::Absent if self.exists() => {
                return Err(self.refused(
                    "the state object was deleted; restore it, or start anew with another prefix"
                        .into(),
                ));
            }
            Read::Absent => {}
        }
        self.stale = false;
        Ok(())
    }

    /// The one write. On success the copy is what is there.
    async fn put(&mut self, mut next: Document) -> Result<(), StoreError> {
        if self.stale {
            let message = "it must be loaded again first".to_owned();
            return Err(StoreError {
                failure: StoreFailure::Unavailable,
                location: self.location.clone(),
                message,
            });
        }
        self.wait_for_pace().await;
        next.sequence += 1;
        next.writer.clone_from(&self.writer);
        next.written_at = Timestamp::now();
        let body = serde_json::to_vec(&next)
            .map_err(|e| self.refused(format!("it can't be written as JSON: {e}")))?;
        let mode =
            if self.exists() { PutMode::Update(self.version.clone()) } else { PutMode::Create };
        let path = object(&self.prefix);
        self.stale = true;
        let written = self
            .client
            .put_opts(&path, body.into(), PutOptions { mode, ..PutOptions::default() })
            .await;
        self.last_write = Some(Instant::now());
        match written {
            Ok(result) => {
                self.version = UpdateVersion { e_tag: result.e_tag, version: result.version }
            }
            // Either somebody else wrote, or our own write came through and its answer was lost on
            // the way.
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
                let Read::Found(found, version) =
                    read(&*self.client, &path, &self.location, None).await?
                else {
                    return Err(self.unavailable("the state object is gone"));
                };
                if (&found.writer, found.sequence) != (&next.writer, next.sequence) {
                    (self.document, self.version, self.stale) = (*found, version, false);
                    let lease = self.document.lease.clone();
                    return Err(self.fenced(lease.as_ref()));
                }
                self.version = version;
            }
            Err(error) => return Err(self.unavailable(&format!("writing failed: {error}"))),
        }
        (self.document, self.stale) = (next, false);
        Ok(())
    }

    fn unavailable(&self, message: &str) -> StoreError {
        let message = format!("{message}; nothing is done to any TPU until it works again");
        StoreError { failure: StoreFailure::Unavailable, location: self.location.clone(), message }
    }

    /// At most one write a second of the object, whoever wrote last.
    async fn wait_for_pace(&self) {
        let own = self.last_write.map_or(Duration::ZERO, |at| PACE.saturating_sub(at.elapsed()));
        // Somebody else's write is placed by the writer's clock: clocks that disagree cost a second
        // at most.
        let now = Timestamp::now();
        let others = elapsed(now, after(self.document.written_at, PACE)).min(PACE);
        let wait = if self.document.writer == self.writer { own } else { own.max(others) };
        tokio::time::sleep(wait).await;
    }

    /// The present document with a batch applied, if the lock is held by us.
    fn with_batch(&self, batch: &Batch) -> Result<Document, StoreError> {
        self.applied(self.document.clone(), batch)
    }

    fn applied(&self, mut next: Document, batch: &Batch) -> Result<Document, StoreError> {
        let lease = self.document.lease.as_ref();
        let held = self
            .held
            .as_ref()
            .filter(|(holder, epoch)| lease.is_some_and(|l| l.is_held_by(holder, *epoch)));
        if held.is_none() {
            return Err(self.fenced(lease));
        }
        if let Some(to) = &self.document.moved_to {
            return Err(self.refused(moved(to)));
        }
        if let Some(lease) = &mut next.lease {
            lease.renewals += 1;
        }
        let json = |error: serde_json::Error| {
            self.refused(format!("a record can't be written as JSON: {error}"))
        };
        for record in &batch.records {
            match record {
                Record::Slot(record) => {
                    next.slots
                        .insert(record.name.clone(), serde_json::to_value(record).map_err(json)?);
                }
                Record::Spec(name, body) => {
                    next.specs.insert(name.clone(), body.clone());
                }
                Record::Removed(name) => {
                    next.slots.remove(name);
                    next.specs.remove(name);
                }
                Record::Pulled(id) => {
                    next.pulled.insert(id.clone());
                }
                Record::Ledger(ledger) => {
                    next.ledger = serde_json::to_value(ledger).map_err(json)?
                }
            }
        }
        next.tally.extend(batch.tally.iter().cloned());
        let flushed =
            std::mem::take(&mut *self.flushed.lock().unwrap_or_else(PoisonError::into_inner));
        next.outbox.retain(|name, _| !flushed.contains(name));
        // Only what a listing did not show any more can't work twice.
        next.pulled.retain(|id| !self.removed.contains(id));
        if let Some(first) = batch.events.first() {
            let epoch = next.lease.as_ref().map_or(0, |l| l.epoch);
            let day = first.at.strftime("%Y-%m-%d");
            let name = format!("{day}/{:.3}-{epoch:06}-{:08}.jsonl", first.at, next.sequence + 1);
            next.outbox.insert(name, batch.events.clone());
        }
        while next.outbox.len() > 1
            && next.outbox.values().map(Vec::len).sum::<usize>() > OUTBOX_MAX
        {
            next.outbox.pop_first();
            tracing::warn!(
                "state {}: events can't be written; the oldest are dropped",
                self.location
            );
        }
        Ok(next)
    }

    /// Writes the outbox into objects of their own, and removes levers that have worked, beside
    /// whatever else goes on.
    fn flush(&mut self) {
        while self.flushing.try_join_next().is_some() {}
        if !self.flushing.is_empty()
            || self.document.outbox.is_empty() && self.document.pulled.is_empty()
        {
            return;
        }
        let (outbox, pulled) = (self.document.outbox.clone(), self.document.pulled.clone());
        let (client, flushed, location) =
            (Arc::clone(&self.client), Arc::clone(&self.flushed), self.location.clone());
        let (folder, levers) = (events(&self.prefix), levers(&self.prefix));
        self.flushing.spawn(async move {
            let done = |name: String| flushed.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
            for (name, events) in outbox {
                let lines: String = events.iter().filter_map(|e| serde_json::to_string(e).ok()).map(|line| line + "\n").collect();
                let path = name.split('/').fold(folder.clone(), |path, part| path.join(part));
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match client.put_opts(&path, lines.into(), options).await {
                    Ok(_) | Err(Error::AlreadyExists { .. }) => done(name),
                    Err(error) => {
                        tracing::warn!(
                            "state {location}: events {name} were not written: {error}; they stay in the state object"
                        );
                        return;
                    }
                };
            }
            for id in pulled {
                match client.delete(&levers.clone().join(file(&id).as_str())).await {
                    Ok(()) | Err(Error::NotFound { .. }) => {}
                    Err(error) => {
                        tracing::warn!("state {location}: the lever {id} was not removed: {error}; it does not work twice");
                    }
                };
            }
        });
    }
}

#[async_trait]
impl Store for ObjectState {
    fn location(&self) -> &str {
        &self.location
    }

    fn owner(&self) -> &str {
        &self.document.owner
    }

    fn pace(&self) -> Duration {
        PACE
    }

    async fn load(&mut self) -> Result<Stored, StoreError> {
        self.refresh().await?;
        let document = &self.document;
        let damaged = |what: &str, error: serde_json::Error| {
            self.refused(format!("{what} is damaged ({error}); nothing was changed. Restore an older generation of the object"))
        };
        let mut stored = Stored {
            owner: document.owner.clone(),
            tally: document.tally.clone(),
            lease: document.lease.clone(),
            ..Stored::default()
        };
        for (name, record) in &document.slots {
            let record = serde_json::from_value(record.clone())
                .map_err(|e| damaged(&format!("the record of {name}"), e))?;
            stored.slots.insert(name.clone(), record);
        }
        for (name, body) in &document.specs {
            let spec = serde_json::from_value(body.clone())
                .map_err(|e| damaged(&format!("the specification of {name}"), e))?;
            if let Some(record) = stored.slots.get_mut(name) {
                record.spec = Some(spec);
            }
        }
        stored.ledger = serde_json::from_value(document.ledger.clone())
            .map_err(|e| damaged("the ledger", e))?;
        Ok(stored)
    }

    async fn take(
        &mut self,
        seen: Option<&Lease>,
        holder: &str,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        if self.document.lease.as_ref() != seen {
            return Ok(false);
        }
        if let Some(to) = &self.document.moved_to {
            return Err(self.refused(moved(to)));
        }
        let mut next = self.document.clone();
        let lease = Lease::next(seen, holder, ttl);
        let held = (lease.holder.clone(), lease.epoch);
        next.lease = Some(lease);
        match self.put(next).await {
            Ok(()) => {
                self.held = Some(held);
                self.flush();
                Ok(true)
            }
            Err(error) if error.failure == StoreFailure::Fenced => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let next = self.with_batch(batch)?;
        self.put(next).await?;
        self.flush();
        Ok(())
    }

    async fn release(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let mut next = self.with_batch(batch)?;
        if let Some(lease) = &mut next.lease {
            lease.released = true;
        }
        self.put(next).await?;
        self.held = None;
        self.flush();
        // What does not get there now stays in the outbox for the next holder.
        let _ = tokio::time::timeout(PACE, async {
            while self.flushing.join_next().await.is_some() {}
        })
        .await;
        Ok(())
    }

    async fn events(&mut self, last: usize) -> Result<Vec<Event>, StoreError> {
        self.refresh().await?;
        let failed = |error: Error| self.unavailable(&format!("reading events failed: {error}"));
        let folder = events(&self.prefix);
        let mut days =
            self.client.list_with_delimiter(Some(&folder)).await.map_err(failed)?.common_prefixes;
        days.sort();
        // Newest first; an event may be in the outbox and have its object already.
        let mut found: BTreeMap<String, Vec<Event>> = self.document.outbox.clone();
        while let Some(day) = days.pop() {
            if found.values().map(Vec::len).sum::<usize>() >= last {
                break;
            }
            let mut names: Vec<Path> = self
                .client
                .list(Some(&day))
                .map_ok(|o| o.location)
                .try_collect()
                .await
                .map_err(failed)?;
            names.sort();
            while let Some(name) =
                names.pop().filter(|_| found.values().map(Vec::len).sum::<usize>() < last)
            {
                let bytes =
                    self.client.get(&name).await.map_err(failed)?.bytes().await.map_err(failed)?;
                let lines = String::from_utf8_lossy(&bytes)
                    .lines()
                    .filter_map(|l| serde_json::from_str(l).ok())
                    .collect();
                let key = name
                    .parts()
                    .skip(folder.parts().count())
                    .map(|p| p.as_ref().to_owned())
                    .collect::<Vec<_>>()
                    .join("/");
                found.insert(key, lines);
            }
        }
        let all: Vec<Event> = found.into_values().flatten().collect();
        Ok(all[all.len().saturating_sub(last)..].to_vec())
    }

    async fn pull(&mut self, lever: &Lever) -> Result<(), StoreError> {
        let body = serde_json::to_vec(lever)
            .map_err(|e| self.refused(format!("the lever can't be written as JSON: {e}")))?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self
            .client
            .put_opts(&levers(&self.prefix).join(file(&lever.id).as_str()), body.into(), options)
            .await
        {
            Ok(_) | Err(Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(self.unavailable(&format!("writing the lever failed: {error}"))),
        }
    }

    async fn levers(&mut self) -> Result<Vec<Lever>, StoreError> {
        let failed = |error: Error| self.unavailable(&format!("reading levers failed: {error}"));
        let names: Vec<Path> = self
            .client
            .list(Some(&levers(&self.prefix)))
            .map_ok(|o| o.location)
            .try_collect()
            .await
            .map_err(failed)?;
        let there =
            |id: &String| names.iter().any(|name| name.filename() == Some(file(id).as_str()));
        let removed = self.document.pulled.iter().filter(|id| !there(id)).cloned().collect();
        let mut found: Vec<Lever> = Vec::new();
        for name in &names {
            if self.document.pulled.iter().any(|id| name.filename() == Some(file(id).as_str())) {
                continue;
            }
            let bytes = match self.client.get(name).await {
                Ok(object) => object.bytes().await.map_err(failed)?,
                Err(Error::NotFound { .. }) => continue,
                Err(error) => return Err(failed(error)),
            };
            match serde_json::from_slice(&bytes) {
                Ok(lever) => found.push(lever),
                Err(error) => tracing::error!(
                    "state {}: {name} is no lever ({error}); delete it",
                    self.location
                ),
            }
        }
        self.removed = removed;
        found.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        Ok(found)
    }

    async fn adopt(&mut self, owner: &str, batch: &Batch) -> Result<(), StoreError> {
        // What an interrupted move left behind is its own.
        if !self.document.slots.is_empty() && self.document.owner != owner {
            return Err(self.refused(
                "there is state here already; nothing was changed. Give an empty place".into(),
            ));
        }
        let mut emptied = self.document.clone();
        emptied.slots.clear();
        emptied.specs.clear();
        let mut next = self.applied(emptied, batch)?;
        next.owner = owner.to_owned();
        self.put(next).await?;
        self.flush();
        Ok(())
    }

    async fn leave_for(&mut self, location: &str) -> Result<(), StoreError> {
        let mut next = self.with_batch(&Batch::default())?;
        next.moved_to = Some(location.to_owned());
        if let Some(lease) = &mut next.lease {
            lease.released = true;
        }
        self.put(next).await
    }
}

enum Read {
    Found(Box<Document>, UpdateVersion),
    Unchanged,
    Absent,
}

async fn read(
    client: &dyn ObjectStore,
    path: &Path,
    location: &str,
    known: Option<String>,
) -> Result<Read, StoreError> {
    let at = |failure: StoreFailure, message: String| StoreError {
        failure,
        location: location.to_owned(),
        message,
    };
    let lost = |error: Error| match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => at(
            StoreFailure::Unavailable,
            format!(
                "reading is not allowed: {error}; give the service account roles/storage.objectUser on the bucket"
            ),
        ),
        error => at(
            StoreFailure::Unavailable,
            format!("reading failed: {error}; nothing is done to any TPU until it works again"),
        ),
    };
    let options = GetOptions { if_none_match: known, ..GetOptions::default() };
    let found = match client.get_opts(path, options).await {
        Ok(found) => found,
        Err(Error::NotModified { .. }) => return Ok(Read::Unchanged),
        Err(Error::NotFound { .. }) => return Ok(Read::Absent),
        Err(error) => return Err(lost(error)),
    };
    let version =
        UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    let bytes = found.bytes().await.map_err(lost)?;
    let refused = |message: String| {
        at(StoreFailure::Refused, format!("{path} {message}; nothing was changed"))
    };
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
            return Err(refused(format!(
                "has schema version {schema}, this program knows up to {SCHEMA}: install the newer tpu-watchdog again"
            )));
        }
    }
    let document = serde_json::from_value(value)
        .map_err(|e| refused(format!("is damaged ({e}): restore an older generation")))?;
    Ok(Read::Found(Box::new(document), version))
}

fn object(prefix: &Path) -> Path {
    prefix.clone().join("state.json")
}

fn levers(prefix: &Path) -> Path {
    prefix.clone().join("levers")
}

fn file(lever: &str) -> String {
    format!("{lever}.json")
}

fn events(prefix: &Path) -> Path {
    prefix.clone().join("events")
}
