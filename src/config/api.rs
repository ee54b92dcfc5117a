//! `[api]` and `listen`: the addresses that are called and served.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::ApiSettings;
use super::check::Check;
use super::raw::*;

pub fn listen(c: &mut Check, raw: Option<&str>) -> Option<SocketAddr> {
    let text = raw.unwrap_or(DEFAULT_LISTEN);
    if text == "off" {
        return None;
    }
    match text.parse::<SocketAddr>() {
        // Off loopback without a token is no mistake: a scraper needs none.
        Ok(address) => Some(address),
        Err(_) => {
            c.wrong(
                "listen",
                format!("{text:?} is not ADDRESS:PORT; write \"{DEFAULT_LISTEN}\" or \"off\""),
            );
            None
        }
    }
}

/// The path alone: a file of systemd's credentials is there for the service alone.
pub fn listen_token_file(c: &mut Check, raw: Option<&str>, folder: &Path) -> Option<PathBuf> {
    let text = raw?;
    if text.is_empty() {
        c.wrong("listen_token_file", "must not be empty; name a file that holds the token");
        return None;
    }
    Some(folder.join(text))
}

pub fn api(c: &mut Check, raw: &RawApi) -> ApiSettings {
    let mut url = |key: &str, given: Option<&String>, default: &str| {
        let text = given.map_or(default, String::as_str).trim_end_matches('/').to_owned();
        let parsed = reqwest::Url::parse(&text.replace("{region}", "us-central1"))
            .ok()
            .filter(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
        match parsed {
            None => c.wrong(key, format!("{text:?} is not a URL; write \"{default}\"")),
            Some(u) if u.scheme() == "http" && !is_loopback(&u) => {
                c.wrong(key, format!("{text:?}: http is allowed towards loopback only; use https"))
            }
            Some(_) => {}
        }
        text
    };
    let tpu = url("api.tpu", raw.tpu.as_ref(), DEFAULT_TPU);
    let vertex = url("api.vertex", raw.vertex.as_ref(), DEFAULT_VERTEX);
    let ml = url("api.ml", raw.ml.as_ref(), DEFAULT_ML);
    let storage = url("api.storage", raw.storage.as_ref(), DEFAULT_STORAGE);
    // A private endpoint is no reason to ask Google's public ones.
    let public = is_googles(&tpu);
    let mut other = |key: &str, given: Option<&String>, default: &str| {
        let text = url(key, given, default);
        Some(text).filter(|_| public || given.is_some())
    };
    let resource_manager =
        other("api.resource_manager", raw.resource_manager.as_ref(), DEFAULT_RESOURCE_MANAGER);
    let iam = other("api.iam", raw.iam.as_ref(), DEFAULT_IAM);
    let quotas = other("api.quotas", raw.quotas.as_ref(), DEFAULT_QUOTAS);
    let anonymous = match raw.credentials.as_deref() {
        None | Some("application-default") => false,
        Some("anonymous") => {
            anonymous_to_loopback(c, raw, &tpu);
            true
        }
        Some(other) => {
            c.wrong(
                "api.credentials",
                format!("{other:?} is unknown; use \"application-default\", or \"anonymous\" towards loopback"),
            );
            false
        }
    };
    let versions = [("v2", "v2"), ("v2alpha1", "v2alpha1")];
    let version = c.one_of("api.version", raw.version.as_deref(), &versions, "v2");
    let storage = raw.storage.is_some().then_some(storage);
    ApiSettings { tpu, vertex, ml, storage, resource_manager, iam, quotas, version, anonymous }
}

/// A request without credentials never leaves this computer.
fn anonymous_to_loopback(c: &mut Check, raw: &RawApi, tpu: &String) {
    let given = [
        ("api.tpu", Some(tpu)),
        ("api.storage", raw.storage.as_ref()),
        ("api.vertex", raw.vertex.as_ref()),
        ("api.ml", raw.ml.as_ref()),
        ("api.resource_manager", raw.resource_manager.as_ref()),
        ("api.iam", raw.iam.as_ref()),
        ("api.quotas", raw.quotas.as_ref()),
    ];
    for (key, text) in given.into_iter().filter_map(|(key, text)| Some((key, text?))) {
        let url = reqwest::Url::parse(&text.replace("{region}", "us-central1"));
        if !url.is_ok_and(|url| is_loopback(&url)) {
            let text =
                format!("\"anonymous\" is allowed only towards loopback, and {key} is {text:?}");
            c.wrong("api.credentials", text);
        }
    }
}

const DEFAULT_LISTEN: &str = "127.0.0.1:9470";
const DEFAULT_TPU: &str = "https://tpu.googleapis.com";
const DEFAULT_VERTEX: &str = "https://{region}-aiplatform.googleapis.com";
const DEFAULT_ML: &str = "https://ml.googleapis.com";
pub const DEFAULT_STORAGE: &str = "https://storage.googleapis.com";

const DEFAULT_RESOURCE_MANAGER: &str = "https://cloudresourcemanager.googleapis.com";
const DEFAULT_IAM: &str = "https://iam.googleapis.com";
const DEFAULT_QUOTAS: &str = "https://cloudquotas.googleapis.com";

/// Whether an endpoint is one of Google's, private access to them included.
fn is_googles(url: &str) -> bool {
    let host = reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| host.ends_with(".googleapis.com"))
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
