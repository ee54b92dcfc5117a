//! The last lines of runs that failed: those that were told, and the one that may name the cause.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::beacon::Meaning;

/// A line that is shown among other words is cut here.
const SHOWN: usize = 160;

/// The last line of a run on one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastLine {
    /// Cut for showing.
    pub line: String,
    /// The meaning of all that was reported.
    pub meaning: Option<Meaning>,
}

impl LastLine {
    /// A cause that is known, then unknown words, then those of a process that died because
    /// another one had.
    fn rank(&self) -> u8 {
        match &self.meaning {
            Some(meaning) if meaning.is_victim => 2,
            Some(_) => 0,
            None => 1,
        }
    }

    /// The line and its meaning, in words.
    pub fn text(&self) -> String {
        match &self.meaning {
            Some(meaning) => format!("{} ({}: {})", self.line, meaning.class, meaning.advice),
            None => self.line.clone(),
        }
    }
}

/// The runs whose last lines were kept, of the present generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptLines {
    /// The generation.
    pub generation: u64,
    /// The report of each worker that was taken in last.
    pub reports: BTreeMap<usize, String>,
    /// The last line of each worker whose lines were kept.
    pub last: BTreeMap<usize, LastLine>,
}

impl KeptLines {
    /// Whether a worker ended with the words of one whose lines were kept: they differ in numbers
    /// alone.
    pub fn knows(&self, last: &str) -> bool {
        let words = |line: &str| line.replace(|c: char| c.is_ascii_digit(), "");
        self.last.values().any(|known| words(&known.line) == words(last))
    }

    /// The worker whose last line may name the cause, and that line.
    pub fn cause(&self) -> Option<(usize, &LastLine)> {
        let all = self.last.iter().map(|(worker, last)| (*worker, last));
        all.min_by_key(|(worker, last)| (last.rank(), *worker))
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
        let last = |line: &str, class: Option<(&str, bool)>| LastLine {
            line: line.to_owned(),
            meaning: class.map(|(class, is_victim)| Meaning {
                class: class.to_owned(),
                is_victim,
                advice: "Look.".to_owned(),
            }),
        };
        let mut kept = KeptLines::default();
        kept.last.insert(0, last("Task 2 heartbeat timeout", Some(("victim_of_sibling", true))));
        assert_eq!(kept.cause().map(|(worker, _)| worker), Some(0));
        kept.last.insert(2, last("ValueError: shapes", None));
        assert_eq!(kept.cause().map(|(_, last)| last.text()), Some("ValueError: shapes".into()));
        kept.last.insert(3, last("Ran out of memory", Some(("oom_hbm", false))));
        let text = kept.cause().map(|(_, last)| last.text());
        assert_eq!(text, Some("Ran out of memory (oom_hbm: Look.)".into()));
        assert!(kept.knows("Task 7 heartbeat timeout") && !kept.knows("KeyError: 'x'"));
    }
}
