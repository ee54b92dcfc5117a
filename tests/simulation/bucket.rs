//! The bucket with the jobs' checkpoints: the product's own lister over what it shows, whole or
//! not.

use std::collections::VecDeque;

use futures::FutureExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _};
use tpu_watchdog::checkpoint::lister::survey_in;
use tpu_watchdog::model::checkpoint::CheckpointSurvey;
use tpu_watchdog::model::failure::Failure;
use tpu_watchdog::model::settings::CheckpointSettings;
use tpu_watchdog::simulator::things::{Exit, Node, Object};

use crate::fault::Fault;
use crate::network::transient;
use crate::process::wall;
use crate::world::World;

/// What one location's surveys have shown.
#[derive(Default)]
pub struct Surveys {
    /// The last whole one: names of the objects, the step that was set aside, and what it came to.
    whole: Option<(Vec<String>, Option<u64>, CheckpointSurvey)>,
    /// What was there before, for those that lag behind.
    past: VecDeque<Vec<String>>,
}

/// Complete checkpoints that a job keeps.
const KEPT: usize = 6;

impl World {
    /// What a listing of a slot's checkpoints comes to.
    pub fn survey(
        &mut self,
        slot: &str,
        location: &CheckpointSettings,
        set_aside: Option<u64>,
    ) -> Result<CheckpointSurvey, Failure> {
        if self.strikes(Fault::SurveyFails, 6) {
            return Err(transient("a listing of the bucket failed"));
        }
        if self.setup.has(Fault::HalfWritten)
            && self.is_training(slot)
            && self.strikes(Fault::HalfWritten, 6)
        {
            self.write_half(slot);
        }
        let partial = self.strikes(Fault::SurveyPartial, 6);
        let present = if partial {
            self.look(slot, location, set_aside, true)?
        } else {
            self.whole(slot, location, set_aside)?
        };
        if !self.setup.has(Fault::SurveyStale) {
            return Ok(present);
        }
        let keys = self.objects(&base(slot)).cloned().collect();
        let past = &mut self.network.surveys.entry(slot.to_owned()).or_default().past;
        past.push_back(keys);
        if past.len() > 5 {
            past.pop_front();
        }
        let back = past.len();
        if self.strikes(Fault::SurveyStale, 6) {
            let back = self.rng.usize(0..back);
            return list(&self.network.surveys[slot].past[back], location, set_aside);
        }
        Ok(present)
    }

    /// A survey that lacks nothing. Where nothing has changed it is the last one.
    fn whole(
        &mut self,
        slot: &str,
        location: &CheckpointSettings,
        set_aside: Option<u64>,
    ) -> Result<CheckpointSurvey, Failure> {
        if let Some((keys, before, survey)) =
            self.network.surveys.get(slot).and_then(|surveys| surveys.whole.as_ref())
            && *before == set_aside
            && self.objects(&base(slot)).eq(keys)
        {
            return Ok(survey.clone());
        }
        let survey = self.look(slot, location, set_aside, false)?;
        let keys = self.objects(&base(slot)).cloned().collect();
        self.network.surveys.entry(slot.to_owned()).or_default().whole =
            Some((keys, set_aside, survey.clone()));
        Ok(survey)
    }

    /// The product's own reading of what a listing shows.
    fn look(
        &mut self,
        slot: &str,
        location: &CheckpointSettings,
        set_aside: Option<u64>,
        partial: bool,
    ) -> Result<CheckpointSurvey, Failure> {
        self.tidy(slot, set_aside);
        let complete = self.complete(slot);
        self.known(slot).complete.extend(complete);
        let mut keys: Vec<String> = self.objects(&base(slot)).cloned().collect();
        keys.retain(|_| !partial || self.rng.u32(0..3) > 0);
        list(&keys, location, set_aside)
    }

    /// The step of the newest complete checkpoint of a slot's job.
    pub fn newest_step(&self, slot: &str) -> Option<u64> {
        self.complete(slot).last().copied()
    }

