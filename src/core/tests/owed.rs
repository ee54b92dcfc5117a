//! What is owed, who may call it off, and what no slot owns: removal and creation as two decisions,
//! `forget`, `recreate`, slots that leave and come back, strays.

use super::*;
use crate::model::command::{Command, CommandKind};
use crate::model::condition::Kind;

pub fn preempted() -> Value {
    json!({"state": "PREEMPTED"})
}

impl World {
    pub fn order(&mut self, kind: CommandKind) {
        let at = self.now;
        let (id, who) = ("1".to_owned(), "ada".to_owned());
        self.input(Input::Commands(vec![Command { id, at, who, reason: None, kind }]));
    }

    fn config(&mut self, names: &[&str]) {
        self.input(Input::Configured(Box::new(settings(names))));
    }

    /// The node of `a` is ours, READY, and no recovery is under way.
    fn ours(&mut self) -> Value {
        self.recreate_preempted();
        let ready = self.replacement("a", json!({}));
        self.get("a", Some(ready.clone()));
        assert!(self.fleet.slots["a"].ours && self.phase("a").is_none());
        self.wait(30);
        self.poll(std::slice::from_ref(&ready));
        ready
    }

    /// Polls without `a` until it is missing for long enough, and its absence confirmed.
    pub fn missing(&mut self) {
        for _ in 0..8 {
            self.wait(30);
            self.poll(&[]);
            self.get("a", None);
            if !self.actions.is_empty() {
                return;
            }
        }
    }
}

#[test]
fn l9_what_is_lost_and_ours_is_removed_although_its_create_is_held() {
    let mut world = World::new(settings(&["a"]));
    let mut lost = world.ours();
    world.fleet.settings.slots.get_mut("a").unwrap().policy.attempts.preemptions = 1;
    lost["state"] = json!("PREEMPTED");
    world.wait(30);
    world.poll(std::slice::from_ref(&lost));
    world.get("a", Some(lost));
    assert!(is_delete(&world.actions), "dead nodes eat quota: {:?}", world.hold("a"));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Preemptions), 0));
    // An adopted TPU is the operator's: its removal waits with its create.
    let mut world = World::new(settings(&["a"]));
    world.fleet.settings.slots.get_mut("a").unwrap().policy.attempts.preemptions = 0;
    world.sick(&["a"], preempted(), 0);
    world.get("a", Some(node("a", preempted())));
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Preemptions), 0));
}

#[test]
fn l9_the_remains_of_a_finished_job_are_removed_and_nothing_is_created() {
    let mut world = super::runs::with_checkpoints();
    world.begin(&[100]);
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    let mut lost = world.supervised("10", world.now);
    world.get("a", Some(lost.clone()));
    let key = world.fleet.settings.slots["a"].job.as_ref().unwrap().key();
    let record = world.fleet.slots.get_mut("a").unwrap();
    (record.job.finished, record.recovery) = (Some(key), None);
    world.wait(30);
    world.poll(std::slice::from_ref(&lost));
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Finished);
    world.ordered(super::relaunch::accepted());
    lost["state"] = json!("PREEMPTED");
    world.wait(30);
    world.poll(std::slice::from_ref(&lost));
    world.get("a", Some(lost));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert_eq!((world.phase("a"), world.actions.len()), (None, 0));
}

