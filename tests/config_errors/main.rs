//! Bad configs: each mistake with file, line, key and remedy in its message.

mod examples;
mod mistakes;

use std::path::Path;

use tpu_watchdog::config;

use mistakes::{AFTER_A_SLOT, BEFORE_A_SLOT};

const GOOD: &str = "project = \"p\"\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n";

fn error(text: &str) -> String {
    let environment = |name: &str| (name == "SECRET").then(|| "hunter2".to_owned());
    match config::parse(Path::new("/etc/w.toml"), text, &environment) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => {
            // On a terminal each mistake is shown with its line, and a mark below what is wrong.
            let shown = error.shown(false);
            for mistake in &error.mistakes {
                let line = text.lines().nth(mistake.line - 1).unwrap_or_default();
                let number = format!("{} | ", mistake.line);
                let missing = !mistake.key.contains(['.', '[']) && !line.contains(&mistake.key);
                let told = shown.contains(&number) && shown.contains('^');
                assert!(line.is_empty() || missing || told, "{shown}");
            }
            error.to_string()
        }
    }
}

#[test]
fn every_mistake_has_file_line_key_and_remedy() {
    for (text, place, remedy) in AFTER_A_SLOT {
        let message = error(&format!("{GOOD}{text}\n"));
        assert!(
            message.contains(place) && message.contains(remedy),
            "{text}\nwanted {place} … {remedy}\ngot    {message}"
        );
    }
    for (text, place, remedy) in BEFORE_A_SLOT {
        let good = GOOD.split_once('\n').unwrap();
        let message = error(&format!("{}\n{text}\n{}", good.0, good.1));
        assert!(
            message.contains(place) && message.contains(remedy),
            "{text}\nwanted {place} … {remedy}\ngot    {message}"
        );
    }
}

#[test]
fn all_mistyped_keys_and_values_are_told_at_once() {
    let message = error(
        "project = \"p\"\npolll = \"30s\"\n[[tpu]]\nnmae = \"a\"\nzone = \"us-central2-b\"\n\
         [tpu.policy.grace]\nstartup = 90\nuncler = \"5m\"\n",
    );
    for told in [
        "w.toml:2: polll: unknown key",
        "w.toml:4: tpu[0].nmae: unknown key",
        "w.toml:7: tpu[0].policy.grace.startup: 90 has no unit",
        "w.toml:8: tpu[0].policy.grace.uncler: unknown key",
    ] {
        assert!(message.contains(told), "{message}");
    }
    assert!(!message.contains("is missing"), "the name is there, mistyped: {message}");
}

#[test]
fn a_description_is_counted_and_not_quoted() {
    let create =
        |length: usize| format!("[tpu.create]\ndescription = \"{}\"\n", "x".repeat(length));
    let message = error(&format!("{GOOD}{}", create(513)));
    assert!(message.contains("w.toml:6: tpu[0].create.description:"), "{message}");
    assert!(message.contains("has 513 characters; at most 512 are allowed"), "{message}");
    let longest = format!("{GOOD}{}", create(512));
    assert!(config::parse(Path::new("w.toml"), &longest, &|_| None).is_ok());
}

#[test]
fn mistakes_of_the_whole_file() {
    assert!(error("project = \"p\"\n").contains("there is no [[tpu]]"));
    assert!(
        error("[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n")
            .contains("set project = \"my-project\"")
    );
    assert!(error("project = \"p\"\n[[tpu\n").contains("w.toml:2: this is not TOML"));
    assert!(
        config::load(Path::new("/nonexistent.toml"))
            .unwrap_err()
            .to_string()
            .contains("can't be read")
    );
    let cloud_run = |name: &str| (name == "CLOUD_RUN_JOB").then(|| "j".to_owned());
    let message = config::parse(Path::new("w.toml"), GOOD, &cloud_run).unwrap_err().to_string();
    assert!(message.contains("a create that is owed would be forgotten"), "{message}");
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let message = error(&format!("owner = \"\"\n{GOOD}[tpu.job]\nuser = \"a b\"\n"));
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 2, "{message}");
    assert!(
        lines[0].contains(":1: owner") && lines[1].contains(":7: tpu[0].job.user"),
        "{message}"
    );
}

