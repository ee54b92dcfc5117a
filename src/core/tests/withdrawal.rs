//! Queued resources before they are granted: what is called off is withdrawn, and only that.

use super::*;
use crate::model::action::RequestList;
use crate::model::command::{Command, CommandKind};
use crate::model::filling::Filling;
use crate::model::queued::RequestView;
use crate::resource::queued::{body, reading::reading};

pub const PARENT: &str = "projects/p/locations/us-central2-b";

/// The slot `a` is the queued resource `q`, which its config describes, and which was asked for.
pub struct Asked {
    pub world: World,
    /// The body of the last create.
    body: Value,
    created: String,
    /// How the other slot's node is.
    pub other: Value,
}

impl Asked {
    pub fn new() -> Asked {
        let mut asked = Asked::unsent();
        assert!(asked.asks_within(8), "{:?}", asked.world.fleet.slots["a"].decision);
        asked
    }

    pub fn unsent() -> Asked {
        let mut settings = settings(&["a", "b"]);
        let slot = settings.slots.get_mut("a").unwrap();
        slot.filling = Filling::QueuedResource("q".into());
        for (key, value) in [("acceleratorType", "v4-8"), ("runtimeVersion", "r")] {
            slot.create.fields.insert(key.into(), json!(value));
        }
        Asked {
            world: World::new(settings),
            body: Value::Null,
            created: String::new(),
            other: json!({}),
        }
    }

    /// Whether a request is sent, and accepted, within so many polls in which none is there.
    pub fn asks_within(&mut self, polls: usize) -> bool {
        let sent = self.sends_within(polls);
        if sent {
            self.world.called("a", CallOutcome::Accepted(OPERATION.into()));
            self.world.done("a", OperationState::Succeeded);
            self.answers(Some(&waiting()));
        }
        sent
    }

    pub fn sends_within(&mut self, polls: usize) -> bool {
        for _ in 0..polls {
            if let [Action::Create { body: wanted, .. }] = &self.world.actions[..] {
                self.body = body::create_body(wanted, PARENT, "a", false).0;
                self.created = self.world.now.to_string();
                return true;
            }
            self.shows(None);
        }
        false
    }

    /// When the request was made.
    pub fn made(&self) -> &str {
        &self.created
    }

    pub fn request(&self, state: &Value) -> RequestView {
        let mut raw = self.body.clone();
        raw["name"] = json!(format!("{PARENT}/queuedResources/q"));
        raw["createTime"] = json!(self.created);
        raw["state"] = state.clone();
        crate::google::answers::request(raw, false).unwrap()
    }

    /// A poll half a minute later lists the request in this state, or none; a GET shows the same.
    pub fn shows(&mut self, state: Option<&Value>) {
        self.world.wait(30);
        let requests: Vec<_> = state.map(|state| self.request(state)).into_iter().collect();
        let node = Arc::new(NodeView::parse(node("b", self.other.clone())).unwrap());
        let list = RequestList { requests, unreachable: vec![] };
        let result = Ok((vec![node], vec![]).into());
        let listing = Listing { zone: ZONE.into(), result, requests: Some(Ok(list)) };
        let began = self.world.now;
        self.world.input(Input::Polled(Box::new(Poll {
            began,
            listings: vec![listing],
            jobs: vec![],
        })));
        self.answers(state);
    }

    /// A GET of its slot that is asked for shows the request in this state, or none.
    pub fn answers(&mut self, state: Option<&Value>) {
        if self.world.looks.iter().any(|look| matches!(look, Look::Node { .. })) {
            self.world.wait(1);
            let reading = self.reading(state);
            self.world.input(Input::Got { slot: "a".into(), began: self.world.now, reading });
        }
    }

    /// A poll half a minute later lists the request as it is here, with these nodes; a GET shows the same.
    pub fn lists(&mut self, request: RequestView, nodes: Vec<Arc<NodeView>>) {
        self.is_listed(&request, &nodes);
        if self.world.looks.iter().any(|look| matches!(look, Look::Node { .. })) {
            self.is_read(&request, &nodes);
        }
    }