#[test]
fn s21_a_create_that_was_not_sent_ends_when_its_slot_leaves_the_config() {
    let mut world = World::new(settings(&["a", "b"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    let spec = world.fleet.slots["a"].spec.clone();
    world.config(&["b"]);
    assert!(world.messages.iter().any(|text| text.contains("called off")), "{:?}", world.messages);
    assert!(world.fleet.ledger.strays.is_empty(), "nothing can come of it");
    for _ in 0..20 {
        world.wait(60);
        world.poll(&[node("b", json!({}))]);
        assert!(world.actions.is_empty());
    }
    // Its specification and attempts are kept for 30 days.
    world.config(&["a", "b"]);
    let record = &world.fleet.slots["a"];
    assert_eq!((&record.spec, record.attempts.len(), record.job.generation), (&spec, 1, 1));
    world.config(&["b"]);
    world.wait(31 * 86_400);
    world.poll(&[node("b", json!({}))]);
    assert!(world.records.iter().any(|r| matches!(r, Record::Removed(name) if name == "a")));
    assert!(world.fleet.left.is_empty());
}

#[test]
fn s21_what_a_called_off_create_makes_all_the_same_is_told_until_it_is_gone_or_taken_up() {
    let mut world = World::new(settings(&["a", "b"]));
    world.recreate_preempted();
    let made = world.replacement("a", json!({}));
    world.config(&["b"]);
    assert_eq!(world.fleet.ledger.strays.len(), 1, "it was sent: it may come");
    world.wait(30);
    world.poll(&[made.clone(), node("b", json!({}))]);
    let told = |world: &World| world.messages.iter().any(|text| text.starts_with("stray a in"));
    assert!(told(&world), "{:?}", world.messages);
    world.wait(30);
    world.poll(&[made.clone(), node("b", json!({}))]);
    assert!(!told(&world) && world.actions.is_empty(), "told once, and never deleted");
    assert_eq!(view::document(&world.fleet, world.now).strays[0].name, "a");
    // Its slot is back, and takes it up.
    world.config(&["a", "b"]);
    world.wait(30);
    world.poll(&[made.clone(), node("b", json!({}))]);
    assert!(world.fleet.ledger.strays.is_empty() && world.fleet.slots["a"].ours);
    // Or it is gone.
    world.config(&["b"]);
    world.fleet.ledger.strays.clear();
    let mut world = World::new(settings(&["a", "b"]));
    world.recreate_preempted();
    world.config(&["b"]);
    world.wait(4 * 3600);
    world.poll(&[node("b", json!({}))]);
    assert!(world.fleet.ledger.strays.is_empty(), "it never came");
}

#[test]
fn s21_a_node_in_a_zone_that_was_left_is_told() {
    let mut two = settings(&["a"]);
    two.slots.get_mut("a").unwrap().zones.push("us-east5-a".into());
    let mut world = World::new(two);
    world.recreate_preempted();
    let mut late = world.replacement("a", json!({}));
    world.create_fails("a", FailureClass::StockOut);
    assert_eq!(world.fleet.slots["a"].zone, "us-east5-a");
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    late["state"] = json!("CREATING");
    world.wait(30);
    world.poll(&[late]);
    assert_eq!(world.fleet.ledger.strays.len(), 1, "{:?}", world.messages);
    assert!(world.actions.is_empty());
}

#[test]
fn forget_calls_a_create_off_until_retry() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    world.order(CommandKind::Forget { slot: "a".into(), purge: false });
    assert_eq!(world.phase("a"), None);
    world.missing();
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Forgotten), 0));
    assert!(world.fleet.slots["a"].spec.is_some(), "kept");
    world.order(CommandKind::Retry { slot: "a".into(), from: None });
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    world.order(CommandKind::Forget { slot: "a".into(), purge: true });
    let record = &world.fleet.slots["a"];
    assert!(record.spec.is_none() && record.attempts.is_empty() && record.forgotten);
    assert_eq!(record.job.generation, 1, "a generation is never used twice");
}

