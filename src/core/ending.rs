//! How a job's runs end: what a worker's `exit` means, and when nothing more is done about the job until an operator answers.
//!
//! It reads the exits that workers report, with their codes, their last lines and the generation that they belong to. Of
//! several workers the one whose lines name a cause speaks for all. It concludes that the job is finished, that its
//! supervisor starts it again by itself, that an order does, or that an operator has to answer first.
//!
//! Exit code 0 alone finishes nothing: a command that puts the training into the background ends with it after a second. A
//! slot that was taken for finished by mistake would be left alone at its next preemption. So it counts with evidence alone:
//! the job said so, ran for long enough, or made a new step.
//!
//! It never ends a run, and no exit is evidence against a TPU.
//!
//! Example: worker 0 exits with 0 after 40 s and without a step. That is `ended_early`: shown, held, and answered by `done`
//! (its work is done) or `retry` (it is to run).

use std::time::Duration;

use jiff::Timestamp;

use crate::model::beacon::{Beacon, Idle, WorkerReport};
use crate::model::condition::Condition;
use crate::model::exit::{Exit, Stuck, left_running};
use crate::model::hold::HoldReason;
use crate::model::lines::KeptLines;
use crate::model::slot::SlotRecord;
use crate::model::time::elapsed;
use crate::model::view::Decision;

/// A run of this length counts as work done, also without a step or checkpoint. The supervisor's
/// LONG is the same.
pub const LONG: Duration = Duration::from_secs(600);

/// Hosts that wait for each other for this long don't meet by themselves.
const ROLL_CALL: Duration = Duration::from_secs(600);

/// Takes the workers' exits in. `whole`: every worker answered. Returns whether the job has
/// finished.
///
/// Reports of another boot or of an earlier generation than `from` are stale, and so are those that
/// a `retry` has answered. A startup script that fails for `set_up` is a failure of the job that
/// waits for it.
pub fn exits(
    record: &mut SlotRecord,
    reports: &[WorkerReport],
    from: u64,
    key: Option<&str>,
    whole: bool,
    set_up: Duration,
    now: Timestamp,
) -> bool {
    let (mut finished, mut failed) = (false, None);
    // Any process of the guest may write these attributes: a run that was never ordered is none.
    let newest = record.job.generation.max(from);
    for (index, report) in reports.iter().enumerate() {
        let boot = report
            .boot
            .as_ref()
            .or(report.heartbeat.as_ref())
            .map(|beacon| beacon.boot_id.as_str());
        let of_this_boot = |boot_id: &str| boot.is_none_or(|boot| boot == boot_id);
        let Some(exit) = report.exit.as_ref().filter(|exit| {
            // A supervisor that follows a newer order, or runs the job again, has left that run behind.
            let left = report.boot.as_ref().is_some_and(|boot| boot.run() > exit.run());
            let counts = (from..=newest).contains(&exit.generation) && !left;
            counts && of_this_boot(&exit.boot_id)
        }) else {
            record.job.exits.remove(&index);
            continue;
        };
        let text = exit.id();
        // Judged when it is first seen: a training in the background makes steps and checkpoints
        // after the command's end, too.
        let judged = record.job.early.as_ref() == Some(&text);
        record.job.exits.insert(index, text.clone());
        if record.job.pardoned.get(&index) == Some(&text) {
            continue;
        }
        record.job.pardoned.remove(&index);
        let stuck = match Exit::of(exit) {
            Exit::Well { ran, step, said, left }
                if index == 0
                    && Some(exit.generation) > record.job.wanted_again
                    && has_command(key) =>
            {
                finished = !judged && (said || !left && did_its_work(record, ran, step, now));
                record.job.early = (!finished).then_some(text);
                (!finished).then_some(Stuck::EndedEarly)
            }
            Exit::GaveUp => Some(Stuck::GaveUp),
            Exit::StaleOrder => Some(Stuck::StaleOrder),
            Exit::Waits => Some(Stuck::Waits),
            Exit::Well { .. } | Exit::Passing => None,
        };
        failed = failed.or_else(|| Some((stuck?, (index, exit.value, exit.text.clone()))));
    }
    // A next run that can't start comes before the end of the last one.
    let failed = chips(reports).or(or_set_up(failed, setup(record, reports, set_up, now)));
    let failed = failed.or_else(|| roll_call(record, reports, from, now));
    // An answer that lacks the worker says nothing about it.
    let answered = |worker: usize| whole || worker < reports.len();
    match failed {
        Some((stuck, worker)) => {
            (record.job.stuck, record.job.failed) = (Some(stuck), Some(worker))
        }
        None if record.job.failed.as_ref().is_none_or(|(worker, ..)| answered(*worker)) => {
            clear(record)
        }
        None => {}
    }
    finished
}

