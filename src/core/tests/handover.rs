//! Queued resources whose slot changes its name, its kind or its mind while they wait.

use super::withdrawal::{Asked, PARENT, waiting};
use super::*;
use crate::model::action::RequestList;
use crate::model::command::CommandKind;
use crate::model::condition::Kind;
use crate::model::filling::Filling;
use crate::model::recovery::Recovery;
use crate::model::settings::JobSettings;

impl Asked {
    /// The config changes in this way.
    fn configured(&mut self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.world.fleet.settings.clone();
        change(&mut settings);
        self.world.input(Input::Configured(Box::new(settings)));
    }

    /// A poll in which the listing fails.
    fn fails_to_list(&mut self) {
        self.world.wait(30);
        let failure = || Failure::new(FailureClass::Transient, "HTTP 503");
        let requests = Some(Err(failure()));
        let listing = Listing { zone: ZONE.into(), result: Err(failure()), requests };
        let began = self.world.now;
        self.world.input(Input::Polled(Box::new(Poll {
            began,
            listings: vec![listing],
            jobs: vec![],
        })));
        assert_eq!(self.world.fleet.slots["a"].verdict.condition, Condition::Unclear);
    }

    /// It is looked at, and deleted.
    fn is_withdrawn(&mut self) -> bool {
        self.shows(Some(&waiting()));
        self.looks_at_it() && {
            self.got(Some(&waiting()));
            matches!(self.world.actions[..], [Action::Delete { stray: true, .. }])
        }
    }
}

#[test]
fn a_node_whose_config_names_its_queued_resource_as_advised_is_watched_as_that() {
    let mut asked = Asked::new();
    let request = asked.request(&json!({"state": "ACTIVE"}));
    asked.world.wait(60);
    let made = json!({"queuedResource": format!("{PARENT}/queuedResources/q"),
        "createTime": asked.world.now.to_string(), "id": "77"});
    // Another watchdog sees the same TPU first as the plain node `a`, then as the config says.
    let mut plain = Asked::unsent();
    plain.world.now = asked.world.now;
    plain.configured(|settings| settings.slots.get_mut("a").unwrap().filling = Filling::Node);
    let lives = || vec![Arc::new(NodeView::parse(node("a", made.clone())).unwrap())];
    plain.lists(request.clone(), lives());
    assert_eq!(plain.world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    plain.configured(|settings| {
        settings.slots.get_mut("a").unwrap().filling = Filling::QueuedResource("q".into());
    });
    plain.lists(request.clone(), lives());
    let record = &plain.world.fleet.slots["a"];
    assert_eq!(record.verdict.condition, Condition::Healthy, "{}", record.verdict.evidence);
    assert_eq!(record.incarnation.as_ref().map(|known| known.created), request.created);
    assert!(plain.world.fleet.ledger.strays.is_empty(), "it was never ours");
    let taken = asked.request(&json!({"state": "SUSPENDED", "stateInitiator": "SERVICE"}));
    for _ in 0..3 {
        plain.lists(taken.clone(), vec![]);
    }
    let record = &plain.world.fleet.slots["a"];
    assert_ne!(record.verdict.condition, Condition::Healthy, "its end is seen");
}

#[test]
fn s21_a_node_of_ours_stays_followed_when_its_slot_becomes_another_queued_resource() {
    let mut plain = Asked::unsent();
    plain.configured(|settings| settings.slots.get_mut("a").unwrap().filling = Filling::Node);
    let metadata = json!({"tpu-watchdog-owner": "me", "tpu-watchdog-slot": "a"});
    let poll = |plain: &mut Asked| {
        plain.world.wait(30);
        let ours = node("a", json!({"metadata": metadata.clone()}));
        let nodes = [ours, node("b", json!({}))].map(|raw| Arc::new(NodeView::parse(raw).unwrap()));
        let list = RequestList { requests: vec![], unreachable: vec![] };
        let result = Ok((nodes.to_vec(), vec![]).into());
        let listing = Listing { zone: ZONE.into(), result, requests: Some(Ok(list)) };
        let (began, jobs) = (plain.world.now, vec![]);
        plain.world.input(Input::Polled(Box::new(Poll { began, listings: vec![listing], jobs })));
    };
    poll(&mut plain);
    assert!(plain.world.fleet.slots["a"].ours);
    plain.configured(|settings| {
        settings.slots.get_mut("a").unwrap().filling = Filling::QueuedResource("q".into());
    });
    for _ in 0..5 {
        poll(&mut plain);
        assert_eq!(plain.world.fleet.ledger.strays.len(), 1, "it is billed, and no slot's");
    }
}

#[test]
fn s17_a_request_whose_slot_has_another_name_is_that_slots_and_keeps_its_place() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.configured(|settings| {
        let slot = settings.slots.remove("a").unwrap();
        settings.slots.insert("c".into(), SlotSettings { name: "c".into(), ..slot });
    });
    for _ in 0..6 {
        asked.shows(Some(&waiting()));
        assert!(!asked.looks_at_it() && asked.world.actions.is_empty());
    }
    assert!(asked.world.fleet.ledger.strays.is_empty(), "{:?}", asked.world.fleet.ledger.strays);
    assert_eq!(asked.world.fleet.slots["c"].verdict.condition, Condition::Waiting);
}

