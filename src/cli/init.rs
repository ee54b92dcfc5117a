//! `init`: writes a config for TPUs that exist. It asks for what the flags do not say, on a terminal
//! alone, and never writes over a file.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;

use super::flags::ApiArgs;
use super::names::no_such;
use super::screen::{self, HEAD, Row, paint, width};
use super::table::plural;
use super::{ConfigFile, Failed, Outcome, doctor, plan, wire};
use crate::config;
use crate::model::node::{NodeState, NodeView};
use crate::model::queued::RequestView;
use crate::report::sentence::Tone;

/// One listing of a whole project.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tpu-watchdog init                                    asks for everything\n  \
                        tpu-watchdog init --project my-project --tpu llama-v4-32 --checkpoint gs://my-bucket/llama --yes"
)]
pub struct InitArgs {
    /// The Google Cloud project.
    #[arg(long)]
    project: Option<String>,
    /// Only the TPUs of this zone.
    #[arg(long, default_value = "-")]
    zone: String,
    /// A TPU or queued resource to watch, by name; may be repeated.
    #[arg(long, value_name = "NAME")]
    tpu: Vec<String>,
    /// The checkpoint location; with several TPUs, each gets a folder of its name below it.
    #[arg(long, value_name = "URI")]
    checkpoint: Option<String>,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "watchdog.toml")]
    output: PathBuf,
    /// Asks nothing; without --tpu, watches all READY TPUs.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

const CHECKPOINTS: &str = "Where are the checkpoints? Each of several TPUs gets a folder of its name below it (gs://bucket/path; empty: none)";

/// A TPU that may be watched.
struct Found {
    name: String,
    zone: String,
    kind: String,
    slices: usize,
    ready: bool,
    /// Its state, as the API says it.
    state: String,
    /// The queued resource that it belongs to, or is.
    request: Option<String>,
    /// Why a recovery would not save it.
    not: Option<&'static str>,
}

/// `config` is that of the other commands.
pub async fn init(args: &InitArgs, config: Option<&Path>) -> Outcome {
    if let Some(config) = config {
        let text = format!(
            "init writes to --output, and reads no --config: init --output {}",
            config.display()
        );
        return Err(Failed::Config(format!("{text}; nothing was done")));
    }
    if args.output.exists() {
        let file = args.output.display();
        let text = format!("{file} exists and is never written over: name another with --output");
        return Err(Failed::Config(format!("{text}; nothing was done")));
    }
    let asks = !args.yes && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let project = match args.project.clone().or_else(config::project_of_the_environment) {
        Some(project) => project,
        None if asks => ask("Google Cloud project", "")?,
        None => {
            let text = "no project: give --project, set GOOGLE_CLOUD_PROJECT, or run init on a terminal, where it asks";
            return Err(Failed::Config(format!("{text}; nothing was done")));
        }
    };
    let found = look(args, &project).await?;
    show(&found);
    let chosen = choose(args, &found, asks)?;
    let checkpoint = match &args.checkpoint {
        Some(uri) => uri.clone(),
        None if asks => ask(CHECKPOINTS, "")?,
        None => String::new(),
    };
    let text = text(args, &project, &chosen, &checkpoint);
    // A config that `check` would refuse is not written.
    config::parse(&args.output, &text, &|_| None).map_err(|error| {
        Failed::Config(format!(
            "the answers make no config, nothing was written:\n{}",
            error.shown(false)
        ))
    })?;
    write_new(&args.output, &text)?;
    screen::print(&format!(
        "\nwrote {} for {}\n\n",
        args.output.display(),
        plural(chosen.len(), "TPU")
    ));
    if chosen.len() > 1 && !checkpoint.is_empty() {
        let text = "Each TPU got its own folder of checkpoints, by its name. If a job saves elsewhere, correct its `checkpoint` before `run`.\n\n";
        screen::print(text);
    }
    let at = ConfigFile::find(Some(args.output.clone()));
    screen::print(&paint(HEAD, "doctor: is everything a recovery needs in place?\n"));
    let sound = doctor::doctor(&at, &doctor::DoctorArgs::default()).await;
    screen::print(&paint(HEAD, "\nplan: what would be done now?\n"));
    let planned = plan::plan(&at, &plan::PlanArgs::default()).await;
    screen::print(&format!(
        "\nNext: read {0}, set `command` for jobs that the watchdog is to start, then: tpu-watchdog run --config {0}\n",
        args.output.display()
    ));
    match (sound, planned) {
        (Err(Failed::NeedsAPerson), Err(failed)) | (Ok(()), Err(failed)) => Err(failed),
        (sound, _) => sound,
    }
}

