//! The supervisor on a machine with the real systemd: what the stubs of tests/supervisor stand
//! for.

use serde_json::json;
use tpu_watchdog::launch;
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::JobSettings;
use tpu_watchdog::model::spec::NodeSpec;

use crate::machine::{self, Machine};

/// The first run leaves a child behind that has a session of its own and ignores SIGTERM, and dies
/// by a signal; the second is cut off with its supervisor, the third by a newer order; the fourth ends
/// well.
const COMMAND: &str = r#"
echo run >>/test/runs; runs=$(wc -l </test/runs)
[[ $(pgrep -c -f /test/child) == 0 ]] || echo "run $runs met a child" >>/test/met
echo "output of run $runs, token $TOKEN"
if ((runs == 1)); then
  setsid bash /test/child & sleep 1
  echo "$USER $HOME $PWD $PYTHONUNBUFFERED" >/test/environment
  kill -SEGV $$
fi
((runs == 2 || runs == 3)) && sleep 600
echo 7 >"$TPU_WATCHDOG_PROGRESS"
"#;

/// The beginning of a story: a node whose supervisor is in /test/startup.sh.
const NODE: &str = r#"
set -u
exec >>/test/result 2>&1
say() { echo "== $*"; }
end() { journalctl --no-pager -o short-precise >/test/journal; say "$@"; exit; }
waits() { for _ in {1..600}; do eval "$1" >/dev/null 2>&1 && return; sleep 0.1; done; end "waited in vain: $1"; }
API=http://127.0.0.1:9471/v2/projects/p/locations/us-central2-b/nodes
export TPU_WATCHDOG_METADATA=http://127.0.0.1:9471/metadata/us-central2-b/a/0/computeMetadata/v1 TPU_WATCHDOG_BEAT=0.2
export TPU_WATCHDOG_PAUSE=0.2 TPU_WATCHDOG_PAUSES='0.5'
reports() { curl -s -X POST "$API/a:getGuestAttributes" -d '{"queryPath": "tpu-watchdog/"}' | tr -d '\n'; }
systemctl start simulator
waits "curl -sf $API"
curl -sf -X POST "$API?nodeId=a" -H 'Content-Type: application/json' -d @/test/node.json >/dev/null || end "no node"
waits "curl -sf -H 'Metadata-Flavor: Google' $TPU_WATCHDOG_METADATA/instance/attributes/agent-worker-number"
"#;

const CONTROL_GROUPS: &str = r#"
touch /tmp/libtpu_lockfile
exec 8>/tmp/libtpu_lock_held
bash /test/startup.sh
waits 'reports | grep "the user ubuntu does not exist yet"'
say "waits for its user"
mkdir -p /home/ubuntu/run; chown -R 1000 /home/ubuntu; chmod 777 /test
echo 'ubuntu:x:1000:1000::/home/ubuntu:/bin/bash' >>/etc/passwd
waits 'reports | grep " 7.1 139 restarting 1 of 3"'
say "a signal's code is reported"
say "kept: $(reports | grep -o 'output of run 1, token [^\\]*')"
waits '[[ $(wc -l </test/runs) == 2 ]]'
say "environment: $(cat /test/environment)"
job=$(systemctl list-units --plain --no-legend 'tpu-watchdog-job-*' | cut -d" " -f1)
say "limits: $(systemctl show -P LimitNOFILE "$job") $(systemctl show -P LimitMEMLOCK "$job")"
say "child: $(pgrep -c -f /test/child) met: $(cat /test/met 2>/dev/null)"
say "stale lock: $(ls /tmp/libtpu_lockfile 2>/dev/null) held lock: $(ls /tmp/libtpu_lock_held)"
bash /test/startup.sh
say "units: $(systemctl list-units --plain --no-legend 'tpu-watchdog-*' | wc -l)"
before=$(systemctl show -p MainPID --value tpu-watchdog-supervisor)
systemctl kill -s KILL --kill-who=main tpu-watchdog-supervisor
waits '[[ $(systemctl show -p MainPID --value tpu-watchdog-supervisor) != "$before" ]]'
waits '[[ $(systemctl is-active tpu-watchdog-supervisor) == active ]]'
say "a killed supervisor is back"
waits '[[ $(wc -l </test/runs) == 3 ]]'
curl -sf -X PATCH "$API/a?updateMask=metadata" -H 'Content-Type: application/json' -d @/test/order.json >/dev/null || end "no order"
waits 'reports | grep " 8.1 0 done ran="'
say "runs: $(wc -l </test/runs)"
say "left: $(systemctl list-units --plain --no-legend 'tpu-watchdog-job-*' | wc -l)"
say "setup: $(wc -l </test/setups) daemon: $(pgrep -c -f /test/daemon)"
say "journal: $(journalctl -u 'tpu-watchdog-job-*' -o cat | grep -c '^output of run')"
end "end"
"#;

