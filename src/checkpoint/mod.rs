//! Which checkpoint is the newest complete one: pure rules per framework, and a lister that feeds
//! them.

pub mod lister;
pub mod probe;
pub mod rules;