    /// A GET shows the request and these nodes.
    pub fn is_read(&mut self, request: &RequestView, nodes: &[Arc<NodeView>]) {
        self.world.wait(1);
        let reading = reading("q", Some(request), nodes);
        self.world.input(Input::Got { slot: "a".into(), began: self.world.now, reading });
    }

    /// A poll lists the request and these nodes, and nothing else is answered.
    pub fn is_listed(&mut self, request: &RequestView, nodes: &[Arc<NodeView>]) {
        self.world.wait(30);
        let other = Arc::new(NodeView::parse(node("b", self.other.clone())).unwrap());
        let listed: Vec<_> = nodes.iter().cloned().chain([other]).collect();
        let list = RequestList { requests: vec![request.clone()], unreachable: vec![] };
        let result = Ok((listed, vec![]).into());
        let listing = Listing { zone: ZONE.into(), result, requests: Some(Ok(list)) };
        let began = self.world.now;
        self.world.input(Input::Polled(Box::new(Poll {
            began,
            listings: vec![listing],
            jobs: vec![],
        })));
    }

    fn reading(&self, state: Option<&Value>) -> Reading {
        reading("q", state.map(|state| self.request(state)).as_ref(), &[])
    }

    /// The GET of the stray, which was asked for, shows this.
    pub fn got(&mut self, state: Option<&Value>) {
        let reading = self.reading(state);
        self.got_reading(reading);
    }

    fn got_reading(&mut self, reading: Reading) {
        self.world.wait(1);
        let (zone, name, began) = (ZONE.into(), "a".into(), self.world.now);
        self.world.input(Input::StrayGot { zone, name, began, reading });
    }

    pub fn looks_at_it(&self) -> bool {
        let is_it = |look: &Look| matches!(look, Look::Stray { filling: Filling::QueuedResource(id), .. } if id == "q");
        self.world.looks.iter().any(is_it)
    }

    pub fn command(&mut self, kind: CommandKind) {
        let command =
            Command { id: "1".into(), at: self.world.now, who: "ada".into(), reason: None, kind };
        self.world.input(Input::Commands(vec![command]));
    }

    pub fn forget(&mut self) {
        self.command(CommandKind::Forget { slot: "a".into(), purge: false });
    }

    pub fn told(&self, words: &str) -> bool {
        self.world.messages.iter().any(|text| text.contains(words))
    }
}

pub fn waiting() -> Value {
    json!({"state": "WAITING_FOR_RESOURCES"})
}

#[test]
fn s21_what_forget_calls_off_is_withdrawn_without_force() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    assert!(asked.told("is deleted if it still waits"), "{:?}", asked.world.messages);
    asked.shows(Some(&waiting()));
    assert!(asked.looks_at_it() && asked.world.actions.is_empty(), "a GET first (S1)");
    asked.got(Some(&waiting()));
    let [Action::Delete { filling, incarnation, force: false, stray: true, request_id, .. }] =
        &asked.world.actions[..]
    else {
        panic!("{:?}", asked.world.actions)
    };
    assert_eq!(*filling, Filling::QueuedResource("q".into()));
    assert_eq!(Some(incarnation), asked.request(&waiting()).incarnation().as_ref());
    assert!(request_id.is_some());
    assert!(
        matches!(&asked.world.events[..], [What::StrayIntent { observed, .. }] if observed == "queued resource q is WAITING_FOR_RESOURCES"),
        "{:?}",
        asked.world.events
    );
    asked.world.stray_called(CallOutcome::Accepted(OPERATION.into()));
    asked.shows(Some(&waiting()));
    assert!(!asked.looks_at_it(), "nothing is asked twice within half an hour");
    asked.shows(None);
    assert!(asked.world.fleet.ledger.strays.is_empty());
    for _ in 0..20 {
        asked.shows(None);
        assert!(asked.world.actions.is_empty(), "a forgotten slot is not created again");
    }
}

