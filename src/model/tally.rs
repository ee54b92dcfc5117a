//! Counters and histograms that outlive the process: they only grow, and the store keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Sums by `family|label|label…`.
pub type Tally = BTreeMap<String, Sum>;

/// One counter, or one histogram.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Sum {
    /// A counter.
    Count(f64),
    /// A histogram.
    Spread {
        /// Of all values.
        sum: f64,
        /// Values up to each bound (not cumulative), and beyond the last.
        buckets: Vec<u64>,
    },
}

/// The families whose first label is a slot: their sums end with what is known of it.
const OF_SLOTS: [&str; 4] =
    ["job_failures_total", "job_launches_total", "job_submissions_total", "lost_seconds_total"];

/// Whether a key is of this slot.
pub fn is_of(key: &str, slot: &str) -> bool {
    let mut parts = key.split('|');
    parts.next().is_some_and(|family| OF_SLOTS.contains(&family)) && parts.next() == Some(slot)
}

/// The key of a counter or histogram.
pub fn key(family: &str, labels: &[&str]) -> String {
    labels.iter().fold(family.to_owned(), |key, label| key + "|" + label)
}

/// Adds to a counter.
pub fn count(tally: &mut Tally, key: String, by: f64) {
    match tally.entry(key).or_insert(Sum::Count(0.0)) {
        Sum::Count(total) => *total += by,
        other => *other = Sum::Count(by),
    }
}

/// Puts a value into a histogram with these upper bounds.
pub fn observe(tally: &mut Tally, key: String, value: f64, bounds: &[f64]) {
    let empty = || Sum::Spread { sum: 0.0, buckets: vec![0; bounds.len() + 1] };
    let entry = tally.entry(key).or_insert_with(empty);
    // Another version may have had other bounds.
    if !matches!(entry, Sum::Spread { buckets, .. } if buckets.len() == bounds.len() + 1) {
        *entry = empty();
    }
    if let Sum::Spread { sum, buckets } = entry {
        *sum += value;
        let index = bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len());
        buckets[index] += 1;
    }
}

/// Takes over whatever is further on in `other`: sums only grow, so that the higher one includes
/// the lower.
pub fn catch_up(tally: &mut Tally, other: &Tally) {
    let reach = |sum: &Sum| match sum {
        Sum::Count(total) => *total,
        Sum::Spread { buckets, .. } => buckets.iter().sum::<u64>() as f64,
    };
    for (key, sum) in other {
        if tally.get(key).is_none_or(|own| reach(own) < reach(sum)) {
            tally.insert(key.clone(), sum.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_grow_survive_as_json_and_catch_up() {
        let mut tally = Tally::new();
        count(&mut tally, key("recoveries_total", &["preempted"]), 1.0);
        observe(&mut tally, key("seconds", &[]), 3.0, &[1.0, 5.0]);
        observe(&mut tally, key("seconds", &[]), 9.0, &[1.0, 5.0]);
        assert_eq!(tally["seconds"], Sum::Spread { sum: 12.0, buckets: vec![0, 1, 1] });
        let stored: Tally = serde_json::from_str(&serde_json::to_string(&tally).unwrap()).unwrap();
        assert_eq!(stored, tally);
        count(&mut tally, "recoveries_total|preempted".into(), 1.0);
        let mut behind = stored.clone();
        catch_up(&mut behind, &tally);
        assert_eq!(behind, tally);
        catch_up(&mut behind, &stored);
        assert_eq!(behind, tally, "what is behind changes nothing");
    }

    #[test]
    fn a_histogram_of_another_version_starts_from_scratch() {
        let mut tally =
            Tally::from([("seconds".to_owned(), Sum::Spread { sum: 1.0, buckets: vec![1] })]);
        observe(&mut tally, "seconds".into(), 0.5, &[1.0]);
        assert_eq!(tally["seconds"], Sum::Spread { sum: 0.5, buckets: vec![1, 0] });
    }
}
