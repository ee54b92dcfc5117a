//! Tokio around the driver: tasks, timers, signals, clocks. Nothing is decided here.
//!
//! One loop turns [`Driver::on`] with what happened and does what it says: store calls, polls,
//! queries and requests run in tasks of their own, each of which answers with exactly one message.

mod calls;
pub mod clock;
mod dispatch;
mod poll;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc;

use self::calls::Calls;
use self::poll::Failing;
use crate::checkpoint::lister::StorageAccess;
use crate::core::{remaining, view};
use crate::driver::Driver;
use crate::driver::message::{Claimant, End, Instruction, Level, Message, Mode, Shown, StoreFacts};
use crate::google::http::Observer;
use crate::google::tpu::TpuClient;
use crate::model::action::{Input, Record};
use crate::model::event::Event;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::Fleet;
use crate::model::settings::Settings;
use crate::model::step::Call;
use crate::model::view::StatusDocument;
use crate::report::metrics::Metrics;
use crate::report::protection::{self, Protection};
use crate::report::published::{Lock, Published, Reading, Snapshot};
use crate::report::{self, systemd};
use crate::store::{Batch, Store, StoreFailure};

/// Calls under way at once.
const CONCURRENCY: usize = 32;
/// Changes are shown after this long at the latest, however many answers wait.
const SHOWN_AFTER: Duration = Duration::from_millis(200);

/// The outside world, as the shell reaches it.
#[derive(Clone)]
pub struct World {
    /// The Cloud TPU API.
    pub tpu: TpuClient,
    /// Object storage.
    pub storage: StorageAccess,
    /// Which lists fail, as that was said.
    failing: Failing,
}

impl World {
    /// As it is reached by these.
    pub fn new(tpu: TpuClient, storage: StorageAccess) -> World {
        World { tpu, storage, failing: Failing::default() }
    }
}

/// Passes API attempts to the metrics.
pub struct ApiMetrics(pub Arc<Metrics>);

impl Observer for ApiMetrics {
    fn attempt(&self, method: &'static str, took: Duration, failure: Option<&Failure>) {
        self.0.api(service(method), method, took, failure);
        if let Some(failure) = failure.filter(|f| f.class != FailureClass::NotFound) {
            tracing::debug!(method, "attempt failed: {failure}");
        }
    }

    fn rejected(&self, method: &'static str, failure: &Failure) {
        self.0.api_failed(service(method), method, failure);
    }
}

/// The service of a method, for the metrics.
fn service(method: &str) -> &'static str {
    match method {
        "projects.testIamPermissions" => "resource_manager",
        "serviceAccounts.testIamPermissions" => "iam",
        "quotaInfos.list" => "quotas",
        "buckets.get" => "storage",
        _ if method.starts_with("customJobs.") => "vertex",
        _ if method.starts_with("hyperparameterTuningJobs.") => "vertex",
        _ if method.starts_with("ml.") => "ai_platform",
        _ => "tpu",
    }
}

/// A signal from outside.
pub enum Signal {
    /// The config was loaded again.
    Reload(Box<Settings>),
    /// The config was loaded again and is not usable.
    NotReloaded,
    /// Finish what was sent, and leave.
    Stop,
}

/// Told about each event after its commit.
pub type EventListener = Box<dyn Fn(&Event)>;

/// The running watchdog.
pub struct Watchdog {
    driver: Driver,
    calls: Calls,
    world: World,
    metrics: Arc<Metrics>,
    published: Published,
    reading: Reading,
    notify: systemd::Notify,
    answers: mpsc::UnboundedReceiver<Message>,
    sender: mpsc::UnboundedSender<Message>,
    permits: dispatch::Permits,
    listener: Option<EventListener>,
    // Told in the log of a service.
    protection: Option<Protection>,
    // When the slots were shown last, and whether they have changed since.
    shown: Instant,
    changed: bool,
    // Told to stop: no signal follows.
    stopped: bool,
}

