//! The answers on which rules of `core` depend, a row for each kind of thing that fills a slot. `core` asks for
//! the answer, and never for the kind.

use serde::{Deserialize, Serialize};

use super::step::{Remedy, Step};

/// The answers of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Which budgets it counts under.
    pub budget: BudgetOf,
    /// The steps of a job's start on the machines that are there, of their reboot, and of their replacement; none where the
    /// kind has no such remedy.
    remedies: [&'static [Step]; 3],
    /// It is a job itself: it has no hosts of ours, and so no guest attributes and no run order on them.
    pub is_job: bool,
    /// It stays where it is once it has ended, and can be read: no delete makes it absent.
    pub ends_in_place: bool,
    /// The end of a delete's operation is its own end. Of others a read has to say that it is over.
    pub ends_with_operation: bool,
    /// No id is chosen for a create, and no operation follows it: lists alone show what came of a lost one (S24).
    pub is_found_by_lists: bool,
    /// One that lives is not deleted by an operator's command, nor followed once its slot means another: it is
    /// its people's.
    pub is_its_peoples: bool,
    /// It is looked for in all zones of its slot at once, and stays the slot's where the config no longer names its zone.
    pub is_sought_everywhere: bool,
    /// Its queue and its machines' preparation are one wait, for a quota or for capacity.
    pub waits_as_one: bool,
    /// A refused create is held by what it was refused for; a quota is asked again after an hour.
    pub is_held_by_refusal: bool,
    /// How an operator ends it, in words.
    pub ended_by: &'static str,
    /// How its end shows, in words.
    pub over: &'static str,
    /// How its work shows, in words.
    pub at_work: &'static str,
}

/// Budgets that are counted apart: two hundred jobs are no reason to take down all of four TPUs at once (S6, S8, S18).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetOf {
    /// TPUs that this program creates.
    #[default]
    Tpus,
    /// Managed training jobs.
    Jobs,
}

impl BudgetOf {
    /// Whether it is that of TPUs, which the journal leaves out.
    pub fn is_of_tpus(&self) -> bool {
        *self == BudgetOf::Tpus
    }
}

/// The steps of a replacement: what is there is removed, unless it is gone or has ended in its place.
const REPLACE: &[Step] =
    &[Step::Remove, Step::Create, Step::AwaitBoot, Step::AwaitStart, Step::AwaitProgress];

impl Traits {
    /// The steps of a remedy; none where this kind has no such remedy.
    pub fn steps(&self, remedy: Remedy) -> Option<&'static [Step]> {
        let [relaunch, restart, replace] = self.remedies;
        let steps = match remedy {
            Remedy::Relaunch => relaunch,
            Remedy::Restart => restart,
            Remedy::Replace => replace,
        };
        (!steps.is_empty()).then_some(steps)
    }

    /// A Cloud TPU node.
    pub const NODE: Traits = Traits {
        budget: BudgetOf::Tpus,
        remedies: [
            &[Step::Relaunch, Step::AwaitProgress],
            &[Step::Restart, Step::AwaitBoot],
            REPLACE,
        ],
        is_job: false,
        ends_in_place: false,
        ends_with_operation: true,
        is_found_by_lists: false,
        is_its_peoples: false,
        is_sought_everywhere: false,
        waits_as_one: false,
        is_held_by_refusal: false,
        ended_by: "delete the TPU",
        over: "GET says 404, the node is gone",
        at_work: "the node is READY and not unhealthy",
    };

    /// A queued resource: it goes after its nodes.
    pub const QUEUED_RESOURCE: Traits = Traits { ends_with_operation: false, ..Traits::NODE };

    /// A managed training job.
    pub const TRAINING_JOB: Traits = Traits {
        budget: BudgetOf::Jobs,
        remedies: [&[], &[], REPLACE],
        is_job: true,
        ends_in_place: true,
        ends_with_operation: false,
        is_found_by_lists: true,
        is_its_peoples: true,
        is_sought_everywhere: true,
        waits_as_one: true,
        is_held_by_refusal: true,
        ended_by: "cancel the job",
        over: "its job has ended",
        at_work: "its job runs",
    };
}
