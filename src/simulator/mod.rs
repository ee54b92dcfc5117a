//! A Cloud TPU API that lives in memory: the model is a pure state machine under a virtual clock,
//! `http` is a skin that speaks the real REST protocol. Scenarios say what goes wrong when.

pub mod api;
pub mod cloud;
mod happen;
pub mod http;
mod metadata;
pub mod nodes;
mod queued;
pub mod scenario;
pub mod shape;
pub mod storage;
pub mod things;
pub mod trouble;
pub mod wire;
pub mod workload;
