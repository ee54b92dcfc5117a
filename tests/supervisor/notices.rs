//! The announced end of a machine: the job is asked for a checkpoint, and what ends then has not
//! finished.

use serde_json::json;
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::JobSettings;

use crate::host::{Host, job, order};

/// Writes an `x` each time that it is asked to save.
const TRAIN: &str = "import signal, time\n\
                     signal.signal(signal.SIGUSR1, lambda *_: open('saved', 'a').write('x'))\n\
                     open('ready', 'w')\nwhile True: time.sleep(0.1)\n";

#[test]
fn an_announced_end_makes_of_0_no_success_although_nothing_asks_for_notices() {
    let work = tempfile::tempdir().unwrap();
    let command = "echo x >>tries; echo 7 >>\"$TPU_WATCHDOG_PROGRESS\"; until [[ -e go ]]; do sleep 0.05; done; rm go";
    let Some(host) = Host::new(&job(command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("it runs", || host.phase() == "running");
    host.simulator.with(|cloud| {
        cloud.nodes.values_mut().for_each(|node| node.run.announced = true);
    });
    host.wait("it has heard", || host.path("tpu-watchdog.notice").exists());
    // The trainer saves by itself and ends.
    std::fs::write(work.path().join("go"), "").unwrap();
    host.wait("its end", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7.1 143 restarting"))
    });
}

#[test]
fn the_end_of_the_machine_that_is_announced_asks_the_job_for_a_checkpoint_once() {
    let handler = "import os, signal, sys, time\n\
                   def save(*_):\n    open(sys.argv[1], 'a').write('saved ' + os.environ['TPU_WATCHDOG_GENERATION'] + '\\n')\n\
                   signal.signal(signal.SIGUSR1, save)\nopen(sys.argv[1] + '.ready', 'w')\nwhile True: time.sleep(0.1)\n";
    for how in ["SIGUSR1", "pkill -USR1 -f \"$PWD/train.py\""] {
        let work = tempfile::tempdir().unwrap();
        let (out, script) = (work.path().join("out"), work.path().join("train.py"));
        std::fs::write(&script, handler).unwrap();
        // A child that handles nothing must not be ended by it.
        let command = format!("sleep 60 & python3 {} {}", script.display(), out.display());
        let settings = JobSettings { on_notice: Some(how.into()), ..job(&command, work.path()) };
        let Some(host) = Host::new(&settings, "", &order(None)) else { return };
        host.boot();
        host.wait("it runs", || work.path().join("out.ready").exists());
        assert!(!out.exists());
        host.simulator.with(|cloud| {
            cloud.nodes.values_mut().for_each(|node| node.run.announced = true);
        });
        host.wait("it saves", || std::fs::read_to_string(&out).is_ok_and(|out| out == "saved 7\n"));
        host.wait("it is told", || {
            host.attribute("heartbeat").is_some_and(|beat| beat.ends_with("saving"))
        });
        assert_eq!(host.attribute("exit"), None, "{how}: the run goes on");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "saved 7\n", "once");
    }
}

#[test]
fn a_job_that_says_so_has_finished_also_right_after_a_notice() {
    let work = tempfile::tempdir().unwrap();
    let command = "touch ready; until [[ -e end ]]; do sleep 0.05; done; touch $TPU_WATCHDOG_DONE";
    let settings = JobSettings { on_notice: Some("SIGUSR1".into()), ..job(command, work.path()) };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    host.wait("it runs", || work.path().join("ready").exists());
    host.orders(RunOrder { notice: true, ..order(None) });
    host.wait("the notice", || host.path("tpu-watchdog.notice").exists());
    std::fs::write(work.path().join("end"), "").unwrap();
    host.wait("its end", || {
        host.attribute("exit").is_some_and(|exit| exit.contains(" 0 done ran="))
    });
}

