//! One story, played by the real supervisors and by the simulated guests: what the watchdog tells of
//! it is the same, so that neither lies about the other.

use std::time::Duration;

use serde_json::Value;
use tpu_watchdog::simulator::things::Workload;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{POLICY, Rig, ZONE};
use crate::stage::Stage;

/// The story of the job as the log tells it: its runs, their ends, each in order.
fn told(rig: &Rig) -> Vec<String> {
    let output = rig.command(&["history", "a", "--output", "json"]).output().unwrap();
    let history: Value = serde_json::from_slice(&output.stdout).unwrap();
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

#[test]
fn a_crash_on_one_host_of_four_is_told_alike_of_real_and_simulated_guests() {
    let Some(stage) = Stage::new("") else { return };
    let first = stage.runs(1, 25);
    stage.rig.wait_for_log("recovered from");
    stage.tell("crash.2");
    stage.runs(first + 1, 15);
    stage.tell("end");
    stage.rig.wait_for_log("the job is finished");

    let scenario = "nodes = []\n[times]\nboot = \"200ms\"\nbeat = \"200ms\"\n";
    let slot = format!(
        "[[tpu]]\nname = \"a\"\nzone = \"{ZONE}\"\n[tpu.create]\naccelerator_type = \"v4-32\"\nruntime_version = \"r\"\n\
         [tpu.job]\ncommand = \"train\"\ncheckpoint = \"gs://bucket/a\"\n"
    );
    let mut rig = Rig::new(scenario, POLICY, &slot);
    let step = Duration::from_millis(100);
    let workload = Workload { checkpoint: "gs://bucket/a".into(), step, every: 5, at_step: 0 };
    rig.simulator.with(|cloud| cloud.workloads.insert("a".into(), workload));
    rig.start();
    rig.wait_for_log("recovered from");
    let saved = || rig.status()["tpus"][0]["job"]["checkpoint_step"].as_u64();
    rig.wait_until("a checkpoint", || saved().is_some());
    rig.trouble("a", Trouble::JobCrashes, None);
    rig.wait_for_log("every worker follows generation 2");
    let before = saved();
    rig.wait_until("a later checkpoint", || saved() > before);
    rig.trouble("a", Trouble::JobEnds, None);
    rig.wait_for_log("the job is finished");

    let expected = [
        "generation 1 starts",
        "recovered",
        "code 139",
        "generation 2 is ordered",
        "generation 2 starts",
        "it is finished",
    ];
    assert_eq!(told(&stage.rig), expected);
    assert_eq!(told(&rig), expected);
}
