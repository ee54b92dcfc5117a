//! What was delivered about a slot, added up anew: for how long, over how many reads, a node was shown sick, and what its
//! workers reported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tpu_watchdog::model::beacon::WorkerReport;
use tpu_watchdog::model::condition::{Condition, Kind};
use tpu_watchdog::model::fleet::{after, elapsed};
use tpu_watchdog::model::node::{Incarnation, NodeView};
use tpu_watchdog::model::settings::Policy;
use tpu_watchdog::model::slot::SlotRecord;

/// What one read of a node says, by the table of conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The API says that nothing is left.
    Lost,
    /// Sick, with the grace that this needs; whether the API itself is at work; and until when a maintenance is announced that
    /// goes on.
    Sick {
        grace: Grace,
        at_work: bool,
        until: Option<Timestamp>,
    },
    Healthy,
    /// Stopped, hidden, or being deleted: somebody wanted that.
    Wanted,
    /// A value that nobody knows.
    Unknown,
}

/// For so long after its announced end a maintenance may go on.
const WINDOW_SLACK: Duration = Duration::from_secs(15 * 60);

/// For so long the announced end of a maintenance is waited for.
const WINDOW_MOST: Duration = Duration::from_secs(6 * 3600);

/// Which grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grace {
    Startup,
    Maintenance,
    MaintenanceReserved,
    FailedRepair,
    Unresponsive,
    RuntimeUnhealthy,
}

impl Grace {
    fn condition(self) -> Condition {
        match self {
            Grace::Startup => Condition::Starting,
            Grace::Maintenance | Grace::MaintenanceReserved => Condition::Maintenance,
            Grace::FailedRepair => Condition::FailedRepair,
            Grace::Unresponsive => Condition::Unresponsive,
            Grace::RuntimeUnhealthy => Condition::RuntimeUnhealthy,
        }
    }
}

impl Shown {
    pub fn of(view: &NodeView) -> Shown {
        let sick = |grace, at_work| Shown::Sick { grace, at_work, until: None };
        let upcoming = view.upcoming.as_ref().filter(|u| u.ongoing);
        let ongoing = upcoming.is_some();
        let maintenance = |at_work| Shown::Sick {
            grace: if view.reserved { Grace::MaintenanceReserved } else { Grace::Maintenance },
            at_work,
            until: upcoming.and_then(|u| u.window_end),
        };
        match view.state.as_str() {
            "PREEMPTED" | "TERMINATED" => return Shown::Lost,
            "STOPPED" | "STOPPING" | "HIDDEN" | "HIDING" | "DELETING" => return Shown::Wanted,
            "CREATING" | "STARTING" | "RESTARTING" | "REIMAGING" => return sick(Grace::Startup, true),
            "UNKNOWN" => return sick(Grace::FailedRepair, false),
            "READY" | "REPAIRING" => {}
            _ => return Shown::Unknown,
        }
        match view.health.as_ref().map(|h| h.as_str()) {
            Some("UNHEALTHY_MAINTENANCE") => maintenance(false),
            None | Some("HEALTHY" | "TIMEOUT" | "UNHEALTHY_TENSORFLOW" | "HEALTH_UNSPECIFIED")
                if view.state.as_str() == "REPAIRING" =>
            {
                maintenance(true)
            }
            None | Some("TIMEOUT" | "UNHEALTHY_TENSORFLOW" | "HEALTH_UNSPECIFIED") if ongoing => maintenance(false),
            Some("TIMEOUT") => sick(Grace::Unresponsive, false),
            Some("UNHEALTHY_TENSORFLOW") => sick(Grace::RuntimeUnhealthy, false),
            None | Some("HEALTHY") => Shown::Healthy,
            Some(_) => Shown::Unknown,
        }
    }
}

/// Of each slot so many nodes are remembered.
const OTHERS_KEPT: usize = 3;

