//! The hosts of a slice start a run together, or none of them does (S22).

use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::JobSettings;

use crate::host::{Host, job, order};

/// Worker 0 of four hosts, whose job notes each start and runs until `end` is there, then fails.
fn worker_0(work: &std::path::Path) -> Option<Host> {
    let command = "echo x >> tries; until [[ -e end ]]; do sleep 0.05; done; rm end; exit 1";
    Host::of_type("v4-32", &job(command, work), "", &order(None))
}

#[test]
fn s22_nothing_starts_before_each_host_has_called_with_an_index_of_its_own() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    host.boot();
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3");
    let foreign = host.call("roll-call another a 7 1 0 b");
    assert_eq!(foreign, "this is worker 0 of another TPU\n", "addresses pass from TPU to TPU");
    assert_eq!(host.call("roll-call me b 7 1 0 b"), foreign);
    for nonsense in
        ["roll-call me a 7 4 0 b", "roll-call me a x 1 0 b", "roll-call me a 7 ../1 0 b"]
    {
        assert_eq!(host.call(nonsense), "this call is not understood\n", "{nonsense}");
    }
    let (_one, _two) = (host.other(1), host.other(2));
    host.wait("two of them", || host.phase() == "roll_call: not heard from: 3");
    let twin = host.other_of(2, "twin");
    host.wait("two alike", || twin.said().ends_with("two hosts call themselves worker 2\n"));
    // One that is at another generation is not there for this one.
    assert_eq!(host.call("roll-call me a 6 3 0 old"), "not heard from: 0 1 2\n");
    let beat = host.attribute("heartbeat");
    host.wait("it beats on", || host.attribute("heartbeat") != beat);
    assert!(!work.path().join("tries").exists());
    assert_eq!(host.phase(), "roll_call: not heard from: 3");
    assert!(host.attribute("boot").unwrap().ends_with(" 7.0 1 v4 i0 c0"));
    let three = host.other(3);
    host.wait("the start", || work.path().join("tries").exists());
    host.wait("all of them", || three.said().contains("go 1\n"));
}

#[test]
fn each_run_is_a_try_that_all_of_them_begin_and_one_whose_answer_was_lost_joins_it() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    let starts =
        || std::fs::read_to_string(work.path().join("tries")).map_or(0, |t| t.lines().count());
    let others: Vec<_> = (1..4).map(|worker| host.other(worker)).collect();
    host.boot();
    host.wait("the first run", || starts() == 1);
    host.wait("its try", || host.attribute("boot").unwrap().ends_with(" 7.1 1 v4 i0 c0"));
    drop(others);
    // It never heard that the run began.
    assert_eq!(host.call("roll-call me a 7 3 0 other-3"), "go 1\n");
    assert!(host.call("roll-call me a 7 3 1 other-3").starts_with("not heard from: 0"));
    // Its former phase is no answer to the end, and the others' calls of a moment ago are taken back.
    host.wait("it runs", || host.phase() == "running");
    for worker in 1..4 {
        assert_eq!(host.call(&format!("leave me a 7 {worker} 1 other-{worker}")), "left\n");
    }
    std::fs::write(work.path().join("end"), "").unwrap();
    host.wait("it waits for the others", || host.phase() == "roll_call: not heard from: 1 2 3");
    assert_eq!(starts(), 1);
    // One has run more often than it: its disk was lost.
    let answers = || {
        ["1 4 other-1", "2 1 other-2", "3 1 other-3"]
            .map(|call| host.call(&format!("roll-call me a 7 {call}")))
    };
    host.wait("the next go", || answers().contains(&"go 5\n".to_owned()));
    host.wait("the next run", || starts() == 2);
    host.wait("its try", || host.attribute("boot").unwrap().ends_with(" 7.5 1 v4 i0 c0"));
}

