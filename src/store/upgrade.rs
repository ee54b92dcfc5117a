//! Upgrades: which program wrote a state last, whether a copy is kept before this one writes it,
//! and how an operator goes back.

use std::fmt::Display;

/// This program's version.
pub const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Whether the program that wrote a state last is older than this one. A state without a version is
/// of the time before versions were written down.
pub fn is_from_before(program: Option<&str>) -> bool {
    match (program.map(numbers), numbers(PROGRAM)) {
        (Some(Some(before)), Some(now)) => before < now,
        // A version that can't be compared is another one: a copy too many does no harm.
        (Some(None), _) | (_, None) => program != Some(PROGRAM),
        (None, _) => true,
    }
}

fn numbers(version: &str) -> Option<[u64; 3]> {
    let release = version.split(['-', '+']).next()?;
    let parts: Result<Vec<u64>, _> = release.split('.').map(str::parse).collect();
    parts.ok()?.try_into().ok()
}

/// The ending of a copy's name: the version of the program that left the state, or its schema where
/// the program is not known.
pub fn ending(program: Option<&str>, schema: impl Display) -> String {
    // It becomes a part of a file's name, and comes from a file.
    let is_plain = |text: &&str| {
        text.len() <= 40
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'))
    };
    match program.filter(|text| numbers(text).is_some()).filter(is_plain) {
        Some(program) => format!("v{program}"),
        None => format!("v{schema}"),
    }
}

/// Of copies' endings the newest that this program, which knows schemas up to `known`, can go on
/// with.
pub fn best<'a>(endings: impl Iterator<Item = &'a str>, known: u64) -> Option<&'a str> {
    let age = |ending: &str| {
        let version = ending.strip_prefix('v')?;
        // A schema alone is of the time before versions were written down.
        match version.parse::<u64>() {
            Ok(schema) => (schema <= known).then_some([0, 0, schema]),
            Err(_) => numbers(version).filter(|version| Some(*version) <= numbers(PROGRAM)),
        }
    };
    endings.filter_map(|ending| Some((age(ending)?, ending))).max().map(|(_, ending)| ending)
}

/// The message of a state whose schema this program does not know. `back` are the steps that lead
/// back to a copy.
pub fn newer(schema: &str, known: impl Display, program: Option<&str>, back: &str) -> String {
    let by = program.map(|program| format!(" (tpu-watchdog {program})")).unwrap_or_default();
    format!(
        "its schema version is {schema}{by}, this program ({PROGRAM}) knows up to {known}; nothing was changed. Install the newer tpu-watchdog again. To go back to this one instead: {back}; see \"Going back to an older version\" in docs/runbook.md"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_an_older_program_and_of_an_unknown_one_is_from_before() {
        for (program, before) in [
            (None, true),
            (Some("0.0.9"), true),
            (Some("0.0.9-rc.1"), true),
            (Some("of the future"), true),
            (Some(PROGRAM), false),
            (Some("999.0.0"), false),
        ] {
            assert_eq!(is_from_before(program), before, "{program:?}");
        }
        assert!(numbers("0.10.0") > numbers("0.9.1"), "they are numbers, not text");
    }

    #[test]
    fn the_way_back_leads_to_the_newest_copy_that_this_program_can_read() {
        let newest = format!("v{PROGRAM}");
        let copies = ["v2", "v3", "v99", "v0.0.9", &newest, "v999.0.0", "vault"];
        assert_eq!(best(copies.into_iter(), 3), Some(newest.as_str()));
        assert_eq!(best(copies.into_iter().take(3), 3), Some("v3"));
        assert_eq!(best(["v999.0.0", "v99"].into_iter(), 3), None);
    }

    #[test]
    fn a_copys_name_never_leaves_its_folder() {
        assert_eq!(ending(Some("0.2.0"), 3), "v0.2.0");
        assert_eq!(ending(None, 3), "v3");
        assert_eq!(ending(Some("1.2.3-/../../x"), 3), "v3");
    }
}
