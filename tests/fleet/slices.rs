//! Multislices through hours of random trouble: whatever strikes a slice, its request or the watchdog, and
//! whatever operators say meanwhile, the job runs on all slices under one order in the end, and no sound multislice was destroyed.
//!
//! `SEEDS=FROM..TO` plays these seeds in place of the usual ones.

use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::world::{Loss, Ms, World, minutes};

const ZONE: &str = "us-central2-b";
const SLICES: [&str; 3] = ["a-0", "a-1", "a-2"];

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "60s"
[policy]
attempts = { max = 50 }
[[tpu]]
name = "a"
zone = "us-central2-b"
queued_resource = "qr"
[tpu.create]
accelerator_type = "v4-16"
runtime_version = "tpu-ubuntu2204-base"
spot = true
nodes = 3
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
restart = { no_progress = 50, per_run = 50 }
"#;

const TIMES: &str = "times = { create = \"4m\", delete = \"30s\", boot = \"40s\", beat = \"60s\", refusal = \"1m\" }";

impl World {
    fn slice(&self, name: &str) -> Option<&tpu_watchdog::simulator::things::Node> {
        self.cloud.nodes.get(&(ZONE.to_owned(), name.to_owned()))
    }

    /// Whether each slice is well and its job at work.
    fn is_sound(&self) -> bool {
        SLICES.iter().all(|name| {
            self.slice(name).is_some_and(|node| {
                let well = node.state == "READY" && node.health.as_deref() == Some("HEALTHY");
                well && node.run.boots > 0 && !node.run.stopped
            })
        })
    }

    /// One thing goes wrong now.
    fn strike(&mut self, rng: &mut fastrand::Rng) {
        let slice = SLICES[rng.usize(0..SLICES.len())];
        let lasts = |rng: &mut fastrand::Rng| Some(minutes(rng.i64(2..90)));
        let named = || Some("a".to_owned());
        match rng.u32(0..18) {
            0 if rng.bool() => self.trouble(ZONE, slice, Trouble::Remake, None),
            0 if rng.bool() => self.trouble(ZONE, slice, Trouble::PreemptNode, None),
            0 => self.trouble(ZONE, slice, Trouble::Preempt, None),
            1 => self.trouble(ZONE, slice, Trouble::Vanish, None),
            2 => self.trouble(ZONE, slice, Trouble::FailedRepair, None),
            3 => self.trouble(ZONE, slice, Trouble::Unresponsive, lasts(rng)),
            4 => self.trouble(ZONE, slice, Trouble::Maintenance, lasts(rng)),
            5 => self.trouble(ZONE, slice, Trouble::Restarting, Some(minutes(rng.i64(2..20)))),
            6 => self.trouble(ZONE, slice, Trouble::Repairing, lasts(rng)),
            7 => self.trouble(ZONE, "", Trouble::StockOut, lasts(rng)),
            8 => self.trouble(ZONE, slice, Trouble::Silence, None),
            9 => self.trouble(ZONE, slice, Trouble::JobCrashes, None),
            10 => self.restart(),
            // A listing lacks it for a while, or all of them.
            13 if rng.bool() => self.hidden.extend(SLICES.map(str::to_owned)),
            13 => drop(self.hidden.insert(slice.to_owned())),
            11 | 12 => {
                let late = Loss::ArrivesLate(rng.i64(1_000..60_000));
                let losses = [Loss::NeverArrives, Loss::Arrives, late];
                self.loses = Some(losses[rng.usize(0..losses.len())]);
            }
            // An operator gives commands; a pause lasts until the next trouble.
            14 => self.command(CommandKind::Relaunch { slot: "a".into() }),
            15 => self.command(CommandKind::Retry { slot: "a".into(), from: None }),
            16 => self.command(CommandKind::Pause { slot: named(), until: None }),
            _ => self.dies_at = Some((rng.usize(0..4), rng.bool())),
        }
    }
}

fn plays(seed: u64) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut world = World::new(CONFIG, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
    world.start("one");
    let wrong = |world: &World, what: &str| {
        let nodes = SLICES
            .map(|name| world.slice(name).map(|node| (node.state, node.run.order.generation)));
        let state = world.state("a");
        Err(format!("seed {seed}: {what}: {nodes:?}, {state}\n{}", world.log.join("\n")))
    };
    let mut next: Ms = minutes(30);
    let troubles = minutes(8 * 60);
    let mut sound_for: Ms = 0;
    while world.now < troubles + minutes(6 * 60) {
        let sent = world.sent.len();
        world.trains_whole(&SLICES.map(str::to_owned), 120);
        world.run_for(1_000);
        // A slice may heal in the second in which the delete is on its way.
        let deleted = world.sent[sent..].iter().any(|sent| sent.method == "DELETE");
        if deleted && sound_for > 5_000 {
            return wrong(&world, "a sound multislice is deleted");
        }
        sound_for = if world.is_sound() { sound_for + 1_000 } else { 0 };
        if world.now >= next && next <= troubles {
            // Trouble that lasts until the next one ends with the last, too.
            world.hidden.clear();
            world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
            next = world.now + minutes(rng.i64(1..60));
            if next <= troubles {
                world.strike(&mut rng);
            }
            sound_for = 0;
        }
    }
    let orders: Vec<u64> =
        SLICES.iter().filter_map(|name| Some(world.slice(name)?.run.order.generation)).collect();
    if !world.is_sound() || orders.iter().any(|generation| *generation != orders[0]) {
        return wrong(&world, "it is not whole again");
    }
    if !world.fleet().ledger.strays.is_empty() || world.cloud.queued.len() != 1 {
        return wrong(&world, "more is left than its request");
    }
    Ok(())
}

#[test]
fn a_multislice_comes_through_random_trouble_whole_and_is_never_destroyed_while_it_is_sound() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let wrong: Vec<String> = seeds.unwrap_or(0..24).filter_map(|seed| plays(seed).err()).collect();
    let first = wrong.first().map_or("", String::as_str);
    let all: Vec<_> = wrong.iter().filter_map(|text| text.lines().next()).collect();
    assert!(wrong.is_empty(), "{} seeds:\n{}\n\n{first}", all.len(), all.join("\n"));
}
