//! The condition of a slot from one successful read: the table, from the top, the first row that
//! matches.
//!
//! Unknown enum values and missing fields are never an error and never evidence: they give
//! `unclear`.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Verdict};
use crate::model::exit::Stuck;
use crate::model::fleet::Ledger;
use crate::model::hold::HoldReason;
use crate::model::node::{Health, NodeState, NodeView, Symptom};
use crate::model::phase::Phase;
use crate::model::queued::RequestState;
use crate::model::settings::{SlotSettings, WhenMissing};
use crate::model::slot::{Seen, SlotRecord};
use crate::model::time::{after, elapsed, span};

use super::{ending, life, resubmission};

/// The announced end of a maintenance is waited for at most this long after the first symptom.
pub const WINDOW_MAX: Duration = Duration::from_secs(6 * 3600);

/// A TPU that ends up to this long before its capacity does was ended by that: clocks differ.
pub const RUN_OUT: Duration = Duration::from_secs(300);

/// A node that was seen DELETING and was healthy for so long after that is not being deleted.
const STANDS_FOR: Duration = Duration::from_secs(300);

/// Evidence of a finished job.
const FINISHED: &str = "the job's success is journaled";

/// Diagnoses a node that was read.
pub fn node(
    record: &SlotRecord,
    slot: &SlotSettings,
    ledger: &Ledger,
    view: &NodeView,
    now: Timestamp,
) -> Verdict {
    use Condition::*;
    let health = view.health.as_ref();
    let text = format!(
        "{}state {}, health {}",
        view.slice.as_ref().map_or(String::new(), |slice| format!("slice {slice}: ")),
        view.state.as_str(),
        health.map_or("absent", Health::as_str)
    );
    // The remains of a finished job are removed: a dead node eats quota.
    if finished(record, slot) && !(view.is_lost() && record.ours) {
        return over(record);
    }
    if view.incarnation.is_none() {
        let why = "no creation time: the node can't be told from a later one";
        return Verdict::new(Unclear, format!("{text}, but {why}"));
    }
    if let Some(verdict) = &view.standing {
        let runs = verdict.condition == Condition::Healthy;
        let stalled = if runs { resubmission::stalled(record, slot) } else { None };
        return emptied(record, slot, view, now).or(stalled).unwrap_or_else(|| verdict.clone());
    }
    if let Some(condition) = by_state(&view.state) {
        return Verdict::new(condition, text);
    }
    match health {
        // S5: a value that this version does not know means hold, whatever else is said.
        Some(Health::Other(_)) => return Verdict::new(Unclear, text),
        Some(Health::UnhealthyMaintenance) => {
            return Verdict::new(Maintenance, text + &event(view));
        }
        _ if view.state == NodeState::Repairing => return Verdict::new(Maintenance, text),
        _ => {}
    }
    let ongoing = view.upcoming.as_ref().filter(|u| u.ongoing).map(|upcoming| {
        let end = upcoming.window_end.map_or(String::new(), |end| format!(" until {end:.0}"));
        format!("{text}, upcomingMaintenance ONGOING{end}")
    });
    // On a HEALTHY node it is shown and judges nothing: the notice may stay past the end of the
    // maintenance. So it does where the API says nothing of the health and its window is over.
    let judges = match health {
        Some(Health::Healthy) => false,
        Some(_) => true,
        None => view.upcoming.as_ref().is_some_and(|of| of.window_end.is_none_or(|end| now < end)),
    };
    if let Some(ongoing) = ongoing.as_ref().filter(|_| judges) {
        return Verdict::new(Maintenance, ongoing.clone());
    }
    match health {
        Some(Health::Timeout) => return Verdict::new(Unresponsive, text),
        Some(Health::UnhealthyTensorflow) => return Verdict::new(RuntimeUnhealthy, text),
        Some(Health::Unspecified) => return Verdict::new(Unclear, text),
        _ => {}
    }
    // Symptoms come last: no rule acts on them yet, and they must not hide what is acted on.
    if let Some(verdict) = supervisor(record, slot, ledger, now) {
        return verdict;
    }
    if let Some(verdict) = symptomatic(record, view, &text) {
        return verdict;
    }
    Verdict::new(Healthy, ongoing.unwrap_or(text))
}

