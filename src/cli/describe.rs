//! `status SLOT`: one slot whole, with its evidence, the answer of each gate, its last events and the
//! commands that may come next.

use jiff::Timestamp;

use super::screen::{self, FAINT, HEAD, labelled, paint, style};
use crate::core::view::GateAnswer;
use crate::model::condition::Condition;
use crate::model::event::Event;
use crate::model::time::{elapsed, span};
use crate::model::view::{ActionName, SlotView};
use crate::report::sentence::{self, Tone, none_known};

/// The newest events of the slot that are shown.
const EVENTS: usize = 12;

/// The description of one slot.
pub fn describe(
    slot: &SlotView,
    gates: &[(String, Vec<GateAnswer>)],
    events: &[Event],
    acting: &str,
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let told = sentence::sentence(slot, now);
    let head = format!("{} {}", told.tone.mark(), slot.name);
    let mut text = screen::paragraph(
        &format!("{}: {}", paint(style(told.tone), &head), told.whole(now)),
        width,
    );
    text += &screen::paragraph(&paint(FAINT, acting), width);
    text.push('\n');
    for (label, value) in facts(slot, now) {
        text += &labelled(label, &value, width);
    }
    for warning in &slot.warnings {
        text += &labelled("Warning", warning, width);
    }
    let answers = gates.iter().find(|(name, _)| *name == slot.name).map(|(_, answers)| answers);
    text += &format!("\n{}\n", paint(HEAD, "Gates: what a recovery would meet now"));
    for answer in answers.into_iter().flatten() {
        let (tone, words) = match &answer.holds {
            None => (Tone::Good, "open"),
            Some(why) => (Tone::Bad, why.as_str()),
        };
        let mark = paint(style(tone), tone.mark());
        text += &labelled(answer.name, &format!("{mark} {words}"), width);
    }
    text += &timeline(slot, events, now, width);
    text += &format!("\n{}\n", paint(HEAD, "Next"));
    for (command, what) in next_steps(slot) {
        text += &format!("  {command:<44}{}\n", paint(FAINT, what));
    }
    text
}

fn after_the_end(slot: &SlotView) -> String {
    match &slot.next_request {
        Some(next) => format!("{} is asked for already ({})", next.name, next.state),
        None => "its next request is sent an hour before".to_owned(),
    }
}

/// The machines that fill it: how many of which type, and by which request.
fn machines(slot: &SlotView) -> (&'static str, String) {
    let kind = slot.accelerator.as_deref().filter(|name| !name.is_empty()).unwrap_or("TPU");
    let kind = slot.slices.map_or_else(|| kind.to_owned(), |slices| format!("{slices} x {kind}"));
    let queued = match (slot.kind.as_str(), &slot.request) {
        ("queued_resource", Some(request)) => format!(", queued resource {}", request.name),
        ("queued_resource", None) => ", a queued resource".to_owned(),
        _ => String::new(),
    };
    let spot = if slot.spot { ", Spot" } else { "" };
    let what = if slot.is_job() { "Machine" } else { "TPU" };
    (what, format!("{kind} in {}{spot}{queued}", slot.zone))
}

/// The facts, by label.
fn facts(slot: &SlotView, now: Timestamp) -> Vec<(&'static str, String)> {
    let ago = |at: Timestamp| {
        format!("{} ({} ago)", at.strftime("%F %H:%M:%S UTC"), span(elapsed(at, now)))
    };
    let mut all = vec![machines(slot)];
    if let Some(incarnation) = &slot.incarnation {
        all.push(("Id", format!("{}, created {}", incarnation.id, ago(incarnation.created))));
    }
    if let Some(at) = slot.ends_at.filter(|at| *at > now) {
        let left = span(elapsed(now, at));
        let at = at.strftime("%F %H:%M UTC");
        all.push(("Ends", format!("{at} (in {left}): flex-start; {}", after_the_end(slot))));
    }
    all.push((
        "Condition",
        format!("{} since {}: {}", slot.condition, ago(slot.since), slot.evidence),
    ));
    if let Some(phase) = &slot.phase {
        let step = slot.recovery_step.map(|step| format!(" (step {} of {})", step.at, step.of));
        all.push(("Recovery", format!("under way: {phase}{}", step.unwrap_or_default())));
    }
    let hold = slot.hold.as_ref().map_or(String::new(), |hold| format!(" ({hold})"));
    all.push(("Decision", format!("{}{hold}: {}", slot.action, slot.reason)));
    if let Some(until) = slot.until.filter(|at| *at > now) {
        all.push((
            "Until",
            format!("{} (in {})", until.strftime("%F %H:%M:%S UTC"), span(elapsed(now, until))),
        ));
    }
    all.push(("Protected", protection(slot)));
    all.push((
        "Recoveries",
        format!(
            "{} in the last 24 h; without progress {} of {}",
            slot.recoveries_24h, slot.attempts.used, slot.attempts.max
        ),
    ));
    if let Some(job) = &slot.job {
        let step = job.step.map_or(String::new(), |step| format!(", step {step}"));
        let state = job.state.to_string();
        let phase = job.phase.map(|phase| phase.to_string()).filter(|phase| *phase != state);
        let phase = phase.map_or(String::new(), |phase| format!(" ({phase})"));
        all.push(("Job", format!("{state}{phase}{step}")));
        let checkpoint = match (&job.checkpoint, &job.location) {
            (Some(uri), _) => {
                let age =
                    job.checkpoint_at.map_or(String::new(), |at| format!(", written {}", ago(at)));
                format!("{uri}{age}")
            }
            (None, Some(location)) => none_known(location, job.unlisted, &job.around),
            (None, None) if slot.is_job() => {
                "no location is known: what is submitted again may start over".to_owned()
            }
            (None, None) => "none is configured: a recreated TPU starts its job over".to_owned(),
        };
        all.push(("Checkpoint", checkpoint));
    }
    if !slot.drift.is_empty() {
        all.push(("Config", format!("the next recreate changes {}", slot.drift.join(", "))));
    }
    if let Some(digest) = &slot.specification {
        all.push(("Specification", digest.clone()));
    }
    all
}

