//! The supervisor for real: bash and curl against the simulated metadata server. Left out, and
//! said, where curl is missing.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tpu_watchdog::launch;
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::{CheckpointSettings, JobSettings};
use tpu_watchdog::model::spec::NodeSpec;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::{Fault, Simulator};
use tpu_watchdog::simulator::wire::Reply;

const ZONE: &str = "us-central2-b";

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
root=$(dirname "$(dirname "$0")"); mkdir -p "$root/units"; group=$root/units/$unit
# Whether anything but a zombie is left of a group.
lives() { ps -eo pgid=,stat= | grep -qE "^ *$1 +[^Z]"; }
if [[ -e $group ]] && lives "$(<"$group")"; then echo "Unit $unit.service already exists" >&2; exit 1; fi
start() {
  env -i "${vars[@]}" setsid "$@" </dev/null >>"$root/supervisor.log" 2>&1 &
  main=$!; echo "$main" >"$group"
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
  is-system-running) echo "${TPU_WATCHDOG_SYSTEM:-running}" ;;
  is-active) [[ ${*: -1} == tpu-watchdog-supervisor.service && -e $units/tpu-watchdog-supervisor ]] ;;
  list-units) cd "$units" && ls -d tpu-watchdog-job-* tpu-watchdog-setup-* 2>/dev/null ;;
  kill) group=$units/$3; [[ -e $group ]] && kill "-${2#*=}" -- "-$(<"$group")" ;;
  stop) group=$units/$2; [[ -e $group ]] && kill -KILL -- "-$(<"$group")"; rm -f "$group" ;;
esac
"#;

struct Host {
    simulator: Simulator,
    folder: tempfile::TempDir,
    base: String,
    /// Reboots so far.
    boots: std::cell::Cell<u32>,
    _runtime: tokio::runtime::Runtime,
}

impl Host {
    /// A node whose startup script is the supervisor for `job`, beside the user's own script.
    fn new(job: &JobSettings, user_script: &str, order: &RunOrder) -> Option<Host> {
        Host::of_type("v4-8", job, user_script, order)
    }

    fn of_type(
        accelerator: &str,
        job: &JobSettings,
        user_script: &str,
        order: &RunOrder,
    ) -> Option<Host> {
        let works = |program: &str| {
            Command::new(program)
                .arg("--version")
                .stdout(Stdio::null())
                .status()
                .is_ok_and(|s| s.success())
        };
        if !(works("curl") && works("bash")) {
            assert!(std::env::var_os("CI").is_none(), "curl and bash must be there in CI");
            eprintln!("left out: curl or bash is missing");
            return None;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let simulator = Simulator::new(Cloud::new(Default::default()));
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
        simulator.with(|cloud| cloud.add_node(ZONE, "a", body.as_object().unwrap().clone(), true));
        let (folder, boots) = (tempfile::tempdir().unwrap(), Default::default());
        let host = Host { simulator, folder, base, boots, _runtime: runtime };
        host.program("systemd-run", SYSTEMD_RUN);
        host.program("systemctl", SYSTEMCTL);
        host.home(&host.path("home"));
        Some(host)
    }

    /// A program of this host that comes before the machine's own.
    fn program(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path("bin")).unwrap();
        let path = self.path("bin").join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The home of every user. Never this machine's: a login shell runs what its profile says, and a
    /// profile that is killed may leave locks that the next one waits for.
    fn home(&self, home: &Path) {
        std::fs::create_dir_all(home).unwrap();
        let home = home.display();
        self.program("getent", &format!("#! /bin/bash\necho \"$2:x:0:0::{home}:/bin/bash\"\n"));
    }

    /// One boot, as the guest agent does it: the metadata's startup script in a temporary file.
    fn boot(&self) {
        self.boot_with(&[]);
    }

    /// A boot whose supervisor also has these variables.
    fn boot_with(&self, variables: &[(&str, &str)]) {
        let script = self.simulator.with(|cloud| {
            let node = cloud.nodes.values().next().unwrap();
            node.body["metadata"]["startup-script"].as_str().unwrap().to_owned()
        });
        let file = self.path("startup");
        std::fs::File::create(&file).unwrap().write_all(script.as_bytes()).unwrap();
        let status = Command::new("bash")
            .arg(&file)
            .env(
                "PATH",
                format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap()),
            )
            .env("TPU_WATCHDOG_METADATA", &self.base)
            .env("TPU_WATCHDOG_STATE", self.folder.path())
            .env("TPU_WATCHDOG_RUN", self.folder.path())
            .env("TPU_WATCHDOG_BOOT", format!("boot-{}", self.boots.get()))
            .env("TPU_WATCHDOG_BEAT", "0.2")
            .env("TPU_WATCHDOG_PAUSE", "0.1")
            .env("TPU_WATCHDOG_PAUSES", "0.1 0.2")
            .env("TPU_WATCHDOG_ALONE", "0.1")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        // The guest agent removes its temporary file when the script returns.
        std::fs::remove_file(file).unwrap();
    }

