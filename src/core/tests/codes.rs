//! Ends of runs by their class: what counts for nothing, what would come again with every start.

use jiff::SignedDuration;

use super::endings::CommandKind;
use super::relaunch::{accepted, patched};
use super::runs::with_checkpoints;
use super::*;
use crate::model::beacon::{Beacon, LastLines, Meaning, WorkerReport};
use crate::model::slot::Suspicion;
use crate::model::view::ActionName;

/// A worker's code, the text of its exit, and the class and blame of its last line.
type End = (i64, &'static str, Option<(&'static str, bool)>);

const WAITS: &str = "waits: for a newer order, or 600 s";
const NOTICED: &str = "waits: for a newer order, or 600 s; after a notice";

impl World {
    /// Two workers that run a generation, or have ended.
    fn ends(&mut self, generation: u64, ends: Option<[End; 2]>) {
        let of = self.fleet.slots["a"].incarnation.clone().unwrap();
        let beat = self.now.as_second() % 100_000;
        let beacon = |value: i64, text: &str| Beacon {
            boot_id: "b".into(),
            generation,
            attempt: 0,
            value,
            text: text.into(),
        };
        let report = |end: Option<End>| WorkerReport {
            boot: Some(beacon(1, "v2")),
            heartbeat: Some(beacon(beat, "running")),
            exit: end.map(|(code, text, _)| beacon(code, text)),
            lines: end.and_then(|(code, _, line)| {
                let (class, is_victim) = line?;
                let lines = vec![format!("the line of {class}")];
                let (class, advice) = (class.to_owned(), "Look.".to_owned());
                let meaning = Some(Meaning { class, is_victim, advice });
                Some(LastLines { of: beacon(code, "1"), lines, meaning })
            }),
            ..WorkerReport::default()
        };
        let workers = match ends {
            Some(ends) => ends.map(|end| report(Some(end))),
            None => [report(None), report(None)],
        };
        let result = Ok(workers.into());
        self.input(Input::Attributes { slot: "a".into(), of, began: self.now, result });
    }

    /// Runs generation after generation, each of which ends like this. Returns how many began, and why
    /// no other does.
    fn runs_that_end(&mut self, ends: impl Fn(u64) -> [End; 2]) -> (u64, String) {
        let mut node = self.supervised_run();
        node["networkEndpoints"] = json!([{}, {}]);
        // Nothing is passed over twice.
        self.fleet.slots.get_mut("a").unwrap().job.runs.set_aside = Some((110, self.now));
        for generation in 1..=30 {
            self.ends(generation, None);
            self.next_poll(&node);
            let order = (0..400).find_map(|_| {
                self.wait(5);
                self.ends(generation, Some(ends(generation)));
                if self.run_order().is_none() {
                    self.surveyed(&[100]);
                }
                if self.run_order().is_none() {
                    self.poll(std::slice::from_ref(&node));
                }
                self.run_order()
            });
            let Some(order) = order else {
                assert_eq!(self.hold("a"), Some(HoldReason::JobFailed), "{generation}");
                let decision = self.fleet.slots["a"].decision.as_ref();
                return (generation, decision.unwrap().reason.clone());
            };
            self.ordered(accepted());
            node = patched(&node, &order);
            self.next_poll(&node);
        }
        panic!("thirty runs")
    }
}

#[test]
fn the_same_code_three_times_without_a_new_step_is_the_programs_fault() {
    let fails = (1, WAITS, None);
    let (runs, why) = with_checkpoints().runs_that_end(|_| [fails, fails]);
    assert_eq!(runs, 3, "{why}");
    assert!(why.contains("code 1 3 times in a row without a new step"), "{why}");
    // Other codes between them, or codes that crashes have, are given all of restart.per_run.
    let other = |generation: u64| if generation == 2 { (2, WAITS, None) } else { fails };
    let (runs, why) = with_checkpoints().runs_that_end(|of| [other(of), other(of)]);
    assert_eq!(runs, 5, "{why}");
    let (runs, _) = with_checkpoints().runs_that_end(|_| [(139, WAITS, None), (139, WAITS, None)]);
    assert_eq!(runs, 5);
}

