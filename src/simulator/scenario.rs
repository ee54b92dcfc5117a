//! Scenarios: small TOML files that say which nodes exist, what runs on them, and what goes wrong
//! when.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::cloud::Cloud;
use super::things::{Timing, Workload};
use super::trouble::{Event, optional_span, span};
use super::workload::save;

/// A set of equal nodes that exist at the start.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// Names; or a prefix with `count`.
    #[serde(default)]
    pub names: Vec<String>,
    /// Prefix of numbered names.
    #[serde(default)]
    pub prefix: String,
    /// How many.
    #[serde(default)]
    pub count: usize,
    /// The zone.
    pub zone: String,
    /// `acceleratorType`.
    #[serde(default = "default_type")]
    pub accelerator_type: String,
    /// Spot capacity.
    #[serde(default)]
    pub spot: bool,
    /// The job on them.
    pub job: Option<Job>,
}

/// A job.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Checkpoint location; `{node}` is replaced.
    pub checkpoint: String,
    /// Time of a step.
    #[serde(deserialize_with = "span")]
    pub step: Duration,
    /// Steps between checkpoints.
    pub every: u64,
    /// Where it stands at the start.
    #[serde(default)]
    pub at_step: u64,
}

/// How long things take; the simulator's own quick times when left out.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    #[serde(default, deserialize_with = "optional_span")]
    create: Option<Duration>,
    #[serde(default, deserialize_with = "optional_span")]
    delete: Option<Duration>,
    #[serde(default, deserialize_with = "optional_span")]
    boot: Option<Duration>,
    #[serde(default, deserialize_with = "optional_span")]
    beat: Option<Duration>,
    #[serde(default, deserialize_with = "optional_span")]
    refusal: Option<Duration>,
}

/// A scenario.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// How long things take.
    #[serde(default)]
    pub times: Times,
    /// The nodes at the start.
    #[serde(default)]
    pub nodes: Vec<Nodes>,
    /// The events that happen.
    #[serde(default)]
    pub event: Vec<Event>,
    /// The most nodes on one page of a listing.
    pub page_max: Option<usize>,
    /// The most nodes that the quota of a zone allows, by zone; without a limit elsewhere.
    #[serde(default)]
    pub limits: BTreeMap<String, usize>,
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// With line and key.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|error| error.to_string())?;
        for (index, event) in scenario.event.iter().enumerate() {
            let told = |why| format!("event[{index}] ({}): {why}", event.what.name());
            scenario.concerns_something(event).map_err(told)?;
        }
        Ok(scenario)
    }

    /// An event for what is not there would be silently nothing.
    fn concerns_something(&self, event: &Event) -> Result<(), String> {
        let of_zone = event.what.is_of_a_zone();
        let names: Vec<String> = self.nodes.iter().flat_map(Nodes::all_names).collect();
        let there = |all: &[String]| match all {
            [] => "there are none".to_owned(),
            all => format!("there are {}", all.join(", ")),
        };
        let mut zones: Vec<String> = self.nodes.iter().map(|set| set.zone.clone()).collect();
        zones.dedup();
        if of_zone && !event.node.is_empty() {
            return Err("it concerns a zone: leave out `node`".into());
        }
        if of_zone && event.zone.is_empty() && zones.is_empty() {
            return Err("`zone` is missing".into());
        }
        if !of_zone && event.node.is_empty() {
            return Err(format!("`node` is missing; {}", there(&names)));
        }
        // With its zone named, a node may be one that is created later.
        if !of_zone && event.zone.is_empty() && !names.contains(&event.node) {
            let node = &event.node;
            return Err(format!(
                "there is no node {node:?}, {}; for one that is created later name its `zone`",
                there(&names)
            ));
        }
        Ok(())
    }

    /// The zone of an event: its own, or that of its node, or that of the first nodes.
    fn zone_of(&self, event: &Event) -> String {
        let own = Some(&event.zone).filter(|zone| !zone.is_empty());
        let of_node = || self.nodes.iter().find(|set| set.all_names().contains(&event.node));
        let zone = own.or_else(|| of_node().or(self.nodes.first()).map(|set| &set.zone));
        zone.cloned().unwrap_or_default()
    }

    /// Builds the cloud as it is at the scenario's start, with every duration divided by `speed`.
    pub fn build(&self, start: Timestamp, speed: f64) -> Cloud {
        let scaled = |d: Duration| d.div_f64(speed);
        let quick = Timing::default();
        let pick = |given: Option<Duration>, default: Duration| given.map_or(default, scaled);
        let timing = Timing {
            create: pick(self.times.create, quick.create),
            delete: pick(self.times.delete, quick.delete),
            change: quick.change,
            boot: pick(self.times.boot, quick.boot),
            beat: pick(self.times.beat, quick.beat),
            refusal: pick(self.times.refusal, quick.refusal),
        };
        let mut cloud = Cloud::new(timing);
        cloud.advance(start);
        cloud.page_max = self.page_max;
        cloud.limits = self.limits.clone();
        for set in &self.nodes {
            for name in set.all_names() {
                if let Some(job) = &set.job {
                    let checkpoint = job.checkpoint.replace("{node}", &name);
                    let workload = Workload {
                        checkpoint,
                        step: scaled(job.step),
                        every: job.every,
                        at_step: job.at_step,
                    };
                    if job.at_step >= job.every {
                        save(&mut cloud, &workload.checkpoint, job.at_step / job.every * job.every);
                    }
                    cloud.workloads.insert(name.clone(), workload);
                }
                cloud.add_node(&set.zone, &name, set.body(), true);
            }
        }
        for event in &self.event {
            let zone = self.zone_of(event);
            cloud.plan(Event {
                at: scaled(event.at),
                lasts: event.lasts.map(scaled),
                zone,
                ..event.clone()
            });
        }
        cloud
    }
}

impl Nodes {
    /// The names of the set.
    pub fn all_names(&self) -> Vec<String> {
        let numbered = (0..self.count).map(|i| format!("{}{i}", self.prefix));
        self.names.iter().cloned().chain(numbered).collect()
    }

    fn body(&self) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("acceleratorType".into(), json!(self.accelerator_type));
        body.insert("runtimeVersion".into(), json!("tpu-ubuntu2204-base"));
        body.insert(
            "metadata".into(),
            json!({"startup-script": "#! /bin/bash\n# the user's own\n"}),
        );
        body.insert("labels".into(), json!({"team": "llm"}));
        if self.spot {
            body.insert("schedulingConfig".into(), json!({"spot": true}));
        }
        body
    }
}

fn default_type() -> String {
    "v4-8".to_owned()
}
