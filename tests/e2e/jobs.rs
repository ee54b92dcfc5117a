//! Jobs: the supervisor's beacons, checkpoints, and what is never done to a TPU that is the user's
//! own.

use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{POLICY, Rig, job, slot};

#[test]
fn the_job_of_a_recreated_node_continues_from_its_newest_checkpoint() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    rig.wait("the job saves a later step", |cloud| {
        cloud.objects.contains_key("bucket/a/20/commit_success.txt")
    });
    // An incomplete one above it must not be taken.
    rig.simulator.with(|cloud| {
        let object = cloud.objects["bucket/a/20/commit_success.txt"].clone();
        cloud.objects.insert("bucket/a/9000/default/d/0".into(), object);
    });
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    let node = rig.node("a").unwrap();
    let order = &node.run.order;
    let newest = order.step.unwrap();
    assert!((20..9000).contains(&newest) && newest.is_multiple_of(5), "{order:?}");
    assert_eq!(order.checkpoint, format!("gs://bucket/a/{newest}"));
    assert!(node.run.supervised);
    rig.wait_until("its steps are told", || {
        let job = rig.status()["tpus"][0]["job"].clone();
        job["state"] == "running" && job["step"].as_u64() > Some(newest)
    });
}

#[test]
fn an_adopted_tpu_with_a_job_is_never_touched_for_lack_of_beacons() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    // Boot has a grace of 1 s here.
    rig.wait_polls(12);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    rig.wait_until("it is healthy", || rig.status()["tpus"][0]["condition"] == "healthy");
    assert!(
        !rig.simulator.log().iter().any(|l| l.path.contains(":getGuestAttributes")),
        "nobody asks for its beacons"
    );
}

/// A slot whose node was created by the watchdog, so that its beacons count.
fn ours() -> Rig {
    ours_under(POLICY)
}

fn ours_under(policy: &str) -> Rig {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.configure("", policy, &slot("a", &job("a")));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    rig
}

#[test]
fn a_silent_worker_is_recreated_after_its_grace() {
    let rig = ours_under(&POLICY.replace("silent = \"20s\"", "silent = \"4s\""));
    let old = rig.node("a").unwrap().uid;
    let at = rig.trouble("a", Trouble::Silence, None);
    rig.wait_recovered("a", old);
    let delete = rig.mutations().into_iter().rfind(|m| m.method == "DELETE").unwrap();
    assert!(
        delete.at.duration_since(at).as_secs_f64() >= 3.0,
        "silence counts from the last beat before it"
    );
    assert_eq!(rig.creations("a"), 3);
}

#[test]
fn a_replacement_that_never_boots_is_replaced_once_beacons_are_known_to_work() {
    let rig = ours();
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::NeverBoot, None);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait("the second replacement", |cloud| cloud.creations["a"] >= 4);
    rig.wait_recovered("a", old);
    assert!(rig.logs().contains("sent no boot beacon"), "{}", rig.logs());
    assert_eq!(rig.creations("a"), 4, "{}", rig.mutations_text());
}

#[test]
fn without_any_beacon_ever_a_silent_boot_is_held_and_escalated() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    rig.wait("the first node has booted", |cloud| cloud.nodes.values().all(|n| n.run.boots > 0));
    rig.trouble("a", Trouble::NeverBoot, None);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("guest attributes may be forbidden here");
    rig.wait_polls(4);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
}

#[test]
fn a_job_that_used_up_its_restarts_is_told_and_its_node_is_left_alone() {
    let rig = ours();
    rig.trouble("a", Trouble::JobFails, None);
    rig.wait_for_log("and is not started again (");
    rig.wait_polls(4);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
    rig.wait_until("a person is called", || {
        let slot = rig.status()["tpus"][0].clone();
        slot["action"] == "escalate" && slot["condition"] == "job_failed"
    });
}

