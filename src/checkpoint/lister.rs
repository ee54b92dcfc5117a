//! Lists a checkpoint location through object_store and finds the newest complete step.
//!
//! One delimiter listing of the location, then one of each candidate from the highest down to the
//! first complete one: the work does not grow with the number of old checkpoints' files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::aws::AmazonS3Builder;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::path::Path;
use object_store::{
    ClientOptions, CredentialProvider, ListResult, ObjectMeta, ObjectStore, RetryConfig,
};

use super::failure::listing_failure;
use super::rules::{Completeness, StepFolder, completeness, detect, set_of, step_of};
use crate::model::checkpoint::{Checkpoint, CheckpointSurvey, NotComplete};
use crate::model::failure::{Failure, FailureClass};
use crate::model::settings::{CheckpointFormat, CheckpointSettings, OrbaxMode};

/// Incomplete candidates that are looked into before giving up on a location.
const CANDIDATES_MAX: usize = 50;

/// Files by which the size of an incomplete step is told, and the age of what is not understood.
const SIZED_MAX: usize = 10_000;

/// The time that the neighbours of an empty location may take, and a listing before they are asked for.
const AROUND_MAX: Duration = Duration::from_secs(1);

/// Names that are told of a location that is not understood.
const NAMES_MAX: usize = 5;

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
    pub fn client(
        &self,
        scheme: &str,
        bucket: &str,
    ) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{scheme}://{bucket}");
        if let Some(client) = clients.get(&key) {
            return Ok(Arc::clone(client));
        }
        let options = ClientOptions::new().with_timeout(self.timeout).with_allow_http(true);
        let retry =
            RetryConfig { max_retries: 3, retry_timeout: self.timeout, ..RetryConfig::default() };
        let client: Arc<dyn ObjectStore> = if scheme == "gs" {
            let mut builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name(bucket)
                .with_client_options(options)
                .with_retry(retry);
            if let Some(endpoint) = &self.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            builder = match &self.credentials {
                Some(credentials) => builder.with_credentials(Arc::clone(credentials)),
                // Not `with_skip_signature`: a write would still ask the metadata server for a
                // token.
                None => builder.with_bearer_token("anonymous"),
            };
            Arc::new(builder.build()?)
        } else {
            Arc::new(
                AmazonS3Builder::from_env()
                    .with_bucket_name(bucket)
                    .with_client_options(options)
                    .with_retry(retry)
                    .build()?,
            )
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
    let began = Instant::now();
    let mut survey = survey_in(&*store, &base, settings, set_aside).await?;
    let empty = survey.newest.is_none() && survey.other.is_none() && settings.is_listed();
    // Shown alone: it must not make a listing late that had its answer.
    if empty && !settings.uri.starts_with("file://") && began.elapsed() < AROUND_MAX {
        let around = tokio::time::timeout(AROUND_MAX, around(&*store, &base)).await;
        survey.around = around.unwrap_or_default();
    }
    Ok(survey)
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
    if !settings.is_listed() {
        return Ok(CheckpointSurvey::default());
    }
    let failed = |error: object_store::Error| listing_failure(&settings.uri, &error);
    let Some(top) = top(store, base, settings).await.map_err(failed)? else {
        return Ok(CheckpointSurvey::default());
    };
    // As the store names it: a name that needs encoding is not encoded once more.
    let places: BTreeMap<String, Path> = top
        .common_prefixes
        .into_iter()
        .filter_map(|p| Some((p.filename()?.to_owned(), p)))
        .collect();
    let folders: Vec<String> = places.keys().cloned().collect();
    let files =
        top.objects.iter().filter_map(|object| object.location.filename()).map(str::to_owned);
    let names: Vec<String> =
        folders.iter().map(|folder| format!("{folder}/")).chain(files).take(NAMES_MAX).collect();
    let Some(format) = settings.format.or_else(|| detect(&folders)) else {
        return Ok(CheckpointSurvey {
            other: not_complete(store, base, names).await.map_err(failed)?,
            ..Default::default()
        });
    };
    let mut candidates: Vec<(u64, &String)> =
        folders.iter().filter_map(|f| Some((step_of(format, f)?, f))).collect();
    candidates.sort_unstable_by_key(|(step, folder)| {
        (set_aside == Some(*step), std::cmp::Reverse((*step, *folder)))
    });
    let found =
        |step: u64, folder: &str| Checkpoint { step, uri: format!("{}/{folder}", settings.uri) };
    let steps = set_of(candidates.iter().map(|(_, folder)| folder.as_str()));
    let mut outcome = CheckpointSurvey { steps, ..CheckpointSurvey::default() };
    let mut without_commit_file: Option<(Checkpoint, Option<Timestamp>)> = None;
    let mut highest_incomplete: Option<(u64, &String)> = None;
    let count = candidates.len();
    for (step, folder) in candidates.into_iter().take(CANDIDATES_MAX) {
        let listing = listed(store, places.get(folder)).await.map_err(failed)?;
        let names = |paths: Vec<&Path>| {
            paths.into_iter().filter_map(|p| p.filename().map(str::to_owned)).collect()
        };
        let inside = StepFolder {
            files: names(listing.objects.iter().map(|o| &o.location).collect()),
            folders: names(listing.common_prefixes.iter().collect()),
        };
        let written = || written(&listing.objects);
        match completeness(format, folder, &folders, &inside) {
            state if state.is_whole(settings.orbax_mode == OrbaxMode::Rename) => {
                (outcome.newest, outcome.written) = (Some(found(step, folder)), written());
                break;
            }
            Completeness::WithoutCommitFile if without_commit_file.is_none() => {
                without_commit_file = Some((found(step, folder), written()));
            }
            _ => {}
        }
        highest_incomplete =
            highest_incomplete.or(Some((step, folder)).filter(|_| set_aside != Some(step)));
    }
    // Rename mode: without a commit file anywhere, and only where Orbax renames (not on gs://), a
    // step is whole by its name.
    let renames = settings.orbax_mode == OrbaxMode::Auto && !settings.uri.starts_with("gs://");
    let by_name = outcome.newest.is_none() && format == CheckpointFormat::Orbax && renames;
    if let Some((newest, written)) = without_commit_file.filter(|_| by_name) {
        (outcome.newest, outcome.written) = (Some(newest), written);
    }
    if outcome.newest.is_none() && count > CANDIDATES_MAX {
        // A complete one may lie below them: that is not "none".
        let message = format!(
            "the {CANDIDATES_MAX} highest of {count} steps under {} are incomplete, and the rest was not looked at; remove incomplete steps",
            settings.uri
        );
        return Err(Failure::new(FailureClass::BadRequest, message));
    }
    if outcome.newest.is_none() {
        outcome.other = not_complete(store, base, names).await.map_err(failed)?;
    }
    let newest = outcome.newest.as_ref().map(|c| c.step);
    if let Some((step, folder)) = highest_incomplete.filter(|(step, _)| Some(*step) > newest) {
        outcome.incomplete = size(store, places.get(folder)).await.map(|size| (step, size));
    }
    Ok(outcome)
}

