//! The engine's own: what a contract that all engines share can't say.

use super::schema::APPLICATION_ID;
use super::*;
use crate::model::action::Record;
use crate::model::slot::SlotRecord;
use jiff::Timestamp;

fn slot(name: &str) -> SlotRecord {
    SlotRecord::new(name, "z", Timestamp::UNIX_EPOCH)
}

async fn held(mut store: SqliteStore) -> SqliteStore {
    assert!(store.take(None, "me", Duration::from_secs(30)).await.unwrap());
    store
}

fn batch(records: Vec<Record>) -> Batch {
    Batch { records, ..Batch::default() }
}

#[tokio::test]
async fn the_file_is_for_its_owners_eyes_alone_and_read_next_to_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sub/state.db");
    let mut store = held(SqliteStore::open(&path).unwrap()).await;
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "metadata may hold secrets");
    store.commit(&batch(vec![Record::Slot(Box::new(slot("a")))])).await.unwrap();
    let mut reader = SqliteStore::open_read_only(&path).unwrap().unwrap();
    assert_eq!(reader.load().await.unwrap().slots.len(), 1);
    assert!(SqliteStore::open_read_only(&folder.path().join("none.db")).unwrap().is_none());
}

#[tokio::test]
async fn a_file_of_the_former_version_is_read_as_it_is_and_brought_up_to_date_when_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let old = Connection::open(&path).unwrap();
    old.execute_batch(MIGRATIONS[0]).unwrap();
    let record = serde_json::to_string(&slot("a")).unwrap();
    old.execute_batch(&format!(
        "PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=1; INSERT INTO meta VALUES ('owner', 'o');
         INSERT INTO slot VALUES ('a', '{record}');"
    ))
    .unwrap();
    let mut looking = SqliteStore::open_read_only(&path).unwrap().unwrap();
    assert_eq!(looking.load().await.unwrap().slots.len(), 1);
    let mut store = held(SqliteStore::open(&path).unwrap()).await;
    assert_eq!(store.load().await.unwrap().slots.len(), 1);
    assert_eq!(store.owner(), "o");
    let copy = Connection::open(folder.path().join("old.db.v1")).unwrap();
    let schema: i64 = copy.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let owner = meta(&copy, "owner").unwrap();
    assert_eq!((schema, owner.as_deref()), (1, Some("o")), "as it was before");
}

#[tokio::test]
async fn a_process_that_begins_and_a_person_wait_for_a_writer_on_a_slow_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let mut persons = SqliteStore::open(&path).unwrap();
    let command = Command {
        id: "1".into(),
        at: Timestamp::UNIX_EPOCH,
        who: "ada".into(),
        reason: None,
        kind: crate::model::command::CommandKind::Pause { slot: None, until: None },
    };
    for pulls in [false, true] {
        let writer = Connection::open(&path).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        let slow = std::thread::spawn(move || {
            std::thread::sleep(BUSY * 2);
            writer.execute_batch("COMMIT").unwrap();
        });
        match pulls {
            true => persons.submit(&command).await.unwrap(),
            false => drop(SqliteStore::open(&path).unwrap()),
        }
        slow.join().unwrap();
    }
    let newer = "INSERT INTO lever (id, record) VALUES ('2', '{\"kind\": \"of the future\"}')";
    Connection::open(&path).unwrap().execute_batch(newer).unwrap();
    assert_eq!(persons.commands().await.unwrap(), [command], "what is no command hides none");
}

#[test]
fn processes_that_begin_at_once_on_a_new_file_all_find_it_theirs() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..100 {
        let (path, start) = (folder.path().join(format!("{round}.db")), std::sync::Barrier::new(4));
        let begin = |_| {
            start.wait();
            SqliteStore::open(&path).map(|store| store.owner).map_err(|e| e.to_string())
        };
        let owners: Vec<Result<String, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|index| scope.spawn(move || begin(index))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(owners.iter().all(|owner| owner.is_ok() && *owner == owners[0]), "{owners:?}");
    }
}

#[test]
fn a_newer_an_alien_and_a_torn_file_are_refused_and_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, words: &str| {
        let path = folder.path().join(name);
        let before = std::fs::read(&path).unwrap();
        let error = SqliteStore::open(&path).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    };
    let newer = Connection::open(folder.path().join("newer.db")).unwrap();
    newer
        .execute_batch(&format!(
            "PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=99; CREATE TABLE t(a);"
        ))
        .unwrap();
    drop(newer);
    refused("newer.db", "schema version is 99");
    Connection::open(folder.path().join("alien.db"))
        .unwrap()
        .execute_batch("CREATE TABLE t(a);")
        .unwrap();
    refused("alien.db", "another program");
    std::fs::write(folder.path().join("torn.db"), vec![7u8; 5000]).unwrap();
    refused("torn.db", "damaged or not a database");
}

#[tokio::test]
async fn a_full_disk_refuses_the_commit_and_keeps_what_was_there() {
    let mut store = held(SqliteStore::in_memory().unwrap()).await;
    store.commit(&batch(vec![Record::Slot(Box::new(slot("a")))])).await.unwrap();
    let pages: i64 =
        store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    store.connection.pragma_update(None, "max_page_count", pages).unwrap();
    let large = Record::Spec("a".into(), serde_json::json!({"x": "y".repeat(100_000)}));
    let error = store.commit(&batch(vec![large, Record::Removed("a".into())])).await.unwrap_err();
    assert!(error.message.contains("the disk is full"), "{error}");
    assert_eq!(error.failure, StoreFailure::Unavailable);
    assert_eq!(store.load().await.unwrap().slots.len(), 1);
}

#[tokio::test]
async fn a_damaged_record_is_named() {
    let mut store = SqliteStore::in_memory().unwrap();
    store.connection.execute("INSERT INTO slot VALUES ('a', '{\"name\":')", []).unwrap();
    assert!(store.load().await.unwrap_err().message.contains("the record of a is damaged"));
}
