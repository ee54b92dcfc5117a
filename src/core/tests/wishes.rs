//! Zones that refuse for different reasons, deletions while a recovery is open, and differences of a
//! replacement.

use super::owed::preempted;
use super::*;
use crate::model::command::{Command, CommandKind};
use crate::model::lookup::NextCreate;
use crate::model::spec::NodeSpec;
use crate::model::step::At;
use crate::model::traits::BudgetOf;

const EAST: &str = "us-east5-a";

fn two_zones() -> World {
    let mut two = settings(&["a"]);
    two.slots.get_mut("a").unwrap().zones.push(EAST.into());
    let mut world = World::new(two);
    world.sick(&["a"], preempted(), 0);
    world.get("a", Some(node("a", preempted())));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    world
}

/// For so long each create is refused at once, in each zone for its reason, and leaves nothing
/// behind. Returns how many were sent, and the zones in their order.
fn creates_within(world: &mut World, seconds: u64, classes: [FailureClass; 2]) -> Vec<String> {
    let (end, mut sent) = (after(world.now, Duration::from_secs(seconds)), Vec::new());
    while world.now < end {
        if let [Action::Create { zone, .. }] = &world.actions[..] {
            let class = classes[usize::from(zone == EAST)];
            sent.push(zone.clone());
            world.called("a", CallOutcome::Refused(Failure::new(class, "no")));
            world.wait(1);
            if world.asks("a") {
                world.get("a", None);
            }
            continue;
        }
        world.wait(10);
        world.input(Input::Tick);
    }
    sent
}

#[test]
fn l6_zones_that_refuse_for_different_reasons_are_tried_with_waits_between_the_rounds() {
    use FailureClass::*;
    for classes in [
        [Quota, StockOut],
        [StockOut, Quota],
        [Permission, StockOut],
        [BadRequest, ClosedQueue],
        [StockOut, StockOut],
    ] {
        let mut world = two_zones();
        let sent = creates_within(&mut world, 3600, classes);
        let both = [ZONE, EAST].iter().all(|zone| sent.iter().any(|tried| tried == zone));
        assert!(both && (4..=90).contains(&sent.len()), "{classes:?}: {}", sent.len());
    }
}

#[test]
fn a_person_deletes_a_replacement_whose_recovery_is_not_over() {
    for phase in [Phase::Ready, Phase::Booted, Phase::Launched] {
        let mut world = super::runs::with_checkpoints();
        let made = world.supervised_run();
        world.fleet.slots.get_mut("a").unwrap().recovery.as_mut().unwrap().at = At::of(phase);
        world.next_poll(&made);
        let at = world.now;
        world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
        world.missing();
        world.surveyed(&[100]);
        assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Deleted), 0));
        // With when_missing = "hold" it needs no evidence.
        let mut world = super::runs::with_checkpoints();
        let made = world.supervised_run();
        world.fleet.slots.get_mut("a").unwrap().recovery.as_mut().unwrap().at = At::of(phase);
        let policy = &mut world.fleet.settings.slots.get_mut("a").unwrap().policy;
        policy.when_missing = crate::model::settings::WhenMissing::Hold;
        world.next_poll(&made);
        world.missing();
        world.surveyed(&[100]);
        assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Missing), 0));
        // Without a delete by another client it is created again.
        let mut world = super::runs::with_checkpoints();
        let made = world.supervised_run();
        world.fleet.slots.get_mut("a").unwrap().recovery.as_mut().unwrap().at = At::of(phase);
        world.next_poll(&made);
        world.missing();
        world.surveyed(&[100]);
        assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    }
}

