//! Prometheus metrics, by the names of the contract. Counters follow events, gauges follow the published snapshot.

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use super::published::Snapshot;
use crate::model::condition::Condition;
use crate::model::event::{Event, What};
use crate::model::failure::Failure;
use crate::model::hold::HoldReason;

/// Seconds: from one to four hours.
const LONG_BUCKETS: [f64; 14] =
    [1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 5400.0, 7200.0, 14400.0];
/// Seconds of one API call or poll.
const CALL_BUCKETS: [f64; 9] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// All metrics.
pub struct Metrics {
    registry: Registry,
    last_poll_success: Gauge,
    poll_duration: Histogram,
    api_requests: IntCounterVec,
    api_failures: IntCounterVec,
    api_duration: HistogramVec,
    slots: IntGaugeVec,
    slot_condition: IntGaugeVec,
    slot_healthy: IntGaugeVec,
    slot_unhealthy_since: GaugeVec,
    slot_maintenance_start: GaugeVec,
    slot_attempts: IntGaugeVec,
    recoveries: IntCounterVec,
    recovery_failures: IntCounterVec,
    recoveries_held: IntGaugeVec,
    recoveries_in_progress: IntGauge,
    recovery_duration: HistogramVec,
    phase_duration: HistogramVec,
    detection_delay: Histogram,
    breaker_open: IntGauge,
    budget_remaining: IntGauge,
    paused: IntGauge,
    dry_run: IntGauge,
    intents_pending: IntGauge,
    store_failures: IntCounter,
    violations: IntCounter,
    launches: IntCounterVec,
    job_step: IntGaugeVec,
    job_checkpoint_step: IntGaugeVec,
    job_checkpoint_time: GaugeVec,
    job_failures: IntCounterVec,
    lost_seconds: CounterVec,
}

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// Only when two metrics share a name, which a test rules out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("tpuwatchdog".into()), None)?;
        let r = &registry;
        let build = IntGaugeVec::new(Opts::new("build_info", "Version of this program; always 1."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        r.register(Box::new(build))?;
        Ok(Metrics {
            last_poll_success: add(r, Gauge::new("last_poll_success_timestamp_seconds", "When every zone was last read.")?)?,
            poll_duration: add(
                r,
                Histogram::with_opts(histogram("poll_duration_seconds", "Duration of a poll.", &CALL_BUCKETS))?,
            )?,
            api_requests: add(r, counters("api_requests_total", "Attempts of API calls.", &["service", "method"])?)?,
            api_failures: add(
                r,
                counters("api_request_failures_total", "Failed attempts of API calls.", &["service", "method", "code"])?,
            )?,
            api_duration: add(
                r,
                HistogramVec::new(
                    histogram("api_request_duration_seconds", "Duration of an attempt of an API call.", &CALL_BUCKETS),
                    &["service", "method"],
                )?,
            )?,
            slots: add(r, gauges("slots", "Slots by condition.", &["condition"])?)?,
            slot_condition: add(
                r,
                gauges("slot_condition", "1 for the present condition of a slot.", &["slot", "zone", "condition"])?,
            )?,
            slot_healthy: add(r, gauges("slot_healthy", "1 while the slot is healthy.", &["slot", "zone"])?)?,
            slot_unhealthy_since: add(
                r,
                GaugeVec::new(
                    Opts::new("slot_unhealthy_since_timestamp_seconds", "First symptom of the present trouble."),
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
            slot_attempts: add(r, gauges("slot_attempts", "Recoveries of a slot within its window.", &["slot"])?)?,
            recoveries: add(r, counters("recoveries_total", "Recoveries that ended well.", &["cause"])?)?,
            recovery_failures: add(
                r,
                counters("recovery_failures_total", "Creates that failed or were refused.", &["cause", "reason"])?,
            )?,
            recoveries_held: add(r, gauges("recoveries_held", "Slots that are held, by reason.", &["reason"])?)?,
            recoveries_in_progress: add(r, IntGauge::new("recoveries_in_progress", "Recoveries under way.")?)?,
            recovery_duration: add(
                r,
                HistogramVec::new(histogram("recovery_duration_seconds", "From condemned to over.", &LONG_BUCKETS), &["cause"])?,
            )?,
            phase_duration: add(
                r,
                HistogramVec::new(
                    histogram("recovery_phase_duration_seconds", "Duration of a recovery's phase.", &LONG_BUCKETS),
                    &["phase"],
                )?,
            )?,
            detection_delay: add(
                r,
                Histogram::with_opts(histogram(
                    "detection_delay_seconds",
                    "From the first symptom to condemned.",
                    &LONG_BUCKETS,
                ))?,
            )?,
            breaker_open: add(r, IntGauge::new("breaker_open", "1 while the storm breaker is open.")?)?,
            budget_remaining: add(r, IntGauge::new("budget_remaining", "Judged slots that may still go into recovery.")?)?,
            paused: add(r, IntGauge::new("paused", "Slots paused by a person.")?)?,
            dry_run: add(r, IntGauge::new("dry_run", "1 with dry_run.")?)?,
            intents_pending: add(r, IntGauge::new("intents_pending", "Journaled calls whose result is not known yet.")?)?,
            store_failures: add(r, IntCounter::new("store_failures_total", "Commits that failed: nothing was done.")?)?,
            violations: add(
                r,
                IntCounter::new("invariant_violations_total", "Plans refused by the safety check: a defect each.")?,
            )?,
            launches: add(r, counters("job_launches_total", "Run orders written.", &["slot"])?)?,
            job_step: add(r, gauges("job_step", "Newest step that the job reported.", &["slot"])?)?,
            job_checkpoint_step: add(r, gauges("job_checkpoint_step", "Step of the newest complete checkpoint.", &["slot"])?)?,
            job_checkpoint_time: add(
                r,
                GaugeVec::new(
                    Opts::new("job_checkpoint_timestamp_seconds", "When the newest complete checkpoint was seen."),
                    &["slot"],
                )?,
            )?,
            job_failures: add(r, counters("job_failures_total", "Jobs whose restarts were used up.", &["slot", "class"])?)?,
            lost_seconds: add(
                r,
                CounterVec::new(Opts::new("lost_seconds_total", "Time from first symptom to recovery."), &["slot", "cause"])?,
            )?,
            registry,
        })
    }

    /// One attempt of an API call is over.
    pub fn api(&self, service: &str, method: &str, took: Duration, failure: Option<&Failure>) {
        self.api_requests.with_label_values(&[service, method]).inc();
        self.api_duration.with_label_values(&[service, method]).observe(took.as_secs_f64());
        if let Some(failure) = failure {
            self.api_failed(service, method, failure);
        }
    }

    /// A call failed, or its answer was not the API's.
    pub fn api_failed(&self, service: &str, method: &str, failure: &Failure) {
        self.api_failures.with_label_values(&[service, method, failure.class.name()]).inc();
    }

    /// A poll is over.
    pub fn poll(&self, took: Duration) {
        self.poll_duration.observe(took.as_secs_f64());
    }

    /// A commit failed.
    pub fn store_failed(&self) {
        self.store_failures.inc();
    }

    /// Counts an event.
    pub fn event(&self, event: &Event) {
        let slot = event.slot.as_deref().unwrap_or_default();
        match &event.what {
            What::Condemned { detection_seconds, .. } => self.detection_delay.observe(*detection_seconds),
            What::Phase { from, seconds, .. } => self.phase_duration.with_label_values(&[from.name()]).observe(*seconds),
            What::RecoveryFailure { cause, reason } => self.recovery_failures.with_label_values(&[cause.name(), reason]).inc(),
            What::Recovered { cause, seconds, down_seconds, .. } => {
                self.recoveries.with_label_values(&[cause.name()]).inc();
                self.recovery_duration.with_label_values(&[cause.name()]).observe(*seconds);
                self.lost_seconds.with_label_values(&[slot, cause.name()]).inc_by(*down_seconds);
            }
            What::Launch { .. } => self.launches.with_label_values(&[slot]).inc(),
            What::JobFailed { .. } => self.job_failures.with_label_values(&[slot, "exit"]).inc(),
            What::InvariantViolation { .. } => self.violations.inc(),
            _ => {}
        }
    }

    /// The text of `/metrics`.
    pub fn render(&self, snapshot: &Snapshot) -> String {
        self.gauges(snapshot);
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    fn gauges(&self, snapshot: &Snapshot) {
        let status = &snapshot.status;
        let seconds = |at: Timestamp| at.as_millisecond() as f64 / 1000.0;
        self.last_poll_success.set(status.observed_at.map_or(0.0, seconds));
        for condition in Condition::ALL {
            let count = status.tpus.iter().filter(|s| s.condition == condition).count();
            self.slots.with_label_values(&[condition.name()]).set(count as i64);
        }
        for reason in HoldReason::ALL {
            let count = status.tpus.iter().filter(|s| s.hold.as_deref() == Some(reason.name())).count();
            self.recoveries_held.with_label_values(&[reason.name()]).set(count as i64);
        }
        // Slots come and go with the config: what is not there any more must not stay on the page.
        for family in [&self.slot_condition, &self.slot_healthy, &self.slot_attempts, &self.job_step, &self.job_checkpoint_step] {
            family.reset();
        }
        for family in [&self.slot_unhealthy_since, &self.slot_maintenance_start, &self.job_checkpoint_time] {
            family.reset();
        }
        for slot in &status.tpus {
            let (name, zone) = (slot.name.as_str(), slot.zone.as_str());
            self.slot_condition.with_label_values(&[name, zone, slot.condition.name()]).set(1);
            self.slot_healthy.with_label_values(&[name, zone]).set(i64::from(slot.condition == Condition::Healthy));
            self.slot_attempts.with_label_values(&[name]).set(slot.attempts.used as i64);
            if let Some(at) = slot.unhealthy_since {
                self.slot_unhealthy_since.with_label_values(&[name]).set(seconds(at));
            }
            if let Some(at) = slot.maintenance_start {
                self.slot_maintenance_start.with_label_values(&[name]).set(seconds(at));
            }
            let Some(job) = &slot.job else { continue };
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
        self.recoveries_in_progress.set(status.tpus.iter().filter(|s| s.phase.is_some()).count() as i64);
        self.breaker_open.set(i64::from(status.breaker == "open"));
        self.budget_remaining.set(snapshot.budget_remaining as i64);
        self.paused.set(0);
        self.dry_run.set(i64::from(snapshot.dry_run));
        self.intents_pending.set(snapshot.intents_pending as i64);
    }
}

fn add<C: prometheus::core::Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(buckets.to_vec())
}

fn counters(name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    IntCounterVec::new(Opts::new(name, help), labels)
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    IntGaugeVec::new(Opts::new(name, help), labels)
}
