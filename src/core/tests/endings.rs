//! What comes to an end, and what outlives it: incidents, refusals, failures, healthy time, a
//! person's pause.

use super::relaunch::accepted;
use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::command::Command;
pub use crate::model::command::CommandKind;
use crate::model::ids::RunOrder;
use crate::model::recovery::Recovery;
use crate::model::step::{At, Call};

impl World {
    pub fn command(&mut self, kind: CommandKind) {
        let command =
            Command { id: "1".into(), at: self.now, who: "ada".into(), reason: None, kind };
        self.input(Input::Commands(vec![command]));
    }

    /// Worker 0 of `a` has ended with `code`.
    pub fn exited(&mut self, code: i64, text: &str) {
        let record = &self.fleet.slots["a"];
        let (of, generation) = (record.incarnation.clone().unwrap(), record.heard_from());
        let beacon = |value: i64, text: &str| {
            Some(Beacon { boot_id: "b".into(), generation, attempt: 0, value, text: text.into() })
        };
        let report = WorkerReport {
            boot: beacon(1, ""),
            heartbeat: beacon(7, ""),
            exit: beacon(code, text),
            ..WorkerReport::default()
        };
        self.input(Input::Attributes {
            slot: "a".into(),
            of,
            began: self.now,
            result: Ok(vec![report]),
        });
    }

    fn configured(&mut self, names: &[&str]) {
        self.input(Input::Configured(Box::new(settings(names))));
    }

    fn recovered(&self) -> bool {
        self.events.iter().any(|what| matches!(what, What::Recovered { .. }))
    }

    fn withdrawn(&self) -> bool {
        self.events.iter().any(|what| matches!(what, What::Withdrawn { .. }))
    }
}

#[test]
fn an_incident_ends_when_its_job_is_finished() {
    let mut world = with_checkpoints();
    world.supervised_run();
    assert!(world.phase("a").is_some());
    world.exited(0, "done ran=700");
    assert!(world.phase("a").is_none() && world.recovered(), "{:?}", world.events);
}

#[test]
fn s23_exit_0_finishes_at_once_where_the_job_said_that_its_work_is_done() {
    for (text, finished) in [
        ("done ran=4 step=none", false),
        ("done ran=4 step=none; it wrote TPU_WATCHDOG_DONE", true),
    ] {
        let mut world = with_checkpoints();
        world.supervised_run();
        world.exited(0, text);
        assert_eq!(world.fleet.slots["a"].job.finished.is_some(), finished, "{text}");
    }
}

#[test]
fn an_incident_ends_when_its_slot_leaves_the_config() {
    let mut world = with_checkpoints();
    world.supervised_run();
    world.configured(&["b"]);
    assert!(!world.fleet.slots.contains_key("a") && world.withdrawn(), "{:?}", world.events);
}

#[test]
fn an_incident_ends_when_its_slot_leaves_the_config_while_it_is_created() {
    let mut world = World::new(settings(&["a", "b"]));
    world.recreate_preempted();
    world.configured(&["b"]);
    assert!(!world.fleet.slots.contains_key("a") && world.withdrawn(), "{:?}", world.events);
}

#[test]
fn s14_what_is_refused_after_a_create_outlives_its_recovery() {
    for refused_before in [true, false] {
        let mut world = World::new(settings(&["a", "b", "c"]));
        let refuse = |world: &mut World| {
            let mut at = At::of(Phase::Creating);
            at.set_call(Call::Accepted { operation: OPERATION.into() });
            let recovery = Recovery {
                at,
                order: Some(RunOrder::default()),
                ..world.fleet.slots["a"].recovery.clone().unwrap()
            };
            world.fleet.slots.get_mut("b").unwrap().recovery = Some(recovery);
            world.create_fails("b", FailureClass::StockOut);
            world.fleet.slots.get_mut("b").unwrap().recovery = None;
            // The next probe is due.
            world.fleet.ledger.pools.values_mut().for_each(|pool| {
                pool.short.as_mut().unwrap().probe_at = world.now;
            });
            assert!(!world.fleet.ledger.pools.is_empty());
        };
        let preempted = json!({"state": "PREEMPTED"});
        world.sick(&["a"], preempted.clone(), 0);
        world.get("a", Some(node("a", preempted)));
        world.called("a", CallOutcome::Accepted(OPERATION.into()));
        world.wait(5);
        if refused_before {
            refuse(&mut world);
            world.wait(5);
        }
        world.done("a", OperationState::Succeeded);
        world.called("a", CallOutcome::Accepted(OPERATION.into()));
        world.wait(5);
        if !refused_before {
            refuse(&mut world);
        }
        let ready = world.replacement("a", json!({}));
        world.get("a", Some(ready));
        assert!(world.recovered(), "{:?}", world.events);
        assert_eq!(world.fleet.ledger.pools.is_empty(), refused_before);
    }
}

