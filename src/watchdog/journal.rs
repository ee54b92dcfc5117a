//! The journal's order: commits that fall together become one write, and what a commit allows is
//! handed out only when that write has succeeded. Renewing the lock is an empty commit.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::queue::Queue;
use super::tenure::{Tenure, boottime};
use crate::model::action::{Action, Record};
use crate::model::event::Event;
use crate::model::lever::Lever;
use crate::model::tally::Sum;
use crate::store::{Batch, Store, StoreError, Stored};

/// A store that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// What a finished write, or a reload, has to say.
pub enum Finished {
    /// Durable: tell the events, carry out the actions.
    Written(Batch, Vec<Action>),
    /// Not durable, as far as is known: none of these actions is carried out.
    Failed(StoreError, Vec<Action>),
    /// The store works again, and this is what it says.
    Reloaded(Box<Stored>, Vec<Lever>),
    /// It still does not.
    StillFailing(StoreError),
    /// Levers that a person pulled, each handed out once.
    Pulled(Vec<Lever>),
}

enum Work {
    Write(Batch, Vec<Action>, Result<(), StoreError>),
    Reload(Box<Result<(Stored, Levers), StoreError>>),
    Levers(Levers),
}

type Levers = Result<Vec<Lever>, StoreError>;

/// What blocks its thread gets one of its own: a disk that is slow to sync must not hold up what
/// was checked and is about to be sent, nor the clock of it.
fn at_work<T: Send + 'static>(
    blocks: bool,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    if !blocks {
        return tokio::spawn(work);
    }
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work))
}

/// A store, and what waits to be written to it.
pub struct Journal {
    // Here, or at work.
    store: Option<Box<dyn Store>>,
    work: Option<JoinHandle<(Box<dyn Store>, Work)>>,
    queue: Queue,
    ttl: Duration,
    tenure: Tenure,
    began: (Instant, Duration),
    ended: Instant,
    asked: bool,
    // Levers were looked for since the last write.
    looked: bool,
}

impl Journal {
    /// Over a store whose lock is not held yet.
    pub fn new(store: Box<dyn Store>, ttl: Duration) -> Self {
        let now = Instant::now();
        Journal {
            store: Some(store),
            work: None,
            queue: Queue::default(),
            ttl,
            tenure: Tenure::default(),
            began: (now, boottime()),
            ended: now,
            asked: false,
            looked: false,
        }
    }

    /// For whoever sends on behalf of what was written.
    pub fn tenure(&self) -> Tenure {
        self.tenure.clone()
    }

    /// The store, while nothing is written.
    pub fn store(&mut self) -> Option<&mut Box<dyn Store>> {
        self.store.as_mut()
    }

    /// The lock was taken by a write that was begun then.
    pub fn taken(&mut self, began: (Instant, Duration)) {
        self.began = began;
        self.ended = Instant::now();
        self.queue.reloaded();
        self.tenure.renewed(began.1, self.ttl);
    }

    /// Levers are looked for as soon as the store is free.
    pub fn ask_for_levers(&mut self) {
        self.asked = true;
    }

    /// Adds a commit to the next write.
    pub fn push(&mut self, records: Vec<Record>, events: Vec<Event>, then: Vec<Action>) {
        self.queue.push(records, events, then);
    }

    /// When [`Journal::begin`] has something to do; none while a write is under way.
    pub fn due(&self) -> Option<Instant> {
        let store = self.store.as_ref()?;
        if self.queue.is_failing() {
            return Some(self.ended + RETRY);
        }
        if self.asked {
            return Some(Instant::now());
        }
        Some(self.write_due(&**store))
    }

    fn write_due(&self, store: &dyn Store) -> Instant {
        let soonest = self.ended + store.pace();
        let renewal = self.began.0 + self.ttl / 3;
        if self.queue.waits() { soonest } else { soonest.max(renewal) }
    }

    /// Nothing is written and nothing waits to be.
    pub fn is_quiet(&self) -> bool {
        self.work.is_none() && !self.queue.waits() && !self.queue.is_failing()
    }

