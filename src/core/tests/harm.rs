//! Ways to lose a user's work although nothing is broken: a job taken for finished, a checkpoint
//! location taken for empty, a TPU deleted before its create was possible, evidence that is not
//! this node's.

use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, WorkerReport};
use crate::model::checkpoint::{CheckpointSurvey, NotComplete};
use crate::model::command::{Command, CommandKind};
use crate::model::exit::Stuck;

const LOCATION: &str = "gs://b/c";

impl World {
    /// Each worker's exit in its boot: boot id, code, text.
    pub fn exits(&mut self, exits: &[(&str, &str, i64, &str)]) {
        let record = &self.fleet.slots["a"];
        let (of, generation) = (record.incarnation.clone().unwrap(), record.heard_from());
        let beacon = |boot: &str, value: i64, text: &str| {
            Some(Beacon { boot_id: boot.into(), generation, attempt: 0, value, text: text.into() })
        };
        let report = |(boot, of_boot, code, text): &(&str, &str, i64, &str)| WorkerReport {
            boot: beacon(boot, 1, ""),
            heartbeat: beacon(boot, 7, ""),
            exit: beacon(of_boot, *code, text),
            ..WorkerReport::default()
        };
        let result = Ok(exits.iter().map(report).collect());
        self.input(Input::Attributes { slot: "a".into(), of, began: self.now, result });
    }

    pub fn listed(&mut self, result: Result<CheckpointSurvey, Failure>) {
        self.input(Input::Surveyed {
            slot: "a".into(),
            began: self.now,
            location: LOCATION.into(),
            result,
        });
    }

    pub fn retry(&mut self) {
        let kind = CommandKind::Retry { slot: "a".into(), from: None };
        self.input(Input::Commands(vec![Command {
            id: "1".into(),
            at: self.now,
            who: "ada".into(),
            reason: None,
            kind,
        }]));
    }

    /// A job whose slot is decided about with `node` shown.
    pub fn next_poll(&mut self, node: &Value) {
        self.wait(30);
        self.poll(std::slice::from_ref(node));
    }
}

pub fn strange(oldest: Option<Timestamp>) -> Result<CheckpointSurvey, Failure> {
    let other = Some(NotComplete { names: vec!["step-1000/".into()], oldest });
    Ok(CheckpointSurvey { other, ..CheckpointSurvey::default() })
}

#[test]
fn s23_an_exit_with_0_finishes_nothing_without_ten_minutes_a_step_or_a_checkpoint() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.exits(&[("b", "b", 0, "done ran=1 step=none")]);
    world.next_poll(&node);
    assert_eq!(world.hold("a"), Some(HoldReason::EndedEarly));
    assert!(world.fleet.slots["a"].job.finished.is_none());
    // It may be done: what is lost is removed, and nothing is created in its place.
    let mut preempted = node.clone();
    preempted["state"] = json!("PREEMPTED");
    world.next_poll(&preempted);
    world.get("a", Some(preempted));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::EndedEarly), 0));
    // Each of the three is evidence.
    let finishes = |shape: fn(&mut World), text: &str| {
        let mut world = with_checkpoints();
        world.supervised_run();
        world.wait(60);
        shape(&mut world);
        world.exits(&[("b", "b", 0, text)]);
        world.fleet.slots["a"].job.finished.is_some()
    };
    assert!(!finishes(|_| (), "done ran=599 step=none"));
    // A trainer in the background was ended with its command, however far it had come.
    assert!(!finishes(|_| (), "done ran=700 step=120; left running: python3"));
    assert!(finishes(
        |_| (),
        "done ran=4 step=none; it wrote TPU_WATCHDOG_DONE; left running: tee"
    ));
    assert!(finishes(|_| (), "done ran=600 step=none"));
    assert!(finishes(|world| world.reports(8, Some(101)), "done ran=59 step=101"));
    assert!(finishes(|world| world.surveyed(&[100, 200]), "done ran=59 step=none"));
    assert!(
        finishes(|_| (), "done ran=59 step=101"),
        "the supervisor knows of a step before the watchdog has read it"
    );
    assert!(!finishes(|_| (), "done ran=59 step=100"), "that is the checkpoint's own");
    // The first supervisor does not say how long: at the most since the node is READY.
    assert!(!finishes(|_| (), "done"));
    assert!(finishes(|world| world.wait(600), "done"));
}

#[test]
fn s23_a_startup_script_that_ends_well_finishes_nothing() {
    let mut world = with_checkpoints();
    let mut bare = world.fleet.settings.clone();
    bare.slots.get_mut("a").unwrap().job.as_mut().unwrap().command = None;
    world.input(Input::Configured(Box::new(bare)));
    let node = world.supervised_run();
    world.wait(3600);
    world.exits(&[("b", "b", 0, "done")]);
    world.next_poll(&node);
    assert_eq!((world.fleet.slots["a"].job.finished.as_ref(), world.hold("a")), (None, None));
}