    /// The watchdog has changed the run order in the node's metadata.
    fn orders(&self, order: RunOrder) {
        self.simulator.with(|cloud| {
            let node = cloud.nodes.values_mut().next().unwrap();
            node.body["metadata"]["tpu-watchdog-run"] = order.text().into();
        });
    }

    /// Ends everything that was started from this host's folder, by its process ids.
    fn power_off(&self) {
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

    /// The machine is down and comes up again: nothing runs, nothing is reported; what is on the
    /// disk stays.
    fn power_cycle(&self, variables: &[(&str, &str)]) {
        self.power_off();
        self.simulator.with(|cloud| cloud.nodes.values_mut().next().unwrap().attributes[0].clear());
        let boots = self.boots.get() + 1;
        self.boots.set(boots);
        self.boot_with(variables);
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn attribute(&self, key: &str) -> Option<String> {
        self.simulator.with(|cloud| {
            cloud.nodes.values().next().unwrap().attributes[0]
                .get(&format!("tpu-watchdog/{key}"))
                .cloned()
        })
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
        checkpoint: Some(CheckpointSettings {
            uri: "gs://b/ckpt".into(),
            format: None,
            orbax_mode: Default::default(),
        }),
        env: [("QUOTED".to_owned(), "it's $HOME".to_owned())].into(),
        stop_grace: Duration::from_secs(2),
        restarts_per_run: 2,
        no_progress: 3,
        ..JobSettings::default()
    }
}

fn order(step: Option<u64>) -> RunOrder {
    RunOrder {
        generation: 7,
        checkpoint: step.map_or(String::new(), |s| format!("gs://b/ckpt/{s}")),
        step,
    }
}

#[test]
fn it_beats_runs_both_scripts_with_the_variables_of_the_contract_and_reports_the_end() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!(
        "env | grep -E '^(CHECKPOINT_(BASE|PATH|STEP)|TPU_WATCHDOG_(SLOT|GEN|WORKER)|QUOTED)' | sort > {0}; pwd >> {0}; echo 1234 > \"$TPU_WATCHDOG_PROGRESS\"; \
         while ! test -e {1}; do sleep 0.05; done",
        out.display(),
        work.path().join("go").display()
    );
    let user_script = format!("#! /bin/bash\necho user > {}\n", work.path().join("user").display());
    let Some(host) = Host::new(&job(&command, work.path()), &user_script, &order(Some(1200)))
    else {
        return;
    };
    host.boot();
    assert!(host.attribute("boot").is_some(), "the boot beacon is sent before boot goes on");
    host.wait("the step", || host.attribute("step").is_some_and(|s| s.ends_with(" 7 1234")));
    host.wait("the heartbeat", || {
        host.attribute("heartbeat").is_some_and(|h| h.ends_with("running"))
    });
    assert_eq!(std::fs::read_to_string(work.path().join("user")).unwrap(), "user\n");
    let expected = format!(
        "CHECKPOINT_BASE=gs://b/ckpt\nCHECKPOINT_PATH=gs://b/ckpt/1200\nCHECKPOINT_STEP=1200\nQUOTED=it's $HOME\nTPU_WATCHDOG_GENERATION=7\nTPU_WATCHDOG_SLOT=a\n\
         TPU_WATCHDOG_WORKER=0\nTPU_WATCHDOG_WORKERS=1\n{}\n",
        work.path().display()
    );
    assert_eq!(std::fs::read_to_string(&out).unwrap(), expected);
    std::fs::write(work.path().join("go"), "").unwrap();
    host.wait("the end", || {
        host.attribute("exit")
            .is_some_and(|e| e.contains(" 7 0 done ran=") && e.ends_with("step=1234"))
    });
}

#[test]
fn without_a_checkpoint_its_variables_are_empty() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!(
        "echo \"[${{CHECKPOINT_PATH}}][${{CHECKPOINT_STEP}}]${{CHECKPOINT_PATH:+ --resume}}\" > {}",
        out.display()
    );
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some());
    assert_eq!(std::fs::read_to_string(out).unwrap(), "[][]\n");
}

