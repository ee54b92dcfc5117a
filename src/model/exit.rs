//! The supervisor's report `exit`, as far as decisions depend on it. The words are those of
//! `launch/supervisor/runs.sh`.

use serde::{Deserialize, Serialize};

use super::beacon::Beacon;

/// How the job's last run on one worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With code 0. The first supervisor says neither how long it ran nor how far it came.
    Well {
        /// The length of the run in seconds, where it is known.
        ran: Option<u64>,
        /// The last step that it wrote, where it is known.
        step: Option<u64>,
        /// The job itself said that its work is done: it wrote the file `TPU_WATCHDOG_DONE`.
        said: bool,
        /// Processes that it had started were still running, and were ended.
        left: bool,
    },
    /// It is started again, or has run for long since.
    Passing,
    /// On one host of several it waits for a newer order, which starts all of them together.
    Waits,
    /// The restarts are used up; on several hosts it is still tried every ten minutes.
    GaveUp,
    /// It is not started again from the checkpoint that its order names: a run of that order was
    /// long.
    StaleOrder,
}

impl Exit {
    /// Reads one report.
    pub fn of(report: &Beacon) -> Exit {
        let number = |key: &str| {
            report
                .text
                .split(' ')
                .find_map(|word| word.strip_prefix(key)?.trim_end_matches(';').parse().ok())
        };
        match (report.value, report.text.split(' ').next().unwrap_or_default()) {
            (0, _) => Exit::Well {
                ran: ran(&report.text),
                step: number("step="),
                said: report.text.contains("TPU_WATCHDOG_DONE"),
                left: left_running(&report.text),
            },
            (_, "final" | "failing") => Exit::GaveUp,
            (_, "stale_order") => Exit::StaleOrder,
            (_, "waits:") => Exit::Waits,
            _ => Exit::Passing,
        }
    }
}

/// Whether the text of an end with 0 says that something which the command had started still ran.
pub fn left_running(text: &str) -> bool {
    text.contains("; left running: ")
}

/// Whether the text of an exit says that the end of its machine had been announced.
pub fn follows_a_notice(text: &str) -> bool {
    text.contains("; after a notice")
}

/// How long the run was that ended, in seconds, as the text of its exit says.
pub fn ran(text: &str) -> Option<u64> {
    text.split(' ')
        .find_map(|word| word.strip_prefix("ran=")?.trim_end_matches([';', ':']).parse().ok())
}

/// Why a job that ended waits for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stuck {
    /// Its restarts are used up.
    GaveUp,
    /// Its order names an older checkpoint than it had reached.
    StaleOrder,
    /// On one host of several it waits for a newer order, for a few minutes.
    Waits,
    /// Its hosts wait for each other, and not all of them have called.
    RollCall,
    /// A host can't be set up: its startup script fails, or it has no index.
    Setup,
    /// A process that is not its own holds the chips of a host.
    ChipsBusy,
    /// One of its own does, which can't be ended.
    ChipsStuck,
    /// It ended with 0, and nothing shows that it did its work.
    EndedEarly,
}

impl Stuck {
    /// The label `class` of `job_failures_total`.
    pub fn class(self) -> &'static str {
        match self {
            Stuck::GaveUp => "exit",
            Stuck::StaleOrder => "stale_order",
            Stuck::Waits => "waits",
            Stuck::RollCall => "roll_call",
            Stuck::Setup => "setup",
            Stuck::ChipsBusy => "chips_busy",
            Stuck::ChipsStuck => "chips_stuck",
            Stuck::EndedEarly => "ended_early",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_supervisors_are_understood() {
        let exit = |value: i64, text: &str| {
            Exit::of(&Beacon {
                boot_id: "b".into(),
                generation: 1,
                attempt: 0,
                value,
                text: text.into(),
            })
        };
        let well = |ran, step, said| Exit::Well { ran, step, said, left: false };
        assert_eq!(exit(0, "done"), well(None, None, false));
        assert_eq!(exit(0, "done ran=734 step=none"), well(Some(734), None, false));
        assert_eq!(exit(0, "done ran=4 step=1200"), well(Some(4), Some(1200), false));
        let said = "done ran=4 step=none; it wrote TPU_WATCHDOG_DONE";
        assert_eq!(exit(0, said), well(Some(4), None, true));
        let left = "done ran=4 step=1200; left running: python3";
        let (ran, step) = (Some(4), Some(1200));
        assert_eq!(exit(0, left), Exit::Well { ran, step, said: false, left: true });
        assert_eq!(exit(1, "final after 5 restarts"), Exit::GaveUp);
        assert_eq!(exit(1, "failing after 5 restarts: tried again every 600 s"), Exit::GaveUp);
        assert_eq!(
            exit(75, "stale_order ran=600: a run of this order lasted that long"),
            Exit::StaleOrder
        );
        assert_eq!(exit(1, "restarting 1 of 5 in 10 s"), Exit::Passing);
        assert_eq!(exit(1, "recovered ran=600"), Exit::Passing);
    }
}
