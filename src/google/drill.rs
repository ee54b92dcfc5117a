//! A simulated maintenance event, for `drill`.

use reqwest::Method;
use serde_json::json;

use super::origin::Origin;
use super::tpu::{ALPHA, TpuClient, outcome};
use crate::model::action::CallOutcome;

impl TpuClient {
    /// A simulated maintenance event on worker 0 of a node, in one attempt; v2alpha1 alone has it. A node
    /// that is deleted and created in between has it: nothing here is verified.
    pub async fn simulate_maintenance(&self, zone: &str, node: &str) -> CallOutcome {
        let prepared = match self.prepare().await {
            Ok(prepared) => prepared,
            Err(failure) => return CallOutcome::NotSent(failure),
        };
        let parent = self.parent_in(ALPHA, zone);
        let url = format!("{parent}/nodes/{node}:simulateMaintenanceEvent");
        let (name, body) = ("nodes.simulateMaintenanceEvent", json!({"workerIds": ["0"]}));
        let origin = Origin::PATCH;
        outcome(self.http.mutate(name, Method::POST, origin, &url, Some(&body), prepared).await)
    }
}
