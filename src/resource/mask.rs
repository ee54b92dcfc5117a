//! Keeps the metadata of a create out of what is told about its refusal: values of metadata may be
//! secrets, and an API that refuses one quotes it.

use std::collections::HashSet;

use serde_json::Value;

use crate::model::ids::{OWNER_KEY, RUN_KEY, SLOT_KEY};

/// Stands where a value stood.
const MARK: &str = "[metadata value]";
/// A shorter value would be found in words that have nothing to do with it.
const VALUE_MIN: usize = 4;
/// A shorter line of a longer value would be, too.
const LINE_MIN: usize = 8;
/// So many bytes of a value betray that it is being quoted, though it was cut off or split.
const RUN: usize = 16;
/// Of a longer text only the beginning is looked through, and only that is given back: what is told
/// is far shorter.
const TEXT_MAX: usize = 64 << 10;

/// The values that must not be told, as they were sent and as JSON writes them.
#[derive(Default)]
pub struct Mask {
    /// Values and lines of values shorter than a run: hidden where they stand whole.
    short: HashSet<String>,
    /// Longer values: hidden as far as a run of them stands there, so their lines and cut-off
    /// beginnings are found as well.
    long: Vec<String>,
}

impl Mask {
    /// The values under `metadata` of a request, or of the nodes that a queued resource asks for, but for our own keys that say nothing secret.
    pub fn of(body: Option<&Value>) -> Self {
        let nodes = body.and_then(|body| body.pointer("/tpu/nodeSpec")).and_then(Value::as_array);
        let nodes = nodes.into_iter().flatten().filter_map(|spec| spec.get("node"));
        let metadata = body.into_iter().chain(nodes);
        let metadata = metadata.filter_map(|of| of.get("metadata")?.as_object()).flatten();
        let values = metadata
            .filter(|(key, _)| ![OWNER_KEY, SLOT_KEY, RUN_KEY].contains(&key.as_str()))
            .filter_map(|(_, value)| value.as_str());
        let mut mask = Mask::default();
        for value in values {
            let value = value.trim();
            let lines =
                value.lines().map(str::trim).filter(|line| (LINE_MIN..RUN).contains(&line.len()));
            for text in std::iter::once(value).filter(|value| value.len() >= VALUE_MIN).chain(lines)
            {
                let quoted = Value::from(text).to_string();
                mask.add(text);
                mask.add(&quoted[1..quoted.len() - 1]);
            }
        }
        mask
    }

    fn add(&mut self, text: &str) {
        if text.len() < RUN {
            self.short.insert(text.to_owned());
        } else if !self.long.iter().any(|known| known == text) {
            self.long.push(text.to_owned());
        }
    }

