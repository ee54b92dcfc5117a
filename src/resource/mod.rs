//! What differs between the kinds of things that are supervised: how Google's JSON is read, and what
//! a create must say. Pure: knows Google's shapes, and no HTTP.

pub mod attributes;
pub mod capacity;
pub mod limits;
pub mod mask;
pub mod node;
pub mod queued;
pub mod spec;
pub mod texts;
pub mod training;
