//! The shell: owns the fleet, feeds `step`, keeps the journal's order and carries effects out.
//!
//! A commit's actions are carried out only when its records are durable. When the journal can't be
//! written, what was decided since is thrown away with it: the journal is read again and the next
//! input decides anew. While somebody else holds the lock nothing is decided at all.

mod carry;
mod hold;
mod journal;
mod poll;
pub mod queue;
mod standby;
mod tenure;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc;

use self::journal::Finished;
use crate::checkpoint::lister::StorageAccess;
use crate::decide::{step, unavailable, view};
use crate::google::http::Observer;
use crate::google::tpu::TpuClient;
use crate::model::action::{Action, Effect, Input};
use crate::model::event::Event;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::{Fleet, Ledger};
use crate::model::lease::Lease;
use crate::model::recovery::Call;
use crate::model::settings::Settings;
use crate::model::view::{Acting, StatusDocument};
use crate::report::metrics::Metrics;
use crate::report::published::{Lock, Published, Snapshot};
use crate::report::systemd;
use crate::report::{self};
use crate::store::{Batch, Store, StoreError, StoreFailure, Stored};

/// Calls under way at once.
const CONCURRENCY: usize = 32;
/// What has happened is shown after this long at the latest, however many answers wait.
const SHOWN_AFTER: Duration = Duration::from_millis(200);
/// Answers to mutations that are under way are waited for this long at the end, so that the next
/// start need not ask.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// The last write at the end.
const LAST_WRITE: Duration = Duration::from_millis(2500);

/// The outside world, as the shell reaches it.
#[derive(Clone)]
pub struct World {
    /// The Cloud TPU API.
    pub tpu: TpuClient,
    /// Object storage.
    pub storage: StorageAccess,
}

/// Passes API attempts to the metrics.
pub struct ApiMetrics(pub Arc<Metrics>);

impl Observer for ApiMetrics {
    fn attempt(&self, method: &'static str, took: Duration, failure: Option<&Failure>) {
        self.0.api("tpu", method, took, failure);
        if let Some(failure) = failure.filter(|f| f.class != FailureClass::NotFound) {
            tracing::debug!(method, "attempt failed: {failure}");
        }
    }

    fn rejected(&self, method: &'static str, failure: &Failure) {
        self.0.api_failed("tpu", method, failure);
    }
}

/// What the loop waits for beside its own timers.
pub enum Signal {
    /// The config was loaded anew.
    Reload(Box<Settings>),
    /// The config was to be loaded anew and is not usable.
    NotReloaded,
    /// Finish the current commit and leave.
    Stop,
}

/// Who wants the lock, and for how long it outlives its holder.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// Unique to this process.
    pub holder: String,
    /// `lease`.
    pub ttl: Duration,
}

/// How a cycle for a schedule ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Cycle {
    /// Everything that was due before the deadline is done.
    Done,
    /// Somebody else is at work, or it can't be told in time whether anybody is: the line to say.
    Another(String),
    /// Told to stop before it had the lock.
    Stopped,
}

/// The running watchdog.
pub struct Watchdog {
    // As configured; the fleet's own may hold leaving slots.
    settings: Settings,
    fleet: Fleet,
    journal: journal::Journal,
    claimant: Claimant,
    location: String,
    world: World,
    metrics: Arc<Metrics>,
    published: Published,
    notify: systemd::Notify,
    inputs: mpsc::UnboundedReceiver<Input>,
    sender: mpsc::UnboundedSender<Input>,
    permits: carry::Permits,
    store_failing: bool,
    under_way: usize,
    mutations: usize,
    // The last finished poll, or look at somebody else's lock.
    progressed: Instant,
    shown: Instant,
    listener: Option<EventListener>,
}

/// Told about each event after its commit.
pub type EventListener = Box<dyn Fn(&Event)>;

