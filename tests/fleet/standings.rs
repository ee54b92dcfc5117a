//! Each state of a queued resource, with one slice or two, × each operator command or change of the config × a crash before or
//! after each of the next calls, an answer that is lost, or a zone that can't be listed, for hours of virtual time: what is asked
//! for is owned, gone or told as a stray (S21), what is dead is removed (L9), and never are two grants
//! billed for one slot.

use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use serde_json::json;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::fleet::Stray;
use tpu_watchdog::model::slot::SlotRecord;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::moments::*;
use crate::world::{World, minutes};

/// It has just begun, and its slot asks for its first request.
pub fn world(form: Form) -> World {
    let mut config = match form.capacity {
        Capacity::Spot => CONFIG.to_owned(),
        Capacity::OnDemand => CONFIG.replace("spot = true\n", ""),
        Capacity::FlexStart => {
            let flex = "provisioning_model = \"flex-start\"\nmax_run = \"100m\"\n";
            CONFIG.replace("spot = true\n", flex)
        }
    };
    if form.slices > 1 {
        let nodes = format!("[tpu.create]\nnodes = {}", form.slices);
        config = config.replace("[tpu.create]", &nodes);
    }
    let mut world = World::new(&config, SCENARIO, Box::new(SqliteStore::in_memory().unwrap()));
    form.nodes("a").iter().for_each(|node| world.trains(node, 120));
    world.start("one");
    while world.fleet().slots.is_empty() {
        world.run_for(1);
    }
    world
}

impl World {
    /// Brings the request, which the watchdog has made, into this state.
    fn bring(&mut self, form: Form, standing: Standing) {
        use Standing::*;
        let key = (ZONES[0].to_owned(), "qr".to_owned());
        let nodes: Vec<_> =
            form.nodes("a").into_iter().map(|node| (ZONES[0].to_owned(), node)).collect();
        // Trouble of a node strikes the last slice alone.
        let node = nodes.last().expect("each has one").clone();
        match standing {
            Unsent => return,
            Creating | Accepted | Waiting => {
                self.trouble(ZONES[0], "", Trouble::StockOut, Some(minutes(40)));
                self.run_for(minutes(8));
            }
            Provisioning | Collapsing => {
                while self.state_of(ZONES[0], "qr") != Some("PROVISIONING") {
                    self.run_for(1_000);
                }
                self.run_for(minutes(2));
            }
            _ => {
                self.run_for(minutes(20));
                assert_eq!(self.state_of(ZONES[0], "qr"), Some("ACTIVE"), "{}", self.state("a"));
            }
        }
        if FLEX.contains(&standing) {
            return self.bring_to_its_end(standing);
        }
        let queued = self.cloud.queued.get_mut(&key).expect("it was asked for");
        match standing {
            Ahead | Ending | HandedOver => unreachable!("{standing:?}"),
            Unsent | Waiting | Provisioning | Active => {}
            Creating => queued.state = "CREATING",
            Accepted => queued.state = "ACCEPTED",
            Collapsing => self.trouble(ZONES[0], "", Trouble::StockOut, Some(minutes(40))),
            NodeDeleting => {
                self.cloud.nodes.get_mut(&node).unwrap().state = "DELETING";
                self.run_for(minutes(2));
                self.cloud.nodes.remove(&node);
            }
            NodePreempted => self.cloud.nodes.get_mut(&node).unwrap().state = "PREEMPTED",
            NodeGone => drop(self.cloud.nodes.remove(&node)),
            Suspending => self.preempt(ZONES[0], &node.1),
            Suspended | SuspendedByUser => {
                (queued.state, queued.by_user) = ("SUSPENDED", standing == SuspendedByUser);
                nodes.iter().for_each(|node| drop(self.cloud.nodes.remove(node)));
            }
            Failed | Closed => {
                let (code, message) = match standing {
                    Closed => (7, CLOSED),
                    _ => (8, "There is no more capacity in the zone"),
                };
                queued.state = "FAILED";
                queued.error = Some(json!({"code": code, "message": message}));
                nodes.iter().for_each(|node| drop(self.cloud.nodes.remove(node)));
            }
            Deleting => {
                let path = format!("v2/projects/p/locations/{}/queuedResources/qr", ZONES[0]);
                let force = [("force".to_owned(), "true".to_owned())].into();
                assert_eq!(self.call("DELETE", &path, &force, None).0, 200);
            }
            Gone => {
                self.cloud.queued.remove(&key);
                nodes.iter().for_each(|node| drop(self.cloud.nodes.remove(node)));
            }
        }
    }

