//! One watchdog process in virtual time: the shell of the product without its threads. Its core,
//! its journal's order, its lease and its patience are the real ones.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tpu_watchdog::model::action::Action;
use tpu_watchdog::model::fleet::Fleet;
use tpu_watchdog::model::lease::Patience;
use tpu_watchdog::store::{Batch, StoreError};
use tpu_watchdog::watchdog::queue::Queue;

use crate::setup::{Kind, Ms};
use crate::shelf::Claim;

/// Noon of a Monday: where every world begins.
pub const EPOCH_MS: Ms = 1_780_315_200_000;

/// Virtual time by a clock that is off by so much.
pub fn wall(now: Ms, offset: Ms) -> Timestamp {
    Timestamp::from_millisecond(EPOCH_MS + now + offset).expect("worlds are short")
}

/// Whose answer it is: those to an earlier life or tenure go nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub pid: usize,
    pub life: u32,
    pub tenure: u32,
}

pub struct Process {
    pub kind: Kind,
    pub life: u32,
    pub tenure: u32,
    /// How far its clock is off.
    pub offset: Ms,
    /// When its clock was last set.
    pub clock_set: Ms,
    pub paused_until: Ms,
    /// What came while it stood still comes then, whatever happens to the world.
    pub awake_at: Ms,
    pub role: Role,
    /// The config it was started with, or read last.
    pub config: usize,
    /// A scheduled one ends then.
    pub deadline: Option<Ms>,
    /// Since when its config says `dry_run`.
    pub dry_since: Option<Ms>,
    /// Slots that its config lacks, since when.
    pub left: BTreeMap<String, Ms>,
}

pub enum Role {
    Down,
    StandingBy(Patience),
    Holding(Box<Holding>),
}

/// A write, a reload, or the last write.
pub struct Write {
    pub batch: Option<Batch>,
    pub then: Vec<Action>,
    pub began: Ms,
    pub kind: WriteKind,
    pub result: Option<Result<Option<tpu_watchdog::store::Stored>, StoreError>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    Commit,
    Reload,
    Release,
}

/// What whoever holds the lock has in its memory.
pub struct Holding {
    pub fleet: Fleet,
    pub queue: Queue,
    pub claim: Claim,
    pub write: Option<Write>,
    pub sending_until: Ms,
    pub polling: bool,
    pub mutations: u32,
    pub wake_at: Option<Ms>,
    pub leaving: bool,
}

impl Process {
    pub fn new(kind: Kind) -> Process {
        Process {
            kind,
            life: 0,
            tenure: 0,
            offset: 0,
            clock_set: Ms::MIN / 2,
            paused_until: 0,
            awake_at: 0,
            role: Role::Down,
            config: 0,
            deadline: None,
            dry_since: None,
            left: BTreeMap::new(),
        }
    }

    pub fn tag(&self, pid: usize) -> Tag {
        Tag { pid, life: self.life, tenure: self.tenure }
    }

    pub fn is_up(&self) -> bool {
        !matches!(self.role, Role::Down)
    }

    pub fn holding(&mut self) -> Option<&mut Holding> {
        match &mut self.role {
            Role::Holding(holding) => Some(holding),
            _ => None,
        }
    }

    pub fn held(&self) -> Option<&Holding> {
        match &self.role {
            Role::Holding(holding) => Some(holding),
            _ => None,
        }
    }
}

/// Milliseconds of a duration.
pub fn ms(duration: Duration) -> Ms {
    Ms::try_from(duration.as_millis()).unwrap_or(Ms::MAX / 4)
}