impl Watchdog {
    /// Over a store whose lock is not taken yet. An empty `settings.owner` means the store's own.
    pub fn new(
        settings: Settings,
        store: Box<dyn Store>,
        claimant: Claimant,
        world: World,
        metrics: Arc<Metrics>,
        published: Published,
    ) -> Self {
        let (sender, inputs) = mpsc::unbounded_channel();
        Watchdog {
            fleet: Fleet::new(settings.clone(), Default::default(), Ledger::default()),
            settings,
            location: store.location().to_owned(),
            journal: journal::Journal::new(store, claimant.ttl),
            claimant,
            world,
            metrics,
            published,
            notify: systemd::Notify::default(),
            inputs,
            sender,
            permits: carry::Permits::new(CONCURRENCY),
            store_failing: false,
            under_way: 0,
            mutations: 0,
            progressed: Instant::now(),
            shown: Instant::now(),
            listener: None,
        }
    }

    /// Tells `listener` about each event from now on.
    pub fn listen(&mut self, listener: EventListener) {
        self.listener = Some(listener);
    }

    /// Tells a service manager about readiness, state and progress from now on.
    pub fn notify(&mut self, notify: systemd::Notify) {
        self.notify = notify;
    }

    /// The status as of the last turn.
    pub fn document(&self) -> StatusDocument {
        view::document(&self.fleet, Timestamp::now())
    }

    /// Polls and recovers while it holds the lock, stands by while somebody else does, until told
    /// to stop.
    ///
    /// # Errors
    /// When the state is not usable and a person has to look.
    pub async fn run(
        &mut self,
        signals: &mut mpsc::UnboundedReceiver<Signal>,
    ) -> Result<(), StoreError> {
        loop {
            match self.acquire(signals, None).await? {
                standby::Acquired::Held => {}
                standby::Acquired::Stopped | standby::Acquired::Another(_) => return Ok(()),
            }
            match self.hold(signals, None).await? {
                hold::Left::LockLost => {}
                hold::Left::Stopped | hold::Left::Finished => {
                    self.leave(None).await;
                    return Ok(());
                }
            }
        }
    }

    /// Polls once, and goes on while something is in flight that may end before the deadline. What
    /// comes after the cycle is over by `end`.
    ///
    /// # Errors
    /// When the state is not usable.
    pub async fn once(
        &mut self,
        deadline: Instant,
        end: Instant,
        signals: &mut mpsc::UnboundedReceiver<Signal>,
    ) -> Result<Cycle, StoreError> {
        match self.acquire(signals, Some(deadline)).await? {
            standby::Acquired::Held => {}
            standby::Acquired::Stopped => return Ok(Cycle::Stopped),
            standby::Acquired::Another(line) => return Ok(Cycle::Another(line)),
        }
        match self.hold(signals, Some(deadline)).await? {
            hold::Left::LockLost => Ok(Cycle::Another(
                "another watchdog took the lock; this run leaves the rest to it".into(),
            )),
            hold::Left::Stopped | hold::Left::Finished => {
                self.leave(Some(end)).await;
                Ok(Cycle::Done)
            }
        }
    }

    /// Looks at everything once and changes nothing: settings must say `dry_run`.
    ///
    /// # Errors
    /// When the store (a copy) fails.
    pub async fn look(&mut self, deadline: Instant) -> Result<(), StoreError> {
        let (_open, mut signals) = mpsc::unbounded_channel();
        self.acquire(&mut signals, Some(deadline)).await?;
        self.poll();
        while self.under_way > 0 {
            match tokio::time::timeout_at(deadline.into(), self.inputs.recv()).await {
                Ok(Some(input)) => self.arrived(input),
                _ => break,
            }
        }
        Ok(())
    }

    /// The lock is ours, and this is what the journal holds: it is folded into a fleet.
    fn begin(&mut self, stored: Stored, owner: &str) {
        if self.settings.owner.is_empty() {
            owner.clone_into(&mut self.settings.owner);
        }
        self.settings.decided_by.clone_from(&self.claimant.holder);
        self.metrics.sums().catch_up(&stored.tally);
        self.fleet = Fleet::new(self.settings.clone(), stored.slots, stored.ledger);
        // Answers to what an earlier tenure asked mean nothing to this one.
        (self.sender, self.inputs) = mpsc::unbounded_channel();
        (self.under_way, self.mutations) = (0, 0);
        self.store_failing = false;
        self.turn(Input::Configured(Box::new(self.settings.clone())));
    }

