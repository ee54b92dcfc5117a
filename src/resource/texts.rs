//! The texts of Google's APIs, libtpu, JAX and hosts when something goes wrong, and what each means:
//! whose fault it is, what to do, what to tell the person.
//!
//! The table is data. Its rows were collected from Google's own pages and code, and from the reports
//! of operators; `seen` says how often.

use std::sync::LazyLock;

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::model::beacon::OUT_OF_MEMORY;

mod api;
mod job;
mod table;

pub use table::{Action, Blame, Disguise, Section, Text};

/// Of a longer text only the beginning is looked through.
const LOOKED_AT: usize = 256 << 10;

/// The whole table, in its order.
pub fn all() -> impl Iterator<Item = &'static Text> {
    api::TEXTS.iter().chain(job::TEXTS)
}

/// All patterns as one automaton, and the row of each.
struct Table {
    set: RegexSet,
    rows: Vec<&'static Text>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let patterns =
        || all().flat_map(|text| text.patterns.iter().map(move |pattern| (text, *pattern)));
    // A table that does not compile explains nothing: classes then follow from codes alone.
    let set = compile(patterns().map(|(_, pattern)| pattern)).unwrap_or_else(|_| RegexSet::empty());
    Table { set, rows: patterns().map(|(text, _)| text).collect() }
});

/// Texts are ASCII but for what they quote: bytes are looked at, so that no tables of Unicode are
/// needed.
fn compile<'a>(patterns: impl Iterator<Item = &'a str>) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns).unicode(false).case_insensitive(true).build()
}

/// All rows that a text matches, in the order of the table; a row may come twice.
pub fn matching(text: &str) -> impl Iterator<Item = &'static Text> {
    let looked_at = &text.as_bytes()[..text.len().min(LOOKED_AT)];
    TABLE.set.matches(looked_at).into_iter().filter_map(|at| TABLE.rows.get(at).copied())
}

/// The words of a program, or the kernel, when memory ran out.
pub fn out_of_memory() -> Vec<&'static str> {
    let rows =
        all().filter(|row| row.section == Section::Memory && OUT_OF_MEMORY.contains(&row.class));
    rows.flat_map(|row| row.patterns).copied().collect()
}

/// The expressions of a class; grep -P understands them as well.
pub fn of_class(class: &str) -> Vec<&'static str> {
    let rows = all().filter(|row| row.class == class);
    rows.flat_map(|row| row.patterns).copied().collect()
}

/// The meaning of a text. Within a section the first match of the table wins; among sections a cause
/// before its victims, then what stands first in the text.
pub fn explain(text: &str) -> Option<&'static Text> {
    let matches: Vec<&'static Text> = matching(text).collect();
    let first = |section: &Section| matches.iter().find(|row| row.section == *section).copied();
    let mut found: Vec<&'static Text> = Section::ALL.iter().filter_map(first).collect();
    if found.len() > 1 {
        found.sort_by_key(|row| (row.rank(), position(row, text)));
    }
    found.first().copied()
}