/// Each run makes a step, fills the disk to the last byte, and fails.
const FILLS_THE_DISK: &str = r#"
echo run >>/test/runs
echo 7 >>"$TPU_WATCHDOG_PROGRESS"
dd if=/dev/zero of="${TPU_WATCHDOG_PROGRESS%/*}/filler.$(wc -l </test/runs)" bs=512
exit 3
"#;

const FULL_DISK: &str = r#"
mkdir -p /var/lib/tpu-watchdog
mount -t tmpfs -o size=2m tmpfs /var/lib/tpu-watchdog || end "no disk"
bash /test/startup.sh
waits 'reports | grep -E " 7\.[0-9] (3 final|0 done)"'
say "exit: $(reports | grep -oE " 7\.[0-9] (3 final after 2 restarts|0 done)")"
say "runs: $(wc -l </test/runs), full: $(($(df --output=avail /var/lib/tpu-watchdog | tail -1) < 64))"
say "used: $(cat /var/lib/tpu-watchdog/restarts.7)"
say "told: $(reports | grep -o "disk of /var/lib/tpu-watchdog is full" | head -1)"
end "end"
"#;

/// Much more than a journal keeps, in long lines, and then an error.
const OUTPUT: &str = r#"
yes "$(head -c 4000 /dev/zero | tr '\0' x)" | head -c ${OUTPUT}M
echo; echo; echo "ValueError: the last line"; exit 3
"#;

/// As on images whose journal is forwarded to a syslog, which keeps what it gets.
const MUCH_OUTPUT: &str = r#"
python3 -c 'import socket
syslog = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
syslog.bind("/run/systemd/journal/syslog")
with open("/test/syslog", "wb", 0) as file:
    while True: file.write(syslog.recv(65536)[:100] + b"\n")' & syslog=$!
waits 'test -e /test/syslog'
bash /test/startup.sh
waits 'reports | grep "running"'
until reports | grep -q " 7.1 3 final after 0 restarts"; do sleep 1; done
say "kept: $(reports | grep -o 'ValueError: the last line' | head -1)"
say "beats: $(($(reports | grep -oP 'heartbeat[^}]*7\.1 \K[0-9]+' | head -1) > 3))"
used=$(journalctl --disk-usage | grep -oP 'take up \K[0-9.]+[BKMG]')
systemd-cat echo of another program
waits 'grep "of another program" /test/syslog'
say "syslog: $(grep -c xxxx /test/syslog)"
kill -KILL "$syslog"
say "journal: $(($(numfmt --from=iec "${used%B}") < 1000000000)) state: $(du -sm /var/lib/tpu-watchdog | cut -f 1)"
end "end"
"#;

/// Worker 0 of two hosts; the other one is played by calls.
const ROLL_CALL: &str = r#"
export TPU_WATCHDOG_ALONE=1 TPU_WATCHDOG_CALL=0.5 TPU_WATCHDOG_FRESH=5
calls() { exec 3<>/dev/tcp/127.0.0.2/8377; echo "roll-call me a 7 1 $1 other" >&3; read -r -u 3 line; exec 3>&-; echo "$line"; }
bash /test/startup.sh
waits 'reports | grep "roll_call: not heard from: 1"'
say "socket: $(systemctl is-active tpu-watchdog-roll-call.socket), runs: $(cat /test/runs 2>/dev/null)"
waits 'calls 0 | grep "^go 1"'
waits '[[ $(wc -l </test/runs) == 1 ]]'
waits 'reports | grep " 7.1 1 waits: for a newer order"'
waits 'reports | grep "roll_call: not heard from: 1"'
say "runs: $(wc -l </test/runs)"
waits 'calls 1 | grep "^go 2"'
waits '[[ $(wc -l </test/runs) == 2 ]]'
say "try: $(sed -n 2p /test/runs)"
systemctl kill -s KILL --kill-who=main tpu-watchdog-supervisor
waits 'reports | grep "roll_call: not heard from: 1"'
say "a killed supervisor waits as well, runs: $(wc -l </test/runs)"
say "failed: $(systemctl list-units --failed --plain --no-legend 'tpu-watchdog-roll-call*' | wc -l)"
say "told: $(($(journalctl -o cat -u 'tpu-watchdog-roll-call@*' | wc -l) < 5))"
end "end"
"#;

