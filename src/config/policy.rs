//! `[policy]`, of the fleet and of one slot.

use std::time::Duration;

use super::check::Check;
use super::raw::*;
use crate::model::quiet::QuietHours;
use crate::model::settings::*;

pub fn share(c: &mut Check, raw: Option<&RawShare>) -> Share {
    let key = "policy.max_unavailable";
    match raw {
        None => Share::Percent(25.0),
        Some(RawShare::Count(count)) => Share::Count(c.at_least(key, Some(*count), 1, 1)),
        Some(RawShare::Percent(text)) => {
            match text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok()) {
                Some(percent) if percent > 0.0 && percent <= 100.0 => Share::Percent(percent),
                Some(0.0) => {
                    let why = "one TPU at a time may always be recreated, so 0% would not mean none; write 1. `pause`, or dry_run = true, keeps all";
                    c.wrong(key, why.to_owned());
                    Share::Percent(25.0)
                }
                _ => {
                    c.wrong(key, format!("{text:?} is neither a number of slots nor a percentage; write 2 or \"25%\""));
                    Share::Percent(25.0)
                }
            }
        }
    }
}

pub fn storm(c: &mut Check, raw: Option<&RawStorm>) -> Storm {
    let default = Storm::default();
    let Some(raw) = raw else { return default };
    let percent = match raw.fraction.as_deref() {
        None => default.percent,
        Some(text) => match text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok()) {
            Some(percent) if percent > 0.0 && percent <= 100.0 => percent,
            _ => {
                c.wrong(
                    "policy.storm.fraction",
                    format!("{text:?} is not a percentage; write \"50%\""),
                );
                default.percent
            }
        },
    };
    Storm {
        percent,
        min: c.at_least("policy.storm.min", raw.min, 1, default.min),
        window: c.span("policy.storm.window", raw.window, Duration::from_secs(1), default.window),
    }
}

/// `orphans`: whether strays that can't run are removed.
pub fn removes_dead(c: &mut Check, raw: Option<&str>) -> bool {
    c.one_of("policy.orphans", raw, &[("report", false), ("dead", true)], false)
}

pub fn policy(c: &mut Check, key: &str, raw: &RawPolicy, base: Policy) -> Policy {
    let k = |name: &str| format!("{key}.{name}");
    unsupported(c, key, raw);
    let second = Duration::from_secs(1);
    let quiet_hours = match &raw.quiet_hours {
        Some(all) => all
            .iter()
            .enumerate()
            .filter_map(|(index, raw)| quiet(c, &k(&format!("quiet_hours[{index}]")), raw))
            .collect(),
        None => base.quiet_hours,
    };
    let backoff = range(c, &k("backoff"), &raw.backoff, (base.backoff_first, base.backoff_max));
    Policy {
        confirmations: c.at_least(&k("confirmations"), raw.confirmations, 1, base.confirmations),
        max_age: c.span(&k("max_age"), raw.max_age, second, base.max_age),
        grace: grace(c, &k("grace"), &raw.grace, &base.grace),
        heal: c.span(&k("heal"), raw.heal, Duration::ZERO, base.heal),
        when_missing: c.one_of(
            &k("when_missing"),
            raw.when_missing.as_deref(),
            &[
                ("auto", WhenMissing::Auto),
                ("create", WhenMissing::Create),
                ("hold", WhenMissing::Hold),
            ],
            base.when_missing,
        ),
        on_success: c.one_of(
            &k("on_success"),
            raw.on_success.as_deref(),
            &[("keep", OnSuccess::Keep), ("stop", OnSuccess::Stop), ("delete", OnSuccess::Delete)],
            base.on_success,
        ),
        attempts: attempts(c, &k("attempts"), &raw.attempts, &base.attempts),
        backoff_first: backoff.0,
        backoff_max: backoff.1,
        stock_out: range(c, &k("stock_out"), &raw.stock_out, base.stock_out),
        priority: raw.priority.unwrap_or(base.priority),
        create_check: c.one_of(
            &k("create_check"),
            raw.create_check.as_deref(),
            &[("hold", true), ("warn", false)],
            base.create_check,
        ),
        quiet_hours,
    }
}

