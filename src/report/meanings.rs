//! The meaning of each hold and each condition, with the next step for an operator: the text of
//! `explain`.

use crate::model::condition::Condition;
use crate::model::hold::HoldReason;

/// A name in plain words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// The meaning.
    pub means: &'static str,
    /// The next step.
    pub next: &'static str,
}

pub(super) const fn says(means: &'static str, next: &'static str) -> Meaning {
    Meaning { means, next }
}

/// Why a slot is held.
pub fn hold(reason: HoldReason) -> Meaning {
    let row = HOLDS.iter().find(|(of, _)| *of == reason);
    row.map_or(says("A hold of another version.", "See docs/runbook.md."), |(_, meaning)| *meaning)
}

/// The holds. A test asks for each of them.
const HOLDS: &[(HoldReason, Meaning)] = &[
    (
        HoldReason::DryRun,
        says(
            "dry_run = true in the config: the watchdog decides and reports everything, and changes nothing.",
            "Take it out of the config and reload (SIGHUP, or systemctl reload tpu-watchdog).",
        ),
    ),
    (
        HoldReason::OptedOut,
        says(
            "The TPU carries the label tpu-watchdog=off, by which an operator keeps it from the watchdog.",
            "Remove the label from the TPU. A create that it holds is released by `resume SLOT`.",
        ),
    ),
    (
        HoldReason::OtherOwner,
        says(
            "The TPU's metadata names another watchdog as its owner (tpu-watchdog-owner): another state, or a state that was lost.",
            "If it is yours: `resume SLOT --adopt`. If another watchdog runs, take the TPU out of one of the two configs.",
        ),
    ),
    (
        HoldReason::QueuedResource,
        says(
            "The TPU belongs to a queued resource, and can only be replaced through it.",
            "Say `queued_resource = \"ID\"` in the slot's config: it is then replaced as that request.",
        ),
    ),
    (
        HoldReason::Multislice,
        says(
            "The TPU is part of a multislice, or its queued resource asks for several kinds of slices.",
            "Set queued_resource in its [[tpu]]. Recreate by hand what asks for several kinds.",
        ),
    ),
    (
        HoldReason::ApiV1,
        says(
            "The TPU was made by API v1 (TPU Node), which v2 can't create again.",
            "Move to a TPU VM.",
        ),
    ),
    (
        HoldReason::NeverSeen,
        says(
            "No TPU of this name was ever seen, and [tpu.create] does not say enough to create one.",
            "Correct name and zone (`plan` names the TPUs of the zone), or describe the TPU in [tpu.create].",
        ),
    ),
    (
        HoldReason::NoSpecification,
        says(
            "The specification of the TPU would be refused by a create, so that nothing is deleted.",
            "`status SLOT` says what is wrong with it; correct it in [tpu.create].",
        ),
    ),
    (
        HoldReason::Stopped,
        says(
            "The TPU was stopped or hidden; a stopped TPU is never deleted.",
            "Start it (gcloud compute tpus tpu-vm start) to have it protected again.",
        ),
    ),
    (
        HoldReason::Deleting,
        says(
            "Another client has been deleting the TPU for longer than grace.deleting, also after the watchdog sent a delete of its own.",
            "Delete it by hand (gcloud compute tpus tpu-vm delete), or ask who started it.",
        ),
    ),
    (
        HoldReason::Unclear,
        says(
            "The last read failed, or showed a state that is not known. Such a read is never evidence of anything.",
            "A single read needs nothing. If it persists, run `doctor`; the reason quotes the API's answer.",
        ),
    ),
    (
        HoldReason::Missing,
        says(
            "The TPU is gone, and when_missing = \"hold\" keeps it from being created again.",
            "`recreate SLOT` creates it, `forget SLOT` keeps it gone.",
        ),
    ),
    (
        HoldReason::Degraded,
        says(
            "The API reports a symptom of the TPU that no rule acts on: informational only.",
            "Check whether the job makes progress; `recreate SLOT` replaces the TPU.",
        ),
    ),
    (
        HoldReason::MaxUnavailable,
        says(
            "As many slots are in recovery as policy.max_unavailable allows; this one waits for its turn.",
            "Nothing; or raise max_unavailable.",
        ),
    ),
    (
        HoldReason::JudgedPerHour,
        says(
            "policy.max_judged_recreates_per_hour is used up: that many sick TPUs in an hour suggest a common cause.",
            "Find what they have in common; recreates resume as the hour slides.",
        ),
    ),
    (
        HoldReason::ZoneShort,
        says(
            "Creates of this zone and type are refused for lack of capacity, so the sick TPU is kept: it could not be replaced now.",
            "Nothing: one is tried every two hours. More zones in `zones` help.",
        ),
    ),
    (
        HoldReason::ReplacementsFail,
        says(
            "Replacements of two TPUs of this zone and type failed to boot, or to make progress, within an hour.",
            "Find the cause (startup script, image, network), then `breaker reset`.",
        ),
    ),
    (
        HoldReason::QuietHours,
        says(
            "policy.quiet_hours leaves sick TPUs alone at this time. Lost ones are created again all the same.",
            "Nothing; `recreate SLOT` works at any time.",
        ),
    ),
    (
        HoldReason::NoProgress,
        says(
            "Run after run of the job made no new step, or saved none, although it was started again each time.",
            "`logs SLOT` shows how they ended; find the cause, or name its `checkpoint` where it saves elsewhere, then `retry SLOT`.",
        ),
    ),
    (
        HoldReason::Attempts,
        says(
            "The slot was recreated attempts.max times without progress in between: another one would not help.",
            "Find the cause (startup script, image, quota), then `retry SLOT`.",
        ),
    ),
    (
        HoldReason::Preemptions,
        says(
            "The slot was preempted attempts.preemptions times within attempts.window.",
            "It goes on as the window slides. Another zone, or on-demand capacity; or raise attempts.preemptions.",
        ),
    ),
    (
        HoldReason::Backoff,
        says(
            "The last call was refused or failed, and the next one waits for its time.",
            "Nothing if capacity or quota is missing: `status` says when it is tried again; more zones in `zones` help. If the API refuses a \
             field, a permission or the billing, mend what the text names, reload, then `retry SLOT`.",
        ),
    ),
    (
        HoldReason::CreateLimit,
        says(
            "This watchdog has sent as many creates in the last minute as it allows itself (about 60).",
            "Nothing: it goes on within a minute.",
        ),
    ),
    (
        HoldReason::CheckpointUnreadable,
        says(
            "The checkpoint location could not be listed, or its content is not understood: a job that is ended or started now could \
             lose its work.",
            "The reason names the command that grants the right, or the layout to name in `checkpoint`.",
        ),
    ),
    (
        HoldReason::CheckpointWentBack,
        says(
            "The newest complete checkpoint is older than the one that was recorded: something removed it.",
            "Put it back, or say from which step to go on: `retry SLOT --from STEP` (0: whatever is there).",
        ),
    ),
    (
        HoldReason::NoBeaconChannel,
        says(
            "No supervisor has ever reported in this project, or guest attributes can't be read now, so silence proves nothing.",
            "Allow guest attributes (organisation policy compute.disableGuestAttributesAccess), or look at the TPU by hand.",
        ),
    ),
    (
        HoldReason::JobFailed,
        says(
            "The job ended again and again without a new step, or with an end that a new start does not cure.",
            "`logs SLOT` shows how; fix the job, then `relaunch SLOT` (after a change of the config: `recreate SLOT`).",
        ),
    ),
    (
        HoldReason::SetupFailed,
        says(
            "A host could not be set up for `grace.setup` (30 minutes), and the job waits for it: a startup script that fails, most of the time.",
            "The reason has the last lines. Correct the script; the host tries again by itself, every 15 minutes by now.",
        ),
    ),
    (
        HoldReason::ChipsBusy,
        says(
            "A process that is not the job's holds the chips of a host; it is waited for, never killed.",
            "The reason names it. End it on that host, and the job starts.",
        ),
    ),
    (
        HoldReason::DeleteFailed,
        says(
            "A delete was refused three times, or has not ended in its time.",
            "Delete the TPU by hand (gcloud compute tpus tpu-vm delete; a training job: gcloud ai custom-jobs cancel), or ask Google's support; the create follows by itself.",
        ),
    ),
    (
        HoldReason::Paused,
        says(
            "An operator paused the slot, or all of them: nothing is begun on it.",
            "`resume SLOT`, or `resume --all`.",
        ),
    ),
    (
        HoldReason::Breaker,
        says(
            "The storm breaker is open: so many slots were judged at once that the monitoring is suspected first.",
            "Is it a maintenance of the zone, an outage of the API, a change of yours? When they really are lost: `breaker reset`.",
        ),
    ),
    (
        HoldReason::EndedEarly,
        says(
            "The command ended with code 0 and nothing shows that it did its work: under 10 minutes, no new step, no new checkpoint.",
            "If the work is done: `done SLOT`. If not (a command in the background, a wrapper that swallows errors): fix it, then `retry SLOT`.",
        ),
    ),
    (
        HoldReason::StaleOrder,
        says(
            "The job reads CHECKPOINT_PATH, and its supervisor (before version 2) takes no newer order: a start would go back to the \
             checkpoint of the TPU's creation.",
            "`recreate SLOT`: the new TPU has the newest checkpoint and the present supervisor.",
        ),
    ),
    (
        HoldReason::CreateUnresolved,
        says(
            "A create was sent, and long after its time neither its operation nor the TPU shows how it ended.",
            "Look for the TPU (gcloud compute tpus tpu-vm describe), and delete a leftover by hand; the watchdog continues once it can read the operation or the TPU.",
        ),
    ),
    (
        HoldReason::CannotCreate,
        says(
            "No create could follow a delete, so the sick TPU is kept: a permission is missing, or the bucket is gone.",
            "The reason has the command that grants it; `doctor` checks all of them.",
        ),
    ),
    (
        HoldReason::RequestRefused,
        says(
            "Its queued resource failed for a reason that waiting does not end, and was removed; no other one is asked for.",
            "The reason has Google's words. Find the cause (the config, a permission, a closed queue), then `retry SLOT`.",
        ),
    ),
    (
        HoldReason::NotSent,
        says(
            "The watchdog decided on a call several times, but it never left this machine; it keeps trying.",
            "The reason says why: most of the time the state is slow, or credentials are missing.",
        ),
    ),
    (
        HoldReason::SlowGet,
        says(
            "The GET that must confirm a delete takes longer than its maximum age (5 s), so nothing is deleted.",
            "Look at the network between this machine and the API.",
        ),
    ),
    (
        HoldReason::Deleted,
        says(
            "The TPU was deleted on purpose: a working TPU turned to DELETING, or the zone's operations name a delete that is not ours.",
            "`recreate SLOT` creates it again, `forget SLOT` keeps it gone.",
        ),
    ),
    (
        HoldReason::Forgotten,
        says(
            "An operator called the slot off (`forget`), or gave back what fills it (`release`).",
            "`retry SLOT` starts it again; or remove it from the config.",
        ),
    ),
    (
        HoldReason::Repeated,
        says(
            "In a fleet of one or two TPUs the second judged recreate within a day, without progress in between, waits an hour.",
            "Nothing; or `recreate SLOT`.",
        ),
    ),
    (
        HoldReason::WaitsForProbe,
        says(
            "Another slot tries first whether this zone and type have capacity again.",
            "Nothing: its turn comes by priority and age.",
        ),
    ),
    (
        HoldReason::CannotRelaunch,
        says(
            "The job should restart on its existing TPU, but its run order was refused, or its hosts do not follow it.",
            "The reason says which. Grant tpu.nodes.update (deploy/iam), or `recreate SLOT`.",
        ),
    ),
    (
        HoldReason::Quota,
        says(
            "A quota of managed training is short: a submission was refused, or the job failed for it.",
            "Raise the quota that the reason names, or end another job. The watchdog retries every hour.",
        ),
    ),
    (
        HoldReason::TimeLimit,
        says(
            "The training job ran into its own time limit (scheduling.timeout).",
            "`retry SLOT` submits it again from its newest checkpoint, with the same limit; on_timeout = \"resubmit\" does so each time.",
        ),
    ),
    (
        HoldReason::NotPossible,
        says(
            "The training job can't be submitted again as the config wants it: not with this capacity, or not in another region.",
            "Change strategy or regions, as the reason says.",
        ),
    ),
    (
        HoldReason::Ambiguous,
        says(
            "Several live training jobs have the display name, or the labels, that the config gives.",
            "Cancel all but one, or name one by `job`.",
        ),
    ),
    (
        HoldReason::Refused,
        says(
            "The independent safety check refused what the plan asked for: nothing is done.",
            "This is a defect of the watchdog; please report it with the lines of the log.",
        ),
    ),
];

