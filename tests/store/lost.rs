//! A state that was lost, moved or left by an older version: the same for every engine; and files
//! that are removed or replaced under a store that has them open.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use tpu_watchdog::store::marker::Lost;
use tpu_watchdog::store::object::ObjectState;
use tpu_watchdog::store::sqlite::SqliteStore;
use tpu_watchdog::store::upgrade::PROGRAM;
use tpu_watchdog::store::{Batch, Store, StoreError, StoreFailure};

use super::{Place, TTL, batch, hold, names, slot};

/// What can be seen and done of a place without a store.
impl Place {
    fn named(&self, ending: &str) -> PathBuf {
        match ending {
            // Hidden.
            ".exists" => self.file().with_file_name(".state.db.exists"),
            _ => PathBuf::from(format!("{}{ending}", self.file().display())),
        }
    }

    /// The state's own name, its marker, or a copy.
    async fn get(&self, file: &str, object: &str) -> Option<Vec<u8>> {
        match self {
            Place::Sqlite(_) => std::fs::read(self.named(file)).ok(),
            Place::Bucket { client, .. } => {
                let found = client.get(&Path::from(format!("some/prefix/{object}"))).await.ok()?;
                Some(found.bytes().await.unwrap().to_vec())
            }
        }
    }

    async fn marker(&self) -> Option<String> {
        let bytes = self.get(".exists", "exists").await?;
        let marker: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert!(marker["created_at"].is_string(), "{marker}");
        Some(marker["owner"].as_str().unwrap().to_owned())
    }

    async fn remove(&self, file: &str, object: &str) {
        match self {
            Place::Sqlite(_) => std::fs::remove_file(self.named(file)).unwrap(),
            Place::Bucket { client, .. } => {
                client.delete(&Path::from(format!("some/prefix/{object}"))).await.unwrap()
            }
        }
    }

    async fn remove_state(&self) {
        self.remove("", "state.json").await;
    }

    async fn is_there(&self) -> bool {
        self.get("", "state.json").await.is_some()
    }

    async fn open_read_only(&self) -> Result<Option<Box<dyn Store>>, StoreError> {
        match self {
            Place::Sqlite(_) => Ok(SqliteStore::open_read_only(&self.file())?
                .map(|store| Box::new(store) as Box<dyn Store>)),
            Place::Bucket { client, .. } => {
                let (prefix, location) = (Path::from("some/prefix"), "gs://b/some/prefix");
                let found = ObjectState::open_existing(client.clone(), prefix, location).await?;
                Ok(found.map(|store| Box::new(store) as Box<dyn Store>))
            }
        }
    }

    async fn accept_loss(&self) -> Result<Option<Lost>, StoreError> {
        match self {
            Place::Sqlite(_) => SqliteStore::accept_loss(&self.file()),
            Place::Bucket { client, .. } => {
                let (prefix, location) = (Path::from("some/prefix"), "gs://b/some/prefix");
                ObjectState::accept_loss(client.clone(), prefix, location).await
            }
        }
    }

    /// As if another version had written the state last; `None`: one that wrote no version down.
    async fn written_by(&self, program: Option<&str>) {
        let Place::Bucket { .. } = self else {
            let connection = rusqlite::Connection::open(self.file()).unwrap();
            connection.execute("DELETE FROM meta WHERE key = 'program'", []).unwrap();
            if let Some(program) = program {
                connection.execute("INSERT INTO meta VALUES ('program', ?1)", [program]).unwrap();
            }
            return;
        };
        let mut document: serde_json::Value = serde_json::from_slice(&self.bytes().await).unwrap();
        document["program"] = program.into();
        self.put(document.to_string().into_bytes()).await;
    }

    async fn program(&self) -> Option<String> {
        let Place::Bucket { .. } = self else { return program_of(&self.file()) };
        let document: serde_json::Value = serde_json::from_slice(&self.bytes().await).unwrap();
        document["program"].as_str().map(str::to_owned)
    }

