//! The meaning of a managed training job's end: run again, or told to its people. The service has spent its own
//! restarts when a job shows FAILED.
//!
//! All sentences of a message are read, one for each replica that failed; one that is permanent outranks one that
//! may pass. Source: "Vertex AI serverless training, errors", and messages that were seen.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::condition::{Condition, Verdict};
use crate::model::failure::{Failure, FailureClass};
use crate::model::hold::HoldReason;
use crate::model::submission::{JobState, JobView};
use crate::model::time::{after, elapsed};
use crate::model::training::{JobKind, Training};

/// The error of a job that failed is there about a minute after its end, or will not come.
const ERROR_WITHIN: Duration = Duration::from_secs(300);
/// Exit codes that the service itself restarts a job for: SIGABRT and SIGSEGV, bare or of a container.
const TRANSIENT: [i64; 4] = [6, 11, 134, 139];
/// google.rpc.Code of a job that a person has cancelled, and of a quota.
const CANCELLED: i64 = 1;
const EXHAUSTED: i64 = 8;

/// Words of an exit, each followed by its code: of the service, and of pipelines.
const EXITS: [&str; 2] =
    ["exited with a non-zero status of ", "exited with a non-zero status code "];
const MEMORY: [&str; 3] = ["ran out of memory", "ran out-of-memory", "oomkilled"];
/// A program's words about the memory of its chips: its own fault, and no machine's.
const CHIPS_MEMORY: &str = "ran out of memory in memory space";
const CAPACITY: &str = "resources are insufficient in region";
const STOCKOUT: &str = "STOCKOUT";
const QUOTA: [&str; 2] = ["exceed quota limits", "quotas are exceeded"];

/// The meaning of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Its program fails, and would again.
    Own(String),
    /// The same machine would not do.
    OutOfMemory,
    /// Spot capacity was taken back.
    Preempted,
    /// Submitted again, as this class allows.
    Again(FailureClass),
}

/// The end of a job that failed with this code and message.
pub fn end(code: i64, message: &str, spot: bool) -> End {
    let lower = message.to_lowercase().replace(CHIPS_MEMORY, "");
    let says = |words: &[&str]| words.iter().any(|words| lower.contains(words));
    let codes = exit_codes(&lower);
    let own = codes.iter().find(|code| !TRANSIENT.contains(code));
    match own {
        _ if says(&MEMORY) => End::OutOfMemory,
        Some(code) => End::Own(format!("its program exited with {code}")),
        None if !codes.is_empty() => End::Again(FailureClass::TransientExit),
        None if says(&[CAPACITY]) => End::Again(FailureClass::StockOut),
        None if message.contains(STOCKOUT) && spot => End::Preempted,
        None if message.contains(STOCKOUT) => End::Again(FailureClass::StockOut),
        None if code == EXHAUSTED || says(&QUOTA) => End::Again(FailureClass::Quota),
        // Also what Google calls an internal error: sometimes capacity in disguise.
        None => End::Again(FailureClass::Internal),
    }
}

/// The service's words about its own cancel; a person's has the code of one, or none.
pub fn words(job: &JobView) -> Option<&str> {
    let (_, words) = job.error.as_ref().filter(|(code, _)| *code != CANCELLED)?;
    Some(words.trim()).filter(|words| !words.is_empty())
}

/// The machine type of the replica that ran out of memory, where the end says which that was; else the first one's.
pub fn outgrown(job: &JobView) -> String {
    let message = job.error.as_ref().map_or("", |(_, message)| message.as_str());
    let message = message.to_lowercase().replace(CHIPS_MEMORY, "");
    let at = MEMORY.iter().filter_map(|words| message.find(words)).min();
    let before = at.map_or("", |at| &message[..at]);
    let replica = before.rsplit_once("replica ").map_or("", |(_, replica)| replica);
    let role = match replica.split([' ', '-']).next().unwrap_or_default() {
        "ps" => "parameterServerType".to_owned(),
        role @ ("master" | "worker" | "evaluator") => format!("{role}Type"),
        pool => pool.replace("workerpool", "workerPoolSpecs/") + "/machineSpec/machineType",
    };
    let machine = job.raw.pointer(&format!("/{}/{role}", job.kind.spec()));
    machine.and_then(Value::as_str).unwrap_or(&job.machine).to_owned()
}

/// The exit codes of all replicas that a message names.
fn exit_codes(lower: &str) -> Vec<i64> {
    let after = EXITS.iter().flat_map(|words| lower.split(words).skip(1));
    let digits = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).collect() };
    after.filter_map(|text| digits(text).parse().ok()).collect()
}

/// The condition of a job that has ended without success, and the failure that decides what follows.
pub fn standing(of: &Training, job: &JobView, now: Timestamp) -> (Verdict, Option<Failure>) {
    let (verdict, failure) = meaning(of, job, now);
    let again = verdict.condition.kind().is_some();
    if !again || job.kind != JobKind::Tuning || of.restart_study {
        return (verdict, failure);
    }
    let text = format!(
        "{}; a new submission begins its study with the first trial, and pays finished ones again: `retry` submits it, and restart_study = true \
         does so each time",
        verdict.evidence
    );
    (Verdict::held(Condition::JobFailed, text, HoldReason::JobFailed), None)
}