/// Keys that are read to be refused with a reason.
fn unsupported(c: &mut Check, key: &str, raw: &RawPolicy) {
    let k = |name: &str| format!("{key}.{name}");
    let other = |value: &Option<toml::Value>, only: &str| {
        value.as_ref().is_some_and(|value| value.as_str() != Some(only))
    };
    for (name, value, only, what) in [("grace.stall", &raw.grace.stall, "auto", "stall detection")]
    {
        if other(value, only) {
            c.wrong(&k(name), format!("not supported yet: {what}; leave it out or write {only:?}"));
        }
    }
    if raw.early_maintenance == Some(true) {
        c.wrong(&k("early_maintenance"), "not supported yet: starting a maintenance early");
    }
}

/// A shortest and a longest wait.
fn range(
    c: &mut Check,
    key: &str,
    raw: &RawBackoff,
    base: (Duration, Duration),
) -> (Duration, Duration) {
    let least = Duration::from_millis(100);
    let first = c.span(&format!("{key}.first"), raw.first, least, base.0);
    let max = c.span(&format!("{key}.max"), raw.max, least, base.1.max(first));
    if max < first {
        c.wrong(&format!("{key}.max"), format!("must not be shorter than {key}.first"));
    }
    (first, max)
}

fn grace(c: &mut Check, key: &str, raw: &RawGrace, base: &Grace) -> Grace {
    let mut given = |name: &str, value: Option<Span>, default: Duration| {
        c.span(&format!("{key}.{name}"), value, Duration::ZERO, default)
    };
    let auto = |value: Option<AutoSpan>, default: Option<Duration>| match value {
        None => default,
        Some(AutoSpan::Auto) => None,
        Some(AutoSpan::Given(Span(given))) => Some(given),
    };
    Grace {
        startup: auto(raw.startup, base.startup),
        maintenance: auto(raw.maintenance, base.maintenance),
        failed_repair: given("failed_repair", raw.failed_repair, base.failed_repair),
        preempted: given("preempted", raw.preempted, base.preempted),
        terminated: given("terminated", raw.terminated, base.terminated),
        unresponsive: given("unresponsive", raw.unresponsive, base.unresponsive),
        runtime_unhealthy: given(
            "runtime_unhealthy",
            raw.runtime_unhealthy,
            base.runtime_unhealthy,
        ),
        boot: auto(raw.boot, base.boot),
        silent: given("silent", raw.silent, base.silent),
        missing: given("missing", raw.missing, base.missing),
        deleting: given("deleting", raw.deleting, base.deleting),
        provision: auto(raw.provision, base.provision),
        queue: match raw.queue {
            None => base.queue,
            Some(MaybeSpan::None) => None,
            Some(MaybeSpan::Given(Span(given))) => Some(given),
        },
        slice: auto(raw.slice, base.slice),
        setup: given("setup", raw.setup, base.setup),
        compile: given("compile", raw.compile, base.compile),
    }
}

fn attempts(c: &mut Check, key: &str, raw: &RawAttempts, base: &AttemptsPolicy) -> AttemptsPolicy {
    let (k, second) = (|name: &str| format!("{key}.{name}"), Duration::from_secs(1));
    AttemptsPolicy {
        max: c.at_least(&k("max"), raw.max, 1, base.max),
        preemptions: c.at_least(&k("preemptions"), raw.preemptions, 1, base.preemptions),
        window: c.span(&k("window"), raw.window, second, base.window),
        settled: c.span(&k("settled"), raw.settled, second, base.settled),
    }
}

fn quiet(c: &mut Check, key: &str, raw: &RawQuietHours) -> Option<QuietHours> {
    let lasts =
        c.span(&format!("{key}.for"), Some(raw.lasts), Duration::from_secs(1), Duration::ZERO);
    match QuietHours::new(&raw.cron, lasts) {
        Ok(hours) => Some(hours),
        Err(why) => {
            let fields = raw.cron.split_whitespace().count();
            if fields == 5 {
                let text =
                    format!("{0:?} has 5 fields; put the seconds in front: \"0 {0}\"", raw.cron);
                c.wrong(&format!("{key}.cron"), text);
                return None;
            }
            let example =
                "write seconds, minutes, hours, day, month, weekday, as in \"0 0 9 * * MON-FRI\"";
            c.wrong(
                &format!("{key}.cron"),
                format!("{:?} is not a cron expression ({why}); {example}", raw.cron),
            );
            None
        }
    }
}
