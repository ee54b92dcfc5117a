//! Where credentials are looked for, and what a person is told when there are none or they give no
//! token. The library's own errors say neither which file was read nor what to do about it.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use google_cloud_auth::build_errors;
use google_cloud_auth::errors::CredentialsError;
use serde_json::Value;

use crate::model::beacon::{joined, plain};

const NAMED: &str = "GOOGLE_APPLICATION_CREDENTIALS";
const WELL_KNOWN: &str = ".config/gcloud/application_default_credentials.json";
const LOGIN: &str = "gcloud auth application-default login";
const README: &str = "deploy/iam/README.md";
/// Longest reason that is told.
const REASON_MAX: usize = 200;

/// Where the library looks for Application Default Credentials, in its order (AIP-4110).
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// `GOOGLE_APPLICATION_CREDENTIALS`.
    pub named: Option<PathBuf>,
    /// `HOME`: gcloud's own file lies below it.
    pub home: Option<PathBuf>,
    /// `GCE_METADATA_HOST`, where the metadata server is not at its usual address.
    pub metadata_host: Option<String>,
}

/// Which of the places the library takes. Printed it is short: a path, or the metadata server.
#[derive(Debug, Clone)]
pub struct Source {
    places: Places,
    /// None for the metadata server.
    file: Option<PathBuf>,
    /// `type` in the file, when it is one that is known here.
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    User,
    ServiceAccount,
    Other,
}

/// Why there is no access token: printed on several lines for a person,
/// [`line`](NoCredentials::line) for a log.
#[derive(Debug, Clone)]
pub struct NoCredentials {
    title: String,
    /// Label, text, and a remark that is aligned with those of other rows.
    rows: Vec<(&'static str, String, String)>,
    /// It stays so until an operator does something; the library does not ask again.
    pub for_good: bool,
}

impl fmt::Display for NoCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)?;
        let width = self
            .rows
            .iter()
            .filter(|row| !row.2.is_empty())
            .map(|row| row.1.chars().count())
            .max()
            .unwrap_or(0);
        for (label, text, remark) in &self.rows {
            let line = format!("  {label:<9}  {text:<width$}   {remark}");
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Error for NoCredentials {}

impl NoCredentials {
    /// The same on one line.
    pub fn line(&self) -> String {
        joined(&self.to_string())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.places.metadata_host) {
            (Some(file), _) => write!(f, "{}", file.display()),
            (None, Some(host)) => write!(f, "the metadata server at {host}"),
            (None, None) => f.write_str("the metadata server"),
        }
    }
}

impl Source {
    /// The source that the library takes: a file that is named is taken without looking further.
    pub fn of(places: Places) -> Self {
        let well_known =
            || places.home.as_ref().map(|home| home.join(WELL_KNOWN)).filter(|path| is_there(path));
        let file = places.named.clone().or_else(well_known);
        let text = file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let json = text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let kind = match json.as_ref().and_then(|json| json.get("type")).and_then(Value::as_str) {
            Some("authorized_user") => Kind::User,
            Some("service_account") => Kind::ServiceAccount,
            _ => Kind::Other,
        };
        Source { places, file, kind }
    }

    /// Whether they are a login in a user's home folder, which a service with a user of its own does
    /// not see.
    pub fn is_a_login(&self) -> bool {
        self.places.named.is_none() && self.file.is_some()
    }

