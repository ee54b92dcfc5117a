//! Small fleets in virtual time: the driver over a real store and the simulated cloud.

mod creation;
mod flex_harm;
mod flex_start;
mod guests;
mod jobs;
mod moments;
mod multislice;
mod people;
mod phases;
mod process;
mod queues;
mod requests;
mod slices;
mod standings;
mod success;
mod training;
mod upgrade;
mod walks;
mod world;
