//! The calls to the store, one at a time, each in a task of its own.

use tokio::task::JoinHandle;

use crate::driver::message::{Message, StoreCall};
use crate::model::event::Event;
use crate::model::tally::Sum;
use crate::store::{Batch, Store};

type Done = (Box<dyn Store>, Message, Option<Batch>);

/// A store, or the call that has it.
pub struct Calls {
    store: Option<Box<dyn Store>>,
    work: Option<JoinHandle<Done>>,
}

impl Calls {
    /// Over an open store.
    pub fn new(store: Box<dyn Store>) -> Self {
        Calls { store: Some(store), work: None }
    }

    /// Begins a call. `tally` gives the sums that the events of a write change.
    pub fn begin(&mut self, call: StoreCall, tally: impl FnOnce(&[Event]) -> Vec<(String, Sum)>) {
        // The driver begins the next call after the answer to the last one.
        let Some(store) = self.store.take() else { return };
        let with_tally = |mut batch: Batch| {
            batch.tally = tally(&batch.events);
            batch
        };
        let call = match call {
            StoreCall::Commit(batch) => StoreCall::Commit(with_tally(batch)),
            StoreCall::Release(batch) => StoreCall::Release(with_tally(batch)),
            other => other,
        };
        // A store that blocks gets a thread of its own: a disk that is slow to sync must not hold
        // up a request that was checked and is about to leave.
        self.work = Some(if store.blocks() {
            let runtime = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || runtime.block_on(carry_out(store, call)))
        } else {
            tokio::spawn(carry_out(store, call))
        });
    }

    /// The answer to the call under way, and what it has written; waits for ever when there is
    /// none. May be dropped and called again.
    pub async fn answer(&mut self) -> (Message, Option<Batch>) {
        let Some(work) = &mut self.work else { return std::future::pending().await };
        let (store, message, written) = match work.await {
            Ok(done) => done,
            // The task neither panics nor is cancelled. Without a store nothing can be done: the watchdog
            // counts as stuck.
            Err(error) => {
                tracing::error!("the journal's task ended: {error}");
                self.work = None;
                return std::future::pending().await;
            }
        };
        (self.work, self.store) = (None, Some(store));
        (message, written)
    }
}

async fn carry_out(mut store: Box<dyn Store>, call: StoreCall) -> Done {
    let mut written = None;
    let message = match call {
        StoreCall::Load => Message::Loaded(store.load().await.map(Box::new)),
        StoreCall::Commands => Message::Commands(store.commands().await),
        StoreCall::Take { seen, holder, ttl } => {
            Message::Taken(store.take(seen.as_ref(), &holder, ttl).await)
        }
        StoreCall::Commit(batch) => {
            let result = store.commit(&batch).await;
            written = result.is_ok().then_some(batch);
            Message::Written(result)
        }
        StoreCall::Release(batch) => {
            let result = store.release(&batch).await;
            written = result.is_ok().then_some(batch);
            Message::Written(result)
        }
    };
    (store, message, written)
}
