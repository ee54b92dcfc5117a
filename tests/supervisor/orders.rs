//! Run orders: what a run starts from, when its order is stale, and how a newer one is followed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::{JobSettings, Resume};
use tpu_watchdog::simulator::http::{Fault, Logged};
use tpu_watchdog::simulator::wire::Reply;

use crate::host::{Host, job, order};

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
                .is_some_and(|e| e.contains(" 7.1 1 stale_order ran=") && e.contains("step 1200"))
        };
        host.wait("it is held", stale);
        assert!(host.path("long.7").exists());
        let restarted = host.path("restarts.7");
        assert!(!restarted.exists(), "{:?}", std::fs::read_to_string(restarted));
        // The length of the run is on the disk: a reboot changes nothing.
        host.power_cycle(&long);
        host.wait("it is held again", || {
            host.attribute("exit").is_some_and(|e| e.contains(" 7.1 75 stale_order ran="))
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
        host.attribute("exit").is_some_and(|e| e.contains(" 7.1 75 stale_order ran=1"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "gs://b/ckpt/1200\n");
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
fn on_several_hosts_no_try_is_the_last_and_one_that_runs_on_is_reported() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command =
        format!("echo x >> {0}; [[ $(wc -l < {0}) -lt 5 ]] && exit 1; sleep 20", tries.display());
    let job = job(&command, work.path());
    let Some(host) = Host::of_type("v4-16", &job, "", &order(None)) else { return };
    let _other = host.other(1);
    host.boot_with(&[("TPU_WATCHDOG_LONG", "1")]);
    host.wait("it is told", || {
        host.attribute("exit")
            .is_some_and(|e| e.contains(" 1 failing after 2 restarts: tried again every 0.2 s"))
    });
    host.wait("it is tried on", || {
        std::fs::read_to_string(&tries).is_ok_and(|text| text.lines().count() == 5)
    });
    host.wait("it runs again", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7.5 1 recovered ran="))
    });
}

#[test]
fn nothing_starts_before_the_run_order_could_be_read() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo $TPU_WATCHDOG_GENERATION > {}", out.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(5))) else { return };
    let outage = |logged: &Logged| {
        let reply = Reply::new(503, "");
        logged.path.contains("tpu-watchdog-run").then_some(Fault::AnswerBefore(reply))
    };
    let (asked, count) = (Arc::new(AtomicU32::new(0)), Ordering::SeqCst);
    let seen = Arc::clone(&asked);
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
    assert!(beacon.ends_with(" 7.1 1 v4 i0 c0"), "it says that it takes newer orders: {beacon}");
    // The same generation once more, or an older one, changes nothing.
    host.orders(RunOrder { generation: 6, ..order(Some(1)) });
    host.orders(RunOrder { generation: 8, ..order(Some(2400)) });
    host.wait("the next run", || runs(&format!("{first}8 gs://b/ckpt/2400 2400\n")));
    host.wait("its boot beacon", || {
        host.attribute("boot").is_some_and(|b| b.ends_with(" 8.1 1 v4 i0 c0"))
    });
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
fn s15_a_job_that_is_told_where_to_begin_does_no_step_twice() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!(
        "echo \"$CHECKPOINT_STEP\" >> {}; echo $((CHECKPOINT_STEP + 10)) > \"$TPU_WATCHDOG_PROGRESS\"; sleep 0.5; exit 1",
        tries.display()
    );
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(1200))) else { return };
    host.boot();
    let stale = |generation: u64| {
        let of = format!(" {generation}.1 1 stale_order ran=");
        host.attribute("exit").is_some_and(|exit| exit.contains(&of))
    };
    host.wait("it asks for a newer order", || stale(7));
    host.orders(RunOrder { generation: 8, ..order(Some(1210)) });
    host.wait("it asks once more", || stale(8));
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "1200\n1210\n");
}