#[test]
fn the_code_is_that_of_the_worker_whose_lines_name_the_cause() {
    let victim = (1, WAITS, Some(("victim_of_sibling", true)));
    let crashes = (139, WAITS, None);
    let (runs, why) = with_checkpoints().runs_that_end(|_| [victim, crashes]);
    assert_eq!(runs, 5, "whose fault it is, is not known: {why}");
    let cause = (2, WAITS, Some(("setup", false)));
    let (runs, why) = with_checkpoints().runs_that_end(|_| [victim, cause]);
    assert_eq!(runs, 3, "{why}");
    assert!(why.contains("code 2 3 times in a row"), "{why}");
}

#[test]
fn a_program_that_does_not_fit_is_not_started_again_and_a_person_may() {
    let mut world = with_checkpoints();
    let full = (137, WAITS, Some(("oom_host", false)));
    let (runs, why) = world.runs_that_end(|_| [full, (1, WAITS, Some(("coordinator", true)))]);
    assert_eq!(runs, 1, "{why}");
    assert!(why.contains("the line of oom_host (oom_host: Look.); memory ran out; fix"), "{why}");
    world.wait(5);
    world.command(CommandKind::Relaunch { slot: "a".into() });
    world.ends(1, Some([full, full]));
    world.surveyed(&[100]);
    assert_eq!(world.run_order().map(|order| order.generation), Some(2));
}

#[test]
fn an_operator_may_recreate_a_tpu_whose_job_would_fail_again() {
    let mut world = with_checkpoints();
    let full = (137, WAITS, Some(("oom_host", false)));
    world.runs_that_end(|_| [full, full]);
    let incarnation = world.fleet.slots["a"].incarnation.clone();
    world.command(CommandKind::Recreate { slot: "a".into(), incarnation });
    let decision = world.fleet.slots["a"].decision.clone().unwrap();
    assert_eq!(
        (decision.action, decision.hold),
        (ActionName::Recreate, None),
        "{}",
        decision.reason
    );
}

#[test]
fn what_ends_with_its_machine_is_free_three_times_in_a_row() {
    let noticed = (143, NOTICED, None);
    let (runs, why) = with_checkpoints()
        .runs_that_end(|of| if of < 4 { [noticed, noticed] } else { [(1, WAITS, None); 2] });
    assert_eq!(runs, 6, "three that are free, three with the same code: {why}");
    let (runs, _) = with_checkpoints().runs_that_end(|_| [(7, NOTICED, None), (8, WAITS, None)]);
    // Of each four, three are free: five count.
    assert_eq!(runs, 19 + 1, "the bound holds");
}

#[test]
fn hosts_whose_run_would_end_the_same_way_wait_for_a_person() {
    let mut world = with_checkpoints();
    let mut node = world.supervised_run();
    node["networkEndpoints"] = json!([{}, {}]);
    let version = |world: &mut World| {
        let workers = world.fleet.slots.get_mut("a").unwrap().job.workers.values_mut();
        workers.for_each(|worker| worker.version = 3);
    };
    let full = (137, WAITS, Some(("oom_host", false)));
    world.ends(1, None);
    world.next_poll(&node);
    let order = (0..20).find_map(|_| {
        world.wait(30);
        world.ends(1, Some([full, full]));
        version(&mut world);
        world.poll(std::slice::from_ref(&node));
        world.run_order()
    });
    let order = order.expect("a flag");
    assert_eq!((order.generation, order.wait), (1, true), "they would start by themselves");
    assert_eq!(world.hold("a"), Some(HoldReason::JobFailed));
    world.ordered(accepted());
    let node = patched(&node, &order);
    world.wait(30);
    world.poll(std::slice::from_ref(&node));
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.ends(1, Some([full, full]));
    version(&mut world);
    world.surveyed(&[100]);
    let order = world.run_order().expect("a person starts it");
    assert_eq!((order.generation, order.wait), (2, false));
}

#[test]
fn the_sickness_of_the_node_before_excuses_no_end_of_this_one() {
    for (minutes, free) in [(-5, false), (1, true)] {
        let mut world = with_checkpoints();
        world.supervised_run();
        let record = world.fleet.slots.get_mut("a").unwrap();
        let since = record.ready_since.unwrap() + SignedDuration::from_mins(minutes);
        record.job.failing_since = Some(since + SignedDuration::from_mins(20));
        record.suspicion = Some(Suspicion {
            since,
            sick_for: Duration::ZERO,
            reads: 1,
            seen: [Condition::Unresponsive].into(),
            healthy_for: Duration::ZERO,
            healthy_since: None,
            healthy_reads: 0,
            last_read: since,
            unseen: false,
            relaunched: false,
        });
        assert_eq!(super::super::codes::is_free(record), free, "{minutes} min after READY");
    }
}

