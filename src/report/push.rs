//! Pushes metrics to a Pushgateway: a scheduled run is gone before anybody could scrape it.
//! Protocol: <https://github.com/prometheus/pushgateway#api>.

use std::time::Duration;

/// The group that is pushed to.
const GROUP: &str = "metrics/job/tpu-watchdog";

/// Replaces the metrics of the same names in the group; those that are not sent stay as the last push left them.
///
/// # Errors
/// When it can't be reached or refuses, in words.
pub async fn push(gateway: &str, text: String, timeout: Duration) -> Result<(), String> {
    let client = reqwest::Client::builder().timeout(timeout).build().map_err(|e| e.to_string())?;
    let request = client.post(format!("{gateway}/{GROUP}")).header("content-type", "text/plain; version=0.0.4").body(text);
    let response = request.send().await.map_err(|e| e.without_url().to_string())?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let body = response.text().await.unwrap_or_default();
    Err(format!("HTTP {status}: {}", body.chars().take(200).collect::<String>()))
}
