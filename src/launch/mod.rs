//! The supervisor: a script that becomes the startup script of every node we create for a slot with
//! a job.

use std::fmt::Write as _;

use crate::model::settings::{JobSettings, Resume};
use crate::resource::texts;

/// One script, in the order in which bash reads it: functions first, at the end what runs.
const TEMPLATE: &str = concat!(
    include_str!("supervisor/host.sh"),
    include_str!("supervisor/reports.sh"),
    include_str!("supervisor/setup.sh"),
    include_str!("supervisor/code.sh"),
    include_str!("supervisor/container.sh"),
    include_str!("supervisor/chips.sh"),
    include_str!("supervisor/program.sh"),
    include_str!("supervisor/runs.sh"),
    // unverified: the tpu-env of each host of a multislice has the MEGASCALE keys, which JAX reads there, when its startup script runs.
    // settled by: curl -H 'Metadata-Flavor: Google' http://metadata.google.internal/computeMetadata/v1/instance/attributes/tpu-env, on a host of each slice
    include_str!("supervisor/rollcall.sh"),
    include_str!("supervisor/supervise.sh"),
);
const PLACE: &str = "#@SETTINGS@\n";

/// The supervisor for a slot's job.
pub fn supervisor(slot: &str, job: &JobSettings) -> String {
    let mut settings = String::new();
    // Writing to a String never fails.
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(settings, "{name}={}", quote(value));
    };
    set("SLOT", slot);
    set("COMMAND", job.command.as_deref().unwrap_or_default());
    set("RUN_AS", &job.user);
    set("RUN_IN", &job.dir);
    set("STOP_GRACE", &job.stop_grace.as_secs().to_string());
    let secrets: Vec<String> =
        job.secrets.iter().map(|(name, secret)| format!("{name} {secret}")).collect();
    set("SECRETS", &secrets.join("\n"));
    set("IMAGE", job.image.as_deref().unwrap_or_default());
    set("SOURCE", job.code.as_deref().unwrap_or_default());
    set("ON_NOTICE", job.on_notice.as_deref().unwrap_or_default());
    set("ENV_FILE", job.env_file.as_deref().unwrap_or_default());
    set("LOGS", job.logs.as_deref().unwrap_or_default());
    set("RESUME", job.resume.map_or("", Resume::name));
    set("RESTARTS", &job.restarts_per_run.to_string());
    let transient: Vec<String> = job.transient_exit_codes.iter().map(i64::to_string).collect();
    set("TRANSIENT", &transient.join(" "));
    set("OUT_OF_MEMORY", &texts::out_of_memory().join("|"));
    set("CHIPS_BUSY", &texts::of_class("chips_busy").join("|"));
    let uri = job.checkpoint.as_ref().map_or("", |checkpoint| checkpoint.uri.as_str());
    set("CHECKPOINT_URI", uri);
    set("CHECKPOINT_BASE", job.checkpoint_as.as_deref().unwrap_or(uri));
    let exports: Vec<String> =
        job.env.iter().map(|(name, value)| format!("export {name}={}", quote(value))).collect();
    set("JOB_ENV", &exports.join("\n"));
    TEMPLATE.replacen(PLACE, &settings, 1)
}

/// Quotes for a POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
