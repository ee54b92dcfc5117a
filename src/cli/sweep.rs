//! `sweep`: what uses quota without doing work, in a whole project. It needs no config and no
//! journal; it deletes what is named, with `--yes`, each after a GET that shows the same one, as dead
//! as before. `core::sweep` says what is dead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use futures::StreamExt as _;
use jiff::Timestamp;

use super::flags::ApiArgs;
use super::screen::{self, FAINT, Row, paint, paragraph, width};
use super::table::plural;
use super::wire::{self, Clients};
use super::{ConfigFile, Failed, Outcome};
use crate::config::{self, Config};
use crate::core::sweep::{self, Inventory, Leftover, Thing};
use crate::model::action::CallOutcome;
use crate::model::event::Verb;
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::Stray;
use crate::model::node::{NodeState, NodeView};
use crate::model::operation::OperationState;
use crate::model::time::{elapsed, span};
use crate::report::sentence::Tone;

/// Listings of a whole project.
const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// A delete that rests on an older GET is not sent (S1).
const VERIFIED_FOR: Duration = Duration::from_secs(5);
/// A delete is followed for so long; most end within two minutes.
const FOLLOWED_FOR: Duration = Duration::from_secs(180);
/// Between two looks at a delete's operation.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// TPUs whose hosts are asked at once whether their job has ended.
const ASKED_AT_ONCE: usize = 4;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tpu-watchdog sweep --project my-project                  shows, and deletes nothing\n  \
                        tpu-watchdog sweep --project my-project old-tpu --yes    deletes old-tpu, if it is still dead\n\n\
                        A name that stands in several zones is given as ZONE/NAME."
)]
pub struct SweepArgs {
    /// The names to delete, of those that are shown.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The Google Cloud project (default: that of the config).
    #[arg(long)]
    project: Option<String>,
    /// Also deletes what the watchdog with this store id made.
    #[arg(long, value_name = "ID")]
    owner: Option<String>,
    /// Deletes the named ones.
    #[arg(long, requires = "names")]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

pub async fn sweep(at: &ConfigFile, args: &SweepArgs) -> Outcome {
    let config = config(at, args)?;
    let clients = wire::clients(&config)?;
    let none = clients.preflight(config.settings.poll.timeout).await;
    none.map_err(|none| Failed::Work(none.to_string()))?;
    let mut notes = Vec::new();
    let mut all = look(&clients, &mut notes).await?;
    all.strays = strays(&clients, &config).await;
    let found = sweep::leftovers(&all);
    if args.names.is_empty() {
        show(&config.settings.project, &all, &found, &notes);
        return Ok(());
    }
    let named = meant(args, &all, &found)?;
    if !args.yes {
        for left in &named {
            print(&format!("would delete {}\n", told(left)));
        }
        print("nothing was deleted; to delete: the same command with --yes\n");
        return Ok(());
    }
    let mut failed = 0;
    for left in named {
        print(&format!("deleting {}\n", told(left)));
        let line = match delete(&clients, &config, left).await {
            Ok(line) => line,
            Err(why) => {
                failed += 1;
                why
            }
        };
        print(&paragraph(&format!("  {}: {line}", left.name), width()));
    }
    match failed {
        0 => Ok(()),
        count => Err(Failed::Work(format!("{} not deleted, see above", were(count)))),
    }
}

fn print(text: &str) {
    screen::print(text);
}

fn were(count: usize) -> String {
    if count == 1 { "1 was".into() } else { format!("{count} were") }
}

/// The project of the flag, of the config where there is one, or of the environment.
fn config(at: &ConfigFile, args: &SweepArgs) -> Result<Config, Failed> {
    match &args.project {
        Some(project) => args.api.config(project),
        None => match (at.load(), config::project_of_the_environment()) {
            (Ok(_), _) if !args.api.toml().is_empty() => Err(Failed::Config(
                "the flags --api-… go with --project; without it the config counts, with its own [api]: say --project P as well; nothing was done"
                    .to_owned(),
            )),
            (Ok(config), _) => Ok(config),
            (Err(_), Some(project)) => args.api.config(&project),
            (Err(_), None) => Err(Failed::Config(
                "which project? Say --project P, or --config FILE for that of a config; nothing was done"
                    .to_owned(),
            )),
        },
    }
}

/// The strays of the journal, where there is one that can be read.
async fn strays(clients: &Clients, config: &Config) -> Vec<Stray> {
    let store = wire::open_store_read_only(&config.state, &clients.state).await;
    let Ok(Some(mut store)) = store else { return Vec::new() };
    let stored = store.load().await;
    stored.map_or_else(|_| Vec::new(), |stored| stored.ledger.strays.into_values().collect())
}

/// Lists the project; what could not be looked at is told in the notes.
async fn look(clients: &Clients, notes: &mut Vec<String>) -> Result<Inventory, Failed> {
    let deadline = Instant::now() + LISTED_WITHIN;
    let nodes = clients.tpu.list_nodes("-", deadline);
    let (nodes, requests) = tokio::join!(nodes, clients.tpu.list_requests("-", deadline));
    let nodes = nodes.map_err(|why| Failed::Work(format!("the TPUs can't be listed: {why}")))?;
    let mut all = Inventory { nodes: nodes.nodes, ..Inventory::default() };
    all.unreachable = nodes.unreachable;
    match requests {
        Ok(list) => {
            all.unreachable.extend(list.unreachable);
            all.requests = Some(list.requests);
        }
        Err(why) => notes.push(format!(
            "the queued resources can't be listed: {why}; they, and the TPUs that belong to one, are left out"
        )),
    }
    all.unreachable.sort();
    all.unreachable.dedup();
    if !all.unreachable.is_empty() {
        let zones = all.unreachable.join(", ");
        notes.push(format!("{zones} did not answer: nothing is shown of them"));
    }
    let supervised: Vec<_> = all
        .nodes
        .iter()
        .filter(|node| node.supervised && node.state == NodeState::Ready)
        .cloned()
        .collect();
    let asked = futures::stream::iter(supervised).map(async |node| {
        let until = Instant::now() + LISTED_WITHIN;
        let (zone, name) = (node.zone.as_str(), node.node.as_str());
        let reports = clients.tpu.guest_attributes(zone, name, node.workers, until).await;
        let reports =
            reports.map_err(|why| format!("the hosts of {name} can't be asked: {why}"))?;
        Ok(node.incarnation.clone().zip(sweep::has_ended(&reports, node.workers)))
    });
    let answers: Vec<Result<_, String>> = asked.buffered(ASKED_AT_ONCE).collect().await;
    for answer in answers {
        match answer {
            Ok(ended) => all.ended.extend(ended),
            Err(note) => notes.push(note),
        }
    }
    Ok(all)
}

fn show(project: &str, all: &Inventory, found: &[Leftover], notes: &[String]) {
    let now = Timestamp::now();
    let rows: Vec<Row> = found
        .iter()
        .map(|left| {
            let age = left.created.map(|created| format!("{} old; ", span(elapsed(created, now))));
            let owner = left.owner.as_ref().map(|id| format!("; made by the watchdog {id}"));
            let (age, owner) = (age.unwrap_or_default(), owner.unwrap_or_default());
            Row {
                tone: Some(Tone::Bad),
                cells: vec![left.name.clone(), left.holds.clone(), left.zone.clone()],
                text: format!("{}{age}{}{owner}", of(left), left.why),
            }
        })
        .collect();
    if rows.is_empty() {
        let nodes = plural(all.nodes.len(), "TPU");
        let requests = all.requests.as_ref().map_or(0, Vec::len);
        let requests = plural(requests, "queued resource");
        print(&format!(
            "{project}: nothing uses quota without doing work, of {nodes} and {requests}\n"
        ));
    } else {
        print(&screen::table(&["NAME", "HOLDS", "ZONE", "WHY"], &rows, width()));
        let mut sums: BTreeMap<&str, usize> = BTreeMap::new();
        for left in found {
            *sums.entry(left.holds.as_str()).or_default() += 1;
        }
        let sums: Vec<String> =
            sums.into_iter().map(|(holds, count)| format!("{count} x {holds}")).collect();
        print(&format!(
            "\n{} of {project} use quota without doing work: {}\n",
            found.len(),
            sums.join(", ")
        ));
        print(&paragraph(
            "delete one: tpu-watchdog sweep NAME --yes (with --owner ID where a watchdog made it, and is gone)",
            width(),
        ));
    }
    let unsupervised =
        all.nodes.iter().filter(|node| node.state == NodeState::Ready && !node.supervised).count();
    if unsupervised > 0 {
        let text = format!(
            "{} READY without this watchdog's supervisor: whether they work can't be seen from here",
            plural(unsupervised, "TPU")
        );
        print(&paint(FAINT, &paragraph(&text, width())));
    }
    for note in notes {
        print(&paragraph(&format!("! {note}"), width()));
    }
}

/// `queued resource ` before what is one.
fn of(left: &Leftover) -> &'static str {
    match left.thing {
        Thing::Node(_) => "",
        Thing::Request { .. } => "queued resource, ",
    }
}

