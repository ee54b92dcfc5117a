//! `state`: moves the journal from one place to another, and begins a new one where it was lost.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use super::table::plural;
use super::{ConfigFile, Failed, Outcome, load, print, wire};
use crate::config::{self, StateLocation};
use crate::driver::patience::{Claim, Patience};
use crate::model::lease::Lease;
use crate::store::{Batch, Store, StoreError};

/// Events that move along.
const EVENTS: usize = 10_000;

#[derive(Debug, Args)]
pub struct StateArgs {
    #[command(subcommand)]
    command: StateCommand,
}

#[derive(Debug, Subcommand)]
enum StateCommand {
    /// Moves the whole state, including its owner id and counters. The old place is marked, and
    /// refused from then on. The config gives only the credentials; its `state` is ignored.
    Migrate {
        /// The present place, as in `state`: sqlite:PATH, gs://bucket/prefix, s3://bucket/prefix.
        from: String,
        /// The new place, which must be empty.
        to: String,
    },
    /// Starts a new state after a loss without a copy. Refused if a state exists.
    Init {
        /// Confirms that the specifications, pending creates, pauses and counters of the lost state are
        /// given up.
        #[arg(long, required = true)]
        accept_loss: bool,
    },
}

pub async fn state(at: &ConfigFile, args: &StateArgs) -> Outcome {
    match &args.command {
        StateCommand::Migrate { from, to } => migrate(from, to, at).await,
        // The command line insists on --accept-loss.
        StateCommand::Init { accept_loss: _ } => init(at).await,
    }
}

async fn init(config: &ConfigFile) -> Outcome {
    let config = load(config)?;
    if config.state == StateLocation::Memory {
        return Err(Failed::Config(
            "state = \"memory:\" ends with each process: there is nothing to begin".into(),
        ));
    }
    let storage = wire::storage_for(&config, &config.state)?;
    let Some(lost) = wire::accept_loss(&config.state, &storage).await? else {
        print(&format!(
            "no state was lost at {}: the next `run` or `once` begins one there; nothing was done\n",
            config.state
        ));
        return Ok(());
    };
    let mut store = wire::open_store(&config.state, &storage).await?;
    let holder = wire::claimant(&config);
    // The new state has its marker from its first lock on.
    take(&mut *store, &holder.holder, holder.ttl).await?;
    store.release(&Batch::default()).await.map_err(|e| Failed::Work(e.to_string()))?;
    print(&format!(
        "a new state was begun at {}, with the id {}; the lost one{} is given up. Start `run` or `once`; a TPU that carries the lost id is held as other_owner until `tpu-watchdog resume SLOT --adopt`\n",
        config.state,
        store.owner(),
        lost.whose()
    ));
    Ok(())
}

async fn migrate(from: &str, to: &str, config: &ConfigFile) -> Outcome {
    let config = load(config)?;
    let location = |argument: &str, text: &str| {
        let here = std::env::current_dir().unwrap_or_default();
        let location = config::state_location(text, &here)
            .map_err(|e| Failed::Config(format!("{argument}: {e}")))?;
        match location {
            StateLocation::Memory => Err(Failed::Config(format!(
                "{argument}: memory: ends with the process; nothing moves there"
            ))),
            location => Ok(location),
        }
    };
    let (from, to) = (location("FROM", from)?, location("TO", to)?);
    if from == to {
        return Err(Failed::Config("FROM and TO are the same place; nothing was done".into()));
    }
    let failed = |error: StoreError| Failed::Work(error.to_string());
    let holder = wire::claimant(&config);
    let storage = wire::storage_for(&config, &from)?;
    if wire::open_store_read_only(&from, &storage).await?.is_none() {
        return Err(Failed::Work(format!("there is no state at {from}; nothing was done")));
    }
    let mut old = wire::open_store(&from, &storage).await?;
    // Nothing is made at the new place while a process is at work with the old one.
    unheld(&mut *old, holder.ttl).await?;
    let mut new = wire::open_store(&to, &wire::storage_for(&config, &to)?).await?;
    let events = old.events(EVENTS).await.map_err(failed)?;
    let moved_events = events.len();
    // No one may act on either while it moves. The new one's lock first: the old one's must not
    // grow old meanwhile.
    take(&mut *new, &holder.holder, holder.ttl).await?;
    take(&mut *old, &holder.holder, holder.ttl).await?;
    let stored = old.load().await.map_err(failed)?;
    let slots = stored.slots.len();
    let owner = old.owner().to_owned();
    new.adopt(&owner, &stored.into_batch(events)).await.map_err(failed)?;
    // Commands given while no watchdog ran still count.
    let commands = old.commands().await.map_err(failed)?;
    for command in &commands {
        new.submit(command).await.map_err(failed)?;
    }
    // From here on the new place is whole; the old one is closed before anybody may act on the new
    // one.
    if let Err(error) = old.leave_for(&to.to_string()).await {
        let undone = new.leave_for(&from.to_string()).await;
        let remedy = match undone {
            Ok(()) => format!("the copy in {to} was closed again, {from} is still the state"),
            Err(_) => format!(
                "{to} holds a copy that must not be used; run the same command again before any watchdog starts"
            ),
        };
        return Err(Failed::Work(format!("{error}; {remedy}")));
    }
    new.release(&Batch::default()).await.map_err(failed)?;
    let waiting = match commands.len() {
        0 => String::new(),
        count => format!(" Operator commands that wait for the next run: {count}."),
    };
    let next = format!("Set state = \"{to}\" in the config.{waiting}");
    let (slots, events) = (plural(slots, "slot"), plural(moved_events, "event"));
    print(&format!("moved {slots} and {events} from {from} to {to}. {next}\n"));
    Ok(())
}

/// Waits until no process is at work with it, for one whole lease when its holder seems gone. Returns that
/// lease.
async fn unheld(store: &mut dyn Store, ttl: Duration) -> Result<Option<Lease>, Failed> {
    let began = Instant::now();
    let mut patience = Patience::new(ttl, store.pace() / 4);
    loop {
        let lease = store.load().await.map_err(|e| Failed::Work(e.to_string()))?.lease;
        let claim = patience.look(lease.as_ref(), began.elapsed());
        if let Some(lease) = lease.as_ref().filter(|_| patience.renewed()) {
            let message = format!(
                "state {}: {} is at work with it; stop it first, nothing was done",
                store.location(),
                lease.holder
            );
            return Err(Failed::Work(message));
        }
        match claim {
            Claim::Take => return Ok(lease),
            Claim::Wait(wait) => tokio::time::sleep(wait).await,
        }
    }
}

/// Takes the lock once no other process has it.
async fn take(store: &mut dyn Store, holder: &str, ttl: Duration) -> Result<(), Failed> {
    loop {
        let lease = unheld(store, ttl).await?;
        let taken = store.take(lease.as_ref(), holder, ttl).await;
        if taken.map_err(|e| Failed::Work(e.to_string()))? {
            return Ok(());
        }
    }
}