#[test]
fn our_own_delete_whose_answer_was_lost_is_no_other_hands() {
    let mut world = World::new(settings(&["a", "b", "c"]));
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    assert!(is_delete(&world.actions));
    let lost = Failure::new(FailureClass::Transient, "connection reset");
    world.called("a", CallOutcome::Unknown(lost));
    world.wait(1);
    world.get("a", Some(node("a", timeout())));
    assert_eq!(world.phase("a"), Some(Phase::Condemned));
    world.wait(30);
    world.poll(&[node("a", json!({"state": "DELETING"})), node("b", json!({}))]);
    assert_eq!(world.fleet.slots["a"].deleted, None);
    // A wish of before is over when another node fills the slot.
    let mut world = World::new(settings(&["a"]));
    world.fleet.slots.get_mut("a").unwrap().deleted = Some("by hand".into());
    world.recreate_preempted();
    let ready = world.replacement("a", json!({}));
    world.get("a", Some(ready));
    assert_eq!(world.fleet.slots["a"].deleted, None);
}

#[test]
fn a_create_that_is_never_sent_is_shown_as_a_hold() {
    let mut world = World::new(settings(&["a"]));
    world.sick(&["a"], preempted(), 0);
    world.get("a", Some(node("a", preempted())));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    let (mut held, mut tries) = (0, 0);
    for _ in 0..60 {
        if matches!(world.actions[..], [Action::Create { .. }]) {
            tries += 1;
            let late = Failure::new(FailureClass::Transient, "no token");
            world.called("a", CallOutcome::NotSent(late));
        }
        let is_held = world.hold("a") == Some(HoldReason::NotSent);
        assert_eq!(is_held, tries >= 3, "{tries} tries: {:?}", world.hold("a"));
        held += usize::from(is_held);
        world.wait(10);
        world.input(Input::Tick);
    }
    assert!(tries >= 4 && held >= 30, "it stands while it is tried: {tries}, {held}");
}

#[test]
fn a_replacement_that_is_not_what_was_asked_for_is_told() {
    let told = |change: Value| {
        let mut world = World::new(settings(&["a"]));
        world.poll(&[node("a", json!({"tags": ["train"], "labels": {"team": "x"}}))]);
        let lost = json!({"state": "PREEMPTED", "tags": ["train"], "labels": {"team": "x"}});
        world.wait(30);
        world.poll(&[node("a", lost.clone())]);
        world.get("a", Some(node("a", lost)));
        world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
        world.called("a", CallOutcome::Accepted(OPERATION.into()));
        world.wait(5);
        let mut ready = world.replacement("a", json!({"tags": ["train"]}));
        for (key, value) in change.as_object().unwrap() {
            ready[key] = value.clone();
        }
        world.get("a", Some(ready));
        assert_eq!(world.phase("a"), None, "{:?}", world.hold("a"));
        world.messages.iter().find(|text| text.contains("asked for")).cloned()
    };
    assert_eq!(told(json!({"labels": {"team": "x"}})), None);
    let text = told(json!({})).expect("it lacks a label");
    assert!(text.contains("labels") && !text.contains("tags"), "{text}");
    let text = told(json!({"labels": {"team": "x"}, "tags": []})).expect("it lacks a tag");
    assert!(text.contains("tags"), "{text}");
}

#[test]
fn project_abuse_calls_an_operator_and_memory_symptoms_inform() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    world.wait(30);
    let symptom = |kind: &str, at: Timestamp| json!({"symptoms": [{"symptomType": kind, "createTime": at.to_string()}]});
    world.poll(&[node("a", symptom("HBM_OUT_OF_MEMORY", world.now))]);
    let shown = view::document(&world.fleet, world.now).tpus.remove(0);
    assert_eq!(shown.condition, Condition::Healthy);
    assert!(shown.warnings.iter().any(|w| w.contains("HBM_OUT_OF_MEMORY")), "{:?}", shown.warnings);
    world.wait(30);
    world.poll(&[node("a", symptom("PROJECT_ABUSE", world.now))]);
    assert_eq!(world.hold("a"), Some(HoldReason::Degraded));
    assert!(world.actions.is_empty());
    // It stays, whatever progress the job makes.
    world.fleet.slots.get_mut("a").unwrap().job.progress_at =
        Some(after(world.now, Duration::from_secs(60)));
    world.wait(90);
    let earlier = world.fleet.slots["a"].first_seen.unwrap();
    world.poll(&[node("a", symptom("PROJECT_ABUSE", after(earlier, Duration::from_secs(30))))]);
    assert_eq!(world.hold("a"), Some(HoldReason::Degraded));
}

