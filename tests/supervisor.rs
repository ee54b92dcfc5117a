//! The supervisor for real: bash and curl against the simulated metadata server. Left out, and said, where curl is missing.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tpu_watchdog::launch;
use tpu_watchdog::model::settings::JobSettings;
use tpu_watchdog::model::slot::RunOrder;
use tpu_watchdog::model::spec::NodeSpec;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::Simulator;

const ZONE: &str = "us-central2-b";

struct Host {
    simulator: Simulator,
    folder: tempfile::TempDir,
    base: String,
    _runtime: tokio::runtime::Runtime,
}

impl Host {
    /// A node whose startup script is the supervisor for `job`, beside the user's own script.
    fn new(job: &JobSettings, user_script: &str, order: &RunOrder) -> Option<Host> {
        let works =
            |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
        if !(works("curl") && works("bash")) {
            assert!(std::env::var_os("CI").is_none(), "curl and bash must be there in CI");
            eprintln!("left out: curl or bash is missing");
            return None;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let simulator = Simulator::new(Cloud::new(Default::default()));
        let listener = runtime.block_on(Simulator::bind(([127, 0, 0, 1], 0).into())).unwrap();
        let base = format!("http://{}/metadata/{ZONE}/a/0/computeMetadata/v1", listener.local_addr().unwrap());
        runtime.spawn(simulator.clone().serve(listener));
        let spec = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "metadata": {"startup-script": user_script}});
        let body = NodeSpec::learn(&spec).unwrap().render("me", "a", order, Some(&launch::supervisor("a", job)));
        simulator.with(|cloud| cloud.add_node(ZONE, "a", body.as_object().unwrap().clone(), true));
        Some(Host { simulator, folder: tempfile::tempdir().unwrap(), base, _runtime: runtime })
    }

    /// One boot, as the guest agent does it: the metadata's startup script in a temporary file.
    fn boot(&self) {
        let script = self.simulator.with(|cloud| {
            let node = cloud.nodes.values().next().unwrap();
            node.body["metadata"]["startup-script"].as_str().unwrap().to_owned()
        });
        let file = self.path("startup");
        std::fs::File::create(&file).unwrap().write_all(script.as_bytes()).unwrap();
        let status = Command::new("bash")
            .arg(&file)
            .env("TPU_WATCHDOG_METADATA", &self.base)
            .env("TPU_WATCHDOG_STATE", self.folder.path())
            .env("TPU_WATCHDOG_BEAT", "0.2")
            .env("TPU_WATCHDOG_PAUSE", "0.1")
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        // The guest agent removes its temporary file when the script returns.
        std::fs::remove_file(file).unwrap();
    }

    /// Ends everything that was started from this host's folder, by its process ids.
    fn power_off(&self) {
        let mark = self.folder.path().to_string_lossy().into_owned();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.contains(&mark) {
                let _ = Command::new("kill").arg("-KILL").arg(pid.to_string()).status();
            }
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn attribute(&self, key: &str) -> Option<String> {
        self.simulator
            .with(|cloud| cloud.nodes.values().next().unwrap().attributes[0].get(&format!("tpu-watchdog/{key}")).cloned())
    }

    #[track_caller]
    fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        while !condition() {
            let log = std::fs::read_to_string(self.path("supervisor.log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(30), "waited in vain: {what}\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.power_off();
    }
}

fn job(command: &str, folder: &Path) -> JobSettings {
    JobSettings {
        command: Some(command.to_owned()),
        dir: folder.display().to_string(),
        env: [("QUOTED".to_owned(), "it's $HOME".to_owned())].into(),
        restarts_per_run: 2,
        no_progress: 3,
        ..JobSettings::default()
    }
}

fn order(step: Option<u64>) -> RunOrder {
    RunOrder { generation: 7, checkpoint: step.map_or(String::new(), |s| format!("gs://b/ckpt/{s}")), step }
}

#[test]
fn it_beats_runs_both_scripts_with_the_variables_of_the_contract_and_reports_the_end() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!(
        "env | grep -E '^(CHECKPOINT|TPU_WATCHDOG_(SLOT|GEN|WORKER)|QUOTED)' | sort > {0}; pwd >> {0}; echo 1234 > \"$TPU_WATCHDOG_PROGRESS\"; \
         while ! test -e {1}; do sleep 0.05; done",
        out.display(),
        work.path().join("go").display()
    );
    let user_script = format!("#! /bin/bash\necho user > {}\n", work.path().join("user").display());
    let Some(host) = Host::new(&job(&command, work.path()), &user_script, &order(Some(1200))) else { return };
    host.boot();
    assert!(host.attribute("boot").is_some(), "the boot beacon is sent before boot goes on");
    host.wait("the step", || host.attribute("step").is_some_and(|s| s.ends_with(" 7 1234")));
    host.wait("the heartbeat", || host.attribute("heartbeat").is_some_and(|h| h.ends_with("running")));
    assert_eq!(std::fs::read_to_string(work.path().join("user")).unwrap(), "user\n");
    let expected = format!(
        "CHECKPOINT_PATH=gs://b/ckpt/1200\nCHECKPOINT_STEP=1200\nQUOTED=it's $HOME\nTPU_WATCHDOG_GENERATION=7\nTPU_WATCHDOG_SLOT=a\n\
         TPU_WATCHDOG_WORKER=0\nTPU_WATCHDOG_WORKERS=1\n{}\n",
        work.path().display()
    );
    assert_eq!(std::fs::read_to_string(&out).unwrap(), expected);
    std::fs::write(work.path().join("go"), "").unwrap();
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.ends_with(" 7 0 done")));
}

