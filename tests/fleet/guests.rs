//! The simulated guests follow the supervisor's table of phases, and each phase leads the watchdog to
//! what it does about the real ones.

use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::hold::HoldReason;
use tpu_watchdog::model::job_phase::JobPhase;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::world::{World, minutes};

const ZONE: &str = "us-central2-b";

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "60s"
[[tpu]]
name = "a"
zone = "us-central2-b"
[tpu.create]
accelerator_type = "v4-8"
runtime_version = "tpu-ubuntu2204-base"
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
"#;

const TIMES: &str = "times = { create = \"4m\", delete = \"30s\", boot = \"40s\", beat = \"60s\", refusal = \"1m\" }";

/// A job that runs and has saved.
fn running() -> World {
    let mut world = World::training(CONFIG, TIMES);
    world.start("one");
    world.run_for(minutes(30));
    assert_eq!(world.phase(), (JobPhase::Running, Some(JobPhase::Running)));
    assert!(world.fleet().slots["a"].recovery.is_none(), "{}", world.state("a"));
    world
}

impl World {
    /// Where the job stands in truth, and for the watchdog.
    fn phase(&self) -> (JobPhase, Option<JobPhase>) {
        let node = &self.cloud.nodes[&(ZONE.to_owned(), "a".to_owned())];
        (node.run.phase(), self.fleet().slots["a"].job_phase().map(|(phase, ..)| phase))
    }

    fn seen(&self) -> (Condition, Option<HoldReason>) {
        let record = &self.fleet().slots["a"];
        (record.verdict.condition, record.decision.as_ref().and_then(|decision| decision.hold))
    }
}

#[test]
fn a_trouble_of_the_hosts_is_seen_by_its_phase_and_is_over_when_it_is_over() {
    for (what, phase, condition, hold) in [
        (Trouble::SetupFails, JobPhase::Setup, Condition::SetupFailed, HoldReason::SetupFailed),
        (Trouble::ChipsBusy, JobPhase::Chips, Condition::ChipsBusy, HoldReason::ChipsBusy),
    ] {
        let mut world = running();
        let sent = world.sent.len();
        world.trouble(ZONE, "a", what, Some(minutes(90)));
        world.run_for(minutes(80));
        assert_eq!(world.phase(), (phase, Some(phase)), "{}", world.state("a"));
        assert_eq!(world.seen(), (condition, Some(hold)), "{}", world.state("a"));
        world.run_for(minutes(20));
        assert_eq!(world.phase(), (JobPhase::Running, Some(JobPhase::Running)));
        assert_eq!(world.seen(), (Condition::Healthy, None), "{}", world.state("a"));
        assert_eq!(world.sent.len(), sent, "nothing is done about it");
    }
}

#[test]
fn a_job_that_hangs_goes_on_by_a_newer_order_and_its_tpu_is_kept() {
    let place = (ZONE.to_owned(), "a".to_owned());
    let mut world = running();
    let (sent, step) = (world.sent.len(), world.cloud.nodes[&place].run.step);
    world.trouble(ZONE, "a", Trouble::JobHangs, None);
    world.run_for(minutes(58));
    assert_eq!(world.sent.len(), sent, "{}", world.state("a"));
    world.run_for(minutes(90));
    let run = &world.cloud.nodes[&place].run;
    assert!(run.order.generation == 2 && run.step > step, "{run:?}");
    assert_eq!(world.sent.len() - sent, 1, "one order, and nothing else: {}", world.state("a"));
    assert_eq!(world.seen(), (Condition::Healthy, None), "{}", world.state("a"));
}

#[test]
fn an_end_of_the_job_is_seen_by_its_phase() {
    for (what, phase, condition) in [
        (Trouble::JobEnds, JobPhase::Done, Condition::Finished),
        (Trouble::JobFails, JobPhase::Failed, Condition::JobFailed),
    ] {
        let mut world = running();
        world.trouble(ZONE, "a", what, None);
        world.run_for(minutes(5));
        assert_eq!(world.phase().0, phase);
        assert_eq!(world.seen().0, condition, "{}", world.state("a"));
    }
    // A crash after a long run: the next order starts it again, which takes until its first step.
    let mut world = running();
    world.trouble(ZONE, "a", Trouble::JobCrashes, None);
    assert_eq!(world.phase().0, JobPhase::Exited);
    let mut phases = Vec::new();
    for _ in 0..minutes(5) / 1000 {
        world.run_for(1000);
        let phase = world.phase().0;
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
    }
    assert_eq!(phases, [JobPhase::Exited, JobPhase::Compile, JobPhase::Running]);
}