#[test]
fn s3_a_wish_of_another_day_ends_nothing_that_runs_by_now() {
    for (hours, counts) in [(0, true), (72, false)] {
        let mut world = World::new(settings(&["a", "b", "c", "d"]));
        let nodes = ["a", "b", "c", "d"].map(|name| node(name, json!({})));
        world.poll(&nodes);
        let incarnation = world.fleet.slots["a"].incarnation.clone();
        // It is said while no process runs, and read by the next one.
        let at = world.now;
        let kind = CommandKind::Recreate { slot: "a".into(), incarnation };
        world.wait(hours * 3600);
        world.poll(&nodes);
        let (id, who, reason) = ("1".into(), "ada".into(), None);
        world.input(Input::Commands(vec![Command { id, at, who, reason, kind }]));
        if world.asks("a") {
            world.get("a", Some(nodes[0].clone()));
        }
        assert_eq!(is_delete(&world.actions), counts, "{hours} h");
        assert_eq!(world.fleet.slots["a"].wanted.is_some(), counts, "dropped");
    }
}

#[test]
fn an_operators_recreate_skips_quiet_hours_max_unavailable_and_the_breaker_and_nothing_else() {
    let wanted = |change: &dyn Fn(&mut World)| {
        let mut world = World::new(settings(&["a", "b", "c", "d"]));
        let nodes = ["a", "b", "c", "d"].map(|name| node(name, json!({})));
        world.poll(&nodes);
        change(&mut world);
        let incarnation = world.fleet.slots["a"].incarnation.clone();
        world.order(CommandKind::Recreate { slot: "a".into(), incarnation });
        if world.asks("a") {
            world.get("a", Some(nodes[0].clone()));
        }
        (world.hold("a"), is_delete(&world.actions))
    };
    use crate::model::fleet::Breaker;
    use crate::model::quiet::QuietHours;
    use crate::model::slot::Attempt;
    assert_eq!(wanted(&|_| ()), (None, true));
    let quiet = |world: &mut World| {
        let hours = QuietHours::new("0 0 11 * * *", Duration::from_secs(7200)).unwrap();
        world.fleet.settings.slots.get_mut("a").unwrap().policy.quiet_hours.push(hours);
    };
    assert_eq!(wanted(&quiet), (None, true));
    let breaker = |world: &mut World| {
        world.fleet.ledger.breaker =
            Some(Breaker { opened_at: world.now, why: "half".into(), of: BudgetOf::Tpus });
    };
    assert_eq!(wanted(&breaker), (None, true));
    let full = |world: &mut World| {
        world.sick(&["b"], timeout(), 600);
        world.get("b", Some(node("b", timeout())));
        assert!(is_delete(&world.actions));
    };
    assert_eq!(wanted(&full), (None, true));
    let short = |world: &mut World| world.is_short();
    assert_eq!(wanted(&short), (Some(HoldReason::ZoneShort), false));
    let impossible = |world: &mut World| world.create_check.certain = Some("actAs".into());
    assert_eq!(wanted(&impossible), (Some(HoldReason::CannotCreate), false));
    let used = |world: &mut World| {
        let attempt = Attempt { at: world.now, kind: crate::model::condition::Kind::Judged };
        let record = world.fleet.slots.get_mut("a").unwrap();
        record.attempts.extend(std::iter::repeat_n(attempt, 20));
    };
    assert_eq!(wanted(&used), (Some(HoldReason::Attempts), false));
}

