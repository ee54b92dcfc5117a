//! A newer run order for the node that is there: the slot's job starts again on the same machines.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::failure::FailureClass;
use super::ids::{Incarnation, RunOrder};
use super::step::Call;

/// The version of the supervisor from which on it follows a newer run order.
pub const TAKES_ORDERS: u64 = 2;

/// The version from which on it waits while its order says so, and takes notices from it.
pub const TAKES_WAIT: u64 = 3;

/// The version from which on the hosts of a slice start a run together, or none of them does.
pub const TAKES_ROLL_CALL: u64 = 4;

/// An operator's wish that the job starts again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Who.
    pub who: String,
    /// When.
    pub at: Timestamp,
}

/// A run order that is being written to a node, or waits for its workers to follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relaunch {
    /// When it was decided.
    pub at: Timestamp,
    /// Why.
    pub why: String,
    /// The node that gets it.
    pub incarnation: Incarnation,
    /// The order.
    pub order: RunOrder,
    /// How far the call is; none when it was refused or not sent.
    pub call: Option<Call>,
    /// Why it was refused or not sent.
    pub failure: Option<String>,
    /// How it was refused, where it was not merely not sent.
    pub refused: Option<FailureClass>,
    /// When the node, or its workers, first showed it.
    pub written_at: Option<Timestamp>,
}

/// A change of a node that is there: of the metadata that is ours, or its stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patch {
    /// This run order takes the place of the present one.
    Order(RunOrder),
    /// All that is ours is taken out, and the user's startup script put back.
    Release,
    /// It is stopped: its job has finished.
    Stop,
}

impl Patch {
    /// Whether it asks nothing of the hosts that the present order does not ask already.
    pub fn only_undoes(&self, present: Option<&RunOrder>) -> bool {
        let before = present.map_or(&[][..], |run| &run.reboot);
        matches!(self, Patch::Order(order)
            if !order.wait && !order.notice && order.reboot.iter().all(|boot| before.contains(boot)))
    }

    /// The generation that it orders; 0 where it orders none.
    pub fn generation(&self) -> u64 {
        match self {
            Patch::Order(order) => order.generation,
            Patch::Release | Patch::Stop => 0,
        }
    }
}

/// A node that is given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The operator who asked for it.
    pub who: String,
    /// The node that is meant.
    pub incarnation: Incarnation,
    /// A read has shown it without anything of ours.
    pub done: bool,
}

/// A patch of a node that starts no generation and ends nothing that runs: flags of the present
/// order, or its release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amendment {
    /// When it was decided.
    pub at: Timestamp,
    /// The node that gets it.
    pub incarnation: Incarnation,
    /// The metadata as it becomes.
    pub patch: Patch,
    /// How far the call is; none when it was refused or not sent.
    pub call: Option<Call>,
    /// It changes whether hosts wait.
    #[serde(default)]
    pub of_wait: bool,
    /// It is not decided once more before.
    #[serde(default)]
    pub until: Timestamp,
}