/// The end of a run that rests for good stands, whatever its hosts say since; one that waits for an
/// order comes after a host that can't be set up.
pub fn or_set_up<T>(failed: Option<(Stuck, T)>, set_up: Option<(Stuck, T)>) -> Option<(Stuck, T)> {
    match failed {
        Some((Stuck::EndedEarly | Stuck::GaveUp, _)) => failed,
        failed => set_up.or(failed),
    }
}

/// The heartbeat of the boot whose beacon has come: one of the boot before says nothing of this one.
fn present(report: &WorkerReport) -> Option<&Beacon> {
    let other =
        |beat: &&Beacon| report.boot.as_ref().is_some_and(|boot| boot.boot_id != beat.boot_id);
    report.heartbeat.as_ref().filter(|beat| !other(beat))
}

/// A host that could not be set up for long: its job waits, and nothing else would tell.
fn setup(
    record: &mut SlotRecord,
    reports: &[WorkerReport],
    grace: Duration,
    now: Timestamp,
) -> Option<(Stuck, (usize, i64, String))> {
    let failing = |(index, report): (usize, &WorkerReport)| {
        let beat = present(report).filter(|beat| beat.idle() == Some(Idle::SetUpFails))?;
        Some((index, 0, beat.text.clone()))
    };
    let Some(worker) = reports.iter().enumerate().find_map(failing) else {
        record.job.setup_since = None;
        return None;
    };
    let since = *record.job.setup_since.get_or_insert(now);
    (elapsed(since, now) >= grace).then_some((Stuck::Setup, worker))
}

/// A host whose chips another process holds.
fn chips(reports: &[WorkerReport]) -> Option<(Stuck, (usize, i64, String))> {
    reports.iter().enumerate().find_map(|(index, report)| {
        let beat = present(report)?;
        let stuck = match beat.idle()? {
            Idle::ChipsBusy => Stuck::ChipsBusy,
            Idle::ChipsStuck => Stuck::ChipsStuck,
            _ => return None,
        };
        Some((stuck, (index, 0, beat.text.clone())))
    })
}

/// Hosts that are all set up and don't meet: nothing else would tell.
fn roll_call(
    record: &mut SlotRecord,
    reports: &[WorkerReport],
    from: u64,
    now: Timestamp,
) -> Option<(Stuck, (usize, i64, String))> {
    let beats = || reports.iter().filter_map(present);
    let set_up = beats().all(|beat| !beat.in_setup());
    let calls = |beat: &&Beacon| beat.idle() == Some(Idle::RollCall) && beat.generation >= from;
    let called = reports
        .iter()
        .enumerate()
        .find_map(|(index, report)| Some((index, 0, present(report).filter(calls)?.text.clone())));
    let Some(worker) = called.filter(|_| set_up) else {
        record.job.roll_call_since = None;
        return None;
    };
    let since = *record.job.roll_call_since.get_or_insert(now);
    (elapsed(since, now) >= ROLL_CALL).then_some((Stuck::RollCall, worker))
}

/// A startup script that ends well has set a host up: only a command can finish.
fn has_command(key: Option<&str>) -> bool {
    key.and_then(|key| key.rsplit_once('\n')).is_some_and(|(command, _)| !command.trim().is_empty())
}