impl Watchdog {
    /// Over a store whose lock is not taken yet. An empty `settings.owner` means the store's own.
    pub fn new(
        settings: Settings,
        store: Box<dyn Store>,
        claimant: Claimant,
        mode: Mode,
        world: World,
        metrics: Arc<Metrics>,
        published: Published,
    ) -> Self {
        let (sender, answers) = mpsc::unbounded_channel();
        let facts = StoreFacts { location: store.location().to_owned(), pace: store.pace() };
        let permits = dispatch::Permits::new(CONCURRENCY, settings.poll.every);
        Watchdog {
            driver: Driver::new(settings, facts, claimant, mode, clock::boottime()),
            calls: Calls::new(store),
            world,
            metrics,
            published,
            reading: Reading::default(),
            notify: systemd::Notify::default(),
            answers,
            sender,
            permits,
            listener: None,
            protection: None,
            shown: Instant::now(),
            changed: false,
            stopped: false,
        }
    }

    /// Tells `listener` about each event from now on.
    pub fn listen(&mut self, listener: EventListener) {
        self.listener = Some(listener);
    }

    /// Writes into the log from now on which slots are not protected.
    pub fn tell_protection(&mut self) {
        self.protection = Some(Protection::default());
    }

    /// Tells a service manager about readiness, state and progress from now on.
    pub fn notify(&mut self, notify: systemd::Notify) {
        self.notify = notify;
    }

    /// The fleet as of the last turn.
    pub fn fleet(&self) -> &Fleet {
        self.driver.fleet()
    }

    /// The status as of the last turn.
    pub fn document(&self) -> StatusDocument {
        view::document(self.driver.fleet(), Timestamp::now())
    }

    /// Whether the journal could not be written when that was last tried.
    pub fn store_fails(&self) -> bool {
        self.driver.store_fails()
    }

    /// Works as its mode says, until it ends or is told to stop.
    pub async fn run(&mut self, signals: &mut mpsc::UnboundedReceiver<Signal>) -> End {
        let mut message = Message::Woke;
        loop {
            let reloads = matches!(message, Message::Reload(_));
            for instruction in self.driver.on(message, clock::now()) {
                if let Some(end) = self.carry_out(instruction) {
                    self.show_leader();
                    return end;
                }
            }
            if reloads {
                self.notify.ready();
            }
            // Answers that wait already are shown with this one: showing looks at every slot.
            if self.answers.is_empty() || self.shown.elapsed() >= SHOWN_AFTER {
                self.show_leader();
            }
            if self.driver.is_alive(clock::boottime()) {
                self.notify.alive();
            }
            message = self.next(signals).await;
        }
    }

    async fn next(&mut self, signals: &mut mpsc::UnboundedReceiver<Signal>) -> Message {
        let now = clock::boottime();
        let wait = self.driver.due(now).saturating_sub(now);
        let wait = self.notify.interval().map_or(wait, |most| wait.min(most));
        tokio::select! {
            biased;
            // The sender ends with its last signal: a closed channel is ready in every round, and
            // must not keep answers from being heard.
            signal = signals.recv(), if !self.stopped => match signal {
                Some(Signal::Reload(settings)) => Message::Reload(settings),
                Some(Signal::NotReloaded) => {
                    self.notify.ready();
                    Message::Woke
                }
                Some(Signal::Stop) | None => {
                    self.stopped = true;
                    Message::Stop
                }
            },
            (answer, written) = self.calls.answer() => {
                if let Some(batch) = written {
                    self.tell(&batch);
                }
                // That another process holds the lock is no failure of the store, and a store that
                // failed already is counted once.
                if let Message::Written(Err(error)) = &answer
                    && error.failure != StoreFailure::Fenced
                    && !self.driver.store_fails()
                {
                    self.metrics.store_failed();
                }
                answer
            }
            Some(answer) = self.answers.recv() => {
                if let Message::Answer { input, .. } = &answer
                    && let Input::Polled(poll) = input.as_ref()
                {
                    self.reading.polled(poll);
                }
                answer
            }
            () = tokio::time::sleep(wait) => Message::Woke,
        }
    }

