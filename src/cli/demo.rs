//! `demo`: the simulator, a fleet, faults and the watchdog in one process, talking HTTP as in
//! production.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;

use super::screen::{self, AlternateScreen};
use super::{Failed, Outcome, print, table, wire};
use crate::config;
use crate::driver::message::Mode;
use crate::model::condition::Condition;
use crate::model::event::{Event, Reason, What};
use crate::model::hold::HoldReason;
use crate::model::phase::Phase;
use crate::model::time::{after, elapsed, span};
use crate::model::view::{ActionName, SlotView, StatusDocument};
use crate::report::access::is_loopback;
use crate::report::systemd::Notify;
use crate::simulator::http::Simulator;
use crate::simulator::scenario::Scenario;

const SCENARIO: &str = include_str!("../../config/scenarios/demo.toml");
/// The demo gives up when its fleet has not settled by then (simulated time).
const LONGEST: Duration = Duration::from_secs(3 * 3600);
/// Lines of the event log below the live table.
const RECENT: usize = 10;

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How many times faster than real time.
    #[arg(long, default_value_t = 60.0, value_parser = speed)]
    speed: f64,
    /// Keeps serving the page and metrics after the end, until Ctrl-C.
    #[arg(long)]
    serve: bool,
    /// The address of the page and metrics; port 0 takes a free port, "off" serves none.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", value_parser = listen)]
    listen: String,
}

/// The demo has no token for its page.
fn listen(text: &str) -> Result<String, String> {
    let off_loopback = text.parse::<SocketAddr>().is_ok_and(|a| !is_loopback(a.ip()));
    if off_loopback {
        return Err(format!("{text} is not a loopback address; use 127.0.0.1:PORT"));
    }
    Ok(text.to_owned())
}

pub fn speed(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|s| (1.0..=200.0).contains(s))
        .ok_or_else(|| format!("{text:?} is not a speed; write a number from 1 to 200"))
}

/// The sum of the events so far.
#[derive(Default)]
struct Story {
    lines: Vec<String>,
    /// Condemned, and the end of it not told yet.
    open: BTreeSet<String>,
    recovered: Vec<(String, Condition, Duration, String)>,
    refusals: BTreeMap<String, u32>,
    healed: Vec<String>,
}

pub async fn demo(args: &DemoArgs) -> Outcome {
    let failed = |error: &dyn std::fmt::Display| Failed::Work(error.to_string());
    let scenario = Scenario::parse(SCENARIO).map_err(|e| failed(&e))?;
    let last_event = scenario.event.iter().map(|e| e.at).max().unwrap_or_default();
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Simulator::bind(any_port).await.map_err(|e| failed(&e))?;
    let base = format!("http://{}", listener.local_addr().map_err(|e| failed(&e))?);
    let simulator = Simulator::new(scenario.build(Timestamp::now(), args.speed));
    tokio::spawn(simulator.clone().serve(listener));

    let text = config_text(&scenario, &base, &args.listen, args.speed);
    let config = config::parse(Path::new("demo.toml"), &text, &|_| None)
        .map_err(|e| Failed::Config(e.to_string()))?;
    let clients = wire::clients(&config)?;
    let store = wire::open_store(&config.state, &clients.state).await?;
    let mut wired = wire::wire(&config, wire::settings(&config), clients, store, Mode::Serve);
    let published = wired.endpoints.published.clone();
    let page = serve(config.listen, &wired).await?;
    let began = Timestamp::now();
    let live = std::io::stdout().is_terminal();
    let head = head(config.settings.slots.len(), args.speed, &page);
    if !live {
        print(&format!("{head}Times are those of the simulated zone.\n\n"));
    }
    let story = Rc::new(RefCell::new(Story::default()));
    let (teller, factor) = (Rc::clone(&story), args.speed);
    wired.watchdog.listen(Box::new(move |event| {
        let mut story = teller.borrow_mut();
        if let Some(line) = tell(&mut story, event, began, factor) {
            if !live {
                print(&format!("{line}\n"));
            }
            story.lines.push(line);
        }
    }));

    let mut signals = wire::signals(None, Notify::default())?;
    let end = Instant::now() + LONGEST.div_f64(args.speed);
    let settle_after = Instant::now()
        + last_event.div_f64(args.speed)
        + Duration::from_secs(120).div_f64(args.speed);
    let mut second_screen = live.then(AlternateScreen::enter);
    let sum_up = |status: &StatusDocument| {
        let at = elapsed(began, Timestamp::now()).mul_f64(args.speed);
        let harmed = simulator.with(|cloud| cloud.harmed);
        print(&summary(&story.borrow(), status, at, harmed));
        harmed
    };
    let outcome = {
        let mut running = std::pin::pin!(wired.watchdog.run(&mut signals));
        loop {
            tokio::select! {
                end = &mut running => {
                    drop(second_screen.take());
                    sum_up(&published.get().status);
                    return wire::ended(end);
                }
                () = tokio::time::sleep(Duration::from_millis(250)) => {}
            }
            let snapshot = published.get();
            if live {
                draw(&snapshot.status, &story.borrow(), &head, began, args.speed);
            }
            let done = Instant::now() >= settle_after && settled(&snapshot.status, &story.borrow());
            if done || Instant::now() >= end {
                drop(second_screen.take());
                let harmed = sum_up(&snapshot.status);
                if args.serve {
                    print(&format!("Still serving {page}; Ctrl-C ends it.\n"));
                    return wire::ended(running.await);
                }
                break done && harmed == 0;
            }
        }
    };
    if outcome {
        Ok(())
    } else {
        Err(Failed::Work("the fleet did not settle in time, or a healthy TPU was deleted".into()))
    }
}