#[test]
fn a_failing_command_is_restarted_within_its_budget_and_then_reported() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let Some(host) = Host::new(
        &job(&format!("echo x >> {}; exit 139", tries.display()), work.path()),
        "",
        &order(None),
    ) else {
        return;
    };
    host.boot();
    host.wait("the end", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7 139 final after 2 restarts"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\nx\n");
    // The budget is counted over reboots of the same disk.
    assert_eq!(std::fs::read_to_string(host.path("restarts.7")).unwrap().trim(), "3");
    host.power_cycle(&[]);
    host.wait("one try in this boot", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7 139 final after 2 restarts"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\nx\nx\n");
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
    let command = format!("echo x >> {}; echo 5 > \"$TPU_WATCHDOG_PROGRESS\"", tries.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some());
    // The host goes down with everything on it, and comes up with the same disk.
    host.power_cycle(&[]);
    host.wait("the end is reported again", || {
        host.attribute("exit").is_some_and(|e| e.ends_with("step=5"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\n");
}

#[test]
fn an_end_without_evidence_is_reported_and_the_next_boot_starts_the_job_again() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let Some(host) =
        Host::new(&job(&format!("echo x >> {}", tries.display()), work.path()), "", &order(None))
    else {
        return;
    };
    host.boot();
    host.wait("the end", || {
        host.attribute("exit")
            .is_some_and(|e| e.contains(" 7 0 done ran=") && e.ends_with("step=none"))
    });
    host.wait("the heartbeat says so", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.ends_with("ended_early"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\n", "not again in the same boot");
    host.power_cycle(&[]);
    host.wait("the second run", || std::fs::read_to_string(&tries).unwrap() == "x\nx\n");
}

#[test]
fn the_step_of_the_checkpoint_that_it_began_with_is_no_work_done() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!("echo x >> {}; echo 1200 > \"$TPU_WATCHDOG_PROGRESS\"", tries.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(1200))) else { return };
    host.boot();
    host.wait("it is held", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.ends_with("ended_early"))
    });
    assert!(!host.path("done.7").exists());
}

#[test]
fn a_command_whose_pipe_fails_has_failed() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = Host::new(&job("exit 3 | cat", work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("its code", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7 3 restarting 1 of 2 in 0.1 s"))
    });
    host.wait("a longer pause", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7 3 restarting 2 of 2 in 0.2 s"))
    });
    // The pauses of a real host double, from 10 s to 10 min.
    assert!(
        launch::supervisor("a", &job("x", Path::new("/")))
            .contains("TPU_WATCHDOG_PAUSES:-10 20 40 80 160 320 600}")
    );
}

#[test]
fn what_ends_while_the_machine_goes_down_is_neither_an_end_nor_a_failure() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!(
        "echo x >> {}; echo 5 > \"$TPU_WATCHDOG_PROGRESS\"; exit $(($(wc -l < {0}) - 1))",
        tries.display()
    );
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    let stopping = [("TPU_WATCHDOG_SYSTEM", "stopping")];
    for runs in 1..=2 {
        // The first ends with 0, the second with 1: as trainers do that save on SIGTERM.
        if runs == 1 {
            host.boot_with(&stopping)
        } else {
            host.power_cycle(&stopping)
        }
        host.wait("it stops", || {
            host.attribute("heartbeat").is_some_and(|beat| beat.ends_with("stopping"))
        });
        assert_eq!(std::fs::read_to_string(&tries).unwrap().lines().count(), runs);
        // That a run was cut off counts, or a job that reboots its host would do so for ever.
        let cut_off =
            "boot-1 7 75 restarting: the host went down in a run, which counts as restart 1 of 2";
        assert_eq!(host.attribute("exit").as_deref(), (runs == 2).then_some(cut_off));
    }
}

