//! Slots that are called off, renamed or put back while a call of theirs is under way.

use super::withdrawal::Asked;
use super::*;
use crate::model::command::CommandKind;
use crate::model::fleet::Stray;
use crate::model::settings::Settings;

/// A sick TPU of ours whose delete the API has accepted.
fn being_deleted() -> (World, Value) {
    let mut world = World::new(settings(&["a", "b", "c"]));
    let sick = |state: &str| node("a", json!({"health": "TIMEOUT", "state": state}));
    world.sick(&["a"], json!({"health": "TIMEOUT"}), 3600);
    world.get("a", Some(sick("READY")));
    assert!(is_delete(&world.actions), "{:?}", world.fleet.slots["a"].decision);
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    (world, sick("DELETING"))
}

/// Whether it is created again once it is gone.
fn is_created(world: &mut World, deleting: &Value) -> bool {
    world.deletions = Ok(vec![Deletion { operation: OPERATION.into(), at: world.now }]);
    world.wait(30);
    world.poll(std::slice::from_ref(deleting));
    (0..20).any(|_| {
        world.wait(30);
        world.poll(&[]);
        world.get("a", None);
        matches!(world.actions[..], [Action::Create { .. }])
    })
}

#[test]
fn l3_a_delete_of_ours_that_is_seen_when_its_slot_is_back_is_no_other_clients() {
    let (mut world, deleting) = being_deleted();
    let config = world.fleet.settings.clone();
    let mut without: Settings = config.clone();
    without.slots.remove("a");
    world.input(Input::Configured(Box::new(without)));
    world.wait(5);
    world.input(Input::Configured(Box::new(config)));
    assert!(is_created(&mut world, &deleting), "{:?}", world.fleet.slots["a"].decision);
}

#[test]
fn l3_a_delete_of_ours_that_is_seen_after_a_purge_is_no_other_clients() {
    let (mut world, deleting) = being_deleted();
    world.command(CommandKind::Forget { slot: "a".into(), purge: true });
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    let seen = world.fleet.slots["a"].seen.is_some();
    assert!(seen && world.fleet.slots["a"].deleted.is_none());
    world.wait(30);
    world.poll(std::slice::from_ref(&deleting));
    assert_eq!(world.fleet.slots["a"].deleted, None, "it was ours");
}

#[test]
fn s15_a_withdrawal_whose_answer_never_came_is_over_once_its_request_is_granted() {
    let mut asked = Asked::new();
    let waiting = json!({"state": "WAITING_FOR_RESOURCES"});
    asked.shows(Some(&waiting));
    asked.forget();
    asked.shows(Some(&waiting));
    asked.got(Some(&waiting));
    assert!(is_delete(&asked.world.actions), "the process ends here");
    asked.shows(Some(&json!({"state": "PROVISIONING"})));
    let removal =
        |asked: &Asked| asked.world.fleet.ledger.strays["us-central2-b/a"].removal.is_some();
    assert!(removal(&asked), "the call may still arrive");
    (0..3).for_each(|_| asked.shows(Some(&json!({"state": "ACTIVE"}))));
    assert!(!removal(&asked), "so that it may be told to wait");
}

#[test]
fn s21_a_request_whose_slot_was_renamed_is_withdrawn_when_that_is_forgotten() {
    let waiting = json!({"state": "WAITING_FOR_RESOURCES"});
    for polls in [4, 0] {
        let mut asked = Asked::new();
        asked.shows(Some(&waiting));
        let mut renamed = asked.world.fleet.settings.clone();
        let slot = renamed.slots.remove("a").unwrap();
        renamed.slots.insert("c".into(), SlotSettings { name: "c".into(), ..slot });
        asked.world.input(Input::Configured(Box::new(renamed)));
        (0..polls).for_each(|_| asked.shows(Some(&waiting)));
        asked.command(CommandKind::Forget { slot: "c".into(), purge: false });
        asked.shows(Some(&waiting));
        assert!(asked.looks_at_it(), "{polls}: {:?}", asked.world.messages);
        asked.got(Some(&waiting));
        assert!(is_delete(&asked.world.actions), "{polls}: {:?}", asked.world.messages);
    }
}

#[test]
fn s21_a_create_that_was_lost_in_another_zone_is_followed_when_its_slot_is_called_off() {
    let mut asked = Asked::new();
    let waiting = json!({"state": "WAITING_FOR_RESOURCES"});
    asked.shows(Some(&waiting));
    let record = asked.world.fleet.slots.get_mut("a").unwrap();
    let recovery = record.recovery.as_mut().expect("it waits");
    recovery.lost_in = Some("us-east5-a".into());
    asked.forget();
    let strays = &asked.world.fleet.ledger.strays;
    for zone in ["us-central2-b", "us-east5-a"] {
        let stray = strays.get(&Stray::key(zone, "a")).unwrap_or_else(|| panic!("{strays:?}"));
        assert_eq!(stray.request.as_deref(), Some("q"), "{zone}");
    }
    assert!(strays["us-east5-a/a"].incarnation.is_none(), "it was not seen there");
}

#[test]
fn a_delete_of_ours_that_never_left_excuses_no_later_one() {
    let mut world = World::new(settings(&["a", "b", "c"]));
    world.sick(&["a"], json!({"health": "TIMEOUT"}), 3600);
    world.get("a", Some(node("a", json!({"health": "TIMEOUT"}))));
    assert!(is_delete(&world.actions));
    let config = world.fleet.settings.clone();
    let mut without: Settings = config.clone();
    without.slots.remove("a");
    world.input(Input::Configured(Box::new(without)));
    world.called("a", CallOutcome::NotSent(Failure::new(FailureClass::Transient, "no term")));
    world.input(Input::Configured(Box::new(config)));
    for _ in 0..4 {
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
    }
    world.wait(30);
    world.poll(&[node("a", json!({"state": "DELETING"}))]);
    assert!(world.fleet.slots["a"].deleted.is_some(), "another client's");
}
