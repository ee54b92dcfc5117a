//! Tells a release build which commit it was made of. Debug builds don't ask: they would be compiled
//! again after each commit.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TPU_WATCHDOG_COMMIT");
    let version = env!("CARGO_PKG_VERSION");
    let told = std::env::var("TPU_WATCHDOG_COMMIT").ok().filter(|commit| !commit.is_empty());
    let release = std::env::var("PROFILE").as_deref() == Ok("release");
    let commit = told.or_else(|| release.then(asked).flatten());
    let long = match commit {
        Some(commit) => format!("{version} (commit {commit})"),
        None if release => format!("{version} (commit not known: built without git)"),
        None => format!("{version} (debug build)"),
    };
    println!("cargo::rustc-env=TPU_WATCHDOG_VERSION={long}");
}

/// The commit of this folder, and whether its files differ from it.
fn asked() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // A source archive within another repository has that one's commits.
    if git(&["ls-files", "build.rs"])?.is_empty() {
        return None;
    }
    for path in git(&["rev-parse", "--git-path", "HEAD", "--git-path", "logs/HEAD"])?.lines() {
        // A path that is not there would have it compiled again each time.
        if std::path::Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changed.is_empty() { "" } else { ", changed" };
    Some(git(&["log", "-1", "--format=%h, %cs"])? + mark)
}
