//! The text of a config: places of keys, `${NAME}` from the environment, and serde errors with line
//! and key.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Environment, Mistake, words};

/// A config's text after substitution, with the places of its keys and of their values.
pub struct Document {
    text: String,
    places: Vec<(String, Range<usize>)>,
    substituted: Vec<(String, String)>,
}

impl Document {
    /// Reads TOML and replaces `${NAME}` in values; never inside `command`, `metadata` and scripts.
    pub fn parse(text: &str, environment: Environment) -> Result<Document, Vec<Mistake>> {
        let mut places = Vec::new();
        collect(&parse_toml(text)?, "", &mut places);
        let mut replacements: Vec<(Range<usize>, String, String)> = Vec::new();
        let mut mistakes = Vec::new();
        for (key, span) in &places {
            let quoted = text.get(span.clone()).unwrap_or_default();
            let is_text = quoted.starts_with('"') || quoted.starts_with('\'');
            // A command or a signal: written with $${ while it was substituted, it still means ${.
            if key.ends_with(".job.on_notice") && quoted.contains("$${") {
                replacements.push((span.clone(), quoted.replace("$${", "${"), String::new()));
            } else if is_text && quoted.contains("${") && !belongs_to_the_tpu(key) {
                match substitute(quoted, environment) {
                    Ok((new, used)) => {
                        replacements.push((span.clone(), new, String::new()));
                        replacements
                            .extend(used.into_iter().map(|(name, value)| (0..0, name, value)));
                    }
                    Err(message) => mistakes.push(Mistake {
                        line: line_of(text, span.start),
                        key: key.clone(),
                        message,
                    }),
                }
            }
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let mut document =
            Document { text: text.to_owned(), places: Vec::new(), substituted: Vec::new() };
        replacements.sort_by_key(|(span, ..)| std::cmp::Reverse(span.start));
        for (span, new, value) in replacements {
            // An empty span carries a name and its value: kept so that no message ever shows the
            // value.
            if span.is_empty() {
                document.substituted.push((new, value))
            } else {
                document.text.replace_range(span, &new)
            }
        }
        collect(&parse_toml(&document.text)?, "", &mut document.places);
        Ok(document)
    }

    /// Into typed values; with all keys that are unknown or have a value of a wrong type.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, Vec<Mistake>> {
        let mut text = self.text.clone();
        let mut mistakes: Vec<Mistake> = Vec::new();
        loop {
            let error = match toml::from_str(&text) {
                Ok(value) if mistakes.is_empty() => return Ok(value),
                Ok(_) => return Err(mistakes),
                Err(error) => error,
            };
            // A mistyped key is told already where a required one is missing for it.
            if mistakes.is_empty() || !error.message().starts_with("missing field") {
                mistakes.push(self.wrong_type(&error));
            }
            // serde stops at its first error: without that key it comes to the next one.
            match self.entry(&error).and_then(|entry| without(&text, entry)) {
                Some(rest) => text = rest,
                None => return Err(mistakes),
            }
        }
    }

    /// The key that serde's error is about, as it is told.
    fn wrong_type(&self, error: &toml::de::Error) -> Mistake {
        let at = error.span().map_or(0, |s| s.start);
        let key = self.key_at(at);
        // An unknown key is named where it stands; serde's own message lists what is allowed.
        let unknown = error
            .message()
            .strip_prefix("unknown field `")
            .and_then(|rest| rest.split('`').next())
            .map(str::to_owned);
        let key = match unknown {
            Some(field) if !key.ends_with(&field) && key.is_empty() => field,
            Some(field) if !key.ends_with(&field) => format!("{key}.{field}"),
            _ => key.to_owned(),
        };
        let message = self.without_secrets(words::plainly(&key, error.message()));
        Mistake { line: line_of(&self.text, at), key, message }
    }

    /// The innermost key at this place; empty outside all.
    fn key_at(&self, at: usize) -> &str {
        let inside = |place: &&(String, Range<usize>)| {
            place.1.start <= at && at < place.1.end.max(place.1.start + 1)
        };
        let all = self.places.iter().filter(inside);
        all.min_by_key(|(_, span)| span.len()).map_or("", |(key, _)| key.as_str())
    }