#[test]
fn after_a_long_run_a_job_that_reads_its_order_is_not_sent_back_to_the_checkpoint_of_the_create() {
    for (command, script) in [
        ("cat $CHECKPOINT_PATH >> {}; sleep 1.3; exit 1", ""),
        ("bash {}.sh", "#! /bin/bash\n# uses CHECKPOINT_PATH\n"),
    ] {
        let work = tempfile::tempdir().unwrap();
        let tries = work.path().join("tries");
        let command = command.replace("{}", &tries.display().to_string());
        std::fs::write(work.path().join("tries.sh"), "sleep 1.3; exit 1").unwrap();
        let Some(host) = Host::new(&job(&command, work.path()), script, &order(Some(1200))) else {
            return;
        };
        let long = [("TPU_WATCHDOG_LONG", "1")];
        host.boot_with(&long);
        let stale = || {
            host.attribute("exit")
                .is_some_and(|e| e.contains(" 7 1 stale_order ran=") && e.contains("step 1200"))
        };
        host.wait("it is held", stale);
        assert!(host.path("long.7").exists());
        let restarted = host.path("restarts.7");
        assert!(!restarted.exists(), "{:?}", std::fs::read_to_string(restarted));
        // The length of the run is on the disk: a reboot changes nothing.
        host.power_cycle(&long);
        host.wait("it is held again", || {
            host.attribute("exit").is_some_and(|e| e.contains(" 7 75 stale_order ran="))
        });
    }
}

#[test]
fn a_host_that_goes_down_in_the_middle_of_a_long_run_knows_of_it_at_its_next_boot() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!("echo \"$CHECKPOINT_PATH\" >> {}; sleep 30", tries.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(1200))) else { return };
    let long = [("TPU_WATCHDOG_LONG", "1")];
    host.boot_with(&long);
    host.wait("the mark", || host.path("long.7").exists());
    host.power_cycle(&long);
    host.wait("it is held", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7 75 stale_order ran=1"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "gs://b/ckpt/1200\n");
}

#[test]
fn the_heartbeat_outlives_commands_that_fail_at_once() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let many = JobSettings {
        restarts_per_run: 1000,
        ..job(&format!("echo x >> {}; exit 1", tries.display()), work.path())
    };
    let Some(host) = Host::new(&many, "", &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_PAUSES", "0")]);
    host.wait("many tries", || {
        std::fs::read_to_string(&tries).is_ok_and(|text| text.lines().count() > 20)
    });
    let beat = host.attribute("heartbeat");
    host.wait("it beats on", || host.attribute("heartbeat") != beat);
}

#[test]
fn after_a_long_run_a_job_that_finds_its_own_checkpoint_goes_on_and_hidden_readers_fail_loudly() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    std::fs::write(
        work.path().join("train.sh"),
        format!("echo \"[$CHECKPOINT_BASE][$CHECKPOINT_PATH][$CHECKPOINT_STEP]\" >> {}; sleep 1.3; exit 1", out.display()),
    )
    .unwrap();
    let Some(host) = Host::new(&job("bash ./train.sh", work.path()), "", &order(Some(1200))) else {
        return;
    };
    host.boot_with(&[("TPU_WATCHDOG_LONG", "1")]);
    let base = "[gs://b/ckpt]";
    let expected =
        format!("{base}[gs://b/ckpt/1200][1200]\n{base}[stale:gs://b/ckpt/1200][stale:1200]\n");
    host.wait("two runs", || {
        std::fs::read_to_string(&out).is_ok_and(|text| text.starts_with(&expected))
    });
}

#[test]
fn a_long_run_refills_the_restarts() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let Some(host) = Host::new(
        &job(&format!("echo x >> {}; exit 1", tries.display()), work.path()),
        "",
        &order(None),
    ) else {
        return;
    };
    host.boot_with(&[("TPU_WATCHDOG_REFILL", "0")]);
    host.wait("more tries than its budget", || {
        std::fs::read_to_string(&tries).is_ok_and(|text| text.lines().count() > 4)
    });
    assert!(host.attribute("exit").unwrap().contains("restarting 1 of 2"));
}

#[test]
fn on_several_hosts_no_try_is_the_last_and_one_that_runs_on_is_reported() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command =
        format!("echo x >> {0}; [[ $(wc -l < {0}) -lt 5 ]] && exit 1; sleep 20", tries.display());
    let job = job(&command, work.path());
    let Some(host) = Host::of_type("v4-16", &job, "", &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_LONG", "1")]);
    host.wait("it is told", || {
        host.attribute("exit")
            .is_some_and(|e| e.contains(" 7 1 failing after 2 restarts: tried again every 0.2 s"))
    });
    host.wait("it is tried on", || {
        std::fs::read_to_string(&tries).is_ok_and(|text| text.lines().count() == 5)
    });
    host.wait("it runs again", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7 1 recovered ran="))
    });
}

