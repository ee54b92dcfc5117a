//! S1 to S19: what must hold, always.

use super::*;
use crate::model::checkpoint::CheckpointSurvey;
use crate::model::settings::CheckpointSettings;

#[test]
fn s1_a_delete_targets_exactly_the_incarnation_that_a_fresh_get_showed() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 600);
    assert!(
        world.actions.is_empty() && matches!(world.looks[..], [Look::Node { .. }]),
        "it asks first"
    );
    // Another incarnation answers: nothing is deleted, the suspicion was about the old one.
    world.get("a", Some(node("a", json!({"id": "9", "health": "TIMEOUT"}))));
    assert!(world.actions.is_empty());
    assert_eq!(world.fleet.slots["a"].suspicion.as_ref().unwrap().reads, 1);

    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    match &world.actions[..] {
        [Action::Delete { incarnation, verified, .. }] => {
            assert_eq!((incarnation.id.as_str(), *verified), ("1", world.now))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn s1_a_confirmation_that_came_late_is_asked_for_again() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 600);
    let began = world.now;
    world.wait(6);
    let reading = Reading::Node(Arc::new(NodeView::parse(node("a", timeout())).unwrap()));
    world.input(Input::Got { slot: "a".into(), began, reading });
    assert!(world.actions.is_empty());
    world.wait(24);
    world.poll(&[node("a", timeout())]);
    assert!(matches!(world.looks[..], [Look::Node { .. }]));
}

#[test]
fn s2_a_read_that_began_before_our_last_mutation_proves_nothing() {
    let mut world = World::new(settings(&["a"]));
    let before = world.now;
    world.recreate_preempted();
    let stale =
        Reading::Node(Arc::new(NodeView::parse(node("a", json!({"state": "PREEMPTED"}))).unwrap()));
    world.input(Input::Got { slot: "a".into(), began: before, reading: stale });
    assert_eq!(world.phase("a"), Some(Phase::Creating));
    assert!(world.actions.is_empty());
}

#[test]
fn s3_failed_reads_and_gaps_add_nothing_and_clear_nothing() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], timeout(), 300);
    let mut before = world.fleet.slots["a"].suspicion.clone().unwrap();
    assert_eq!(before.sick_for, Duration::from_secs(300));
    for _ in 0..100 {
        world.wait(30);
        world.poll_result(Err(Failure::new(FailureClass::Transient, "down")));
    }
    before.unseen = true;
    assert_eq!(world.fleet.slots["a"].suspicion.as_ref(), Some(&before));
    world.poll(&[node("a", timeout())]);
    // The gap of 50 minutes adds max_gap at most.
    assert_eq!(
        world.fleet.slots["a"].suspicion.as_ref().unwrap().sick_for,
        Duration::from_secs(600)
    );
}

#[test]
fn s3_confirmations_count_the_get_and_a_zero_grace_is_acted_on_in_one_poll() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));

    let mut three = settings(&["a"]);
    three.slots.get_mut("a").unwrap().policy.confirmations = 3;
    let mut world = World::new(three);
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    assert!(world.looks.is_empty(), "one read of three: the next poll first");
    world.wait(30);
    world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));
}

#[test]
fn s4_absence_alone_creates_nothing_and_never_deletes() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    for _ in 0..20 {
        world.wait(30);
        world.poll(&[]);
        assert!(world.actions.is_empty());
        // The GET that is asked for says that the node is there: the listing was wrong.
        if !world.looks.is_empty() {
            world.get("a", Some(node("a", json!({}))));
        }
    }
    assert_eq!(world.phase("a"), None);
}

#[test]
fn s4_a_confirmed_absence_is_created_after_its_grace() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    for round in 0..6 {
        world.wait(30);
        world.poll(&[]);
        if !world.looks.is_empty() {
            world.get("a", None);
        }
        if let [Action::Create { body, .. }] = &world.actions[..] {
            assert!(round >= 4, "two minutes of grace");
            assert_eq!(body["acceleratorType"], "v4-8");
            return;
        }
    }
    panic!("it was never created");
}