#[test]
fn an_operator_recreates_exactly_the_tpu_that_was_meant() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    let meant = world.fleet.slots["a"].incarnation.clone();
    world.order(CommandKind::Recreate { slot: "a".into(), incarnation: meant.clone() });
    world.get("a", Some(node("a", json!({}))));
    assert!(is_delete(&world.actions), "healthy, and asked for: {:?}", world.hold("a"));
    assert!(world.events.iter().any(
        |what| matches!(what, What::Condemned { cause, kind, .. } if (*cause, *kind) == (Condition::Requested, Kind::Judged))
    ));
    // Quiet hours and the breaker do not hold it; a pause does, by name.
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.order(CommandKind::Pause { slot: None, until: None });
    world.order(CommandKind::Recreate { slot: "a".into(), incarnation: meant.clone() });
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Paused), 0));
    // Another one stands there by now.
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({"id": "9"}))]);
    world.order(CommandKind::Recreate { slot: "a".into(), incarnation: meant.clone() });
    assert!(world.fleet.slots["a"].wanted.is_none() && world.actions.is_empty());
    // Nor is one deleted that was stopped, or that the API works on (S10).
    for state in ["STOPPED", "STARTING", "STATE_OF_THE_FUTURE"] {
        let mut world = World::new(settings(&["a"]));
        world.poll(&[node("a", json!({ "state": state }))]);
        world.order(CommandKind::Recreate { slot: "a".into(), incarnation: meant.clone() });
        world.get("a", Some(node("a", json!({ "state": state }))));
        assert!(world.actions.is_empty(), "{state}");
    }
}

#[test]
fn every_refusal_but_rate_and_transient_goes_on_to_the_next_zone() {
    let two_zones = || {
        let mut two = settings(&["a"]);
        two.slots.get_mut("a").unwrap().zones.push("us-east5-a".into());
        World::new(two)
    };
    let by_operation = |class: FailureClass| {
        let mut world = two_zones();
        world.recreate_preempted();
        world.create_fails("a", class);
        world.fleet.slots["a"].zone.clone()
    };
    let at_once = |class: FailureClass| {
        let mut world = two_zones();
        world.sick(&["a"], preempted(), 0);
        world.get("a", Some(node("a", preempted())));
        world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        world.called("a", CallOutcome::Refused(Failure::new(class, "no")));
        assert!(world.asks("a"), "its name is read before the zone is left: {}", class.name());
        world.wait(1);
        world.get("a", None);
        world.fleet.slots["a"].zone.clone()
    };
    use FailureClass::*;
    for class in [StockOut, Quota, Permission, BadRequest, ClosedQueue, PreemptedInCreation] {
        let zones = (by_operation(class), at_once(class));
        assert_eq!(zones, ("us-east5-a".into(), "us-east5-a".into()), "{}", class.name());
    }
    for class in [Rate, Transient, Billing, ApiDisabled] {
        assert_eq!(
            (by_operation(class), at_once(class)),
            (ZONE.into(), ZONE.into()),
            "{}",
            class.name()
        );
    }
}

#[test]
fn l1_a_create_that_failed_and_left_its_node_is_read_back_before_the_next_zone_is_tried() {
    let mut two = settings(&["a"]);
    two.slots.get_mut("a").unwrap().zones.push("us-east5-a".into());
    let mut world = World::new(two);
    world.recreate_preempted();
    let failed = Failure::new(FailureClass::Transient, "code 13: an internal error");
    let made = world.replacement("a", json!({"state": "CREATING"}));
    world.done("a", OperationState::Failed(failed));
    world.wait(1);
    world.get("a", Some(made.clone()));
    for _ in 0..10 {
        world.wait(30);
        world.poll(std::slice::from_ref(&made));
        assert!(world.actions.is_empty(), "two would be billed: {:?}", world.actions);
    }
    let mut ready = made.clone();
    ready["state"] = json!("READY");
    world.wait(30);
    world.poll(std::slice::from_ref(&ready));
    let record = &world.fleet.slots["a"];
    assert_eq!((record.zone.as_str(), world.phase("a")), (ZONE, None), "{:?}", record.decision);
    assert!(record.ours);
}

