//! What the oracle knows about one slot: what was read and sent, what stands in the log, and what is owed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use tpu_watchdog::model::condition::{Condition, Kind};
use tpu_watchdog::model::event::What;
use tpu_watchdog::model::fleet::{Fleet, Pending, after, elapsed};
use tpu_watchdog::model::node::{Incarnation, NodeView};
use tpu_watchdog::model::recovery::Phase;
use tpu_watchdog::model::slot::SlotRecord;

use super::evidence::{Evidence, Shown};
use crate::process::Tag;
use crate::setup::Ms;

/// A GET that was delivered to a holder.
#[derive(Debug, Clone)]
pub struct Get {
    pub tag: Tag,
    /// True time at which it was asked for.
    pub asked: Ms,
    /// The same by its process's clock.
    pub began: Timestamp,
    /// The state that it showed; empty where there was nothing.
    pub state: String,
    pub shown: Option<(Option<Incarnation>, Shown)>,
    pub stale: bool,
}

/// What is known about one slot.
#[derive(Default)]
pub struct Watch {
    pub evidence: Evidence,
    /// The last read, and what it showed.
    last: Option<(Arc<NodeView>, Shown)>,
    /// The last GET that was delivered, by process.
    pub gets: BTreeMap<usize, Get>,
    /// The last GETs that were delivered to holders, whatever overtook them.
    pub got: VecDeque<Get>,
    /// True time at which the newest reports of the workers were asked for that were delivered, by process.
    pub heard: BTreeMap<usize, (Tag, Ms)>,
    /// When its last delete was decided, its workers' reports said that it is dead.
    pub doomed: bool,
    /// The zone in which it was condemned, or has recovered, last; and that of its last create.
    pub zone: String,
    pub created_in: String,
    /// A person gave it its attempts back, and it was not condemned since.
    pub retried: bool,
    /// Since when complete listings have lacked its newest checkpoint.
    pub lacks_since: Option<Timestamp>,
    /// A person closed the breaker when its replacement was known to be bad.
    pub forgiven: bool,
    /// The last GET that was served lagged behind.
    pub served_stale: Option<(Ms, bool)>,
    /// True time of the last mutation that left.
    pub last_sent: Option<Ms>,
    /// True time at which the answer to a call was last taken in: what was read before that may show what was before the call.
    pub answered: Ms,
    /// A create is in order: a 404, a delete that is done, a create that came to nothing.
    pub gone: bool,
    /// Creation times: of the newest node seen, and of the last one that is known to be gone.
    pub newest_created: Option<Timestamp>,
    pub gone_created: Option<Timestamp>,
    pub gone_asked: Ms,
    /// What became of the last mutation was not read back yet.
    pub unknown: bool,
    pub opted_out: bool,
    /// A person made somebody else's node ours.
    pub adopted: bool,
    /// The node that was seen last is a person's own, without metadata.
    pub replaced: bool,
    /// Such nodes; one may be shown once more when it is gone.
    pub theirs: BTreeSet<u64>,
    /// The last create that left has the metadata all the same.
    pub restores: bool,
    /// Nodes of its name that a late or second call made, in whatever zone: no watchdog can help those.
    pub strays: BTreeSet<u64>,
    /// Durable condemnations, for the budget.
    pub attempts: Vec<(Timestamp, Kind)>,
    pub healthy_since: Option<Timestamp>,
    pub newest_checkpoint: Option<u64>,
    /// Its node is gone by our doing, or is taken for gone, and no recovery has ended since.
    pub owes_create: bool,
    /// Steps whose checkpoints were complete at some time.
    pub complete: BTreeSet<u64>,
    /// True time at which a checkpoint was last passed over.
    pub passed_over_at: Ms,
    /// The incident is open, and its replacement did not boot yet.
    pub open: bool,
    pub booted: bool,
    /// By its watchdog's clock: when the last create of this incident was decided.
    pub creating_since: Option<Timestamp>,
    /// A create has left since it was condemned last.
    pub recreated: bool,
    /// Generation and step of the last order that left.
    pub order: Option<(u64, Option<u64>)>,
    pub set_aside: bool,
    /// A checkpoint was passed over, and no person took it back.
    pub passed: bool,
    /// How the runs of the job went.
    pub run_began: bool,
    pub progressed: bool,
    pub best_step: Option<u64>,
    pub fruitless: i64,
    /// The last intent in the log.
    pub intent: Option<What>,
    /// The log does not say yet what came of it.
    pub result_owed: bool,
}