fn told(left: &Leftover) -> String {
    let Leftover { name, zone, holds, why, .. } = left;
    format!("{}{name} in {zone} ({holds}): {why}", of(left))
}

/// The leftovers that the names mean. Nothing is done where one of them is not dead, or belongs to
/// a watchdog that was not named.
fn meant<'a>(
    args: &SweepArgs,
    all: &Inventory,
    found: &'a [Leftover],
) -> Result<Vec<&'a Leftover>, Failed> {
    let of = |name: &String| {
        let (zone, id) = name.split_once('/').unwrap_or(("", name));
        let is = |z: &str, n: &str| n == id && (zone.is_empty() || z == zone);
        let fits: Vec<&Leftover> = found.iter().filter(|left| is(&left.zone, &left.name)).collect();
        let left = match fits[..] {
            [one] => one,
            [] => return Err(not_dead(name, all, is)),
            _ => {
                let zones: Vec<String> =
                    fits.iter().map(|left| format!("{}/{}", left.zone, left.name)).collect();
                return Err(format!("{name:?} is not clear: say one of {}", zones.join(", ")));
            }
        };
        match &left.owner {
            Some(owner) if args.owner.as_ref() != Some(owner) && !left.is_stray => Err(format!(
                "{name} was made by the watchdog {owner}, which removes what is dead of its own; if it is gone for good, say --owner {owner}"
            )),
            _ => Ok(left),
        }
    };
    let named: Result<Vec<_>, String> = args.names.iter().map(of).collect();
    named.map_err(|why| Failed::Config(format!("{why}; nothing was deleted")))
}

