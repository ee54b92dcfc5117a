//! The shell: owns the fleet, feeds the core, carries effects out, keeps the journal's order.
//!
//! No effect before its commit: an action is carried out only when the records that intend it are durable.

mod carry;
mod poll;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::checkpoint::lister::StorageAccess;
use crate::decide::{next_wake, step, unavailable, view};
use crate::google::http::Observer;
use crate::google::tpu::TpuClient;
use crate::model::action::{Effect, Input};
use crate::model::event::Event;
use crate::model::failure::Failure;
use crate::model::fleet::{Fleet, Pending, after, elapsed};
use crate::model::recovery::Call;
use crate::model::settings::Settings;
use crate::model::view::{ActionName, StatusDocument};
use crate::report::metrics::Metrics;
use crate::report::published::{Published, Snapshot};
use crate::report::{self};
use crate::store::{Store, StoreError};

/// Calls under way at once.
const CONCURRENCY: usize = 32;

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
        if let Some(failure) = failure.filter(|f| f.class != crate::model::failure::FailureClass::NotFound) {
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
    /// Finish the current commit and leave.
    Stop,
}

/// The running watchdog.
pub struct Watchdog {
    fleet: Fleet,
    store: Box<dyn Store>,
    world: World,
    metrics: Arc<Metrics>,
    published: Published,
    inputs: mpsc::UnboundedReceiver<Input>,
    sender: mpsc::UnboundedSender<Input>,
    permits: carry::Permits,
    store_failing: bool,
    under_way: usize,
    listener: Option<EventListener>,
}

/// Told about each event after its commit.
pub type EventListener = Box<dyn Fn(&Event)>;

impl Watchdog {
    /// Folds the journal into a fleet.
    ///
    /// # Errors
    /// When the journal can't be read.
    pub fn new(
        settings: Settings,
        store: Box<dyn Store>,
        world: World,
        metrics: Arc<Metrics>,
        published: Published,
    ) -> Result<Self, StoreError> {
        let stored = store.load()?;
        let (sender, inputs) = mpsc::unbounded_channel();
        let fleet = Fleet::new(settings, stored.slots, stored.ledger);
        let permits = carry::Permits::new(CONCURRENCY);
        let mut watchdog = Watchdog {
            fleet,
            store,
            world,
            metrics,
            published,
            inputs,
            sender,
            permits,
            store_failing: false,
            under_way: 0,
            listener: None,
        };
        let settings = watchdog.fleet.settings.clone();
        watchdog.turn(Input::Configured(Box::new(settings)));
        Ok(watchdog)
    }

    /// Tells `listener` about each event from now on.
    pub fn listen(&mut self, listener: EventListener) {
        self.listener = Some(listener);
    }

    /// The status as of the last turn.
    pub fn document(&self) -> StatusDocument {
        view::document(&self.fleet, Timestamp::now())
    }

    /// Polls and recovers until told to stop.
    pub async fn run(&mut self, signals: &mut mpsc::UnboundedReceiver<Signal>) {
        let mut polls = tokio::time::interval(self.fleet.settings.poll.every);
        polls.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut polling = false;
        loop {
            let wake = self.until_wake();
            tokio::select! {
                biased;
                signal = signals.recv() => match signal {
                    Some(Signal::Reload(mut settings)) => {
                        // The client was made for these at the start.
                        settings.alpha = self.fleet.settings.alpha;
                        settings.project.clone_from(&self.fleet.settings.project);
                        if settings.poll.every != self.fleet.settings.poll.every {
                            polls = tokio::time::interval(settings.poll.every);
                            polls.set_missed_tick_behavior(MissedTickBehavior::Skip);
                        }
                        self.turn(Input::Configured(settings));
                    }
                    Some(Signal::Stop) | None => return,
                },
                Some(input) = self.inputs.recv() => {
                    polling &= !matches!(input, Input::Polled(_));
                    self.arrived(input);
                }
                _ = polls.tick() => {
                    if !polling {
                        polling = true;
                        self.poll();
                    }
                }
                () = tokio::time::sleep(wake) => self.turn(Input::Tick),
            }
        }
    }

    /// Polls once, and goes on while something is in flight that may end before the deadline.
    pub async fn once(&mut self, deadline: Instant, signals: &mut mpsc::UnboundedReceiver<Signal>) {
        let every = self.fleet.settings.poll.every;
        let mut next_poll = Instant::now();
        let mut polling = false;
        loop {
            let now = Instant::now();
            if now >= deadline {
                return;
            }
            if now >= next_poll && !polling {
                polling = true;
                next_poll = now + every;
                self.poll();
            }
            let wait = self.until_wake().min(deadline - now).min(next_poll.saturating_duration_since(now));
            tokio::select! {
                biased;
                _ = signals.recv() => return,
                Some(input) = self.inputs.recv() => {
                    polling &= !matches!(input, Input::Polled(_));
                    self.arrived(input);
                }
                () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => self.turn(Input::Tick),
            }
            if !polling && self.under_way == 0 && self.fleet.polls > 0 && !self.due_before(deadline) {
                return;
            }
        }
    }

