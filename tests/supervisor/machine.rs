//! One machine of a TPU as the supervisor finds it: bash, curl, a systemd that is process groups, a
//! home that is its own, power that can be cut.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// In the place of systemd's: a process group is the control group. The real one runs the same
/// supervisor in tests/deploy.
const SYSTEMD_RUN: &str = r#"#! /bin/bash
set -u
wait='' mode=control-group grace=90 unit='' restart='' vars=()
while [[ $1 == -* ]]; do
  case $1 in
    --wait) wait=1 ;;
    --unit=*) unit=${1#*=} ;;
    -E) vars+=("$2"); shift ;;
    -p) case $2 in KillMode=*) mode=${2#*=} ;; Restart=*) restart=${2#*=} ;; TimeoutStopSec=*) grace=${2#*=} ;; esac; shift ;;
  esac
  shift
done
root=$(dirname "$(dirname "$0")"); mkdir -p "$root/units" "$root/graces" "$root/journal"; group=$root/units/$unit
# Whether anything but a zombie is left of a group.
lives() { ps -eo pgid=,stat= | grep -qE "^ *$1 +[^Z]"; }
if [[ -e $group ]] && lives "$(<"$group")"; then echo "Unit $unit.service already exists" >&2; exit 1; fi
start() {
  env -i "${vars[@]}" setsid "$@" </dev/null >>"$root/journal/$unit.service" 2>&1 &
  main=$!; echo "$grace" >"$root/graces/$unit"; echo "$main" >"$group"
}
# A program that fails is started again, once its remains are ended.
again() {
  until wait "$main"; do
    kill -KILL -- "-$main" 2>/dev/null; sleep 0.1
    [[ -e $group ]] || exit 0
    start "$@"
  done
}
if [[ -n $restart ]]; then
  { start "$@"; again "$@"; } </dev/null >/dev/null 2>&1 & disown
  until [[ -e $group ]]; do sleep 0.01; done
  exit 0
fi
start "$@"
[[ -n $wait ]] || { disown; exit 0; }
wait "$main"; code=$?
if [[ $mode == control-group ]]; then
  kill -TERM -- "-$main" 2>/dev/null; ends=$((SECONDS + grace))
  while lives "$main"; do ((SECONDS < ends)) || kill -KILL -- "-$main"; sleep 0.02; done
fi
rm -f "$group"; exit "$code"
"#;
const SYSTEMCTL: &str = r#"#! /bin/bash
units=$(dirname "$(dirname "$0")")/units
case $1 in
  reboot) : >"$(dirname "$units")/rebooted" ;;
  is-system-running) echo "${TPU_WATCHDOG_SYSTEM:-running}" ;;
  is-active)
    if [[ ${*: -1} == tpu-watchdog-supervisor.service && -e $units/tpu-watchdog-supervisor || ${*: -1} == *.socket && -e $units/${*: -1} ]]; then
      echo active
    else
      echo inactive; exit 3
    fi ;;
  start)
    # A socket whose service is started for each connection, with it as standard input and output.
    name=${2%.socket}; files=$(dirname "$units")/systemd/system
    read -ra program <<<"$(sed -n 's/^ExecStart=//p' "$files/$name@.service")"
    grep -q '^Accept=yes' "$files/$2" && grep -q '^StandardOutput=socket' "$files/$name@.service" || exit 1
    setsid systemd-socket-activate --accept --inetd -l "$(sed -n 's/^ListenStream=//p' "$files/$2")" "${program[@]}" </dev/null >/dev/null 2>&1 &
    echo $! >"$units/$2" ;;
  list-units)
    if cd "$units" 2>/dev/null; then for unit in "${@:2}"; do [[ $unit == -* ]] || ls -d $unit 2>/dev/null; done; fi
    exit 0 ;;
  kill) group=$units/${3%.service}; [[ -e $group ]] && kill "-${2#*=}" -- "-$(<"$group")" ;;
  stop)
    group=$units/${2%.service}; [[ -e $group ]] || exit 0
    main=$(<"$group"); ends=$((SECONDS + $(<"$units/../graces/${2%.service}")))
    kill -TERM -- "-$main"; again=1
    while ps -eo pgid=,stat= | grep -qE "^ *$main +[^Z]"; do
      # What is left without its main process is signalled once more.
      if [[ -n $again && $(ps -o stat= -p "$main") != [^Z]* ]]; then again=''; kill -TERM -- "-$main"; fi
      ((SECONDS < ends)) || kill -KILL -- "-$main"; sleep 0.02
    done
    rm -f "$group" ;;
esac
"#;