fn meaning(of: &Training, job: &JobView, now: Timestamp) -> (Verdict, Option<Failure>) {
    let is = job.shown();
    let held = |condition, text: String, hold| (Verdict::held(condition, text, hold), None);
    let goes_on = |condition, text: String| (Verdict::new(condition, text), None);
    let again = |text: String, class, why: &str| {
        (Verdict::new(Condition::RequestFailed, text), Some(Failure::new(class, why)))
    };
    let error = job.error.as_ref().map(|(code, message)| (*code, message.trim()));
    let cancelled = job.state == JobState::Cancelled;
    if job.state == JobState::Expired || cancelled && words(job).is_some() {
        let said = error.map_or(String::new(), |(_, text)| format!(": {text}"));
        if of.outlives_timeout {
            return goes_on(Condition::Terminated, format!("{is}{said}"));
        }
        let text = format!(
            "{is}{said}; it ran into its own time limit ({}). `retry` submits it again, with the same limit",
            match job.kind {
                JobKind::Custom | JobKind::Tuning => "scheduling.timeout",
                JobKind::Legacy => "scheduling.maxRunningTime or maxWaitTime",
            }
        );
        return held(Condition::Stopped, text, HoldReason::TimeLimit);
    }
    let fresh = job.ended.is_some_and(|ended| elapsed(ended, now) < ERROR_WITHIN);
    if cancelled && (error.is_some() || !fresh) {
        let text = format!("{is}; `retry` submits it again");
        return held(Condition::Stopped, text, HoldReason::Stopped);
    }
    let Some((code, message)) = error else {
        if !fresh && job.ended.is_some() {
            let why = "the API gives no reason";
            return again(format!("{is} without an error"), FailureClass::Internal, why);
        }
        let until = job.ended.map_or_else(
            || "for as long as the API tells no time of its end".to_owned(),
            |ended| format!("until {:.0}", after(ended, ERROR_WITHIN)),
        );
        let text = format!("{is}, and its error is not there yet (waited for {until})");
        return goes_on(Condition::Going, text);
    };
    let (text, machine) = (format!("{is} with code {code}: {message}"), outgrown(job));
    let own = |why: &str| {
        let text = format!("{text}; {why}: fix that, then `retry` submits it again");
        held(Condition::JobFailed, text, HoldReason::JobFailed)
    };
    let why = format!("code {code}: {message}");
    match (end(code, message, job.spot), of.machine_after(&machine)) {
        (End::Own(why), _) => own(&why),
        (End::OutOfMemory, None) if machine.is_empty() => own("it ran out of memory"),
        (End::OutOfMemory, None) => own(&format!("it ran out of memory on {machine}")),
        (End::OutOfMemory, Some(next)) => {
            let text = format!("{text}; next it runs on {next} (next_machine)");
            again(text, FailureClass::OutOfMemory, &why)
        }
        (End::Preempted, _) => goes_on(Condition::Preempted, text),
        (End::Again(class), _) => again(text, class, &why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_has_its_meaning() {
        use FailureClass::*;
        let own = |text: &str| End::Own(text.to_owned());
        let exit = "The replica workerpool0-0 exited with a non-zero status of";
        for (code, message, spot, expected) in [
            (3, format!("{exit} 1. Termination reason: Error. \nTraceback"), false, own("its program exited with 1")),
            (3, format!("{exit} 128. Termination reason: StartError."), false, own("its program exited with 128")),
            (3, format!("{exit} 139. "), false, End::Again(TransientExit)),
            (3, format!("{exit} 134. {exit} 6. "), false, End::Again(TransientExit)),
            // Permanent outranks what may pass, wherever it stands.
            (3, format!("{exit} 134. The replica workerpool1-3 exited with a non-zero status of 2."), false, own("its program exited with 2")),
            (3, "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137".into(), false, End::OutOfMemory),
            (0, "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)".into(), false, End::OutOfMemory),
            (3, "The replica workerpool0-0 exited with a non-zero status of 1. Ran out of memory in memory space hbm.".into(), false,
                own("its program exited with 1")),
            (0, "Replica exited with a non-zero status code 1".into(), false, own("its program exited with 1")),
            (8, "Resources are insufficient in region: us-central1. Please try a different region or use a different accelerator".into(), false, End::Again(StockOut)),
            (0, "STOCKOUT".into(), true, End::Preempted),
            (0, "STOCKOUT".into(), false, End::Again(StockOut)),
            (8, "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia_a100_gpus".into(), false, End::Again(Quota)),
            (0, "The following quotas are exceeded: CustomModelTrainingT4GPUsPerProjectPerRegion".into(), false, End::Again(Quota)),
            (13, "Internal error occurred for the current attempt".into(), false, End::Again(Internal)),
            (2, "words that no rule knows".into(), false, End::Again(Internal)),
        ] {
            assert_eq!(end(code, &message, spot), expected, "{message}");
        }
    }
}
