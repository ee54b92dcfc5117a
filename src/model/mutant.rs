//! Deliberate defects, to show that the simulation finds them. Only with the feature `mutants`, which no release has: without
//! it every question here is answered `false` by the compiler.

/// One defect of the core, each named after what it does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Condemns without the confirming GET.
    NoConfirmingGet,
    /// Does not compare incarnations.
    AnyIncarnation,
    /// Takes a failed listing for an empty one.
    FailedListingIsEmpty,
    /// Takes the nodes of a zone that could not be reached for absent.
    UnreachableIsEmpty,
    /// Creates what a listing alone lacks.
    AbsenceIsEnough,
    /// Acts without having journaled the intent.
    ForgetIntent,
    /// Sends again what an earlier process may have sent.
    RepeatsAtStart,
    /// Does not count recovering slots under `max_unavailable`.
    RecoveringIsHealthy,
    /// Judges as many in an hour as there are.
    NoHourlyLimit,
    /// Counts those that wait for a person under `max_unavailable`.
    WaitingCounts,
    /// A replacement begins with fresh attempts.
    ReplacementResetsAttempts,
    /// Has no limit of attempts.
    NoAttempts,
    /// A gap between reads counts as sick time, however long.
    GapsCount,
    /// Takes unknown values for sick ones.
    UnknownIsSick,
    /// Waits for no grace.
    NoGrace,
    /// Goes by the grace of the present condition alone, whatever was seen before.
    OneGrace,
    /// Does not wait for the end of an announced maintenance.
    NoWindow,
    /// Takes a maintenance for failed as soon as its announced end has come.
    NoWindowSlack,
    /// Gives reserved TPUs no longer grace.
    ReservedIsOrdinary,
    /// Waits for no grace where a node is missing.
    MissingAtOnce,
    /// Deletes while the API works on the node.
    NoDeadlineOfTheApi,
    /// Replaces what somebody stopped.
    StoppedIsLost,
    /// Acts in a dry run.
    IgnoresDryRun,
    /// Does not see a pause.
    NoPause,
    /// A pause holds creates that are owed.
    PauseHoldsCreates,
    /// Does not see the label that opts out.
    NoOptOut,
    /// Forgets the label that opts out when its node is missing.
    ForgetsOptOut,
    /// Does not see quiet hours.
    NoQuietHours,
    /// Takes any specification.
    AnySpecification,
    /// Replaces what is preempted without end.
    NoPreemptionLimit,
    /// Tries in spite of refusals as often as it likes, once the first half hour is over.
    ManyTrials,
    /// The storm breaker never opens.
    NoBreaker,
    /// Opens the storm breaker by the number of slots alone.
    BreakerIgnoresShare,
    /// Counts lost slots for the storm breaker.
    LostIsAStorm,
    /// Lost slots wait for what guards judged ones.
    GuardsHoldLost,
    /// The storm breaker closes by itself.
    BreakerCloses,
    /// A resume does not end a pause.
    ResumeDoesNothing,
    /// A reset does not close the storm breaker.
    ResetDoesNothing,
    /// A retry gives no attempts back.
    RetryDoesNothing,
    /// Deletes while creates are refused.
    NoShortage,
    /// Takes an exhausted quota for a stock-out.
    QuotaIsShortage,
    /// Deletes while replacements fail to boot.
    NoUnfit,
    /// What is dead waits while creates are refused.
    DeadOnesWait,
    /// Starts from whatever checkpoint is listed, also an older one.
    CheckpointGoesBack,
    /// Calls for a person with the first listing that lacks the recorded checkpoint.
    GoneAtOnce,
    /// Starts from a checkpoint that is not complete.
    IncompleteIsComplete,
    /// Forgets attempts as soon as a slot is healthy.
    SettledAtOnce,
    /// The breaker holds creates that are owed.
    BreakerHoldsCreates,
    /// Takes an answer that lacks workers for a whole one.
    ShortReports,
    /// Hears a node's workers by the generation that was ordered last.
    AnotherGeneration,
    /// Sends a create again when its answer was lost.
    BlindRepeat,
    /// Sends a delete again however often it was refused.
    DeletesForEver,
    /// Has no limit of creates.
    NoCreateLimit,
    /// Starts a job again for ever.
    RelaunchForEver,
    /// Passes over one checkpoint after the other.
    PassesOverAgain,
    /// Takes any checkpoint when a person has said from which one to go on.
    RetryFromAnywhere,
    /// Believes reads that lag behind, or began before a mutation.
    StaleReads,
    /// Rests a second delete on the reports of the first.
    ReuseTheReports,
    /// Takes what the workers reported once for what they would report now.
    OldReports,
    /// Waits for no grace where the workers' reports condemn.
    SilentAtOnce,
    /// Forgets that a create is owed.
    ForgetOwedCreate,
    /// Healing clears no suspicion.
    NeverHeals,
    /// Takes the time in which a node could not be read for healthy time.
    UnseenHeals,
    /// Takes any recovery for a proof that nothing is refused any more.
    AnyRecoveryRelieves,
    /// Takes a TPU that does not answer for a healthy one.
    SicknessIsHealth,
    /// Forgets a part of the specification.
    ForgetLabels,
    /// Forgets the fields that it does not know.
    ForgetUnknownFields,
    /// Does not lay the config over what was learned.
    ForgetOverlay,
    /// Keeps nothing of the config with a create that is owed.
    ForgetOwed,
    /// Forgets the user's metadata.
    ForgetMetadata,
    /// Creates without the supervisor.
    ForgetSupervisor,
    /// Journals an intent without its evidence.
    ForgetEvidence,
    /// Journals the first symptom in the place of the GET that confirmed it.
    OldEvidence,
    /// A create that was lost on the way is never sent again.
    NeverResend,
    /// What is sick stays suspected for ever, and is never judged.
    WaitForEver,
    /// Hears nothing from the workers.
    DeafToReports,
    /// Replaces nodes of others.
    AnyNode,
    /// Goes on with what has left the config.
    LeavingIsWatched,
    /// A slot that waits for capacity holds the slots behind it.
    OneHoldsAll,
    /// Takes the lock without waiting for its end.
    TakeTheLock,
    /// Sends after the lease could have ended.
    SendForEver,
    /// Sends until the very end of the lease.
    SendToTheEnd,
    /// Backs off for as long as a coin says.
    TossesACoin,
    /// Never takes a dead holder's lock.
    NeverTakeTheLock,
}