#[test]
fn an_exit_of_another_boot_is_stale_and_one_that_runs_again_clears_the_failure() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.exits(&[("b", "b", 1, "final after 5 restarts")]);
    world.next_poll(&node);
    assert_eq!(world.hold("a"), Some(HoldReason::JobFailed));
    // The host was restarted; what its last boot wrote still stands there.
    world.exits(&[("b2", "b", 1, "final after 5 restarts")]);
    world.next_poll(&node);
    assert_eq!((world.hold("a"), world.fleet.slots["a"].job.failed.as_ref()), (None, None));
    world.exits(&[("b2", "b2", 1, "failing after 5 restarts: tried again every 600 s")]);
    world.next_poll(&node);
    assert_eq!(world.hold("a"), Some(HoldReason::JobFailed));
    world.exits(&[("b2", "b2", 1, "recovered ran=600")]);
    world.next_poll(&node);
    assert_eq!(world.hold("a"), None);
}

#[test]
fn retry_clears_what_ended_until_something_else_is_reported() {
    for text in
        ["final after 5 restarts", "stale_order ran=600: a run of this order lasted that long"]
    {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        let failed = [("b", "b", 75, text)];
        world.exits(&failed);
        world.next_poll(&node);
        let reason =
            if text.starts_with("stale") { HoldReason::StaleOrder } else { HoldReason::JobFailed };
        assert_eq!(world.hold("a"), Some(reason));
        world.retry();
        world.exits(&failed);
        world.next_poll(&node);
        assert_eq!(world.hold("a"), None, "the same report was answered");
        world.exits(&[("b2", "b2", 75, text)]);
        world.next_poll(&node);
        assert_eq!(world.hold("a"), Some(reason), "the next one was not");
    }
    let mut world = with_checkpoints();
    world.supervised_run();
    world.exits(&[("b", "b", 0, "done ran=1")]);
    assert_eq!(world.fleet.slots["a"].job.stuck, Some(Stuck::EndedEarly));
    world.retry();
    world.exits(&[("b", "b", 0, "done ran=1")]);
    assert_eq!(world.fleet.slots["a"].job.stuck, None);
}

#[test]
fn s20_a_location_that_is_not_understood_holds_judged_deletes_and_creates() {
    // The node was created long before.
    let old = "2025-01-01T00:00:00Z".parse().unwrap();
    for (oldest, understood) in
        [(Some(old), false), (None, false), (Some("2026-06-01T11:00:00Z".parse().unwrap()), true)]
    {
        let mut world = with_checkpoints();
        world.sick(&["a"], timeout(), 0);
        world.listed(strange(oldest));
        assert_eq!(
            world.events.iter().any(|what| matches!(what, What::CheckpointTrouble)),
            !understood,
            "{oldest:?}"
        );
        let warnings = view::document(&world.fleet, world.now).tpus[0].warnings.clone();
        let told = warnings
            .iter()
            .any(|text| text.contains("no complete checkpoint is recognised under gs://b/c"));
        assert_eq!(told, !understood, "told while it is well: {warnings:?}");
        for _ in 0..25 {
            world.next_poll(&node("a", timeout()));
            world.listed(strange(oldest));
            world.get("a", Some(node("a", timeout())));
            if world.phase("a").is_some() {
                break;
            }
        }
        assert_eq!(world.phase("a").is_some(), understood, "{oldest:?} {:?}", world.hold("a"));
        assert_eq!(world.hold("a") == Some(HoldReason::CheckpointUnreadable), !understood);
    }
    let mut world = with_checkpoints();
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions), "what is lost is removed");
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    world.wait(1);
    world.listed(strange(Some(old)));
    assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::CheckpointUnreadable), 0));
    // The user says that there is nothing to resume from.
    let mut none = world.fleet.settings.clone();
    let job = none.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.checkpoint.as_mut().unwrap().format =
        Some(crate::model::settings::CheckpointFormat::Unlisted);
    world.input(Input::Configured(Box::new(none)));
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
}