    /// Names of the objects under a base, in order.
    fn objects<'a>(&'a self, base: &'a str) -> impl Iterator<Item = &'a String> {
        self.cloud
            .objects
            .range(base.to_owned()..)
            .map(|(key, _)| key)
            .take_while(move |key| key.starts_with(base))
    }

    /// The complete steps, in order.
    fn complete(&self, slot: &str) -> Vec<u64> {
        let step = |key: &String| {
            key.strip_suffix("/commit_success.txt")?.rsplit('/').next()?.parse().ok()
        };
        let mut steps: Vec<u64> = self.objects(&base(slot)).filter_map(step).collect();
        steps.sort_unstable();
        steps
    }

    fn is_training(&self, slot: &str) -> bool {
        let run = |node: &Node| {
            let runs = matches!(node.run.exit, None | Some(Exit::Crashed));
            node.run.boots > 0 && !node.run.stopped && runs
        };
        self.cloud
            .nodes
            .iter()
            .any(|((_, name), node)| name == slot && node.state == "READY" && run(node))
    }

    /// One more file of a checkpoint that will never be whole: jobs save at even steps.
    fn write_half(&mut self, slot: &str) {
        let step = self.newest_step(slot).unwrap_or(0) + 1;
        let written = wall(self.now, 0);
        let name = format!("bucket/{slot}/{step}/default/d/{}", self.now);
        self.tell(|| format!("{slot}: its job writes {name}"));
        self.cloud.objects.insert(name, Object::sized(64, written));
    }

    /// Somebody deletes the newest few checkpoints, complete or not; now and then all.
    pub fn take_checkpoints(&mut self, slot: &str) {
        let complete = self.complete(slot);
        let all = complete.is_empty() || self.rng.u32(0..4) == 0;
        let left =
            if all { None } else { complete.get(self.rng.usize(0..complete.len())).copied() };
        self.tell(|| {
            format!("{slot}: of its checkpoints {complete:?} those after {left:?} are deleted")
        });
        let taken = |key: &String| key.split('/').nth(2).and_then(|step| step.parse().ok()) > left;
        let taken: Vec<String> =
            self.objects(&base(slot)).filter(|key| taken(key)).cloned().collect();
        for key in taken {
            self.cloud.objects.remove(&key);
        }
    }

    /// Jobs keep their newest few checkpoints, and what they could not finish after them.
    fn tidy(&mut self, slot: &str, set_aside: Option<u64>) {
        let complete = self.complete(slot);
        let oldest = complete.len().checked_sub(KEPT).map(|at| complete[at]);
        let newest = complete.last().copied();
        let stays = |step: u64| {
            Some(step) == set_aside
                || (Some(step) >= oldest && complete.contains(&step))
                || Some(step) > newest
        };
        let step = |key: &String| key.split('/').nth(2).and_then(|step| step.parse().ok());
        let old: Vec<String> = self
            .objects(&base(slot))
            .filter(|key| !step(key).is_some_and(stays))
            .cloned()
            .collect();
        for key in old {
            self.cloud.objects.remove(&key);
        }
    }
}

/// What the names of a slot's objects begin with.
fn base(slot: &str) -> String {
    format!("bucket/{slot}/")
}

/// The product's lister over these objects.
fn list(
    keys: &[String],
    location: &CheckpointSettings,
    set_aside: Option<u64>,
) -> Result<CheckpointSurvey, Failure> {
    let store = InMemory::new();
    let (bucket, base) =
        location.uri.trim_start_matches("gs://").split_once('/').unwrap_or_default();
    let never_waits = || transient("memory never waits");
    for key in keys {
        let path = Path::from(key.trim_start_matches(bucket));
        let put = store.put(&path, "x".into()).now_or_never().ok_or_else(never_waits)?;
        put.map_err(|error: Error| transient(&error.to_string()))?;
    }
    let base = Path::from(base);
    let survey = survey_in(&store, &base, location, set_aside);
    let survey = survey.now_or_never().ok_or_else(never_waits)?;
    // The store in memory writes down the times of this machine.
    survey.map(|survey| CheckpointSurvey { written: None, ..survey })
}
