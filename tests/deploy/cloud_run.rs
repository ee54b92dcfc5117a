//! The job, its setup, and the metrics that a run leaves behind.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{Rig, get};
use crate::{deploy, have, text};

/// A port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server that ends with the test.
pub struct Server(pub Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn setup(config: &Path, path: &str, extra: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(deploy("cloud-run/setup.sh"));
    command.args([
        "--project",
        "my-proj",
        "--region",
        "us-central1",
        "--bucket",
        "gs://the-state",
        "--checkpoints",
        "gs://c1",
    ]);
    command
        .args(["--image", "us-docker.pkg.dev/my-proj/r/tpu-watchdog:1", "--config"])
        .arg(config)
        .args(extra);
    text(&command.env("PATH", path).output().unwrap())
}

fn config_in(folder: &Path) -> PathBuf {
    let path = folder.join("watchdog.toml");
    std::fs::write(&path, "project = \"my-proj\"\nstate = \"gs://the-state/tpu-watchdog\"\n")
        .unwrap();
    path
}

/// A `gcloud` that notes what it is asked and remembers what was created.
fn fake_gcloud(folder: &Path) -> String {
    let script = r#"#!/bin/bash
here=$(dirname "$0")
echo "$*" >>"$here/calls"
all="$*"
case "$all" in
  *" describe "*value*) echo 123 ;;
  *" describe "*) kind=${all%% describe *}; [[ -e "$here/made-${kind// /-}" ]] ;;
  *" create "*) kind=${all%% create *}; [[ ! -e "$here/made-${kind// /-}" ]] && touch "$here/made-${kind// /-}" ;;
esac
"#;
    let path = folder.join("gcloud");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", folder.display())
}

fn names(structure: &Value, found: &mut BTreeSet<String>) {
    match structure {
        Value::Object(map) => {
            found.extend(map.get("name").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|v| names(v, found));
        }
        Value::Array(all) => all.iter().for_each(|v| names(v, found)),
        _ => {}
    }
}

#[test]
fn a_dry_run_prints_commands_that_gcloud_knows_and_runs_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = fake_gcloud(folder.path());
    let (code, out) = setup(&config_in(folder.path()), &path, &["--dry-run", "--paused"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(!folder.path().join("calls").exists(), "nothing was run");
    // Training jobs need a role of their own.
    assert!(!out.contains("roles/aiplatform.user"), "{out}");
    let with_jobs = config_in(folder.path());
    let text = std::fs::read_to_string(&with_jobs).unwrap() + "[[vertex_job]]\nname = \"sft\"\n";
    std::fs::write(&with_jobs, text).unwrap();
    let (_, told) = setup(&with_jobs, &path, &["--dry-run"]);
    assert!(
        told.contains("roles/aiplatform.user") && !told.contains("roles/ml.developer"),
        "{told}"
    );
    // A task has no files beside its config.
    for line in ["startup_script = \"startup.sh\"\n", "create = \"job.yaml\"\n"] {
        let with_file = config_in(folder.path());
        let text = std::fs::read_to_string(&with_file).unwrap() + line;
        std::fs::write(&with_file, text).unwrap();
        let (code, told) = setup(&with_file, &path, &["--dry-run"]);
        assert!(code == Some(1) && told.contains("that a task does not have"), "{told}");
    }
    // The bucket's rule is about events alone, below the place that the config must name.
    let rules: Value =
        serde_json::from_str(&std::fs::read_to_string(deploy("cloud-run/lifecycle.json")).unwrap())
            .unwrap();
    assert_eq!(rules["rule"][0]["condition"]["matchesPrefix"], json!(["tpu-watchdog/events/"]));
    let commands: Vec<&str> =
        out.lines().filter(|l| l.starts_with("gcloud ")).map(str::trim_end).collect();
    assert!(commands.len() >= 14, "{out}");
    if !have("gcloud") {
        return;
    }
    lint(&commands.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>());
}

/// Each command is one that gcloud has, with flags that it knows.
pub fn lint(commands: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("commands.json");
    let listed: Vec<Value> =
        commands.iter().map(|command| json!({ "command_string": command })).collect();
    std::fs::write(&list, json!(listed).to_string()).unwrap();
    let mut lint = Command::new("gcloud");
    lint.args(["meta", "lint-gcloud-commands", "--commands-file"])
        .arg(&list)
        .env("CLOUDSDK_CONFIG", folder.path());
    let output = lint.output().unwrap();
    let results: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&output).1));
    assert_eq!(results.len(), commands.len());
    for result in results {
        assert_eq!(result["success"], true, "{}", result["command_string"]);
        let mut known = BTreeSet::new();
        names(&result["args_structure"], &mut known);
        let given = result["command_args"].as_object().cloned().unwrap_or_default();
        for flag in given.keys().filter_map(|k| k.strip_prefix("--")) {
            assert!(known.contains(flag), "--{flag} is unknown to {}", result["command_string"]);
        }
    }
}

