//! The time before a run: the script itself, the user's startup script, the user, the folder.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tpu_watchdog::launch;
use tpu_watchdog::model::settings::JobSettings;
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::wire::Reply;

use crate::host::{Host, job, order};

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
    let known = Arc::new(AtomicBool::new(false));
    let knows = Arc::clone(&known);
    host.simulator.set_hook(Some(Box::new(move |logged| {
        let asks = logged.path.ends_with("agent-worker-number") && !knows.load(Ordering::SeqCst);
        asks.then(|| Fault::AnswerBefore(Reply::new(404, "not there yet")))
    })));
    host.boot();
    host.wait("it says so", || {
        host.attribute("heartbeat").is_some_and(|beat| beat.contains("no agent-worker-number"))
    });
    assert!(!out.exists());
    known.store(true, Ordering::SeqCst);
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
fn a_startup_script_that_has_failed_for_long_is_tried_on_at_a_slower_pace() {
    let work = tempfile::tempdir().unwrap();
    let script = format!("#! /bin/bash\n[[ -e {}/go ]] || exit 100\n", work.path().display());
    let Some(host) = Host::new(&job("touch ran", work.path()), &script, &order(None)) else {
        return;
    };
    host.boot_with(&[("TPU_WATCHDOG_SETUP_LONG", "0"), ("TPU_WATCHDOG_SETUP_PAUSE", "0.4")]);
    host.wait("it is told", || {
        host.phase().ends_with("the startup script is tried again in 0.4 s")
    });
    std::fs::write(work.path().join("go"), "").unwrap();
    host.wait("the command", || work.path().join("ran").exists());
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
    // The user's own script has to fit into the same metadata.
    assert!(script.len() < 65_536, "{}", script.len());
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
    let before = std::fs::metadata(host.path("tpu-watchdog.supervisor")).unwrap().ino();
    host.boot();
    assert_ne!(
        std::fs::metadata(host.path("tpu-watchdog.supervisor")).unwrap().ino(),
        before,
        "a new file"
    );
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.contains("final")));
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\nx\n");
}

#[test]
fn secrets_reach_the_job_and_neither_arguments_nor_files_of_others_nor_the_last_lines() {
    let work = tempfile::tempdir().unwrap();
    let (out, file) = (work.path().join("out"), work.path().join("train.env"));
    std::fs::write(&file, "WANDB_API_KEY='abc def 0123456' # mine\n\texport DB_USER=janedoe12 DEBUG=1\nDB=db://janedoe12:hunter2pass@h;\n").unwrap();
    let command = format!(
        "echo \"$HF_TOKEN|$WANDB_API_KEY|$DEBUG\" > {}; tr '\\0' ' ' < /proc/$PPID/cmdline >> {0}; \
         echo \"token $HF_TOKEN key $WANDB_API_KEY at $DB\"; exit 1",
        out.display()
    );
    let settings = JobSettings {
        env_file: Some(file.display().to_string()),
        secrets: [("HF_TOKEN".into(), "projects/p/secrets/hf/versions/latest".into())].into(),
        ..job(&command, work.path())
    };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    let known = Arc::new(AtomicBool::new(false));
    let knows = Arc::clone(&known);
    host.simulator.set_hook(Some(Box::new(move |logged| {
        let asks = logged.path.ends_with("/v1/projects/p/secrets/hf/versions/latest:access");
        // base64 of "s3cret-'value\"\n"
        let payload =
            json!({"name": "x", "payload": {"data": "czNjcmV0LSd2YWx1ZSIK", "dataCrc32c": "1"}});
        let answer = if knows.load(Ordering::SeqCst) {
            Reply::new(200, serde_json::to_string_pretty(&payload).unwrap())
        } else {
            Reply::new(403, "PERMISSION_DENIED")
        };
        (asks && logged.authorized).then(|| Fault::AnswerBefore(answer))
    })));
    host.boot_with(&[("TPU_WATCHDOG_SECRET_MANAGER", &host.origin())]);
    host.wait("it says what is missing", || {
        let beat = host.attribute("heartbeat");
        beat.is_some_and(|beat| beat.contains("setup_failed: the secret of HF_TOKEN"))
    });
    assert!(!out.exists() && !host.path("running.7").exists(), "no run has begun");
    known.store(true, Ordering::SeqCst);
    host.wait("its exit", || host.attribute("exit").is_some());
    let told = std::fs::read_to_string(out).unwrap();
    let (values, arguments) = told.split_once('\n').unwrap();
    assert_eq!(values, "s3cret-'value\"|abc def 0123456|1");
    assert!(!arguments.contains("s3cret"), "{arguments}");
    let report = host.attribute("log").unwrap();
    assert!(report.ends_with("token *** key *** at ***\n"), "{report}");
    let mode = std::fs::metadata(host.path("tpu-watchdog.secrets")).unwrap().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn lines_are_not_kept_where_the_values_to_mask_are_not_known() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("train.env");
    // The job's shell gets the value; a second reading of the file ends before it.
    std::fs::write(&file, "KEY=hunter2pass\n[[ -n ${TPU_WATCHDOG_SLOT-} ]] || exit 3\n").unwrap();
    let env_file = Some(file.display().to_string());
    let settings = JobSettings { env_file, ..job("echo \"key $KEY\"; exit 1", work.path()) };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    host.wait("its exit", || host.attribute("exit").is_some());
    let report = host.attribute("log").unwrap();
    assert!(report.contains("the lines are not kept") && !report.contains("hunter2"), "{report}");
}