    /// Starts the write (or, after a failure, the reload) that is due. `tally`: the sums that
    /// changed.
    pub fn begin(&mut self, tally: impl FnOnce(&[Event]) -> Vec<(String, Sum)>) {
        if self.due().is_none_or(|at| at > Instant::now()) {
            return;
        }
        let Some(mut store) = self.store.take() else { return };
        // However slow the store is: what is due to be written, the lock's renewal too, waits for
        // one look at levers at most.
        let overdue = self.looked && self.write_due(&*store) <= Instant::now();
        if self.asked && !overdue && !self.queue.is_failing() {
            (self.asked, self.looked) = (false, true);
            self.work = Some(at_work(store.blocks(), async move {
                let levers = store.levers().await;
                (store, Work::Levers(levers))
            }));
            return;
        }
        self.looked = false;
        self.began = (Instant::now(), boottime());
        if self.queue.is_failing() {
            let forgot = self.queue.has_forgotten_levers();
            self.work = Some(at_work(store.blocks(), async move {
                let reloaded = reload(&mut *store, forgot).await;
                (store, Work::Reload(Box::new(reloaded)))
            }));
            return;
        }
        let (mut batch, then) = self.queue.take();
        batch.tally = tally(&batch.events);
        self.work = Some(at_work(store.blocks(), async move {
            let result = store.commit(&batch).await;
            (store, Work::Write(batch, then, result))
        }));
    }

    /// Waits for what is under way; for ever when nothing is. May be dropped and called again.
    pub async fn finished(&mut self) -> Finished {
        let Some(work) = &mut self.work else { return std::future::pending().await };
        let (store, work) = match work.await {
            Ok(done) => done,
            // The task neither panics nor is cancelled; without a store nothing can be done any
            // more.
            Err(error) => {
                tracing::error!("the journal's task ended: {error}");
                return std::future::pending().await;
            }
        };
        self.work = None;
        self.store = Some(store);
        if !matches!(work, Work::Levers(_)) {
            self.ended = Instant::now();
        }
        match work {
            Work::Levers(levers) => Finished::Pulled(self.hand_out(levers)),
            Work::Write(batch, then, Ok(())) => {
                self.tenure.renewed(self.began.1, self.ttl);
                Finished::Written(batch, then)
            }
            Work::Write(_, then, Err(error)) => {
                let unsent = self.queue.failed(then);
                Finished::Failed(error, unsent)
            }
            Work::Reload(reloaded) => match *reloaded {
                Ok((stored, levers)) => {
                    self.queue.reloaded();
                    self.tenure.renewed(self.began.1, self.ttl);
                    // A lever that had worked, and was not written, is forgotten with the rest: it
                    // works again before anything else.
                    Finished::Reloaded(Box::new(stored), self.hand_out(levers))
                }
                Err(error) => Finished::StillFailing(error),
            },
        }
    }

    /// Whether a write hangs: whoever watches this process should know.
    pub fn hangs(&self) -> bool {
        self.work.is_some() && self.began.0.elapsed() > self.ttl * 2
    }

    /// Drops what was not written: the lock is somebody else's.
    pub fn lost(&mut self) {
        self.tenure.lost();
        self.queue.lost();
    }

    /// Those that were not handed out before; none, with a warning, where they could not be read.
    pub fn hand_out(&mut self, levers: Levers) -> Vec<Lever> {
        match levers {
            Ok(levers) => self.queue.fresh(levers),
            Err(error) => {
                tracing::warn!("{error}; levers are looked for again with the next poll");
                Vec::new()
            }
        }
    }

    /// The last write, when nothing is under way: what waits, without its actions. `give_back` also
    /// gives the lock back.
    ///
    /// # Errors
    /// When it may not be durable.
    pub async fn end(
        &mut self,
        give_back: bool,
        tally: impl FnOnce(&[Event]) -> Vec<(String, Sum)>,
    ) -> Result<Batch, StoreError> {
        let mut batch = self.queue.last();
        let Some(store) = self.store.as_mut().filter(|_| !self.queue.is_failing()) else {
            return Ok(Batch::default());
        };
        batch.tally = tally(&batch.events);
        if give_back {
            store.release(&batch).await?
        } else {
            store.commit(&batch).await?
        }
        Ok(batch)
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.work.is_some()
    }
}

