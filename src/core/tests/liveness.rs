//! L1 to L6, and how time and progress are weighed.

use super::*;

#[test]
fn l1_a_replacement_preempted_at_birth_is_replaced_again() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let dead = world.replacement("a", json!({"state": "PREEMPTED"}));
    world.poll(std::slice::from_ref(&dead));
    world.get("a", Some(dead));
    match &world.actions[..] {
        [Action::Delete { incarnation, .. }] => assert_eq!(incarnation.id, "2"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn l2_an_unchanged_world_causes_no_mutation_and_no_write_but_the_time_of_the_poll() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    for _ in 0..100 {
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
        assert!(world.actions.is_empty() && world.looks.is_empty() && world.events.is_empty());
        assert!(matches!(world.records[..], [Record::Ledger(_)]), "{:?}", world.records);
    }
}

#[test]
fn l3_an_owed_create_is_finished_after_a_crash_at_any_phase() {
    // The journal is folded into a fleet that knows of nothing under way.
    for phase in ["deleting", "gone", "creating"] {
        let mut world = World::new(settings(&["a"]));
        world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
        world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
        if phase != "deleting" {
            world.called("a", CallOutcome::Accepted(OPERATION.into()));
            world.wait(5);
            world.done("a", OperationState::Succeeded);
        }
        if phase == "gone" {
            world.called("a", CallOutcome::Refused(Failure::new(FailureClass::StockOut, "none")));
            assert_eq!(world.phase("a"), Some(Phase::Gone));
        }
        let slots = std::mem::take(&mut world.fleet.slots);
        let settings = world.fleet.settings.clone();
        world.fleet = Fleet::new(settings.clone(), slots, world.fleet.ledger.clone());
        // Longer than the wait for a pool without capacity.
        world.wait(180);
        world.input(Input::Configured(Box::new(settings)));
        for _ in 0..10 {
            if matches!(world.actions[..], [Action::Create { .. }]) {
                break;
            }
            assert!(world.actions.is_empty(), "{phase}: {:?}", world.actions);
            world.wait(6);
            if world.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
                world.get("a", None)
            } else {
                world.input(Input::Tick)
            }
        }
        assert!(
            matches!(world.actions[..], [Action::Create { .. }]),
            "{phase}: the create was forgotten"
        );
    }
}

#[test]
fn l5_healing_clears_suspicion_and_flapping_does_not_reset_it() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 300);
    world.wait(30);
    world.poll(&[node("a", json!({}))]);
    world.wait(30);
    world.poll(&[node("a", timeout())]);
    assert!(
        world.fleet.slots["a"].suspicion.as_ref().unwrap().sick_for >= Duration::from_secs(330),
        "flapping"
    );
    for _ in 0..21 {
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
    }
    assert_eq!(world.fleet.slots["a"].suspicion, None);
}

#[test]
fn l6_a_slot_that_is_short_of_capacity_delays_no_other() {
    let mut world = World::new(settings(&["a", "b"]));
    world.sick(&["a", "b"], json!({"state": "UNKNOWN"}), 120);
    world.get("a", Some(node("a", json!({"state": "UNKNOWN"}))));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert!(matches!(world.actions[..], [Action::Create { .. }]));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::Quota, "Quota exhausted")));
    assert_eq!(world.hold("a"), Some(HoldReason::Backoff));
    world.wait(20);
    world.poll(&[node("b", json!({"state": "UNKNOWN"}))]);
    world.get("b", Some(node("b", json!({"state": "UNKNOWN"}))));
    assert_eq!(world.phase("b"), Some(Phase::Deleting));
}

#[test]
fn a_maintenance_window_that_is_announced_is_waited_out_and_not_for_ever() {
    let window = |end: &str| json!({"health": "UNHEALTHY_MAINTENANCE", "upcomingMaintenance": {"maintenanceStatus": "ONGOING", "windowEndTime": end}});
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], window("2026-06-01T15:00:00Z"), 3 * 3600);
    assert!(!world.asks("a"), "its end has come");
    world.wait(10 * 60);
    world.poll(&[node("a", window("2026-06-01T15:00:00Z"))]);
    assert!(!world.asks("a"), "15 minutes beyond its end");
    world.wait(6 * 60);
    world.poll(&[node("a", window("2026-06-01T15:00:00Z"))]);
    assert!(matches!(world.looks[..], [Look::Node { .. }]), "{:?}", world.looks);
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], window("2026-06-09T15:00:00Z"), 6 * 3600);
    assert!(matches!(world.looks[..], [Look::Node { .. }]), "six hours at most");
}

