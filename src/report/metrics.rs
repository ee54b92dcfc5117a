//! Prometheus metrics, by the names of the contract. Gauges follow the published snapshot; sums are
//! in `sums`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus::{Gauge, GaugeVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::obstacles::Obstacles;
use super::published::{Lock, Snapshot};
use super::sums::{Collected, Sums};
use crate::model::condition::Condition;
use crate::model::failure::Failure;
use crate::model::view::BreakerState;

/// The metrics of the process itself, also while it stands by.
const OF_THE_PROCESS: [&str; 4] = ["build_info", "lock_held", "dry_run", "store_failing"];

/// All metrics.
pub struct Metrics {
    registry: Registry,
    sums: Arc<Sums>,
    last_poll_success: Gauge,
    slots: IntGaugeVec,
    slot_condition: IntGaugeVec,
    slot_healthy: IntGaugeVec,
    slot_unhealthy_since: GaugeVec,
    slot_maintenance_start: GaugeVec,
    slot_attempts: IntGaugeVec,
    slot_paused: IntGaugeVec,
    slot_opted_out: IntGaugeVec,
    obstacles: Obstacles,
    recoveries_in_progress: IntGauge,
    breaker_open: IntGauge,
    budget_remaining: IntGauge,
    paused: IntGauge,
    dry_run: IntGauge,
    lock_held: IntGauge,
    store_failing: IntGauge,
    intents_pending: IntGauge,
    job_step: IntGaugeVec,
    job_phase: IntGaugeVec,
    job_checkpoint_step: IntGaugeVec,
    job_checkpoint_time: GaugeVec,
}

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// Only when two metrics share a name, which a test rules out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("tpuwatchdog".into()), None)?;
        let r = &registry;
        let build = IntGaugeVec::new(
            Opts::new("build_info", "Version of this program; always 1."),
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        r.register(Box::new(build))?;
        let sums = Arc::new(Sums::new()?);
        r.register(Box::new(Collected(Arc::clone(&sums))))?;
        Ok(Metrics {
            sums,
            last_poll_success: add(
                r,
                Gauge::new(
                    "last_poll_success_timestamp_seconds",
                    "When every zone was last read.",
                )?,
            )?,
            slots: add(r, gauges("slots", "Slots by condition.", &["condition"])?)?,
            slot_condition: add(
                r,
                gauges(
                    "slot_condition",
                    "1 for the present condition of a slot.",
                    &["slot", "zone", "condition"],
                )?,
            )?,
            slot_healthy: add(
                r,
                gauges("slot_healthy", "1 while the slot is healthy.", &["slot", "zone"])?,
            )?,
            slot_unhealthy_since: add(
                r,
                GaugeVec::new(
                    Opts::new(
                        "slot_unhealthy_since_timestamp_seconds",
                        "First symptom of the present trouble.",
                    ),
                    &["slot"],
                )?,
            )?,
            slot_maintenance_start: add(
                r,
                GaugeVec::new(
                    Opts::new(
                        "slot_maintenance_start_timestamp_seconds",
                        "Start of the maintenance window that the API announces.",
                    ),
                    &["slot"],
                )?,
            )?,
            slot_attempts: add(
                r,
                gauges("slot_attempts", "Judged recoveries without progress.", &["slot"])?,
            )?,
            slot_paused: add(
                r,
                gauges(
                    "slot_paused",
                    "1 while an operator has paused the slot, by name or with all.",
                    &["slot"],
                )?,
            )?,
            slot_opted_out: add(
                r,
                gauges("slot_opted_out", "1 while tpu-watchdog=off opts it out.", &["slot"])?,
            )?,
            obstacles: Obstacles::new(r)?,
            recoveries_in_progress: add(
                r,
                IntGauge::new("recoveries_in_progress", "Recoveries under way.")?,
            )?,
            breaker_open: add(
                r,
                IntGauge::new("breaker_open", "1 while the storm breaker is open.")?,
            )?,
            budget_remaining: add(
                r,
                IntGauge::new("budget_remaining", "Judged slots that may still go into recovery.")?,
            )?,
            paused: add(r, IntGauge::new("paused", "Slots paused by an operator.")?)?,
            dry_run: add(r, IntGauge::new("dry_run", "1 with dry_run.")?)?,
            lock_held: add(
                r,
                IntGauge::new(
                    "lock_held",
                    "1 while this process holds the lock and acts; 0 while it stands by.",
                )?,
            )?,
            store_failing: add(
                r,
                IntGauge::new(
                    "store_failing",
                    "1 while the state can't be written: nothing is done.",
                )?,
            )?,
            intents_pending: add(
                r,
                IntGauge::new("intents_pending", "Journaled calls whose result is not known yet.")?,
            )?,
            job_phase: add(r, gauges("job_phase", "1 for the job's phase.", &["slot", "phase"])?)?,
            job_step: add(r, gauges("job_step", "Newest step that the job reported.", &["slot"])?)?,
            job_checkpoint_step: add(
                r,
                gauges(
                    "job_checkpoint_step",
                    "Step of the newest complete checkpoint.",
                    &["slot"],
                )?,
            )?,
            job_checkpoint_time: add(
                r,
                GaugeVec::new(
                    Opts::new(
                        "job_checkpoint_timestamp_seconds",
                        "When the newest complete checkpoint was written.",
                    ),
                    &["slot"],
                )?,
            )?,
            registry,
        })
    }

    /// One attempt of an API call is over.
    pub fn api(&self, service: &str, method: &str, took: Duration, failure: Option<&Failure>) {
        self.sums.count("api_requests_total", &[service, method]);
        self.sums.observe("api_request_duration_seconds", &[service, method], took.as_secs_f64());
        if let Some(failure) = failure {
            self.api_failed(service, method, failure);
        }
    }

    /// A call failed, or its answer was not the API's.
    pub fn api_failed(&self, service: &str, method: &str, failure: &Failure) {
        self.sums.count("api_request_failures_total", &[service, method, failure.class.name()]);
    }

    /// A poll is over.
    pub fn poll(&self, took: Duration) {
        self.sums.observe("poll_duration_seconds", &[], took.as_secs_f64());
    }

    /// A commit failed.
    pub fn store_failed(&self) {
        self.sums.count("store_failures_total", &[]);
    }

    /// Counters and histograms, which the journal keeps.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// The text of `/metrics`.
    pub fn render(&self, snapshot: &Snapshot) -> String {
        self.gauges(snapshot);
        let mut families = self.registry.gather();
        // Of several watchdogs over one fleet one speaks for it: sums over all of them must not
        // count a slot twice.
        if snapshot.lock != Lock::Held {
            families
                .retain(|family| OF_THE_PROCESS.iter().any(|name| family.name().ends_with(name)));
        }
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }

    fn gauges(&self, snapshot: &Snapshot) {
        let status = &snapshot.status;
        let seconds = |at: Timestamp| at.as_millisecond() as f64 / 1000.0;
        self.last_poll_success.set(status.observed_at.map_or(0.0, seconds));
        for condition in Condition::ALL {
            let count = status.tpus.iter().filter(|s| s.condition == condition).count();
            self.slots.with_label_values(&[condition.name()]).set(count as i64);
        }
        self.obstacles.set(status);
        // Slots come and go with the config: a slot that left it must not stay on the page.
        for family in [
            &self.slot_condition,
            &self.slot_healthy,
            &self.slot_attempts,
            &self.slot_paused,
            &self.slot_opted_out,
            &self.job_step,
            &self.job_phase,
            &self.job_checkpoint_step,
        ] {
            family.reset();
        }
        for family in
            [&self.slot_unhealthy_since, &self.slot_maintenance_start, &self.job_checkpoint_time]
        {
            family.reset();
        }
        for slot in &status.tpus {
            let (name, zone) = (slot.name.as_str(), slot.zone.as_str());
            self.slot_condition.with_label_values(&[name, zone, slot.condition.name()]).set(1);
            self.slot_healthy
                .with_label_values(&[name, zone])
                .set(i64::from(slot.condition == Condition::Healthy));
            self.slot_attempts.with_label_values(&[name]).set(slot.attempts.used as i64);
            self.slot_paused.with_label_values(&[name]).set(i64::from(slot.paused));
            self.slot_opted_out.with_label_values(&[name]).set(i64::from(slot.opted_out));
            if let Some(at) = slot.unhealthy_since {
                self.slot_unhealthy_since.with_label_values(&[name]).set(seconds(at));
            }
            if let Some(at) = slot.maintenance_start {
                self.slot_maintenance_start.with_label_values(&[name]).set(seconds(at));
            }
            let Some(job) = &slot.job else { continue };
            if let Some(phase) = job.phase {
                self.job_phase.with_label_values(&[name, phase.name()]).set(1);
            }
            if let Some(step) = job.step {
                self.job_step.with_label_values(&[name]).set(step as i64);
            }
            if let Some(step) = job.checkpoint_step {
                self.job_checkpoint_step.with_label_values(&[name]).set(step as i64);
            }
            if let Some(at) = job.checkpoint_at {
                self.job_checkpoint_time.with_label_values(&[name]).set(seconds(at));
            }
        }
        self.recoveries_in_progress
            .set(status.tpus.iter().filter(|s| s.phase.is_some()).count() as i64);
        self.breaker_open.set(i64::from(status.breaker == BreakerState::Open));
        self.budget_remaining.set(snapshot.budget_remaining as i64);
        self.paused.set(status.tpus.iter().filter(|s| s.paused).count() as i64);
        self.dry_run.set(i64::from(snapshot.dry_run));
        self.store_failing.set(i64::from(snapshot.store_failing));
        self.lock_held.set(i64::from(snapshot.lock == Lock::Held));
        self.intents_pending.set(snapshot.intents_pending as i64);
    }
}

fn add<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    metric: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    IntGaugeVec::new(Opts::new(name, help), labels)
}