#[test]
fn s20_whether_a_create_could_follow_is_asked_again_while_a_tpu_is_sick() {
    let sick = [node("a", timeout()), node("b", json!({})), node("c", json!({}))];
    let polls = |world: &mut World, minutes: u64| {
        for _ in 0..minutes * 2 {
            world.wait(30);
            world.poll(&sick);
            if world.asks("a") {
                world.get("a", Some(sick[0].clone()));
            }
            if is_delete(&world.actions) {
                return true;
            }
        }
        false
    };
    // A right is granted: asked again within five minutes.
    let mut world = World::new(settings(&["a", "b", "c"]));
    world.create_check.certain = Some("actAs".into());
    assert!(!polls(&mut world, 20));
    assert_eq!(world.hold("a"), Some(HoldReason::CannotCreate));
    world.create_check.certain = None;
    assert!(polls(&mut world, 6), "{:?}", world.hold("a"));
    // The config asks for another type, or another zone: asked again with the next poll.
    let changes: [fn(&mut SlotSettings); 2] = [
        |slot| drop(slot.create.fields.insert("acceleratorType".into(), json!("v4-99"))),
        |slot| slot.zones = vec![EAST.into()],
    ];
    for change in changes {
        let mut world = World::new(settings(&["a", "b", "c"]));
        assert!(!polls(&mut world, 8));
        world.create_check.certain = Some("not offered".into());
        let mut changed = world.fleet.settings.clone();
        change(changed.slots.get_mut("a").unwrap());
        world.input(Input::Configured(Box::new(changed)));
        assert!(!polls(&mut world, 10));
        assert_eq!(world.hold("a"), Some(HoldReason::CannotCreate));
    }
    // A right is taken away while the TPU is still given time: asked again within the hour.
    let mut world = World::new(settings(&["a", "b", "c"]));
    let grace = &mut world.fleet.settings.slots.get_mut("a").unwrap().policy.grace;
    grace.unresponsive = Duration::from_secs(3600);
    assert!(!polls(&mut world, 2));
    world.create_check.certain = Some("actAs".into());
    assert!(!polls(&mut world, 90));
    assert_eq!(world.hold("a"), Some(HoldReason::CannotCreate));
}

/// A slot whose TPU reads like this when an operator asks for a new one.
fn asked_while(change: Value) -> World {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", change)]);
    let incarnation = world.fleet.slots["a"].incarnation.clone();
    world.order(CommandKind::Recreate { slot: "a".into(), incarnation });
    world
}

#[test]
fn s5_a_recreate_that_could_not_act_ends_no_tpu_that_is_healthy_by_then() {
    // Started by hand after it had been stopped, or sick when it was asked for.
    for change in [json!({"state": "STOPPED"}), timeout()] {
        let mut world = asked_while(change);
        assert!(world.fleet.slots["a"].wanted.is_some());
        world.wait(120);
        world.poll(&[node("a", json!({}))]);
        let told = world.messages.join("\n");
        assert!(told.contains("is healthy now, so it is dropped"), "{told}");
        world.get("a", Some(node("a", json!({}))));
        assert!(world.fleet.slots["a"].wanted.is_none() && world.actions.is_empty());
    }
}

#[test]
fn a_recreate_that_is_held_is_shown_and_dropped_after_an_hour() {
    let mut world = World::new(settings(&["a"]));
    world.poll(&[node("a", json!({}))]);
    let incarnation = world.fleet.slots["a"].incarnation.clone();
    world.order(CommandKind::Pause { slot: Some("a".into()), until: None });
    world.order(CommandKind::Recreate { slot: "a".into(), incarnation });
    let shown = |world: &World| view::document(&world.fleet, world.now).tpus[0].warnings.join("\n");
    assert!(shown(&world).contains("asked for a new TPU (recreate) at"), "{}", shown(&world));
    world.wait(3_590);
    world.poll(&[node("a", json!({}))]);
    assert!(world.fleet.slots["a"].wanted.is_some());
    world.wait(10);
    world.poll(&[node("a", json!({}))]);
    assert!(world.fleet.slots["a"].wanted.is_none() && !shown(&world).contains("recreate"));
    world.order(CommandKind::Resume { slot: Some("a".into()), adopt: false });
    world.poll(&[node("a", json!({}))]);
    world.get("a", Some(node("a", json!({}))));
    assert!(world.actions.is_empty(), "{:?}", world.actions);
    // One that is carried out is no wish.
    let incarnation = world.fleet.slots["a"].incarnation.clone();
    world.order(CommandKind::Recreate { slot: "a".into(), incarnation });
    assert!(shown(&world).contains("asked for a new TPU"));
    world.get("a", Some(node("a", json!({}))));
    assert!(matches!(world.actions[..], [Action::Delete { .. }]), "{:?}", world.actions);
    assert!(!shown(&world).contains("asked for a new TPU"), "{}", shown(&world));
}

