//! How runs on several hosts end, by class: some ends are their machine's and count for nothing (free),
//! some would come again with every start (permanent).
//!
//! A single host's supervisor does the same by itself. An end is free after a notice, or where a
//! read that began before it showed the node as not healthy; three in a row at most. An end is
//! permanent when the last lines say that memory ran out, or when it is the third in a row with the
//! same code, which is not a transient one, each time without a new step.
//!
//! Example: worker 2 ends with code 1 ("KeyError: 'loss'"), and so do the others. Generations 5 and
//! 6 end the same way. The job is held after the third, not after `restart.per_run`.

use crate::model::exit;
use crate::model::settings::JobSettings;
use crate::model::slot::SlotRecord;

/// A run of so long refills the budget of restarts (the supervisor's REFILL), in seconds.
const REFILL: u64 = 3600;
/// So many ends with one code are a program's fault.
const SAME: u32 = 3;
/// A host went down in a run, or its supervisor was ended: that is counted, and no code of the program's.
const WENT_DOWN: i64 = 75;
/// So many in a row count for nothing.
const FREE: u32 = 3;

/// Whether the end of the present run is that of its machine.
pub fn is_free(record: &SlotRecord) -> bool {
    let job = &record.job;
    let noticed = present(record).any(|worker| exit::follows_a_notice(&job.exits[&worker]));
    let sick = record.suspicion.as_ref().zip(job.failing_since).zip(record.ready_since);
    // The sickness of the node before this one excuses nothing.
    let was_sick = sick.is_some_and(|((suspicion, failing), ready)| {
        suspicion.since < failing && suspicion.since >= ready
    });
    job.runs.free < FREE && (noticed || was_sick)
}

/// Why the present run would end the same way once more. `counts`: its end was not taken in yet.
pub fn permanent(record: &SlotRecord, job: &JobSettings, counts: bool) -> Option<String> {
    if is_free(record) {
        return None;
    }
    if let Some(line) = out_of_memory(record) {
        return Some(format!("memory ran out: {line}"));
    }
    let (code, times) = if counts { counted(record) } else { record.job.runs.code }?;
    let permanent = times >= SAME && code != WENT_DOWN && !job.transient_exit_codes.contains(&code);
    permanent.then(|| format!("code {code} {times} times in a row without a new step"))
}

/// The code of the present run, and how many runs in a row ended with it.
pub fn counted(record: &SlotRecord) -> Option<(i64, u32)> {
    let runs = &record.job.runs;
    let code = code(record).filter(|_| !runs.progressed)?;
    let alike = runs.code.filter(|(before, _)| *before == code && !was_long(record));
    let before = alike.map_or(0, |(_, times)| times);
    Some((code, before + 1))
}

/// Whether the present run was as long as one that refills the budget of a single host, where nothing
/// ever told a step: a job that can't show progress shows it by running.
pub fn was_long(record: &SlotRecord) -> bool {
    let runs = &record.job.runs;
    let signal = runs.best_step.is_some() || runs.best_listed.is_some();
    let ran = present(record).filter_map(|worker| exit::ran(&record.job.exits[&worker])).max();
    !signal && ran >= Some(REFILL)
}

/// The workers that have reported the end of the present run.
fn present(record: &SlotRecord) -> impl Iterator<Item = usize> + '_ {
    let of = move |worker: &usize| record.exit_of(*worker).map(|(generation, _)| generation);
    let newest = record.heard_from();
    record.job.exits.keys().copied().filter(move |worker| of(worker) == Some(newest))
}

/// The code of the worker whose last lines name a cause; else the one that all of them ended with.
fn code(record: &SlotRecord) -> Option<i64> {
    let code = |worker: usize| record.exit_of(worker).map(|(_, code)| code);
    if let Some((worker, _)) = record.known_cause() {
        return code(worker).filter(|_| present(record).any(|ended| ended == worker));
    }
    let mut codes = present(record).filter_map(code);
    let first = codes.next()?;
    codes.all(|other| other == first).then_some(first)
}

/// The line that says so; a run that had made new steps has fitted.
fn out_of_memory(record: &SlotRecord) -> Option<String> {
    let (_, last) = record.known_cause().filter(|_| !record.job.runs.stepped)?;
    last.meaning.as_ref()?.is_out_of_memory().then(|| last.text())
}
