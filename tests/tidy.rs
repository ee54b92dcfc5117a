//! The house keeps its order: who may import whom, how long files are, where clocks and the environment may be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The part of a file that ships: everything before its test module; nothing of a file that is one.
fn shipped(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    if path.strip_prefix(src()).unwrap().iter().any(|part| part == "tests" || part == "tests.rs") {
        return String::new();
    }
    text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned()
}

/// The room of a file: the folder below src, or the file's own name.
fn room(path: &Path) -> String {
    let relative = path.strip_prefix(src()).unwrap();
    relative.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned()
}

/// All rooms that a text names by `crate::room`.
fn named(text: &str) -> Vec<String> {
    let mut rooms: Vec<String> = text
        .match_indices("crate::")
        .filter_map(|(at, _)| text[at + 7..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next())
        .map(str::to_owned)
        .collect();
    // `use crate::{a, b}` would hide its rooms from this test.
    assert!(!text.contains("crate::{"), "grouped imports from the crate's root are not used");
    rooms.sort();
    rooms.dedup();
    rooms
}

#[test]
fn rooms_import_only_what_the_map_allows() {
    let all = ["model", "decide", "checkpoint", "google", "store", "launch", "report", "simulator", "config", "watchdog", "cli"];
    let allowed = |room: &str| -> Vec<&str> {
        match room {
            "model" => vec!["model"],
            "decide" => vec!["decide", "model"],
            "checkpoint" | "google" | "store" | "launch" | "report" | "simulator" | "config" => vec!["model"],
            "watchdog" => all.iter().copied().filter(|r| !matches!(*r, "simulator" | "cli" | "config")).collect(),
            "cli" => all.to_vec(),
            "main" | "lib" => all.to_vec(),
            other => panic!("the room {other:?} is not on the map"),
        }
    };
    for file in sources(&src()) {
        let room = room(&file);
        for named in named(&shipped(&file)) {
            if all.contains(&named.as_str()) && named != room {
                assert!(allowed(&room).contains(&named.as_str()), "{} must not import {named}", file.display());
            }
        }
    }
}

/// Files of the same room that a file names by `super::file`.
fn siblings(text: &str, files: &BTreeSet<String>) -> BTreeSet<String> {
    let word = |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().to_owned();
    let mut named = BTreeSet::new();
    for (at, _) in text.match_indices("super::") {
        let rest = &text[at + "super::".len()..];
        match rest.strip_prefix('{').and_then(|list| list.split_once('}')) {
            Some((list, _)) => named.extend(list.split(',').map(|item| word(item.trim()))),
            None => _ = named.insert(word(rest)),
        }
    }
    named.intersection(files).cloned().collect()
}

/// A way from `file` back to itself.
fn circle(file: &str, imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let (mut ways, mut seen) = (vec![vec![file.to_owned()]], BTreeSet::new());
    while let Some(way) = ways.pop() {
        for next in &imports[way.last()?] {
            if next == file {
                return Some(way);
            }
            if seen.insert(next.clone()) {
                ways.push([way.as_slice(), std::slice::from_ref(next)].concat());
            }
        }
    }
    None
}

/// Rooms whose files import each other in no circle. Others follow; none leaves.
const WITHOUT_CIRCLES: [&str; 1] = ["decide"];

#[test]
fn no_two_files_of_a_room_import_each_other() {
    for room in WITHOUT_CIRCLES {
        let folder = src().join(room);
        let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        let files: Vec<PathBuf> = sources(&folder).into_iter().filter(|file| file.parent() == Some(&folder)).collect();
        let names: BTreeSet<String> = files.iter().map(|file| name(file)).collect();
        let imports: BTreeMap<String, BTreeSet<String>> =
            files.iter().map(|file| (name(file), siblings(&shipped(file), &names))).collect();
        assert!(imports.values().flatten().count() > 20, "the imports of {room} are read");
        for file in &names {
            assert_eq!(circle(file, &imports), None, "{room}");
        }
    }
}

#[test]
fn the_checker_shares_nothing_with_the_gates() {
    let text = shipped(&src().join("decide/check.rs"));
    assert!(!text.contains("super::") && !text.contains("crate::decide"), "it imports the nouns alone");
    assert_eq!(named(&text), ["model"]);
}

#[test]
fn the_core_reads_no_clock_and_does_no_io() {
    let forbidden = [
        "Timestamp::now",
        "Instant",
        "SystemTime",
        "std::env",
        "std::fs",
        "std::net",
        "tokio",
        "async fn",
        ".await",
        "rand::",
        "new_v4",
        "reqwest",
        "tracing::",
    ];
    for file in sources(&src()).into_iter().filter(|f| matches!(room(f).as_str(), "model" | "decide")) {
        let text = shipped(&file);
        for word in forbidden {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

#[test]
fn the_environment_is_read_in_the_config_room_alone() {
    for file in sources(&src()).into_iter().filter(|f| room(f) != "config") {
        assert!(!shipped(&file).contains("env::var"), "{} reads the environment", file.display());
    }
}

#[test]
fn files_stay_readable() {
    for file in sources(&src()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 600, "{} has {lines} lines: there is another room in it", file.display());
        assert!(text.starts_with("//!"), "{} does not say what it is for", file.display());
    }
}

#[test]
fn nothing_in_the_product_can_panic_by_carelessness() {
    for file in sources(&src()) {
        let text = shipped(&file);
        for word in [".unwrap()", ".expect(", "panic!(", "todo!(", "unimplemented!(", "unreachable!("] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}
