//! Runs of the job: how they end, what is restarted, what is reported.

use std::path::Path;
use std::process::Command;

use tpu_watchdog::launch;
use tpu_watchdog::model::beacon::{Beacon, LastLines};
use tpu_watchdog::model::settings::JobSettings;

use crate::host::{Host, job, order};

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
    host.wait("the step", || host.attribute("step").is_some_and(|s| s.ends_with(" 7.1 1234")));
    host.wait("the heartbeat", || {
        host.attribute("heartbeat").is_some_and(|h| h.ends_with("running"))
    });
    host.wait("the phase, and since when", || {
        let phase = host.attribute("phase").and_then(|phase| Beacon::parse(&phase));
        phase.is_some_and(|phase| phase.text == "running" && phase.value > 1_700_000_000)
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
            .is_some_and(|e| e.contains(" 7.1 0 done ran=") && e.ends_with("step=1234"))
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
fn a_run_that_has_ended_is_exited_while_its_last_lines_are_collected() {
    let work = tempfile::tempdir().unwrap();
    let collected = work.path().join("collected");
    let Some(host) = Host::new(&job("exit 1", work.path()), "", &order(None)) else { return };
    let program =
        format!("#! /bin/bash\nuntil [[ -e {} ]]; do sleep 0.05; done\n", collected.display());
    host.program("journalctl", &program);
    host.boot();
    host.wait("its end", || host.phase() == "exited");
    assert_eq!(host.attribute("exit"), None, "not reported yet");
    std::fs::write(&collected, "").unwrap();
    host.wait("the report", || host.attribute("exit").is_some());
    host.wait("the next phase", || host.phase() == "restarting");
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
        host.attribute("exit").is_some_and(|e| e.contains(" 7.3 139 final after 2 restarts"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\nx\n");
    // The budget is counted over reboots of the same disk.
    assert_eq!(std::fs::read_to_string(host.path("restarts.7")).unwrap().trim(), "3 139 3");
    host.power_cycle(&[]);
    host.wait("one try in this boot", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7.4 139 final after 2 restarts"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\nx\nx\n");
}

#[test]
fn a_run_that_would_end_the_same_way_again_is_not_restarted() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let count = format!("echo x >> {}", tries.display());
    let codes = format!("{count}; ! [[ $(wc -l < {}) == 1 ]] || exit 3; exit 1", tries.display());
    let full =
        "echo 'XLA:TPU compile permanent error. Ran out of memory in memory space hbm.'; exit 1";
    for (command, runs, end) in [
        (codes, 4, "1 final after 3 restarts: code 1 3 times in a row without a new step"),
        (format!("{count}; {full}"), 1, "1 final after 0 restarts: memory ran out"),
    ] {
        let job = JobSettings { restarts_per_run: 9, ..job(&command, work.path()) };
        let Some(host) = Host::new(&job, "", &order(None)) else { return };
        host.boot();
        host.wait(end, || host.attribute("exit").is_some_and(|exit| exit.ends_with(end)));
        assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\n".repeat(runs));
        std::fs::remove_file(&tries).unwrap();
    }
}

#[test]
fn a_program_that_the_kernel_ended_for_its_memory_is_known_by_the_kernels_log() {
    let work = tempfile::tempdir().unwrap();
    let Some(host) = Host::new(&job("kill -KILL $$", work.path()), "", &order(None)) else {
        return;
    };
    let line = "Out of memory: Killed process 4242 (python3) total-vm:98765432kB";
    let cause =
        "oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/system.slice/tpu-watchdog-job-7-1.service";
    std::fs::write(host.path("kernel"), format!("usb 1-1: new device\n{cause}\n{line}\n")).unwrap();
    host.boot();
    host.wait("the end", || {
        let exit = host.attribute("exit").unwrap_or_default();
        exit.ends_with("7.1 137 final after 0 restarts: memory ran out")
    });
    let lines = host.attribute("log").unwrap();
    assert!(lines.ends_with(&format!("\nkernel: {line}\n")), "{lines:?}");
}

#[test]
fn restarts_come_back_with_each_new_step_and_are_used_up_without_one() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    // Eight runs make a new step each; then the same step comes again and again.
    let command = format!(
        "echo x >> {0}; n=$(wc -l < {0}); echo $((n < 8 ? n : 8)) >> \"$TPU_WATCHDOG_PROGRESS\"; exit 1",
        tries.display()
    );
    let settings = JobSettings { restarts_per_run: 2, ..job(&command, work.path()) };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    host.wait("the end", || {
        host.attribute("exit").is_some_and(|exit| exit.ends_with("1 final after 2 restarts"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\n".repeat(10));
}

#[test]
fn the_last_line_is_a_step_only_where_it_is_a_whole_number() {
    let work = tempfile::tempdir().unwrap();
    let command = "echo 7 >>\"$TPU_WATCHDOG_PROGRESS\"; for line in 'loss 0.35' 12.5 '100 7' '' 1200.0 '3 of 9'; do \
                   until [[ -e go ]]; do sleep 0.02; done; rm go; echo \"$line\" >>\"$TPU_WATCHDOG_PROGRESS\"; echo \"$line\" >>told; done; sleep 600";
    let Some(host) = Host::new(&job(command, work.path()), "", &order(None)) else { return };
    host.boot();
    let step = || {
        let step = host.attribute("step").unwrap_or_default();
        step.rsplit(' ').next().unwrap_or_default().to_owned()
    };
    let beats = || {
        let beat = host.attribute("heartbeat").and_then(|beat| Beacon::parse(&beat));
        beat.map_or(0, |beat| beat.value)
    };
    host.wait("the first step", || step() == "7");
    for (lines, wanted) in [(1, "7"), (2, "7"), (3, "7"), (4, "7"), (5, "1200"), (6, "1200")] {
        std::fs::write(work.path().join("go"), "").unwrap();
        let told = || std::fs::read_to_string(work.path().join("told")).unwrap_or_default();
        host.wait("the line", || told().lines().count() == lines);
        let before = beats();
        host.wait("two reports", || beats() >= before + 2);
        assert_eq!(step(), wanted, "after line {lines}");
    }
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
            .is_some_and(|e| e.contains(" 7.1 0 done ran=") && e.ends_with("step=none"))
    });
    host.wait("the heartbeat says so", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.ends_with("ended_early"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\n", "not again in the same boot");
    host.power_cycle(&[]);
    host.wait("the second run", || std::fs::read_to_string(&tries).unwrap() == "x\nx\n");
}

#[test]
fn a_job_that_says_that_its_work_is_done_has_finished() {
    let work = tempfile::tempdir().unwrap();
    // A former run's word is none of the next one's.
    let command = "[[ -e $TPU_WATCHDOG_DONE ]] && exit 3; touch $TPU_WATCHDOG_DONE; [[ -e again ]] || { touch again; exit 1; }";
    let Some(host) = Host::new(&job(command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("its end", || {
        host.attribute("exit").is_some_and(|exit| {
            exit.contains(" 0 done ran=") && exit.ends_with("it wrote TPU_WATCHDOG_DONE")
        })
    });
    host.power_cycle(&[]);
    host.wait("the end is told again", || {
        host.attribute("exit").is_some_and(|exit| exit.ends_with("it wrote TPU_WATCHDOG_DONE"))
    });
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
        host.attribute("exit").is_some_and(|e| e.contains(" 7.1 3 restarting 1 of 2 in 0.1 s"))
    });
    host.wait("a longer pause", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7.2 3 restarting 2 of 2 in 0.2 s"))
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
            "boot-1 7.1 75 restarting: the host went down in a run, which counts as restart 1 of 2";
        assert_eq!(host.attribute("exit").as_deref(), (runs == 2).then_some(cut_off));
    }
}

#[test]
fn the_heartbeat_outlives_commands_that_fail_at_once() {
    let work = tempfile::tempdir().unwrap();
    let tries = work.path().join("tries");
    let many = JobSettings {
        restarts_per_run: 1000,
        ..job(&format!("echo x >> {}; exit 139", tries.display()), work.path())
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
fn a_trainer_that_a_person_ends_by_hand_is_restarted_like_one_that_crashed() {
    let work = tempfile::tempdir().unwrap();
    let pid = work.path().join("pid");
    let command = format!("echo $$ > {}; exec sleep 600", pid.display());
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    let written = || std::fs::read_to_string(&pid).ok().filter(|text| text.ends_with('\n'));
    for attempt in 1..=2 {
        host.wait("it runs", || written().is_some() && host.phase() == "running");
        let process = written().unwrap();
        std::fs::remove_file(&pid).unwrap();
        assert!(Command::new("kill").arg(process.trim()).status().unwrap().success());
        let said = format!(" 7.{attempt} 143 ");
        host.wait("its exit", || host.attribute("exit").is_some_and(|exit| exit.contains(&said)));
    }
    host.wait("it runs once more", || written().is_some());
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
    // A long run before says nothing about the ones that follow.
    host.boot_with(&[("TPU_WATCHDOG_LONG", "1")]);
    host.wait("a long run", || {
        std::fs::read_to_string(host.path("running.7")).is_ok_and(|mark| mark.ends_with(" long\n"))
    });
    host.power_cycle(&[]);
    for runs in 2..=4 {
        host.wait("a run", || {
            std::fs::read_to_string(&tries).is_ok_and(|text| text.lines().count() == runs)
        });
        host.power_cycle(&[]);
    }
    host.wait("the end", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 7.4 75 final after 2 restarts"))
    });
    assert_eq!(std::fs::read_to_string(&tries).unwrap().lines().count(), 4);
}

#[test]
fn the_last_lines_of_a_run_that_failed_are_reported_before_its_exit_and_written_whole() {
    let work = tempfile::tempdir().unwrap();
    let command = "for n in {1..300}; do echo \"line $n\"; done; echo 'Traceback ü' >&2; exit 1";
    let settings =
        JobSettings { logs: Some("gs://bucket/logs".into()), ..job(command, work.path()) };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_STORAGE", &host.origin())]);
    host.wait("its exit", || host.attribute("exit").is_some());
    let report = LastLines::parse(&host.attribute("log").unwrap()).unwrap();
    assert_eq!((report.of.generation, report.of.value, report.lines.len()), (7, 1, 30));
    assert_eq!(report.lines[28..], ["line 300", "Traceback ü"]);
    let (size, asked) = host.simulator.with(|cloud| {
        let object = cloud.objects.get("bucket/logs/a/7.1/worker-0.log").expect("written");
        (object.body.len(), object.body.starts_with(b"line 102\n"))
    });
    assert!(asked && size > 1500, "200 lines, {size} bytes");
    // One after the other is told apart.
    let first = report.of.text;
    host.wait("the next run", || {
        let report = LastLines::parse(&host.attribute("log").unwrap());
        report.is_some_and(|report| report.of.text != first)
    });
}