#[test]
fn l5_time_in_which_a_node_could_not_be_read_heals_nothing() {
    let mut world = World::new(settings(&["a"]));
    world.fleet.settings.slots.get_mut("a").unwrap().policy.heal = Duration::from_secs(60);
    world.sick(&["a"], timeout(), 300);
    let before = world.fleet.slots["a"].suspicion.clone().unwrap();
    world.wait(30);
    world.poll_result(Ok((vec![], vec![ZONE.into()])));
    // Another process goes on.
    world.fleet.memory.values_mut().for_each(|memory| *memory = Default::default());
    world.wait(3600);
    world.poll(&[node("a", json!({}))]);
    let suspicion =
        world.fleet.slots["a"].suspicion.clone().expect("one healthy read proves no healthy time");
    assert_eq!((suspicion.sick_for, suspicion.healthy_for), (before.sick_for, Duration::ZERO));
    for _ in 0..2 {
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
    }
    assert!(world.fleet.slots["a"].suspicion.is_none());
}

#[test]
fn l5_healthy_reads_clear_suspicion_although_every_other_one_fails() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 570);
    // The zone answers every other time for half an hour and more.
    for _ in 0..32 {
        world.wait(30);
        world.poll_result(Ok((vec![], vec![ZONE.into()])));
        world.wait(30);
        world.poll(&[node("a", json!({}))]);
    }
    assert_eq!(world.fleet.slots["a"].suspicion, None);
    // A minute of sickness much later is a minute.
    for _ in 0..2 {
        world.wait(30);
        world.poll(&[node("a", timeout())]);
        assert!(!world.asks("a"));
    }
}

#[test]
fn a_job_that_failed_for_good_is_told_once_whatever_a_person_pulls() {
    let mut world = with_checkpoints();
    world.supervised_run();
    let failed =
        |world: &World| world.events.iter().any(|what| matches!(what, What::JobFailed { .. }));
    world.exited(3, "final");
    assert!(failed(&world));
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.wait(30);
    world.exited(3, "final");
    assert!(!failed(&world), "{:?}", world.events);
}

#[test]
fn s7_a_pause_outlives_a_config_that_lacks_its_slot() {
    let mut world = World::new(settings(&["a", "b"]));
    let is_paused = |world: &World| world.fleet.slots["a"].paused.is_some();
    world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    world.configured(&["b"]);
    let kept = |record: &Record| matches!(record, Record::Slot(slot) if slot.name == "a" && slot.left_at.is_some());
    assert!(world.records.iter().any(kept), "{:?}", world.records);
    world.configured(&["a", "b"]);
    assert!(is_paused(&world));
    // A person may also take it back meanwhile.
    world.configured(&["b"]);
    world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    world.configured(&["a", "b"]);
    assert!(!is_paused(&world));
}

#[test]
fn s7_a_pause_that_waited_in_the_store_while_its_slot_left_counts_when_it_is_back() {
    let mut world = World::new(settings(&["a", "b"]));
    world.configured(&["b"]);
    world.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    assert!(
        matches!(&world.records[..], [Record::CommandDone(_), Record::Slot(slot), Record::Ledger(_)] if slot.paused.is_some())
    );
    world.configured(&["a", "b"]);
    world.poll(&[node("a", json!({"state": "PREEMPTED"})), node("b", json!({}))]);
    world.wait(30);
    world.poll(&[node("a", json!({"state": "PREEMPTED"})), node("b", json!({}))]);
    assert!(
        world.actions.is_empty() && world.hold("a") == Some(HoldReason::Paused),
        "{:?}",
        world.hold("a")
    );
}

