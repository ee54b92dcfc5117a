//! Pushes metrics to a Pushgateway: a scheduled run is gone before anybody could scrape it.
//! Protocol: <https://github.com/prometheus/pushgateway#api>.

use std::time::Duration;

use jiff::Timestamp;

/// The group of a run's metrics: replaced whole, so that a series that is no more does not stay.
const RUN: &str = "metrics/job/tpu-watchdog";
/// The group of the last success: a run that fails leaves it alone.
const SUCCESS: &str = "metrics/job/tpu-watchdog/run/succeeded";

/// Pushes what a run has to say; `succeeded` when it ended well.
///
/// # Errors
/// When the gateway can't be reached or refuses, in words.
pub async fn push(
    gateway: &str,
    text: String,
    succeeded: Option<Timestamp>,
    limit: Duration,
) -> Result<(), String> {
    let client = reqwest::Client::builder().timeout(limit).build().map_err(|e| e.to_string())?;
    let success = succeeded.map(|at| {
        let name = "tpuwatchdog_once_last_success_timestamp_seconds";
        let seconds = at.as_millisecond() as f64 / 1000.0;
        format!("# HELP {name} When a scheduled run last ended well.\n# TYPE {name} gauge\n{name} {seconds}\n")
    });
    for (group, text) in [(RUN, Some(text)), (SUCCESS, success)] {
        let Some(text) = text else { continue };
        let request = client
            .put(format!("{gateway}/{group}"))
            .header("content-type", "text/plain; version=0.0.4")
            .body(text);
        let response = request.send().await.map_err(|e| e.without_url().to_string())?;
        let status = response.status();
        if !status.is_success() {
            let body = response.text().await.unwrap_or_default();
            return Err(format!("HTTP {status}: {}", body.chars().take(200).collect::<String>()));
        }
    }
    Ok(())
}
