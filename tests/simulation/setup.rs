//! One seed gives one world: its size, policies, workloads, watchdogs, and which faults it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Map, Value, json};
use tpu_watchdog::model::quiet::QuietHours;
use tpu_watchdog::model::settings::*;
use tpu_watchdog::resource::spec::SUPERVISOR_MARK;

use crate::fault::Fault;

/// Of one host, two, eight, and 64.
const KINDS: [&str; 8] = ["v4-8", "v4-16", "v4-8", "v4-16", "v4-8", "v4-16", "v4-64", "v4-512"];

/// Milliseconds of virtual time.
pub type Ms = i64;
/// One minute.
pub const MINUTE: Ms = 60_000;
/// One hour.
pub const HOUR: Ms = 60 * MINUTE;
/// The owner's id in every world.
pub const OWNER: &str = "watchdog-of-the-simulation";
/// The zones, in the order in which worlds use them.
pub const ZONES: [&str; 3] = ["us-central2-b", "us-east5-a", "europe-west4-a"];

/// What kind of watchdog a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs all the time.
    Service,
    /// Runs every five minutes for some minutes.
    Schedule,
}

/// What a slot's node is at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A plain node that a person created.
    Plain,
    /// One that belongs to a queued resource.
    Queued,
    /// One that API v1 made.
    V1,
    /// One that another watchdog owns.
    Owned,
}

/// Everything that is fixed when a world begins.
#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub faults: BTreeSet<Fault>,
    pub watchdogs: Vec<Kind>,
    pub settings: Settings,
    pub origins: BTreeMap<String, Origin>,
    /// What each slot's node was created with.
    pub bodies: BTreeMap<String, Map<String, Value>>,
    pub ttl: Duration,
    pub sqlite: bool,
    /// Faults last until then …
    pub chaos: Ms,
    /// … and what must follow has followed by then.
    pub end: Ms,
    /// This zone stays without capacity for good.
    pub broken_zone: Option<String>,
    /// How long a step of a job takes, in seconds.
    pub step: u64,
    /// Guest attributes stay forbidden for good.
    pub forbidden_reports: bool,
    /// Deletes of the last slot stay forbidden for good.
    pub forbidden_deletes: bool,
    /// How long it is from one strike of a fault to its next, in quarters of what is ordinary.
    pub quarters: BTreeMap<Fault, u32>,
}

/// A generator of its own for each purpose: one more draw for one thing changes nothing else.
pub fn rng(seed: u64, purpose: &str) -> Rng {
    // FNV-1a: the same on every machine and in every version.
    let hash = purpose
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash)
}

