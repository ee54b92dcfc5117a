//! The commands of an operator beside a service at work, and the history that they leave.

use std::process::Output;
use std::time::Duration;

use tpu_watchdog::simulator::trouble::{Event, Trouble};

use crate::harness::{POLICY, Rig, ZONE, job, slot};

fn text(output: &Output) -> (i32, String, String) {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), of(&output.stdout), of(&output.stderr))
}

#[test]
fn a_person_pauses_resumes_and_resets_beside_the_service() {
    let nodes =
        format!("[[nodes]]\nprefix = \"n\"\ncount = 5\nzone = \"{}\"\n", crate::harness::ZONE);
    let slots: String = (0..5).map(|i| slot(&format!("n{i}"), "")).collect();
    for state in ["sqlite:state.db", "gs://state/commands"] {
        let policy = format!("max_unavailable = \"100%\"\n{POLICY}");
        let mut rig = Rig::new(&nodes, &policy, &slots);
        let config = std::fs::read_to_string(rig.config()).unwrap();
        std::fs::write(rig.config(), config.replace("sqlite:state.db", state)).unwrap();
        let run = |rig: &Rig, arguments: &[&str]| text(&rig.command(arguments).output().unwrap());
        let (code, _, log) = run(&rig, &["pause", "n0"]);
        assert!(code == 1 && log.contains("there is no state yet"), "{log}");
        rig.start();
        rig.wait_for_log("n4");
        let (code, out, log) = run(&rig, &["pause", "n0", "--for", "1h", "--reason", "debugging"]);
        assert!(
            code == 0
                && out.contains("n0 is paused until ")
                && out.contains("carries it out with its next poll"),
            "{out}{log}"
        );
        let (code, _, log) = run(&rig, &["retry", "zz"]);
        assert!(code == 2 && log.contains("there is no slot \"zz\""), "{log}");
        rig.wait_for_log(": debugging");
        let old = rig.node("n0").unwrap().uid;
        rig.trouble("n0", Trouble::Preempt, None);
        rig.wait_for_log("paused it: debugging");
        assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
        assert_eq!(run(&rig, &["resume", "n0"]).0, 0);
        rig.wait_recovered("n0", old);
        // A storm: more than half of them look sick, and none is touched until a person says so.
        let before = rig.mutations().len();
        let uid = rig.node("n1").unwrap().uid;
        rig.simulator.with(|cloud| {
            for i in 1..5 {
                let event = |node: String| Event {
                    at: Duration::ZERO,
                    node,
                    zone: ZONE.into(),
                    what: Trouble::Unresponsive,
                    lasts: None,
                };
                cloud.trouble(event(format!("n{i}")));
            }
        });
        rig.wait_for_log("the storm breaker opened");
        rig.wait_polls(6);
        assert_eq!(rig.mutations().len(), before, "{}", rig.mutations_text());
        let (code, out, _) = run(&rig, &["breaker"]);
        assert!(code == 3 && out.contains("4 of 5 TPUs"), "{out}");
        assert_eq!(rig.status()["breaker"], "open");
        assert_eq!(run(&rig, &["breaker", "reset", "--reason", "they are really dead"]).0, 0);
        rig.wait_recovered("n1", uid);
        assert_eq!(run(&rig, &["breaker"]).0, 0);
        assert_eq!(rig.simulator.with(|c| c.harmed), 0);
    }
}

#[test]
fn a_command_says_why_it_cannot_reach_state_in_memory() {
    let mut rig = Rig::with_one_node("");
    let config = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), config.replace("sqlite:state.db", "memory:")).unwrap();
    rig.start();
    rig.wait_polls(2);
    let (code, out, log) = text(&rig.command(&["pause", "a"]).output().unwrap());
    assert!(code == 1 && out.is_empty(), "{out}{log}");
    assert!(log.contains("known to the running process alone: nothing was done"), "{log}");
}