#[test]
fn s3_the_longest_grace_of_what_was_seen_applies_and_three_times_it_to_a_reserved_tpu() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"health": "UNHEALTHY_MAINTENANCE"}), 300);
    for _ in 0..30 {
        world.wait(30);
        world.poll(&[node("a", timeout())]);
        assert!(world.looks.is_empty(), "20 min of 60");
    }
    let mut world = World::new(settings(&["a"]));
    let reserved =
        json!({"health": "UNHEALTHY_MAINTENANCE", "schedulingConfig": {"reserved": true}});
    world.sick(&["a"], reserved.clone(), 175 * 60);
    assert!(!world.asks("a"), "175 min of 180");
    for _ in 0..20 {
        world.wait(30);
        world.poll(&[node("a", reserved.clone())]);
    }
    assert!(world.asks("a"), "185 min of 180");
}

#[test]
fn progress_outranks_health() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"health": "UNHEALTHY_MAINTENANCE"}), 3500);
    let now = world.now;
    super::super::settle::progress(world.fleet.slots.get_mut("a").unwrap(), now);
    world.wait(300);
    world.poll(&[node("a", json!({"health": "UNHEALTHY_MAINTENANCE"}))]);
    assert!(world.looks.is_empty() && world.actions.is_empty());
}

#[test]
fn l1_a_delete_that_does_not_end_is_told_to_a_person_whoever_started_it() {
    let mut world = World::new(settings(&["a"]));
    let deleting = json!({"state": "DELETING"});
    world.sick(&["a"], deleting.clone(), 31 * 60);
    assert!(world.actions.is_empty(), "it is confirmed first");
    world.get("a", Some(node("a", deleting.clone())));
    assert!(is_delete(&world.actions), "the delete of another hand is sent once more");
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(31 * 60);
    world.done("a", OperationState::Running);
    assert_eq!(world.hold("a"), Some(HoldReason::DeleteFailed), "then it is told");
    world.done("a", OperationState::Succeeded);
    assert!(world.actions.is_empty() && world.phase("a").is_none(), "no create follows");

    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(31 * 60);
    world.done("a", OperationState::Running);
    assert_eq!(world.hold("a"), Some(HoldReason::DeleteFailed));
    // It is still followed, now by the node itself.
    assert!(world.looks.iter().any(|l| matches!(l, Look::Node { .. })));
    world.get("a", None);
    assert!(matches!(world.actions[..], [Action::Create { .. }]));
}

#[test]
fn s10_only_a_deletion_that_was_never_seen_to_pause_counts_as_stuck() {
    fn shown(world: &mut World, node: &Value, minutes: u32) {
        for _ in 0..minutes * 2 {
            world.poll(std::slice::from_ref(node));
            world.wait(30);
        }
    }
    let deleting = node("a", json!({"state": "DELETING"}));
    let mut world = World::new(settings(&["a"]));
    shown(&mut world, &deleting, 20);
    shown(&mut world, &node("a", json!({"state": "DREAMING"})), 1);
    shown(&mut world, &deleting, 15);
    world.get("a", Some(deleting.clone()));
    assert!(world.actions.is_empty() && world.looks.is_empty(), "15 min, and 20 before a pause");
    shown(&mut world, &deleting, 16);
    world.get("a", Some(deleting.clone()));
    assert!(is_delete(&world.actions), "31 min without a pause");

    let mut world = World::new(settings(&["a"]));
    shown(&mut world, &deleting, 20);
    let later = json!({"state": "DELETING", "createTime": world.now.to_string()});
    let later = node("a", later);
    shown(&mut world, &later, 15);
    world.get("a", Some(later));
    assert!(world.actions.is_empty() && world.looks.is_empty(), "another node has its own time");
}

#[test]
fn an_owed_create_in_a_zone_without_capacity_moves_on_and_comes_back() {
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().zones = vec![ZONE.to_owned(), "us-east5-a".to_owned()];
    let mut world = World::new(settings);
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    match &world.actions[..] {
        [Action::Create { zone, .. }] => assert_eq!(zone, "us-east5-a", "the next zone, at once"),
        other => panic!("{other:?}"),
    }
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.create_fails("a", FailureClass::StockOut);
    assert_eq!(world.hold("a"), Some(HoldReason::Backoff), "all zones were asked");
    let probe = super::super::next_wake(&world.fleet).unwrap();
    assert!((110..=180).contains(&crate::model::time::elapsed(world.now, probe).as_secs()));
    world.now = probe;
    world.input(Input::Tick);
    assert!(matches!(&world.actions[..], [Action::Create { zone, .. }] if zone == ZONE));
}

