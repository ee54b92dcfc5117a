//! The house keeps its order: who may import whom, how long files are, where clocks and the
//! environment may be read.

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
        .filter_map(|(at, _)| {
            text[at + 7..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
        })
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
    let all = [
        "model",
        "resource",
        "core",
        "checkpoint",
        "google",
        "store",
        "launch",
        "report",
        "simulator",
        "config",
        "driver",
        "shell",
        "cli",
    ];
    let allowed = |room: &str| -> Vec<&str> {
        match room {
            "model" => vec!["model"],
            "resource" | "checkpoint" | "store" | "report" => vec!["model"],
            "launch" | "core" | "google" | "simulator" | "config" => vec!["model", "resource"],
            "driver" => vec!["core", "model", "store"],
            "shell" => all
                .iter()
                .copied()
                .filter(|r| !matches!(*r, "simulator" | "cli" | "config"))
                .collect(),
            "cli" => all.to_vec(),
            "main" | "lib" => all.to_vec(),
            other => panic!("the room {other:?} is not on the map"),
        }
    };
    for file in sources(&src()) {
        let room = room(&file);
        for named in named(&shipped(&file)) {
            if all.contains(&named.as_str()) && named != room {
                assert!(
                    allowed(&room).contains(&named.as_str()),
                    "{} must not import {named}",
                    file.display()
                );
            }
        }
    }
}

/// Files of the same room that a file names by `super::file`.
fn siblings(text: &str, files: &BTreeSet<String>) -> BTreeSet<String> {
    let word = |text: &str| {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
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

/// All rooms: the files of none import each other in a circle.
const ROOMS: [&str; 13] = [
    "model",
    "resource",
    "simulator",
    "config",
    "core",
    "driver",
    "shell",
    "google",
    "checkpoint",
    "store",
    "report",
    "launch",
    "cli",
];

#[test]
fn no_two_files_of_a_room_import_each_other() {
    let mut read = 0;
    for room in ROOMS {
        let folder = src().join(room);
        let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        let files: Vec<PathBuf> =
            sources(&folder).into_iter().filter(|file| file.parent() == Some(&folder)).collect();
        let names: BTreeSet<String> = files.iter().map(|file| name(file)).collect();
        let imports: BTreeMap<String, BTreeSet<String>> =
            files.iter().map(|file| (name(file), siblings(&shipped(file), &names))).collect();
        read += imports.values().flatten().count();
        for file in &names {
            assert_eq!(circle(file, &imports), None, "{room}");
        }
    }
    assert!(read > 100, "{read} imports were read");
}

/// A file below another one (`check/order.rs`) is for that one, and must not import from it.
#[test]
fn a_file_below_another_imports_its_siblings_alone() {
    let mut read = 0;
    for file in sources(&src()) {
        let folder = file.parent().unwrap().to_owned();
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let siblings: BTreeSet<String> =
            files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        if !folder.with_extension("rs").exists() {
            continue;
        }
        for used in shipped(&file).lines().filter_map(|line| line.strip_prefix("use super::")) {
            let first = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
            let outside = used.starts_with("super::");
            let known = first.is_some_and(|first| siblings.contains(first));
            assert!(known || outside, "{}: use super::{used}", file.display());
            read += 1;
        }
    }
    assert!(read > 20, "{read} imports were read");
}

#[test]
fn the_checker_shares_nothing_with_the_gates() {
    let mut files = sources(&src().join("core/check"));
    files.push(src().join("core/check.rs"));
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let text = shipped(&file);
        let outside = ["super::super::", "crate::core"].iter().any(|way| text.contains(way));
        assert!(!outside && named(&text) == ["model"], "{} imports more", file.display());
    }
}

#[test]
fn core_and_driver_read_no_clock_and_do_no_io() {
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
    for file in sources(&src())
        .into_iter()
        .filter(|f| matches!(room(f).as_str(), "model" | "resource" | "core" | "driver"))
    {
        let text = shipped(&file);
        for word in forbidden {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// A kind of thing that is supervised answers by `Traits`, or by an arm of a `match` that the compiler holds complete.
#[test]
fn the_core_never_tests_which_kind_fills_a_slot() {
    let tests = [
        "training().is_",
        "if let Filling::",
        "let Filling::",
        "== Filling::",
        "!= Filling::",
        "filling, Filling::",
        "== JobKind::",
        "!= JobKind::",
        "JobKind::Legacy",
        "JobKind::Tuning",
        "JobKind::Custom",
    ];
    for file in sources(&src()).into_iter().filter(|file| room(file) == "core") {
        for test in tests {
            assert!(!shipped(&file).contains(test), "{}: {test}", file.display());
        }
    }
}

#[test]
fn the_environment_is_read_in_the_config_room_alone() {
    for file in sources(&src()).into_iter().filter(|f| room(f) != "config") {
        assert!(!shipped(&file).contains("env::var"), "{} reads the environment", file.display());
    }
}

/// Exceptions from a limit, with their size when the limit was set: they may only shrink, and the
/// number with them.
type Ratchet = &'static [(&'static str, usize)];

/// Compares what exceeds a limit with what is known to: nothing new, nothing longer, no number that is out of date.
fn only_shrinks(what: &str, found: BTreeMap<String, usize>, known: Ratchet) {
    let known: BTreeMap<String, usize> =
        known.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    let grown: Vec<_> =
        found.iter().filter(|(name, n)| known.get(*name).is_none_or(|was| *n > was)).collect();
    assert!(grown.is_empty(), "{what}: {grown:?}; make them shorter");
    let shrunk: Vec<_> = known.iter().filter(|(name, was)| found.get(*name) != Some(was)).collect();
    assert!(shrunk.is_empty(), "{what}: {shrunk:?} are shorter by now: write down {found:?}");
}

fn relative(path: &Path) -> String {
    path.strip_prefix(src()).unwrap().display().to_string()
}

const LONG_FILES: Ratchet = &[];

#[test]
fn files_stay_readable() {
    let mut long = BTreeMap::new();
    for file in sources(&src()) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//!"), "{} does not say what it is for", file.display());
        if text.lines().count() > 500 {
            long.insert(relative(&file), text.lines().count());
        }
    }
    only_shrinks("files of more than 500 lines", long, LONG_FILES);
}

/// The functions of a text as rustfmt leaves it, with their lines.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let starts = before
            .split(' ')
            .all(|word| matches!(word, "" | "pub" | "async" | "const") || word.starts_with("pub("));
        if !starts || line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let length = lines[at..].iter().position(|line| *line == end).map_or(1, |n| n + 1);
        let name = after.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
        found.push((name.to_owned(), length));
    }
    found
}

