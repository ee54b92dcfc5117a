//! `drill`: asks the API for a simulated maintenance event on a slot's TPU, and follows what the watchdog
//! makes of it. Before that it measures whether, and when, a changed run order reaches the hosts.
//!
//! The lines that it prints come from the journal: the process that holds the lock watches and acts as ever. The
//! event itself is sent from here, with the credentials of the person who asks, after the journal has
//! taken in who did.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;

use super::names::no_slot;
use super::{ConfigFile, Failed, Outcome, load, operator, print, wire};
use crate::config::{self, Config};
use crate::model::action::{CallOutcome, Reading};
use crate::model::command::{Command, CommandKind};
use crate::model::condition::Condition;
use crate::model::event::{CallResult, CommandName, Event, What};
use crate::model::filling::Filling;
use crate::model::node::NodeState;
use crate::model::relaunch::TAKES_WAIT;
use crate::model::slot::SlotRecord;
use crate::model::time::{after, elapsed, span};
use crate::store::{Store, StoreError, Stored};

/// Hosts that have not read a changed order after this long do not get one.
const READ_WITHIN: Duration = Duration::from_secs(6 * 60);
/// The pause that is measured ends by itself, should this process die.
const PAUSED_FOR: Duration = Duration::from_secs(15 * 60);
/// The newest events that are looked through each time.
const EVENTS: usize = 2_000;

#[derive(Debug, Args)]
pub struct DrillArgs {
    /// The slot whose TPU gets a simulated maintenance event.
    slot: String,
    /// The TPU's id, as `status --output json` shows it.
    #[arg(long, value_name = "ID")]
    incarnation: Option<String>,
    /// Confirms the present TPU, on a terminal.
    #[arg(long, conflicts_with = "incarnation")]
    yes: bool,
    /// How long to follow it.
    #[arg(long = "for", value_name = "DURATION", default_value = "30m", value_parser = super::once::duration)]
    lasts: Duration,
}

pub async fn drill(at: &ConfigFile, args: &DrillArgs) -> Outcome {
    let config = load(at)?;
    let (store, stored) = operator::open(&config).await?;
    let record = meant(args, &config, &stored)?;
    let clients = wire::clients(&config)?;
    let deadline = Instant::now() + config.settings.poll.timeout;
    let slot = config.settings.slots.get(&args.slot);
    let view = match slot.map(|slot| slot.clone().filled(Some(record)).filling) {
        Some(Filling::QueuedResource(id)) => {
            let nodes = record.nodes();
            let read = clients.tpu.get_filled(&record.zone, &id, nodes, deadline).await;
            read.map(|reading| match reading {
                Reading::Node(view) => Some(view),
                Reading::Absent | Reading::Unread(_) => None,
            })
        }
        Some(Filling::Training(_)) => {
            let text = format!(
                "{}: a training job has no maintenance to simulate; nothing was done",
                args.slot
            );
            return Err(Failed::Work(text));
        }
        _ => clients
            .tpu
            .get_node(&record.zone, &record.name, deadline)
            .await
            .map(|view| Some(Arc::new(view))),
    };
    let view =
        view.map_err(|why| Failed::Work(format!("{}: {why}; nothing was done", args.slot)))?;
    let ready = view.as_ref().filter(|view| view.state == NodeState::Ready);
    let present = ready.and_then(|view| view.incarnation.as_ref());
    if present.is_none() || present != record.incarnation.as_ref() {
        return Err(Failed::Work(format!(
            "{} is not the READY TPU that the journal knows ({}): it is {} now. A drill needs a TPU at work; nothing was done",
            args.slot,
            record.incarnation.as_ref().map_or("none".to_owned(), ToString::to_string),
            view.as_ref().map_or("absent", |view| view.state.as_str())
        )));
    }
    let mut drill = Drill {
        slot: args.slot.clone(),
        store,
        again: again(&config),
        seen: None,
        told: Vec::new(),
    };
    drill.seen = drill.events().await?.last().map(|event| event.at);
    match not_measured(record) {
        Some(why) => print(&format!("A changed run order is not measured: {why}.\n")),
        None => drill.measure(&config).await?,
    }
    drill.simulate(&clients.tpu, record).await?;
    drill.follow(args.lasts).await
}

