//! Which checkpoint is the newest complete one: pure rules per framework, and a lister that feeds
//! them.

pub mod lister;
mod probe;
pub mod rules;
