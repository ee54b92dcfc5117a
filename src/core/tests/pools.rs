//! S6, S8 and S14: whose turn it is while capacity is scarce or replacements fail, and a second
//! judgement in a small fleet.

use super::*;
use crate::core::pool;
use crate::model::condition::Kind;
use crate::model::job::WorkerState;
use crate::model::slot::SlotRecord;
use crate::model::step::At;
use crate::model::time::elapsed;

const HOUR: u64 = 3600;

/// The GETs that are asked for show the same nodes as the polls. Returns the slot that is deleted,
/// and after how many minutes.
fn until_a_delete(
    world: &mut World,
    nodes: &[Value],
    seconds: u64,
    mut before: impl FnMut(&mut World),
) -> Option<(String, u64)> {
    let name = |node: &Value| node["name"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let began = world.now;
    while elapsed(began, world.now).as_secs() < seconds {
        world.wait(30);
        before(world);
        world.poll(nodes);
        for shown in nodes {
            if !is_delete(&world.actions) && world.asks(&name(shown)) {
                world.get(&name(shown), Some(shown.clone()));
            }
        }
        if let [Action::Delete { slot, .. }] = &world.actions[..] {
            return Some((slot.clone(), elapsed(began, world.now).as_secs() / 60));
        }
    }
    None
}

/// Its worker's heartbeats change.
fn beats(world: &mut World, slot: &str) {
    let worker = WorkerState { beat_at: Some(world.now), ..WorkerState::default() };
    world.fleet.slots.get_mut(slot).unwrap().job.workers.insert(0, worker);
}

#[test]
fn s14_a_tpu_without_any_sign_of_life_is_tried_first_and_refusals_do_not_move_the_clock() {
    let mut three = settings(&["a", "b", "c"]);
    (three.max_unavailable, three.storm.min) = (Share::Count(3), 9);
    let mut world = World::new(three);
    world.poll(&["a", "b", "c"].map(|name| node(name, json!({}))));
    world.is_short();
    let sick = ["a", "b", "c"].map(|name| node(name, timeout()));
    // Creates of another slot are refused all the time: the trial comes two hours after the first.
    let refused = |world: &mut World| {
        let pool = format!("{ZONE} v4-8");
        pool::refused(&mut world.fleet.ledger, &pool, Duration::from_secs(120), world.now);
        ["a", "b"].iter().for_each(|slot| beats(world, slot));
    };
    let (first, minutes) = until_a_delete(&mut world, &sick, 3 * HOUR, refused).unwrap();
    assert_eq!((first.as_str(), minutes), ("c", 120), "{:?}", world.hold("c"));
    assert_eq!(world.hold("a"), Some(HoldReason::ZoneShort));
    // The next two hours after it, whatever is refused meanwhile; c has nothing left to lose.
    world.called("c", CallOutcome::Accepted(OPERATION.into()));
    let next = until_a_delete(&mut world, &sick[..2], 3 * HOUR, refused).unwrap();
    assert!(next.0 != "c" && next.1 == 120, "{next:?}");
}

#[test]
fn s14_reserved_capacity_is_tried_after_half_an_hour_and_its_pool_is_the_reservation() {
    let scheduling = json!({"reserved": true, "reservationName": "r"});
    let reserved = |health: &str| {
        let change = json!({"schedulingConfig": scheduling.clone(), "health": health});
        [node("a", change.clone()), node("b", change)]
    };
    let mut world = World::new(settings(&["a", "b"]));
    world.poll(&reserved("HEALTHY"));
    let name = |zone: &str| pool::name(&world.fleet.slots["a"], &Overlay::default(), zone);
    let pool = "reservation r v4-8";
    assert_eq!((name(ZONE).as_str(), name("us-east5-a").as_str()), (pool, pool));
    let full =
        json!({"reserved": true, "reservationName": "projects/p/locations/z/reservations/s"});
    let chosen =
        Overlay { fields: [("schedulingConfig".to_owned(), full)].into(), ..Overlay::default() };
    let chosen = pool::name(&world.fleet.slots["a"], &chosen, ZONE);
    assert_eq!(chosen, "reservation s v4-8", "one that the config names");
    pool::refused(&mut world.fleet.ledger, pool, Duration::from_secs(120), world.now);
    let deleted = until_a_delete(&mut world, &reserved("TIMEOUT"), HOUR, |_| ());
    assert!(matches!(deleted, Some((_, 30))), "{deleted:?}");
}

#[test]
fn l6_a_slot_that_asks_for_other_capacity_than_it_had_does_not_wait_in_that_ones_pool() {
    let spot = json!({"schedulingConfig": {"preemptible": true}});
    let mut world = World::new(settings(&["a", "b", "c"]));
    let newer = json!({"schedulingConfig": {"spot": true}});
    world.poll(&[node("a", spot), node("b", json!({})), node("c", newer)]);
    let overlay = |scheduling: Value, around: Value| {
        let fields = [("schedulingConfig", scheduling), ("queuedResource", around)];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
        Overlay {
            fields: fields.map(|(key, value)| (key.to_owned(), value)).collect(),
            ..Overlay::default()
        }
    };
    let name = |slot: &str, overlay: &Overlay| {
        pool::name(&world.fleet.slots[slot], overlay, ZONE).replace(&format!("{ZONE} v4-8"), "")
    };
    let never = pool::name(
        &SlotRecord::new("c", ZONE, world.now),
        &overlay(json!({"spot": true}), Value::Null),
        ZONE,
    );
    assert!(never.ends_with(" spot"), "never seen: {never}");
    let clears = json!({"spot": null, "preemptible": null, "reserved": null});
    let flex = json!({"provisioningModel": "FLEX_START"});
    for (slot, of, is) in [
        ("a", Overlay::default(), " spot"),
        ("a", overlay(json!({"spot": null, "preemptible": null}), Value::Null), ""),
        ("a", overlay(json!({"preemptible": null}), Value::Null), ""),
        ("a", overlay(json!({"spot": null}), Value::Null), " spot"),
        ("c", overlay(json!({"spot": null}), Value::Null), ""),
        (
            "a",
            overlay(json!({"spot": null, "preemptible": null, "reserved": true}), Value::Null),
            " reserved",
        ),
        ("a", overlay(clears, flex), " flex-start"),
        ("b", Overlay::default(), ""),
        ("b", overlay(json!({"spot": true}), Value::Null), " spot"),
    ] {
        assert_eq!(name(slot, &of), is, "{slot} {of:?}");
    }
}

#[test]
fn s14_replacements_that_booted_and_made_no_progress_count_after_setup_and_compile() {
    let held_after = |minutes: u64| {
        let mut four = settings(&["a", "b", "c", "d"]);
        (four.max_unavailable, four.storm.min) = (Share::Count(4), 9);
        let mut world = World::new(four);
        world.sick(&["a", "b"], timeout(), 600);
        for name in ["a", "b"] {
            world.get(name, Some(node(name, timeout())));
            world.called(name, CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
            world.called(name, CallOutcome::Accepted(OPERATION.into()));
        }
        world.wait(5);
        let made = ["a", "b"].map(|name| world.replacement(name, timeout()));
        for name in ["a", "b"] {
            world.get(name, Some(made[usize::from(name == "b")].clone()));
            let record = world.fleet.slots.get_mut(name).unwrap();
            record.recovery.as_mut().unwrap().at = At::of(Phase::Launched);
            let ready = world.now.checked_sub(jiff::SignedDuration::from_mins(minutes as i64));
            record.ready_since = Some(ready.unwrap());
        }
        let sick = [made[0].clone(), made[1].clone(), node("c", json!({})), node("d", json!({}))];
        for _ in 0..20 {
            world.wait(30);
            world.poll(&sick);
        }
        (world.hold("a"), world.hold("b"))
    };
    let graces = Policy::default().grace;
    let enough = (graces.setup + graces.compile).as_secs() / 60;
    let fail = Some(HoldReason::ReplacementsFail);
    assert_eq!(held_after(enough), (fail, fail));
    assert_ne!(held_after(enough - 30).0, fail, "it may still set itself up");
}

#[test]
fn s6_a_replacement_gives_its_place_back_when_it_has_booted() {
    let mut world = super::runs::with_checkpoints();
    let mut wider = world.fleet.settings.clone();
    wider.slots.extend(settings(&["b"]).slots);
    world.input(Input::Configured(Box::new(wider)));
    let made = world.supervised_run();
    let recovery = world.fleet.slots.get_mut("a").unwrap().recovery.as_mut().unwrap();
    (recovery.kind, recovery.at) = (Kind::Judged, At::of(Phase::Ready));
    let nodes = [made.clone(), node("b", timeout())];
    world.poll(&[made.clone(), node("b", json!({}))]);
    let held = until_a_delete(&mut world, &nodes, 900, |world| world.surveyed(&[100]));
    assert_eq!((held, world.hold("b")), (None, Some(HoldReason::MaxUnavailable)));
    assert_eq!(world.phase("a"), Some(Phase::Ready));
    let goes = until_a_delete(&mut world, &nodes, 300, |world| {
        world.surveyed(&[100]);
        world.workers_say(&[(1, "v2", None)]);
    });
    assert!(goes.is_some_and(|(slot, _)| slot == "b"), "{:?}", world.hold("b"));
    assert!(world.fleet.slots["a"].recovery.is_some(), "booted, and not at work yet");
}

/// A fleet of these slots, of which `a` was recreated on a judgement and is READY again. Returns
/// how it is held when its grace is over once more, and after how many minutes it is deleted.
fn judged_twice(names: &[&str], later: u64, progress: bool) -> (Option<HoldReason>, Option<u64>) {
    let mut world = World::new(settings(names));
    world.sick(&["a"], timeout(), 600);
    world.get("a", Some(node("a", timeout())));
    assert!(is_delete(&world.actions), "the first waits for nothing: {:?}", world.hold("a"));
    world.called("a", CallOutcome::Refused(Failure::new(FailureClass::NotFound, "gone")));
    world.called("a", CallOutcome::Accepted(OPERATION.into()));
    world.wait(5);
    let made = world.replacement("a", json!({}));
    world.get("a", Some(made.clone()));
    assert_eq!(world.phase("a"), None);
    world.wait(later);
    if progress {
        world.fleet.slots.get_mut("a").unwrap().job.progress_at = Some(world.now);
    }
    let mut sick = made.clone();
    sick["health"] = json!("TIMEOUT");
    let others = names.iter().filter(|name| **name != "a").map(|name| node(name, json!({})));
    let well: Vec<Value> = [made].into_iter().chain(others.clone()).collect();
    let nodes: Vec<Value> = [sick].into_iter().chain(others).collect();
    world.wait(30);
    world.poll(&well);
    let soon = until_a_delete(&mut world, &nodes, 690, |_| ());
    let hold = world.hold("a");
    let deleted = soon.or_else(|| {
        let (slot, minutes) = until_a_delete(&mut world, &nodes, 3 * HOUR, |_| ())?;
        Some((slot, minutes + 11))
    });
    (hold, deleted.map(|(_, minutes)| minutes))
}

#[test]
fn s8_in_a_fleet_of_one_or_two_a_second_judgement_without_progress_waits_an_hour() {
    for names in [&["a"][..], &["a", "b"]] {
        let (hold, minutes) = judged_twice(names, 60, false);
        assert_eq!(hold, Some(HoldReason::Repeated), "{names:?}");
        assert!(minutes.is_some_and(|minutes| (70..=72).contains(&minutes)), "{minutes:?}");
    }
    let at_once = |names: &[&str], later, progress| {
        let (hold, minutes) = judged_twice(names, later, progress);
        assert_ne!(hold, Some(HoldReason::Repeated));
        assert!(minutes.is_some_and(|minutes| minutes <= 12), "{names:?} {minutes:?} {hold:?}");
    };
    at_once(&["a"], 60, true);
    at_once(&["a"], 24 * HOUR, false);
    at_once(&["a", "b", "c"], 60, false);
}

#[test]
fn s11_a_delete_that_is_sent_again_without_an_answer_carries_its_request_id() {
    let mut alpha = settings(&["a", "b"]);
    alpha.alpha = true;
    let mut world = World::new(alpha);
    let preempted = json!({"state": "PREEMPTED"});
    world.sick(&["a"], preempted.clone(), 0);
    world.get("a", Some(node("a", preempted.clone())));
    let id = |world: &World| match &world.actions[..] {
        [Action::Delete { request_id: Some(id), .. }] => id.clone(),
        other => panic!("{other:?}: {:?}", world.hold("a")),
    };
    let first = id(&world);
    let lost = Failure::new(FailureClass::Transient, "connection reset");
    world.called("a", CallOutcome::Unknown(lost));
    world.wait(1);
    world.get("a", Some(node("a", preempted.clone())));
    assert!(world.actions.is_empty(), "it may still arrive: {:?}", world.actions);
    let nodes = [node("a", preempted), node("b", json!({}))];
    assert!(until_a_delete(&mut world, &nodes, HOUR, |_| ()).is_some(), "{:?}", world.hold("a"));
    assert_eq!(id(&world), first);
}
