//! The page at `/`: who acts, what stands over all slots, and a sentence a slot, the most urgent first.
//! One document that only reads: no script, no assets.

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::banner;
use super::published::{Lock, Snapshot};
use super::sentence::{Tone, by_urgency, heading};
use crate::model::condition::Condition;
use crate::model::time::{elapsed, span};
use crate::model::view::{SlotView, StatusDocument, StrayView};

const STYLE: &str = ":root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.3rem;margin:0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}p{margin:.2rem 0}p.sub{color:#59636e;margin:.2rem 0 1.2rem}\
p.banner{padding:.5rem .8rem;border-radius:.4rem;background:#fff8c5;color:#7d4e00;margin:.4rem 0}p.banner.bad{background:#ffebe9;color:#a40e26}\
table{border-collapse:collapse;width:100%}th{font-weight:600;text-align:left;color:#59636e;border-bottom:2px solid #d1d9e0}\
th,td{padding:.4rem .8rem .4rem 0;vertical-align:top}td{border-bottom:1px solid #eaeef2;overflow-wrap:anywhere}\
.n{font-weight:600}.w{color:#9a6700}.z{color:#59636e;font-weight:400;font-size:.85em}\
.c{display:inline-block;padding:0 .55em;border-radius:.8em;background:#eaeef2;white-space:nowrap}.good{background:#dafbe1;color:#116329}\
.act{background:#ddf4ff;color:#0550ae}.wait{background:#fff8c5;color:#7d4e00}.bad{background:#ffebe9;color:#a40e26}\
@media(min-width:641px){td.n,td.s{white-space:nowrap}}\
@media(max-width:640px){body{margin:1rem auto}tr.h{display:none}tr,td{display:block;border:0;padding:.1rem 0}tr{padding:.6rem 0;border-bottom:1px solid #eaeef2}}\
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}a{color:#4493f8}.w{color:#f2cc60}p.sub,th,.z{color:#9198a1}td,tr{border-color:#21262d}th{border-color:#30363d}\
.c{background:#30363d;color:#e6edf3}.good{background:#12361f;color:#7ee787}.act{background:#0c2d56;color:#a5d6ff}.wait,p.banner{background:#3b2e00;color:#f2cc60}\
.bad,p.banner.bad{background:#4c1418;color:#ffb1ab}}";

/// Renders the page.
pub fn render(snapshot: &Snapshot, now: Timestamp) -> String {
    let status = &snapshot.status;
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content="5";
                meta name="viewport" content="width=device-width";
                title { (title(status)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "tpu-watchdog" }
                p class="sub" { (headline(snapshot, now)) }
                @for (bad, banner) in banners(snapshot, now) {
                    p class={ "banner" @if bad { " bad" } } { (banner) }
                }
                table {
                    tr class="h" { th { (heading(status)) } th { "State" } th { "Why, and what comes next" } th { "Recreated" } }
                    @for (slot, sentence) in by_urgency(status, now) {
                        tr {
                            td class="n" { (slot.name) br; span class="z" { (place(slot)) } }
                            td class="s" {
                                span class={ "c " (class(sentence.tone)) } { (sentence.word) }
                                " " span class="z" { (span(elapsed(sentence.since, now))) }
                            }
                            td {
                                (sentence.text)
                                @for warning in warnings(slot) { br; span class="w" { "! " (warning) } }
                            }
                            td class="z" { (recovered(slot)) }
                        }
                    }
                }
                (strays(&status.strays, now))
                p class="sub" {
                    "version " (env!("TPU_WATCHDOG_VERSION")) ", "
                    a href="/metrics" { "metrics" } ", " a href="/api/v1/status" { "status as JSON" }
                    ". For one slot: tpu-watchdog status SLOT. For the past: tpu-watchdog history."
                }
            }
        }
    };
    markup.into_string()
}

/// How many are healthy, for the tab.
fn title(status: &StatusDocument) -> String {
    let healthy = status.tpus.iter().filter(|slot| slot.condition == Condition::Healthy).count();
    format!("{healthy} of {} healthy · tpu-watchdog", status.tpus.len())
}

fn headline(snapshot: &Snapshot, now: Timestamp) -> String {
    let status = &snapshot.status;
    let healthy = status.tpus.iter().filter(|slot| slot.condition == Condition::Healthy).count();
    let protected = status.tpus.iter().filter(|slot| slot.protected).count();
    let read = status
        .observed_at
        .map_or("nothing read yet".to_owned(), |at| format!("read {} ago", span(elapsed(at, now))));
    let acting = status.acting.as_ref().map_or(String::new(), |acting| {
        let since = acting
            .since
            .map_or(String::new(), |at| format!(" since {}", at.strftime("%F %H:%M UTC")));
        format!("; watched by {}{since}", acting.host)
    });
    let count = status.tpus.len();
    format!("{healthy} of {count} healthy, {protected} of {count} protected, {read}{acting}")
}

/// States of the whole fleet, and whether an operator has to act.
fn banners(snapshot: &Snapshot, now: Timestamp) -> Vec<(bool, String)> {
    let status = &snapshot.status;
    let mut all = Vec::new();
    if snapshot.store_failing {
        let text = "the journal can't be written: nothing is done to any TPU; the log says why";
        all.push((true, text.to_owned()));
    }
    if let Lock::StandingBy(holder) = &snapshot.lock {
        all.push((false, format!("standing by: {holder} holds the lock")));
    }
    all.extend(banner::banners(status, now).into_iter().map(|of| (of.urgent, of.text)));
    all
}

fn place(slot: &SlotView) -> String {
    let kind = slot.accelerator.as_deref().unwrap_or_default();
    format!("{kind} {}", slot.zone).trim().to_owned()
}

/// The gaps that a recovery would find; what makes a slot unprotected is in its sentence.
fn warnings(slot: &SlotView) -> impl Iterator<Item = &String> {
    let told = slot.unprotected_reason.as_deref().unwrap_or_default();
    slot.warnings.iter().filter(move |warning| !told.contains(warning.as_str()))
}

fn recovered(slot: &SlotView) -> String {
    match (slot.recoveries_24h, slot.attempts.used) {
        (0, _) => String::new(),
        (count, 0) => format!("{count} × in 24 h"),
        (count, used) => {
            format!("{count} × in 24 h, without progress {used} of {}", slot.attempts.max)
        }
    }
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Bad | Tone::Unprotected => "bad",
        Tone::Waiting => "wait",
        Tone::Acting => "act",
        Tone::Off => "",
        Tone::Good => "good",
    }
}

/// The TPUs that no slot owns, if there are any.
fn strays(strays: &[StrayView], now: Timestamp) -> Markup {
    html! {
        @if !strays.is_empty() {
            h2 { "Belongs to no slot" }
            table {
                tr class="h" { th { "Name" } th { "State" } th { "Why" } }
                @for stray in strays {
                    tr {
                        td class="n" { (stray.name) br; span class="z" { (stray.zone) } }
                        td {
                            @if let Some(id) = &stray.queued_resource { "queued resource " (id) br; }
                            (stray.state.as_deref().unwrap_or("not read")) br;
                            span class="z" { (span(elapsed(stray.since, now))) }
                        }
                        td { (stray.why) @if let Some(removal) = &stray.removal { "; " (removal) } }
                    }
                }
            }
        }
    }
}
