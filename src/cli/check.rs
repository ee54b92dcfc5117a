//! `check`: the config alone, offline.

use std::collections::BTreeMap;
use std::time::Duration;

use super::table::fleet;
use super::{ConfigFile, Outcome, load, print, screen};
use crate::config::{self, Config};
use crate::model::settings::{JobSettings, SlotSettings};
use crate::model::spec::REQUEST_KEY;
use crate::model::time::span;
use crate::report::access::is_loopback;
use crate::resource::training::{body, possible};

/// With less than this, an event that passes within its usual minutes costs the TPU.
const AN_EVENT: Duration = Duration::from_secs(120);

pub fn check(at: &ConfigFile) -> Outcome {
    let config = load(at)?;
    let slots = config.settings.slots.values();
    let tpus: Vec<_> = slots.filter(|slot| !slot.filling.traits().is_job).collect();
    let jobs = tpus.iter().filter(|slot| slot.job.is_some()).count();
    let with = match (tpus.len(), jobs) {
        (0, _) => String::new(),
        (_, 0) => ", without a [tpu.job]: only the TPU is recreated".to_owned(),
        (all, jobs) if all == jobs => ", each TPU with a [tpu.job]".to_owned(),
        (_, jobs) => format!(", {jobs} of the TPUs with a [tpu.job]"),
    };
    let fine = format!(
        "{} is fine: project {}, {}{with}",
        at.path().display(),
        config.settings.project,
        fleet(&config.settings)
    );
    print(&screen::paragraph(&fine, screen::width()));
    // Only a note: the file may be there for the service alone.
    if let Some(Err(message)) = config.listen_token_file.as_deref().map(config::read_token) {
        print(&format!("note: as the present user sees it, {message}; `run` does not start so\n"));
    }
    for slot in config.settings.slots.values() {
        let spec = slot.filling.training().and_then(|of| body::first(("", &slot.name), of));
        if let Some(advice) = spec.as_ref().and_then(possible::advice) {
            let note = format!("note: {}: {advice}", slot.name);
            print(&screen::paragraph(&note, screen::width()));
        }
    }
    for note in habits(&config).into_iter().chain(job_notes(&config.settings.slots)) {
        print(&screen::paragraph(&format!("note: {note}"), screen::width()));
    }
    Ok(())
}

/// Values that are valid, and seldom meant.
fn habits(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(address) = config.listen
        && config.listen_token_file.is_none()
        && !is_loopback(address.ip())
    {
        notes.push(format!(
            "listen = \"{address}\" is off loopback and there is no listen_token_file: all paths but /metrics and /-/ answer 403"
        ));
    }
    let short = |slot: &&SlotSettings| {
        let grace = &slot.policy.grace;
        let judged =
            [grace.unresponsive, grace.runtime_unhealthy, grace.silent, grace.failed_repair];
        grace.maintenance.into_iter().chain(judged).any(|grace| grace < AN_EVENT)
    };
    let names: Vec<&str> =
        config.settings.slots.values().filter(short).map(|slot| slot.name.as_str()).collect();
    if !names.is_empty() {
        notes.push(format!(
            "{}: a grace of policy.grace is shorter than {}: most maintenance events pass in minutes, and a TPU that would have come back is \
             deleted",
            names.join(", "),
            span(AN_EVENT)
        ));
    }
    let names: Vec<&str> = config
        .settings
        .slots
        .values()
        .filter(|slot| is_endless(slot))
        .map(|slot| slot.name.as_str())
        .collect();
    if !names.is_empty() {
        notes.push(format!(
            "{}: flex-start without max_run: where the API does not show the end of the capacity, nothing is asked for ahead of it, and on_notice is not \
             sent; set max_run = \"24h\" (7d at most)",
            names.join(", ")
        ));
    }
    notes
}

/// Whether it asks for flex-start capacity and not for how long.
fn is_endless(slot: &SlotSettings) -> bool {
    let around = slot.create.fields.get(REQUEST_KEY);
    around.is_some_and(|of| {
        of["provisioningModel"] == "FLEX_START" && of["runDuration"]["maxRunDuration"].is_null()
    })
}

