//! The objects next to the state object: the marker, and copies from before an upgrade.

use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
};

use super::document::{self, Document, Read, copies, object, refused, unavailable, unread};
use crate::store::marker::{Lost, Marker};
use crate::store::{StoreError, moved, upgrade};

const THERE: &str = "there is a state here, so none was lost; nothing was changed. If it is damaged, restore an older generation, or delete the state object and run the command again";

fn marker(prefix: &Path) -> Path {
    prefix.clone().join("exists")
}

/// The marker, if there is one.
async fn marked(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
) -> Result<Option<Lost>, StoreError> {
    let found = match client.get(&marker(prefix)).await {
        Ok(found) => found,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(unread(location, error)),
    };
    let bytes = found.bytes().await.map_err(|e| unread(location, e))?;
    Ok(Some(Lost { sign: format!("{location}/exists"), marker: Marker::read(&bytes) }))
}

/// The error of a state that was lost.
pub async fn lost(client: &dyn ObjectStore, prefix: &Path, location: &str) -> StoreError {
    let lost = match marked(client, prefix, location).await {
        Ok(Some(lost)) => lost,
        // It was there a moment ago.
        _ => Lost { sign: format!("its last read ({location}/state.json)"), marker: None },
    };
    refuse(client, prefix, location, &lost).await
}

async fn refuse(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
    lost: &Lost,
) -> StoreError {
    let copies: Vec<String> = copies(client, prefix)
        .await
        .iter()
        .map(|ending| format!("{location}/state.{ending}"))
        .collect();
    let kept = match copies.is_empty() {
        true => String::new(),
        false => format!(", or the copy that an upgrade kept ({})", copies.join(", ")),
    };
    let how = match location.starts_with("gs://") {
        true => format!(
            " (`gcloud storage restore {location}/state.json` where the bucket has soft delete; `gcloud storage ls --all-versions` shows older generations)"
        ),
        false => String::new(),
    };
    let restore = format!("Restore {location}/state.json: an older version of it{how}{kept}");
    refused(location, lost.message(&restore))
}

/// Refuses a place whose state object is not there, where its marker is.
pub async fn refuse_lost(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
) -> Result<(), StoreError> {
    let Some(lost) = marked(client, prefix, location).await? else { return Ok(()) };
    // Another process may have made both since the state was looked for.
    match document::read(client, prefix, location, None).await? {
        Read::Absent => Err(refuse(client, prefix, location, &lost).await),
        Read::Found(..) | Read::Unchanged => Ok(()),
    }
}

/// Makes the marker where there is none; `again` writes it over, for a state whose id changed.
pub async fn mark(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
    owner: &str,
    again: bool,
) -> Result<(), StoreError> {
    if !again && marked(client, prefix, location).await?.is_some() {
        return Ok(());
    }
    let bytes = Marker::new(owner).bytes().map_err(|message| refused(location, message))?;
    let mode = if again { PutMode::Overwrite } else { PutMode::Create };
    let options = PutOptions { mode, ..PutOptions::default() };
    match client.put_opts(&marker(prefix), bytes.into(), options).await {
        Ok(_) | Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(()),
        Err(error) => {
            let message = format!("writing its marker {location}/exists failed: {error}");
            Err(unavailable(location, &message))
        }
    }
}

/// Removes the marker of a state that has another home, or is given up.
pub async fn unmark(client: &dyn ObjectStore, prefix: &Path) -> Result<(), Error> {
    match client.delete(&marker(prefix)).await {
        Err(Error::NotFound { .. }) => Ok(()),
        done => done,
    }
}

/// Gives up what was lost, so that the next opening begins a new state. `None` when nothing was.
pub async fn accept_loss(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
) -> Result<Option<Lost>, StoreError> {
    if let Read::Found(found, _) = document::read(client, prefix, location, None).await? {
        let message = found.moved_to.as_deref().map_or_else(|| THERE.to_owned(), moved);
        return Err(refused(location, message));
    }
    let lost = marked(client, prefix, location).await?;
    if lost.is_some() {
        unmark(client, prefix).await.map_err(|e| {
            let message = format!("its marker {location}/exists can't be removed: {e}");
            unavailable(location, &message)
        })?;
    }
    Ok(lost)
}

/// Keeps a copy of the state object as an older program left it. False: it is not as `version` any
/// longer.
pub async fn keep(
    client: &dyn ObjectStore,
    prefix: &Path,
    location: &str,
    state: &Document,
    version: &UpdateVersion,
) -> Result<bool, StoreError> {
    let ending = upgrade::ending(state.program.as_deref(), state.schema);
    let name = format!("state.{ending}");
    let options = GetOptions { if_match: version.e_tag.clone(), ..GetOptions::default() };
    let found = match client.get_opts(&object(prefix), options).await {
        Ok(found) => found,
        Err(Error::Precondition { .. } | Error::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(unread(location, error)),
    };
    let bytes = found.bytes().await.map_err(|e| unread(location, e))?;
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match client.put_opts(&prefix.clone().join(name.as_str()), bytes.into(), options).await {
        Ok(_) => tracing::info!(
            "state {location}: version {ending} left it; a copy was kept before version {} writes it: {location}/{name}",
            upgrade::PROGRAM
        ),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => tracing::info!(
            "state {location}: {location}/{name} is kept as it is: the copy from the first upgrade of version {ending}"
        ),
        Err(error) => {
            let message = format!(
                "no copy could be kept before this version writes it: {location}/{name}: {error}; nothing was changed"
            );
            return Err(unavailable(location, &message));
        }
    }
    Ok(true)
}