/// Where in a text a row's first match begins.
fn position(row: &Text, text: &str) -> usize {
    let looked_at = &text.as_bytes()[..text.len().min(LOOKED_AT)];
    let found = |pattern: &&str| {
        let mut pattern = regex::bytes::RegexBuilder::new(pattern);
        let pattern = pattern.unicode(false).case_insensitive(true).build().ok()?;
        pattern.find(looked_at).map(|found| found.start())
    };
    row.patterns.iter().filter_map(found).min().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::failure::FailureClass;

    /// Whole texts as they were seen, with their classes.
    #[rustfmt::skip]
    const SEEN: &[(&str, &str)] = &[
        ("stock_out", r#"There is no more capacity in the zone "us-central1-c"; you can try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x9f48947a7d57c8d]"#),
        ("stock_out", r"The zone 'projects/x/zones/us-east1-c' does not have enough resources available to fulfill the request.  Try a different zone, or try again later."),
        ("preempted_in_creation", r"Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 0x1]"),
        ("quota", r"Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."),
        ("quota", r"Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 20800 in region us-central2"),
        ("quota", r"Quota 'IN_USE_ADDRESSES' exceeded.  Limit: 8.0 in region europe-west3."),
        ("closed_queue", r"User does not have permission to submit requests into this queue for accelerator type v5p-8 in location us-east1-d."),
        ("bad_request", r#"CloudTpu received an invalid AcceleratorType, "v3-8" for zone "us-central1-a". Valid values are "v2-8, "."#),
        ("undeletable", r"DeleteQueuedResource is not supported when state is PROVISIONING"),
        ("conflict", r"DeleteQueuedResource is not supported when state is ACTIVE (must be one of [ACCEPTED WAITING_FOR_RESOURCES SUSPENDED FAILED])"),
        ("permission", r"403 Permission 'aiplatform.customJobs.create' denied on resource '//aiplatform.googleapis.com/projects/p/locations/us-east1'"),
        ("chips_busy", r"RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 10. Not attempting to load libtpu.so in this process."),
        ("chips_busy", r"RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Device or resource busy: Device or resource busy; Couldn't open iommu group /dev/vfio/0"),
        ("lockfile", r#"ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile"."#),
        ("wrong_runtime", r"RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: No ba16c7433 device found."),
        ("wrong_env", r"Invalid --deepsea_slice_builder_worker_addresses specified. Expected 2 worker addresses, got 1."),
        ("gang_mismatch", r"Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely, perhaps due to an on-device check-failure. Node 0 halted unexpectedly at tag:pc TensorCoreSequencer:1:0x1d9 (from TensorCoreSequencer:1:0x309): scheckne: An unexpected leader shows up in the launch group with a different launch id than the current group leader."),
        ("hardware", r"Detected failure SLICE_FAILURE_CHIP_DRIVER_ERROR in session e6c885828b538167; Start failure handling"),
        ("hardware", r"Megascale detects a hang that is likely caused by bad TPU chips on the following hosts. Please remove the hosts from the fleet and restart the workload."),
        ("victim_of_sibling", r"Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly."),
        ("coordinator", r"Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task logs for more details."),
        ("coordinator", r"ABORTED: 7 unexpectedly tried to connect with a different incarnation. It has likely restarted"),
        ("oom_hbm", r"RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 49.34G of 32.00G hbm. Exceeded hbm capacity by 17.34G."),
        ("oom_hbm", r"ValueError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 8.00M. That was not possible. There are 6.43M free.; (0x0x1_HBM0)"),
        ("checkpoint_incomplete", r"ValueError: Found incomplete checkpoint at gs://bucket/checkpoints/1820"),
        ("oom_host", r"The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)"),
        ("image", r"The replica workerpool0-0 exited with a non-zero status of 128. Termination reason: StartError. Termination log message: failed to create containerd task"),
        ("stock_out", r"Resources are insufficient in region: us-central1. Please try a different region or use a different accelerator"),
        ("quota", r"The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_cpus"),
    ];

    #[test]
    fn whole_texts_as_seen_are_of_their_class() {
        for (class, text) in SEEN {
            let found = explain(text);
            assert_eq!(found.map(|row| row.class), Some(*class), "{text}\n{found:?}");
        }
    }

    #[test]
    fn every_pattern_compiles() {
        for row in all() {
            for pattern in row.patterns {
                let compiled = compile(std::iter::once(*pattern));
                assert!(compiled.is_ok(), "{pattern}: {compiled:?}");
            }
        }
        assert_eq!(TABLE.set.len(), TABLE.rows.len(), "the whole table compiles");
        assert_eq!((all().count(), TABLE.rows.len()), (91, 129));
    }

    /// A text that a pattern of the table matches.
    fn example(pattern: &str) -> String {
        let filled = [
            (r"(?P<pid>\d+)", "10"),
            (r"(?P<code>\d+)", "137"),
            (r"(?P<replica>[\w-]+(?: \d+)?)", "master 0"),
            (r":?\s*(?P<region>[a-z0-9-]+)", " us-east1"),
            (r"(?P<id>\S+)", "jobs/1"),
            (r"(?P<module>[^']+)", "numpy"),
            (r#""?"#, ""),
            ("[- ]", " "),
            (r"[\w-]+", "some-name_1"),
            (r"[\w.]+", "tpu.nodes.create"),
            (r"[^']+", "projects/p/locations/z/nodes/a"),
            (r"\w+", "word"),
            (r"\d+", "7"),
            (r"\S+", "p-1"),
            (r".*", " of "),
            (r"\b", ""),
            ("^", ""),
        ];
        let mut text = pattern.to_owned();
        for (class, sample) in filled {
            text = text.replace(class, sample);
        }
        text.replace('\\', "")
    }

    #[test]
    fn every_pattern_means_the_class_of_its_row() {
        let patterns = all().flat_map(|row| row.patterns.iter().map(move |of| (row.class, *of)));
        let wrong: Vec<_> = patterns
            .map(|(class, pattern)| (class, example(pattern)))
            .filter(|(class, text)| explain(text).map(|row| row.class) != Some(class))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn every_row_has_what_a_person_needs_on_one_line() {
        let known: BTreeSet<&str> = FailureClass::ALL.iter().map(|class| class.name()).collect();
        // gcloud's words, which the API itself does not say.
        let gclouds = ["preempted", "maintenance"];
        for row in all() {
            assert!(!row.patterns.is_empty() && !row.class.is_empty(), "{row:?}");
            assert!(!row.advice.contains(['\n', '*', '`']) && row.advice.ends_with('.'), "{row:?}");
            assert!(
                row.section != Section::Api
                    || known.contains(row.class)
                    || gclouds.contains(&row.class),
                "{row:?}"
            );
        }
    }

    #[test]
    fn a_cause_outranks_a_victim_and_the_earliest_cause_wins() {
        let (victim, busy, disk) = (
            "Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the remote task has failed",
            "The TPU is already in use by process with pid 10.",
            "OSError: [Errno 28] No space left on device",
        );
        let class = |lines: &[&str]| explain(&lines.join("\n")).map(|row| row.class);
        assert_eq!(class(&[victim]), Some("victim_of_sibling"));
        assert_eq!(class(&[victim, busy]), Some("chips_busy"));
        assert_eq!(class(&[victim, disk, busy]), Some("disk_full"));
        assert_eq!(class(&[busy, disk]), Some("chips_busy"));
        let note = "TPU backend initialization is taking more than 60.0 seconds";
        assert_eq!(class(&[note, victim]), Some("victim_of_sibling"));
        assert_eq!(class(&[note]), Some("gang_incomplete"));
    }

    #[test]
    fn texts_are_found_in_any_case_and_anywhere_but_where_they_are_anchored() {
        let class = |text: &str| explain(text).map(|row| row.class);
        assert_eq!(class("ERROR: (gcloud) NO MORE CAPACITY IN THE ZONE"), Some("stock_out"));
        assert_eq!(class("An internal error has occurred"), Some("stock_out"));
        assert_eq!(class("while training an internal error has occurred"), None);
        assert_eq!(class("héhé 'Größe' sagt: Resource 'größe' was not found"), Some("not_found"));
        assert_eq!(class(""), None);
        assert_eq!(class("loss = 0.4"), None);
    }
}