impl Mutant {
    /// Every defect.
    pub const ALL: [Mutant; 84] = [
        Mutant::NoConfirmingGet,
        Mutant::AnyIncarnation,
        Mutant::FailedListingIsEmpty,
        Mutant::UnreachableIsEmpty,
        Mutant::AbsenceIsEnough,
        Mutant::ForgetIntent,
        Mutant::RepeatsAtStart,
        Mutant::RecoveringIsHealthy,
        Mutant::NoHourlyLimit,
        Mutant::WaitingCounts,
        Mutant::ReplacementResetsAttempts,
        Mutant::NoAttempts,
        Mutant::GapsCount,
        Mutant::UnknownIsSick,
        Mutant::NoGrace,
        Mutant::OneGrace,
        Mutant::NoWindow,
        Mutant::NoWindowSlack,
        Mutant::ReservedIsOrdinary,
        Mutant::MissingAtOnce,
        Mutant::NoDeadlineOfTheApi,
        Mutant::StoppedIsLost,
        Mutant::IgnoresDryRun,
        Mutant::NoPause,
        Mutant::PauseHoldsCreates,
        Mutant::NoOptOut,
        Mutant::ForgetsOptOut,
        Mutant::NoQuietHours,
        Mutant::AnySpecification,
        Mutant::NoPreemptionLimit,
        Mutant::ManyTrials,
        Mutant::NoBreaker,
        Mutant::BreakerIgnoresShare,
        Mutant::LostIsAStorm,
        Mutant::GuardsHoldLost,
        Mutant::BreakerCloses,
        Mutant::ResumeDoesNothing,
        Mutant::ResetDoesNothing,
        Mutant::RetryDoesNothing,
        Mutant::NoShortage,
        Mutant::QuotaIsShortage,
        Mutant::NoUnfit,
        Mutant::DeadOnesWait,
        Mutant::CheckpointGoesBack,
        Mutant::GoneAtOnce,
        Mutant::IncompleteIsComplete,
        Mutant::SettledAtOnce,
        Mutant::BreakerHoldsCreates,
        Mutant::ShortReports,
        Mutant::AnotherGeneration,
        Mutant::BlindRepeat,
        Mutant::DeletesForEver,
        Mutant::NoCreateLimit,
        Mutant::RelaunchForEver,
        Mutant::PassesOverAgain,
        Mutant::RetryFromAnywhere,
        Mutant::StaleReads,
        Mutant::ReuseTheReports,
        Mutant::OldReports,
        Mutant::SilentAtOnce,
        Mutant::ForgetOwedCreate,
        Mutant::NeverHeals,
        Mutant::UnseenHeals,
        Mutant::AnyRecoveryRelieves,
        Mutant::SicknessIsHealth,
        Mutant::ForgetLabels,
        Mutant::ForgetUnknownFields,
        Mutant::ForgetOverlay,
        Mutant::ForgetOwed,
        Mutant::ForgetMetadata,
        Mutant::ForgetSupervisor,
        Mutant::ForgetEvidence,
        Mutant::OldEvidence,
        Mutant::NeverResend,
        Mutant::WaitForEver,
        Mutant::DeafToReports,
        Mutant::AnyNode,
        Mutant::LeavingIsWatched,
        Mutant::OneHoldsAll,
        Mutant::TakeTheLock,
        Mutant::SendForEver,
        Mutant::SendToTheEnd,
        Mutant::TossesACoin,
        Mutant::NeverTakeTheLock,
    ];
}

#[cfg(feature = "mutants")]
std::thread_local! {
    static PRESENT: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread's core has this defect, or none.
#[cfg(feature = "mutants")]
pub fn become_mutant(mutant: Option<Mutant>) {
    PRESENT.set(mutant);
}

/// Whether the core has this defect.
#[cfg(feature = "mutants")]
pub fn is(mutant: Mutant) -> bool {
    PRESENT.get() == Some(mutant)
}

/// Whether the core has any defect: then the guard, which would hide it, is off.
#[cfg(feature = "mutants")]
pub fn is_any() -> bool {
    PRESENT.get().is_some()
}

/// What no input says.
#[cfg(feature = "mutants")]
pub fn coin() -> bool {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(()) & 1 == 1
}

/// Nobody asks, without the feature.
#[cfg(not(feature = "mutants"))]
pub const fn coin() -> bool {
    false
}

/// Never, without the feature.
#[cfg(not(feature = "mutants"))]
pub const fn is(_: Mutant) -> bool {
    false
}

/// Never, without the feature.
#[cfg(not(feature = "mutants"))]
pub const fn is_any() -> bool {
    false
}
