//! Stories as data: each `tests/stories/*.txt` is a script of what the world does, played through
//! the core; the `.out` beside it is everything that the core answers. A new behaviour comes with a
//! story whose output a reviewer reads as a diff.
//!
//! `UPDATE_STORIES=1 cargo test --test stories` writes the outputs anew. The commands of a script
//! are those of [`Player::play`].

mod shown;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tpu_watchdog::core::step;
use tpu_watchdog::model::action::{
    Action, CallOutcome, Effect, Input, Listing, Look, Poll, Reading,
};
use tpu_watchdog::model::beacon::{Beacon, WorkerReport};
use tpu_watchdog::model::checkpoint::{Checkpoint, CheckpointSurvey, NotComplete};
use tpu_watchdog::model::command::{Command, CommandKind};
use tpu_watchdog::model::event::What;
use tpu_watchdog::model::failure::{Failure, FailureClass};
use tpu_watchdog::model::fleet::{Fleet, Ledger};
use tpu_watchdog::model::ids::{RUN_KEY, RunOrder};
use tpu_watchdog::model::lookup::{CreateCheck, Deletion};
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::operation::OperationState;
use tpu_watchdog::model::relaunch::Patch;
use tpu_watchdog::model::settings::{
    CheckpointSettings, JobSettings, Overlay, Policy, PollSettings, Settings, Share, SlotSettings,
    Storm,
};
use tpu_watchdog::model::time::{after, elapsed};
use tpu_watchdog::resource::spec::SUPERVISOR_MARK;

const OPERATION: &str = "projects/p/locations/z/operations/o";

/// A fleet, a clock, and what was answered so far.
struct Player {
    fleet: Fleet,
    began: Timestamp,
    now: Timestamp,
    /// The last create of each slot, and when it was decided.
    created: BTreeMap<String, (Value, Timestamp)>,
    /// The run order before the last patch of a slot's node, until its answer.
    unpatched: BTreeMap<String, Value>,
    decisions: BTreeMap<String, String>,
    out: String,
    /// Slots that left the config.
    left: BTreeMap<String, SlotSettings>,
    create_check: CreateCheck,
    deletions: Vec<Deletion>,
}

fn settings() -> Settings {
    let seconds = Duration::from_secs;
    Settings {
        digest: String::new(),
        project: "p".into(),
        owner: "me".into(),
        label: None,
        decided_by: "story".into(),
        dry_run: false,
        alpha: false,
        poll: PollSettings {
            every: seconds(30),
            operations: seconds(5),
            timeout: seconds(20),
            max_gap: seconds(300),
        },
        max_unavailable: Share::Percent(25.0),
        removes_dead: false,
        max_judged_recreates_per_hour: 20,
        storm: Storm::default(),
        slots: BTreeMap::new(),
    }
}

/// `slot NAME ZONE[,ZONE…] [LOCATION]`: with a location it has a job with checkpoints there, and
/// our supervisor.
fn slot(words: &[&str]) -> SlotSettings {
    let checkpoint = words.get(2).map(|uri| CheckpointSettings {
        uri: (*uri).into(),
        format: None,
        orbax_mode: Default::default(),
    });
    let job = checkpoint.map(|checkpoint| JobSettings {
        command: Some("train".into()),
        checkpoint: Some(checkpoint),
        no_progress: 3,
        ..JobSettings::default()
    });
    SlotSettings {
        filling: Default::default(),
        name: words[0].into(),
        zones: words[1].split(',').map(str::to_owned).collect(),
        create: Overlay::default(),
        supervisor: job.as_ref().map(|_| format!("#! /bin/bash\n{SUPERVISOR_MARK}\n")),
        job,
        policy: Policy::default(),
    }
}

/// `90s`, `11m`, `4h`.
fn duration(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.len() - 1);
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => panic!("{other:?} is no unit of time"),
    };
    Duration::from_secs(
        number.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is no duration")) * factor,
    )
}