impl Setup {
    /// The world of a seed.
    pub fn of(seed: u64) -> Setup {
        let coin = |purpose: &str, one_in: u32| rng(seed, purpose).u32(0..one_in) == 0;
        // Some worlds are quiet, some know nearly everything: two faults hide each other less than
        // thirty.
        let density = [4, 8, 15, 30][rng(seed, "density").usize(0..4)];
        let faults: BTreeSet<Fault> = Fault::ALL
            .iter()
            .copied()
            .filter(|f| rng(seed, f.name()).u32(0..60) < density)
            .collect();
        // What is rare in one world is the rule in another.
        let rate = |fault: &Fault| {
            (*fault, [1, 2, 4, 8, 16][rng(seed, &format!("rate of {fault}")).usize(0..5)])
        };
        let quarters = Fault::ALL.iter().map(rate).collect();
        let mut draw = rng(seed, "fleet");
        let slots = match draw.u32(0..10) {
            0 => 1,
            1..=3 => draw.usize(2..6),
            4..=8 => draw.usize(6..25),
            // A decision about each of many sick slots at each answer costs most of all worlds'
            // time.
            _ if coin("large", 3) => draw.usize(70..90),
            _ => draw.usize(25..40),
        };
        let zones = draw.usize(1..=ZONES.len());
        let watchdogs = match rng(seed, "watchdogs").u32(0..8) {
            0..=3 => vec![Kind::Service],
            4 => vec![Kind::Service; 2],
            5 => vec![Kind::Service; 3],
            6 => vec![Kind::Service, Kind::Schedule],
            _ => vec![Kind::Schedule],
        };
        let policy = policy(seed, &watchdogs);
        let (reserved, overlaid) = (coin("reserved", 3), coin("overlaid", 4));
        let (mut all, mut origins, mut bodies) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for index in 0..slots {
            let name = format!("tpu-{index:02}");
            let first = draw.usize(0..zones);
            let several = draw.u32(0..4) == 0;
            let count = if several { zones } else { 1 };
            let zones: Vec<String> =
                (0..count).map(|i| ZONES[(first + i) % zones].to_owned()).collect();
            let job = (draw.u32(0..4) > 0).then(|| JobSettings {
                command: Some("train".into()),
                checkpoint: Some(CheckpointSettings {
                    uri: format!("gs://bucket/{name}"),
                    format: Some(CheckpointFormat::Orbax),
                    orbax_mode: Default::default(),
                }),
                no_progress: 3,
                restarts_per_run: 5,
                transient_exit_codes: vec![6, 11, 134, 139],
                ..JobSettings::default()
            });
            let origin = match draw.u32(0..24) {
                0 => Origin::Queued,
                1 => Origin::V1,
                2 => Origin::Owned,
                _ => Origin::Plain,
            };
            let accelerator = KINDS[draw.usize(0..KINDS.len())];
            let capacity = if reserved && index % 3 == 0 { "reserved" } else { "preemptible" };
            let body = json!({
                "acceleratorType": accelerator, "runtimeVersion": "tpu-ubuntu2204-base", "labels": {"team": "llm", "n": index.to_string()},
                "tags": ["tpu"], "description": format!("node {index}"), "schedulingConfig": {capacity: capacity == "reserved" || index % 2 == 0},
                "metadata": {"startup-script": "#! /bin/bash\necho mine", "token": format!("t{index}")},
                "networkConfig": {"network": "training", "enableExternalIps": true},
                // What the watchdog has never heard of.
                "dataDisks": [{"sourceDisk": format!("disks/{index}"), "mode": "READ_ONLY_MULTIPLE"}],
                "shieldedInstanceConfig": {"enableSecureBoot": index % 2 == 0},
            });
            let Value::Object(mut body) = body else { continue };
            if origin == Origin::Owned {
                body["metadata"]["tpu-watchdog-owner"] = json!("somebody-else");
            }
            bodies.insert(name.clone(), body);
            origins.insert(name.clone(), origin);
            let supervisor = job.as_ref().map(|_| format!("#! /bin/bash\n{SUPERVISOR_MARK}\n"));
            let create = if overlaid && index % 2 == 0 { overlay() } else { Overlay::default() };
            let slot = SlotSettings {
                filling: Default::default(),
                name: name.clone(),
                zones,
                create,
                job,
                policy: policy.clone(),
                supervisor,
            };
            all.insert(name, slot);
        }
        let mut fleet = rng(seed, "fleet policy");
        let seconds = Duration::from_secs;
        let scheduled = watchdogs == [Kind::Schedule];
        let settings = Settings {
            digest: String::new(),
            project: "p".into(),
            owner: OWNER.into(),
            label: None,
            decided_by: String::new(),
            dry_run: coin("dry run", 25),
            alpha: coin("alpha", 4),
            poll: PollSettings {
                every: seconds(30),
                operations: seconds(5),
                timeout: seconds(20),
                max_gap: seconds(if scheduled { 600 } else { 300 }),
            },
            max_unavailable: if fleet.bool() {
                Share::Percent(25.0)
            } else {
                Share::Count(fleet.usize(1..6))
            },
            removes_dead: rng(seed, "strays").bool(),
            max_judged_recreates_per_hour: fleet.usize(8..30),
            storm: Storm {
                percent: [30.0, 50.0, 100.0][fleet.usize(0..3)],
                min: fleet.usize(2..6),
                window: seconds(fleet.u64(5..30) * 60),
            },
            slots: all,
        };
        let chaos = HOUR * rng(seed, "chaos").i64(4..13);
        // In the worst case all slots have to be recovered, so many at a time, so many in an hour.
        let desired = settings.slots.len();
        let rounds = desired.div_ceil(settings.max_unavailable.of(desired)) as i64;
        let hours = desired.div_ceil(settings.max_judged_recreates_per_hour) as i64;
        let recovering = (rounds * 15 * MINUTE).max(hours * HOUR);
        Setup {
            seed,
            faults,
            watchdogs,
            settings,
            origins,
            bodies,
            ttl: seconds(30),
            sqlite: coin("sqlite", 6),
            chaos,
            end: chaos + 10 * HOUR + recovering,
            quarters,
            step: [200, 400, 600, 1200][rng(seed, "workload").usize(0..4)],
            forbidden_reports: coin("forbidden reports", 8),
            forbidden_deletes: coin("forbidden deletes", 12),
            broken_zone: (zones > 1 && coin("broken zone", 3)).then(|| ZONES[0].to_owned()),
        }
    }