#[test]
fn setting_up_twice_creates_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = fake_gcloud(folder.path());
    let config = config_in(folder.path());
    let calls = || std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let (code, out) = setup(&config, &path, &[]);
    assert_eq!(code, Some(0), "{out}");
    let creates = |calls: &str| calls.lines().filter(|l| l.contains(" create ")).count();
    let first = calls();
    assert!(first.contains("storage buckets update gs://the-state --lifecycle-file"), "{first}");
    assert_eq!(creates(&first), 5, "account, role, bucket, secret, schedule: {first}");
    assert!(first.contains("123-compute@developer.gserviceaccount.com"), "{first}");
    std::fs::remove_file(folder.path().join("calls")).unwrap();
    let (code, out) = setup(&config, &path, &["--schedule", "*/2 * * * *"]);
    assert_eq!(code, Some(0), "{out}");
    let second = calls();
    assert_eq!(creates(&second), 0, "{second}");
    assert!(
        !second.contains("--lifecycle-file"),
        "the rules of a bucket that is there are its own: {second}"
    );
    for again in [
        "iam roles update",
        "secrets versions add",
        "run jobs replace",
        "scheduler jobs update http",
    ] {
        assert!(second.contains(again), "{again}: {second}");
    }
    std::fs::write(&config, "state = \"sqlite:x\"").unwrap();
    let (code, out) = setup(&config, &path, &[]);
    assert!(code == Some(1) && out.contains("state = \"gs://the-state/tpu-watchdog\""), "{out}");
}

#[test]
fn gcloud_sends_the_job_as_it_is_meant() {
    if !have("gcloud") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let job = std::fs::read_to_string(deploy("cloud-run/job.yaml")).unwrap();
    let file = folder.path().join("job.yaml");
    std::fs::write(
        &file,
        job.replace("PROJECT", "my-proj").replace("IMAGE", "us-docker.pkg.dev/my-proj/r/w:1"),
    )
    .unwrap();
    // gcloud puts the region in front of the host, so that it is reached as a proxy.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let (head, body) = request(&mut stream);
            let posted = head.starts_with("POST");
            let (status, answer) =
                if posted { ("200 OK", body.clone()) } else { ("404 Not Found", "{}".into()) };
            let head = "Content-Type: application/json\r\nConnection: close";
            write!(
                stream,
                "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n\r\n{answer}",
                answer.len()
            )
            .unwrap();
            if posted {
                return body;
            }
        }
    });
    let mut gcloud = Command::new("gcloud");
    gcloud
        .args(["run", "jobs", "replace", "--async", "--project=my-proj", "--region=us-central1"])
        .arg(&file);
    for (name, value) in [
        ("CONFIG", folder.path().display().to_string()),
        ("AUTH_ACCESS_TOKEN", "simulated".into()),
        ("CORE_DISABLE_PROMPTS", "1".into()),
        ("API_ENDPOINT_OVERRIDES_RUN", format!("http://127.0.0.1:{port}/")),
        ("PROXY_TYPE", "http".into()),
        ("PROXY_ADDRESS", "127.0.0.1".into()),
        ("PROXY_PORT", port.to_string()),
    ] {
        gcloud.env(format!("CLOUDSDK_{name}"), value);
    }
    let (code, out) = text(&gcloud.output().unwrap());
    assert_eq!(code, Some(0), "{out}");
    let sent: Value = serde_json::from_str(&server.join().unwrap()).unwrap();
    let task = &sent["spec"]["template"]["spec"]["template"]["spec"];
    assert_eq!(
        (&task["maxRetries"], &task["timeoutSeconds"]),
        (&json!(0), &json!("600")),
        "{sent:#}"
    );
    assert_eq!(task["serviceAccountName"], "tpu-watchdog@my-proj.iam.gserviceaccount.com");
    assert_eq!(task["volumes"][0]["secret"]["secretName"], "tpu-watchdog-config");
    // The arguments are those that the image has by itself, and the program takes them.
    let arguments: Vec<String> =
        serde_json::from_value(task["containers"][0]["args"].clone()).unwrap();
    let file = std::fs::read_to_string(deploy("cloud-run/Containerfile")).unwrap();
    let command = file.lines().find_map(|l| l.strip_prefix("CMD ")).unwrap();
    assert_eq!(serde_json::from_str::<Vec<String>>(command).unwrap(), arguments);
    let (_, out) =
        text(&Command::new(env!("CARGO_BIN_EXE_tpu-watchdog")).args(&arguments).output().unwrap());
    assert!(out.contains("/etc/tpu-watchdog/watchdog.toml"), "only the file is missing: {out}");
}