fn not_dead(name: &str, all: &Inventory, is: impl Fn(&str, &str) -> bool) -> String {
    if let Some(node) = all.nodes.iter().find(|node| is(&node.zone, &node.node)) {
        let request = node.queued_resource.as_deref().and_then(|name| name.rsplit('/').next());
        let request = request.map(|id| format!(", of the queued resource {id}"));
        let state = node.state.as_str();
        return format!(
            "{name} is {state}{}: sweep deletes only what it shows",
            request.unwrap_or_default()
        );
    }
    let mut requests = all.requests.iter().flatten();
    match requests.find(|request| is(&request.zone, &request.id)) {
        Some(request) => {
            let state = request.state.as_str();
            format!("the queued resource {name} is {state}: sweep deletes only what it shows")
        }
        None => format!("there is no TPU and no queued resource {name:?} in this project"),
    }
}

/// Deletes one, if it is still the one that was shown, and still dead. Says what came of it.
async fn delete(clients: &Clients, config: &Config, left: &Leftover) -> Result<String, String> {
    let prepared = clients.tpu.prepare().await.map_err(|why| format!("{why}; nothing was sent"))?;
    let began = Instant::now();
    verify(clients, config, left).await.map_err(|why| format!("{why}; nothing was sent"))?;
    if began.elapsed() > VERIFIED_FOR {
        return Err("the read before its delete took more than 5 s; nothing was sent".into());
    }
    let id = uuid::Uuid::new_v4().to_string();
    let (zone, name) = (left.zone.as_str(), left.name.as_str());
    let outcome = match left.thing {
        Thing::Node(_) => clients.tpu.delete_node(zone, name, Some(&id), prepared).await,
        Thing::Request { force, .. } => {
            clients.tpu.delete_request(zone, name, force, &id, prepared).await
        }
    };
    match outcome {
        CallOutcome::Accepted(operation) => follow(clients, left, &operation).await,
        CallOutcome::NotSent(why) => Err(format!("{why}; nothing was sent")),
        CallOutcome::Refused(why) => Err(format!("the API refused: {why}")),
        CallOutcome::Unknown(why) => {
            Err(format!("{why}; it may have been carried out: look with tpu-watchdog sweep"))
        }
    }
}

