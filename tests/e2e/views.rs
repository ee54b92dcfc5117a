//! One truth in every view: status, plan, the page, JSON and metrics tell the same state of each slot
//! with the same reason, in the situations that operators meet.

use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::things::Node;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{POLICY, Rig, ZONE, get, job, slot};

/// A slot by its situation: the condition (of which an attempt to create it may show another one:
/// then none is given), the word, whether it is protected, and words of why not.
type Situation =
    (&'static str, Option<Trouble>, &'static str, &'static str, Result<(), &'static str>);

const PROTECTED: Result<(), &str> = Ok(());

const SITUATIONS: [Situation; 30] = [
    ("well", None, "healthy", "healthy", PROTECTED),
    ("typo", None, "healthy", "healthy", PROTECTED),
    ("no-job", None, "healthy", "healthy", PROTECTED),
    ("preempted", Some(Trouble::Preempt), "", "waiting", PROTECTED),
    ("terminated", Some(Trouble::Terminate), "", "waiting", PROTECTED),
    ("vanished", Some(Trouble::Vanish), "", "waiting", PROTECTED),
    ("maintained", Some(Trouble::Maintenance), "maintenance", "maintenance", PROTECTED),
    ("repairing", Some(Trouble::Repairing), "maintenance", "maintenance", PROTECTED),
    ("restarting", Some(Trouble::Restarting), "starting", "starting", PROTECTED),
    ("unresponsive", Some(Trouble::Unresponsive), "unresponsive", "unresponsive", PROTECTED),
    ("runtime", Some(Trouble::RuntimeUnhealthy), "runtime_unhealthy", "runtime sick", PROTECTED),
    ("unrepaired", Some(Trouble::FailedRepair), "failed_repair", "failed repair", PROTECTED),
    ("strange", Some(Trouble::Strange), "unclear", "unclear", PROTECTED),
    ("stranger", Some(Trouble::StrangeState), "unclear", "unclear", PROTECTED),
    ("replaced", Some(Trouble::Replace), "healthy", "healthy", PROTECTED),
    ("failed", Some(Trouble::JobFails), "job_failed", "job failed", PROTECTED),
    ("ended", Some(Trouble::JobEnds), "finished", "finished", Err("finished")),
    (
        "stopped",
        Some(Trouble::Stop),
        "stopped",
        "stopped",
        Err("stopped or hidden by another client"),
    ),
    ("hidden", Some(Trouble::Hide), "stopped", "stopped", PROTECTED),
    ("deleted", Some(Trouble::Deleting), "deleting", "deleting", PROTECTED),
    ("opted-out", Some(Trouble::OptOut), "healthy", "healthy", Err("opts it out")),
    ("paused", None, "healthy", "paused", Err("debugging")),
    ("gone-paused", Some(Trouble::Preempt), "preempted", "paused", Err("paused")),
    ("forgotten", Some(Trouble::Preempt), "", "forgotten", Err("called it off")),
    ("queued", None, "healthy", "healthy", Err("queued resource qr1")),
    ("multislice", None, "healthy", "healthy", Err("part of a multislice")),
    ("v-one", None, "healthy", "healthy", Err("made by API v1")),
    ("others", None, "healthy", "healthy", Err("resume others --adopt")),
    ("forbidden", None, "healthy", "healthy", Err("roles/storage.objectViewer")),
    ("flapp", None, "missing", "not found", Err("was ever seen")),
];

fn scene() -> Rig {
    let mut nodes = String::new();
    for (name, ..) in SITUATIONS.iter().filter(|(name, ..)| *name != "flapp") {
        nodes += &format!(
            "[[nodes]]\nnames = [\"{name}\"]\nzone = \"{ZONE}\"\nspot = true\n\
             job = {{ checkpoint = \"gs://bucket/{{node}}\", step = \"100ms\", every = 5, at_step = 10 }}\n"
        );
    }
    let mut slots = String::new();
    for (name, ..) in SITUATIONS {
        let job = match name {
            "no-job" | "flapp" => String::new(),
            "typo" => job("tpyo"),
            name => job(name),
        };
        slots += &slot(name, &job);
    }
    // Long graces: what is waited for stays so while all views are read.
    let policy = POLICY
        .lines()
        .map(|line| match line.starts_with("grace") {
            true => "grace = { missing = \"1s\" }",
            false => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
        .replace("\"400ms\"", "\"1h\"")
        .replace("\"200ms\"", "\"1h\"")
        + "\nmax_unavailable = \"100%\"\nwhen_missing = \"create\"\n";
    let rig = Rig::new(&nodes, &policy, &slots);
    let change = |name: &str, change: &dyn Fn(&mut Node)| {
        rig.simulator.with(|cloud| {
            change(cloud.nodes.get_mut(&(ZONE.to_owned(), name.to_owned())).unwrap());
        });
    };
    let request = || Some("projects/p/locations/z/queuedResources/qr1".to_owned());
    change("queued", &|node| node.queued_resource = request());
    change("multislice", &|node| node.multislice = true);
    change("v-one", &|node| node.made_by = "V1");
    let owner = serde_json::json!({ "tpu-watchdog-owner": "somebody-else" });
    change("others", &|node| _ = node.body.insert("metadata".into(), owner.clone()));
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let body = r#"{"error": {"code": 403, "message": "no storage.objects.list"}}"#;
        let listed = logged.path.contains("list-type") && logged.path.contains("forbidden");
        listed.then(|| Fault::AnswerBefore(Reply::new(403, body)))
    })));
    rig
}