    /// Looks at everything once and changes nothing: settings must say `dry_run`.
    pub async fn look(&mut self, deadline: Instant) {
        self.poll();
        while self.under_way > 0 {
            match tokio::time::timeout_at(deadline.into(), self.inputs.recv()).await {
                Ok(Some(input)) => self.arrived(input),
                _ => return,
            }
        }
    }

    /// Whether a recovery, or a wait that ends in time, is worth staying for.
    fn due_before(&self, deadline: Instant) -> bool {
        let end = after(Timestamp::now(), deadline.saturating_duration_since(Instant::now()));
        self.fleet.slots.iter().any(|(name, record)| {
            let decision = self.fleet.memory.get(name).and_then(|m| m.decision.as_ref());
            let until = decision.and_then(|d| d.until);
            match decision.map(|d| d.action) {
                Some(ActionName::Hold | ActionName::Escalate) => record.recovery.is_some() && until.is_some_and(|at| at < end),
                Some(ActionName::Wait) => record.recovery.is_some() || until.is_some_and(|at| at < end),
                Some(_) => record.recovery.is_some(),
                None => false,
            }
        })
    }

    fn until_wake(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(60);
        if self.store_failing {
            return Duration::from_secs(1);
        }
        next_wake(&self.fleet).map_or(LONGEST, |at| elapsed(Timestamp::now(), at).max(Duration::from_millis(1))).min(LONGEST)
    }

    fn poll(&mut self) {
        self.under_way += 1;
        let (world, sender, metrics) = (self.world.clone(), self.sender.clone(), Arc::clone(&self.metrics));
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
        self.turn(input);
    }

    /// One turn: the input through the core, its commit, its effects, the new snapshot.
    fn turn(&mut self, input: Input) {
        if self.store_failing && !self.reload() {
            // What became of this call is read back from the world once the journal works again.
            if let Input::Called { slot, .. } = &input {
                self.forget_call(slot);
            }
            self.publish();
            return;
        }
        let now = Timestamp::now();
        for effect in step(&mut self.fleet, input, now) {
            match effect {
                Effect::Look(look) => {
                    self.under_way += 1;
                    carry::look(look, &self.world, &self.permits, &self.sender, self.fleet.settings.poll.every);
                }
                Effect::Commit { records, events, then } => match self.store.commit(&records, &events) {
                    Ok(()) => {
                        for event in &events {
                            report::log::event(event);
                            self.metrics.event(event);
                            if let Some(listener) = &self.listener {
                                listener(event);
                            }
                        }
                        for action in then {
                            self.under_way += 1;
                            carry::act(action, &self.world, &self.permits, &self.sender);
                        }
                    }
                    Err(error) => {
                        self.metrics.store_failed();
                        tracing::error!("{error}; {} calls were not sent", then.len());
                        self.store_failing = true;
                        for action in then {
                            self.forget_call(action.slot());
                        }
                    }
                },
            }
        }
        self.publish();
    }

    /// After a failed commit memory is ahead of the journal: what the journal says counts.
    fn reload(&mut self) -> bool {
        // A commit that changes nothing tells whether the store can be written again.
        let ledger = match self.store.load() {
            Ok(stored) => {
                self.fleet.slots = stored.slots;
                self.fleet.ledger = stored.ledger;
                crate::model::action::Record::Ledger(Box::new(self.fleet.ledger.clone()))
            }
            Err(error) => {
                tracing::error!("{error}");
                return false;
            }
        };
        if let Err(error) = self.store.commit(&[ledger], &[]) {
            tracing::error!("{error}; still nothing is done to any TPU");
            return false;
        }
        for memory in self.fleet.memory.values_mut() {
            let calling = memory.pending.contains(&Pending::Call);
            *memory = crate::model::fleet::Memory::default();
            if calling {
                memory.pending.insert(Pending::Call);
            }
        }
        self.fleet.dirty.clear();
        self.fleet.dirty_specs.clear();
        tracing::info!("the journal can be written again");
        self.store_failing = false;
        let mut settings = self.fleet.settings.clone();
        settings.slots.retain(|name, _| self.fleet.slots.get(name).is_none_or(|record| !record.leaving));
        self.turn(Input::Configured(Box::new(settings)));
        true
    }

    fn forget_call(&mut self, slot: &str) {
        if let Some(memory) = self.fleet.memory.get_mut(slot) {
            memory.pending.remove(&Pending::Call);
        }
    }

    fn publish(&self) {
        let recoveries = || self.fleet.slots.values().filter_map(|r| r.recovery.as_ref());
        let unavailable = unavailable(&self.fleet);
        let allowed = self.fleet.settings.max_unavailable.of(self.fleet.slots.len());
        self.published.publish(Snapshot {
            status: self.document(),
            turned_at: Some(Timestamp::now()),
            polls: self.fleet.polls,
            store_failing: self.store_failing,
            intents_pending: recoveries().filter(|r| matches!(r.call, Some(Call::Intended | Call::Unknown))).count(),
            budget_remaining: allowed.saturating_sub(unavailable),
            dry_run: self.fleet.settings.dry_run,
        });
    }
}
