//! Random walks of one queued resource, of Spot, on-demand or flex-start capacity and one slice to three: trouble of nodes,
//! zones, calls and the bucket, operators, people and processes, one after the other at random moments. All the while at most
//! one grant is billed and nothing at work is deleted. When the trouble is over, and an operator has resumed and retried, the
//! job goes on.
//!
//!     WALKS=1000..2000 cargo fast --test fleet -- --ignored --nocapture new_walks

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::moments::*;
use crate::standings::world;
use crate::world::{Loss, Ms, World, minutes};

/// Between two looks.
const LOOK: Ms = 10_000;

struct Walk {
    world: World,
    rng: Rng,
    form: Form,
    /// The events so far, for the report of a failure.
    story: Vec<String>,
    /// TPUs at work that a person deleted, or wanted recreated.
    meant: u32,
    wrong: Option<String>,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut rng = Rng::with_seed(seed);
        let capacity = [Capacity::Spot, Capacity::OnDemand, Capacity::FlexStart][rng.usize(0..3)];
        let form = Form { capacity, slices: [1, 1, 2, 3][rng.usize(0..4)] };
        let mut world = world(form);
        let queue = [None, Some(std::time::Duration::from_secs(1800))][rng.usize(0..2)];
        let slot = world.settings.slots.get_mut("a").expect("it is in the config");
        slot.policy.grace.queue = queue;
        world.reload();
        Walk { world, rng, form, story: Vec::new(), meant: 0, wrong: None }
    }

    /// Time goes on, and with it the job, where all its nodes are there.
    fn goes_on(&mut self, ms: Ms) {
        for step in 0..ms / LOOK {
            if step % 6 == 0 {
                let there = |base: &&&str| {
                    let nodes = self.form.nodes(base);
                    ZONES.iter().any(|zone| nodes.iter().all(|of| self.world.is_ready(zone, of)))
                };
                let grown = NODES.iter().find(there).unwrap_or(&"a");
                self.world.trains_whole(&self.form.nodes(grown), 120);
            }
            self.world.run_for(LOOK);
            let grants = self.world.grants();
            let refused = self.world.log.iter().find(|line| line.contains("safety check"));
            self.wrong = match () {
                () if grants.len() > 1 => Some(format!("two grants: {grants:?}")),
                () if self.world.cloud.harmed_unseen > self.meant => {
                    Some("it was at work, and was deleted".into())
                }
                () => refused.cloned(),
            };
            if self.wrong.is_some() {
                return;
            }
        }
    }

    /// A node of the slot that is there.
    fn a_node(&mut self) -> Option<(String, String)> {
        let is_own =
            |name: &str| NODES.iter().any(|base| self.form.nodes(base).contains(&name.into()));
        let own = self.world.cloud.nodes.keys().filter(|(_, name)| is_own(name));
        let own: Vec<_> = own.cloned().collect();
        self.rng.choice(own)
    }

    fn happens(&mut self) {
        let lasts = minutes(self.rng.i64(1..120));
        let said = match self.rng.u32(0..20) {
            0..8 => self.strikes_a_node(lasts),
            8..11 => self.strikes_a_zone(lasts),
            11..14 => self.strikes_a_call(),
            14..17 => self.is_operated(lasts),
            17..19 => self.is_left_without_a_watchdog(lasts),
            _ => self.is_deleted_by_a_person(),
        };
        let at = self.world.now / 60_000;
        self.story.push(format!("{at} min: {said}"));
        self.world.log.push(format!("{:>7} --- {said}", self.world.now / 1000));
    }

    fn strikes_a_node(&mut self, lasts: Ms) -> String {
        let Some((zone, node)) = self.a_node() else { return "no node is there".into() };
        let mut all = vec![
            Trouble::Maintenance,
            Trouble::Unresponsive,
            Trouble::RuntimeUnhealthy,
            Trouble::Repairing,
            Trouble::Restarting,
            Trouble::FailedRepair,
            Trouble::Silence,
            Trouble::Remake,
            Trouble::Vanish,
            Trouble::JobCrashes,
            Trouble::JobHangs,
            Trouble::SetupFails,
            Trouble::ChipsBusy,
            Trouble::NeverBoot,
        ];
        if self.form.capacity == Capacity::Spot {
            all.extend([Trouble::Preempt, Trouble::Preempt, Trouble::PreemptNode]);
        }
        let what = all[self.rng.usize(0..all.len())];
        let passes = matches!(what, Trouble::SetupFails | Trouble::ChipsBusy) || self.rng.bool();
        let lasts = Some(lasts).filter(|_| passes);
        self.world.trouble(&zone, &node, what, lasts);
        format!("{what} of {node} in {zone} for {lasts:?} ms")
    }

    fn strikes_a_zone(&mut self, lasts: Ms) -> String {
        let all = [
            Trouble::StockOut,
            Trouble::StockOut,
            Trouble::Quota,
            Trouble::ClosedQueue,
            Trouble::Unreachable,
        ];
        let (what, zone) = (all[self.rng.usize(0..all.len())], ZONES[self.rng.usize(0..2)]);
        if self.rng.u32(0..6) == 0 {
            self.world.unreadable = !self.world.unreadable;
            return format!("the bucket can be read: {}", !self.world.unreadable);
        }
        self.world.trouble(zone, "", what, Some(lasts));
        format!("{what} in {zone} for {lasts} ms")
    }

    fn strikes_a_call(&mut self) -> String {
        if self.rng.bool() {
            let all =
                [Loss::NeverArrives, Loss::Arrives, Loss::ArrivesLate(self.rng.i64(5_000..45_000))];
            let loss = all[self.rng.usize(0..3)];
            self.world.loses = Some(loss);
            return format!("the answer to the next call is lost: {loss:?}");
        }
        let dies = (self.rng.usize(0..4), self.rng.bool());
        self.world.dies_at = Some(dies);
        format!("it dies at the call {dies:?}")
    }

    fn is_operated(&mut self, lasts: Ms) -> String {
        let slot = "a".to_owned();
        let incarnation =
            self.world.fleet().slots.get("a").and_then(|record| record.incarnation.clone());
        let kind = match self.rng.u32(0..8) {
            0 => CommandKind::Pause { slot: Some(slot), until: None },
            1 => CommandKind::Resume { slot: Some(slot), adopt: false },
            2 => CommandKind::Retry { slot, from: None },
            3 => CommandKind::Forget { slot, purge: self.rng.bool() },
            4 => CommandKind::Relaunch { slot },
            5 => {
                self.meant += 1;
                CommandKind::Recreate { slot, incarnation }
            }
            6 => {
                self.world.configured("other spec");
                return "the config wants another runtime".into();
            }
            _ => {
                let left = self.world.settings.slots.remove("a");
                self.world.reload();
                self.goes_on(lasts / 4);
                self.world.settings.slots.extend(left.map(|slot| ("a".to_owned(), slot)));
                self.world.reload();
                return format!("it was out of the config for {} ms", lasts / 4);
            }
        };
        let said = format!("{kind:?}");
        self.world.command(kind);
        said
    }

    fn is_left_without_a_watchdog(&mut self, lasts: Ms) -> String {
        self.world.stop();
        self.goes_on(lasts);
        self.world.restart();
        format!("no watchdog ran for {lasts} ms")
    }

    fn is_deleted_by_a_person(&mut self) -> String {
        let Some((zone, node)) = self.a_node() else { return "there is nothing to delete".into() };
        self.meant += 1;
        if self.rng.bool() {
            let path = format!("v2/projects/p/locations/{zone}/nodes/{node}");
            self.world.call("DELETE", &path, &Default::default(), None);
            return format!("a person deletes {node} in {zone}");
        }
        let force = [("force".to_owned(), "true".to_owned())].into();
        let mut answers = Vec::new();
        for id in IDS {
            let path = format!("v2/projects/p/locations/{zone}/queuedResources/{id}");
            answers.push((id, self.world.call("DELETE", &path, &force, None).0));
        }
        format!("a person deletes its request in {zone}: {answers:?}")
    }

    /// The trouble is over, and an operator resumes and retries: the job goes on.
    fn comes_to_rest(&mut self) {
        (self.world.dies_at, self.world.loses, self.world.unreadable) = (None, None, false);
        self.goes_on(minutes(150));
        self.world.command(CommandKind::Resume { slot: Some("a".into()), adopt: false });
        for hours in [4, 4] {
            self.world.command(CommandKind::Retry { slot: "a".into(), from: None });
            self.goes_on(minutes(60 * hours));
        }
        let before = self.world.newest_checkpoint();
        self.goes_on(minutes(60));
        if self.wrong.is_some() {
            return;
        }
        let states: Vec<_> = self.world.there().collect();
        self.wrong = self.world.wrong(Standing::Active, "nothing").or_else(|| {
            let goes_on = self.world.newest_checkpoint() > before;
            (!goes_on).then(|| format!("its job does not go on: {states:?}"))
        });
    }
}