/// The first run leaves its trainer in the background, the next one a helper that ends by itself.
const LEAVES: &str = r#"
bash /test/startup.sh
waits 'reports | grep " 7.1 0 done ran="'
say "left: $(reports | grep -o 'step=7; left running: [a-z ]*')"
waits 'reports | grep "ended_early"'
say "ended with it: $(pgrep -c -f 'sleep 677')"
curl -sf -X PATCH "$API/a?updateMask=metadata" -H 'Content-Type: application/json' -d @/test/order.json >/dev/null || end "no order"
waits 'reports | grep " 8.1 0 done ran="'
say "nothing left: $(reports | grep -c 'left running')"
waits 'reports | grep -P "heartbeat[^}]* 8\.1 [0-9]+ done"'
end "end"
"#;

#[test]
fn s23_a_command_that_leaves_its_trainer_in_the_background_has_not_finished() {
    let command = "seconds=677; ((TPU_WATCHDOG_GENERATION < 8)) || seconds=1; setsid sleep $seconds & echo 7 >\"$TPU_WATCHDOG_PROGRESS\"";
    let job = JobSettings {
        command: Some(command.into()),
        stop_grace: std::time::Duration::from_secs(2),
        ..JobSettings::default()
    };
    let Some(story) = played(LEAVES, &job) else { return };
    story.tells(&[
        "== left: step=7; left running: sleep\n",
        "== ended with it: 0\n",
        "== nothing left: 0\n",
        "== end",
    ]);
}

/// The order names the boot in which it is read first; after that one it means nothing. The simulator
/// forgets its node with the machine, and gets it again with the same order.
const REBOOTS: &str = r#"
echo boot >>/test/boots
patch() { curl -sf -X PATCH "$API/a?updateMask=metadata" -H 'Content-Type: application/json' -d @/test/told.json >/dev/null || end "no order"; }
if [[ $(wc -l </test/boots) == 1 ]]; then
  bash /test/startup.sh
  waits 'reports | grep " 7.1 3 final after 0 restarts"'
  say "it has failed"
  sed "s/THIS-BOOT/$(</proc/sys/kernel/random/boot_id)/" /test/reboot.json >/test/told.json
  patch
  sleep 600
  end "it did not reboot"
fi
say "it is up again"
patch
bash /test/startup.sh
waits 'reports | grep " 7.2 3 final after 0 restarts"'
say "boots: $(wc -l </test/boots), runs: $(wc -l </test/runs)"
say "told: $(journalctl -o cat -u tpu-watchdog-supervisor | grep -c 'the run order tells this host to reboot')"
end "end"
"#;

#[test]
fn a_host_reboots_once_for_an_order_that_names_its_boot_under_a_real_systemd() {
    let job = JobSettings {
        command: Some("echo run >>/test/runs; exit 3".into()),
        stop_grace: std::time::Duration::from_secs(2),
        restarts_per_run: 0,
        ..JobSettings::default()
    };
    let Some(mut story) = played(REBOOTS, &job) else { return };
    // Not each nspawn starts a container again that reboots.
    if !story.machine.read("result").contains("it is up again") {
        story.out += &story.machine.boot();
    }
    story.tells(&[
        "== it has failed\n",
        "== it is up again\n",
        "== boots: 2, runs: 2\n",
        "== told: 1\n",
        "== end",
    ]);
}

#[test]
fn s22_the_hosts_of_a_slice_call_each_other_under_a_real_systemd() {
    let job = JobSettings {
        command: Some("echo \"$TPU_WATCHDOG_TRY\" >>/test/runs; ((TPU_WATCHDOG_TRY > 1)) && sleep 600; exit 1".into()),
        stop_grace: std::time::Duration::from_secs(2),
        restarts_per_run: 3,
        ..JobSettings::default()
    };
    let Some(story) = played_on("v4-16", ROLL_CALL, &job) else { return };
    story.tells(&[
        "== socket: active, runs: \n",
        "== runs: 1\n",
        "== try: 2\n",
        "== a killed supervisor waits as well, runs: 2\n",
        "== failed: 0\n",
        "== told: 1\n",
        "== end",
    ]);
}

#[test]
fn each_run_is_a_control_group_that_is_ended_whole_under_a_real_systemd() {
    let job = JobSettings {
        command: Some(COMMAND.into()),
        user: "ubuntu".into(),
        dir: "~/run".into(),
        stop_grace: std::time::Duration::from_secs(2),
        restarts_per_run: 3,
        env_file: Some("/test/train.env".into()),
        ..JobSettings::default()
    };
    let Some(story) = played(CONTROL_GROUPS, &job) else { return };
    story.tells(&[
        "== waits for its user",
        "== a signal's code is reported",
        "== kept: output of run 1, token ***\n",
        "== environment: ubuntu /home/ubuntu /home/ubuntu/run 1",
        "== limits: 1048576 infinity",
        "== child: 0 met: \n",
        "== stale lock:  held lock: /tmp/libtpu_lock_held",
        "== units: 2",
        "== a killed supervisor is back",
        "== runs: 4",
        "== left: 0",
        "== journal: 4",
        "== setup: 1 daemon: 1",
        "== end",
    ]);
}

