//! Flags of the commands that need no config: a project, and the endpoints of `[api]`.

use std::path::Path;

use clap::Args;

use super::Failed;
use crate::config::{self, Config};

#[derive(Debug, Default, Args)]
pub struct ApiArgs {
    /// Base URL of the Cloud TPU API (default: Google's).
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub api_tpu: Option<String>,
    /// Base URL of Vertex AI, with {region} (default: Google's).
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub api_vertex: Option<String>,
    /// Base URL of legacy AI Platform Training (default: Google's).
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub api_ml: Option<String>,
    /// Base URL of Cloud Storage (default: Google's).
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub api_storage: Option<String>,
    /// Base URL of the Resource Manager API (default: Google's).
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub api_resource_manager: Option<String>,
    /// Base URL of the IAM API (default: Google's).
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub api_iam: Option<String>,
    /// Base URL of the Cloud Quotas API (default: Google's).
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub api_quotas: Option<String>,
    /// Version of the Cloud TPU API: v2 or v2alpha1.
    #[arg(long, value_name = "VERSION", hide_short_help = true)]
    pub api_version: Option<String>,
    /// "anonymous" sends no credentials; only for loopback addresses.
    #[arg(long, value_name = "KIND", hide_short_help = true)]
    pub api_credentials: Option<String>,
}

impl ApiArgs {
    /// The `[api]` table that says the same; empty where no flag was given.
    pub fn toml(&self) -> String {
        let keys = [
            ("tpu", &self.api_tpu),
            ("vertex", &self.api_vertex),
            ("ml", &self.api_ml),
            ("storage", &self.api_storage),
            ("resource_manager", &self.api_resource_manager),
            ("iam", &self.api_iam),
            ("quotas", &self.api_quotas),
            ("version", &self.api_version),
            ("credentials", &self.api_credentials),
        ];
        let lines: String = keys
            .iter()
            .filter_map(|(key, value)| Some(format!("{key} = {:?}\n", value.as_ref()?)))
            .collect();
        if lines.is_empty() { lines } else { format!("[api]\n{lines}\n") }
    }

    /// A config that reads a project and watches nothing.
    pub fn config(&self, project: &str) -> Result<Config, Failed> {
        let text = format!(
            "project = {project:?}\nstate = \"memory:\"\n{}[[tpu]]\nname = \"any\"\nzone = \"us-central2-b\"\n",
            self.toml()
        );
        config::parse(Path::new("the flags"), &text, &|_| None)
            .map_err(|error| Failed::Config(error.to_string()))
    }
}
