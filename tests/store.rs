//! The store's contract, the same for every engine: SQLite on a disk, object storage in memory, and
//! Cloud Storage and S3 as the real client speaks to them.

#[path = "store/lost.rs"]
mod lost;
#[path = "store/place.rs"]
mod place;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tpu_watchdog::model::action::Record;
use tpu_watchdog::model::command::{Command, CommandKind};
use tpu_watchdog::model::event::{Event, What};
use tpu_watchdog::model::fleet::Ledger;
use tpu_watchdog::model::slot::SlotRecord;
use tpu_watchdog::model::tally::Sum;
use tpu_watchdog::simulator::http::{Fault, Simulator};
use tpu_watchdog::simulator::wire::Reply;
use tpu_watchdog::store::sqlite::SqliteStore;
use tpu_watchdog::store::{Batch, Store, StoreFailure};

use place::Place;

const TTL: Duration = Duration::from_secs(30);

fn slot(name: &str) -> Record {
    Record::Slot(Box::new(SlotRecord::new(name, "z", Timestamp::UNIX_EPOCH)))
}

fn event(message: &str) -> Event {
    Event {
        at: Timestamp::now(),
        slot: Some("a".into()),
        message: message.into(),
        what: What::Note,
    }
}

fn batch(records: Vec<Record>) -> Batch {
    Batch { records, ..Batch::default() }
}

/// Opens it and takes the lock as `holder`, whoever had it.
async fn hold(place: &Place, holder: &str) -> Box<dyn Store> {
    let mut store = place.open().await.unwrap();
    let seen = store.load().await.unwrap().lease;
    assert!(store.take(seen.as_ref(), holder, TTL).await.unwrap());
    store
}

async fn names(place: &Place) -> Vec<String> {
    place.open().await.unwrap().load().await.unwrap().slots.into_keys().collect()
}

