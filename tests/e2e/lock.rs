//! Several watchdogs over one fleet: one acts, the others stand by, whatever happens to the one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tpu_watchdog::model::lease::Lease;
use tpu_watchdog::simulator::http::{Fault, Simulator};
use tpu_watchdog::simulator::trouble::Trouble;

use crate::chaos::Dice;
use crate::harness::{POLICY, Rig, ZONE, get, slot};

/// Thirty kills and ten long pauses.
const ROUNDS: usize = 40;
const SLOTS: usize = 6;
const LEASE: Duration = Duration::from_secs(2);
const OBJECT: &str = "state/watchdog/state.json";

/// Where the lock can be read behind the watchdogs' backs.
#[derive(Clone)]
enum State {
    Sqlite(PathBuf),
    Bucket(Simulator),
}

impl State {
    fn lease(&self) -> Option<Lease> {
        match self {
            State::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).ok()?;
                connection.busy_timeout(Duration::from_secs(5)).ok()?;
                let text: String =
                    connection.query_row("SELECT record FROM lease", [], |row| row.get(0)).ok()?;
                serde_json::from_str(&text).ok()
            }
            State::Bucket(simulator) => {
                let body =
                    simulator.with(|cloud| cloud.objects.get(OBJECT).map(|o| o.body.clone()))?;
                let document: serde_json::Value = serde_json::from_slice(&body).ok()?;
                serde_json::from_value(document["lease"].clone()).ok()
            }
        }
    }

    fn is_writable(&self) -> bool {
        let State::Sqlite(path) = self else { return true };
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.busy_timeout(Duration::from_millis(200)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
    }

    /// Whether a call is intended, and may be on its way.
    fn intends(&self) -> bool {
        let text = match self {
            State::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.busy_timeout(Duration::from_secs(5)).unwrap();
                connection
                    .query_row("SELECT group_concat(record) FROM slot", [], |row| row.get(0))
                    .unwrap()
            }
            State::Bucket(simulator) => {
                let body =
                    simulator.with(|cloud| cloud.objects.get(OBJECT).map(|o| o.body.clone()));
                String::from_utf8_lossy(&body.unwrap_or_default()).into_owned()
            }
        };
        text.contains("\"call\":\"intended\"")
    }

    /// The process that holds the lock.
    fn holder(&self) -> Option<u32> {
        let lease = self.lease().filter(|lease| !lease.released)?;
        lease.holder.split(':').nth(1)?.parse().ok()
    }
}

/// One of the two, with its own way into the simulator.
pub struct Watchdog {
    config: PathBuf,
    pub child: Option<Child>,
}

impl Watchdog {
    pub fn new(rig: &Rig, door: &'static str, state: &str) -> Watchdog {
        let config = rig.folder.path().join(format!("{door}.toml"));
        let text = std::fs::read_to_string(rig.config()).unwrap();
        let text = text.replace(&rig.base, &rig.door(door)).replace("sqlite:state.db", state);
        let text = text.replace("lease = \"1s\"", &format!("lease = \"{}s\"", LEASE.as_secs()));
        std::fs::write(&config, text).unwrap();
        Watchdog { config, child: None }
    }