/// A person deletes the replacement while it is created, and makes a node of their own.
#[test]
fn what_the_user_makes_in_place_of_a_replacement_is_not_taken_for_what_the_create_made() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let ours = world.replacement("a", json!({"state": "CREATING"}));
    world.poll(std::slice::from_ref(&ours));
    assert_eq!(world.fleet.slots["a"].incarnation.as_ref().map(|i| i.id.as_str()), Some("2"));
    world.wait(30);
    let theirs = node("a", json!({"id": "3", "createTime": world.now.to_string()}));
    world.poll(std::slice::from_ref(&theirs));
    assert_eq!(world.phase("a"), None);
    let told = |what: &What| {
        matches!(what, What::Outcome { call: Verb::Create, result: CallResult::Failed, .. })
    };
    assert!(world.events.iter().any(told), "{:?}", world.events);
    assert!(world.events.iter().any(|e| matches!(e, What::Withdrawn { .. })), "{:?}", world.events);
}

#[test]
fn s14_a_trial_goes_on_when_the_clock_is_set_back() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let record = world.fleet.slots.get_mut("a").unwrap();
    record.recovery.as_mut().unwrap().tried_at = Some(world.now);
    world.now -= jiff::SignedDuration::from_secs(3600);
    world.input(Input::Tick);
    assert_eq!(world.fleet.slots["a"].recovery.as_ref().unwrap().tried_at, Some(world.now));
}

#[test]
fn s4_what_the_user_made_again_in_another_of_its_zones_is_not_created_once_more() {
    const OTHER: &str = "us-east5-a";
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().zones.push(OTHER.to_owned());
    let mut world = World::new(settings);
    world.poll(&[node("a", json!({}))]);
    let there = node(
        "a",
        json!({"name": format!("projects/p/locations/{OTHER}/nodes/a"), "id": "9", "createTime": world.now.to_string()}),
    );
    for round in 0..20 {
        world.wait(30);
        // The poll that shows it there was slow: the GET that found nothing where it was is
        // younger.
        let began =
            if round == 2 { world.now - jiff::SignedDuration::from_secs(31) } else { world.now };
        // It is gone before it is there again.
        let made: Vec<_> = (round > 1)
            .then(|| Arc::new(NodeView::parse(there.clone()).unwrap()))
            .into_iter()
            .collect();
        let listings = [(ZONE, vec![]), (OTHER, made)].map(|(zone, nodes)| Listing {
            zone: zone.into(),
            result: Ok((nodes, vec![]).into()),
            requests: None,
        });
        let listings = listings.into();
        world.input(Input::Polled(Box::new(Poll { began, listings, jobs: vec![] })));
        if let [Look::Node { zone, .. }] = &world.looks[..] {
            assert_eq!(zone, ZONE);
            world.get("a", None);
        }
        assert!(world.actions.is_empty(), "{:?}", world.actions);
        if round >= 2 {
            let record = &world.fleet.slots["a"];
            assert_eq!(
                (record.zone.as_str(), record.verdict.condition),
                (OTHER, Condition::Healthy)
            );
        }
    }
}

#[test]
fn what_lives_in_one_of_its_zones_is_not_hidden_by_remains_in_another() {
    const OTHER: &str = "us-east5-a";
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().zones.push(OTHER.to_owned());
    let mut world = World::new(settings);
    let remains = node("a", json!({"state": "PREEMPTED"}));
    let lives =
        node("a", json!({"name": format!("projects/p/locations/{OTHER}/nodes/a"), "id": "9"}));
    for _ in 0..10 {
        world.wait(30);
        let listings = [(ZONE, &remains), (OTHER, &lives)].map(|(zone, raw)| Listing {
            zone: zone.into(),
            result: Ok((vec![Arc::new(NodeView::parse(raw.clone()).unwrap())], vec![]).into()),
            requests: None,
        });
        let began = world.now;
        world.input(Input::Polled(Box::new(Poll {
            began,
            listings: listings.into(),
            jobs: vec![],
        })));
        assert!(world.actions.is_empty() && world.looks.is_empty(), "{:?}", world.looks);
        let record = &world.fleet.slots["a"];
        assert_eq!((record.zone.as_str(), record.verdict.condition), (OTHER, Condition::Healthy));
    }
}

