//! What people read, as snapshots: plan, status, metrics, help.

use jiff::Timestamp;
use tpu_watchdog::cli::table::{self, Detail};
use tpu_watchdog::cli::{proposal, screen};
use tpu_watchdog::model::view::{StatusDocument, StrayView};
use tpu_watchdog::report::metrics::Metrics;
use tpu_watchdog::report::page;
use tpu_watchdog::report::published::{Lock, Snapshot};

fn now() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

/// Four slots, as `plan --output json` gives them.
fn document() -> StatusDocument {
    serde_json::from_str(include_str!("snapshots/document.json")).unwrap()
}

#[test]
fn plan_reads_well() {
    let text = proposal::plan("my-project", &document(), &[], now(), Some(80));
    insta::assert_snapshot!("plan", plain(&text));
}

/// Without colours, and without blanks at the ends of lines.
fn plain(text: &str) -> String {
    let text = screen::strip(text);
    let trimmed: Vec<&str> = text.lines().map(str::trim_end).collect();
    trimmed.join("\n")
}

fn status(document: &StatusDocument, width: Option<usize>) -> String {
    let acting = "● watched by vm-1 (pid 7) since 2026-06-01 09:00 UTC, read 12s ago";
    plain(&table::status(document, acting, now(), Detail::Narrow, width))
}

#[test]
fn status_reads_well() {
    for width in [80, 120, 200] {
        let text = status(&document(), Some(width));
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= width, "{widest}: {text}");
    }
    insta::assert_snapshot!("status", status(&document(), Some(80)));
    let wide = table::status(&document(), "acting", now(), Detail::Wide, Some(80));
    insta::assert_snapshot!("status-wide", plain(&wide));
    // A pipe gets a line a slot.
    let piped = status(&document(), None);
    assert_eq!(piped.lines().filter(|line| line.contains("llama-1")).count(), 1, "{piped}");
}

#[test]
fn a_refusal_is_told_of_its_own_zone_and_hides_no_other_hold() {
    let why = |change: fn(&mut tpu_watchdog::model::view::SlotView)| {
        let mut document = document();
        let slot = document.tpus.iter_mut().find(|slot| slot.name == "spot-1").unwrap();
        change(slot);
        status(&document, None).lines().find(|line| line.contains("spot-1")).unwrap().to_owned()
    };
    let elsewhere = why(|slot| slot.refused_in = Some("us-east5-a".into()));
    assert!(elsewhere.contains("capacity in us-east5-a"), "{elsewhere}");
    let held = why(|slot| {
        slot.hold = Some("checkpoint_unreadable".into());
        slot.reason = "its create is pending, but gs://b/c can't be listed".into();
    });
    assert!(held.contains("gs://b/c can't be listed") && !held.contains("capacity"), "{held}");
}

#[test]
fn the_metrics_page_is_the_contract() {
    let metrics = Metrics::new().unwrap();
    let mut snapshot = Snapshot {
        status: document(),
        budget_remaining: 1,
        lock: Lock::Held,
        ..Snapshot::default()
    };
    let text = metrics.render(&snapshot);
    // Who stands by leaves the fleet to the holder: otherwise every slot would be counted twice.
    snapshot.lock = Lock::StandingBy("vm-1:7:aa".into());
    let standby = metrics.render(&snapshot);
    assert!(standby.contains("tpuwatchdog_lock_held 0") && !standby.contains("slot"), "{standby}");
    insta::assert_snapshot!("metrics", text);
}

#[test]
fn the_page_escapes_what_comes_from_outside() {
    let mut document = document();
    document.tpus[0].reason = "<script>alert(1)</script>".into();
    let html = page::render(&Snapshot { status: document, ..Snapshot::default() }, now());
    assert!(!html.contains("<script>") && html.contains("&lt;script&gt;"));
    assert!(!html.contains("Belongs to no slot"));
}

/// The same, and a node that no slot owns.
fn with_a_stray() -> StatusDocument {
    let mut document = document();
    document.strays.push(StrayView {
        name: "left".into(),
        zone: "us-east5-a".into(),
        state: None,
        since: now(),
        why: "its create was <called off>".into(),
        queued_resource: None,
        is_job: false,
        removal: Some("its delete was sent at 2026-06-01T12:00:00Z".into()),
    });
    document
}

#[test]
fn the_page_shows_what_belongs_to_no_slot() {
    let html = page::render(&Snapshot { status: with_a_stray(), ..Snapshot::default() }, now());
    assert!(html.contains("Belongs to no slot") && html.contains("us-east5-a"), "{html}");
    assert!(html.contains("its create was &lt;called off&gt;; its delete was sent"), "{html}");
}

#[test]
fn status_and_plan_show_what_belongs_to_no_slot() {
    let told = "\n  left  in us-east5-a: not seen yet, told for 0s: its create was <called off>; its delete was sent at 2026-06-01T12:00:00Z";
    for text in [
        status(&with_a_stray(), None),
        plain(&proposal::plan("my-project", &with_a_stray(), &[], now(), None)),
    ] {
        assert!(text.contains("Belongs to no slot") && text.contains(told), "{text}");
    }
}

#[test]
fn help_names_every_command() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
        .arg("--help")
        .output()
        .unwrap();
    insta::assert_snapshot!("help", String::from_utf8(output.stdout).unwrap());
}

/// The keys of an object, and of the objects in it, by dotted path.
fn keys(value: &serde_json::Value, schema: &serde_json::Value, at: &str) {
    let properties = schema["properties"].as_object();
    let (Some(object), Some(properties)) = (value.as_object(), properties) else {
        if let (Some(items), Some(of)) = (value.as_array(), schema.get("items")) {
            items.iter().for_each(|item| keys(item, of, at));
        }
        return;
    };
    for (key, value) in object {
        let of = properties.get(key).unwrap_or_else(|| panic!("{at}.{key} is not in the schema"));
        assert!(of.get("description").is_some() || of.get("items").is_some(), "{at}.{key}");
        keys(value, of, &format!("{at}.{key}"));
    }
}

#[test]
fn the_schema_names_every_field_of_the_document_and_no_other() {
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../docs/status.schema.json")).unwrap();
    let value = serde_json::to_value(with_a_stray()).unwrap();
    keys(&value, &schema, "");
    let named = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let of = |path: &str| named(schema.pointer(path).unwrap());
    assert_eq!(of("/properties/tpus/items/properties"), named(&value["tpus"][0]));
    assert_eq!(of("/properties/strays/items/properties"), named(&value["strays"][0]));
    let job =
        value["tpus"].as_array().unwrap().iter().find(|slot| slot["job"].is_object()).unwrap();
    assert_eq!(of("/properties/tpus/items/properties/job/properties"), named(&job["job"]));
}

#[test]
fn the_picture_in_the_readme_is_the_status() {
    let readme = include_str!("../README.md");
    for line in status(&document(), Some(80)).lines() {
        assert!(readme.contains(line), "{line:?} is not in README.md");
    }
}
