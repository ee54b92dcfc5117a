//! `orphans = "dead"`: strays that can't run are removed, and nothing else is.

use super::*;
use crate::model::fleet::Stray;

impl World {
    /// `a` left the config while its create was running; with `dead`, strays are removed.
    pub fn stray(dead: bool) -> (World, Value) {
        let mut world = World::new(settings(&["a", "b"]));
        world.recreate_preempted();
        let made = world.replacement("a", json!({"state": "PREEMPTED"}));
        let mut config = settings(&["b"]);
        config.removes_dead = dead;
        world.input(Input::Configured(Box::new(config)));
        (world, made)
    }

    /// The next poll shows this node of `a`, or none.
    pub fn shows(&mut self, stray: Option<&Value>) {
        self.wait(30);
        let nodes: Vec<Value> = stray.cloned().into_iter().chain([node("b", json!({}))]).collect();
        self.poll(&nodes);
    }

    fn asks_for_stray(&self) -> bool {
        self.looks.iter().any(|look| matches!(look, Look::Stray { name, .. } if name == "a"))
    }

    pub fn stray_got(&mut self, raw: Value) {
        let reading = Reading::Node(Arc::new(NodeView::parse(raw).unwrap()));
        let (zone, name, began) = (ZONE.into(), "a".into(), self.now);
        self.input(Input::StrayGot { zone, name, began, reading });
    }

    pub fn stray_called(&mut self, outcome: CallOutcome) {
        let patch = matches!(self.actions[..], [Action::Patch { .. }]);
        let (zone, name) = (ZONE.into(), "a".into());
        self.input(Input::StrayCalled { zone, name, patch, outcome });
    }

    fn told(&self, what: &str) -> bool {
        self.messages.iter().any(|text| text.contains(what))
    }
}

pub fn changed(raw: &Value, change: Value) -> Value {
    let mut raw = raw.clone();
    for (key, value) in change.as_object().unwrap() {
        raw[key] = value.clone();
    }
    raw
}

#[test]
fn s17_a_dead_stray_of_ours_is_removed_once_and_followed_until_it_is_gone() {
    let (mut world, made) = World::stray(true);
    world.shows(Some(&made));
    assert!(world.asks_for_stray() && world.actions.is_empty(), "a GET first (S1)");
    world.stray_got(made.clone());
    let [Action::Delete { stray: true, slot, zone, incarnation, .. }] = &world.actions[..] else {
        panic!("{:?}", world.actions)
    };
    assert_eq!((slot.as_str(), zone.as_str(), incarnation.id.as_str()), ("a", ZONE, "2"));
    assert!(matches!(world.events[..], [What::StrayIntent { .. }]), "{:?}", world.events);
    world.stray_called(CallOutcome::Accepted(OPERATION.into()));
    assert_eq!(world.fleet.left["a"].own_delete.as_deref(), Some(OPERATION));
    // It takes its time: nothing is asked twice within half an hour.
    for _ in 0..50 {
        world.shows(Some(&made));
        assert!(!world.asks_for_stray() && world.actions.is_empty());
    }
    world.shows(None);
    assert!(
        world.fleet.ledger.strays.is_empty() && world.told("stray a in us-central2-b: it is gone")
    );
}

#[test]
fn s17_a_stray_is_left_alone_unless_the_config_says_so_and_nothing_can_run_on_it() {
    let (mut world, made) = World::stray(false);
    world.shows(Some(&made));
    assert!(!world.asks_for_stray() && world.told("policy.orphans = \"dead\""), "reported only");
    for state in ["READY", "CREATING", "STOPPED", "DELETING", "UNKNOWN"] {
        let (mut world, made) = World::stray(true);
        world.shows(Some(&changed(&made, json!({"state": state}))));
        assert!(!world.asks_for_stray(), "{state}");
        assert_eq!(world.fleet.ledger.strays.len(), 1);
    }
    // The GET shows something else than the listing, or a node that is not only ours.
    let others = [
        json!({"state": "READY"}),
        json!({"id": "3"}),
        json!({"labels": {"tpu-watchdog": "off"}}),
        json!({"queuedResource": "projects/p/locations/z/queuedResources/q"}),
        json!({"metadata": {"tpu-watchdog-owner": "you", "tpu-watchdog-slot": "a"}}),
        json!({"apiVersion": "V1"}),
    ];
    for change in others {
        let (mut world, made) = World::stray(true);
        world.shows(Some(&made));
        world.stray_got(changed(&made, change.clone()));
        assert!(world.actions.is_empty(), "{change}");
    }
}

/// A pause without an end.
fn paused<T: serde::de::DeserializeOwned>() -> Option<T> {
    serde_json::from_value(json!({"who": "ada", "reason": null, "until": null})).ok()
}