fn run(rig: &Rig, arguments: &[&str]) -> String {
    let output = rig.command(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The line of a slot in a table: its mark and name come first.
fn row<'a>(table: &'a str, name: &str) -> &'a str {
    let is_its = |line: &&str| line.split_whitespace().nth(1) == Some(name);
    table.lines().find(is_its).unwrap_or_else(|| panic!("{name} is not in\n{table}"))
}

/// A text without its numbers: views that are read one after the other differ in ages.
fn words(text: &str) -> String {
    let text = text.replace('<', " <").replace('>', "> ");
    let plain = text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    plain.collect::<Vec<_>>().join(" ")
}

#[test]
fn every_view_tells_the_same_state_for_the_same_reason() {
    let mut rig = scene();
    rig.start();
    rig.wait_polls(2);
    // Only a TPU that the watchdog made tells how its job ends.
    for name in ["failed", "ended"] {
        let old = rig.node(name).unwrap().uid;
        rig.trouble(name, Trouble::Preempt, None);
        rig.wait_recovered(name, old);
    }
    for arguments in [
        &["pause", "paused", "--for", "2h", "--reason", "debugging"][..],
        &["pause", "gone-paused"],
    ] {
        run(&rig, arguments);
    }
    rig.wait_polls(2);
    rig.trouble("", Trouble::StockOut, None);
    for (name, trouble, ..) in SITUATIONS {
        if let Some(trouble) = trouble {
            rig.trouble(name, trouble, None);
        }
    }
    let settled = |name: &str, condition: &str, word: &str| {
        let status = rig.status();
        let slot = status["tpus"].as_array().unwrap().iter().find(|slot| slot["name"] == name);
        let slot = slot.unwrap_or_else(|| panic!("{name} is not in {status}"));
        let sentence = slot["sentence"].as_str().unwrap();
        (condition.is_empty() || slot["condition"] == condition) && sentence.starts_with(word)
    };
    rig.wait_until("the forgotten one waits", || settled("forgotten", "", "waiting"));
    run(&rig, &["forget", "forgotten"]);
    for (name, _, condition, word, _) in SITUATIONS {
        rig.wait_until(&format!("{name} is {condition}, {word}"), || {
            settled(name, condition, word)
        });
    }
    let (status, plan) = (run(&rig, &["status"]), run(&rig, &["plan"]));
    let base = rig.endpoint();
    let json: serde_json::Value =
        serde_json::from_str(&get(&format!("{base}/api/v1/status")).1).unwrap();
    let (page, metrics) = (get(&format!("{base}/")).1, get(&format!("{base}/metrics")).1);
    let plain = page.replace("&quot;", "\"").replace("&amp;", "&");
    assert_eq!(json["version"], 1);
    for (name, _, condition, word, protected) in SITUATIONS {
        let slot = json["tpus"].as_array().unwrap().iter().find(|s| s["name"] == name).unwrap();
        assert!(condition.is_empty() || slot["condition"] == condition, "{slot}");
        let condition = slot["condition"].as_str().unwrap();
        assert_eq!(slot["protected"], protected.is_ok(), "{slot}");
        let shown = row(&status, name);
        assert!(shown.contains(&format!(" {word} ")), "{shown}");
        let in_page = plain.split("<tr>").find(|row| row.contains(&format!("\">{name}<br>")));
        let in_page = in_page.unwrap_or_else(|| panic!("{name} is not in {page}"));
        assert!(in_page.contains(&format!(">{word}</span>")), "{in_page}");
        // One that is tried again and again says another thing each moment.
        if word != "waiting" {
            let sentence = slot["sentence"].as_str().unwrap();
            let why = sentence.split_once([':', ';']).map_or("", |(_, why)| why);
            for view in [shown, in_page] {
                assert!(words(view).contains(&words(why)), "{why} is not in\n{view}");
            }
            let reason = slot["reason"].as_str().unwrap();
            let planned = ["wait", "hold", "escalate"].contains(&slot["action"].as_str().unwrap());
            assert!(
                !planned || words(&plan).contains(&words(reason)),
                "{reason} is not in\n{plan}"
            );
        }
        let number = u8::from(protected.is_ok());
        for metric in [
            format!("tpuwatchdog_slot_protected{{slot=\"{name}\"}} {number}"),
            format!("tpuwatchdog_slot_condition{{condition=\"{condition}\",slot=\"{name}\""),
        ] {
            assert!(metrics.contains(&metric), "{metric} is not in\n{metrics}");
        }
        let Err(why) = protected else { continue };
        let reason = slot["unprotected_reason"].as_str().unwrap();
        assert!(reason.contains(why), "{reason}");
        // A stopped TPU says it in the words of its state.
        let told = shown.contains(why) && in_page.contains(why);
        assert!(told || word == "stopped", "{shown}\n{in_page}");
        if name != "flapp" {
            let proposed = row(&plan[plan.find("IF IT WERE LOST").unwrap()..], name);
            assert!(proposed.contains(reason), "{proposed} lacks {reason}");
        }
    }
    assert!(
        plan.contains("no TPU \"flapp\" is in us-central2-b, and none was ever seen"),
        "{plan}"
    );
    let logged = "queued: NOT PROTECTED: it belongs to queued resource qr1";
    assert_eq!(rig.logs().matches(logged).count(), 1, "told once");
    assert!(row(&status, "typo").contains("(gs://bucket has "), "{status}");
    assert!(row(&status, "preempted").contains("no v4-8 capacity in us-central2-b"), "{status}");
}