/// Whether the run that ended with 0 is known to have worked: for long enough, or to a new step or
/// checkpoint.
fn did_its_work(record: &SlotRecord, ran: Option<u64>, step: Option<u64>, now: Timestamp) -> bool {
    // The first supervisor did not say for how long: at the most since its node is READY.
    let ran = ran.map(Duration::from_secs).or(record.ready_since.map(|ready| elapsed(ready, now)));
    let runs = &record.job.runs;
    let before = runs.started_from.max(runs.listed_before);
    let saved = record.job.checkpoint.as_ref().map(|checkpoint| checkpoint.step) > before
        && record.job.checkpoint_at >= record.ready_since;
    ran.is_some_and(|ran| ran >= LONG) || runs.stepped || step > runs.started_from || saved
}

/// Nothing is known to have ended.
pub fn clear(record: &mut SlotRecord) {
    (record.job.failed, record.job.stuck) = (None, None);
    record.job.failing_since = None;
}

/// Another node, another run: what was reported before is stale.
pub fn forget(record: &mut SlotRecord) {
    clear(record);
    record.job.early = None;
    record.job.exits.clear();
    record.job.pardoned.clear();
    record.job.reboots.clear();
    (record.job.ungathered_for, record.job.short_for) = (Duration::ZERO, Duration::ZERO);
    record.job.stuck_for = Duration::ZERO;
    record.job.has_run = false;
    record.job.lines = KeptLines::default();
}

/// An operator says that the job is wanted: what was reported so far counts no more. Returns
/// whether it had ended.
pub fn retry(record: &mut SlotRecord) -> bool {
    let ended = record.job.failed.is_some();
    record.job.pardoned.clone_from(&record.job.exits);
    clear(record);
    ended
}

/// A newer order is followed: the exits before it count no more. One of its own may have been reported
/// in the same answer.
pub fn leave_behind(record: &mut SlotRecord, generation: u64) {
    let before = |worker: &usize| record.exit_of(*worker).is_none_or(|(of, _)| of < generation);
    let exits = record.job.exits.iter().filter(|(worker, _)| before(worker));
    record.job.pardoned = exits.map(|(worker, text)| (*worker, text.clone())).collect();
    clear(record);
}

/// Whether its job has ended on a TPU whose hosts follow a newer order.
pub fn is_started_again_by_an_order(record: &SlotRecord) -> bool {
    let ended = record.job.finished.is_some() || record.job.failed.is_some();
    let there = record.seen.as_ref().is_some_and(|seen| seen.ready);
    ended && there && record.incarnation.is_some() && record.takes_orders()
}

/// When a job that an operator wants again starts. A supervisor before version 2 that rests can't be
/// told before its next boot, and one whose order is stale or done not even then.
pub fn starts_again(record: &SlotRecord) -> Option<&'static str> {
    let job = &record.job;
    match job.stuck {
        _ if is_started_again_by_an_order(record) => {
            Some("; the job is started again on the TPU that is there")
        }
        _ if job.finished.is_some() => {
            Some("; the job was finished, and starts at the next recreate")
        }
        Some(Stuck::StaleOrder) => {
            Some("; the job's order is stale, so it starts at the next recreate")
        }
        _ if job.failed.is_some() => {
            Some("; the job starts at the next boot of its hosts, or recreate")
        }
        _ => None,
    }
}

/// The event when a job has ended and waits.
pub fn told(record: &SlotRecord) -> Option<(i64, String)> {
    let (worker, code, text) = record.job.failed.as_ref()?;
    let message = match record.job.stuck {
        Some(Stuck::EndedEarly) if left_running(text) => format!(
            "worker {worker} ended with code 0 ({text}), while what it had started still ran: all of it was ended with the command, so its \
             work may not be done. Let the command wait for its trainer (no `&`, or `wait` at its end). The TPU is kept; see \
             `ended_early` in the runbook"
        ),
        Some(Stuck::EndedEarly) => format!(
            "worker {worker} ended with code 0 ({text}), but nothing shows that the job did its work: less than 10 min of running, no \
             new step, no new checkpoint. The TPU is kept; see `ended_early` in the runbook"
        ),
        Some(Stuck::StaleOrder | Stuck::Waits) if record.takes_orders() => format!(
            "worker {worker} ended with code {code} ({text}): a newer run order follows, from the newest checkpoint, unless its restarts are used up"
        ),
        Some(Stuck::StaleOrder) => format!(
            "worker {worker} does not start the job again ({text}): the command reads CHECKPOINT_PATH, which would send it back to the \
             checkpoint of the TPU's creation; see `stale_order` in the runbook"
        ),
        Some(Stuck::Waits) => format!("worker {worker} ended with code {code} ({text})"),
        Some(Stuck::RollCall) => format!(
            "the hosts have waited for each other for 10 min, and nothing has started (worker {worker}: {text})"
        ),
        Some(Stuck::Setup) => format!(
            "worker {worker} could not be set up for 30 min, and the job waits for it: {text}"
        ),
        Some(Stuck::ChipsBusy | Stuck::ChipsStuck) => {
            format!(
                "the job does not start again: {}",
                evidence(record.job.stuck, *worker, *code, text)
            )
        }
        Some(Stuck::GaveUp) | None => {
            format!("worker {worker} ended with code {code} and is not started again ({text})")
        }
    };
    Some((*code, message + &last_line(record)))
}