    /// The text without them.
    pub fn apply(&self, text: &str) -> String {
        let text = &text[..text.floor_char_boundary(TEXT_MAX)];
        let bytes = text.as_bytes();
        let mut hidden = vec![false; bytes.len()];
        let mut hide = |len: usize, secret: &dyn Fn(&[u8]) -> bool| {
            for (at, _) in bytes.windows(len).enumerate().filter(|(_, run)| secret(run)) {
                hidden[at..at + len].fill(true);
            }
        };
        for len in VALUE_MIN..RUN {
            let secrets: HashSet<&[u8]> =
                self.short.iter().filter(|s| s.len() == len).map(String::as_bytes).collect();
            if !secrets.is_empty() {
                hide(len, &|run| secrets.contains(run));
            }
        }
        // The other way round than above: a message is much shorter than a script.
        let runs: HashSet<&[u8]> = bytes.windows(RUN).collect();
        let quoted: HashSet<&[u8]> = self
            .long
            .iter()
            .flat_map(|secret| secret.as_bytes().windows(RUN))
            .filter(|run| runs.contains(run))
            .collect();
        hide(RUN, &|run| quoted.contains(run));
        let mut told = String::with_capacity(text.len());
        let mut before = false;
        for (at, c) in text.char_indices() {
            // A run may begin or end within a character.
            let now = hidden[at..at + c.len_utf8()].contains(&true);
            match (before, now) {
                (_, false) => told.push(c),
                (false, true) => told.push_str(MARK),
                (true, true) => {}
            }
            before = now;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn masked(metadata: Value, text: &str, wanted: &str) {
        assert_eq!(
            Mask::of(Some(&json!({ "metadata": metadata, "runtimeVersion": "tpu-vm-base" })))
                .apply(text),
            wanted
        );
    }

    #[test]
    fn values_of_the_nodes_that_a_queued_resource_asks_for_are_hidden() {
        let node = json!({"metadata": {"token": "hunter2"}});
        let body = json!({"tpu": {"nodeSpec": [{"nodeId": "a", "node": node}]}, "spot": {}});
        let text = Mask::of(Some(&body)).apply("Invalid value \"hunter2\"");
        assert_eq!(text, "Invalid value \"[metadata value]\"");
    }

    #[test]
    fn a_quoted_value_is_hidden_and_everything_else_is_kept() {
        let metadata = json!({"token": " hunter2\n", "short": "abc", "count": 12_345});
        masked(
            metadata.clone(),
            "Invalid value \"hunter2\" for tpu-vm-base (hunter2), abc 12345",
            "Invalid value \"[metadata value]\" for tpu-vm-base ([metadata value]), abc 12345",
        );
        masked(metadata, "nothing of it", "nothing of it");
        masked(
            json!({"a": "inner", "b": "an inner value"}),
            "x an inner value y inner",
            "x [metadata value] y [metadata value]",
        );
        masked(json!({"a": "abcd-abcd"}), "abcd-abcd-abcd", "[metadata value]");
    }

    #[test]
    fn what_we_wrote_ourselves_is_no_secret() {
        let metadata = json!({"tpu-watchdog-owner": "me-and-you", "tpu-watchdog-slot": "llama", "tpu-watchdog-run": "{\"generation\":3}",
            "tpu-watchdog-user-script": "export TOKEN=hunter2"});
        masked(
            metadata,
            "me-and-you llama {\"generation\":3} export TOKEN=hunter2",
            "me-and-you llama {\"generation\":3} [metadata value]",
        );
    }

    #[test]
    fn lines_and_their_escaped_forms_are_hidden() {
        let metadata = json!({"startup-script": "#!/bin/sh\nexport TOKEN=\"hunter2\"\nfi\n"});
        masked(
            metadata.clone(),
            "line 2: export TOKEN=\"hunter2\" is bad, fi",
            "line 2: [metadata value] is bad, fi",
        );
        masked(
            metadata,
            r##"value: "#!/bin/sh\nexport TOKEN=\"hunter2\"\nfi" too"##,
            r##"value: "[metadata value]" too"##,
        );
    }

    #[test]
    fn a_value_that_was_cut_off_is_hidden_as_far_as_it_goes() {
        let long = "abcdefghijklmnopqrstuvwxyz0123456789";
        masked(
            json!({ "k": long }),
            "bad: abcdefghijklmnopqrst… and",
            "bad: [metadata value]… and",
        );
        masked(json!({ "k": long }), "bad: …qrstuvwxyz0123456789", "bad: …[metadata value]");
        masked(json!({ "k": long }), "bad: abcdefghijklmno", "bad: abcdefghijklmno");
        let umlauts = "äöüßäöüßäöüßäöüß".repeat(3);
        masked(
            json!({ "k": umlauts.clone() }),
            &format!("bad: {}", &umlauts[..24]),
            "bad: [metadata value]",
        );
    }

    #[test]
    fn a_request_without_metadata_hides_nothing() {
        assert_eq!(Mask::of(None).apply("text"), "text");
        assert_eq!(Mask::of(Some(&json!({"metadata": "hunter2"}))).apply("hunter2"), "hunter2");
        assert_eq!(Mask::default().apply(&"é".repeat(TEXT_MAX)).len(), TEXT_MAX);
    }

    #[test]
    fn large_scripts_and_answers_are_looked_through_quickly() {
        let script: String = (0..20_000).map(|line| format!("echo line {line}\n")).collect();
        let answer: String = (0..20_000).map(|line| format!("word {line} ")).collect();
        let began = std::time::Instant::now();
        let mask =
            Mask::of(Some(&json!({"metadata": {"startup-script": script, "other": script}})));
        assert!(mask.apply(&answer).contains("word 7 "));
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