#[test]
fn s20_a_judged_delete_needs_a_complete_listing_of_the_last_hour() {
    let refused = || {
        Err(Failure::new(FailureClass::Permission, "the watchdog may not list gs://b/c (HTTP 403)"))
    };
    let mut world = with_checkpoints();
    let judged = |world: &mut World| {
        for _ in 0..25 {
            world.next_poll(&node("a", timeout()));
            world.get("a", Some(node("a", timeout())));
        }
        (world.phase("a"), world.hold("a"))
    };
    world.poll(&[node("a", json!({}))]);
    world.listed(refused());
    assert!(
        world.events.iter().any(|what| matches!(what, What::CheckpointTrouble)),
        "told from the first poll on"
    );
    assert_eq!(judged(&mut world), (None, Some(HoldReason::CheckpointUnreadable)));
    // It can be read, but that was too long ago when the TPU is judged.
    let mut world = with_checkpoints();
    world.poll(&[node("a", json!({}))]);
    world.surveyed(&[100]);
    world.wait(3601);
    assert_eq!(judged(&mut world), (None, Some(HoldReason::CheckpointUnreadable)));
    // A display, and the next process, know of the listing by the journal.
    let shown = |world: &World| {
        let (settings, slots, ledger) =
            (&world.fleet.settings, world.fleet.slots.clone(), world.fleet.ledger.clone());
        view::at_rest(settings, slots, ledger, None, world.now).tpus[0].hold.clone()
    };
    assert_eq!(shown(&world).as_deref(), Some("checkpoint_unreadable"));
    world.surveyed(&[100]);
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
    assert_eq!(shown(&world), None);
}

#[test]
fn a_maintenance_that_is_ongoing_on_a_healthy_node_is_shown_and_judges_nothing() {
    let ongoing = json!({"upcomingMaintenance": {"maintenanceStatus": "ONGOING", "windowEndTime": "2026-06-01T12:01:00Z"}});
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], ongoing, 24 * 3600);
    let verdict = &world.fleet.slots["a"].verdict;
    assert_eq!(verdict.condition, Condition::Healthy);
    assert!(verdict.evidence.contains("upcomingMaintenance ONGOING"), "{}", verdict.evidence);
    // Where nothing is said of the health, within its window alone.
    let mut world = World::new(settings(&["a"]));
    let end = after(world.now, Duration::from_secs(1800)).to_string();
    let notice = json!({"maintenanceStatus": "ONGOING", "windowEndTime": end});
    let silent = json!({"health": null, "upcomingMaintenance": notice});
    world.sick(&["a"], silent.clone(), 60);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Maintenance);
    world.sick(&["a"], silent, 24 * 3600);
    assert_eq!(world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    assert!(world.phase("a").is_none());
}

#[test]
fn a_symptom_from_before_the_node_was_first_seen_judges_nothing() {
    for (at, condition) in [
        ("2026-06-01T11:59:59Z", Condition::Healthy),
        ("2026-06-01T12:00:01Z", Condition::Degraded),
    ] {
        let mut world = World::new(settings(&["a"]));
        world.sick(
            &["a"],
            json!({"symptoms": [{"symptomType": "EXECUTE_TIMED_OUT", "createTime": at}]}),
            60,
        );
        assert_eq!(world.fleet.slots["a"].verdict.condition, condition, "{at}");
    }
}

#[test]
fn l1_a_create_of_which_nothing_can_be_read_is_told() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    world.done("a", OperationState::Failed(Failure::new(FailureClass::Transient, "internal")));
    assert_eq!(world.phase("a"), Some(Phase::Creating), "its name is read back first");
    for _ in 0..112 {
        world.wait(30);
        let unread = Reading::Unread("GET failed".into());
        world.input(Input::Got { slot: "a".into(), began: world.now, reading: unread });
    }
    assert_eq!(world.hold("a"), Some(HoldReason::CreateUnresolved));
    world.retry();
    assert_eq!(world.phase("a"), Some(Phase::Creating), "L3: it is owed all the same");
    // It is followed on, and goes on when it can be read.
    world.wait(30);
    world.get("a", None);
    assert_eq!(world.hold("a"), Some(HoldReason::Backoff));
}

#[test]
fn a_404_of_guest_attributes_is_told_for_what_it_is_and_concludes_nothing() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let of = world.fleet.slots["a"].incarnation.clone().unwrap();
    let mut told = Vec::new();
    for _ in 0..60 {
        let result = Err(Failure::new(
            FailureClass::NotFound,
            "HTTP 404 NOT_FOUND: no such guest attributes",
        ));
        world.input(Input::Attributes {
            slot: "a".into(),
            of: of.clone(),
            began: world.now,
            result,
        });
        told.append(&mut world.messages);
        world.next_poll(&node);
        assert!(world.actions.is_empty());
    }
    let about: Vec<&String> =
        told.iter().filter(|message| message.contains("guest attributes: 404")).collect();
    assert_eq!(about.len(), 1, "{told:?}");
    assert!(about[0].contains("no worker of this node ever wrote one"), "{about:?}");
    assert_ne!(world.fleet.slots["a"].verdict.condition, Condition::NeverBooted);
}

#[test]
fn s18_a_create_whose_answer_was_not_waited_for_counts_for_as_long_as_it_may_be_on_its_way() {
    let mut world = World::new(settings(&["a"]));
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted)));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    assert_eq!(world.fleet.ledger.creates, [world.now]);
    world.wait(20);
    world.called(
        "a",
        CallOutcome::Unknown(Failure::new(FailureClass::Transient, "no answer within 20 s")),
    );
    assert_eq!(world.fleet.ledger.creates, [after(world.now, world.fleet.settings.poll.timeout)]);
}

