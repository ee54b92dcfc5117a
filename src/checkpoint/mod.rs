//! Which checkpoint is the newest complete one: pure rules per framework, and a lister that feeds
//! them.

mod failure;
pub mod lister;
pub mod probe;
pub mod rules;
