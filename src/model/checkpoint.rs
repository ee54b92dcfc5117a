//! What a listing of a checkpoint location showed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The training step in its name.
    pub step: u64,
    /// Its full URI, as the job receives it in `CHECKPOINT_PATH`.
    pub uri: String,
}

/// The outcome of one complete listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointSurvey {
    /// The newest complete checkpoint, if there is any.
    pub newest: Option<Checkpoint>,
    /// When the last file in its folder was written, by the store's clock: shown, decides nothing.
    pub written: Option<Timestamp>,
    /// Step and total size of the newest incomplete one above it: its growth is progress.
    pub incomplete: Option<(u64, u64)>,
    /// A short name of the set of step folders, complete or not; empty where there are none. Another one says that
    /// something was saved, or removed, also below the newest.
    pub steps: String,
    /// The content of a location without a complete checkpoint.
    pub other: Option<NotComplete>,
    /// Of an empty location: the first few names in the folder above it, to tell a name that is
    /// written wrongly from a job that has saved nothing yet.
    pub around: Vec<String>,
}

/// The content of a location in which no rule finds a complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotComplete {
    /// The first few names directly under it, folders with a slash at their end.
    pub names: Vec<String>,
    /// When its oldest object was written; none where there are too many to look at.
    pub oldest: Option<Timestamp>,
}
