//! Each state of a queued resource × each operator command × a crash before or after each of the next
//! calls, for hours of virtual time: what is asked for is owned, gone or told as a stray (S21), what is
//! dead is removed (L9), and never are two grants billed for one slot.

use serde_json::json;
use tpu_watchdog::model::action::Input;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::fleet::Stray;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::world::{World, minutes};

const ZONES: [&str; 2] = ["us-central2-b", "us-east5-a"];

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "60s"
[[tpu]]
name = "a"
zones = ["us-central2-b", "us-east5-a"]
queued_resource = "qr"
[tpu.create]
accelerator_type = "v4-8"
runtime_version = "tpu-ubuntu2204-base"
spot = true
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
[[tpu]]
name = "b"
zone = "us-central2-b"
"#;

const SCENARIO: &str = r#"
times = { create = "4m", delete = "30s", boot = "40s", beat = "60s", refusal = "1m" }
[[nodes]]
names = ["b"]
zone = "us-central2-b"
"#;

const CLOSED: &str = "User does not have permission to submit requests into this queue for accelerator type v4-8 in location us-central2-b.";

/// The states in which a request, or its node, is when the command comes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Standing {
    Unsent,
    Waiting,
    Provisioning,
    Active,
    NodePreempted,
    NodeDeleted,
    Suspending,
    Suspended,
    SuspendedByUser,
    Failed,
    Closed,
    Deleting,
    Gone,
}

const STANDINGS: [Standing; 13] = [
    Standing::Unsent,
    Standing::Waiting,
    Standing::Provisioning,
    Standing::Active,
    Standing::NodePreempted,
    Standing::NodeDeleted,
    Standing::Suspending,
    Standing::Suspended,
    Standing::SuspendedByUser,
    Standing::Failed,
    Standing::Closed,
    Standing::Deleting,
    Standing::Gone,
];

const COMMANDS: [&str; 11] = [
    "nothing", "pause", "resume", "retry", "forget", "purge", "recreate", "relaunch", "done",
    "release", "leave",
];

/// When the process dies: at which of the next calls, and whether that has arrived by then.
const DEATHS: [Option<(usize, bool)>; 5] =
    [None, Some((0, false)), Some((0, true)), Some((1, false)), Some((1, true))];

fn world() -> World {
    let mut world = World::training(CONFIG, SCENARIO);
    world.start("one");
    world
}

impl World {
    /// Brings the request, which the watchdog has made, into this state.
    fn bring(&mut self, standing: Standing) {
        use Standing::*;
        let key = (ZONES[0].to_owned(), "qr".to_owned());
        let node = (ZONES[0].to_owned(), "a".to_owned());
        match standing {
            Unsent => return,
            Waiting => {
                self.trouble(ZONES[0], "", Trouble::StockOut, Some(minutes(40)));
                self.run_for(minutes(8));
            }
            Provisioning => {
                while self.state_in(ZONES[0]) != Some("PROVISIONING") {
                    self.run_for(1_000);
                }
                self.run_for(minutes(2));
            }
            _ => self.run_for(minutes(20)),
        }
        if !matches!(standing, Waiting | Provisioning) {
            assert_eq!(self.state_in(ZONES[0]), Some("ACTIVE"), "{}", self.state("a"));
        }
        let queued = self.cloud.queued.get_mut(&key).expect("it was asked for");
        match standing {
            Unsent | Waiting | Provisioning | Active => {}
            NodePreempted => self.cloud.nodes.get_mut(&node).unwrap().state = "PREEMPTED",
            NodeDeleted => drop(self.cloud.nodes.remove(&node)),
            Suspending => self.preempt(ZONES[0], "a"),
            Suspended | SuspendedByUser => {
                (queued.state, queued.by_user) = ("SUSPENDED", standing == SuspendedByUser);
                self.cloud.nodes.remove(&node);
            }
            Failed | Closed => {
                let (code, message) = match standing {
                    Closed => (7, CLOSED),
                    _ => (8, "There is no more capacity in the zone"),
                };
                queued.state = "FAILED";
                queued.error = Some(json!({"code": code, "message": message}));
                self.cloud.nodes.remove(&node);
            }
            Deleting => {
                let path = format!("v2/projects/p/locations/{}/queuedResources/qr", ZONES[0]);
                let force = [("force".to_owned(), "true".to_owned())].into();
                assert_eq!(self.call("DELETE", &path, &force, None).0, 200);
            }
            Gone => {
                self.cloud.queued.remove(&key);
                self.cloud.nodes.remove(&node);
            }
        }
    }