async fn what_was_committed_is_there_after_reopening(place: Place) {
    let mut store = hold(&place, "first").await;
    let owner = store.owner().to_owned();
    let body = json!({"acceleratorType": "v4-8", "unknown": [1]});
    let ledger = Ledger { beacons_seen: true, ..Ledger::default() };
    let all = Batch {
        records: vec![
            slot("a"),
            Record::Spec("a".into(), body.clone()),
            Record::Ledger(Box::new(ledger)),
            slot("b"),
        ],
        events: vec![event("one"), event("two")],
        tally: ["recoveries_total|missing", "lost_seconds_total|a|missing", "job_launches_total|b"]
            .map(|key| (key.to_owned(), Sum::Count(3.0)))
            .into(),
    };
    store.commit(&all).await.unwrap();
    let removal = Batch {
        records: vec![Record::Removed("b".into())],
        events: vec![event("three")],
        tally: Vec::new(),
    };
    store.release(&removal).await.unwrap();
    drop(store);
    let mut store = place.open().await.unwrap();
    assert_eq!(store.owner(), owner, "the id is the store's own");
    let stored = store.load().await.unwrap();
    assert_eq!(stored.slots.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(
        serde_json::Value::Object(stored.slots["a"].spec.as_ref().unwrap().body().clone()),
        body
    );
    assert!(stored.ledger.beacons_seen);
    let kept: Vec<&str> = stored.tally.keys().map(String::as_str).collect();
    assert_eq!(kept, ["lost_seconds_total|a|missing", "recoveries_total|missing"]);
    assert_eq!(stored.tally["recoveries_total|missing"], Sum::Count(3.0));
    assert!(stored.lease.unwrap().released);
    let messages = async |store: &mut Box<dyn Store>, last: usize| -> Vec<String> {
        store.events(last).await.unwrap().into_iter().map(|e| e.message).collect()
    };
    assert_eq!(messages(&mut store, 10).await, ["one", "two", "three"]);
    assert_eq!(messages(&mut store, 2).await, ["two", "three"]);
}

async fn an_older_epoch_writes_nothing(place: Place) {
    let mut old = hold(&place, "old").await;
    old.commit(&batch(vec![slot("a")])).await.unwrap();
    let mut new = hold(&place, "new").await;
    for release in [false, true] {
        let late = batch(vec![slot("b"), Record::Removed("a".into())]);
        let error =
            if release { old.release(&late).await } else { old.commit(&late).await }.unwrap_err();
        assert_eq!(error.failure, StoreFailure::Fenced, "{error}");
        assert!(error.message.contains("held by new (epoch 2)"), "{error}");
    }
    // Also after it has looked again.
    old.load().await.unwrap();
    assert_eq!(old.commit(&Batch::default()).await.unwrap_err().failure, StoreFailure::Fenced);
    assert_eq!(names(&place).await, ["a"]);
    new.commit(&batch(vec![slot("c")])).await.unwrap();
    assert_eq!(names(&place).await, ["a", "c"]);
    let mut never = place.open().await.unwrap();
    assert_eq!(
        never.commit(&Batch::default()).await.unwrap_err().failure,
        StoreFailure::Fenced,
        "nothing without the lock"
    );
}

async fn of_two_who_saw_the_same_one_takes_it(place: Place) {
    drop(hold(&place, "dead").await);
    let (mut a, mut b) = (place.open().await.unwrap(), place.open().await.unwrap());
    let seen = a.load().await.unwrap().lease;
    assert_eq!(b.load().await.unwrap().lease, seen);
    assert!(a.take(seen.as_ref(), "a", TTL).await.unwrap());
    assert!(!b.take(seen.as_ref(), "b", TTL).await.unwrap(), "somebody was faster");
    let lease = b.load().await.unwrap().lease.unwrap();
    assert_eq!((lease.holder.as_str(), lease.epoch), ("a", 2));
}

async fn two_that_open_an_empty_place_go_by_one_id(place: Place) {
    let (mut a, mut b) = (place.open().await.unwrap(), place.open().await.unwrap());
    let stored = a.load().await.unwrap();
    assert!(a.take(stored.lease.as_ref(), "a", TTL).await.unwrap());
    assert_eq!(stored.owner, a.owner());
    // The second may have opened it before the first one made the state, under another id.
    assert_eq!(b.load().await.unwrap().owner, a.owner());
}

async fn a_read_that_is_old_by_now_takes_nothing(place: Place) {
    let mut holder = hold(&place, "holder").await;
    let mut taker = place.open().await.unwrap();
    let seen = taker.load().await.unwrap().lease;
    holder.commit(&batch(vec![slot("a")])).await.unwrap();
    assert!(!taker.take(seen.as_ref(), "taker", TTL).await.unwrap(), "it was renewed meanwhile");
    let lease = taker.load().await.unwrap().lease;
    assert!(lease.as_ref().unwrap().renewals > seen.unwrap().renewals, "each commit renews");
    holder.commit(&Batch::default()).await.unwrap();
}

async fn what_is_newer_torn_or_alien_is_refused_and_left_as_it_is(place: Place) {
    drop(hold(&place, "me").await);
    let good = place.bytes().await;
    let sqlite = matches!(place, Place::Sqlite(_));
    let mut cases =
        vec![("torn", good[..good.len() / 2].to_vec()), ("alien", b"{\"hello\": 1}".repeat(400))];
    if sqlite {
        // A newer and a foreign database are made in the engine's own tests.
        std::fs::remove_file(place.file().with_extension("db-wal")).ok();
        std::fs::remove_file(place.file().with_extension("db-shm")).ok();
        cases[0].1 = [vec![7; 100], good[100..].to_vec()].concat();
    } else {
        let text = String::from_utf8(good.clone()).unwrap();
        cases.push(("newer", text.replace("\"schema\":1", "\"schema\":99").into_bytes()));
        cases.push(("damaged", text.replace("\"slots\":{}", "\"slots\":7").into_bytes()));
        cases.push(("empty", Vec::new()));
    }
    for (what, bytes) in cases {
        place.put(bytes.clone()).await;
        let error = place.open().await.err().unwrap_or_else(|| panic!("{what} was opened"));
        assert_eq!(error.failure, StoreFailure::Refused, "{what}: {error}");
        assert!(error.message.contains("nothing was changed"), "{what}: {error}");
        assert_eq!(place.bytes().await, bytes, "{what}");
    }
}

async fn a_state_that_moved_is_not_written_any_more(place: Place) {
    let mut store = hold(&place, "me").await;
    store.commit(&batch(vec![slot("a")])).await.unwrap();
    store.leave_for("gs://elsewhere/p").await.unwrap();
    let error = place.open().await.err().unwrap();
    assert_eq!(error.failure, StoreFailure::Refused);
    assert!(error.message.contains("state = \"gs://elsewhere/p\""), "{error}");
}

async fn a_state_moves_whole_into_an_empty_place_alone(place: Place) {
    let mut from = SqliteStore::in_memory().unwrap();
    assert!(from.take(None, "me", TTL).await.unwrap());
    from.commit(&Batch { records: vec![slot("a")], events: vec![event("old")], tally: Vec::new() })
        .await
        .unwrap();
    let events = from.events(100).await.unwrap();
    let moving = from.load().await.unwrap().into_batch(events);
    let mut to = hold(&place, "me").await;
    to.adopt(from.owner(), &moving).await.unwrap();
    assert_eq!(to.owner(), from.owner());
    assert_eq!(
        to.adopt("other", &Batch::default()).await.unwrap_err().failure,
        StoreFailure::Refused
    );
    drop(to);
    let mut to = place.open().await.unwrap();
    assert_eq!(to.events(9).await.unwrap()[0].message, "old");
    assert_eq!(to.owner(), from.owner());
    assert_eq!(names(&place).await, ["a"]);
}

async fn while_it_is_unavailable_nothing_is_half_written_and_afterwards_it_goes_on(place: Place) {
    let mut store = hold(&place, "me").await;
    store.commit(&batch(vec![slot("a")])).await.unwrap();
    let blocker = match &place {
        Place::Sqlite(_) => {
            let other = rusqlite::Connection::open(place.file()).unwrap();
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            Some(other)
        }
        Place::Bucket { simulator, .. } => {
            let down = |_: &_| Some(Fault::AnswerBefore(Reply::new(503, "down")));
            simulator.as_ref().unwrap().set_hook(Some(Box::new(down)));
            None
        }
    };
    let both = || batch(vec![slot("b"), slot("c")]);
    let error = store.commit(&both()).await.unwrap_err();
    assert_eq!(error.failure, StoreFailure::Unavailable, "{error}");
    drop(blocker);
    if let Place::Bucket { simulator, .. } = &place {
        let error = store.load().await.unwrap_err();
        assert_eq!(error.failure, StoreFailure::Unavailable, "{error}");
        simulator.as_ref().unwrap().set_hook(None);
    }
    assert_eq!(store.load().await.unwrap().slots.len(), 1, "all of it or nothing");
    store.commit(&both()).await.unwrap();
    assert_eq!(names(&place).await, ["a", "b", "c"]);
}

async fn a_command_needs_no_lock_and_works_once(place: Place) {
    let mut holder = hold(&place, "holder").await;
    let mut person = place.open().await.unwrap();
    let command = |id: &str, second: i64| Command {
        id: id.into(),
        at: Timestamp::from_second(second).unwrap(),
        who: "me".into(),
        reason: None,
        kind: CommandKind::Pause { slot: None, until: None },
    };
    let (first, second) = (command("bb", 1), command("aa", 2));
    person.submit(&first).await.unwrap();
    person.submit(&second).await.unwrap();
    person.submit(&second).await.unwrap();
    assert_eq!(holder.commands().await.unwrap(), [first, second.clone()]);
    if let Place::Bucket { simulator: Some(_), .. } = &place {
        assert_eq!(kept(&place), 2);
    }
    holder.commit(&batch(vec![Record::CommandDone("bb".into())])).await.unwrap();
    assert_eq!(holder.commands().await.unwrap(), [second]);
    holder.release(&batch(vec![Record::CommandDone("aa".into())])).await.unwrap();
    let mut next = hold(&place, "next").await;
    assert_eq!(next.commands().await.unwrap(), []);
    next.commit(&Batch::default()).await.unwrap();
    assert_eq!(next.commands().await.unwrap(), []);
    next.commit(&Batch::default()).await.unwrap();
    if let Place::Bucket { simulator: Some(_), .. } = &place {
        assert_eq!(kept(&place), 0, "their objects are removed");
        assert!(
            !String::from_utf8(place.bytes().await).unwrap().contains("\"aa\""),
            "and forgotten"
        );
    }
}

macro_rules! contract {
    ($($engine:ident: $($name:ident)+;)+) => {
        $(mod $engine {
            $(#[tokio::test] async fn $name() { super::$name(super::Place::$engine().await).await; })+
        })+
    };
}

contract! {
    sqlite: what_was_committed_is_there_after_reopening an_older_epoch_writes_nothing of_two_who_saw_the_same_one_takes_it
        two_that_open_an_empty_place_go_by_one_id a_read_that_is_old_by_now_takes_nothing what_is_newer_torn_or_alien_is_refused_and_left_as_it_is
        a_command_needs_no_lock_and_works_once a_state_that_moved_is_not_written_any_more a_state_moves_whole_into_an_empty_place_alone
        while_it_is_unavailable_nothing_is_half_written_and_afterwards_it_goes_on
        a_lost_state_is_refused_until_its_loss_is_accepted an_old_state_gets_its_marker_from_the_next_holder_and_from_nobody_else
        a_holder_whose_state_was_removed_writes_nothing_and_gives_up the_marker_follows_a_state_that_moves
        an_upgrade_keeps_one_copy_of_each_version a_state_of_a_newer_version_names_the_way_back;
    in_memory: what_was_committed_is_there_after_reopening an_older_epoch_writes_nothing of_two_who_saw_the_same_one_takes_it
        two_that_open_an_empty_place_go_by_one_id a_read_that_is_old_by_now_takes_nothing what_is_newer_torn_or_alien_is_refused_and_left_as_it_is
        a_command_needs_no_lock_and_works_once a_state_that_moved_is_not_written_any_more a_state_moves_whole_into_an_empty_place_alone
        a_lost_state_is_refused_until_its_loss_is_accepted an_old_state_gets_its_marker_from_the_next_holder_and_from_nobody_else
        a_holder_whose_state_was_removed_writes_nothing_and_gives_up the_marker_follows_a_state_that_moves
        an_upgrade_keeps_one_copy_of_each_version a_state_of_a_newer_version_names_the_way_back;
    gs: what_was_committed_is_there_after_reopening an_older_epoch_writes_nothing of_two_who_saw_the_same_one_takes_it
        two_that_open_an_empty_place_go_by_one_id a_read_that_is_old_by_now_takes_nothing what_is_newer_torn_or_alien_is_refused_and_left_as_it_is
        a_command_needs_no_lock_and_works_once a_state_that_moved_is_not_written_any_more a_state_moves_whole_into_an_empty_place_alone
        while_it_is_unavailable_nothing_is_half_written_and_afterwards_it_goes_on
        a_write_whose_answer_is_lost_is_recognised_as_our_own a_crash_at_a_write_leaves_all_of_it_or_nothing
        events_that_cannot_be_written_stay_in_the_state_until_they_can
        a_lost_state_is_refused_until_its_loss_is_accepted an_old_state_gets_its_marker_from_the_next_holder_and_from_nobody_else
        a_holder_whose_state_was_removed_writes_nothing_and_gives_up the_marker_follows_a_state_that_moves
        an_upgrade_keeps_one_copy_of_each_version a_state_of_a_newer_version_names_the_way_back;
    s3: what_was_committed_is_there_after_reopening an_older_epoch_writes_nothing of_two_who_saw_the_same_one_takes_it
        two_that_open_an_empty_place_go_by_one_id a_read_that_is_old_by_now_takes_nothing what_is_newer_torn_or_alien_is_refused_and_left_as_it_is
        a_command_needs_no_lock_and_works_once a_state_that_moved_is_not_written_any_more a_state_moves_whole_into_an_empty_place_alone
        while_it_is_unavailable_nothing_is_half_written_and_afterwards_it_goes_on
        a_write_whose_answer_is_lost_is_recognised_as_our_own a_crash_at_a_write_leaves_all_of_it_or_nothing
        events_that_cannot_be_written_stay_in_the_state_until_they_can
        a_lost_state_is_refused_until_its_loss_is_accepted an_old_state_gets_its_marker_from_the_next_holder_and_from_nobody_else
        a_holder_whose_state_was_removed_writes_nothing_and_gives_up the_marker_follows_a_state_that_moves
        an_upgrade_keeps_one_copy_of_each_version a_state_of_a_newer_version_names_the_way_back;
}

use lost::{
    a_holder_whose_state_was_removed_writes_nothing_and_gives_up,
    a_lost_state_is_refused_until_its_loss_is_accepted,
    a_state_of_a_newer_version_names_the_way_back,
    an_old_state_gets_its_marker_from_the_next_holder_and_from_nobody_else,
    an_upgrade_keeps_one_copy_of_each_version, the_marker_follows_a_state_that_moves,
};

/// Objects of operator commands in a simulated bucket.
fn kept(place: &Place) -> usize {
    let is_command = |name: &&String| name.contains("/levers/");
    of(place).with(|cloud| cloud.objects.keys().filter(is_command).count())
}

fn of(place: &Place) -> &Simulator {
    match place {
        Place::Bucket { simulator: Some(simulator), .. } => simulator,
        _ => unreachable!("only for the simulator's buckets"),
    }
}

async fn a_write_whose_answer_is_lost_is_recognised_as_our_own(place: Place) {
    let mut store = hold(&place, "me").await;
    let struck = Arc::new(AtomicBool::new(false));
    let once = Arc::clone(&struck);
    of(&place).set_hook(Some(Box::new(move |logged| {
        let write = logged.method == "PUT" && logged.path.contains("state.json");
        (write && !once.swap(true, Ordering::SeqCst)).then(|| Fault::After(Box::new(|| ())))
    })));
    // The client repeats the write by itself; that one meets its own first attempt.
    match store.commit(&batch(vec![slot("a")])).await {
        Ok(()) => {}
        Err(error) => {
            assert_eq!(error.failure, StoreFailure::Unavailable, "{error}");
            store.load().await.unwrap();
        }
    }
    assert!(struck.load(Ordering::SeqCst));
    store.commit(&batch(vec![slot("b")])).await.unwrap();
    assert_eq!(names(&place).await, ["a", "b"]);
}

async fn a_crash_at_a_write_leaves_all_of_it_or_nothing(place: Place) {
    for (after, expected) in [(false, vec!["old"]), (true, vec!["a", "b", "old"])] {
        let mut store = hold(&place, "me").await;
        store.commit(&batch(vec![slot("old")])).await.unwrap();
        of(&place).set_hook(Some(Box::new(move |logged| {
            // A process that is gone asks nothing any more: everything after the write hangs.
            match (logged.method == "PUT", after) {
                (true, true) => Some(Fault::After(Box::new(|| ()))),
                _ => Some(Fault::Hang),
            }
        })));
        let all = batch(vec![slot("a"), slot("b")]);
        let writes = || of(&place).log().iter().filter(|logged| logged.method == "PUT").count();
        let before = writes();
        let written = async {
            while writes() == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = store.commit(&all) => {}
            written = tokio::time::timeout(Duration::from_secs(30), written) => written.expect("it is written"),
        }
        drop(store);
        of(&place).set_hook(None);
        assert_eq!(names(&place).await, expected);
    }
}

async fn events_that_cannot_be_written_stay_in_the_state_until_they_can(place: Place) {
    let mut store = hold(&place, "me").await;
    let refuse = |logged: &tpu_watchdog::simulator::http::Logged| {
        logged.path.contains("/events/").then(|| Fault::AnswerBefore(Reply::new(403, "no")))
    };
    of(&place).set_hook(Some(Box::new(refuse)));
    store.commit(&Batch { events: vec![event("one")], ..Batch::default() }).await.unwrap();
    store.commit(&Batch { events: vec![event("two")], ..Batch::default() }).await.unwrap();
    let all = async |store: &mut Box<dyn Store>| -> Vec<String> {
        store.events(9).await.unwrap().into_iter().map(|e| e.message).collect()
    };
    of(&place).set_hook(None);
    assert_eq!(all(&mut store).await, ["one", "two"], "from the state object");
    store.release(&Batch::default()).await.unwrap();
    let mut next = hold(&place, "next").await;
    next.commit(&Batch::default()).await.unwrap();
    let objects = of(&place)
        .with(|cloud| cloud.objects.keys().filter(|name| name.contains("/events/")).count());
    assert_eq!(objects, 2, "one immutable object a commit");
    assert_eq!(all(&mut next).await, ["one", "two"]);
    assert!(
        !String::from_utf8(place.bytes().await).unwrap().contains("\"one\""),
        "the outbox is empty again"
    );
}
