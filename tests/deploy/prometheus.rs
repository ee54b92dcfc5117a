//! Metrics as Prometheus reads them: rules, dashboard and exposition, held against the real
//! programs over the demo.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tpu_watchdog::model::failure::FailureClass;
use tpu_watchdog::model::hold::HoldReason;

use crate::cloud_run::{Server, free_port, wait_until};
use crate::harness::get;
use crate::{deploy, have, text};

fn read(path: &str) -> String {
    std::fs::read_to_string(deploy(path)).unwrap()
}

/// Names of the alerts in the rules.
fn alerts() -> Vec<String> {
    read("prometheus/rules.yml")
        .lines()
        .filter_map(|l| l.trim().strip_prefix("- alert: "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_alert_is_checked_tested_both_ways_and_has_its_place_in_the_runbook() {
    let tests = read("prometheus/rules.test.yml");
    let rules = read("prometheus/rules.yml");
    let runbook =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runbook.md")).unwrap();
    assert!(!alerts().is_empty());
    for alert in alerts() {
        for how in ["fires", "stays quiet"] {
            assert!(tests.contains(&format!("- name: {alert} {how}\n")), "{alert} {how}");
        }
        assert!(
            rules.contains(&format!("runbook_url: docs/runbook.md#{}\n", alert.to_lowercase())),
            "{alert}"
        );
        assert!(runbook.contains(&format!("\n## {alert}\n")), "{alert} has no section");
    }
    let of = |word: &str| rules.lines().filter(|l| l.trim().starts_with(word)).count();
    assert_eq!(
        (of("summary:"), of("description:"), of("runbook_url:")),
        (alerts().len(), alerts().len(), alerts().len())
    );
    if !have("promtool") {
        return;
    }
    for arguments in [
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules.test.yml"],
        ["check", "config", "prometheus.yml"],
    ] {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(deploy("prometheus"))
            .output()
            .unwrap();
        let (code, out) = text(&output);
        assert_eq!(code, Some(0), "{out}");
    }
}

/// The expression of an alert.
fn expression(rules: &str, alert: &str) -> String {
    let rule = rules
        .split("- alert: ")
        .find(|rule| rule.starts_with(&format!("{alert}\n")))
        .unwrap_or_else(|| panic!("{alert}"));
    rule.split("expr: >-\n").nth(1).and_then(|rest| rest.lines().next()).unwrap().trim().to_owned()
}

/// The severity of an alert.
fn severity(rules: &str, alert: &str) -> String {
    let (_, rule) = rules.split_once(&format!("- alert: {alert}\n")).unwrap();
    let (_, rest) = rule.split_once("severity: ").unwrap();
    rest.lines().next().unwrap().to_owned()
}

/// The reasons that the matchers of a metric name.
fn reasons<'a>(text: &'a str, metric: &str) -> Vec<&'a str> {
    let matchers = text.split(&format!("{metric}{{")).skip(1).collect::<Vec<_>>();
    let matchers = matchers.into_iter().filter_map(|rest| rest.split('}').next());
    matchers
        .filter_map(|matcher| matcher.split_once("reason=")?.1.split('"').nth(1))
        .flat_map(|reasons| reasons.split('|'))
        .collect()
}

/// The reasons to hold for which an alert fires: not those that it leaves out.
fn held(expression: &str) -> Vec<&str> {
    let fires = expression.split(" unless ").next().unwrap();
    [reasons(fires, "recoveries_held"), reasons(fires, "slot_held")].concat()
}

/// Reasons to hold that the runbook explains one by one.
const EXPLAINED: [&str; 7] = [
    "cannot_create",
    "not_sent",
    "slow_get",
    "repeated",
    "deleted",
    "forgotten",
    "waits_for_probe",
];

#[test]
fn every_reason_to_hold_is_told_by_an_alert_or_left_out_on_purpose() {
    // Over by itself: the create that is owed has an alert for its refusal.
    let quiet = ["backoff", "create_limit", "waits_for_probe"];
    // By the user's own wish: told after hours or a day, by the metric that shows the wish itself.
    let wishes = [
        ("dry_run", "TpuWatchdogDryRun", "tpuwatchdog_dry_run == 1"),
        ("opted_out", "TpuOptedOutForLong", "tpuwatchdog_slot_opted_out == 1"),
        ("stopped", "TpuStoppedForLong", "tpuwatchdog_slot_condition{condition=\"stopped\"} == 1"),
        ("paused", "TpuPausedForLong", "tpuwatchdog_slot_paused == 1"),
        (
            "quiet_hours",
            "TpuQuietHoursForLong",
            "tpuwatchdog_recoveries_held{reason=\"quiet_hours\"} > 0",
        ),
    ];
    let rules = read("prometheus/rules.yml");
    let runbook =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runbook.md")).unwrap();
    let section = |alert: &str| {
        let (_, rest) = runbook
            .split_once(&format!("\n## {alert}\n"))
            .unwrap_or_else(|| panic!("{alert} has no section"));
        rest.split("\n## ").next().unwrap().to_owned()
    };
    let alerts = alerts();
    let matched: Vec<(&str, String)> =
        alerts.iter().map(|alert| (alert.as_str(), expression(&rules, alert))).collect();
    let known: BTreeSet<&str> = HoldReason::ALL.iter().map(|reason| reason.name()).collect();
    for name in known.iter().copied() {
        let wish = wishes.iter().find(|(wish, ..)| *wish == name);
        let by_wish = wish.map(|(_, alert, expected)| {
            assert_eq!(expression(&rules, alert), *expected, "{name}");
            *alert
        });
        let told: BTreeSet<&str> = matched
            .iter()
            .filter(|(_, expression)| held(expression).contains(&name))
            .map(|(alert, _)| *alert)
            .chain(by_wish)
            .collect();
        let expected = usize::from(!quiet.contains(&name));
        assert_eq!(told.len(), expected, "{name} is told by {told:?}");
        for alert in &told {
            assert!(
                section(alert).contains(&format!("`{name}`")),
                "{name} is not in the runbook's section {alert}"
            );
        }
        if HoldReason::ALL.iter().any(|reason| reason.name() == name && reason.needs_a_person()) {
            assert!(
                told.iter().all(|alert| severity(&rules, alert) == "page"),
                "{name} has no page at once"
            );
        }
        if EXPLAINED.contains(&name) {
            assert!(runbook.contains(&format!("\n### {name}\n")), "{name} has no section");
        }
    }
    // The dashboard counts as waiting for a person just those that page one.
    let paged: BTreeSet<&str> = matched
        .iter()
        .filter(|(alert, _)| severity(&rules, alert) == "page")
        .flat_map(|(_, expression)| held(expression))
        .collect();
    let dashboard = read("grafana/dashboard.json").replace("\\\"", "\"");
    let shown: BTreeSet<&str> = reasons(&dashboard, "recoveries_held").into_iter().collect();
    assert_eq!(shown, paged);
    // No matcher names a reason that does not exist.
    for (alert, expression) in &matched {
        for metric in ["recoveries_held", "slot_held"] {
            assert!(
                reasons(expression, metric).iter().all(|reason| known.contains(reason)),
                "{alert}: {expression}"
            );
        }
    }
}

#[test]
fn waiting_for_capacity_is_a_ticket_and_one_cause_pages_once() {
    let rules = read("prometheus/rules.yml");
    let (mut tickets, mut pages) = (BTreeSet::new(), BTreeSet::new());
    for alert in alerts() {
        let expression = expression(&rules, &alert);
        let refused = reasons(expression.split(" unless ").next().unwrap(), "creates_refused");
        let told = if severity(&rules, &alert) == "page" { &mut pages } else { &mut tickets };
        told.extend(refused.into_iter().map(str::to_owned));
    }
    let shortages = FailureClass::ALL.iter().filter(|class| class.is_shortage());
    let shortages: BTreeSet<String> = shortages.map(|class| class.name().to_owned()).collect();
    assert_eq!(tickets, shortages);
    assert!(pages.is_disjoint(&shortages), "{pages:?}");
    // A slot that is down for long pages only when no other alert has told why.
    let for_long = expression(&rules, "TpuUnhealthyForLong");
    let left_out = reasons(&for_long, "slot_create_refused").into_iter().map(str::to_owned);
    assert_eq!(left_out.collect::<BTreeSet<_>>(), &tickets | &pages);
    let held_out = reasons(&for_long, "slot_held");
    for waits in [HoldReason::WaitsForProbe, HoldReason::ZoneShort] {
        assert!(held_out.contains(&waits.name()), "{waits} waits for capacity, and pages");
    }
    for alert in alerts().iter().filter(|alert| severity(&rules, alert) == "page") {
        for reason in held(&expression(&rules, alert)) {
            assert!(
                held_out.contains(&reason),
                "{reason} pages by {alert} and TpuUnhealthyForLong"
            );
        }
    }
}

/// Percent-encodes a query.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") }
        })
        .collect()
}