/// Habits of jobs that end badly later.
fn job_notes(slots: &BTreeMap<String, SlotSettings>) -> Vec<String> {
    let mut notes = Vec::new();
    let jobs = || slots.values().filter_map(|slot| Some((slot, slot.job.as_ref()?)));
    let of = |is: &dyn Fn(&SlotSettings, &str) -> bool| {
        let command = |job: &JobSettings| job.command.clone();
        let named = jobs().filter(|(slot, job)| command(job).is_some_and(|text| is(slot, &text)));
        named.map(|(slot, _)| slot.name.clone()).collect::<Vec<_>>()
    };
    let in_image = |slot: &SlotSettings| slot.job.as_ref().is_some_and(|job| job.image.is_some());
    let bare = of(&|slot, _| slot.create.startup_script.is_none() && !in_image(slot));
    if !bare.is_empty() {
        notes.push(format!(
            "{}: a command and no startup_script. A recreated TPU has an empty boot disk: all that the command needs must come from the TPU's \
             own startup-script; `plan` says whether it has one",
            bare.join(", ")
        ));
    }
    let left = of(&|_, command| command.trim_end().ends_with('&') && !command.ends_with("&&"));
    if !left.is_empty() {
        notes.push(format!(
            "{}: the command ends with &, which puts it into the background: it ends at once, and the job counts as finished or failed while \
             it trains. Leave the & out",
            left.join(", ")
        ));
    }
    let loose = of(&|_, command| goes_on_after_a_failure(command));
    if !loose.is_empty() {
        notes.push(format!(
            "{}: a command of several lines ends with the code of its last one: if an earlier one is the trainer, its failure counts as \
             success. Begin the command with `set -e`",
            loose.join(", ")
        ));
    }
    let mut at: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (slot, job) in jobs() {
        let listed = job.checkpoint.as_ref().filter(|location| location.is_listed());
        if let Some(location) = listed {
            at.entry(location.uri.trim_end_matches('/')).or_default().push(&slot.name);
        }
    }
    for (uri, names) in at.into_iter().filter(|(_, names)| names.len() > 1) {
        notes.push(format!(
            "{} have one checkpoint location, {uri}: the progress of one counts for all, so that one that hangs is not noticed, and one that \
             ends early may count as finished. Give each its own",
            names.join(", ")
        ));
    }
    notes
}

/// Whether a command has several lines, the last of which is no trainer, and would go on after one that fails.
fn goes_on_after_a_failure(command: &str) -> bool {
    let mut continues = false;
    let (mut begins, mut last) = (0, "");
    for line in command.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            continue;
        }
        if !continues {
            (begins, last) = (begins + 1, line);
        }
        continues = ["\\", "&&", "|", "||"].iter().any(|end| line.ends_with(end));
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    let is_e = |flag: &str| flag.starts_with('-') && flag.contains('e');
    let stops = words.windows(2).any(|of| of[0] == "set" && is_e(of[1]))
        || words.windows(2).any(|of| of == ["-o", "errexit"]);
    let trains = ["python", "exec ", "torchrun", "accelerate"].iter().any(|of| last.contains(of));
    begins > 1 && !stops && !trains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_that_is_shorter_than_an_event_is_noted() {
        let notes = |grace: &str| {
            let text = format!(
                "project = \"p\"\n[policy]\ngrace = {{ {grace} }}\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n"
            );
            let config = config::parse(std::path::Path::new("c.toml"), &text, &|_| None);
            habits(&config.unwrap()).join("; ")
        };
        for grace in ["unresponsive", "runtime_unhealthy", "silent", "failed_repair", "maintenance"]
        {
            let short = notes(&format!("{grace} = \"90s\""));
            assert!(short.starts_with("a: a grace of policy.grace is shorter"), "{grace}: {short}");
            assert_eq!(notes(&format!("{grace} = \"120s\"")), "", "{grace}");
        }
    }

    #[test]
    fn flex_start_without_an_end_and_a_bare_command_are_noted() {
        let notes = |create: &str, job: &str| {
            let text = format!(
                "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\nqueued_resource = \"q\"\n[tpu.create]\nprovisioning_model = \"flex-start\"\n{create}\n\
                 [tpu.job]\ncommand = \"train\"\n{job}\n"
            );
            let config = config::parse(std::path::Path::new("c.toml"), &text, &|_| None).unwrap();
            let mut notes = habits(&config);
            notes.extend(job_notes(&config.settings.slots));
            notes.join("; ")
        };
        let bare = notes("", "");
        assert!(
            bare.contains("a: flex-start without max_run") && bare.contains("empty boot disk"),
            "{bare}"
        );
        assert_eq!(notes("max_run = \"24h\"", "image = \"i:1\""), "");
    }

    #[test]
    fn a_command_that_goes_on_after_a_failure_is_told() {
        for (command, goes_on) in [
            ("python3 train.py", false),
            ("python3 train.py \\\n  --steps 10", false),
            ("cd /app &&\npython3 train.py", false),
            ("# trains\npython3 train.py", false),
            ("pip install -e .\npython3 train.py", false),
            ("python3 train.py\ngsutil cp log gs://b", true),
            ("set -e\npython3 train.py\ngsutil cp log gs://b", false),
            ("set -o pipefail\npython3 train.py\ngsutil cp log gs://b", true),
            ("set -o errexit\npython3 train.py\ngsutil cp log gs://b", false),
            ("set -euo pipefail\ncd /app\npython3 train.py", false),
        ] {
            assert_eq!(goes_on_after_a_failure(command), goes_on, "{command}");
        }
    }
}
