//! S11 and S12: an intent comes before each call, a lost answer is read back, and what is made again is
//! known before.

use super::*;

#[test]
fn s11_the_intent_is_in_the_same_commit_as_the_call_and_a_lost_answer_is_read_back() {
    let mut world = World::new(settings(&["a"]));
    let evidence = |world: &World, verb: Verb| {
        world.events.iter().find_map(|event| match event {
            What::Intent { call, evidence, .. } if *call == verb => evidence.clone(),
            _ => None,
        })
    };
    world.sick(&["a"], json!({"state": "PREEMPTED"}), 0);
    world.wait(1);
    world.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    assert!(is_delete(&world.actions));
    assert!(
        world
            .records
            .iter()
            .any(|r| matches!(r, Record::Slot(r) if r.recovery.as_ref().is_some_and(|r| r.phase() == Phase::Deleting)))
    );
    let confirmed_at = world.now;
    assert_eq!(
        evidence(&world, Verb::Delete).map(|evidence| evidence.confirmed_at),
        Some(confirmed_at),
        "S18: the GET that confirmed it, not the first symptom"
    );
    world.wait(1);
    world.called("a", CallOutcome::Unknown(Failure::new(FailureClass::Transient, "reset")));
    assert!(world.actions.is_empty() && matches!(world.looks[..], [Look::Node { .. }]));
    world.wait(1);
    world.get("a", None);
    assert!(
        matches!(world.actions[..], [Action::Create { .. }]),
        "it was carried out: {:?}",
        world.actions
    );
    assert_eq!(
        evidence(&world, Verb::Create).map(|evidence| evidence.confirmed_at),
        Some(confirmed_at),
        "S18: the create rests on what condemned the node"
    );
}

#[test]
fn s11_what_is_read_back_is_told_as_the_result() {
    let mut world = World::new(settings(&["a"]));
    let preempted = json!({"state": "PREEMPTED"});
    let lost = || CallOutcome::Unknown(Failure::new(FailureClass::Transient, "reset"));
    let told = |world: &World, call: Verb, result: CallResult| {
        let is_it = |what: &What| matches!(what, What::Outcome { call: c, result: r, .. } if *c == call && *r == result);
        world.events.iter().any(is_it)
    };
    world.sick(&["a"], preempted.clone(), 60);
    world.get("a", Some(node("a", preempted.clone())));
    world.called("a", lost());
    world.wait(1);
    world.get("a", Some(node("a", preempted.clone())));
    assert!(told(&world, Verb::Delete, CallResult::Failed), "{:?}", world.events);
    world.wait(30);
    world.poll(&[node("a", preempted.clone())]);
    world.get("a", Some(node("a", preempted)));
    assert!(is_delete(&world.actions), "{:?}", world.hold("a"));
    world.called("a", lost());
    world.wait(1);
    world.get("a", None);
    assert!(told(&world, Verb::Delete, CallResult::Done), "{:?}", world.events);
    assert!(matches!(world.actions[..], [Action::Create { .. }]));
    world.called("a", lost());
    world.wait(1);
    world.get("a", None);
    assert!(told(&world, Verb::Create, CallResult::Failed), "{:?}", world.events);
    world.wait(60);
    world.input(Input::Tick);
    assert!(matches!(world.actions[..], [Action::Create { .. }]));
    world.called("a", lost());
    world.wait(1);
    let made = world.replacement("a", json!({"state": "CREATING"}));
    world.get("a", Some(made.clone()));
    assert!(told(&world, Verb::Create, CallResult::Accepted), "{:?}", world.events);
    world.wait(30);
    let ready = node(
        "a",
        json!({"id": "2", "createTime": made["createTime"], "metadata": made["metadata"]}),
    );
    world.poll(&[ready]);
    assert!(told(&world, Verb::Create, CallResult::Done), "{:?}", world.events);
}

#[test]
fn s11_a_node_that_is_ready_before_its_operation_was_looked_at_ends_its_create() {
    let mut world = World::new(settings(&["a"]));
    world.recreate_preempted();
    let made = world.replacement("a", json!({"state": "CREATING"}));
    let created = world.now;
    world.poll(std::slice::from_ref(&made));
    let told = |world: &World| {
        world
            .events
            .iter()
            .filter(|what| matches!(what, What::Outcome { call: Verb::Create, .. }))
            .count()
    };
    assert_eq!(told(&world), 0, "its operation tells");
    world.wait(30);
    world.poll(&[node(
        "a",
        json!({"id": "2", "createTime": created.to_string(), "metadata": made["metadata"]}),
    )]);
    assert_eq!(told(&world), 1, "{:?}", world.events);
}

#[test]
fn s12_without_a_valid_specification_nothing_is_deleted() {
    let mut world = World::new(settings(&["a"]));
    let bare = json!({"state": "PREEMPTED", "runtimeVersion": null});
    world.poll(&[node("a", bare.clone())]);
    world.wait(30);
    world.poll(&[node("a", bare.clone())]);
    assert!(world.actions.is_empty() && world.looks.is_empty());
    assert_eq!(world.hold("a"), Some(HoldReason::NoSpecification));
}