#[test]
fn a_substituted_secret_is_never_shown() {
    for bad in
        ["listen = \"${SECRET}\"", "dry_run = \"${SECRET}\"", "[poll]\nevery = \"${SECRET}\""]
    {
        let message = error(&format!(
            "project = \"p\"\n{bad}\n[[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n"
        ));
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn substitution_stays_out_of_what_belongs_to_the_shell() {
    let text = format!(
        "{GOOD}[tpu.create]\ndescription = \"$${{A}} and ${{SECRET}}\"\nmetadata = {{ m = \"${{B}}\" }}\n[tpu.job]\ncommand = 'echo ${{C}}'\n"
    );
    let environment = |name: &str| (name == "SECRET").then(|| "x\"y".to_owned());
    let config = config::parse(Path::new("w.toml"), &text, &environment).unwrap();
    let slot = &config.settings.slots["a"];
    assert_eq!(slot.create.fields["description"], "${A} and x\"y");
    assert_eq!(slot.create.metadata["m"].as_deref(), Some("${B}"));
    assert_eq!(slot.job.as_ref().unwrap().command.as_deref(), Some("echo ${C}"));
}

#[test]
fn the_project_that_pays_for_calls_is_not_the_one_of_the_tpus() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials.json");
    let loaded = |credentials: &str, named: Option<&str>| {
        std::fs::write(&file, credentials).unwrap();
        let environment = |name: &str| match name {
            "GOOGLE_APPLICATION_CREDENTIALS" => Some(file.display().to_string()),
            "GOOGLE_CLOUD_PROJECT" => named.map(str::to_owned),
            "GOOGLE_CLOUD_QUOTA_PROJECT" => Some("payer".to_owned()),
            _ => None,
        };
        let text = GOOD.replace("project = \"p\"\n", "");
        config::parse(Path::new("w.toml"), &text, &environment)
            .map(|c| c.settings.project)
            .map_err(|e| e.to_string())
    };
    let user = r#"{"type": "authorized_user", "quota_project_id": "payer"}"#;
    assert!(
        loaded(user, None)
            .unwrap_err()
            .contains("is missing, and neither GOOGLE_CLOUD_PROJECT nor a key file")
    );
    assert_eq!(loaded(user, Some("named")), Ok("named".into()));
    let account = r#"{"type": "service_account", "project_id": "of-the-account", "quota_project_id": "payer"}"#;
    assert_eq!(loaded(account, None), Ok("of-the-account".into()));
}

#[test]
fn any_address_may_be_listened_on_and_the_token_file_lies_by_the_config() {
    let loaded = |text: &str| {
        let text = format!("listen_token_file = {text}\nlisten = \"0.0.0.0:9470\"\n{GOOD}");
        config::parse(Path::new("/etc/w.toml"), &text, &|_| None).unwrap()
    };
    let config = loaded("\"token\"");
    assert_eq!(config.listen.unwrap().to_string(), "0.0.0.0:9470");
    // The file is read by the service alone: other commands may run as another user.
    assert_eq!(config.listen_token_file.unwrap(), Path::new("/etc/token"));
    let absolute = loaded("\"/run/credentials/token\"").listen_token_file;
    assert_eq!(absolute.unwrap(), Path::new("/run/credentials/token"));
}

#[test]
fn google_is_asked_about_permissions_only_where_its_own_endpoints_serve() {
    let api = |text: &str| {
        let text = format!("{GOOD}[api]\n{text}\n");
        let api = config::parse(Path::new("/etc/w.toml"), &text, &|_| None).unwrap().api;
        (api.resource_manager, api.iam)
    };
    let public = ("https://cloudresourcemanager.googleapis.com", "https://iam.googleapis.com");
    let public = (Some(public.0.to_owned()), Some(public.1.to_owned()));
    assert_eq!(api(""), public);
    assert_eq!(api("tpu = \"https://tpu-psc.p.googleapis.com\""), public);
    assert_eq!(api("tpu = \"https://tpu.example\""), (None, None));
    assert_eq!(
        api("tpu = \"https://tpu.example\"\niam = \"https://iam.example/\""),
        (None, Some("https://iam.example".to_owned()))
    );
    assert!(error(&format!("{GOOD}[api]\niam = \"http://iam.example\"")).contains("use https"));
}