/// The slot, if a drill of its TPU is meant and a watchdog runs.
fn meant<'a>(
    args: &DrillArgs,
    config: &Config,
    stored: &'a Stored,
) -> Result<&'a SlotRecord, Failed> {
    let record = stored.slots.get(&args.slot).filter(|record| record.left_at.is_none());
    let Some(record) = record.filter(|_| config.settings.slots.contains_key(&args.slot)) else {
        return Err(no_slot(&args.slot, config.settings.slots.keys()));
    };
    let poll = &config.settings.poll;
    // As long as `status` believes in a holder that does not poll.
    let patience = (poll.every * 3).max(config.lease * 2) + poll.timeout;
    let polls = |at| elapsed(at, Timestamp::now()) <= patience;
    let held = stored.lease.as_ref().is_some_and(|lease| !lease.released);
    if !(held && stored.ledger.observed_at.is_some_and(polls)) {
        let text = "no watchdog runs that could react: start `run` first; nothing was done";
        return Err(Failed::Work(text.into()));
    }
    if let Some(why) = left_alone(config, stored, record) {
        let text =
            format!("{}: {why}, so that nothing would mend its TPU; nothing was done", args.slot);
        return Err(Failed::Config(text));
    }
    let id = record.incarnation.as_ref().map(|incarnation| incarnation.id.as_str());
    let sure = args.yes && std::io::stdin().is_terminal() || args.incarnation.as_deref() == id;
    if !sure || id.is_none() {
        return Err(Failed::Config(format!(
            "a simulated maintenance event interrupts what runs on {}. Say which TPU is meant: --incarnation {}, or --yes on a terminal; \
             nothing was done",
            args.slot,
            id.unwrap_or("ID")
        )));
    }
    Ok(record)
}

/// Why the watchdog would not act on the slot.
fn left_alone(config: &Config, stored: &Stored, record: &SlotRecord) -> Option<&'static str> {
    let seen = record.seen.as_ref();
    let others = seen.is_some_and(|s| s.other_owner.is_some() && record.adopted != s.other_owner);
    let mut pauses = [&record.paused, &stored.ledger.paused].into_iter().flatten();
    let paused = pauses.any(|pause| pause.holds(Timestamp::now()));
    [
        (config.settings.dry_run, "dry_run is set"),
        (paused, "it is paused"),
        (seen.is_some_and(|seen| seen.opted_out), "the label tpu-watchdog=off is set"),
        (record.forgotten || record.released.is_some(), "it was forgotten or given back"),
        (others, "its TPU belongs to another watchdog"),
    ]
    .into_iter()
    .find_map(|(is_so, why)| is_so.then_some(why))
}

/// Why it is not measured when a changed run order reaches the hosts.
fn not_measured(record: &SlotRecord) -> Option<&'static str> {
    let supervised = record.seen.as_ref().is_some_and(|seen| seen.supervised);
    let takes = record.ours && supervised && record.supervisors_are(TAKES_WAIT);
    (!takes).then_some("its hosts have reported no supervisor of ours that follows one (version 3)")
}

/// A state in a bucket is read less often.
fn again(config: &Config) -> Duration {
    let local = matches!(config.state, config::StateLocation::Sqlite(_));
    if local { Duration::from_millis(500) } else { Duration::from_secs(15) }
}

/// One drill, told as the journal grows.
struct Drill {
    slot: String,
    store: Box<dyn Store>,
    again: Duration,
    /// The newest event that was told.
    seen: Option<Timestamp>,
    told: Vec<Event>,
}

impl Drill {
    /// The slot's events that were not told yet.
    async fn events(&mut self) -> Result<Vec<Event>, Failed> {
        let failed = |error: StoreError| Failed::Work(error.to_string());
        let mut events = self.store.events(EVENTS).await.map_err(failed)?;
        let (slot, seen) = (self.slot.as_str(), self.seen);
        events.retain(|e| e.slot.as_deref() == Some(slot) && seen.is_none_or(|seen| e.at > seen));
        Ok(events)
    }

    /// Tells what the journal takes in until `found` gives something for one of the events from number
    /// `from` on, for so long at most.
    async fn until<T>(
        &mut self,
        from: usize,
        lasts: Duration,
        mut found: impl FnMut(&Event) -> Option<T>,
    ) -> Result<Option<T>, Failed> {
        let (began, mut next) = (Instant::now(), from);
        loop {
            for event in self.events().await? {
                print(&format!("{:.0}  {}\n", event.at, event.message));
                self.seen = self.seen.max(Some(event.at));
                self.told.push(event);
            }
            let result = self.told[next..].iter().find_map(&mut found);
            next = self.told.len();
            if result.is_some() || began.elapsed() >= lasts {
                return Ok(result);
            }
            tokio::time::sleep(self.again).await;
        }
    }

    /// Puts a command into the journal.
    async fn queue(&mut self, kind: CommandKind, reason: &str) -> Outcome {
        let id = uuid::Uuid::new_v4().to_string();
        let (at, who) = (Timestamp::now(), config::person());
        let command = Command { id, at, who, reason: Some(reason.to_owned()), kind };
        self.store.submit(&command).await.map_err(|error| Failed::Work(error.to_string()))
    }

