//! Everything that comes from outside, each read by a function of its own: plain tests read seeds
//! and changed copies of them, the fuzzer whatever it finds. A function says whether it understood
//! what it read; it never panics about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use object_store::ObjectStoreExt as _;
use object_store::memory::InMemory;
use serde_json::Value;
use tpu_watchdog::checkpoint::lister::survey_in;
use tpu_watchdog::config;
use tpu_watchdog::core::{step, view};
use tpu_watchdog::google::answers;
use tpu_watchdog::google::classify::{http_failure, operation_failure};
use tpu_watchdog::google::origin::Origin;
use tpu_watchdog::model::action::{Effect, Input, Listing, Poll, Reading};
use tpu_watchdog::model::command::Command;
use tpu_watchdog::model::event::Verb;
use tpu_watchdog::model::fleet::{Fleet, Ledger};
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::operation::OperationState;
use tpu_watchdog::model::settings::{CheckpointSettings, Settings};
use tpu_watchdog::model::spec::NodeSpec;
use tpu_watchdog::model::submission::JobView;
use tpu_watchdog::model::training::Training;
use tpu_watchdog::resource::attributes::parse_guest_attributes;
use tpu_watchdog::resource::queued::{body as queued, reading};
use tpu_watchdog::resource::{node, training};
use tpu_watchdog::store::object::ObjectState;
use tpu_watchdog::store::sqlite::SqliteStore;
use tpu_watchdog::store::{Batch, Store as _};

/// Reads one input of its kind. Whether it was understood.
pub type Read = fn(&[u8]) -> bool;

/// All kinds, by the name of their seeds' folder and of their fuzz target.
pub const KINDS: [(&str, Read); 13] = [
    ("config", config),
    ("node", node),
    ("list", list),
    ("request", request),
    ("job", job),
    ("operation", operation),
    ("error", error),
    ("health_description", health_description),
    ("guest_attributes", guest_attributes),
    ("checkpoints", checkpoints),
    ("state_sqlite", state_sqlite),
    ("state_object", state_object),
    ("command", command),
];

/// A config. Each mistake in it has a place and a remedy.
pub fn config(bytes: &[u8]) -> bool {
    // The full example names a file that lies there.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/w.toml");
    match config::parse(&file, &String::from_utf8_lossy(bytes), &|_| None) {
        Ok(_) => true,
        Err(error) => {
            let told = error.mistakes.iter().all(|m| m.line > 0 && !m.message.is_empty());
            assert!(told && !error.mistakes.is_empty(), "{error:?}");
            false
        }
    }
}

/// One node, which goes on through the core.
pub fn node(bytes: &[u8]) -> bool {
    let Some(view) = json(bytes).and_then(|raw| NodeView::parse(raw).ok()).map(Arc::new) else {
        return false;
    };
    goes_through(vec![Arc::clone(&view), Arc::clone(&view)], Some(view));
    true
}

/// One page of a listing, which goes on through the core.
pub fn list(bytes: &[u8]) -> bool {
    let Some(page) = json(bytes).and_then(|page| answers::node_page(page, true).ok()) else {
        return false;
    };
    let whole = page.unreadable.is_empty();
    goes_through(page.nodes, None);
    whole
}

/// One queued resource without its nodes. Its specification can be asked for again.
pub fn request(bytes: &[u8]) -> bool {
    let Some(view) = json(bytes).and_then(|raw| answers::request(raw, true).ok()) else {
        return false;
    };
    if let Some(failure) = &view.failure {
        is_plain(&failure.message);
    }
    if let Reading::Node(node) = reading::reading(&view.id, Some(&view), &[])
        && let Some(learned) = NodeSpec::learn(&node.raw)
    {
        let specification = Value::Object(learned.body().clone());
        queued::create_body(&specification, "projects/p/locations/z", "n", false);
    }
    true
}

/// One managed training job, of either service. Its specification can be submitted again.
pub fn job(bytes: &[u8]) -> bool {
    let Some(view) = json(bytes).and_then(|raw| JobView::parse(raw).ok()) else { return false };
    let of = Training::one(view.kind, &view.region, &view.id);
    let shown = training::reading(&of, "a", &[], &[&view], Timestamp::UNIX_EPOCH);
    if let Reading::Node(node) = shown
        && let Some(learned) = NodeSpec::learn(&node.raw)
    {
        let order = RunOrder { generation: 1, ..RunOrder::default() };
        let body = learned.render("owner", "a", &order, None);
        training::body::submission(&body, &of).expect("it has our marks");
    }
    true
}

/// An operation. What it says of its failure stays on one line.
pub fn operation(bytes: &[u8]) -> bool {
    let Some(answer) = json(bytes) else { return false };
    for verb in Verb::ALL {
        match answers::operation(&answer, verb, true) {
            OperationState::Failed(failure) => is_plain(&failure.message),
            OperationState::Running | OperationState::Succeeded => {}
        }
    }
    answers::accepted(&answer).is_some()
}