/// Why a queued resource that is ACTIVE has no node, as far as more is known than it says itself.
fn emptied(
    record: &SlotRecord,
    slot: &SlotSettings,
    view: &NodeView,
    now: Timestamp,
) -> Option<Verdict> {
    let standing = view.standing.as_ref().filter(|_| view.not_listed)?;
    let ended = view.times.ends_at.filter(|_| runs_out(view, now));
    let wanted = record
        .wanted
        .as_ref()
        .filter(|w| w.incarnation.is_some() && view.incarnation == w.incarnation);
    let why = ended.map(|at| format!("its capacity ends at {at:.0}"));
    let why = why.or_else(|| Some(format!("{} wants it recreated", wanted?.who)));
    // A forced delete removes the nodes first, and may come to nothing then.
    let ours = record.recovery.as_ref().filter(|of| of.condemned == view.incarnation);
    let sent = ours.filter(|of| of.phases.iter().any(|(phase, _)| *phase == Phase::Deleting));
    let why = why.or_else(|| sent.map(|_| "the watchdog's delete took it along".to_owned()));
    if let Some(why) = why {
        return Some(Verdict::new(Condition::Preempted, format!("{}; {why}", standing.evidence)));
    }
    // Spot capacity that is taken back is told by its request, or by the node itself.
    let spot = standing.condition == Condition::Preempted;
    let unknown = !record.ours && record.ready_since.is_none();
    let (why, hold) = match (slot.policy.when_missing, &record.deleted) {
        (WhenMissing::Auto, None) if !spot && unknown => {
            ("no node of it was ever seen".to_owned(), HoldReason::Deleted)
        }
        (WhenMissing::Hold, None) if !spot => {
            ("when_missing = \"hold\"".to_owned(), HoldReason::Missing)
        }
        (WhenMissing::Create, _) | (_, None) => return None,
        (_, Some(watched)) => (watched.clone(), HoldReason::Deleted),
    };
    let text = format!(
        "{}; {why}. `recreate {1}` replaces it, `forget {1}` keeps it gone",
        standing.evidence, record.name
    );
    Some(Verdict::held(Condition::Stopped, text, hold))
}

/// A former version held such a queued resource as one that a person had emptied, and promised not to touch it.
pub fn keep_a_former_hold(record: &mut SlotRecord) {
    let emptied = record.seen.as_ref().is_some_and(|seen| seen.not_listed);
    let stopped = record.verdict.condition == Condition::Stopped && record.verdict.hold.is_none();
    if emptied && stopped {
        record.deleted.get_or_insert_with(|| "a former version held it as deleted".to_owned());
    }
}

/// Whether a delete that was noticed inside a queued resource came to nothing, or was a preemption that showed as one first.
/// A single read may show the past.
pub fn was_no_deletion(record: &SlotRecord, view: &NodeView, now: Timestamp) -> bool {
    let taken_back = view.by_service && view.state == NodeState::Preempted;
    let stands =
        record.verdict.condition == Condition::Healthy && elapsed(record.since, now) >= STANDS_FOR;
    let same = record.incarnation == view.incarnation && !record.traits().is_job;
    let inside = same && view.machines.is_some();
    inside && (taken_back || stands)
}

/// Whether it is a queued resource that stays granted, and a node of it is being deleted.
pub fn loses_its_node(view: &NodeView) -> bool {
    let goes = |verdict: &Verdict| verdict.condition == Condition::Going;
    let granted = view.own_state.as_deref() == Some(RequestState::Active.as_str());
    granted && view.standing.as_ref().is_some_and(goes)
}

/// A listing alone may lack the node of a request that is ACTIVE (S4): a GET has to say that it is gone.
/// The verdict of an earlier process on the `same` request stands until then.
pub fn unconfirmed(record: &SlotRecord, same: bool, verdict: Verdict, view: &NodeView) -> Verdict {
    if !(view.not_listed && matches!(verdict.condition, Condition::Stopped | Condition::SliceLost))
    {
        return verdict;
    }
    let said = (record.verdict.condition, &record.verdict.evidence);
    if same && said == (verdict.condition, &verdict.evidence) {
        return Verdict { unconfirmed: true, ..verdict };
    }
    let state = view.own_state.as_deref().unwrap_or("there");
    let text = format!(
        "the queued resource is {state}, and its node is absent from the listing, not yet confirmed by a GET"
    );
    Verdict { unconfirmed: true, ..Verdict::new(Condition::Unclear, text) }
}

