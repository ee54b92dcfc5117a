//! The chips of a host and who holds them, on a machine with the real systemd and real control groups.

use std::time::Duration;

use tpu_watchdog::model::settings::JobSettings;

use crate::supervisor::played;

/// The first run fails since a chip is in use: its holder is in the control group of a unit of an
/// earlier run. Then a stranger holds it.
const CHIPS: &str = r#"
export TPU_WATCHDOG_CHIPS=/test/chip
touch /test/chip
holds() { systemd-run --quiet --unit="$1" bash -c 'exec 7</test/chip; exec sleep 1000'; }
holder() { systemctl show -P MainPID "$1"; }
bash /test/startup.sh
waits '[[ $(wc -l </test/runs) == 1 ]]'
holds tpu-watchdog-job-left
touch /test/go
waits 'reports | grep "chips_stuck: left by an earlier run and not to be ended: process $(holder tpu-watchdog-job-left) of user root has a chip open: sleep 1000"'
say "stuck, runs: $(wc -l </test/runs)"
holds stranger
systemctl kill -s KILL tpu-watchdog-job-left
waits 'reports | grep "chips_busy: process $(holder stranger) of user root has a chip open: sleep 1000"'
say "busy, runs: $(wc -l </test/runs), $(systemctl is-active stranger)"
systemctl stop stranger
waits 'reports | grep " 7.2 0 done"'
say "runs: $(wc -l </test/runs)"
end "end"
"#;

#[test]
fn a_chip_that_is_held_is_told_by_the_control_group_of_its_holder() {
    let busy = "RuntimeError: The TPU is already in use by process with pid 10.";
    let command = format!(
        "echo run >>/test/runs; if (($(wc -l </test/runs) == 1)); then until [[ -e /test/go ]]; do sleep 0.1; done; echo '{busy}'; exit 1; fi; \
         echo 7 >\"$TPU_WATCHDOG_PROGRESS\""
    );
    let job = JobSettings {
        command: Some(command),
        stop_grace: Duration::from_secs(2),
        restarts_per_run: 3,
        ..JobSettings::default()
    };
    let Some(story) = played(CHIPS, &job) else { return };
    story.tells(&["== stuck, runs: 1\n", "== busy, runs: 1, active\n", "== runs: 2\n", "== end"]);
}