    /// The slots in a copy with this ending, and the version in it.
    async fn copy(&self, ending: &str) -> Option<(Vec<String>, Option<String>)> {
        let Place::Bucket { .. } = self else {
            let file = self.named(&format!(".{ending}"));
            if !file.exists() {
                return None;
            }
            let mode = std::fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "it holds the same secrets");
            let connection = rusqlite::Connection::open(&file).unwrap();
            let names = connection
                .prepare("SELECT name FROM slot ORDER BY name")
                .unwrap()
                .query_map([], |row| row.get(0))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            return Some((names, program_of(&file)));
        };
        let bytes = self.get("", &format!("state.{ending}")).await?;
        let document: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let names = document["slots"].as_object().unwrap().keys().cloned().collect();
        Some((names, document["program"].as_str().map(str::to_owned)))
    }

    /// How the schema is called where no version is known.
    fn schema(&self) -> &'static str {
        match self {
            Place::Sqlite(_) => "v3",
            Place::Bucket { .. } => "v1",
        }
    }
}

fn program_of(file: &std::path::Path) -> Option<String> {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.query_row("SELECT value FROM meta WHERE key = 'program'", [], |row| row.get(0)).ok()
}

fn refused<T>(result: Result<T, StoreError>, words: &[&str]) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.failure, StoreFailure::Refused, "{error}");
    for words in words {
        assert!(error.message.contains(words), "{words:?} is not in: {error}");
    }
}

pub async fn a_lost_state_is_refused_until_its_loss_is_accepted(place: Place) {
    assert!(place.open_read_only().await.unwrap().is_none(), "nothing was here");
    assert!(place.accept_loss().await.unwrap().is_none(), "so nothing was lost");
    let mut store = hold(&place, "me").await;
    let owner = store.owner().to_owned();
    store.release(&batch(vec![slot("a")])).await.unwrap();
    drop(store);
    assert_eq!(place.marker().await.as_ref(), Some(&owner));
    refused(place.accept_loss().await, &["there is a state here"]);

    place.remove_state().await;
    let words = ["it is gone", "exists says", &owner, "estore", "state init --accept-loss"];
    for _ in 0..2 {
        refused(place.open().await, &words);
        refused(place.open_read_only().await, &words);
        assert!(!place.is_there().await, "none was begun without a word");
    }
    let lost = place.accept_loss().await.unwrap().expect("it was lost");
    assert_eq!(lost.marker.unwrap().owner, owner);
    assert!(place.accept_loss().await.unwrap().is_none(), "once is enough");
    let mut store = hold(&place, "me").await;
    assert!(store.load().await.unwrap().slots.is_empty());
    assert_ne!(store.owner(), owner, "a new state has an id of its own");
    assert_eq!(place.marker().await.as_deref(), Some(store.owner()));
}

pub async fn an_old_state_gets_its_marker_from_the_next_holder_and_from_nobody_else(place: Place) {
    let mut store = hold(&place, "me").await;
    store.release(&batch(vec![slot("a")])).await.unwrap();
    place.remove(".exists", "exists").await;
    drop(store);
    let mut reader = place.open_read_only().await.unwrap().unwrap();
    reader.load().await.unwrap();
    reader.events(9).await.unwrap();
    let mut person = place.open().await.unwrap();
    person.load().await.unwrap();
    assert_eq!(place.marker().await, None, "whoever reads makes none");
    let store = hold(&place, "next").await;
    assert_eq!(place.marker().await.as_deref(), Some(store.owner()));
}

pub async fn a_holder_whose_state_was_removed_writes_nothing_and_gives_up(place: Place) {
    let mut store = hold(&place, "me").await;
    store.commit(&batch(vec![slot("a")])).await.unwrap();
    place.remove_state().await;
    let error = store.commit(&batch(vec![slot("b")])).await.unwrap_err();
    assert_ne!(error.failure, StoreFailure::Fenced, "{error}");
    // As the driver reads it again after each failure.
    refused(store.load().await, &["state"]);
    assert!(store.commit(&Batch::default()).await.is_err());
    assert!(!place.is_there().await, "it was written nowhere");
}