#[test]
fn a_job_that_ended_well_wants_no_tpu_any_more() {
    let rig = ours();
    rig.trouble("a", Trouble::JobEnds, None);
    rig.wait_for_log("the job is finished");
    rig.wait_until("status says so", || rig.status()["tpus"][0]["condition"] == "finished");
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_polls(6);
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
}

#[test]
fn the_end_of_a_finished_tpu_is_told_before_it_comes() {
    let rig = ours_under(&format!("on_success = \"delete\"\n{POLICY}"));
    rig.trouble("a", Trouble::JobEnds, None);
    rig.wait_until("status says when it is deleted, and what keeps it", || {
        let slot = rig.status()["tpus"][0].clone();
        let says = slot["reason"].as_str().is_some_and(|reason| {
            reason.contains("deleted, as on_success says") && reason.contains("`pause` keeps it")
        });
        says && slot["action"] == "wait" && slot["until"].is_string()
    });
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
}

#[test]
fn s15_a_person_says_from_which_checkpoint_a_job_goes_on_and_a_restart_forgets_nothing_of_it() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    let recorded = || rig.status()["tpus"][0]["job"]["checkpoint_step"].as_u64();
    rig.wait_until("a later checkpoint is recorded", || recorded() >= Some(30));
    rig.kill();
    // While nobody looks, the TPU is lost, and somebody deletes what comes after step 20.
    rig.trouble("a", Trouble::Preempt, None);
    let later = |key: &str| {
        let step = key
            .strip_prefix("bucket/a/")
            .and_then(|rest| rest.split('/').next())
            .and_then(|step| step.parse::<u64>().ok());
        step > Some(20)
    };
    let taken: Vec<_> =
        rig.simulator.with(|cloud| cloud.objects.extract_if(.., |key, _| later(key)).collect());
    assert!(rig.command(&["retry", "a", "--from", "25"]).output().unwrap().status.success());
    for starts in 1..=2 {
        rig.start();
        let words = "is step 20, but step 25 or a later one was asked for";
        rig.wait_until("it waits for what was asked for", || {
            rig.logs().matches(words).count() >= starts
        });
        rig.kill();
    }
    assert_eq!(rig.creations("a"), 1, "{}", rig.mutations_text());
    let old = rig.node("a").map_or(0, |node| node.uid);
    // Step 25 is restored.
    rig.simulator.with(|cloud| {
        cloud.objects.extend(taken.into_iter().filter(|(key, _)| key.starts_with("bucket/a/25/")))
    });
    rig.start();
    rig.wait_recovered("a", old);
    assert_eq!(rig.node("a").unwrap().run.order.step, Some(25));
}

#[test]
fn l10_a_job_that_crashes_after_a_long_run_goes_on_on_the_same_tpu_from_its_newest_checkpoint() {
    let rig = ours();
    let before = rig.node("a").unwrap();
    rig.wait("a later checkpoint", |cloud| {
        let later = before.run.step / 5 * 5 + 10;
        cloud.objects.contains_key(&format!("bucket/a/{later}/commit_success.txt"))
    });
    rig.trouble("a", Trouble::JobCrashes, None);
    rig.wait_for_log("every worker follows generation");
    let after = rig.node("a").unwrap();
    assert_eq!((after.uid, rig.creations("a")), (before.uid, 2), "{}", rig.mutations_text());
    assert_eq!(after.run.order.generation, before.run.order.generation + 1);
    let step = after.run.order.step.unwrap();
    assert!(step >= before.run.step / 5 * 5 + 10, "{:?}", after.run.order);
    let others = |body: &serde_json::Map<String, serde_json::Value>| {
        let mut metadata = body["metadata"].clone();
        metadata.as_object_mut().unwrap().remove("tpu-watchdog-run");
        metadata
    };
    assert_eq!(others(&after.body), others(&before.body), "one key is changed");
    rig.wait_until("it runs", || {
        let slot = rig.status()["tpus"][0].clone();
        slot["condition"] == "healthy" && slot["job"]["step"].as_u64() > Some(step)
    });
}