#[test]
fn s5_an_unknown_state_or_health_means_hold() {
    for change in [
        json!({"state": "PAUSED"}),
        json!({"health": "WEIRD"}),
        json!({"state": 77}),
        json!({"createTime": null}),
    ] {
        let mut world = World::new(settings(&["a"]));
        world.sick(&["a"], change.clone(), 100_000);
        assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Unclear, "{change}");
        assert!(world.actions.is_empty() && world.looks.is_empty());
    }
}

#[test]
fn s7_dry_run_and_opt_out_hold_both_kinds() {
    for (change, dry_run, reason) in [
        (
            json!({"state": "PREEMPTED", "labels": {"tpu-watchdog": "off"}}),
            false,
            HoldReason::OptedOut,
        ),
        (json!({"state": "PREEMPTED"}), true, HoldReason::DryRun),
    ] {
        let mut settings = settings(&["a"]);
        settings.dry_run = dry_run;
        let mut world = World::new(settings);
        world.sick(&["a"], change.clone(), 60);
        assert!(world.looks.is_empty(), "no GET has to confirm what nothing follows from");
        world.wait(30);
        world.poll(&[node("a", change.clone())]);
        assert!(world.events.is_empty(), "it is told once: {:?}", world.events);
        world.get("a", Some(node("a", change)));
        assert!(world.actions.is_empty());
        assert_eq!(world.hold("a"), Some(reason));
    }
}

#[test]
fn s8_attempts_survive_a_restart_and_escalate_when_used_up() {
    let mut settings = settings(&["a"]);
    settings.slots.get_mut("a").unwrap().policy.attempts.max = 1;
    let mut world = World::new(settings.clone());
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    let record = world
        .records
        .iter()
        .find_map(|r| if let Record::Slot(r) = r { Some((**r).clone()) } else { None })
        .unwrap();
    let text = serde_json::to_string(&record).unwrap();
    let mut back: crate::model::slot::SlotRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(back.attempts.len(), 1);
    back.spec.clone_from(&record.spec);
    back.recovery = None;
    let mut again = World::new(settings.clone());
    again.now = world.now;
    again.fleet = Fleet::new(settings, [("a".to_owned(), back)].into(), Ledger::default());
    again.sick(&["a"], timeout(), 600);
    assert!(again.actions.is_empty() && again.looks.is_empty());
    assert_eq!(again.hold("a"), Some(HoldReason::Attempts));
}

#[test]
fn s9_there_is_never_a_second_recovery_or_call_for_a_slot() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));
    for _ in 0..10 {
        world.wait(1);
        world.poll(&[node("a", json!({"state": "PREEMPTED"}))]);
        assert!(world.actions.is_empty(), "the call is under way");
    }
}

#[test]
fn s10_a_node_that_the_api_works_on_has_its_own_deadline_and_a_stopped_one_none() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "RESTARTING"}), 44 * 60);
    assert!(!world.asks("a") && world.actions.is_empty());
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], json!({"state": "STOPPED", "health": "TIMEOUT"}), 100_000);
    assert!(!world.asks("a") && world.actions.is_empty());
}