#[test]
fn l1_a_node_of_that_name_in_the_next_zone_is_seen_although_it_is_older_than_the_one_that_is_gone()
{
    let mut two = settings(&["a"]);
    two.slots.get_mut("a").unwrap().zones.push("us-east5-a".into());
    let mut world = World::new(two);
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    assert!(matches!(&world.actions[..], [Action::Create { zone, .. }] if zone == "us-east5-a"));
    world.wait(1);
    let exists = Failure::new(FailureClass::Conflict, "HTTP 409 ALREADY_EXISTS");
    world.called("a", CallOutcome::Refused(exists));
    world.wait(5);
    // A create of before the outage made it, after its answer was lost.
    let older = json!({"name": "projects/p/locations/us-east5-a/nodes/a", "id": "9"});
    world.get("a", Some(node("a", older)));
    let record = &world.fleet.slots["a"];
    assert_eq!(record.incarnation.as_ref().map(|i| i.id.as_str()), Some("9"));
    assert!(record.recovery.is_none() && world.actions.is_empty());
}

#[test]
fn one_slot_probes_a_pool_without_capacity_and_priority_says_which() {
    let mut two = settings(&["a", "b"]);
    two.slots.get_mut("b").unwrap().policy.priority = 1;
    let mut world = World::new(two);
    world.sick(&["a", "b"], preempted(), 0);
    for name in ["a", "b"] {
        world.get(name, Some(node(name, preempted())));
        world.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        let none = Failure::new(FailureClass::StockOut, "no more capacity");
        if !world.actions.is_empty() {
            world.called(name, CallOutcome::Refused(none));
        }
    }
    assert_eq!(world.hold("b"), Some(HoldReason::Backoff), "the pool is short for it, too");
    let probe = super::super::next_wake(&world.fleet).unwrap();
    world.now = probe;
    world.input(Input::Tick);
    assert_eq!(world.actions.iter().map(Action::slot).collect::<Vec<_>>(), ["b"]);
    assert_eq!(world.hold("a"), Some(HoldReason::WaitsForProbe));
    world.called("b", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    let ready = world.replacement("b", json!({}));
    world.get("b", Some(ready));
    assert_eq!(
        world.actions.iter().map(Action::slot).collect::<Vec<_>>(),
        ["a"],
        "there is capacity again"
    );
}

#[test]
fn a_call_that_is_never_sent_is_shown_as_a_hold_and_tried_all_the_same() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], preempted(), 0);
    for round in 1..5 {
        world.get("a", Some(node("a", preempted())));
        assert!(is_delete(&world.actions), "round {round}");
        let late = Failure::new(FailureClass::Transient, "the GET is 5.2 s old");
        world.called("a", CallOutcome::NotSent(late));
        world.wait(30);
        world.poll(&[node("a", preempted())]);
        let held = world.hold("a") == Some(HoldReason::NotSent);
        assert_eq!(held, round >= 3, "round {round}: {:?}", world.hold("a"));
    }
}

#[test]
fn a_get_that_is_always_too_slow_to_delete_on_is_told() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], preempted(), 0);
    let view = Arc::new(NodeView::parse(node("a", preempted())).unwrap());
    for _ in 0..4 {
        let began = world.now;
        world.wait(6);
        let reading = Reading::Node(Arc::clone(&view));
        world.input(Input::Got { slot: "a".into(), began, reading });
        assert!(world.actions.is_empty());
        world.wait(24);
        world.poll(&[node("a", preempted())]);
    }
    assert_eq!(world.hold("a"), Some(HoldReason::SlowGet));
}

#[test]
fn s2_a_get_that_is_older_than_a_short_max_age_is_asked_for_again_and_no_defect() {
    let mut short = settings(&["a"]);
    short.slots.get_mut("a").unwrap().policy.max_age = Duration::from_secs(2);
    let mut world = World::new(short);
    world.sick(&["a"], preempted(), 0);
    let began = world.now;
    world.wait(3);
    let reading = Reading::Node(Arc::new(NodeView::parse(node("a", preempted())).unwrap()));
    world.input(Input::Got { slot: "a".into(), began, reading });
    assert!(world.actions.is_empty(), "{:?}", world.hold("a"));
    world.wait(27);
    world.poll(&[node("a", preempted())]);
    world.get("a", Some(node("a", preempted())));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
}

