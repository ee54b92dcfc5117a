//! `once`: one cycle, made for a schedule.

use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::{ConfigFile, Failed, Outcome, load, print, table, wire};
use crate::config::Config;
use crate::core::view::needs_a_person;
use crate::driver::message::{End, Mode};
use crate::model::condition::Condition;
use crate::model::time::{self, elapsed};
use crate::model::view::{ActionName, SlotView};
use crate::report::push;
use crate::report::systemd::Notify;
use crate::shell::clock;
use crate::store::Store;

/// Kept back of a long deadline for what comes after the cycle; a quarter of a short one.
const LAST_THINGS: Duration = Duration::from_secs(8);
/// Pushing metrics.
const PUSH: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct OnceArgs {
    /// Ends before this long has passed, in the middle of a recovery if need be: the next run
    /// carries on.
    #[arg(long, value_name = "DURATION", default_value = "9m", value_parser = duration)]
    deadline: Duration,
    /// Exit code 3 when something waits for an operator. Leave it out under a scheduler that
    /// repeats what fails.
    #[arg(long)]
    fail_on_hold: bool,
}

fn go_on(recoveries: usize) -> String {
    match recoveries {
        1 => "1 recovery continues".to_owned(),
        count => format!("{count} recoveries continue"),
    }
}

pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 90s, 9m, \"1h 30m\", 12h or 2d");
    time::duration(text).ok_or_else(wrong)
}

pub async fn once(at: &ConfigFile, args: &OnceArgs) -> Outcome {
    let outcome = cycle(at, args).await;
    // Each run leaves its line, also one that could not even begin.
    if let Err(failed @ (Failed::Work(_) | Failed::Config(_))) = &outcome {
        print(&summary("ERROR", &failed.to_string(), json!({ "result": "failed" })));
    }
    outcome
}

async fn cycle(at: &ConfigFile, args: &OnceArgs) -> Outcome {
    let began = Timestamp::now();
    // The time left at the end is for the last write, the push and the line that sums up.
    let end = Instant::now() + args.deadline;
    let deadline = end - (args.deadline / 4).min(LAST_THINGS);
    let config = load(at)?;
    let clients = wire::clients(&config)?;
    // As the first process of a container it is not ended by a signal that it does not listen to.
    let mut signals = wire::signals(None, Notify::default())?;
    let store = tokio::select! {
        opened = open(&config, &clients, deadline) => opened?,
        _ = signals.recv() => return stopped(),
    };
    let mode = Mode::Once { deadline: clock::since_boot(deadline), end: clock::since_boot(end) };
    let mut wired = wire::wire(&config, wire::settings(&config), clients, store, mode);
    match wired.watchdog.run(&mut signals).await {
        End::Done => {}
        End::Failed(error) => return Err(Failed::Work(error.to_string())),
        End::Another(line) => {
            print(&summary("INFO", &line, json!({ "result": "another" })));
            return Ok(());
        }
        End::Stopped => return stopped(),
    }
    let document = wired.watchdog.document();
    let count = |is: fn(&SlotView) -> bool| document.tpus.iter().filter(|s| is(s)).count();
    let healthy = count(|s| s.condition == Condition::Healthy);
    let recovering = count(|s| s.phase.is_some());
    let held = count(|s| matches!(s.action, ActionName::Hold | ActionName::Escalate));
    let escalated = count(|s| s.action == ActionName::Escalate);
    let read = document.observed_at.is_some_and(|at| at >= began);
    if let Some(gateway) = &config.pushgateway {
        let text = wired.endpoints.metrics.render(&wired.endpoints.published.get());
        let limit =
            PUSH.min(end.saturating_duration_since(Instant::now())).max(Duration::from_millis(100));
        if let Err(message) = push::push(gateway, text, read.then(Timestamp::now), limit).await {
            tracing::warn!(
                "the metrics were not pushed to {gateway}: {message}; the journal keeps the counters for the next run"
            );
        }
    }
    if wired.watchdog.store_fails() {
        return Err(Failed::Work(format!(
            "state {}: it could not be written; the lines above say why, and the next run reads back what was under way",
            config.state
        )));
    }
    let severity = if escalated > 0 { "WARNING" } else { "INFO" };
    let message = format!(
        "{healthy} of {} {} healthy, {} in the next run, {held} held{}",
        document.tpus.len(),
        table::kinds(&config.settings),
        go_on(recovering),
        if read { "" } else { "; no poll read every zone" }
    );
    let fields = json!({
        "result": "done", "tpus": document.tpus.len(), "healthy": healthy,
        "recovering": recovering, "held": held, "escalated": escalated, "seconds": elapsed(began, Timestamp::now()).as_secs_f64(),
    });
    if !read {
        return Err(Failed::Work(format!("{message}; see the lines above")));
    }
    print(&summary(severity, &message, fields));
    if args.fail_on_hold && needs_a_person(&document) { Err(Failed::NeedsAPerson) } else { Ok(()) }
}

/// Opens the state, once the API is known to answer.
async fn open(
    config: &Config,
    clients: &wire::Clients,
    deadline: Instant,
) -> Result<Box<dyn Store>, Failed> {
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = config.settings.poll.timeout.min(left);
    clients.preflight(limit).await.map_err(|none| Failed::Work(none.to_string()))?;
    let opened = wire::open_store(&config.state, &clients.state);
    tokio::time::timeout_at(deadline.into(), opened).await.unwrap_or_else(|_| {
        Err(Failed::Work(format!(
            "state {}: it did not answer before the deadline; nothing was done",
            config.state
        )))
    })
}

fn stopped() -> Outcome {
    let line = "stopped before it had the lock: nothing was done";
    print(&summary("INFO", line, json!({ "result": "stopped" })));
    Ok(())
}

/// One line in the shape that Cloud Logging takes apart:
/// <https://cloud.google.com/logging/docs/structured-logging>.
fn summary(severity: &str, message: &str, fields: serde_json::Value) -> String {
    let line = json!({ "severity": severity, "time": Timestamp::now().to_string(), "message": message, "once": fields });
    format!("{line}\n")
}
