//! A name that is not known: the names that are, and the one that may be meant.

use super::Failed;

/// How alike two names are, of which one may be meant for the other.
const ALIKE: f64 = 0.75;
/// So many names fit an error.
const SHOWN: usize = 20;

/// The error of a command whose slot does not exist.
pub fn no_slot<'a>(name: &str, known: impl IntoIterator<Item = &'a String>) -> Failed {
    no_such("slot", name, known)
}

/// The same for a slot, a TPU, …
pub fn no_such<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a String>) -> Failed {
    let known: Vec<&str> = known.into_iter().map(String::as_str).collect();
    let there = match known.as_slice() {
        [] => "there is none".to_owned(),
        known => format!("there are {}{}", listed(known), meant(name, known)),
    };
    Failed::Config(format!("there is no {what} {name:?}; {there}; nothing was done"))
}

/// Names with commas between them, not all of many.
pub fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    names[..names.len() - more].join(", ") + &rest
}

/// The name that may be meant, as a question in brackets.
pub fn meant(name: &str, known: &[&str]) -> String {
    let alike = known
        .iter()
        .map(|other| (strsim::jaro_winkler(name, other), other))
        .filter(|(how, _)| *how >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    alike.map_or(String::new(), |(_, other)| format!(" (did you mean {other}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_not_there_is_told_with_those_that_are() {
        let known: Vec<String> = (0..30).map(|n| format!("llama-{n}")).collect();
        let text = no_slot("lama-3", &known).to_string();
        assert!(text.starts_with("there is no slot \"lama-3\"; there are llama-0, "), "{text}");
        assert!(text.contains("llama-19 and 10 more (did you mean llama-3?)"), "{text}");
        assert!(no_slot("x", &[]).to_string().contains("there is none; nothing was done"));
    }
}
