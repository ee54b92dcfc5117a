//! `state` and `pushgateway`: the places that are written to.

use std::path::{Path, PathBuf};

use super::check::Check;
use super::{Environment, StateLocation};

pub fn state(
    c: &mut Check,
    raw: Option<&str>,
    folder: &Path,
    environment: Environment,
) -> StateLocation {
    let text = raw.unwrap_or(DEFAULT_STATE);
    let nowhere = StateLocation::Sqlite(PathBuf::new());
    if environment("CLOUD_RUN_JOB").is_some()
        && (text.starts_with("sqlite:") || text.starts_with("memory:"))
    {
        c.wrong(
            "state",
            format!(
                "{text:?} ends with the Cloud Run task: a create that is owed would be forgotten; use \"gs://bucket/prefix\""
            ),
        );
        return nowhere;
    }
    state_location(text, folder).unwrap_or_else(|message| {
        c.wrong("state", message);
        nowhere
    })
}

/// See [`super::state_location`].
pub fn state_location(text: &str, folder: &Path) -> Result<StateLocation, String> {
    match text.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => Ok(StateLocation::Sqlite(folder.join(path))),
        Some(("sqlite", _)) => {
            Err("sqlite: needs a path, as in \"sqlite:/var/lib/tpu-watchdog/state.db\"".into())
        }
        Some(("memory", "")) => Ok(StateLocation::Memory),
        Some((scheme @ ("gs" | "s3"), rest)) => {
            let (bucket, prefix) = rest
                .trim_start_matches("//")
                .split_once('/')
                .unwrap_or((rest.trim_start_matches("//"), ""));
            let prefix = prefix.trim_matches('/');
            if !rest.starts_with("//") || bucket.is_empty() || prefix.is_empty() {
                return Err(format!(
                    "{text:?} needs a bucket and a prefix, as in \"{scheme}://my-bucket/tpu-watchdog\""
                ));
            }
            if object_store::path::Path::parse(prefix).is_err() {
                return Err(format!(
                    "{prefix:?} is not a path in a bucket: no empty parts, no \"..\""
                ));
            }
            Ok(StateLocation::Object {
                scheme: scheme.into(),
                bucket: bucket.into(),
                prefix: prefix.into(),
            })
        }
        Some(("postgres", _)) => Err(format!(
            "not supported yet: {text:?}; use \"sqlite:PATH\" or \"gs://bucket/prefix\""
        )),
        _ => Err(format!(
            "{text:?} is not a place for state; use \"sqlite:PATH\", \"gs://bucket/prefix\" or \"memory:\""
        )),
    }
}

const DEFAULT_STATE: &str = "sqlite:/var/lib/tpu-watchdog/state.db";

pub fn pushgateway(c: &mut Check, raw: Option<String>) -> Option<String> {
    let text = raw?;
    let url = reqwest::Url::parse(&text)
        .ok()
        .filter(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
    if url.is_none_or(|u| !u.username().is_empty() || u.password().is_some()) {
        c.wrong("pushgateway", "is not the URL of a Pushgateway; write \"http://127.0.0.1:9091\", without user and password");
        return None;
    }
    Some(text.trim_end_matches('/').to_owned())
}
