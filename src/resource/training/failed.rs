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
use crate::model::time::elapsed;
use crate::model::training::Training;

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
/// A program's words about the memory of its chips or GPUs: its own fault, and no machine's.
const CHIPS_MEMORY: [&str; 2] =
    ["ran out of memory in memory space", "ran out of memory trying to allocate"];
/// Of a Spot job the second one says that its machines were taken back.
const CAPACITY: [&str; 2] = ["resources are insufficient in region", "stockout"];
const QUOTA: [&str; 2] = ["exceed quota limits", "quotas are exceeded"];

/// The class of an end that may pass, of a job that failed with this code and message; or why its program fails, and would
/// again.
pub fn end(code: i64, message: &str) -> Result<FailureClass, String> {
    let lower = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|words| lower.contains(words));
    let codes = exit_codes(&lower);
    match codes.iter().find(|code| !TRANSIENT.contains(code)) {
        Some(code) => Err(format!("its program exited with {code}")),
        None if !codes.is_empty() => Ok(FailureClass::TransientExit),
        // Killed, or never started: the code is no number there.
        None if says(&EXITS) || says(&["starterror"]) => Err("its program failed".to_owned()),
        None if says(&CAPACITY) => Ok(FailureClass::StockOut),
        None if code == EXHAUSTED || says(&QUOTA) => Ok(FailureClass::Quota),
        // Also what Google calls an internal error: sometimes capacity in disguise.
        None => Ok(FailureClass::Internal),
    }
}

/// The machine type of a replica that ran out of memory, where the end says which that was; else the first one's. None of
/// another end.
pub fn outgrown(job: &JobView) -> Option<String> {
    let (_, message) = job.error.as_ref()?;
    let message =
        CHIPS_MEMORY.iter().fold(message.to_lowercase(), |text, own| text.replace(own, ""));
    let at = MEMORY.iter().filter_map(|words| message.find(words)).min()?;
    let (_, replica) = message[..at].rsplit_once("replica ").unwrap_or_default();
    let role = match replica.split([' ', '-']).next().unwrap_or_default() {
        "ps" => "parameterServerType".to_owned(),
        role @ ("master" | "worker" | "evaluator") => format!("{role}Type"),
        pool => pool.replace("workerpool", "workerPoolSpecs/") + "/machineSpec/machineType",
    };
    let machine = job.raw.pointer(&format!("/{}/{role}", job.kind.spec()));
    Some(machine.and_then(Value::as_str).unwrap_or(&job.machine).to_owned())
}

/// The exit codes of all replicas that a message names.
fn exit_codes(lower: &str) -> Vec<i64> {
    let after = EXITS.iter().flat_map(|words| lower.split(words).skip(1));
    let digits = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).collect() };
    after.filter_map(|text| digits(text).parse().ok()).collect()
}

