//! What people and machines are told: logs, metrics, JSON, a page. Reads published snapshots only,
//! never decides.

pub mod access;
pub mod audit;
pub mod banner;
mod connections;
pub mod incident;
pub mod log;
pub mod meanings;
pub mod metrics;
mod obstacles;
pub mod of_jobs;
pub mod page;
pub mod protection;
pub mod published;
pub mod push;
pub mod sentence;
pub mod server;
pub mod steps;
pub mod sums;
pub mod systemd;