#[test]
fn an_adopted_node_is_ours_in_every_sense() {
    let mut world = World::new(settings(&["a"]));
    let run = json!({"generation": 7, "checkpoint": ""}).to_string();
    let metadata =
        json!({"tpu-watchdog-owner": "other", "tpu-watchdog-slot": "a", "tpu-watchdog-run": run});
    world.poll(&[node("a", json!({ "metadata": metadata }))]);
    assert!(!world.fleet.slots["a"].ours);
    world.order(CommandKind::Resume { slot: Some("a".into()), adopt: true });
    let record = &world.fleet.slots["a"];
    assert!(record.ours);
    assert_eq!(record.job.generation, 7, "it goes on from the highest that was seen");
}

#[test]
fn metadata_that_comes_later_makes_a_known_node_ours() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    assert!(!world.fleet.slots["a"].ours);
    let metadata = json!({"tpu-watchdog-owner": "me", "tpu-watchdog-slot": "a"});
    world.wait(30);
    world.poll(&[node("a", json!({ "metadata": metadata }))]);
    assert!(world.fleet.slots["a"].ours);
}

#[test]
fn what_a_former_version_made_under_the_configured_label_stays_ours() {
    let labelled = json!({"metadata": {"tpu-watchdog-owner": "team", "tpu-watchdog-slot": "a"}});
    let held = |ours: bool| {
        let mut label = settings(&["a"]);
        label.label = Some("team".into());
        let mut world = World::new(label);
        world.poll(&[node("a", labelled.clone())]);
        world.fleet.slots.get_mut("a").unwrap().ours = ours;
        let mut lost = labelled.clone();
        lost["state"] = json!("PREEMPTED");
        world.wait(30);
        world.poll(&[node("a", lost.clone())]);
        world.get("a", Some(node("a", lost)));
        (world.hold("a"), world.actions.len())
    };
    assert_eq!(held(true), (None, 1));
    assert_eq!(held(false), (Some(HoldReason::OtherOwner), 0), "equal labels hold each other");
}

#[test]
fn s13_preemptions_have_a_budget_of_their_own() {
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().policy.attempts.max = 1;
    let mut world = World::new(settings);
    for _ in 0..3 {
        world.recreate_preempted();
        let ready = world.replacement("a", json!({}));
        world.get("a", Some(ready.clone()));
        assert_eq!(world.phase("a"), None, "over: READY and not unhealthy");
        world.wait(30);
    }
    world.fleet.settings.slots.get_mut("a").unwrap().policy.attempts.preemptions = 3;
    let preempted = json!({"state": "PREEMPTED", "createTime": world.now.to_string()});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted)));
    assert_eq!(
        (world.actions.len(), world.hold("a")),
        (0, Some(HoldReason::Preemptions)),
        "the fourth of three"
    );
}

#[test]
fn a_pool_that_is_short_is_not_probed_earlier_by_a_restart() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    world.wait(30);
    let (settings, slots, ledger) =
        (&world.fleet.settings, world.fleet.slots.clone(), world.fleet.ledger.clone());
    // Nor does a display that reads the journal say that the create goes now.
    let shown = view::at_rest(settings, slots.clone(), ledger.clone(), None, world.now);
    assert_eq!(shown.tpus[0].hold.as_deref(), Some("backoff"), "{}", shown.tpus[0].reason);
    world.fleet = Fleet::new(settings.clone(), slots, ledger);
    world.input(Input::Configured(Box::new(world.fleet.settings.clone())));
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Backoff), 0));
}

#[test]
fn s7_a_pause_outlives_the_purge_of_a_slot_that_left_the_config() {
    let mut world = World::new(settings(&["a", "b"]));
    world.ours();
    world.config(&["b"]);
    world.order(CommandKind::Pause { slot: Some("a".into()), until: None });
    world.order(CommandKind::Forget { slot: "a".into(), purge: true });
    assert!(!world.fleet.left.contains_key("a"));
    world.config(&["a", "b"]);
    assert!(world.fleet.slots["a"].paused.is_some(), "{:?}", world.messages);
    world.order(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    assert!(world.fleet.slots["a"].paused.is_none());
}
