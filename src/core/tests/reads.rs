//! Reads that need a call a slot: how often they are asked for.

use super::runs::with_checkpoints;
use super::*;
use crate::model::action::Look;
use crate::model::time::elapsed;

#[test]
fn reports_are_asked_for_in_each_poll_as_far_as_five_calls_a_second_reach() {
    let names: Vec<String> = (0..400).map(|n| format!("s{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let turns = |world: &World| super::super::reads::attribute_turns(&world.fleet, world.now);
    // 150 in a poll of 30 s.
    assert_eq!(turns(&World::new(settings(&names[..150]))), 1);
    assert_eq!(turns(&World::new(settings(&names[..151]))), 2);
    let mut world = World::new(settings(&names));
    world.poll(&[]);
    assert_eq!(turns(&world), 3);
    // Refused for its rate, half as many for ten minutes; any other failure changes nothing.
    let refused = |world: &mut World, class| {
        let of = crate::model::ids::Incarnation { id: "1".into(), created: Timestamp::UNIX_EPOCH };
        let result = Err(Failure::new(class, "no"));
        world.input(Input::Attributes { slot: "s000".into(), of, began: world.now, result });
    };
    refused(&mut world, FailureClass::Transient);
    assert_eq!(turns(&world), 3);
    refused(&mut world, FailureClass::Rate);
    assert_eq!(turns(&world), 6);
    world.wait(600);
    assert_eq!(turns(&world), 3);
}

#[test]
fn a_slot_that_is_well_is_asked_for_its_reports_in_each_poll() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.reports(7, None);
    for beat in 8..20 {
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
        let asked = world.looks.iter().filter(|l| matches!(l, Look::Attributes { .. })).count();
        assert_eq!(asked, 1);
        world.reports(beat, None);
    }
}

#[test]
fn after_the_first_word_of_an_end_the_reports_are_read_again_within_five_seconds() {
    let mut world = with_checkpoints();
    world.supervised_run();
    let asked = |world: &World| {
        let at = |look: &Look| match look {
            Look::Attributes { at, .. } => Some(elapsed(world.now, *at).as_secs()),
            _ => None,
        };
        world.looks.iter().find_map(at)
    };
    world.exited(1, "restarting 1 of 5 in 10 s");
    assert_eq!(asked(&world), None, "it goes on by itself");
    world.exited(1, "final after 5 restarts");
    assert_eq!(asked(&world), Some(5));
    world.exited(1, "final after 5 restarts");
    assert_eq!(asked(&world), None, "once");
}
