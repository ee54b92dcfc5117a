//! The examples, the recipes and the scenarios are what they say, and the page of the config is made
//! from them.

use std::path::Path;

use tpu_watchdog::config;
use tpu_watchdog::simulator::scenario::Scenario;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::GOOD;

#[test]
fn the_example_configs_and_scenarios_load() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    for name in ["watchdog.toml", "full.toml"] {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let loaded = config::parse(&folder.join(name), &text, &|_| None);
        assert!(loaded.is_ok(), "{name}: {}", loaded.unwrap_err());
    }
    let mut scenarios = 0;
    for entry in std::fs::read_dir(folder.join("scenarios")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(Scenario::parse(&text).err(), None, "{}", path.display());
            scenarios += 1;
        }
    }
    assert_eq!(scenarios, 3);
}

#[test]
fn every_event_of_a_scenario_is_described_and_concerns_something() {
    let page = include_str!("../../config/scenarios/README.md");
    for what in Trouble::ALL {
        assert!(page.contains(&format!("| `{what}` | ")), "{what}");
    }
    let nodes = "[[nodes]]\nnames = [\"a\"]\nzone = \"z\"\n";
    let error = |event: &str| Scenario::parse(&format!("{nodes}[[event]]\n{event}")).unwrap_err();
    for (event, why) in [
        (
            "what = \"preempt\"\nnode = \"b\"",
            "event[0] (preempt): there is no node \"b\", there are a",
        ),
        ("what = \"preempt\"", "event[0] (preempt): `node` is missing; there are a"),
        (
            "what = \"quota\"\nnode = \"a\"",
            "event[0] (quota): it concerns a zone: leave out `node`",
        ),
        ("what = \"melt\"\nnode = \"a\"", "unknown variant `melt`"),
    ] {
        assert!(error(event).contains(why), "{}", error(event));
    }
    // An event of a node has that node's zone, and not the first one's.
    let two =
        "[[nodes]]\nnames = [\"b\"]\nzone = \"y\"\n[[event]]\nwhat = \"preempt\"\nnode = \"b\"\n";
    let scenario = Scenario::parse(&format!("{nodes}{two}")).unwrap();
    let now = jiff::Timestamp::UNIX_EPOCH;
    let mut cloud = scenario.build(now, 1.0);
    cloud.advance(now + std::time::Duration::from_secs(1));
    assert_eq!(cloud.struck, ["scenario: preempt of b in y"]);
    assert_eq!(cloud.nodes.get(&("y".into(), "b".into())).unwrap().state, "PREEMPTED");
}

#[test]
fn the_full_example_shows_the_defaults_that_are_in_force() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let full = std::fs::read_to_string(folder.join("full.toml")).unwrap();
    let full = config::parse(&folder.join("full.toml"), &full, &|_| None).unwrap().settings;
    let least = config::parse(Path::new("w.toml"), GOOD, &|_| None).unwrap().settings;
    assert_eq!(full.poll, least.poll);
    assert_eq!(full.max_unavailable, least.max_unavailable);
    assert_eq!(full.max_judged_recreates_per_hour, least.max_judged_recreates_per_hour);
    let plain = full.slots.values().find(|s| s.name == "llama-v4-32").unwrap();
    assert_eq!(plain.policy, least.slots["a"].policy);
}

#[test]
fn every_recipe_is_a_config_that_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for script in ["mount.sh", "install.sh"] {
        std::fs::write(folder.path().join(script), "#! /bin/bash\n").unwrap();
    }
    let recipes = include_str!("../../docs/recipes.md");
    let blocks: Vec<&str> = recipes.split("```toml\n").skip(1).collect();
    for block in &blocks {
        let text = block.split("```").next().unwrap();
        let config = format!("project = \"my-project\"\n{text}");
        let parsed = config::parse(&folder.path().join("w.toml"), &config, &|_| None);
        let slot = &parsed.unwrap_or_else(|e| panic!("{e}\n{text}")).settings.slots;
        let job = slot.values().next().and_then(|slot| slot.job.as_ref());
        let whole = job.is_some_and(|job| job.command.is_some() && job.checkpoint.is_some());
        assert!(whole, "{text}");
    }
    assert_eq!(blocks.len(), 10);
}

/// The reference of the config, as a page: each table of config/full.toml, whose keys and defaults
/// the tests hold to the code.
#[test]
fn the_page_of_the_config_is_made_from_the_full_example() {
    let full = include_str!("../../config/full.toml");
    let mut page = String::from(
        "# Configuration\n\nAll keys, from [config/full.toml](../config/full.toml), which the tests hold to the code; this page is made from it\n\
         (`UPDATE_CONFIGURATION=1 cargo test --test config_errors`). Durations are written as \"90s\", \"15m\" or \"1h 30m\".\n\
         † marks what is the fleet's alone; every other key of `[policy]` may be set again for a slot in `[tpu.policy]`.\n",
    );
    let mut rows = 0;
    for paragraph in full.split("\n\n").skip(1) {
        let lines: Vec<&str> = paragraph.lines().collect();
        let title = lines[0].split('#').next().unwrap().trim();
        if title.starts_with('[') {
            let about = lines[0].split_once('#').map_or("", |(_, about)| about.trim());
            page += &format!("\n## `{title}`\n\n{about}");
            page += if about.is_empty() { "" } else { "\n\n" };
        } else {
            page += "\n## Top level\n\n";
        }
        page += "| key | default | example | |\n| --- | --- | --- | --- |\n";
        for entry in entries(&lines) {
            page += &entry;
            rows += 1;
        }
    }
    assert!(rows > 75, "{rows} keys: the example is read wrongly");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    if std::env::var_os("UPDATE_CONFIGURATION").is_some() {
        return std::fs::write(path, page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "UPDATE_CONFIGURATION=1 writes docs/configuration.md");
}

/// The rows of one table; a comment goes on in the lines that have nothing else.
fn entries(lines: &[&str]) -> Vec<String> {
    let mut found: Vec<(String, String, bool, String)> = Vec::new();
    for line in lines.iter().filter(|line| !line.starts_with('[')) {
        let (left, comment) = split_comment(line);
        let Some((key, value)) = left.split_once('=').filter(|_| !left.trim().is_empty()) else {
            if let Some((.., text)) = found.last_mut() {
                *text += " ";
                *text += comment.trim();
            }
            continue;
        };
        let comment = comment.trim();
        let default = comment.starts_with('=');
        let rest = comment.trim_start_matches("e.g.").trim_start_matches('=').trim();
        found.push((key.trim().into(), value.trim().into(), default, rest.into()));
    }
    let cell = |text: &str| text.replace('|', "\\|");
    let row = |(key, value, default, text): (String, String, bool, String)| {
        let value = format!("`{}`", cell(&value));
        let (default, example) =
            if default { (value, String::new()) } else { (String::new(), value) };
        format!("| `{key}` | {default} | {example} | {} |\n", cell(&text))
    };
    found.into_iter().map(row).collect()
}

/// A line without its comment, and the comment; a mark within quotes begins none.
fn split_comment(line: &str) -> (&str, &str) {
    let (mut quote, mut last) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, '#') if last == ' ' => return (&line[..at], &line[at + 1..]),
            _ => {}
        }
        last = letter;
    }
    (line, "")
}
