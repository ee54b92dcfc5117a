//! The views of an operator: why nothing happens, that no watchdog runs, which gaps a recovery
//! would find.

use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{POLICY, Rig, ZONE, job, slot};

fn shown(rig: &Rig, command: &str) -> String {
    let output = rig.command(&[command]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_create_that_is_refused_is_shown_with_its_reason_and_without_a_word_of_a_dry_run() {
    let mut rig = Rig::with_one_node(&job("a"));
    // Long enough for each of the commands to look.
    rig.configure(
        "",
        &POLICY.replace("max = \"400ms\"", "max = \"20s\"").replace("200ms", "20s"),
        &slot("a", &job("a")),
    );
    rig.start();
    rig.wait_polls(2);
    rig.trouble("", Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("create failed (stock_out)");
    rig.wait_until("the journal says why", || rig.status()["tpus"][0]["hold"] == "backoff");
    for command in ["status", "plan"] {
        let text = shown(&rig, command);
        let why = match command {
            "status" => "no v4-8 capacity in us-central2-b (try 1); next try in ",
            _ => "There is no more capacity in the zone",
        };
        assert!(text.contains(why), "{command}: {text}");
        assert!(!text.contains("dry_run") && !text.contains("dry run"), "{command}: {text}");
    }
    assert!(shown(&rig, "status").contains("watched by "));
    // The service dies in the middle of it.
    rig.kill();
    rig.wait_until("status says that it is dead", || {
        shown(&rig, "status").contains("inactive since ")
    });
    let text = shown(&rig, "status");
    assert!(
        text.contains("1 recreate pending") && text.contains("start it: tpu-watchdog run"),
        "{text}"
    );
}

#[test]
fn a_bucket_that_may_not_be_listed_keeps_a_judged_tpu_and_is_told_with_the_grant() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let body = r#"{"error": {"code": 403, "message": "tpu-watchdog does not have storage.objects.list access"}}"#;
        logged.path.contains("list-type").then(|| Fault::AnswerBefore(Reply::new(403, body)))
    })));
    rig.start();
    let grant = "gcloud storage buckets add-iam-policy-binding gs://bucket --role roles/storage.objectViewer";
    rig.wait_for_log(grant);
    rig.wait_until("it is a warning", || {
        rig.status()["tpus"][0]["warnings"].to_string().contains(grant)
    });
    let told = rig.logs().lines().find(|line| line.contains(grant)).unwrap().to_owned();
    assert!(told.contains("WARN") && !told.contains("transient"), "{told}");
    // Told while all is well.
    for command in ["status", "plan"] {
        let text = shown(&rig, command);
        assert!(
            text.contains(grant) && text.contains("NOT PROTECTED: the watchdog may not list"),
            "{command}: {text}"
        );
    }
    rig.trouble("a", Trouble::Unresponsive, None);
    // It is kept while its checkpoints can't be listed.
    rig.wait_until("it is held", || rig.status()["tpus"][0]["hold"] == "checkpoint_unreadable");
    rig.wait_polls(8);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    rig.simulator.set_hook(None);
    rig.wait("it is replaced when they can be listed", |cloud| cloud.creations["a"] == 2);
}

#[test]
fn what_a_recreate_would_lack_is_told_before_it_happens() {
    let rig = Rig::with_one_node(&job("a"));
    let check = shown(&rig, "check");
    assert!(check.contains("a: a command and no startup_script"), "{check}");
    let plan = shown(&rig, "plan");
    // Its job goes on meanwhile.
    assert!(plan.contains("protected; its job would resume from step "), "{plan}");
    assert!(!plan.contains("Warnings:"), "it has a startup script of its own: {plan}");
    let key = (ZONE.to_owned(), "a".to_owned());
    rig.simulator.with(|cloud| cloud.nodes.get_mut(&key).unwrap().body.remove("metadata"));
    let plan = shown(&rig, "plan");
    assert!(
        plan.contains("no startup script is known: a recreated TPU has an empty boot disk"),
        "{plan}"
    );
}