/// The top of a location; none where it does not exist.
async fn top(
    store: &dyn ObjectStore,
    base: &Path,
    settings: &CheckpointSettings,
) -> object_store::Result<Option<ListResult>> {
    match listed(store, Some(base)).await {
        // A folder that does not exist yet holds no checkpoint; object stores answer with an empty
        // list instead.
        Err(object_store::Error::NotFound { .. }) if settings.uri.starts_with("file://") => {
            Ok(None)
        }
        top => top.map(Some),
    }
}

/// The content of a folder. The empty object of its own name, which the console and gcsfuse make, is none.
async fn listed(
    store: &dyn ObjectStore,
    folder: Option<&Path>,
) -> object_store::Result<ListResult> {
    let mut listed = store.list_with_delimiter(folder).await?;
    listed.objects.retain(|object| Some(&object.location) != folder);
    Ok(listed)
}

/// When the last of some files was written.
fn written(files: &[ObjectMeta]) -> Option<Timestamp> {
    let newest = files.iter().map(|file| file.last_modified).max()?;
    Timestamp::from_millisecond(newest.timestamp_millis()).ok()
}

/// The first few names in the folder above an empty one. They are shown alone: a failure is none.
async fn around(store: &dyn ObjectStore, base: &Path) -> Vec<String> {
    let mut parts: Vec<_> = base.parts().collect();
    if parts.pop().is_none() {
        return Vec::new();
    }
    let Ok(top) = store.list_with_delimiter(Some(&parts.into_iter().collect())).await else {
        return Vec::new();
    };
    let name = |path: &Path| path.filename().map(|name| format!("{name}/"));
    top.common_prefixes.iter().filter_map(name).take(NAMES_MAX).collect()
}

