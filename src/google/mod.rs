//! HTTP clients for Google's APIs: a thin typed client over reqwest, with credentials from
//! google-cloud-auth.
//!
//! This room never decides: it reads, sends, retries what is safe to retry, and sorts what came
//! back.

pub mod answers;
pub mod auth;
pub mod classify;
mod create_check;
mod deletions;
mod drill;
pub mod http;
mod mutations;
pub mod origin;
mod paging;
mod permissions;
mod queued;
pub mod quota;
pub mod sources;
pub mod tpu;
mod training;
mod workers;
