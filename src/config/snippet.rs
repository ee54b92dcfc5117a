//! The mistakes of a config with their lines, for a terminal.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::{ConfigError, Mistake};

/// Keys whose values may be secrets: their lines are shown up to the value.
const SECRET: [&str; 3] = [".metadata", ".env", "token"];

/// Every mistake with the line that it is on and a mark below the key, in colours where `styled`.
pub fn render(error: &ConfigError, styled: bool) -> String {
    let file = error.file.display().to_string();
    let renderer = if styled { Renderer::styled() } else { Renderer::plain() };
    let one = |mistake: &Mistake| {
        let title = match mistake.key.as_str() {
            "" => mistake.message.clone(),
            key => format!("{key}: {}", mistake.message),
        };
        let line = error.text.lines().nth(mistake.line.saturating_sub(1)).unwrap_or_default();
        let shown = masked(&mistake.key, line);
        if shown.trim().is_empty() {
            return format!("{file}:{}: {title}", mistake.line);
        }
        let (from, to) = marked(&mistake.key, &shown);
        let snippet = Snippet::source(&shown)
            .line_start(mistake.line)
            .path(&file)
            .annotation(AnnotationKind::Primary.span(from..to));
        renderer.render(&[Level::ERROR.primary_title(&title).element(snippet)])
    };
    error.mistakes.iter().map(one).collect::<Vec<_>>().join("\n\n")
}

/// A line without a value that may be a secret.
fn masked(key: &str, line: &str) -> String {
    let secret = SECRET.iter().any(|part| key.contains(part));
    match line.split_once('=').filter(|_| secret) {
        Some((before, _)) => format!("{}= …", before),
        None => line.to_owned(),
    }
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
        for part in
            ["did you mean `checkpoint`?", "w.toml:6:1", "6 | chekpoint = \"x\"", "^^^^^^^^^"]
        {
            assert!(shown.contains(part), "{shown}");
        }
    }

    #[test]
    fn a_value_that_may_be_a_secret_is_not_shown() {
        let text = "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-east5-a\"\n[tpu.create]\nmetadata = { token = 5, x = \"hunter2\" }\n";
        let error = super::super::parse(std::path::Path::new("w.toml"), text, &|_| None);
        let shown = render(&error.unwrap_err(), false);
        assert!(!shown.contains("hunter2") && shown.contains("metadata"), "{shown}");
    }
}
