//! `plan`: looks, and shows what would be done and what would not. Runs the same core over a copy
//! of the journal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use super::names::no_slot;
use super::screen::{self, width};
use super::wire::Clients;
use super::{ConfigFile, Failed, Outcome, load, print, proposal, wire};
use crate::config::Config;
use crate::core::if_lost::{IfLost, if_lost};
use crate::core::view::{at_rest, needs_a_person};
use crate::driver::message::Mode;
use crate::google::tpu::TpuClient;
use crate::model::action::NodeList;
use crate::model::condition::Condition;
use crate::model::filling::Filling;
use crate::model::settings::Settings;
use crate::model::view::{Acting, SlotView, StatusDocument};
use crate::report::sentence;
use crate::shell::clock;
use crate::store::sqlite::SqliteStore;
use crate::store::{Store, StoreError};

#[derive(Debug, Default, Args)]
#[command(
    after_help = "Examples:\n  tpu-watchdog plan                    what would be done now, and who is protected\n  \
                        tpu-watchdog plan --if-lost          what a recreate of each TPU would send\n  \
                        tpu-watchdog plan --if-lost llama    the same of one TPU\n\n\
                        Exit code 3: a TPU is not protected, and not by choice, or something waits for an operator."
)]
pub struct PlanArgs {
    /// Shows the create that would follow if a TPU were lost now, of one slot or all: every field that
    /// would be sent, compared with the TPU.
    #[arg(long, value_name = "SLOT", num_args = 0..=1)]
    if_lost: Option<Option<String>>,
    /// Text, or one JSON document.
    #[arg(short, long, value_enum, default_value = "text")]
    output: super::Output,
}

pub async fn plan(at: &ConfigFile, args: &PlanArgs) -> Outcome {
    let began = Timestamp::now();
    let config = load(at)?;
    let slots = &config.settings.slots;
    let unknown = |slot: &&String| !slots.contains_key(slot.as_str());
    if let Some(slot) = args.if_lost.iter().flatten().find(unknown) {
        return Err(no_slot(slot, slots.keys()));
    }
    let clients = wire::clients(&config)?;
    clients
        .preflight(config.settings.poll.timeout)
        .await
        .map_err(|none| Failed::Work(none.to_string()))?;
    let tpu = clients.tpu.clone();
    let mut settings = wire::settings(&config);
    let (copy, acting) = copy(&config, &clients, &mut settings).await?;
    let users = settings.clone();
    settings.dry_run = true;
    let limit = settings.poll.timeout * 3 + Duration::from_secs(5);
    let mode = Mode::Look { deadline: clock::boottime() + limit };
    let mut wired = wire::wire(&config, settings, clients, Box::new(copy), mode);
    let (_open, mut signals) = mpsc::unbounded_channel();
    wire::ended(wired.watchdog.run(&mut signals).await)?;
    let fleet = wired.watchdog.fleet();
    let unread = fleet.ledger.observed_at.is_none_or(|at| at < began);
    let not_read = || Failed::Work("not every zone could be read; see the lines above".into());
    if let Some(slot) = &args.if_lost {
        if unread {
            return Err(not_read());
        }
        let lost = if_lost(fleet, &users, slot.as_deref(), Timestamp::now());
        match args.output {
            super::Output::Json => print(&format!("{}\n", json!({ "if_lost": lost }))),
            super::Output::Text => screen::print(&proposal::if_lost(&lost, width())),
        }
        let held = |lost: &IfLost| lost.held.is_some() && !lost.by_choice;
        let refused = lost.iter().any(|lost| lost.refused.is_some() || held(lost));
        return if refused { Err(Failed::NeedsAPerson) } else { Ok(()) };
    }
    // The looker's own dry run is not the user's: its holds are no obstacle.
    let now = Timestamp::now();
    let mut document = at_rest(&users, fleet.slots.clone(), fleet.ledger.clone(), None, now);
    document.acting = acting;
    without_dry_run(&mut document, config.settings.dry_run);
    name_the_others(&mut document, &config, &tpu).await;
    sentence::fill(&mut document, now);
    match args.output {
        super::Output::Json => print(&format!(
            "{}\n",
            serde_json::to_string(&document).map_err(|e| Failed::Work(e.to_string()))?
        )),
        super::Output::Text => {
            let lost = if_lost(wired.watchdog.fleet(), &users, None, Timestamp::now());
            screen::print(&proposal::plan(&users.project, &document, &lost, now, width()));
        }
    }
    if unread {
        return Err(not_read());
    }
    let open = |slot: &SlotView| !slot.protected && !slot.unprotected_by_choice;
    if document.tpus.iter().any(open) || needs_a_person(&document) {
        return Err(Failed::NeedsAPerson);
    }
    Ok(())
}