fn failure(class: &str) -> Failure {
    let class = FailureClass::ALL
        .into_iter()
        .find(|known| known.name() == class)
        .unwrap_or_else(|| panic!("{class:?} is no class"));
    Failure::new(class, "as the story says")
}

impl Player {
    fn new(settings: Settings) -> Player {
        let began = "2026-06-01T12:00:00Z".parse().expect("a time");
        let fleet = Fleet::new(settings.clone(), BTreeMap::new(), Ledger::default());
        let (created, unpatched, decisions, left) = Default::default();
        let (create_check, deletions, out) = Default::default();
        let mut player = Player {
            fleet,
            began,
            now: began,
            created,
            unpatched,
            decisions,
            left,
            create_check,
            deletions,
            out,
        };
        player.input(Input::Configured(Box::new(settings)));
        player
    }

    /// One command. Whatever it brings about is written below it.
    fn play(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let time = self.time();
        let _ = writeln!(self.out, "{time} > {line}");
        match words.as_slice() {
            ["wait", time] => self.now = after(self.now, duration(time)),
            ["poll", nodes @ ..] => self.poll(nodes),
            // Polls every 30 s for so long; the first after 30 s.
            ["polls", time, nodes @ ..] => {
                let end = after(self.now, duration(time));
                while self.now < end {
                    self.now = after(self.now, Duration::from_secs(30));
                    self.poll(nodes);
                }
            }
            ["listing", "fails", class] => self.listing(&[], Some(failure(class))),
            ["get", slot, "404"] => self.got(slot, Reading::Absent, self.now),
            ["get", slot, shown] => {
                let view = self.node(slot, shown);
                self.got(slot, Reading::Node(view), self.now);
            }
            // The answer comes so long after the request.
            ["get", slot, shown, "after", time] => {
                let began = self.now;
                self.now = after(began, duration(time));
                let view = self.node(slot, shown);
                self.got(slot, Reading::Node(view), began);
            }
            ["answer", slot, "accepted"] => {
                self.unpatched.remove(*slot);
                self.answered(slot, CallOutcome::Accepted(OPERATION.into()))
            }
            ["answer", slot, "refused", class] => {
                if let Some(before) = self.unpatched.remove(*slot)
                    && let Some((body, _)) = self.created.get_mut(*slot)
                {
                    body["metadata"][RUN_KEY] = before;
                }
                self.answered(slot, CallOutcome::Refused(failure(class)))
            }
            ["answer", slot, "not", "sent"] => {
                self.answered(slot, CallOutcome::NotSent(failure("transient")))
            }
            ["answer", slot, "lost"] => {
                self.answered(slot, CallOutcome::Unknown(failure("transient")))
            }
            ["operation", slot, "done"] => self.operated(slot, OperationState::Succeeded),
            ["operation", slot, "failed", class] => {
                self.operated(slot, OperationState::Failed(failure(class)))
            }
            ["checkpoints", slot, "other", names @ ..] => self.not_understood(slot, names),
            ["checkpoints", slot, steps @ ..] => self.surveyed(slot, steps),
            // Guest attributes are answered, and its worker has written none.
            ["attributes", slot] => self.reported(slot, WorkerReport::default()),
            ["workers", slot, beat] => self.workers(slot, beat, None, None),
            ["workers", slot, beat, step] => self.workers(slot, beat, Some(step), None),
            // The worker follows the newest order, where its node has it.
            ["exit", slot, beat, code, text @ ..] => {
                self.workers(slot, beat, None, Some((code, text.join(" "))))
            }
            ["operator", "done", slot] => self.command(CommandKind::Done { slot: (*slot).into() }),
            ["operator", "relaunch", slot] => {
                self.command(CommandKind::Relaunch { slot: (*slot).into() })
            }
            ["operator", "pause", slot] => {
                self.command(CommandKind::Pause { slot: Some((*slot).into()), until: None })
            }
            ["operator", "resume", slot] => {
                self.command(CommandKind::Resume { slot: Some((*slot).into()), adopt: false })
            }
            ["operator", "forget", slot] => {
                self.command(CommandKind::Forget { slot: (*slot).into(), purge: false })
            }
            ["operator", "retry", slot] => {
                self.command(CommandKind::Retry { slot: (*slot).into(), from: None })
            }
            ["operator", "recreate", slot] => {
                let incarnation = self.fleet.slots[*slot].incarnation.clone();
                self.command(CommandKind::Recreate { slot: (*slot).into(), incarnation })
            }
            ["operator", "breaker", "reset"] => self.command(CommandKind::BreakerReset),
            // The config loses a slot, or has it again.
            ["config", "without", slot] => {
                let mut settings = self.fleet.settings.clone();
                let left = settings.slots.remove(*slot).expect("a slot of the config");
                self.left.insert((*slot).into(), left);
                self.input(Input::Configured(Box::new(settings)));
            }
            ["config", "with", slot] => {
                let mut settings = self.fleet.settings.clone();
                let back = self.left.remove(*slot).expect("a slot that left");
                settings.slots.insert((*slot).into(), back);
                self.input(Input::Configured(Box::new(settings)));
            }
            // What the next lookups find: all is well, and no other hand deleted anything.
            ["create", "impossible", why @ ..] => {
                self.create_check.certain = Some(why.join(" "));
            }
            ["create", "possible"] => self.create_check.certain = None,
            ["another", "hand", "deletes"] => {
                self.deletions = vec![Deletion { operation: "o/by-hand".into(), at: self.now }];
            }
            ["tick"] => self.input(Input::Tick),
            // The process is gone with its memory; the next one reads the journal.
            ["restart"] => {
                let (settings, slots) = (self.fleet.settings.clone(), self.fleet.slots.clone());
                self.fleet = Fleet::new(settings.clone(), slots, self.fleet.ledger.clone());
                self.input(Input::Configured(Box::new(settings)));
            }
            other => panic!("no story knows {other:?}"),
        }
    }

