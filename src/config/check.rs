//! Collects mistakes while values are taken out of the raw config.

use std::time::Duration;

use super::Mistake;
use super::document::Document;
use super::raw::Span;

/// Collects mistakes while values are taken out.
pub struct Check<'a> {
    document: &'a Document,
    mistakes: Vec<Mistake>,
}

impl<'a> Check<'a> {
    /// Without a mistake so far.
    pub fn new(document: &'a Document) -> Self {
        Check { document, mistakes: Vec::new() }
    }

    /// All mistakes in their order, if there are any.
    ///
    /// # Errors
    /// The mistakes.
    pub fn finish(mut self) -> Result<(), Vec<Mistake>> {
        self.mistakes.sort_by_key(|mistake| mistake.line);
        if self.mistakes.is_empty() { Ok(()) } else { Err(self.mistakes) }
    }

    pub fn wrong(&mut self, key: &str, message: impl Into<String>) {
        self.mistakes.push(self.document.mistake(key, message));
    }

    /// The meaning of a word, among those that are known.
    pub fn one_of<T: Copy>(
        &mut self,
        key: &str,
        given: Option<&str>,
        known: &[(&str, T)],
        default: T,
    ) -> T {
        let Some(given) = given else { return default };
        if let Some((_, meaning)) = known.iter().find(|(word, _)| *word == given) {
            return *meaning;
        }
        let words: Vec<String> = known.iter().map(|(word, _)| format!("{word:?}")).collect();
        let words = match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        };
        self.wrong(key, format!("{given:?} is unknown; use {words}"));
        default
    }

    pub fn later<T>(&mut self, key: &str, value: &Option<T>, what: &str) {
        if value.is_some() {
            self.wrong(key, format!("not supported yet: {what}; remove the key"));
        }
    }

    pub fn at_least<T: TryFrom<i64>>(
        &mut self,
        key: &str,
        value: Option<i64>,
        least: i64,
        default: T,
    ) -> T {
        match value {
            None => default,
            Some(given) if given >= least && given <= 1_000_000 => {
                T::try_from(given).unwrap_or(default)
            }
            Some(given) => {
                self.wrong(
                    key,
                    format!("must be a whole number from {least} to 1000000, got {given}"),
                );
                default
            }
        }
    }

    pub fn span(
        &mut self,
        key: &str,
        value: Option<Span>,
        least: Duration,
        default: Duration,
    ) -> Duration {
        match value {
            Some(Span(given)) if given < least => {
                self.wrong(key, format!("must be at least {}", crate::model::time::span(least)));
                default
            }
            Some(Span(given)) => given,
            None => default,
        }
    }
}