#[test]
fn a_host_without_an_index_asks_until_it_has_one() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let Some(host) = Host::new(
        &job(&format!("echo $TPU_WATCHDOG_WORKER > {}", out.display()), work.path()),
        "",
        &order(None),
    ) else {
        return;
    };
    let known = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let knows = std::sync::Arc::clone(&known);
    host.simulator.set_hook(Some(Box::new(move |logged| {
        let asks = logged.path.ends_with("agent-worker-number")
            && !knows.load(std::sync::atomic::Ordering::SeqCst);
        asks.then(|| Fault::AnswerBefore(Reply::new(404, "not there yet")))
    })));
    host.boot();
    host.wait("it says so", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.contains("no agent-worker-number"))
    });
    assert!(!out.exists());
    known.store(true, std::sync::atomic::Ordering::SeqCst);
    host.wait("it starts", || std::fs::read_to_string(&out).is_ok_and(|text| text == "0\n"));
}

#[test]
fn a_startup_script_that_fails_is_tried_again_and_the_command_waits_for_it() {
    let work = tempfile::tempdir().unwrap();
    let (tries, out) = (work.path().join("tries"), work.path().join("out"));
    let script = format!(
        "#! /bin/bash\necho x >> {0}\n[[ $(wc -l < {0}) -ge 3 ]] || exit 100\n",
        tries.display()
    );
    let command = format!("wc -l < {} > {}", tries.display(), out.display());
    let Some(host) = Host::new(&job(&command, work.path()), &script, &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_PAUSES", "0.5 1")]);
    host.wait("it is told", || {
        host.attribute("heartbeat")
            .is_some_and(|beat| beat.contains("setup_failed code=100 tries=1"))
    });
    host.wait("the command", || std::fs::read_to_string(&out).is_ok_and(|text| text.trim() == "3"));
}

#[test]
fn nothing_starts_before_the_run_order_could_be_read() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo $TPU_WATCHDOG_GENERATION > {}", out.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(5))) else { return };
    let outage = |logged: &tpu_watchdog::simulator::http::Logged| {
        let reply = tpu_watchdog::simulator::wire::Reply::new(503, "");
        logged
            .path
            .contains("tpu-watchdog-run")
            .then_some(tpu_watchdog::simulator::http::Fault::AnswerBefore(reply))
    };
    let (asked, count) = (
        std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0)),
        std::sync::atomic::Ordering::SeqCst,
    );
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
    let script = format!(
        "#! /bin/bash\necho \"$TPU_WATCHDOG_GENERATION\" > {}\n",
        work.path().join("out").display()
    );
    let settings = JobSettings { command: None, ..job("", work.path()) };
    let Some(host) = Host::new(&settings, &script, &order(None)) else { return };
    host.boot();
    host.wait("it rests", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.ends_with("idle"))
    });
    assert_eq!(std::fs::read_to_string(work.path().join("out")).unwrap(), "7\n");
    assert_eq!(
        host.attribute("exit"),
        None,
        "a script that ends well has set things up: nothing has finished"
    );
}

#[test]
fn the_script_is_valid_and_within_the_limits_of_metadata() {
    let script = launch::supervisor("a", &job("x", Path::new("/")));
    assert!(script.len() < 262_144);
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn the_script_is_clean() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // Without the user's own words: how they are quoted has a test of its own.
    let plain = JobSettings { env: Default::default(), ..job("x", Path::new("/")) };
    std::fs::write(file.path(), launch::supervisor("a", &plain)).unwrap();
    let mut lint = Command::new("shellcheck");
    match lint.arg("--shell=bash").arg(file.path()).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
        Err(_) => {
            assert!(std::env::var_os("CI").is_none(), "shellcheck must be there in CI");
            eprintln!("left out: shellcheck is missing");
        }
    }
}