/// Looks at a location in which no complete checkpoint was found: the first names, and the age of
/// the oldest object.
async fn not_complete(
    store: &dyn ObjectStore,
    base: &Path,
    names: Vec<String>,
) -> object_store::Result<Option<NotComplete>> {
    if names.is_empty() {
        return Ok(None);
    }
    let listed = store.list(Some(base)).take(SIZED_MAX + 1);
    let objects: Vec<_> =
        listed.map_ok(|object| (object.size, object.last_modified)).try_collect().await?;
    let whole = objects.len() <= SIZED_MAX;
    // An empty object marks a folder, or says nothing of a job.
    if whole && objects.iter().all(|(size, _)| *size == 0) {
        return Ok(None);
    }
    let oldest = objects
        .into_iter()
        .filter_map(|(size, at)| (size > 0).then_some(at))
        .min()
        .and_then(|at| Timestamp::from_millisecond(at.timestamp_millis()).ok());
    Ok(Some(NotComplete { names, oldest: oldest.filter(|_| whole) }))
}

/// How large a folder is, by the first of its files. It tells growth alone: what can't be listed
/// must not hold up the rest.
async fn size(store: &dyn ObjectStore, folder: Option<&Path>) -> Option<u64> {
    let sizes = store.list(folder).take(SIZED_MAX).map_ok(|object| object.size);
    sizes.try_fold(0, |sum, size| std::future::ready(Ok(sum + size))).await.ok()
}