    fn time(&self) -> String {
        let at = elapsed(self.began, self.now).as_secs();
        format!("{:02}:{:02}:{:02}", at / 3600, at / 60 % 60, at % 60)
    }

    /// One input; lookups are answered at once, in their order.
    fn input(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.step(input, &mut inputs);
        }
    }

    fn lookup(&self, look: &Look) -> Option<Input> {
        let began = self.now;
        match look {
            Look::CreateCheck { slot, .. } => {
                let found = self.create_check.clone();
                Some(Input::CreateChecked { slot: slot.clone(), began, found })
            }
            Look::Deletions { slot, .. } => {
                let result = Ok(self.deletions.clone());
                Some(Input::Deletions { slot: slot.clone(), began, result })
            }
            _ => None,
        }
    }

    fn step(&mut self, input: Input, next: &mut VecDeque<Input>) {
        let time = self.time();
        for effect in step(&mut self.fleet, input, self.now) {
            match effect {
                Effect::Look(look) => {
                    let what = match &look {
                        Look::Node { .. } | Look::Stray { .. } => "GET of the node",
                        Look::Operation { .. } => "the operation",
                        Look::Attributes { .. } => "the workers' reports",
                        Look::Checkpoints { .. } => "the checkpoints",
                        Look::CreateCheck { .. } => "whether a create can follow",
                        Look::Deletions { .. } => "the deletes of its name",
                    };
                    let _ = writeln!(self.out, "{time}     {} asks for {what}", look.slot());
                    next.extend(self.lookup(&look));
                }
                Effect::Commit { events, then, .. } => {
                    for event in
                        events.iter().filter(|event| !matches!(event.what, What::Decision { .. }))
                    {
                        let _ = writeln!(
                            self.out,
                            "{time}     {} {}",
                            event.slot.as_deref().unwrap_or("-"),
                            event.message
                        );
                    }
                    for action in then {
                        self.acts(&time, action);
                    }
                }
            }
        }
        self.decided(&time);
    }

    fn acts(&mut self, time: &str, action: Action) {
        let _ = match &action {
            Action::Delete { slot, zone, incarnation, .. } => {
                writeln!(self.out, "{time}     {slot} DELETE {incarnation} in {zone}")
            }
            Action::Create { slot, zone, body, .. } => {
                self.created.insert(slot.clone(), (body.clone(), self.now));
                let run = body
                    .pointer("/metadata/tpu-watchdog-run")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                writeln!(self.out, "{time}     {slot} CREATE in {zone}, run {run}")
            }
            Action::Patch { slot, incarnation, patch, .. } => {
                let Patch::Order(order) = patch else {
                    let _ = writeln!(self.out, "{time}     {slot} RELEASE of {incarnation}");
                    return;
                };
                if let Some((body, _)) = self.created.get_mut(slot) {
                    let run = &mut body["metadata"][RUN_KEY];
                    self.unpatched.insert(slot.clone(), run.take());
                    *run = json!(order.text());
                }
                writeln!(self.out, "{time}     {slot} ORDER on {incarnation}, run {}", order.text())
            }
        };
    }

    /// Decisions that are new: what is done, for which hold, until when.
    fn decided(&mut self, time: &str) {
        for (slot, record) in &self.fleet.slots {
            let Some(decision) = &record.decision else { continue };
            let hold = decision.hold.map_or(String::new(), |hold| format!(" [{hold}]"));
            let kind = format!("{}{hold}", decision.action);
            if self.decisions.insert(slot.clone(), kind.clone()) != Some(kind.clone()) {
                let _ = writeln!(self.out, "{time}     {slot} => {kind}: {}", decision.reason);
            }
        }
    }

    fn command(&mut self, kind: CommandKind) {
        let command = Command {
            id: self.now.to_string(),
            at: self.now,
            who: "ada".into(),
            reason: None,
            kind,
        };
        self.input(Input::Commands(vec![command]));
    }
}