/// The next step of an operator about a TPU that another client stopped or hid.
pub fn left_alone(record: &SlotRecord) -> String {
    if record.seen.as_ref().is_some_and(|seen| !seen.members.is_empty()) {
        return format!(
            "a queued resource that is suspended is never deleted; to have it replaced delete it, then `retry {}`",
            record.name
        );
    }
    "stopped or hidden by another client, so it is kept; start it to have it protected again"
        .to_owned()
}

/// Whether the time for which capacity was asked is over, or nearly so, whichever clock counts it
/// (flex-start).
pub fn runs_out(view: &NodeView, now: Timestamp) -> bool {
    view.times.ends_at.is_some_and(|at| at <= after(now, RUN_OUT))
}

/// The condition that follows from a node's state alone.
fn by_state(state: &NodeState) -> Option<Condition> {
    use Condition::*;
    match state {
        NodeState::Stopped | NodeState::Stopping | NodeState::Hidden | NodeState::Hiding => {
            Some(Stopped)
        }
        NodeState::Preempted => Some(Preempted),
        NodeState::Terminated => Some(Terminated),
        NodeState::Deleting => Some(Deleting),
        NodeState::Creating
        | NodeState::Starting
        | NodeState::Restarting
        | NodeState::Reimaging => Some(Starting),
        NodeState::Unknown => Some(FailedRepair),
        NodeState::Ready | NodeState::Repairing => None,
        NodeState::Unspecified | NodeState::Unhiding | NodeState::Other(_) => Some(Unclear),
    }
}

/// The event time of the health description, where it has one.
fn event(view: &NodeView) -> String {
    view.maintenance_event.map_or(String::new(), |at| format!(", maintenance event at {at:.0}"))
}

/// The symptoms that say something of a node that looks healthy otherwise.
fn symptomatic(record: &SlotRecord, view: &NodeView, text: &str) -> Option<Verdict> {
    // A symptom older than our first sight of the node is of a run that we know nothing of.
    let newer = |than: Option<Timestamp>| move |s: &&Symptom| than.is_some() && s.at > than;
    if let Some(abuse) =
        view.symptoms.iter().filter(newer(record.first_seen)).find(|s| s.kind == "PROJECT_ABUSE")
    {
        let text = format!("{text}, symptom {}: Google suspects abuse of this project", abuse.kind);
        return Some(Verdict::new(Condition::Degraded, text));
    }
    let known = record.job.progress_at.max(record.first_seen);
    let newest = view
        .symptoms
        .iter()
        .filter(newer(known))
        .filter(|s| matches!(s.kind.as_str(), "MESH_BUILD_FAIL" | "EXECUTE_TIMED_OUT"))
        .max_by_key(|s| s.at)?;
    let text = format!("{text}, symptom {} newer than the last progress", newest.kind);
    Some(Verdict::new(Condition::Degraded, text))
}

