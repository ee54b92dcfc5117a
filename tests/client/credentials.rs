//! The binary without credentials, with such that give no token, and with those of a user.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::tokens::{denied, sent};
use crate::{ZONE, server};

/// The real binary with a config that uses Application Default Credentials against `api`, in a home
/// of its own.
pub struct Binary {
    pub folder: tempfile::TempDir,
    pub metadata: String,
}

impl Binary {
    pub fn new(api: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "project = \"p\"\nstate = \"sqlite:state.db\"\nlisten = \"off\"\n[poll]\nevery = \"500ms\"\ntimeout = \"5s\"\n\
             [api]\ntpu = \"{api}\"\n[[tpu]]\nname = \"a\"\nzone = \"{ZONE}\"\n"
        );
        std::fs::write(folder.path().join("w.toml"), config).unwrap();
        Binary { folder, metadata: nobody_there() }
    }

    pub fn command(&self, command: &str) -> std::process::Command {
        let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_tpu-watchdog"));
        process
            .env_clear()
            .env("HOME", self.folder.path())
            .env("GCE_METADATA_HOST", &self.metadata);
        process.arg(command).arg("--config").arg(self.folder.path().join("w.toml"));
        process
    }

    /// Exit code, and everything that it wrote.
    pub fn run(&self, command: &str) -> (i32, String) {
        let output = self.command(command).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }

    /// The output of `run` until a line holds `words`, and of a second more.
    fn run_until(&self, words: &str) -> String {
        let log = self.folder.path().join("log");
        let mut process =
            self.command("run").stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        let began = Instant::now();
        let read = || std::fs::read_to_string(&log).unwrap();
        while !read().contains(words) && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_secs(1));
        process.kill().unwrap();
        process.wait().unwrap();
        read()
    }
}

/// An address where nothing listens: bound and dropped.
pub fn nobody_there() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

const LIBRARY: [&str; 3] =
    ["Subsequent calls with this credential", "future attempts", "cannot create auth headers"];

#[test]
fn without_any_credentials_each_command_says_once_where_it_looked_and_what_to_do() {
    let binary = Binary::new("https://tpu.googleapis.com");
    for command in ["plan", "once"] {
        let (code, text) = binary.run(command);
        assert_eq!(code, 1, "{text}");
        let table =
            text.lines().skip_while(|l| !l.starts_with("tpu-watchdog: ")).collect::<Vec<_>>();
        let words: Vec<String> =
            table.iter().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            words,
            [
                "tpu-watchdog: no Google credentials found".to_owned(),
                "looked at GOOGLE_APPLICATION_CREDENTIALS not set".into(),
                "~/.config/gcloud/application_default_credentials.json not there".into(),
                format!("metadata server not reachable at {} (GCE_METADATA_HOST)", binary.metadata),
                "do gcloud auth application-default login (your own machine)".into(),
                "or see deploy/iam/README.md (service account, workload identity)".into(),
            ],
            "{text}"
        );
        // Of `once` there is also the line that sums up, for a scheduler's log.
        assert_eq!(
            text.matches("no Google credentials found").count(),
            if command == "plan" { 1 } else { 2 },
            "{text}"
        );
        assert!(LIBRARY.iter().all(|words| !text.contains(words)), "{text}");
        assert!(!binary.folder.path().join("state.db").exists(), "nothing else was done");
    }
    let log = binary.run_until("no access token from");
    let told: Vec<&str> =
        log.lines().filter(|l| l.contains("no Google credentials found; looked at")).collect();
    assert!(
        told.len() == 1
            && told[0].contains("ERROR")
            && told[0].contains("; do gcloud auth application-default"),
        "{log}"
    );
    assert!(LIBRARY.iter().all(|words| !log.contains(words)), "{log}");
    let polls: Vec<&str> =
        log.lines().filter(|l| l.contains("no access token from the metadata server at")).collect();
    assert!(!polls.is_empty() && polls.iter().all(|l| l.len() < 300), "{log}");
}

#[test]
fn credentials_that_give_no_token_are_named_with_what_came_back() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (base, _) = runtime.block_on(server(|_, _| {
        (400, json!({"error": "invalid_grant", "error_description": "Token has been\nexpired or revoked."}))
    }));
    let binary = Binary::new(&base);
    let file = binary.folder.path().join(".config/gcloud/application_default_credentials.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let write = |token_uri: String| {
        let user = json!({"type": "authorized_user", "client_id": "i", "client_secret": "hunter1", "refresh_token": "hunter2",
            "token_uri": token_uri});
        std::fs::write(&file, user.to_string()).unwrap();
    };
    let told = |words: &[&str]| {
        let (code, text) = binary.run("plan");
        assert_eq!(code, 1, "{text}");
        assert_eq!(text.matches("no access token from").count(), 1, "{text}");
        assert!(words.iter().all(|words| text.contains(words)), "{text}");
        assert!(text.contains(&format!("used       {}", file.display())), "{text}");
        assert!(LIBRARY.iter().chain(&["hunter"]).all(|words| !text.contains(words)), "{text}");
    };
    write(format!("{base}/revoked"));
    told(&[
        "HTTP 400 invalid_grant: Token has been expired or revoked.",
        "gcloud auth application-default login",
    ]);
    let log = binary.run_until("no access token from");
    assert!(
        log.contains("; then restart tpu-watchdog")
            && LIBRARY.iter().all(|words| !log.contains(words)),
        "{log}"
    );
    write(format!("http://{}/token", nobody_there()));
    told(&["Connection refused", "try again"]);
    for (content, words) in [
        ("{hunter", "it is not the JSON of credentials"),
        ("{\"type\":\"hunter\"}", "its \"type\" is not one"),
        (
            "{\"type\":\"authorized_user\",\"client_id\":\"hunter\",\"client_secret\":\"hunter\"}",
            "missing field `refresh_token` in it",
        ),
    ] {
        std::fs::write(&file, content).unwrap();
        let (code, text) = binary.run("plan");
        assert!(
            code == 1
                && text.contains(words)
                && text.contains("used       /")
                && !text.contains("hunter"),
            "{text}"
        );
    }
    // Named by the environment, and not there: the library looks no further.
    let output = binary
        .command("plan")
        .env("GOOGLE_APPLICATION_CREDENTIALS", "/no/such.json")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("no Google credentials found") && text.contains("/no/such.json is not there"),
        "{text}"
    );
}

#[test]
fn the_plan_of_a_user_reads_with_the_quota_project_of_the_file() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (base, calls) = runtime
        .block_on(server(|_, headers| denied(headers).unwrap_or((200, json!({"nodes": []})))));
    let binary = Binary::new(&base);
    let file = binary.folder.path().join(".config/gcloud/application_default_credentials.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let user = json!({"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r",
        "quota_project_id": "payer", "token_uri": format!("{base}/token")});
    std::fs::write(&file, user.to_string()).unwrap();
    let (_, text) = binary.run("plan");
    let projects: Vec<_> = sent(&calls).into_iter().map(|(_, project)| project).collect();
    assert_eq!(projects[0], Some("payer".into()), "{text}");
    assert!(projects.len() > 1 && projects[1..].iter().all(Option::is_none), "{projects:?} {text}");
    assert_eq!(text.matches("roles/serviceusage.serviceUsageConsumer").count(), 1, "{text}");
}