/// Plays one script.
fn story(script: &str) -> String {
    let mut settings = settings();
    let mut player: Option<Player> = None;
    for line in
        script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["slot", words @ ..] => _ = settings.slots.insert(words[0].into(), slot(words)),
            ["dry_run"] => settings.dry_run = true,
            ["orphans", "dead"] => settings.removes_dead = true,
            ["preemptions", count] => {
                for slot in settings.slots.values_mut() {
                    slot.policy.attempts.preemptions = count.parse().expect("a number");
                }
            }
            ["priority", slot, priority] => {
                let slot = settings.slots.get_mut(*slot).expect("a slot");
                slot.policy.priority = priority.parse().expect("a number");
            }
            ["max_unavailable", count] => {
                settings.max_unavailable = Share::Count(count.parse().expect("a number"))
            }
            _ => player.get_or_insert_with(|| Player::new(settings.clone())).play(line),
        }
    }
    player.expect("something happens in it").out
}

#[test]
fn every_story_is_told_as_its_golden_output_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    scripts.sort();
    assert!(scripts.len() >= 10, "{scripts:?}");
    let mut differ = Vec::new();
    for path in scripts {
        let told = story(&std::fs::read_to_string(&path).expect("a script"));
        let golden = path.with_extension("out");
        if std::env::var_os("UPDATE_STORIES").is_some() {
            std::fs::write(&golden, &told).expect("the file can be written");
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != told {
            differ.push(format!("{}:\n{told}", path.display()));
        }
    }
    assert!(
        differ.is_empty(),
        "other outputs than before; where that is meant, UPDATE_STORIES=1 writes them:\n{}",
        differ.join("\n")
    );
}

#[test]
fn the_recovery_in_the_concepts_is_the_one_that_is_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).expect("the file");
    let (concepts, told) =
        (read("docs/concepts.md"), read("tests/stories/01-a-whole-recovery.out"));
    let (_, section) = concepts.split_once("## One recovery").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let lines: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(lines.len() >= 10, "{lines:?}");
    let mut rest = told.lines();
    for line in lines {
        assert!(rest.any(|told| told == line), "{line:?} is not told, or not there");
    }
}