#[test]
fn without_a_checkpoint_its_variables_are_empty() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command =
        format!("echo \"[${{CHECKPOINT_PATH}}][${{CHECKPOINT_STEP}}]${{CHECKPOINT_PATH:+ --resume}}\" > {}", out.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some());
    assert_eq!(std::fs::read_to_string(out).unwrap(), "[][]\n");
}

#[test]
fn a_failing_command_is_restarted_within_its_budget_and_then_reported() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let Some(host) = Host::new(&job(&format!("echo x >> {}; exit 139", tries.display()), work.path()), "", &order(None)) else {
        return;
    };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.contains(" 7 139 final after 2 restarts")));
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\nx\n");
    // The budget is counted over reboots of the same disk.
    assert_eq!(std::fs::read_to_string(host.path("restarts.7")).unwrap().trim(), "2");
}

#[test]
fn a_second_start_beside_a_running_supervisor_does_not_run_the_job_twice() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!("echo x >> {}; exec sleep 20", tries.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("the job", || tries.exists());
    host.boot();
    let beats = host.attribute("heartbeat");
    host.wait("two more heartbeats", || host.attribute("heartbeat") != beats);
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\n");
}

#[test]
fn a_boot_after_the_end_does_not_run_the_job_again() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let Some(host) = Host::new(&job(&format!("echo x >> {}", tries.display()), work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some());
    // The host goes down with everything on it, and comes up with the same disk.
    host.power_off();
    host.simulator.with(|cloud| cloud.nodes.values_mut().next().unwrap().attributes[0].clear());
    host.boot();
    host.wait("the end is reported again", || host.attribute("exit").is_some_and(|e| e.ends_with(" 7 0 done")));
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\n");
}

#[test]
fn nothing_starts_before_the_run_order_could_be_read() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo $TPU_WATCHDOG_GENERATION > {}", out.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(5))) else { return };
    let outage = |logged: &tpu_watchdog::simulator::http::Logged| {
        let reply = tpu_watchdog::simulator::http::Reply::new(503, "");
        logged.path.contains("tpu-watchdog-run").then_some(tpu_watchdog::simulator::http::Fault::AnswerBefore(reply))
    };
    let (asked, count) = (std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0)), std::sync::atomic::Ordering::SeqCst);
    let seen = std::sync::Arc::clone(&asked);
    host.simulator.set_hook(Some(Box::new(move |logged| {
        // curl itself asks four times.
        if seen.load(count) >= 8 {
            return None;
        }
        let fault = outage(logged);
        seen.fetch_add(u32::from(fault.is_some()), count);
        fault
    })));
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some());
    assert_eq!(std::fs::read_to_string(out).unwrap(), "7\n");
    assert!(asked.load(count) >= 8);
}

#[test]
fn without_a_command_the_user_script_is_the_job() {
    let work = tempfile::tempdir().unwrap();
    let script = format!("#! /bin/bash\necho \"$TPU_WATCHDOG_GENERATION\" > {}\n", work.path().join("out").display());
    let settings = JobSettings { command: None, ..job("", work.path()) };
    let Some(host) = Host::new(&settings, &script, &order(None)) else { return };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.ends_with(" 0 done")));
    assert_eq!(std::fs::read_to_string(work.path().join("out")).unwrap(), "7\n");
}

#[test]
fn the_script_is_valid_and_within_the_limits_of_metadata() {
    let script = launch::supervisor("a", &job("x", Path::new("/")));
    assert!(script.len() < 262_144);
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}
