//! A storm of everything at once: troubles, failing and lost calls, SIGKILL. Then it ends, and
//! every slot must be back, no TPU at work deleted, and no plan refused by the safety check.

use std::time::{Duration, Instant};

use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::things::Node;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{POLICY, Rig, ZONE, job, slot};

const SLOTS: usize = 12;
const STORM: Duration = Duration::from_secs(30);

/// SplitMix64: the same seed gives the same storm, as far as real processes can repeat one.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }
}

#[test]
fn after_a_storm_every_slot_is_back_and_no_tpu_at_work_was_deleted() {
    let run =
        "job = { checkpoint = \"gs://bucket/{node}\", step = \"100ms\", every = 5, at_step = 10 }";
    let nodes = format!("[[nodes]]\nprefix = \"n\"\ncount = {SLOTS}\nzone = \"{ZONE}\"\n{run}\n");
    let slots: String =
        (0..SLOTS).map(|i| slot(&format!("n{i}"), &job(&format!("n{i}")))).collect();
    let policy =
        format!("max_unavailable = \"50%\"\nmax_judged_recreates_per_hour = 1000\n{POLICY}")
            .replace("storm = { min = 4 }", "storm = { min = 1000 }")
            .replace("attempts = {", "attempts = { max = 1000, preemptions = 1000,")
            // Between two kills there is seldom time for more than a second or two of continuous
            // evidence.
            .replace("startup = \"1s\"", "startup = \"5s\"");
    let mut rig = Rig::new(&nodes, &policy, &slots);
    rig.start();
    rig.wait_polls(2);
    let mut faults = Dice(7);
    rig.simulator.set_hook(Some(Box::new(move |logged| match faults.roll(24) {
        0 => Some(Fault::AnswerBefore(Reply::new(503, ""))),
        1 => Some(Fault::AnswerAfter(Reply::new(500, ""))),
        2 => Some(Fault::AnswerBefore(Reply::new(200, "<html>"))),
        3 => Some(Fault::Before(Box::new(|| ()))),
        4 => Some(Fault::After(Box::new(|| ()))),
        5 if logged.path.contains("/operations/") => Some(Fault::AnswerBefore(Reply::new(404, ""))),
        _ => None,
    })));
    let (mut dice, began) = (Dice(11), Instant::now());
    let mut next_kill = Duration::from_secs(2);
    while began.elapsed() < STORM {
        let name = format!("n{}", dice.roll(SLOTS as u64));
        let ms = 100 + dice.roll(500);
        match dice.roll(9) {
            0 => rig.trouble(&name, Trouble::Preempt, None),
            1 => rig.trouble(&name, Trouble::Terminate, None),
            2 => rig.trouble(&name, Trouble::Vanish, None),
            3 => rig.trouble(&name, Trouble::FailedRepair, None),
            4 => rig.trouble(&name, Trouble::Unresponsive, None),
            5 => rig.trouble(&name, Trouble::Maintenance, Some(ms)),
            6 => rig.trouble(&name, Trouble::Silence, None),
            7 => rig.trouble(&name, Trouble::NeverBoot, None),
            _ => rig.trouble("", Trouble::StockOut, Some(ms)),
        };
        if began.elapsed() >= next_kill {
            next_kill += Duration::from_millis(1500 + dice.roll(2500));
            rig.kill();
            rig.start();
        }
        // The pace of the storm, not a wait for a condition.
        std::thread::sleep(Duration::from_millis(200 + dice.roll(300)));
    }
    rig.simulator.set_hook(None);
    rig.simulator.with(|cloud| cloud.dead_on_arrival.clear());
    // A job that makes progress outranks the health of its node: one that says TIMEOUT and trains
    // on is rightly left alone.
    let trains = |n: &Node| n.health.as_deref() == Some("TIMEOUT") && !n.run.stopped;
    let settled = |rig: &Rig| {
        let status = rig.status();
        let rests = |s: &serde_json::Value| {
            let name = s["name"].as_str().unwrap();
            s["condition"] == "healthy"
                || (s["condition"] == "unresponsive" && rig.node(name).is_some_and(|n| trains(&n)))
        };
        status["tpus"].as_array().unwrap().iter().all(|s| rests(s) && s["phase"].is_null())
    };
    let well = |cloud: &mut Cloud| {
        cloud.nodes.len() == SLOTS
            && cloud.nodes.values().all(|n| {
                // What fell silent on a TPU that is still the user's own is the user's own affair.
                n.state == "READY"
                    && (n.health.as_deref() == Some("HEALTHY") || trains(n))
                    && !(n.run.stopped && n.run.supervised)
            })
    };
    rig.wait_long_until("every node is healthy again", Duration::from_secs(300), || {
        // Replacements that the storm killed may keep judged ones waiting for half an hour, or for
        // a person who has looked (S14).
        if rig.status()["tpus"].as_array().unwrap().iter().any(|s| s["hold"] == "replacements_fail")
        {
            let reset = rig
                .command(&["breaker", "reset", "--reason", "the storm is over"])
                .output()
                .unwrap();
            assert!(reset.status.success(), "{reset:?}");
        }
        rig.simulator.with(well)
    });
    rig.wait_long_until("every recovery is over", Duration::from_secs(300), || settled(&rig));
    // Maintenance ends by itself here, also between the GET that verifies it and the delete.
    assert_eq!(rig.simulator.with(|cloud| cloud.harmed_unseen), 0, "{}", rig.mutations_text());
    let logs = rig.logs();
    for words in ["invariant_violation", "the safety check refused", "can't go from", "panicked"] {
        assert!(!logs.contains(words), "{words} in\n{logs}");
    }
}