    /// Time goes on around the end of its capacity; there is none for a while after that.
    fn bring_to_its_end(&mut self, standing: Standing) {
        while self.state_of(ZONES[0], "qr-next") != Some("WAITING_FOR_RESOURCES") {
            self.run_for(minutes(1));
        }
        let short = |world: &mut World| {
            world.trouble(ZONES[0], "", Trouble::StockOut, Some(minutes(40)));
        };
        match standing {
            Standing::Ahead => {}
            Standing::Ending => {
                while self.state_of(ZONES[0], "qr") == Some("ACTIVE") {
                    self.run_for(1_000);
                }
                short(self);
            }
            _ => {
                while self.state_of(ZONES[0], "qr") == Some("ACTIVE") {
                    self.run_for(1_000);
                }
                short(self);
                while self.state_of(ZONES[0], "qr").is_some() {
                    self.run_for(1_000);
                }
                self.run_for(minutes(3));
            }
        }
    }

    fn state_of(&self, zone: &str, id: &str) -> Option<&'static str> {
        self.cloud.queued.get(&(zone.to_owned(), id.to_owned())).map(|queued| queued.state)
    }

    /// The requests that are there, each with its zone and state.
    pub fn there(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let all = ZONES.into_iter().flat_map(|zone| IDS.map(|id| (zone, id)));
        all.filter_map(|(zone, id)| Some((zone, id, self.state_of(zone, id)?)))
    }

    /// The config changes.
    pub fn configured(&mut self, change: &str) {
        let mut slot = self.settings.slots.remove("a").expect("it is in the config");
        let mut name = "a";
        match change {
            "other id" => slot.filling = Filling::QueuedResource("other".into()),
            "other spec" => {
                drop(slot.create.fields.insert("runtimeVersion".into(), json!("v2-alpha-tpuv4")))
            }
            "rename" => name = "c",
            other => unreachable!("{other}"),
        }
        slot.name = name.to_owned();
        self.settings.slots.insert(name.to_owned(), slot);
        self.reload();
    }

    fn given(&mut self, command: &str) {
        let slot = "a".to_owned();
        let incarnation = self.fleet().slots["a"].incarnation.clone();
        let kind = match command {
            "nothing" => return,
            "leave" => {
                self.settings.slots.remove("a");
                return self.reload();
            }
            "rename and leave" => {
                self.configured("rename");
                self.run_for(minutes(3));
                self.settings.slots.remove("c");
                return self.reload();
            }
            "pause" => CommandKind::Pause { slot: Some(slot), until: None },
            "resume" | "adopt" => {
                CommandKind::Resume { slot: Some(slot), adopt: command == "adopt" }
            }
            "retry" => CommandKind::Retry { slot, from: None },
            "forget" | "purge" => CommandKind::Forget { slot, purge: command == "purge" },
            "recreate" => CommandKind::Recreate { slot, incarnation },
            "relaunch" => CommandKind::Relaunch { slot },
            "done" => CommandKind::Done { slot },
            "release" => CommandKind::Release { slot },
            change => return self.configured(change),
        };
        self.command(kind);
    }

    /// Requests that are billed, or may be at any moment.
    pub fn grants(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        self.there().filter(|(.., state)| matches!(*state, "PROVISIONING" | "ACTIVE")).collect()
    }

    /// Whether the slot of the request, or a stray that is told, accounts for it.
    fn is_accounted_for(&self, zone: &str, id: &str) -> bool {
        SLOTS.iter().any(|name| {
            // One that left the config with its TPU is told once, and watched no more.
            let slot = self.fleet().slots.get(*name).or_else(|| self.fleet().left.get(*name));
            let has = |record: &&SlotRecord| {
                let same = record.request.as_deref().is_none_or(|request| request == id);
                let ahead = record.asked_ahead().is_some_and(|ahead| ahead.id == id);
                // It took the place of another one a moment ago, and was not read yet.
                let filled = record.filled_by.as_ref().is_some_and(|by| by.id == id);
                record.zone == zone && (same && (record.incarnation.is_some() || filled) || ahead)
            };
            let strays = &self.fleet().ledger.strays;
            let told = |key: &str| {
                let stray = strays.get(&Stray::key(zone, key));
                stray.is_some_and(|stray| stray.request.as_deref() == Some(id))
            };
            slot.as_ref().is_some_and(has) || told(name) || told(id)
        })
    }

    /// When the request that is there was made.
    fn made_at(&self) -> Option<Timestamp> {
        let key = (ZONES[0].to_owned(), "qr".to_owned());
        self.cloud.queued.get(&key).map(|queued| queued.created)
    }

    /// The rule that a request breaks which is there in the end.
    pub fn wrong(&self, standing: Standing, command: &str) -> Option<String> {
        // Called off: it waits no more, and what was dead before is left as it is.
        let off = ["forget", "purge", "leave", "rename and leave", "release"].contains(&command);
        let stays = off || command == "pause" || standing == Standing::SuspendedByUser;
        self.there().find_map(|(zone, id, state)| {
            let dead = ["FAILED", "SUSPENDED"].contains(&state);
            let rule = match state {
                _ if !self.is_accounted_for(zone, id) => "S21",
                "WAITING_FOR_RESOURCES" if off => "it is not withdrawn",
                _ if dead && !stays => "L9",
                _ => return None,
            };
            Some(format!("{rule}: {id} is {state} in {zone}"))
        })
    }
}