fn request(stream: &mut std::net::TcpStream) -> (String, String) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let count = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|l| l.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
        if body.len() >= length.and_then(|l| l.trim().parse().ok()).unwrap_or(0) || count == 0 {
            return (head.to_owned(), body.to_owned());
        }
    }
}

#[test]
fn a_run_pushes_its_metrics_and_a_failed_one_leaves_the_last_success_standing() {
    if !have("prometheus-pushgateway") {
        return;
    }
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let gateway = Command::new("prometheus-pushgateway")
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _gateway = Server(gateway);
    wait_until("the gateway listens", || std::net::TcpStream::connect(&address).is_ok());
    let rig = Rig::with_one_node("");
    let config = std::fs::read_to_string(rig.config())
        .unwrap()
        .replace("sqlite:state.db", "gs://state/tpu-watchdog");
    std::fs::write(rig.config(), format!("pushgateway = \"http://{address}\"\n{config}")).unwrap();
    let run = || text(&rig.command(&["once", "--deadline", "20s"]).output().unwrap());
    let value = |name: &str| -> Option<f64> {
        let page = get(&format!("http://{address}/metrics")).1;
        let line = page.lines().find(|l| l.starts_with(&format!("tpuwatchdog_{name}")))?.to_owned();
        line.rsplit(' ').next()?.parse().ok()
    };
    // A run that is cut off in the middle of a recovery says so; the next one, which ends it, takes
    // that back.
    rig.trouble("", Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    let (_, out) = text(&rig.command(&["once", "--deadline", "15s"]).output().unwrap());
    assert!(value("slot_unhealthy_since_timestamp_seconds").is_some(), "{out}");
    assert_eq!(value("creates_refused"), Some(1.0), "{out}");
    rig.simulator.with(|cloud| cloud.refusals.clear());
    assert_eq!(run().0, Some(0));
    assert_eq!(value("slot_unhealthy_since_timestamp_seconds"), None);
    for expected in [2.0, 3.0] {
        rig.trouble("a", Trouble::Preempt, None);
        let (code, out) = run();
        assert_eq!(code, Some(0), "{out}");
        assert_eq!(value("recoveries_total"), Some(expected), "it never restarts at zero: {out}");
    }
    assert_eq!(value("slot_unhealthy_since_timestamp_seconds"), None, "what is over does not stay");
    let succeeded = value("once_last_success_timestamp_seconds").unwrap();
    assert!(succeeded > 1.7e9);
    rig.simulator.set_hook(Some(Box::new(|logged| {
        logged.path.starts_with("/v2").then(|| Fault::AnswerBefore(Reply::new(503, "")))
    })));
    let (code, out) = run();
    assert_eq!(code, Some(1), "{out}");
    assert_eq!(value("once_last_success_timestamp_seconds"), Some(succeeded));
    assert_eq!(value("recoveries_total"), Some(3.0));
}