#[test]
fn the_config_may_say_who_picks_the_checkpoint_of_a_start() {
    let steps = "echo 10 > \"$TPU_WATCHDOG_PROGRESS\"; sleep 0.5; exit 1";
    let work = tempfile::tempdir().unwrap();
    let settings = |resume, command: String| JobSettings {
        resume: Some(resume),
        ..job(&command, work.path())
    };
    // It mentions no checkpoint, and reads the order all the same.
    let settings_of_one = settings(Resume::Watchdog, format!("bash -c {steps:?}"));
    let Some(host) = Host::new(&settings_of_one, "", &order(None)) else { return };
    host.boot();
    host.wait("it asks for a newer order", || {
        host.attribute("exit").is_some_and(|exit| exit.contains(" 7.1 1 stale_order ran="))
    });
    // It mentions one, and finds its own.
    let runs = work.path().join("runs");
    let command = format!("echo \"$CHECKPOINT_STEP\" >> {}; {steps}", runs.display());
    let settings = settings(Resume::Framework, command);
    let Some(host) = Host::new(&settings, "", &order(Some(1200))) else { return };
    host.boot();
    let twice = || std::fs::read_to_string(&runs).is_ok_and(|runs| runs == "1200\n1200\n");
    host.wait("it starts again by itself", twice);
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
    let _other = host.other(1);
    host.boot_with(&[("TPU_WATCHDOG_ALONE", "600")]);
    host.wait("it waits", || {
        let waits = " 7.1 3 waits: for a newer order, or 600 s, then for the other hosts";
        let says = |exit: String| exit.split("; ran=").next().is_some_and(|e| e.ends_with(waits));
        host.attribute("exit").is_some_and(says)
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
    let other = host.other(1);
    let alone = [("TPU_WATCHDOG_ALONE", "600")];
    host.boot_with(&alone);
    let runs = |text: &str| std::fs::read_to_string(&out).is_ok_and(|runs| runs == text);
    host.wait("it runs", || runs("7\n"));
    host.power_cycle(&alone);
    host.wait("it waits", || host.attribute("exit").is_some_and(|e| e.contains(" 7.1 75 waits: ")));
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("it runs again", || runs("7\n8\n"));
    // Without an order it starts when the other waits as well.
    drop(other);
    let call = host.path("tpu-watchdog.roll/8/1");
    host.wait("its last call is old", || {
        let at = std::fs::metadata(&call).and_then(|data| data.modified());
        at.map_or(true, |at| at.elapsed().is_ok_and(|age| age.as_secs() >= 3))
    });
    host.power_cycle(&[]);
    host.wait("it calls", || host.phase().starts_with("roll_call: not heard from: 1"));
    assert!(runs("7\n8\n"));
    let _other = host.other(1);
    host.wait("it runs by itself", || runs("7\n8\n8\n"));
    host.wait("its try", || host.attribute("boot").is_some_and(|b| b.ends_with(" 8.2 1 v4 i0 c0")));
}

#[test]
fn a_supervisor_that_rests_starts_the_job_when_it_is_ordered() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo \"$CHECKPOINT_STEP\" >> {}; sleep 1.3; exit 1", out.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(Some(1200))) else { return };
    host.boot_with(&[("TPU_WATCHDOG_LONG", "1")]);
    let stale = |generation: u64| {
        let text = format!(" {generation}.1 1 stale_order ran=");
        host.wait("it is stale", || host.attribute("exit").is_some_and(|e| e.contains(&text)));
    };
    stale(7);
    host.orders(RunOrder { generation: 8, ..order(Some(2400)) });
    stale(8);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "1200\n2400\n");
}

#[test]
fn a_job_that_sees_its_checkpoints_under_a_mounted_folder_is_told_paths_there() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo \"$CHECKPOINT_BASE|$CHECKPOINT_PATH\" > {}", out.display());
    for (step, told) in [(Some(1200), "/mnt/a&b|/mnt/a&b/1200\n"), (None, "/mnt/a&b|\n")] {
        let settings =
            JobSettings { checkpoint_as: Some("/mnt/a&b".into()), ..job(&command, work.path()) };
        let Some(host) = Host::new(&settings, "", &order(step)) else { return };
        host.boot();
        host.wait("it runs", || std::fs::read_to_string(&out).is_ok_and(|out| out == told));
    }
}