/// The TPUs of the project.
async fn look(args: &InitArgs, project: &str) -> Result<Vec<Found>, Failed> {
    let config = args.api.config(project)?;
    let clients = wire::clients(&config)?;
    let none = clients.preflight(config.settings.poll.timeout).await;
    none.map_err(|none| Failed::Work(none.to_string()))?;
    let list = clients.tpu.list_nodes(&args.zone, Instant::now() + LISTED_WITHIN).await;
    let list =
        list.map_err(|why| Failed::Work(format!("the TPUs of {project} can't be listed: {why}")))?;
    let requests = clients.tpu.list_requests(&args.zone, Instant::now() + LISTED_WITHIN).await;
    let requests = requests.map(|list| list.requests).unwrap_or_else(|why| {
        screen::print(&format!(
            "queued resources that wait are not shown: they can't be listed ({why})\n"
        ));
        Vec::new()
    });
    Ok(found(&list.nodes, &requests))
}

/// A slot for each of these nodes; one for all nodes of a multislice, which has its request's name; and one for each queued
/// resource that waits.
fn found(nodes: &[Arc<NodeView>], requests: &[RequestView]) -> Vec<Found> {
    let mut all: Vec<Found> = Vec::new();
    for node in nodes {
        let request = node.queued_resource.as_deref().and_then(last_part);
        let whole = request.as_ref().filter(|_| node.multislice);
        let ready = node.state == NodeState::Ready;
        let same = |found: &&mut Found| {
            whole.is_some() && found.request == request && found.zone == node.zone
        };
        if let Some(slot) = all.iter_mut().find(same) {
            if !ready {
                slot.state = node.state.as_str().to_owned();
            }
            (slot.slices, slot.ready) = (slot.slices + 1, slot.ready && ready);
            continue;
        }
        all.push(Found {
            name: whole.unwrap_or(&node.node).clone(),
            zone: node.zone.clone(),
            kind: node.accelerator.clone(),
            slices: 1,
            ready,
            state: node.state.as_str().to_owned(),
            request,
            not: node.is_v1.then_some("made by API v1: can't be replaced"),
        });
    }
    let has_node = |of: &RequestView, all: &[Found]| {
        all.iter().any(|found| found.zone == of.zone && found.request.as_ref() == Some(&of.id))
    };
    for request in requests.iter().filter(|request| !request.state.is_over()) {
        if !has_node(request, &all) {
            all.push(Found {
                name: request.id.clone(),
                zone: request.zone.clone(),
                kind: request.accelerator.clone(),
                slices: request.nodes.len().max(1),
                ready: false,
                state: request.state.as_str().to_owned(),
                request: Some(request.id.clone()),
                not: None,
            });
        }
    }
    all
}

/// The id at the end of a full name.
fn last_part(name: &str) -> Option<String> {
    name.rsplit('/').next().map(str::to_owned)
}

fn show(found: &[Found]) {
    let rows: Vec<Row> = found
        .iter()
        .map(|tpu| Row {
            tone: Some(match (tpu.ready, tpu.not) {
                (_, Some(_)) => Tone::Unprotected,
                (true, None) => Tone::Good,
                (false, None) => Tone::Waiting,
            }),
            cells: vec![tpu.name.clone(), kind(tpu), tpu.zone.clone()],
            text: {
                let state = tpu.not.unwrap_or(&tpu.state);
                let of = |id: &String| match *id == tpu.name {
                    true => ", a queued resource".to_owned(),
                    false => format!(", of the queued resource {id}"),
                };
                format!("{state}{}", tpu.request.as_ref().map(of).unwrap_or_default())
            },
        })
        .collect();
    screen::print(&screen::table(&["TPU", "TYPE", "ZONE", "STATE"], &rows, width()));
}