/// The condition of a slot whose job has ended, or can't start.
pub fn condition(record: &SlotRecord) -> Condition {
    match record.job.stuck {
        Some(Stuck::Setup) => Condition::SetupFailed,
        Some(Stuck::ChipsBusy | Stuck::ChipsStuck) => Condition::ChipsBusy,
        _ => Condition::JobFailed,
    }
}

/// How the job's failure is told in a verdict: of a host that started nothing, no code.
pub fn evidence(stuck: Option<Stuck>, worker: usize, code: i64, text: &str) -> String {
    match stuck {
        Some(Stuck::RollCall) => format!("the hosts wait for each other (worker {worker}: {text})"),
        Some(Stuck::Setup) => format!("worker {worker} could not be set up: {text}"),
        Some(Stuck::ChipsBusy | Stuck::ChipsStuck) => format!("worker {worker}: {text}"),
        _ => format!("worker {worker} ended with code {code}: {text}"),
    }
}

/// The last line of the present generation that may name the cause, to follow what is told.
pub fn last_line(record: &SlotRecord) -> String {
    let lines = &record.job.lines;
    let present = lines.generation >= record.heard_from();
    lines.cause().filter(|_| present).map_or(String::new(), |(worker, line)| {
        format!("; last line of worker {worker}: {}", line.text())
    })
}

/// Which workers the hosts of a slice say that they are.
pub fn said_indices(record: &SlotRecord) -> String {
    let said = |index: &Option<usize>| index.map_or("none".to_owned(), |index| index.to_string());
    let said: Vec<String> = record.indices().iter().map(said).collect();
    format!("its {} hosts say that they are the workers {}", said.len(), said.join(", "))
}

/// Why an exit with 0 is no success.
pub fn too_early(record: &SlotRecord) -> &'static str {
    if record.job.failed.as_ref().is_some_and(|(.., text)| left_running(text)) {
        "exit 0 while processes that it had started still ran"
    } else {
        "exit 0 after less than 10 min, without a new step or checkpoint"
    }
}

