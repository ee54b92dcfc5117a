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
                Some(percent) if (0.0..=100.0).contains(&percent) => Share::Percent(percent),
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

pub fn policy(c: &mut Check, key: &str, raw: &RawPolicy, base: Policy) -> Policy {
    let k = |name: &str| format!("{key}.{name}");
    c.later(&k("grace.queue"), &raw.grace.queue, "queued resources");
    if raw.grace.stall.as_ref().is_some_and(|s| s.as_str() != Some("auto")) {
        c.wrong(
            &k("grace.stall"),
            "not supported yet: stall detection; leave it out or write \"auto\"",
        );
    }
    match raw.on_success.as_deref() {
        None | Some("keep") => {}
        Some(other @ ("stop" | "delete")) => {
            c.wrong(&k("on_success"), format!("not supported yet: {other:?}; use \"keep\""))
        }
        Some(other) => c.wrong(&k("on_success"), format!("{other:?} is unknown; use \"keep\"")),
    }
    let create_missing = match raw.when_missing.as_deref() {
        None => base.create_missing,
        Some("create") => true,
        Some("hold") => false,
        Some(other) => {
            c.wrong(
                &k("when_missing"),
                format!("{other:?} is unknown; use \"create\" or \"hold\""),
            );
            true
        }
    };
    let zero = Duration::ZERO;
    let mut grace = |name: &str, value: Option<Span>, default: Duration| {
        c.span(&k(&format!("grace.{name}")), value, zero, default)
    };
    let (g, b) = (&raw.grace, &base.grace);
    let grace = Grace {
        startup: grace("startup", g.startup, b.startup),
        maintenance: grace("maintenance", g.maintenance, b.maintenance),
        // Reserved capacity is repaired in place and takes longer: three times the ordinary grace,
        // as in the defaults.
        maintenance_reserved: g.maintenance.map_or(b.maintenance_reserved, |Span(given)| given * 3),
        failed_repair: grace("failed_repair", g.failed_repair, b.failed_repair),
        preempted: grace("preempted", g.preempted, b.preempted),
        terminated: grace("terminated", g.terminated, b.terminated),
        unresponsive: grace("unresponsive", g.unresponsive, b.unresponsive),
        runtime_unhealthy: grace("runtime_unhealthy", g.runtime_unhealthy, b.runtime_unhealthy),
        boot: grace("boot", g.boot, b.boot),
        silent: grace("silent", g.silent, b.silent),
        missing: grace("missing", g.missing, b.missing),
        deleting: grace("deleting", g.deleting, b.deleting),
    };
    let second = Duration::from_secs(1);
    let quiet_hours = match &raw.quiet_hours {
        Some(all) => all
            .iter()
            .enumerate()
            .filter_map(|(index, raw)| quiet(c, &k(&format!("quiet_hours[{index}]")), raw))
            .collect(),
        None => base.quiet_hours,
    };
    let backoff_first = c.span(
        &k("backoff.first"),
        raw.backoff.first,
        Duration::from_millis(100),
        base.backoff_first,
    );
    let backoff_max = c.span(
        &k("backoff.max"),
        raw.backoff.max,
        Duration::from_millis(100),
        base.backoff_max.max(backoff_first),
    );
    if backoff_max < backoff_first {
        c.wrong(&k("backoff.max"), "must not be shorter than backoff.first");
    }
    Policy {
        confirmations: u32::try_from(c.at_least(
            &k("confirmations"),
            raw.confirmations,
            1,
            base.confirmations as usize,
        ))
        .unwrap_or(u32::MAX),
        max_age: c.span(&k("max_age"), raw.max_age, second, base.max_age),
        grace,
        heal: c.span(&k("heal"), raw.heal, zero, base.heal),
        create_missing,
        attempts: AttemptsPolicy {
            max: c.at_least(&k("attempts.max"), raw.attempts.max, 1, base.attempts.max),
            preemptions: c.at_least(
                &k("attempts.preemptions"),
                raw.attempts.preemptions,
                1,
                base.attempts.preemptions,
            ),
            window: c.span(
                &k("attempts.window"),
                raw.attempts.window,
                second,
                base.attempts.window,
            ),
            settled: c.span(
                &k("attempts.settled"),
                raw.attempts.settled,
                second,
                base.attempts.settled,
            ),
        },
        backoff_first,
        backoff_max,
        quiet_hours,
    }
}

fn quiet(c: &mut Check, key: &str, raw: &RawQuietHours) -> Option<QuietHours> {
    let lasts =
        c.span(&format!("{key}.for"), Some(raw.lasts), Duration::from_secs(1), Duration::ZERO);
    match QuietHours::new(&raw.cron, lasts) {
        Ok(hours) => Some(hours),
        Err(why) => {
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
