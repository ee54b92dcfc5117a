//! `simulator`: the simulated APIs alone.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use super::{Failed, Outcome, print};
use crate::simulator::http::Simulator;
use crate::simulator::scenario::Scenario;

#[derive(Debug, Args)]
pub struct SimulatorArgs {
    /// The loopback address to listen on; port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9471")]
    listen: SocketAddr,
    /// A scenario: the TPUs, and the faults with their times (default: an empty project).
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Divides every duration of the scenario.
    #[arg(long, default_value_t = 1.0, value_parser = super::demo::speed)]
    speed: f64,
}

pub async fn simulator(args: &SimulatorArgs) -> Outcome {
    if !args.listen.ip().is_loopback() {
        return Err(Failed::Config(format!(
            "--listen {} is not a loopback address; use 127.0.0.1:PORT",
            args.listen
        )));
    }
    let scenario = match &args.scenario {
        None => Scenario::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Failed::Config(format!("{} can't be read: {e}", path.display())))?;
            Scenario::parse(&text)
                .map_err(|e| Failed::Config(format!("{}: {e}", path.display())))?
        }
    };
    let listener = Simulator::bind(args.listen)
        .await
        .map_err(|e| Failed::Work(format!("--listen {}: {e}", args.listen)))?;
    let address = listener.local_addr().map_err(|e| Failed::Work(e.to_string()))?;
    let simulator = Simulator::new(scenario.build(Timestamp::now(), args.speed));
    print(&format!(
        "a simulated Cloud TPU API (v2, v2alpha1; v1 reads), Cloud Storage, and jobs of Vertex AI and AI Platform listen on http://{address}\n"
    ));
    tokio::select! {
        served = simulator.serve(listener) => served.map_err(|e| Failed::Work(e.to_string())),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