    pub fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"));
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.config.with_extension("log"))
            .unwrap();
        command
            .args(["run", "--config"])
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn stop(&self) {
        stop(self.pid());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.config.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Puts a process to sleep. The signal alone is no proof of that: it is its first thread that
/// passes it on to the others, and until that one gets a core they run, and may lock the file.
fn stop(pid: u32) {
    assert!(Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap().success());
    // proc(5): the state follows the name, which ends with the last parenthesis. A thread that has
    // ended sleeps as well.
    let sleeps = |stat: &Path| {
        std::fs::read_to_string(stat)
            .map_or(true, |text| text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    };
    waits("every thread sleeps", || {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.all(|thread| sleeps(&thread.unwrap().path().join("stat"))).then_some(())
    });
}

pub fn waits<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Kills whoever holds the lock thirty times, and lets it sleep ten times, while nodes are
/// preempted all the time.
fn one_holder_at_a_time(state: &str) {
    let nodes = format!("[[nodes]]\nprefix = \"n\"\ncount = {SLOTS}\nzone = \"{ZONE}\"\n");
    let slots: String = (0..SLOTS).map(|i| slot(&format!("n{i}"), "")).collect();
    let policy = POLICY.replace("attempts = {", "attempts = { max = 1000, preemptions = 1000,");
    let rig = Rig::new(&nodes, &policy, &slots);
    let state_at = match state {
        "sqlite:state.db" => State::Sqlite(rig.folder.path().join("state.db")),
        _ => State::Bucket(rig.simulator.clone()),
    };
    let mut both = [Watchdog::new(&rig, "one", state), Watchdog::new(&rig, "two", state)];
    both.iter_mut().for_each(Watchdog::start);

    // Each mutation must come from whoever holds the lock when it arrives.
    let pids = Arc::new(Mutex::new([both[0].pid(), both[1].pid()]));
    let violations = Arc::new(Mutex::new(Vec::new()));
    let (looked_up, found, looker) = (Arc::clone(&pids), Arc::clone(&violations), state_at.clone());
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        if logged.is_mutation() {
            let sender = looked_up.lock().unwrap()[usize::from(logged.door == "two")];
            let holder = looker.holder();
            if holder != Some(sender) {
                found.lock().unwrap().push(format!(
                    "{} {} by {sender}, the lock is {holder:?}'s",
                    logged.method, logged.path
                ));
            }
        }
        None
    })));

    let mut dice = Dice(3);
    let mut takeovers = Vec::new();
    for round in 0..ROUNDS {
        let holder = waits("somebody holds the lock", || {
            let pid = state_at.holder()?;
            both.iter().position(|w| w.pid() == pid)
        });
        let other = 1 - holder;
        rig.trouble(&format!("n{}", dice.roll(SLOTS as u64)), Trouble::Preempt, None);
        // Somewhere in the middle of that recovery.
        std::thread::sleep(Duration::from_millis(dice.roll(900)));
        let paused = round % 4 == 3;
        if paused {
            both[holder].stop();
            // One that sleeps in the middle of a write to the file has the file itself locked:
            // nobody could follow it. And no lock can hold a call that has passed its last check
            // and not reached the wire; between its intent and that check one sleeps in the next
            // test.
            let began = Instant::now();
            while !state_at.is_writable() || state_at.intends() {
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "it never rests\n{}",
                    both[holder].log()
                );
                both[holder].signal("-CONT");
                std::thread::sleep(Duration::from_millis(5));
                both[holder].stop();
            }
        } else {
            both[holder].kill();
        }
        let killed = Instant::now();
        waits("the other one takes over", || {
            (state_at.holder()? == both[other].pid()).then_some(())
        });
        takeovers.push(killed.elapsed());
        if paused {
            // It must find out by itself that its time is over.
            both[holder].signal("-CONT");
        } else {
            both[holder].start();
            pids.lock().unwrap()[holder] = both[holder].pid();
        }
    }
    takeovers.sort();
    println!(
        "{state}: {ROUNDS} takeovers with a lease of {} s: median {:.2} s, longest {:.2} s",
        LEASE.as_secs(),
        takeovers[ROUNDS / 2].as_secs_f64(),
        takeovers[ROUNDS - 1].as_secs_f64()
    );
    let logs = || format!("{}\n{}", both[0].log(), both[1].log());
    waits("every node is back", || {
        let back = rig.simulator.with(|cloud| {
            cloud.nodes.len() == SLOTS && cloud.nodes.values().all(|n| n.state == "READY")
        });
        back.then_some(())
    });
    assert!(violations.lock().unwrap().is_empty(), "{:#?}\n{}", violations.lock().unwrap(), logs());
    assert_eq!(rig.simulator.with(|cloud| cloud.harmed), 0, "{}", logs());
    assert!(logs().contains("standing by: "), "{}", logs());
    assert!(logs().contains("took the lock from "), "{}", logs());
}

#[test]
fn s9_l4_of_two_services_on_one_file_one_acts_and_the_other_takes_over() {
    one_holder_at_a_time("sqlite:state.db");
}

