//! A Cloud TPU API that lives in memory: the model is a pure state machine under a virtual clock,
//! `http` is a skin that speaks the real REST protocol. Scenarios say what goes wrong when.

pub mod api;
pub mod cloud;
pub mod http;
mod metadata;
pub mod nodes;
mod queued;
pub mod scenario;
pub mod shape;
pub mod storage;
pub mod workload;
