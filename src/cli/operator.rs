//! `pause`, `resume`, `retry`, `forget`, `recreate`, `relaunch`, `done`, `release`, `breaker`: an operator's commands, through the
//! store to the process that holds the lock.

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use super::acknowledge;
use super::names::no_slot;
use super::refusals::{self, Refused};
use super::{ConfigFile, Failed, Outcome, load, print, wire};
use crate::config::{self, Config, StateLocation};
use crate::model::command::{Command, CommandKind};
use crate::model::condition::Condition;
use crate::model::time::{after, span};
use crate::model::view::Acting;
use crate::store::{Store, StoreError, Stored};

#[derive(Debug, Args)]
pub struct PauseArgs {
    #[command(flatten)]
    target: Target,
    /// The pause ends after this long.
    #[arg(long = "for", value_name = "DURATION", value_parser = super::once::duration)]
    lasts: Option<std::time::Duration>,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    target: Target,
    /// Takes over a node that another watchdog owns.
    #[arg(long, requires = "slot")]
    adopt: bool,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct RetryArgs {
    #[command(flatten)]
    of: Retried,
    /// Resumes from this step or later, even if a newer checkpoint was recorded;
    /// 0 accepts any, and starts from scratch without one.
    #[arg(long, value_name = "STEP", value_parser = step, conflicts_with = "all")]
    from: Option<u64>,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The slot whose create is called off.
    slot: String,
    /// Drops its specification, attempts and recorded checkpoint as well.
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct RecreateArgs {
    /// The slot whose TPU is deleted and created again.
    slot: String,
    /// The TPU that is meant, by its id as `status --output json` shows it; a healthy one needs it.
    #[arg(long, value_name = "ID")]
    incarnation: Option<String>,
    /// Confirms the present TPU; only on a terminal.
    #[arg(long, conflicts_with = "incarnation")]
    yes: bool,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct RelaunchArgs {
    /// The slot whose job restarts on its existing TPU, from its newest checkpoint.
    slot: String,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct DoneArgs {
    /// The slot whose job has done its work, whatever it ended with.
    slot: String,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// The slot whose TPU is given back.
    slot: String,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Args)]
pub struct BreakerArgs {
    /// The action; without one the state is shown.
    #[arg(value_enum)]
    action: Option<BreakerAction>,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BreakerAction {
    /// Closes it: the present state is judged.
    Reset,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// The slot.
    slot: Option<String>,
    /// Every slot, now and later.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Retried {
    /// The slot whose attempts are restored.
    slot: Option<String>,
    /// Every slot of the config that is wanted: not what finished, was stopped, forgotten, released or deleted.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
struct Why {
    /// The reason, for the event log and the status.
    #[arg(long)]
    reason: Option<String>,
}

fn step(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a step; write a whole number, as in 1200"))
}

pub async fn pause(at: &ConfigFile, args: &PauseArgs) -> Outcome {
    if args.lasts.is_some_and(|lasts| lasts.is_zero()) {
        let text = "--for 0s would end at once; `resume` ends a pause; nothing was done";
        return Err(Failed::Config(text.into()));
    }
    let until = args.lasts.map(|lasts| after(Timestamp::now(), lasts));
    give(at, &args.why, CommandKind::Pause { slot: args.target.slot.clone(), until }).await
}

pub async fn resume(at: &ConfigFile, args: &ResumeArgs) -> Outcome {
    give(at, &args.why, CommandKind::Resume { slot: args.target.slot.clone(), adopt: args.adopt })
        .await
}

pub async fn retry(at: &ConfigFile, args: &RetryArgs) -> Outcome {
    let every: Vec<String> = match &args.of.slot {
        Some(slot) => vec![slot.clone()],
        None => all_that_are_wanted(at).await?,
    };
    let mut outcome = Ok(());
    for slot in every {
        let given = give(at, &args.why, CommandKind::Retry { slot, from: args.from }).await;
        outcome = outcome.and(given);
    }
    outcome
}

/// The slots of the config, but for those that rest by success or by a person's choice: each of these is named by itself.
async fn all_that_are_wanted(at: &ConfigFile) -> Result<Vec<String>, Failed> {
    let config = load(at)?;
    let (_, stored) = open(&config).await?;
    let rests = |name: &&String| {
        stored.slots.get(*name).is_some_and(|record| {
            let chosen = record.forgotten || record.released.is_some() || record.deleted.is_some();
            let ended =
                matches!(record.verdict.condition, Condition::Finished | Condition::Stopped);
            chosen || ended || record.job.finished.is_some()
        })
    };
    let (left_out, wanted): (Vec<&String>, Vec<&String>) =
        config.settings.slots.keys().partition(rests);
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|name| name.as_str()).collect();
        print(&format!(
            "left out, since finished, stopped, forgotten, released or deleted: {}; `retry SLOT` means one of them\n",
            names.join(", ")
        ));
    }
    Ok(wanted.into_iter().cloned().collect())
}

pub async fn forget(at: &ConfigFile, args: &ForgetArgs) -> Outcome {
    give(at, &args.why, CommandKind::Forget { slot: args.slot.clone(), purge: args.purge }).await
}

pub async fn recreate(at: &ConfigFile, args: &RecreateArgs) -> Outcome {
    let config = load(at)?;
    let (_, stored) = open(&config).await?;
    let record = stored.slots.get(&args.slot).filter(|record| record.left_at.is_none());
    let present = record.and_then(|record| record.incarnation.clone());
    let healthy = record.is_some_and(|record| record.verdict.condition == Condition::Healthy);
    if let (Some(meant), Some(present)) = (&args.incarnation, &present)
        && *meant != present.id
    {
        return Err(Failed::Config(format!(
            "{} is {} now, not {meant}; nothing was done",
            args.slot, present.id
        )));
    }
    // A job that lives is its people's: that is refused, whichever is meant.
    let is_job = record.is_some_and(|record| record.traits().is_its_peoples);
    let sure = is_job || args.incarnation.is_some() || (args.yes && std::io::stdin().is_terminal());
    if let Some(present) = present.as_ref().filter(|_| healthy && !sure) {
        let how = match args.yes {
            true => "--yes counts only on a terminal; here name the TPU",
            false => "Say which TPU is meant, or --yes on a terminal",
        };
        return Err(Failed::Config(format!(
            "{} is healthy, and recreating it ends what runs there. {how}: --incarnation {}; nothing was done",
            args.slot, present.id
        )));
    }
    give(at, &args.why, CommandKind::Recreate { slot: args.slot.clone(), incarnation: present })
        .await
}

pub async fn relaunch(at: &ConfigFile, args: &RelaunchArgs) -> Outcome {
    let config = load(at)?;
    let slot = config.settings.slots.get(&args.slot);
    let command = slot.and_then(|slot| slot.job.as_ref()?.command.as_deref());
    if slot.is_some() && command.is_none_or(|command| command.trim().is_empty()) {
        let text = "has no command in the config, so there is nothing to start again";
        return Err(Failed::Config(format!("{} {text}; nothing was done", args.slot)));
    }
    give(at, &args.why, CommandKind::Relaunch { slot: args.slot.clone() }).await
}

pub async fn done(at: &ConfigFile, args: &DoneArgs) -> Outcome {
    let config = load(at)?;
    if config.settings.slots.get(&args.slot).is_some_and(|slot| slot.job.is_none()) {
        let text = "has no [tpu.job] in the config, so there is no work to be done";
        return Err(Failed::Config(format!("{} {text}; nothing was done", args.slot)));
    }
    give(at, &args.why, CommandKind::Done { slot: args.slot.clone() }).await
}

pub async fn release(at: &ConfigFile, args: &ReleaseArgs) -> Outcome {
    give(at, &args.why, CommandKind::Release { slot: args.slot.clone() }).await
}

pub async fn breaker(at: &ConfigFile, args: &BreakerArgs) -> Outcome {
    if args.action.is_some() {
        return give(at, &args.why, CommandKind::BreakerReset).await;
    }
    let config = load(at)?;
    let (_, stored) = open(&config).await?;
    match stored.ledger.breaker {
        None => {
            print("closed\n");
            Ok(())
        }
        Some(breaker) => {
            print(&format!(
                "open since {:.0}: {}; `breaker reset` closes it\n",
                breaker.opened_at, breaker.why
            ));
            Err(Failed::NeedsAPerson)
        }
    }
}

async fn give(at: &ConfigFile, why: &Why, kind: CommandKind) -> Outcome {
    let config = load(at)?;
    let (mut store, stored) = open(&config).await?;
    let slot = kind.slot().map(str::to_owned);
    let left = |slot: &String| {
        matches!(kind, CommandKind::Resume { .. }) && stored.ledger.left_paused.contains_key(slot)
    };
    if let Some(slot) = slot.filter(|slot| !stored.slots.contains_key(slot) && !left(slot)) {
        return Err(no_slot(&slot, stored.slots.keys()));
    }
    let now = Timestamp::now();
    // A command that waits for the next poll may change what the journal says.
    let waiting = store.commands().await.map_err(|e| Failed::Work(e.to_string()))?;
    let concerns = |other: &Command| {
        let (this, other) = (kind.slot(), other.kind.slot());
        this.is_none() || other.is_none() || this == other
    };
    let refused = refusals::refused(&kind, &stored, &config.settings.slots, now);
    let awaits: Vec<&Command> = waiting.iter().filter(|other| concerns(other)).collect();
    match refused.filter(|refused| awaits.is_empty() || refused.stands(&kind, &awaits)) {
        Some(Refused::Needless(text)) => {
            print(&format!("{text}; nothing was done\n"));
            return Ok(());
        }
        Some(Refused::Wrong(text)) => {
            return Err(Failed::Config(format!("{text}; nothing was done")));
        }
        None => {}
    }
    let id = uuid::Uuid::new_v4().to_string();
    let command = Command { id, at: now, who: config::person(), reason: why.reason.clone(), kind };
    store.submit(&command).await.map_err(|e| Failed::Work(e.to_string()))?;
    let holder = stored.lease.as_ref().filter(|lease| !lease.released);
    let when = match holder {
        Some(lease) => format!(
            "{} carries it out with its next poll, within {}",
            Acting::of(&lease.holder, None).host,
            span(config.settings.poll.every)
        ),
        None => {
            let within = match command.kind {
                CommandKind::Recreate { .. } | CommandKind::Relaunch { .. } => " within an hour",
                _ => "",
            };
            format!(
                "no process holds the lock now: the next `run` or `once`{within} carries it out"
            )
        }
    };
    print(&format!("{}\n  {when}\n", acknowledge::done(&command, &stored, now)));
    Ok(())
}

pub async fn open(config: &Config) -> Result<(Box<dyn Store>, Stored), Failed> {
    let failed = |error: StoreError| Failed::Work(error.to_string());
    let storage = wire::storage_for(config, &config.state)?;
    if config.state == StateLocation::Memory {
        return Err(Failed::Work(
            "state = \"memory:\" is known to the running process alone: nothing was done; commands need a state in sqlite: or a bucket".into(),
        ));
    }
    if wire::open_store_read_only(&config.state, &storage).await?.is_none() {
        return Err(Failed::Work("there is no state yet: start `run` or `once` first".into()));
    }
    let mut store = wire::open_store(&config.state, &storage).await?;
    let stored = store.load().await.map_err(failed)?;
    Ok((store, stored))
}
