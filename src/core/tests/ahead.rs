//! The next queued resource of flex-start capacity, before the present one ends.

use super::withdrawal::{Asked, PARENT};
use super::*;
use crate::core::check::{self, Case};
use crate::model::ahead::Ahead;
use crate::model::command::CommandKind;
use crate::model::exit::Stuck;
use crate::model::filling::Filling;
use crate::model::fleet::{Pending, Stray};
use crate::model::queued::RequestView;
use crate::model::slot::SlotRecord;

/// The slot `a` is at work on `q`, whose capacity ends in so many minutes.
fn ends_in(minutes: u64) -> Asked {
    let mut asked = Asked::new();
    asked.world.wait(60);
    let ends_at = after(asked.world.now, Duration::from_secs(60 * minutes + 30));
    shows_end(&mut asked, ends_at);
    asked
}

/// A poll shows that end.
fn shows_end(asked: &mut Asked, ends_at: Timestamp) {
    shows_as(asked, ends_at, "READY");
}

/// The same, with its node in this state.
fn shows_as(asked: &mut Asked, ends_at: Timestamp, state: &str) {
    let (request, nodes) = of_end(asked, ends_at, state);
    asked.lists(request, nodes);
}

/// The request with that end, and its node in this state.
fn of_end(asked: &Asked, ends_at: Timestamp, state: &str) -> (RequestView, Vec<Arc<NodeView>>) {
    let mut raw = (*asked.request(&json!({"state": "ACTIVE"})).raw).clone();
    raw["runDuration"] = json!({"maxRunDuration": "7200s", "terminationTime": ends_at});
    let request = crate::google::answers::request(raw, true).unwrap();
    let of = "projects/p/locations/us-central2-b/queuedResources/q";
    let raw = json!({"queuedResource": of, "createTime": asked.made(), "state": state});
    (request, vec![Arc::new(NodeView::parse(super::node("a", raw)).unwrap())])
}

fn sent(asked: &Asked) -> Option<(&Filling, &Value)> {
    match &asked.world.actions[..] {
        [Action::Create { filling, body, .. }] => Some((filling, body)),
        _ => None,
    }
}

#[test]
fn the_next_request_is_asked_for_once_in_the_last_hour_and_not_granted_before_the_end() {
    let mut asked = ends_in(61);
    assert_eq!(sent(&asked), None, "{:?}", asked.world.fleet.slots["a"].decision);
    let ends_at = asked.world.fleet.slots["a"].seen.as_ref().unwrap().times.ends_at.unwrap();
    asked.world.wait(120);
    shows_end(&mut asked, ends_at);
    let (filling, body) = sent(&asked).expect("within the hour");
    assert_eq!(*filling, Filling::QueuedResource("q-next".into()));
    let policy = &body["queuedResource"]["queueingPolicy"]["validInterval"];
    assert_eq!(policy["startTime"], json!(ends_at));
    // Refused, for want of quota while the first is there: the ordinary way is left.
    let quota = Failure::new(FailureClass::Quota, "Limit 1");
    asked.world.called("a", CallOutcome::Refused(quota));
    for _ in 0..20 {
        shows_end(&mut asked, ends_at);
        assert_eq!(sent(&asked), None);
    }
    assert!(asked.world.fleet.slots["a"].recovery.is_none());
    // Another end is another chance.
    shows_end(&mut asked, after(ends_at, Duration::from_secs(600)));
    assert!(sent(&asked).is_some());
}

#[test]
fn s7_s21_nothing_is_asked_for_ahead_that_is_held_or_not_wanted() {
    type Change<'a> = &'a dyn Fn(&mut World);
    fn record(world: &mut World) -> &mut SlotRecord {
        world.fleet.slots.get_mut("a").unwrap()
    }
    let asks = |change: Change| {
        let mut asked = ends_in(61);
        let ends_at = asked.world.fleet.slots["a"].seen.as_ref().unwrap().times.ends_at.unwrap();
        asked.world.wait(120);
        change(&mut asked.world);
        shows_end(&mut asked, ends_at);
        sent(&asked).is_some()
    };
    assert!(asks(&|_| ()));
    let command = |kind: CommandKind| move |world: &mut World| world.command(kind.clone());
    let slot = || "a".to_owned();
    assert!(!asks(&command(CommandKind::Pause { slot: Some(slot()), until: None })));
    assert!(!asks(&command(CommandKind::Pause { slot: None, until: None })));
    assert!(!asks(&command(CommandKind::Forget { slot: slot(), purge: false })));
    assert!(!asks(&|world| world.fleet.settings.dry_run = true));
    assert!(!asks(&|world| record(world).ours = false));
    // A stray of the slot may still be granted.
    assert!(!asks(&|world| {
        let stray = Stray::followed(ZONE.into(), "a".into(), "late".into(), world.now);
        world.fleet.ledger.strays.insert(Stray::key("us-east5-a", "a"), stray);
    }));
    // Another slot has that id.
    assert!(!asks(&|world| {
        let b = world.fleet.settings.slots.get_mut("b").unwrap();
        b.filling = Filling::QueuedResource("q-next".into());
    }));
}