/// The known state of the job outranks a node that looks healthy.
pub fn reported(
    record: &SlotRecord,
    slot: &SlotSettings,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Verdict> {
    let finished = finished(record, slot).then(|| over(record));
    finished.or_else(|| supervisor(record, slot, ledger, now))
}

/// Whether what was diagnosed from the workers' reports still follows from them: they are read
/// apart from the node, and may have shown life since.
pub fn is_still_reported(
    record: &SlotRecord,
    slot: &SlotSettings,
    ledger: &Ledger,
    now: Timestamp,
) -> bool {
    let condition = record.verdict.condition;
    if condition == Condition::JobStalled {
        return resubmission::stalled(record, slot).is_some();
    }
    !condition.is_reported()
        || reported(record, slot, ledger, now).is_some_and(|verdict| verdict.condition == condition)
}

/// The verdict of the supervisor's reports; none for a node whose startup script is not ours.
fn supervisor(
    record: &SlotRecord,
    slot: &SlotSettings,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Verdict> {
    let seen = record.seen.as_ref().filter(|seen| seen.supervised)?;
    if !record.ours || slot.supervisor.is_none() {
        return None;
    }
    let failed = record.job.failed.as_ref().map(|(worker, code, text)| {
        let evidence = ending::evidence(record.job.stuck, *worker, *code, text);
        Verdict::new(ending::condition(record), evidence + &ending::last_line(record))
    });
    // Whom the others wait for may be dead.
    let lifeless = || lifeless(record, slot, ledger, now);
    let crippled = || crippled(record, slot, ledger, now);
    let gang = || crippled().filter(|of| of.condition == Condition::GangIncomplete);
    if seen.out_of_step.is_some() {
        // Of the job such hosts can't be heard: they are ordered first, unless they never come up for that.
        let never = || lifeless().filter(|of| of.condition == Condition::NeverBooted);
        return gang().or_else(never).or(failed.filter(|_| record.job.stuck == Some(Stuck::Setup)));
    }
    match record.job.stuck {
        Some(Stuck::RollCall) => crippled().or_else(lifeless).or(failed),
        // A dead host goes on saying so; a gang that can't form has its own cause.
        Some(Stuck::Setup | Stuck::ChipsBusy | Stuck::ChipsStuck) => {
            if let Some(verdict) = stuck_chips(record, slot) {
                return Some(verdict);
            }
            gang().or_else(lifeless).or(failed)
        }
        _ => crippled().or(failed).or_else(lifeless),
    }
}

/// Hosts that are alive, and can't run the job together as they came up.
fn crippled(
    record: &SlotRecord,
    slot: &SlotSettings,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Verdict> {
    let boot = slot.policy.grace.boot(record.size());
    // Hosts that made progress since they were heard have met.
    let met = record.job.progress_at > record.job.attributes_at && !has_stray(record, ledger);
    if record.job.ungathered_for >= boot && record.is_ungathered() && !met {
        let evidence = format!("up for {}, and {}", span(boot), ending::said_indices(record));
        return Some(Verdict::new(Condition::GangIncomplete, evidence));
    }
    let seen = record.seen.as_ref()?;
    let usual = *ledger.chips.get(&seen.accelerator)?;
    let short = record.short_of_chips(usual);
    let settled = record.job.short_for >= boot;
    let progressing =
        record.job.progress_at.is_some_and(|at| elapsed(at, now) < slot.policy.grace.silent);
    let first = short.first().filter(|_| settled && !progressing)?;
    let has = record.job.workers.get(first).and_then(|worker| worker.chips).unwrap_or(0);
    let evidence = format!(
        "worker {first} has {has} chips, other hosts of type {} had {usual}",
        seen.accelerator
    );
    Some(Verdict::new(Condition::ChipsMissing, evidence))
}

/// A host whose chips a process of an earlier run holds for good: a reboot did not end it, or did not come
/// about.
fn stuck_chips(record: &SlotRecord, slot: &SlotSettings) -> Option<Verdict> {
    let worker = record.has_stuck_chips()?;
    let (.., text) = record.job.failed.as_ref()?;
    let boot = slot.policy.grace.boot(record.size());
    let evidence =
        format!("worker {worker} was told to reboot, and {} later still: {text}", span(boot));
    (record.job.stuck_for >= boot).then(|| Verdict::new(Condition::ChipsMissing, evidence))
}

/// A stray that is at work may be the one that writes.
fn has_stray(record: &SlotRecord, ledger: &Ledger) -> bool {
    let ready = Some(NodeState::Ready.as_str());
    ledger.strays.values().any(|stray| stray.name == record.name && stray.state.as_deref() == ready)
}

/// A host that never booted, or whose heartbeat stands still.
fn lifeless(
    record: &SlotRecord,
    slot: &SlotSettings,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Verdict> {
    let ready = record.ready_since?;
    let boot = slot.policy.grace.boot(record.size());
    // A listing may show late what the former node wrote: only what comes after the time to boot is
    // this one's, and any mark ends by its rhythm.
    let stray = has_stray(record, ledger);
    let stands = life::progress_stands_until(&record.job, slot.policy.grace.silent);
    // Reports that were read before the newest mark say nothing of the hosts that made it.
    let outdated = record.job.progress_at > record.job.attributes_at;
    let progressed = record.job.progress_at.is_some_and(|at| elapsed(ready, at) >= boot)
        && (outdated || stands.is_some_and(|until| now < until))
        && !stray;
    let workers = record.seen.as_ref().map_or(1, |s| s.workers.max(1));
    let missing: Vec<usize> =
        (0..workers).filter(|w| !record.job.workers.get(w).is_some_and(|s| s.booted)).collect();
    let waited = record.job.unbooted_for;
    if let (true, false, Some(first)) = (waited >= boot, progressed, missing.first()) {
        let channel =
            if ledger.beacons_seen { "" } else { "; no beacon was ever received in this project" };
        let evidence = format!(
            "READY for {}, {} of {workers} workers (first: {first}) sent no boot beacon{channel}",
            span(waited),
            missing.len()
        );
        return Some(Verdict::new(Condition::NeverBooted, evidence));
    }
    let grace = slot.policy.grace.silent;
    let quiet = record.job.workers.iter().find(|(_, w)| w.quiet_for >= grace);
    let progressing = record.job.progress_at.is_some_and(|at| elapsed(at, now) < grace);
    if let (Some((worker, state)), false) = (quiet, progressing) {
        let evidence =
            format!("the heartbeat of worker {worker} stands still for {}", span(state.quiet_for));
        return Some(Verdict::new(Condition::Silent, evidence));
    }
    None
}

/// Whether a node that is deleted, or gone, was alive before: after what was lost, or maintenance on
/// Spot, that is only its end.
pub fn lived(seen: &Seen) -> bool {
    let ends = seen.spot && seen.health.as_deref() == Some(Health::UnhealthyMaintenance.as_str());
    (seen.ready || seen.creating || seen.stopped) && !ends
}

/// Whether a TPU that is gone was there before: alive, or as a queued resource that had lost its nodes already, which Google's
/// own two steps of deleting one do first.
pub fn was_there(seen: &Seen) -> bool {
    lived(seen) || seen.not_listed && !seen.spot
}

/// Whether the absence of a TPU, or of the nodes of a queued resource that is ACTIVE, may be a person's wish: who deleted it is
/// looked up.
pub fn may_be_on_purpose(record: &SlotRecord) -> bool {
    let Some(seen) = record.seen.as_ref().filter(|_| record.incarnation.is_some()) else {
        return false;
    };
    match record.verdict.condition {
        Condition::Missing => was_there(seen),
        Condition::SliceLost => seen.not_listed,
        _ => false,
    }
}

/// Whether a recovery has lost a node and has not got the next one yet. From READY on its replacement
/// is a node like any other, which an operator may delete.
pub fn is_owed(record: &SlotRecord) -> bool {
    record.recovery.as_ref().is_some_and(|recovery| !recovery.phase().stands())
}

/// That nothing more is wanted, and who says so.
pub fn over(record: &SlotRecord) -> Verdict {
    let by_hand = record.job.finished_by.as_ref().map(|done| {
        let (who, at) = (&done.who, done.at);
        format!("{who} said at {at:.0} that its job is done; what runs there was not stopped")
    });
    Verdict::new(Condition::Finished, by_hand.unwrap_or_else(|| FINISHED.to_owned()))
}

/// Whether the slot's present job is journaled as finished.
pub fn finished(record: &SlotRecord, slot: &SlotSettings) -> bool {
    record.job.finished.is_some() && record.job.finished == slot.job.as_ref().map(|j| j.key())
}

/// Whether a maintenance is announced as going on, whatever the node's health says. One without an
/// end, or with one far ahead, would excuse silence for too long.
pub fn is_in_window(view: &NodeView, now: Timestamp) -> bool {
    let soon = |end: Timestamp| now < end && elapsed(now, end) <= WINDOW_MAX;
    view.upcoming
        .as_ref()
        .is_some_and(|upcoming| upcoming.ongoing && upcoming.window_end.is_some_and(soon))
}
