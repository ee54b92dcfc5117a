//! Counters and histograms. They live in the journal, so that neither a restart nor a run that
//! lasts a minute sets them back: what an event counts is written with the event's own commit.

use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::model::condition::Condition;
use crate::model::event::{Event, What};
use crate::model::exit::Stuck;
use crate::model::tally::{self, Sum, Tally, key};

/// Seconds: from one to four hours.
const LONG: &[f64] = &[
    1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 5400.0, 7200.0,
    14400.0,
];
/// Seconds of one API call or poll.
const CALL: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// One family: its name, what it says, its labels, and the bounds of a histogram.
struct Family {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    bounds: &'static [f64],
}

const fn counter(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
) -> Family {
    Family { name, help, labels, bounds: &[] }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    bounds: &'static [f64],
) -> Family {
    Family { name, help, labels, bounds }
}

const FAMILIES: [Family; 15] = [
    histogram("poll_duration_seconds", "Duration of a poll.", &[], CALL),
    counter("api_requests_total", "Attempts of API calls.", &["service", "method"]),
    counter(
        "api_request_failures_total",
        "Failed attempts of API calls.",
        &["service", "method", "code"],
    ),
    histogram(
        "api_request_duration_seconds",
        "Duration of an attempt of an API call.",
        &["service", "method"],
        CALL,
    ),
    counter("recoveries_total", "Recoveries that ended well.", &["cause"]),
    counter(
        "recovery_failures_total",
        "Creates that failed or were refused.",
        &["cause", "reason"],
    ),
    histogram("recovery_duration_seconds", "From condemned to over.", &["cause"], LONG),
    histogram(
        "recovery_phase_duration_seconds",
        "Duration of a recovery's phase.",
        &["phase"],
        LONG,
    ),
    histogram("detection_delay_seconds", "From the first symptom to condemned.", &[], LONG),
    counter("store_failures_total", "Commits that failed: nothing was done.", &[]),
    counter("invariant_violations_total", "Plans refused by the safety check: a defect each.", &[]),
    counter("job_launches_total", "Run orders written.", &["slot"]),
    counter("job_submissions_total", "Submissions of training jobs.", &["slot", "result"]),
    counter(
        "job_failures_total",
        "Jobs that ended, or can't start, and that nothing starts again. Class exit: restarts used up; ended: a training job.",
        &["slot", "class"],
    ),
    counter(
        "lost_seconds_total",
        "Time from first symptom to recovery, without that in a queue, which is cause waiting.",
        &["slot", "cause"],
    ),
];

fn bounds(family: &str) -> &'static [f64] {
    FAMILIES.iter().find(|f| f.name == family).map_or(&[], |f| f.bounds)
}

/// All sums of this process, and which of them the journal has.
pub struct Sums {
    descriptions: Vec<Desc>,
    live: Mutex<Tally>,
    saved: Mutex<Tally>,
}