#[test]
fn s14_a_quota_refusal_suspends_nothing() {
    let mut world = World::new(settings(&["a", "b"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::Quota);
    world.sick(&["b"], timeout(), 600);
    world.get("b", Some(node("b", timeout())));
    assert_eq!(world.phase("b"), Some(Phase::Deleting), "{:?}", world.hold("b"));
}

#[test]
fn s14_a_stock_out_keeps_doubtful_tpus_but_not_dead_ones() {
    let mut world = World::new(settings(&["a", "b"]));
    world.recreate_preempted();
    world.create_fails("a", FailureClass::StockOut);
    assert_eq!(world.phase("a"), Some(Phase::Gone));
    let sick = |world: &mut World, change: Value, polls: u32| {
        for _ in 0..polls {
            world.wait(30);
            world.poll(&[node("b", change.clone())]);
            if matches!(world.looks[..], [Look::Node { .. }]) {
                world.get("b", Some(node("b", change.clone())));
            }
        }
    };
    sick(&mut world, timeout(), 25);
    assert_eq!(world.hold("b"), Some(HoldReason::ZoneShort));
    assert_eq!(world.phase("b"), None);
    sick(&mut world, json!({"state": "UNKNOWN"}), 1);
    assert_eq!(world.phase("b"), None, "a failed repair is a judgement, too");
    sick(&mut world, json!({"state": "PREEMPTED"}), 1);
    assert_eq!(world.phase("b"), Some(Phase::Deleting), "dead nodes eat quota");
}

#[test]
fn s15_a_create_waits_for_a_complete_listing_of_checkpoints_and_never_goes_back() {
    let mut with_job = settings(&["a"]);
    let slot = with_job.slots.get_mut("a").unwrap();
    let location =
        CheckpointSettings { uri: "gs://b/c".into(), format: None, orbax_mode: Default::default() };
    slot.job = Some(JobSettings { checkpoint: Some(location), ..JobSettings::default() });
    slot.supervisor = Some("# tpu-watchdog-supervisor".into());
    let mut world = World::new(with_job);
    let survey = |world: &mut World, result: Result<Option<u64>, Failure>| {
        let checkpoint =
            |step| crate::model::checkpoint::Checkpoint { step, uri: format!("gs://b/c/{step}") };
        let result = result.map(|newest| CheckpointSurvey {
            newest: newest.map(checkpoint),
            ..CheckpointSurvey::default()
        });
        world.input(Input::Surveyed {
            slot: "a".into(),
            began: world.now,
            location: "gs://b/c".into(),
            result,
        });
    };
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    survey(&mut world, Ok(Some(100)));
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    world.done("a", OperationState::Succeeded);
    assert!(world.actions.is_empty() && matches!(world.looks[..], [Look::Checkpoints { .. }]));
    survey(&mut world, Err(Failure::new(FailureClass::Transient, "503")));
    assert_eq!(world.hold("a"), Some(HoldReason::CheckpointUnreadable));
    world.wait(6);
    world.input(Input::Tick);
    survey(&mut world, Ok(Some(90)));
    assert_eq!(world.hold("a"), Some(HoldReason::CheckpointUnreadable), "a listing may lag behind");
    world.wait(9 * 60);
    world.input(Input::Tick);
    survey(&mut world, Err(Failure::new(FailureClass::Transient, "503")));
    assert_eq!(world.hold("a"), Some(HoldReason::CheckpointUnreadable));
    world.wait(60);
    world.input(Input::Tick);
    assert_eq!(
        world.hold("a"),
        Some(HoldReason::CheckpointUnreadable),
        "only complete listings say so"
    );
    survey(&mut world, Ok(Some(90)));
    assert_eq!(
        world.hold("a"),
        Some(HoldReason::CheckpointWentBack),
        "it has been gone for ten minutes"
    );
    assert!(world.actions.is_empty());
    world.wait(6);
    world.input(Input::Tick);
    survey(&mut world, Ok(Some(110)));
    match &world.actions[..] {
        [Action::Create { body, .. }] => {
            let run: Value =
                serde_json::from_str(body["metadata"]["tpu-watchdog-run"].as_str().unwrap())
                    .unwrap();
            assert_eq!(run, json!({"generation": 1, "checkpoint": "gs://b/c/110", "step": 110}));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn s17_a_node_that_is_not_the_slots_own_plain_node_is_never_mutated() {
    for (change, reason) in [
        (json!({"state": "PREEMPTED", "queuedResource": "q"}), HoldReason::QueuedResource),
        (json!({"state": "PREEMPTED", "multisliceNode": true}), HoldReason::Multislice),
        (json!({"state": "PREEMPTED", "apiVersion": "V1"}), HoldReason::ApiV1),
        (
            json!({"state": "PREEMPTED", "metadata": {"tpu-watchdog-owner": "them"}}),
            HoldReason::OtherOwner,
        ),
    ] {
        let mut world = World::new(settings(&["a"]));
        world.sick(&["a"], change.clone(), 300);
        assert!(world.actions.is_empty() && world.looks.is_empty());
        assert_eq!(world.hold("a"), Some(reason));
    }
}

#[test]
fn s18_creates_stay_under_sixty_a_minute() {
    let names: Vec<String> = (0..100).map(|i| format!("n{i:03}")).collect();
    let mut world = World::new(settings(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&names.iter().map(String::as_str).collect::<Vec<_>>(), preempted.clone(), 0);
    let mut creates = 0;
    for name in &names {
        world.get(name, Some(node(name, preempted.clone())));
        assert!(is_delete(&world.actions));
        world.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        creates += world.actions.len();
    }
    assert_eq!(creates, 59);
    // Writes are slow: what was decided a minute ago may leave only now.
    world.wait(61);
    world.input(Input::Tick);
    assert_eq!(world.actions.len(), 0, "59 are still on their way");
    for name in &names[..59] {
        world.called(name, CallOutcome::Accepted(OPERATION.into()));
        creates += world.actions.len();
    }
    assert_eq!(creates, 59, "their minute begins when they have left");
    world.wait(61);
    world.input(Input::Tick);
    assert_eq!(world.actions.len(), 41);
}

#[test]
fn s18_a_create_that_never_left_counts_no_more_and_one_of_a_former_process_not_for_ever() {
    let names: Vec<String> = (0..60).map(|i| format!("n{i:03}")).collect();
    let mut world = World::new(settings(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&names.iter().map(String::as_str).collect::<Vec<_>>(), preempted.clone(), 0);
    for name in &names {
        world.get(name, Some(node(name, preempted.clone())));
        world.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    }
    assert_eq!(world.hold("n059"), Some(HoldReason::CreateLimit));
    world.called("n000", CallOutcome::NotSent(Failure::new(FailureClass::Transient, "no token")));
    assert!(
        matches!(&world.actions[..], [Action::Create { slot, .. }] if slot == "n059"),
        "{:?}",
        world.actions
    );
    // Process after process starts and ends without an answer: the minutes pass all the same.
    for _ in 0..5 {
        world.wait(25);
        world.fleet = Fleet::new(
            world.fleet.settings.clone(),
            world.fleet.slots.clone(),
            world.fleet.ledger.clone(),
        );
        world.input(Input::Tick);
    }
    assert!(
        matches!(&world.actions[..], [Action::Create { slot, .. }] if slot == "n000"),
        "{:?}",
        world.hold("n000")
    );
}

#[test]
fn s19_the_same_inputs_give_the_same_effects() {
    let story = || {
        let mut world = World::new(settings(&["a", "b"]));
        let mut trace = String::new();
        world.recreate_preempted();
        trace += &format!("{:?}{:?}{:?}", world.actions, world.looks, world.records);
        world.sick(&["b"], timeout(), 700);
        trace + &format!("{:?}{:?}{:?}", world.actions, world.looks, world.events)
    };
    assert_eq!(story(), story());
}

#[test]
fn s2_a_get_that_began_before_the_delete_was_done_does_not_bring_the_node_back() {
    let mut world = World::new(settings(&["a"]));
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted.clone())));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    let lost = Err(Failure::new(FailureClass::Transient, "500"));
    world.input(Input::Operated { slot: "a".into(), operation: OPERATION.into(), result: lost });
    assert!(world.looks.iter().any(|l| matches!(l, Look::Node { .. })));
    let began = world.now;
    world.wait(1);
    world.done("a", OperationState::Succeeded);
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::StockOut, "none")));
    assert_eq!(world.phase("a"), Some(Phase::Gone));
    let reading = Reading::Node(Arc::new(NodeView::parse(node("a", preempted)).unwrap()));
    world.input(Input::Got { slot: "a".into(), began, reading });
    assert_eq!(world.phase("a"), Some(Phase::Gone), "it shows the past");
}