#[test]
fn while_its_order_says_wait_nothing_starts_and_what_runs_goes_on() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let command = format!(
        "echo x >> {}; until [[ -e end ]]; do sleep 0.05; done; rm end; exit 1",
        tries.display()
    );
    let starts = || std::fs::read_to_string(&tries).unwrap_or_default().lines().count();
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_PAUSES", "0.1")]);
    host.wait("the first run", || starts() == 1);
    let waits = RunOrder { wait: true, ..order(None) };
    host.orders(waits);
    host.wait("the flag", || host.path("tpu-watchdog.wait").exists());
    // The beat in which the flag came may have told its boot before.
    let told = || host.attribute("boot").is_some_and(|boot| boot.ends_with(" v4 i0 c0 wait"));
    host.wait("it says that it has read it", told);
    assert_eq!((starts(), host.attribute("exit")), (1, None), "what runs goes on");
    std::fs::write(work.path().join("end"), "").unwrap();
    let says = || host.attribute("heartbeat").is_some_and(|text| text.contains("order says wait"));
    host.wait("it waits", says);
    assert_eq!(starts(), 1);
    // A reboot is no way around it.
    host.power_cycle(&[("TPU_WATCHDOG_PAUSES", "0.1")]);
    host.wait("it waits again", says);
    assert_eq!(starts(), 1);
    host.orders(order(None));
    host.wait("the next run", || starts() == 2);
}

#[test]
fn a_tpu_that_is_given_back_while_its_order_says_wait_goes_on_by_itself() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let command = format!("echo x >> {}; sleep 20", out.display());
    let waits = RunOrder { wait: true, ..order(None) };
    let Some(host) = Host::new(&job(&command, work.path()), "", &waits) else { return };
    host.boot();
    host.wait("it waits", || {
        host.attribute("heartbeat").is_some_and(|text| text.contains("order says wait"))
    });
    assert!(!out.exists());
    host.released();
    host.wait("it starts", || out.exists());
}

#[test]
fn a_trainer_that_saves_on_sigterm_is_sent_it_once() {
    let work = tempfile::tempdir().unwrap();
    let (asked, script) = (work.path().join("asked"), work.path().join("train.py"));
    let text = "import signal, sys, time\n\
                def save(*_):\n    open('asked', 'a').write('x')\n    time.sleep(1)\n    open('saved', 'a').write('x')\n    sys.exit(0)\n\
                signal.signal(signal.SIGTERM, save)\nopen('ready', 'w')\nwhile True: time.sleep(0.1)\n";
    std::fs::write(&script, text).unwrap();
    let settings = JobSettings {
        stop_grace: Duration::from_secs(20),
        ..job("rm -f ready; python3 train.py", work.path())
    };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    host.wait("it runs", || work.path().join("ready").exists());
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("it has saved", || work.path().join("saved").exists());
    host.wait("the next run", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.contains(" 8.1 "))
            && work.path().join("ready").exists()
    });
    assert_eq!(std::fs::read_to_string(&asked).unwrap(), "x");
    assert_eq!(std::fs::read_to_string(work.path().join("saved")).unwrap(), "x");
}

#[test]
fn s15_a_systemctl_without_an_answer_does_not_mean_that_no_earlier_run_is_left() {
    let work = tempfile::tempdir().unwrap();
    let command = "[[ ! -e alive ]] || echo met >>out; touch alive; trap 'rm -f alive; exit 1' TERM; echo x >>out; sleep 60 & wait";
    let Some(host) = Host::new(&job(command, work.path()), "", &order(None)) else { return };
    let runs = || std::fs::read_to_string(work.path().join("out")).unwrap_or_default();
    host.boot();
    host.wait("it runs", || runs() == "x\n");
    // It does not answer the next supervisor at first.
    let systemctl = host.path("bin/systemctl");
    let answers = std::fs::read_to_string(&systemctl).unwrap();
    let silent = "asked=$(dirname \"$0\")/asked\nif [[ $1 == list-units && ! -e $asked ]]; then : >\"$asked\"; exit 1; fi\n";
    host.program("systemctl", &answers.replacen("bash\n", &format!("bash\n{silent}"), 1));
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("the next run", || runs().matches('x').count() == 2);
    assert!(host.path("bin/asked").exists());
    assert_eq!(runs(), "x\nx\n", "no run met another");
}