/// Serves the page, where one is wanted. Returns its address.
async fn serve(listen: Option<SocketAddr>, wired: &wire::Wired) -> Result<String, Failed> {
    let Some(address) = listen else { return Ok(String::new()) };
    let listener = crate::report::server::bind(address).await.map_err(|e| {
        Failed::Config(format!("--listen {address} failed: {e}; choose another one, or \"off\""))
    })?;
    let page = listener.local_addr().map(|a| format!("http://{a}/")).unwrap_or_default();
    tokio::spawn(crate::report::server::serve(listener, wired.endpoints.clone(), None));
    Ok(page)
}

fn head(tpus: usize, speed: f64, page: &str) -> String {
    let text = format!(
        "A simulated zone with {tpus} TPUs and their jobs; one second here is {speed:.0} there.\n"
    );
    let links = || format!("Page {page}  metrics {page}metrics\n");
    if page.is_empty() { text } else { text + &links() }
}

/// Every duration of the product's defaults, divided by the speed; nothing else differs from
/// production.
fn config_text(scenario: &Scenario, base: &str, listen: &str, speed: f64) -> String {
    let scaled = |seconds: f64| format!("{}ms", (seconds / speed * 1000.0).round().max(100.0));
    let minutes = |m: f64| scaled(m * 60.0);
    let mut text = format!(
        "project = \"demo\"\nstate = \"memory:\"\nowner = \"demo\"\nlisten = \"{listen}\"\n\
         [poll]\nevery = \"{}\"\noperations = \"{}\"\n[api]\ntpu = \"{base}\"\nstorage = \"{base}\"\ncredentials = \"anonymous\"\n\
         [policy]\nheal = \"{}\"\nmax_age = \"{}\"\nbackoff = {{ first = \"{}\", max = \"{}\" }}\n\
         stock_out = {{ first = \"{}\", max = \"{}\" }}\n\
         attempts = {{ settled = \"{}\" }}\n\
         grace = {{ startup = \"{}\", maintenance = \"{}\", failed_repair = \"{}\", unresponsive = \"{}\", runtime_unhealthy = \"{}\", \
         boot = \"{}\", silent = \"{}\", missing = \"{}\", deleting = \"{}\" }}\n",
        scaled(30.0),
        scaled(5.0),
        minutes(10.0),
        scaled(120.0_f64.max(speed * 5.0)),
        scaled(30.0),
        minutes(30.0),
        minutes(2.0),
        minutes(3.0),
        scaled(3600.0_f64.max(speed)),
        minutes(45.0),
        minutes(60.0),
        minutes(15.0),
        minutes(10.0),
        minutes(15.0),
        minutes(10.0),
        minutes(15.0),
        minutes(2.0),
        minutes(30.0),
    );
    for set in &scenario.nodes {
        for name in set.all_names() {
            text.push_str(&format!(
                "[[tpu]]\nname = \"{name}\"\nzone = \"{}\"\n[tpu.job]\ncommand = 'python3 train.py'\ncheckpoint = \"gs://demo/{name}\"\n",
                set.zone
            ));
        }
    }
    text
}