/// The answer to a call that failed, its status in the first two bytes; the same text as an
/// operation's error.
pub fn error(bytes: &[u8]) -> bool {
    let Some((status, body)) = bytes.split_first_chunk::<2>() else { return false };
    let origins = Verb::ALL.map(|verb| Origin::operation(verb, true));
    for origin in [Origin::READ, Origin::DELETE, Origin::create(&Value::Null)] {
        is_plain(&http_failure(origin, u16::from_le_bytes(*status), body).message);
    }
    let Some(value) = json(body) else { return false };
    for origin in origins {
        is_plain(&operation_failure(origin, &value).message);
    }
    true
}

/// The one sentence of a `healthDescription` that is understood.
pub fn health_description(bytes: &[u8]) -> bool {
    node::maintenance_event(&String::from_utf8_lossy(bytes)).is_some()
}

/// Guest attributes of a slice.
pub fn guest_attributes(bytes: &[u8]) -> bool {
    json(bytes).is_some_and(|answer| {
        parse_guest_attributes(&answer).is_ok_and(|reports| !reports.is_empty())
    })
}

/// A bucket with an object a line.
pub fn checkpoints(bytes: &[u8]) -> bool {
    let store = InMemory::new();
    for name in String::from_utf8_lossy(bytes).lines() {
        let Ok(path) = object_store::path::Path::parse(name) else { continue };
        store
            .put(&path, "x".into())
            .now_or_never()
            .expect("memory never waits")
            .expect("memory takes everything");
    }
    let settings = CheckpointSettings {
        uri: "gs://bucket/run".into(),
        format: None,
        orbax_mode: Default::default(),
    };
    let base = object_store::path::Path::from("run");
    let survey =
        survey_in(&store, &base, &settings, Some(10)).now_or_never().expect("memory never waits");
    survey.expect("memory can be listed").newest.is_some()
}

/// A state file that was damaged: the first two bytes say where it ends (all zero: where it did),
/// every further three which byte is replaced by what.
pub fn state_sqlite(bytes: &[u8]) -> bool {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let mut file = WHOLE.get_or_init(whole_file).clone();
    if let Some((end, rest)) = bytes.split_first_chunk::<2>() {
        let at = |number: usize, file: &[u8]| number * 37 % file.len().max(1);
        for (patch, _) in rest.as_chunks::<3>().0.iter().zip(0..200) {
            let place = at(usize::from(u16::from_le_bytes([patch[0], patch[1]])), &file);
            file[place] = patch[2];
        }
        let end = usize::from(u16::from_le_bytes(*end));
        if end > 0 {
            file.truncate(at(end, &file));
        }
    }
    let folder = fast_folder();
    let path = folder.path().join("state.db");
    std::fs::write(&path, &file).expect("the folder is writable");
    let read = SqliteStore::open(&path).and_then(|mut store| {
        let _ = store.events(10).now_or_never().expect("SQLite never waits");
        store.load().now_or_never().expect("SQLite never waits")
    });
    let stored = read.map_err(|error| assert!(!error.message.is_empty()));
    stored
        .map(|stored| goes_on(Fleet::new(settings(), stored.slots, stored.ledger), Vec::new()))
        .is_ok()
}

/// A state object in a bucket.
pub fn state_object(bytes: &[u8]) -> bool {
    let client = Arc::new(InMemory::new());
    let prefix = object_store::path::Path::from("watchdog");
    let path = prefix.clone().join("state.json");
    client
        .put(&path, bytes.to_vec().into())
        .now_or_never()
        .expect("memory never waits")
        .expect("memory takes everything");
    let opened = ObjectState::open_existing(client, prefix, "gs://bucket/watchdog")
        .now_or_never()
        .expect("memory never waits");
    match opened {
        Ok(state) => state.is_some_and(|mut state| {
            let stored = state.load().now_or_never().expect("memory never waits");
            stored
                .map(|stored| {
                    goes_on(Fleet::new(settings(), stored.slots, stored.ledger), Vec::new())
                })
                .is_ok()
        }),
        Err(error) => {
            assert!(!error.message.is_empty());
            false
        }
    }
}

/// What a person left in a bucket.
pub fn command(bytes: &[u8]) -> bool {
    let client = Arc::new(InMemory::new());
    let prefix = object_store::path::Path::from("watchdog");
    let path = prefix.clone().join("levers").join("7b0c3a3e-0c1f-4a3e-9a55-0f6f1d0c8b11.json");
    client
        .put(&path, bytes.to_vec().into())
        .now_or_never()
        .expect("memory never waits")
        .expect("memory takes everything");
    let opened = ObjectState::open(client, prefix, "gs://bucket/watchdog")
        .now_or_never()
        .expect("memory never waits");
    let commands =
        opened.and_then(|mut state| state.commands().now_or_never().expect("memory never waits"));
    let commands = commands.expect("what is no command hides none");
    let understood = !commands.is_empty();
    goes_on(Fleet::new(settings(), BTreeMap::new(), Ledger::default()), commands);
    understood
}

