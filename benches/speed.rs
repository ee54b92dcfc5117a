//! What speed means here: the time from start to the first completed poll, that of a scheduled run
//! with its state in a bucket to its first API call, from a done operation to its next call, and
//! the resident memory with ten slots. Prints one line each, with the bound that the project sets
//! itself.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tpu_watchdog::simulator::http::Simulator;
use tpu_watchdog::simulator::scenario::Scenario;
use tpu_watchdog::simulator::trouble::{Event, Trouble};

const ZONE: &str = "us-central2-b";
const ROUNDS: usize = 20;

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let scenario =
        Scenario::parse(&format!("[[nodes]]\nprefix = \"n\"\ncount = 10\nzone = \"{ZONE}\"\n"))
            .unwrap();
    let simulator = Simulator::new(scenario.build(Timestamp::now(), 1.0));
    let listener = runtime.block_on(Simulator::bind(([127, 0, 0, 1], 0).into())).unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(simulator.clone().serve(listener));
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("w.toml");
    let mut text = format!(
        "project = \"p\"\nstate = \"sqlite:s.db\"\nlisten = \"off\"\n[poll]\nevery = \"500ms\"\noperations = \"50ms\"\n\
         [api]\ntpu = \"{base}\"\nstorage = \"{base}\"\ncredentials = \"anonymous\"\n"
    );
    for i in 0..10 {
        text.push_str(&format!("[[tpu]]\nname = \"n{i}\"\nzone = \"{ZONE}\"\n"));
    }
    std::fs::File::create(&config).unwrap().write_all(text.as_bytes()).unwrap();
    let log = folder.path().join("log");
    let start = || -> Child {
        let _ = std::fs::remove_file(&log);
        let stderr = std::fs::File::create(&log).unwrap();
        Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
            .arg("run")
            .arg("--config")
            .arg(&config)
            .stderr(stderr)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let logged =
        |words: &str| std::fs::read_to_string(&log).unwrap_or_default().matches(words).count();

    let mut starts = Vec::new();
    for _ in 0..ROUNDS {
        let _ = std::fs::remove_dir_all(folder.path().join("s.db"));
        for name in ["s.db", "s.db-wal", "s.db-shm"] {
            let _ = std::fs::remove_file(folder.path().join(name));
        }
        let began = Instant::now();
        let mut child = start();
        while logged("unclear -> healthy") < 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        starts.push(began.elapsed().as_secs_f64() * 1000.0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    report("start to first completed poll, 10 nodes", &mut starts, "ms", 150.0);

    // A scheduled run: its state is read from a bucket and its lock taken before it asks for the
    // first node.
    let bucket = folder.path().join("once.toml");
    std::fs::write(&bucket, text.replace("sqlite:s.db", "gs://state/speed")).unwrap();
    let mut colds = Vec::new();
    for _ in 0..ROUNDS {
        // The former run's last write must be a second old, as it is on a schedule.
        std::thread::sleep(Duration::from_millis(1100));
        let before = simulator.log().len();
        let began = Timestamp::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"));
        command
            .args(["once", "--deadline", "10s", "--config"])
            .arg(&bucket)
            .stderr(Stdio::null())
            .stdout(Stdio::null());
        assert!(command.status().unwrap().success());
        let first = simulator.log()[before..]
            .iter()
            .find(|l| l.path.contains("/nodes?"))
            .map(|l| l.at)
            .unwrap();
        colds.push(first.duration_since(began).as_secs_f64() * 1000.0);
    }
    report("cold start of a scheduled run to its first API call", &mut colds, "ms", 300.0);

    let mut child = start();
    while simulator.log().iter().filter(|l| l.path.contains("/nodes?")).count() < ROUNDS + 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut delays = Vec::new();
    for i in 0..10 {
        let node = format!("n{i}");
        simulator.with(|cloud| {
            let event = Event {
                at: Duration::ZERO,
                node: node.clone(),
                zone: ZONE.into(),
                what: Trouble::Preempt,
                lasts: None,
            };
            cloud.trouble(event);
        });
        loop {
            std::thread::sleep(Duration::from_millis(5));
            let create = simulator
                .log()
                .into_iter()
                .find(|l| l.method == "POST" && l.path.ends_with(&format!("nodeId={node}")));
            let Some(create) = create else { continue };
            let ended = simulator.with(|cloud| {
                cloud
                    .operations
                    .values()
                    .filter(|o| o.verb == "delete" && o.target.ends_with(&format!("/{node}")))
                    .find_map(|o| o.ended)
            });
            delays.push(create.at.duration_since(ended.unwrap()).as_secs_f64() * 1000.0);
            break;
        }
    }
    report("delete done to create sent, poll.operations = 50 ms", &mut delays, "ms", 150.0);
    std::thread::sleep(Duration::from_secs(3));
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let kib: f64 = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    report("resident memory, 10 slots", &mut [kib / 1024.0], "MiB", 30.0);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn report(what: &str, values: &mut [f64], unit: &str, bound: f64) {
    values.sort_by(f64::total_cmp);
    let (median, worst) = (values[values.len() / 2], values[values.len() - 1]);
    println!(
        "{what}: median {median:.1} {unit}, worst {worst:.1} {unit} (bound {bound:.0} {unit})"
    );
}
