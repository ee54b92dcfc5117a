//! Findings of `doctor`, as they are printed.

use super::screen::{self, HEAD, labelled, paint, style, width};
use super::table::plural;
use super::{Failed, Outcome};
use crate::report::sentence::Tone;

/// One finding.
pub struct Finding {
    pub tone: Tone,
    pub what: String,
    pub text: String,
    /// The command that mends it.
    pub cure: Option<String>,
}

pub fn fine(what: impl Into<String>, text: impl Into<String>) -> Finding {
    Finding { tone: Tone::Good, what: what.into(), text: text.into(), cure: None }
}

pub fn doubt(what: impl Into<String>, text: impl Into<String>) -> Finding {
    Finding { tone: Tone::Waiting, ..fine(what, text) }
}

pub fn missing(what: impl Into<String>, text: impl Into<String>, cure: Option<String>) -> Finding {
    Finding { tone: Tone::Bad, cure, ..fine(what, text) }
}

/// The findings so far: printed as they come, since some take seconds.
#[derive(Default)]
pub struct Told {
    bad: usize,
}

impl Told {
    pub fn tell(&mut self, finding: Finding) {
        self.bad += usize::from(finding.tone == Tone::Bad);
        let Finding { tone, what, text, cure } = finding;
        let width = width();
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let mark = paint(style(tone), tone.mark());
        let mut out = labelled(&what, &format!("{mark} {first}"), width);
        for line in lines {
            out += &labelled("", line.trim_end(), width);
        }
        if let Some(cure) = cure {
            out += &labelled("", &format!("{} {cure}", paint(HEAD, "do")), width);
        }
        screen::print(&out);
    }

    pub fn outcome(&self) -> Outcome {
        match self.bad {
            0 => {
                screen::print("\nNothing is missing.\n");
                Ok(())
            }
            bad => {
                screen::print(&format!(
                    "\n{} missing; see the lines with ✗.\n",
                    plural(bad, "thing")
                ));
                Err(Failed::NeedsAPerson)
            }
        }
    }
}
