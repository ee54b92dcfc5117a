//! End to end: the real binary over HTTP against the simulator. No clock hook in the product:
//! graces are scaled down by the config, lower bounds come from the simulator's request log.

mod chaos;
mod commands;
mod conditions;
mod crash;
mod doctor;
mod drill;
mod endpoints;
mod fleet;
mod harness;
mod hostile;
mod jobs;
mod lock;
mod multislice;
mod operator;
mod proposals;
mod queued;
mod rounds;
mod rules;
mod schedule;
mod state;
mod sweep;
mod terminal;
mod training;
mod truth;
mod views;
