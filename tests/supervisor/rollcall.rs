//! The hosts of a slice start a run together, or none of them does (S22).

use tpu_watchdog::model::ids::RunOrder;

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
    assert!(host.attribute("boot").unwrap().ends_with(" 7.0 1 v4 i0"));
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
    host.wait("its try", || host.attribute("boot").unwrap().ends_with(" 7.1 1 v4 i0"));
    drop(others);
    // It never heard that the run began.
    assert_eq!(host.call("roll-call me a 7 3 0 other-3"), "go 1\n");
    assert!(host.call("roll-call me a 7 3 1 other-3").starts_with("not heard from: 0"));
    std::fs::write(work.path().join("end"), "").unwrap();
    host.wait("it waits for the others", || {
        host.phase().starts_with("roll_call: not heard from: ")
    });
    assert_eq!(starts(), 1);
    // One has run more often than it: its disk was lost.
    let answers = || {
        ["1 4 other-1", "2 1 other-2", "3 1 other-3"]
            .map(|call| host.call(&format!("roll-call me a 7 {call}")))
    };
    host.wait("the next go", || answers().contains(&"go 5\n".to_owned()));
    host.wait("the next run", || starts() == 2);
    host.wait("its try", || host.attribute("boot").unwrap().ends_with(" 7.5 1 v4 i0"));
}

#[test]
fn hosts_that_cannot_reach_each_other_start_what_was_ordered_after_all_had_reported() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = worker_0(work.path()) else { return };
    host.boot_with(&[("TPU_WATCHDOG_UNREACHED", "1")]);
    host.wait("it calls", || host.phase() == "roll_call: not heard from: 1 2 3");
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("it calls", || host.attribute("boot").unwrap().ends_with(" 8.0 1 v4 i0"));
    // As long as the other wait below.
    let began = std::time::Instant::now();
    host.wait("three seconds and more", || began.elapsed().as_millis() > 4500);
    assert!(!work.path().join("tries").exists(), "who is there is not known");
    host.orders(RunOrder { generation: 9, roll_called: true, ..order(None) });
    host.wait("the start", || work.path().join("tries").exists());
    assert!(host.attribute("boot").unwrap().ends_with(" 9.1 1 v4 i0"));
}
