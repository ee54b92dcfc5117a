//! The places that state is kept in: a file, a bucket in memory, and both kinds of bucket over HTTP.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::memory::InMemory;
use object_store::path::Path;
use tempfile::TempDir;
use tpu_watchdog::checkpoint::lister::StorageAccess;
use tpu_watchdog::simulator::http::Simulator;
use tpu_watchdog::simulator::scenario::Scenario;
use tpu_watchdog::store::object::ObjectState;
use tpu_watchdog::store::sqlite::SqliteStore;
use tpu_watchdog::store::{Store, StoreError};

type Opened = Result<Box<dyn Store>, StoreError>;

/// A place for state, and what can be done to it behind the store's back.
#[derive(Clone)]
pub enum Place {
    Sqlite(Arc<TempDir>),
    Bucket { client: Arc<dyn ObjectStore>, simulator: Option<Simulator> },
}

impl Place {
    pub fn sqlite() -> BoxFuture<'static, Place> {
        Box::pin(async { Place::Sqlite(Arc::new(tempfile::tempdir().unwrap())) })
    }

    pub fn in_memory() -> BoxFuture<'static, Place> {
        Box::pin(async { Place::Bucket { client: Arc::new(InMemory::new()), simulator: None } })
    }

    pub fn gs() -> BoxFuture<'static, Place> {
        Box::pin(async {
            let (simulator, base) = simulator().await;
            let access = StorageAccess::new(Some(base), None, Duration::from_secs(5));
            Place::Bucket { client: access.client("gs", "b").unwrap(), simulator: Some(simulator) }
        })
    }

    pub fn s3() -> BoxFuture<'static, Place> {
        Box::pin(async {
            let (simulator, base) = simulator().await;
            let builder = AmazonS3Builder::new()
                .with_endpoint(base)
                .with_allow_http(true)
                .with_bucket_name("b");
            let client = builder
                .with_region("r")
                .with_access_key_id("k")
                .with_secret_access_key("s")
                .build()
                .unwrap();
            Place::Bucket { client: Arc::new(client), simulator: Some(simulator) }
        })
    }

    pub fn file(&self) -> PathBuf {
        match self {
            Place::Sqlite(folder) => folder.path().join("state.db"),
            Place::Bucket { .. } => unreachable!("a bucket has no file"),
        }
    }

    pub async fn open(&self) -> Opened {
        Ok(match self {
            Place::Sqlite(_) => Box::new(SqliteStore::open(&self.file())?),
            Place::Bucket { client, .. } => Box::new(
                ObjectState::open(
                    Arc::clone(client),
                    Path::from("some/prefix"),
                    "gs://b/some/prefix",
                )
                .await?,
            ),
        })
    }

    pub async fn bytes(&self) -> Vec<u8> {
        match self {
            Place::Sqlite(_) => std::fs::read(self.file()).unwrap(),
            Place::Bucket { client, .. } => {
                use object_store::ObjectStoreExt as _;
                client
                    .get(&Path::from("some/prefix/state.json"))
                    .await
                    .unwrap()
                    .bytes()
                    .await
                    .unwrap()
                    .to_vec()
            }
        }
    }

    pub async fn put(&self, bytes: Vec<u8>) {
        match self {
            Place::Sqlite(_) => std::fs::write(self.file(), bytes).unwrap(),
            Place::Bucket { client, .. } => {
                use object_store::ObjectStoreExt as _;
                client.put(&Path::from("some/prefix/state.json"), bytes.into()).await.unwrap();
            }
        }
    }
}

async fn simulator() -> (Simulator, String) {
    let simulator = Simulator::new(Scenario::default().build(Timestamp::now(), 1.0));
    let listener = Simulator::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(simulator.clone().serve(listener));
    (simulator, base)
}