fn api(prometheus: &str, path: &str) -> Value {
    let (status, body) = get(&format!("{prometheus}/api/v1/{path}"));
    let answer: Value =
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {status} {body}"));
    assert_eq!(answer["status"], "success", "{path}: {answer}");
    answer["data"].clone()
}

fn prometheus_over(folder: &Path, target: &str) -> (Server, String) {
    let config = read("prometheus/prometheus.yml")
        .replace("127.0.0.1:9470", target)
        .replace("_interval: 30s", "_interval: 1s");
    std::fs::write(folder.join("prometheus.yml"), config).unwrap();
    std::fs::copy(deploy("prometheus/rules.yml"), folder.join("rules.yml")).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let log = std::fs::File::create(folder.join("prometheus.log")).unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let server = Server(child);
    let base = format!("http://{address}");
    wait_until("Prometheus is ready", || {
        std::net::TcpStream::connect(&address).is_ok() && get(&format!("{base}/-/ready")).0 == 200
    });
    (server, base)
}

#[test]
fn a_real_prometheus_scrapes_the_demo_evaluates_the_rules_and_answers_the_dashboard() {
    if !have("prometheus") || !have("promtool") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let told = folder.path().join("told");
    let demo = Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"))
        .args(["demo", "--serve", "--speed", "100", "--listen", &address])
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&told).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _demo = Server(demo);
    wait_until("the demo serves", || std::net::TcpStream::connect(&address).is_ok());
    let (_prometheus, base) = prometheus_over(folder.path(), &address);
    let query = |expression: &str| {
        api(&base, &format!("query?query={}", encode(expression)))["result"].clone()
    };
    wait_until("the demo is scraped", || {
        query("up{job=\"tpu-watchdog\"} == 1").as_array().is_some_and(|r| !r.is_empty())
    });

    // Everything in the dashboard has data, once the demo's first recovery is over.
    let dashboard: Value = serde_json::from_str(&read("grafana/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|p| {
        p["targets"].as_array().unwrap().iter().map(move |t| (&p["title"], &t["expr"]))
    });
    let mut asked = 0;
    for (title, expression) in targets {
        let expression = expression.as_str().unwrap();
        let plain =
            ["$job", "$slot"].iter().fold(expression.to_owned(), |e, name| e.replace(name, ".*"));
        let plain = plain.replace("$__rate_interval", "30s").replace("$__range", "5m");
        assert!(!plain.contains('$'), "{plain}");
        wait_until(&format!("data for {title}: {plain}"), || {
            query(&plain)
                .as_array()
                .is_some_and(|rows| rows.iter().any(|row| row["value"][1] != "NaN"))
        });
        asked += 1;
    }
    assert!(asked >= 25, "{asked}");

    // Each rule evaluates here.
    let mut seen = Vec::new();
    wait_until("every rule was evaluated", || {
        let groups = api(&base, "rules")["groups"].clone();
        let rules: Vec<Value> = groups
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|g| g["rules"].as_array().unwrap().clone())
            .collect();
        seen = rules.iter().map(|r| r["name"].as_str().unwrap().to_owned()).collect();
        for rule in &rules {
            assert_ne!(rule["health"], "err", "{rule}");
        }
        rules.iter().all(|r| r["health"] == "ok")
    });
    // Prometheus gives groups in the order of their names.
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(seen), sorted(alerts()));
    // Of all of them only the demo's real troubles may fire: no watchdog is absent, the safety
    // check refused nothing.
    for quiet in [
        "TpuWatchdogDown",
        "TpuWatchdogNobodyActs",
        "TpuWatchdogInvariantViolated",
        "TpuWatchdogStateFailing",
        "TpuCreateRefused",
    ] {
        assert_eq!(
            query(&format!("ALERTS{{alertname=\"{quiet}\",alertstate=\"firing\"}}")),
            serde_json::json!([]),
            "{}",
            std::fs::read_to_string(&told).unwrap()
        );
    }

    // The exposition itself, by Prometheus' own linter.
    let page = folder.path().join("page");
    std::fs::write(&page, get(&format!("http://{address}/metrics")).1).unwrap();
    let mut lint = Command::new("promtool");
    let (code, out) = text(
        &lint
            .args(["check", "metrics"])
            .stdin(std::fs::File::open(&page).unwrap())
            .output()
            .unwrap(),
    );
    assert!(code == Some(0) && out.trim().is_empty(), "{out}");
    // What the contract names and exists by now is there under its name.
    let page = std::fs::read_to_string(&page).unwrap();
    for name in [
        "build_info",
        "last_poll_success_timestamp_seconds",
        "poll_duration_seconds",
        "api_requests_total",
        "api_request_duration_seconds",
        "slots",
        "slot_condition",
        "slot_healthy",
        "slot_attempts",
        "slot_paused",
        "slot_opted_out",
        "orphans",
        "recoveries_total",
        "recovery_failures_total",
        "recoveries_held",
        "recoveries_in_progress",
        "recovery_duration_seconds",
        "recovery_phase_duration_seconds",
        "detection_delay_seconds",
        "breaker_open",
        "budget_remaining",
        "paused",
        "dry_run",
        "lock_held",
        "store_failing",
        "intents_pending",
        "invariant_violations_total",
        "job_launches_total",
        "job_step",
        "job_checkpoint_step",
        "job_checkpoint_timestamp_seconds",
        "lost_seconds_total",
    ] {
        assert!(page.contains(&format!("# TYPE tpuwatchdog_{name} ")), "{name}");
    }
}
