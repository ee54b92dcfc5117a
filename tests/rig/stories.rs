//! The stories: a slice of four hosts, and what happens to it.

use tpu_watchdog::simulator::trouble::Trouble;

use crate::stage::Stage;

#[test]
fn a_worker_that_crashes_brings_all_of_them_back_to_the_newest_checkpoint() {
    let Some(stage) = Stage::new("") else { return };
    let first = stage.runs(1, 25);
    stage.tell("crash.2");
    let second = stage.runs(first + 1, 15);
    assert_eq!(stage.rig.creations("a"), 1, "the TPU stays: {}", stage.rig.mutations_text());
    // Worker 0, whose process is the coordinator.
    stage.tell("crash.0");
    stage.runs(second + 1, 15);
    stage.tell("end");
    stage.rig.wait_for_log("the job is finished");
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn a_preempted_slice_goes_on_on_the_next_one() {
    let Some(stage) = Stage::new("") else { return };
    let first = stage.runs(1, 25);
    stage.rig.trouble("a", Trouble::Preempt, None);
    stage.runs(first + 1, 15);
    assert_eq!(stage.rig.creations("a"), 2);
    stage.audit();
}
