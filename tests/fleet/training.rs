//! Managed training jobs through hours of random trouble, by the driver: lost answers, lists that lag or fail, crashes,
//! regions without capacity or quota, ends of every kind. Never do two jobs of a lineage live (S24), and each lineage
//! goes on in the end.
//!
//! `SEEDS=FROM..TO` plays these seeds in place of the usual ones.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::training::NO_REGION;
use tpu_watchdog::simulator::service;
use tpu_watchdog::simulator::things::{Job, JobKey, Object};
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::world::{Loss, Ms, World, at, minutes};

const REGIONS: [&str; 2] = ["us-central1", "europe-west4"];

/// The slots, and how their people call the jobs.
const SLOTS: [(&str, &str); 2] = [("sft", "llama-sft"), ("census", "census")];

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "30s"
[[vertex_job]]
name = "sft"
regions = ["us-central1", "europe-west4"]
display_name = "llama-sft"
checkpoint = "gs://bucket/sft"
stall = "1h"
restart = { job = 50, transient = 50, no_progress = 50 }
[vertex_job.policy]
attempts = { max = 500, preemptions = 500 }
[[ai_platform_job]]
job = "census"
checkpoint = "gs://bucket/census"
restart = { job = 50, transient = 50, no_progress = 50 }
[ai_platform_job.policy]
attempts = { max = 500, preemptions = 500 }
"#;

const TIMES: &str = "times = { create = \"3m\", delete = \"30s\", boot = \"40s\", beat = \"60s\", refusal = \"70s\" }";

const EXIT: &str = "The replica workerpool0-0 exited with a non-zero status of";

