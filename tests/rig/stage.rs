//! A slice of four hosts on which things happen: who powers its machines, and what the trainers
//! wrote down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Deserialize;
use tpu_watchdog::simulator::cloud::Cloud;

use crate::harness::{Rig, ZONE};
use crate::machine::Machine;

pub const HOSTS: usize = 4;
/// Steps between two checkpoints, as the trainer has them.
const EVERY: u64 = 10;
/// One minute of a real slice.
pub const MINUTE: Duration = Duration::from_millis(500);

/// `grace.silent` in minutes.
const SILENT: u32 = 15;

type Machines = Arc<Mutex<BTreeMap<(u64, usize), Arc<Machine>>>>;

/// An entry of a trainer.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    pub event: String,
    pub generation: u64,
    /// The number of the run within its generation.
    #[serde(rename = "try")]
    pub attempt: u64,
    pub worker: usize,
    pub at: f64,
    #[serde(default)]
    pub step: u64,
    #[serde(default)]
    loss: f64,
    peer: Option<Peer>,
}

#[derive(Debug, Clone, Deserialize)]
struct Peer {
    worker: usize,
    generation: u64,
    #[serde(rename = "try")]
    attempt: u64,
}

pub struct Stage {
    pub rig: Rig,
    hosts: usize,
    folder: tempfile::TempDir,
    machines: Machines,
    /// After so many seconds without an order a host starts by itself.
    alone: &'static str,
    is_over: Arc<AtomicBool>,
    power: Option<JoinHandle<()>>,
}

impl Stage {
    /// The watchdog runs, and its slot has no TPU yet. `setup` is the user's startup script.
    pub fn new(setup: &str) -> Option<Stage> {
        let mut stage = Stage::with(setup, "50")?;
        stage.rig.start();
        Some(stage)
    }

    /// The same with a slot that may be silent for an hour.
    pub fn patient() -> Option<Stage> {
        let mut stage = Stage::on(HOSTS, "", ("50", 60))?;
        stage.rig.start();
        Some(stage)
    }

    /// The same with one host.
    pub fn of_one_host() -> Option<Stage> {
        let mut stage = Stage::on(1, "", ("50", SILENT))?;
        stage.rig.start();
        Some(stage)
    }

    /// The same before the watchdog starts. After so many seconds without an order a host starts by
    /// itself.
    pub fn with(setup: &str, alone: &'static str) -> Option<Stage> {
        Stage::on(HOSTS, setup, (alone, SILENT))
    }

