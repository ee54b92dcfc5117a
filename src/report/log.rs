//! Logs by tracing: text for people, JSON in Cloud Logging's shape for machines; always on standard
//! error.

use std::fmt;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::model::beacon::plain;
use crate::model::event::{Event, What};
use crate::model::view::ActionName;

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

/// Starts logging. `filter` as in `info` or `tpu_watchdog=debug`; a malformed one falls back to
/// `info`.
pub fn init(format: LogFormat, filter: Option<&str>, colours: bool) {
    let filter_text = filter;
    let wanted = filter.map(EnvFilter::try_new);
    let wrong = wanted.as_ref().and_then(|wanted| Some(wanted.as_ref().err()?.to_string()));
    let filter =
        wanted.and_then(Result::ok).unwrap_or_else(|| EnvFilter::new("warn,tpu_watchdog=info"));
    // A second start (in tests) keeps the first subscriber.
    let _ = tracing::dispatcher::set_global_default(dispatch(
        format,
        filter,
        std::io::stderr().is_terminal() && colours,
        std::io::stderr,
    ));
    if let (Some(why), Some(filter)) = (wrong, filter_text) {
        tracing::warn!(
            "RUST_LOG={filter:?} is no filter ({why}); write \"info\" or \"tpu_watchdog=debug\"; info is used"
        );
    }
}

/// Each event is one line, whatever it tells of: names, states and messages come from guests and
/// APIs, and a newline or an escape sequence in one of them must not write lines of its own or draw
/// on a terminal.
fn dispatch<W>(format: LogFormat, filter: EnvFilter, colours: bool, writer: W) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The library would print that a line could not be written, and panic where that can't be
    // printed either: a full disk.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(colours).event_format(Text).finish().into(),
        LogFormat::Journal => builder.event_format(Journal).finish().into(),
        LogFormat::Json => builder.event_format(CloudLogging).finish().into(),
    }
}

/// One line for one event, at the level that its kind deserves.
pub fn event(event: &Event) {
    let slot = event.slot.as_deref().unwrap_or("-");
    let kind = serde_json::to_value(&event.what)
        .ok()
        .and_then(|v| v["event"].as_str().map(str::to_owned))
        .unwrap_or_default();
    match &event.what {
        What::InvariantViolation { .. } => tracing::error!(slot, event = kind, "{}", event.message),
        What::BreakerOpened { .. } => tracing::error!(slot, event = kind, "{}", event.message),
        What::Condemned { .. }
        | What::RecoveryFailure { .. }
        | What::JobFailed { .. }
        | What::SetupFailed { .. }
        | What::CheckpointTrouble => {
            tracing::warn!(slot, event = kind, "{}", event.message);
        }
        What::Decision { action: ActionName::Escalate, .. } => {
            tracing::error!(slot, event = kind, "{}", event.message)
        }
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
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
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
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        writeln!(writer, "<{priority}>{}", told(event))
    }
}

/// The slot and the message.
fn told(event: &tracing::Event<'_>) -> String {
    let mut fields = Fields(Map::new());
    event.record(&mut fields);
    let text = |name: &str| fields.0.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("slot") {
        "" | "-" => text("message").to_owned(),
        slot => format!("{slot}: {}", text("message")),
    }
}

/// Time, level, slot, message: a reader looks for the slot first.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        let color = match *event.metadata().level() {
            Level::ERROR => AnsiColor::Red,
            Level::WARN => AnsiColor::Yellow,
            Level::INFO => AnsiColor::Green,
            Level::DEBUG | Level::TRACE => AnsiColor::Blue,
        };
        let style = match writer.has_ansi_escapes() {
            true => Style::new().fg_color(Some(color.into())),
            false => Style::new(),
        };
        let time = jiff::Timestamp::now().strftime("%FT%H:%M:%SZ");
        let level = event.metadata().level();
        writeln!(writer, "{time} {style}{level:>5}{style:#} {}", told(event))
    }
}

/// The fields of a line by name; text without what would break the line.
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), json!(plain(value)));
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
        self.0.insert(field.name().into(), json!(plain(&format!("{value:?}"))));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    const HOSTILE: &str = "a\n<3>forged\r\u{1b}[31m\u{7f}\u{85}\u{9b}2J\u{2028}\u{2029}\u{202e}z";

    fn logged(format: LogFormat) -> String {
        let written = Written::default();
        let target = written.clone();
        let dispatch = dispatch(format, EnvFilter::new("info"), false, move || target.clone());
        tracing::dispatcher::with_default(&dispatch, || {
            let error = std::io::Error::other(HOSTILE);
            let span = tracing::error_span!("span", of = HOSTILE, shown = %HOSTILE);
            let _within = span.enter();
            tracing::error!(slot = HOSTILE, shown = %HOSTILE, debug = ?HOSTILE, error = &error as &dyn std::error::Error, "{HOSTILE}");
        });
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn nothing_from_outside_breaks_a_line_in_any_format() {
        for format in [LogFormat::Text, LogFormat::Journal, LogFormat::Json] {
            let text = logged(format);
            let line = text.strip_suffix('\n').unwrap();
            let harmful =
                |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202e}');
            assert!(!line.contains(harmful), "{format:?}: {text:?}");
            assert!(line.contains("a <3>forged [31m 2J z"), "{format:?}: {text:?}");
        }
        let json: Value = serde_json::from_str(&logged(LogFormat::Json)).unwrap();
        let harmful = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202e}');
        for (name, value) in json.as_object().unwrap() {
            assert!(
                !value.as_str().unwrap().contains(harmful),
                "{name}: a reader of the JSON gets {value}"
            );
        }
        assert!(
            logged(LogFormat::Journal).starts_with("<3>a <3>forged [31m 2J z: a <3>forged"),
            "one entry, one priority"
        );
    }
}