#[test]
fn what_a_run_leaves_behind_is_ended_before_the_next_one_begins() {
    let work = tempfile::tempdir().unwrap();
    let (met, out) = (work.path().join("met"), work.path().join("out"));
    // A child that ignores SIGTERM and says every moment that it lives.
    std::fs::write(
        work.path().join("child"),
        format!("trap '' TERM; while :; do echo x > {}; sleep 0.05; done\n", met.display()),
    )
    .unwrap();
    let command = format!(
        "rm -f {0}; sleep 0.3; [[ -e {0} ]] && echo met >> {1}; echo run >> {1}; bash ./child & sleep 0.2; exit 1",
        met.display(),
        out.display()
    );
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.contains("final")));
    assert_eq!(std::fs::read_to_string(out).unwrap(), "run\nrun\nrun\n", "no run met another");
}

#[test]
fn a_job_that_takes_its_host_down_is_not_restarted_for_ever() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!("echo x >> {}; sleep 30", tries.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    for runs in 1..=3 {
        host.wait("a run", || {
            std::fs::read_to_string(&tries).is_ok_and(|text| text.lines().count() == runs)
        });
        host.power_cycle(&[]);
    }
    host.wait("the end", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7 75 final after 2 restarts"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap().lines().count(), 3);
}

#[test]
fn a_user_that_does_not_exist_yet_is_waited_for() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let mut settings = job(&format!("echo \"$USER $HOME\" > {}", out.display()), work.path());
    let me = Command::new("id").arg("-un").output().unwrap().stdout;
    settings.user = String::from_utf8(me).unwrap().trim().to_owned();
    // It may be the startup script that makes it.
    let mark = work.path().join("script");
    let script = format!("#! /bin/bash\necho x > {}\n", mark.display());
    let Some(host) = Host::new(&settings, &script, &order(None)) else { return };
    let there = host.path("there");
    host.program(
        "getent",
        &format!(
            "#! /bin/bash\n[[ -e {} ]] || exit 2\necho \"$2:x:0:0::{}:/bin/bash\"\n",
            there.display(),
            work.path().display()
        ),
    );
    host.boot();
    host.wait("it says so", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.contains("does not exist yet"))
    });
    assert!(!out.exists() && mark.exists());
    std::fs::write(there, "").unwrap();
    let expected = format!("{} {}\n", settings.user, work.path().display());
    host.wait("it runs", || std::fs::read_to_string(&out).is_ok_and(|text| text == expected));
}

#[test]
fn the_folder_may_be_in_the_home_of_the_user_that_runs_it() {
    for dir in ["~/run", "$HOME/run"] {
        let work = tempfile::tempdir().unwrap();
        std::fs::create_dir(work.path().join("run")).unwrap();
        let out = work.path().join("out");
        let mut settings = job(&format!("pwd > {}", out.display()), work.path());
        settings.dir = dir.into();
        let Some(host) = Host::new(&settings, "", &order(None)) else { return };
        host.home(work.path());
        host.boot();
        let expected = format!("{}/run\n", work.path().display());
        host.wait("it runs", || std::fs::read_to_string(&out).is_ok_and(|text| text == expected));
    }
}

#[test]
fn run_again_by_hand_it_changes_nothing_under_the_running_supervisor() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!("echo x >> {}; sleep 0.5; exit 1", tries.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("a run", || tries.exists());
    let before = std::fs::metadata(host.path("supervisor")).unwrap().ino();
    host.boot();
    assert_ne!(std::fs::metadata(host.path("supervisor")).unwrap().ino(), before, "a new file");
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.contains("final")));
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\nx\n");
}

#[test]
fn a_newer_order_ends_the_run_and_starts_the_next_one_from_its_checkpoint() {
    let work = tempfile::tempdir().unwrap();
    let (out, set_up) = (work.path().join("out"), work.path().join("set-up"));
    // A job that would run for ever, with a child that ignores SIGTERM.
    let command = format!(
        "echo \"$TPU_WATCHDOG_GENERATION $CHECKPOINT_PATH $CHECKPOINT_STEP\" >> {}; (trap '' TERM; sleep 60) & sleep 60",
        out.display()
    );
    let script = format!("#! /bin/bash\necho x >> {}\n", set_up.display());
    let settings = job(&command, work.path());
    let Some(host) = Host::new(&settings, &script, &order(Some(1200))) else { return };
    host.boot();
    let runs = |text: &str| std::fs::read_to_string(&out).is_ok_and(|out| out == text);
    let first = "7 gs://b/ckpt/1200 1200\n";
    host.wait("the first run", || runs(first));
    let beacon = host.attribute("boot").unwrap();
    assert!(beacon.ends_with(" 7 1 v2"), "it says that it takes newer orders: {beacon}");
    // The same generation once more, or an older one, changes nothing.
    host.orders(RunOrder { generation: 6, ..order(Some(1)) });
    host.orders(RunOrder { generation: 8, ..order(Some(2400)) });
    host.wait("the next run", || runs(&format!("{first}8 gs://b/ckpt/2400 2400\n")));
    host.wait("its boot beacon", || host.attribute("boot").is_some_and(|b| b.ends_with(" 8 1 v2")));
    assert_eq!(host.attribute("exit"), None, "an order is no exit");
    let set_up = std::fs::read_to_string(set_up).unwrap();
    assert_eq!(set_up, "x\n", "the startup script runs once a boot");
    let units = std::fs::read_dir(host.path("units")).unwrap().flatten();
    let jobs = units.filter(|unit| unit.file_name().to_string_lossy().contains("-job-")).count();
    assert_eq!(jobs, 1, "nothing is left of the former run");
}