#[test]
fn s23_a_save_that_takes_long_after_a_notice_is_no_success() {
    let work = tempfile::tempdir().unwrap();
    let command =
        "touch ready; until [[ -e end ]]; do sleep 0.05; done; echo 7 >>\"$TPU_WATCHDOG_PROGRESS\"";
    let Some(host) = Host::new(&job(command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("it runs", || work.path().join("ready").exists());
    host.orders(RunOrder { notice: true, ..order(None) });
    let notice = host.path("tpu-watchdog.notice");
    host.wait("the notice", || notice.exists());
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::open(&notice).unwrap().set_modified(hour_ago).unwrap();
    std::fs::write(work.path().join("end"), "").unwrap();
    host.wait("its end", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7.1 143 restarting"))
    });
}

#[test]
fn an_order_that_announces_the_end_asks_the_job_for_a_checkpoint_each_time() {
    let work = tempfile::tempdir().unwrap();
    let (saved, script) = (work.path().join("saved"), work.path().join("train.py"));
    std::fs::write(&script, TRAIN).unwrap();
    let command = "exec python3 train.py";
    let settings = JobSettings { on_notice: Some("SIGUSR1".into()), ..job(command, work.path()) };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    host.wait("it runs", || work.path().join("ready").exists());
    for saves in ["x", "xx"] {
        host.orders(RunOrder { notice: true, ..order(None) });
        host.wait("it saves", || std::fs::read_to_string(&saved).is_ok_and(|text| text == saves));
        host.orders(order(None));
        host.wait("the flag is gone", || !host.path("tpu-watchdog.announced").exists());
    }
    assert_eq!(host.attribute("exit"), None, "the run goes on");
}

#[test]
fn a_job_that_saves_and_ends_with_0_on_the_notice_has_not_finished() {
    let work = tempfile::tempdir().unwrap();
    let ready = work.path().join("ready");
    let command = format!(
        "exec python3 -c \"import os, signal, time\ndef save(*_):\n    open(os.environ['TPU_WATCHDOG_PROGRESS'], 'a').write('5\\n')\n    os._exit(0)\n\
         signal.signal(signal.SIGUSR1, save)\nopen('{}', 'w')\nwhile True: time.sleep(0.1)\"",
        ready.display()
    );
    let settings = JobSettings { on_notice: Some("SIGUSR1".into()), ..job(&command, work.path()) };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    host.wait("it runs", || ready.exists());
    host.simulator.with(|cloud| {
        cloud.nodes.values_mut().for_each(|node| node.run.announced = true);
    });
    host.wait("it has saved, and is wanted on", || {
        host.attribute("exit").is_some_and(|exit| exit.contains(" 7.1 143 restarting 1 of 2"))
    });
    assert!(!host.path("done.7").exists());
}

#[test]
fn a_maintenance_of_the_machine_that_is_near_asks_the_job_for_a_checkpoint_once_and_a_far_one_does_not()
 {
    let work = tempfile::tempdir().unwrap();
    let (saved, script) = (work.path().join("saved"), work.path().join("train.py"));
    std::fs::write(&script, TRAIN).unwrap();
    let settings = JobSettings {
        on_notice: Some("SIGUSR1".into()),
        ..job("exec python3 train.py", work.path())
    };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    let notice = |status: &str, hours: i64| {
        let at = |hours| jiff::Timestamp::now() + jiff::SignedDuration::from_hours(hours);
        let (start, end) = (at(hours).to_string(), at(hours + 2).to_string());
        let upcoming = json!({"maintenanceType": "SCHEDULED", "maintenanceStatus": status, "canReschedule": "TRUE",
            "latestWindowStartTime": start, "windowStartTime": start, "windowEndTime": end});
        host.simulator.with(|cloud| {
            cloud.nodes.values_mut().for_each(|node| node.upcoming = Some(upcoming.clone()));
        });
    };
    let beats = || -> u64 {
        let beat = host.attribute("heartbeat").unwrap_or_default();
        beat.split(' ').nth(2).and_then(|count| count.parse().ok()).unwrap_or(0)
    };
    notice("PENDING", 7 * 24);
    host.boot();
    host.wait("it runs", || work.path().join("ready").exists());
    // One that is over, and whose notice has stayed.
    notice("ONGOING", -3);
    let before = beats();
    host.wait("some time", || beats() > before + 10);
    assert!(!saved.exists());
    notice("ONGOING", 0);
    host.wait("it saves", || std::fs::read_to_string(&saved).is_ok_and(|text| text == "x"));
    let before = beats();
    host.wait("some time", || beats() > before + 10);
    assert_eq!(std::fs::read_to_string(&saved).unwrap(), "x", "once");
    assert_eq!(host.attribute("exit"), None, "the run goes on");
}
