//! The supervisor for real: bash and curl against the simulated metadata server. Left out, and
//! said, where curl is missing. The real systemd runs the same supervisor in tests/deploy.

mod chips;
mod code;
mod docker;
mod host;
mod machine;
mod notices;
mod orders;
mod rollcall;
mod runs;
mod setup;
mod starts;