    /// An ordinary fleet under one service, for measuring: nothing is wrong but what is ordinary.
    /// Without jobs its health is all that is watched.
    pub fn ordinary(slots: usize, hours: i64, jobs: bool) -> Setup {
        let mut setup = (0..)
            .map(Setup::of)
            .find(|s| s.settings.slots.len() > 60)
            .unwrap_or_else(|| Setup::of(0));
        let (name, template) =
            setup.settings.slots.pop_first().unwrap_or_else(|| unreachable!("there are slots"));
        let body = setup.bodies[&name].clone();
        setup.settings.slots.clear();
        setup.bodies.clear();
        setup.origins.clear();
        for index in 0..slots {
            let name = format!("tpu-{index:04}");
            let job = JobSettings {
                command: Some("train".into()),
                checkpoint: Some(CheckpointSettings {
                    uri: format!("gs://bucket/{name}"),
                    format: Some(CheckpointFormat::Orbax),
                    orbax_mode: Default::default(),
                }),
                no_progress: 3,
                restarts_per_run: 5,
                transient_exit_codes: vec![6, 11, 134, 139],
                ..JobSettings::default()
            };
            let slot = SlotSettings {
                filling: Default::default(),
                name: name.clone(),
                zones: vec![ZONES[0].into()],
                job: jobs.then_some(job),
                policy: Policy::default(),
                supervisor: jobs.then(|| format!("#! /bin/bash\n{SUPERVISOR_MARK}\n")),
                ..template.clone()
            };
            setup.settings.slots.insert(name.clone(), slot);
            setup.bodies.insert(name.clone(), body.clone());
            setup.origins.insert(name, Origin::Plain);
        }
        setup.settings.dry_run = false;
        setup.faults = [Fault::Preemption, Fault::Sickness].into();
        setup.watchdogs = vec![Kind::Service];
        setup.settings.poll.max_gap = Duration::from_secs(300);
        setup.quarters.clear();
        (setup.chaos, setup.end, setup.sqlite, setup.broken_zone) =
            (hours * HOUR, hours * HOUR, false, None);
        setup
    }

    /// A year of a small Spot fleet in zones that run out of stock, whose team pauses, resumes,
    /// forgets and recreates slots, takes them out of the config and puts them back.
    #[allow(dead_code, reason = "the swarm plays it")]
    pub fn year(seed: u64) -> Setup {
        let mut setup = Setup::of(seed).with_slots(4);
        setup.faults = [
            Fault::Crash,
            Fault::Commands,
            Fault::Reload,
            Fault::StockOut,
            Fault::Quota,
            Fault::Preemption,
            Fault::Vanishing,
            Fault::CallLate,
            Fault::CallLostAfter,
        ]
        .into();
        // The team acts every ten hours, and a zone is short about every day.
        setup.quarters = setup.faults.iter().map(|fault| (*fault, 60)).collect();
        setup.quarters.insert(Fault::CallLate, 4);
        setup.quarters.insert(Fault::CallLostAfter, 4);
        setup.settings.dry_run = false;
        setup.watchdogs = vec![Kind::Service];
        setup.settings.poll.max_gap = Duration::from_secs(300);
        let days = 365;
        (setup.chaos, setup.end) = (days * 24 * HOUR, days * 24 * HOUR + 12 * HOUR);
        (setup.sqlite, setup.broken_zone) = (false, None);
        (setup.forbidden_reports, setup.forbidden_deletes) = (false, false);
        setup
    }

