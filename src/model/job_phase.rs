//! Where a job stands on its hosts, as their heartbeats tell.

use super::beacon::Beacon;
use super::names::named;

/// The longest words of a heartbeat that are kept.
const WORDS_MAX: usize = 160;

named! {
/// A phase of a job; that of a slice is the first of those that its hosts are in.
JobPhase {
    /// A host waits for its startup script, its user, its secrets, its code.
    Setup = "setup",
    /// A host waits for the others, for an order, or to be started again.
    Waiting = "waiting",
    /// A host's chips are held by another process.
    Chips = "chips",
    /// Its run has just ended there; its code and last lines are being reported.
    Exited = "exited",
    /// It has started, and no step was reported since.
    Compile = "compile",
    /// It runs.
    Running = "running",
    /// It was asked for a checkpoint, since the end of its machine is announced.
    Saving = "saving",
    /// It has ended, and is not started again by its hosts.
    Failed = "failed",
    /// It has ended well.
    Done = "done",
}
}

impl JobPhase {
    /// The phase that a heartbeat tells; none where it tells none.
    pub fn of(heartbeat: &Beacon) -> Option<JobPhase> {
        let word = heartbeat.text.split([' ', ':', ';']).next().unwrap_or_default();
        Some(match word {
            "setup" | "setup_failed" => JobPhase::Setup,
            "roll_call" | "waiting" | "restarting" | "stopping" => JobPhase::Waiting,
            "chips_busy" | "chips_stuck" => JobPhase::Chips,
            "exited" => JobPhase::Exited,
            "running" | "idle" => JobPhase::Running,
            "saving" => JobPhase::Saving,
            "failed" | "stale_order" | "ended_early" => JobPhase::Failed,
            "done" => JobPhase::Done,
            _ => return None,
        })
    }

    /// The same with the heartbeat's words, where they say more: of many hosts they are stored, too.
    pub fn told(heartbeat: &Beacon) -> Option<(JobPhase, String)> {
        let phase = JobPhase::of(heartbeat)?;
        let said = if phase.is_before_a_run() { heartbeat.text.as_str() } else { "" };
        Some((phase, said.chars().take(WORDS_MAX).collect()))
    }

    /// Whether nothing of the job runs, and it will.
    pub fn is_before_a_run(self) -> bool {
        matches!(self, JobPhase::Setup | JobPhase::Waiting | JobPhase::Chips)
    }
}