#[test]
fn s7_no_stray_is_removed_in_dry_run_or_while_it_is_paused() {
    let holds: [fn(&mut World); 4] = [
        |world| world.fleet.settings.dry_run = true,
        |world| world.fleet.ledger.paused = paused(),
        |world| world.fleet.left.get_mut("a").unwrap().paused = paused(),
        |world| world.fleet.ledger.left_paused.extend(paused().map(|pause| ("a".into(), pause))),
    ];
    for hold in holds {
        let (mut world, made) = World::stray(true);
        hold(&mut world);
        world.shows(Some(&made));
        assert!(!world.asks_for_stray());
        // Also between the listing and the GET.
        let (mut world, made) = World::stray(true);
        world.shows(Some(&made));
        hold(&mut world);
        world.stray_got(made);
        assert!(world.actions.is_empty());
    }
}

#[test]
fn a_removal_that_did_not_come_about_is_tried_again() {
    let denied = || Failure::new(FailureClass::Permission, "tpu.nodes.delete denied");
    // One that may have been carried out is waited for longer.
    let outcomes = [
        (CallOutcome::Refused(denied()), 9),
        (CallOutcome::NotSent(denied()), 9),
        (CallOutcome::Unknown(denied()), 59),
    ];
    for (outcome, polls) in outcomes {
        let (mut world, made) = World::stray(true);
        world.shows(Some(&made));
        world.stray_got(made.clone());
        world.stray_called(outcome);
        assert!(world.told("delete of stray a in us-central2-b"), "{:?}", world.messages);
        for _ in 0..polls {
            world.shows(Some(&made));
            assert!(!world.asks_for_stray());
        }
        world.wait(30);
        world.shows(Some(&made));
        assert!(world.asks_for_stray());
    }
}

#[test]
fn s9_a_delete_on_its_way_keeps_its_name_whatever_the_listing_shows() {
    let (mut world, made) = World::stray(true);
    world.shows(Some(&made));
    world.stray_got(made.clone());
    world.shows(None);
    assert_eq!(world.fleet.ledger.strays.len(), 1, "nothing has answered the delete");
    world.stray_called(CallOutcome::Accepted(OPERATION.into()));
    world.shows(None);
    assert!(world.fleet.ledger.strays.is_empty());
    // Another node of that name was not deleted.
    let (mut world, made) = World::stray(true);
    world.shows(Some(&made));
    world.stray_got(made.clone());
    world.stray_called(CallOutcome::Accepted(OPERATION.into()));
    world.shows(Some(&changed(&made, json!({"id": "3", "state": "READY"}))));
    assert!(world.fleet.ledger.strays.values().all(|stray| stray.removal.is_none()));
}

#[test]
fn a_stray_whose_get_was_lost_with_a_failing_journal_is_asked_for_again() {
    let (mut world, made) = World::stray(true);
    world.shows(Some(&made));
    let (left, ledger) = (world.fleet.left.clone(), world.fleet.ledger.clone());
    let slots = left.into_iter().chain(world.fleet.slots.clone()).collect();
    world.fleet.read_again(slots, ledger);
    world.shows(Some(&made));
    assert!(world.asks_for_stray());
}

#[test]
fn s1_a_get_of_a_stray_that_is_older_than_five_seconds_removes_nothing() {
    let (mut world, made) = World::stray(true);
    world.shows(Some(&made));
    let reading = Reading::Node(Arc::new(NodeView::parse(made.clone()).unwrap()));
    let began = world.now;
    world.wait(6);
    world.input(Input::StrayGot { zone: ZONE.into(), name: "a".into(), began, reading });
    assert!(world.actions.is_empty());
    world.shows(Some(&made));
    assert!(world.asks_for_stray(), "it is asked for again");
}

#[test]
fn s9_no_create_is_sent_where_a_dead_node_of_that_name_is_being_removed() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    let removal = crate::model::fleet::Removal {
        at: world.now,
        incarnation: crate::model::ids::Incarnation { id: "2".into(), created: world.now },
        state: "PREEMPTED".into(),
        call: Some(crate::model::step::Call::Unknown),
        failure: None,
    };
    let stray = Stray {
        zone: ZONE.into(),
        name: "a".into(),
        since: world.now,
        why: "late".into(),
        state: Some("PREEMPTED".into()),
        incarnation: None,
        request: None,
        slot: None,
        twin: None,
        removal: Some(removal),
        told: None,
        told_in: None,
    };
    world.fleet.ledger.strays.insert(Stray::key(ZONE, "a"), stray);
    for _ in 0..20 {
        world.wait(60);
        world.poll_result(Err(Failure::new(FailureClass::Transient, "not now")));
        assert!(world.actions.is_empty(), "{:?}", world.actions);
    }
    world.wait(60);
    world.poll(&[]);
    assert!(world.fleet.ledger.strays.is_empty());
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}