    fn carry_out(&mut self, instruction: Instruction) -> Option<End> {
        match instruction {
            Instruction::Store(call) => {
                let metrics = Arc::clone(&self.metrics);
                self.calls.begin(call, |events| metrics.sums().changes(events));
            }
            Instruction::Poll { term, plan } => {
                let (world, sender) = (self.world.clone(), self.sender.clone());
                dispatch::poll(plan, term, world, Arc::clone(&self.metrics), sender);
            }
            Instruction::Query { term, query, limit } => {
                dispatch::query(query, term, &self.world, &self.permits, &self.sender, limit);
            }
            Instruction::Send { term, action } => {
                dispatch::send(action, term, &self.world, &self.permits, &self.sender);
            }
            Instruction::Say(Level::Info, line) => tracing::info!("{line}"),
            Instruction::Say(Level::Warn, line) => tracing::warn!("{line}"),
            Instruction::Say(Level::Error, line) => tracing::error!("{line}"),
            Instruction::Show(Shown::Leader) => self.changed = true,
            Instruction::Show(shown) => self.show_other(shown),
            Instruction::CatchUp(tally) => self.metrics.sums().catch_up(&tally),
            Instruction::End(end) => return Some(end),
        }
        None
    }

    /// A write is durable: its events are reported.
    fn tell(&self, batch: &Batch) {
        for event in &batch.events {
            report::log::event(event);
            self.metrics.sums().event(event);
            if let Some(listener) = &self.listener {
                listener(event);
            }
        }
        for record in &batch.records {
            if let Record::Removed(slot) = record {
                self.metrics.sums().forget(slot);
            }
        }
        self.metrics.sums().saved(&batch.tally);
    }

    /// Shows the fleet as this process leads it, if it has changed.
    fn show_leader(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        self.shown = Instant::now();
        let fleet = self.driver.fleet();
        let recoveries = || fleet.slots.values().filter_map(|r| r.recovery.as_ref());
        let pending = |call: Option<&Call>| matches!(call, Some(Call::Intended | Call::Unknown));
        let status = self.document();
        if let Some(protection) = self.protection.as_mut().filter(|_| fleet.polls > 0) {
            protection::log(protection, &status);
        }
        self.show(Snapshot {
            status,
            turned_at: self.turned_at(),
            polls: fleet.polls,
            reading: self.reading.clone(),
            store_failing: self.driver.store_fails(),
            intents_pending: recoveries().filter(|r| pending(r.call())).count(),
            budget_remaining: remaining(fleet),
            dry_run: fleet.settings.dry_run,
            lock: Lock::Held,
        });
    }

    /// When it last made progress: not while polls do not end, or a call of the store hangs.
    fn turned_at(&self) -> Option<Timestamp> {
        let alive = self.driver.is_alive(clock::boottime());
        if alive { Some(Timestamp::now()) } else { self.published.get().turned_at }
    }

    /// Shows the slots as they were last seen while it is not known who leads, or as the leader's
    /// journal has them.
    fn show_other(&mut self, shown: Shown) {
        self.changed = false;
        let settings = self.driver.settings();
        let (turned_at, dry_run) = (self.turned_at(), settings.dry_run);
        let reading = self.reading.clone();
        let snapshot = Snapshot { turned_at, dry_run, reading, ..Snapshot::default() };
        self.show(match shown {
            Shown::Leader => return,
            Shown::Unknown { store_failing } => {
                let status = self.published.get().status.clone();
                Snapshot { status, store_failing, ..snapshot }
            }
            Shown::Standby(stored, lease) => {
                let (holder, now) = (Some(lease.holder.as_str()), Timestamp::now());
                let status = view::at_rest(settings, stored.slots, stored.ledger, holder, now);
                Snapshot { status, lock: Lock::StandingBy(lease.holder), ..snapshot }
            }
        });
    }

    fn show(&self, snapshot: Snapshot) {
        self.notify.status(&snapshot);
        self.published.publish(snapshot);
    }
}