#[test]
fn an_operator_starts_a_job_that_gave_up_again_and_without_the_right_is_told_which() {
    let rig = ours();
    let uid = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::JobFails, None);
    rig.wait_for_log("and is not started again (");
    rig.simulator.with(|cloud| cloud.denied.insert("tpu.nodes.update".into()));
    let relaunch = || rig.command(&["relaunch", "a"]).output().unwrap().status.success();
    assert!(relaunch());
    rig.wait_until("it is held", || {
        let slot = rig.status()["tpus"][0].clone();
        let reason = slot["reason"].as_str().unwrap_or_default().to_owned();
        slot["hold"] == "cannot_relaunch" && reason.contains("tpu.nodes.update")
    });
    rig.simulator.with(|cloud| cloud.denied.clear());
    assert!(relaunch());
    rig.wait_for_log("every worker follows generation");
    rig.wait_until("it runs", || rig.status()["tpus"][0]["condition"] == "healthy");
    assert_eq!((rig.node("a").unwrap().uid, rig.creations("a")), (uid, 2));
}

#[test]
fn a_person_reads_why_a_job_failed_and_says_that_its_work_is_done() {
    let rig = ours();
    let none = rig.command(&["logs", "a", "--worker", "7"]).output().unwrap();
    let none = String::from_utf8(none.stdout).unwrap();
    assert!(none.contains("tpu-vm ssh a --zone us-central2-b --worker 7"), "{none}");
    rig.trouble("a", Trouble::JobFails, None);
    rig.wait_for_log("and is not started again (");
    let output = rig.command(&["logs", "a", "--worker", "0"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("a: worker 0, generation ") && text.contains(", ended with code 1 at "));
    assert!(text.contains("    Traceback\n    ValueError: shapes differ\n"), "{text}");
    let output = rig.command(&["logs", "a", "--output", "json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["runs"][0]["lines"][1], "ValueError: shapes differ", "{document}");
    let unknown = rig.command(&["logs", "b"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    let none = rig.command(&["logs", "a", "--worker", "7"]).output().unwrap();
    let none = String::from_utf8(none.stdout).unwrap();
    assert!(none.contains("worker 7 of a") && none.ends_with("kept: 0\n"), "{none}");
    assert!(rig.command(&["done", "a"]).output().unwrap().status.success());
    rig.wait_until("it is finished", || rig.status()["tpus"][0]["condition"] == "finished");
    let before = rig.creations("a");
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait("its remains are removed", |cloud| cloud.nodes.is_empty());
    rig.wait_polls(6);
    assert_eq!(rig.creations("a"), before, "{}", rig.mutations_text());
}

#[test]
fn a_tpu_is_paused_and_given_back_through_the_metadata_of_its_node() {
    let rig = ours();
    let order = |rig: &Rig| {
        let node = rig.node("a").unwrap();
        node.body["metadata"].get("tpu-watchdog-run").map(|run| run.as_str().unwrap().to_owned())
    };
    let works = |arguments: &[&str]| {
        let output = rig.command(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    works(&["pause", "a"]);
    rig.wait_until("its order says wait", || {
        order(&rig).is_some_and(|order| order.contains("\"wait\":true"))
    });
    works(&["resume", "a"]);
    rig.wait_until("its order no longer does", || {
        order(&rig).is_some_and(|order| !order.contains("wait"))
    });
    works(&["release", "a"]);
    rig.wait_for_log("its metadata has no keys of the watchdog left");
    let metadata = rig.node("a").unwrap().body["metadata"].clone();
    let left: Vec<&String> = metadata.as_object().unwrap().keys().collect();
    assert!(left.iter().all(|key| !key.starts_with("tpu-watchdog")), "{metadata}");
    let script = metadata.get("startup-script").and_then(|script| script.as_str());
    assert!(script.is_none_or(|script| !script.contains("tpu-watchdog")), "{script:?}");
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_until("it is left alone", || rig.status()["tpus"][0]["hold"] == "forgotten");
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
}