    fn reconfigure(&mut self, mut settings: Settings) {
        if settings.owner.is_empty() {
            settings.owner.clone_from(&self.settings.owner);
        }
        settings.decided_by.clone_from(&self.claimant.holder);
        self.settings = settings;
    }

    fn poll(&mut self) {
        self.under_way += 1;
        let (world, sender, metrics) =
            (self.world.clone(), self.sender.clone(), Arc::clone(&self.metrics));
        let plan = poll::plan(&self.fleet);
        tokio::spawn(async move {
            let began = Instant::now();
            let poll = poll::carry_out(&world.tpu, plan).await;
            metrics.poll(began.elapsed());
            // The receiver lives as long as the loop; without it nobody wants the answer.
            let _ = sender.send(Input::Polled(Box::new(poll)));
        });
    }

    fn arrived(&mut self, input: Input) {
        self.under_way -= 1;
        match input {
            Input::Called { .. } => self.mutations -= 1,
            Input::Polled(_) => self.progressed = Instant::now(),
            _ => {}
        }
        self.turn(input);
    }

    /// One turn: the input through the core, its commit into the next write, its reads, the new
    /// snapshot.
    fn turn(&mut self, input: Input) {
        if self.store_failing {
            // What became of this call is read back from the world once the journal works again.
            if let Input::Called { slot, .. } = &input {
                self.forget_call(&slot.clone());
            }
            self.publish();
            return;
        }
        for effect in step(&mut self.fleet, input, Timestamp::now()) {
            match effect {
                Effect::Look(look) => {
                    self.under_way += 1;
                    carry::look(
                        look,
                        &self.world,
                        &self.permits,
                        &self.sender,
                        self.fleet.settings.poll.every,
                    );
                }
                Effect::Commit { records, events, then } => {
                    self.journal.push(records, events, then)
                }
            }
        }
        // Answers that wait already are shown with this one: showing looks at every slot.
        if self.inputs.is_empty() || self.shown.elapsed() >= SHOWN_AFTER {
            self.publish();
        }
    }

    /// A write is durable: its events are told, its actions carried out.
    fn written(&mut self, batch: &Batch, then: Vec<Action>) {
        self.tell(batch);
        let tenure = self.journal.tenure();
        for action in then {
            self.under_way += 1;
            self.mutations += 1;
            carry::act(action, &self.world, &self.permits, &tenure, &self.sender);
        }
    }

    fn tell(&self, batch: &Batch) {
        for event in &batch.events {
            report::log::event(event);
            self.metrics.sums().event(event);
            if let Some(listener) = &self.listener {
                listener(event);
            }
        }
        self.metrics.sums().saved(&batch.tally);
    }

    /// A write failed: memory is ahead of the journal, and nothing goes on until both agree again.
    fn not_written(&mut self, error: &StoreError, then: &[Action]) {
        // That somebody else holds the lock is no failure of the store.
        if error.failure != StoreFailure::Fenced {
            self.metrics.store_failed();
        }
        tracing::error!("{error}; {} calls were not sent", then.len());
        self.store_failing = true;
        for action in then {
            self.forget_call(action.slot());
        }
        self.publish();
    }

    /// The journal works again: what it says counts.
    fn reloaded(&mut self, stored: Stored) {
        self.metrics.sums().catch_up(&stored.tally);
        self.fleet.read_again(stored.slots, stored.ledger);
        tracing::info!("the journal can be written again");
        self.store_failing = false;
        self.turn(Input::Configured(Box::new(self.settings.clone())));
    }

    fn forget_call(&mut self, slot: &str) {
        self.fleet.forget_call(slot);
    }

