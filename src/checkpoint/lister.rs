//! Lists a checkpoint location through object_store and finds the newest complete step.
//!
//! One delimiter listing of the location, then one of each candidate from the highest down to the first complete one:
//! the work does not grow with the number of old checkpoints' files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::path::Path;
use object_store::{ClientOptions, CredentialProvider, ObjectStore, RetryConfig};

use super::rules::{Completeness, StepFolder, completeness, detect, step_of};
use crate::model::checkpoint::{Checkpoint, CheckpointSurvey};
use crate::model::failure::{Failure, FailureClass};
use crate::model::settings::{CheckpointFormat, CheckpointSettings};

/// Incomplete candidates that are looked into before giving up on a location.
const CANDIDATES_MAX: usize = 50;

/// Files by which the size of an incomplete step is told.
const SIZED_MAX: usize = 10_000;

/// Where Google's storage is, and with which credentials.
#[derive(Clone)]
pub struct StorageAccess {
    /// `api.storage`, when it is not Google's own address.
    endpoint: Option<String>,
    /// None reads anonymously.
    credentials: Option<Arc<dyn CredentialProvider<Credential = GcpCredential>>>,
    /// One request.
    timeout: Duration,
    /// A client a bucket: making one loads the machine's certificates.
    clients: Arc<Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>>,
}

impl StorageAccess {
    /// Access with `timeout` for one request; without credentials it reads anonymously.
    pub fn new(
        endpoint: Option<String>,
        credentials: Option<Arc<dyn CredentialProvider<Credential = GcpCredential>>>,
        timeout: Duration,
    ) -> Self {
        StorageAccess { endpoint, credentials, timeout, clients: Arc::default() }
    }

    /// The client of a bucket, `scheme` being `gs` or `s3`.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn client(&self, scheme: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{scheme}://{bucket}");
        if let Some(client) = clients.get(&key) {
            return Ok(Arc::clone(client));
        }
        let options = ClientOptions::new().with_timeout(self.timeout).with_allow_http(true);
        let retry = RetryConfig { max_retries: 3, retry_timeout: self.timeout, ..RetryConfig::default() };
        let client: Arc<dyn ObjectStore> = if scheme == "gs" {
            let mut builder =
                GoogleCloudStorageBuilder::new().with_bucket_name(bucket).with_client_options(options).with_retry(retry);
            if let Some(endpoint) = &self.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            builder = match &self.credentials {
                Some(credentials) => builder.with_credentials(Arc::clone(credentials)),
                // Not `with_skip_signature`: a write would still ask the metadata server for a token.
                None => builder.with_bearer_token("anonymous"),
            };
            Arc::new(builder.build()?)
        } else {
            Arc::new(AmazonS3Builder::from_env().with_bucket_name(bucket).with_client_options(options).with_retry(retry).build()?)
        };
        clients.insert(key, Arc::clone(&client));
        Ok(client)
    }
}

/// Lists one location. The step `set_aside` is taken only when no other is complete.
///
/// # Errors
/// When any listing failed or the location is not understood: nothing may rest on a partial one.
pub async fn survey(
    settings: &CheckpointSettings,
    access: &StorageAccess,
    set_aside: Option<u64>,
) -> Result<CheckpointSurvey, Failure> {
    let (store, base) = open(&settings.uri, access)?;
    survey_in(&*store, &base, settings, set_aside).await
}

/// Lists one location in a store that is at hand.
///
/// # Errors
/// As [`survey`].
pub async fn survey_in(
    store: &dyn ObjectStore,
    base: &Path,
    settings: &CheckpointSettings,
    set_aside: Option<u64>,
) -> Result<CheckpointSurvey, Failure> {
    let failed =
        |error: object_store::Error| Failure::new(FailureClass::Transient, format!("listing {} failed: {error}", settings.uri));
    let top = match store.list_with_delimiter(Some(base)).await {
        Ok(top) => top,
        // A folder that does not exist yet holds no checkpoint; object stores answer with an empty list instead.
        Err(object_store::Error::NotFound { .. }) => return Ok(CheckpointSurvey::default()),
        Err(error) => return Err(failed(error)),
    };
    // As the store names it: a name that needs encoding is not encoded once more.
    let places: BTreeMap<String, Path> =
        top.common_prefixes.into_iter().filter_map(|p| Some((p.filename()?.to_owned(), p))).collect();
    let folders: Vec<String> = places.keys().cloned().collect();
    let Some(format) = settings.format.or_else(|| detect(&folders)) else { return Ok(CheckpointSurvey::default()) };
    let mut candidates: Vec<(u64, &String)> = folders.iter().filter_map(|f| Some((step_of(format, f)?, f))).collect();
    candidates.sort_unstable_by_key(|(step, folder)| (set_aside == Some(*step), std::cmp::Reverse((*step, *folder))));
    let found = |step: u64, folder: &str| Checkpoint { step, uri: format!("{}/{folder}", settings.uri) };
    let mut outcome = CheckpointSurvey::default();
    let mut without_commit_file: Option<Checkpoint> = None;
    let mut highest_incomplete: Option<(u64, &String)> = None;
    for (step, folder) in candidates.into_iter().take(CANDIDATES_MAX) {
        let listing = store.list_with_delimiter(places.get(folder)).await.map_err(failed)?;
        let names = |paths: Vec<&Path>| paths.into_iter().filter_map(|p| p.filename().map(str::to_owned)).collect();
        let inside = StepFolder {
            files: names(listing.objects.iter().map(|o| &o.location).collect()),
            folders: names(listing.common_prefixes.iter().collect()),
        };
        match completeness(format, folder, &folders, &inside) {
            Completeness::Complete => {
                outcome.newest = Some(found(step, folder));
                break;
            }
            Completeness::WithoutCommitFile if without_commit_file.is_none() => without_commit_file = Some(found(step, folder)),
            _ => {}
        }
        highest_incomplete = highest_incomplete.or(Some((step, folder)).filter(|_| set_aside != Some(step)));
    }
    // Rename mode: without a commit file anywhere, and only where Orbax renames (not on gs://), a step is whole by its name.
    if outcome.newest.is_none() && format == CheckpointFormat::Orbax && !settings.uri.starts_with("gs://") {
        outcome.newest = without_commit_file;
    }
    let newest = outcome.newest.as_ref().map(|c| c.step);
    if let Some((step, folder)) = highest_incomplete.filter(|(step, _)| Some(*step) > newest) {
        outcome.incomplete = size(store, places.get(folder)).await.map(|size| (step, size));
    }
    Ok(outcome)
}