#[test]
fn s21_a_plain_tpu_whose_config_names_a_request_is_told_and_none_is_sent_for_its_name() {
    let mut asked = Asked::unsent();
    for _ in 0..20 {
        asked.world.wait(30);
        let nodes =
            ["a", "b"].map(|name| Arc::new(NodeView::parse(node(name, json!({}))).unwrap()));
        let list = RequestList { requests: vec![], unreachable: vec![] };
        let result = Ok((nodes.to_vec(), vec![]).into());
        let listing = Listing { zone: ZONE.into(), result, requests: Some(Ok(list)) };
        let began = asked.world.now;
        asked.world.input(Input::Polled(Box::new(Poll {
            began,
            listings: vec![listing],
            jobs: vec![],
        })));
        assert!(asked.world.actions.is_empty() && asked.world.looks.is_empty());
    }
    let verdict = &asked.world.fleet.slots["a"].verdict;
    assert_eq!(verdict.condition, Condition::Unclear);
    assert!(verdict.evidence.contains("take queued_resource out"), "{verdict:?}");
}

#[test]
fn s21_a_request_that_waits_can_be_called_off_whatever_its_slot_is_taken_for() {
    // Its job's work is done.
    let mut asked = Asked::new();
    let job = JobSettings { command: Some("train".into()), ..JobSettings::default() };
    asked.configured(|settings| settings.slots.get_mut("a").unwrap().job = Some(job));
    asked.shows(Some(&waiting()));
    asked.command(CommandKind::Done { slot: "a".into() });
    assert!(asked.told("`forget a` withdraws it"), "{:?}", asked.world.messages);
    asked.shows(Some(&waiting()));
    assert_eq!(asked.world.fleet.slots["a"].verdict.condition, Condition::Finished);
    asked.forget();
    assert!(asked.is_withdrawn());
    // It was taken up while it waited, and can't be read at that moment.
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.command(CommandKind::Retry { slot: "a".into(), from: None });
    asked.shows(Some(&waiting()));
    asked.fails_to_list();
    asked.forget();
    assert!(asked.is_withdrawn());
}

#[test]
fn s21_a_request_that_was_condemned_is_followed_when_the_config_names_another() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    let record = asked.world.fleet.slots.get_mut("a").unwrap();
    let (cause, now) = (Condition::SliceLost, asked.world.now);
    record.verdict.condition = cause;
    record.seen.as_mut().unwrap().waits_since = None;
    record.recovery = Some(Recovery::condemned(cause, Kind::Judged, now, now));
    asked.configured(|settings| {
        settings.slots.get_mut("a").unwrap().filling = Filling::QueuedResource("r".into());
    });
    let stray = &asked.world.fleet.ledger.strays["us-central2-b/a"];
    assert_eq!(stray.request.as_deref(), Some("q"));
}

#[test]
fn s3_a_wish_for_a_request_that_waits_deletes_no_later_grant() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.fails_to_list();
    let incarnation = asked.world.fleet.slots["a"].incarnation.clone();
    asked.command(CommandKind::Recreate { slot: "a".into(), incarnation });
    assert!(asked.world.fleet.slots["a"].wanted.is_none());
}

#[test]
fn a_withdrawal_that_came_too_late_is_over_once_the_request_is_granted() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    assert!(asked.is_withdrawn());
    let failure = Failure::new(FailureClass::Undeletable, "PROVISIONING");
    asked.world.stray_called(CallOutcome::Refused(failure));
    asked.shows(Some(&json!({"state": "PROVISIONING"})));
    // Its nodes can be told to wait.
    assert!(asked.world.fleet.ledger.strays["us-central2-b/a"].removal.is_none());
}

#[test]
fn a_request_whose_create_had_no_answer_leaves_its_queue_as_any_other() {
    let mut asked = Asked::unsent();
    assert!(asked.sends_within(8));
    let failure = Failure::new(FailureClass::Transient, "no answer");
    asked.world.called("a", CallOutcome::Unknown(failure));
    asked.configured(|settings| {
        let slot = settings.slots.get_mut("a").unwrap();
        slot.zones.push("us-east5-a".into());
        slot.policy.grace.queue = Some(Duration::from_secs(3600));
    });
    for _ in 0..118 {
        asked.shows(Some(&waiting()));
    }
    assert!(asked.world.fleet.ledger.strays.is_empty());
    for _ in 0..6 {
        asked.shows(Some(&waiting()));
    }
    assert_eq!(asked.world.fleet.ledger.strays.len(), 1, "{:?}", asked.world.fleet.slots["a"]);
}