/// Plays three hours; then, or as soon as two requests are granted, what is wrong.
fn plays((form, standing, command, hindrance): Case) -> Result<(), String> {
    let mut world = world(form);
    world.bring(form, standing);
    let (before, harmed) = (world.made_at(), world.cloud.harmed_unseen);
    match hindrance {
        Hindrance::Nothing => {}
        Hindrance::Death(at, arrives) => world.dies_at = Some((at, arrives)),
        Hindrance::Lost(loss) => world.loses = Some(loss),
        Hindrance::Unreachable => {
            world.trouble(ZONES[0], "", Trouble::Unreachable, Some(minutes(5)));
        }
    }
    world.given(command);
    let told = |world: &World, what: String| {
        let slots = SLOTS.iter().filter(|name| world.fleet().slots.contains_key(**name));
        let states: Vec<_> = slots.map(|name| world.state(name)).collect();
        let log = world.log.join("\n");
        Err(format!("{form:?}, {standing:?}, {command}, {hindrance:?}: {what}; {states:?}\n{log}"))
    };
    for _ in 0..180 {
        let there =
            |name: &&&str| form.nodes(name).iter().any(|node| world.is_ready(ZONES[0], node));
        let flex = form.capacity == Capacity::FlexStart;
        let grown = NODES.iter().find(there).filter(|_| flex).unwrap_or(&"a");
        world.trains_whole(&form.nodes(grown), 120);
        world.run_for(minutes(1));
        let grants = world.grants();
        if grants.len() > 1 {
            return told(&world, format!("{grants:?}"));
        }
        // An operator's recreate means what is at work, too.
        if world.cloud.harmed_unseen > harmed + u32::from(command == "recreate") {
            return told(&world, "it was at work, and was deleted".into());
        }
        if let Some(refused) = world.log.iter().find(|line| line.contains("safety check")) {
            return told(&world, refused.clone());
        }
    }
    if let Some(wrong) = world.wrong(standing, command) {
        return told(&world, wrong);
    }
    if is_left_alone((form, standing), command) && world.made_at() != before {
        return told(&world, "a person's doing is undone".into());
    }
    let is_ready = |zone, slot| form.nodes(slot).iter().all(|node| world.is_ready(zone, node));
    let ready = |zone| NODES.iter().any(|slot| is_ready(zone, slot));
    // Between two grants its request waits.
    let comes = form.capacity == Capacity::FlexStart && world.there().next().is_some();
    match comes_back((form, standing), command) && !(comes || ZONES.into_iter().any(ready)) {
        true => told(&world, "it is not at work again".into()),
        false => Ok(()),
    }
}

