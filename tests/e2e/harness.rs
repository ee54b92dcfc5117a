//! A simulator that can be looked into, a config in a temporary folder, and the real binary.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tempfile::TempDir;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::{Logged, Simulator};
use tpu_watchdog::simulator::scenario::Scenario;
use tpu_watchdog::simulator::things::Node;
use tpu_watchdog::simulator::trouble::{Event, Trouble};

pub const ZONE: &str = "us-central2-b";
/// Nothing that is waited for takes this long, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Rig {
    pub simulator: Simulator,
    pub base: String,
    pub folder: TempDir,
    pub child: Arc<Mutex<Option<Child>>>,
    starts: u32,
    runtime: tokio::runtime::Runtime,
}

/// Graces in tenths of seconds, polls every 0.3 s.
pub const POLICY: &str = r#"
confirmations = 2
heal = "800ms"
backoff = { first = "200ms", max = "400ms" }
stock_out = { first = "200ms", max = "400ms" }
storm = { min = 4 }
attempts = { settled = "60s" }
grace = { startup = "1s", maintenance = "1s", failed_repair = "1s", unresponsive = "1s", runtime_unhealthy = "1s", boot = "1s", silent = "20s", missing = "1s", deleting = "20s" }
"#;

impl Rig {
    /// A rig over a scenario; `policy` goes into `[policy]`, `slots` is the rest of the config.
    pub fn new(scenario: &str, policy: &str, slots: &str) -> Rig {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let scenario = Scenario::parse(scenario).unwrap();
        let simulator = Simulator::new(scenario.build(Timestamp::now(), 1.0));
        let listener = runtime.block_on(Simulator::bind(([127, 0, 0, 1], 0).into())).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(simulator.clone().serve(listener));
        let rig = Rig {
            simulator,
            base,
            folder: tempfile::tempdir().unwrap(),
            child: Arc::default(),
            starts: 0,
            runtime,
        };
        rig.configure("", policy, slots);
        rig
    }

    /// Another way into the same simulator, whose requests are told apart in its log.
    pub fn door(&self, name: &'static str) -> String {
        let listener = self.runtime.block_on(Simulator::bind(([127, 0, 0, 1], 0).into())).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        self.runtime.spawn(self.simulator.door(name).serve(listener));
        base
    }

    /// One adopted node `a`, and its slot.
    pub fn with_one_node(job: &str) -> Rig {
        let run = "job = { checkpoint = \"gs://bucket/{node}\", step = \"100ms\", every = 5, at_step = 10 }";
        let nodes = format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\nspot = true\n{run}\n");
        Rig::new(&nodes, POLICY, &slot("a", job))
    }

