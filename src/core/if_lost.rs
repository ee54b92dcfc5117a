//! The recreate of a slot as it would be today, compared with its TPU as it was learned.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::model::filling::Filling;
use crate::model::fleet::Fleet;
use crate::model::hold::HoldReason;
use crate::model::ids::{Incarnation, RunOrder};
use crate::model::settings::{Settings, SlotSettings};
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::resource::queued::body;
use crate::resource::training;

use super::ctx::Subject;
use super::gates::{self, Obstacle};
use super::{location, reads};

/// The recreate of one slot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IfLost {
    /// The slot.
    pub name: String,
    /// The zone that it is created in first.
    pub zone: String,
    /// Exactly this incarnation is deleted; none where there is no node.
    pub deletes: Option<Incarnation>,
    /// It is a managed training job, which starts where its own program finds a checkpoint.
    pub is_job: bool,
    /// Why it could not be created.
    pub refused: Option<String>,
    /// Why it would not be created.
    pub held: Option<String>,
    /// A person chose that.
    pub by_choice: bool,
    /// The fields of the create, by dotted key.
    pub fields: Vec<Field>,
    /// Where its job starts: a step with its place and when that was written, or nothing.
    pub checkpoint: Option<(u64, String, Option<Timestamp>)>,
    /// Where checkpoints are looked for.
    pub location: Option<String>,
    /// That location was not listed completely yet.
    pub unlisted: bool,
    /// The command; none where the startup script is the job.
    pub runs: Option<Runs>,
    /// About the command and the startup script: each one may be as the user means it.
    pub notes: Vec<String>,
}

/// How a job's command is run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Runs {
    /// As configured, without the values that it sets: one may be a secret.
    pub command: String,
    /// By default root.
    pub user: String,
    /// By default the user's home, as `~`.
    pub dir: String,
    /// The container's image, where there is one.
    pub image: Option<String>,
}

/// One field of a create.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Field {
    /// Dotted.
    pub key: String,
    /// Of the TPU; none where it has none. Of metadata the length and a digest alone.
    pub learned: Option<String>,
    /// Of the create.
    pub sent: Option<String>,
}

/// The recreates of all slots, or of one.
pub fn if_lost(
    fleet: &Fleet,
    settings: &Settings,
    only: Option<&str>,
    now: Timestamp,
) -> Vec<IfLost> {
    let wanted = |record: &&SlotRecord| only.is_none_or(|only| only == record.name);
    let of = |record: &SlotRecord| {
        let slot = settings.slots.get(&record.name)?;
        let acceptable = reads::acceptable(settings, slot, record);
        let (ledger, acceptable) = (&fleet.ledger, Some(&acceptable));
        let held = gates::obstacle(Subject { settings, slot, record, ledger, acceptable, now });
        // In dry run the question is what would be done without it.
        let held = held.filter(|obstacle| obstacle.hold != HoldReason::DryRun);
        let by_choice = held.as_ref().is_some_and(Obstacle::is_a_choice);
        let of = one(settings, slot, record, now);
        let held = held.filter(|_| of.refused.is_none()).map(|obstacle| obstacle.why);
        Some(IfLost { held, by_choice, ..of })
    };
    fleet.slots.values().filter(wanted).filter_map(of).collect()
}

fn one(settings: &Settings, slot: &SlotSettings, record: &SlotRecord, now: Timestamp) -> IfLost {
    let listed = location::watched(record, slot);
    let here = listed.as_ref().is_some_and(|listed| listed.uri == record.job.location);
    let checkpoint = record.job.checkpoint.as_ref().filter(|_| here);
    let order = RunOrder {
        generation: record.job.generation + 1,
        checkpoint: checkpoint.map(|found| found.uri.clone()).unwrap_or_default(),
        step: checkpoint.map(|found| found.step),
        ..RunOrder::default()
    };
    let learned = record.spec.clone().unwrap_or_else(NodeSpec::empty);
    let wanted = learned.clone().in_zone(slot.next_zone(&record.zone)).overlaid(&slot.create);
    let wanted = wanted.on_machine(record.next_machine(&slot.filling));
    let supervisor = slot.supervisor.as_deref();
    let mut body = wanted.render(&settings.owner, &record.name, &order, supervisor);
    let (mut shown, mut deletes) = (learned.body().clone(), record.incarnation.clone());
    match &slot.filling {
        Filling::Node => {}
        Filling::QueuedResource(_) => {
            body = body::still_ahead(&body, now);
            body::limited(&mut body);
        }
        Filling::Training(of) => {
            // A job that has ended stays where it is, and one that lives is not ended.
            deletes = None;
            shown = training::body::job(&learned);
            let id = training::body::next_id(&body, 0).filter(|_| of.kind.takes_ids());
            body = training::body::submission(&body, of).unwrap_or(body);
            if let (Some(id), Value::Object(body)) = (id, &mut body) {
                body.insert("jobId".into(), Value::String(id));
            }
        }
    }
    IfLost {
        name: record.name.clone(),
        zone: slot.next_zone(&record.zone).clone(),
        deletes,
        is_job: slot.filling.traits().is_job,
        refused: reads::acceptable(settings, slot, record).err(),
        held: None,
        by_choice: false,
        fields: fields(&shown, body.as_object()),
        checkpoint: checkpoint
            .map(|found| (found.step, found.uri.clone(), record.job.checkpoint_written)),
        location: listed.as_ref().map(|listed| listed.uri.clone()),
        unlisted: listed.is_some_and(|of| location::listed_at(record, &of.uri).is_none()),
        runs: runs(slot),
        notes: notes(slot, record.spec.as_ref()),
    }
}

