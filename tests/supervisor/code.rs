//! The job's code, fetched before each run.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::JobSettings;
use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::wire::Reply;

use crate::host::{Host, job, order};

#[test]
fn an_archive_of_the_generation_that_is_named_is_unpacked_before_each_run() {
    let work = tempfile::tempdir().unwrap();
    let (made, dir) = (work.path().join("made"), work.path().join("not/there yet"));
    std::fs::create_dir(&made).unwrap();
    // A tar of text alone, so that the answer is one.
    let archive = |text: &str| {
        std::fs::write(made.join("train.sh"), text).unwrap();
        let mut tar = Command::new("tar");
        let tar = tar.args(["-cf", "-", "-C"]).arg(&made).arg("train.sh").output();
        String::from_utf8(tar.unwrap().stdout).unwrap()
    };
    let body = archive("echo \"$TPU_WATCHDOG_GENERATION\" >>out; rm train.sh; sleep 60\n");
    let settings = JobSettings {
        code: Some("gs://b/code/train.tar#1712345678901234".into()),
        ..job("bash train.sh", &dir)
    };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    let there = Arc::new(AtomicBool::new(false));
    let is_there = Arc::clone(&there);
    host.simulator.set_hook(Some(Box::new(move |logged| {
        let asks = logged.path.starts_with("/b/code/train.tar?generation=1712345678901234");
        let reply = match is_there.load(Ordering::SeqCst) && logged.authorized {
            true => Reply::new(200, body.clone()),
            false => Reply::new(404, "no such object"),
        };
        asks.then(|| Fault::AnswerBefore(reply))
    })));
    host.boot_with(&[("TPU_WATCHDOG_STORAGE", &host.origin())]);
    host.wait("it says what is missing", || {
        host.phase().starts_with("setup_failed: the code can't be fetched: this host's account")
    });
    let out = dir.join("out");
    // A pause reaches a run that is being prepared.
    host.orders(RunOrder { wait: true, ..order(None) });
    host.wait("it has read that", || host.attribute("boot").is_some_and(|b| b.ends_with(" wait")));
    there.store(true, Ordering::SeqCst);
    host.wait("it waits", || host.phase() == "waiting: the run order says wait");
    assert!(!out.exists());
    host.orders(order(None));
    host.wait("a run", || std::fs::read_to_string(&out).is_ok_and(|out| out == "7\n"));
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("the next", || std::fs::read_to_string(&out).is_ok_and(|out| out == "7\n8\n"));
    assert!(!host.path("code").exists(), "the archive is not kept");
}

#[test]
fn a_repository_is_checked_out_at_the_commit_that_is_named() {
    let work = tempfile::tempdir().unwrap();
    let (made, dir) = (work.path().join("made"), work.path().join("dir"));
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&made).args(["-c", "user.name=a", "-c", "user.email=a@b.example"]);
        let out = git.args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    std::fs::create_dir(&made).unwrap();
    git(&["init", "--quiet"]);
    git(&["config", "uploadpack.allowAnySHA1InWant", "true"]);
    let commit = |text: &str| {
        std::fs::write(made.join("train.sh"), text).unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "x"]);
        git(&["rev-parse", "HEAD"])
    };
    let named = commit("echo named >>out; echo changed >train.sh; exit 1\n");
    commit("echo later >>out\n");
    let settings = JobSettings {
        code: Some(format!("file://{}#{named}", made.display())),
        restarts_per_run: 1,
        ..job("bash train.sh", &dir)
    };
    let Some(host) = Host::new(&settings, "", &order(None)) else { return };
    host.boot();
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.contains(" 7.2 1 final")));
    assert_eq!(std::fs::read_to_string(dir.join("out")).unwrap(), "named\nnamed\n");
    // A commit that is there already needs no network.
    std::fs::remove_dir_all(&made).unwrap();
    host.orders(RunOrder { generation: 8, ..order(None) });
    host.wait("the end", || host.attribute("exit").is_some_and(|e| e.contains(" 8.2 1 final")));
}
