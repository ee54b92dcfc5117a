//! The last lines of runs that failed: each is told once, as an event, so that they are there when the
//! TPU is gone.
//!
//! Of workers that end with the same words one is told, of a generation eight: 64 hosts that all lose
//! their coordinator say nothing that one of them does not.

use crate::model::beacon::WorkerReport;
use crate::model::event::What;
use crate::model::lines::{KeptLines, LastLine, shown};
use crate::model::slot::SlotRecord;

use super::turn::Turn;

/// Of a generation the lines of so many workers are told.
const WORKERS: usize = 8;

/// Tells the lines that the workers of a generation from `from` on report, each once.
pub fn keep(record: &mut SlotRecord, reports: &[WorkerReport], from: u64, turn: &mut Turn) {
    // Any process of the guest may write these attributes: a run that was never ordered is none.
    let newest = record.job.generation.max(from);
    for (worker, report) in reports.iter().enumerate() {
        let ordered = |generation: u64| (from..=newest).contains(&generation);
        let Some(lines) = report.lines.as_ref().filter(|l| ordered(l.of.generation)) else {
            continue;
        };
        let generation = lines.of.generation;
        let kept = &mut record.job.lines;
        if kept.generation < generation {
            *kept = KeptLines { generation, ..KeptLines::default() };
        }
        let id = lines.of.id();
        if kept.reports.insert(worker, id.clone()).is_some_and(|before| before == id) {
            continue;
        }
        let Some(last) = lines.lines.last() else { continue };
        let again = kept.last.contains_key(&worker);
        if kept.knows(last) || (!again && kept.last.len() >= WORKERS) {
            continue;
        }
        let last = LastLine { line: shown(last), meaning: lines.meaning.clone() };
        let text = format!("worker {worker}, generation {generation}: {}", last.text());
        kept.last.insert(worker, last);
        let what = What::LastLines {
            worker,
            generation,
            code: lines.of.value,
            lines: lines.lines.clone(),
            meaning: lines.meaning.clone(),
        };
        turn.tell(record, what, text);
    }
}