#[test]
fn s4_remains_are_not_taken_up_while_another_of_its_zones_can_not_be_read() {
    const OTHER: &str = "us-east5-a";
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().zones.push(OTHER.to_owned());
    let mut world = World::new(settings);
    let remains = Arc::new(NodeView::parse(node("a", json!({"state": "PREEMPTED"}))).unwrap());
    for _ in 0..10 {
        world.wait(30);
        let unread = Failure::new(FailureClass::Transient, "unavailable");
        let results = [(ZONE, Ok((vec![remains.clone()], vec![]).into())), (OTHER, Err(unread))];
        let listings =
            results.map(|(zone, result)| Listing { zone: zone.into(), result, requests: None });
        let began = world.now;
        world.input(Input::Polled(Box::new(Poll {
            began,
            listings: listings.into(),
            jobs: vec![],
        })));
        assert!(world.actions.is_empty() && world.looks.is_empty(), "{:?}", world.looks);
        assert_eq!(world.fleet.slots["a"].incarnation, None);
    }
}

#[test]
fn s11_a_get_from_before_a_create_does_not_read_back_what_became_of_it() {
    let mut world = World::new(settings(&["a"]));
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted)));
    world.called(
        "a",
        CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer within 20 s")),
    );
    world.wait(5);
    let slow = world.now;
    world.wait(5);
    world.get("a", None);
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.actions);
    // Its answer comes while nothing can be written, and the journal is read again.
    let (slots, ledger) = (world.fleet.slots.clone(), world.fleet.ledger.clone());
    world.fleet.forget_call("a");
    world.fleet.read_again(slots, ledger);
    world.wait(5);
    let absent = |began| Input::Got { slot: "a".into(), began, reading: Reading::Absent };
    world.input(absent(slow));
    assert_eq!(world.phase("a"), Some(Phase::Creating));
    world.input(absent(world.now));
    assert_eq!(world.phase("a"), Some(Phase::Gone), "this one was asked for after it");
}

#[test]
fn done_ends_what_was_wanted_and_retry_takes_it_back() {
    let done = || CommandKind::Done { slot: "a".into() };
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.exited(0, "done ran=4 step=none");
    world.next_poll(&node);
    assert_eq!(world.hold("a"), Some(HoldReason::EndedEarly));
    world.command(done());
    world.ordered(accepted());
    world.exited(0, "done ran=4 step=none");
    world.next_poll(&node);
    let condition = |world: &World| world.fleet.slots["a"].verdict.condition;
    assert_eq!((condition(&world), world.hold("a")), (Condition::Finished, None));
    // Its hosts may go on trying; the failure of a later job is one.
    let told = |world: &World| world.events.iter().any(|e| matches!(e, What::JobFailed { .. }));
    world.exited(1, "final after 5 restarts");
    assert!(!told(&world));
    let key = world.fleet.slots.get_mut("a").unwrap().job.finished.replace("another".into());
    world.exited(3, "final after 5 restarts");
    assert!(told(&world));
    world.fleet.slots.get_mut("a").unwrap().job.finished = key;
    // Lost, it is removed, and nothing comes in its place.
    let mut lost = node.clone();
    lost["state"] = json!("PREEMPTED");
    world.next_poll(&lost);
    world.get("a", Some(lost));
    assert!(is_delete(&world.actions), "{:?}", world.fleet.slots["a"].decision);
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    for _ in 0..8 {
        world.wait(30);
        world.poll(&[]);
        world.get("a", None);
        world.surveyed(&[100]);
        assert!(world.actions.is_empty());
    }
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    for _ in 0..8 {
        world.wait(30);
        world.poll(&[]);
        world.get("a", None);
        if world.actions.is_empty() {
            world.surveyed(&[100]);
        }
        if matches!(world.actions[..], [Action::Create { .. }]) {
            return;
        }
    }
    panic!("nothing is created: {:?}", world.fleet.slots["a"].decision);
}

#[test]
fn done_calls_an_owed_create_off_and_says_where_there_is_no_job() {
    let mut world = with_checkpoints();
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert_eq!(world.phase("a"), Some(Phase::Gone));
    world.command(CommandKind::Done { slot: "a".into() });
    world.surveyed(&[100]);
    for _ in 0..8 {
        world.wait(30);
        world.poll(&[]);
        assert!(world.actions.is_empty(), "{:?}", world.actions);
    }
    assert_eq!(world.phase("a"), None);

    let mut world = World::new(settings(&["b"]));
    world.poll(&[node("b", json!({}))]);
    world.command(CommandKind::Done { slot: "b".into() });
    assert!(world.messages.iter().any(|message| message.contains("names no job")));
    assert_eq!(world.fleet.slots["b"].job.finished, None);
}