#[test]
fn hosts_that_cannot_reach_each_other_start_what_was_ordered_after_all_had_reported() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    host.boot_with(&[("TPU_WATCHDOG_UNREACHED", "1")]);
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3");
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("it calls", || host.attribute("boot").unwrap().ends_with(" 8.0 1 v4 i0 c0"));
    // As long as the other wait below.
    let began = std::time::Instant::now();
    host.wait("three seconds and more", || began.elapsed().as_millis() > 4500);
    assert!(!work.path().join("tries").exists(), "who is there is not known");
    host.orders(RunOrder { generation: 9, roll_called: true, ..order(None) });
    host.wait("the start", || work.path().join("tries").exists());
    assert!(host.attribute("boot").unwrap().ends_with(" 9.1 1 v4 i0 c0"));
    // One that was only late joins it.
    assert_eq!(host.call("roll-call me a 9 2 0 other-2"), "go 1\n");
}

#[test]
fn a_host_that_is_told_to_wait_is_there_no_longer_and_nothing_starts_under_a_pause() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    host.boot_with(&[("TPU_WATCHDOG_FRESH", "600")]);
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3");
    for worker in 1..3 {
        host.call(&format!("roll-call me a 7 {worker} 0 other-{worker}"));
    }
    // Another one of that index does not take it away.
    host.call("leave me a 7 1 0 twin");
    assert_eq!(host.call("roll-call me a 7 2 0 other-2"), "not heard from: 3\n");
    host.call("leave me a 7 1 0 other-1");
    assert_eq!(host.call("roll-call me a 7 2 0 other-2"), "not heard from: 1 3\n");
    host.orders(RunOrder { wait: true, ..order(None) });
    host.wait("it waits", || host.phase().contains("order says wait"));
    let waits = "the run order of worker 0 says wait\n";
    for worker in 1..4 {
        let call = format!("roll-call me a 7 {worker} 0 other-{worker}");
        assert_eq!(host.call(&call), waits);
    }
    assert!(!work.path().join("tries").exists());
    host.orders(order(None));
    let _others: Vec<_> = (1..4).map(|worker| host.other(worker)).collect();
    host.wait("the start", || work.path().join("tries").exists());
}

#[test]
fn a_host_waits_for_metadata_that_names_it_and_its_owner() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    let owner = host.simulator.with(|cloud| {
        let node = cloud.nodes.values_mut().next().unwrap();
        node.body["metadata"].as_object_mut().unwrap().remove("tpu-watchdog-owner")
    });
    host.boot();
    host.wait("it is told", || {
        host.phase().starts_with("setup_failed: the metadata lacks the owner")
    });
    host.metadata("tpu-watchdog-owner", owner.unwrap().as_str().unwrap());
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3");
}

#[test]
fn a_startup_script_without_a_command_is_tried_again_on_its_host_alone() {
    let work = tempfile::tempdir().unwrap();
    let runs = work.path().join("runs");
    let script = format!("#! /bin/bash\necho x >>{0}; (($(wc -l <{0}) > 1))\n", runs.display());
    let settings = JobSettings { command: None, ..job("", work.path()) };
    let Some(host) = Host::of_type("v4-16", &settings, &script, &order(None)) else { return };
    host.boot();
    // The other one is done with its own, and does not call.
    host.wait("it ends well", || host.phase() == "idle");
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "x\nx\n");
}

/// A curl that refuses what this pattern matches, and is the real one otherwise.
fn refuses(host: &Host, pattern: &str, answer: &str) {
    let path = std::env::var("PATH").unwrap();
    let program = format!(
        "#! /bin/bash\ncase \"$*\" in {pattern}) {answer} ;; esac\nPATH={path} exec curl \"$@\"\n"
    );
    host.program("curl", &program);
}

#[test]
fn l8_hosts_whose_reports_are_refused_start_again_together_without_an_order() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    // The organisation forbids guest attributes.
    refuses(&host, "*guest-attributes*", "exit 22");
    host.boot_with(&[("TPU_WATCHDOG_ALONE", "1")]);
    let _others = [1, 2, 3].map(|worker| host.other(worker));
    let tries = || std::fs::read_to_string(work.path().join("tries")).unwrap_or_default();
    for run in 1..=3 {
        host.wait("a run", || tries() == "x\n".repeat(run));
        std::fs::write(work.path().join("end"), "").unwrap();
    }
}

