//! The page at `/`: every slot with its state, its condition, what is done and why. One document,
//! no script, no assets.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::published::{Lock, Snapshot};
use crate::model::condition::Condition;
use crate::model::time::elapsed;
use crate::model::time::span;
use crate::model::view::{ActionName, SlotView, StrayView};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.3rem;margin:0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}p.sub{color:#59636e;margin:.2rem 0 1.2rem}table{border-collapse:collapse;width:100%}\
th{font-weight:600;text-align:left;color:#59636e;border-bottom:2px solid #d1d9e0}th,td{padding:.4rem .8rem .4rem 0;vertical-align:top}\
td{border-bottom:1px solid #eaeef2}.n{font-weight:600;white-space:nowrap}.z{color:#59636e;font-weight:400;font-size:.85em}\
.c{display:inline-block;padding:0 .55em;border-radius:.8em;background:#eaeef2;white-space:nowrap}.ok{background:#dafbe1;color:#116329}\
.act{background:#ddf4ff;color:#0550ae}.wait{background:#fff8c5;color:#7d4e00}.bad{background:#ffebe9;color:#a40e26}\
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}td{border-color:#21262d}th{border-color:#30363d}\
.c{background:#30363d;color:#e6edf3}.ok{background:#12361f;color:#7ee787}.act{background:#0c2d56;color:#a5d6ff}.wait{background:#3b2e00;color:#f2cc60}\
.bad{background:#4c1418;color:#ffb1ab}}";

/// Renders the page.
pub fn render(snapshot: &Snapshot, now: Timestamp) -> String {
    let tpus = &snapshot.status.tpus;
    let healthy = tpus.iter().filter(|s| s.condition == Condition::Healthy).count();
    let observed = snapshot
        .status
        .observed_at
        .map_or("nothing read yet".to_owned(), |at| format!("read {} ago", span(elapsed(at, now))));
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5><title>tpu-watchdog</title>\
         <meta name=viewport content=\"width=device-width\"><style>{STYLE}</style>\
         <h1>tpu-watchdog</h1><p class=sub>{healthy} of {} healthy, {observed}{}{}{}</p>\
         <table><tr><th>TPU<th>Condition<th>What is done, and why<th>Job step<th>Checkpoint<th>Attempts",
        tpus.len(),
        if snapshot.dry_run { ", dry run: nothing is changed" } else { "" },
        match &snapshot.lock {
            Lock::StandingBy(holder) =>
                format!(", <b>standing by</b>: {} holds the lock", escape(holder)),
            _ => String::new(),
        },
        if snapshot.store_failing {
            ", <b>the journal can't be written: nothing is done</b>"
        } else {
            ""
        },
    );
    for slot in tpus {
        row(&mut html, slot, now);
    }
    html.push_str("</table>");
    strays(&mut html, &snapshot.status.strays, now);
    html.push_str("</html>");
    html
}

/// The TPUs that no slot owns, if there are any.
fn strays(html: &mut String, strays: &[StrayView], now: Timestamp) {
    if strays.is_empty() {
        return;
    }
    html.push_str("<h2>Belongs to no slot</h2><table><tr><th>TPU<th>State<th>Why");
    for stray in strays {
        let removal = stray.removal.as_ref().map_or(String::new(), |text| format!("; {text}"));
        // Writing to a String never fails.
        let _ = write!(
            html,
            "<tr><td class=n>{}<br><span class=z>{}</span><td>{}<br><span class=z>{}</span><td>{}{}",
            escape(&stray.name),
            escape(&stray.zone),
            escape(stray.state.as_deref().unwrap_or("not read")),
            span(elapsed(stray.since, now)),
            escape(&stray.why),
            escape(&removal),
        );
    }
    html.push_str("</table>");
}

fn row(html: &mut String, slot: &SlotView, now: Timestamp) {
    let color = match (slot.action, slot.condition) {
        (ActionName::Escalate, _) => "bad",
        (ActionName::Recreate | ActionName::Create | ActionName::Relaunch, _) => "act",
        (ActionName::Wait | ActionName::Hold, _) => "wait",
        (_, Condition::Healthy | Condition::Finished) => "ok",
        _ => "",
    };
    let number = |step: Option<u64>| step.map_or("–".to_owned(), |s| s.to_string());
    let job = slot.job.as_ref();
    let until = slot.until.filter(|at| *at > now).map_or(String::new(), |at| {
        format!(" <span class=z>(in {})</span>", span(elapsed(now, at)))
    });
    let action = match (slot.action, &slot.phase) {
        (ActionName::None, _) => String::new(),
        (action, Some(phase)) => format!("<b>{}</b>, {phase}: ", action.name()),
        (action, None) => format!("<b>{}</b>: ", action.name()),
    };
    // Writing to a String never fails.
    let _ = write!(
        html,
        "<tr><td class=n>{}<br><span class=z>{} {}</span><td><span class=\"c {color}\">{}</span><br><span class=z>{}</span><td>{action}{}{until}<td>{}<td>{}<td>{}/{}",
        escape(&slot.name),
        escape(&slot.zone),
        escape(slot.accelerator.as_deref().unwrap_or_default()),
        slot.condition.name(),
        span(elapsed(slot.since, now)),
        if slot.action == ActionName::None { String::new() } else { escape(&slot.reason) },
        number(job.and_then(|j| j.step)),
        number(job.and_then(|j| j.checkpoint_step)),
        slot.attempts.used,
        slot.attempts.max,
    );
}

/// Everything from outside goes through here.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}
