//! The store that all watchdogs of a world share: in memory, or SQLite on disk. Whatever it took
//! outlives every process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::setup::OWNER;
use futures::FutureExt as _;
use tpu_watchdog::model::action::Record;
use tpu_watchdog::model::command::Command;
use tpu_watchdog::model::fleet::Ledger;
use tpu_watchdog::model::lease::Lease;
use tpu_watchdog::model::slot::SlotRecord;
use tpu_watchdog::model::spec::NodeSpec;
use tpu_watchdog::store::sqlite::SqliteStore;
use tpu_watchdog::store::{Batch, Store as _, StoreError, StoreFailure, Stored};

/// A process's holder id and epoch, as it took the lock.
#[derive(Debug, Clone, Default)]
struct Claim {
    holder: String,
    epoch: u64,
}

/// The durable state, when a request is handed out or leaves.
pub struct Durable {
    pub record: Option<SlotRecord>,
    pub ledger: Ledger,
    pub lease: Option<Lease>,
}

impl Durable {
    /// The records that can intend a mutation.
    pub fn journal(&self) -> Vec<Record> {
        let slot = self.record.iter().map(|record| Record::Slot(Box::new(record.clone())));
        slot.chain([Record::Ledger(Box::new(self.ledger.clone()))]).collect()
    }
}

/// The store, and what each process holds of it.
pub struct Shelf {
    engine: Engine,
    claims: BTreeMap<usize, Claim>,
}

enum Engine {
    Memory(Box<Memory>),
    Sqlite(Box<Disk>),
}

#[derive(Default)]
struct Memory {
    slots: BTreeMap<String, SlotRecord>,
    ledger: Ledger,
    lease: Option<Lease>,
    commands: Vec<Command>,
}

struct Disk {
    // Removed with the world.
    _folder: tempfile::TempDir,
    path: PathBuf,
    power_cuts: u32,
    // One connection a process, as it would be.
    connections: BTreeMap<usize, SqliteStore>,
}

/// Nothing in SQLite's engine waits for anything but the disk.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("SQLite's engine never waits")
}

fn failure(failure: StoreFailure, message: &str) -> StoreError {
    StoreError { failure, location: "simulation".into(), message: message.into() }
}

/// A store that is told to fail.
pub fn unavailable() -> StoreError {
    failure(StoreFailure::Unavailable, "it can't be reached")
}

impl Shelf {
    pub fn new(sqlite: bool) -> Shelf {
        let claims = BTreeMap::new();
        if !sqlite {
            return Shelf { engine: Engine::Memory(Box::default()), claims };
        }
        // Memory serves as the disk where there is such a place: nobody waits for a platter in
        // virtual time.
        let fast = std::path::Path::new("/dev/shm");
        let folder = if fast.is_dir() { tempfile::tempdir_in(fast) } else { tempfile::tempdir() }
            .expect("a temporary folder");
        let path = folder.path().join("state.db");
        let connections = BTreeMap::new();
        let disk = Disk { _folder: folder, path, power_cuts: 0, connections };
        Shelf { engine: Engine::Sqlite(Box::new(disk)), claims }
    }

    pub fn load(&mut self, pid: usize) -> Result<Stored, StoreError> {
        let mut stored = match &mut self.engine {
            Engine::Memory(memory) => Stored {
                slots: memory.slots.clone(),
                ledger: memory.ledger.clone(),
                lease: memory.lease.clone(),
                ..Stored::default()
            },
            Engine::Sqlite(disk) => now(disk.connection(pid)?.load())?,
        };
        // A file's own is drawn at random.
        OWNER.clone_into(&mut stored.owner);
        Ok(stored)
    }

    /// As [`tpu_watchdog::store::Store::take`].
    pub fn take(
        &mut self,
        pid: usize,
        seen: Option<&Lease>,
        holder: &str,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let next = Lease::next(seen, holder, ttl);
        let taken = match &mut self.engine {
            Engine::Memory(memory) => {
                let free = memory.lease.as_ref() == seen;
                if free {
                    memory.lease = Some(next.clone());
                }
                free
            }
            Engine::Sqlite(disk) => now(disk.connection(pid)?.take(seen, holder, ttl))?,
        };
        if taken {
            self.claims.insert(pid, Claim { holder: next.holder, epoch: next.epoch });
        }
        Ok(taken)
    }

    /// The epoch of the last lock that a process took.
    pub fn epoch(&self, pid: usize) -> u64 {
        self.claims.get(&pid).map_or(0, |claim| claim.epoch)
    }

    /// Writes all of it or nothing, and renews the lock; `release` gives it back.
    pub fn commit(&mut self, pid: usize, batch: Batch, release: bool) -> Result<(), StoreError> {
        match &mut self.engine {
            Engine::Memory(memory) => {
                let claim = self.claims.get(&pid).cloned().unwrap_or_default();
                memory.commit(&claim, batch, release)
            }
            Engine::Sqlite(disk) => {
                let store = disk.connection(pid)?;
                if release { now(store.release(&batch)) } else { now(store.commit(&batch)) }
            }
        }
    }