/// The hold of a slot whose job has ended and waits, under the condition `job_failed`.
pub fn hold(record: &SlotRecord, evidence: &str) -> Decision {
    let name = &record.name;
    if record.job.failed.is_none() {
        // A newer order is followed, and the node was not read since.
        return Decision::wait("its job has started again; the next read shows it", None);
    }
    let (reason, text) = match record.job.stuck {
        // By itself, if not before: not all of its workers follow newer orders.
        Some(Stuck::Waits) => return Decision::wait(format!("{evidence}: it starts again"), None),
        Some(Stuck::EndedEarly) => (
            HoldReason::EndedEarly,
            format!(
                "{evidence}: {}. If the work is done: `done {name}`; otherwise run the training in the foreground of the command, then {}",
                too_early(record),
                if record.takes_orders() {
                    format!("`relaunch {name}` (after a config change: `recreate {name}`)")
                } else {
                    format!("`retry {name}`; the job starts at the next boot or recreate")
                }
            ),
        ),
        Some(Stuck::StaleOrder) => (
            HoldReason::StaleOrder,
            format!(
                "{evidence}. `recreate {name}` replaces the TPU and starts from the newest checkpoint. Better: let the command find its own \
                 under $CHECKPOINT_BASE, without CHECKPOINT_PATH"
            ),
        ),
        Some(Stuck::RollCall) => apart(record, evidence),
        Some(Stuck::ChipsBusy) => chips_busy(record, evidence),
        Some(Stuck::ChipsStuck) => (
            HoldReason::ChipsBusy,
            format!(
                "{evidence}. That host is told to reboot, once; where it does not, `recreate {name}` replaces the TPU"
            ),
        ),
        Some(Stuck::Setup) => (
            HoldReason::SetupFailed,
            format!(
                "{evidence}: the startup script must end with code 0, and each host needs its agent-worker-number and the right to read \
                 each secret (roles/secretmanager.secretAccessor). It is tried on; `logs {name}` shows how the script ended"
            ),
        ),
        Some(Stuck::GaveUp) | None if record.takes_orders() => (
            HoldReason::JobFailed,
            format!(
                "{evidence}; fix the job (`logs {name}` shows how it ended), then `relaunch {name}`: it starts again on the same TPU, from its newest checkpoint. After a \
                 config change: `recreate {name}`"
            ),
        ),
        Some(Stuck::GaveUp) | None => (
            HoldReason::JobFailed,
            format!(
                "{evidence}; fix the job, then `retry {name}` and restart its hosts, or `recreate {name}`: the new TPU uses the present config"
            ),
        ),
    };
    Decision::hold(reason, text, None)
}

/// Hosts that have waited for each other for long.
fn apart(record: &SlotRecord, evidence: &str) -> (HoldReason, String) {
    let name = &record.name;
    let text = if record.has_its_indices() {
        format!(
            "{evidence}: a run starts when each of {} hosts has called worker 0, on TCP port 8377. Open it between the hosts of the TPU (the \
             network's rule default-allow-internal does), then `relaunch {name}`, which also ends a run that hangs on one of them; journalctl -u 'tpu-watchdog-*' on the hosts shows more",
            record.size().hosts
        )
    } else {
        format!(
            "{evidence}: a run starts when each host has called worker 0, and {}; a reboot of the hosts concerned may mend it, \
             `recreate {name}` replaces the TPU",
            said_indices(record)
        )
    };
    (HoldReason::JobFailed, text)
}

/// Another process holds the chips of a host.
fn chips_busy(record: &SlotRecord, evidence: &str) -> (HoldReason, String) {
    let worker = record.job.failed.as_ref().map_or(0, |(worker, ..)| *worker);
    let (node, worker) = record.host(worker);
    let text = format!(
        "{evidence}. It is not the job's, so nothing ends it; end it on that host, and the job starts by itself (gcloud compute tpus tpu-vm \
         ssh {node} --zone {} --worker {worker} --command 'sudo kill PID')",
        record.zone
    );
    (HoldReason::ChipsBusy, text)
}

/// Whether a job that ended with 0 too early is started once more: not after a start that was that
/// already, with no failure in between.
pub fn is_started_once_more(record: &SlotRecord) -> bool {
    let worker = record.job.failed.as_ref().map(|(worker, ..)| *worker);
    let generation = worker.and_then(|worker| Some(record.exit_of(worker)?.0));
    // A job that saves after its command ended runs elsewhere: a second run would meet it.
    let saves = record.job.progress_at > record.job.failed_at;
    let again = generation.is_some() && generation != record.job.runs.once_more;
    record.takes_orders() && again && !saves
}

/// A job that ended early may be at work in the background, or done: neither a replacement nor a
/// delete is known to be right.
pub fn holds_recreate(record: &SlotRecord, key: Option<String>) -> Option<Decision> {
    let same = record.job.ordered.is_none() || record.job.ordered == key;
    (record.job.stuck == Some(Stuck::EndedEarly) && same).then(|| {
        let (_, _, text) = record.job.failed.clone().unwrap_or_default();
        let text = format!(
            "{}, but its job ended with exit 0 ({text}) and may be done: `done {1}` when it is, `retry {1}` when it is not",
            record.verdict.condition.name(),
            record.name
        );
        Decision::hold(HoldReason::EndedEarly, text, None)
    })
}