#[test]
fn a_recreate_creates_what_when_missing_keeps_gone() {
    // A TPU that was there, and one that never was.
    for known in [true, false] {
        let mut world = World::new(settings(&["a"]));
        let slot = world.fleet.settings.slots.get_mut("a").unwrap();
        slot.policy.when_missing = crate::model::settings::WhenMissing::Hold;
        if known {
            world.poll(&[node("a", json!({}))]);
        } else {
            for (key, value) in [("acceleratorType", "v4-8"), ("runtimeVersion", "tpu-vm-base")] {
                slot.create.fields.insert(key.into(), json!(value));
            }
        }
        world.missing();
        assert_eq!((world.hold("a"), world.actions.len()), (Some(HoldReason::Missing), 0));
        let incarnation = world.fleet.slots["a"].incarnation.clone();
        world.order(CommandKind::Recreate { slot: "a".into(), incarnation });
        if world.actions.is_empty() {
            world.missing();
        }
        assert!(matches!(world.actions[..], [Action::Create { .. }]), "{:?}", world.hold("a"));
    }
}

#[test]
fn a_recreate_lasts_no_longer_when_the_clock_goes_back() {
    let mut world = asked_while(json!({"state": "STOPPED"}));
    world.now = world.now.checked_sub(jiff::SignedDuration::from_hours(48)).unwrap();
    world.poll(&[node("a", json!({"state": "STOPPED"}))]);
    world.wait(3_600);
    world.poll(&[node("a", json!({"state": "STOPPED"}))]);
    assert!(world.fleet.slots["a"].wanted.is_none());
}

#[test]
fn s20_only_what_the_config_changed_is_not_shown_by_the_tpu_that_is_there() {
    let mut slot = settings(&["a"]).slots["a"].clone();
    let learned = NodeSpec::learn(&node("a", json!({}))).unwrap();
    let new = |slot: &SlotSettings| NextCreate::of(Some(&learned), slot, &ZONE.to_owned()).new;
    assert!(new(&slot).is_empty());
    // The same value again is no change.
    slot.create.fields.insert("acceleratorType".into(), learned.body()["acceleratorType"].clone());
    assert!(new(&slot).is_empty());
    slot.create.fields.insert("acceleratorType".into(), json!("v4-99"));
    assert_eq!(new(&slot), ["acceleratorType"]);
    let email = json!({"email": "other@p.iam.gserviceaccount.com"});
    slot.create.fields = [("serviceAccount".to_owned(), email)].into();
    assert_eq!(new(&slot), ["serviceAccount"]);
    // Another zone may lack the type and the version; the account is the project's.
    slot.create.fields.clear();
    slot.zones = vec![EAST.into()];
    let moved = NextCreate::of(Some(&learned), &slot, &ZONE.to_owned());
    assert_eq!((moved.zone.as_str(), &moved.new[..]), (EAST, &NextCreate::ASKED[..2]));
}

#[test]
fn l7_a_retry_that_is_read_late_starts_the_job_that_had_ended_all_the_same() {
    // It forgives the end: a job that stands still would look healthy for ever.
    let mut world = super::runs::with_checkpoints();
    world.at_work("v3");
    world.workers_say(&[(1, "v3", Some((139, "stale_order ran=734")))]);
    let kind = CommandKind::Retry { slot: "a".into(), from: None };
    let at = world.now - jiff::SignedDuration::from_hours(5);
    let command = Command { id: "1".into(), at, who: "ada".into(), reason: None, kind };
    world.input(Input::Commands(vec![command]));
    let job = &world.fleet.slots["a"].job;
    assert!(job.relaunch_by.is_some() || job.relaunch.is_some(), "{:?}", world.messages);
}
