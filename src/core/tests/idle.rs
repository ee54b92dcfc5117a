//! Strays that live: what a called-off create made all the same runs no second job.

use super::relaunch::accepted;
use super::remains::changed;
use super::*;
use crate::model::ids::RunOrder;
use crate::model::relaunch::Patch;
use crate::resource::spec::SUPERVISOR_MARK;

impl World {
    /// `a` left the config while its create was running. Returns its node, as that create made it.
    fn late_create() -> (World, Value) {
        let (world, made) = World::stray(false);
        let mut made = changed(&made, json!({"state": "READY"}));
        made["metadata"]["startup-script"] = json!(SUPERVISOR_MARK);
        (world, made)
    }

    fn stray_order(&self) -> Option<RunOrder> {
        match &self.actions[..] {
            [Action::Patch { stray: true, patch: Patch::Order(order), .. }] => Some(order.clone()),
            [] => None,
            other => panic!("{other:?}"),
        }
    }
}

fn patched(node: &Value, order: &RunOrder) -> Value {
    super::relaunch::patched(node, order)
}

#[test]
fn s15_a_stray_that_comes_up_is_told_to_wait_once() {
    let (mut world, made) = World::late_create();
    world.shows(Some(&changed(&made, json!({"state": "CREATING"}))));
    let order = world.stray_order().expect("as soon as it is seen");
    assert!(order.wait && order.generation > 0);
    // Not while it is created, perhaps: its next state is another chance.
    let refused = Failure::new(FailureClass::Conflict, "the node is not READY");
    world.stray_called(CallOutcome::Refused(refused));
    assert!(world.messages.iter().any(|text| text.contains("its job may run there")));
    world.shows(Some(&changed(&made, json!({"state": "CREATING"}))));
    assert_eq!(world.stray_order(), None, "not at once");
    world.shows(Some(&made));
    assert_eq!(world.stray_order().as_ref(), Some(&order));
    world.stray_called(accepted());
    for _ in 0..20 {
        world.shows(Some(&patched(&made, &order)));
        assert_eq!(world.stray_order(), None, "L2");
    }
}

#[test]
fn s17_only_a_plain_living_stray_of_ours_is_told() {
    for change in [
        json!({"state": "PREEMPTED"}),
        json!({"state": "STOPPED"}),
        json!({"labels": {"tpu-watchdog": "off"}}),
        json!({"queuedResource": "projects/p/locations/z/queuedResources/q"}),
    ] {
        let (mut world, made) = World::late_create();
        for _ in 0..3 {
            world.shows(Some(&changed(&made, change.clone())));
            assert_eq!(world.stray_order(), None, "{change}");
        }
    }
    // Not ours, or without a supervisor that would start anything.
    for key in ["tpu-watchdog-owner", "startup-script"] {
        let (mut world, mut made) = World::late_create();
        made["metadata"][key] = json!("another one");
        world.shows(Some(&made));
        assert_eq!(world.stray_order(), None, "{key}");
    }
    let (mut world, made) = World::late_create();
    world.fleet.settings.dry_run = true;
    world.shows(Some(&made));
    assert_eq!(world.stray_order(), None, "dry run");
}

#[test]
fn a_slot_that_takes_the_node_up_takes_the_flag_back() {
    let (mut world, made) = World::late_create();
    world.shows(Some(&made));
    let order = world.stray_order().unwrap();
    world.stray_called(accepted());
    let waiting = patched(&made, &order);
    world.shows(Some(&waiting));
    let mut config = settings(&["a", "b"]);
    let slot = config.slots.get_mut("a").unwrap();
    slot.supervisor = Some(SUPERVISOR_MARK.to_owned());
    slot.job = Some(JobSettings { command: Some("train".into()), ..JobSettings::default() });
    world.input(Input::Configured(Box::new(config)));
    let goes_on = (0..4).find_map(|_| {
        world.shows(Some(&waiting));
        let answers = |record: &crate::model::slot::SlotRecord| record.incarnation.is_some();
        if answers(&world.fleet.slots["a"]) && world.actions.is_empty() {
            world.workers_say(&[(order.generation, "v3 wait", None)]);
        }
        world.run_order()
    });
    assert_eq!(
        goes_on.map(|order| (order.generation, order.wait)),
        Some((order.generation, false))
    );
}

