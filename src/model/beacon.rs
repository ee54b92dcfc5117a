//! What the supervisor reports through guest attributes (namespace `tpu-watchdog`).
//!
//! Every value is `<boot_id> <generation>.<try> <counter or code> <text>`, so that a stale one is
//! never taken for a fresh one. Supervisors before version 4 leave the try out.

use serde::{Deserialize, Serialize};

/// The namespace of all guest attributes that the supervisor writes.
pub const NAMESPACE: &str = "tpu-watchdog";

/// The longest free text of a value that is kept: guest attributes hold up to 256 KiB.
const TEXT_MAX: usize = 300;
/// The longest boot id that is kept; Linux gives 36 characters.
const BOOT_ID_MAX: usize = 100;

/// So many lines of a `log` are kept, and so many characters of each.
const LINES: usize = 40;
const LINE_MAX: usize = 400;

/// Text from outside on one line: what could end a line, move a terminal's cursor or turn the
/// direction of writing becomes a space, a run of it one space.
pub fn plain(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    let mut after_a_break = false;
    for c in text.chars() {
        if breaks_a_line(c) {
            if !line.ends_with(' ') {
                line.push(' ');
            }
            after_a_break = true;
        } else if !(c == ' ' && after_a_break) {
            line.push(c);
            after_a_break = false;
        }
    }
    if after_a_break {
        line.truncate(line.trim_end().len());
    }
    line
}

/// Several lines of our own as one, for a log: indents and columns are given up, the lines are
/// parted by semicolons.
pub fn joined(text: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(words).collect::<Vec<_>>().join("; ").replace(":; ", ": ")
}

/// C0, DEL and C1 controls (ESC and CSI among them), line and paragraph separators, and the marks
/// that turn the direction.
fn breaks_a_line(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// One reported value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beacon {
    /// The boot of the host that wrote it.
    pub boot_id: String,
    /// The generation of the run order that the supervisor follows.
    pub generation: u64,
    /// The runs of this generation that its host has started; 0 also where that is not said.
    pub attempt: u64,
    /// A counter, a step, or an exit code.
    pub value: i64,
    /// Free text: one line, shortened.
    pub text: String,
}

impl Beacon {
    /// Parses one value; anything malformed is no beacon at all.
    pub fn parse(text: &str) -> Option<Beacon> {
        let mut parts = text.trim().splitn(4, ' ');
        // Any process of the guest may write these attributes, and they are shown in logs.
        let boot_id: String =
            parts.next()?.chars().filter(|c| !breaks_a_line(*c)).take(BOOT_ID_MAX).collect();
        let (generation, attempt) = match parts.next()? {
            run if run.contains('.') => run.split_once('.')?,
            generation => (generation, "0"),
        };
        Some(Beacon {
            boot_id: Some(boot_id).filter(|id| !id.is_empty())?,
            generation: generation.parse().ok()?,
            attempt: attempt.parse().ok()?,
            value: parts.next()?.parse().ok()?,
            text: plain(
                &parts.next().unwrap_or_default().chars().take(TEXT_MAX).collect::<String>(),
            ),
        })
    }
}

/// Why nothing of the job runs on a host, as its heartbeat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// It waits for its startup script, or for its index.
    SetUp,
    /// Its startup script fails, or it has no index; it tries on.
    SetUpFails,
    /// It is ready, and not every host has called.
    RollCall,
    /// It waits for an order.
    Waits,
    /// Its chips are held by a process that is not the job's.
    ChipsBusy,
    /// Its chips are held by one of an earlier run that can't be ended.
    ChipsStuck,
}

impl Beacon {
    /// The version of the supervisor that a boot beacon names; 1 where it names none.
    pub fn version(&self) -> u64 {
        let word = self.text.split(' ').next().unwrap_or_default();
        word.strip_prefix('v').and_then(|version| version.parse().ok()).unwrap_or(1)
    }

    /// Whether a boot beacon says that its supervisor has read `wait` in its order.
    pub fn waits(&self) -> bool {
        self.text.split(' ').skip(1).any(|word| word == "wait")
    }

    /// The index that a boot beacon says its host has; none where it has none, or says nothing.
    pub fn index(&self) -> Option<usize> {
        self.text.split(' ').find_map(|word| word.strip_prefix('i')?.parse().ok())
    }

    /// How many chips a boot beacon says that its host has; none where it does not say.
    pub fn chips(&self) -> Option<u32> {
        self.text.split(' ').find_map(|word| word.strip_prefix('c')?.parse().ok())
    }

    /// The generation and the number of its run on the host, to compare and to tell apart.
    pub fn run(&self) -> (u64, u64) {
        (self.generation, self.attempt)
    }

    /// The report as one text: equal for a report that is only repeated.
    pub fn id(&self) -> String {
        let run = match self.attempt {
            0 => self.generation.to_string(),
            attempt => format!("{}.{attempt}", self.generation),
        };
        format!("{} {run} {} {}", self.boot_id, self.value, self.text)
    }

    /// Why nothing of the job runs, as the text of a heartbeat tells it; none while something may.
    pub fn idle(&self) -> Option<Idle> {
        Idle::of(&self.text)
    }

    /// Whether a heartbeat says that the job ended with 0 and nothing shows that it did its work: something that it started
    /// may still run, in a container of its own.
    pub fn ended_early(&self) -> bool {
        self.text.starts_with("ended_early")
    }