pub async fn the_marker_follows_a_state_that_moves(place: Place) {
    let mut from = SqliteStore::in_memory().unwrap();
    assert!(from.take(None, "me", TTL).await.unwrap());
    let moving = from.load().await.unwrap().into_batch(Vec::new());
    let mut to = hold(&place, "me").await;
    to.adopt(from.owner(), &moving).await.unwrap();
    assert_eq!(place.marker().await.as_deref(), Some(from.owner()), "it names who moved in");
    to.leave_for("gs://elsewhere/p").await.unwrap();
    assert_eq!(place.marker().await, None);
    refused(place.open().await, &["moved to gs://elsewhere/p"]);
    refused(place.accept_loss().await, &[]);
    // The closed place was tidied up: it is an empty place.
    drop(to);
    place.remove_state().await;
    assert!(place.open_read_only().await.unwrap().is_none());
}

pub async fn an_upgrade_keeps_one_copy_of_each_version(place: Place) {
    let mut store = hold(&place, "me").await;
    store.release(&batch(vec![slot("a")])).await.unwrap();
    assert_eq!(place.program().await.as_deref(), Some(PROGRAM));
    for (before, ending) in [(None, place.schema()), (Some("0.0.9"), "v0.0.9")] {
        place.written_by(before).await;
        drop(place.open().await.unwrap());
        assert_eq!(place.copy(ending).await, None, "only a holder writes");
        let mut store = hold(&place, "new").await;
        let kept = (vec!["a".to_owned()], before.map(str::to_owned));
        assert_eq!(place.copy(ending).await.as_ref(), Some(&kept), "as it was left");
        assert_eq!(place.program().await.as_deref(), Some(PROGRAM));
        store.release(&batch(vec![slot("b")])).await.unwrap();
        drop(store);
        // Back and forth again: the first copy stays.
        place.written_by(before).await;
        let mut store = hold(&place, "new").await;
        assert_eq!(place.copy(ending).await, Some(kept), "never overwritten");
        store
            .release(&batch(vec![tpu_watchdog::model::action::Record::Removed("b".into())]))
            .await
            .unwrap();
    }
    // A newer version wrote it in a form that this one knows: this one goes on, without a copy.
    place.written_by(Some("999.0.0")).await;
    drop(hold(&place, "old").await);
    assert_eq!(place.copy("v999.0.0").await, None);
    assert_eq!(place.program().await.as_deref(), Some(PROGRAM));
    assert_eq!(names(&place).await, ["a"]);
}

pub async fn a_state_of_a_newer_version_names_the_way_back(place: Place) {
    let mut store = hold(&place, "me").await;
    store.release(&batch(vec![slot("a")])).await.unwrap();
    place.written_by(Some("0.0.9")).await;
    drop(hold(&place, "new").await);
    place.written_by(Some("999.0.0")).await;
    match &place {
        Place::Sqlite(_) => {
            let connection = rusqlite::Connection::open(place.file()).unwrap();
            connection.pragma_update(None, "user_version", 99).unwrap();
        }
        Place::Bucket { .. } => {
            let text = String::from_utf8(place.bytes().await).unwrap();
            place.put(text.replace("\"schema\":1", "\"schema\":99").into_bytes()).await;
        }
    }
    let words = [
        "schema version is 99 (tpu-watchdog 999.0.0)",
        "nothing was changed",
        "stop every tpu-watchdog",
        ".v0.0.9",
        "Going back to an older version",
    ];
    refused(place.open().await, &words);
    refused(place.open_read_only().await, &words);
}

async fn sqlite() -> (Place, Box<dyn Store>) {
    let place = Place::sqlite().await;
    let mut store = hold(&place, "me").await;
    store.commit(&batch(vec![slot("a")])).await.unwrap();
    (place, store)
}

