//! Whether a bucket takes what a state in it needs: an object that is created once, refused when it is
//! there already, and removed.

use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions};

use super::lister::StorageAccess;

/// Why a place can't hold the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// A call was refused, or failed: what and why.
    Refused(String),
    /// A second create of the same object was not refused: two leaders could hold the lock.
    Unconditional,
}

impl StorageAccess {
    /// Creates an empty object below `prefix`, sees that a second create of it is refused, and
    /// removes it.
    ///
    /// # Errors
    /// The first step that failed, with the store's words.
    pub async fn probe(&self, scheme: &str, bucket: &str, prefix: &str) -> Result<(), Unfit> {
        let store =
            self.client(scheme, bucket).map_err(|error| Unfit::Refused(error.to_string()))?;
        let name = format!("{prefix}/doctor-{}", uuid::Uuid::new_v4().simple());
        let place = Path::from(name);
        let create = || {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            store.put_opts(&place, "".into(), options)
        };
        let refused = |what: &str, error| Unfit::Refused(format!("{what}: {error}"));
        create().await.map_err(|error| refused("an object can't be created", error))?;
        let second = create().await;
        let removed = store.delete(&place).await;
        match second {
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Ok(_) => return Err(Unfit::Unconditional),
            Err(error) => return Err(refused("a conditional write failed", error)),
        }
        removed.map_err(|error| refused("an object can't be deleted", error))
    }
}