    /// The account that the file names, where it names one: a user's own login does not.
    pub fn account(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.file.as_ref()?).ok()?;
        let json: Value = serde_json::from_str(&text).ok()?;
        let account = || Some(json.get("client_email")?.as_str()?.to_owned());
        let impersonated = || {
            let url = json.get("service_account_impersonation_url")?.as_str()?;
            let (_, rest) = url.rsplit_once("/serviceAccounts/")?;
            Some(rest.split(':').next()?.to_owned())
        };
        account().or_else(impersonated)
    }

    /// The metadata server that gives the tokens, where no file does.
    pub fn metadata_host(&self) -> Option<&str> {
        let host = self.places.metadata_host.as_deref();
        self.file.is_none().then(|| host.unwrap_or("metadata.google.internal"))
    }

    /// The library could not begin with it.
    pub fn unusable(&self, error: &build_errors::Error) -> NoCredentials {
        match &self.file {
            Some(file) if !is_there(file) => {
                let there = if file.as_os_str().is_empty() {
                    "is set, but empty".into()
                } else {
                    format!("{} is not there", file.display())
                };
                let rows = vec![
                    ("looked at", NAMED.into(), there),
                    ("do", LOGIN.into(), format!("(your own machine; and unset {NAMED})")),
                    ("or see", README.into(), "(service account, workload identity)".into()),
                ];
                NoCredentials { title: "no Google credentials found".into(), rows, for_good: true }
            }
            _ => self.trouble(
                "the Google credentials that were found can't be used",
                build_reason(error),
                true,
            ),
        }
    }

    /// No token was given.
    pub fn refused(&self, error: &CredentialsError) -> NoCredentials {
        if self.file.is_none() && unreachable(error) {
            let status = match &self.places.metadata_host {
                Some(host) => format!("not reachable at {host} (GCE_METADATA_HOST)"),
                None => "not reachable (not a Google VM)".into(),
            };
            return self.nowhere(status);
        }
        self.trouble(&format!("no access token from {self}"), reason(error), !error.is_transient())
    }

    /// No token came in time.
    pub fn late(&self, limit: Duration) -> NoCredentials {
        let answer = format!("no answer within {:.1} s", limit.as_secs_f64());
        match self.file {
            Some(_) => self.trouble(&format!("no access token from {self}"), answer, false),
            None => self.nowhere(format!("{answer} (not a Google VM?)")),
        }
    }

    /// Neither a file nor a metadata server.
    fn nowhere(&self, metadata: String) -> NoCredentials {
        let (path, there) = match &self.places.home {
            Some(_) => (format!("~/{WELL_KNOWN}"), "not there"),
            None => (format!("~/{WELL_KNOWN}"), "HOME is not set"),
        };
        let rows = vec![
            ("looked at", NAMED.into(), "not set".into()),
            ("", path, there.into()),
            ("", "metadata server".into(), metadata),
            ("do", LOGIN.into(), "(your own machine)".into()),
            ("or see", README.into(), "(service account, workload identity)".into()),
        ];
        NoCredentials { title: "no Google credentials found".into(), rows, for_good: false }
    }

    fn trouble(&self, title: &str, reason: String, for_good: bool) -> NoCredentials {
        let named = self.places.named.is_some();
        let used = match (&self.file, named) {
            (Some(file), true) => format!("{} ({NAMED})", file.display()),
            (Some(file), false) => file.display().to_string(),
            (None, _) => self.to_string(),
        };
        let advice = match (self.file.is_some(), self.kind) {
            _ if !for_good => "try again; if it stays so, check what this machine can reach".into(),
            (true, Kind::User) if named => format!("{LOGIN}, and unset {NAMED}"),
            (true, Kind::User) => LOGIN.into(),
            (true, Kind::ServiceAccount) => {
                "gcloud iam service-accounts keys list --iam-account ACCOUNT: the key may be gone"
                    .into()
            }
            (true, Kind::Other) => {
                format!("check what the file names, or use your own login: {LOGIN}")
            }
            (false, _) => "give this VM a service account with the scope cloud-platform".into(),
        };
        let row = |label, text| (label, text, String::new());
        let rows = vec![
            row("used", used),
            row("came back", reason),
            row("do", advice),
            row("or see", README.into()),
        ];
        NoCredentials { title: title.into(), rows, for_good }
    }
}