/// The slots in a file, by a connection of its own.
fn slots_in(file: &std::path::Path) -> u32 {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.query_row("SELECT count(*) FROM slot", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_file_that_was_replaced_by_a_copy_takes_no_write() {
    let (place, mut store) = sqlite().await;
    let (away, copy) = (place.named(".away"), place.file());
    std::fs::rename(&copy, &away).unwrap();
    std::fs::copy(&away, &copy).unwrap();
    let words = ["replaced by another file", "gives the lock up", "start tpu-watchdog again"];
    refused(store.commit(&batch(vec![slot("b")])).await, &words);
    refused(store.load().await, &words);
    refused(store.release(&Batch::default()).await, &words);
    let command = tpu_watchdog::model::command::Command {
        id: "1".into(),
        at: jiff::Timestamp::UNIX_EPOCH,
        who: "ada".into(),
        reason: None,
        kind: tpu_watchdog::model::command::CommandKind::Pause { slot: None, until: None },
    };
    refused(store.submit(&command).await, &words);
}

#[tokio::test]
async fn a_file_that_was_moved_away_and_back_goes_on_where_it_was() {
    let (place, mut store) = sqlite().await;
    let away = place.named(".away");
    std::fs::rename(place.file(), &away).unwrap();
    let words = ["removed or moved away", "move it back", "restore a copy"];
    refused(store.commit(&batch(vec![slot("b")])).await, &words);
    std::fs::rename(&away, place.file()).unwrap();
    assert_eq!(store.load().await.unwrap().slots.len(), 1);
    store.commit(&batch(vec![slot("c")])).await.unwrap();
    assert_eq!(names(&place).await, ["a", "c"]);
}

#[tokio::test]
async fn a_file_with_a_second_name_is_neither_written_nor_opened() {
    let (place, mut store) = sqlite().await;
    let other = place.named(".link");
    std::fs::hard_link(place.file(), &other).unwrap();
    let words = ["2 names (hard links)", "find FOLDER -samefile"];
    refused(store.commit(&batch(vec![slot("b")])).await, &words);
    refused(place.open().await, &words);
    refused(SqliteStore::open(&other), &words);
    std::fs::remove_file(&other).unwrap();
    store.load().await.unwrap();
    store.commit(&batch(vec![slot("c")])).await.unwrap();
}

#[tokio::test]
async fn a_log_or_its_index_that_was_removed_takes_no_write() {
    for ending in ["-wal", "-shm"] {
        let (place, mut store) = sqlite().await;
        std::fs::remove_file(place.named(ending)).unwrap();
        refused(store.commit(&batch(vec![slot("b")])).await, &[ending, "removed or moved away"]);
    }
}

#[tokio::test]
async fn a_symbolic_link_to_the_file_is_followed_and_watched() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real.db"), folder.path().join("state.db"));
    drop(SqliteStore::open(&real).unwrap());
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let mut store = SqliteStore::open(&link).unwrap();
    assert!(store.take(None, "me", TTL).await.unwrap());
    store.commit(&batch(vec![slot("a")])).await.unwrap();
    std::fs::copy(&real, folder.path().join("other.db")).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(folder.path().join("other.db"), &link).unwrap();
    refused(store.commit(&Batch::default()).await, &["replaced by another file"]);
}

#[tokio::test]
async fn rm_of_all_files_of_a_state_leaves_the_sign_that_it_was_there() {
    let (place, store) = sqlite().await;
    let owner = store.owner().to_owned();
    drop(store);
    // `rm state.db*`, also where the first version made its marker.
    std::fs::write(PathBuf::from(format!("{}.exists", place.file().display())), "{}").unwrap();
    for entry in std::fs::read_dir(place.file().parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("state.db") {
            std::fs::remove_file(path).unwrap();
        }
    }
    refused(place.open().await, &["it is gone", ".state.db.exists", &owner]);
    assert_eq!(place.accept_loss().await.unwrap().unwrap().marker.unwrap().owner, owner);
    assert!(place.open().await.is_ok());
}

#[tokio::test]
async fn the_marker_of_the_first_version_counts_and_gives_way_to_the_present_one() {
    let (place, store) = sqlite().await;
    drop(store);
    let former = PathBuf::from(format!("{}.exists", place.file().display()));
    std::fs::rename(place.named(".exists"), &former).unwrap();
    let kept = std::fs::read(place.file()).unwrap();
    std::fs::remove_file(place.file()).unwrap();
    refused(place.open().await, &["it is gone", "state.db.exists"]);
    std::fs::write(place.file(), kept).unwrap();
    hold(&place, "next").await;
    assert!(place.marker().await.is_some() && !former.exists());
}

#[tokio::test]
async fn an_emptied_file_and_a_log_without_its_file_are_lost_states_too() {
    let (place, store) = sqlite().await;
    let log = std::fs::read(place.named("-wal")).unwrap();
    drop(store);
    // `> state.db`
    std::fs::write(place.file(), "").unwrap();
    refused(place.open().await, &["it is gone", ".exists"]);
    assert_eq!(std::fs::read(place.file()).unwrap(), b"", "nothing was changed");
    // Killed before there were markers, and the file alone removed since.
    std::fs::remove_file(place.file()).unwrap();
    std::fs::remove_file(place.named(".exists")).unwrap();
    std::fs::write(place.named("-wal"), &log).unwrap();
    refused(place.open().await, &["it is gone", "state.db-wal"]);
    assert_eq!(std::fs::read(place.named("-wal")).unwrap(), log, "it may still be of use");
    assert!(place.accept_loss().await.unwrap().is_some());
    assert!(place.open().await.is_ok());
    let set_aside = std::fs::read_dir(place.file().parent().unwrap()).unwrap().any(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.starts_with("state.db.lost-") && name.ends_with("-wal")
    });
    assert!(set_aside, "the log is not thrown away");
}

