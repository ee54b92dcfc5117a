//! Remedies and their steps. The phases of the journal and of the contract follow from a step and how far it is.

use serde::{Deserialize, Serialize};

use super::phase::Phase;

/// The ways to have a slot do its work again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The job starts again on the same machines.
    Relaunch,
    /// Machines are rebooted.
    Restart,
    /// Other machines take their place.
    Replace,
}

/// One step of a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Delete, or cancel, what is there.
    Remove,
    /// Create, or submit, what takes its place, and wait until it is there.
    Create,
    /// A newer run order is written.
    Relaunch,
    /// Hosts are told to reboot.
    Restart,
    /// Its hosts report that they are up.
    AwaitBoot,
    /// Its job starts.
    AwaitStart,
    /// Its job makes progress.
    AwaitProgress,
}

/// The call that a step stands for, as far as the journal knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Written before it was sent; after a restart its outcome is unknown and read back.
    Intended,
    /// The answer was lost or ambiguous: read back.
    Unknown,
    /// Accepted; this operation runs.
    Accepted {
        /// The operation's full name.
        operation: String,
    },
    /// Known from the node itself: the API works on it, the operation's name was lost.
    Observed,
}

/// How far a step is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepState {
    /// Its call was not sent.
    Due,
    /// Its call was decided: this is what the journal knows of it.
    Called(Call),
    /// It has no call.
    Waiting,
}

/// Where a replacement stands: a step and its state, which fit each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct At {
    step: Step,
    state: StepState,
}

/// As the journal has it, of this version and of those before.
#[derive(Serialize, Deserialize)]
struct Stored {
    phase: Phase,
    #[serde(default)]
    call: Option<Call>,
}

impl At {
    /// The beginning of a phase. A call is intended until more is known of it.
    pub fn of(phase: Phase) -> At {
        let (step, state) = match phase {
            Phase::Condemned => (Step::Remove, StepState::Due),
            Phase::Deleting => (Step::Remove, StepState::Called(Call::Intended)),
            Phase::Gone => (Step::Create, StepState::Due),
            Phase::Creating => (Step::Create, StepState::Called(Call::Intended)),
            Phase::Ready => (Step::AwaitBoot, StepState::Waiting),
            Phase::Booted => (Step::AwaitStart, StepState::Waiting),
            Phase::Launched => (Step::AwaitProgress, StepState::Waiting),
        };
        At { step, state }
    }

    /// The step.
    pub fn step(&self) -> Step {
        self.step
    }

    /// The phase, by its name in the contract.
    pub fn phase(&self) -> Phase {
        match (self.step, &self.state) {
            (Step::Remove, StepState::Called(_)) => Phase::Deleting,
            (Step::Remove, _) => Phase::Condemned,
            (Step::Create, StepState::Called(_)) => Phase::Creating,
            (Step::Create, _) => Phase::Gone,
            (Step::AwaitBoot, _) => Phase::Ready,
            (Step::AwaitStart, _) => Phase::Booted,
            (Step::AwaitProgress | Step::Relaunch | Step::Restart, _) => Phase::Launched,
        }
    }

    /// The step's call, as far as the journal knows it.
    pub fn call(&self) -> Option<&Call> {
        match &self.state {
            StepState::Called(call) => Some(call),
            StepState::Due | StepState::Waiting => None,
        }
    }

    /// Whether a replacement may go on, or back, to this beginning of a phase. A call follows where it is due; what
    /// is waited for follows what it is of; any step but the same may find that a removal or a create is due.
    pub fn may_become(&self, next: &At) -> bool {
        use Step::{AwaitBoot, AwaitProgress, AwaitStart, Create};
        match (&next.state, next.step) {
            (StepState::Due, _) => self != next,
            (StepState::Called(_), step) => (self.step, &self.state) == (step, &StepState::Due),
            (StepState::Waiting, AwaitBoot) => self.step == Create,
            (StepState::Waiting, AwaitStart) => self.step == AwaitBoot,
            (StepState::Waiting, AwaitProgress) => matches!(self.step, AwaitBoot | AwaitStart),
            (StepState::Waiting, _) => false,
        }
    }

    /// More is known of the step's call. One that is due, or has none, stays as it is.
    pub fn set_call(&mut self, known: Call) {
        if let StepState::Called(call) = &mut self.state {
            *call = known;
        }
    }
}

impl From<Stored> for At {
    fn from(Stored { phase, call }: Stored) -> At {
        let mut at = At::of(phase);
        // A call of which nothing is known is read back.
        at.set_call(call.unwrap_or(Call::Unknown));
        at
    }
}

impl From<At> for Stored {
    fn from(at: At) -> Stored {
        Stored { phase: at.phase(), call: at.call().cloned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_replacement_goes_on_step_by_step_and_nothing_skips_the_delete() {
        use Phase::*;
        let legal = [
            (Condemned, vec![Deleting, Gone]),
            (Deleting, vec![Condemned, Gone]),
            (Gone, vec![Condemned, Creating, Ready]),
            (Creating, vec![Condemned, Gone, Ready]),
            (Ready, vec![Condemned, Gone, Booted, Launched]),
            (Booted, vec![Condemned, Gone, Launched]),
            (Launched, vec![Condemned, Gone]),
        ];
        for (from, to) in legal {
            let next = |next: &Phase| At::of(from).may_become(&At::of(*next));
            let found: Vec<Phase> = Phase::ALL.into_iter().filter(next).collect();
            assert_eq!(found, to, "{from}");
        }
        let mut sent = At::of(Deleting);
        sent.set_call(Call::Observed);
        assert!(!sent.may_become(&At::of(Deleting)) && sent.may_become(&At::of(Gone)));
    }

    #[test]
    fn the_journal_has_a_step_by_its_phase_and_call() {
        for phase in Phase::ALL {
            let at = At::of(phase);
            let stored = serde_json::to_value(&at).unwrap();
            let called = matches!(phase, Phase::Deleting | Phase::Creating);
            let call = called.then_some("intended");
            assert_eq!(stored, json!({"phase": phase.name(), "call": call}));
            assert_eq!(serde_json::from_value::<At>(stored).unwrap(), at);
            // A call of which a former version knew nothing is read back; another one it can't have had.
            let odd = json!({"phase": phase.name(), "call": null});
            let read: At = serde_json::from_value(odd).unwrap();
            assert_eq!(read.call(), called.then_some(&Call::Unknown), "{phase}");
            let odd = json!({"phase": phase.name(), "call": "observed"});
            let read: At = serde_json::from_value(odd).unwrap();
            assert_eq!((read.phase(), read.call()), (phase, called.then_some(&Call::Observed)));
        }
    }
}