    fn on(hosts: usize, setup: &str, (alone, silent): (&'static str, u32)) -> Option<Stage> {
        if !Machine::is_possible() {
            return None;
        }
        let python =
            Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let Ok(python) = python else {
            assert!(std::env::var_os("CI").is_none(), "python3 must be there in CI");
            eprintln!("left out: python3 is missing");
            return None;
        };
        let python = String::from_utf8(python.stdout).unwrap();
        // No guest is simulated: the machines here are real processes.
        let scenario = "nodes = []\n[times]\nboot = \"9000h\"\n";
        let rig = Rig::new(scenario, "", "");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(rig.folder.path().join("setup.sh"), setup).unwrap();
        let minutes = |n: u32| format!("{} ms", (MINUTE * n).as_millis());
        let policy = format!(
            "confirmations = 2\nheal = \"2s\"\nbackoff = {{ first = \"200ms\", max = \"400ms\" }}\n\
             stock_out = {{ first = \"200ms\", max = \"400ms\" }}\nattempts = {{ settled = \"60s\" }}\n\
             grace = {{ startup = \"10s\", boot = \"{}\", silent = \"{}\", missing = \"300ms\", maintenance = \"{}\" }}\n",
            minutes(40),
            minutes(silent),
            minutes(60)
        );
        let slot = format!(
            "[[tpu]]\nname = \"a\"\nzone = \"{ZONE}\"\nstartup_script = \"setup.sh\"\n\
             [tpu.create]\naccelerator_type = \"v4-{}\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\n\
             [tpu.job]\ncommand = '{} {}/tests/rig/trainer.py'\ncheckpoint = \"gs://bucket/a\"\ndir = \"{rig}\"\n\
             stop_grace = \"2s\"\non_notice = \"SIGUSR1\"\nrestart = {{ per_run = 2 }}\n\
             env = {{ RIG = \"{rig}\", RIG_STORE = \"{}\", RIG_STEP = \"0.05\", RIG_PATIENCE = \"20\" }}\n",
            hosts * 8,
            python.trim(),
            env!("CARGO_MANIFEST_DIR"),
            rig.base.trim_start_matches("http://"),
            rig = folder.path().display(),
        );
        rig.configure("", &policy, &slot);
        let address = Machine::address();
        rig.simulator.with(|cloud| cloud.host_address = Some(address));
        let (machines, is_over) = (Machines::default(), Arc::new(AtomicBool::new(false)));
        let power = power(&rig, (hosts, alone), &machines, &is_over);
        Some(Stage { rig, hosts, folder, machines, alone, is_over, power: Some(power) })
    }

    /// Waits until the slot is escalated. Returns the reason.
    #[track_caller]
    pub fn escalates(&self) -> String {
        let mut slot = serde_json::Value::Null;
        self.wait("it is escalated", || {
            // Before there is a node there may be no state to read.
            self.rig.node("a").is_some() && {
                slot = self.rig.status()["tpus"][0].clone();
                slot["action"] == "escalate"
            }
        });
        slot["reason"].to_string()
    }

    /// A file that the trainers look for.
    pub fn tell(&self, what: &str) {
        std::fs::write(self.path(what), "").unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The machine of a worker of the present TPU.
    pub fn host(&self, worker: usize) -> Arc<Machine> {
        let uid = self.rig.node("a").unwrap().uid;
        Arc::clone(&self.machines.lock().unwrap()[&(uid, worker)])
    }

    /// The machine boots with the present metadata.
    pub fn boot(&self, host: &Machine) {
        boot(host, &self.rig.simulator.with(|cloud| script(cloud)).unwrap(), self.alone);
    }

    /// Kills a host's supervisor, as a lack of memory may; systemd starts it again.
    pub fn kill_supervisor(&self, worker: usize) {
        let unit = self.host(worker).path("units/tpu-watchdog-supervisor");
        let main = std::fs::read_to_string(unit).unwrap();
        let killed = Command::new("kill").args(["-KILL", main.trim()]).status().unwrap();
        assert!(killed.success());
    }

    pub fn diary(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(self.path("diary")).unwrap_or_default();
        // The last line may be half written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until all workers of this generation, or a later one, have made so many steps in it.
    /// Returns the generation.
    #[track_caller]
    pub fn runs(&self, generation: u64, steps: usize) -> u64 {
        let mut runs = 0;
        self.wait(&format!("generation {generation} makes {steps} steps"), || {
            let mut done: BTreeMap<u64, BTreeMap<usize, usize>> = BTreeMap::new();
            for entry in self.diary().iter().filter(|entry| entry.event == "step") {
                *done.entry(entry.generation).or_default().entry(entry.worker).or_default() += 1;
            }
            let whole = |by: &BTreeMap<usize, usize>| {
                by.len() == self.hosts && by.values().all(|made| *made >= steps)
            };
            runs = done.iter().filter(|(_, by)| whole(by)).map(|(g, _)| *g).max().unwrap_or(0);
            runs >= generation
        });
        runs
    }

    #[track_caller]
    pub fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let began = std::time::Instant::now();
        while !condition() {
            if began.elapsed() > Duration::from_secs(60) {
                for ((uid, worker), machine) in self.machines.lock().unwrap().iter() {
                    println!("---- worker {worker} of {uid}\n{}", machine.log());
                }
                self.rig.wait_long_until(what, Duration::ZERO, || false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Holds in each story: no process met one of another generation or try; all workers of one start
    /// from the same complete checkpoint, the newest of that moment; the loss goes on as if nothing
    /// had happened. Prints how long each interruption was.
    #[track_caller]
    pub fn audit(&self) {
        let diary = self.diary();
        let of = |event: &'static str| diary.iter().filter(move |entry| entry.event == event);
        for met in of("met") {
            let peer = met.peer.as_ref().unwrap();
            let (its, theirs) = ((met.generation, met.attempt), (peer.generation, peer.attempt));
            assert_eq!(its, theirs, "it met worker {}: {met:?}", peer.worker);
        }
        // Two runs side by side: never. All that one did comes before the next one starts on any host.
        let mut runs: BTreeMap<(u64, u64), (f64, f64)> = BTreeMap::new();
        for entry in diary.iter().filter(|entry| ["start", "step"].contains(&entry.event.as_str()))
        {
            let of = (entry.generation, entry.attempt);
            let (first, last) = runs.entry(of).or_insert((entry.at, entry.at));
            (*first, *last) = (first.min(entry.at), last.max(entry.at));
        }
        for ((before, (_, last)), (next, (first, _))) in runs.iter().zip(runs.iter().skip(1)) {
            assert!(
                last <= first,
                "{before:?} still runs at {last} when {next:?} starts at {first}"
            );
        }
        let mut curve = vec![1.0];
        let last = of("step").map(|entry| entry.step).max().unwrap_or(0);
        for step in 0..last {
            curve.push(curve.last().unwrap() * 0.99 + 1.0 / (step + 7) as f64);
        }
        for entry in of("step") {
            let expected: f64 = curve[usize::try_from(entry.step).unwrap()];
            assert!((entry.loss - expected).abs() < 1e-9, "{entry:?}, expected {expected}");
        }
        self.are_told(of("start").map(|entry| entry.generation).collect());
        let mut saved = 0;
        let mut stopped: Option<f64> = None;
        let generations: BTreeSet<u64> = of("start").map(|entry| entry.generation).collect();
        for generation in generations {
            let began: BTreeSet<u64> =
                of("start").filter(|e| e.generation == generation).map(|e| e.step).collect();
            let begins = *began.first().unwrap();
            assert_eq!(began.len(), 1, "generation {generation} starts from {began:?}");
            assert!(begins >= saved, "generation {generation} from {begins}, {saved} is complete");
            let steps = || of("step").filter(|e| e.generation == generation && e.worker == 0);
            if let (Some(first), Some(last)) = (steps().next(), steps().next_back()) {
                assert_eq!(first.step, begins + 1, "generation {generation} goes on");
                // A checkpoint is whole before the next step is made.
                saved = (last.step - 1) / EVERY * EVERY;
                if let Some(stopped) = stopped {
                    let away = first.at - stopped;
                    println!("generation {generation} goes on from {begins} after {away:.1} s");
                }
                stopped = Some(last.at);
            }
        }
    }

    /// The log tells each generation that was started, by the create or the order that names it, with
    /// its evidence; and as a whole it breaks no rule.
    #[track_caller]
    fn are_told(&self, started: BTreeSet<u64>) {
        let history = |arguments: &[&str]| {
            let mut history = self.rig.command(&["history"]);
            let out = history.args(arguments).output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            assert!(out.status.success(), "{arguments:?}: {text}");
            text
        };
        history(&["--audit"]);
        let told: serde_json::Value =
            serde_json::from_str(&history(&["a", "--output", "json"])).unwrap();
        let events = told["events"].as_array().unwrap().iter();
        let intents =
            events.filter(|e| ["intent", "order_intent"].map(Into::into).contains(&e["event"]));
        let named: BTreeSet<u64> = intents
            .filter(|event| !event["evidence"].is_null() && event["evidence"] != "")
            .filter_map(|event| event["generation"].as_u64())
            .collect();
        assert!(started.is_subset(&named), "started were {started:?}, told are {named:?}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.rig.kill();
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(power) = self.power.take() {
            let _ = power.join();
        }
        self.machines.lock().unwrap().clear();
    }
}

/// The startup script of the slot's node, where that is READY.
fn script(cloud: &Cloud) -> Option<String> {
    let node = cloud.nodes.get(&(ZONE.to_owned(), "a".to_owned()))?;
    let script = node.body["metadata"]["startup-script"].as_str()?;
    (node.state == "READY").then(|| script.to_owned())
}

fn boot(host: &Machine, script: &str, alone: &str) {
    host.boot(
        script,
        &[
            ("TPU_WATCHDOG_BEAT", "0.5"),
            ("TPU_WATCHDOG_PAUSES", "0.3 0.6"),
            ("TPU_WATCHDOG_ALONE", alone),
            ("TPU_WATCHDOG_CHIPS", &format!("{}/accel[0-9]*", host.path("dev").display())),
        ],
    );
}

/// Powers the machines of the slot's node on while it is READY, each with an empty disk.
fn power(
    rig: &Rig,
    (hosts, alone): (usize, &'static str),
    machines: &Machines,
    is_over: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (simulator, base) = (rig.simulator.clone(), rig.base.clone());
    let (machines, is_over) = (Arc::clone(machines), Arc::clone(is_over));
    std::thread::spawn(move || {
        while !is_over.load(Ordering::SeqCst) {
            let there = simulator.with(|cloud| {
                let uid = cloud.nodes.get(&(ZONE.to_owned(), "a".to_owned())).map(|node| node.uid);
                uid.zip(script(cloud))
            });
            let mut machines = machines.lock().unwrap();
            let present = there.as_ref().map(|(uid, _)| *uid);
            machines.retain(|(uid, _), _| Some(*uid) == present);
            if let Some((uid, script)) = there.filter(|_| machines.is_empty()) {
                for worker in 0..hosts {
                    let metadata = format!("{base}/metadata/{ZONE}/a/{worker}/computeMetadata/v1");
                    let machine = Arc::new(Machine::new(&format!("{uid}-{worker}"), &metadata));
                    machines.insert((uid, worker), Arc::clone(&machine));
                    let script = script.clone();
                    std::thread::spawn(move || boot(&machine, &script, alone));
                }
            }
            drop(machines);
            std::thread::sleep(Duration::from_millis(50));
        }
    })
}
