//! Small fleets in virtual time: the real core over a real store and the simulated cloud.

mod creation;
mod guests;
mod multislice;
mod phases;
mod queues;
mod requests;
mod slices;
mod standings;
mod success;
mod upgrade;
mod world;