fn world() -> World {
    let mut world = World::new(CONFIG, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
    let pools = json!([{"machineSpec": {"machineType": "a2-highgpu-1g"}, "replicaCount": "1"}]);
    let spec = json!({"workerPoolSpecs": pools, "scheduling": {"strategy": "SPOT"}});
    let job = json!({"displayName": "llama-sft", "jobSpec": spec});
    let legacy = json!({"jobId": "census", "trainingInput": {"masterType": "large_model"}});
    for (path, body) in [("locations/us-central1/customJobs", job), ("jobs", legacy)] {
        let path = format!("v1/projects/p/{path}");
        let (status, answer) = world.call("POST", &path, &BTreeMap::new(), Some(body));
        assert_eq!(status, 200, "{answer}");
    }
    world.start("one");
    world.run_for(minutes(10));
    world
}

impl World {
    /// The lineage of a job in truth.
    fn lineage(key: &JobKey, job: &Job) -> String {
        let label = job.body.get("labels").and_then(|labels| labels.get("tpu-watchdog-lineage"));
        label.and_then(|label| label.as_str()).unwrap_or(&key.2).to_owned()
    }

    /// The live jobs of each lineage.
    fn live(&self) -> BTreeMap<String, Vec<(String, &'static str)>> {
        let mut live: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (key, job) in self.cloud.training.iter().filter(|(_, job)| job.ended.is_none()) {
            live.entry(World::lineage(key, job)).or_default().push((key.2.clone(), job.state));
        }
        live
    }

    /// Jobs that run save now and then, but for one whose worker hangs.
    fn saves(&mut self, hangs: bool) {
        let (now, minute) = (at(self.now), self.now / minutes(1));
        let runs = |name: &str| {
            let of = |(key, job): (&JobKey, &Job)| {
                let called = job.body.get("displayName").and_then(|name| name.as_str());
                job.state == "RUNNING" && called.unwrap_or(&key.2).starts_with(name)
            };
            self.cloud.training.iter().any(of)
        };
        for (slot, name) in SLOTS {
            if minute % 10 == 0 && runs(name) && !(hangs && slot == "sft") {
                let file = format!("bucket/{slot}/{minute}/commit_success.txt");
                let object = Object { size: 1, updated: now, body: vec![], generation: 1 };
                self.cloud.objects.insert(file, object);
            }
        }
    }

    /// One thing goes wrong now.
    fn goes_wrong(&mut self, rng: &mut fastrand::Rng) {
        let (slot, name) = SLOTS[rng.usize(0..SLOTS.len())];
        // The legacy service has no region.
        let region = [REGIONS[0], REGIONS[1], ""][rng.usize(0..3)].to_owned();
        let live = |(_, job): &(&JobKey, &Job)| job.ended.is_none();
        let newest = self.cloud.training.iter().filter(live).map(|(key, _)| key.clone());
        let newest = newest.filter(|key| (key.1.is_empty()) == (slot == "census"));
        let newest = newest.max_by_key(|key| key.2.clone());
        // The service has used up its own restarts by now, or begins them.
        if let Some(job) = newest.as_ref().and_then(|key| self.cloud.training.get_mut(key)) {
            job.restarts = if rng.bool() { 3 } else { 0 };
        }
        match rng.u32(0..14) {
            0..=2 => service::fails(&mut self.cloud, name, 13, "Internal error occurred"),
            3 => service::fails(&mut self.cloud, name, 3, &format!("{EXIT} 139.")),
            4 => service::fails(&mut self.cloud, name, 3, &format!("{EXIT} 1.")),
            5 => drop(self.cloud.service.full.insert(region)),
            6 => drop(self.cloud.service.quota.insert(region, 0)),
            7 => self.cloud.service.lag = Duration::from_secs(rng.u64(0..=120)),
            8 => {
                let named = if region.is_empty() { NO_REGION.to_owned() } else { region };
                self.unlisted.insert(named);
            }
            9 => self.restart(),
            10 => self.dies_at = Some((rng.usize(0..3), rng.bool())),
            11 => {
                let late = Loss::ArrivesLate(rng.i64(1_000..60_000));
                let losses = [Loss::NeverArrives, Loss::Arrives, late];
                self.loses = Some(losses[rng.usize(0..losses.len())]);
            }
            12 => {
                // A person cancels it.
                let Some((_, region, id)) = newest else { return };
                let of = if region.is_empty() {
                    "jobs".into()
                } else {
                    format!("locations/{region}/customJobs")
                };
                let path = format!("v1/projects/p/{of}/{id}:cancel");
                self.call("POST", &path, &BTreeMap::new(), Some(json!({})));
            }
            _ => self.command(CommandKind::Retry { slot: slot.into(), from: None }),
        }
    }

    /// Something that was short or broken is no longer; a crash or a lost answer may still come.
    fn mends(&mut self, rng: &mut fastrand::Rng) {
        match rng.u32(0..3) {
            0 => SLOTS.iter().for_each(|(_, name)| self.cloud.service.mends(name)),
            1 => (self.cloud.service.full, self.cloud.service.quota) = Default::default(),
            _ => self.unlisted.clear(),
        }
    }

    fn all_mends(&mut self) {
        SLOTS.iter().for_each(|(_, name)| self.cloud.service.mends(name));
        (self.cloud.service.full, self.cloud.service.quota) = Default::default();
        self.unlisted.clear();
        (self.dies_at, self.loses) = (None, None);
    }
}

/// How many jobs there were in the end, and how many of them were cancelled since they saved nothing.
fn plays(seed: u64) -> Result<(usize, usize), String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut world = world();
    let wrong = |world: &World, what: String| {
        let states: Vec<_> = SLOTS.iter().map(|(slot, _)| world.state(slot)).collect();
        let jobs: Vec<_> = world
            .cloud
            .training
            .iter()
            .map(|(key, job)| format!("{key:?} {} {} {:?}", job.state, job.created, job.ended))
            .collect();
        let jobs = jobs.join("\n");
        Err(format!("seed {seed}: {what}: {states:#?}\n{jobs}\n{}", world.log.join("\n")))
    };
    let troubles = minutes(10 * 60);
    let (mut next, mut hangs): (Ms, bool) = (minutes(20), false);
    while world.now < troubles + minutes(8 * 60) {
        world.run_for(1_000);
        world.saves(hangs);
        if let Some((lineage, live)) = world.live().into_iter().find(|(_, live)| live.len() > 1) {
            return wrong(&world, format!("S24: {live:?} of {lineage} live"));
        }
        if world.now >= next && next < troubles {
            next = world.now + minutes(rng.i64(1..12));
            match rng.u32(0..8) {
                0 => hangs = !hangs,
                1..=2 => world.mends(&mut rng),
                _ => world.goes_wrong(&mut rng),
            }
        }
        if world.now == troubles {
            world.all_mends();
            hangs = false;
        }
        if world.now == troubles + minutes(60) {
            // A person has looked at the rest.
            for (slot, _) in SLOTS {
                world.command(CommandKind::Retry { slot: slot.into(), from: None });
            }
        }
    }
    for (slot, _) in SLOTS {
        if world.fleet().slots[slot].verdict.condition != Condition::Healthy {
            return wrong(&world, format!("{slot} is not at work"));
        }
    }
    if world.live().len() != 2 || !world.fleet().ledger.strays.is_empty() {
        return wrong(&world, format!("{:?}, {:?}", world.live(), world.fleet().ledger.strays));
    }
    let stalled = |line: &&String| line.contains("condemned as job_stalled");
    let cancels = world.log.iter().filter(stalled).count();
    Ok((world.cloud.training.len(), cancels))
}

#[test]
fn s24_lineages_go_on_one_job_at_a_time_whatever_goes_wrong() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let played: Vec<_> = seeds.unwrap_or(0..8).map(plays).collect();
    let wrong: Vec<&String> = played.iter().filter_map(|played| played.as_ref().err()).collect();
    let first = wrong.first().map_or("", |text| text.as_str());
    let all: Vec<_> = wrong.iter().filter_map(|text| text.lines().next()).collect();
    assert!(wrong.is_empty(), "{} seeds:\n{}\n\n{first}", all.len(), all.join("\n"));
    let jobs: usize = played.iter().flatten().map(|(jobs, _)| jobs).sum();
    let cancels: usize = played.iter().flatten().map(|(_, cancels)| cancels).sum();
    assert!(cancels > 0, "no job was seen to hang");
    assert!(jobs > 8 * played.len(), "{jobs} jobs in {} worlds", played.len());
}
