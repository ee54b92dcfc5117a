//! Small fleets in virtual time: the real core over a real store and the simulated cloud.

mod creation;
mod phases;
mod upgrade;
mod world;