    /// From the key that the error is about to the end of its value.
    fn entry(&self, error: &toml::de::Error) -> Option<Range<usize>> {
        let key = self.key_at(error.span()?.start);
        let spans = || self.places.iter().filter(|(k, _)| k == key).map(|(_, span)| span);
        Some(spans().map(|s| s.start).min()?..spans().map(|s| s.end).max()?)
    }

    /// A mistake at a key; at its nearest parent when the key itself is not in the text.
    pub fn mistake(&self, key: &str, message: impl Into<String>) -> Mistake {
        let mut wanted = key;
        let at = loop {
            if let Some((_, span)) = self.places.iter().find(|(k, _)| k == wanted) {
                break span.start;
            }
            match wanted.rfind(['.', '[']) {
                Some(cut) => wanted = &wanted[..cut],
                None => break 0,
            }
        };
        Mistake {
            line: line_of(&self.text, at),
            key: key.to_owned(),
            message: self.without_secrets(message.into()),
        }
    }

    fn without_secrets(&self, message: String) -> String {
        self.substituted
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .fold(message, |text, (name, value)| text.replace(value, &format!("${{{name}}}")))
    }
}

/// The text with blanks in place of one `key = value`, where it still is TOML.
fn without(text: &str, entry: Range<usize>) -> Option<String> {
    let old = text.get(entry.clone())?;
    // A header stays: its keys would belong to the table before it.
    if !old.contains('=') || old.starts_with(['[', '{', '"', '\'']) {
        return None;
    }
    let blanks: String = old.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }).collect();
    let mut rest = text.to_owned();
    rest.replace_range(entry, &blanks);
    DeTable::parse(&rest).is_ok().then_some(rest)
}

fn parse_toml(text: &str) -> Result<Spanned<DeTable<'_>>, Vec<Mistake>> {
    DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |s| s.start);
        vec![Mistake {
            line: line_of(text, at),
            key: String::new(),
            message: format!("this is not TOML: {}", error.message().replace('\n', "; ")),
        }]
    })
}

fn collect(table: &Spanned<DeTable<'_>>, prefix: &str, places: &mut Vec<(String, Range<usize>)>) {
    for (key, value) in table.get_ref() {
        let path = if prefix.is_empty() {
            key.get_ref().to_string()
        } else {
            format!("{prefix}.{}", key.get_ref())
        };
        places.push((path.clone(), key.span()));
        collect_value(value, path, key.span(), places);
    }
}

fn collect_value(
    value: &Spanned<DeValue<'_>>,
    path: String,
    key: Range<usize>,
    places: &mut Vec<(String, Range<usize>)>,
) {
    match value.get_ref() {
        DeValue::Table(inner) => {
            for (name, value) in inner {
                let path = format!("{path}.{}", name.get_ref());
                places.push((path.clone(), name.span()));
                collect_value(value, path, name.span(), places);
            }
            places.push((path, key));
        }
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_value(item, format!("{path}[{index}]"), item.span(), places);
            }
            places.push((path, value.span()));
        }
        _ => places.push((path, value.span())),
    }
}

/// Values whose `$` belongs to the shell on the TPU.
fn belongs_to_the_tpu(key: &str) -> bool {
    [".job.command", ".job.on_notice"].iter().any(|of| key.ends_with(of))
        || key.contains(".create.metadata.")
}

/// Replaces `${NAME}` in one quoted TOML string, in place; `$${` stays as `${`.
fn substitute(
    quoted: &str,
    environment: Environment,
) -> Result<(String, Vec<(String, String)>), String> {
    let literal = quoted.starts_with('\'');
    let (mut out, mut used, mut rest) = (String::new(), Vec::new(), quoted);
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let (name, after) = rest[at + 2..]
            .split_once('}')
            .ok_or("\"${\" without a closing \"}\"; write $${ for a literal ${")?;
        let value = environment(name).ok_or_else(|| {
            format!("the environment variable {name} is not set; set it, or write $${{{name}}} for a literal ${{{name}}}")
        })?;
        if literal && value.contains(['\'', '\n']) {
            return Err(format!(
                "the value of {name} has a quote or a line break: use a \"…\" string here"
            ));
        }
        let escaped = if literal {
            value.clone()
        } else {
            value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
        };
        out.push_str(&escaped);
        used.push((name.to_owned(), value));
        rest = after;
    }
    out.push_str(rest);
    Ok((out, used))
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count() + 1
}