#[test]
fn s2_a_read_from_before_a_create_failed_does_not_tell_what_it_left_behind() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let before = world.now;
    world.wait(1);
    world.done(
        "a",
        OperationState::Failed(Failure::new(FailureClass::PreemptedInCreation, "PREEMPTED")),
    );
    world.input(Input::Got { slot: "a".into(), began: before, reading: Reading::Absent });
    assert_eq!(world.phase("a"), Some(Phase::Creating));
    // The node is there, and dead: it is removed before anything is created in its place.
    world.wait(1);
    let dead = world.replacement("a", json!({"state": "PREEMPTED"}));
    for _ in 0..3 {
        world.get("a", Some(dead.clone()));
        world.wait(5);
        world.input(Input::Tick);
        if is_delete(&world.actions) {
            break;
        }
        world.poll(std::slice::from_ref(&dead));
    }
    assert_eq!(world.phase("a"), Some(Phase::Deleting), "{:?}", world.hold("a"));
}

#[test]
fn s23_steps_and_checkpoints_that_come_after_an_early_end_are_no_evidence() {
    for text in ["done ran=1 step=none", "done"] {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        world.exits(&[("b", "b", 0, text)]);
        world.reports(8, Some(150));
        world.wait(700);
        world.surveyed(&[100, 200]);
        world.exits(&[("b", "b", 0, text)]);
        world.next_poll(&node);
        assert_eq!(
            (world.fleet.slots["a"].job.finished.as_ref(), world.hold("a")),
            (None, Some(HoldReason::EndedEarly)),
            "{text}"
        );
    }
}

#[test]
fn s20_an_operator_may_begin_from_scratch_once_and_a_record_of_the_first_version_keeps_its_beginning()
 {
    let old = "2025-01-01T00:00:00Z".parse().unwrap();
    let lost = || {
        let mut world = with_checkpoints();
        world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
        world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
        world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        world.wait(1);
        world
    };
    let mut world = lost();
    world.listed(strange(Some(old)));
    let kind = CommandKind::Retry { slot: "a".into(), from: Some(0) };
    world.input(Input::Commands(vec![Command {
        id: "1".into(),
        at: world.now,
        who: "ada".into(),
        reason: None,
        kind,
    }]));
    world.wait(1);
    world.listed(strange(Some(old)));
    assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    assert_eq!(
        world.fleet.slots["a"].job.location_since,
        Some(old),
        "what lies there is accepted from now on"
    );
    // A record of the first version names no beginning: the node's own creation, not the present
    // create.
    let mut world = lost();
    world.fleet.slots.get_mut("a").unwrap().job.location = LOCATION.into();
    world.listed(Ok(CheckpointSurvey::default()));
    let began = world.fleet.slots["a"].job.location_since.unwrap();
    assert_eq!(began.to_string(), "2026-01-01T00:00:00Z");
}

#[test]
fn retry_says_when_the_job_starts() {
    for (exit, says) in [
        ((0, "done ran=700 step=none"), "the job was finished, and starts at the next recreate"),
        (
            (1, "final after 5 restarts"),
            "the job starts at the next boot of its hosts, or recreate",
        ),
        (
            (75, "stale_order ran=600: a run of this order lasted that long"),
            "the job's order is stale, so it starts at the next recreate",
        ),
    ] {
        let mut world = with_checkpoints();
        world.supervised_run();
        world.exits(&[("b", "b", exit.0, exit.1)]);
        world.retry();
        assert!(
            world.messages.iter().any(|message| message.ends_with(says)),
            "{:?}",
            world.messages
        );
    }
}

#[test]
fn an_operation_that_quotes_what_was_sent_tells_no_secret() {
    let mut world = World::new(settings(&["a"]));
    let mut overlaid = world.fleet.settings.clone();
    let secret = Some("hunter2-and-more".to_owned());
    overlaid.slots.get_mut("a").unwrap().create.metadata.insert("token".into(), secret);
    world.input(Input::Configured(Box::new(overlaid)));
    world.recreate_preempted();
    world.done(
        "a",
        OperationState::Failed(Failure::new(
            FailureClass::BadRequest,
            "bad metadata \"hunter2-and-more\"",
        )),
    );
    let kept = world.fleet.slots["a"].recovery.as_ref().unwrap().failed.clone().unwrap();
    let told = world.messages.clone();
    // Told when its name was read back: the node is not there.
    world.wait(30);
    world.get("a", None);
    let told = [told, world.messages.clone()].concat().join("\n");
    assert!(told.contains("[metadata value]") && !told.contains("hunter2"), "{told}");
    assert!(!kept.message.contains("hunter2"), "{kept}");
}