#[test]
fn s9_l4_of_two_services_on_one_bucket_one_acts_and_the_other_takes_over() {
    one_holder_at_a_time("gs://state/watchdog");
}

#[test]
fn s9_a_holder_that_sleeps_between_its_commit_and_its_call_sends_nothing_when_it_wakes() {
    let rig = Rig::new(
        &format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\n"),
        POLICY,
        &slot("a", ""),
    );
    // The write must not time out while the machine sleeps.
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), text.replace("timeout = \"2s\"", "timeout = \"20s\"")).unwrap();
    let state = State::Bucket(rig.simulator.clone());
    let mut both = [
        Watchdog::new(&rig, "one", "gs://state/watchdog"),
        Watchdog::new(&rig, "two", "gs://state/watchdog"),
    ];
    both[0].start();
    waits("the first holds it", || state.holder());
    both[1].start();
    waits("the second stands by", || both[1].log().contains("standing by: ").then_some(()));
    // The machine goes to sleep while its write is answered: it wakes up with a success in its
    // hands.
    let (asleep, armed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (flag, awaited, pid) = (Arc::clone(&asleep), Arc::clone(&armed), both[0].pid());
    let writes = |simulator: &Simulator| {
        simulator.log().iter().filter(|l| l.door == "one" && l.method == "PUT").count()
    };
    let (simulator, counted) = (rig.simulator.clone(), Arc::new(AtomicUsize::new(0)));
    let before = Arc::clone(&counted);
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        let write =
            logged.door == "one" && logged.method == "PUT" && logged.path.contains("state.json");
        if write && awaited.swap(false, Ordering::SeqCst) {
            stop(pid);
            before.store(writes(&simulator), Ordering::SeqCst);
            flag.store(true, Ordering::SeqCst);
        }
        None
    })));
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    // Of the writes from here on, the one with the intent.
    loop {
        armed.store(true, Ordering::SeqCst);
        waits("a write", || asleep.swap(false, Ordering::SeqCst).then_some(()));
        // It is in the log when it is carried out.
        waits("its answer", || {
            (writes(&rig.simulator) > counted.load(Ordering::SeqCst)).then_some(())
        });
        if state.intends() && state.holder() == Some(both[0].pid()) {
            break;
        }
        both[0].signal("-CONT");
    }
    waits("the second takes over", || (state.holder()? == both[1].pid()).then_some(()));
    both[0].signal("-CONT");
    rig.wait("it is recreated", |c| c.nodes.values().any(|n| n.uid != old && n.state == "READY"));
    waits("the first knows that its time is over", || {
        both[0].log().contains("standing by: ").then_some(())
    });
    assert!(
        rig.mutations().iter().all(|m| m.door == "two"),
        "{}\n{}",
        rig.mutations_text(),
        both[0].log()
    );
    assert_eq!(
        (rig.creations("a"), rig.simulator.with(|c| c.harmed)),
        (2, 0),
        "{}",
        rig.mutations_text()
    );
}

#[test]
fn a_standby_shows_who_holds_the_lock_and_a_clean_end_hands_it_over_at_once() {
    let rig = Rig::new(
        &format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\n"),
        POLICY,
        &slot("a", ""),
    );
    let state = State::Sqlite(rig.folder.path().join("state.db"));
    let mut both = [
        Watchdog::new(&rig, "one", "sqlite:state.db"),
        Watchdog::new(&rig, "two", "sqlite:state.db"),
    ];
    both[0].start();
    waits("the first holds it", || state.holder());
    both[1].start();
    let log = |w: &Watchdog, words: &str| waits(words, || w.log().contains(words).then_some(()));
    log(&both[1], "standing by: ");
    log(&both[1], "serving http://");
    let text = both[1].log();
    let base = text.split("serving ").nth(1).unwrap().split("/ ").next().unwrap().to_owned();
    let metric = |value: &str| {
        waits("lock_held", || get(&format!("{base}/metrics")).1.contains(value).then_some(()))
    };
    metric("\ntpuwatchdog_lock_held 0\n");
    assert_eq!(get(&format!("{base}/-/ready")).0, 200);
    assert!(get(&base).1.contains("standing by"), "the page says so");
    both[0].signal("-TERM");
    assert!(both[0].child.take().unwrap().wait().unwrap().success());
    assert!(!both[0].log().contains("is not done in time"), "{}", both[0].log());
    waits("the second takes what was given back", || {
        (state.holder()? == both[1].pid()).then_some(())
    });
    metric("\ntpuwatchdog_lock_held 1\n");
    log(&both[1], "acquired the lock (epoch 2)");
    assert!(!both[1].log().contains("took the lock from"), "it was given back, not taken");
}