/// What a watchdog is doing with a slot when a read of it comes in.
#[derive(Default, Clone, Copy)]
pub struct During {
    /// A delete or create is being sent.
    pub call: bool,
    /// Its old node is on its way out, or the new one on its way in: then no read is a diagnosis.
    pub replacement: bool,
    /// Its job is finished: no read is a diagnosis.
    pub finished: bool,
}

impl During {
    pub fn of(fleet: &Fleet, record: &SlotRecord) -> During {
        let finished = record.verdict.condition == Condition::Finished;
        let Some(recovery) = &record.recovery else { return During { finished, ..During::default() } };
        During {
            finished,
            call: fleet.memory.get(&record.name).is_some_and(|memory| memory.pending.contains(&Pending::Call)),
            replacement: match recovery.phase {
                Phase::Deleting | Phase::Gone => true,
                Phase::Creating => record.incarnation.is_none(),
                _ => false,
            },
        }
    }
}

impl Watch {
    pub fn new(evidence: Evidence) -> Watch {
        Watch { evidence, ..Watch::default() }
    }

    /// Whether the last read of this slot has shown just this.
    pub fn has_shown(&self, view: &Arc<NodeView>) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| Arc::ptr_eq(last, view))
    }

    /// It is known by something that was asked for then.
    pub fn is_gone(&mut self, asked: Ms) {
        self.gone = true;
        self.gone_asked = self.gone_asked.max(asked);
        self.gone_created = self.newest_created;
    }

    /// From its record it is known which checkpoint is the newest, or which one a person waits for.
    pub fn is_recorded(&mut self, record: &SlotRecord) {
        let least = record.job.accepts.map(|(least, _)| least).filter(|least| *least > 0);
        self.newest_checkpoint = record.job.checkpoint.as_ref().map(|c| c.step).max(least);
        self.lacks_since = [self.lacks_since, record.job.went_back_since].into_iter().flatten().min();
    }

    /// Takes in one read; `observed`: when the last listing before it began.
    pub fn reads(
        &mut self,
        view: &Arc<NodeView>,
        (began, observed): (Timestamp, Option<Timestamp>),
        asked: Ms,
        wall: Timestamp,
        during: During,
    ) {
        // The same view says the same: most reads are of nodes to which nothing has happened.
        let shown = match &self.last {
            Some((last, shown)) if Arc::ptr_eq(last, view) => *shown,
            _ => self.last.insert((Arc::clone(view), Shown::of(view))).1,
        };
        self.opted_out = view.opted_out;
        let is_theirs = |uid: u64| self.theirs.contains(&uid);
        let uid = || view.incarnation.as_ref().and_then(|i| i.id.parse().ok());
        self.replaced |= !self.theirs.is_empty() && uid().is_some_and(is_theirs);
        let created = view.incarnation.as_ref().map(|i| i.created);
        self.newest_created = self.newest_created.max(created);
        // A read that lags behind does not bring back what is gone.
        let later = asked > self.gone_asked && self.last_sent.is_none_or(|sent| asked > sent);
        // Beside a call that has no answer yet a read settles nothing, nor one that was asked for before that came.
        if later && asked > self.answered && created > self.gone_created && !during.call {
            self.gone = false;
        }
        let another = !self.evidence.is_of(view);
        let missed = self.evidence.missed(observed, began.min(wall));
        // What lags behind says nothing about the node's present health.
        let times = self.evidence.times();
        let believed = self.evidence.reads(view, &shown, began, wall, during.replacement || asked <= self.answered);
        if self.gone && during.replacement && !another {
            // A read of what is known to be gone may be no read at all.
            self.evidence.goes_on_from(times);
        }
        if !believed {
            return;
        }
        if during.finished {
            self.evidence.forget_what_was_seen();
        }
        self.run_began &= !another;
        if shown == Shown::Healthy {
            // Time of which nothing is known is no healthy time.
            let since = self.healthy_since.map_or(wall, |since| after(since, missed).min(wall));
            self.healthy_since = Some(since);
            if elapsed(since, wall) >= self.evidence.policy.attempts.settled {
                self.attempts.retain(|(_, kind)| *kind == Kind::Lost);
            }
        } else if shown != Shown::Unknown {
            self.healthy_since = None;
        }
    }
}
