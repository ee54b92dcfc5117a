//! Quiet hours: times in which judged slots are left alone, by a cron expression and a length.

use std::str::FromStr as _;
use std::time::Duration;

use jiff::Timestamp;

use super::time::after;

/// One entry of `quiet_hours`. Times are UTC.
#[derive(Debug, Clone)]
pub struct QuietHours {
    /// As in the config: with seconds, as the cron crate reads it.
    pub cron: String,
    /// How long each lasts.
    pub lasts: Duration,
    schedule: cron::Schedule,
}

impl PartialEq for QuietHours {
    fn eq(&self, other: &Self) -> bool {
        (&self.cron, self.lasts) == (&other.cron, other.lasts)
    }
}

impl QuietHours {
    /// Reads the expression.
    ///
    /// # Errors
    /// The mistake in it, in words.
    pub fn new(cron: &str, lasts: Duration) -> Result<Self, String> {
        let schedule = cron::Schedule::from_str(cron).map_err(|error| error.to_string())?;
        Ok(QuietHours { cron: cron.to_owned(), lasts, schedule })
    }

    /// When the quiet that holds at `now` ends; none where it is not quiet.
    pub fn until(&self, now: Timestamp) -> Option<Timestamp> {
        // The last start that is not later than now: where they overlap, the latest end counts.
        let next = chrono::DateTime::from_timestamp(now.as_second() + 1, 0)?;
        let start = self
            .schedule
            .after(&next)
            .next_back()
            .and_then(|start| Timestamp::from_second(start.timestamp()).ok())?;
        Some(after(start, self.lasts)).filter(|end| now < *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_begins_with_the_expression_and_ends_after_its_length() {
        let hours = QuietHours::new("0 0 9 * * MON-FRI", Duration::from_secs(8 * 3600)).unwrap();
        let at = |text: &str| hours.until(text.parse().unwrap()).map(|end| end.to_string());
        assert_eq!(at("2026-06-01T08:59:59Z"), None, "a Monday");
        assert_eq!(at("2026-06-01T09:00:00Z").as_deref(), Some("2026-06-01T17:00:00Z"));
        assert_eq!(at("2026-06-01T16:59:59.9Z").as_deref(), Some("2026-06-01T17:00:00Z"));
        assert_eq!(at("2026-06-01T17:00:00Z"), None);
        assert_eq!(at("2026-06-06T12:00:00Z"), None, "a Saturday");
        let hourly = QuietHours::new("0 0 * * * *", Duration::from_secs(5400)).unwrap();
        let end = hourly.until("2026-06-01T12:10:00Z".parse().unwrap()).unwrap();
        assert_eq!(end.to_string(), "2026-06-01T13:30:00Z", "the next begins before this one ends");
        assert!(QuietHours::new("at nine", Duration::ZERO).is_err());
    }
}
