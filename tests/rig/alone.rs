//! One host alone, on which the trainer crashes, is started again, is relaunched by a person, and ends: what
//! the log and the trainer's diary tell of it. Played over stubs of systemd, and on a machine with the real
//! one: so that the stubs don't lie.

use serde_json::Value;

/// The events of the log.
pub const TOLD: [&str; 5] = [
    "generation 1 starts",
    "recovered",
    "generation 2 is ordered",
    "generation 2 starts",
    "it is finished",
];

/// The runs: generation, try, and whether each began at a checkpoint.
pub const RUNS: [&str; 3] =
    ["1.1 from nothing", "1.2 from nothing", "2.1 from a checkpoint, to its end"];

/// Its runs and their ends, each in order, from `history --output json`.
pub fn told(history: &str) -> Vec<String> {
    let history: Value = serde_json::from_str(history).unwrap();
    let events = history["events"].as_array().unwrap();
    let word = |event: &Value| {
        let kind = event["event"].as_str()?;
        Some(match kind {
            "launch" => format!("generation {} starts", event["generation"]),
            "job_failed" => format!("code {}", event["code"]),
            "order_intent" => format!("generation {} is ordered", event["generation"]),
            "job_finished" => "it is finished".to_owned(),
            "recovered" => "recovered".to_owned(),
            _ => return None,
        })
    };
    events.iter().filter_map(word).collect()
}

/// The runs that a diary tells of.
pub fn runs(diary: &str) -> Vec<String> {
    let (mut runs, mut saved): (Vec<String>, u64) = (Vec::new(), 0);
    for line in diary.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let (run, step) =
            (format!("{}.{}", entry["generation"], entry["try"]), entry["step"].as_u64());
        match entry["event"].as_str().unwrap() {
            "start" => {
                let from = match step {
                    Some(0) => "nothing".to_owned(),
                    // One of the order's moment: the run that it ended may have saved once more.
                    Some(step) if step % 10 == 0 && step <= saved => "a checkpoint".to_owned(),
                    step => format!("{step:?}, although {saved} is complete"),
                };
                runs.push(format!("{run} from {from}"));
            }
            // A checkpoint is whole before the next step is made.
            "step" => saved = saved.max((step.unwrap() - 1) / 10 * 10),
            "end" => *runs.last_mut().unwrap() += ", to its end",
            "met" => {
                let peer = format!("{}.{}", entry["peer"]["generation"], entry["peer"]["try"]);
                assert_eq!(peer, run, "it met another run");
            }
            other => panic!("{other}"),
        }
    }
    runs
}
