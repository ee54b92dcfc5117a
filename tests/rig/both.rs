//! One story, played by the real supervisors and by the simulated guests: what the watchdog tells of
//! it is the same, so that neither lies about the other.

use std::time::Duration;

use tpu_watchdog::simulator::things::Workload;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::alone;
use crate::harness::{POLICY, Rig, ZONE};
use crate::stage::{Entry, Stage};

/// The story of the job as the log tells it.
fn told(rig: &Rig) -> Vec<String> {
    let output = rig.command(&["history", "a", "--output", "json"]).output().unwrap();
    alone::told(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_host_alone_is_told_as_on_a_machine_with_the_real_systemd() {
    let Some(stage) = Stage::of_one_host() else { return };
    stage.runs(1, 25);
    stage.rig.wait_for_log("recovered from");
    stage.tell("crash.0");
    let tries = |attempt| {
        let steps = |e: &&Entry| e.event == "step" && (e.generation, e.attempt) == (1, attempt);
        stage.diary().iter().filter(steps).count()
    };
    stage.wait("the next try", || tries(2) >= 25);
    let asked = stage.rig.command(&["relaunch", "a"]).output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    stage.runs(2, 15);
    stage.tell("end");
    stage.rig.wait_for_log("the job is finished");
    assert_eq!(told(&stage.rig), alone::TOLD);
    let diary = std::fs::read_to_string(stage.path("diary")).unwrap();
    assert_eq!(alone::runs(&diary), alone::RUNS);
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
    // A host that dies with its peer is told where its report is there before the new order reaches it.
    let mut of_real = told(&stage.rig);
    of_real.retain(|text| text != "code 134");
    assert_eq!(of_real, expected);
    assert_eq!(told(&rig), expected);
}