fn runs(slot: &SlotSettings) -> Option<Runs> {
    let job = slot.job.as_ref()?;
    let given = |value: &str, default: &str| match value {
        "" => default.to_owned(),
        value => value.to_owned(),
    };
    Some(Runs {
        command: without_values(job.command.as_deref()?),
        user: given(&job.user, "root"),
        dir: given(&job.dir, "~"),
        image: job.image.clone(),
    })
}

/// The limits of a command next to the startup script, in words; none for a TPU never read.
fn notes(slot: &SlotSettings, learned: Option<&NodeSpec>) -> Vec<String> {
    if slot.filling.traits().is_job {
        return learned.and_then(training::possible::advice).into_iter().collect();
    }
    let job = slot.job.as_ref().filter(|_| learned.is_some());
    let Some((job, command)) = job.and_then(|job| Some((job, job.command.as_deref()?))) else {
        return Vec::new();
    };
    if !NodeSpec::has_a_script(learned, &slot.create) {
        let empty = "it has no startup script, and a new TPU has an empty boot disk: the command has to bring all that it needs";
        return if job.image.is_none() { vec![empty.to_owned()] } else { Vec::new() };
    }
    let script = NodeSpec::script(learned, &slot.create).unwrap_or_default();
    let starts = |line: &&str| !line.trim_start().starts_with('#');
    let lines: Vec<&str> = script.lines().filter(starts).collect();
    let twice = programs(command).find(|program| lines.iter().any(|line| line.contains(program)));
    let twice = twice.map(|program| {
        format!(
            "its startup script has {program} as well: if that starts the training, it runs twice; leave only the set-up in the script"
        )
    });
    twice.into_iter().collect()
}

/// A command on one line, with `NAME=…` and `--flag=…` for what it sets, and without what follows a flag
/// whose name speaks of a secret.
fn without_values(command: &str) -> String {
    let mut hide = false;
    let shown = command.split_whitespace().map(|word| {
        if std::mem::take(&mut hide) && !word.starts_with('-') {
            return "…".to_owned();
        }
        if let Some((name, _)) = word.split_once('=') {
            return format!("{name}=…");
        }
        let flag = word.to_ascii_lowercase();
        let secret = ["key", "token", "secret", "password", "credential"];
        hide = flag.starts_with('-') && secret.iter().any(|part| flag.contains(part));
        word.to_owned()
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// The files and modules that a command runs: `train.py` of `python3 ~/run/train.py --steps 9`.
fn programs(command: &str) -> impl Iterator<Item = &str> {
    let words = || command.split_whitespace().map(|word| word.trim_matches(['"', '\'', ';', '&']));
    let modules = words().zip(words().skip(1)).filter(|(flag, _)| *flag == "-m");
    let files = words().filter_map(|word| word.rsplit('/').next());
    files
        .filter(|word| word.ends_with(".py") || word.ends_with(".sh"))
        .chain(modules.map(|(_, module)| module))
}

fn fields(learned: &Map<String, Value>, body: Option<&Map<String, Value>>) -> Vec<Field> {
    let (old, new) = (flat(learned), body.map(flat).unwrap_or_default());
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let field = |key: &String| Field {
        key: key.clone(),
        learned: old.get(key).cloned(),
        sent: new.get(key).cloned(),
    };
    keys.into_iter().map(field).collect()
}

/// Fields of a training job that have arguments and variables of its containers in them.
const SECRET: [&str; 7] = [
    "workerPoolSpecs",
    "args",
    "masterConfig",
    "workerConfig",
    "parameterServerConfig",
    "evaluatorConfig",
    "hyperparameters",
];

/// Fields by dotted key, two levels deep. Metadata values are secrets: what is shown of one tells it
/// from another, and no more.
fn flat(body: &Map<String, Value>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (key, value) in body {
        match value {
            Value::Object(inner) => {
                for (name, value) in inner {
                    // A container's variables may be secrets, like metadata.
                    let secret = key == "metadata" || SECRET.contains(&name.as_str());
                    let shown = if secret { masked(value) } else { value.to_string() };
                    all.insert(format!("{key}.{name}"), shown);
                }
            }
            value => _ = all.insert(key.clone(), value.to_string()),
        }
    }
    all
}

fn masked(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let digest = NodeSpec::new(Map::from_iter([(String::new(), value.clone())])).digest();
    format!("({} bytes, digest {})", text.len(), &digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_programs_of_a_command_are_its_files_and_modules() {
        let of = |command: &'static str| programs(command).collect::<Vec<_>>();
        assert_eq!(of("python3 ~/run/train.py --steps 9"), ["train.py"]);
        assert_eq!(
            of("cd /srv && bash \"setup.sh\"; python -m llama.train"),
            ["setup.sh", "llama.train"]
        );
        assert_eq!(of("./train --conf a.toml"), Vec::<&str>::new());
    }

    #[test]
    fn a_value_that_a_command_sets_is_never_shown() {
        let command =
            "WANDB_API_KEY=hunter1 python3 train.py\n  --hf-token hunter2 --lr=hunter3 --steps 9";
        let shown = "WANDB_API_KEY=… python3 train.py --hf-token … --lr=… --steps 9";
        assert_eq!(without_values(command), shown);
    }

    #[test]
    fn a_metadata_value_is_never_shown() {
        let body = json!({ "metadata": { "token": "hunter2-hunter2" }, "labels": { "team": "a" } });
        let all = flat(body.as_object().unwrap());
        assert_eq!(all["labels.team"], "\"a\"");
        assert!(all["metadata.token"].starts_with("(15 bytes, digest "), "{all:?}");
        let other = json!({ "metadata": { "token": "hunter2-hunter3" } });
        assert_ne!(flat(other.as_object().unwrap())["metadata.token"], all["metadata.token"]);
    }
}