#[test]
fn a_script_from_a_url_runs_first_and_is_fetched_until_it_is_there() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let says = |word: &str| format!("#! /bin/bash\necho {word} >> {}\n", out.display());
    let settings = job(&format!("echo command >> {}", out.display()), work.path());
    let Some(host) = Host::new(&settings, &says("script"), &order(None)) else { return };
    host.metadata("tpu-watchdog-user-script-url", "gs://b/set up é.sh?key=hidden");
    host.boot_with(&[("TPU_WATCHDOG_STORAGE", &host.origin())]);
    host.wait("it says what is missing", || {
        let beat = host.attribute("heartbeat");
        beat.is_some_and(|beat| {
            beat.contains("setup_failed: the startup script gs://b/set up é.sh can't be fetched")
        })
    });
    assert!(!out.exists(), "neither script has run");
    let (asked, body) = (Arc::new(AtomicBool::new(false)), says("url"));
    let asks = Arc::clone(&asked);
    host.simulator.set_hook(Some(Box::new(move |logged| {
        let script = logged.path.starts_with("/b/set up é.sh") && logged.authorized;
        asks.fetch_or(script, Ordering::SeqCst);
        script.then(|| Fault::AnswerBefore(Reply::new(200, body.clone())))
    })));
    host.wait("the command", || {
        std::fs::read_to_string(&out).is_ok_and(|text| text.ends_with("command\n"))
    });
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "url\nscript\ncommand\n");
    assert!(asked.load(Ordering::SeqCst), "with the host's own account");
}

#[test]
fn a_script_that_anybody_may_read_needs_no_account_and_an_empty_url_is_none() {
    for (url, first) in
        [("https://storage.googleapis.com/b/setup.sh?X-Goog-Signature=1", "url\n"), ("", "")]
    {
        let work = tempfile::tempdir().unwrap();
        let out = work.path().join("out");
        let settings = job(&format!("echo command >> {}", out.display()), work.path());
        let Some(host) = Host::new(&settings, "", &order(None)) else { return };
        host.metadata("tpu-watchdog-user-script-url", url);
        let body = format!("#! /bin/bash\necho url >> {}\n", out.display());
        host.simulator.set_hook(Some(Box::new(move |logged| {
            let reply = if logged.authorized { (403, "no") } else { (200, body.as_str()) };
            let asks = logged.path.starts_with("/b/setup.sh");
            asks.then(|| Fault::AnswerBefore(Reply::new(reply.0, reply.1.to_owned())))
        })));
        host.boot_with(&[("TPU_WATCHDOG_STORAGE", &host.origin())]);
        host.wait("the command", || {
            std::fs::read_to_string(&out).is_ok_and(|text| text.ends_with("command\n"))
        });
        assert_eq!(std::fs::read_to_string(&out).unwrap(), format!("{first}command\n"));
    }
}
