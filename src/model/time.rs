//! Arithmetic with times that never fails, and durations for people.

use std::time::Duration;

use jiff::Timestamp;

/// The time from `earlier` to `later`, never less than zero.
pub fn elapsed(earlier: Timestamp, later: Timestamp) -> Duration {
    later.duration_since(earlier).try_into().unwrap_or(Duration::ZERO)
}

/// `at` plus a duration, saturating at the end of time.
pub fn after(at: Timestamp, by: Duration) -> Timestamp {
    at.saturating_add(jiff::SignedDuration::try_from(by).unwrap_or(jiff::SignedDuration::MAX))
        .unwrap_or(Timestamp::MAX)
}

/// A duration for people: two units at most, as in `1h 5m`, `45s`, `1.5s`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 if duration.subsec_millis() >= 50 => format!("{:.1}s", duration.as_secs_f64()),
        0..60 => format!("{seconds}s"),
        60..3600 if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        172_800.. => format!("{}d {}h", seconds / 86_400, (seconds / 3600) % 24),
        _ if (seconds / 60).is_multiple_of(60) => format!("{}h", seconds / 3600),
        _ => format!("{}h {}m", seconds / 3600, (seconds / 60) % 60),
    }
}
