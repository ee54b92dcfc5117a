//! Object storage: the journal of a job without a disk. One state object, written by
//! compare-and-set on its generation; events become immutable objects of their own.
//!
//! Events are first written with the state (its outbox) and leave it when their own object is
//! there: an event is never told of a commit that failed, and never lost with one that succeeded.

mod document;
mod keep;
mod side;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{Error, ObjectStore, PutMode, PutOptions, UpdateVersion};

use self::document::{Document, Read, SCHEMA, object, read};
use super::marker::Lost;
use super::{Batch, Store, StoreError, StoreFailure, Stored, fenced, moved, upgrade};
use crate::model::command::Command;
use crate::model::event::Event;
use crate::model::lease::Lease;
use crate::model::time::{after, elapsed};

/// Cloud Storage takes about one write a second of one object:
/// <https://cloud.google.com/storage/quotas#objects>.
const PACE: Duration = Duration::from_secs(1);

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
    // Commands that worked and were gone from the last listing.
    removed: BTreeSet<String>,
    // The marker is there, as far as is known.
    marked: bool,
    flushing: tokio::task::JoinSet<()>,
}

impl ObjectState {
    /// Opens `prefix` of a bucket; whoever first takes the lock creates the state object when there
    /// is none. `location` is how it is called in the config.
    ///
    /// # Errors
    /// When it can't be reached, is newer, torn or not ours, has moved, or was lost.
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
        let document = Document::new(&writer);
        // No version: the object is not there yet.
        let version = UpdateVersion { e_tag: None, version: None };
        Ok(Self::with(client, prefix, location, writer, document, version))
    }

    /// Opens what is there for reading. `None` when there is no state yet.
    ///
    /// # Errors
    /// When it can't be reached, is newer, torn or not ours, has moved, or was lost.
    pub async fn open_existing(
        client: Arc<dyn ObjectStore>,
        prefix: Path,
        location: &str,
    ) -> Result<Option<Self>, StoreError> {
        let read = read(&*client, &prefix, location, None).await?;
        let Read::Found(document, version) = read else {
            keep::refuse_lost(&*client, &prefix, location).await?;
            return Ok(None);
        };
        let writer = uuid::Uuid::new_v4().to_string();
        let state = Self::with(client, prefix, location, writer, *document, version);
        match &state.document.moved_to {
            Some(to) => Err(state.refused(moved(to))),
            None => Ok(Some(state)),
        }
    }

    /// Gives up what was lost under `prefix`, so that the next opening begins a new state. `None`
    /// when nothing was lost.
    ///
    /// # Errors
    /// When there is a state, or the marker of the lost one can't be read or removed.
    pub async fn accept_loss(
        client: Arc<dyn ObjectStore>,
        prefix: Path,
        location: &str,
    ) -> Result<Option<Lost>, StoreError> {
        keep::accept_loss(&*client, &prefix, location).await
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
            marked: false,
            flushing: tokio::task::JoinSet::new(),
        }
    }

    fn refused(&self, message: String) -> StoreError {
        document::refused(&self.location, message)
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
        match read(&*self.client, &self.prefix, &self.location, known).await? {
            Read::Found(document, version) => (self.document, self.version) = (*document, version),
            Read::Unchanged => {}
            Read::Absent if self.exists() => {
                return Err(keep::lost(&*self.client, &self.prefix, &self.location).await);
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
            // Either another process wrote, or our own write came through and its answer was lost
            // on the way.
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
                let Read::Found(found, version) =
                    read(&*self.client, &self.prefix, &self.location, None).await?
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
        document::unavailable(&self.location, message)
    }

    /// At most one write a second of the object, whoever wrote last.
    async fn wait_for_pace(&self) {
        let own = self.last_write.map_or(Duration::ZERO, |at| PACE.saturating_sub(at.elapsed()));
        // Another process's write is dated by the writer's clock: clocks that disagree cost a
        // second at most.
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
        let flushed =
            std::mem::take(&mut *self.flushed.lock().unwrap_or_else(PoisonError::into_inner));
        next.apply(batch, &flushed, &self.removed, &self.location)
            .map_err(|e| self.refused(format!("a record can't be written as JSON: {e}")))?;
        Ok(next)
    }

    /// Before the first write of a term: an older program's state is copied, a lost one refused.
    /// False: another process has written meanwhile.
    async fn take_over(&self) -> Result<bool, StoreError> {
        let (client, prefix, location) = (&*self.client, &self.prefix, self.location.as_str());
        if !self.exists() {
            keep::refuse_lost(client, prefix, location).await?;
        } else if self.document.is_from_before() {
            return keep::keep(client, prefix, location, &self.document, &self.version).await;
        }
        Ok(true)
    }

    async fn mark(&mut self, again: bool) -> Result<(), StoreError> {
        if again || !self.marked {
            let (client, owner) = (&*self.client, &self.document.owner);
            keep::mark(client, &self.prefix, &self.location, owner, again).await?;
            self.marked = true;
        }
        Ok(())
    }

    /// Writes the outbox into objects of their own, and removes commands that have worked, in the
    /// background.
    fn flush(&mut self) {
        while self.flushing.try_join_next().is_some() {}
        if !self.flushing.is_empty()
            || self.document.outbox.is_empty() && self.document.done.is_empty()
        {
            return;
        }
        let (outbox, done) = (self.document.outbox.clone(), self.document.done.clone());
        let (client, flushed, location) =
            (Arc::clone(&self.client), Arc::clone(&self.flushed), self.location.clone());
        let prefix = self.prefix.clone();
        self.flushing.spawn(async move {
            side::write_out(&*client, &prefix, &location, outbox, done, &flushed).await;
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
        if !self.take_over().await? {
            self.stale = true;
            return Ok(false);
        }
        let mut next = self.document.clone();
        (next.schema, next.program) = (SCHEMA, Some(upgrade::PROGRAM.to_owned()));
        let lease = Lease::next(seen, holder, ttl);
        let held = (lease.holder.clone(), lease.epoch);
        next.lease = Some(lease);
        match self.put(next).await {
            Ok(()) => {
                self.mark(false).await?;
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
        // Events not written by then stay in the outbox for the next holder.
        let _ = tokio::time::timeout(PACE, async {
            while self.flushing.join_next().await.is_some() {}
        })
        .await;
        Ok(())
    }

    async fn events(&mut self, last: usize) -> Result<Vec<Event>, StoreError> {
        self.refresh().await?;
        let outbox = self.document.outbox.clone();
        side::events(&*self.client, &self.prefix, &self.location, outbox, last).await
    }

    async fn submit(&mut self, command: &Command) -> Result<(), StoreError> {
        let body = serde_json::to_vec(command)
            .map_err(|e| self.refused(format!("the command can't be written as JSON: {e}")))?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self
            .client
            .put_opts(&side::command(&self.prefix, &command.id), body.into(), options)
            .await
        {
            Ok(_) | Err(Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(self.unavailable(&format!("writing the command failed: {error}"))),
        }
    }

    async fn commands(&mut self) -> Result<Vec<Command>, StoreError> {
        let done = &self.document.done;
        let (found, removed) =
            side::commands(&*self.client, &self.prefix, &self.location, done).await?;
        self.removed = removed;
        Ok(found)
    }

    async fn adopt(&mut self, owner: &str, batch: &Batch) -> Result<(), StoreError> {
        // State that an interrupted move left behind is its own.
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
        // The marker names the id that moved in.
        self.mark(true).await
    }

    async fn leave_for(&mut self, location: &str) -> Result<(), StoreError> {
        let mut next = self.with_batch(&Batch::default())?;
        next.moved_to = Some(location.to_owned());
        if let Some(lease) = &mut next.lease {
            lease.released = true;
        }
        self.put(next).await?;
        // The state lives elsewhere: nothing is lost when this object goes.
        if let Err(error) = keep::unmark(&*self.client, &self.prefix).await {
            tracing::warn!(
                "state {0}: its marker was not removed: {error}; remove {0}/exists with the closed state",
                self.location
            );
        }
        Ok(())
    }
}
