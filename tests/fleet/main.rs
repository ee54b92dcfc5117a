//! Small fleets in virtual time: the real core over a real store and the simulated cloud.

mod creation;
mod upgrade;
mod world;
