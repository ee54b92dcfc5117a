//! The binary: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tpu_watchdog::cli::main()
}