/// Its type, with the number of slices where there are several.
fn kind(tpu: &Found) -> String {
    match tpu.slices {
        1 => tpu.kind.clone(),
        slices => format!("{slices} x {}", tpu.kind),
    }
}

/// The TPUs that are to be watched.
fn choose<'a>(args: &InitArgs, found: &'a [Found], asks: bool) -> Result<Vec<&'a Found>, Failed> {
    let ready = || found.iter().filter(|tpu| tpu.ready && tpu.not.is_none());
    let names: Vec<String> = match args.tpu.as_slice() {
        [] if asks => {
            let all = ready().map(|tpu| tpu.name.as_str()).collect::<Vec<_>>().join(" ");
            let answer = ask("Which ones? (names; empty: all that are READY)", &all)?;
            answer.split([' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        }
        [] if args.yes => ready().map(|tpu| tpu.name.clone()).collect(),
        [] => {
            return Err(Failed::Config(
                "--tpu NAME (or --yes for all that are READY) is missing; nothing was done".into(),
            ));
        }
        names => names.to_vec(),
    };
    let of = |name: &String| {
        let unknown = || no_such("TPU", name, found.iter().map(|tpu| &tpu.name));
        let by_request = || found.iter().find(|tpu| tpu.request.as_ref() == Some(name));
        found.iter().find(|tpu| tpu.name == *name).or_else(by_request).ok_or_else(unknown)
    };
    let chosen: Vec<&Found> = names.iter().map(of).collect::<Result<_, _>>()?;
    if chosen.is_empty() {
        let text = match found {
            [] if args.zone != "-" => {
                format!("there is no TPU in {}; try without --zone", args.zone)
            }
            _ => "no TPU was chosen".to_owned(),
        };
        return Err(Failed::Config(format!("{text}; nothing was done")));
    }
    Ok(chosen)
}

/// The config.
fn text(args: &InitArgs, project: &str, chosen: &[&Found], checkpoint: &str) -> String {
    let mut text = format!(
        "# Written by tpu-watchdog init. All keys: config/full.toml\n\nproject = {project:?}\nstate   = \"sqlite:state.db\"\n\n{}",
        args.api.toml()
    );
    let checkpoint = checkpoint.trim_end_matches('/');
    for tpu in chosen {
        text += &format!("[[tpu]]\nname = {:?}\nzone = {:?}\n", tpu.name, tpu.zone);
        if let Some(id) = &tpu.request {
            text += &format!("queued_resource = {id:?}\n");
        }
        // Without a place of checkpoints the table is there as a hint.
        let (off, place) = match (checkpoint, chosen.len()) {
            ("", _) => ("# ", format!("gs://my-bucket/{}", tpu.name)),
            (_, 1) => ("", checkpoint.to_owned()),
            _ => ("", format!("{checkpoint}/{}", tpu.name)),
        };
        text += &format!(
            "\n{off}[tpu.job]\n# command  = 'python3 train.py --checkpoints \"$CHECKPOINT_BASE\"'   # without it the startup script is the job\n\
             {off}checkpoint = {place:?}\n"
        );
        text.push('\n');
    }
    text
}

fn write_new(path: &Path, text: &str) -> Result<(), Failed> {
    let failed = |error: std::io::Error| {
        Failed::Work(format!("{}: {error}; nothing was written", path.display()))
    };
    let mut file =
        std::fs::File::options().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// One question on the terminal.
fn ask(question: &str, default: &str) -> Result<String, Failed> {
    let hint = if default.is_empty() { String::new() } else { format!(" [{default}]") };
    screen::print(&format!("{question}{hint}: "));
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    let read = read.map_err(|error| Failed::Work(format!("no answer could be read: {error}")))?;
    if read == 0 {
        return Err(Failed::Work("no answer was given; nothing was done".into()));
    }
    let answer = line.trim();
    Ok(if answer.is_empty() { default.to_owned() } else { answer.to_owned() })
}
