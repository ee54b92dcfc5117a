//! A Cloud TPU API that lives in memory: the model is a pure state machine under a virtual clock,
//! `http` is a skin that speaks the real REST protocol. Scenarios say what goes wrong when.

mod answer;
pub mod api;
mod catalogue;
pub mod cloud;
mod fields;
mod happen;
pub mod http;
mod metadata;
pub mod nodes;
mod queued;
mod quota;
mod rights;
pub mod scenario;
pub mod service;
pub mod shape;
pub mod storage;
pub mod things;
pub mod training;
pub mod trouble;
pub mod wire;
pub mod workload;