/// The condition of a job that has ended without success, and the failure that decides what follows.
pub fn standing(of: &Training, job: &JobView, now: Timestamp) -> (Verdict, Option<Failure>) {
    let is = job.shown();
    let held = |condition, text: String, hold| (Verdict::held(condition, text, hold), None);
    let again = |condition, text: String, failure: Option<Failure>| {
        if !of.takes_consent(job.kind) {
            return (Verdict::new(condition, text), failure);
        }
        let then = "a new submission begins its study with the first trial, and pays finished ones again: `retry` submits it, restart_study = true does so each time";
        held(Condition::JobFailed, format!("{text}; {then}"), HoldReason::JobFailed)
    };
    let error = job.error.as_ref().map(|(code, message)| (*code, message.as_str()));
    let cancelled = job.state == JobState::Cancelled;
    // unverified: a person's cancel of a legacy job has no errorMessage, as that of its time limits has.
    // settled by: gcloud ai-platform jobs cancel JOB, then gcloud ai-platform jobs describe JOB
    // The service's own cancel has words; a person's has a code of its own, or no error.
    let by_service = error.is_some_and(|(code, words)| code != CANCELLED && !words.is_empty());
    if job.state == JobState::Expired || cancelled && by_service {
        let said = error.map_or(String::new(), |(_, text)| format!(": {text}"));
        if of.outlives_timeout {
            return again(Condition::Terminated, format!("{is}{said}"), None);
        }
        let text = format!(
            "{is}{said}; it ran into the time limit of its `scheduling`. `retry` submits it again, with the same limit"
        );
        return held(Condition::Stopped, text, HoldReason::TimeLimit);
    }
    let fresh = job.ended.is_some_and(|ended| elapsed(ended, now) < ERROR_WITHIN);
    if cancelled && (error.is_some() || !fresh) {
        let text = format!("{is}; `retry` submits it again");
        return held(Condition::Stopped, text, HoldReason::Stopped);
    }
    if error.is_none() && (fresh || job.ended.is_none()) {
        let text = format!(
            "{is}, and its error is not there yet: it is waited for until 5 min after its end, or for as long as the API tells no time of its end"
        );
        return (Verdict::new(Condition::Going, text), None);
    }
    let (code, message) = error.unwrap_or((0, "the API gives no reason"));
    let why = format!("code {code}: {message}");
    let text = format!("{is} with {why}");
    let own = |why: &str| {
        let text = format!("{text}; {why}: fix that, then `retry` submits it again");
        held(Condition::JobFailed, text, HoldReason::JobFailed)
    };
    let failed = |text, class| {
        again(Condition::RequestFailed, text, Some(Failure::new(class, why.as_str())))
    };
    let taken_back = job.spot && !message.to_lowercase().contains(CAPACITY[0]);
    match (outgrown(job), end(code, message)) {
        (Some(machine), _) => match of.machine_after(&machine) {
            Some(next) => {
                let text = format!("{text}; next it runs on {next} (next_machine)");
                failed(text, FailureClass::OutOfMemory)
            }
            None if machine.is_empty() => own("it ran out of memory"),
            None => own(&format!("it ran out of memory on {machine}")),
        },
        (None, Err(why)) => own(&why),
        (None, Ok(FailureClass::StockOut)) if taken_back => again(Condition::Preempted, text, None),
        (None, Ok(class)) => failed(text, class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_message_has_its_meaning() {
        use FailureClass::*;
        let own = |code: i64| Err(format!("its program exited with {code}"));
        let exit = "The replica workerpool0-0 exited with a non-zero status of";
        for (code, message, expected) in [
            (3, format!("{exit} 1. Termination reason: Error. \nTraceback"), own(1)),
            (3, format!("{exit} 128. Termination reason: StartError."), own(128)),
            (3, format!("{exit} 139. "), Ok(TransientExit)),
            (3, format!("{exit} 134. {exit} 6. "), Ok(TransientExit)),
            // Permanent outranks what may pass, wherever it stands.
            (3, format!("{exit} 134. The replica workerpool1-3 exited with a non-zero status of 2."), own(2)),
            (0, "Replica exited with a non-zero status code 1".into(), own(1)),
            (3, format!("{exit} -11."), Err("its program failed".to_owned())),
            (3, "Termination reason: StartError.".into(), Err("its program failed".to_owned())),
            (8, "Resources are insufficient in region: us-central1. Please try a different region or use a different accelerator".into(), Ok(StockOut)),
            (0, "STOCKOUT".into(), Ok(StockOut)),
            (8, "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia_a100_gpus".into(), Ok(Quota)),
            (0, "The following quotas are exceeded: CustomModelTrainingT4GPUsPerProjectPerRegion".into(), Ok(Quota)),
            (13, "Internal error occurred for the current attempt".into(), Ok(Internal)),
            (2, "words that no rule knows".into(), Ok(Internal)),
        ] {
            assert_eq!(end(code, &message), expected, "{message}");
        }
    }

    #[test]
    fn memory_that_ran_out_outranks_an_exit_but_for_that_of_chips() {
        let failed = |spot: &str, message: &str| {
            let pools = json!([{"machineSpec": {"machineType": "m1"}}]);
            let spec = json!({"workerPoolSpecs": pools, "scheduling": {"strategy": spot}});
            let name = "projects/1/locations/r/customJobs/7";
            let error = json!({"code": 3, "message": message});
            let job =
                json!({"name": name, "state": "JOB_STATE_FAILED", "jobSpec": spec, "error": error});
            let of = Training { next_machine: vec!["m2".into()], ..Training::default() };
            let job = JobView::parse(job).unwrap();
            let (verdict, failure) = standing(&of, &job, Timestamp::UNIX_EPOCH);
            (verdict.condition, failure.map(|failure| failure.class))
        };
        let outgrown = (Condition::RequestFailed, Some(FailureClass::OutOfMemory));
        for message in [
            "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137",
            "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)",
        ] {
            assert_eq!(failed("STANDARD", message), outgrown, "{message}");
        }
        for chips in [
            "The replica workerpool0-0 exited with a non-zero status of 1. Ran out of memory in memory space hbm.",
            "The replica workerpool0-0 exited with a non-zero status of 1. Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB",
        ] {
            assert_eq!(failed("STANDARD", chips), (Condition::JobFailed, None));
        }
        let capacity = (Condition::RequestFailed, Some(FailureClass::StockOut));
        assert_eq!(failed("STANDARD", "STOCKOUT"), capacity);
        assert_eq!(failed("SPOT", "STOCKOUT"), (Condition::Preempted, None));
        let none = "Resources are insufficient in region: us-central1 (STOCKOUT)";
        assert_eq!(failed("SPOT", none), capacity);
    }
}
