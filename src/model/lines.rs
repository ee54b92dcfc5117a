//! The last lines of runs that failed: those that were told, and the one that may name the cause.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A line that is shown among other words is cut here.
const SHOWN: usize = 160;

/// Words of processes that died because another one had: the cause is in another worker's lines.
const VICTIMS: [&str; 5] = [
    "heartbeat timeout",
    "coordination service",
    "distributed service detected fatal errors",
    "Socket closed",
    "Barrier timed out",
];

/// The runs whose last lines were kept, of the present generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptLines {
    /// The generation.
    pub generation: u64,
    /// The report of each worker that was taken in last.
    pub reports: BTreeMap<usize, String>,
    /// The last line of each worker whose lines were kept.
    pub last: BTreeMap<usize, String>,
}

impl KeptLines {
    /// Whether a worker ended with the words of one whose lines were kept: they differ in numbers
    /// alone.
    pub fn knows(&self, last: &str) -> bool {
        let words = |line: &str| line.replace(|c: char| c.is_ascii_digit(), "");
        self.last.values().any(|known| words(known) == words(last))
    }

    /// The last line that may name the cause, and its worker: not that of a process that died
    /// because another one had, where there is a better one.
    pub fn cause(&self) -> Option<(usize, &str)> {
        let is_victim = |line: &str| VICTIMS.iter().any(|words| line.contains(words));
        let mut all = self.last.iter().map(|(worker, line)| (*worker, line.as_str()));
        let first = all.clone().next();
        all.find(|(_, line)| !is_victim(line)).or(first)
    }
}

/// A line as it is shown among other words.
pub fn shown(line: &str) -> String {
    if line.chars().count() <= SHOWN {
        return line.to_owned();
    }
    line.chars().take(SHOWN).chain("…".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_looked_for_beyond_the_victims() {
        let mut kept = KeptLines::default();
        kept.last.insert(0, "Task 2 heartbeat timeout. This indicates that the".into());
        assert_eq!(kept.cause().map(|(worker, _)| worker), Some(0));
        kept.last.insert(2, "ValueError: shapes".into());
        assert_eq!(kept.cause(), Some((2, "ValueError: shapes")));
        assert!(kept.knows("Task 7 heartbeat timeout. This indicates that the"));
        assert!(!kept.knows("KeyError: 'x'"));
    }
}
