//! Keeps Cloud TPU training alive.
pub mod decide;
pub mod model;
