//! `[tpu.job]`: the command, its environment, and where its checkpoints lie.

use std::collections::BTreeMap;
use std::time::Duration;

use super::check::Check;
use super::program;
use super::raw::*;
use crate::model::settings::*;

/// `[tpu.job]` below `key`.
pub fn job(c: &mut Check, key: &str, raw: RawJob) -> JobSettings {
    let k = |name: &str| format!("{key}.{name}");
    c.later(&k("progress"), &raw.progress, "progress from the job's own metrics");
    c.later(&k("restart.job"), &raw.restart.job, "relaunches of the job");
    match raw.launch.as_deref() {
        None | Some("startup-script") => {}
        Some(other @ ("ssh" | "command")) => {
            c.wrong(&k("launch"), format!("not supported yet: {other:?}; use \"startup-script\""))
        }
        Some(other) => {
            c.wrong(&k("launch"), format!("{other:?} is unknown; use \"startup-script\""))
        }
    }
    if raw.command.as_ref().is_some_and(|command| command.trim().is_empty()) {
        c.wrong(&k("command"), "is empty; leave it out when the startup script is the job");
    }
    needs_command(c, key, &raw);
    let resume = raw.resume.as_deref().and_then(|who| resume(c, &k("resume"), who));
    if raw.image.is_some() && raw.code.is_some() && raw.dir.is_none() {
        c.wrong(&k("code"), "with `image` needs `dir`: the folder of the host where the code is unpacked, which the container sees as well");
    }
    for name in raw.env.keys() {
        is_variable(c, &k("env"), name);
    }
    let user = raw.user.unwrap_or_default();
    if !user.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')) {
        c.wrong(&k("user"), format!("{user:?} is not a user name"));
    }
    JobSettings {
        command: raw.command,
        checkpoint_as: seen_as(c, &k("checkpoint.as"), raw.checkpoint.as_ref()),
        checkpoint: raw.checkpoint.and_then(|raw| checkpoint(c, &k("checkpoint"), raw)),
        user,
        dir: raw.dir.unwrap_or_default(),
        image: raw.image.and_then(|image| program::image(c, &k("image"), image)),
        code: raw.code.and_then(|code| program::code(c, &k("code"), code)),
        on_notice: raw.on_notice.and_then(|how| on_notice(c, &k("on_notice"), how)),
        env_file: raw.env_file.and_then(|path| env_file(c, &k("env_file"), path)),
        secrets: secrets(c, &k("secret"), &raw.secret),
        logs: raw.logs.and_then(|uri| logs(c, &k("logs"), &uri)),
        env: raw.env,
        resume,
        stop_grace: c.span(
            &k("stop_grace"),
            raw.stop_grace,
            Duration::from_secs(1),
            Duration::from_secs(60),
        ),
        restarts_per_run: c.at_least(&k("restart.per_run"), raw.restart.per_run, 0, 5),
        no_progress: c.at_least(&k("restart.no_progress"), raw.restart.no_progress, 1, 3),
        transient_exit_codes: transient(
            c,
            &k("restart.transient_exit_codes"),
            raw.restart.transient_exit_codes,
        ),
    }
}

/// Codes of signals (128 and its number), and the bare numbers that some launchers make of them.
const TRANSIENT: &[i64] = &[6, 11, 134, 139];

fn transient(c: &mut Check, key: &str, codes: Option<Vec<i64>>) -> Vec<i64> {
    let codes = codes.unwrap_or_else(|| TRANSIENT.to_vec());
    if let Some(code) = codes.iter().find(|code| !(1..=255).contains(*code)) {
        c.wrong(key, format!("{code} is no code of a failure; those are 1 to 255"));
    }
    codes
}

/// Keys that say how a command is run.
fn needs_command(c: &mut Check, key: &str, raw: &RawJob) {
    let needs_command = [
        ("image", raw.image.is_some()),
        ("code", raw.code.is_some()),
        ("env_file", raw.env_file.is_some()),
        ("secret", !raw.secret.is_empty()),
        ("on_notice", raw.on_notice.as_ref().is_some_and(|how| !how.starts_with("SIG"))),
    ];
    for (name, _) in needs_command.iter().filter(|(_, set)| *set && raw.command.is_none()) {
        c.wrong(
            &format!("{key}.{name}"),
            "needs `command`: a startup script alone is run as it is",
        );
    }
}

fn is_variable(c: &mut Check, key: &str, name: &str) {
    let starts = name.starts_with(|ch: char| ch.is_ascii_alphabetic() || ch == '_');
    if !starts || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        c.wrong(
            &format!("{key}.{name}"),
            "is not a name for an environment variable: letters, digits and '_'",
        );
    }
}

/// Who picks the checkpoint of a start.
fn resume(c: &mut Check, key: &str, who: &str) -> Option<Resume> {
    let found = [Resume::Framework, Resume::Watchdog].into_iter().find(|of| of.name() == who);
    if found.is_none() {
        c.wrong(key, format!("{who:?} is unknown; use \"framework\" or \"watchdog\""));
    }
    found
}

/// A signal that is not taken for the end of the run, or a command.
fn on_notice(c: &mut Check, key: &str, how: String) -> Option<String> {
    let signal = how.strip_prefix("SIG").filter(|name| !name.contains(' '));
    if how.trim().is_empty() || signal.is_some_and(|name| !matches!(name, "USR1" | "USR2")) {
        let text = "is neither \"SIGUSR1\" nor \"SIGUSR2\" nor a command; another signal takes one, as \"pkill -TERM -f train.py\"";
        c.wrong(key, format!("{how:?} {text}"));
        return None;
    }
    Some(how)
}

