//! The specification of a slot: which read of its node teaches it; and entries of a listing that
//! can't be read.

use super::*;
use crate::model::action::NodeList;

const BOOT_DISK: &str = "500";

/// The node `a` with its boot disk, as v2alpha1 shows it.
fn whole(change: Value) -> Value {
    let mut raw = node("a", json!({"bootDiskConfig": {"diskSizeGb": BOOT_DISK}}));
    for (key, value) in change.as_object().unwrap() {
        raw[key] = value.clone();
    }
    raw
}

fn alpha(raw: Value) -> Arc<NodeView> {
    Arc::new(NodeView::parse(raw).unwrap().through_alpha())
}

impl World {
    fn poll_alpha(&mut self, raw: Value) {
        self.poll_result(Ok((vec![alpha(raw)], vec![])));
    }

    fn learned(&self, key: &str) -> Value {
        let spec = self.fleet.slots["a"].spec.as_ref();
        spec.and_then(|spec| spec.body().get(key).cloned()).unwrap_or_default()
    }

    fn boot_disk(&self) -> bool {
        self.learned("bootDiskConfig") == json!({"diskSizeGb": BOOT_DISK})
    }
}

#[test]
fn v2_replaces_nothing_that_v2alpha1_showed_of_the_same_node() {
    let mut world = World::new(settings(&["a"]));
    world.poll_alpha(whole(json!({})));
    assert!(world.boot_disk() && world.fleet.slots["a"].learned_alpha);
    world.wait(30);
    world.poll(&[node("a", json!({"description": "new"}))]);
    assert!(world.boot_disk() && world.learned("description").is_null());
    // v2alpha1 answers again.
    world.wait(30);
    world.poll_alpha(whole(json!({"description": "new"})));
    assert!(world.boot_disk() && world.learned("description") == "new");
}

#[test]
fn v2alpha1_teaches_what_v2_hid_whatever_the_health() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({"tags": ["t"]}))]);
    assert!(!world.boot_disk());
    world.wait(30);
    world.poll_alpha(whole(timeout()));
    assert!(world.boot_disk() && world.fleet.slots["a"].learned_alpha);
    assert_eq!(world.learned("tags"), json!(["t"]), "a sick node may lack something");
    assert!(world.records.iter().any(|record| matches!(record, Record::Spec(..))));
    // A record of a former version says nothing of where its specification comes from.
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.fleet.slots.get_mut("a").unwrap().learned_from = None;
    world.wait(30);
    world.poll_alpha(whole(timeout()));
    assert!(world.boot_disk());
}

#[test]
fn the_confirming_get_teaches_what_a_listing_lacked() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.wait(30);
    world.poll(&[node("a", timeout())]);
    world.get(
        "a",
        Some(node("a", json!({"health": "TIMEOUT", "tags": ["t"], "runtimeVersion": "s"}))),
    );
    assert_eq!(world.learned("tags"), json!(["t"]));
    assert_eq!(world.learned("runtimeVersion"), "r", "a healthy read knows better");
}

#[test]
fn another_node_teaches_all_of_itself_and_one_of_ours_keeps_what_v2_hides() {
    let replaced = json!({"id": "2", "createTime": "2026-03-01T00:00:00Z"});
    let mut world = World::new(settings(&["a"]));
    world.poll_alpha(whole(json!({})));
    world.wait(30);
    world.poll(&[node("a", replaced.clone())]);
    assert!(!world.boot_disk() && !world.fleet.slots["a"].learned_alpha, "made by a person");
    let mut world = World::new(settings(&["a"]));
    world.poll_alpha(whole(json!({})));
    world.wait(30);
    let mut ours = replaced;
    ours["metadata"] = json!({"tpu-watchdog-owner": "me", "tpu-watchdog-slot": "a"});
    world.poll(&[node("a", ours.clone())]);
    assert!(world.boot_disk());
    world.wait(30);
    ours["description"] = json!("new");
    world.poll(&[node("a", ours)]);
    assert!(world.boot_disk(), "until v2alpha1 shows this one");
}

#[test]
fn a_reservation_that_v2_hides_is_remembered() {
    let mut world = World::new(settings(&["a"]));
    world
        .poll_alpha(whole(json!({"schedulingConfig": {"reserved": true, "reservationName": "r"}})));
    world.wait(30);
    world.poll(&[node("a", json!({"schedulingConfig": {"reserved": true}}))]);
    assert_eq!(world.fleet.slots["a"].seen.as_ref().unwrap().reservation, "r");
    // v2 hides `guaranteed.reserved` of a queued resource altogether.
    world.wait(30);
    world.poll(&[node("a", json!({}))]);
    assert!(world.fleet.slots["a"].seen.as_ref().unwrap().reserved);
    world.wait(30);
    world.poll(&[node("a", json!({"id": "9"}))]);
    assert!(!world.fleet.slots["a"].seen.as_ref().unwrap().reserved, "another TPU");
}

impl World {
    /// A listing of `b` alone, with these entries that can't be read.
    fn poll_with(&mut self, zone: &str, unreadable: &[&str], nameless: usize) {
        let nodes = vec![Arc::new(NodeView::parse(node("b", json!({}))).unwrap())];
        let unreadable = unreadable.iter().map(|name| (*name).to_owned()).collect();
        let result = Ok(NodeList { nodes, unreachable: vec![], unreadable, nameless });
        let listing = Listing { zone: zone.into(), result, requests: None };
        let poll = Poll { began: self.now, listings: vec![listing], jobs: vec![] };
        self.input(Input::Polled(Box::new(poll)));
    }

    pub fn condition(&self, name: &str) -> Condition {
        self.fleet.slots[name].verdict.condition
    }
}

#[test]
fn an_alien_node_blinds_no_zone_and_an_entry_of_unknown_name_may_be_any_that_is_absent() {
    for (zone, unreadable, nameless, held) in [
        (ZONE, vec!["alien"], 0, false),
        (ZONE, vec!["alien", "a"], 0, true),
        ("-", vec!["a"], 0, true),
        (ZONE, vec![], 1, true),
        ("-", vec![], 2, true),
    ] {
        let mut world = World::new(settings(&["a", "b"]));
        world.poll(&[node("a", json!({})), node("b", json!({}))]);
        world.wait(30);
        world.poll_with(zone, &unreadable, nameless);
        assert_eq!(world.condition("b"), Condition::Healthy, "{unreadable:?} {nameless}");
        if held {
            assert_eq!(world.condition("a"), Condition::Unclear, "{unreadable:?} {nameless}");
            assert!(world.looks.is_empty() && world.actions.is_empty());
        } else {
            let text = &world.fleet.slots["a"].verdict.evidence;
            assert!(!text.contains("can't be read") && !text.contains("no name"), "{text}");
        }
    }
}

#[test]
fn s12_what_no_version_knows_is_created_as_it_was_read() {
    let mut world = World::new(settings(&["a"]));
    let disks = json!([{"sourceDisk": "disks/1", "mode": "READ_ONLY_MULTIPLE"}]);
    world.poll(&[node("a", json!({"dataDisks": disks}))]);
    world.wait(30);
    let preempted = node("a", json!({"dataDisks": disks, "state": "PREEMPTED"}));
    world.poll(std::slice::from_ref(&preempted));
    world.get("a", Some(preempted));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    match &world.actions[..] {
        [Action::Create { body, .. }] => assert_eq!(body["dataDisks"], disks),
        other => panic!("{other:?}"),
    }
}