/// An upper bound of what a watchdog may hold against a node.
#[derive(Default, Clone)]
pub struct Evidence {
    pub policy: Policy,
    max_gap: Duration,
    incarnation: Option<Incarnation>,
    /// Its last view that was believed.
    shown: Option<Arc<NodeView>>,
    /// In which zone that is.
    zone: String,
    last: Option<Timestamp>,
    /// When the newest read began that this process took in.
    newest_read: Option<Timestamp>,
    lost: bool,
    pub sick_for: Duration,
    pub reads: u32,
    /// Workers report, and a job makes progress: what is held against the node may be forgotten for that, too.
    has_job: bool,
    /// When its sickness began, …
    since: Option<Timestamp>,
    /// … and what was certainly seen since: when last.
    seen: Vec<(Grace, Timestamp)>,
    /// When it was last seen to be ripe for a judgement.
    pub judged_at: Option<Timestamp>,
    /// When it was so for the first time since this node is there.
    pub first_judged: Option<Timestamp>,
    /// It was absent from a listing since the last read: that time proves no health.
    unseen: bool,
    /// Reads before a read of another kind (which a write that failed may have made forgotten) …
    former: u32,
    /// … and was it.
    pub recalled: u32,
    /// When the first read of another kind came that may have been no diagnosis, and how many.
    asides: Option<(Timestamp, u32)>,
    /// Sick time and reads when they were cleared last.
    former_sickness: (Duration, u32),
    /// Reads that found nothing: they say that it is lost, as PREEMPTED does.
    pub absences: u32,
    /// For how long it has been lost or absent.
    pub lost_for: Duration,
    /// What of both was counted since this node is the one that is known: it may be about the one before.
    since_turned: (Duration, u32),
    /// Both when they were cleared last.
    former_loss: (Duration, u32),
    /// A GET has found nothing since it was last shown.
    is_absent: bool,
    healthy_for: Duration,
    /// Since when the grace has been over, as far as it can be said.
    pub ripe_since: Option<Timestamp>,
    /// Guest attributes.
    attributes_at: Option<Timestamp>,
    unbooted_for: Duration,
    workers: BTreeMap<usize, Worker>,
    /// What was held against nodes before this one: it counts again where nobody has written that there is another.
    others: Vec<Evidence>,
    /// This one was first shown in a read that is perhaps no diagnosis.
    passed_by: bool,
}

#[derive(Default, Clone)]
struct Worker {
    booted: bool,
    heartbeat: Option<(String, i64)>,
    quiet_for: Duration,
}

impl Evidence {
    pub fn new(policy: Policy, max_gap: Duration, has_job: bool) -> Evidence {
        Evidence { policy, max_gap, has_job, ..Evidence::default() }
    }

    /// The time up to a read that began then of which nothing is known, if the last listing of any kind came at `observed`.
    pub fn missed(&self, observed: Option<Timestamp>, began: Timestamp) -> Duration {
        let last = self.last.max(observed);
        last.map(|last| elapsed(last, began).saturating_sub(self.max_gap)).unwrap_or_default()
    }