/// It was asked for ahead, and the call is on its way. Returns when the present capacity ends.
fn on_its_way() -> (Asked, Timestamp) {
    let asked = ends_in(59);
    assert!(sent(&asked).is_some());
    let ends_at = asked.world.fleet.slots["a"].seen.as_ref().unwrap().times.ends_at.unwrap();
    (asked, ends_at)
}

#[test]
fn s23_the_request_ahead_of_a_job_that_may_be_done_is_withdrawn() {
    let (mut asked, ends_at) = on_its_way();
    asked.world.called("a", CallOutcome::Accepted(OPERATION.into()));
    asked.world.fleet.slots.get_mut("a").unwrap().job.stuck = Some(Stuck::EndedEarly);
    shows_end(&mut asked, ends_at);
    let stray = &asked.world.fleet.ledger.strays[&Stray::key(ZONE, "q-next")];
    assert!(stray.why.ends_with("its job ended early, and may be done"), "{}", stray.why);
}

#[test]
fn nodes_that_are_gone_for_minutes_leave_their_next_request_in_its_place() {
    let (mut asked, ends_at) = on_its_way();
    asked.world.called("a", CallOutcome::Accepted(OPERATION.into()));
    shows_as(&mut asked, ends_at, "DELETING");
    let (request, _) = of_end(&asked, ends_at, "READY");
    let waits = |asked: &mut Asked| {
        asked.lists(request.clone(), vec![]);
        let record = asked.world.fleet.slots.get_mut("a").unwrap();
        // As if each list showed the next one.
        record.ahead.iter_mut().for_each(|ahead| ahead.unseen = None);
        record.asked_ahead().is_some()
    };
    // The service may make them again.
    assert!((0..40).all(|_| waits(&mut asked)));
    let hold = asked.world.fleet.slots["a"].decision.as_ref().unwrap().hold;
    assert_eq!(hold, Some(HoldReason::Deleted));
    // Not after grace.slice, although the end is still ahead.
    assert!((0..40).any(|_| !waits(&mut asked)));
    assert!(asked.world.now < ends_at);
}

#[test]
fn s9_a_tpu_that_is_lost_while_its_next_request_is_being_sent_waits_for_the_answer() {
    let (mut asked, ends_at) = on_its_way();
    for _ in 0..4 {
        shows_as(&mut asked, ends_at, "PREEMPTED");
        assert!(asked.world.actions.is_empty(), "{:?}", asked.world.actions);
        let reason = &asked.world.fleet.slots["a"].decision.as_ref().unwrap().reason;
        assert_eq!(reason, "its next request q-next is being sent");
    }
    asked.world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let (request, nodes) = of_end(&asked, ends_at, "PREEMPTED");
    asked.is_read(&request, &nodes);
    assert!(
        matches!(asked.world.actions[..], [Action::Delete { .. }]),
        "{:?}",
        asked.world.fleet.slots["a"].decision
    );
}