#[test]
fn a_host_that_gave_up_while_its_machine_was_sick_starts_the_job_again_when_that_is_over() {
    let ordered = |sick: bool| {
        let mut world = with_checkpoints();
        let node = world.supervised_run();
        let mut bad = node.clone();
        bad["health"] = json!("UNHEALTHY_MAINTENANCE");
        let during = if sick { &bad } else { &node };
        world.workers_say(&[(1, "v2", None)]);
        (0..3).for_each(|_| world.next_poll(during));
        let gave_up = Some((1, "final after 2 restarts: code 1 3 times in a row"));
        for shown in [during, during, &node, &node] {
            world.wait(1);
            world.surveyed(&[100]);
            let mut order = world.run_order();
            world.workers_say(&[(1, "v2", gave_up)]);
            order = order.or(world.run_order());
            world.next_poll(shown);
            if let Some(order) = order.or(world.run_order()) {
                return Some((order.generation, std::ptr::eq(shown, &node)));
            }
        }
        assert_eq!(world.hold("a"), Some(HoldReason::JobFailed));
        None
    };
    assert_eq!(ordered(true), Some((2, true)));
    assert_eq!(ordered(false), None);
}

#[test]
fn at_most_three_runs_in_a_row_that_gave_up_on_a_sick_machine_are_free() {
    let mut world = with_checkpoints();
    let node = world.supervised_run();
    let mut bad = node.clone();
    bad["health"] = json!("UNHEALTHY_MAINTENANCE");
    let (mut shown, mut generation, mut orders) = (node.clone(), 1, 0);
    for _ in 0..4 {
        world.workers_say(&[(generation, "v2", None)]);
        bad["metadata"] = shown["metadata"].clone();
        (0..3).for_each(|_| world.next_poll(&bad));
        let mut order = None;
        for healed in [false, true, true, true] {
            world.wait(1);
            world.surveyed(&[100]);
            order = order.or(world.run_order());
            world.workers_say(&[(generation, "v2", Some((1, "final after 2 restarts")))]);
            order = order.or(world.run_order());
            world.next_poll(if healed { &shown } else { &bad });
            order = order.or(world.run_order());
        }
        let Some(order) = order else { break };
        (generation, orders) = (order.generation, orders + 1);
        world.ordered(accepted());
        shown = patched(&shown, &order);
        world.next_poll(&shown);
    }
    let runs = &world.fleet.slots["a"].job.runs;
    assert_eq!((orders, world.hold("a")), (3, Some(HoldReason::JobFailed)), "{runs:?}");
    assert_eq!((runs.fruitless, runs.stuck), (0, 0), "they count for nothing");
}

#[test]
fn a_host_that_goes_down_in_a_run_says_nothing_of_its_program() {
    let down = (75, WAITS, None);
    let (runs, why) = with_checkpoints().runs_that_end(|_| [down, down]);
    assert_eq!(runs, 5, "it is counted, since the job may do it: {why}");
    assert!(!why.contains("times in a row without a new step"), "{why}");
}

#[test]
fn a_long_run_of_a_job_that_tells_no_steps_gives_the_restarts_back() {
    use super::super::{codes, runs};
    use crate::model::exit::Stuck;
    let mut world = with_checkpoints();
    world.supervised_run();
    let mut record = world.fleet.slots["a"].clone();
    let mut counted = |ran: u64, told: Option<u64>| {
        record.job.stuck = Some(Stuck::Waits);
        let exit = format!("b 1.1 1 waits: for a newer order, or 600 s; ran={ran}");
        record.job.exits.insert(0, exit);
        record.job.heard_from = Some(1);
        (record.job.runs.exits, record.job.runs.began, record.job.runs.code) =
            (4, true, Some((1, 2)));
        (record.job.runs.best_step, record.job.runs.best_listed) = (told, None);
        (runs::fruitless(&record, Condition::JobFailed), codes::counted(&record))
    };
    assert_eq!(counted(3_599, None), (5, Some((1, 3))));
    assert_eq!(counted(3_600, None), (1, Some((1, 1))));
    assert_eq!(counted(3_600, Some(7)), (5, Some((1, 3))), "a new step would have told");
}