/// How a slot was diagnosed.
pub fn condition(condition: Condition) -> Meaning {
    use Condition::*;
    match condition {
        Finished => says(
            "The job has done its work.",
            "Its TPU is billed until it is deleted (policy.on_success).",
        ),
        Stopped => hold(HoldReason::Stopped),
        Preempted => says(
            "Google took the TPU back (Spot or preemptible capacity): nothing is left to save.",
            "Nothing: it is created again as soon as there is capacity.",
        ),
        Terminated => says("The TPU was ended by the service.", "Nothing: it is created again."),
        RequestFailed | Going | Waiting => request(condition),
        Missing => says(
            "The TPU is in no complete listing, and a GET answers 404.",
            "Nothing: it is created again, unless it was deleted on purpose.",
        ),
        Deleting => hold(HoldReason::Deleting),
        Starting => {
            says("The TPU is being created, started or reimaged.", "Nothing, within grace.startup.")
        }
        SliceLost => says(
            "A queued resource that is granted has lost a slice of several, or its only node.",
            "Nothing: it is replaced as a whole after grace.slice, unless its nodes come back, the job makes progress, or a person deleted them.",
        ),
        FailedRepair => says(
            "State UNKNOWN: a repair of the TPU failed.",
            "Nothing: it is replaced after grace.failed_repair.",
        ),
        Maintenance => says(
            "Google maintains the machine. Most of the time it comes back.",
            "Nothing: it is replaced when grace.maintenance, or the announced window, is over.",
        ),
        Unresponsive => says(
            "Health TIMEOUT: Google's health checks get no answer from the TPU.",
            "Nothing: it is replaced after grace.unresponsive; while its hosts still report, after an hour its job is relaunched first.",
        ),
        RuntimeUnhealthy => says(
            "Health UNHEALTHY_TENSORFLOW: the software of the TPU VM is not healthy.",
            "Nothing: it is replaced after grace.runtime_unhealthy; while its hosts still report, after an hour its job is relaunched first.",
        ),
        Degraded => hold(HoldReason::Degraded),
        GangIncomplete => says(
            "The hosts of the slice do not each have an index of their own, so that no program can start on all of them.",
            "Nothing: they are rebooted once, then the TPU is replaced.",
        ),
        NeverBooted => says(
            "The TPU is READY, and a host never reported.",
            "Nothing: it is replaced after grace.boot.",
        ),
        SetupFailed => hold(HoldReason::SetupFailed),
        ChipsBusy => hold(HoldReason::ChipsBusy),
        ChipsMissing => says(
            "A host has fewer chips than others of its type had, or a process of an earlier run keeps them.",
            "Nothing: it is rebooted once, then the TPU is replaced.",
        ),
        Silent => says(
            "The heartbeat of a host stands still.",
            "Nothing: the TPU is replaced after grace.silent, unless its job makes progress.",
        ),
        JobStalled => stalled(),
        JobFailed => hold(HoldReason::JobFailed),
        Requested => says("An operator asked for it.", "Nothing."),
        Healthy => says("READY, and its health is HEALTHY or not given.", "Nothing."),
        Unclear => hold(HoldReason::Unclear),
    }
}

fn stalled() -> Meaning {
    says(
        "The training job runs, and has saved no complete checkpoint for `stall`.",
        "Nothing: it is cancelled, and submitted again from its newest checkpoint.",
    )
}

/// How a slot was diagnosed by the state of its queued resource.
fn request(condition: Condition) -> Meaning {
    match condition {
        Condition::RequestFailed => says(
            "The queued resource FAILED: it could not be filled, or what it asks for is refused. It holds quota until it is deleted.",
            "Nothing where capacity is short: it is removed, and asked for again. Otherwise fix what its error names.",
        ),
        Condition::Going => says(
            "The queued resource, or the node in it, is being deleted or suspended.",
            "Nothing: the watchdog decides when that has finished.",
        ),
        _ => says(
            "The queued resource waits for capacity, or its nodes are being made.",
            "Nothing: it keeps its place in the queue.",
        ),
    }
}
