//! A host, its trainer, the watchdog and the simulated cloud on one machine with the real systemd: the
//! story that tests/rig plays over stubs.

use crate::alone;
use crate::machine::{self, Machine};

const CONFIG: &str = r#"
project = "p"
state = "sqlite:/test/state.db"
lease = "1s"
listen = "127.0.0.1:0"
[poll]
every = "300ms"
operations = "50ms"
timeout = "2s"
[api]
tpu = "http://127.0.0.1:9471"
storage = "http://127.0.0.1:9471"
credentials = "anonymous"
[policy]
confirmations = 2
heal = "2s"
grace = { startup = "60s", boot = "60s", silent = "60s", missing = "300ms" }
[[tpu]]
name = "a"
zone = "us-central2-b"
[tpu.create]
accelerator_type = "v4-8"
runtime_version = "tpu-ubuntu2204-base"
[tpu.job]
command = "python3 /project/tests/rig/trainer.py"
checkpoint = "gs://bucket/a"
dir = "/test"
stop_grace = "2s"
restart = { per_run = 2 }
env = { RIG = "/test/rig", RIG_STORE = "127.0.0.1:9471", RIG_STEP = "0.05", RIG_PATIENCE = "20" }
"#;

const STORY: &str = r#"
set -u
exec >>/test/result 2>&1
say() { echo "== $*"; }
end() { journalctl --no-pager -o short-precise >/test/journal; say "$@"; exit; }
waits() { for _ in {1..600}; do eval "$1" >/dev/null 2>&1 && return; sleep 0.1; done; end "waited in vain: $1"; }
export TPU_WATCHDOG_METADATA=http://127.0.0.1:9471/metadata/us-central2-b/a/0/computeMetadata/v1 TPU_WATCHDOG_BEAT=0.5
export TPU_WATCHDOG_PAUSE=0.2 TPU_WATCHDOG_PAUSES='0.3 0.6'
watchdog() { tpu-watchdog "$@" --config /test/watchdog.toml; }
log() { journalctl -o cat -u watchdog | grep -q "$1"; }
steps() { [[ $(grep -c "\"event\": \"step\".*\"generation\": $1, \"try\": $2," /test/rig/diary) -ge $3 ]]; }
mkdir -p /test/rig
systemctl start simulator
waits 'curl -sf http://127.0.0.1:9471/v2/projects/p/locations/us-central2-b/nodes'
systemd-run --quiet --unit=watchdog tpu-watchdog run --config /test/watchdog.toml
waits 'curl -sf http://127.0.0.1:9471/v2/projects/p/locations/us-central2-b/nodes/a | grep READY'
waits 'curl -sf -H "Metadata-Flavor: Google" $TPU_WATCHDOG_METADATA/instance/attributes/startup-script >/test/startup.sh'
bash /test/startup.sh
waits 'steps 1 1 25'
waits 'log "recovered from"'
touch /test/rig/crash.0
waits 'steps 1 2 25'
watchdog relaunch a
waits 'steps 2 1 15'
touch /test/rig/end
waits 'log "the job is finished"'
watchdog history a --output json >/test/history
end "end"
"#;

#[test]
fn a_host_alone_is_told_as_over_stubs() {
    if !machine::can_start() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path(), STORY);
    machine.put("test/watchdog.toml", CONFIG);
    // No guest is simulated: this one is real.
    machine.put("test/scenario.toml", "nodes = []\n[times]\ncreate = \"1s\"\nboot = \"9000h\"\n");
    let program = folder.path().join("usr/local/bin");
    std::fs::create_dir_all(&program).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_tpu-watchdog"), program.join("tpu-watchdog")).unwrap();
    let out = machine.boot();
    let all = || format!("{}\n{out}\n{}", machine.read("result"), machine.read("journal"));
    assert!(machine.read("result").contains("== end\n"), "{}", all());
    assert_eq!(alone::told(&machine.read("history")), alone::TOLD, "{}", all());
    assert_eq!(alone::runs(&machine.read("rig/diary")), alone::RUNS, "{}", all());
}