    /// The world of a seed as it was before it knew this fault.
    #[allow(dead_code, reason = "the swarm plays them whole")]
    pub fn without(mut self, fault: Fault) -> Setup {
        self.faults.remove(&fault);
        self
    }

    /// The same world with fewer slots.
    #[allow(dead_code, reason = "the swarm plays them whole")]
    pub fn with_slots(mut self, most: usize) -> Setup {
        while self.settings.slots.len() > most
            && let Some((name, _)) = self.settings.slots.pop_last()
        {
            self.bodies.remove(&name);
            self.origins.remove(&name);
        }
        self
    }

    /// Simulated hours times nodes.
    pub fn node_hours(&self) -> f64 {
        self.settings.slots.len() as f64 * self.end as f64 / HOUR as f64
    }

    /// What is one in so many, or every so many minutes, where a fault strikes as often as is
    /// ordinary: how many here.
    pub fn pace(&self, fault: Fault, ordinary: u32) -> u32 {
        // Never always: a call that is never answered shows nothing.
        (ordinary * self.quarters.get(&fault).unwrap_or(&4) / 4).max(2)
    }

    /// Whether a zone of this slot stays without capacity for good.
    pub fn is_broken(&self, slot: &str) -> bool {
        let zones = self.settings.slots.get(slot).map_or(&[][..], |slot| &slot.zones);
        self.broken_zone.as_ref().is_some_and(|zone| zones.contains(zone))
    }

    /// Whether deletes of this slot stay forbidden for good.
    pub fn refuses_deletes_of(&self, slot: &str) -> bool {
        let last = self.settings.slots.keys().next_back();
        self.forbidden_deletes && last.is_some_and(|last| last == slot)
    }

    /// Whether the world knows this fault.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

/// What some slots' `[tpu.create]` says: one field more, one changed; a label more, one taken away.
fn overlay() -> Overlay {
    Overlay {
        fields: [
            ("runtimeVersion".to_owned(), json!("v2-alpha-tpuv4")),
            ("networkConfig".to_owned(), json!({"enableExternalIps": false})),
        ]
        .into(),
        labels: [("cost".to_owned(), Some("42".to_owned())), ("n".to_owned(), None)].into(),
        ..Overlay::default()
    }
}

fn policy(seed: u64, watchdogs: &[Kind]) -> Policy {
    let mut draw = rng(seed, "policy");
    let minutes = |n: u64| Duration::from_secs(n * 60);
    let base = Policy::default();
    let maintenance = minutes(draw.u64(10..60));
    let quiet = rng(seed, "quiet hours").u32(0..5) == 0;
    let hour = rng(seed, "quiet hours start").u32(0..24);
    Policy {
        confirmations: draw.u32(1..4),
        max_age: if watchdogs == [Kind::Schedule] { minutes(10) } else { minutes(2) },
        grace: Grace {
            startup: Some(minutes(draw.u64(15..45))),
            maintenance: Some(maintenance),
            unresponsive: minutes(draw.u64(3..12)),
            runtime_unhealthy: minutes(draw.u64(3..15)),
            boot: Some(minutes(draw.u64(5..12))),
            silent: minutes(draw.u64(8..16)),
            ..base.grace.clone()
        },
        heal: minutes(draw.u64(3..10)),
        when_missing: match draw.u32(0..6) {
            0 => WhenMissing::Hold,
            1 | 2 => WhenMissing::Auto,
            _ => WhenMissing::Create,
        },
        on_success: match rng(seed, "on success").u32(0..4) {
            0 => OnSuccess::Delete,
            1 => OnSuccess::Stop,
            _ => OnSuccess::Keep,
        },
        attempts: AttemptsPolicy {
            max: draw.usize(2..6),
            preemptions: draw.usize(3..50),
            window: minutes(60 * draw.u64(4..24)),
            settled: minutes(draw.u64(20..90)),
        },
        backoff_first: Duration::from_secs(30),
        backoff_max: minutes(draw.u64(5..30)),
        stock_out: base.stock_out,
        priority: 0,
        create_check: true,
        quiet_hours: if quiet {
            QuietHours::new(&format!("0 0 {hour} * * *"), minutes(180)).into_iter().collect()
        } else {
            Vec::new()
        },
    }
}
