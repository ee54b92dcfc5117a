//! What the supervisor reports through guest attributes (namespace `tpu-watchdog`).
//!
//! Every value is `<boot_id> <generation> <counter or code> <text>`, so that a stale one is never taken for a fresh one.

use serde_json::Value;

/// The namespace of all guest attributes that the supervisor writes.
pub const NAMESPACE: &str = "tpu-watchdog";

/// One reported value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beacon {
    /// The boot of the host that wrote it.
    pub boot_id: String,
    /// The generation of the run order that the supervisor follows.
    pub generation: u64,
    /// A counter, a step, or an exit code.
    pub value: i64,
    /// Free text.
    pub text: String,
}

impl Beacon {
    /// Parses one value; anything malformed is no beacon at all.
    pub fn parse(text: &str) -> Option<Beacon> {
        let mut parts = text.trim().splitn(4, ' ');
        Some(Beacon {
            boot_id: parts.next().filter(|id| !id.is_empty())?.to_owned(),
            generation: parts.next()?.parse().ok()?,
            value: parts.next()?.parse().ok()?,
            text: parts.next().unwrap_or_default().to_owned(),
        })
    }
}

/// What one worker reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// `boot`: the host booted and the supervisor runs.
    pub boot: Option<Beacon>,
    /// `heartbeat`: a counter.
    pub heartbeat: Option<Beacon>,
    /// `step`: the last training step that the job wrote.
    pub step: Option<Beacon>,
    /// `exit`: the code with which the job's command ended; the text is `final` or `restarting …`.
    pub exit: Option<Beacon>,
}

/// Reads the answer of `getGuestAttributes`: one entry a worker, in worker order.
///
/// A worker without values is an empty report. An answer without the array holds no report of any worker.
pub fn parse_guest_attributes(answer: &Value) -> Result<Vec<WorkerReport>, String> {
    let all = match answer.get("guestAttributes") {
        Some(Value::Array(all)) => all,
        Some(_) => return Err("guestAttributes is not a list".to_owned()),
        // An empty list is left out of the JSON.
        None if answer.is_object() => return Ok(Vec::new()),
        None => return Err("the answer is not an object".to_owned()),
    };
    Ok(all.iter().map(worker_report).collect())
}

fn worker_report(entry: &Value) -> WorkerReport {
    let mut report = WorkerReport::default();
    let items = entry.pointer("/queryValue/items").and_then(Value::as_array);
    for item in items.into_iter().flatten() {
        let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("namespace") != NAMESPACE {
            continue;
        }
        let beacon = Beacon::parse(text("value"));
        match text("key") {
            "boot" => report.boot = beacon,
            "heartbeat" => report.heartbeat = beacon,
            "step" => report.step = beacon,
            "exit" => report.exit = beacon,
            _ => {}
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_with_and_without_text_are_read_and_malformed_ones_are_nothing() {
        let beacon = Beacon::parse("b0-1 7 139 final signal 11\n").unwrap();
        assert_eq!((beacon.generation, beacon.value, beacon.text.as_str()), (7, 139, "final signal 11"));
        assert_eq!(Beacon::parse("b 1 5").unwrap().text, "");
        for bad in ["", " 1 2", "b", "b x 1", "b 1", "b 1 x"] {
            assert_eq!(Beacon::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn workers_keep_their_order_and_foreign_namespaces_are_ignored() {
        let item = |ns: &str, key: &str, value: &str| json!({"namespace": ns, "key": key, "value": value});
        let answer = json!({"guestAttributes": [
            {"queryPath": "tpu-watchdog/"},
            {"queryValue": {"items": [item("tpu-watchdog", "boot", "b 2 1"), item("hostkeys", "boot", "x 9 9")]}},
        ]});
        let reports = parse_guest_attributes(&answer).unwrap();
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[0], WorkerReport::default());
        assert_eq!(reports[1].boot.as_ref().unwrap().generation, 2);
        assert!(parse_guest_attributes(&json!("html")).is_err());
        assert_eq!(parse_guest_attributes(&json!({})), Ok(vec![]));
    }
}
