//! Errors that name whom a refusal concerns, and what lies on the way to the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tpu_watchdog::google::auth::Credentials;
use tpu_watchdog::google::http::Http;
use tpu_watchdog::google::tpu::TpuClient;
use tpu_watchdog::model::training::{JobKind, NO_REGION};

use crate::credentials::{Binary, nobody_there};
use crate::{Attempts, in_a_minute, server};

const ACCOUNT: &str = "watchdog@p.iam.gserviceaccount.com";

#[test]
fn a_missing_permission_is_told_with_the_account_that_lacks_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (base, _) = runtime.block_on(server(|path, _| {
        if path.ends_with("/default/email") {
            return (200, json!(ACCOUNT));
        }
        if path.starts_with("/computeMetadata/") {
            return (200, json!({"access_token": "t", "expires_in": 3599, "token_type": "Bearer"}));
        }
        let message =
            "Permission 'tpu.nodes.list' denied on resource 'projects/p' (or it may not exist).";
        (403, json!({"error": {"code": 403, "status": "PERMISSION_DENIED", "message": message}}))
    }));
    let mut binary = Binary::new(&base);
    binary.metadata = base.trim_start_matches("http://").to_owned();
    let (code, text) = binary.run("plan");
    let whom = format!(
        "The caller is \"{ACCOUNT}\". Roles: tpuWatchdog (deploy/iam/role.yaml), for training jobs roles/aiplatform.user, "
    );
    assert!(text.contains("; `tpu-watchdog doctor` prints the command."), "{text}");
    assert!(code != 0 && text.contains(&whom), "{text}");
    assert!(!text.contains("(permission)"), "{text}");
}

#[test]
fn a_proxy_that_cant_be_reached_is_named_without_its_password() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (base, _) = runtime.block_on(server(|_, _| (200, json!({}))));
    let binary = Binary::new("https://tpu.googleapis.com");
    let file = binary.folder.path().join(".config/gcloud/application_default_credentials.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let user = json!({"type": "authorized_user", "client_id": "i", "client_secret": "s",
        "refresh_token": "r", "token_uri": format!("{base}/token")});
    std::fs::write(&file, user.to_string()).unwrap();
    let proxy = nobody_there();
    let mut plan = binary.command("plan");
    let output = plan.env("HTTPS_PROXY", format!("http://ada:hunter2@{proxy}")).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let way = format!("tpu.googleapis.com through the proxy {proxy} (HTTPS_PROXY, NO_PROXY): ");
    assert!(text.contains(&way) && text.contains("Connection refused"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("ada:"), "{text}");
    // One that wants a login.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut head);
            let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
            let _ = std::io::Write::write_all(&mut stream, answer);
        }
    });
    let mut plan = binary.command("plan");
    let output = plan.env("HTTPS_PROXY", format!("http://{proxy}")).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let way = format!("tpu.googleapis.com through the proxy {proxy} (HTTPS_PROXY, NO_PROXY): ");
    assert!(text.contains(&way) && text.contains("proxy authorization required"), "{text}");
}

#[tokio::test]
async fn a_legacy_service_that_is_gone_is_told_with_its_successor() {
    // Each answers with the status that its path begins with.
    let (base, _) = server(|path, _| {
        let status = path[1..4].parse().unwrap();
        (status, json!({"error": {"code": status, "status": "GONE", "message": "it is shut down"}}))
    })
    .await;
    for status in [403, 404, 410] {
        let attempts: Arc<Attempts> = Arc::default();
        let http = Http::new(Credentials::Anonymous, Duration::from_secs(5), attempts).unwrap();
        let ml = format!("{base}/{status}");
        let client = TpuClient::new(http, &base, "v2", "p").with_training(&base, &ml);
        let kinds = BTreeMap::from([(JobKind::Legacy, true)]);
        let why =
            client.list_jobs(NO_REGION, &kinds, None, in_a_minute()).await.unwrap_err().message;
        let hint = "submit the job to Vertex AI, and name it in a [[vertex_job]]";
        assert!(why.contains(hint) && why.contains("it is shut down"), "{status}: {why}");
    }
}
