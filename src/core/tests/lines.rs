//! The last lines of runs that failed: each told once, the cause among them, and nothing of a run that
//! was never ordered.

use super::runs::with_checkpoints;
use super::*;
use crate::model::action::Look;
use crate::model::beacon::{Beacon, LastLines, Meaning, WorkerReport};
use crate::model::command::CommandKind;

impl World {
    /// Each worker reports that its run of `generation` failed, with this last line.
    fn lines(&mut self, generation: u64, run: &str, last: &[&str]) {
        let of = self.fleet.slots["a"].incarnation.clone().unwrap();
        let beacon = |value: i64, text: &str| Beacon {
            boot_id: "b".into(),
            generation,
            attempt: 0,
            value,
            text: text.into(),
        };
        let report = |last: &&str| WorkerReport {
            boot: Some(beacon(1, "v2")),
            heartbeat: Some(beacon(7, "running")),
            exit: Some(beacon(1, "final after 5 restarts")),
            lines: Some(LastLines {
                of: beacon(1, run),
                lines: vec!["before".into(), (*last).to_owned()],
                meaning: (*last == VICTIM).then(|| Meaning {
                    class: "victim_of_sibling".into(),
                    is_victim: true,
                    advice: "Another task died.".into(),
                }),
            }),
            ..WorkerReport::default()
        };
        let result = Ok(last.iter().map(report).collect());
        self.input(Input::Attributes { slot: "a".into(), of, began: self.now, result });
    }

    fn told_lines(&self) -> Vec<(usize, Vec<String>)> {
        let told = |what: &What| match what {
            What::LastLines { worker, lines, .. } => Some((*worker, lines.clone())),
            _ => None,
        };
        self.events.iter().filter_map(told).collect()
    }
}

const VICTIM: &str = "Task 3 heartbeat timeout. This indicates that the";

#[test]
fn the_last_lines_of_a_failed_run_are_told_once_and_name_the_cause() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    world.lines(1, "1", &[VICTIM, "ValueError: shapes", VICTIM]);
    let told = world.told_lines();
    assert_eq!(told.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(told[1].1, ["before", "ValueError: shapes"]);
    let failed = world.messages.iter().find(|message| message.contains("is not started again"));
    assert!(failed.unwrap().ends_with("; last line of worker 1: ValueError: shapes"), "{failed:?}");
    world.lines(1, "1", &[VICTIM, "ValueError: shapes", VICTIM]);
    assert!(world.told_lines().is_empty(), "once");
    world.next_poll(&node);
    let evidence = world.fleet.slots["a"].verdict.evidence.clone();
    assert!(evidence.ends_with("worker 1: ValueError: shapes"), "{evidence}");
    // A next run that ends alike adds nothing, one that ends otherwise does.
    world.lines(1, "2", &[VICTIM, "ValueError: shapes", VICTIM]);
    assert!(world.told_lines().is_empty());
    world.lines(1, "3", &[VICTIM, "KeyError: 'x'", VICTIM]);
    assert_eq!(world.told_lines().len(), 1);
}

#[test]
fn of_many_workers_eight_are_told_and_of_a_run_that_was_not_ordered_none() {
    let mut world = with_checkpoints();
    world.supervised_run();
    let lines: Vec<String> = ('a'..'m').map(|c| format!("{c} went wrong")).collect();
    let last: Vec<&str> = lines.iter().map(String::as_str).collect();
    world.lines(9, "1", &last);
    assert!(world.told_lines().is_empty(), "any process of the guest may write that");
    world.lines(1, "1", &last);
    assert_eq!(world.told_lines().len(), 8);
    assert_eq!(world.fleet.slots["a"].job.lines.last.len(), 8);
}

#[test]
fn the_last_lines_are_read_before_a_tpu_is_replaced_on_request_and_waited_for_20_s_at_most() {
    let asked = || {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        world.surveyed(&[100]);
        world.reports(7, None);
        world.wait(30);
        world.poll(std::slice::from_ref(&node));
        world.reports(7, None);
        world.wait(1);
        let incarnation = world.fleet.slots["a"].incarnation.clone();
        world.order(CommandKind::Recreate { slot: "a".into(), incarnation });
        let reads = |look: &Look| matches!(look, Look::Attributes { .. });
        assert!(world.looks.iter().any(reads) && !world.asks("a"), "{:?}", world.looks);
        (world, node)
    };
    // Their lines are told, then it is deleted.
    let (mut world, node) = asked();
    world.wait(2);
    world.lines(1, "1", &["ValueError: shapes"]);
    assert_eq!(world.told_lines().len(), 1);
    assert!(world.asks("a"));
    world.get("a", Some(node));
    assert!(is_delete(&world.actions));
    // They can't be read, or don't answer.
    let (mut world, node) = asked();
    let of = world.fleet.slots["a"].incarnation.clone().unwrap();
    let result = Err(Failure::new(FailureClass::Permission, "forbidden"));
    world.input(Input::Attributes { slot: "a".into(), of, began: world.now, result });
    assert!(world.asks("a"));
    world.get("a", Some(node));
    assert!(is_delete(&world.actions));
    let (mut world, node) = asked();
    world.wait(21);
    world.input(Input::Tick);
    assert!(world.asks("a"));
    world.get("a", Some(node));
    assert!(is_delete(&world.actions));
}