    pub fn configure(&self, top: &str, policy: &str, slots: &str) {
        let text = format!(
            "project = \"p\"\nstate = \"sqlite:state.db\"\nlease = \"1s\"\nlisten = \"127.0.0.1:0\"\n{top}\n\
             [poll]\nevery = \"300ms\"\noperations = \"50ms\"\ntimeout = \"2s\"\n\
             [api]\ntpu = \"{0}\"\nstorage = \"{0}\"\ncredentials = \"anonymous\"\n[policy]\n{policy}\n{slots}\n",
            self.base
        );
        std::fs::write(self.config(), text).unwrap();
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("watchdog.toml")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"));
        command
            .args(arguments)
            .arg("--config")
            .arg(self.config())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Starts `run`, its log in a file.
    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// The same with variables of its own in the environment.
    pub fn start_with(&mut self, variables: &[(&str, &str)]) {
        self.starts += 1;
        let log = File::create(self.folder.path().join(format!("log.{}", self.starts))).unwrap();
        let mut command = self.command(&["run"]);
        command.envs(variables.iter().copied()).env_remove("GOOGLE_APPLICATION_CREDENTIALS");
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        *self.child.lock().unwrap() = Some(child);
    }

    /// Starts `run` so that a write beyond its limit of file sizes is an error and not its end.
    pub fn start_ignoring_sigxfsz(&mut self) {
        self.starts += 1;
        let log = File::create(self.folder.path().join(format!("log.{}", self.starts))).unwrap();
        let mut command = Command::new("bash");
        command.args([
            "-c",
            "trap '' XFSZ; exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_tpu-watchdog"),
            "run",
            "--config",
        ]);
        command.arg(self.config()).env_remove("RUST_LOG").stdin(Stdio::null());
        *self.child.lock().unwrap() =
            Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// All logs so far.
    pub fn logs(&self) -> String {
        (1..=self.starts)
            .filter_map(|n| {
                std::fs::read_to_string(self.folder.path().join(format!("log.{n}"))).ok()
            })
            .collect()
    }

    /// How it came to this: the last mutations and the last lines of the logs.
    fn story(&self) -> String {
        let tail = |text: String, most: usize| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(most)..].join("\n")
        };
        format!("{}\n\n{}", tail(self.mutations_text(), 20), tail(self.logs(), 80))
    }

    pub fn kill(&self) {
        kill(&self.child);
    }

    /// Waits for a condition of the world.
    #[track_caller]
    pub fn wait(&self, what: &str, condition: impl FnMut(&mut Cloud) -> bool) {
        self.wait_for(what, PATIENCE, condition);
    }

    /// Waits for something else: the world goes on while it is looked at.
    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        self.wait_long_until(what, PATIENCE, condition);
    }

    #[track_caller]
    pub fn wait_long_until(
        &self,
        what: &str,
        patience: Duration,
        mut condition: impl FnMut() -> bool,
    ) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < patience, "waited in vain: {what}\n{}", self.story());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn wait_for(
        &self,
        what: &str,
        patience: Duration,
        mut condition: impl FnMut(&mut Cloud) -> bool,
    ) {
        let began = Instant::now();
        while !self.simulator.with(&mut condition) {
            assert!(began.elapsed() < patience, "waited in vain: {what}\n{}", self.story());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn wait_for_log(&self, words: &str) {
        let began = Instant::now();
        while !self.logs().contains(words) {
            assert!(began.elapsed() < PATIENCE, "no line with {words:?} in\n{}", self.story());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until `count` more listings were answered.
    #[track_caller]
    pub fn wait_polls(&self, count: usize) {
        let before = self.polls().len();
        self.wait_until("polls go on", || self.polls().len() >= before + count);
    }

    /// Waits until so many more listings of training jobs were answered.
    #[track_caller]
    pub fn wait_log_lists(&self, count: usize) {
        let lists = || {
            let of_jobs = |path: &str| {
                ["/customJobs?", "/hyperparameterTuningJobs?", "/jobs?"]
                    .iter()
                    .any(|list| path.contains(list))
            };
            let lists = |l: &&Logged| l.method == "GET" && of_jobs(&l.path);
            self.simulator.log().iter().filter(lists).count()
        };
        let before = lists();
        self.wait_until("polls go on", || lists() >= before + count);
    }

    /// Something happens to a node (or zone) now.
    pub fn trouble(&self, node: &str, what: Trouble, lasts: Option<u64>) -> Timestamp {
        let lasts = lasts.map(Duration::from_millis);
        self.simulator.with(|cloud| {
            cloud.trouble(Event {
                at: Duration::ZERO,
                node: node.into(),
                zone: ZONE.into(),
                what,
                lasts,
            });
            cloud.now()
        })
    }

    pub fn node(&self, name: &str) -> Option<Node> {
        self.simulator.with(|cloud| cloud.nodes.get(&(ZONE.to_owned(), name.to_owned())).cloned())
    }

    pub fn creations(&self, name: &str) -> u32 {
        self.simulator.with(|cloud| cloud.creations.get(name).copied().unwrap_or(0))
    }

    pub fn mutations(&self) -> Vec<Logged> {
        self.simulator.log().into_iter().filter(Logged::is_mutation).collect()
    }

    pub fn mutations_text(&self) -> String {
        self.mutations()
            .iter()
            .map(|m| format!("{} {} {} {:?}\n", m.at, m.method, m.path, m.status))
            .collect()
    }

    pub fn polls(&self) -> Vec<Logged> {
        self.simulator
            .log()
            .into_iter()
            .filter(|l| l.method == "GET" && l.path.contains("/nodes?"))
            .collect()
    }

    /// Waits until the slot's node is a new one, READY, and `status` calls it healthy and without a
    /// recovery.
    #[track_caller]
    pub fn wait_recovered(&self, name: &str, old: u64) {
        self.wait(&format!("{name} is replaced"), |cloud| {
            cloud
                .nodes
                .get(&(ZONE.to_owned(), name.to_owned()))
                .is_some_and(|n| n.uid != old && n.state == "READY")
        });
        let began = Instant::now();
        loop {
            let status = self.status();
            let slot = status["tpus"]
                .as_array()
                .unwrap()
                .iter()
                .find(|s| s["name"] == name)
                .unwrap()
                .clone();
            if slot["phase"].is_null() && slot["condition"] == "healthy" {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{name} does not settle: {slot}\n{}", self.story());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// `status --output json`, as a user would ask.
    pub fn status(&self) -> serde_json::Value {
        let began = Instant::now();
        loop {
            let output = self.command(&["status", "--output", "json"]).output().unwrap();
            // State in a bucket answers within a second, or it is asked again.
            let log = String::from_utf8_lossy(&output.stderr);
            let slow =
                output.stdout.is_empty() && log.contains("gs://") && began.elapsed() < PATIENCE;
            if !slow {
                return serde_json::from_slice(&output.stdout)
                    .unwrap_or_else(|e| panic!("{e}: {log}"));
            }
        }
    }

    /// The address of the endpoints, from the log.
    pub fn endpoint(&self) -> String {
        self.wait_for_log("serving http://");
        let logs = self.logs();
        let at = logs.rfind("serving http://").unwrap() + "serving ".len();
        logs[at..].split("/ ").next().unwrap().to_owned()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        kill(&self.child);
    }
}

/// SIGKILL, and wait until it is gone.
pub fn kill(child: &Arc<Mutex<Option<Child>>>) {
    if let Some(mut child) = child.lock().unwrap().take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

pub fn slot(name: &str, job: &str) -> String {
    format!("[[tpu]]\nname = \"{name}\"\nzone = \"{ZONE}\"\n{job}\n")
}

pub fn job(name: &str) -> String {
    format!("[tpu.job]\ncommand = 'python3 train.py'\ncheckpoint = \"gs://bucket/{name}\"\n")
}

/// GET over plain HTTP: status and body.
pub fn get(url: &str) -> (u16, String) {
    request("GET", url)
}

/// A request without a body over plain HTTP: status and body.
pub fn request(method: &str, url: &str) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    write!(stream, "{method} /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
}