impl Sums {
    /// Empty ones.
    ///
    /// # Errors
    /// When a name is not a metric's name, which a test rules out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let describe = |f: &Family| {
            let labels = f.labels.iter().map(|l| (*l).to_owned()).collect();
            Desc::new(f.name.to_owned(), f.help.to_owned(), labels, Default::default())
        };
        let descriptions = FAMILIES.iter().map(describe).collect::<Result<_, _>>()?;
        Ok(Sums { descriptions, live: Mutex::default(), saved: Mutex::default() })
    }

    /// Adds one to a counter.
    pub fn count(&self, family: &str, labels: &[&str]) {
        tally::count(&mut self.live(), key(family, labels), 1.0);
    }

    /// Puts seconds into a histogram.
    pub fn observe(&self, family: &str, labels: &[&str], seconds: f64) {
        tally::observe(&mut self.live(), key(family, labels), seconds, bounds(family));
    }

    /// Counts an event, once it is durable.
    pub fn event(&self, event: &Event) {
        count_event(&mut self.live(), event);
    }

    /// The sums that the journal does not have yet, with these events of the coming commit.
    pub fn changes(&self, events: &[Event]) -> Vec<(String, Sum)> {
        let mut next = self.live().clone();
        for event in events {
            count_event(&mut next, event);
        }
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        next.into_iter().filter(|(key, sum)| saved.get(key) != Some(sum)).collect()
    }

    /// Nothing is known of a slot any longer.
    pub fn forget(&self, slot: &str) {
        self.live().retain(|key, _| !tally::is_of(key, slot));
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved.retain(|key, _| !tally::is_of(key, slot));
    }

    /// The journal has these now.
    pub fn saved(&self, changes: &[(String, Sum)]) {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner).extend(changes.iter().cloned());
    }

    /// The journal was read, and may be ahead of this process.
    pub fn catch_up(&self, stored: &Tally) {
        tally::catch_up(&mut self.live(), stored);
        stored.clone_into(&mut self.saved.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn live(&self) -> MutexGuard<'_, Tally> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count_event(tally: &mut Tally, event: &Event) {
    let slot = event.slot.as_deref().unwrap_or_default();
    let mut count =
        |family: &str, labels: &[&str], by: f64| tally::count(tally, key(family, labels), by);
    match &event.what {
        What::RecoveryFailure { cause, reason } => {
            count("recovery_failures_total", &[cause.name(), reason.name()], 1.0)
        }
        What::Outcome { submission: Some(result), .. } => {
            count("job_submissions_total", &[slot, result.name()], 1.0)
        }
        What::Launch { .. } => count("job_launches_total", &[slot], 1.0),
        What::JobFailed { stuck, code } => {
            // A training job has no exit of ours.
            let ended = if code.is_some() { Stuck::GaveUp.class() } else { "ended" };
            let class = stuck.map_or(ended, Stuck::class);
            count("job_failures_total", &[slot, class], 1.0)
        }
        What::InvariantViolation { .. } => count("invariant_violations_total", &[], 1.0),
        What::Recovered { cause, down_seconds, queued_seconds, .. } => {
            let lost = (down_seconds - queued_seconds).max(0.0);
            count("recoveries_total", &[cause.name()], 1.0);
            count("lost_seconds_total", &[slot, cause.name()], lost);
        }
        What::Queued { seconds } => {
            count("lost_seconds_total", &[slot, Condition::Waiting.name()], *seconds)
        }
        _ => {}
    }
    let mut observe = |family: &str, labels: &[&str], s: f64| {
        tally::observe(tally, key(family, labels), s, bounds(family))
    };
    match &event.what {
        What::Condemned { detection_seconds, .. } => {
            observe("detection_delay_seconds", &[], *detection_seconds)
        }
        What::Phase { from, seconds, .. } => {
            observe("recovery_phase_duration_seconds", &[from.name()], *seconds)
        }
        What::Recovered { cause, seconds, .. } => {
            observe("recovery_duration_seconds", &[cause.name()], *seconds)
        }
        _ => {}
    }
}

/// The sums as the registry wants them.
pub struct Collected(pub std::sync::Arc<Sums>);

impl Collector for Collected {
    fn desc(&self) -> Vec<&Desc> {
        self.0.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let live = self.0.live();
        FAMILIES.iter().map(|family| collect(family, &live)).collect()
    }
}

fn collect(family: &Family, tally: &Tally) -> proto::MetricFamily {
    let mut out = proto::MetricFamily::default();
    out.set_name(family.name.to_owned());
    out.set_help(family.help.to_owned());
    let is_histogram = !family.bounds.is_empty();
    out.set_field_type(if is_histogram {
        proto::MetricType::HISTOGRAM
    } else {
        proto::MetricType::COUNTER
    });
    let prefix = format!("{}|", family.name);
    let mut metrics: Vec<proto::Metric> = Vec::new();
    let members =
        tally.range(family.name.to_owned()..).take_while(|(k, _)| k.starts_with(family.name));
    for (name, sum) in members.filter(|(k, _)| *k == family.name || k.starts_with(&prefix)) {
        let values: Vec<&str> = name.split('|').skip(1).collect();
        if values.len() == family.labels.len() {
            metrics.push(metric(family, &values, sum));
        }
    }
    // Without labels a family is there from the start, so that a rule over it never has nothing to
    // look at.
    if metrics.is_empty() && family.labels.is_empty() {
        let zero = if is_histogram {
            Sum::Spread { sum: 0.0, buckets: vec![0; family.bounds.len() + 1] }
        } else {
            Sum::Count(0.0)
        };
        metrics.push(metric(family, &[], &zero));
    }
    out.set_metric(metrics);
    out
}

fn metric(family: &Family, values: &[&str], sum: &Sum) -> proto::Metric {
    let label = |(name, value): (&&str, &&str)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    let mut metric =
        proto::Metric::from_label(family.labels.iter().zip(values).map(label).collect());
    match sum {
        Sum::Count(total) => {
            let mut counter = proto::Counter::default();
            counter.set_value(*total);
            metric.set_counter(counter);
        }
        Sum::Spread { sum, buckets } => {
            let mut histogram = proto::Histogram::default();
            let mut cumulative = 0;
            let upto = family.bounds.iter().zip(buckets).map(|(bound, count)| {
                cumulative += count;
                let mut bucket = proto::Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(cumulative);
                bucket
            });
            histogram.set_bucket(upto.collect());
            histogram.set_sample_count(buckets.iter().sum());
            histogram.set_sample_sum(*sum);
            metric.set_histogram(histogram);
        }
    }
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn recovered() -> Event {
        let what = What::Recovered {
            cause: Condition::Preempted,
            seconds: 40.0,
            down_seconds: 50.0,
            steps_lost: None,
            repeated_seconds: None,
            queued_seconds: 20.0,
        };
        Event { at: Timestamp::UNIX_EPOCH, slot: Some("a".into()), message: String::new(), what }
    }

    #[test]
    fn an_event_is_counted_once_whether_its_commit_fails_first_or_not_and_survives_a_restart() {
        let sums = Sums::new().unwrap();
        let batch = sums.changes(&[recovered()]);
        assert!(sums.live().is_empty(), "the commit failed: nothing is counted");
        sums.event(&recovered());
        sums.saved(&batch);
        assert!(sums.changes(&[]).is_empty(), "the journal has everything");
        let stored: Tally = batch.into_iter().collect();
        let restarted = Sums::new().unwrap();
        restarted.catch_up(&stored);
        assert_eq!(*restarted.live(), *sums.live());
        assert_eq!(stored["recoveries_total|preempted"], Sum::Count(1.0));
        assert_eq!(stored["lost_seconds_total|a|preempted"], Sum::Count(30.0));
        assert!(
            matches!(&stored["recovery_duration_seconds|preempted"], Sum::Spread { sum, .. } if *sum == 40.0)
        );
    }
}
