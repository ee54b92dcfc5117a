//! Holds: decisions not to act, with their reason. Names are label values of `recoveries_held`.

use super::names::named;

named! {
/// Why nothing is done about a slot although something might be.
HoldReason {
    /// `dry_run = true`.
    DryRun = "dry_run",
    /// The label `tpu-watchdog=off`.
    OptedOut = "opted_out",
    /// The node's metadata names another owner.
    OtherOwner = "other_owner",
    /// The node belongs to a queued resource.
    QueuedResource = "queued_resource",
    /// The node is part of a multislice.
    Multislice = "multislice",
    /// The node was made by API v1.
    ApiV1 = "api_v1",
    /// Never seen, and `[tpu.create]` does not say enough to create it.
    NeverSeen = "never_seen",
    /// There is no specification that a create would accept.
    NoSpecification = "no_specification",
    /// Another client stopped or hid the node.
    Stopped = "stopped",
    /// Another client deletes the node.
    Deleting = "deleting",
    /// The last read says nothing that is understood.
    Unclear = "unclear",
    /// `when_missing = "hold"`.
    Missing = "missing",
    /// A symptom without a rule that would act on it.
    Degraded = "degraded",
    /// As many judged slots are in recovery as `max_unavailable` allows.
    MaxUnavailable = "max_unavailable",
    /// `max_judged_recreates_per_hour` is used up.
    JudgedPerHour = "judged_per_hour",
    /// The zone and type met a stock-out: a doubtful TPU in hand is worth more than none.
    ZoneShort = "zone_short",
    /// Replacements of this zone and type fail: first of all a reason to look at what is created.
    ReplacementsFail = "replacements_fail",
    /// It is one of the hours in which judged slots are left alone.
    QuietHours = "quiet_hours",
    /// Run after run of the job made no new step.
    NoProgress = "no_progress",
    /// The slot's attempts are used up.
    Attempts = "attempts",
    /// Preemptions and terminations in the window are used up.
    Preemptions = "preemptions",
    /// Waiting after a refused or failed create.
    Backoff = "backoff",
    /// The create limit of the project.
    CreateLimit = "create_limit",
    /// The checkpoint location could not be listed.
    CheckpointUnreadable = "checkpoint_unreadable",
    /// The newest complete checkpoint is older than the recorded one.
    CheckpointWentBack = "checkpoint_went_back",
    /// No beacon was ever received in this project, or guest attributes can no longer be read:
    /// silence proves nothing.
    NoBeaconChannel = "no_beacon_channel",
    /// The supervisor's budget of restarts is used up.
    JobFailed = "job_failed",
    /// A host can't be set up, and the job waits for it.
    SetupFailed = "setup_failed",
    /// A process that is not the job's holds the chips of a host.
    ChipsBusy = "chips_busy",
    /// A delete of ours failed three times or is not done in its time.
    DeleteFailed = "delete_failed",
    /// Paused by an operator.
    Paused = "paused",
    /// The storm breaker is open.
    Breaker = "breaker",
    /// The job ended with 0 sooner than a finished job can: it may never have run.
    EndedEarly = "ended_early",
    /// A run of the job ended, and its order names an older checkpoint than it had reached.
    StaleOrder = "stale_order",
    /// Neither a create's operation nor its node tells how it ended, although it is long over.
    CreateUnresolved = "create_unresolved",
    /// A create could certainly not follow: a permission is missing, or its checkpoints are gone.
    CannotCreate = "cannot_create",
    /// A queued resource failed for a reason that another one would meet as well.
    RequestRefused = "request_refused",
    /// A call was decided three times running and not sent; it is tried all the same.
    NotSent = "not_sent",
    /// The GET that has to confirm a delete takes longer than it may be old (S1).
    SlowGet = "slow_get",
    /// The node was deleted on purpose: it is created again by `retry` or `recreate` alone.
    Deleted = "deleted",
    /// `forget` called its create off.
    Forgotten = "forgotten",
    /// A fleet of one or two: the second judged recreate of a slot within a day waits an hour.
    Repeated = "repeated",
    /// Another slot tries first whether the pool has capacity again.
    WaitsForProbe = "waits_for_probe",
    /// A newer run order was refused, or its workers do not follow it.
    CannotRelaunch = "cannot_relaunch",
    /// A quota of managed training is short.
    Quota = "quota",
    /// A managed training job ran into its own time limit.
    TimeLimit = "time_limit",
    /// The config asks for what a managed training job can't have.
    NotPossible = "not_possible",
    /// Several jobs live that the config means.
    Ambiguous = "ambiguous",
    /// The safety check refused a plan.
    Refused = "refused",
}
}

impl HoldReason {
    /// Whether an operator must look: the difference between `hold` and `escalate`.
    pub fn needs_a_person(self) -> bool {
        matches!(
            self,
            HoldReason::Attempts
                | HoldReason::ReplacementsFail
                | HoldReason::NoProgress
                | HoldReason::Preemptions
                | HoldReason::NoBeaconChannel
                | HoldReason::JobFailed
                | HoldReason::SetupFailed
                | HoldReason::ChipsBusy
                | HoldReason::DeleteFailed
                | HoldReason::CheckpointWentBack
                | HoldReason::Breaker
                | HoldReason::EndedEarly
                | HoldReason::StaleOrder
                | HoldReason::CreateUnresolved
                | HoldReason::RequestRefused
                | HoldReason::CannotRelaunch
                | HoldReason::TimeLimit
                | HoldReason::NotPossible
                | HoldReason::Ambiguous
                | HoldReason::Refused
        )
    }
}