#[test]
fn the_checker_refuses_requests_ahead_that_no_plan_may_send() {
    type Change<'a> = &'a dyn Fn(&mut Fleet, &mut Ahead, &mut Value);
    let verdict = |change: Change| {
        let mut asked = ends_in(59);
        let (_, body) = sent(&asked).unwrap();
        let mut body = body.clone();
        let fleet = &mut asked.world.fleet;
        fleet.memory.get_mut("a").unwrap().pending.clear();
        let mut ahead = fleet.slots.get_mut("a").unwrap().ahead.take().unwrap();
        change(fleet, &mut ahead, &mut body);
        let case = Case {
            settings: &fleet.settings,
            slot: &fleet.settings.slots["a"],
            record: &fleet.slots["a"],
            memory: &fleet.memory["a"],
            ledger: &fleet.ledger,
            now: asked.world.now,
        };
        check::ahead(&case, &ahead, &body).map_err(|violation| violation.name())
    };
    fn record(fleet: &mut Fleet) -> &mut SlotRecord {
        fleet.slots.get_mut("a").unwrap()
    }
    assert_eq!(verdict(&|_, _, _| ()), Ok(()), "the plan as it should be");
    assert_eq!(verdict(&|fleet, _, _| fleet.settings.dry_run = true), Err("S7"));
    assert_eq!(
        verdict(&|fleet, _, _| {
            fleet.memory.get_mut("a").unwrap().pending.insert(Pending::Call);
        }),
        Err("S9")
    );
    assert_eq!(
        verdict(&|fleet, _, _| fleet.memory.get_mut("a").unwrap().is_there = false),
        Err("S2"),
        "it was gone when it was last read"
    );
    let long_ago = |fleet: &mut Fleet, _: &mut Ahead, _: &mut Value| {
        fleet.memory.get_mut("a").unwrap().last_read = Some(Timestamp::UNIX_EPOCH);
    };
    assert_eq!(verdict(&long_ago), Err("S2"));
    let early = Duration::from_secs(3700);
    let later = |at: Timestamp| after(at, early);
    assert_eq!(verdict(&|_, ahead, _| ahead.from = later(ahead.from)), Err("S21"));
    assert_eq!(
        verdict(&|fleet, ahead, _| {
            ahead.from = later(ahead.from);
            record(fleet).seen.as_mut().unwrap().times.ends_at = Some(ahead.from);
        }),
        Err("S21"),
        "more than an hour before"
    );
    assert_eq!(verdict(&|fleet, _, _| record(fleet).ours = false), Err("S21"));
    assert_eq!(verdict(&|fleet, _, _| record(fleet).forgotten = true), Err("S21"));
    assert_eq!(verdict(&|fleet, _, _| record(fleet).seen = None), Err("S21"));
    assert_eq!(
        verdict(&|fleet, ahead, _| record(fleet).ahead = Some(ahead.clone())),
        Err("S21"),
        "one is asked for already"
    );
    let policy = |body: &mut Value| body["queuedResource"]["queueingPolicy"].take();
    assert_eq!(verdict(&|_, _, body| drop(policy(body))), Err("S21"), "granted at once");
    assert_eq!(verdict(&|_, _, body| body["acceleratorType"] = json!("v4-16")), Err("S12"));
    assert_eq!(verdict(&|fleet, _, _| record(fleet).zone = "us-east5-a".into()), Err("S17"));
    assert_eq!(verdict(&|fleet, _, _| fleet.ledger.creates = vec![Timestamp::MIN; 60]), Err("S18"));
}

#[test]
fn s21_a_slot_whose_journal_is_lost_does_not_ask_for_a_second_grant() {
    let listed = |owner: &str| {
        let mut asked = Asked::unsent();
        let metadata = json!({"tpu-watchdog-owner": owner, "tpu-watchdog-slot": "a"});
        let node = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "metadata": metadata});
        let spec = json!({"parent": PARENT, "nodeId": "a-next", "node": node});
        let raw = json!({
            "name": format!("{PARENT}/queuedResources/q-next"), "createTime": "2026-06-01T12:00:00Z",
            "state": {"state": "ACTIVE"}, "tpu": {"nodeSpec": [spec]},
        });
        let request = crate::google::answers::request(raw, true).unwrap();
        for _ in 0..60 {
            asked.is_listed(&request, &[]);
            if asked.world.looks.iter().any(|look| matches!(look, Look::Node { .. })) {
                let reading = Reading::Absent;
                asked.world.wait(1);
                let began = asked.world.now;
                asked.world.input(Input::Got { slot: "a".into(), began, reading });
            }
            if !asked.world.actions.is_empty() {
                return None;
            }
        }
        let record = &asked.world.fleet.slots["a"];
        let by = record.filled_by.as_ref().map(|by| by.id.clone());
        let told = (record.decision.clone().unwrap().reason, by);
        let known = asked.world.fleet.slots["a"].asked_by_another.clone();
        // One list that fails says nothing of it.
        asked.world.wait(30);
        let failed = Failure::new(FailureClass::Transient, "HTTP 503");
        let result = Ok((vec![], vec![]).into());
        let listing = Listing { zone: ZONE.into(), result, requests: Some(Err(failed)) };
        let (began, listings) = (asked.world.now, vec![listing]);
        asked.world.input(Input::Polled(Box::new(Poll { began, listings, jobs: vec![] })));
        assert_eq!(asked.world.fleet.slots["a"].asked_by_another, known);
        Some(told)
    };
    let (reason, by) = listed("of the lost journal").expect("nothing is sent");
    assert!(by.is_none() && reason.contains("set queued_resource = \"q-next\""), "{reason}");
    // One of this journal, which had lost sight of it, fills its slot.
    let own = Asked::unsent().world.fleet.settings.owner.clone();
    let (reason, by) = listed(&own).expect("nothing is sent");
    assert_eq!(by.as_deref(), Some("q-next"), "{reason}");
}
