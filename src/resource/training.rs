//! A managed training job as the API returns it, and the reading of the slot that it fills.
//!
//! The reading is that of a node. Its identity is the job's id and creation time, its specification the
//! job's own. Google's service restarts workers and jobs by its own rules, so that a job that lives is well
//! or waits, and nothing is judged; one that has ended stays where it is, and its end is the condition
//! (`failed`). A slot is its *lineage*: the first job, and what was submitted again for it.
//!
//! Sources: aiplatform v1; "Vertex AI custom training".

pub mod body;
pub mod failed;
pub mod possible;

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::node::{fingerprint, known, text, time};
use crate::model::action::Reading;
use crate::model::condition::{Condition, Verdict};
use crate::model::failure::Failure;
use crate::model::filling::Deletable;
use crate::model::hold::HoldReason;
use crate::model::ids::RunOrder;
use crate::model::node::{NodeState, NodeView};
use crate::model::submission::{JobState, JobView};
use crate::model::training::{JobKind, NO_REGION, Named, Training};

impl JobView {
    /// The job and its state in words, of a tuning job with its trials.
    pub fn shown(&self) -> String {
        let state = self.state.as_str();
        let bare = state.strip_prefix("JOB_STATE_").filter(|_| self.kind == JobKind::Legacy);
        let trials = if self.kind == JobKind::Tuning { trials(&self.raw) } else { String::new() };
        format!("{} {} is {}{trials}", self.kind.noun(), self.id, bare.unwrap_or(state))
    }

    /// Reads a job of any kind. Only an unusable name is an error.
    pub fn parse(raw: Value) -> Result<JobView, String> {
        let text = |at: &str| raw.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let (kind, region, id) = match (text("/name"), text("/jobId")) {
            ("", "") => return Err("a job without \"name\"".to_owned()),
            ("", id) => (JobKind::Legacy, NO_REGION.to_owned(), id.to_owned()),
            (name, _) => place(name)?,
        };
        let labels = raw["labels"].as_object().into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.into())));
        let of_spec = |at: &str| text(&format!("/{}/{at}", kind.spec()));
        let of_pool = "workerPoolSpecs/0/machineSpec/machineType";
        let machine = if kind == JobKind::Legacy { "masterType" } else { of_pool };
        Ok(JobView {
            kind,
            id,
            region,
            state: state(&raw),
            created: time(&raw, "createTime"),
            // Of a job that has ended its last update is not before its end.
            ended: time(&raw, "endTime").or_else(|| time(&raw, "updateTime")),
            error: error(&raw),
            labels: labels.collect(),
            spot: of_spec("scheduling/strategy") == "SPOT",
            machine: of_spec(machine).to_owned(),
            raw: Arc::new(raw),
        })
    }
}

/// The kind, the region and the id of a job, from its resource name. The project is its number there, whatever was asked
/// for.
pub fn place(name: &str) -> Result<(JobKind, String, String), String> {
    let kinds = [JobKind::Custom, JobKind::Tuning];
    let parts: Vec<&str> = name.split('/').collect();
    if let ["projects", _, "locations", region, collection, id] = parts[..]
        && let Some(kind) = kinds.into_iter().find(|kind| kind.collection() == collection)
        && !(region.is_empty() || id.is_empty())
    {
        return Ok((kind, region.to_owned(), id.to_owned()));
    }
    Err(format!("job name {name:?} is not projects/P/locations/R/customJobs/ID"))
}

/// The state, by its text or its proto number. A legacy one lacks the prefix, and PREPARING is its word for PENDING.
fn state(raw: &Value) -> JobState {
    let Some(given) = raw.get("state") else { return JobState::Unspecified };
    let legacy = format!("JOB_STATE_{}", text(given).replace("PREPARING", "PENDING"));
    let state = known(JobState::WIRE, given).or_else(|| known(JobState::WIRE, &legacy.into()));
    state.unwrap_or_else(|| JobState::Other(text(given)))
}

/// The code and the words of an error; a legacy one has no code.
fn error(raw: &Value) -> Option<(i64, String)> {
    let error = raw.get("error").filter(|error| error.is_object());
    let code = error.and_then(|error| error["code"].as_i64()).unwrap_or_default();
    let words = error.map_or(&raw["errorMessage"], |error| &error["message"]);
    let words = words.as_str().unwrap_or_default().trim();
    (code != 0 || !words.is_empty()).then(|| (code, words.to_owned()))
}

/// The trials of a study that have ended, in words.
fn trials(raw: &Value) -> String {
    let all = || raw["trials"].as_array().into_iter().flatten();
    let in_state = |state: &str| all().filter(|trial| trial["state"] == *state).count();
    let (done, infeasible) = (in_state("SUCCEEDED"), in_state("INFEASIBLE"));
    // An int64 is text in an answer.
    let most = raw.get("maxTrialCount").map_or("?".to_owned(), text);
    format!(" ({done} of {most} trials done, {infeasible} infeasible)")
}