const JOURNALCTL: &str = r#"#! /bin/bash
[[ $1 == --sync ]] && exit
[[ " $* " != *" -k "* ]] || { cat "$(dirname "$(dirname "$0")")/kernel" 2>/dev/null; exit; }
last=${*: -1}; tail -n 200 "$(dirname "$(dirname "$0")")/journal/${last#*=}"
"#;

/// A machine; its power is cut when it is dropped.
pub struct Machine {
    folder: tempfile::TempDir,
    /// Of its metadata server.
    metadata: String,
    /// The beginning of its boot ids.
    name: String,
    /// Reboots so far.
    boots: AtomicU32,
}

impl Machine {
    /// A machine with an empty disk.
    pub fn new(name: &str, metadata: &str) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let (name, metadata) = (name.to_owned(), metadata.to_owned());
        let machine = Machine { folder, metadata, name, boots: AtomicU32::new(0) };
        machine.program("systemd-run", SYSTEMD_RUN);
        machine.program("systemctl", SYSTEMCTL);
        machine.program("journalctl", JOURNALCTL);
        machine.home(&machine.path("home"));
        machine
    }

    /// Whether this computer has what a machine needs; without it the test is left out, never in CI.
    pub fn is_possible() -> bool {
        let works = |program: &str| {
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success())
        };
        let possible = works("curl") && works("bash") && works("systemd-socket-activate");
        assert!(
            possible || std::env::var_os("CI").is_none(),
            "curl and systemd must be there in CI"
        );
        if !possible {
            eprintln!("left out: curl, bash or systemd's own programs are missing");
        }
        possible
    }

    /// An address of this computer that no other machine of any test has.
    pub fn address() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        format!("127.{}.{}.{}", 1 + process / 250 % 250, 1 + process % 250, number % 250 + 1)
    }

    /// A program of this machine that comes before the machine's own.
    pub fn program(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path("bin")).unwrap();
        let path = self.path("bin").join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The home of every user. Never this machine's: a login shell runs what its profile says, and a
    /// profile that is killed may leave locks that the next one waits for.
    pub fn home(&self, home: &Path) {
        std::fs::create_dir_all(home).unwrap();
        let home = home.display();
        self.program("getent", &format!("#! /bin/bash\necho \"$2:x:0:0::{home}:/bin/bash\"\n"));
    }

    /// One boot, as the guest agent does it: the metadata's startup script in a temporary file. The
    /// supervisor has these variables beside the quick times of tests.
    pub fn boot(&self, script: &str, variables: &[(&str, &str)]) {
        let file = self.path("startup");
        std::fs::File::create(&file).unwrap().write_all(script.as_bytes()).unwrap();
        let path = std::env::var("PATH").unwrap();
        let status = Command::new("bash")
            .arg(&file)
            // The guest agent runs startup scripts without it.
            .env_remove("HOME")
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("TPU_WATCHDOG_METADATA", &self.metadata)
            .env("TPU_WATCHDOG_STATE", self.folder.path())
            .env("TPU_WATCHDOG_RUN", self.folder.path())
            .env(
                "TPU_WATCHDOG_BOOT",
                format!("{}-{}", self.name, self.boots.load(Ordering::SeqCst)),
            )
            .env("TPU_WATCHDOG_BEAT", "0.2")
            .env("TPU_WATCHDOG_PAUSE", "0.1")
            .env("TPU_WATCHDOG_PAUSES", "0.1 0.2")
            .env("TPU_WATCHDOG_ALONE", "0.1")
            .env("TPU_WATCHDOG_CALL", "0.1")
            .env("TPU_WATCHDOG_FRESH", "2")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        // The guest agent removes its temporary file when the script returns.
        std::fs::remove_file(file).unwrap();
    }

    /// Cuts the power: ends everything that was started from this machine's folder, by its process
    /// ids. The next boot has another id.
    pub fn power_off(&self) {
        self.boots.fetch_add(1, Ordering::SeqCst);
        for unit in std::fs::read_dir(self.path("units")).into_iter().flatten().flatten() {
            let group = std::fs::read_to_string(unit.path()).unwrap_or_default();
            let _ = std::fs::remove_file(unit.path());
            if let Ok(group) = group.trim().parse::<u32>() {
                let _ =
                    Command::new("kill").args(["-KILL", "--"]).arg(format!("-{group}")).status();
            }
        }
        let mark = self.folder.path().to_string_lossy().into_owned();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let command =
                std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.contains(&mark) {
                let _ = Command::new("kill").arg("-KILL").arg(pid.to_string()).status();
            }
        }
    }

    /// A file of this machine.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The journal: all that the supervisor, the set-up and the job have written.
    pub fn log(&self) -> String {
        let files = std::fs::read_dir(self.path("journal")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.power_off();
    }
}
