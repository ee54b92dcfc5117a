//! Holds: decisions not to act, with their reason. Names are label values of `recoveries_held`.

use std::fmt;

/// Why nothing is done about a slot although something might be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HoldReason {
    /// `dry_run = true`.
    DryRun,
    /// The label `tpu-watchdog=off`.
    OptedOut,
    /// The node's metadata names another owner.
    OtherOwner,
    /// The node belongs to a queued resource.
    QueuedResource,
    /// The node is part of a multislice.
    Multislice,
    /// The node was made by API v1.
    ApiV1,
    /// Never seen, and `[tpu.create]` does not say enough to create it.
    NeverSeen,
    /// There is no specification that a create would accept.
    NoSpecification,
    /// Somebody stopped or hid the node.
    Stopped,
    /// Somebody deletes the node.
    Deleting,
    /// The last read says nothing that is understood.
    Unclear,
    /// `when_missing = "hold"`.
    Missing,
    /// A symptom without a rule that would act on it.
    Degraded,
    /// As many judged slots are in recovery as `max_unavailable` allows.
    MaxUnavailable,
    /// `max_judged_recreates_per_hour` is used up.
    JudgedPerHour,
    /// The zone and type met a stock-out: a doubtful TPU in hand is worth more than none.
    ZoneShort,
    /// Replacements of this zone and type fail: first of all a reason to look at what is created.
    ReplacementsFail,
    /// It is one of the hours in which judged slots are left alone.
    QuietHours,
    /// Run after run of the job made no new step.
    NoProgress,
    /// The slot's attempts are used up.
    Attempts,
    /// Preemptions and terminations in the window are used up.
    Preemptions,
    /// Waiting after a refused or failed create.
    Backoff,
    /// The create limit of the project.
    CreateLimit,
    /// The checkpoint location could not be listed.
    CheckpointUnreadable,
    /// The newest complete checkpoint is older than the recorded one.
    CheckpointWentBack,
    /// No beacon was ever received in this project, or guest attributes can't be read any more: silence proves nothing.
    NoBeaconChannel,
    /// The supervisor's budget of restarts is used up.
    JobFailed,
    /// A delete of ours failed three times or is not done in its time.
    DeleteFailed,
    /// Paused by a person.
    Paused,
    /// The storm breaker is open.
    Breaker,
    /// The job ended with 0 sooner than a finished job can: it may never have run.
    EndedEarly,
    /// A run of the job ended, and its order names an older checkpoint than it had reached.
    StaleOrder,
    /// The node has a `startup-script-url`, beside which the supervisor can't be run in order.
    StartupScriptUrl,
    /// Neither a create's operation nor its node tells how it ended, although it is long over.
    CreateUnresolved,
    /// The safety check refused a plan.
    Refused,
}

impl HoldReason {
    /// Every reason.
    pub const ALL: [HoldReason; 35] = [
        HoldReason::DryRun,
        HoldReason::OptedOut,
        HoldReason::OtherOwner,
        HoldReason::QueuedResource,
        HoldReason::Multislice,
        HoldReason::ApiV1,
        HoldReason::NeverSeen,
        HoldReason::NoSpecification,
        HoldReason::Stopped,
        HoldReason::Deleting,
        HoldReason::Unclear,
        HoldReason::Missing,
        HoldReason::Degraded,
        HoldReason::MaxUnavailable,
        HoldReason::JudgedPerHour,
        HoldReason::ZoneShort,
        HoldReason::ReplacementsFail,
        HoldReason::QuietHours,
        HoldReason::NoProgress,
        HoldReason::Attempts,
        HoldReason::Preemptions,
        HoldReason::Backoff,
        HoldReason::CreateLimit,
        HoldReason::CheckpointUnreadable,
        HoldReason::CheckpointWentBack,
        HoldReason::NoBeaconChannel,
        HoldReason::JobFailed,
        HoldReason::DeleteFailed,
        HoldReason::Paused,
        HoldReason::Breaker,
        HoldReason::EndedEarly,
        HoldReason::StaleOrder,
        HoldReason::StartupScriptUrl,
        HoldReason::CreateUnresolved,
        HoldReason::Refused,
    ];

    /// The name used in logs, metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            HoldReason::DryRun => "dry_run",
            HoldReason::OptedOut => "opted_out",
            HoldReason::OtherOwner => "other_owner",
            HoldReason::QueuedResource => "queued_resource",
            HoldReason::Multislice => "multislice",
            HoldReason::ApiV1 => "api_v1",
            HoldReason::NeverSeen => "never_seen",
            HoldReason::NoSpecification => "no_specification",
            HoldReason::Stopped => "stopped",
            HoldReason::Deleting => "deleting",
            HoldReason::Unclear => "unclear",
            HoldReason::Missing => "missing",
            HoldReason::Degraded => "degraded",
            HoldReason::MaxUnavailable => "max_unavailable",
            HoldReason::JudgedPerHour => "judged_per_hour",
            HoldReason::ZoneShort => "zone_short",
            HoldReason::ReplacementsFail => "replacements_fail",
            HoldReason::QuietHours => "quiet_hours",
            HoldReason::NoProgress => "no_progress",
            HoldReason::Attempts => "attempts",
            HoldReason::Preemptions => "preemptions",
            HoldReason::Backoff => "backoff",
            HoldReason::CreateLimit => "create_limit",
            HoldReason::CheckpointUnreadable => "checkpoint_unreadable",
            HoldReason::CheckpointWentBack => "checkpoint_went_back",
            HoldReason::NoBeaconChannel => "no_beacon_channel",
            HoldReason::JobFailed => "job_failed",
            HoldReason::DeleteFailed => "delete_failed",
            HoldReason::Paused => "paused",
            HoldReason::Breaker => "breaker",
            HoldReason::EndedEarly => "ended_early",
            HoldReason::StaleOrder => "stale_order",
            HoldReason::StartupScriptUrl => "startup_script_url",
            HoldReason::CreateUnresolved => "create_unresolved",
            HoldReason::Refused => "refused",
        }
    }

    /// Whether a person has to look: the difference between `hold` and `escalate`.
    pub fn needs_a_person(self) -> bool {
        matches!(
            self,
            HoldReason::Attempts
                | HoldReason::ReplacementsFail
                | HoldReason::NoProgress
                | HoldReason::Preemptions
                | HoldReason::NoBeaconChannel
                | HoldReason::JobFailed
                | HoldReason::DeleteFailed
                | HoldReason::CheckpointWentBack
                | HoldReason::Breaker
                | HoldReason::EndedEarly
                | HoldReason::StaleOrder
                | HoldReason::CreateUnresolved
                | HoldReason::Refused
        )
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
