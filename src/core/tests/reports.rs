//! Reports of the workers: when they condemn, when they save, and when they can't be read.

use super::runs::with_checkpoints;
use super::*;
use crate::model::action::Look;
use crate::model::beacon::{Beacon, WorkerReport};

impl World {
    /// A run that has just begun. Returns its node.
    pub fn supervised_run(&mut self) -> Value {
        self.begin(&[100]);
        self.called("a", CallOutcome::Accepted(OPERATION.into()));
        let node = self.supervised("10", self.now);
        self.wait(5);
        self.get("a", Some(node.clone()));
        node
    }

    /// A run that has been silent for long enough, seen at the last poll. Returns its node.
    pub fn silent(&mut self) -> Value {
        let node = self.supervised_run();
        for _ in 0..100 {
            self.reports(7, None);
            self.wait(30);
            self.poll(std::slice::from_ref(&node));
            if self.fleet.slots["a"].verdict.condition == Condition::Silent {
                return node;
            }
        }
        panic!("it is never taken for silent: {:?}", self.fleet.slots["a"].verdict)
    }

    /// A run that falls silent, up to its delete, whose answer is lost and which is not carried
    /// out. Returns its node.
    pub fn delete_that_is_lost(&mut self) -> Value {
        let node = self.supervised_run();
        for _ in 0..40 {
            self.wait(30);
            self.poll(std::slice::from_ref(&node));
            self.reports(7, None);
            if self.looks.iter().any(|l| matches!(l, Look::Node { .. })) {
                self.get("a", Some(node.clone()));
                assert!(is_delete(&self.actions));
                break;
            }
        }
        self.called("a", CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer")));
        // Long enough for the last reports to be too old to act on.
        self.wait(300);
        self.get("a", Some(node.clone()));
        // A delete whose answer was lost waits before it is repeated.
        if let Some(recovery) = &mut self.fleet.slots.get_mut("a").unwrap().recovery {
            recovery.not_before = None;
        }
        assert_eq!(
            (self.phase("a"), self.actions.len()),
            (Some(Phase::Condemned), 0),
            "it was not carried out"
        );
        node
    }
}

#[test]
fn s5_the_time_before_a_boot_was_first_seen_is_no_silence() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let answer = |world: &mut World, heartbeat: Option<i64>| {
        let record = &world.fleet.slots["a"];
        let (of, generation) = (record.incarnation.clone().unwrap(), record.job.generation);
        let beacon = |value: i64| Beacon {
            boot_id: "b".into(),
            generation,
            attempt: 0,
            value,
            text: String::new(),
        };
        let boot = heartbeat.map(|_| beacon(1));
        let heartbeat = heartbeat.filter(|value| *value > 0).map(beacon);
        let report = WorkerReport { boot, heartbeat, ..WorkerReport::default() };
        world.input(Input::Attributes {
            slot: "a".into(),
            of,
            began: world.now,
            result: Ok(vec![report]),
        });
    };
    let record = world.fleet.slots.get_mut("a").unwrap();
    record.job.workers.clear();
    answer(&mut world, None);
    // For half an hour they may not be read. Then there is a boot, and its heartbeat is to come.
    world.wait(30 * 60);
    answer(&mut world, Some(0));
    assert_eq!(world.fleet.slots["a"].job.workers[&0].quiet_for, Duration::ZERO);
    world.wait(60);
    answer(&mut world, Some(0));
    assert_eq!(world.fleet.slots["a"].job.workers[&0].quiet_for, Duration::from_secs(60));
    world.wait(60);
    answer(&mut world, Some(1));
    assert_eq!(world.fleet.slots["a"].job.workers[&0].quiet_for, Duration::ZERO);
    world.poll(std::slice::from_ref(&node));
}

#[test]
fn s5_a_host_that_has_just_booted_is_alive_although_its_heartbeat_is_still_the_old_one() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let booted = |world: &mut World, boot_id: &str| {
        let record = &world.fleet.slots["a"];
        let (of, generation) = (record.incarnation.clone().unwrap(), record.job.generation);
        let beacon = |boot_id: &str, value: i64| {
            Some(Beacon {
                boot_id: boot_id.into(),
                generation,
                attempt: 0,
                value,
                text: String::new(),
            })
        };
        let report = WorkerReport {
            boot: beacon(boot_id, 1),
            heartbeat: beacon("b", 7),
            ..WorkerReport::default()
        };
        world.input(Input::Attributes {
            slot: "a".into(),
            of,
            began: world.now,
            result: Ok(vec![report]),
        });
    };
    // Its grace of 15 min is nearly over when it boots again.
    for minute in 0..29 {
        world.wait(60);
        booted(&mut world, if minute < 14 { "b" } else { "c" });
        world.poll(std::slice::from_ref(&node));
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy, "minute {minute}");
    }
    for _ in 0..4 {
        world.wait(60);
        booted(&mut world, "c");
        world.poll(std::slice::from_ref(&node));
    }
    assert_eq!(
        world.fleet.slots["a"].verdict.condition,
        Condition::Silent,
        "and then it fell silent"
    );
}