#[test]
fn history_tells_incidents_and_audits_every_mutation() {
    for state in ["sqlite:state.db", "gs://state/history"] {
        let rig = Rig::with_one_node(&job("a"));
        let config = std::fs::read_to_string(rig.config()).unwrap();
        // Every call is answered, and leaves in time, also where a write takes long.
        let config =
            config.replace("sqlite:state.db", state).replace("lease = \"1s\"", "lease = \"30s\"");
        std::fs::write(rig.config(), config.replace("timeout = \"2s\"", "timeout = \"20s\""))
            .unwrap();
        let run = |arguments: &[&str]| text(&rig.command(arguments).output().unwrap());
        assert_eq!(run(&["once", "--deadline", "40s"]).0, 0);
        assert!(
            run(&["history"]).1.contains("no incidents within 7 day"),
            "{:?}",
            run(&["history"])
        );
        rig.trouble("a", Trouble::Preempt, None);
        assert_eq!(run(&["once", "--deadline", "60s"]).0, 0);
        let (code, out, log) = run(&["history", "a"]);
        assert!(
            code == 0 && out.contains("preempted") && out.contains("recovered, down"),
            "{out}{log}"
        );
        assert!(
            out.contains("deleting") && out.contains("state PREEMPTED"),
            "phases and evidence: {out}"
        );
        let (_, out, _) = run(&["history", "--output", "json", "--since", "1h"]);
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["incidents"][0]["ending"], "recovered");
        let audit: Vec<&serde_json::Value> = document["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| e["event"] == "intent")
            .collect();
        assert_eq!(
            audit.iter().map(|e| e["call"].as_str().unwrap()).collect::<Vec<_>>(),
            ["delete", "create"]
        );
        assert!(
            audit[0]["incarnation"]["id"].is_string()
                && audit[0]["message"].as_str().unwrap().contains("PREEMPTED")
        );
        // Each mutation: the observations, who decided, and what came of it.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        for intent in &audit {
            let evidence = &intent["evidence"];
            assert_eq!(
                (&evidence["condition"], &evidence["kind"]),
                (&"preempted".into(), &"lost".into()),
                "{intent}"
            );
            assert!(
                evidence["reads"].as_u64() >= Some(2) && evidence["sick_seconds"].is_number(),
                "{intent}"
            );
            assert!(
                evidence["symptom_at"].is_string() && evidence["confirmed_at"].is_string(),
                "{intent}"
            );
            assert!(evidence["observed"].as_str().unwrap().contains("state PREEMPTED"), "{intent}");
            assert!(intent["decided_by"].as_str().unwrap().contains(host.trim()), "{intent}");
        }
        let results: Vec<String> = document["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| e["event"] == "outcome")
            .map(|e| format!("{} {}", e["call"].as_str().unwrap(), e["result"].as_str().unwrap()))
            .collect();
        // The end of each is told by its operation, or by the node itself, whichever is seen first.
        assert_eq!(
            results,
            ["delete accepted", "delete done", "create accepted", "create done"],
            "{document}"
        );
        assert_eq!(
            (&audit[1]["zone"], &audit[1]["generation"]),
            (&audit[0]["zone"], &1.into()),
            "{document}"
        );
        assert!(audit[0]["zone"].as_str().unwrap().contains('-'), "{document}");
        let ready =
            document["events"].as_array().unwrap().iter().find(|e| e["to"] == "ready").unwrap();
        let made = rig.node("a").unwrap().uid.to_string();
        assert!(
            ready["message"].as_str().unwrap().contains(&made),
            "which incarnation it made: {ready}"
        );
        let (code, _, log) = run(&["history", "other"]);
        assert!(code == 2 && log.contains("there is no slot \"other\""), "{log}");
        let (code, out, _) = run(&["history", "--audit"]);
        assert!(code == 0 && out.starts_with("no violation in "), "{code} {out}");
    }
}

#[test]
fn retry_of_all_leaves_out_by_name_what_rests_by_choice() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let run = |arguments: &[&str]| text(&rig.command(arguments).output().unwrap());
    let (code, out, log) = run(&["retry", "--all"]);
    assert!(code == 0 && out.contains("a is healthy and has its attempts"), "{out}{log}");
    assert_eq!(run(&["forget", "a"]).0, 0);
    rig.wait_for_log("forget by");
    let (code, out, log) = run(&["retry", "--all"]);
    assert!(code == 0 && out.contains("released or deleted: a;"), "{out}{log}");
    assert_eq!(run(&["retry", "--all", "--from", "5"]).0, 2, "a step is one slot's");
}