    fn state_in(&self, zone: &str) -> Option<&'static str> {
        self.cloud.queued.get(&(zone.to_owned(), "qr".to_owned())).map(|queued| queued.state)
    }

    fn given(&mut self, command: &str) {
        let slot = "a".to_owned();
        let incarnation = self.fleet.slots["a"].incarnation.clone();
        let kind = match command {
            "nothing" => return,
            "leave" => {
                self.settings.slots.remove("a");
                return self.turn(Input::Configured(Box::new(self.settings.clone())));
            }
            "pause" => CommandKind::Pause { slot: Some(slot), until: None },
            "resume" => CommandKind::Resume { slot: Some(slot), adopt: false },
            "retry" => CommandKind::Retry { slot, from: None },
            "forget" | "purge" => CommandKind::Forget { slot, purge: command == "purge" },
            "recreate" => CommandKind::Recreate { slot, incarnation },
            "relaunch" => CommandKind::Relaunch { slot },
            "done" => CommandKind::Done { slot },
            "release" => CommandKind::Release { slot },
            other => unreachable!("{other}"),
        };
        self.command(kind);
    }

    /// Requests that are billed, or may be at any moment.
    fn grants(&self) -> Vec<(&'static str, &'static str)> {
        let state = |zone| Some((zone, self.state_in(zone)?));
        let granted = |(_, state): &(&str, &str)| matches!(*state, "PROVISIONING" | "ACTIVE");
        ZONES.into_iter().filter_map(state).filter(granted).collect()
    }

    /// Whether the slot of the request in this zone, or a stray that is told, accounts for it.
    fn is_accounted_for(&self, zone: &str) -> bool {
        // One that left the config with its TPU is told once, and watched no more.
        let slot = self.fleet.slots.get("a").or_else(|| self.fleet.left.get("a"));
        let owned = slot.is_some_and(|record| record.zone == zone && record.incarnation.is_some());
        owned || self.fleet.ledger.strays.contains_key(&Stray::key(zone, "a"))
    }

    /// The rule that a request breaks which is there in the end.
    fn wrong(&self, standing: Standing, command: &str) -> Option<String> {
        // Called off: it waits no more, and what was dead before is left as it is.
        let off = ["forget", "purge", "leave", "release"].contains(&command);
        let stays = off || command == "pause" || standing == Standing::SuspendedByUser;
        ZONES.into_iter().find_map(|zone| {
            let state = self.state_in(zone)?;
            let dead = ["FAILED", "SUSPENDED"].contains(&state);
            let rule = match state {
                _ if !self.is_accounted_for(zone) => "S21",
                "WAITING_FOR_RESOURCES" if off => "it is not withdrawn",
                _ if dead && !stays => "L9",
                _ => return None,
            };
            Some(format!("{rule}: {state} in {zone}"))
        })
    }
}

/// Plays three hours; then, or as soon as two requests are granted, what is wrong.
fn plays(standing: Standing, command: &str, death: Option<(usize, bool)>) -> Result<(), String> {
    let mut world = world();
    world.bring(standing);
    world.dies_at = death;
    world.given(command);
    let told = |world: &World, what: String| {
        let state = world.fleet.slots.get("a").map(|_| world.state("a"));
        let log = world.log.join("\n");
        Err(format!("{standing:?}, {command}, {death:?}: {what}; {state:?}\n{log}"))
    };
    for _ in 0..180 {
        world.run_for(minutes(1));
        let grants = world.grants();
        if grants.len() > 1 {
            return told(&world, format!("{grants:?}"));
        }
    }
    if let Some(wrong) = world.wrong(standing, command) {
        return told(&world, wrong);
    }
    let ready = ZONES.iter().any(|zone| world.is_ready(zone, "a"));
    match comes_back(standing, command) && !ready {
        true => told(&world, "it is not at work again".into()),
        false => Ok(()),
    }
}

/// Whether the slot has to be at work again in the end.
fn comes_back(standing: Standing, command: &str) -> bool {
    use Standing::*;
    let wanted = ["nothing", "resume", "retry", "recreate", "relaunch"].contains(&command);
    // A person's doing is left alone, unless a person says otherwise.
    let held = match standing {
        SuspendedByUser => true,
        Deleting => command != "recreate",
        _ => false,
    };
    wanted && !held
}

#[test]
fn s21_l9_each_state_of_a_request_by_each_command_and_each_crash() {
    let mut wrong = Vec::new();
    for standing in STANDINGS {
        for command in COMMANDS {
            wrong.extend(DEATHS.iter().filter_map(|death| plays(standing, command, *death).err()));
        }
    }
    let first = wrong.first().map_or("", String::as_str);
    let all: Vec<_> = wrong.iter().filter_map(|text| text.lines().next()).collect();
    assert!(wrong.is_empty(), "{} cases:\n{}\n\n{first}", all.len(), all.join("\n"));
}