    pub fn commands(&mut self, pid: usize) -> Result<Vec<Command>, StoreError> {
        match &mut self.engine {
            Engine::Memory(memory) => Ok(memory.commands.clone()),
            Engine::Sqlite(disk) => now(disk.connection(pid)?.commands()),
        }
    }

    /// A person's process puts a command in.
    pub fn submit(&mut self, command: Command) {
        match &mut self.engine {
            Engine::Memory(memory) => memory.commands.push(command),
            Engine::Sqlite(disk) => {
                let store = disk.connection(usize::MAX).expect("the folder is there");
                now(store.submit(&command)).expect("no other process writes in this moment");
            }
        }
    }

    /// The durable state of a slot, of the fleet, and the lease.
    pub fn durable(&mut self, slot: &str) -> Durable {
        match &mut self.engine {
            Engine::Memory(memory) => Durable {
                record: memory.slots.get(slot).cloned(),
                ledger: memory.ledger.clone(),
                lease: memory.lease.clone(),
            },
            Engine::Sqlite(_) => {
                let mut stored = self.load(usize::MAX).expect("what is durable can be read");
                let record = stored.slots.remove(slot);
                Durable { record, ledger: stored.ledger, lease: stored.lease }
            }
        }
    }

    /// The process is gone: so is its connection.
    pub fn close(&mut self, pid: usize) {
        self.claims.remove(&pid);
        if let Engine::Sqlite(disk) = &mut self.engine {
            disk.connections.remove(&pid);
        }
    }

    /// The power fails within the write of this batch: what the disk holds is the log up to some
    /// byte of it.
    pub fn tear(&mut self, pid: usize, batch: Batch, at: f64) {
        // In memory there are no bytes: the write is there or not.
        let Engine::Sqlite(disk) = &mut self.engine else {
            if at < 0.5 {
                let _ = self.commit(pid, batch, false);
            }
            return;
        };
        let log = |path: &PathBuf| PathBuf::from(format!("{}-wal", path.display()));
        let size = |path: &PathBuf| std::fs::metadata(log(path)).map_or(0, |m| m.len());
        let before = size(&disk.path);
        if let Ok(store) = disk.connection(pid) {
            let _ = now(store.commit(&batch));
        }
        let after = size(&disk.path);
        // What was left of the machine is copied away while the connections still stand: closing
        // them would tidy up.
        disk.power_cuts += 1;
        let next = disk.path.with_file_name(format!("state-{}.db", disk.power_cuts));
        std::fs::copy(&disk.path, &next).expect("the copy of the state");
        if after > 0 {
            std::fs::copy(log(&disk.path), log(&next)).expect("the copy of its log");
            let left = before + ((after.saturating_sub(before)) as f64 * at) as u64;
            let file = std::fs::OpenOptions::new().write(true).open(log(&next)).expect("the log");
            file.set_len(left.min(after)).expect("the log is cut");
        }
        disk.connections.clear();
        disk.path = next;
    }
}

impl Disk {
    fn connection(&mut self, pid: usize) -> Result<&mut SqliteStore, StoreError> {
        if !self.connections.contains_key(&pid) {
            self.connections.insert(pid, SqliteStore::open(&self.path)?);
        }
        Ok(self.connections.get_mut(&pid).expect("it was just put there"))
    }
}

impl Memory {
    fn commit(&mut self, claim: &Claim, batch: Batch, release: bool) -> Result<(), StoreError> {
        let held = self.lease.as_mut().filter(|lease| lease.is_held_by(&claim.holder, claim.epoch));
        let Some(lease) = held else {
            return Err(failure(StoreFailure::Fenced, "the lock is somebody else's"));
        };
        lease.renewals += 1;
        lease.released = release;
        for record in batch.records {
            match record {
                Record::Slot(mut slot) => {
                    // Specifications are rows of their own.
                    slot.spec =
                        self.slots.get_mut(&slot.name).and_then(|before| before.spec.take());
                    self.slots.insert(slot.name.clone(), *slot);
                }
                Record::Spec(name, body) => {
                    let spec: Option<NodeSpec> = serde_json::from_value(body).ok();
                    if let Some(slot) = self.slots.get_mut(&name) {
                        slot.spec = spec;
                    } else {
                        let mut slot = SlotRecord::new(&name, "", jiff::Timestamp::UNIX_EPOCH);
                        slot.spec = spec;
                        self.slots.insert(name, slot);
                    }
                }
                Record::Removed(name) => {
                    self.slots.remove(&name);
                }
                Record::Ledger(ledger) => self.ledger = *ledger,
                Record::CommandDone(id) => self.commands.retain(|command| command.id != id),
            }
        }
        Ok(())
    }
}
