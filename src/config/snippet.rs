//! The mistakes of a config with their lines, for a terminal.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::{ConfigError, Mistake};

/// Keys whose values may be secrets.
const SECRET: [&str; 5] = [".metadata", ".env", ".secret", "token", "pushgateway"];

/// Every mistake with the line that it is on and a mark below the key, in colours where `styled`.
pub fn render(error: &ConfigError, styled: bool) -> String {
    let file = error.file.display().to_string();
    let renderer = if styled { Renderer::styled() } else { Renderer::plain() };
    let one = |mistake: &Mistake| {
        let title = match mistake.key.as_str() {
            "" => format!("{file}:{}: {}", mistake.line, mistake.message),
            key => format!("{file}:{}: {key}: {}", mistake.line, mistake.message),
        };
        let line = error.text.lines().nth(mistake.line.saturating_sub(1)).unwrap_or_default();
        let shown = masked(&mistake.key, line);
        // A key of the root that is missing has no line of its own.
        let of_root = !mistake.key.is_empty() && !mistake.key.contains(['.', '[']);
        if shown.trim().is_empty() || (of_root && !shown.contains(&mistake.key)) {
            return title;
        }
        let (from, to) = marked(&mistake.key, &shown);
        let snippet = Snippet::source(&shown)
            .line_start(mistake.line)
            .annotation(AnnotationKind::Primary.span(from..to));
        renderer.render(&[Level::ERROR.primary_title(&title).element(snippet)])
    };
    error.mistakes.iter().map(one).collect::<Vec<_>>().join("\n\n")
}

/// A line as it may be shown: whole where it sets nothing but the key of the mistake, or is a heading;
/// else without the texts in quotes, which may be secrets.
fn masked(key: &str, line: &str) -> String {
    let secret = SECRET.iter().any(|part| key.contains(part));
    let last = key.rsplit('.').next().unwrap_or(key);
    let name = line.split_once('=').map(|(name, _)| name.trim().trim_matches('"'));
    let own = !last.is_empty() && name == Some(last) && !line.contains('{');
    let heading = line.trim_start().starts_with('[') && !line.contains('=');
    if (own && !secret) || heading {
        return line.to_owned();
    }
    match (key, line.split_once('=')) {
        // No TOML: anything may stand anywhere.
        ("", Some((name, _))) => return format!("{name}= …"),
        ("", None) => return String::new(),
        // Part of a text of several lines.
        (_, None) if !line.contains(['"', '\'']) => return String::new(),
        _ => {}
    }
    let mut shown = String::new();
    let mut quote = None;
    for letter in line.chars() {
        match quote {
            None => shown.push(letter),
            Some(open) if letter == open => shown.push(letter),
            Some(_) => {}
        }
        quote = match (quote, letter) {
            (None, '"' | '\'') => {
                shown.push('…');
                Some(letter)
            }
            (Some(open), letter) if letter == open => None,
            (quote, _) => quote,
        };
    }
    shown
}

/// The part of a line that is marked: the last part of the key where it stands there, else all of it.
fn marked(key: &str, line: &str) -> (usize, usize) {
    let last = key.rsplit('.').next().unwrap_or(key);
    let last = last.split('[').next().unwrap_or(last);
    let begin = line.len() - line.trim_start().len();
    match line.find(last).filter(|_| !last.is_empty()) {
        Some(at) => (at, at + last.len()),
        None => (begin, line.trim_end().len().max(begin + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_shown_with_its_line_and_a_mark_below_its_key() {
        let text =
            "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"z\"\n[tpu.job]\nchekpoint = \"x\"\n";
        let error = super::super::parse(std::path::Path::new("w.toml"), text, &|_| None);
        let shown = render(&error.unwrap_err(), false);
        for part in [
            "did you mean `checkpoint`?",
            "w.toml:6: tpu[0].job.chekpoint",
            "6 | chekpoint = \"x\"",
            "^^^^^^^^^",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
    }

    #[test]
    fn a_key_that_is_missing_at_the_root_marks_no_other_line() {
        let text = "[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n";
        let error = super::super::parse(std::path::Path::new("w.toml"), text, &|_| None);
        let shown = render(&error.unwrap_err(), false);
        assert!(shown.contains("project: is missing") && !shown.contains('^'), "{shown}");
    }

    #[test]
    fn a_value_that_may_be_a_secret_is_not_shown() {
        let slot = "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-east5-a\"\n";
        for text in [
            "[tpu.create]\nmetadata = { token = 5, x = \"hunter2\" }",
            "[tpu.create]\nmetadata = { HF_TOKEN = \"hunter2 }",
            "[tpu]\ncreate = { metadata = { t = \"hunter2\" }, acelerator_type = \"x\" }",
            "[tpu.create.metadata]\ntoken = [ 'hunter2' ]",
            "[tpu.job]\nenv = { A = [\n\"hunter2\",\n] }",
        ] {
            let text = format!("{slot}{text}\n");
            let error = super::super::parse(std::path::Path::new("w.toml"), &text, &|_| None);
            let shown = render(&error.unwrap_err(), false);
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let text = format!("pushgateway = \"https://me:hunter2@h\"\n{slot}");
        let error = super::super::parse(std::path::Path::new("w.toml"), &text, &|_| None);
        assert!(!render(&error.unwrap_err(), false).contains("hunter2"));
    }
}