    /// The end: the write under way, answers that are about to come, the last write, the lock given
    /// back; all of it before
    /// `end`, if there is one.
    async fn leave(&mut self, end: Option<Instant>) {
        let left = |share: u32| {
            end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now()) * share / 4
            })
        };
        let _ = tokio::time::timeout(LAST_ANSWERS.min(left(2)), self.last_answers()).await;
        if tokio::time::timeout(LAST_WRITE.min(left(3)), self.last_write()).await.is_err() {
            tracing::error!(
                "the last write is not done in time; the next start reads back what was under way"
            );
        }
        self.publish();
    }

    /// What was written is carried out, and what was sent is answered; nothing new is begun.
    async fn last_answers(&mut self) {
        while self.journal.is_writing() || self.mutations > 0 {
            tokio::select! {
                finished = self.journal.finished() => match finished {
                    Finished::Written(batch, then) => self.written(&batch, then),
                    Finished::Failed(error, then) => self.not_written(&error, &then),
                    Finished::StillFailing(error) => tracing::error!("{error}"),
                    Finished::Reloaded(..) | Finished::Pulled(_) => {}
                },
                Some(input) = self.inputs.recv() => {
                    // Only outcomes: anything else could lead to a call that nobody would wait for.
                    if matches!(input, Input::Called { .. }) {
                        self.arrived(input);
                    }
                }
            }
        }
    }

    async fn last_write(&mut self) {
        while self.journal.is_writing() {
            match self.journal.finished().await {
                // Its actions are not begun any more: the next start finds their intents.
                Finished::Written(batch, _) => self.tell(&batch),
                Finished::Failed(error, _) | Finished::StillFailing(error) => {
                    tracing::error!("{error}")
                }
                Finished::Reloaded(..) | Finished::Pulled(_) => {}
            }
        }
        let metrics = Arc::clone(&self.metrics);
        // A request that is still on its way would meet the next holder's: then the lock ends by
        // itself.
        let give_back = self.mutations == 0;
        match self.journal.end(give_back, |events| metrics.sums().changes(events)).await {
            Ok(batch) => self.tell(&batch),
            Err(error) => tracing::error!(
                "{error}; the lock ends by itself, the next start reads back what was under way"
            ),
        }
    }

    fn publish(&mut self) {
        self.shown = Instant::now();
        let recoveries = || self.fleet.slots.values().filter_map(|r| r.recovery.as_ref());
        let unavailable = unavailable(&self.fleet);
        let allowed = self.fleet.settings.max_unavailable.of(self.fleet.slots.len());
        let acting = Some(Acting::of(&self.claimant.holder));
        self.show(Snapshot {
            status: StatusDocument { acting, ..self.document() },
            turned_at: Some(Timestamp::now()),
            polls: self.fleet.polls,
            store_failing: self.store_failing,
            intents_pending: recoveries()
                .filter(|r| matches!(r.call, Some(Call::Intended | Call::Unknown)))
                .count(),
            budget_remaining: allowed.saturating_sub(unavailable),
            dry_run: self.fleet.settings.dry_run,
            lock: Lock::Held,
        });
    }

    fn show(&self, snapshot: Snapshot) {
        self.notify.status(&snapshot);
        self.published.publish(snapshot);
    }

    /// Tells the service manager that the loop gets on: never when polls stopped ending, or a write
    /// hangs.
    fn alive(&self) {
        let patience =
            self.settings.poll.every.max(self.claimant.ttl) * 2 + Duration::from_secs(30);
        if self.progressed.elapsed() < patience && !self.journal.hangs() {
            self.notify.alive();
        }
    }

    /// What is shown while it is not known who holds the lock: the slots as they were last seen.
    fn show_nobody(&self, store_failing: bool) {
        let status = self.published.get().status.clone();
        let dry_run = self.settings.dry_run;
        self.show(Snapshot {
            status,
            turned_at: Some(Timestamp::now()),
            store_failing,
            dry_run,
            ..Snapshot::default()
        });
    }

    /// What a standby shows: the slots as the holder's journal has them.
    fn show_standby(&self, stored: Stored, lease: &Lease) {
        let dry_run = self.settings.dry_run;
        let acting = Some(Acting::of(&lease.holder));
        self.show(Snapshot {
            status: StatusDocument {
                acting,
                ..view::at_rest(&self.settings, stored.slots, stored.ledger, Timestamp::now())
            },
            turned_at: Some(Timestamp::now()),
            dry_run,
            lock: Lock::StandingBy(lease.holder.clone()),
            ..Snapshot::default()
        });
    }
}
