//! Why SQLite did not do it, and what an operator does about that.

use serde::de::DeserializeOwned;

use crate::model::lease::Lease;
use crate::store::{StoreError, StoreFailure, fenced, moved};

const NOT_EMPTY: &str = "there is state here already; nothing was changed. Give an empty place";

/// Why nothing was written.
pub enum Refusal {
    /// SQLite's own.
    Sql(rusqlite::Error),
    /// Another process holds the lock, or none does.
    Fenced(Option<Lease>),
    /// The state has another home.
    Moved(String),
    /// The lock can't be read.
    Damaged(serde_json::Error),
    /// Another owner's state is here.
    NotEmpty,
    /// The copy that comes before an upgrade could not be kept.
    NoCopy(String),
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Refusal::Sql(error)
    }
}

impl Refusal {
    /// As an error of the store at `location`.
    pub fn at(self, location: &str) -> StoreError {
        let (failure, message) = match self {
            Refusal::Sql(e) => return error(location, &e),
            Refusal::Fenced(lease) => (StoreFailure::Fenced, fenced(lease.as_ref())),
            Refusal::Moved(to) => (StoreFailure::Refused, moved(&to)),
            Refusal::Damaged(e) => (StoreFailure::Refused, damaged("the lock", &e)),
            Refusal::NotEmpty => (StoreFailure::Refused, NOT_EMPTY.to_owned()),
            Refusal::NoCopy(message) => (StoreFailure::Unavailable, message),
        };
        StoreError { failure, location: location.to_owned(), message }
    }
}

/// A state that an operator has to put right.
pub fn refused(location: &str, message: String) -> StoreError {
    StoreError { failure: StoreFailure::Refused, location: location.to_owned(), message }
}

/// A file that does not answer now.
pub fn unavailable(location: &str, message: String) -> StoreError {
    StoreError { failure: StoreFailure::Unavailable, location: location.to_owned(), message }
}

/// SQLite's error with its remedy.
pub fn error(location: &str, error: &rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let is_refused = matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase));
    let failure = if is_refused { StoreFailure::Refused } else { StoreFailure::Unavailable };
    StoreError { failure, location: location.to_owned(), message: explain(error) }
}

/// The same as text.
pub fn explain(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode::*;
    let advice = match error.sqlite_error_code() {
        Some(DiskFull) => {
            "the disk is full: free some space; nothing is done to any TPU until then"
        }
        Some(DatabaseCorrupt | NotADatabase) => {
            "it is damaged or not a database; nothing was changed. Restore a copy; without one, move it away and run `tpu-watchdog state init --accept-loss --config F`"
        }
        Some(ReadOnly | CannotOpen | PermissionDenied) => {
            "check its permissions and those of its folder"
        }
        Some(DatabaseBusy | DatabaseLocked) => "another process holds it",
        _ => "nothing is done to any TPU until it works again",
    };
    format!("{error}; {advice}")
}

/// A value as the text of a row.
pub fn json(value: &impl serde::Serialize) -> Result<String, rusqlite::Error> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}

/// A row's text as a value; `what` names it.
pub fn parse<T: DeserializeOwned>(location: &str, what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| refused(location, damaged(what, &e)))
}

fn damaged(what: &str, error: &serde_json::Error) -> String {
    format!(
        "{what} is damaged ({error}); nothing was changed. Restore a copy; without one, move the file away and run `tpu-watchdog state init --accept-loss --config F`"
    )
}