#[test]
fn output_without_end_is_bounded_by_the_journal_and_its_last_lines_are_kept() {
    // tests/long plays it with 10 GB.
    let megabytes = std::env::var("OUTPUT_MB").unwrap_or("300".into());
    let job = JobSettings {
        command: Some(OUTPUT.replace("${OUTPUT}", &megabytes)),
        stop_grace: std::time::Duration::from_secs(2),
        ..JobSettings::default()
    };
    let Some(story) = played(MUCH_OUTPUT, &job) else { return };
    story.tells(&[
        "== kept: ValueError: the last line\n",
        "== beats: 1\n",
        "== syslog: 0\n",
        "== journal: 1 state: 1\n",
        "== end",
    ]);
}

#[test]
fn a_disk_that_is_full_neither_ends_a_run_well_nor_restarts_it_for_ever() {
    let job = JobSettings {
        command: Some(FILLS_THE_DISK.into()),
        restarts_per_run: 2,
        stop_grace: std::time::Duration::from_secs(2),
        ..JobSettings::default()
    };
    let Some(story) = played(FULL_DISK, &job) else { return };
    story.tells(&[
        "== exit:  7.3 3 final after 2 restarts\n",
        "== runs: 3, full: 1\n",
        "== used: 3 3 2 7\n",
        "== told: disk of /var/lib/tpu-watchdog is full\n",
        "== end",
    ]);
}

/// A story that was played to its end.
pub struct Played {
    machine: Machine,
    /// Its console.
    out: String,
    _folder: tempfile::TempDir,
}

impl Played {
    #[track_caller]
    pub fn tells(&self, lines: &[&str]) {
        let (result, journal) = (self.machine.read("result"), self.machine.read("journal"));
        // The newest first; a whole journal is too long.
        let end: Vec<&str> = journal.lines().rev().take(200).map(shown).collect();
        for line in lines {
            let out = &self.out;
            assert!(result.contains(line), "{line:?} is missing in\n{result}\n{out}\n{end:#?}");
        }
    }
}

fn shown(line: &str) -> &str {
    line.char_indices().nth(300).map_or(line, |(end, _)| &line[..end])
}

/// Plays a story on a machine whose node has a job; none where no machine can be started.
pub fn played(story: &str, job: &JobSettings) -> Option<Played> {
    played_on("v4-8", story, job)
}

/// The same on worker 0 of a TPU of this type.
fn played_on(accelerator: &str, story: &str, job: &JobSettings) -> Option<Played> {
    if !machine::can_start() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path(), &format!("{NODE}{story}"));
    let supervisor = launch::supervisor("a", job);
    // The user's own script leaves a service behind and opens /dev/stderr; it runs once a boot.
    let script = "#! /bin/bash\nset -e\necho x >>/test/setups\nbash /test/daemon & echo set up >/dev/stderr\n";
    let spec = json!({"acceleratorType": accelerator, "runtimeVersion": "r", "metadata": {"startup-script": script}});
    let spec = NodeSpec::learn(&spec).unwrap();
    let order = RunOrder { generation: 7, ..RunOrder::default() };
    machine.put("test/node.json", &spec.render("me", "a", &order, Some(&supervisor)).to_string());
    let newer = RunOrder { generation: 8, ..RunOrder::default() };
    let newer = spec.render("me", "a", &newer, Some(&supervisor));
    machine.put("test/order.json", &json!({"metadata": newer["metadata"]}).to_string());
    let reboot =
        RunOrder { generation: 7, reboot: vec!["THIS-BOOT".into()], ..RunOrder::default() };
    let reboot = spec.render("me", "a", &reboot, Some(&supervisor));
    machine.put("test/reboot.json", &json!({"metadata": reboot["metadata"]}).to_string());
    machine.put("test/startup.sh", &supervisor);
    machine.put(
        "test/daemon",
        "pgrep -c -f /test/daemon >/test/daemons\n[[ $(</test/daemons) == 1 ]] && sleep 1000\n",
    );
    machine.put("test/train.env", "TOKEN=abcdefgh1234\n");
    machine.put("test/child", "trap '' TERM\nwhile :; do sleep 0.1; done\n");
    machine.put("test/scenario.toml", "[times]\ncreate = \"1s\"\n");
    let program = folder.path().join("usr/local/bin");
    std::fs::create_dir_all(&program).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_tpu-watchdog"), program.join("tpu-watchdog")).unwrap();
    let out = machine.boot();
    Some(Played { machine, out, _folder: folder })
}
