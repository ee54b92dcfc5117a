//! Keeps Cloud TPU training alive: recreates a TPU that did not come back and restarts its job from
//! the newest complete checkpoint.
//!
//! A pure core decides, a thin shell acts, a journal remembers, a simulator proves. Modules in
//! reading order below; the map with its rules is ARCHITECTURE.md.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo, clippy::dbg_macro)]

pub mod cli;
pub mod config;
pub mod model;

pub mod core;
pub mod resource;

pub mod driver;
pub mod shell;

pub mod checkpoint;
pub mod google;
pub mod launch;
pub mod report;
pub mod store;

pub mod simulator;
