//! A terminal's width and colours: rows whose last cell is wrapped to it, and paint that is left out
//! where `NO_COLOR` is set or the output is no terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};
use textwrap::Options;
use textwrap::core::display_width;

use crate::report::sentence::Tone;

/// The narrowest last cell that is wrapped: below it lines are as long as they are.
const NARROWEST: usize = 24;

/// The columns of standard output; none where it is no terminal: lines are whole then, for `grep`.
pub fn width() -> Option<usize> {
    let out = std::io::stdout();
    let size = terminal_size::terminal_size_of(&out).filter(|_| out.is_terminal());
    size.map(|(terminal_size::Width(columns), _)| usize::from(columns))
}

/// The rows of standard output, where it is a terminal.
pub fn height() -> Option<usize> {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map(|(_, terminal_size::Height(rows))| usize::from(rows))
}

/// Prints on standard output, with colours where it shows them; a closed pipe is not an error.
pub fn print(text: &str) {
    let mut out = anstream::AutoStream::auto(std::io::stdout());
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// A line that is no longer than `width`.
pub fn cut(line: &str, width: usize) -> String {
    if display_width(line) <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// The terminal's second screen, left when this ends.
pub struct AlternateScreen;

impl AlternateScreen {
    /// Enters it, and hides the cursor.
    pub fn enter() -> Self {
        print("\x1b[?1049h\x1b[?25l");
        AlternateScreen
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        print("\x1b[?25h\x1b[?1049l");
    }
}

/// Text without its colours.
pub fn strip(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// The colour of a tone.
pub fn style(tone: Tone) -> Style {
    let color = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
    match tone {
        Tone::Bad | Tone::Unprotected => color(AnsiColor::Red),
        Tone::Waiting => color(AnsiColor::Yellow),
        Tone::Acting => color(AnsiColor::Cyan),
        Tone::Off => Style::new().dimmed(),
        Tone::Good => color(AnsiColor::Green),
    }
}

/// Text in a style.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// The style of headings.
pub const HEAD: Style = Style::new().bold();
/// The style of side notes.
pub const FAINT: Style = Style::new().dimmed();

/// One row of a table.
pub struct Row {
    /// Its colour: the mark and the first word are painted with it.
    pub tone: Option<Tone>,
    /// All cells but the last.
    pub cells: Vec<String>,
    /// The last cell, which is wrapped.
    pub text: String,
}

/// A table whose last column is wrapped to `width`.
pub fn table(header: &[&str], rows: &[Row], width: Option<usize>) -> String {
    let columns = header.len() - 1;
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| display_width(&row.cells[column]));
        cells.chain([display_width(header[column])]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    let left = 2 + widths.iter().map(|width| width + 2).sum::<usize>();
    let room = width.map(|width| width.saturating_sub(left)).filter(|room| *room >= NARROWEST);
    let padded = |cells: &mut dyn Iterator<Item = &str>| {
        cells.zip(&widths).fold(String::new(), |mut line, (cell, width)| {
            let space = " ".repeat(width.saturating_sub(display_width(cell)) + 2);
            let _ = write!(line, "{cell}{space}");
            line
        })
    };
    let mut text = String::new();
    let head = padded(&mut header[..columns].iter().copied());
    let head = format!("  {head}{}", header[columns]);
    let _ = writeln!(text, "{}", paint(HEAD, head.trim_end()));
    for row in rows {
        let mark = row.tone.map_or(" ", Tone::mark);
        let first = padded(&mut row.cells.iter().map(String::as_str));
        let first = format!("{mark} {first}");
        let first = row.tone.map_or(first.clone(), |tone| paint(style(tone), &first));
        for (index, line) in wrap(&row.text, room).into_iter().enumerate() {
            let before = if index == 0 { first.clone() } else { " ".repeat(left) };
            let _ = writeln!(text, "{before}{line}");
        }
    }
    text
}

/// Text in lines that fit.
fn wrap(text: &str, room: Option<usize>) -> Vec<String> {
    match room {
        _ if text.is_empty() => vec![String::new()],
        None => vec![text.to_owned()],
        Some(room) => {
            textwrap::wrap(text, Options::new(room)).into_iter().map(|line| line.into()).collect()
        }
    }
}

/// `label   text`, wrapped, with the following lines below the text.
pub fn labelled(label: &str, text: &str, width: Option<usize>) -> String {
    let left = 17;
    let room = width.map(|width| width.saturating_sub(left)).filter(|room| *room >= NARROWEST);
    let mut out = String::new();
    for (index, line) in wrap(text, room).into_iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        let _ = writeln!(out, "  {label:<width$}{line}", width = left - 2);
    }
    out
}

/// A line that is no part of a table, wrapped; the lines after its first are indented.
pub fn paragraph(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width >= NARROWEST) else { return format!("{text}\n") };
    let options = Options::new(width).subsequent_indent("    ");
    textwrap::wrap(text, options).iter().fold(String::new(), |all, line| all + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |tone, name: &str, text: &str| Row {
            tone: Some(tone),
            cells: vec![name.into(), "healthy".into()],
            text: text.into(),
        };
        vec![
            row(Tone::Good, "a", "step 1"),
            row(Tone::Bad, "größer", "a reason that is longer than what is left of the line"),
        ]
    }

    #[test]
    fn the_last_cell_is_wrapped_to_the_width_and_whole_without_one() {
        let plain = |width| {
            let text = table(&["TPU", "STATE", "WHY"], &rows(), width);
            strip(&text)
        };
        assert!(plain(Some(48)).lines().all(|line| display_width(line) <= 48));
        assert_eq!(plain(Some(48)).lines().count(), 4, "{}", plain(Some(48)));
        assert_eq!(plain(None).lines().count(), 3);
        assert!(plain(None).contains("✗ größer  healthy  a reason that is longer"));
        assert_eq!(plain(Some(20)), plain(None), "nothing fits there");
    }
}
