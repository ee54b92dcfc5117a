//! How often the core is turned, and how often an outage is told.

use super::*;

#[test]
fn an_error_that_differs_by_its_times_alone_is_told_once() {
    let mut machine = Machine::new(Mode::Serve);
    let said = |machine: &Machine| {
        machine.out.iter().filter(|i| matches!(i, Instruction::Say(Level::Error, _))).count()
    };
    for (message, lines) in [
        ("GET failed in 12.3ms: 503", 1),
        ("GET failed in 1.9s: 503", 1),
        ("GET failed in 2ms: forbidden", 2),
    ] {
        assert!(matches!(machine.call(), Some(StoreCall::Load)));
        let error = StoreError { message: message.into(), ..error(StoreFailure::Unavailable) };
        machine.on(Message::Loaded(Err(error)));
        assert_eq!(said(&machine), lines, "{message}");
        machine.wait(seconds(1));
    }
}

#[test]
fn the_core_is_turned_every_minute_although_the_lock_is_renewed_more_often() {
    let mut machine = Machine::leading(Mode::Serve);
    machine.settle_store();
    machine.polled();
    machine.settle_store();
    let turned = machine.driver.turned;
    for _ in 0..70 {
        machine.wait(seconds(1));
        machine.settle_store();
    }
    assert!(machine.driver.turned > turned + seconds(50), "{:?}", machine.driver.turned);
}

#[test]
fn a_look_polls_once_and_writes_nothing() {
    let mut machine = Machine::leading(Mode::Look { deadline: seconds(160) });
    assert_eq!(machine.polls(), 1);
    machine.wait(seconds(40));
    assert_eq!(machine.polls(), 1);
    machine.polled();
    assert!(matches!(machine.ended(), Some(End::Done)));
    assert!(machine.call().is_none());
}