#[test]
fn a_create_in_another_region_names_the_subnetwork_that_lies_there() {
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().zones = vec![ZONE.to_owned(), "us-east5-a".to_owned()];
    let mut world = World::new(settings);
    let subnetwork = |region: &str| format!("projects/p/regions/{region}/subnetworks/default");
    let network = json!({"subnetwork": subnetwork("us-central2")});
    world.poll(&[node("a", json!({"networkConfig": network}))]);
    let preempted = node("a", json!({"state": "PREEMPTED", "networkConfig": network}));
    world.wait(30);
    world.poll(std::slice::from_ref(&preempted));
    world.get("a", Some(preempted));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    for region in ["us-central2", "us-east5", "us-central2"] {
        match &world.actions[..] {
            [Action::Create { zone, body, .. }] => {
                assert!(zone.starts_with(region), "{zone}");
                assert_eq!(body["networkConfig"]["subnetwork"], subnetwork(region));
            }
            other => panic!("{other:?}"),
        }
        world.called(
            "a",
            CallOutcome::Refused(Failure::new(FailureClass::StockOut, "no more capacity")),
        );
        assert!(world.actions.is_empty(), "its name is read before the zone is left");
        world.wait(1);
        world.get("a", None);
        if region == "us-east5" {
            world.wait(180);
            world.input(Input::Tick);
        }
    }
}

#[test]
fn a_last_read_of_the_future_that_the_journal_brings_back_refuses_no_reads() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"health": "TIMEOUT"}), 60);
    // Written by a watchdog whose clock was ahead; what this one wrote since has failed.
    let (mut slots, ledger) = (world.fleet.slots.clone(), world.fleet.ledger.clone());
    slots.get_mut("a").unwrap().suspicion.as_mut().unwrap().last_read =
        after(world.now, Duration::from_secs(3600));
    world.fleet.read_again(slots, ledger);
    let reads = |world: &World| world.fleet.slots["a"].suspicion.as_ref().unwrap().reads;
    let before = reads(&world);
    for _ in 0..2 {
        world.wait(30);
        world.poll(&[node("a", json!({"health": "TIMEOUT"}))]);
    }
    assert_eq!(reads(&world), before + 2);
}

#[test]
fn whether_it_can_be_created_again_is_checked_again_when_node_or_config_say_something_new() {
    let bare = node("a", json!({"state": "PREEMPTED", "runtimeVersion": null}));
    let held = || {
        let mut world = World::new(settings(&["a"]));
        for _ in 0..3 {
            world.poll(std::slice::from_ref(&bare));
            world.wait(30);
        }
        assert_eq!(world.hold("a"), Some(HoldReason::NoSpecification));
        world
    };
    let mut world = held();
    let mut changed = settings(&["a"]);
    let whole =
        [("acceleratorType".to_owned(), json!("v4-8")), ("runtimeVersion".to_owned(), json!("r"))];
    changed.slots.get_mut("a").unwrap().create.fields.extend(whole);
    world.input(Input::Configured(Box::new(changed)));
    assert_eq!(world.hold("a"), None, "the config says what was missing");

    let mut world = held();
    world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
    assert_eq!(world.hold("a"), None, "the node says it");
}

#[test]
fn a_clock_that_is_set_back_holds_nothing() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    assert_eq!(world.hold("a"), Some(HoldReason::Backoff));
    world.now = "2026-05-31T12:00:00Z".parse().unwrap();
    // A probe that lay in the future would hold it for a day.
    world.input(Input::Tick);
    world.wait(180);
    world.input(Input::Tick);
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));

    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.now = "2026-05-31T12:00:00Z".parse().unwrap();
    for _ in 0..30 {
        world.wait(30);
        world.poll(&[node("a", timeout())]);
        if matches!(world.looks[..], [Look::Node { .. }]) {
            world.get("a", Some(node("a", timeout())));
            assert!(is_delete(&world.actions));
            return;
        }
    }
    panic!("its reads were ignored");
}