fn json(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

fn is_plain(message: &str) {
    assert!(!message.chars().any(char::is_control) && message.len() < 4_000, "{message:?}");
}

fn settings() -> Settings {
    let text = "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n";
    config::parse(Path::new("w.toml"), text, &|_| None).expect("it is a config").settings
}

fn noon() -> Timestamp {
    Timestamp::from_second(1_780_000_000).expect("a time of this century")
}

/// What is shown once is never enough for anything.
fn goes_through(nodes: Vec<Arc<NodeView>>, got: Option<Arc<NodeView>>) {
    let mut fleet = Fleet::new(settings(), BTreeMap::new(), Ledger::default());
    let mut effects = step(&mut fleet, Input::Configured(Box::new(settings())), noon());
    let listing = Listing {
        zone: "us-central2-b".into(),
        result: Ok((nodes, vec!["z".into()]).into()),
        requests: None,
    };
    effects.extend(step(
        &mut fleet,
        Input::Polled(Box::new(Poll { began: noon(), listings: vec![listing], jobs: vec![] })),
        noon(),
    ));
    if let Some(view) = got {
        let got = Input::Got { slot: "a".into(), began: noon(), reading: Reading::Node(view) };
        effects.extend(step(&mut fleet, got, noon()));
    }
    assert!(
        effects
            .iter()
            .all(|effect| !matches!(effect, Effect::Commit { then, .. } if !then.is_empty())),
        "{effects:?}"
    );
}

/// Two polls, with whatever a person wants between them, by a clock that is set back: whatever is
/// remembered is survived.
fn goes_on(mut fleet: Fleet, commands: Vec<Command>) {
    let raw = serde_json::from_slice(include_bytes!("../../fuzz/seeds/node/whole.json"))
        .expect("the seed is JSON");
    let view = Arc::new(NodeView::parse(raw).expect("the seed is a node"));
    let poll = |at| {
        let listing = Listing {
            zone: "us-central2-b".into(),
            result: Ok((vec![Arc::clone(&view)], Vec::new()).into()),
            requests: None,
        };
        Input::Polled(Box::new(Poll { began: at, listings: vec![listing], jobs: vec![] }))
    };
    let later = noon() + Duration::from_secs(30);
    step(&mut fleet, Input::Configured(Box::new(settings())), later);
    step(&mut fleet, poll(later), later);
    step(&mut fleet, Input::Commands(commands), later);
    step(&mut fleet, poll(noon()), noon());
    assert!(!view::document(&fleet, noon()).tpus.is_empty());
}

/// A state file with everything in it.
fn whole_file() -> Vec<u8> {
    let folder = fast_folder();
    let path: PathBuf = folder.path().join("state.db");
    let mut store = SqliteStore::open(&path).expect("a new file");
    let ttl = Duration::from_secs(30);
    store
        .take(None, "somebody", ttl)
        .now_or_never()
        .expect("SQLite never waits")
        .expect("it is free");
    store.commit(&a_batch()).now_or_never().expect("SQLite never waits").expect("the lock is held");
    drop(store);
    std::fs::read(&path).expect("it was just written")
}

/// What a fleet writes that has met its node for the first time.
pub fn a_batch() -> Batch {
    let raw = serde_json::from_slice(include_bytes!("../../fuzz/seeds/node/whole.json"))
        .expect("the seed is JSON");
    let view = Arc::new(NodeView::parse(raw).expect("the seed is a node"));
    let mut fleet = Fleet::new(settings(), BTreeMap::new(), Ledger::default());
    let mut effects = step(&mut fleet, Input::Configured(Box::new(settings())), noon());
    let listing = Listing {
        zone: "us-central2-b".into(),
        result: Ok((vec![view], Vec::new()).into()),
        requests: None,
    };
    effects.extend(step(
        &mut fleet,
        Input::Polled(Box::new(Poll { began: noon(), listings: vec![listing], jobs: vec![] })),
        noon(),
    ));
    let mut batch = Batch::default();
    for effect in effects {
        if let Effect::Commit { records, events, .. } = effect {
            batch.records.extend(records);
            batch.events.extend(events);
        }
    }
    batch
}

/// Memory serves as the disk where there is such a place.
fn fast_folder() -> tempfile::TempDir {
    let fast = Path::new("/dev/shm");
    if fast.is_dir() { tempfile::tempdir_in(fast) } else { tempfile::tempdir() }
        .expect("a temporary folder")
}