fn open(uri: &str, access: &StorageAccess) -> Result<(Arc<dyn ObjectStore>, Path), Failure> {
    let bad = |text: String| {
        Failure::new(FailureClass::BadRequest, format!("checkpoint location {uri}: {text}"))
    };
    let (scheme, rest) = uri.split_once("://").ok_or_else(|| bad("it has no scheme".into()))?;
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    match scheme {
        "gs" | "s3" => {
            let path = Path::parse(path).map_err(|e| bad(e.to_string()))?;
            Ok((access.client(scheme, bucket).map_err(|e| bad(e.to_string()))?, path))
        }
        "file" => {
            // Nothing is asked of the file system here: a mount that hangs would stop the watchdog.
            let path = Path::from_absolute_path(format!("/{}", rest.trim_start_matches('/')));
            let path = path.map_err(|e| bad(e.to_string()))?;
            Ok((Arc::new(object_store::local::LocalFileSystem::new()), path))
        }
        other => Err(bad(format!("unknown scheme {other}://"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn survey_of(files: &[&str], format: Option<CheckpointFormat>) -> CheckpointSurvey {
        attempt(files, format, OrbaxMode::Auto).await.unwrap()
    }

    async fn attempt(
        files: &[&str],
        format: Option<CheckpointFormat>,
        orbax_mode: OrbaxMode,
    ) -> Result<CheckpointSurvey, Failure> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let uri = format!("file://{}", folder.path().display());
        let access = StorageAccess::new(None, None, Duration::from_secs(5));
        let mut survey =
            survey(&CheckpointSettings { uri: uri.clone(), format, orbax_mode }, &access, None)
                .await?;
        if let Some(newest) = &mut survey.newest {
            newest.uri = newest.uri.replace(&uri, "base");
        }
        Ok(survey)
    }

    #[tokio::test]
    async fn what_is_there_and_not_understood_is_not_none() {
        // Levanter.
        let survey = survey_of(&["step-1000/metadata.json", "notes.txt"], None).await;
        assert_eq!(survey.newest, None);
        let other = survey.other.unwrap();
        assert_eq!(other.names, ["step-1000/", "notes.txt"]);
        assert!(other.oldest.is_some());
        // Orbax through gcsfuse before 0.12.3, where commit files are asked for.
        let mode = |mode| attempt(&["9/d/a", "10/d/a"], None, mode);
        let survey = mode(OrbaxMode::CommitFile).await.unwrap();
        assert_eq!((survey.newest, survey.other.unwrap().names.len()), (None, 2));
        assert_eq!(mode(OrbaxMode::Rename).await.unwrap().newest.unwrap().step, 10);
        // `format = "none"` is taken at its word.
        let none = attempt(
            &["step-1000/metadata.json"],
            Some(CheckpointFormat::Unlisted),
            OrbaxMode::Auto,
        )
        .await
        .unwrap();
        assert_eq!(none, CheckpointSurvey::default());
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_empty_and_one_that_can_not_be_read_is_a_failure() {
        let access = StorageAccess::new(None, None, Duration::from_secs(5));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let of = async |path: &std::path::Path| {
            let uri = format!("file://{}", path.display());
            let settings = CheckpointSettings { uri, format: None, orbax_mode: OrbaxMode::Auto };
            survey(&settings, &access, None).await
        };
        let absent = of(&folder.path().join("not/there")).await.unwrap();
        assert_eq!(absent, CheckpointSurvey::default());
        // Below a file there is no folder, whoever asks: like one without the right to look into it.
        let failure = of(&file.join("below")).await.unwrap_err();
        assert!(failure.message.contains("below"), "{failure}");
    }

    #[tokio::test]
    async fn giving_up_among_incomplete_steps_is_a_failure_and_never_none() {
        let mut files: Vec<String> = (100..=150).map(|step| format!("{step}/d/a")).collect();
        files.push("9/commit_success.txt".into());
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let failure = attempt(&files, None, OrbaxMode::CommitFile).await.unwrap_err();
        assert!(failure.message.contains("the 50 highest of 52 steps"), "{failure}");
    }

    #[test]
    fn a_refused_listing_is_a_matter_of_rights_and_never_passes() {
        let refused = |status: &str| {
            let source = format!(
                "Error performing list request: Server returned non-2xx status code: {status}: {{}}"
            )
            .into();
            listing_failure(
                "gs://demo/llama/run",
                &object_store::Error::Generic { store: "GCS", source },
            )
        };
        let failure = refused("403 Forbidden");
        assert_eq!(failure.class, FailureClass::Permission);
        assert!(
            failure
                .message
                .contains("add-iam-policy-binding gs://demo --role roles/storage.objectViewer"),
            "{failure}"
        );
        assert!(!failure.to_string().contains("transient"));
        assert_eq!(refused("404 Not Found").class, FailureClass::NotFound);
        assert_eq!(refused("503 Service Unavailable").class, FailureClass::Transient);
    }

    #[tokio::test]
    async fn an_empty_location_is_told_with_its_neighbours() {
        use object_store::ObjectStoreExt as _;
        let store = object_store::memory::InMemory::new();
        for file in ["jobs/llama/9/commit_success.txt", "jobs/gemma/1/d", "jobs/notes.txt"] {
            store.put(&Path::from(file), "x".into()).await.unwrap();
        }
        assert_eq!(around(&store, &Path::from("jobs/lama")).await, ["gemma/", "llama/"]);
        assert_eq!(around(&store, &Path::from("lama")).await, ["jobs/"]);
        let settings = CheckpointSettings {
            uri: "gs://b/jobs/llama".into(),
            format: None,
            orbax_mode: OrbaxMode::Auto,
        };
        let base = Path::from("jobs/llama");
        assert!(survey_in(&store, &base, &settings, None).await.unwrap().written.is_some());
    }

    #[tokio::test]
    async fn the_newest_complete_step_is_found_below_a_broken_one() {
        let survey = survey_of(
            &["9/commit_success.txt", "9/d/a", "10/commit_success.txt", "100/d/a", "100/d/b"],
            None,
        )
        .await;
        assert_eq!(survey.newest, Some(Checkpoint { step: 10, uri: "base/10".into() }));
        assert_eq!(survey.incomplete, Some((100, 2)));
    }

    #[tokio::test]
    async fn a_rename_mode_location_is_complete_without_commit_files_but_not_next_to_its_temporary()
    {
        let survey =
            survey_of(&["10/d/a", "11/d/a", "11.orbax-checkpoint-tmp-3/commit_success.txt"], None)
                .await;
        assert_eq!(survey.newest.unwrap().step, 10);
    }

    #[tokio::test]
    async fn hugging_face_is_recognised_and_ordered_by_number() {
        let whole = |n: &str| {
            [
                format!("checkpoint-{n}/trainer_state.json"),
                format!("checkpoint-{n}/model.safetensors"),
            ]
        };
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
        let absent = CheckpointSettings {
            uri: "file:///nonexistent/for/sure".into(),
            format: Some(CheckpointFormat::Orbax),
            orbax_mode: OrbaxMode::Auto,
        };
        assert_eq!(survey(&absent, &access, None).await, Ok(CheckpointSurvey::default()));
    }
}