/// A file that can't be looked at is one that the library tries to read.
fn is_there(path: &Path) -> bool {
    !matches!(std::fs::metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

/// Why the library could not begin. Parsers quote what they read, and a file of credentials is
/// quoted nowhere.
fn build_reason(error: &build_errors::Error) -> String {
    let chain = chain(error);
    let missing = |text: &String| {
        text.find("missing field `").map(|at| text[at..].chars().take(60).collect::<String>())
    };
    if error.is_loading() {
        format!("it can't be read: {}", chain.last().map_or("", String::as_str))
    } else if error.is_unknown_type() || error.is_not_supported() {
        "its \"type\" is not one that Google's library can use".into()
    } else {
        chain
            .iter()
            .rev()
            .find_map(missing)
            .map_or("it is not the JSON of credentials".into(), |field| format!("{field} in it"))
    }
}

/// The obstacle between us and a token, on one short line: the token endpoint's own words, or the
/// deepest cause. The library's sentences about later calls are left out: which call will succeed
/// is not known here either.
pub fn reason(error: &CredentialsError) -> String {
    let chain = chain(error);
    let mut said = None;
    let mut status = None;
    let mut decoding = false;
    for cause in causes(error) {
        if let Some(error) = cause.downcast_ref::<CredentialsError>() {
            let text = without_forecast(&error.to_string()).to_owned();
            let boilerplate = [
                "Subsequent calls with",
                "cannot create auth headers",
                "Could not fetch an auth token",
                "failed to fetch",
            ];
            if !boilerplate.iter().any(|words| text.contains(words)) {
                said = Some(text);
            }
        } else if let Some(error) = cause.downcast_ref::<reqwest::Error>() {
            status = error.status().map(|status| status.as_u16());
            decoding = error.is_decode();
        }
    }
    // google-cloud-gax, whose errors these are, is no dependency of ours: its text is all there is.
    let reported = chain.iter().rev().find_map(|text| {
        text.split_once("the HTTP transport reports a [")?.1.split_once("] error: ")
    });
    let (body, status) =
        match (chain.iter().rev().find_map(|text| text.split_once(", body=<")), reported) {
            (Some((_, body)), _) => (body.rsplit_once('>').map(|(body, _)| body), status),
            (None, Some((code, rest))) => (
                rest.split_once(" :b\"").map(|(_, body)| body.trim_end_matches('"')),
                code.parse().ok(),
            ),
            (None, None) => (None, status),
        };
    let words = body.map(answer).filter(|words| !words.is_empty());
    let deepest = match (status, words) {
        (Some(status), Some(words)) => format!("HTTP {status} {words}"),
        (Some(status), None) => format!("HTTP {status}"),
        (None, Some(words)) => words,
        // A parser quotes what it read, and this may have been a token.
        (None, None) if decoding => "the answer is not a token".into(),
        (None, None) => {
            chain.last().map_or(String::new(), |text| without_forecast(text).to_owned())
        }
    };
    let text = match said {
        Some(said) if !deepest.contains(&said) => format!("{said}: {deepest}"),
        _ => deepest,
    };
    let text = plain(&text);
    let short: String = text.chars().take(REASON_MAX).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

/// An error of the library without its forecast, and without the answer that it quotes in full.
fn without_forecast(text: &str) -> &str {
    let text = text
        .trim_end_matches(" but future attempts may succeed")
        .trim_end_matches(" and future attempts will not succeed");
    text.split(", body=<").next().unwrap_or_default()
}

/// A token endpoint's error: OAuth's two fields, or an API's message; else its beginning.
fn answer(body: &str) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let text = |pointer: &str| json.pointer(pointer).and_then(Value::as_str);
    match (text("/error"), text("/error_description"), text("/error/message")) {
        (Some(error), Some(description), _) => format!("{error}: {description}"),
        (Some(error), None, _) => error.to_owned(),
        (None, _, Some(message)) => message.to_owned(),
        (None, ..) => body.chars().take(80).collect(),
    }
}

/// Whether the call came to no answer at all.
fn unreachable(error: &CredentialsError) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<reqwest::Error>()).any(|error| {
        error.status().is_none() && (error.is_connect() || error.is_timeout() || error.is_request())
    })
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    causes(error).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(transient: bool, message: &str) -> CredentialsError {
        let inner = CredentialsError::from_msg(transient, message);
        let words = "Request to fetch the token failed. Subsequent calls with this credential will also fail.";
        CredentialsError::new(transient, words, inner)
    }

    #[test]
    fn the_token_endpoint_is_quoted_and_the_librarys_sentences_are_not() {
        let body = r#"{"error": "invalid_grant", "error_description": "Token has been\n expired or revoked."}"#;
        let error = refused(false, &format!("failed to refresh user access token, body=<{body}>"));
        assert_eq!(answer(body), "invalid_grant: Token has been\n expired or revoked.");
        assert_eq!(
            reason(&error),
            "failed to refresh user access token: invalid_grant: Token has been expired or revoked."
        );
        let plain = reason(&refused(true, "reading the subject token failed"));
        assert_eq!(plain, "reading the subject token failed", "no forecast, nothing twice");
        assert!(reason(&refused(true, &"é".repeat(9_000))).chars().count() <= REASON_MAX + 1);
    }

    #[test]
    fn the_source_is_the_one_that_the_library_takes() {
        let home = tempfile::tempdir().unwrap();
        let places = |named: Option<&str>| Places {
            named: named.map(PathBuf::from),
            home: Some(home.path().into()),
            metadata_host: None,
        };
        assert_eq!(Source::of(places(None)).to_string(), "the metadata server");
        assert_eq!(Source::of(places(Some("/no/such.json"))).to_string(), "/no/such.json");
        let file = home.path().join(WELL_KNOWN);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, r#"{"type": "authorized_user", "refresh_token": "hunter2"}"#)
            .unwrap();
        let source = Source::of(places(None));
        assert_eq!((source.to_string(), source.kind), (file.display().to_string(), Kind::User));
        let text =
            source.refused(&refused(false, "failed to refresh user access token")).to_string();
        assert!(
            text.contains(&source.to_string()) && text.contains(LOGIN) && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[test]
    fn the_table_is_aligned_and_its_line_is_one() {
        let source = Source::of(Places::default());
        let trouble = source.late(Duration::from_secs(20));
        assert_eq!(
            trouble.to_string(),
            "no Google credentials found
  looked at  GOOGLE_APPLICATION_CREDENTIALS                          not set
             ~/.config/gcloud/application_default_credentials.json   HOME is not set
             metadata server                                         no answer within 20.0 s (not a Google VM?)
  do         gcloud auth application-default login                   (your own machine)
  or see     deploy/iam/README.md                                    (service account, workload identity)"
        );
        assert!(trouble.line().starts_with(
            "no Google credentials found; looked at GOOGLE_APPLICATION_CREDENTIALS not set; ~/"
        ));
        assert!(!trouble.line().contains('\n'));
    }

    #[test]
    fn an_empty_variable_and_a_file_that_is_not_there_are_told_apart() {
        let error = google_cloud_auth::credentials::user_account::Builder::new(Value::Null)
            .build()
            .unwrap_err();
        let told = |named: &str| {
            Source::of(Places { named: Some(named.into()), ..Places::default() })
                .unusable(&error)
                .to_string()
        };
        assert!(told("").contains("is set, but empty"), "{}", told(""));
        assert!(
            told("/no/such.json").contains("/no/such.json is not there"),
            "{}",
            told("/no/such.json")
        );
    }
}
