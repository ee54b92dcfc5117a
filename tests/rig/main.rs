//! The protocol, whole: the real watchdog over HTTP against the simulated cloud, whose hosts run the
//! real supervisor in bash, which runs a small SPMD trainer. Hosts crash, reboot, stay away; the
//! loss curve must go on from the newest complete checkpoint, and no run may meet another.

mod alone;
mod both;
#[path = "../e2e/harness.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest of it")]
mod harness;
#[path = "../supervisor/machine.rs"]
#[allow(dead_code, reason = "the supervisor's own tests use the rest of it")]
mod machine;
mod stage;
mod stories;