#[test]
fn s2_reports_from_before_our_last_mutation_condemn_nothing() {
    let mut world = with_checkpoints();
    let node = world.silent();
    world.reports(7, None);
    world.get("a", Some(node.clone()));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::Transient, "503")));
    world.wait(1);
    world.fleet.slots.get_mut("a").unwrap().recovery.as_mut().unwrap().not_before = None;
    world.get("a", Some(node));
    assert!(world.actions.is_empty(), "the GET is new, the reports are not");
    world.reports(7, None);
    assert!(is_delete(&world.actions), "both are: {:?}", world.fleet.slots["a"].decision);
}

#[test]
fn s5_a_delete_that_rests_on_reports_asks_for_them_once_more() {
    let mut world = with_checkpoints();
    let node = world.silent();
    let asked = |world: &World| world.looks.iter().any(|l| matches!(l, Look::Node { .. }));
    assert!(
        !asked(&world) && world.looks.iter().any(|l| matches!(l, Look::Attributes { .. })),
        "{:?}",
        world.looks
    );
    world.reports(7, None);
    assert!(asked(&world), "now the GET");
    world.wait(11);
    world.get("a", Some(node.clone()));
    assert!(world.actions.is_empty(), "it took too long: the workers may have come to life");
    // Their answer is slow: it is as old as their question.
    world.wait(30);
    world.poll(std::slice::from_ref(&node));
    let (of, began) = (world.fleet.slots["a"].incarnation.clone().unwrap(), world.now);
    let slow = Input::Attributes {
        slot: "a".into(),
        of,
        began,
        result: Ok(vec![WorkerReport::default()]),
    };
    world.wait(11);
    world.input(slow);
    assert!(!asked(&world) && world.actions.is_empty());
    world.wait(19);
    world.poll(std::slice::from_ref(&node));
    // An answer that lacks the worker says nothing about it.
    let (of, began) = (world.fleet.slots["a"].incarnation.clone().unwrap(), world.now);
    world.input(Input::Attributes { slot: "a".into(), of, began, result: Ok(vec![]) });
    assert!(!asked(&world) && world.actions.is_empty());
    world.wait(30);
    world.poll(std::slice::from_ref(&node));
    world.reports(7, None);
    world.wait(4);
    world.get("a", Some(node.clone()));
    assert!(is_delete(&world.actions));
}

#[test]
fn l1_a_person_is_asked_for_when_the_silence_of_a_tpu_cannot_be_confirmed_any_more() {
    let mut world = with_checkpoints();
    let node = world.silent();
    let mut held_after = None;
    for round in 0..30 {
        let (of, began) = (world.fleet.slots["a"].incarnation.clone().unwrap(), world.now);
        let forbidden =
            Err(Failure::new(FailureClass::Permission, "guest attributes are forbidden"));
        world.input(Input::Attributes { slot: "a".into(), of, began, result: forbidden });
        assert!(world.actions.is_empty());
        if world.hold("a") == Some(HoldReason::NoBeaconChannel) {
            held_after = held_after.or(Some(round * 30));
        }
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
    }
    assert!((540..=660).contains(&held_after.unwrap()), "{held_after:?} s");
    world.reports(7, None);
    world.get("a", Some(node.clone()));
    assert!(is_delete(&world.actions), "they can be read again");
}

#[test]
fn l1_workers_that_always_answer_too_slowly_are_told_to_a_person() {
    let mut world = with_checkpoints();
    let node = world.silent();
    for _ in 0..22 {
        let (of, began) = (world.fleet.slots["a"].incarnation.clone().unwrap(), world.now);
        let silent = Input::Attributes {
            slot: "a".into(),
            of,
            began,
            result: Ok(vec![WorkerReport::default()]),
        };
        world.wait(12);
        world.input(silent);
        assert!(
            !world.looks.iter().any(|l| matches!(l, Look::Node { .. })) && world.actions.is_empty()
        );
        world.wait(18);
        world.poll(std::slice::from_ref(&node));
    }
    assert_eq!(world.hold("a"), Some(HoldReason::NoBeaconChannel));
}

