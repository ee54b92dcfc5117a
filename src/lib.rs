//! Keeps Cloud TPU training alive.
pub mod checkpoint;
pub mod config;
pub mod decide;
pub mod google;
pub mod launch;
pub mod model;
pub mod report;
pub mod simulator;
pub mod store;
pub mod watchdog;
