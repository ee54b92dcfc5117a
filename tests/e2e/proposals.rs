//! `plan --if-lost`: the create that would follow, shown before the program gets the right to it; and what then
//! arrives at the API is that.

use serde_json::{Value, json};
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{Rig, ZONE, job};

fn plan(rig: &Rig, arguments: &[&str]) -> (i32, String) {
    let arguments = [&["plan"], arguments].concat();
    let output = rig.command(&arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn metadata(rig: &Rig, metadata: &Value) {
    rig.simulator.with(|cloud| {
        let node = cloud.nodes.get_mut(&(ZONE.to_owned(), "a".to_owned())).unwrap();
        node.body.insert("metadata".into(), metadata.clone());
    });
}

#[test]
fn the_create_that_is_shown_is_the_one_that_arrives() {
    let create = "[tpu.create]\nruntime_version = \"tpu-vm-base\"\nlabels = { team = \"vision\", lab = \"b\" }\n";
    let mut rig = Rig::with_one_node(&(job("a") + create));
    metadata(
        &rig,
        &json!({"startup-script": "#!/bin/bash\npip install hunter2\n", "token": "hunter2"}),
    );
    let (code, text) = plan(&rig, &["--if-lost", "a"]);
    assert_eq!(code, 0, "{text}");
    let told = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "-/+ a would be created again in us-central2-b",
        "job resumes from step ",
        "runs python3 train.py, as root in ~",
        "+ labels.lab \"b\"",
        "~ labels.team \"llm\" -> \"vision\"",
        "~ runtimeVersion \"tpu-ubuntu2204-base\" -> \"tpu-vm-base\"",
        "~ metadata.startup-script (",
        " metadata.token (7 bytes, digest ",
    ] {
        assert!(told.contains(words), "{words} is not in\n{text}");
    }
    assert!(!text.contains("hunter2") && !text.contains("note"), "{text}");
    assert_eq!(rig.mutations().len(), 0, "{}", rig.mutations_text());
    let (_, document) = plan(&rig, &["--if-lost", "--output", "json"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    let body = Value::Object(rig.node("a").unwrap().body);
    let mut shown = 0;
    for field in document["if_lost"][0]["fields"].as_array().unwrap() {
        let (key, sent) = (field["key"].as_str().unwrap(), &field["sent"]);
        let at = body.pointer(&format!("/{}", key.replacen('.', "/", 1)));
        assert_eq!(at.is_some(), sent.is_string(), "{key}: {body}");
        if let (Some(at), false) = (at, key.starts_with("metadata.")) {
            assert_eq!(at.to_string(), sent.as_str().unwrap(), "{key}");
            shown += 1;
        }
    }
    assert!(shown >= 4, "{document}");
}

#[test]
fn a_missing_startup_script_and_one_that_trains_itself_are_told_before_they_do_harm() {
    let rig = Rig::with_one_node(&job("a"));
    let noted = |words: &str| {
        for arguments in [&[][..], &["--if-lost"]] {
            let (_, text) = plan(&rig, arguments);
            let told = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(told.contains("note") && told.contains(words), "{words} is not in\n{text}");
        }
    };
    metadata(&rig, &json!({}));
    noted("it has no startup script, and a new TPU has an empty boot disk");
    metadata(&rig, &json!({"startup-script": "#!/bin/bash\ncd run && nohup python3 train.py &\n"}));
    noted("its startup script has train.py as well: if that starts the training, it runs twice");
    metadata(
        &rig,
        &json!({"startup-script": "#!/bin/bash\n# train.py is the command's.\npip install jax\n"}),
    );
    let (_, text) = plan(&rig, &[]);
    assert!(!text.contains("note"), "{text}");
}

#[test]
fn without_a_reading_nothing_is_proposed() {
    let rig = Rig::with_one_node(&job("a"));
    let (code, text) = plan(&rig, &["--if-lost", "zz"]);
    assert!(code == 2 && text.contains("there is no slot \"zz\"; there are a"), "{text}");
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let body = r#"{"error": {"code": 403, "message": "Permission 'tpu.nodes.list' denied"}}"#;
        logged.path.contains("/nodes").then(|| Fault::AnswerBefore(Reply::new(403, body)))
    })));
    let (code, text) = plan(&rig, &["--if-lost"]);
    assert!(code == 1 && text.contains("not every zone could be read"), "{text}");
    assert!(!text.contains("would be created again"), "{text}");
}