    /// Puts a command into the journal, and waits until its holder has taken it.
    async fn give(&mut self, kind: CommandKind, name: CommandName, reason: &str) -> Outcome {
        self.queue(kind, reason).await?;
        let taken = |event: &Event| {
            matches!(&event.what, What::Command { command, reason: Some(said), .. } if *command == name && said == reason)
                .then_some(())
        };
        self.until(self.told.len(), READ_WITHIN, taken).await?.ok_or_else(|| {
            Failed::Work(format!(
                "no watchdog took {:?} from the journal; is one running?",
                name.name()
            ))
        })
    }

    /// A pause changes the run order of the running hosts, and ends nothing: when do they read it?
    async fn measure(&mut self, config: &Config) -> Outcome {
        print(
            "First: does a changed run order reach the hosts? A pause writes one; what runs goes on.\n",
        );
        let until = Some(after(Timestamp::now(), PAUSED_FOR));
        let from = self.told.len();
        let pause = CommandKind::Pause { slot: Some(self.slot.clone()), until };
        let resume = CommandKind::Resume { slot: Some(self.slot.clone()), adopt: false };
        if let Err(failed) = self.give(pause, CommandName::Pause, "drill").await {
            // It may be taken later, and so is this.
            self.queue(resume, "drill").await?;
            return Err(failed);
        }
        let mut patched = None;
        let read = self
            .until(from, READ_WITHIN, |event| {
                match &event.what {
                    What::OrderOutcome { result: CallResult::Accepted, .. } => {
                        patched = Some(event.at)
                    }
                    What::OrderOutcome { result: CallResult::Refused, .. } => {
                        return Some(Err(event.message.clone()));
                    }
                    What::OrderRead { .. } => return Some(Ok(event.at)),
                    _ => {}
                }
                None
            })
            .await;
        self.give(resume, CommandName::Resume, "drill").await?;
        print(&match (read?, patched) {
            (Some(Ok(at)), Some(patched)) => format!(
                "A changed run order reached every host within {} (their reports are read every {}).\n\n",
                span(elapsed(patched, at)),
                span(config.settings.poll.every)
            ),
            (Some(Ok(_)), None) => "A changed run order reached every host.\n\n".to_owned(),
            (Some(Err(why)), _) => format!("A run order can't be changed here: {why}.\n\n"),
            (None, _) => format!(
                "No host has said within {} that it read a changed run order: `pause` and `relaunch` do not reach the hosts of this TPU.\n\n",
                span(READ_WITHIN)
            ),
        });
        Ok(())
    }

    /// The event is asked for, once the journal knows of it.
    async fn simulate(
        &mut self,
        tpu: &crate::google::tpu::TpuClient,
        record: &SlotRecord,
    ) -> Outcome {
        let drill = CommandKind::Drill { slot: self.slot.clone() };
        // Of a multislice its first slice is struck.
        let node = record.nodes().first().unwrap_or(&record.name);
        let said = format!("a maintenance event is simulated on worker 0 of {node}");
        self.give(drill, CommandName::Drill, &said).await?;
        match tpu.simulate_maintenance(&record.zone, node).await {
            CallOutcome::Accepted(operation) => {
                print(&format!("{:.0}  the API has taken it: {operation}\n", Timestamp::now()));
                Ok(())
            }
            CallOutcome::Unknown(failure) => {
                print(&format!("{failure}; whether the event comes is not known\n"));
                Ok(())
            }
            CallOutcome::Refused(failure) | CallOutcome::NotSent(failure) => {
                Err(Failed::Work(format!("the maintenance event was refused: {failure}")))
            }
        }
    }

    /// Follows the slot until it was away and is back, and sums up.
    async fn follow(&mut self, lasts: Duration) -> Outcome {
        let (began, mut left, mut worst) = (Timestamp::now(), None, Condition::Healthy);
        let (from, mut recreated) = (self.told.len(), false);
        let back = self
            .until(from, lasts, |event| match &event.what {
                What::Condition { to: Condition::Healthy, .. } => left.map(|_: Timestamp| event.at),
                What::Condition { to, .. } if *to != Condition::Unclear => {
                    left = left.or(Some(event.at));
                    worst = *to;
                    None
                }
                What::Intent { .. } => {
                    recreated = true;
                    None
                }
                _ => None,
            })
            .await?;
        let Some(left) = left else {
            return Err(Failed::Work(format!(
                "the API took the event, and nothing was seen of it within {}: neither its state nor its health has changed",
                span(lasts)
            )));
        };
        let seen = span(elapsed(began, left));
        let Some(back) = back else {
            print(&format!(
                "\nSeen as {} after {seen}, and not over after {}: `tpu-watchdog status` goes on with it.\n",
                worst.name(),
                span(lasts)
            ));
            return Err(Failed::NeedsAPerson);
        };
        let how = if recreated {
            "the TPU was recreated"
        } else {
            "it came back by itself, and nothing was deleted"
        };
        print(&format!(
            "\nSeen as {} after {seen}, healthy again {} later: {how}.\n",
            worst.name(),
            span(elapsed(left, back))
        ));
        Ok(())
    }
}
