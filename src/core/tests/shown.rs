//! The decision that every view shows, and whether a slot is protected.

use super::runs::with_checkpoints;
use super::*;
use crate::model::command::CommandKind;
use crate::model::exit::Stuck;
use crate::model::lookup::CreateCheck;
use crate::model::settings::WhenMissing;
use crate::model::view::Decision;

#[test]
fn a_right_that_was_missed_long_ago_leaves_a_slot_protected() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let check = CreateCheck { certain: Some("actAs".into()), ..CreateCheck::default() };
    world.fleet.slots.get_mut("a").unwrap().create_check = Some((world.now, check));
    let protected = |world: &World| view::document(&world.fleet, world.now).tpus[0].protected;
    assert!(!protected(&world));
    world.wait(3601);
    world.next_poll(&node);
    assert!(protected(&world), "the gate asks again, too");
}

#[test]
fn s20_a_create_that_could_not_follow_is_told_where_it_holds_nothing() {
    let mut world = World::new(settings(&["a"]));
    world.fleet.settings.slots.get_mut("a").unwrap().policy.create_check = false;
    world.create_check.certain = Some("the caller lacks actAs".into());
    world.poll(&[node("a", json!({}))]);
    let sick = node("a", json!({"health": "TIMEOUT"}));
    let (mut told, mut deleted) = (0, false);
    for _ in 0..30 {
        world.wait(30);
        world.poll(std::slice::from_ref(&sick));
        told += world.messages.iter().filter(|text| text.contains("actAs")).count();
        world.get("a", Some(sick.clone()));
        if is_delete(&world.actions) {
            deleted = true;
            break;
        }
    }
    assert_eq!((told, deleted), (1, true), "told once, and not held: {:?}", world.hold("a"));
    let shown = &view::document(&world.fleet, world.now).tpus[0];
    assert!(shown.warnings.iter().any(|text| text.contains("actAs")), "{:?}", shown.warnings);
    assert!(shown.protected);
}

#[test]
fn what_waits_for_an_operator_is_not_protected() {
    let protected = |world: &World| view::document(&world.fleet, world.now).tpus[0].protected;
    let missing = |when: WhenMissing| {
        let mut world = World::new(settings(&["a"]));
        world.poll(&[node("a", json!({}))]);
        world.fleet.settings.slots.get_mut("a").unwrap().policy.when_missing = when;
        assert!(protected(&world));
        world.fleet.slots.get_mut("a").unwrap().deleted = Some("by hand".into());
        world.missing();
        world
    };
    assert!(!protected(&missing(WhenMissing::Hold)) && !protected(&missing(WhenMissing::Auto)));
    let mut world = with_checkpoints();
    world.supervised_run();
    assert!(protected(&world));
    world.fleet.slots.get_mut("a").unwrap().job.stuck = Some(Stuck::EndedEarly);
    assert!(!protected(&world), "its job may be done");
}

#[test]
fn a_poll_that_reads_one_zone_of_two_is_a_poll() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    let whole = world.fleet.ledger.observed_at;
    world.wait(30);
    let of = |zone: &str, result| Listing { zone: zone.into(), result, requests: None };
    let read = Ok((vec![Arc::new(NodeView::parse(node("a", json!({}))).unwrap())], vec![]).into());
    let failed = Err(Failure::new(FailureClass::Transient, "503"));
    let listings = vec![of(ZONE, read), of("us-east5-a", failed)];
    world.input(Input::Polled(Box::new(Poll { began: world.now, listings, jobs: vec![] })));
    assert_eq!(world.fleet.ledger.observed_at, whole);
    assert_eq!(world.fleet.ledger.polled_at, Some(world.now));
}

#[test]
fn the_words_of_a_decision_that_change_between_two_polls_are_written_with_the_next() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.next_poll(&node);
    let old = world.fleet.slots["a"].decision.clone().unwrap();
    let decision = Decision { reason: "other words".into(), ..old };
    world.fleet.slots.get_mut("a").unwrap().decision = Some(decision);
    world.fleet.slots.get_mut("a").unwrap().at_ease = false;
    world.wait(1);
    world.input(Input::Tick);
    world.next_poll(&node);
    let written =
        world.records.iter().any(|record| matches!(record, Record::Slot(slot) if slot.name == "a"));
    assert!(written);
}

#[test]
fn a_record_without_a_decision_is_decided_for_the_views_alone() {
    let mut world = with_checkpoints();
    world.supervised_run();
    let mut slots = world.fleet.slots.clone();
    let record = slots.get_mut("a").unwrap();
    record.decision = None;
    record.verdict.condition = Condition::JobFailed;
    record.job.failed = Some((0, 1, "final after 5 restarts".into()));
    record.job.stuck = Some(Stuck::GaveUp);
    let (settings, ledger) = (&world.fleet.settings, world.fleet.ledger.clone());
    let shown = view::at_rest(settings, slots, ledger, None, world.now);
    assert_eq!(shown.tpus[0].hold.as_deref(), Some("job_failed"));
    assert!(view::needs_a_person(&shown));
}

#[test]
fn of_a_tpu_that_was_not_read_yet_it_is_not_claimed_that_there_is_none() {
    let mut world = World::new(settings(&["a"]));
    let reason = |world: &World| {
        let slot = view::document(&world.fleet, world.now).tpus.remove(0);
        slot.unprotected_reason.unwrap_or_default()
    };
    assert!(reason(&world).contains("was not read yet"), "{}", reason(&world));
    world.poll(&[]);
    world.get("a", None);
    assert!(reason(&world).contains("was ever seen"), "{}", reason(&world));
}

#[test]
fn a_tpu_that_would_come_back_empty_is_told() {
    let shown = |metadata: Value| {
        let mut world = World::new(settings(&["a"]));
        world.poll(&[node("a", json!({"metadata": metadata}))]);
        let slot = view::document(&world.fleet, world.now).tpus.remove(0);
        (slot.empty, slot.warnings.join(" ").contains("nothing would run on it"))
    };
    assert_eq!(shown(json!({})), (true, true));
    assert_eq!(shown(json!({"startup-script": "#! /bin/bash\ntrain"})), (false, false));
    // One that was never seen, and that nothing describes, is told as that.
    let mut world = World::new(settings(&["a"]));
    world.poll(&[]);
    assert!(!view::document(&world.fleet, world.now).tpus[0].empty);
}

#[test]
fn the_done_of_an_operator_is_no_success_that_was_seen() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.command(CommandKind::Done { slot: "a".into() });
    world.next_poll(&node);
    let slot = view::document(&world.fleet, world.now).tpus.remove(0);
    assert_eq!(slot.condition, Condition::Finished);
    assert!(
        slot.evidence.contains("said at") && slot.evidence.contains("was not stopped"),
        "{}",
        slot.evidence
    );
}