#[test]
fn s21_a_slot_that_leaves_the_config_withdraws_its_request_and_one_that_failed() {
    let failed = json!({"state": "FAILED", "failedData": {"error": {"code": 8, "message": "no more capacity"}}});
    for state in [waiting(), json!({"state": "ACCEPTED"}), failed] {
        let mut asked = Asked::new();
        asked.shows(Some(&waiting()));
        asked.world.input(Input::Configured(Box::new(settings(&["b"]))));
        asked.shows(Some(&state));
        assert!(asked.looks_at_it(), "{state}");
        asked.got(Some(&state));
        assert!(matches!(asked.world.actions[..], [Action::Delete { stray: true, .. }]), "{state}");
    }
}

#[test]
fn s10_what_can_not_be_deleted_was_granted_or_stopped_is_told_and_left_alone() {
    let others = [
        json!({"state": "PROVISIONING"}),
        json!({"state": "ACTIVE"}),
        json!({"state": "CREATING"}),
        json!({"state": "SUSPENDING"}),
        json!({"state": "DELETING"}),
        json!({"state": "IN_A_NEW_STATE"}),
    ];
    for state in others {
        let mut asked = Asked::new();
        asked.shows(Some(&waiting()));
        asked.forget();
        asked.shows(Some(&state));
        assert!(!asked.looks_at_it() && asked.world.fleet.ledger.strays.len() == 1, "{state}");
        // Granted between the listing and the GET.
        let mut asked = Asked::new();
        asked.shows(Some(&waiting()));
        asked.forget();
        asked.shows(Some(&waiting()));
        asked.got(Some(&state));
        assert!(asked.world.actions.is_empty(), "{state}");
    }
    let stopped = json!({"state": "SUSPENDED", "stateInitiator": "USER"});
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.shows(Some(&stopped));
    asked.got(Some(&stopped));
    assert!(asked.world.actions.is_empty(), "a person did that");
}

#[test]
fn s1_only_the_request_that_was_called_off_is_withdrawn() {
    // Made again by another hand, under the same id.
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.shows(Some(&waiting()));
    asked.created = "2026-06-02T00:00:00Z".into();
    asked.got(Some(&waiting()));
    assert!(asked.world.actions.is_empty());
    // Of another owner.
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.body["tpu"]["nodeSpec"][0]["node"]["metadata"]["tpu-watchdog-owner"] = json!("you");
    asked.shows(Some(&waiting()));
    asked.got(Some(&waiting()));
    assert!(asked.world.actions.is_empty());
    asked.shows(Some(&waiting()));
    assert!(!asked.looks_at_it(), "it is not asked about with every poll");
    // A GET that took too long.
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.shows(Some(&waiting()));
    let (reading, began) = (asked.reading(Some(&waiting())), asked.world.now);
    asked.world.wait(6);
    let (zone, name) = (ZONE.into(), "a".into());
    asked.world.input(Input::StrayGot { zone, name, began, reading });
    assert!(asked.world.actions.is_empty());
}

#[test]
fn a_request_that_was_adopted_is_told_when_its_slot_leaves_and_is_not_withdrawn() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.body["tpu"]["nodeSpec"][0]["node"]["metadata"]["tpu-watchdog-slot"] = json!("former");
    asked.created = asked.world.now.to_string();
    asked.shows(Some(&waiting()));
    assert!(!asked.world.fleet.slots["a"].ours);
    asked.world.input(Input::Configured(Box::new(settings(&["b"]))));
    assert!(asked.told("waits on unwatched, and may be granted and billed"));
    assert!(asked.world.fleet.ledger.strays.is_empty());
}

#[test]
fn s21_a_request_whose_slot_was_renamed_is_withdrawn_when_that_leaves() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    let mut renamed = asked.world.fleet.settings.clone();
    let slot = renamed.slots.remove("a").unwrap();
    renamed.slots.insert("c".into(), SlotSettings { name: "c".into(), ..slot });
    asked.world.input(Input::Configured(Box::new(renamed)));
    (0..4).for_each(|_| asked.shows(Some(&waiting())));
    let taken_up = &asked.world.fleet.slots["c"];
    assert!(taken_up.incarnation.is_some() && !taken_up.ours);
    assert!(asked.world.fleet.ledger.strays.is_empty());
    asked.world.input(Input::Configured(Box::new(settings(&["b"]))));
    asked.shows(Some(&waiting()));
    asked.got(Some(&waiting()));
    assert!(matches!(asked.world.actions[..], [Action::Delete { stray: true, force: false, .. }]));
}