/// A copy of the journal, to decide over; and who holds its lock.
async fn copy(
    config: &Config,
    clients: &Clients,
    settings: &mut Settings,
) -> Result<(SqliteStore, Option<Acting>), Failed> {
    let failed = |e: StoreError| Failed::Work(e.to_string());
    let mut copy = SqliteStore::in_memory().map_err(failed)?;
    let journal = wire::open_store_read_only(&config.state, &clients.state).await?;
    let Some(mut journal) = journal else { return Ok((copy, None)) };
    if settings.owner.is_empty() {
        journal.owner().clone_into(&mut settings.owner);
    }
    let stored = journal.load().await.map_err(failed)?;
    let lease = stored.lease.as_ref().filter(|lease| !lease.released);
    let acting = lease.map(|lease| Acting::of(&lease.holder, stored.ledger.leader.as_ref()));
    copy.take(None, "plan", config.lease).await.map_err(failed)?;
    copy.release(&stored.into_batch(Vec::new())).await.map_err(failed)?;
    Ok((copy, acting))
}

/// For a look over a fleet that was held by the looker's own dry run: only the user's `dry_run` is
/// shown as a hold.
fn without_dry_run(document: &mut StatusDocument, users_dry_run: bool) {
    let held = |slot: &&mut SlotView| slot.hold.as_deref() == Some("dry_run");
    for slot in document.tpus.iter_mut().filter(held).filter(|_| !users_dry_run) {
        slot.hold = None;
    }
}

/// A TPU that was never seen may be one whose name is written wrongly: its zone's TPUs are named.
async fn name_the_others(document: &mut StatusDocument, config: &Config, tpu: &TpuClient) {
    let mut zones: BTreeMap<String, Option<Vec<String>>> = BTreeMap::new();
    let is_tpu = |name: &String| {
        config.settings.slots.get(name).is_none_or(|slot| !slot.filling.traits().is_job)
    };
    let unseen = |slot: &&mut SlotView| {
        slot.accelerator.is_none() && slot.incarnation.is_none() && is_tpu(&slot.name)
    };
    for slot in document.tpus.iter_mut().filter(unseen) {
        if slot.state.is_some() || slot.condition == Condition::Unclear {
            continue;
        }
        if !zones.contains_key(&slot.zone) {
            let deadline = Instant::now() + config.settings.poll.timeout;
            let listed = tpu.list_nodes(&slot.zone, deadline).await.ok();
            let names = |list: NodeList| list.nodes.iter().map(|node| node.node.clone()).collect();
            zones.insert(slot.zone.clone(), listed.map(names));
        }
        let Some(Some(names)) = zones.get(&slot.zone) else { continue };
        let settings = config.settings.slots.get(&slot.name);
        let what = settings.map_or_else(String::new, |slot| match &slot.filling {
            Filling::QueuedResource(id) => format!("queued resource {id}"),
            _ => format!("TPU {}", slot.name),
        });
        if slot.protected {
            slot.warnings.push(proposal::to_be_made(&what, &slot.zone));
            continue;
        }
        let text = proposal::never_seen(&slot.name, &slot.zone, names);
        slot.unprotected_reason = Some(text.clone());
        slot.warnings.push(text);
    }
}
