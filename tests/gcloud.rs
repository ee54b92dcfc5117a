//! Google's own command line on the main path: it must not be able to tell the simulator from the
//! real API.

use std::process::{Command, Output, Stdio};

use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::Simulator;

fn gcloud(base: &str, config: &std::path::Path, arguments: &str) -> Output {
    Command::new("gcloud")
        .args(arguments.split(' '))
        .env("CLOUDSDK_CONFIG", config)
        .env("CLOUDSDK_CORE_DISABLE_PROMPTS", "1")
        .env("CLOUDSDK_AUTH_ACCESS_TOKEN", "simulated")
        .env("CLOUDSDK_CORE_PROJECT", "p")
        .env("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", format!("{base}/"))
        .env("CLOUDSDK_CORE_DISABLE_USAGE_REPORTING", "1")
        .env("CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK", "1")
        .env("CLOUDSDK_SURVEY_DISABLE_PROMPTS", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_node_is_created_described_listed_and_deleted() {
    if Command::new("gcloud").arg("--version").stdout(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("CI").is_none(), "gcloud must be there in CI");
        eprintln!("LEFT OUT: gcloud is not installed");
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let simulator = Simulator::new(Cloud::new(Default::default()));
    let listener = runtime.block_on(Simulator::bind(([127, 0, 0, 1], 0).into())).unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(simulator.clone().serve(listener));
    let config = tempfile::tempdir().unwrap();
    let step = |arguments: &str, code: i32, words: &str| {
        let output = gcloud(&base, config.path(), arguments);
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            output.status.code() == Some(code) && text.contains(words),
            "gcloud {arguments}\n{text}"
        );
    };
    let vm = "compute tpus tpu-vm";
    let create = format!(
        "{vm} create c1 --zone us-central2-b --accelerator-type v4-16 --version tpu-ubuntu2204-base --labels team=llm --spot"
    );
    step(&create, 0, "Created tpu [c1]");
    step(&create, 1, "already exists");
    step(
        &format!(
            "{vm} describe c1 --zone us-central2-b --format value(state,health,schedulingConfig.spot)"
        ),
        0,
        "READY\tHEALTHY\tTrue",
    );
    step(&format!("{vm} list --zone=- --format value(name)"), 0, "c1");
    step(&format!("{vm} delete c1 --zone us-central2-b --quiet"), 0, "Deleted tpu [c1]");
    step(&format!("{vm} describe c1 --zone us-central2-b"), 1, "NOT_FOUND");
}