/// Reads what the store says, and tells by an empty commit whether it can be written and the lock
/// is still held. Levers that can't be read keep nobody from going on, unless some may have been
/// `forgot`ten.
async fn reload(store: &mut dyn Store, forgot: bool) -> Result<(Stored, Levers), StoreError> {
    let stored = store.load().await?;
    let levers = match store.levers().await {
        Err(error) if forgot => return Err(error),
        levers => levers,
    };
    store.commit(&Batch::default()).await?;
    Ok((stored, levers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::lever::Pull;
    use crate::model::slot::SlotRecord;
    use crate::store::sqlite::SqliteStore;

    const TTL: Duration = Duration::from_secs(30);

    async fn journal() -> Journal {
        let mut store = SqliteStore::in_memory().unwrap();
        assert!(store.take(None, "me", TTL).await.unwrap());
        Journal::new(Box::new(store), TTL)
    }

    fn slot() -> Vec<Record> {
        vec![Record::Slot(Box::new(SlotRecord::new("a", "z", jiff::Timestamp::UNIX_EPOCH)))]
    }

    fn create() -> Vec<Action> {
        vec![Action::Create {
            slot: "a".into(),
            zone: "z".into(),
            body: serde_json::Value::Null,
            request_id: None,
        }]
    }

    #[tokio::test]
    async fn s11_actions_are_handed_out_after_their_write_and_only_while_the_lock_is_held() {
        let mut journal = journal().await;
        journal.push(slot(), Vec::new(), create());
        journal.begin(|_| Vec::new());
        assert!(!journal.tenure().may_send(), "nothing is written yet");
        let Finished::Written(_, then) = journal.finished().await else { panic!("it is written") };
        assert_eq!(then, create());
        assert!(journal.tenure().may_send());
        assert_eq!(journal.store().unwrap().load().await.unwrap().slots.len(), 1);
    }

    #[tokio::test]
    async fn a_lever_whose_write_failed_works_again_with_the_reload() {
        let mut journal = journal().await;
        let pull = Pull::Pause { slot: Some("a".into()), until: None };
        let lever = Lever {
            id: "1".into(),
            at: jiff::Timestamp::UNIX_EPOCH,
            who: "ada".into(),
            reason: None,
            pull,
        };
        journal.store().unwrap().pull(&lever).await.unwrap();
        journal.ask_for_levers();
        journal.begin(|_| Vec::new());
        let Finished::Pulled(levers) = journal.finished().await else {
            panic!("levers were asked for")
        };
        assert_eq!(levers, std::slice::from_ref(&lever));
        journal.queue.failed(Vec::new());
        journal.ended = journal.ended.checked_sub(RETRY).unwrap();
        journal.begin(|_| Vec::new());
        let Finished::Reloaded(_, levers) = journal.finished().await else {
            panic!("the journal is read again")
        };
        assert_eq!(levers, [lever]);
    }

    #[tokio::test]
    async fn what_is_due_to_be_written_waits_for_one_look_at_levers_at_most() {
        let mut journal = journal().await;
        for looks_first in [true, false, true, false] {
            journal.ask_for_levers();
            journal.push(slot(), Vec::new(), Vec::new());
            journal.begin(|_| Vec::new());
            assert_eq!(matches!(journal.finished().await, Finished::Pulled(_)), looks_first);
        }
        // With nothing to write they are looked for each time.
        while journal.queue.waits() {
            journal.begin(|_| Vec::new());
            journal.finished().await;
        }
        for _ in 0..3 {
            journal.ask_for_levers();
            journal.begin(|_| Vec::new());
            assert!(matches!(journal.finished().await, Finished::Pulled(_)));
        }
    }

    #[tokio::test]
    async fn levers_that_cannot_be_read_keep_nobody_from_going_on_unless_some_were_forgotten() {
        for forgot in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state.db");
            let mut store = SqliteStore::open(&path).unwrap();
            assert!(store.take(None, "me", TTL).await.unwrap());
            let mut journal = Journal::new(Box::new(store), TTL);
            if forgot {
                let pull = Pull::Pause { slot: None, until: None };
                let lever = Lever {
                    id: "1".into(),
                    at: jiff::Timestamp::UNIX_EPOCH,
                    who: "ada".into(),
                    reason: None,
                    pull,
                };
                assert_eq!(journal.queue.fresh(vec![lever]).len(), 1);
            }
            journal.queue.failed(Vec::new());
            rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE lever").unwrap();
            journal.ended = journal.ended.checked_sub(RETRY).unwrap();
            journal.begin(|_| Vec::new());
            let finished = journal.finished().await;
            assert_eq!(matches!(finished, Finished::StillFailing(_)), forgot);
            assert_eq!(matches!(finished, Finished::Reloaded(..)), !forgot);
        }
    }

    #[tokio::test]
    async fn the_last_write_holds_what_happened_but_no_intent_of_a_call_that_nobody_sends() {
        for (then, written) in [(Vec::new(), 1), (create(), 0)] {
            let mut journal = journal().await;
            journal.push(slot(), Vec::new(), then);
            journal.end(true, |_| Vec::new()).await.unwrap();
            let stored = journal.store().unwrap().load().await.unwrap();
            assert_eq!((stored.slots.len(), stored.lease.unwrap().released), (written, true));
        }
    }
}
