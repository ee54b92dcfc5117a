//! The stories: a slice of four hosts, and what happens to it.

use std::collections::BTreeSet;

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

#[test]
fn a_host_that_reboots_much_later_meets_the_others_at_the_newest_checkpoint() {
    let Some(stage) = Stage::new("") else { return };
    // Twenty checkpoints after the create, whose order named none.
    let first = stage.runs(1, 205);
    let host = stage.host(1);
    host.power_off();
    stage.boot(&host);
    let second = stage.runs(first + 1, 15);
    // Worker 0 takes the coordinator with it.
    let host = stage.host(0);
    host.power_off();
    stage.boot(&host);
    stage.runs(second + 1, 15);
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn a_host_that_does_not_come_back_costs_the_slice_and_not_the_run() {
    let Some(stage) = Stage::new("") else { return };
    let first = stage.runs(1, 25);
    stage.host(3).power_off();
    stage.runs(first + 1, 15);
    assert_eq!(stage.rig.creations("a"), 2, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn a_host_that_comes_back_forty_minutes_later_meets_the_others_again() {
    // So long an absence is known here: the slice is not given up for it.
    let Some(stage) = Stage::patient() else { return };
    let first = stage.runs(1, 25);
    let host = stage.host(1);
    host.power_off();
    // Forty minutes of this scale.
    stage.rig.wait_polls(67);
    stage.boot(&host);
    stage.runs(first + 1, 15);
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn an_error_of_the_user_stops_after_its_restarts_and_a_person_starts_it_again() {
    let Some(mut stage) = Stage::with("", "50") else { return };
    stage.tell("user-error");
    stage.rig.start();
    stage.wait("a person has to look", || {
        stage.rig.node("a").is_some() && stage.rig.status()["tpus"][0]["action"] == "escalate"
    });
    let tried: BTreeSet<u64> = stage.diary().iter().map(|entry| entry.generation).collect();
    assert_eq!(tried, [1, 2].into(), "restart.per_run is 2 here");
    let reason = stage.rig.status()["tpus"][0]["reason"].to_string();
    assert!(reason.contains("ValueError: Dimensions must be equal"), "{reason}");
    let logs = stage.rig.command(&["logs", "a"]).output().unwrap();
    let logs = String::from_utf8(logs.stdout).unwrap();
    assert!(logs.contains("generation 2, ended with code 1 at "), "{logs}");
    assert!(logs.contains("\n    Traceback (most recent call last):\n"), "{logs}");
    std::fs::remove_file(stage.path("user-error")).unwrap();
    assert!(stage.rig.command(&["relaunch", "a"]).output().unwrap().status.success());
    stage.runs(3, 15);
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn set_up_that_fails_twice_on_one_worker_delays_the_start_of_all() {
    let setup = "#! /bin/bash\n[[ $TPU_WATCHDOG_WORKER == 2 ]] || exit 0\n\
                 echo x >>\"$HOME/tries\"; (($(wc -l <\"$HOME/tries\") > 2))\n";
    let Some(stage) = Stage::new(setup) else { return };
    stage.runs(1, 15);
    let tries = std::fs::read_to_string(stage.host(2).path("home/tries")).unwrap();
    assert_eq!(tries, "x\nx\nx\n");
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn while_the_watchdog_is_away_the_hosts_start_together_by_themselves() {
    let Some(mut stage) = Stage::with("", "2") else { return };
    stage.rig.start();
    let first = stage.runs(1, 25);
    stage.rig.kill();
    stage.tell("crash.2");
    stage.wait("they start again", || {
        let starts = stage.diary().into_iter().filter(|entry| entry.event == "start");
        starts.filter(|entry| entry.generation == first).count() == 8
    });
    stage.rig.start();
    stage.wait("they make new steps", || {
        stage.diary().iter().filter(|entry| entry.event == "step" && entry.step == 60).count() == 4
    });
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn what_the_watchdog_knew_before_it_went_away_ends_no_run_when_it_is_back() {
    let Some(mut stage) = Stage::with("", "6") else { return };
    stage.tell("user-error");
    stage.rig.start();
    stage.wait("it knows that the run has ended, and waits before the next one", || {
        let there = stage.rig.node("a").is_some();
        there && stage.rig.status()["tpus"][0]["reason"].to_string().contains("the next one waits")
    });
    stage.rig.kill();
    std::fs::remove_file(stage.path("user-error")).unwrap();
    let starts =
        |stage: &Stage| stage.diary().iter().filter(|entry| entry.event == "start").count();
    stage.wait("they start together by themselves", || {
        stage.diary().iter().filter(|entry| entry.event == "step").count() >= 40
    });
    let before = starts(&stage);
    stage.rig.start();
    stage.rig.wait_polls(14);
    assert_eq!(starts(&stage), before, "what runs by then goes on");
    stage.audit();
}

#[test]
fn the_work_before_an_announced_preemption_is_not_done_twice() {
    let Some(stage) = Stage::new("") else { return };
    let first = stage.runs(1, 22);
    stage.rig.simulator.with(|cloud| {
        cloud.nodes.values_mut().for_each(|node| node.run.announced = true);
    });
    let mut saved = None;
    stage.wait("a checkpoint between two regular ones", || {
        saved = stage.rig.simulator.with(|cloud| {
            let steps = cloud.objects.keys().filter_map(|key| {
                key.strip_prefix("bucket/a/")?.strip_suffix("/commit_success.txt")?.parse().ok()
            });
            steps.filter(|step: &u64| !step.is_multiple_of(10)).max()
        });
        saved.is_some()
    });
    stage.rig.trouble("a", Trouble::Preempt, None);
    let second = stage.runs(first + 1, 15);
    let diary = stage.diary();
    let starts = diary.iter().filter(|e| e.event == "start" && e.generation == second);
    assert!(starts.map(|entry| entry.step).min() >= saved, "{saved:?}");
    stage.audit();
}

#[test]
fn what_crashes_while_the_slot_is_paused_starts_together_when_it_is_resumed() {
    // Hosts start by themselves after six seconds without an order.
    let Some(mut stage) = Stage::with("", "6") else { return };
    stage.rig.start();
    let first = stage.runs(1, 25);
    let pull = |arguments: &[&str]| stage.rig.command(arguments).output().unwrap().status.success();
    assert!(pull(&["pause", "a"]));
    stage.rig.wait_for_log("every worker has read its order and waits");
    stage.tell("crash.2");
    stage.wait("it is held", || {
        let slot = stage.rig.status()["tpus"][0].clone();
        slot["hold"] == "paused" && slot["condition"] == "job_failed"
    });
    // Much longer than six seconds.
    stage.rig.wait_polls(28);
    let starts = stage.diary().iter().filter(|entry| entry.event == "start").count();
    assert_eq!(starts, 4, "the order says wait, so that nothing starts");
    assert_eq!(stage.rig.mutations().len(), 2, "{}", stage.rig.mutations_text());
    assert!(pull(&["resume", "a"]));
    stage.runs(first + 1, 15);
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    assert_eq!(stage.rig.mutations().len(), 3, "the newer order ends the wait by itself");
    stage.audit();
}

#[test]
fn s15_two_runs_never_meet_although_one_host_ends_its_part_late() {
    let Some(mut stage) = Stage::with("", "50") else { return };
    // Worker 0, whose process the others would find.
    stage.tell("slow.0");
    stage.rig.start();
    let first = stage.runs(1, 25);
    stage.tell("crash.2");
    stage.runs(first + 1, 15);
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn a_supervisor_that_is_killed_while_the_watchdog_is_away_starts_its_host_with_the_others() {
    let Some(mut stage) = Stage::with("", "2") else { return };
    stage.rig.start();
    let first = stage.runs(1, 25);
    stage.rig.kill();
    stage.kill_supervisor(1);
    stage.wait("all start the second try", || {
        let starts = stage.diary().into_iter().filter(|e| e.event == "start" && e.attempt == 2);
        starts.filter(|entry| entry.generation == first).count() == 4
    });
    stage.rig.start();
    stage.wait("they make new steps", || {
        stage.diary().iter().filter(|e| e.event == "step" && e.attempt == 2).count() >= 20
    });
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn a_stranger_with_the_chips_of_one_host_is_named_and_all_wait_for_its_end() {
    let Some(stage) = Stage::new("") else { return };
    let first = stage.runs(1, 15);
    let device = stage.host(2).path("dev");
    std::fs::create_dir(&device).unwrap();
    std::fs::write(device.join("accel0"), "").unwrap();
    let chip = std::fs::File::open(device.join("accel0")).unwrap();
    let mut stranger = std::process::Command::new("sleep").arg("300").stdin(chip).spawn().unwrap();
    stage.tell("busy.2");
    stage.wait("it is named", || {
        let slot = stage.rig.status()["tpus"][0].clone();
        let names = format!("process {} of user ", stranger.id());
        slot["condition"] == "chips_busy" && slot["reason"].to_string().contains(&names)
    });
    let starts = stage.diary().iter().filter(|entry| entry.event == "start").count();
    stage.rig.wait_polls(10);
    let later = stage.diary().iter().filter(|entry| entry.event == "start").count();
    assert_eq!(later, starts, "nothing starts meanwhile");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    stage.runs(first + 1, 15);
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn hosts_that_never_see_a_patched_order_start_together_by_themselves_and_are_told() {
    // They start by themselves after six seconds without an order: one is written well before that.
    let Some(mut stage) = Stage::with("", "6") else { return };
    stage.rig.simulator.with(|cloud| cloud.first_orders = Some(Default::default()));
    stage.rig.start();
    let first = stage.runs(1, 15);
    stage.tell("crash.2");
    stage.wait("all start the second try", || {
        let starts = stage.diary().into_iter().filter(|e| e.event == "start" && e.attempt == 2);
        starts.filter(|entry| entry.generation == first).count() == 4
    });
    stage.wait("it is told", || {
        let reason = stage.rig.status()["tpus"][0]["reason"].to_string();
        reason.contains("generation 2 was ordered at") && reason.contains("its workers start")
    });
    stage.rig.wait_polls(10);
    // A create and one order: what can't be told says nothing about the machines.
    assert_eq!(stage.rig.mutations().len(), 2, "{}", stage.rig.mutations_text());
    stage.audit();
}

#[test]
fn hosts_whose_order_is_refused_start_together_by_themselves_and_the_right_is_named() {
    // They start by themselves after six seconds without an order: one is written well before that.
    let Some(mut stage) = Stage::with("", "6") else { return };
    stage.rig.simulator.with(|cloud| cloud.denied.insert("tpu.nodes.update".into()));
    stage.rig.start();
    let first = stage.runs(1, 15);
    stage.tell("crash.2");
    stage.wait("all start the second try", || {
        let starts = stage.diary().into_iter().filter(|e| e.event == "start" && e.attempt == 2);
        starts.filter(|entry| entry.generation == first).count() == 4
    });
    stage.rig.wait_for_log("It takes the right tpu.nodes.update");
    stage.rig.wait_polls(10);
    assert_eq!(stage.rig.creations("a"), 1, "a refused order says nothing about the machines");
    stage.audit();
}

#[test]
fn a_program_that_does_not_fit_stops_at_once_and_starts_when_a_person_says_so() {
    // Hosts start by themselves after six seconds without an order.
    let Some(mut stage) = Stage::with("", "6") else { return };
    stage.tell("full.1");
    stage.rig.start();
    let reason = stage.escalates();
    let line = "XLA:TPU compile permanent error";
    assert!(reason.contains("; memory ran out; fix the job"), "{reason}");
    assert_eq!(reason.matches(line).count(), 1, "told once: {reason}");
    stage.rig.wait_for_log("every worker has read its order and waits");
    stage.rig.wait_polls(28);
    let starts = stage.diary().iter().filter(|entry| entry.event == "start").count();
    assert_eq!(starts, 4, "it would end the same way once more");
    assert!(stage.rig.command(&["retry", "a"]).output().unwrap().status.success());
    stage.runs(2, 15);
    assert_eq!(stage.rig.creations("a"), 1, "{}", stage.rig.mutations_text());
    stage.audit();
}