#[test]
fn a_startup_script_that_reads_the_order_runs_for_each_of_them() {
    let work = tempfile::tempdir().unwrap();
    let (out, runs) = (work.path().join("out"), work.path().join("runs"));
    let script = format!("#! /bin/bash\necho \"$CHECKPOINT_STEP\" > {}\n", out.display());
    let command = format!("cat {} >> {}; sleep 60", out.display(), runs.display());
    let Some(host) = Host::new(&job(&command, work.path()), &script, &order(Some(1200))) else {
        return;
    };
    host.boot();
    let ran = |text: &str| std::fs::read_to_string(&runs).is_ok_and(|runs| runs == text);
    host.wait("the first run", || ran("1200\n"));
    host.orders(RunOrder { generation: 8, ..order(Some(2400)) });
    host.wait("the next run", || ran("1200\n2400\n"));
}

#[test]
fn a_host_of_several_waits_for_the_order_that_starts_all_of_them() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!(
        "echo \"$TPU_WATCHDOG_GENERATION\" >> {}; [[ $TPU_WATCHDOG_GENERATION == 7 ]] && exit 3; sleep 60",
        out.display()
    );
    let job = job(&command, work.path());
    let Some(host) = Host::of_type("v4-16", &job, "", &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_ALONE", "600")]);
    host.wait("it waits", || {
        let waits = " 7 3 waits: for a newer order, or starts by itself in 600 s";
        host.attribute("exit").is_some_and(|exit| exit.ends_with(waits))
            && host
                .attribute("heartbeat")
                .is_some_and(|beat| beat.ends_with("waiting for an order"))
    });
    host.orders(RunOrder { generation: 8, ..order(Some(2400)) });
    let runs = || std::fs::read_to_string(&out).unwrap_or_default();
    host.wait("it runs", || runs() == "7\n8\n");
}

#[test]
fn a_host_of_several_that_reboots_in_a_run_waits_for_the_others() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo \"$TPU_WATCHDOG_GENERATION\" >> {}; sleep 60", out.display());
    let job = job(&command, work.path());
    let Some(host) = Host::of_type("v4-16", &job, "", &order(None)) else { return };
    let alone = [("TPU_WATCHDOG_ALONE", "600")];
    host.boot_with(&alone);
    let runs = |text: &str| std::fs::read_to_string(&out).is_ok_and(|runs| runs == text);
    host.wait("it runs", || runs("7\n"));
    host.power_cycle(&alone);
    host.wait("it waits", || host.attribute("exit").is_some_and(|e| e.contains(" 7 75 waits: ")));
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("it runs again", || runs("7\n8\n"));
    // Without an order it starts by itself, and says so.
    host.power_cycle(&[]);
    host.wait("it runs by itself", || runs("7\n8\n8\n"));
    assert!(host.attribute("exit").unwrap().contains(" 8 75 restarting by itself"));
}

#[test]
fn a_supervisor_that_rests_starts_the_job_when_it_is_ordered() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo \"$CHECKPOINT_STEP\" >> {}; sleep 1.3; exit 1", out.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(1200))) else { return };
    host.boot_with(&[("TPU_WATCHDOG_LONG", "1")]);
    let stale = |generation: u64| {
        let text = format!(" {generation} 1 stale_order ran=");
        host.wait("it is stale", || host.attribute("exit").is_some_and(|e| e.contains(&text)));
    };
    stale(7);
    host.orders(RunOrder { generation: 8, ..order(Some(2400)) });
    stale(8);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "1200\n2400\n");
}