    /// Whether this is the node that the evidence is about.
    pub fn is_of(&self, view: &Arc<NodeView>) -> bool {
        self.shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, view)) || self.incarnation == view.incarnation
    }

    pub fn interrupted(&mut self) {
        self.newest_read = None;
        self.recalled = self.recalled.max(std::mem::take(&mut self.former));
    }

    /// The journal was read: what was read since its last write is forgotten.
    pub fn restored(&mut self, record: &SlotRecord) {
        self.turn_to(&record.incarnation);
        if record.incarnation == self.incarnation {
            let job = &record.job;
            self.attributes_at = self.attributes_at.min(job.attributes_at);
            self.unbooted_for = self.unbooted_for.min(job.unbooted_for);
            for (index, worker) in &mut self.workers {
                worker.quiet_for = worker.quiet_for.min(job.workers.get(index).map_or(Duration::ZERO, |w| w.quiet_for));
            }
        }
        let remembered = record.suspicion.iter().flat_map(|suspicion| &suspicion.seen).collect::<Vec<_>>();
        self.seen.retain(|(grace, _)| remembered.contains(&&grace.condition()));
        let Some(suspicion) = &record.suspicion else { return };
        self.unseen = suspicion.unseen;
        self.since = self.since.map(|since| since.min(suspicion.since));
        // What was read is not read once more, although it is not remembered.
        self.newest_read = Some(suspicion.last_read);
        if suspicion.seen.iter().any(|condition| condition.is_reported()) {
            return;
        }
        // Time goes on from the last read that was written, whatever clock somebody had who wrote nothing.
        self.last = Some(suspicion.last_read);
        self.healthy_for = self.healthy_for.min(suspicion.healthy_for);
        let (sick_for, reads) = self.former_sickness;
        self.sick_for = self.sick_for.max(sick_for.min(suspicion.sick_for));
        self.reads = self.reads.max(reads.min(suspicion.reads));
        if suspicion.seen.iter().any(|condition| condition.kind() == Some(Kind::Lost)) {
            let (lost_for, absences) = self.former_loss;
            self.lost_for = self.lost_for.max(lost_for.min(suspicion.sick_for));
            self.absences = self.absences.max(absences.min(suspicion.reads));
        }
        // What was read while a delete was under way was no diagnosis either.
        let lost = suspicion.seen.iter().any(|condition| condition.kind() == Some(Kind::Lost));
        if lost != self.lost {
            // Reads of that kind, then, were one all the same: the journal says so.
            self.recalled += self.asides.take().map_or(0, |(_, reads)| reads);
        }
        self.lost = lost;
    }

    /// Reads of another kind that may have been no diagnosis, and may have been one.
    pub fn reads_aside(&self) -> u32 {
        self.asides.map_or(0, |(_, reads)| reads)
    }

    /// When the last and the newest read began.
    pub fn times(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.last, self.newest_read)
    }

    /// As if nothing had been read since.
    pub fn goes_on_from(&mut self, (last, newest_read): (Option<Timestamp>, Option<Timestamp>)) {
        (self.last, self.newest_read) = (last, newest_read);
    }

    /// Takes up what was held against this node, if it was known before. Returns whether it was.
    fn turn_to(&mut self, incarnation: &Option<Incarnation>) -> bool {
        let known = self.others.iter().position(|other| incarnation.is_some() && other.incarnation == *incarnation);
        let Some(index) = known else { return false };
        let known = self.others.remove(index);
        let mut others = std::mem::take(&mut self.others);
        let mut left = std::mem::replace(self, known);
        let (lost_for, absences) = std::mem::take(&mut left.since_turned);
        (self.lost_for, self.absences) = (self.lost_for + lost_for, self.absences + absences);
        self.judged_at = self.judged_at.max(left.judged_at);
        others.push(left);
        self.others = others;
        true
    }

    /// The clock was set back.
    pub fn set_back(&mut self, wall: Timestamp) {
        for at in [&mut self.last, &mut self.newest_read, &mut self.ripe_since, &mut self.attributes_at, &mut self.since] {
            *at = at.map(|at| at.min(wall));
        }
        self.seen.iter_mut().for_each(|(_, at)| *at = (*at).min(wall));
    }

    pub fn grace(&self, grace: Grace) -> Duration {
        let all = &self.policy.grace;
        match grace {
            Grace::Startup => all.startup,
            Grace::Maintenance => all.maintenance,
            Grace::MaintenanceReserved => all.maintenance_reserved,
            Grace::FailedRepair => all.failed_repair,
            Grace::Unresponsive => all.unresponsive,
            Grace::RuntimeUnhealthy => all.runtime_unhealthy,
        }
    }

    /// The longest grace among what was seen since the job last made progress.
    pub fn longest_grace(&self, shown: Grace, progress: Option<Timestamp>) -> Duration {
        let seen = self.seen.iter().filter(|(_, at)| Some(*at) > progress).map(|(grace, _)| self.grace(*grace));
        seen.fold(self.grace(shown), Duration::max)
    }

    /// Whether an announced maintenance still has to be waited for: its end is trusted, for six hours from the first symptom.
    pub fn is_announced(&self, until: Option<Timestamp>, progress: Option<Timestamp>, wall: Timestamp) -> bool {
        until.is_some_and(|end| after(end, WINDOW_SLACK) > wall && Some(end) > self.since.max(progress))
            && self.since.is_some_and(|since| elapsed(since, wall) < WINDOW_MOST)
    }

    /// When its sickness began.
    pub fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// What was seen may be forgotten.
    pub fn forget_what_was_seen(&mut self) {
        self.seen.clear();
    }

    fn gap(&mut self, began: Timestamp, wall: Timestamp) -> Duration {
        // A clock that was set back: what was remembered of the future is now.
        let last = self.last.map(|last| last.min(wall));
        let began = began.min(wall);
        let gap = last.map_or(Duration::ZERO, |last| elapsed(last, began).min(self.max_gap));
        self.last = Some(last.map_or(began, |last| last.max(began)));
        gap
    }

    pub fn absent(&mut self, began: Timestamp, wall: Timestamp) {
        let gap = self.gap(began, wall);
        self.loses(gap);
        self.absences += 1;
        self.since_turned = (self.since_turned.0 + gap, self.since_turned.1 + 1);
        self.is_absent = true;
        self.seen.clear();
    }

    fn is_ripe(&mut self, wall: Timestamp) {
        self.judged_at = Some(wall);
        self.first_judged.get_or_insert(wall);
    }

    /// One more read says that it is lost: time counts from the first of them.
    fn loses(&mut self, gap: Duration) {
        if self.absences > 0 || (self.lost && self.reads > 0) {
            self.lost_for += gap;
        }
    }

    /// A listing could not be read, or lacks it.
    pub fn unseen(&mut self) {
        self.unseen = true;
    }

    /// A listing lacks it. A complete one says once more what a GET has said.
    pub fn not_listed(&mut self, began: Timestamp, wall: Timestamp, complete: bool) {
        if complete && self.is_absent {
            self.absent(began, wall);
        }
    }

    /// Takes in one read. Returns whether it is believed.
    ///
    /// One that may be no diagnosis, `aside`, takes nothing away of what is held against the node.
    pub fn reads(&mut self, view: &Arc<NodeView>, shown: &Shown, began: Timestamp, wall: Timestamp, aside: bool) -> bool {
        // Creation times are the API's own: what was created before the node that is known lags behind, in the same zone.
        let created = |incarnation: &Option<Incarnation>| incarnation.as_ref().map(|i| i.created);
        let mut another = !self.is_of(view);
        if created(&view.incarnation) < created(&self.incarnation) && view.zone == self.zone {
            // But the one that is known may have been passed by: what a delete came to is read back by a GET alone.
            if !(self.passed_by && self.turn_to(&view.incarnation)) {
                return false;
            }
            another = false;
        } else if another {
            another = !self.turn_to(&view.incarnation);
        }
        // Nor is a read believed that began before one that was taken in.
        if self.newest_read.is_some_and(|newest| began < newest.min(wall)) {
            return false;
        }
        self.newest_read = Some(began.min(wall));
        self.is_absent = false;
        let gap = self.gap(began, wall);
        let unseen = std::mem::take(&mut self.unseen);
        if another {
            let left = Evidence { others: Vec::new(), ..self.clone() };
            self.others.truncate(OTHERS_KEPT - 1);
            self.others.insert(0, left);
            self.passed_by = aside;
            self.incarnation.clone_from(&view.incarnation);
            self.zone.clone_from(&view.zone);
            self.clear();
            self.workers.clear();
            (self.absences, self.former, self.recalled, self.former_sickness) = (0, 0, 0, <_>::default());
            self.since_turned = <_>::default();
            (self.unbooted_for, self.attributes_at) = (Duration::ZERO, None);
            (self.lost_for, self.former_loss) = <_>::default();
            self.first_judged = None;
        }
        if another || self.shown.as_ref().is_none_or(|before| !Arc::ptr_eq(before, view)) {
            self.shown = Some(Arc::clone(view));
        }
        if self.is_dead_inside() {
            self.is_ripe(wall);
        }
        let lost = *shown == Shown::Lost;
        let another_kind = self.reads > 0 && matches!(shown, Shown::Lost | Shown::Sick { .. }) && lost != self.lost;
        if aside && (*shown == Shown::Healthy || another_kind) {
            // Should it be one all the same, it is the first of its kind.
            if another_kind {
                self.asides.get_or_insert((began, 0)).1 += 1;
            }
            return true;
        }
        match shown {
            Shown::Lost | Shown::Sick { .. } => {
                let asides = std::mem::take(&mut self.asides);
                if lost != self.lost {
                    let (former, recalled) = (self.reads, self.recalled);
                    self.set_aside();
                    self.clear();
                    (self.former, self.recalled) = (former, recalled);
                    self.lost = lost;
                    if let Some((first, reads)) = asides {
                        self.recalled += reads;
                        self.sick_for = elapsed(first, began).min(self.max_gap);
                    }
                }
                if lost {
                    self.loses(gap);
                }
                if self.reads > 0 {
                    self.sick_for += gap;
                }
                self.reads += 1;
                self.healthy_for = Duration::ZERO;
                let Shown::Sick { grace, .. } = shown else {
                    self.seen.clear();
                    return true;
                };
                self.since.get_or_insert(began);
                if !aside {
                    self.seen.retain(|(seen, _)| seen != grace);
                    self.seen.push((*grace, began));
                }
                if self.sick_for >= self.grace(*grace) {
                    self.ripe_since.get_or_insert(wall);
                    self.is_ripe(wall);
                }
            }
            Shown::Healthy => {
                if self.has_job {
                    // Its workers may have fallen silent: evidence of another kind.
                    self.seen.clear();
                }
                self.healthy_for += if unseen { Duration::ZERO } else { gap };
                if self.healthy_for >= self.policy.heal {
                    self.set_aside();
                    self.clear();
                    if self.absences > 0 {
                        self.former_loss = (self.lost_for, self.absences);
                    }
                    (self.lost_for, self.absences) = (Duration::ZERO, 0);
                }
            }
            Shown::Wanted | Shown::Unknown => self.unseen = unseen,
        }
        true
    }

    /// What is cleared now may stand in the journal still: a write failed, or no diagnosis was made while a delete was under way.
    fn set_aside(&mut self) {
        if self.reads > 0 {
            self.former_sickness = (self.sick_for, self.reads);
        }
    }

    fn clear(&mut self) {
        (self.sick_for, self.reads, self.healthy_for) = (Duration::ZERO, 0, Duration::ZERO);
        (self.ripe_since, self.lost, self.since) = (None, false, None);
        self.seen.clear();
        (self.former, self.recalled, self.asides) = (0, 0, None);
    }

    pub fn reports(&mut self, of: &Incarnation, reports: &[WorkerReport], workers: usize, wall: Timestamp) {
        if self.incarnation.as_ref() != Some(of) {
            return;
        }
        let last = self.attributes_at.replace(wall).map(|last| last.min(wall));
        let gap = last.map_or(Duration::ZERO, |last| elapsed(last, wall).min(self.max_gap));
        for (index, report) in reports.iter().enumerate() {
            let worker = self.workers.entry(index).or_default();
            worker.booted |= report.boot.is_some();
            match &report.heartbeat {
                Some(beat) => {
                    let value = (beat.boot_id.clone(), beat.value);
                    if worker.heartbeat.as_ref() == Some(&value) {
                        worker.quiet_for += gap;
                    } else {
                        worker.heartbeat = Some(value);
                        worker.quiet_for = Duration::ZERO;
                    }
                }
                None => worker.quiet_for += gap,
            }
        }
        if reports.len() >= workers && !(0..workers).all(|index| self.workers.get(&index).is_some_and(|w| w.booted)) {
            self.unbooted_for += gap;
        }
        if self.is_dead_inside() {
            self.is_ripe(wall);
        }
    }

    /// What the workers' reports add up to, in words.
    pub fn inside(&self) -> String {
        let quiet: Vec<Duration> = self.workers.values().map(|w| w.quiet_for).collect();
        let (boot, silent) = (self.policy.grace.boot, self.policy.grace.silent);
        format!("without boot for {:?} of {boot:?}, quiet for {quiet:?} of {silent:?}", self.unbooted_for)
    }

    /// Whether the workers' reports say that the node is dead although it looks healthy.
    pub fn is_dead_inside(&self) -> bool {
        let quiet = self.workers.values().map(|w| w.quiet_for).max().unwrap_or_default();
        self.unbooted_for >= self.policy.grace.boot || quiet >= self.policy.grace.silent
    }
}
