//! A host: a machine whose startup script is the supervisor, and a simulated metadata server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use tpu_watchdog::launch;
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::{CheckpointSettings, JobSettings};
use tpu_watchdog::model::spec::NodeSpec;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::Simulator;
use tpu_watchdog::simulator::things::Timing;

use crate::machine::Machine;

const ZONE: &str = "us-central2-b";

pub struct Host {
    pub simulator: Simulator,
    machine: Machine,
    base: String,
    /// The internal address of this machine.
    pub address: String,
    _runtime: tokio::runtime::Runtime,
}

impl Host {
    /// A node whose startup script is the supervisor for `job`, beside the user's own script.
    pub fn new(job: &JobSettings, user_script: &str, order: &RunOrder) -> Option<Host> {
        Host::of_type("v4-8", job, user_script, order)
    }

    pub fn of_type(
        accelerator: &str,
        job: &JobSettings,
        user_script: &str,
        order: &RunOrder,
    ) -> Option<Host> {
        if !Machine::is_possible() {
            return None;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        // No guest is simulated: this one is real.
        let timing = Timing { boot: Duration::from_secs(9000 * 3600), ..Timing::default() };
        let simulator = Simulator::new(Cloud::new(timing));
        let listener = runtime.block_on(Simulator::bind(([127, 0, 0, 1], 0).into())).unwrap();
        let base = format!(
            "http://{}/metadata/{ZONE}/a/0/computeMetadata/v1",
            listener.local_addr().unwrap()
        );
        runtime.spawn(simulator.clone().serve(listener));
        let spec = json!({"acceleratorType": accelerator, "runtimeVersion": "r", "metadata": {"startup-script": user_script}});
        let body = NodeSpec::learn(&spec).unwrap().render(
            "me",
            "a",
            order,
            Some(&launch::supervisor("a", job)),
        );
        let address = Machine::address();
        simulator.with(|cloud| {
            cloud.add_node(ZONE, "a", body.as_object().unwrap().clone(), true);
            cloud.host_address = Some(address.clone());
        });
        let machine = Machine::new("boot", &base);
        Some(Host { simulator, machine, base, address, _runtime: runtime })
    }

    pub fn program(&self, name: &str, text: &str) {
        self.machine.program(name, text);
    }

    pub fn home(&self, home: &Path) {
        self.machine.home(home);
    }

    pub fn boot(&self) {
        self.boot_with(&[]);
    }

    /// A boot whose supervisor also has these variables.
    pub fn boot_with(&self, variables: &[(&str, &str)]) {
        let script = self.simulator.with(|cloud| {
            let node = cloud.nodes.values().next().unwrap();
            node.body["metadata"]["startup-script"].as_str().unwrap().to_owned()
        });
        self.machine.boot(&script, variables);
    }

    /// A boot that runs this script.
    pub fn boot_script(&self, script: &str) {
        self.machine.boot(script, &[]);
    }

    /// The node's metadata has this value as well.
    pub fn metadata(&self, key: &str, value: &str) {
        self.simulator.with(|cloud| {
            let node = cloud.nodes.values_mut().next().unwrap();
            node.body["metadata"][key] = value.into();
        });
    }

    /// The watchdog has given the node back.
    pub fn released(&self) {
        self.simulator.with(|cloud| {
            let node = cloud.nodes.values_mut().next().unwrap();
            let metadata = node.body["metadata"].as_object_mut().unwrap();
            metadata.retain(|key, _| !key.starts_with("tpu-watchdog-"));
        });
    }

    /// The watchdog has changed the run order in the node's metadata.
    pub fn orders(&self, order: RunOrder) {
        self.metadata("tpu-watchdog-run", &order.text());
    }

    /// The machine is down and comes up again: nothing runs, nothing is reported; what is on the
    /// disk stays.
    pub fn power_cycle(&self, variables: &[(&str, &str)]) {
        self.machine.power_off();
        self.simulator.with(|cloud| cloud.nodes.values_mut().next().unwrap().attributes[0].clear());
        self.boot_with(variables);
    }

    /// The address of the simulated APIs.
    pub fn origin(&self) -> String {
        self.base.split_once("/metadata/").unwrap().0.to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.machine.path(name)
    }

    pub fn attribute(&self, key: &str) -> Option<String> {
        self.simulator.with(|cloud| {
            cloud.nodes.values().next().unwrap().attributes[0]
                .get(&format!("tpu-watchdog/{key}"))
                .cloned()
        })
    }

    /// The text of its last heartbeat.
    pub fn phase(&self) -> String {
        let beat = self.attribute("heartbeat").unwrap_or_default();
        beat.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()
    }

    /// The answer of worker 0 to a call; nothing where it does not listen.
    pub fn call(&self, line: &str) -> String {
        call(&self.address, line)
    }

    /// Another host of the slice, which is ready to start the present generation again and again.
    pub fn other(&self, worker: usize) -> Other {
        self.other_of(worker, &format!("other-{worker}"))
    }

    /// The same with this boot id.
    pub fn other_of(&self, worker: usize, boot: &str) -> Other {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, said) = (Arc::clone(&is_over), Arc::new(Mutex::new(String::new())));
        let (boot, heard) = (boot.to_owned(), Arc::clone(&said));
        let (address, simulator) = (self.address.clone(), self.simulator.clone());
        let calls = std::thread::spawn(move || {
            let (mut of, mut tried) = (0, 0);
            while !over.load(Ordering::SeqCst) {
                let generation = simulator.with(|cloud| ordered(cloud));
                if of != generation {
                    (of, tried) = (generation, 0);
                }
                let line = format!("roll-call me a {generation} {worker} {tried} {boot}");
                let answer = call(&address, &line);
                let go = answer.trim().strip_prefix("go ").and_then(|go| go.parse().ok());
                tried = go.unwrap_or(tried);
                heard.lock().unwrap().push_str(&answer);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Other { is_over, said, calls: Some(calls) }
    }

    #[track_caller]
    pub fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        while !condition() {
            let in_time = began.elapsed() < Duration::from_secs(30);
            assert!(in_time, "waited in vain: {what}\n{}", self.machine.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A host that calls until it is dropped.
pub struct Other {
    is_over: Arc<AtomicBool>,
    said: Arc<Mutex<String>>,
    calls: Option<JoinHandle<()>>,
}

impl Other {
    /// The answers of worker 0, a line each.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(calls) = self.calls.take() {
            let _ = calls.join();
        }
    }
}

fn call(address: &str, line: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect((address, 8377)) {
        // Where it is gone by then, the answer is none.
        let _ = stream.write_all(format!("{line}\n").as_bytes());
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

/// The generation of the present run order.
fn ordered(cloud: &Cloud) -> u64 {
    let node = cloud.nodes.values().next().unwrap();
    let order = node.body["metadata"]["tpu-watchdog-run"].as_str().unwrap_or_default();
    serde_json::from_str::<RunOrder>(order).map_or(0, |order| order.generation)
}

pub fn job(command: &str, folder: &Path) -> JobSettings {
    JobSettings {
        command: Some(command.to_owned()),
        dir: folder.display().to_string(),
        checkpoint: Some(CheckpointSettings {
            uri: "gs://b/ckpt".into(),
            format: None,
            orbax_mode: Default::default(),
        }),
        env: [("QUOTED".to_owned(), "it's $HOME".to_owned())].into(),
        stop_grace: Duration::from_secs(2),
        restarts_per_run: 2,
        no_progress: 3,
        transient_exit_codes: vec![6, 11, 134, 139],
        ..JobSettings::default()
    }
}

pub fn order(step: Option<u64>) -> RunOrder {
    RunOrder {
        generation: 7,
        checkpoint: step.map_or(String::new(), |s| format!("gs://b/ckpt/{s}")),
        step,
        ..RunOrder::default()
    }
}
