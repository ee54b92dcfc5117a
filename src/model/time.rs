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

/// A duration as people write it: `90s`, `1h 30m`, `2d`; a day has 24 hours, a week 7 days.
pub fn duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let whole = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(whole).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_it_is_written() {
        for (text, seconds) in
            [("90s", 90), ("1h 30m", 5_400), ("2d", 172_800), ("1w", 604_800), ("1d 12h", 129_600)]
        {
            assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "2", "-1h", "1 fortnight", "1mo", "99999999999d"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