#[test]
fn l1_a_get_that_always_comes_too_late_after_the_reports_is_told_to_a_person() {
    // Seconds that the reports take, that the GET has to wait, and that it takes.
    for (reports, waits, takes) in [(8, 3, 0), (2, 9, 0), (1, 0, 6)] {
        let mut world = with_checkpoints();
        let node = world.silent();
        let view = Arc::new(NodeView::parse(node.clone()).unwrap());
        let mut held = None;
        for round in 0..30 {
            let (of, began) = (world.fleet.slots["a"].incarnation.clone().unwrap(), world.now);
            let silent = Input::Attributes {
                slot: "a".into(),
                of,
                began,
                result: Ok(vec![WorkerReport::default()]),
            };
            world.wait(reports);
            world.input(silent);
            assert!(
                world.looks.iter().any(|l| matches!(l, Look::Node { .. })),
                "it is tried all the same"
            );
            world.wait(waits);
            let began = world.now;
            world.wait(takes);
            world.input(Input::Got {
                slot: "a".into(),
                began,
                reading: Reading::Node(Arc::clone(&view)),
            });
            assert!(world.actions.is_empty());
            let asks = world.hold("a") == Some(HoldReason::NoBeaconChannel);
            assert!(asks || held.is_none(), "it says so as long as it lasts");
            held = held.or(asks.then_some(round * 30));
            world.wait(30 - reports - waits - takes);
            world.poll(std::slice::from_ref(&node));
        }
        assert!((540..=690).contains(&held.unwrap()), "{held:?} s");
        world.reports(7, None);
        world.wait(1);
        world.get("a", Some(node.clone()));
        assert!(is_delete(&world.actions), "in time");
    }
}

#[test]
fn what_was_asked_for_before_it_came_back_to_life_escalates_nothing() {
    let mut world = with_checkpoints();
    let node = world.silent();
    for beat in 8..48 {
        world.reports(beat, None);
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
    }
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    while world.fleet.slots["a"].verdict.condition != Condition::Silent {
        world.reports(47, None);
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
    }
    world.wait(5);
    let of = world.fleet.slots["a"].incarnation.clone().unwrap();
    let failed = Err(Failure::new(FailureClass::Transient, "no answer"));
    world.input(Input::Attributes { slot: "a".into(), of, began: world.now, result: failed });
    assert_eq!(world.hold("a"), None, "ten minutes begin again");
}

#[test]
fn s5_l1_on_answers_that_lack_workers_nothing_is_deleted_and_a_person_is_told() {
    let mut world = with_checkpoints();
    world.begin(&[100]);
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let mut node = world.supervised("10", world.now);
    node["networkEndpoints"] = json!([{}, {}]);
    let told = |world: &mut World, reports: usize, rounds: usize| {
        for _ in 0..rounds {
            world.wait(30);
            world.poll(std::slice::from_ref(&node));
            let of = world.fleet.slots["a"].incarnation.clone().unwrap();
            let result = Ok(vec![WorkerReport::default(); reports]);
            world.input(Input::Attributes { slot: "a".into(), of, began: world.now, result });
            world.get("a", Some(node.clone()));
            assert!(world.actions.is_empty() || reports == 2);
        }
        (world.fleet.slots["a"].verdict.condition, world.hold("a"))
    };
    assert_eq!(told(&mut world, 0, 40), (Condition::Healthy, None), "twenty minutes are no proof");
    assert_eq!(told(&mut world, 1, 40), (Condition::Healthy, Some(HoldReason::NoBeaconChannel)));
    assert_eq!(told(&mut world, 2, 18), (Condition::Healthy, None), "nine minutes of silence");
    let rounds = (1..9)
        .find(|_| told(&mut world, 2, 1).0 == Condition::NeverBooted && is_delete(&world.actions));
    assert!(
        rounds.is_some_and(|rounds| (2..=4).contains(&rounds)),
        "after ten minutes of whole answers: {rounds:?}"
    );
}