/// The status is ahead of the events, which are told when they are durable.
fn settled(status: &StatusDocument, story: &Story) -> bool {
    let well = |s: &SlotView| {
        s.phase.is_none() && matches!(s.condition, Condition::Healthy | Condition::Stopped)
    };
    status.tpus.iter().all(well) && story.open.is_empty()
}

/// The line of an event, with simulated times; none for what would only be noise here.
fn tell(story: &mut Story, event: &Event, began: Timestamp, speed: f64) -> Option<String> {
    let slot = event.slot.clone().unwrap_or_default();
    let simulated = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0) * speed);
    match &event.what {
        What::Condemned { .. } => _ = story.open.insert(slot.clone()),
        What::Recovered { .. } | What::Withdrawn { .. } => _ = story.open.remove(&slot),
        _ => {}
    }
    let message = match &event.what {
        What::Condition { from: Condition::Unclear, to: Condition::Healthy }
        | What::Condition { to: Condition::Unclear, .. } => {
            return None;
        }
        What::Condition { from: Condition::Maintenance, to: Condition::Healthy } => {
            story.healed.push(slot.clone());
            "healthy again by itself, within its grace: left alone".to_owned()
        }
        What::Condition { from, to } => format!("{} -> {}", from.name(), to.name()),
        What::Condemned { cause, detection_seconds, .. } => {
            format!(
                "condemned as {}, {} after the first symptom",
                cause.name(),
                span(simulated(*detection_seconds))
            )
        }
        What::Phase { from: Phase::Condemned, .. } => return None,
        What::Phase { from, seconds, to } => {
            format!("{from} -> {to} after {}", span(simulated(*seconds)))
        }
        What::RecoveryFailure { reason, .. } => {
            *story.refusals.entry(slot.clone()).or_default() += 1;
            format!("create refused ({reason}): the specification is kept, it is tried again")
        }
        What::Launch { generation, step } => {
            format!(
                "generation {generation} starts from {}",
                step.map_or("the beginning".to_owned(), |s| format!("step {s}"))
            )
        }
        What::Recovered { cause, down_seconds, steps_lost, repeated_seconds, .. } => {
            let down = simulated(*down_seconds);
            let lost = match (steps_lost, repeated_seconds) {
                (Some(steps), _) => format!("{steps} steps repeated"),
                (None, Some(seconds)) => {
                    format!("about {} of work repeated", span(simulated(*seconds)))
                }
                (None, None) => "work lost unknown".to_owned(),
            };
            story.recovered.push((slot.clone(), *cause, down, lost.clone()));
            format!("RECOVERED from {} in {}, {lost}", cause.name(), span(down))
        }
        What::Withdrawn { .. } | What::InvariantViolation { .. } | What::JobFailed { .. } => {
            event.message.clone()
        }
        // A backoff was told with its refusal; an absence becomes "missing" as soon as a GET has
        // confirmed it.
        What::Decision {
            reason: Reason::Hold(HoldReason::Backoff | HoldReason::Unclear), ..
        } => return None,
        What::Decision { action: ActionName::Hold | ActionName::Escalate, .. } => {
            event.message.clone()
        }
        _ => return None,
    };
    let at = elapsed(began, event.at).mul_f64(speed).as_secs();
    Some(format!("+{:02}:{:02}:{:02}  {slot:<8}  {message}", at / 3600, at / 60 % 60, at % 60))
}