/// Plays a walk; a failure comes with its story.
fn plays(seed: u64) -> Result<(), String> {
    let mut walk = Walk::new(seed);
    for _ in 0..walk.rng.usize(4..14) {
        let wait = minutes(walk.rng.i64(1..50));
        walk.goes_on(wait);
        if walk.wrong.is_none() {
            walk.happens();
        }
    }
    if walk.wrong.is_none() {
        walk.comes_to_rest();
    }
    let Some(wrong) = walk.wrong else { return Ok(()) };
    let has = walk.world.driver.is_some() && walk.world.fleet().slots.contains_key("a");
    let state = if has { walk.world.state("a") } else { "no record".into() };
    let (form, story, log) = (walk.form, walk.story.join("; "), walk.world.log.join("\n"));
    Err(format!("seed {seed}: {wrong}; {form:?}; {story}; {state}\n{log}"))
}

/// Plays them on all cores; a walk that goes wrong is told at once.
fn all_hold(seeds: Range<u64>) {
    let (next, cores) = (AtomicU64::new(seeds.start), std::thread::available_parallelism());
    let play = || {
        let mut wrong = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return wrong;
            }
            if let Err(text) = plays(seed) {
                eprintln!("{}", text.lines().next().unwrap_or_default());
                wrong.push(text);
            }
        }
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..cores.map_or(1, usize::from)).map(|_| scope.spawn(play)).collect();
        all.into_iter().flat_map(|core| core.join().expect("no walk panics")).collect()
    });
    let first = wrong.first().map_or("", String::as_str);
    assert!(wrong.is_empty(), "{} of {seeds:?}: {first}", wrong.len());
}

#[test]
fn s21_l9_walks_of_requests_of_every_capacity() {
    all_hold(0..40);
}

#[test]
#[ignore = "takes as long as there are seeds in WALKS; tests/long plays it"]
fn new_walks_of_requests_of_every_capacity() {
    let range = std::env::var("WALKS").unwrap_or_else(|_| "1000..2000".into());
    let (from, to) = range.split_once("..").expect("WALKS=FROM..TO");
    all_hold(from.parse().expect("a number")..to.parse().expect("a number"));
}
