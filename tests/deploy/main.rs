//! Everything in deploy/, exercised with the real tools. What is missing is left out aloud, and
//! never in CI.

#[path = "../rig/alone.rs"]
mod alone;
mod chips;
mod cloud_run;
mod container;
#[allow(dead_code)]
#[path = "../e2e/harness.rs"]
mod harness;
mod iam;
mod machine;
mod prometheus;
mod run;
mod supervisor;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A path below deploy/.
fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

/// Whether a program is here; what is left out without it is said.
fn have(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{program} must be there in CI");
        eprintln!("LEFT OUT: {program} is not installed");
    }
    found
}

/// Exit code, and both streams together.
fn text(output: &Output) -> (Option<i32>, String) {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output.status.code(), String::from_utf8_lossy(&both).into_owned())
}
