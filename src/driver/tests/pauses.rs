//! Pauses and dry runs that come while no process leads, or while an intent is being written.

use super::*;
use crate::model::command::Pause;
use crate::model::event::{Event, What};
use crate::model::spec::NodeSpec;
use crate::model::step::At;

#[test]
fn s7_a_create_whose_slot_is_paused_or_left_to_a_dry_run_while_its_intent_is_written_is_not_sent() {
    let pause = || Some(Pause { who: "ada".into(), reason: None, until: None, since: None });
    for case in ["slot", "all", "dry run"] {
        let mut machine = Machine::leading(Mode::Serve);
        machine.settle_store();
        machine.decides_a_create();
        let fleet = &mut machine.driver.fleet;
        match case {
            "slot" => fleet.slots.get_mut("a").unwrap().paused = pause(),
            "all" => fleet.ledger.paused = pause(),
            _ => fleet.settings.dry_run = true,
        }
        machine.settle_store();
        assert_eq!(machine.sends(), 0, "{case}");
    }
}

/// A slot whose create is owed, and a pause that was given while no process led.
fn owed_and_paused() -> (Settings, Stored, Command) {
    let text = "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n";
    let config = crate::config::parse(std::path::Path::new("w.toml"), text, &|_| None).unwrap();
    let long_ago = jiff::Timestamp::UNIX_EPOCH;
    let mut recovery = Recovery::condemned(Condition::Missing, Kind::Lost, long_ago, long_ago);
    recovery.at = At::of(Phase::Gone);
    let mut record = SlotRecord::new("a", "us-central2-b", long_ago);
    record.recovery = Some(recovery);
    let body = serde_json::json!({
        "acceleratorType": "v4-8", "runtimeVersion": "tpu-vm-v4-base"
    });
    record.spec = body.as_object().cloned().map(NodeSpec::new);
    let slots = [("a".to_owned(), record)].into();
    let stored = Stored { owner: "o".into(), slots, ..Stored::default() };
    let kind = CommandKind::Pause { slot: Some("a".into()), until: None };
    let pause = Command { id: "1".into(), at: long_ago, who: "ada".into(), reason: None, kind };
    (config.settings, stored, pause)
}

#[test]
fn s7_a_pause_that_was_given_between_two_terms_holds_the_first_decision() {
    for (commanded, creates) in [(false, 1), (true, 0)] {
        let (settings, stored, pause) = owed_and_paused();
        let mut machine = Machine::new(Mode::Serve);
        machine.on(Message::Reload(Box::new(settings)));
        assert!(matches!(machine.call(), Some(StoreCall::Load)));
        machine.on(Message::Loaded(Ok(Box::new(stored))));
        assert!(matches!(machine.call(), Some(StoreCall::Commands)));
        machine.on(Message::Commands(Ok(if commanded { vec![pause] } else { Vec::new() })));
        assert!(matches!(machine.call(), Some(StoreCall::Take { .. })));
        machine.on(Message::Taken(Ok(true)));
        while let Some(call) = machine.call() {
            let StoreCall::Commit(batch) = call else {
                machine.on(Message::Commands(Ok(Vec::new())));
                continue;
            };
            let intends = |event: &Event| matches!(event.what, What::Intent { .. });
            let intended = batch.events.iter().any(intends);
            assert!(!(commanded && intended), "{:?}", batch.events);
            machine.on(Message::Written(Ok(())));
        }
        assert_eq!(machine.sends(), creates);
    }
}

#[test]
fn s7_no_process_leads_whose_operator_commands_could_not_be_read() {
    let mut machine = Machine::new(Mode::Serve);
    machine.loads(None);
    assert!(matches!(machine.call(), Some(StoreCall::Commands)));
    machine.on(Message::Commands(Err(error(StoreFailure::Unavailable))));
    assert!(machine.call().is_none(), "the lock is not taken: a pause of all may wait there");
    machine.wait(seconds(1));
    machine.takes();
}