/// S1: the same one, as dead as it was.
async fn verify(clients: &Clients, config: &Config, left: &Leftover) -> Result<(), String> {
    let strays = strays(clients, config).await;
    let until = Instant::now() + VERIFIED_FOR;
    let (zone, name) = (left.zone.as_str(), left.name.as_str());
    let now = match &left.thing {
        Thing::Node(_) => {
            let node =
                clients.tpu.get_node(zone, name, until).await.map_err(|why| why.to_string())?;
            let mut all = Inventory { strays, ..Inventory::default() };
            if node.queued_resource.is_some() {
                let list = clients.tpu.list_requests(zone, until).await;
                let list = list.map_err(|why| why.to_string())?;
                (all.requests, all.unreachable) = (Some(list.requests), list.unreachable);
            }
            if node.state == NodeState::Ready {
                let reports = clients.tpu.guest_attributes(zone, name, node.workers, until).await;
                let reports = reports.map_err(|why| why.to_string())?;
                let ended = sweep::has_ended(&reports, node.workers);
                all.ended.extend(node.incarnation.clone().zip(ended));
            }
            sweep::of_node(&node, &all)
                .ok_or_else(|| format!("it is {} now", node.state.as_str()))?
        }
        Thing::Request { .. } => {
            let (request, nodes) = tokio::join!(
                clients.tpu.get_request(zone, name, until),
                clients.tpu.list_nodes(zone, until)
            );
            let request = request.map_err(|why| why.to_string())?;
            let nodes = nodes.map_err(|why| why.to_string())?;
            let mut all = Inventory {
                nodes: nodes.nodes,
                unreachable: nodes.unreachable,
                strays,
                ..Inventory::default()
            };
            let its = |node: &&Arc<NodeView>| request.nodes.contains(&node.node);
            let ready = |node: &&Arc<NodeView>| its(node) && node.state == NodeState::Ready;
            for node in all.nodes.iter().filter(ready) {
                let reports =
                    clients.tpu.guest_attributes(zone, &node.node, node.workers, until).await;
                let reports = reports.map_err(|why| why.to_string())?;
                let ended = sweep::has_ended(&reports, node.workers);
                all.ended.extend(node.incarnation.clone().zip(ended));
            }
            sweep::of_request(&request, &all)
                .ok_or_else(|| format!("it is {} now, and may serve", request.state.as_str()))?
        }
    };
    let known = !matches!(now.thing, Thing::Node(None) | Thing::Request { created: None, .. });
    match known && now.thing == left.thing && now.owner == left.owner {
        true => Ok(()),
        false => Err("another one of its name is there now".into()),
    }
}

/// Follows a delete to its end.
async fn follow(clients: &Clients, left: &Leftover, operation: &str) -> Result<String, String> {
    let until = Instant::now() + FOLLOWED_FOR;
    let began = Instant::now();
    while Instant::now() < until {
        let state = clients.tpu.get_operation(operation, Verb::Delete, false, until).await;
        match state {
            Ok(OperationState::Succeeded) => {
                let gone = is_gone(clients, left, until).await?;
                let took = span(began.elapsed());
                return Ok(match gone {
                    true => format!("deleted, after {took}"),
                    false => format!("the delete has ended, after {took}, and it is still listed"),
                });
            }
            Ok(OperationState::Failed(why)) => return Err(format!("its delete failed: {why}")),
            // A read that fails says nothing about the delete.
            Ok(OperationState::Running) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
    Ok(format!("its delete is accepted, and has not ended after {}", span(FOLLOWED_FOR)))
}

async fn is_gone(clients: &Clients, left: &Leftover, until: Instant) -> Result<bool, String> {
    let (zone, name) = (left.zone.as_str(), left.name.as_str());
    let read: Result<(), Failure> = match left.thing {
        Thing::Node(_) => clients.tpu.get_node(zone, name, until).await.map(|_| ()),
        Thing::Request { .. } => clients.tpu.get_request(zone, name, until).await.map(|_| ()),
    };
    match read {
        Err(why) if why.class == FailureClass::NotFound => Ok(true),
        Ok(()) => Ok(false),
        Err(why) => Err(format!("its delete has ended, and it can't be read: {why}")),
    }
}
