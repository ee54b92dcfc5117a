//! The answer of `getGuestAttributes` (Cloud TPU API v2, `nodes.getGuestAttributes`).

use serde_json::Value;

use super::texts::{self, Blame};
use crate::model::beacon::{Beacon, LastLines, Meaning, NAMESPACE, WorkerReport};

/// Reads the answer of `getGuestAttributes`: one entry a worker, in worker order.
///
/// A worker without values is an empty report. An answer without the array holds no report of any
/// worker.
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
            "phase" => report.phase = beacon,
            "log" => report.lines = last_lines(text("value")),
            _ => {}
        }
    }
    report
}

/// The last lines of a run, with their meaning.
pub fn last_lines(text: &str) -> Option<LastLines> {
    let lines = LastLines::parse(text)?;
    let meaning = texts::explain(&lines.lines.join("\n")).map(|row| Meaning {
        class: row.class.to_owned(),
        is_victim: row.blame == Blame::Victim,
        advice: row.advice.to_owned(),
    });
    Some(LastLines { meaning, ..lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn workers_keep_their_order_and_foreign_namespaces_are_ignored() {
        let item =
            |ns: &str, key: &str, value: &str| json!({"namespace": ns, "key": key, "value": value});
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

    #[test]
    fn the_last_lines_of_a_run_have_a_meaning_where_the_table_knows_one() {
        let oom = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.";
        let victim = "Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the remote task has failed";
        let meaning = |text: &str| last_lines(&format!("b 7 1 1\n{text}\nlast")).unwrap().meaning;
        let class = |text: &str| meaning(text).map(|meaning| (meaning.class, meaning.is_victim));
        assert_eq!(class(oom), Some(("oom_hbm".into(), false)));
        assert_eq!(class(victim), Some(("victim_of_sibling".into(), true)));
        assert_eq!(class("ValueError: my own"), None);
    }
}
