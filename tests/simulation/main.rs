//! The deterministic simulation: the real core, the real journal's order, the simulated cloud, a virtual clock, and everything
//! that can go wrong. Every invariant is looked at by its name.

mod accidents;
mod campaign;
mod fault;
mod network;
mod oracle;
mod process;
mod setup;
mod shelf;
mod world;