const LONG_FUNCTIONS: Ratchet = &[
    ("checkpoint/lister.rs: survey_in", 89),
    ("cli/demo.rs: demo", 81),
    ("core/surveys.rs: surveyed", 97),
    ("core/tests/gates.rs: the_checker_refuses_by_name_what_a_plan_must_never_ask_for", 71),
    ("report/metrics.rs: new", 125),
    ("simulator/shape.rs: check_node", 79),
];

#[test]
fn functions_stay_readable() {
    let mut long = BTreeMap::new();
    for file in sources(&src()) {
        let text = std::fs::read_to_string(&file).unwrap();
        for (name, lines) in functions(&text).into_iter().filter(|(_, lines)| *lines > 70) {
            long.insert(format!("{}: {name}", relative(&file)), lines);
        }
    }
    only_shrinks("functions of more than 70 lines", long, LONG_FUNCTIONS);
}

/// A gate is one condition, its reason and its hold.
#[test]
fn gates_stay_short() {
    let mut long = BTreeMap::new();
    for file in ["slot", "create", "judged", "relaunch", "resubmission"] {
        let path = src().join("core/gates").join(file).with_extension("rs");
        for (name, lines) in functions(&shipped(&path)).into_iter().filter(|(_, lines)| *lines > 15)
        {
            long.insert(format!("{file}: {name}"), lines);
        }
    }
    assert!(long.is_empty(), "gates of more than 15 lines: {long:?}");
}

/// Words that engineers do not use for these things, and how often they are still in the source's comments and texts.
// It is in stored names: a table, a folder, an event.
const WORDS: Ratchet = &[("lever", 10)];

#[test]
fn words_are_the_fields_own() {
    let words = [
        "somebody",
        "nobody",
        "any more",
        "anew",
        "beside",
        "likewise",
        "lever",
        "tenure",
        "absorb",
        "a person has to look",
        "// What ",
        "// Whoever ",
        "// Those ",
    ];
    let mut found = BTreeMap::new();
    for file in sources(&src()) {
        let text = std::fs::read_to_string(&file).unwrap().to_lowercase();
        for word in words {
            let count = text.matches(&word.to_lowercase()).count();
            if count > 0 {
                *found.entry(word.to_owned()).or_insert(0) += count;
            }
        }
    }
    only_shrinks("words", found, WORDS);
}

#[test]
fn nothing_in_the_product_can_panic_by_carelessness() {
    for file in sources(&src()) {
        let text = shipped(&file);
        for word in
            [".unwrap()", ".expect(", "panic!(", "todo!(", "unimplemented!(", "unreachable!("]
        {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

const UNVERIFIED: &str = "docs/unverified.md";

#[test]
fn facts_that_nobody_has_seen_are_listed_with_what_would_settle_them() {
    let mut list = String::from(
        "# Unverified\n\nFacts that a default or a reading rests on, and that nobody here has seen on a real TPU. Each is marked where it stands in the\n\
         source; this list is made from there (`UPDATE_UNVERIFIED=1 cargo test --test tidy`). The command settles it.\n",
    );
    for file in sources(&src()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(fact) = line.strip_prefix("// unverified: ") else { continue };
            let settles = lines.get(at + 1).and_then(|next| next.strip_prefix("// settled by: "));
            let settles = settles.unwrap_or_else(|| {
                panic!("{}: {fact}: the next line says `// settled by: gcloud …`", relative(&file))
            });
            list += &format!("\n- {fact} (src/{})\n\n      {settles}\n", relative(&file));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(UNVERIFIED);
    if std::env::var_os("UPDATE_UNVERIFIED").is_some() {
        return std::fs::write(path, list).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(written, list, "UPDATE_UNVERIFIED=1 writes {UNVERIFIED}");
}