/// One frame: the slots, then as many lines of the event log as fit. Times are those of the simulated
/// zone.
fn draw(status: &StatusDocument, story: &Story, head: &str, began: Timestamp, speed: f64) {
    let now = Timestamp::now();
    let at = elapsed(began, now).mul_f64(speed);
    let status = simulated(status, began, speed);
    let (width, rows) = (screen::width().unwrap_or(80), screen::height().unwrap_or(24));
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    lines.push(format!("simulated time {}", span(at)));
    let table = table::slots(&status, after(began, at), Some(width));
    lines.extend(table.lines().map(str::to_owned));
    lines.push(String::new());
    let room = rows.saturating_sub(lines.len() + 1).min(RECENT);
    let recent = &story.lines[story.lines.len().saturating_sub(room)..];
    lines.extend(recent.iter().map(|line| screen::cut(line, width)));
    lines.truncate(rows.saturating_sub(1));
    screen::print(&format!("\x1b[H\x1b[J{}", lines.join("\n")));
}

/// A document whose times are those of the simulated zone.
fn simulated(status: &StatusDocument, began: Timestamp, speed: f64) -> StatusDocument {
    let at = |real: Timestamp| match real >= began {
        true => after(began, elapsed(began, real).mul_f64(speed)),
        false => real,
    };
    let mut status = status.clone();
    for slot in &mut status.tpus {
        slot.since = at(slot.since);
        slot.until = slot.until.map(at);
        slot.unhealthy_since = slot.unhealthy_since.map(at);
        if let Some(job) = &mut slot.job {
            job.checkpoint_at = job.checkpoint_at.map(at);
        }
    }
    status
}

fn summary(story: &Story, status: &StatusDocument, at: Duration, harmed: u32) -> String {
    let mut text = format!("\nAfter {} of simulated time:\n", span(at));
    for (slot, cause, down, lost) in &story.recovered {
        let waited = story
            .refusals
            .get(slot)
            .map_or(String::new(), |n| format!(", {n} refused creates waited out"));
        text.push_str(&format!(
            "  {slot:<8}  recovered   {:<12} down {}, {lost}{waited}\n",
            cause.name(),
            span(*down)
        ));
    }
    for slot in &story.healed {
        text.push_str(&format!(
            "  {slot:<8}  left alone  maintenance  healed by itself within its grace\n"
        ));
    }
    for slot in status
        .tpus
        .iter()
        .filter(|s| s.action == ActionName::Hold || s.action == ActionName::Escalate)
    {
        text.push_str(&format!(
            "  {:<8}  held        {:<12} {}\n",
            slot.name,
            slot.condition.name(),
            slot.reason
        ));
    }
    let healthy = status.tpus.iter().filter(|s| s.condition == Condition::Healthy).count();
    text.push_str(&format!(
        "{healthy} of {} TPUs are healthy; {harmed} healthy ones were deleted.\n",
        status.tpus.len()
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::condition::Kind;

    #[test]
    fn a_story_whose_end_is_not_told_yet_is_not_over() {
        let event = |what| Event {
            at: Timestamp::UNIX_EPOCH,
            slot: Some("a".into()),
            message: String::new(),
            what,
        };
        let (cause, status, mut story) =
            (Condition::Preempted, StatusDocument::default(), Story::default());
        assert!(settled(&status, &story));
        let condemned =
            What::Condemned { cause, kind: Kind::Lost, incarnation: None, detection_seconds: 1.0 };
        tell(&mut story, &event(condemned), Timestamp::UNIX_EPOCH, 1.0);
        assert!(
            !settled(&status, &story),
            "the status shows it well; that it recovered is still being written"
        );
        let recovered = What::Recovered {
            queued_seconds: 0.0,
            cause,
            seconds: 1.0,
            down_seconds: 1.0,
            steps_lost: None,
            repeated_seconds: None,
        };
        tell(&mut story, &event(recovered), Timestamp::UNIX_EPOCH, 1.0);
        assert!(settled(&status, &story));
        assert!(
            summary(&story, &status, Duration::ZERO, 0).contains("a         recovered   preempted")
        );
    }
}