#[test]
fn s7_nothing_is_withdrawn_while_paused_or_in_dry_run() {
    let holds: [fn(&mut World); 2] = [
        |world| world.fleet.settings.dry_run = true,
        |world| {
            let pause = json!({"who": "ada", "reason": null, "until": null});
            world.fleet.ledger.paused = serde_json::from_value(pause).ok();
        },
    ];
    for hold in holds {
        let mut asked = Asked::new();
        asked.shows(Some(&waiting()));
        asked.forget();
        asked.shows(Some(&waiting()));
        hold(&mut asked.world);
        asked.got(Some(&waiting()));
        assert!(asked.world.actions.is_empty());
    }
}

#[test]
fn a_create_that_was_on_its_way_is_withdrawn_when_its_request_shows() {
    let mut asked = Asked::unsent();
    assert!(asked.sends_within(8));
    asked.forget();
    asked.world.called("a", CallOutcome::Unknown(Failure::new(FailureClass::Transient, "reset")));
    assert!(asked.world.fleet.ledger.strays["us-central2-b/a"].incarnation.is_none());
    asked.shows(None);
    assert!(!asked.looks_at_it());
    asked.shows(Some(&waiting()));
    assert!(asked.looks_at_it());
    asked.got(Some(&waiting()));
    assert!(matches!(asked.world.actions[..], [Action::Delete { stray: true, .. }]));
}

#[test]
fn a_slot_that_is_wanted_again_takes_its_request_up() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.command(CommandKind::Retry { slot: "a".into(), from: None });
    for _ in 0..4 {
        asked.shows(Some(&waiting()));
        assert!(!asked.looks_at_it() && asked.world.actions.is_empty());
    }
    assert!(asked.world.fleet.ledger.strays.is_empty());
    assert_eq!(asked.world.fleet.slots["a"].verdict.condition, Condition::Waiting);
}

#[test]
fn s21_a_request_that_is_wanted_again_after_a_purge_can_be_called_off_once_more() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.command(CommandKind::Pause { slot: None, until: None });
    asked.command(CommandKind::Forget { slot: "a".into(), purge: true });
    asked.shows(Some(&waiting()));
    asked.command(CommandKind::Retry { slot: "a".into(), from: None });
    asked.command(CommandKind::Resume { slot: None, adopt: false });
    (0..4).for_each(|_| asked.shows(Some(&waiting())));
    assert_eq!(asked.world.fleet.slots["a"].request.as_deref(), Some("q"));
    asked.forget();
    asked.shows(Some(&waiting()));
    assert!(asked.looks_at_it(), "{:?}", asked.world.fleet.ledger.strays);
}

#[test]
fn s21_a_request_that_was_taken_up_while_it_waits_is_withdrawn_as_well() {
    // Wanted again, so that no recovery is under way; then called off once more.
    let calls: [fn(&mut Asked); 2] = [Asked::forget, |asked| {
        asked.world.input(Input::Configured(Box::new(settings(&["b"]))));
    }];
    for call_off in calls {
        let mut asked = Asked::new();
        asked.shows(Some(&waiting()));
        asked.forget();
        asked.command(CommandKind::Retry { slot: "a".into(), from: None });
        asked.shows(Some(&waiting()));
        assert!(asked.world.fleet.slots["a"].recovery.is_none());
        call_off(&mut asked);
        asked.shows(Some(&waiting()));
        asked.got(Some(&waiting()));
        assert!(matches!(asked.world.actions[..], [Action::Delete { stray: true, .. }]));
    }
}