#[test]
fn s22_a_host_that_is_not_the_first_never_starts_alone() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    let missing = "printf 404; exit 0 ;; */agent-worker-number) echo 2; exit 0";
    refuses(&host, "*attributes/worker-network-endpoints*", missing);
    host.boot();
    host.wait("it is told", || host.phase().contains("names 0 hosts, and this is worker 2"));
    assert!(!work.path().join("tries").exists());
}

/// The list may come later than the index.
#[test]
fn s22_the_first_host_is_alone_only_when_no_list_says_otherwise_for_a_while() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    let missing = format!("[[ -e {}/listed ]] || {{ printf 404; exit 0; }}", work.path().display());
    refuses(&host, "*attributes/worker-network-endpoints*", &missing);
    host.boot_with(&[("TPU_WATCHDOG_UNLISTED", "3600")]);
    host.wait("it is told", || host.phase().contains("names 0 hosts, and this is worker 0"));
    std::fs::write(work.path().join("listed"), "").unwrap();
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3");
    assert!(!work.path().join("tries").exists());
    // Where there is none it is the only one.
    std::fs::remove_file(work.path().join("listed")).unwrap();
    host.power_cycle(&[("TPU_WATCHDOG_UNLISTED", "0")]);
    host.wait("the start", || work.path().join("tries").exists());
}

/// The part of the metadata that tells a host its slice.
fn multislice(slice: u8) -> String {
    format!(
        "ACCELERATOR_TYPE: 'v4-32'\nMEGASCALE_COORDINATOR_ADDRESS: '127.77.7.7:8080'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '{slice}'\n"
    )
}

#[test]
fn s22_the_hosts_of_all_slices_take_one_roll_call() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    host.metadata("tpu-env", &multislice(0));
    host.boot();
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3 4 5 6 7");
    host.wait("its number", || host.attribute("boot").unwrap().ends_with(" 7.0 1 v4 i0 c0"));
    let _slice = [1, 2, 3].map(|worker| host.other(worker));
    host.wait("the other slice", || host.phase() == "roll_call: not heard from: 4 5 6 7");
    assert!(!work.path().join("tries").exists());
    let _rest = [4, 5, 6, 7].map(|worker| host.other(worker));
    host.wait("the start", || work.path().join("tries").exists());
}

#[test]
fn s22_a_slice_whose_metadata_does_not_name_the_others_yet_does_not_start_alone() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    let mut first: serde_json::Value = serde_json::from_str(&order(None).text()).unwrap();
    first["slices"] = 2.into();
    host.metadata("tpu-watchdog-run", &first.to_string());
    for env in ["", "ACCELERATOR_TYPE: 'v4-32'\n"] {
        host.metadata("tpu-env", env);
        host.power_cycle(&[]);
        let waits = "setup_failed: tpu-env names 1 slices of 2, or not which one this is";
        host.wait("it waits", || host.phase() == waits);
        assert!(!work.path().join("tries").exists());
    }
    host.metadata("tpu-env", &multislice(0));
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3 4 5 6 7");
    assert!(!work.path().join("tries").exists());
}

#[test]
fn a_host_of_a_later_slice_calls_the_first_slice_and_has_a_number_of_its_own() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    host.metadata("tpu-env", &multislice(1));
    // The watchdog has heard from every host: one slice alone would start now.
    host.orders(RunOrder { roll_called: true, ..order(None) });
    host.boot_with(&[("TPU_WATCHDOG_UNREACHED", "1")]);
    let waits = "roll_call: worker 0 (127.77.7.7) does not answer on port";
    host.wait("it calls", || host.phase().starts_with(waits));
    host.wait("its number", || host.attribute("boot").unwrap().ends_with(" 7.0 1 v4 i4 c0"));
    let beats =
        || host.attribute("heartbeat").unwrap().split(' ').nth(2).unwrap().parse::<u64>().unwrap();
    let before = beats();
    host.wait("it calls on", || beats() >= before + 30);
    assert!(!work.path().join("tries").exists());
}
