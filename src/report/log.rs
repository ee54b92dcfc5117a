//! Logs by tracing: text for people, JSON in Cloud Logging's shape for machines; always on standard error.

use std::fmt;
use std::io::IsTerminal;

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::model::event::{Event, What};

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text each.
    Text,
    /// For the systemd journal: a priority in front of each line (`sd-daemon(3)`), no time.
    Journal,
    /// One JSON object each, with `severity`, `time` and `message` as Cloud Logging reads them.
    Json,
}

/// Starts logging. `filter` as in `info` or `tpu_watchdog=debug`; a malformed one falls back to `info`.
pub fn init(format: LogFormat, filter: Option<&str>) {
    let filter = filter.and_then(|f| EnvFilter::try_new(f).ok()).unwrap_or_else(|| EnvFilter::new("warn,tpu_watchdog=info"));
    // The library would print that a line could not be written, and panic where that can't be printed either: a full disk.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    // A second start (in tests) keeps the first subscriber.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
        LogFormat::Journal => builder.event_format(Journal).try_init(),
        LogFormat::Json => builder.event_format(CloudLogging).try_init(),
    };
}

/// One line for one event, at the level that its kind deserves.
pub fn event(event: &Event) {
    let slot = event.slot.as_deref().unwrap_or("-");
    let kind = serde_json::to_value(&event.what).ok().and_then(|v| v["event"].as_str().map(str::to_owned)).unwrap_or_default();
    match &event.what {
        What::InvariantViolation { .. } => tracing::error!(slot, event = kind, "{}", event.message),
        What::BreakerOpened { .. } => tracing::error!(slot, event = kind, "{}", event.message),
        What::Condemned { .. } | What::RecoveryFailure { .. } | What::JobFailed { .. } => {
            tracing::warn!(slot, event = kind, "{}", event.message);
        }
        What::Decision { action, .. } if action == "escalate" => tracing::error!(slot, event = kind, "{}", event.message),
        _ => tracing::info!(slot, event = kind, "{}", event.message),
    }
}

/// <https://cloud.google.com/logging/docs/structured-logging>
struct CloudLogging;

impl<S, N> FormatEvent<S, N> for CloudLogging
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &tracing::Event<'_>) -> fmt::Result {
        let severity = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "INFO",
            Level::DEBUG | Level::TRACE => "DEBUG",
        };
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let mut line = fields.0;
        line.insert("severity".into(), json!(severity));
        line.insert("time".into(), json!(jiff::Timestamp::now().to_string()));
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// One line with its priority, which journald takes off.
struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &tracing::Event<'_>) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let text = |name: &str| fields.0.get(name).and_then(Value::as_str).unwrap_or_default();
        let slot = match text("slot") {
            "" | "-" => String::new(),
            slot => format!("{slot}: "),
        };
        // A line a priority: what has several lines is several entries.
        for line in text("message").lines() {
            writeln!(writer, "<{priority}>{slot}{line}")?;
        }
        Ok(())
    }
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), json!(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), json!(format!("{value:?}")));
    }
}
