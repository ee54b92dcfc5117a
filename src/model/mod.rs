//! The nouns: what a slot, a node, a condition, a recovery are. Plain data and pure functions over
//! it.
//!
//! This room never does I/O, reads a clock or the environment, or knows of any other room.

pub mod action;
pub mod ahead;
pub mod beacon;
pub mod checkpoint;
pub mod command;
pub mod condition;
pub mod event;
pub mod exit;
pub mod failure;
pub mod filling;
pub mod fleet;
pub mod hold;
pub mod hosts;
pub mod ids;
pub mod job;
pub mod job_phase;
pub mod lease;
pub mod lines;
pub mod lookup;
pub(crate) mod names;
pub mod node;
pub mod operation;
pub mod phase;
pub mod queued;
pub mod quiet;
pub mod recovery;
pub mod relaunch;
pub mod settings;
pub mod slot;
pub mod spec;
pub mod step;
pub mod submission;
pub mod tally;
pub mod time;
pub mod training;
pub mod traits;
pub mod view;