/// Whether the slot has to be at work again in the end.
fn comes_back((form, standing): (Form, Standing), command: &str) -> bool {
    use Standing::*;
    let off = ["pause", "forget", "purge", "done", "release", "leave", "rename and leave"]
        .contains(&command);
    // A person's doing is left alone, unless a person says otherwise. A granted request is not left for
    // another one, and one that is dead is another's once the config names another.
    let held = match standing {
        SuspendedByUser => true,
        // By its new name it is a request that was never seen with a node.
        NodeGone if form == Form::ALL[1] && command == "rename" => true,
        NodeDeleting if form.slices == 1 => {
            form.capacity == Capacity::OnDemand || command != "retry"
        }
        Deleting => command != "recreate",
        NodePreempted | NodeDeleting | NodeGone | Suspending | Suspended => command == "other id",
        _ => false,
    };
    !(off || held)
}

/// Whether a person stopped or deleted it, and no command replaces it.
fn is_left_alone((form, standing): (Form, Standing), command: &str) -> bool {
    let theirs = match standing {
        Standing::SuspendedByUser => true,
        // Of two slices the other one lives, and can't train without it.
        Standing::NodeDeleting => form.slices == 1,
        _ => false,
    };
    let silent = ["nothing", "pause", "resume", "adopt", "relaunch", "done", "release"];
    theirs && silent.contains(&command)
}

type Case = (Form, Standing, &'static str, Hindrance);

fn cases() -> impl Iterator<Item = Case> {
    let commands = STANDINGS.into_iter().flat_map(|of| COMMANDS.map(|command| (of, command)));
    let hindered =
        commands.flat_map(|(of, command)| HINDRANCES.map(|hindrance| (of, command, hindrance)));
    hindered.flat_map(|(of, command, with)| Form::ALL.map(|form| (form, of, command, with)))
}

fn flex_cases() -> impl Iterator<Item = Case> {
    let commands = FLEX.into_iter().flat_map(|of| COMMANDS.map(|command| (of, command)));
    let hindered =
        commands.flat_map(|(of, command)| HINDRANCES.map(|hindrance| (of, command, hindrance)));
    hindered.flat_map(|(of, command, with)| Form::FLEX.map(|form| (form, of, command, with)))
}

/// Plays them on all cores; a case that goes wrong is told at once, since all of them take long.
fn all_hold(cases: impl Iterator<Item = Case>) {
    let cases: Vec<Case> = cases.collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let play = || {
        let mut wrong = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(text) = plays(*case) {
                eprintln!("{}", text.lines().next().unwrap_or_default());
                wrong.push(text);
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..cores).map(|_| scope.spawn(play)).collect();
        all.into_iter().flat_map(|core| core.join().expect("no case panics")).collect()
    });
    let first = wrong.first().map_or("", String::as_str);
    assert!(wrong.is_empty(), "{} of {} cases: {first}", wrong.len(), cases.len());
}

/// Every forty-seventh case, which has each standing with each command, and with each hindrance.
#[test]
fn s21_l9_states_of_a_request_by_commands_and_crashes() {
    all_hold(cases().step_by(47).chain(flex_cases().step_by(23)));
}

#[test]
#[ignore = "takes minutes; tests/long plays it"]
fn s21_l9_each_state_of_a_request_by_each_command_and_each_crash() {
    all_hold(cases());
}

#[test]
#[ignore = "takes minutes; tests/long plays it"]
fn s21_l9_each_moment_around_an_end_by_each_command_and_each_crash() {
    all_hold(flex_cases());
}