/// A file on each host: whether it is there is seen when the job starts.
fn env_file(c: &mut Check, key: &str, path: String) -> Option<String> {
    if !path.starts_with('/') || path.chars().any(char::is_control) {
        let text = "is a file on the TPU's hosts; write its whole path, as \"/etc/train.env\"";
        c.wrong(key, format!("{path:?} {text}"));
        return None;
    }
    Some(path)
}

/// Secrets by the resource name of their version, the latest where none is named.
fn secrets(c: &mut Check, key: &str, raw: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut secrets = BTreeMap::new();
    for (name, secret) in raw {
        is_variable(c, key, name);
        let id = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
        };
        let parts: Vec<&str> = secret.split('/').collect();
        let version = match parts[..] {
            ["projects", project, "secrets", secret] if id(project) && id(secret) => {
                "/versions/latest"
            }
            ["projects", project, "secrets", secret, "versions", version]
                if id(project) && id(secret) && id(version) =>
            {
                ""
            }
            _ => {
                // The value may be the secret itself: it is not repeated.
                c.wrong(
                    &format!("{key}.{name}"),
                    "is not the name of a secret; write \"projects/PROJECT/secrets/NAME\", and keep the value in Secret Manager",
                );
                continue;
            }
        };
        secrets.insert(name.clone(), format!("{secret}{version}"));
    }
    secrets
}

/// The place of the jobs' last lines: a supervisor writes there with its host's own account.
fn logs(c: &mut Check, key: &str, uri: &str) -> Option<String> {
    let place = uri.trim_end_matches('/');
    let plain = |ch: char| ch.is_ascii_alphanumeric() || "-_./=+".contains(ch);
    let parts =
        place.strip_prefix("gs://").map(|path| path.split('/').all(|part| !part.is_empty()));
    if parts != Some(true) || !place["gs://".len()..].chars().all(plain) {
        let text =
            "is not a place for logs; write \"gs://bucket/path\", of letters, digits and - _ . = +";
        c.wrong(key, format!("{uri:?} {text}"));
        return None;
    }
    Some(place.to_owned())
}

/// The mounted folder that the job knows a location by.
fn seen_as(c: &mut Check, key: &str, raw: Option<&RawCheckpoint>) -> Option<String> {
    let Some(RawCheckpoint::Table(RawCheckpointTable { seen_as: Some(path), .. })) = raw else {
        return None;
    };
    if !path.starts_with('/') || path.chars().any(char::is_control) {
        let text = "is the folder of the hosts where it is mounted; write its whole path, as \"/mnt/checkpoints\"";
        c.wrong(key, format!("{path:?} {text}"));
        return None;
    }
    Some(path.trim_end_matches('/').to_owned())
}

pub fn checkpoint(c: &mut Check, key: &str, raw: RawCheckpoint) -> Option<CheckpointSettings> {
    let (uri, format, orbax_mode) = match raw {
        RawCheckpoint::Uri(uri) => (uri, None, None),
        RawCheckpoint::Table(table) => (table.uri, table.format, table.orbax_mode),
    };
    let written = uri;
    let uri = written.trim_end_matches('/').to_owned();
    let place = uri.split_once("://").filter(|(_, rest)| !rest.is_empty());
    match place.map(|(scheme, _)| scheme) {
        Some("gs" | "s3" | "file") => {}
        _ => c.wrong(
            key,
            format!(
                "{written:?} is not a location; write \"gs://bucket/path\", \"s3://…\" or \"file:///…\""
            ),
        ),
    }
    if uri.contains(['"', '\\']) || uri.chars().any(char::is_control) {
        c.wrong(key, "must not contain quotes, backslashes or control characters");
    }
    // Object stores take such names literally or refuse them: no listing would ever find what the
    // job writes.
    let path = place.map_or("", |(_, rest)| rest.strip_prefix('/').unwrap_or(rest));
    if let Some(part) =
        path.split('/').find(|part| matches!(*part, "" | "." | "..")).filter(|_| !path.is_empty())
    {
        let named = if part.is_empty() {
            "an empty part (//)".to_owned()
        } else {
            format!("the part {part:?}")
        };
        c.wrong(
            key,
            format!("{uri:?} has {named}, and no object can be listed there; write it without"),
        );
    }
    let modes = [
        ("auto", OrbaxMode::Auto),
        ("rename", OrbaxMode::Rename),
        ("commit_file", OrbaxMode::CommitFile),
    ];
    let key_of_mode = format!("{key}.orbax_mode");
    let orbax_mode = c.one_of(&key_of_mode, orbax_mode.as_deref(), &modes, OrbaxMode::Auto);
    let format = match format.as_deref() {
        None => None,
        Some("none") => Some(CheckpointFormat::Unlisted),
        Some("orbax") => Some(CheckpointFormat::Orbax),
        Some("huggingface") => Some(CheckpointFormat::HuggingFace),
        Some(other) => {
            c.wrong(
                &format!("{key}.format"),
                format!(
                    "not supported yet: {other:?}; \"orbax\", \"huggingface\" and \"none\" are"
                ),
            );
            None
        }
    };
    Some(CheckpointSettings { uri, format, orbax_mode })
}