#[test]
fn a_forgotten_slots_late_node_waits_and_nothing_takes_that_back_until_retry() {
    let mut world = super::runs::with_checkpoints();
    let node = world.supervised_run();
    world.workers_say(&[(1, "v3", None)]);
    world.command(super::endings::CommandKind::Forget { slot: "a".into(), purge: false });
    world.wait(30);
    world.poll(std::slice::from_ref(&node));
    let order = world.stray_order().expect("it is a stray by now");
    world.stray_called(accepted());
    let waiting = patched(&node, &order);
    for _ in 0..40 {
        world.wait(30);
        world.poll(std::slice::from_ref(&waiting));
        assert!(world.actions.is_empty(), "L2: {:?}", world.actions);
    }
    world.command(super::endings::CommandKind::Retry { slot: "a".into(), from: None });
    assert!(world.run_order().is_some_and(|order| !order.wait), "{:?}", world.actions);
}

#[test]
fn the_answer_to_a_delete_is_none_to_the_order_before_it() {
    let (mut world, made) = World::stray(true);
    let mut ready = changed(&made, json!({"state": "READY"}));
    ready["metadata"]["startup-script"] = json!(SUPERVISOR_MARK);
    world.shows(Some(&ready));
    let order = world.stray_order().expect("told");
    // Its answer never comes: the process ended. Hours later the node is dead.
    let dead = changed(&patched(&ready, &order), json!({"state": "PREEMPTED"}));
    world.shows(Some(&dead));
    world.stray_got(dead);
    assert!(matches!(world.actions[..], [Action::Delete { stray: true, .. }]));
    world.stray_called(accepted());
    let stray = world.fleet.ledger.strays.values().next().unwrap();
    let call = stray.removal.as_ref().unwrap().call.clone();
    assert!(matches!(call, Some(crate::model::step::Call::Accepted { .. })), "{call:?}");
}

#[test]
fn the_checker_refuses_orders_to_strays_that_no_plan_may_send() {
    type Change<'a> = &'a dyn Fn(&mut Fleet, &mut NodeView, &mut RunOrder);
    let verdict = |change: Change| {
        let (mut world, made) = World::late_create();
        world.shows(Some(&made));
        let mut view = NodeView::parse(made).unwrap();
        let mut order = RunOrder { wait: true, ..view.run.clone().unwrap() };
        change(&mut world.fleet, &mut view, &mut order);
        let stray = world.fleet.ledger.strays.values().next().unwrap();
        let verdict = super::super::check::idling(&world.fleet, stray, &view, &order);
        verdict.map_err(|violation| violation.name())
    };
    assert_eq!(verdict(&|_, _, _| ()), Ok(()), "the plan as it should be");
    assert_eq!(verdict(&|fleet, _, _| fleet.settings.dry_run = true), Err("S7"));
    assert_eq!(verdict(&|_, view, _| view.opted_out = true), Err("S7"));
    assert_eq!(verdict(&|_, _, order| order.wait = false), Err("S15"));
    assert_eq!(verdict(&|_, _, order| order.generation += 1), Err("S15"));
    assert_eq!(verdict(&|_, view, _| view.owner = None), Err("S17"));
    assert_eq!(verdict(&|_, view, _| view.supervised = false), Err("S17"));
    assert_eq!(verdict(&|_, view, _| view.multislice = true), Err("S17"));
    let owned = |fleet: &mut Fleet| {
        let record = crate::model::slot::SlotRecord::new("a", ZONE, Timestamp::UNIX_EPOCH);
        fleet.slots.insert("a".into(), record);
    };
    assert_eq!(verdict(&|fleet, _, _| owned(fleet)), Err("S17"), "a slot owns it");
}