fn protection(slot: &SlotView) -> String {
    match &slot.unprotected_reason {
        None if slot.is_job() => "yes: it would be submitted again if it failed now".to_owned(),
        None => "yes: it would be recreated if it were lost now".to_owned(),
        Some(why) if slot.unprotected_by_choice => format!("no, by choice: {why}"),
        Some(why) => format!("NO: {why}"),
    }
}

fn timeline(slot: &SlotView, events: &[Event], now: Timestamp, width: Option<usize>) -> String {
    let mut text = format!("\n{}\n", paint(HEAD, "Events, the newest last"));
    let own: Vec<&Event> =
        events.iter().filter(|event| event.slot.as_deref() == Some(slot.name.as_str())).collect();
    if own.is_empty() {
        text += "  none are kept\n";
    }
    for event in &own[own.len().saturating_sub(EVENTS)..] {
        let age = format!("{} ago", span(elapsed(event.at, now)));
        text += &labelled(&age, &event.message, width);
    }
    text
}

/// Commands to copy, for what stands in the way now.
fn next_steps(slot: &SlotView) -> Vec<(String, &'static str)> {
    let name = &slot.name;
    let command = |verb: &str| format!("tpu-watchdog {verb} {name}");
    let mut all = Vec::new();
    if let Some(pause) = &slot.pause {
        let one = if pause.all { "tpu-watchdog resume --all".into() } else { command("resume") };
        all.push((one, "ends the pause"));
    }
    match slot.hold.as_deref() {
        Some("paused") => {}
        Some("opted_out") if slot.condition == Condition::Missing => {
            all.push((command("resume"), "creates it again, without the label"));
        }
        Some("other_owner") => {
            all.push((command("resume") + " --adopt", "makes this TPU the watchdog's own"));
        }
        Some("job_failed" | "no_progress" | "attempts" | "stopped" | "time_limit" | "deleted")
            if slot.is_job() =>
        {
            all.push((command("retry"), "submits the job again"));
        }
        Some("job_failed" | "no_progress") => {
            all.push((command("logs"), "how its last runs ended"));
            all.push((command("relaunch"), "starts the job again on this TPU"));
        }
        Some("cannot_relaunch") => {
            all.push((command("retry"), "withdraws the relaunch"));
            all.push((command("explain"), "what this hold means"));
        }
        Some("attempts" | "preemptions") => {
            all.push((command("retry"), "restores its attempts"));
        }
        Some("forgotten") => all.push((command("retry"), "creates it again")),
        Some("ended_early") => {
            all.push((command("done"), "the job has done its work"));
            all.push((command("retry"), "the job is started again"));
        }
        Some(hold) => all.push((format!("tpu-watchdog explain {hold}"), "what this hold means")),
        None if slot.action == ActionName::None => {
            all.push((
                format!("tpu-watchdog plan --if-lost {name}"),
                if slot.is_job() {
                    "what would be submitted"
                } else {
                    "what a recreate would look like"
                },
            ));
            if slot.pause.is_none() {
                all.push((command("pause") + " --for 2h", "before you work on it by hand"));
            }
        }
        None => {}
    }
    all.push((command("history"), "its incidents"));
    all
}
