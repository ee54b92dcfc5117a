//! Runs that can't begin: why is told, and they begin as soon as they can.

use std::process::Command;

use tpu_watchdog::model::settings::JobSettings;

use crate::host::{Host, job, order};

#[test]
fn a_folder_that_does_not_exist_is_named_and_waited_for_without_using_a_restart() {
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("code");
    let settings = JobSettings {
        dir: folder.display().to_string(),
        ..job("pwd > ran; sleep 60", work.path())
    };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    let says = format!("setup_failed: the folder {} (dir) does not exist", folder.display());
    host.wait("it is named", || host.phase().starts_with(&says));
    assert!(host.attribute("exit").is_none());
    std::fs::create_dir(&folder).unwrap();
    host.wait("it runs", || host.phase() == "running" && folder.join("ran").exists());
}

#[test]
fn a_unit_that_systemd_does_not_start_is_told_until_one_begins() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = Host::new(&job("sleep 60", work.path()), "", &order(None)) else { return };
    let real = host.path("bin/systemd-run.real");
    std::fs::rename(host.path("bin/systemd-run"), &real).unwrap();
    let works = work.path().join("works");
    host.program(
        "systemd-run",
        &format!(
            "#! /bin/bash\n[[ $* != *--unit=tpu-watchdog-job-* || -e {} ]] || exit 4\nexec {} \"$@\"\n",
            works.display(),
            real.display()
        ),
    );
    host.boot();
    let says =
        "setup_failed: systemd does not start the unit of the run: systemd-run ended with code 4";
    host.wait("it is told", || host.phase() == says);
    assert!(host.attribute("exit").is_none(), "nothing has begun");
    std::fs::write(&works, "").unwrap();
    host.wait("it runs", || host.phase() == "running");
}

#[test]
fn a_supervisor_whose_lock_is_held_by_something_left_behind_starts_when_that_has_ended() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = Host::new(&job("sleep 60", work.path()), "", &order(None)) else { return };
    let mut left = Command::new("flock")
        .arg(host.path("tpu-watchdog.lock"))
        .args(["sleep", "300"])
        .spawn()
        .unwrap();
    let held = || {
        let mut free = Command::new("flock");
        !free.arg("-n").arg(host.path("tpu-watchdog.lock")).arg("true").status().unwrap().success()
    };
    host.wait("it is held", held);
    host.boot();
    // flock has left its own process to sleep.
    let pid = left.id().to_string();
    assert!(host.attribute("heartbeat").is_none());
    Command::new("pkill").args(["-KILL", "-P", &pid]).status().unwrap();
    left.wait().unwrap();
    host.wait("it runs", || host.phase() == "running");
}

#[test]
fn s15_a_unit_that_others_start_once_more_runs_nothing_and_counts_as_ended() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = Host::new(&job("touch ready; sleep 60", work.path()), "", &order(None)) else {
        return;
    };
    host.boot();
    host.wait("it runs", || work.path().join("ready").exists());
    let (code, marker) = (work.path().join("code"), work.path().join("marker"));
    let start = || {
        let mut wrapper = std::process::Command::new("bash");
        wrapper.arg(host.path("tpu-watchdog.wrapper")).args(["all", "touch"]).arg(&marker);
        wrapper.env("TPU_WATCHDOG_CODE", &code).status().unwrap().code()
    };
    std::fs::write(&code, "").unwrap();
    assert_eq!((start(), marker.exists()), (Some(143), false));
    assert_eq!(std::fs::read_to_string(&code).unwrap(), "143\n");
    std::fs::remove_file(&code).unwrap();
    assert_eq!((start(), marker.exists()), (Some(0), true), "begun by its supervisor");
}
