//! Holds and conditions of managed training jobs in words, where they mean something else than for a TPU.

use super::meanings::{Meaning, says};
use crate::model::condition::Condition;
use crate::model::hold::HoldReason;

// One name on two lines, as a table: what it means, then the next step.
#[rustfmt::skip]
/// Why the job is not submitted again; none where it means the same as for a TPU.
pub fn hold(hold: HoldReason) -> Option<Meaning> {
    use HoldReason::*;
    Some(match hold {
        Stopped => says("The job was cancelled, paused or changed by a person, or is being cancelled: that is left alone.",
            "`retry SLOT` submits it again once it has ended."),
        Deleted => says("The job had ended before the watchdog knew of it, a person cancelled it, or its record was deleted.",
            "`retry SLOT` submits it again, `forget SLOT` leaves it alone."),
        Attempts => says("The job ended for reasons that may pass as often as `restart` of its slot allows, without a newer checkpoint; or its Spot capacity was taken back more often than attempts.preemptions allows.",
            "Find the cause in its logs (`logs SLOT`), then `retry SLOT`."),
        JobFailed => says("The job's own program failed, so that it would fail again.",
            "Fix it (`logs SLOT`), then `retry SLOT`."),
        NoSpecification => says("The specification of the job would be refused by a submission.",
            "`status SLOT` says what is wrong with it; submit a corrected job under the same name."),
        Unclear => says("The last read failed, or showed a state that is not known; or the next lists have to show that no job of its lineage lives.",
            "A single read needs nothing. If it persists, run `doctor`; the reason quotes the API's answer."),
        NeverSeen => says("No job that the config means was ever seen in its regions, and nothing describes one to submit.",
            "Correct its name or region, or name `create` to have it submitted; `plan` says what it looks for."),
        Deleting => says("The job's cancel, or the error of its end, has not come for longer than an hour, which should take minutes.",
            "Look at it with the command of the reason; `retry SLOT` submits it again once it has ended."),
        OptedOut => says("The job carries the label tpu-watchdog=off, by which its people keep it from the watchdog.",
            "`retry SLOT` submits it again once it has ended; without the label, leave that out of the next one."),
        QuietHours => says("policy.quiet_hours cancels no job that hangs at this time. Jobs that have ended are submitted again all the same.",
            "Nothing; cancel it by hand, and it is submitted again."),
        _ => return None,
    })
}

#[rustfmt::skip]
/// How the job was diagnosed; none where it means the same as for a TPU.
pub fn condition(condition: Condition) -> Option<Meaning> {
    use Condition::*;
    Some(match condition {
        Finished => says("The job has succeeded.", "Nothing: it costs nothing any longer."),
        Preempted => says("Google took the job's Spot capacity back, more often than the service restarts it.",
            "Nothing: it is submitted again."),
        Terminated => says("The job ran into its own time limit, and on_timeout = \"resubmit\".",
            "Nothing: it is submitted again, with the same limit."),
        RequestFailed => says("The job ended for a reason that may pass: capacity, a quota, an internal error, or an exit that is tried once more.",
            "Nothing: it is submitted again from its own specification, as often as `restart` allows."),
        Going => says("The job has ended and its error is not there yet.",
            "Nothing: the error comes about a minute later, and is waited for for 5 minutes."),
        Waiting => says("The job is queued, or its machines are being made.",
            "Nothing. If it waits for hours, look at the quota and capacity of its region."),
        Missing => says("No region of the slot lists the job, and reads by its id answer 404.",
            "Nothing: it is submitted from `create`, where the config has that."),
        Healthy => says("The job runs.", "Nothing."),
        Stopped => return hold(HoldReason::Stopped),
        JobFailed => return hold(HoldReason::JobFailed),
        Unclear => return hold(HoldReason::Unclear),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_never_told_what_to_do_with_a_tpu() {
        let holds = HoldReason::ALL.into_iter().filter_map(hold);
        let all: Vec<Meaning> =
            holds.chain(Condition::ALL.into_iter().filter_map(condition)).collect();
        assert!(all.len() > 20);
        for Meaning { means, next } in all {
            for words in ["TPU", "recreate", "queued resource"] {
                assert!(!means.contains(words) && !next.contains(words), "{means} {next}");
            }
        }
    }
}
