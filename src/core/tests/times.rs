//! Defects in what time counts, each by the sequence that shows it.

use super::endings::CommandKind;
use super::regressions::{MARK, and, ours, with_job};
use super::relaunch::patched;
use super::*;

#[test]
fn a_symptom_that_is_held_for_days_does_not_shorten_the_grace_of_a_timeout() {
    let symptom = json!([{"symptomType": "MESH_BUILD_FAIL", "createTime": "2026-06-01T12:01:00Z"}]);
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"symptoms": symptom}), 48 * 3600);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Degraded);
    for _ in 0..15 {
        world.wait(30);
        world.poll(&[node("a", and(timeout(), json!({"symptoms": symptom})))]);
        assert!(world.looks.is_empty() && world.actions.is_empty(), "its own ten minutes first");
    }
}

#[test]
fn a_host_that_comes_back_from_a_long_maintenance_is_given_time_to_beat_again() {
    let mut world = with_job();
    let healthy = node("a", ours(MARK));
    world.poll(std::slice::from_ref(&healthy));
    world.beacons(Some(7));
    let mut maintenance = healthy.clone();
    maintenance["upcomingMaintenance"] =
        json!({"maintenanceStatus": "ONGOING", "windowEndTime": "2026-06-01T15:00:00Z"});
    for _ in 0..240 {
        world.wait(30);
        world.poll(std::slice::from_ref(&maintenance));
        world.beacons(Some(7));
    }
    for _ in 0..4 {
        world.wait(30);
        world.poll(std::slice::from_ref(&healthy));
        assert!(
            world.actions.is_empty() && !world.looks.iter().any(|l| matches!(l, Look::Node { .. }))
        );
        world.beacons(Some(7));
    }
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
}

#[test]
fn sickness_goes_on_over_processes_that_poll_once_each() {
    let mut world = World::new(settings(&["a"]));
    let mut acted = false;
    for _ in 0..12 {
        world.poll(&[node("a", timeout())]);
        if matches!(world.looks[..], [Look::Node { .. }]) {
            world.get("a", Some(node("a", timeout())));
            acted |= is_delete(&world.actions);
        }
        // The process ends; the next one starts from the journal.
        let text = serde_json::to_string(&world.fleet.slots["a"]).unwrap();
        let mut record: crate::model::slot::SlotRecord = serde_json::from_str(&text).unwrap();
        record.spec.clone_from(&world.fleet.slots["a"].spec);
        let settings = world.fleet.settings.clone();
        world.fleet =
            Fleet::new(settings, [("a".to_owned(), record)].into(), world.fleet.ledger.clone());
        world.wait(120);
        if acted {
            return;
        }
    }
    panic!("the grace of ten minutes never passed");
}

#[test]
fn s10_time_before_the_last_written_read_does_not_count_once_more() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"health": "TIMEOUT"}), 300);
    let sick = |world: &World| world.fleet.slots["a"].suspicion.as_ref().unwrap().sick_for;
    let before = sick(&world);
    // A write failed: the journal is read again, while a GET that began before is still on its way.
    world.fleet.memory.clear();
    let reading =
        Reading::Node(Arc::new(NodeView::parse(node("a", json!({"health": "TIMEOUT"}))).unwrap()));
    let began = world.now.checked_sub(jiff::SignedDuration::from_secs(12)).unwrap();
    world.wait(3);
    world.input(Input::Got { slot: "a".into(), began, reading });
    world.wait(2);
    world.poll(&[node("a", json!({"health": "TIMEOUT"}))]);
    assert_eq!(sick(&world) - before, Duration::from_secs(5));
}

#[test]
fn a_read_that_was_under_way_when_the_clock_was_set_back_hides_no_later_ones() {
    let mut world = World::new(settings(&["a"]));
    let began = world.now;
    world.now = "2026-05-31T12:00:00Z".parse().unwrap();
    let listing = Listing {
        zone: ZONE.into(),
        result: Ok((vec![Arc::new(NodeView::parse(node("a", json!({}))).unwrap())], vec![]).into()),
        requests: None,
    };
    world.input(Input::Polled(Box::new(Poll { began, listings: vec![listing], jobs: vec![] })));
    world.wait(30);
    world.poll(&[node("a", timeout())]);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Unresponsive);
}

#[test]
fn l7_a_pause_that_was_ordered_before_the_clock_was_set_back_is_taken_back_all_the_same() {
    let mut world = super::runs::with_checkpoints();
    let node = world.at_work("v3");
    world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    let waits = world.run_order().expect("an order");
    world.ordered(CallOutcome::Accepted(OPERATION.into()));
    let waiting = patched(&node, &waits);
    world.now = world.now.checked_sub(jiff::SignedDuration::from_hours(2)).unwrap();
    for _ in 0..2 {
        world.wait(30);
        world.poll(std::slice::from_ref(&waiting));
    }
    assert_eq!(world.fleet.slots["a"].job.amendment, None, "the reads show it");
    world.resume();
    let goes_on = world.run_order().expect("an order");
    assert!(!goes_on.wait);
}

#[test]
fn a_replacement_that_is_repaired_before_it_booted_is_given_its_whole_time_again() {
    let mut world = with_job();
    let ready = node("a", ours(MARK));
    let mut repairing = ready.clone();
    repairing["state"] = json!("REPAIRING");
    world.poll(std::slice::from_ref(&ready));
    for _ in 0..40 {
        world.wait(30);
        world.poll(std::slice::from_ref(&repairing));
        world.beacons(None);
    }
    for _ in 0..10 {
        world.wait(30);
        world.poll(std::slice::from_ref(&ready));
        assert!(
            !world.looks.iter().any(|l| matches!(l, Look::Node { .. })) && world.actions.is_empty()
        );
        world.beacons(None);
    }
}

#[test]
fn a_dead_heartbeat_is_found_behind_short_timeouts() {
    let mut world = with_job();
    let ready = node("a", ours(MARK));
    let blip = node("a", and(ours(MARK), timeout()));
    world.poll(std::slice::from_ref(&ready));
    world.beacons(Some(7));
    for round in 0..60 {
        world.wait(30);
        world.poll(std::slice::from_ref(if round % 23 == 22 { &blip } else { &ready }));
        world.beacons(Some(7));
        if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
            return;
        }
    }
    panic!("it was never judged: {:?}", world.fleet.slots["a"].verdict);
}

#[test]
fn a_clock_that_jumps_ahead_condemns_nothing() {
    let mut world = with_job();
    let node = node("a", ours(MARK));
    world.poll(std::slice::from_ref(&node));
    world.beacons(None);
    world.wait(48 * 3600);
    for _ in 0..3 {
        world.poll(std::slice::from_ref(&node));
        world.beacons(None);
        assert!(
            world.actions.is_empty() && !world.looks.iter().any(|l| matches!(l, Look::Node { .. }))
        );
        world.wait(30);
    }
}
