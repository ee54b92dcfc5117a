//! The unit, its installer, and the service manager's protocol; the real unit under a real systemd
//! where one can be started.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{POLICY, Rig, slot};
use crate::machine::{self, Machine};
use crate::{deploy, have, text};

const UNIT: &str = "etc/systemd/system/tpu-watchdog.service";

fn install(arguments: &[&str], root: &Path) -> (Option<i32>, String) {
    let output = Command::new(deploy("systemd/install.sh"))
        .args(arguments)
        .arg("--root")
        .arg(root)
        .output()
        .unwrap();
    text(&output)
}

#[test]
fn the_unit_verifies_and_its_exposure_is_low() {
    if !have("systemd-analyze") {
        return;
    }
    let unit = deploy("systemd/tpu-watchdog.service");
    let security = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=15"])
        .arg(&unit)
        .output()
        .unwrap();
    let (code, out) = text(&security);
    assert_eq!(code, Some(0), "an exposure of 1.5 at most\n{out}");
    // As it is installed, with the program in its place.
    let root = tempfile::tempdir().unwrap();
    let (code, out) = install(&[env!("CARGO_BIN_EXE_tpu-watchdog")], root.path());
    assert_eq!(code, Some(0), "{out}");
    let drop_in = root.path().join(format!("{UNIT}.d"));
    std::fs::create_dir_all(&drop_in).unwrap();
    std::fs::copy(deploy("systemd/credentials.conf"), drop_in.join("credentials.conf")).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let (code, out) = text(
        &verify
            .arg("verify")
            .arg("--man=no")
            .arg("--recursive-errors=one")
            .arg(unit_path(root.path()))
            .output()
            .unwrap(),
    );
    assert!(code == Some(0) && !out.contains("tpu-watchdog.service:"), "{out}");
}

/// The installed unit with its program's real place, since the verifier looks for it on this
/// machine.
fn unit_path(root: &Path) -> std::path::PathBuf {
    let path = root.join(UNIT);
    let text = std::fs::read_to_string(&path).unwrap();
    let program = root.join("usr/local/bin/tpu-watchdog");
    std::fs::write(
        &path,
        text.replace("/usr/local/bin/tpu-watchdog", &program.display().to_string()),
    )
    .unwrap();
    path
}