impl Training {
    /// Whether a job may be this slot's: by its lineage, once that is `known`, or as the config names it.
    pub fn may_be(&self, known: Option<&str>, job: &JobView) -> bool {
        let is_named = match &self.named {
            Named::Id(id) => job.id == *id,
            Named::DisplayName(name) => job.raw["displayName"] == *name,
            Named::Labels(all) => all.iter().all(|(key, value)| job.labels.get(key) == Some(value)),
        };
        self.may_have(job.kind) && (is_named || known == Some(job.lineage()))
    }
}

/// The lineage of a slot, from the members of its last reading, which are the lineage and the job: a slot that was never
/// read has its own name alone there.
pub fn lineage(members: &[String]) -> Option<&str> {
    members.first().filter(|_| members.len() > 1).map(String::as_str)
}

/// The reading of a slot from jobs that were read: those that live in its regions, or those that a GET
/// showed. `known` are the members of the slot's last reading; `now` is when the jobs were read.
pub fn reading(
    of: &Training,
    slot: &str,
    known: &[String],
    jobs: &[&JobView],
    now: Timestamp,
) -> Reading {
    let lineage = lineage(known);
    let mine = jobs.iter().copied().filter(|job| of.may_be(lineage, job));
    let (ended, live): (Vec<&JobView>, Vec<&JobView>) = mine.partition(|job| job.has_ended());
    // An end of another lineage is of no interest, once there is one.
    let ended = ended.into_iter().filter(|job| lineage.is_none_or(|of| job.lineage() == of));
    // Should a create that was lost have been carried out twice, the first one goes on.
    let oldest = live.iter().copied().min_by_key(|job| (job.created, &job.id));
    // A late twin that was cancelled is younger than the one that went on; of jobs of one name the newest counts.
    let rank = |job: &JobView| (job.attempt(), known.contains(&job.id), Reverse(job.created));
    let last = || ended.max_by_key(|job| (lineage.map(|_| rank(job)), job.created));
    let Some(job) = oldest.or_else(last) else { return Reading::Absent };
    let other = live.into_iter().find(|other| other.id != job.id);
    let (standing, failure) = match other {
        Some(other) => {
            let (noun, one, two) = (job.kind.noun(), &job.id, &other.id);
            let text = format!(
                "the {noun}s {one} and {two} live, and the config means both: name one by `job`, or cancel the other"
            );
            (Verdict::held(Condition::Unclear, text, HoldReason::Ambiguous), None)
        }
        None => standing(of, job, now),
    };
    match view(job, slot) {
        Ok(view) => Reading::Node(Arc::new(NodeView { standing: Some(standing), failure, ..view })),
        Err(why) => Reading::Unread(why),
    }
}

/// A job in the form of a node, but for its condition.
fn view(job: &JobView, slot: &str) -> Result<NodeView, String> {
    let run =
        (job.attempt() > 0).then(|| RunOrder { generation: job.attempt(), ..RunOrder::default() });
    let (runs, state) = (job.state == JobState::Running, job.state.as_str().to_owned());
    let can_go = job.has_ended() || JobState::CANCELLABLE.contains(&job.state);
    Ok(NodeView {
        state: if runs { NodeState::Ready } else { NodeState::Other(state.clone()) },
        own_state: Some(state),
        accelerator: job.machine.clone(),
        spot: job.spot,
        owner: job.nonce().cloned(),
        slot: job.nonce().map(|_| slot.to_owned()),
        run,
        members: vec![job.lineage().to_owned(), job.id.clone()],
        deletable: if can_go { Deletable::Now } else { Deletable::NotNow },
        ended: job.has_ended(),
        fingerprint: fingerprint(&job.raw),
        outgrown: failed::outgrown(job),
        ..NodeView::parse(body::as_node(job, slot))?
    })
}

/// The condition that a job's state gives, and its failure where that decides what follows.
fn standing(of: &Training, job: &JobView, now: Timestamp) -> (Verdict, Option<Failure>) {
    use Condition::*;
    use JobState::*;
    let says = |condition| (Verdict::new(condition, job.shown()), None);
    match job.state {
        Queued | Pending => says(Waiting),
        Running => says(Healthy),
        Succeeded => says(Finished),
        Failed | Expired | Cancelled => failed::standing(of, job, now),
        Cancelling | Paused | Updating | PartiallySucceeded => {
            let text = format!("{}: that is left alone", job.shown());
            (Verdict::held(Stopped, text, HoldReason::Stopped), None)
        }
        Unspecified | Other(_) => says(Unclear),
    }
}