#[test]
fn a_slot_that_is_wanted_again_while_its_request_is_withdrawn_is_asked_for_again() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.shows(Some(&waiting()));
    asked.got(Some(&waiting()));
    asked.world.stray_called(CallOutcome::Accepted(OPERATION.into()));
    asked.command(CommandKind::Retry { slot: "a".into(), from: None });
    let deleting = json!({"state": "DELETING", "stateInitiator": "USER"});
    asked.shows(Some(&deleting));
    assert_eq!(asked.world.fleet.ledger.strays.len(), 1, "followed to its end");
    assert!(asked.world.fleet.slots["a"].deleted.is_none(), "no other hand did that");
    assert!(asked.asks_within(8), "{:?}", asked.world.fleet.slots["a"].decision);
}

#[test]
fn a_request_that_was_provisioned_for_a_moment_is_looked_at_again() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.shows(Some(&waiting()));
    asked.got(Some(&json!({"state": "PROVISIONING"})));
    assert!(asked.world.actions.is_empty());
    asked.shows(Some(&waiting()));
    assert!(asked.looks_at_it());
}

#[test]
fn s21_a_create_that_was_lost_before_it_was_called_off_is_followed() {
    let leaves: [fn(&mut Asked); 2] = [Asked::forget, |asked| {
        asked.world.input(Input::Configured(Box::new(settings(&["b"]))));
    }];
    for leave in leaves {
        let mut asked = Asked::unsent();
        assert!(asked.sends_within(8));
        let lost = Failure::new(FailureClass::Transient, "reset");
        asked.world.called("a", CallOutcome::Unknown(lost));
        asked.answers(None);
        assert_eq!(asked.world.phase("a"), Some(Phase::Gone), "a GET says that it was not made");
        leave(&mut asked);
        asked.shows(Some(&waiting()));
        assert!(asked.looks_at_it(), "it came all the same");
        asked.got(Some(&waiting()));
        assert!(matches!(asked.world.actions[..], [Action::Delete { stray: true, .. }]));
    }
}

#[test]
fn s21_a_withdrawal_without_an_answer_is_sent_again_while_the_request_waits() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.forget();
    asked.shows(Some(&waiting()));
    asked.got(Some(&waiting()));
    assert_eq!(asked.world.actions.len(), 1);
    // The process ended before it was sent, or its answer was lost.
    let polls = (1..30).find(|_| {
        asked.shows(Some(&waiting()));
        asked.looks_at_it()
    });
    assert_eq!(polls, Some(10), "after five minutes");
}

#[test]
fn a_create_that_never_left_leaves_nothing_behind_when_it_is_called_off() {
    let mut asked = Asked::unsent();
    assert!(asked.sends_within(8));
    let why = Failure::new(FailureClass::Transient, "the state could not be written");
    asked.world.called("a", CallOutcome::NotSent(why));
    assert_eq!(asked.world.phase("a"), Some(Phase::Gone));
    asked.forget();
    assert!(asked.world.fleet.ledger.strays.is_empty(), "{:?}", asked.world.fleet.ledger.strays);
}

#[test]
fn the_wait_of_a_request_is_counted_once_and_is_not_that_of_another_one() {
    let queued = |asked: &Asked| {
        let recovery = asked.world.fleet.slots["a"].recovery.as_ref();
        recovery.map_or(0.0, |recovery| recovery.queued_seconds)
    };
    let mut asked = Asked::new();
    (0..10).for_each(|_| asked.shows(Some(&waiting())));
    asked.shows(Some(&json!({"state": "PROVISIONING"})));
    assert_eq!(queued(&asked), 0.0, "it has no machines yet");
    asked.shows(Some(&json!({"state": "SUSPENDED", "stateInitiator": "SERVICE"})));
    assert!((330.0..400.0).contains(&queued(&asked)), "{}", queued(&asked));
    // A person deletes the next one while it waits, and makes another under its id.
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    asked.shows(None);
    asked.created = "2026-06-02T00:00:00Z".into();
    asked.shows(Some(&json!({"state": "FAILED"})));
    assert_eq!(queued(&asked), 0.0);
}