#[test]
fn a_process_that_begins_asks_the_workers_before_it_asks_a_person() {
    let mut world = with_checkpoints();
    let node = world.silent();
    assert!(world.fleet.slots["a"].job.unheard_since.is_some());
    // The next scheduled run.
    world.wait(1200);
    let (settings, slots, ledger) =
        (world.fleet.settings.clone(), world.fleet.slots.clone(), world.fleet.ledger.clone());
    world.fleet = Fleet::new(settings.clone(), slots, ledger);
    world.input(Input::Configured(Box::new(settings)));
    world.wait(1);
    world.poll(std::slice::from_ref(&node));
    world.surveyed(&[100]);
    assert_eq!(world.hold("a"), None);
    world.reports(7, None);
    world.get("a", Some(node.clone()));
    assert!(is_delete(&world.actions));
}

#[test]
fn s5_workers_that_show_life_before_the_delete_are_left_alone() {
    let mut world = with_checkpoints();
    let node = world.delete_that_is_lost();
    world.wait(1);
    world.reports(8, None);
    assert!(
        world.actions.is_empty(),
        "the very report that shows life must not set off the delete"
    );
    world.wait(1);
    world.poll(&[node]);
    assert_eq!((world.phase("a"), world.actions.len()), (None, 0));
}

#[test]
fn s5_a_node_of_an_earlier_order_that_comes_late_is_heard_by_its_own_generation() {
    let mut world = with_checkpoints();
    world.begin(&[100]);
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    // Preempted at birth, and deleted; the create that follows is refused, for the first one is
    // carried out once more.
    let mut dead = world.supervised("10", world.now);
    dead["state"] = json!("PREEMPTED");
    let mut node = world.supervised("11", world.now);
    world.wait(5);
    world.poll(std::slice::from_ref(&dead));
    world.get("a", Some(dead));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    // Capacity that is taken at once is asked for again after a wait.
    world.wait(40);
    world.input(Input::Tick);
    world.surveyed(&[100]);
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    node["createTime"] = json!(world.now.to_string());
    world.called(
        "a",
        CallOutcome::Refused(Failure::new(FailureClass::Conflict, "it already exists")),
    );
    world.wait(5);
    world.get("a", Some(node.clone()));
    assert!(world.fleet.slots["a"].recovery.is_none(), "it fills the slot");
    let (of, generation) =
        (world.fleet.slots["a"].incarnation.clone().unwrap(), world.fleet.slots["a"].heard_from());
    assert_eq!(generation + 1, world.fleet.slots["a"].job.generation);
    for beat in 1..40 {
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
        let beacon = Some(Beacon {
            boot_id: "b".into(),
            generation,
            attempt: 0,
            value: beat,
            text: String::new(),
        });
        let report =
            WorkerReport { boot: beacon.clone(), heartbeat: beacon, ..WorkerReport::default() };
        world.input(Input::Attributes {
            slot: "a".into(),
            of: of.clone(),
            began: world.now,
            result: Ok(vec![report]),
        });
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    }
}

#[test]
fn s5_what_the_workers_still_say_is_acted_on() {
    let mut world = with_checkpoints();
    world.delete_that_is_lost();
    world.wait(1);
    world.reports(7, None);
    assert!(is_delete(&world.actions));
}

#[test]
fn s5_the_running_job_is_still_heard_after_another_client_changes_its_run_order() {
    // The order's generation by now, and the running job's: a reboot reads the order again.
    for (changed, generation) in [(Some(9), 1), (Some(9), 9), (Some(0), 1), (Some(0), 0), (None, 1)]
    {
        let mut world = with_checkpoints();
        let mut node = world.supervised_run();
        let of = world.fleet.slots["a"].incarnation.clone().unwrap();
        assert_eq!(world.fleet.slots["a"].job.generation, 1);
        match changed {
            Some(other) => {
                node["metadata"]["tpu-watchdog-run"] = json!(format!("{{\"generation\": {other}}}"))
            }
            None => _ = node["metadata"].as_object_mut().unwrap().remove("tpu-watchdog-run"),
        }
        for beat in 1..60 {
            world.wait(30);
            world.poll(std::slice::from_ref(&node));
            let beacon = Some(Beacon {
                boot_id: "b".into(),
                generation,
                attempt: 0,
                value: beat,
                text: String::new(),
            });
            let report =
                WorkerReport { boot: beacon.clone(), heartbeat: beacon, ..WorkerReport::default() };
            world.input(Input::Attributes {
                slot: "a".into(),
                of: of.clone(),
                began: world.now,
                result: Ok(vec![report]),
            });
            assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy, "{changed:?}");
        }
    }
}