#[tokio::test]
async fn a_file_of_0_1_0_is_copied_before_it_is_written_and_can_be_gone_back_to() {
    let place = Place::sqlite().await;
    let dump = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/0.1.0/state.sql");
    let dump = std::fs::read_to_string(dump).unwrap();
    rusqlite::Connection::open(place.file()).unwrap().execute_batch(&dump).unwrap();
    let schema = |file: &std::path::Path| -> u32 {
        let connection = rusqlite::Connection::open(file).unwrap();
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    let before = (schema(&place.file()), slots_in(&place.file()));
    drop(place.open_read_only().await.unwrap());
    drop(hold(&place, "new").await);
    let copy = place.named(&format!(".v{}", before.0));
    assert_eq!((schema(&copy), slots_in(&copy)), before);
    // And it can be gone back to.
    for ending in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(place.named(ending));
    }
    std::fs::copy(&copy, place.file()).unwrap();
    assert_eq!(names(&place).await.len(), before.1 as usize);
}

#[tokio::test]
async fn a_copy_that_cannot_be_kept_stops_the_upgrade() {
    let (place, store) = sqlite().await;
    drop(store);
    place.written_by(Some("0.0.9")).await;
    // A folder of the part's name can't be replaced by a file.
    std::fs::create_dir(place.named(".v0.0.9.part")).unwrap();
    let mut store = place.open().await.unwrap();
    let seen = store.load().await.unwrap().lease;
    let error = store.take(seen.as_ref(), "new", TTL).await.unwrap_err();
    assert_eq!(error.failure, StoreFailure::Unavailable, "it is tried again: {error}");
    assert!(error.message.contains("no copy could be kept"), "{error}");
    assert_eq!(place.program().await.as_deref(), Some("0.0.9"), "nothing was changed");
    std::fs::remove_dir(place.named(".v0.0.9.part")).unwrap();
    assert!(store.take(seen.as_ref(), "new", TTL).await.unwrap());
    assert!(place.copy("v0.0.9").await.is_some());
}
