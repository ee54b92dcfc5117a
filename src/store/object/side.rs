//! The objects that are written once: events, and operator commands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};

use super::document::unavailable;
use crate::model::command::Command;
use crate::model::event::Event;
use crate::store::StoreError;

/// Objects with events that are read at the same time.
const READ_AT_ONCE: usize = 16;

fn command_folder(prefix: &Path) -> Path {
    prefix.clone().join("levers")
}

fn event_folder(prefix: &Path) -> Path {
    prefix.clone().join("events")
}

fn file(id: &str) -> String {
    format!("{id}.json")
}

/// The place of an operator command.
pub fn command(prefix: &Path, id: &str) -> Path {
    command_folder(prefix).join(file(id).as_str())
}

/// Writes the outbox, and notes in `flushed` what is there; removes operator commands that have worked.
pub async fn write_out(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
    outbox: BTreeMap<String, Vec<Event>>,
    done: BTreeSet<String>,
    flushed: &Mutex<BTreeSet<String>>,
) {
    let written =
        |name: String| flushed.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
    for (name, events) in outbox {
        let lines: String = events
            .iter()
            .filter_map(|e| serde_json::to_string(e).ok())
            .map(|line| line + "\n")
            .collect();
        let path = name.split('/').fold(event_folder(prefix), |path, part| path.join(part));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match client.put_opts(&path, lines.into(), options).await {
            Ok(_) | Err(Error::AlreadyExists { .. }) => written(name),
            Err(error) => {
                tracing::warn!(
                    "state {location}: events {name} were not written: {error}; they stay in the state object"
                );
                return;
            }
        };
    }
    for id in done {
        match client.delete(&command(prefix, &id)).await {
            Ok(()) | Err(Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(
                    "state {location}: the command {id} was not removed: {error}; it does not work twice"
                );
            }
        };
    }
}

/// The newest events, oldest first. An event may be in the outbox and have its object already.
pub async fn events(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
    outbox: BTreeMap<String, Vec<Event>>,
    last: usize,
) -> Result<Vec<Event>, StoreError> {
    let failed = |error: Error| unavailable(location, &format!("reading events failed: {error}"));
    let folder = event_folder(prefix);
    let mut days = client.list_with_delimiter(Some(&folder)).await.map_err(failed)?.common_prefixes;
    days.sort();
    let mut found = outbox;
    while let Some(day) = days.pop() {
        if found.values().map(Vec::len).sum::<usize>() >= last {
            break;
        }
        let mut names: Vec<Path> =
            client.list(Some(&day)).map_ok(|o| o.location).try_collect().await.map_err(failed)?;
        names.sort();
        let read = async |name: Path| -> Result<(Path, Vec<Event>), Error> {
            let bytes = client.get(&name).await?.bytes().await?;
            let text = String::from_utf8_lossy(&bytes);
            Ok((name, text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()))
        };
        // Newest first, and several at a time: an incident does not wait for thousands of round trips.
        let mut read =
            futures::stream::iter(names.into_iter().rev()).map(read).buffered(READ_AT_ONCE);
        while let Some((name, lines)) = read.try_next().await.map_err(failed)? {
            let key = name
                .parts()
                .skip(folder.parts().count())
                .map(|p| p.as_ref().to_owned())
                .collect::<Vec<_>>()
                .join("/");
            found.insert(key, lines);
            if found.values().map(Vec::len).sum::<usize>() >= last {
                break;
            }
        }
    }
    let all: Vec<Event> = found.into_values().flatten().collect();
    Ok(all[all.len().saturating_sub(last)..].to_vec())
}

/// Operator commands that have not worked, in their order; and the ids in `done` that a listing
/// does not show any longer.
pub async fn commands(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
    done: &BTreeSet<String>,
) -> Result<(Vec<Command>, BTreeSet<String>), StoreError> {
    let failed = |error: Error| unavailable(location, &format!("reading commands failed: {error}"));
    let names: Vec<Path> = client
        .list(Some(&command_folder(prefix)))
        .map_ok(|o| o.location)
        .try_collect()
        .await
        .map_err(failed)?;
    let there = |id: &String| names.iter().any(|name| name.filename() == Some(file(id).as_str()));
    let removed = done.iter().filter(|id| !there(id)).cloned().collect();
    let mut found: Vec<Command> = Vec::new();
    for name in &names {
        if done.iter().any(|id| name.filename() == Some(file(id).as_str())) {
            continue;
        }
        let bytes = match client.get(name).await {
            Ok(object) => object.bytes().await.map_err(failed)?,
            Err(Error::NotFound { .. }) => continue,
            Err(error) => return Err(failed(error)),
        };
        match serde_json::from_slice(&bytes) {
            Ok(command) => found.push(command),
            Err(error) => {
                tracing::error!("state {location}: {name} is no command ({error}); delete it")
            }
        }
    }
    found.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
    Ok((found, removed))
}