#[test]
fn of_two_with_different_stores_the_second_holds_what_the_first_made() {
    let rig = Rig::new(
        &format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\n"),
        POLICY,
        &slot("a", ""),
    );
    let mut first = Watchdog::new(&rig, "one", "sqlite:one.db");
    first.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait("it is recreated", |c| c.nodes.values().any(|n| n.uid != old && n.state == "READY"));
    let replaced = rig.node("a").unwrap().uid;
    let mut second = Watchdog::new(&rig, "two", "gs://state/other");
    second.start();
    let polls = || {
        rig.simulator.log().iter().filter(|l| l.door == "two" && l.path.contains("/nodes?")).count()
    };
    waits("the second looks", || (polls() > 2).then_some(()));
    first.kill();
    rig.trouble("a", Trouble::Preempt, None);
    waits("the second sees the first's name", || {
        second.log().contains("owns it (metadata tpu-watchdog-owner)").then_some(())
    });
    let before = polls();
    waits("it goes on looking", || (polls() > before + 6).then_some(()));
    assert!(!rig.mutations().iter().any(|m| m.door == "two"), "{}", rig.mutations_text());
    assert_eq!(rig.node("a").unwrap().uid, replaced);
}

#[test]
fn a_port_that_the_other_one_has_is_tried_again_and_keeps_nobody_from_watching() {
    let rig = Rig::new(
        &format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\n"),
        POLICY,
        &slot("a", ""),
    );
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(
        rig.config(),
        text.replace("listen = \"127.0.0.1:0\"", &format!("listen = \"127.0.0.1:{port}\"")),
    )
    .unwrap();
    let mut both = [
        Watchdog::new(&rig, "one", "sqlite:state.db"),
        Watchdog::new(&rig, "two", "sqlite:state.db"),
    ];
    both[0].start();
    waits("the first serves", || both[0].log().contains("serving http://").then_some(()));
    both[1].start();
    waits("the second stands by", || both[1].log().contains("standing by: ").then_some(()));
    waits("it says what keeps it from serving", || {
        both[1].log().contains("it is tried again every 5 s").then_some(())
    });
    both[0].kill();
    waits("the second serves", || both[1].log().contains("serving http://").then_some(()));
    waits("it is ready", || {
        (get(&format!("http://127.0.0.1:{port}/-/ready")).0 == 200).then_some(())
    });
}

#[test]
fn a_standby_whose_store_never_answers_still_leaves_when_it_is_told_to() {
    let rig = Rig::new(
        &format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\n"),
        POLICY,
        &slot("a", ""),
    );
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), text.replace("timeout = \"2s\"", "timeout = \"1h\"")).unwrap();
    let mut both =
        [Watchdog::new(&rig, "one", "gs://state/w"), Watchdog::new(&rig, "two", "gs://state/w")];
    both[0].start();
    waits("the first serves", || both[0].log().contains("serving http://").then_some(()));
    both[1].start();
    waits("the second stands by", || both[1].log().contains("standing by: ").then_some(()));
    let hung = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&hung);
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        let hangs = logged.door == "two" && logged.path.contains("state.json");
        flag.fetch_or(hangs, Ordering::SeqCst);
        hangs.then_some(Fault::Hang)
    })));
    waits("the store hangs", || hung.load(Ordering::SeqCst).then_some(()));
    both[1].signal("-TERM");
    waits("it leaves", || both[1].child.as_mut().unwrap().try_wait().unwrap());
}