#[test]
fn the_installer_installs_upgrades_and_removes_and_never_touches_a_config() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let program = env!("CARGO_BIN_EXE_tpu-watchdog");
    let (code, out) = install(&["/nonexistent"], root.path());
    assert!(code == Some(1) && out.contains("cargo build --release"), "{out}");
    let (code, out) = install(&[program], root.path());
    assert!(code == Some(0) && out.contains("wrote an example config"), "{out}");
    let config = at("etc/tpu-watchdog/watchdog.toml");
    let check = Command::new(at("usr/local/bin/tpu-watchdog"))
        .args(["check", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert!(check.status.success(), "the example is a good config: {}", text(&check).1);
    std::fs::write(
        &config,
        "project = \"mine\"\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n",
    )
    .unwrap();
    let (code, out) = install(&[program], root.path());
    assert_eq!(code, Some(0), "an upgrade: {out}");
    assert!(std::fs::read_to_string(&config).unwrap().contains("mine"));
    // A program that does not understand the present config replaces nothing.
    let other = at("other");
    std::fs::write(&other, "#!/bin/sh\necho unknown key >&2\nexit 2\n").unwrap();
    Command::new("chmod").arg("+x").arg(&other).status().unwrap();
    let before = std::fs::read(at("usr/local/bin/tpu-watchdog")).unwrap();
    let (code, out) = install(&[other.to_str().unwrap()], root.path());
    assert!(code == Some(1) && out.contains("nothing was changed"), "{out}");
    assert_eq!(std::fs::read(at("usr/local/bin/tpu-watchdog")).unwrap(), before);
    let (code, out) = install(&["--remove"], root.path());
    assert!(
        code == Some(0)
            && config.exists()
            && !at(UNIT).exists()
            && !at("usr/local/bin/tpu-watchdog").exists(),
        "{out}"
    );
    let (code, out) = install(&["--purge"], root.path());
    assert!(code == Some(0) && !config.exists(), "{out}");
}

/// A notify socket, and what came in.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn bind(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Manager { socket, heard: Vec::new() }
    }

    fn hear(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.recv(&mut bytes) {
                Ok(count) => self.heard.push(String::from_utf8_lossy(&bytes[..count]).into_owned()),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits for a message with these words that came after the first `from`; gives its place.
    #[track_caller]
    fn wait(&mut self, from: usize, words: &str) -> usize {
        let began = Instant::now();
        loop {
            self.hear();
            if let Some(at) = self.heard.iter().skip(from).position(|m| m.contains(words)) {
                return from + at;
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "no {words:?} in {:?}",
                &self.heard[from.min(self.heard.len())..]
            );
        }
    }
}

fn start(rig: &mut Rig, socket: &Path) {
    let log = std::fs::File::create(rig.folder.path().join("log.1")).unwrap();
    let mut command = rig.command(&["run"]);
    command
        .env("NOTIFY_SOCKET", socket)
        .env("WATCHDOG_USEC", "1000000")
        .stdout(Stdio::null())
        .stderr(log);
    *rig.child.lock().unwrap() = Some(command.spawn().unwrap());
}

fn signal(rig: &Rig, signal: &str) {
    let pid = rig.child.lock().unwrap().as_ref().unwrap().id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

#[test]
fn the_service_manager_hears_ready_status_reloading_stopping_and_a_heartbeat() {
    let mut rig = Rig::with_one_node("");
    let path = rig.folder.path().join("notify");
    let mut manager = Manager::bind(&path);
    start(&mut rig, &path);
    let ready = manager.wait(0, "READY=1");
    manager.wait(ready, "STATUS=1 of 1 healthy, 0 recovering, 0 held");
    let beat = manager.wait(ready, "WATCHDOG=1");
    manager.wait(beat + 1, "WATCHDOG=1");
    // A good config, then a bad one: the service is ready again after both, and goes on.
    rig.configure("dry_run = true", POLICY, &slot("a", ""));
    let at = manager.heard.len();
    signal(&rig, "-HUP");
    let reloading = manager.wait(at, "RELOADING=1");
    assert!(manager.heard[reloading].contains("MONOTONIC_USEC="), "{:?}", manager.heard[reloading]);
    let again = manager.wait(reloading, "READY=1");
    manager.wait(again.saturating_sub(2), "dry run");
    std::fs::write(rig.config(), "project = 7").unwrap();
    let at = manager.heard.len();
    signal(&rig, "-HUP");
    let reloading = manager.wait(at, "RELOADING=1");
    manager.wait(reloading, "READY=1");
    let log = std::fs::read_to_string(rig.folder.path().join("log.1")).unwrap();
    assert!(log.contains("the new config is not usable, the old one stays"), "{log}");
    let beat = manager.heard.len();
    manager.wait(beat, "WATCHDOG=1");
    let at = manager.heard.len();
    signal(&rig, "-TERM");
    manager.wait(at, "STOPPING=1");
    let status = rig.child.lock().unwrap().as_mut().unwrap().wait().unwrap();
    assert!(status.success());
}

#[test]
fn a_stop_in_the_middle_of_a_call_that_is_never_answered_leaves_and_loses_nothing() {
    let mut rig = Rig::with_one_node("");
    let path = rig.folder.path().join("notify");
    let mut manager = Manager::bind(&path);
    start(&mut rig, &path);
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.simulator.set_hook(Some(Box::new(|logged| {
        (logged.method == "POST" && logged.is_mutation()).then_some(Fault::Hang)
    })));
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait("the create hangs", |_| rig.mutations().len() >= 2);
    signal(&rig, "-TERM");
    manager.wait(0, "STOPPING=1");
    assert!(rig.child.lock().unwrap().as_mut().unwrap().wait().unwrap().success());
    rig.simulator.set_hook(None);
    rig.start();
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2);
}

#[test]
fn a_loop_that_is_stuck_does_not_feed_the_watchdog() {
    let rig = Rig::with_one_node("");
    let path = rig.folder.path().join("notify");
    let mut manager = Manager::bind(&path);
    // Nobody reads its log: as soon as the pipe is full the loop waits for ever.
    let mut command = rig.command(&["run", "--log", "json"]);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "1000000")
        .env("RUST_LOG", "trace")
        .stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut log = child.stderr.take().unwrap();
    *rig.child.lock().unwrap() = Some(child);
    manager.wait(0, "WATCHDOG=1");
    let listen = |manager: &mut Manager, seconds: u64| {
        let (at, began) = (manager.heard.len(), Instant::now());
        while began.elapsed() < Duration::from_secs(seconds) {
            manager.hear();
        }
        manager.heard[at..].iter().filter(|m| m.contains("WATCHDOG=1")).count()
    };
    // Stuck is: not one poll in three seconds, ten times the interval.
    let began = Instant::now();
    let fed = loop {
        let polls = rig.polls().len();
        listen(&mut manager, 1);
        let fed = listen(&mut manager, 2);
        if rig.polls().len() == polls {
            break fed;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the loop never got stuck");
    };
    assert_eq!(fed, 0, "a free timer would have gone on");
    let reader = std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    let at = manager.heard.len();
    manager.wait(at, "WATCHDOG=1");
    rig.kill();
    reader.join().unwrap().unwrap();
}

/// Runs inside the container: brings the service up, plays with it, writes what it saw.
const STORY: &str = r#"
set -u
exec >/test/result 2>&1
say() { echo "== $*"; }
end() { systemctl status --no-pager -l tpu-watchdog; journalctl --no-pager -o short-precise >/test/journal; say "$@"; exit; }
waits() { for _ in {1..600}; do eval "$1" >/dev/null 2>&1 && return; sleep 0.1; done; end "waited in vain: $1"; }
show() { systemctl show -p "$1" --value tpu-watchdog; }
cat /test/watchdog.toml >/etc/tpu-watchdog/watchdog.toml
install -D -m 0644 /usr/local/share/doc/tpu-watchdog/credentials.conf /etc/systemd/system/tpu-watchdog.service.d/credentials.conf
install -m 0600 /test/credentials.json /etc/tpu-watchdog/credentials.json
printf '[Service]\nWatchdogSec=3s\n' >/etc/systemd/system/tpu-watchdog.service.d/quick.conf
systemctl daemon-reload
systemctl start simulator
waits 'curl -sf -o /dev/null http://127.0.0.1:9471/v2/projects/p/locations/us-central2-b/nodes'
systemctl start tpu-watchdog || end "it does not start"
say "start: $(show ActiveState)"
waits 'curl -sf http://127.0.0.1:9470/-/ready'
say "status: $(show StatusText)"
say "user: $(ps -o user= -p "$(show MainPID)")"
say "state: $(stat -L -c %a /var/lib/tpu-watchdog) $(stat -c %a /var/lib/tpu-watchdog/state.db)"
say "files: $(grep -c '^Max open files  *4096 ' "/proc/$(show MainPID)/limits")"
say "credentials: $(tr '\0' '\n' <"/proc/$(show MainPID)/environ" | grep -c '^GOOGLE_APPLICATION_CREDENTIALS=/run/credentials/')"
waits 'curl -sf http://127.0.0.1:9470/metrics | grep -q '\''^tpuwatchdog_recoveries_total{cause="preempted"} 1'\'''
say "recovered"
echo 'project = 7' >/etc/tpu-watchdog/watchdog.toml
say "reload: $(systemctl reload tpu-watchdog; show ActiveState)"
waits 'journalctl -u tpu-watchdog -p err -o cat | grep -q '\''the old one stays'\'''
say "errors have their priority"
cat /test/watchdog.toml >/etc/tpu-watchdog/watchdog.toml
before=$(show MainPID)
kill -STOP "$before"
waits '[[ $(show NRestarts) == 1 && $(show ActiveState) == active ]]'
say "a stuck one is restarted: $([[ $(show MainPID) != "$before" ]] && echo yes)"
waits '[[ $(show StatusText) == "1 of 1 healthy"* ]]'
before=$(show MainPID)
bash /project/deploy/systemd/install.sh /usr/local/bin/tpu-watchdog
say "an upgrade restarts it: $([[ $(show MainPID) != "$before" && $(show ActiveState) == active ]] && echo yes)"
say "stop: $(systemctl stop tpu-watchdog; show Result)"
/usr/local/bin/tpu-watchdog status --config /etc/tpu-watchdog/watchdog.toml | grep -c healthy
systemctl enable --now tpu-watchdog
bash /project/deploy/systemd/install.sh --remove
say "removed: $(systemctl is-active tpu-watchdog) $(ls /etc/systemd/system/multi-user.target.wants 2>/dev/null | wc -l) $(test -e /usr/local/bin/tpu-watchdog || echo gone)"
say "kept: $(ls /etc/tpu-watchdog/watchdog.toml /var/lib/private/tpu-watchdog/state.db | wc -l)"
end "end"
"#;

#[test]
fn the_real_unit_runs_under_a_real_systemd() {
    if !have("systemd-nspawn") {
        return;
    }
    if !machine::can_start() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (code, out) = install(&[env!("CARGO_BIN_EXE_tpu-watchdog")], root);
    assert_eq!(code, Some(0), "{out}");
    let machine = Machine::new(root, STORY);
    let put = |path: &str, text: &str| machine.put(path, text);
    put(
        "test/scenario.toml",
        "[[nodes]]\nnames = [\"a\"]\nzone = \"us-central2-b\"\nspot = true\n[[event]]\nat = \"3s\"\nnode = \"a\"\nwhat = \"preempt\"\n",
    );
    let config = "project = \"p\"\nlease = \"1s\"\n[poll]\nevery = \"300ms\"\noperations = \"50ms\"\n[api]\ntpu = \"http://127.0.0.1:9471\"\n\
                  storage = \"http://127.0.0.1:9471\"\n";
    put("test/watchdog.toml", &format!("{config}[policy]\n{POLICY}\n{}", slot("a", "")));
    put("test/credentials.json", &service_account());
    let out = machine.boot();
    let read = |name: &str| machine.read(name);
    let result = read("result");
    let journal = read("journal");
    for line in [
        "== start: active",
        "healthy, ",
        "== user: tpu-watc",
        "== state: 700 600",
        "== files: 1",
        "== credentials: 1",
        "== recovered",
        "== reload: active",
        "== errors have their priority",
        "== a stuck one is restarted: yes",
        "upgraded and restarted",
        "== an upgrade restarts it: yes",
        "== stop: success",
        "== removed: inactive 0 gone",
        "== kept: 2",
        "== end",
    ] {
        assert!(result.contains(line), "{line:?} is missing in\n{result}\n{out}\n{journal}");
    }
    assert!(journal.contains("RECOVERED") || journal.contains("recovered"), "{journal}");
    assert!(!journal.contains("<6>"), "journald took the priorities off: {journal}");
}

/// A key that nobody knows, made for this test.
fn service_account() -> String {
    let key = Command::new("openssl")
        .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
        .output()
        .unwrap();
    let key = String::from_utf8(key.stdout).unwrap();
    serde_json::json!({
        "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": key, "client_id": "1",
        "client_email": "watchdog@p.iam.gserviceaccount.com", "token_uri": "http://127.0.0.1:9471/token",
    })
    .to_string()
}