/// How large a folder is, by the first of its files. It tells growth alone: what can't be listed must not hold up the rest.
async fn size(store: &dyn ObjectStore, folder: Option<&Path>) -> Option<u64> {
    let sizes = store.list(folder).take(SIZED_MAX).map_ok(|object| object.size);
    sizes.try_fold(0, |sum, size| std::future::ready(Ok(sum + size))).await.ok()
}

fn open(uri: &str, access: &StorageAccess) -> Result<(Arc<dyn ObjectStore>, Path), Failure> {
    let bad = |text: String| Failure::new(FailureClass::BadRequest, format!("checkpoint location {uri}: {text}"));
    let (scheme, rest) = uri.split_once("://").ok_or_else(|| bad("it has no scheme".into()))?;
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    match scheme {
        "gs" | "s3" => {
            let path = Path::parse(path).map_err(|e| bad(e.to_string()))?;
            Ok((access.client(scheme, bucket).map_err(|e| bad(e.to_string()))?, path))
        }
        "file" => {
            let path = Path::from_filesystem_path(format!("/{}", rest.trim_start_matches('/')));
            match path {
                Ok(path) => Ok((Arc::new(object_store::local::LocalFileSystem::new()), path)),
                // A folder that is not there yet can't be made absolute: there is no checkpoint in it.
                Err(_) => Ok((Arc::new(object_store::memory::InMemory::new()), Path::default())),
            }
        }
        other => Err(bad(format!("unknown scheme {other}://"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn survey_of(files: &[&str], format: Option<CheckpointFormat>) -> CheckpointSurvey {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let uri = format!("file://{}", folder.path().display());
        let access = StorageAccess::new(None, None, Duration::from_secs(5));
        let mut survey = survey(&CheckpointSettings { uri: uri.clone(), format }, &access, None).await.unwrap();
        if let Some(newest) = &mut survey.newest {
            newest.uri = newest.uri.replace(&uri, "base");
        }
        survey
    }

    #[tokio::test]
    async fn the_newest_complete_step_is_found_below_a_broken_one() {
        let survey = survey_of(&["9/commit_success.txt", "9/d/a", "10/commit_success.txt", "100/d/a", "100/d/b"], None).await;
        assert_eq!(survey.newest, Some(Checkpoint { step: 10, uri: "base/10".into() }));
        assert_eq!(survey.incomplete, Some((100, 2)));
    }

    #[tokio::test]
    async fn a_rename_mode_location_is_complete_without_commit_files_but_not_beside_its_temporary() {
        let survey = survey_of(&["10/d/a", "11/d/a", "11.orbax-checkpoint-tmp-3/commit_success.txt"], None).await;
        assert_eq!(survey.newest.unwrap().step, 10);
    }

    #[tokio::test]
    async fn hugging_face_is_recognised_and_ordered_by_number() {
        let whole = |n: &str| [format!("checkpoint-{n}/trainer_state.json"), format!("checkpoint-{n}/model.safetensors")];
        let mut files = [whole("9"), whole("10")].concat();
        files.push("checkpoint-11/model.safetensors".into());
        let survey = survey_of(&files.iter().map(String::as_str).collect::<Vec<_>>(), None).await;
        assert_eq!(survey.newest.unwrap().step, 10);
        assert_eq!(survey.incomplete.unwrap().0, 11);
    }

    #[tokio::test]
    async fn an_empty_and_an_absent_location_hold_no_checkpoint() {
        assert_eq!(survey_of(&[], None).await, CheckpointSurvey::default());
        let access = StorageAccess::new(None, None, Duration::from_secs(5));
        let absent = CheckpointSettings { uri: "file:///nonexistent/for/sure".into(), format: Some(CheckpointFormat::Orbax) };
        assert_eq!(survey(&absent, &access, None).await, Ok(CheckpointSurvey::default()));
    }
}