    /// Whether a heartbeat says that its host is not set up.
    pub fn in_setup(&self) -> bool {
        matches!(self.idle(), Some(Idle::SetUp | Idle::SetUpFails))
    }
}

/// The last lines of a run that failed: the value's first line is `<boot_id> <generation> <code>
/// <number of the run>`, the lines follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastLines {
    /// Boot, generation, code, and the number of the run within the boot.
    pub of: Beacon,
    /// Oldest first, each on one line.
    pub lines: Vec<String>,
    /// Their meaning, where the table of texts knows one.
    pub meaning: Option<Meaning>,
}

impl Idle {
    /// Reads the words of a heartbeat.
    pub fn of(words: &str) -> Option<Idle> {
        match words {
            text if text.starts_with("setup_failed") => Some(Idle::SetUpFails),
            text if text.starts_with("setup") => Some(Idle::SetUp),
            text if text.starts_with("roll_call") => Some(Idle::RollCall),
            text if text.starts_with("waiting") => Some(Idle::Waits),
            text if text.starts_with("chips_busy") => Some(Idle::ChipsBusy),
            text if text.starts_with("chips_stuck") => Some(Idle::ChipsStuck),
            _ => None,
        }
    }
}

/// The meaning of a run's last lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meaning {
    /// The class of the failure.
    pub class: String,
    /// The process died because another one had: the cause is in another worker's lines.
    pub is_victim: bool,
    /// One or two sentences for an operator.
    pub advice: String,
}

/// Classes of memory that ran out, of the chips or of a host.
pub const OUT_OF_MEMORY: [&str; 2] = ["oom_hbm", "oom_host"];

impl Meaning {
    /// Memory ran out, of the chips or of the host.
    pub fn is_out_of_memory(&self) -> bool {
        OUT_OF_MEMORY.contains(&self.class.as_str())
    }
}

impl LastLines {
    /// Reads one value; anything malformed is no report.
    pub fn parse(text: &str) -> Option<LastLines> {
        let (of, lines) = text.split_once('\n').unwrap_or((text, ""));
        let cut = |line: &str| plain(&line.chars().take(LINE_MAX).collect::<String>());
        let mut lines: Vec<String> = lines.trim_end().lines().map(cut).collect();
        lines.drain(..lines.len().saturating_sub(LINES));
        Some(LastLines { of: Beacon::parse(of)?, lines, meaning: None })
    }
}

/// The report of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// `boot`: the host booted and the supervisor runs.
    pub boot: Option<Beacon>,
    /// `heartbeat`: a counter.
    pub heartbeat: Option<Beacon>,
    /// `step`: the last training step that the job wrote.
    pub step: Option<Beacon>,
    /// `exit`: the code with which the job's command ended; the text is `final` or `restarting …`.
    pub exit: Option<Beacon>,
    /// `phase`: what the host is at, and since when (seconds of the Unix epoch).
    pub phase: Option<Beacon>,
    /// `log`: the last lines of the last run that failed.
    pub lines: Option<LastLines>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_and_without_text_are_read_and_malformed_ones_are_nothing() {
        let beacon = Beacon::parse("b0-1 7 139 final signal 11\n").unwrap();
        assert_eq!(
            (beacon.generation, beacon.value, beacon.text.as_str()),
            (7, 139, "final signal 11")
        );
        assert_eq!(Beacon::parse("b 1 5").unwrap().text, "");
        for bad in ["", " 1 2", "b", "b x 1", "b 1", "b 1 x"] {
            assert_eq!(Beacon::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_guest_writes_no_lines_of_its_own_and_no_novels() {
        let text = "final\n2026 ERROR forged\u{1b}[31m\u{7f}\u{85}\u{9b}2J\u{2028}\u{2029}\u{202e}live\u{2066}";
        let beacon = Beacon::parse(&format!("b\u{1b}0\u{85}-1 7 139 {text}")).unwrap();
        assert_eq!(
            (beacon.boot_id.as_str(), beacon.text.as_str()),
            ("b0-1", "final 2026 ERROR forged [31m 2J live")
        );
        let beacon =
            Beacon::parse(&format!("{} 7 139 {}", "b".repeat(9_000), "é".repeat(9_000))).unwrap();
        assert_eq!((beacon.boot_id.chars().count(), beacon.text.chars().count()), (100, 300));
        assert_eq!(Beacon::parse("\u{1b} 7 139"), None, "nothing is left of its boot id");
    }

    #[test]
    fn a_report_is_cut_and_made_of_plain_lines() {
        let text: String =
            (0..60).map(|n| format!("line {n}\u{1b}[31m{}\n", "x".repeat(500))).collect();
        let report = LastLines::parse(&format!("b 3 139 2\n{text}\n\n")).unwrap();
        assert_eq!((report.of.generation, report.of.value, report.of.text.as_str()), (3, 139, "2"));
        assert_eq!(report.lines.len(), 40);
        assert!(report.lines[39].starts_with("line 59 [31mxxx") && report.lines[39].len() <= 400);
        assert_eq!(LastLines::parse("b 3 139 2").unwrap().lines, Vec::<String>::new());
        assert_eq!(LastLines::parse("nothing"), None);
    }

    #[test]
    fn what_is_one_line_already_is_kept_as_it_is() {
        for text in ["", " two  spaces ", "ran=12 ünïcödé 日本 “…”"] {
            assert_eq!(plain(text), text);
        }
        assert_eq!(plain("a:\n  b\n  c\n"), "a: b c");
        assert_eq!(joined("a:\n  b   c\n  d\n"), "a: b c; d");
    }
}
